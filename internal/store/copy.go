package store

import (
	"maps"
	"reflect"
	"slices"
	"sync"
)

// copier gives the value at dst, which is a plain copy of a shared one, maps,
// slices and pointers of its own.
type copier func(dst reflect.Value)

var copiers sync.Map // reflect.Type to copier, which is nil for types that hold no references

// copyOf returns a copy of a shared value, of which the caller may change
// what it likes.
func copyOf[T any](shared *T) T {
	v := *shared
	if c := copierOf(reflect.TypeFor[T]()); c != nil {
		c(reflect.ValueOf(&v).Elem())
	}
	return v
}

func copierOf(t reflect.Type) copier {
	if c, ok := copiers.Load(t); ok {
		return c.(copier)
	}
	// A type that holds itself finds this one, which looks again when it is
	// used.
	copiers.Store(t, copier(func(dst reflect.Value) {
		if c := copierOf(t); c != nil {
			c(dst)
		}
	}))
	c := newCopier(t)
	copiers.Store(t, c)
	return c
}

func newCopier(t reflect.Type) copier {
	switch t {
	// What instances and groups are full of, without reflection's cost.
	case reflect.TypeFor[map[string]string]():
		return func(dst reflect.Value) {
			m := dst.Addr().Interface().(*map[string]string)
			*m = maps.Clone(*m)
		}
	case reflect.TypeFor[[]string]():
		return func(dst reflect.Value) {
			s := dst.Addr().Interface().(*[]string)
			*s = slices.Clone(*s)
		}
	case reflect.TypeFor[[]byte]():
		return func(dst reflect.Value) {
			s := dst.Addr().Interface().(*[]byte)
			*s = slices.Clone(*s)
		}
	}
	switch t.Kind() {
	case reflect.Struct:
		return structCopier(t)
	case reflect.Slice:
		elem := copierOf(t.Elem())
		return func(dst reflect.Value) {
			if dst.IsNil() {
				return
			}
			fresh := reflect.MakeSlice(t, dst.Len(), dst.Len())
			reflect.Copy(fresh, dst)
			for n := 0; elem != nil && n < fresh.Len(); n++ {
				elem(fresh.Index(n))
			}
			dst.Set(fresh)
		}
	case reflect.Array:
		elem := copierOf(t.Elem())
		if elem == nil {
			return nil
		}
		return func(dst reflect.Value) {
			for n := range dst.Len() {
				elem(dst.Index(n))
			}
		}
	case reflect.Pointer:
		elem := copierOf(t.Elem())
		return func(dst reflect.Value) {
			if dst.IsNil() {
				return
			}
			fresh := reflect.New(t.Elem())
			fresh.Elem().Set(dst.Elem())
			if elem != nil {
				elem(fresh.Elem())
			}
			dst.Set(fresh)
		}
	case reflect.Map:
		elem := copierOf(t.Elem())
		return func(dst reflect.Value) {
			if dst.IsNil() {
				return
			}
			fresh := reflect.MakeMapWithSize(t, dst.Len())
			for iter := dst.MapRange(); iter.Next(); {
				key, value := iter.Key(), iter.Value()
				if elem != nil {
					mine := reflect.New(t.Elem()).Elem()
					mine.Set(value)
					elem(mine)
					value = mine
				}
				fresh.SetMapIndex(key, value)
			}
			dst.Set(fresh)
		}
	case reflect.Interface:
		return func(dst reflect.Value) {
			if dst.IsNil() {
				return
			}
			fresh := reflect.New(dst.Elem().Type()).Elem()
			fresh.Set(dst.Elem())
			if c := copierOf(fresh.Type()); c != nil {
				c(fresh)
			}
			dst.Set(fresh)
		}
	default:
		return nil
	}
}

func structCopier(t reflect.Type) copier {
	type field struct {
		n    int
		copy copier
	}
	var fields []field
	for n := range t.NumField() {
		f := t.Field(n)
		// JSON does not fill in what others cannot see, and what a type has of
		// that, such as a time, it does not change.
		if !f.IsExported() && !f.Anonymous {
			continue
		}
		if c := copierOf(f.Type); c != nil {
			fields = append(fields, field{n, c})
		}
	}
	if len(fields) == 0 {
		return nil
	}
	return func(dst reflect.Value) {
		for _, f := range fields {
			f.copy(dst.Field(f.n))
		}
	}
}

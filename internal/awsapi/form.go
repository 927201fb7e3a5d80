package awsapi

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// maxFormDepth bounds the nesting of parameter names.
const maxFormDepth = 16

// Form makes an operation of a query protocol from a function on its input
// and output types. The input's fields are named by query tags:
// `query:"Filter"`, `query:"RoleName,required"`; lists are numbered
// (Filter.1.Name), with or without "member" before the number. A parameter
// without a field is refused, so that nothing a caller asks for is silently
// ignored.
func Form[I, O any](name, permission string, readOnly bool, f func(ctx context.Context, r *Request, in *I) (*O, error)) Operation {
	return Operation{
		Name: name, Permission: permission, ReadOnly: readOnly, In: reflect.TypeFor[I](), Out: reflect.TypeFor[O](),
		Handle: func(ctx context.Context, r *Request) (any, error) {
			in := new(I)
			if err := DecodeForm(r.Form, in); err != nil {
				return nil, err
			}
			return answer(f(ctx, r, in))
		},
	}
}

// formNode is one step of dotted parameter names.
type formNode struct {
	value *string
	kids  map[string]*formNode
}

// DecodeForm decodes parameters into the struct that v points to. Its errors
// are *Fault.
func DecodeForm(form url.Values, v any) error {
	root := &formNode{}
	for _, name := range slices.Sorted(mapKeys(form)) {
		parts := strings.Split(name, ".")
		if len(parts) > maxFormDepth {
			return unknownParameter(name)
		}
		n := root
		for _, p := range parts {
			if n.kids == nil {
				n.kids = map[string]*formNode{}
			}
			kid := n.kids[p]
			if kid == nil {
				kid = &formNode{}
				n.kids[p] = kid
			}
			n = kid
		}
		value := ""
		if len(form[name]) > 0 {
			value = form[name][0]
		}
		n.value = &value
	}
	return decodeStruct("", root, reflect.ValueOf(v).Elem())
}

func mapKeys(form url.Values) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for k := range form {
			if !yield(k) {
				return
			}
		}
	}
}

func unknownParameter(name string) error {
	return &Fault{Kind: FaultUnknownMember, Name: name, Message: "The parameter " + name + " is not recognized"}
}

func badParameter(name, value, why string) error {
	return &Fault{Kind: FaultBadMember, Name: name, Message: fmt.Sprintf("Value (%s) for parameter %s is invalid. %s", value, name, why)}
}

func decodeStruct(path string, n *formNode, dst reflect.Value) error {
	if n.value != nil && path != "" {
		return badParameter(path, *n.value, "It must be a structure.")
	}
	left := make(map[string]*formNode, len(n.kids))
	for k, kid := range n.kids {
		left[k] = kid
	}
	for _, f := range reflect.VisibleFields(dst.Type()) {
		tag, opts, _ := strings.Cut(f.Tag.Get("query"), ",")
		if tag == "" || !f.IsExported() {
			continue
		}
		kid, ok := left[tag]
		if !ok {
			if opts == "required" {
				name := join(path, tag)
				return &Fault{Kind: FaultMissingMember, Name: name, Message: "The request must contain the parameter " + name}
			}
			continue
		}
		delete(left, tag)
		if err := decodeParameter(join(path, tag), kid, dst.FieldByIndex(f.Index)); err != nil {
			return err
		}
	}
	if len(left) > 0 {
		name := slices.Min(slices.Collect(func(yield func(string) bool) {
			for k := range left {
				if !yield(k) {
					return
				}
			}
		}))
		return unknownParameter(left[name].leaf(join(path, name)))
	}
	return nil
}

// leaf returns the full name of the first parameter at or below the node.
func (n *formNode) leaf(name string) string {
	for n.value == nil && len(n.kids) > 0 {
		var first string
		for k := range n.kids {
			if first == "" || k < first {
				first = k
			}
		}
		name += "." + first
		n = n.kids[first]
	}
	return name
}

func decodeParameter(path string, n *formNode, dst reflect.Value) error {
	switch dst.Kind() {
	case reflect.Pointer:
		p := reflect.New(dst.Type().Elem())
		if err := decodeParameter(path, n, p.Elem()); err != nil {
			return err
		}
		dst.Set(p)
		return nil
	case reflect.Slice:
		if dst.Type().Elem().Kind() != reflect.Uint8 {
			return decodeList(path, n, dst)
		}
	case reflect.Struct:
		if dst.Type() != reflect.TypeFor[time.Time]() && dst.Type() != reflect.TypeFor[Time]() {
			return decodeStruct(path, n, dst)
		}
	}
	if len(n.kids) > 0 {
		return unknownParameter(n.below(path))
	}
	if n.value == nil {
		return nil
	}
	return decodeScalar(path, *n.value, dst)
}

// below returns the name of the first parameter below the node.
func (n *formNode) below(name string) string {
	return (&formNode{kids: n.kids}).leaf(name)
}

func decodeList(path string, n *formNode, dst reflect.Value) error {
	if n.value != nil {
		// The query protocol writes an empty list as an empty value.
		if *n.value != "" || len(n.kids) > 0 {
			return badParameter(path, *n.value, "It must be a list.")
		}
		dst.Set(reflect.MakeSlice(dst.Type(), 0, 0))
		return nil
	}
	if m := n.kids["member"]; m != nil && len(n.kids) == 1 {
		path, n = path+".member", m
		if n.value != nil {
			return badParameter(path, *n.value, "It must be a list.")
		}
	}
	type entry struct {
		index int
		name  string
	}
	entries := make([]entry, 0, len(n.kids))
	for k := range n.kids {
		i, err := strconv.Atoi(k)
		if err != nil || i < 0 || strconv.Itoa(i) != k {
			return unknownParameter(n.kids[k].leaf(path + "." + k))
		}
		entries = append(entries, entry{i, k})
	}
	slices.SortFunc(entries, func(a, b entry) int { return a.index - b.index })
	out := reflect.MakeSlice(dst.Type(), len(entries), len(entries))
	for i, e := range entries {
		if err := decodeParameter(path+"."+e.name, n.kids[e.name], out.Index(i)); err != nil {
			return err
		}
	}
	dst.Set(out)
	return nil
}

func decodeScalar(path, value string, dst reflect.Value) error {
	switch dst.Kind() {
	case reflect.String:
		dst.SetString(value)
	case reflect.Bool:
		switch strings.ToLower(value) {
		case "true", "1":
			dst.SetBool(true)
		case "false", "0":
			dst.SetBool(false)
		default:
			return badParameter(path, value, "It must be true or false.")
		}
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		i, err := strconv.ParseInt(value, 10, dst.Type().Bits())
		if err != nil {
			return badParameter(path, value, "It must be an integer.")
		}
		dst.SetInt(i)
	case reflect.Float32, reflect.Float64:
		f, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return badParameter(path, value, "It must be a number.")
		}
		dst.SetFloat(f)
	case reflect.Slice:
		b, err := base64.StdEncoding.DecodeString(value)
		if err != nil {
			return badParameter(path, "...", "It must be base64.")
		}
		dst.SetBytes(b)
	case reflect.Struct:
		t, err := time.Parse(time.RFC3339Nano, value)
		if err != nil {
			return badParameter(path, value, "It must be a time as 2006-01-02T15:04:05Z.")
		}
		if dst.Type() == reflect.TypeFor[Time]() {
			dst.Set(reflect.ValueOf(Time{t.UTC()}))
		} else {
			dst.Set(reflect.ValueOf(t.UTC()))
		}
	default:
		return fmt.Errorf("decode parameter %s: type %s is not supported", path, dst.Type())
	}
	return nil
}

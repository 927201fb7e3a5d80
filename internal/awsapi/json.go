package awsapi

import (
	"bytes"
	"context"
	"encoding"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"
)

// JSON makes an operation of a JSON protocol from a function on its input
// and output types. Members that the input type does not have are ignored,
// as AWS does.
func JSON[I, O any](name, permission string, readOnly bool, f func(ctx context.Context, r *Request, in *I) (*O, error)) Operation {
	return jsonOperation(name, permission, readOnly, false, f)
}

// StrictJSON is JSON for services that refuse members they do not know,
// because ignoring one would do something else than the caller asked for.
func StrictJSON[I, O any](name, permission string, readOnly bool, f func(ctx context.Context, r *Request, in *I) (*O, error)) Operation {
	return jsonOperation(name, permission, readOnly, true, f)
}

func jsonOperation[I, O any](name, permission string, readOnly, strict bool, f func(ctx context.Context, r *Request, in *I) (*O, error)) Operation {
	return Operation{
		Name: name, Permission: permission, ReadOnly: readOnly, In: reflect.TypeFor[I](), Out: reflect.TypeFor[O](),
		Handle: func(ctx context.Context, r *Request) (any, error) {
			in := new(I)
			if err := DecodeJSON(r.Body, in, strict); err != nil {
				return nil, err
			}
			return answer(f(ctx, r, in))
		},
	}
}

// answer keeps a nil *O from becoming a non-nil any.
func answer[O any](out *O, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	if out == nil {
		return nil, nil // an empty answer is one
	}
	return out, nil
}

// DecodeJSON decodes the document of a call into the struct that v points
// to. Unlike encoding/json it tells member names by case, and its errors
// (always a *Fault) name the path of the member at fault. An empty body is an
// empty object.
func DecodeJSON(body []byte, v any, strict bool) error {
	if len(bytes.TrimSpace(body)) == 0 {
		return nil
	}
	if !utf8.Valid(body) {
		return &Fault{Kind: FaultCannotParse, Message: "The request body is not valid UTF-8"}
	}
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.UseNumber()
	var doc any
	if err := dec.Decode(&doc); err != nil {
		return &Fault{Kind: FaultCannotParse, Message: "The request body is not valid JSON: " + err.Error()}
	}
	if _, err := dec.Token(); err != io.EOF { // Token returns it bare
		return &Fault{Kind: FaultCannotParse, Message: "The request body is not valid JSON: there is more after the object"}
	}
	if _, ok := doc.(map[string]any); !ok {
		return &Fault{Kind: FaultCannotParse, Message: "The request body must be a JSON object, not " + kindOf(doc)}
	}
	d := jsonDecoder{strict: strict}
	return d.assign("", doc, reflect.ValueOf(v).Elem())
}

type jsonDecoder struct{ strict bool }

func bad(path, format string, args ...any) error {
	return &Fault{Kind: FaultBadMember, Name: path, Message: "The value of " + path + " " + fmt.Sprintf(format, args...)}
}

func wrongKind(path, want string, got any) error {
	return bad(path, "must be %s, not %s", want, kindOf(got))
}

func kindOf(v any) string {
	switch v.(type) {
	case nil:
		return "null"
	case bool:
		return "a boolean"
	case json.Number:
		return "a number"
	case string:
		return "a string"
	case []any:
		return "a list"
	default:
		return "an object"
	}
}

var (
	unmarshalerType     = reflect.TypeFor[json.Unmarshaler]()
	textUnmarshalerType = reflect.TypeFor[encoding.TextUnmarshaler]()
)

func (d jsonDecoder) assign(path string, v any, dst reflect.Value) error {
	if v == nil {
		return nil // null is the same as absent
	}
	if dst.Kind() == reflect.Pointer {
		p := reflect.New(dst.Type().Elem())
		if err := d.assign(path, v, p.Elem()); err != nil {
			return err
		}
		dst.Set(p)
		return nil
	}
	if reflect.PointerTo(dst.Type()).Implements(unmarshalerType) {
		raw, err := json.Marshal(v)
		if err != nil {
			return bad(path, "cannot be read: %v", err)
		}
		if err := json.Unmarshal(raw, dst.Addr().Interface()); err != nil {
			return bad(path, "is wrong: %v", err)
		}
		return nil
	}
	switch dst.Kind() {
	case reflect.Struct:
		m, ok := v.(map[string]any)
		if !ok {
			return wrongKind(path, "an object", v)
		}
		return d.assignStruct(path, m, dst)
	case reflect.Map:
		m, ok := v.(map[string]any)
		if !ok {
			return wrongKind(path, "an object", v)
		}
		return d.assignMap(path, m, dst)
	case reflect.Slice:
		if dst.Type().Elem().Kind() == reflect.Uint8 {
			return assignBlob(path, v, dst)
		}
		l, ok := v.([]any)
		if !ok {
			return wrongKind(path, "a list", v)
		}
		return d.assignSlice(path, l, dst)
	case reflect.Interface:
		dst.Set(reflect.ValueOf(v))
		return nil
	default:
		return assignScalar(path, v, dst)
	}
}

func (d jsonDecoder) assignStruct(path string, m map[string]any, dst reflect.Value) error {
	fields := jsonFields(dst.Type())
	// In order of the names, so that the same request gets the same error.
	for _, name := range sortedKeys(m) {
		at := join(path, name)
		index, ok := fields[name]
		if !ok {
			if d.strict {
				return &Fault{Kind: FaultUnknownMember, Name: at, Message: "The member " + at + " is not known to this version of openpcs"}
			}
			continue
		}
		if err := d.assign(at, m[name], dst.FieldByIndex(index)); err != nil {
			return err
		}
	}
	return nil
}

func (d jsonDecoder) assignMap(path string, m map[string]any, dst reflect.Value) error {
	t := dst.Type()
	out := reflect.MakeMapWithSize(t, len(m))
	for _, k := range sortedKeys(m) {
		at := join(path, k)
		if m[k] == nil {
			return wrongKind(at, "present", nil)
		}
		elem := reflect.New(t.Elem()).Elem()
		if err := d.assign(at, m[k], elem); err != nil {
			return err
		}
		out.SetMapIndex(reflect.ValueOf(k).Convert(t.Key()), elem)
	}
	dst.Set(out)
	return nil
}

func (d jsonDecoder) assignSlice(path string, l []any, dst reflect.Value) error {
	out := reflect.MakeSlice(dst.Type(), len(l), len(l))
	for i, e := range l {
		at := path + "[" + strconv.Itoa(i) + "]"
		if e == nil {
			return wrongKind(at, "present", nil)
		}
		if err := d.assign(at, e, out.Index(i)); err != nil {
			return err
		}
	}
	dst.Set(out)
	return nil
}

func assignBlob(path string, v any, dst reflect.Value) error {
	s, ok := v.(string)
	if !ok {
		return wrongKind(path, "a base64 string", v)
	}
	b, err := base64.StdEncoding.DecodeString(s)
	if err != nil {
		return bad(path, "is not base64")
	}
	dst.SetBytes(b)
	return nil
}

func assignScalar(path string, v any, dst reflect.Value) error {
	switch dst.Kind() {
	case reflect.String:
		s, ok := v.(string)
		if !ok {
			return wrongKind(path, "a string", v)
		}
		if reflect.PointerTo(dst.Type()).Implements(textUnmarshalerType) {
			if err := dst.Addr().Interface().(encoding.TextUnmarshaler).UnmarshalText([]byte(s)); err != nil {
				return bad(path, "is wrong: %v", err)
			}
			return nil
		}
		dst.SetString(s)
	case reflect.Bool:
		b, ok := v.(bool)
		if !ok {
			return wrongKind(path, "a boolean", v)
		}
		dst.SetBool(b)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		n, ok := v.(json.Number)
		if !ok {
			return wrongKind(path, "an integer", v)
		}
		i, err := integer(n.String())
		if err != nil || dst.OverflowInt(i) {
			return bad(path, "must be an integer of %d bits, not %s", dst.Type().Bits(), n)
		}
		dst.SetInt(i)
	case reflect.Float32, reflect.Float64:
		n, ok := v.(json.Number)
		if !ok {
			return wrongKind(path, "a number", v)
		}
		f, err := n.Float64()
		if err != nil {
			return bad(path, "must be a number, not %s", n)
		}
		dst.SetFloat(f)
	default:
		return fmt.Errorf("decode %s: type %s is not supported", path, dst.Type())
	}
	return nil
}

// integer reads a JSON number that stands for a whole one (3, 3.0, 3e2).
func integer(s string) (int64, error) {
	if i, err := strconv.ParseInt(s, 10, 64); err == nil {
		return i, nil
	}
	f, err := strconv.ParseFloat(s, 64)
	// Beyond 2^53 a float no longer tells whole numbers apart.
	if err != nil || f != float64(int64(f)) || f > 1<<53 || f < -(1<<53) {
		return 0, fmt.Errorf("%s is no integer", s)
	}
	return int64(f), nil
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

func sortedKeys(m map[string]any) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

var jsonFieldCache sync.Map // reflect.Type -> map[string][]int

// jsonFields maps the member names of a struct to its fields, those of
// embedded structs included.
func jsonFields(t reflect.Type) map[string][]int {
	if m, ok := jsonFieldCache.Load(t); ok {
		return m.(map[string][]int)
	}
	m := map[string][]int{}
	for _, f := range reflect.VisibleFields(t) {
		tag, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if !f.IsExported() || tag == "-" || (f.Anonymous && tag == "") {
			continue
		}
		if tag == "" {
			tag = f.Name
		}
		m[tag] = f.Index
	}
	jsonFieldCache.Store(t, m)
	return m
}

// encodeJSON writes an answer; nil is an empty object.
func encodeJSON(v any) ([]byte, error) {
	if v == nil {
		return []byte("{}"), nil
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

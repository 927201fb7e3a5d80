package awsapi

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"
)

const xmlTime = "2006-01-02T15:04:05.000Z"

// encodeXML writes an answer in the form of its protocol. Structs are
// written by their xml tags: `xml:"imageId,omitempty"`. A slice becomes
// <imagesSet><item/>...</imagesSet> (EC2) or <Roles><member/>...</Roles>
// (query), unless the tag names the entries (groupSet>groupId); an empty one
// is written as an empty element, because clients tell an empty list from
// none.
func encodeXML(svc *Service, op, requestID string, v any) ([]byte, error) {
	e := xmlEncoder{item: "item"}
	e.buf.WriteString(xml.Header)
	fmt.Fprintf(&e.buf, `<%sResponse xmlns="%s">`, op, svc.Namespace)
	if svc.Protocol == EC2Query {
		e.element("requestId", requestID)
		if err := e.content(v); err != nil {
			return nil, err
		}
	} else {
		e.item = "member"
		if v != nil {
			e.open(op + "Result")
			if err := e.content(v); err != nil {
				return nil, err
			}
			e.close(op + "Result")
		}
		e.open("ResponseMetadata")
		e.element("RequestId", requestID)
		e.close("ResponseMetadata")
	}
	fmt.Fprintf(&e.buf, `</%sResponse>`, op)
	return e.buf.Bytes(), nil
}

func ec2ErrorXML(err *Error, requestID string) []byte {
	var e xmlEncoder
	e.buf.WriteString(xml.Header)
	e.buf.WriteString("<Response><Errors><Error>")
	e.element("Code", err.Code)
	e.element("Message", err.Message)
	e.buf.WriteString("</Error></Errors>")
	e.element("RequestID", requestID)
	e.buf.WriteString("</Response>")
	return e.buf.Bytes()
}

func queryErrorXML(err *Error, namespace, requestID string) []byte {
	var e xmlEncoder
	e.buf.WriteString(xml.Header)
	if namespace == "" {
		e.open("ErrorResponse")
	} else {
		fmt.Fprintf(&e.buf, `<ErrorResponse xmlns="%s">`, namespace)
	}
	e.open("Error")
	kind := "Sender"
	if err.Status >= 500 {
		kind = "Receiver"
	}
	e.element("Type", kind)
	e.element("Code", err.Code)
	e.element("Message", err.Message)
	e.close("Error")
	e.element("RequestId", requestID)
	e.close("ErrorResponse")
	return e.buf.Bytes()
}

// restErrorXML is the body of an error of S3.
func restErrorXML(err *Error, resource, requestID string) []byte {
	var e xmlEncoder
	e.buf.WriteString(xml.Header)
	e.open("Error")
	e.element("Code", err.Code)
	e.element("Message", err.Message)
	e.element("Resource", resource)
	e.element("RequestId", requestID)
	e.close("Error")
	return e.buf.Bytes()
}

type xmlEncoder struct {
	buf  bytes.Buffer
	item string // element of list entries
}

func (e *xmlEncoder) open(name string) { e.buf.WriteString("<" + name + ">") }

func (e *xmlEncoder) close(name string) { e.buf.WriteString("</" + name + ">") }

func (e *xmlEncoder) element(name, text string) {
	e.open(name)
	_ = xml.EscapeText(&e.buf, []byte(text)) // a buffer does not fail
	e.close(name)
}

// content writes the fields of a struct.
func (e *xmlEncoder) content(v any) error {
	rv := reflect.ValueOf(v)
	for rv.Kind() == reflect.Pointer && !rv.IsNil() {
		rv = rv.Elem()
	}
	if rv.Kind() != reflect.Struct {
		return fmt.Errorf("encode answer: %T is no struct", v)
	}
	return e.fields(rv)
}

func (e *xmlEncoder) fields(rv reflect.Value) error {
	t := rv.Type()
	for i := range t.NumField() {
		f := t.Field(i)
		tag, opts, _ := strings.Cut(f.Tag.Get("xml"), ",")
		if f.Anonymous && tag == "" {
			if err := e.embedded(rv.Field(i)); err != nil {
				return err
			}
			continue
		}
		if !f.IsExported() || tag == "-" {
			continue
		}
		if tag == "" {
			tag = f.Name
		}
		if strings.Contains(opts, "omitempty") && emptyXML(rv.Field(i)) {
			continue
		}
		if err := e.value(tag, rv.Field(i)); err != nil {
			return fmt.Errorf("%s.%s: %w", t, f.Name, err)
		}
	}
	return nil
}

func (e *xmlEncoder) embedded(v reflect.Value) error {
	if v.Kind() == reflect.Pointer {
		if v.IsNil() {
			return nil
		}
		v = v.Elem()
	}
	return e.fields(v)
}

func emptyXML(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Slice, reflect.Map, reflect.String:
		return v.Len() == 0
	default:
		return v.IsZero()
	}
}

func (e *xmlEncoder) value(name string, v reflect.Value) error {
	if t, ok := timeOf(v); ok {
		if !t.IsZero() {
			e.element(name, t.UTC().Format(xmlTime))
		}
		return nil
	}
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return nil
		}
		return e.value(name, v.Elem())
	case reflect.Struct:
		e.open(name)
		if err := e.fields(v); err != nil {
			return err
		}
		e.close(name)
	case reflect.Slice:
		name, item, named := strings.Cut(name, ">")
		if !named {
			item = e.item
		}
		e.open(name)
		for i := range v.Len() {
			if err := e.value(item, v.Index(i)); err != nil {
				return err
			}
		}
		e.close(name)
	case reflect.String:
		e.element(name, v.String())
	case reflect.Bool:
		e.element(name, strconv.FormatBool(v.Bool()))
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		e.element(name, strconv.FormatInt(v.Int(), 10))
	case reflect.Float32, reflect.Float64:
		e.element(name, strconv.FormatFloat(v.Float(), 'f', -1, 64))
	default:
		return fmt.Errorf("encode answer: type %s is not supported", v.Type())
	}
	return nil
}

func timeOf(v reflect.Value) (time.Time, bool) {
	if v.Kind() != reflect.Struct || !v.CanInterface() {
		return time.Time{}, false
	}
	switch t := v.Interface().(type) {
	case time.Time:
		return t, true
	case Time:
		return t.Time, true
	default:
		return time.Time{}, false
	}
}

package filterpattern

import (
	"bytes"
	"encoding/json"
	"io"
	"strconv"
)

// parseJSON reads a pattern in braces.
func parseJSON(s *scanner) (func([]byte) bool, error) {
	s.take("{")
	c, err := either(s, func() (condition[any], error) { return parseProperty(s) })
	if err != nil {
		return nil, err
	}
	if s.space(); !s.take("}") {
		return nil, s.fail("a }, && or || is missing")
	}
	return func(message []byte) bool {
		// What is no object is not decoded.
		if trimmed := bytes.TrimLeft(message, " \t\r\n"); len(trimmed) == 0 || trimmed[0] != '{' {
			return false
		}
		dec := json.NewDecoder(bytes.NewReader(message))
		dec.UseNumber()
		var doc any
		if dec.Decode(&doc) != nil {
			return false
		}
		if _, err := dec.Token(); err != io.EOF { // there is more behind it; Token returns it bare
			return false
		}
		return c(doc)
	}, nil
}

// step is one step into a document: by name or by number, or into any element.
type step struct {
	name   string
	number int
	array  bool
	any    bool
}

// parseProperty reads a selector and what is asked of its value.
func parseProperty(s *scanner) (condition[any], error) {
	s.space()
	path, err := parseSelector(s)
	if err != nil {
		return nil, err
	}
	begin := s.at
	switch {
	case s.word("NOT"):
		if !s.word("EXISTS") {
			return nil, s.fail("after NOT comes EXISTS")
		}
		return func(doc any) bool { return !find(doc, path, func(any) bool { return true }) }, nil
	case s.word("EXISTS"):
		return func(doc any) bool { return find(doc, path, func(any) bool { return true }) }, nil
	case s.word("IS"):
		var want any
		switch {
		case s.word("NULL"):
		case s.word("TRUE"):
			want = true
		case s.word("FALSE"):
			want = false
		default:
			return nil, s.fail("after IS comes NULL, TRUE or FALSE")
		}
		return func(doc any) bool {
			return find(doc, path, func(v any) bool {
				switch v.(type) {
				case nil, bool:
					return v == want
				default:
					return false
				}
			})
		}, nil
	}
	s.at = begin
	c, err := parseComparison(s, "(){}")
	if err != nil {
		return nil, err
	}
	return func(doc any) bool {
		// What is neither string nor number is neither equal nor unequal.
		return find(doc, path, func(v any) bool {
			switch v := v.(type) {
			case string:
				return c.holds(v, 0, false)
			case json.Number:
				f, err := v.Float64()
				return c.holds(v.String(), f, err == nil)
			default:
				return false
			}
		})
	}, nil
}

// find calls ok with the value at a path, or, where the path has [*], with one
// after the other, until ok is content.
func find(v any, path []step, ok func(any) bool) bool {
	for n, p := range path {
		if !p.array {
			object, is := v.(map[string]any)
			if !is {
				return false
			}
			if v, is = object[p.name]; !is {
				return false
			}
			continue
		}
		list, is := v.([]any)
		if !is {
			return false
		}
		if p.any {
			for _, e := range list {
				if find(e, path[n+1:], ok) {
					return true
				}
			}
			return false
		}
		if p.number >= len(list) {
			return false
		}
		v = list[p.number]
	}
	return ok(v)
}

// parseSelector reads $.name, $.name[0], $.list[*].name and $["a.b"].
func parseSelector(s *scanner) (path []step, err error) {
	if !s.take("$") {
		return nil, s.fail("a selector such as $.name is missing")
	}
	for {
		switch {
		case s.take("["):
			p, err := parseIndex(s)
			if err != nil {
				return nil, err
			}
			path = append(path, p)
		case s.take("."):
			if s.peek() == '[' { // $.["a.b"]
				continue
			}
			begin := s.at
			for _, r := range s.text[begin:] {
				if !isWord(r) && r != '-' {
					break
				}
				s.at += len(string(r))
			}
			if s.at == begin {
				return nil, s.fail("a name is missing after the dot")
			}
			path = append(path, step{name: s.text[begin:s.at]})
		case len(path) == 0:
			return nil, s.fail("a selector such as $.name is missing")
		default:
			return path, nil
		}
	}
}

// maxIndex bounds the number of an element; no message has more.
const maxIndex = 1 << 20

func parseIndex(s *scanner) (p step, err error) {
	begin := s.at
	switch s.peek() {
	case '*':
		s.at++
		p = step{array: true, any: true}
	case '"':
		if p.name, err = s.quoted(); err != nil {
			return p, err
		}
	case '\'':
		for s.at++; s.at < len(s.text) && s.text[s.at] != '\''; s.at++ {
		}
		p.name = s.text[begin+1 : s.at]
		s.take("'")
	default:
		for s.at < len(s.text) && s.text[s.at] >= '0' && s.text[s.at] <= '9' {
			s.at++
		}
		n, err := strconv.Atoi(s.text[begin:s.at])
		if err != nil || n > maxIndex {
			return p, s.failAt(begin, "between brackets comes the number of an element, * or a quoted name")
		}
		p = step{array: true, number: n}
	}
	if !s.take("]") {
		return p, s.fail("a ] is missing")
	}
	return p, nil
}

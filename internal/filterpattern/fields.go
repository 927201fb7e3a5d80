package filterpattern

import (
	"strings"
)

// field is a column of a pattern in brackets.
type field struct {
	name string
	dots bool // any number of columns
	cond condition[string]
}

// parseFields reads a pattern in brackets.
func parseFields(s *scanner) (func([]byte) bool, error) {
	s.take("[")
	var fields []field
	dots := -1
	for {
		begin := s.at
		f, err := parseField(s)
		if err != nil {
			return nil, err
		}
		if f.dots {
			if dots >= 0 {
				return nil, s.failAt(begin, "... can be there once")
			}
			dots = len(fields)
		}
		fields = append(fields, f)
		if s.space(); s.take("]") {
			break
		}
		if !s.take(",") {
			return nil, s.fail("a comma or a ] is missing")
		}
	}
	before, behind := fields, []field(nil)
	if dots >= 0 {
		before, behind = fields[:dots], fields[dots+1:]
	}
	return func(message []byte) bool {
		columns := split(string(message))
		if len(columns) < len(before)+len(behind) || dots < 0 && len(columns) > len(before) {
			return false
		}
		return all(before, columns) && all(behind, columns[len(columns)-len(behind):])
	}, nil
}

func all(fields []field, columns []string) bool {
	for n, f := range fields {
		if f.cond != nil && !f.cond(columns[n]) {
			return false
		}
	}
	return true
}

// parseField reads a name, which may be empty, with conditions on it.
func parseField(s *scanner) (f field, err error) {
	if s.space(); s.take("...") || s.take("…") {
		return field{dots: true}, nil
	}
	begin := s.at
	for s.peek() == '(' || isSpace(s.peek()) {
		s.at++
	}
	f.name = fieldName(s)
	plain := s.at
	if s.space(); s.at == len(s.text) || s.peek() == ',' || s.peek() == ']' {
		if begin != plain-len(f.name) {
			return f, s.failAt(begin, "a condition is missing between the parentheses")
		}
		return f, nil
	}
	s.at = begin
	f.cond, err = either(s, func() (condition[string], error) {
		s.space()
		at := s.at
		if name := fieldName(s); name != f.name {
			return nil, s.failAt(at, "the conditions of a field are about that field: %q is not %q", name, f.name)
		}
		c, err := parseComparison(s, "(),[]")
		if err != nil {
			return nil, err
		}
		return func(column string) bool {
			n, isNumber := number(column)
			return c.holds(column, n, isNumber)
		}, nil
	})
	return f, err
}

func fieldName(s *scanner) string {
	begin := s.at
	for _, r := range s.text[begin:] {
		if !isWord(r) && r != '-' && r != '.' && r != '$' {
			break
		}
		s.at += len(string(r))
	}
	return s.text[begin:s.at]
}

// split makes columns of a message: what stands between brackets or double
// quotes is one.
func split(message string) (columns []string) {
	for {
		message = strings.TrimLeft(message, " \t\r\n")
		if message == "" {
			return columns
		}
		end := strings.IndexAny(message, " \t\r\n")
		if closing := map[byte]string{'"': `"`, '[': "]"}[message[0]]; closing != "" {
			if n := strings.Index(message[1:], closing); n >= 0 {
				columns = append(columns, message[1:n+1])
				message = message[n+2:]
				continue
			}
		}
		if end < 0 {
			return append(columns, message)
		}
		columns = append(columns, message[:end])
		message = message[end:]
	}
}

package filterpattern

import (
	"regexp"
	"strconv"
	"strings"
)

// condition is what is asked of a message in the form T.
type condition[T any] func(T) bool

// either reads conditions between ||, which binds less than &&.
func either[T any](s *scanner, one func() (condition[T], error)) (condition[T], error) {
	return chain(s, "||", func() (condition[T], error) {
		return chain(s, "&&", func() (condition[T], error) {
			s.space()
			if !s.take("(") {
				return one()
			}
			c, err := either(s, one)
			if err != nil {
				return nil, err
			}
			if s.space(); !s.take(")") {
				return nil, s.fail("a ) is missing")
			}
			return c, nil
		})
	})
}

// chain reads one condition or more with an operator between them.
func chain[T any](s *scanner, operator string, one func() (condition[T], error)) (condition[T], error) {
	first, err := one()
	if err != nil {
		return nil, err
	}
	list := []condition[T]{first}
	for s.space(); s.take(operator); s.space() {
		next, err := one()
		if err != nil {
			return nil, err
		}
		list = append(list, next)
	}
	if len(list) == 1 {
		return first, nil
	}
	decides := operator == "||" // the value that decides at once
	return func(v T) bool {
		for _, c := range list {
			if c(v) == decides {
				return decides
			}
		}
		return !decides
	}, nil
}

// comparison is an operator with what is compared to.
type comparison struct {
	operator string
	literal  literal
}

type literal struct {
	text     string // without the wildcards
	from, to bool   // a * stands before it, behind it
	number   float64
	isNumber bool
	regexp   *regexp.Regexp
}

// The operators; a longer one stands before one that it begins with.
var operators = []string{"!=", "<=", ">=", "=", "<", ">"}

// parseComparison reads an operator and a literal, which ends at one of the
// characters of end, if it is not quoted.
func parseComparison(s *scanner, end string) (c comparison, err error) {
	s.space()
	for _, o := range operators {
		if s.take(o) {
			c.operator = o
			break
		}
	}
	if c.operator == "" {
		return c, s.fail("an operator is missing: one of %s", strings.Join(operators, " "))
	}
	s.space()
	if c.operator == "=" && s.take("!") { // an older way to write !=
		c.operator = "!="
		s.space()
	}
	begin := s.at
	if c.literal, err = parseLiteral(s, end); err != nil {
		return c, err
	}
	if c.operator != "=" && c.operator != "!=" && !c.literal.isNumber {
		return c, s.failAt(begin, "%s compares numbers, and needs one behind it", c.operator)
	}
	return c, nil
}

func parseLiteral(s *scanner, end string) (literal, error) {
	switch s.peek() {
	case '"':
		text, err := s.quoted()
		return wild(text), err
	case '%':
		re, err := s.regexp()
		return literal{regexp: re}, err
	}
	begin := s.at
	for s.at < len(s.text) && !isSpace(s.text[s.at]) && strings.IndexByte(end, s.text[s.at]) < 0 &&
		!strings.HasPrefix(s.text[s.at:], "&&") && !strings.HasPrefix(s.text[s.at:], "||") {
		s.at++
	}
	text := s.text[begin:s.at]
	if text == "" {
		return literal{}, s.fail("a value is missing")
	}
	if n := strings.IndexAny(text, `"%$@\`); n >= 0 {
		return literal{}, s.failAt(begin+n, "the value %s needs double quotes", text)
	}
	l := wild(text)
	l.number, l.isNumber = number(text)
	return l, nil
}

// number reads a number as patterns and JSON have it, and not as Go has it.
func number(text string) (float64, bool) {
	if text == "" || strings.Trim(text, "0123456789+-.eE") != "" {
		return 0, false
	}
	f, err := strconv.ParseFloat(text, 64)
	return f, err == nil
}

// wild takes the wildcards off both ends; within a text a * is one.
func wild(text string) literal {
	l := literal{text: text}
	l.text, l.from = strings.CutPrefix(l.text, "*")
	l.text, l.to = strings.CutSuffix(l.text, "*")
	if text == "*" {
		l.to = true
	}
	return l
}

// holds compares a value, as text and, where it is one, as a number.
func (c comparison) holds(text string, value float64, isNumber bool) bool {
	switch c.operator {
	case "=":
		return c.literal.equals(text, value, isNumber)
	case "!=":
		return !c.literal.equals(text, value, isNumber)
	}
	switch {
	case !isNumber:
		return false
	case c.operator == "<":
		return value < c.literal.number
	case c.operator == "<=":
		return value <= c.literal.number
	case c.operator == ">":
		return value > c.literal.number
	default:
		return value >= c.literal.number
	}
}

func (l literal) equals(text string, value float64, isNumber bool) bool {
	switch {
	case l.regexp != nil:
		return l.regexp.MatchString(text)
	case l.isNumber && isNumber:
		return value == l.number
	case l.from && l.to:
		return strings.Contains(text, l.text)
	case l.from:
		return strings.HasSuffix(text, l.text)
	case l.to:
		return strings.HasPrefix(text, l.text)
	default:
		return text == l.text
	}
}

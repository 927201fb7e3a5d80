// Package filterpattern reads the filter patterns of CloudWatch Logs and tells
// which messages they match. It is pure: it knows no events and no API.
//
// There are three kinds. Terms are found anywhere in a message, also within a
// word; case counts:
//
//	ERROR "exit code" -DEBUG       all of them, and not DEBUG
//	?ERROR ?WARN                   any of them
//	%user-[0-9]+%                  a regular expression
//
// A message that is a JSON object can be asked for its values, and one of words
// for its columns:
//
//	{ $.status = 4* && ($.n > 3 || $.list[0] IS NULL) }
//	[ip, user, ..., status = 4*, bytes > 1000]
//
// Rules: "Filter and pattern syntax" in the CloudWatch Logs user guide.
package filterpattern

import (
	"bytes"
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"
)

// MaxLength is the longest pattern, in characters.
const MaxLength = 1024

// Error says what is wrong with a pattern, and where.
type Error struct {
	At      int // characters before the place, from 0
	Message string
}

func (e *Error) Error() string { return fmt.Sprintf("%s (at character %d)", e.Message, e.At+1) }

// Pattern is a pattern that was read. It is safe for concurrent use.
type Pattern struct{ match func(message []byte) bool }

// Match reports whether a message matches.
func (p *Pattern) Match(message []byte) bool { return p.match(message) }

// Parse reads a pattern; its error is an *Error. The empty one matches all.
func Parse(text string) (*Pattern, error) {
	if n := utf8.RuneCountInString(text); n > MaxLength {
		return nil, &Error{MaxLength, fmt.Sprintf("the pattern has %d characters, at most %d are allowed", n, MaxLength)}
	}
	s := &scanner{text: text}
	s.space()
	var match func([]byte) bool
	var err error
	switch s.peek() {
	case '{':
		match, err = parseJSON(s)
	case '[':
		match, err = parseFields(s)
	default:
		match, err = parseTerms(s)
	}
	if err != nil {
		return nil, err
	}
	if s.space(); s.at < len(s.text) {
		return nil, s.fail("nothing may follow the end of the pattern")
	}
	return &Pattern{match}, nil
}

// parseTerms reads terms, phrases and regular expressions.
func parseTerms(s *scanner) (func([]byte) bool, error) {
	var all, none, some []finder
	for s.space(); s.at < len(s.text); s.space() {
		list := &all
		switch s.peek() {
		case '-':
			list = &none
			s.at++
			s.space()
		case '?':
			list = &some
			s.at++
		}
		f, err := parseTerm(s)
		if err != nil {
			return nil, err
		}
		*list = append(*list, f)
	}
	if len(all) > 0 {
		some = nil // beside terms that must be there, those that may be make no difference
	}
	return func(message []byte) bool {
		for _, f := range all {
			if !f.in(message) {
				return false
			}
		}
		for _, f := range none {
			if f.in(message) {
				return false
			}
		}
		for _, f := range some {
			if f.in(message) {
				return true
			}
		}
		return len(some) == 0
	}, nil
}

// finder is something that may be in a message.
type finder struct {
	text   []byte
	regexp *regexp.Regexp
}

func (f finder) in(message []byte) bool {
	if f.regexp != nil {
		return f.regexp.Match(message)
	}
	return bytes.Contains(message, f.text)
}

func parseTerm(s *scanner) (finder, error) {
	begin := s.at
	switch s.peek() {
	case '"':
		text, err := s.quoted()
		return finder{text: []byte(text)}, err
	case '%':
		re, err := s.regexp()
		return finder{regexp: re}, err
	}
	for s.at < len(s.text) && !isSpace(s.text[s.at]) {
		s.at++
	}
	term := s.text[begin:s.at]
	if term == "" {
		return finder{}, s.fail("a term is missing")
	}
	for n, r := range term {
		if !isWord(r) {
			return finder{}, s.failAt(begin+n, "Invalid character(s) in term '%s': a term with other characters than letters, digits and _ needs double quotes, as in \"%s\"", term, strings.ReplaceAll(term, `"`, `\"`))
		}
	}
	return finder{text: []byte(term)}, nil
}

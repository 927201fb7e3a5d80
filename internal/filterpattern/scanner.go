package filterpattern

import (
	"fmt"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"
)

// scanner goes through a pattern.
type scanner struct {
	text    string
	at      int // in bytes
	regexps int
}

func (s *scanner) fail(format string, args ...any) error { return s.failAt(s.at, format, args...) }

func (s *scanner) failAt(at int, format string, args ...any) error {
	return &Error{utf8.RuneCountInString(s.text[:min(at, len(s.text))]), fmt.Sprintf(format, args...)}
}

// peek returns the next byte, or 0 at the end.
func (s *scanner) peek() byte {
	if s.at < len(s.text) {
		return s.text[s.at]
	}
	return 0
}

func (s *scanner) space() {
	for s.at < len(s.text) && isSpace(s.text[s.at]) {
		s.at++
	}
}

// take goes beyond a piece of text, if that is next.
func (s *scanner) take(piece string) bool {
	if strings.HasPrefix(s.text[s.at:], piece) {
		s.at += len(piece)
		return true
	}
	return false
}

// word takes letters, in whatever case, that are a word of their own.
func (s *scanner) word(word string) bool {
	s.space()
	end := s.at + len(word)
	if end > len(s.text) || !strings.EqualFold(s.text[s.at:end], word) {
		return false
	}
	if r, _ := utf8.DecodeRuneInString(s.text[end:]); end < len(s.text) && isWord(r) {
		return false
	}
	s.at = end
	return true
}

func isSpace(b byte) bool { return b == ' ' || b == '\t' || b == '\n' || b == '\r' }

func isWord(r rune) bool { return r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r) }

// quoted takes a string in double quotes, in which \" and \\ are a quote and a
// backslash.
func (s *scanner) quoted() (string, error) {
	begin := s.at
	var out strings.Builder
	for s.at++; s.at < len(s.text); s.at++ {
		switch b := s.text[s.at]; {
		case b == '"':
			s.at++
			return out.String(), nil
		case b == '\\' && s.at+1 < len(s.text) && strings.IndexByte(`"\`, s.text[s.at+1]) >= 0:
			s.at++
			out.WriteByte(s.text[s.at])
		default:
			out.WriteByte(b)
		}
	}
	return "", s.failAt(begin, "the quote has no end")
}

// maxRegexps is how many regular expressions a pattern may have.
const maxRegexps = 2

// regexp takes a regular expression between percent signs. What CloudWatch Logs
// does not take is refused; the rest means the same to package regexp.
func (s *scanner) regexp() (*regexp.Regexp, error) {
	begin := s.at
	end := begin + 1
	for ; end < len(s.text) && s.text[end] != '%'; end++ {
		switch b := s.text[end]; {
		case b == '\\' && end+1 < len(s.text) && s.text[end+1] < utf8.RuneSelf:
			end++
		case b == '(' || b == ')':
			return nil, s.failAt(end, "a regular expression cannot have parentheses")
		case b >= utf8.RuneSelf || strings.IndexByte(":_#=@/;,-^$?[]{}|\\*+. ", b) < 0 && !isWord(rune(b)):
			r, _ := utf8.DecodeRuneInString(s.text[end:])
			return nil, s.failAt(end, "a regular expression cannot have the character %q without a backslash", r)
		}
	}
	if end >= len(s.text) {
		return nil, s.failAt(begin, "the regular expression has no end: a %% is missing")
	}
	text := s.text[begin+1 : end]
	if text == "" {
		return nil, s.failAt(begin, "the regular expression is empty")
	}
	re, err := regexp.Compile(text)
	if err != nil {
		return nil, s.failAt(begin, "%v", err)
	}
	if s.regexps++; s.regexps > maxRegexps {
		return nil, s.failAt(begin, "a pattern can have %d regular expressions", maxRegexps)
	}
	s.at = end + 1
	return re, nil
}

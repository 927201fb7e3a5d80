package logs

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/openpcs/openpcs/internal/awsapi"
)

// Patterns of the published model; all must match the whole value.
var (
	deliveryName  = pattern{regexp.MustCompile(`^[\w-]*$`), 1, 60}
	deliveryID    = pattern{regexp.MustCompile(`^[0-9A-Za-z]+$`), 1, 64}
	logTypeName   = pattern{regexp.MustCompile(`^\w*$`), 1, 255}
	groupName     = pattern{regexp.MustCompile(`^[.\-_/#A-Za-z0-9]+$`), 1, 512}
	groupPart     = pattern{regexp.MustCompile(`^[.\-_/#A-Za-z0-9]*$`), 0, 512}
	identifier    = pattern{regexp.MustCompile(`^[\w#+=/:,.@-]*$`), 1, 2048}
	streamName    = pattern{regexp.MustCompile(`^[^:*]*$`), 1, 512}
	listPattern   = pattern{regexp.MustCompile(`^\^?[.\-_/#A-Za-z0-9]{3,24}(\|\^?[.\-_/#A-Za-z0-9]{3,24}){0,4}$`), 3, 129}
	tagKeyPattern = pattern{regexp.MustCompile(`^[\p{L}\p{Z}\p{N}_.:/=+\-@]+$`), 1, 128}
	tagPattern    = pattern{regexp.MustCompile(`^[\p{L}\p{Z}\p{N}_.:/=+\-@]*$`), 0, 256}
)

type pattern struct {
	re        *regexp.Regexp
	low, high int // characters
}

// The two codes of a wrong call: operations on deliveries have the one,
// those on log groups the other.
const (
	validation = "ValidationException"
	parameter  = "InvalidParameterException"
)

func fail(code, format string, args ...any) error {
	return &awsapi.Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// check collects what is wrong with a call, so that a caller learns all of it
// at once.
type check struct {
	code  string
	wrong []string
	more  int
}

// maxWrong bounds how many mistakes one answer tells.
const maxWrong = 50

func (c *check) bad(name, format string, args ...any) {
	if len(c.wrong) == maxWrong {
		c.more++
		return
	}
	c.wrong = append(c.wrong, name+": "+fmt.Sprintf(format, args...))
}

func (c *check) err() error {
	switch n := len(c.wrong) + c.more; {
	case n == 0:
		return nil
	case n == 1:
		return fail(c.code, "1 validation error detected: %s", c.wrong[0])
	case c.more > 0:
		return fail(c.code, "%d validation errors detected: %s; and %d more", n, strings.Join(c.wrong, "; "), c.more)
	default:
		return fail(c.code, "%d validation errors detected: %s", n, strings.Join(c.wrong, "; "))
	}
}

// shown is the longest piece of a value that an error repeats.
const shown = 80

func quote(v string) string {
	if r := []rune(v); len(r) > shown {
		return strconv.Quote(string(r[:shown])) + "..."
	}
	return strconv.Quote(v)
}

// need returns the string, which must be there and of the pattern.
func (c *check) need(name string, v *string, p pattern) string {
	if v == nil {
		c.bad(name, "is required")
		return ""
	}
	c.matches(name, *v, p)
	return *v
}

// may returns the string, which must be of the pattern if it is there.
func (c *check) may(name string, v *string, p pattern) string {
	if v == nil {
		return ""
	}
	return c.need(name, v, p)
}

func (c *check) matches(name, v string, p pattern) {
	switch n := utf8.RuneCountInString(v); {
	case n < p.low || n > p.high:
		c.bad(name, "has %d characters, %d to %d are allowed", n, p.low, p.high)
	case !p.re.MatchString(v):
		c.bad(name, "%s does not match %s", quote(v), strings.Trim(p.re.String(), "^$"))
	}
}

// oneOf checks an enumeration; empty is absent.
func (c *check) oneOf(name, v string, allowed ...string) {
	if v != "" && !slices.Contains(allowed, v) {
		c.bad(name, "%s is none of %s", quote(v), strings.Join(allowed, ", "))
	}
}

// limit returns the size of a page.
func (c *check) limit(v *int32, byDefault, most int) int {
	if v == nil {
		return byDefault
	}
	if *v < 1 || int(*v) > most {
		c.bad("limit", "is %d, 1 to %d are allowed", *v, most)
	}
	return int(*v)
}

// maxTags is the most tags of a resource.
const maxTags = 50

func (c *check) tags(name string, tags map[string]string, required bool) {
	if required && len(tags) == 0 || len(tags) > maxTags {
		c.bad(name, "has %d entries, 1 to %d are allowed", len(tags), maxTags)
	}
	for k, v := range tags {
		c.tagKey(name, k)
		c.matches(name+"."+quote(k), v, tagPattern)
	}
}

func (c *check) tagKey(name, key string) {
	c.matches(name, key, tagKeyPattern)
	if strings.HasPrefix(strings.ToLower(key), "aws:") {
		c.bad(name, "%s: keys that begin with aws: are reserved", quote(key))
	}
}

// arn is a parsed ARN.
type arn struct{ partition, service, region, account, resource string }

func parseARN(s string) (arn, bool) {
	p := strings.SplitN(s, ":", 6)
	if len(p) != 6 || p[0] != "arn" || !strings.HasPrefix(p[1], "aws") || p[2] == "" || p[5] == "" {
		return arn{}, false
	}
	return arn{p[1], p[2], p[3], p[4], p[5]}, true
}

// here reports whether what the ARN names is in the account and region of the
// call.
func (a arn) here(r *awsapi.Request) bool { return a.region == r.Region && a.account == r.Account }

func arnOf(r *awsapi.Request, resource string) string {
	return "arn:aws:logs:" + r.Region + ":" + r.Account + ":" + resource
}

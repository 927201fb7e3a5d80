package pcs

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/openpcs/openpcs/internal/slurm"
)

// Patterns of the published model; all must match the whole value.
var (
	namePattern       = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9-]+$`)
	clusterRefPattern = regexp.MustCompile(`^(pcs_[a-zA-Z0-9]+|[A-Za-z][A-Za-z0-9-]{2,40})$`)
	shortRefPattern   = regexp.MustCompile(`^(pcs_[a-zA-Z0-9]+|[A-Za-z][A-Za-z0-9-]{2,25})$`)
	amiPattern        = regexp.MustCompile(`^ami-[a-z0-9]+$`)
	profilePattern    = regexp.MustCompile(`^arn:aws([a-zA-Z-]{0,10})?:iam::[0-9]{12}:instance-profile/([!-~]{1,510}/)?([\w+=,.@-]{1,128})$`)
	arnPattern        = regexp.MustCompile(`^arn:aws.*:pcs:.*:[0-9]{12}:.*/[a-z0-9_\-]+$`)
	subnetPattern     = regexp.MustCompile(`^subnet-\w{8,17}$`)
	sgPattern         = regexp.MustCompile(`^sg-\w{8,17}$`)
	bootstrapPattern  = regexp.MustCompile(`^\S+$`)
)

// check collects what is wrong with a request, so that a caller learns all
// of it at once.
type check struct {
	fields []Field
	more   int // mistakes beyond maxFields
}

// maxFields bounds how many mistakes one answer tells, as a request of 1 MiB
// has room for many.
const maxFields = 100

func (c *check) bad(name, format string, args ...any) {
	if len(c.fields) == maxFields {
		c.more++
		return
	}
	c.fields = append(c.fields, Field{Name: name, Message: fmt.Sprintf(format, args...)})
}

// once checks that a list has each of its entries once.
func (c *check) once(field string, list []string) {
	seen := map[string]bool{}
	for i, v := range list {
		if seen[v] {
			c.bad(fmt.Sprintf("%s[%d]", field, i), "%s is named twice", quote(v))
		}
		seen[v] = true
	}
}

func (c *check) err() error {
	if len(c.fields) == 0 {
		return nil
	}
	fields := c.fields
	if c.more > 0 {
		fields = append(fields, Field{Name: "...", Message: fmt.Sprintf("%d more", c.more)})
	}
	return invalid(fields...)
}

const required = "is required"

// need returns the string, which must be there.
func (c *check) need(name string, v *string) string {
	if v == nil {
		c.bad(name, required)
		return ""
	}
	return *v
}

// shown is the longest piece of a value that an error repeats.
const shown = 60

func quote(v string) string {
	if r := []rune(v); len(r) > shown {
		return strconv.Quote(string(r[:shown])) + "..."
	}
	return strconv.Quote(v)
}

func (c *check) pattern(name string, v *string, p *regexp.Regexp) string {
	if v != nil && !p.MatchString(*v) {
		c.bad(name, "%s does not match %s", quote(*v), strings.Trim(p.String(), "^$"))
	}
	return c.need(name, v)
}

// length checks the number of characters.
func (c *check) length(name, v string, low, high int) bool {
	n := utf8.RuneCountInString(v)
	if n >= low && n <= high {
		return true
	}
	switch {
	case low == high:
		c.bad(name, "has %d characters, %d are needed", n, low)
	case low == 0:
		c.bad(name, "has %d characters, at most %d are allowed", n, high)
	default:
		c.bad(name, "has %d characters, %d to %d are allowed", n, low, high)
	}
	return false
}

// sized is pattern for members that have a length too: one mistake is told
// once.
func (c *check) sized(name string, v *string, low, high int, p *regexp.Regexp) string {
	if v == nil || c.length(name, *v, low, high) {
		return c.pattern(name, v, p)
	}
	return *v
}

// maxARN bounds the ARN of a resource.
const maxARN = 1011

func (c *check) arn(v *string) string { return c.sized("resourceArn", v, 1, maxARN, arnPattern) }

func (c *check) enum(name string, v *string, allowed ...string) string {
	if v != nil && !slices.Contains(allowed, *v) {
		c.bad(name, "%s is not one of %s", quote(*v), strings.Join(allowed, ", "))
	}
	return c.need(name, v)
}

// optionalEnum is enum with a default.
func (c *check) optionalEnum(name string, v *string, byDefault string, allowed ...string) string {
	if v == nil {
		return byDefault
	}
	return c.enum(name, v, allowed...)
}

func (c *check) name(field string, v *string, longest int) string {
	if v == nil {
		return c.need(field, v)
	}
	switch n := utf8.RuneCountInString(*v); {
	case n < 3 || n > longest:
		c.bad(field, "has %d characters, 3 to %d are allowed", n, longest)
	case strings.HasPrefix(*v, "pcs_"):
		c.bad(field, "must not begin with pcs_, which is for ids")
	case !namePattern.MatchString(*v):
		c.bad(field, "%s is not allowed: use a letter, then letters, digits and hyphens", quote(*v))
	}
	return *v
}

func (c *check) number(name string, v *int, low, high, byDefault int) int {
	if v == nil {
		return byDefault
	}
	if *v < low || *v > high {
		c.bad(name, "%d is not in %d to %d", *v, low, high)
	}
	return *v
}

func (c *check) needNumber(name string, v *int, low, high int) int {
	if v == nil {
		c.bad(name, required)
		return low
	}
	return c.number(name, v, low, high, low)
}

func (c *check) token(v *string) {
	if v != nil {
		c.length("clientToken", *v, 8, 100)
	}
}

const maxTags = 200

func (c *check) tags(tags map[string]string, needed bool) {
	if len(tags) > maxTags || (len(tags) == 0 && (needed || tags != nil)) {
		c.bad("tags", "has %d entries, 1 to %d are allowed", len(tags), maxTags)
	}
	for _, k := range slices.Sorted(maps.Keys(tags)) {
		c.tagKey("tags", k)
		c.length("tags."+k, tags[k], 0, 256)
	}
}

func (c *check) tagKey(field, k string) {
	if n := utf8.RuneCountInString(k); n < 1 || n > 128 {
		c.bad(field, "a key has %d characters, 1 to 128 are allowed", n)
	}
	if strings.HasPrefix(strings.ToLower(k), "aws:") {
		c.bad(field, "the key %s begins with aws:, which is reserved", quote(k))
	}
}

// settings checks custom settings of a level, of a cluster with or without
// accounting.
func (c *check) settings(field string, level slurm.Level, release string, accounting bool, in []Setting) []slurm.Setting {
	given, ok := c.pairs(field, in)
	if !ok {
		return nil
	}
	out, wrong := slurm.CheckSettings(level, release, accounting, given)
	for i := range in {
		if err := wrong[i]; err != nil {
			c.bad(fmt.Sprintf("%s[%d]", field, i), "%v", err)
		}
	}
	return out
}

// maxSettings is more than there are parameters that could be set.
const maxSettings = 200

// pairs checks that settings have a name and a value.
func (c *check) pairs(field string, in []Setting) (out []slurm.Setting, ok bool) {
	before := len(c.fields)
	if len(in) > maxSettings {
		c.bad(field, "has %d entries, at most %d are allowed", len(in), maxSettings)
		return nil, false
	}
	for i, s := range in {
		at := fmt.Sprintf("%s[%d]", field, i)
		out = append(out, slurm.Setting{Name: c.need(at+".parameterName", s.ParameterName), Value: c.need(at+".parameterValue", s.ParameterValue)})
	}
	return out, len(c.fields) == before
}

// later refuses what this release does not do, so that it is never dropped
// in silence. What is wrong with it anyway is told first.
func (c *check) later(asked bool, name string) {
	told := slices.ContainsFunc(c.fields, func(f Field) bool { return strings.HasPrefix(f.Name, name) })
	if asked && !told {
		c.bad(name, "is not supported by this release of openpcs: leave it out")
	}
}

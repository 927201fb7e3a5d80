package ec2

import (
	"maps"
	"slices"
	"strings"

	"github.com/openpcs/openpcs/internal/awsapi"
)

// maxFilterValues is EC2's limit on the values of one call.
const maxFilterValues = 200

// filter is one filter of a Describe call; an item passes when it has one of
// the values.
type filter struct {
	Name   string   `query:"Name"`
	Values []string `query:"Value"`
}

// filters declares by what the items of one kind can be filtered.
type filters[T any] struct {
	fields map[string]func(T) []string
	tags   func(T) map[string]string // nil: the kind has no tags
}

// one adapts a field that has exactly one value.
func one[T any](f func(T) string) func(T) []string {
	return func(v T) []string { return []string{f(v)} }
}

// apply returns the items that pass all filters.
func (fs filters[T]) apply(given []filter, items []T) ([]T, error) {
	if err := fs.check(given); err != nil {
		return nil, err
	}
	out := []T{}
	for _, it := range items {
		if fs.pass(given, it) {
			out = append(out, it)
		}
	}
	return out, nil
}

// check refuses filters that the kind does not have, because ignoring them
// would answer another question.
func (fs filters[T]) check(given []filter) error {
	n := 0
	for _, f := range given {
		if f.Name == "" {
			return fail("MissingParameter", "The request must contain the parameter Filter.Name")
		}
		if !fs.knows(f.Name) {
			return fail("InvalidParameterValue", "The filter '%s' is invalid", f.Name)
		}
		if n += len(f.Values); n > maxFilterValues {
			return fail("FilterLimitExceeded", "The maximum number of filter values is %d", maxFilterValues)
		}
	}
	return nil
}

func (fs filters[T]) knows(name string) bool {
	if fs.tags != nil && (strings.HasPrefix(name, "tag:") || name == "tag-key" || name == "tag-value") {
		return true
	}
	return fs.fields[name] != nil
}

func (fs filters[T]) pass(given []filter, it T) bool {
	for _, f := range given {
		if !anyMatches(f.Values, fs.values(f.Name, it)) {
			return false
		}
	}
	return true
}

func (fs filters[T]) values(name string, it T) []string {
	if key, ok := strings.CutPrefix(name, "tag:"); ok && fs.tags != nil {
		if v, has := fs.tags(it)[key]; has {
			return []string{v}
		}
		return nil
	}
	switch {
	case fs.tags != nil && name == "tag-key":
		return slices.Collect(maps.Keys(fs.tags(it)))
	case fs.tags != nil && name == "tag-value":
		return slices.Collect(maps.Values(fs.tags(it)))
	default:
		return fs.fields[name](it)
	}
}

func anyMatches(patterns, values []string) bool {
	for _, p := range patterns {
		for _, v := range values {
			if awsapi.Match(p, v) {
				return true
			}
		}
	}
	return false
}

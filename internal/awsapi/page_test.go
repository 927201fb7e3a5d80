package awsapi_test

import (
	"errors"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/openpcs/openpcs/internal/awsapi"
)

func request(op string) *awsapi.Request {
	return &awsapi.Request{Service: "pcs", Operation: op, Region: "us-east-1", Account: account, Now: start}
}

// TestPagesCoverAll pages through lists that change meanwhile: what is there
// all the time is seen exactly once.
func TestPagesCoverAll(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(0, 40).Draw(t, "items")
		size := rapid.IntRange(1, 10).Draw(t, "size")
		items := map[int]bool{}
		for i := range n {
			items[i*2] = true
		}
		seen := map[int]int{}
		token := ""
		removed := map[int]bool{}
		for range 100 {
			var list []int
			for i := range items {
				list = append(list, i)
			}
			page, next, err := awsapi.Page(request("List"), "args", token, size, list, func(i int) string { return strconv.Itoa(i + 1000) })
			if err != nil {
				t.Fatal(err)
			}
			for _, i := range page {
				seen[i]++
			}
			if next == "" {
				break
			}
			token = next
			if n > 0 {
				gone := rapid.IntRange(0, n-1).Draw(t, "gone") * 2
				delete(items, gone)
				removed[gone] = true
				items[rapid.IntRange(0, n-1).Draw(t, "new")*2+1] = true
			}
		}
		for i := range n {
			if c := seen[i*2]; c > 1 || (c == 0 && !removed[i*2]) {
				t.Fatalf("item %d was seen %d times", i*2, c)
			}
		}
	})
}

func TestPageTokens(t *testing.T) {
	r := request("List")
	token := r.PageToken([]string{"a"}, "cursor")
	if got, err := r.PageCursor([]string{"a"}, token); err != nil || got != "cursor" {
		t.Fatalf("got %q, %v", got, err)
	}
	if r.PageToken([]string{"a"}, "cursor") == token {
		t.Error("two tokens are the same: clients take that for an endless loop")
	}
	late, region, op := *r, *r, *r
	late.Now = start.Add(25 * time.Hour)
	region.Region = "us-west-2"
	op.Operation = "Other"
	for name, call := range map[string]func() (string, error){
		"expired":         func() (string, error) { return late.PageCursor([]string{"a"}, token) },
		"other_region":    func() (string, error) { return region.PageCursor([]string{"a"}, token) },
		"other_operation": func() (string, error) { return op.PageCursor([]string{"a"}, token) },
		"other_arguments": func() (string, error) { return r.PageCursor([]string{"b"}, token) },
		"changed":         func() (string, error) { return r.PageCursor([]string{"a"}, "A"+token[1:]+"A") },
		"not_a_token":     func() (string, error) { return r.PageCursor([]string{"a"}, "hello world") },
		"empty":           func() (string, error) { return r.PageCursor([]string{"a"}, "") },
		"somebody_else's": func() (string, error) { return r.PageCursor([]string{"a"}, strings.Repeat("A", 60)) },
	} {
		_, err := call()
		var f *awsapi.Fault
		if !errors.As(err, &f) || f.Kind != awsapi.FaultBadToken {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestMatch(t *testing.T) {
	for _, tt := range []struct {
		pattern, s string
		want       bool
	}{
		{"*", "", true},
		{"", "", true},
		{"", "a", false},
		{"a*", "abc", true},
		{"*c", "abc", true},
		{"a?c", "abc", true},
		{"a?c", "ac", false},
		{"*b*", "abc", true},
		{"a*b*c", "aXbYbZc", true},
		{"a*b*c", "aXcY", false},
		{"pcs:*", "pcs:Get", true},
		{"?", "ü", true},
		{"**", "x", true},
		{strings.Repeat("*a", 30) + "b", strings.Repeat("a", 500), false},
	} {
		if got := awsapi.Match(tt.pattern, tt.s); got != tt.want {
			t.Errorf("Match(%q, %q) = %v", tt.pattern, tt.s, got)
		}
	}
}

func TestTimes(t *testing.T) {
	at := time.Date(2026, 11, 30, 21, 0, 0, 123456789, time.FixedZone("JST", 9*3600))
	for _, tt := range []struct {
		v    interface{ MarshalJSON() ([]byte, error) }
		want string
	}{
		{awsapi.At(at), `"2026-11-30T12:00:00.123Z"`},
		{awsapi.Time{}, `null`},
		{awsapi.EpochAt(at), `1796040000.123`},
		{awsapi.EpochAt(at.Truncate(time.Second)), `1796040000`},
		{awsapi.Epoch{}, `null`},
	} {
		if b, err := tt.v.MarshalJSON(); err != nil || string(b) != tt.want {
			t.Errorf("got %s, %v, want %s", b, err, tt.want)
		}
	}
}

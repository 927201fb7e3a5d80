package slurm

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestExpand(t *testing.T) {
	for _, tc := range []struct {
		in   string
		want string // space separated; "!" for an error
	}{
		{"", ""},
		{"a", "a"},
		{"node-group-1-[1-2]", "node-group-1-1 node-group-1-2"},
		{"cpn-m11-16", "cpn-m11-16"},
		{"cl2n[001-003]", "cl2n001 cl2n002 cl2n003"},
		{"f[1-2]-[08-10]", "f1-08 f1-09 f1-10 f2-08 f2-09 f2-10"},
		{"0abc", "0abc"},
		{"a[1,3-4]b,c", "a1b a3b a4b c"},
		{"a[5-1]", "!"},
		{"[]", "!"},
		{"a[", "!"},
		{"a]", "!"},
		{"a,,b", "!"},
		{",a", "!"},
		{"a,", "!"},
		{"a[[1]]", "!"},
		{"a b", "!"},
		{"a[1-1000000]", "!"},
		{"a[1-99999][1-99999]", "!"},
		{"a[-1]", "!"},
		{"a[1-2-3]", "!"},
	} {
		got, err := Expand(tc.in)
		if tc.want == "!" {
			if err == nil {
				t.Errorf("Expand(%q) = %d names, want an error", tc.in, len(got))
			}
			continue
		}
		if err != nil || strings.Join(got, " ") != tc.want {
			t.Errorf("Expand(%q) = %q, %v, want %q", tc.in, strings.Join(got, " "), err, tc.want)
		}
	}
}

func TestCompress(t *testing.T) {
	for _, tc := range []struct{ in, want string }{
		{"", ""},
		{"a-1", "a-1"},
		{"a-2 a-1 a-1", "a-[1-2]"},
		{"a-1 a-2 a-3 b a-7", "a-[1-3,7],b"},
		{"a-01 a-02", "a-01,a-02"},
		{"7", "7"},
	} {
		if got := Compress(strings.Fields(tc.in)); got != tc.want {
			t.Errorf("Compress(%q) = %q, want %q", tc.in, got, tc.want)
		}
	}
}

func TestCompressExpandRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names := map[string]bool{}
		for range rapid.IntRange(1, 60).Draw(t, "count") {
			prefix := rapid.StringMatching(`[A-Za-z][A-Za-z0-9-]{1,10}-`).Draw(t, "prefix")
			names[fmt.Sprintf("%s%d", prefix, rapid.IntRange(0, 3000).Draw(t, "n"))] = true
		}
		var want []string
		for n := range names {
			want = append(want, n)
		}
		got, err := Expand(Compress(want))
		if err != nil {
			t.Fatalf("expand: %v", err)
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Fatalf("round trip: got %v, want %v", got, want)
		}
	})
}

func FuzzExpand(f *testing.F) {
	for _, s := range []string{"a[1-3]", "a[1,2],b[03-05]c", "[", "]", "a[1-", "a[99999999999999999999]"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		names, err := Expand(s)
		if err == nil && len(names) > MaxHosts {
			t.Fatalf("%d names from %q", len(names), s)
		}
	})
}

package slurm

import (
	"bytes"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// pair is Slurm's own pattern of a key=value pair (src/common/parse_config.c,
// keyvalue_pattern), without the operators that openpcs never writes.
var pair = regexp.MustCompile(`^[ \t\r\n\v\f]*([A-Za-z0-9_.]+)[ \t\r\n\v\f]*[-*+/]?=[ \t\r\n\v\f]*("([^"]*)"|([^ \t\r\n\v\f]+))([ \t\r\n\v\f]|$)`)

// slurmLines reads a configuration as Slurm does: comments go, a backslash
// continues a line, and each line is a row of key=value pairs. It returns the
// keys of each line. ok is false for a line with something else in it, which
// Slurm refuses as a whole.
func slurmLines(doc []byte) (keys [][]string, ok bool) {
	text := strings.ReplaceAll(string(doc), "\\\n", "")
	for line := range strings.SplitSeq(text, "\n") {
		if at := strings.IndexByte(line, '#'); at >= 0 {
			line = line[:at]
		}
		if strings.TrimSpace(line) == "" {
			continue
		}
		var row []string
		for strings.TrimSpace(line) != "" {
			m := pair.FindStringSubmatchIndex(line)
			if m == nil {
				return keys, false
			}
			row = append(row, line[m[2]:m[3]])
			line = line[m[1]:]
		}
		keys = append(keys, row)
	}
	return keys, true
}

// stringFields are pointers to every string in a value.
func stringFields(v reflect.Value) []*string {
	var out []*string
	switch v.Kind() {
	case reflect.String:
		out = append(out, v.Addr().Interface().(*string))
	case reflect.Struct:
		for i := range v.NumField() {
			out = append(out, stringFields(v.Field(i))...)
		}
	case reflect.Slice:
		for i := range v.Len() {
			out = append(out, stringFields(v.Index(i))...)
		}
	}
	return out
}

// checkContained fails when the value adds a line or a key.
func checkContained(t interface {
	Helper()
	Fatalf(string, ...any)
}, base Config, field int, value string,
) {
	t.Helper()
	want, ok := slurmLines(mustRender(t, base)["slurm.conf"])
	if !ok {
		t.Fatalf("the plain configuration is not Slurm's syntax")
	}
	c := base
	c.Nodes, c.Partitions = slices.Clone(base.Nodes), slices.Clone(base.Partitions)
	for i := range c.Partitions {
		c.Partitions[i].Sets = slices.Clone(base.Partitions[i].Sets)
	}
	fields := stringFields(reflect.ValueOf(&c).Elem())
	at := fields[field%len(fields)]
	old := *at
	*at = value
	// What names a set keeps naming it.
	for i := range c.Partitions {
		for j, s := range c.Partitions[i].Sets {
			if s == old && old != "" && slices.ContainsFunc(c.Nodes, func(n NodeSet) bool { return n.Name == value }) {
				c.Partitions[i].Sets[j] = value
			}
		}
	}
	files, err := c.Render()
	if err != nil {
		return // refused
	}
	for name, doc := range files {
		if bytes.ContainsAny(doc, "\r\\\x00\v\f") {
			t.Fatalf("value %q: %s has a control character or a backslash", value, name)
		}
	}
	got, ok := slurmLines(files["slurm.conf"])
	if !ok {
		t.Fatalf("value %q for %q: Slurm cannot read the result", value, old)
	}
	if len(got) != len(want) {
		t.Fatalf("value %q for %q: %d lines, want %d", value, old, len(got), len(want))
	}
	// Sets are sorted by name, so lines may have changed places.
	flat := func(rows [][]string) []string {
		var out []string
		for _, r := range rows {
			out = append(out, strings.Join(r, " "))
		}
		slices.Sort(out)
		return out
	}
	if g, w := flat(got), flat(want); !slices.Equal(g, w) {
		t.Fatalf("value %q for %q adds keys:\n%s", value, old, lineDiff(strings.Join(w, "\n"), strings.Join(g, "\n")))
	}
}

func mustRender(t interface {
	Helper()
	Fatalf(string, ...any)
}, c Config,
) Files {
	t.Helper()
	files, err := c.Render()
	if err != nil {
		t.Fatalf("render: %v", err)
	}
	return files
}

// evil are values that would do harm if they were written as they are.
var evil = []string{
	"a\nSlurmUser=root", "a\r\nSlurmUser=root", "a\rSlurmUser=root", "a SlurmUser=root", "a\tSlurmUser=root",
	"a # b", "#", `a" SlurmUser=root "b`, `"`, `a\`, "a\\\nb", "a\u2028SlurmUser=root", "a\u2029b", "a\u0085b",
	"a\vb", "a\fb", "a\x00b", "a\x7fb", "", " ", " a", "a ", "a b", "a=b", "a = b", "Include /etc/shadow",
	"x Include=/etc/passwd", "\u00a0a", "é", "日本", "\xff\xfe", "a\nInclude /etc/passwd\n",
}

func TestNoValueCanAddALineOrAKey(t *testing.T) {
	base := smallConfig(t)
	fields := len(stringFields(reflect.ValueOf(&base).Elem()))
	if fields < 8 {
		t.Fatalf("only %d string fields were found", fields)
	}
	for field := range fields {
		for _, value := range evil {
			checkContained(t, base, field, value)
		}
	}
}

func TestNoValueCanAddALineOrAKeyProperty(t *testing.T) {
	base := smallConfig(t)
	piece := rapid.OneOf(
		rapid.SampledFrom(evil), rapid.String(),
		rapid.SampledFrom([]string{" ", "\t", "\n", "\r", "=", "#", `"`, `\`, "NodeName", "Include", "a", ",", "[", "]", "1-3"}),
	)
	rapid.Check(t, func(rt *rapid.T) {
		value := strings.Join(rapid.SliceOfN(piece, 1, 6).Draw(rt, "value"), "")
		checkContained(rt, base, rapid.IntRange(0, 100).Draw(rt, "field"), value)
	})
}

func TestDangerousCharactersAreRefused(t *testing.T) {
	for _, value := range []string{"a\nb", "a\rb", "a#b", `a"b`, `a\b`, "a\u2028b", "a\u2029b", "a\tb", "a\x00b", "a\x7fb", " a", "a ", ""} {
		c := smallConfig(t)
		c.ClusterName = value
		files, err := c.Render()
		if err == nil {
			t.Errorf("cluster name %q is written", value)
		}
		if files != nil {
			t.Errorf("cluster name %q: files come with the error", value)
		}
		if err != nil && !strings.Contains(err.Error(), "ClusterName") {
			t.Errorf("cluster name %q: the error %q does not name the key", value, err)
		}
	}
}

// A node set's or partition's name is one name: it must not stand for more.
func TestNamesStandForOneThing(t *testing.T) {
	for _, name := range []string{"a,b", "a[1-3]", "a b", "a=b", "(a)", "a,ALL"} {
		c := smallConfig(t)
		c.Nodes[0].Name, c.Partitions[0].Sets = name, []string{name}
		if _, err := c.Render(); err == nil {
			t.Errorf("the node set %q is written", name)
		}
		c = smallConfig(t)
		c.Partitions[0].Name = name
		if _, err := c.Render(); err == nil {
			t.Errorf("the partition %q is written", name)
		}
	}
	for _, name := range []string{"DEFAULT", "default", "Default"} {
		c := smallConfig(t)
		c.Partitions[0].Name = name
		if _, err := c.Render(); err == nil {
			t.Errorf("the partition %q is written: to Slurm that sets the defaults of all partitions", name)
		}
	}
}

func FuzzRender(f *testing.F) {
	for i, v := range evil {
		f.Add(i, v)
	}
	f.Fuzz(func(t *testing.T, field int, value string) {
		if field < 0 {
			field = -(field + 1)
		}
		checkContained(t, smallConfig(t), field, value)
	})
}

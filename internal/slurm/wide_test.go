package slurm

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestN5_LongNamesStayWhole: names that are longer than any column come
// through, and nothing reads output in columns.
func TestN5_LongNamesStayWhole(t *testing.T) {
	long := strings.Repeat("a-long-name-", 5) + "1000"
	nodes, err := ParseNodes(fmt.Appendf(nil, `{"nodes":[{"name":%q,"state":["IDLE"],"address":%q},{"name":"b-1","state":["DOWN"]}]}`, long, long))
	if err != nil || len(long) < 60 || !nodes[long].Has("IDLE") || nodes[long].Address != long || !nodes["b-1"].Failed() {
		t.Errorf("got %+v, %v", nodes, err)
	}
	if names, err := Expand(long + ",b-1"); err != nil || len(names) != 2 || names[0] != long {
		t.Errorf("Expand: got %v, %v", names, err)
	}
	// A width in a format, or a listing without one, would be columns.
	width := regexp.MustCompile(`%[.-]?\d+[a-zA-Z]`)
	listing := regexp.MustCompile(`"(squeue|sinfo|sacct|sacctmgr|sdiag)",`)
	files, err := filepath.Glob("../*/*.go")
	if err != nil || len(files) < 50 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	found := 0
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if !listing.MatchString(line) || strings.Contains(line, "[]string{") { // the allow-list of commands
				continue
			}
			found++
			if width.MatchString(line) || (!strings.Contains(line, "--json") && !strings.Contains(line, `"--format"`)) {
				t.Errorf("%s reads columns: %s", file, line)
			}
		}
	}
	if found == 0 {
		t.Error("no call of squeue was found, though there is one: the test looks for the wrong thing")
	}
}

// FuzzParseNodes: whatever slurmctld answers, no node is invented.
func FuzzParseNodes(f *testing.F) {
	f.Add([]byte(`{"nodes":[{"name":"a-1","state":["IDLE","CLOUD"],"reason":"a=b\n"}]}`))
	f.Add([]byte(`{"nodes":[{"state":null}]}`))
	f.Fuzz(func(t *testing.T, doc []byte) {
		nodes, err := ParseNodes(doc)
		for name, n := range nodes {
			if err != nil || n.Name != name {
				t.Errorf("got %v, %v", nodes, err)
			}
		}
	})
}

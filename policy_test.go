// Package openpcs_test holds the rules of the repository that no linter
// knows.
package openpcs_test

import (
	"bufio"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// file is one Go file of the repository.
type file struct {
	path   string // from the root, with slashes
	dir    string
	test   bool
	tree   *ast.File
	fset   *token.FileSet
	lines  int
	source string
}

func (f file) imports() (out []string) {
	for _, i := range f.tree.Imports {
		p, err := strconv.Unquote(i.Path.Value)
		if err == nil {
			out = append(out, p)
		}
	}
	return out
}

// files reads all Go files, those with build tags too.
func files(t *testing.T) []file {
	t.Helper()
	all, err := read()
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 100 {
		t.Fatalf("only %d Go files were found", len(all))
	}
	return all
}

var read = sync.OnceValues(func() ([]file, error) {
	var out []file
	root := os.DirFS(".")
	err := fs.WalkDir(root, ".", func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && p != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "bin"):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(p, ".go"):
			return nil
		}
		text, err := fs.ReadFile(root, p)
		if err != nil {
			return err
		}
		fset := token.NewFileSet()
		tree, err := parser.ParseFile(fset, p, text, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		out = append(out, file{
			path: p, dir: path.Dir(p), test: strings.HasSuffix(p, "_test.go"), tree: tree, fset: fset,
			lines: strings.Count(string(text), "\n"), source: string(text),
		})
		return nil
	})
	return out, err
})

func TestEveryPackageSaysWhatItIs(t *testing.T) {
	described, all := map[string]int{}, map[string]bool{}
	for _, f := range files(t) {
		if f.test {
			continue
		}
		all[f.dir] = true
		if f.tree.Doc == nil {
			continue
		}
		described[f.dir]++
		text := f.tree.Doc.Text()
		want := "Package " + f.tree.Name.Name + " "
		if f.tree.Name.Name == "main" {
			want = "Command "
		}
		if !strings.HasPrefix(text, want) || !strings.HasSuffix(strings.TrimSpace(text), ".") {
			t.Errorf("%s: the package comment must begin with %q and be sentences: %q", f.path, want, text)
		}
	}
	for dir := range all {
		if described[dir] != 1 {
			t.Errorf("%s has %d package comments, want one", dir, described[dir])
		}
	}
}

// Planners decide on what they are given: no clock, no I/O, no log.
func TestPlannersArePure(t *testing.T) {
	banned := []string{"os", "net", "net/http", "log", "log/slog", "io/fs", "os/exec", "math/rand", "math/rand/v2", "syscall", "database/sql"}
	for _, f := range files(t) {
		if f.dir != "internal/fleet" || f.test {
			continue
		}
		for _, p := range f.imports() {
			if slices.Contains(banned, p) || strings.HasPrefix(p, "log/") || strings.HasPrefix(p, "os/") {
				t.Errorf("%s imports %s", f.path, p)
			}
		}
		ast.Inspect(f.tree, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			if x, ok := sel.X.(*ast.Ident); ok && x.Name == "time" && slices.Contains([]string{"Now", "Since", "Until", "Sleep", "After", "NewTimer", "NewTicker", "AfterFunc", "Tick"}, sel.Sel.Name) {
				t.Errorf("%s uses time.%s: now is an argument", f.fset.Position(n.Pos()), sel.Sel.Name)
			}
			return true
		})
	}
}

// Programs are run in few places only: by the agent in instances, with the
// user's lifecycle scripts, by people's commands, and by what sets up the host.
func TestProgramsAreRunInFewPlaces(t *testing.T) {
	allowed := []string{
		"cmd/openpcs-bench", "internal/agent", "internal/app", "internal/cli", "internal/compute/incus", "internal/image",
		"internal/lifecycle", // the user's scripts
		"internal/s3",        // the storage, a program of openpcs
		"test/e2e",
	}
	tests := []string{
		"internal/collect",  // a collector to kill
		"internal/ec2",      // ssh-keygen reads a key pair
		"internal/slurm",    // scontrol, where it is installed
		"internal/store",    // a process to kill
		"internal/pcs",      // the aws CLI and botocore
		"internal/library",  // the scripts, and shellcheck
		"internal/delivery", // a pipeline to kill, and moto's server
		"internal/userdata", // Python's parser of MIME, which cloud-init uses
	}
	for _, f := range files(t) {
		if slices.Contains(f.imports(), "os/exec") && !slices.Contains(allowed, f.dir) && !(f.test && slices.Contains(tests, f.dir)) {
			t.Errorf("%s imports os/exec: run programs in the packages made for it, or add this one to the list with a reason", f.path)
		}
	}
}

// What may import what, as DESIGN section 2 draws it.
func TestLayers(t *testing.T) {
	const module = "github.com/openpcs/openpcs/"
	for _, rule := range []struct {
		dir    string
		banned []string
	}{
		{"internal/fleet", []string{"internal/control", "internal/pcs", "internal/compute", "internal/awsapi", "internal/agent", "internal/imds", "internal/app"}},
		{"internal/slurm", []string{"internal/"}},
		{"internal/store", []string{"internal/"}},
		{"internal/compute", []string{"internal/"}},
		{"internal/compute/fake", []string{"internal/fleet", "internal/control", "internal/store", "internal/compute/incus"}},
		{"internal/compute/incus", []string{"internal/fleet", "internal/control", "internal/store", "internal/pcs"}},
		{"internal/pcs", []string{"internal/control", "internal/compute", "internal/agent", "internal/app", "internal/imds"}},
		{"internal/control", []string{"internal/pcs", "internal/compute/incus", "internal/app", "internal/cli"}},
		{"internal/agent", []string{"internal/control", "internal/store", "internal/pcs", "internal/compute", "internal/app"}},
	} {
		for _, f := range files(t) {
			if f.dir != rule.dir || f.test {
				continue
			}
			for _, p := range f.imports() {
				for _, b := range rule.banned {
					inner, ok := strings.CutPrefix(p, module)
					if ok && (inner == b || (strings.HasSuffix(b, "/") && strings.HasPrefix(inner, b)) || strings.HasPrefix(inner, b+"/")) {
						t.Errorf("%s imports %s", f.path, inner)
					}
				}
			}
		}
	}
}

func TestNoFileIsTooLong(t *testing.T) {
	for _, f := range files(t) {
		if f.lines > 800 {
			t.Errorf("%s has %d lines, at most 800 are allowed", f.path, f.lines)
		}
	}
}

// Tests wait for events, or in a bubble of testing/synctest.
func TestTestsDoNotSleep(t *testing.T) {
	for _, f := range files(t) {
		if !f.test || strings.HasPrefix(f.dir, "test/e2e") || slices.Contains(f.imports(), "testing/synctest") {
			continue
		}
		ast.Inspect(f.tree, func(n ast.Node) bool {
			if sel, ok := n.(*ast.SelectorExpr); ok && sel.Sel.Name == "Sleep" {
				if x, ok := sel.X.(*ast.Ident); ok && x.Name == "time" {
					t.Errorf("%s sleeps", f.fset.Position(n.Pos()))
				}
			}
			return true
		})
	}
}

// mirrors are host names that belong to one machine or one country.
var mirrors = regexp.MustCompile(`https?://[a-z0-9.-]*(deb\.debian\.org|mirror|archive\.ubuntu)[a-z0-9./-]*`)

func TestNoMirrorIsNamed(t *testing.T) {
	for _, f := range files(t) {
		if f.path == "policy_test.go" || f.test {
			continue
		}
		if m := mirrors.FindString(f.source); m != "" {
			t.Errorf("%s names the package mirror %s: take it from the machine's own configuration", f.path, m)
		}
	}
}

// direct are the dependencies that go.mod names itself.
func direct(t *testing.T) (out []string) {
	t.Helper()
	f, err := os.Open("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	lines := bufio.NewScanner(f)
	module := regexp.MustCompile(`^\s*(?:require\s+)?([a-z0-9.-]+\.[a-z]+/\S+) v\S+$`)
	for lines.Scan() {
		if m := module.FindStringSubmatch(lines.Text()); m != nil {
			out = append(out, m[1])
		}
	}
	return out
}

func TestDependencies(t *testing.T) {
	allowed := []string{
		"github.com/aws/aws-sdk-go-v2", "github.com/aws/aws-sdk-go-v2/service/cloudwatchlogs", "github.com/aws/aws-sdk-go-v2/service/ec2", "github.com/aws/aws-sdk-go-v2/service/pcs",
		"github.com/aws/aws-sdk-go-v2/service/s3", "github.com/aws/aws-sdk-go-v2/service/sts", "github.com/gofiber/fiber/v3", "github.com/versity/versitygw", "github.com/aws/smithy-go", "github.com/coder/websocket", "github.com/google/uuid", "github.com/klauspost/compress",
		"github.com/spf13/cobra", "golang.org/x/sync", "golang.org/x/sys", "modernc.org/sqlite", "pgregory.net/rapid",
	}
	got := direct(t)
	if len(got) < 5 {
		t.Fatalf("go.mod was not understood: %v", got)
	}
	for _, m := range got {
		if !slices.Contains(allowed, m) {
			t.Errorf("%s is a new direct dependency: say why in docs/dependencies.md and add it to the list", m)
		}
	}
	if len(got) > 20 {
		t.Errorf("%d direct dependencies, at most 20 are allowed", len(got))
	}
	// The official SDK is a client for tests; the server has its own types.
	for _, f := range files(t) {
		for _, p := range f.imports() {
			if strings.HasPrefix(p, "github.com/aws/") && !f.test {
				t.Errorf("%s imports %s outside of a test", f.path, p)
			}
			if p == "pgregory.net/rapid" && !f.test {
				t.Errorf("%s imports %s outside of a test", f.path, p)
			}
		}
	}
}

func TestDependenciesAreDocumented(t *testing.T) {
	text, err := os.ReadFile("docs/dependencies.md")
	if os.IsNotExist(err) {
		t.Skip("docs/dependencies.md is not written yet")
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range direct(t) {
		name := m
		if service, ok := strings.CutPrefix(m, "github.com/aws/aws-sdk-go-v2/"); ok {
			name = service
		}
		if !strings.Contains(string(text), "`"+name+"`") {
			t.Errorf("docs/dependencies.md does not say what %s is for", m)
		}
	}
}

// TestVariablesAreDocumented: docs/cli.md lists what people can set.
func TestVariablesAreDocumented(t *testing.T) {
	text, err := os.ReadFile("docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	source, err := os.ReadFile("internal/app/options.go")
	if err != nil {
		t.Fatal(err)
	}
	names := regexp.MustCompile(`get\("([A-Z0-9_]+)"`).FindAllSubmatch(source, -1)
	if len(names) < 15 {
		t.Fatalf("%d variables are found in internal/app/options.go", len(names))
	}
	for _, n := range names {
		if name := "OPENPCS_" + string(n[1]); !strings.Contains(string(text), "`"+name+"`") {
			t.Errorf("docs/cli.md does not say what %s is for", name)
		}
	}
}

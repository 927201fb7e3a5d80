package condition_test

import (
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/openpcs/openpcs/internal/condition"
)

var write = flag.Bool("write", false, "write docs/conditions.md")

func TestDocument(t *testing.T) {
	path := filepath.Join("..", "..", "docs", "conditions.md")
	if *write {
		if err := os.WriteFile(path, []byte(condition.Document()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(have) != condition.Document() {
		t.Error("docs/conditions.md is out of date: run make docs")
	}
}

func TestConditions(t *testing.T) {
	code := regexp.MustCompile(`^[A-Z]+(_[A-Z]+)*$`)
	seen := map[condition.Code]bool{}
	for _, c := range condition.All() {
		switch {
		case !code.MatchString(string(c.Code)):
			t.Errorf("%s: the code is not capital letters and underscores", c.Code)
		case seen[c.Code]:
			t.Errorf("%s is declared twice", c.Code)
		case c.Of != "cluster" && c.Of != "group" && c.Of != "node":
			t.Errorf("%s is of %q", c.Code, c.Of)
		case !strings.HasSuffix(c.Text, ".") || !strings.HasSuffix(c.Fix, "."):
			t.Errorf("%s: its texts are no whole sentences", c.Code)
		}
		seen[c.Code] = true
		if found, ok := condition.Find(c.Code); !ok || found != c {
			t.Errorf("Find(%s) = %+v, %v", c.Code, found, ok)
		}
	}
	if _, ok := condition.Find("NO_SUCH_CODE"); ok {
		t.Error("found a code that is not declared")
	}
}

// Codes are named by their constants everywhere, and none is left unused.
func TestEveryConditionIsUsedByItsConstant(t *testing.T) {
	own, err := parser.ParseFile(token.NewFileSet(), "condition.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	constants := map[string]condition.Code{} // Go names
	ast.Inspect(own, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok {
			return true
		}
		if typ, ok := spec.Type.(*ast.Ident); ok && typ.Name == "Code" {
			text, _ := strconv.Unquote(spec.Values[0].(*ast.BasicLit).Value)
			constants[spec.Names[0].Name] = condition.Code(text)
		}
		return true
	})
	if len(constants) != len(condition.All()) {
		t.Errorf("%d constants for %d conditions", len(constants), len(condition.All()))
	}
	used := map[string]bool{}
	err = filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") || strings.HasPrefix(path, filepath.Join("..", "condition")) {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.SelectorExpr:
				if pkg, ok := n.X.(*ast.Ident); ok && pkg.Name == "condition" {
					used[n.Sel.Name] = true
				}
			case *ast.BasicLit:
				text, _ := strconv.Unquote(n.Value)
				// (The options name environment variables, one of them like a code, and
				// some of PCS's reasons in the scaling log are spelt like codes.)
				if path == filepath.Join("..", "scaling", "scaling.go") {
					return true
				}
				if _, ok := condition.Find(condition.Code(text)); ok && n.Kind == token.STRING && strings.Contains(text, "_") && filepath.Base(path) != "options.go" {
					t.Errorf("%s has %s as text instead of its constant", path, n.Value)
				}
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for name, code := range constants {
		if !used[name] {
			t.Errorf("nothing ever tells of %s", code)
		}
	}
}

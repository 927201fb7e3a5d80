package history_test

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/openpcs/openpcs/internal/history"
	"github.com/openpcs/openpcs/internal/store"
)

func TestSentence(t *testing.T) {
	for _, tt := range []struct{ kind, detail, want string }{
		{"resume", `{"jobs":[7,18]}`, "Slurm asked for the node, for job 7, 18"},
		{"resume", `{}`, "Slurm asked for the node"},
		{"launched", `{"instance":"i-1","afterMs":547}`, "launched i-1, 547ms after the decision"},
		{"slurmd-started", `{"instance":"i-1","agentMs":{"slurmd":350,"metadata":1,"registered":6}}`, "slurmd started on i-1; from the agent's start: metadata 1 ms, registered 6 ms, slurmd 350 ms"},
		{"refused", `{"type":"t3.micro","subnet":"subnet-1","code":"Full","error":"no room"}`, "refused: no t3.micro in subnet-1: Full: no room"},
		{"refused", `{"reason":"bad Licenses"}`, "slurmctld refused the configuration: bad Licenses"},
		{"never-heard-of", `{"a":1}`, `never-heard-of {"a":1}`},
		{"launched", `broken`, "launched ?, ? after the decision"},
	} {
		if got := history.Sentence(store.Event{Kind: tt.kind, Detail: json.RawMessage(tt.detail)}); got != tt.want {
			t.Errorf("%s %s: %q, want %q", tt.kind, tt.detail, got, tt.want)
		}
	}
}

// Every kind of event that the control plane writes has a sentence.
func TestEveryKindHasASentence(t *testing.T) {
	written := map[string]bool{"api": true, "slurmd-started": true, "running": true, "reachable": true, "unreachable": true} // named by other means
	for _, hook := range []string{"expect", "resume", "suspend", "resume-fail"} {
		written[hook] = true
	}
	for _, order := range []string{"power-up", "power-down", "replace", "recovered", "held-out"} {
		written[order] = true
	}
	for _, dir := range []string{"../control", "../pcs", "../delivery", "../collect"} {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
			if err != nil {
				return err
			}
			kind := func(e ast.Expr) {
				if lit, ok := e.(*ast.BasicLit); ok && lit.Kind == token.STRING {
					text, _ := strconv.Unquote(lit.Value)
					written[text] = true
					if !slices.Contains(history.Kinds(), text) {
						t.Errorf("%s writes %q, which has no sentence", path, text)
					}
				}
			}
			ast.Inspect(file, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.CallExpr: // event(tx, now, cluster, subject, kind, detail), w.event(subject, kind, detail), tell(tx, i, now, kind, detail)
					name := ""
					switch f := n.Fun.(type) {
					case *ast.Ident:
						name = f.Name
					case *ast.SelectorExpr:
						name = f.Sel.Name
					}
					if (name == "event" || name == "tell") && len(n.Args) >= 3 {
						kind(n.Args[len(n.Args)-2])
					}
				case *ast.KeyValueExpr:
					if key, ok := n.Key.(*ast.Ident); ok && key.Name == "Kind" {
						if lit, ok := n.Value.(*ast.BasicLit); ok {
							kind(lit)
						}
					}
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, k := range history.Kinds() {
		if !written[k] {
			t.Errorf("nothing writes %q", k)
		}
	}
}

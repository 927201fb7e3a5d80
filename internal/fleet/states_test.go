package fleet_test

import (
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/openpcs/openpcs/internal/fleet"
)

var write = flag.Bool("write", false, "write docs/states")

func TestPages(t *testing.T) {
	dir := filepath.Join("..", "..", "docs", "states")
	var want []string
	for _, m := range fleet.Machines() {
		path := filepath.Join(dir, m.Of+".md")
		want = append(want, m.Of+".md")
		if *write {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(m.Page()), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		have, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if string(have) != m.Page() {
			t.Errorf("docs/states/%s.md is out of date: run make docs", m.Of)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != len(want) {
		t.Errorf("docs/states has %d pages, want %q", len(entries), want)
	}
	for _, page := range []string{"README.md", "docs/architecture.md"} {
		text, err := os.ReadFile(filepath.Join("..", "..", page))
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range want {
			if !strings.Contains(string(text), "states/"+w) {
				t.Errorf("%s has no link to docs/states/%s", page, w)
			}
		}
	}
}

// What is declared is whole: every state can be reached and left, nothing is
// declared twice, and every timer is there.
func TestMachines(t *testing.T) {
	for _, m := range fleet.Machines() {
		t.Run(m.Of, func(t *testing.T) {
			names := map[string]bool{fleet.None: true}
			for _, s := range m.States {
				if names[s.Name] || !strings.HasSuffix(s.Text, ".") {
					t.Errorf("the state %q is declared twice, or its text is no sentence", s.Name)
				}
				names[s.Name] = true
			}
			timers := map[string]bool{}
			for _, timer := range m.Timers {
				if timers[timer.Name] || timer.Value == "" || timer.Source == "" || !strings.HasSuffix(timer.Text, ".") {
					t.Errorf("the timer %q is declared twice, or something is missing: %+v", timer.Name, timer)
				}
				timers[timer.Name] = true
			}
			var in, out []string
			seen := map[fleet.Step]bool{}
			for _, tr := range m.Transitions {
				for _, timer := range tr.Timers {
					if !timers[timer] {
						t.Errorf("%v has the timer %q, which is not declared", tr, timer)
					}
				}
				in, out = append(in, tr.To), append(out, tr.From...)
				if tr.Trigger == "" || slices.Contains(tr.From, tr.To) {
					t.Errorf("%+v has no trigger, or goes nowhere", tr)
				}
			}
			for _, s := range m.Steps() {
				if seen[s] {
					t.Errorf("%+v is declared twice", s)
				}
				seen[s] = true
				if !names[s.From] || !names[s.To] {
					t.Errorf("%+v has a state that is not declared", s)
				}
			}
			for name := range names {
				if !slices.Contains(in, name) || !slices.Contains(out, name) {
					t.Errorf("%q cannot be reached, or not be left", name)
				}
			}
		})
	}
}

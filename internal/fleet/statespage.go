package fleet

import (
	"fmt"
	"slices"
	"strings"
)

// Page writes the machine's page, docs/states/<of>.md.
func (m Machine) Page() string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("# %s\n", m.Title)
	line("%s\n", m.Text)
	line("(This page is written by `make docs` from internal/fleet, and tests hold it true: a\ntransition that is not here fails them, and each that is here is seen in one.)\n")
	line("```mermaid\nstateDiagram-v2")
	for _, s := range m.States {
		if slices.Contains(m.Aside, s.Name) {
			continue
		}
		line("    state %q as %s", s.Name, mermaidID(s.Name))
	}
	for _, a := range m.arrows() {
		line("    %s --> %s", a[0], a[1])
	}
	line("```\n")
	if len(m.Aside) > 0 {
		line("The diagram leaves out what is rare, and `%s`: the table has all.\n", strings.Join(m.Aside, "`, `"))
	}
	line("## States\n")
	line("| state | meaning |\n|---|---|")
	for _, s := range m.States {
		line("| `%s` | %s |", s.Name, s.Text)
	}
	line("\n## Transitions\n")
	line("By: *api*, the service that answers a call of the PCS API; *slurm*, a program that\nslurmctld runs, or what slurmctld shows; *control*, everything else: the planner, the\nprovider's events and timers.\n")
	code := slices.ContainsFunc(m.Transitions, func(t Transition) bool { return t.Code != "" })
	if code {
		line("| from | to | by | trigger | timer | code in `StateReason` |\n|---|---|---|---|---|---|")
	} else {
		line("| from | to | by | trigger | timer |\n|---|---|---|---|---|")
	}
	for _, t := range m.Transitions {
		var from []string
		for _, f := range t.From {
			from = append(from, cell(f, "(new)"))
		}
		row := fmt.Sprintf("| %s | %s | %s | %s | %s |", strings.Join(from, ", "), cell(t.To, "(gone)"), t.By, t.Trigger, strings.Join(t.Timers, ", "))
		if code {
			row += " " + cell(t.Code, "") + " |"
		}
		line("%s", row)
	}
	line("\n## Timers\n")
	line("| timer | value | from | meaning |\n|---|---|---|---|")
	for _, t := range m.Timers {
		source := t.Source
		if !strings.Contains(source, "`") {
			source = "`" + strings.ReplaceAll(source, ", ", "`, `") + "`"
		}
		line("| %s | %s | %s | %s |", t.Name, t.Value, source, t.Text)
	}
	return b.String()
}

// arrows are the diagram's, each once.
func (m Machine) arrows() (out [][2]string) {
	for _, t := range m.Transitions {
		for _, from := range t.From {
			a := [2]string{mermaidID(from), mermaidID(t.To)}
			if !t.Rare && !slices.Contains(out, a) && !slices.Contains(m.Aside, from) && !slices.Contains(m.Aside, t.To) {
				out = append(out, a)
			}
		}
	}
	return out
}

func mermaidID(state string) string {
	if state == None {
		return "[*]"
	}
	return strings.NewReplacer("-", "_").Replace(state)
}

func cell(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return "`" + text + "`"
}

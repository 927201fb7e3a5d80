// Package history puts the durable events of a cluster into sentences. It
// knows what each kind of event means and nothing of who wrote it.
package history

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/openpcs/openpcs/internal/store"
)

// detail is an event's members.
type detail map[string]any

// text returns a member, or ? if the event has none.
func (d detail) text(key string) string {
	v, ok := d[key]
	if !ok || v == "" {
		return "?"
	}
	return fmt.Sprint(v)
}

func (d detail) list(key string) string {
	all, _ := d[key].([]any)
	var out []string
	for _, v := range all {
		out = append(out, fmt.Sprint(v))
	}
	return strings.Join(out, ", ")
}

// after returns a duration that the event has in milliseconds.
func (d detail) after(key string) string {
	n, ok := d[key].(json.Number)
	ms, err := n.Int64()
	if !ok || err != nil {
		return "?"
	}
	return (time.Duration(ms) * time.Millisecond).String()
}

// clock returns the time of day of a member.
func (d detail) clock(key string) string {
	at, err := time.Parse(time.RFC3339, d.text(key))
	if err != nil {
		return "?"
	}
	return at.UTC().Format(time.TimeOnly)
}

// stages lists how long an agent's stages took from its start.
func (d detail) stages(key string) string {
	stages, _ := d[key].(map[string]any)
	names := slices.Collect(maps.Keys(stages))
	ms := func(name string) int64 {
		n, _ := stages[name].(json.Number)
		v, _ := n.Int64()
		return v
	}
	slices.SortFunc(names, func(a, b string) int {
		if ms(a) != ms(b) {
			return int(ms(a) - ms(b))
		}
		return strings.Compare(a, b)
	})
	for i, name := range names {
		names[i] = fmt.Sprintf("%s %d ms", name, ms(name))
	}
	return strings.Join(names, ", ")
}

// sentences has each kind of event.
var sentences = map[string]func(d detail) string{
	// What was asked.
	"api": func(d detail) string { return "asked by " + d.text("by") + ": " + d.text("operation") },
	"expect": func(detail) string {
		return "a job got the node: it is launched ahead of Slurm's ResumeProgram"
	},
	"resume": func(d detail) string {
		if jobs := d.list("jobs"); jobs != "" {
			return "Slurm asked for the node, for job " + jobs
		}
		return "Slurm asked for the node"
	},
	"suspend":            func(detail) string { return "Slurm suspended the node" },
	"resume-fail":        func(detail) string { return "Slurm gave the node up: it was not up within ResumeTimeout" },
	"terminated-by-user": func(d detail) string { return "a user terminated the instance " + d.text("instance") },
	"fault-added":        func(d detail) string { return "asked for the fault " + d.text("fault") + ": " + d.text("kind") },
	"fault-removed":      func(d detail) string { return "the fault " + d.text("fault") + " was removed" },
	"fault":              func(d detail) string { return "the fault " + d.text("fault") + " struck: " + d.text("kind") },
	"delivery-failing": func(d detail) string {
		return "the delivery " + d.text("delivery") + " of the log " + d.text("log") + " to " + d.text("to") + " does not come on (" + d.text("condition") + "): " + d.text("error")
	},
	"delivery-resumed": func(d detail) string {
		return "the delivery " + d.text("delivery") + " of the log " + d.text("log") + " to " + d.text("to") + " goes on, after it did not since " + d.clock("since")
	},
	// What was decided and done.
	"assigned": func(d detail) string {
		return "decided to launch " + d.text("instance") + ", a " + d.text("type") + " in " + d.text("subnet")
	},
	"adopted":  func(d detail) string { return "wanted, though no call of Slurm said so: " + d.text("reason") },
	"given-up": func(d detail) string { return "not wanted any more: " + d.text("reason") },
	"launched": func(d detail) string {
		return "launched " + d.text("instance") + ", " + d.after("afterMs") + " after the decision"
	},
	"retired": func(d detail) string {
		return "ending " + d.text("instance") + ": " + d.text("reason") + " (" + d.text("code") + ")"
	},
	"leaving": func(d detail) string {
		return d.text("instance") + " is to go: " + d.text("reason") + " (" + d.text("code") + "); Slurm has the node as " + d.text("state") + " since " + d.clock("since")
	},
	"not-terminated": func(d detail) string {
		return "could not end " + d.text("instance") + ", which is tried again: " + d.text("error")
	},
	"terminated": func(d detail) string { return "ended " + d.text("instance") + ": " + d.text("reason") },
	"power-up":   func(d detail) string { return "had Slurm resume the node: " + d.text("reason") },
	"power-down": func(d detail) string { return "had Slurm power the node down: " + d.text("reason") },
	"replace": func(d detail) string {
		return "had Slurm power the node down when its jobs are done: " + d.text("reason")
	},
	"down":      func(d detail) string { return "set the node down in Slurm: " + d.text("reason") },
	"held-out":  func(d detail) string { return "held the idle node out: " + d.text("reason") },
	"recovered": func(detail) string { return "made the node idle again in Slurm" },
	// What came of it.
	"registered": func(d detail) string {
		return d.text("instance") + " registered, " + d.after("afterMs") + " after the decision"
	},
	"slurmd-started": func(d detail) string {
		return "slurmd started on " + d.text("instance") + "; from the agent's start: " + d.stages("agentMs")
	},
	"bootstrapped": func(d detail) string {
		return "the lifecycle scripts of " + d.text("instance") + " are done; from the agent's start: " + d.stages("agentMs")
	},
	"slurmd-waits": func(d detail) string {
		return "slurmd on " + d.text("instance") + " does not come up yet: " + d.text("message") + " (" + d.text("code") + ")"
	},
	"running": func(d detail) string { return "the agent of " + d.text("instance") + " runs" },
	"ready": func(d detail) string {
		return "up with " + d.text("instance") + ", " + d.after("afterMs") + " after the decision"
	},
	"breaker-open": func(d detail) string {
		return d.text("failures") + " starts failed in a row, the last of " + d.text("instance") + " (" + d.text("code") + ": " + d.text("error") + "): one launch at a time, not before " + d.clock("again")
	},
	"breaker-closed": func(d detail) string { return d.text("instance") + " came up: launches go on as usual" },
	// What failed.
	"refused": func(d detail) string {
		if _, ok := d["type"]; !ok { // of a cluster
			return "slurmctld refused the configuration: " + d.text("reason")
		}
		return "refused: no " + d.text("type") + " in " + d.text("subnet") + ": " + d.text("code") + ": " + d.text("error")
	},
	"lacking": func(d detail) string {
		return "the group has no instance to give, so its job is freed: " + d.text("code") + ", again not before " + d.clock("again")
	},
	"launch-failed": func(d detail) string {
		return "the launch of " + d.text("instance") + " failed: " + d.text("code") + ": " + d.text("error")
	},
	"failed": func(d detail) string {
		return d.text("instance") + " failed: " + d.text("reason") + " (" + d.text("code") + ")"
	},
	"bootstrap-failed": func(d detail) string {
		text := "the bootstrap of " + d.text("instance") + " failed: " + d.text("message") + " (" + d.text("code") + ")"
		if d["joined"] == true {
			text += "; the node takes no more jobs, and the instance is ended when those it has are done"
		}
		return text
	},
	"script":    script,
	"lost":      func(d detail) string { return "lost " + d.text("instance") + ": " + d.text("reason") },
	"reclaimed": func(d detail) string { return d.text("instance") + " was taken back: " + d.text("reason") },
	// Of clusters.
	"slurmctld-ended": func(d detail) string {
		return "slurmctld ended unexpectedly (" + d.text("detail") + ") and is started again"
	},
	"slurmdbd-ended": func(d detail) string {
		return "slurmdbd or its database ended unexpectedly (" + d.text("detail") + ") and is started again"
	},
	"slurmrestd-ended": func(d detail) string {
		return "slurmrestd ended unexpectedly (" + d.text("detail") + ") and is started again"
	},
	"slurmdbd-disk-full": func(d detail) string {
		return "the database of accounting has no room for records any more: " + d.text("detail")
	},
	"slurmdbd-disk-free":   func(d detail) string { return "the database of accounting has room again: " + d.text("detail") },
	"slurmctld-complained": func(d detail) string { return "slurmctld took the configuration, and said: " + d.text("detail") },

	"logs-not-kept": func(d detail) string {
		return "the log of " + d.text("log") + " cannot be kept, and is left on the controller: " + d.text("error") + " (" + d.text("code") + ")"
	},
	"logs-kept": func(d detail) string { return "the log of " + d.text("log") + " is kept again" },
	"logs-lost": func(d detail) string {
		return "the log of " + d.text("log") + " does not go on where it was read to: what was written in between, if there was anything, is gone (" + d.text("code") + ")"
	},

	"configured":  func(d detail) string { return "slurmctld runs with the configuration " + d.text("hash") },
	"unreachable": func(d detail) string { return "the controller cannot be driven: " + d.text("error") },
	"reachable":   func(detail) string { return "the controller can be driven again" },
}

// script tells what came of a lifecycle script.
func script(d detail) string {
	text := "the script " + d.text("script") + " of the stage " + d.text("stage") + " on " + d.text("instance")
	if boot, ok := d["attempt"]; ok && fmt.Sprint(boot) != "1" {
		text += " at its boot " + fmt.Sprint(boot)
	}
	if d["failure"] == nil {
		return text + " succeeded, after " + d.text("seconds") + " s"
	}
	text += " failed: " + d.text("failure")
	if said, ok := d["output"].(string); ok && said != "" {
		text += "; it said last: " + strings.ReplaceAll(said, "\n", " | ")
	}
	what := map[string]string{
		"TERMINATE": "the node fails", "STOP_SEQUENCE": "the scripts behind it in its stage are left out, and the node goes on", "CONTINUE": "the node goes on",
	}[d.text("onError")]
	return text + "; onError is " + d.text("onError") + ": " + what
}

// Sentence puts an event into words. One of a kind that is not known, from a
// newer openpcs, is told as it is.
func Sentence(e store.Event) string {
	dec := json.NewDecoder(bytes.NewReader(e.Detail))
	dec.UseNumber() // large job ids stay whole
	var d detail
	if err := dec.Decode(&d); err != nil {
		d = nil
	}
	if f, ok := sentences[e.Kind]; ok {
		return f(d)
	}
	return e.Kind + " " + string(e.Detail)
}

// Kinds lists the kinds that have a sentence.
func Kinds() []string { return slices.Sorted(maps.Keys(sentences)) }

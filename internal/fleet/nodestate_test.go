package fleet_test

import (
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/openpcs/openpcs/internal/fleet"
)

// watcher follows the states of a world's nodes and knows what is declared.
type watcher struct {
	slow bool // launches take for ever
	// strict fails for steps that are not declared. Worlds of random events
	// are not: a rare course of them should not fail somebody's run, and the
	// long walk, which is always the same, is there for that.
	strict bool
	states map[string]string
	seen   map[fleet.Step]int
}

var nodeSteps = func() map[fleet.Step]bool {
	out := map[fleet.Step]bool{}
	for _, s := range fleet.MachineOf("node").Steps() {
		out[s] = true
	}
	return out
}()

// look compares the nodes' states with those before the one thing that has
// just happened, and fails for a step that is not declared.
func (w *world) look(by fleet.By) {
	w.t.Helper()
	o := w.observe()
	if w.states == nil {
		w.states, w.seen = map[string]string{}, map[fleet.Step]int{}
	}
	now := map[string]string{}
	for _, g := range o.Groups {
		for n := range 3 { // no group of a world is larger
			name := g.NodeName(n + 1)
			now[name] = fleet.NodeState(o, g, name)
		}
	}
	for name := range w.states {
		if _, ok := now[name]; !ok {
			now[name] = fleet.None // with its group
		}
	}
	for name, state := range now {
		if before := w.states[name]; before != state {
			s := fleet.Step{From: before, To: state, By: by}
			w.seen[s]++
			if w.strict && !nodeSteps[s] {
				w.t.Fatalf("%s goes from %q to %q by %s, which is not declared", name, before, state, by)
			}
		}
	}
	w.states = now
	for _, g := range o.Groups {
		for n := range 3 {
			live := 0
			for _, i := range o.Instances {
				if i.NodeName == g.NodeName(n+1) && i.State.Live() {
					live++
				}
			}
			if live > 1 {
				w.t.Fatalf("%s has %d instances", g.NodeName(n+1), live)
			}
		}
	}
}

// idle fails for an instance that has a job and is to be ended as if it had
// none.
func (w *world) idle(i *fleet.Instance) {
	w.t.Helper()
	h := w.slurm[i.NodeName]
	if h != nil && h.busy && !h.down && h.power == "up" && w.group(i.GroupID).Status != fleet.Deleting {
		w.t.Fatalf("%s is ended under a job of %s", i.ID, i.NodeName)
	}
}

// tick moves the clock.
func (w *world) tick(now time.Time) {
	w.t.Helper()
	w.o.Now = now
	w.look(fleet.ByControl)
}

// back has slurmctld answer again: all that it did not tell of changes at
// once, by whatever steps.
func (w *world) back() {
	if !w.away {
		return
	}
	strict := w.strict
	w.away, w.strict = false, false
	w.look(fleet.BySlurm)
	w.strict = strict
}

// happenings are what can happen in a world.
var happenings = []string{
	"job", "job", "early job", "done", "idle", "lost", "terminated", "silent", "drain", "undrain", "down", "up", "broken", "mended", "hang", "unhang",
	"full", "half full", "room", "reclaim", "clock", "fail", "stray", "invalid", "unheard resume", "unheard suspend", "late resume",
	"update", "refused update", "shrink", "grow", "time", "time", "plan", "plan", "plan", "agents",
}

// happen has one thing happen to a node, or to all, if it can.
func (w *world) happen(event, name string, number func(least, most int) int) {
	w.t.Helper()
	h := w.slurm[name]
	i := w.live(name)
	switch {
	case event == "time":
		w.tick(w.o.Now.Add(time.Duration(number(1, 700)) * time.Second))
		w.clocks()
	case event == "clock": // is set, back or on
		w.tick(w.o.Now.Add(time.Duration(number(-90, 90)) * time.Minute))
	case event == "plan":
		for looked := true; looked; {
			o := w.observe()
			actions, _ := fleet.Plan(o)
			checkSafe(w.t, o, actions)
			looked = false
			for _, a := range actions {
				w.apply(a)
				looked = looked || a.Kind == fleet.Look && !w.away // and plans with what it saw
			}
		}
	case event == "agents":
		w.agents()
	case event == "away":
		w.away = true
	case event == "back":
		w.back()
	case w.away && slices.Contains([]string{
		"job", "early job", "done", "idle", "silent", "drain", "undrain", "down", "up", "stray", "unheard resume", "unheard suspend", "late resume", "invalid", "shrink", "grow",
	}, event): // it would take slurmctld
	case event == "broken":
		w.broken = true
	case event == "slow":
		w.slow = true
	case event == "fast":
		w.slow = false
	case event == "full":
		w.full["big"], w.full["small"] = true, true
	case event == "half full":
		w.full["big"] = true
	case event == "room":
		clear(w.full)
	case event == "mended":
		w.broken = false
	case event == "deaf":
		w.deaf = true
	case event == "hears":
		w.deaf = false
	case event == "hang":
		w.hanging = true
	case event == "unhang":
		w.hanging = false
	case event == "update":
		w.o.Groups[0].Revision++
		for _, n := range w.o.Groups[0].Retry(slices.Collect(maps.Values(w.o.Nodes))) {
			w.o.Nodes[n.Name] = n
		}
		w.look(fleet.ByAPI)
	case event == "refused update":
		w.o.Groups[0].Revision += 9
		w.look(fleet.ByAPI)
		w.o.Groups[0].Revision -= 9
		w.look(fleet.ByControl)
	case event == "delete":
		w.o.Groups[0].Status = fleet.Deleting
		w.look(fleet.ByAPI)
	case event == "deleted":
		w.o.Groups = w.o.Groups[1:]
		maps.DeleteFunc(w.o.Nodes, func(name string, _ fleet.Node) bool { return strings.HasPrefix(name, "d-") })
		w.configure()
		w.look(fleet.ByControl)
	case event == "shrink":
		w.o.Groups[0].Max = 1
		w.look(fleet.ByAPI)
		w.configure()
		w.look(fleet.ByControl)
	case event == "grow":
		w.o.Groups[0].Max = 3
		w.configure()
		w.look(fleet.ByAPI)
	case h == nil: // not configured now
	case event == "job" && !h.drain && !h.down && h.power == "down":
		h.busy = true
		w.resume(name)
	case event == "job" && !h.drain && !h.down && h.power == "up":
		h.busy = true
	case event == "unheard resume" && !h.drain && !h.down && h.power == "down":
		h.power, h.since, h.busy = "rising", w.o.Now, true
		w.look(fleet.BySlurm)
	case event == "early job" && !h.drain && !h.down && h.power == "down" && i == nil:
		n := w.node(name)
		if !n.Want && !w.o.Now.Before(n.NotBefore) && n.Down == "" {
			n.Want, n.Early, n.WantAt = true, true, w.o.Now
			w.o.Nodes[name] = n
		}
		w.look(fleet.BySlurm)
	case event == "stray" && h.power == "down" && !h.down && !h.drain && i == nil && !w.node(name).Want && !strings.HasPrefix(name, "s-"):
		h.power = "up" // nothing is behind it
		w.look(fleet.BySlurm)
	case event == "late resume" && w.node(name).Early && h.power == "down" && !h.down:
		w.resume(name)
	case event == "reclaim" && i != nil && i.State == fleet.Running && !i.ReadyAt.IsZero():
		i.ReclaimAt = w.o.Now.Add(time.Minute)
		w.look(fleet.ByControl)
	case event == "done" && h.busy && h.power == "up":
		h.busy = false
	case event == "idle" && h.power == "up" && !h.busy && !strings.HasPrefix(name, "s-"):
		w.suspend(name)
	case event == "unheard suspend" && h.power == "up" && !h.busy && !h.down && !strings.HasPrefix(name, "s-"):
		h.power, h.since = "falling", w.o.Now
		w.look(fleet.BySlurm)
	case (event == "lost" || event == "terminated") && i != nil && i.State == fleet.Running:
		w.lose(i)
	case event == "terminated" && i != nil && i.State == fleet.Pending:
		w.lose(i)
	case event == "fail" && i != nil && i.State == fleet.Running && i.ReadyAt.IsZero(): // the agent says so
		w.fail(i, "BOOTSTRAP_FAILED", "it ended with 1", "Backing Instance Failed To Bootstrap: "+i.ID)
		w.look(fleet.ByControl)
	case event == "late fail" && i != nil && i.State == fleet.Running && !i.ReadyAt.IsZero() && i.Failure == "": // a script of nodeReady
		i.FailureCode, i.Failure = "LIFECYCLE_SCRIPT_FAILED", "the script failed"
		w.look(fleet.ByControl)
	case event == "silent" && h.power == "up" && !h.down: // slurmd died, or the node rebooted
		h.down, h.busy = true, false
		if !h.drain {
			h.reason = "Not responding"
		}
		w.look(fleet.BySlurm)
	case event == "invalid" && h.power == "up" && !h.down && !h.drain && i != nil:
		if i.ReadyAt.IsZero() {
			h.busy = false // its job is ended
		}
		h.invalid, h.drain, h.reason = true, true, "Low RealMemory (reported:1 < 100.00% of configured:2)"
		w.look(fleet.BySlurm)
	case event == "drain" && h.invalid:
	case event == "drain":
		h.drain, h.reason = true, "person drained it"
		w.look(fleet.BySlurm)
	case event == "undrain" && h.drain:
		h.drain, h.down, h.reason = false, false, ""
		w.look(fleet.BySlurm)
	case event == "down" && !h.drain:
		h.down, h.busy, h.reason = true, false, "person set it down"
		w.look(fleet.BySlurm)
	case event == "up" && h.down && strings.HasPrefix(h.reason, "person"):
		h.down, h.drain, h.reason = false, false, ""
		w.look(fleet.BySlurm)
	}
}

// refused is a launch for which there is no room, after the rest of the one
// before.
const refused = "time plan plan early_job plan plan plan "

// stories are what a walk seldom comes upon: what happens to a node, in
// order. Time is 700 seconds, comes is all that brings an instance up, and d-2:
// goes on with another node.
var stories = []string{
	"d-1 job comes update silent",
	"d-1 job comes update down up",
	"d-1 job comes update drain undrain",
	"d-1 job comes update reclaim",
	"d-1 job comes silent reclaim",
	"d-1 job comes silent down reclaim",
	"d-1 job comes silent drain",
	"d-1 job comes down up",
	"d-1 job comes drain undrain done idle",
	"d-1 job comes drain done idle plan plan",
	"d-1 job comes down idle plan plan",
	"d-1 job comes drain reclaim",
	"d-1 job comes reclaim done idle",
	"d-1 job comes done idle",
	"d-1 job comes update plan plan",
	"d-1 job comes late_fail plan done plan plan plan",
	"d-2 job comes silent shrink",
	"d-2 job comes down shrink",
	"d-2 job comes drain shrink",
	"d-2 job comes update silent shrink",
	"d-2 job comes update down shrink",
	"d-2 job comes update drain shrink",
	"d-2 job comes update shrink plan",
	"d-2 early_job shrink grow",
	"d-2 early_job shrink",
	"d-1 early_job plan time plan job",
	"d-1 early_job plan plan time plan job",
	"d-1 early_job plan plan agents time plan job",
	"d-1 early_job plan plan agents late_resume",
	"d-1 early_job plan plan agents unheard_resume time plan",
	"d-1 early_job plan plan agents unheard_resume time time time",
	"d-1 early_job down time plan",
	"d-1 early_job drain time plan",
	"d-1 early_job full time plan",
	"d-1 hang job plan plan time time time",
	"d-1 job hang plan time time time",
	"d-1 job time time time",
	"d-1 job drain time time time",
	"d-1 job plan plan agents fail",
	"d-1 unheard_resume time time time",
	"d-1 unheard_resume down time time time",
	"d-1 unheard_resume drain time plan",
	"d-1 stray time plan",
	"d-3 full " + refused + "time plan plan slow job d-2:job plan d-1:job plan 1795s fast plan 6s",
	"d-1 job comes invalid undrain",
	"d-1 job comes update invalid undrain",
	"d-1 job comes invalid lost plan undrain",
	"d-3 full job plan plan d-2:early_job plan shrink grow",
	"d-1 slow early_job plan time plan job",
	"d-1 early_job plan plan agents unheard_resume time plan time time time",
	"d-1 broken job plan plan plan plan plan plan job update",
	"d-1 broken job plan plan plan 6s plan plan job plan plan plan 11s plan plan job plan plan plan 21s plan plan job d-2:job plan plan plan mended time plan plan job d-2:job plan agents plan plan",
	"d-1 slow deaf job plan time time time plan 11s plan plan fast",
	"d-1 broken job plan plan plan down up",
	"d-1 broken job plan plan plan 6s plan plan mended job -3s",
	"d-1 job comes done full d-2:job plan plan d-1:idle plan plan",
	"d-1 broken job plan plan plan mended full 3s d-2:job plan plan 3s",
	"d-2 full job plan plan d-1:early_job plan job",
	"d-3 full " + refused + refused + "time plan plan early_job plan d-1:unheard_resume plan 11s plan",
	"d-3 full " + refused + refused + "time plan plan early_job d-2:early_job plan d-1:early_job plan 11s plan",
}

// A long walk through what can happen, the same at each run, and some stories
// take every step of a node that is declared.
func TestEveryStepOfANodeIsTaken(t *testing.T) {
	const walks = 400
	seen := map[fleet.Step]int{}
	count := func(w *world) {
		for s, n := range w.seen {
			seen[s] += n
		}
	}
	for walk := range walks {
		random := rand.New(rand.NewPCG(uint64(walk), 1))
		number := func(least, most int) int { return least + random.IntN(most-least+1) }
		w := aWorld(t)
		names := []string{"d-1", "d-2", "d-3", "s-1", "s-2"}
		happen := func(event string) { w.happen(event, names[random.IntN(len(names))], number) }
		for range 60 {
			happen(happenings[random.IntN(len(happenings))])
			if random.IntN(2) == 0 { // in time
				happen("plan")
				happen("agents")
				happen("plan")
			}
		}
		w.happen("delete", "", number)
		for range 20 {
			happen([]string{"time", "plan", "plan", "silent", "lost", "drain", "undrain"}[random.IntN(7)])
		}
		w.broken, w.hanging = false, false
		clear(w.full)
		w.settle()
		for n := range 3 {
			if i := w.live(w.o.Groups[0].NodeName(n + 1)); i != nil {
				t.Fatalf("the deleted group keeps %+v", i)
			}
		}
		w.happen("deleted", "", number)
		w.settle()
		count(w)
	}
	for _, story := range stories {
		w := aWorld(t)
		name, events, _ := strings.Cut(story, " ")
		for word := range strings.SplitSeq(events, " ") {
			if other, event, ok := strings.Cut(word, ":"); ok {
				name, word = other, event
			}
			if d, err := time.ParseDuration(word); err == nil {
				w.happen("time", name, func(int, int) int { return int(d / time.Second) })
				continue
			}
			steps := []string{strings.ReplaceAll(word, "_", " ")}
			if word == "comes" {
				steps = []string{"plan", "plan", "agents", "plan"}
			}
			for _, event := range steps {
				w.happen(event, name, func(_, most int) int { return most })
			}
		}
		count(w)
	}
	for _, s := range fleet.MachineOf("node").Steps() {
		if seen[s] == 0 {
			t.Errorf("declared and never seen: %q to %q by %s", s.From, s.To, s.By)
		}
	}
}

// aWorld has a dynamic group, which slurmctld has just taken, and a static
// one.
func aWorld(t *testing.T) *world {
	w := newWorld(
		t,
		fleet.Group{ID: "pcs_d", Name: "d", Status: fleet.Creating, Max: 3},
		fleet.Group{ID: "pcs_s", Name: "s", Status: fleet.Active, Min: 1, Max: 2},
	)
	w.o.Groups[0].Status = fleet.Active
	w.strict, w.breaker = true, 3
	w.look(fleet.ByControl)
	return w
}

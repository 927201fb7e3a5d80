// Package fleettest holds the control plane's parts to the state machines
// that package fleet declares, for their tests: a Recorder looks at the state
// file at each commit and fails for a transition that is not declared.
package fleettest

import (
	"context"
	"strings"
	"sync"

	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/store"
)

// Step is a step of a machine.
type Step struct {
	Of string
	fleet.Step
}

// Recorder follows one state file. Its Seam goes into store.SetSeam.
type Recorder struct {
	fail func(format string, args ...any)
	read func() *store.Store
	// who tells which part made a commit, from its point, as
	// commit/control.Hook; one of the test itself is "".
	who func(point string) fleet.By

	mu    sync.Mutex
	last  map[[2]string]state // by kind and id, before the commit at point
	point string
	seen  map[Step]int
}

type state struct{ name, code string }

// New returns a Recorder of the state file that read returns; fail is the
// test's Errorf.
func New(fail func(format string, args ...any), read func() *store.Store, who func(point string) fleet.By) *Recorder {
	return &Recorder{fail: fail, read: read, who: who, last: map[[2]string]state{}, seen: map[Step]int{}}
}

// Seam takes a point of the store. Right before a commit its transaction is
// the only one, so the file has what the commit before left: each commit is
// seen by itself.
func (r *Recorder) Seam(point string) {
	if point, ok := strings.CutSuffix(point, "/before"); ok && strings.HasPrefix(point, "commit/") {
		r.look(point)
	}
}

// Flush looks at what the last commit left.
func (r *Recorder) Flush() { r.look("") }

// Seen returns how often each step was seen.
func (r *Recorder) Seen() map[Step]int {
	r.Flush()
	return r.seen
}

var machines = func() map[string]fleet.Machine {
	out := map[string]fleet.Machine{}
	for _, m := range fleet.Machines() {
		out[m.Of] = m
	}
	return out
}()

func (r *Recorder) look(point string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := map[[2]string]state{}
	err := r.read().View(context.Background(), func(tx *store.Tx) error {
		clusters, err := fleet.Clusters.All(tx)
		if err != nil {
			return err
		}
		for _, c := range clusters {
			now[[2]string{"cluster", c.ID}] = state{name: string(c.Status)}
		}
		groups, err := fleet.Groups.All(tx)
		if err != nil {
			return err
		}
		for _, g := range groups {
			now[[2]string{"group", g.ID}] = state{name: string(g.Status)}
		}
		queues, err := fleet.Queues.All(tx)
		if err != nil {
			return err
		}
		for _, q := range queues {
			now[[2]string{"queue", q.ID}] = state{name: string(q.Status)}
		}
		instances, err := fleet.Instances.All(tx)
		for _, i := range instances {
			now[[2]string{"instance", i.ID}] = state{string(i.State), i.StateCode}
		}
		return err
	})
	if err != nil {
		r.fail("read the state file: %v", err)
		return
	}
	for key, to := range now {
		if from := r.last[key]; from.name != to.name {
			code := ""
			if to.name == string(fleet.ShuttingDown) {
				code = to.code
			}
			r.step(key, from.name, to.name, code)
		}
	}
	for key, from := range r.last {
		if _, ok := now[key]; !ok {
			r.step(key, from.name, fleet.None, "")
		}
	}
	r.last, r.point = now, point
}

func (r *Recorder) step(key [2]string, from, to, code string) {
	by := r.who(r.point)
	if by == "" {
		return
	}
	s := fleet.Step{From: from, To: to, By: by, Code: code}
	r.seen[Step{key[0], s}]++
	if !machines[key[0]].Allows(s) {
		r.fail("%s: the %s %s goes from %q to %q (%s) by %s, which is not declared", r.point, key[0], key[1], from, to, code, by)
	}
}

// Missing returns the declared steps, made by one of the parts, that were not
// seen.
func Missing(seen map[Step]int, by ...fleet.By) (out []Step) {
	for _, m := range fleet.Machines() {
		if m.Of == "node" { // it is stored nowhere: the planner's tests have it
			continue
		}
		for _, s := range m.Steps() {
			for _, b := range by {
				if s.By == b && seen[Step{m.Of, s}] == 0 {
					out = append(out, Step{m.Of, s})
				}
			}
		}
	}
	return out
}

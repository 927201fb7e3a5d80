package fleet_test

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/openpcs/openpcs/internal/condition"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/slurm"
)

// ends lists the actions of a plan that take a healthy instance from its
// node: one that is up, wanted, configured and not taken back.
func ends(o fleet.Observed, actions []fleet.Action) (out []fleet.Action) {
	groups := map[string]fleet.Group{}
	for _, g := range o.Groups {
		groups[g.ID] = g
	}
	healthy := map[string]bool{}
	for _, i := range o.Instances {
		g, n := groups[i.GroupID], o.Nodes[i.NodeName]
		index := g.NodeIndex(i.NodeName)
		if i.State == fleet.Running && !i.RegisteredAt.IsZero() && !i.ReadyAt.IsZero() && i.ReclaimAt.IsZero() &&
			n.Want && !n.Early && n.Down == "" && g.ID != "" && g.Status != fleet.Deleting && index >= 1 && index <= g.Max {
			healthy[i.ID] = true
		}
	}
	for _, a := range actions {
		if healthy[a.Instance] && a.Kind != fleet.MarkUp {
			out = append(out, a)
		}
	}
	return out
}

// TestD1_NothingEndsWithoutProof: that slurmctld says nothing of a node, or
// has said nothing for long, is no proof that the node is idle
// (slinky-slurm-operator #79: a failed look-up counted as drained).
func TestD1_NothingEndsWithoutProof(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := anything(t)
		if rapid.Bool().Draw(t, "silent") {
			o.Slurm = nil
		}
		for name := range o.Slurm {
			if rapid.Bool().Draw(t, "unknown "+name) {
				delete(o.Slurm, name)
			}
		}
		actions, _ := fleet.Plan(o)
		for _, a := range ends(o, actions) {
			if _, known := o.Slurm[a.Node]; !known {
				t.Fatalf("%s of %s, of which slurmctld says nothing", a.Kind, a.Node)
			}
		}
	})
}

// TestD4_WhatRunsIsNotEnded: a node that is up with a job, drained or not, is
// left until its job is done: Slurm itself is asked to wait for that
// (slurm-operator #2635 replaced nodes that were DRAIN+ALLOCATED).
func TestD4_WhatRunsIsNotEnded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := anything(t)
		o.Slurm = map[string]slurm.Node{}
		for k := range o.Instances {
			i := &o.Instances[k]
			if i.NodeName == "" {
				continue
			}
			i.State, i.RegisteredAt, i.ReadyAt, i.ReclaimAt = fleet.Running, noon.Add(-time.Minute), noon.Add(-time.Minute), time.Time{}
			o.Nodes[i.NodeName] = fleet.Node{Name: i.NodeName, GroupID: i.GroupID, Want: true}
			state := []string{rapid.SampledFrom([]string{"ALLOCATED", "MIXED", "IDLE"}).Draw(t, "base"), "CLOUD"}
			for _, flag := range []string{"DRAIN", "INVALID_REG", "MAINTENANCE", "NEVER_HEARD_OF"} {
				if rapid.Bool().Draw(t, flag) {
					state = append(state, flag)
				}
			}
			if state[0] == "IDLE" {
				state = append(state, "COMPLETING")
			}
			o.Slurm[i.NodeName] = slurm.Node{
				Name: i.NodeName, State: state,
				Reason: rapid.SampledFrom([]string{"", "a person", "pcs: x", "Not responding", "Low RealMemory (reported:1 < 100.00% of configured:2)"}).Draw(t, "reason"),
			}
		}
		actions, _ := fleet.Plan(o)
		for _, a := range ends(o, actions) {
			if a.Kind != fleet.Replace {
				t.Fatalf("%s of %s, which is %v", a.Kind, a.Node, o.Slurm[a.Node].State)
			}
		}
	})
}

// TestD10_MaintenanceIsLeftAlone: a user's maintenance reservation changes
// nothing that openpcs does; a node that fails in it is replaced once
// (ParallelCluster #7465: an endless loop of kills and launches).
func TestD10_MaintenanceIsLeftAlone(t *testing.T) {
	for _, tt := range []struct {
		name  string
		scene scene
		want  string
	}{
		{"up", wanted(), ""},
		{"static_and_off", func() scene { s := off(); s.group.Min = 1; return s }(), "power-up g-1"},
		{"rebooted_by_itself", func() scene {
			s := wanted()
			s.slurm, s.reason = []string{"DOWN", "CLOUD"}, "Node unexpectedly rebooted"
			return s
		}(), "power-down i-1 NODE_UNUSABLE"},
		{"failed_and_on_its_way_down", func() scene {
			s := wanted()
			s.slurm, s.reason = []string{"DOWN", "CLOUD", "POWER_DOWN"}, "Node unexpectedly rebooted"
			return s
		}(), ""},
		{"off_after_it_failed", func() scene {
			s := off()
			s.slurm, s.reason = []string{"DOWN", "CLOUD", "POWERED_DOWN"}, "Node unexpectedly rebooted"
			return s
		}(), "recover g-1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			plain, _ := tt.scene.plan()
			tt.scene.slurm = append(slices.Clone(tt.scene.slurm), "MAINTENANCE", "RESERVED")
			got, _ := tt.scene.plan()
			if text(plain) != tt.want || text(got) != tt.want {
				t.Errorf("without a reservation %q, in it %q, want %q", text(plain), text(got), tt.want)
			}
		})
	}
}

// TestB13_SlowBootIsNotDown: a node that does not answer while it comes up has
// all of ResumeTimeout for that, not only SlurmdTimeout (ParallelCluster
// #6842).
func TestB13_SlowBootIsNotDown(t *testing.T) {
	for _, waited := range []time.Duration{fleet.SlurmdTimeout, 29 * time.Minute} {
		s := wanted()
		s.instances[0].ReadyAt = time.Time{}
		s.slurm, s.since = []string{"ALLOCATED", "CLOUD", "POWERING_UP", "NOT_RESPONDING"}, noon.Add(-waited)
		if actions, _ := s.plan(); len(actions) > 0 {
			t.Errorf("after %v: %q", waited, text(actions))
		}
	}
}

// TestD6_DownBeforeCleared: the reason of a node that lost its instance is
// cleared when Slurm has the node down, never before (slurm-operator #2807:
// in between it was idle, and took jobs).
func TestD6_DownBeforeCleared(t *testing.T) {
	s := off()
	s.node.Down = "pcs: instance i-1 is gone"
	for _, state := range [][]string{{"IDLE", "CLOUD", "DRAIN"}, {"IDLE", "CLOUD"}, {"ALLOCATED", "CLOUD", "DRAIN"}} {
		s.slurm, s.reason = state, "pcs: drained"
		if actions, _ := s.plan(); text(actions) != "set-down g-1" {
			t.Errorf("%v: %q, want the node set down", state, text(actions))
		}
	}
	s.node.Down, s.node.FailureCode = "", condition.InstanceLost
	s.slurm, s.reason = []string{"DOWN", "CLOUD", "POWERED_DOWN"}, "pcs: instance i-1 is gone"
	if actions, _ := s.plan(); text(actions) != "recover g-1" {
		t.Errorf("down and without an instance: %q", text(actions))
	}
}

// TestD12_UpdateLeavesCapacity: an update takes no more than half of a group's
// minimum at a time, however long the fresh nodes need to come up
// (slurm-operator 1.0.5 drained groups to nothing); in the end all are fresh.
func TestD12_UpdateLeavesCapacity(t *testing.T) {
	serves := func(o fleet.Observed, g fleet.Group, gone map[string]bool) (count int) {
		for n := 1; n <= g.Min; n++ {
			name := g.NodeName(n)
			seen, known := o.Slurm[name]
			backed := slices.ContainsFunc(o.Instances, func(i fleet.Instance) bool {
				return i.NodeName == name && i.State == fleet.Running && !i.RegisteredAt.IsZero() && i.Failure == ""
			})
			if known && backed && !gone[name] && seen.Ready() && !seen.HasAny("POWER_DOWN", "POWER_DRAIN", "DRAIN") {
				count++
			}
		}
		return count
	}
	t.Run("always", func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			o := anything(t)
			actions, _ := fleet.Plan(o)
			gone := map[string]bool{}
			for _, a := range actions {
				if a.Kind == fleet.Replace && a.Code == condition.GroupUpdated {
					gone[a.Node] = true
				}
			}
			for _, g := range o.Groups {
				before, after := serves(o, g, nil), serves(o, g, gone)
				if after < min(before, g.Min/2) {
					t.Fatalf("of %d nodes of %s that take jobs, minimum %d, the update leaves %d", before, g.Name, g.Min, after)
				}
			}
		})
	})
	t.Run("four", func(t *testing.T) {
		s := wanted()
		s.group.Min, s.group.Max, s.group.Revision = 4, 4, 1
		o := fleet.Observed{Now: noon, Confirmed: noon, Groups: []fleet.Group{s.group}, Nodes: map[string]fleet.Node{}, Slurm: map[string]slurm.Node{}}
		for n := 1; n <= 4; n++ {
			name, i := s.group.NodeName(n), s.instances[0]
			i.ID, i.NodeName = "i-"+name, name
			o.Instances = append(o.Instances, i)
			o.Nodes[name] = fleet.Node{Name: name, GroupID: s.group.ID, Index: n, Want: true}
			o.Slurm[name] = slurm.Node{Name: name, State: []string{"IDLE", "CLOUD"}}
		}
		taken := func() (out []string) {
			actions, _ := fleet.Plan(o)
			for _, a := range actions {
				if a.Kind == fleet.Replace {
					out = append(out, a.Node)
				}
			}
			return out
		}
		first := taken()
		if len(first) != 2 {
			t.Fatalf("the update takes %v at once, want two", first)
		}
		for _, name := range first { // they go, and the fresh ones take long
			o.Slurm[name] = slurm.Node{Name: name, State: []string{"IDLE", "CLOUD", "POWERING_UP", "NOT_RESPONDING"}}
			for k := range o.Instances {
				if o.Instances[k].NodeName == name {
					o.Instances[k].GroupRevision, o.Instances[k].ReadyAt, o.Instances[k].ReleasedAt = 1, time.Time{}, noon
				}
			}
		}
		if more := taken(); len(more) > 0 {
			t.Errorf("while those come up the update takes %v", more)
		}
		o.Slurm[first[0]] = slurm.Node{Name: first[0], State: []string{"IDLE", "CLOUD"}}
		if more := taken(); len(more) != 1 {
			t.Errorf("with one fresh node up the update takes %v, want one", more)
		}
	})
}

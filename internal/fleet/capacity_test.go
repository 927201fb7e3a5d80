package fleet_test

import (
	"testing"
	"time"

	"github.com/openpcs/openpcs/internal/fleet"
)

func TestPoolsRestEverLonger(t *testing.T) {
	g := fleet.Group{InstanceTypes: []string{"big", "small"}, SubnetIDs: []string{"subnet-1"}}
	idle := func(fleet.Pool) bool { return false }
	now := noon
	var waits []time.Duration
	for range 10 {
		if p, ok, _ := g.Choose(now, idle); !ok || p.Type != "big" {
			t.Fatalf("Choose = %+v, %v; want the preferred type, which may be tried again", p, ok)
		}
		g.Refuse("big", "subnet-1", "Full", "no room", false, now)
		if p, ok, _ := g.Choose(now, idle); !ok || p.Type != "small" {
			t.Fatalf("Choose = %+v, %v; want the other type", p, ok)
		}
		// The refusals of launches that went out together are one.
		for range 20 {
			g.Refuse("big", "subnet-1", "Full", "no room", false, now)
		}
		waits = append(waits, g.Refused[0].NotBefore.Sub(now))
		now = g.Refused[0].NotBefore
	}
	for i := 1; i < len(waits); i++ {
		if waits[i] < waits[i-1] || waits[i] > 2*waits[i-1] || waits[i] > 10*time.Minute {
			t.Errorf("waits = %v", waits)
		}
	}
	if !g.Grant("big", "subnet-1") || len(g.Refused) != 0 || g.Grant("big", "subnet-1") {
		t.Errorf("after an instance was had: %+v", g.Refused)
	}
}

func TestHeldWhenEveryPoolRests(t *testing.T) {
	g := fleet.Group{InstanceTypes: []string{"big", "small"}, SubnetIDs: []string{"subnet-1", "subnet-2"}}
	for i, p := range g.Pools() {
		if _, held := g.Held(noon); held {
			t.Fatalf("held with %d pools left", len(g.Pools())-i)
		}
		g.Refuse(p.Type, p.SubnetID, "Full", "no room", i == 1, noon)
	}
	first, held := g.Held(noon)
	if !held || first.Pool.Type != "big" || first.Pool.SubnetID != "subnet-1" {
		t.Errorf("Held = %+v, %v; want the pool that ends its rest first", first, held)
	}
	if final := g.Refused[1].NotBefore.Sub(noon); final != 10*time.Minute {
		t.Errorf("after a final refusal it rests for %v", final)
	}
	if _, held := g.Held(first.NotBefore); held {
		t.Error("still held when a pool may be tried")
	}
}

// One launch at a time goes to a pool that refused.
func TestChooseProbesWithOneLaunch(t *testing.T) {
	g := fleet.Group{InstanceTypes: []string{"big"}, SubnetIDs: []string{"subnet-1"}}
	g.Refuse("big", "subnet-1", "Full", "no room", false, noon)
	later := noon.Add(time.Hour)
	if _, ok, busy := g.Choose(later, func(fleet.Pool) bool { return true }); ok || !busy {
		t.Errorf("Choose = %v, busy %v; want to wait for the launch under way", ok, busy)
	}
	if _, ok, busy := g.Choose(later, func(fleet.Pool) bool { return false }); !ok || busy {
		t.Errorf("Choose = %v, busy %v; want a try", ok, busy)
	}
	if _, ok, busy := g.Choose(noon, func(fleet.Pool) bool { return false }); ok || busy {
		t.Errorf("Choose = %v, busy %v; want nothing while it rests", ok, busy)
	}
}

// R4: when capacity comes back the node is usable at once, without a person.
func TestR4_NodeComesBackWhenCapacityDoes(t *testing.T) {
	w := newWorld(t, fleet.Group{ID: "pcs_g", Name: "g", Status: fleet.Active, Max: 1})
	w.broken = true
	w.slurm["g-1"].busy = true
	w.resume("g-1")
	w.settle()
	if h := w.slurm["g-1"]; h.down || h.power != "down" {
		t.Fatalf("after the failure the node is %+v, want idle~", h)
	}
	w.broken = false
	w.resume("g-1")
	w.settle()
	if i := w.live("g-1"); i == nil || i.ReadyAt.IsZero() || w.node("g-1").Attempts != 0 {
		t.Errorf("the node did not come up: %+v %+v", i, w.node("g-1"))
	}
}

package fleet_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/openpcs/openpcs/internal/condition"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/slurm"
)

const down = "Backing Instance Failed To Bootstrap: i-9"

func TestBreakerOpensAndRestsEverLonger(t *testing.T) {
	g := fleet.Group{Name: "g", InstanceTypes: []string{"big"}, SubnetIDs: []string{"subnet-1"}}
	now := noon
	var rests []time.Duration
	for n := 1; n <= 10; n++ {
		g.Failed(5, condition.BootstrapFailed, "it ended with 1", down, now)
		hold, held := g.Held(now)
		if held != (n >= 5) {
			t.Fatalf("held after %d failures: %v", n, held)
		}
		if !held {
			now = now.Add(time.Second)
			continue
		}
		if hold.Code != condition.BreakerOpen || !strings.HasPrefix(hold.Reason, down+" (BREAKER_OPEN, next try ") || !strings.Contains(hold.Text, "it ended with 1") {
			t.Fatalf("hold = %+v", hold)
		}
		// A job of many nodes that all fail is one try.
		for range 20 {
			g.Failed(5, condition.BootstrapFailed, "likewise", down, now)
		}
		rests = append(rests, hold.NotBefore.Sub(now))
		if _, held := g.Held(hold.NotBefore); held {
			t.Fatal("held when it may try again")
		}
		now = hold.NotBefore
	}
	if got := fmt.Sprint(rests); got != "[1m20s 2m40s 5m20s 10m0s 10m0s 10m0s]" {
		t.Errorf("rests = %s", got)
	}
	if !g.Succeeded() || g.Breaker != (fleet.Breaker{}) || g.Succeeded() {
		t.Errorf("after a success: %+v", g.Breaker)
	}
	// Without one it is endless.
	for range 100 {
		g.Failed(0, condition.BootstrapFailed, "it ended with 1", down, now)
	}
	if _, held := g.Held(now); held || g.Breaker.Open {
		t.Errorf("without a breaker: %+v", g.Breaker)
	}
}

func TestUpdateOfAGroupTriesAtOnce(t *testing.T) {
	g := fleet.Group{ID: "pcs_g", InstanceTypes: []string{"big"}, SubnetIDs: []string{"subnet-1"}}
	g.Refuse("big", "subnet-1", "Full", "no room", false, noon)
	g.Failed(1, condition.BootstrapFailed, "it ended with 1", down, noon)
	nodes := []fleet.Node{
		{Name: "g-1", GroupID: "pcs_g", Attempts: 3, NotBefore: noon.Add(time.Minute), LastFailure: "kept for people"},
		{Name: "g-2", GroupID: "pcs_g"},
		{Name: "h-1", GroupID: "pcs_h", Attempts: 3},
	}
	changed := g.Retry(nodes)
	if _, held := g.Held(noon); held || len(changed) != 1 || changed[0].Attempts != 0 || !changed[0].NotBefore.IsZero() || changed[0].LastFailure == "" {
		t.Errorf("after an update: %+v, %+v", g, changed)
	}
}

// B4: launches of a group that fails are bounded, whatever fails and however
// many nodes want to come up; every minute somebody wants them all.
func TestB4_LaunchesOfAFailingGroupAreBounded(t *testing.T) {
	for name, begin := range map[string]func(*world){
		"launches_fail":         func(w *world) { w.broken = true },
		"agents_never_register": func(w *world) { w.hanging = true },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, fleet.Group{ID: "pcs_g", Name: "g", Status: fleet.Active, Max: 3})
			w.breaker = fleet.DefaultBreaker
			begin(w)
			most := 0
			hours := []int{0, 0, 0}
			for tick := range len(hours) * 3600 {
				w.tick(noon.Add(time.Duration(tick) * time.Second))
				w.clocks()
				for _, name := range []string{"g-1", "g-2", "g-3"} {
					if h := w.slurm[name]; tick%60 == 0 && h.power == "down" && !h.down {
						w.resume(name)
					}
				}
				for range 4 {
					o := w.observe()
					actions, _ := fleet.Plan(o)
					checkSafe(t, o, actions)
					for _, a := range actions {
						w.apply(a)
					}
				}
				starting := 0
				for _, i := range w.o.Instances {
					if i.State.Live() {
						starting++
					}
				}
				if w.group("pcs_g").Breaker.Open {
					most = max(most, starting)
				}
				hours[tick/3600] = w.serial
			}
			for h := len(hours) - 1; h > 0; h-- {
				hours[h] -= hours[h-1]
			}
			t.Logf("launches by hour: %v", hours)
			if hours[0] > 20 || hours[1] < 1 || hours[1] > 7 || hours[2] < 1 || hours[2] > 7 {
				t.Errorf("launches by hour: %v; want a growing distance of up to ten minutes, and no end", hours)
			}
			if most > 3 {
				t.Errorf("%d instances at a time", most)
			}
			// And when the cause is gone all come up, the probe first.
			w.broken, w.hanging = false, false
			for range 3 {
				for _, name := range []string{"g-1", "g-2", "g-3"} {
					if h := w.slurm[name]; h.power == "down" && !h.down {
						w.resume(name)
					}
				}
				w.settle()
			}
			if b := w.group("pcs_g").Breaker; b != (fleet.Breaker{}) {
				t.Errorf("after a success: %+v", b)
			}
			for _, name := range []string{"g-1", "g-2", "g-3"} {
				if i := w.live(name); i == nil || i.ReadyAt.IsZero() {
					t.Errorf("%s is not up", name)
				}
			}
		})
	}
}

// While an open breaker tries with one launch the other nodes wait for it.
func TestOneLaunchTriesForAll(t *testing.T) {
	w := newWorld(t, fleet.Group{ID: "pcs_g", Name: "g", Status: fleet.Active, Max: 3})
	w.group("pcs_g").Breaker = fleet.Breaker{Failures: 5, Open: true, NotBefore: noon, Reason: down}
	for _, n := range []string{"g-1", "g-2", "g-3"} {
		w.resume(n)
	}
	plan := func() {
		actions, _ := fleet.Plan(w.observe())
		for _, a := range actions {
			w.apply(a)
		}
	}
	for range 5 {
		plan()
	}
	if w.serial != 1 {
		t.Fatalf("%d launches, want one", w.serial)
	}
	w.agents()
	for range 3 {
		plan()
	}
	if w.serial != 3 {
		t.Errorf("%d launches after the first came up, want all three", w.serial)
	}
}

// B1: Slurm clears flags of a node that did not come up, and its call that says
// so can be lost: what it shows counts, by the flags that matter, whatever
// others it has.
func TestB1_HungBootstrapCountsAsFailure(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		state := []string{"DOWN", "CLOUD", "POWERED_DOWN"}
		for _, flag := range []string{"NOT_RESPONDING", "DRAIN", "PLANNED", "NEVER_HEARD_OF", "MAINTENANCE", "RESERVED"} {
			if rapid.Bool().Draw(t, flag) {
				state = append(state, flag)
			}
		}
		i := fleet.Instance{ID: "i-1", State: fleet.Running, GroupID: "pcs_g", NodeName: "g-1", StartedAt: noon.Add(-5 * time.Minute)}
		if rapid.Bool().Draw(t, "registered") {
			i.RegisteredAt = noon.Add(-4 * time.Minute)
		}
		o := fleet.Observed{
			Now: noon, Confirmed: noon, Instances: []fleet.Instance{i},
			Groups: []fleet.Group{{ID: "pcs_g", Name: "g", Max: 1, Status: fleet.Active, InstanceTypes: []string{"big"}, SubnetIDs: []string{"subnet-1"}}},
			Nodes:  map[string]fleet.Node{"g-1": {Name: "g-1", GroupID: "pcs_g", Index: 1, Want: true, WantAt: noon.Add(-5 * time.Minute)}},
			Slurm:  map[string]slurm.Node{"g-1": {Name: "g-1", State: state, Reason: rapid.SampledFrom([]string{"ResumeTimeout reached", "Not responding", "bad disk [alice]"}).Draw(t, "reason")}},
			Since:  map[string]time.Time{"g-1": noon.Add(-fleet.LostHook)},
		}
		actions, _ := fleet.Plan(o)
		for _, a := range actions {
			if a.Kind == fleet.Fail && a.Instance == "i-1" && a.Code == condition.ResumeTimeout {
				return
			}
		}
		t.Fatalf("%v: %s", state, text(actions))
	})
}

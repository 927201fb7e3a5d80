package fleet_test

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/openpcs/openpcs/internal/fleet"
)

// However launches fail, and however that changes, with jobs waiting all the
// time: no hour has more than a few for each node and each pool.
func TestLaunchesPerHourAreBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		most := rapid.IntRange(1, 3).Draw(t, "max")
		w := newWorld(t, fleet.Group{ID: "pcs_g", Name: "g", Status: fleet.Active, Max: most, Min: rapid.IntRange(0, most).Draw(t, "min")})
		// A node: 5 s, 10 s, ... 10 min apart, or 10 minutes until it counts as
		// hanging. A pool likewise, and each launch that hangs makes its pool a
		// good one again: at most seven times an hour and node, with as many
		// refusals after it as fit into the ten minutes.
		bound := 15*most + 2*(15+7*7*most)
		const step = 10 * time.Second
		var starts []int // up to each step
		var change time.Time
		for now := noon; now.Before(noon.Add(90 * time.Minute)); now = now.Add(step) {
			if !now.Before(change) {
				mode := rapid.SampledFrom([]string{"broken", "hang", "full", "half full and broken", "half full and hang"}).Draw(t, "mode")
				change = now.Add(time.Duration(rapid.IntRange(1, 3600).Draw(t, "seconds")) * time.Second)
				w.broken, w.hanging = mode == "broken" || mode == "half full and broken", mode == "hang" || mode == "half full and hang"
				w.full["big"], w.full["small"] = mode[0] != 'b' && mode != "hang", mode == "full"
			}
			w.tick(now)
			w.clocks()
			for n := range most {
				name := w.o.Groups[0].NodeName(n + 1)
				if h := w.slurm[name]; h.power == "down" && !h.down {
					h.busy = true
					w.resume(name)
				}
			}
			for range 3 {
				o := w.observe()
				actions, _ := fleet.Plan(o)
				checkSafe(t, o, actions)
				for _, a := range actions {
					w.apply(a)
				}
			}
			starts = append(starts, w.starts)
			if before := len(starts) - 1 - int(time.Hour/step); before >= 0 && starts[len(starts)-1]-starts[before] > bound {
				t.Fatalf("%d launches in an hour, at most %d are expected", starts[len(starts)-1]-starts[before], bound)
			}
		}
		if w.starts == 0 {
			t.Fatalf("nothing was launched in 90 minutes")
		}
	})
}

func TestLaunchesAreBoundedWhenAllFail(t *testing.T) {
	for _, tt := range []struct {
		name  string
		group fleet.Group
		hang  bool
	}{
		{"a_job_waits_for_the_node", fleet.Group{ID: "pcs_g", Name: "g", Status: fleet.Active, Max: 1}, false},
		{"a_static_node", fleet.Group{ID: "pcs_g", Name: "g", Status: fleet.Active, Min: 1, Max: 1}, false},
		{"agents_never_register", fleet.Group{ID: "pcs_g", Name: "g", Status: fleet.Active, Max: 1}, true},
		{"no_capacity", fleet.Group{ID: "pcs_f", Name: "g", Status: fleet.Active, Max: 1}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, tt.group)
			w.broken, w.hanging = !tt.hang, tt.hang
			w.breaker = fleet.DefaultBreaker
			if tt.group.ID == "pcs_f" {
				w.broken, w.full["big"] = false, true
				w.full["small"] = true
			}
			hours := []int{0, 0, 0}
			for tick := range len(hours) * 3600 {
				w.tick(noon.Add(time.Duration(tick) * time.Second))
				w.clocks()
				if h := w.slurm["g-1"]; tt.group.Min == 0 && h.power == "down" && !h.down {
					w.resume("g-1") // the job is there all the time
				}
				for range 4 {
					o := w.observe()
					actions, _ := fleet.Plan(o)
					checkSafe(t, o, actions)
					for _, a := range actions {
						w.apply(a)
					}
				}
				hours[tick/3600] = w.starts
			}
			for h := len(hours) - 1; h > 0; h-- {
				hours[h] -= hours[h-1]
			}
			t.Logf("launches by hour: %v", hours)
			if tt.group.ID == "pcs_f" { // both pools are tried
				for h := range hours {
					hours[h] /= 2
				}
			}
			if hours[0] < 3 || hours[0] > 15 || hours[1] < 2 || hours[1] > 7 || hours[2] < 2 || hours[2] > 7 {
				t.Errorf("launches by hour: %v; want a growing distance of up to ten minutes, and no end", hours)
			}
		})
	}
}

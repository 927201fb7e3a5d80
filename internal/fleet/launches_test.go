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

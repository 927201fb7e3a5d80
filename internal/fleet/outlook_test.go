package fleet_test

import (
	"strings"
	"testing"
	"time"

	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/slurm"
)

func TestOutlook(t *testing.T) {
	for _, tt := range []struct {
		name string
		base func() scene
		edit func(*scene)
		want string
	}{
		{"off", off, nil, "It is off. It is launched when Slurm gives it to a job."},
		{"launching", wanted, func(s *scene) { s.instances[0].State, s.instances[0].StartedAt = fleet.Pending, time.Time{} }, "is being launched"},
		{"booting", wanted, func(s *scene) { s.instances[0].RegisteredAt = time.Time{} }, "given up at 12:09:00 (in 9m0s)"},
		{"early", wanted, func(s *scene) { s.node.Early, s.node.WantAt = true, noon }, "Without one it is ended at 12:00:10 (in 10s)"},
		{"starting", wanted, func(s *scene) { s.instances[0].ReadyAt = time.Time{} }, "its slurmd is starting"},
		{"busy", wanted, nil, "It stays up while it has jobs, and 10m0s longer."},
		{"idle", wanted, func(s *scene) { s.slurm[0] = "IDLE" }, "suspends it once it has been so for 10m0s"},
		{"idle_with_an_idle_time_of_its_group", wanted, func(s *scene) { s.slurm[0], s.group.IdleTime = "IDLE", 20*time.Second }, "suspends it once it has been so for 20s"},
		{"static", wanted, func(s *scene) { s.group.Min = 1 }, "the group's minimum of 1"},
		{"outdated", wanted, func(s *scene) { s.group.Revision++ }, "a fresh instance takes its place"},
		{"drained", wanted, func(s *scene) { s.slurm = append(s.slurm, "DRAIN") }, "left to whoever drained it"},
		{"ending", wanted, func(s *scene) { s.instances[0].State = fleet.ShuttingDown }, "is being ended"},
		{"reclaimed", wanted, func(s *scene) { s.instances[0].ReclaimAt = noon.Add(time.Minute) }, "takes its Spot instance back at 12:01:00 (in 1m0s)"},
		{"held", off, func(s *scene) {
			s.group.Refused = rest("big/subnet-1", "big/subnet-2", "small/subnet-1", "small/subnet-2")
		}, "no capacity (Full). One launch tries again at 12:01:00 (in 1m0s)"},
		{"resting", off, func(s *scene) { s.node.NotBefore = noon.Add(20 * time.Second) }, "the next launch is at 12:00:20 (in 20s) at the earliest"},
		{"resting_within_the_minimum", off, func(s *scene) { s.group.Min, s.node.NotBefore = 1, noon.Add(20*time.Second) }, "the next launch is at 12:00:20 (in 20s): it is within the group's minimum of 1."},
		{"wanted", off, func(s *scene) { s.node.Want = true }, "about to be launched"},
		{"down", off, func(s *scene) { s.slurm[0], s.reason = "DOWN", "person" }, "left to whoever set it so"},
		{"down_while_up", wanted, func(s *scene) { s.slurm[0], s.reason = "DOWN", "person" }, "left to whoever set it so"},
		{"unusable", wanted, func(s *scene) { s.slurm[0], s.reason = "DOWN", "Not responding" }, "Slurm took it out of service, so its instance i-1 is about to be ended"},
		{"to_be_recovered", off, func(s *scene) { s.slurm[0], s.reason = "DOWN", "pcs: gone" }, "It is down for pcs: gone, and about to be given back"},
		{"wanted_without_capacity", off, func(s *scene) {
			s.node.Want, s.group.Refused = true, rest("big/subnet-1", "big/subnet-2", "small/subnet-1", "small/subnet-2")
		}, "no capacity (Full)"},
		{"above_the_maximum", off, func(s *scene) { s.group.Max = 0 }, "slurmctld does not have it"},
		{"to_be_set_down", off, func(s *scene) { s.node.Down = "pcs: gone" }, "about to be told: pcs: gone"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := tt.base()
			if tt.edit != nil {
				tt.edit(&s)
			}
			o := fleet.Observed{
				Now: s.now, Instances: s.instances, Nodes: map[string]fleet.Node{"g-1": s.node},
				Slurm: map[string]slurm.Node{"g-1": {Name: "g-1", State: s.slurm, Reason: s.reason}},
			}
			got := strings.Join(fleet.Outlook(o, s.group, 1, 10*time.Minute), " ")
			if !strings.Contains(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

package fleet_test

import (
	"testing"
	"time"

	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/slurm"
)

// D7: what openpcs or Slurm said of a node goes with the instance that it was
// said of; what a person said stays. Slurm puts its own behind a reason.
func TestD7_OnlyOwnReasonsAreCleared(t *testing.T) {
	for _, tt := range []struct {
		reason  string
		cleared bool // by openpcs, of a node that is down and has no instance
		at      bool // at once, while it is still powering down
	}{
		{fleet.BootReason("i-059b4b99b4f2e9739"), true, false},
		{fleet.BootReason("i-059b4b99b4f2e9739") + " : Not responding", true, false},
		{fleet.BootReason("i-059b4b99b4f2e9739") + " (BREAKER_OPEN, next try 12:00:00 UTC)", true, false},
		{fleet.LaunchReason("InsufficientInstanceCapacity"), true, false},
		{"pcs: instance i-1 is gone, it shut itself down", true, true},
		{"ResumeTimeout reached", true, true},
		{"Not responding", true, true},
		{"Node unexpectedly rebooted", true, true},
		{"Low RealMemory (reported:1 < 100.00% of configured:2)", true, true},
		{"bad disk [alice]", false, true},
		{"backing up the disks", false, true},
		{"see ticket: Backing Instance Failed To Bootstrap: i-1", false, true},
		{"pcs", false, true},
		{"", false, true},
	} {
		o := fleet.Observed{
			Now: noon, Confirmed: noon,
			Groups: []fleet.Group{{ID: "pcs_g", Name: "g", Max: 1, Status: fleet.Active, InstanceTypes: []string{"big"}, SubnetIDs: []string{"subnet-1"}}},
			Slurm:  map[string]slurm.Node{"g-1": {Name: "g-1", State: []string{"DOWN", "CLOUD", "POWERED_DOWN"}, Reason: tt.reason}},
			Since:  map[string]time.Time{"g-1": noon.Add(-time.Hour)},
		}
		recovers := func() bool {
			actions, _ := fleet.Plan(o)
			return len(actions) == 1 && actions[0].Kind == fleet.Recover
		}
		if got := recovers(); got != tt.cleared {
			t.Errorf("%q is cleared: %v", tt.reason, got)
		}
		// What did not come up waits for SuspendTimeout, and Slurm keeps its
		// reason meanwhile and after; nothing else waits.
		o.Slurm["g-1"] = slurm.Node{Name: "g-1", State: []string{"IDLE", "CLOUD", "POWERING_DOWN"}, Reason: tt.reason}
		if got := recovers(); got != tt.at {
			t.Errorf("%q: off at once: %v", tt.reason, got)
		}
	}
}

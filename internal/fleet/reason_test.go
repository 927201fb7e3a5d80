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
		openpcs bool // set by openpcs itself
	}{
		{fleet.BootReason("i-059b4b99b4f2e9739"), true, true},
		{fleet.BootReason("i-059b4b99b4f2e9739") + " : Not responding", true, true},
		{fleet.BootReason("i-059b4b99b4f2e9739") + " (BREAKER_OPEN, next try 12:00:00 UTC)", true, true},
		{fleet.LaunchReason("InsufficientInstanceCapacity"), true, true},
		{"pcs: instance i-1 is gone, it shut itself down", true, true},
		{"ResumeTimeout reached", true, false},
		{"Not responding", true, false},
		{"Node unexpectedly rebooted", true, false},
		{"Low RealMemory (reported:1 < 100.00% of configured:2)", true, false},
		{"bad disk [alice]", false, false},
		{"backing up the disks", false, false},
		{"see ticket: Backing Instance Failed To Bootstrap: i-1", false, false},
		{"pcs", false, false},
		{"", false, false},
	} {
		o := fleet.Observed{
			Now: noon, Confirmed: noon,
			Groups: []fleet.Group{{ID: "pcs_g", Name: "g", Max: 1, Status: fleet.Active, InstanceTypes: []string{"big"}, SubnetIDs: []string{"subnet-1"}}},
			Slurm:  map[string]slurm.Node{"g-1": {Name: "g-1", State: []string{"DOWN", "CLOUD", "POWERED_DOWN"}, Reason: tt.reason}},
			Since:  map[string]time.Time{"g-1": noon.Add(-time.Hour)},
		}
		actions, _ := fleet.Plan(o)
		cleared := len(actions) == 1 && actions[0].Kind == fleet.Recover
		if cleared != tt.cleared || fleet.OpenpcsReason(tt.reason) != tt.openpcs {
			t.Errorf("%q is cleared: %v (%s), and set by openpcs: %v", tt.reason, cleared, text(actions), fleet.OpenpcsReason(tt.reason))
		}
	}
}

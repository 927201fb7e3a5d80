package agent

import (
	"reflect"
	"strings"
	"testing"
)

func TestCanaryLog(t *testing.T) {
	for _, tt := range []struct {
		name, log string
		up        bool
		errors    []string
		refusal   string
	}{
		{"runs", "slurmctld: error: read_slurm_conf: default partition not set.\n" +
			"[2026-11-30T12:56:04.528+00:00] Running as primary controller\n[x] fatal: of after it\n", true, nil, ""},
		{
			"runs and complains", "[2026-11-30T12:56:04.528+00:00] error: PriorityWeightAge can only be used with SlurmDBD, ignoring\nRunning as primary controller",
			true,
			[]string{"error: PriorityWeightAge can only be used with SlurmDBD, ignoring"},
			"",
		},
		{
			"is refused", "slurmctld: slurmctld version 24.11.5 started on cluster old(2736)\nslurmctld: error: PreemptMode=X invalid\nslurmctld: fatal: Unable to process configuration file\n",
			false,
			[]string{"error: PreemptMode=X invalid", "fatal: Unable to process configuration file"},
			"error: PreemptMode=X invalid | fatal: Unable to process configuration file",
		},
		{
			"is refused at length", "error: a\nerror: b\nerror: Node gone-1 has vanished from configuration\nerror: c\nfatal: d\n",
			false,
			[]string{"error: a", "error: b", "error: c", "fatal: d"},
			"error: b | error: c | fatal: d",
		},
		{"dies without a word", "[1] Recovered state of 3 nodes\n\n", false, nil, `slurmctld ended with code 139 after "Recovered state of 3 nodes"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			log, up := readCanary(strings.NewReader(tt.log))
			if up != tt.up || !reflect.DeepEqual(log.errors, tt.errors) {
				t.Fatalf("up is %v with %q, want %v with %q", up, log.errors, tt.up, tt.errors)
			}
			if !up && log.refusal(139) != tt.refusal {
				t.Errorf("the refusal is %q, want %q", log.refusal(139), tt.refusal)
			}
		})
	}
}

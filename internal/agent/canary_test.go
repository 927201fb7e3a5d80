package agent

import (
	"context"
	"errors"
	"os/exec"
	"reflect"
	"strings"
	"testing"
	"time"
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

// A refusal is what slurmctld itself says or dies of. A canary that was ended
// by somebody else, or could not even start, has refused nothing.
func TestCanaryVerdict(t *testing.T) {
	for _, tt := range []struct {
		name, script string
		want         Verdict
		err          string
	}{
		{"runs", "echo 'error: ignoring X'; echo 'Running as primary controller'; exec tail -f /dev/null", Verdict{Complaints: []string{"error: ignoring X"}}, ""},
		{"exits by itself", "echo 'fatal: Unable to process configuration file'; exit 1", Verdict{Refusal: "fatal: Unable to process configuration file"}, ""},
		{"slurmctld dies of SIGSEGV", "echo 'Recovered jobs'; exit 139", Verdict{Refusal: `slurmctld ended with code 139 after "Recovered jobs"`}, ""},
		{"slurmctld dies of SIGABRT", "echo 'Recovered jobs'; exit 134", Verdict{Refusal: `slurmctld ended with code 134 after "Recovered jobs"`}, ""},
		{"slurmctld is killed, or memory is short", "echo 'error: ignoring X'; exit 137", Verdict{}, "the canary's slurmctld was killed (killed)"},
		{"slurmctld is terminated", "exit 143", Verdict{}, "the canary's slurmctld was killed (terminated)"},
		{"slurmctld ends in good order", "echo 'Terminate signal received'; exit 0", Verdict{}, `the canary's slurmctld ended in good order after "Terminate signal received", as if somebody had asked it to`},
		{"the canary is killed", "echo 'error: ignoring X'; kill -KILL $$", Verdict{}, "the canary was killed"},
		{"the canary is terminated", "kill -TERM $$", Verdict{}, "the canary was killed"},
		{"the canary cannot start it", "echo 'mount /etc/slurm: no space' >&2; exit 1", Verdict{}, "mount /etc/slurm: no space"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			verdict, err := hear(t.Context(), exec.CommandContext(t.Context(), "sh", "-c", tt.script))
			said := ""
			if err != nil {
				said = err.Error()
			}
			if !reflect.DeepEqual(verdict, tt.want) || said != tt.err {
				t.Errorf("it says %+v, %q, want %+v, %q", verdict, said, tt.want, tt.err)
			}
		})
	}
	t.Run("takes too long", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		cmd := exec.CommandContext(ctx, "sh", "-c", "exec tail -f /dev/null")
		if verdict, err := hear(ctx, cmd); !errors.Is(err, context.DeadlineExceeded) || verdict.Refusal != "" {
			t.Errorf("it says %+v, %v", verdict, err)
		}
	})
}

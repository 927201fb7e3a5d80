package fleet_test

import (
	"testing"

	"github.com/openpcs/openpcs/internal/fleet"
)

func TestScriptOutcomeWhy(t *testing.T) {
	for _, tt := range []struct {
		name    string
		exit    int
		failure string
		want    string
	}{
		{"exit", 7, "script 'set up' failed with exit status ExitStatus(unix_wait_status(1792))", "exit code 7"},
		{"signal", 137, "script 'set up' failed with exit status ExitStatus(unix_wait_status(9)): it was ended by signal 9 (killed)", "exit code 137: it was ended by signal 9 (killed)"},
		{"not_to_be_run", 127, "script 'set up' cannot be run: the interpreter that its first line names does not exist", "script 'set up' cannot be run: the interpreter that its first line names does not exist (exit code 127)"},
		{"not_downloaded", fleet.NotRun, "download s3://a/b: 404 NoSuchBucket: The specified bucket does not exist.", "download s3://a/b: 404 NoSuchBucket: The specified bucket does not exist"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := fleet.ScriptOutcome{Name: "set up", Stage: fleet.NodeReady, ExitCode: tt.exit, Failure: tt.failure, OnError: fleet.OnErrorContinue}
			if got := o.Why(); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

package agent

import (
	"testing"

	"github.com/openpcs/openpcs/internal/condition"
)

func TestSlurmdCode(t *testing.T) {
	for said, want := range map[string]condition.Code{
		"[2026-11-30T17:30:15.817] error: _fetch_child: failed to fetch remote configs: Unable to contact slurm controller (connect failure) | error: _establish_configuration: failed to load configs. Retrying in 10 seconds.": condition.ControllerNotReached,
		"error: _fetch_child: failed to fetch remote configs: Incompatible versions of client and server | error: _establish_configuration: failed to load configs":                                                              condition.SlurmVersionMismatch,
		"error: unpack_header: protocol_version 10240 not supported":               condition.SlurmVersionMismatch,
		"fatal: can't stat gres.conf file /dev/nvidia0: No such file or directory": condition.SlurmdFailed,
		"": condition.SlurmdFailed,
	} {
		if got := slurmdCode(said); got != want {
			t.Errorf("%q: %s, want %s", said, got, want)
		}
	}
}

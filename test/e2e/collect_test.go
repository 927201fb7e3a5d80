//go:build e2e

package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/openpcs/openpcs/internal/audit"
)

// TestL2_LogsOverRestartAndRotation: the control plane is killed, slurmctld's
// log is rotated three times while it is away and once while it is there; each
// audit record is kept once, in the order in which slurmctld wrote it.
func TestL2_LogsOverRestartAndRotation(t *testing.T) {
	c := shared(t)
	all, err := rows[instanceRow]("instances")
	at := slices.IndexFunc(all, func(i instanceRow) bool { return i.Name == "slurmctld-primary" && i.Cluster == c.name })
	must(t, err == nil && at >= 0, "the controller is not listed: %v %v", all, err)
	controller := func(script string) string {
		r := incus("exec", "--project", project, "--cwd", "/", all[at].ID, "--", "sh", "-ec", script)
		return succeed(t, r).out
	}
	// As logrotate does it.
	const rotate = `cd /var/log/slurm
for n in 4 3 2 1; do test ! -e slurmctld.log.$n || mv slurmctld.log.$n slurmctld.log.$((n+1)); done
mv slurmctld.log slurmctld.log.1
scontrol ping >/dev/null # it still writes to the old one
systemctl kill --kill-whom=main --signal=SIGUSR2 slurmctld
until test -s slurmctld.log; do scontrol ping >/dev/null; done
`
	c.killed(t, func(func(argv ...string) result) {
		for range 3 {
			controller(rotate)
		}
	})
	controller(rotate)
	// All that slurmctld wrote until now is in the answer to the next question.
	wrote := lines(controller(`cd /var/log/slurm; for n in 5 4 3 2 1; do test ! -e slurmctld.log.$n || cat slurmctld.log.$n; done; cat slurmctld.log`))
	var want []string
	for _, line := range wrote {
		if stamp, rest, ok := strings.Cut(line, " AUDIT_RPCS: "); ok && strings.HasSuffix(stamp, "]") {
			_, rest, _ = strings.Cut(rest, "msg_type=")
			want = append(want, rest)
		}
	}
	found, err := rows[audit.Row]("audit", c.id, "--limit", "100000")
	must(t, err == nil, "%v", err)
	slices.SortFunc(found, func(a, b audit.Row) int { return int(a.Seq - b.Seq) })
	must(t, len(want) > 50 && len(found) >= len(want), "%d of %d audit records are kept", len(found), len(want))
	for k, line := range want {
		r := found[k]
		got := fmt.Sprintf("%s uid=%d client=[%s] ", r.Type, r.UID, r.Client)
		must(t, strings.HasPrefix(line, got) && r.Seq == int64(k+1), "record %d is %s, slurmctld wrote %s", r.Seq, got, line)
	}
	t.Logf("%d audit records over four rotations and a kill", len(want))
	r := succeed(t, openpcs("audit", "verify", c.id))
	must(t, strings.Contains(r.out, "whole") && !strings.Contains(r.out, "damaged"), "%s", r)
}

// TestL15_SlurmctldNeverWaitsForAReader: nobody reads the log, and slurmctld
// answers: it writes to a file.
func TestL15_SlurmctldNeverWaitsForAReader(t *testing.T) {
	c := shared(t)
	c.killed(t, func(login func(argv ...string) result) {
		for range 20 {
			r := login("timeout", "10", "scontrol", "ping")
			must(t, r.code == 0 && strings.Contains(r.out, "is UP"), "%s", r)
		}
		r := login("timeout", "10", "scontrol", "show", "config")
		must(t, strings.Contains(r.out, "SlurmctldLogFile        = /var/log/slurm/slurmctld.log"), "%s", r)
	})
	r := succeed(t, c.controller("find /var/log/slurm ! -type f ! -type d"))
	must(t, r.out == "", "it is no plain file: %s", r)
	eventually(t, time.Minute, "the log is read again", func() error {
		r := openpcs("audit", c.id, "--since", "5s")
		return contains(r, "audit records")
	})
}

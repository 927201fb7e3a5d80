package fleet_test

import (
	"testing"

	"github.com/openpcs/openpcs/internal/condition"
	"github.com/openpcs/openpcs/internal/fleet"
)

// The words are those of slurmdbd and MariaDB, as they were seen.
func TestCrashCondition(t *testing.T) {
	const columns = "exited 1: error: mysql_query failed: 5027 Number of columns in result (=1) set execeeds maxmimum allowed number of columns (=0)"
	for _, tc := range []struct {
		daemon, said string
		want         condition.Code
	}{
		{"slurmctld", "killed SEGV", condition.SlurmctldCrashed},
		{"slurmdbd", "killed SEGV", condition.SlurmdbdCrashed},
		{"slurmdbd", columns, condition.DatabaseClientFault},
		{"slurmdbd", `error: mysql_query failed: 1114 The table 'acct_job_table' is full`, condition.DatabaseFull},
		{"slurmdbd", `error: mysql_query failed: 1021 Disk full (/var/lib/slurm-accounting/mariadb)`, condition.DatabaseFull},
		{"slurmrestd", "killed SEGV", condition.SlurmrestdCrashed},
	} {
		if got := fleet.CrashCondition(tc.daemon, tc.said); got != tc.want {
			t.Errorf("%s, %q: %s, want %s", tc.daemon, tc.said, got, tc.want)
		}
	}
}

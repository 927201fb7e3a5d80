package fleet

import (
	"strings"

	"github.com/openpcs/openpcs/internal/condition"
)

// CrashCondition is the condition of a daemon of a cluster's controller that ended
// with words like these: Slurm's, or those of the database behind slurmdbd.
func CrashCondition(daemon, said string) condition.Code {
	switch {
	case daemon == "slurmdbd" && databaseFull(said):
		return condition.DatabaseFull
	case daemon == "slurmdbd" && clientFault(said):
		return condition.DatabaseClientFault
	case daemon == "slurmdbd":
		return condition.SlurmdbdCrashed
	case daemon == "slurmrestd":
		return condition.SlurmrestdCrashed
	default:
		return condition.SlurmctldCrashed
	}
}

// databaseFull recognises MariaDB's errors 1021 and 1114, and the one of its
// system calls, for a disk that is full.
func databaseFull(said string) bool {
	for _, words := range []string{"No space left on device", "mysql_query failed: 1021 ", "mysql_query failed: 1114 ", "Disk full", "Errcode: 28", "error: 28"} {
		if strings.Contains(said, words) {
			return true
		}
	}
	return false
}

// clientFault recognises the error that libmariadb 3.4.9 gives for any result
// on a connection whose first try was refused: it has lost its own limit of
// columns with the options of that try, and takes it for zero.
func clientFault(said string) bool {
	return strings.Contains(said, "mysql_query failed: 5027 ") && strings.Contains(said, "columns (=0)")
}

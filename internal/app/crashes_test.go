package app

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/openpcs/openpcs/internal/condition"
	"github.com/openpcs/openpcs/internal/store"
)

func notice(t *testing.T, at time.Time, kind, detail string) store.Event {
	t.Helper()
	doc, err := json.Marshal(map[string]string{"detail": detail})
	if err != nil {
		t.Fatal(err)
	}
	return store.Event{At: at, Subject: "cluster", Kind: kind, Detail: doc}
}

// Crashes of late count, each daemon's by themselves; the last one says which
// condition it is.
func TestCrashes(t *testing.T) {
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	events := []store.Event{
		notice(t, now.Add(-11*time.Minute), "slurmdbd-ended", "long ago"),
		notice(t, now.Add(-2*time.Minute), "slurmdbd-ended", "killed SEGV"),
		notice(t, now.Add(-time.Minute), "slurmdbd-ended", "exited 1: error: mysql_query failed: 5027 Number of columns in result (=1) set execeeds maxmimum allowed number of columns (=0)"),
		notice(t, now.Add(-time.Minute), "slurmctld-ended", "killed KILL"),
	}
	if n, code, _ := crashes(events, "slurmdbd", now); n != 2 || code != condition.DatabaseClientFault {
		t.Errorf("slurmdbd: %d, %s", n, code)
	}
	if n, code, last := crashes(events, "slurmctld", now); n != 1 || code != condition.SlurmctldCrashed || last != "killed KILL" {
		t.Errorf("slurmctld: %d, %s, %q", n, code, last)
	}
	if n, _, _ := crashes(events, "slurmrestd", now); n != 0 {
		t.Errorf("slurmrestd: %d", n)
	}
}

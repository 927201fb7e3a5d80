package control_test

import (
	"strings"
	"testing"
	"time"

	"github.com/openpcs/openpcs/internal/agent"
	"github.com/openpcs/openpcs/internal/condition"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/imds"
	"github.com/openpcs/openpcs/internal/slurm"
	"github.com/openpcs/openpcs/internal/store"
)

// switchAccounting asks for accounting and the REST API as UpdateCluster does.
func (s *site) switchAccounting(on bool) {
	s.update(func(tx *store.Tx) error {
		c, err := fleet.Clusters.Get(tx, clusterID)
		if err != nil {
			return err
		}
		c.Accounting.On, c.REST, c.Status, c.ModifiedAt = on, on, fleet.Updating, time.Now().UTC()
		return fleet.Clusters.Put(tx, c)
	})
	s.plane().Wake(clusterID)
}

// The agent gets slurmdbd.conf apart from what slurmctld hands to nodes, and is
// told whether slurmrestd runs; the hash changes with each.
func TestAccountingIsPushed(t *testing.T) {
	run(t, dynamic(1), func(s *site) {
		given := func() (conf agent.Config) {
			s.ctld.with(func() { conf = s.ctld.given })
			return conf
		}
		before := given()
		if before.Accounting != nil || before.REST {
			t.Fatalf("without: %s, %v", before.Accounting, before.REST)
		}
		s.switchAccounting(true)
		s.within(10*time.Second, "it is in force", func() bool { return s.cluster().Status == fleet.Active })
		on := given()
		if !strings.Contains(string(on.Accounting), "StorageType=") || !on.REST || on.Hash == before.Hash {
			t.Errorf("with: %s, %v, %s", on.Accounting, on.REST, on.Hash)
		}
		if _, ok := on.Files[slurm.SlurmdbdConf]; ok || !strings.Contains(string(on.Files["slurm.conf"]), "AccountingStorageType=") {
			t.Errorf("files: %v", on.Files)
		}
		if g := s.cluster().Good; g == nil || !g.Accounting.On || !g.REST {
			t.Errorf("in force: %+v", g)
		}
		s.switchAccounting(false)
		s.within(10*time.Second, "it is off", func() bool { return s.cluster().Status == fleet.Active })
		if off := given(); off.Accounting != nil || off.REST || off.Hash != before.Hash {
			t.Errorf("without again: %s, %v", off.Accounting, off.REST)
		}
	})
}

// A database that does not start is shown as what it is, and nodes are looked
// after meanwhile; when it starts, the update goes on.
func TestAccountingThatDoesNotStart(t *testing.T) {
	run(t, dynamic(1), func(s *site) {
		s.ctld.with(func() {
			s.ctld.trouble = &agent.Trouble{Code: condition.AccountingFailed, Message: "start the database of accounting: no"}
		})
		s.switchAccounting(true)
		// At once: the agent has waited for it long enough.
		s.within(time.Second, "the cluster shows it", func() bool {
			c := s.cluster()
			return c.Trouble != nil && c.Trouble.Code == condition.AccountingFailed && c.Status == fleet.Updating
		})
		s.ctld.submit(false, "g-1")
		s.within(30*time.Second, "the node comes up", func() bool { return s.ctld.state("g-1") == up })
		s.ctld.with(func() { s.ctld.trouble = nil })
		s.within(time.Minute, "the update ends", func() bool { c := s.cluster(); return c.Trouble == nil && c.Status == fleet.Active })
	})
}

// A daemon that goes on not to start ends the update: nobody could take it back
// while the cluster is UPDATING. The former settings are in force again, and the
// controller is told, as it may run with the new ones (REST) as far as it could.
func TestDaemonThatNeverStarts(t *testing.T) {
	for _, code := range []condition.Code{condition.AccountingFailed, condition.RESTFailed} {
		t.Run(string(code), func(t *testing.T) {
			run(t, dynamic(1), func(s *site) {
				var before int
				s.ctld.with(func() {
					before = s.ctld.configures
					s.ctld.trouble = &agent.Trouble{Code: code, Message: "start it: no"}
				})
				s.switchAccounting(true)
				s.wait(4 * time.Minute)
				if c := s.cluster(); c.Status != fleet.Updating {
					t.Fatalf("given up too early: %s %v", c.Status, c.Errors)
				}
				s.within(2*time.Minute, "the update is given up", func() bool { return s.cluster().Status == fleet.UpdateFailed })
				if c := s.cluster(); len(c.Errors) != 1 || c.Errors[0].Code != code || !strings.Contains(c.Errors[0].Message, "start it: no") {
					t.Errorf("errorInfo: %v", c.Errors)
				}
				s.ctld.with(func() { s.ctld.trouble = nil })
				s.within(30*time.Second, "the former settings are pushed", func() (pushed bool) {
					s.ctld.with(func() { pushed = s.ctld.configures > before && s.ctld.given.Accounting == nil && !s.ctld.given.REST })
					return pushed
				})
				if c := s.cluster(); c.Accounting.On || c.REST || c.Trouble != nil {
					t.Errorf("after it was given up: %+v, %v, %v", c.Accounting, c.REST, c.Trouble)
				}
				s.switchAccounting(true) // and it can be tried again
				s.within(time.Minute, "it is in force", func() bool { return s.cluster().Status == fleet.Active })
			})
		})
	}
}

// A controller that cannot be reached ends no update: it could not go back either.
func TestUpdateOutlivesAnUnreachableController(t *testing.T) {
	run(t, dynamic(1), func(s *site) {
		s.ctld.with(func() { s.ctld.away = true })
		s.switchAccounting(true)
		s.within(time.Minute, "the cluster shows it", func() bool {
			c := s.cluster()
			return c.Trouble != nil && c.Trouble.Code == condition.ControllerUnreachable
		})
		s.wait(15 * time.Minute)
		if c := s.cluster(); c.Status != fleet.Updating {
			t.Errorf("the cluster is %s", c.Status)
		}
		// What is wrong may be another thing now, and that is told.
		s.ctld.with(func() {
			s.ctld.away = false
			s.ctld.trouble = &agent.Trouble{Code: condition.AccountingFailed, Message: "no"}
		})
		s.within(time.Minute, "the update is given up", func() bool { return s.cluster().Status == fleet.UpdateFailed })
	})
}

// A trouble that becomes another one is told as that.
func TestTroubleBecomesAnother(t *testing.T) {
	run(t, dynamic(1), func(s *site) {
		is := func(code condition.Code) func() bool {
			return func() bool { c := s.cluster(); return c.Trouble != nil && c.Trouble.Code == code }
		}
		s.ctld.with(func() { s.ctld.away = true })
		s.switchAccounting(true)
		s.within(time.Minute, "unreachable", is(condition.ControllerUnreachable))
		s.ctld.with(func() {
			s.ctld.away = false
			s.ctld.trouble = &agent.Trouble{Code: condition.AccountingFailed, Message: "no"}
		})
		s.within(time.Minute, "no accounting", is(condition.AccountingFailed))
	})
}

// That the database has no room is known until the controller says otherwise, also
// one that began meanwhile and does not know what was said; each change is told
// once.
func TestDatabaseFull(t *testing.T) {
	run(t, dynamic(1), func(s *site) {
		for _, tt := range []struct {
			kind, detail, want string
			events             int
		}{
			{"slurmdbd-disk-free", "900 MiB free", "", 0},
			{"slurmdbd-disk-full", "3 MiB free", "3 MiB free", 1},
			{"slurmdbd-disk-full", "2 MiB free", "2 MiB free", 1},
			{"slurmdbd-disk-free", "900 MiB free", "", 2},
		} {
			if err := s.hook(imds.Hook{ID: tt.kind + tt.detail, Kind: tt.kind, Detail: tt.detail}); err != nil {
				t.Fatal(err)
			}
			told := 0
			s.view(func(tx *store.Tx) error {
				events, err := tx.Events(clusterID, "cluster", 1000)
				for _, e := range events {
					if strings.HasPrefix(e.Kind, "slurmdbd-disk-") {
						told++
					}
				}
				return err
			})
			if got := s.cluster().DatabaseFull; got != tt.want || told != tt.events {
				t.Errorf("after %s (%s): %q, told %d times; want %q, %d times", tt.kind, tt.detail, got, told, tt.want, tt.events)
			}
		}
	})
}

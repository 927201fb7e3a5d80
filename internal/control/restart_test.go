package control_test

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/openpcs/openpcs/internal/compute"
	"github.com/openpcs/openpcs/internal/compute/fake"
	"github.com/openpcs/openpcs/internal/condition"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/imds"
	"github.com/openpcs/openpcs/internal/secretsmanager"
	"github.com/openpcs/openpcs/internal/store"
)

// A control plane that dies at any point and comes back launches nothing
// twice and loses nothing.
func TestKilledAtAnyPoint(t *testing.T) {
	slow := func(op fake.Op, d time.Duration) fake.Options {
		return fake.Options{Latency: func(o fake.Op, id string) time.Duration {
			if o == op && strings.HasPrefix(id, "i-") {
				return d
			}
			return 0
		}}
	}
	for _, tt := range []struct {
		name string
		fake fake.Options
		kill func(s *site) // gets the site with a job submitted; leaves it killed
	}{
		{"before_the_hook_came", fake.Options{}, func(s *site) {
			s.kill() // the agent keeps trying
			s.wait(20 * time.Second)
		}},
		{"after_the_hook_was_taken", fake.Options{}, func(s *site) {
			s.mu.Lock()
			s.unheard = "resume"
			s.mu.Unlock()
			s.within(3*time.Second, "the hook is taken", func() bool { return s.node("g-1").Want })
			s.kill() // the agent has no answer, and says it again
		}},
		{"after_assign_before_launch", slow(fake.OpLaunch, 10*time.Second), func(s *site) {
			s.within(5*time.Second, "assigned", func() bool { return s.live("g-1").ID != "" })
			s.kill()
			if i := s.live("g-1"); i.State != fleet.Pending || !i.StartedAt.IsZero() || len(s.present()) != 0 {
				s.t.Fatalf("not in time: %+v, %v", i, s.present())
			}
		}},
		{"after_the_launch_before_its_record", fake.Options{}, func(s *site) {
			var once sync.Once
			done := make(chan struct{})
			s.provider.onLaunch(func(string) {
				once.Do(func() {
					s.mu.Lock()
					s.stop() // whatever comes after the launch is cut
					s.mu.Unlock()
					close(done)
				})
			})
			<-done
			s.kill()
			s.provider.onLaunch(nil)
			if i := s.live("g-1"); !i.StartedAt.IsZero() || len(s.present()) != 1 {
				s.t.Fatalf("not in time: %+v, %v", i, s.present())
			}
		}},
		{"while_it_boots", fake.Options{}, func(s *site) {
			s.within(5*time.Second, "started", func() bool { return !s.live("g-1").StartedAt.IsZero() })
			s.kill()
			if i := s.live("g-1"); !i.RegisteredAt.IsZero() {
				s.t.Fatal("not in time")
			}
			s.wait(5 * time.Second)
		}},
		{"before_it_is_marked_up", fake.Options{}, func(s *site) {
			s.within(5*time.Second, "registered", func() bool { return !s.live("g-1").RegisteredAt.IsZero() })
			s.kill()
		}},
		{"while_it_runs", fake.Options{}, func(s *site) {
			s.wait(20 * time.Second)
			s.kill()
			s.wait(time.Hour)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			o := dynamic(2)
			o.fake = tt.fake
			run(t, o, func(s *site) {
				s.ctld.submit(false, "g-1")
				tt.kill(s)
				s.restart()
				s.settle()
				s.settle()
				if st := s.ctld.state("g-1"); st != up {
					t.Fatalf("the node is %s\n%s", st, s.log)
				}
				all := s.instances("")
				if len(all) != 1 || all[0].State != fleet.Running || all[0].ReadyAt.IsZero() {
					t.Errorf("instances = %v, want one that is ready", brief(all))
				}
				if got := s.present(); len(got) != 1 || got[0] != all[0].ID {
					t.Errorf("the provider has %v", got)
				}
				if n := s.provider.Launches(); n != 2 {
					t.Errorf("%d instances were ever made, want the controller and one", n)
				}
				if s.ctld.lost("g-1") != 0 {
					t.Error("the job was requeued")
				}
				// And it still goes when it is idle.
				s.ctld.suspend("g-1")
				s.settle()
				if len(s.present()) != 0 || s.ctld.state("g-1") != off {
					t.Errorf("after the job: %v, %s", s.present(), s.ctld.state("g-1"))
				}
			})
		})
	}
}

func TestKilledWhileAnInstanceEnds(t *testing.T) {
	for _, tt := range []struct {
		name  string
		after bool // the provider has done it, the record is missing
	}{{"before_the_termination", false}, {"after_the_termination", true}} {
		t.Run(tt.name, func(t *testing.T) {
			o := dynamic(1)
			if !tt.after {
				o.fake.Latency = func(op fake.Op, _ string) time.Duration {
					if op == fake.OpTerminate {
						return 5 * time.Second
					}
					return 0
				}
			}
			run(t, o, func(s *site) {
				s.ctld.submit(false, "g-1")
				s.wait(20 * time.Second)
				if tt.after {
					s.provider.onTerminate(func(string) {
						s.mu.Lock()
						s.stop()
						s.mu.Unlock()
					})
				}
				s.ctld.suspend("g-1")
				s.wait(2 * time.Second)
				s.kill()
				s.provider.onTerminate(nil)
				if i := s.live("g-1"); i.State != fleet.ShuttingDown || (len(s.present()) == 0) != tt.after {
					t.Fatalf("not in time: %+v %v", i, s.present())
				}
				s.wait(10 * time.Second)
				s.restart()
				s.settle()
				if i := s.instances("g-1"); len(i) != 1 || i[0].State != fleet.Terminated || len(s.present()) != 0 {
					t.Errorf("instances = %v, present %v", brief(i), s.present())
				}
				s.ctld.submit(false, "g-1")
				s.within(10*time.Second, "up again", func() bool { return s.ctld.state("g-1") == up })
			})
		})
	}
}

// A controller and a cluster that were accepted just before the end.
func TestKilledBeforeTheClusterWasMade(t *testing.T) {
	o := options{groups: []fleet.Group{{Name: "s", Min: 1, Max: 1}}, notYet: true}
	o.fake.Latency = func(op fake.Op, _ string) time.Duration {
		if op == fake.OpLaunch {
			return 3 * time.Second
		}
		return 0
	}
	run(t, o, func(s *site) {
		for range 3 {
			s.start()
			s.wait(time.Second)
			s.kill()
		}
		s.start()
		s.settle()
		if s.cluster().Status != fleet.Active || s.ctld.state("s-1") != "IDLE+CLOUD" || s.provider.Launches() != 2 {
			t.Errorf("the cluster is %s, s-1 %s, %d launches", s.cluster().Status, s.ctld.state("s-1"), s.provider.Launches())
		}
	})
}

// A node that came up and one that was lost while nobody looked.
func TestLostWhileAway(t *testing.T) {
	run(t, dynamic(2), func(s *site) {
		s.ctld.submit(false, "g-1", "g-2")
		s.wait(20 * time.Second)
		keep := s.live("g-2").ID
		s.kill()
		s.provider.Vanish(s.live("g-1").ID, true)
		s.wait(10 * time.Second)
		s.restart()
		s.within(15*time.Second, "the loss is seen", func() bool { return s.ctld.lost("g-1") == 1 })
		s.settle()
		if s.live("g-2").ID != keep || s.ctld.lost("g-2") != 0 {
			t.Error("the healthy node was touched")
		}
	})
}

func TestOrphansAreRemoved(t *testing.T) {
	run(t, dynamic(1), func(s *site) {
		s.ctld.submit(false, "g-1")
		s.wait(20 * time.Second)
		keep := s.live("g-1").ID
		spec, _ := s.provider.Spec(keep)
		for id, labels := range map[string]map[string]string{
			"i-orphan": {"cluster": clusterID, "kind": "node"}, "i-old": {"cluster": "pcs_gone000000", "kind": "node"}, "foreign": nil,
		} {
			s.launchBehind(id, spec, labels)
		}
		s.settle()
		all, err := s.provider.List(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		var left []string
		for _, i := range all {
			left = append(left, i.ID)
		}
		slices.Sort(left)
		want := []string{"ctl-1", "foreign", keep}
		slices.Sort(want)
		if !slices.Equal(left, want) {
			t.Errorf("left are %v, want %v: what openpcs did not make is not its to end", left, want)
		}
	})
}

// launchBehind makes an instance behind the control plane's back.
func (s *site) launchBehind(id string, like compute.Spec, labels map[string]string) {
	s.t.Helper()
	like.ID, like.Labels = id, labels
	like.Address = netip.Prefix{}
	if err := s.provider.Provider.Launch(context.Background(), like); err != nil {
		s.t.Fatal(err)
	}
}

func TestControllerComesBack(t *testing.T) {
	run(t, dynamic(1), func(s *site) {
		s.ctld.submit(false, "g-1")
		s.wait(20 * time.Second)
		node := s.live("g-1").ID
		for name, lose := range map[string]func(){
			"crash":  func() { _ = s.provider.Crash("ctl-1") },
			"vanish": func() { s.provider.Vanish("ctl-1", false) },
			"silent": func() { s.provider.Vanish("ctl-1", true) },
		} {
			lose()
			s.settle()
			found := false
			all, _ := s.provider.List(context.Background())
			for _, i := range all {
				found = found || (i.ID == "ctl-1" && i.State == compute.Running)
			}
			if !found {
				t.Errorf("%s: the controller is not back", name)
			}
		}
		if s.live("g-1").ID != node || s.ctld.lost("g-1") != 0 {
			t.Error("the loss of the controller touched a node")
		}
		// While the controller does not answer nodes are not touched either.
		s.ctld.with(func() { s.ctld.away = true })
		s.wait(30 * time.Minute)
		s.ctld.with(func() { s.ctld.away = false })
		s.settle()
		if s.live("g-1").ID != node || s.ctld.lost("g-1") != 0 || s.ctld.state("g-1") != up {
			t.Error("an unreachable slurmctld cost a node")
		}
	})
}

func TestFoldersOfACluster(t *testing.T) {
	run(t, options{}, func(s *site) {
		base := filepath.Join(s.dir, "clusters", clusterID)
		for dir, mode := range map[string]os.FileMode{"..": 0o700, "": 0o700, "home": 0o755, "home/ubuntu": 0o750, "state": 0o700, "accounting": 0o700} { // C13
			info, err := os.Stat(filepath.Join(base, dir))
			if err != nil || !info.IsDir() || info.Mode().Perm() != mode {
				t.Errorf("%q: %v %v, want %o", dir, info, err, mode)
			}
		}
		spec, _ := s.provider.Spec("ctl-1")
		var targets []string
		for _, m := range spec.Mounts {
			targets = append(targets, m.Target)
		}
		slices.Sort(targets)
		if spec.Role != "controller" || spec.Hostname != "slurmctld-primary" || !slices.Equal(targets, []string{"/home", "/var/lib/slurm-accounting", "/var/spool/slurmctld"}) || spec.Labels["kind"] != "controller" {
			t.Errorf("controller = %+v", spec)
		}
	})
}

func TestGroupsComeAndGo(t *testing.T) {
	run(t, options{groups: []fleet.Group{{Name: "g", Max: 2}, {Name: "s", Min: 1, Max: 1}}, queues: map[string][]string{"q": {"g"}}}, func(s *site) {
		s.ctld.submit(false, "g-1")
		s.wait(20 * time.Second)
		configures := s.ctld.configured()
		// C14: what is new is in Slurm at once.
		s.update(func(tx *store.Tx) error {
			g, err := fleet.Groups.Get(tx, "pcs_g")
			if err != nil {
				return err
			}
			fresh := s.group(fleet.Group{Name: "n", Max: 3}, g.SubnetIDs[0])
			q := fleet.Queue{ID: "pcs_qn", ClusterID: clusterID, Region: region, Name: "qn", Status: fleet.Creating, CreatedAt: time.Now(), ModifiedAt: time.Now(), GroupIDs: []string{"pcs_n"}}
			return errors.Join(fleet.Groups.Put(tx, fresh), fleet.Queues.Put(tx, q))
		})
		s.plane().Wake(clusterID)
		s.wait(time.Second)
		if s.ctld.state("n-3") != off || !slices.Contains(s.ctld.partitions(), "qn") || s.groupStatus("pcs_n") != fleet.Active {
			t.Errorf("the new group is %s, n-3 %s, partitions %v", s.groupStatus("pcs_n"), s.ctld.state("n-3"), s.ctld.partitions())
		}
		if n := s.ctld.configured() - configures; n != 1 {
			t.Errorf("one change gave %d configurations", n)
		}
		s.wait(20 * time.Minute)
		if n := s.ctld.configured() - configures; n != 1 {
			t.Errorf("without any change there were %d more configurations (C4)", n-1)
		}
		// A queue with jobs is emptied before its partition goes (D13).
		s.ctld.with(func() { s.ctld.queued["q"] = true })
		s.setStatus("q", fleet.Deleting)
		s.wait(30 * time.Second)
		if slices.Contains(s.ctld.partitions(), "q") || s.ctld.ran("scancel --partition q") != 1 {
			t.Errorf("partitions %v, commands %v", s.ctld.partitions(), s.commands())
		}
		s.view(func(tx *store.Tx) error {
			if _, err := fleet.Queues.Get(tx, "pcs_qq"); !errors.Is(err, store.ErrNotFound) {
				t.Errorf("the queue is still there: %v", err)
			}
			return nil
		})
		// A group being deleted takes its instances with it, and only those.
		s.setStatus("g", fleet.Deleting)
		s.settle()
		if s.ctld.state("g-1") != "gone" || s.live("g-1").ID != "" || s.groupStatus("pcs_g") != "" {
			t.Errorf("the group is %q, g-1 %s with %+v", s.groupStatus("pcs_g"), s.ctld.state("g-1"), s.live("g-1"))
		}
		if s.live("s-1").ReadyAt.IsZero() || len(s.present()) != 1 {
			t.Errorf("the static node of another group: %+v, present %v", s.live("s-1"), s.present())
		}
		if n := s.node("g-1"); n.Name != "" {
			t.Errorf("the node is remembered: %+v", n)
		}
		// The same name again starts from nothing (I13).
		s.update(func(tx *store.Tx) error {
			other, err := fleet.Groups.Get(tx, "pcs_s")
			return errors.Join(err, fleet.Groups.Put(tx, s.group(fleet.Group{Name: "g", Max: 1}, other.SubnetIDs[0])))
		})
		s.plane().Wake(clusterID)
		s.wait(time.Second)
		s.ctld.submit(false, "g-1")
		s.within(10*time.Second, "the new group's node is up", func() bool { return s.ctld.state("g-1") == up })
	})
}

func (d *slurmctld) partitions() (out []string) {
	d.with(func() { out = slices.Clone(d.parts) })
	return out
}

func (d *slurmctld) configured() (n int) {
	d.with(func() { n = d.configures })
	return n
}

func (s *site) groupStatus(id string) (st fleet.Status) {
	s.view(func(tx *store.Tx) error {
		g, err := fleet.Groups.Get(tx, id)
		if errors.Is(err, store.ErrNotFound) {
			return nil
		}
		st = g.Status
		return err
	})
	return st
}

// setStatus changes the status of the group or queue, as the API does.
func (s *site) setStatus(name string, st fleet.Status) {
	s.t.Helper()
	s.update(func(tx *store.Tx) error {
		if q, err := fleet.Queues.Get(tx, "pcs_q"+name); err == nil {
			q.Status, q.ModifiedAt = st, time.Now().UTC()
			return fleet.Queues.Put(tx, q)
		}
		g, err := fleet.Groups.Get(tx, "pcs_"+name)
		if err != nil {
			return err
		}
		g.Status, g.ModifiedAt = st, time.Now().UTC()
		return fleet.Groups.Put(tx, g)
	})
	s.plane().Wake(clusterID)
}

func TestLoweredMaximum(t *testing.T) {
	run(t, dynamic(2), func(s *site) {
		s.ctld.submit(false, "g-1", "g-2")
		s.wait(20 * time.Second)
		s.update(func(tx *store.Tx) error {
			g, err := fleet.Groups.Get(tx, "pcs_g")
			g.Max, g.Status, g.ModifiedAt = 1, fleet.Updating, time.Now().UTC()
			return errors.Join(err, fleet.Groups.Put(tx, g))
		})
		s.plane().Wake(clusterID)
		s.settle()
		if s.live("g-1").ReadyAt.IsZero() || s.live("g-2").ID != "" || s.ctld.state("g-2") != "gone" || len(s.present()) != 1 {
			t.Errorf("g-1 %+v, g-2 %+v %s", s.live("g-1"), s.live("g-2"), s.ctld.state("g-2"))
		}
		if st := s.groupStatus("pcs_g"); st != fleet.Active {
			t.Errorf("the group is %s", st)
		}
	})
}

func TestUpdatedGroupReplacesItsNodes(t *testing.T) {
	run(t, options{groups: []fleet.Group{{Name: "s", Min: 1, Max: 1}}}, func(s *site) {
		old := s.live("s-1").ID
		s.update(func(tx *store.Tx) error {
			g, err := fleet.Groups.Get(tx, "pcs_s")
			g.Launch.Tags, g.Revision, g.Status, g.ModifiedAt = map[string]string{"team": "y"}, 1, fleet.Updating, time.Now().UTC()
			return errors.Join(err, fleet.Groups.Put(tx, g))
		})
		s.plane().Wake(clusterID)
		s.within(2*time.Minute, "a new instance", func() bool { i := s.live("s-1"); return i.ID != old && !i.ReadyAt.IsZero() })
		if i := s.live("s-1"); i.Tags["team"] != "y" || i.GroupRevision != 1 {
			t.Errorf("instance = %+v", i)
		}
		s.settle()
		if n := s.provider.Launches(); n != 3 {
			t.Errorf("%d launches", n)
		}
	})
}

func TestRefusedConfiguration(t *testing.T) {
	run(t, dynamic(1), func(s *site) {
		s.ctld.submit(false, "g-1")
		s.wait(20 * time.Second)
		hash := s.cluster().ConfigHash
		s.ctld.with(func() {
			s.ctld.refuse = func(conf string) string {
				if strings.Contains(conf, "NodeName=bad-") {
					return "fatal: no such thing"
				}
				return ""
			}
		})
		s.update(func(tx *store.Tx) error {
			g, err := fleet.Groups.Get(tx, "pcs_g")
			return errors.Join(err, fleet.Groups.Put(tx, s.group(fleet.Group{Name: "bad", Max: 1}, g.SubnetIDs[0])))
		})
		s.plane().Wake(clusterID)
		s.wait(time.Second)
		s.view(func(tx *store.Tx) error {
			g, err := fleet.Groups.Get(tx, "pcs_bad")
			if g.Status != fleet.CreateFailed || len(g.Errors) != 1 || !strings.Contains(g.Errors[0].Message, "CreateComputeNodeGroup failed.") || !strings.Contains(g.Errors[0].Message, "no such thing") {
				t.Errorf("group = %+v", g)
			}
			return err
		})
		if s.cluster().Status != fleet.Active || s.cluster().ConfigHash != hash || s.groupStatus("pcs_g") != fleet.Active {
			t.Error("a refused group touched the rest")
		}
		if s.live("g-1").ReadyAt.IsZero() {
			t.Error("a refused configuration cost a node")
		}
		// The failed one is out of the configuration, so the rest goes on.
		s.setStatus("g", fleet.Updating)
		s.wait(time.Second)
		if st := s.groupStatus("pcs_g"); st != fleet.Active {
			t.Errorf("another update is %s", st)
		}
		s.setStatus("bad", fleet.Deleting)
		s.settle()
		if st := s.groupStatus("pcs_bad"); st != "" {
			t.Errorf("the failed group cannot be deleted: %s", st)
		}
	})
}

// What the API accepted while slurmctld was thinking is not undone by its no.
func TestRefusalDoesNotUndoADeletion(t *testing.T) {
	run(t, dynamic(1), func(s *site) {
		deleted := false
		s.ctld.with(func() {
			s.ctld.refuse = func(conf string) string {
				if !strings.Contains(conf, "NodeName=bad-") {
					return ""
				}
				if !deleted {
					deleted = true
					// As if the user deleted it in this very moment.
					s.update(func(tx *store.Tx) error {
						g, err := fleet.Groups.Get(tx, "pcs_bad")
						g.Status, g.ModifiedAt = fleet.Deleting, time.Now().UTC().Add(time.Millisecond)
						return errors.Join(err, fleet.Groups.Put(tx, g))
					})
				}
				return "fatal: no such thing"
			}
		})
		s.update(func(tx *store.Tx) error {
			g, err := fleet.Groups.Get(tx, "pcs_g")
			return errors.Join(err, fleet.Groups.Put(tx, s.group(fleet.Group{Name: "bad", Max: 1}, g.SubnetIDs[0])))
		})
		s.plane().Wake(clusterID)
		s.settle()
		if st := s.groupStatus("pcs_bad"); st != "" {
			t.Errorf("the deleted group is %s", st)
		}
	})
}

func TestClusterDeletion(t *testing.T) {
	run(t, options{groups: []fleet.Group{{Name: "s", Min: 1, Max: 1}}}, func(s *site) {
		id := s.live("s-1").ID
		_ = s.provider.SetConsole(id, []byte("bye"))
		s.setStatus("s", fleet.Deleting)
		s.settle()
		if len(s.present()) != 0 {
			t.Fatalf("instances are left: %v", s.present())
		}
		key := s.cluster().KeyARN
		s.update(func(tx *store.Tx) error {
			c, err := fleet.Clusters.Get(tx, clusterID)
			c.Status, c.ModifiedAt = fleet.Deleting, time.Now().UTC()
			return errors.Join(err, fleet.Clusters.Put(tx, c))
		})
		s.plane().Wake(clusterID)
		s.settle()
		all, err := s.provider.List(context.Background())
		if err != nil || len(all) != 0 {
			t.Errorf("left at the provider: %v, %v", all, err)
		}
		if _, err := os.Stat(filepath.Join(s.dir, "clusters", clusterID)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the cluster's folders: %v", err)
		}
		s.view(func(tx *store.Tx) error {
			if _, err := fleet.Clusters.Get(tx, clusterID); !errors.Is(err, store.ErrNotFound) {
				t.Errorf("the cluster: %v", err)
			}
			if _, err := secretsmanager.Value(tx, key, ""); !errors.Is(err, store.ErrNotFound) {
				t.Errorf("the cluster's key: %v", err)
			}
			if nodes, _ := fleet.Nodes.Of(tx, clusterID); len(nodes) != 0 {
				t.Errorf("nodes: %+v", nodes)
			}
			return nil
		})
		// The instance's end stays visible, and is forgotten in its time even
		// though its cluster is gone.
		s.wait(2 * time.Hour)
		if left := s.instances(""); len(left) != 0 {
			t.Errorf("instances of a deleted cluster are never forgotten: %v", brief(left))
		}
		// A hook of a cluster that is gone does no harm.
		if err := s.hook(imds.Hook{Kind: "resume", Nodes: "s-1"}); err != nil {
			t.Logf("hook of a cluster that is gone: %v", err)
		}
		s.settle()
		if len(s.present()) != 0 {
			t.Error("a cluster that is gone launches")
		}
	})
}

func TestHookWhileTheGroupIsBeingDeleted(t *testing.T) {
	o := dynamic(1)
	o.fake.Latency = func(op fake.Op, _ string) time.Duration {
		if op == fake.OpTerminate {
			return 10 * time.Second
		}
		return 0
	}
	run(t, o, func(s *site) {
		s.ctld.submit(false, "g-1")
		s.wait(20 * time.Second)
		s.setStatus("g", fleet.Deleting)
		s.wait(time.Second)
		if st := s.ctld.state("g-1"); st == "gone" {
			t.Error("the node is taken out of Slurm while its instance still runs")
		}
		if err := s.hook(imds.Hook{Kind: "resume", Nodes: "g-1"}); err != nil {
			t.Fatal(err)
		}
		s.settle()
		if n := s.provider.Launches(); n != 2 || len(s.present()) != 0 {
			t.Errorf("%d launches, present %v", n, s.present())
		}
	})
}

// R1: the hook answers at once, however slow the provider is.
func TestR1_HookAnswersAtOnce(t *testing.T) {
	o := dynamic(20)
	o.fake.Latency = func(op fake.Op, id string) time.Duration {
		if op == fake.OpLaunch && strings.HasPrefix(id, "i-") {
			return 5 * time.Minute
		}
		return 0
	}
	run(t, o, func(s *site) {
		for _, kind := range []string{"expect", "resume", "suspend", "resume-fail"} {
			began := time.Now() // of the bubble: what is waited for would show
			if err := s.hook(imds.Hook{Kind: kind, Nodes: "g-[1-20]"}); err != nil {
				t.Fatal(err)
			}
			if d := time.Since(began); d > 0 {
				t.Errorf("%s took %v", kind, d)
			}
		}
		began := time.Now()
		s.kill()
		if d := time.Since(began); d > time.Second {
			t.Errorf("the control plane took %v to stop while it launched", d)
		}
	})
}

func TestGoWaitsForTheResume(t *testing.T) {
	run(t, dynamic(1), func(s *site) {
		if err := s.hook(imds.Hook{Kind: "expect", Nodes: "g-1"}); err != nil {
			t.Fatal(err)
		}
		s.wait(100 * time.Millisecond)
		i := s.live("g-1")
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := s.plane().Go(ctx, i); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("before the resume: %v", err)
		}
		done := make(chan time.Duration, 1)
		began := time.Now()
		go func() {
			if err := s.plane().Go(context.Background(), i); err == nil {
				done <- time.Since(began)
			}
		}()
		s.wait(2 * time.Second)
		if err := s.hook(imds.Hook{Kind: "resume", Nodes: "g-1"}); err != nil {
			t.Fatal(err)
		}
		if d := <-done; d != 2*time.Second {
			t.Errorf("the agent may go after %v, want 2s", d)
		}
		if err := s.plane().Go(context.Background(), i); err != nil {
			t.Errorf("after the resume: %v", err)
		}
	})
}

func TestBootstrapSaysWhatToJoin(t *testing.T) {
	run(t, options{groups: []fleet.Group{{Name: "g", Min: 1, Max: 1}, {Name: "login", Min: 1, Max: 1}}, queues: map[string][]string{"q": {"g"}}}, func(s *site) {
		for node, login := range map[string]bool{"g-1": false, "login-1": true} {
			i := s.live(node)
			b, err := s.plane().Bootstrap(context.Background(), i)
			if err != nil || b.Login != login || b.ClusterID != clusterID || b.InstanceID != i.ID || b.Region != region || b.Endpoint != "http://10.77.0.1:7300" || b.InstanceType != "t3.micro" {
				t.Errorf("%s: %+v, %v", node, b, err)
			}
		}
	})
}

func TestImageWithoutAgentIsExplained(t *testing.T) {
	run(t, dynamic(1), func(s *site) {
		s.act("hang")
		s.ctld.submit(false, "g-1")
		s.wait(3 * time.Second)
		id := s.live("g-1").ID
		log := "/usr/bin/cloud-init-per: /opt/aws/pcs/bin/pcs_bootstrap_init.sh: No such file or directory\n"
		if err := s.plane().Failed(context.Background(), id, log); err != nil {
			t.Fatal(err)
		}
		s.within(10*time.Second, "the node is down", func() bool { return s.ctld.lost("g-1") == 1 })
		i := s.instances("g-1")[0]
		if i.FailureCode != "IMAGE_WITHOUT_AGENT" || !strings.Contains(i.Failure, imageID) || !strings.Contains(i.Failure, "describe-images") {
			t.Errorf("instance = %+v", i)
		}
	})
}

// C11: while the controller does not answer the cluster says so, and no more
// once it does; jobs have nothing to do with it.
func TestC11_ControllerAwayIsShown(t *testing.T) {
	run(t, dynamic(1), func(s *site) {
		s.ctld.submit(false, "g-1")
		s.within(5*time.Second, "the node is up", func() bool { return s.ctld.state("g-1") == up })
		s.settle()
		before := s.live("g-1").ID
		s.ctld.with(func() { s.ctld.away = true })
		s.restart() // it has to ask slurmctld now
		s.within(30*time.Second, "the cluster shows it", func() bool {
			c := s.cluster()
			return c.Trouble != nil && c.Trouble.Code == condition.ControllerUnreachable && c.Status == fleet.Active
		})
		s.settle()
		s.ctld.with(func() { s.ctld.away = false })
		s.within(time.Minute, "it is shown no more", func() bool { return s.cluster().Trouble == nil })
		if i := s.live("g-1"); i.ID != before || s.ctld.lost("g-1") != 0 {
			t.Errorf("the node has %s, before %s; its job was lost %d times", i.ID, before, s.ctld.lost("g-1"))
		}
	})
}

package control_test

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/openpcs/openpcs/internal/compute"
	"github.com/openpcs/openpcs/internal/compute/fake"
	"github.com/openpcs/openpcs/internal/control"
	"github.com/openpcs/openpcs/internal/fault"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/fleet/fleettest"
	"github.com/openpcs/openpcs/internal/imds"
	"github.com/openpcs/openpcs/internal/store"
)

// record has each commit of the site's state file held to the declared state
// machines, and then told to the seam of the control planes.
func (s *site) record() {
	if s.states == nil {
		s.states = fleettest.New(s.t.Errorf, func() *store.Store {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.store
		}, maker)
	}
	s.store.SetSeam(func(point string) {
		s.states.Seam(point)
		if s.seam != nil {
			s.seam(point)
		}
	})
}

// maker is the part that made a commit. What the tests write themselves they
// write as the API, as the agents, or to set something up.
func maker(point string) fleet.By {
	switch {
	case strings.HasSuffix(point, "control.Hook"):
		return fleet.BySlurm
	case strings.HasPrefix(point, "commit/control."):
		return fleet.ByControl
	}
	return ""
}

// The pages name constants of this package with their values.
func TestTimersOfTheStatesAreTheConstants(t *testing.T) {
	named := map[string]bool{}
	for _, m := range fleet.Machines() {
		for _, timer := range m.Timers {
			source := timer.Source[strings.LastIndexByte(timer.Source, ' ')+1:]
			if !strings.HasPrefix(source, "control.") {
				continue
			}
			named[source] = true
			if d, ok := control.Timers[source]; !ok || d != timer.Length {
				t.Errorf("the %s's timer %q is %v; the constant %s is %v", m.Of, timer.Name, timer.Length, source, d)
			}
		}
	}
	for name := range control.Timers {
		if !named[name] {
			t.Errorf("no page names %s", name)
		}
	}
}

// Between them these lives take every step of clusters, groups, queues and
// instances that this package makes.
func TestEveryStepIsTaken(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("the control plane gives a cluster's home to the user 1000, which only root may do")
	}
	var mu sync.Mutex
	seen := map[fleettest.Step]int{}
	slow := func(o options, op fake.Op, d time.Duration) options {
		o.fake.Latency = func(is fake.Op, id string) time.Duration {
			if is == op && strings.HasPrefix(id, "i-") {
				return d
			}
			return 0
		}
		return o
	}
	failing := func(o options, f func(compute.Spec) error) options {
		o.fake.LaunchError = func(spec compute.Spec) error {
			if spec.Role != "node" {
				return nil
			}
			return f(spec)
		}
		return o
	}
	isUp := func(s *site, node string) {
		s.t.Helper()
		s.ctld.submit(false, node)
		s.within(10*time.Second, node+" is up", func() bool { return s.ctld.state(node) == up && !s.live(node).ReadyAt.IsZero() })
	}
	ended := func(s *site, code string) {
		s.t.Helper()
		s.within(2*time.Minute, "an instance ends with "+code, func() bool {
			for _, i := range s.instances("g-1") {
				if i.State == fleet.Terminated && i.StateCode == code {
					return true
				}
			}
			return false
		})
	}
	all := func(s *site, want fleet.Status) {
		s.t.Helper()
		s.within(time.Minute, "all are "+string(want), func() bool {
			return s.cluster().Status == want && s.groupStatus("pcs_g") == want && s.queueStatus("pcs_qq") == want
		})
	}
	setAll := func(s *site, st fleet.Status) {
		s.t.Helper()
		s.change(func(tx *store.Tx) error {
			c, err := fleet.Clusters.Get(tx, clusterID)
			c.Status, c.ModifiedAt = st, time.Now().UTC()
			return errors.Join(err, fleet.Clusters.Put(tx, c))
		})
		s.setStatus("g", st)
		s.setStatus("q", st)
	}
	notYet := dynamic(1)
	notYet.notYet = true
	t.Run("lives", func(t *testing.T) {
		for name, life := range map[string]struct {
			options options
			live    func(s *site)
		}{
			"a_whole_life": {crashSite(), func(s *site) {
				s.start()
				lifeOfACluster(s)
				s.wait(fleet.KeepTerminated + time.Minute)
				if left := s.instances(""); len(left) > 0 {
					s.t.Errorf("never forgotten: %v", brief(left))
				}
			}},
			"refused": {dynamic(1), func(s *site) {
				setAll(s, fleet.Updating)
				all(s, fleet.Active)
				s.ctld.with(func() { s.ctld.refuse = func(string) string { return "fatal: no such thing" } })
				setAll(s, fleet.Updating)
				all(s, fleet.UpdateFailed)
				s.change(func(tx *store.Tx) error {
					now := time.Now().UTC()
					return errors.Join(
						fleet.Groups.Put(tx, s.group(fleet.Group{Name: "bad", Max: 1}, s.groupNow("g").SubnetIDs[0])),
						fleet.Queues.Put(tx, fleet.Queue{ID: "pcs_qbad", ClusterID: clusterID, Region: region, Name: "bad", Status: fleet.Creating, CreatedAt: now, ModifiedAt: now}),
					)
				})
				bad := func() bool {
					return s.groupStatus("pcs_bad") == fleet.CreateFailed && s.queueStatus("pcs_qbad") == fleet.CreateFailed
				}
				s.within(time.Minute, "what is new is refused", bad)
				s.change(func(tx *store.Tx) error {
					g, err := fleet.Groups.Get(tx, "pcs_bad")
					g.Status, g.ModifiedAt = fleet.Updating, time.Now().UTC()
					q, err2 := fleet.Queues.Get(tx, "pcs_qbad")
					q.Status, q.ModifiedAt = fleet.Updating, time.Now().UTC()
					return errors.Join(err, err2, fleet.Groups.Put(tx, g), fleet.Queues.Put(tx, q))
				})
				s.within(time.Minute, "it is refused again", func() bool { return s.ctld.configures > 0 && bad() })
			}},
			"a_controller_that_never_comes": {notYet, func(s *site) {
				s.ctld.with(func() { s.ctld.away = true })
				s.start()
				s.within(6*time.Minute, "the cluster's creation fails", func() bool { return s.cluster().Status == fleet.CreateFailed })
			}},
			"no_room": {failing(dynamic(1), (&rooms{full: always}).launch), func(s *site) {
				s.ctld.submit(false, "g-1")
				ended(s, "Server.InsufficientInstanceCapacity")
			}},
			"a_quota": {failing(dynamic(1), func(compute.Spec) error {
				return &compute.CapacityError{Code: "VcpuLimitExceeded", Err: errors.New("the quota is 0")}
			}), func(s *site) {
				s.ctld.submit(false, "g-1")
				ended(s, "Server.VcpuLimitExceeded")
			}},
			"no_room_but_in_a_pool_that_is_tried": {twoTypes(2), func(s *site) {
				s.change(func(tx *store.Tx) error {
					g, err := fleet.Groups.Get(tx, "pcs_g")
					for _, typ := range g.InstanceTypes {
						g.Refuse(typ, g.SubnetIDs[0], "InsufficientInstanceCapacity", "no room", false, time.Now().Add(-time.Minute))
					}
					return errors.Join(err, fleet.Groups.Put(tx, g))
				})
				s.ctld.submit(false, "g-1", "g-2")
				s.within(time.Minute, "both are up", func() bool { return s.ctld.state("g-1") == up && s.ctld.state("g-2") == up })
			}},
			"no_image": {dynamic(1), func(s *site) {
				s.change(func(tx *store.Tx) error { return fleet.Images.Delete(tx, imageID) })
				s.ctld.submit(false, "g-1")
				ended(s, "Server.InvalidAMIID.NotFound")
			}},
			"a_launch_that_fails": {failing(dynamic(1), func(compute.Spec) error { return errors.New("no such bridge") }), func(s *site) {
				s.ctld.submit(false, "g-1")
				ended(s, "Server.InternalError")
			}},
			"nothing_was_launched": {nothing(dynamic(1)), func(s *site) {
				s.ctld.submit(false, "g-1")
				ended(s, "Server.InsufficientInstanceCapacity")
			}},
			"never_ready": {dynamic(1), func(s *site) {
				s.act("mute")
				s.ctld.submit(false, "g-1")
				s.wait(resumeTimeout)
				ended(s, "Server.InternalError")
			}},
			"never_launched": {slow(dynamic(1), fake.OpLaunch, time.Hour), func(s *site) {
				s.ctld.submit(false, "g-1")
				s.within(resumeTimeout+time.Minute, "the node is down", func() bool { return s.live("g-1").State == fleet.ShuttingDown })
			}},
			"suspended_before_the_launch": {slow(dynamic(1), fake.OpLaunch, 10*time.Second), func(s *site) {
				s.ctld.submit(false, "g-1")
				s.wait(2 * time.Second)
				if err := s.hook(imds.Hook{Kind: "suspend", Nodes: "g-1"}); err != nil {
					s.t.Fatal(err)
				}
				ended(s, "User.Initiated")
			}},
			"terminated_before_the_launch": {slow(dynamic(1), fake.OpLaunch, 10*time.Second), func(s *site) {
				s.ctld.submit(false, "g-1")
				s.wait(2 * time.Second)
				if err := s.plane().TerminateInstance(s.ctx, region, s.live("g-1").ID); err != nil {
					s.t.Fatal(err)
				}
				ended(s, "Client.UserInitiatedShutdown")
			}},
			"resumed_anew": {dynamic(1), func(s *site) {
				isUp(s, "g-1")
				s.ctld.with(func() { h := s.ctld.nodes["g-1"]; h.base = "IDLE"; h.set("POWERED_DOWN") })
				s.ctld.submit(false, "g-1")
				ended(s, "User.Initiated")
			}},
			"stopped_itself": {dynamic(1), func(s *site) {
				isUp(s, "g-1")
				if err := s.provider.Crash(s.live("g-1").ID); err != nil {
					s.t.Fatal(err)
				}
				ended(s, "Client.InstanceInitiatedShutdown")
			}},
			"reclaimed": {dynamic(1), func(s *site) {
				isUp(s, "g-1")
				f, err := fault.New("spot-reclaim", 1, 0, 0, "", time.Now().UTC())
				if err != nil {
					s.t.Fatal(err)
				}
				f.ClusterID, f.GroupID, f.Group = clusterID, "pcs_g", "g"
				if err := s.plane().AddFault(s.ctx, f); err != nil {
					s.t.Fatal(err)
				}
				s.wait(2 * time.Minute)
				ended(s, "Server.SpotInstanceTermination")
			}},
		} {
			t.Run(name, func(t *testing.T) {
				life.options.notYet = life.options.notYet || name == "a_whole_life"
				run(t, life.options, func(s *site) {
					life.live(s)
					mu.Lock()
					defer mu.Unlock()
					for step, n := range s.states.Seen() {
						seen[step] += n
					}
				})
			})
		}
	})
	for _, step := range fleettest.Missing(seen, fleet.ByControl, fleet.BySlurm) {
		t.Errorf("declared and never seen: %+v", step)
	}
}

// twoTypes has a group with two types; launches of the larger one, which has
// no room, end before those of the other.
func twoTypes(most int) options {
	o := dynamic(most)
	o.groups[0].InstanceTypes = []string{"c6i.xlarge", "t3.micro"}
	o.fake.LaunchError = func(spec compute.Spec) error {
		switch spec.CPUs {
		case 2:
			return &compute.CapacityError{Code: "InsufficientInstanceCapacity", Err: errors.New("no room")}
		case 1:
			pause(context.Background(), time.Second)
		}
		return nil
	}
	return o
}

// nothing has launches that succeed without an instance.
func nothing(o options) options {
	o.fake.Nothing = func(spec compute.Spec) bool { return spec.Role == "node" }
	return o
}

func (s *site) queueStatus(id string) (st fleet.Status) {
	s.t.Helper()
	s.view(func(tx *store.Tx) error {
		q, err := fleet.Queues.Get(tx, id)
		if errors.Is(err, store.ErrNotFound) {
			return nil
		}
		st = q.Status
		return err
	})
	return st
}

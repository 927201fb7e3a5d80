package control_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/openpcs/openpcs/internal/compute"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/store"
)

// rooms says which nodes find no capacity; it may change while a test runs.
type rooms struct {
	mu    sync.Mutex
	full  func(spec compute.Spec) bool
	tries []string // instances that were to be launched
}

func (r *rooms) launch(spec compute.Spec) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if spec.Role != "node" {
		return nil
	}
	r.tries = append(r.tries, fmt.Sprintf("%d CPUs at %s", spec.CPUs, spec.Address.Addr()))
	if r.full != nil && r.full(spec) {
		return &compute.CapacityError{Code: "InsufficientInstanceCapacity", Err: errors.New("no room")}
	}
	return nil
}

func (r *rooms) set(full func(spec compute.Spec) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.full = full
}

func (r *rooms) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.tries)
}

func always(compute.Spec) bool { return true }

func (s *site) groupNow(name string) (g fleet.Group) {
	s.t.Helper()
	s.view(func(tx *store.Tx) (err error) {
		g, err = fleet.Groups.Get(tx, "pcs_"+name)
		return err
	})
	return g
}

// R4: a node without capacity ends powered down, with its reason, and is
// tried ever more slowly until there is some.
func TestR4_NoCapacityEndsPoweredDown(t *testing.T) {
	r := &rooms{full: always}
	o := dynamic(1)
	o.fake.LaunchError = r.launch
	run(t, o, func(s *site) {
		s.ctld.submit(false, "g-1")
		s.within(5*time.Second, "the job loses the node", func() bool { return s.ctld.lost("g-1") == 1 })
		var down []string
		for _, c := range s.commands() {
			if strings.Contains(c, "State=DOWN") || strings.Contains(c, "State=POWER_DOWN_FORCE") {
				down = append(down, c)
			}
		}
		const want = "scontrol update NodeName=g-1 State=POWER_DOWN_FORCE Reason=Failed to launch backing instance (Error Code: InsufficientInstanceCapacity)"
		if !slices.Equal(down, []string{want}) {
			t.Errorf("commands = %q, want %q", down, want)
		}
		s.within(15*time.Second, "the node is idle~, not DOWN", func() bool { return s.ctld.state("g-1") == off })
		if n := s.node("g-1"); n.Want || n.LastFailure == "" || n.FailureCode != "INSUFFICIENT_CAPACITY" || n.Down != "" {
			t.Errorf("node = %+v", n)
		}
		if len(s.present()) != 0 {
			t.Errorf("instances that failed are still there: %v", s.present())
		}
		// Slurm tries again and again; launches come ever slower.
		began, before := time.Now(), r.count()
		for time.Since(began) < 50*time.Minute {
			if s.ctld.state("g-1") == off {
				s.ctld.submit(false, "g-1")
			}
			s.wait(time.Second)
		}
		if tries := r.count() - before; tries < 4 || tries > 14 {
			t.Errorf("%d launches in 50 minutes", tries)
		}
		r.set(nil)
		s.within(11*time.Minute, "capacity is back and so is the node", func() bool {
			if s.ctld.state("g-1") == off {
				s.ctld.submit(false, "g-1")
			}
			return s.ctld.state("g-1") == up
		})
		s.settle()
		if g := s.groupNow("g"); len(g.Refused) != 0 {
			t.Errorf("after a success the pool still counts as refusing: %+v", g.Refused)
		}
	})
}

// A pool that has no room is left for the next one before the job notices.
func TestCapacityFallsThroughInOnePass(t *testing.T) {
	r := &rooms{full: func(spec compute.Spec) bool { return spec.CPUs > 1 }} // but t3.micro
	o := options{
		groups: []fleet.Group{{Name: "g", Max: 3, InstanceTypes: []string{"c6i.2xlarge", "c6i.xlarge", "t3.micro"}}},
		queues: map[string][]string{"q": {"g"}},
	}
	o.fake.LaunchError = r.launch
	run(t, o, func(s *site) {
		s.ctld.submit(false, "g-1", "g-2")
		s.within(3*time.Second, "the nodes are up", func() bool { return s.ctld.state("g-1") == up && s.ctld.state("g-2") == up })
		for _, n := range []string{"g-1", "g-2"} {
			if i := s.live(n); i.Type != "t3.micro" || s.ctld.lost(n) != 0 {
				t.Errorf("%s has a %s, and lost its job %d times", n, i.Type, s.ctld.lost(n))
			}
			if len(s.instances(n)) != 1 {
				t.Errorf("a refused launch left an instance behind: %v", brief(s.instances(n)))
			}
		}
		if spec, _ := s.provider.Spec(s.live("g-1").ID); spec.CPUs != 1 {
			t.Errorf("launched with %d CPUs", spec.CPUs)
		}
		if strings.Contains(strings.Join(s.commands(), "\n"), "State=DOWN") {
			t.Errorf("commands = %q", s.commands())
		}
		// While they rest the others are not even tried.
		before := r.count()
		s.ctld.submit(false, "g-3")
		s.within(3*time.Second, "the third node is up", func() bool { return s.ctld.state("g-3") == up })
		if n := r.count() - before; n != 1 {
			t.Errorf("%d launches, want one: %q", n, r.tries)
		}
	})
}

// A full subnet is left for the next one.
func TestCapacityFallsThroughToTheNextSubnet(t *testing.T) {
	run(t, dynamic(1), func(s *site) {
		second := ""
		s.update(func(tx *store.Tx) error {
			subnets, err := fleet.Subnets.InRegion(tx, region)
			if err != nil {
				return err
			}
			g, err := fleet.Groups.Get(tx, "pcs_g")
			if err != nil {
				return err
			}
			full := subnets[0]
			full.ID, full.CIDR = "subnet-full", "10.77.255.0/30"
			second = subnets[1].ID
			g.SubnetIDs = []string{full.ID, second}
			return errors.Join(fleet.Subnets.Put(tx, full), fleet.Groups.Put(tx, g))
		})
		s.ctld.submit(false, "g-1")
		s.within(3*time.Second, "the node is up", func() bool { return s.ctld.state("g-1") == up })
		if i := s.live("g-1"); i.SubnetID != second {
			t.Errorf("the instance is in %s, want %s", i.SubnetID, second)
		}
		if g := s.groupNow("g"); len(g.Refused) != 1 || g.Refused[0].Code != "InsufficientFreeAddressesInSubnet" {
			t.Errorf("refused = %+v", g.Refused)
		}
	})
}

// R14: an engine that reports success and starts nothing has no room.
func TestR14_NothingWithoutAnError(t *testing.T) {
	o := options{
		groups: []fleet.Group{{Name: "g", Max: 1, InstanceTypes: []string{"c6i.xlarge", "t3.micro"}}},
		queues: map[string][]string{"q": {"g"}},
	}
	o.fake.Nothing = func(spec compute.Spec) bool { return spec.CPUs == 2 }
	run(t, o, func(s *site) {
		s.ctld.submit(false, "g-1")
		s.within(10*time.Second, "the other type backs the node", func() bool { return s.ctld.state("g-1") == up })
		if i := s.live("g-1"); i.Type != "t3.micro" || s.ctld.lost("g-1") != 0 {
			t.Errorf("%s has a %s, and lost its job %d times", "g-1", i.Type, s.ctld.lost("g-1"))
		}
		if g := s.groupNow("g"); len(g.Refused) != 1 || g.Refused[0].Code != "InsufficientInstanceCapacity" || g.Refused[0].Type != "c6i.xlarge" {
			t.Errorf("refused = %+v", g.Refused)
		}
	})
}

// R13: while a group has no capacity its idle nodes are held out, so that
// Slurm takes another group's; then one launch tries.
func TestR13_NodesWithoutCapacityAreHeldOutAndProbed(t *testing.T) {
	r := &rooms{full: always}
	o := options{
		groups: []fleet.Group{{Name: "a", Max: 8}, {Name: "b", Max: 1}},
		queues: map[string][]string{"q": {"a", "b"}},
	}
	o.fake.LaunchError = func(spec compute.Spec) error {
		if strings.HasPrefix(spec.Hostname, "ip-") && spec.Role == "node" {
			return r.launch(spec)
		}
		return nil
	}
	run(t, o, func(s *site) {
		s.ctld.submit(false, "a-1")
		held := func() (n int) {
			for i := range 8 {
				if st := s.ctld.state(fmt.Sprintf("a-%d", i+1)); strings.HasPrefix(st, "DOWN") || strings.Contains(st, "POWERING_DOWN") { // or is about to be
					n++
				}
			}
			return n
		}
		s.within(4*time.Second, "all nodes of the group are held out", func() bool { return held() == 8 })
		if s.ctld.state("b-1") != off {
			t.Errorf("the other group's node is %s", s.ctld.state("b-1"))
		}
		if reason := s.ctld.reason("a-5"); reason != fleet.LaunchReason("InsufficientInstanceCapacity") {
			t.Errorf("reason = %q", reason)
		}
		s.within(10*time.Second, "they come back", func() bool { return held() == 0 })
		before := r.count()
		s.ctld.submit(false, "a-1", "a-2", "a-3", "a-4", "a-5")
		s.within(4*time.Second, "they are held out again", func() bool { return held() == 8 })
		if n := r.count() - before; n != 1 {
			t.Errorf("%d launches tried whether there is room, want one", n)
		}
		r.set(nil)
		s.within(15*time.Second, "they come back", func() bool { return held() == 0 })
		s.ctld.submit(false, "a-1", "a-2", "a-3", "a-4", "a-5")
		s.within(4*time.Second, "all come up after the one that tried", func() bool {
			for i := range 5 {
				if s.ctld.state(fmt.Sprintf("a-%d", i+1)) != up {
					return false
				}
			}
			return true
		})
	})
}

// An error that no waiting cures is not tried again every few seconds; an
// update of the group does it at once.
func TestPermanentErrorWaitsForAnUpdate(t *testing.T) {
	run(t, dynamic(1), func(s *site) {
		image := fleet.Image{}
		s.update(func(tx *store.Tx) (err error) {
			if image, err = fleet.Images.Get(tx, imageID); err != nil {
				return err
			}
			return fleet.Images.Delete(tx, imageID)
		})
		s.ctld.submit(false, "g-1")
		s.within(4*time.Second, "the job is freed", func() bool { return s.ctld.lost("g-1") == 1 })
		if reason := s.ctld.reason("g-1"); reason != fleet.LaunchReason("InvalidAMIID.NotFound") {
			t.Errorf("reason = %q", reason)
		}
		s.update(func(tx *store.Tx) error { return fleet.Images.Put(tx, image) })
		s.wait(9 * time.Minute)
		if st := s.ctld.state("g-1"); !strings.HasPrefix(st, "DOWN") {
			t.Errorf("after nine minutes the node is %s", st)
		}
		s.update(func(tx *store.Tx) error { // as UpdateComputeNodeGroup does
			g, err := fleet.Groups.Get(tx, "pcs_g")
			if err != nil {
				return err
			}
			g.Refused, g.Status, g.ModifiedAt = nil, fleet.Updating, time.Now().UTC()
			return fleet.Groups.Put(tx, g)
		})
		s.plane().Wake(clusterID)
		s.within(4*time.Second, "the node can be had again", func() bool { return s.ctld.state("g-1") == off })
		s.ctld.submit(false, "g-1")
		s.within(4*time.Second, "it comes up", func() bool { return s.ctld.state("g-1") == up })
	})
}

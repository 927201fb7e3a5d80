package control_test

import (
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/openpcs/openpcs/internal/compute"
	"github.com/openpcs/openpcs/internal/compute/fake"
	"github.com/openpcs/openpcs/internal/condition"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/imds"
	"github.com/openpcs/openpcs/internal/scaling"
	"github.com/openpcs/openpcs/internal/store"
)

// retried updates a group as UpdateComputeNodeGroup does.
func (s *site) retried(name string) {
	s.t.Helper()
	s.change(func(tx *store.Tx) error {
		g, err := fleet.Groups.Get(tx, "pcs_"+name)
		if err != nil {
			return err
		}
		nodes, err := fleet.Nodes.Of(tx, clusterID)
		for _, n := range g.Retry(nodes) {
			err = errors.Join(err, fleet.Nodes.Put(tx, n))
		}
		g.Revise()
		g.Status, g.ModifiedAt = fleet.Updating, time.Now().UTC()
		return errors.Join(err, fleet.Groups.Put(tx, g))
	})
}

// failedStarts counts the instances that ended as failed bootstraps.
func (s *site) failedStarts() (n int) {
	for _, e := range s.scaled() {
		if e.StatusCode == scaling.Terminated && e.ReasonCode == scaling.BootstrapFailed {
			n++
		}
	}
	return n
}

// B4: a static group whose instances fail to come up is tried five times in a
// row; then with one launch at a time, ever more slowly, which shows. An update
// of the group, or a success, ends that.
func TestB4_FailingGroupIsTriedEverMoreSlowly(t *testing.T) {
	run(t, options{groups: []fleet.Group{{Name: "s", Min: 1, Max: 3}}, notYet: true}, func(s *site) {
		s.act("fail")
		s.start()
		s.within(10*time.Minute, "the breaker opens", func() bool { return s.groupNow("s").Breaker.Open })
		if n := s.failedStarts(); n < 4 || n > 5 { // the fifth is about to be ended
			t.Errorf("%d starts failed", n)
		}
		b := s.groupNow("s").Breaker
		if b.Failures != 5 || b.Code != condition.BootstrapFailed || !strings.Contains(b.Text, "the script ended with 1") {
			t.Errorf("breaker = %+v", b)
		}
		held := func(node string) bool {
			return strings.HasPrefix(s.ctld.state(node), "DOWN") && strings.Contains(s.ctld.reason(node), "BREAKER_OPEN, next try ")
		}
		s.within(15*time.Second, "the idle nodes are held out", func() bool { return held("s-2") && held("s-3") })
		if reason := s.ctld.reason("s-1"); reason != fleet.BootReason(s.instances("s-1")[4].ID) {
			t.Errorf("the node that failed last has the reason %q", reason)
		}
		if reason := s.ctld.reason("s-3"); !strings.HasPrefix(reason, "Backing Instance Failed To Bootstrap: i-") {
			t.Errorf("reason = %q", reason)
		}
		if !slices.Contains(s.kinds("s-2"), "held-out") {
			t.Errorf("events = %v", s.kinds("s-2"))
		}
		// It outlives a restart.
		s.restart()
		before := s.provider.Launches()
		s.wait(time.Until(b.NotBefore) - time.Second)
		if n := s.provider.Launches() - before; n != 0 {
			t.Errorf("%d launches while it rests", n)
		}
		s.wait(3 * time.Hour)
		if n := s.provider.Launches() - before; n < 15 || n > 20 {
			t.Errorf("%d launches in three hours", n)
		}
		// Cured, and an update: at once.
		s.act("")
		s.retried("s")
		s.within(20*time.Second, "the static node is up", func() bool { return s.ctld.state("s-1") == "IDLE+CLOUD" })
		s.within(20*time.Second, "the others can be had", func() bool { return s.ctld.state("s-2") == off && s.ctld.state("s-3") == off })
		if b := s.groupNow("s").Breaker; b != (fleet.Breaker{}) {
			t.Errorf("after a success: %+v", b)
		}
	})
}

// The first instance that comes up closes the breaker; nobody has to do
// anything. Jobs meanwhile are freed, and told apart in the scaling log.
func TestBreakerClosesByItself(t *testing.T) {
	o := dynamic(3)
	o.breaker = 2
	run(t, o, func(s *site) {
		s.act("fail")
		s.ctld.submit(false, "g-1", "g-2", "g-3")
		s.within(time.Minute, "the breaker opens", func() bool { return s.groupNow("g").Breaker.Open })
		s.within(time.Minute, "all jobs are freed", func() bool {
			return s.ctld.lost("g-1") == 1 && s.ctld.lost("g-2") == 1 && s.ctld.lost("g-3") == 1
		})
		// A job of three nodes is one try more, whatever the number of nodes.
		rested := func() bool { return !time.Now().Before(s.groupNow("g").Breaker.NotBefore) }
		s.within(time.Minute, "the nodes come back", func() bool {
			return rested() && s.ctld.state("g-1") == off && s.ctld.state("g-2") == off && s.ctld.state("g-3") == off
		})
		before := s.provider.Launches()
		s.ctld.submit(false, "g-1", "g-2", "g-3")
		s.within(time.Minute, "the jobs are freed again", func() bool { return s.ctld.lost("g-2") == 2 && s.ctld.lost("g-3") == 2 })
		if n := s.provider.Launches() - before; n != 1 {
			t.Errorf("%d launches tried, want one", n)
		}
		if !slices.ContainsFunc(s.scaled(), func(e scaling.Entry) bool {
			return e.StatusCode == scaling.LaunchFailed && e.ReasonCode == scaling.LaunchError && e.Details.Openpcs.Condition == condition.BreakerOpen && strings.Contains(e.Details.Openpcs.Message, "not before ")
		}) {
			t.Errorf("the scaling log does not tell of the breaker: %v %v", s.steps("g-2"), s.steps("g-3"))
		}
		s.act("")
		all := func(state string) bool {
			return s.ctld.state("g-1") == state && s.ctld.state("g-2") == state && s.ctld.state("g-3") == state
		}
		s.within(time.Minute, "the nodes come back", func() bool { return rested() && all(off) })
		s.ctld.submit(false, "g-1", "g-2", "g-3")
		s.within(10*time.Second, "all come up, after the first", func() bool { return all(up) })
		s.view(func(tx *store.Tx) error {
			events, err := tx.Events(clusterID, "group/g", 100)
			var kinds []string
			for _, e := range events {
				kinds = append(kinds, e.Kind)
			}
			if want := []string{"breaker-open", "breaker-open", "breaker-closed"}; !slices.Equal(kinds, want) {
				t.Errorf("the group's events are %v, want %v", kinds, want)
			}
			return err
		})
	})
}

// OPENPCS_BREAKER=off: endless, as PCS.
func TestWithoutABreakerItIsEndless(t *testing.T) {
	run(t, options{groups: []fleet.Group{{Name: "s", Min: 1, Max: 1}}, breaker: -1, notYet: true}, func(s *site) {
		s.act("fail")
		s.start()
		s.wait(10 * time.Minute)
		before := s.provider.Launches()
		s.wait(10 * time.Minute)
		if n := s.provider.Launches() - before; n < 20 {
			t.Errorf("%d launches in the second ten minutes, want no back-off", n)
		}
		if b := s.groupNow("s").Breaker; b.Open {
			t.Errorf("breaker = %+v", b)
		}
	})
}

// B1: an instance that registered and whose slurmd never came, of which Slurm
// says so by a call that is lost.
func TestB1_HungBootstrapIsCounted(t *testing.T) {
	run(t, dynamic(1), func(s *site) {
		s.act("mute")
		s.ctld.submit(false, "g-1")
		s.wait(10 * time.Second)
		s.ctld.with(func() { // ResumeTimeout, and ResumeFailProgram does not come
			h := s.ctld.nodes["g-1"]
			h.base, h.reason = "DOWN", "ResumeTimeout reached"
			h.set("POWERED_DOWN")
		})
		s.ctld.push()
		s.within(30*time.Second, "it counts", func() bool { return s.groupNow("g").Breaker.Failures == 1 && s.node("g-1").Attempts == 1 })
		s.within(30*time.Second, "the node is idle~", func() bool { return s.ctld.state("g-1") == off && s.live("g-1").ID == "" })
		if got := s.steps("g-1"); got[len(got)-1] != "TERMINATED BOOTSTRAP_FAILED" {
			t.Errorf("steps = %v", got)
		}
	})
}

// What failed already does not fail again when Slurm gives the node up.
func TestOneFailureCountsOnce(t *testing.T) {
	o := dynamic(1)
	o.fake.Latency = func(op fake.Op, id string) time.Duration {
		if op == fake.OpTerminate {
			return 20 * time.Second
		}
		return 0
	}
	run(t, o, func(s *site) {
		s.act("fail")
		s.ctld.submit(false, "g-1")
		s.within(10*time.Second, "it failed", func() bool { return s.node("g-1").Attempts == 1 })
		if err := s.hook(imds.Hook{Kind: "resume-fail", Nodes: "g-1"}); err != nil {
			t.Fatal(err)
		}
		if n, b := s.node("g-1"), s.groupNow("g").Breaker; n.Attempts != 1 || b.Failures != 1 {
			t.Errorf("one failure counts %d times for the node and %d for the group", n.Attempts, b.Failures)
		}
		s.settle()
	})
}

// B2: an engine whose lists are behind is not taken at its word: neither does
// the instance count as failed, nor is it replaced.
func TestB2_ListThatLagsBehind(t *testing.T) {
	run(t, dynamic(5), func(s *site) {
		s.provider.mu.Lock()
		s.provider.lag = 25 * time.Second
		s.provider.mu.Unlock()
		s.ctld.submit(false, "g-1", "g-2", "g-3", "g-4", "g-5")
		s.settle()
		for _, n := range []string{"g-1", "g-2", "g-3", "g-4", "g-5"} {
			if s.ctld.state(n) != up || s.ctld.lost(n) != 0 || len(s.instances(n)) != 1 || s.node(n).Attempts != 0 {
				t.Errorf("%s is %s, lost its job %d times, had %v", n, s.ctld.state(n), s.ctld.lost(n), brief(s.instances(n)))
			}
		}
		if g := s.groupNow("g"); g.Breaker.Failures != 0 || len(g.Refused) != 0 {
			t.Errorf("group = %+v %+v", g.Breaker, g.Refused)
		}
	})
}

// An event that an instance is gone counts at once, however shortly before it
// started and registered.
func TestLossRightAfterTheStart(t *testing.T) {
	run(t, dynamic(1), func(s *site) {
		s.ctld.submit(false, "g-1")
		s.within(10*time.Second, "up", func() bool { return s.ctld.state("g-1") == up && !s.live("g-1").ReadyAt.IsZero() })
		s.provider.Vanish(s.live("g-1").ID, false)
		s.within(5*time.Second, "the job lost its node", func() bool { return s.ctld.lost("g-1") == 1 })
	})
}

// B16: a quota that leaves room for one of two nodes: the job is freed with
// the reason, and tries come ever more slowly; the instance that could be had
// is not ended and made anew each time.
func TestB16_QuotaForOneOfTwoNodes(t *testing.T) {
	o := dynamic(2)
	var tries atomic.Int32 // launches run side by side
	o.fake.LaunchError = func(spec compute.Spec) error {
		if spec.Role == "node" {
			if tries.Add(1) > 1 {
				return &compute.CapacityError{Code: "VcpuLimitExceeded", Err: errors.New("the quota is 1")}
			}
		}
		return nil
	}
	run(t, o, func(s *site) {
		s.ctld.submit(false, "g-1", "g-2")
		s.within(10*time.Second, "one of them is freed", func() bool { return s.ctld.lost("g-1")+s.ctld.lost("g-2") == 1 })
		poor := "g-2"
		if s.ctld.lost("g-1") == 1 {
			poor = "g-1"
		}
		if reason := s.ctld.reason(poor); reason != "Failed to launch backing instance (Error Code: VcpuLimitExceeded)" {
			t.Errorf("reason = %q", reason)
		}
		if got := s.steps(poor); !slices.Equal(got, []string{"LAUNCH_FAILED LIMIT_EXCEEDED"}) {
			t.Errorf("steps = %v", got)
		}
		before := tries.Load()
		for range 30 * 60 {
			if s.ctld.state(poor) == off {
				s.ctld.submit(false, poor)
			}
			s.wait(time.Second)
		}
		if n := tries.Load() - before; n < 4 || n > 12 {
			t.Errorf("%d tries in half an hour", n)
		}
		if n := s.provider.Launches(); n != 2 {
			t.Errorf("%d launches, want the controller and the one there is room for", n)
		}
	})
}

// D15: an instance that dies right after its launch is replaced at once.
func TestD15_DeadOnArrival(t *testing.T) {
	run(t, options{groups: []fleet.Group{{Name: "s", Min: 1, Max: 1}}, notYet: true}, func(s *site) {
		s.act("hang")
		s.start()
		s.within(time.Minute, "it is launched", func() bool { return !s.live("s-1").StartedAt.IsZero() })
		first := s.live("s-1").ID
		s.wait(time.Second)
		s.act("")
		if err := s.provider.Crash(first); err != nil {
			t.Fatal(err)
		}
		s.within(30*time.Second, "another is up", func() bool { i := s.live("s-1"); return i.ID != first && !i.ReadyAt.IsZero() })
		if got := s.steps("s-1"); !slices.Equal(got[:2], []string{"LAUNCHED MAINTAIN_MIN_CAPACITY", "TERMINATED EXTERNALLY_TERMINATED"}) {
			t.Errorf("steps = %v", got)
		}
	})
}

// D16: why a node was given up is told with the rule, the state that was seen,
// and since when.
func TestD16_ReplacementSaysWhy(t *testing.T) {
	run(t, dynamic(1), func(s *site) {
		s.ctld.submit(false, "g-1")
		s.within(10*time.Second, "up", func() bool { return s.ctld.state("g-1") == up && !s.live("g-1").ReadyAt.IsZero() })
		id := s.live("g-1").ID
		s.ctld.with(func() { h := s.ctld.nodes["g-1"]; h.base, h.reason = "DOWN", "Not responding"; h.set("NOT_RESPONDING") })
		s.ctld.push()
		s.within(time.Minute, "it is ended", func() bool { return s.live("g-1").ID == "" })
		told := false
		s.view(func(tx *store.Tx) error {
			events, err := tx.Events(clusterID, "node/g-1", 100)
			for _, e := range events {
				doc := string(e.Detail)
				told = told || (e.Kind == "leaving" && strings.Contains(doc, `"code":"NODE_UNUSABLE"`) && strings.Contains(doc, `"state":"DOWN+CLOUD+NOT_RESPONDING"`) && strings.Contains(doc, `"since":"2`) && strings.Contains(doc, id))
			}
			return err
		})
		if !told {
			t.Errorf("events = %v", s.kinds("g-1"))
		}
		all := s.scaled()
		if e := all[len(all)-1]; e.StatusCode != scaling.Terminated || e.ReasonCode != scaling.UnhealthyNode || e.Details.Openpcs.Condition != condition.NodeUnusable {
			t.Errorf("the last record is %+v", e)
		}
	})
}

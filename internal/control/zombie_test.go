package control_test

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/openpcs/openpcs/internal/compute/fake"
	"github.com/openpcs/openpcs/internal/fleet"
)

// R10: an instance that the provider does not let go, while its node is
// powered down and then wanted again, is ended in the end and replaced once;
// nothing loops.
func TestR10_InstanceThatStaysIsReplacedOnce(t *testing.T) {
	var protected atomic.Bool
	o := dynamic(1)
	o.fake.Fail = func(op fake.Op, id string) error {
		if op == fake.OpTerminate && strings.HasPrefix(id, "i-") && protected.Load() {
			return errors.New("termination protection")
		}
		return nil
	}
	run(t, o, func(s *site) {
		s.ctld.submit(false, "g-1")
		s.within(5*time.Second, "the node is up", func() bool { return s.ctld.state("g-1") == up })
		s.settle()
		first := s.live("g-1").ID
		protected.Store(true)
		s.ctld.suspend("g-1")
		s.within(15*time.Second, "the node is off in Slurm", func() bool { return s.ctld.state("g-1") == off })
		s.ctld.submit(false, "g-1")
		s.wait(3 * time.Minute)
		if i := s.live("g-1"); i.ID != first || i.State != fleet.ShuttingDown {
			t.Errorf("while the former instance stays the node has %v", brief([]fleet.Instance{i}))
		}
		if n := s.provider.Launches(); n != 2 { // with the controller
			t.Errorf("%d launches while the former instance stays", n)
		}
		protected.Store(false)
		s.within(15*time.Second, "the node is up on another instance", func() bool {
			return s.ctld.state("g-1") == up && s.live("g-1").ID != first
		})
		s.settle()
		if n := s.provider.Launches(); n != 3 {
			t.Errorf("%d launches in all", n)
		}
	})
}

// R11: an instance that was stopped, and not terminated, behind our back does
// not count as one: it goes, and the node's next job gets another.
func TestR11_StoppedInstanceIsReplaced(t *testing.T) {
	run(t, dynamic(1), func(s *site) {
		s.ctld.submit(false, "g-1")
		s.within(5*time.Second, "the node is up", func() bool { return s.ctld.state("g-1") == up })
		s.settle()
		first := s.live("g-1").ID
		if err := s.provider.Crash(first); err != nil {
			t.Fatal(err)
		}
		s.within(15*time.Second, "the job is free and the node off", func() bool {
			return s.ctld.lost("g-1") == 1 && s.ctld.state("g-1") == off && s.live("g-1").ID == ""
		})
		if _, there := s.provider.Spec(first); there {
			t.Error("the stopped instance is still there")
		}
		s.ctld.submit(false, "g-1")
		s.within(5*time.Second, "the job runs on another instance", func() bool { return s.ctld.state("g-1") == up && s.live("g-1").ID != first })
	})
}

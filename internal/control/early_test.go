package control_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/imds"
)

// The call of ResumeProgram for a node that was launched ahead is lost with
// the controller: Slurm shows the node powering up, so a job waits for it.
func TestEarlyNodeWhoseResumeIsLost(t *testing.T) {
	run(t, dynamic(1), func(s *site) {
		if err := s.hook(imds.Hook{Kind: "expect", Nodes: "g-1"}); err != nil {
			t.Fatal(err)
		}
		s.wait(5 * time.Second)
		first := s.live("g-1").ID
		s.ctld.with(func() { h := s.ctld.nodes["g-1"]; h.base = "ALLOCATED"; h.set("POWERING_UP", "NOT_RESPONDING") })
		s.ctld.push()
		s.within(fleet.EarlyLimit, "the node is up", func() bool { return s.ctld.state("g-1") == up })
		if i := s.live("g-1"); i.ID != first || s.ctld.lost("g-1") != 0 {
			t.Errorf("the node has %s, was %s, and its job was requeued %d times", i.ID, first, s.ctld.lost("g-1"))
		}
	})
}

// A job that was freed before ResumeProgram came gets its nodes again: what was
// launched ahead for it is not given up meanwhile.
func TestEarlyNodeIsExpectedAgain(t *testing.T) {
	run(t, dynamic(1), func(s *site) {
		if err := s.hook(imds.Hook{Kind: "expect", Nodes: "g-1"}); err != nil {
			t.Fatal(err)
		}
		s.wait(fleet.EarlyLimit - time.Second)
		first := s.live("g-1").ID
		if err := s.hook(imds.Hook{Kind: "expect", Nodes: "g-1"}); err != nil {
			t.Fatal(err)
		}
		s.wait(fleet.EarlyLimit - time.Second)
		if i := s.live("g-1"); first == "" || i.ID != first {
			t.Errorf("the node has %q, was %q", i.ID, first)
		}
		s.within(fleet.EarlyLimit, "given up", func() bool { return s.live("g-1").ID == "" })
	})
}

// The agent of an instance that nobody wants any more does not start slurmd.
func TestGoOfANodeThatWasGivenUp(t *testing.T) {
	run(t, dynamic(1), func(s *site) {
		s.ctld.submit(false, "g-1")
		s.within(5*time.Second, "the node is up", func() bool { return s.ctld.state("g-1") == up })
		i := s.live("g-1")
		if err := s.hook(imds.Hook{Kind: "suspend", Nodes: "g-1"}); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := s.plane().Go(ctx, i); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the agent may go: %v", err)
		}
	})
}

package control_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/openpcs/openpcs/internal/scaling"
	"github.com/openpcs/openpcs/internal/store"
)

// scaled is the scaling log of the site's cluster.
func (s *site) scaled() (out []scaling.Entry) {
	s.t.Helper()
	s.view(func(tx *store.Tx) (err error) {
		out, err = scaling.Records(tx, clusterID, 0, 1_000_000)
		return err
	})
	return out
}

// steps are the records of a node as "LAUNCHED SCHEDULER_REQUESTED".
func (s *site) steps(node string) (out []string) {
	s.t.Helper()
	for _, e := range s.scaled() {
		if e.SchedulerNodeID == node {
			out = append(out, string(e.StatusCode)+" "+string(e.ReasonCode))
		}
	}
	return out
}

// checkLog fails unless the scaling log is in order and each launch has its
// registration and activation at most once, in that order, and its end exactly
// once if its instance is gone. It returns what is wrong.
func checkLog(all []scaling.Entry, live map[string]bool) (wrong []string) {
	rank := map[scaling.Status]int{scaling.Launched: 1, scaling.Registered: 2, scaling.Active: 3, scaling.PendingReplacement: 4, scaling.TerminateFailed: 5, scaling.Terminated: 6, scaling.LaunchFailed: 6}
	at := map[string]int{}       // the last step of each instance
	backs := map[string]string{} // instances of nodes that have not ended
	complain := func(e scaling.Entry, format string, args ...any) {
		wrong = append(wrong, fmt.Sprintf("%d %s %s %s %s: ", e.Seq, e.SchedulerNodeID, e.StatusCode, e.ReasonCode, e.Details.InstanceID)+fmt.Sprintf(format, args...))
	}
	var last scaling.Entry
	for _, e := range all {
		switch {
		case e.Seq <= last.Seq:
			complain(e, "comes after %d", last.Seq)
		case e.EventTimestamp < last.EventTimestamp:
			complain(e, "is earlier than the record before it")
		case e.Description == "" || e.ComputeNodeGroupID == "" || e.ResourceType != "PCS_CLUSTER" || e.ResourceID != clusterID:
			complain(e, "lacks something: %+v", e)
		}
		last = e
		id := e.Details.InstanceID
		if id == "" {
			if e.StatusCode != scaling.LaunchFailed {
				complain(e, "has no instance")
			}
			continue
		}
		if rank[e.StatusCode] <= at[id] {
			complain(e, "comes twice, or too late")
		}
		if at[id] == 0 && e.StatusCode != scaling.Launched {
			complain(e, "its instance was never launched")
		}
		if e.StatusCode == scaling.Launched {
			if other := backs[e.SchedulerNodeID]; other != "" {
				complain(e, "the node has %s, which has not ended", other)
			}
			backs[e.SchedulerNodeID] = id
		}
		at[id] = rank[e.StatusCode]
		if at[id] == 6 {
			delete(backs, e.SchedulerNodeID)
		}
	}
	for id, step := range at {
		if ended := step == 6; ended == live[id] {
			wrong = append(wrong, fmt.Sprintf("%s has ended in the log: %v, and is there: %v", id, ended, live[id]))
		}
	}
	for id := range live {
		if at[id] == 0 {
			wrong = append(wrong, id+" is there and not in the log")
		}
	}
	return wrong
}

// soundLog fails unless the site's scaling log tells what happened.
func (s *site) soundLog() {
	s.t.Helper()
	live := map[string]bool{}
	for _, i := range s.instances("") {
		if i.State.Live() && !i.StartedAt.IsZero() {
			live[i.ID] = true
		}
	}
	for _, w := range checkLog(s.scaled(), live) {
		s.t.Errorf("the scaling log is wrong: %s", w)
	}
}

func TestScalingLogOfALife(t *testing.T) {
	run(t, dynamic(2), func(s *site) {
		s.ctld.submit(true, "g-1")
		s.within(10*time.Second, "the node is up", func() bool { return s.ctld.state("g-1") == up && !s.live("g-1").ReadyAt.IsZero() })
		i := s.live("g-1")
		s.ctld.suspend("g-1")
		s.within(10*time.Second, "the node is off", func() bool { return s.ctld.state("g-1") == off })
		want := []string{"LAUNCHED SCHEDULER_REQUESTED", "REGISTERED REGISTER_SUCCESS", "ACTIVE BOOTSTRAP_SUCCESS", "TERMINATED SCHEDULER_REQUESTED"}
		if got := s.steps("g-1"); !slices.Equal(got, want) {
			t.Errorf("steps = %v, want %v", got, want)
		}
		for _, e := range s.scaled() {
			d := e.Details
			if e.ComputeNodeGroupID != "pcs_g" || d.InstanceID != i.ID || d.InstanceType != "t3.micro" || d.SubnetID != i.SubnetID || !strings.HasSuffix(e.Description, ".") {
				t.Errorf("record = %+v", e)
			}
		}
		s.soundLog()
	})
}

package control_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/pcs"
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

// An update replaces a node: it is pending first, and the end says why.
func TestScalingLogOfAReplacement(t *testing.T) {
	run(t, options{groups: []fleet.Group{{Name: "s", Min: 1, Max: 1}}}, func(s *site) {
		old := s.live("s-1").ID
		s.retried("s")
		s.within(2*time.Minute, "a new instance", func() bool { i := s.live("s-1"); return i.ID != old && !i.ReadyAt.IsZero() })
		want := []string{
			"LAUNCHED MAINTAIN_MIN_CAPACITY", "REGISTERED REGISTER_SUCCESS", "ACTIVE BOOTSTRAP_SUCCESS",
			"PENDING_REPLACEMENT NODE_GROUP_UPDATE", "TERMINATED REPLACEMENT_REQUESTED",
			"LAUNCHED MAINTAIN_MIN_CAPACITY", "REGISTERED REGISTER_SUCCESS", "ACTIVE BOOTSTRAP_SUCCESS",
		}
		if got := s.steps("s-1"); !slices.Equal(got, want) {
			t.Errorf("steps = %q\nwant    %q", got, want)
		}
		// A reboot in place is no step.
		if err := s.plane().RebootInstance(context.Background(), s.live("s-1").ID); err != nil {
			t.Fatal(err)
		}
		s.settle()
		if got := s.steps("s-1"); !slices.Equal(got, want) {
			t.Errorf("after a reboot: %q", got)
		}
	})
}

// An agent that is faster than the record of its launch.
func TestRegisteredBeforeItsLaunchIsRecorded(t *testing.T) {
	run(t, dynamic(1), func(s *site) {
		s.act("hang")
		s.provider.onLaunch(func(id string) {
			if err := s.store.Update(context.Background(), func(tx *store.Tx) error {
				i, err := fleet.Instances.Get(tx, id)
				if err != nil {
					return err
				}
				g, err := fleet.Groups.Get(tx, i.GroupID)
				return errors.Join(err, pcs.Registered(tx, i, g, "boot-1", time.Now().UTC()))
			}); err != nil {
				t.Error(err)
			}
		})
		s.ctld.submit(false, "g-1")
		s.within(5*time.Second, "it is launched and registered", func() bool { return len(s.steps("g-1")) > 1 })
		s.wait(5 * time.Second)
		if got := s.steps("g-1"); !slices.Equal(got, []string{"LAUNCHED SCHEDULER_REQUESTED", "REGISTERED REGISTER_SUCCESS"}) {
			t.Errorf("steps = %v", got)
		}
	})
}

// A control plane that died between a launch and its record, and whose node
// nobody wants when it comes back: the instance was there, and the log says so.
func TestLaunchThatNobodyRecorded(t *testing.T) {
	run(t, dynamic(1), func(s *site) {
		died := make(chan struct{})
		s.provider.onLaunch(func(string) {
			s.mu.Lock()
			s.stop()
			s.mu.Unlock()
			close(died)
		})
		s.ctld.submit(false, "g-1")
		<-died
		s.kill()
		s.provider.onLaunch(nil)
		s.update(func(tx *store.Tx) error {
			n, err := fleet.Nodes.Get(tx, fleet.NodeID(clusterID, "g-1"))
			n.Want = false
			return errors.Join(err, fleet.Nodes.Put(tx, n))
		})
		s.restart()
		s.within(30*time.Second, "it is ended", func() bool { return len(s.present()) == 0 && s.live("g-1").ID == "" })
		if got := s.steps("g-1"); !slices.Equal(got, []string{"LAUNCHED SCHEDULER_REQUESTED", "TERMINATED SCHEDULER_REQUESTED"}) {
			t.Errorf("steps = %v", got)
		}
	})
}

// An end that the engine refuses is told once, and tried until it works.
func TestEndThatFails(t *testing.T) {
	m := &moods{}
	o := dynamic(1)
	o.fake = m.options()
	run(t, o, func(s *site) {
		s.ctld.submit(false, "g-1")
		s.within(10*time.Second, "up", func() bool { return s.ctld.state("g-1") == up && !s.live("g-1").ReadyAt.IsZero() })
		m.set("", "broken")
		s.ctld.suspend("g-1")
		s.settle()
		m.set("", "")
		s.settle()
		got := s.steps("g-1")
		if want := []string{"TERMINATE_FAILED EC2_ERROR", "TERMINATED SCHEDULER_REQUESTED"}; !slices.Equal(got[len(got)-2:], want) || len(got) != 5 {
			t.Errorf("steps = %v", got)
		}
	})
}

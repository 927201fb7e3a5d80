package control_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/openpcs/openpcs/internal/condition"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/imds"
	"github.com/openpcs/openpcs/internal/store"
)

const scriptLogs = "/var/log/amazon/pcs/lifecycle/actions/"

func outcome(stage, name, onError string, exit, attempt int) fleet.ScriptOutcome {
	o := fleet.ScriptOutcome{Stage: stage, Name: name, OnError: onError, ExitCode: exit, Attempt: attempt, Output: "one\nsaid last", Log: scriptLogs + stage + "/" + name + ".log"}
	if exit != 0 {
		o.Failure = "script '" + name + "' failed"
	}
	return o
}

// withScripts is a site whose group has a script of the stage nodeReady.
func withScripts() options {
	o := dynamic(1)
	o.groups[0].Lifecycle = &fleet.LifecycleActions{Stages: fleet.LifecycleStages{NodeReady: []fleet.LifecycleScript{{Name: "last"}}}}
	return o
}

func (s *site) report(id string, r imds.Report) {
	s.t.Helper()
	if err := s.plane().Report(context.Background(), id, r); err != nil {
		s.t.Fatal(err)
	}
}

// count counts a node's events of a kind.
func (s *site) count(node, kind string) (n int) {
	s.t.Helper()
	for _, k := range s.kinds(node) {
		if k == kind {
			n++
		}
	}
	return n
}

// What is told twice, as an agent does that got no answer, is one event; the
// record has each script's last run.
func TestScriptsAreRecordedOnce(t *testing.T) {
	run(t, withScripts(), func(s *site) {
		s.ctld.submit(false, "g-1")
		s.within(10*time.Second, "up", func() bool { return s.ctld.state("g-1") == up })
		id := s.live("g-1").ID
		one, two := outcome(fleet.NodeBootstrapped, "one", fleet.OnErrorStop, 1, 1), outcome(fleet.NodeReady, "last", fleet.OnErrorTerminate, 0, 1)
		for _, r := range []imds.Report{
			{Stage: "script", Scripts: []fleet.ScriptOutcome{one}},
			{Stage: "script", Scripts: []fleet.ScriptOutcome{one}},
			{Stage: "bootstrapped", Scripts: []fleet.ScriptOutcome{one, two}},
		} {
			s.report(id, r)
		}
		if n := s.count("g-1", "script"); n != 2 {
			t.Errorf("%d events", n)
		}
		i := s.live("g-1")
		trouble := i.Trouble()
		if len(i.Scripts) != 2 || len(trouble) != 1 || trouble[0].Code != condition.LifecycleActionFailed {
			t.Fatalf("scripts %+v, trouble %+v", i.Scripts, trouble)
		}
		for _, part := range []string{"g-1", id, `"one"`, fleet.NodeBootstrapped, "exit code 1", "said last", one.Log, fleet.OnErrorStop} {
			if !strings.Contains(trouble[0].Message, part) {
				t.Errorf("%q is missing in %s", part, trouble[0].Message)
			}
		}
		// The next boot's takes its place.
		s.report(id, imds.Report{Stage: "script", Scripts: []fleet.ScriptOutcome{outcome(fleet.NodeBootstrapped, "one", fleet.OnErrorStop, 0, 2)}})
		if i := s.live("g-1"); len(i.Scripts) != 2 || len(i.Trouble()) != 0 || s.count("g-1", "script") != 3 {
			t.Errorf("after the second boot %+v", i.Scripts)
		}
	})
}

// What the reports of one instance can have written is bounded, as any process
// of it can report; what came last is known all the same.
func TestReportsWithoutEnd(t *testing.T) {
	run(t, dynamic(1), func(s *site) {
		s.ctld.submit(false, "g-1")
		s.within(10*time.Second, "up", func() bool { return !s.live("g-1").ReadyAt.IsZero() })
		id := s.live("g-1").ID
		const scripts, reports = 40, 251
		for attempt := range reports {
			r := imds.Report{Stage: "running"}
			for n := range scripts {
				r.Scripts = append(r.Scripts, outcome(fleet.NodeReady, fmt.Sprint("s", n), fleet.OnErrorStop, 1, attempt+1))
			}
			s.report(id, r)
		}
		var events []store.Event
		s.view(func(tx *store.Tx) (err error) {
			events, err = tx.Events(clusterID, "node/g-1", 1_000_000)
			return err
		})
		if n := len(events); n < 10_000 || n > 10_100 {
			t.Errorf("%d events", n)
		}
		if i := s.live("g-1"); len(i.Scripts) != scripts || i.Scripts[0].Attempt != reports {
			t.Errorf("%d scripts, the first at boot %d", len(i.Scripts), i.Scripts[0].Attempt)
		}
	})
}

// The reason of a node whose script failed before slurmd is there while it
// rests, as on PCS: nothing is to take it away by the way.
func TestReasonOutlivesTheInstance(t *testing.T) {
	run(t, withScripts(), func(s *site) {
		s.act("hang")
		s.ctld.submit(false, "g-1")
		s.within(10*time.Second, "launched", func() bool { return s.live("g-1").State == fleet.Running })
		i := s.live("g-1")
		failed := outcome(fleet.NodeBootstrapped, "first", fleet.OnErrorTerminate, 1, 1)
		s.report(i.ID, imds.Report{Stage: "failed", Code: condition.LifecycleScriptFailed, Message: failed.Sentence(), Scripts: []fleet.ScriptOutcome{failed}})
		s.within(10*time.Second, "the instance is gone", func() bool {
			return slices.ContainsFunc(s.instances("g-1"), func(o fleet.Instance) bool { return o.ID == i.ID && o.State == fleet.Terminated })
		})
		if n := s.ctld.ran("NodeName=g-1 Extra="); n != 0 {
			t.Errorf("the node, which never showed anything, was updated %d times: %v", n, s.commands())
		}
	})
}

// TestB10: a script of nodeReady that must not fail does so under a job.
func TestB10_JobsEndBeforeTheInstanceThatFailed(t *testing.T) {
	run(t, withScripts(), func(s *site) {
		s.ctld.submit(false, "g-1")
		s.within(10*time.Second, "up", func() bool { return !s.live("g-1").ReadyAt.IsZero() })
		s.ctld.with(func() { s.ctld.busy = true })
		i := s.live("g-1")
		failed := outcome(fleet.NodeReady, "last", fleet.OnErrorTerminate, 9, 1)
		s.report(i.ID, imds.Report{Stage: "failed", Joined: true, Code: condition.LifecycleScriptFailed, Message: failed.Sentence(), Scripts: []fleet.ScriptOutcome{failed}})
		s.within(5*time.Second, "the node takes no more jobs", func() bool { return s.ctld.ran("NodeName=g-1 State=POWER_DOWN_ASAP") == 1 })
		s.wait(time.Minute)
		if now := s.live("g-1"); now.ID != i.ID || now.State != fleet.Running || s.ctld.lost("g-1") != 0 {
			t.Fatalf("under its job the instance is %+v", now)
		}
		if n := s.count("g-1", "replace"); n != 1 {
			t.Errorf("it was told %d times", n)
		}
		_ = s.provider.SetFile(i.ID, failed.Log, []byte("all it said"))
		_ = s.provider.SetFile(i.ID, scriptLogs+"executor.log", []byte("{}"))
		s.ctld.suspend("g-1")
		s.within(time.Minute, "the instance is gone", func() bool {
			return slices.ContainsFunc(s.instances("g-1"), func(o fleet.Instance) bool { return o.ID == i.ID && o.State == fleet.Terminated })
		})
		s.settle()
		for _, o := range s.instances("g-1") {
			if o.ID == i.ID && (o.StateCode != "Server.InternalError" || o.FailureCode != condition.LifecycleScriptFailed) {
				t.Errorf("it ended as %+v", o)
			}
		}
		if s.ctld.ran("State=DOWN Reason=Backing Instance Failed To Bootstrap: "+i.ID) != 1 || s.ctld.ran("NodeName=g-1 Extra=") != 1 {
			t.Errorf("commands = %v", s.commands())
		}
		// A failure in a row: that slurmd came up did not end them.
		if n := s.node("g-1"); n.Attempts == 0 || n.FailureCode != condition.LifecycleScriptFailed {
			t.Errorf("node = %+v", n)
		}
		for name, want := range map[string]string{"nodeReady-last.log": "all it said", "executor.log": "{}"} {
			if got, err := s.plane().KeptLog(i.ID, name); err != nil || string(got) != want {
				t.Errorf("%s = %q, %v", name, got, err)
			}
		}
	})
}

// A script for every boot that fails at a reboot: the agent powers the instance
// off. It did not vanish, and nobody outside ended it.
func TestAScriptFailsAtAReboot(t *testing.T) {
	run(t, dynamic(1), func(s *site) {
		s.ctld.submit(false, "g-1")
		s.within(10*time.Second, "up", func() bool { return !s.live("g-1").ReadyAt.IsZero() })
		i := s.live("g-1")
		failed := outcome(fleet.NodeBootstrapped, "mount", fleet.OnErrorTerminate, 9, 2)
		s.report(i.ID, imds.Report{Stage: "failed", Code: condition.LifecycleScriptFailed, Message: failed.Sentence(), Scripts: []fleet.ScriptOutcome{failed}})
		if now := s.live("g-1"); now.ID != i.ID || now.State != fleet.Running {
			t.Fatalf("a report alone ended it: %+v", now)
		}
		if err := s.provider.Crash(i.ID); err != nil {
			t.Fatal(err)
		}
		s.within(time.Minute, "the instance is gone", func() bool { return s.live("g-1").ID != i.ID })
		s.settle()
		steps := s.steps("g-1")
		if !slices.Contains(steps, "TERMINATED BOOTSTRAP_FAILED") || slices.Contains(steps, "TERMINATED EXTERNALLY_TERMINATED") {
			t.Errorf("scaling log: %v", steps)
		}
		if n := s.node("g-1"); n.FailureCode != condition.LifecycleScriptFailed || !strings.Contains(n.LastFailure, `"mount"`) {
			t.Errorf("node = %+v", n)
		}
		if s.ctld.ran("Reason=Backing Instance Failed To Bootstrap: "+i.ID) != 1 {
			t.Errorf("commands = %v", s.commands())
		}
	})
}

// Any process of a node can report: of one that is up only what a script of
// nodeReady can have led to is believed, and only if there is one.
func TestReportsOfANodeThatIsUp(t *testing.T) {
	for name, tt := range map[string]struct {
		options options
		report  imds.Report
	}{
		"another_failure":   {withScripts(), imds.Report{Stage: "failed", Code: condition.BootstrapFailed, Message: "m"}},
		"not_joined":        {withScripts(), imds.Report{Stage: "failed", Code: condition.LifecycleScriptFailed, Message: "m"}},
		"another_code":      {withScripts(), imds.Report{Stage: "failed", Joined: true, Code: condition.SlurmdFailed, Message: "m"}},
		"without_any_stage": {dynamic(1), imds.Report{Stage: "failed", Joined: true, Code: condition.LifecycleScriptFailed, Message: "m"}},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, tt.options, func(s *site) {
				s.ctld.submit(false, "g-1")
				s.within(10*time.Second, "up", func() bool { return !s.live("g-1").ReadyAt.IsZero() })
				s.report(s.live("g-1").ID, tt.report)
				s.wait(time.Minute)
				if i := s.live("g-1"); i.Failure != "" || i.State != fleet.Running || s.ctld.ran("POWER_DOWN") != 0 {
					t.Errorf("instance = %+v, commands %v", i, s.commands())
				}
			})
		})
	}
}

// The boot's time ends before Slurm's, so that the script that hangs can be
// named.
func TestBootSeconds(t *testing.T) {
	run(t, dynamic(1), func(s *site) {
		s.ctld.submit(false, "g-1")
		s.within(10*time.Second, "launched", func() bool { return s.live("g-1").ID != "" })
		limit := int(resumeTimeout/time.Second) - 60
		ask := func() int {
			t.Helper()
			b, err := s.plane().Bootstrap(context.Background(), s.live("g-1"))
			if err != nil {
				t.Fatal(err)
			}
			return b.BootSeconds
		}
		s.change(func(tx *store.Tx) error {
			n, err := fleet.Nodes.Get(tx, fleet.NodeID(clusterID, "g-1"))
			n.WantAt = time.Now().Add(-100 * time.Second)
			i, err2 := fleet.Instances.Get(tx, s.live("g-1").ID)
			i.ReadyAt = time.Time{}
			return errors.Join(err, err2, fleet.Nodes.Put(tx, n), fleet.Instances.Put(tx, i))
		})
		if got := ask(); got < limit-105 || got > limit-99 {
			t.Errorf("100 s after the node was asked for: %d s, want %d", got, limit-100)
		}
		s.within(10*time.Second, "up", func() bool { return !s.live("g-1").ReadyAt.IsZero() })
		if got := ask(); got != limit {
			t.Errorf("at a reboot: %d s, want %d", got, limit)
		}
	})
}

// B11: whatever a launch template has beside user data, the bootstrap is the
// same, and lifecycle scripts are none of it.
func TestB11_BootstrapIsTheSameForAllTemplates(t *testing.T) {
	changes := map[string]func(*fleet.Group){
		"plain":   func(*fleet.Group) {},
		"key":     func(g *fleet.Group) { g.Launch.KeyName = "k" },
		"groups":  func(g *fleet.Group) { g.Launch.SecurityGroups = []string{"sg-1", "sg-2"} },
		"tags":    func(g *fleet.Group) { g.Launch.Tags = map[string]string{"a": "b"} },
		"scripts": func(g *fleet.Group) { g.Lifecycle = withScripts().groups[0].Lifecycle },
		"spot":    func(g *fleet.Group) { g.PurchaseOption = "SPOT" },
	}
	var o options
	for name, change := range changes {
		g := fleet.Group{Name: name, Max: 1}
		change(&g)
		o.groups = append(o.groups, g)
	}
	run(t, o, func(s *site) {
		for name := range changes {
			s.ctld.submit(false, name+"-1")
			s.within(10*time.Second, "launched", func() bool { return s.live(name+"-1").ID != "" })
		}
		want := string(s.live("plain-1").UserData)
		for name := range changes {
			if got := string(s.live(name + "-1").UserData); want == "" || got != want {
				t.Errorf("%s: the bootstrap is\n%s\nwithout it\n%s", name, got, want)
			}
		}
	})
}

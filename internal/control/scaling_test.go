package control_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/openpcs/openpcs/internal/compute"
	"github.com/openpcs/openpcs/internal/compute/fake"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/imds"
	"github.com/openpcs/openpcs/internal/store"
)

const (
	up  = "ALLOCATED+CLOUD"
	off = "IDLE+CLOUD+POWERED_DOWN"
)

func dynamic(most int) options {
	return options{groups: []fleet.Group{{Name: "g", Max: most}}, queues: map[string][]string{"q": {"g"}}}
}

func TestJobStartsAnInstanceAndIdlenessEndsIt(t *testing.T) {
	for _, early := range []bool{false, true} {
		t.Run(fmt.Sprintf("early_%v", early), func(t *testing.T) {
			run(t, dynamic(2), func(s *site) {
				if n := len(s.present()); n != 0 {
					t.Fatalf("%d instances before any job", n)
				}
				s.ctld.submit(early, "g-1")
				took := s.within(10*time.Second, "the node is up", func() bool { return s.ctld.state("g-1") == up })
				if limit := 2 * time.Second; took > limit {
					t.Errorf("the node was up after %v, want %v: ResumeProgram comes after 1 s, booting takes 0.5 s", took, limit)
				}
				if early && took > 1300*time.Millisecond {
					t.Errorf("launched ahead the node was up after %v", took)
				}
				s.within(time.Second, "the instance is ready", func() bool { return !s.live("g-1").ReadyAt.IsZero() })
				i := s.live("g-1")
				if i.State != fleet.Running || i.ClusterID != clusterID || i.GroupID != "pcs_g" || i.Tags["aws:pcs:compute-node-group-id"] != "pcs_g" ||
					i.Tags["aws:pcs:cluster-id"] != clusterID || i.Tags["team"] != "x" || i.Type != "t3.micro" || i.Address == "" {
					t.Errorf("instance = %+v", i)
				}
				spec, ok := s.provider.Spec(i.ID)
				if !ok || spec.Role != "node" || spec.Address.Addr().String() != i.Address || spec.Address.Bits() != 16 || spec.Hostname != i.PrivateDNS() || len(spec.Mounts) == 0 {
					t.Errorf("spec = %+v", spec)
				}
				if s.live("g-2").ID != "" {
					t.Error("a node nobody wants has an instance")
				}
				if n := s.node("g-1"); !n.Want || n.Early || !slices.Equal(n.Jobs, []int{1}) {
					t.Errorf("node = %+v", n)
				}
				s.ctld.suspend("g-1")
				s.within(3*time.Second, "the instance is terminated", func() bool { return s.live("g-1").ID == "" })
				s.within(3*time.Second, "the node is idle~ again, before SuspendTimeout", func() bool { return s.ctld.state("g-1") == off })
				gone := s.instances("g-1")
				if len(gone) != 1 || gone[0].State != fleet.Terminated || gone[0].StateReason == "" || len(s.present()) != 0 {
					t.Errorf("instances = %v, present %v", brief(gone), s.present())
				}
				// describe-instances shows it for an hour, and then no more.
				s.wait(59 * time.Minute)
				if len(s.instances("g-1")) != 1 {
					t.Error("the terminated instance is forgotten within the hour")
				}
				s.wait(2 * time.Minute)
				if len(s.instances("g-1")) != 0 {
					t.Error("the terminated instance is still known after an hour")
				}
				if s.provider.Launches() != 2 { // the controller and the node
					t.Errorf("%d launches", s.provider.Launches())
				}
				// The history tells it all.
				want := []string{"resume", "assigned", "launched", "registered", "ready", "suspend", "retired", "terminated", "recovered"}
				if early {
					want = append([]string{"expect"}, "assigned", "launched", "registered", "resume", "ready", "suspend", "retired", "terminated", "recovered")
				}
				if got := s.kinds("g-1"); !slices.Equal(got, want) {
					t.Errorf("events = %v\nwant     %v", got, want)
				}
			})
		})
	}
}

func (s *site) commands() (out []string) {
	s.ctld.with(func() { out = slices.Clone(s.ctld.commands) })
	return out
}

// R5: a synchronous failure frees the job and the node in seconds.
func TestR5_FailedLaunchGoesDownThenPowersDown(t *testing.T) {
	o := dynamic(1)
	o.fake.LaunchError = func(spec compute.Spec) error {
		if spec.Role == "node" {
			return errors.New("the disk is full")
		}
		return nil
	}
	run(t, o, func(s *site) {
		s.ctld.submit(true, "g-1")
		took := s.within(15*time.Second, "idle~", func() bool { return s.ctld.state("g-1") == off && s.ctld.lost("g-1") == 1 })
		t.Logf("idle~ after %v", took)
		cmds := s.commands()
		down := slices.IndexFunc(cmds, func(c string) bool { return strings.Contains(c, "State=DOWN") })
		power := slices.IndexFunc(cmds, func(c string) bool { return strings.HasSuffix(c, "State=POWER_DOWN") })
		if down < 0 || power != down+1 {
			t.Errorf("commands = %v, want DOWN and then POWER_DOWN", cmds)
		}
		if !strings.Contains(cmds[down], "(Error Code: InternalError)") {
			t.Errorf("reason: %s", cmds[down])
		}
	})
}

// R17: slurmctld ignores a node that does not answer within ResumeTimeout, so
// the control plane says it.
func TestR17_LostInstanceSetsItsNodeDownWithinSeconds(t *testing.T) {
	for name, lose := range map[string]func(s *site, id string){
		"crash":     func(s *site, id string) { _ = s.provider.Crash(id) },
		"vanish":    func(s *site, id string) { s.provider.Vanish(id, false) },
		"a_restart": func(s *site, id string) { s.kill(); s.provider.Vanish(id, true); s.restart() },
		"cut_off":   func(s *site, id string) { s.provider.Disconnect(); s.provider.Vanish(id, true) },
	} {
		t.Run(name, func(t *testing.T) {
			run(t, dynamic(1), func(s *site) {
				s.ctld.submit(false, "g-1")
				s.wait(20 * time.Second) // long before ResumeTimeout
				old := s.live("g-1").ID
				lose(s, old)
				s.within(15*time.Second, "the job lost its node", func() bool { return s.ctld.lost("g-1") == 1 })
				s.within(15*time.Second, "the node is idle~", func() bool { return s.ctld.state("g-1") == off })
				if s.ctld.ran("State=DOWN Reason=pcs: instance "+old) != 1 {
					t.Errorf("commands = %v", s.commands())
				}
				s.settle()
				if i := s.instances("g-1"); len(i) != 1 || i[0].State != fleet.Terminated || i[0].StateReason == "" {
					t.Errorf("instances = %v", brief(i))
				}
				s.ctld.submit(false, "g-1") // the job again
				s.within(5*time.Second, "the job runs again", func() bool { return s.ctld.state("g-1") == up })
				if i := s.live("g-1"); i.ID == old {
					t.Error("the old instance is back")
				}
			})
		})
	}
}

func TestSilentLossIsFoundBySweep(t *testing.T) {
	run(t, dynamic(1), func(s *site) {
		s.ctld.submit(false, "g-1")
		s.wait(20 * time.Second)
		s.provider.Vanish(s.live("g-1").ID, true)
		s.within(45*time.Second, "found without any event", func() bool { return s.ctld.lost("g-1") == 1 })
	})
}

func TestRebootIsNoLoss(t *testing.T) {
	run(t, dynamic(1), func(s *site) {
		s.ctld.submit(false, "g-1")
		s.wait(20 * time.Second)
		id := s.live("g-1").ID
		if err := s.plane().RebootInstance(context.Background(), id); err != nil {
			t.Fatal(err)
		}
		// From inside: stopped and started one after the other.
		_ = s.provider.Crash(id)
		s.wait(500 * time.Millisecond)
		if err := s.provider.Reboot(context.Background(), id); err != nil {
			t.Fatal(err)
		}
		s.settle()
		if i := s.live("g-1"); i.ID != id || i.State != fleet.Running || s.ctld.lost("g-1") != 0 {
			t.Errorf("after reboots the node has %+v, %d jobs lost", i, s.ctld.lost("g-1"))
		}
	})
}

// An instance launched ahead of a ResumeProgram that never comes.
func TestExpectedButNotResumed(t *testing.T) {
	run(t, dynamic(1), func(s *site) {
		if err := s.hook(imds.Hook{Kind: "expect", Nodes: "g-1"}); err != nil {
			t.Fatal(err)
		}
		s.wait(5 * time.Second)
		i := s.live("g-1")
		if i.ID == "" || i.RegisteredAt.IsZero() {
			t.Fatalf("nothing was launched ahead: %+v", i)
		}
		if st := s.ctld.state("g-1"); st != off {
			t.Fatalf("slurmd did not wait for the resume: %s", st)
		}
		if s.live("g-1").State != fleet.Running {
			t.Fatal("given up too early")
		}
		s.within(fleet.EarlyLimit, "given up", func() bool { return s.live("g-1").ID == "" })
		if n := s.node("g-1"); n.Want || n.Early || n.Attempts != 0 {
			t.Errorf("node = %+v", n)
		}
		if s.ctld.ran("scontrol") != 0 {
			t.Errorf("Slurm was bothered: %v", s.commands())
		}
		// A node that rests, or whose former instance is on its way, is not
		// launched ahead.
		s.update(func(tx *store.Tx) error {
			n, err := fleet.Nodes.Get(tx, fleet.NodeID(clusterID, "g-1"))
			n.NotBefore = time.Now().Add(time.Minute)
			return errors.Join(err, fleet.Nodes.Put(tx, n))
		})
		if err := s.hook(imds.Hook{Kind: "expect", Nodes: "g-1"}); err != nil {
			t.Fatal(err)
		}
		s.wait(2 * time.Second)
		if s.node("g-1").Want {
			t.Error("a resting node is launched ahead")
		}
	})
}

func TestBootstrapFailures(t *testing.T) {
	for how, limit := range map[string]time.Duration{"fail": 20 * time.Second, "hang": fleet.BootstrapTimeout + 20*time.Second} {
		t.Run(how, func(t *testing.T) {
			run(t, dynamic(1), func(s *site) {
				s.act(how)
				s.ctld.submit(false, "g-1")
				s.within(limit, "the job loses the node", func() bool { return s.ctld.lost("g-1") == 1 })
				s.within(20*time.Second, "idle~", func() bool { return s.ctld.state("g-1") == off })
				s.settle()
				i := s.instances("g-1")[0]
				if i.State != fleet.Terminated || i.Failure == "" || i.FailureCode == "" {
					t.Errorf("instance = %+v", i)
				}
				if how == "fail" && s.ctld.ran("State=POWER_DOWN_FORCE Reason=Backing Instance Failed To Bootstrap: "+i.ID) != 1 {
					t.Errorf("commands = %v", s.commands())
				}
				if len(s.present()) != 0 {
					t.Error("the instance is still there")
				}
				if n := s.node("g-1"); n.Attempts != 1 || n.Want {
					t.Errorf("node = %+v", n)
				}
			})
		})
	}
}

// R2: what is not up within ResumeTimeout cycles back to idle~ by itself.
func TestR2_ResumeTimeout(t *testing.T) {
	run(t, dynamic(1), func(s *site) {
		s.act("mute")
		s.ctld.submit(false, "g-1")
		s.wait(resumeTimeout - time.Minute)
		if s.live("g-1").ID == "" || s.ctld.lost("g-1") != 0 {
			t.Fatal("given up before its time")
		}
		s.wait(2 * time.Minute)
		if st := s.ctld.state("g-1"); st != off || s.ctld.lost("g-1") != 1 {
			t.Errorf("after ResumeTimeout the node is %s, %d jobs requeued", st, s.ctld.lost("g-1"))
		}
		if n := s.node("g-1"); n.LastFailure == "" || n.Attempts != 1 || n.Want || len(s.present()) != 0 {
			t.Errorf("why is not kept: %+v", n)
		}
	})
}

func TestStaticNodes(t *testing.T) {
	// I5: a group in three queues has one instance per node.
	o := options{
		groups: []fleet.Group{{Name: "s", Min: 2, Max: 3}},
		queues: map[string][]string{"q1": {"s"}, "q2": {"s"}, "q3": {"s"}},
	}
	run(t, o, func(s *site) {
		for _, n := range []string{"s-1", "s-2"} {
			if i := s.live(n); i.ReadyAt.IsZero() || s.ctld.state(n) != "IDLE+CLOUD" {
				t.Errorf("%s is %s with %+v", n, s.ctld.state(n), i)
			}
		}
		if s.live("s-3").ID != "" || s.provider.Launches() != 3 {
			t.Errorf("%d launches, want the controller and two nodes", s.provider.Launches())
		}
		// They stay, whatever time passes.
		s.wait(time.Hour)
		if s.provider.Launches() != 3 || len(s.present()) != 2 {
			t.Errorf("after an hour: %d launches, %d instances", s.provider.Launches(), len(s.present()))
		}
		// A lost one is made anew.
		lost := s.live("s-1").ID
		s.provider.Vanish(lost, false)
		s.within(time.Minute, "a new static instance", func() bool { i := s.live("s-1"); return i.ID != lost && !i.ReadyAt.IsZero() })
		if s.live("s-2").ID == "" || s.provider.Launches() != 4 {
			t.Errorf("%d launches", s.provider.Launches())
		}
	})
}

// I7: many nodes at once are one batch. The agents stay silent here: what
// counts is how the launches go.
func TestI7_FiveHundredJobsInOneHook(t *testing.T) {
	o := dynamic(500)
	o.fake.Latency = func(op fake.Op, _ string) time.Duration {
		if op == fake.OpLaunch {
			return 250 * time.Millisecond
		}
		return 0
	}
	run(t, o, func(s *site) {
		s.act("hang")
		var names []string
		for n := 1; n <= 500; n++ {
			names = append(names, fmt.Sprintf("g-%d", n))
		}
		s.ctld.submit(false, names...)
		s.wait(1050 * time.Millisecond)
		if n := len(s.instances("")); n != 500 {
			t.Errorf("at once after the hook %d instances are assigned, want all 500", n)
		}
		// Eight at once, of a quarter of a second each.
		s.wait(2500 * time.Millisecond)
		if n := len(s.present()); n != 80 || s.provider.Launches() != 81 {
			t.Errorf("after 2.5 s there are %d instances of %d launches, want 80", n, s.provider.Launches())
		}
		addresses := map[string]bool{}
		for _, i := range s.instances("") {
			if addresses[i.Address] {
				t.Errorf("the address %s is given twice", i.Address)
			}
			addresses[i.Address] = true
		}
	})
}

func TestResumeWhileTheFormerInstanceEnds(t *testing.T) {
	o := dynamic(1)
	o.fake.Latency = func(op fake.Op, _ string) time.Duration {
		if op == fake.OpTerminate {
			return 20 * time.Second
		}
		return 0
	}
	run(t, o, func(s *site) {
		s.ctld.submit(false, "g-1")
		s.wait(10 * time.Second)
		old := s.live("g-1").ID
		s.ctld.suspend("g-1")
		s.wait(6 * time.Second) // SuspendTimeout: Slurm thinks it is off
		if i := s.live("g-1"); i.ID != old || i.State != fleet.ShuttingDown {
			t.Fatalf("instance = %+v, want it shutting down", i)
		}
		s.ctld.submit(false, "g-1")
		s.wait(3 * time.Second)
		if i := s.live("g-1"); i.ID != old {
			t.Errorf("a second instance %s came before the first was gone", i.ID)
		}
		s.within(30*time.Second, "the node is up on a new instance", func() bool { return s.ctld.state("g-1") == up && s.live("g-1").ID != old })
		if s.ctld.lost("g-1") != 0 {
			t.Error("the job was requeued")
		}
	})
}

// What Slurm suspends while it waits for its turn is not launched any more.
func TestSuspendedBeforeTheLaunch(t *testing.T) {
	o := dynamic(20)
	o.fake.Latency = func(op fake.Op, id string) time.Duration {
		if op == fake.OpLaunch && strings.HasPrefix(id, "i-") {
			return 10 * time.Second
		}
		return 0
	}
	run(t, o, func(s *site) {
		if err := s.hook(imds.Hook{Kind: "resume", Nodes: "g-[1-20]"}); err != nil {
			t.Fatal(err)
		}
		s.wait(time.Second)
		if err := s.hook(imds.Hook{Kind: "suspend", Nodes: "g-[1-20]"}); err != nil {
			t.Fatal(err)
		}
		s.settle()
		s.settle()
		if n := s.provider.Launches(); n > 9 {
			t.Errorf("%d launches, want the controller and the eight that were under way", n)
		}
		if len(s.present()) != 0 {
			t.Errorf("instances are left: %v", s.present())
		}
	})
}

// Launching ahead needs a node without a former life.
func TestExpectedWhileTheFormerInstanceEnds(t *testing.T) {
	o := dynamic(1)
	o.fake.Latency = func(op fake.Op, _ string) time.Duration {
		if op == fake.OpTerminate {
			return 20 * time.Second
		}
		return 0
	}
	run(t, o, func(s *site) {
		s.ctld.submit(false, "g-1")
		s.wait(10 * time.Second)
		s.ctld.suspend("g-1")
		s.wait(6 * time.Second)
		if err := s.hook(imds.Hook{Kind: "expect", Nodes: "g-1"}); err != nil {
			t.Fatal(err)
		}
		if n := s.node("g-1"); n.Want || n.Early {
			t.Errorf("node = %+v", n)
		}
	})
}

// Slurm resumes a node whose instance never went (a lost suspend).
func TestResumeOfANodeThatStillRuns(t *testing.T) {
	run(t, dynamic(1), func(s *site) {
		s.ctld.submit(false, "g-1")
		s.wait(10 * time.Second)
		old := s.live("g-1").ID
		s.ctld.with(func() { h := s.ctld.nodes["g-1"]; h.base = "IDLE"; h.set("POWERED_DOWN") })
		s.ctld.submit(false, "g-1")
		s.within(10*time.Second, "up on a fresh instance", func() bool { return s.ctld.state("g-1") == up && s.live("g-1").ID != old && s.live("g-1").ID != "" })
	})
}

func TestR19_ResumeFileGone(t *testing.T) {
	for name, file := range map[string]string{
		"gone": "", "cut": `{"all_nodes_resume":"g-`, "garbage": "\x00\x01", "null": "null", "no_nodes": `{"jobs":[]}`, "wrong_types": `{"all_nodes_resume":7}`,
		"bad_jobs": `{"all_nodes_resume":"g-[1-2]","jobs":[{"job_id":1,"nodes_resume":"g-["}]}`,
	} {
		t.Run(name, func(t *testing.T) {
			run(t, dynamic(2), func(s *site) {
				if err := s.hook(imds.Hook{Kind: "resume", Nodes: "g-[1-2]", ResumeFile: file}); err != nil {
					t.Fatal(err)
				}
				s.wait(time.Second)
				for _, n := range []string{"g-1", "g-2"} {
					if s.live(n).ID == "" {
						t.Errorf("%s was not launched", n)
					}
					if len(s.node(n).Jobs) != 0 {
						t.Errorf("%s has jobs %v", n, s.node(n).Jobs)
					}
				}
			})
		})
	}
}

func TestHooksThatMakeNoSense(t *testing.T) {
	run(t, dynamic(2), func(s *site) {
		var refused *imds.RefusedError
		for _, h := range []imds.Hook{{Kind: "resume", Nodes: "g-["}, {Kind: "resume", Nodes: "g-[1-1000000]"}, {Kind: "reboot", Nodes: "g-1"}} {
			if err := s.hook(h); !errors.As(err, &refused) {
				t.Errorf("%+v: %v, want it refused for good", h, err)
			}
		}
		// Nodes that are not ours, or beyond the maximum, change nothing; those
		// beside them count.
		if err := s.hook(imds.Hook{Kind: "resume", Nodes: "x-1,g-3,g-2,g-0,g-02"}); err != nil {
			t.Fatal(err)
		}
		if err := s.hook(imds.Hook{Kind: "suspend", Nodes: ""}); err != nil {
			t.Errorf("an empty list: %v", err)
		}
		s.wait(time.Second)
		all := s.instances("")
		if len(all) != 1 || all[0].NodeName != "g-2" {
			t.Errorf("instances = %v, want one for g-2", brief(all))
		}
	})
}

func TestUserTerminatesAnInstance(t *testing.T) {
	run(t, dynamic(1), func(s *site) {
		s.ctld.submit(false, "g-1")
		s.wait(10 * time.Second)
		id := s.live("g-1").ID
		if err := s.plane().TerminateInstance(context.Background(), "us-east-1", id); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("from another region: %v", err)
		}
		for range 2 {
			if err := s.plane().TerminateInstance(context.Background(), region, id); err != nil {
				t.Fatal(err)
			}
		}
		s.within(15*time.Second, "the job lost the node", func() bool { return s.ctld.lost("g-1") == 1 })
		s.within(15*time.Second, "idle~", func() bool { return s.ctld.state("g-1") == off })
		if i := s.instances("g-1"); i[0].State != fleet.Terminated || !strings.HasPrefix(i[0].StateReason, "Client.UserInitiatedShutdown") {
			t.Errorf("instance = %+v", i)
		}
		if err := s.plane().TerminateInstance(context.Background(), region, id); err != nil {
			t.Errorf("of a terminated one: %v", err)
		}
	})
}

func TestLogsOfTheTerminatedAreKept(t *testing.T) {
	run(t, dynamic(1), func(s *site) {
		s.ctld.submit(false, "g-1")
		s.wait(10 * time.Second)
		id := s.live("g-1").ID
		_ = s.provider.SetConsole(id, []byte("console says"))
		_ = s.provider.SetFile(id, "/var/log/amazon/pcs/bootstrap.log", []byte("bootstrap says"))
		s.ctld.suspend("g-1")
		s.settle()
		for name, want := range map[string]string{"console.log": "console says", "bootstrap.log": "bootstrap says"} {
			if got, err := s.plane().KeptLog(id, name); err != nil || string(got) != want {
				t.Errorf("%s = %q, %v", name, got, err)
			}
		}
		if got, err := s.plane().ConsoleOutput(context.Background(), id); err != nil || string(got) != "console says" {
			t.Errorf("console output = %q, %v", got, err)
		}
		for _, bad := range [][2]string{{"..", "state.db"}, {id, "../../state.db"}, {"../logs", "x"}, {id, "..\\x"}} {
			if _, err := s.plane().KeptLog(bad[0], bad[1]); err == nil {
				t.Errorf("KeptLog(%q, %q) reads something", bad[0], bad[1])
			}
		}
	})
}

func TestDrainedByAPersonIsLeftAlone(t *testing.T) {
	run(t, dynamic(1), func(s *site) {
		s.ctld.submit(false, "g-1")
		s.wait(10 * time.Second)
		s.ctld.with(func() {
			h := s.ctld.nodes["g-1"]
			h.drained, h.reason, h.base = true, "bad disk [alice]", "IDLE"
			h.set()
		})
		s.ctld.suspend("g-1")
		s.settle()
		if st := s.ctld.state("g-1"); !strings.Contains(st, "DRAIN") || s.ctld.reason("g-1") != "bad disk [alice]" {
			t.Errorf("the node is %s, %q", st, s.ctld.reason("g-1"))
		}
		if s.ctld.ran("State=RESUME") != 0 || s.ctld.ran("State=DOWN") != 0 {
			t.Errorf("commands = %v", s.commands())
		}
		if len(s.present()) != 0 {
			t.Error("the instance of the suspended node is still there")
		}
	})
}

// A configuration waits for jobs whose nodes come up, so launches do not
// wait for a configuration.
func TestLaunchWhileSlurmctldIsConfigured(t *testing.T) {
	run(t, dynamic(1), func(s *site) {
		s.ctld.with(func() { s.ctld.takes = time.Minute })
		s.update(func(tx *store.Tx) error {
			cl, err := fleet.Clusters.Get(tx, clusterID)
			if err != nil {
				return err
			}
			cl.Status, cl.IdleTime = fleet.Updating, 17*time.Second
			return fleet.Clusters.Put(tx, cl)
		})
		s.plane().Wake(clusterID)
		s.wait(time.Second)
		s.ctld.submit(false, "g-1")
		s.within(10*time.Second, "the node is up", func() bool { return s.ctld.state("g-1") == up })
		if got := s.cluster().Status; got != fleet.Updating {
			t.Errorf("the cluster is %s while slurmctld takes its configuration", got)
		}
		s.within(2*time.Minute, "the cluster is active", func() bool { return s.cluster().Status == fleet.Active })
	})
}

// A provider that hangs with the end of one instance keeps neither the
// others nor launches, and is asked again.
func TestEndThatHangs(t *testing.T) {
	const n = 12
	var hung atomic.Value
	o := dynamic(n)
	o.fake.Latency = func(op fake.Op, id string) time.Duration {
		if op == fake.OpTerminate && hung.CompareAndSwap(id, "") {
			return 24 * time.Hour
		}
		return 0
	}
	run(t, o, func(s *site) {
		var names []string
		for i := range n {
			names = append(names, fmt.Sprintf("g-%d", i+1))
		}
		s.ctld.submit(false, names...)
		s.within(time.Minute, "all nodes are up", func() bool {
			return !slices.ContainsFunc(names, func(name string) bool { return s.ctld.state(name) != up })
		})
		last := s.live("g-1").ID
		hung.Store(last)
		s.ctld.suspend(names...)
		s.within(time.Minute, "the other nodes are off", func() bool {
			return !slices.ContainsFunc(names[1:], func(name string) bool { return s.live(name).ID != "" })
		})
		if got := s.live("g-1").ID; got != last {
			t.Errorf("g-1 has %q, want the hung %s", got, last)
		}
		s.within(5*time.Minute, "the hung one is ended after all", func() bool { return s.live("g-1").ID == "" })
	})
}

// What an update of a group mends need not be waited for: an instance that
// comes up from before it is replaced at once, as long as no job can be there.
func TestUpdateWhileANodeComesUp(t *testing.T) {
	update := func(s *site) {
		s.update(func(tx *store.Tx) error {
			g, err := fleet.Groups.Get(tx, "pcs_g")
			if err != nil {
				return err
			}
			g.Revise()
			g.Status, g.ModifiedAt = fleet.Updating, time.Now().UTC()
			return fleet.Groups.Put(tx, g)
		})
		s.plane().Wake(clusterID)
	}
	run(t, dynamic(1), func(s *site) {
		s.act("hang")
		s.ctld.submit(false, "g-1")
		s.within(5*time.Second, "it is launched", func() bool { return !s.live("g-1").StartedAt.IsZero() })
		old := s.live("g-1").ID
		s.act("")
		update(s)
		s.within(10*time.Second, "another instance is up", func() bool { return s.ctld.state("g-1") == up })
		if s.live("g-1").ID == old || s.ctld.lost("g-1") != 0 {
			t.Errorf("the node has %s, was %s, and its job was requeued %d times", s.live("g-1").ID, old, s.ctld.lost("g-1"))
		}
	})
}

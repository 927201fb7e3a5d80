package control_test

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/openpcs/openpcs/internal/compute"
	"github.com/openpcs/openpcs/internal/compute/fake"
	"github.com/openpcs/openpcs/internal/condition"
	"github.com/openpcs/openpcs/internal/fault"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/history"
	"github.com/openpcs/openpcs/internal/imds"
	"github.com/openpcs/openpcs/internal/store"
)

// I10 (ParallelCluster #1332: nodes vanish "for no reason"): however an
// instance ends, describe-instances has the code and the reason, and the
// history of its node tells who or what ended it, and that it ended.
func TestI10_EveryTerminationIsExplained(t *testing.T) {
	isUp := func(s *site) string {
		s.t.Helper()
		s.ctld.submit(false, "g-1")
		s.within(10*time.Second, "g-1 is up", func() bool { return s.ctld.state("g-1") == up && !s.live("g-1").ReadyAt.IsZero() })
		return s.live("g-1").ID
	}
	// update changes the group as an UpdateComputeNodeGroup does.
	update := func(s *site, f func(g *fleet.Group)) {
		s.t.Helper()
		s.update(func(tx *store.Tx) error {
			g, err := fleet.Groups.Get(tx, "pcs_g")
			f(&g)
			g.Status, g.ModifiedAt = fleet.Updating, time.Now().UTC()
			return errors.Join(err, fleet.Groups.Put(tx, g))
		})
		s.plane().Wake(clusterID)
	}
	strike := func(s *site, kind string) {
		s.t.Helper()
		f, err := fault.New(kind, 1, 0, 0, "", time.Now().UTC())
		if err != nil {
			s.t.Fatal(err)
		}
		f.ClusterID, f.GroupID, f.Group = clusterID, "pcs_g", "g"
		if err := s.plane().AddFault(s.ctx, f); err != nil {
			s.t.Fatal(err)
		}
	}
	// slurmd makes slurmctld see the node in another way.
	slurmd := func(s *site, base, reason string, flags ...string) {
		s.ctld.with(func() {
			h := s.ctld.nodes["g-1"]
			h.base, h.reason = base, reason
			h.set(flags...)
		})
		s.ctld.push()
	}
	refusing := func(err error) options {
		o := dynamic(2)
		o.fake.LaunchError = func(spec compute.Spec) error {
			if spec.Role != "node" {
				return nil
			}
			return err
		}
		return o
	}
	slow := dynamic(2)
	slow.fake.Latency = func(op fake.Op, id string) time.Duration {
		if op == fake.OpLaunch && strings.HasPrefix(id, "i-") {
			return 10 * time.Second
		}
		return 0
	}
	const (
		openpcs = "User.Initiated"
		failed  = "Server.InternalError"
	)
	for name, way := range map[string]struct {
		options options
		end     func(s *site)
		code    string   // of describe-instances
		reason  string   // likewise, a part of it
		told    []string // by the history, in this order
	}{
		"idle": {dynamic(2), func(s *site) {
			isUp(s)
			s.ctld.suspend("g-1")
		}, openpcs, "Slurm suspended its node", []string{"Slurm suspended the node", "Slurm suspended its node (IDLE)"}},
		"never resumed": {dynamic(2), func(s *site) {
			if err := s.hook(imds.Hook{Kind: "expect", Nodes: "g-1"}); err != nil {
				s.t.Fatal(err)
			}
			s.wait(fleet.EarlyLimit)
		}, openpcs, "Slurm did not resume the node after all", []string{"ahead of Slurm's ResumeProgram", "not wanted any more: "}},
		"suspended before its launch": {slow, func(s *site) {
			s.ctld.submit(false, "g-1")
			s.wait(2 * time.Second)
			if err := s.hook(imds.Hook{Kind: "suspend", Nodes: "g-1"}); err != nil {
				s.t.Fatal(err)
			}
		}, openpcs, "Slurm suspended its node", []string{"Slurm suspended the node", "(IDLE)"}},
		"resumed anew": {dynamic(2), func(s *site) {
			isUp(s)
			slurmd(s, "IDLE", "", "POWERED_DOWN")
			s.ctld.submit(false, "g-1")
		}, openpcs, "Slurm resumed its node anew", []string{"Slurm asked for the node, for job"}},
		"lost": {dynamic(2), func(s *site) {
			s.provider.Vanish(isUp(s), false)
		}, "Server.Lost", "terminated outside of openpcs", []string{"lost i-", "terminated outside of openpcs"}},
		"lost without a word": {dynamic(2), func(s *site) {
			s.provider.Vanish(isUp(s), true)
		}, "Server.Lost", "terminated outside of openpcs", []string{"lost i-", "terminated outside of openpcs"}},
		"lost while the control plane was away": {dynamic(2), func(s *site) {
			id := isUp(s)
			s.kill()
			s.provider.Vanish(id, true)
			s.restart()
		}, "Server.Lost", "terminated outside of openpcs", []string{"lost i-", "terminated outside of openpcs"}},
		"lost by a fault": {dynamic(2), func(s *site) {
			isUp(s)
			strike(s, "lost-node")
		}, "Server.Lost", "terminated outside of openpcs", []string{"struck: lost-node", "lost i-"}},
		"shut down from inside": {dynamic(2), func(s *site) {
			if err := s.provider.Crash(isUp(s)); err != nil {
				s.t.Fatal(err)
			}
		}, "Client.InstanceInitiatedShutdown", "it shut itself down", []string{"lost i-", "it shut itself down"}},
		"reclaimed": {dynamic(2), func(s *site) {
			isUp(s)
			strike(s, "spot-reclaim")
			s.wait(2 * time.Minute)
		}, "Server.SpotInstanceTermination", "the provider reclaimed it", []string{"struck: spot-reclaim", "was taken back: the provider reclaimed it"}},
		"terminated by a user": {dynamic(2), func(s *site) {
			if err := s.plane().TerminateInstance(s.ctx, region, isUp(s)); err != nil {
				s.t.Fatal(err)
			}
		}, "Client.UserInitiatedShutdown", "User initiated shutdown", []string{"a user terminated the instance i-"}},
		"its bootstrap fails": {dynamic(2), func(s *site) {
			s.act("fail")
			s.ctld.submit(false, "g-1")
		}, failed, "the script ended with 1", []string{"the bootstrap of i-", "the script ended with 1 (BOOTSTRAP_FAILED)"}},
		"never registers": {dynamic(2), func(s *site) {
			s.act("hang")
			s.ctld.submit(false, "g-1")
			s.wait(fleet.BootstrapTimeout)
		}, failed, "did not register within", []string{"failed: it did not register within"}},
		"never ready": {dynamic(2), func(s *site) {
			s.act("mute")
			s.ctld.submit(false, "g-1")
			s.wait(resumeTimeout)
		}, failed, "ResumeTimeout", []string{"it was not up within ResumeTimeout"}},
		"hangs": {dynamic(2), func(s *site) {
			isUp(s)
			slurmd(s, "DOWN", "Not responding", "NOT_RESPONDING")
		}, openpcs, "Slurm suspended its node", []string{"had Slurm power the node down: Not responding", "ending i-"}},
		"rebooted by somebody": {dynamic(2), func(s *site) {
			isUp(s)
			slurmd(s, "DOWN", "Node unexpectedly rebooted")
		}, openpcs, "Slurm suspended its node", []string{"had Slurm power the node down: Node unexpectedly rebooted", "ending i-"}},
		"no room for it": {refusing(&compute.CapacityError{Code: "InsufficientInstanceCapacity", Err: errors.New("no room")}), func(s *site) {
			s.ctld.submit(false, "g-1")
		}, "Server.InsufficientInstanceCapacity", "no room", []string{"refused: no t3.micro", "InsufficientInstanceCapacity: no room"}},
		"nothing was launched": {nothing(dynamic(2)), func(s *site) {
			s.ctld.submit(false, "g-1")
		}, "Server.InsufficientInstanceCapacity", "no error and no instance", []string{"refused: no t3.micro"}},
		"its launch fails": {refusing(errors.New("no such bridge")), func(s *site) {
			s.ctld.submit(false, "g-1")
		}, failed, "no such bridge", []string{"the launch of i-", "no such bridge"}},
		"scale-in": {dynamic(2), func(s *site) {
			s.ctld.submit(false, "g-2")
			s.within(10*time.Second, "g-2 is up", func() bool { return s.ctld.state("g-2") == up })
			update(s, func(g *fleet.Group) { g.Max = 1 })
		}, openpcs, "maximum was lowered below its node", []string{"maximum was lowered below its node (SCALE_IN)"}},
		"its group is updated": {dynamic(2), func(s *site) {
			isUp(s)
			update(s, func(g *fleet.Group) { g.Revision++ })
		}, openpcs, "Slurm suspended its node", []string{"had Slurm power the node down when its jobs are done: ", "ending i-"}},
		"its group is deleted": {dynamic(2), func(s *site) {
			isUp(s)
			s.setStatus("g", fleet.Deleting)
		}, openpcs, "its compute node group is being deleted", []string{"its compute node group is being deleted (GROUP_DELETED)"}},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, way.options, func(s *site) {
				way.end(s)
				var ended []fleet.Instance
				s.within(2*time.Minute, "an instance ends", func() bool {
					ended = slices.DeleteFunc(s.instances(""), func(i fleet.Instance) bool { return i.State != fleet.Terminated })
					return len(ended) > 0
				})
				i := ended[0]
				if i.StateCode != way.code || !strings.Contains(i.StateReason, way.reason) {
					s.t.Errorf("it ended with %q %q, want %q %q", i.StateCode, i.StateReason, way.code, way.reason)
				}
				if _, ok := condition.Find(i.FailureCode); !ok && i.FailureCode != "" {
					s.t.Errorf("its failure %q has no text", i.FailureCode)
				}
				// What openpcs explain shows of the instance, or of its node.
				trail := s.trail(i)
				rest := trail
				for _, want := range append(slices.Clone(way.told), "ended "+i.ID+": ") {
					_, after, ok := strings.Cut(rest, want)
					if !ok {
						s.t.Fatalf("%q is not told, or not in this order:\n%s", want, trail)
					}
					rest = after
				}
				if !s.told(i) {
					s.t.Errorf("it ended for no reason:\n%s", trail)
				}
			})
		})
	}
}

// trail is the history of an instance's node in sentences, with the faults
// that were asked for.
func (s *site) trail(i fleet.Instance) string {
	s.t.Helper()
	var out strings.Builder
	s.view(func(tx *store.Tx) error {
		events, err := tx.Events(i.ClusterID, "node/"+i.NodeName, 1000)
		for _, e := range events {
			if !json.Valid(e.Detail) {
				s.t.Errorf("the detail of %s is %q", e.Kind, e.Detail)
			}
			out.WriteString(history.Sentence(e) + "\n")
		}
		return err
	})
	return out.String()
}

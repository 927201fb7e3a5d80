package control

import (
	"context"
	"encoding/base64"
	"fmt"
	"log/slog"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/openpcs/openpcs/internal/agent"
	"github.com/openpcs/openpcs/internal/compute"
	"github.com/openpcs/openpcs/internal/compute/fake"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/secretsmanager"
	"github.com/openpcs/openpcs/internal/slurm"
	"github.com/openpcs/openpcs/internal/store"
)

// willing is a slurmctld that takes what it is given.
type willing struct {
	Slurmctld
	nodes map[string]slurm.Node
}

func (willing) Configure(context.Context, agent.Config) (string, error) { return "", nil }

func (w willing) Nodes(context.Context) (map[string]slurm.Node, error) { return w.nodes, nil }

// crowded returns a control plane that holds one cluster with so many nodes,
// all up, in groups of a thousand at most.
func crowded(b *testing.B, nodes int) (*Control, *loop) {
	b.Helper()
	st, err := store.Open(filepath.Join(b.TempDir(), "state.db"))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = st.Close() })
	now := time.Now().UTC()
	cl := fleet.Cluster{
		ID: "pcs_load", Region: "ap-northeast-1", Name: "load", Status: fleet.Active, Version: "26.05", Size: fleet.Large,
		ControllerID: "ctl-load", ControllerAddress: "10.77.16.4", IdleTime: 10 * time.Minute, CreatedAt: now,
	}
	states := map[string]slurm.Node{}
	err = st.Update(b.Context(), func(tx *store.Tx) (err error) {
		secret := base64.StdEncoding.EncodeToString(make([]byte, 16))
		if cl.KeyARN, cl.KeyVersion, err = secretsmanager.Create(tx, cl.Region, "000000000000", "pcs!load", secret, "pcs", now); err != nil {
			return err
		}
		if err := fleet.Clusters.Put(tx, cl); err != nil {
			return err
		}
		const most = 1000
		for first := 0; first < nodes; first += most {
			g := fleet.Group{
				ID: fmt.Sprintf("pcs_g%d", first), ClusterID: cl.ID, Region: cl.Region, Name: fmt.Sprintf("g%d", first/most), Status: fleet.Active,
				Max: min(most, nodes-first), InstanceTypes: []string{"t3.micro"}, SubnetIDs: []string{"subnet-1"},
				Launch: fleet.Launch{ImageID: "ami-1", SecurityGroups: []string{"sg-1"}, Tags: map[string]string{"team": "x"}},
			}
			if err := fleet.Groups.Put(tx, g); err != nil {
				return err
			}
			data := bootData(cl, g)
			for n := 1; n <= g.Max; n++ {
				name := g.NodeName(n)
				i := fleet.Instance{
					ID: fleet.NewEC2ID("i"), Region: cl.Region, State: fleet.Running, ImageID: "ami-1", Type: "t3.micro", SubnetID: "subnet-1", VPCID: "vpc-1",
					AZ: "ap-northeast-1a", Address: fmt.Sprintf("10.77.%d.%d", 16+(first+n)/250, 4+(first+n)%250), SecurityGroups: []string{"sg-1"},
					Tags:     map[string]string{"team": "x", "aws:pcs:cluster-id": cl.ID, "aws:pcs:compute-node-group-id": g.ID, "AWSPCSManaged": "true"},
					UserData: data, LaunchedAt: now, StartedAt: now, RegisteredAt: now, ReadyAt: now, BootstrapID: fleet.NewEC2ID("b"),
					ClusterID: cl.ID, GroupID: g.ID, NodeName: name,
				}
				node := fleet.Node{ClusterID: cl.ID, GroupID: g.ID, Name: name, Index: n, Want: true, WantAt: now, ChangedAt: now, Jobs: []int{n}}
				if err := fleet.Instances.Put(tx, i); err != nil {
					return err
				}
				if err := fleet.Nodes.Put(tx, node); err != nil {
					return err
				}
				states[name] = slurm.Node{Name: name, State: []string{"ALLOCATED", "CLOUD"}}
			}
		}
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
	c := New(Options{
		Store: st, Provider: fake.New(fake.Options{}), Account: "000000000000", StateDir: b.TempDir(), PrefixBits: 16,
		Log: slog.New(slog.DiscardHandler), Slurmctld: func(fleet.Cluster) Slurmctld { return willing{nodes: states} },
	})
	c.ctx, c.cancel = context.WithCancel(b.Context())
	c.started = now
	c.setPresent(cl.ControllerID, compute.Running)
	l := &loop{id: cl.ID, wake: make(chan struct{}, 1), poweredUp: map[string]time.Time{}}
	l.setStates(states, true)
	return c, l
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkPass is one look of a cluster's loop, with all that it reads from
// the state file, when nothing has to be done.
func BenchmarkPass(b *testing.B) {
	for _, nodes := range []int{2048, 10000} {
		b.Run(fmt.Sprintf("nodes=%d", nodes), func(b *testing.B) {
			c, l := crowded(b, nodes)
			if _, err := c.pass(l); err != nil { // the first one writes the configuration
				b.Fatal(err)
			}
			began := cpuTime()
			for b.Loop() {
				if _, err := c.pass(l); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64((cpuTime()-began).Microseconds())/1000/float64(b.N), "cpu-ms/op")
		})
	}
}

// BenchmarkPlan is the decision alone.
func BenchmarkPlan(b *testing.B) {
	for _, nodes := range []int{2048, 10000} {
		b.Run(fmt.Sprintf("nodes=%d", nodes), func(b *testing.B) {
			c, l := crowded(b, nodes)
			o := fleet.Observed{Now: time.Now().UTC(), Nodes: map[string]fleet.Node{}, Slurm: l.states(), Since: l.sinces()}
			err := c.Store.View(b.Context(), func(tx *store.Tx) (err error) {
				if o.Groups, err = fleet.Groups.Of(tx, l.id); err != nil {
					return err
				}
				if o.Instances, err = fleet.Instances.Of(tx, l.id); err != nil {
					return err
				}
				nodes, err := fleet.Nodes.Of(tx, l.id)
				for _, n := range nodes {
					o.Nodes[n.Name] = n
				}
				return err
			})
			if err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				if actions, _ := fleet.Plan(o); len(actions) > 0 {
					b.Fatalf("something was to be done: %+v", actions[0])
				}
			}
		})
	}
}

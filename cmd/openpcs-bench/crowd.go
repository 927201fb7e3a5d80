package main

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/openpcs/openpcs/internal/agent"
	"github.com/openpcs/openpcs/internal/app"
	"github.com/openpcs/openpcs/internal/compute"
	"github.com/openpcs/openpcs/internal/compute/fake"
	"github.com/openpcs/openpcs/internal/ec2"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/imds"
	"github.com/openpcs/openpcs/internal/secretsmanager"
	"github.com/openpcs/openpcs/internal/slurm"
	"github.com/openpcs/openpcs/internal/store"
)

// crowdCommand is the argument by which the program runs itself as a control
// plane with a crowd of nodes on the fake provider.
const crowdCommand = "serve-crowd"

// The crowd's names.
const (
	crowdBridge  = "openpcs-crowd"
	crowdRegion  = "ap-northeast-1"
	crowdCluster = "pcs_crowd00001"
	crowdImage   = "ami-00000000000000001"
	crowdGroups  = 4
)

func crowdOptions(dir string) app.Options {
	return app.Options{
		Site: "crowd", StateDir: dir, Listen: "127.0.0.1:7331", Subnet: netip.MustParsePrefix("10.81.0.0/16"), Region: crowdRegion,
		Account: "000000000000", Version: "bench", ResumeTimeout: 30 * time.Minute, Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	}
}

// serveCrowd runs a control plane whose state file has that many nodes, all
// up. Only the engine and the agent on the controller are fake.
func serveCrowd(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet(crowdCommand, flag.ExitOnError)
	dir := flags.String("state", "", "state folder")
	nodes := flags.Int("nodes", 2048, "how many nodes")
	fill := flags.Bool("fill", false, "write the state file and end")
	if err := flags.Parse(args); err != nil {
		return err
	}
	o := crowdOptions(*dir)
	if *fill {
		return fillCrowd(ctx, o, *nodes)
	}
	o.Log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	debug.SetGCPercent(app.GCPercent) // as openpcs serve has it
	gateway := netip.PrefixFrom(o.Subnet.Addr().Next(), o.Subnet.Bits())
	if err := crowdNetwork(gateway); err != nil {
		return err
	}
	defer removeCrowdNetwork()
	provider := fake.New(fake.Options{Host: compute.Host{Bridge: crowdBridge, Gateway: gateway}})
	cl, instances, err := readCrowd(ctx, o)
	if err != nil {
		return err
	}
	if _, err := provider.ImportImage(ctx, compute.Image{Name: "slurm"}); err != nil {
		return err
	}
	for _, i := range instances {
		address, err := netip.ParseAddr(i.Address)
		if err != nil {
			return err
		}
		if err := provider.Launch(ctx, compute.Spec{ID: i.ID, Image: "fake-slurm", Role: "node", Hostname: i.NodeName, Address: netip.PrefixFrom(address, o.Subnet.Bits()), Labels: map[string]string{"cluster": cl.ID, "kind": "node"}}); err != nil {
			return err
		}
	}
	stop, err := serveAgent(cl, instances)
	if err != nil {
		return err
	}
	defer stop()
	a := app.New(o, provider)
	if err := a.Start(ctx); err != nil {
		return err
	}
	defer a.Stop()
	select {
	case <-ctx.Done():
		return nil
	case err := <-a.Failed():
		return err
	}
}

// fillCrowd writes a cluster with its nodes.
func fillCrowd(ctx context.Context, o app.Options, nodes int) error {
	st, err := store.Open(filepath.Join(o.StateDir, "state.db"))
	if err != nil {
		return err
	}
	defer func() { _ = st.Close() }()
	if err := ec2.EnsureRegion(ctx, st, o.Region, o.Subnet); err != nil {
		return err
	}
	now := time.Now().UTC()
	return st.Update(ctx, func(tx *store.Tx) error {
		subnets, err := fleet.Subnets.InRegion(tx, o.Region)
		if err != nil {
			return err
		}
		if err := fleet.Images.Put(tx, fleet.Image{ID: crowdImage, Name: "slurm", Ref: "fake-slurm", Owner: "amazon", Architecture: fleet.X86, Slurm: []string{"26.05"}, Agent: true, CreatedAt: now}); err != nil {
			return err
		}
		cl := fleet.Cluster{
			ID: crowdCluster, Region: o.Region, Name: "crowd", Status: fleet.Active, CreatedAt: now, ModifiedAt: now, Version: "26.05", Size: fleet.Large,
			ARN: "arn:aws:pcs:" + o.Region + ":" + o.Account + ":cluster/" + crowdCluster, SubnetID: subnets[0].ID, VPCID: subnets[0].VPCID,
			IdleTime: 10 * time.Minute, ControllerID: "i-00000000000c0001d", ControllerToken: "crowd",
		}
		if cl.ControllerAddress, err = fleet.PickAddress(tx, cl.SubnetID); err != nil {
			return err
		}
		key := base64.StdEncoding.EncodeToString(make([]byte, 1024))
		if cl.KeyARN, cl.KeyVersion, err = secretsmanager.Create(tx, o.Region, o.Account, "pcs!slurm-secret-"+cl.ID, key, "pcs", now); err != nil {
			return err
		}
		if err := fleet.Clusters.Put(tx, cl); err != nil {
			return err
		}
		addresses, err := fleet.ReadAddresses(tx, o.Region)
		if err != nil {
			return err
		}
		for g := range crowdGroups {
			subnet := subnets[g%len(subnets)]
			group := fleet.Group{
				ID: fmt.Sprintf("pcs_crowdgrp%d", g), ClusterID: cl.ID, Region: o.Region, Name: fmt.Sprintf("group-%d", g), Status: fleet.Active,
				ARN:       fmt.Sprintf("%s/computenodegroup/pcs_crowdgrp%d", cl.ARN, g),
				CreatedAt: now, ModifiedAt: now, SubnetIDs: []string{subnet.ID}, PurchaseOption: "ONDEMAND", TemplateID: "lt-00000000000000001", TemplateVersion: "1",
				ProfileARN: "arn:aws:iam::" + o.Account + ":instance-profile/AWSPCS-default", Max: nodes / crowdGroups, InstanceTypes: []string{"t3.micro"},
				Launch: fleet.Launch{ImageID: crowdImage, UserData: make([]byte, 512), Tags: map[string]string{"team": "x"}},
			}
			if err := fleet.Groups.Put(tx, group); err != nil {
				return err
			}
			queue := fleet.Queue{
				ID: fmt.Sprintf("pcs_crowdque%d", g), ClusterID: cl.ID, Region: o.Region, Name: fmt.Sprintf("queue-%d", g), Status: fleet.Active,
				ARN: fmt.Sprintf("%s/queue/pcs_crowdque%d", cl.ARN, g), CreatedAt: now, ModifiedAt: now, GroupIDs: []string{group.ID},
			}
			if err := fleet.Queues.Put(tx, queue); err != nil {
				return err
			}
			for n := 1; n <= group.Max; n++ {
				address, err := addresses.Take(subnets[(g+n)%len(subnets)].CIDR)
				if err != nil {
					return err
				}
				i := fleet.Instance{
					ID: fleet.NewEC2ID("i"), Region: o.Region, State: fleet.Running, ImageID: crowdImage, Type: "t3.micro", SubnetID: subnet.ID, VPCID: subnet.VPCID,
					AZ: subnet.AZ, Address: address, ProfileARN: group.ProfileARN, UserData: make([]byte, 1536),
					Tags:       map[string]string{"team": "x", "aws:pcs:cluster-id": cl.ID, "aws:pcs:compute-node-group-id": group.ID, "AWSPCSManaged": "true"},
					LaunchedAt: now, StartedAt: now, RegisteredAt: now, ReadyAt: now, BootstrapID: fleet.NewEC2ID("b"),
					ClusterID: cl.ID, GroupID: group.ID, NodeName: group.NodeName(n),
				}
				node := fleet.Node{ClusterID: cl.ID, GroupID: group.ID, Name: i.NodeName, Index: n, Want: true, WantAt: now, ChangedAt: now, Jobs: []int{n}}
				if err := errors.Join(fleet.Instances.Put(tx, i), fleet.Nodes.Put(tx, node)); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

func readCrowd(ctx context.Context, o app.Options) (cl fleet.Cluster, instances []fleet.Instance, err error) {
	st, err := store.Open(filepath.Join(o.StateDir, "state.db"))
	if err != nil {
		return cl, nil, err
	}
	defer func() { _ = st.Close() }()
	err = st.View(ctx, func(tx *store.Tx) (err error) {
		if cl, err = fleet.Clusters.Get(tx, crowdCluster); err != nil {
			return err
		}
		instances, err = fleet.Instances.Of(tx, cl.ID)
		return err
	})
	return cl, instances, err
}

// crowdNetwork makes a bridge without anything on it, which the API for
// instances and the metadata service listen on.
func crowdNetwork(gateway netip.Prefix) error {
	removeCrowdNetwork() // what a killed run left
	for _, args := range [][]string{
		{"link", "add", crowdBridge, "type", "bridge"},
		{"address", "add", gateway.String(), "dev", crowdBridge},
		{"link", "set", crowdBridge, "up"},
	} {
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("run ip %s: %w: %s", strings.Join(args, " "), err, out)
		}
	}
	return nil
}

func removeCrowdNetwork() { _ = exec.Command("ip", "link", "delete", crowdBridge).Run() }

// serveAgent answers in the place of the controller's agent: it takes every
// configuration and says that all nodes have jobs.
func serveAgent(cl fleet.Cluster, instances []fleet.Instance) (stop func(), err error) {
	if out, err := exec.Command("ip", "address", "add", cl.ControllerAddress+"/32", "dev", crowdBridge).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("give the controller its address: %w: %s", err, out)
	}
	said := imds.Nodes{Full: true, Nodes: map[string]slurm.Node{}}
	for _, i := range instances {
		said.Nodes[i.NodeName] = slurm.Node{Name: i.NodeName, State: []string{"ALLOCATED", "CLOUD"}}
	}
	mux := http.NewServeMux()
	answer := func(v any) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(v) }
	}
	mux.HandleFunc("PUT /v1/config", answer(agent.Answer{Applied: true}))
	mux.HandleFunc("POST /v1/run", answer(agent.Ran{}))
	mux.HandleFunc("GET /v1/nodes", answer(said))
	l, err := net.Listen("tcp", net.JoinHostPort(cl.ControllerAddress, strconv.Itoa(agent.ControllerPort)))
	if err != nil {
		return nil, err
	}
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = server.Serve(l) }()
	return func() { _ = server.Close() }, nil
}

package pcs

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/openpcs/openpcs/internal/awsapi"
	"github.com/openpcs/openpcs/internal/condition"
	"github.com/openpcs/openpcs/internal/ec2"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/secretsmanager"
	"github.com/openpcs/openpcs/internal/slurm"
	"github.com/openpcs/openpcs/internal/store"
)

// Quotas of the service (PCS user guide, endpoints and quotas). The codes
// are ours.
const (
	maxClusters = 5
	maxGroups   = 10
	maxQueues   = 10

	quotaClusters  = "L-PCSCLUSTERS"
	quotaCreating  = "L-PCSCREATING"
	quotaGroups    = "L-PCSGROUPS"
	quotaQueues    = "L-PCSQUEUES"
	quotaInstances = "L-PCSINSTANCES"
	quotaTags      = "L-PCSTAGS"
)

const (
	defaultIdle = 600
	maxIdle     = 10_000_000
)

// createVersions are the releases CreateCluster takes (model of 2026-09);
// which of them run here depends on the images that were built.
var createVersions = []string{"24.11", "25.05", "25.11", "26.05"}

// updateVersions are the releases UpdateCluster takes in the model.
var updateVersions = []string{"24.05", "24.11", "25.05", "25.11", "26.05"}

// newerVersion checks an update of the release; the names order as the
// releases do.
func newerVersion(now, wanted string) error {
	const field = "scheduler.version"
	switch {
	case wanted == now:
		return invalid(Field{field, "the cluster runs " + now + " already: name a newer release"})
	case wanted < now:
		return invalid(Field{field, "the cluster runs " + now + ", and " + wanted + " is older: name a newer release"})
	default:
		return invalid(Field{field, "another release is not supported by this release of openpcs: leave it out, and make a new cluster for " + wanted})
	}
}

func (s *Service) createCluster(ctx context.Context, r *awsapi.Request, in *CreateClusterIn) (*ClusterOut, error) {
	var c check
	name := c.name("clusterName", in.ClusterName, 40)
	var version string
	if in.Scheduler == nil {
		c.bad("scheduler", required)
	} else {
		c.enum("scheduler.type", in.Scheduler.Type, "SLURM")
		version = c.enum("scheduler.version", in.Scheduler.Version, createVersions...)
	}
	size := c.enum("size", in.Size, "SMALL", "MEDIUM", "LARGE")
	var net Networking
	if in.Networking == nil {
		c.bad("networking", required)
	} else {
		net = *in.Networking
		c.networking(net)
	}
	if c.optionalEnum("networking.networkType", net.NetworkType, "IPV4", "IPV4", "IPV6") == "IPV6" {
		c.bad("networking.networkType", "IPV6 is not supported by this release of openpcs: use IPV4")
	}
	idle := c.clusterSlurm(in.SlurmConfiguration, defaultIdle)
	if sl := in.SlurmConfiguration; sl != nil {
		if sl.Accounting != nil {
			c.need("slurmConfiguration.accounting.mode", sl.Accounting.Mode)
		}
		if sl.SlurmRest != nil {
			c.need("slurmConfiguration.slurmRest.mode", sl.SlurmRest.Mode)
		}
	}
	c.tags(in.Tags, false)
	c.token(in.ClientToken)
	asked := fleet.Cluster{Version: version}
	c.configureCluster(&asked, in.SlurmConfiguration)
	if err := c.err(); err != nil {
		return nil, err
	}
	return update(ctx, s, r, in.ClientToken, func(tx *store.Tx) (*ClusterOut, string, error) {
		subnet, err := fleet.Subnets.Get(tx, net.SubnetIDs[0])
		if errors.Is(err, store.ErrNotFound) || (err == nil && subnet.Region != r.Region) {
			return nil, "", invalid(Field{"networking.subnetIds[0]", "the subnet " + net.SubnetIDs[0] + " does not exist in " + r.Region})
		}
		if err != nil {
			return nil, "", err
		}
		for i, id := range net.SecurityGroupIDs {
			if err := checkSecurityGroup(tx, r, fmt.Sprintf("networking.securityGroupIds[%d]", i), id, subnet.VPCID); err != nil {
				return nil, "", err
			}
		}
		if err := haveImage(tx, version, s.Buildable); err != nil {
			return nil, "", err
		}
		if err := s.clusterQuota(tx, r, name); err != nil {
			return nil, "", err
		}
		cl := fleet.Cluster{
			ID: fleet.NewPCSID(), Region: r.Region, Name: name, Status: fleet.Creating,
			CreatedAt: r.Now, ModifiedAt: r.Now, Version: version, Size: fleet.Size(size),
			SubnetID: subnet.ID, VPCID: subnet.VPCID, SecurityGroups: net.SecurityGroupIDs,
			IdleTime: time.Duration(idle) * time.Second, Settings: asked.Settings, Tags: in.Tags, ControllerToken: newToken(),
		}
		cl.Accounting, cl.Slurmdbd, cl.Cgroup, cl.REST = asked.Accounting, asked.Slurmdbd, asked.Cgroup, asked.REST
		cl.ARN = s.arn(r.Region, "cluster/"+cl.ID)
		cl.ControllerID = "ctl-" + strings.TrimPrefix(cl.ID, "pcs_")
		cl.ControllerAddress, err = s.FreeAddress(tx, subnet.ID)
		var full *fleet.NoAddressError
		if errors.As(err, &full) {
			return nil, "", invalid(Field{"networking.subnetIds[0]", "the subnet " + subnet.ID + " has no free address left, and the controller needs one"})
		}
		if err != nil {
			return nil, "", err
		}
		cl.KeyARN, cl.KeyVersion, err = secretsmanager.Create(tx, r.Region, s.Account, "pcs!slurm-secret-"+cl.ID, newSlurmKey(), "pcs", r.Now)
		if err != nil {
			return nil, "", err
		}
		if err := fleet.Clusters.Put(tx, cl); err != nil {
			return nil, "", err
		}
		return &ClusterOut{clusterOut(cl)}, cl.ID, nil
	})
}

// settingsField is the field of custom settings, at every level.
const settingsField = "slurmConfiguration.slurmCustomSettings"

func (c *check) networking(in Networking) {
	if len(in.SubnetIDs) != 1 {
		c.bad("networking.subnetIds", "has %d entries, exactly 1 is allowed", len(in.SubnetIDs))
	}
	for i, id := range in.SubnetIDs {
		c.pattern(fmt.Sprintf("networking.subnetIds[%d]", i), &id, subnetPattern)
	}
	c.once("networking.securityGroupIds", in.SecurityGroupIDs)
	for i, id := range in.SecurityGroupIDs {
		c.pattern(fmt.Sprintf("networking.securityGroupIds[%d]", i), &id, sgPattern)
	}
}

// clusterSlurm checks the Slurm part of a cluster and returns its idle time.
func (c *check) clusterSlurm(in *ClusterSlurm, idle int) int {
	if in == nil {
		return idle
	}
	c.clusterModes(in)
	return c.number("slurmConfiguration.scaleDownIdleTimeInSeconds", in.ScaleDownIdleTimeInSeconds, 1, maxIdle, idle)
}

func checkSecurityGroup(tx *store.Tx, r *awsapi.Request, field, id, vpc string) error {
	g, err := ec2.SecurityGroupOf(tx, r.Region, id)
	if errors.Is(err, store.ErrNotFound) {
		return invalid(Field{field, "the security group " + id + " does not exist in " + r.Region})
	}
	if err != nil {
		return err
	}
	if g.VPCID != vpc {
		return invalid(Field{field, "the security group " + id + " is in " + g.VPCID + ", not in the cluster's VPC " + vpc})
	}
	return nil
}

// haveImage checks that some image can run the release.
func haveImage(tx *store.Tx, version string, buildable []string) error {
	if _, ok := slurm.FindVersion(version); !ok {
		return invalid(Field{"scheduler.version", version + " is not known to this release of openpcs"})
	}
	images, err := fleet.Images.All(tx)
	if err != nil {
		return err
	}
	for _, i := range images {
		for _, v := range i.Slurm {
			if v == version {
				return nil
			}
		}
	}
	if !slices.Contains(buildable, version) {
		return invalid(Field{"scheduler.version", "Slurm " + version + " cannot be had here: an image can be built for " + strings.Join(buildable, ", ")})
	}
	return invalid(Field{"scheduler.version", "no image with Slurm " + version + " is built here: run openpcs image build " + version})
}

func (s *Service) clusterQuota(tx *store.Tx, r *awsapi.Request, name string) error {
	all, err := fleet.Clusters.InRegion(tx, r.Region)
	if err != nil {
		return err
	}
	for _, c := range all {
		if c.Name == name {
			return conflict(clusterType, c.ID, "the cluster name %s is taken by %s (%s)", name, c.ID, c.Status)
		}
	}
	for _, c := range all {
		if c.Status == fleet.Creating {
			return quota(clusterType, c.ID, quotaCreating, "the cluster %s is CREATING, and only one may be: wait until it is ACTIVE", c.ID)
		}
	}
	if len(all) >= maxClusters {
		return quota(clusterType, "", quotaClusters, "there are %d clusters in %s already, which is the limit", len(all), r.Region)
	}
	return nil
}

func clusterOut(c fleet.Cluster) Cluster {
	kind, net := "SLURM", "IPV4"
	idle := int(c.IdleTime / time.Second)
	out := Cluster{
		Name: c.Name, ID: c.ID, ARN: c.ARN, Status: string(c.Status),
		CreatedAt: awsapi.At(c.CreatedAt), ModifiedAt: awsapi.At(c.ModifiedAt),
		Scheduler: Scheduler{Type: &kind, Version: &c.Version}, Size: string(c.Size),
		SlurmConfiguration: &ClusterSlurmOut{
			ClusterSlurm: ClusterSlurm{
				ScaleDownIdleTimeInSeconds: &idle, SlurmCustomSettings: settingsOut(c.Settings),
			},
			AuthKey: &SecretRef{c.KeyARN, c.KeyVersion},
		},
		Networking: Networking{SubnetIDs: []string{c.SubnetID}, SecurityGroupIDs: c.SecurityGroups, NetworkType: &net},
		ErrorInfo:  errorInfo(trouble(c)),
	}
	daemonsOut(c, out.SlurmConfiguration)
	if c.ConfigHash != "" { // before, nobody listens there
		out.Endpoints = endpoints(c)
	}
	return out
}

// ref checks an identifier of a cluster.
func (c *check) cluster(in ClusterRef) string {
	return c.pattern("clusterIdentifier", in.ClusterIdentifier, clusterRefPattern)
}

func (s *Service) getCluster(ctx context.Context, r *awsapi.Request, in *ClusterRef) (*ClusterOut, error) {
	var c check
	ref := c.cluster(*in)
	if err := c.err(); err != nil {
		return nil, err
	}
	var out *ClusterOut
	err := s.Store.View(ctx, func(tx *store.Tx) error {
		cl, err := cluster(tx, r, ref)
		out = &ClusterOut{clusterOut(cl)}
		return err
	})
	return out, err
}

func (s *Service) listClusters(ctx context.Context, r *awsapi.Request, in *ListIn) (*ListClustersOut, error) {
	var c check
	token, size := c.list(*in)
	if err := c.err(); err != nil {
		return nil, err
	}
	var all []ClusterSummary
	err := s.Store.View(ctx, func(tx *store.Tx) error {
		cs, err := fleet.Clusters.InRegion(tx, r.Region)
		for _, c := range cs {
			all = append(all, ClusterSummary{Name: c.Name, ID: c.ID, ARN: c.ARN, CreatedAt: awsapi.At(c.CreatedAt), ModifiedAt: awsapi.At(c.ModifiedAt), Status: string(c.Status)})
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	page, next, err := awsapi.Page(r, size, token, size, all, summaryKey)
	if err != nil {
		return nil, err
	}
	return &ListClustersOut{Clusters: nonNil(page), NextToken: next}, nil
}

func summaryKey(s ClusterSummary) string { return awsapi.CreationKey(s.CreatedAt.Time, s.ID) }

func nonNil[T any](in []T) []T {
	if in == nil {
		return []T{}
	}
	return in
}

func (s *Service) updateCluster(ctx context.Context, r *awsapi.Request, in *UpdateClusterIn) (*ClusterOut, error) {
	var c check
	ref := c.cluster(in.ClusterRef)
	c.token(in.ClientToken)
	version := ""
	if in.Scheduler != nil {
		version = c.enum("scheduler.version", in.Scheduler.Version, updateVersions...)
	}
	idle := c.clusterSlurm(in.SlurmConfiguration, math.MinInt)
	if err := c.err(); err != nil {
		return nil, err
	}
	return update(ctx, s, r, in.ClientToken, func(tx *store.Tx) (*ClusterOut, string, error) {
		cl, err := cluster(tx, r, ref)
		if err != nil {
			return nil, "", err
		}
		if version != "" {
			if err := newerVersion(cl.Version, version); err != nil {
				return nil, "", err
			}
		}
		if err := busy(clusterType, cl.ID, cl.Status, fleet.Active, fleet.UpdateFailed); err != nil {
			return nil, "", err
		}
		groups, queues, err := members(tx, cl.ID)
		if err != nil {
			return nil, "", err
		}
		for _, g := range groups {
			if err := busy(groupType, g.ID, g.Status, fleet.Active); err != nil {
				return nil, "", err
			}
		}
		for _, q := range queues {
			if err := busy(queueType, q.ID, q.Status, fleet.Active); err != nil {
				return nil, "", err
			}
		}
		before := cl
		var c check
		c.configureCluster(&cl, in.SlurmConfiguration)
		if err := c.err(); err != nil {
			return nil, "", err
		}
		if err := withoutAccounting(before, cl, queues); err != nil {
			return nil, "", err
		}
		if idle != math.MinInt {
			cl.IdleTime = time.Duration(idle) * time.Second
		}
		cl.Status, cl.ModifiedAt, cl.Errors = fleet.Updating, r.Now, nil
		return &ClusterOut{clusterOut(cl)}, cl.ID, fleet.Clusters.Put(tx, cl)
	})
}

func members(tx *store.Tx, clusterID string) ([]fleet.Group, []fleet.Queue, error) {
	groups, err := fleet.Groups.Of(tx, clusterID)
	if err != nil {
		return nil, nil, err
	}
	queues, err := fleet.Queues.Of(tx, clusterID)
	return groups, queues, err
}

func (s *Service) deleteCluster(ctx context.Context, r *awsapi.Request, in *DeleteClusterIn) (*Empty, error) {
	var c check
	ref := c.cluster(in.ClusterRef)
	c.token(in.ClientToken)
	if err := c.err(); err != nil {
		return nil, err
	}
	return update(ctx, s, r, in.ClientToken, func(tx *store.Tx) (*Empty, string, error) {
		cl, err := cluster(tx, r, ref)
		if err != nil {
			return nil, "", err
		}
		if cl.Status == fleet.Deleting {
			return &Empty{}, "", nil
		}
		groups, queues, err := members(tx, cl.ID)
		if err != nil {
			return nil, "", err
		}
		if len(groups)+len(queues) > 0 {
			return nil, "", conflict(clusterType, cl.ID, "the cluster %s still has queues (%d) or compute node groups (%d): delete them first", cl.ID, len(queues), len(groups))
		}
		cl.Status, cl.ModifiedAt = fleet.Deleting, r.Now
		return &Empty{}, cl.ID, fleet.Clusters.Put(tx, cl)
	})
}

// trouble is what errorInfo has of a cluster: why its status is what it is,
// and what is wrong at present, which PCS would not tell.
func trouble(c fleet.Cluster) []fleet.ErrorInfo {
	// A controller that cannot be reached yet is no trouble of a new cluster.
	starts := c.Status == fleet.Creating && c.Trouble != nil && c.Trouble.Code == condition.ControllerUnreachable
	if c.Trouble == nil || starts || c.Status == fleet.Deleting {
		return c.Errors
	}
	return append(slices.Clone(c.Errors), *c.Trouble)
}

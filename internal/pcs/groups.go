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
	"github.com/openpcs/openpcs/internal/iam"
	"github.com/openpcs/openpcs/internal/slurm"
	"github.com/openpcs/openpcs/internal/store"
	"github.com/openpcs/openpcs/internal/userdata"
)

// registerAction is what a node's role must be allowed to do.
const registerAction = "pcs:RegisterComputeNodeGroupInstance"

// groupConfig checks what create and update of a group share; create also
// asks for all that it requires.
func (c *check) groupConfig(in GroupConfig, create bool) {
	if in.AMIID != nil {
		c.pattern("amiId", in.AMIID, amiPattern)
	}
	if create || in.SubnetIDs != nil {
		if len(in.SubnetIDs) == 0 {
			c.bad("subnetIds", required+", with at least one subnet")
		}
		c.once("subnetIds", in.SubnetIDs)
	}
	if in.PurchaseOption != nil {
		switch c.enum("purchaseOption", in.PurchaseOption, "ONDEMAND", "SPOT", "CAPACITY_BLOCK", "INTERRUPTIBLE_CAPACITY_RESERVATION") {
		case "CAPACITY_BLOCK", "INTERRUPTIBLE_CAPACITY_RESERVATION":
			c.bad("purchaseOption", "%s is not supported by this release of openpcs: use ONDEMAND or SPOT", *in.PurchaseOption)
		}
	}
	if t := in.CustomLaunchTemplate; t != nil {
		c.need("customLaunchTemplate.id", t.ID)
		c.need("customLaunchTemplate.version", t.Version)
	} else if create {
		c.bad("customLaunchTemplate", required)
	}
	if create || in.IAMInstanceProfileARN != nil {
		c.pattern("iamInstanceProfileArn", in.IAMInstanceProfileARN, profilePattern)
	}
	if sc := in.ScalingConfiguration; sc != nil {
		low := c.needNumber("scalingConfiguration.minInstanceCount", sc.MinInstanceCount, 0, math.MaxInt32)
		high := c.needNumber("scalingConfiguration.maxInstanceCount", sc.MaxInstanceCount, 0, math.MaxInt32)
		if low > high {
			c.bad("scalingConfiguration.minInstanceCount", "%d is greater than maxInstanceCount, %d", low, high)
		}
	} else if create {
		c.bad("scalingConfiguration", required)
	}
	if in.SpotOptions != nil && in.SpotOptions.AllocationStrategy != nil {
		c.enum("spotOptions.allocationStrategy", in.SpotOptions.AllocationStrategy, "lowest-price", "capacity-optimized", "price-capacity-optimized")
	}
	if sl := in.SlurmConfiguration; sl != nil {
		c.pairs(settingsField, sl.SlurmCustomSettings)
		for i, s := range sl.SlurmCustomSettings {
			c.later(s.ParameterName != nil && strings.EqualFold(*s.ParameterName, "Gres"), fmt.Sprintf("%s[%d]", settingsField, i))
		}
		c.later(len(sl.GresCustomSettings) > 0, "slurmConfiguration.gresCustomSettings")
		c.groupIdle(sl.ScaleDownIdleTimeInSeconds)
	}
	c.lifecycle(in.NodeLifecycleActions)
}

const groupIdleField = "slurmConfiguration.scaleDownIdleTimeInSeconds"

// groupIdle checks a group's own idle time: -1 removes it.
func (c *check) groupIdle(in *int) {
	if idle := c.number(groupIdleField, in, -1, maxIdle, -1); idle == 0 {
		c.bad(groupIdleField, "0 is not allowed: use 1 to %d seconds, or -1 for the cluster's idle time", maxIdle)
	}
}

// setIdle gives a group an idle time of its own, or takes it away.
func setIdle(cl fleet.Cluster, g *fleet.Group, idle *int) error {
	switch v, _ := slurm.FindVersion(cl.Version); {
	case idle == nil:
	case *idle < 0:
		g.IdleTime = 0
	case !v.GroupIdleTime:
		return invalid(Field{groupIdleField, "scaleDownIdleTimeInSeconds of a compute node group is only supported for Slurm version 25.11 or later, and the cluster runs " + cl.Version + ": leave it out, or use that of the cluster"})
	default:
		g.IdleTime = time.Duration(*idle) * time.Second
	}
	return nil
}

func (s *Service) createGroup(ctx context.Context, r *awsapi.Request, in *CreateGroupIn) (*GroupOut, error) {
	var c check
	ref := c.cluster(in.ClusterRef)
	name := c.name("computeNodeGroupName", in.ComputeNodeGroupName, 25)
	c.groupConfig(in.GroupConfig, true)
	types := c.instanceTypes(in.InstanceConfigs)
	c.tags(in.Tags, false)
	c.token(in.ClientToken)
	if err := c.err(); err != nil {
		return nil, err
	}
	return update(ctx, s, r, in.ClientToken, func(tx *store.Tx) (*GroupOut, string, error) {
		cl, err := cluster(tx, r, ref)
		if err != nil {
			return nil, "", err
		}
		if err := busy(clusterType, cl.ID, cl.Status, fleet.Active, fleet.UpdateFailed); err != nil {
			return nil, "", err
		}
		groups, err := fleet.Groups.Of(tx, cl.ID)
		if err != nil {
			return nil, "", err
		}
		for _, g := range groups {
			if g.Name == name {
				return nil, "", conflict(groupType, g.ID, "the compute node group name %s is taken by %s (%s)", name, g.ID, g.Status)
			}
		}
		if len(groups) >= maxGroups {
			return nil, "", quota(groupType, "", quotaGroups, "the cluster %s has %d compute node groups, which is the limit", cl.ID, maxGroups)
		}
		g := fleet.Group{
			ID: fleet.NewPCSID(), ClusterID: cl.ID, Region: r.Region, Name: name, Status: fleet.Creating,
			CreatedAt: r.Now, ModifiedAt: r.Now, PurchaseOption: "ONDEMAND", InstanceTypes: types, Tags: in.Tags,
		}
		g.ARN = s.arn(r.Region, "cluster/"+cl.ID+"/computenodegroup/"+g.ID)
		if err := s.configureGroup(tx, r, cl, &g, in.GroupConfig); err != nil {
			return nil, "", err
		}
		if err := sizeQuota(cl, append(groups, g)); err != nil {
			return nil, "", err
		}
		return &GroupOut{groupOut(g)}, cl.ID, fleet.Groups.Put(tx, g)
	})
}

func sizeQuota(cl fleet.Cluster, groups []fleet.Group) error {
	sum := 0
	for _, g := range groups {
		sum += g.Max
	}
	if limit, _ := cl.Size.Limits(); sum > limit {
		return quota(clusterType, cl.ID, quotaInstances, "the groups' maxInstanceCount add up to %d, and a %s cluster has at most %d instances", sum, cl.Size, limit)
	}
	return nil
}

func (c *check) instanceTypes(configs []InstanceConfig) []string {
	if len(configs) == 0 {
		c.bad("instanceConfigs", required+", with at least one instance type")
	}
	var types []string
	seen := map[string]bool{}
	var first fleet.InstanceType
	for i, conf := range configs {
		at := fmt.Sprintf("instanceConfigs[%d].instanceType", i)
		name := c.need(at, conf.InstanceType)
		if name == "" {
			continue
		}
		t, ok := fleet.Lookup(name)
		switch {
		case !ok:
			c.bad(at, "the instance type %s is not known: aws ec2 describe-instance-types lists those that are", quote(name))
			continue
		case seen[name]:
			c.bad(at, "%s is named twice", name)
			continue
		case len(types) > 0 && (t.Arch != first.Arch || t.VCPUs != first.VCPUs || t.GPU.Count != first.GPU.Count || t.GPU.Name != first.GPU.Name):
			c.bad(at, "%s (%s, %d vCPUs, %d GPUs) differs from %s (%s, %d vCPUs, %d GPUs): all types of a group must have the same architecture, vCPUs and GPUs",
				name, t.Arch, t.VCPUs, t.GPU.Count, first.Name, first.Arch, first.VCPUs, first.GPU.Count)
		}
		if len(types) == 0 {
			first = t
		}
		types, seen[name] = append(types, name), true
	}
	return types
}

// configureGroup checks what the request names against what exists, and puts
// it into the group.
func (s *Service) configureGroup(tx *store.Tx, r *awsapi.Request, cl fleet.Cluster, g *fleet.Group, in GroupConfig) error {
	if in.SubnetIDs != nil {
		for i, id := range in.SubnetIDs {
			field := fmt.Sprintf("subnetIds[%d]", i)
			subnet, err := fleet.Subnets.Get(tx, id)
			if errors.Is(err, store.ErrNotFound) || (err == nil && subnet.Region != r.Region) {
				return invalid(Field{field, "the subnet " + id + " does not exist in " + r.Region})
			}
			if err != nil {
				return err
			}
			if subnet.VPCID != cl.VPCID {
				return invalid(Field{field, "the subnet " + id + " is in " + subnet.VPCID + ", not in the cluster's VPC " + cl.VPCID})
			}
		}
		g.SubnetIDs = in.SubnetIDs
	}
	if in.PurchaseOption != nil {
		g.PurchaseOption = *in.PurchaseOption
	}
	if in.SpotOptions != nil && in.SpotOptions.AllocationStrategy != nil {
		g.SpotStrategy = *in.SpotOptions.AllocationStrategy
	}
	if in.SpotOptions != nil && g.PurchaseOption != "SPOT" {
		return invalid(Field{"spotOptions", "is only for the purchaseOption SPOT"})
	}
	if in.SlurmConfiguration != nil && in.SlurmConfiguration.SlurmCustomSettings != nil {
		var c check
		g.Settings = c.settings(settingsField, slurm.GroupLevel, cl.Version, cl.Accounting.On, in.SlurmConfiguration.SlurmCustomSettings)
		if err := c.err(); err != nil {
			return err
		}
	}
	if in.SlurmConfiguration != nil {
		if err := setIdle(cl, g, in.SlurmConfiguration.ScaleDownIdleTimeInSeconds); err != nil {
			return err
		}
	}
	if in.ScalingConfiguration != nil {
		g.Min, g.Max = *in.ScalingConfiguration.MinInstanceCount, *in.ScalingConfiguration.MaxInstanceCount
	}
	if in.AMIID != nil {
		g.ImageID = *in.AMIID
	}
	if in.CustomLaunchTemplate != nil {
		g.TemplateID, g.TemplateVersion = *in.CustomLaunchTemplate.ID, *in.CustomLaunchTemplate.Version
	}
	if in.IAMInstanceProfileARN != nil {
		if err := checkProfile(tx, r.Caller, *in.IAMInstanceProfileARN); err != nil {
			return err
		}
		g.ProfileARN = *in.IAMInstanceProfileARN
	}
	if in.NodeLifecycleActions != nil {
		g.Lifecycle = lifecycleIn(*in.NodeLifecycleActions)
	}
	launch, err := s.resolve(tx, r, cl, *g)
	if err != nil {
		return err
	}
	g.Launch = launch
	return nil
}

// passRole is what a caller must be allowed to do to give nodes a role.
const passRole = "iam:PassRole"

func checkProfile(tx *store.Tx, caller awsapi.Caller, arn string) error {
	const field = "iamInstanceProfileArn"
	p, err := iam.FindProfile(tx, arn)
	if errors.Is(err, store.ErrNotFound) {
		return invalid(Field{field, "the instance profile " + arn + " does not exist: aws iam list-instance-profiles lists those that do"})
	}
	if err != nil {
		return err
	}
	if err := p.UsableByPCS(); err != nil {
		return invalid(Field{field, err.Error()})
	}
	if !caller.Allowed(passRole) {
		return denied("User: %s is not authorized to perform: %s on resource: %s", caller.ARN, passRole, p.Role.ARN)
	}
	if !(awsapi.Caller{Allow: p.Role.Allow, Deny: p.Role.Deny}).Allowed(registerAction) {
		return invalid(Field{field, "the role " + p.Role.Name + " does not allow " + registerAction})
	}
	return nil
}

// resolve reads the group's launch template version into what instances are
// started with.
func (s *Service) resolve(tx *store.Tx, r *awsapi.Request, cl fleet.Cluster, g fleet.Group) (fleet.Launch, error) {
	const field = "customLaunchTemplate"
	var none fleet.Launch
	data, _, err := ec2.Template(tx, r.Region, g.TemplateID, g.TemplateVersion)
	var missing *awsapi.Error
	if errors.Is(err, store.ErrNotFound) || errors.As(err, &missing) {
		return none, invalid(Field{field, "there is no launch template " + g.TemplateID + " with version " + g.TemplateVersion + " in " + r.Region})
	}
	if err != nil {
		return none, err
	}
	launch, err := templateLaunch(data)
	if err != nil {
		return none, invalid(Field{field, err.Error()})
	}
	imageField := "amiId"
	if g.ImageID != "" {
		launch.ImageID = g.ImageID
	} else {
		imageField = field
	}
	if launch.ImageID == "" {
		return none, invalid(Field{"amiId", "is required, as the launch template names no image"})
	}
	if len(launch.SecurityGroups) == 0 {
		return none, invalid(Field{field, "the launch template " + g.TemplateID + " must name security groups by id (SecurityGroupIds, or Groups of each network interface)"})
	}
	for _, id := range launch.SecurityGroups {
		if err := checkSecurityGroup(tx, r, field, id, cl.VPCID); err != nil {
			return none, err
		}
	}
	image, err := fleet.Images.Get(tx, launch.ImageID)
	if errors.Is(err, store.ErrNotFound) {
		return none, invalid(Field{imageField, "the image " + launch.ImageID + " does not exist: aws ec2 describe-images --owners amazon lists those that do"})
	}
	if err != nil {
		return none, err
	}
	if len(image.Slurm) > 0 && !slices.Contains(image.Slurm, cl.Version) {
		return none, invalid(Field{imageField, fmt.Sprintf("the image %s (%s) has Slurm %s, and the cluster runs %s", image.ID, image.Name, strings.Join(image.Slurm, ", "), cl.Version)})
	}
	for _, name := range g.InstanceTypes {
		if t, ok := fleet.Lookup(name); ok && t.Arch != image.Architecture {
			return none, invalid(Field{imageField, fmt.Sprintf("the image %s is for %s, and %s is %s", image.ID, image.Architecture, name, t.Arch)})
		}
	}
	if err := userdata.Check(launch.UserData, image.CloudInit); err != nil {
		return none, invalid(Field{field, err.Error()})
	}
	return launch, nil
}

func groupOut(g fleet.Group) Group {
	out := Group{
		Name: g.Name, ID: g.ID, ARN: g.ARN, ClusterID: g.ClusterID, Status: string(g.Status),
		CreatedAt: awsapi.At(g.CreatedAt), ModifiedAt: awsapi.At(g.ModifiedAt),
		SubnetIDs: g.SubnetIDs, PurchaseOption: g.PurchaseOption,
		CustomLaunchTemplate:  Template{&g.TemplateID, &g.TemplateVersion},
		IAMInstanceProfileARN: g.ProfileARN,
		ScalingConfiguration:  Scaling{&g.Min, &g.Max},
		ErrorInfo:             errorInfo(g.Errors),
		SlurmConfiguration:    &GroupSlurm{SlurmCustomSettings: settingsOut(g.Settings)},
		NodeLifecycleActions:  lifecycleOut(g.Lifecycle),
	}
	if g.ImageID != "" {
		out.AMIID = &g.ImageID
	}
	if g.IdleTime > 0 {
		idle := int(g.IdleTime / time.Second)
		out.SlurmConfiguration.ScaleDownIdleTimeInSeconds = &idle
	}
	if g.PurchaseOption == "SPOT" {
		strategy := "price-capacity-optimized"
		if g.SpotStrategy != "" {
			strategy = g.SpotStrategy
		}
		out.SpotOptions = &SpotOptions{&strategy}
	}
	for _, t := range g.InstanceTypes {
		out.InstanceConfigs = append(out.InstanceConfigs, InstanceConfig{&t})
	}
	return out
}

func (c *check) group(in GroupRef) (clusterRef, groupRef string) {
	return c.cluster(in.ClusterRef), c.pattern("computeNodeGroupIdentifier", in.ComputeNodeGroupIdentifier, shortRefPattern)
}

func (s *Service) getGroup(ctx context.Context, r *awsapi.Request, in *GroupRef) (*GroupOut, error) {
	var c check
	clusterRef, ref := c.group(*in)
	if err := c.err(); err != nil {
		return nil, err
	}
	var out *GroupOut
	err := s.Store.View(ctx, func(tx *store.Tx) error {
		cl, err := cluster(tx, r, clusterRef)
		if err != nil {
			return err
		}
		g, err := group(tx, cl, ref)
		if err != nil {
			return err
		}
		nodes, err := fleet.Nodes.Of(tx, cl.ID)
		if err != nil {
			return err
		}
		instances, err := fleet.Instances.Of(tx, cl.ID)
		out = &GroupOut{groupOut(g)}
		out.ComputeNodeGroup.ErrorInfo = append(out.ComputeNodeGroup.ErrorInfo, failing(g, nodes, instances)...)
		return err
	})
	return out, err
}

// maxFailing bounds how many failures a group shows.
const maxFailing = 5

// failing says why nodes of the group do not come up. PCS leaves the group
// ACTIVE and silent; here errorInfo has it, which clients print as it is.
func failing(g fleet.Group, nodes []fleet.Node, instances []fleet.Instance) (out []ErrorInfo) {
	if g.Breaker.Open {
		out = append(out, ErrorInfo{Code: string(condition.BreakerOpen), Message: g.Breaker.String()})
	}
	for _, p := range g.Refused {
		out = append(out, ErrorInfo{Code: string(p.Condition()), Message: fmt.Sprintf(
			"%s in %s: %s: %s (%d refusals in a row, the next try is not before %s)",
			p.Type, p.SubnetID, p.Code, p.Text, p.Refusals, p.NotBefore.Format(time.RFC3339))})
	}
	for _, n := range nodes {
		if n.GroupID == g.ID && n.Attempts > 0 && len(out) < maxFailing {
			out = append(out, ErrorInfo{Code: string(n.FailureCode), Message: fmt.Sprintf("the node %s failed to start %d times in a row: %s", n.Name, n.Attempts, n.LastFailure)})
		}
	}
	for _, i := range instances {
		if i.GroupID != g.ID || (i.State != fleet.Pending && i.State != fleet.Running) {
			continue
		}
		trouble := i.Trouble()
		out = append(out, errorInfo(trouble[:max(0, min(len(trouble), maxFailing-len(out)))])...)
	}
	return out
}

func (s *Service) listGroups(ctx context.Context, r *awsapi.Request, in *ListOfClusterIn) (*ListGroupsOut, error) {
	page, next, err := s.listOf(ctx, r, in, func(tx *store.Tx, cl fleet.Cluster) (out []Summary, err error) {
		groups, err := fleet.Groups.Of(tx, cl.ID)
		for _, g := range groups {
			out = append(out, Summary{ClusterSummary{Name: g.Name, ID: g.ID, ARN: g.ARN, CreatedAt: awsapi.At(g.CreatedAt), ModifiedAt: awsapi.At(g.ModifiedAt), Status: string(g.Status)}, g.ClusterID})
		}
		return out, err
	})
	return &ListGroupsOut{ComputeNodeGroups: page, NextToken: next}, err
}

// listOf is a list of what a cluster has.
func (s *Service) listOf(ctx context.Context, r *awsapi.Request, in *ListOfClusterIn, read func(*store.Tx, fleet.Cluster) ([]Summary, error)) ([]Summary, string, error) {
	var c check
	ref := c.cluster(in.ClusterRef)
	token, size := c.list(in.ListIn)
	if err := c.err(); err != nil {
		return nil, "", err
	}
	var all []Summary
	err := s.Store.View(ctx, func(tx *store.Tx) error {
		cl, err := cluster(tx, r, ref)
		if err != nil {
			return err
		}
		all, err = read(tx, cl)
		return err
	})
	if err != nil {
		return nil, "", err
	}
	page, next, err := awsapi.Page(r, []any{ref, size}, token, size, all, func(s Summary) string { return summaryKey(s.ClusterSummary) })
	return nonNil(page), next, err
}

func (s *Service) updateGroup(ctx context.Context, r *awsapi.Request, in *UpdateGroupIn) (*GroupOut, error) {
	var c check
	clusterRef, ref := c.group(in.GroupRef)
	c.groupConfig(in.GroupConfig, false)
	c.token(in.ClientToken)
	if err := c.err(); err != nil {
		return nil, err
	}
	return update(ctx, s, r, in.ClientToken, func(tx *store.Tx) (*GroupOut, string, error) {
		cl, err := cluster(tx, r, clusterRef)
		if err != nil {
			return nil, "", err
		}
		if err := busy(clusterType, cl.ID, cl.Status, fleet.Active, fleet.UpdateFailed); err != nil {
			return nil, "", err
		}
		g, err := group(tx, cl, ref)
		if err != nil {
			return nil, "", err
		}
		if err := busy(groupType, g.ID, g.Status, fleet.Active, fleet.UpdateFailed, fleet.CreateFailed); err != nil {
			return nil, "", err
		}
		before := g
		if err := s.configureGroup(tx, r, cl, &g, in.GroupConfig); err != nil {
			return nil, "", err
		}
		groups, err := fleet.Groups.Of(tx, cl.ID)
		if err != nil {
			return nil, "", err
		}
		for i := range groups {
			if groups[i].ID == g.ID {
				groups[i] = g
			}
		}
		if err := sizeQuota(cl, groups); err != nil {
			return nil, "", err
		}
		if fleet.NeedsReplacement(before, g) {
			g.Revise()
		}
		g.Status, g.ModifiedAt, g.Errors = fleet.Updating, r.Now, nil
		nodes, err := fleet.Nodes.Of(tx, cl.ID)
		if err != nil {
			return nil, "", err
		}
		for _, n := range g.Retry(nodes) {
			if err := fleet.Nodes.Put(tx, n); err != nil {
				return nil, "", err
			}
		}
		return &GroupOut{groupOut(g)}, cl.ID, fleet.Groups.Put(tx, g)
	})
}

func (s *Service) deleteGroup(ctx context.Context, r *awsapi.Request, in *DeleteGroupIn) (*Empty, error) {
	var c check
	clusterRef, ref := c.group(in.GroupRef)
	c.token(in.ClientToken)
	if err := c.err(); err != nil {
		return nil, err
	}
	return update(ctx, s, r, in.ClientToken, func(tx *store.Tx) (*Empty, string, error) {
		cl, err := cluster(tx, r, clusterRef)
		if err != nil {
			return nil, "", err
		}
		g, err := group(tx, cl, ref)
		if err != nil {
			return nil, "", err
		}
		if g.Status == fleet.Deleting {
			return &Empty{}, "", nil
		}
		queues, err := fleet.Queues.Of(tx, cl.ID)
		if err != nil {
			return nil, "", err
		}
		for _, q := range queues {
			if slices.Contains(q.GroupIDs, g.ID) {
				return nil, "", conflict(groupType, g.ID, "the queue %s (%s) uses the compute node group %s: delete the queue or take the group out of it first", q.Name, q.ID, g.ID)
			}
		}
		g.Status, g.ModifiedAt = fleet.Deleting, r.Now
		return &Empty{}, cl.ID, fleet.Groups.Put(tx, g)
	})
}

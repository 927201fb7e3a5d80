package pcs

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/openpcs/openpcs/internal/awsapi"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/slurm"
	"github.com/openpcs/openpcs/internal/store"
)

func (c *check) queueConfig(in QueueConfig) (ids []string) {
	if n := len(in.ComputeNodeGroupConfigurations); n > maxGroups {
		c.bad("computeNodeGroupConfigurations", "has %d entries, and a cluster has at most %d compute node groups", n, maxGroups)
		return nil
	}
	for i, g := range in.ComputeNodeGroupConfigurations {
		at := fmt.Sprintf("computeNodeGroupConfigurations[%d].computeNodeGroupId", i)
		id := c.need(at, g.ComputeNodeGroupID)
		if g.ComputeNodeGroupID != nil && id == "" {
			c.bad(at, "is empty: use the id of a compute node group")
		}
		if slices.Contains(ids, id) {
			c.bad(at, "%s is named twice", id)
		}
		ids = append(ids, id)
	}
	if in.SlurmConfiguration != nil {
		c.pairs(settingsField, in.SlurmConfiguration.SlurmCustomSettings)
	}
	c.token(in.ClientToken)
	return ids
}

// checkGroups checks that a queue's groups are there and ACTIVE.
func checkGroups(tx *store.Tx, cl fleet.Cluster, ids []string) error {
	for _, id := range ids {
		g, err := group(tx, cl, id)
		if err != nil {
			return err
		}
		if g.ID != id {
			return invalid(Field{"computeNodeGroupConfigurations", id + " is a name: use the id " + g.ID})
		}
		if err := busy(groupType, g.ID, g.Status, fleet.Active); err != nil {
			return err
		}
	}
	return nil
}

func (s *Service) createQueue(ctx context.Context, r *awsapi.Request, in *CreateQueueIn) (*QueueOut, error) {
	var c check
	ref := c.cluster(in.ClusterRef)
	name := c.name("queueName", in.QueueName, 25)
	if strings.EqualFold(name, "default") {
		c.bad("queueName", "%s is what Slurm calls the defaults of all partitions: use another name", name)
	}
	ids := c.queueConfig(in.QueueConfig)
	c.tags(in.Tags, false)
	if err := c.err(); err != nil {
		return nil, err
	}
	return update(ctx, s, r, in.ClientToken, func(tx *store.Tx) (*QueueOut, string, error) {
		cl, err := cluster(tx, r, ref)
		if err != nil {
			return nil, "", err
		}
		if err := busy(clusterType, cl.ID, cl.Status, fleet.Active, fleet.UpdateFailed); err != nil {
			return nil, "", err
		}
		queues, err := fleet.Queues.Of(tx, cl.ID)
		if err != nil {
			return nil, "", err
		}
		for _, q := range queues {
			if q.Name == name {
				return nil, "", conflict(queueType, q.ID, "the queue name %s is taken by %s (%s)", name, q.ID, q.Status)
			}
		}
		if len(queues) >= maxQueues {
			return nil, "", quota(queueType, "", quotaQueues, "the cluster %s has %d queues, which is the limit", cl.ID, maxQueues)
		}
		if err := checkGroups(tx, cl, ids); err != nil {
			return nil, "", err
		}
		settings, err := queueSettings(cl, nil, in.SlurmConfiguration)
		if err != nil {
			return nil, "", err
		}
		q := fleet.Queue{
			ID: fleet.NewPCSID(), ClusterID: cl.ID, Region: r.Region, Name: name, Status: fleet.Creating,
			CreatedAt: r.Now, ModifiedAt: r.Now, GroupIDs: ids, Settings: settings, Tags: in.Tags,
		}
		q.ARN = s.arn(r.Region, "cluster/"+cl.ID+"/queue/"+q.ID)
		return &QueueOut{queueOut(q)}, cl.ID, fleet.Queues.Put(tx, q)
	})
}

// queueSettings are the custom settings after a request: those it gives, or
// those there were.
func queueSettings(cl fleet.Cluster, now []slurm.Setting, in *QueueSlurm) ([]slurm.Setting, error) {
	if in == nil || in.SlurmCustomSettings == nil {
		return now, nil
	}
	var c check
	out := c.settings(settingsField, slurm.QueueLevel, cl.Version, cl.Accounting.On, in.SlurmCustomSettings)
	return out, c.err()
}

func queueOut(q fleet.Queue) Queue {
	out := Queue{
		Name: q.Name, ID: q.ID, ARN: q.ARN, ClusterID: q.ClusterID, Status: string(q.Status),
		CreatedAt: awsapi.At(q.CreatedAt), ModifiedAt: awsapi.At(q.ModifiedAt),
		ComputeNodeGroupConfigurations: []QueueGroup{}, ErrorInfo: errorInfo(q.Errors),
		SlurmConfiguration: &QueueSlurm{SlurmCustomSettings: settingsOut(q.Settings)},
	}
	for _, id := range q.GroupIDs {
		out.ComputeNodeGroupConfigurations = append(out.ComputeNodeGroupConfigurations, QueueGroup{&id})
	}
	return out
}

func (c *check) queue(in QueueRef) (clusterRef, queueRef string) {
	return c.cluster(in.ClusterRef), c.pattern("queueIdentifier", in.QueueIdentifier, shortRefPattern)
}

func (s *Service) getQueue(ctx context.Context, r *awsapi.Request, in *QueueRef) (*QueueOut, error) {
	var c check
	clusterRef, ref := c.queue(*in)
	if err := c.err(); err != nil {
		return nil, err
	}
	var out *QueueOut
	err := s.Store.View(ctx, func(tx *store.Tx) error {
		cl, err := cluster(tx, r, clusterRef)
		if err != nil {
			return err
		}
		q, err := queue(tx, cl, ref)
		out = &QueueOut{queueOut(q)}
		return err
	})
	return out, err
}

func (s *Service) listQueues(ctx context.Context, r *awsapi.Request, in *ListOfClusterIn) (*ListQueuesOut, error) {
	page, next, err := s.listOf(ctx, r, in, func(tx *store.Tx, cl fleet.Cluster) (out []Summary, err error) {
		queues, err := fleet.Queues.Of(tx, cl.ID)
		for _, q := range queues {
			out = append(out, Summary{ClusterSummary{Name: q.Name, ID: q.ID, ARN: q.ARN, CreatedAt: awsapi.At(q.CreatedAt), ModifiedAt: awsapi.At(q.ModifiedAt), Status: string(q.Status)}, q.ClusterID})
		}
		return out, err
	})
	return &ListQueuesOut{Queues: page, NextToken: next}, err
}

func (s *Service) updateQueue(ctx context.Context, r *awsapi.Request, in *UpdateQueueIn) (*QueueOut, error) {
	var c check
	clusterRef, ref := c.queue(in.QueueRef)
	ids := c.queueConfig(in.QueueConfig)
	if err := c.err(); err != nil {
		return nil, err
	}
	return update(ctx, s, r, in.ClientToken, func(tx *store.Tx) (*QueueOut, string, error) {
		cl, err := cluster(tx, r, clusterRef)
		if err != nil {
			return nil, "", err
		}
		if err := busy(clusterType, cl.ID, cl.Status, fleet.Active, fleet.UpdateFailed); err != nil {
			return nil, "", err
		}
		q, err := queue(tx, cl, ref)
		if err != nil {
			return nil, "", err
		}
		if err := busy(queueType, q.ID, q.Status, fleet.Active, fleet.UpdateFailed, fleet.CreateFailed); err != nil {
			return nil, "", err
		}
		if in.ComputeNodeGroupConfigurations != nil {
			if err := checkGroups(tx, cl, ids); err != nil {
				return nil, "", err
			}
			q.GroupIDs = ids
		}
		if q.Settings, err = queueSettings(cl, q.Settings, in.SlurmConfiguration); err != nil {
			return nil, "", err
		}
		q.Status, q.ModifiedAt, q.Errors = fleet.Updating, r.Now, nil
		return &QueueOut{queueOut(q)}, cl.ID, fleet.Queues.Put(tx, q)
	})
}

func (s *Service) deleteQueue(ctx context.Context, r *awsapi.Request, in *DeleteQueueIn) (*Empty, error) {
	var c check
	clusterRef, ref := c.queue(in.QueueRef)
	c.token(in.ClientToken)
	if err := c.err(); err != nil {
		return nil, err
	}
	return update(ctx, s, r, in.ClientToken, func(tx *store.Tx) (*Empty, string, error) {
		cl, err := cluster(tx, r, clusterRef)
		if err != nil {
			return nil, "", err
		}
		q, err := queue(tx, cl, ref)
		if err != nil {
			return nil, "", err
		}
		if q.Status == fleet.Deleting {
			return &Empty{}, "", nil
		}
		q.Status, q.ModifiedAt = fleet.Deleting, r.Now
		return &Empty{}, cl.ID, fleet.Queues.Put(tx, q)
	})
}

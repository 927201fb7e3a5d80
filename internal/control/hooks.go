package control

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/openpcs/openpcs/internal/condition"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/imds"
	"github.com/openpcs/openpcs/internal/slurm"
	"github.com/openpcs/openpcs/internal/store"
)

// resumeFile is what openpcs reads of SLURM_RESUME_FILE.
type resumeFile struct {
	AllNodes string `json:"all_nodes_resume"`
	Jobs     []struct {
		ID    int    `json:"job_id"`
		Nodes string `json:"nodes_resume"`
	} `json:"jobs"`
}

// notice records what the controller's agent tells of slurmctld.
func (c *Control) notice(ctx context.Context, clusterID string, h imds.Hook) error {
	c.Log.Warn("slurmctld has a problem", "cluster", clusterID, "kind", h.Kind, "detail", h.Detail)
	return c.Store.Update(ctx, func(tx *store.Tx) error {
		now, detail := time.Now().UTC(), map[string]any{"detail": h.Detail}
		switch h.Kind {
		case "slurmctld-ended":
			return event(tx, now, clusterID, "cluster", "slurmctld-ended", detail)
		case "slurmctld-complained":
			return event(tx, now, clusterID, "cluster", "slurmctld-complained", detail)
		case "slurmdbd-ended":
			return event(tx, now, clusterID, "cluster", "slurmdbd-ended", detail)
		case "slurmdbd-disk-full":
			changed, err := databaseFull(tx, clusterID, h.Detail)
			if !changed || err != nil {
				return err
			}
			return event(tx, now, clusterID, "cluster", "slurmdbd-disk-full", detail)
		case "slurmdbd-disk-free":
			changed, err := databaseFull(tx, clusterID, "")
			if !changed || err != nil {
				return err
			}
			return event(tx, now, clusterID, "cluster", "slurmdbd-disk-free", detail)
		case "slurmrestd-ended":
			return event(tx, now, clusterID, "cluster", "slurmrestd-ended", detail)
		default:
			return &imds.RefusedError{Err: fmt.Errorf("unknown hook %q", h.Kind)}
		}
	})
}

// databaseFull keeps what the database of accounting lacks, empty for nothing. An
// agent that begins says it whether or not it was said before.
func databaseFull(tx *store.Tx, clusterID, lack string) (changed bool, err error) {
	cl, err := fleet.Clusters.Get(tx, clusterID)
	if err != nil {
		return false, ignoreMissing(err)
	}
	changed = (cl.DatabaseFull == "") != (lack == "")
	if cl.DatabaseFull == lack {
		return false, nil
	}
	cl.DatabaseFull = lack
	return changed, fleet.Clusters.Put(tx, cl)
}

// Hook takes a call of slurmctld's programs. When it returns nil the call is
// in the state file; the work comes after.
func (c *Control) Hook(ctx context.Context, clusterID string, h imds.Hook) error {
	if strings.HasPrefix(h.Kind, "slurm") {
		return c.notice(ctx, clusterID, h)
	}
	list := h.Nodes
	jobs := map[string][]int{}
	if h.ResumeFile != "" {
		var f resumeFile
		if err := json.Unmarshal([]byte(h.ResumeFile), &f); err != nil {
			c.Log.Warn("SLURM_RESUME_FILE was not understood", "cluster", clusterID, "err", err)
		} else {
			if f.AllNodes != "" {
				list = f.AllNodes
			}
			for _, j := range f.Jobs {
				names, err := slurm.Expand(j.Nodes)
				if err != nil {
					continue // the node list above is what counts
				}
				for _, n := range names {
					jobs[n] = append(jobs[n], j.ID)
				}
			}
		}
	}
	names, err := slurm.Expand(list)
	if err != nil {
		return &imds.RefusedError{Err: err}
	}
	err = c.Store.Update(ctx, func(tx *store.Tx) error {
		groups, err := fleet.Groups.Of(tx, clusterID)
		if err != nil {
			return err
		}
		instances, err := fleet.Instances.Of(tx, clusterID)
		if err != nil {
			return err
		}
		live := map[string]fleet.Instance{}
		for _, i := range instances {
			if i.State.Live() {
				live[i.NodeName] = i
			}
		}
		now := time.Now().UTC()
		for _, name := range names {
			n, err := nodeOf(tx, clusterID, groups, name)
			if err != nil {
				c.Log.Warn("Hook names an unknown node", "cluster", clusterID, "kind", h.Kind, "node", name)
				continue
			}
			if h.ID != "" && n.LastHook == h.ID {
				continue
			}
			n.LastHook, n.ChangedAt = h.ID, now
			i, ok := live[name]
			detail := map[string]any{}
			switch h.Kind {
			case "expect":
				// A job got the node: launch ahead of ResumeProgram, unless
				// something of the node's former life is still there. One that
				// is launched ahead already, for a job that lost the node
				// before ResumeProgram came, waits for it anew.
				anew := n.Want && n.Early
				if !anew && (ok || n.Want || now.Before(n.NotBefore) || n.Down != "") {
					continue
				}
				n.Want, n.WantAt, n.Early, n.GivenUp = true, now, true, ""
			case "resume":
				n.Want, n.WantAt, n.Jobs, n.Down, n.Early, n.GivenUp = true, now, jobs[name], "", false, ""
				if len(n.Jobs) > 0 {
					detail["jobs"] = n.Jobs
				}
				// Slurm has powered this node down: what is left of its former
				// life cannot register again.
				if ok && i.State == fleet.Running && !i.ReadyAt.IsZero() {
					i.End(condition.NotWanted, "User.Initiated", "openpcs: Slurm resumed its node anew")
					if err := fleet.Instances.Put(tx, i); err != nil {
						return err
					}
				}
			case "suspend":
				n.Want, n.Jobs, n.Early = false, nil, false
			case "resume-fail":
				if ok && (i.State == fleet.Pending || i.State == fleet.Running) { // not yet on its way out
					if n, err = fail(tx, c.Breaker, i, n, condition.ResumeTimeout, "its node did not come up within ResumeTimeout", fleet.BootReason(i.ID), now); err != nil {
						return err
					}
				}
				n.Want, n.Down = false, "" // Slurm has set it down already
			default:
				return &imds.RefusedError{Err: fmt.Errorf("unknown hook %q", h.Kind)}
			}
			if err := fleet.Nodes.Put(tx, n); err != nil {
				return err
			}
			if err := event(tx, now, clusterID, "node/"+name, h.Kind, detail); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil {
		if h.Kind == "resume" {
			c.resumed.announce(clusterID, names)
			if l := c.loop(clusterID); l != nil {
				l.forgetPowerUp(names) // it was asked for and came
			}
		}
		c.Wake(clusterID)
	}
	return err
}

// nodeOf finds a node by name, by the groups' tables and not by pattern.
func nodeOf(tx *store.Tx, clusterID string, groups []fleet.Group, name string) (fleet.Node, error) {
	n, err := fleet.Nodes.Get(tx, fleet.NodeID(clusterID, name))
	if err == nil || !errors.Is(err, store.ErrNotFound) {
		return n, err
	}
	for _, g := range groups {
		if index := g.NodeIndex(name); index > 0 && index <= g.Max {
			return fleet.Node{ClusterID: clusterID, GroupID: g.ID, Name: name, Index: index}, nil
		}
	}
	return n, err
}

// NodeStates takes what slurmctld says of its nodes.
func (c *Control) NodeStates(clusterID string, n imds.Nodes) {
	if l := c.loop(clusterID); l != nil {
		l.setStates(n.Nodes, n.Full)
		c.Wake(clusterID)
	}
}

// Report takes what a node's agent says of its bootstrap.
func (c *Control) Report(ctx context.Context, instanceID string, r imds.Report) error {
	var cluster string
	err := c.Store.Update(ctx, func(tx *store.Tx) error {
		i, err := fleet.Instances.Get(tx, instanceID)
		if err != nil {
			return err
		}
		cluster = i.ClusterID
		now := time.Now().UTC()
		if i, err = scriptsEnded(tx, i, r.Scripts, now); err != nil {
			return err
		}
		switch {
		case r.Stage == "script":
			return nil
		case r.Stage == "bootstrapped":
			return bootstrapped(tx, i, r, now)
		case r.Stage == "slurmd-waits":
			return tell(tx, &i, now, "slurmd-waits", map[string]any{"code": r.Code, "message": r.Message})
		case r.Stage != "failed":
			return tell(tx, &i, now, r.Stage, map[string]any{"agentMs": r.Timings})
		case r.Joined:
			return failedReady(tx, i, r, now)
		}
		// One on its way out needs no failure more, and of one that is up this
		// cannot be the bootstrap: any process there could say it.
		if (i.State != fleet.Pending && i.State != fleet.Running) || !i.ReadyAt.IsZero() {
			return nil
		}
		n, err := fleet.Nodes.Get(tx, fleet.NodeID(i.ClusterID, i.NodeName))
		if err != nil {
			return err
		}
		_, err = fail(tx, c.Breaker, i, n, r.Code, r.Message, fleet.BootReason(i.ID), now)
		return errors.Join(err,
			event(tx, now, i.ClusterID, "node/"+i.NodeName, "bootstrap-failed",
				map[string]any{"instance": i.ID, "code": r.Code, "message": r.Message, "log": r.Log}))
	})
	if err == nil && cluster != "" {
		c.Wake(cluster)
	}
	return err
}

// Failed takes bootstrap.log of an image without the agent and finds out
// what it says.
func (c *Control) Failed(ctx context.Context, instanceID, log string) error {
	r := imds.Report{Stage: "failed", Code: condition.BootstrapFailed, Message: "the bootstrap script failed", Log: log}
	if strings.Contains(log, "pcs_bootstrap_init.sh: No such file or directory") {
		i, err := c.instance(ctx, instanceID)
		if err != nil {
			return err
		}
		name := ""
		_ = c.Store.View(ctx, func(tx *store.Tx) error {
			image, err := fleet.Images.Get(tx, i.ImageID)
			name = " (" + image.Name + ")"
			return err
		})
		r.Code = condition.ImageWithoutAgent
		r.Message = "the image " + i.ImageID + name + " has no PCS agent: /opt/aws/pcs/bin/pcs_bootstrap_init.sh does not exist. " +
			"Use an image that has it: aws ec2 describe-images --owners amazon --filters 'Name=name,Values=aws-pcs-sample_ami-*'"
	}
	return c.Report(ctx, instanceID, r)
}

// Go returns when the instance's slurmd may start: Slurm has resumed its
// node. A slurmd that registers before would be taken for a stray one. That it
// may is on record first: from then on a job can be there.
func (c *Control) Go(ctx context.Context, i fleet.Instance) error {
	announced, cancel := c.resumed.subscribe(i.ClusterID, i.NodeName)
	defer cancel()
	for {
		wait := false
		err := c.Store.View(ctx, func(tx *store.Tx) error {
			n, err := fleet.Nodes.Get(tx, fleet.NodeID(i.ClusterID, i.NodeName))
			wait = n.Early || !n.Want // one that nobody wants is about to be ended
			return ignoreMissing(err)
		})
		if err == nil && !wait {
			err = c.release(ctx, i.ID)
		}
		if err != nil || !wait {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-announced:
		}
	}
}

// release records that an instance's slurmd starts, unless its end was
// decided: its agent then asks in vain until it is gone.
func (c *Control) release(ctx context.Context, id string) error {
	return c.Store.Update(ctx, func(tx *store.Tx) error {
		i, err := fleet.Instances.Get(tx, id)
		if err != nil {
			return err
		}
		if i.State != fleet.Pending && i.State != fleet.Running {
			return fmt.Errorf("start slurmd on %s: the instance is %s", id, i.State)
		}
		if !i.ReleasedAt.IsZero() {
			return nil
		}
		i.ReleasedAt = time.Now().UTC()
		return fleet.Instances.Put(tx, i)
	})
}

// bootTime is how long the boot of an instance may take until Slurm gives its
// node up, less a tenth and at most a minute, which is for saying why.
func (c *Control) bootTime(ctx context.Context, i fleet.Instance) time.Duration {
	limit := cmp.Or(c.ResumeTimeout, resumeTimeout)
	left := limit
	_ = c.Store.View(ctx, func(tx *store.Tx) error {
		n, err := fleet.Nodes.Get(tx, fleet.NodeID(i.ClusterID, i.NodeName))
		// Of one that was up it is a reboot, whose time begins now.
		if err == nil && i.ReadyAt.IsZero() && !n.WantAt.IsZero() {
			left -= min(max(time.Since(n.WantAt), 0), limit)
		}
		return err
	})
	return max(left-min(limit/10, time.Minute), 5*time.Second)
}

// Bootstrap tells a node's agent what to join.
func (c *Control) Bootstrap(ctx context.Context, i fleet.Instance) (imds.Bootstrap, error) {
	if err := c.strikeBootstrap(ctx, i); err != nil {
		return imds.Bootstrap{}, err
	}
	b := imds.Bootstrap{BootSeconds: int(c.bootTime(ctx, i).Seconds()), InstanceID: i.ID, ClusterID: i.ClusterID, Region: i.Region, Endpoint: c.Endpoint, InstanceType: i.Type, Login: true}
	err := c.Store.View(ctx, func(tx *store.Tx) error {
		queues, err := fleet.Queues.Of(tx, i.ClusterID)
		for _, q := range queues {
			for _, id := range q.GroupIDs {
				if id == i.GroupID {
					b.Login = false
				}
			}
		}
		return err
	})
	return b, err
}

// TerminateInstance ends an instance for a user. Its node is set down, so
// that Slurm requeues what ran there.
func (c *Control) TerminateInstance(ctx context.Context, region, id string) error {
	var cluster string
	err := c.Store.Update(ctx, func(tx *store.Tx) error {
		i, err := fleet.Instances.Get(tx, id)
		if err != nil {
			return err
		}
		if i.Region != region {
			return fmt.Errorf("instance %s: %w", id, store.ErrNotFound)
		}
		if i.State != fleet.Pending && i.State != fleet.Running {
			return nil
		}
		cluster = i.ClusterID
		i.End(condition.TerminatedByUser, "Client.UserInitiatedShutdown", "Client.UserInitiatedShutdown: User initiated shutdown")
		if err := fleet.Instances.Put(tx, i); err != nil {
			return err
		}
		n, err := fleet.Nodes.Get(tx, fleet.NodeID(i.ClusterID, i.NodeName))
		if err != nil {
			return ignoreMissing(err)
		}
		n.Want, n.Jobs, n.Early = false, nil, false
		n.Down = fleet.ReasonPrefix + "instance " + id + " was terminated by a user"
		n.FailureCode, n.LastFailure = condition.TerminatedByUser, n.Down
		return errors.Join(fleet.Nodes.Put(tx, n),
			event(tx, time.Now().UTC(), i.ClusterID, "node/"+i.NodeName, "terminated-by-user", map[string]any{"instance": id}))
	})
	if err == nil && cluster != "" {
		c.Wake(cluster)
	}
	return err
}

// RebootInstance restarts an instance in place.
func (c *Control) RebootInstance(ctx context.Context, id string) error {
	i, err := c.instance(ctx, id)
	if err != nil {
		return err
	}
	if i.State != fleet.Running {
		return fmt.Errorf("reboot %s: it is %s", id, i.State)
	}
	return c.Provider.Reboot(ctx, id)
}

// ConsoleOutput returns what an instance wrote to its console; of one that
// is gone, what was kept.
func (c *Control) ConsoleOutput(ctx context.Context, id string) ([]byte, error) {
	i, err := c.instance(ctx, id)
	if err != nil {
		return nil, err
	}
	if i.State == fleet.Terminated {
		text, err := c.KeptLog(id, "console.log")
		if err != nil {
			return nil, nil // nothing was kept: it never wrote
		}
		return text, nil
	}
	return c.Provider.Console(ctx, id)
}

// States returns what slurmctld said last of a cluster's nodes.
func (c *Control) States(clusterID string) map[string]slurm.Node {
	if l := c.loop(clusterID); l != nil {
		return l.states()
	}
	return nil
}

package control

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/openpcs/openpcs/internal/agent"
	"github.com/openpcs/openpcs/internal/condition"
	"github.com/openpcs/openpcs/internal/fault"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/secretsmanager"
	"github.com/openpcs/openpcs/internal/slurm"
	"github.com/openpcs/openpcs/internal/store"
)

// Timers of the configuration that are not the user's.
const (
	// resumeTimeout is PCS's: a node that is not up by then is given up.
	resumeTimeout = 30 * time.Minute
	// suspendTimeout is how long a node counts as powering down; instances
	// are gone in a second, and until then the node cannot be resumed.
	suspendTimeout = 5 * time.Second
)

// memoryForSlurm is the share of an instance type's memory that Slurm may
// give to jobs: the rest is for the system, as on PCS.
const memoryForSlurm = 0.95

// configured reports whether a group or queue of the status is part of
// slurm.conf. Those being deleted stay in it until nothing runs there.
func configured(s fleet.Status) bool { return s != fleet.CreateFailed }

// render makes a cluster's configuration from its groups and queues.
func (c *Control) render(cl fleet.Cluster, groups []fleet.Group, queues []fleet.Queue) (slurm.Files, error) {
	version, ok := slurm.FindVersion(cl.Version)
	if !ok {
		return nil, fmt.Errorf("render the configuration: Slurm %s is not known", cl.Version)
	}
	_, jobs := cl.Size.Limits()
	conf := slurm.Config{
		Version: version, ClusterName: cl.Name,
		ControllerName: "slurmctld-primary", ControllerAddress: cl.ControllerAddress,
		IdleTime: cl.IdleTime, ResumeTimeout: cmp.Or(c.ResumeTimeout, resumeTimeout), SuspendTimeout: suspendTimeout,
		Settings: cl.Settings, CgroupSettings: cl.Cgroup, REST: cl.REST,
		MaxJobs: jobs, HookDir: agent.HookDir, Cgroups: c.Cgroups, CheckHardware: c.CheckHardware,
	}
	if cl.Accounting.On {
		conf.Accounting = &slurm.Accounting{PurgeDays: cl.Accounting.PurgeDays, Settings: cl.Slurmdbd}
	}
	names := map[string]string{}
	for _, g := range groups {
		if !configured(g.Status) {
			continue
		}
		t, ok := fleet.Lookup(g.InstanceTypes[0])
		if !ok {
			return nil, fmt.Errorf("render the group %s: instance type %s is not known", g.Name, g.InstanceTypes[0])
		}
		memory := t.MemoryMiB
		for _, name := range g.InstanceTypes[1:] {
			if other, ok := fleet.Lookup(name); ok {
				memory = min(memory, other.MemoryMiB)
			}
		}
		names[g.ID] = g.Name
		conf.Nodes = append(conf.Nodes, slurm.NodeSet{
			Name: g.Name, Count: g.Max, Static: g.Min, IdleTime: g.IdleTime, Settings: g.Settings, CPUs: max(1, t.Cores()),
			RealMemoryMiB: int(float64(memory) * memoryForSlurm),
		})
	}
	for _, q := range queues {
		if !configured(q.Status) {
			continue
		}
		p := slurm.Partition{Name: q.Name, Settings: q.Settings}
		for _, id := range q.GroupIDs {
			if name, ok := names[id]; ok {
				p.Sets = append(p.Sets, name)
			}
		}
		conf.Partitions = append(conf.Partitions, p)
	}
	return conf.Render()
}

func hashFiles(files slurm.Files) string {
	h := sha256.New()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		fmt.Fprintf(h, "%s\n%d\n", name, len(files[name]))
		h.Write(files[name])
	}
	return hex.EncodeToString(h.Sum(nil))
}

// nodeNames lists the nodes of all configured groups.
func nodeNames(groups []fleet.Group) []string {
	names := []string{}
	for _, g := range groups {
		for n := 1; configured(g.Status) && n <= g.Max; n++ {
			names = append(names, g.NodeName(n))
		}
	}
	return names
}

// changing is what waits for slurmctld to take a configuration.
type changing struct {
	cluster bool
	groups  []fleet.Group
	queues  []fleet.Queue
}

func inTransition(s fleet.Status) bool { return s == fleet.Creating || s == fleet.Updating }

// configure brings slurmctld to the configuration that the state file asks
// for and moves statuses on.
func (c *Control) configure(ctx context.Context, l *loop) error {
	var cl fleet.Cluster
	var groups []fleet.Group
	var queues []fleet.Queue
	var key string
	drained := map[string]bool{} // groups being deleted that have no instance left
	err := c.Store.View(ctx, func(tx *store.Tx) (err error) {
		if cl, err = fleet.Clusters.Get(tx, l.id); err != nil {
			return err
		}
		if groups, err = fleet.Groups.Of(tx, l.id); err != nil {
			return err
		}
		if queues, err = fleet.Queues.Of(tx, l.id); err != nil {
			return err
		}
		for _, g := range groups {
			if g.Status == fleet.Deleting {
				drained[g.ID] = true
			}
		}
		if len(drained) > 0 {
			instances, err := fleet.Instances.Of(tx, l.id)
			if err != nil {
				return err
			}
			for _, i := range instances {
				if i.State.Live() {
					drained[i.GroupID] = false
				}
			}
		}
		key, err = secretsmanager.Value(tx, cl.KeyARN, cl.KeyVersion)
		return err
	})
	if err != nil {
		return err
	}
	ctld := c.Slurmctld(cl)
	var leaving changing
	var stay changing
	stay.cluster = inTransition(cl.Status)
	for _, g := range groups {
		switch {
		case g.Status == fleet.Deleting && drained[g.ID]:
			leaving.groups = append(leaving.groups, g)
		default:
			stay.groups = append(stay.groups, g)
		}
	}
	for _, q := range queues {
		if q.Status == fleet.Deleting && cl.ConfigHash != "" {
			empty, err := c.emptyQueue(ctx, ctld, q)
			if err != nil {
				return err
			}
			if empty {
				leaving.queues = append(leaving.queues, q)
				continue
			}
		}
		stay.queues = append(stay.queues, q)
	}
	files, err := c.render(cl, stay.groups, stay.queues)
	if err != nil {
		return c.refuse(ctx, cl, stay, "What is wrong: "+err.Error())
	}
	hash := hashFiles(files)
	pending := stay.cluster || len(leaving.groups)+len(leaving.queues) > 0 ||
		slices.ContainsFunc(stay.groups, func(g fleet.Group) bool { return inTransition(g.Status) }) ||
		slices.ContainsFunc(stay.queues, func(q fleet.Queue) bool { return inTransition(q.Status) })
	if hash == cl.ConfigHash && !pending && l.states() != nil {
		return nil
	}
	slurmKey, err := base64.StdEncoding.DecodeString(key)
	if err != nil {
		return fmt.Errorf("decode the cluster's key: %w", err)
	}
	accounting := files[slurm.SlurmdbdConf] // in a place of its own: slurmctld's files are no secret
	delete(files, slurm.SlurmdbdConf)
	refusal, err := ctld.Configure(ctx, agent.Config{
		Hash: hash, Release: cl.Version, Files: files, Key: slurmKey, Names: nodeNames(stay.groups), Accounting: accounting, REST: cl.REST,
	})
	if err != nil {
		return err
	}
	if refusal != "" {
		return c.refuse(ctx, cl, stay, "Slurm says: "+refusal)
	}
	nodes, err := ctld.Nodes(ctx)
	if err != nil {
		return err
	}
	l.setStates(nodes, true)
	return c.settle(ctx, cl, hash, stay, leaving)
}

// emptyQueue cancels what runs and waits in a queue being deleted, and
// reports whether nothing is left: slurmctld must never see a configuration
// that lacks the partition of a job it tracks.
func (c *Control) emptyQueue(ctx context.Context, ctld Slurmctld, q fleet.Queue) (bool, error) {
	ran, err := ctld.Run(ctx, "squeue", "--noheader", "--partition", q.Name, "--format", "%i")
	if err != nil {
		return false, err
	}
	if ran.Code != 0 && strings.Contains(ran.Stderr, "nvalid partition") { // it was never configured
		return true, nil
	}
	if ran.Code != 0 {
		return false, fmt.Errorf("list the jobs of the queue %s: %s", q.Name, strings.TrimSpace(ran.Stderr))
	}
	if ran.Stdout == "" {
		return true, nil
	}
	_, err = ctld.Run(ctx, "scancel", "--partition", q.Name)
	return false, err
}

// settle records that slurmctld runs with the configuration.
func (c *Control) settle(ctx context.Context, cl fleet.Cluster, hash string, stay, leaving changing) error {
	now := time.Now().UTC()
	return c.Store.Update(ctx, func(tx *store.Tx) error {
		current, err := fleet.Clusters.Get(tx, cl.ID)
		if err != nil {
			return err
		}
		current.ConfigHash = hash
		if stay.cluster && current.ModifiedAt.Equal(cl.ModifiedAt) && inTransition(current.Status) {
			current.Status = fleet.Active
			current.Keep()
		}
		if err := fleet.Clusters.Put(tx, current); err != nil {
			return err
		}
		if err := event(tx, now, cl.ID, "cluster", "configured", map[string]any{"hash": hash[:12]}); err != nil {
			return err
		}
		for _, g := range stay.groups {
			now, err := fleet.Groups.Get(tx, g.ID)
			if err != nil || !inTransition(now.Status) || !now.ModifiedAt.Equal(g.ModifiedAt) {
				continue // changed since: the next pass has it
			}
			now.Status = fleet.Active
			now.Keep()
			if err := fleet.Groups.Put(tx, now); err != nil {
				return err
			}
		}
		for _, q := range stay.queues {
			now, err := fleet.Queues.Get(tx, q.ID)
			if err != nil || !inTransition(now.Status) || !now.ModifiedAt.Equal(q.ModifiedAt) {
				continue
			}
			now.Status = fleet.Active
			now.Keep()
			if err := fleet.Queues.Put(tx, now); err != nil {
				return err
			}
		}
		for _, q := range leaving.queues {
			if err := fleet.Queues.Delete(tx, q.ID); err != nil {
				return err
			}
		}
		for _, g := range leaving.groups {
			nodes, err := fleet.Nodes.Of(tx, cl.ID)
			if err != nil {
				return err
			}
			for _, n := range nodes {
				if n.GroupID == g.ID {
					if err := fleet.Nodes.Delete(tx, fleet.NodeID(cl.ID, n.Name)); err != nil {
						return err
					}
				}
			}
			if err := fleet.Groups.Delete(tx, g.ID); err != nil {
				return err
			}
			if err := fault.Forget(tx, cl.ID, now, func(id string) bool { return id == g.ID }); err != nil {
				return err
			}
		}
		return nil
	})
}

// refuse records that Slurm would not take what is being created or updated.
func (c *Control) refuse(ctx context.Context, cl fleet.Cluster, stay changing, why string) error {
	failed := map[fleet.Status]fleet.Status{fleet.Creating: fleet.CreateFailed, fleet.Updating: fleet.UpdateFailed}
	verb := map[fleet.Status]string{fleet.Creating: "Create", fleet.Updating: "Update"}
	info := func(s fleet.Status, kind string) []fleet.ErrorInfo {
		return []fleet.ErrorInfo{{
			Code:    condition.ConfigurationRefused,
			Message: verb[s] + kind + " failed. The Slurm custom settings of the cluster might be incompatible. Check the settings and try again. " + why,
		}}
	}
	return c.Store.Update(ctx, func(tx *store.Tx) error {
		some := false
		// What changed since it was read is not what Slurm refused.
		if now, err := fleet.Clusters.Get(tx, cl.ID); err != nil {
			return err
		} else if inTransition(now.Status) && now.ModifiedAt.Equal(cl.ModifiedAt) {
			some = true
			now.Errors, now.Status = info(now.Status, "Cluster"), failed[now.Status]
			now.Restore()
			if err := fleet.Clusters.Put(tx, now); err != nil {
				return err
			}
		}
		for _, g := range stay.groups {
			now, err := fleet.Groups.Get(tx, g.ID)
			if err != nil || !inTransition(now.Status) || !now.ModifiedAt.Equal(g.ModifiedAt) {
				continue
			}
			some = true
			now.Errors, now.Status = info(now.Status, "ComputeNodeGroup"), failed[now.Status]
			if now.Good == nil { // it never was in force, and stays out
				now.Status = fleet.CreateFailed
			}
			now.Restore()
			if err := fleet.Groups.Put(tx, now); err != nil {
				return err
			}
		}
		for _, q := range stay.queues {
			now, err := fleet.Queues.Get(tx, q.ID)
			if err != nil || !inTransition(now.Status) || !now.ModifiedAt.Equal(q.ModifiedAt) {
				continue
			}
			some = true
			now.Errors, now.Status = info(now.Status, "Queue"), failed[now.Status]
			if now.Good == nil {
				now.Status = fleet.CreateFailed
			}
			now.Restore()
			if err := fleet.Queues.Put(tx, now); err != nil {
				return err
			}
		}
		if !some {
			return fmt.Errorf("slurmctld refused the configuration: %s", why)
		}
		return event(tx, time.Now().UTC(), cl.ID, "cluster", "refused", map[string]any{"reason": why})
	})
}

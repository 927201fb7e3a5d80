package control

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"time"

	"github.com/openpcs/openpcs/internal/compute"
	"github.com/openpcs/openpcs/internal/condition"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/store"
)

// present is what the provider has, as far as is known.
func (c *Control) isRunning(id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.present[id] == compute.Running
}

func (c *Control) setPresent(id string, s compute.State) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.present[id], c.heard[id] = s, time.Now()
	if s == compute.Running {
		c.appeared[id] = time.Now()
	} else {
		delete(c.appeared, id)
	}
}

// appears reports whether an instance that the provider does not list was
// seen to start so shortly before, and not to end, that the list may be behind:
// some engines answer from what they knew a while ago.
func (c *Control) appears(id string, listed time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return listed.Sub(c.appeared[id]) < appearTime
}

// suspect remembers since when an instance has been seen stopped.
func (c *Control) suspect(id string) (since time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.suspects[id]; !ok {
		c.suspects[id] = time.Now()
	}
	return c.suspects[id]
}

// Timers of the watch on the provider.
const (
	// settleTime lets a reboot pass for what it is: the engine says stopped
	// and started one after the other.
	settleTime = 1500 * time.Millisecond
	// appearTime is how long a list may lack an instance that was seen to start.
	appearTime = 30 * time.Second
	// sweepTime is how often everything is compared, whatever events said.
	sweepTime = 30 * time.Second
)

// watch follows the provider until Stop. After each break of the connection
// everything is compared anew, so that no event can be missed for good.
func (c *Control) watch() {
	doubts := c.doubts
	c.spawn(func() { c.examine(doubts) })
	for c.ctx.Err() == nil {
		err := c.Provider.Watch(c.ctx, func() { c.doubt("") }, func(e compute.Event) {
			switch e.Kind {
			case compute.Started:
				c.setPresent(e.ID, compute.Running)
				c.unsuspect(e.ID)
			case compute.Halted, compute.Deleted:
				c.setPresent(e.ID, compute.Stopped)
				c.suspect(e.ID)
				c.doubt(e.ID)
			}
		})
		if c.ctx.Err() != nil {
			return
		}
		c.Log.Warn("Watch on the provider ended, again in a second", "err", err)
		timer := time.NewTimer(time.Second)
		select {
		case <-c.ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
}

// doubt has the provider compared with the state file soon.
func (c *Control) doubt(id string) {
	select {
	case c.doubts <- id:
	default: // the sweep finds it
	}
}

// examine looks at instances that stopped, a moment later, and sweeps now
// and then.
func (c *Control) examine(doubts <-chan string) {
	sweep := time.NewTicker(sweepTime)
	defer sweep.Stop()
	var due *time.Timer
	var fire <-chan time.Time
	for {
		select {
		case <-c.ctx.Done():
			return
		case <-doubts:
			if due == nil {
				due = time.NewTimer(settleTime)
				fire = due.C
			}
			continue
		case <-fire:
			due, fire = nil, nil
		case <-sweep.C:
		}
		again, err := c.sweep(c.ctx)
		if err != nil && c.ctx.Err() == nil {
			c.Log.Warn("Provider was not compared", "err", err)
		}
		if again && due == nil {
			due = time.NewTimer(settleTime)
			fire = due.C
		}
	}
}

func (c *Control) unsuspect(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.suspects, id)
}

// sweep compares what the provider has with the state file: instances that
// vanished or stopped are lost, instances nobody knows are removed.
func (c *Control) sweep(ctx context.Context) (again bool, err error) {
	listed := time.Now()
	found, err := c.Provider.List(ctx)
	if err != nil {
		return false, err
	}
	have := map[string]compute.State{}
	for _, i := range found {
		have[i.ID] = i.State
	}
	c.mu.Lock()
	before := c.present
	now := maps.Clone(have)
	for id, at := range c.heard { // what came while the list was made is newer
		if !at.Before(listed) {
			now[id] = before[id]
		} else {
			delete(c.heard, id)
		}
	}
	c.present = now
	for id, at := range c.appeared {
		if listed.Sub(at) >= appearTime {
			delete(c.appeared, id)
		}
	}
	for id := range c.suspects {
		if have[id] != compute.Stopped { // up again, or gone
			delete(c.suspects, id)
		}
	}
	c.mu.Unlock()
	var instances []fleet.Instance
	var clusters []fleet.Cluster
	err = c.Store.View(ctx, func(tx *store.Tx) (err error) {
		if instances, err = fleet.Instances.All(tx); err != nil {
			return err
		}
		clusters, err = fleet.Clusters.All(tx)
		return err
	})
	if err != nil {
		return false, err
	}
	known := map[string]bool{}
	there := map[string]bool{}
	for _, cl := range clusters {
		known[cl.ControllerID], there[cl.ID] = true, true
		if have[cl.ControllerID] != compute.Running {
			c.Wake(cl.ID)
		}
	}
	for _, i := range instances {
		if i.State.Live() {
			known[i.ID] = true
		}
		if i.State == fleet.Running && have[i.ID] != compute.Running && cmp.Or(i.StartedAt, i.RegisteredAt).Before(listed) {
			_, stopped := have[i.ID]
			// What is there but stopped may be in the middle of a reboot.
			if stopped && listed.Sub(c.suspect(i.ID)) < settleTime {
				again = true
				continue
			}
			if !stopped && c.appears(i.ID, listed) {
				again = true
				continue
			}
			_, seen := before[i.ID]
			if !stopped && !seen && i.RegisteredAt.IsZero() && i.StartedAt.After(c.started) {
				err = c.neverThere(ctx, i.ID)
			} else {
				err = c.lost(ctx, i.ID, stopped)
			}
			if err != nil {
				return false, err
			}
		}
	}
	if err := c.forgetOrphans(ctx, instances, there, listed); err != nil {
		return again, err
	}
	for _, i := range found {
		// A cluster being created may have launched after the view was read:
		// only what is older than that can be an orphan.
		if known[i.ID] || i.Labels[labelKind] == "" || !i.CreatedAt.Before(listed) {
			continue
		}
		c.Log.Warn("Instance belongs to nothing and is removed", "instance", i.ID)
		c.once(i.Labels[labelCluster], "instance/"+i.ID, func(ctx context.Context) error { return c.Provider.Terminate(ctx, i.ID) })
	}
	return again, nil
}

// forgetOrphans drops the terminated instances of clusters that are gone,
// whose loops would have done so.
func (c *Control) forgetOrphans(ctx context.Context, instances []fleet.Instance, clusters map[string]bool, now time.Time) error {
	var old []string
	for _, i := range instances {
		if i.State == fleet.Terminated && !clusters[i.ClusterID] && !now.Before(i.TerminatedAt.Add(fleet.KeepTerminated)) {
			old = append(old, i.ID)
		}
	}
	if len(old) == 0 {
		return nil
	}
	return c.Store.Update(ctx, func(tx *store.Tx) error {
		for _, id := range old {
			if err := fleet.Instances.Delete(tx, id); err != nil {
				return err
			}
		}
		return nil
	})
}

// neverThere records that a launch gave no error and no instance either,
// which is how some engines say that there is no room.
func (c *Control) neverThere(ctx context.Context, id string) error {
	var cluster string
	err := c.Store.Update(ctx, func(tx *store.Tx) error {
		i, err := fleet.Instances.Get(tx, id)
		if err != nil || i.State != fleet.Running {
			return ignoreMissing(err)
		}
		const text = "the provider gave no error and no instance either"
		now := time.Now().UTC()
		cluster = i.ClusterID
		i.End(condition.InsufficientCapacity, "Server."+noCapacity, text)
		i.FailureCode, i.Failure = condition.InsufficientCapacity, text
		if err := fleet.Instances.Put(tx, i); err != nil {
			return err
		}
		// The node stays wanted: another pool may have room.
		g, err := fleet.Groups.Get(tx, i.GroupID)
		if err == nil {
			g.Refuse(i.Type, i.SubnetID, noCapacity, text, false, now)
			err = fleet.Groups.Put(tx, g)
		}
		return errors.Join(ignoreMissing(err), event(tx, now, i.ClusterID, "node/"+i.NodeName, "refused",
			map[string]any{"instance": id, "type": i.Type, "subnet": i.SubnetID, "code": noCapacity, "error": text}))
	})
	if err == nil && cluster != "" {
		c.Wake(cluster)
	}
	return err
}

// lost records that a running instance ended without our doing.
func (c *Control) lost(ctx context.Context, id string, stopped bool) error {
	var cluster string
	err := c.Store.Update(ctx, func(tx *store.Tx) error {
		i, err := fleet.Instances.Get(tx, id)
		if err != nil || i.State != fleet.Running {
			return ignoreMissing(err)
		}
		now := time.Now().UTC()
		if o, ok := i.Fatal(); ok && stopped {
			cluster = i.ClusterID
			return shutDown(tx, c.Breaker, i, o, now)
		}
		if stopped {
			i.End(condition.InstanceLost, "Client.InstanceInitiatedShutdown", "it shut itself down")
		} else {
			i.End(condition.InstanceLost, "Server.Lost", "it was terminated outside of openpcs")
		}
		if err := fleet.Instances.Put(tx, i); err != nil {
			return err
		}
		cluster = i.ClusterID
		n, err := fleet.Nodes.Get(tx, fleet.NodeID(i.ClusterID, i.NodeName))
		if errors.Is(err, store.ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		n = lostNode(n, i, condition.InstanceLost, i.StateReason)
		if i.ReadyAt.IsZero() { // it never came up: a start that failed
			n = n.Rest(now)
			err = count(tx, c.Breaker, i, &n, n.Down, now)
		} else {
			err = fleet.Nodes.Put(tx, n)
		}
		if err != nil {
			return err
		}
		return event(tx, now, i.ClusterID, "node/"+i.NodeName, "lost", map[string]any{"instance": id, "reason": i.StateReason})
	})
	if err == nil && cluster != "" {
		c.Wake(cluster)
	}
	return err
}

// shutDown records that an instance powered itself off after a script failed. Of
// one that was up this is a reboot, of whose failure no report is believed; but
// that it is off is seen.
func shutDown(tx *store.Tx, breaker int, i fleet.Instance, o fleet.ScriptOutcome, now time.Time) error {
	code := condition.LifecycleScriptFailed
	if o.ExitCode == fleet.NotRun {
		code = condition.LifecycleDownload
	}
	n, err := fleet.Nodes.Get(tx, fleet.NodeID(i.ClusterID, i.NodeName))
	if errors.Is(err, store.ErrNotFound) { // it is gone with its group
		i, _ = fleet.FailInstance(i, n, code, o.Sentence(), "", now)
		return fleet.Instances.Put(tx, i)
	}
	if err != nil {
		return err
	}
	_, err = fail(tx, breaker, i, n, code, o.Sentence(), fleet.BootReason(i.ID), now)
	return errors.Join(err, event(tx, now, i.ClusterID, "node/"+i.NodeName, "failed", map[string]any{"instance": i.ID, "code": code, "reason": o.Sentence()}))
}

// lostNode is a node whose instance is gone without our doing.
func lostNode(n fleet.Node, i fleet.Instance, code condition.Code, why string) fleet.Node {
	n.Want, n.Jobs, n.Early = false, nil, false
	n.Down = fleet.ReasonPrefix + "instance " + i.ID + " is gone, " + why
	n.FailureCode, n.LastFailure = code, n.Down
	return n
}

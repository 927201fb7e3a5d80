package control

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/openpcs/openpcs/internal/agent"
	"github.com/openpcs/openpcs/internal/condition"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/scaling"
	"github.com/openpcs/openpcs/internal/slurm"
	"github.com/openpcs/openpcs/internal/store"
)

func (l *loop) states() map[string]slurm.Node {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.nodes)
}

func (l *loop) setStates(nodes map[string]slurm.Node, full bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !full && l.nodes == nil {
		return // changes of something unknown: wait for a full answer
	}
	now := time.Now()
	since := l.since
	if full {
		since = map[string]time.Time{}
	}
	for name, n := range nodes {
		if old, ok := l.nodes[name]; ok && slices.Equal(old.State, n.State) {
			since[name] = l.since[name]
		} else {
			since[name] = now
		}
	}
	l.since = since
	if full {
		l.nodes = maps.Clone(nodes)
		if nodes != nil {
			l.confirmed = now
		}
		return
	}
	maps.Copy(l.nodes, nodes)
}

// confirmation returns when slurmctld told of all nodes last.
func (l *loop) confirmation() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.confirmed
}

// sinces returns when each node came into its state.
func (l *loop) sinces() map[string]time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return maps.Clone(l.since)
}

// pass brings a cluster one step nearer to what the state file asks for. It
// returns when to look again at the latest.
func (c *Control) pass(l *loop) (time.Time, error) {
	ctx := c.ctx
	var cl fleet.Cluster
	err := c.Store.View(ctx, func(tx *store.Tx) (err error) {
		cl, err = fleet.Clusters.Get(tx, l.id)
		return err
	})
	if errors.Is(err, store.ErrNotFound) {
		return time.Time{}, errGone
	}
	if err != nil {
		return time.Time{}, err
	}
	if cl.Status == fleet.Deleting {
		return time.Time{}, c.deleteCluster(ctx, cl)
	}
	if cl.Status == fleet.CreateFailed {
		return time.Time{}, nil
	}
	// Nodes first: what jobs wait for must neither wait for a new configuration,
	// which itself waits for jobs that are about to start, nor for a controller
	// that is away.
	next, err := c.plan(ctx, l)
	known := l.confirmation()
	confErr, planErr := c.meanwhile(l, func() error {
		if err := c.ensureController(ctx, l, cl); err != nil {
			return err
		}
		return c.configure(ctx, l)
	})
	err = errors.Join(err, planErr)
	if confErr != nil {
		confErr = c.giveUp(ctx, l, cl, confErr)
	}
	if confErr == nil && !l.confirmation().Equal(known) {
		next = time.Now() // slurmctld runs with something new, and told of it
	}
	return next, errors.Join(confErr, err)
}

// meanwhile does what takes its time, and plans whenever something happens
// until it is done: a configuration waits for jobs that are about to start,
// and their launches must not wait for the configuration.
func (c *Control) meanwhile(l *loop, f func() error) (err, planErr error) {
	done := make(chan error, 1)
	c.spawn(func() {
		err := context.Canceled // if f does not come back
		defer func() { done <- err }()
		err = f()
	})
	woken := false
	var soon <-chan time.Time
	for {
		select {
		case err = <-done:
			if woken {
				c.Wake(l.id) // what happened may ask for another configuration
			}
			return err, planErr
		case <-l.wake:
			woken = true
			if soon == nil { // f is mostly done by then, and the next pass plans
				soon = time.After(planMeanwhile)
			}
		case <-soon:
			soon = nil
			if _, err := c.plan(c.ctx, l); err != nil {
				planErr = err
			}
		}
	}
}

// planMeanwhile gathers what happens while a configuration is under way.
const planMeanwhile = 20 * time.Millisecond

// creationLimit is how long a controller may take to come up for the first
// time before its creation counts as failed.
const creationLimit = 5 * time.Minute

// updateLimit is how long a daemon may not start with a change of a cluster
// before the change is taken back: nobody can update a cluster that is updating.
const updateLimit = 5 * time.Minute

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// giveUp gives up a cluster that cannot be created, and an update that a daemon
// does not start with: then the former settings come back.
func (c *Control) giveUp(ctx context.Context, l *loop, cl fleet.Cluster, cause error) error {
	info := fleet.ErrorInfo{Code: condition.ControllerFailed, Message: cause.Error()}
	var trouble *agent.Trouble
	if errors.As(cause, &trouble) {
		info.Code = trouble.Code
	}
	var late, lateUpdate bool
	switch cl.Status {
	case fleet.Creating:
		late = time.Since(latest(cl.CreatedAt, c.started)) >= creationLimit
	case fleet.Updating: // a controller that cannot be reached could not go back either
		lateUpdate = trouble != nil && time.Since(latest(cl.ModifiedAt, c.started)) >= updateLimit
	}
	if !late && !lateUpdate || ctx.Err() != nil {
		return cause
	}
	if lateUpdate {
		l.setStates(nil, true) // so that the controller is told, whatever it was told before
	}
	return errors.Join(cause, c.Store.Update(ctx, func(tx *store.Tx) error {
		now, err := fleet.Clusters.Get(tx, cl.ID)
		if err != nil || now.Status != cl.Status || !now.ModifiedAt.Equal(cl.ModifiedAt) {
			return ignoreMissing(err)
		}
		now.Status = map[bool]fleet.Status{true: fleet.UpdateFailed, false: fleet.CreateFailed}[lateUpdate]
		now.Errors, now.Trouble = []fleet.ErrorInfo{info}, nil
		now.Restore()
		return fleet.Clusters.Put(tx, now)
	}))
}

// plan decides about nodes and instances, records the decisions in the same
// transaction, and starts the effects.
func (c *Control) plan(ctx context.Context, l *loop) (time.Time, error) {
	var effects []fleet.Action
	var adopted []string
	var next time.Time
	var cl fleet.Cluster
	states, since, confirmed := l.states(), l.sinces(), l.confirmation()
	err := c.Store.Update(ctx, func(tx *store.Tx) error {
		effects, adopted = nil, nil
		now := time.Now().UTC()
		var err error
		if cl, err = fleet.Clusters.Get(tx, l.id); err != nil {
			return err
		}
		groups, err := fleet.Groups.Of(tx, l.id)
		if err != nil {
			return err
		}
		instances, err := fleet.Instances.Of(tx, l.id)
		if err != nil {
			return err
		}
		nodes, err := fleet.Nodes.Of(tx, l.id)
		if err != nil {
			return err
		}
		var lose []string
		if c.Faults {
			if lose, err = strikeNodes(tx, l.id, instances, now); err != nil {
				return err
			}
		}
		for _, id := range lose {
			effects = append(effects, fleet.Action{Kind: loseInstance, Instance: id})
		}
		o := fleet.Observed{Now: now, Groups: groups, Instances: instances, Nodes: map[string]fleet.Node{}, Slurm: states, Since: since, Confirmed: confirmed, ClockSet: l.clockSet}
		for _, n := range nodes {
			o.Nodes[n.Name] = n
		}
		actions, wake := fleet.Plan(o)
		next = wake
		w := &recorder{breaker: c.Breaker, tx: tx, now: now, cl: cl, o: o, groups: map[string]fleet.Group{}, instances: map[string]fleet.Instance{}}
		for _, g := range groups {
			w.groups[g.ID] = g
		}
		for _, i := range instances {
			w.instances[i.ID] = i
		}
		if err := w.stay(actions); err != nil {
			return err
		}
		for _, a := range actions {
			effect, err := w.record(a)
			if err != nil {
				return fmt.Errorf("record %s of %s%s: %w", a.Kind, a.Node, a.Instance, err)
			}
			if effect.Kind != "" {
				effects = append(effects, effect)
			}
			if a.Kind == fleet.Adopt {
				adopted = append(adopted, a.Node)
			}
			failing := a.Kind == fleet.MarkUp && w.instances[a.Instance].Failure != ""
			if failing || a.Kind == fleet.GiveUp || a.Kind == fleet.Adopt || a.Kind == fleet.Lack || (a.Kind == fleet.Assign && effect.Kind == "") {
				next = now // what that leaves behind is for the next pass
			}
		}
		if w.again {
			next = now
		}
		return nil
	})
	if err != nil {
		return next, err
	}
	c.resumed.announce(l.id, adopted)
	c.perform(l, cl, effects)
	return next, nil
}

// recorder writes decisions into the state file.
type recorder struct {
	tx        *store.Tx
	now       time.Time
	cl        fleet.Cluster
	o         fleet.Observed
	groups    map[string]fleet.Group
	instances map[string]fleet.Instance
	addresses *fleet.Addresses // read at first need
	breaker   int
	again     bool // what was recorded calls for another pass at once
}

func (w *recorder) event(subject, kind string, detail map[string]any) error {
	return event(w.tx, w.now, w.cl.ID, subject, kind, detail)
}

func (w *recorder) node(name string, g fleet.Group) fleet.Node {
	if n, ok := w.o.Nodes[name]; ok {
		return n
	}
	return fleet.Node{ClusterID: w.cl.ID, GroupID: g.ID, Name: name, Index: g.NodeIndex(name)}
}

func (w *recorder) putNode(n fleet.Node) error {
	w.o.Nodes[n.Name] = n
	return fleet.Nodes.Put(w.tx, n)
}

// record writes one decision and returns the effect that it needs, which is
// empty for changes of the state file alone.
func (w *recorder) record(a fleet.Action) (effect fleet.Action, err error) {
	i := w.instances[a.Instance]
	switch a.Kind {
	case fleet.Assign:
		g := w.groups[a.GroupID]
		i, err := w.newInstance(g, a.Node, a.Pool)
		var none *fleet.NoAddressError
		if errors.As(err, &none) {
			// The next pass takes another pool, or finds that all rest.
			g.Refuse(a.Pool.Type, a.Pool.SubnetID, noAddress, err.Error(), false, w.now)
			w.groups[g.ID] = g
			return fleet.Action{}, errors.Join(fleet.Groups.Put(w.tx, g), w.refused(g.ID, a.Node, a.Pool, noAddress, err.Error()))
		}
		if err != nil {
			return fleet.Action{}, err
		}
		if err := fleet.Instances.Put(w.tx, i); err != nil {
			return fleet.Action{}, err
		}
		w.instances[i.ID] = i
		return fleet.Action{Kind: fleet.Start, GroupID: g.ID, Node: a.Node, Instance: i.ID},
			w.event("node/"+a.Node, "assigned", map[string]any{"instance": i.ID, "type": i.Type, "subnet": i.SubnetID})
	case fleet.Lack:
		n, h := fleet.HeldNode(w.node(a.Node, w.groups[a.GroupID]), a.Hold), a.Hold
		lack := fleet.Instance{ClusterID: w.cl.ID, GroupID: a.GroupID, NodeName: a.Node, Type: h.Pool.Type, SubnetID: h.Pool.SubnetID}
		return fleet.Action{}, errors.Join(w.putNode(n), scaling.Append(w.tx, scaling.OfLack(lack, h.EC2Code, h.Code, h.Text, w.now)), w.event("node/"+a.Node, "lacking",
			map[string]any{"code": h.Code, "error": h.Text, "again": h.NotBefore}))
	case fleet.Retire:
		i.End(a.Code, "User.Initiated", "openpcs: "+a.Reason)
		if err := fleet.Instances.Put(w.tx, i); err != nil {
			return fleet.Action{}, err
		}
		// A node that comes back after a scale-in is nobody's wish yet; one whose
		// group was updated still is.
		if n, ok := w.o.Nodes[a.Node]; ok && n.Want && a.Code != condition.GroupUpdated {
			n.Want, n.Early, n.Jobs = false, false, nil
			if err := w.putNode(n); err != nil {
				return fleet.Action{}, err
			}
		}
		return fleet.Action{Kind: fleet.Stop, Node: a.Node, Instance: i.ID},
			w.event("node/"+a.Node, "retired", map[string]any{"instance": i.ID, "code": i.EndCode, "reason": a.Reason})
	case fleet.Reclaim:
		const code = "Server.SpotInstanceTermination"
		i.End(a.Code, code, code+": "+a.Reason)
		n := lostNode(w.node(a.Node, w.groups[a.GroupID]), i, a.Code, a.Reason)
		return fleet.Action{Kind: fleet.Stop, Node: a.Node, Instance: i.ID}, errors.Join(
			fleet.Instances.Put(w.tx, i), w.putNode(n),
			w.event("node/"+a.Node, "reclaimed", map[string]any{"instance": i.ID, "reason": a.Reason}))
	case fleet.Fail:
		n, err := fail(w.tx, w.breaker, i, w.node(a.Node, w.groups[i.GroupID]), a.Code, a.Reason, fleet.BootReason(i.ID), w.now)
		if err != nil {
			return fleet.Action{}, err
		}
		w.o.Nodes[n.Name] = n
		if w.groups[i.GroupID], err = fleet.Groups.Get(w.tx, i.GroupID); err != nil {
			return fleet.Action{}, err
		}
		return fleet.Action{Kind: fleet.Stop, Node: a.Node, Instance: i.ID},
			w.event("node/"+a.Node, "failed", map[string]any{"instance": i.ID, "code": a.Code, "reason": a.Reason})
	case fleet.MarkUp:
		i.ReadyAt = w.now
		if err := errors.Join(fleet.Instances.Put(w.tx, i), scaling.Append(w.tx, scaling.OfActivation(i, w.now))); err != nil {
			return fleet.Action{}, err
		}
		n := w.node(a.Node, w.groups[i.GroupID])
		// With scripts to come it is a success when they are done.
		success := func() error { return nil }
		if len(w.groups[i.GroupID].Lifecycle.Scripts(fleet.NodeReady)) == 0 {
			n.Attempts, n.NotBefore = 0, time.Time{}
			success = func() error { return w.succeeded(i) }
		}
		if err := errors.Join(w.putNode(n), success()); err != nil {
			return fleet.Action{}, err
		}
		return fleet.Action{}, w.event("node/"+a.Node, "ready", map[string]any{"instance": i.ID, "afterMs": w.now.Sub(i.LaunchedAt).Milliseconds()})
	case fleet.Replace, fleet.PowerDown, fleet.SetDown:
		return a, w.leave(i, a)
	case fleet.Forget:
		return fleet.Action{}, fleet.Instances.Delete(w.tx, a.Instance)
	case fleet.Adopt:
		n := w.node(a.Node, w.groups[a.GroupID])
		n.Want, n.WantAt, n.ChangedAt, n.Early, n.GivenUp = true, w.now, w.now, false, ""
		return fleet.Action{}, errors.Join(w.putNode(n), w.event("node/"+a.Node, "adopted", map[string]any{"reason": a.Reason}))
	case fleet.GiveUp:
		n := w.node(a.Node, w.groups[a.GroupID])
		n.Want, n.Early, n.Jobs, n.GivenUp = false, false, nil, a.Reason
		if n.Index > w.groups[a.GroupID].Max {
			n.Down = "" // Slurm does not have it any more
		}
		return fleet.Action{}, errors.Join(w.putNode(n), w.event("node/"+a.Node, "given-up", map[string]any{"reason": a.Reason}))
	default:
		return a, nil
	}
}

// succeeded closes the breaker of the group of an instance that came up.
func (w *recorder) succeeded(i fleet.Instance) error {
	g, ok := w.groups[i.GroupID]
	if !ok {
		return nil
	}
	open := g.Breaker.Open
	err := succeeded(w.tx, &g, i, w.now)
	w.groups[g.ID] = g
	w.again = w.again || (open && !g.Breaker.Open) // the nodes that waited for this one
	return err
}

// leave records, once, why Slurm is asked to give up a node whose instance is
// up: by which rule, what was seen, and since when.
func (w *recorder) leave(i fleet.Instance, a fleet.Action) error {
	if i.ID == "" || i.State != fleet.Running || i.Leaving != "" {
		return nil
	}
	i.Leaving, i.LeavingWhy = a.Code, a.Reason
	w.instances[i.ID] = i
	errs := []error{fleet.Instances.Put(w.tx, i), w.event("node/"+a.Node, "leaving", map[string]any{
		"instance": i.ID, "code": a.Code, "reason": a.Reason, "state": strings.Join(w.o.Slurm[a.Node].State, "+"), "since": w.o.Since[a.Node],
	})}
	if a.Kind == fleet.Replace {
		errs = append(errs, scaling.Append(w.tx, scaling.OfReplacement(i, a.Reason, w.now)))
	}
	return errors.Join(errs...)
}

// stay takes back that Slurm was asked to give up nodes that it shows up and
// has not given up: one that did not answer for a while, or that a person
// took over. When such a node ends later it is for another reason.
func (w *recorder) stay(actions []fleet.Action) error {
	left := map[string]bool{}
	for _, a := range actions {
		left[a.Instance] = true
	}
	var errs []error
	for id, i := range w.instances {
		seen := w.o.Slurm[i.NodeName]
		if i.Leaving == "" || i.State != fleet.Running || left[id] || !seen.Ready() || seen.HasAny("DRAIN", "POWER_DOWN", "POWER_DRAIN", "POWERING_DOWN") {
			continue
		}
		i.Leaving = ""
		w.instances[id] = i
		errs = append(errs, fleet.Instances.Put(w.tx, i))
	}
	return errors.Join(errs...)
}

// refused tells of a pool that had no instance to give.
func (w *recorder) refused(groupID, node string, p fleet.Pool, code, text string) error {
	return w.event("node/"+node, "refused", map[string]any{"group": groupID, "type": p.Type, "subnet": p.SubnetID, "code": code, "error": text})
}

// newInstance makes the pending instance that will back a node.
func (w *recorder) newInstance(g fleet.Group, node string, p fleet.Pool) (fleet.Instance, error) {
	tags := map[string]string{}
	maps.Copy(tags, g.Launch.Tags)
	tags["aws:pcs:cluster-id"] = w.cl.ID
	tags["aws:pcs:compute-node-group-id"] = g.ID
	tags["AWSPCSManaged"] = "true"
	i := fleet.Instance{
		ID: fleet.NewEC2ID("i"), Region: g.Region, State: fleet.Pending, ImageID: g.Launch.ImageID,
		SecurityGroups: g.Launch.SecurityGroups, KeyName: g.Launch.KeyName, ProfileARN: g.ProfileARN, Tags: tags,
		UserData: bootData(w.cl, g), LaunchedAt: w.now,
		ClusterID: w.cl.ID, GroupID: g.ID, NodeName: node, GroupRevision: g.Revision,
	}
	if w.addresses == nil {
		var err error
		if w.addresses, err = fleet.ReadAddresses(w.tx, g.Region); err != nil {
			return i, err
		}
	}
	return i, place(w.tx, &i, p, w.addresses)
}

// place puts a pending instance into a pool.
func place(tx *store.Tx, i *fleet.Instance, p fleet.Pool, addresses *fleet.Addresses) error {
	subnet, err := fleet.Subnets.Get(tx, p.SubnetID)
	if err != nil {
		return err
	}
	address, err := addresses.Take(subnet.CIDR)
	if err != nil {
		return err
	}
	i.Type, i.SubnetID, i.VPCID, i.AZ, i.Address = p.Type, subnet.ID, subnet.VPCID, subnet.AZ, address
	return nil
}

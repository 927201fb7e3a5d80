package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"time"

	"github.com/openpcs/openpcs/internal/compute"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/scaling"
	"github.com/openpcs/openpcs/internal/slurm"
	"github.com/openpcs/openpcs/internal/store"
)

// Labels that openpcs puts on the provider's instances.
const (
	labelCluster = "cluster"
	labelKind    = "kind" // node or controller
)

// cause is why nodes are set down: the reason Slurm shows, and the Down of the
// nodes that is taken care of. Those that are powering up need no more than
// one order.
type cause struct {
	reason, mark string
	rising       bool
}

// orders are the commands for slurmctld of one pass: one scontrol for many
// nodes.
type orders struct {
	states map[string][]string // new state to nodes
	why    map[string]string   // of nodes
	down   map[cause][]string
}

// perform starts the effects of a pass.
func (c *Control) perform(l *loop, cl fleet.Cluster, effects []fleet.Action) {
	batch := orders{states: map[string][]string{}, why: map[string]string{}, down: map[cause][]string{}}
	order := func(state string, a fleet.Action) {
		batch.states[state] = append(batch.states[state], a.Node)
		batch.why[a.Node] = a.Reason
	}
	for _, a := range effects {
		switch a.Kind {
		case fleet.Start:
			c.once(cl.ID, "instance/"+a.Instance, func(ctx context.Context) error { return c.start(ctx, cl, a.Instance) })
		case fleet.Stop:
			c.once(cl.ID, "instance/"+a.Instance, func(ctx context.Context) error { return c.stop(ctx, a.Instance) })
		case loseInstance:
			c.once(cl.ID, "fault/"+a.Instance, func(ctx context.Context) error { return c.lose(ctx, a.Instance) })
		case fleet.PowerUp:
			if l.askedPowerUp(a.Node) {
				order("POWER_UP", a)
			}
		case fleet.PowerDown:
			order("POWER_DOWN", a)
		case fleet.Replace:
			order("POWER_DOWN_ASAP", a)
		case fleet.Recover:
			order("RESUME", a)
		case fleet.Look:
			c.once(cl.ID, cl.ID+"/look", func(ctx context.Context) error { return c.look(ctx, l, cl) })
		case fleet.HoldOut:
			order(holdOut, a)
		case fleet.SetDown:
			why := cause{a.Reason, a.Down, a.Rising}
			batch.down[why] = append(batch.down[why], a.Node)
		}
	}
	if len(batch.states)+len(batch.down) > 0 {
		// One batch at a time: the next pass plans with what this one changed.
		began := c.once(cl.ID, cl.ID+"/slurmctld", func(ctx context.Context) error { return c.command(ctx, l, c.Slurmctld(cl), batch) })
		if !began {
			l.forgetPowerUp(batch.states["POWER_UP"])
		}
	}
}

// command gives slurmctld its orders and looks at what they changed, before
// anything else is decided on what was before.
func (c *Control) command(ctx context.Context, l *loop, ctld Slurmctld, batch orders) error {
	var errs []error
	for why, nodes := range batch.down {
		errs = append(errs, c.setDown(ctx, l, ctld, nodes, why))
	}
	for state, nodes := range batch.states {
		if state == holdOut {
			errs = append(errs, c.holdOut(ctx, l, ctld, nodes, batch.why))
			continue
		}
		err := scontrol(ctx, ctld, "update", "NodeName="+slurm.Compress(nodes), "State="+state)
		errs = append(errs, err)
		switch {
		case err == nil:
			errs = append(errs, c.ordered(ctx, l, state, nodes, batch.why))
		case state == "POWER_UP":
			l.forgetPowerUp(nodes)
		}
	}
	nodes, err := ctld.Nodes(ctx)
	if err == nil {
		l.setStates(nodes, true)
	}
	return errors.Join(append(errs, err)...)
}

// powerUpAgain is how long a POWER_UP that Slurm does not show is waited for.
const powerUpAgain = 15 * time.Second

// askedPowerUp reports whether POWER_UP is to be asked now: Slurm shows it a
// moment later, and asking again meanwhile would start anew.
func (l *loop) askedPowerUp(node string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Since(l.poweredUp[node]) < powerUpAgain {
		return false
	}
	l.poweredUp[node] = time.Now()
	return true
}

// forgetPowerUp takes back that POWER_UP was asked.
func (l *loop) forgetPowerUp(nodes []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, n := range nodes {
		delete(l.poweredUp, n)
	}
}

// setDown sets nodes down with a reason and then powers them down: that order
// frees the job at once and takes the node back to idle~ (Slurm ignores a
// power down of a node that is powering up). Nodes that are powering up can be
// powered down by force, which does both and never shows them as down: idle#,
// idle%, idle~, as on PCS.
func (c *Control) setDown(ctx context.Context, l *loop, ctld Slurmctld, nodes []string, why cause) error {
	list := slurm.Compress(nodes)
	forced := false
	if why.rising {
		err := scontrol(ctx, ctld, "update", "NodeName="+list, "State=POWER_DOWN_FORCE", "Reason="+why.reason)
		if forced = err == nil; !forced {
			c.Log.Info("Node was not powered down by force", "nodes", list, "err", err)
		}
	}
	if !forced {
		if err := scontrol(ctx, ctld, "update", "NodeName="+list, "State=DOWN", "Reason="+why.reason); err != nil {
			return err
		}
		if err := scontrol(ctx, ctld, "update", "NodeName="+list, "State=POWER_DOWN"); err != nil {
			c.Log.Info("Node was not powered down", "nodes", list, "err", err)
		}
	}
	states, err := ctld.Nodes(ctx)
	if err != nil {
		return err
	}
	l.setStates(states, true)
	return c.Store.Update(ctx, func(tx *store.Tx) error {
		for _, name := range nodes {
			n, err := fleet.Nodes.Get(tx, fleet.NodeID(l.id, name))
			if errors.Is(err, store.ErrNotFound) {
				continue
			}
			if err != nil {
				return err
			}
			if n.Down != why.mark {
				continue // another failure since
			}
			n.Down = ""
			if err := fleet.Nodes.Put(tx, n); err != nil {
				return err
			}
			if err := event(tx, time.Now().UTC(), l.id, "node/"+name, "down", map[string]any{"reason": why.reason}); err != nil {
				return err
			}
		}
		return nil
	})
}

// look asks slurmctld for all nodes.
func (c *Control) look(ctx context.Context, l *loop, cl fleet.Cluster) error {
	nodes, err := c.Slurmctld(cl).Nodes(ctx)
	if err != nil {
		return fmt.Errorf("look at the nodes: %w", err)
	}
	l.setStates(nodes, true)
	return nil
}

// holdOut is the order to set idle nodes down while nothing can be launched
// for them.
const holdOut = "DOWN"

func (c *Control) holdOut(ctx context.Context, l *loop, ctld Slurmctld, nodes []string, why map[string]string) error {
	byReason := map[string][]string{}
	for _, n := range nodes {
		byReason[why[n]] = append(byReason[why[n]], n)
	}
	var errs []error
	for reason, list := range byReason {
		err := scontrol(ctx, ctld, "update", "NodeName="+slurm.Compress(list), "State="+holdOut, "Reason="+reason)
		if err == nil {
			err = c.ordered(ctx, l, holdOut, list, why)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// orderEvents is how orders are told in a node's history.
var orderEvents = map[string]string{
	"POWER_UP": "power-up", "POWER_DOWN": "power-down", "POWER_DOWN_ASAP": "replace", "RESUME": "recovered",
	holdOut: "held-out",
}

// ordered records what slurmctld was told.
func (c *Control) ordered(ctx context.Context, l *loop, state string, nodes []string, why map[string]string) error {
	return c.Store.Update(ctx, func(tx *store.Tx) error {
		for _, name := range nodes {
			detail := map[string]any{}
			if why[name] != "" {
				detail["reason"] = why[name]
			}
			if err := event(tx, time.Now().UTC(), l.id, "node/"+name, orderEvents[state], detail); err != nil {
				return err
			}
		}
		return nil
	})
}

func (c *Control) instance(ctx context.Context, id string) (i fleet.Instance, err error) {
	err = c.Store.View(ctx, func(tx *store.Tx) error {
		i, err = fleet.Instances.Get(tx, id)
		return err
	})
	return i, err
}

func ignoreMissing(err error) error {
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	return err
}

func (c *Control) nodeSpec(cl fleet.Cluster, i fleet.Instance, image fleet.Image) (compute.Spec, error) {
	address, err := c.prefix(i.Address)
	if err != nil {
		return compute.Spec{}, err
	}
	t, _ := fleet.Lookup(i.Type)
	return compute.Spec{
		ID: i.ID, Image: image.Ref, Role: "node", Hostname: i.PrivateDNS(), Domain: fleet.PrivateDomain(i.Region),
		Address: address, CPUs: max(1, t.Cores()), MemoryMiB: t.MemoryMiB,
		Mounts: []compute.Mount{{Name: "home", Source: c.homeDir(cl), Target: "/home"}},
		Labels: map[string]string{labelCluster: cl.ID, labelKind: "node"},
	}, nil
}

// prefix is an address with the length of the bridge's network.
func (c *Control) prefix(address string) (netip.Prefix, error) {
	a, err := netip.ParseAddr(address)
	if err != nil {
		return netip.Prefix{}, err
	}
	return netip.PrefixFrom(a, c.PrefixBits), nil
}

func (c *Control) clusterDir(cl fleet.Cluster) string {
	return filepath.Join(c.StateDir, "clusters", cl.ID)
}

func (c *Control) homeDir(cl fleet.Cluster) string { return filepath.Join(c.clusterDir(cl), "home") }

// endLimit bounds one try to end an instance: a provider that hangs with one
// must not keep the others.
const endLimit = 2 * time.Minute

// stop ends an instance; what it had to say is kept first.
func (c *Control) stop(ctx context.Context, id string) error {
	select {
	case c.ends <- struct{}{}:
		defer func() { <-c.ends }()
	case <-ctx.Done():
		return ctx.Err()
	}
	i, err := c.instance(ctx, id)
	if err != nil || i.State != fleet.ShuttingDown {
		return ignoreMissing(err)
	}
	// One that the provider has though its launch was never recorded: the
	// control plane died in between.
	if there := c.keepLogs(ctx, id); there && i.StartedAt.IsZero() && i.FailureCode == "" {
		if err := c.launched(ctx, id); err != nil {
			return err
		}
	}
	once, cancel := context.WithTimeout(ctx, endLimit)
	defer cancel()
	if err := c.Provider.Terminate(once, id); err != nil {
		return errors.Join(fmt.Errorf("terminate %s: %w", id, err), c.notStopped(ctx, i, err))
	}
	return c.terminated(ctx, id)
}

// notStopped records that the provider could not end an instance: once, as it
// is asked again until it does.
func (c *Control) notStopped(ctx context.Context, i fleet.Instance, cause error) error {
	// Of one that was never launched, as far as is known, there is nothing to end.
	if ctx.Err() != nil || i.StopFailed || i.StartedAt.IsZero() {
		return nil
	}
	return c.Store.Update(ctx, func(tx *store.Tx) error {
		i, err := fleet.Instances.Get(tx, i.ID)
		if err != nil || i.StopFailed {
			return ignoreMissing(err)
		}
		now := time.Now().UTC()
		i.StopFailed = true
		return errors.Join(fleet.Instances.Put(tx, i), scaling.Append(tx, scaling.OfStopFailure(i, cause, now)),
			event(tx, now, i.ClusterID, "node/"+i.NodeName, "not-terminated", map[string]any{"instance": i.ID, "error": cause.Error()}))
	})
}

// terminated records that an instance is gone.
func (c *Control) terminated(ctx context.Context, id string) error {
	if err := c.Keys.Revoke(ctx, id); err != nil {
		return err
	}
	if c.Forget != nil {
		c.Forget(id)
	}
	if i, err := c.instance(ctx, id); err == nil {
		c.clearExtra(ctx, i)
	}
	return c.Store.Update(ctx, func(tx *store.Tx) error {
		i, err := fleet.Instances.Get(tx, id)
		if err != nil {
			return ignoreMissing(err)
		}
		if i.State == fleet.Terminated {
			return nil
		}
		i.State, i.TerminatedAt = fleet.Terminated, time.Now().UTC()
		if err := fleet.Instances.Put(tx, i); err != nil {
			return err
		}
		if r, ok := scaling.OfEnd(i, i.TerminatedAt); ok {
			if err := scaling.Append(tx, r); err != nil {
				return err
			}
		}
		return event(tx, i.TerminatedAt, i.ClusterID, "node/"+i.NodeName, "terminated", map[string]any{"instance": id, "reason": cmp.Or(string(i.FailureCode), i.StateReason)})
	})
}

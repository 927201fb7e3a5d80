package control

import (
	"context"
	"errors"
	"time"

	"github.com/openpcs/openpcs/internal/compute"
	"github.com/openpcs/openpcs/internal/condition"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/scaling"
	"github.com/openpcs/openpcs/internal/store"
)

// EC2 error codes of launches that did not come about.
const (
	noCapacity = "InsufficientInstanceCapacity"
	noAddress  = "InsufficientFreeAddressesInSubnet"
	noImage    = "InvalidAMIID.NotFound"
	otherError = "InternalError"
)

// start launches a pending instance. A pool that has none to give is left
// for the next one at once; when all have refused, the node's job is freed.
func (c *Control) start(ctx context.Context, cl fleet.Cluster, id string) error {
	select {
	case c.launches <- struct{}{}:
		defer func() { <-c.launches }()
	case <-ctx.Done():
		return ctx.Err()
	}
	for {
		i, err := c.instance(ctx, id)
		if err != nil || i.State != fleet.Pending || !i.StartedAt.IsZero() {
			return ignoreMissing(err)
		}
		err = c.launch(ctx, cl, i)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err == nil {
			return c.launched(ctx, id)
		}
		if err := c.notLaunched(ctx, i, err); err != nil {
			return err
		}
	}
}

// launch has the provider start an instance.
func (c *Control) launch(ctx context.Context, cl fleet.Cluster, i fleet.Instance) error {
	var image fleet.Image
	err := c.Store.View(ctx, func(tx *store.Tx) (err error) {
		image, err = fleet.Images.Get(tx, i.ImageID)
		return err
	})
	if errors.Is(err, store.ErrNotFound) {
		return compute.ErrNotFound
	}
	if err != nil {
		return err
	}
	spec, err := c.nodeSpec(cl, i, image)
	if err != nil {
		return err
	}
	if err := c.strikeLaunch(ctx, i.ID); err != nil {
		return err
	}
	return c.Provider.Launch(ctx, spec)
}

// launched records that an instance was started.
func (c *Control) launched(ctx context.Context, id string) error {
	now := time.Now().UTC()
	if !c.isRunning(id) {
		c.doubt(id)
	}
	return c.Store.Update(ctx, func(tx *store.Tx) error {
		i, err := fleet.Instances.Get(tx, id)
		if err != nil {
			return ignoreMissing(err)
		}
		g, err := fleet.Groups.Get(tx, i.GroupID)
		if err := ignoreMissing(err); err != nil {
			return err
		}
		if i.StartedAt.IsZero() { // else its agent registered before this
			if err := scaling.Append(tx, scaling.OfLaunch(i, g, now)); err != nil {
				return err
			}
			i.StartedAt = now
		}
		if i.State == fleet.Pending {
			i.State = fleet.Running
		}
		if err := fleet.Instances.Put(tx, i); err != nil {
			return err
		}
		if err == nil && g.Grant(i.Type, i.SubnetID) {
			if err := fleet.Groups.Put(tx, g); err != nil {
				return err
			}
		}
		return event(tx, now, i.ClusterID, "node/"+i.NodeName, "launched", map[string]any{
			"instance": id, "type": i.Type, "subnet": i.SubnetID, "afterMs": now.Sub(i.LaunchedAt).Milliseconds(),
		})
	})
}

// notLaunched records why an instance was not started, and what comes next:
// another pool, a wait for the try that is under way in one, or none.
func (c *Control) notLaunched(ctx context.Context, i fleet.Instance, cause error) error {
	var capacity *compute.CapacityError
	code, text, pooled, final := otherError, cause.Error(), false, false
	switch {
	case errors.As(cause, &capacity):
		code, text, pooled = capacity.Code, capacity.Err.Error(), true
	case errors.Is(cause, compute.ErrNotFound):
		code, pooled, final = noImage, true, true
	}
	now := time.Now().UTC()
	return c.Store.Update(ctx, func(tx *store.Tx) error {
		i, err := fleet.Instances.Get(tx, i.ID)
		if err != nil {
			return ignoreMissing(err)
		}
		if i.State != fleet.Pending {
			return nil // on its way out already
		}
		n, err := fleet.Nodes.Get(tx, fleet.NodeID(i.ClusterID, i.NodeName))
		if err != nil {
			return err
		}
		g, err := fleet.Groups.Get(tx, i.GroupID)
		if errors.Is(err, store.ErrNotFound) {
			return nil // the planner retires it
		}
		if err != nil {
			return err
		}
		detail := map[string]any{"instance": i.ID, "type": i.Type, "subnet": i.SubnetID, "code": code, "error": text}
		if !pooled {
			_, err := fail(tx, c.Breaker, i, n, condition.LaunchFailed, cause.Error(), fleet.LaunchReason(code), now)
			return errors.Join(err, event(tx, now, i.ClusterID, "node/"+i.NodeName, "launch-failed", detail))
		}
		others, err := fleet.Instances.Of(tx, i.ClusterID)
		if err != nil {
			return err
		}
		pools := []fleet.Pool{{Type: i.Type, SubnetID: i.SubnetID}}
		if final { // it is nothing of the pool's
			pools = g.Pools()
		}
		for _, p := range pools {
			g.Refuse(p.Type, p.SubnetID, code, text, final, now)
		}
		busy, err := c.moveOn(tx, &g, &i, others, now)
		if err != nil {
			return err
		}
		if err := errors.Join(fleet.Groups.Put(tx, g), event(tx, now, i.ClusterID, "node/"+i.NodeName, "refused", detail)); err != nil {
			return err
		}
		switch hold, held := g.Held(now); {
		case busy: // the node stays wanted
			return fleet.Instances.Delete(tx, i.ID)
		case held:
			i.End(hold.Code, "Server."+code, text)
			i.FailureCode, i.Failure = hold.Code, text
			return errors.Join(fleet.Instances.Put(tx, i), fleet.Nodes.Put(tx, fleet.HeldNode(n, hold)))
		default:
			return fleet.Instances.Put(tx, i)
		}
	})
}

// moveOn puts an instance into the next pool that may have room. With none,
// busy says that there is one in which another launch is being tried.
func (c *Control) moveOn(tx *store.Tx, g *fleet.Group, i *fleet.Instance, others []fleet.Instance, now time.Time) (busy bool, err error) {
	addresses, err := fleet.ReadAddresses(tx, g.Region)
	if err != nil {
		return false, err
	}
	for {
		pool, ok, busy := g.Choose(now, func(p fleet.Pool) bool {
			for _, o := range others {
				if o.ID != i.ID && o.GroupID == g.ID && o.State == fleet.Pending && o.StartedAt.IsZero() && o.Type == p.Type && o.SubnetID == p.SubnetID {
					return true
				}
			}
			return false
		})
		if !ok {
			return busy, nil
		}
		err := place(tx, i, pool, addresses)
		var none *fleet.NoAddressError
		if !errors.As(err, &none) {
			return false, err
		}
		g.Refuse(pool.Type, pool.SubnetID, noAddress, err.Error(), false, now)
	}
}

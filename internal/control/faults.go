package control

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/openpcs/openpcs/internal/compute"
	"github.com/openpcs/openpcs/internal/fault"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/store"
)

// loseInstance ends an instance behind the control plane's own back: what
// follows is what a real loss brings.
const loseInstance fleet.ActionKind = "lose"

// lose does it, and leaves the watch the time to find out: until then each
// pass would ask for it again at once.
func (c *Control) lose(ctx context.Context, id string) error {
	if err := c.Provider.Terminate(ctx, id); err != nil {
		return fmt.Errorf("lose %s: %w", id, err)
	}
	timer := time.NewTimer(2 * settleTime)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
	return nil
}

func faultEvent(tx *store.Tx, now time.Time, f fault.Fault, i fleet.Instance) error {
	return event(tx, now, i.ClusterID, "node/"+i.NodeName, "fault", map[string]any{"fault": f.ID, "kind": f.Kind, "instance": i.ID})
}

// strikeLaunch has the faults of a launch happen: it is refused, or the
// instance's agent will be slow or hang.
func (c *Control) strikeLaunch(ctx context.Context, id string) error {
	if !c.Faults {
		return nil
	}
	now := time.Now().UTC()
	var refused error
	err := c.Store.Update(ctx, func(tx *store.Tx) error {
		refused = nil
		i, err := fleet.Instances.Get(tx, id)
		if err != nil || i.State != fleet.Pending {
			refused = errors.New("it is not to be launched any more")
			return ignoreMissing(err)
		}
		for _, kind := range []fault.Kind{fault.InsufficientCapacity, fault.SlowBoot, fault.AgentHang} {
			f, ok, err := fault.Strike(tx, i.ClusterID, i.GroupID, kind, i.Type, now)
			if err != nil {
				return err
			}
			if !ok {
				continue
			}
			switch kind {
			case fault.InsufficientCapacity:
				refused = &compute.CapacityError{Code: noCapacity, Err: errors.New("the fault " + f.ID + " refuses launches")}
			case fault.SlowBoot:
				i.HeldUntil = now.Add(f.Delay)
			default:
				i.Hangs = true
			}
			if err := errors.Join(fleet.Instances.Put(tx, i), faultEvent(tx, now, f, i)); err != nil {
				return err
			}
			if refused != nil {
				return nil
			}
		}
		return nil
	})
	return errors.Join(err, refused)
}

// strikeBootstrap has the faults of a boot happen; the agent tries again
// after an error.
func (c *Control) strikeBootstrap(ctx context.Context, i fleet.Instance) error {
	switch {
	case !c.Faults:
		return nil
	case i.Hangs:
		<-ctx.Done()
		return ctx.Err()
	case time.Now().Before(i.HeldUntil):
		return errors.New("a fault makes this instance boot slowly")
	}
	var failed error
	now := time.Now().UTC()
	err := c.Store.Update(ctx, func(tx *store.Tx) error {
		f, ok, err := fault.Strike(tx, i.ClusterID, i.GroupID, fault.DownloadFails, i.Type, now)
		if err != nil || !ok {
			return err
		}
		failed = fmt.Errorf("the fault %s makes downloads fail", f.ID)
		return faultEvent(tx, now, f, i)
	})
	return errors.Join(err, failed)
}

// strikeNodes has the faults of nodes that are up happen. It returns the
// instances to lose, and changes those that get a notice.
func strikeNodes(tx *store.Tx, clusterID string, instances []fleet.Instance, now time.Time) (lose []string, err error) {
	all, err := fault.Of(tx, clusterID, now)
	if err != nil {
		return nil, err
	}
	for k := range instances {
		i := &instances[k]
		if i.State != fleet.Running || i.ReadyAt.IsZero() || !i.ReclaimAt.IsZero() {
			continue
		}
		if i.Hangs {
			lose = append(lose, i.ID) // until it is gone
			continue
		}
		if len(all) == 0 {
			continue
		}
		f, ok, err := fault.Strike(tx, clusterID, i.GroupID, fault.LostNode, i.Type, now)
		if err != nil {
			return nil, err
		}
		if ok {
			i.Hangs = true // it strikes an instance once
			lose = append(lose, i.ID)
		} else if f, ok, err = fault.Strike(tx, clusterID, i.GroupID, fault.SpotReclaim, i.Type, now); err != nil {
			return nil, err
		} else if ok {
			i.ReclaimAt = now.Add(f.Delay)
		}
		if ok {
			if err := errors.Join(fleet.Instances.Put(tx, *i), faultEvent(tx, now, f, *i)); err != nil {
				return nil, err
			}
		}
	}
	return lose, nil
}

// AddFault keeps a fault that a user asks for.
func (c *Control) AddFault(ctx context.Context, f fault.Fault) error {
	err := c.Store.Update(ctx, func(tx *store.Tx) error {
		return errors.Join(fault.Faults.Put(tx, f), event(tx, f.AddedAt, f.ClusterID, "group/"+f.Group, "fault-added",
			map[string]any{"fault": f.ID, "kind": f.Kind, "left": f.Left, "until": f.Until}))
	})
	if err == nil {
		c.Wake(f.ClusterID)
	}
	return err
}

// RemoveFault drops one.
func (c *Control) RemoveFault(ctx context.Context, id string) error {
	return c.Store.Update(ctx, func(tx *store.Tx) error {
		f, err := fault.Faults.Get(tx, id)
		if err != nil {
			return err
		}
		return errors.Join(fault.Faults.Delete(tx, id), event(tx, time.Now().UTC(), f.ClusterID, "group/"+f.Group, "fault-removed", map[string]any{"fault": id, "struck": f.Struck}))
	})
}

package control

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/openpcs/openpcs/internal/condition"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/store"
)

// fail records that an instance did not come up: its end, the rest of its
// node, whose down Slurm shows as its reason, and what it means for the breaker
// of its group. After breaker failures in a row it opens; 0 is never.
func fail(tx *store.Tx, breaker int, i fleet.Instance, n fleet.Node, code condition.Code, text, down string, now time.Time) (fleet.Node, error) {
	i, n = fleet.FailInstance(i, n, code, text, down, now)
	return n, errors.Join(fleet.Instances.Put(tx, i), count(tx, breaker, i, &n, down, now))
}

// count records that a start failed with its node, which it puts, and its
// group.
func count(tx *store.Tx, breaker int, i fleet.Instance, n *fleet.Node, down string, now time.Time) error {
	if breaker == 0 {
		n.NotBefore = now.Add(fleet.FailureRest)
	}
	if err := fleet.Nodes.Put(tx, *n); err != nil {
		return err
	}
	g, err := fleet.Groups.Get(tx, i.GroupID)
	if err != nil {
		return ignoreMissing(err)
	}
	before := g.Breaker
	g.Failed(breaker, n.FailureCode, n.LastFailure, down, now)
	if err := fleet.Groups.Put(tx, g); err != nil || !g.Breaker.Open || g.Breaker == before {
		return err
	}
	return event(tx, now, i.ClusterID, "group/"+g.Name, "breaker-open", map[string]any{
		"failures": g.Breaker.Failures, "code": g.Breaker.Code, "error": g.Breaker.Text, "instance": i.ID, "again": g.Breaker.NotBefore,
	})
}

// succeeded closes the breaker of the group of an instance that came up.
func succeeded(tx *store.Tx, g *fleet.Group, i fleet.Instance, now time.Time) error {
	open := g.Breaker.Open
	if !g.Succeeded() {
		return nil
	}
	if err := fleet.Groups.Put(tx, *g); err != nil || !open {
		return err
	}
	return event(tx, now, i.ClusterID, "group/"+g.Name, "breaker-closed", map[string]any{"instance": i.ID})
}

// closeBreakers closes those that opened while there was a breaker.
func (c *Control) closeBreakers(ctx context.Context) error {
	some := false
	err := c.Store.View(ctx, func(tx *store.Tx) error {
		groups, err := fleet.Groups.All(tx)
		some = slices.ContainsFunc(groups, func(g fleet.Group) bool { return g.Breaker.Open })
		return err
	})
	if err != nil || !some {
		return err
	}
	return c.Store.Update(ctx, func(tx *store.Tx) error {
		groups, err := fleet.Groups.All(tx)
		for _, g := range groups {
			if g.Breaker.Open {
				g.Succeeded()
				err = errors.Join(err, fleet.Groups.Put(tx, g))
			}
		}
		return err
	})
}

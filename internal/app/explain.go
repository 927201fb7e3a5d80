package app

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/store"
)

// maxEvents bounds an explanation.
const maxEvents = 200

// explain says what a node, instance, group or cluster is doing and how it
// came to that.
func (a *App) explain(ctx context.Context, name string) (Explanation, error) {
	e := Explanation{Name: name, ID: name, Now: []string{}, Events: []store.Event{}}
	err := a.store.View(ctx, func(tx *store.Tx) error {
		clusters, err := fleet.Clusters.All(tx)
		if err != nil {
			return err
		}
		for _, c := range clusters {
			if c.ID == name || c.Name == name {
				e.ID, e.Status = c.ID, string(c.Status)
				e.Now = append(e.Now, fmt.Sprintf("The cluster %s (%s) is %s.", c.Name, c.ID, c.Status))
				for _, i := range c.Errors {
					e.Now = append(e.Now, i.Code+": "+i.Message)
				}
				e.Events, err = tx.Events(c.ID, "", maxEvents)
				return err
			}
		}
		nodeName := name
		cluster := ""
		if i, err := fleet.Instances.Get(tx, name); err == nil {
			nodeName, cluster = i.NodeName, i.ClusterID
			e.Status = string(i.State)
			e.Now = append(e.Now, fmt.Sprintf("The instance %s is %s.", i.ID, i.State))
			if why := firstOf(i.Failure, i.StateReason); why != "" {
				e.Now = append(e.Now, "Why: "+firstOf(i.FailureCode, i.StateCode)+": "+why)
			}
		}
		if before, after, ok := strings.Cut(nodeName, "/"); ok {
			cluster, nodeName = before, after
		}
		for _, c := range clusters {
			if cluster != "" && cluster != c.ID && cluster != c.Name {
				continue
			}
			groups, err := fleet.Groups.Of(tx, c.ID)
			if err != nil {
				return err
			}
			for _, g := range groups {
				if g.ID == nodeName || g.Name == nodeName {
					e.ID, e.Status = g.ID, string(g.Status)
					e.Now = append(e.Now, fmt.Sprintf("The compute node group %s (%s) is %s, with %d to %d instances.", g.Name, g.ID, g.Status, g.Min, g.Max))
					for _, i := range g.Errors {
						e.Now = append(e.Now, i.Code+": "+i.Message)
					}
					for n := 1; n <= g.Max && len(e.Events) < maxEvents; n++ {
						events, err := tx.Events(c.ID, "node/"+g.NodeName(n), 10)
						if err != nil {
							return err
						}
						e.Events = append(e.Events, events...)
					}
					return nil
				}
				if n := g.NodeIndex(nodeName); n < 1 || n > g.Max {
					continue
				}
				if e.Status == "" {
					e.ID, e.Status = fleet.NodeID(c.ID, nodeName), strings.Join(a.control.States(c.ID)[nodeName].State, "+")
				}
				e.Now = append(e.Now, a.nodeSentences(tx, c, nodeName)...)
				e.Events, err = tx.Events(c.ID, "node/"+nodeName, maxEvents)
				return err
			}
		}
		if len(e.Now) > 0 {
			return nil
		}
		return missing("there is no node, instance, compute node group or cluster %q", name)
	})
	return e, err
}

func (a *App) nodeSentences(tx *store.Tx, c fleet.Cluster, name string) []string {
	var out []string
	if s, ok := a.control.States(c.ID)[name]; ok {
		text := fmt.Sprintf("Slurm has the node %s as %s", name, strings.Join(s.State, "+"))
		if s.Reason != "" {
			text += " (" + s.Reason + ")"
		}
		out = append(out, text+".")
	} else {
		out = append(out, "slurmctld has not said anything of the node "+name+".")
	}
	n, err := fleet.Nodes.Get(tx, fleet.NodeID(c.ID, name))
	if errors.Is(err, store.ErrNotFound) {
		return append(out, "It was never started.")
	}
	if err != nil {
		return append(out, err.Error())
	}
	if n.Want {
		out = append(out, "It is wanted up since "+n.WantAt.Format(time.RFC3339)+".")
	}
	if n.LastFailure != "" {
		out = append(out, "Its last failure: "+n.LastFailure+".")
	}
	if n.NotBefore.After(time.Now()) {
		out = append(out, fmt.Sprintf("The next launch is not before %s (failures in a row: %d).", n.NotBefore.Format(time.RFC3339), n.Attempts))
	}
	return out
}

// unixMask makes what is created until the returned call root's alone.
func unixMask() (restore func()) {
	old := syscall.Umask(0o177)
	return func() { syscall.Umask(old) }
}

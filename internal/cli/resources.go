package cli

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/openpcs/openpcs/internal/app"
	"github.com/openpcs/openpcs/internal/awsapi"
	"github.com/openpcs/openpcs/internal/pcs"
)

// row is a cluster, group or queue for people.
type row struct {
	Name      string      `json:"name"`
	ID        string      `json:"id"`
	Status    string      `json:"status"`
	Cluster   string      `json:"cluster,omitempty"`
	CreatedAt awsapi.Time `json:"createdAt"`
}

func rowOf(s pcs.Summary, cluster string) row {
	return row{Name: s.Name, ID: s.ID, Status: s.Status, Cluster: cluster, CreatedAt: s.CreatedAt}
}

func (s *shell) clustersCommand() *cobra.Command {
	list := func(cmd *cobra.Command, _ []string) error {
		_, st, err := dial(cmd.Context())
		if err != nil {
			return err
		}
		all, err := newAPI(st).all(cmd.Context(), "ListClusters", "clusters", nil)
		if err != nil {
			return err
		}
		var rows []row
		for _, c := range all {
			rows = append(rows, rowOf(c, ""))
		}
		return print(s, rows, "NAME\tID\tSTATUS\tCREATED", func(r row) string {
			return fmt.Sprintf("%s\t%s\t%s\t%s", r.Name, r.ID, r.Status, ago(r.CreatedAt.Time))
		})
	}
	c := &cobra.Command{Use: "clusters", Short: "List or delete clusters", Args: unknownCommand, RunE: list, SuggestionsMinimumDistance: 2}
	c.AddCommand(&cobra.Command{Use: "list", Short: "List clusters", Args: cobra.NoArgs, RunE: list}, s.deleteClusterCommand())
	return c
}

func (s *shell) deleteClusterCommand() *cobra.Command {
	var force, yes bool
	c := &cobra.Command{
		Use: "delete ID|NAME", Short: "Delete a cluster; with --force, its queues and groups first",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			_, st, err := dial(cmd.Context())
			if err != nil {
				return err
			}
			a := newAPI(st)
			if !yes {
				fmt.Fprintf(os.Stderr, "Delete the cluster %s and end all that runs there? Type its name or id again: ", args[0])
				line, _ := bufio.NewReader(os.Stdin).ReadString('\n')
				if strings.TrimSpace(line) != args[0] {
					return fmt.Errorf("nothing was deleted (use --yes to delete without the question)")
				}
			}
			return s.deleteCluster(cmd.Context(), a, args[0], force)
		},
	}
	c.Flags().BoolVar(&force, "force", false, "delete its queues and compute node groups first")
	c.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	return c
}

// deleteCluster deletes in the order that the API asks for and waits for
// each step.
func (s *shell) deleteCluster(ctx context.Context, a *api, cluster string, force bool) error {
	if force {
		for _, kind := range []struct{ list, member, del, ref, noun string }{
			{"ListQueues", "queues", "DeleteQueue", "queueIdentifier", "queue"},
			{"ListComputeNodeGroups", "computeNodeGroups", "DeleteComputeNodeGroup", "computeNodeGroupIdentifier", "compute node group"},
		} {
			in := map[string]any{"clusterIdentifier": cluster}
			all, err := a.all(ctx, kind.list, kind.member, in)
			if err != nil {
				return err
			}
			for _, m := range all {
				fmt.Fprintf(os.Stderr, "Deleting the %s %s\n", kind.noun, m.Name)
				if err := a.pcs(ctx, kind.del, map[string]any{"clusterIdentifier": cluster, kind.ref: m.ID}, nil); err != nil {
					return err
				}
			}
			for len(all) > 0 {
				if err := wait(ctx, 100*time.Millisecond); err != nil {
					return err
				}
				if all, err = a.all(ctx, kind.list, kind.member, in); err != nil {
					return err
				}
			}
		}
	}
	if err := a.pcs(ctx, "DeleteCluster", map[string]any{"clusterIdentifier": cluster}, nil); err != nil {
		return err
	}
	for {
		all, err := a.all(ctx, "ListClusters", "clusters", nil)
		if err != nil {
			return err
		}
		there := false
		for _, c := range all {
			there = there || c.ID == cluster || c.Name == cluster
		}
		if !there {
			fmt.Fprintf(os.Stderr, "The cluster %s is deleted\n", cluster)
			return nil
		}
		if err := wait(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
}

func wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

func (s *shell) groupsCommand() *cobra.Command {
	return s.ofClusters("groups [CLUSTER]", "List compute node groups", "ListComputeNodeGroups", "computeNodeGroups")
}

func (s *shell) queuesCommand() *cobra.Command {
	return s.ofClusters("queues [CLUSTER]", "List queues", "ListQueues", "queues")
}

// ofClusters lists what one cluster, or every one, has.
func (s *shell) ofClusters(use, short, op, member string) *cobra.Command {
	return &cobra.Command{
		Use: use, Short: short, Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			_, st, err := dial(cmd.Context())
			if err != nil {
				return err
			}
			a := newAPI(st)
			clusters, err := a.all(cmd.Context(), "ListClusters", "clusters", nil)
			if err != nil {
				return err
			}
			var rows []row
			found := len(args) == 0
			for _, c := range clusters {
				if len(args) > 0 && args[0] != c.ID && args[0] != c.Name {
					continue
				}
				found = true
				all, err := a.all(cmd.Context(), op, member, map[string]any{"clusterIdentifier": c.ID})
				if err != nil {
					return err
				}
				for _, m := range all {
					rows = append(rows, rowOf(m, c.Name))
				}
			}
			if !found {
				return fmt.Errorf("there is no cluster %q: openpcs clusters lists those there are", args[0])
			}
			return print(s, rows, "CLUSTER\tNAME\tID\tSTATUS\tCREATED", func(r row) string {
				return fmt.Sprintf("%s\t%s\t%s\t%s\t%s", r.Cluster, r.Name, r.ID, r.Status, ago(r.CreatedAt.Time))
			})
		},
	}
}

func (s *shell) nodesCommand() *cobra.Command {
	return &cobra.Command{
		Use: "nodes", Short: "List Slurm nodes with their states and instances", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			d, _, err := dial(cmd.Context())
			if err != nil {
				return err
			}
			rows, err := get[[]app.NodeRow](cmd.Context(), d, "/v1/nodes", nil)
			if err != nil {
				return err
			}
			return print(s, rows, "CLUSTER\tNODE\tSTATUS\tINSTANCE\tREASON", func(r app.NodeRow) string {
				return fmt.Sprintf("%s\t%s\t%s\t%s\t%s", r.Cluster, r.Name, r.Status, r.Instance, r.Reason)
			})
		},
	}
}

func (s *shell) instancesCommand() *cobra.Command {
	return &cobra.Command{
		Use: "instances", Short: "List instances, those that ended within the hour too", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			d, _, err := dial(cmd.Context())
			if err != nil {
				return err
			}
			rows, err := get[[]app.InstanceRow](cmd.Context(), d, "/v1/instances", nil)
			if err != nil {
				return err
			}
			return print(s, rows, "CLUSTER\tNODE\tINSTANCE\tSTATUS\tADDRESS\tTYPE\tSINCE\tREASON", func(r app.InstanceRow) string {
				return fmt.Sprintf("%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s", r.Cluster, r.Name, r.ID, r.Status, r.Address, r.Type, ago(r.Since), r.Reason)
			})
		},
	}
}

func ago(t time.Time) string {
	d := time.Since(t).Round(time.Second)
	switch {
	case t.IsZero():
		return "-"
	case d < 2*time.Minute:
		return d.String() + " ago"
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm ago", int(d.Minutes()))
	default:
		return t.Local().Format("2006-01-02 15:04")
	}
}

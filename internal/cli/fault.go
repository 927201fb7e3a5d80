package cli

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/spf13/cobra"

	"github.com/openpcs/openpcs/internal/app"
	"github.com/openpcs/openpcs/internal/fault"
)

func (s *shell) faultCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "fault", Short: "Have things go wrong, to see how a set-up bears it",
		Long: "Have things go wrong in a compute node group, to see how a set-up bears it. The control plane\n" +
			"must have been started with OPENPCS_FAULTS=on. Each fault that strikes is in the node's history\n" +
			"('openpcs explain NODE').",
	}
	parent(c)
	c.AddCommand(s.faultAddCommand(), &cobra.Command{
		Use: "list", Short: "List the faults that are left", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			d, _, err := dial(cmd.Context())
			if err != nil {
				return err
			}
			rows, err := get[[]app.FaultRow](cmd.Context(), d, "/v1/faults", nil)
			if err != nil {
				return err
			}
			return s.printFaults(rows)
		},
	}, &cobra.Command{
		Use: "remove ID", Short: "Remove a fault", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			d, _, err := dial(cmd.Context())
			if err != nil {
				return err
			}
			return d.call(cmd.Context(), http.MethodDelete, "/v1/faults/"+args[0], nil, nil, nil)
		},
	})
	return c
}

func (s *shell) printFaults(rows []app.FaultRow) error {
	return print(s, rows, "ID\tKIND\tCLUSTER\tGROUP\tSTRUCK\tLEFT", func(r app.FaultRow) string {
		return fmt.Sprintf("%s\t%s\t%s\t%s\t%d\t%s", r.ID, r.Name, r.Cluster, r.Group, r.Struck, r.Status)
	})
}

func (s *shell) faultAddCommand() *cobra.Command {
	var in app.FaultIn
	var text strings.Builder
	text.WriteString("Add a fault to a compute node group. The kinds are\n\n")
	for _, k := range fault.Kinds() {
		fmt.Fprintf(&text, "  %-22s %s\n", k[0], k[1])
	}
	c := &cobra.Command{
		Use: "add --group GROUP --kind KIND [--count N | --for DURATION]", Short: "Add a fault to a compute node group",
		Long: text.String(), Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			d, _, err := dial(cmd.Context())
			if err != nil {
				return err
			}
			var row app.FaultRow
			if err := d.call(cmd.Context(), http.MethodPost, "/v1/faults", nil, in, &row); err != nil {
				return err
			}
			return s.printFaults([]app.FaultRow{row})
		},
	}
	f := c.Flags()
	f.StringVar(&in.Group, "group", "", "compute node group, by name or id")
	f.StringVar(&in.Cluster, "cluster", "", "its cluster, by name or id, where the name is in several")
	f.StringVar(&in.Kind, "kind", "", "what goes wrong")
	f.IntVar(&in.Count, "count", 0, "how often it strikes (once, without --for)")
	f.DurationVar(&in.For, "for", 0, "how long it strikes, for example 90s")
	f.DurationVar(&in.Delay, "delay", 0, "of slow-boot: how much longer a boot takes; of spot-reclaim: from the notice to the end")
	f.StringVar(&in.Type, "type", "", "of insufficient-capacity: launches of this instance type alone")
	for _, required := range []string{"group", "kind"} {
		_ = c.MarkFlagRequired(required)
	}
	return c
}

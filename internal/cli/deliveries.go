package cli

import (
	"cmp"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/openpcs/openpcs/internal/delivery"
)

func (s *shell) deliveriesCommand() *cobra.Command {
	return &cobra.Command{
		Use: "deliveries", Short: "List the deliveries of logs: how far behind each is, what it lost, what is wrong", Args: cobra.NoArgs,
		Long: "deliveries lists each log of each delivery (`aws logs create-delivery`): how many records are\n" +
			"not delivered yet and how old the oldest of them is, how many were delivered, dropped and\n" +
			"refused, and the last error. docs/logs.md says what is delivered when.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			d, _, err := dial(cmd.Context())
			if err != nil {
				return err
			}
			rows, err := get[[]delivery.Status](cmd.Context(), d, "/v1/deliveries", nil)
			if err != nil {
				return err
			}
			return print(s, rows, "DELIVERY\tCLUSTER\tTYPE\tLOG\tTO\tSTATUS\tBEHIND\tLAG\tDELIVERED\tDROPPED\tREFUSED\tERROR", func(r delivery.Status) string {
				trouble := ""
				if r.Trouble != nil {
					trouble = string(r.Trouble.Code) + ": " + printable(r.Trouble.Message)
				}
				lag := time.Duration(r.Lag * float64(time.Second)).Round(time.Second)
				return fmt.Sprintf("%s\t%s\t%s\t%s\t%s:%s\t%s\t%d\t%s\t%d\t%d\t%d\t%s",
					r.ID, r.Cluster, r.LogType, cmp.Or(r.Name, "-"), r.Kind, r.Target, r.Status, r.Behind, lag, r.Delivered, r.Dropped, r.Refused, trouble)
			})
		},
	}
}

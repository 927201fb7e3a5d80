package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/openpcs/openpcs/internal/app"
	"github.com/openpcs/openpcs/internal/doctor"
)

func (s *shell) doctorCommand() *cobra.Command {
	return &cobra.Command{
		Use: "doctor", Short: "Check this machine, and say what to do where something is wrong", Args: cobra.NoArgs,
		Long: "Check the kernel, control groups, Incus, storage, ports, clock, networks, programs and images of this\n" +
			"machine, and the control plane. It changes nothing, and works when the control plane is down. The exit\n" +
			"code is 1 if something fails; what works with a loss is a warning.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			o, err := options()
			if err != nil {
				return err
			}
			self, err := os.Executable()
			if err != nil {
				return err
			}
			findings := doctor.Check(doctor.Observe(cmd.Context(), doctor.Options{
				Mode: o.Limits, Listen: o.Listen, Subnet: o.Subnet, Bridge: app.Bridge(o), StateDir: o.StateDir,
				Storage: doctor.Storage{Endpoint: o.S3Endpoint, Program: app.StoragePath(self), Dir: o.StateDir},
				Incus:   app.Provider(o), Serving: func(ctx context.Context) (*doctor.Serving, error) { return serving(ctx, o) },
			}))
			if err := s.findings(findings); err != nil {
				return err
			}
			if doctor.Failed(findings) {
				return exitError{1}
			}
			return nil
		},
	}
}

func (s *shell) findings(findings []doctor.Finding) error {
	if s.json {
		type row struct {
			doctor.Finding
			ID string `json:"id"`
		}
		rows := []row{}
		for _, f := range findings {
			rows = append(rows, row{f, f.Name})
		}
		return s.printJSON(rows)
	}
	for _, f := range findings {
		text := f.Text
		if f.Fix != "" {
			text += ". To do: " + f.Fix
		}
		if _, err := fmt.Fprintf(s.out, "%-4s  %-13s  %s\n", f.Status, f.Name, text); err != nil {
			return err
		}
	}
	return nil
}

// servingLimit is how long a control plane may take to answer.
const servingLimit = 5 * time.Second

// serving asks the control plane how it is, if one runs.
func serving(ctx context.Context, o app.Options) (*doctor.Serving, error) {
	ctx, cancel := context.WithTimeout(ctx, servingLimit)
	defer cancel()
	st, err := get[app.Status](ctx, newDaemon(o), "/v1/status", nil)
	if errors.Is(err, errNotRunning) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("ask the control plane for its status: %w", err)
	}
	clusters, err := newAPI(st).all(ctx, "ListClusters", "clusters", nil)
	if err != nil {
		return nil, fmt.Errorf("ask the control plane for its clusters: %w", err)
	}
	return &doctor.Serving{Version: st.Version, PID: st.PID, API: st.API, Clusters: len(clusters)}, nil
}

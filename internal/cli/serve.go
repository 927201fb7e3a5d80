package cli

import (
	"fmt"
	"os"
	"runtime/debug"

	"github.com/spf13/cobra"

	"github.com/openpcs/openpcs/internal/agent"
	"github.com/openpcs/openpcs/internal/app"
)

func (s *shell) serveCommand() *cobra.Command {
	return &cobra.Command{
		Use: "serve", Short: "Run the control plane in the foreground", Args: cobra.NoArgs,
		Long: "Run the control plane in the foreground. Settings come from the environment:\n" +
			"  OPENPCS_STATE    state folder (/var/lib/openpcs)\n" +
			"  OPENPCS_LISTEN   address of the API (127.0.0.1:7300)\n" +
			"  OPENPCS_REGION   region that openpcs env exports (ap-northeast-1)\n" +
			"  OPENPCS_ACCOUNT  account id (000000000000)\n" +
			"  OPENPCS_SUBNET   addresses of the instances (10.77.0.0/16)\n" +
			"  OPENPCS_RESUME_TIMEOUT  seconds a node may take to come up (1800)\n" +
			"  OPENPCS_TLS      auto: serve the API with TLS and a certificate of its own\n" +
			"  OPENPCS_TLS_CERT, OPENPCS_TLS_KEY  the same with a certificate of yours (files)\n" +
			"  OPENPCS_LIMITS   auto, on or off: how far processors and memory of instance types bind (auto)\n" +
			"  OPENPCS_S3_ENDPOINT, OPENPCS_S3_REGION, OPENPCS_S3_CREDENTIALS  S3 elsewhere that has the buckets, see docs/s3.md\n" +
			"  OPENPCS_DELIVERY_INTERVAL, OPENPCS_DELIVERY_KEEP  how often logs go to S3, and how long a record is tried (5m, 24h)\n" +
			"  OPENPCS_LOGS_ENDPOINT, OPENPCS_FIREHOSE_ENDPOINT and ..._CREDENTIALS  CloudWatch Logs and Firehose elsewhere, see docs/logs.md\n" +
			"  OPENPCS_FAULTS   on: faults may be asked for, see 'openpcs fault' (off)\n" +
			"  OPENPCS_SITE     name that tells several control planes on one machine apart",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if os.Geteuid() != 0 {
				return fmt.Errorf("serve needs root: use sudo")
			}
			o, err := options()
			if err != nil {
				return err
			}
			o.Version = s.version
			if os.Getenv("GOGC") == "" {
				debug.SetGCPercent(app.GCPercent)
			}
			a := app.New(o, app.Provider(o))
			if err := a.Start(cmd.Context()); err != nil {
				return err
			}
			defer a.Stop()
			select {
			case <-cmd.Context().Done():
				return nil
			case err := <-a.Failed():
				return err
			}
		},
	}
}

// agentCommand is for instances; people never call it.
func (s *shell) agentCommand() *cobra.Command {
	c := &cobra.Command{Use: "agent", Short: "What openpcs runs inside instances", Hidden: true}
	parent(c)
	for _, stage := range agent.Stages {
		c.AddCommand(&cobra.Command{
			Use: stage, Args: cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error { return agent.RunStage(cmd.Context(), stage) },
		})
	}
	c.AddCommand(
		&cobra.Command{
			Use: "run", Args: cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error { return agent.RunNode(cmd.Context()) },
		},
		&cobra.Command{
			Use: "controller", Args: cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				o, err := options()
				if err != nil {
					return err
				}
				return agent.RunController(cmd.Context(), o.Log)
			},
		},
		&cobra.Command{
			Use: "canary", Args: cobra.NoArgs,
			RunE: func(*cobra.Command, []string) error {
				code, err := agent.RunCanary(os.Stdin)
				if err == nil && code != 0 {
					err = exitError{code}
				}
				return err
			},
		},
		&cobra.Command{
			Use: "try-config", Args: cobra.NoArgs,
			Short: "Tell for each configuration on standard input whether slurmctld takes it",
			RunE:  func(cmd *cobra.Command, _ []string) error { return agent.TryConfigs(cmd.Context(), os.Stdin, s.out) },
		},
	)
	return c
}

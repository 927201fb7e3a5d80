// Package cli is the command line for people. It talks to the control plane
// through its socket and through the public API; it decides nothing itself.
package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/openpcs/openpcs/internal/app"
	"github.com/openpcs/openpcs/internal/awsapi"
)

// exitError carries an exit code through cobra without a message.
type exitError struct{ code int }

func (e exitError) Error() string { return fmt.Sprintf("exit status %d", e.code) }

// shell is what the commands share.
type shell struct {
	version string
	json    bool
	out     io.Writer
}

// Main runs the command line and returns the exit code: 0 for success, 1 for
// a failure, 2 for a wrong use.
func Main(version string) int {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	root := newRoot(version, os.Stdout)
	cmd, err := root.ExecuteContextC(ctx)
	var exit exitError
	var usage usageError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.code
	case errors.As(err, &usage):
		fmt.Fprintf(os.Stderr, "openpcs: %v\nRun '%s --help' for usage.\n", err, cmd.CommandPath())
		return 2
	default:
		fmt.Fprintln(os.Stderr, "openpcs:", describe(err))
		return 1
	}
}

// usageError is a wrong use of the command line.
type usageError struct{ error }

func (u usageError) Unwrap() error { return u.error }

// describe puts an error into words for people.
func describe(err error) string {
	var api *awsapi.Error
	if errors.As(err, &api) {
		return api.Message + " (" + api.Code + ")"
	}
	return err.Error()
}

func newRoot(version string, out io.Writer) *cobra.Command {
	s := &shell{version: version, out: out}
	root := &cobra.Command{
		Use:   "openpcs",
		Short: "An open Parallel Computing Service: the AWS PCS API, real Slurm and nodes on your own machine",
		Long: "openpcs runs Slurm clusters behind the AWS PCS API on this machine. Start with 'openpcs up',\n" +
			"then eval \"$(openpcs env)\" and use your aws CLI.",
		SilenceErrors: true, SilenceUsage: true,
	}
	parent(root)
	root.SetOut(out)
	root.PersistentFlags().BoolVar(&s.json, "json", false, "print JSON: an array of objects with name, id, status, ...")
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return usageError{err} })
	root.AddCommand(
		s.serveCommand(), s.upCommand(), s.downCommand(), s.statusCommand(), s.envCommand(), s.connectCommand(),
		s.clustersCommand(), s.groupsCommand(), s.queuesCommand(), s.nodesCommand(), s.instancesCommand(),
		s.logsCommand(), s.auditCommand(), s.explainCommand(), s.imageCommand(), s.faultCommand(), s.versionCommand(), s.versionsCommand(), s.scriptsCommand(), s.doctorCommand(), s.deliveriesCommand(), s.agentCommand(),
	)
	for _, c := range root.Commands() {
		wrapArgs(c)
	}
	return root
}

// parent makes a command one that only has others below it.
func parent(c *cobra.Command) {
	c.SuggestionsMinimumDistance = 2
	c.Args = unknownCommand
	c.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
}

// unknownCommand refuses arguments, which can only be misspelt commands, with
// the nearest ones.
func unknownCommand(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	text := fmt.Sprintf("there is no command %q", strings.TrimPrefix(c.CommandPath()+" "+args[0], "openpcs "))
	if near := c.SuggestionsFor(args[0]); len(near) > 0 {
		text += ": did you mean " + strings.Join(near, " or ") + "?"
	}
	return usageError{errors.New(text)}
}

// wrapArgs makes a wrong number of arguments a wrong use, on all levels.
func wrapArgs(c *cobra.Command) {
	if check := c.Args; check != nil {
		c.Args = func(cmd *cobra.Command, args []string) error {
			if err := check(cmd, args); err != nil {
				return usageError{err}
			}
			return nil
		}
	}
	for _, sub := range c.Commands() {
		wrapArgs(sub)
	}
}

func options() (app.Options, error) {
	o, err := app.FromEnvironment()
	o.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	return o, err
}

// print shows rows as a table, or as JSON where that is asked for.
func print[T any](s *shell, rows []T, header string, line func(T) string) error {
	if s.json {
		if rows == nil {
			rows = []T{}
		}
		return s.printJSON(rows)
	}
	var table bytes.Buffer
	w := tabwriter.NewWriter(&table, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, header)
	for _, r := range rows {
		fmt.Fprintln(w, line(r))
	}
	if err := w.Flush(); err != nil {
		return err
	}
	for text := range strings.Lines(table.String()) {
		fmt.Fprintln(s.out, strings.TrimRight(text, " \n"))
	}
	return nil
}

func (s *shell) printJSON(v any) error {
	enc := json.NewEncoder(s.out)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

func (s *shell) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if s.json {
				type version struct {
					Name    string `json:"name"`
					ID      string `json:"id"`
					Status  string `json:"status"`
					Version string `json:"version"`
				}
				return s.printJSON([]version{{"openpcs", s.version, "installed", s.version}})
			}
			_, err := fmt.Fprintln(s.out, "openpcs", s.version)
			return err
		},
	}
}

package cli

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/openpcs/openpcs/internal/app"
	"github.com/openpcs/openpcs/internal/image"
)

func (s *shell) statusCommand() *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "Show whether the control plane runs, and where", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, st, err := dial(cmd.Context())
			if err != nil {
				return err
			}
			clusters, err := newAPI(st).all(cmd.Context(), "ListClusters", "clusters", nil)
			if err != nil {
				return err
			}
			type status struct {
				Name     string    `json:"name"`
				ID       string    `json:"id"`
				Status   string    `json:"status"`
				API      string    `json:"api"`
				Region   string    `json:"region"`
				Account  string    `json:"account"`
				StateDir string    `json:"stateDir"`
				Started  time.Time `json:"started"`
				Clusters int       `json:"clusters"`
			}
			row := status{"openpcs", fmt.Sprint(st.PID), "running", st.API, st.Region, st.Account, st.StateDir, st.Started, len(clusters)}
			return print(s, []status{row}, "STATUS\tPID\tAPI\tREGION\tACCOUNT\tCLUSTERS\tSTARTED", func(r status) string {
				return fmt.Sprintf("%s\t%s\t%s\t%s\t%s\t%d\t%s", r.Status, r.ID, r.API, r.Region, r.Account, r.Clusters, ago(r.Started))
			})
		},
	}
}

func (s *shell) envCommand() *cobra.Command {
	return &cobra.Command{
		Use: "env", Short: "Print the variables that point the aws CLI here: eval \"$(openpcs env)\"", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, st, err := dial(cmd.Context())
			if err != nil {
				return err
			}
			type variable struct {
				Name   string `json:"name"`
				ID     string `json:"id"`
				Status string `json:"status"`
				Value  string `json:"value"`
			}
			var vars []variable
			for _, v := range [][2]string{
				{"AWS_ENDPOINT_URL", st.API},
				{"AWS_ACCESS_KEY_ID", st.KeyID},
				{"AWS_SECRET_ACCESS_KEY", st.Secret},
				{"AWS_REGION", st.Region},
				{"AWS_DEFAULT_REGION", st.Region},
				{"AWS_EC2_METADATA_DISABLED", "true"},
				{"AWS_CA_BUNDLE", st.CABundle},
			} {
				if v[1] == "" {
					continue
				}
				if s.json {
					vars = append(vars, variable{v[0], v[0], "set", v[1]})
					continue
				}
				fmt.Fprintf(s.out, "export %s='%s'\n", v[0], v[1])
			}
			if s.json {
				return s.printJSON(vars)
			}
			_, err = fmt.Fprintln(s.out, "unset AWS_PROFILE AWS_SESSION_TOKEN")
			return err
		},
	}
}

func (s *shell) connectCommand() *cobra.Command {
	var noInput bool
	c := &cobra.Command{
		Use: "connect NODE|INSTANCE [-- COMMAND...]", Short: "Open root's shell on an instance, or run a command there",
		Example: "  openpcs connect login-1\n  openpcs connect login-1 -- sinfo",
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 || cmd.ArgsLenAtDash() == 0 || cmd.ArgsLenAtDash() > 1 || (cmd.ArgsLenAtDash() < 0 && len(args) > 1) {
				return usageError{errors.New("name one node or instance, and put a command behind --")}
			}
			d, _, err := dial(cmd.Context())
			if err != nil {
				return err
			}
			sh, err := get[app.Shell](cmd.Context(), d, "/v1/shell", url.Values{"target": args[:1], "argv": args[1:]})
			if err != nil {
				return err
			}
			// Signals reach the child through the terminal; it ends by itself.
			child := exec.Command(sh.Command[0], sh.Command[1:]...)
			child.Env = append(os.Environ(), sh.Env...)
			child.Stdout, child.Stderr = s.out, os.Stderr
			if !noInput {
				child.Stdin = os.Stdin
			}
			err = child.Run()
			var exit *exec.ExitError
			if errors.As(err, &exit) {
				return exitError{exit.ExitCode()}
			}
			return err
		},
	}
	c.Flags().BoolVarP(&noInput, "no-stdin", "n", false, "do not read standard input, as in a loop over lines")
	return c
}

func (s *shell) logsCommand() *cobra.Command {
	var only string
	var scaling scalingFlags
	c := &cobra.Command{
		Use:     "logs NODE|INSTANCE|CLUSTER",
		Short:   "Print an instance's logs, kept ones of terminated instances too, or a cluster's scaling log",
		Example: "  openpcs logs compute-1 --file bootstrap.log\n  openpcs logs demo --scaling --follow",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case !scaling.on && (scaling.follow || scaling.since != ""):
				return errScalingOnly
			case scaling.on && only != "":
				return usageError{errors.New("--file does not go with --scaling")}
			}
			d, _, err := dial(cmd.Context())
			if err != nil {
				return err
			}
			if scaling.on {
				return s.scalingLog(cmd.Context(), d, args[0], scaling)
			}
			logs, err := get[[]app.LogRow](cmd.Context(), d, "/v1/logs", url.Values{"target": args})
			if err != nil {
				return err
			}
			if only != "" {
				var names []string
				for _, l := range logs {
					names = append(names, l.Name)
				}
				logs = slices.DeleteFunc(logs, func(l app.LogRow) bool { return l.Name != only })
				if len(logs) == 0 {
					return fmt.Errorf("there is no log %q: there are %s", only, strings.Join(names, ", "))
				}
			}
			if s.json {
				return s.printJSON(logs)
			}
			for _, l := range logs {
				if only == "" {
					fmt.Fprintf(s.out, "==> %s <==\n", l.Name)
				}
				fmt.Fprintln(s.out, strings.TrimRight(l.Text, "\n"))
			}
			return nil
		},
	}
	scaling.add(c)
	c.Flags().StringVar(&only, "file", "", "print only this log, for example bootstrap.log")
	return c
}

// kinds are what can be named before a name to be explained.
var kinds = []string{"node", "instance", "job", "group", "cluster"}

func (s *shell) explainCommand() *cobra.Command {
	var cluster string
	c := &cobra.Command{
		Use:   "explain [node|instance|job|group|cluster] NAME",
		Short: "Say what it is doing, how it came to that and what comes next",
		Long: "Say what a node, instance, job, compute node group or cluster is doing, how it came to that and\n" +
			"what comes next. With the code of a condition (INSTANCE_LOST), say what it means and what to do.",
		Args: cobra.RangeArgs(1, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			query := url.Values{"target": args[len(args)-1:], "cluster": {cluster}}
			if len(args) == 2 {
				if !slices.Contains(kinds, args[0]) {
					return usageError{fmt.Errorf("%q is not one of %s", args[0], strings.Join(kinds, ", "))}
				}
				query.Set("kind", args[0])
			}
			d, _, err := dial(cmd.Context())
			if err != nil {
				return err
			}
			e, err := get[app.Explanation](cmd.Context(), d, "/v1/explain", query)
			if err != nil {
				return err
			}
			if s.json {
				return s.printJSON([]app.Explanation{e})
			}
			s.printExplanation(e)
			return nil
		},
	}
	c.Flags().StringVar(&cluster, "cluster", "", "the cluster, by name or id, where there are several")
	return c
}

func (s *shell) printExplanation(e app.Explanation) {
	for _, line := range e.Now {
		fmt.Fprintln(s.out, printable(line))
	}
	for _, line := range e.Next {
		fmt.Fprintln(s.out, "Next: "+printable(line))
	}
	var last time.Time
	for _, ev := range e.Events {
		since := ""
		if d := ev.At.Sub(last); !last.IsZero() && d < time.Hour {
			since = fmt.Sprintf("+%.3f", max(d, 0).Seconds())
		}
		last = ev.At
		_, subject, ok := strings.Cut(ev.Subject, "/")
		if !ok {
			subject = ev.Subject
		}
		line := fmt.Sprintf("%s %9s  %-16s %s", ev.At.Local().Format("2006-01-02 15:04:05.000"), since, subject, printable(ev.Text))
		fmt.Fprintln(s.out, strings.TrimRight(line, " "))
	}
}

// printable keeps what instances say from talking to the terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) { // what turns the direction of text around too
			return '·'
		}
		return r
	}, s)
}

func (s *shell) imageCommand() *cobra.Command {
	c := &cobra.Command{Use: "image", Short: "Build, list or remove machine images"}
	parent(c)
	var refresh bool
	build := &cobra.Command{
		Use: "build [VERSION...]", Short: "Build images (26.05, generic, ...) and make them known; without a version, the usual two",
		RunE: func(cmd *cobra.Command, args []string) error {
			d, _, err := dial(cmd.Context())
			if err != nil {
				return err
			}
			if len(args) == 0 {
				args = usualImages
			}
			for _, version := range args {
				if _, err := s.buildImage(cmd, d, version, refresh); err != nil {
					return err
				}
			}
			return nil
		},
	}
	build.Flags().BoolVar(&refresh, "refresh", false, "take the packages that Debian has today")
	c.AddCommand(build,
		&cobra.Command{
			Use: "list", Short: "List images", Args: cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error {
				d, _, err := dial(cmd.Context())
				if err != nil {
					return err
				}
				rows, err := get[[]app.ImageRow](cmd.Context(), d, "/v1/images", nil)
				if err != nil {
					return err
				}
				return print(s, rows, "IMAGE\tNAME\tSTATUS\tSLURM\tCREATED", func(r app.ImageRow) string {
					return fmt.Sprintf("%s\t%s\t%s\t%s\t%s", r.ID, r.Name, r.Status, strings.Join(r.Slurm, " "), ago(r.CreatedAt))
				})
			},
		},
		&cobra.Command{
			Use: "remove IMAGE", Short: "Remove an image that nothing uses", Args: cobra.ExactArgs(1),
			RunE: func(cmd *cobra.Command, args []string) error {
				d, _, err := dial(cmd.Context())
				if err != nil {
					return err
				}
				return d.call(cmd.Context(), http.MethodDelete, "/v1/images/"+url.PathEscape(args[0]), nil, nil, nil)
			},
		})
	return c
}

// usualImages are those that `openpcs up` and a bare `image build` make.
var usualImages = []string{"26.05", image.Generic}

func (s *shell) buildImage(cmd *cobra.Command, d *daemon, version string, refresh bool) (app.ImageRow, error) {
	began := time.Now()
	built, err := image.Build(cmd.Context(), image.Options{
		Version: version, Refresh: refresh, AgentVersion: s.version,
		Progress: func(line string) { fmt.Fprintln(os.Stderr, "  "+line) },
	})
	if err != nil {
		return app.ImageRow{}, err
	}
	var row app.ImageRow
	if err := d.call(cmd.Context(), http.MethodPost, "/v1/images", nil, built, &row); err != nil {
		return row, err
	}
	fmt.Fprintf(os.Stderr, "Image %s (%s) is ready after %s\n", row.Name, row.ID, time.Since(began).Round(100*time.Millisecond))
	return row, nil
}

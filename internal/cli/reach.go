package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
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
			} {
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
	c := &cobra.Command{
		Use: "logs NODE|INSTANCE", Short: "Print an instance's logs, kept ones of terminated instances too", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			d, _, err := dial(cmd.Context())
			if err != nil {
				return err
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
	c.Flags().StringVar(&only, "file", "", "print only this log, for example bootstrap.log")
	return c
}

func (s *shell) explainCommand() *cobra.Command {
	return &cobra.Command{
		Use: "explain NODE|INSTANCE|GROUP|CLUSTER", Short: "Say what it is doing and how it came to that", Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			d, _, err := dial(cmd.Context())
			if err != nil {
				return err
			}
			e, err := get[app.Explanation](cmd.Context(), d, "/v1/explain", url.Values{"target": args})
			if err != nil {
				return err
			}
			if s.json {
				return s.printJSON([]app.Explanation{e})
			}
			for _, line := range e.Now {
				fmt.Fprintln(s.out, printable(line))
			}
			for _, ev := range e.Events {
				line := fmt.Sprintf("%s  %-28s %-18s %s", ev.At.Local().Format("15:04:05.000"), ev.Subject, ev.Kind, details(ev.Detail))
				fmt.Fprintln(s.out, strings.TrimRight(line, " "))
			}
			return nil
		},
	}
}

// details writes an event's members as key=value, without long texts.
func details(doc []byte) string {
	var m map[string]any
	dec := json.NewDecoder(bytes.NewReader(doc))
	dec.UseNumber() // large job ids stay whole
	if dec.Decode(&m) != nil {
		return string(doc)
	}
	var out []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		switch v := m[k].(type) {
		case map[string]any:
			for _, sub := range slices.Sorted(maps.Keys(v)) {
				out = append(out, fmt.Sprintf("%s.%s=%v", k, sub, v[sub]))
			}
		case []any:
			var parts []string
			for _, e := range v {
				parts = append(parts, fmt.Sprint(e))
			}
			out = append(out, k+"="+strings.Join(parts, ","))
		default:
			if k != "log" {
				out = append(out, fmt.Sprintf("%s=%v", k, v))
			}
		}
	}
	return printable(strings.Join(out, " "))
}

// printable keeps what instances say from talking to the terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
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

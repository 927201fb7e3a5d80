package cli

import (
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/openpcs/openpcs/internal/app"
	"github.com/openpcs/openpcs/internal/audit"
)

func (s *shell) auditCommand() *cobra.Command {
	var users, types []string
	var since, until, client string
	var limit int
	c := &cobra.Command{
		Use:   "audit [CLUSTER]",
		Short: "Say who asked a cluster for what, from where and when, out of its audit records",
		Example: "  openpcs audit --user ubuntu --type REQUEST_SUBMIT_BATCH_JOB --since 1h\n" +
			"  openpcs audit demo --client 10.77.16.6\n  openpcs audit verify",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			query := url.Values{"cluster": args, "user": users, "type": types, "client": {client}, "limit": {strconv.Itoa(limit)}}
			now := time.Now()
			for name, text := range map[string]string{"since": since, "until": until} {
				at, err := moment(name, text, now)
				if err != nil {
					return err
				}
				if !at.IsZero() {
					query.Set(name, at.UTC().Format(time.RFC3339Nano))
				}
			}
			d, _, err := dial(cmd.Context())
			if err != nil {
				return err
			}
			found, err := get[app.Audited](cmd.Context(), d, "/v1/audit", query)
			if err != nil {
				return err
			}
			return s.printAudit(found)
		},
	}
	c.Flags().StringArrayVar(&users, "user", nil, "only what this user asked for, by name or uid; may be given several times")
	c.Flags().StringArrayVar(&types, "type", nil, "only requests of this type, such as REQUEST_SUBMIT_BATCH_JOB; may be given several times")
	c.Flags().StringVar(&client, "client", "", "only requests from this address")
	c.Flags().StringVar(&since, "since", "", "only what is not older than this, 90m say, or than a time, 2026-11-30T16:00:00Z")
	c.Flags().StringVar(&until, "until", "", "only what is older than this, or than a time")
	c.Flags().IntVar(&limit, "limit", 1000, "the newest of what is found, at most 100000")
	c.AddCommand(s.auditVerifyCommand())
	return c
}

// moment is a time that is given as such or as how long ago it is; zero if it is
// not given.
func moment(name, text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if d, err := time.ParseDuration(text); err == nil && d >= 0 {
		return now.Add(-d), nil
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return at, usageError{fmt.Errorf("--%s: %q is neither a duration, such as 90m, nor a time, such as 2026-11-30T16:00:00Z", name, text)}
	}
	return at, nil
}

func (s *shell) printAudit(found app.Audited) error {
	err := print(s, found.Rows, "TIME (UTC)\tUSER\tREQUEST\tJOB\tFROM\tNODE\tDAEMON", func(r audit.Row) string {
		dash := func(text string) string {
			if text == "" {
				return "-"
			}
			return printable(text)
		}
		return strings.Join([]string{
			r.Time.Format("2006-01-02 15:04:05.000"), dash(r.User), dash(r.Type), dash(r.Job), dash(r.Client), dash(r.Node), r.Daemon,
		}, "\t")
	})
	if err != nil {
		return err
	}
	if s.json {
		return unreadable(found)
	}
	if left := found.Found - int64(len(found.Rows)); left > 0 {
		fmt.Fprintf(s.out, "\n%d older ones are left out: --limit shows more.\n", left)
	}
	share := 0.0
	if found.All.Bytes > 0 {
		share = 100 * float64(found.Audit.Bytes) / float64(found.All.Bytes)
	}
	_, err = fmt.Fprintf(s.out, "\n%d of %d audit records. In this time they are %.0f %% of what the daemons logged: %d of %d bytes.\n",
		found.Found, found.Audit.Records, share, found.Audit.Bytes, found.All.Bytes)
	if err != nil {
		return err
	}
	return unreadable(found)
}

// unreadable is an error where the answer may lack something.
func unreadable(found app.Audited) error {
	if found.Unreadable == 0 {
		return nil
	}
	return fmt.Errorf("%d records of these logs are changed or gone, and the answer lacks them: 'openpcs audit verify %s' says which", found.Unreadable, found.Cluster)
}

// errDamaged makes openpcs end with 1; what is damaged is printed.
var errDamaged = errors.New("the logs are not those that were written")

func (s *shell) auditVerifyCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "verify [CLUSTER]",
		Short: "Compute the hash chains of the logs anew, and say which record was changed or removed",
		Long: "Compute the hash chains of a cluster's logs anew, or of those of all clusters, and say which record\n" +
			"was changed, removed or put in another order, and whether the beginning or the end was cut off.\n" +
			"The exit code is 1 if anything was. With --json it prints the head of each chain, to keep elsewhere.",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			d, _, err := dial(cmd.Context())
			if err != nil {
				return err
			}
			rows, err := get[[]app.Verified](cmd.Context(), d, "/v1/audit/verify", url.Values{"cluster": args})
			if err != nil {
				return err
			}
			err = print(s, rows, "LOG\tSTATUS\tRECORDS\tFROM\tTO\tHEAD", func(r app.Verified) string {
				return fmt.Sprintf("%s\t%s\t%d\t%d\t%d\t%.16s", r.ID, r.Status, r.Records, r.Base.Seq+1, r.Head.Seq, r.Head.Hash)
			})
			if err != nil {
				return err
			}
			damaged := false
			for _, r := range rows {
				for _, x := range r.Damage {
					damaged = true
					if s.json {
						continue
					}
					where := fmt.Sprintf("record %d", x.From)
					if x.To > x.From {
						where = fmt.Sprintf("records %d to %d", x.From, x.To)
					}
					if x.Segment != "" {
						where = x.Segment + ", " + where
					}
					fmt.Fprintf(s.out, "%s: %s: %s\n", r.ID, where, x.What)
				}
			}
			if damaged {
				return errDamaged
			}
			return nil
		},
	}
}

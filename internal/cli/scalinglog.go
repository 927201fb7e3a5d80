package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/openpcs/openpcs/internal/scaling"
)

// followPause is between two looks at a scaling log that is followed.
const followPause = 500 * time.Millisecond

// scalingFlags are what `openpcs logs --scaling` takes.
type scalingFlags struct {
	on, follow bool
	since      string
}

func (f *scalingFlags) add(c *cobra.Command) {
	c.Flags().BoolVar(&f.on, "scaling", false, "print the scaling log of a cluster: time (UTC), node, status, reason, instance")
	c.Flags().BoolVar(&f.follow, "follow", false, "with --scaling: go on with what comes, until interrupted")
	c.Flags().StringVar(&f.since, "since", "", "with --scaling: only what is not older than this, 90m say, or than a time, 2026-11-30T16:00:00Z")
}

// from returns the time that --since means, zero for all.
func (f *scalingFlags) from(now time.Time) (time.Time, error) {
	return moment("since", f.since, now)
}

// scalingLog prints the scaling log of a cluster.
func (s *shell) scalingLog(ctx context.Context, d *daemon, cluster string, f scalingFlags) error {
	from, err := f.from(time.Now())
	if err != nil {
		return err
	}
	var after int64
	for {
		entries, err := get[[]scaling.Entry](ctx, d, "/v1/scaling", url.Values{"cluster": {cluster}, "after": {strconv.FormatInt(after, 10)}})
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		for _, e := range entries {
			after = e.Seq
			if time.UnixMilli(e.EventTimestamp).Before(from) {
				continue
			}
			if err := s.printRecord(e.Record); err != nil {
				return err
			}
		}
		switch {
		case len(entries) > 0: // there may be more
		case !f.follow:
			return nil
		default:
			timer := time.NewTimer(followPause)
			select {
			case <-ctx.Done():
				timer.Stop()
				return nil
			case <-timer.C:
			}
		}
	}
}

// printRecord prints one record: a line of JSON as the log is delivered, or
// columns for people, with what went wrong behind them.
func (s *shell) printRecord(r scaling.Record) error {
	if s.json {
		enc := json.NewEncoder(s.out)
		enc.SetEscapeHTML(false)
		return enc.Encode(r)
	}
	instance := r.Details.InstanceID
	if instance == "" {
		instance = "-"
	}
	line := []string{time.UnixMilli(r.EventTimestamp).UTC().Format(time.TimeOnly), r.SchedulerNodeID, string(r.StatusCode), string(r.ReasonCode), instance}
	if x := r.Details.Openpcs; x.Grave() {
		line = append(line, " "+string(x.Condition)+": "+printable(x.Message))
	}
	_, err := fmt.Fprintln(s.out, strings.Join(line, " "))
	return err
}

var errScalingOnly = usageError{errors.New("--follow and --since go with --scaling")}

package delivery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/openpcs/openpcs/internal/condition"
	"github.com/openpcs/openpcs/internal/logs"
)

const (
	logsService = "logs"
	logsTarget  = "Logs_20140328"
)

// remoteEvents sends events to CloudWatch Logs elsewhere. That does not know
// what came already, so after an answer that was lost it is looked up there.
type remoteEvents struct {
	events
	endpoint *Endpoint
}

// durable: what a batch had must be known when the process died over it.
func (c *remoteEvents) durable() bool { return true }

// logEvent is an event on the wire.
type logEvent struct {
	Timestamp int64  `json:"timestamp"`
	Message   string `json:"message"`
}

func (c *remoteEvents) send(ctx context.Context, again bool) error {
	// They must be in order of time; the order of those of one time is kept.
	sorted := slices.Clone(c.list)
	slices.SortStableFunc(sorted, func(a, b logs.Event) int { return cmp.Compare(a.Time, b.Time) })
	batch := make([]logEvent, len(sorted))
	for n, e := range sorted {
		batch[n] = logEvent{e.Time, e.Message}
	}
	name := stream(c.link, c.logName, c.major)
	if again {
		there, err := c.arrived(ctx, name, batch)
		if err != nil || there {
			return err
		}
	}
	in := map[string]any{"logGroupName": c.link.Target, "logStreamName": name, "logEvents": batch}
	var out struct {
		Rejected *struct {
			TooOld *int `json:"tooOldLogEventEndIndex"`
			Expire *int `json:"expiredLogEventEndIndex"`
			TooNew *int `json:"tooNewLogEventStartIndex"`
		} `json:"rejectedLogEventsInfo"`
	}
	err := c.call(ctx, "PutLogEvents", in, &out)
	if missing(err) {
		if err := c.createStream(ctx, name); err != nil {
			return err
		}
		err = c.call(ctx, "PutLogEvents", in, &out)
	}
	if err != nil {
		return err
	}
	if r := out.Rejected; r != nil {
		n := max(index(r.TooOld, 0), index(r.Expire, 0)) + len(batch) - index(r.TooNew, len(batch))
		return &rejected{count: int64(n), why: "CloudWatch Logs takes no events that are older than 14 days or than the group keeps them, nor from more than two hours ahead"}
	}
	return nil
}

func (c *remoteEvents) call(ctx context.Context, op string, in, out any) error {
	return c.endpoint.call(ctx, c.link.Region, logsService, logsTarget, op, in, out)
}

func index(n *int, absent int) int {
	if n == nil {
		return absent
	}
	return *n
}

func missing(err error) bool {
	var f *failure
	return errors.As(err, &f) && f.code == condition.LogDestinationMissing
}

func (c *remoteEvents) createStream(ctx context.Context, name string) error {
	err := c.call(ctx, "CreateLogStream", map[string]any{"logGroupName": c.link.Target, "logStreamName": name}, nil)
	if missing(err) {
		return noGroup(c.link)
	}
	return err
}

// arrived looks whether the batch is in the stream. A batch comes as a whole or
// not at all, so the events of its latest time tell for all; as many of them as
// are the same must be there.
func (c *remoteEvents) arrived(ctx context.Context, name string, batch []logEvent) (bool, error) {
	last := batch[len(batch)-1]
	want := 0
	for _, e := range batch {
		if e == last {
			want++
		}
	}
	in := map[string]any{"logGroupName": c.link.Target, "logStreamName": name, "startTime": last.Timestamp, "endTime": last.Timestamp + 1, "startFromHead": true}
	have := 0
	for token := ""; ; {
		var out struct {
			Events []logEvent `json:"events"`
			Next   string     `json:"nextForwardToken"`
		}
		if err := c.call(ctx, "GetLogEvents", in, &out); err != nil {
			if missing(err) { // no stream, so nothing in it
				return false, nil
			}
			return false, fmt.Errorf("look up what arrived: %w", err)
		}
		for _, e := range out.Events {
			if e == last {
				have++
			}
		}
		if have >= want || out.Next == "" || out.Next == token {
			return have >= want, nil
		}
		token = out.Next
		in["nextToken"] = token
	}
}

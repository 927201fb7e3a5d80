package logs

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/openpcs/openpcs/internal/awsapi"
	"github.com/openpcs/openpcs/internal/logs/events"
)

// The bounds of PutLogEvents.
const (
	maxBatch       = 1 << 20 // bytes, with events.Overhead for each event
	maxBatchEvents = 10_000
	maxBatchSpan   = 24 * time.Hour
	maxAhead       = 2 * time.Hour
	maxAge         = 14 * 24 * time.Hour
)

type inputEvent struct {
	Time    *int64  `json:"timestamp"`
	Message *string `json:"message"`
}

type putEventsIn struct {
	Group  *string      `json:"logGroupName"`
	Stream *string      `json:"logStreamName"`
	Events []inputEvent `json:"logEvents"`
	// SequenceToken is not looked at, as in CloudWatch Logs since 2023: whoever
	// sends one and whoever sends none is served alike.
	SequenceToken *string `json:"sequenceToken"`
	// Entity is for a product that openpcs does not have.
	Entity *entity `json:"entity"`
}

type entity struct {
	Key        map[string]string `json:"keyAttributes"`
	Attributes map[string]string `json:"attributes"`
}

type rejected struct {
	TooNewFrom   *int `json:"tooNewLogEventStartIndex,omitempty"`
	TooOldUntil  *int `json:"tooOldLogEventEndIndex,omitempty"`
	ExpiredUntil *int `json:"expiredLogEventEndIndex,omitempty"`
}

type putEventsOut struct {
	NextToken string    `json:"nextSequenceToken"`
	Rejected  *rejected `json:"rejectedLogEventsInfo,omitempty"`
}

func (s *Logs) putEvents(ctx context.Context, r *awsapi.Request, in *putEventsIn) (*putEventsOut, error) {
	c := check{code: parameter}
	group, stream := c.need("logGroupName", in.Group, groupName), c.need("logStreamName", in.Stream, streamName)
	batch := c.batch(in.Events)
	if err := c.err(); err != nil {
		return nil, err
	}
	g, err := s.db.Group(ctx, r.Region, group)
	if err != nil {
		return nil, worded(err)
	}
	batch, out := split(batch, r.Now, g.Retention)
	err = s.db.Append(ctx, events.Batch{Region: r.Region, Group: group, Stream: stream, Events: batch, Now: r.Now})
	if err != nil {
		return nil, worded(err)
	}
	return &putEventsOut{NextToken: fmt.Sprintf("%056d", r.Now.UnixNano()), Rejected: out}, nil
}

// batch checks the events of a call.
func (c *check) batch(in []inputEvent) []events.Input {
	if len(in) < 1 || len(in) > maxBatchEvents {
		c.bad("logEvents", "has %d entries, 1 to %d are allowed", len(in), maxBatchEvents)
		return nil
	}
	out := make([]events.Input, 0, len(in))
	size := 0
	for n, e := range in {
		switch {
		case e.Time == nil || e.Message == nil:
			c.bad(fmt.Sprintf("logEvents[%d]", n), "needs timestamp and message")
			continue
		case *e.Time < 0:
			c.bad(fmt.Sprintf("logEvents[%d].timestamp", n), "is %d, and must be milliseconds since 1970", *e.Time)
		case *e.Message == "":
			c.bad(fmt.Sprintf("logEvents[%d].message", n), "is empty, and must have a character or more")
		case n > 0 && len(out) > 0 && *e.Time < out[len(out)-1].Time:
			c.bad(fmt.Sprintf("logEvents[%d]", n), "Log events in a single PutLogEvents request must be in chronological order.")
		}
		size += len(*e.Message) + events.Overhead
		out = append(out, events.Input{Time: *e.Time, Message: *e.Message})
	}
	if size > maxBatch {
		c.bad("logEvents", "Upload too large: %d bytes exceeds limit of %d (each event counts its message and %d bytes more): split the batch", size, maxBatch, events.Overhead)
	}
	if len(out) > 1 && out[len(out)-1].Time-out[0].Time > maxBatchSpan.Milliseconds() {
		c.bad("logEvents", "The batch of log events in a single PutLogEvents request cannot span more than 24 hours.")
	}
	return out
}

// split leaves out of a batch what is too old or too new, and tells which.
func split(in []events.Input, now time.Time, retention int) ([]events.Input, *rejected) {
	oldest, newest := now.Add(-maxAge).UnixMilli(), now.Add(maxAhead).UnixMilli()
	var expired int64
	if retention > 0 {
		expired = now.AddDate(0, 0, -retention).UnixMilli()
	}
	var out rejected
	begin, end := 0, len(in)
	for n, e := range in {
		if e.Time < oldest {
			out.TooOldUntil = new(n + 1)
			begin = n + 1
		} else if e.Time < expired {
			out.ExpiredUntil = new(n + 1)
			begin = n + 1
		}
		if e.Time > newest {
			out.TooNewFrom, end = new(n), n
			break
		}
	}
	if out == (rejected{}) {
		return in, nil
	}
	return in[begin:max(begin, end)], &out
}

// liveTail tells what there is instead.
func (s *Logs) liveTail(context.Context, *awsapi.Request, *liveTailIn) (*empty, error) {
	return nil, fail("InvalidOperationException", "openpcs has no StartLiveTail. Follow a log group with: aws logs tail LOG-GROUP --follow")
}

// Sweep removes events that are past the retention of their log groups, and
// those of groups and streams that were deleted.
func (s *Logs) Sweep(ctx context.Context, now time.Time) error {
	err := s.db.Sweep(ctx, now)
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

type liveTailIn struct {
	Groups   []string `json:"logGroupIdentifiers"`
	Streams  []string `json:"logStreamNames"`
	Prefixes []string `json:"logStreamNamePrefixes"`
	Pattern  *string  `json:"logEventFilterPattern"`
}

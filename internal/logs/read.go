package logs

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/openpcs/openpcs/internal/awsapi"
	"github.com/openpcs/openpcs/internal/filterpattern"
	"github.com/openpcs/openpcs/internal/logs/events"
)

// The bounds of a page of events.
const (
	maxPage       = 1 << 20 // bytes, with events.Overhead for each event
	maxPageEvents = 10_000
)

// maxSearched is how many events a page of FilterLogEvents looks at, which takes
// about a second. Tests make it small.
var maxSearched = 1_000_000

type getEventsIn struct {
	Group     *string `json:"logGroupName"`
	GroupID   *string `json:"logGroupIdentifier"`
	Stream    *string `json:"logStreamName"`
	Start     *int64  `json:"startTime"`
	End       *int64  `json:"endTime"`
	NextToken *string `json:"nextToken"`
	Limit     *int32  `json:"limit"`
	FromHead  *bool   `json:"startFromHead"`
	// Unmask makes no difference: nothing is masked.
	Unmask *bool `json:"unmask"`
}

type eventOut struct {
	Time     int64  `json:"timestamp"`
	Message  string `json:"message"`
	Ingested int64  `json:"ingestionTime"`
}

type getEventsOut struct {
	Events   []eventOut `json:"events"`
	Forward  string     `json:"nextForwardToken"`
	Backward string     `json:"nextBackwardToken"`
}

// A token of GetLogEvents says a direction and a place, and where the stream
// ends in that direction it is given back as it came. Its form is that of
// CloudWatch Logs, because there are programs that look at the first letter.
func token(direction byte, p events.Pos) string {
	return fmt.Sprintf("%c/%s/s", direction, placeID(p))
}

// placeID is a place in 56 digits, which is the id of the event there.
func placeID(p events.Pos) string { return fmt.Sprintf("%020d%036d", p.Time, p.ID) }

func parseToken(s string) (forward bool, p events.Pos, ok bool) {
	forward = strings.HasPrefix(s, "f/")
	digits := strings.TrimSuffix(s[min(2, len(s)):], "/s")
	if !forward && !strings.HasPrefix(s, "b/") || len(digits) != 56 || strings.Trim(digits, "0123456789") != "" {
		return false, p, false
	}
	var err, err2 error
	p.Time, err = strconv.ParseInt(digits[:20], 10, 64)
	p.ID, err2 = strconv.ParseInt(digits[20:], 10, 64)
	return forward, p, err == nil && err2 == nil
}

// window checks the bounds of time, of which the end is not in the window.
func (c *check) window(start, end *int64) (from, to int64) {
	to = math.MaxInt64
	for name, v := range map[string]*int64{"startTime": start, "endTime": end} {
		if v != nil && *v < 0 {
			c.bad(name, "is %d, and must be milliseconds since 1970", *v)
		}
	}
	if start != nil {
		from = *start
	}
	if end != nil {
		to = *end
	}
	return from, to
}

func (s *Logs) getEvents(ctx context.Context, r *awsapi.Request, in *getEventsIn) (*getEventsOut, error) {
	c := check{code: parameter}
	group := c.group(r, in.Group, in.GroupID)
	stream := c.need("logStreamName", in.Stream, streamName)
	size := c.limit(in.Limit, maxPageEvents, maxPageEvents)
	from, to := c.window(in.Start, in.End)
	w := events.Window{Names: []string{stream}, From: from, To: to - 1, Down: in.FromHead == nil || !*in.FromHead}
	if in.NextToken != nil {
		forward, at, ok := parseToken(*in.NextToken)
		if !ok {
			return nil, fail(parameter, "The specified nextToken is invalid.")
		}
		w.After, w.Down = &at, !forward
	}
	if err := c.err(); err != nil {
		return nil, err
	}
	g, err := s.db.Group(ctx, r.Region, group)
	if err != nil {
		return nil, worded(err)
	}
	if _, err := s.db.Stream(ctx, g.ID, stream); err != nil {
		return nil, worded(err)
	}
	w.Group = g.ID
	out := &getEventsOut{Events: []eventOut{}}
	var first, last events.Pos
	bytes := 0
	err = s.db.Scan(ctx, w, func(e events.Event) bool {
		bytes += len(e.Message) + events.Overhead
		if bytes > maxPage && len(out.Events) > 0 {
			return false
		}
		if len(out.Events) == 0 {
			first = e.Pos
		}
		last = e.Pos
		out.Events = append(out.Events, eventOut{e.Time, string(e.Message), e.Ingested})
		return len(out.Events) < size
	})
	if err != nil {
		return nil, err
	}
	if w.Down {
		slices.Reverse(out.Events)
		first, last = last, first
	}
	switch {
	case len(out.Events) > 0:
		out.Forward, out.Backward = token('f', last), token('b', first)
	case w.After == nil:
		// Before all events that may come.
		start := events.Pos{Time: from}
		out.Forward, out.Backward = token('f', start), token('b', start)
	case w.Down:
		before := *w.After
		before.ID = max(0, before.ID-1) // the event of the token is yet to come in this direction
		out.Forward, out.Backward = token('f', before), *in.NextToken
	default:
		beyond := *w.After
		beyond.ID++
		out.Forward, out.Backward = *in.NextToken, token('b', beyond)
	}
	return out, nil
}

type filterEventsIn struct {
	Group     *string  `json:"logGroupName"`
	GroupID   *string  `json:"logGroupIdentifier"`
	Streams   []string `json:"logStreamNames"`
	Prefix    *string  `json:"logStreamNamePrefix"`
	Start     *int64   `json:"startTime"`
	End       *int64   `json:"endTime"`
	Pattern   *string  `json:"filterPattern"`
	NextToken *string  `json:"nextToken"`
	Limit     *int32   `json:"limit"`
	FromHead  *bool    `json:"startFromHead"`
	// Interleaved makes no difference: events of all streams are always in the
	// order of time.
	Interleaved *bool `json:"interleaved"`
	Unmask      *bool `json:"unmask"`
}

type filteredEvent struct {
	Stream   string `json:"logStreamName"`
	Time     int64  `json:"timestamp"`
	Message  string `json:"message"`
	Ingested int64  `json:"ingestionTime"`
	ID       string `json:"eventId"`
}

type filterEventsOut struct {
	Events    []filteredEvent `json:"events"`
	Searched  []struct{}      `json:"searchedLogStreams"` // always empty, as in CloudWatch Logs since 2020
	NextToken string          `json:"nextToken,omitempty"`
}

// fromTailSince is the earliest start of a search that begins with the newest
// events (CloudWatch Logs API reference, FilterLogEvents).
var fromTailSince = time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC).UnixMilli()

func (s *Logs) filterEvents(ctx context.Context, r *awsapi.Request, in *filterEventsIn) (*filterEventsOut, error) {
	c := check{code: parameter}
	group := c.group(r, in.Group, in.GroupID)
	size := c.limit(in.Limit, maxPageEvents, maxPageEvents)
	from, to := c.window(in.Start, in.End)
	w := events.Window{Names: in.Streams, Prefix: c.may("logStreamNamePrefix", in.Prefix, streamName), From: from, To: to}
	if len(in.Streams) > 100 {
		c.bad("logStreamNames", "has %d entries, 1 to 100 are allowed", len(in.Streams))
	}
	for n, name := range in.Streams {
		c.matches(fmt.Sprintf("logStreamNames[%d]", n), name, streamName)
	}
	if len(in.Streams) > 0 && in.Prefix != nil {
		c.bad("logStreamNamePrefix", "is there beside logStreamNames: give one of them")
	}
	if in.FromHead != nil && !*in.FromHead && in.NextToken == nil {
		w.Down = true
		if from < fromTailSince {
			c.bad("startFromHead", "can be false when startTime is on or after 2024-01-01 (%d)", fromTailSince)
		}
	}
	pattern, err := filterpattern.Parse(text(in.Pattern))
	var wrong *filterpattern.Error
	if errors.As(err, &wrong) {
		c.bad("filterPattern", "Invalid filter pattern: %v", wrong)
	}
	if err := c.err(); err != nil {
		return nil, err
	}
	args := []any{group, in.Streams, w.Prefix, text(in.Pattern)}
	if in.NextToken != nil {
		cursor, err := r.PageCursor(args, *in.NextToken)
		if err != nil {
			return nil, err
		}
		forward, at, _ := parseToken(cursor)
		w.After, w.Down = &at, !forward
	}
	g, err := s.db.Group(ctx, r.Region, group)
	if err != nil {
		return nil, worded(err)
	}
	for _, name := range in.Streams {
		if _, err := s.db.Stream(ctx, g.ID, name); err != nil {
			return nil, worded(err)
		}
	}
	w.Group = g.ID
	out := &filterEventsOut{Events: []filteredEvent{}, Searched: []struct{}{}}
	var last events.Pos
	bytes, searched := 0, 0
	more := false
	err = s.db.Scan(ctx, w, func(e events.Event) bool {
		// Only when there is a next event there is a next page.
		if more = len(out.Events) == size || searched == maxSearched; more {
			return false
		}
		searched++
		if pattern.Match(e.Message) {
			bytes += len(e.Message) + events.Overhead
			if more = bytes > maxPage && len(out.Events) > 0; more {
				return false
			}
			out.Events = append(out.Events, filteredEvent{e.Stream, e.Time, string(e.Message), e.Ingested, placeID(e.Pos)})
		}
		last = e.Pos
		return true
	})
	if err != nil {
		return nil, err
	}
	if more {
		direction := byte('f')
		if w.Down {
			direction = 'b'
		}
		out.NextToken = r.PageToken(args, token(direction, last))
	}
	return out, nil
}

package delivery

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/openpcs/openpcs/internal/condition"
	"github.com/openpcs/openpcs/internal/journal"
	"github.com/openpcs/openpcs/internal/logs"
)

// collectFor is how long records are collected for a destination that gets them
// at once.
const collectFor = 500 * time.Millisecond

// newOutlet returns what sends the records of a log to the destination.
func (w *worker) newOutlet() outlet {
	l, d, logName := w.link, w.runner.o.Destinations, w.feed.Name()
	enc := newEncoder(l, logName)
	switch {
	case l.Kind == logs.ToS3:
		return &object{link: l, logName: logName, enc: enc, buckets: d.Buckets, interval: w.runner.o.Interval}
	case l.Kind == logs.ToFirehose:
		return &records{link: l, enc: enc, endpoint: d.Firehose}
	case d.Logs != nil:
		return &remoteEvents{events: events{link: l, logName: logName, enc: enc}, endpoint: d.Logs}
	}
	return &events{link: l, logName: logName, enc: enc, groups: d.Groups}
}

// Groups are the log groups of openpcs itself.
type Groups interface {
	Deliver(ctx context.Context, region, group, stream, from string, list []logs.Event) error
	HasGroup(ctx context.Context, region, name string) (bool, error)
}

// The limits of PutLogEvents: how many events, how many bytes with those that
// each event counts for, and which time between the first and the last.
const (
	maxEvents     = 10_000
	maxEventBytes = 1 << 20
	eventOverhead = 26
	maxSpan       = 24 * time.Hour
)

// events collects records for one stream of a log group.
type events struct {
	link    Link
	logName string
	enc     *encoder
	groups  Groups

	line     []byte
	list     []logs.Event
	size     int
	major    string
	from, to int64 // the earliest and the latest, ms
}

func (c *events) add(r journal.Entry) error {
	var err error
	if c.line, err = c.enc.append(c.line[:0], r); err != nil {
		return &unfit{err.Error()}
	}
	message := c.line[:len(c.line)-1]
	if len(message) == 0 { // CloudWatch Logs has no empty events
		message = []byte(" ")
	}
	size := len(message) + eventOverhead
	if size > maxEventBytes {
		return &unfit{fmt.Sprintf("it has %d bytes, and an event has at most %d", len(message), maxEventBytes-eventOverhead)}
	}
	major, _ := release(r.Release)
	if n := len(c.list); n > 0 {
		from, to := min(c.from, r.Time), max(c.to, r.Time)
		if n == maxEvents || c.size+size > maxEventBytes || major != c.major || to-from >= maxSpan.Milliseconds() {
			return errFull
		}
		c.from, c.to = from, to
	} else {
		c.major, c.from, c.to = major, r.Time, r.Time
	}
	c.size += size
	c.list = append(c.list, logs.Event{Place: r.Seq, Time: r.Time, Message: string(message)})
	return nil
}

func (c *events) count() int { return len(c.list) }

func (c *events) key() string { return "" }

func (c *events) reset(*Batch) {
	clear(c.list) // lets the messages go
	c.list, c.size = c.list[:0], 0
}

func (c *events) due(_ journal.Entry, now time.Time) time.Time { return now.Add(collectFor) }

// durable: what is handed over twice is left out there.
func (c *events) durable() bool { return false }

func (c *events) send(ctx context.Context, _ bool) error {
	err := c.groups.Deliver(ctx, c.link.Region, c.link.Target, stream(c.link, c.logName, c.major), c.link.ID+"/"+c.logName, c.list)
	switch {
	case errors.Is(err, logs.ErrNoGroup):
		return noGroup(c.link)
	case err != nil:
		return &failure{code: condition.LogDeliveryFailing, text: err.Error()}
	}
	return nil
}

func noGroup(l Link) *failure {
	return &failure{code: condition.LogDestinationMissing, text: fmt.Sprintf("There is no log group %s in %s. Make it: aws logs create-log-group --log-group-name %s", l.Target, l.Region, l.Target)}
}

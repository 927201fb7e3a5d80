// Package delivery brings the logs of clusters to where users want them: S3,
// CloudWatch Logs and Firehose. The log itself, a journal on disk, is the queue
// of every delivery; a delivery of a log is a worker with a cursor into it, so
// that none waits for another. It knows what a record looks like at each
// destination and when it counts as delivered, and nothing of how logs come to
// be nor of the API by which deliveries are made. docs/logs.md is for users.
package delivery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/openpcs/openpcs/internal/journal"
	"github.com/openpcs/openpcs/internal/logs"
	"github.com/openpcs/openpcs/internal/store"
)

// The formats of records, as the API calls them.
const (
	JSON  = "json"
	Plain = "plain"
	W3C   = "w3c"
	Raw   = "raw"
)

// Link is one delivery with what counts of its source and destination.
type Link struct {
	ID        string // of the delivery
	Region    string
	Account   string
	SourceARN string // of the delivery source; bucket policies ask for it
	Cluster   string // id
	LogType   string // such as logs.SchedulerLogs
	Kind      string // of the destination, such as logs.ToS3
	Target    string // name of the bucket, log group or stream
	Format    string
	Fields    []string  // of records, in order; empty: all
	Delimiter string    // between fields of plain, w3c and raw records
	Suffix    string    // pattern of the S3 path below AWSLogs/ACCOUNT/PCS/; empty: that of PCS
	Hive      bool      // the S3 path names its parts, year=2026
	Created   time.Time // what is written from then on is delivered
}

// NewLink takes from a delivery what counts here. An empty suffix path is that
// of PCS.
func NewLink(l logs.Link, account string) Link {
	out := Link{
		ID: l.Delivery.ID, Region: l.Delivery.Region, Account: account, SourceARN: l.Source.ARN, Cluster: l.Source.Cluster(), LogType: l.Source.LogType,
		Kind: l.Destination.Type, Target: l.Destination.Resource(), Format: l.Destination.Format(),
		Fields: l.Delivery.RecordFields, Delimiter: l.Delivery.FieldDelimiter, Created: l.Delivery.CreatedAt,
	}
	if p := l.Delivery.S3; p != nil {
		out.Suffix, out.Hive = p.Suffix, p.Hive
	}
	return out
}

// Links returns the deliveries of the service logs.
func Links(tx *store.Tx, account string) ([]Link, error) {
	all, err := logs.Links(tx)
	out := make([]Link, len(all))
	for n, l := range all {
		out[n] = NewLink(l, account)
	}
	return out, err
}

// Feed is a log in the order in which it was written.
type Feed interface {
	// Name is what the log is called: slurmctld, slurmdbd, slurmrestd, jobcomp,
	// node_lifecycle.
	Name() string
	// Read returns entries after a place, none if there is nothing new. A place
	// that is no longer kept begins with the oldest.
	Read(after int64, maxEntries, maxBytes int) ([]journal.Entry, error)
	// Last is the place of the newest entry, 0 if there is none.
	Last() int64
	// Gapless says that places follow each other, so that a gap is a loss.
	Gapless() bool
	// Changed is closed at the next entry.
	Changed() <-chan struct{}
}

// Destinations is how destinations are reached.
type Destinations struct {
	Account  string
	Buckets  Buckets
	Groups   Groups    // log groups of openpcs itself
	Logs     *Endpoint // CloudWatch Logs elsewhere, which has the groups instead; nil: none
	Firehose *Endpoint // nil: none
}

// Options configure a Runner.
type Options struct {
	Store *store.Store
	// Links returns the deliveries that there are.
	Links func(tx *store.Tx) ([]Link, error)
	// Feeds returns the logs of a type that a cluster has.
	Feeds func(cluster, logType string) []Feed
	// Interval is between two objects in S3.
	Interval time.Duration
	// Keep is how long a record is tried before it is dropped.
	Keep time.Duration
	// Dir is where records that a destination refuses for good are kept.
	Dir          string
	Destinations *Destinations

	Logger *slog.Logger
}

// lookEvery is how often the deliveries and logs are compared with the workers.
// A look costs no I/O.
const lookEvery = time.Second

// Runner runs a worker for each log of each delivery.
type Runner struct {
	o      Options
	cancel context.CancelFunc
	done   chan struct{}

	mu      sync.Mutex
	workers map[string]*worker // by cursor id
	links   []Link
}

// Start runs deliveries until Stop.
func Start(o Options) *Runner {
	ctx, cancel := context.WithCancel(context.Background())
	r := &Runner{o: o, cancel: cancel, done: make(chan struct{}), workers: map[string]*worker{}}
	go r.run(ctx)
	return r
}

// Stop ends all workers. What they had not delivered goes on at the next start.
func (r *Runner) Stop() {
	r.cancel()
	<-r.done
}

func (r *Runner) run(ctx context.Context) {
	defer close(r.done)
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for {
		if err := r.look(ctx); err != nil && ctx.Err() == nil {
			r.o.Logger.Warn("Deliveries could not be looked up", "err", err)
		}
		select {
		case <-ctx.Done():
			r.mu.Lock()
			all := r.workers
			r.mu.Unlock()
			for _, w := range all {
				w.stop()
			}
			return
		case <-ticker.C:
		}
	}
}

// look starts the workers that are missing and ends those whose delivery or log
// is gone. One whose delivery was changed is started anew.
func (r *Runner) look(ctx context.Context) error {
	var links []Link
	var cursors []Cursor
	err := r.o.Store.View(ctx, func(tx *store.Tx) (err error) {
		if links, err = r.o.Links(tx); err != nil {
			return err
		}
		cursors, err = Cursors.All(tx)
		return err
	})
	if err != nil {
		return fmt.Errorf("list the deliveries: %w", err)
	}
	wanted := map[string]*worker{}
	for _, l := range links {
		for _, f := range r.o.Feeds(l.Cluster, l.LogType) {
			w := newWorker(r, l, f)
			wanted[w.id] = w
		}
	}
	r.mu.Lock()
	var ended []*worker
	for id, w := range r.workers {
		if now, ok := wanted[id]; !ok || !reflect.DeepEqual(now.link, w.link) || now.feed != w.feed {
			ended = append(ended, w)
			delete(r.workers, id)
		}
	}
	r.mu.Unlock()
	for _, w := range ended {
		w.stop()
	}
	r.mu.Lock()
	for id, w := range wanted {
		if r.workers[id] == nil {
			r.workers[id] = w
			go w.run()
		}
	}
	r.links = links
	r.mu.Unlock()
	return r.forget(ctx, links, cursors)
}

// forget drops what is kept of deliveries that are gone.
func (r *Runner) forget(ctx context.Context, links []Link, cursors []Cursor) error {
	gone := map[string]bool{}
	for _, c := range cursors {
		if !slices.ContainsFunc(links, func(l Link) bool { return l.ID == c.Delivery }) {
			gone[c.Delivery] = true
		}
	}
	if len(gone) == 0 {
		return nil
	}
	var errs []error
	for id := range gone {
		errs = append(errs, removeRefused(r.o.Dir, id))
	}
	errs = append(errs, r.o.Store.Update(ctx, func(tx *store.Tx) error {
		for _, c := range cursors {
			if !gone[c.Delivery] {
				continue
			}
			if err := Cursors.Delete(tx, c.ID); err != nil {
				return err
			}
		}
		return nil
	}))
	return errors.Join(errs...)
}

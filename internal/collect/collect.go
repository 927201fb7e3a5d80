// Package collect reads what the daemons of each cluster's controller write and
// keeps it in journals on the control plane's disk: the scheduler log of each
// daemon, its audit log, and the completed jobs. It does so whether or not
// anything is delivered. It knows nothing of deliveries.
package collect

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/journal"
	"github.com/openpcs/openpcs/internal/store"
	"github.com/openpcs/openpcs/internal/tail"
)

// The log types, as the API names them.
const (
	SchedulerLogs = "PCS_SCHEDULER_LOGS"
	AuditLogs     = "PCS_SCHEDULER_AUDIT_LOGS"
	JobLogs       = "PCS_JOBCOMP_LOGS"
)

// Options is what a Collector needs.
type Options struct {
	Store *store.Store
	Dir   string // of the journals
	// MaxBytes bounds each journal, MaxAge what is kept of it.
	MaxBytes int64
	MaxAge   time.Duration
	// Controller reaches the logs of a cluster's controller; nil: by its agent.
	Controller func(fleet.Cluster) Controller
	Log        *slog.Logger
}

// Controller is where the daemons of a cluster write.
type Controller interface {
	tail.Folder
	// Users are the names of the users that the controller knows, by uid.
	Users(ctx context.Context) (map[uint32]string, error)
}

// Collector reads the logs of all clusters.
type Collector struct {
	Options
	cancel context.CancelFunc
	tasks  sync.WaitGroup

	mu       sync.Mutex
	journals map[journal.Key]*journal.Journal
	noted    map[journal.Key]journal.Anchor // as they are in the state file
	changed  chan struct{}
	clusters map[string]*cluster
	releases map[string]string // of slurmctld, by cluster
}

// cluster is one whose logs are read.
type cluster struct {
	id      string
	cancel  context.CancelFunc
	ended   chan struct{}
	sources []*source
}

// kept is a journal's anchor in the state file, so that whoever changes a
// journal has to change that too.
type kept struct {
	Cluster string         `json:"cluster"`
	LogType string         `json:"logType"`
	LogName string         `json:"logName"`
	Anchor  journal.Anchor `json:"anchor"`
}

func (k kept) key() journal.Key {
	return journal.Key{Cluster: k.Cluster, LogType: k.LogType, LogName: k.LogName}
}

// anchors is where they are stored; the parent is the cluster id.
var anchors = store.NewCollection("journal", func(k kept) store.Index {
	return store.Index{ID: k.key().String(), Parent: k.Cluster}
})

// New returns a Collector that does nothing until Start.
func New(o Options) *Collector {
	if o.Controller == nil {
		o.Controller = func(cl fleet.Cluster) Controller { return newAgent(cl) }
	}
	return &Collector{Options: o, journals: map[journal.Key]*journal.Journal{}, noted: map[journal.Key]journal.Anchor{}, changed: make(chan struct{}), clusters: map[string]*cluster{}, releases: map[string]string{}}
}

// How often clusters are looked for, anchors are noted and journals are trimmed.
const (
	lookEvery = time.Second
	noteEvery = 5 * time.Second
	trimEvery = time.Minute
)

// Start opens the journals and begins to read.
func (c *Collector) Start(ctx context.Context) error {
	if err := c.openAll(ctx); err != nil {
		return err
	}
	ctx, c.cancel = context.WithCancel(ctx)
	c.spawn(func() { c.run(ctx) })
	return nil
}

// Stop ends reading and notes where the journals end.
func (c *Collector) Stop() {
	if c.cancel == nil {
		return
	}
	c.cancel()
	c.tasks.Wait()
	if err := c.note(context.Background()); err != nil {
		c.Log.Warn("Where the journals end was not noted", "err", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, j := range c.journals {
		_ = j.Close()
	}
}

func (c *Collector) spawn(f func()) {
	c.tasks.Add(1)
	go func() {
		defer c.tasks.Done()
		f()
	}()
}

// Journals returns the journals of a cluster, of one log type or, with "", of
// all: those that exist.
func (c *Collector) Journals(cluster, logType string) (out []*journal.Journal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k, j := range c.journals {
		if k.Cluster == cluster && (logType == "" || k.LogType == logType) {
			out = append(out, j)
		}
	}
	slices.SortFunc(out, func(a, b *journal.Journal) int { return strings.Compare(a.Key().String(), b.Key().String()) })
	return out
}

// Clusters are those that have journals, those that are gone too.
func (c *Collector) Clusters() (out []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k := range c.journals {
		if !slices.Contains(out, k.Cluster) {
			out = append(out, k.Cluster)
		}
	}
	slices.Sort(out)
	return out
}

// Changed returns a channel that is closed when a journal appears or goes.
func (c *Collector) Changed() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changed
}

func (c *Collector) change() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// Drain returns when what the daemons of a cluster wrote until now is in the
// journals, or ctx ends.
func (c *Collector) Drain(ctx context.Context, id string) {
	c.mu.Lock()
	cl := c.clusters[id]
	c.mu.Unlock()
	if cl == nil {
		return
	}
	for _, s := range cl.sources {
		select {
		case <-s.drained():
		case <-cl.ended:
		case <-ctx.Done():
			return
		}
	}
}

// openAll opens what is on the disk or was noted to be there.
func (c *Collector) openAll(ctx context.Context) error {
	var all []kept
	err := c.Store.View(ctx, func(tx *store.Tx) (err error) {
		all, err = anchors.All(tx)
		return err
	})
	if err != nil {
		return fmt.Errorf("open the journals: %w", err)
	}
	for _, k := range all {
		c.noted[k.key()] = k.Anchor
	}
	dirs, err := filepath.Glob(filepath.Join(c.Dir, "*", "*", "*"))
	if err != nil {
		return err
	}
	for _, dir := range dirs {
		parts := strings.Split(dir, string(filepath.Separator))
		n := len(parts)
		key := journal.Key{Cluster: parts[n-3], LogType: parts[n-2], LogName: parts[n-1]}
		if _, ok := c.noted[key]; !ok {
			c.noted[key] = journal.Anchor{}
		}
	}
	for key := range c.noted {
		if _, err := c.open(key); err != nil {
			// One that cannot be opened must not keep the control plane from
			// starting; its source is tried again.
			c.Log.Error("A journal cannot be opened", "journal", key.String(), "err", err)
		}
	}
	return nil
}

// open returns the journal of a key, which is made if it is not there.
func (c *Collector) open(key journal.Key) (*journal.Journal, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if j := c.journals[key]; j != nil {
		return j, nil
	}
	j, err := journal.Open(c.Dir, key, journal.Options{MaxBytes: c.MaxBytes, MaxAge: c.MaxAge}, c.noted[key])
	if err != nil {
		return nil, err
	}
	if n := j.Cut(); n > 0 {
		c.Log.Info("The end of a journal was not whole, and is read again", "journal", key.String(), "bytes", n)
	}
	c.journals[key] = j
	c.change()
	return j, nil
}

// find returns the journal of a key, nil if there never was one.
func (c *Collector) find(key journal.Key) (*journal.Journal, error) {
	c.mu.Lock()
	j := c.journals[key]
	_, known := c.noted[key]
	c.mu.Unlock()
	if j != nil || !known {
		return j, nil
	}
	return c.open(key) // which did not work at the start
}

// run begins with the logs of clusters as they come, and ends with them.
func (c *Collector) run(ctx context.Context) {
	look, note, trim := time.NewTicker(lookEvery), time.NewTicker(noteEvery), time.NewTicker(trimEvery)
	defer look.Stop()
	defer note.Stop()
	defer trim.Stop()
	for {
		if err := c.look(ctx); err != nil && ctx.Err() == nil {
			c.Log.Warn("Clusters were not looked at for their logs", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		case <-note.C:
			if err := c.note(ctx); err != nil && ctx.Err() == nil {
				c.Log.Warn("Where the journals end was not noted", "err", err)
			}
		case <-trim.C:
			c.trim(ctx, time.Now())
		}
	}
}

func (c *Collector) look(ctx context.Context) error {
	var all []fleet.Cluster
	err := c.Store.View(ctx, func(tx *store.Tx) (err error) {
		all, err = fleet.Clusters.All(tx)
		return err
	})
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, cl := range c.clusters {
		if !slices.ContainsFunc(all, func(f fleet.Cluster) bool { return f.ID == id }) {
			cl.cancel()
			delete(c.clusters, id)
		}
	}
	for _, f := range all {
		if c.clusters[f.ID] != nil || f.ControllerAddress == "" {
			continue
		}
		own, cancel := context.WithCancel(ctx)
		cl := &cluster{id: f.ID, cancel: cancel, ended: make(chan struct{})}
		c.clusters[f.ID] = cl
		controller := c.Controller(f)
		for _, k := range kinds {
			cl.sources = append(cl.sources, newSource(c, f, controller, k))
		}
		var running sync.WaitGroup
		for _, s := range cl.sources {
			running.Add(1)
			c.spawn(func() {
				defer running.Done()
				s.run(own)
			})
		}
		c.spawn(func() { c.users(own, f.ID, controller) })
		c.spawn(func() {
			running.Wait()
			close(cl.ended)
		})
	}
	return nil
}

// note writes down where the journals end, as far as they have changed.
func (c *Collector) note(ctx context.Context) error {
	c.mu.Lock()
	changed := map[journal.Key]journal.Anchor{}
	for key, j := range c.journals {
		if a := j.Anchor(); a != c.noted[key] {
			changed[key] = a
		}
	}
	c.mu.Unlock()
	if len(changed) == 0 {
		return nil
	}
	return c.keep(ctx, changed)
}

func (c *Collector) keep(ctx context.Context, changed map[journal.Key]journal.Anchor) error {
	err := c.Store.Update(ctx, func(tx *store.Tx) error {
		for key, a := range changed {
			if err := anchors.Put(tx, kept{key.Cluster, key.LogType, key.LogName, a}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("note where the journals end: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for key, a := range changed {
		c.noted[key] = a
	}
	return nil
}

// trim removes what is too old or too much, and journals of clusters that are
// gone when all of them is too old.
func (c *Collector) trim(ctx context.Context, now time.Time) {
	c.mu.Lock()
	all := map[journal.Key]*journal.Journal{}
	for key, j := range c.journals {
		all[key] = j
	}
	c.mu.Unlock()
	for key, j := range all {
		err := j.Trim(now, func(a journal.Anchor) error {
			return c.keep(ctx, map[journal.Key]journal.Anchor{key: a})
		})
		if err != nil {
			c.Log.Warn("A journal was not trimmed", "err", err)
		}
		c.mu.Lock()
		_, lives := c.clusters[key.Cluster]
		c.mu.Unlock()
		if newest := j.Newest(); !lives && c.MaxAge > 0 && now.Sub(newest) > c.MaxAge {
			if err := c.remove(ctx, key, j); err != nil {
				c.Log.Warn("A journal was not removed", "journal", key.String(), "err", err)
			}
		}
	}
}

func (c *Collector) remove(ctx context.Context, key journal.Key, j *journal.Journal) error {
	err := c.Store.Update(ctx, func(tx *store.Tx) error { return anchors.Delete(tx, key.String()) })
	if err != nil {
		return err
	}
	c.mu.Lock()
	delete(c.journals, key)
	delete(c.noted, key)
	last := true
	for other := range c.journals {
		last = last && other.Cluster != key.Cluster
	}
	c.change()
	c.mu.Unlock()
	err = j.Remove()
	if last {
		err = errors.Join(err, os.RemoveAll(filepath.Join(c.Dir, key.Cluster)), c.Store.Update(ctx, func(tx *store.Tx) error {
			return people.Delete(tx, key.Cluster)
		}))
	}
	return err
}

// Anchor is what the state file has noted of a journal.
func (c *Collector) Anchor(ctx context.Context, key journal.Key) (a journal.Anchor, err error) {
	err = c.Store.View(ctx, func(tx *store.Tx) error {
		k, err := anchors.Get(tx, key.String())
		if errors.Is(err, store.ErrNotFound) {
			return nil // it has just begun
		}
		a = k.Anchor
		return err
	})
	return a, err
}

// setRelease notes which release of Slurm a cluster's slurmctld is.
func (c *Collector) setRelease(cluster, name, release string) {
	if name != "slurmctld" || release == "" {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.releases[cluster] = release
}

func (c *Collector) releaseOf(cluster string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.releases[cluster]
}

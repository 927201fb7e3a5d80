// Package control makes happen what package fleet decides. For each cluster
// one loop observes, plans and applies: changes of the state file and the
// decision that led to them are one transaction, and effects outside (launch,
// terminate, scontrol) are idempotent and repeated until they are seen. So a
// kill -9 at any point loses nothing and does nothing twice.
package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/openpcs/openpcs/internal/agent"
	"github.com/openpcs/openpcs/internal/awsapi"
	"github.com/openpcs/openpcs/internal/compute"
	"github.com/openpcs/openpcs/internal/condition"
	"github.com/openpcs/openpcs/internal/fault"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/slurm"
	"github.com/openpcs/openpcs/internal/store"
)

// Options is what Control needs.
type Options struct {
	Store    *store.Store
	Provider compute.Provider
	Keys     *awsapi.Keys
	Account  string
	StateDir string // shared homes, controllers' state, kept logs
	Endpoint string // of the API, as instances reach it
	// ResumeTimeout is how long a node may take to come up; 0: 30 minutes.
	ResumeTimeout time.Duration
	Cgroups       bool // instances have a usable cgroup v2 hierarchy
	CheckHardware bool // slurmctld refuses nodes with less than their type
	PrefixBits    int  // length of the bridge's network
	Faults        bool // users may ask for faults
	// Breaker is after how many failed starts in a row a group tries with one
	// launch at a time, ever more slowly; 0: never, as on PCS.
	Breaker int
	// LogLimit is how many bytes the kept logs may take together; 0: any.
	LogLimit int64
	Log      *slog.Logger
	// Forget, when set, is told of each instance that is gone.
	Forget func(instanceID string)
	// Last, when set, is told of each cluster before its controller ends.
	Last func(ctx context.Context, clusterID string)
	// Slurmctld talks to a cluster's controller; nil: to its agent.
	Slurmctld func(fleet.Cluster) Slurmctld
	// Passed, when set, is told of each pass of a cluster's loop.
	Passed func(took time.Duration, err error)
	// Seam, when set, is told of what Control has slurmctld do.
	Seam fault.Seam
}

// Control drives all clusters.
type Control struct {
	Options
	ctx     context.Context
	cancel  context.CancelFunc
	tasks   sync.WaitGroup
	started time.Time

	kept     atomic.Int64 // bytes of kept logs, as far as is known
	trimming sync.Mutex

	mu       sync.Mutex
	loops    map[string]*loop
	busy     map[string]bool // effects under way, by subject
	resumed  announcer
	suspects map[string]time.Time     // seen stopped, since when
	present  map[string]compute.State // the provider's instances
	heard    map[string]time.Time     // when events spoke of them
	appeared map[string]time.Time     // when events said that they started
	doubts   chan string              // instances to be looked at
	// launches and ends bound what the provider is asked for at once.
	launches, ends chan struct{}
}

// What the provider is asked for at once.
const (
	maxLaunches = 8 // measured on two cores: more gain nothing
	// maxEnds keeps Incus from missing the limit of 30 s for its own call
	// when an instance stops: one that missed it can never be stopped again.
	maxEnds = 8
)

// New returns a Control that does nothing until Start.
func New(o Options) *Control {
	c := &Control{Options: o, loops: map[string]*loop{}, busy: map[string]bool{}, present: map[string]compute.State{}, heard: map[string]time.Time{}, appeared: map[string]time.Time{}, suspects: map[string]time.Time{}, doubts: make(chan string, 1024), launches: make(chan struct{}, maxLaunches), ends: make(chan struct{}, maxEnds)}
	if c.Slurmctld == nil {
		c.Slurmctld = func(cl fleet.Cluster) Slurmctld { return newAgentClient(cl) }
	}
	if c.Seam != nil {
		ctld := c.Slurmctld
		c.Slurmctld = func(cl fleet.Cluster) Slurmctld { return &seamed{ctld(cl), c.Seam} }
	}
	return c
}

// Start takes up every cluster of the state file and watches the provider.
func (c *Control) Start(ctx context.Context) error {
	c.ctx, c.cancel = context.WithCancel(ctx)
	c.started = time.Now()
	if c.Breaker == 0 {
		if err := c.closeBreakers(ctx); err != nil {
			return fmt.Errorf("close the breakers: %w", err)
		}
	}
	var clusters []fleet.Cluster
	err := c.Store.View(ctx, func(tx *store.Tx) error {
		var err error
		clusters, err = fleet.Clusters.All(tx)
		return err
	})
	if err != nil {
		return fmt.Errorf("read the clusters: %w", err)
	}
	for _, cl := range clusters {
		c.Wake(cl.ID)
	}
	c.spawn(c.watch)
	return nil
}

// Stop ends all loops and waits for effects under way.
func (c *Control) Stop() {
	if c.cancel != nil {
		c.cancel()
	}
	c.tasks.Wait()
}

func (c *Control) spawn(f func()) {
	c.tasks.Add(1)
	go func() {
		defer c.tasks.Done()
		f()
	}()
}

// loop is one cluster's.
type loop struct {
	id   string
	wake chan struct{}

	mu sync.Mutex
	// nodes is what slurmctld said last; nil until it did.
	nodes map[string]slurm.Node
	since map[string]time.Time // when each came into its state
	// confirmed is when slurmctld told of all nodes last.
	confirmed time.Time
	// poweredUp remembers when POWER_UP was asked for a static node, so that
	// it is not asked again before Slurm shows it.
	poweredUp map[string]time.Time
	// passed is when the last pass began, clockSet when the clock was set, or
	// the machine slept, before one.
	passed, clockSet time.Time
	failing          int  // passes that failed in a row
	troubled         bool // and that it is recorded; known: since the start
	known            bool
	trouble          condition.Code // and as what
}

// Wake makes the cluster's loop look again soon; it never blocks.
func (c *Control) Wake(clusterID string) {
	c.mu.Lock()
	l, ok := c.loops[clusterID]
	if !ok {
		if c.ctx == nil || c.ctx.Err() != nil {
			c.mu.Unlock()
			return
		}
		l = &loop{id: clusterID, wake: make(chan struct{}, 1), poweredUp: map[string]time.Time{}}
		c.loops[clusterID] = l
		c.spawn(func() { c.run(l) })
	}
	c.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

func (c *Control) loop(clusterID string) *loop {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.loops[clusterID]
}

// errGone ends a loop whose cluster is no more.
var errGone = errors.New("the cluster is gone")

// lookAgain bounds how long a loop rests: whatever event was lost, the next
// look repairs it.
const lookAgain = 10 * time.Second

func (c *Control) run(l *loop) {
	log := c.Log.With("cluster", l.id)
	for {
		now := time.Now()
		if !l.passed.IsZero() && clockSet(now.Round(0).Sub(l.passed.Round(0)), now.Sub(l.passed)) {
			l.clockSet = now.UTC()
			log.Warn("Clock was set, or the machine slept: time-outs begin anew")
		}
		l.passed = now
		next, err := c.pass(l)
		if c.Passed != nil && c.ctx.Err() == nil {
			c.Passed(time.Since(now), err)
		}
		if errors.Is(err, errGone) {
			c.mu.Lock()
			delete(c.loops, l.id)
			c.mu.Unlock()
			return
		}
		rest := lookAgain
		switch {
		case c.ctx.Err() != nil:
			return
		case err != nil:
			l.failing++
			c.trouble(l, err)
			rest = min(100*time.Millisecond<<min(l.failing, 6), lookAgain)
			log.Warn("Pass did not finish", "err", err, "again", rest)
		default:
			l.failing = 0
			c.trouble(l, nil)
			if !next.IsZero() {
				rest = max(min(time.Until(next), lookAgain), 0)
			}
		}
		timer := time.NewTimer(rest)
		select {
		case <-c.ctx.Done():
		case <-l.wake:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// troubleAfter is how many passes fail in a row, within two seconds, before
// the cluster shows it: a controller that restarts is no trouble yet.
const troubleAfter = 5

// trouble records that passes of a cluster fail, or that they do no more.
func (c *Control) trouble(l *loop, cause error) {
	code := condition.ControllerUnreachable
	var known *agent.Trouble
	if errors.As(cause, &known) {
		code = known.Code
	}
	// A daemon that does not start was given its time, and is told at once.
	early := known == nil && l.failing < troubleAfter
	if (cause == nil && l.known && !l.troubled) || (cause != nil && (l.troubled && l.trouble == code || early)) {
		return
	}
	err := c.Store.Update(c.ctx, func(tx *store.Tx) error {
		cl, err := fleet.Clusters.Get(tx, l.id)
		if err != nil {
			return ignoreMissing(err)
		}
		kind, detail := "reachable", map[string]any{}
		switch {
		case cause == nil && cl.Trouble == nil:
			return nil
		case cause == nil:
			cl.Trouble = nil
		default:
			cl.Trouble = &fleet.ErrorInfo{Code: code, Message: cause.Error()}
			kind, detail = "unreachable", map[string]any{"error": cause.Error()}
		}
		return errors.Join(fleet.Clusters.Put(tx, cl), event(tx, time.Now().UTC(), l.id, "cluster", kind, detail))
	})
	if err == nil {
		l.known, l.troubled, l.trouble = true, cause != nil, code
	}
}

// clockSet reports whether the clock went another way than time did.
func clockSet(wall, monotonic time.Duration) bool { return (wall - monotonic).Abs() > 5*time.Second }

// once runs f in the background unless the same subject is under way, and
// reports whether it does; the cluster is woken when it is done.
func (c *Control) once(clusterID, subject string, f func(ctx context.Context) error) (began bool) {
	c.mu.Lock()
	if c.busy[subject] {
		c.mu.Unlock()
		return false
	}
	c.busy[subject] = true
	c.mu.Unlock()
	c.spawn(func() {
		err := f(c.ctx)
		c.mu.Lock()
		delete(c.busy, subject)
		c.mu.Unlock()
		if err != nil && c.ctx.Err() == nil {
			c.Log.Warn("Effect did not finish", "cluster", clusterID, "subject", subject, "err", err)
			// Not at once: the loop's rest spaces the tries.
			timer := time.NewTimer(time.Second)
			defer timer.Stop()
			select {
			case <-c.ctx.Done():
			case <-timer.C:
			}
		}
		c.Wake(clusterID)
	})
	return true
}

// event appends to the cluster's history.
func event(tx *store.Tx, now time.Time, clusterID, subject, kind string, detail map[string]any) error {
	if detail == nil {
		detail = map[string]any{}
	}
	doc, err := json.Marshal(detail)
	if err != nil {
		return err
	}
	return tx.Append(store.Event{At: now, Cluster: clusterID, Subject: subject, Kind: kind, Detail: doc})
}

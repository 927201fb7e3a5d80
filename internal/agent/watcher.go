package agent

import (
	"context"
	"log/slog"
	"maps"
	"reflect"
	"sync"
	"time"

	"github.com/openpcs/openpcs/internal/imds"
	"github.com/openpcs/openpcs/internal/slurm"
)

// The watcher asks slurmctld for node states: often while something waits
// for a node, else now and then. One loop serves every gate, so that a
// thousand waiting jobs cost as much as one.
const (
	watchFast = 40 * time.Millisecond
	watchSlow = 2 * time.Second
	// watchWarm is how long after a hook or a command changes are expected.
	watchWarm = 5 * time.Second
)

type watcher struct {
	log  *slog.Logger
	push func(context.Context, imds.Nodes) error
	wake chan struct{}

	mu    sync.Mutex
	gates map[*gate]struct{}
	warm  time.Time // look often until then
	last  map[string]slurm.Node
}

type gate struct {
	began time.Time
	names []string
	done  chan bool
}

func newWatcher(log *slog.Logger, push func(context.Context, imds.Nodes) error) *watcher {
	return &watcher{log: log, push: push, wake: make(chan struct{}, 1), gates: map[*gate]struct{}{}}
}

// poke says that states are about to change.
func (w *watcher) poke() {
	w.mu.Lock()
	w.warm = time.Now().Add(watchWarm)
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// wait returns when every node is ready (true) or one cannot become so.
func (w *watcher) wait(ctx context.Context, names []string) bool {
	g := &gate{began: time.Now(), names: names, done: make(chan bool, 1)}
	w.mu.Lock()
	w.gates[g] = struct{}{}
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		delete(w.gates, g)
		w.mu.Unlock()
	}()
	w.poke()
	select {
	case ready := <-g.done:
		return ready
	case <-ctx.Done():
		return false
	}
}

// verdict says whether a gate may open: when all nodes are ready, or when one
// will not become so (a job never gets a node that is down or powering down, so
// one that is was seen coming up and failed).
func verdict(names []string, nodes map[string]slurm.Node) (ready, decided bool) {
	ready = true
	for _, name := range names {
		n, ok := nodes[name]
		if !ok || n.HasAny("DOWN", "POWER_DOWN", "POWERING_DOWN") {
			return false, true
		}
		ready = ready && n.Ready()
	}
	return ready, ready
}

func (w *watcher) run(ctx context.Context) {
	var last map[string]slurm.Node // what the control plane knows
	for ctx.Err() == nil {
		nodes, err := showNodes(ctx, "")
		if err == nil {
			w.open(nodes)
			changed := imds.Nodes{Full: last == nil, Nodes: map[string]slurm.Node{}}
			for name, n := range nodes {
				if old, ok := last[name]; !ok || !reflect.DeepEqual(old, n) {
					changed.Nodes[name] = n
				}
			}
			for name := range last {
				if _, ok := nodes[name]; !ok {
					changed = imds.Nodes{Full: true, Nodes: nodes}
					break
				}
			}
			if changed.Full || len(changed.Nodes) > 0 {
				if err := w.push(ctx, changed); err != nil {
					w.log.Warn("Node states were not delivered", "err", err)
					last = nil // say all again
				} else {
					last = maps.Clone(nodes)
				}
			}
		}
		w.mu.Lock()
		busy := len(w.gates) > 0 || time.Now().Before(w.warm)
		w.mu.Unlock()
		wait := watchSlow
		if busy {
			wait = watchFast
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-timer.C:
		case <-w.wake:
		}
		timer.Stop()
	}
}

// settle returns when no gate waits that is younger than the grace: those end
// by themselves, older ones belong to nodes that boot slowly. It takes a
// little more than the grace at the most, however many jobs come meanwhile.
func (w *watcher) settle(ctx context.Context, grace time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, grace+time.Second)
	defer cancel()
	for {
		young := false
		w.mu.Lock()
		for g := range w.gates {
			young = young || time.Since(g.began) < grace
		}
		w.mu.Unlock()
		if !young || pause(ctx, watchFast) != nil {
			return
		}
	}
}

// ready reports whether the nodes were ready when last looked at.
func (w *watcher) ready(names []string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	ready, _ := verdict(names, w.last)
	return ready
}

func (w *watcher) open(nodes map[string]slurm.Node) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last = nodes
	for g := range w.gates {
		if ready, decided := verdict(g.names, nodes); decided {
			select {
			case g.done <- ready:
			default:
			}
		}
	}
}

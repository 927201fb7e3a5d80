package fake

import (
	"context"
	"fmt"
	"sync"

	"github.com/openpcs/openpcs/internal/compute"
)

// watcher queues events for one Watch call, so that a slow one holds up
// nobody and misses nothing.
type watcher struct {
	mu     sync.Mutex
	queue  []compute.Event
	broken bool
	wake   chan struct{} // has room for one
}

func (w *watcher) push(ev compute.Event) {
	w.mu.Lock()
	w.queue = append(w.queue, ev)
	w.mu.Unlock()
	w.signal()
}

// fail ends the watch after what is in the queue.
func (w *watcher) fail() {
	w.mu.Lock()
	w.broken = true
	w.mu.Unlock()
	w.signal()
}

func (w *watcher) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *watcher) take() (evs []compute.Event, broken bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	evs, w.queue = w.queue, nil
	return evs, w.broken
}

// Watch implements compute.Provider.
func (p *Provider) Watch(ctx context.Context, ready func(), fn func(compute.Event)) error {
	w := &watcher{wake: make(chan struct{}, 1)}
	p.mu.Lock()
	p.watchers[w] = struct{}{}
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		delete(p.watchers, w)
		p.mu.Unlock()
	}()
	ready()
	for {
		select {
		case <-ctx.Done():
			return fmt.Errorf("watch instances: %w", ctx.Err())
		case <-w.wake:
		}
		evs, broken := w.take()
		for _, ev := range evs {
			fn(ev)
		}
		if broken {
			return fmt.Errorf("watch instances: %w", ErrDisconnected)
		}
	}
}

// emit tells all watchers; p.mu is held, so that events come in the order in
// which things happened.
func (p *Provider) emit(id string, kind compute.EventKind) {
	for w := range p.watchers {
		w.push(compute.Event{ID: id, Kind: kind})
	}
}

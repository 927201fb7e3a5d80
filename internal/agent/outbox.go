package agent

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/openpcs/openpcs/internal/imds"
)

// outbox delivers the calls of slurmctld's programs in the order in which
// they came. Slurm may forget a call as soon as it is answered, so a call is
// answered when the control plane has it; where that is away, it waits here
// behind those before it. What is lost with the controller, the control
// plane finds out by what Slurm shows.
type outbox struct {
	log     *slog.Logger
	deliver func(context.Context, imds.Hook) error
	wake    chan struct{}

	mu      sync.Mutex
	waiting []imds.Hook
}

// deliverLimit is how long a call holds slurmctld up at the most.
const deliverLimit = time.Second

func newOutbox(log *slog.Logger, deliver func(context.Context, imds.Hook) error) *outbox {
	return &outbox{log: log, deliver: deliver, wake: make(chan struct{}, 1)}
}

// send delivers the call, or leaves it to run.
func (o *outbox) send(ctx context.Context, h imds.Hook) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.waiting) == 0 {
		once, cancel := context.WithTimeout(ctx, deliverLimit)
		defer cancel()
		err := o.deliver(once, h)
		if err == nil {
			return
		}
		o.log.Warn("Hook is delivered later", "kind", h.Kind, "nodes", h.Nodes, "err", err)
	}
	o.waiting = append(o.waiting, h)
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// run delivers what waits until ctx ends.
func (o *outbox) run(ctx context.Context) {
	for {
		o.mu.Lock()
		var next *imds.Hook
		if len(o.waiting) > 0 {
			next = &o.waiting[0]
		}
		o.mu.Unlock()
		if next == nil {
			select {
			case <-ctx.Done():
				return
			case <-o.wake:
			}
			continue
		}
		err := retry(ctx, func() error { return o.deliver(ctx, *next) })
		if ctx.Err() != nil {
			return
		}
		var refused permanent
		if errors.As(err, &refused) {
			o.log.Error("Hook was refused", "kind", next.Kind, "nodes", next.Nodes, "err", err)
		}
		o.mu.Lock()
		o.waiting = o.waiting[1:]
		o.mu.Unlock()
	}
}

package incus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/coder/websocket"

	"github.com/openpcs/openpcs/internal/compute"
)

// event is a message on the event stream.
type event struct {
	Type     string    `json:"type"`
	Project  string    `json:"project"`
	Metadata lifecycle `json:"metadata"`
}

// lifecycle is the body of an event of that type.
type lifecycle struct {
	Action string `json:"action"`
	Source string `json:"source"`
	Name   string `json:"name"`
}

// probeInterval is how long Watch waits for its own event before trying again. It
// comes within a millisecond if it comes at all.
const probeInterval = 100 * time.Millisecond

// Watch implements compute.Provider.
//
// Incus opens the stream a moment before it starts to fill it. To be sure
// that nothing is missed, Watch updates the project, without any change, until
// it hears of that, and only then calls ready.
func (p *Provider) Watch(ctx context.Context, ready func(), fn func(compute.Event)) error {
	caller := ctx
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	conn, err := p.api.dial(ctx, "/1.0/events", url.Values{"type": {"lifecycle"}}, true)
	if err != nil {
		return fmt.Errorf("watch instances: %w", err)
	}
	defer conn.CloseNow()

	var probed sync.Once
	heard := make(chan struct{})
	probeErr := make(chan error, 1)
	go func() {
		if err := p.probe(ctx, heard); err != nil {
			probeErr <- err
			cancel()
		}
	}()

	for {
		_, b, err := conn.Read(ctx)
		if err != nil {
			// A read that is cut off says so in the connection's words.
			select {
			case err = <-probeErr:
			default:
				if caller.Err() != nil {
					err = caller.Err()
				}
			}
			return fmt.Errorf("watch instances: %w", err)
		}
		var ev event
		if err := json.Unmarshal(b, &ev); err != nil {
			return fmt.Errorf("watch instances: decode event: %w", err)
		}
		if ev.Metadata.Action == "project-updated" {
			probed.Do(func() {
				close(heard)
				ready()
			})
			continue
		}
		if out, ok := ev.Metadata.event(); ok {
			fn(out)
		}
	}
}

// probe makes the project emit an event until heard is closed.
func (p *Provider) probe(ctx context.Context, heard <-chan struct{}) error {
	t := time.NewTicker(probeInterval)
	defer t.Stop()
	for {
		err := p.api.call(ctx, http.MethodPatch, projectPath(p.opts.Project), inDefault, struct{}{}, nil)
		if err != nil {
			return fmt.Errorf("provoke an event: %w", err)
		}
		select {
		case <-heard:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-t.C:
		}
	}
}

// event translates what Incus reports; most of it is of no interest here. An
// instance that stops by itself or crashes is reported as instance-shutdown,
// one that was stopped through the API as instance-stopped.
func (l lifecycle) event() (compute.Event, bool) {
	var kind compute.EventKind
	switch l.Action {
	case "instance-started", "instance-restarted":
		kind = compute.Started
	case "instance-stopped", "instance-shutdown":
		kind = compute.Halted
	case "instance-deleted":
		kind = compute.Deleted
	default:
		return compute.Event{}, false
	}
	name := l.Name
	if name == "" {
		path, _, _ := strings.Cut(l.Source, "?")
		name = strings.TrimPrefix(path, "/1.0/instances/")
	}
	if name == "" || isWarmer(name) {
		return compute.Event{}, false
	}
	return compute.Event{ID: name, Kind: kind}, true
}

// isClosed reports whether err is what reading from a websocket that the
// server closed gives. Incus often just closes the connection.
func isClosed(err error) bool {
	return websocket.CloseStatus(err) != -1 || errors.Is(err, io.EOF) ||
		errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, net.ErrClosed)
}

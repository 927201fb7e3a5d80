package ssm

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/openpcs/openpcs/internal/store"
)

const (
	// purgeEvery is how often old commands are removed.
	purgeEvery = time.Hour
	// graceTime is what a runner may take beyond the timeout to end a script.
	graceTime = 30 * time.Second
)

// enqueue hands a command to the loop. A full queue is no loss: the command is in
// the store, and the loop looks there when it has caught up.
func (s *SSM) enqueue(id string) {
	select {
	case s.queue <- id:
	default:
		s.missed.Store(true)
	}
}

// Start settles what an earlier process left behind and begins to execute
// commands, until Stop. What ctx carries is used, its end is not.
func (s *SSM) Start(ctx context.Context) error {
	if err := s.adopt(ctx); err != nil {
		return fmt.Errorf("adopt commands of an earlier run: %w", err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	s.stop = func() {
		cancel()
		<-done
	}
	go func() {
		defer close(done)
		s.loop(ctx)
	}()
	return nil
}

// Stop interrupts what runs and returns when all of it ended.
func (s *SSM) Stop() {
	if s.stop != nil {
		s.stop()
	}
}

// loop executes commands until ctx ends, and waits for those that run.
func (s *SSM) loop(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	tick := time.NewTicker(purgeEvery)
	defer tick.Stop()
	begun := map[string]bool{}
	ended := make(chan string)
	begin := func(id string) {
		if begun[id] {
			return
		}
		begun[id] = true
		wg.Go(func() {
			s.execute(ctx, id)
			select {
			case ended <- id:
			case <-ctx.Done():
			}
		})
	}
	for _, id := range s.waiting(ctx) {
		begin(id)
	}
	for {
		select {
		case <-ctx.Done():
			return
		case id := <-s.queue:
			begin(id)
			if len(s.queue) == 0 && s.missed.Swap(false) {
				for _, id := range s.waiting(ctx) {
					begin(id)
				}
			}
		case id := <-ended:
			delete(begun, id)
		case <-tick.C:
			if err := s.purge(ctx); err != nil {
				s.log.ErrorContext(ctx, "purge old commands", "error", err)
			}
		}
	}
}

// adopt marks what an earlier process was doing when it ended.
func (s *SSM) adopt(ctx context.Context) error {
	if err := s.purge(ctx); err != nil {
		return err
	}
	return s.store.Update(ctx, func(tx *store.Tx) error {
		all, err := invocations.All(tx)
		if err != nil {
			return err
		}
		for _, i := range all {
			if i.Status != inProgress {
				continue
			}
			i.Status, i.Details, i.EndedAt = failed, "Undeliverable", s.now()
			i.Stderr = cut(i.Stderr+"openpcs was restarted while the command ran: whether it ended, and how, is not known.\n", maxOutput)
			if err := invocations.Put(tx, i); err != nil {
				return err
			}
		}
		return nil
	})
}

// purge removes commands that are older than keepFor.
func (s *SSM) purge(ctx context.Context) error {
	limit := s.now().Add(-keepFor)
	return s.store.Update(ctx, func(tx *store.Tx) error {
		all, err := commands.All(tx)
		if err != nil {
			return err
		}
		for _, c := range all {
			if !c.RequestedAt.Before(limit) {
				continue
			}
			for _, id := range c.Expanded {
				if err := invocations.Delete(tx, Invocation{CommandID: c.ID, InstanceID: id}.id()); err != nil {
					return err
				}
			}
			if err := commands.Delete(tx, c.ID); err != nil {
				return err
			}
		}
		return nil
	})
}

// waiting returns the commands with invocations that were not begun.
func (s *SSM) waiting(ctx context.Context) []string {
	var out []string
	err := s.store.View(ctx, func(tx *store.Tx) error {
		all, err := invocations.All(tx)
		seen := map[string]bool{}
		for _, i := range all {
			if i.Status == pending && !seen[i.CommandID] {
				seen[i.CommandID] = true
				out = append(out, i.CommandID)
			}
		}
		return err
	})
	if err != nil && ctx.Err() == nil {
		s.log.ErrorContext(ctx, "look for waiting commands", "error", err)
	}
	return out
}

// execute runs a command on its instances: MaxConcurrency at a time, and on
// no more of them once more than MaxErrors failed.
func (s *SSM) execute(ctx context.Context, id string) {
	var c Command
	var is []Invocation
	err := s.store.View(ctx, func(tx *store.Tx) error {
		var err error
		if c, err = commands.Get(tx, id); err != nil {
			return err
		}
		is, err = invocations.Of(tx, id)
		return err
	})
	if err != nil {
		if ctx.Err() == nil {
			s.log.ErrorContext(ctx, "read command", "command", id, "error", err)
		}
		return
	}
	atOnce, _ := share(c.MaxConcurrency, len(is)) // checked when it was sent
	maxErrors, _ := share(c.MaxErrors, len(is))
	turns := make(chan struct{}, max(1, atOnce))
	var wg sync.WaitGroup
	defer wg.Wait()
	var mu sync.Mutex
	bad := 0
	for _, i := range is {
		if i.Status != pending {
			continue
		}
		select {
		case turns <- struct{}{}:
		case <-ctx.Done():
			return
		}
		mu.Lock()
		stop := bad > maxErrors
		mu.Unlock()
		wg.Go(func() {
			defer func() { <-turns }()
			if stop {
				s.settle(ctx, i, func(i *Invocation) { i.Status, i.Details, i.EndedAt = cancelled, "Terminated", s.now() })
				return
			}
			if !s.invoke(ctx, c, i) {
				mu.Lock()
				bad++
				mu.Unlock()
			}
		})
	}
}

// invoke runs a command on one instance and reports whether it succeeded.
func (s *SSM) invoke(ctx context.Context, c Command, i Invocation) bool {
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-ctx.Done():
		return false // it stays pending, for the next process
	}
	userCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.mu.Lock()
	s.running[i.id()] = cancel
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.running, i.id())
		s.mu.Unlock()
	}()

	late := s.now().Sub(c.RequestedAt) > c.Delivery
	begun := s.settle(ctx, i, func(i *Invocation) {
		if late {
			i.Status, i.Details, i.EndedAt = timedOut, "DeliveryTimedOut", s.now()
			return
		}
		i.Status, i.Details, i.StartedAt = inProgress, inProgress, s.now()
	})
	if late || !begun {
		return !late
	}
	script := strings.Join(c.Parameters["commands"], "\n") + "\n"
	dir := strings.Join(c.Parameters["workingDirectory"], "")
	if dir != "" {
		dir = path.Clean(dir)
	}
	// The runner keeps the time; this bounds one that does not.
	runCtx, stop := context.WithTimeout(userCtx, c.Execution+graceTime)
	defer stop()
	stdout, stderr, code, err := s.run(runCtx, i.InstanceID, script, dir, c.Execution)
	if err != nil && ctx.Err() != nil {
		return false // the process ends: the next one settles it
	}
	succeeded := err == nil && code == 0
	s.settle(context.WithoutCancel(ctx), i, func(i *Invocation) {
		i.Stdout, i.Stderr, i.EndedAt = cut(text(stdout), maxOutput), cut(text(stderr), maxOutput), s.now()
		switch {
		case succeeded:
			i.Status, i.Details, i.Code = success, success, 0
		case userCtx.Err() != nil:
			i.Status, i.Details = cancelled, cancelled
		case errors.Is(err, context.DeadlineExceeded):
			i.Status, i.Details = timedOut, "ExecutionTimedOut"
			i.Stderr = cut(i.Stderr+fmt.Sprintf("\nThe command did not end within %s.\n", c.Execution), maxOutput)
		case err != nil:
			i.Status, i.Details = failed, "Undeliverable"
			i.Stderr = cut(i.Stderr+"\nThe command could not run: "+err.Error()+"\n", maxOutput)
		default:
			i.Status, i.Details, i.Code = failed, failed, code
		}
	})
	return succeeded
}

// run is the runner with a panic turned into an error.
func (s *SSM) run(ctx context.Context, id, script, dir string, timeout time.Duration) (stdout, stderr []byte, code int, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("run command: panic: %v", p)
		}
	}()
	return s.runner.Run(ctx, id, script, dir, timeout)
}

// settle changes an invocation that is not over; it reports whether it did.
func (s *SSM) settle(ctx context.Context, i Invocation, change func(i *Invocation)) bool {
	done := false
	err := s.store.Update(ctx, func(tx *store.Tx) error {
		now, err := invocations.Get(tx, i.id())
		if err != nil || now.over() {
			return err
		}
		change(&now)
		done = true
		return invocations.Put(tx, now)
	})
	if err != nil {
		if ctx.Err() == nil {
			s.log.ErrorContext(ctx, "record command", "command", i.CommandID, "instance", i.InstanceID, "error", err)
		}
		return false
	}
	return done
}

// text makes valid UTF-8 of an output.
func text(b []byte) string { return strings.ToValidUTF8(string(b), "\uFFFD") }

// cut returns at most n characters of s.
func cut(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	return string([]rune(s)[:n])
}

package fake_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/openpcs/openpcs/internal/compute"
	"github.com/openpcs/openpcs/internal/compute/fake"
)

func spec(p *fake.Provider, id string) compute.Spec {
	ref, err := p.ImportImage(context.Background(), compute.Image{Name: "ami"})
	if err != nil {
		panic(err)
	}
	return compute.Spec{ID: id, Image: ref, Labels: map[string]string{"k": "v"}}
}

// watch collects events until the test ends; the returned function waits
// until all is quiet and gives them out.
func watch(t *testing.T, p *fake.Provider) func() []compute.Event {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	var mu sync.Mutex
	var got []compute.Event
	ready := make(chan struct{})
	go p.Watch(ctx, func() { close(ready) }, func(ev compute.Event) {
		mu.Lock()
		defer mu.Unlock()
		got = append(got, ev)
	})
	<-ready
	return func() []compute.Event {
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		out := got
		got = nil
		return out
	}
}

func kinds(evs []compute.Event) (out []compute.EventKind) {
	for _, ev := range evs {
		out = append(out, ev.Kind)
	}
	return out
}

func TestLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := fake.New(fake.Options{})
		events := watch(t, p)
		s := spec(p, "i-1")
		for _, c := range []struct {
			name  string
			do    func() error
			want  []compute.EventKind
			state compute.State
		}{
			{"launch", func() error { return p.Launch(t.Context(), s) }, []compute.EventKind{compute.Started}, compute.Running},
			{"launch_again", func() error { return p.Launch(t.Context(), s) }, nil, compute.Running},
			{"reboot", func() error { return p.Reboot(t.Context(), s.ID) }, []compute.EventKind{compute.Started}, compute.Running},
			{"crash", func() error { return p.Crash(s.ID) }, []compute.EventKind{compute.Halted}, compute.Stopped},
			{"launch_after_crash", func() error { return p.Launch(t.Context(), s) }, []compute.EventKind{compute.Started}, compute.Running},
			{"terminate", func() error { return p.Terminate(t.Context(), s.ID) }, []compute.EventKind{compute.Halted, compute.Deleted}, ""},
			{"terminate_again", func() error { return p.Terminate(t.Context(), s.ID) }, nil, ""},
		} {
			if err := c.do(); err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
			if got := kinds(events()); !slices.Equal(got, c.want) {
				t.Errorf("%s: events %v, want %v", c.name, got, c.want)
			}
			all, err := p.List(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			switch {
			case c.state == "" && len(all) != 0:
				t.Errorf("%s: there is %v", c.name, all)
			case c.state != "" && (len(all) != 1 || all[0].State != c.state || all[0].Labels["k"] != "v"):
				t.Errorf("%s: there is %v, want one %s", c.name, all, c.state)
			}
		}
		if err := p.Reboot(t.Context(), s.ID); !errors.Is(err, compute.ErrNotFound) {
			t.Errorf("reboot of nothing: %v", err)
		}
		if p.Launches() != 1 {
			t.Errorf("%d launches", p.Launches())
		}
	})
}

func TestHooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		full := &compute.CapacityError{Code: "InsufficientInstanceCapacity", Err: errors.New("full")}
		var fail error
		p := fake.New(fake.Options{
			Latency: func(op fake.Op, _ string) time.Duration {
				if op == fake.OpLaunch {
					return time.Minute
				}
				return 0
			},
			LaunchError: func(compute.Spec) error { return fail },
			Exec: func(id string, cmd compute.Command) (compute.Result, error) {
				return compute.Result{Stdout: fmt.Appendf(nil, "%s %v", id, cmd.Argv)}, nil
			},
		})
		s := spec(p, "i-1")
		fail = full
		start := time.Now()
		var ce *compute.CapacityError
		if err := p.Launch(t.Context(), s); !errors.As(err, &ce) {
			t.Errorf("got %v", err)
		}
		if d := time.Since(start); d != time.Minute {
			t.Errorf("took %v", d)
		}
		fail = nil
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := p.Launch(ctx, s); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		if err := p.Launch(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		other := s
		other.ID = "i-2"
		other.Image = "none"
		if err := p.Launch(t.Context(), other); !errors.Is(err, compute.ErrNotFound) {
			t.Errorf("launch without an image: %v", err)
		}
		res, err := p.Exec(t.Context(), s.ID, compute.Command{Argv: []string{"a", "b"}})
		if err != nil || string(res.Stdout) != "i-1 [a b]" {
			t.Errorf("exec: %s, %v", res.Stdout, err)
		}
	})
}

func TestDisconnect(t *testing.T) {
	p := fake.New(fake.Options{})
	ended := make(chan error, 1)
	ready := make(chan struct{})
	var got []compute.Event
	go func() {
		ended <- p.Watch(t.Context(), func() { close(ready) }, func(ev compute.Event) { got = append(got, ev) })
	}()
	<-ready
	if err := p.Launch(t.Context(), spec(p, "i-1")); err != nil {
		t.Fatal(err)
	}
	p.Disconnect()
	if err := <-ended; !errors.Is(err, fake.ErrDisconnected) {
		t.Errorf("got %v", err)
	}
	if len(got) != 1 {
		t.Errorf("what happened before is lost: %v", got)
	}
	p.Vanish("i-1", true)
	if all, _ := p.List(t.Context()); len(all) != 0 {
		t.Errorf("there is %v", all)
	}
}

// TestScale launches as many instances at once as the largest cluster has.
func TestScale(t *testing.T) {
	const n = 2048
	synctest.Test(t, func(t *testing.T) {
		p := fake.New(fake.Options{Latency: func(fake.Op, string) time.Duration { return time.Second }})
		events := watch(t, p)
		base := spec(p, "")
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() {
				s := base
				s.ID = fmt.Sprintf("i-%d", i)
				s.Address = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 77, byte(i >> 8), byte(i)}), 16)
				if err := p.Launch(t.Context(), s); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if got := events(); len(got) != n {
			t.Errorf("%d events", len(got))
		}
		if err := p.Remove(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := events(); len(got) != 2*n {
			t.Errorf("%d events", len(got))
		}
	})
}

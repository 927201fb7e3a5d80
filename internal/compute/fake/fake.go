// Package fake is a compute provider without any machines behind it: it keeps
// instances in memory, takes as long and fails as often as a test wants, and
// can lose them. It must behave as the incus provider does as far as callers
// can tell, and must import nothing but internal/compute.
package fake

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/openpcs/openpcs/internal/compute"
)

// Op names a method of the provider in hooks.
type Op string

// The operations that hooks are asked about.
const (
	OpLaunch    Op = "launch"
	OpTerminate Op = "terminate"
	OpReboot    Op = "reboot"
	OpList      Op = "list"
	OpExec      Op = "exec"
	OpImport    Op = "import"
)

// ErrDisconnected is what Watch returns after Disconnect.
var ErrDisconnected = errors.New("connection to the fake provider lost")

// Options are the hooks by which a test decides what happens. All are
// optional, may be called concurrently, and must not call the provider. For
// operations that are not about one instance, id is empty.
type Options struct {
	// Latency is how long an operation takes before it has its effect.
	Latency func(op Op, id string) time.Duration
	// Fail makes an operation fail, after its latency and without effect.
	Fail func(op Op, id string) error
	// LaunchError makes a launch fail, likewise, knowing what is launched.
	LaunchError func(spec compute.Spec) error
	// Nothing makes a launch succeed without an instance.
	Nothing func(spec compute.Spec) bool
	// Exec is what a command does; without it all succeed silently.
	Exec func(id string, cmd compute.Command) (compute.Result, error)
	// Host is what Setup returns; 10.77.0.1/16 on openpcs0 if zero.
	Host compute.Host
	// Now is the clock behind Instance.CreatedAt; time.Now if nil.
	Now func() time.Time
}

// Provider implements compute.Provider in memory.
type Provider struct {
	opts Options

	mu        sync.Mutex
	instances map[string]*instance
	images    map[string]compute.Image
	watchers  map[*watcher]struct{}
	launches  int
}

var _ compute.Provider = (*Provider)(nil)

type instance struct {
	spec    compute.Spec
	state   compute.State
	created time.Time
	console []byte
	files   map[string][]byte
}

// New returns an empty provider.
func New(opts Options) *Provider {
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if opts.Host == (compute.Host{}) {
		opts.Host = compute.Host{Bridge: "openpcs0", Gateway: netip.MustParsePrefix("10.77.0.1/16")}
	}
	return &Provider{
		opts:      opts,
		instances: map[string]*instance{},
		images:    map[string]compute.Image{},
		watchers:  map[*watcher]struct{}{},
	}
}

// enter lets time pass and an error happen as the hooks say.
func (p *Provider) enter(ctx context.Context, op Op, id string) error {
	if p.opts.Latency != nil {
		if d := p.opts.Latency(op, id); d > 0 {
			t := time.NewTimer(d)
			defer t.Stop()
			select {
			case <-t.C:
			case <-ctx.Done():
			}
		}
	}
	err := ctx.Err()
	if err == nil && p.opts.Fail != nil {
		err = p.opts.Fail(op, id)
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", op, id, err)
	}
	return nil
}

// Setup implements compute.Provider.
func (p *Provider) Setup(context.Context) (compute.Host, error) { return p.opts.Host, nil }

// Remove implements compute.Provider.
func (p *Provider) Remove(context.Context) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id := range p.instances {
		p.drop(id)
	}
	clear(p.images)
	return nil
}

// ImportImage implements compute.Provider. The files are not looked at.
func (p *Provider) ImportImage(ctx context.Context, img compute.Image) (string, error) {
	if err := p.enter(ctx, OpImport, ""); err != nil {
		return "", err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	img.Ref = "fake-" + img.Name
	p.images[img.Ref] = img
	return img.Ref, nil
}

// DeleteImage implements compute.Provider.
func (p *Provider) DeleteImage(_ context.Context, ref string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.images, ref)
	return nil
}

// Launch implements compute.Provider.
func (p *Provider) Launch(ctx context.Context, spec compute.Spec) error {
	if err := p.enter(ctx, OpLaunch, spec.ID); err != nil {
		return err
	}
	if p.opts.LaunchError != nil {
		if err := p.opts.LaunchError(spec); err != nil {
			return fmt.Errorf("launch %s: %w", spec.ID, err)
		}
	}
	if p.opts.Nothing != nil && p.opts.Nothing(spec) {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	i, ok := p.instances[spec.ID]
	if !ok {
		if _, ok := p.images[spec.Image]; !ok {
			return fmt.Errorf("launch %s: find image %s: %w", spec.ID, spec.Image, compute.ErrNotFound)
		}
		for _, other := range p.instances {
			if other.spec.Address.IsValid() && other.spec.Address == spec.Address {
				return fmt.Errorf("launch %s: address %s is taken by %s", spec.ID, spec.Address, other.spec.ID)
			}
		}
		spec.Labels = maps.Clone(spec.Labels)
		spec.Mounts = slices.Clone(spec.Mounts)
		i = &instance{spec: spec, state: compute.Stopped, created: p.opts.Now(), files: map[string][]byte{}}
		p.instances[spec.ID] = i
		p.launches++
	}
	if i.state != compute.Running {
		i.state = compute.Running
		p.emit(spec.ID, compute.Started)
	}
	return nil
}

// Terminate implements compute.Provider.
func (p *Provider) Terminate(ctx context.Context, id string) error {
	if err := p.enter(ctx, OpTerminate, id); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drop(id)
	return nil
}

// drop stops and deletes an instance; p.mu is held.
func (p *Provider) drop(id string) {
	i, ok := p.instances[id]
	if !ok {
		return
	}
	if i.state == compute.Running {
		p.emit(id, compute.Halted)
	}
	delete(p.instances, id)
	p.emit(id, compute.Deleted)
}

// Reboot implements compute.Provider. As with Incus, only its end is an event.
func (p *Provider) Reboot(ctx context.Context, id string) error {
	if err := p.enter(ctx, OpReboot, id); err != nil {
		return err
	}
	return p.with(id, func(i *instance) {
		i.state = compute.Running
		p.emit(id, compute.Started)
	})
}

// with calls fn with an instance, p.mu held.
func (p *Provider) with(id string, fn func(*instance)) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	i, ok := p.instances[id]
	if !ok {
		return fmt.Errorf("find instance %s: %w", id, compute.ErrNotFound)
	}
	fn(i)
	return nil
}

// List implements compute.Provider. Instances are sorted by ID.
func (p *Provider) List(ctx context.Context) ([]compute.Instance, error) {
	if err := p.enter(ctx, OpList, ""); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make([]compute.Instance, 0, len(p.instances))
	for _, id := range slices.Sorted(maps.Keys(p.instances)) {
		i := p.instances[id]
		out = append(out, compute.Instance{ID: id, State: i.state, Labels: maps.Clone(i.spec.Labels), CreatedAt: i.created})
	}
	return out, nil
}

// Exec implements compute.Provider.
func (p *Provider) Exec(ctx context.Context, id string, cmd compute.Command) (compute.Result, error) {
	if err := p.enter(ctx, OpExec, id); err != nil {
		return compute.Result{}, err
	}
	var state compute.State
	if err := p.with(id, func(i *instance) { state = i.state }); err != nil {
		return compute.Result{}, err
	}
	if state != compute.Running {
		return compute.Result{}, fmt.Errorf("run command in instance %s: it is not running", id)
	}
	if p.opts.Exec == nil {
		return compute.Result{}, nil
	}
	return p.opts.Exec(id, cmd)
}

// Console implements compute.Provider; see SetConsole.
func (p *Provider) Console(_ context.Context, id string) (b []byte, err error) {
	err = p.with(id, func(i *instance) { b = slices.Clone(i.console) })
	return b, err
}

// ReadFile implements compute.Provider; see SetFile.
func (p *Provider) ReadFile(_ context.Context, id, path string) (b []byte, err error) {
	found := false
	err = p.with(id, func(i *instance) { b, found = i.files[path] })
	if err == nil && !found {
		err = fmt.Errorf("read %s of instance %s: %w", path, id, compute.ErrNotFound)
	}
	return slices.Clone(b), err
}

// ShellCommand implements compute.Provider with a harmless command.
func (p *Provider) ShellCommand(id string, argv []string) (command, env []string) {
	return append([]string{"echo", id}, argv...), nil
}

// Crash stops an instance as a failure of its machine would.
func (p *Provider) Crash(id string) error {
	return p.with(id, func(i *instance) {
		if i.state == compute.Running {
			i.state = compute.Stopped
			p.emit(id, compute.Halted)
		}
	})
}

// Vanish deletes an instance behind the control plane's back. With silent set
// no event tells of it, so that only List can.
func (p *Provider) Vanish(id string, silent bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if silent {
		delete(p.instances, id)
		return
	}
	p.drop(id)
}

// Disconnect ends all Watch calls that are under way, as the restart of an
// engine does. Events from now to the next Watch are lost.
func (p *Provider) Disconnect() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for w := range p.watchers {
		w.fail()
	}
	clear(p.watchers)
}

// SetConsole says what an instance wrote to its console.
func (p *Provider) SetConsole(id string, b []byte) error {
	return p.with(id, func(i *instance) { i.console = slices.Clone(b) })
}

// SetFile gives an instance a file.
func (p *Provider) SetFile(id, path string, b []byte) error {
	return p.with(id, func(i *instance) { i.files[path] = slices.Clone(b) })
}

// Spec returns what an instance was launched with.
func (p *Provider) Spec(id string) (spec compute.Spec, ok bool) {
	err := p.with(id, func(i *instance) { spec = i.spec })
	return spec, err == nil
}

// Launches returns how many instances were ever made.
func (p *Provider) Launches() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.launches
}

package fault

import (
	"context"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/openpcs/openpcs/internal/compute"
)

// Seam is told of each crossing between the control plane and what outlasts
// it: the state file, the provider, slurmctld. A crossing is named
// provider/Launch/before or commit/control.launched/after. Between two
// crossings nothing happens that a kill could leave half done, so killing at
// each of them is killing everywhere.
type Seam func(point string)

// Cross calls f between two crossings.
func (s Seam) Cross(name string, f func()) {
	if s != nil {
		s(name + "/before")
	}
	f()
	if s != nil {
		s(name + "/after")
	}
}

// KillAt returns a seam that kills the process at the nth crossing of a
// point, given as point or point#n, or some time after it, given as
// point+200ms: in the middle of what begins there. An empty point gives none.
func KillAt(point string) Seam {
	if point == "" {
		return nil
	}
	name, after, _ := strings.Cut(point, "+")
	wait, _ := time.ParseDuration(after)
	name, nth, ok := strings.Cut(name, "#")
	left := int64(1)
	if n, err := strconv.ParseInt(nth, 10, 64); ok && err == nil {
		left = n
	}
	kill := func() { _ = syscall.Kill(syscall.Getpid(), syscall.SIGKILL) }
	var crossed atomic.Int64
	return func(p string) {
		if p != name || crossed.Add(1) != left {
			return
		}
		if wait > 0 {
			time.AfterFunc(wait, kill)
			return
		}
		kill()
		select {}
	}
}

// Provider tells a seam of all that changes something at the provider.
func Provider(p compute.Provider, s Seam) compute.Provider {
	if s == nil {
		return p
	}
	return &provider{p, s}
}

type provider struct {
	compute.Provider
	seam Seam
}

func (p *provider) ImportImage(ctx context.Context, img compute.Image) (ref string, err error) {
	p.seam.Cross("provider/ImportImage", func() { ref, err = p.Provider.ImportImage(ctx, img) })
	return ref, err
}

func (p *provider) DeleteImage(ctx context.Context, ref string) (err error) {
	p.seam.Cross("provider/DeleteImage", func() { err = p.Provider.DeleteImage(ctx, ref) })
	return err
}

func (p *provider) Launch(ctx context.Context, spec compute.Spec) (err error) {
	p.seam.Cross("provider/Launch/"+spec.Role, func() { err = p.Provider.Launch(ctx, spec) })
	return err
}

func (p *provider) Terminate(ctx context.Context, id string) (err error) {
	p.seam.Cross("provider/Terminate", func() { err = p.Provider.Terminate(ctx, id) })
	return err
}

func (p *provider) Reboot(ctx context.Context, id string) (err error) {
	p.seam.Cross("provider/Reboot", func() { err = p.Provider.Reboot(ctx, id) })
	return err
}

func (p *provider) List(ctx context.Context) (all []compute.Instance, err error) {
	p.seam.Cross("provider/List", func() { all, err = p.Provider.List(ctx) })
	return all, err
}

func (p *provider) Exec(ctx context.Context, id string, cmd compute.Command) (r compute.Result, err error) {
	p.seam.Cross("provider/Exec", func() { r, err = p.Provider.Exec(ctx, id, cmd) })
	return r, err
}

func (p *provider) Console(ctx context.Context, id string) (text []byte, err error) {
	p.seam.Cross("provider/Console", func() { text, err = p.Provider.Console(ctx, id) })
	return text, err
}

func (p *provider) ReadFile(ctx context.Context, id, path string) (text []byte, err error) {
	p.seam.Cross("provider/ReadFile", func() { text, err = p.Provider.ReadFile(ctx, id, path) })
	return text, err
}

package incus

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/openpcs/openpcs/internal/compute"
)

// removeParallel bounds how many instances are deleted at once.
const removeParallel = 8

// Remove implements compute.Provider. It goes on after an error, so that as
// much as possible is gone, and reports all of them.
func (p *Provider) Remove(ctx context.Context) error {
	var errs []error
	note := func(what string, err error) {
		if err != nil && !errors.Is(err, compute.ErrNotFound) {
			errs = append(errs, fmt.Errorf("remove %s: %w", what, err))
		}
	}
	note("instances", p.removeInstances(ctx))
	note("images", p.removeImages(ctx))
	note("project", p.api.call(ctx, http.MethodDelete, projectPath(p.opts.Project), inDefault, nil, nil))
	note("network", p.removeNetwork(ctx))
	note("storage pool", p.api.call(ctx, http.MethodDelete, poolPath(p.opts.Pool), inDefault, nil, nil))
	return errors.Join(errs...)
}

func (p *Provider) removeInstances(ctx context.Context) error {
	all, err := p.list(ctx)
	if err != nil {
		return err
	}
	var g errgroup.Group
	g.SetLimit(removeParallel)
	for _, i := range all {
		g.Go(func() error { return p.Terminate(ctx, i.Name) })
	}
	return g.Wait()
}

func (p *Provider) removeImages(ctx context.Context) error {
	var all []struct {
		Fingerprint string `json:"fingerprint"`
	}
	if err := p.api.get(ctx, "/1.0/images", url.Values{"recursion": {"1"}}, &all); err != nil {
		return err
	}
	var errs []error
	for _, i := range all {
		errs = append(errs, p.DeleteImage(ctx, i.Fingerprint))
	}
	return errors.Join(errs...)
}

func (p *Provider) removeNetwork(ctx context.Context) error {
	err := p.deleteNetwork(ctx, p.opts.Network)
	if err != nil && !errors.Is(err, compute.ErrNotFound) {
		return err
	}
	return removeStray(ctx, p.opts.Network)
}

// networkTries is how often a bridge is deleted or set up whose former
// members are just going: the engine fails on one that vanishes under its
// eyes.
const networkTries = 20

// deleteNetwork deletes a network of the engine.
func (p *Provider) deleteNetwork(ctx context.Context, name string) error {
	return whileMembersGo(ctx, func() error {
		return p.api.call(ctx, http.MethodDelete, networkPath(name), inDefault, nil, nil)
	})
}

// whileMembersGo repeats what fails only because a member of a bridge goes.
func whileMembersGo(ctx context.Context, f func() error) error {
	for try := 1; ; try++ {
		err := f()
		if err == nil || !says(err, "bridge children") || try == networkTries {
			return err
		}
		timer := time.NewTimer(250 * time.Millisecond)
		select {
		case <-ctx.Done():
			timer.Stop()
			return err
		case <-timer.C:
		}
	}
}

// Package ec2 is the part of the EC2 API that users of PCS need: images,
// launch templates, instances, the default VPC of each region, instance
// types and key pairs. It owns what is stored of them, except instances,
// images and subnets, which belong to package fleet. What happens to
// instances goes through Actions.
package ec2

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/openpcs/openpcs/internal/awsapi"
	"github.com/openpcs/openpcs/internal/store"
)

// Actions are what EC2 calls do to instances.
type Actions interface {
	// TerminateInstance begins to terminate the instance; it is no error if
	// it is terminated already.
	TerminateInstance(ctx context.Context, region, id string) error
	RebootInstance(ctx context.Context, id string) error
	ConsoleOutput(ctx context.Context, id string) ([]byte, error)
}

// Options configure the service.
type Options struct {
	Store     *store.Store
	Account   string
	Instances Actions
	// Pool is the address range that the VPCs of all regions are cut from;
	// see EnsureRegion.
	Pool netip.Prefix
}

// EC2 is the service.
type EC2 struct {
	store   *store.Store
	account string
	actions Actions
	pool    netip.Prefix
}

// New makes the service.
func New(opts Options) *EC2 {
	return &EC2{store: opts.Store, account: opts.Account, actions: opts.Instances, pool: opts.Pool}
}

// Service returns the table of operations.
func (e *EC2) Service() awsapi.Service {
	return awsapi.Service{
		Name: "ec2", Protocol: awsapi.EC2Query, Version: "2016-11-15",
		Namespace: "http://ec2.amazonaws.com/doc/2016-11-15/",
		Operations: slices.Concat(
			e.imageOperations(),
			e.templateOperations(),
			e.instanceOperations(),
			e.networkOperations(),
			e.groupOperations(),
			e.typeOperations(),
			e.keyPairOperations(),
			e.tagOperations(),
		),
		Fault: fault,
	}
}

// fault tells of an unknown parameter that AWS may well know it.
func fault(f *awsapi.Fault) *awsapi.Error {
	if f.Kind == awsapi.FaultUnknownMember {
		return &awsapi.Error{Code: "UnknownParameter", Message: f.Message + " (or openpcs does not support it)"}
	}
	return nil
}

// common are the parameters that every action has.
type common struct {
	DryRun bool `query:"DryRun"`
}

func (c *common) dryRun() bool { return c.DryRun }

// paging are the parameters of actions that answer in pages.
type paging struct {
	MaxResults *int32 `query:"MaxResults"`
	NextToken  string `query:"NextToken"`
}

// boolReturn is the answer of actions that have no other.
type boolReturn struct {
	Return bool `xml:"return"`
}

// op makes an operation. A dry run ends after the permission check and the
// decoding of the parameters, as on EC2.
func op[I, O any](name string, readOnly bool, f func(ctx context.Context, r *awsapi.Request, in *I) (*O, error)) awsapi.Operation {
	return awsapi.Form(name, "ec2:"+name, readOnly, func(ctx context.Context, r *awsapi.Request, in *I) (*O, error) {
		if d, ok := any(in).(interface{ dryRun() bool }); ok && d.dryRun() {
			return nil, &awsapi.Error{
				Code: "DryRunOperation", Status: http.StatusPreconditionFailed,
				Message: "Request would have succeeded, but DryRun flag is set.",
			}
		}
		return f(ctx, r, in)
	})
}

// unsupported makes an operation that always refuses.
func unsupported(name, why string) awsapi.Operation {
	return awsapi.Operation{
		Name: name, Permission: "ec2:" + name,
		Handle: func(context.Context, *awsapi.Request) (any, error) {
			return nil, fail("UnsupportedOperation", "%s", why)
		},
	}
}

func fail(code, format string, args ...any) error {
	return &awsapi.Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// notFound turns a missing object into EC2's error for it and leaves other
// errors alone.
func notFound(err error, code, format string, args ...any) error {
	if errors.Is(err, store.ErrNotFound) {
		return fail(code, format, args...)
	}
	return err
}

// wellFormed checks the shape of an id such as i-0123456789abcdef0.
func wellFormed(id, prefix string) bool {
	digits, ok := strings.CutPrefix(id, prefix+"-")
	if !ok || (len(digits) != 8 && len(digits) != 17) {
		return false
	}
	return strings.Trim(digits, "0123456789abcdef") == ""
}

// page cuts one page out of the items. The limits are those of the action;
// without MaxResults all items are on one page, as on EC2.
func page[T any](r *awsapi.Request, p paging, args any, least, most int32, items []T, key func(T) string) ([]T, string, error) {
	size := 0
	if p.MaxResults != nil {
		n := *p.MaxResults
		switch {
		case n < least:
			return nil, "", fail("InvalidParameterValue", "Value ( %d ) for parameter maxResults is invalid. Expecting a value greater than or equal to %d.", n, least)
		case n > most:
			return nil, "", fail("InvalidParameterValue", "Value ( %d ) for parameter maxResults is invalid. Expecting a value less than or equal to %d.", n, most)
		}
		size = int(n)
	}
	return awsapi.Page(r, args, p.NextToken, size, items, key)
}

// selected returns the items with the ids, in the order of the items, or
// all of them without ids; missing are the ids that no item has.
func selected[T any](items []T, ids []string, id func(T) string) (out []T, missing []string) {
	if len(ids) == 0 {
		return items, nil
	}
	for _, it := range items {
		if slices.Contains(ids, id(it)) {
			out = append(out, it)
		}
	}
	for _, want := range ids {
		if !slices.ContainsFunc(out, func(it T) bool { return id(it) == want }) {
			missing = append(missing, want)
		}
	}
	return out, missing
}

// plural picks the words for one or more missing ids.
func plural(ids []string, one, many string) string {
	if len(ids) == 1 {
		return fmt.Sprintf(one, ids[0])
	}
	return fmt.Sprintf(many, strings.Join(ids, ", "))
}

// view runs fn in a read transaction of the region, which exists.
func (e *EC2) view(ctx context.Context, r *awsapi.Request, fn func(tx *store.Tx) error) error {
	if err := e.region(ctx, r.Region); err != nil {
		return err
	}
	return e.store.View(ctx, fn)
}

// update runs fn in a write transaction of the region, which exists.
func (e *EC2) update(ctx context.Context, r *awsapi.Request, fn func(tx *store.Tx) error) error {
	if err := e.region(ctx, r.Region); err != nil {
		return err
	}
	return e.store.Update(ctx, fn)
}

func (e *EC2) region(ctx context.Context, region string) error {
	err := EnsureRegion(ctx, e.store, region, e.pool)
	var full *PoolError
	if errors.As(err, &full) {
		return fail("VpcLimitExceeded", "%s", full.Error())
	}
	return err
}

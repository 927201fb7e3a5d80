package logs

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/openpcs/openpcs/internal/awsapi"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/slurm"
	"github.com/openpcs/openpcs/internal/store"
)

// empty is the answer of operations without one.
type empty struct{}

type sourceOut struct {
	Name      string            `json:"name"`
	ARN       string            `json:"arn"`
	Resources []string          `json:"resourceArns"`
	Service   string            `json:"service"`
	LogType   string            `json:"logType"`
	Tags      map[string]string `json:"tags,omitempty"`
	// Status is there when the resource is gone.
	Status string `json:"status,omitempty"`
	Reason string `json:"statusReason,omitempty"`
}

// shown tells of a source, and whether its cluster is gone.
func (s Source) shown(tx *store.Tx) (sourceOut, error) {
	out := sourceOut{Name: s.Name, ARN: s.ARN, Resources: []string{s.ResourceARN}, Service: "pcs", LogType: s.LogType, Tags: s.Tags}
	_, err := fleet.Clusters.Get(tx, s.Cluster())
	if errors.Is(err, store.ErrNotFound) {
		out.Status, out.Reason, err = "INACTIVE", "RESOURCE_DELETED", nil
	}
	return out, err
}

type putSourceIn struct {
	Name        *string           `json:"name"`
	ResourceARN *string           `json:"resourceArn"`
	LogType     *string           `json:"logType"`
	Tags        map[string]string `json:"tags"`
	Config      map[string]string `json:"deliverySourceConfiguration"`
}

type putSourceOut struct {
	Source sourceOut `json:"deliverySource"`
}

const (
	noTagsOnUpdate = "Tags can only be provided when a resource is being created, not updated."
	noSource       = "Requested Delivery Source does not exist in this account."
	noDestination  = "Requested Delivery Destination does not exist in this account."
	noDelivery     = "Requested Delivery does not exist in this account."
)

func conflict(format string, args ...any) error { return fail("ConflictException", format, args...) }

func missing(format string, args ...any) error {
	return fail("ResourceNotFoundException", format, args...)
}

// allowed checks that the caller may have logs of the cluster delivered.
func allowed(r *awsapi.Request, resource string) error {
	if r.Caller.Allowed(permission) {
		return nil
	}
	return fail("AccessDeniedException", "User: %s is not authorized to perform: %s on resource: %s. Who has the logs of a cluster delivered needs that permission besides the one of the call.",
		r.Caller.ARN, permission, resource)
}

func (s *Logs) putSource(ctx context.Context, r *awsapi.Request, in *putSourceIn) (*putSourceOut, error) {
	c := check{code: validation}
	name := c.need("name", in.Name, deliveryName)
	logType := c.need("logType", in.LogType, logTypeName)
	resource := text(in.ResourceARN)
	a, ok := parseARN(resource)
	if !ok {
		c.bad("resourceArn", "%s is not the ARN of a cluster, such as %s", quote(resource), exampleCluster(r))
	}
	c.tags("tags", in.Tags, false)
	if len(in.Config) > 0 {
		c.bad("deliverySourceConfiguration", "the log types of pcs have no settings: leave it out")
	}
	if err := c.err(); err != nil {
		return nil, err
	}
	if a.service != "pcs" {
		return nil, missing("Cannot access provided service. openpcs delivers logs of clusters, whose ARNs look like %s.", exampleCluster(r))
	}
	if err := allowed(r, resource); err != nil {
		return nil, err
	}
	out := &putSourceOut{}
	err := s.o.Store.Update(ctx, func(tx *store.Tx) error {
		if err := checkResource(tx, r, a, logType); err != nil {
			return err
		}
		next := Source{Name: name, Region: r.Region, ARN: arnOf(r, "delivery-source:"+name), ResourceARN: resource, LogType: logType, Tags: in.Tags, CreatedAt: r.Now}
		old, err := sources.Get(tx, next.ARN)
		switch {
		case errors.Is(err, store.ErrNotFound):
		case err != nil:
			return err
		default:
			if err := changeSource(tx, old, &next); err != nil {
				return err
			}
		}
		all, err := sources.InRegion(tx, r.Region)
		if err != nil {
			return err
		}
		for _, other := range all {
			if other.ResourceARN == resource && other.LogType == logType && other.Name != name {
				return conflict("This ResourceId has already been used in another Delivery Source in this account. It is %s: use that one, or delete it first.", other.Name)
			}
		}
		if err := sources.Put(tx, next); err != nil {
			return err
		}
		out.Source, err = next.shown(tx)
		return err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

func exampleCluster(r *awsapi.Request) string {
	return fmt.Sprintf("arn:aws:pcs:%s:%s:cluster/pcs_abc1234567", r.Region, r.Account)
}

// checkResource checks that the cluster is there and has the log type.
func checkResource(tx *store.Tx, r *awsapi.Request, a arn, logType string) error {
	kindOfResource, id, _ := strings.Cut(a.resource, "/")
	if kindOfResource != "cluster" || strings.Contains(id, "/") {
		return fail(validation, "resourceArn: logs are those of clusters, whose ARNs look like %s.", exampleCluster(r))
	}
	if !a.here(r) {
		return fail(validation, "resourceArn: the cluster must be in the account and region of the call, %s and %s, and not in %s and %s.", r.Account, r.Region, a.account, a.region)
	}
	if _, known := kindOf(logType); !known {
		return fail(validation, "This service is not allowed for this LogSource. The log types of pcs are %s, not %s.", strings.Join(logTypes(), ", "), logType)
	}
	c, err := fleet.Clusters.Get(tx, id)
	if errors.Is(err, store.ErrNotFound) || err == nil && c.Region != r.Region {
		return missing("there is no cluster %s in %s: aws pcs list-clusters shows those that exist", id, r.Region)
	}
	if err != nil {
		return err
	}
	if v, known := slurm.FindVersion(c.Version); logType == SchedulerAuditLogs && known && !v.AuditLog {
		return fail(validation, "%s needs a cluster with Slurm %s or later, and %s has %s: before, audit records are part of %s.", logType, firstAudit(), id, c.Version, SchedulerLogs)
	}
	return nil
}

// firstAudit is the first version that has an audit log of its own.
func firstAudit() string {
	for _, v := range slurm.Versions {
		if v.AuditLog {
			return v.Name
		}
	}
	return "none"
}

// changeSource carries over what stays when a source is put again.
func changeSource(tx *store.Tx, old Source, next *Source) error {
	switch {
	case len(next.Tags) > 0:
		return conflict(noTagsOnUpdate)
	case old.ResourceARN != next.ResourceARN:
		return conflict("Update to existing Delivery Source with new ResourceId is not allowed. Please create a new Delivery Source instead.")
	case old.LogType != next.LogType:
		used, is, err := linked(tx, old.Region, func(d Delivery) bool { return d.SourceName == old.Name })
		if err != nil {
			return err
		}
		if is {
			return conflict("The log type of delivery source %s cannot change while the delivery %s uses it: delete that first, or make another source.", old.Name, used.ID)
		}
	}
	next.Tags, next.CreatedAt = old.Tags, old.CreatedAt
	return nil
}

type nameIn struct {
	Name *string `json:"name"`
}

func (in *nameIn) get() (string, error) {
	c := check{code: validation}
	name := c.need("name", in.Name, deliveryName)
	return name, c.err()
}

func (s *Logs) getSource(ctx context.Context, r *awsapi.Request, in *nameIn) (*putSourceOut, error) {
	name, err := in.get()
	if err != nil {
		return nil, err
	}
	out := &putSourceOut{}
	err = s.o.Store.View(ctx, func(tx *store.Tx) error {
		src, err := sources.Find(tx, r.Region, "", name)
		if err != nil {
			return orMissing(err, noSource)
		}
		out.Source, err = src.shown(tx)
		return err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// orMissing words that an object is not there.
func orMissing(err error, message string) error {
	if errors.Is(err, store.ErrNotFound) {
		return missing("%s", message)
	}
	return err
}

func (s *Logs) deleteSource(ctx context.Context, r *awsapi.Request, in *nameIn) (*empty, error) {
	name, err := in.get()
	if err != nil {
		return nil, err
	}
	return &empty{}, s.o.Store.Update(ctx, func(tx *store.Tx) error {
		src, err := sources.Find(tx, r.Region, "", name)
		if err != nil {
			return orMissing(err, noSource)
		}
		used, is, err := linked(tx, r.Region, func(d Delivery) bool { return d.SourceName == name })
		if err != nil {
			return err
		}
		if is {
			return conflict("Cannot delete delivery source %s: the delivery %s uses it. Delete that first.", name, used.ID)
		}
		return sources.Delete(tx, src.ARN)
	})
}

type listIn struct {
	NextToken *string `json:"nextToken"`
	Limit     *int32  `json:"limit"`
}

// list returns a page of the objects of a collection in the region.
func list[T any](ctx context.Context, s *Logs, r *awsapi.Request, in *listIn, all store.Collection[T], key func(T) string) (page []T, next string, err error) {
	c := check{code: validation}
	size := c.limit(in.Limit, 50, 50)
	if err := c.err(); err != nil {
		return nil, "", err
	}
	var items []T
	err = s.o.Store.View(ctx, func(tx *store.Tx) error {
		items, err = all.InRegion(tx, r.Region)
		return err
	})
	if err != nil {
		return nil, "", err
	}
	return awsapi.Page(r, nil, text(in.NextToken), size, items, key)
}

type describeSourcesOut struct {
	Sources   []sourceOut `json:"deliverySources"`
	NextToken string      `json:"nextToken,omitempty"`
}

func (s *Logs) describeSources(ctx context.Context, r *awsapi.Request, in *listIn) (*describeSourcesOut, error) {
	page, next, err := list(ctx, s, r, in, sources, func(v Source) string { return v.Name })
	if err != nil {
		return nil, err
	}
	out := &describeSourcesOut{Sources: []sourceOut{}, NextToken: next}
	err = s.o.Store.View(ctx, func(tx *store.Tx) error {
		for _, src := range page {
			one, err := src.shown(tx)
			if err != nil {
				return err
			}
			out.Sources = append(out.Sources, one)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

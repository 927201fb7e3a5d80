package logs

import (
	"context"
	"errors"
	"maps"
	"strings"

	"github.com/openpcs/openpcs/internal/awsapi"
	"github.com/openpcs/openpcs/internal/logs/events"
	"github.com/openpcs/openpcs/internal/store"
)

// retag reads the tags of what an ARN names, and changes them if change is not
// nil; change gets a map of its own.
func (s *Logs) retag(ctx context.Context, r *awsapi.Request, resource string, change func(map[string]string) error) (tags map[string]string, err error) {
	a, ok := parseARN(resource)
	if !ok || a.service != "logs" {
		return nil, fail(parameter, "resourceArn: %s is not the ARN of a log group, delivery source, delivery destination or delivery.", quote(resource))
	}
	gone := missing("The specified resource does not exist: there is no %s in %s.", resource, r.Region)
	if !a.here(r) {
		return nil, gone
	}
	sort, name, _ := strings.Cut(a.resource, ":")
	apply := func(have map[string]string) (map[string]string, error) {
		tags = maps.Clone(have)
		if change == nil {
			return tags, nil
		}
		if tags == nil {
			tags = map[string]string{}
		}
		return tags, change(tags)
	}
	if sort == "log-group" {
		name = strings.TrimSuffix(name, ":*")
		if change == nil {
			g, err := s.db.Group(ctx, r.Region, name)
			if errors.Is(err, events.ErrNoGroup) {
				return nil, gone
			}
			return g.Tags, err
		}
		err := s.db.ChangeGroup(ctx, r.Region, name, func(g *events.Group) (err error) {
			g.Tags, err = apply(g.Tags)
			return err
		})
		if errors.Is(err, events.ErrNoGroup) {
			err = gone
		}
		return tags, worded(err)
	}
	access := s.o.Store.Update
	if change == nil {
		access = s.o.Store.View
	}
	err = access(ctx, func(tx *store.Tx) error {
		var err error
		switch sort {
		case "delivery-source":
			err = retagObject(tx, sources, resource, change == nil, func(v *Source) (err error) { v.Tags, err = apply(v.Tags); return err })
		case "delivery-destination":
			err = retagObject(tx, destinations, resource, change == nil, func(v *Destination) (err error) { v.Tags, err = apply(v.Tags); return err })
		case "delivery":
			err = retagObject(tx, deliveries, resource, change == nil, func(v *Delivery) (err error) { v.Tags, err = apply(v.Tags); return err })
		default:
			return gone
		}
		if errors.Is(err, store.ErrNotFound) {
			return gone
		}
		return err
	})
	return tags, err
}

func retagObject[T any](tx *store.Tx, all store.Collection[T], id string, readOnly bool, fn func(*T) error) error {
	v, err := all.Get(tx, id)
	if err == nil {
		err = fn(&v)
	}
	if err != nil || readOnly {
		return err
	}
	return all.Put(tx, v)
}

type tagIn struct {
	ResourceARN *string           `json:"resourceArn"`
	Tags        map[string]string `json:"tags"`
}

// tooManyTags is the error of a resource that would have more than it may.
func tooManyTags(resource string) error {
	return &awsapi.Error{
		Code: "TooManyTagsException", Message: "the resource would have too many tags: at most 50 are allowed",
		Fields: map[string]any{"resourceName": resource},
	}
}

func (s *Logs) tag(ctx context.Context, r *awsapi.Request, in *tagIn) (*empty, error) {
	c := check{code: parameter}
	c.tags("tags", in.Tags, true)
	if err := c.err(); err != nil {
		return nil, err
	}
	_, err := s.retag(ctx, r, text(in.ResourceARN), func(tags map[string]string) error {
		maps.Copy(tags, in.Tags)
		if len(tags) > maxTags {
			return tooManyTags(text(in.ResourceARN))
		}
		return nil
	})
	return &empty{}, err
}

type untagIn struct {
	ResourceARN *string  `json:"resourceArn"`
	Keys        []string `json:"tagKeys"`
}

func (s *Logs) untag(ctx context.Context, r *awsapi.Request, in *untagIn) (*empty, error) {
	c := check{code: parameter}
	if len(in.Keys) > maxTags {
		c.bad("tagKeys", "has %d entries, at most %d are allowed", len(in.Keys), maxTags)
	}
	if err := c.err(); err != nil {
		return nil, err
	}
	_, err := s.retag(ctx, r, text(in.ResourceARN), func(tags map[string]string) error {
		for _, k := range in.Keys {
			delete(tags, k)
		}
		return nil
	})
	return &empty{}, err
}

type resourceIn struct {
	ResourceARN *string `json:"resourceArn"`
}

type tagsOut struct {
	Tags map[string]string `json:"tags"`
}

func (s *Logs) listTags(ctx context.Context, r *awsapi.Request, in *resourceIn) (*tagsOut, error) {
	tags, err := s.retag(ctx, r, text(in.ResourceARN), nil)
	if err != nil {
		return nil, err
	}
	if tags == nil {
		tags = map[string]string{}
	}
	return &tagsOut{tags}, nil
}

// The calls on log groups from before TagResource.
type groupTagIn struct {
	Group *string           `json:"logGroupName"`
	Tags  map[string]string `json:"tags"`
}

type groupUntagIn struct {
	Group *string  `json:"logGroupName"`
	Keys  []string `json:"tags"`
}

type groupNameIn struct {
	Group *string `json:"logGroupName"`
}

func groupARN(r *awsapi.Request, name *string) *string {
	v := arnOf(r, "log-group:"+text(name))
	return &v
}

func (s *Logs) tagGroup(ctx context.Context, r *awsapi.Request, in *groupTagIn) (*empty, error) {
	return s.tag(ctx, r, &tagIn{groupARN(r, in.Group), in.Tags})
}

func (s *Logs) untagGroup(ctx context.Context, r *awsapi.Request, in *groupUntagIn) (*empty, error) {
	return s.untag(ctx, r, &untagIn{groupARN(r, in.Group), in.Keys})
}

func (s *Logs) listGroupTags(ctx context.Context, r *awsapi.Request, in *groupNameIn) (*tagsOut, error) {
	return s.listTags(ctx, r, &resourceIn{groupARN(r, in.Group)})
}

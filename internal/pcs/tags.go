package pcs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"

	"github.com/openpcs/openpcs/internal/awsapi"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/store"
)

// retag changes the tags of what an ARN names; change gets a copy.
func (s *Service) retag(tx *store.Tx, r *awsapi.Request, arn string, change func(map[string]string) (map[string]string, error)) (map[string]string, error) {
	id := arn[strings.LastIndexByte(arn, '/')+1:]
	missing := &awsapi.Error{
		Code: "ResourceNotFoundException", Message: "there is no resource " + arn,
		Fields: map[string]any{"resourceId": arn, "resourceType": "resource"},
	}
	switch {
	case strings.Contains(arn, "/computenodegroup/"):
		g, err := fleet.Groups.Get(tx, id)
		if errors.Is(err, store.ErrNotFound) || (err == nil && g.ARN != arn) {
			return nil, missing
		}
		if err != nil || change == nil {
			return g.Tags, err
		}
		if g.Tags, err = change(maps.Clone(g.Tags)); err != nil {
			return nil, err
		}
		return g.Tags, fleet.Groups.Put(tx, g)
	case strings.Contains(arn, "/queue/"):
		q, err := fleet.Queues.Get(tx, id)
		if errors.Is(err, store.ErrNotFound) || (err == nil && q.ARN != arn) {
			return nil, missing
		}
		if err != nil || change == nil {
			return q.Tags, err
		}
		if q.Tags, err = change(maps.Clone(q.Tags)); err != nil {
			return nil, err
		}
		return q.Tags, fleet.Queues.Put(tx, q)
	default:
		c, err := fleet.Clusters.Get(tx, id)
		if errors.Is(err, store.ErrNotFound) || (err == nil && c.ARN != arn) {
			return nil, missing
		}
		if err != nil || change == nil {
			return c.Tags, err
		}
		if c.Tags, err = change(maps.Clone(c.Tags)); err != nil {
			return nil, err
		}
		return c.Tags, fleet.Clusters.Put(tx, c)
	}
}

func (s *Service) tag(ctx context.Context, r *awsapi.Request, in *TagIn) (*Empty, error) {
	var c check
	arn := c.arn(in.ResourceARN)
	c.tags(in.Tags, true)
	if err := c.err(); err != nil {
		return nil, err
	}
	return &Empty{}, s.Store.Update(ctx, func(tx *store.Tx) error {
		_, err := s.retag(tx, r, arn, func(tags map[string]string) (map[string]string, error) {
			if tags == nil {
				tags = map[string]string{}
			}
			maps.Copy(tags, in.Tags)
			if len(tags) > maxTags {
				return nil, quota("resource", arn, quotaTags, "the resource would have %d tags, at most %d are allowed", len(tags), maxTags)
			}
			return tags, nil
		})
		return err
	})
}

func (s *Service) untag(ctx context.Context, r *awsapi.Request, in *UntagIn) (*Empty, error) {
	var c check
	arn := c.arn(in.ResourceARN)
	if len(in.TagKeys) < 1 || len(in.TagKeys) > maxTags {
		c.bad("tagKeys", "has %d entries, 1 to %d are allowed", len(in.TagKeys), maxTags)
	}
	for i, k := range in.TagKeys {
		c.tagKey(fmt.Sprintf("tagKeys[%d]", i), k)
	}
	if err := c.err(); err != nil {
		return nil, err
	}
	return &Empty{}, s.Store.Update(ctx, func(tx *store.Tx) error {
		_, err := s.retag(tx, r, arn, func(tags map[string]string) (map[string]string, error) {
			for _, k := range in.TagKeys {
				delete(tags, k)
			}
			return tags, nil
		})
		return err
	})
}

func (s *Service) listTags(ctx context.Context, r *awsapi.Request, in *ListTagsIn) (*ListTagsOut, error) {
	var c check
	arn := c.arn(in.ResourceARN)
	if err := c.err(); err != nil {
		return nil, err
	}
	out := &ListTagsOut{Tags: map[string]string{}}
	err := s.Store.View(ctx, func(tx *store.Tx) error {
		tags, err := s.retag(tx, r, arn, nil)
		maps.Copy(out.Tags, tags)
		return err
	})
	return out, err
}

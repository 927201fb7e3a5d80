package ec2

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/openpcs/openpcs/internal/awsapi"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/store"
)

// maxTags is how many tags of users a resource can have.
const maxTags = 50

// Tag is a tag as parameters write it.
type Tag struct {
	Key   string `query:"Key" xml:"key" json:"key"`
	Value string `query:"Value" xml:"value" json:"value"`
}

type tagXML = Tag

// tagSpec are tags for a resource that a call makes.
type tagSpec struct {
	ResourceType string `query:"ResourceType"`
	Tags         []Tag  `query:"Tag"`
}

// tagsXML orders tags by key, so that answers are the same each time.
func tagsXML(tags map[string]string) []tagXML {
	out := make([]tagXML, 0, len(tags))
	for _, k := range slices.Sorted(maps.Keys(tags)) {
		out = append(out, tagXML{k, tags[k]})
	}
	return out
}

// tagsFor returns the tags for a new resource of the type.
func tagsFor(resourceType string, specs []tagSpec) (map[string]string, error) {
	var tags map[string]string
	for _, s := range specs {
		if s.ResourceType != resourceType {
			return nil, fail("InvalidParameterValue", "'%s' is not a valid taggable resource type for this operation.", s.ResourceType)
		}
		var err error
		if tags, err = addTags(tags, s.Tags); err != nil {
			return nil, err
		}
	}
	return tags, nil
}

// addTags returns the tags with the given ones added or replaced.
func addTags(tags map[string]string, given []Tag) (map[string]string, error) {
	out := maps.Clone(tags)
	if out == nil {
		out = map[string]string{}
	}
	seen := map[string]bool{}
	for _, t := range given {
		if err := checkTag(t); err != nil {
			return nil, err
		}
		if seen[t.Key] {
			return nil, fail("InvalidParameterValue", "Duplicate tag key '%s' specified.", t.Key)
		}
		seen[t.Key] = true
		out[t.Key] = t.Value
	}
	n := 0
	for k := range out {
		if !reserved(k) {
			n++
		}
	}
	if n > maxTags {
		return nil, fail("TagLimitExceeded", "The maximum number of Tags for a resource has been reached.")
	}
	return out, nil
}

func reserved(key string) bool {
	return strings.HasPrefix(strings.ToLower(key), "aws:")
}

func checkTag(t Tag) error {
	switch {
	case t.Key == "" || len([]rune(t.Key)) > 128:
		return fail("InvalidParameterValue", "Tag key '%s' must have 1 to 128 characters.", t.Key)
	case len([]rune(t.Value)) > 256:
		return fail("InvalidParameterValue", "The value of tag '%s' exceeds the maximum length of 256 characters.", t.Key)
	case reserved(t.Key):
		return fail("InvalidParameterValue", "Tag keys starting with 'aws:' are reserved for internal use")
	}
	return nil
}

func (e *EC2) tagOperations() []awsapi.Operation {
	return []awsapi.Operation{
		op("CreateTags", false, e.createTags),
		op("DeleteTags", false, e.deleteTags),
		op("DescribeTags", true, e.describeTags),
	}
}

// tagged is one resource that has tags: how to read and replace them.
type tagged struct {
	id, kind string
	tags     map[string]string
	put      func(tags map[string]string) error
}

// taggedKind gives access to the resources of one kind.
type taggedKind struct {
	prefix string
	get    func(tx *store.Tx, region, id string) (tagged, error)
	all    func(tx *store.Tx, region string) ([]tagged, error)
}

// kindOf builds a taggedKind from a collection.
func kindOf[T any](prefix, kind string, c store.Collection[T], region, id func(T) string, tags func(*T) *map[string]string) taggedKind {
	wrap := func(tx *store.Tx, v T) tagged {
		return tagged{id: id(v), kind: kind, tags: *tags(&v), put: func(t map[string]string) error {
			*tags(&v) = t
			return c.Put(tx, v)
		}}
	}
	return taggedKind{
		prefix: prefix,
		get: func(tx *store.Tx, where, what string) (tagged, error) {
			v, err := c.Get(tx, what)
			if err != nil {
				return tagged{}, err
			}
			if in := region(v); in != "" && in != where {
				return tagged{}, store.ErrNotFound
			}
			return wrap(tx, v), nil
		},
		all: func(tx *store.Tx, where string) ([]tagged, error) {
			vs, err := c.All(tx)
			var out []tagged
			for _, v := range vs {
				if in := region(v); in == "" || in == where {
					out = append(out, wrap(tx, v))
				}
			}
			return out, err
		},
	}
}

var taggedKinds = []taggedKind{
	kindOf("i", "instance", fleet.Instances,
		func(i fleet.Instance) string { return i.Region }, func(i fleet.Instance) string { return i.ID },
		func(i *fleet.Instance) *map[string]string { return &i.Tags }),
	kindOf("ami", "image", fleet.Images,
		func(fleet.Image) string { return "" }, func(i fleet.Image) string { return i.ID },
		func(i *fleet.Image) *map[string]string { return &i.Tags }),
	kindOf("subnet", "subnet", fleet.Subnets,
		func(s fleet.Subnet) string { return s.Region }, func(s fleet.Subnet) string { return s.ID },
		func(s *fleet.Subnet) *map[string]string { return &s.Tags }),
	kindOf("vpc", "vpc", VPCs,
		func(v VPC) string { return v.Region }, func(v VPC) string { return v.ID },
		func(v *VPC) *map[string]string { return &v.Tags }),
	kindOf("sg", "security-group", SecurityGroups,
		func(g SecurityGroup) string { return g.Region }, func(g SecurityGroup) string { return g.ID },
		func(g *SecurityGroup) *map[string]string { return &g.Tags }),
	kindOf("lt", "launch-template", templates,
		func(t template) string { return t.Region }, func(t template) string { return t.ID },
		func(t *template) *map[string]string { return &t.Tags }),
	kindOf("key", "key-pair", KeyPairs,
		func(k KeyPair) string { return k.Region }, func(k KeyPair) string { return k.ID },
		func(k *KeyPair) *map[string]string { return &k.Tags }),
}

func findTagged(tx *store.Tx, region, id string) (tagged, error) {
	prefix, _, _ := strings.Cut(id, "-")
	for _, k := range taggedKinds {
		if k.prefix != prefix {
			continue
		}
		t, err := k.get(tx, region, id)
		if errors.Is(err, store.ErrNotFound) {
			return tagged{}, fail(notFoundCode(prefix), "The %s ID '%s' does not exist", t.kind, id)
		}
		return t, err
	}
	return tagged{}, fail("InvalidID", "The ID '%s' is not valid", id)
}

func notFoundCode(prefix string) string {
	switch prefix {
	case "i":
		return "InvalidInstanceID.NotFound"
	case "ami":
		return "InvalidAMIID.NotFound"
	case "subnet":
		return "InvalidSubnetID.NotFound"
	case "vpc":
		return "InvalidVpcID.NotFound"
	case "sg":
		return "InvalidGroup.NotFound"
	case "lt":
		return "InvalidLaunchTemplateId.NotFound"
	default:
		return "InvalidID.NotFound"
	}
}

type createTagsIn struct {
	common
	IDs  []string `query:"ResourceId,required"`
	Tags []Tag    `query:"Tag,required"`
}

func (e *EC2) createTags(ctx context.Context, r *awsapi.Request, in *createTagsIn) (*boolReturn, error) {
	err := e.update(ctx, r, func(tx *store.Tx) error {
		for _, id := range in.IDs {
			t, err := findTagged(tx, r.Region, id)
			if err != nil {
				return err
			}
			tags, err := addTags(t.tags, in.Tags)
			if err != nil {
				return err
			}
			if err := t.put(tags); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &boolReturn{true}, nil
}

// deleteTag is a tag to delete: without a value whatever value it has.
type deleteTag struct {
	Key   string  `query:"Key"`
	Value *string `query:"Value"`
}

type deleteTagsIn struct {
	common
	IDs  []string    `query:"ResourceId,required"`
	Tags []deleteTag `query:"Tag"`
}

func (e *EC2) deleteTags(ctx context.Context, r *awsapi.Request, in *deleteTagsIn) (*boolReturn, error) {
	err := e.update(ctx, r, func(tx *store.Tx) error {
		for _, id := range in.IDs {
			t, err := findTagged(tx, r.Region, id)
			if err != nil {
				return err
			}
			left := maps.Clone(t.tags)
			if len(in.Tags) == 0 {
				maps.DeleteFunc(left, func(k, _ string) bool { return !reserved(k) })
			}
			for _, d := range in.Tags {
				if reserved(d.Key) {
					return fail("InvalidParameterValue", "Tag keys starting with 'aws:' are reserved for internal use")
				}
				if d.Value == nil || *d.Value == left[d.Key] {
					delete(left, d.Key)
				}
			}
			if err := t.put(left); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &boolReturn{true}, nil
}

type describeTagsIn struct {
	common
	paging
	Filters []filter `query:"Filter"`
}

type describeTagsOut struct {
	Tags      []tagRow `xml:"tagSet"`
	NextToken string   `xml:"nextToken,omitempty"`
}

type tagRow struct {
	ID    string `xml:"resourceId"`
	Kind  string `xml:"resourceType"`
	Key   string `xml:"key"`
	Value string `xml:"value"`
}

var tagFilters = filters[tagRow]{fields: map[string]func(tagRow) []string{
	"resource-id":   one(func(t tagRow) string { return t.ID }),
	"resource-type": one(func(t tagRow) string { return t.Kind }),
	"key":           one(func(t tagRow) string { return t.Key }),
	"value":         one(func(t tagRow) string { return t.Value }),
}}

func (e *EC2) describeTags(ctx context.Context, r *awsapi.Request, in *describeTagsIn) (*describeTagsOut, error) {
	var rows []tagRow
	err := e.view(ctx, r, func(tx *store.Tx) error {
		for _, k := range taggedKinds {
			all, err := k.all(tx, r.Region)
			if err != nil {
				return err
			}
			for _, t := range all {
				for _, tag := range tagsXML(t.tags) {
					rows = append(rows, tagRow{t.id, t.kind, tag.Key, tag.Value})
				}
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if rows, err = tagFilters.apply(in.Filters, rows); err != nil {
		return nil, err
	}
	rows, next, err := page(r, in.paging, in.Filters, 5, 1000, rows, func(t tagRow) string { return t.ID + " " + t.Key })
	if err != nil {
		return nil, err
	}
	return &describeTagsOut{Tags: rows, NextToken: next}, nil
}

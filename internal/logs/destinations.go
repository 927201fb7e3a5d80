package logs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/openpcs/openpcs/internal/awsapi"
	"github.com/openpcs/openpcs/internal/store"
)

type destinationConfig struct {
	ResourceARN *string `json:"destinationResourceArn"`
}

type destinationOut struct {
	Name   string            `json:"name"`
	ARN    string            `json:"arn"`
	Type   string            `json:"deliveryDestinationType"`
	Format string            `json:"outputFormat,omitempty"`
	Config destinationConfig `json:"deliveryDestinationConfiguration"`
	Tags   map[string]string `json:"tags,omitempty"`
}

func (d Destination) shown() destinationOut {
	return destinationOut{Name: d.Name, ARN: d.ARN, Type: d.Type, Format: d.OutputFormat, Config: destinationConfig{&d.ResourceARN}, Tags: d.Tags}
}

type putDestinationIn struct {
	Name    *string            `json:"name"`
	Format  *string            `json:"outputFormat"`
	Config  *destinationConfig `json:"deliveryDestinationConfiguration"`
	Type    *string            `json:"deliveryDestinationType"`
	RoleARN *string            `json:"roleArn"`
	Tags    map[string]string  `json:"tags"`
}

type putDestinationOut struct {
	Destination destinationOut `json:"deliveryDestination"`
}

// The names that buckets and streams of Firehose can have (their API references).
var (
	bucketName = regexp.MustCompile(`^[a-z0-9](?:\.?[a-z0-9-]){2,62}$`)
	hoseName   = regexp.MustCompile(`^[\w.-]{1,64}$`)
)

// destinationType derives the type of a destination from its ARN, which must be
// one that can be delivered to from here.
func destinationType(r *awsapi.Request, resource string) (string, error) {
	a, ok := parseARN(resource)
	name, isGroup := strings.CutPrefix(strings.TrimSuffix(a.resource, ":*"), "log-group:")
	stream, isStream := strings.CutPrefix(a.resource, "deliverystream/")
	switch {
	case ok && a.service == "s3" && a.region == "" && a.account == "" && bucketName.MatchString(a.resource):
		return ToS3, nil
	case ok && a.service == "s3" && strings.Contains(a.resource, "/"):
		return "", fmt.Errorf("%s has a path: name the bucket alone, and say the path with s3DeliveryConfiguration.suffixPath of the delivery", quote(resource))
	case ok && a.service == "logs" && isGroup && groupName.re.MatchString(name):
		if !a.here(r) {
			return "", fmt.Errorf("the log group must be in the account and region of the call, %s and %s", r.Account, r.Region)
		}
		return ToLogs, nil
	case ok && a.service == "firehose" && isStream && hoseName.MatchString(stream):
		if !a.here(r) {
			return "", fmt.Errorf("the stream of Firehose must be in the account and region of the call, %s and %s", r.Account, r.Region)
		}
		return ToFirehose, nil
	default:
		return "", fmt.Errorf("%s is none of a log group (arn:aws:logs:%s:%s:log-group:NAME), a bucket (arn:aws:s3:::BUCKET) or a stream of Firehose (arn:aws:firehose:%s:%s:deliverystream/NAME)",
			quote(resource), r.Region, r.Account, r.Region, r.Account)
	}
}

func (s *Logs) putDestination(ctx context.Context, r *awsapi.Request, in *putDestinationIn) (*putDestinationOut, error) {
	c := check{code: validation}
	name := c.need("name", in.Name, deliveryName)
	given, format := text(in.Type), text(in.Format)
	if given != "XRAY" { // which has an answer of its own
		c.oneOf("deliveryDestinationType", given, ToS3, ToLogs, ToFirehose)
	}
	c.oneOf("outputFormat", format, "json", "plain", "w3c", "raw", "parquet")
	c.tags("tags", in.Tags, false)
	if in.RoleARN != nil {
		c.bad("roleArn", "openpcs delivers within the account, where it needs no role: leave it out")
	}
	var resource, to string
	switch {
	case given == "XRAY":
		c.bad("deliveryDestinationType", "openpcs does not deliver to X-Ray: it delivers to S3, CWL and FH")
	case in.Config == nil || in.Config.ResourceARN == nil:
		c.bad("deliveryDestinationConfiguration.destinationResourceArn", "is required")
	default:
		resource = *in.Config.ResourceARN
		var err error
		if to, err = destinationType(r, resource); err != nil {
			c.bad("deliveryDestinationConfiguration.destinationResourceArn", "%v", err)
		}
	}
	if to != "" {
		if formats[given] != nil && given != to {
			c.bad("deliveryDestinationType", "is %s, but %s is a destination of the type %s", given, quote(resource), to)
		}
		if format != "" && !slices.Contains(formats[to], format) {
			c.bad("outputFormat", "openpcs writes %s to destinations of the type %s, not %s", strings.Join(formats[to], ", "), to, format)
		}
	}
	if err := c.err(); err != nil {
		return nil, err
	}
	next := Destination{
		Name: name, Region: r.Region, ARN: arnOf(r, "delivery-destination:"+name), Type: to,
		OutputFormat: format, ResourceARN: resource, Tags: in.Tags, CreatedAt: r.Now,
	}
	// A destination that is in use moves only to where can be written.
	var links []Link
	err := s.o.Store.View(ctx, func(tx *store.Tx) error {
		all, err := Links(tx)
		for _, l := range all {
			if l.Destination.ARN == next.ARN && l.Destination.ResourceARN != resource {
				l.Destination.ResourceARN = resource
				links = append(links, l)
			}
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, l := range links {
		if err := s.reach(ctx, l); err != nil {
			return nil, err
		}
	}
	err = s.o.Store.Update(ctx, func(tx *store.Tx) error {
		old, err := destinations.Get(tx, next.ARN)
		switch {
		case errors.Is(err, store.ErrNotFound):
			return destinations.Put(tx, next)
		case err != nil:
			return err
		case len(next.Tags) > 0:
			return conflict(noTagsOnUpdate)
		case next.OutputFormat != "" && next.OutputFormat != old.OutputFormat:
			return fail(validation, "Update to existing Delivery Destination with new Output Format is not allowed. Please create a new Delivery Destination instead.")
		case next.Type != old.Type:
			return fail(validation, "Update to existing Delivery Destination of the type %s with one of the type %s is not allowed. Please create a new Delivery Destination instead.", old.Type, next.Type)
		}
		next.OutputFormat, next.Policy, next.Tags, next.CreatedAt = old.OutputFormat, old.Policy, old.Tags, old.CreatedAt
		return destinations.Put(tx, next)
	})
	if err != nil {
		return nil, err
	}
	return &putDestinationOut{next.shown()}, nil
}

func (s *Logs) getDestination(ctx context.Context, r *awsapi.Request, in *nameIn) (*putDestinationOut, error) {
	name, err := in.get()
	if err != nil {
		return nil, err
	}
	out := &putDestinationOut{}
	err = s.o.Store.View(ctx, func(tx *store.Tx) error {
		d, err := destinations.Find(tx, r.Region, "", name)
		out.Destination = d.shown()
		return orMissing(err, noDestination)
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

func (s *Logs) deleteDestination(ctx context.Context, r *awsapi.Request, in *nameIn) (*empty, error) {
	name, err := in.get()
	if err != nil {
		return nil, err
	}
	return &empty{}, s.o.Store.Update(ctx, func(tx *store.Tx) error {
		d, err := destinations.Find(tx, r.Region, "", name)
		if err != nil {
			return orMissing(err, noDestination)
		}
		used, is, err := linked(tx, r.Region, func(v Delivery) bool { return v.DestinationARN == d.ARN })
		if err != nil {
			return err
		}
		if is {
			return conflict("Cannot delete delivery destination %s: the delivery %s uses it. Delete that first.", name, used.ID)
		}
		return destinations.Delete(tx, d.ARN)
	})
}

type describeDestinationsOut struct {
	Destinations []destinationOut `json:"deliveryDestinations"`
	NextToken    string           `json:"nextToken,omitempty"`
}

func (s *Logs) describeDestinations(ctx context.Context, r *awsapi.Request, in *listIn) (*describeDestinationsOut, error) {
	page, next, err := list(ctx, s, r, in, destinations, func(v Destination) string { return v.Name })
	if err != nil {
		return nil, err
	}
	out := &describeDestinationsOut{Destinations: []destinationOut{}, NextToken: next}
	for _, d := range page {
		out.Destinations = append(out.Destinations, d.shown())
	}
	return out, nil
}

type policyIn struct {
	Name   *string `json:"deliveryDestinationName"`
	Policy *string `json:"deliveryDestinationPolicy"`
}

type policyNameIn struct {
	Name *string `json:"deliveryDestinationName"`
}

type policyOut struct {
	Policy policyText `json:"policy"`
}

type policyText struct {
	Text string `json:"deliveryDestinationPolicy,omitempty"`
}

// maxPolicy is the published bound of a policy, in characters.
const maxPolicy = 51200

// putPolicy keeps a policy. It decides nothing: it is for other accounts, and
// there is one.
func (s *Logs) putPolicy(ctx context.Context, r *awsapi.Request, in *policyIn) (*policyOut, error) {
	c := check{code: validation}
	name := c.need("deliveryDestinationName", in.Name, deliveryName)
	policy := text(in.Policy)
	switch {
	case policy == "" || len(policy) > maxPolicy:
		c.bad("deliveryDestinationPolicy", "has %d characters, 1 to %d are allowed", len(policy), maxPolicy)
	case !isObject(policy):
		c.bad("deliveryDestinationPolicy", "is not a policy document in JSON")
	}
	if err := c.err(); err != nil {
		return nil, err
	}
	err := s.changePolicy(ctx, r, name, policy)
	if err != nil {
		return nil, err
	}
	return &policyOut{policyText{policy}}, nil
}

func isObject(text string) bool {
	var doc map[string]any
	return json.Unmarshal([]byte(text), &doc) == nil && doc != nil
}

func (s *Logs) changePolicy(ctx context.Context, r *awsapi.Request, name, policy string) error {
	return s.o.Store.Update(ctx, func(tx *store.Tx) error {
		d, err := destinations.Find(tx, r.Region, "", name)
		if err != nil {
			return orMissing(err, noDestination)
		}
		d.Policy = policy
		return destinations.Put(tx, d)
	})
}

func (s *Logs) getPolicy(ctx context.Context, r *awsapi.Request, in *policyNameIn) (*policyOut, error) {
	d, err := s.getDestination(ctx, r, &nameIn{in.Name})
	if err != nil {
		return nil, err
	}
	out := &policyOut{}
	err = s.o.Store.View(ctx, func(tx *store.Tx) error {
		found, err := destinations.Get(tx, d.Destination.ARN)
		out.Policy.Text = found.Policy
		return orMissing(err, noDestination)
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

func (s *Logs) deletePolicy(ctx context.Context, r *awsapi.Request, in *policyNameIn) (*empty, error) {
	c := check{code: validation}
	name := c.need("deliveryDestinationName", in.Name, deliveryName)
	if err := c.err(); err != nil {
		return nil, err
	}
	return &empty{}, s.changePolicy(ctx, r, name, "")
}

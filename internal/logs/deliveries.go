package logs

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/openpcs/openpcs/internal/awsapi"
	"github.com/openpcs/openpcs/internal/store"
)

type s3PathIn struct {
	Suffix *string `json:"suffixPath"`
	Hive   *bool   `json:"enableHiveCompatiblePath"`
}

type s3PathOut struct {
	Suffix string `json:"suffixPath"`
	Hive   bool   `json:"enableHiveCompatiblePath"`
}

type deliveryOut struct {
	ID             string            `json:"id"`
	ARN            string            `json:"arn"`
	SourceName     string            `json:"deliverySourceName"`
	DestinationARN string            `json:"deliveryDestinationArn"`
	Type           string            `json:"deliveryDestinationType"`
	RecordFields   []string          `json:"recordFields"`
	FieldDelimiter string            `json:"fieldDelimiter,omitempty"`
	S3             *s3PathOut        `json:"s3DeliveryConfiguration,omitempty"`
	Tags           map[string]string `json:"tags,omitempty"`
}

func (d Delivery) shown() deliveryOut {
	out := deliveryOut{
		ID: d.ID, ARN: d.ARN, SourceName: d.SourceName, DestinationARN: d.DestinationARN, Type: d.Type,
		RecordFields: d.RecordFields, FieldDelimiter: d.FieldDelimiter, Tags: d.Tags,
	}
	if d.S3 != nil {
		out.S3 = &s3PathOut{d.S3.Suffix, d.S3.Hive}
	}
	return out
}

type createDeliveryIn struct {
	SourceName     *string           `json:"deliverySourceName"`
	DestinationARN *string           `json:"deliveryDestinationArn"`
	RecordFields   []string          `json:"recordFields"`
	FieldDelimiter *string           `json:"fieldDelimiter"`
	S3             *s3PathIn         `json:"s3DeliveryConfiguration"`
	Tags           map[string]string `json:"tags"`
}

type deliveryAnswer struct {
	Delivery deliveryOut `json:"delivery"`
}

func (s *Logs) createDelivery(ctx context.Context, r *awsapi.Request, in *createDeliveryIn) (*deliveryAnswer, error) {
	c := check{code: validation}
	name := c.need("deliverySourceName", in.SourceName, deliveryName)
	if text(in.DestinationARN) == "" {
		c.bad("deliveryDestinationArn", "is required")
	}
	c.tags("tags", in.Tags, false)
	if err := c.err(); err != nil {
		return nil, err
	}
	d := Delivery{
		ID: newID(), Region: r.Region, SourceName: name, DestinationARN: *in.DestinationARN,
		Tags: in.Tags, CreatedAt: r.Now,
	}
	d.ARN = arnOf(r, "delivery:"+d.ID)
	plan := func(tx *store.Tx) (Link, error) {
		l, err := plan(tx, d)
		if err == nil {
			err = configure(&l, in.RecordFields, in.FieldDelimiter, in.S3)
		}
		return l, err
	}
	var l Link
	err := s.o.Store.View(ctx, func(tx *store.Tx) (err error) {
		l, err = plan(tx)
		return err
	})
	if err == nil {
		err = allowed(r, l.Source.ResourceARN)
	}
	if err == nil {
		err = s.reach(ctx, l)
	}
	if err != nil {
		return nil, err
	}
	err = s.o.Store.Update(ctx, func(tx *store.Tx) (err error) {
		if l, err = plan(tx); err != nil {
			return err
		}
		return deliveries.Put(tx, l.Delivery)
	})
	if err != nil {
		return nil, err
	}
	return &deliveryAnswer{l.Delivery.shown()}, nil
}

// newID is an id as CloudWatch Logs gives a delivery.
func newID() string {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	for i := range b {
		b[i] = alphabet[int(b[i])%len(alphabet)]
	}
	return string(b[:])
}

// plan finds the ends of a new delivery, which must go together.
func plan(tx *store.Tx, d Delivery) (Link, error) {
	source, err := sources.Find(tx, d.Region, "", d.SourceName)
	if err != nil {
		return Link{}, orMissing(err, noSource)
	}
	destination, err := destinations.Get(tx, d.DestinationARN)
	if err == nil && destination.Region != d.Region {
		err = store.ErrNotFound
	}
	if err != nil {
		return Link{}, orMissing(err, noDestination)
	}
	d.Type = destination.Type
	if _, is, err := linked(tx, d.Region, func(v Delivery) bool { return v.SourceName == d.SourceName && v.DestinationARN == d.DestinationARN }); err != nil || is {
		return Link{}, errors.Join(err, conflict("The specified Delivery already exists"))
	}
	if other, is, err := linked(tx, d.Region, func(v Delivery) bool { return v.SourceName == d.SourceName && v.Type == d.Type }); err != nil || is {
		return Link{}, errors.Join(err, conflict("Delivery already exists for this Delivery Source with the same Delivery Destination Type. It is %s, to %s.", other.ID, other.DestinationARN))
	}
	out, err := source.shown(tx)
	if err != nil {
		return Link{}, err
	}
	if out.Status != "" {
		return Link{}, fail(validation, "The cluster %s of the delivery source %s was deleted: delete the source.", source.Cluster(), source.Name)
	}
	return Link{Delivery: d, Source: source, Destination: destination}, nil
}

// configure checks and sets what a delivery writes and where. What is not given
// stays, and is that of the template in a new one.
func configure(l *Link, fields []string, delimiter *string, path *s3PathIn) error {
	c := check{code: validation}
	k, _ := kindOf(l.Source.LogType)
	d := &l.Delivery
	if d.RecordFields == nil {
		d.RecordFields = k.fields
	}
	if fields != nil {
		d.RecordFields = c.recordFields(k, fields)
	}
	format := l.Destination.Format()
	if delimiter != nil {
		d.FieldDelimiter = *delimiter
		switch n := utf8.RuneCountInString(*delimiter); {
		case n > 5:
			c.bad("fieldDelimiter", "has %d characters, 0 to 5 are allowed", n)
		case *delimiter != "" && format == "json":
			c.bad("fieldDelimiter", "is for the output formats plain, w3c and raw, and this destination has json: leave it out")
		}
	}
	switch {
	case path != nil && d.Type != ToS3:
		c.bad("s3DeliveryConfiguration", "is for destinations of the type S3, and this one is of the type %s: leave it out", d.Type)
	case d.Type == ToS3:
		set := S3Path{Suffix: k.suffix}
		if d.S3 != nil {
			set = *d.S3
		}
		if path != nil && path.Suffix != nil {
			set.Suffix = *path.Suffix
			c.suffix(set.Suffix)
		}
		if path != nil && path.Hive != nil {
			set.Hive = *path.Hive
		}
		d.S3 = &set
	}
	return c.err()
}

func (c *check) recordFields(k kind, fields []string) []string {
	if len(fields) == 0 {
		return k.fields // an empty list is none
	}
	if len(fields) > 128 {
		c.bad("recordFields", "has %d entries, 0 to 128 are allowed", len(fields))
		return nil
	}
	seen := map[string]bool{}
	for n, f := range fields {
		at := fmt.Sprintf("recordFields[%d]", n)
		switch {
		case !slices.Contains(k.fields, f):
			c.bad(at, "%s is none of the fields of %s: %s", quote(f), k.logType, strings.Join(k.fields, ", "))
		case seen[f]:
			c.bad(at, "%s is named twice", quote(f))
		}
		seen[f] = true
	}
	return fields
}

var (
	variable   = regexp.MustCompile(`\{([^{}]*)\}`)
	pathLetter = regexp.MustCompile(`^[\w/=.\-{}]*$`)
)

// suffix checks the path of objects in S3.
func (c *check) suffix(path string) {
	const at = "s3DeliveryConfiguration.suffixPath"
	if n := utf8.RuneCountInString(path); n < 1 || n > 256 {
		c.bad(at, "has %d characters, 1 to 256 are allowed", n)
		return
	}
	for _, v := range variable.FindAllStringSubmatch(path, -1) {
		if !slices.Contains(suffixFields, v[1]) {
			c.bad(at, "%s is none of the variables {%s}", v[0], strings.Join(suffixFields, "}, {"))
		}
	}
	rest := variable.ReplaceAllString(path, "x")
	switch {
	case strings.ContainsAny(rest, "{}"):
		c.bad(at, "%s has a brace without its counterpart", quote(path))
	case !pathLetter.MatchString(rest) || strings.Contains(rest, "//") || slices.Contains(strings.Split(rest, "/"), ".."):
		c.bad(at, "%s is no path: besides variables it may have letters, digits and the characters / _ - . =", quote(path))
	}
}

// reach checks that what a delivery is to write to can be written to.
func (s *Logs) reach(ctx context.Context, l Link) error {
	// Who probes knows where the groups are.
	if l.Destination.Type == ToLogs && s.o.Probe == nil {
		there, err := s.HasGroup(ctx, l.Delivery.Region, l.Destination.Resource())
		if err != nil {
			return err
		}
		if !there {
			return missing("The log group %s of the delivery destination %s does not exist. Make it first: aws logs create-log-group --log-group-name %s",
				l.Destination.Resource(), l.Destination.Name, l.Destination.Resource())
		}
	}
	if s.o.Probe == nil {
		return nil
	}
	err := s.o.Probe(ctx, l)
	var e *awsapi.Error
	if err == nil || errors.As(err, &e) {
		return err
	}
	return fail(validation, "The delivery destination %s cannot be written to: %v", l.Destination.Name, err)
}

type idIn struct {
	ID *string `json:"id"`
}

func (in *idIn) get() (string, error) {
	c := check{code: validation}
	id := c.need("id", in.ID, deliveryID)
	return id, c.err()
}

func findDelivery(tx *store.Tx, r *awsapi.Request, id string) (Delivery, error) {
	d, err := deliveries.Find(tx, r.Region, "id", id)
	return d, orMissing(err, noDelivery)
}

func (s *Logs) getDelivery(ctx context.Context, r *awsapi.Request, in *idIn) (*deliveryAnswer, error) {
	id, err := in.get()
	if err != nil {
		return nil, err
	}
	out := &deliveryAnswer{}
	err = s.o.Store.View(ctx, func(tx *store.Tx) error {
		d, err := findDelivery(tx, r, id)
		out.Delivery = d.shown()
		return err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

func (s *Logs) deleteDelivery(ctx context.Context, r *awsapi.Request, in *idIn) (*empty, error) {
	id, err := in.get()
	if err != nil {
		return nil, err
	}
	return &empty{}, s.o.Store.Update(ctx, func(tx *store.Tx) error {
		d, err := findDelivery(tx, r, id)
		if err != nil {
			return err
		}
		return deliveries.Delete(tx, d.ARN)
	})
}

type updateDeliveryIn struct {
	ID             *string   `json:"id"`
	RecordFields   []string  `json:"recordFields"`
	FieldDelimiter *string   `json:"fieldDelimiter"`
	S3             *s3PathIn `json:"s3DeliveryConfiguration"`
}

func (s *Logs) updateDelivery(ctx context.Context, r *awsapi.Request, in *updateDeliveryIn) (*empty, error) {
	id, err := (&idIn{in.ID}).get()
	if err != nil {
		return nil, err
	}
	return &empty{}, s.o.Store.Update(ctx, func(tx *store.Tx) error {
		d, err := findDelivery(tx, r, id)
		if err != nil {
			return err
		}
		l, err := link(tx, d)
		if err == nil {
			err = configure(&l, in.RecordFields, in.FieldDelimiter, in.S3)
		}
		if err != nil {
			return err
		}
		return deliveries.Put(tx, l.Delivery)
	})
}

type describeDeliveriesOut struct {
	Deliveries []deliveryOut `json:"deliveries"`
	NextToken  string        `json:"nextToken,omitempty"`
}

func (s *Logs) describeDeliveries(ctx context.Context, r *awsapi.Request, in *listIn) (*describeDeliveriesOut, error) {
	page, next, err := list(ctx, s, r, in, deliveries, func(v Delivery) string { return awsapi.CreationKey(v.CreatedAt, v.ID) })
	if err != nil {
		return nil, err
	}
	out := &describeDeliveriesOut{Deliveries: []deliveryOut{}, NextToken: next}
	for _, d := range page {
		out.Deliveries = append(out.Deliveries, d.shown())
	}
	return out, nil
}

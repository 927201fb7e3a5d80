// Package iam keeps the roles and instance profiles that compute node groups
// run with. It is one space for all regions. What a role may do is the set of
// actions that its policies allow and deny; the resources that an allowing
// statement names are not looked at, see parsePolicy.
package iam

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/openpcs/openpcs/internal/awsapi"
	"github.com/openpcs/openpcs/internal/store"
)

// DefaultName is the name of the role and instance profile that is there
// from the start.
const DefaultName = "AWSPCS-default"

// Role is an IAM role.
type Role struct {
	Name        string            `json:"name"`
	Path        string            `json:"path"`
	ID          string            `json:"id"` // AROA...
	ARN         string            `json:"arn"`
	CreatedAt   time.Time         `json:"createdAt"`
	Description string            `json:"description,omitempty"`
	MaxSession  int32             `json:"maxSession"` // seconds
	Trust       string            `json:"trust"`      // policy document
	Inline      map[string]string `json:"inline,omitempty"`
	Attached    []string          `json:"attached,omitempty"` // ARNs of managed policies
	Tags        []tag             `json:"tags,omitempty"`
	// Allow and Deny are the action patterns of all its policies; they are
	// worked out when the role is read.
	Allow []string `json:"-"`
	Deny  []string `json:"-"`
}

// Names of IAM are unique without regard to case, so the ids are lower case.
var roles = store.NewCollection("iamrole", func(r Role) store.Index {
	return store.Index{ID: strings.ToLower(r.Name)}
})

// instanceProfile is what is stored of an instance profile.
type instanceProfile struct {
	Name      string    `json:"name"`
	Path      string    `json:"path"`
	ID        string    `json:"id"` // AIPA...
	ARN       string    `json:"arn"`
	CreatedAt time.Time `json:"createdAt"`
	Role      string    `json:"role,omitempty"`
	Tags      []tag     `json:"tags,omitempty"`
}

var profiles = store.NewCollection("iamprofile", func(p instanceProfile) store.Index {
	return store.Index{ID: strings.ToLower(p.Name), Name: p.ARN, Parent: strings.ToLower(p.Role)}
})

// Profile is an instance profile with its role.
type Profile struct {
	Name string
	Path string
	ID   string
	ARN  string
	Role Role // has no name when the profile has no role
}

// FindProfile returns the instance profile of the ARN. It wraps
// store.ErrNotFound when there is none.
func FindProfile(tx *store.Tx, arn string) (Profile, error) {
	parts := strings.Split(arn, ":")
	resource, ok := strings.CutPrefix(parts[len(parts)-1], "instance-profile/")
	if len(parts) != 6 || !ok {
		return Profile{}, fmt.Errorf("%q is no ARN of an instance profile: %w", arn, store.ErrNotFound)
	}
	p, err := FindProfileByName(tx, resource[strings.LastIndex(resource, "/")+1:])
	if err == nil && p.ARN != arn {
		return Profile{}, fmt.Errorf("instance profile %s: %w", arn, store.ErrNotFound)
	}
	return p, err
}

// FindProfileByName is FindProfile for the name alone, which is unique too.
func FindProfileByName(tx *store.Tx, name string) (Profile, error) {
	stored, err := profiles.Get(tx, strings.ToLower(name))
	if err != nil {
		return Profile{}, fmt.Errorf("instance profile %s: %w", name, err)
	}
	p := Profile{Name: stored.Name, Path: stored.Path, ID: stored.ID, ARN: stored.ARN}
	if stored.Role == "" {
		return p, nil
	}
	p.Role, err = roles.Get(tx, strings.ToLower(stored.Role))
	if err != nil {
		return Profile{}, fmt.Errorf("role of instance profile %s: %w", name, err)
	}
	p.Role.Allow, p.Role.Deny = p.Role.permissions()
	return p, nil
}

// UsableByPCS returns why PCS would not take the profile for a compute node
// group, or nil: the role's name must begin with AWSPCS or its path contain
// /aws-pcs/.
func (p Profile) UsableByPCS() error {
	switch {
	case p.Role.Name == "":
		return fmt.Errorf("the instance profile %s has no role: add one with aws iam add-role-to-instance-profile", p.Name)
	case !strings.HasPrefix(p.Role.Name, "AWSPCS") && !strings.Contains(p.Role.Path, "/aws-pcs/"):
		return fmt.Errorf("the role %s of the instance profile must have a name that begins with AWSPCS or a path that contains /aws-pcs/, but its path is %s", p.Role.Name, p.Role.Path)
	default:
		return nil
	}
}

// Caller returns who an instance with the profile is when it signs with its
// role.
func (p Profile) Caller(account, instanceID string) awsapi.Caller {
	return awsapi.Caller{
		Account:    account,
		ARN:        "arn:aws:sts::" + account + ":assumed-role/" + p.Role.Name + "/" + instanceID,
		UserID:     p.Role.ID + ":" + instanceID,
		InstanceID: instanceID,
		Allow:      p.Role.Allow,
		Deny:       p.Role.Deny,
	}
}

// permissions works out what the policies of the role allow and deny.
func (r Role) permissions() (allow, deny []string) {
	docs := make([]string, 0, len(r.Inline)+len(r.Attached))
	for _, d := range r.Inline {
		docs = append(docs, d)
	}
	for _, arn := range r.Attached {
		docs = append(docs, managed[arn].document)
	}
	for _, d := range docs {
		a, n, err := parsePolicy(d)
		if err != nil {
			continue // it was checked when it was stored
		}
		allow, deny = append(allow, a...), append(deny, n...)
	}
	slices.Sort(allow)
	slices.Sort(deny)
	return slices.Compact(allow), slices.Compact(deny)
}

// Options configure the service.
type Options struct {
	Store   *store.Store
	Account string
	Now     func() time.Time // nil: time.Now
}

// IAM is the service.
type IAM struct {
	store   *store.Store
	account string
	now     func() time.Time
}

// New makes the service.
func New(opts Options) *IAM {
	i := &IAM{store: opts.Store, account: opts.Account, now: opts.Now}
	if i.now == nil {
		i.now = time.Now
	}
	return i
}

const computeTrust = `{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Principal":{"Service":"ec2.amazonaws.com"},"Action":"sts:AssumeRole"}]}`

// EnsureDefaults makes the role and instance profile AWSPCS-default, with
// all that a node needs, unless they are there. Call it at start.
func (i *IAM) EnsureDefaults(ctx context.Context) error {
	now := i.now().UTC().Truncate(time.Second)
	err := i.store.Update(ctx, func(tx *store.Tx) error {
		_, err := roles.Get(tx, strings.ToLower(DefaultName))
		if errors.Is(err, store.ErrNotFound) {
			err = roles.Put(tx, Role{
				Name: DefaultName, Path: "/", ID: newID("AROA"), ARN: i.arn("role", "/", DefaultName), CreatedAt: now,
				Description: "Made by openpcs for nodes of compute node groups", MaxSession: defaultSession, Trust: computeTrust,
				Attached: []string{awsPolicy + "AWSPCSComputeNodePolicy", awsPolicy + "AmazonSSMManagedInstanceCore"},
			})
		}
		if err != nil {
			return err
		}
		_, err = profiles.Get(tx, strings.ToLower(DefaultName))
		if errors.Is(err, store.ErrNotFound) {
			err = profiles.Put(tx, instanceProfile{
				Name: DefaultName, Path: "/", ID: newID("AIPA"), ARN: i.arn("instance-profile", "/", DefaultName),
				CreatedAt: now, Role: DefaultName,
			})
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("make instance profile %s: %w", DefaultName, err)
	}
	return nil
}

// Service returns the table of operations.
func (i *IAM) Service() awsapi.Service {
	return awsapi.Service{
		Name: "iam", Protocol: awsapi.Query, Version: "2010-05-08",
		Namespace:  "https://iam.amazonaws.com/doc/2010-05-08/",
		Operations: slices.Concat(i.roleOperations(), i.policyOperations(), i.profileOperations()),
		Fault: func(f *awsapi.Fault) *awsapi.Error {
			if f.Kind == awsapi.FaultInternal {
				return &awsapi.Error{Code: "ServiceFailure", Message: f.Message, Status: http.StatusInternalServerError}
			}
			return nil
		},
	}
}

func op[I, O any](name string, readOnly bool, f func(ctx context.Context, r *awsapi.Request, in *I) (*O, error)) awsapi.Operation {
	return awsapi.Form(name, "iam:"+name, readOnly, f)
}

func (i *IAM) arn(kind, path, name string) string {
	return "arn:aws:iam::" + i.account + ":" + kind + path + name
}

func fail(status int, code, format string, args ...any) error {
	return &awsapi.Error{Code: code, Message: fmt.Sprintf(format, args...), Status: status}
}

func noSuchEntity(format string, args ...any) error {
	return fail(http.StatusNotFound, "NoSuchEntity", format, args...)
}

func invalid(format string, args ...any) error {
	return fail(http.StatusBadRequest, "ValidationError", format, args...)
}

// notFound turns a missing object into NoSuchEntity and leaves other errors
// alone.
func notFound(err error, format string, args ...any) error {
	if errors.Is(err, store.ErrNotFound) {
		return noSuchEntity(format, args...)
	}
	return err
}

var (
	namePattern = regexp.MustCompile(`^[\w+=,.@-]+$`)
	pathPattern = regexp.MustCompile(`^/([!-~]+/)?$`)
)

func checkName(member, name string, most int) error {
	if len(name) > most || !namePattern.MatchString(name) {
		return invalid("1 validation error detected: Value '%s' at '%s' failed to satisfy constraint: Member must have 1 to %d of the characters A-Za-z0-9_+=,.@-", name, member, most)
	}
	return nil
}

// checkPath returns the path, "/" for an empty one.
func checkPath(path string) (string, error) {
	if path == "" {
		return "/", nil
	}
	if len(path) > 512 || !pathPattern.MatchString(path) {
		return "", invalid("The specified value for path is invalid. It must begin and end with / and contain only alphanumeric characters and/or / characters.")
	}
	return path, nil
}

// tag is a tag as parameters write it.
type tag struct {
	Key   string `query:"Key" xml:"Key" json:"key"`
	Value string `query:"Value" xml:"Value" json:"value"`
}

func checkTags(tags []tag) error {
	seen := map[string]bool{}
	for _, t := range tags {
		key := strings.ToLower(t.Key)
		switch {
		case t.Key == "" || len(t.Key) > 128 || len(t.Value) > 256 || strings.HasPrefix(key, "aws:"):
			return fail(http.StatusBadRequest, "InvalidInput", "The tag '%s' is invalid: a key has 1 to 128 characters and does not begin with aws:, a value at most 256.", t.Key)
		case seen[key]:
			return fail(http.StatusBadRequest, "InvalidInput", "Duplicate tag keys found. Please note that Tag keys are case insensitive.")
		}
		seen[key] = true
	}
	if len(tags) > 50 {
		return fail(http.StatusConflict, "LimitExceeded", "The number of tags has reached the maximum limit.")
	}
	return nil
}

// listing are the parameters of actions that answer in pages.
type listing struct {
	Marker   string `query:"Marker"`
	MaxItems *int32 `query:"MaxItems"`
}

// listed are the members of their answers that tell whether more is to come.
type listed struct {
	IsTruncated bool   `xml:"IsTruncated"`
	Marker      string `xml:"Marker,omitempty"`
}

const defaultItems = 100

func page[T any](r *awsapi.Request, l listing, args any, items []T, key func(T) string) ([]T, listed, error) {
	size := defaultItems
	if l.MaxItems != nil {
		if *l.MaxItems < 1 || *l.MaxItems > 1000 {
			return nil, listed{}, invalid("1 validation error detected: Value '%d' at 'maxItems' failed to satisfy constraint: Member must have value between 1 and 1000", *l.MaxItems)
		}
		size = int(*l.MaxItems)
	}
	items, next, err := awsapi.Page(r, args, l.Marker, size, items, key)
	return items, listed{next != "", next}, err
}

// encoded writes a policy document as IAM's answers do.
func encoded(document string) string {
	return strings.ReplaceAll(url.QueryEscape(document), "+", "%20")
}

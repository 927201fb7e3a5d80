// Package secretsmanager keeps the secrets that openpcs makes for its
// clusters and lets users read them. All of them are managed: users cannot
// change them.
package secretsmanager

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/openpcs/openpcs/internal/awsapi"
	"github.com/openpcs/openpcs/internal/store"
)

// Stages of a secret's versions.
const (
	current  = "AWSCURRENT"
	previous = "AWSPREVIOUS"
)

// Secret is a secret with its versions.
type Secret struct {
	ARN           string    `json:"arn"`
	Name          string    `json:"name"`
	Region        string    `json:"region"`
	OwningService string    `json:"owningService"`
	CreatedAt     time.Time `json:"createdAt"`
	ChangedAt     time.Time `json:"changedAt"`
	Versions      []Version `json:"versions"`
}

// Version is one value of a secret.
type Version struct {
	ID        string    `json:"id"`
	Stages    []string  `json:"stages,omitempty"`
	Value     string    `json:"value"`
	CreatedAt time.Time `json:"createdAt"`
}

var secrets = store.NewCollection("secret", func(s Secret) store.Index {
	return store.Index{ID: s.ARN, Region: s.Region, Name: s.Name}
})

// Create makes a secret and returns its ARN and the id of its version. It
// wraps store.ErrExists when the region has one of that name.
func Create(tx *store.Tx, region, account, name, value, owningService string, now time.Time) (arn, versionID string, err error) {
	now = now.UTC().Truncate(time.Millisecond)
	v := Version{ID: uuid.NewString(), Stages: []string{current}, Value: value, CreatedAt: now}
	s := Secret{
		ARN:  "arn:aws:secretsmanager:" + region + ":" + account + ":secret:" + name + "-" + suffix(),
		Name: name, Region: region, OwningService: owningService, CreatedAt: now, ChangedAt: now, Versions: []Version{v},
	}
	if err := secrets.Put(tx, s); err != nil {
		return "", "", fmt.Errorf("create secret %s: %w", name, err)
	}
	return s.ARN, v.ID, nil
}

// suffix is what Secrets Manager appends to a name in an ARN.
func suffix() string {
	const alphabet = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
	var b [6]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	for i := range b {
		b[i] = alphabet[int(b[i])%len(alphabet)]
	}
	return string(b[:])
}

// Value returns the value of a version of a secret; an empty version means
// the current one. It wraps store.ErrNotFound.
func Value(tx *store.Tx, arn, version string) (string, error) {
	s, err := secrets.Get(tx, arn)
	if err != nil {
		return "", fmt.Errorf("read secret: %w", err)
	}
	for _, v := range s.Versions {
		if v.ID == version || (version == "" && slices.Contains(v.Stages, current)) {
			return v.Value, nil
		}
	}
	return "", fmt.Errorf("version %s of secret %s: %w", version, arn, store.ErrNotFound)
}

// Rotate gives a secret a new current value and returns the version's id.
// The one before stays readable as the previous one.
func Rotate(tx *store.Tx, arn, value string, now time.Time) (versionID string, err error) {
	s, err := secrets.Get(tx, arn)
	if err != nil {
		return "", fmt.Errorf("rotate secret: %w", err)
	}
	now = now.UTC().Truncate(time.Millisecond)
	kept := s.Versions[:0:0]
	for _, v := range s.Versions {
		if slices.Contains(v.Stages, current) {
			v.Stages = []string{previous}
			kept = append(kept, v)
		}
	}
	v := Version{ID: uuid.NewString(), Stages: []string{current}, Value: value, CreatedAt: now}
	s.Versions, s.ChangedAt = append(kept, v), now
	return v.ID, secrets.Put(tx, s)
}

// Delete removes a secret at once; it is no error if there is none.
func Delete(tx *store.Tx, arn string) error { return secrets.Delete(tx, arn) }

// Options configure the service.
type Options struct {
	Store   *store.Store
	Account string
}

// Manager is the service.
type Manager struct {
	store *store.Store
}

// New makes the service.
func New(opts Options) *Manager { return &Manager{store: opts.Store} }

// Service returns the table of operations.
func (m *Manager) Service() awsapi.Service {
	ops := []awsapi.Operation{
		awsapi.JSON("GetSecretValue", "secretsmanager:GetSecretValue", true, m.getSecretValue),
		awsapi.JSON("DescribeSecret", "secretsmanager:DescribeSecret", true, m.describeSecret),
		awsapi.JSON("ListSecrets", "secretsmanager:ListSecrets", true, m.listSecrets),
		awsapi.JSON("ListSecretVersionIds", "secretsmanager:ListSecretVersionIds", true, m.listVersions),
	}
	for _, name := range []string{"PutSecretValue", "UpdateSecret", "DeleteSecret", "RotateSecret", "UpdateSecretVersionStage", "TagResource", "UntagResource", "PutResourcePolicy"} {
		ops = append(ops, awsapi.JSON(name, "secretsmanager:"+name, false, m.refuse))
	}
	return awsapi.Service{
		Name: "secretsmanager", Protocol: awsapi.JSON11, Target: "secretsmanager", Operations: ops,
		Fault: func(f *awsapi.Fault) *awsapi.Error {
			switch f.Kind {
			case awsapi.FaultInternal:
				return &awsapi.Error{Code: "InternalServiceError", Message: f.Message, Status: http.StatusInternalServerError}
			case awsapi.FaultBadToken:
				return &awsapi.Error{Code: "InvalidNextTokenException", Message: f.Message}
			default:
				return nil
			}
		},
	}
}

func fail(code, format string, args ...any) error {
	return &awsapi.Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// find returns the secret of a name, an ARN, or an ARN without its suffix.
func find(tx *store.Tx, region, id string) (Secret, error) {
	if id == "" {
		return Secret{}, fail("InvalidParameterException", "You must provide SecretId, the ARN or name of a secret.")
	}
	s, err := secrets.Find(tx, region, "", id)
	if errors.Is(err, store.ErrNotFound) && strings.HasPrefix(id, "arn:") {
		s, err = findARN(tx, region, id)
	}
	if errors.Is(err, store.ErrNotFound) {
		return s, fail("ResourceNotFoundException", "Secrets Manager can't find the specified secret.")
	}
	return s, err
}

func findARN(tx *store.Tx, region, arn string) (Secret, error) {
	all, err := secrets.InRegion(tx, region)
	if err != nil {
		return Secret{}, err
	}
	for _, s := range all {
		if s.ARN == arn || s.ARN[:strings.LastIndex(s.ARN, "-")] == arn {
			return s, nil
		}
	}
	return Secret{}, store.ErrNotFound
}

type getSecretValueIn struct {
	ID           string `json:"SecretId"`
	VersionID    string `json:"VersionId"`
	VersionStage string `json:"VersionStage"`
}

type getSecretValueOut struct {
	ARN       string       `json:"ARN"`
	Name      string       `json:"Name"`
	VersionID string       `json:"VersionId"`
	Value     string       `json:"SecretString"`
	Stages    []string     `json:"VersionStages"`
	CreatedAt awsapi.Epoch `json:"CreatedDate"`
}

func (m *Manager) getSecretValue(ctx context.Context, r *awsapi.Request, in *getSecretValueIn) (*getSecretValueOut, error) {
	var s Secret
	err := m.store.View(ctx, func(tx *store.Tx) error {
		var err error
		s, err = find(tx, r.Region, in.ID)
		return err
	})
	if err != nil {
		return nil, err
	}
	stage := in.VersionStage
	if stage == "" && in.VersionID == "" {
		stage = current
	}
	for _, v := range s.Versions {
		if in.VersionID != "" && v.ID != in.VersionID {
			continue
		}
		if stage == "" || slices.Contains(v.Stages, stage) {
			return &getSecretValueOut{s.ARN, s.Name, v.ID, v.Value, v.Stages, awsapi.EpochAt(v.CreatedAt)}, nil
		}
		if in.VersionID != "" {
			return nil, fail("InvalidRequestException", "You provided a VersionStage that is not associated to the provided VersionId.")
		}
	}
	if in.VersionID != "" {
		return nil, fail("ResourceNotFoundException", "Secrets Manager can't find the specified secret value for VersionId: %s", in.VersionID)
	}
	return nil, fail("ResourceNotFoundException", "Secrets Manager can't find the specified secret value for staging label: %s", stage)
}

type secretIDIn struct {
	ID string `json:"SecretId"`
}

type tag struct {
	Key   string `json:"Key"`
	Value string `json:"Value"`
}

type secretOut struct {
	ARN           string              `json:"ARN"`
	Name          string              `json:"Name"`
	OwningService string              `json:"OwningService,omitempty"`
	CreatedAt     awsapi.Epoch        `json:"CreatedDate"`
	ChangedAt     awsapi.Epoch        `json:"LastChangedDate"`
	Tags          []tag               `json:"Tags"`
	Described     map[string][]string `json:"VersionIdsToStages,omitempty"`
	Listed        map[string][]string `json:"SecretVersionsToStages,omitempty"`
}

func (s Secret) out() secretOut {
	return secretOut{
		ARN: s.ARN, Name: s.Name, OwningService: s.OwningService,
		CreatedAt: awsapi.EpochAt(s.CreatedAt), ChangedAt: awsapi.EpochAt(s.ChangedAt),
		Tags: []tag{{"aws:secretsmanager:owningService", s.OwningService}},
	}
}

func (s Secret) stages() map[string][]string {
	out := map[string][]string{}
	for _, v := range s.Versions {
		out[v.ID] = v.Stages
	}
	return out
}

func (m *Manager) describeSecret(ctx context.Context, r *awsapi.Request, in *secretIDIn) (*secretOut, error) {
	var out secretOut
	err := m.store.View(ctx, func(tx *store.Tx) error {
		s, err := find(tx, r.Region, in.ID)
		if err == nil {
			out = s.out()
			out.Described = s.stages()
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return &out, nil
}

type filter struct {
	Key    string   `json:"Key"`
	Values []string `json:"Values"`
}

type listSecretsIn struct {
	MaxResults *int32   `json:"MaxResults"`
	NextToken  string   `json:"NextToken"`
	Filters    []filter `json:"Filters"`
	SortOrder  string   `json:"SortOrder"`
}

type listSecretsOut struct {
	Secrets   []secretOut `json:"SecretList"`
	NextToken string      `json:"NextToken,omitempty"`
}

func (m *Manager) listSecrets(ctx context.Context, r *awsapi.Request, in *listSecretsIn) (*listSecretsOut, error) {
	size := 100
	if in.MaxResults != nil {
		if *in.MaxResults < 1 || *in.MaxResults > 100 {
			return nil, fail("InvalidParameterException", "MaxResults must be between 1 and 100.")
		}
		size = int(*in.MaxResults)
	}
	if in.SortOrder != "" && in.SortOrder != "asc" {
		return nil, fail("InvalidParameterException", "openpcs lists secrets in the order of their creation: SortOrder must be asc, not %q.", in.SortOrder)
	}
	for _, f := range in.Filters {
		if !slices.Contains([]string{"name", "owning-service", "all", "description", "tag-key", "tag-value"}, f.Key) {
			return nil, fail("InvalidParameterException", "openpcs does not filter secrets by %q.", f.Key)
		}
	}
	var all []Secret
	err := m.store.View(ctx, func(tx *store.Tx) error {
		stored, err := secrets.InRegion(tx, r.Region)
		for _, s := range stored {
			if s.pass(in.Filters) {
				all = append(all, s)
			}
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	all, next, err := awsapi.Page(r, in.Filters, in.NextToken, size, all, func(s Secret) string { return awsapi.CreationKey(s.CreatedAt, s.ARN) })
	if err != nil {
		return nil, err
	}
	out := &listSecretsOut{Secrets: []secretOut{}, NextToken: next}
	for _, s := range all {
		row := s.out()
		row.Listed = s.stages()
		out.Secrets = append(out.Secrets, row)
	}
	return out, nil
}

// pass applies filters, whose values are beginnings; a ! negates one.
func (s Secret) pass(filters []filter) bool {
	for _, f := range filters {
		ok := false
		for _, v := range f.Values {
			v, not := strings.CutPrefix(v, "!")
			hit := false
			for _, have := range s.fields(f.Key) {
				hit = hit || strings.HasPrefix(strings.ToLower(have), strings.ToLower(v))
			}
			ok = ok || hit != not
		}
		if !ok {
			return false
		}
	}
	return true
}

func (s Secret) fields(key string) []string {
	const tagKey = "aws:secretsmanager:owningService"
	switch key {
	case "name":
		return []string{s.Name}
	case "owning-service", "tag-value":
		return []string{s.OwningService}
	case "tag-key":
		return []string{tagKey}
	case "all":
		return []string{s.Name, s.OwningService, tagKey}
	default:
		return nil
	}
}

type versionOut struct {
	ID        string       `json:"VersionId"`
	Stages    []string     `json:"VersionStages"`
	CreatedAt awsapi.Epoch `json:"CreatedDate"`
}

type listVersionsOut struct {
	ARN      string       `json:"ARN"`
	Name     string       `json:"Name"`
	Versions []versionOut `json:"Versions"`
}

func (m *Manager) listVersions(ctx context.Context, r *awsapi.Request, in *secretIDIn) (*listVersionsOut, error) {
	var out listVersionsOut
	err := m.store.View(ctx, func(tx *store.Tx) error {
		s, err := find(tx, r.Region, in.ID)
		out = listVersionsOut{s.ARN, s.Name, []versionOut{}}
		for _, v := range s.Versions {
			out.Versions = append(out.Versions, versionOut{v.ID, v.Stages, awsapi.EpochAt(v.CreatedAt)})
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return &out, nil
}

// refuse answers all that would change a secret.
func (m *Manager) refuse(ctx context.Context, r *awsapi.Request, in *secretIDIn) (*struct{}, error) {
	err := m.store.View(ctx, func(tx *store.Tx) error {
		s, err := find(tx, r.Region, in.ID)
		if err != nil {
			return err
		}
		return fail("InvalidRequestException", "You can't perform this operation on secret %s because it is managed by %s.", s.Name, s.OwningService)
	})
	return nil, err
}

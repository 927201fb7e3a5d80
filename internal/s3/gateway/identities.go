package gateway

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"net"
	"regexp"

	"github.com/gofiber/fiber/v3"
	"github.com/versity/versitygw/auth"
	"github.com/versity/versitygw/s3err"

	"github.com/openpcs/openpcs/internal/awsapi"
	"github.com/openpcs/openpcs/internal/s3"
)

// identities tells the library who asks. Requests come from the control plane
// alone, which verified them: it signs them anew, and the session token is the
// identity. Buckets all belong to the account.
type identities struct{ setup s3.Setup }

var (
	_ auth.IAMService         = identities{}
	_ auth.SigningKeyProvider = identities{}
	_ auth.PolicyEvaluator    = identities{}
	_ auth.PrincipalResolver  = identities{}
	_ auth.FixedBucketOwner   = identities{}
)

// readToken is the identity in a session token.
func readToken(token string) (id s3.Identity, err error) {
	text, err := base64.RawURLEncoding.DecodeString(token)
	if err != nil {
		return id, err
	}
	return id, json.Unmarshal(text, &id)
}

// DeriveSigningKey returns the key of SigV4 for the day, region and service, and
// the account that the token names.
func (i identities) DeriveSigningKey(access, token, date, region, service string) ([]byte, auth.Account, error) {
	id, err := readToken(token)
	if err != nil {
		return nil, auth.Account{}, auth.ErrInvalidSessionToken
	}
	key := []byte("AWS4" + i.setup.Secret)
	for _, text := range []string{date, region, service, "aws4_request"} {
		m := hmac.New(sha256.New, key)
		m.Write([]byte(text)) // never fails
		key = m.Sum(nil)
	}
	return key, auth.Account{
		Access: access, Secret: i.setup.Secret, Role: auth.RoleUser,
		SessionToken: token, IsSession: true, Arn: id.ARN, RoleArn: id.RoleARN,
	}, nil
}

// EvaluatePolicy says what the caller's own policies say of each action. They
// are about actions, not resources (see package iam).
func (i identities) EvaluatePolicy(_, token string, actions []auth.Action, resources []string, _ map[string][]string) (auth.PolicyEvaluation, error) {
	var out auth.PolicyEvaluation
	id, err := readToken(token)
	if err != nil {
		return out, auth.ErrInvalidSessionToken
	}
	caller := awsapi.Caller{Allow: id.Allow, Deny: id.Deny}
	denied := awsapi.Caller{Allow: id.Deny}
	said := make([]verdict, len(actions))
	for n, action := range actions {
		switch {
		case denied.Allowed(string(action)):
			said[n] = deny
		case caller.Allowed(string(action)):
			said[n] = allow
		}
	}
	out.PrincipalArn = id.ARN
	decide(&out.Decisions, said, len(resources))
	return out, nil
}

// verdict has the values of the library's own type, which has no name outside
// of it.
type verdict int

const (
	allow verdict = 1
	deny  verdict = 2
)

// decide fills the matrix of resources and actions.
func decide[D ~int](matrix *[][]D, said []verdict, resources int) {
	row := make([]D, len(said))
	for n, v := range said {
		row[n] = D(v)
	}
	for range resources {
		*matrix = append(*matrix, row)
	}
}

// principal is how a bucket policy may name somebody: an account, an ARN of a
// user, role or session, or a service.
var principal = regexp.MustCompile(`^([0-9]{12}|arn:aws[a-z-]*:(iam|sts)::[0-9]{12}:(root|(user|role|assumed-role)/[\w+=,.@/-]+)|[a-z0-9.-]+\.amazonaws\.com)$`)

// ResolvePrincipals returns those that name nobody.
func (identities) ResolvePrincipals(names []string) (wrong []string, err error) {
	for _, name := range names {
		if !principal.MatchString(name) {
			wrong = append(wrong, name)
		}
	}
	return wrong, nil
}

// BucketOwner is the account.
func (i identities) BucketOwner() auth.Account {
	return auth.Account{Access: i.setup.Account, Role: auth.RoleAdmin, Arn: "arn:aws:iam::" + i.setup.Account + ":root"}
}

// ResolveAccounts returns those that are not the account, which ACLs must not
// name: whoever else may read is said by policies.
func (i identities) ResolveAccounts(ids []string) (wrong []string, err error) {
	for _, id := range ids {
		if id != i.setup.Account {
			wrong = append(wrong, id)
		}
	}
	return wrong, nil
}

// The library manages no users.

// GetUserAccount is not called, as keys come from DeriveSigningKey.
func (identities) GetUserAccount(string) (auth.Account, error) {
	return auth.Account{}, auth.ErrNoSuchUser
}

// CreateAccount is refused.
func (identities) CreateAccount(auth.Account) error { return errNoUsers }

// UpdateUserAccount is refused.
func (identities) UpdateUserAccount(string, auth.MutableProps) error { return errNoUsers }

// DeleteUserAccount is refused.
func (identities) DeleteUserAccount(string) error { return errNoUsers }

// ListUserAccounts is refused.
func (identities) ListUserAccounts() ([]auth.Account, error) { return nil, errNoUsers }

// Shutdown has nothing to do.
func (identities) Shutdown() error { return nil }

var errNoUsers = s3err.GetAPIError(s3err.ErrAdminMethodNotSupported)

// setAddress makes the address that the control plane saw that of the request,
// for policies with aws:SourceIp.
func setAddress(ctx fiber.Ctx) error {
	id, err := readToken(ctx.Get("X-Amz-Security-Token"))
	if ip := net.ParseIP(id.Address); err == nil && ip != nil {
		ctx.RequestCtx().SetRemoteAddr(&net.TCPAddr{IP: ip})
	}
	return ctx.Next()
}

// Package awsapi is the front door: one port for all services, routed by the
// scope of the SigV4 signature. It owns the protocols (awsJson 1.0/1.1,
// query/XML), signature checks, error bodies and request ids. The services
// themselves are tables of operations declared by their own packages.
package awsapi

import (
	"context"
	"net/http"
	"net/url"
	"reflect"
	"time"
)

// Protocol is how a service's requests and answers are written.
type Protocol int

// The protocols spoken here.
const (
	JSON10   Protocol = iota // awsJson 1.0 (pcs)
	JSON11                   // awsJson 1.1 (ssm, secretsmanager, logs, ...)
	Query                    // form in, XML with an <OpResult> out (sts, iam)
	EC2Query                 // form in, EC2's XML out
	RestXML                  // method and path in, bodies of any size, XML out (s3)
)

// Caller is who signed the request.
type Caller struct {
	AccessKeyID string
	Account     string
	ARN         string
	UserID      string
	// InstanceID is set when the key belongs to an instance's role.
	InstanceID string
	// From, where it is set, is the only address that the key may be used from.
	From string `json:",omitempty"`
	// Allow lists action patterns (pcs:*, s3:GetObject); "*" allows all.
	Allow []string
	// Deny lists action patterns that win over Allow.
	Deny []string `json:",omitempty"`
}

// Request is one verified call.
type Request struct {
	ID        string // request id, a UUID
	Service   string
	Operation string
	Region    string // region of the signature: a name space of its own
	Account   string
	Caller    Caller
	Now       time.Time
	// Body is the JSON document of a JSON protocol.
	Body []byte
	// Form holds the parameters of a query protocol, without Action and
	// Version.
	Form url.Values

	pager *pager
}

// Operation is one row of a service's table.
type Operation struct {
	Name       string
	Permission string // IAM action, e.g. pcs:CreateCluster
	ReadOnly   bool
	// AnyCaller lets every verified caller in, whatever its policies say, as
	// sts:GetCallerIdentity does.
	AnyCaller bool
	// In and Out are the types of the input and the answer, so that tests can
	// hold them against the published models.
	In, Out reflect.Type
	// Handle returns the answer to encode (a pointer to a struct, nil for an
	// empty answer) or an error; an *Error keeps its code, anything else
	// becomes the service's internal error and is logged.
	Handle func(ctx context.Context, r *Request) (any, error)
}

// Service is what a service package hands to the front door.
type Service struct {
	Name       string // signing name: pcs, ec2, ...
	Protocol   Protocol
	Target     string // X-Amz-Target prefix without the dot (JSON)
	Version    string // API version (query)
	Namespace  string // XML namespace (query)
	Operations []Operation
	// MaxBody bounds a request, in bytes, where it is not that of the Server.
	MaxBody int64
	// Stream, of a RestXML service, answers whole requests in place of a table
	// of operations.
	Stream func(w http.ResponseWriter, r *Stream)
	// Fault, when set, gives the faults of the front door the service's own
	// form (pcs: ValidationException with a reason). It may return nil for
	// the protocol's usual one.
	Fault func(f *Fault) *Error
}

// Stream is one verified request of a RestXML service. Its body is not read
// yet, may be of any size, and fails on the way when it turns out not to be
// what was signed.
type Stream struct {
	ID     string // request id, a UUID
	Region string // region of the signature
	Caller Caller
	Now    time.Time
	// HTTP is the request without its signature: in its headers and query is
	// only what the caller means. Its path is as it was sent.
	HTTP *http.Request
	// PayloadHash is what a signature of the body as it is now has in place of
	// its hash: the hash that the caller signed, or a word that says how the body
	// is to be read (UNSIGNED-PAYLOAD, STREAMING-UNSIGNED-PAYLOAD-TRAILER).
	PayloadHash string
}

// Error is an error with AWS semantics. Fields are further members of a JSON
// error body (resourceId, fieldList, ...).
type Error struct {
	Code    string
	Message string
	Status  int // HTTP status; 0 means 400
	Fields  map[string]any
}

func (e *Error) Error() string { return e.Code + ": " + e.Message }

// Key is an access key with its secret. Keys of people are made at first
// start; those of instances are short-lived and bound to the instance.
type Key struct {
	ID      string    `json:"id"` // AKIA... or ASIA...
	Secret  string    `json:"secret"`
	Token   string    `json:"token,omitempty"` // session token of ASIA keys
	Caller  Caller    `json:"caller"`
	Expires time.Time `json:"expires,omitzero"`
}

// KeyFinder looks keys up; it returns an error wrapping store.ErrNotFound
// for an unknown id.
type KeyFinder interface {
	FindKey(ctx context.Context, accessKeyID string) (Key, error)
}

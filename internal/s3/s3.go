// Package s3 is the service s3: buckets for scripts and logs, below the state
// folder or at an endpoint elsewhere. The front door verified the caller; this
// package signs each request anew for where it goes and passes it on, body and
// all, without keeping it. What S3 is, a library knows (internal/s3/gateway).
package s3

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/openpcs/openpcs/internal/awsapi"
)

// Options configure the service.
type Options struct {
	Dir     string // of the buckets; below the state folder
	Account string
	Region  string // of all buckets; they can be asked for from every region
	// Endpoint is where the buckets are instead; nil: below Dir.
	Endpoint *Endpoint
	Secret   []byte // what the key of the storage is made of
	// Command starts the process of the storage, which runs gateway.Run on its
	// standard input and output.
	Command []string
	Logger  *slog.Logger
}

// S3 is the service.
type S3 struct {
	o       Options
	storage *storage
}

// New returns the service. Nothing is started before the first request.
func New(o Options) *S3 {
	s := &S3{o: o}
	s.storage = newStorage(o.Command, Setup{
		Dir: o.Dir, Socket: filepath.Join(o.Dir, "socket"), Account: o.Account, Secret: storageSecret(o.Secret), Region: o.Region,
	}, o.Logger)
	return s
}

// storageSecret is the secret of all keys of the storage, which nobody but the
// two processes knows.
func storageSecret(secret []byte) string {
	m := hmac.New(sha256.New, secret)
	m.Write([]byte("storage of s3")) // never fails (hash.Hash)
	return hex.EncodeToString(m.Sum(nil))
}

// Stop ends the storage.
func (s *S3) Stop() { s.storage.close() }

// Service is what the front door routes to.
func (s *S3) Service() awsapi.Service {
	return awsapi.Service{Name: "s3", Protocol: awsapi.RestXML, Stream: s.answer}
}

// answer passes a request on.
func (s *S3) answer(w http.ResponseWriter, r *awsapi.Stream) {
	err := s.pass(w, r)
	if err == nil {
		return
	}
	var e *awsapi.Error
	if !errors.As(err, &e) {
		s.o.Logger.Error("S3 cannot answer", "request", r.ID, "err", err)
		e = &awsapi.Error{Code: "ServiceUnavailable", Message: "S3 cannot answer: " + err.Error(), Status: http.StatusServiceUnavailable}
	}
	r.WriteError(w, e)
}

// pass answers a request, or returns why it cannot.
func (s *S3) pass(w http.ResponseWriter, r *awsapi.Stream) error {
	bucket, _ := split(r.HTTP.URL)
	if inLibrary(bucket) {
		return s.lend(w, r)
	}
	t, err := s.target(r)
	if err != nil {
		return err
	}
	if t.embedded {
		if err := possible(r.HTTP); err != nil {
			return err
		}
	}
	if err := adapt(r, t.region, t.embedded); err != nil {
		return err
	}
	s.forward(w, r, t)
	return nil
}

// target is where the request goes, in the name that its caller has there.
func (s *S3) target(r *awsapi.Stream) (target, error) {
	if s.o.Endpoint != nil {
		return s.o.Endpoint.target(r)
	}
	if err := s.storage.open(); err != nil {
		return target{}, err
	}
	t := target{
		url: &url.URL{Scheme: "http", Host: "storage"}, host: r.HTTP.Host, region: s.o.Region, transport: s.storage.client, embedded: true,
		key: awsapi.Key{ID: accessID(r.Caller), Secret: s.storage.setup.Secret, Token: token(r)},
	}
	_, key := split(r.HTTP.URL)
	if _, policy := subresources(r.HTTP)["policy"]; policy && key == "" && slices.Contains(r.Caller.Allow, "*") && len(r.Caller.Deny) == 0 {
		// A policy that shuts out everybody can be taken back by the owner.
		t.key = awsapi.Key{ID: s.o.Account, Secret: t.key.Secret}
	}
	return t, nil
}

// target is where requests go to, and whose they are there.
type target struct {
	url       *url.URL // scheme and host
	host      string   // as the request says it
	region    string
	transport http.RoundTripper
	key       awsapi.Key
	embedded  bool // it is the storage
}

// forward sends the request to the target and its answer back.
func (s *S3) forward(w http.ResponseWriter, r *awsapi.Stream, t target) {
	proxy := httputil.ReverseProxy{
		Transport: t.transport,
		Rewrite: func(p *httputil.ProxyRequest) {
			p.Out.URL.Scheme, p.Out.URL.Host, p.Out.Host = t.url.Scheme, t.url.Host, t.host
			// The front door answered it.
			p.Out.Header.Del("Expect")
			awsapi.SignHash(p.Out, r.PayloadHash, t.key, t.region, "s3", time.Now())
		},
		ModifyResponse: func(answer *http.Response) error {
			// That of the front door is in its log.
			answer.Header.Del("X-Amz-Request-Id")
			answer.Header.Del("Server")
			answer.Header.Del("Date")
			if t.embedded {
				return restore(answer)
			}
			return nil
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			if r.HTTP.Context().Err() == nil {
				s.o.Logger.Warn("S3 did not answer", "request", r.ID, "err", err)
			}
			r.WriteError(w, &awsapi.Error{Code: "ServiceUnavailable", Message: "What serves the buckets did not answer: " + t.url.Host + ".", Status: http.StatusServiceUnavailable})
		},
		ErrorLog: slog.NewLogLogger(s.o.Logger.Handler(), slog.LevelDebug),
	}
	proxy.ServeHTTP(w, r.HTTP)
}

// accessID is the name of the caller in the storage.
func accessID(c awsapi.Caller) string {
	return strings.NewReplacer("/", "_", ",", "_", " ", "_").Replace(c.UserID)
}

// token tells the storage who asks.
func token(r *awsapi.Stream) string {
	id := Identity{ARN: r.Caller.ARN, RoleARN: roleOf(r.Caller.ARN), Allow: concerning(r.Caller.Allow), Deny: concerning(r.Caller.Deny)}
	if host, _, err := net.SplitHostPort(r.HTTP.RemoteAddr); err == nil {
		id.Address = host
	}
	text, _ := json.Marshal(id) // strings alone, which JSON can express
	return base64.RawURLEncoding.EncodeToString(text)
}

// concerning are the patterns that may match an action of S3, so that what
// travels with each request stays short.
func concerning(patterns []string) (kept []string) {
	for _, p := range patterns {
		service, _, _ := strings.Cut(strings.ToLower(p), ":")
		if awsapi.Match(service, "s3") {
			kept = append(kept, p)
		}
	}
	return kept
}

// roleOf is the role of a session, by which a bucket policy names all of them.
func roleOf(arn string) string {
	account, session, ok := strings.Cut(strings.TrimPrefix(arn, "arn:aws:sts::"), ":assumed-role/")
	if !ok {
		return ""
	}
	role, _, _ := strings.Cut(session, "/")
	return "arn:aws:iam::" + account + ":role/" + role
}

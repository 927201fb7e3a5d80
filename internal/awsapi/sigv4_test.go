package awsapi_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"github.com/aws/aws-sdk-go-v2/service/pcs"
	"github.com/aws/aws-sdk-go-v2/service/sts"

	"github.com/openpcs/openpcs/internal/awsapi"
)

func hash(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func credentials(k awsapi.Key) aws.Credentials {
	return aws.Credentials{AccessKeyID: k.ID, SecretAccessKey: k.Secret, SessionToken: k.Token}
}

func send(t *testing.T, req *http.Request) (int, string) {
	t.Helper()
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// TestOfficialSigner lets the official SDK's signer sign requests with all
// that makes canonical requests hard, and verifies them.
func TestOfficialSigner(t *testing.T) {
	w := newWorld(t)
	session, err := w.keys.IssueSession(t.Context(), awsapi.Caller{Account: account, ARN: "arn:x", Allow: []string{"*"}}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	const body = `{"name":"x"}`
	tests := []struct {
		name   string
		key    awsapi.Key
		target string
		header map[string][]string
	}{
		{"plain", w.root, "/", nil},
		{"session_token", session, "/", nil},
		{"no_path", w.root, "", nil},
		{"query", w.root, "/?b=2&a=1&a=0&c&d=%20e%2Fz~%2B", nil},
		{"query_unicode", w.root, "/?%E1%88%B4=bar", nil},
		{"header_spaces", w.root, "/", map[string][]string{"X-Amz-Meta-A": {"  a   b  c  "}}},
		{"header_twice", w.root, "/", map[string][]string{"X-Amz-Meta-A": {"b", "a ", "b"}}},
		{"header_empty", w.root, "/", map[string][]string{"X-Amz-Meta-A": {""}}},
		{"payload_hash", w.root, "/", map[string][]string{"X-Amz-Content-Sha256": {hash([]byte(body))}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.url+tt.target, strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/x-amz-json-1.0")
			req.Header.Set("X-Amz-Target", pcsTarget+".Echo")
			for k, v := range tt.header {
				req.Header[k] = v
			}
			signed := req.Clone(req.Context())
			if err := v4.NewSigner().SignHTTP(t.Context(), credentials(tt.key), signed, hash([]byte(body)), "pcs", "ap-northeast-1", w.now); err != nil {
				t.Fatal(err)
			}
			signed.Body = io.NopCloser(strings.NewReader(body))
			status, answer := send(t, signed)
			if status != 200 {
				t.Fatalf("got %d %s", status, answer)
			}
			// Any change afterwards is found.
			for what, change := range map[string]func(r *http.Request){
				"body":   func(r *http.Request) { r.Body = io.NopCloser(strings.NewReader(`{"name":"y"}`)) },
				"target": func(r *http.Request) { r.Header.Set("X-Amz-Target", pcsTarget+".Loose") },
				"query":  func(r *http.Request) { r.URL.RawQuery += "&z=1" },
				"extra":  func(r *http.Request) { r.Header.Set("X-Amz-Extra", "1") },
				"method": func(r *http.Request) { r.Method = http.MethodPut },
				"region": func(r *http.Request) {
					r.Header.Set("Authorization", strings.Replace(r.Header.Get("Authorization"), "/ap-northeast-1/", "/us-east-1/", 1))
				},
			} {
				changed := signed.Clone(t.Context())
				changed.Body = io.NopCloser(strings.NewReader(body))
				change(changed)
				if status, answer := send(t, changed); !strings.Contains(answer, "InvalidSignatureException") {
					t.Errorf("changed %s: got %d %s", what, status, answer)
				}
			}
		})
	}
}

// TestSignLikeOfficialSigner compares our own signatures byte by byte.
func TestSignLikeOfficialSigner(t *testing.T) {
	key := awsapi.Key{ID: "AKIDEXAMPLE", Secret: "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", Token: "to/ken+"}
	for _, body := range []string{"", "{}", "Action=X&Version=1"} {
		make := func() *http.Request {
			req := httptest.NewRequest(http.MethodPost, "http://127.0.0.1:7300/?x=%20y&a=b", strings.NewReader(body))
			req.ContentLength = -1 // the official signer would sign it too
			req.Header.Set("Content-Type", "application/x-amz-json-1.0")
			req.Header.Set("X-Amz-Target", "T.Op")
			return req
		}
		ours, official := make(), make()
		awsapi.Sign(ours, []byte(body), key, "ap-northeast-1", "pcs", start)
		if err := v4.NewSigner().SignHTTP(context.Background(), credentials(key), official, hash([]byte(body)), "pcs", "ap-northeast-1", start); err != nil {
			t.Fatal(err)
		}
		for _, h := range []string{"Authorization", "X-Amz-Date", "X-Amz-Security-Token"} {
			if got, want := ours.Header.Get(h), official.Header.Get(h); got != want {
				t.Errorf("body %q: %s\n got %s\nwant %s", body, h, got, want)
			}
		}
	}
}

func TestPresigned(t *testing.T) {
	w := newWorld(t)
	session, err := w.keys.IssueSession(t.Context(), awsapi.Caller{Account: account, ARN: "arn:x", Allow: []string{"*"}}, 24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	presign := func(key awsapi.Key, expires string) string {
		u := w.url + "/?Action=Echo&Version=2011-06-15&Name=a%20b%2F%2B"
		if expires != "" {
			u += "&X-Amz-Expires=" + expires
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, u, nil)
		if err != nil {
			t.Fatal(err)
		}
		signed, _, err := v4.NewSigner().PresignHTTP(t.Context(), credentials(key), req, hash(nil), "sts", "us-east-1", w.now)
		if err != nil {
			t.Fatal(err)
		}
		return signed
	}
	get := func(u string) string {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, u, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, b := send(t, req)
		return b
	}
	good := presign(w.root, "3600")
	for _, u := range []string{good, presign(session, "60"), presign(w.root, "")} {
		if got := get(u); !strings.Contains(got, "<name>a b/+</name>") {
			t.Errorf("got %s", got)
		}
	}
	for what, u := range map[string]string{
		"SignatureDoesNotMatch": strings.Replace(good, "Name=a", "Name=b", 1),
		"IncompleteSignature":   strings.Replace(good, "X-Amz-Expires=3600", "X-Amz-Expires=9999999", 1),
		"InvalidClientTokenId":  strings.Replace(presign(session, "60"), "X-Amz-Security-Token=", "X-Amz-Security-Tokem=", 1),
	} {
		if got := get(u); !strings.Contains(got, what) {
			t.Errorf("got %s, want %s", got, what)
		}
	}
	w.now = w.now.Add(59 * time.Minute)
	if got := get(good); !strings.Contains(got, "EchoResult") {
		t.Errorf("before its end: got %s", got)
	}
	w.now = w.now.Add(2 * time.Minute)
	if got := get(good); !strings.Contains(got, "Signature expired") {
		t.Errorf("after its end: got %s", got)
	}
}

func TestBrokenAuthorization(t *testing.T) {
	w := newWorld(t)
	const good = "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20261130/ap-northeast-1/pcs/aws4_request, SignedHeaders=host;x-amz-date;x-amz-target, Signature=" +
		"5d672d79c15b13162d9279b0855cfba6789a8edb4c82c400e06b5924a6f2b5d7"
	tests := []struct{ name, auth, want string }{
		{"other_algorithm", "Basic dXNlcjpwYXNz", "IncompleteSignatureException"},
		{"empty", " ", "IncompleteSignatureException"},
		{"no_signature", strings.Split(good, ", Signature")[0], "IncompleteSignatureException"},
		{"short_signature", good[:len(good)-2], "IncompleteSignatureException"},
		{"short_scope", strings.Replace(good, "/pcs", "", 1), "IncompleteSignatureException"},
		{"no_host", strings.Replace(good, "host;", "", 1), "InvalidSignatureException"},
		{"target_not_signed", strings.Replace(good, ";x-amz-target", "", 1), "InvalidSignatureException"},
		{"bad_region", strings.Replace(good, "ap-northeast-1", "moon", 1), "InvalidSignatureException"},
		{"upper_case_headers", strings.Replace(good, "host;", "Host;", 1), "IncompleteSignatureException"},
		{"other_date", strings.Replace(good, "20261130", "20261129", 1), "UnrecognizedClientException"},
		{"unknown_key", good, "UnrecognizedClientException"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.url, strings.NewReader("{}"))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("X-Amz-Target", pcsTarget+".Echo")
			req.Header.Set("X-Amz-Date", "20261130T120000Z")
			req.Header.Set("Authorization", tt.auth)
			if _, b := send(t, req); !strings.Contains(b, `"__type":"`+tt.want+`"`) {
				t.Errorf("got %s, want %s", b, tt.want)
			}
		})
	}
}

func TestUnsignedPayloadIsRefused(t *testing.T) {
	w := newWorld(t)
	for _, payload := range []string{"UNSIGNED-PAYLOAD", "STREAMING-UNSIGNED-PAYLOAD-TRAILER", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, w.url, strings.NewReader("{}"))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Amz-Target", pcsTarget+".Echo")
		req.Header.Set("X-Amz-Content-Sha256", payload)
		if err := v4.NewSigner().SignHTTP(t.Context(), credentials(w.root), req, payload, "pcs", "ap-northeast-1", w.now); err != nil {
			t.Fatal(err)
		}
		req.Body = io.NopCloser(strings.NewReader("{}"))
		if status, b := send(t, req); status != http.StatusBadRequest || !strings.Contains(b, "must be signed") {
			t.Errorf("%s: got %d %s", payload, status, b)
		}
	}
}

func TestBodyLimit(t *testing.T) {
	w := newWorld(t)
	err := w.client(w.root).JSON(t.Context(), "pcs", pcsTarget, "Echo", "1.0", map[string]any{"name": strings.Repeat("x", 1<<20)}, nil)
	if code(err) != "RequestEntityTooLargeException" {
		t.Errorf("got %v", err)
	}
	if err := w.client(w.root).JSON(t.Context(), "pcs", pcsTarget, "Echo", "1.0", map[string]any{"name": strings.Repeat("x", 1<<20-100)}, nil); err != nil {
		t.Error(err)
	}
}

// TestOfficialClients decodes answers and errors with the Go SDK.
func TestOfficialClients(t *testing.T) {
	w := newWorld(t)
	w.now = time.Now().UTC()
	provider := aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) { return credentials(w.root), nil })
	_, err := pcs.New(pcs.Options{BaseEndpoint: aws.String(w.url), Region: "ap-northeast-1", Credentials: provider, RetryMaxAttempts: 1}).
		ListClusters(t.Context(), nil)
	if err == nil || !strings.Contains(err.Error(), "ValidationException") || !strings.Contains(err.Error(), "ListClusters") {
		t.Errorf("pcs: got %v", err)
	}
	_, err = sts.New(sts.Options{BaseEndpoint: aws.String(w.url), Region: "ap-northeast-1", Credentials: provider, RetryMaxAttempts: 1}).
		GetCallerIdentity(t.Context(), nil)
	if err == nil || !strings.Contains(err.Error(), "InvalidAction") {
		t.Errorf("sts: got %v", err)
	}
}

// FuzzFrontDoor sends requests that nobody signed properly: none may be
// answered with success, and none may break the server.
func FuzzFrontDoor(f *testing.F) {
	w := newWorld(f)
	server := awsapi.NewServer(awsapi.Options{
		Keys: w.keys, Account: account, Services: services(), Now: func() time.Time { return start },
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	f.Add("POST", "/", "", "application/x-amz-json-1.0", pcsTarget+".Echo", "AWS4-HMAC-SHA256 Credential="+w.root.ID+"/20261130/ap-northeast-1/pcs/aws4_request, SignedHeaders=host;x-amz-date, Signature="+hash(nil), []byte("{}"))
	f.Add("POST", "/", "", "application/x-www-form-urlencoded", "", "AWS4-HMAC-SHA256 Credential=a/b/c/ec2/aws4_request,SignedHeaders=host,Signature="+hash(nil), []byte("Action=Echo&Version=2016-11-15&Filter.1.Name=x"))
	f.Add("GET", "/x", "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=a%2F20261130%2Fus-east-1%2Fsts%2Faws4_request&X-Amz-Date=20261130T120000Z&X-Amz-SignedHeaders=host&X-Amz-Signature="+hash(nil), "", "", "", []byte{})
	f.Fuzz(func(t *testing.T, method, path, query, contentType, target, auth string, body []byte) {
		req, err := http.NewRequestWithContext(t.Context(), method, "http://x/", bytes.NewReader(body))
		if err != nil {
			t.Skip()
		}
		req.URL = &url.URL{Path: path, RawQuery: query}
		req.Host = "x"
		req.Header.Set("Content-Type", contentType)
		req.Header.Set("X-Amz-Target", target)
		req.Header.Set("X-Amz-Date", "20261130T120000Z")
		if auth != "" {
			req.Header.Set("Authorization", auth)
		}
		rec := httptest.NewRecorder()
		server.ServeHTTP(rec, req)
		if rec.Code < 400 || rec.Code >= 500 {
			t.Errorf("got status %d: %s", rec.Code, rec.Body)
		}
	})
}

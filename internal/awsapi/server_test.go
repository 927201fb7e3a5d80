package awsapi_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/openpcs/openpcs/internal/awsapi"
	"github.com/openpcs/openpcs/internal/store"
)

const account = "123456789012"

var start = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

type echoIn struct {
	Name  string            `json:"name"`
	Count *int32            `json:"count"`
	Tags  map[string]string `json:"tags"`
	Inner struct {
		List []string `json:"list"`
	} `json:"inner"`
}

type echoOut struct {
	Name   string      `json:"name"`
	Region string      `json:"region"`
	At     awsapi.Time `json:"at,omitzero"`
}

type echoForm struct {
	Name   string `query:"Name,required"`
	Count  int32  `query:"Count"`
	Filter []struct {
		Name   string   `query:"Name"`
		Values []string `query:"Value"`
	} `query:"Filter"`
}

type echoXML struct {
	Name  string   `xml:"name"`
	Items []string `xml:"itemSet"`
}

func echo(_ context.Context, r *awsapi.Request, in *echoIn) (*echoOut, error) {
	switch in.Name {
	case "panic":
		panic("boom")
	case "fail":
		return nil, errors.New("disk on fire")
	case "conflict":
		return nil, &awsapi.Error{Code: "ConflictException", Message: "taken", Fields: map[string]any{"resourceId": "pcs_1"}}
	}
	return &echoOut{Name: in.Name, Region: r.Region, At: awsapi.At(r.Now)}, nil
}

func echoFormOp(_ context.Context, _ *awsapi.Request, in *echoForm) (*echoXML, error) {
	out := &echoXML{Name: in.Name}
	for _, f := range in.Filter {
		out.Items = append(out.Items, f.Name+"="+strings.Join(f.Values, ","))
	}
	return out, nil
}

func services() []awsapi.Service {
	return []awsapi.Service{
		{
			Name: "pcs", Protocol: awsapi.JSON10, Target: "AWSParallelComputingService",
			Operations: []awsapi.Operation{
				awsapi.StrictJSON("Echo", "pcs:Echo", true, echo),
				awsapi.JSON("Loose", "pcs:Loose", true, echo),
			},
			Fault: func(f *awsapi.Fault) *awsapi.Error {
				switch f.Kind {
				case awsapi.FaultCannotParse:
					return &awsapi.Error{Code: "ValidationException", Message: f.Message, Fields: map[string]any{"reason": "cannotParse"}}
				case awsapi.FaultUnknownOperation:
					return &awsapi.Error{Code: "ValidationException", Message: f.Message, Fields: map[string]any{"reason": "unknownOperation"}}
				case awsapi.FaultInternal:
					return &awsapi.Error{Code: "InternalServerException", Message: f.Message, Status: 500}
				}
				return nil
			},
		},
		{
			Name: "ssm", Protocol: awsapi.JSON11, Target: "AmazonSSM",
			Operations: []awsapi.Operation{awsapi.JSON("Echo", "ssm:Echo", true, echo)},
		},
		{
			Name: "ec2", Protocol: awsapi.EC2Query, Version: "2016-11-15", Namespace: "http://ec2.amazonaws.com/doc/2016-11-15/",
			Operations: []awsapi.Operation{awsapi.Form("Echo", "ec2:Echo", true, echoFormOp)},
		},
		{
			Name: "sts", Protocol: awsapi.Query, Version: "2011-06-15", Namespace: "https://sts.amazonaws.com/doc/2011-06-15/",
			Operations: []awsapi.Operation{awsapi.Form("Echo", "sts:Echo", true, echoFormOp)},
		},
	}
}

type world struct {
	url  string
	keys *awsapi.Keys
	root awsapi.Key
	now  time.Time
}

func newWorld(t testing.TB) *world {
	t.Helper()
	st, err := store.Open(filepath.Join(t.TempDir(), "state.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	w := &world{now: start}
	clock := func() time.Time { return w.now }
	w.keys = &awsapi.Keys{Store: st, Account: account, Now: clock}
	if w.root, err = w.keys.EnsureRoot(context.Background()); err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewServer(awsapi.NewServer(awsapi.Options{
		Keys: w.keys, Account: account, Services: services(), Now: clock,
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)), PageSecret: []byte("x"),
	}))
	t.Cleanup(srv.Close)
	w.url = srv.URL
	return w
}

func (w *world) client(key awsapi.Key) *awsapi.Client {
	return &awsapi.Client{Endpoint: w.url, Key: key, Region: "ap-northeast-1", Now: func() time.Time { return w.now }}
}

const (
	pcsTarget = "AWSParallelComputingService"
	ssmTarget = "AmazonSSM"
)

func code(err error) string {
	var e *awsapi.Error
	if errors.As(err, &e) {
		return e.Code
	}
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestClientAndServerAgree(t *testing.T) {
	w := newWorld(t)
	c := w.client(w.root)
	var out struct{ Name, Region, At string }
	if err := c.JSON(t.Context(), "pcs", pcsTarget, "Echo", "1.0", map[string]any{"name": "ü <&>"}, &out); err != nil {
		t.Fatal(err)
	}
	if out.Name != "ü <&>" || out.Region != "ap-northeast-1" || out.At != "2026-11-30T12:00:00.000Z" {
		t.Errorf("got %+v", out)
	}
	for _, svc := range []struct{ name, version, want string }{
		{"ec2", "2016-11-15", `<EchoResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"><requestId>`},
		{"sts", "2011-06-15", `<EchoResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><EchoResult><name>a b</name>`},
	} {
		b, err := c.Query(t.Context(), svc.name, svc.version, "Echo", url.Values{"Name": {"a b"}})
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(b), svc.want) {
			t.Errorf("%s: got %s, want %s in it", svc.name, b, svc.want)
		}
	}
}

// TestErrorCodes is the table of who is told what.
func TestErrorCodes(t *testing.T) {
	w := newWorld(t)
	wrong := w.root
	wrong.Secret = "wrong"
	unknown := w.root
	unknown.ID = "AKIAAAAAAAAAAAAAAAAA"
	limited, err := w.keys.IssueSession(t.Context(), awsapi.Caller{Account: account, ARN: "arn:aws:sts::123456789012:assumed-role/AWSPCS-x/i-1", Allow: []string{"pcs:L*"}}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	denied, err := w.keys.IssueSession(t.Context(), awsapi.Caller{Account: account, ARN: "arn:aws:sts::123456789012:assumed-role/AWSPCS-x/i-1", Allow: []string{"*"}, Deny: []string{"*:echo"}}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	noToken, badToken := limited, limited
	noToken.Token, badToken.Token = "", "x"

	tests := []struct {
		name           string
		key            awsapi.Key
		skew           time.Duration
		json, sts, ec2 string
	}{
		{"right_key", w.root, 0, "", "", ""},
		{"clock_a_bit_off", w.root, 14 * time.Minute, "", "", ""},
		{"unknown_key", unknown, 0, "UnrecognizedClientException", "InvalidClientTokenId", "AuthFailure"},
		{"wrong_secret", wrong, 0, "InvalidSignatureException", "SignatureDoesNotMatch", "AuthFailure"},
		{"session_key_without_token", noToken, 0, "UnrecognizedClientException", "InvalidClientTokenId", "AuthFailure"},
		{"session_key_with_other_token", badToken, 0, "UnrecognizedClientException", "InvalidClientTokenId", "AuthFailure"},
		{"too_old", w.root, -16 * time.Minute, "InvalidSignatureException", "SignatureDoesNotMatch", "RequestExpired"},
		{"too_new", w.root, 16 * time.Minute, "InvalidSignatureException", "SignatureDoesNotMatch", "RequestExpired"},
		{"not_permitted", limited, 0, "AccessDeniedException", "AccessDenied", "UnauthorizedOperation"},
		{"denied", denied, 0, "AccessDeniedException", "AccessDenied", "UnauthorizedOperation"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := w.client(tt.key)
			c.Now = func() time.Time { return w.now.Add(tt.skew) }
			for _, j := range [][2]string{{"pcs", pcsTarget}, {"ssm", ssmTarget}} {
				if got := code(c.JSON(t.Context(), j[0], j[1], "Echo", "1.0", nil, nil)); got != tt.json {
					t.Errorf("%s: got %q, want %q", j[0], got, tt.json)
				}
			}
			_, err := c.Query(t.Context(), "sts", "2011-06-15", "Echo", url.Values{"Name": {"x"}})
			if got := code(err); got != tt.sts {
				t.Errorf("sts: got %q, want %q", got, tt.sts)
			}
			_, err = c.Query(t.Context(), "ec2", "2016-11-15", "Echo", url.Values{"Name": {"x"}})
			if got := code(err); got != tt.ec2 {
				t.Errorf("ec2: got %q, want %q", got, tt.ec2)
			}
		})
	}

	t.Run("expired_session", func(t *testing.T) {
		w.now = w.now.Add(2 * time.Hour)
		defer func() { w.now = start }()
		c := w.client(limited)
		if got := code(c.JSON(t.Context(), "pcs", pcsTarget, "Loose", "1.0", nil, nil)); got != "ExpiredTokenException" {
			t.Errorf("got %q", got)
		}
		_, err := c.Query(t.Context(), "ec2", "2016-11-15", "Echo", nil)
		if got := code(err); got != "RequestExpired" {
			t.Errorf("ec2: got %q", got)
		}
		_, err = c.Query(t.Context(), "sts", "2011-06-15", "Echo", nil)
		if got := code(err); got != "ExpiredToken" {
			t.Errorf("sts: got %q", got)
		}
	})
	t.Run("not_signed", func(t *testing.T) {
		for _, tt := range []struct{ contentType, target, body, want string }{
			{"application/x-amz-json-1.0", pcsTarget + ".Echo", "{}", "MissingAuthenticationTokenException"},
			{"application/x-www-form-urlencoded", "", "Action=Echo&Version=2011-06-15", "MissingAuthenticationToken"},
			{"application/x-www-form-urlencoded", "", "Action=Echo&Version=2016-11-15", "<Response><Errors><Error><Code>MissingAuthenticationToken"},
		} {
			req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, w.url, strings.NewReader(tt.body))
			req.Header.Set("Content-Type", tt.contentType)
			if tt.target != "" {
				req.Header.Set("X-Amz-Target", tt.target)
			}
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			b, _ := io.ReadAll(resp.Body)
			_ = resp.Body.Close()
			if !strings.Contains(string(b), tt.want) {
				t.Errorf("got %s, want %s", b, tt.want)
			}
		}
	})
}

func TestHandlerErrors(t *testing.T) {
	w := newWorld(t)
	c := w.client(w.root)
	tests := []struct {
		name, service, target, op string
		in                        any
		code, message             string
		fields                    map[string]any
	}{
		{"own_error", "pcs", pcsTarget, "Echo", map[string]any{"name": "conflict"}, "ConflictException", "taken", map[string]any{"resourceId": "pcs_1"}},
		{"plain_error_pcs", "pcs", pcsTarget, "Echo", map[string]any{"name": "fail"}, "InternalServerException", "internal error", nil},
		{"plain_error_ssm", "ssm", ssmTarget, "Echo", map[string]any{"name": "fail"}, "InternalServerError", "internal error", nil},
		{"panic", "pcs", pcsTarget, "Echo", map[string]any{"name": "panic"}, "InternalServerException", "internal error", nil},
		{"unknown_member_strict", "pcs", pcsTarget, "Echo", map[string]any{"inner": map[string]any{"foo": 1}}, "ValidationException", "inner.foo", nil},
		{"unknown_member_loose", "pcs", pcsTarget, "Loose", map[string]any{"inner": map[string]any{"foo": 1}}, "", "", nil},
		{"wrong_type", "pcs", pcsTarget, "Loose", map[string]any{"inner": map[string]any{"list": []any{"a", 1}}}, "SerializationException", "inner.list[1] must be a string, not a number", nil},
		{"too_big", "pcs", pcsTarget, "Loose", map[string]any{"count": 1 << 40}, "SerializationException", "count must be an integer of 32 bits", nil},
		{"not_an_object", "pcs", pcsTarget, "Loose", []int{1}, "ValidationException", "must be a JSON object", map[string]any{"reason": "cannotParse"}},
		{"not_an_object_ssm", "ssm", ssmTarget, "Echo", "x", "SerializationException", "must be a JSON object", nil},
		{"unknown_operation", "pcs", pcsTarget, "Nope", nil, "ValidationException", "Nope", map[string]any{"reason": "unknownOperation"}},
		{"unknown_operation_ssm", "ssm", ssmTarget, "Nope", nil, "UnknownOperationException", "Nope", nil},
		{"wrong_scope", "ssm", pcsTarget, "Echo", nil, "InvalidSignatureException", "scoped to correct service: 'pcs'", nil},
		{"no_such_service", "sqs", "AmazonSQS", "Echo", nil, "UnknownOperationException", "openpcs has no service 'sqs'", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := c.JSON(t.Context(), tt.service, tt.target, tt.op, "1.0", tt.in, nil)
			if code(err) != tt.code {
				t.Fatalf("got %v, want %s", err, tt.code)
			}
			if err == nil {
				return
			}
			var e *awsapi.Error
			errors.As(err, &e)
			if !strings.Contains(e.Message, tt.message) {
				t.Errorf("got message %q, want %q in it", e.Message, tt.message)
			}
			for k, v := range tt.fields {
				if e.Fields[k] != v {
					t.Errorf("field %s: got %v, want %v", k, e.Fields[k], v)
				}
			}
		})
	}
}

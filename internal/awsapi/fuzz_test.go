package awsapi_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/openpcs/openpcs/internal/awsapi"
	"github.com/openpcs/openpcs/internal/awsapi/awsapitest"
	"github.com/openpcs/openpcs/internal/ec2"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/iam"
	"github.com/openpcs/openpcs/internal/logs"
	"github.com/openpcs/openpcs/internal/pcs"
	"github.com/openpcs/openpcs/internal/secretsmanager"
	"github.com/openpcs/openpcs/internal/ssm"
	"github.com/openpcs/openpcs/internal/sts"
)

// nobody has no instances.
type nobody struct{}

func (nobody) TerminateInstance(context.Context, string, string) error { return nil }
func (nobody) RebootInstance(context.Context, string) error            { return nil }
func (nobody) ConsoleOutput(context.Context, string) ([]byte, error)   { return nil, nil }
func (nobody) Run(context.Context, string, string, string, time.Duration) (stdout, stderr []byte, code int, err error) {
	return nil, nil, 0, nil
}

// allServices are those that openpcs serves, over a state file of its own.
func allServices(t testing.TB) (*awsapitest.World, []awsapi.Service) {
	t.Helper()
	w := awsapitest.New(t)
	pool := netip.MustParsePrefix("10.77.0.0/16")
	people := iam.New(iam.Options{Store: w.Store, Account: awsapitest.Account, Now: w.Clock.Now})
	if err := people.EnsureDefaults(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := ec2.EnsureRegion(t.Context(), w.Store, awsapitest.Region, pool); err != nil {
		t.Fatal(err)
	}
	groups, err := logs.New(logs.Options{Store: w.Store, Account: awsapitest.Account, Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = groups.Close() })
	service := &pcs.Service{Store: w.Store, Account: awsapitest.Account, Pool: pool, FreeAddress: fleet.PickAddress}
	return w, []awsapi.Service{
		service.API(), ec2.New(ec2.Options{Store: w.Store, Account: awsapitest.Account, Pool: pool, Instances: nobody{}}).Service(),
		people.Service(), sts.Service(),
		ssm.New(ssm.Options{Store: w.Store, Account: awsapitest.Account, Runner: nobody{}, Now: w.Clock.Now}).Service(),
		secretsmanager.New(secretsmanager.Options{Store: w.Store, Account: awsapitest.Account}).Service(),
		groups.Service(),
	}
}

// FuzzOperations sends documents and forms that are signed well to every
// operation: whatever they say, they are answered, and not with a failure of
// the server.
func FuzzOperations(f *testing.F) {
	w, services := allServices(f)
	server := awsapi.NewServer(awsapi.Options{Keys: oneKey(aKey), Account: awsapitest.Account, Services: services, Now: w.Clock.Now, Logger: quiet()})
	for i, svc := range services {
		for j := range svc.Operations {
			body := `{"clusterIdentifier":"pcs_1","tags":{"a":"b"},"SecretId":"x","InstanceIds":["i-1"],"maxResults":1}`
			if svc.Target == "" {
				body = "RoleName=x&Filter.1.Name=vpc-id&Filter.1.Value.1=*&MaxResults=5&DryRun=true"
			}
			f.Add(byte(i), byte(j), body)
		}
	}
	f.Fuzz(func(t *testing.T, i, j byte, body string) {
		svc := services[int(i)%len(services)]
		op := svc.Operations[int(j)%len(svc.Operations)]
		contentType, target := "application/x-amz-json-1.0", svc.Target+"."+op.Name
		if svc.Target == "" {
			contentType, target = "application/x-www-form-urlencoded", ""
			body += "&Action=" + op.Name + "&Version=" + svc.Version
		}
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://openpcs.test/", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", contentType)
		if target != "" {
			req.Header.Set("X-Amz-Target", target)
		}
		awsapi.Sign(req, []byte(body), aKey, awsapitest.Region, svc.Name, w.Clock.Now())
		rec := httptest.NewRecorder()
		server.ServeHTTP(rec, req)
		if rec.Code >= 500 || rec.Code < 200 || rec.Code == 403 {
			t.Errorf("%s %s of %q: %d %s", svc.Name, op.Name, body, rec.Code, rec.Body)
		}
	})
}

// FuzzSigned signs requests with our own signer, which must be verified
// whatever they have in path, query and headers.
func FuzzSigned(f *testing.F) {
	server := awsapi.NewServer(awsapi.Options{Keys: oneKey(aKey), Account: account, Services: services(), Now: func() time.Time { return start }, Logger: quiet()})
	f.Add("/", "a=b&a=a&c", "x", "text/plain; a=\"b  c\"", []byte("{}"))
	f.Add("/a b/../c//d/", "%41=%7e&+=%2B", "  a   b ", "", []byte{})
	f.Add("/ü", "&&=&==", "a,b", "x", []byte("x"))
	f.Fuzz(func(t *testing.T, path, query, meta, contentType string, body []byte) {
		if _, err := url.ParseQuery(query); err != nil || strings.Contains(query, "X-Amz-") || strings.ContainsAny(query+path, "\x00\r\n #?") {
			t.Skip()
		}
		u := &url.URL{Scheme: "http", Host: "openpcs.test", Path: path, RawQuery: query}
		if !strings.HasPrefix(path, "/") {
			t.Skip()
		}
		for _, service := range []string{"pcs", "ec2"} {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://openpcs.test/", strings.NewReader(string(body)))
			if err != nil {
				t.Fatal(err)
			}
			req.URL = u
			req.Header.Set("X-Amz-Meta", meta)
			req.Header.Set("Content-Type", contentType)
			awsapi.Sign(req, body, aKey, "ap-northeast-1", service, start)
			rec := httptest.NewRecorder()
			server.ServeHTTP(rec, req)
			for _, code := range []string{"InvalidSignatureException", "SignatureDoesNotMatch", "AuthFailure"} {
				if strings.Contains(rec.Body.String(), code) {
					t.Errorf("%s %q?%q: %s", service, path, query, rec.Body)
				}
			}
			if rec.Code >= 500 {
				t.Errorf("got %d %s", rec.Code, rec.Body)
			}
			// One bit more is another request.
			req.Header.Set("X-Amz-Meta", meta+"x")
			req.Body = http.NoBody
			if len(body) > 0 {
				rec = httptest.NewRecorder()
				server.ServeHTTP(rec, req)
				if rec.Code < 400 {
					t.Errorf("a changed request is taken: %d %s", rec.Code, rec.Body)
				}
			}
		}
	})
}

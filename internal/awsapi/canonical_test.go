package awsapi

import (
	"context"
	"encoding/hex"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// TestDerivedSignature is the worked example of AWS's documentation: a GET
// of IAM's ListUsers.
func TestDerivedSignature(t *testing.T) {
	r := httptest.NewRequest(http.MethodGet, "https://iam.amazonaws.com/?Action=ListUsers&Version=2010-05-08", nil)
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded; charset=utf-8")
	r.Header.Set("X-Amz-Date", "20150830T123600Z")
	canonical := canonicalRequest(r, []string{"content-type", "host", "x-amz-date"}, "iam", hashHex(nil))
	if got, want := hashHex([]byte(canonical)), "f536975d06c0309214f805bb90ccff089219ecd68b2577efef23edd43b7e1a59"; got != want {
		t.Errorf("canonical request: got hash %s, want %s\n%s", got, want, canonical)
	}
	at := time.Date(2015, 8, 30, 12, 36, 0, 0, time.UTC)
	sig := sign("wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "20150830", "us-east-1", "iam",
		stringToSign(at, "20150830/us-east-1/iam/aws4_request", canonical))
	if got, want := hex.EncodeToString(sig), "5d672d79c15b13162d9279b0855cfba6789a8edb4c82c400e06b5924a6f2b5d7"; got != want {
		t.Errorf("signature: got %s, want %s", got, want)
	}
}

func TestCanonicalPath(t *testing.T) {
	for _, tt := range []struct{ service, path, want string }{
		{"pcs", "", "/"},
		{"pcs", "/", "/"},
		{"pcs", "//", "/"},
		{"pcs", "/./", "/"},
		{"pcs", "/example/..", "/"},
		{"pcs", "/../../x", "/x"},
		{"pcs", "//example//", "/example/"},
		{"pcs", "/a%20b", "/a%2520b"},
		{"s3", "/a%20b//c/../d", "/a%20b//c/../d"},
		{"s3", "/a+b", "/a%2Bb"},
	} {
		if got := canonicalPath(tt.path, tt.service); got != tt.want {
			t.Errorf("canonicalPath(%q, %s) = %q, want %q", tt.path, tt.service, got, tt.want)
		}
	}
}

func TestCanonicalQuery(t *testing.T) {
	for _, tt := range []struct{ raw, want string }{
		{"", ""},
		{"b=2&a=1", "a=1&b=2"},
		{"a=2&a=1", "a=1&a=2"},
		{"a", "a="},
		{"a-b=1&a.b=1&aB=1&ab=1", "a-b=1&a.b=1&aB=1&ab=1"},
		{"a=%2f%7E+x", "a=%2F~%20x"},
		{"a=b=c", "a=b%3Dc"},
		{"X-Amz-Signature=x&a=1&&", "a=1"},
	} {
		if got := canonicalQuery(tt.raw); got != tt.want {
			t.Errorf("canonicalQuery(%q) = %q, want %q", tt.raw, got, tt.want)
		}
	}
}

// FuzzParseSignature looks for inputs that break the parser, and checks that
// what it accepts has all its parts.
func FuzzParseSignature(f *testing.F) {
	sig := strings.Repeat("0", 64)
	f.Add("AWS4-HMAC-SHA256 Credential=a/20261130/us-east-1/pcs/aws4_request, SignedHeaders=host, Signature="+sig, "20261130T120000Z", "")
	f.Add("", "", "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=a/b/c/d/aws4_request&X-Amz-Date=20261130T120000Z&X-Amz-Expires=60&X-Amz-SignedHeaders=host&X-Amz-Signature="+sig)
	f.Fuzz(func(t *testing.T, auth, date, query string) {
		r := &http.Request{Header: http.Header{}}
		if auth != "" {
			r.Header.Set("Authorization", auth)
		}
		r.Header.Set("X-Amz-Date", date)
		values := map[string][]string{}
		for p := range strings.SplitSeq(query, "&") {
			k, v, _ := strings.Cut(p, "=")
			values[k] = append(values[k], v)
		}
		s, err := parseSignature(r, values)
		if err != nil {
			return
		}
		if s.keyID == "" || s.region == "" || s.service == "" || len(s.headers) == 0 || len(s.signature) != 32 || s.at.IsZero() {
			t.Errorf("got %+v", s)
		}
		_ = s.checkTime(s.at)
		_ = s.unsigned(r.Header)
	})
}

func TestXML(t *testing.T) {
	type item struct {
		ID   string    `xml:"id"`
		At   time.Time `xml:"at"`
		On   *bool     `xml:"on"`
		Note string    `xml:"note,omitempty"`
	}
	type more struct {
		Next string `xml:"next,omitempty"`
	}
	type out struct {
		Items  []item   `xml:"itemSet"`
		Empty  []string `xml:"emptySet"`
		Groups []string `xml:"groupSet>groupId"`
		Gone   []string `xml:"goneSet,omitempty"`
		N      int      `xml:"n"`
		F      float64  `xml:"f"`
		more
	}
	on := true
	v := &out{
		Items:  []item{{ID: "a<&\x00>", At: time.Date(2026, 1, 2, 3, 4, 5, 6e6, time.UTC), On: &on}, {ID: "b"}},
		Groups: []string{"sg-1"}, N: -3, F: 2.5, more: more{"token"},
	}
	const body = `<itemSet><item><id>a&lt;&amp;` + "\uFFFD" + `&gt;</id><at>2026-01-02T03:04:05.006Z</at><on>true</on></item><item><id>b</id></item></itemSet>` +
		`<emptySet></emptySet><groupSet><groupId>sg-1</groupId></groupSet><n>-3</n><f>2.5</f><next>token</next>`
	const head = `<?xml version="1.0" encoding="UTF-8"?>` + "\n"
	for _, tt := range []struct {
		svc  Service
		v    any
		want string
	}{
		{Service{Protocol: EC2Query, Namespace: "urn:x"}, v, head + `<GetResponse xmlns="urn:x"><requestId>id</requestId>` + body + `</GetResponse>`},
		{Service{Protocol: Query, Namespace: "urn:x"}, v, head + `<GetResponse xmlns="urn:x"><GetResult>` + strings.ReplaceAll(strings.ReplaceAll(body, "<item>", "<member>"), "</item>", "</member>") +
			`</GetResult><ResponseMetadata><RequestId>id</RequestId></ResponseMetadata></GetResponse>`},
		{Service{Protocol: Query, Namespace: "urn:x"}, nil, head + `<GetResponse xmlns="urn:x"><ResponseMetadata><RequestId>id</RequestId></ResponseMetadata></GetResponse>`},
	} {
		got, err := encodeXML(&tt.svc, "Get", "id", tt.v)
		if err != nil || string(got) != tt.want {
			t.Errorf("got  %s, %v\nwant %s", got, err, tt.want)
		}
	}
	if got, want := string(ec2ErrorXML(&Error{Code: "C", Message: "<m>"}, "id")), head+`<Response><Errors><Error><Code>C</Code><Message>&lt;m&gt;</Message></Error></Errors><RequestID>id</RequestID></Response>`; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if got, want := string(queryErrorXML(&Error{Code: "C", Message: "m", Status: 500}, "urn:x", "id")), head+`<ErrorResponse xmlns="urn:x"><Error><Type>Receiver</Type><Code>C</Code><Message>m</Message></Error><RequestId>id</RequestId></ErrorResponse>`; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func noop(context.Context, *Request, *struct{}) (*struct{}, error) { return nil, nil } // never called

// TestTablesAreChecked keeps mistakes in tables from reaching users.
func TestTablesAreChecked(t *testing.T) {
	good := Service{Name: "pcs", Protocol: JSON10, Target: "T", Operations: []Operation{JSON("A", "pcs:A", true, noop)}}
	for name, change := range map[string]func(s *Service){
		"no_name":       func(s *Service) { s.Name = "" },
		"no_target":     func(s *Service) { s.Target = "" },
		"no_version":    func(s *Service) { s.Protocol = Query },
		"no_permission": func(s *Service) { s.Operations = []Operation{JSON("A", "", true, noop)} },
		"no_handler":    func(s *Service) { s.Operations = []Operation{{Name: "A", Permission: "pcs:A"}} },
		"twice":         func(s *Service) { s.Operations = append(s.Operations[:1:1], s.Operations[0]) },
	} {
		s := good
		change(&s)
		if s.check() == nil {
			t.Errorf("%s: not found", name)
		}
	}
	if err := good.check(); err != nil {
		t.Error(err)
	}
}

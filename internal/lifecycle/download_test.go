package lifecycle_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/lifecycle"
)

// answers are given to requests without a network, so that the clock is the test's.
type answers func(n int, req *http.Request) (int, string)

func (c answers) download(t *testing.T, src fleet.ScriptSource) (body []byte, tries int, err error) {
	t.Helper()
	d := lifecycle.Downloader{
		S3: func(ctx context.Context, bucket, key, version string) (*http.Request, error) {
			return http.NewRequestWithContext(ctx, http.MethodGet, "http://s3/"+bucket+"/"+key+"?versionId="+version, nil)
		},
		Transport: transport(func(req *http.Request) (*http.Response, error) {
			tries++
			status, text := c(tries, req)
			if status == 0 {
				if text == "hang" {
					<-req.Context().Done()
					return nil, req.Context().Err()
				}
				return nil, fmt.Errorf("%s", text)
			}
			w := httptest.NewRecorder()
			if at, ok := strings.CutPrefix(text, "Location: "); ok {
				w.Header().Set("Location", at)
			}
			w.WriteHeader(status)
			_, _ = w.WriteString(text)
			resp := w.Result()
			resp.Request = req
			return resp, nil
		}),
	}
	body, err = d.Get(t.Context(), src)
	return body, tries, err
}

type transport func(*http.Request) (*http.Response, error)

func (f transport) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

func s3Error(code, message string) string {
	return `<?xml version="1.0"?><Error><Code>` + code + `</Code><Message>` + message + `</Message></Error>`
}

// TestB7_DownloadsThatFail has a precise reason for each cause, and tries again
// only where that can help.
func TestB7_DownloadsThatFail(t *testing.T) {
	const good = "#!/bin/sh\n"
	always := func(status int, text string) answers {
		return func(int, *http.Request) (int, string) { return status, text }
	}
	twice := func(status int, text string) answers {
		return func(n int, _ *http.Request) (int, string) {
			if n < 3 {
				return status, text
			}
			return http.StatusOK, good
		}
	}
	sum := sha256.Sum256([]byte(good))
	right := hex.EncodeToString(sum[:])
	const s3, web = "s3://bucket/scripts/a b.sh", "https://host.example/a.sh"
	for name, tt := range map[string]struct {
		at       string
		version  string
		checksum string
		answers  answers
		tries    int
		says     string // empty: it succeeds
	}{
		"s3":                 {at: s3, answers: always(200, good), tries: 1},
		"https":              {at: web, answers: always(200, good), tries: 1},
		"right-checksum":     {at: s3, checksum: strings.ToUpper(right), answers: always(200, good), tries: 1},
		"wrong-checksum":     {at: s3, checksum: strings.Repeat("0", 64), answers: always(200, good), tries: 1, says: "its SHA-256 is " + right + ", and the checksum of the group's configuration is 000"},
		"s3-403":             {at: s3, answers: always(403, s3Error("AccessDenied", "Access Denied")), tries: 1, says: "403 AccessDenied: Access Denied; the role of the group's instance profile must allow s3:GetObject for it"},
		"s3-403-version":     {at: s3, version: "v1", answers: always(403, s3Error("AccessDenied", "Access Denied")), tries: 1, says: "must allow s3:GetObjectVersion"},
		"s3-404":             {at: s3, answers: always(404, s3Error("NoSuchKey", "The specified key does not exist.")), tries: 1, says: "404 NoSuchKey: The specified key does not exist."},
		"s3-elsewhere":       {at: s3, answers: always(301, s3Error("PermanentRedirect", "other region")), tries: 1, says: "301 PermanentRedirect: other region"},
		"https-403":          {at: web, answers: always(403, ""), tries: 1, says: "403 Forbidden; an https location must be readable without credentials"},
		"https-404":          {at: web, answers: always(404, ""), tries: 1, says: "404 Not Found"},
		"503-twice-then-200": {at: s3, answers: twice(503, s3Error("SlowDown", "Slow down")), tries: 3},
		"429-twice-then-200": {at: web, answers: twice(429, ""), tries: 3},
		"500-always":         {at: s3, answers: always(500, s3Error("InternalError", "again")), tries: 3, says: "500 InternalError: again (after 3 tries)"},
		"connection-twice":   {at: web, answers: twice(0, "connection refused"), tries: 3},
		"connection-always":  {at: web, answers: always(0, "connection refused"), tries: 3, says: "connection refused (after 3 tries)"},
		"silence":            {at: s3, answers: always(0, "hang"), tries: 3, says: "no answer within 4s (after 3 tries)"},
		"largest":            {at: s3, answers: always(200, strings.Repeat("x", lifecycle.MaxScript)), tries: 1},
		"too-large":          {at: s3, answers: always(200, strings.Repeat("x", lifecycle.MaxScript+1)), tries: 1, says: "it is larger than 2 MiB"},
		"redirect": {at: web, tries: 2, answers: func(n int, _ *http.Request) (int, string) {
			return []int{302, 200}[n-1], "Location: https://other.example/"
		}},
		"redirect-to-plain":     {at: web, tries: 1, answers: always(302, "Location: http://other.example/"), says: "it redirects to http://other.example, and only https is followed"},
		"redirect-for-ever":     {at: web, tries: 6, answers: always(302, "Location: https://other.example/"), says: "it redirects more than 5 times"},
		"neither-s3-nor-https":  {at: "http://host.example/", says: "must begin with s3:// or https://"},
		"s3-is-no-redirection":  {at: s3, answers: always(307, "Location: https://other.example/"), tries: 1, says: "307 Temporary Redirect"},
		"html-is-no-s3-error":   {at: s3, answers: always(502, "<html>"), tries: 3, says: "502 Bad Gateway (after 3 tries)"},
		"https-401":             {at: web, answers: always(401, ""), tries: 1, says: "without credentials"},
		"https-xml-is-not-read": {at: web, answers: always(404, s3Error("NoSuchKey", "no")), tries: 1, says: "404 Not Found"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				body, n, err := tt.answers.download(t, fleet.ScriptSource{Location: tt.at, S3VersionID: tt.version, Checksum: tt.checksum})
				if n != tt.tries {
					t.Errorf("%d tries, want %d", n, tt.tries)
				}
				if d := time.Since(began); d > 17*time.Second || (n == 3 && d < 750*time.Millisecond) {
					t.Errorf("it took %v", d)
				}
				switch {
				case tt.says == "" && (err != nil || len(body) == 0):
					t.Errorf("err = %v", err)
				case tt.says != "" && (err == nil || !strings.HasPrefix(err.Error(), "download "+tt.at+": ") || !strings.Contains(err.Error(), tt.says)):
					t.Errorf("err = %v, want %s", err, tt.says)
				}
			})
		})
	}
}

// TestCredentialsAreAskedForAgain: a metadata service that starts again at that
// moment costs no node.
func TestCredentialsAreAskedForAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		d := lifecycle.Downloader{
			S3: func(ctx context.Context, bucket, key, _ string) (*http.Request, error) {
				if asked++; asked < 3 {
					return nil, errors.New("read the role's credentials: connection refused")
				}
				return http.NewRequestWithContext(ctx, http.MethodGet, "http://s3/"+bucket+"/"+key, nil)
			},
			Transport: transport(func(req *http.Request) (*http.Response, error) {
				w := httptest.NewRecorder()
				_, _ = w.WriteString("#!/bin/sh\n")
				return w.Result(), nil
			}),
		}
		if body, err := d.Get(t.Context(), fleet.ScriptSource{Location: "s3://b/a"}); err != nil || string(body) != "#!/bin/sh\n" {
			t.Errorf("%q, %v", body, err)
		}
		asked = -10
		if _, err := d.Get(t.Context(), fleet.ScriptSource{Location: "s3://b/a"}); err == nil || !strings.Contains(err.Error(), "role's credentials: connection refused (after 3 tries)") {
			t.Errorf("err = %v", err)
		}
	})
}

// TestDownloadOverTLS uses a real server: its certificate must be trusted, and
// a body that breaks off is tried again.
func TestDownloadOverTLS(t *testing.T) {
	var calls atomic.Int32
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" {
			t.Error("credentials went to an https location")
		}
		if calls.Add(1) == 1 {
			w.Header().Set("Content-Length", "100")
			_, _ = w.Write([]byte("half"))
			return
		}
		_, _ = w.Write([]byte("whole"))
	}))
	defer server.Close()
	server.Config.ErrorLog = nil
	src := fleet.ScriptSource{Location: server.URL + "/a"}
	d := lifecycle.Downloader{Transport: server.Client().Transport}
	if body, err := d.Get(t.Context(), src); err != nil || string(body) != "whole" || calls.Load() != 2 {
		t.Errorf("%q %v after %d calls", body, err, calls.Load())
	}
	calls.Store(0)
	if _, err := (&lifecycle.Downloader{}).Get(t.Context(), src); err == nil || !strings.Contains(err.Error(), "certificate") || strings.Contains(err.Error(), "tries") {
		t.Errorf("of a server that is not trusted: %v", err)
	}
}

// TestDownloadEndsWithTheBoot: a pause between tries does not outlive the boot.
func TestDownloadEndsWithTheBoot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		d := lifecycle.Downloader{Transport: transport(func(*http.Request) (*http.Response, error) { return nil, fmt.Errorf("refused") })}
		if _, err := d.Get(ctx, fleet.ScriptSource{Location: "https://host.example/a"}); err == nil || !strings.Contains(err.Error(), "refused") {
			t.Errorf("err = %v", err)
		}
	})
}

package awsapi_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/openpcs/openpcs/internal/awsapi"
	"github.com/openpcs/openpcs/internal/store"
)

// oneKey knows one key. Unlike a state file it works inside a bubble.
type oneKey awsapi.Key

func (k oneKey) FindKey(_ context.Context, id string) (awsapi.Key, error) {
	if id != k.ID {
		return awsapi.Key{}, store.ErrNotFound
	}
	return awsapi.Key(k), nil
}

var aKey = awsapi.Key{ID: "AKIDEXAMPLE", Secret: "secret", Caller: awsapi.Caller{Account: account, Allow: []string{"*"}}}

// pipes is a listener of connections within the process.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
	close  sync.Once
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.close.Do(func() { close(p.closed) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }

// dial connects to a server that stops with the bubble.
func dial(t *testing.T, h http.Handler) net.Conn {
	t.Helper()
	listener := &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
	server := awsapi.NewHTTPServer(h)
	go func() { _ = server.Serve(listener) }()
	client, end := net.Pipe()
	listener.conns <- end
	t.Cleanup(func() {
		_ = client.Close()
		_ = server.Close()
	})
	return client
}

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// trickle writes a byte at a time until nobody takes it.
func trickle(c net.Conn, every time.Duration) {
	for {
		if _, err := c.Write([]byte("x")); err != nil {
			return
		}
		time.Sleep(every) // of the bubble's clock
	}
}

// TestSlowClients is about clients that hold a connection: each is let go,
// and no handler waits for it.
func TestSlowClients(t *testing.T) {
	for _, tt := range []struct {
		name string
		// ends is what follows the head of a signed call; nothing: not even that
		// is sent.
		ends   string
		signed bool
		within time.Duration
		answer string
	}{
		{"headers", "X-Slow: ", true, 10 * time.Second, ""},
		{"body", "\r\n", true, 30 * time.Second, "HTTP/1.1 408 "},
		{"body_without_a_key", "\r\n", false, 30 * time.Second, "HTTP/1.1 400 "},
		{"body_after_continue", "Expect: 100-continue\r\n\r\n", true, 30 * time.Second, "HTTP/1.1 100 "},
		{"body_after_continue_without_a_key", "Expect: 100-continue\r\n\r\n", false, 30 * time.Second, "HTTP/1.1 400 "},
		{"nothing_at_all", "", true, 10 * time.Second, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				sends := ""
				if tt.ends != "" {
					sends = head(t, tt.signed, 100_000) + tt.ends
				}
				c := dial(t, awsapi.NewServer(awsapi.Options{Keys: oneKey(aKey), Services: services(), Logger: quiet()}))
				began := time.Now()
				var sending sync.WaitGroup
				sending.Go(func() {
					if _, err := io.WriteString(c, sends); err == nil && sends != "" {
						trickle(c, time.Second)
					}
				})
				answer, _ := io.ReadAll(c)
				defer sending.Wait()
				defer func() { _ = c.Close() }()
				if took := time.Since(began); took > tt.within+2*time.Second {
					t.Errorf("let go after %s, want %s", took, tt.within)
				}
				if !strings.HasPrefix(string(answer), tt.answer) || (tt.answer == "") != (len(answer) == 0) {
					t.Errorf("got %q, want %q", answer, tt.answer)
				}
			})
		})
	}
	t.Run("answer_that_nobody_reads", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			done := make(chan struct{})
			front := awsapi.NewServer(awsapi.Options{Keys: oneKey(aKey), Services: services(), Logger: quiet()})
			c := dial(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				defer close(done)
				front.ServeHTTP(w, r)
			}))
			began := time.Now()
			req := signed(t, aKey, time.Now(), "pcs", []byte(`{"name":"`+strings.Repeat("x", 500_000)+`"}`), nil)
			if err := req.Write(c); err != nil {
				t.Fatal(err)
			}
			<-done
			if took := time.Since(began); took > 2*time.Minute {
				t.Errorf("the handler waited %s", took)
			}
		})
	})
	t.Run("a_handler_may_take_its_time", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			slow := awsapi.Service{Name: "pcs", Protocol: awsapi.JSON10, Target: pcsTarget, Operations: []awsapi.Operation{
				awsapi.JSON("Echo", "pcs:Echo", true, func(ctx context.Context, _ *awsapi.Request, _ *struct{}) (*struct{}, error) {
					select {
					case <-ctx.Done():
						return nil, ctx.Err()
					case <-time.After(10 * time.Minute):
						return nil, nil
					}
				}),
			}}
			c := dial(t, awsapi.NewServer(awsapi.Options{Keys: oneKey(aKey), Services: []awsapi.Service{slow}, Logger: quiet()}))
			if err := signed(t, aKey, time.Now(), "pcs", []byte(`{}`), nil).Write(c); err != nil {
				t.Fatal(err)
			}
			resp, err := http.ReadResponse(bufio.NewReader(c), nil)
			if err != nil {
				t.Fatal(err)
			}
			_ = resp.Body.Close()
			if resp.StatusCode != http.StatusOK {
				t.Errorf("got %s", resp.Status)
			}
		})
	})
}

// signed returns a signed call of Echo; change edits it after signing.
func signed(t testing.TB, key awsapi.Key, at time.Time, service string, body []byte, change func(*http.Request)) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://openpcs.test/", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	switch service {
	case "pcs":
		req.Header.Set("Content-Type", "application/x-amz-json-1.0")
		req.Header.Set("X-Amz-Target", pcsTarget+".Echo")
	case "ssm":
		req.Header.Set("Content-Type", "application/x-amz-json-1.1")
		req.Header.Set("X-Amz-Target", ssmTarget+".Echo")
	default:
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	awsapi.Sign(req, body, key, "ap-northeast-1", service, at)
	if change != nil {
		change(req)
	}
	return req
}

// head is that of a call with a body of the length, without the empty line.
func head(t testing.TB, withKey bool, length int) string {
	t.Helper()
	req := signed(t, aKey, time.Now(), "pcs", nil, func(r *http.Request) {
		if !withKey {
			r.Header.Del("Authorization")
		}
	})
	return strings.Replace(text(t, req, "HTTP/1.1"), "Content-Length: 0\r\n\r\n", fmt.Sprintf("Content-Length: %d\r\n", length), 1)
}

// endless is a body that never ends, and counts what was read of it.
type endless struct{ read int64 }

func (e *endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	e.read += int64(len(p))
	return len(p), nil
}

// TestGiantBodies: whatever a client sends, no more than the limit is read and
// kept.
func TestGiantBodies(t *testing.T) {
	server := awsapi.NewServer(awsapi.Options{Keys: oneKey(aKey), Services: services(), Logger: quiet()})
	for _, service := range []string{"pcs", "ssm", "ec2"} {
		for name, tt := range map[string]struct {
			length int64
			key    bool
			limit  int64 // of what is read
			code   string
		}{
			"a gigabyte":               {1 << 30, true, 0, "RequestEntityTooLarge"},
			"chunks":                   {-1, true, 2 << 20, "RequestEntityTooLarge"},
			"a gigabyte without a key": {1 << 30, false, 64 << 10, "MissingAuthenticationToken"},
			"a right size with no key": {1 << 20, false, 64 << 10, "MissingAuthenticationToken"},
			"chunks without a key":     {-1, false, 64 << 10, "MissingAuthenticationToken"},
		} {
			body := &endless{}
			req := signed(t, aKey, time.Now(), service, nil, func(r *http.Request) {
				r.Body, r.ContentLength = io.NopCloser(body), tt.length
				if !tt.key {
					r.Header.Del("Authorization")
				}
			})
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			rec := httptest.NewRecorder()
			server.ServeHTTP(rec, req)
			runtime.ReadMemStats(&after)
			if !strings.Contains(rec.Body.String(), tt.code) || (rec.Code == http.StatusRequestEntityTooLarge) != tt.key {
				t.Errorf("%s, %s: got %d %s", service, name, rec.Code, rec.Body)
			}
			if body.read > tt.limit {
				t.Errorf("%s, %s: %d bytes were read", service, name, body.read)
			}
			if used := after.TotalAlloc - before.TotalAlloc; used > 16<<20 {
				t.Errorf("%s, %s: %d bytes were allocated", service, name, used)
			}
		}
	}
	// Small bodies that unfold to much.
	for name, body := range map[string]string{
		"parameters": "Action=Echo&Version=2016-11-15&" + strings.Repeat("a&", 500_000),
		"more_parameters": "Action=Echo&Version=2016-11-15" + func() string {
			var b strings.Builder
			for i := range 90_000 {
				fmt.Fprintf(&b, "&a%d=", i)
			}
			return b.String()
		}(),
		"dots":    "Action=Echo&Version=2016-11-15&" + strings.Repeat(".", 1_000_000) + "=1",
		"lists":   `{"name":` + strings.Repeat("[", 1_000_000),
		"objects": strings.Repeat(`{"inner":`, 100_000) + `{}` + strings.Repeat(`}`, 100_000),
	} {
		service := "ec2"
		if body[0] == '{' {
			service = "pcs"
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		rec := httptest.NewRecorder()
		server.ServeHTTP(rec, signed(t, aKey, time.Now(), service, []byte(body), nil))
		runtime.ReadMemStats(&after)
		if rec.Code != http.StatusBadRequest {
			t.Errorf("%s: got %d %.300s", name, rec.Code, rec.Body)
		}
		if used := after.TotalAlloc - before.TotalAlloc; used > 64<<20 {
			t.Errorf("%s: %d bytes were allocated", name, used)
		}
	}
}

// wire serves the front door on a real socket and returns what a raw request
// is answered.
type wire struct {
	t       *testing.T
	address string
	log     *lines
}

// lines is a log that can be read while it is written.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func newWire(t *testing.T, more ...awsapi.Operation) *wire {
	t.Helper()
	return newWireOf(t, awsapi.Options{}, more...)
}

func newWireOf(t *testing.T, o awsapi.Options, more ...awsapi.Operation) *wire {
	t.Helper()
	w := &wire{t: t, log: &lines{}}
	o.Keys, o.Services, o.Logger = oneKey(aKey), services(), slog.New(slog.NewTextHandler(w.log, nil))
	o.Services[0].Operations = append(o.Services[0].Operations, more...)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := awsapi.NewHTTPServer(awsapi.NewServer(o))
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
	w.address = l.Addr().String()
	return w
}

// send writes as much as the server takes and returns its answer.
func (w *wire) send(raw io.Reader) (status int, answer string) {
	w.t.Helper()
	c, err := net.Dial("tcp", w.address)
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second)) // so that a test that fails ends
	go func() { _, _ = io.Copy(c, raw) }()
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		w.t.Fatalf("no answer: %v", err)
	}
	defer func() { _ = resp.Body.Close() }()
	b, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b)
}

// text writes a request as it goes over the wire, with further header lines
// after those that are signed.
func text(t testing.TB, req *http.Request, proto string, more ...string) string {
	t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s %s\r\nHost: %s\r\n", req.Method, req.URL.RequestURI(), proto, req.Host)
	for name, values := range req.Header {
		for _, v := range values {
			fmt.Fprintf(&b, "%s: %s\r\n", name, v)
		}
	}
	for _, line := range more {
		b.WriteString(line + "\r\n")
	}
	body, err := io.ReadAll(req.Body)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(&b, "Content-Length: %d\r\n\r\n%s", len(body), body)
	return b.String()
}

func TestOddRequestsOnTheWire(t *testing.T) {
	w := newWire(t)
	good := func(change func(*http.Request)) *http.Request {
		return signed(t, aKey, time.Now(), "pcs", []byte(`{"name":"a"}`), change)
	}
	flood := func(n int) []string {
		var out []string
		for i := range n {
			out = append(out, fmt.Sprintf("X-Flood-%d: a", i))
		}
		return out
	}
	chunked := good(nil)
	chunkedText := strings.Replace(text(t, chunked, "HTTP/1.1"), "Content-Length: 12\r\n\r\n{\"name\":\"a\"}", "Transfer-Encoding: chunked\r\n\r\n5\r\n{\"nam\r\n7\r\ne\":\"a\"}\r\n0\r\n\r\n", 1)
	for _, tt := range []struct {
		name, raw string
		status    int
		says      string
	}{
		{"right", text(t, good(nil), "HTTP/1.1"), 200, `"name":"a"`},
		{"http_1_0", text(t, good(nil), "HTTP/1.0"), 200, `"name":"a"`},
		{"chunked", chunkedText, 200, `"name":"a"`},
		{"no_host", strings.Replace(text(t, good(nil), "HTTP/1.1"), "Host: openpcs.test\r\n", "", 1), 400, ""},
		{"another_host", strings.Replace(text(t, good(nil), "HTTP/1.1"), "openpcs.test", "other.test", 1), 400, "InvalidSignatureException"},
		{"two_hosts", text(t, good(nil), "HTTP/1.1", "Host: openpcs.test"), 400, ""},
		{"two_targets", text(t, good(nil), "HTTP/1.1", "X-Amz-Target: "+pcsTarget+".Loose"), 400, "X-Amz-Target is present more than once"},
		{"two_dates", text(t, good(nil), "HTTP/1.1", "X-Amz-Date: 20261130T120000Z"), 400, "X-Amz-Date is present more than once"},
		{"two_authorizations", text(t, good(nil), "HTTP/1.1", "Authorization: AWS4-HMAC-SHA256 x"), 400, "The header Authorization is present more than once"},
		{"two_content_types", text(t, good(nil), "HTTP/1.1", "Content-Type: text/plain"), 400, "Content-Type is present more than once"},
		{"two_lengths", text(t, good(nil), "HTTP/1.1", "Content-Length: 5"), 400, ""},
		{"an_amz_header_after_signing", text(t, good(nil), "HTTP/1.1", "X-Amz-Meta: a"), 400, "must be signed"},
		{"headers_that_mean_nothing", text(t, good(nil), "HTTP/1.1", flood(300)...), 200, ""},
		{"header_flood", text(t, good(nil), "HTTP/1.1", flood(100_000)...), 431, ""},
		{"a_giant_header", text(t, good(nil), "HTTP/1.1", "X-Giant: "+strings.Repeat("a", 1<<20)), 431, ""},
		{"a_giant_url", "GET /?" + strings.Repeat("a", 1<<20) + " HTTP/1.1\r\nHost: x\r\n\r\n", 431, ""},
		{"a_header_without_a_colon", text(t, good(nil), "HTTP/1.1", "X-Broken"), 400, ""},
		{"a_folded_header", text(t, good(nil), "HTTP/1.1", "X-Folded: a", " b"), 200, ""},
		{"a_control_character", text(t, good(nil), "HTTP/1.1", "X-Control: a\x00b"), 400, ""},
		{"no_http", "EHLO openpcs\r\n\r\n", 400, ""},
		{"tls", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400, ""},
		{"http_2_preface", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, "MissingAuthenticationToken"},
		{"http_3_1", text(t, good(nil), "HTTP/3.1"), 505, ""},
		{"put", text(t, good(func(r *http.Request) { r.Method = http.MethodPut }), "HTTP/1.1"), 400, "InvalidSignatureException"},
		{"connect", "CONNECT x:80 HTTP/1.1\r\nHost: x\r\n\r\n", 400, "MissingAuthenticationToken"},
		{"options", "OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", 200, ""}, // net/http's own answer
		{"trace", "TRACE / HTTP/1.1\r\nHost: x\r\n\r\n", 400, "MissingAuthenticationToken"},
		{"not_signed_get", "GET / HTTP/1.1\r\nHost: x\r\n\r\n", 403, "MissingAuthenticationToken"},
		{"broken_chunks", strings.Replace(chunkedText, "\r\n\r\n5\r\n", "\r\n\r\nzz\r\n", 1), 400, "could not be read"},
		{"broken_escape", "GET /?a=%zz HTTP/1.1\r\nHost: x\r\n\r\n", 400, "MalformedQueryString"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			status, answer := w.send(strings.NewReader(tt.raw))
			if status != tt.status || !strings.Contains(answer, tt.says) {
				t.Errorf("got %d %.300s, want %d with %q", status, answer, tt.status, tt.says)
			}
		})
	}
	t.Run("a_gigabyte", func(t *testing.T) {
		body := &endless{}
		head := strings.Replace(text(t, good(nil), "HTTP/1.1"), "Content-Length: 12\r\n\r\n{\"name\":\"a\"}", "Content-Length: 1073741824\r\n\r\n", 1)
		status, answer := w.send(io.MultiReader(strings.NewReader(head), io.LimitReader(body, 1<<30)))
		if status != http.StatusRequestEntityTooLarge || !strings.Contains(answer, "RequestEntityTooLargeException") {
			t.Errorf("got %d %s", status, answer)
		}
	})
	if status, _ := w.send(strings.NewReader(text(t, good(nil), "HTTP/1.1"))); status != 200 {
		t.Errorf("after all of it a right request gets %d", status)
	}
	if strings.Contains(w.log.String(), "panic") {
		t.Errorf("something panicked: %s", w.log)
	}
}

// TestTamperedRequests changes a signed request in all its parts.
func TestTamperedRequests(t *testing.T) {
	server := awsapi.NewServer(awsapi.Options{Keys: oneKey(aKey), Services: services(), Logger: quiet(), Now: func() time.Time { return start }})
	auth := func(from, to string) func(*http.Request) {
		return func(r *http.Request) {
			r.Header.Set("Authorization", strings.Replace(r.Header.Get("Authorization"), from, to, 1))
		}
	}
	header := func(name, value string) func(*http.Request) {
		return func(r *http.Request) { r.Header.Set(name, value) }
	}
	for _, tt := range []struct {
		name           string
		change         func(*http.Request)
		json, sts, ec2 string
	}{
		{"nothing", nil, "", "", ""},
		{"body", func(r *http.Request) { r.Body = io.NopCloser(strings.NewReader("Action=Echo&Name=b")) }, "InvalidSignatureException", "SignatureDoesNotMatch", "AuthFailure"},
		{"no_body", func(r *http.Request) { r.Body = http.NoBody }, "InvalidSignatureException", "SignatureDoesNotMatch", "AuthFailure"},
		{"method", func(r *http.Request) { r.Method = http.MethodPut }, "InvalidSignatureException", "SignatureDoesNotMatch", "AuthFailure"},
		{"path", func(r *http.Request) { r.URL.Path = "/x" }, "InvalidSignatureException", "SignatureDoesNotMatch", "AuthFailure"},
		{"query", func(r *http.Request) { r.URL.RawQuery = "a=b" }, "InvalidSignatureException", "SignatureDoesNotMatch", "AuthFailure"},
		{"host", func(r *http.Request) { r.Host = "other.test" }, "InvalidSignatureException", "SignatureDoesNotMatch", "AuthFailure"},
		{"content_type", header("Content-Type", "application/x-www-form-urlencoded; charset=x"), "InvalidSignatureException", "SignatureDoesNotMatch", "AuthFailure"},
		{"a_minute_later", header("X-Amz-Date", start.Add(time.Minute).Format("20060102T150405Z")), "InvalidSignatureException", "SignatureDoesNotMatch", "AuthFailure"},
		{"another_day", header("X-Amz-Date", "20261129T120000Z"), "InvalidSignatureException", "SignatureDoesNotMatch", "RequestExpired"},
		{"no_date", func(r *http.Request) { r.Header.Del("X-Amz-Date") }, "IncompleteSignatureException", "IncompleteSignature", "IncompleteSignature"},
		{"date_of_nonsense", header("X-Amz-Date", "yesterday"), "IncompleteSignatureException", "IncompleteSignature", "IncompleteSignature"},
		{"date_beyond", header("X-Amz-Date", "99991231T235959Z"), "InvalidSignatureException", "SignatureDoesNotMatch", "RequestExpired"},
		{"region", auth("ap-northeast-1", "us-east-1"), "InvalidSignatureException", "SignatureDoesNotMatch", "AuthFailure"},
		{"region_of_nonsense", auth("ap-northeast-1", "moon"), "InvalidSignatureException", "SignatureDoesNotMatch", "AuthFailure"},
		{"scope_date", auth("/20261130/", "/20261129/"), "InvalidSignatureException", "SignatureDoesNotMatch", "RequestExpired"},
		{"scope_end", auth("aws4_request", "aws5_request"), "IncompleteSignatureException", "IncompleteSignature", "IncompleteSignature"},
		{"key", auth("AKIDEXAMPLE", "AKIDOTHER"), "UnrecognizedClientException", "InvalidClientTokenId", "AuthFailure"},
		{"empty_key", auth("AKIDEXAMPLE", ""), "IncompleteSignatureException", "IncompleteSignature", "IncompleteSignature"},
		{"algorithm", auth("AWS4-HMAC-SHA256", "AWS4-ECDSA-P256-SHA256"), "IncompleteSignatureException", "IncompleteSignature", "IncompleteSignature"},
		{"old_algorithm", header("Authorization", "AWS AKIDEXAMPLE:x"), "IncompleteSignatureException", "IncompleteSignature", "IncompleteSignature"},
		{"one_digit", func(r *http.Request) {
			a := []byte(r.Header.Get("Authorization"))
			if a[len(a)-1]++; a[len(a)-1] > '9' {
				a[len(a)-1] = '0'
			}
			r.Header.Set("Authorization", string(a))
		}, "InvalidSignatureException", "SignatureDoesNotMatch", "AuthFailure"},
		{"cut", func(r *http.Request) {
			a := r.Header.Get("Authorization")
			r.Header.Set("Authorization", a[:len(a)-1])
		}, "IncompleteSignatureException", "IncompleteSignature", "IncompleteSignature"},
		{"a_signed_header_less", auth("SignedHeaders=content-type;", "SignedHeaders="), "InvalidSignatureException", "SignatureDoesNotMatch", "AuthFailure"},
		{"a_signed_header_more", auth("SignedHeaders=", "SignedHeaders=accept;"), "InvalidSignatureException", "SignatureDoesNotMatch", "AuthFailure"},
		{"a_header_twice", auth("SignedHeaders=", "SignedHeaders=host;"), "IncompleteSignatureException", "IncompleteSignature", "IncompleteSignature"},
		{"a_thousand_headers", auth("SignedHeaders=", "SignedHeaders="+strings.Repeat("a;", 1000)), "IncompleteSignatureException", "IncompleteSignature", "IncompleteSignature"},
		{"a_token_that_is_not_signed", header("X-Amz-Security-Token", "x"), "InvalidSignatureException", "SignatureDoesNotMatch", "AuthFailure"},
		{"presigned_too", func(r *http.Request) { r.URL.RawQuery = "X-Amz-Algorithm=AWS4-HMAC-SHA256" }, "IncompleteSignatureException", "IncompleteSignature", "IncompleteSignature"},
		{"hash_of_another_body", header("X-Amz-Content-Sha256", hash(nil)), "InvalidSignatureException", "SignatureDoesNotMatch", "AuthFailure"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for service, want := range map[string]string{"pcs": tt.json, "ssm": tt.json, "sts": tt.sts, "ec2": tt.ec2} {
				body := `{"name":"a"}`
				if service == "sts" || service == "ec2" {
					body = "Action=Echo&Name=a"
				}
				rec := httptest.NewRecorder()
				server.ServeHTTP(rec, signed(t, aKey, start, service, []byte(body), tt.change))
				if want == "" {
					if rec.Code != http.StatusOK {
						t.Errorf("%s: got %d %s", service, rec.Code, rec.Body)
					}
					continue
				}
				if rec.Code < 400 || rec.Code > 499 || !strings.Contains(rec.Body.String(), want) || rec.Header().Get("X-Amzn-Requestid") == "" {
					t.Errorf("%s: got %d %s, want %s", service, rec.Code, rec.Body, want)
				}
			}
		})
	}
}

// TestRequestsThatAreNotOfTheProtocol are signed well, and wrong in what they
// say.
func TestRequestsThatAreNotOfTheProtocol(t *testing.T) {
	server := awsapi.NewServer(awsapi.Options{Keys: oneKey(aKey), Services: services(), Logger: quiet(), Now: func() time.Time { return start }})
	const pcs, ssm, form = "application/x-amz-json-1.0", "application/x-amz-json-1.1", "application/x-www-form-urlencoded"
	for _, tt := range []struct {
		name, service, contentType, target, body string
		status                                   int
		code, reason                             string
	}{
		{"right", "pcs", pcs, pcsTarget + ".Echo", `{}`, 200, "", ""},
		{"charset", "pcs", pcs + "; charset=utf-8", pcsTarget + ".Echo", `{}`, 200, "", ""},
		{"empty_body", "pcs", pcs, pcsTarget + ".Echo", ``, 200, "", ""},
		{"plain_json", "ssm", "application/json", ssmTarget + ".Echo", `{}`, 200, "", ""},
		{"text", "pcs", "text/plain", pcsTarget + ".Echo", `{}`, 400, "ValidationException", "cannotParse"},
		{"no_content_type", "pcs", "", pcsTarget + ".Echo", `{}`, 400, "ValidationException", "cannotParse"},
		{"content_type_of_nonsense", "ssm", ";;;", ssmTarget + ".Echo", `{}`, 400, "SerializationException", ""},
		{"cbor", "pcs", "application/cbor", pcsTarget + ".Echo", "\xa0", 400, "ValidationException", "cannotParse"},
		{"form_to_json", "ssm", form, ssmTarget + ".Echo", "Action=Echo", 400, "SerializationException", ""},
		{"no_target", "pcs", pcs, "", `{}`, 400, "ValidationException", "unknownOperation"},
		{"no_target_ssm", "ssm", ssm, "", `{}`, 400, "UnknownOperationException", ""},
		{"target_without_service", "pcs", pcs, "Echo", `{}`, 400, "ValidationException", "unknownOperation"},
		{"target_without_operation", "pcs", pcs, pcsTarget + ".", `{}`, 400, "ValidationException", "unknownOperation"},
		{"target_of_nobody", "pcs", pcs, "Nobody.Echo", `{}`, 400, "ValidationException", "unknownOperation"},
		{"target_of_another", "pcs", ssm, ssmTarget + ".Echo", `{}`, 400, "InvalidSignatureException", ""},
		{"operation_in_other_case", "pcs", pcs, pcsTarget + ".echo", `{}`, 400, "ValidationException", "unknownOperation"},
		{"half_a_document", "pcs", pcs, pcsTarget + ".Echo", `{"name":`, 400, "ValidationException", "cannotParse"},
		{"two_documents", "pcs", pcs, pcsTarget + ".Echo", `{}{}`, 400, "ValidationException", "cannotParse"},
		{"trailing_comma", "pcs", pcs, pcsTarget + ".Echo", `{"name":"a",}`, 400, "ValidationException", "cannotParse"},
		{"single_quotes", "pcs", pcs, pcsTarget + ".Echo", `{'name':'a'}`, 400, "ValidationException", "cannotParse"},
		{"not_utf_8", "pcs", pcs, pcsTarget + ".Echo", "{\"name\":\"\xff\"}", 400, "ValidationException", "cannotParse"},
		{"utf_16", "ssm", ssm, ssmTarget + ".Echo", "\xff\xfe{\x00}\x00", 400, "SerializationException", ""},
		{"null", "pcs", pcs, pcsTarget + ".Echo", `null`, 400, "ValidationException", "cannotParse"},
		{"a_list", "ssm", ssm, ssmTarget + ".Echo", `[]`, 400, "SerializationException", ""},
		{"xml", "pcs", pcs, pcsTarget + ".Echo", `<Echo/>`, 400, "ValidationException", "cannotParse"},
		{"form_right", "ec2", form, "", "Action=Echo&Name=a", 200, "", ""},
		{"no_action", "ec2", form, "", "Name=a", 400, "MissingAction", ""},
		{"empty_action", "sts", form, "", "Action=", 400, "MissingAction", ""},
		{"no_such_action", "ec2", form, "", "Action=Fly", 400, "InvalidAction", ""},
		{"no_such_version", "ec2", form, "", "Action=Echo&Name=a&Version=1999-01-01", 400, "NoSuchVersion", ""},
		{"json_to_ec2", "ec2", pcs, "", `{}`, 400, "MissingAction", ""},
		{"twice", "ec2", form, "", "Action=Echo&Name=a&Name=b", 400, "InvalidParameterCombination", ""},
		{"broken_form", "sts", form, "", "Action=Echo&Name=%zz", 400, "MalformedQueryString", ""},
		{"missing", "sts", form, "", "Action=Echo", 400, "ValidationError", ""},
		{"missing_ec2", "ec2", form, "", "Action=Echo", 400, "MissingParameter", ""},
		{"unknown", "ec2", form, "", "Action=Echo&Name=a&Colour=red", 400, "UnknownParameter", ""},
		{"no_number", "ec2", form, "", "Action=Echo&Name=a&Count=many", 400, "InvalidParameterValue", ""},
		{"beyond_32_bits", "sts", form, "", "Action=Echo&Name=a&Count=99999999999", 400, "MalformedInput", ""},
		{"no_list", "ec2", form, "", "Action=Echo&Name=a&Filter=x", 400, "InvalidParameterValue", ""},
		{"no_index", "ec2", form, "", "Action=Echo&Name=a&Filter.x.Name=y", 400, "UnknownParameter", ""},
		{"deep", "ec2", form, "", "Action=Echo&Name=a&" + strings.Repeat("a.", 40) + "=1", 400, "UnknownParameter", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://openpcs.test/", strings.NewReader(tt.body))
			if err != nil {
				t.Fatal(err)
			}
			if tt.contentType != "" {
				req.Header.Set("Content-Type", tt.contentType)
			}
			if tt.target != "" {
				req.Header.Set("X-Amz-Target", tt.target)
			}
			awsapi.Sign(req, []byte(tt.body), aKey, "ap-northeast-1", tt.service, start)
			rec := httptest.NewRecorder()
			server.ServeHTTP(rec, req)
			b := rec.Body.String()
			if rec.Code != tt.status || !strings.Contains(b, tt.code) || !strings.Contains(b, tt.reason) {
				t.Errorf("got %d %s, want %d %s %s", rec.Code, b, tt.status, tt.code, tt.reason)
			}
		})
	}
}

// TestMethods: other methods than those of the protocol are refused though
// they are signed.
func TestMethods(t *testing.T) {
	server := awsapi.NewServer(awsapi.Options{Keys: oneKey(aKey), Services: services(), Logger: quiet(), Now: func() time.Time { return start }})
	for _, method := range []string{http.MethodPut, http.MethodDelete, http.MethodPatch, http.MethodHead, http.MethodOptions, http.MethodGet, "BREW"} {
		for _, service := range []string{"pcs", "ssm", "ec2", "sts"} {
			body := "Action=Echo&Name=a"
			req, err := http.NewRequestWithContext(t.Context(), method, "http://openpcs.test/?"+body, http.NoBody)
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/x-amz-json-1.0")
			awsapi.Sign(req, nil, aKey, "ap-northeast-1", service, start)
			rec := httptest.NewRecorder()
			server.ServeHTTP(rec, req)
			want := http.StatusMethodNotAllowed
			if method == http.MethodGet && (service == "ec2" || service == "sts") {
				want = http.StatusOK
			}
			if rec.Code != want {
				t.Errorf("%s %s: got %d %s, want %d", method, service, rec.Code, rec.Body, want)
			}
		}
	}
}

// bomb panics when it is written.
type bomb struct{}

func (bomb) MarshalJSON() ([]byte, error) { panic("boom while encoding") }

// TestPanics: the caller gets an internal error with the id under which the
// log has the cause, and the server goes on.
func TestPanics(t *testing.T) {
	w := newWire(t,
		awsapi.JSON("Bomb", "pcs:Bomb", true, func(context.Context, *awsapi.Request, *struct{}) (*struct{ B bomb }, error) {
			return &struct{ B bomb }{}, nil
		}),
		awsapi.JSON("Index", "pcs:Index", true, func(_ context.Context, r *awsapi.Request, _ *struct{}) (*struct{}, error) {
			return nil, errors.New(string(r.Body[len(r.Body)]))
		}),
	)
	call := func(op, name string) (*awsapi.Error, error) {
		c := &awsapi.Client{Endpoint: "http://" + w.address, Key: aKey, Region: "ap-northeast-1"}
		err := c.JSON(t.Context(), "pcs", pcsTarget, op, "1.0", map[string]any{"name": name}, nil)
		var e *awsapi.Error
		errors.As(err, &e)
		return e, err
	}
	for _, op := range [][2]string{{"Echo", "panic"}, {"Index", ""}, {"Bomb", ""}} {
		e, err := call(op[0], op[1])
		if e == nil || e.Code != "InternalServerException" || e.Status != http.StatusInternalServerError || strings.Contains(e.Message, "boom") {
			t.Errorf("%v: got %v", op, err)
		}
	}
	if _, err := call("Echo", "a"); err != nil {
		t.Errorf("after the panics: %v", err)
	}
	// The id of the answer leads to the cause in the log.
	req := signed(t, aKey, time.Now(), "pcs", []byte(`{"name":"panic"}`), nil)
	req.URL = &url.URL{Scheme: "http", Host: w.address, Path: "/"}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	id := resp.Header.Get("X-Amzn-Requestid")
	found := false
	for line := range strings.Lines(w.log.String()) {
		found = found || (strings.Contains(line, "request="+id) && strings.Contains(line, "panic: boom") && strings.Contains(line, "server_test.go"))
	}
	if id == "" || !found {
		t.Errorf("the log has no cause for request %q:\n%s", id, w.log)
	}
}

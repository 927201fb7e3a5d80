// Package awsapitest serves services of package awsapi for their tests, with
// a state file and a clock of their own.
package awsapitest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/openpcs/openpcs/internal/awsapi"
	"github.com/openpcs/openpcs/internal/store"
)

// The account and region of tests.
const (
	Account = "123456789012"
	Region  = "ap-northeast-1"
)

// Clock is a clock that stands still until it is moved.
type Clock struct {
	mu  sync.Mutex
	now time.Time
}

// Now returns the time of the clock.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// Advance moves the clock.
func (c *Clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// World is a state file, a clock and a front door.
type World struct {
	Store *store.Store
	Clock *Clock
	Keys  *awsapi.Keys
	Root  awsapi.Key
	URL   string // set by Serve

	file *sql.DB // the state file, past the store
}

// New makes a world; its clock shows the time of the test's start, because
// official clients sign with the real one.
func New(t testing.TB) *World {
	t.Helper()
	path := filepath.Join(t.TempDir(), "state.db")
	st, err := store.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	file, err := sql.Open("sqlite", "file:"+path+"?mode=ro") // the driver is registered by package store
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	w := &World{Store: st, file: file, Clock: &Clock{now: time.Now().UTC()}}
	w.Keys = &awsapi.Keys{Store: st, Account: Account, Now: w.Clock.Now}
	if w.Root, err = w.Keys.EnsureRoot(context.Background()); err != nil {
		t.Fatal(err)
	}
	return w
}

// Serve starts a front door with the services.
func (w *World) Serve(t testing.TB, services ...awsapi.Service) {
	t.Helper()
	srv := httptest.NewServer(awsapi.NewServer(awsapi.Options{
		Keys: w.Keys, Account: Account, Services: services, Now: w.Clock.Now,
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)), PageSecret: []byte("test"),
	}))
	t.Cleanup(srv.Close)
	w.URL = srv.URL
}

// SDK is the HTTP client for official Go clients that do not retry. The SDK
// may touch a request's body when the answer's headers are there, and the
// transport, which then still looks for the end of the body, breaks off the
// connection under the answer. A server on the same machine is fast enough for
// that. A body that is known to be in memory is written in one piece.
var SDK = &http.Client{Transport: inMemory{http.DefaultTransport}}

type inMemory struct{ next http.RoundTripper }

func (m inMemory) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil && r.Body != http.NoBody {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		r = r.Clone(r.Context())
		r.Body = io.NopCloser(bytes.NewReader(body))
	}
	return m.next.RoundTrip(r)
}

// Stored returns a digest of all that is stored. Two calls return the same
// when nothing was written between them.
func (w *World) Stored(t testing.TB) string {
	t.Helper()
	sum := sha256.New()
	for _, query := range []string{
		`SELECT kind, id, doc FROM objects ORDER BY kind, id`,
		`SELECT subject, kind, doc FROM events ORDER BY seq`,
	} {
		rows, err := w.file.QueryContext(context.Background(), query)
		if err != nil {
			t.Fatal(err)
		}
		for rows.Next() {
			var a, b string
			var doc []byte
			if err := rows.Scan(&a, &b, &doc); err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(sum, "%q %q %q\n", a, b, doc)
		}
		if err := rows.Err(); err != nil {
			t.Fatal(err)
		}
		_ = rows.Close()
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// Client returns a client that signs with the administrator's key.
func (w *World) Client() *awsapi.Client { return w.ClientOf(w.Root) }

// ClientOf returns a client that signs with the key.
func (w *World) ClientOf(key awsapi.Key) *awsapi.Client {
	return &awsapi.Client{Endpoint: w.URL, Key: key, Region: Region, Now: w.Clock.Now}
}

// Request returns a request as the front door would hand it to an operation.
func (w *World) Request(service, operation string) *awsapi.Request {
	return &awsapi.Request{
		ID: "test", Service: service, Operation: operation, Region: Region, Account: Account,
		Caller: w.Root.Caller, Now: w.Clock.Now(),
	}
}

// Update runs fn in a write transaction.
func (w *World) Update(t testing.TB, fn func(tx *store.Tx) error) {
	t.Helper()
	if err := w.Store.Update(context.Background(), fn); err != nil {
		t.Fatal(err)
	}
}

// View runs fn in a read transaction.
func (w *World) View(t testing.TB, fn func(tx *store.Tx) error) {
	t.Helper()
	if err := w.Store.View(context.Background(), fn); err != nil {
		t.Fatal(err)
	}
}

package awsapi_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/openpcs/openpcs/internal/awsapi"
)

// conn is a client's connection that is read by answers.
type conn struct {
	net.Conn
	t *testing.T
	r *bufio.Reader
}

func (w *wire) open() *conn {
	w.t.Helper()
	c, err := net.Dial("tcp", w.address)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(10 * time.Second)) // so that a test that fails ends
	return &conn{c, w.t, bufio.NewReader(c)}
}

func (c *conn) write(text string) {
	c.t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		c.t.Fatal(err)
	}
}

// answer reads one; "100 Continue" is one.
func (c *conn) answer() (status int, body string) {
	c.t.Helper()
	resp, err := http.ReadResponse(c.r, nil)
	if err != nil {
		c.t.Fatalf("no answer: %v", err)
	}
	b, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if err != nil {
		c.t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// TestBodiesWithoutAKeyAreNotKept: who has no key, or one that there is not, is
// answered before the body is there, and what is sent of it takes no memory.
func TestBodiesWithoutAKeyAreNotKept(t *testing.T) {
	w := newWire(t)
	heap := func() int {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc >> 20)
	}
	before := heap()
	const clients, body = 200, 1<<20 - 1
	unknown := strings.Replace(head(t, true, body), aKey.ID, "AKIDOTHER", 1)
	form := fmt.Sprintf("POST / HTTP/1.1\r\nHost: x\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: %d\r\n", body)
	sends := []struct{ text, code string }{
		{head(t, false, body) + "\r\n" + strings.Repeat("x", 32<<10), "MissingAuthenticationTokenException"},
		{unknown + "\r\n" + strings.Repeat("x", 32<<10), "UnrecognizedClientException"},
		{form + "\r\nAction=Echo&Version=2016-11-15&" + strings.Repeat("x", 32<<10), "<Response><Errors><Error><Code>MissingAuthenticationToken"},
	}
	open := make([]*conn, clients)
	for i := range open {
		open[i] = w.open()
		open[i].write(sends[i%len(sends)].text)
	}
	for i, c := range open {
		if _, answer := c.answer(); !strings.Contains(answer, sends[i%len(sends)].code) {
			t.Fatalf("got %s, want %s", answer, sends[i%len(sends)].code)
		}
	}
	if grown := heap() - before; grown > 32 {
		t.Errorf("%d clients without a key hold %d MiB", clients, grown)
	}
}

// TestBodiesAreBoundedTogether: beyond the room for bodies a client is told to
// come again, in a form that official clients heed, and later gets in.
func TestBodiesAreBoundedTogether(t *testing.T) {
	const room, body = 4, 1000
	w := newWireOf(t, awsapi.Options{MaxBodies: room*body + body/2})
	hold := func() *conn {
		c := w.open()
		c.write(head(t, true, body) + "Expect: 100-continue\r\n\r\n")
		return c
	}
	var open []*conn
	for range room {
		c := hold()
		if status, answer := c.answer(); status != http.StatusContinue { // when the server waits for the body
			t.Fatalf("within the room: %d %s", status, answer)
		}
		open = append(open, c)
	}
	if status, answer := hold().answer(); status != http.StatusServiceUnavailable || !strings.Contains(answer, "ServiceUnavailableException") {
		t.Errorf("beyond the room: %d %s", status, answer)
	}
	for service, code := range map[string]string{"ssm": "ServiceUnavailableException", "sts": "<Code>ServiceUnavailable<", "ec2": "<Code>Unavailable<"} {
		req := signed(t, aKey, time.Now(), service, []byte(strings.Repeat("x", body)), nil)
		if status, answer := w.send(strings.NewReader(text(t, req, "HTTP/1.1"))); status != http.StatusServiceUnavailable || !strings.Contains(answer, code) {
			t.Errorf("%s beyond the room: %d %s, want %s", service, status, answer, code)
		}
	}
	// Those who send little are served all the same.
	if status, answer := w.send(strings.NewReader(text(t, signed(t, aKey, time.Now(), "pcs", []byte(`{"name":"a"}`), nil), "HTTP/1.1"))); status != http.StatusOK {
		t.Errorf("a small one beside them: %d %s", status, answer)
	}
	// One goes away in the middle of its body.
	if err := open[0].Conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if status, answer := open[0].answer(); status != http.StatusBadRequest {
		t.Errorf("half a body: %d %s", status, answer)
	}
	if status, answer := hold().answer(); status != http.StatusContinue {
		t.Errorf("when there is room again: %d %s", status, answer)
	}
}

// from is a connection that comes from an address.
type from struct {
	net.Conn
	address string
}

func (f from) RemoteAddr() net.Addr {
	return &net.TCPAddr{IP: net.ParseIP(f.address), Port: 40000}
}

func TestConnectionsAreLimited(t *testing.T) {
	// dial opens a connection; the answer to a request on it, and when it came.
	type reply struct {
		status int // 0: closed without one
		after  time.Duration
	}
	lab := func(t *testing.T, total, fromOne int) (connect func(address string) net.Conn, ask func(net.Conn) reply) {
		l := &pipes{conns: make(chan net.Conn, 64), closed: make(chan struct{})}
		server := awsapi.NewHTTPServer(http.NotFoundHandler())
		awsapi.LimitConnections(server, total, fromOne)
		go func() { _ = server.Serve(l) }()
		began := time.Now()
		t.Cleanup(func() { _ = server.Close() })
		return func(address string) net.Conn {
				client, end := net.Pipe()
				l.conns <- from{end, address}
				t.Cleanup(func() { _ = client.Close() })
				synctest.Wait()
				return client
			}, func(c net.Conn) reply {
				go func() { _, _ = io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\n\r\n") }()
				resp, err := http.ReadResponse(bufio.NewReader(c), nil)
				if err != nil {
					return reply{0, time.Since(began)}
				}
				_ = resp.Body.Close()
				return reply{resp.StatusCode, time.Since(began)}
			}
	}
	t.Run("together", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			connect, ask := lab(t, 2, 64)
			connect("192.0.2.1")
			connect("127.0.0.1")
			// The first two send nothing and are let go after ten seconds.
			if got := ask(connect("192.0.2.2")); got != (reply{404, 10 * time.Second}) {
				t.Errorf("the third connection: %+v", got)
			}
			if got := ask(connect("192.0.2.3")); got != (reply{404, 10 * time.Second}) {
				t.Errorf("the fourth connection: %+v", got)
			}
		})
	})
	t.Run("of_one_address", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			connect, ask := lab(t, 64, 2)
			first := connect("192.0.2.1")
			connect("192.0.2.1")
			if got := ask(connect("192.0.2.1")); got != (reply{0, 0}) {
				t.Errorf("the third of one address: %+v", got)
			}
			if got := ask(connect("192.0.2.2")); got != (reply{404, 0}) {
				t.Errorf("of another address: %+v", got)
			}
			for range 5 { // of this machine
				if got := ask(connect("127.0.0.1")); got != (reply{404, 0}) {
					t.Errorf("of this machine: %+v", got)
				}
			}
			_ = first.Close()
			synctest.Wait()
			if got := ask(connect("192.0.2.1")); got != (reply{404, 0}) {
				t.Errorf("when one of its own ended: %+v", got)
			}
		})
	})
}

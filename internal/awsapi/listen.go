package awsapi

import (
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"
)

// How long a client may take. Whoever is slower than this holds a connection
// and nothing else.
const (
	headersWithin = 10 * time.Second
	// bodyWithin is for 1 MiB at most.
	bodyWithin   = 30 * time.Second
	answerWithin = time.Minute
	// requestWithin bounds headers and body where the front door does not.
	requestWithin = time.Minute
	idleWithin    = 2 * time.Minute
)

// maxHeaders bounds the request line and headers, in bytes. AWS allows some
// 16 KiB; a presigned call with its parameters in the URL may have more.
const maxHeaders = 64 << 10

// How many connections a server has at a time. With headers of the largest kind
// on each they need some 80 MiB.
const (
	maxConnections = 1024
	// maxFromOne keeps one machine, such as an instance, from taking them all.
	// Programs on this machine have one address among them, which is not bound.
	maxFromOne = 128
)

// NewHTTPServer returns a server that bounds what clients may send, how long
// they may take for it, and how many connections they have. Answers have no limit here, as some handlers let
// their clients wait: the front door sets one of its own.
func NewHTTPServer(h http.Handler) *http.Server {
	s := &http.Server{
		Handler: h, ReadHeaderTimeout: headersWithin, ReadTimeout: requestWithin,
		IdleTimeout: idleWithin, MaxHeaderBytes: maxHeaders,
		ErrorLog: slog.NewLogLogger(slog.Default().Handler(), slog.LevelWarn),
	}
	LimitConnections(s, maxConnections, maxFromOne)
	return s
}

// LimitConnections has a server wait with further connections while there are
// so many, and close at once what one address other than a loopback one opens
// beyond its share.
func LimitConnections(s *http.Server, total, fromOne int) {
	c := &connections{free: make(chan struct{}, total), fromOne: fromOne, from: map[string]int{}}
	s.ConnState = c.change
}

// connections counts the open ones. It is told of them by the server, so that
// they stay what they are: net/http ends a connection gently only if it knows
// its kind.
type connections struct {
	free    chan struct{} // has an element for each connection
	fromOne int

	mu   sync.Mutex
	from map[string]int // by address
}

// change is called before the server accepts the next connection when the state
// is new, and once at the end of each.
func (c *connections) change(conn net.Conn, state http.ConnState) {
	switch state {
	case http.StateNew:
		if c.add(conn, 1) > c.fromOne {
			_ = conn.Close() // its end is still to be told
		}
		c.free <- struct{}{}
	case http.StateClosed, http.StateHijacked:
		c.add(conn, -1)
		<-c.free
	}
}

// add counts a connection of an address and returns how many it has.
func (c *connections) add(conn net.Conn, n int) int {
	tcp, ok := conn.RemoteAddr().(*net.TCPAddr)
	if !ok || tcp.IP.IsLoopback() {
		return 0
	}
	host := tcp.IP.String()
	c.mu.Lock()
	defer c.mu.Unlock()
	count := c.from[host] + n
	if c.from[host] = count; count == 0 {
		delete(c.from, host)
	}
	return count
}

package awsapi

import (
	"log/slog"
	"net/http"
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

// NewHTTPServer returns a server that bounds what clients may send and how
// long they may take for it. Answers have no limit here, as some handlers let
// their clients wait: the front door sets one of its own.
func NewHTTPServer(h http.Handler) *http.Server {
	return &http.Server{
		Handler: h, ReadHeaderTimeout: headersWithin, ReadTimeout: requestWithin,
		IdleTimeout: idleWithin, MaxHeaderBytes: maxHeaders,
		ErrorLog: slog.NewLogLogger(slog.Default().Handler(), slog.LevelWarn),
	}
}

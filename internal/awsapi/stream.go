package awsapi

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"
)

// streams reports whether there is a service whose requests have paths.
func (s *Server) streams() bool {
	for _, svc := range s.services {
		if svc.Stream != nil {
			return true
		}
	}
	return false
}

// signatureParts are the headers and parameters that belong to a signature.
var (
	signatureHeaders    = []string{"Authorization", "X-Amz-Date", "X-Amz-Security-Token", "X-Amz-Content-Sha256"}
	signatureParameters = []string{"X-Amz-Algorithm", "X-Amz-Credential", "X-Amz-Date", "X-Amz-Expires", "X-Amz-SignedHeaders", "X-Amz-Signature", "X-Amz-Security-Token", "X-Amz-Content-Sha256"}
)

// openStream verifies the head of a request whose service reads the body.
func (s *Server) openStream(x *exchange, sig *signature, key Key) (*Stream, *Error) {
	hash, e := streamHash(x, sig)
	if e != nil {
		return nil, e
	}
	if e := s.authorize(x, sig, key, hash); e != nil {
		return nil, e
	}
	r := x.http.Clone(x.http.Context())
	if hash, e = decodeStream(r, sig, key, hash); e != nil {
		return nil, e
	}
	for _, name := range signatureHeaders {
		r.Header.Del(name)
	}
	r.URL.RawQuery = withoutSignature(r.URL.RawQuery)
	x.req = &Request{
		ID: x.id, Service: x.svc.Name, Operation: r.Method, Region: sig.region, Account: s.account,
		Caller: key.Caller, Now: x.started.UTC(),
	}
	return &Stream{ID: x.id, Region: sig.region, Caller: key.Caller, Now: x.req.Now, HTTP: r, PayloadHash: hash}, nil
}

// streamHash is what the signature has for the payload: its hash, or a word
// that tells how it is protected instead.
func streamHash(x *exchange, sig *signature) (string, *Error) {
	given := x.http.Header.Get("X-Amz-Content-Sha256")
	if given == "" && sig.presigned {
		return unsignedPayload, nil // the same where the URL says it
	}
	isHash := len(given) == len(hashHex(nil)) && strings.Trim(given, "0123456789abcdef") == ""
	switch {
	case given == "":
		return "", newError(http.StatusBadRequest, "InvalidRequest", "Missing required header for this request: x-amz-content-sha256")
	case isHash, slices.Contains([]string{unsignedPayload, unsignedTrailer, signedChunks, signedTrailer}, given):
		return given, nil
	}
	return "", newError(http.StatusBadRequest, "InvalidArgument", fmt.Sprintf("x-amz-content-sha256 must be %s, %s, %s, %s, or a SHA-256 in lower-case hexadecimal digits, not %q.",
		unsignedPayload, unsignedTrailer, signedChunks, signedTrailer, given))
}

// withoutSignature leaves a presigned URL's signature out, and the rest as it
// was sent.
func withoutSignature(raw string) string {
	if raw == "" {
		return ""
	}
	return strings.Join(slices.DeleteFunc(strings.Split(raw, "&"), func(part string) bool {
		name, _, _ := strings.Cut(part, "=")
		return slices.Contains(signatureParameters, name)
	}), "&")
}

// answerStream has the service answer. However long that takes, the client
// must take or send something now and then.
func (s *Server) answerStream(w http.ResponseWriter, x *exchange) {
	conn := http.NewResponseController(w)
	out := &pacedWriter{ResponseWriter: w, conn: conn}
	r := x.stream.HTTP
	if r.Body == http.NoBody || r.Body == nil {
		// After the body net/http reads on, to see the client leave: that must not
		// end in a deadline.
		_ = conn.SetReadDeadline(time.Time{})
	} else {
		r.Body = &pacedBody{ReadCloser: r.Body, conn: conn}
	}
	h := w.Header()
	h.Set("X-Amz-Request-Id", x.id)
	h.Set("Date", s.now().UTC().Format(http.TimeFormat))
	defer func() {
		var e *Error
		if out.status >= http.StatusBadRequest {
			e = newError(out.status, http.StatusText(out.status), r.Method+" "+r.URL.Path)
		}
		s.report(r.Context(), x, out.status, e, nil)
	}()
	x.svc.Stream(out, x.stream)
	_ = conn.SetWriteDeadline(time.Now().Add(answerWithin)) // of what net/http still has
}

// WriteError answers a request of a RestXML service with an error.
func (r *Stream) WriteError(w http.ResponseWriter, e *Error) {
	h := w.Header()
	h.Set("Content-Type", contentType(RestXML))
	h.Del("Content-Length")
	status := e.Status
	if status == 0 {
		status = http.StatusBadRequest
	}
	w.WriteHeader(status)
	_, _ = w.Write(restErrorXML(e, r.HTTP.URL.Path, r.ID)) // who is gone needs no answer
}

// pacedBody gives the client time for each part of its body.
type pacedBody struct {
	io.ReadCloser
	conn  *http.ResponseController
	ended bool
}

func (b *pacedBody) Read(p []byte) (int, error) {
	if !b.ended { // after that see answerStream
		_ = b.conn.SetReadDeadline(time.Now().Add(bodyWithin))
	}
	n, err := b.ReadCloser.Read(p)
	b.ended = err != nil
	return n, err
}

// pacedWriter gives the client time for each part of the answer.
type pacedWriter struct {
	http.ResponseWriter
	conn   *http.ResponseController
	status int
}

// Unwrap is for http.ResponseController.
func (w *pacedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func (w *pacedWriter) WriteHeader(status int) {
	if status >= http.StatusOK { // before come those on the way
		w.status = status
	}
	_ = w.conn.SetWriteDeadline(time.Now().Add(answerWithin))
	w.ResponseWriter.WriteHeader(status)
}

func (w *pacedWriter) Write(p []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	_ = w.conn.SetWriteDeadline(time.Now().Add(answerWithin))
	return w.ResponseWriter.Write(p)
}

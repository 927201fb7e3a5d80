package incus

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"

	"github.com/coder/websocket"

	"github.com/openpcs/openpcs/internal/compute"
)

// maxBody bounds what is read of an answer that is held in memory.
const maxBody = 64 << 20

// client speaks the Incus REST API over a unix socket.
type client struct {
	socket  string
	project string
	http    *http.Client
}

func newClient(socket, project string) *client {
	var d net.Dialer
	return &client{
		socket:  socket,
		project: project,
		http: &http.Client{Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return d.DialContext(ctx, "unix", socket)
			},
			// One connection a request. Else the transport at times makes one that
			// it then has no use for yet and keeps; and Incus, which reads the
			// first bytes of a connection before it accepts the next, would answer
			// nobody until that one is closed.
			DisableKeepAlives:  true,
			DisableCompression: true,
		}},
	}
}

// apiError is an error that Incus itself reported. Code is an HTTP status;
// failed operations, for which Incus keeps only a text, have code 400.
type apiError struct {
	Code    int
	Message string
}

func (e *apiError) Error() string { return e.Message }

// Is lets callers ask for compute.ErrNotFound.
func (e *apiError) Is(target error) bool {
	return target == compute.ErrNotFound && e.Code == http.StatusNotFound
}

// says reports whether err came from Incus and contains one of the texts.
// Incus gives the errors of operations no code, so some can only be told
// apart by their words.
func says(err error, texts ...string) bool {
	var e *apiError
	if !errors.As(err, &e) {
		return false
	}
	msg := strings.ToLower(e.Message)
	for _, t := range texts {
		if strings.Contains(msg, t) {
			return true
		}
	}
	return false
}

// envelope is the frame around every JSON answer.
type envelope struct {
	Type      string          `json:"type"`
	Error     string          `json:"error"`
	ErrorCode int             `json:"error_code"`
	Metadata  json.RawMessage `json:"metadata"`
}

// operation is a background task of the server.
type operation struct {
	ID         string              `json:"id"`
	Status     string              `json:"status"`
	StatusCode int                 `json:"status_code"`
	Err        string              `json:"err"`
	Resources  map[string][]string `json:"resources"`
	Metadata   json.RawMessage     `json:"metadata"`
}

// opSuccess is the status code of an operation that did what it should.
const opSuccess = 200

// get fetches a JSON object into out.
func (c *client) get(ctx context.Context, path string, query url.Values, out any) error {
	return c.call(ctx, http.MethodGet, path, query, nil, out)
}

// call makes one request with a JSON body and, when the server answers with
// an operation, waits for its end. out, if not nil, takes the answer's
// metadata or the operation's.
func (c *client) call(ctx context.Context, method, path string, query url.Values, body, out any) error {
	var r io.Reader
	header := http.Header{}
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return fmt.Errorf("encode request: %w", err)
		}
		r = bytes.NewReader(b)
		header.Set("Content-Type", "application/json")
	}
	env, err := c.roundTrip(ctx, method, path, query, header, r)
	if err != nil {
		return err
	}
	meta := env.Metadata
	if env.Type == "async" {
		op, err := c.wait(ctx, env)
		if err != nil {
			return err
		}
		meta = op.Metadata
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(meta, out); err != nil {
		return fmt.Errorf("decode answer of %s %s: %w", method, path, err)
	}
	return nil
}

// start makes a request whose answer must be an operation, and does not wait
// for it.
func (c *client) start(ctx context.Context, method, path string, body any) (operation, error) {
	var op operation
	b, err := json.Marshal(body)
	if err != nil {
		return op, fmt.Errorf("encode request: %w", err)
	}
	env, err := c.roundTrip(ctx, method, path, nil, http.Header{"Content-Type": {"application/json"}}, bytes.NewReader(b))
	if err != nil {
		return op, err
	}
	if env.Type != "async" {
		return op, fmt.Errorf("expect an operation from %s %s, got %q", method, path, env.Type)
	}
	if err := json.Unmarshal(env.Metadata, &op); err != nil {
		return op, fmt.Errorf("decode operation: %w", err)
	}
	return op, nil
}

func (c *client) roundTrip(ctx context.Context, method, path string, query url.Values, header http.Header, body io.Reader) (envelope, error) {
	var env envelope
	res, err := c.raw(ctx, method, path, query, header, body)
	if err != nil {
		return env, err
	}
	defer res.Body.Close()
	if err := json.NewDecoder(io.LimitReader(res.Body, maxBody)).Decode(&env); err != nil {
		return env, fmt.Errorf("decode answer of %s %s (HTTP %d): %w", method, path, res.StatusCode, err)
	}
	return env, env.asError(res.StatusCode)
}

// asError returns the error in the envelope, which may come with HTTP status
// 200 where the server had sent its header before it knew.
func (e envelope) asError(status int) error {
	switch {
	case e.Type == "error":
		code := e.ErrorCode
		if code == 0 {
			code = status
		}
		return &apiError{Code: code, Message: e.Error}
	case status >= 400:
		return &apiError{Code: status, Message: http.StatusText(status)}
	}
	return nil
}

// raw makes one request in our project and returns the answer as it is.
func (c *client) raw(ctx context.Context, method, path string, query url.Values, header http.Header, body io.Reader) (*http.Response, error) {
	u := url.URL{Scheme: "http", Host: "incus", Path: path, RawQuery: c.query(query).Encode()}
	req, err := http.NewRequestWithContext(ctx, method, u.String(), body)
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	for k, v := range header {
		req.Header[k] = v
	}
	res, err := c.http.Do(req)
	if err != nil {
		// Without the URL: its host is not real and would mislead.
		var ue *url.Error
		if errors.As(err, &ue) {
			err = ue.Err
		}
		return nil, fmt.Errorf("reach incus at %s: %w", c.socket, err)
	}
	return res, nil
}

// query adds our project unless the caller chose one.
func (c *client) query(q url.Values) url.Values {
	out := url.Values{"project": {c.project}}
	for k, v := range q {
		out[k] = v
	}
	return out
}

// wait returns when the operation in env is over, with its error if it failed.
func (c *client) wait(ctx context.Context, env envelope) (operation, error) {
	var op operation
	if err := json.Unmarshal(env.Metadata, &op); err != nil {
		return op, fmt.Errorf("decode operation: %w", err)
	}
	return c.waitID(ctx, op.ID)
}

func (c *client) waitID(ctx context.Context, id string) (operation, error) {
	var op operation
	if err := c.get(ctx, "/1.0/operations/"+url.PathEscape(id)+"/wait", nil, &op); err != nil {
		return op, err
	}
	if op.StatusCode != opSuccess {
		msg := op.Err
		if msg == "" {
			msg = "operation ended as " + op.Status
		}
		return op, &apiError{Code: http.StatusBadRequest, Message: msg}
	}
	return op, nil
}

// waitOthers waits for every operation under way on the instance, whoever
// started it and however it ends.
func (c *client) waitOthers(ctx context.Context, instance string) error {
	var byStatus map[string][]operation
	if err := c.get(ctx, "/1.0/operations", url.Values{"recursion": {"1"}}, &byStatus); err != nil {
		return err
	}
	for status, ops := range byStatus {
		if status == "success" || status == "failure" || status == "cancelled" {
			continue
		}
		for _, op := range ops {
			if !op.touches(instance) {
				continue
			}
			if _, err := c.waitID(ctx, op.ID); err != nil && ctx.Err() != nil {
				return err
			}
		}
	}
	return nil
}

// touches reports whether op changes the instance. Running commands do not.
func (op operation) touches(instance string) bool {
	var meta struct {
		Command []string `json:"command"`
	}
	if json.Unmarshal(op.Metadata, &meta) == nil && meta.Command != nil {
		return false
	}
	for _, u := range op.Resources["instances"] {
		path, _, _ := strings.Cut(u, "?")
		if path == instancePath(instance) {
			return true
		}
	}
	return false
}

// dial opens one of the server's websockets. The event stream ends if its
// pings find no answer. The streams of a command must not answer: the server
// pings them when they open and closes them when the command ends, and if the
// answer came too late, what is still to be read would be lost.
func (c *client) dial(ctx context.Context, path string, query url.Values, answerPings bool) (*websocket.Conn, error) {
	u := url.URL{Scheme: "ws", Host: "incus", Path: path, RawQuery: c.query(query).Encode()}
	conn, res, err := websocket.Dial(ctx, u.String(), &websocket.DialOptions{
		HTTPClient:     c.http,
		OnPingReceived: func(context.Context, []byte) bool { return answerPings },
	})
	if err != nil {
		if res != nil {
			var env envelope
			if json.NewDecoder(io.LimitReader(res.Body, 1<<16)).Decode(&env) == nil {
				if err := env.asError(res.StatusCode); err != nil {
					return nil, err
				}
			}
		}
		return nil, fmt.Errorf("open websocket %s at %s: %w", path, c.socket, err)
	}
	conn.SetReadLimit(maxBody)
	return conn, nil
}

// decodeError makes an error of the body of a failed request.
func decodeError(body []byte, status int) error {
	var env envelope
	if json.Unmarshal(body, &env) == nil {
		if err := env.asError(status); err != nil {
			return err
		}
	}
	return &apiError{Code: status, Message: http.StatusText(status)}
}

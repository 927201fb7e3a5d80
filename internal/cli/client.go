package cli

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"syscall"

	"github.com/openpcs/openpcs/internal/app"
	"github.com/openpcs/openpcs/internal/awsapi"
	"github.com/openpcs/openpcs/internal/pcs"
)

// errNotRunning says what to do when there is no control plane.
var errNotRunning = errors.New("openpcs is not running: start it with 'openpcs up' (or 'openpcs serve')")

// daemon talks to the control plane's socket.
type daemon struct{ http *http.Client }

func newDaemon(o app.Options) *daemon {
	return &daemon{&http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", o.Socket())
		},
	}}}
}

func (d *daemon) call(ctx context.Context, method, path string, query url.Values, in, out any) error {
	var body io.Reader
	if in != nil {
		doc, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(doc)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://openpcs"+path+"?"+query.Encode(), body)
	if err != nil {
		return err
	}
	resp, err := d.http.Do(req)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ECONNRESET), errors.Is(err, io.EOF):
		return errNotRunning
	case errors.Is(err, fs.ErrPermission):
		return errors.New("only root may talk to the control plane: use sudo")
	case err != nil:
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	doc, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		var e struct {
			Error string `json:"error"`
		}
		_ = json.Unmarshal(doc, &e)
		return fmt.Errorf("%s", e.Error)
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(doc, out)
}

func get[T any](ctx context.Context, d *daemon, path string, query url.Values) (out T, err error) {
	err = d.call(ctx, http.MethodGet, path, query, nil, &out)
	return out, err
}

// dial connects to the control plane of the environment.
func dial(ctx context.Context) (*daemon, app.Status, error) {
	o, err := options()
	if err != nil {
		return nil, app.Status{}, err
	}
	d := newDaemon(o)
	st, err := get[app.Status](ctx, d, "/v1/status", nil)
	return d, st, err
}

// api is a client of the public API.
type api struct{ client awsapi.Client }

func newAPI(st app.Status) *api {
	c := awsapi.Client{Endpoint: st.API, Region: st.Region, Key: awsapi.Key{ID: st.KeyID, Secret: st.Secret}}
	if st.CABundle != "" {
		roots := x509.NewCertPool()
		// Without the file the call fails, and says why.
		if text, err := os.ReadFile(st.CABundle); err == nil {
			roots.AppendCertsFromPEM(text)
		}
		c.HTTP = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}}
	}
	return &api{c}
}

func (a *api) pcs(ctx context.Context, op string, in, out any) error {
	return a.client.JSON(ctx, "pcs", pcs.Target, op, "1.0", in, out)
}

// all reads every page of a list.
func (a *api) all(ctx context.Context, op, member string, in map[string]any) ([]pcs.Summary, error) {
	var rows []pcs.Summary
	args := map[string]any{"maxResults": 100}
	for k, v := range in {
		args[k] = v
	}
	for {
		var out map[string]json.RawMessage
		if err := a.pcs(ctx, op, args, &out); err != nil {
			return nil, err
		}
		var page []pcs.Summary
		if err := json.Unmarshal(out[member], &page); err != nil {
			return nil, err
		}
		rows = append(rows, page...)
		var next string
		if raw, ok := out["nextToken"]; ok {
			if err := json.Unmarshal(raw, &next); err != nil {
				return nil, err
			}
		}
		if next == "" {
			return rows, nil
		}
		args["nextToken"] = next
	}
}

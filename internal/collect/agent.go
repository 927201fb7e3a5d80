package collect

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/openpcs/openpcs/internal/agent"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/tail"
)

// controllerAgent is the folder of logs that the agent on a controller shows.
type controllerAgent struct {
	base, token string
	http        *http.Client
}

var agentTransport = &http.Transport{MaxIdleConnsPerHost: 8, IdleConnTimeout: time.Minute}

// askLimit bounds one question to an agent, beyond what it may wait by itself.
const askLimit = time.Minute

// maxAnswer bounds an answer: a read is less, and so are the names of all users.
const maxAnswer = 16 << 20

func newAgent(cl fleet.Cluster) *controllerAgent {
	return &controllerAgent{
		base: fmt.Sprintf("http://%s:%d", cl.ControllerAddress, agent.ControllerPort), token: cl.ControllerToken,
		http: &http.Client{Transport: agentTransport},
	}
}

// Files asks for the list of the files.
func (a *controllerAgent) Files(ctx context.Context, log string) (files []tail.File, err error) {
	err = a.ask(ctx, http.MethodGet, "/v1/logs?"+url.Values{"log": {log}}.Encode(), nil, func(r io.Reader) error {
		return json.NewDecoder(r).Decode(&files)
	})
	return files, err
}

// Wait asks for it once it is another one; the agent waits half a minute.
func (a *controllerAgent) Wait(ctx context.Context, log string, seen []tail.File) (files []tail.File, err error) {
	if seen == nil {
		seen = []tail.File{}
	}
	err = a.ask(ctx, http.MethodPost, "/v1/logs/wait", agent.LogsSeen{Log: log, Seen: seen}, func(r io.Reader) error {
		return json.NewDecoder(r).Decode(&files)
	})
	return files, err
}

// ReadAt asks for a part of a file.
func (a *controllerAgent) ReadAt(ctx context.Context, f tail.File, p []byte, offset int64) (n int, err error) {
	q := url.Values{"name": {f.Name}, "offset": {strconv.FormatInt(offset, 10)}, "size": {strconv.Itoa(len(p))}}
	err = a.ask(ctx, http.MethodGet, "/v1/logs/"+strconv.FormatUint(f.Inode, 10)+"?"+q.Encode(), nil, func(r io.Reader) error {
		n, err = io.ReadFull(r, p)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			err = nil
		}
		return err
	})
	return n, err
}

// Users asks for the users of the controller.
func (a *controllerAgent) Users(ctx context.Context) (users map[uint32]string, err error) {
	err = a.ask(ctx, http.MethodGet, "/v1/users", nil, func(r io.Reader) error { return json.NewDecoder(r).Decode(&users) })
	return users, err
}

func (a *controllerAgent) ask(ctx context.Context, method, path string, in any, take func(io.Reader) error) error {
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	var body io.Reader
	if in != nil {
		doc, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(doc)
	}
	req, err := http.NewRequestWithContext(ctx, method, a.base+path, body)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+a.token)
	resp, err := a.http.Do(req)
	if err != nil {
		return fmt.Errorf("reach the controller's agent for its logs: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10))
		err := fmt.Errorf("ask the controller's agent for its logs: %s: %s", resp.Status, strings.TrimSpace(string(text)))
		if resp.StatusCode == http.StatusNotFound && strings.HasPrefix(path, "/v1/logs/") {
			err = fmt.Errorf("%w: %w", err, fs.ErrNotExist)
		}
		return err
	}
	if err := take(io.LimitReader(resp.Body, maxAnswer)); err != nil {
		return fmt.Errorf("read what the controller's agent says of its logs: %w", err)
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 1<<10)) // so that the connection is used again
	return nil
}

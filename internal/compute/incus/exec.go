package incus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/sync/errgroup"

	"github.com/openpcs/openpcs/internal/compute"
)

// maxOutput is where the output of a command is cut.
const maxOutput = 1 << 20

// execAttempts is how often a command is tried whose streams came too late.
const execAttempts = 3

// notAttachedError says that a stream of a command could not be attached.
// Incus starts a command when it has all of them, so it has not run.
type notAttachedError struct{ err error }

func (e *notAttachedError) Error() string { return e.err.Error() }

func (e *notAttachedError) Unwrap() error { return e.err }

// killGrace is how long a command that was killed may take to be gone.
const killGrace = 5 * time.Second

// execPost is the body of POST /1.0/instances/{name}/exec.
type execPost struct {
	Command     []string          `json:"command"`
	Environment map[string]string `json:"environment,omitempty"`
	Cwd         string            `json:"cwd,omitempty"`
	WaitForWS   bool              `json:"wait-for-websocket"`
	Interactive bool              `json:"interactive"`
}

// The exit codes that a shell uses.
const (
	exitNotExecutable = 126
	exitNotFound      = 127
)

// Exec implements compute.Provider. The command is killed when ctx ends. A
// command that is not there has exit code 127, as in a shell.
//
// Streams go over websockets and not into files that Incus can record,
// because those know no standard input and stay behind.
func (p *Provider) Exec(ctx context.Context, id string, cmd compute.Command) (compute.Result, error) {
	res, err := p.exec(ctx, id, cmd)
	var late *notAttachedError
	for attempt := 1; attempt < execAttempts && errors.As(err, &late) && says(err, "operation not found") && ctx.Err() == nil; attempt++ {
		// Incus waits five seconds for the streams, less than a busy machine
		// may need.
		res, err = p.exec(ctx, id, cmd)
	}
	switch {
	case ctx.Err() != nil:
		err = ctx.Err()
	case says(err, "command not found"):
		return notRun(res, cmd, exitNotFound, "command not found"), nil
	case says(err, "command not executable"):
		return notRun(res, cmd, exitNotExecutable, "not executable"), nil
	}
	if err != nil {
		return res, fmt.Errorf("run command in instance %s: %w", id, err)
	}
	return res, nil
}

// notRun completes the result of a command that Incus takes for missing.
// Incus looks at the exit code only, so the command may as well have run and
// ended with that code itself; then it has usually said something.
func notRun(res compute.Result, cmd compute.Command, code int, why string) compute.Result {
	res.ExitCode = code
	if len(res.Stdout) == 0 && len(res.Stderr) == 0 {
		res.Stderr = []byte(cmd.Argv[0] + ": " + why + "\n")
	}
	return res
}

func (p *Provider) exec(ctx context.Context, id string, cmd compute.Command) (compute.Result, error) {
	var res compute.Result
	if len(cmd.Argv) == 0 {
		return res, errors.New("no command given")
	}
	op, err := p.api.start(ctx, http.MethodPost, instancePath(id)+"/exec", execPost{
		Command:     cmd.Argv,
		Environment: cmd.Env,
		Cwd:         cmd.Dir,
		WaitForWS:   true,
	})
	if err != nil {
		return res, err
	}
	var meta struct {
		FDs map[string]string `json:"fds"`
	}
	if err := json.Unmarshal(op.Metadata, &meta); err != nil {
		return res, fmt.Errorf("decode operation: %w", err)
	}

	s, err := p.attach(ctx, op.ID, meta.FDs)
	if err != nil {
		return res, err
	}
	defer s.close()

	// The streams have to outlive ctx for a moment, to kill the command
	// and see it gone.
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	defer context.AfterFunc(ctx, func() {
		time.AfterFunc(killGrace, end)
		s.kill(life)
	})()

	var g errgroup.Group
	g.Go(func() error { return s.send(life, cmd.Stdin) })
	g.Go(func() (err error) { res.Stdout, err = receive(life, s.stdout); return err })
	g.Go(func() (err error) { res.Stderr, err = receive(life, s.stderr); return err })
	streamErr := g.Wait()

	done, err := p.api.waitID(life, op.ID)
	if err != nil {
		return res, err
	}
	var ended struct {
		Return int `json:"return"`
	}
	if err := json.Unmarshal(done.Metadata, &ended); err != nil {
		return res, fmt.Errorf("decode operation: %w", err)
	}
	res.ExitCode = ended.Return
	return res, streamErr
}

// streams are the websockets of a command.
type streams struct {
	control, stdin, stdout, stderr *websocket.Conn
}

func (p *Provider) attach(ctx context.Context, op string, fds map[string]string) (*streams, error) {
	s := &streams{}
	// The control stream comes first: once the three others are there the
	// command starts, and from then on it must be possible to kill it.
	for _, fd := range []struct {
		name string
		conn **websocket.Conn
	}{{"control", &s.control}, {"0", &s.stdin}, {"1", &s.stdout}, {"2", &s.stderr}} {
		conn, err := p.api.dial(ctx, "/1.0/operations/"+url.PathEscape(op)+"/websocket", url.Values{"secret": {fds[fd.name]}}, false)
		if err != nil {
			s.close()
			return nil, &notAttachedError{fmt.Errorf("attach stream %s: %w", fd.name, err)}
		}
		*fd.conn = conn
	}
	// Nothing comes on these two but control frames.
	s.control.CloseRead(context.WithoutCancel(ctx))
	s.stdin.CloseRead(context.WithoutCancel(ctx))
	return s, nil
}

func (s *streams) close() {
	for _, c := range []*websocket.Conn{s.stdin, s.stdout, s.stderr, s.control} {
		if c != nil {
			c.CloseNow()
		}
	}
}

// send writes the command's standard input and ends it. A command that does
// not read all of its input is no error.
func (s *streams) send(ctx context.Context, input []byte) error {
	const chunk = 64 << 10
	for len(input) > 0 {
		n := min(chunk, len(input))
		if err := s.stdin.Write(ctx, websocket.MessageBinary, input[:n]); err != nil {
			return nil
		}
		input = input[n:]
	}
	// An empty text message says that there is no more.
	_ = s.stdin.Write(ctx, websocket.MessageText, nil)
	return nil
}

// receive reads an output stream to its end and returns its beginning.
func receive(ctx context.Context, c *websocket.Conn) ([]byte, error) {
	var out []byte
	for {
		kind, b, err := c.Read(ctx)
		if err != nil {
			if isClosed(err) {
				return out, nil
			}
			return out, fmt.Errorf("read output: %w", err)
		}
		if kind == websocket.MessageText {
			return out, nil
		}
		out = append(out, b[:min(len(b), maxOutput-len(out))]...)
	}
}

// kill ends the command at once.
func (s *streams) kill(ctx context.Context) {
	const sigkill = 9
	b, err := json.Marshal(map[string]any{"command": "signal", "signal": sigkill})
	if err != nil {
		return
	}
	_ = s.control.Write(ctx, websocket.MessageText, b)
}

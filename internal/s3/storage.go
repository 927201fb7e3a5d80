package s3

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"sync"
	"time"
)

const (
	// startWithin is how long the process of the storage may take to listen. It
	// takes a tenth of a second on a machine that is not busy.
	startWithin = 20 * time.Second
	// stopWithin is how long it may take to end.
	stopWithin = 3 * time.Second
	// restWithin keeps requests from starting at once again what just failed.
	restWithin = time.Second
)

// storage is the process that has the buckets. The first request starts it, and
// the next one does after it ended, whatever ended it.
type storage struct {
	command []string
	setup   Setup
	log     *slog.Logger
	client  *http.Transport

	mu      sync.Mutex
	stopped bool
	running *process
	failure error // of the last start, until rested
	rested  time.Time
}

// process is one that was started.
type process struct {
	cmd   *exec.Cmd
	input io.Closer // the process ends when this does, so it never outlives us
	ready chan struct{}
	ended chan struct{}
	err   error // set when ended, never nil then
}

func newStorage(command []string, setup Setup, log *slog.Logger) *storage {
	return &storage{command: command, setup: setup, log: log, client: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", setup.Socket)
		},
		MaxIdleConnsPerHost: 64, IdleConnTimeout: time.Minute, DisableCompression: true,
	}}
}

// open returns when the process listens.
func (s *storage) open() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped {
		return errors.New("start the storage: openpcs stops")
	}
	if s.running != nil {
		select {
		case <-s.running.ended:
			s.log.Warn("The storage of S3 had ended and is started again", "err", s.running.err)
			s.running = nil
			s.client.CloseIdleConnections()
		default:
			return nil
		}
	}
	if s.failure != nil && time.Now().Before(s.rested) {
		return s.failure
	}
	s.running, s.failure = s.start()
	if s.failure != nil {
		s.failure = fmt.Errorf("start the storage: %w", s.failure)
		s.rested = time.Now().Add(restWithin)
	}
	return s.failure
}

func (s *storage) start() (*process, error) {
	settings, err := json.Marshal(s.setup)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(s.setup.Dir, 0o700); err != nil {
		return nil, err
	}
	p := &process{cmd: exec.Command(s.command[0], s.command[1:]...), ready: make(chan struct{}), ended: make(chan struct{})}
	input, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	output, words := io.Pipe()
	p.cmd.Stdout, p.cmd.Stderr, p.input = words, words, input
	p.cmd.WaitDelay = stopWithin
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	last := make(chan string, 1)
	go func() { last <- p.read(output) }()
	go func() {
		p.err = p.cmd.Wait()
		_ = words.Close() // never fails (io.Pipe)
		if text := <-last; text != "" {
			p.err = errors.Join(p.err, errors.New(text))
		}
		if p.err == nil {
			p.err = errors.New("it ended without a word")
		}
		close(p.ended)
	}()
	if _, err := input.Write(append(settings, '\n')); err != nil {
		_ = p.cmd.Process.Kill()
		<-p.ended
		return nil, p.err
	}
	limit := time.NewTimer(startWithin)
	defer limit.Stop()
	select {
	case <-p.ready:
		return p, nil
	case <-p.ended:
		return nil, p.err
	case <-limit.C:
		_ = p.cmd.Process.Kill()
		<-p.ended
		return nil, fmt.Errorf("it does not listen after %s", startWithin)
	}
}

// read follows what the process prints until it ends, and returns the last line.
func (p *process) read(output io.Reader) (last string) {
	listens := false
	lines := bufio.NewScanner(output)
	for lines.Scan() {
		if last = lines.Text(); last == Ready && !listens {
			last, listens = "", true
			close(p.ready)
		}
	}
	_, _ = io.Copy(io.Discard, output) // after a line that is too long
	return last
}

// close ends the process and waits for it.
func (s *storage) close() {
	s.mu.Lock()
	p := s.running
	s.stopped, s.running = true, nil
	s.mu.Unlock()
	if p == nil {
		return
	}
	_ = p.input.Close()
	limit := time.NewTimer(stopWithin)
	defer limit.Stop()
	select {
	case <-p.ended:
	case <-limit.C:
		_ = p.cmd.Process.Kill()
		<-p.ended
	}
	s.client.CloseIdleConnections()
}

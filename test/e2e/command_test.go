//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"
)

// commandLimit bounds every command, so that one that hangs fails its test
// and not the whole run.
const commandLimit = 2 * time.Minute

// result is what a command did.
type result struct {
	argv        []string
	out, errOut string
	code        int
	took        time.Duration
}

// String shows all of it, for a test that did not like it.
func (r result) String() string {
	return fmt.Sprintf("%s\nexit code %d after %s\nstdout: %s\nstderr: %s",
		strings.Join(r.argv, " "), r.code, r.took.Round(time.Millisecond), clip(r.out), clip(r.errOut))
}

// line is the output without the white space around it.
func (r result) line() string { return strings.TrimSpace(r.out) }

// clip keeps logs readable where an output is long.
func clip(s string) string {
	const most = 6000
	if s = strings.TrimSpace(s); len(s) > most {
		return s[:most] + fmt.Sprintf("\n... (%d bytes more)", len(s)-most)
	}
	return s
}

// run runs a command to its end; only one that cannot be run at all, or not
// to its end, has a negative code.
func run(env []string, argv ...string) result { return runFor(commandLimit, env, argv...) }

// runFor is run with a limit of its own.
func runFor(limit time.Duration, env []string, argv ...string) result {
	return feed(limit, "", env, argv...)
}

// feed is runFor with something on standard input.
func feed(limit time.Duration, input string, env []string, argv ...string) result {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	var out, errOut bytes.Buffer
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &out, &errOut
	cmd.WaitDelay = time.Second
	began := time.Now()
	err := cmd.Run()
	r := result{argv: argv, out: out.String(), errOut: errOut.String(), took: time.Since(began)}
	var exit *exec.ExitError
	switch {
	case err == nil:
	case ctx.Err() != nil:
		r.code, r.errOut = -1, r.errOut+"\nit did not end within "+limit.String()
	case errors.As(err, &exit):
		r.code = exit.ExitCode()
	default:
		r.code, r.errOut = -1, r.errOut+"\n"+err.Error()
	}
	return r
}

// lines returns the lines of an output that are not empty.
func lines(text string) (out []string) {
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" {
			out = append(out, line)
		}
	}
	return out
}

package lifecycle

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"
)

const (
	// grace is what a script that is ended has between SIGTERM and SIGKILL.
	grace = 2 * time.Second
	// tailBytes is what an outcome has of a script's output.
	tailBytes = 2 << 10

	// Exit codes of what could not be run, as a shell has them.
	cannotRun = 126
	notFound  = 127
)

// mend returns the content to run: a script that was saved with CRLF line ends
// or with a byte order mark has a first line that the kernel cannot follow, or
// that a shell stumbles over. What is no text stays as it is.
func mend(script []byte) (out []byte, what string) {
	out = script
	if rest, ok := bytes.CutPrefix(out, []byte("\xef\xbb\xbf")); ok {
		out, what = rest, "a byte order mark"
	}
	line, _, ok := bytes.Cut(out, []byte("\n"))
	if ok && bytes.HasSuffix(line, []byte("\r")) && !bytes.Contains(out, []byte{0}) {
		if what != "" {
			what += " and "
		}
		out, what = bytes.ReplaceAll(out, []byte("\r\n"), []byte("\n")), what+"CRLF line ends"
	}
	return out, what
}

// interpreter is what runs a script without a first line of its own: /bin/sh,
// as execvp(3) and shells have it. Bytes that are neither text nor a program
// that the kernel takes are not given to it.
func interpreter(path string, script []byte) ([]string, error) {
	if bytes.HasPrefix(script, []byte("#!")) || bytes.HasPrefix(script, []byte("\x7fELF")) {
		return []string{path}, nil
	}
	line, _, _ := bytes.Cut(script, []byte("\n"))
	if bytes.Contains(line, []byte{0}) {
		return nil, errors.New("it is neither a script nor a program of this machine")
	}
	return []string{"/bin/sh", path}, nil
}

// ended is how a script's process came to its end.
type ended struct {
	exit    int    // its code, 128+N for signal N
	failure string // in the PCS agent's words where it has some; empty: none
	over    bool   // it was ended as its time was over
}

// run runs a command to its end, with its output in a file. Its processes form
// a group of their own, which is ended when ctx is; what a script that ended by
// itself left running stays.
func run(ctx context.Context, name string, argv, env []string, out *os.File, started func(pid int) error) ended {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = "/", env, out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = grace
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return refused(name, err)
	}
	noted := started(cmd.Process.Pid)
	if noted != nil {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	}
	err := cmd.Wait()
	if noted != nil {
		return ended{exit: cannotRun, failure: fmt.Sprintf("script '%s' cannot be run: note its process: %v", name, noted)}
	}
	over := ctx.Err() != nil
	if over {
		// Whatever of it ignored SIGTERM.
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	}
	status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if !ok {
		return ended{exit: 1, failure: fmt.Sprintf("script '%s': %v", name, err)}
	}
	e := ended{exit: status.ExitStatus(), over: over}
	if status.Signaled() {
		e.exit = 128 + int(status.Signal())
	}
	if status != 0 {
		e.failure = fmt.Sprintf("script '%s' failed with exit status ExitStatus(unix_wait_status(%d))", name, status)
		if status.Signaled() {
			e.failure += fmt.Sprintf(": it was ended by signal %d (%v)", status.Signal(), status.Signal())
		}
	}
	if over {
		e.failure = fmt.Sprintf("script '%s' had not ended after %v, when its time was over, and was killed", name, time.Since(began).Round(time.Second))
	}
	return e
}

// beginning is when a process began, which tells it from another that has its
// number later; it is empty if there is none.
func beginning(pid int) string {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	// The name, in parentheses, may have anything in it.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	const starttime = 22 - 3 // of proc_pid_stat(5), counted behind the name
	if len(fields) <= starttime {
		return ""
	}
	return string(fields[starttime])
}

// refused is the end of a script that the kernel did not start. A first line
// that names what does not exist looks like a script that does not exist.
func refused(name string, err error) ended {
	e := ended{exit: cannotRun, failure: fmt.Sprintf("script '%s' cannot be run: %v", name, cause(err))}
	if errors.Is(err, os.ErrNotExist) {
		e.exit = notFound
		e.failure = fmt.Sprintf("script '%s' cannot be run: the interpreter that its first line names does not exist", name)
	}
	return e
}

// cause is an error without the path, which is that of the cache.
func cause(err error) error {
	var path *os.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	return err
}

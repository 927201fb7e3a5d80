//go:build e2e

// Package e2e drives the real openpcs binary with the real AWS CLI on real
// Incus and real Slurm: the walkthroughs of the articles, and the public bug
// cases that apply (each test of one is named after it).
//
// The tests have a site of their own (OPENPCS_SITE=e2e), so that they live
// beside whatever else runs on the machine. The test binary runs itself a
// second time: the outer process prepares, and when the inner one ended, in
// whatever way, removes the site and checks that nothing is left.
package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// innerEnv tells the inner process that it is the inner one.
const innerEnv = "OPENPCS_E2E_INNER"

func TestMain(m *testing.M) {
	if os.Getenv(innerEnv) == "" {
		os.Exit(outer())
	}
	os.Exit(inner(m))
}

// outer prepares, runs the tests in a process of its own and cleans up.
func outer() int {
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "e2e: needs root: use sudo")
		return 1
	}
	unlock, err := lock()
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	defer unlock()
	if err := shareIncus(); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	if err := prepare(); err != nil {
		fmt.Fprintln(os.Stderr, "e2e: prepare:", err)
		return 1
	}
	if err := removeSite(); err != nil {
		fmt.Fprintln(os.Stderr, "e2e: remove what a former run left:", err)
		return 1
	}
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	code := runInner(signals)
	// From here on signals are taken and ignored: cleaning up is what they
	// would ask for.
	began := time.Now()
	if err := removeSite(); err != nil {
		fmt.Fprintln(os.Stderr, "e2e: something is left behind:", err)
		code = max(code, 1)
	}
	fmt.Fprintf(os.Stderr, "e2e: removed the site within %.1f s\n", time.Since(began).Seconds())
	return code
}

// runInner runs the tests and returns their exit code.
func runInner(signals <-chan os.Signal) int {
	cmd := exec.Command(os.Args[0], os.Args[1:]...)
	cmd.Env = append(os.Environ(), innerEnv+"=1")
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = os.Stdout, os.Stderr, []*os.File{incusLock}
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	for {
		select {
		case s := <-signals:
			// Test binaries know no orderly end; what they made is removed here.
			fmt.Fprintln(os.Stderr, "e2e: got", s, "- stopping and cleaning up")
			_ = cmd.Process.Kill()
		case err := <-ended:
			var exit *exec.ExitError
			switch {
			case err == nil:
				return 0
			case errors.As(err, &exit) && exit.ExitCode() > 0:
				return exit.ExitCode()
			default:
				return 1
			}
		}
	}
}

// inner starts the control plane and runs the tests.
func inner(m *testing.M) int {
	// What it starts, an incusd say, would keep the lock for good.
	syscall.CloseOnExec(incusLockFD)
	if err := open(); err != nil {
		fmt.Fprintln(os.Stderr, "e2e: start the site:", err)
		return 1
	}
	return m.Run()
}

// lock keeps two runs of these tests from one site: the later one waits.
func lock() (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(os.TempDir(), "openpcs-"+siteName+".lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		fmt.Fprintln(os.Stderr, "e2e: another run of these tests is under way on this machine: waiting for its end")
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
			_ = f.Close()
			return nil, fmt.Errorf("wait for the other run: %w", err)
		}
	}
	return func() { _ = f.Close() }, nil
}

// incusLock is held by every run of these tests on the machine, whatever its
// site, because all use one Incus: shared, and alone by the test that kills
// it. The inner process has it from the outer one, as incusLockFD.
var incusLock *os.File

const incusLockFD = 3

// shareIncus waits until nobody has Incus alone, and keeps it so.
func shareIncus() (err error) {
	// Not the name of any site's lock.
	if incusLock, err = os.OpenFile(filepath.Join(os.TempDir(), "openpcs-e2e.incus.lock"), os.O_CREATE|os.O_RDWR, 0o600); err != nil {
		return err
	}
	if err := syscall.Flock(int(incusLock.Fd()), syscall.LOCK_SH); err != nil {
		return fmt.Errorf("wait for the run that has Incus alone: %w", err)
	}
	return nil
}

// prepare finds or builds the programs under test and tells the inner
// process through the environment.
func prepare() error {
	root, err := filepath.Abs("../..")
	if err != nil {
		return err
	}
	binary := os.Getenv(binaryEnv)
	if binary == "" {
		binary = filepath.Join(root, "bin", "openpcs")
	}
	if _, err := os.Stat(binary); errors.Is(err, os.ErrNotExist) {
		build := exec.Command("go", "build", "-trimpath", "-o", binary, "./cmd/openpcs")
		build.Dir, build.Env = root, append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("build %s: %w: %s", binary, err, out)
		}
	}
	if binary, err = filepath.Abs(binary); err != nil {
		return err
	}
	storage := filepath.Join(filepath.Dir(binary), "openpcs-s3")
	if _, err := os.Stat(storage); errors.Is(err, os.ErrNotExist) {
		build := exec.Command("go", "build", "-trimpath", "-o", storage, "./cmd/openpcs-s3")
		build.Dir, build.Env = root, append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			return fmt.Errorf("build %s: %w: %s", storage, err, out)
		}
	}
	cli := exec.Command(filepath.Join(root, "scripts", "awscli.sh"), "path")
	cli.Stderr = os.Stderr
	path, err := cli.Output()
	if err != nil {
		return fmt.Errorf("find the AWS CLI: %w", err)
	}
	return errors.Join(os.Setenv(binaryEnv, binary), os.Setenv(awsEnv, strings.TrimSpace(string(path))))
}

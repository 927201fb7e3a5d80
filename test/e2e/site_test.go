//go:build e2e

package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// The site of these tests. The network is one that no other test of the
// repository uses. Several runs at a time on one machine take slots of their
// own (1 to 9).
var (
	slot     = os.Getenv(slotEnv)
	siteName = "e2e" + slot
	stateDir = "/var/lib/openpcs-" + siteName
	listen   = "127.0.0.1:731" + ofSlot("0", "")
	measured = "127.0.0.1:732" + ofSlot("0", "") // its metrics
	subnet   = "10." + ofSlot("79", "10") + ".0.0/16"
	project  = "openpcs-" + siteName
	pool     = project
)

const (
	region     = "ap-northeast-1"
	version    = "26.05"
	startLimit = 60 * time.Second
)

// What the environment may say: which binary is tested, and where the AWS
// CLI is (set by the outer process).
const (
	binaryEnv = "OPENPCS_E2E_BINARY"
	awsEnv    = "OPENPCS_E2E_AWS"
	slotEnv   = "OPENPCS_E2E_SLOT"
)

var siteEnv = []string{
	"OPENPCS_SITE=" + siteName, "OPENPCS_STATE=" + stateDir, "OPENPCS_LISTEN=" + listen,
	"OPENPCS_SUBNET=" + subnet, "OPENPCS_REGION=" + region,
	"OPENPCS_FAULTS=on", "OPENPCS_METRICS=" + measured,
}

// ofSlot is what a run without a slot has, or the prefix with its slot.
func ofSlot(without, prefix string) string {
	if slot == "" {
		return without
	}
	return prefix + slot
}

// binary is the openpcs under test.
func binary() string { return os.Getenv(binaryEnv) }

// openpcs runs the command line on the site.
func openpcs(args ...string) result { return run(siteEnv, append([]string{binary()}, args...)...) }

// rows runs a listing command with --json.
func rows[T any](args ...string) ([]T, error) {
	r := openpcs(append(args, "--json")...)
	if r.code != 0 {
		return nil, errors.New(r.String())
	}
	var out []T
	if err := json.Unmarshal([]byte(r.out), &out); err != nil {
		return nil, fmt.Errorf("%w in: %s", err, r)
	}
	return out, nil
}

// server is the running `openpcs serve`.
type server struct {
	cmd   *exec.Cmd
	ended chan struct{}
}

// serving is the site's control plane; tests run one after the other.
var serving *server

// open starts the control plane, makes the images known and reads the
// environment for the AWS CLI.
func open() error {
	if err := os.MkdirAll(stateDir, 0o711); err != nil {
		return err
	}
	if err := serve(); err != nil {
		return err
	}
	for _, image := range []string{version, "generic"} {
		if r := openpcs("image", "build", image); r.code != 0 {
			return errors.New(r.String())
		}
	}
	r := openpcs("env")
	if r.code != 0 {
		return errors.New(r.String())
	}
	return readEnv(r.out)
}

// serve starts `openpcs serve` and waits until it answers.
func serve(env ...string) error {
	log, err := os.OpenFile(serveLog(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	s := &server{cmd: exec.Command(binary(), "serve"), ended: make(chan struct{})}
	s.cmd.Env = append(append(os.Environ(), siteEnv...), env...)
	s.cmd.Stdout, s.cmd.Stderr = log, log
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := s.cmd.Start(); err != nil {
		return err
	}
	serving = s
	go func() {
		_ = s.cmd.Wait()
		close(s.ended)
	}()
	var last result
	return poll(startLimit, func() error {
		select {
		case <-s.ended:
			return final{fmt.Errorf("openpcs serve ended: %s", tail(serveLog(), 10))}
		default:
		}
		if last = openpcs("status", "--json"); last.code != 0 {
			return errors.New(last.String())
		}
		return nil
	})
}

func serveLog() string { return filepath.Join(stateDir, "serve.log") }

// kill ends the control plane as a crash would.
func (s *server) kill() error { return s.end(syscall.SIGKILL) }

// stop ends the control plane as an administrator would.
func (s *server) stop() error { return s.end(syscall.SIGTERM) }

func (s *server) end(signal syscall.Signal) error {
	if err := s.cmd.Process.Signal(signal); err != nil {
		return fmt.Errorf("end openpcs serve: %w: %s", err, tail(serveLog(), 10))
	}
	select {
	case <-s.ended:
		return nil
	case <-time.After(30 * time.Second):
		return fmt.Errorf("openpcs serve (process %d) does not end", s.cmd.Process.Pid)
	}
}

// removeSite removes the site and reports what is left of it.
func removeSite() error {
	var errs []error
	if r := openpcs("down"); r.code != 0 {
		errs = append(errs, errors.New(r.String()))
	}
	for _, pid := range sitePIDs() {
		errs = append(errs, fmt.Errorf("process %d ran on after openpcs down", pid))
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	if _, err := os.Stat(stateDir); !errors.Is(err, fs.ErrNotExist) {
		names, _ := filepath.Glob(stateDir + "/*")
		errs = append(errs, fmt.Errorf("%s is still there, with %v", stateDir, names), os.RemoveAll(stateDir))
	}
	errs = append(errs, findBridge())
	for what, argv := range map[string][]string{"project " + project: {"project", "list"}, "storage pool " + pool: {"storage", "list"}} {
		r := incus(append(argv, "--format", "csv", "--columns", "n")...)
		if r.code != 0 {
			errs = append(errs, errors.New(r.String()))
		}
		for name := range strings.Lines(r.out) {
			if strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(name), "(current)")) == project {
				errs = append(errs, fmt.Errorf("the Incus %s is still there", what))
			}
		}
	}
	return errors.Join(errs...)
}

// findBridge reports an interface with an address of the site's network.
func findBridge() error {
	all, err := net.Interfaces()
	if err != nil {
		return err
	}
	ours := netip.MustParsePrefix(subnet)
	for _, i := range all {
		addrs, _ := i.Addrs()
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil && ours.Contains(p.Addr()) {
				return fmt.Errorf("the bridge %s is still there", i.Name)
			}
		}
	}
	return nil
}

// sitePIDs finds the processes of the site's openpcs, by their environment.
func sitePIDs() []int {
	var pids []int
	all, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, path := range all {
		env, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(env, []byte("OPENPCS_STATE="+stateDir+"\x00")) {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		argv, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
		if fields := strings.Split(string(argv), "\x00"); len(fields) > 1 && filepath.Base(fields[0]) == filepath.Base(binary()) && fields[1] == "serve" {
			pids = append(pids, pid)
		}
	}
	return pids
}

// incus runs Incus's own command line in the site's project, as somebody
// would who meddles from outside.
func incus(args ...string) result {
	socket := os.Getenv("OPENPCS_INCUS_SOCKET")
	for _, path := range []string{"/var/lib/openpcs/incus/unix.socket", "/var/lib/incus/unix.socket"} {
		if _, err := os.Stat(path); socket == "" && err == nil {
			socket = path
		}
	}
	return run([]string{"INCUS_SOCKET=" + socket}, append([]string{"incus"}, args...)...)
}

// tail returns the last lines of a file of the host.
func tail(path string, lines int) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// restart stops the control plane in good order and starts it again, with
// more in its environment.
func restart(t *testing.T, env ...string) {
	t.Helper()
	select {
	case <-serving.ended: // a test before lost it
	default:
		if err := serving.stop(); err != nil {
			fail(t, "stop: %v", err)
		}
	}
	if err := serve(env...); err != nil {
		fail(t, "start again: %v", err)
	}
}

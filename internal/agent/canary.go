package agent

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/openpcs/openpcs/internal/slurm"
)

// The canary is a slurmctld that tries a configuration before the real one
// gets it. Slurm has no way to check one, so the canary takes it for real: it
// starts with the very files, at their very places, and with a copy of the
// state, and is killed as soon as it runs. That needs namespaces of its own:
//
//   - mounts: its /etc/slurm, state, logs and sockets are in a memory file
//     system that nobody else sees, and its programs do nothing;
//   - network: it has the controller's addresses, and reaches nobody;
//   - processes: it ends with its parent, and takes all that it started along.
//
// So there is nothing to clean up, whoever is killed and when.

// canaryLimit is how long a canary may take. It usually runs within 60 ms;
// most of what it does more with many jobs is to read their state.
const canaryLimit = 20 * time.Second

// canaryUp is what slurmctld says when it has read its configuration and its
// state and listens. Whatever it dies of, it died of before.
const canaryUp = "Running as primary controller"

// CanarySpec is what a canary is started with.
type CanarySpec struct {
	Config
	// Addresses are those that its network has besides the local ones:
	// slurmctld looks up no name on a host without any.
	Addresses []string `json:"addresses"`
}

// Verdict is what the canary said of a configuration.
type Verdict struct {
	// Refusal is empty if slurmctld takes it, else its words against it.
	Refusal string `json:"refusal,omitempty"`
	// Complaints are what it called an error and took all the same.
	Complaints []string `json:"complaints,omitempty"`
}

// TryConfig has a canary try the configuration. An error says that there was
// none, which is no word against the configuration.
func TryConfig(ctx context.Context, conf Config) (Verdict, error) {
	verdict, err := tryConfig(ctx, conf)
	if err != nil {
		return Verdict{}, fmt.Errorf("try the configuration: %w", err)
	}
	return verdict, nil
}

func tryConfig(ctx context.Context, conf Config) (Verdict, error) {
	spec := CanarySpec{Config: conf}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return Verdict{}, err
	}
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() && !p.Addr().IsLoopback() {
			spec.Addresses = append(spec.Addresses, p.Addr().String())
		}
	}
	doc, err := json.Marshal(spec)
	if err != nil {
		return Verdict{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, canaryLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/proc/self/exe", "agent", "canary")
	cmd.Stdin = bytes.NewReader(doc)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC,
		Pdeathsig:  syscall.SIGKILL,
	}
	return hear(ctx, cmd)
}

// hear starts a canary, listens to it until it runs or ends, and ends it.
func hear(ctx context.Context, cmd *exec.Cmd) (Verdict, error) {
	var failure bytes.Buffer
	cmd.Stderr = &failure
	out, err := cmd.StdoutPipe()
	if err != nil {
		return Verdict{}, err
	}
	// The kernel sends the signal when the thread ends that started it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cmd.Start(); err != nil {
		return Verdict{}, err
	}
	log, up := readCanary(out)
	if up {
		_ = cmd.Process.Kill()
	}
	err = cmd.Wait()
	var exit *exec.ExitError
	switch {
	case up:
		return Verdict{Complaints: log.errors}, nil
	case ctx.Err() != nil:
		return Verdict{}, ctx.Err()
	case failure.Len() > 0:
		return Verdict{}, errors.New(strings.TrimSpace(failure.String()))
	case errors.As(err, &exit):
		return log.ended(exit.ExitCode())
	case err != nil:
		return Verdict{}, err
	default:
		return log.ended(0)
	}
}

// ownSignals are those that slurmctld dies of by its own fault. Another one
// comes from outside: from the kernel when memory is short, or a person.
var ownSignals = []syscall.Signal{
	syscall.SIGABRT, syscall.SIGBUS, syscall.SIGFPE, syscall.SIGILL, syscall.SIGSEGV, syscall.SIGSYS, syscall.SIGTRAP,
}

// signalled is added to a signal to make the exit code of what died of it, as
// shells do.
const signalled = 128

// ended is the verdict of a canary that ended with an exit code, which is
// negative if a signal ended the canary itself and not its slurmctld, before
// it ran. Whoever was made to end has said nothing against the configuration.
func (l canaryLog) ended(code int) (Verdict, error) {
	switch sig := syscall.Signal(code - signalled); {
	case code < 0:
		return Verdict{}, errors.New("the canary was killed")
	case code == 0:
		return Verdict{}, fmt.Errorf("the canary's slurmctld ended in good order after %q, as if somebody had asked it to", l.last)
	case code > signalled && !slices.Contains(ownSignals, sig):
		return Verdict{}, fmt.Errorf("the canary's slurmctld was killed (%s)", sig)
	}
	return Verdict{Refusal: l.refusal(code)}, nil
}

// canaryLog is what is kept of the canary's log.
type canaryLog struct {
	errors []string // error: and fatal: lines, without time
	last   string
}

// canaryPrefix is what stands before the message of a line, as slurmctld
// writes it before and after it has read LogTimeFormat.
var canaryPrefix = regexp.MustCompile(`^(\[[^\]]*\] |slurmctld: )+`)

// canaryNoise are errors that slurmctld reports whatever the configuration
// is: a cluster without accounting or without a default queue, a new one
// without state, nodes that are removed, a slow host; and that it does not
// reach slurmdbd, as nobody is reached from there.
var canaryNoise = regexp.MustCompile(`^error: (Job accounting information gathered, but not stored|` +
	`_?open_persist_conn: failed to open persistent connection|slurm_persist_conn_open(_without_init)?: failed to open persistent connection|` +
	`Sending PersistInit msg: |Association database appears down|DBD_SEND_MULT_\w+ failure: |slurmdbd_agent_send: |` +
	`read_slurm_conf: default partition not set|Could not open \w+ state file|NOTE: Trying backup state|High latency for |_find_node_record: lookup failure|Node \S+ has vanished)`)

// maxRefusal bounds what is shown of Slurm's words.
const maxRefusal = 3

// readCanary reads until the canary runs, or ends.
func readCanary(r io.Reader) (log canaryLog, up bool) {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := canaryPrefix.ReplaceAllString(lines.Text(), "")
		switch {
		case strings.HasPrefix(line, canaryUp):
			return log, true
		case canaryNoise.MatchString(line):
		case strings.HasPrefix(line, "error: "), strings.HasPrefix(line, "fatal: "):
			log.errors = append(log.errors, line)
		case line != "":
			log.last = line
		}
	}
	return log, false
}

// refusal is why the canary ended, in Slurm's words as far as there are any.
func (l canaryLog) refusal(code int) string {
	if len(l.errors) == 0 {
		return fmt.Sprintf("slurmctld ended with code %d after %q", code, l.last)
	}
	// The fatal line alone often says little: what is wrong stands before it.
	return strings.Join(l.errors[max(0, len(l.errors)-maxRefusal):], " | ")
}

// canaryRoot is where the canary has its files: an empty folder that every
// Debian has.
const canaryRoot = "/mnt"

// RunCanary is the first process in the canary's namespaces: it furnishes
// them, and runs slurmctld. The exit code is slurmctld's.
func RunCanary(in io.Reader) (code int, err error) {
	var spec CanarySpec
	if err := json.NewDecoder(in).Decode(&spec); err != nil {
		return 0, fmt.Errorf("read what to try: %w", err)
	}
	if os.Getpid() != 1 {
		return 0, errors.New("the canary is started by the controller's agent alone, in namespaces of its own")
	}
	uid, gid, err := slurmUser()
	if err != nil {
		return 0, err
	}
	if err := furnish(spec, uid, gid); err != nil {
		return 0, err
	}
	cmd := exec.Command("slurmctld", "-D")
	cmd.Dir, cmd.Env = "/", []string{"PATH=" + os.Getenv("PATH")}
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stdout
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
	err = cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		if s, ok := exit.Sys().(syscall.WaitStatus); ok && s.Signaled() {
			return signalled + int(s.Signal()), nil
		}
		return exit.ExitCode(), nil
	}
	return 0, err
}

// furnish makes what the canary sees.
func furnish(spec CanarySpec, uid, gid int) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("keep mounts private: %w", err)
	}
	batch := "link set lo up\n"
	for _, a := range spec.Addresses {
		batch += "addr add " + a + "/32 dev lo\n"
	}
	ip := exec.Command("ip", "-batch", "-")
	ip.Stdin = strings.NewReader(batch)
	if out, err := ip.CombinedOutput(); err != nil {
		return fmt.Errorf("set addresses: %w: %s", err, bytes.TrimSpace(out))
	}
	if err := unix.Mount("canary", canaryRoot, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755"); err != nil {
		return fmt.Errorf("mount a memory file system: %w", err)
	}
	at := func(path string) string { return filepath.Join(canaryRoot, path) }
	const etc, hosts, logs, hooks = "/etc/slurm", "/etc/hosts", "/var/log/slurm", HookDir
	for _, dir := range []string{etc, slurm.StateDir, logs, hooks, "/run/slurmctld"} {
		if err := os.MkdirAll(at(dir), 0o755); err != nil {
			return err
		}
	}
	// slurmctld saves each file of its state under another name and renames
	// it, so that a copy is whole, whenever it is made.
	if err := copyFiles(slurm.StateDir, at(slurm.StateDir)); err != nil {
		return fmt.Errorf("copy the state: %w", err)
	}
	known, err := os.ReadFile(hosts)
	if err != nil {
		return err
	}
	head, _, _ := strings.Cut(string(known), hostsMark)
	err = errors.Join(writeAll(at(etc), spec.Files), os.WriteFile(at(etc+"/slurm.key"), spec.Key, 0o600),
		os.WriteFile(at(hosts), []byte(head+hostsPart(spec.Names)), 0o644))
	if err != nil {
		return err
	}
	for _, name := range hookNames {
		if err := os.Symlink("/bin/true", at(filepath.Join(hooks, name))); err != nil {
			return err
		}
	}
	for _, dir := range []string{slurm.StateDir, logs, "/run/slurmctld", etc + "/slurm.key"} {
		err := filepath.WalkDir(at(dir), func(path string, _ os.DirEntry, err error) error {
			return errors.Join(err, os.Lchown(path, uid, gid))
		})
		if err != nil {
			return err
		}
	}
	// /run last: what is below it, the agent's socket too, is out of reach.
	for _, path := range []string{etc, hosts, slurm.StateDir, logs, hooks, "/run"} {
		if err := unix.Mount(at(path), path, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("mount %s: %w", path, err)
		}
	}
	// Some security profiles do not allow this one, and slurmctld can do
	// without: it would see the process ids of outside.
	_ = unix.Mount("proc", "/proc", "proc", 0, "")
	return nil
}

// copyFiles copies a folder of plain files and folders.
func copyFiles(from, to string) error {
	return filepath.WalkDir(from, func(path string, d os.DirEntry, err error) error {
		// What is gone again was being renamed, or purged.
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		switch {
		case d.IsDir():
			return os.MkdirAll(filepath.Join(to, rel), 0o755)
		case !d.Type().IsRegular():
			return nil
		}
		text, err := os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, rel), text, 0o600)
	})
}

// TryConfigs has a canary try each of a stream of configurations, and writes
// a verdict for each: what a person, or a test, asks on a controller.
func TryConfigs(ctx context.Context, in io.Reader, out io.Writer) error {
	confs, verdicts := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var conf Config
		if err := confs.Decode(&conf); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read a configuration: %w", err)
		}
		verdict, err := TryConfig(ctx, conf)
		if err != nil {
			return err
		}
		if err := verdicts.Encode(verdict); err != nil {
			return err
		}
	}
}

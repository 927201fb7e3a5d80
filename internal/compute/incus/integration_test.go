package incus

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/openpcs/openpcs/internal/compute"
)

const testPrefix = "openpcs-test-"

// lab is a Provider on a real Incus with a project, pool and network of its
// own, and an image.
type lab struct {
	*Provider
	image string
	next  netip.Addr
	mu    sync.Mutex
}

// newLab makes a lab that is gone when the test ends. It skips the test where
// no Incus answers.
func newLab(tb testing.TB) *lab {
	tb.Helper()
	if testing.Short() {
		tb.Skip("needs Incus; -short is set")
	}
	ctx := tb.Context()
	pid := os.Getpid()
	opts := Options{
		Project:     testPrefix + strconv.Itoa(pid),
		Pool:        testPrefix + strconv.Itoa(pid),
		Network:     "opcst" + strconv.Itoa(pid),
		Subnet:      netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 78, byte(pid), 0}), 24),
		Domain:      "test.internal",
		PoolSizeGiB: 2,
		Logger:      slog.New(slog.NewTextHandler(tb.Output(), nil)),
	}
	l := &lab{Provider: New(opts)}
	if err := l.Ping(ctx); err != nil {
		tb.Skipf("needs Incus: %v", err)
	}
	removeStale(tb, opts)
	tb.Cleanup(func() {
		if err := l.Remove(context.WithoutCancel(ctx)); err != nil {
			tb.Errorf("remove the lab: %v", err)
		}
	})
	host, err := l.Setup(ctx)
	if err != nil {
		tb.Fatal(err)
	}
	l.next = host.Gateway.Addr()
	return l
}

// removeStale removes the labs of test processes that were killed.
func removeStale(tb testing.TB, opts Options) {
	tb.Helper()
	var all []thing
	c := newClient(New(opts).opts.Socket, hostProject)
	if err := c.get(tb.Context(), "/1.0/projects", url.Values{"recursion": {"1"}}, &all); err != nil {
		tb.Fatal(err)
	}
	for _, project := range all {
		pid, ok := strings.CutPrefix(project.Name, testPrefix)
		if _, err := os.Stat("/proc/" + pid); !ok || err == nil {
			continue
		}
		tb.Logf("removing what an earlier test left: %s", project.Name)
		o := opts
		o.Project, o.Pool, o.Network = project.Name, project.Name, "opcst"+pid
		if err := New(o).Remove(tb.Context()); err != nil {
			tb.Errorf("remove %s: %v", project.Name, err)
		}
	}
}

// tinyImage builds an image whose only program is testdata/init.
func tinyImage(tb testing.TB) compute.Image {
	tb.Helper()
	dir := tb.TempDir()
	bin := filepath.Join(dir, "init")
	cmd := exec.CommandContext(tb.Context(), "go", "build", "-o", bin, "testdata/init/main.go")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		tb.Fatalf("build init: %v: %s", err, out)
	}
	prog, err := os.ReadFile(bin)
	if err != nil {
		tb.Fatal(err)
	}
	rootfs := []tar.Header{}
	for _, d := range []string{"bin", "dev", "etc", "mnt", "proc", "root", "run", "sbin", "sys", "tmp"} {
		rootfs = append(rootfs, tar.Header{Typeflag: tar.TypeDir, Name: d, Mode: 0o755})
	}
	rootfs = append(
		rootfs,
		tar.Header{Typeflag: tar.TypeReg, Name: "sbin/init", Mode: 0o755, Size: int64(len(prog))},
		tar.Header{Typeflag: tar.TypeSymlink, Name: "bin/tool", Linkname: "../sbin/init"},
		tar.Header{Typeflag: tar.TypeSymlink, Name: "etc/link", Linkname: "hostname"},
	)
	meta := "architecture: x86_64\ncreation_date: 1764500000\ntemplates:\n"
	files := []tar.Header{}
	content := map[string][]byte{"sbin/init": prog}
	for _, key := range []string{"address", "hostname"} {
		name := "templates/" + key + ".tpl"
		meta += fmt.Sprintf("  /etc/%s:\n    when: [create]\n    template: %s.tpl\n", key, key)
		content[name] = fmt.Appendf(nil, "{{ config_get(\"user.openpcs.%s\", \"\") }}\n", key)
		files = append(files, tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(content[name]))})
	}
	content["metadata.yaml"] = []byte(meta)
	files = append(files, tar.Header{Typeflag: tar.TypeReg, Name: "metadata.yaml", Mode: 0o644, Size: int64(len(meta))})

	img := compute.Image{Name: "tiny", MetadataPath: filepath.Join(dir, "metadata.tar"), RootfsPath: filepath.Join(dir, "rootfs.tar")}
	writeTar(tb, img.MetadataPath, files, content)
	writeTar(tb, img.RootfsPath, rootfs, content)
	return img
}

func writeTar(tb testing.TB, path string, entries []tar.Header, content map[string][]byte) {
	tb.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range entries {
		if err := w.WriteHeader(&h); err != nil {
			tb.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			if _, err := w.Write(content[h.Name]); err != nil {
				tb.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		tb.Fatal(err)
	}
	if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
		tb.Fatal(err)
	}
}

// spec makes a specification with an address that no other has.
func (l *lab) spec(id string) compute.Spec {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.next = l.next.Next()
	return compute.Spec{
		ID: id, Image: l.image, Role: "node", Hostname: "host-" + id, Domain: l.opts.Domain,
		Address: netip.PrefixFrom(l.next, l.opts.Subnet.Bits()),
	}
}

// launch launches and waits for the instance's first boot.
func (l *lab) launch(t *testing.T, spec compute.Spec) {
	t.Helper()
	if err := l.Launch(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	l.run(t, spec.ID, "up", "1")
}

// run runs one of the image's tools, which must succeed.
func (l *lab) run(t *testing.T, id string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	res, err := l.Exec(ctx, id, compute.Command{Argv: append([]string{"/bin/tool"}, args...)})
	if err != nil || res.ExitCode != 0 {
		t.Fatalf("run %v in %s: %v, code %d: %s", args, id, err, res.ExitCode, res.Stderr)
	}
	return string(res.Stdout)
}

// state returns what List says of an instance, or "" if nothing.
func (l *lab) state(t *testing.T, id string) compute.State {
	t.Helper()
	all, err := l.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range all {
		if i.ID == id {
			return i.State
		}
	}
	return ""
}

// watch returns a function that waits for an event.
func (l *lab) watch(t *testing.T) func(id string, kind compute.EventKind) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	events := make(chan compute.Event, 1000)
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- l.Watch(ctx, func() { close(ready) }, func(ev compute.Event) { events <- ev })
	}()
	select {
	case <-ready:
	case err := <-ended:
		cancel()
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("watch ended with %v, want the context's error", err)
		}
	})
	return func(id string, kind compute.EventKind) {
		t.Helper()
		timeout := time.After(30 * time.Second)
		for {
			select {
			case ev := <-events:
				if ev == (compute.Event{ID: id, Kind: kind}) {
					return
				}
			case <-timeout:
				t.Fatalf("no event %s of %s", kind, id)
			}
		}
	}
}

func TestProvider(t *testing.T) {
	l := newLab(t)
	img := tinyImage(t)
	var err error
	if l.image, err = l.ImportImage(t.Context(), img); err != nil {
		t.Fatal(err)
	}

	t.Run("setup_and_import_again", func(t *testing.T) {
		host, err := l.Setup(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if host.Bridge != l.opts.Network || host.Gateway != l.gateway() {
			t.Errorf("host is %+v", host)
		}
		again, err := l.ImportImage(t.Context(), img)
		if err != nil || again != l.image {
			t.Errorf("second import gave %q, %v; want %q", again, err, l.image)
		}
		all, err := l.List(t.Context())
		if err != nil || len(all) != 0 {
			t.Errorf("a fresh project lists %v, %v", all, err)
		}
	})
	t.Run("life", l.testLife)
	t.Run("ends", l.testEnds)
	t.Run("exec", l.testExec)
	t.Run("mounts", l.testMounts)
	t.Run("network", l.testNetwork)
	t.Run("launch_errors", l.testLaunchErrors)
	t.Run("many", l.testMany)
	t.Run("lost_bridge", l.testLostBridge)
	t.Run("shell_command", l.testShellCommand)
}

func (l *lab) testLife(t *testing.T) {
	wait := l.watch(t)
	spec := l.spec("i-life")
	spec.Labels = map[string]string{"cluster": "pcs_x", "Purpose": "a test: ünïcode, =,;"}
	l.launch(t, spec)
	wait(spec.ID, compute.Started)
	if err := l.Launch(t.Context(), spec); err != nil {
		t.Errorf("second launch: %v", err)
	}
	all, err := l.List(t.Context())
	if err != nil || len(all) != 1 {
		t.Fatalf("list: %v, %v", all, err)
	}
	got := all[0]
	if got.ID != spec.ID || got.State != compute.Running || fmt.Sprint(got.Labels) != fmt.Sprint(spec.Labels) ||
		time.Since(got.CreatedAt) > time.Minute {
		t.Errorf("list: got %+v", got)
	}
	for _, path := range []string{"/etc/hostname", "/etc/link"} {
		b, err := l.ReadFile(t.Context(), spec.ID, path)
		if err != nil || string(b) != spec.Hostname+"\n" {
			t.Errorf("read %s: %q, %v", path, b, err)
		}
	}
	if _, err := l.ReadFile(t.Context(), spec.ID, "/nowhere"); !errors.Is(err, compute.ErrNotFound) {
		t.Errorf("read a missing file: %v", err)
	}

	if err := l.Reboot(t.Context(), spec.ID); err != nil {
		t.Fatal(err)
	}
	wait(spec.ID, compute.Started)
	l.run(t, spec.ID, "up", "2")
	// One that does not obey is forced.
	l.rebootGrace = time.Second
	defer func() { l.rebootGrace = rebootGrace }()
	l.run(t, spec.ID, "write", "/run/stubborn", "")
	if err := l.Reboot(t.Context(), spec.ID); err != nil {
		t.Fatal(err)
	}
	wait(spec.ID, compute.Started)
	l.run(t, spec.ID, "up", "3")
	if b, err := l.ReadFile(t.Context(), spec.ID, "/boots"); string(b) != "3" {
		t.Errorf("the disk did not survive the reboots: boots %q, %v", b, err)
	}
	b, err := l.Console(t.Context(), spec.ID)
	if err != nil || !bytes.Contains(b, []byte("boot 3")) {
		t.Errorf("console: %q, %v", b, err)
	}

	for range 2 {
		if err := l.Terminate(t.Context(), spec.ID); err != nil {
			t.Fatal(err)
		}
	}
	wait(spec.ID, compute.Deleted)
	for what, err := range map[string]error{
		"reboot":    l.Reboot(t.Context(), spec.ID),
		"console":   second(l.Console(t.Context(), spec.ID)),
		"read file": second(l.ReadFile(t.Context(), spec.ID, "/etc/hostname")),
		"exec":      second(l.Exec(t.Context(), spec.ID, compute.Command{Argv: []string{"/bin/tool"}})),
	} {
		if !errors.Is(err, compute.ErrNotFound) {
			t.Errorf("%s of a terminated instance: %v, want not found", what, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

// testEnds looks at all ways an instance can stop without being asked.
func (l *lab) testEnds(t *testing.T) {
	for name, end := range map[string]func(t *testing.T, id string){
		"shutdown_from_inside": func(t *testing.T, id string) { l.run(t, id, "poweroff") },
		"crash": func(t *testing.T, id string) {
			var st struct {
				PID int `json:"pid"`
			}
			if err := l.api.get(t.Context(), instancePath(id)+"/state", nil, &st); err != nil || st.PID < 2 {
				t.Fatalf("find the instance's init: %+v, %v", st, err)
			}
			if err := syscall.Kill(st.PID, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		},
		"stopped_by_someone": func(t *testing.T, id string) {
			if err := l.setState(t.Context(), id, "stop", true, 0); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			wait := l.watch(t)
			spec := l.spec("i-" + strings.ReplaceAll(name, "_", "-"))
			l.launch(t, spec)
			end(t, spec.ID)
			wait(spec.ID, compute.Halted)
			if got := l.state(t, spec.ID); got != compute.Stopped {
				t.Errorf("state is %q", got)
			}
			b, err := l.Console(t.Context(), spec.ID)
			// The engine keeps the console in memory while an instance runs; what
			// was not read by then can be lost with an init that is killed.
			if lost := name == "crash" && len(b) == 0; err != nil || (!lost && !bytes.Contains(b, []byte("boot 1"))) {
				t.Errorf("console of a stopped instance: %q, %v", b, err)
			}
			b, err = l.ReadFile(t.Context(), spec.ID, "/boots")
			if err != nil || string(b) != "1" {
				t.Errorf("file of a stopped instance: %q, %v", b, err)
			}
			_, err = l.Exec(t.Context(), spec.ID, compute.Command{Argv: []string{"/bin/tool"}})
			if err == nil {
				t.Error("a command ran in a stopped instance")
			}
			// Launching it again starts it with its disk.
			if err := l.Launch(t.Context(), spec); err != nil {
				t.Fatal(err)
			}
			wait(spec.ID, compute.Started)
			l.run(t, spec.ID, "up", "2")
			if err := l.Terminate(t.Context(), spec.ID); err != nil {
				t.Fatal(err)
			}
			wait(spec.ID, compute.Deleted)
		})
	}
}

func (l *lab) testExec(t *testing.T) {
	spec := l.spec("i-exec")
	l.launch(t, spec)
	defer func() {
		if err := l.Terminate(t.Context(), spec.ID); err != nil {
			t.Error(err)
		}
	}()
	big := bytes.Repeat([]byte("0123456789abcde\n"), 50_000) // 800 kB
	for name, c := range map[string]struct {
		cmd  compute.Command
		want compute.Result
	}{
		"both_outputs_and_code": {
			compute.Command{Argv: []string{"/bin/tool", "say", "out", "err", "42"}},
			compute.Result{Stdout: []byte("out"), Stderr: []byte("err"), ExitCode: 42},
		},
		"own_127_keeps_output": {
			compute.Command{Argv: []string{"/bin/tool", "say", "out", "", "127"}},
			compute.Result{Stdout: []byte("out"), ExitCode: 127},
		},
		"missing_command": {
			compute.Command{Argv: []string{"/bin/nothing"}},
			compute.Result{Stderr: []byte("/bin/nothing: command not found\n"), ExitCode: 127},
		},
		"not_executable": {
			compute.Command{Argv: []string{"/etc/hostname"}},
			compute.Result{Stderr: []byte("/etc/hostname: not executable\n"), ExitCode: 126},
		},
		"input": {
			compute.Command{Argv: []string{"/bin/tool", "cat"}, Stdin: big},
			compute.Result{Stdout: big},
		},
		"input_not_read": {
			compute.Command{Argv: []string{"/bin/tool", "say", "x", "", "0"}, Stdin: big},
			compute.Result{Stdout: []byte("x")},
		},
		"output_cut": {
			compute.Command{Argv: []string{"/bin/tool", "spew", "5000000"}},
			compute.Result{Stdout: make([]byte, maxOutput)},
		},
		"environment_and_directory": {
			compute.Command{Argv: []string{"/bin/tool", "env", "K"}, Env: map[string]string{"K": "v w"}, Dir: "/tmp"},
			compute.Result{Stdout: []byte("v w /tmp")},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := l.Exec(t.Context(), spec.ID, c.cmd)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got.Stdout, c.want.Stdout) || !bytes.Equal(got.Stderr, c.want.Stderr) || got.ExitCode != c.want.ExitCode {
				t.Errorf("got  %d %.80q %.80q\nwant %d %.80q %.80q", got.ExitCode, got.Stdout, got.Stderr,
					c.want.ExitCode, c.want.Stdout, c.want.Stderr)
			}
		})
	}
	t.Run("cancelled", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
		defer cancel()
		start := time.Now()
		res, err := l.Exec(ctx, spec.ID, compute.Command{Argv: []string{"/bin/tool", "forever"}})
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error is %v", err)
		}
		if string(res.Stdout) != "here\n" {
			t.Errorf("output until then is %q", res.Stdout)
		}
		if d := time.Since(start); d > killGrace {
			t.Errorf("it was not killed but given up after %v", d)
		}
	})
	t.Run("many_at_once", func(t *testing.T) {
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() {
				in := strconv.Itoa(i)
				res, err := l.Exec(t.Context(), spec.ID, compute.Command{Argv: []string{"/bin/tool", "cat"}, Stdin: []byte(in)})
				if err != nil || string(res.Stdout) != in {
					t.Errorf("got %q, %v", res.Stdout, err)
				}
			})
		}
		wg.Wait()
	})
}

func (l *lab) testMounts(t *testing.T) {
	shared, fixed := t.TempDir(), t.TempDir()
	file := filepath.Join(shared, "file")
	if err := os.WriteFile(file, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(file, 1000, 1000); err != nil {
		t.Skipf("needs root: %v", err)
	}
	var ids []string
	for i := range 2 {
		spec := l.spec(fmt.Sprintf("i-mounts-%d", i))
		spec.Mounts = []compute.Mount{
			{Name: "shared", Source: shared, Target: "/mnt/shared"},
			{Name: "fixed", Source: fixed, Target: "/mnt/fixed", ReadOnly: true},
		}
		l.launch(t, spec)
		defer l.Terminate(t.Context(), spec.ID)
		ids = append(ids, spec.ID)
	}
	if got := l.run(t, ids[0], "owner", "/mnt/shared/file"); got != "1000" {
		t.Errorf("owner in the instance is %s", got)
	}
	l.run(t, ids[0], "write", "/mnt/shared/new", "from 0")
	if b, err := l.ReadFile(t.Context(), ids[1], "/mnt/shared/new"); string(b) != "from 0" {
		t.Errorf("the file API does not see mounts: %q, %v", b, err)
	}
	if got := l.run(t, ids[1], "owner", "/mnt/shared/new"); got != "0" {
		t.Errorf("owner in the other instance is %s", got)
	}
	fi, err := os.Stat(filepath.Join(shared, "new"))
	if err != nil || fi.Sys().(*syscall.Stat_t).Uid != 0 {
		t.Errorf("on the host: %+v, %v", fi, err)
	}
	res, err := l.Exec(t.Context(), ids[0], compute.Command{Argv: []string{"/bin/tool", "write", "/mnt/fixed/x", ""}})
	if err != nil || res.ExitCode == 0 {
		t.Errorf("a read-only mount was written: %v, %+v", err, res)
	}
}

// testNetwork checks that an instance has its address and can use no other.
func (l *lab) testNetwork(t *testing.T) {
	spec := l.spec("i-network")
	l.launch(t, spec)
	defer l.Terminate(t.Context(), spec.ID)
	ln, err := net.Listen("tcp", netip.AddrPortFrom(l.gateway().Addr(), 0).String())
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			host, _, _ := net.SplitHostPort(c.RemoteAddr().String())
			io.WriteString(c, host)
			c.Close()
		}
	}()
	if got := l.run(t, spec.ID, "dial", ln.Addr().String()); got != spec.Address.Addr().String() {
		t.Errorf("the host sees the instance as %s, want %s", got, spec.Address)
	}
	resolver := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "udp", netip.AddrPortFrom(l.gateway().Addr(), 53).String())
	}}
	name := "ip-" + strings.ReplaceAll(spec.Address.Addr().String(), ".", "-") + "." + l.opts.Domain
	if got, err := resolver.LookupHost(t.Context(), name); err != nil || !slices.Equal(got, []string{spec.Address.Addr().String()}) {
		t.Errorf("look up %s: %v, %v", name, got, err)
	}
	if l.noFilter.Load() {
		t.Skip("this host cannot filter")
	}
	forged := l.spec("i-nobody").Address.String()
	l.run(t, spec.ID, "address", forged)
	res, err := l.Exec(t.Context(), spec.ID, compute.Command{Argv: []string{"/bin/tool", "dial", ln.Addr().String()}})
	if err != nil || res.ExitCode == 0 {
		t.Errorf("an instance was heard with a forged address: %v, %+v", err, res)
	}
}

func (l *lab) testLaunchErrors(t *testing.T) {
	t.Run("image", func(t *testing.T) {
		spec := l.spec("i-noimage")
		spec.Image = strings.Repeat("ab", 32)
		if err := l.Launch(t.Context(), spec); !errors.Is(err, compute.ErrNotFound) {
			t.Errorf("got %v, want not found", err)
		}
	})
	t.Run("start_fails", func(t *testing.T) {
		spec := l.spec("i-nomount")
		spec.Mounts = []compute.Mount{{Name: "x", Source: "/does/not/exist", Target: "/mnt"}}
		if err := l.Launch(t.Context(), spec); err == nil {
			t.Error("launched with a mount that does not exist")
		}
		if got := l.state(t, spec.ID); got != "" {
			t.Errorf("it left an instance that is %s", got)
		}
	})
	t.Run("existing_survives", func(t *testing.T) {
		spec := l.spec("i-existing")
		l.launch(t, spec)
		defer l.Terminate(t.Context(), spec.ID)
		again := spec
		again.Image = strings.Repeat("ab", 32)
		if err := l.Launch(t.Context(), again); err != nil {
			t.Errorf("launch of an existing ID: %v", err)
		}
		if b, err := l.ReadFile(t.Context(), spec.ID, "/boots"); string(b) != "1" {
			t.Errorf("it was made anew: %q, %v", b, err)
		}
		other := l.spec("i-other")
		other.Address = spec.Address
		if err := l.Launch(t.Context(), other); err == nil {
			t.Error("two instances have one address")
		}
	})
	t.Run("half_made", func(t *testing.T) {
		spec := l.spec("i-halfmade")
		body := l.body(spec, false)
		body.Start = false
		body.Config[userPrefix+"address"] = "not applied"
		if err := l.api.call(t.Context(), http.MethodPost, "/1.0/instances", nil, body, nil); err != nil {
			t.Fatal(err)
		}
		l.launch(t, spec)
		if b, err := l.ReadFile(t.Context(), spec.ID, "/etc/address"); string(b) != spec.Address.String()+"\n" {
			t.Errorf("it was not made anew: %q, %v", b, err)
		}
		if err := l.Terminate(t.Context(), spec.ID); err != nil {
			t.Error(err)
		}
	})
	t.Run("given_up", func(t *testing.T) {
		spec := l.spec("i-givenup")
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
		defer cancel()
		if err := l.Launch(ctx, spec); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		if err := l.Terminate(t.Context(), spec.ID); err != nil {
			t.Error(err)
		}
		if got := l.state(t, spec.ID); got != "" {
			t.Errorf("it is still there, %s", got)
		}
	})
	t.Run("twice_at_once", func(t *testing.T) {
		spec := l.spec("i-twice")
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				if err := l.Launch(t.Context(), spec); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		l.run(t, spec.ID, "up", "1")
		for range 3 {
			wg.Go(func() {
				if err := l.Terminate(t.Context(), spec.ID); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	})
}

func (l *lab) testMany(t *testing.T) {
	wait := l.watch(t)
	var specs []compute.Spec
	for i := range 12 {
		specs = append(specs, l.spec(fmt.Sprintf("i-many-%d", i)))
	}
	var wg sync.WaitGroup
	for _, spec := range specs {
		wg.Go(func() {
			if err := l.Launch(t.Context(), spec); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if all, err := l.List(t.Context()); err != nil || len(all) != len(specs) {
		t.Errorf("%d instances, %v", len(all), err)
	}
	for _, spec := range specs {
		wg.Go(func() {
			if err := l.Terminate(t.Context(), spec.ID); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	wait(specs[0].ID, compute.Deleted)
}

// testLostBridge takes the bridge away as an unclean end of Incus does.
func (l *lab) testLostBridge(t *testing.T) {
	for range 2 { // mending must work more than once
		out, err := exec.CommandContext(t.Context(), "ip", "link", "delete", "dev", l.opts.Network).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if _, err := l.Setup(t.Context()); err != nil {
			t.Fatal(err)
		}
		if !interfaceExists(l.opts.Network) {
			t.Fatal("the bridge did not come back")
		}
	}
	// The same, but Incus forgets the network too.
	if out, err := exec.CommandContext(t.Context(), "ip", "link", "delete", "dev", l.opts.Network).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := l.api.call(t.Context(), http.MethodDelete, networkPath(l.opts.Network), inDefault, nil, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Setup(t.Context()); err != nil {
		t.Fatal(err)
	}
	spec := l.spec("i-bridge")
	l.launch(t, spec)
	if err := l.Terminate(t.Context(), spec.ID); err != nil {
		t.Fatal(err)
	}
}

func (l *lab) testShellCommand(t *testing.T) {
	if _, err := exec.LookPath("incus"); err != nil {
		t.Fatalf("%v: run scripts/host.sh packages", err) // where the daemon is, it comes with it
	}
	spec := l.spec("i-shell")
	l.launch(t, spec)
	defer l.Terminate(t.Context(), spec.ID)
	argv, env := l.ShellCommand(spec.ID, []string{"/bin/tool", "say", "--", "err", "3"})
	cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.Output()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 3 || string(out) != "--" || string(exit.Stderr) != "err" {
		t.Errorf("%v: %v, %q", argv, err, out)
	}
}

// BenchmarkLaunch measures a launch until the instance's init runs; the
// terminating in between is reported apart.
func BenchmarkLaunch(b *testing.B) {
	l := newLab(b)
	var err error
	if l.image, err = l.ImportImage(b.Context(), tinyImage(b)); err != nil {
		b.Fatal(err)
	}
	spec := l.spec("i-bench")
	var terminating time.Duration
	for b.Loop() {
		if err := l.Launch(b.Context(), spec); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		start := time.Now()
		if err := l.Terminate(b.Context(), spec.ID); err != nil {
			b.Fatal(err)
		}
		terminating += time.Since(start)
		b.StartTimer()
	}
	b.ReportMetric(terminating.Seconds()*1000/float64(b.N), "ms/terminate")
}

package doctor

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/openpcs/openpcs/internal/cgroup"
	"github.com/openpcs/openpcs/internal/compute/incus"
	"github.com/openpcs/openpcs/internal/image"
	"github.com/openpcs/openpcs/internal/store"
)

// Options say what a control plane on this machine would use.
type Options struct {
	Mode     cgroup.Mode
	Listen   string
	Subnet   netip.Prefix
	Bridge   string
	StateDir string
	Incus    *incus.Provider
	Storage  Storage // what is to be looked at
	// Serving asks the control plane; nil and no error: none runs.
	Serving func(context.Context) (*Serving, error)
}

// engineLimit bounds what is asked of Incus.
const engineLimit = 10 * time.Second

// Observe looks at the machine.
func Observe(ctx context.Context, o Options) Facts {
	f := Facts{
		Root: os.Geteuid() == 0, Mode: o.Mode, Listen: o.Listen, Subnet: o.Subnet, Bridge: o.Bridge,
		Now: time.Now(), Tools: map[string]bool{}, Networks: map[string][]netip.Prefix{},
	}
	var name unix.Utsname
	if unix.Uname(&name) == nil {
		f.Kernel = unix.ByteSliceToString(name.Release[:])
	}
	f.Control, f.CgroupErr = cgroup.Read()
	if machine, err := cgroup.ThisMachine(); err == nil {
		f.Enforced = cgroup.Decide(o.Mode, f.Control, machine)
	} else {
		f.CgroupErr = errors.Join(f.CgroupErr, err)
	}
	once, cancel := context.WithTimeout(ctx, engineLimit)
	f.Incus, f.IncusErr = o.Incus.Inspect(once)
	cancel()
	for _, dir := range []string{o.StateDir, image.CacheDir()} {
		if d, ok := disksFree(dir); ok {
			f.Disks = append(f.Disks, d)
		}
	}
	f.Serving, f.ServingErr = o.Serving(ctx)
	if f.Serving == nil {
		f.ListenErr = tryListen(o.Listen)
	}
	f.Port80 = wildcard80()
	f.Storage = o.Storage.observe()
	networks(f.Networks)
	f.LatestEvent, f.StateErr = store.LatestEvent(ctx, filepath.Join(o.StateDir, "state.db"))
	for _, t := range Tools {
		f.Tools[t.Program] = found(t.Program)
	}
	if built, err := image.List(""); err == nil {
		for _, b := range built {
			if !slices.Contains(f.Images, b.Version) {
				f.Images = append(f.Images, b.Version)
			}
		}
	}
	slices.Sort(f.Images)
	return f
}

// found looks for a program in PATH, and where root's programs are.
func found(program string) bool {
	for _, dir := range append(filepath.SplitList(os.Getenv("PATH")), "/usr/sbin", "/sbin", "/usr/local/sbin") {
		if info, err := os.Stat(filepath.Join(dir, program)); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return true
		}
	}
	return false
}

// disksFree looks at the file system that a folder is on, or will be on.
func disksFree(dir string) (Disk, bool) {
	for path := dir; ; path = filepath.Dir(path) {
		var s unix.Statfs_t
		err := unix.Statfs(path, &s)
		if err == nil {
			return Disk{dir, int(s.Bavail * uint64(s.Bsize) >> 20)}, true
		}
		if !errors.Is(err, fs.ErrNotExist) || path == "/" {
			return Disk{}, false
		}
	}
}

func tryListen(address string) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err // it names the address
	}
	return l.Close()
}

// wildcard80 reports whether a program listens on port 80 of all addresses.
func wildcard80() bool {
	for _, path := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		text, err := os.ReadFile(path)
		if err == nil && listensOn80(string(text)) {
			return true
		}
	}
	return false
}

// listensOn80 reads /proc/net/tcp: local address and port in hexadecimal in
// the second field, the state in the fourth.
func listensOn80(table string) bool {
	const listening, port = "0A", ":0050"
	for line := range strings.Lines(table) {
		fields := strings.Fields(line)
		if len(fields) > 3 && fields[3] == listening && strings.HasSuffix(fields[1], port) && strings.Trim(strings.TrimSuffix(fields[1], port), "0") == "" {
			return true
		}
	}
	return false
}

func networks(out map[string][]netip.Prefix) {
	interfaces, _ := net.Interfaces()
	for _, i := range interfaces {
		addrs, _ := i.Addrs()
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil {
				out[i.Name] = append(out[i.Name], p)
			}
		}
	}
}

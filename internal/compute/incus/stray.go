package incus

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
)

func interfaceExists(name string) bool {
	_, err := os.Stat(filepath.Join("/sys/class/net", name))
	return err == nil
}

// removeStray removes what a network of that name leaves on the host when
// Incus has forgotten it: a bridge, and the dnsmasq that served it. It must
// not be called for a network that Incus knows. Interfaces other than bridges
// stay, and so does a bridge with members, which another Incus on this machine
// may be using.
func removeStray(ctx context.Context, name string) error {
	dir := filepath.Join("/sys/class/net", name)
	members, err := os.ReadDir(filepath.Join(dir, "brif"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("look for a stray bridge: %w", err)
	}
	if len(members) > 0 {
		return fmt.Errorf("remove stray bridge %s: it has %d members, so something else is using it", name, len(members))
	}
	if err := killDnsmasq(name); err != nil {
		return fmt.Errorf("end the stray dnsmasq of %s: %w", name, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "bridge")); err != nil {
		return nil
	}
	out, err := exec.CommandContext(ctx, "ip", "link", "delete", "dev", name).CombinedOutput()
	if err != nil {
		return fmt.Errorf("remove stray bridge %s: %w: %s", name, err, out)
	}
	return nil
}

// killDnsmasq ends the processes that serve DNS on the bridge. Incus leaves
// them running when it deletes a network whose interface is gone.
func killDnsmasq(bridge string) error {
	cmdlines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return err
	}
	for _, path := range cmdlines {
		b, err := os.ReadFile(path)
		if err != nil {
			continue // ended meanwhile
		}
		argv := bytes.Split(b, []byte{0})
		if filepath.Base(string(argv[0])) != "dnsmasq" ||
			!slices.ContainsFunc(argv, func(a []byte) bool { return string(a) == "--interface="+bridge }) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if err != nil {
			continue
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			return err
		}
	}
	return nil
}

//go:build e2e

package e2e

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestIncusKilled: a kill -9 of incusd ends no instance and no job; what is
// wanted meanwhile is launched when it is back.
func TestIncusKilled(t *testing.T) {
	aloneWithIncus(t)
	c := shared(t)
	c.powerUp(t, "queue-1", "node-1")
	c.powerDown(t, "node-2")
	before := c.instance(t, "node-1")
	succeed(t, c.user("rm -f e2e-incus"))
	id := c.submit(t, "queue-1", "while [ ! -e e2e-incus ]; do sleep 0.2; done; hostname", "--nodelist=node-1", "--no-requeue")
	defer c.user("touch e2e-incus")
	c.waitJob(t, id, 15*time.Second, "running", running)
	began := time.Now()
	next := c.submit(t, "queue-1", "hostname", "--nodelist=node-2", "--begin=now+2")
	killIncus(t, true)
	eventually(t, 20*time.Second, "Slurm wants the node while nobody can launch it", func() error {
		if _, events := c.history(t, "node-2"); len(since(events, began, "assigned")) == 0 {
			return errors.New("it does not yet")
		}
		return nil
	})
	succeed(t, run(nil, "../../scripts/host.sh", "incus-up"))
	c.output(t, next, 2*time.Minute)
	succeed(t, c.user("touch e2e-incus"))
	out := c.output(t, id, time.Minute)
	matches(t, "the job that ran through it all", out, `^`+hostName+`$`)
	must(t, c.instance(t, "node-1").ID == before.ID, "node-1 has another instance")
	c.onlyKnown(t)
	// It is started again by whoever keeps it: scripts/host.sh or systemd.
	killIncus(t, false)
	eventually(t, time.Minute, "Incus is back by itself", func() error {
		if r := incus("list", "--project", project, "--format", "csv"); r.code != 0 {
			return errors.New(r.String())
		}
		return nil
	})
	c.powerDown(t, "node-2")
	c.powerUp(t, "queue-1", "node-2")
}

// aloneWithIncus keeps other runs of these tests from Incus to the end of the
// test. While they are under way they are waited for, but not for long: they
// may take longer than this run has.
func aloneWithIncus(t *testing.T) {
	t.Helper()
	share := func() {
		if err := syscall.Flock(incusLockFD, syscall.LOCK_SH); err != nil {
			t.Errorf("share Incus again: %v", err)
		}
	}
	err := poll(2*time.Minute, func() error {
		err := syscall.Flock(incusLockFD, syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, syscall.EWOULDBLOCK):
			return final{fmt.Errorf("lock Incus: %w", err)}
		}
		share() // an attempt in vain gives up what was held
		return err
	})
	if errors.Is(err, syscall.EWOULDBLOCK) {
		t.Skip("NOT TESTED: other runs of these tests use the machine's Incus, which this test kills")
	}
	must(t, err == nil, "%v", err)
	t.Cleanup(share)
}

// killIncus kills the Incus that scripts/host.sh started, if it did, or else
// that of the system; for good, as far as whoever keeps it can be held up.
func killIncus(t *testing.T, forGood bool) {
	t.Helper()
	dir := cmp.Or(os.Getenv("OPENPCS_INCUS_DIR"), "/var/lib/openpcs/incus") + ".run"
	path := filepath.Join(dir, "pid")
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		succeed(t, run(nil, "systemctl", "kill", "--signal=KILL", "incus.service"))
		return
	}
	must(t, err == nil, "find incusd: %v", err)
	pid := strings.TrimSpace(string(text))
	exe, err := os.Readlink("/proc/" + pid + "/exe")
	// The text of a former daemon's file may name any process by now.
	must(t, err == nil && strings.TrimSuffix(filepath.Base(exe), " (deleted)") == "incusd", "process %s of %s is %q, not incusd: %v", pid, path, exe, err)
	if keeper, err := os.ReadFile(filepath.Join(dir, "keeper")); err == nil && forGood {
		succeed(t, run(nil, "kill", "-STOP", strings.TrimSpace(string(keeper))))
	}
	succeed(t, run(nil, "kill", "-KILL", pid))
}

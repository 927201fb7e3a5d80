//go:build e2e

package e2e

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"
)

// TestIncusKilled: a kill -9 of incusd ends no instance and no job; what is
// wanted meanwhile is launched when it is back.
func TestIncusKilled(t *testing.T) {
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
	if pid, err := os.ReadFile("/var/lib/openpcs/incus.run/pid"); err == nil {
		succeed(t, run(nil, "kill", "-KILL", strings.TrimSpace(string(pid))))
	} else {
		succeed(t, run(nil, "systemctl", "kill", "--signal=KILL", "incus.service"))
	}
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
}

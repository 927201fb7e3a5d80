//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

// weigh updates a group so that its nodes are replaced, and waits until the
// update is in force.
func (c *cluster) weigh(t *testing.T, name string, weight int) {
	t.Helper()
	aws(t, "pcs", "update-compute-node-group", "--cluster-identifier", c.id, "--compute-node-group-identifier", name,
		"--slurm-configuration", fmt.Sprintf(`{"slurmCustomSettings":[{"parameterName":"Weight","parameterValue":"%d"}]}`, weight))
	c.active(t, name, "groups", c.id)
}

// TestUpdateDrainsAndReplaces: an update of a group ends no job. Idle nodes
// are replaced at once, busy ones when their jobs are done, the minimum comes
// back by itself, and jobs on nodes that a lower maximum takes away run
// elsewhere.
func TestUpdateDrainsAndReplaces(t *testing.T) {
	c := shared(t)
	c.lend(t, group{name: "upd", max: 3, queue: "upd"})
	c.powerUp(t, "upd", "upd-1", "upd-2")
	busy, idle := c.instance(t, "upd-1"), c.instance(t, "upd-2")
	succeed(t, c.user("rm -f e2e-replace"))
	job := c.submit(t, "upd", "hostname; while [ ! -e e2e-replace ]; do sleep 0.2; done; hostname", "--nodelist=upd-1", "--no-requeue")
	defer c.user("touch e2e-replace")
	c.waitJob(t, job, 15*time.Second, "running", running)
	// Several in a row: the last one counts.
	c.weigh(t, "upd", 5)
	c.weigh(t, "upd", 6)
	c.waitNode(t, "upd-2", 30*time.Second, "off, as it was idle", node.off)
	live, _ := c.instances(t, "upd-2")
	must(t, len(live) == 0, "upd-2 still has %v, had %s", live, idle.ID)
	c.waitNode(t, "upd-1", 15*time.Second, "taking no more jobs", func(n node) bool { return n.is("DRAIN") || n.is("POWER_DOWN") || n.is("POWER_DRAIN") })
	must(t, c.instance(t, "upd-1").ID == busy.ID, "upd-1 lost its instance %s while its job runs", busy.ID)
	// A job that comes now runs on a fresh instance meanwhile.
	r := succeed(t, c.login("srun", "--chdir=/", "-p", "upd", "hostname"))
	must(t, !strings.Contains(r.out, strings.ReplaceAll(busy.Address, ".", "-")), "a job ran on the node that is being replaced: %s", r)
	succeed(t, c.user("touch e2e-replace"))
	out := lines(c.output(t, job, 30*time.Second))
	must(t, len(out) == 2 && out[0] == out[1], "the job that ran through the updates: %q", out)
	c.waitNode(t, "upd-1", 30*time.Second, "off, as its job is done", node.off)

	t.Run("minimum", func(t *testing.T) {
		c.resize(t, "upd", 1, 3)
		c.waitNode(t, "upd-1", launchLimit, "up", node.up)
		before := c.instance(t, "upd-1").ID
		c.weigh(t, "upd", 7)
		eventually(t, launchLimit, "upd-1 is up with another instance", func() error {
			live, _ := c.instances(t, "upd-1")
			if n, err := c.node("upd-1"); err != nil || !n.up() || len(live) != 1 || live[0].ID == before {
				return fmt.Errorf("it has %v, had %s: %v %v", live, before, n, err)
			}
			return nil
		})
		c.resize(t, "upd", 0, 3)
	})
	t.Run("lower_maximum", func(t *testing.T) {
		succeed(t, c.user("rm -f e2e-lower"))
		defer c.user("touch e2e-lower")
		others := func(state string) {
			succeed(t, c.controller("scontrol update nodename=upd-[1-2] reason=e2e state="+state))
		}
		others("drain")
		lowered := c.submit(t, "upd", "while [ ! -e e2e-lower ]; do sleep 0.2; done; hostname", "--requeue")
		j := c.waitJob(t, lowered, launchLimit, "running", running)
		others("resume")
		must(t, j.node == "upd-3", "the job runs on %s", j.node)
		c.resize(t, "upd", 0, 2)
		eventually(t, 20*time.Second, "the instance of upd-3 is gone", func() error {
			if live, _ := c.instances(t, "upd-3"); len(live) > 0 {
				return fmt.Errorf("there is %v", live)
			}
			return nil
		})
		succeed(t, c.user("touch e2e-lower"))
		out := c.output(t, lowered, 3*time.Minute)
		matches(t, "the job that lost its node", out, hostName)
	})
}

// TestRebootNextStateDown: Slurm reboots the node and has it down then, so
// that it is replaced (nextstate=RESUME: TestUserData).
func TestRebootNextStateDown(t *testing.T) {
	c := shared(t)
	c.powerUp(t, "queue-1", "node-3")
	before := c.instance(t, "node-3").ID
	succeed(t, c.login("scontrol", "reboot", "ASAP", "nextstate=DOWN", "reason=e2e", "node-3"))
	eventually(t, time.Minute, "node-3 is off without its instance", func() error {
		live, _ := c.instances(t, "node-3")
		n, err := c.node("node-3")
		if err != nil || !n.off() || len(live) > 0 {
			return errors.Join(err, fmt.Errorf("it is %v with %v, had %s", n, live, before))
		}
		return nil
	})
	r := succeed(t, c.login("srun", "--chdir=/", "-p", "queue-1", "-w", "node-3", "hostname"))
	matches(t, "a job on the replaced node", r.line(), `^`+hostName+`$`)
}

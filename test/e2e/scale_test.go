//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"testing"
	"time"
)

// resize changes a group's bounds and waits until that is done.
func (c *cluster) resize(t *testing.T, name string, low, high int) {
	t.Helper()
	began := time.Now()
	defer func() { t.Logf("resizing %s to %d-%d took %.1f s", name, low, high, time.Since(began).Seconds()) }()
	aws(t, "pcs", "update-compute-node-group", "--cluster-identifier", c.id, "--compute-node-group-identifier", name,
		"--scaling-configuration", fmt.Sprintf("minInstanceCount=%d,maxInstanceCount=%d", low, high))
	c.active(t, name, "groups", c.id)
}

// TestR7_ScaledToZeroWhileComingUp: a group that is scaled to zero while its
// nodes come up leaves nothing that powers up for ever; scaled up again its
// nodes can be had at once (ParallelCluster node #327, #325, #322).
func TestR7_ScaledToZeroWhileComingUp(t *testing.T) {
	c := shared(t)
	id := c.submit(t, "slow", "hostname", "--nodelist=slow-1")
	defer c.controller("scancel " + id)
	c.waitNode(t, "slow-1", 15*time.Second, "powering up", func(n node) bool { return n.is("POWERING_UP") })
	c.resize(t, "slow", 0, 0)
	eventually(t, 15*time.Second, "the instance is gone", func() error {
		if live, _ := c.instances(t, "slow-1"); len(live) > 0 {
			return fmt.Errorf("there is %v", live)
		}
		return nil
	})
	succeed(t, c.controller("scancel "+id))
	c.resize(t, "slow", 0, 3)
	for _, name := range []string{"slow-1", "slow-2", "slow-3"} {
		c.waitNode(t, name, 15*time.Second, "idle~", node.off)
	}
	began := time.Now()
	again := c.submit(t, "slow", "hostname", "--nodelist=slow-1")
	eventually(t, 15*time.Second, "the next job resumes it at once", func() error {
		if _, events := c.history(t, "slow-1"); len(since(events, began, "launched")) == 0 {
			return fmt.Errorf("so far %v", events)
		}
		return nil
	})
	succeed(t, c.controller("scancel "+again))
	c.powerDown(t, "slow-1")
}

// TestR8_QueueIsUpAgainWhileNodesPowerDown: nodes that are still powering
// down when their queue comes back are schedulable at once, not only after
// SuspendTimeout (ParallelCluster node #369).
func TestR8_QueueIsUpAgainWhileNodesPowerDown(t *testing.T) {
	c := shared(t)
	c.powerUp(t, "queue-1", "node-1")
	before := c.instance(t, "node-1")
	id := c.submit(t, "queue-1", "hostname", "--nodelist=node-1", "--begin=now+3600")
	defer c.controller("scancel " + id)
	succeed(t, c.controller("scontrol update partitionname=queue-1 state=down && scontrol update nodename=node-1 state=power_down && "+
		"scontrol update partitionname=queue-1 state=up && scontrol update jobid="+id+" starttime=now"))
	c.output(t, id, 30*time.Second)
	must(t, c.instance(t, "node-1").ID != before.ID, "the job ran on the instance that was powered down")
}

// TestR20_SlurmctldStopsDuringAResume: a launch that slurmctld asked for goes
// on while slurmctld is away, and it all fits together after.
func TestR20_SlurmctldStopsDuringAResume(t *testing.T) {
	c := shared(t)
	c.powerDown(t, "node-2")
	began := time.Now()
	c.addFault(t, "node", "slow-boot", "--delay", "5s") // else it may be up before anybody looks
	id := c.submit(t, "queue-1", "hostname", "--nodelist=node-2")
	c.waitNode(t, "node-2", 15*time.Second, "powering up", func(n node) bool { return n.is("POWERING_UP") })
	succeed(t, c.controller("systemctl stop slurmctld"))
	eventually(t, 15*time.Second, "the launch goes on", func() error {
		if _, events := c.history(t, "node-2"); len(since(events, began, "launched")) == 0 {
			return fmt.Errorf("so far %v", events)
		}
		return nil
	})
	succeed(t, c.controller("systemctl start slurmctld"))
	c.output(t, id, 2*time.Minute)
	c.onlyKnown(t)
}

// TestI2_ShorterIdleTimeHoldsAtOnce: an update of the idle time needs no
// restart of slurmctld to suspend what is idle (ParallelCluster #4274).
func TestI2_ShorterIdleTimeHoldsAtOnce(t *testing.T) {
	c := shared(t)
	c.powerUp(t, "queue-1", "node-1")
	idle := func(seconds int) {
		t.Helper()
		aws(t, "pcs", "update-cluster", "--cluster-identifier", c.id, "--slurm-configuration", fmt.Sprintf("scaleDownIdleTimeInSeconds=%d", seconds))
		c.active(t, c.name, "clusters")
	}
	idle(5)
	defer idle(sharedIdle)
	eventually(t, 30*time.Second, "the idle node is gone", func() error {
		n, err := c.node("node-1")
		if err == nil && !n.off() {
			err = errors.New("it is " + fmt.Sprint(n.state))
		}
		return err
	})
}

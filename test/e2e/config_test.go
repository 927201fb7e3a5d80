//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"
)

// TestC10_NoConfigHashMismatch: neither slurmctld nor a slurmd complains of
// a slurm.conf that differs, after nodes booted and after the configuration
// changed under them (aws-eda-slurm-cluster #267).
func TestC10_NoConfigHashMismatch(t *testing.T) {
	c := shared(t)
	c.powerUp(t, "queue-1", "node-1", "node-2")
	c.lendQueue(t, "c10", "node")
	c.active(t, "c10", "queues", c.id)
	// The nodes run a job of the new configuration, and one boots with it.
	succeed(t, c.login("srun", "--chdir=/", "-p", "c10", "-N2", "-w", "node-[1-2]", "true"))
	c.powerDown(t, "node-2")
	c.powerUp(t, "c10", "node-1", "node-2")
	complaint := regexp.MustCompile(`(?im)^.*(different slurm\.conf|configuration hash|appears to have a different).*$`)
	logs := map[string]result{
		"slurmctld.log":         c.controller("cat /var/log/slurm/slurmctld.log"),
		"slurmd.log of node-1":  c.connect("node-1", "cat", "/var/log/slurm/slurmd.log"),
		"slurmd.log of node-2":  c.connect("node-2", "cat", "/var/log/slurm/slurmd.log"),
		"slurmd.log of front-1": c.connect("front-1", "cat", "/var/log/slurm/slurmd.log"),
	}
	for what, r := range logs {
		succeed(t, r)
		must(t, strings.Contains(r.out, "started") || strings.Contains(r.out, "slurmd"), "%s is empty: %s", what, r)
		if line := complaint.FindString(r.out); line != "" {
			fail(t, "%s says: %s", what, line)
		}
	}
}

// TestC14_NewQueueIsVisible: a new queue is there for users without
// anybody restarting anything (trinity #502), even while one node comes up
// and another does not come up for long.
func TestC14_NewQueueIsVisible(t *testing.T) {
	c := shared(t)
	c.powerDown(t, "node-4")
	stuck := c.submit(t, "slow", "hostname", "--nodelist=slow-1")
	defer func() {
		c.controller("scancel " + stuck)
		c.powerDown(t, "slow-1")
	}()
	c.waitNode(t, "slow-1", 15*time.Second, "powering up", func(n node) bool { return n.is("POWERING_UP") })
	id := c.submit(t, "queue-1", "hostname", "--nodelist=node-4")
	c.lendQueue(t, "c14", "node")
	took := eventually(t, patience, "sinfo shows the new queue", func() error {
		r := c.login("sinfo", "--noheader", "--partition=c14")
		if !regexp.MustCompile(`(?m)^c14\s+up\s`).MatchString(r.out) {
			return errors.New(r.String())
		}
		return nil
	})
	t.Logf("visible %.1f s after the answer of create-queue", took.Seconds())
	// What slurmctld does on its own after a reconfigure must not block it:
	// an address that it cannot find, say. Blocked commands wait for the 30 s
	// of MessageTimeout.
	slowest := time.Duration(0)
	for began := time.Now(); time.Since(began) < 4*time.Second; {
		r := succeed(t, c.login("sinfo"))
		must(t, r.took < patience, "slurmctld is blocked after a new queue: %s", r)
		slowest = max(slowest, r.took)
	}
	t.Logf("the slowest sinfo after it took %.1f s", slowest.Seconds())
	r := succeed(t, c.login("srun", "--chdir=/", "-p", "c14", "-w", "node-4", "hostname"))
	matches(t, "srun in the new queue", r.line(), `^`+hostName+`$`)
	t.Logf("srun in the new queue took %.1f s", r.took.Seconds())
	c.output(t, id, 60*time.Second)
}

// TestUpdateGroup: a group grows and shrinks under a running job, and nodes
// old and new run one job together (ParallelCluster #5538).
func TestUpdateGroup(t *testing.T) {
	c := shared(t)
	resize := func(high int) {
		t.Helper()
		aws(t, "pcs", "update-compute-node-group", "--cluster-identifier", c.id, "--compute-node-group-identifier", "node",
			"--scaling-configuration", fmt.Sprintf("minInstanceCount=0,maxInstanceCount=%d", high))
		c.active(t, "node", "groups", c.id)
	}
	c.powerUp(t, "queue-1", "node-1")
	before := c.instance(t, "node-1")
	id := c.submit(t, "queue-1", "while [ ! -e e2e-update ]; do sleep 0.2; done; hostname", "--nodelist=node-1", "--oversubscribe", "--no-requeue")
	defer c.user("touch e2e-update")
	c.waitJob(t, id, 15*time.Second, "running", running)
	resize(6)
	r := succeed(t, c.login("srun", "--chdir=/", "-p", "queue-1", "-N5", "-w", "node-[2-6]", "hostname"))
	must(t, len(lines(r.out)) == 5, "srun over nodes old and new: %s", r)
	t.Logf("srun over 5 nodes, two of them new, took %.1f s", r.took.Seconds())
	resize(4)
	for _, name := range []string{"node-5", "node-6"} {
		eventually(t, 20*time.Second, "the instance of "+name+" is gone", func() error {
			if live, _ := c.instances(t, name); len(live) > 0 {
				return fmt.Errorf("there is %v", live)
			}
			return nil
		})
	}
	r = succeed(t, c.login("sinfo", "--noheader", "--Node", "--partition=queue-1", "--format=%N"))
	must(t, strings.Join(lines(r.out), " ") == "node-1 node-2 node-3 node-4", "Slurm has other nodes: %s", r)
	succeed(t, c.user("touch e2e-update"))
	out := c.output(t, id, 20*time.Second)
	matches(t, "the job that ran through it all", out, `^`+hostName+`$`)
	must(t, c.instance(t, "node-1").ID == before.ID, "node-1 has another instance")
}

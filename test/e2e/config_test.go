//go:build e2e

package e2e

import (
	"errors"
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
	c.addQueue(t, "c10", "node")
	c.active(t, "c10", "queues", c.id)
	defer c.deleteQueue(t, "c10")
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

// TestC14_NewQueueVisibleWithin5s: a new queue is there for users without
// anybody restarting anything (trinity #502), even while nodes come up.
func TestC14_NewQueueVisibleWithin5s(t *testing.T) {
	c := shared(t)
	c.powerDown(t, "node-4")
	id := c.submit(t, "queue-1", "hostname", "--nodelist=node-4")
	c.addQueue(t, "c14", "node")
	defer c.deleteQueue(t, "c14")
	took := eventually(t, 5*time.Second, "sinfo shows the new queue", func() error {
		r := c.login("sinfo", "--noheader", "--partition=c14")
		if !regexp.MustCompile(`(?m)^c14\s+up\s`).MatchString(r.out) {
			return errors.New(r.String())
		}
		return nil
	})
	t.Logf("visible %.1f s after the answer of create-queue", took.Seconds())
	r := succeed(t, c.login("srun", "--chdir=/", "-p", "c14", "-w", "node-4", "hostname"))
	matches(t, "srun in the new queue", r.line(), `^`+hostName+`$`)
	c.output(t, id, 60*time.Second)
}

// deleteQueue deletes a queue and waits until it is gone.
func (c *cluster) deleteQueue(t *testing.T, name string) {
	t.Helper()
	aws(t, "pcs", "delete-queue", "--cluster-identifier", c.id, "--queue-identifier", name)
	eventually(t, 30*time.Second, "the queue "+name+" is gone", func() error {
		all, err := rows[clusterRow]("queues", c.id)
		for _, q := range all {
			if q.Name == name {
				return errors.New("it is " + q.Status)
			}
		}
		return err
	})
	r := succeed(t, c.login("sinfo", "--noheader", "--partition="+name))
	must(t, r.line() == "", "sinfo still shows the queue: %s", r)
}

//go:build e2e

package e2e

import (
	"errors"
	"strings"
	"testing"
	"time"
)

// TestD13_DeletedWithJobs: a queue and its group are deleted while a job runs
// and another has just ended. slurmctld, which keeps records of both, never
// stumbles over a partition that is gone (slinky #138: it did, in a loop).
func TestD13_DeletedWithJobs(t *testing.T) {
	for name, of := range map[string]func(*testing.T) *cluster{version: shared, oldVersion: old} {
		t.Run(name, func(t *testing.T) {
			c := of(t)
			image := findImage(t, "aws-pcs-sample_ami-*-slurm-"+name+"-*")
			c.lend(t, group{name: "gone", max: 1, queue: "gone", image: image})
			ended := c.submit(t, "gone", "hostname")
			c.output(t, ended, time.Minute)
			job := c.submit(t, "gone", "sleep 600", "--requeue")
			c.waitJob(t, job, 15*time.Second, "running", running)
			before := c.unit(t, "NRestarts")
			c.deleteQueue(t, "gone")
			c.deleteGroup(t, "gone")
			must(t, c.unit(t, "NRestarts") == before, "slurmctld was started again")
			live, _ := c.instances(t, "gone-1")
			must(t, len(live) == 0, "gone-1 still has %v", live)
			// What it saves when it stops it can read.
			succeed(t, c.controller("systemctl restart slurmctld"))
			eventually(t, 30*time.Second, "slurmctld answers after a restart", func() error {
				if r := c.login("squeue", "--noheader"); r.code != 0 {
					return errors.New(r.String())
				}
				return nil
			})
			must(t, c.unit(t, "NRestarts") == "0", "slurmctld ended after its restart")
			r := succeed(t, c.login("srun", "--chdir=/", "-p", "queue-1", "-w", "node-1", "hostname"))
			matches(t, "a job in another queue", r.out, `^`+hostName+`$`)
		})
	}
}

// TestB14_JobShowsThatItsNodeComesUp: a job whose nodes come up is shown as
// CONFIGURING, not as one that runs (AWS ParallelCluster users saw R for
// minutes).
func TestB14_JobShowsThatItsNodeComesUp(t *testing.T) {
	c := shared(t)
	id := c.submit(t, "slow", "hostname", "--nodelist=slow-2")
	defer c.powerDown(t, "slow-2")
	defer c.controller("scancel " + id)
	c.waitNode(t, "slow-2", 15*time.Second, "powering up", func(n node) bool { return n.is("POWERING_UP") })
	r := succeed(t, c.login("squeue", "--noheader", "--jobs="+id, "--format=%t"))
	must(t, r.line() == "CF", "squeue shows the job as %s", r)
}

// TestControllerNotReached: a node that cannot connect to slurmctld says so
// long before it is given up, and joins when that is mended.
func TestControllerNotReached(t *testing.T) {
	c := shared(t)
	all, err := rows[instanceRow]("instances")
	must(t, err == nil, "%v", err)
	controller := ""
	for _, i := range all {
		if i.ID == "ctl-"+strings.TrimPrefix(c.id, "pcs_") {
			controller = i.Address
		}
	}
	c.lend(t, group{name: "cut", max: 1, queue: "cut", userData: mime(shellscript, "#!/bin/sh\nip route add blackhole "+controller+"/32\n")})
	id := c.submit(t, "cut", "hostname")
	eventually(t, time.Minute, "explain tells that the node does not reach the controller", func() error {
		return contains(openpcs("explain", c.id+"/cut-1"), "CONTROLLER_NOT_REACHED")
	})
	succeed(t, openpcs("connect", c.instance(t, "cut-1").ID, "--", "ip", "route", "del", "blackhole", controller+"/32"))
	out := c.output(t, id, time.Minute)
	matches(t, "the job", out, `^`+hostName+`$`)
}

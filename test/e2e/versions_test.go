//go:build e2e

package e2e

import (
	"errors"
	"regexp"
	"testing"
	"time"

	"github.com/openpcs/openpcs/internal/slurm"
)

// oldVersion is the oldest release that can be built.
const oldVersion = "24.11"

// oldCluster is a cluster of the old release beside the shared one.
var oldCluster struct {
	*cluster
	broken bool
}

// old returns a cluster of the old release: a login node and two nodes in
// queue-1.
func old(t *testing.T) *cluster {
	t.Helper()
	if oldCluster.broken {
		t.Fatal("making the old cluster failed in a test before")
	}
	if oldCluster.cluster != nil {
		return oldCluster.cluster
	}
	oldCluster.broken = true
	began := time.Now()
	if r := runFor(5*time.Minute, siteEnv, binary(), "image", "build", oldVersion); r.code != 0 {
		fail(t, "%s", r)
	}
	t.Logf("the image of %s took %.1f s", oldVersion, time.Since(began).Seconds())
	image := findImage(t, "aws-pcs-sample_ami-*-slurm-"+oldVersion+"-*")
	c := createClusterOf(t, "old", oldVersion, sharedIdle)
	c.add(t, group{name: "front", min: 1, max: 1, image: image})
	c.add(t, group{name: "node", max: 2, queue: "queue-1", image: image})
	c.waitLogin(t)
	oldCluster.cluster, oldCluster.broken = c, false
	return c
}

// TestTwoVersionsAtOnce: a cluster of 24.11 lives beside one of 26.05, each
// with its own controller, and both run jobs at the same time.
func TestTwoVersionsAtOnce(t *testing.T) {
	clusters := []*cluster{shared(t), old(t)}
	jobs := map[*cluster]string{}
	for _, c := range clusters {
		jobs[c] = c.submit(t, "queue-1", "sinfo --version; srun hostname; scontrol show config | grep -o requeue_delay || echo without", "--nodes=2", "--nodelist=node-[1-2]")
	}
	hosts := map[string]bool{}
	for _, c := range clusters {
		out := lines(c.output(t, jobs[c], time.Minute))
		must(t, len(out) == 4, "the job's output on %s: %q", c.version, out)
		matches(t, "the release on the nodes", out[0], `^slurm(-wlm)? `+regexp.QuoteMeta(c.version)+`\.`)
		hosts[out[1]], hosts[out[2]] = true, true
		// What the catalogue says of a release is what its cluster has.
		v, _ := slurm.FindVersion(c.version)
		must(t, (out[3] == "requeue_delay") == v.RequeueDelay, "requeue_delay of %s: %q", c.version, out)
		r := succeed(t, c.controller("slurmctld -V; scontrol ping"))
		matches(t, "the controller", r.out, `(?s)^slurm(-wlm)? `+regexp.QuoteMeta(c.version)+`\..*is UP`)
		r = succeed(t, c.login("sinfo", "--noheader", "--partition=queue-1", "--format=%D"))
		must(t, len(lines(r.out)) > 0, "sinfo on the login node: %s", r)
	}
	must(t, len(hosts) == 4, "the clusters share nodes: %v", hosts)
}

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
			matches(t, "a job in another queue", r.line(), `^`+hostName+`$`)
		})
	}
}

//go:build e2e

package e2e

import (
	"strings"
	"testing"
	"time"
)

// TestJobThatWaitedStartsWithTheChange: a job that waits for a node starts as soon
// as a change of the cluster gives it one. Slurm's own next look, by the backfill
// scheduler, would be half a minute after slurmctld began with the change.
func TestJobThatWaitedStartsWithTheChange(t *testing.T) {
	c := shared(t)
	c.lend(t, group{name: "later", max: 1, queue: "later"})
	defer c.controller("scancel --partition later")
	first := c.submit(t, "later", "sleep 600", "--exclusive")
	c.waitJob(t, first, time.Minute, "running", running)
	second := c.submit(t, "later", "sleep 600", "--exclusive")
	c.waitJob(t, second, time.Minute, "waiting", func(j job) bool { return j.state == "PENDING" && j.reason == "Resources" })
	began := time.Now()
	aws(t, "pcs", "update-compute-node-group", "--cluster-identifier", c.id, "--compute-node-group-identifier", "later",
		"--scaling-configuration", "minInstanceCount=0,maxInstanceCount=2")
	c.waitJob(t, second, time.Minute, "running", running)
	t.Logf("running %.1f s after the call", time.Since(began).Seconds())
	r := succeed(t, c.controller("scontrol show job "+second))
	must(t, strings.Contains(r.out, "Scheduler=Main"), "it had to wait for another look: %s", r)
}

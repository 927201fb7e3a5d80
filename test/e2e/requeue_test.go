//go:build e2e

package e2e

import (
	"strings"
	"testing"
	"time"
)

// TestExpeditedRequeue: sbatch --requeue=expedite, on by default. The instance
// of a job is lost while others wait for its node: the job runs again before
// any of them, on a fresh instance.
func TestExpeditedRequeue(t *testing.T) {
	c := shared(t)
	c.lend(t, group{name: "fast", max: 1, queue: "fast"})
	first := c.submit(t, "fast", "sleep 600", "--requeue=expedite", "--exclusive")
	c.waitJob(t, first, time.Minute, "running", running)
	waiting := []string{
		c.submit(t, "fast", "sleep 600", "--exclusive"),
		c.submit(t, "fast", "sleep 600", "--exclusive"),
	}
	lost := c.instance(t, "fast-1")
	began := time.Now()
	succeed(t, incus("delete", "--force", "--project", project, lost.ID))
	c.waitJob(t, first, 90*time.Second, "running again", func(j job) bool { return running(j) && j.restarts == 1 })
	t.Logf("running again %.1f s after the loss", time.Since(began).Seconds())
	for _, id := range waiting {
		j, err := c.job(id)
		must(t, err == nil && j.state == "PENDING" && j.restarts == 0, "job %s, which waited, is %+v %v", id, j, err)
	}
	fresh := c.instance(t, "fast-1")
	must(t, fresh.ID != lost.ID, "the job runs again on the lost instance")
	log := succeed(t, c.controller("grep -v AUDIT_RPCS /var/log/slurm/slurmctld.log | grep -e 'JobId="+first+" ' -e fast-1 | tail -n 40")).out
	t.Log(log)
	must(t, strings.Contains(log, "due to failure of node fast-1"), "slurmctld did not requeue it for the lost node:\n%s", log)
}

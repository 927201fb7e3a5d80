//go:build e2e

package e2e

import (
	"strings"
	"testing"
	"time"
)

// TestExpeditedRequeue: sbatch --requeue=expedite, on by default. An instance of
// a job is lost while others wait for its nodes: the job runs again before any of
// them, with a fresh instance. Slurm holds the job's other nodes meanwhile, which
// must not keep the lost one from its relaunch.
func TestExpeditedRequeue(t *testing.T) {
	c := shared(t)
	c.lend(t, group{name: "fast", max: 2, queue: "fast"})
	for name, nodes := range map[string]string{"one_node": "-N1", "two_nodes": "-N2"} {
		t.Run(name, func(t *testing.T) {
			flags := []string{"--exclusive", nodes}
			if nodes == "-N1" {
				flags = append(flags, "--nodelist=fast-1")
			}
			first := c.submit(t, "fast", "sleep 600", append(flags, "--requeue=expedite")...)
			defer c.controller("scancel --partition fast")
			c.waitJob(t, first, time.Minute, "running", running)
			waiting := []string{c.submit(t, "fast", "sleep 600", flags...), c.submit(t, "fast", "sleep 600", flags...)}
			lost := c.instance(t, "fast-1")
			began := time.Now()
			succeed(t, incus("delete", "--force", "--project", project, lost.ID))
			c.waitJob(t, first, 90*time.Second, "running again", func(j job) bool { return running(j) && j.restarts == 1 })
			t.Logf("running again %.1f s after the loss", time.Since(began).Seconds())
			for _, id := range waiting {
				j, err := c.job(id)
				must(t, err == nil && j.state == "PENDING" && j.restarts == 0, "job %s, which waited, is %+v %v", id, j, err)
			}
			must(t, c.instance(t, "fast-1").ID != lost.ID, "the job runs again on the lost instance")
			log := succeed(t, c.controller("grep -v AUDIT_RPCS /var/log/slurm/slurmctld.log | grep -e 'JobId="+first+" ' -e fast-1 | tail -n 20")).out
			must(t, strings.Contains(log, "requeue job JobId="+first+" due to failure of node fast-1"), "slurmctld did not requeue it for the lost node:\n%s", log)
			t.Log(log)
		})
		c.powerDown(t, "fast-1", "fast-2")
	}
}

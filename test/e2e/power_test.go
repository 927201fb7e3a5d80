//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestR1_ResumeHookDoesNotBlock: while nodes take long to come up, slurmctld
// answers everybody at once (CycleCloud #301: a ResumeProgram that waited
// made `scontrol reconfigure`, and then every command, time out).
func TestR1_ResumeHookDoesNotBlock(t *testing.T) {
	c := shared(t)
	nodes := []string{"slow-1", "slow-2", "slow-3"}
	defer c.powerDown(t, nodes...)
	id := c.submit(t, "slow", "hostname", "--nodes=3")
	defer c.controller("scancel " + id)
	for _, n := range nodes {
		c.waitNode(t, n, 15*time.Second, "powering up", func(n node) bool { return n.is("POWERING_UP") })
	}
	const resume = "/opt/aws/pcs/libexec/resume"
	r := c.controller("pgrep -af '[/]opt/aws/pcs/libexec/resume|[h]ook resume'")
	must(t, r.code == 1 && r.line() == "", "the resume hook waits for the nodes: %s", r)
	// A hook that waits would block these for 30 s (MessageTimeout), and would
	// not end before the nodes are up, in ten minutes.
	answers := func(r result) {
		t.Helper()
		succeed(t, r)
		must(t, r.took < patience, "it was blocked: %s", r)
		t.Logf("%s took %s", strings.Join(r.argv[max(0, len(r.argv)-2):], " "), r.took.Round(time.Millisecond))
	}
	answers(c.login("scontrol", "reconfigure"))
	answers(c.login("sinfo"))
	answers(c.login("squeue"))
	answers(c.login("scontrol", "ping"))
	// The hook itself: for nodes that are coming up it changes nothing.
	answers(c.controller("runuser -u slurm -- " + resume + " 'slow-[1-3]'"))
	for _, n := range nodes {
		c.waitNode(t, n, 5*time.Second, "still powering up", func(n node) bool { return n.is("POWERING_UP") })
		c.instance(t, n)
	}
}

// TestR2_NodeThatNeverBootsReturnsToIdle: a node that is not up within
// ResumeTimeout does not stay down~ (CycleCloud #51). Its job is requeued,
// and what happened is told.
func TestR2_NodeThatNeverBootsReturnsToIdle(t *testing.T) {
	c := shared(t)
	const timeout = 12
	restart(t, fmt.Sprintf("OPENPCS_RESUME_TIMEOUT=%d", timeout))
	defer func() {
		restart(t)
		c.powerDown(t, "slow-1")
	}()
	eventually(t, 15*time.Second, "slurmctld has the short ResumeTimeout", func() error {
		r := c.controller("scontrol show config | grep -w ResumeTimeout")
		if !strings.Contains(r.out, fmt.Sprintf("= %d sec", timeout)) {
			return fmt.Errorf("it has %s", r.out)
		}
		return nil
	})
	id := c.submit(t, "slow", "hostname", "--nodelist=slow-1")
	c.waitNode(t, "slow-1", 15*time.Second, "powering up", func(n node) bool { return n.is("POWERING_UP") })
	first := c.instance(t, "slow-1")
	took, _ := c.waitNode(t, "slow-1", 45*time.Second, "idle~ again", node.off)
	t.Logf("idle~ again after %.1f s with a ResumeTimeout of %d s", took.Seconds(), timeout)
	j := c.waitJob(t, id, 5*time.Second, "requeued", func(j job) bool { return j.restarts > 0 })
	must(t, j.state == "PENDING" || j.state == "CONFIGURING", "the job is not requeued: %+v", j)
	succeed(t, c.controller("scancel "+id))
	r := succeed(t, openpcs("explain", c.id+"/slow-1"))
	must(t, strings.Contains(r.out, "ResumeTimeout"), "the reason is not kept: %s", r)
	eventually(t, 15*time.Second, "the instance that never booted is gone", func() error {
		_, ended := c.instances(t, "slow-1")
		for _, i := range ended {
			if i.ID == first.ID && strings.Contains(i.Reason, "ResumeTimeout") {
				return nil
			}
		}
		return fmt.Errorf("%s is not among %v", first.ID, ended)
	})
}

// TestR5_FailedLaunchFreesItsNode: a launch that fails frees its node and its
// job at once, idle# to idle% to idle~ (cluster-toolkit #5776: power_down alone
// left the node powering up until ResumeTimeout).
func TestR5_FailedLaunchFreesItsNode(t *testing.T) {
	c := shared(t)
	c.lend(t, group{name: "broken", max: 1, generic: true, queue: "broken"})
	began := time.Now()
	id := c.submit(t, "broken", "hostname")
	var failed event
	eventually(t, time.Minute, "the bootstrap fails", func() error {
		_, events := c.history(t, "broken-1")
		found := since(events, began, "bootstrap-failed")
		if len(found) == 0 {
			return fmt.Errorf("so far %v", events)
		}
		failed = found[0]
		return nil
	})
	// The job must be seen requeued before it starts the node again.
	c.waitJob(t, id, 10*time.Second, "requeued", func(j job) bool { return j.restarts > 0 })
	succeed(t, c.controller("scancel "+id))
	// ResumeTimeout, which it must not take, is half an hour.
	c.waitNode(t, "broken-1", time.Minute, "idle~", node.off)
	t.Logf("idle~ %.1f s after the bootstrap failed", time.Since(failed.At).Seconds())
	log := succeed(t, c.controller("grep broken-1 /var/log/slurm/slurmctld.log"))
	must(t, strings.Contains(log.out, "powering down node broken-1"), "it was not powered down: %s", log)
	must(t, strings.Contains(log.out, "reason set to: Backing Instance Failed To Bootstrap: i-"), "the node had no reason: %s", log)
	_, ended := c.instances(t, "broken-1")
	must(t, len(ended) == 1, "one launch was made, not %d: %v", len(ended), ended)
}

// TestR19_ResumeFileGone: SLURM_RESUME_FILE can be gone when the hook reads
// it; the nodes are launched all the same, from the argument.
func TestR19_ResumeFileGone(t *testing.T) {
	c := shared(t)
	c.powerDown(t, "node-3", "node-4")
	began := time.Now()
	succeed(t, c.controller("runuser -u slurm -- env SLURM_RESUME_FILE=/run/no-such-file /opt/aws/pcs/libexec/resume 'node-[3-4]'"))
	for _, name := range []string{"node-3", "node-4"} {
		eventually(t, 15*time.Second, name+" is launched", func() error {
			_, events := c.history(t, name)
			resumed, launched := since(events, began, "resume"), since(events, began, "launched")
			if len(resumed) != 1 || len(launched) != 1 {
				return fmt.Errorf("so far %v", events)
			}
			if jobs, ok := resumed[0].Detail["jobs"]; ok {
				return final{fmt.Errorf("it was resumed for the jobs %v, and there is no file that says so", jobs)}
			}
			return nil
		})
	}
	// A file that is there but not whole is no reason to lose the nodes either.
	succeed(t, c.controller("printf '{\"all_nodes' >/run/cut && chmod 644 /run/cut && "+
		"runuser -u slurm -- env SLURM_RESUME_FILE=/run/cut /opt/aws/pcs/libexec/resume 'node-[3-4]'"))
	// Slurm knows nothing of these launches: what it did not ask for goes.
	succeed(t, c.controller("runuser -u slurm -- /opt/aws/pcs/libexec/suspend 'node-[3-4]'"))
	for _, name := range []string{"node-3", "node-4"} {
		eventually(t, 20*time.Second, "the instance of "+name+" is gone", func() error {
			if live, _ := c.instances(t, name); len(live) > 0 {
				return fmt.Errorf("there is %v", live)
			}
			return nil
		})
		c.powerDown(t, name)
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

//go:build e2e

package e2e

import (
	"strings"
	"testing"
	"time"
)

// TestExplain: what a job, a node, a group, a cluster and a condition are,
// how it came to that and what comes next.
func TestExplain(t *testing.T) {
	c := shared(t)
	c.powerDown(t, "node-4")
	fault := c.addFault(t, "node", "slow-boot", "--delay", "20s")
	id := c.submit(t, "queue-1", "sleep 300", "--nodelist=node-4")
	defer c.controller("scancel " + id)
	c.waitJob(t, id, 15*time.Second, "configuring", func(j job) bool { return j.state == "CONFIGURING" })
	var r result
	eventually(t, 15*time.Second, "the job is explained", func() error {
		r = openpcs("explain", "job", id, "--cluster", c.id)
		return contains(r,
			"The job "+id+" (wrap, of ubuntu) in the queue queue-1 is",
			"Slurm has the node node-4 as",
			"Next: node-4: Its instance i-", "The job starts as soon as all of its nodes are up.",
			"Slurm asked for the node, for job "+id, "decided to launch i-", "the fault "+fault.ID+" struck: slow-boot", "submitted",
		)
	})
	eventually(t, 15*time.Second, "the node is explained", func() error {
		return contains(openpcs("explain", "node", "node-4", "--cluster", c.id),
			"It is wanted up since", "boots. If it has not registered by then, it is given up at")
	})
	instance := c.instance(t, "node-4")
	aws(t, "ec2", "terminate-instances", "--instance-ids", instance.ID)
	c.waitJob(t, id, time.Minute, "running on another instance", running)
	for _, tt := range []struct {
		args string
		want []string
	}{
		{"instance " + instance.ID, []string{"The instance " + instance.ID + " is terminated.", "a user terminated the instance " + instance.ID}},
		{"node " + c.id + "/node-4", []string{"It came up since its last failure (TERMINATED_BY_USER: pcs: instance " + instance.ID, "Next: It stays up while it has jobs, and 10m0s longer."}},
		{"job " + id + " --cluster " + c.name, []string{"is RUNNING", "started on node-4", "It was requeued 1 times."}},
		{"group node --cluster " + c.name, []string{"The compute node group node (" + c.groups["node"] + ") is ACTIVE, with 0 to 4 instances.", "asked for the fault " + fault.ID}},
		{"cluster " + c.name, []string{"The cluster shared (" + c.id + ", Slurm 26.05, SMALL) is ACTIVE", "asked by arn:aws:iam::000000000000:", "CreateQueue", "slurmctld runs with the configuration"}},
		{"INSTANCE_LOST", []string{"The instance ended without openpcs or Slurm having asked for it.", "What to do: Nothing needs to be done"}},
	} {
		if err := contains(openpcs(append([]string{"explain"}, strings.Fields(tt.args)...)...), tt.want...); err != nil {
			fail(t, "%v", err)
		}
	}
	for _, tt := range []struct{ args, want string }{
		{"job x", `job "x" is not a job id`},
		{"job 999999 --cluster " + c.name, "does not know the job 999999"},
		{"queue queue-1", `"queue" is not one of node, instance, job, group, cluster`},
		{"node nobody-1", `there is no node "nobody-1"`},
		{"node node-1 --cluster nowhere", `there is no cluster "nowhere"`},
	} {
		r := openpcs(append([]string{"explain"}, strings.Fields(tt.args)...)...)
		must(t, r.code != 0 && strings.Contains(r.errOut, tt.want), "explain %s: %s", tt.args, r)
	}
}

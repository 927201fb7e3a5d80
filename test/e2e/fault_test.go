//go:build e2e

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

// faultRow is a row of openpcs fault.
type faultRow struct {
	Name, ID, Status, Group string
	Struck                  int
}

// addFault asks for a fault in a group, and takes back at the end of the test
// what is left of it.
func (c *cluster) addFault(t *testing.T, name string, args ...string) faultRow {
	t.Helper()
	r := succeed(t, openpcs(append([]string{"fault", "add", "--cluster", c.id, "--group", name, "--json", "--kind"}, args...)...))
	var out []faultRow
	if err := json.Unmarshal([]byte(r.out), &out); err != nil || len(out) != 1 {
		fail(t, "%v in %s", err, r)
	}
	t.Cleanup(func() { openpcs("fault", "remove", out[0].ID) })
	return out[0]
}

// struck checks that a fault is in a node's history since a time.
func (c *cluster) struck(t *testing.T, name, fault string, from time.Time) {
	t.Helper()
	_, events := c.history(t, name)
	for _, e := range since(events, from, "fault") {
		if e.Detail["fault"] == fault {
			return
		}
	}
	fail(t, "%s is not in the history of %s: %v", fault, name, events)
}

// TestR13_JobMovesToTheGroupWithCapacity: while one group has no capacity its
// nodes are held out with the reason, so that the job runs in the other group
// of the queue; then they can be had again (ParallelCluster node #398, #392).
func TestR13_JobMovesToTheGroupWithCapacity(t *testing.T) {
	c := shared(t)
	c.lend(t, group{name: "full", max: 3})
	c.lend(t, group{name: "spare", max: 1})
	c.lendQueue(t, "both", "full", "spare")
	c.active(t, "both", "queues", c.id)
	began := time.Now()
	fault := c.addFault(t, "full", "insufficient-capacity", "--for", "10m")
	// Features are the names of groups, too.
	id := c.submit(t, "both", "echo $SLURM_JOB_NODELIST", "--prefer=full")
	defer c.controller("scancel " + id)
	c.waitNode(t, "full-3", 30*time.Second, "held out, with the reason", func(n node) bool {
		return n.is("DOWN") && n.is("POWERED_DOWN") && n.reason == "Failed to launch backing instance (Error Code: InsufficientInstanceCapacity)"
	})
	out := c.output(t, id, time.Minute)
	must(t, strings.TrimSpace(out) == "spare-1", "the job ran on %q", out)
	c.struck(t, "full-1", fault.ID, began)
	info := aws(t, "pcs", "get-compute-node-group", "--cluster-identifier", c.id, "--compute-node-group-identifier", "full",
		"--query", "computeNodeGroup.[status,errorInfo[0].code,errorInfo[0].message]", "--output", "text")
	must(t, strings.HasPrefix(info, "ACTIVE\tINSUFFICIENT_CAPACITY\tt3.micro in subnet-"), "get-compute-node-group says %s", info)
	r := succeed(t, openpcs("explain", c.id+"/full-1"))
	must(t, strings.Contains(r.out, "InsufficientInstanceCapacity"), "not explained: %s", r)

	succeed(t, openpcs("fault", "remove", fault.ID))
	// It retries by itself; an update of the group does it at once.
	aws(t, "pcs", "update-compute-node-group", "--cluster-identifier", c.id, "--compute-node-group-identifier", "full",
		"--scaling-configuration", "minInstanceCount=0,maxInstanceCount=3")
	c.waitNode(t, "full-3", 30*time.Second, "idle~ again", node.off)
	succeed(t, c.login("srun", "--chdir=/", "-p", "both", "-w", "full-[1-2]", "-N2", "hostname"))
}

// TestFaults: each kind of fault strikes, and is borne.
func TestFaults(t *testing.T) {
	c := shared(t)
	t.Run("lost-node", func(t *testing.T) {
		c.powerDown(t, "node-2", "node-3", "node-4")
		began := time.Now()
		fault := ""
		lost, _ := c.runsAgain(t, "node-1", func(string) {
			// The node that is up is the one that is lost.
			fault = c.addFault(t, "node", "lost-node").ID
		})
		c.struck(t, "node-1", fault, began)
		r := succeed(t, openpcs("explain", lost.ID))
		must(t, strings.Contains(r.out, "terminated outside of openpcs"), "the loss is not explained: %s", r)
	})
	t.Run("spot-reclaim", func(t *testing.T) {
		c.powerDown(t, "node-2", "node-3", "node-4")
		lost, _ := c.runsAgainWithin(t, 30*time.Second, "node-1", func(string) {
			c.addFault(t, "node", "spot-reclaim", "--delay", "7s")
			const imds = "http://169.254.169.254/latest"
			eventually(t, 7*time.Second, "the node is told", func() error {
				r := c.connect("node-1", "sh", "-c", `curl -fsS -H "X-aws-ec2-metadata-token: $(curl -fsS -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 60' `+
					imds+`/api/token)" `+imds+`/meta-data/spot/instance-action`)
				if r.code != 0 || !strings.Contains(r.out, `"action": "terminate"`) {
					return errors.New(r.String())
				}
				return nil
			})
		})
		state := aws(t, "ec2", "describe-instances", "--instance-ids", lost.ID, "--query", "Reservations[].Instances[].StateReason.Code", "--output", "text")
		must(t, state == "Server.SpotInstanceTermination", "describe-instances shows %s", state)
	})
	t.Run("slow-boot_and_download-fails", func(t *testing.T) {
		c.powerDown(t, "node-2")
		began := time.Now()
		slow := c.addFault(t, "node", "slow-boot", "--delay", "3s").ID
		download := c.addFault(t, "node", "download-fails", "--count", "3").ID
		succeed(t, c.login("srun", "--chdir=/", "-p", "queue-1", "-w", "node-2", "hostname"))
		c.struck(t, "node-2", slow, began)
		c.struck(t, "node-2", download, began)
	})
	t.Run("agent-hang", func(t *testing.T) {
		c.powerDown(t, "node-2")
		began := time.Now()
		fault := c.addFault(t, "node", "agent-hang").ID
		id := c.submit(t, "queue-1", "hostname", "--nodelist=node-2")
		defer c.controller("scancel " + id)
		eventually(t, 15*time.Second, "the node is launched", func() error {
			if _, events := c.history(t, "node-2"); len(since(events, began, "launched")) == 0 {
				return fmt.Errorf("so far %v", events)
			}
			return nil
		})
		c.struck(t, "node-2", fault, began)
		hung := c.instance(t, "node-2")
		// Whoever sees it does this; else ResumeTimeout does.
		aws(t, "ec2", "terminate-instances", "--instance-ids", hung.ID)
		c.output(t, id, time.Minute)
	})
	t.Run("wrong_requests", func(t *testing.T) {
		for _, tt := range []struct{ args, want string }{
			{"add --group node --kind meteor", `kind: "meteor" is not one of insufficient-capacity, slow-boot`},
			{"add --group nobody --kind lost-node", `there is no compute node group "nobody"`},
			{"add --group node --kind lost-node --count 1 --for 5s", "count and for: give one of them"},
			{"add --group node --kind lost-node --count -1", "count: -1 is not 1 to 100000"},
			{"add --group node --kind lost-node --delay 5s", "delay: lost-node has none"},
			{"add --kind lost-node", `required flag(s) "group" not set`},
			{"remove fault-x", `there is no fault "fault-x"`},
			{"ad", `did you mean add?`},
		} {
			r := openpcs(append([]string{"fault"}, strings.Fields(tt.args)...)...)
			must(t, r.code != 0 && strings.Contains(r.errOut, tt.want), "fault %s: %s", tt.args, r)
		}
	})
}

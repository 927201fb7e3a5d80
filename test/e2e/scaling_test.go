//go:build e2e

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// scalingRecord is a line of openpcs logs --scaling --json.
type scalingRecord struct {
	Resource    string `json:"resource_id"`
	Type        string `json:"resource_type"`
	At          int64  `json:"event_timestamp"`
	Group       string `json:"compute_node_group_id"`
	Node        string `json:"scheduler_node_id"`
	Status      string `json:"status_code"`
	Reason      string `json:"reason_code"`
	Description string `json:"description"`
	Details     struct {
		Instance string `json:"instance_id"`
		Code     string `json:"ec2_error_code"`
		Type     string `json:"instance_type"`
		Subnet   string `json:"subnet_id"`
		Openpcs  *struct{ Condition, Message string }
	} `json:"details"`
}

func (r scalingRecord) step() string { return r.Status + " " + r.Reason }

// scaled reads the scaling log of a node.
func (c *cluster) scaled(t *testing.T, node string) (out []scalingRecord) {
	t.Helper()
	r := succeed(t, openpcs("logs", c.id, "--scaling", "--json"))
	for line := range strings.Lines(r.out) {
		var rec scalingRecord
		if err := json.Unmarshal([]byte(line), &rec); err != nil {
			fail(t, "%v in %s", err, line)
		}
		if rec.Node == node {
			out = append(out, rec)
		}
	}
	return out
}

func steps(records []scalingRecord) (out []string) {
	for _, r := range records {
		out = append(out, r.step())
	}
	return out
}

// breaks is user data that keeps an instance from joining: it registers, and
// its configuration cannot be written.
var breaks = mime(boothook, "#!/bin/sh\nrm -rf /etc/slurm\ntouch /etc/slurm\necho intentional failure for verification\n")

// TestB4_BootstrapsThatFail: a static node whose bootstrap fails is launched
// anew (the article's TERMINATE loop), never takes a job, and shows why; then
// the breaker opens, until an update of the group ends it. What the instances
// had to say is kept.
func TestB4_BootstrapsThatFail(t *testing.T) {
	c := shared(t)
	restart(t, "OPENPCS_BREAKER=2")
	t.Cleanup(func() { restart(t) })
	// What sinfo shows, all the time.
	succeed(t, c.controller(`rm -f /tmp/sinfo.stop; nohup sh -c 'n=0; while [ $n -lt 6000 ] && [ ! -e /tmp/sinfo.stop ]; do n=$((n+1)); `+
		`sinfo --noheader --Node --nodes=fails-1 --format="%t|%E"; sleep 0.02; done' >/tmp/sinfo.log 2>&1 </dev/null & echo started`))
	t.Cleanup(func() { c.controller("touch /tmp/sinfo.stop") })
	c.lend(t, group{name: "fails", min: 1, max: 2, queue: "fails", userData: breaks})
	get := func() string {
		return aws(t, "pcs", "get-compute-node-group", "--cluster-identifier", c.id, "--compute-node-group-identifier", "fails",
			"--query", "computeNodeGroup.[status,errorInfo[0].code,errorInfo[0].message]", "--output", "text")
	}
	eventually(t, launchLimit, "the breaker opens", func() error {
		if info := get(); !strings.HasPrefix(info, "ACTIVE\tBREAKER_OPEN\t") || !strings.Contains(info, " starts in a row failed, the last with BOOTSTRAP_FAILED: ") {
			return errors.New(info)
		}
		return nil
	})
	c.waitNode(t, "fails-2", 30*time.Second, "held out, with the reason", func(n node) bool {
		return n.is("DOWN") && n.is("POWERED_DOWN") && strings.HasPrefix(n.reason, "Backing Instance Failed To Bootstrap: i-") && strings.Contains(n.reason, "BREAKER_OPEN")
	})
	r := succeed(t, openpcs("explain", "group", "fails"))
	must(t, strings.Contains(r.out, "BREAKER_OPEN: ") && strings.Contains(r.out, "One launch of the group fails tries again at "), "not explained: %s", r)

	var records []scalingRecord
	eventually(t, 30*time.Second, "the second instance has ended", func() error {
		// The breaker opens when that is decided.
		if records = c.scaled(t, "fails-1"); len(records) < 6 {
			return fmt.Errorf("the scaling log has %v", steps(records))
		}
		return nil
	})
	want := []string{"LAUNCHED MAINTAIN_MIN_CAPACITY", "REGISTERED REGISTER_SUCCESS", "TERMINATED BOOTSTRAP_FAILED"}
	must(t, len(records) >= 6 && slices.Equal(steps(records[:6]), append(slices.Clone(want), want...)), "the scaling log has %v", steps(records))
	first := records[0].Details.Instance
	for _, rec := range records {
		must(t, rec.Resource == c.id && rec.Type == "PCS_CLUSTER" && rec.Group == c.groups["fails"] && rec.Details.Type == "t3.micro" && strings.HasSuffix(rec.Description, "."), "record %+v", rec)
	}
	must(t, records[2].Details.Instance == first && records[3].Details.Instance != first && records[2].Details.Openpcs.Condition == "BOOTSTRAP_FAILED", "records %+v", records[:6])
	r = succeed(t, openpcs("logs", c.name, "--scaling"))
	matches(t, "the scaling log", r.out, `(?m)^\d\d:\d\d:\d\d fails-1 LAUNCHED MAINTAIN_MIN_CAPACITY `+first+`$`)
	matches(t, "the scaling log", r.out, `(?m)^\d\d:\d\d:\d\d fails-1 TERMINATED BOOTSTRAP_FAILED `+first+`  BOOTSTRAP_FAILED: `)
	r = succeed(t, openpcs("logs", c.name, "--scaling", "--since", "2999-01-01T00:00:00Z"))
	must(t, r.out == "", "of the future there is %s", r)

	// Cured, by an update: at once.
	cured := createTemplate(t, c.name+"-cured", findNetwork(t).image, "")
	aws(t, "pcs", "update-compute-node-group", "--cluster-identifier", c.id, "--compute-node-group-identifier", "fails",
		"--custom-launch-template", "id="+cured+",version=1")
	// The node has been down: none of what sinfo shows up to here may say that a
	// job could have had it.
	c.waitNode(t, "fails-1", launchLimit, "up", node.up)
	succeed(t, c.controller("touch /tmp/sinfo.stop"))
	must(t, strings.HasPrefix(get(), "ACTIVE\tNone\tNone"), "after the cure: %s", get())

	shown := succeed(t, c.controller("uniq -c /tmp/sinfo.log")).out
	t.Logf("sinfo showed:\n%s", shown)
	failed := 0
	for line := range strings.Lines(shown) {
		fields := strings.SplitN(strings.TrimSpace(line), " ", 2)
		state, reason, _ := strings.Cut(fields[1], "|")
		switch {
		case state == "idle" && failed == 0:
			fail(t, "a node that failed to bootstrap was ready for jobs:\n%s", shown)
		case state == "idle#":
			must(t, reason == "none", "while it is launched the reason is %q", reason)
		case state == "idle%":
			must(t, strings.HasPrefix(reason, "Backing Instance Failed To Bootstrap: i-"), "while it is ended the reason is %q", reason)
			failed++
		}
	}
	must(t, failed >= 2, "%d failures in what sinfo showed:\n%s", failed, shown)
	for _, state := range []string{"idle# none", "idle% Backing Instance Failed To Bootstrap: " + first, "idle~ Backing Instance Failed To Bootstrap: " + first} {
		must(t, strings.Contains(strings.ReplaceAll(shown, "|", " "), " "+state+"\n"), "sinfo never showed %q:\n%s", state, shown)
	}

	// Kept are the logs, after a restart too.
	restart(t, "OPENPCS_BREAKER=2")
	r = succeed(t, openpcs("logs", first, "--file", "bootstrap.log"))
	must(t, strings.Contains(r.out, "intentional failure for verification"), "kept of the first instance: %s", r)
	must(t, len(c.scaled(t, "fails-1")) > 6, "the scaling log is lost with a restart")
}

// TestB16_QuotaForOneOfTwoNodes: one of two nodes of a job cannot be had: the
// job is freed with the reason, and runs when both can.
func TestB16_QuotaForOneOfTwoNodes(t *testing.T) {
	c := shared(t)
	c.lend(t, group{name: "quota", max: 2, queue: "quota"})
	c.addFault(t, "quota", "insufficient-capacity")
	id := c.submit(t, "quota", "srun hostname | wc -l", "--nodes=2")
	defer c.controller("scancel " + id)
	must(t, c.output(t, id, 3*time.Minute) == "2", "the job did not run on two nodes")
	j, err := c.job(id)
	must(t, err == nil && j.restarts > 0, "the job was not freed: %+v %v", j, err)
	refused, ended := 0, 0
	for _, n := range []string{"quota-1", "quota-2"} {
		for _, rec := range c.scaled(t, n) {
			switch {
			case rec.step() == "LAUNCH_FAILED INSUFFICIENT_CAPACITY" && rec.Details.Instance == "" && rec.Details.Code == "InsufficientInstanceCapacity":
				refused++
			// The job may come back so late that the instance was given up.
			case rec.Status == "TERMINATED" && rec.Reason != "SCHEDULER_REQUESTED":
				ended++
			}
		}
	}
	must(t, refused > 0 && ended == 0, "%d refusals in the scaling log, and %d ends: the instance that could be had was to stay", refused, ended)
}

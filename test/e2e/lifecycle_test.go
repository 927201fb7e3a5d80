//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// articleScripts are the three scripts of the article, and one for B10.
var articleScripts = map[string]string{
	"record-boot.sh": `#!/bin/bash
set -euo pipefail
LABEL="${1:-unknown}"
echo "$(date -u +%Y-%m-%dT%H:%M:%SZ) label=${LABEL} first_boot=${PCS_IS_FIRST_BOOT:-unset} node=${PCS_NODE_ID:-unset} cng=${PCS_COMPUTE_NODE_GROUP_NAME:-unset}" >> /var/lib/lca-boot-record.log
echo "recorded ${LABEL}"
`,
	"ready-check.sh": `#!/bin/bash
set -uo pipefail
echo "slurmd: $(systemctl is-active slurmd 2>/dev/null || echo unknown)"
SLURM_BIN=$(ls -d /opt/aws/pcs/scheduler/slurm-*/bin 2>/dev/null | sort | tail -1)
"${SLURM_BIN}/scontrol" show node "${PCS_NODE_ID:-$(hostname -s)}" 2>&1 | head -5 || true
`,
	"fail.sh": `#!/bin/bash
echo "intentional failure for verification" >&2
exit 1
`,
	"fail-when-told.sh": `#!/bin/bash
until [ -e "$1" ]; do sleep 0.1; done
exit 9
`,
}

// The article's configurations; BUCKET is replaced.
const (
	articleBoots = `{ "stages": {
  "nodeBootstrapped": [
    { "name": "record-first-boot", "scriptSource": { "scriptLocation": "s3://BUCKET/scripts/record-boot.sh" },
      "arguments": ["bootstrapped-first-boot-only"], "executionPolicy": "FIRST_BOOT_ONLY" },
    { "name": "record-every-boot", "scriptSource": { "scriptLocation": "s3://BUCKET/scripts/record-boot.sh" },
      "arguments": ["bootstrapped-every-boot"], "executionPolicy": "EVERY_BOOT" }
  ],
  "nodeReady": [
    { "name": "ready-check", "scriptSource": { "scriptLocation": "s3://BUCKET/scripts/ready-check.sh" }, "onError": "CONTINUE" }
  ] } }`
	articleFails = `{ "stages": {
  "nodeBootstrapped": [
    { "name": "NAME", "scriptSource": { "scriptLocation": "s3://BUCKET/scripts/fail.sh" }, "onError": "ONERROR" },
    { "name": "record-after-fail", "scriptSource": { "scriptLocation": "s3://BUCKET/scripts/record-boot.sh" }, "arguments": ["after-fail"] }
  ],
  "nodeReady": [
    { "name": "ready-check", "scriptSource": { "scriptLocation": "s3://BUCKET/scripts/ready-check.sh" }, "onError": "CONTINUE" }
  ] } }`
)

const scriptBucket = "lca-scripts"

// scriptsProfile is the instance profile that scriptsStored made.
var scriptsProfile string

// scriptsStored puts the article's scripts into a bucket, and makes an instance
// profile whose role may read them, with the AWS CLI.
func scriptsStored(t *testing.T) (profile string) {
	t.Helper()
	if scriptsProfile != "" {
		return scriptsProfile
	}
	const role = "AWSPCS-lifecycle"
	aws(t, "iam", "create-role", "--role-name", role, "--assume-role-policy-document", `{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Principal":{"Service":"ec2.amazonaws.com"},"Action":"sts:AssumeRole"}]}`)
	aws(t, "iam", "put-role-policy", "--role-name", role, "--policy-name", "scripts", "--policy-document",
		`{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":"pcs:RegisterComputeNodeGroupInstance","Resource":"*"},{"Effect":"Allow","Action":"s3:GetObject","Resource":"arn:aws:s3:::`+scriptBucket+`/scripts/*"}]}`)
	aws(t, "iam", "create-instance-profile", "--instance-profile-name", role)
	aws(t, "iam", "add-role-to-instance-profile", "--instance-profile-name", role, "--role-name", role)
	profile = aws(t, "iam", "get-instance-profile", "--instance-profile-name", role, "--query", "InstanceProfile.Arn", "--output", "text")
	dir := t.TempDir()
	for name, text := range articleScripts {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	aws(t, "s3", "mb", "s3://"+scriptBucket)
	aws(t, "s3", "cp", "--recursive", dir, "s3://"+scriptBucket+"/scripts/")
	scriptsProfile = profile
	return profile
}

// actions writes a configuration for file://.
func actions(t *testing.T, text string, replace ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "actions.json")
	text = strings.NewReplacer(append(replace, "BUCKET", scriptBucket)...).Replace(text)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return "file://" + path
}

// update gives a group other lifecycle actions, as the article does.
func (c *cluster) update(t *testing.T, group, file string) {
	t.Helper()
	aws(t, "pcs", "update-compute-node-group", "--region", region, "--cluster-identifier", c.id,
		"--compute-node-group-identifier", group, "--node-lifecycle-actions", file)
}

// fresh waits until another instance than the former one is up.
func (c *cluster) fresh(t *testing.T, name, former string) instanceRow {
	t.Helper()
	var now instanceRow
	took := eventually(t, launchLimit, name+" is up with another instance than "+former, func() error {
		live, _ := c.instances(t, name)
		if len(live) != 1 || live[0].ID == former || live[0].Status != "running" {
			return fmt.Errorf("there is %v", live)
		}
		now = live[0]
		return nil
	})
	c.waitNode(t, name, launchLimit, "up", node.up)
	t.Logf("%s is up with %s after %.1f s", name, now.ID, took.Seconds())
	if took > 30*time.Second {
		t.Log(openpcs("explain", c.id+"/"+name).out, c.controller("grep "+name+" /var/log/slurm/slurmctld.log | tail -40").out)
	}
	return now
}

// scriptsDone waits until the node's scripts of a boot are done.
func (c *cluster) scriptsDone(t *testing.T, name string, from time.Time) {
	t.Helper()
	eventually(t, 60*time.Second, "the lifecycle scripts of "+name+" are done", func() error {
		if _, events := c.history(t, name); len(since(events, from, "bootstrapped")) == 0 {
			return errors.New("they are not")
		}
		return nil
	})
}

// launchLimit is how long Incus may take for a launch or two while others use
// it: it was seen to take a minute.
const launchLimit = 3 * time.Minute

const lifecycleDir = "/var/log/amazon/pcs/lifecycle/actions"

// TestLifecycleWalkthrough is the article from its first configuration to its
// last, on one static node.
func TestLifecycleWalkthrough(t *testing.T) {
	c := shared(t)
	profile := scriptsStored(t)
	const name = "lca-static-1"
	began := time.Now()
	c.lend(t, group{name: "lca-static", min: 1, max: 1, queue: "lca-queue", profile: profile, actions: actions(t, articleBoots)})
	c.waitNode(t, name, launchLimit, "up", node.up)
	c.scriptsDone(t, name, began)
	first := c.instance(t, name)
	cat := func(path string) string { t.Helper(); return succeed(t, c.connect(name, "cat", path)).out }
	const stamp = `\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ `
	const two = `^` + stamp + `label=bootstrapped-first-boot-only first_boot=1 node=lca-static-1 cng=lca-static\n` +
		stamp + `label=bootstrapped-every-boot first_boot=1 node=lca-static-1 cng=lca-static\n`
	matches(t, "the boot record", cat("/var/lib/lca-boot-record.log"), two+"$")
	matches(t, "the listing", succeed(t, c.connect(name, "sh", "-c", "cd "+lifecycleDir+" && stat -c '%A %U %n' executor.log nodeBootstrapped nodeReady nodeBootstrapped/* nodeReady/*")).out,
		`^-rw-r--r-- root executor.log
drwxr-x--- root nodeBootstrapped
drwxr-x--- root nodeReady
-rw-r----- root nodeBootstrapped/record-every-boot.log
-rw-r----- root nodeBootstrapped/record-first-boot.log
-rw-r----- root nodeReady/ready-check.log
$`)
	matches(t, "ready-check.log", cat(lifecycleDir+"/nodeReady/ready-check.log"), `^\[start ready-check args=\[\] @ \d{10}\]\nslurmd: active\nNodeName=lca-static-1 Arch=x86_64 [^@]*\n\[end ready-check exit=0 @ \d{10}\]\n$`)
	shown := aws(t, "pcs", "get-compute-node-group", "--cluster-identifier", c.id, "--compute-node-group-identifier", "lca-static",
		"--query", "computeNodeGroup.nodeLifecycleActions.stages.nodeReady[0].[name,onError,executionPolicy]", "--output", "text")
	must(t, shown == "ready-check\tCONTINUE\tNone", "get-compute-node-group shows %q", shown)

	t.Run("reboot", func(t *testing.T) {
		rebooted := time.Now()
		c.reboot(t, name)
		c.scriptsDone(t, name, rebooted)
		matches(t, "the boot record", cat("/var/lib/lca-boot-record.log"), two+stamp+`label=bootstrapped-every-boot first_boot=0 node=lca-static-1 cng=lca-static\n$`)
		matches(t, "executor.log", cat(lifecycleDir+"/executor.log"), `(?m)^\{"timestamp":"`+stamp[:len(stamp)-2]+`\.\d{6}Z","level":"INFO","message":"Reusing cached script \(CACHE_ONCE\)",.*"script":"record-every-boot"`)
		matches(t, "its log", cat(lifecycleDir+"/nodeBootstrapped/record-every-boot.log"),
			`^(\[start record-every-boot args=\["bootstrapped-every-boot"\] @ \d{10}\]\nrecorded bootstrapped-every-boot\n\[end record-every-boot exit=0 @ \d{10}\]\n){2}$`)
		must(t, strings.Count(cat(lifecycleDir+"/nodeReady/ready-check.log"), "[start") == 1, "ready-check ran again")
		must(t, c.instance(t, name).ID == first.ID, "the instance is another one after the reboot")
	})

	t.Run("TestB5_StopSequenceIsNotHidden", func(t *testing.T) {
		updated := time.Now()
		c.update(t, "lca-static", actions(t, articleFails, "NAME", "fail-stop-sequence", "ONERROR", "STOP_SEQUENCE"))
		i := c.fresh(t, name, first.ID)
		c.scriptsDone(t, name, updated)
		r := c.connect(name, "ls", "/var/lib/lca-boot-record.log")
		must(t, r.code != 0 && strings.Contains(r.errOut, "No such file or directory"), "the script behind the failed one ran: %s", r)
		matches(t, "fail-stop-sequence.log", cat(lifecycleDir+"/nodeBootstrapped/fail-stop-sequence.log"), `^\[start fail-stop-sequence args=\[\] @ \d{10}\]\nintentional failure for verification\n\[end fail-stop-sequence exit=1 @ \d{10}\]\n$`)
		matches(t, "ready-check.log", cat(lifecycleDir+"/nodeReady/ready-check.log"), `slurmd: active\nNodeName=lca-static-1`)
		matches(t, "executor.log", cat(lifecycleDir+"/executor.log"), `"level":"ERROR","message":"lifecycle script failed; stopping remaining scripts","stage":"nodeBootstrapped","script":"fail-stop-sequence","on_error":"StopSequence","error":"script 'fail-stop-sequence' failed with exit status ExitStatus\(unix_wait_status\(256\)\)"`)
		matches(t, "bootstrap.log", cat("/var/log/amazon/pcs/bootstrap.log"), `(?m)^\[[^]]*\] - /opt/aws/pcs/bin/pcs_bootstrap_finalize.sh: WARN: Lifecycle execute completed with exit 3 for stage nodeBootstrapped$`)
		r = succeed(t, c.login("srun", "--chdir=/", "-p", "lca-queue", "hostname"))
		matches(t, "srun hostname", r.out, hostName)
		// And what PCS hides: in the API, in explain and in Slurm.
		info := aws(t, "pcs", "get-compute-node-group", "--cluster-identifier", c.id, "--compute-node-group-identifier", "lca-static", "--query", "computeNodeGroup.[status,errorInfo[0].code,errorInfo[0].message]", "--output", "text")
		for _, part := range []string{"ACTIVE\tLIFECYCLE_ACTION_FAILED\t", name, i.ID, `"fail-stop-sequence"`, "nodeBootstrapped", "exit code 1", "intentional failure for verification", lifecycleDir + "/nodeBootstrapped/fail-stop-sequence.log"} {
			must(t, strings.Contains(info, part), "%q is missing in errorInfo: %s", part, info)
		}
		now, events := c.history(t, name)
		must(t, strings.Contains(strings.Join(now, "\n"), "LIFECYCLE_ACTION_FAILED: "), "explain does not say it: %v", now)
		for _, args := range [][]string{{"explain", "group", c.id + "/lca-static"}, {"nodes"}} {
			r := succeed(t, openpcs(args...))
			must(t, strings.Contains(r.out, "LIFECYCLE_ACTION_FAILED: "), "openpcs %v does not say it: %s", args, r)
		}
		var codes []string
		for _, e := range since(events, updated, "script") {
			codes = append(codes, fmt.Sprint(e.Detail["stage"], "/", e.Detail["script"], "=", e.Detail["exitCode"], " ", e.Detail["code"]))
		}
		must(t, strings.Join(codes, ", ") == "nodeBootstrapped/fail-stop-sequence=1 LIFECYCLE_ACTION_FAILED, nodeReady/ready-check=0 <nil>", "the history has %v", codes)
		must(t, len(since(events, updated, "failed"))+len(since(events, updated, "bootstrap-failed")) == 0, "the node counts as failed: %v", events)
		r = c.controller("scontrol show node " + name)
		must(t, strings.Contains(r.out, "Extra=LIFECYCLE_ACTION_FAILED nodeBootstrapped/fail-stop-sequence:exit=1"), "scontrol does not show it: %s", r)
		r = succeed(t, openpcs("logs", c.id, "--scaling"))
		matches(t, "the scaling log", r.out, name+` +ACTIVE +BOOTSTRAP_SUCCESS +`+i.ID)
		r = succeed(t, openpcs("logs", c.id, "--scaling", "--json"))
		matches(t, "the scaling log", r.out, `(?m)^.*"status_code": *"ACTIVE".*"instance_id": *"`+i.ID+`".*"condition": *"LIFECYCLE_ACTION_FAILED"`)
		r = succeed(t, openpcs("logs", i.ID, "--file", "nodeBootstrapped-fail-stop-sequence.log"))
		must(t, strings.Contains(r.out, "intentional failure"), "openpcs logs: %s", r)
	})

	t.Run("TestB8_TerminateNeverIdle", func(t *testing.T) {
		former := c.instance(t, name)
		updated := time.Now()
		c.update(t, "lca-static", actions(t, articleFails, "NAME", "fail-terminate", "ONERROR", "TERMINATE"))
		// The former instance may still show as idle; from its end on nothing may.
		eventually(t, launchLimit, "the former instance ends", func() error {
			if live, _ := c.instances(t, name); len(live) == 1 && live[0].ID == former.ID && live[0].Status == "running" {
				return errors.New("it runs")
			}
			return nil
		})
		var failures []event
		seen := map[string]bool{}
		reasons := map[string]bool{}
		eventually(t, launchLimit, "two instances in a row failed", func() error {
			r := c.controller("sinfo --noheader --partition=lca-queue --format='%t|%E'")
			state, reason, _ := strings.Cut(r.line(), "|")
			must(t, r.code == 0 && state != "idle", "the node is a bare idle: %s", r)
			seen[state], reasons[reason] = true, true
			_, events := c.history(t, name)
			if failures = since(events, updated, "bootstrap-failed"); len(failures) < 2 {
				return fmt.Errorf("%d failed", len(failures))
			}
			must(t, len(since(events, updated, "ready")) == 0, "the node was ready: %v", events)
			return nil
		})
		t.Logf("sinfo showed %v with %v", seen, reasons)
		must(t, seen["idle#"] || seen["idle~"] || seen["idle%"], "sinfo showed %v", seen)
		i := fmt.Sprint(failures[0].Detail["instance"])
		must(t, reasons["Backing Instance Failed To Bootstrap: "+i] || reasons["Backing Instance Failed To Bootstrap: "+i+" : Not responding"], "no reason names %s: %v", i, reasons)
		message := fmt.Sprint(failures[0].Detail["message"])
		for _, part := range []string{`"fail-terminate"`, "nodeBootstrapped", "exit code 1", "intentional failure", lifecycleDir + "/nodeBootstrapped/fail-terminate.log"} {
			must(t, strings.Contains(message, part), "%q is missing in: %s", part, message)
		}
		must(t, failures[0].Detail["code"] == "LIFECYCLE_SCRIPT_FAILED", "the code is %v", failures[0].Detail["code"])
		info := aws(t, "pcs", "get-compute-node-group", "--cluster-identifier", c.id, "--compute-node-group-identifier", "lca-static", "--query", "computeNodeGroup.errorInfo[].[code,message]", "--output", "text")
		must(t, strings.Contains(info, "LIFECYCLE_SCRIPT_FAILED") && strings.Contains(info, "fail-terminate"), "errorInfo has %s", info)
		// What the instance had to say outlives it.
		eventually(t, launchLimit, "the logs are kept", func() error {
			return contains(openpcs("logs", i, "--file", "nodeBootstrapped-fail-terminate.log"), "intentional failure for verification", "exit=1")
		})
		must(t, contains(openpcs("logs", i, "--file", "executor.log"), `"on_error":"Terminate"`) == nil, "executor.log was not kept")
		matches(t, "the scaling log", succeed(t, openpcs("logs", c.id, "--scaling")).out, name+` +TERMINATED +BOOTSTRAP_FAILED +`+i)
		reason := aws(t, "ec2", "describe-instances", "--instance-ids", i, "--query", "Reservations[].Instances[].[State.Name,StateReason.Code]", "--output", "text")
		must(t, reason == "terminated\tServer.InternalError" || reason == "shutting-down\tServer.InternalError", "describe-instances shows %s", reason)

		c.update(t, "lca-static", actions(t, articleBoots))
		c.waitNode(t, name, launchLimit, "idle again", node.up)
		r := c.controller("scontrol show node " + name)
		must(t, !strings.Contains(r.out, "LIFECYCLE_"), "what another instance failed with is still shown: %s", r)
	})
}

// TestB10_ReadyFailureLetsJobsFinish: a script of the stage nodeReady that must
// not fail does so under a job: the job ends as ever, and then the instance
// does, as failed.
func TestB10_ReadyFailureLetsJobsFinish(t *testing.T) {
	c := shared(t)
	profile := scriptsStored(t)
	c.lend(t, group{name: "late", max: 1, queue: "late", profile: profile, actions: actions(t, `{"stages":{"nodeReady":[
		{"name":"fail late","arguments":["/home/ubuntu/late-fail"],"scriptSource":{"scriptLocation":"s3://BUCKET/scripts/fail-when-told.sh"}},
		{"name":"after","scriptSource":{"scriptLocation":"s3://BUCKET/scripts/ready-check.sh"}}]}}`)})
	t.Cleanup(func() { c.user("rm -f late-fail late-end") })
	id := c.submit(t, "late", "until [ -e late-end ]; do sleep 0.1; done; echo through")
	c.waitJob(t, id, launchLimit, "running", running)
	i := c.instance(t, "late-1")
	succeed(t, c.user("touch late-fail"))
	c.waitNode(t, "late-1", 30*time.Second, "taking no more jobs", func(n node) bool { return n.is("DRAIN") || n.is("POWER_DOWN") })
	j, err := c.job(id)
	must(t, err == nil && running(j), "the job is %+v %v", j, err)
	live := c.instance(t, "late-1")
	must(t, live.ID == i.ID && live.Status == "running", "the instance is %v", live)
	r := succeed(t, openpcs("explain", c.id+"/late-1"))
	matches(t, "explain", r.out, `LIFECYCLE_SCRIPT_FAILED: .*takes no more jobs.*"fail late"`)
	succeed(t, c.user("touch late-end"))
	must(t, c.output(t, id, 30*time.Second) == "through", "the job's output is another")
	eventually(t, launchLimit, "the instance is ended as failed", func() error {
		_, ended := c.instances(t, "late-1")
		for _, e := range ended {
			if e.ID == i.ID {
				must(t, strings.Contains(e.Reason, "fail late"), "it ended for another reason: %v", e)
				return nil
			}
		}
		return fmt.Errorf("ended are %v", ended)
	})
	// Slurm itself takes the reason off a little later: it was told to power the
	// node down when its jobs are done, and undrains it when that is through.
	_, events := c.history(t, "late-1")
	var down []string
	for _, e := range events {
		if e.Kind == "down" {
			down = append(down, fmt.Sprint(e.Detail["reason"]))
		}
	}
	must(t, strings.Join(down, ", ") == "Backing Instance Failed To Bootstrap: "+i.ID, "the node was set down with %q", down)
	c.waitNode(t, "late-1", 30*time.Second, "idle~", node.off)
	r = succeed(t, openpcs("logs", i.ID, "--file", "nodeReady-fail late.log"))
	must(t, regexp.MustCompile(`\[end fail late exit=9 @ \d+\]\n$`).MatchString(r.out), "its log: %s", r)
	must(t, openpcs("logs", i.ID, "--file", "nodeReady-after.log").code != 0, "the script behind it ran")
}

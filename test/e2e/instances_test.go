//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

// runsAgain submits a job to the node, calls lose when it runs, and expects
// the node down within seconds, the job requeued, and the job running again
// on another instance of the node.
func (c *cluster) runsAgain(t *testing.T, name string, lose func(instance string)) (lost, fresh instanceRow) {
	t.Helper()
	return c.runsAgainWithin(t, 15*time.Second, name, lose)
}

// runsAgainWithin is runsAgain with a limit for Slurm to take the job.
func (c *cluster) runsAgainWithin(t *testing.T, limit time.Duration, name string, lose func(instance string)) (lost, fresh instanceRow) {
	t.Helper()
	id := c.submit(t, "queue-1", "hostname; sleep 300", "--nodelist="+name, "--requeue")
	defer c.controller("scancel " + id)
	c.waitJob(t, id, time.Minute, "running", running)
	lost = c.instance(t, name)
	began := time.Now()
	lose(lost.ID)
	took := eventually(t, limit, "Slurm takes the job from the lost node", func() error {
		j, err := c.job(id)
		if err != nil {
			return err
		}
		if j.restarts == 0 {
			return fmt.Errorf("the job is %+v", j)
		}
		return nil
	})
	t.Logf("requeued %.1f s after the loss", took.Seconds())
	c.waitJob(t, id, 90*time.Second, "running again", running)
	t.Logf("running again %.1f s after the loss", time.Since(began).Seconds())
	fresh = c.instance(t, name)
	must(t, fresh.ID != lost.ID, "the job runs again on the lost instance %s", lost.ID)
	// slurmctld takes one in hundreds of fresh slurmds for one that rebooted:
	// that instance is replaced as well.
	_, events := c.history(t, name)
	launched := len(since(events, began, "assigned"))
	must(t, launched == 1 || launched == 2, "launched %d times since the loss: %v", launched, events)
	return lost, fresh
}

// TestLostInstance: an instance that vanishes under a job.
func TestLostInstance(t *testing.T) {
	c := shared(t)
	lost, _ := c.runsAgain(t, "node-1", func(instance string) {
		succeed(t, incus("delete", "--force", "--project", project, instance))
	})
	state := aws(t, "ec2", "describe-instances", "--instance-ids", lost.ID, "--query", "Reservations[].Instances[].State.Name", "--output", "text")
	must(t, state == "terminated", "describe-instances shows the lost instance %s", state)
	r := succeed(t, openpcs("explain", lost.ID))
	must(t, strings.Contains(r.out, "terminated outside of openpcs"), "the loss is not explained: %s", r)
}

// TestHungInstance: an instance that hangs under a job is there for Incus, and
// for Slurm it does not answer: its job runs on another, and it is gone,
// frozen or not. That takes some two minutes: a ping of two MessageTimeouts
// (30 s) and SlurmdTimeout (60 s). slurmctld by itself would wait for
// ResumeTimeout, half an hour, in which the job hangs.
func TestHungInstance(t *testing.T) {
	c := shared(t)
	lost, _ := c.runsAgainWithin(t, 4*time.Minute, "node-4", func(instance string) {
		succeed(t, incus("pause", "--project", project, instance))
	})
	r := succeed(t, incus("list", "--project", project, "--format", "csv", "--columns", "n", lost.ID))
	must(t, r.line() == "", "the hung instance is still there: %s", r)
	r = succeed(t, openpcs("explain", c.id+"/node-4"))
	must(t, strings.Contains(r.out, "slurmd on "+lost.ID+" has not answered for 1m0s"), "the loss is not explained: %s", r)
}

// TestTerminateInstances: a user terminates the instance under a job.
func TestTerminateInstances(t *testing.T) {
	c := shared(t)
	lost, _ := c.runsAgain(t, "node-2", func(instance string) {
		state := aws(t, "ec2", "terminate-instances", "--instance-ids", instance, "--query", "TerminatingInstances[].CurrentState.Name", "--output", "text")
		must(t, state == "shutting-down", "terminate-instances answers %s", state)
	})
	state := aws(t, "ec2", "describe-instances", "--instance-ids", lost.ID, "--query", "Reservations[].Instances[].[State.Name,StateReason.Code]", "--output", "text")
	must(t, state == "terminated\tClient.UserInitiatedShutdown", "describe-instances shows %s", state)
	r := openpcs("connect", lost.ID, "--", "true")
	must(t, r.code == 1 && strings.Contains(r.errOut, "openpcs logs "+lost.ID), "connecting to a terminated instance: %s", r)
	r = succeed(t, openpcs("logs", lost.ID, "--file", "bootstrap.log"))
	must(t, strings.Contains(r.out, "slurmd is started"), "bootstrap.log was not kept: %s", r)
}

// TestRebootInPlace: a node that Slurm reboots is the same instance after it,
// with its disk, and takes jobs again.
func TestRebootInPlace(t *testing.T) {
	c := shared(t)
	c.powerUp(t, "queue-1", "node-1")
	before := c.instance(t, "node-1")
	succeed(t, c.connect("node-1", "sh", "-c", "echo disk >/var/tmp/e2e-reboot; echo home >/home/ubuntu/e2e-reboot"))
	c.reboot(t, "node-1")
	r := succeed(t, c.login("srun", "--chdir=/", "-p", "queue-1", "-w", "node-1", "sh", "-c", "cat /var/tmp/e2e-reboot /home/ubuntu/e2e-reboot; hostname"))
	matches(t, "the rebooted node", r.out, `^disk\nhome\n`+hostName+`\n$`)
	after := c.instance(t, "node-1")
	must(t, after.ID == before.ID && after.Address == before.Address, "another instance after the reboot: %v, before %v", after, before)
	state := aws(t, "ec2", "describe-instances", "--instance-ids", before.ID, "--query", "Reservations[].Instances[].State.Name", "--output", "text")
	must(t, state == "running", "describe-instances shows the rebooted instance %s", state)
}

// reboot reboots a node by Slurm and waits until it is up again.
func (c *cluster) reboot(t *testing.T, name string) {
	t.Helper()
	boot := bootOf(t, c, name)
	// Slurm counts in whole seconds: a reboot within the second of the former
	// boot would leave the node in REBOOT_ISSUED.
	eventually(t, 10*time.Second, "the former boot is a while ago", func() error {
		r := c.controller("scontrol --oneliner show node " + name + " | grep -o 'SlurmdStartTime=[^ ]*'; date +SlurmdStartTime=%FT%T")
		if all := lines(r.out); len(all) != 2 || all[0] == all[1] {
			return errors.New(r.String())
		}
		return nil
	})
	began := time.Now()
	succeed(t, c.login("scontrol", "reboot", "ASAP", "nextstate=RESUME", name))
	eventually(t, 30*time.Second, name+" boots anew", func() error {
		if r := c.connect(name, "cat", "/proc/1/stat"); r.code != 0 || field(r.out, 21) == boot {
			return fmt.Errorf("it still has the former boot: %s", r)
		}
		return nil
	})
	c.waitNode(t, name, 30*time.Second, "up after its reboot", func(n node) bool {
		return n.up() && !n.is("REBOOT_ISSUED") && !n.is("REBOOT_REQUESTED")
	})
	t.Logf("%s is back %.1f s after scontrol reboot", name, time.Since(began).Seconds())
}

// TestRebootOutsideSlurm: what ran on a node that reboots behind Slurm's
// back is lost, so Slurm runs it again, and as on PCS a fresh instance takes
// the place.
func TestRebootOutsideSlurm(t *testing.T) {
	c := shared(t)
	lost, _ := c.runsAgain(t, "node-3", func(instance string) {
		aws(t, "ec2", "reboot-instances", "--instance-ids", instance)
	})
	r := succeed(t, openpcs("explain", c.id+"/node-3"))
	must(t, strings.Contains(r.out, "unexpectedly rebooted"), "the replacement of %s is not explained: %s", lost.ID, r)
}

// bootOf tells one boot of a node from the next: when its init started.
func bootOf(t *testing.T, c *cluster, name string) string {
	t.Helper()
	return field(succeed(t, c.connect(name, "cat", "/proc/1/stat")).out, 21)
}

// field returns a field of a line, from 0.
func field(line string, n int) string {
	if all := strings.Fields(line); n < len(all) {
		return all[n]
	}
	return ""
}

// TestStaticGroup: min = max = 2 are up without a job, stay up, and one that
// is lost is replaced.
func TestStaticGroup(t *testing.T) {
	c := shared(t)
	c.lend(t, group{name: "static", min: 2, max: 2, queue: "static"})
	names := []string{"static-1", "static-2"}
	for _, name := range names {
		c.waitNode(t, name, time.Minute, "up", node.up)
	}
	r := succeed(t, c.controller("scontrol show config | grep -w SuspendExcNodes"))
	must(t, strings.Contains(r.out, "static-[1-2]"), "static nodes would be suspended: %s", r)
	lost, stays := c.instance(t, "static-1"), c.instance(t, "static-2")
	began := time.Now()
	succeed(t, incus("delete", "--force", "--project", project, lost.ID))
	var fresh instanceRow
	eventually(t, 45*time.Second, "the lost instance is replaced", func() error {
		live, _ := c.instances(t, "static-1")
		if len(live) != 1 || live[0].ID == lost.ID {
			return fmt.Errorf("there is %v", live)
		}
		fresh = live[0]
		return nil
	})
	c.waitNode(t, "static-1", 45*time.Second, "up again", node.up)
	t.Logf("replaced and up %.1f s after the loss", time.Since(began).Seconds())
	succeed(t, c.login("srun", "--chdir=/", "-p", "static", "-N2", "hostname"))
	must(t, c.instance(t, "static-1").ID == fresh.ID && c.instance(t, "static-2").ID == stays.ID, "instances changed without need")
	c.deleteQueue(t, "static")
	c.deleteGroup(t, "static")
	for _, name := range names {
		live, _ := c.instances(t, name)
		must(t, len(live) == 0, "the group is gone, and there is %v", live)
	}
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

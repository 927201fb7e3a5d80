//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"
)

// unit asks systemd on the controller for a property of slurmctld's unit.
// InvocationID is another one after each start, and stays when slurmctld is
// reconfigured; MainPID is another one after both.
func (c *cluster) unit(t *testing.T, property string) string {
	t.Helper()
	return succeed(t, c.controller("systemctl show slurmctld --value -p "+property)).line()
}

// saved waits until slurmctld has saved its jobs, which it does within
// seconds, not at once.
func (c *cluster) saved(t *testing.T) {
	t.Helper()
	succeed(t, c.controller("touch /tmp/e2e-now"))
	eventually(t, 15*time.Second, "slurmctld saves its state", func() error {
		if r := c.controller("[ /var/spool/slurmctld/job_state -nt /tmp/e2e-now ]"); r.code != 0 {
			return errors.New("it did not")
		}
		return nil
	})
}

// TestC11_SlurmctldKilledFiveTimes: slurmctld is started again each time, the
// job does not notice, and the control plane tells (ParallelCluster #6538:
// nobody restarted it).
func TestC11_SlurmctldKilledFiveTimes(t *testing.T) {
	c := shared(t)
	c.powerUp(t, "queue-1", "node-1")
	before := c.instance(t, "node-1")
	succeed(t, c.user("rm -f e2e-c11"))
	id := c.submit(t, "queue-1", "while [ ! -e e2e-c11 ]; do sleep 0.2; done; hostname", "--nodelist=node-1", "--no-requeue")
	defer c.user("touch e2e-c11")
	c.waitJob(t, id, 15*time.Second, "running", running)
	c.saved(t)
	for n, signal := range []string{"KILL", "SEGV", "KILL", "SEGV", "KILL"} {
		pid := c.unit(t, "MainPID")
		succeed(t, c.controller("kill -"+signal+" "+pid))
		// Five of these limits are a minute: no two kills are further apart.
		took := eventually(t, time.Minute/5, "slurmctld answers again", func() error {
			r := c.controller("[ $(systemctl show slurmctld --value -p MainPID) != " + pid + " ] && scontrol ping && squeue --noheader --jobs=" + id + " --format=%T")
			if r.code != 0 || !strings.Contains(r.out, "RUNNING") {
				return errors.New(r.String())
			}
			return nil
		})
		t.Logf("kill %d (%s): answers after %.1f s", n+1, signal, took.Seconds())
	}
	succeed(t, c.user("touch e2e-c11"))
	matches(t, "the job that ran through it all", c.output(t, id, 30*time.Second), `^`+hostName+`$`)
	must(t, c.instance(t, "node-1").ID == before.ID, "node-1 has another instance")
	succeed(t, c.login("srun", "--chdir=/", "-p", "queue-1", "-w", "node-1", "true"))
	eventually(t, 10*time.Second, "the control plane tells of five crashes", func() error {
		r := succeed(t, openpcs("explain", c.id))
		// A test before may have killed it, too.
		if !regexp.MustCompile(`slurmctld ended unexpectedly ([5-9]|[1-9]\d) times`).MatchString(r.out) || !strings.Contains(r.out, "slurmctld ended unexpectedly (dumped SEGV)") {
			return errors.New(r.String())
		}
		return nil
	})
}

// TestC5_ReconfigureOnly: idle time, groups, queues and settings never
// restart slurmctld; a parameter of the table does, and jobs survive that
// (CycleCloud #144).
func TestC5_ReconfigureOnly(t *testing.T) {
	c := shared(t)
	c.powerUp(t, "queue-1", "node-1")
	id := c.submit(t, "queue-1", "sleep 600", "--nodelist=node-1", "--no-requeue")
	defer c.controller("scancel " + id)
	c.waitJob(t, id, 15*time.Second, "running", running)
	c.saved(t)
	invocation, restarts := c.unit(t, "InvocationID"), c.unit(t, "NRestarts")
	idle := func(seconds int) {
		t.Helper()
		aws(t, "pcs", "update-cluster", "--cluster-identifier", c.id, "--slurm-configuration", fmt.Sprintf("scaleDownIdleTimeInSeconds=%d", seconds))
		c.active(t, c.name, "clusters")
	}
	defer idle(sharedIdle)
	idle(sharedIdle + 1)
	r := succeed(t, c.controller("scontrol show config"))
	matches(t, "the idle time", r.out, `(?m)^SuspendTime\s+= 601 sec`)
	c.lend(t, group{name: "more", max: 1, queue: "more"})
	c.settings(t, "update-cluster", "", "", `[{"parameterName":"SelectTypeParameters","parameterValue":"CR_Core"},{"parameterName":"CommunicationParameters","parameterValue":"enable_http"}]`)
	must(t, c.unit(t, "InvocationID") == invocation && c.unit(t, "NRestarts") == restarts, "slurmctld was restarted")
	c.waitJob(t, id, time.Second, "running", running)

	defer c.settings(t, "update-cluster", "", "", "[]")
	c.settings(t, "update-cluster", "", "", `[{"parameterName":"CommunicationParameters","parameterValue":"EnableIPv6"}]`)
	must(t, c.unit(t, "InvocationID") != invocation, "slurmctld was not restarted, though it does not take EnableIPv6 over while it runs")
	c.waitJob(t, id, 10*time.Second, "running", running)
}

// TestCanary: what slurmctld would refuse never reaches it; the canary leaves
// nothing behind, killed or not; and where there is no canary, slurmctld's
// own refusal still brings the former configuration back.
func TestCanary(t *testing.T) {
	c := shared(t)
	const residue = "pgrep -f '[s]lurmctld -D'; grep canary /proc/mounts; ls /mnt"
	refused := func(name, value string) {
		t.Helper()
		aws(t, "pcs", "update-cluster", "--cluster-identifier", c.id,
			"--slurm-configuration", `{"slurmCustomSettings":[{"parameterName":"`+name+`","parameterValue":"`+value+`"}]}`)
		eventually(t, 30*time.Second, "the cluster says that its update failed", func() error {
			if status := aws(t, "pcs", "get-cluster", "--cluster-identifier", c.id, "--query", "cluster.status", "--output", "text"); status != "UPDATE_FAILED" {
				return fmt.Errorf("it is %s", status)
			}
			return nil
		})
		must(t, strings.Contains(c.errorInfo(t), value), "errorInfo does not have Slurm's words: %s", c.errorInfo(t))
		r := succeed(t, c.controller("scontrol ping; grep -c "+value+" /etc/slurm/slurm.conf || true"))
		must(t, strings.HasSuffix(r.line(), "\n0"), "the configuration is not the former one: %s", r)
	}
	defer c.settings(t, "update-cluster", "", "", "[]")
	// What slurmctld takes without liking it is told.
	c.settings(t, "update-cluster", "", "", `[{"parameterName":"PriorityWeightAge","parameterValue":"1000"}]`)
	eventually(t, 10*time.Second, "the control plane tells what Slurm complains of", func() error {
		if r := succeed(t, openpcs("explain", c.id)); !strings.Contains(r.out, "PriorityWeightAge can only be used with SlurmDBD") {
			return errors.New(r.String())
		}
		return nil
	})
	pid := c.unit(t, "MainPID")
	refused("PreemptMode", "NO_SUCH_MODE")
	must(t, c.unit(t, "MainPID") == pid, "slurmctld was reconfigured, though the canary had refused")
	r := c.controller(residue)
	must(t, strings.TrimSpace(r.out) == "", "the canary left something behind: %s", r)

	// One that takes long is killed in the middle, with its parent alone.
	const tries = `
		printf '{"files":{"slurm.conf":"%s","cgroup.conf":"%s"},"key":"%s"}' "$(base64 -w0 /etc/slurm/slurm.conf)" "$(base64 -w0 /etc/slurm/cgroup.conf)" "$(base64 -w0 /etc/slurm/slurm.key)" >/tmp/e2e-conf
		i=0; while [ $i -lt 200 ]; do cat /tmp/e2e-conf; i=$((i+1)); done >/tmp/e2e-confs
		/opt/aws/pcs/bin/openpcs agent try-config </tmp/e2e-confs >/tmp/e2e-verdicts 2>/tmp/e2e-said & parent=$!
`
	r = succeed(t, c.controller(tries+`
		until pgrep -f '[s]lurmctld -D' >/dev/null; do :; done
		kill -KILL $parent; wait $parent
		n=0; while pgrep -f '[s]lurmctld -D' >/dev/null && [ $n -lt 100 ]; do sleep 0.05; n=$((n+1)); done
		wc -l </tmp/e2e-verdicts; rm /tmp/e2e-*; `+residue+"; true"))
	must(t, len(lines(r.out)) == 1 && r.line() != "200", "killed in the middle, the canary left something behind: %s", r)
	// One whose slurmctld is killed, as for want of memory, has refused nothing.
	r = succeed(t, c.controller(tries+`
		while kill -0 $parent 2>/dev/null; do pkill -KILL -f '[s]lurmctld -D'; done
		wait $parent && echo "none was killed in time"
		cat /tmp/e2e-said; grep refusal /tmp/e2e-verdicts; rm /tmp/e2e-*`))
	matches(t, "the try whose slurmctld was killed", r.out, `^[^\n]*slurmctld was killed[^\n]*\n$`)

	succeed(t, c.controller("mv $(readlink -f $(command -v ip)) /tmp/e2e-ip"))
	defer c.controller("[ -e /tmp/e2e-ip ] && mv /tmp/e2e-ip $(readlink -m /usr/bin/ip)")
	refused("PrologFlags", "NO_SUCH_FLAG")
	r = succeed(t, c.controller("journalctl -u openpcs-controller --no-pager -n 20"))
	must(t, strings.Contains(r.out, "untried"), "the agent does not tell that there was no canary: %s", r)
}

// TestC8_GrownGroupRunsAsOne: a group grows beyond the width of slurmd's
// fan-out, and an old node reaches all of them (ParallelCluster #5538).
func TestC8_GrownGroupRunsAsOne(t *testing.T) {
	c := shared(t)
	const size = 17 // TreeWidth is 16
	c.lend(t, group{name: "grow", max: 2, queue: "grow"})
	c.powerUp(t, "grow", "grow-1")
	before := c.instance(t, "grow-1")
	aws(t, "pcs", "update-compute-node-group", "--cluster-identifier", c.id, "--compute-node-group-identifier", "grow",
		"--scaling-configuration", fmt.Sprintf("minInstanceCount=0,maxInstanceCount=%d", size))
	c.active(t, "grow", "groups", c.id)
	r := succeed(t, c.connect("grow-1", "srun", "--chdir=/", "-p", "grow", "-N", fmt.Sprint(size), "hostname"))
	must(t, len(lines(r.out)) == size, "srun over %d nodes: %s", size, r)
	t.Logf("srun over %d nodes, all but one new, took %.1f s", size, r.took.Seconds())
	must(t, c.instance(t, "grow-1").ID == before.ID, "grow-1 has another instance")
}

// TestC16_CoreSpecialization: a setting that changes what slurmd must know of
// its processor replaces the nodes, and none stays invalid
// (ansible-role-openhpc #199).
func TestC16_CoreSpecialization(t *testing.T) {
	c := shared(t)
	c.lend(t, group{name: "spec", max: 2, queue: "spec", kind: "t3.xlarge"})
	c.powerUp(t, "spec", "spec-1")
	before := c.instance(t, "spec-1")
	aws(t, "pcs", "update-compute-node-group", "--cluster-identifier", c.id, "--compute-node-group-identifier", "spec",
		"--slurm-configuration", `{"slurmCustomSettings":[{"parameterName":"CpuSpecList","parameterValue":"0"}]}`)
	c.active(t, "spec", "groups", c.id)
	eventually(t, 30*time.Second, "the instance of spec-1 is gone", func() error {
		live, _ := c.instances(t, "spec-1")
		if len(live) > 0 && live[0].ID == before.ID {
			return fmt.Errorf("there is %v", live)
		}
		return nil
	})
	r := succeed(t, c.login("srun", "--chdir=/", "-p", "spec", "-N2", "hostname"))
	must(t, len(lines(r.out)) == 2, "srun over the nodes: %s", r)
	for _, name := range []string{"spec-1", "spec-2"} {
		_, n := c.waitNode(t, name, 10*time.Second, "up", node.up)
		must(t, !n.is("INVALID_REG") && !n.is("INVAL") && n.reason == "", "%s is %v %q", name, n.state, n.reason)
	}
	r = succeed(t, c.login("scontrol", "--oneliner", "show", "node", "spec-1"))
	must(t, strings.Contains(r.out, "CPUSpecList=0 "), "slurmctld does not have the list: %s", r)
}

// TestR16_PreemptedJobRunsAgain: with memory as a resource, a job that was
// preempted is not left PENDING with BadConstraints (ParallelCluster #5731).
func TestR16_PreemptedJobRunsAgain(t *testing.T) {
	for _, c := range []*cluster{shared(t), old(t)} {
		t.Run(c.version, func(t *testing.T) { c.preempt(t) })
	}
}

func (c *cluster) preempt(t *testing.T) {
	t.Helper()
	defer c.settings(t, "update-cluster", "", "", "[]")
	c.settings(t, "update-cluster", "", "", `[{"parameterName":"SelectTypeParameters","parameterValue":"CR_Core_Memory"},
		{"parameterName":"PreemptType","parameterValue":"preempt/partition_prio"},{"parameterName":"PreemptMode","parameterValue":"REQUEUE"}]`)
	c.lendQueue(t, "urgent", "node")
	c.active(t, "urgent", "queues", c.id)
	c.settings(t, "update-queue", "queue", "urgent", `[{"parameterName":"PriorityTier","parameterValue":"10"}]`)
	c.powerUp(t, "queue-1", "node-1")
	succeed(t, c.user("rm -f e2e-r16"))
	// 972 MiB are what a t3.micro has for jobs: both want nearly all of it.
	low := c.submit(t, "queue-1", "while [ ! -e e2e-r16 ]; do sleep 0.2; done; hostname", "--nodelist=node-1", "--mem=900", "--requeue")
	defer c.user("touch e2e-r16")
	c.waitJob(t, low, 15*time.Second, "running", running)
	high := c.submit(t, "urgent", "hostname", "--nodelist=node-1", "--mem=900")
	c.output(t, high, 40*time.Second)
	c.waitJob(t, low, 10*time.Second, "requeued", func(j job) bool { return j.restarts == 1 })
	succeed(t, c.user("touch e2e-r16"))
	// How long a requeued job rests depends on the release, up to two minutes.
	c.controller("scontrol update jobid=" + low + " starttime=now")
	c.waitJob(t, low, 40*time.Second, "COMPLETED", func(j job) bool {
		must(t, j.reason != "BadConstraints", "the job is %+v", j)
		return j.state == "COMPLETED"
	})
}

// TestC13_StateFolder: slurmctld's state is in a folder of its own that
// nobody else may enter, on storage that outlives the controller
// (ParallelCluster cookbook #555).
func TestC13_StateFolder(t *testing.T) {
	c := shared(t)
	r := succeed(t, c.controller("stat -c '%a %U %F' /var/spool/slurmctld; scontrol show config | grep StateSaveLocation; grep -c ' /var/spool/slurmctld ' /proc/self/mountinfo"))
	matches(t, "the state folder", r.out, `(?m)^700 slurm directory\nStateSaveLocation\s+= /var/spool/slurmctld\n1$`)
	r = c.controller("runuser -u ubuntu -- ls /var/spool/slurmctld")
	must(t, r.code != 0, "a user sees the state: %s", r)
}

//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestServerKilled: a kill -9 of the control plane loses nothing and does
// nothing twice, neither while a job runs nor in the middle of a launch.
func TestServerKilled(t *testing.T) {
	c := shared(t)
	c.powerUp(t, "queue-1", "node-1")
	c.powerDown(t, "node-2", "node-3")
	before := c.instance(t, "node-1")
	login := c.instance(t, "front-1")
	began := time.Now()
	first := c.submit(t, "queue-1", "sleep 20; hostname", "--nodelist=node-1")
	c.waitJob(t, first, 15*time.Second, "running", running)

	t.Run("in_a_launch", func(t *testing.T) {
		second := c.submit(t, "queue-1", "hostname", "--nodelist=node-2")
		eventually(t, 10*time.Second, "the launch begins", func() error {
			if live, _ := c.instances(t, "node-2"); len(live) == 0 {
				return fmt.Errorf("node-2 has no instance")
			}
			return nil
		})
		c.killed(t, nil)
		c.output(t, second, time.Minute)
		c.launchedOnce(t, "node-2", began)
	})

	t.Run("while_it_is_away", func(t *testing.T) {
		var third string
		// Hooks that find nobody are delivered when somebody is there again.
		c.killed(t, func(login func(...string) result) {
			must(t, openpcs("status").code == 1, "openpcs still answers")
			third = succeed(t, login("runuser", "-u", "ubuntu", "--", "sh", "-c",
				"cd && sbatch --parsable --output=%j.out -p queue-1 -w node-3 --wrap hostname")).line()
			eventually(t, 15*time.Second, "Slurm wants node-3", func() error {
				r := login("scontrol", "--oneliner", "show", "node", "node-3")
				if m := nodeState.FindStringSubmatch(r.out); m == nil || !(node{state: splitState(m[1])}).is("POWERING_UP") {
					return fmt.Errorf("%s", r)
				}
				return nil
			})
		})
		c.output(t, third, time.Minute)
		c.launchedOnce(t, "node-3", began)
	})

	out := c.output(t, first, time.Minute)
	matches(t, "the job that ran through it all", out, `^`+hostName+`$`)
	j, err := c.job(first)
	must(t, err == nil && j.restarts == 0, "the job was restarted: %+v %v", j, err)
	must(t, c.instance(t, "node-1").ID == before.ID, "node-1 has another instance")
	must(t, c.instance(t, "front-1").ID == login.ID, "front-1 has another instance")
	must(t, aws(t, "pcs", "get-cluster", "--cluster-identifier", c.id, "--query", "cluster.status", "--output", "text") == "ACTIVE", "the cluster is not ACTIVE")
}

// TestServerKilledAtEachStep kills the control plane as soon as it recorded
// a step of a node's life; whatever it was about to do is done, and once.
func TestServerKilledAtEachStep(t *testing.T) {
	c := shared(t)
	for _, step := range []string{"expect", "assigned", "launched", "registered", "ready"} {
		t.Run("up_"+step, func(t *testing.T) {
			c.powerDown(t, "node-2", "node-3", "node-4")
			began := time.Now()
			id := c.submit(t, "queue-1", "srun hostname", "--nodelist=node-[2-4]", "--nodes=3")
			defer c.controller("scancel " + id)
			c.seen(t, "node-3", began, step)
			c.killed(t, nil)
			out := c.output(t, id, time.Minute)
			must(t, len(lines(out)) == 3, "the job's output: %s", out)
			for _, name := range []string{"node-2", "node-3", "node-4"} {
				c.launchedOnce(t, name, began)
			}
		})
	}
	for _, step := range []string{"suspend", "retired", "terminated"} {
		t.Run("down_"+step, func(t *testing.T) {
			c.powerUp(t, "queue-1", "node-2", "node-3", "node-4")
			began := time.Now()
			succeed(t, c.controller("scontrol update nodename='node-[2-4]' state=power_down"))
			c.seen(t, "node-3", began, step)
			c.killed(t, nil)
			c.powerDown(t, "node-2", "node-3", "node-4")
			c.onlyKnown(t)
		})
	}
}

// seen waits until a step is in the node's history, as closely as it can.
func (c *cluster) seen(t *testing.T, name string, from time.Time, kind string) {
	t.Helper()
	err := pollEvery(5*time.Millisecond, 20*time.Second, func() error {
		_, events := c.history(t, name)
		if len(since(events, from, kind)) == 0 {
			return fmt.Errorf("so far %v", events)
		}
		return nil
	})
	must(t, err == nil, "%s of %s: %v", kind, name, err)
}

// TestControllerLost: neither a crash of slurmctld nor the loss of its
// instance costs a job.
func TestControllerLost(t *testing.T) {
	c := shared(t)
	c.powerUp(t, "queue-1", "node-1")
	before := c.instance(t, "node-1")
	succeed(t, c.user("rm -f e2e-controller"))
	id := c.submit(t, "queue-1", "while [ ! -e e2e-controller ]; do sleep 0.2; done; hostname", "--nodelist=node-1", "--no-requeue")
	defer c.user("touch e2e-controller")
	c.waitJob(t, id, 15*time.Second, "running", running)
	answers := func(what string) {
		t.Helper()
		took := eventually(t, 30*time.Second, "slurmctld answers after "+what, func() error {
			if r := c.login("squeue", "--noheader", "--jobs="+id, "--format=%T"); r.line() != "RUNNING" {
				return errors.New(r.String())
			}
			return nil
		})
		t.Logf("answers again %.1f s after %s", took.Seconds(), what)
	}
	// Slurm saves its state within seconds, not at once.
	succeed(t, c.controller("touch /tmp/e2e-now"))
	eventually(t, 15*time.Second, "slurmctld saves its state", func() error {
		if r := c.controller("[ /var/spool/slurmctld/job_state -nt /tmp/e2e-now ]"); r.code != 0 {
			return errors.New(c.controller("ls -l --time-sort --full-time /var/spool/slurmctld").String())
		}
		return nil
	})
	succeed(t, c.controller("kill -KILL $(pidof slurmctld)"))
	answers("kill -9 of slurmctld")
	controller := "ctl-" + strings.TrimPrefix(c.id, "pcs_")
	succeed(t, incus("delete", "--force", "--project", project, controller))
	eventually(t, 30*time.Second, "the controller is made anew", func() error {
		if r := c.controller("true"); r.code != 0 {
			return errors.New(r.String())
		}
		return nil
	})
	answers("the loss of the controller")
	succeed(t, c.user("touch e2e-controller"))
	out := c.output(t, id, time.Minute)
	matches(t, "the job that ran through it all", out, `^`+hostName+`$`)
	must(t, c.instance(t, "node-1").ID == before.ID, "node-1 has another instance")
	// Nodes come up with the new controller, and are suspended by it.
	c.powerDown(t, "node-2")
	c.powerUp(t, "queue-1", "node-1", "node-2")
	c.powerDown(t, "node-2")
}

// killed kills the control plane, calls meanwhile with a way to the login
// node, and starts the control plane again.
func (c *cluster) killed(t *testing.T, meanwhile func(login func(argv ...string) result)) {
	t.Helper()
	login := c.instance(t, "front-1").ID
	if err := serving.kill(); err != nil {
		fail(t, "kill: %v", err)
	}
	// openpcs connect has nobody to ask now.
	if meanwhile != nil {
		meanwhile(func(argv ...string) result {
			return incus(append([]string{"exec", "--project", project, "--cwd", "/", login, "--"}, argv...)...)
		})
	}
	began := time.Now()
	if err := serve(); err != nil {
		fail(t, "start again: %v", err)
	}
	t.Logf("serving again %.1f s after its start", time.Since(began).Seconds())
}

// launchedOnce checks that a node was launched once, and once in Incus too.
func (c *cluster) launchedOnce(t *testing.T, name string, from time.Time) {
	t.Helper()
	live := c.instance(t, name)
	_, events := c.history(t, name)
	must(t, len(since(events, from, "assigned")) == 1, "%s was not assigned an instance once: %v", name, events)
	must(t, slices.Contains(c.onlyKnown(t), live.ID), "Incus does not have %s of %s", live.ID, name)
}

// onlyKnown waits until Incus has no instance that openpcs does not list as
// live, and returns those it has. One that ends while both are asked shows
// in one list only.
func (c *cluster) onlyKnown(t *testing.T) (have []string) {
	t.Helper()
	eventually(t, 15*time.Second, "Incus has only what openpcs knows", func() error {
		have = lines(succeed(t, incus("list", "--project", project, "--format", "csv", "--columns", "n")).out)
		known, err := rows[instanceRow]("instances")
		if err != nil {
			return err
		}
		live := map[string]bool{}
		for _, i := range known {
			live[i.ID] = i.Status != "terminated"
		}
		for _, id := range have {
			if !live[id] {
				return fmt.Errorf("it has %s too: %v", id, have)
			}
		}
		return nil
	})
	return have
}

//go:build e2e

package e2e

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// crashing starts the control plane so that it kills itself at a point, does
// something, and starts it again after the kill.
func crashing(t *testing.T, point string, act func()) {
	t.Helper()
	restart(t, "OPENPCS_CRASH_AT="+point)
	act()
	select {
	case <-serving.ended:
	case <-time.After(30 * time.Second):
		fail(t, "%s was not crossed", point)
	}
	if err := serve(); err != nil {
		fail(t, "start again: %v", err)
	}
}

// TestServerKilledAtEachCrossing kills the real control plane where it
// touches the state file, Incus and slurmctld: jobs run on, nothing is
// launched twice, nothing is forgotten. (All crossings are killed at with the
// fake provider, in internal/control.)
func TestServerKilledAtEachCrossing(t *testing.T) {
	c := shared(t)
	c.powerUp(t, "queue-1", "node-1")
	before := c.instance(t, "node-1")
	succeed(t, c.user("rm -f e2e-crossing"))
	witness := c.submit(t, "queue-1", "while [ ! -e e2e-crossing ]; do sleep 0.2; done; hostname", "--nodelist=node-1", "--no-requeue")
	defer c.user("touch e2e-crossing")
	c.waitJob(t, witness, 15*time.Second, "running", running)

	for _, point := range []string{
		"commit/control.Hook/before", "commit/control.Hook/after",
		"provider/Launch/node/before", "provider/Launch/node/after", "commit/control.launched/before",
		"commit/pcs.register/before", "commit/pcs.register/after",
	} {
		t.Run(strings.ReplaceAll(point, "/", "_"), func(t *testing.T) {
			c.powerDown(t, "node-2")
			began := time.Now()
			id := ""
			crashing(t, point, func() { id = c.submit(t, "queue-1", "hostname", "--nodelist=node-2") })
			c.output(t, id, time.Minute)
			c.launchedOnce(t, "node-2", began)
		})
	}
	t.Run("provider_Terminate_after", func(t *testing.T) {
		c.powerUp(t, "queue-1", "node-2")
		crashing(t, "provider/Terminate/after", func() { succeed(t, c.controller("scontrol update nodename=node-2 state=power_down")) })
		c.powerDown(t, "node-2")
		c.onlyKnown(t)
	})
	t.Run("slurmctld_DOWN_after", func(t *testing.T) {
		c.powerUp(t, "queue-1", "node-2")
		lost := c.instance(t, "node-2")
		crashing(t, "slurmctld/DOWN/after", func() { succeed(t, incus("delete", "--force", "--project", project, lost.ID)) })
		c.waitNode(t, "node-2", 30*time.Second, "idle~", node.off)
	})
	for i, point := range []string{
		"commit/pcs.update/before", "commit/pcs.update/after",
		"slurmctld/configure/before#2", "slurmctld/configure/after#2", "commit/control.settle/before#2", // the first is at the start
	} {
		t.Run(strings.ReplaceAll(point, "/", "_"), func(t *testing.T) {
			name := fmt.Sprintf("crossing-%d", i)
			t.Cleanup(func() { c.deleteQueue(t, name) })
			create := []string{
				"pcs", "create-queue", "--cluster-identifier", c.id, "--queue-name", name,
				"--compute-node-group-configurations", "computeNodeGroupId=" + c.groups["node"], "--client-token", name,
			}
			answered := make(chan result, 1)
			// The CLI repeats the call until somebody answers.
			crashing(t, point, func() {
				go func() {
					answered <- run(append(slices.Clone(clientEnv), "AWS_MAX_ATTEMPTS=10"), append([]string{os.Getenv(awsEnv)}, create...)...)
				}()
			})
			succeed(t, <-answered)
			c.active(t, name, "queues", c.id)
		})
	}
	succeed(t, c.user("touch e2e-crossing"))
	out := c.output(t, witness, time.Minute)
	matches(t, "the job that ran through it all", out, `^`+hostName+`$`)
	must(t, c.instance(t, "node-1").ID == before.ID, "node-1 has another instance")
}

// TestImageImportCutShort: a kill in the middle of an import leaves nothing
// that the next one stumbles over.
func TestImageImportCutShort(t *testing.T) {
	for _, point := range []string{"provider/ImportImage/before", "provider/ImportImage/before+200ms", "provider/ImportImage/after", "commit/app.importImage/before"} {
		t.Run(strings.ReplaceAll(point, "/", "_"), func(t *testing.T) {
			id := findNetwork(t).generic
			succeed(t, openpcs("image", "remove", id))
			crashing(t, point, func() {
				if r := openpcs("image", "build", "generic"); r.code == 0 {
					fail(t, "the import was not cut short: %s", r)
				}
			})
			succeed(t, openpcs("image", "build", "generic"))
			must(t, findImage(t, "debian-generic-*") == id, "the image has another id")
		})
	}
}

// TestHostReboot: a host that goes down with all that runs on it comes back
// with its clusters; jobs that were running run again.
func TestHostReboot(t *testing.T) {
	c := shared(t)
	c.powerUp(t, "queue-1", "node-1")
	id := c.submit(t, "queue-1", "hostname; sleep 5", "--nodelist=node-1", "--requeue")
	c.waitJob(t, id, 15*time.Second, "running", running)
	pending := c.submit(t, "queue-1", "hostname", "--nodelist=node-1")
	// slurmctld saves its state within seconds.
	succeed(t, c.controller("touch /tmp/e2e-now"))
	eventually(t, 15*time.Second, "slurmctld saves its state", func() error {
		if r := c.controller("[ /var/spool/slurmctld/job_state -nt /tmp/e2e-now ]"); r.code != 0 {
			return fmt.Errorf("%s", r)
		}
		return nil
	})
	if err := serving.kill(); err != nil {
		fail(t, "kill: %v", err)
	}
	succeed(t, incus("stop", "--all", "--force", "--project", project))
	if err := serve(); err != nil {
		fail(t, "start again: %v", err)
	}
	took := eventually(t, 90*time.Second, "the login node answers", func() error {
		if r := c.login("squeue", "--noheader", "--jobs="+pending); r.code != 0 {
			return fmt.Errorf("%s", r)
		}
		return nil
	})
	t.Logf("the login node answers %.1f s after the start", took.Seconds())
	c.output(t, id, 2*time.Minute)
	c.output(t, pending, time.Minute)
	c.onlyKnown(t)
}

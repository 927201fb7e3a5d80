//go:build e2e

package e2e

import (
	"errors"
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
	defer func() {
		if err := serving.kill(); err == nil { // it was not crossed
			defer fail(t, "%s was not crossed", point)
		}
		if err := serve(); err != nil {
			fail(t, "start again: %v", err)
		}
	}()
	act()
	select {
	case <-serving.ended:
	case <-time.After(time.Minute):
	}
}

// calling makes a call to the control plane that is killed meanwhile: the CLI
// repeats it until somebody answers.
func calling(t *testing.T, point string, args ...string) result {
	t.Helper()
	answered := make(chan result, 1)
	crashing(t, point, func() {
		go func() {
			answered <- run(append(slices.Clone(clientEnv), "AWS_MAX_ATTEMPTS=10"), append([]string{os.Getenv(awsEnv)}, args...)...)
		}()
	})
	return <-answered
}

// around names both sides of points.
func around(points ...string) (out []string) {
	for _, p := range points {
		name, nth, counted := strings.Cut(p, "#")
		for _, side := range []string{"/before", "/after"} {
			if counted {
				side += "#" + nth
			}
			out = append(out, name+side)
		}
	}
	return out
}

// TestServerKilledAtEachCrossing kills the real control plane right before
// and after it touches the state file, Incus and slurmctld: jobs run on,
// nothing is launched twice, nothing is forgotten. (Twice at each point with
// the fake provider: internal/control.)
func TestServerKilledAtEachCrossing(t *testing.T) {
	c := shared(t)
	c.powerUp(t, "queue-1", "node-1")
	before := c.instance(t, "node-1")
	succeed(t, c.user("rm -f e2e-crossing"))
	witness := c.submit(t, "queue-1", "while [ ! -e e2e-crossing ]; do sleep 0.2; done; hostname", "--nodelist=node-1", "--no-requeue")
	defer c.user("touch e2e-crossing")
	c.waitJob(t, witness, 15*time.Second, "running", running)
	off := func(t *testing.T) {
		t.Helper()
		c.powerDown(t, "node-2")
		c.onlyKnown(t)
	}
	queue := []string{
		"--cluster-identifier", c.id, "--queue-name", "crossing",
		"--compute-node-group-configurations", "computeNodeGroupId=" + c.groups["node"],
	}
	t.Cleanup(func() { c.deleteQueue(t, "crossing") })
	t.Cleanup(func() { c.resize(t, "node", 0, 4) })

	killed := 0
	for _, course := range []struct {
		name   string
		points []string
		act    func(t *testing.T, point string)
	}{
		{
			// The hooks are the gate's announcement and ResumeProgram's call.
			"launch", around("commit/control.Hook", "commit/control.Hook#2", "provider/Launch/node", "commit/control.launched",
				"commit/pcs.register", "commit/control.Report"),
			func(t *testing.T, point string) {
				off(t)
				began := time.Now()
				id := ""
				crashing(t, point, func() { id = c.submit(t, "queue-1", "hostname", "--nodelist=node-2") })
				c.output(t, id, 2*time.Minute)
				c.launchedOnce(t, "node-2", began)
			},
		},
		{
			"end", around("provider/Console", "provider/ReadFile", "provider/Terminate", "commit/awsapi.remove",
				"commit/control.terminated", "slurmctld/RESUME", "commit/control.ordered"),
			func(t *testing.T, point string) {
				c.powerUp(t, "queue-1", "node-2")
				crashing(t, point, func() { succeed(t, c.controller("scontrol update nodename=node-2 state=power_down")) })
				off(t)
			},
		},
		{
			"loss", around("commit/control.lost", "slurmctld/DOWN", "slurmctld/POWER_DOWN", "commit/control.setDown"),
			func(t *testing.T, point string) {
				c.powerUp(t, "queue-1", "node-2")
				lost := c.instance(t, "node-2")
				crashing(t, point, func() { succeed(t, incus("delete", "--force", "--project", project, lost.ID)) })
				c.waitNode(t, "node-2", 30*time.Second, "idle~", node.off)
			},
		},
		{
			"terminate", around("commit/control.TerminateInstance"),
			func(t *testing.T, point string) {
				c.powerUp(t, "queue-1", "node-2")
				succeed(t, calling(t, point, "ec2", "terminate-instances", "--instance-ids", c.instance(t, "node-2").ID))
				c.waitNode(t, "node-2", 30*time.Second, "idle~", node.off)
				c.onlyKnown(t)
			},
		},
		{
			"reboot", around("provider/Reboot"),
			func(t *testing.T, point string) {
				c.powerUp(t, "queue-1", "node-2")
				// As on PCS, a node that reboots outside Slurm is replaced: the
				// repeated call may find that done, and be refused.
				calling(t, point, "ec2", "reboot-instances", "--instance-ids", c.instance(t, "node-2").ID)
				c.waitNode(t, "node-2", 40*time.Second, "idle~", node.off)
			},
		},
		{
			"capacity", around("commit/control.strikeLaunch", "commit/control.notLaunched"),
			func(t *testing.T, point string) {
				off(t)
				c.addFault(t, "node", "insufficient-capacity", "--count", "1")
				id := ""
				crashing(t, point, func() { id = c.submit(t, "queue-1", "hostname", "--nodelist=node-2") })
				c.output(t, id, 2*time.Minute)
			},
		},
		{
			// Those of slurmctld and settle are crossed at the start, too, once
			// for each cluster.
			"create", around("commit/pcs.update", "slurmctld/configure#2", "commit/control.settle#2"),
			func(t *testing.T, point string) {
				clusters, err := rows[clusterRow]("clusters")
				must(t, err == nil, "%v", err)
				point = strings.Replace(point, "#2", fmt.Sprintf("#%d", len(clusters)+1), 1)
				succeed(t, calling(t, point, append([]string{"pcs", "create-queue", "--client-token", strings.NewReplacer("/", "-", "#", "-").Replace(point)}, queue...)...))
				c.active(t, "crossing", "queues", c.id)
				c.deleteQueue(t, "crossing")
			},
		},
		{
			"delete", around("slurmctld/squeue"),
			func(t *testing.T, point string) {
				c.addQueue(t, "crossing", "node")
				c.active(t, "crossing", "queues", c.id)
				crashing(t, point, func() { aws(t, "pcs", "delete-queue", "--cluster-identifier", c.id, "--queue-identifier", "crossing") })
				c.deleteQueue(t, "crossing")
			},
		},
		{
			"static", around("slurmctld/POWER_UP"),
			func(t *testing.T, point string) {
				off(t)
				succeed(t, calling(t, point, "pcs", "update-compute-node-group", "--cluster-identifier", c.id, "--compute-node-group-identifier", "node",
					"--scaling-configuration", "minInstanceCount=2,maxInstanceCount=4"))
				c.active(t, "node", "groups", c.id)
				c.waitNode(t, "node-2", 40*time.Second, "up", node.up)
				c.resize(t, "node", 0, 4)
			},
		},
		{
			"cluster", around("commit/control.deleteCluster"),
			func(t *testing.T, point string) {
				n := findNetwork(t)
				const name = "crossing"
				aws(t, "pcs", "create-cluster", "--cluster-name", name, "--scheduler", "type=SLURM,version="+version, "--size", "SMALL",
					"--networking", "subnetIds="+n.subnet+",securityGroupIds="+n.securityGroup)
				c.active(t, name, "clusters")
				succeed(t, calling(t, point, "pcs", "delete-cluster", "--cluster-identifier", name))
				eventually(t, 30*time.Second, "the cluster is gone", func() error {
					all, err := rows[clusterRow]("clusters")
					if slices.ContainsFunc(all, func(r clusterRow) bool { return r.Name == name }) {
						return errors.New("it is there")
					}
					return err
				})
				c.onlyKnown(t)
			},
		},
	} {
		for _, point := range course.points {
			killed++
			t.Run(course.name+"/"+strings.ReplaceAll(point, "/", "_"), func(t *testing.T) { course.act(t, point) })
		}
	}
	succeed(t, c.user("touch e2e-crossing"))
	out := c.output(t, witness, time.Minute)
	matches(t, "the job that ran through it all", out, `^`+hostName+`$`)
	must(t, c.instance(t, "node-1").ID == before.ID, "node-1 has another instance")
	must(t, killed >= 50, "killed at %d points", killed)
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
	for _, point := range around("commit/app.removeImage", "provider/DeleteImage") {
		t.Run(strings.ReplaceAll(point, "/", "_"), func(t *testing.T) {
			id := findNetwork(t).generic
			crashing(t, point, func() { openpcs("image", "remove", id) })
			openpcs("image", "remove", id) // unless that was done
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

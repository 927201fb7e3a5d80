//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestCustomSettings: settings of cluster, group and queue reach Slurm
// without a restart, under a running job.
func TestCustomSettings(t *testing.T) {
	c := shared(t)
	c.powerUp(t, "queue-1", "node-1")
	before := c.instance(t, "node-1")
	defer c.settings(t, "update-queue", "queue", "queue-1", "[]")
	c.settings(t, "update-queue", "queue", "queue-1", `[{"parameterName":"MaxTime","parameterValue":"00:10:00"},{"parameterName":"default","parameterValue":"YES"}]`)
	r := succeed(t, c.login("scontrol", "--oneliner", "show", "partition", "queue-1"))
	must(t, strings.Contains(r.out, "MaxTime=00:10:00 ") && strings.Contains(r.out, "Default=YES"), "the queue's settings are not there: %s", r)
	r = c.user("sbatch --time=20 --wrap hostname")
	must(t, r.code != 0 && strings.Contains(r.errOut, "time limit"), "a job beyond MaxTime is not refused when it is submitted: %s", r)
	succeed(t, c.user("srun -w node-1 hostname")) // the default queue

	defer c.settings(t, "update-cluster", "", "", "[]")
	c.settings(t, "update-cluster", "", "", `[{"parameterName":"MinJobAge","parameterValue":"120"}]`)
	r = succeed(t, c.login("scontrol", "show", "config"))
	matches(t, "the cluster's setting", r.out, `(?m)^MinJobAge\s+= 120 sec$`)
	must(t, c.instance(t, "node-1").ID == before.ID, "settings that touch no instance replaced one")
}

// TestC7_RefusedSettings: a setting that slurmctld will not take leaves the
// cluster as it was, and the API says why (CycleCloud #57: slurmctld stayed
// down).
func TestC7_RefusedSettings(t *testing.T) {
	c := shared(t)
	code, message := awsRefused(t, "pcs", "update-cluster", "--cluster-identifier", c.id,
		"--slurm-configuration", `{"slurmCustomSettings":[{"parameterName":"suspendtime","parameterValue":"5"}]}`)
	must(t, code == "ValidationException" && strings.Contains(strings.ToLower(message), "suspendtime"), "refused with %s: %s", code, message)
	c.powerUp(t, "queue-1", "node-1")
	before := c.instance(t, "node-1")
	id := c.submit(t, "queue-1", "sleep 8; hostname", "--nodelist=node-1", "--no-requeue")
	c.waitJob(t, id, 15*time.Second, "running", running)
	// The name is allowed, and the value is Slurm's own affair.
	defer func() {
		c.settings(t, "update-cluster", "", "", "[]")
		must(t, c.errorInfo(t) == "null", "the cluster still shows the error: %s", c.errorInfo(t))
	}()
	aws(t, "pcs", "update-cluster", "--cluster-identifier", c.id,
		"--slurm-configuration", `{"slurmCustomSettings":[{"parameterName":"PreemptMode","parameterValue":"NO_SUCH_MODE"}]}`)
	eventually(t, 30*time.Second, "the cluster says that its update failed", func() error {
		status := aws(t, "pcs", "get-cluster", "--cluster-identifier", c.id, "--query", "cluster.status", "--output", "text")
		if status != "UPDATE_FAILED" {
			return fmt.Errorf("it is %s", status)
		}
		return nil
	})
	info := c.errorInfo(t)
	must(t, strings.Contains(info, "SLURM_CONFIGURATION_REFUSED") && strings.Contains(info, "NO_SUCH_MODE"), "errorInfo does not name Slurm's reason: %s", info)
	eventually(t, 10*time.Second, "slurmctld answers with the former configuration", func() error {
		r := c.login("scontrol", "show", "config")
		if r.code != 0 || strings.Contains(r.out, "NO_SUCH_MODE") {
			return errors.New(r.String())
		}
		return nil
	})
	out := c.output(t, id, 30*time.Second)
	matches(t, "the job that ran through it", out, `^`+hostName+`$`)
	must(t, c.instance(t, "node-1").ID == before.ID, "node-1 has another instance")
}

func (c *cluster) errorInfo(t *testing.T) string {
	t.Helper()
	return aws(t, "pcs", "get-cluster", "--cluster-identifier", c.id, "--query", "cluster.errorInfo", "--output", "json")
}

// settings gives the cluster, or something of it, other custom settings and
// waits until Slurm has them.
func (c *cluster) settings(t *testing.T, operation, kind, name, doc string) {
	t.Helper()
	args := []string{"pcs", operation, "--cluster-identifier", c.id, "--slurm-configuration", `{"slurmCustomSettings":` + doc + `}`}
	if kind == "" {
		aws(t, args...)
		c.active(t, c.name, "clusters")
		return
	}
	aws(t, append(args, "--"+kind+"-identifier", name)...)
	c.active(t, name, kind+"s", c.id)
}

//go:build e2e

package e2e

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/openpcs/openpcs/internal/slurm"
)

// TestI4_IdleTimesOfGroups: each group's nodes follow its own idle time, though
// they are in one queue; the group's minimum stays, whatever its idle time; and
// a group whose idle time is cleared follows the cluster's.
func TestI4_IdleTimesOfGroups(t *testing.T) {
	c := shared(t)
	c.lend(t, group{name: "brief", max: 1, idle: 5})
	c.lend(t, group{name: "patient", max: 1, idle: 15})
	c.lend(t, group{name: "keep", min: 1, max: 2, idle: 5})
	c.lendQueue(t, "both", "brief", "patient", "keep")
	c.active(t, "both", "queues", c.id)
	shown := func(name string) string {
		return aws(t, "pcs", "get-compute-node-group", "--cluster-identifier", c.id, "--compute-node-group-identifier", name,
			"--query", "computeNodeGroup.slurmConfiguration.scaleDownIdleTimeInSeconds", "--output", "text")
	}
	must(t, shown("brief") == "5" && shown("patient") == "15" && shown("node") == "None", "the API shows %s, %s and %s", shown("brief"), shown("patient"), shown("node"))
	c.waitNode(t, "keep-1", 30*time.Second, "up", node.up)
	began := time.Now()
	// One job has all of them, so that they are idle from one moment on.
	succeed(t, c.login("srun", "--chdir=/", "-p", "both", "-w", "brief-1,patient-1,keep-1,keep-2", "-N", "4", "true"))
	r := succeed(t, openpcs("explain", "node", c.id+"/patient-1"))
	matches(t, "what comes next", r.out, `once it has been so for 15s|has jobs, and 15s longer`)
	suspended := func(name string) (at time.Time) {
		eventually(t, 90*time.Second, name+" is suspended", func() error {
			_, events := c.history(t, name)
			if all := since(events, began, "suspend"); len(all) > 0 {
				at = all[0].At
				return nil
			}
			return fmt.Errorf("it is not")
		})
		return at
	}
	brief, more, patient := suspended("brief-1"), suspended("keep-2"), suspended("patient-1")
	t.Logf("patient-1 was suspended %v after brief-1, %v after keep-2", patient.Sub(brief), patient.Sub(more))
	// A host that is busy may have Slurm late, and never early: nodes of one idle
	// time are suspended together, however late. Slurm counts in whole seconds.
	must(t, patient.Sub(began) > 13*time.Second, "patient-1 was suspended %v after the job began", patient.Sub(began))
	must(t, patient.Sub(brief) > time.Second && patient.Sub(more) > time.Second, "patient-1 was suspended %v after brief-1: both follow one idle time", patient.Sub(brief))
	n, err := c.node("keep-1")
	must(t, err == nil && n.up(), "the group's minimum is %v %v", n, err)

	suspendTime := func(name string) string {
		m := regexp.MustCompile(` SuspendTime=(\S+)`).FindStringSubmatch(succeed(t, c.controller("scontrol --oneliner show node "+name)).out)
		if m == nil {
			return ""
		}
		return m[1]
	}
	update := func(seconds string) {
		t.Helper()
		aws(t, "pcs", "update-compute-node-group", "--cluster-identifier", c.id, "--compute-node-group-identifier", "brief",
			"--slurm-configuration", "scaleDownIdleTimeInSeconds="+seconds)
		c.active(t, "brief", "groups", c.id)
	}
	update("33")
	must(t, shown("brief") == "33", "after an update the API shows %s", shown("brief"))
	conf := succeed(t, c.controller("grep NodeName=brief /etc/slurm/slurm.conf")).out
	must(t, strings.Contains(conf, " SuspendTime=33 "), "slurm.conf has %s (scontrol: %s)", conf, suspendTime("brief-1"))
	update("-1")
	must(t, shown("brief") == "None", "after it was cleared the API shows %s", shown("brief"))
	conf = succeed(t, c.controller("grep NodeName=brief /etc/slurm/slurm.conf")).out
	must(t, !strings.Contains(conf, "SuspendTime"), "slurm.conf has %s", conf)

	// Slurm 25.11 has no idle time of nodes; a hidden partition stands for it. The
	// rule by which it does is the same in this release.
	old := c.plainConfig(t)
	release, ok := slurm.FindVersion("25.11")
	must(t, ok, "25.11 is not known")
	old.Version, old.Partitions = release, nil
	old.Nodes = []slurm.NodeSet{{Name: "brief", Count: 1, CPUs: 1, RealMemoryMiB: 900, IdleTime: 5 * time.Second}}
	files, err := old.Render()
	must(t, err == nil, "%v", err)
	line := regexp.MustCompile(`(?m)^PartitionName=.* SuspendTime=5$`).FindString(string(files["slurm.conf"]))
	must(t, line != "", "25.11 has no idle time of groups:\n%s", files["slurm.conf"])
	succeed(t, c.controller("echo '"+line+"' >>/etc/slurm/slurm.conf && scontrol reconfigure"))
	r = succeed(t, c.user("sinfo --noheader"))
	must(t, !strings.Contains(r.out, "idle_time"), "users see it: %s", r)
	began = time.Now()
	succeed(t, c.login("srun", "--chdir=/", "-p", "both", "-w", "brief-1", "true"))
	suspended("brief-1") // and not after the cluster's 600 s
}

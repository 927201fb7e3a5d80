//go:build e2e

package e2e

import (
	"strings"
	"testing"
	"time"
)

// healthCheck is a health check as a user data script brings it to the nodes:
// it drains the second node of its group, and says why.
const healthCheck = `#!/bin/bash
mkdir -p /opt/health
cat >/opt/health/check.sh <<'CHECK'
#!/bin/bash
echo "checked $SLURMD_NODENAME" >>/var/log/health.log
case $SLURMD_NODENAME in
*-2)
	scontrol update nodename="$SLURMD_NODENAME" state=drain reason="health check: scratch is read-only"
	exit 1
	;;
esac
CHECK
chmod 755 /opt/health/check.sh
`

// TestHealthCheckAtStart: HealthCheckNodeState=START_ONLY runs the program once,
// when slurmd starts; one that drains its node is to be seen with its reason in
// Slurm and in openpcs explain, and other nodes take jobs.
func TestHealthCheckAtStart(t *testing.T) {
	c := shared(t)
	defer c.settings(t, "update-cluster", "", "", "[]")
	c.settings(t, "update-cluster", "", "", `[{"parameterName":"HealthCheckProgram","parameterValue":"/opt/health/check.sh"},{"parameterName":"HealthCheckNodeState","parameterValue":"START_ONLY"}]`)
	c.lend(t, group{name: "checked", max: 2, queue: "checked", userData: mime(shellscript, healthCheck)})
	succeed(t, c.login("srun", "--chdir=/", "-p", "checked", "-w", "checked-1", "true"))
	began := time.Now()
	id := c.submit(t, "checked", "true", "--nodelist=checked-2")
	_, n := c.waitNode(t, "checked-2", time.Minute, "drained", func(n node) bool { return n.is("DRAIN") && !n.is("POWERING_UP") })
	t.Logf("drained %.1f s after the job was submitted: %v", time.Since(began).Seconds(), n)
	must(t, n.reason == "health check: scratch is read-only", "the reason is %q", n.reason)
	r := succeed(t, openpcs("explain", c.id+"/checked-2"))
	must(t, strings.Contains(r.out, "health check: scratch is read-only") && strings.Contains(r.out, "left to whoever drained it"), "explain does not tell: %s", r)
	j, err := c.job(id)
	t.Logf("the job that the node was started for is %+v %v", j, err)

	// What slurmd is told anew is no start of it.
	succeed(t, c.controller("scontrol reconfigure"))
	for _, name := range []string{"checked-1", "checked-2"} {
		log := succeed(t, c.connect(name, "cat", "/var/log/health.log"))
		must(t, log.out == "checked "+name+"\n", "on %s the program ran otherwise than once: %s", name, log)
	}
	succeed(t, c.login("srun", "--chdir=/", "-p", "checked", "-w", "checked-1", "true"))

	// REBOOT_ONLY: not when a fresh instance comes up, once when it was rebooted.
	c.settings(t, "update-cluster", "", "", `[{"parameterName":"HealthCheckProgram","parameterValue":"/opt/health/check.sh"},{"parameterName":"HealthCheckNodeState","parameterValue":"REBOOT_ONLY"}]`)
	c.powerDown(t, "checked-1")
	succeed(t, c.login("srun", "--chdir=/", "-p", "checked", "-w", "checked-1", "test", "!", "-e", "/var/log/health.log"))
	c.waitNode(t, "checked-1", 30*time.Second, "idle", func(n node) bool { return n.is("IDLE") && n.up() })
	succeed(t, c.controller("scontrol reboot ASAP nextstate=RESUME checked-1"))
	eventually(t, time.Minute, "the program runs after the reboot", func() error {
		return contains(c.connect("checked-1", "cat", "/var/log/health.log"), "checked checked-1\n")
	})
	c.waitNode(t, "checked-1", time.Minute, "up", node.up)
}

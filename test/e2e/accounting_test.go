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

// accountedCluster is a cluster with accounting and the REST API.
var accountedCluster struct {
	*cluster
	broken bool
}

// accounted returns a cluster with accounting and the REST API: a login node
// and a node in queue-1.
func accounted(t *testing.T) *cluster {
	t.Helper()
	if accountedCluster.broken {
		t.Fatal("making the cluster with accounting failed in a test before")
	}
	if accountedCluster.cluster != nil {
		return accountedCluster.cluster
	}
	accountedCluster.broken = true
	n := findNetwork(t)
	c := &cluster{name: "accounted", version: version, entry: "front-1", groups: map[string]string{}}
	c.id = aws(t, "pcs", "create-cluster", "--cluster-name", c.name, "--scheduler", "type=SLURM,version="+version, "--size", "SMALL",
		"--networking", "subnetIds="+n.subnet+",securityGroupIds="+n.securityGroup,
		"--slurm-configuration", `{"accounting":{"mode":"STANDARD","defaultPurgeTimeInDays":30},"slurmRest":{"mode":"STANDARD"},`+
			`"slurmdbdCustomSettings":[{"parameterName":"PurgeJobAfter","parameterValue":"12months"}],`+
			`"cgroupCustomSettings":[{"parameterName":"AllowedRAMSpace","parameterValue":"101"}]}`,
		"--query", "cluster.id", "--output", "text")
	c.active(t, c.name, "clusters")
	c.add(t, group{name: "front", min: 1, max: 1})
	c.add(t, group{name: "node", max: 1, queue: "queue-1"})
	c.waitLogin(t)
	accountedCluster.cluster, accountedCluster.broken = c, false
	return c
}

// configure updates the Slurm configuration and waits until it is in force.
func (c *cluster) configure(t *testing.T, doc string) {
	t.Helper()
	aws(t, "pcs", "update-cluster", "--cluster-identifier", c.id, "--slurm-configuration", doc)
	c.active(t, c.name, "clusters")
}

// endpoints are the types of the cluster's endpoints.
func (c *cluster) endpoints(t *testing.T) []string {
	t.Helper()
	return strings.Fields(aws(t, "pcs", "get-cluster", "--cluster-identifier", c.id, "--query", "cluster.endpoints[].type", "--output", "text"))
}

// recorded waits until sacct, run by a user on the login node, has the job in
// a state.
func (c *cluster) recorded(t *testing.T, job, state string) {
	t.Helper()
	eventually(t, 30*time.Second, "sacct has job "+job, func() error {
		r := c.user("sacct --noheader --parsable2 --allocations --format=JobID,User,State --jobs=" + job)
		return contains(r, job+"|ubuntu|"+state)
	})
}

// logHas waits until a log of the controller has a line like a pattern.
func (c *cluster) logHas(t *testing.T, log, pattern string) {
	t.Helper()
	eventually(t, 15*time.Second, log+" has "+pattern, func() error {
		if r := c.controller("grep -Eq '" + pattern + "' /var/log/slurm/" + log); r.code != 0 {
			return errors.New(r.String())
		}
		return nil
	})
}

// configured is how often slurmctld began with a configuration.
func (c *cluster) configured(t *testing.T) string {
	t.Helper()
	return succeed(t, c.controller("grep -c 'slurmctld version' /var/log/slurm/slurmctld.log")).line()
}

// tells waits until get-cluster tells why an update does not end, and returns the
// words.
func (c *cluster) tells(t *testing.T, code string) (message string) {
	t.Helper()
	eventually(t, createLimit, "get-cluster tells of "+code, func() error {
		got := aws(t, "pcs", "get-cluster", "--cluster-identifier", c.id, "--query", "cluster.[status,errorInfo[0].code,errorInfo[0].message]", "--output", "text")
		var ok bool
		if message, ok = strings.CutPrefix(got, "UPDATING\t"+code+"\t"); !ok {
			return errors.New(got)
		}
		return nil
	})
	return message
}

// TestAccounting: with accounting STANDARD users find their jobs with sacct,
// also after the controller was rebooted and after it was replaced, and after
// accounting was switched off and on again.
func TestAccounting(t *testing.T) {
	c := accounted(t)
	must(t, slices.Contains(c.endpoints(t), "SLURMDBD"), "endpoints: %v", c.endpoints(t))
	first := c.submit(t, "queue-1", "hostname")
	c.output(t, first, time.Minute)
	c.recorded(t, first, "COMPLETED")

	t.Run("configured", func(t *testing.T) {
		r := succeed(t, c.controller("cat /etc/slurm/slurmdbd.conf /etc/slurm/cgroup.conf"))
		for _, line := range []string{"PurgeJobAfter=12months", "PurgeStepAfter=30days", "AllowedRAMSpace=101"} {
			must(t, slices.Contains(lines(r.out), line), "%s is missing in %s", line, r)
		}
		must(t, aws(t, "pcs", "get-cluster", "--cluster-identifier", c.id, "--query",
			"cluster.slurmConfiguration.[accounting.mode,accounting.defaultPurgeTimeInDays,slurmdbdCustomSettings[0].parameterValue,slurmRest.mode]", "--output", "text") ==
			"STANDARD\t30\t12months\tSTANDARD", "get-cluster tells something else")
	})
	t.Run("logs", func(t *testing.T) {
		c.logHas(t, "slurmdbd.log", `^\[[0-9T:.-]+\+00:00\] AUDIT_RPCS: msg_type=DBD_\w+ uid=[0-9]+ client=\[`)
		c.logHas(t, "slurmrestd.log", `^\[[0-9T:.+-]+\] `)
	})
	t.Run("managed_by_root", func(t *testing.T) { // on a node, as on PCS
		succeed(t, c.login("sacctmgr", "--immediate", "add", "account", "physics"))
		succeed(t, c.login("sacctmgr", "--immediate", "add", "user", "ubuntu", "account=physics"))
		matches(t, "associations", succeed(t, c.user("sacctmgr --noheader --parsable2 list assoc user=ubuntu format=account,user")).out, `(?m)^physics\|ubuntu$`)
		r := c.user("sacctmgr --immediate add account forbidden")
		must(t, r.code != 0, "a user added an account: %s", r)
	})
	t.Run("qos_of_a_queue", func(t *testing.T) {
		// One that was made a moment ago counts, and one that nobody made is refused
		// in Slurm's words.
		succeed(t, c.login("sacctmgr", "--immediate", "add", "qos", "low"))
		c.settings(t, "update-queue", "queue", "queue-1", `[{"parameterName":"AllowQos","parameterValue":"low,normal"}]`)
		matches(t, "the partition", succeed(t, c.controller("scontrol show partition queue-1")).out, `AllowQos=(low,normal|normal,low)`)
		aws(t, "pcs", "update-queue", "--cluster-identifier", c.id, "--queue-identifier", "queue-1",
			"--slurm-configuration", `{"slurmCustomSettings":[{"parameterName":"AllowQos","parameterValue":"nosuch"}]}`)
		eventually(t, createLimit, "the update fails", func() error {
			status, err := c.has("queues", "queue-1")
			if status != "UPDATE_FAILED" {
				return errors.Join(err, errors.New("it is "+status))
			}
			return err
		})
		info := aws(t, "pcs", "get-queue", "--cluster-identifier", c.id, "--queue-identifier", "queue-1", "--query", "queue.errorInfo[0].message", "--output", "text")
		matches(t, "errorInfo", info, `(?i)qos.*nosuch|nosuch.*qos`)
		c.settings(t, "update-queue", "queue", "queue-1", `[]`)
	})
	t.Run("database_crashes", func(t *testing.T) {
		succeed(t, c.controller("systemctl kill --kill-whom=main --signal=KILL mariadb"))
		c.recorded(t, first, "COMPLETED")
		eventually(t, 15*time.Second, "explain tells of it", func() error {
			return contains(openpcs("explain", c.id), "SLURMDBD_CRASHED")
		})
		succeed(t, c.controller("systemctl is-active mariadb slurmdbd"))
	})
	t.Run("slurmdbd_crashes", func(t *testing.T) {
		succeed(t, c.controller("systemctl kill --kill-whom=main --signal=SEGV slurmdbd"))
		c.recorded(t, first, "COMPLETED")
	})
	t.Run("started_the_wrong_way_round", func(t *testing.T) {
		// slurmdbd does not find its database at first, which is when its client
		// library may fall into error 5027.
		succeed(t, c.controller("systemctl stop slurmdbd mariadb && systemctl start slurmdbd && systemctl start mariadb"))
		c.recorded(t, first, "COMPLETED")
	})
	t.Run("database_does_not_start", func(t *testing.T) {
		const there, away = "/usr/sbin/mariadbd", "/usr/sbin/mariadbd.away"
		back := "test ! -e " + away + " || mv " + away + " " + there
		t.Cleanup(func() { c.controller(back) })
		succeed(t, c.controller("mv "+there+" "+away+" && systemctl kill --kill-whom=main --signal=KILL mariadb"))
		// What is not about accounting does not wait for it.
		c.settings(t, "update-queue", "queue", "queue-1", `[{"parameterName":"MaxTime","parameterValue":"100"}]`)
		c.settings(t, "update-queue", "queue", "queue-1", `[]`)
		// What is waits, and shows it; slurmctld is left alone meanwhile.
		before := c.configured(t)
		aws(t, "pcs", "update-cluster", "--cluster-identifier", c.id, "--slurm-configuration", `{"slurmdbdCustomSettings":[{"parameterName":"TrackWCKey","parameterValue":"YES"}]}`)
		c.tells(t, "ACCOUNTING_FAILED")
		must(t, c.configured(t) == before, "slurmctld was configured %s times, and %s before the database failed", c.configured(t), before)
		succeed(t, c.controller(back))
		c.active(t, c.name, "clusters")
		succeed(t, c.controller("grep -qx TrackWCKey=YES /etc/slurm/slurmdbd.conf"))
		c.configure(t, `{"slurmdbdCustomSettings":[{"parameterName":"PurgeJobAfter","parameterValue":"12months"}]}`)
		c.recorded(t, first, "COMPLETED")
	})
	t.Run("disk_full", func(t *testing.T) {
		full := func(want bool) {
			t.Helper()
			eventually(t, 40*time.Second, fmt.Sprintf("explain tells of a full disk: %v", want), func() error {
				r := succeed(t, openpcs("explain", c.id))
				if got := strings.Contains(r.out, "ACCOUNTING_DATABASE_FULL"); got != want {
					return errors.New(r.String())
				}
				return nil
			})
		}
		// The database has its files open below; only who looks sees this.
		succeed(t, c.controller("mount -t tmpfs -o size=16m full /var/lib/slurm-accounting"))
		t.Cleanup(func() { c.controller("grep -q '^full ' /proc/mounts && umount /var/lib/slurm-accounting") })
		full(true)
		succeed(t, c.controller("umount /var/lib/slurm-accounting"))
		full(false)
	})
	t.Run("rebooted", func(t *testing.T) {
		succeed(t, incus("restart", "--project", project, "--force", "ctl-"+strings.TrimPrefix(c.id, "pcs_")))
		c.daemonsBack(t)
		c.recorded(t, first, "COMPLETED")
	})
	t.Run("replaced", func(t *testing.T) {
		succeed(t, incus("delete", "--project", project, "--force", "ctl-"+strings.TrimPrefix(c.id, "pcs_")))
		c.daemonsBack(t)
		c.recorded(t, first, "COMPLETED")
	})
	t.Run("enforced", func(t *testing.T) {
		c.configure(t, `{"slurmCustomSettings":[{"parameterName":"AccountingStorageEnforce","parameterValue":"associations,limits"}]}`)
		r := c.user("sbatch --account=nobody -p queue-1 --wrap hostname")
		must(t, r.code != 0 && strings.Contains(r.errOut, "Invalid account"), "an account that does not exist: %s", r)
		code, message := awsRefused(t, "pcs", "update-cluster", "--cluster-identifier", c.id, "--slurm-configuration", `{"accounting":{"mode":"NONE"}}`)
		must(t, code == "ValidationException" && strings.Contains(message, "AccountingStorageEnforce"), "%s: %s", code, message)
	})
	t.Run("off_and_on", func(t *testing.T) {
		c.configure(t, `{"accounting":{"mode":"NONE"},"slurmCustomSettings":[],"slurmdbdCustomSettings":[]}`)
		must(t, !slices.Contains(c.endpoints(t), "SLURMDBD"), "endpoints: %v", c.endpoints(t))
		eventually(t, 30*time.Second, "sacct says that there is none", func() error {
			if r := c.user("sacct 2>&1"); !strings.Contains(r.out, "accounting storage is disabled") {
				return fmt.Errorf("%s", r)
			}
			return nil
		})
		r := c.controller("systemctl is-active mariadb slurmdbd")
		must(t, r.code != 0 && !slices.Contains(lines(r.out), "active"), "still there: %s", r)
		second := c.submit(t, "queue-1", "hostname") // the cluster works without
		c.output(t, second, time.Minute)
		c.configure(t, `{"accounting":{"mode":"STANDARD"}}`)
		c.recorded(t, first, "COMPLETED")
	})
}

// daemonsBack waits until all daemons of the controller run. That an instance is
// gone may be seen only by the comparison with the provider, each half minute.
func (c *cluster) daemonsBack(t *testing.T) {
	t.Helper()
	eventually(t, 2*time.Minute, "the controller's daemons are back", func() error {
		if r := c.controller("scontrol ping && systemctl is-active slurmdbd slurmrestd"); r.code != 0 {
			return errors.New(r.String())
		}
		return nil
	})
}

// TestAccountingOfTheOldRelease: 24.11 has accounting, and not the REST API.
func TestAccountingOfTheOldRelease(t *testing.T) {
	c := old(t)
	code, message := awsRefused(t, "pcs", "update-cluster", "--cluster-identifier", c.id, "--slurm-configuration", `{"slurmRest":{"mode":"STANDARD"}}`)
	must(t, code == "ValidationException" && strings.Contains(message, "25.05 or later"), "%s: %s", code, message)
	c.configure(t, `{"accounting":{"mode":"STANDARD"}}`)
	job := c.submit(t, "queue-1", "hostname")
	c.output(t, job, time.Minute)
	c.recorded(t, job, "COMPLETED")
	c.logHas(t, "slurmdbd.log", `AUDIT_RPCS: msg_type=DBD_`)
	c.configure(t, `{"accounting":{"mode":"NONE"}}`)
}

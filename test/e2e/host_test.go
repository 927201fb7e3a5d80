//go:build e2e

package e2e

import (
	"encoding/json"
	"errors"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"
)

// finding is one line of openpcs doctor.
type finding struct{ Name, ID, Status, Text, Fix string }

func doctor(t *testing.T, env ...string) (map[string]finding, int) {
	t.Helper()
	r := run(append(siteEnv, env...), binary(), "doctor", "--json")
	var all []finding
	if err := json.Unmarshal([]byte(r.out), &all); err != nil {
		fail(t, "%v in %s", err, r)
	}
	byName := map[string]finding{}
	for _, f := range all {
		byName[f.Name] = f
		must(t, f.ID == f.Name && f.Text != "" && (f.Status != "fail" || f.Fix != ""), "a finding is not whole: %+v", f)
	}
	return byName, r.code
}

// TestDoctor: on the machine that these tests run on nothing fails, with the
// control plane up and down, and what would fail does.
func TestDoctor(t *testing.T) {
	shared(t)
	found, code := doctor(t)
	for name, f := range found {
		must(t, f.Status != "fail", "%s fails: %s", name, f.Text)
	}
	must(t, code == 0 && len(found) >= 14, "exit code %d, %d findings", code, len(found))
	must(t, strings.Contains(found["control-plane"].Text, "with "), "the control plane: %+v", found["control-plane"])
	must(t, strings.Contains(found["images"].Text, version), "images: %+v", found["images"])
	legacy, err := os.ReadFile("/proc/self/cgroup")
	must(t, err == nil, "%v", err)
	if len(lines(string(legacy))) > 1 {
		// The fallback is told, and is what nodes run with.
		must(t, found["cgroups"].Status == "warn" && strings.Contains(found["cgroups"].Text, "proctrack/linuxproc"), "cgroups: %+v", found["cgroups"])
		r := succeed(t, shared(t).login("scontrol", "show", "config"))
		matches(t, "how Slurm tracks jobs", r.out, `(?m)^ProctrackType\s+= proctrack/linuxproc`)
	} else {
		must(t, found["cgroups"].Status == "ok", "cgroups: %+v", found["cgroups"])
	}

	found, code = doctor(t, "OPENPCS_SUBNET="+strings.Replace(subnet, "/16", "/17", 1), "OPENPCS_SITE=other", "OPENPCS_STATE="+stateDir+"-other")
	must(t, code == 1 && found["subnet"].Status == "fail" && found["api"].Status == "fail" && found["control-plane"].Status == "warn",
		"a second control plane on the addresses of the first: exit code %d, %+v", code, found)
	found, code = doctor(t, "OPENPCS_INCUS_SOCKET=/nowhere")
	must(t, code == 1 && found["incus"].Status == "fail" && found["pool"].Status == "warn", "without Incus: exit code %d, %+v", code, found)

	if err := serving.stop(); err != nil {
		fail(t, "stop: %v", err)
	}
	found, code = doctor(t)
	err = serve()
	must(t, err == nil, "start again: %v", err)
	must(t, code == 0 && found["control-plane"].Status == "warn" && found["api"].Status == "ok" && strings.Contains(found["state"].Text, "latest event"),
		"with the control plane down: exit code %d, %+v", code, found)
}

// TestVersions: the article's table, and what this machine has.
func TestVersions(t *testing.T) {
	r := succeed(t, openpcs("versions"))
	matches(t, "the table", r.out, `(?m)^25\.11 +2025-11-06 +2026-04-09 +2027-05-31 +\S+ +no package source$`)
	all, err := rows[struct{ Name, ID, Status, Image string }]("versions")
	must(t, err == nil && len(all) >= 4, "versions: %v %v", all, err)
	for _, v := range all {
		must(t, v.Name != version || v.Image == "built", "the release under test: %+v", v)
	}
}

// TestC20_RegistrationIsChecked: with limits on, a node that has less than
// Slurm was told is refused by slurmctld with both figures, and one that has
// enough works (trinity #332).
func TestC20_RegistrationIsChecked(t *testing.T) {
	c := shared(t)
	restart(t, "OPENPCS_LIMITS=on")
	defer restart(t)
	c.lend(t, group{name: "liar", max: 1, queue: "liar", settings: `[{"parameterName":"RealMemory","parameterValue":"99000000"}]`})
	c.powerDown(t, "node-1")
	c.powerUp(t, "queue-1", "node-1")
	id := c.submit(t, "liar", "hostname")
	_, n := c.waitNode(t, "liar-1", 30*time.Second, "refused", func(n node) bool { return strings.Contains(n.reason, "Low RealMemory") })
	matches(t, "the reason", n.reason, `Low RealMemory \(reported:\d+ < [0-9.]+% of configured:99000000\)`)
	eventually(t, 20*time.Second, "explain tells it with Slurm's figures", func() error {
		r := succeed(t, openpcs("explain", c.id+"/liar-1"))
		if !regexp.MustCompile(`INVALID_REGISTRATION[^\n]*Low RealMemory \(reported:\d+ <`).MatchString(r.out) {
			return errors.New(r.String())
		}
		return nil
	})
	c.controller("scancel " + id)
}

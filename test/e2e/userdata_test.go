//go:build e2e

package e2e

import (
	"strings"
	"testing"
)

// mark is a part of user data that writes down that it ran, and what was
// there already: the registration (slurm.key) and a slurmd.
func mark(name string) string {
	return "#!/bin/sh\n" +
		"k=no; [ ! -e /etc/slurm/slurm.key ] || k=yes\n" +
		"s=no; ! pidof slurmd >/dev/null || s=yes\n" +
		"echo " + name + " key=$k slurmd=$s >>/var/tmp/e2e-marks\n" +
		"echo said by " + name + "\n"
}

// TestUserData: boothooks run first and at each boot, before registration;
// shell scripts once, between registration and slurmd; in the order of the
// document.
func TestUserData(t *testing.T) {
	c := shared(t)
	c.lend(t, group{name: "userdata", max: 1, queue: "userdata", userData: mime(
		shellscript, mark("script-1"),
		boothook, "#cloud-boothook\n"+mark("hook-1"),
		shellscript, mark("script-2"),
		boothook, "#cloud-boothook\n"+mark("hook-2"),
	)})
	c.powerUp(t, "userdata", "userdata-1")
	const first = "hook-1 key=no slurmd=no\nhook-2 key=no slurmd=no\nscript-1 key=yes slurmd=no\nscript-2 key=yes slurmd=no\n"
	r := succeed(t, c.connect("userdata-1", "cat", "/var/tmp/e2e-marks"))
	must(t, r.out == first, "at the first boot ran:\n%swant:\n%s", r.out, first)
	log := succeed(t, c.connect("userdata-1", "cat", "/var/log/amazon/pcs/bootstrap.log"))
	for _, name := range []string{"hook-1", "hook-2", "script-1", "script-2"} {
		matches(t, "bootstrap.log", log.out, `(?m)user-data: said by `+name+`$`)
	}

	c.reboot(t, "userdata-1")
	const second = first + "hook-1 key=yes slurmd=no\nhook-2 key=yes slurmd=no\n"
	succeed(t, c.login("srun", "--chdir=/", "-p", "userdata", "true"))
	r = succeed(t, c.connect("userdata-1", "cat", "/var/tmp/e2e-marks"))
	must(t, r.out == second, "after the second boot ran:\n%swant:\n%s", r.out, second)
	c.powerDown(t, "userdata-1")
}

// TestUserDataRefused: what cannot run is refused when the group is made,
// with the reason.
func TestUserDataRefused(t *testing.T) {
	c := shared(t)
	n := findNetwork(t)
	for name, bad := range map[string]struct{ userData, reason string }{
		"cloud-config": {mime(cloudconfig, "#cloud-config\npackages: [tree]\n"), "text/cloud-config, which needs cloud-init, and the image has none"},
		"plain-script": {"#!/bin/sh\necho hello\n", "not in the MIME multipart format"},
		"other-type":   {mime("text/plain", "hello"), "text/plain; allowed are"},
	} {
		t.Run(name, func(t *testing.T) {
			template := createTemplate(t, "bad-"+name, n.image, bad.userData)
			code, message := awsRefused(t, "pcs", "create-compute-node-group", "--cluster-identifier", c.id, "--compute-node-group-name", "refused",
				"--subnet-ids", n.subnet, "--custom-launch-template", "id="+template+",version=1", "--iam-instance-profile-arn", n.profile,
				"--scaling-configuration", "minInstanceCount=0,maxInstanceCount=1", "--instance-configs", "instanceType=t3.micro")
			must(t, code == "ValidationException" && strings.Contains(message, bad.reason), "refused with %s: %s", code, message)
		})
	}
	all, err := rows[clusterRow]("groups", c.id)
	must(t, err == nil, "%v", err)
	for _, g := range all {
		must(t, g.Name != "refused", "the refused group is there: %v", g)
	}
}

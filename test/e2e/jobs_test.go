//go:build e2e

package e2e

import (
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestMultiNodeSrun: one srun over several nodes, as root and as a user,
// from nodes that are off.
func TestMultiNodeSrun(t *testing.T) {
	c := shared(t)
	c.powerDown(t, "node-1", "node-2", "node-3")
	for what, r := range map[string]result{
		"root":   c.login("srun", "--chdir=/", "-p", "queue-1", "-N3", "-w", "node-[1-3]", "hostname"),
		"ubuntu": c.user("srun -p queue-1 -N3 -w 'node-[1-3]' hostname"),
	} {
		succeed(t, r)
		names := strings.Fields(r.out)
		slices.Sort(names)
		must(t, len(slices.Compact(names)) == 3, "srun of %s answered from %v, not from three nodes: %s", what, names, r)
		for _, name := range names {
			matches(t, "a host name", name, `^`+hostName+`$`)
		}
		t.Logf("srun -N3 as %s took %.1f s", what, r.took.Seconds())
	}
	// Nodes reach each other by their names.
	other := c.instance(t, "node-2")
	r := succeed(t, c.user("srun -p queue-1 -N1 -w node-1 getent hosts ip-"+strings.ReplaceAll(other.Address, ".", "-")+"."+region+".compute.internal"))
	must(t, strings.HasPrefix(r.line(), other.Address+" "), "a node does not know the other's name: %s", r)
}

// TestSharedHome: what a user writes at home on one node is there on all.
func TestSharedHome(t *testing.T) {
	c := shared(t)
	succeed(t, c.user("umask 027; echo from login >e2e-login; id -u >>e2e-login"))
	id := c.submit(t, "queue-1", "cat e2e-login; stat -c %u:%a e2e-login; (echo from $(hostname); id -u) >e2e-job", "--nodelist=node-1")
	out := c.output(t, id, time.Minute)
	must(t, out == "from login\n1000\n1000:640", "the job read: %s", out)
	r := succeed(t, c.user("cat e2e-job; stat -c %u e2e-job"))
	must(t, regexp.MustCompile(`^from `+hostName+`\n1000\n1000\n$`).MatchString(r.out), "the login node read: %s", r)
	// The whole way to a job's script in the home folder.
	succeed(t, c.user(`printf '#!/bin/sh\n#SBATCH --partition=queue-1\n#SBATCH --output=e2e-script.out\necho ran in $PWD as $(id -un)\n' >e2e.sh && sbatch --wait e2e.sh`))
	r = succeed(t, c.user("cat e2e-script.out"))
	must(t, r.out == "ran in /home/ubuntu as ubuntu\n", "the script wrote: %s", r)
}

//go:build e2e

package e2e

import (
	"testing"
	"time"
)

// oldVersion is the oldest release that can be built.
const oldVersion = "24.11"

// oldCluster is a cluster of the old release beside the shared one.
var oldCluster struct {
	*cluster
	broken bool
}

// old returns a cluster of the old release: a login node and two nodes in
// queue-1.
func old(t *testing.T) *cluster {
	t.Helper()
	if oldCluster.broken {
		t.Fatal("making the old cluster failed in a test before")
	}
	if oldCluster.cluster != nil {
		return oldCluster.cluster
	}
	oldCluster.broken = true
	began := time.Now()
	if r := runFor(5*time.Minute, siteEnv, binary(), "image", "build", oldVersion); r.code != 0 {
		fail(t, "%s", r)
	}
	t.Logf("the image of %s took %.1f s", oldVersion, time.Since(began).Seconds())
	image := findImage(t, "aws-pcs-sample_ami-*-slurm-"+oldVersion+"-*")
	c := createClusterOf(t, "old", oldVersion, sharedIdle)
	c.add(t, group{name: "front", min: 1, max: 1, image: image})
	c.add(t, group{name: "node", max: 2, queue: "queue-1", image: image})
	c.waitLogin(t)
	oldCluster.cluster, oldCluster.broken = c, false
	return c
}

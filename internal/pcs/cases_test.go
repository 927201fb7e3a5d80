package pcs_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/store"
)

// TestN8_NamesSayWhatIsAllowed: at the first call, for each kind of name.
func TestN8_NamesSayWhatIsAllowed(t *testing.T) {
	f := newFixture(t)
	cluster, group, _ := f.demo()
	for _, name := range []string{"a_b", "my_cluster", "_ab", "a.b", "a b", "ab_"} {
		for _, tt := range []struct {
			op, field string
			in        object
		}{
			{"CreateCluster", "clusterName", f.clusterIn(name)},
			{"CreateComputeNodeGroup", "computeNodeGroupName", f.groupIn(cluster, name)},
			{"CreateQueue", "queueName", queueIn(cluster, name, group)},
		} {
			_, err := f.try(tt.op, tt.in)
			if err == nil || err.Code != validation || !slices.Equal(fields(err), []string{tt.field}) || !strings.Contains(err.Message, "use a letter, then letters, digits and hyphens") {
				t.Errorf("%s %s: %v", tt.op, name, err)
			}
		}
	}
}

// TestI1_IdleTimesAreBounded: no value reaches slurm.conf that Slurm refuses.
func TestI1_IdleTimesAreBounded(t *testing.T) {
	f := newFixture(t)
	cluster, group, _ := f.demo()
	const path = "slurmConfiguration.scaleDownIdleTimeInSeconds"
	for _, tt := range []struct {
		op   string
		in   object
		idle any
		ok   bool
	}{
		{"UpdateCluster", object{"clusterIdentifier": cluster}, 1, true},
		{"UpdateCluster", object{"clusterIdentifier": cluster}, 10_000_000, true},
		{"UpdateCluster", object{"clusterIdentifier": cluster}, nil, true},
		{"UpdateCluster", object{"clusterIdentifier": cluster}, 0, false},
		{"UpdateCluster", object{"clusterIdentifier": cluster}, -1, false},
		{"UpdateCluster", object{"clusterIdentifier": cluster}, -60, false},
		{"UpdateCluster", object{"clusterIdentifier": cluster}, 1 << 31, false},
		{"UpdateComputeNodeGroup", object{"clusterIdentifier": cluster, "computeNodeGroupIdentifier": group}, 1, true},
		{"UpdateComputeNodeGroup", object{"clusterIdentifier": cluster, "computeNodeGroupIdentifier": group}, 10_000_000, true},
		{"UpdateComputeNodeGroup", object{"clusterIdentifier": cluster, "computeNodeGroupIdentifier": group}, -1, true},
		{"UpdateComputeNodeGroup", object{"clusterIdentifier": cluster, "computeNodeGroupIdentifier": group}, 0, false},
		{"UpdateComputeNodeGroup", object{"clusterIdentifier": cluster, "computeNodeGroupIdentifier": group}, -2, false},
		{"UpdateComputeNodeGroup", object{"clusterIdentifier": cluster, "computeNodeGroupIdentifier": group}, 1 << 31, false},
	} {
		put(tt.in, path, tt.idle)
		_, err := f.try(tt.op, tt.in)
		if (err == nil) != tt.ok || (err != nil && !told(err, path)) {
			t.Errorf("%s with %v: %v", tt.op, tt.idle, err)
		}
		f.settle()
	}
}

// TestI4_IdleTimeOfAGroup: it is shown, kept by an update without one, cleared
// by -1, no reason to replace an instance, and refused before Slurm 25.11.
func TestI4_IdleTimeOfAGroup(t *testing.T) {
	f := newFixture(t)
	cluster, group, _ := f.demo()
	const path = "slurmConfiguration.scaleDownIdleTimeInSeconds"
	in := object{"clusterIdentifier": cluster, "computeNodeGroupIdentifier": group}
	stored := func() (g fleet.Group) {
		f.View(t, func(tx *store.Tx) (err error) {
			g, err = fleet.Groups.Get(tx, group)
			return err
		})
		return g
	}
	revision := stored().Revision
	for _, step := range []struct {
		set, want any
	}{{nil, nil}, {20, 20.0}, {nil, 20.0}, {60, 60.0}, {-1, nil}, {-1, nil}} {
		change := clone(in)
		if step.set != nil {
			put(change, path, step.set)
		}
		f.must("UpdateComputeNodeGroup", change)
		f.settle()
		if got := at(f.must("GetComputeNodeGroup", in), "computeNodeGroup."+path); got != step.want {
			t.Errorf("after %v it is %v, want %v", step.set, got, step.want)
		}
	}
	if now := stored().Revision; now != revision {
		t.Errorf("the revision went from %d to %d: instances are replaced", revision, now)
	}

	old := f.clusterIn("old")
	put(old, "scheduler.version", "24.11")
	oldCluster := at(f.must("CreateCluster", old), "cluster.id").(string)
	f.settle()
	create := f.groupIn(oldCluster, "group")
	put(create, "amiId", oldImage)
	put(create, path, 20)
	for _, tt := range []struct {
		idle any
		ok   bool
	}{{20, false}, {-1, true}} {
		put(create, path, tt.idle)
		_, err := f.try("CreateComputeNodeGroup", create)
		if (err == nil) != tt.ok || (err != nil && (!told(err, path) || !strings.Contains(err.Error(), "only supported for Slurm version 25.11 or later"))) {
			t.Errorf("on 24.11, with %v: %v", tt.idle, err)
		}
	}
}

// TestP14_AccountingIsShown: that a cluster has none can be seen.
func TestP14_AccountingIsShown(t *testing.T) {
	f := newFixture(t)
	cluster, _, _ := f.demo()
	got := f.must("GetCluster", object{"clusterIdentifier": cluster})
	if at(got, "cluster.slurmConfiguration.accounting.mode") != "NONE" || at(got, "cluster.slurmConfiguration.slurmRest.mode") != "NONE" {
		t.Errorf("got %v", got)
	}
}

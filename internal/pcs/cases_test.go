package pcs_test

import (
	"slices"
	"strings"
	"testing"
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

// TestP14_AccountingIsShown: that a cluster has none can be seen.
func TestP14_AccountingIsShown(t *testing.T) {
	f := newFixture(t)
	cluster, _, _ := f.demo()
	got := f.must("GetCluster", object{"clusterIdentifier": cluster})
	if at(got, "cluster.slurmConfiguration.accounting.mode") != "NONE" || at(got, "cluster.slurmConfiguration.slurmRest.mode") != "NONE" {
		t.Errorf("got %v", got)
	}
}

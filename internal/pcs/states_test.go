package pcs_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/openpcs/openpcs/internal/awsapi/awsapitest"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/fleet/fleettest"
	"github.com/openpcs/openpcs/internal/store"
)

// record holds each commit of the service to the declared state machines.
// What the tests write themselves they write as the control loop.
func (f *fixture) record() {
	fail := func(format string, args ...any) { f.t.Errorf(format, args...) } // a fuzz test's t changes
	f.states = fleettest.New(fail, func() *store.Store { return f.Store }, func(point string) fleet.By {
		if strings.HasPrefix(point, "commit/pcs.") {
			return fleet.ByAPI
		}
		return ""
	})
	f.Store.SetSeam(f.states.Seam)
	if t, ok := f.t.(*testing.T); ok {
		t.Cleanup(f.states.Flush)
	}
}

// Each call that changes a status is made in each state: it takes the steps
// that are declared, every one of them, and is refused where none is.
func TestEveryStepIsTaken(t *testing.T) {
	statuses := []fleet.Status{fleet.Creating, fleet.Active, fleet.Updating, fleet.CreateFailed, fleet.UpdateFailed, fleet.Deleting}
	f := newFixture(t)
	cluster, group, queue := f.demo()
	c := f.instance(fleet.Instance{
		ID: "i-1", Region: awsapitest.Region, State: fleet.Pending, ClusterID: cluster, GroupID: group, NodeName: "group-1", LaunchedAt: f.Clock.Now(),
	})
	if _, err := f.tryWith(c, "RegisterComputeNodeGroupInstance", object{"clusterIdentifier": cluster, "bootstrapId": "boot-1"}); err != nil {
		t.Fatal(err)
	}
	lone := at(f.must("CreateComputeNodeGroup", f.groupIn(cluster, "lone")), "computeNodeGroup.id").(string)
	f.settle()
	empty := at(f.must("CreateCluster", f.clusterIn("empty")), "cluster.id").(string)
	f.settle()
	for _, tt := range []struct {
		of, id, op string
		in         object
		to         fleet.Status
	}{
		{"cluster", cluster, "UpdateCluster", object{"clusterIdentifier": cluster}, fleet.Updating},
		{"cluster", empty, "DeleteCluster", object{"clusterIdentifier": empty}, fleet.Deleting},
		{"group", group, "UpdateComputeNodeGroup", object{"clusterIdentifier": cluster, "computeNodeGroupIdentifier": group}, fleet.Updating},
		{"group", lone, "DeleteComputeNodeGroup", object{"clusterIdentifier": cluster, "computeNodeGroupIdentifier": lone}, fleet.Deleting},
		{"queue", queue, "UpdateQueue", object{"clusterIdentifier": cluster, "queueIdentifier": queue}, fleet.Updating},
		{"queue", queue, "DeleteQueue", object{"clusterIdentifier": cluster, "queueIdentifier": queue}, fleet.Deleting},
	} {
		for _, from := range statuses {
			f.setStatus(tt.id, from)
			f.tick()
			before := f.status(tt.of, tt.id)
			_, err := f.try(tt.op, tt.in)
			after := f.status(tt.of, tt.id)
			declared := fleet.MachineOf(tt.of).Allows(fleet.Step{From: string(from), To: string(tt.to), By: fleet.ByAPI})
			switch {
			case declared && (err != nil || after != tt.to):
				t.Errorf("%s of the %s %s: %v, and it is %s", tt.op, from, tt.of, err, after)
			case !declared && after != before:
				t.Errorf("%s of the %s %s makes it %s", tt.op, from, tt.of, after)
			case !declared && err == nil && from != tt.to: // a deletion may be asked for twice
				t.Errorf("%s of the %s %s is not refused", tt.op, from, tt.of)
			}
		}
		f.setStatus(tt.id, fleet.Active)
	}
	for _, step := range fleettest.Missing(f.states.Seen(), fleet.ByAPI) {
		t.Errorf("declared and never seen: %+v", step)
	}
}

func (f *fixture) status(of, id string) (st fleet.Status) {
	f.t.Helper()
	f.View(f.t, func(tx *store.Tx) error {
		switch of {
		case "cluster":
			c, err := fleet.Clusters.Get(tx, id)
			st = c.Status
			return err
		case "group":
			g, err := fleet.Groups.Get(tx, id)
			st = g.Status
			return err
		}
		q, err := fleet.Queues.Get(tx, id)
		st = q.Status
		return err
	})
	return st
}

// A revision that was refused has instances too: the next update gets
// another.
func TestRevisionsAreNotGivenTwice(t *testing.T) {
	f := newFixture(t)
	cluster, id, _ := f.demo()
	other := f.template("other", url.Values{"LaunchTemplateData.ImageId": {image}, "LaunchTemplateData.SecurityGroupId.1": {f.sg}, "LaunchTemplateData.KeyName": {"k"}})
	seen := map[int]bool{}
	revise := func(template string) fleet.Group {
		t.Helper()
		f.must("UpdateComputeNodeGroup", object{
			"clusterIdentifier": cluster, "computeNodeGroupIdentifier": id, "customLaunchTemplate": object{"id": template, "version": "1"},
		})
		var g fleet.Group
		f.View(t, func(tx *store.Tx) (err error) {
			g, err = fleet.Groups.Get(tx, id)
			return err
		})
		return g
	}
	for _, template := range []string{other, other} {
		g := revise(template)
		if seen[g.Revision] {
			t.Errorf("the revision %d is given twice", g.Revision)
		}
		seen[g.Revision] = true
		f.Update(t, func(tx *store.Tx) error { // slurmctld refuses it
			g.Good = &fleet.GroupGood{Revision: 0, Launch: fleet.Launch{ImageID: image}, SubnetIDs: g.SubnetIDs, Max: g.Max, TemplateID: f.tmpl, TemplateVersion: "1", ProfileARN: g.ProfileARN, PurchaseOption: g.PurchaseOption}
			g.Restore()
			g.Status = fleet.UpdateFailed
			return fleet.Groups.Put(tx, g)
		})
	}
}

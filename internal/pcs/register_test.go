package pcs_test

import (
	"encoding/base64"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/openpcs/openpcs/internal/awsapi"
	"github.com/openpcs/openpcs/internal/awsapi/awsapitest"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/iam"
	"github.com/openpcs/openpcs/internal/secretsmanager"
	"github.com/openpcs/openpcs/internal/store"
)

// instance puts an instance of a group and returns a client with its role.
func (f *fixture) instance(i fleet.Instance) *awsapi.Client {
	f.t.Helper()
	var caller awsapi.Caller
	f.Update(f.t, func(tx *store.Tx) error {
		p, err := iam.FindProfile(tx, f.profile)
		if err != nil {
			return err
		}
		caller = p.Caller(awsapitest.Account, i.ID)
		return fleet.Instances.Put(tx, i)
	})
	key, err := f.Keys.IssueSession(f.t.Context(), caller, keyLife)
	if err != nil {
		f.t.Fatal(err)
	}
	return f.ClientOf(key)
}

func TestRegister(t *testing.T) {
	f := newFixture(t)
	cluster, group, _ := f.demo()
	launched := f.Clock.Now()
	f.tick()
	c := f.instance(fleet.Instance{
		ID: "i-1", Region: awsapitest.Region, State: fleet.Pending, ClusterID: cluster, GroupID: group, NodeName: "group-1", LaunchedAt: launched,
	})
	woken := f.wakes(cluster)
	for _, ref := range []string{cluster, "cluster", cluster} { // a reboot registers again
		out, err := f.tryWith(c, "RegisterComputeNodeGroupInstance", object{"clusterIdentifier": ref, "bootstrapId": "boot-1"})
		if err != nil {
			t.Fatal(err)
		}
		var want string
		f.View(t, func(tx *store.Tx) error {
			cl, err := fleet.Clusters.Get(tx, cluster)
			if err != nil {
				return err
			}
			want, err = secretsmanager.Value(tx, cl.KeyARN, cl.KeyVersion)
			return err
		})
		key, err2 := base64.StdEncoding.DecodeString(out["sharedSecret"].(string))
		if err2 != nil || len(key) < 16 || out["sharedSecret"] != want {
			t.Errorf("sharedSecret: %d bytes, %v; it must be the cluster's key", len(key), err2)
		}
		endpoints, _ := out["endpoints"].([]any)
		if out["nodeID"] != "group-1" || out["clusterName"] != "cluster" || out["computeNodeGroupId"] != group || out["computeNodeGroupName"] != "group" ||
			out["schedulerVersion"] != "26.05" || len(endpoints) != 1 || at(endpoints[0], "type") != "SLURMCTLD" || at(endpoints[0], "port") != "6817" || at(endpoints[0], "privateIpAddress") == "" {
			t.Errorf("answer = %v", out)
		}
	}
	if n := f.wakes(cluster) - woken; n != 3 {
		t.Errorf("woken %d times, want 3", n)
	}
	f.View(t, func(tx *store.Tx) error {
		i, err := fleet.Instances.Get(tx, "i-1")
		if err != nil {
			return err
		}
		if i.State != fleet.Running || i.RegisteredAt.IsZero() || i.BootstrapID != "boot-1" {
			t.Errorf("instance = %+v", i)
		}
		events, err := tx.Events(cluster, "node/group-1", 100)
		if len(events) != 1 || events[0].Kind != "registered" {
			t.Errorf("events = %+v, want one registration", events)
		}
		return err
	})
}

// An instance that registers while an update is under way has the scripts of
// what it was launched with: Slurm may refuse the update, and the instance stays.
func TestRegisterDuringAnUpdate(t *testing.T) {
	f := newFixture(t)
	cluster, group, _ := f.demo()
	named := func(name string) *fleet.LifecycleActions {
		return &fleet.LifecycleActions{Stages: fleet.LifecycleStages{NodeReady: []fleet.LifecycleScript{{Name: name, Source: fleet.ScriptSource{Location: "s3://bucket/a"}}}}}
	}
	f.Update(t, func(tx *store.Tx) error {
		g, err := fleet.Groups.Get(tx, group)
		if err != nil {
			return err
		}
		g.Lifecycle = named("former")
		g.Keep()
		g.Lifecycle = named("latter")
		g.Revise()
		g.Status = fleet.Updating
		return fleet.Groups.Put(tx, g)
	})
	for revision, want := range []string{"former", "latter"} {
		id := fmt.Sprintf("i-%d", revision)
		c := f.instance(fleet.Instance{
			ID: id, Region: awsapitest.Region, State: fleet.Pending, ClusterID: cluster, GroupID: group, NodeName: fmt.Sprintf("group-%d", revision+1), GroupRevision: revision, LaunchedAt: f.Clock.Now(),
		})
		out, err := f.tryWith(c, "RegisterComputeNodeGroupInstance", object{"clusterIdentifier": cluster, "bootstrapId": "boot-1"})
		if err != nil {
			t.Fatal(err)
		}
		stages, _ := at(out["nodeLifecycleActions"], "stages").(object)
		ready, _ := stages["nodeReady"].([]any)
		if len(ready) != 1 || at(ready[0], "name") != want {
			t.Errorf("revision %d has %v, want %s", revision, out["nodeLifecycleActions"], want)
		}
	}
}

// Whatever is wrong with the instance or the cluster, the answer is the same,
// as on PCS: a caller learns nothing of other clusters.
func TestRegisterIsDenied(t *testing.T) {
	f := newFixture(t)
	cluster, group, _ := f.demo()
	elsewhere := at(f.must("CreateCluster", f.clusterIn("elsewhere")), "cluster.id").(string)
	f.settle()
	good := fleet.Instance{ID: "i-1", Region: awsapitest.Region, State: fleet.Running, ClusterID: cluster, GroupID: group, NodeName: "group-1"}
	with := func(edit func(*fleet.Instance)) *awsapi.Client {
		i := good
		edit(&i)
		return f.instance(i)
	}
	nobody, err := f.Keys.IssueSession(t.Context(), awsapi.Caller{Account: awsapitest.Account, ARN: "arn:x", InstanceID: "i-none", Allow: []string{"*"}}, keyLife)
	if err != nil {
		t.Fatal(err)
	}
	poor, err := f.Keys.IssueSession(t.Context(), awsapi.Caller{Account: awsapitest.Account, ARN: "arn:x", InstanceID: "i-1", Allow: []string{"pcs:Get*"}}, keyLife)
	if err != nil {
		t.Fatal(err)
	}
	abroad := with(func(*fleet.Instance) {})
	abroad.Region = "us-east-1"
	for _, tt := range []struct {
		name   string
		client *awsapi.Client
		ref    string
	}{
		{"a_person", f.Client(), cluster},
		{"an_instance_that_does_not_exist", f.ClientOf(nobody), cluster},
		{"a_role_without_permission", f.ClientOf(poor), cluster},
		{"another_cluster", with(func(*fleet.Instance) {}), elsewhere},
		{"an_unknown_cluster", with(func(*fleet.Instance) {}), "pcs_0000000000"},
		{"another_region", abroad, cluster},
		{"a_terminated_instance", with(func(i *fleet.Instance) { i.ID, i.State, i.TerminatedAt = "i-2", fleet.Terminated, time.Now() }), cluster},
		{"an_instance_on_its_way_out", with(func(i *fleet.Instance) { i.ID, i.State = "i-3", fleet.ShuttingDown }), cluster},
		{"an_instance_of_no_cluster", with(func(i *fleet.Instance) { i.ID, i.ClusterID, i.GroupID, i.NodeName = "i-4", "", "", "" }), cluster},
		{"an_instance_whose_group_is_gone", with(func(i *fleet.Instance) { i.ID, i.GroupID = "i-5", "pcs_0000000000" }), cluster},
	} {
		out, err := f.tryWith(tt.client, "RegisterComputeNodeGroupInstance", object{"clusterIdentifier": tt.ref, "bootstrapId": "b"})
		if err == nil || err.Code != "AccessDeniedException" {
			t.Errorf("%s: %v, %v; want AccessDeniedException", tt.name, out, err)
		}
	}
	f.View(t, func(tx *store.Tx) error {
		all, err := fleet.Instances.All(tx)
		if slices.ContainsFunc(all, func(i fleet.Instance) bool { return !i.RegisteredAt.IsZero() }) {
			t.Error("a denied registration was recorded")
		}
		return err
	})
	// Where no error is, it works: the table above has no other reason.
	if _, err := f.tryWith(f.instance(good), "RegisterComputeNodeGroupInstance", object{"clusterIdentifier": cluster, "bootstrapId": "b"}); err != nil {
		t.Errorf("the right one: %v", err)
	}
}

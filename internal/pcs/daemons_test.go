package pcs_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/openpcs/openpcs/internal/condition"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/store"
)

// TestAccountingAndREST: both are switched by create and by update, and what
// answers show is what is asked for; endpoints come when it is in force.
func TestAccountingAndREST(t *testing.T) {
	f := newFixture(t)
	cluster, _, queue := f.demo()
	ref := object{"clusterIdentifier": cluster}
	update := func(conf object) object {
		t.Helper()
		out := f.must("UpdateCluster", object{"clusterIdentifier": cluster, "slurmConfiguration": conf})
		f.settle()
		return out
	}
	refused := func(field, says string, conf object) {
		t.Helper()
		_, err := f.try("UpdateCluster", object{"clusterIdentifier": cluster, "slurmConfiguration": conf})
		if err == nil || !slices.Contains(fields(err), field) || !strings.Contains(err.Message, says) {
			t.Errorf("%v: %v, want %s to be refused with %q", conf, err, field, says)
		}
	}
	endpoints := func() (types []string) {
		t.Helper()
		for _, e := range at(f.must("GetCluster", ref), "cluster.endpoints").([]any) {
			types = append(types, at(e, "type").(string)+":"+at(e, "port").(string))
		}
		return types
	}
	const slurmdbd = "slurmConfiguration.slurmdbdCustomSettings"
	purge := []any{object{"parameterName": "purgejobafter", "parameterValue": "12months"}}
	enforce := []any{object{"parameterName": "AccountingStorageEnforce", "parameterValue": "associations"}}

	refused(slurmdbd, "use accounting.mode STANDARD", object{"slurmdbdCustomSettings": purge})
	refused("slurmConfiguration.slurmCustomSettings[0]", "needs accounting", object{"slurmCustomSettings": enforce})
	update(object{
		"accounting": object{"mode": "STANDARD", "defaultPurgeTimeInDays": 30}, "slurmRest": object{"mode": "STANDARD"},
		"slurmdbdCustomSettings": purge, "slurmCustomSettings": enforce,
	})
	got := f.must("GetCluster", ref)
	for path, want := range map[string]any{
		"accounting.mode": "STANDARD", "accounting.defaultPurgeTimeInDays": 30.0, "slurmRest.mode": "STANDARD",
	} {
		if v := at(got, "cluster.slurmConfiguration."+path); v != want {
			t.Errorf("%s = %v, want %v", path, v, want)
		}
	}
	if list, _ := at(got, "cluster.slurmConfiguration.slurmdbdCustomSettings").([]any); len(list) != 1 || at(list[0], "parameterName") != "PurgeJobAfter" {
		t.Errorf("settings of slurmdbd: %v", list)
	}
	if key, jwt := at(got, "cluster.slurmConfiguration.authKey.secretArn"), at(got, "cluster.slurmConfiguration.jwtAuth.jwtKey.secretArn"); jwt == nil || jwt != key {
		t.Errorf("tokens are signed with %v, want the cluster's key %v", jwt, key)
	}
	if got := strings.Join(endpoints(), " "); got != "SLURMCTLD:6817 SLURMDBD:6819 SLURMRESTD:6820" {
		t.Errorf("endpoints: %s", got)
	}

	// An update that names neither leaves both.
	update(object{"scaleDownIdleTimeInSeconds": 60})
	if v := at(f.must("GetCluster", ref), "cluster.slurmConfiguration.accounting.defaultPurgeTimeInDays"); v != 30.0 {
		t.Errorf("after an update of something else: %v", v)
	}
	// Nothing that stays may need the accounting that goes.
	off := object{"accounting": object{"mode": "NONE"}}
	refused("slurmConfiguration.accounting.mode", "AccountingStorageEnforce", off)
	f.must("UpdateQueue", object{"clusterIdentifier": cluster, "queueIdentifier": queue, "slurmConfiguration": object{
		"slurmCustomSettings": []any{object{"parameterName": "AllowAccounts", "parameterValue": "physics"}},
	}})
	f.settle()
	off["slurmCustomSettings"] = []any{}
	refused("slurmConfiguration.accounting.mode", "AllowAccounts", off)
	f.must("UpdateQueue", object{"clusterIdentifier": cluster, "queueIdentifier": queue, "slurmConfiguration": object{"slurmCustomSettings": []any{}}})
	f.settle()
	off["slurmRest"] = object{"mode": "NONE"}
	update(off)
	got = f.must("GetCluster", ref)
	if at(got, "cluster.slurmConfiguration.accounting.mode") != "NONE" || at(got, "cluster.slurmConfiguration.jwtAuth") != nil {
		t.Errorf("switched off: %v", got)
	}
	if got := strings.Join(endpoints(), " "); got != "SLURMCTLD:6817" {
		t.Errorf("endpoints: %s", got)
	}
}

// The REST API came with 25.05, accounting with 24.11.
func TestRESTByRelease(t *testing.T) {
	f := newFixture(t)
	in := f.clusterIn("old")
	put(in, "scheduler.version", "24.11")
	put(in, "slurmConfiguration", object{"accounting": object{"mode": "STANDARD"}, "slurmRest": object{"mode": "STANDARD"}})
	_, err := f.try("CreateCluster", in)
	if err == nil || !slices.Equal(fields(err), []string{"slurmConfiguration.slurmRest.mode"}) || !strings.Contains(err.Message, "25.05 or later") {
		t.Errorf("the REST API with 24.11: %v", err)
	}
	put(in, "slurmConfiguration", object{"accounting": object{"mode": "STANDARD"}})
	if v := at(f.must("CreateCluster", in), "cluster.slurmConfiguration.accounting.defaultPurgeTimeInDays"); v != -1.0 {
		t.Errorf("records are purged after %v days, want -1", v)
	}
}

// A daemon that does not start is told while the cluster is still being created;
// that its controller does not answer yet is nothing to tell then.
func TestTroubleOfANewCluster(t *testing.T) {
	f := newFixture(t)
	id := at(f.must("CreateCluster", f.clusterIn("new")), "cluster.id").(string)
	for code, told := range map[condition.Code]bool{condition.AccountingFailed: true, condition.ControllerUnreachable: false} {
		f.Update(t, func(tx *store.Tx) error {
			c, err := fleet.Clusters.Get(tx, id)
			if err != nil {
				return err
			}
			c.Trouble = &fleet.ErrorInfo{Code: code, Message: "no"}
			return fleet.Clusters.Put(tx, c)
		})
		out := f.must("GetCluster", object{"clusterIdentifier": id})
		if info, _ := at(out, "cluster.errorInfo").([]any); (len(info) == 1) != told {
			t.Errorf("%s: errorInfo is %v", code, info)
		}
	}
}

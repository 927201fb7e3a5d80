package scaling_test

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/openpcs/openpcs/internal/condition"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/scaling"
	"github.com/openpcs/openpcs/internal/store"
)

var noon = time.Date(2026, 11, 30, 12, 0, 0, 250_000_000, time.UTC)

func instance() fleet.Instance {
	return fleet.Instance{ID: "i-1", ClusterID: "pcs_c", GroupID: "pcs_g", NodeName: "g-1", Type: "t3.micro", SubnetID: "subnet-1", State: fleet.ShuttingDown, StartedAt: noon}
}

// Every condition that a node or group can have and that ends an instance has
// its own row; what ends none is listed here.
func TestEveryEndingHasItsRow(t *testing.T) {
	endsNone := []condition.Code{
		condition.BreakerOpen,           // keeps instances from being launched
		condition.LifecycleActionFailed, // leaves the node in service
	}
	for _, c := range condition.All() {
		s := scaling.Ending(c.Code, true)
		known := s == scaling.Ending(c.Code, false) // what is not in the table depends on it
		switch {
		case c.Of == "cluster" || slices.Contains(endsNone, c.Code):
		case !known:
			t.Errorf("%s: what is the end of an instance called that ends for it? Give it a row in endings, or name it here as one that ends none", c.Code)
		case s.Status != scaling.Terminated && s.Status != scaling.LaunchFailed:
			t.Errorf("%s is no end: %v", c.Code, s)
		case scaling.Steps()[s] == "":
			t.Errorf("%s leads to %v, which PCS does not have", c.Code, s)
		}
	}
}

func TestStepsAreThoseOfPCS(t *testing.T) {
	have := map[string][]string{}
	for s, text := range scaling.Steps() {
		have[string(s.Status)] = append(have[string(s.Status)], string(s.Reason))
		if !strings.HasSuffix(text, ".") || strings.Count(text, ".") != 1 {
			t.Errorf("%v: %q is not one sentence", s, text)
		}
	}
	want := map[string]string{ // user guide, scaling logs
		"LAUNCHED":            "MAINTAIN_MIN_CAPACITY SCHEDULER_REQUESTED",
		"REGISTERED":          "REGISTER_SUCCESS",
		"ACTIVE":              "BOOTSTRAP_SUCCESS",
		"PENDING_REPLACEMENT": "EC2_HEALTH_CHECK_FAILED EC2_SCHEDULED_EVENT NODE_GROUP_UPDATE",
		"LAUNCH_FAILED":       "INSUFFICIENT_CAPACITY LAUNCH_ERROR LIMIT_EXCEEDED",
		"TERMINATED":          "BOOTSTRAP_FAILED EXTERNALLY_TERMINATED NODE_GROUP_DELETION REPLACEMENT_REQUESTED SCHEDULER_REQUESTED UNHEALTHY_NODE",
		"TERMINATE_FAILED":    "EC2_ERROR EC2_OPERATION_NOT_PERMITTED",
	}
	for status, reasons := range want {
		slices.Sort(have[status])
		if got := strings.Join(have[status], " "); got != reasons {
			t.Errorf("%s has %s, want %s", status, got, reasons)
		}
		delete(have, status)
	}
	if len(have) > 0 {
		t.Errorf("PCS does not have %v", have)
	}
}

// The members are PCS's, in its spelling, and what is not known is left out.
func TestRecordAsJSON(t *testing.T) {
	g := fleet.Group{Name: "g", Min: 0, Max: 2}
	failed := instance()
	failed.StartedAt, failed.FailureCode, failed.EndCode, failed.Failure, failed.StateCode = time.Time{}, condition.InsufficientCapacity, condition.InsufficientCapacity, "no room", "Server.InsufficientInstanceCapacity"
	end, ok := scaling.OfEnd(failed, noon)
	if !ok {
		t.Fatal("a launch that failed has no record")
	}
	const top = `{"resource_id":"pcs_c","resource_type":"PCS_CLUSTER","event_timestamp":1796040000250,"compute_node_group_id":"pcs_g","scheduler_node_id":"g-1",`
	for _, tt := range []struct {
		record scaling.Record
		want   string
	}{
		{scaling.OfLaunch(instance(), g, noon), top + `"status_code":"LAUNCHED","reason_code":"SCHEDULER_REQUESTED","description":"Instance launched to satisfy a scheduler scale-up request.","details":{"instance_id":"i-1","instance_type":"t3.micro","subnet_id":"subnet-1"}}`},
		{end, top + `"status_code":"LAUNCH_FAILED","reason_code":"INSUFFICIENT_CAPACITY","description":"Node did not get an instance because there was not enough capacity available.","details":{"ec2_error_code":"InsufficientInstanceCapacity","instance_type":"t3.micro","subnet_id":"subnet-1","openpcs":{"condition":"INSUFFICIENT_CAPACITY","message":"no room"}}}`},
	} {
		got, err := json.Marshal(tt.record)
		if err != nil || string(got) != tt.want {
			t.Errorf("record = %s, %v\nwant     %s", got, err, tt.want)
		}
	}
}

func TestLaunchesForTheMinimum(t *testing.T) {
	g := fleet.Group{Name: "g", Min: 1, Max: 2}
	for node, want := range map[string]scaling.Reason{"g-1": scaling.MaintainMinCapacity, "g-2": scaling.SchedulerRequested, "other-1": scaling.SchedulerRequested} {
		i := instance()
		i.NodeName = node
		if got := scaling.OfLaunch(i, g, noon).ReasonCode; got != want {
			t.Errorf("%s was launched for %s, want %s", node, got, want)
		}
	}
}

func TestEnds(t *testing.T) {
	up := func(code condition.Code) fleet.Instance {
		i := instance()
		i.ReadyAt = noon
		i.End(code, "User.Initiated", "openpcs: so it is")
		return i
	}
	leaving := instance()
	leaving.Leaving = condition.GroupUpdated
	leaving.End(condition.Idle, "User.Initiated", "openpcs: Slurm suspended its node")
	none := up(condition.InsufficientCapacity)
	none.StateCode = "Server.InsufficientInstanceCapacity"
	for _, tt := range []struct {
		name string
		i    fleet.Instance
		want scaling.Step
		code condition.Code
	}{
		{"idle", up(condition.Idle), scaling.Step{Status: scaling.Terminated, Reason: scaling.SchedulerRequested}, condition.Idle},
		{"replaced_when_idle", leaving, scaling.Step{Status: scaling.Terminated, Reason: scaling.ReplacementRequested}, condition.GroupUpdated},
		{"group_deleted", up(condition.GroupDeleted), scaling.Step{Status: scaling.Terminated, Reason: scaling.NodeGroupDeletion}, condition.GroupDeleted},
		{"by_a_user", up(condition.TerminatedByUser), scaling.Step{Status: scaling.Terminated, Reason: scaling.ExternallyTerminated}, condition.TerminatedByUser},
		{"never_there", none, scaling.Step{Status: scaling.LaunchFailed, Reason: scaling.InsufficientCapacity}, condition.InsufficientCapacity},
		{"of_a_newer_openpcs", up("SOMETHING_NEW"), scaling.Step{Status: scaling.Terminated, Reason: scaling.UnhealthyNode}, "SOMETHING_NEW"},
	} {
		r, ok := scaling.OfEnd(tt.i, noon)
		if !ok || r.StatusCode != tt.want.Status || r.ReasonCode != tt.want.Reason || r.Details.InstanceID != "i-1" || r.Details.Openpcs.Condition != tt.code || strings.HasPrefix(r.Details.Openpcs.Message, "openpcs") {
			t.Errorf("%s: %+v %+v, %v", tt.name, r, r.Details.Openpcs, ok)
		}
	}
	// One that nobody ever launched leaves no trace.
	never := instance()
	never.StartedAt = time.Time{}
	never.End(condition.Idle, "User.Initiated", "")
	if r, ok := scaling.OfEnd(never, noon); ok {
		t.Errorf("an instance that was never launched ends with %+v", r)
	}
}

func TestQuotasAndErrors(t *testing.T) {
	for code, want := range map[string]scaling.Reason{
		"InsufficientInstanceCapacity": scaling.InsufficientCapacity, "InsufficientFreeAddressesInSubnet": scaling.InsufficientCapacity,
		"VcpuLimitExceeded": scaling.LimitExceeded, "InstanceLimitExceeded": scaling.LimitExceeded,
		"InternalError": scaling.LaunchError, "InvalidAMIID.NotFound": scaling.LaunchError,
	} {
		if got := scaling.OfLack(instance(), code, condition.LaunchFailed, "x", noon); got.ReasonCode != want || got.Details.InstanceID != "" || got.Details.EC2ErrorCode != code {
			t.Errorf("%s: %+v, want %s", code, got, want)
		}
	}
}

// The log is read by cursor, each cluster's by itself, and outlives restarts.
func TestCursorAndRetention(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	s, err := store.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	add := func(cluster string, n int) {
		t.Helper()
		err := s.Update(t.Context(), func(tx *store.Tx) error {
			i := instance()
			i.ClusterID = cluster
			return scaling.Append(tx, scaling.OfRegistration(i, noon.Add(time.Duration(n)*time.Second)))
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	read := func(cluster string, after int64, limit int) (seqs []int64, seconds []int) {
		t.Helper()
		err := s.View(t.Context(), func(tx *store.Tx) error {
			all, err := scaling.Records(tx, cluster, after, limit)
			for _, e := range all {
				seqs = append(seqs, e.Seq)
				seconds = append(seconds, int(time.UnixMilli(e.EventTimestamp).Sub(noon)/time.Second))
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return seqs, seconds
	}
	for n := range 10 {
		add("pcs_c", n)
		add("pcs_other", 100+n)
	}
	seqs, first := read("pcs_c", 0, 4)
	_, rest := read("pcs_c", seqs[3], 100)
	if !slices.Equal(append(first, rest...), []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}) {
		t.Errorf("read in two goes: %v, %v", first, rest)
	}
	// What failed leaves nothing.
	_ = s.Update(t.Context(), func(tx *store.Tx) error {
		if err := scaling.Append(tx, scaling.OfRegistration(instance(), noon)); err != nil {
			t.Error(err)
		}
		return context("no")
	})
	if _, got := read("pcs_c", 0, 100); len(got) != 10 {
		t.Errorf("a transaction that failed left %d records, want 10", len(got))
	}
	err = s.Update(t.Context(), func(tx *store.Tx) error { return tx.ForgetRecords(noon.Add(2*time.Second), 5) })
	if err != nil {
		t.Fatal(err)
	}
	if _, got := read("pcs_c", 0, 100); !slices.Equal(got, []int{5, 6, 7, 8, 9}) {
		t.Errorf("kept are %v, want the newest five", got)
	}
	if _, got := read("pcs_other", 0, 100); !slices.Equal(got, []int{105, 106, 107, 108, 109}) {
		t.Errorf("of the other cluster %v are kept", got)
	}
	if err := s.Update(t.Context(), func(tx *store.Tx) error { return tx.ForgetRecords(noon.Add(time.Hour), 5) }); err != nil {
		t.Fatal(err)
	}
	before, _ := read("pcs_c", 0, 100)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if s, err = store.Open(path); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	add("pcs_c", 11)
	after, _ := read("pcs_c", seqs[3], 100)
	if len(before) != 0 || len(after) != 1 || after[0] <= 20 {
		t.Errorf("after all were forgotten the next is %v: a cursor may pass it by", after)
	}
	err = s.View(t.Context(), func(tx *store.Tx) error {
		ids, err := scaling.Clusters(tx)
		if !slices.Equal(ids, []string{"pcs_c"}) {
			t.Errorf("clusters with records: %v", ids)
		}
		if err := scaling.Append(tx, scaling.Record{}); err == nil {
			t.Error("a view writes")
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

type context string

func (c context) Error() string { return string(c) }

// B5: PCS records the success alone. The details have what was let pass.
func TestB5_ActivationTellsOfFailedScripts(t *testing.T) {
	i := instance()
	i.State = fleet.Running
	if r := scaling.OfActivation(i, noon); r.Details.Openpcs != nil {
		t.Errorf("without scripts: %+v", r)
	}
	i.Scripts = []fleet.ScriptOutcome{
		{Stage: fleet.NodeBootstrapped, Name: "good", OnError: fleet.OnErrorTerminate},
		{Stage: fleet.NodeBootstrapped, Name: "bad", OnError: fleet.OnErrorStop, ExitCode: 1, Failure: "f"},
	}
	r := scaling.OfActivation(i, noon)
	if r.StatusCode != scaling.Active || r.ReasonCode != scaling.BootstrapSuccess || r.Details.Openpcs == nil ||
		r.Details.Openpcs.Condition != condition.LifecycleActionFailed || !strings.Contains(r.Details.Openpcs.Message, `"bad"`) {
		t.Errorf("%+v %+v", r, r.Details.Openpcs)
	}
}

package slurm_test

import (
	"slices"
	"testing"
	"time"

	"github.com/openpcs/openpcs/internal/slurm"
)

func TestParseJob(t *testing.T) {
	// As 26.05 and 24.11 print it, without what is not read.
	const doc = `{"jobs":[{"job_id":15,"name":"wrap","user_name":"ubuntu","partition":"both","job_state":["PENDING","REQUEUED"],
		"state_reason":"BeginTime","nodes":"","restart_cnt":2,"submit_time":{"set":true,"infinite":false,"number":1764508548},
		"eligible_time":{"set":true,"infinite":false,"number":1764508553},"start_time":{"set":true,"infinite":false,"number":0},
		"end_time":{"set":false,"infinite":true,"number":0},"priority":{"set":true,"number":1}}],"errors":[]}`
	j, ok, err := slurm.ParseJob([]byte(doc))
	if err != nil || !ok {
		t.Fatalf("%v, %v", ok, err)
	}
	if j.ID != 15 || j.Name != "wrap" || j.User != "ubuntu" || j.Partition != "both" || j.Reason != "BeginTime" || j.Restarts != 2 ||
		!slices.Equal(j.State, []string{"PENDING", "REQUEUED"}) || !j.Is("PENDING") || j.Is("RUNNING") || j.Ended() {
		t.Errorf("job = %+v", j)
	}
	if want := time.Unix(1764508548, 0).UTC(); !j.Submitted.Equal(want) || !j.Started.IsZero() || !j.EndedAt.IsZero() || j.Eligible.Sub(j.Submitted) != 5*time.Second {
		t.Errorf("times = %v, %v, %v, %v", j.Submitted, j.Eligible, j.Started, j.EndedAt)
	}
	if _, ok, err := slurm.ParseJob([]byte(`{"jobs":[],"errors":[{"error":"Invalid job id specified"}]}`)); ok || err != nil {
		t.Errorf("of a job that is not there: %v, %v", ok, err)
	}
	if _, _, err := slurm.ParseJob([]byte(`slurm_load_jobs error`)); err == nil {
		t.Error("no JSON is taken")
	}
	for state, want := range map[string]bool{"COMPLETED": true, "NODE_FAIL": true, "RUNNING": false, "COMPLETING": false} {
		if (slurm.Job{State: []string{state}}).Ended() != want {
			t.Errorf("Ended of %s is not %v", state, want)
		}
	}
}

func TestJobOutcome(t *testing.T) {
	for exit, want := range map[string]string{
		`{"status":["SUCCESS"],"return_code":{"set":true,"number":0},"signal":{"id":{"set":false,"number":0},"name":""}}`:    "",
		`{"status":["ERROR"],"return_code":{"set":true,"number":7},"signal":{"id":{"set":false,"number":0},"name":""}}`:      "exit code 7",
		`{"status":["SIGNALED"],"return_code":{"set":false,"number":0},"signal":{"id":{"set":true,"number":9},"name":"9"}}`:  "signal 9",
		`{"status":["SIGNALED"],"return_code":{"set":false,"number":0},"signal":{"id":{"set":true,"number":53},"name":"5"}}`: "its input or output file could not be opened (signal 53)",
	} {
		j, ok, err := slurm.ParseJob([]byte(`{"jobs":[{"job_id":2,"job_state":["FAILED"],"exit_code":` + exit + `}]}`))
		if err != nil || !ok || j.Outcome() != want {
			t.Errorf("of %s: %q, %v, %v, want %q", exit, j.Outcome(), ok, err, want)
		}
	}
}

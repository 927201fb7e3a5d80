package slurm

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"
)

// Job is what slurmctld says of one job. Times that Slurm does not know are
// zero.
type Job struct {
	ID        int
	Name      string
	User      string
	Partition string
	State     []string // base state first, then flags: PENDING
	Reason    string   // why it waits: Resources
	Nodes     string   // host list of those it has
	Restarts  int
	Submitted time.Time
	Eligible  time.Time
	Started   time.Time // or when it is expected to
	EndedAt   time.Time // likewise
}

// Is reports whether the job has the state or flag.
func (j Job) Is(state string) bool { return slices.Contains(j.State, state) }

// Ended reports whether the job will do nothing more.
func (j Job) Ended() bool {
	return slices.ContainsFunc(j.State, func(s string) bool {
		return slices.Contains([]string{"COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY"}, s)
	})
}

// unixTime is a time in Slurm's JSON: a number that may be unset.
type unixTime struct {
	Set    bool  `json:"set"`
	Number int64 `json:"number"`
}

func (u unixTime) time() time.Time {
	if !u.Set || u.Number <= 0 {
		return time.Time{}
	}
	return time.Unix(u.Number, 0).UTC()
}

// ParseJob reads the answer of `scontrol --json show job ID`; ok is false
// when there is no such job.
func ParseJob(doc []byte) (j Job, ok bool, err error) {
	var answer struct {
		Jobs []struct {
			ID        int      `json:"job_id"`
			Name      string   `json:"name"`
			User      string   `json:"user_name"`
			Partition string   `json:"partition"`
			State     []string `json:"job_state"`
			Reason    string   `json:"state_reason"`
			Nodes     string   `json:"nodes"`
			Restarts  int      `json:"restart_cnt"`
			Submit    unixTime `json:"submit_time"`
			Eligible  unixTime `json:"eligible_time"`
			Start     unixTime `json:"start_time"`
			End       unixTime `json:"end_time"`
		} `json:"jobs"`
	}
	if err := json.Unmarshal(doc, &answer); err != nil {
		return j, false, fmt.Errorf("parse scontrol show job: %w", err)
	}
	if len(answer.Jobs) == 0 {
		return j, false, nil
	}
	a := answer.Jobs[0]
	return Job{
		ID: a.ID, Name: a.Name, User: a.User, Partition: a.Partition, State: a.State, Reason: a.Reason, Nodes: a.Nodes, Restarts: a.Restarts,
		Submitted: a.Submit.time(), Eligible: a.Eligible.time(), Started: a.Start.time(), EndedAt: a.End.time(),
	}, true, nil
}

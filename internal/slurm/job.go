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
	ExitCode  int       // of its script, where it has ended by itself
	Signal    int       // that ended it; 0: none
}

// ioSignal is the signal that Slurm tells of a job whose input or output files
// could not be opened. No signal was sent: it is what slurmd's error 4021 gives
// when it is read as the status of a process.
const ioSignal = 53

// Outcome says how the job ended besides its state; empty: there is nothing to
// say.
func (j Job) Outcome() string {
	switch {
	case j.Signal == ioSignal:
		return "its input or output file could not be opened (signal 53)"
	case j.Signal != 0:
		return fmt.Sprintf("signal %d", j.Signal)
	case j.ExitCode != 0:
		return fmt.Sprintf("exit code %d", j.ExitCode)
	}
	return ""
}

// Is reports whether the job has the state or flag.
func (j Job) Is(state string) bool { return slices.Contains(j.State, state) }

// Ended reports whether the job will do nothing more.
func (j Job) Ended() bool {
	return slices.ContainsFunc(j.State, func(s string) bool {
		return slices.Contains([]string{"COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY"}, s)
	})
}

// optional is a number in Slurm's JSON, which may be unset.
type optional struct {
	Set    bool  `json:"set"`
	Number int64 `json:"number"`
}

func (n optional) time() time.Time {
	if !n.Set || n.Number <= 0 {
		return time.Time{}
	}
	return time.Unix(n.Number, 0).UTC()
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
			Submit    optional `json:"submit_time"`
			Eligible  optional `json:"eligible_time"`
			Start     optional `json:"start_time"`
			End       optional `json:"end_time"`
			Exit      struct {
				Code   optional `json:"return_code"`
				Signal struct {
					ID optional `json:"id"`
				} `json:"signal"`
			} `json:"exit_code"`
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
		ExitCode: int(a.Exit.Code.Number), Signal: int(a.Exit.Signal.ID.Number),
	}, true, nil
}

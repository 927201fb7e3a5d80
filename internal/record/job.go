package record

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"time"
)

// Job is a job completion record, as it is delivered in "fields".
type Job struct {
	JobID                 string       `json:"job_id"`
	User                  string       `json:"user"`
	UserID                string       `json:"user_id"`
	Group                 string       `json:"group"`
	GroupID               string       `json:"group_id"`
	Name                  string       `json:"name"`
	JobState              string       `json:"job_state"`
	Partition             string       `json:"partition"`
	TimeLimit             string       `json:"time_limit"`
	StartTime             string       `json:"start_time"`
	EndTime               string       `json:"end_time"`
	NodeList              string       `json:"node_list"`
	NodeCnt               string       `json:"node_cnt"`
	ProcCnt               string       `json:"proc_cnt"`
	WorkDir               string       `json:"work_dir"`
	ReservationName       string       `json:"reservation_name"`
	TRES                  TRES         `json:"tres"`
	Account               string       `json:"account"`
	QOS                   string       `json:"qos"`
	WCKey                 string       `json:"wc_key"`
	Cluster               string       `json:"cluster"`
	SubmitTime            string       `json:"submit_time"`
	EligibleTime          string       `json:"eligible_time"`
	ArrayJobID            string       `json:"array_job_id"`
	ArrayTaskID           string       `json:"array_task_id"`
	HetJobID              string       `json:"het_job_id"`
	HetJobOffset          string       `json:"het_job_offset"`
	DerivedExitCodeStatus string       `json:"derived_exit_code_status"`
	DerivedExitCodeSignal string       `json:"derived_exit_code_signal"`
	ExitCodeStatus        string       `json:"exit_code_status"`
	ExitCodeSignal        string       `json:"exit_code_signal"`
	NodeDetails           []NodeDetail `json:"node_details"`
	// Ended is when the job ended, or when it was submitted if Slurm has no end.
	Ended time.Time `json:"-"`
}

// TRES is what a job asked for, by resource: a number, for memory a Memory.
type TRES map[string]any

// Memory is the memory of TRES.
type Memory struct {
	Val  string `json:"val"`
	Unit string `json:"unit"` // as Slurm writes it: K, M, G or T
}

// NodeDetail says on which instance a node of a job was.
type NodeDetail struct {
	Name         string `json:"name"`
	InstanceID   string `json:"instance_id"`
	InstanceType string `json:"instance_type"`
}

var (
	jobBegin, jobLast = []byte("JobId="), []byte(" DerivedExitCode=")
	// What stands in Name and WorkDir is the user's, spaces and line ends too:
	// what is before and behind them is matched from both ends.
	jobLine = regexp.MustCompile(`(?s)^JobId=(\d+) UserId=(.*?)\((\d+)\) GroupId=(.*?)\((\d+)\) Name=(.*) JobState=(\S+) Partition=(.*?) TimeLimit=(\S+) ` +
		`StartTime=(\S+) EndTime=(\S+) NodeList=(\S+) NodeCnt=(\d+) ProcCnt=(\d+) WorkDir=(.*) ReservationName=(\S*) Tres=(\S*) Account=(\S*) QOS=(\S*) ` +
		`WcKey=(\S*) Cluster=(\S*) SubmitTime=(\S+) EligibleTime=(\S+)(?: ArrayJobId=(\d+) ArrayTaskId=(\d+))?(?: HetJobId=(\d+) HetJobOffset=(\d+))? ` +
		`DerivedExitCode=(\d+):(\d+) ExitCode=(\d+):(\d+) ?\n?$`)
	jobEnd = regexp.MustCompile(` DerivedExitCode=\d+:\d+ ExitCode=\d+:\d+ ?\n$`)
)

// NextJob returns the first record of what jobcomp/filetxt writes, and its
// length; 0 if it is not known yet where it ends. A name with line ends makes a
// record of several lines.
func NextJob(buf []byte, p Progress) (text []byte, n int) {
	end := 0
	for {
		i := bytes.IndexByte(buf[end:], '\n')
		if i < 0 {
			if p == Ended || len(buf) > MaxText {
				return buf, len(buf)
			}
			return nil, 0
		}
		line := buf[end : end+i+1]
		end += i + 1
		next := buf[end:]
		whole := bytes.Contains(line, jobLast) && jobEnd.Match(line)
		switch {
		case end > MaxText:
			return buf[:end], end
		case !whole && len(next) > 0: // it goes on
		case !whole && p == Growing:
			return nil, 0
		case bytes.HasPrefix(next, jobBegin) || (len(next) == 0 && p != Growing):
			return buf[:end], end
		case len(next) < len(jobBegin) && p != Ended && bytes.HasPrefix(jobBegin, next):
			return nil, 0
		}
	}
}

// ParseJob reads a record.
func ParseJob(text []byte) (j Job, err error) {
	m := jobLine.FindStringSubmatch(string(Readable(text)))
	if m == nil {
		return j, fmt.Errorf("read a completed job: %.200q is not what jobcomp/filetxt writes", text)
	}
	j = Job{
		JobID: m[1], User: m[2], UserID: m[3], Group: m[4], GroupID: m[5], Name: m[6], JobState: m[7], Partition: m[8], TimeLimit: m[9],
		StartTime: m[10], EndTime: m[11], NodeList: m[12], NodeCnt: m[13], ProcCnt: m[14], WorkDir: m[15], ReservationName: m[16],
		TRES: parseTRES(m[17]), Account: m[18], QOS: m[19], WCKey: m[20], Cluster: m[21], SubmitTime: m[22], EligibleTime: m[23],
		ArrayJobID: m[24], ArrayTaskID: m[25], HetJobID: m[26], HetJobOffset: m[27],
		DerivedExitCodeStatus: m[28], DerivedExitCodeSignal: m[29], ExitCodeStatus: m[30], ExitCodeSignal: m[31],
		NodeDetails: []NodeDetail{},
	}
	for _, at := range []string{j.EndTime, j.SubmitTime} {
		// Without a zone: in the controller's, which is UTC.
		if j.Ended, err = time.Parse("2006-01-02T15:04:05", at); err == nil {
			return j, nil
		}
	}
	return j, nil
}

// Fields is the record's JSON.
func (j Job) Fields() ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(j); err != nil {
		return nil, fmt.Errorf("encode the completed job %s: %w", j.JobID, err)
	}
	return bytes.TrimRight(b.Bytes(), "\n"), nil
}

// parseTRES reads cpu=1,mem=972M,node=1,billing=1.
func parseTRES(text string) TRES {
	out := TRES{}
	for part := range strings.SplitSeq(text, ",") {
		name, value, ok := strings.Cut(part, "=")
		if !ok {
			continue
		}
		out[name] = value
		if name == "mem" {
			digits := strings.TrimRight(value, "KMGTPE")
			out[name] = Memory{digits, value[len(digits):]}
		}
	}
	return out
}

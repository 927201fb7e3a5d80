package record_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/openpcs/openpcs/internal/record"
)

// cut cuts a whole log.
func cut(log []byte) (out []record.Record) {
	var c record.Cutter
	for len(log) > 0 {
		r, n := c.Next(log, record.Ended)
		if n == 0 {
			panic(fmt.Sprintf("%q is no record", log))
		}
		out = append(out, r)
		log = log[n:]
	}
	return out
}

func at(text string) int64 {
	t, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		panic(err)
	}
	return t.UnixMilli()
}

// L11: an audit record is one by its form, wherever the words are.
func TestL11_ByPositionNotByContent(t *testing.T) {
	const stamp = "[2026-06-01T04:17:05.415+00:00] "
	for _, c := range []struct {
		text, level string
		audit       bool
	}{
		{stamp + "AUDIT_RPCS: [slurmctld-primary:6817(fd:18)] msg_type=REQUEST_SUBMIT_BATCH_JOB uid=1000 client=[10.0.1.63:46356] protocol=11264\n", "info", true},
		{stamp + "AUDIT_RPCS: [[fd00::2]:6817(fd:18)] msg_type=REQUEST_PING uid=0 client=[[fd00::1]:46356] protocol=11264\n", "info", true},
		{stamp + "AUDIT_RPCS: msg_type=DBD_CLUSTER_TRES uid=64030 client=[10.0.1.63:46356] protocol=11264\n", "info", true},
		{stamp + "AUDIT_RPCS is on\n", "info", false},
		{stamp + "AUDIT_RPCS: what is this\n", "info", false},
		{stamp + "AUDIT_RPCS: [what is this\n", "info", false},
		{stamp + "AUDIT_RPCS: what is [this] msg_type=y uid=0\n", "info", false},
		{stamp + "sched: Allocate JobId=3 Name=AUDIT_RPCS: [x] msg_type=y uid=0\n", "info", false},
		{stamp + "error: AUDIT_RPCS: [x] msg_type=y uid=0 client=[z] protocol=1\n", "error", false},
		{"AUDIT_RPCS: [x] msg_type=y uid=0 client=[z] protocol=1\n", "info", true}, // no time at all
		{stamp + "error: sched: Attempt to modify priority for JobId=4\n", "error", false},
		{stamp + "sched: Backfill scheduler plugin loaded\n", "info", false},
		{stamp + "warning: Even though we are collecting\n", "warning", false},
		{stamp + "debug:  slurm_recv_timeout\n", "debug", false},
		{stamp + "debug2: x\n", "debug2", false},
		{stamp + "fatal: x\n", "fatal", false},
		{stamp + "internal error: x\n", "error", false},
		{stamp + "errors were seen\n", "info", false},
		{stamp + "\n", "info", false},
		{stamp + "slurmctld version 26.05.5 started on cluster demo(1255)\n  AUDIT_RPCS: [x] msg_type=y\n", "info", false},
	} {
		got := cut([]byte(c.text))
		if len(got) != 1 || string(got[0].Text) != c.text || got[0].Level != c.level || got[0].Audit != c.audit {
			t.Errorf("%q: got %+v", c.text, got)
		}
	}
}

func TestTimes(t *testing.T) {
	for text, want := range map[string]int64{
		"[2026-06-01T02:33:38.152+00:00] error: x\n": at("2026-06-01T02:33:38.152Z"),
		"[2026-06-01T02:33:38.152] error: x\n":       at("2026-06-01T02:33:38.152Z"),
		"[2026-06-01T02:33:38] error: x\n":           at("2026-06-01T02:33:38Z"),
		"[2026-06-01T02:33:38Z] error: x\n":          at("2026-06-01T02:33:38Z"),
		"[2026-06-01T02:33:38+09:00] error: x\n":     at("2026-06-01T02:33:38+09:00"),
		"[2026-06-01T02:33:38.152-03:30] error: x\n": at("2026-06-01T02:33:38.152-03:30"),
		"[2024-02-29T23:59:59.999+00:00] error: x\n": at("2024-02-29T23:59:59.999Z"),
		"slurmrestd: error: x\n":                     0,
		"[not a time] error: x\n":                    0,
	} {
		r := cut([]byte(text))
		if len(r) != 1 || r[0].Time != want {
			t.Errorf("%q: got %+v, want the time %d", text, r, want)
		}
		if want != 0 && r[0].Level != "error" {
			t.Errorf("%q has level %s", text, r[0].Level)
		}
	}
}

func TestLinesWithoutATimeGoOn(t *testing.T) {
	log := "one\ntwo\n[2026-06-01T02:33:38.152+00:00] a\n  b\n\nc\n[2026-06-01T02:33:39.152+00:00] d\nlast"
	var got []string
	for _, r := range cut([]byte(log)) {
		got = append(got, string(r.Text))
	}
	want := []string{"one\n", "two\n", "[2026-06-01T02:33:38.152+00:00] a\n  b\n\nc\n", "[2026-06-01T02:33:39.152+00:00] d\nlast"}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestALongMessageIsBounded(t *testing.T) {
	log := "[2026-06-01T02:33:38.152+00:00] error: " + strings.Repeat("é", record.MaxText) + "\n[2026-06-01T02:33:39.152+00:00] d\n"
	got := cut([]byte(log))
	text := ""
	for k, r := range got {
		text += string(r.Text)
		if len(r.Text) > record.MaxText || !strings.Contains(string(r.Text), "é") && k < len(got)-1 || string(record.Readable(r.Text)) != string(r.Text) {
			t.Errorf("record %d has %d bytes", k, len(r.Text))
		}
		if want := map[bool]string{true: "info", false: "error"}[k == len(got)-1]; r.Level != want {
			t.Errorf("record %d has level %s, want %s", k, r.Level, want)
		}
	}
	if text != log || len(got) != 4 {
		t.Errorf("%d records of %d bytes, want 4 of %d", len(got), len(text), len(log))
	}
}

func TestReadable(t *testing.T) {
	if got := string(record.Readable([]byte("a\xff\xfeé\n"))); got != `a\xff\xfeé`+"\n" {
		t.Errorf("got %q", got)
	}
}

// However a log comes in pieces, it is the same records.
func TestPiecesDoNotMatter(t *testing.T) {
	line := rapid.SampledFrom([]string{
		"[2026-06-01T02:33:38.152+00:00] error: x\n", "[2026-06-01T02:33:38] y\n", "  more\n", "\n", "[", "[2026", "x", "\xff\n",
		"[2026-06-01T04:17:05.415+00:00] AUDIT_RPCS: [c] msg_type=REQUEST_PING uid=0 client=[1.2.3.4:5] protocol=1\n",
		"[2026-06-01T04:17:05.415+00:00] AUDIT_RPCS: msg_type=DBD_FINI uid=0 client=[1.2.3.4:5] protocol=1\n",
		"[2026-06-01T04:17:05.415+00:00] " + strings.Repeat("long", record.MaxText/4) + "\n",
		"JobId=1 UserId=", "[20]\n",
	})
	rapid.Check(t, func(t *rapid.T) {
		log := []byte(strings.Join(rapid.SliceOfN(line, 1, 20).Draw(t, "log"), ""))
		want := cut(log)
		var c record.Cutter
		var got []record.Record
		from, to := 0, 0
		for from < len(log) {
			if to < len(log) {
				to = min(to+rapid.SampledFrom([]int{1, 2, 20, 50, 100_000}).Draw(t, "piece"), len(log))
			}
			p := record.Growing
			if to == len(log) {
				p = record.Ended
			}
			if r, n := c.Next(log[from:to], p); n > 0 {
				got = append(got, r)
				from += n
			}
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("got %d records, want %d", len(got), len(want))
		}
	})
}

func FuzzLine(f *testing.F) {
	for _, s := range []string{
		"[2026-06-01T04:17:05.415+00:00] AUDIT_RPCS: [c] msg_type=REQUEST_PING uid=0 client=[1.2.3.4:5] protocol=1\n",
		"[2026-06-01T04:17:05.415+00:00] AUDIT_RPCS: [", "[2026-06-01T04:17:05.", "[2026-06-01T04:17:05+", "JobId=1 UserId=a(1) ", "\n\n", "\xff\n[",
		"[2026-11-30T19:36:37.020+00:00] _slurm_rpc_update_job: complete JobId=4 uid=1000 usec=147\n",
		jobLines[0],
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, log []byte) {
		var c record.Cutter
		var all []byte
		for rest := log; len(rest) > 0; {
			r, n := c.Next(rest, record.Ended)
			if n <= 0 || n != len(r.Text) || n > record.MaxText || r.Level == "" {
				t.Fatalf("%q gives %+v, %d", rest, r, n)
			}
			if a, ok := record.ParseAudit(r.Text); ok && (a.Type == "" || !r.Audit && c.Inside == nil && bytes.Count(r.Text, []byte("\n")) < 2) {
				t.Fatalf("%q is an audit record, and is not", r.Text)
			}
			record.ParseMention(r.Text)
			all = append(all, r.Text...)
			rest = rest[n:]
		}
		if !bytes.Equal(all, log) {
			t.Fatalf("%q became %q", log, all)
		}
		for rest := log; len(rest) > 0; {
			text, n := record.NextJob(rest, record.Ended)
			if n <= 0 {
				t.Fatalf("%q gives no job", rest)
			}
			_, _ = record.ParseJob(text)
			rest = rest[n:]
		}
	})
}

func TestParseAudit(t *testing.T) {
	got, ok := record.ParseAudit([]byte("[2026-06-01T04:17:05.415+00:00] AUDIT_RPCS: [[fd00::2]:6817(fd:18)] msg_type=REQUEST_PING uid=4294967294 client=[[fd00::1]:46356] protocol=11264\n"))
	if want := (record.Audit{Type: "REQUEST_PING", UID: 4294967294, Client: "[fd00::1]:46356", Protocol: 11264}); !ok || got != want {
		t.Errorf("got %+v, %v, want %+v", got, ok, want)
	}
}

// The lines are those of slurmctld 26.05.5.
func TestParseMention(t *testing.T) {
	for text, want := range map[string]record.Mention{
		"_slurm_rpc_submit_batch_job: JobId=2 SLUID=s4WXM8PZB3BM00 InitPrio=1 usec=269":   {Call: "_slurm_rpc_submit_batch_job", Job: "2", UID: -1},
		"sched: _slurm_rpc_allocate_resources JobId=1 NodeList=node-group-1-1 usec=365":   {Call: "_slurm_rpc_allocate_resources", Job: "1", UID: -1},
		"_slurm_rpc_update_job: JobId=4 uid=1000: Access/permission denied":               {Call: "_slurm_rpc_update_job", Job: "4", UID: 1000},
		"_slurm_rpc_update_job: complete JobId=3_1(5) uid=1000 usec=147":                  {Call: "_slurm_rpc_update_job", Job: "3_1", UID: 1000},
		"_slurm_rpc_kill_job: REQUEST_KILL_JOB JobId=4 uid 1000":                          {Call: "_slurm_rpc_kill_job", Job: "4", UID: 1000},
		"_slurm_rpc_requeue: Requeue of JobId=7 returned an error: Job/step is completed": {Call: "_slurm_rpc_requeue", Job: "7", UID: -1},
		"_job_complete: JobId=3_1(5) done":                                                {},
		"_slurm_rpc_reconfigure_controller: completed usec=1":                             {},
	} {
		got, ok := record.ParseMention([]byte("[2026-11-30T19:36:36.980+00:00] " + text + "\n"))
		if ok != (want.Job != "") || (ok && got != want) {
			t.Errorf("%q: got %+v, %v, want %+v", text, got, ok, want)
		}
	}
}

// jobLines are what slurmctld 26.05.5 and 24.11.5 wrote.
var jobLines = []string{
	"JobId=2 UserId=ubuntu(1000) GroupId=ubuntu(1000) Name=AUDIT_RPCS: x y JobState=FAILED Partition=queue-1 TimeLimit=UNLIMITED StartTime=2026-11-30T19:36:36 EndTime=2026-11-30T19:36:37 NodeList=node-group-1-1 NodeCnt=1 ProcCnt=1 WorkDir=/root ReservationName= Tres=cpu=1,mem=972M,node=1,billing=1 Account= QOS= WcKey= Cluster=unknown SubmitTime=2026-11-30T19:36:36 EligibleTime=2026-11-30T19:36:36 DerivedExitCode=0:0 ExitCode=0:53 \n",
	"JobId=5 UserId=ubuntu(1000) GroupId=ubuntu(1000) Name=wrap JobState=FAILED Partition=queue-1 TimeLimit=UNLIMITED StartTime=2026-11-30T19:36:37 EndTime=2026-11-30T19:36:37 NodeList=node-group-1-2 NodeCnt=1 ProcCnt=1 WorkDir=/root ReservationName= Tres=cpu=1,mem=972M,node=1,billing=1 Account= QOS= WcKey= Cluster=unknown SubmitTime=2026-11-30T19:36:36 EligibleTime=2026-11-30T19:36:36 ArrayJobId=3 ArrayTaskId=1 DerivedExitCode=0:0 ExitCode=0:53 \n",
	"JobId=4 UserId=ubuntu(1000) GroupId=ubuntu(1000) Name=wrap JobState=CANCELLED Partition=queue-1 TimeLimit=UNLIMITED StartTime=2026-11-30T19:36:37 EndTime=2026-11-30T19:36:37 NodeList=(null) NodeCnt=0 ProcCnt=0 WorkDir=/root ReservationName= Tres=cpu=1,mem=972M,node=1,billing=1 Account= QOS= WcKey= Cluster=unknown SubmitTime=2026-11-30T19:36:36 EligibleTime=2026-11-30T20:36:36 DerivedExitCode=0:0 ExitCode=0:0 \n",
}

func TestJobs(t *testing.T) {
	log := []byte(strings.Join(jobLines, ""))
	var jobs []record.Job
	for len(log) > 0 {
		text, n := record.NextJob(log, record.Quiet)
		if n == 0 {
			t.Fatalf("no record in %q", log)
		}
		j, err := record.ParseJob(text)
		if err != nil {
			t.Fatal(err)
		}
		jobs = append(jobs, j)
		log = log[n:]
	}
	if len(jobs) != 3 || jobs[0].Name != "AUDIT_RPCS: x y" || jobs[1].ArrayJobID != "3" || jobs[1].ArrayTaskID != "1" || jobs[2].NodeList != "(null)" {
		t.Fatalf("got %+v", jobs)
	}
	fields, err := jobs[0].Fields()
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"job_id":"2","user":"ubuntu","user_id":"1000","group":"ubuntu","group_id":"1000","name":"AUDIT_RPCS: x y","job_state":"FAILED","partition":"queue-1",` +
		`"time_limit":"UNLIMITED","start_time":"2026-11-30T19:36:36","end_time":"2026-11-30T19:36:37","node_list":"node-group-1-1","node_cnt":"1","proc_cnt":"1",` +
		`"work_dir":"/root","reservation_name":"","tres":{"billing":"1","cpu":"1","mem":{"val":"972","unit":"M"},"node":"1"},"account":"","qos":"","wc_key":"",` +
		`"cluster":"unknown","submit_time":"2026-11-30T19:36:36","eligible_time":"2026-11-30T19:36:36","array_job_id":"","array_task_id":"","het_job_id":"","het_job_offset":"",` +
		`"derived_exit_code_status":"0","derived_exit_code_signal":"0","exit_code_status":"0","exit_code_signal":"53","node_details":[]}`
	if string(fields) != want || !json.Valid(fields) {
		t.Errorf("got  %s\nwant %s", fields, want)
	}
	if !jobs[0].Ended.Equal(time.Date(2026, 11, 30, 19, 36, 37, 0, time.UTC)) {
		t.Errorf("it ended at %v", jobs[0].Ended)
	}
}

// A user names a job so that it looks like another one's record.
func TestANameIsNoRecord(t *testing.T) {
	fake := strings.Replace(jobLines[2], "UserId=ubuntu(1000)", "UserId=root(0)", 1)
	for _, name := range []string{"x\n" + fake, "x\ny", "x JobState=COMPLETED Partition=p", strings.TrimSuffix(fake, "\n")} {
		log := []byte(strings.Replace(jobLines[0], "AUDIT_RPCS: x y", name, 1) + jobLines[1])
		text, n := record.NextJob(log, record.Quiet)
		j, err := record.ParseJob(text)
		if strings.Contains(name, "\nJobId=") {
			// What ends as a record does ends one: the owner at least is right.
			if err == nil && (j.User != "ubuntu" || j.JobID != "2") {
				t.Errorf("%q: got %+v", name, j)
			}
			continue
		}
		if err != nil || n == 0 || j.JobID != "2" || j.User != "ubuntu" || j.Name != name || j.JobState != "FAILED" {
			t.Errorf("%q: got %+v, %v", name, j, err)
		}
	}
}

func BenchmarkCut(b *testing.B) {
	line := []byte("[2026-06-01T04:17:05.415+00:00] AUDIT_RPCS: [slurmctld-primary:6817(fd:18)] msg_type=REQUEST_SUBMIT_BATCH_JOB uid=1000 client=[10.0.1.63:46356] protocol=11264\n")
	log := bytes.Repeat(line, 1000)
	b.SetBytes(int64(len(line)))
	b.ReportAllocs()
	var c record.Cutter
	rest := log
	for b.Loop() {
		_, n := c.Next(rest, record.Quiet)
		if rest = rest[n:]; len(rest) == 0 {
			rest = log
		}
	}
}

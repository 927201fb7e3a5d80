package audit_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/openpcs/openpcs/internal/audit"
	"github.com/openpcs/openpcs/internal/journal"
)

var began = time.Date(2026, 11, 30, 20, 0, 31, 0, time.UTC)

// log writes lines, each with how many ms after the beginning it was, to a
// journal.
func log(t *testing.T, logType string, lines ...string) *journal.Journal {
	t.Helper()
	j, err := journal.Open(t.TempDir(), journal.Key{Cluster: "pcs_1", LogType: logType, LogName: "slurmctld"}, journal.Options{}, journal.Anchor{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = j.Close() })
	var entries []journal.Entry
	for _, l := range lines {
		var after int
		if _, err := fmt.Sscanf(l[:4], "%d", &after); err != nil {
			t.Fatal(err)
		}
		at := began.Add(time.Duration(after) * time.Millisecond)
		entries = append(entries, journal.Entry{Time: at.UnixMilli(), Level: "info", Text: []byte("[" + at.Format("2006-01-02T15:04:05.000-07:00") + "] " + l[5:] + "\n")})
	}
	if err := j.Append(nil, entries); err != nil {
		t.Fatal(err)
	}
	return j
}

func asked(kind string, uid int) string {
	return fmt.Sprintf("AUDIT_RPCS: [c(fd:1)] msg_type=%s uid=%d client=[10.0.1.63:46356] protocol=11264", kind, uid)
}

var (
	audits = []string{
		"0000 " + asked("REQUEST_PING", 0),
		"0010 " + asked("REQUEST_SUBMIT_BATCH_JOB", 1000),
		"0020 " + asked("REQUEST_SUBMIT_BATCH_JOB", 1001), // is refused, and never gets a job
		"0900 " + asked("REQUEST_SUBMIT_BATCH_JOB", 1000),
		"0901 " + asked("REQUEST_KILL_JOB", 1001),
		"0902 " + asked("REQUEST_KILL_JOB", 1000),
		"0950 " + asked("REQUEST_JOB_INFO", 1000),
	}
	plain = []string{
		"0012 _slurm_rpc_submit_batch_job: JobId=2 SLUID=s4WXM8PZB3BM00 InitPrio=1 usec=269",
		"0905 _slurm_rpc_submit_batch_job: JobId=3 SLUID=s4WXM8PZB3BX00 InitPrio=1 usec=4100",
		"0906 _slurm_rpc_kill_job: REQUEST_KILL_JOB JobId=2 uid 1000",
		"0907 _slurm_rpc_kill_job: REQUEST_KILL_JOB JobId=3 uid 1001",
	}
)

func jobs(res audit.Result) (out []string) {
	for _, r := range res.Rows {
		out = append(out, fmt.Sprintf("%s/%d/%s", r.Type, r.UID, r.Job))
	}
	return out
}

func check(t *testing.T, got audit.Result, want ...string) {
	t.Helper()
	if fmt.Sprint(jobs(got)) != fmt.Sprint(want) {
		t.Errorf("got  %v\nwant %v", jobs(got), want)
	}
}

func TestRequestsHaveTheirJobs(t *testing.T) {
	split := []*journal.Journal{log(t, "PCS_SCHEDULER_LOGS", plain...), log(t, "PCS_SCHEDULER_AUDIT_LOGS", audits...)}
	// Before 25.11 all is in one log.
	both := []*journal.Journal{log(t, "PCS_SCHEDULER_LOGS", append(append([]string{}, audits...), plain...)...)}
	for _, logs := range [][]*journal.Journal{split, both} {
		res, err := audit.Search(t.Context(), logs, audit.Query{})
		if err != nil {
			t.Fatal(err)
		}
		check(t, res, "REQUEST_PING/0/", "REQUEST_SUBMIT_BATCH_JOB/1000/2", "REQUEST_SUBMIT_BATCH_JOB/1001/", "REQUEST_SUBMIT_BATCH_JOB/1000/3",
			"REQUEST_KILL_JOB/1001/3", "REQUEST_KILL_JOB/1000/2", "REQUEST_JOB_INFO/1000/")
		if res.Audit.Records != 7 || res.All.Records != 11 || res.Audit.Bytes >= res.All.Bytes || res.Found != 7 {
			t.Errorf("got %+v of %+v, found %d", res.Audit, res.All, res.Found)
		}
	}
}

func TestQueries(t *testing.T) {
	logs := []*journal.Journal{log(t, "PCS_SCHEDULER_LOGS", plain...), log(t, "PCS_SCHEDULER_AUDIT_LOGS", audits...)}
	for name, c := range map[string]struct {
		q    audit.Query
		want []string
	}{
		"by user and type": {audit.Query{UIDs: []uint32{1000}, Types: []string{"request_submit_batch_job"}}, []string{"REQUEST_SUBMIT_BATCH_JOB/1000/2", "REQUEST_SUBMIT_BATCH_JOB/1000/3"}},
		"since":            {audit.Query{Since: began.Add(901 * time.Millisecond), UIDs: []uint32{1000}}, []string{"REQUEST_KILL_JOB/1000/2", "REQUEST_JOB_INFO/1000/"}},
		// The job is told later than the time asked for.
		"until":            {audit.Query{Until: began.Add(11 * time.Millisecond)}, []string{"REQUEST_PING/0/", "REQUEST_SUBMIT_BATCH_JOB/1000/2"}},
		"by address":       {audit.Query{Client: "10.0.1.64"}, nil},
		"by its port too":  {audit.Query{Client: "10.0.1.63:46356", Types: []string{"REQUEST_PING"}}, []string{"REQUEST_PING/0/"}},
		"the newest":       {audit.Query{Limit: 1}, []string{"REQUEST_JOB_INFO/1000/"}},
		"of a user, never": {audit.Query{UIDs: []uint32{7}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			res, err := audit.Search(t.Context(), logs, c.q)
			if err != nil {
				t.Fatal(err)
			}
			check(t, res, c.want...)
		})
	}
}

// TestWhatCannotBeReadIsCounted: an answer that lacks records, as somebody changed
// one, says so. The rest of a changed record's block cannot be read either.
func TestWhatCannotBeReadIsCounted(t *testing.T) {
	for _, tt := range []struct {
		changed string
		want    int64
	}{{"", 0}, {"uid=1001 client", 5}, {"msg_type=REQUEST_JOB_INFO", 1}} {
		dir := t.TempDir()
		j, err := journal.Open(dir, journal.Key{Cluster: "pcs_1", LogType: "PCS_SCHEDULER_AUDIT_LOGS", LogName: "slurmctld"}, journal.Options{}, journal.Anchor{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = j.Close() })
		var entries []journal.Entry
		for k, l := range audits {
			entries = append(entries, journal.Entry{Time: began.UnixMilli() + int64(k), Level: "info", Text: []byte("[" + began.Format("2006-01-02T15:04:05.000-07:00") + "] " + l[5:] + "\n")})
		}
		if err := j.Append(nil, entries); err != nil {
			t.Fatal(err)
		}
		if tt.changed != "" {
			files, err := filepath.Glob(filepath.Join(j.Key().Dir(dir), "*.seg"))
			if err != nil || len(files) != 1 {
				t.Fatal(files, err)
			}
			doc, err := os.ReadFile(files[0])
			if err != nil {
				t.Fatal(err)
			}
			at := strings.Index(string(doc), tt.changed)
			if at < 0 {
				t.Fatalf("%s is not in the segment", tt.changed)
			}
			doc[at]++
			if err := os.WriteFile(files[0], doc, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		got, err := audit.Search(t.Context(), []*journal.Journal{j}, audit.Query{})
		if err != nil || got.Unreadable != tt.want || got.Found != int64(len(audits))-tt.want {
			t.Errorf("%q changed: %d found, %d unreadable, %v; want %d", tt.changed, got.Found, got.Unreadable, err, tt.want)
		}
	}
}

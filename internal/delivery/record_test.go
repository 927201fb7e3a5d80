package delivery

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/openpcs/openpcs/internal/journal"
	"github.com/openpcs/openpcs/internal/logs"
)

var (
	article = Link{ID: "v2ZWDGuTowmhDjDF", Region: "ap-northeast-1", Account: "123456789012", Cluster: "pcs_vhuijft7zz", LogType: logs.SchedulerAuditLogs, Kind: logs.ToS3, Target: "audit", Format: JSON}
	ping    = journal.Entry{Seq: 1, Time: 1780281294197, Level: "info", Release: "25.11.6", Text: []byte("[2026-06-01T02:34:54.197+00:00] AUDIT_RPCS: [slurmctld-primary:6817(fd:18)] msg_type=REQUEST_PING uid=0 client=[10.0.1.142:42390] protocol=11264\n")}
)

func with(l Link, change func(*Link)) Link {
	change(&l)
	return l
}

// Records look as in the article and the user guide.
func TestRecords(t *testing.T) {
	scaling := journal.Entry{Seq: 7, Time: 1780281294197, Text: []byte(`{"resource_id":"pcs_vhuijft7zz","resource_type":"PCS_CLUSTER","event_timestamp":1780281294197,"compute_node_group_id":"pcs_group00001","scheduler_node_id":"compute-1","status_code":"LAUNCHED","reason_code":"SCHEDULER_REQUESTED","description":"Instance launched.","details":{"instance_id":"i-1"}}`)}
	done := journal.Entry{Seq: 8, Time: 1780281294197, Level: "info", Release: "26.05.5", Text: []byte(`{"job_id":2,"user":"ubuntu"}`)}
	for _, tt := range []struct {
		name string
		link Link
		e    journal.Entry
		want string
	}{
		{"audit", article, ping, `{"resource_id":"pcs_vhuijft7zz","resource_type":"PCS_CLUSTER","event_timestamp":1780281294197,"log_level":"info","log_name":"slurmctld","scheduler_type":"slurm","scheduler_major_version":"25.11","scheduler_patch_version":"6","node_type":"controller_primary","message":"[2026-06-01T02:34:54.197+00:00] AUDIT_RPCS: [slurmctld-primary:6817(fd:18)] msg_type=REQUEST_PING uid=0 client=[10.0.1.142:42390] protocol=11264\n"}`},
		{"fields_in_their_order", with(article, func(l *Link) { l.Fields = []string{"message", "log_type", "resource_id"} }), ping, `{"message":"[2026-06-01T02:34:54.197+00:00] AUDIT_RPCS: [slurmctld-primary:6817(fd:18)] msg_type=REQUEST_PING uid=0 client=[10.0.1.142:42390] protocol=11264\n","resource_id":"pcs_vhuijft7zz"}`},
		{"plain", with(article, func(l *Link) { l.Format = Plain }), ping, strings.TrimSuffix(string(ping.Text), "\n")},
		{"plain_with_a_delimiter", with(article, func(l *Link) {
			l.Format, l.Delimiter, l.Fields = Plain, "|", []string{"log_level", "log_name", "scheduler_patch_version"}
		}), ping, "info|slurmctld|6"},
		{"w3c", with(article, func(l *Link) {
			l.Format, l.Fields = W3C, []string{"event_timestamp", "log_type", "log_level", "message"}
		}), ping, `1780281294197 info "` + strings.TrimSuffix(string(ping.Text), "\n") + `"`},
		{"job", with(article, func(l *Link) { l.LogType = logs.JobCompletionLogs }), done, `{"resource_id":"pcs_vhuijft7zz","resource_type":"PCS_CLUSTER","event_timestamp":1780281294,"scheduler_type":"slurm","scheduler_major_version":"26.05","fields":{"job_id":2,"user":"ubuntu"}}`},
		{"scaling", with(article, func(l *Link) { l.LogType = logs.ScalingLogs }), scaling, string(scaling.Text)},
		{"scaling_fields", with(article, func(l *Link) { l.LogType, l.Fields = logs.ScalingLogs, []string{"status_code", "details"} }), scaling, `{"status_code":"LAUNCHED","details":{"instance_id":"i-1"}}`},
		{"scaling_plain", with(article, func(l *Link) {
			l.LogType, l.Format, l.Fields = logs.ScalingLogs, Plain, []string{"status_code", "details"}
		}), scaling, `LAUNCHED {"instance_id":"i-1"}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := newEncoder(tt.link, "slurmctld").append(nil, tt.e)
			if err != nil || string(got) != tt.want+"\n" {
				t.Errorf("got  %s (%v)\nwant %s", got, err, tt.want)
			}
		})
	}
	for _, text := range []string{"", "no object", `{"a":`, "{\"a\":1,\n\"b\":2}", `[1]`} {
		bad := done
		bad.Text = []byte(text)
		if got, err := newEncoder(with(article, func(l *Link) { l.LogType = logs.JobCompletionLogs }), "jobcomp").append(nil, bad); err == nil {
			t.Errorf("a job with the fields %q became %s", text, got)
		}
	}
}

func TestPlaces(t *testing.T) {
	at := time.Date(2026, 6, 1, 2, 34, 54, 0, time.UTC)
	typed := func(logType string) Link { return with(article, func(l *Link) { l.LogType = logType }) }
	for _, tt := range []struct{ name, got, want string }{
		{"audit", key(article, "slurmctld", "25.11", 1, at), "AWSLogs/123456789012/PCS/ap-northeast-1/pcs_vhuijft7zz/scheduler_audit/slurmctld/2026/06/01/02/PCS_pcs_vhuijft7zz_scheduler_audit_slurmctld_25.11_2026-06-01-02_########.log.gz"},
		{"scheduler", key(typed(logs.SchedulerLogs), "slurmdbd", "26.05", 1, at), "AWSLogs/123456789012/PCS/ap-northeast-1/pcs_vhuijft7zz/slurmdbd/26.05/2026/06/01/02/PCS_slurmdbd_26.05_2026-06-01-02_pcs_vhuijft7zz_########.log.gz"},
		{"jobs", key(typed(logs.JobCompletionLogs), "jobcomp", "26.05", 1, at), "AWSLogs/123456789012/PCS/ap-northeast-1/pcs_vhuijft7zz/jobcomp/2026/06/01/02/PCS_pcs_vhuijft7zz_jobcomp_2026-06-01-02_########.log.gz"},
		{"scaling", key(typed(logs.ScalingLogs), "node_lifecycle", "", 1, at), "AWSLogs/123456789012/PCS/ap-northeast-1/pcs_vhuijft7zz/node_lifecycle/2026/06/01/02/PCS_pcs_vhuijft7zz_node_lifecycle_2026-06-01-02_########.log.gz"},
		{"suffix", key(with(article, func(l *Link) { l.Suffix = "/by-day/{yyyy}{MM}{dd}" }), "slurmctld", "25.11", 1, at), "AWSLogs/123456789012/PCS/by-day/20260601/PCS_pcs_vhuijft7zz_scheduler_audit_slurmctld_25.11_2026-06-01-02_########.log.gz"},
		{"hive", key(with(article, func(l *Link) { l.Hive = true }), "slurmctld", "25.11", 1, at), "AWSLogs/aws-account-id=123456789012/PCS/aws-region=ap-northeast-1/resource_id=pcs_vhuijft7zz/scheduler_audit/log_name=slurmctld/year=2026/month=06/day=01/hour=02/PCS_pcs_vhuijft7zz_scheduler_audit_slurmctld_25.11_2026-06-01-02_########.log.gz"},
		{"audit_stream", stream(article, "slurmctld", "25.11"), "AWSLogs/PCS/pcs_vhuijft7zz/slurmctld_25.11_audit.log"},
		{"scheduler_stream", stream(typed(logs.SchedulerLogs), "slurmctld", "25.11"), "AWSLogs/PCS/pcs_vhuijft7zz/slurmctld_25.11.log"},
		{"jobs_stream", stream(typed(logs.JobCompletionLogs), "jobcomp", "25.11"), "AWSLogs/PCS/pcs_vhuijft7zz/jobcomp.log"},
		{"scaling_stream", stream(typed(logs.ScalingLogs), "node_lifecycle", ""), "AWSLogs/PCS/pcs_vhuijft7zz/node_lifecycle.log"},
	} {
		got := tt.got
		if base, ok := strings.CutSuffix(got, ".log.gz"); ok {
			got = base[:len(base)-8] + "########.log.gz"
		}
		if got != tt.want {
			t.Errorf("%s:\n%s, want\n%s", tt.name, tt.got, tt.want)
		}
	}
	// Objects of one delivery never have the same name, and always have the same.
	seen := map[uint32]int64{}
	for n := int64(1); n < 1e6; n += 1 + n%7 {
		m := mark("v2ZWDGuTowmhDjDF", "slurmctld", n)
		if other, ok := seen[m]; ok {
			t.Fatalf("the objects that begin at %d and %d have one name", other, n)
		}
		seen[m] = n
	}
}

// What is written is JSON, and says what Go's own encoder says.
func FuzzString(f *testing.F) {
	for _, s := range []string{"", "plain", "\"\\/\b\f\n\r\t\x00\x1f\x7f", "日本語 \u2028", "\xff\xc3\x28 \xed\xa0\x80", "<&>"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, s []byte) {
		got := appendString(nil, s)
		want, err := json.Marshal(string(s))
		if err != nil {
			t.Fatal(err)
		}
		var a, b string
		if err := json.Unmarshal(got, &a); err != nil {
			t.Fatalf("%q is no JSON: %v", got, err)
		}
		if err := json.Unmarshal(want, &b); err != nil {
			t.Fatal(err)
		}
		if a != b || !utf8.Valid(got) {
			t.Errorf("%q became %q, want %q", s, a, b)
		}
	})
}

func BenchmarkRecord(b *testing.B) {
	enc := newEncoder(article, "slurmctld")
	var line []byte
	b.SetBytes(int64(len(ping.Text)))
	b.ReportAllocs()
	for b.Loop() {
		line, _ = enc.append(line[:0], ping)
	}
}

//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

const (
	account    = "000000000000"
	seed000Box = "seed000-audit"
	// The article waits for five minutes; the tests do not.
	seed000Interval = 5 * time.Second
)

// logSeed is the walkthrough of the article on logs under way.
type logSeed struct {
	*cluster
	instance string // of the compute node
	group    string // log group
	prefix   string // of the names of sources and destinations
}

// TestSeed000 does the article "audit logs to S3, operational logs to CloudWatch
// Logs" from start to end, with its commands, and then what it says of releases
// before 25.11.
func TestSeed000(t *testing.T) {
	restart(t, "OPENPCS_DELIVERY_INTERVAL="+seed000Interval.String())
	t.Cleanup(func() { restart(t) })
	s := &logSeed{cluster: &cluster{name: "pcs-slurm-2511-verify-cluster", entry: "pcs2511-static-1", groups: map[string]string{}}, group: "/aws/pcs/scheduler-logs", prefix: "pcs-scheduler"}
	for _, step := range []struct {
		name string
		do   func(*testing.T)
	}{
		{"cluster", s.create},
		{"bucket_with_the_policy", s.bucket},
		{"operational_log_to_cloudwatch", s.operationalDelivery},
		{"audit_log_to_s3", s.auditDelivery},
		{"jobs", s.jobs},
		{"s3_has_audit_records_alone", s.inS3},
		{"cloudwatch_has_none", s.inCloudWatch},
		{"a_policy_that_is_taken_away", s.policyGone},
		{"delete", s.delete},
	} {
		if !t.Run(step.name, step.do) {
			t.Fatalf("the steps after %s need it", step.name)
		}
	}
}

func (s *logSeed) create(t *testing.T) {
	c := createCluster(t, s.name, sharedIdle)
	s.id = c.id
	s.add(t, group{name: "pcs2511-static", min: 1, max: 1, queue: "pcs2511-queue"})
	s.waitLogin(t)
	s.instance = aws(t, "ec2", "describe-instances", "--filters", "Name=tag:aws:pcs:compute-node-group-id,Values="+s.groups["pcs2511-static"],
		"Name=instance-state-name,Values=running", "--query", "Reservations[0].Instances[0].InstanceId", "--output", "text")
}

// seed000Policy is the article's.
const seed000Policy = `{
  "Version": "2012-10-17",
  "Statement": [
    {
      "Sid": "AWSLogDeliveryWrite",
      "Effect": "Allow",
      "Principal": { "Service": "delivery.logs.amazonaws.com" },
      "Action": "s3:PutObject",
      "Resource": "arn:aws:s3:::<audit-bucket-name>/AWSLogs/<account-id>/*",
      "Condition": {
        "StringEquals": {
          "s3:x-amz-acl": "bucket-owner-full-control",
          "aws:SourceAccount": "<account-id>"
        },
        "ArnLike": {
          "aws:SourceArn": "arn:aws:logs:ap-northeast-1:<account-id>:delivery-source:*"
        }
      }
    },
    {
      "Sid": "AWSLogDeliveryAclCheck",
      "Effect": "Allow",
      "Principal": { "Service": "delivery.logs.amazonaws.com" },
      "Action": "s3:GetBucketAcl",
      "Resource": "arn:aws:s3:::<audit-bucket-name>",
      "Condition": {
        "StringEquals": { "aws:SourceAccount": "<account-id>" },
        "ArnLike": {
          "aws:SourceArn": "arn:aws:logs:ap-northeast-1:<account-id>:delivery-source:*"
        }
      }
    }
  ]
}`

func (s *logSeed) policy(t *testing.T) {
	t.Helper()
	s.policyOf(t, seed000Box)
}

func (s *logSeed) policyOf(t *testing.T, bucket string) {
	t.Helper()
	text := strings.NewReplacer("<audit-bucket-name>", bucket, "<account-id>", account).Replace(seed000Policy)
	file := filepath.Join(t.TempDir(), "policy.json")
	must(t, os.WriteFile(file, []byte(text), 0o600) == nil, "write %s", file)
	aws(t, "s3api", "put-bucket-policy", "--bucket", bucket, "--policy", "file://"+file)
}

func (s *logSeed) bucket(t *testing.T) {
	aws(t, "s3", "mb", "s3://"+seed000Box)
	s.policy(t)
}

type deliverySource struct {
	DeliverySource struct {
		Name, Arn, Service, LogType string
		ResourceArns                []string
	}
}

// source is the article's put-delivery-source.
func (s *logSeed) source(t *testing.T, name, logType string) {
	t.Helper()
	resource := "arn:aws:pcs:ap-northeast-1:" + account + ":cluster/" + s.id
	got := awsGet[deliverySource](t, "logs", "put-delivery-source", "--region", region, "--name", name, "--resource-arn", resource, "--log-type", logType).DeliverySource
	must(t, got.Name == name && got.Arn == "arn:aws:logs:ap-northeast-1:"+account+":delivery-source:"+name && got.Service == "pcs" && got.LogType == logType &&
		len(got.ResourceArns) == 1 && got.ResourceArns[0] == resource, "put-delivery-source: %+v", got)
}

func (s *logSeed) operationalDelivery(t *testing.T) {
	aws(t, "logs", "create-log-group", "--region", region, "--log-group-name", s.group)
	aws(t, "logs", "put-delivery-destination", "--region", region, "--name", s.prefix+"-logs-dest", "--delivery-destination-type", "CWL",
		"--delivery-destination-configuration", "destinationResourceArn=arn:aws:logs:ap-northeast-1:"+account+":log-group:"+s.group)
	s.source(t, s.prefix+"-logs-source", "PCS_SCHEDULER_LOGS")
	aws(t, "logs", "create-delivery", "--region", region, "--delivery-source-name", s.prefix+"-logs-source",
		"--delivery-destination-arn", "arn:aws:logs:ap-northeast-1:"+account+":delivery-destination:"+s.prefix+"-logs-dest")
}

func (s *logSeed) auditDelivery(t *testing.T) {
	aws(t, "logs", "put-delivery-destination", "--region", region, "--name", "pcs-scheduler-audit-logs-dest", "--delivery-destination-type", "S3",
		"--output-format", "json", "--delivery-destination-configuration", "destinationResourceArn=arn:aws:s3:::"+seed000Box)
	s.source(t, "pcs-scheduler-audit-logs-source", "PCS_SCHEDULER_AUDIT_LOGS")
	create := []string{
		"logs", "create-delivery", "--region", region, "--delivery-source-name", "pcs-scheduler-audit-logs-source",
		"--delivery-destination-arn", "arn:aws:logs:ap-northeast-1:" + account + ":delivery-destination:pcs-scheduler-audit-logs-dest",
	}
	// Without the policy it is refused, with what is lacking.
	aws(t, "s3api", "delete-bucket-policy", "--bucket", seed000Box)
	code, message := awsRefused(t, create...)
	must(t, code == "AccessDeniedException" && strings.Contains(message, seed000Box) && strings.Contains(message, "s3:PutObject"), "without the policy: %s: %s", code, message)
	s.policy(t)
	got := awsGet[struct {
		Delivery struct {
			ID, DeliveryDestinationType string
			RecordFields                []string
			S3DeliveryConfiguration     struct {
				SuffixPath               string
				EnableHiveCompatiblePath bool
			}
		}
	}](t, create...).Delivery
	must(t, len(got.ID) == 16 && got.DeliveryDestinationType == "S3" && !got.S3DeliveryConfiguration.EnableHiveCompatiblePath &&
		got.S3DeliveryConfiguration.SuffixPath == "{region}/scheduler_audit/{log_name}/{yyyy}/{MM}/{dd}/{HH}/" &&
		strings.Join(got.RecordFields, ",") == "resource_id,resource_type,event_timestamp,log_level,log_name,scheduler_type,scheduler_major_version,scheduler_patch_version,node_type,log_type,message",
		"create-delivery: %+v", got)
}

// ssm runs a command on the compute node as the article does.
func (s *logSeed) ssm(t *testing.T, commands ...string) string {
	t.Helper()
	doc, err := json.Marshal(map[string]any{"commands": commands})
	must(t, err == nil, "%v", err)
	id := aws(t, "ssm", "send-command", "--instance-ids", s.instance, "--document-name", "AWS-RunShellScript", "--parameters", string(doc), "--query", "Command.CommandId", "--output", "text")
	var out struct{ Status, StandardOutputContent, StandardErrorContent string }
	eventually(t, time.Minute, "get-command-invocation says Success", func() error {
		out = awsGet[struct{ Status, StandardOutputContent, StandardErrorContent string }](t, "ssm", "get-command-invocation", "--command-id", id, "--instance-id", s.instance)
		switch out.Status {
		case "Success":
			return nil
		case "Failed":
			return final{fmt.Errorf("it says %+v", out)}
		}
		return fmt.Errorf("it says %+v", out)
	})
	return out.StandardOutputContent
}

func (s *logSeed) jobs(t *testing.T) {
	out := s.ssm(t, `sudo -u ubuntu bash -lc '
echo ===ID===; id; echo ===SUBMIT===; for i in 1 2 3; do
    sbatch -p pcs2511-queue --wrap="hostname; sleep 15" --job-name audit-demo-$i
  done; echo ===SQUEUE===; squeue --long'`)
	matches(t, "the output", out, `(?s)===ID===\nuid=1000\(ubuntu\) gid=1000\(ubuntu\).*===SUBMIT===\nSubmitted batch job \d+\nSubmitted batch job \d+\nSubmitted batch job \d+\n===SQUEUE===\n.*JOBID PARTITION +NAME +USER +STATE`)
	// In the article the first job runs five seconds later.
	eventually(t, time.Minute, "a job of ubuntu runs", func() error {
		if out := s.ssm(t, "squeue --long"); !regexp.MustCompile(`audit-de +ubuntu +RUNNING `).MatchString(out) {
			return fmt.Errorf("squeue --long prints %s", out)
		}
		return nil
	})
	// The article's cluster had run for a while; here it is asked more often.
	s.ssm(t, `sudo -u ubuntu bash -lc 'for i in $(seq 100); do scontrol ping >/dev/null; done'`)
}

// auditPath is the article's, in this account.
const auditPath = `AWSLogs/` + account + `/PCS/ap-northeast-1/%[1]s/scheduler_audit/slurmctld/\d{4}/\d\d/\d\d/\d\d/PCS_%[1]s_scheduler_audit_slurmctld_` + version + `_\d{4}-\d\d-\d\d-\d\d_[0-9a-f]{8}\.log\.gz`

func (s *logSeed) inS3(t *testing.T) {
	pattern := fmt.Sprintf(`^20\d\d-\d\d-\d\d \d\d:\d\d:\d\d +\d+ `+auditPath+`$`, s.id)
	text := ""
	records := 0
	eventually(t, 90*time.Second, "a hundred audit records are in S3", func() error {
		dir := t.TempDir()
		s3(t, "cp", "--recursive", "--quiet", "s3://"+seed000Box+"/", dir)
		r := succeed(t, run(nil, "sh", "-c", "find "+dir+" -name '*.log.gz' | sort | xargs --no-run-if-empty gunzip -c"))
		text = r.out
		if records = strings.Count(text, "\n"); records < 100 || !strings.Contains(text, "REQUEST_SUBMIT_BATCH_JOB") {
			return fmt.Errorf("there are %d", records)
		}
		return nil
	})
	for line := range strings.Lines(s3(t, "ls", "s3://"+seed000Box+"/", "--recursive")) {
		matches(t, "aws s3 ls", strings.TrimSpace(line), pattern)
	}
	must(t, strings.Count(text, "AUDIT_RPCS:") == records, "%d of %d records have AUDIT_RPCS", strings.Count(text, "AUDIT_RPCS:"), records)
	t.Logf("%d records in S3, all with AUDIT_RPCS", records)
	seen := map[string]bool{}
	submitted := 0
	for line := range strings.Lines(text) {
		matches(t, "a record", strings.TrimSpace(line), `^\{"resource_id":"`+s.id+`","resource_type":"PCS_CLUSTER","event_timestamp":\d{13},"log_level":"info","log_name":"slurmctld","scheduler_type":"slurm","scheduler_major_version":"26\.05","scheduler_patch_version":"\d+","node_type":"controller_primary","message":"\[20..-..-..T..:..:..\....\+00:00\] AUDIT_RPCS: \[[^\]]+\(fd:\d+\)\] msg_type=[A-Z_]+ uid=\d+ client=\[[^ ]+\] protocol=11520\\n"\}$`)
		must(t, !seen[line], "a record is there twice: %s", line)
		seen[line] = true
		if strings.Contains(line, "msg_type=REQUEST_SUBMIT_BATCH_JOB uid=1000 ") {
			submitted++
		}
	}
	must(t, submitted == 3, "%d jobs were submitted by uid 1000, want 3", submitted)
	// The article's own commands, on the first object.
	r := succeed(t, run(append([]string{"AWS=" + os.Getenv(awsEnv)}, clientEnv...), "bash", "-euc", `
KEY=$("$AWS" s3 ls s3://`+seed000Box+`/ --recursive | sort | head -1 | awk '{print $4}')
"$AWS" s3 cp --quiet "s3://`+seed000Box+`/$KEY" "$1/audit.log.gz"
gunzip -c "$1/audit.log.gz" | wc -l
gunzip -c "$1/audit.log.gz" | grep -c "AUDIT_RPCS:"`, "bash", t.TempDir()))
	counts := strings.Fields(r.out)
	must(t, len(counts) == 2 && counts[0] == counts[1] && counts[0] != "0", "the counts of the first object: %v", counts)
}

func (s *logSeed) inCloudWatch(t *testing.T) {
	name := "AWSLogs/PCS/" + s.id + "/slurmctld_" + version + ".log"
	read := []string{"logs", "get-log-events", "--region", region, "--log-group-name", s.group, "--log-stream-name", name, "--limit", "8", "--start-from-head"}
	var events []struct {
		Timestamp int64
		Message   string
	}
	eventually(t, 30*time.Second, "the operational log is in CloudWatch Logs", func() error {
		r := awsRun(append(read, "--query", "events", "--output", "json")...)
		if r.code != 0 {
			return fmt.Errorf("%s", r)
		}
		if err := json.Unmarshal([]byte(r.out), &events); err != nil || len(events) == 0 {
			return fmt.Errorf("%d events %v", len(events), err)
		}
		return nil
	})
	for _, e := range events {
		matches(t, "an event", e.Message, `^\[20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}(\+00:00)?\] .*[^\n]$`)
	}
	count := aws(t, "logs", "filter-log-events", "--region", region, "--log-group-name", s.group, "--filter-pattern", "AUDIT_RPCS", "--query", "length(events)", "--output", "text")
	must(t, count == "0", "%s events of the operational log have AUDIT_RPCS", count)
	all := aws(t, "logs", "filter-log-events", "--region", region, "--log-group-name", s.group, "--query", "length(events)", "--output", "text")
	t.Logf("%s events in CloudWatch Logs, none with AUDIT_RPCS", all)
}

// policyGone: what cannot be delivered is told of, and comes when it can.
func (s *logSeed) policyGone(t *testing.T) {
	aws(t, "s3api", "delete-bucket-policy", "--bucket", seed000Box)
	eventually(t, time.Minute, "openpcs explain tells of it", func() error {
		s.login("scontrol", "ping")
		return contains(openpcs("explain", s.id), "LOG_DELIVERY_DENIED", seed000Box, "s3:PutObject")
	})
	succeed(t, s.user("sbatch -p pcs2511-queue --wrap=true --job-name missed"))
	must(t, strings.Contains(succeed(t, openpcs("deliveries")).out, "LOG_DELIVERY_DENIED"), "openpcs deliveries does not tell of it")
	s.policy(t)
	eventually(t, 90*time.Second, "what was missed comes", func() error {
		dir := t.TempDir()
		s3(t, "cp", "--recursive", "--quiet", "s3://"+seed000Box+"/", dir)
		r := succeed(t, run(nil, "sh", "-c", "find "+dir+" -name '*.log.gz' | xargs gunzip -c | grep -c 'REQUEST_SUBMIT_BATCH_JOB uid=1000'"))
		if r.line() != "4" {
			return fmt.Errorf("%s jobs were submitted", r.line())
		}
		return nil
	})
	eventually(t, 20*time.Second, "explain has nothing more of it", func() error {
		r := succeed(t, openpcs("deliveries"))
		if strings.Contains(r.out, "LOG_DELIVERY_DENIED") {
			return fmt.Errorf("%s", r)
		}
		return nil
	})
}

// delete removes the cluster first: the rest of its log is still delivered.
func (s *logSeed) delete(t *testing.T) {
	succeed(t, runFor(2*time.Minute, siteEnv, binary(), "clusters", "delete", "--force", "--yes", s.id))
	eventually(t, time.Minute, "the rest of its logs is delivered", func() error {
		type row struct {
			ID, Cluster, Status string
			Behind, Delivered   int
		}
		all, err := rows[row]("deliveries")
		if err != nil {
			return err
		}
		n := 0
		for _, r := range all {
			if r.Cluster != s.id {
				continue
			}
			if n++; r.Behind != 0 || r.Delivered == 0 {
				return fmt.Errorf("%+v", r)
			}
		}
		if n != 2 {
			return fmt.Errorf("the deliveries are %+v", all)
		}
		return nil
	})
	for _, id := range strings.Fields(aws(t, "logs", "describe-deliveries", "--query", "deliveries[].id", "--output", "text")) {
		aws(t, "logs", "delete-delivery", "--id", id)
	}
	for _, name := range []string{s.prefix + "-logs", "pcs-scheduler-audit-logs"} {
		aws(t, "logs", "delete-delivery-source", "--name", name+"-source")
		aws(t, "logs", "delete-delivery-destination", "--name", name+"-dest")
	}
	aws(t, "s3", "rb", "--force", "s3://"+seed000Box)
	aws(t, "logs", "delete-log-group", "--log-group-name", s.group)
}

// TestL12_AuditBefore2511: before 25.11 audit records are in the scheduler log,
// and the log type of their own is refused.
func TestL12_AuditBefore2511(t *testing.T) {
	s := &logSeed{cluster: old(t), group: "/aws/pcs/old-logs", prefix: "old"}
	code, message := awsRefused(t, "logs", "put-delivery-source", "--name", "old-audit", "--log-type", "PCS_SCHEDULER_AUDIT_LOGS",
		"--resource-arn", "arn:aws:pcs:ap-northeast-1:"+account+":cluster/"+s.id)
	must(t, code == "ValidationException" && strings.Contains(message, "25.11"), "the audit log of %s: %s: %s", oldVersion, code, message)
	s.operationalDelivery(t)
	eventually(t, time.Minute, "audit records are in the scheduler log", func() error {
		s.login("squeue")
		count := aws(t, "logs", "filter-log-events", "--log-group-name", s.group, "--filter-pattern", "AUDIT_RPCS", "--query", "length(events)", "--output", "text")
		if count == "0" {
			return fmt.Errorf("there is none")
		}
		return nil
	})
	streams := aws(t, "logs", "describe-log-streams", "--log-group-name", s.group, "--query", "logStreams[].logStreamName", "--output", "text")
	must(t, strings.Contains(streams, "AWSLogs/PCS/"+s.id+"/slurmctld_"+oldVersion+".log"), "the streams are %s", streams)
	for _, id := range strings.Fields(aws(t, "logs", "describe-deliveries", "--query", "deliveries[].id", "--output", "text")) {
		aws(t, "logs", "delete-delivery", "--id", id)
	}
	aws(t, "logs", "delete-delivery-source", "--name", "old-logs-source")
	aws(t, "logs", "delete-delivery-destination", "--name", "old-logs-dest")
	aws(t, "logs", "delete-log-group", "--log-group-name", s.group)
}

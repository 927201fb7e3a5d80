//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestJobAndScalingLogs: the logs that the article does not have, to both kinds
// of destinations.
func TestJobAndScalingLogs(t *testing.T) {
	const box, logGroup = "e2e-logs", "/aws/vendedlogs/pcs/e2e"
	restart(t, "OPENPCS_DELIVERY_INTERVAL=1s")
	t.Cleanup(func() { restart(t) })
	c := shared(t)
	s := &logSeed{cluster: c}
	aws(t, "s3", "mb", "s3://"+box)
	s.policyOf(t, box)
	aws(t, "logs", "create-log-group", "--log-group-name", logGroup)
	aws(t, "logs", "put-delivery-destination", "--name", "e2e-s3", "--delivery-destination-configuration", "destinationResourceArn=arn:aws:s3:::"+box)
	aws(t, "logs", "put-delivery-destination", "--name", "e2e-cwl", "--output-format", "json",
		"--delivery-destination-configuration", "destinationResourceArn=arn:aws:logs:"+region+":"+account+":log-group:"+logGroup+":*")
	var ids []string
	t.Cleanup(func() {
		for _, id := range ids {
			aws(t, "logs", "delete-delivery", "--id", id)
		}
		for _, name := range []string{"jobs", "scaling"} {
			aws(t, "logs", "delete-delivery-source", "--name", "e2e-"+name)
		}
		for _, to := range []string{"s3", "cwl"} {
			aws(t, "logs", "delete-delivery-destination", "--name", "e2e-"+to)
		}
		aws(t, "s3", "rb", "--force", "s3://"+box)
		aws(t, "logs", "delete-log-group", "--log-group-name", logGroup)
	})
	for name, logType := range map[string]string{"jobs": "PCS_JOBCOMP_LOGS", "scaling": "PCS_SCALING_LOGS"} {
		s.source(t, "e2e-"+name, logType)
		for _, to := range []string{"s3", "cwl"} {
			ids = append(ids, aws(t, "logs", "create-delivery", "--delivery-source-name", "e2e-"+name,
				"--delivery-destination-arn", "arn:aws:logs:"+region+":"+account+":delivery-destination:e2e-"+to, "--query", "delivery.id", "--output", "text"))
		}
	}
	c.lend(t, group{name: "logged", max: 1, queue: "logged"})
	job := c.submit(t, "logged", "hostname", "--job-name=completed")
	c.output(t, job, time.Minute)

	type record struct {
		ResourceID     string `json:"resource_id"`
		EventTimestamp int64  `json:"event_timestamp"`
		StatusCode     string `json:"status_code"`
		Node           string `json:"scheduler_node_id"`
		Fields         *struct {
			Name  string `json:"name"`
			State string `json:"job_state"`
		}
	}
	complete := func(lines []string) error {
		steps, done := "", false
		for _, line := range lines {
			var r record
			if err := json.Unmarshal([]byte(line), &r); err != nil {
				return final{fmt.Errorf("%w in %s", err, line)}
			}
			switch {
			case r.ResourceID != c.id:
				return final{fmt.Errorf("of another cluster: %s", line)}
			case r.Fields != nil && r.Fields.Name == "completed" && r.Fields.State == "COMPLETED":
				if now := time.Now().Unix(); r.EventTimestamp < now-600 || r.EventTimestamp > now+60 {
					return final{fmt.Errorf("the time is not in seconds: %s", line)}
				}
				done = true
			case r.Node == "logged-1":
				steps += " " + r.StatusCode
			}
		}
		if want := " LAUNCHED REGISTERED ACTIVE"; !done || !strings.HasPrefix(steps, want) {
			return fmt.Errorf("the job is there: %v; the steps are%s in %d records", done, steps, len(lines))
		}
		return nil
	}
	eventually(t, 30*time.Second, "both logs are in CloudWatch Logs", func() error {
		text := aws(t, "logs", "filter-log-events", "--log-group-name", logGroup, "--query", "events[].message", "--output", "json")
		var messages []string
		if err := json.Unmarshal([]byte(text), &messages); err != nil {
			return err
		}
		return complete(messages)
	})
	streams := aws(t, "logs", "describe-log-streams", "--log-group-name", logGroup, "--query", "sort(logStreams[].logStreamName)", "--output", "text")
	must(t, strings.Join(strings.Fields(streams), " ") == "AWSLogs/PCS/"+c.id+"/jobcomp.log AWSLogs/PCS/"+c.id+"/node_lifecycle.log", "the streams are %s", streams)
	eventually(t, 30*time.Second, "both logs are in S3", func() error {
		dir := t.TempDir()
		s3(t, "cp", "--recursive", "--quiet", "s3://"+box+"/", dir)
		r := succeed(t, run(nil, "sh", "-c", "find "+dir+" -name '*.log.gz' -printf '%f %p\\n' | sort | cut -d' ' -f2 | xargs --no-run-if-empty gunzip -c | jq -cs 'sort_by(.event_timestamp)[]'"))
		return complete(lines(r.out))
	})
	for line := range strings.Lines(s3(t, "ls", "--recursive", "s3://"+box)) {
		matches(t, "an object", strings.TrimSpace(line), ` AWSLogs/`+account+`/PCS/`+region+`/`+c.id+`/(jobcomp|node_lifecycle)/\d{4}/\d\d/\d\d/\d\d/PCS_`+c.id+`_(jobcomp|node_lifecycle)_\d{4}-\d\d-\d\d-\d\d_[0-9a-f]{8}\.log\.gz$`)
	}
}

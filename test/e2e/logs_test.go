//go:build e2e

package e2e

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/openpcs/openpcs/internal/awsapi"
)

// logsBucketPolicy is the bucket policy of the article.
const logsBucketPolicy = `{"Version":"2012-10-17","Statement":[
{"Sid":"AWSLogDeliveryWrite","Effect":"Allow","Principal":{"Service":"delivery.logs.amazonaws.com"},"Action":"s3:PutObject","Resource":"arn:aws:s3:::BUCKET/AWSLogs/ACCOUNT/*",
"Condition":{"StringEquals":{"s3:x-amz-acl":"bucket-owner-full-control","aws:SourceAccount":"ACCOUNT"},"ArnLike":{"aws:SourceArn":"arn:aws:logs:ap-northeast-1:ACCOUNT:delivery-source:*"}}},
{"Sid":"AWSLogDeliveryAclCheck","Effect":"Allow","Principal":{"Service":"delivery.logs.amazonaws.com"},"Action":"s3:GetBucketAcl","Resource":"arn:aws:s3:::BUCKET",
"Condition":{"StringEquals":{"aws:SourceAccount":"ACCOUNT"},"ArnLike":{"aws:SourceArn":"arn:aws:logs:ap-northeast-1:ACCOUNT:delivery-source:*"}}}]}`

const logsAccount = "000000000000"

// TestLogsDelivery makes the calls of the article on a cluster that is only
// being created, and those that a user gets wrong.
func TestLogsDelivery(t *testing.T) {
	n := findNetwork(t)
	id := aws(t, "pcs", "create-cluster", "--cluster-name", "logs", "--scheduler", "type=SLURM,version="+version, "--size", "SMALL",
		"--networking", "subnetIds="+n.subnet+",securityGroupIds="+n.securityGroup, "--query", "cluster.id", "--output", "text")
	t.Cleanup(func() { aws(t, "pcs", "delete-cluster", "--cluster-identifier", id) })
	resource := "arn:aws:pcs:ap-northeast-1:" + logsAccount + ":cluster/" + id
	s3(t, "mb", "s3://e2e-audit")
	t.Cleanup(func() { s3(t, "rb", "--force", "s3://e2e-audit") })
	aws(t, "s3api", "put-bucket-policy", "--bucket", "e2e-audit", "--policy", strings.NewReplacer("BUCKET", "e2e-audit", "ACCOUNT", logsAccount, "\n", "").Replace(logsBucketPolicy))

	destination := func(name, arn string, more ...string) {
		t.Helper()
		aws(t, append([]string{"logs", "put-delivery-destination", "--region", region, "--name", name, "--delivery-destination-configuration", "destinationResourceArn=" + arn}, more...)...)
		t.Cleanup(func() { aws(t, "logs", "delete-delivery-destination", "--name", name) })
	}
	type sourceAnswer struct {
		Source struct {
			Name, ARN, Service, LogType string
			Status                      *string
			ResourceARNs                []string
		} `json:"deliverySource"`
	}
	source := func(name, logType string) {
		t.Helper()
		got := awsGet[sourceAnswer](t, "logs", "put-delivery-source", "--region", region, "--name", name, "--resource-arn", resource, "--log-type", logType).Source
		t.Cleanup(func() { aws(t, "logs", "delete-delivery-source", "--name", name) })
		if got.Name != name || got.ARN != "arn:aws:logs:ap-northeast-1:"+logsAccount+":delivery-source:"+name || !slices.Equal(got.ResourceARNs, []string{resource}) ||
			got.Service != "pcs" || got.LogType != logType || got.Status != nil {
			t.Errorf("put-delivery-source: %+v", got)
		}
	}
	type deliveryAnswer struct {
		Delivery struct {
			ID                      string
			DeliveryDestinationType string
			RecordFields            []string
			S3                      *struct {
				SuffixPath string
				Hive       bool `json:"enableHiveCompatiblePath"`
			} `json:"s3DeliveryConfiguration"`
		} `json:"delivery"`
	}
	link := func(source, destination string) []string {
		return []string{"logs", "create-delivery", "--region", region, "--delivery-source-name", source, "--delivery-destination-arn", "arn:aws:logs:ap-northeast-1:" + logsAccount + ":delivery-destination:" + destination}
	}
	deliver := func(source, destination string) deliveryAnswer {
		t.Helper()
		got := awsGet[deliveryAnswer](t, link(source, destination)...)
		t.Cleanup(func() { aws(t, "logs", "delete-delivery", "--id", got.Delivery.ID) })
		return got
	}
	refused := func(code, says string, args ...string) {
		t.Helper()
		gotCode, got := awsRefused(t, args...)
		if gotCode != code || !strings.Contains(got, says) {
			t.Errorf("%s\ngot %s: %s\nwant %s: ... %s", strings.Join(args, " "), gotCode, got, code, says)
		}
	}

	group := "arn:aws:logs:ap-northeast-1:" + logsAccount + ":log-group:/aws/pcs/scheduler-logs"
	destination("pcs-scheduler-logs-dest", group, "--delivery-destination-type", "CWL")
	source("pcs-scheduler-logs-source", "PCS_SCHEDULER_LOGS")
	// The log group is forgotten at first.
	refused("ResourceNotFoundException", "aws logs create-log-group --log-group-name /aws/pcs/scheduler-logs", link("pcs-scheduler-logs-source", "pcs-scheduler-logs-dest")...)
	aws(t, "logs", "create-log-group", "--region", region, "--log-group-name", "/aws/pcs/scheduler-logs")
	t.Cleanup(func() { aws(t, "logs", "delete-log-group", "--log-group-name", "/aws/pcs/scheduler-logs") })
	first := deliver("pcs-scheduler-logs-source", "pcs-scheduler-logs-dest").Delivery
	if first.DeliveryDestinationType != "CWL" || first.S3 != nil {
		t.Errorf("create-delivery: %+v", first)
	}

	destination("pcs-scheduler-audit-logs-dest", "arn:aws:s3:::e2e-audit", "--delivery-destination-type", "S3", "--output-format", "json")
	source("pcs-scheduler-audit-logs-source", "PCS_SCHEDULER_AUDIT_LOGS")
	d := deliver("pcs-scheduler-audit-logs-source", "pcs-scheduler-audit-logs-dest").Delivery
	const fields = "resource_id resource_type event_timestamp log_level log_name scheduler_type scheduler_major_version scheduler_patch_version node_type log_type message"
	if len(d.ID) != 16 || d.DeliveryDestinationType != "S3" || strings.Join(d.RecordFields, " ") != fields || d.S3 == nil ||
		d.S3.SuffixPath != "{region}/scheduler_audit/{log_name}/{yyyy}/{MM}/{dd}/{HH}/" || d.S3.Hive {
		t.Errorf("create-delivery: %+v", d)
	}

	if got := aws(t, "logs", "describe-deliveries", "--query", "deliveries[].[deliverySourceName,deliveryDestinationType]", "--output", "text"); !strings.Contains(got, "pcs-scheduler-audit-logs-source\tS3") {
		t.Errorf("describe-deliveries: %s", got)
	}
	if got := aws(t, "logs", "describe-configuration-templates", "--service", "pcs", "--log-types", "PCS_SCALING_LOGS", "--query", "configurationTemplates[].deliveryDestinationType", "--output", "text"); got != "CWL\tFH\tS3" {
		t.Errorf("describe-configuration-templates: %s", got)
	}

	refused("ConflictException", "Delivery already exists", link("pcs-scheduler-logs-source", "pcs-scheduler-logs-dest")...)
	refused("ConflictException", "the delivery "+first.ID+" uses it", "logs", "delete-delivery-source", "--name", "pcs-scheduler-logs-source")
	refused("ResourceNotFoundException", "there is no cluster pcs_none", "logs", "put-delivery-source", "--name", "x", "--resource-arn", "arn:aws:pcs:ap-northeast-1:"+logsAccount+":cluster/pcs_none", "--log-type", "PCS_SCHEDULER_LOGS")
	refused("ValidationException", "The log types of pcs are PCS_SCHEDULER_LOGS, PCS_SCHEDULER_AUDIT_LOGS, PCS_JOBCOMP_LOGS, PCS_SCALING_LOGS, not PCS_AUDIT", "logs", "put-delivery-source", "--name", "x", "--resource-arn", resource, "--log-type", "PCS_AUDIT")
	refused("ValidationException", "is not the ARN of a cluster, such as arn:aws:pcs:", "logs", "put-delivery-source", "--name", "x", "--resource-arn", id, "--log-type", "PCS_SCHEDULER_LOGS")
}

// TestLogsEvents puts, gets, filters and follows events.
func TestLogsEvents(t *testing.T) {
	const name = "/e2e/app"
	aws(t, "logs", "create-log-group", "--log-group-name", name, "--tags", "team=hpc")
	t.Cleanup(func() { aws(t, "logs", "delete-log-group", "--log-group-name", name) })
	aws(t, "logs", "create-log-stream", "--log-group-name", name, "--log-stream-name", "one")
	put := func(messages ...string) {
		t.Helper()
		var list []string
		for n, m := range messages {
			list = append(list, fmt.Sprintf(`{"timestamp":%d,"message":%q}`, time.Now().UnixMilli()+int64(n), m))
		}
		aws(t, "logs", "put-log-events", "--log-group-name", name, "--log-stream-name", "one", "--log-events", "["+strings.Join(list, ",")+"]")
	}
	put("first", "AUDIT_RPCS: [slurmctld-primary:6817(fd:18)] msg_type=REQUEST_PING uid=0", `{"level":"ERROR","code":500}`, "last")

	type page struct {
		Events   []struct{ Message string }
		Forward  string `json:"nextForwardToken"`
		Backward string `json:"nextBackwardToken"`
	}
	get := []string{"logs", "get-log-events", "--log-group-name", name, "--log-stream-name", "one", "--limit", "3", "--start-from-head"}
	p := awsGet[page](t, get...)
	q := awsGet[page](t, append(get, "--next-token", p.Forward)...)
	end := awsGet[page](t, append(get, "--next-token", q.Forward)...)
	if len(p.Events) != 3 || p.Events[0].Message != "first" || len(q.Events) != 1 || q.Events[0].Message != "last" || len(end.Events) != 0 || end.Forward != q.Forward || end.Backward == "" {
		t.Errorf("pages: %+v, %+v, %+v", p, q, end)
	}
	count := func(pattern string) string {
		t.Helper()
		return aws(t, "logs", "filter-log-events", "--region", region, "--log-group-name", name, "--filter-pattern="+pattern, "--query", "length(events)", "--output", "text")
	}
	for pattern, want := range map[string]string{"-AUDIT_RPCS": "3", `{ $.level = "ERR*" && $.code >= 500 }`: "1"} {
		if got := count(pattern); got != want {
			t.Errorf("%s finds %s, want %s", pattern, got, want)
		}
	}
	if code, message := awsRefused(t, "logs", "filter-log-events", "--log-group-name", name, "--filter-pattern", "AUDIT_RPCS:"); code != "InvalidParameterException" || !strings.Contains(message, `as in "AUDIT_RPCS:"`) {
		t.Errorf("got %s: %s", code, message)
	}
	if got := aws(t, "logs", "tail", name, "--format", "short", "--filter-pattern", "?first ?last"); strings.Count(got, "\n") != 1 || !strings.Contains(got, "first") || !strings.Contains(got, "last") {
		t.Errorf("tail: %s", got)
	}

	follow := startFollowing(t, "logs", "tail", name, "--follow", "--format", "short")
	follow.await(t, "last") // it runs
	put("while it follows")
	follow.await(t, "while it follows")
	if n := strings.Count(follow.text(), "first"); n != 1 {
		t.Errorf("an event is shown %d times: %s", n, follow.text())
	}

	aws(t, "logs", "put-retention-policy", "--log-group-name", name, "--retention-in-days", "30")
	aws(t, "logs", "tag-resource", "--resource-arn", "arn:aws:logs:ap-northeast-1:"+logsAccount+":log-group:"+name, "--tags", "a=b")
	if got := aws(t, "logs", "list-tags-for-resource", "--resource-arn", "arn:aws:logs:ap-northeast-1:"+logsAccount+":log-group:"+name, "--query", "[tags.team,tags.a]", "--output", "text"); got != "hpc\tb" {
		t.Errorf("tags: %s", got)
	}
	if got := aws(t, "logs", "describe-log-groups", "--log-group-name-prefix", "/e2e", "--query", "logGroups[].[logGroupName,retentionInDays]", "--output", "text"); got != name+"\t30" {
		t.Errorf("describe-log-groups: %s", got)
	}
	if got := aws(t, "logs", "describe-log-streams", "--log-group-name", name, "--order-by", "LastEventTime", "--descending", "--query", "logStreams[].logStreamName", "--output", "text"); got != "one" {
		t.Errorf("describe-log-streams: %s", got)
	}
	if code, message := awsRefused(t, "logs", "put-retention-policy", "--log-group-name", name, "--retention-in-days", "10"); code != "InvalidParameterException" || !strings.Contains(message, "is 10, and must be one of 1, 3, 5, 7, 14, 30") {
		t.Errorf("got %s: %s", code, message)
	}
}

// following is a command that goes on.
type following struct {
	mu  sync.Mutex
	out bytes.Buffer
}

func (f *following) Write(p []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.out.Write(p)
}

func (f *following) text() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.out.String()
}

func (f *following) await(t *testing.T, piece string) {
	t.Helper()
	eventually(t, commandLimit, "aws logs tail --follow shows "+piece, func() error {
		if got := f.text(); !strings.Contains(got, piece) {
			return fmt.Errorf("it shows %q", got)
		}
		return nil
	})
}

// startFollowing runs the AWS CLI until the end of the test.
func startFollowing(t *testing.T, args ...string) *following {
	t.Helper()
	f := &following{}
	cmd := exec.Command(os.Getenv(awsEnv), args...)
	cmd.Env = append(os.Environ(), clientEnv...)
	cmd.Stdout, cmd.Stderr = f, f
	startGroup(t, cmd)
	return f
}

// startGroup starts a command that ends with the test, and what it starts too.
func startGroup(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	must(t, cmd.Start() == nil, "start %v", cmd.Args)
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait() // it was killed
	})
}

// TestFilterPatternsBesideMoto compares what patterns find with what another
// server finds. It knows less of them: where it does, the table says so.
func TestFilterPatternsBesideMoto(t *testing.T) {
	messages := []string{
		"[ERROR] A fatal exception has occurred", "Exiting with ERRORCODE: -1", "ERROR WARN message", "WARN message", "an error",
		"[2026-06-01T02:34:54.197+00:00] AUDIT_RPCS: [slurmctld-primary:6817(fd:18)] msg_type=REQUEST_PING uid=0",
		`{"level":"ERROR","code":500,"user":{"name":"ubuntu"}}`, `{"level":"INFO","code":200}`, "127.0.0.1 - frank GET 404 1534",
	}
	const unknown = "it does not know the pattern, and takes all"
	tests := []struct {
		pattern string
		want    []int  // places in messages
		gap     string // why the other differs
	}{
		{"", []int{0, 1, 2, 3, 4, 5, 6, 7, 8}, ""},
		{"ERROR", []int{0, 1, 2, 6}, ""},
		{"error", []int{4}, ""},
		{"ERROR WARN", []int{2}, ""},
		{"AUDIT_RPCS", []int{5}, ""},
		{"AUDIT_RPCS uid", []int{5}, ""},
		{`"ERROR WARN"`, []int{2}, ""},
		{`"AUDIT_RPCS:"`, []int{5}, ""},
		{`"uid=0"`, []int{5}, ""},
		{"NOTHING", nil, ""},
		{`"ERROR" "WARN"`, []int{2}, "it takes what is between the first quote and the last for one phrase"},
		{"ERROR -WARN", []int{0, 1, 6}, "it takes the sign for a part of the term"},
		{"-ERROR", []int{3, 4, 5, 7, 8}, unknown},
		{"?ERROR ?WARN", []int{0, 1, 2, 3, 6}, unknown},
		{"%ERROR[A-Z]+%", []int{1}, unknown},
		{`{ $.level = "ERROR" }`, []int{6}, unknown},
		{`{ $.code >= 200 && $.user.name NOT EXISTS }`, []int{7}, unknown},
		{"[ip, ..., status = 4*, bytes > 1000]", []int{8}, unknown},
	}
	var key awsapi.Key
	for _, line := range clientEnv {
		name, value, _ := strings.Cut(line, "=")
		switch name {
		case "AWS_ACCESS_KEY_ID":
			key.ID = value
		case "AWS_SECRET_ACCESS_KEY":
			key.Secret = value
		}
	}
	ours := &awsapi.Client{Endpoint: "http://" + listen, Region: region, Key: key}
	theirs := &awsapi.Client{Endpoint: "http://" + startMotoLogs(t), Region: region, Key: awsapi.Key{ID: "AKIAIOSFODNN7EXAMPLE", Secret: "any"}}
	call := func(c *awsapi.Client, op string, in, out any) {
		t.Helper()
		if err := c.JSON(t.Context(), "logs", "Logs_20140328", op, "1.1", in, out); err != nil {
			fail(t, "%s: %v", op, err)
		}
	}
	type object = map[string]any
	const name = "/e2e/patterns"
	now := time.Now().UnixMilli()
	var list []object
	for n, m := range messages {
		list = append(list, object{"timestamp": now + int64(n), "message": m})
	}
	for _, c := range []*awsapi.Client{ours, theirs} {
		call(c, "CreateLogGroup", object{"logGroupName": name}, nil)
		call(c, "CreateLogStream", object{"logGroupName": name, "logStreamName": "s"}, nil)
		call(c, "PutLogEvents", object{"logGroupName": name, "logStreamName": "s", "logEvents": list}, nil)
	}
	t.Cleanup(func() { aws(t, "logs", "delete-log-group", "--log-group-name", name) })
	find := func(c *awsapi.Client, pattern string) []int {
		t.Helper()
		var out struct{ Events []struct{ Timestamp int64 } }
		call(c, "FilterLogEvents", object{"logGroupName": name, "filterPattern": pattern}, &out)
		var found []int
		for _, e := range out.Events {
			found = append(found, int(e.Timestamp-now))
		}
		return found
	}
	for _, tt := range tests {
		if got := find(ours, tt.pattern); !slices.Equal(got, tt.want) {
			t.Errorf("%s: openpcs finds %v, want %v", tt.pattern, got, tt.want)
		}
		got := find(theirs, tt.pattern)
		if same := slices.Equal(got, tt.want); !same && tt.gap == "" {
			t.Errorf("%s: moto finds %v, openpcs %v", tt.pattern, got, tt.want)
		} else if same && tt.gap != "" {
			t.Logf("%s: moto finds the same by now, though: %s", tt.pattern, tt.gap)
		}
	}
}

// startMotoLogs starts moto's server and returns its address.
func startMotoLogs(t *testing.T) string {
	t.Helper()
	root, err := filepath.Abs("../..")
	must(t, err == nil, "%v", err)
	path := succeed(t, runFor(5*time.Minute, nil, filepath.Join(root, "scripts", "sid.sh"), "path", "moto_server")).line()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err == nil, "find a port: %v", err)
	address := free.Addr().String()
	_ = free.Close() // for the server to take
	host, port, _ := strings.Cut(address, ":")
	startGroup(t, exec.Command(path, "-H", host, "-p", port))
	eventually(t, time.Minute, "moto's server answers", func() error {
		r, err := http.Get("http://" + address + "/moto-api/")
		if err == nil {
			_ = r.Body.Close()
		}
		return err
	})
	return address
}

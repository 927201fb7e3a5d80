package delivery

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/openpcs/openpcs/internal/awsapi"
	"github.com/openpcs/openpcs/internal/journal"
	"github.com/openpcs/openpcs/internal/logs"
	"github.com/openpcs/openpcs/internal/s3"
)

var motoKey = awsapi.Key{ID: "AKIAIOSFODNN7EXAMPLE", Secret: "any"}

// startMoto runs moto's server, which is not ours, as the AWS outside.
func startMoto(t *testing.T) (address string) {
	t.Helper()
	if testing.Short() {
		t.Skip("moto's server needs a root file system of its own")
	}
	if os.Geteuid() != 0 {
		t.Skip("moto's server runs in a root file system of its own, which needs root")
	}
	out, err := exec.Command("../../scripts/sid.sh", "path", "moto_server").Output()
	if err != nil {
		t.Skipf("moto's server cannot be had: %v", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address = l.Addr().String()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	host, port, _ := strings.Cut(address, ":")
	cmd := exec.Command(strings.TrimSpace(string(out)), "-H", host, "-p", port)
	cmd.Env = append(os.Environ(), "MOTO_EC2_LOAD_DEFAULT_AMIS=false", "MOTO_ACCOUNT_ID="+article.Account)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
	})
	until(t, "moto's server", func() error {
		c, err := net.Dial("tcp", address)
		if err == nil {
			err = c.Close()
		}
		return err
	})
	return "http://" + address
}

// credentials writes a key as the AWS CLI keeps it.
func credentials(t *testing.T, key awsapi.Key) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "credentials")
	text := fmt.Sprintf("[default]\naws_access_key_id = %s\naws_secret_access_key = %s\n", key.ID, key.Secret)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestDestinationsElsewhere delivers to S3, CloudWatch Logs and Firehose of
// another server, on a way on which answers get lost.
func TestDestinationsElsewhere(t *testing.T) {
	moto := startMoto(t)
	file := credentials(t, motoKey)
	target, err := url.Parse(moto)
	if err != nil {
		t.Fatal(err)
	}
	var lost, mute, empty atomic.Bool
	proxy := httputil.NewSingleHostReverseProxy(target)
	way := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if empty.Load() { // a success without a word
			return
		}
		(&flaky{proxy, func() (bool, bool) { return lost.Load(), mute.Load() }}).ServeHTTP(w, r)
	}))
	t.Cleanup(way.Close)

	far, err := s3.NewEndpoint(way.URL, testRegion, file)
	if err != nil {
		t.Fatal(err)
	}
	service := s3.New(s3.Options{Account: article.Account, Region: testRegion, Endpoint: far})
	t.Cleanup(service.Stop)
	groups, err := NewEndpoint(way.URL, file)
	if err != nil {
		t.Fatal(err)
	}
	s := newSite(t, service)
	d := &Destinations{Account: article.Account, Buckets: service, Groups: s.logs, Logs: groups, Firehose: groups}

	direct := awsapi.Client{Endpoint: moto, Key: motoKey, Region: testRegion}
	call := func(service, target, op string, in, out any) {
		t.Helper()
		if err := direct.JSON(t.Context(), service, target, op, "1.1", in, out); err != nil {
			t.Fatal(err)
		}
	}
	probe := func(kind, arn, code string) {
		t.Helper()
		err := d.Probe(t.Context(), logs.Link{
			Delivery:    logs.Delivery{ID: "P", Region: testRegion, Type: kind, S3: &logs.S3Path{}},
			Source:      logs.Source{ResourceARN: "arn:aws:pcs:ap-northeast-1:123456789012:cluster/" + testCluster, LogType: logs.SchedulerLogs},
			Destination: logs.Destination{Type: kind, ResourceARN: arn},
		})
		var api *awsapi.Error
		if got := ""; err != nil {
			if errors.As(err, &api) {
				got = api.Code
			}
			if got != code || code == "" {
				t.Errorf("probe of %s: %v, want %q", arn, err, code)
			}
		} else if code != "" {
			t.Errorf("probe of %s succeeds, want %s", arn, code)
		}
	}
	const bucketARN, groupARN, hoseARN = "arn:aws:s3:::box", "arn:aws:logs:ap-northeast-1:123456789012:log-group:/far", "arn:aws:firehose:ap-northeast-1:123456789012:deliverystream/hose"
	for kind, arn := range map[string]string{logs.ToS3: bucketARN, logs.ToLogs: groupARN, logs.ToFirehose: hoseARN} {
		probe(kind, arn, "ResourceNotFoundException")
	}
	c := client(moto, motoKey)
	makeBucket(t, c, "box")
	makeBucket(t, c, "hose")
	call("logs", logsTarget, "CreateLogGroup", map[string]any{"logGroupName": "/far"}, nil)
	call("firehose", "Firehose_20150804", "CreateDeliveryStream", map[string]any{
		"DeliveryStreamName":         "hose",
		"S3DestinationConfiguration": map[string]any{"RoleARN": "arn:aws:iam::123456789012:role/x", "BucketARN": "arn:aws:s3:::hose"},
	}, nil)
	for kind, arn := range map[string]string{logs.ToS3: bucketARN, logs.ToLogs: groupARN, logs.ToFirehose: hoseARN} {
		probe(kind, arn, "")
	}
	if left := objectsIn(t, c, "box"); len(left) != 0 {
		t.Errorf("the probe left %v", left)
	}

	j := s.journal(logs.SchedulerLogs, "slurmctld")
	s.deliver("S3", logs.SchedulerLogs, logs.ToS3, "box")
	s.deliver("CWL", logs.SchedulerLogs, logs.ToLogs, "/far")
	s.deliver("FH", logs.SchedulerLogs, logs.ToFirehose, "hose")
	start := func() {
		s.start(func(o *Options) { o.Interval, o.Destinations = time.Second, d })
	}
	start()
	inLogs := func() (out []string) {
		t.Helper()
		var answer struct {
			Events []struct{ Message string } `json:"events"`
		}
		err := direct.JSON(t.Context(), "logs", logsTarget, "GetLogEvents", "1.1", map[string]any{"logGroupName": "/far", "logStreamName": "AWSLogs/PCS/" + testCluster + "/slurmctld_26.05.log", "startFromHead": true}, &answer)
		if err != nil {
			return nil // there is no stream yet
		}
		for _, e := range answer.Events {
			out = append(out, e.Message)
		}
		return out
	}
	arrived := func(to int) func() error {
		return func() error {
			hose := map[int]bool{} // at least once
			for _, n := range plainLinesIn(t, c, "hose") {
				hose[n] = true
			}
			got := []int{}
			for n := range maps.Keys(hose) {
				got = append(got, n)
			}
			if err := exactly(got, 1, to); err != nil {
				return fmt.Errorf("firehose: %w", err)
			}
			if err := exactly(linesIn(t, c, "box"), 1, to); err != nil {
				return fmt.Errorf("s3: %w", err)
			}
			if err := exactly(numbers(t, inLogs()), 1, to); err != nil {
				return fmt.Errorf("logs: %w", err)
			}
			return nil
		}
	}
	s.say(j, 1, 1200) // more than one call of Firehose
	until(t, "when all is well", arrived(1200))
	trouble := func(what string, mood *atomic.Bool, from, to int) {
		t.Helper()
		mood.Store(true)
		s.say(j, from, to)
		until(t, what, func() error {
			for _, id := range []string{"S3", "CWL", "FH"} {
				if st := s.status(id); st.Retries < 2 {
					return fmt.Errorf("%+v", st)
				}
			}
			return nil
		})
		s.runner.Stop() // nothing of it lives in memory alone
		mood.Store(false)
		start()
		until(t, "after "+what, arrived(to))
	}
	trouble("requests lost", &lost, 1201, 1210)
	trouble("answers lost", &mute, 1211, 1220)
	trouble("empty answers", &empty, 1221, 1230)

	// A record that is too old for CloudWatch Logs is counted, the others come.
	now := time.Now()
	err = j.Append(nil, []journal.Entry{
		{Time: now.Add(-20 * 24 * time.Hour).UnixMilli(), Release: "26.05.5", Text: []byte("old\n")},
		{Time: now.UnixMilli(), Release: "26.05.5", Text: []byte("line 1231\n")},
	})
	if err != nil {
		t.Fatal(err)
	}
	until(t, "with an old record", func() error { return exactly(numbers(t, inLogs()), 1, 1231) })
}

// plainLinesIn are the numbers of the lines in objects that are not compressed.
func plainLinesIn(t *testing.T, c *sdk.Client, bucket string) (out []int) {
	t.Helper()
	for _, body := range objectsIn(t, c, bucket) {
		out = append(out, numbers(t, strings.Split(string(body), "\n"))...)
	}
	return out
}

package delivery

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/openpcs/openpcs/internal/awsapi"
	"github.com/openpcs/openpcs/internal/awsapi/awsapitest"
	"github.com/openpcs/openpcs/internal/condition"
	"github.com/openpcs/openpcs/internal/logs"
	"github.com/openpcs/openpcs/internal/s3"
	"github.com/openpcs/openpcs/internal/s3/gateway"
)

// Environment variables that make the test binary another program.
const (
	storageEnv  = "OPENPCS_DELIVERY_TEST_STORAGE"
	pipelineEnv = "OPENPCS_DELIVERY_TEST_PIPELINE"
)

func TestMain(m *testing.M) {
	var err error
	switch {
	case os.Getenv(storageEnv) != "":
		err = gateway.Run(context.Background(), os.Stdin, os.Stdout)
	case os.Getenv(pipelineEnv) != "":
		err = runPipeline()
	default:
		os.Exit(m.Run())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// storage is the service s3 with its storage, as users have it.
type storage struct {
	*s3.S3
	client *sdk.Client
	url    string
	key    awsapi.Key
}

func newStorage(t *testing.T) *storage {
	t.Helper()
	dir, err := os.MkdirTemp("", "delivery-") // sockets have short paths
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	w := awsapitest.New(t)
	b := &storage{key: w.Root, S3: s3.New(s3.Options{
		Dir: dir, Account: article.Account, Region: testRegion, Secret: []byte("secret"),
		Command: []string{"/usr/bin/env", storageEnv + "=1", os.Args[0]}, Logger: quiet,
	})}
	t.Cleanup(b.Stop)
	srv := httptest.NewServer(awsapi.NewServer(awsapi.Options{Keys: w.Keys, Account: article.Account, Services: []awsapi.Service{b.Service()}, Logger: quiet}))
	t.Cleanup(srv.Close)
	b.url = srv.URL
	b.client = client(srv.URL, w.Root)
	return b
}

// client is the official one.
func client(url string, key awsapi.Key) *sdk.Client {
	return sdk.New(sdk.Options{
		BaseEndpoint: &url, UsePathStyle: true, Region: testRegion, HTTPClient: awsapitest.SDK,
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: key.ID, SecretAccessKey: key.Secret}, nil
		}),
	})
}

func makeBucket(t *testing.T, c *sdk.Client, name string) {
	t.Helper()
	_, err := c.CreateBucket(t.Context(), &sdk.CreateBucketInput{Bucket: &name, CreateBucketConfiguration: &types.CreateBucketConfiguration{LocationConstraint: testRegion}})
	if err != nil {
		t.Fatal(err)
	}
}

// objectsIn returns what a bucket has, by key.
func objectsIn(t *testing.T, c *sdk.Client, bucket string) map[string][]byte {
	t.Helper()
	out := map[string][]byte{}
	pages := sdk.NewListObjectsV2Paginator(c, &sdk.ListObjectsV2Input{Bucket: &bucket})
	for pages.HasMorePages() {
		page, err := pages.NextPage(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range page.Contents {
			got, err := c.GetObject(t.Context(), &sdk.GetObjectInput{Bucket: &bucket, Key: o.Key})
			if err != nil {
				t.Fatal(err)
			}
			if out[*o.Key], err = io.ReadAll(got.Body); err != nil {
				t.Fatal(err)
			}
			_ = got.Body.Close()
		}
	}
	return out
}

// linesIn are the numbers of the lines in a bucket.
func linesIn(t *testing.T, c *sdk.Client, bucket string) (out []int) {
	t.Helper()
	for _, body := range objectsIn(t, c, bucket) {
		out = append(out, numbers(t, strings.Split(unzip(t, body), "\n"))...)
	}
	return out
}

// patience is what only something that hangs exceeds.
const patience = 60 * time.Second

// until polls for something.
func until(t *testing.T, what string, f func() error) {
	t.Helper()
	err := errors.New("never looked")
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for deadline := time.Now().Add(patience); err != nil && time.Now().Before(deadline); <-ticker.C {
		if err = f(); err == nil {
			return
		}
	}
	t.Fatalf("%s: %v", what, err)
}

// articlePolicy is the one that the article prints.
const articlePolicy = `{"Version": "2012-10-17", "Statement": [
	{"Sid": "AWSLogDeliveryWrite", "Effect": "Allow", "Principal": {"Service": "delivery.logs.amazonaws.com"}, "Action": "s3:PutObject",
	 "Resource": "arn:aws:s3:::audit/AWSLogs/123456789012/*", "Condition": {
		"StringEquals": {"s3:x-amz-acl": "bucket-owner-full-control", "aws:SourceAccount": "123456789012"},
		"ArnLike": {"aws:SourceArn": "arn:aws:logs:ap-northeast-1:123456789012:delivery-source:*"}}},
	{"Sid": "AWSLogDeliveryAclCheck", "Effect": "Allow", "Principal": {"Service": "delivery.logs.amazonaws.com"}, "Action": "s3:GetBucketAcl",
	 "Resource": "arn:aws:s3:::audit", "Condition": {"StringEquals": {"aws:SourceAccount": "123456789012"},
		"ArnLike": {"aws:SourceArn": "arn:aws:logs:ap-northeast-1:123456789012:delivery-source:*"}}}]}`

// A bucket needs the policy, at the creation of a delivery and later; what was
// refused meanwhile comes when it is there again.
func TestPermissions(t *testing.T) {
	b := newStorage(t)
	s := newSite(t, b)
	d := &Destinations{Account: article.Account, Buckets: b, Groups: s.logs}
	link := func(name string) logs.Link {
		return logs.Link{
			Delivery:    logs.Delivery{ID: "D1", Region: testRegion, Type: logs.ToS3, S3: &logs.S3Path{}},
			Source:      logs.Source{ARN: "arn:aws:logs:ap-northeast-1:123456789012:delivery-source:audit-source", ResourceARN: "arn:aws:pcs:ap-northeast-1:123456789012:cluster/" + testCluster, LogType: logs.SchedulerAuditLogs},
			Destination: logs.Destination{Type: logs.ToS3, ResourceARN: "arn:aws:s3:::" + name},
		}
	}
	probe := func(what string, l logs.Link, code string, texts ...string) {
		t.Helper()
		err := d.Probe(t.Context(), l)
		var api *awsapi.Error
		if code == "" {
			if err != nil {
				t.Errorf("%s: %v", what, err)
			}
			return
		}
		if !errors.As(err, &api) || api.Code != code {
			t.Errorf("%s: %v, want %s", what, err, code)
			return
		}
		for _, text := range texts {
			if !strings.Contains(api.Message, text) {
				t.Errorf("%s: %q lacks %q", what, api.Message, text)
			}
		}
	}
	probe("no bucket", link("audit"), "ResourceNotFoundException", "no bucket audit")
	makeBucket(t, b.client, "audit")
	probe("no policy", link("audit"), "AccessDeniedException", "bucket audit", `"s3:PutObject"`, "arn:aws:s3:::audit/AWSLogs/123456789012/*", "delivery.logs.amazonaws.com")
	policy := func(text string) {
		t.Helper()
		name := "audit"
		var err error
		if text == "" {
			_, err = b.client.DeleteBucketPolicy(t.Context(), &sdk.DeleteBucketPolicyInput{Bucket: &name})
		} else {
			_, err = b.client.PutBucketPolicy(t.Context(), &sdk.PutBucketPolicyInput{Bucket: &name, Policy: &text})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	policy(strings.ReplaceAll(articlePolicy, "delivery-source:*", "delivery-source:other"))
	probe("a policy for another source", link("audit"), "AccessDeniedException")
	policy(articlePolicy)
	probe("the policy", link("audit"), "")
	if left := objectsIn(t, b.client, "audit"); len(left) != 0 {
		t.Errorf("the probe left %v", left)
	}
	group := link("")
	group.Destination = logs.Destination{Type: logs.ToLogs, ResourceARN: "arn:aws:logs:ap-northeast-1:123456789012:log-group:/none:*"}
	probe("no group", group, "ResourceNotFoundException", "no log group /none")
	group.Destination.ResourceARN = "arn:aws:logs:ap-northeast-1:123456789012:log-group:" + testGroup
	probe("a group", group, "")
	group.Destination = logs.Destination{Type: logs.ToFirehose, ResourceARN: "arn:aws:firehose:ap-northeast-1:123456789012:deliverystream/x"}
	probe("no Firehose", group, "ValidationException", "OPENPCS_FIREHOSE_ENDPOINT")

	j := s.journal(logs.SchedulerAuditLogs, "slurmctld")
	s.deliver("D1", logs.SchedulerAuditLogs, logs.ToS3, "audit")
	s.start(func(o *Options) { o.Interval = time.Second })
	s.say(j, 1, 10)
	arrived := func(to int) func() error {
		return func() error { return exactly(linesIn(t, b.client, "audit"), 1, to) }
	}
	until(t, "with the policy", arrived(10))
	policy("")
	s.say(j, 11, 20)
	until(t, "without the policy", func() error {
		if st := s.status("D1"); st.Trouble == nil || st.Trouble.Code != condition.LogDeliveryDenied {
			return fmt.Errorf("%+v", st)
		}
		return nil
	})
	policy(articlePolicy)
	until(t, "with the policy again", arrived(20))
	if st := s.status("D1"); st.Dropped != 0 || st.Refused != 0 {
		t.Errorf("the status is %+v", st)
	}
}

// deaf is S3 that takes requests and never answers.
type deaf struct{}

func (deaf) Send(req *http.Request, _ string, _ s3.Sender) (*http.Response, error) {
	<-req.Context().Done()
	return nil, req.Context().Err()
}

// create-delivery answers before clients give up, also for S3 that never does.
func TestProbeOfAHangingDestination(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		d := &Destinations{Account: article.Account, Buckets: deaf{}}
		err := d.Probe(ctx, logs.Link{
			Delivery:    logs.Delivery{ID: "D1", Region: testRegion},
			Source:      logs.Source{LogType: logs.SchedulerLogs},
			Destination: logs.Destination{Type: logs.ToS3, ResourceARN: "arn:aws:s3:::box"},
		})
		var answer *awsapi.Error
		if !errors.As(err, &answer) || answer.Code != "ServiceUnavailableException" {
			t.Errorf("got %v", err)
		}
		if ctx.Err() != nil {
			t.Error("the caller gave up before")
		}
	})
}

// flaky is a way to S3 on which requests get lost, and answers.
type flaky struct {
	http.Handler
	mood func() (lost, mute bool)
}

func (f *flaky) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	lost, mute := f.mood()
	if lost {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	if !mute {
		f.Handler.ServeHTTP(w, r)
		return
	}
	f.Handler.ServeHTTP(httptest.NewRecorder(), r)
	panic(http.ErrAbortHandler)
}

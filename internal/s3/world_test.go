package s3_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go"

	"github.com/openpcs/openpcs/internal/awsapi"
	"github.com/openpcs/openpcs/internal/awsapi/awsapitest"
	"github.com/openpcs/openpcs/internal/s3"
	"github.com/openpcs/openpcs/internal/s3/gateway"
)

// storageEnv makes the test binary the program of the storage.
const storageEnv = "OPENPCS_S3_TEST_STORAGE"

func TestMain(m *testing.M) {
	if os.Getenv(storageEnv) == "" {
		os.Exit(m.Run())
	}
	if err := gateway.Run(context.Background(), os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// world is a front door with the service s3.
type world struct {
	*awsapitest.World
	s3  *s3.S3
	dir string
}

// newWorld makes one whose buckets are in a folder of its own, or at the
// endpoint.
func newWorld(t *testing.T, endpoint *s3.Endpoint) *world {
	t.Helper()
	// Sockets have short paths.
	dir, err := os.MkdirTemp("", "s3-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return newWorldIn(t, dir, endpoint)
}

func newWorldIn(t *testing.T, dir string, endpoint *s3.Endpoint) *world {
	t.Helper()
	w := &world{World: awsapitest.New(t), dir: dir}
	w.s3 = s3.New(s3.Options{
		Dir: dir, Account: awsapitest.Account, Region: awsapitest.Region, Secret: []byte("secret"), Endpoint: endpoint,
		Command: []string{"/usr/bin/env", storageEnv + "=1", os.Args[0]},
		Logger:  slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	t.Cleanup(w.s3.Stop)
	srv := httptest.NewServer(awsapi.NewServer(awsapi.Options{
		Keys: w.Keys, Account: awsapitest.Account, Services: []awsapi.Service{w.s3.Service()},
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	}))
	t.Cleanup(srv.Close)
	w.URL = srv.URL
	return w
}

// client is the official one, with a key.
func (w *world) client(key awsapi.Key, more ...func(*sdk.Options)) *sdk.Client {
	return sdk.New(sdk.Options{
		BaseEndpoint: aws.String(w.URL), UsePathStyle: true, Region: awsapitest.Region, RetryMaxAttempts: 1, HTTPClient: awsapitest.SDK,
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: key.ID, SecretAccessKey: key.Secret, SessionToken: key.Token}, nil
		}),
	}, more...)
}

// role is a key of an instance's role with these policies.
func (w *world) role(t *testing.T, allow, deny []string) awsapi.Key {
	t.Helper()
	key, err := w.Keys.IssueSession(t.Context(), awsapi.Caller{
		Account: awsapitest.Account, ARN: "arn:aws:sts::" + awsapitest.Account + ":assumed-role/AWSPCS-node/i-0123456789abcdef0",
		UserID: "AROAEXAMPLE:i-0123456789abcdef0", InstanceID: "i-0123456789abcdef0", From: "127.0.0.1", Allow: allow, Deny: deny,
	}, time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func (w *world) bucket(t *testing.T, name string) {
	t.Helper()
	_, err := w.client(w.Root).CreateBucket(t.Context(), &sdk.CreateBucketInput{
		Bucket: &name, CreateBucketConfiguration: &types.CreateBucketConfiguration{LocationConstraint: awsapitest.Region},
	})
	if err != nil {
		t.Fatal(err)
	}
}

func put(t *testing.T, c *sdk.Client, bucket, key, body string) error {
	t.Helper()
	_, err := c.PutObject(t.Context(), &sdk.PutObjectInput{Bucket: &bucket, Key: &key, Body: strings.NewReader(body)})
	return err
}

func get(t *testing.T, c *sdk.Client, bucket, key string) (string, error) {
	t.Helper()
	out, err := c.GetObject(t.Context(), &sdk.GetObjectInput{Bucket: &bucket, Key: &key})
	if err != nil {
		return "", err
	}
	defer func() { _ = out.Body.Close() }()
	body, err := io.ReadAll(out.Body)
	return string(body), err
}

func keys(t *testing.T, c *sdk.Client, bucket string) (names []string) {
	t.Helper()
	out, err := c.ListObjectsV2(t.Context(), &sdk.ListObjectsV2Input{Bucket: &bucket})
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range out.Contents {
		names = append(names, *o.Key)
	}
	return names
}

// code is that of an error of the service.
func code(err error) string {
	var api smithy.APIError
	switch {
	case err == nil:
		return ""
	case errors.As(err, &api):
		return api.ErrorCode()
	}
	return err.Error()
}

func want(t *testing.T, what string, err error, code_ string) {
	t.Helper()
	if got := code(err); got != code_ {
		t.Errorf("%s: %q (%v), want %q", what, got, err, code_)
	}
}

// storagePID is the process of the storage.
func (w *world) storagePIDs(t *testing.T) (pids []string) {
	t.Helper()
	// It works in the folder of the buckets.
	links, err := filepath.Glob("/proc/[0-9]*/cwd")
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range links {
		if to, err := os.Readlink(link); err == nil && to == filepath.Join(w.dir, "buckets") {
			pids = append(pids, filepath.Base(filepath.Dir(link)))
		}
	}
	return pids
}

func (w *world) url(t *testing.T, path string) *url.URL {
	t.Helper()
	u, err := url.Parse(w.URL + path)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// idle waits until the storage has no unnamed or temporary file open, that is,
// until it is through with every upload.
func (w *world) idle(t *testing.T) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; {
		busy := 0
		for _, pid := range w.storagePIDs(t) {
			links, err := filepath.Glob("/proc/" + pid + "/fd/*")
			if err != nil {
				t.Fatal(err)
			}
			for _, link := range links {
				to, err := os.Readlink(link)
				if err == nil && strings.HasPrefix(to, w.dir) && to != filepath.Join(w.dir, "buckets") {
					busy++
				}
			}
		}
		switch {
		case busy == 0:
			return
		case time.Now().After(deadline):
			t.Fatalf("the storage has %d files open", busy)
		}
		runtime.Gosched()
	}
}

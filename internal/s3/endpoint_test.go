package s3_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/openpcs/openpcs/internal/awsapi"
	"github.com/openpcs/openpcs/internal/awsapi/awsapitest"
	"github.com/openpcs/openpcs/internal/s3"
)

// credentials writes a key as the AWS CLI keeps it.
func credentials(t *testing.T, key awsapi.Key) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "credentials")
	text := fmt.Sprintf("[other]\naws_access_key_id = x\n\n# the far one\n[default]\naws_access_key_id = %s\naws_secret_access_key=%s\n", key.ID, key.Secret)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestEndpointElsewhere: with an endpoint nothing is kept here, all goes there in
// one name, and the callers' policies hold.
func TestEndpointElsewhere(t *testing.T) {
	far := newWorld(t, nil)
	file := credentials(t, far.Root)
	endpoint, err := s3.NewEndpoint(far.URL, "ap-northeast-1", file)
	if err != nil {
		t.Fatal(err)
	}
	near := newWorld(t, endpoint)
	near.bucket(t, "logs")
	objects(t, near.client(near.Root), "logs")
	if body, err := get(t, far.client(far.Root), "logs", "copy"); body != "body of a" {
		t.Errorf("there it is %q, %v", body, err)
	}
	if entries, err := os.ReadDir(near.dir); err != nil || len(entries) > 0 || len(near.storagePIDs(t)) > 0 {
		t.Errorf("here are %v, %v", entries, err)
	}

	bucket, key := aws.String("logs"), aws.String("copy")
	type call func(c *sdk.Client) error
	getObject := func(c *sdk.Client) error { _, err := get(t, c, "logs", "copy"); return err }
	putObject := func(c *sdk.Client) error { return put(t, c, "logs", "new", "x") }
	copyObject := func(c *sdk.Client) error {
		_, err := c.CopyObject(t.Context(), &sdk.CopyObjectInput{Bucket: bucket, Key: aws.String("c2"), CopySource: aws.String("logs/copy")})
		return err
	}
	list := func(c *sdk.Client) error {
		_, err := c.ListObjectsV2(t.Context(), &sdk.ListObjectsV2Input{Bucket: bucket, Prefix: aws.String("w")})
		return err
	}
	tagging := func(c *sdk.Client) error {
		_, err := c.GetObjectTagging(t.Context(), &sdk.GetObjectTaggingInput{Bucket: bucket, Key: key})
		return err
	}
	for _, tt := range []struct {
		name        string
		call        call
		allow, deny []string
		code        string
	}{
		{"get", getObject, []string{"s3:GetObject"}, nil, ""},
		{"get", getObject, []string{"s3:PutObject", "ec2:*"}, nil, "AccessDenied"},
		{"get", getObject, []string{"*"}, []string{"s3:Get*"}, "AccessDenied"},
		{"put", putObject, []string{"s3:PutObject"}, nil, ""},
		{"put", putObject, []string{"s3:Get*"}, nil, "AccessDenied"},
		{"copy", copyObject, []string{"s3:PutObject"}, nil, "AccessDenied"},
		{"copy", copyObject, []string{"s3:PutObject", "s3:GetObject"}, nil, ""},
		{"list", list, []string{"s3:ListBucket"}, nil, ""},
		{"list", list, []string{"s3:GetObject"}, nil, "AccessDenied"},
		{"tags", tagging, []string{"s3:Get*"}, nil, "AccessDenied"},
		{"tags", tagging, []string{"s3:*"}, nil, ""},
		{"tags", tagging, []string{"s3:*"}, []string{"s3:GetObjectTagging"}, "AccessDenied"},
	} {
		want(t, fmt.Sprintf("%s with %v without %v", tt.name, tt.allow, tt.deny), tt.call(near.client(near.role(t, tt.allow, tt.deny))), tt.code)
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	want(t, "get when the credentials are gone", getObject(near.client(near.Root)), "ServiceUnavailable")
}

func TestWrongEndpoints(t *testing.T) {
	good := credentials(t, awsapi.Key{ID: "AKIAX", Secret: "verysecret"})
	open := credentials(t, awsapi.Key{ID: "AKIAX", Secret: "verysecret"})
	if err := os.Chmod(open, 0o644); err != nil {
		t.Fatal(err)
	}
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, []byte("[default]\naws_secret_access_key=verysecret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ url, region, file, says string }{
		{"https://s3.example.com", awsapitest.Region, good, ""},
		{"https://s3.example.com:9000/", awsapitest.Region, good, ""},
		{"s3.example.com", awsapitest.Region, good, "not an address"},
		{"ftp://s3.example.com", awsapitest.Region, good, "not an address"},
		{"https://s3.example.com/path", awsapitest.Region, good, "not an address"},
		{"https://user:password@s3.example.com", awsapitest.Region, good, "not an address"},
		{"https://s3.example.com", "tokyo", good, "not a region"},
		{"https://s3.example.com", awsapitest.Region, open, "chmod 600"},
		{"https://s3.example.com", awsapitest.Region, empty, "aws_access_key_id"},
		{"https://s3.example.com", awsapitest.Region, "/nonexistent", "/nonexistent"},
	} {
		_, err := s3.NewEndpoint(tt.url, tt.region, tt.file)
		if (err == nil) != (tt.says == "") || (err != nil && (!strings.Contains(err.Error(), tt.says) || strings.Contains(err.Error(), "verysecret"))) {
			t.Errorf("%+v: %v", tt, err)
		}
	}
}

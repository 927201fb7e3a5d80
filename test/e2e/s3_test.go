//go:build e2e

package e2e

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/openpcs/openpcs/internal/awsapi"
)

// s3 runs aws s3, which must succeed.
func s3(t *testing.T, args ...string) string {
	t.Helper()
	return aws(t, append([]string{"s3"}, args...)...)
}

// TestS3 is what people do with the AWS CLI.
func TestS3(t *testing.T) {
	dir := t.TempDir()
	write := func(name, body string) string {
		t.Helper()
		path := filepath.Join(dir, name)
		must(t, os.MkdirAll(filepath.Dir(path), 0o755) == nil && os.WriteFile(path, []byte(body), 0o644) == nil, "write %s", path)
		return path
	}
	s3(t, "mb", "s3://e2e-box")
	t.Cleanup(func() { s3(t, "rb", "--force", "s3://e2e-box") })

	small := write("tree/a b/日本 ü+%20.txt", "hello")
	s3(t, "cp", small, "s3://e2e-box/one/日本 ü+%20.txt")
	if got := s3(t, "cp", "s3://e2e-box/one/日本 ü+%20.txt", "-"); got != "hello" {
		t.Errorf("came back as %q", got)
	}
	write("tree/b", "b")
	s3(t, "sync", filepath.Join(dir, "tree"), "s3://e2e-box/tree")
	s3(t, "mv", "s3://e2e-box/tree", "s3://e2e-box/moved", "--recursive")
	s3(t, "sync", "s3://e2e-box/moved", filepath.Join(dir, "back"))
	if got, err := os.ReadFile(filepath.Join(dir, "back", "a b", "日本 ü+%20.txt")); string(got) != "hello" {
		t.Errorf("synchronized back it is %q, %v", got, err)
	}
	if got := s3(t, "ls", "s3://e2e-box", "--recursive"); strings.Count(got, "\n") != 2 || strings.Contains(got, "tree/") {
		t.Errorf("there is %s", got)
	}

	big := write("big", strings.Repeat("0123456789abcdef", 4<<20))
	s3(t, "cp", "--no-progress", big, "s3://e2e-box/big")
	s3(t, "cp", "--no-progress", "s3://e2e-box/big", filepath.Join(dir, "big.back"))
	want, err := os.ReadFile(big)
	got, err2 := os.ReadFile(filepath.Join(dir, "big.back"))
	must(t, err == nil && err2 == nil && bytes.Equal(want, got), "64 MiB came back as %d bytes, %v %v", len(got), err, err2)
	aws(t, "s3api", "get-object", "--bucket", "e2e-box", "--key", "big", "--range", "bytes=16-31", filepath.Join(dir, "range"))
	if part, err := os.ReadFile(filepath.Join(dir, "range")); string(part) != "0123456789abcdef" {
		t.Errorf("a range is %q, %v", part, err)
	}

	code, body, err := do(http.DefaultClient, http.MethodGet, s3(t, "presign", "s3://e2e-box/one/日本 ü+%20.txt"))
	if code != http.StatusOK || body != "hello" {
		t.Errorf("the presigned URL answers %d %q, %v", code, body, err)
	}
	code, body, err = do(http.DefaultClient, http.MethodGet, "http://"+listen+"/e2e-box/big")
	if code != http.StatusForbidden || !strings.Contains(body, "<Code>AccessDenied</Code>") {
		t.Errorf("without a signature: %d %q, %v", code, body, err)
	}

	for _, tt := range []struct {
		code string
		args []string
	}{
		{"NoSuchBucket", []string{"s3", "ls", "s3://e2e-nothing"}},
		{"NoSuchKey", []string{"s3api", "get-object", "--bucket", "e2e-box", "--key", "nothing", filepath.Join(dir, "x")}},
		{"BucketAlreadyOwnedByYou", []string{"s3api", "create-bucket", "--bucket", "e2e-box", "--create-bucket-configuration", "LocationConstraint=" + region}},
		{"InvalidBucketName", []string{"s3api", "create-bucket", "--bucket", "E2E_box"}},
		{"MalformedPolicy", []string{"s3api", "put-bucket-policy", "--bucket", "e2e-box", "--policy", "{}"}},
	} {
		if r := awsRun(tt.args...); r.code == 0 || !strings.Contains(r.errOut, tt.code) {
			t.Errorf("no %s: %s", tt.code, r)
		}
	}
	r := run(append(clientEnv[:len(clientEnv):len(clientEnv)], "AWS_SECRET_ACCESS_KEY=wrong"), os.Getenv(awsEnv), "s3", "ls")
	if r.code == 0 || !strings.Contains(r.errOut, "SignatureDoesNotMatch") {
		t.Errorf("with a wrong key: %s", r)
	}
	policy := `{"Version":"2012-10-17","Statement":[{"Effect":"Deny","Principal":"*","Action":"s3:GetObject","Resource":"arn:aws:s3:::e2e-box/one/*"}]}`
	aws(t, "s3api", "put-bucket-policy", "--bucket", "e2e-box", "--policy", policy)
	if got := aws(t, "s3api", "get-bucket-policy", "--bucket", "e2e-box", "--query", "Policy", "--output", "text"); got != policy {
		t.Errorf("the policy is %s", got)
	}
	if r := awsRun("s3api", "get-object", "--bucket", "e2e-box", "--key", "one/日本 ü+%20.txt", filepath.Join(dir, "x")); !strings.Contains(r.errOut, "explicit deny in a resource-based policy") {
		t.Errorf("what the policy denies: %s", r)
	}
	aws(t, "s3api", "delete-bucket-policy", "--bucket", "e2e-box")
}

// TestS3Versions: a launch names the version of its script.
func TestS3Versions(t *testing.T) {
	s3(t, "mb", "s3://e2e-versions")
	t.Cleanup(func() {
		type version struct{ Key, VersionId string } //nolint:revive // as in the answer
		all := awsGet[struct{ Versions, DeleteMarkers []version }](t, "s3api", "list-object-versions", "--bucket", "e2e-versions")
		for _, v := range append(all.Versions, all.DeleteMarkers...) {
			aws(t, "s3api", "delete-object", "--bucket", "e2e-versions", "--key", v.Key, "--version-id", v.VersionId)
		}
		s3(t, "rb", "s3://e2e-versions")
	})
	aws(t, "s3api", "put-bucket-versioning", "--bucket", "e2e-versions", "--versioning-configuration", "Status=Enabled")
	dir := t.TempDir()
	put := func(body string) (id string) {
		t.Helper()
		path := filepath.Join(dir, "body")
		must(t, os.WriteFile(path, []byte(body), 0o644) == nil, "write %s", path)
		return aws(t, "s3api", "put-object", "--bucket", "e2e-versions", "--key", "k", "--body", path, "--query", "VersionId", "--output", "text")
	}
	first, _ := put("one"), put("two")
	s3(t, "rm", "s3://e2e-versions/k")
	aws(t, "s3api", "get-object", "--bucket", "e2e-versions", "--key", "k", "--version-id", first, filepath.Join(dir, "got"))
	if got, err := os.ReadFile(filepath.Join(dir, "got")); string(got) != "one" {
		t.Errorf("the first version is %q, %v", got, err)
	}
	if got := aws(t, "s3api", "list-object-versions", "--bucket", "e2e-versions", "--query", "[length(Versions), length(DeleteMarkers)]", "--output", "text"); got != "2\t1" {
		t.Errorf("versions and markers: %q", got)
	}
}

// TestS3Killed: what was answered is there after a kill -9 of the control plane,
// and what was on its way is not.
func TestS3Killed(t *testing.T) {
	s3(t, "mb", "s3://e2e-killed")
	t.Cleanup(func() { s3(t, "rb", "--force", "s3://e2e-killed") })
	var key awsapi.Key
	for _, line := range clientEnv {
		if v, ok := strings.CutPrefix(line, "AWS_ACCESS_KEY_ID="); ok {
			key.ID = v
		}
		if v, ok := strings.CutPrefix(line, "AWS_SECRET_ACCESS_KEY="); ok {
			key.Secret = v
		}
	}
	put := func(name string, body io.Reader, length int64) (int, error) {
		req, err := http.NewRequest(http.MethodPut, "http://"+listen+"/e2e-killed/"+name, body)
		if err != nil {
			return 0, err
		}
		req.ContentLength = length
		awsapi.SignHash(req, "UNSIGNED-PAYLOAD", key, region, "s3", time.Now())
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return 0, err
		}
		defer func() { _ = resp.Body.Close() }()
		return resp.StatusCode, nil
	}
	code, err := put("whole", strings.NewReader("all of it"), 9)
	must(t, code == http.StatusOK, "put: %d %v", code, err)
	body, rest := io.Pipe()
	done := make(chan error, 1)
	go func() {
		code, err := put("half", body, 8<<20)
		if err == nil && code == http.StatusOK {
			err = fmt.Errorf("it was taken")
		} else {
			err = nil
		}
		done <- err
	}()
	_, err = rest.Write(make([]byte, 4<<20))
	must(t, err == nil, "half an upload: %v", err)
	must(t, serving.kill() == nil, "kill the control plane")
	if err := serve(); err != nil {
		fail(t, "start again: %v", err)
	}
	_ = rest.CloseWithError(io.ErrUnexpectedEOF)
	if err := <-done; err != nil {
		t.Errorf("half an upload: %v", err)
	}
	if got := s3(t, "ls", "s3://e2e-killed"); !strings.HasSuffix(got, " whole") || strings.Contains(got, "half") {
		t.Errorf("there is %q", got)
	}
	if got := s3(t, "cp", "s3://e2e-killed/whole", "-"); got != "all of it" {
		t.Errorf("it is %q", got)
	}
}

// fetch gets an object on an instance with nothing but what the instance's role
// gives it, as lifecycle scripts may.
const fetch = `set -eu
token=$(curl -sf -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 60' http://169.254.169.254/latest/api/token)
of() { curl -sf -H "X-aws-ec2-metadata-token: $token" "http://169.254.169.254/latest/meta-data/iam/security-credentials/$1"; }
keys=$(of "$(of '')")
boot=$(curl -sf http://169.254.169.254/openpcs/v1/bootstrap)
s3() {
  curl -sS --fail-with-body --aws-sigv4 "aws:amz:$(echo "$boot" | jq -r .region):s3" \
    --user "$(echo "$keys" | jq -r '.AccessKeyId + ":" + .SecretAccessKey')" -H "X-Amz-Security-Token: $(echo "$keys" | jq -r .Token)" "$@"
}
endpoint=$(echo "$boot" | jq -r .endpoint)
`

// TestS3FromANode: a node reads and writes with its role's credentials, as far
// as the role's policies go, and the script library runs.
func TestS3FromANode(t *testing.T) {
	c := shared(t)
	s3(t, "mb", "s3://e2e-node")
	t.Cleanup(func() { s3(t, "rb", "--force", "s3://e2e-node") })
	// The keys of an instance have the policies of their time.
	aws(t, "iam", "put-role-policy", "--role-name", "AWSPCS-default", "--policy-name", "e2e-s3", "--policy-document",
		`{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":["s3:GetObject","s3:PutObject","s3:ListBucket","secretsmanager:GetSecretValue"],"Resource":"*"}]}`)
	t.Cleanup(func() {
		aws(t, "iam", "delete-role-policy", "--role-name", "AWSPCS-default", "--policy-name", "e2e-s3")
	})
	c.powerUp(t, "queue-1", "node-4")
	t.Cleanup(func() { c.powerDown(t, "node-4") })
	node := func(script string) result { return c.connect("node-4", "bash", "-c", fetch+script) }

	if got := succeed(t, node(`s3 -X PUT --data-binary "from the node" "$endpoint/e2e-node/note" && s3 "$endpoint/e2e-node/note"`)).line(); got != "from the node" {
		t.Errorf("the node reads %q", got)
	}
	if got := s3(t, "cp", "s3://e2e-node/note", "-"); got != "from the node" {
		t.Errorf("the node wrote %q", got)
	}
	if r := node(`s3 -X DELETE "$endpoint/e2e-node/note"`); r.code == 0 || !strings.Contains(r.out, "is not authorized to perform: s3:DeleteObject") {
		t.Errorf("deleting without leave: %s", r)
	}

	// A secret of another form than the script wants, and the only kind there is.
	secret := aws(t, "secretsmanager", "list-secrets", "--query", "SecretList[0].ARN", "--output", "text")
	const get = `s3 -o /tmp/script "$endpoint/aws-pcs-repo-` + region + `/aws-pcs-node-lifecycle-scripts/%s-v1-latest.sh" && `
	library := func(name, args string) result { return node(fmt.Sprintf(get, name) + "bash /tmp/script " + args) }
	for _, tt := range []struct {
		script, args string
		code         int
		says         string
	}{
		{"mount-efs", "--file-system-id /home/.data --mount-point /data", 0, "mounted /home/.data at /data"},
		{"mount-efs", "--file-system-id /home/.data --mount-point /data", 0, "is mounted at /data already"},
		{"mount-efs", "--file-system-id /home/.other --mount-point /data", 1, "/data is the place of /home/.data in /etc/fstab"},
		{"mount-efs", "--file-system-id fs-0123456789abcdef0 --mount-point /efs", 1, "/etc/openpcs/file-systems"},
		{"mount-efs", "--file-system-id nfs:/x --mount-point /efs --options tls", 2, "xprtsec=tls"},
		{"mount-fsx-lustre", "--fsx-dns-name l --mount-name m --mount-point /l", 1, "no Lustre client"},
		{"configure-efs-homes", "--efs-id /home", 0, "home directories are made in /home"},
		{"configure-ldaps", "--ldap-uri ldaps://l --search-base dc=x --secret-arn /etc/passwd", 1, "chmod 600"},
		{"configure-ldaps", "--ldap-uri ldaps://l --search-base dc=x --secret-arn " + secret, 1, "the secret is not of the form"},
		{"configure-ldaps", "--ldap-uri ldaps://l --search-base dc=x --secret-arn " + secret + "x", 1, "cannot be read: Secrets Manager can't find"},
		{"configure-ldaps", "--ldap-uri ldaps://l --search-base dc=x --tls-cacert s3://e2e-node/nothing", 1, "NoSuchKey"},
	} {
		if r := library(tt.script, tt.args); r.code != tt.code || !strings.Contains(r.out+r.errOut, tt.says) {
			t.Errorf("%s %s: %s", tt.script, tt.args, r)
		}
	}
	succeed(t, node("mkdir -p /etc/openpcs && echo fs-0123456789abcdef0 /home/.efs >/etc/openpcs/file-systems"))
	succeed(t, library("mount-efs", "--file-system-id fs-0123456789abcdef0 --mount-point /efs"))
	succeed(t, node("echo shared >/efs/file"))
	if got := c.login("cat", "/home/.efs/file").line(); got != "shared" {
		t.Errorf("another node sees %q", got)
	}
	// Each thing is there once, however often a script ran.
	const lines = `grep -c " /data " /etc/fstab; grep -c ^HOME=/home /etc/default/useradd; grep -c pam_mkhomedir /etc/pam.d/common-session`
	succeed(t, library("configure-efs-homes", "--efs-id /home"))
	if got := strings.Fields(node(lines).out); strings.Join(got, " ") != "1 1 1" {
		t.Errorf("lines: %v", got)
	}
	c.login("rm", "-rf", "/home/.efs", "/home/.data")
}

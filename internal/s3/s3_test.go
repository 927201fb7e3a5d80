package s3_test

import (
	"bytes"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"github.com/openpcs/openpcs/internal/awsapi"
	"github.com/openpcs/openpcs/internal/awsapi/awsapitest"
	"github.com/openpcs/openpcs/internal/s3"
)

// TestObjects has the official client do what scripts and logs need.
func TestObjects(t *testing.T) {
	w := newWorld(t, nil)
	w.bucket(t, "logs")
	objects(t, w.client(w.Root), "logs")
}

func objects(t *testing.T, c *sdk.Client, bucket string) {
	t.Helper()
	names := []string{"a", "with space", "ö/日本/ü+%20&=?#;,", "deep/er/and/deeper", "trailing.", "..hidden", "a~b'c(d)!*"}
	for _, name := range names {
		if err := put(t, c, bucket, name, "body of "+name); err != nil {
			t.Errorf("put %q: %v", name, err)
		}
		if body, err := get(t, c, bucket, name); err != nil || body != "body of "+name {
			t.Errorf("get %q: %q, %v", name, body, err)
		}
	}
	slices.Sort(names)
	if got := keys(t, c, bucket); !slices.Equal(got, names) {
		t.Errorf("keys are %q, want %q", got, names)
	}
	out, err := c.GetObject(t.Context(), &sdk.GetObjectInput{Bucket: &bucket, Key: aws.String("a"), Range: aws.String("bytes=5-6")})
	if err != nil {
		t.Fatal(err)
	}
	if part, err := io.ReadAll(out.Body); err != nil || string(part) != "of" || *out.ContentRange != "bytes 5-6/9" {
		t.Errorf("a range is %q of %s, %v", part, *out.ContentRange, err)
	}
	_, err = get(t, c, bucket, "not there")
	want(t, "get what is not there", err, "NoSuchKey")
	_, err = get(t, c, "no-such-bucket", "a")
	want(t, "get from no bucket", err, "NoSuchBucket")
	multipart(t, c, bucket)
	_, err = c.CopyObject(t.Context(), &sdk.CopyObjectInput{Bucket: &bucket, Key: aws.String("copy"), CopySource: aws.String(bucket + "/a")})
	want(t, "copy", err, "")
	if body, err := get(t, c, bucket, "copy"); body != "body of a" {
		t.Errorf("the copy is %q, %v", body, err)
	}
	_, err = c.DeleteObject(t.Context(), &sdk.DeleteObjectInput{Bucket: &bucket, Key: aws.String("a")})
	want(t, "delete", err, "")
	_, err = c.DeleteBucket(t.Context(), &sdk.DeleteBucketInput{Bucket: &bucket})
	want(t, "delete a bucket with objects", err, "BucketNotEmpty")
}

func multipart(t *testing.T, c *sdk.Client, bucket string) {
	t.Helper()
	key := aws.String("big")
	up, err := c.CreateMultipartUpload(t.Context(), &sdk.CreateMultipartUploadInput{Bucket: &bucket, Key: key})
	if err != nil {
		t.Fatal(err)
	}
	whole := make([]byte, 5<<20+100)
	_, _ = rand.Read(whole) // never fails
	var parts []types.CompletedPart
	for n, body := range [][]byte{whole[:5<<20], whole[5<<20:]} {
		number := aws.Int32(int32(n + 1))
		part, err := c.UploadPart(t.Context(), &sdk.UploadPartInput{Bucket: &bucket, Key: key, UploadId: up.UploadId, PartNumber: number, Body: bytes.NewReader(body)})
		if err != nil {
			t.Fatal(err)
		}
		parts = append(parts, types.CompletedPart{ETag: part.ETag, PartNumber: number, ChecksumCRC32: part.ChecksumCRC32})
	}
	if slices.Contains(keys(t, c, bucket), "big") {
		t.Error("an upload shows before it is complete")
	}
	_, err = c.CompleteMultipartUpload(t.Context(), &sdk.CompleteMultipartUploadInput{
		Bucket: &bucket, Key: key, UploadId: up.UploadId, MultipartUpload: &types.CompletedMultipartUpload{Parts: parts},
	})
	if err != nil {
		t.Fatal(err)
	}
	if body, err := get(t, c, bucket, "big"); err != nil || body != string(whole) {
		t.Errorf("the upload is %d bytes, %v", len(body), err)
	}
}

// TestVersions: a launch may name the version of a script.
func TestVersions(t *testing.T) {
	w := newWorld(t, nil)
	w.bucket(t, "scripts")
	c := w.client(w.Root)
	bucket, key := aws.String("scripts"), aws.String("setup.sh")
	_, err := c.PutBucketVersioning(t.Context(), &sdk.PutBucketVersioningInput{
		Bucket: bucket, VersioningConfiguration: &types.VersioningConfiguration{Status: types.BucketVersioningStatusEnabled},
	})
	want(t, "enable versions", err, "")
	first, err := c.PutObject(t.Context(), &sdk.PutObjectInput{Bucket: bucket, Key: key, Body: strings.NewReader("one")})
	want(t, "put", err, "")
	want(t, "put again", put(t, c, "scripts", "setup.sh", "two"), "")
	_, err = c.DeleteObject(t.Context(), &sdk.DeleteObjectInput{Bucket: bucket, Key: key})
	want(t, "delete", err, "")
	_, err = get(t, c, "scripts", "setup.sh")
	want(t, "get what was deleted", err, "NoSuchKey")

	read := w.client(w.role(t, []string{"s3:GetObject"}, nil))
	_, err = read.GetObject(t.Context(), &sdk.GetObjectInput{Bucket: bucket, Key: key, VersionId: first.VersionId})
	want(t, "get a version without s3:GetObjectVersion", err, "AccessDenied")
	read = w.client(w.role(t, []string{"s3:GetObjectVersion"}, nil))
	out, err := read.GetObject(t.Context(), &sdk.GetObjectInput{Bucket: bucket, Key: key, VersionId: first.VersionId})
	if err != nil {
		t.Fatal(err)
	}
	if body, _ := io.ReadAll(out.Body); string(body) != "one" || *out.VersionId != *first.VersionId {
		t.Errorf("the first version is %q", body)
	}
	list, err := c.ListObjectVersions(t.Context(), &sdk.ListObjectVersionsInput{Bucket: bucket})
	if err != nil || len(list.Versions) != 2 || len(list.DeleteMarkers) != 1 {
		t.Errorf("versions are %+v, %v", list, err)
	}
}

// TestPolicies: what the caller's own policies allow is allowed unless the
// bucket's denies it, and the bucket's may allow what they do not.
func TestPolicies(t *testing.T) {
	w := newWorld(t, nil)
	w.bucket(t, "box")
	admin := w.client(w.Root)
	want(t, "put", put(t, admin, "box", "k", "v"), "")
	const role = "arn:aws:iam::" + awsapitest.Account + ":role/AWSPCS-node"
	set := func(policy string) {
		t.Helper()
		_, err := admin.PutBucketPolicy(t.Context(), &sdk.PutBucketPolicyInput{Bucket: aws.String("box"), Policy: &policy})
		if err != nil {
			t.Fatalf("%s: %v", policy, err)
		}
	}
	statement := func(effect, principal, action, more string) string {
		return fmt.Sprintf(`{"Version":"2012-10-17","Statement":[{"Effect":%q,"Principal":%s,"Action":%q,"Resource":"arn:aws:s3:::box/*"%s}]}`, effect, principal, action, more)
	}
	for _, tt := range []struct {
		name, policy string
		allow, deny  []string
		get, put     string
	}{
		{"nothing allowed", "", nil, nil, "AccessDenied", "AccessDenied"},
		{"reading allowed", "", []string{"s3:Get*"}, nil, "", "AccessDenied"},
		{"all allowed but writing", "", []string{"*"}, []string{"s3:Put*"}, "", "AccessDenied"},
		{"all of another service", "", []string{"ec2:*"}, nil, "AccessDenied", "AccessDenied"},
		{"the bucket allows the role", statement("Allow", `{"AWS":"`+role+`"}`, "s3:GetObject", ""), nil, nil, "", "AccessDenied"},
		{"the bucket allows another role", statement("Allow", `{"AWS":"`+role+`2"}`, "s3:GetObject", ""), nil, nil, "AccessDenied", "AccessDenied"},
		{"the bucket denies", statement("Deny", `"*"`, "s3:PutObject", ""), []string{"s3:*"}, nil, "", "AccessDenied"},
		{"the bucket denies an address", statement("Deny", `"*"`, "s3:*", `,"Condition":{"IpAddress":{"aws:SourceIp":"127.0.0.0/8"}}`), []string{"s3:*"}, nil, "AccessDenied", "AccessDenied"},
		{"the bucket denies other addresses", statement("Deny", `"*"`, "s3:*", `,"Condition":{"NotIpAddress":{"aws:SourceIp":"127.0.0.0/8"}}`), []string{"s3:*"}, nil, "", ""},
		{"the role may not what the bucket allows", statement("Allow", `"*"`, "s3:*", ""), nil, []string{"s3:PutObject"}, "", "AccessDenied"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.policy != "" {
				set(tt.policy)
			} else if _, err := admin.DeleteBucketPolicy(t.Context(), &sdk.DeleteBucketPolicyInput{Bucket: aws.String("box")}); err != nil {
				t.Fatal(err)
			}
			c := w.client(w.role(t, tt.allow, tt.deny))
			_, err := get(t, c, "box", "k")
			want(t, "get", err, tt.get)
			want(t, "put", put(t, c, "box", "new", "v"), tt.put)
		})
	}

	set(`{"Version":"2012-10-17","Statement":{"Effect":"Deny","Principal":"*","Action":"s3:*","Resource":["arn:aws:s3:::box","arn:aws:s3:::box/*"]}}`)
	_, err := get(t, admin, "box", "k")
	want(t, "get what is denied to all", err, "AccessDenied")
	_, err = admin.DeleteBucketPolicy(t.Context(), &sdk.DeleteBucketPolicyInput{Bucket: aws.String("box")})
	want(t, "take the policy back", err, "")
	_, err = get(t, admin, "box", "k")
	want(t, "get afterwards", err, "")
}

// documented is the policy that AWS documents for buckets which logs are
// delivered to.
const documented = `{"Version":"2012-10-17","Id":"AWSLogDeliveryWrite20150319","Statement":[` +
	`{"Sid":"AWSLogDeliveryWrite","Effect":"Allow","Principal":{"Service":"delivery.logs.amazonaws.com"},"Action":"s3:PutObject","Resource":"arn:aws:s3:::logs/AWSLogs/123456789012/*",` +
	`"Condition":{"StringEquals":{"s3:x-amz-acl":"bucket-owner-full-control","aws:SourceAccount":["123456789012"]},"ArnLike":{"aws:SourceArn":["arn:aws:logs:ap-northeast-1:123456789012:delivery-source:*"]}}}]}`

// TestServices: a service may do what the policy of the bucket says, and nothing
// without one.
func TestServices(t *testing.T) {
	w := newWorld(t, nil)
	w.bucket(t, "logs")
	admin := w.client(w.Root)
	send := func(sender s3.Sender, key, acl string) int {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://s3/logs/"+key, strings.NewReader("line"))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Amz-Acl", acl)
		answer, err := w.s3.Send(req, "UNSIGNED-PAYLOAD", sender)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = answer.Body.Close() }()
		return answer.StatusCode
	}
	const (
		service = "delivery.logs.amazonaws.com"
		source  = "arn:aws:logs:ap-northeast-1:123456789012:delivery-source:pcs"
		key     = "AWSLogs/123456789012/line"
		acl     = "bucket-owner-full-control"
	)
	if got := send(s3.Sender{Service: service, SourceARN: source}, key, acl); got != http.StatusForbidden {
		t.Errorf("without a policy: %d", got)
	}
	_, err := admin.PutBucketPolicy(t.Context(), &sdk.PutBucketPolicyInput{Bucket: aws.String("logs"), Policy: aws.String(documented)})
	want(t, "put the documented policy", err, "")
	out, err := admin.GetBucketPolicy(t.Context(), &sdk.GetBucketPolicyInput{Bucket: aws.String("logs")})
	if err != nil || *out.Policy != documented {
		t.Errorf("the policy is %v, %v", out, err)
	}
	for _, tt := range []struct {
		name     string
		sender   s3.Sender
		key, acl string
		want     int
	}{
		{"as documented", s3.Sender{Service: service, SourceARN: source}, key, acl, http.StatusOK},
		{"another service", s3.Sender{Service: "vpc.amazonaws.com", SourceARN: source}, key, acl, http.StatusForbidden},
		{"another place", s3.Sender{Service: service, SourceARN: source}, "elsewhere", acl, http.StatusForbidden},
		{"another source", s3.Sender{Service: service, SourceARN: "arn:aws:logs:us-east-1:123456789012:delivery-source:pcs"}, key, acl, http.StatusForbidden},
		{"without the ACL", s3.Sender{Service: service, SourceARN: source}, key, "private", http.StatusForbidden},
	} {
		if got := send(tt.sender, tt.key, tt.acl); got != tt.want {
			t.Errorf("%s: %d, want %d", tt.name, got, tt.want)
		}
	}
	// A caller cannot make himself a service.
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, w.URL+"/logs/"+key, strings.NewReader("forged"))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Referer", source)
	req.Header.Set("User-Agent", awsapitest.Account)
	req.Header.Set("X-Amz-Acl", acl)
	awsapi.Sign(req, []byte("forged"), w.role(t, nil, nil), awsapitest.Region, "s3", time.Now())
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = answer.Body.Close()
	if answer.StatusCode != http.StatusForbidden {
		t.Errorf("a role that looks like a service: %s", answer.Status)
	}
}

// TestWrongPolicies: what is not understood is refused and not ignored.
func TestWrongPolicies(t *testing.T) {
	w := newWorld(t, nil)
	w.bucket(t, "box")
	c := w.client(w.Root)
	base := func(change func(map[string]any)) string {
		s := map[string]any{"Effect": "Deny", "Principal": "*", "Action": "s3:GetObject", "Resource": "arn:aws:s3:::box/*"}
		change(s)
		text, _ := json.Marshal(map[string]any{"Version": "2012-10-17", "Statement": []any{s}}) // plain data
		return string(text)
	}
	for name, policy := range map[string]string{
		"no JSON":                 "x",
		"NotPrincipal":            base(func(s map[string]any) { delete(s, "Principal"); s["NotPrincipal"] = "*" }),
		"NotAction":               base(func(s map[string]any) { delete(s, "Action"); s["NotAction"] = "s3:GetObject" }),
		"NotResource":             base(func(s map[string]any) { delete(s, "Resource"); s["NotResource"] = "arn:aws:s3:::box/*" }),
		"federated":               base(func(s map[string]any) { s["Principal"] = map[string]string{"Federated": "x"} }),
		"a service as AWS":        base(func(s map[string]any) { s["Principal"] = map[string]string{"AWS": "ec2.amazonaws.com"} }),
		"an account as a service": base(func(s map[string]any) { s["Principal"] = map[string]string{"Service": awsapitest.Account} }),
		"nobody":                  base(func(s map[string]any) { s["Principal"] = map[string]string{"AWS": "nobody"} }),
		"a source for people": base(func(s map[string]any) {
			s["Condition"] = map[string]any{"ArnLike": map[string]string{"aws:SourceArn": "*"}}
		}),
		"a condition without values": base(func(s map[string]any) {
			s["Condition"] = map[string]any{"StringEquals": map[string]string{"aws:username": "x"}}
		}),
		"an unknown condition": base(func(s map[string]any) { s["Condition"] = map[string]any{"StringEquals": map[string]string{"x:y": "x"}} }),
		"an unknown action":    base(func(s map[string]any) { s["Action"] = "s3:Fly" }),
		"another bucket":       base(func(s map[string]any) { s["Resource"] = "arn:aws:s3:::c/*" }),
		"too long":             base(func(s map[string]any) { s["Sid"] = strings.Repeat("x", 21<<10) }),
	} {
		_, err := c.PutBucketPolicy(t.Context(), &sdk.PutBucketPolicyInput{Bucket: aws.String("box"), Policy: &policy})
		want(t, name, err, "MalformedPolicy")
	}
	_, err := c.GetBucketPolicy(t.Context(), &sdk.GetBucketPolicyInput{Bucket: aws.String("box")})
	want(t, "get", err, "NoSuchBucketPolicy")
}

// TestRegions: buckets can be made and asked for from every region.
func TestRegions(t *testing.T) {
	w := newWorld(t, nil)
	for _, tt := range []struct{ region, wish, code string }{
		{"us-east-1", "", ""},
		{"us-west-2", "us-west-2", ""},
		{"ap-northeast-1", "ap-northeast-1", ""},
		{"ap-northeast-1", "eu-west-1", "IllegalLocationConstraintException"},
	} {
		in := &sdk.CreateBucketInput{Bucket: aws.String("in-" + tt.region + tt.code[:min(1, len(tt.code))])}
		if in.Bucket = aws.String(strings.ToLower(*in.Bucket)); tt.wish != "" {
			in.CreateBucketConfiguration = &types.CreateBucketConfiguration{LocationConstraint: types.BucketLocationConstraint(tt.wish)}
		}
		c := w.client(w.Root)
		_, err := c.CreateBucket(t.Context(), in, func(o *sdk.Options) { o.Region = tt.region })
		want(t, tt.region+" for "+tt.wish, err, tt.code)
	}
	list, err := w.client(w.Root).ListBuckets(t.Context(), &sdk.ListBucketsInput{})
	if err != nil || len(list.Buckets) != 3 || aws.ToString(list.Owner.ID) != awsapitest.Account {
		t.Errorf("buckets are %+v, %v", list, err)
	}
}

// TestKilledInAnUpload: an upload that breaks off leaves nothing to see, and the
// next request finds the storage again.
func TestKilledInAnUpload(t *testing.T) {
	w := newWorld(t, nil)
	w.bucket(t, "box")
	c := w.client(w.Root)
	want(t, "put", put(t, c, "box", "k", "before"), "")
	body, more := io.Pipe()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, w.URL+"/box/k", body)
	if err != nil {
		t.Fatal(err)
	}
	req.ContentLength = 8 << 20
	awsapi.SignHash(req, "UNSIGNED-PAYLOAD", w.Root, awsapitest.Region, "s3", time.Now())
	done := make(chan int, 1)
	go func() {
		answer, err := http.DefaultClient.Do(req)
		if err != nil {
			done <- 0
			return
		}
		_ = answer.Body.Close()
		done <- answer.StatusCode
	}()
	if _, err := more.Write(make([]byte, 4<<20)); err != nil {
		t.Fatal(err)
	}
	pids := w.storagePIDs(t)
	if len(pids) != 1 {
		t.Fatalf("the storage is the processes %v", pids)
	}
	pid, _ := strconv.Atoi(pids[0])
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = more.CloseWithError(io.ErrUnexpectedEOF)
	if status := <-done; status == http.StatusOK {
		t.Error("half an upload was taken")
	}
	// Official clients try again when they meet the connection that just breaks.
	patient := w.client(w.Root, func(o *sdk.Options) { o.RetryMaxAttempts = 5 })
	got, err := get(t, patient, "box", "k")
	if err != nil || got != "before" {
		t.Errorf("the object is %d bytes, %v", len(got), err)
	}
	if names := keys(t, patient, "box"); !slices.Equal(names, []string{"k"}) {
		t.Errorf("keys are %q", names)
	}
	w.s3.Stop()
	if pids := w.storagePIDs(t); len(pids) != 0 {
		t.Errorf("the processes %v run on", pids)
	}
	_, err = get(t, c, "box", "k")
	want(t, "get after the stop", err, "ServiceUnavailable")
}

// TestBrokenUploads: whatever breaks an upload off, and however its body is
// protected, nothing of it becomes an object.
func TestBrokenUploads(t *testing.T) {
	w := newWorld(t, nil)
	w.bucket(t, "box")
	c := w.client(w.Root)
	whole := strings.Repeat("x", 1<<20)
	const signed = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
	for _, tt := range []struct {
		name, hash, decoded, trailer string
		body                         string // half of what is announced
		length                       int
	}{
		{"unsigned", "UNSIGNED-PAYLOAD", "", "", whole, 2 << 20},
		{"with its hash", strings.Repeat("0", 64), "", "", whole, 2 << 20},
		{"with a trailer", "STREAMING-UNSIGNED-PAYLOAD-TRAILER", "2097152", "x-amz-checksum-crc32", "200000\r\n" + whole, 2<<20 + 50},
		{"with a trailer between chunks", "STREAMING-UNSIGNED-PAYLOAD-TRAILER", "2097152", "x-amz-checksum-crc32", "100000\r\n" + whole + "\r\n", 2<<20 + 50},
		{"in signed chunks", signed, "2097152", "", "200000;chunk-signature=" + strings.Repeat("0", 64) + "\r\n" + whole, 2<<20 + 500},
		{"in chunks that are forged", signed, "1048576", "", "100000;chunk-signature=" + strings.Repeat("0", 64) + "\r\n" + whole + "\r\n0;chunk-signature=" + strings.Repeat("0", 64) + "\r\n\r\n", 0},
		{"in forged chunks with a trailer", signed + "-TRAILER", "1048576", "x-amz-checksum-crc32", "100000;chunk-signature=" + strings.Repeat("0", 64) + "\r\n" + whole + "\r\n0;chunk-signature=" + strings.Repeat("0", 64) + "\r\nx-amz-checksum-crc32:AAAAAA==\r\nx-amz-trailer-signature:" + strings.Repeat("0", 64) + "\r\n\r\n", 0},
	} {
		want(t, "put", put(t, c, "box", "k", "before"), "")
		body, rest := io.Pipe()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, w.URL+"/box/k", body)
		if err != nil {
			t.Fatal(err)
		}
		if req.ContentLength = int64(tt.length); tt.length == 0 {
			req.ContentLength = int64(len(tt.body))
		}
		for name, value := range map[string]string{"X-Amz-Decoded-Content-Length": tt.decoded, "X-Amz-Trailer": tt.trailer, "Content-Encoding": ""} {
			if value != "" {
				req.Header.Set(name, value)
			}
		}
		awsapi.SignHash(req, tt.hash, w.Root, awsapitest.Region, "s3", time.Now())
		go func() {
			_, _ = io.WriteString(rest, tt.body)
			if tt.length == 0 {
				_ = rest.Close()
				return
			}
			_ = rest.CloseWithError(io.ErrUnexpectedEOF) // the client goes away
		}()
		answer, err := http.DefaultClient.Do(req)
		if err == nil {
			_ = answer.Body.Close()
			if answer.StatusCode == http.StatusOK {
				t.Errorf("%s: it was taken", tt.name)
			}
		}
		// The storage may still be at it: it answers in order on what is left of
		// the bucket when it has let go of the upload.
		w.idle(t)
		if got, err := get(t, c, "box", "k"); err != nil || got != "before" {
			t.Errorf("%s: the object is %d bytes, %v", tt.name, len(got), err)
		}
	}
}

// TestDiskFull: the caller is told, and nothing is half there.
func TestDiskFull(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: mounts a small file system")
	}
	dir := filepath.Join("/tmp", fmt.Sprintf("s3-full-%d", os.Getpid()))
	disk := dir + ".img"
	t.Cleanup(func() { _ = os.Remove(disk); _ = os.Remove(dir) })
	for _, argv := range [][]string{{"truncate", "-s", "16M", disk}, {"mkfs.ext4", "-q", disk}, {"mkdir", dir}, {"mount", "-o", "loop", disk, dir}} {
		if out, err := exec.CommandContext(t.Context(), argv[0], argv[1:]...).CombinedOutput(); err != nil {
			t.Skipf("no small file system to be had here: %v: %s", argv, out)
		}
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", dir).CombinedOutput(); err != nil {
			t.Errorf("umount: %s", out)
		}
	})
	w := newWorldIn(t, dir, nil)
	w.bucket(t, "box")
	c := w.client(w.Root)
	want(t, "put", put(t, c, "box", "k", "before"), "")
	err := put(t, c, "box", "k", strings.Repeat("x", 20<<20))
	want(t, "put more than fits", err, "InsufficientStorage")
	if body, err := get(t, c, "box", "k"); err != nil || body != "before" {
		t.Errorf("the object is %d bytes, %v", len(body), err)
	}
	want(t, "put what fits", put(t, c, "box", "small", "x"), "")
}

// TestFolderIsClosed: nobody else on the machine can read objects or ask for
// them.
func TestFolderIsClosed(t *testing.T) {
	w := newWorld(t, nil)
	w.bucket(t, "box")
	want(t, "put", put(t, w.client(w.Root), "box", "folder/k", "v"), "")
	err := filepath.WalkDir(w.dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestNoStorage: a program that is missing is told.
func TestNoStorage(t *testing.T) {
	w := newWorld(t, nil)
	broken := s3.New(s3.Options{Dir: w.dir, Account: awsapitest.Account, Region: awsapitest.Region, Command: []string{"/nonexistent/openpcs-s3"}})
	defer broken.Stop()
	_, err := broken.Send(&http.Request{Method: http.MethodGet, URL: w.url(t, "/box"), Header: http.Header{}}, "UNSIGNED-PAYLOAD", s3.Sender{})
	if err == nil || !strings.Contains(err.Error(), "/nonexistent/openpcs-s3") {
		t.Errorf("error is %v", err)
	}
}

// TestKeysThatClimb: no name leads out of its bucket, whoever signs it.
func TestKeysThatClimb(t *testing.T) {
	w := newWorld(t, nil)
	w.bucket(t, "box")
	w.bucket(t, "other")
	for _, path := range []string{
		"/box/../other/escape", "/box/..%2Fother%2Fescape", "/box/%2e%2e/other/escape", "/box/a/../../other/escape", "/box/../../escape",
		"/box/..%2F..%2Fescape", "/../escape", "/%2e%2e/escape", "/..%2Fbuckets%2Fother/escape", "/box//../../other/escape", "/box/.sgwtmp/escape", "/box//.sgwtmp/escape", "/box%2F.sgwtmp/escape",
		"/box/a%00/escape", "/box/..\\other\\escape",
	} {
		u := w.url(t, "/")
		raw, err := url.PathUnescape(path)
		if err != nil {
			t.Fatal(err)
		}
		u.Path, u.RawPath = raw, path
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, w.URL, strings.NewReader("x"))
		if err != nil {
			t.Fatal(err)
		}
		req.URL = u
		awsapi.Sign(req, []byte("x"), w.Root, awsapitest.Region, "s3", time.Now())
		answer, err := http.DefaultClient.Do(req)
		if err != nil {
			continue // which is fine too
		}
		_ = answer.Body.Close()
		if answer.StatusCode >= http.StatusInternalServerError {
			t.Errorf("%s: %s", path, answer.Status)
		}
	}
	err := filepath.WalkDir(w.dir, func(path string, d os.DirEntry, err error) error {
		inside := strings.HasPrefix(path, filepath.Join(w.dir, "buckets", "box")+"/") && !strings.Contains(path, ".sgwtmp/escape")
		if err == nil && strings.Contains(d.Name(), "escape") && !inside {
			t.Errorf("written: %s", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.client(w.Root).CopyObject(t.Context(), &sdk.CopyObjectInput{Bucket: aws.String("box"), Key: aws.String("k"), CopySource: aws.String("box/.sgwtmp/multipart/x")})
	want(t, "copy a part of an upload", err, "InvalidArgument")
	if names := keys(t, w.client(w.Root), "other"); len(names) > 0 {
		t.Errorf("the other bucket has %q", names)
	}
}

package s3_test

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/openpcs/openpcs/internal/library"
)

// TestLibrary: the scripts are where PCS documents its own, in every region, for
// whoever may read objects, and cannot be changed.
func TestLibrary(t *testing.T) {
	w := newWorld(t, nil)
	node := w.client(w.role(t, []string{"s3:GetObject", "s3:ListBucket"}, nil))
	for _, bucket := range []string{"aws-pcs-repo-ap-northeast-1", "aws-pcs-repo-us-gov-west-1"} {
		for _, script := range library.Scripts() {
			exact, err := get(t, node, bucket, "aws-pcs-node-lifecycle-scripts/"+script.Name+"-v1.0.0.sh")
			if err != nil {
				t.Fatal(err)
			}
			sum := sha256.Sum256([]byte(exact))
			latest, err := get(t, node, bucket, "aws-pcs-node-lifecycle-scripts/"+script.Name+"-v1-latest.sh")
			line, errSum := get(t, node, bucket, "aws-pcs-node-lifecycle-scripts/"+script.Name+"-v1.0.0.sh.sha256")
			if exact != latest || err != nil || errSum != nil || !strings.HasPrefix(line, hex.EncodeToString(sum[:])+"  ") || script.SHA256 != hex.EncodeToString(sum[:]) {
				t.Errorf("%s in %s: %v, %v, %q", script.Name, bucket, err, errSum, line)
			}
		}
		list, err := node.ListObjectsV2(t.Context(), &sdk.ListObjectsV2Input{Bucket: &bucket, Delimiter: aws.String("/")})
		if err != nil || len(list.Contents) != 0 || len(list.CommonPrefixes) != 1 || *list.CommonPrefixes[0].Prefix != library.Folder {
			t.Errorf("%s has %+v, %v", bucket, list, err)
		}
		if n := len(keys(t, node, bucket)); n != 4*len(library.Scripts()) {
			t.Errorf("%s has %d keys", bucket, n)
		}
		_, err = get(t, node, bucket, "nothing")
		want(t, "get what is not there", err, "NoSuchKey")
		want(t, "put", put(t, w.client(w.Root), bucket, "k", "x"), "AccessDenied")
		_, err = w.client(w.Root).DeleteBucket(t.Context(), &sdk.DeleteBucketInput{Bucket: &bucket})
		want(t, "delete the bucket", err, "AccessDenied")
		_, err = w.client(w.Root).HeadBucket(t.Context(), &sdk.HeadBucketInput{Bucket: &bucket})
		want(t, "head the bucket", err, "")
		_, err = get(t, w.client(w.role(t, []string{"s3:ListBucket"}, nil)), bucket, library.Files()[0].Key)
		want(t, "get without leave", err, "AccessDenied")
	}
	if pids := w.storagePIDs(t); len(pids) > 0 {
		t.Errorf("reading the library started the storage: %v", pids)
	}
	want(t, "a bucket that only looks like it", put(t, w.client(w.Root), "aws-pcs-repo-mine", "k", "x"), "NoSuchBucket")
}

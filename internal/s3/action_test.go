package s3

import (
	"net/http"
	"slices"
	"testing"
)

// A parameter that asks for something else besides must not pass as what the
// caller may do.
func TestPermissions(t *testing.T) {
	all := []string{"s3:*"}
	for _, tt := range []struct {
		method, path string
		want         []string
	}{
		{"GET", "/", []string{"s3:ListAllMyBuckets"}},
		{"GET", "/?policy", all},
		{"GET", "/box", []string{"s3:ListBucket"}},
		{"GET", "/box?list-type=2&prefix=a", []string{"s3:ListBucket"}},
		{"GET", "/box?policy", all},
		{"GET", "/box?versions&prefix=a", []string{"s3:ListBucketVersions"}},
		{"GET", "/box?versions&policy", all},
		{"GET", "/box?uploads", []string{"s3:ListBucketMultipartUploads"}},
		{"GET", "/box?uploads&acl", all},
		{"GET", "/box?location&policy", all},
		{"PUT", "/box", all},
		{"POST", "/box?delete", []string{"s3:DeleteObject", "s3:DeleteObjectVersion"}},
		{"GET", "/box/k", []string{"s3:GetObject"}},
		{"GET", "/box/k?versionId=1&response-content-type=a", []string{"s3:GetObjectVersion"}},
		{"GET", "/box/k?uploadId=1", []string{"s3:ListMultipartUploadParts"}},
		{"GET", "/box/k?uploadId=1&acl", all},
		{"PUT", "/box/k?partNumber=1&uploadId=1", []string{"s3:PutObject"}},
		{"PUT", "/box/k?acl", all},
		{"POST", "/box/k?uploads", []string{"s3:PutObject"}},
		{"POST", "/box/k?uploadId=1", []string{"s3:PutObject"}},
		{"POST", "/box/k?uploads&restore", all},
		{"POST", "/box/k?uploadId=1&select", all},
		{"DELETE", "/box/k", []string{"s3:DeleteObject"}},
		{"DELETE", "/box/k?versionId=1", []string{"s3:DeleteObjectVersion"}},
		{"DELETE", "/box/k?uploadId=1", []string{"s3:AbortMultipartUpload"}},
		{"DELETE", "/box/k?uploadId=1&tagging", all},
		{"DELETE", "/box", all},
	} {
		r, err := http.NewRequest(tt.method, "http://s3"+tt.path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := permissions(r); !slices.Equal(got, tt.want) {
			t.Errorf("%s %s needs %v, want %v", tt.method, tt.path, got, tt.want)
		}
	}
	r, _ := http.NewRequest("PUT", "http://s3/box/k", nil)
	for source, want := range map[string][]string{
		"box/a":             {"s3:PutObject", "s3:GetObject"},
		"box/a?versionId=1": {"s3:PutObject", "s3:GetObjectVersion"},
	} {
		r.Header.Set("X-Amz-Copy-Source", source)
		if got := permissions(r); !slices.Equal(got, want) {
			t.Errorf("a copy of %s needs %v, want %v", source, got, want)
		}
	}
}

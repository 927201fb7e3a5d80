package s3

import (
	"net/http"
	"strings"

	"github.com/openpcs/openpcs/internal/awsapi"
)

// permissions are the actions that a request needs, where nobody but openpcs
// looks at the caller's policies: at an endpoint elsewhere all are one caller.
// What is not about objects needs all of S3.
func permissions(r *http.Request) []string {
	bucket, key := split(r.URL)
	q := subresources(r)
	has := func(name string) bool { _, there := q[name]; return there }
	only := func(names ...string) bool {
		for name := range q {
			known := strings.HasPrefix(name, "response-")
			for _, n := range names {
				known = known || name == n
			}
			if !known {
				return false
			}
		}
		return true
	}
	version := func(action string) string {
		if has("versionId") {
			return action + "Version"
		}
		return action
	}
	read := r.Method == http.MethodGet || r.Method == http.MethodHead
	upload := has("uploadId")
	switch {
	case bucket == "" && read && only("prefix", "max-buckets", "continuation-token", "bucket-region"):
		return []string{"s3:ListAllMyBuckets"}
	case bucket != "" && key == "" && read && has("versions") && only("versions", "prefix", "delimiter", "encoding-type", "max-keys", "key-marker", "version-id-marker"):
		return []string{"s3:ListBucketVersions"}
	case bucket != "" && key == "" && read && has("uploads") && only("uploads", "prefix", "delimiter", "encoding-type", "max-uploads", "key-marker", "upload-id-marker"):
		return []string{"s3:ListBucketMultipartUploads"}
	case bucket != "" && key == "" && read && has("location") && only("location"):
		return []string{"s3:GetBucketLocation"}
	case bucket != "" && key == "" && read && only("list-type", "prefix", "delimiter", "encoding-type", "max-keys", "continuation-token", "start-after", "fetch-owner", "marker"):
		return []string{"s3:ListBucket"}
	case bucket != "" && key == "" && r.Method == http.MethodPost && has("delete") && only("delete"):
		return []string{"s3:DeleteObject", "s3:DeleteObjectVersion"}
	case bucket == "" || key == "":
		return []string{"s3:*"}
	case read && upload && only("uploadId", "max-parts", "part-number-marker", "encoding-type"):
		return []string{"s3:ListMultipartUploadParts"}
	case read && only("versionId", "partNumber"):
		return []string{version("s3:GetObject")}
	case r.Method == http.MethodPut && r.Header.Get("X-Amz-Copy-Source") != "" && only("partNumber", "uploadId"):
		if strings.Contains(r.Header.Get("X-Amz-Copy-Source"), "?") { // a version
			return []string{"s3:PutObject", "s3:GetObjectVersion"}
		}
		return []string{"s3:PutObject", "s3:GetObject"}
	case r.Method == http.MethodPut && only("partNumber", "uploadId"):
		return []string{"s3:PutObject"}
	case r.Method == http.MethodPost && ((upload && only("uploadId")) || (has("uploads") && only("uploads"))):
		return []string{"s3:PutObject"}
	case r.Method == http.MethodDelete && upload && only("uploadId"):
		return []string{"s3:AbortMultipartUpload"}
	case r.Method == http.MethodDelete && only("versionId"):
		return []string{version("s3:DeleteObject")}
	}
	return []string{"s3:*"}
}

// permit refuses what the caller's policies do not allow.
func permit(r *awsapi.Stream, actions ...string) error {
	for _, action := range actions {
		// What is not told apart may be what a policy denies.
		if !r.Caller.Allowed(action) || (action == "s3:*" && len(concerning(r.Caller.Deny)) > 0) {
			return &awsapi.Error{
				Code: "AccessDenied", Status: http.StatusForbidden,
				Message: "User: " + r.Caller.ARN + " is not authorized to perform: " + action + " because no identity-based policy allows the " + action + " action",
			}
		}
	}
	return nil
}

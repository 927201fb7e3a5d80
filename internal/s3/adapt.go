package s3

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"

	"github.com/openpcs/openpcs/internal/awsapi"
)

// maxDocument bounds the bodies that are looked at: a policy may have 20 KiB.
const maxDocument = 64 << 10

// split takes a path apart.
func split(u *url.URL) (bucket, key string) {
	bucket, key, _ = strings.Cut(strings.TrimPrefix(u.Path, "/"), "/")
	return bucket, key
}

// subresources are those of a request: its parameters without the ones that only
// name the operation.
func subresources(r *http.Request) url.Values {
	q := r.URL.Query()
	q.Del("x-id")
	return q
}

// workFolder is where in a bucket the library has parts of uploads.
const workFolder = ".sgwtmp"

// possible refuses keys that cannot be names of objects in the storage.
func possible(r *http.Request) error {
	_, key := split(r.URL)
	source, err := url.PathUnescape(r.Header.Get("X-Amz-Copy-Source"))
	if err != nil {
		return nil // the storage says what is wrong with it
	}
	_, from := split(&url.URL{Path: source})
	for _, key := range []string{key, from} {
		first, _, _ := strings.Cut(strings.TrimLeft(key, "/"), "/")
		if strings.ContainsRune(key, 0) || first == workFolder {
			return &awsapi.Error{
				Code: "InvalidArgument", Status: http.StatusBadRequest,
				Message: "Keys have no NUL and do not begin with " + workFolder + "/ here: objects are files, and that folder is used for uploads.",
			}
		}
	}
	return nil
}

// adapt changes the few requests that mean something else here than at the
// target: where a new bucket is to be, and who a policy is about.
func adapt(r *awsapi.Stream, region string, policies bool) error {
	bucket, key := split(r.HTTP.URL)
	q := subresources(r.HTTP)
	_, policy := q["policy"]
	switch {
	case r.HTTP.Method != http.MethodPut || bucket == "" || key != "":
		return nil
	case policy && policies:
		return rewrite(r, toStorage)
	case len(q) == 0:
		return rewrite(r, func(body []byte) ([]byte, error) { return relocate(body, r.Region, region) })
	}
	return nil
}

var constraint = regexp.MustCompile(`<LocationConstraint>\s*([^<]*?)\s*</LocationConstraint>`)

// relocate turns the wish for a bucket in the region that is asked into one for
// the region that all buckets are in.
func relocate(body []byte, asked, region string) ([]byte, error) {
	if region == "us-east-1" { // which must not be named
		region = ""
	}
	wish := constraint.FindSubmatch(body)
	if wish != nil && string(wish[1]) != "" && string(wish[1]) != asked {
		return nil, &awsapi.Error{
			Code: "IllegalLocationConstraintException", Status: http.StatusBadRequest,
			Message: fmt.Sprintf("The %s location constraint is incompatible for the region specific endpoint this request was sent to: it was signed for %s.", wish[1], asked),
		}
	}
	here := "<LocationConstraint>" + region + "</LocationConstraint>"
	switch {
	case region == "":
		return constraint.ReplaceAll(body, nil), nil
	case wish != nil:
		return constraint.ReplaceAll(body, []byte(here)), nil
	case len(body) == 0:
		return []byte(`<CreateBucketConfiguration xmlns="http://s3.amazonaws.com/doc/2006-03-01/">` + here + `</CreateBucketConfiguration>`), nil
	}
	return body, nil
}

// rewrite changes the body of a request. The hash that the caller signed is
// checked here, as nobody else can after that.
func rewrite(r *awsapi.Stream, change func([]byte) ([]byte, error)) error {
	body, err := io.ReadAll(io.LimitReader(r.HTTP.Body, maxDocument+1))
	switch {
	case err != nil:
		return &awsapi.Error{Code: "IncompleteBody", Message: "The request body could not be read to its end.", Status: http.StatusBadRequest}
	case len(body) > maxDocument:
		return &awsapi.Error{Code: "EntityTooLarge", Message: fmt.Sprintf("The request body is larger than %d bytes.", maxDocument), Status: http.StatusBadRequest}
	case strings.HasPrefix(r.PayloadHash, "STREAMING-"):
		return &awsapi.Error{Code: "InvalidRequest", Message: "This operation does not take a body in chunks.", Status: http.StatusBadRequest}
	case r.PayloadHash != "UNSIGNED-PAYLOAD" && r.PayloadHash != hashOf(body):
		return &awsapi.Error{Code: "XAmzContentSHA256Mismatch", Message: "The provided 'x-amz-content-sha256' header does not match what was computed.", Status: http.StatusBadRequest}
	}
	changed, err := change(body)
	if err != nil {
		return err
	}
	if !bytes.Equal(changed, body) {
		// Those are of the body as it was.
		for name := range r.HTTP.Header {
			if name == "Content-Md5" || strings.HasPrefix(name, "X-Amz-Checksum-") || name == "X-Amz-Sdk-Checksum-Algorithm" {
				r.HTTP.Header.Del(name)
			}
		}
	}
	r.HTTP.Body, r.HTTP.ContentLength = io.NopCloser(bytes.NewReader(changed)), int64(len(changed))
	r.HTTP.Header.Set("Content-Length", strconv.Itoa(len(changed)))
	r.PayloadHash = hashOf(changed)
	return nil
}

func hashOf(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// restore gives a policy in an answer the form that its author wrote.
func restore(answer *http.Response) error {
	_, policy := answer.Request.URL.Query()["policy"]
	if answer.Request.Method != http.MethodGet || !policy || answer.StatusCode != http.StatusOK {
		return nil
	}
	body, err := io.ReadAll(io.LimitReader(answer.Body, 4*maxDocument)) // it is there twice
	if err = errors.Join(err, answer.Body.Close()); err != nil {
		return fmt.Errorf("read the policy of a bucket: %w", err)
	}
	if body, err = fromStorage(body); err != nil {
		return err
	}
	answer.Body, answer.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	answer.Header.Set("Content-Length", strconv.Itoa(len(body)))
	return nil
}

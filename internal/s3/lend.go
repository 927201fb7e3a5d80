package s3

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/openpcs/openpcs/internal/awsapi"
	"github.com/openpcs/openpcs/internal/library"
)

// libraryPrefix and a region are the bucket of PCS's scripts in that region.
const libraryPrefix = "aws-pcs-repo-"

// inLibrary reports whether the bucket is that of the script library, which is
// in every region and part of the program.
func inLibrary(bucket string) bool {
	region, ok := strings.CutPrefix(bucket, libraryPrefix)
	return ok && awsapi.ValidRegion(region)
}

// lend answers a request for the script library: it can be read, by whoever may
// read objects.
func (s *S3) lend(w http.ResponseWriter, r *awsapi.Stream) error {
	bucket, key := split(r.HTTP.URL)
	if r.HTTP.Method != http.MethodGet && r.HTTP.Method != http.MethodHead {
		return &awsapi.Error{
			Code: "AccessDenied", Status: http.StatusForbidden,
			Message: "The bucket " + bucket + " has the script library of openpcs and can only be read.",
		}
	}
	actions := permissions(r.HTTP)
	if err := permit(r, actions...); err != nil {
		return err
	}
	switch actions[0] {
	case "s3:ListBucket":
		if r.HTTP.Method == http.MethodGet {
			return list(w, r, bucket)
		}
		w.Header().Set("X-Amz-Bucket-Region", strings.TrimPrefix(bucket, libraryPrefix))
		w.WriteHeader(http.StatusOK)
		return nil
	case "s3:GetObject":
		f, ok := library.Find(key)
		if !ok {
			return &awsapi.Error{Code: "NoSuchKey", Status: http.StatusNotFound, Message: "The specified key does not exist: list s3://" + bucket + "/" + library.Folder + " for those that do."}
		}
		h := w.Header()
		h.Set("ETag", f.ETag())
		h.Set("Content-Type", "text/x-shellscript")
		http.ServeContent(w, r.HTTP, "", library.Modified, bytes.NewReader(f.Body))
		return nil
	case "s3:GetObjectVersion":
		return &awsapi.Error{Code: "NoSuchVersion", Status: http.StatusNotFound, Message: "The script library has no versions of objects: the names of its scripts have their versions."}
	}
	return &awsapi.Error{Code: "NotImplemented", Status: http.StatusNotImplemented, Message: "The bucket " + bucket + " has the script library of openpcs: its objects can be read and listed, and it has nothing else."}
}

// listing is the answer of ListObjectsV2.
type listing struct {
	XMLName     xml.Name `xml:"http://s3.amazonaws.com/doc/2006-03-01/ ListBucketResult"`
	Name        string
	Prefix      string
	Delimiter   string `xml:",omitempty"`
	KeyCount    int
	MaxKeys     int
	IsTruncated bool
	Contents    []entry
	Prefixes    []prefix `xml:"CommonPrefixes"`
}

type entry struct {
	Key          string
	LastModified string
	ETag         string
	Size         int
	StorageClass string
}

type prefix struct{ Prefix string }

// list answers with all of the library at once: it is shorter than a page.
func list(w http.ResponseWriter, r *awsapi.Stream, bucket string) error {
	q := r.HTTP.URL.Query()
	out := listing{Name: bucket, Prefix: q.Get("prefix"), Delimiter: q.Get("delimiter"), MaxKeys: 1000}
	after := max(q.Get("start-after"), q.Get("marker"))
	for _, f := range library.Files() {
		rest, ok := strings.CutPrefix(f.Key, out.Prefix)
		if !ok || f.Key <= after {
			continue
		}
		if out.Delimiter != "" {
			if folder, _, in := strings.Cut(rest, out.Delimiter); in {
				p := prefix{out.Prefix + folder + out.Delimiter}
				if !slices.Contains(out.Prefixes, p) {
					out.Prefixes = append(out.Prefixes, p)
				}
				continue
			}
		}
		out.Contents = append(out.Contents, entry{f.Key, library.Modified.Format("2006-01-02T15:04:05.000Z"), f.ETag(), len(f.Body), "STANDARD"})
	}
	out.KeyCount = len(out.Contents) + len(out.Prefixes)
	text, err := xml.Marshal(out)
	if err != nil {
		return fmt.Errorf("list the script library: %w", err)
	}
	text = append([]byte(xml.Header), text...)
	w.Header().Set("Content-Type", "application/xml")
	w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	_, _ = w.Write(text) // who is gone needs no answer
	return nil
}

package delivery

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/klauspost/compress/gzip"

	"github.com/openpcs/openpcs/internal/condition"
	"github.com/openpcs/openpcs/internal/journal"
	"github.com/openpcs/openpcs/internal/s3"
)

// Buckets send requests to S3 in the name of a service.
type Buckets interface {
	Send(req *http.Request, hash string, from s3.Sender) (*http.Response, error)
}

// Service is the principal that bucket policies name.
const Service = "delivery.logs.amazonaws.com"

// maxObject is how much text one object has before it is compressed. Log text
// shrinks to a tenth, so that an object in the making takes some MiB of memory.
const maxObject = 64 << 20

// object collects records for one object in S3.
type object struct {
	link     Link
	logName  string
	enc      *encoder
	buckets  Buckets
	interval time.Duration

	begun *Batch // one that was begun before
	body  bytes.Buffer
	gz    *gzip.Writer
	line  []byte
	size  int
	n     int
	first int64
	hour  time.Time
	major string
}

func (o *object) add(r journal.Entry) error {
	major, _ := release(r.Release)
	hour := time.UnixMilli(r.Time).UTC().Truncate(time.Hour)
	// A record that comes late goes with those that are there.
	if o.n > 0 && o.begun == nil && (o.size >= maxObject || major != o.major || hour.After(o.hour)) {
		return errFull
	}
	var err error
	if o.line, err = o.enc.append(o.line[:0], r); err != nil {
		return &unfit{err.Error()}
	}
	if o.n == 0 {
		o.first, o.hour, o.major = r.Seq, hour, major
		if o.gz == nil {
			if o.gz, err = gzip.NewWriterLevel(&o.body, gzip.BestSpeed); err != nil {
				return err
			}
		}
		o.gz.Reset(&o.body)
		if _, err := o.gz.Write(o.enc.header()); err != nil {
			return err
		}
	}
	o.n++
	o.size += len(o.line)
	_, err = o.gz.Write(o.line)
	return err
}

func (o *object) count() int { return o.n }

func (o *object) key() string {
	if o.begun != nil {
		return o.begun.Key
	}
	return key(o.link, o.logName, o.major, o.first, o.hour)
}

func (o *object) reset(b *Batch) {
	o.begun, o.n, o.size = b, 0, 0
	o.body.Reset()
	if o.body.Cap() > 16<<20 { // of a storm that is over
		o.body = bytes.Buffer{}
	}
}

func (o *object) due(first journal.Entry, now time.Time) time.Time {
	at := time.UnixMilli(first.Time)
	if at.After(now) { // a clock that is ahead
		at = now
	}
	return at.Add(o.interval)
}

func (o *object) durable() bool { return true }

// send writes the object. Sent again, it is the same object.
func (o *object) send(ctx context.Context, _ bool) error {
	if o.gz != nil {
		if err := o.gz.Close(); err != nil { // a second time it does nothing
			return err
		}
	}
	return putObject(ctx, o.buckets, o.link, o.key(), o.body.Bytes(), nil)
}

// putObject writes an object as the service that delivers logs.
func putObject(ctx context.Context, b Buckets, l Link, key string, body []byte, header http.Header) error {
	a, err := ask(ctx, b, l, http.MethodPut, key, body, header)
	if err != nil {
		return &failure{code: condition.LogDeliveryFailing, text: "S3 does not answer: " + err.Error(), unclear: true}
	}
	if a.status/100 == 2 && a.etag == "" {
		return &failure{code: condition.LogDeliveryFailing, text: fmt.Sprintf("S3 answers %d and does not say what it has (no ETag): something else answered in its place", a.status), unclear: true}
	}
	return a.failure(l)
}

// s3Answer is what S3 says to a request.
type s3Answer struct {
	status        int
	code, message string // of an error
	etag          string // of an object that was written
}

// ask sends a request about an object of the delivery's bucket.
func ask(ctx context.Context, b Buckets, l Link, method, key string, body []byte, header http.Header) (a s3Answer, err error) {
	sum := sha256.Sum256(body)
	u := url.URL{Scheme: "http", Host: "s3", Path: "/" + l.Target + "/" + key}
	req, err := http.NewRequestWithContext(ctx, method, u.String(), bytes.NewReader(body))
	if err != nil {
		return a, err
	}
	if method == http.MethodPut {
		req.Header.Set("Content-Type", "application/gzip")
		req.Header.Set("X-Amz-Acl", "bucket-owner-full-control")
	}
	for name, v := range header {
		req.Header[name] = v
	}
	answer, err := b.Send(req, hex.EncodeToString(sum[:]), s3.Sender{Service: Service, SourceARN: l.SourceARN})
	if err != nil {
		return a, err
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(answer.Body, 64<<10))
	if err != nil {
		return a, err
	}
	var doc struct{ Code, Message string }
	_ = xml.Unmarshal(text, &doc) // of a proxy it may be a page
	return s3Answer{answer.StatusCode, doc.Code, doc.Message, answer.Header.Get("Etag")}, nil
}

// failure is why the object was not written, nil if it was.
func (a s3Answer) failure(l Link) error {
	switch {
	case a.status/100 == 2:
		return nil
	case a.status == http.StatusForbidden:
		return &failure{code: condition.LogDeliveryDenied, text: denied(l) + " S3 answers: " + strings.TrimSpace(a.code+" "+a.message)}
	case a.code == "NoSuchBucket" || a.status == http.StatusNotFound && a.code == "":
		return &failure{code: condition.LogDestinationMissing, text: fmt.Sprintf("There is no bucket %s.", l.Target)}
	}
	return &failure{code: condition.LogDeliveryFailing, text: strings.TrimSpace(fmt.Sprintf("S3 answers %d %s %s", a.status, a.code, a.message)), unclear: a.status >= 500}
}

// denied says what the policy of a bucket lacks.
func denied(l Link) string {
	folder := l.Account
	if l.Hive {
		folder = hiveAccount + folder
	}
	return fmt.Sprintf("The policy of the bucket %s does not let %s write logs. It needs a statement with "+
		`"Effect": "Allow", "Principal": {"Service": "%s"}, "Action": "s3:PutObject", "Resource": "arn:aws:s3:::%s/AWSLogs/%s/*"`+
		`; conditions may ask for "s3:x-amz-acl": "bucket-owner-full-control", "aws:SourceAccount": "%s" and "aws:SourceArn": "%s".`,
		l.Target, Service, Service, l.Target, folder, l.Account, l.SourceARN)
}

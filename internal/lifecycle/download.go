package lifecycle

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/openpcs/openpcs/internal/fleet"
)

const (
	// MaxScript is what a script may have: PCS's agent rejects more.
	MaxScript = 2 << 20
	// tries and the limits below keep a download within the 17 seconds that
	// PCS's agent takes at most: 3 times 4 s, and pauses of about 1.5 and
	// 3 s, in which openpcs itself may be restarted.
	tries      = 3
	tryLimit   = 4 * time.Second
	firstPause = 1500 * time.Millisecond
	// maxRedirects of an https location.
	maxRedirects = 5
)

// Downloader fetches scripts.
type Downloader struct {
	// S3 returns a signed request for an object; version may be empty.
	S3 func(ctx context.Context, bucket, key, version string) (*http.Request, error)
	// Transport is what requests go through; nil: one like Go's own.
	Transport http.RoundTripper
}

// fault is a try that failed. Again says that another may succeed.
type fault struct {
	err   error
	again bool
}

// Get returns a script's content. It tries again after a server's error, a
// 429, a timeout and a broken connection, and nothing else. An error begins
// with what was tried and names the reason.
func (d *Downloader) Get(ctx context.Context, src fleet.ScriptSource) ([]byte, error) {
	pause := firstPause
	for n := 1; ; n++ {
		body, f := d.try(ctx, src)
		switch {
		case f == nil:
			return body, nil
		case f.again && n == tries:
			return nil, fmt.Errorf("download %s: %w (after %d tries)", src.Location, f.err, n)
		case !f.again || ctx.Err() != nil:
			return nil, fmt.Errorf("download %s: %w", src.Location, f.err)
		}
		// Up to half of a pause is left to chance, so that the nodes of a group
		// that start at once do not come back at once.
		t := time.NewTimer(pause/2 + rand.N(pause/2))
		select {
		case <-ctx.Done():
			t.Stop()
			return nil, fmt.Errorf("download %s: %w", src.Location, f.err)
		case <-t.C:
		}
		pause *= 2
	}
}

func (d *Downloader) try(ctx context.Context, src fleet.ScriptSource) ([]byte, *fault) {
	ctx, cancel := context.WithTimeout(ctx, tryLimit)
	defer cancel()
	client := &http.Client{Transport: d.Transport, CheckRedirect: secureRedirects}
	if client.Transport == nil {
		t := http.DefaultTransport.(*http.Transport).Clone()
		t.DisableCompression = true // a checksum is that of what is stored
		defer t.CloseIdleConnections()
		client.Transport = t
	}
	var req *http.Request
	var err error
	bucket, key, s3 := strings.Cut(strings.TrimPrefix(src.Location, "s3://"), "/")
	s3 = s3 && strings.HasPrefix(src.Location, "s3://")
	switch {
	case s3:
		client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
		if req, err = d.S3(ctx, bucket, key, src.S3VersionID); err != nil {
			// Credentials come from the metadata service, which may be starting.
			return nil, &fault{err, true}
		}
	case strings.HasPrefix(src.Location, "https://"):
		req, err = http.NewRequestWithContext(ctx, http.MethodGet, src.Location, nil)
	default:
		err = errors.New("the location must begin with s3:// or https://")
	}
	if err != nil {
		return nil, &fault{err, false}
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, &fault{plain(err), !final(err)}
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, MaxScript+1))
	switch {
	case resp.StatusCode != http.StatusOK:
		return nil, refusal(resp, body, s3, src.S3VersionID != "")
	case err != nil:
		return nil, &fault{fmt.Errorf("read it: %w", plain(err)), true}
	case len(body) > MaxScript:
		return nil, &fault{fmt.Errorf("it is larger than 2 MiB (%d bytes), which is the most that a script may have", MaxScript), false}
	}
	if sum := sha256.Sum256(body); src.Checksum != "" && !strings.EqualFold(src.Checksum, hex.EncodeToString(sum[:])) {
		return nil, &fault{fmt.Errorf("its SHA-256 is %x, and the checksum of the group's configuration is %s", sum, strings.ToLower(src.Checksum)), false}
	}
	return body, nil
}

// errRedirect is a way that a location must not lead.
type errRedirect string

func (e errRedirect) Error() string { return string(e) }

func secureRedirects(req *http.Request, via []*http.Request) error {
	switch {
	case req.URL.Scheme != "https":
		return errRedirect("it redirects to " + req.URL.Scheme + "://" + req.URL.Host + ", and only https is followed")
	case len(via) > maxRedirects:
		return errRedirect(fmt.Sprintf("it redirects more than %d times", maxRedirects))
	}
	return nil
}

// final reports whether the same will come of another try.
func final(err error) bool {
	var way errRedirect
	var cert *tls.CertificateVerificationError
	return errors.As(err, &way) || errors.As(err, &cert)
}

// plain takes the method and the URL off an error, which say nothing new.
func plain(err error) error {
	var u *url.Error
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("no answer within %v", tryLimit)
	case errors.As(err, &u):
		return u.Err
	}
	return err
}

// refusal puts an answer that is no script into words.
func refusal(resp *http.Response, body []byte, s3, version bool) *fault {
	said := resp.Status
	var doc struct {
		Code    string
		Message string
	}
	if s3 && xml.Unmarshal(body, &doc) == nil && doc.Code != "" {
		said = fmt.Sprintf("%d %s: %s", resp.StatusCode, doc.Code, doc.Message)
	}
	again := false
	switch {
	case resp.StatusCode == http.StatusForbidden && s3:
		need := "s3:GetObject"
		if version {
			need = "s3:GetObjectVersion"
		}
		said += "; the role of the group's instance profile must allow " + need + " for it"
	case resp.StatusCode == http.StatusForbidden || resp.StatusCode == http.StatusUnauthorized:
		said += "; an https location must be readable without credentials"
	case resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode >= 500:
		again = true
	}
	return &fault{errors.New(said), again}
}

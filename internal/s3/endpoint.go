package s3

import (
	"bufio"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/openpcs/openpcs/internal/awsapi"
)

// Endpoint is an S3 elsewhere that has the buckets: that of AWS, or any other.
// All callers are one there, so openpcs looks at their policies itself, and
// nodes need neither a key of it nor a way to it.
type Endpoint struct {
	url         *url.URL
	region      string
	credentials string // path
	transport   http.RoundTripper
}

// NewEndpoint returns the S3 at an address. The credentials are a file in the
// form of ~/.aws/credentials that nobody else may read; its section default
// counts. It is read for each request, so that keys can be changed.
func NewEndpoint(address, region, credentials string) (*Endpoint, error) {
	u, err := url.Parse(address)
	switch {
	case err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.User != nil || (u.Path != "" && u.Path != "/") || u.RawQuery != "" || u.Fragment != "":
		return nil, fmt.Errorf("%q is not an address such as https://s3.example.com:9000", address)
	case !awsapi.ValidRegion(region):
		return nil, fmt.Errorf("%q is not a region such as ap-northeast-1", region)
	}
	e := &Endpoint{url: u, region: region, credentials: credentials}
	if _, err := e.key(); err != nil {
		return nil, err
	}
	t := http.DefaultTransport.(*http.Transport).Clone() // it is one
	t.DisableCompression, t.MaxIdleConnsPerHost, t.ResponseHeaderTimeout = true, 64, time.Minute
	e.transport = t
	return e, nil
}

func (e *Endpoint) target(r *awsapi.Stream) (target, error) {
	if err := permit(r, permissions(r.HTTP)...); err != nil {
		return target{}, err
	}
	key, err := e.key()
	if err != nil {
		return target{}, err
	}
	return target{url: e.url, host: e.url.Host, region: e.region, transport: e.transport, key: key}, nil
}

// key reads the credentials. No error repeats what is in the file.
func (e *Endpoint) key() (awsapi.Key, error) {
	fail := func(err error) (awsapi.Key, error) {
		return awsapi.Key{}, fmt.Errorf("read the credentials of S3 in %s: %w", e.credentials, err)
	}
	f, err := os.Open(e.credentials)
	if err != nil {
		return fail(errors.Unwrap(err))
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return fail(err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return fail(errors.New("others than its owner may read it: chmod 600"))
	}
	var key awsapi.Key
	section := ""
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if name, ok := strings.CutPrefix(line, "["); ok {
			section = strings.TrimSpace(strings.TrimSuffix(name, "]"))
			continue
		}
		name, value, ok := strings.Cut(line, "=")
		if !ok || section != "default" || strings.HasPrefix(line, "#") {
			continue
		}
		switch value = strings.TrimSpace(value); strings.TrimSpace(name) {
		case "aws_access_key_id":
			key.ID = value
		case "aws_secret_access_key":
			key.Secret = value
		case "aws_session_token":
			key.Token = value
		}
	}
	if err := lines.Err(); err != nil {
		return fail(err)
	}
	if key.ID == "" || key.Secret == "" {
		return fail(errors.New("its section [default] has no aws_access_key_id and aws_secret_access_key"))
	}
	return key, nil
}

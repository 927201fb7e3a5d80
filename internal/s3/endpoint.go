package s3

import (
	"fmt"
	"net/http"
	"net/url"
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

// key reads the credentials.
func (e *Endpoint) key() (awsapi.Key, error) { return awsapi.ReadKey(e.credentials) }

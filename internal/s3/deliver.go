package s3

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/url"
	"time"

	"github.com/openpcs/openpcs/internal/awsapi"
)

// Sender is a service of AWS that openpcs does the work of, for example the one
// that delivers logs. Bucket policies name it as a principal of the kind Service
// and may ask for what it acts for.
type Sender struct {
	Service   string // delivery.logs.amazonaws.com
	SourceARN string // aws:SourceArn
}

// Send sends a request in the name of a service. Of its URL the path and query
// count; the hash is that of its body or UNSIGNED-PAYLOAD. The policy of the
// bucket decides, as a service has no policies of its own, and an answer of
// AccessDenied says what it lacks. An endpoint elsewhere sees the caller that all
// requests have there.
func (s *S3) Send(req *http.Request, hash string, from Sender) (*http.Response, error) {
	req = req.Clone(req.Context())
	t := target{url: &url.URL{Scheme: "http", Host: "storage"}, host: "storage", region: s.o.Region, transport: s.storage.client}
	if e := s.o.Endpoint; e != nil {
		key, err := e.key()
		if err != nil {
			return nil, err
		}
		t = target{url: e.url, host: e.url.Host, region: e.region, transport: e.transport, key: key}
	} else {
		if err := s.storage.open(); err != nil {
			return nil, err
		}
		text, err := json.Marshal(Identity{ARN: from.Service})
		if err != nil {
			return nil, err
		}
		t.key = awsapi.Key{ID: from.Service, Secret: s.storage.setup.Secret, Token: base64.RawURLEncoding.EncodeToString(text)}
		// See translateCondition.
		req.Header.Set("Referer", from.SourceARN)
		req.Header.Set("User-Agent", s.o.Account)
	}
	req.URL.Scheme, req.URL.Host, req.Host = t.url.Scheme, t.url.Host, t.host
	awsapi.SignHash(req, hash, t.key, t.region, "s3", time.Now())
	return t.transport.RoundTrip(req)
}

package delivery

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/openpcs/openpcs/internal/awsapi"
	"github.com/openpcs/openpcs/internal/condition"
)

// Endpoint is a service of AWS, or another that speaks its API, outside of
// openpcs.
type Endpoint struct {
	address     string
	credentials string // path
	client      *http.Client
}

// NewEndpoint returns the service at an address. The credentials are a file in
// the form of ~/.aws/credentials, as for S3 elsewhere.
func NewEndpoint(address, credentials string) (*Endpoint, error) {
	u, err := url.Parse(address)
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.User != nil || (u.Path != "" && u.Path != "/") || u.RawQuery != "" || u.Fragment != "" {
		return nil, fmt.Errorf("%q is not an address such as https://logs.ap-northeast-1.amazonaws.com", address)
	}
	if _, err := awsapi.ReadKey(credentials); err != nil {
		return nil, err
	}
	return &Endpoint{address: address, credentials: credentials, client: &http.Client{Timeout: time.Minute}}, nil
}

// call calls an operation of a JSON 1.1 service. An error is a *failure.
func (e *Endpoint) call(ctx context.Context, region, service, target, op string, in, out any) error {
	key, err := awsapi.ReadKey(e.credentials)
	if err != nil {
		return &failure{code: condition.LogDeliveryDenied, text: err.Error()}
	}
	c := awsapi.Client{Endpoint: e.address, Key: key, Region: region, HTTP: e.client}
	err = c.JSON(ctx, service, target, op, "1.1", in, out)
	if err == nil {
		return nil
	}
	f := &failure{code: condition.LogDeliveryFailing, text: err.Error(), unclear: true}
	var api *awsapi.Error
	if errors.As(err, &api) {
		f.unclear = api.Status >= 500
		switch {
		case api.Code == "ResourceNotFoundException":
			f.code = condition.LogDestinationMissing
		case api.Status == http.StatusForbidden || slices.Contains(refusals, api.Code):
			f.code = condition.LogDeliveryDenied
		}
	}
	return f
}

// refusals are the codes of services that do not let the caller in.
var refusals = []string{"AccessDeniedException", "UnrecognizedClientException", "InvalidSignatureException", "IncompleteSignatureException", "MissingAuthenticationTokenException", "ExpiredTokenException"}

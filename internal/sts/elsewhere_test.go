package sts_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/openpcs/openpcs/internal/awsapi"
	"github.com/openpcs/openpcs/internal/awsapi/awsapitest"
	"github.com/openpcs/openpcs/internal/sts"
)

func TestKeysOfAnInstanceAreGoodOnThatInstanceOnly(t *testing.T) {
	w := awsapitest.New(t)
	w.Serve(t, sts.Service())
	for from, want := range map[string]string{"": "", "127.0.0.1": "", "10.77.16.7": "AccessDenied", "127.0.0.11": "AccessDenied"} {
		key, err := w.Keys.IssueSession(t.Context(), awsapi.Caller{ARN: "arn:aws:sts::1:assumed-role/r/i-1", InstanceID: "i-1", From: from, Allow: []string{"*"}}, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		client := w.ClientOf(key)
		// What a header claims of the address changes nothing.
		client.HTTP = &http.Client{Transport: claim{from}}
		_, err = client.Query(t.Context(), "sts", "2011-06-15", "GetCallerIdentity", nil)
		var refused *awsapi.Error
		switch {
		case want == "" && err != nil:
			t.Errorf("from %q: %v", from, err)
		case want != "" && (!errors.As(err, &refused) || refused.Code != want || !strings.Contains(refused.Message, "came from 127.0.0.1")):
			t.Errorf("from %q: %v, want %s", from, err, want)
		}
	}
}

// claim says that a request came from an address.
type claim struct{ from string }

func (c claim) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("X-Forwarded-For", c.from)
	return http.DefaultTransport.RoundTrip(r)
}

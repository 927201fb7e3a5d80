package awsapi_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"

	"github.com/openpcs/openpcs/internal/awsapi"
)

// seen is what the service of a stream got.
type seen struct {
	stream *awsapi.Stream
	body   []byte
	err    error
}

// streamWire is a wire with a service that reads streams.
func streamWire(t *testing.T, o awsapi.Options) (*wire, *seen) {
	t.Helper()
	got := &seen{}
	o.Services = append(services(), awsapi.Service{Name: "s3", Protocol: awsapi.RestXML, Stream: func(w http.ResponseWriter, r *awsapi.Stream) {
		got.stream = r
		got.body, got.err = io.ReadAll(r.HTTP.Body)
		if got.err != nil {
			r.WriteError(w, &awsapi.Error{Code: "IncompleteBody", Message: "broken", Status: http.StatusBadRequest})
		}
	}})
	return newWireOf(t, o), got
}

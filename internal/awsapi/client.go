package awsapi

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// maxAnswer bounds what a client reads.
const maxAnswer = 32 << 20

// Client calls services that speak the protocols of this package: openpcs
// itself, for the CLI and the agent on the nodes.
type Client struct {
	Endpoint string // http://127.0.0.1:7300
	Key      Key
	Region   string
	HTTP     *http.Client     // nil: http.DefaultClient
	Now      func() time.Time // nil: time.Now
}

// JSON calls an operation of a JSON service. The content version is "1.0" or
// "1.1"; in and out may be nil. An error of the service is an *Error.
func (c *Client) JSON(ctx context.Context, service, target, op, contentVersion string, in, out any) error {
	body := []byte("{}")
	if in != nil {
		var err error
		if body, err = json.Marshal(in); err != nil {
			return fmt.Errorf("call %s %s: %w", service, op, err)
		}
	}
	header := http.Header{
		"Content-Type": {"application/x-amz-json-" + contentVersion},
		"X-Amz-Target": {target + "." + op},
	}
	status, answer, err := c.do(ctx, service, header, body)
	if err != nil {
		return fmt.Errorf("call %s %s: %w", service, op, err)
	}
	if status/100 != 2 {
		return fmt.Errorf("call %s %s: %w", service, op, decodeJSONError(status, answer))
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(answer, out); err != nil {
		return fmt.Errorf("call %s %s: decode answer: %w", service, op, err)
	}
	return nil
}

// Query calls an action of a query service and returns its XML. An error of
// the service is an *Error.
func (c *Client) Query(ctx context.Context, service, version, action string, form url.Values) ([]byte, error) {
	form = maps.Clone(form)
	if form == nil {
		form = url.Values{}
	}
	form.Set("Action", action)
	form.Set("Version", version)
	header := http.Header{"Content-Type": {"application/x-www-form-urlencoded; charset=utf-8"}}
	status, answer, err := c.do(ctx, service, header, []byte(form.Encode()))
	if err != nil {
		return nil, fmt.Errorf("call %s %s: %w", service, action, err)
	}
	if status/100 != 2 {
		return nil, fmt.Errorf("call %s %s: %w", service, action, decodeXMLError(status, answer))
	}
	return answer, nil
}

func (c *Client) do(ctx context.Context, service string, header http.Header, body []byte) (int, []byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimSuffix(c.Endpoint, "/")+"/", bytes.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	req.Header = header
	now := time.Now
	if c.Now != nil {
		now = c.Now
	}
	Sign(req, body, c.Key, c.Region, service, now())
	client := c.HTTP
	if client == nil {
		client = http.DefaultClient
	}
	resp, err := client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return 0, nil, fmt.Errorf("read answer: %w", err)
	}
	return resp.StatusCode, answer, nil
}

func decodeJSONError(status int, body []byte) *Error {
	fields := map[string]any{}
	e := &Error{Status: status, Code: http.StatusText(status), Message: strings.TrimSpace(string(body[:min(len(body), 500)]))}
	if json.Unmarshal(body, &fields) != nil {
		return e
	}
	if code, ok := fields["__type"].(string); ok {
		if _, after, found := cutLast(code, "#"); found {
			code = after
		}
		e.Code = code
	}
	for _, k := range []string{"message", "Message"} {
		if m, ok := fields[k].(string); ok {
			e.Message = m
			delete(fields, k)
		}
	}
	delete(fields, "__type")
	if len(fields) > 0 {
		e.Fields = fields
	}
	return e
}

func decodeXMLError(status int, body []byte) *Error {
	// The two forms are Response/Errors/Error and ErrorResponse/Error.
	var doc struct {
		EC2   []xmlError `xml:"Errors>Error"`
		Query []xmlError `xml:"Error"`
	}
	e := &Error{Status: status, Code: http.StatusText(status), Message: strings.TrimSpace(string(body[:min(len(body), 500)]))}
	if xml.Unmarshal(body, &doc) != nil {
		return e
	}
	for _, found := range append(doc.EC2, doc.Query...) {
		e.Code, e.Message = found.Code, found.Message
	}
	return e
}

type xmlError struct {
	Code    string
	Message string
}

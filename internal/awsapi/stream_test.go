package awsapi_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/xml"
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

// reader is a service that reads streams, and what it got of the last one.
type reader struct {
	front  http.Handler
	stream *awsapi.Stream
	body   string
	err    error
}

// newReader has a clock that shows the time.
func newReader(key awsapi.Key, at time.Time) *reader {
	r := &reader{}
	r.front = awsapi.NewServer(awsapi.Options{
		Keys: oneKey(key), Logger: quiet(), Now: func() time.Time { return at },
		Services: append(services(), awsapi.Service{Name: "s3", Protocol: awsapi.RestXML, Stream: func(w http.ResponseWriter, s *awsapi.Stream) {
			r.stream = s
			var body []byte
			body, r.err = io.ReadAll(s.HTTP.Body)
			r.body = string(body)
			if r.err != nil {
				s.WriteError(w, &awsapi.Error{Code: "IncompleteBody", Message: "It broke off."})
			}
		}}),
	})
	return r
}

func (r *reader) ask(req *http.Request) *httptest.ResponseRecorder {
	r.stream, r.body, r.err = nil, "", nil
	w := httptest.NewRecorder()
	r.front.ServeHTTP(w, req)
	return w
}

// errorOf is the code in an answer.
func errorOf(t *testing.T, w *httptest.ResponseRecorder) string {
	t.Helper()
	if w.Code == http.StatusOK {
		return ""
	}
	var e struct {
		XMLName                            xml.Name `xml:"Error"`
		Code, Message, Resource, RequestId string
	}
	if err := xml.Unmarshal(w.Body.Bytes(), &e); err != nil || e.Message == "" || e.RequestId == "" || e.RequestId != w.Header().Get("X-Amz-Request-Id") {
		t.Errorf("no error of S3: %v: %d %s", err, w.Code, w.Body)
	}
	return e.Code
}

// put is a signed request; the hash is what the signature has for the body.
func putObject(t *testing.T, key awsapi.Key, at time.Time, hash, body string, change func(*http.Request)) *http.Request {
	t.Helper()
	req := httptest.NewRequest(http.MethodPut, "http://openpcs.test/box/a%20b/%C3%B6%2Bc?partNumber=1", strings.NewReader(body))
	req.Header.Set("X-Amz-Content-Sha256", hash)
	if change != nil {
		change(req)
	}
	// The official signer leaves the escaping of paths to its callers.
	err := v4.NewSigner(func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true }).
		SignHTTP(context.Background(), credentials(key), req, hash, "s3", "ap-northeast-1", at)
	if err != nil {
		t.Fatal(err)
	}
	return req
}

func TestStreamsAreVerified(t *testing.T) {
	r := newReader(aKey, start)
	for _, tt := range []struct {
		name   string
		hash   string
		change func(*http.Request) // after signing
		code   string
	}{
		{"signed body", hash([]byte("x")), nil, ""},
		{"unsigned body", "UNSIGNED-PAYLOAD", nil, ""},
		{"unsigned trailer", "STREAMING-UNSIGNED-PAYLOAD-TRAILER", nil, ""},
		{"a word that is none", "SIGNED", nil, "InvalidArgument"},
		{"another path", "UNSIGNED-PAYLOAD", func(r *http.Request) { r.URL.Path, r.URL.RawPath = "/box/other", "" }, "SignatureDoesNotMatch"},
		{"another parameter", "UNSIGNED-PAYLOAD", func(r *http.Request) { r.URL.RawQuery = "partNumber=2" }, "SignatureDoesNotMatch"},
		{"another method", "UNSIGNED-PAYLOAD", func(r *http.Request) { r.Method = http.MethodDelete }, "SignatureDoesNotMatch"},
		{"another hash", hash([]byte("x")), func(r *http.Request) { r.Header.Set("X-Amz-Content-Sha256", hash([]byte("y"))) }, "SignatureDoesNotMatch"},
		{"unsigned in place of the hash", hash([]byte("x")), func(r *http.Request) { r.Header.Set("X-Amz-Content-Sha256", "UNSIGNED-PAYLOAD") }, "SignatureDoesNotMatch"},
		{"no hash", "UNSIGNED-PAYLOAD", func(r *http.Request) { r.Header.Del("X-Amz-Content-Sha256") }, "InvalidRequest"},
		{"another header", "UNSIGNED-PAYLOAD", func(r *http.Request) { r.Header.Set("X-Amz-Acl", "public-read") }, "SignatureDoesNotMatch"},
		{"another key", "UNSIGNED-PAYLOAD", func(r *http.Request) {
			r.Header.Set("Authorization", strings.Replace(r.Header.Get("Authorization"), aKey.ID, "AKIAOTHER", 1))
		}, "InvalidAccessKeyId"},
		{"a token that is not the key's", "UNSIGNED-PAYLOAD", func(r *http.Request) { r.Header.Set("X-Amz-Security-Token", "x") }, "SignatureDoesNotMatch"},
		{"no signature", "UNSIGNED-PAYLOAD", func(r *http.Request) { r.Header.Del("Authorization") }, "AccessDenied"},
		{"half a signature", "UNSIGNED-PAYLOAD", func(r *http.Request) { r.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential=x") }, "AuthorizationHeaderMalformed"},
	} {
		req := putObject(t, aKey, start, tt.hash, "x", nil)
		if tt.change != nil {
			tt.change(req)
		}
		w := r.ask(req)
		if got := errorOf(t, w); got != tt.code {
			t.Errorf("%s: %d %s, want %q", tt.name, w.Code, w.Body, tt.code)
		}
		if (r.stream != nil) != (tt.code == "") {
			t.Errorf("%s: whether the service was asked: %t", tt.name, r.stream != nil)
		}
		if r.stream == nil {
			continue
		}
		if r.body != "x" || r.stream.PayloadHash != tt.hash || r.stream.Region != "ap-northeast-1" || r.stream.Caller.ARN != aKey.Caller.ARN {
			t.Errorf("%s: the service got %+v with the body %q", tt.name, r.stream, r.body)
		}
		if h := r.stream.HTTP; h.URL.EscapedPath() != "/box/a%20b/%C3%B6%2Bc" || h.URL.RawQuery != "partNumber=1" || h.Header.Get("Authorization")+h.Header.Get("X-Amz-Date") != "" {
			t.Errorf("%s: the service got %s with %v", tt.name, h.URL, h.Header)
		}
	}
	late := newReader(aKey, start.Add(time.Hour))
	if got := errorOf(t, late.ask(putObject(t, aKey, start, "UNSIGNED-PAYLOAD", "x", nil))); got != "RequestTimeTooSkewed" {
		t.Errorf("an hour later: %q", got)
	}
}

func TestPresignedStreams(t *testing.T) {
	req := httptest.NewRequest(http.MethodGet, "http://openpcs.test/box/k?versionId=7&X-Amz-Expires=60", nil)
	signed, _, err := v4.NewSigner(func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true }).
		PresignHTTP(t.Context(), credentials(aKey), req, "UNSIGNED-PAYLOAD", "s3", "ap-northeast-1", start)
	if err != nil {
		t.Fatal(err)
	}
	get := func(at time.Time, url string) (string, *reader) {
		r := newReader(aKey, at)
		return errorOf(t, r.ask(httptest.NewRequest(http.MethodGet, url, nil))), r
	}
	if code, r := get(start.Add(50*time.Second), signed); code != "" || r.stream.HTTP.URL.RawQuery != "versionId=7" {
		t.Errorf("%q, %+v", code, r.stream)
	}
	if code, _ := get(start.Add(70*time.Second), signed); code != "AccessDenied" {
		t.Errorf("after its end: %q", code)
	}
	if code, _ := get(start, strings.Replace(signed, "versionId=7", "versionId=8", 1)); code != "SignatureDoesNotMatch" {
		t.Errorf("for another version: %q", code)
	}
}

// The examples of chunks in AWS's documentation of SigV4.
var (
	exampleKey = awsapi.Key{ID: "AKIAIOSFODNN7EXAMPLE", Secret: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", Caller: awsapi.Caller{Allow: []string{"*"}}}
	exampleAt  = time.Date(2013, time.May, 24, 0, 0, 0, 0, time.UTC)
)

func example(headers, seed, sha, length string, body string, more ...string) *http.Request {
	req := httptest.NewRequest(http.MethodPut, "http://s3.amazonaws.com/examplebucket/chunkObject.txt", strings.NewReader(body))
	for _, h := range append([]string{
		"Authorization: AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, SignedHeaders=" + headers + ", Signature=" + seed,
		"X-Amz-Date: 20130524T000000Z", "X-Amz-Storage-Class: REDUCED_REDUNDANCY", "X-Amz-Content-Sha256: " + sha,
		"Content-Encoding: aws-chunked", "X-Amz-Decoded-Content-Length: 66560", "Content-Length: " + length,
	}, more...) {
		name, value, _ := strings.Cut(h, ": ")
		req.Header.Set(name, value)
	}
	req.ContentLength, _ = strconv.ParseInt(length, 10, 64)
	return req
}

func TestDocumentedChunks(t *testing.T) {
	chunk := func(n int, signature string) string {
		return fmt.Sprintf("%x;chunk-signature=%s\r\n%s\r\n", n, signature, strings.Repeat("a", n))
	}
	r := newReader(exampleKey, exampleAt)
	w := r.ask(example("content-encoding;content-length;host;x-amz-content-sha256;x-amz-date;x-amz-decoded-content-length;x-amz-storage-class",
		"4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD", "66824",
		chunk(65536, "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648")+
			chunk(1024, "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497")+
			chunk(0, "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9")))
	if w.Code != http.StatusOK || r.err != nil || r.body != strings.Repeat("a", 66560) {
		t.Fatalf("%d %s, %v, %d bytes", w.Code, w.Body, r.err, len(r.body))
	}
	if h := r.stream.HTTP; r.stream.PayloadHash != "UNSIGNED-PAYLOAD" || h.ContentLength != 66560 || h.Header.Get("Content-Encoding")+h.Header.Get("X-Amz-Decoded-Content-Length") != "" {
		t.Errorf("the service got %+v %+v", r.stream, h)
	}
	w = r.ask(example("content-encoding;host;x-amz-content-sha256;x-amz-date;x-amz-decoded-content-length;x-amz-storage-class;x-amz-trailer",
		"106e2a8a18243abcf37539882f36619c00e2dfc72633413f02d3b74544bfeb8e", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER", "66946",
		chunk(65536, "b474d8862b1487a5145d686f57f013e54db672cee1c953b3010fb58501ef5aa2")+
			chunk(1024, "1c1344b170168f8e65b41376b44b20fe354e373826ccbbe2c1d40a8cae51e5c7")+
			"0;chunk-signature=2ca2aba2005185cf7159c6277faf83795951dd77a3a99e6e65d5c9f85863f992\r\n"+
			"x-amz-checksum-crc32c:sOO8/Q==\r\nx-amz-trailer-signature:d81f82fc3505edab99d459891051a732e8730629a2e4a59689829ca17fe2e435\r\n\r\n",
		"X-Amz-Trailer: x-amz-checksum-crc32c"))
	whole := "10400\r\n" + strings.Repeat("a", 66560) + "\r\n0\r\nx-amz-checksum-crc32c:sOO8/Q==\r\n\r\n"
	if w.Code != http.StatusOK || r.err != nil || r.body != whole || r.stream.PayloadHash != "STREAMING-UNSIGNED-PAYLOAD-TRAILER" || r.stream.HTTP.ContentLength != int64(len(whole)) {
		t.Errorf("%d %s, %v, %d bytes of %d", w.Code, w.Body, r.err, len(r.body), len(whole))
	}
}

// TestChunksThatAreNotWhatWasSigned: none of them ever becomes a whole body.
func TestChunksThatAreNotWhatWasSigned(t *testing.T) {
	r := newReader(aKey, start)
	ask := func(decoded string, trailer bool, change func(body string) string) *httptest.ResponseRecorder {
		sha := "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
		if trailer {
			sha += "-TRAILER"
		}
		req := putObject(t, aKey, start, sha, "", func(r *http.Request) {
			r.Header.Set("X-Amz-Decoded-Content-Length", decoded)
			if trailer {
				r.Header.Set("X-Amz-Trailer", "x-amz-checksum-crc32")
			}
		})
		body := change(chunks(t, req, trailer, "first", "second", ""))
		req.Body, req.ContentLength = io.NopCloser(strings.NewReader(body)), int64(len(body))
		return r.ask(req)
	}
	same := func(s string) string { return s }
	for _, trailer := range []bool{false, true} {
		if w := ask("11", trailer, same); w.Code != http.StatusOK || !strings.Contains(r.body, "firstsecond") {
			t.Fatalf("as it was signed: %d %s %q", w.Code, w.Body, r.body)
		}
		for name, tt := range map[string]struct {
			decoded string
			change  func(string) string
		}{
			"data":                   {"11", func(s string) string { return strings.Replace(s, "second", "Second", 1) }},
			"less than announced":    {"12", same},
			"more than announced":    {"10", same},
			"a chunk less":           {"5", func(s string) string { return s[:strings.Index(s, "6;")] + s[strings.Index(s, "0;"):] }},
			"a chunk twice":          {"16", func(s string) string { return s[:strings.Index(s, "6;")] + s }},
			"no end":                 {"11", func(s string) string { return s[:strings.Index(s, "0;")] }},
			"broken off":             {"11", func(s string) string { return s[:strings.Index(s, "second")+3] }},
			"no signatures":          {"11", func(string) string { return "b\r\nfirstsecond\r\n0\r\n\r\n" }},
			"a negative chunk":       {"11", func(s string) string { return "-" + s }},
			"a head that never ends": {"11", func(string) string { return strings.Repeat("1", 1<<20) }},
			"a chunk that is longer": {"11", func(s string) string { return "6" + s[1:] }},
		} {
			if w := ask(tt.decoded, trailer, tt.change); r.err == nil || w.Code == http.StatusOK {
				t.Errorf("%s (trailer: %t): %d, the body is %q", name, trailer, w.Code, r.body)
			}
		}
	}
	for name, change := range map[string]func(string) string{
		"checksum": func(s string) string { return strings.Replace(s, "crc32:", "crc32:A", 1) },
		"signature": func(s string) string {
			return strings.Replace(s, "x-amz-trailer-signature:", "x-amz-trailer-signature:0", 1)
		},
		"no signature": func(s string) string { return s[:strings.Index(s, "x-amz-trailer-signature")] + "\r\n" },
		"another line": func(s string) string { return strings.Replace(s, "x-amz-checksum-crc32:", "x-amz-meta-a:", 1) },
		"two checksums": func(s string) string {
			i := strings.Index(s, "x-amz-checksum")
			return s[:i] + s[i:strings.Index(s, "x-amz-trailer")] + s[i:]
		},
		"nothing at all there": func(s string) string { return s[:strings.Index(s, "x-amz-checksum")] },
	} {
		if w := ask("11", true, change); r.err == nil || w.Code == http.StatusOK {
			t.Errorf("a trailer with another %s: %d %q", name, w.Code, r.body)
		}
	}
	if w := ask("x", false, same); errorOf(t, w) != "MissingContentLength" {
		t.Errorf("without a length: %s", w.Body)
	}
}

// chunks signs parts of a body as the official signer of streams does, which
// signs chunks of S3 and events alike.
func chunks(t *testing.T, req *http.Request, trailer bool, parts ...string) string {
	t.Helper()
	_, seed, _ := strings.Cut(req.Header.Get("Authorization"), "Signature=")
	raw, err := hex.DecodeString(seed)
	if err != nil {
		t.Fatal(err)
	}
	signer := v4.NewStreamSigner(credentials(aKey), "s3", "ap-northeast-1", raw)
	var out bytes.Buffer
	last := seed
	for _, part := range parts {
		signature, err := signer.GetSignature(t.Context(), nil, []byte(part), start)
		if err != nil {
			t.Fatal(err)
		}
		last = hex.EncodeToString(signature)
		fmt.Fprintf(&out, "%x;chunk-signature=%s\r\n%s", len(part), last, part)
		if part != "" || !trailer {
			out.WriteString("\r\n")
		}
	}
	if trailer {
		sum := binary.BigEndian.AppendUint32(nil, crc32.ChecksumIEEE([]byte(strings.Join(parts, ""))))
		line := "x-amz-checksum-crc32:" + base64.StdEncoding.EncodeToString(sum)
		fmt.Fprintf(&out, "%s\r\nx-amz-trailer-signature:%s\r\n\r\n", line, awsapi.SignTrailer(aKey, start, "ap-northeast-1", last, line+"\n"))
	}
	return out.String()
}

// TestStreamsThatAreUnsignedAreRefusedUnread: who has no key has nothing read.
func TestStreamsThatAreUnsignedAreRefusedUnread(t *testing.T) {
	r := newReader(aKey, start)
	body := &endless{}
	req := httptest.NewRequest(http.MethodPut, "http://openpcs.test/box/k", io.NopCloser(body))
	if got := errorOf(t, r.ask(req)); got != "AccessDenied" || body.read > 0 {
		t.Errorf("%q after %d bytes", got, body.read)
	}
}

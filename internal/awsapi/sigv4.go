package awsapi

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	algorithm  = "AWS4-HMAC-SHA256"
	timeFormat = "20060102T150405Z"
	dateFormat = "20060102"
	// maxSkew is how far the clocks of client and server may be apart.
	maxSkew = 15 * time.Minute
	// maxPresign is the longest life of a presigned URL that AWS allows.
	maxPresign      = 7 * 24 * time.Hour
	unsignedPayload = "UNSIGNED-PAYLOAD"
	// maxSignedHeaders bounds the work that an unverified request can cause.
	maxSignedHeaders = 100
)

// signature is the parsed, not yet verified signature of a request.
type signature struct {
	keyID     string
	date      string // YYYYMMDD of the scope
	region    string
	service   string
	headers   []string
	signature []byte
	token     string
	at        time.Time
	expires   time.Duration // presigned only
	presigned bool
}

func (s *signature) scope() string {
	return s.date + "/" + s.region + "/" + s.service + "/aws4_request"
}

// sentence is an error whose text is shown to the caller as it is, in the
// words of AWS.
type sentence string

func (s sentence) Error() string { return string(s) }

func sentencef(format string, args ...any) error {
	return sentence(fmt.Sprintf(format, args...))
}

// errNoSignature is returned for a request that carries none.
var errNoSignature = errors.New("request is not signed")

// parseSignature reads the signature out of the Authorization header or the
// query of a presigned URL. Its errors are sentences for the caller. That there
// is one Authorization header only is checked before (onceOnly).
func parseSignature(r *http.Request, query url.Values) (*signature, error) {
	auth := r.Header.Values("Authorization")
	_, inQuery := query["X-Amz-Signature"]
	if !inQuery {
		_, inQuery = query["X-Amz-Algorithm"]
	}
	switch {
	case len(auth) == 0 && !inQuery:
		return nil, errNoSignature
	case len(auth) > 0 && inQuery:
		return nil, sentence("Only one auth mechanism allowed; only the X-Amz-Algorithm query parameter or the Authorization header should be specified")
	case inQuery:
		return parsePresigned(query)
	default:
		return parseAuthorization(r, auth[0])
	}
}

func parseAuthorization(r *http.Request, auth string) (*signature, error) {
	name, rest, _ := strings.Cut(strings.TrimSpace(auth), " ")
	if name != algorithm {
		return nil, sentencef("Unsupported authorization algorithm %q: this endpoint verifies %s", name, algorithm)
	}
	fields := map[string]string{}
	for part := range strings.SplitSeq(rest, ",") {
		k, v, ok := strings.Cut(strings.TrimSpace(part), "=")
		if !ok {
			return nil, sentencef("%q not a valid key=value pair (missing equal-sign) in Authorization header", part)
		}
		if _, twice := fields[k]; twice {
			return nil, sentencef("Authorization header has more than one %q", k)
		}
		fields[k] = v
	}
	for _, k := range []string{"Credential", "SignedHeaders", "Signature"} {
		if fields[k] == "" {
			return nil, sentencef("Authorization header requires '%s' parameter", k)
		}
	}
	date := r.Header.Get("X-Amz-Date")
	if date == "" {
		date = r.Header.Get("Date")
	}
	if date == "" {
		return nil, sentence("Authorization header requires existence of either a 'X-Amz-Date' or a 'Date' header")
	}
	at, err := time.Parse(timeFormat, date)
	if err != nil {
		if at, err = http.ParseTime(date); err != nil {
			return nil, sentencef("Date must be in ISO-8601 'basic format'. Got '%s'", date)
		}
	}
	s := &signature{at: at.UTC(), token: r.Header.Get("X-Amz-Security-Token")}
	return s, s.fill(fields["Credential"], fields["SignedHeaders"], fields["Signature"])
}

func parsePresigned(query url.Values) (*signature, error) {
	get := func(k string) (string, error) {
		v := query[k]
		switch {
		case len(v) == 0 || v[0] == "":
			return "", sentencef("AWS query-string parameters must include '%s'", k)
		case len(v) > 1:
			return "", sentencef("AWS query-string parameter '%s' is present more than once", k)
		}
		return v[0], nil
	}
	var vals [6]string
	for i, k := range []string{"X-Amz-Algorithm", "X-Amz-Credential", "X-Amz-Date", "X-Amz-Expires", "X-Amz-SignedHeaders", "X-Amz-Signature"} {
		v, err := get(k)
		if err != nil {
			// Query services get presigned calls without an expiry.
			if k != "X-Amz-Expires" || len(query[k]) > 0 {
				return nil, err
			}
		}
		vals[i] = v
	}
	if vals[0] != algorithm {
		return nil, sentencef("X-Amz-Algorithm only supports %q", algorithm)
	}
	at, err := time.Parse(timeFormat, vals[2])
	if err != nil {
		return nil, sentencef("X-Amz-Date must be in ISO-8601 'basic format'. Got '%s'", vals[2])
	}
	life := maxSkew
	if vals[3] != "" {
		seconds, err := strconv.Atoi(vals[3])
		if err != nil || seconds < 0 || time.Duration(seconds)*time.Second > maxPresign {
			return nil, sentencef("X-Amz-Expires must be a number between 0 and %d", int(maxPresign/time.Second))
		}
		life = time.Duration(seconds) * time.Second
	}
	s := &signature{at: at.UTC(), token: query.Get("X-Amz-Security-Token"), expires: life, presigned: true}
	return s, s.fill(vals[1], vals[4], vals[5])
}

// fill takes the parts that both forms of a signature share.
func (s *signature) fill(credential, headers, sig string) error {
	// Key ids have no slash, so the scope is what follows the first one.
	parts := strings.Split(credential, "/")
	if len(parts) != 5 || parts[4] != "aws4_request" || slices.Contains(parts, "") {
		return sentencef("Credential must have exactly 5 slash-delimited elements, e.g. keyid/date/region/service/aws4_request, got '%s'", credential)
	}
	s.keyID, s.date, s.region, s.service = parts[0], parts[1], parts[2], parts[3]
	s.headers = strings.Split(headers, ";")
	if len(s.headers) > maxSignedHeaders {
		return sentencef("SignedHeaders has more than %d names", maxSignedHeaders)
	}
	for i, h := range s.headers {
		if h == "" || h != strings.ToLower(h) || slices.Contains(s.headers[:i], h) {
			return sentencef("SignedHeaders must be lower-case header names, each once, got '%s'", headers)
		}
	}
	raw, err := hex.DecodeString(sig)
	if err != nil || len(raw) != sha256.Size {
		return sentence("Signature must be 64 hexadecimal digits")
	}
	s.signature = raw
	return nil
}

// unsigned returns the first header that must be signed and is not.
func (s *signature) unsigned(h http.Header) string {
	if !slices.Contains(s.headers, "host") {
		return "host"
	}
	var missing []string
	for name := range h {
		name = strings.ToLower(name)
		// Some clients add the user agent after signing; AWS lets them.
		if strings.HasPrefix(name, "x-amz-") && name != "x-amz-user-agent" && !slices.Contains(s.headers, name) {
			missing = append(missing, name)
		}
	}
	if len(missing) == 0 {
		return ""
	}
	return slices.Min(missing)
}

// checkTime compares the time of the signature with the clock. Its error is
// a sentence for the caller.
func (s *signature) checkTime(now time.Time) error {
	now = now.UTC()
	if got := s.at.Format(dateFormat); got != s.date {
		return sentencef("Date in Credential scope does not match YYYYMMDD from ISO-8601 version of date from HTTP: '%s' != '%s', from '%s'.", s.date, got, s.at.Format(timeFormat))
	}
	if s.at.After(now.Add(maxSkew)) {
		return sentencef("Signature not yet current: %s is still later than %s (%s + 15 min.)", s.at.Format(timeFormat), now.Add(maxSkew).Format(timeFormat), now.Format(timeFormat))
	}
	if s.presigned {
		if end := s.at.Add(s.expires); now.After(end) {
			return sentencef("Signature expired: the URL was valid until %s, now it is %s", end.Format(timeFormat), now.Format(timeFormat))
		}
		return nil
	}
	if s.at.Before(now.Add(-maxSkew)) {
		return sentencef("Signature expired: %s is now earlier than %s (%s - 15 min.)", s.at.Format(timeFormat), now.Add(-maxSkew).Format(timeFormat), now.Format(timeFormat))
	}
	return nil
}

// verify reports whether the signature was made with the secret.
func (s *signature) verify(r *http.Request, secret, payloadHash string) bool {
	want := sign(secret, s.date, s.region, s.service,
		stringToSign(s.at, s.scope(), canonicalRequest(r, s.headers, s.service, payloadHash)))
	return subtle.ConstantTimeCompare(want, s.signature) == 1
}

// canonicalRequest writes the request in the form that is signed.
func canonicalRequest(r *http.Request, headers []string, service, payloadHash string) string {
	var b strings.Builder
	b.WriteString(r.Method)
	b.WriteByte('\n')
	b.WriteString(canonicalPath(r.URL.EscapedPath(), service))
	b.WriteByte('\n')
	b.WriteString(canonicalQuery(r.URL.RawQuery))
	b.WriteByte('\n')
	for _, name := range headers {
		b.WriteString(name)
		b.WriteByte(':')
		b.WriteString(canonicalHeader(r, name))
		b.WriteByte('\n')
	}
	b.WriteByte('\n')
	b.WriteString(strings.Join(headers, ";"))
	b.WriteByte('\n')
	b.WriteString(payloadHash)
	return b.String()
}

// canonicalPath encodes the path as it was sent once more and removes dot
// segments, except for S3, whose keys may hold anything.
func canonicalPath(escaped, service string) string {
	if escaped == "" {
		return "/"
	}
	if service == "s3" {
		// Bring the client's own choice of escapes to the canonical one.
		if plain, err := url.PathUnescape(escaped); err == nil {
			return uriEncode(plain, true)
		}
		return escaped
	}
	var kept []string
	for seg := range strings.SplitSeq(escaped, "/") {
		switch seg {
		case "", ".":
		case "..":
			kept = kept[:max(0, len(kept)-1)]
		default:
			kept = append(kept, seg)
		}
	}
	p := "/" + strings.Join(kept, "/")
	if strings.HasSuffix(escaped, "/") && p != "/" {
		p += "/"
	}
	return uriEncode(p, true)
}

// canonicalQuery sorts the parameters by their encoded names and values and
// leaves the signature itself out.
func canonicalQuery(raw string) string {
	if raw == "" {
		return ""
	}
	var pairs [][2]string
	for part := range strings.SplitSeq(raw, "&") {
		if part == "" {
			continue
		}
		k, v, _ := strings.Cut(part, "=")
		k, v = reencode(k), reencode(v)
		if k != "X-Amz-Signature" {
			pairs = append(pairs, [2]string{k, v})
		}
	}
	slices.SortFunc(pairs, func(a, b [2]string) int {
		if c := strings.Compare(a[0], b[0]); c != 0 {
			return c
		}
		return strings.Compare(a[1], b[1])
	})
	out := make([]string, len(pairs))
	for i, p := range pairs {
		out[i] = p[0] + "=" + p[1]
	}
	return strings.Join(out, "&")
}

func reencode(s string) string {
	plain, err := url.QueryUnescape(s)
	if err != nil {
		plain = s // the server refuses such a query before it comes here
	}
	return uriEncode(plain, false)
}

// uriEncode is RFC 3986 with the unreserved characters kept, as AWS wants.
func uriEncode(s string, keepSlash bool) string {
	const hexDigits = "0123456789ABCDEF"
	var b strings.Builder
	b.Grow(len(s))
	for i := range len(s) {
		c := s[i]
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9',
			c == '-', c == '_', c == '.', c == '~', c == '/' && keepSlash:
			b.WriteByte(c)
		default:
			b.WriteByte('%')
			b.WriteByte(hexDigits[c>>4])
			b.WriteByte(hexDigits[c&15])
		}
	}
	return b.String()
}

// canonicalHeader joins the values of a header with commas, each trimmed and
// with runs of spaces made one.
func canonicalHeader(r *http.Request, name string) string {
	var values []string
	switch name {
	case "host":
		// net/http takes these two out of the header map.
		if values = []string{r.Host}; r.Host == "" {
			values = []string{r.URL.Host}
		}
	case "content-length":
		if values = r.Header.Values(name); len(values) == 0 && r.ContentLength >= 0 {
			values = []string{strconv.FormatInt(r.ContentLength, 10)}
		}
	case "transfer-encoding":
		values = r.TransferEncoding
	default:
		values = r.Header.Values(name)
	}
	clean := make([]string, len(values))
	for i, v := range values {
		clean[i] = strings.Join(strings.FieldsFunc(v, func(c rune) bool { return c == ' ' || c == '\t' }), " ")
	}
	return strings.Join(clean, ",")
}

func stringToSign(at time.Time, scope, canonical string) string {
	return algorithm + "\n" + at.UTC().Format(timeFormat) + "\n" + scope + "\n" + hashHex([]byte(canonical))
}

// sign computes the signature with the key that is derived from the secret
// for the day, region and service.
func sign(secret, date, region, service, text string) []byte {
	return hmacSHA256(signingKey(secret, date, region, service), text)
}

func signingKey(secret, date, region, service string) []byte {
	k := hmacSHA256([]byte("AWS4"+secret), date)
	k = hmacSHA256(k, region)
	k = hmacSHA256(k, service)
	return hmacSHA256(k, "aws4_request")
}

func hmacSHA256(key []byte, data string) []byte {
	m := hmac.New(sha256.New, key)
	m.Write([]byte(data)) // never fails (hash.Hash)
	return m.Sum(nil)
}

func hashHex(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

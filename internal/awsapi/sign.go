package awsapi

import (
	"encoding/hex"
	"net/http"
	"slices"
	"strings"
	"time"
)

// Sign signs a request of our own clients (the CLI, the agent on a node) in
// the header form. The body is what the request will send.
func Sign(req *http.Request, body []byte, key Key, region, service string, now time.Time) {
	SignHash(req, hashHex(body), key, region, service, now)
}

// SignHash is Sign for a body of which the hash is known, or the word that
// stands for it.
func SignHash(req *http.Request, hash string, key Key, region, service string, now time.Time) {
	now = now.UTC()
	req.Header.Set("X-Amz-Date", now.Format(timeFormat))
	if key.Token != "" {
		req.Header.Set("X-Amz-Security-Token", key.Token)
	}
	if service == "s3" {
		req.Header.Set("X-Amz-Content-Sha256", hash)
	}
	headers := []string{"host"}
	for name := range req.Header {
		name = strings.ToLower(name)
		if name == "content-type" || strings.HasPrefix(name, "x-amz-") {
			headers = append(headers, name)
		}
	}
	slices.Sort(headers)
	date := now.Format(dateFormat)
	scope := date + "/" + region + "/" + service + "/aws4_request"
	sig := sign(key.Secret, date, region, service,
		stringToSign(now, scope, canonicalRequest(req, headers, service, hash)))
	req.Header.Set("Authorization", algorithm+" Credential="+key.ID+"/"+scope+
		", SignedHeaders="+strings.Join(headers, ";")+", Signature="+hex.EncodeToString(sig))
}

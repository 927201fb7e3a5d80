package awsapi

import (
	"encoding/hex"
	"time"
)

// SignTrailer is the signature of a trailer after the last chunk's: the official
// signer has none.
func SignTrailer(key Key, at time.Time, region, previous, trailer string) string {
	date := at.UTC().Format(dateFormat)
	text := "AWS4-HMAC-SHA256-TRAILER\n" + at.UTC().Format(timeFormat) + "\n" + date + "/" + region + "/s3/aws4_request\n" + previous + "\n" + hashHex([]byte(trailer))
	return hex.EncodeToString(sign(key.Secret, date, region, "s3", text))
}

package awsapi

import (
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"time"
)

// Time is a time as awsJson 1.0 of pcs and XML write it: an RFC 3339 string
// in UTC with milliseconds. Use it with `json:",omitzero"`.
type Time struct{ time.Time }

// At wraps a time for an answer.
func At(t time.Time) Time { return Time{t} }

const timeJSON = "2006-01-02T15:04:05.000Z"

// MarshalJSON writes null for the zero time.
func (t Time) MarshalJSON() ([]byte, error) {
	if t.IsZero() {
		return []byte("null"), nil
	}
	return []byte(`"` + t.UTC().Format(timeJSON) + `"`), nil
}

// UnmarshalJSON reads RFC 3339, or epoch seconds as older clients send.
func (t *Time) UnmarshalJSON(b []byte) error {
	parsed, err := parseTime(b)
	t.Time = parsed
	return err
}

// Epoch is a time as awsJson 1.1 writes it: a number of seconds since 1970
// with milliseconds. Use it with `json:",omitzero"`.
type Epoch struct{ time.Time }

// EpochAt wraps a time for an answer.
func EpochAt(t time.Time) Epoch { return Epoch{t} }

// MarshalJSON writes null for the zero time.
func (t Epoch) MarshalJSON() ([]byte, error) {
	if t.IsZero() {
		return []byte("null"), nil
	}
	return strconv.AppendFloat(nil, float64(t.UnixMilli())/1000, 'f', -1, 64), nil
}

// UnmarshalJSON reads epoch seconds, or RFC 3339.
func (t *Epoch) UnmarshalJSON(b []byte) error {
	parsed, err := parseTime(b)
	t.Time = parsed
	return err
}

func parseTime(b []byte) (time.Time, error) {
	if string(b) == "null" {
		return time.Time{}, nil
	}
	if len(b) > 0 && b[0] == '"' {
		var s string
		if err := json.Unmarshal(b, &s); err != nil {
			return time.Time{}, err
		}
		t, err := time.Parse(time.RFC3339Nano, s)
		if err != nil {
			return time.Time{}, fmt.Errorf("%q is no RFC 3339 time", s)
		}
		return t.UTC(), nil
	}
	f, err := strconv.ParseFloat(string(b), 64)
	// 253402300800 is the year 10000, which no format here can write.
	if err != nil || math.IsNaN(f) || math.Abs(f) >= 253402300800 {
		return time.Time{}, fmt.Errorf("%s is no time in epoch seconds", b)
	}
	return time.UnixMilli(int64(math.Round(f * 1000))).UTC(), nil
}

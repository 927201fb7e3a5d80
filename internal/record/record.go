// Package record cuts what the daemons of Slurm write into records, and says of
// each when it was written, how grave it is and whether it is an audit record.
// That is told by where things stand in a line, never by what else is in it. It
// reads no files and keeps nothing but what it needs to go on.
package record

import (
	"bytes"
	"time"
	"unicode/utf8"
)

// MaxText bounds a record in bytes. A longer message becomes several records.
const MaxText = 256 << 10

// Record is one message of a daemon.
type Record struct {
	Text  []byte // a part of what was given to Next
	Time  int64  // ms since the epoch; 0: the message has none
	Level string
	Audit bool
}

// State is what is known of a message that is longer than a record, for its
// further records.
type State struct {
	Time  int64  `json:"time"`
	Level string `json:"level"`
	Audit bool   `json:"audit"`
}

// Cutter cuts a log into records. How the log comes in pieces does not matter.
type Cutter struct {
	// Inside is set between two records of one message.
	Inside *State
}

// Progress says what may still come after the bytes that are there.
type Progress int

// What may come.
const (
	Growing Progress = iota // anything, at any moment
	Quiet                   // nothing came for a while: daemons write a message at once
	Ended                   // nothing
)

// Next returns the first record of buf, and its length; 0 if it is not known yet
// where it ends. Lines that do not begin with a time go on with the message
// before them, if that has one.
func (c *Cutter) Next(buf []byte, p Progress) (r Record, n int) {
	stamped := c.Inside != nil
	if stamped {
		r.Time, r.Level, r.Audit = c.Inside.Time, c.Inside.Level, c.Inside.Audit
	} else {
		var rest []byte
		if r.Time, rest, stamped = stamp(buf); !stamped {
			// As daemons write to their standard error.
			rest = bytes.TrimPrefix(rest, onStderr)
		}
		r.Level, r.Audit = classify(rest)
		if !stamped && p == Growing && len(buf) < longestStamp && bytes.IndexByte(buf, '\n') < 0 {
			return r, 0
		}
	}
	end := 0
	for {
		i := bytes.IndexByte(buf[end:], '\n')
		if i >= 0 {
			end += i + 1
		} else {
			end = len(buf)
		}
		switch {
		case end > MaxText || (i < 0 && end == MaxText && p != Ended):
			return c.part(r, buf)
		case i < 0 && p != Ended, end == 0:
			return r, 0
		case i < 0, end == len(buf) && p != Growing, !stamped && end < len(buf), !stamped && i >= 0:
			return c.whole(r, buf[:end])
		case end == len(buf):
			return r, 0
		}
		switch next := buf[end:]; {
		case starts(next):
			return c.whole(r, buf[:end])
		case len(next) < shortestStamp && next[0] == '[' && p != Ended && bytes.IndexByte(next, '\n') < 0:
			return r, 0
		}
	}
}

func (c *Cutter) whole(r Record, text []byte) (Record, int) {
	c.Inside = nil
	r.Text = text
	return r, len(text)
}

// part is the first record of a message that is too long, not cut in a letter.
func (c *Cutter) part(r Record, buf []byte) (Record, int) {
	n := MaxText
	for k := 1; k < utf8.UTFMax && !utf8.RuneStart(buf[n]); k++ {
		n--
	}
	if !utf8.RuneStart(buf[n]) {
		n = MaxText // it is no text
	}
	c.Inside = &State{r.Time, r.Level, r.Audit}
	r.Text = buf[:n]
	return r, n
}

// Forms of times that Slurm's LogTimeFormat has, from the shortest to the
// longest: [2026-06-01T02:33:38] and [2026-06-01T02:33:38.152+00:00]. One without
// a zone is in that of the controller, which is UTC.
const (
	shortestStamp = len("[2026-06-01T02:33:38]")
	longestStamp  = len("[2026-06-01T02:33:38.152+00:00] ")
)

// starts says whether a line begins with a time.
func starts(b []byte) bool {
	if len(b) < shortestStamp || b[0] != '[' || b[5] != '-' || b[8] != '-' || b[11] != 'T' || b[14] != ':' || b[17] != ':' {
		return false
	}
	for _, k := range [...]int{1, 2, 3, 4, 6, 7, 9, 10, 12, 13, 15, 16, 18, 19} {
		if b[k]-'0' > 9 {
			return false
		}
	}
	return b[20] == ']' || b[20] == '.' || b[20] == 'Z' || b[20] == '+' || b[20] == '-'
}

// stamp reads the time at the beginning of a line and returns what follows it.
func stamp(b []byte) (ms int64, rest []byte, ok bool) {
	if !starts(b) {
		return 0, b, false
	}
	two := func(at int) int { return int(b[at]-'0')*10 + int(b[at+1]-'0') }
	ms = days(two(1)*100+two(3), two(6), two(9))*86_400_000 + int64(two(12)*3600+two(15)*60+two(18))*1000
	at := 20
	if b[at] == '.' {
		unit := int64(100)
		for at++; at < len(b) && b[at]-'0' <= 9; at++ {
			ms += int64(b[at]-'0') * unit
			unit /= 10
		}
	}
	switch {
	case at < len(b) && b[at] == 'Z':
		at++
	case at+6 <= len(b) && (b[at] == '+' || b[at] == '-') && b[at+3] == ':':
		zone := int64(two(at+1)*60+two(at+4)) * 60_000
		if b[at] == '+' {
			zone = -zone
		}
		ms += zone
		at += 6
	}
	// The rest of a form that is not known is text, and the time is what it is.
	rest = b[at:]
	if len(rest) > 0 && rest[0] == ']' {
		rest = rest[1:]
	}
	if len(rest) > 0 && rest[0] == ' ' {
		rest = rest[1:]
	}
	return ms, rest, true
}

// days counts those since the epoch.
func days(year, month, day int) int64 {
	return time.Date(year, time.Month(month), day, 0, 0, 0, 0, time.UTC).Unix() / 86_400
}

// levels are the beginnings by which Slurm marks messages; those without are of
// levels info and verbose.
var levels = []struct{ begins, level string }{
	{"error: ", "error"},
	{"debug:  ", "debug"},
	{"debug2: ", "debug2"},
	{"debug3: ", "debug3"},
	{"debug4: ", "debug4"},
	{"debug5: ", "debug5"},
	{"warning: ", "warning"},
	{"fatal: ", "fatal"},
	{"internal error: ", "error"},
}

// auditMark stands right behind the time of an audit record.
const auditMark = "AUDIT_RPCS: "

func classify(b []byte) (level string, audit bool) {
	if len(b) == 0 {
		return "info", false
	}
	switch b[0] {
	case 'A':
		_, _, audit = auditParts(b)
		return "info", audit
	case 'e', 'd', 'w', 'f', 'i':
		for _, l := range levels {
			if len(b) >= len(l.begins) && string(b[:len(l.begins)]) == l.begins {
				return l.level, false
			}
		}
	}
	return "info", false
}

// auditParts splits an audit message, without its time, into its connection,
// which slurmdbd does not tell, and its fields.
func auditParts(b []byte) (connection, fields []byte, ok bool) {
	if len(b) < len(auditMark) || string(b[:len(auditMark)]) != auditMark {
		return nil, nil, false
	}
	b = b[len(auditMark):]
	if bytes.HasPrefix(b, msgType) {
		return nil, b, true
	}
	if len(b) == 0 || b[0] != '[' {
		return nil, nil, false
	}
	if i := bytes.IndexByte(b, '\n'); i >= 0 {
		b = b[:i]
	}
	end := bytes.Index(b, connectionEnd)
	if end < 0 {
		return nil, nil, false
	}
	return b[1:end], b[end+2:], true
}

var (
	onStderr      = []byte("slurmrestd: ")
	msgType       = []byte("msg_type=")
	connectionEnd = []byte("] msg_type=")
)

// Readable returns text without bytes that are no UTF-8: \xNN stands for each.
func Readable(text []byte) []byte {
	if utf8.Valid(text) {
		return text
	}
	const hex = "0123456789abcdef"
	out := make([]byte, 0, len(text)+64)
	for len(text) > 0 {
		r, n := utf8.DecodeRune(text)
		if r == utf8.RuneError && n == 1 {
			out = append(out, '\\', 'x', hex[text[0]>>4], hex[text[0]&15])
		} else {
			out = append(out, text[:n]...)
		}
		text = text[n:]
	}
	return out
}

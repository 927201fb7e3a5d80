package delivery

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/openpcs/openpcs/internal/journal"
	"github.com/openpcs/openpcs/internal/logs"
)

// Fields of the records of each log type, in the order in which PCS lists them.
// (The article and the user guide; log_type is listed, and no record has it.)
var recordFields = map[string][]string{
	logs.SchedulerLogs:      {"resource_id", "resource_type", "event_timestamp", "log_level", "log_name", "scheduler_type", "scheduler_major_version", "scheduler_patch_version", "node_type", "log_type", "message"},
	logs.SchedulerAuditLogs: {"resource_id", "resource_type", "event_timestamp", "log_level", "log_name", "scheduler_type", "scheduler_major_version", "scheduler_patch_version", "node_type", "log_type", "message"},
	logs.JobCompletionLogs:  {"resource_id", "resource_type", "event_timestamp", "scheduler_type", "scheduler_major_version", "fields"},
	logs.ScalingLogs:        {"resource_id", "resource_type", "event_timestamp", "compute_node_group_id", "scheduler_node_id", "status_code", "reason_code", "description", "details"},
}

// nodeTypes says where each daemon runs, by log name.
var nodeTypes = map[string]string{"slurmctld": "controller_primary", "slurmdbd": "slurmdbd_primary", "slurmrestd": "slurmrestd_primary"}

// errNotJSON is a record whose own text should be a JSON object.
var errNotJSON = errors.New("the record is not a JSON object")

// encoder writes the records of one log in the form that its delivery asks for.
type encoder struct {
	logType   string
	format    string
	delimiter string
	fields    []string
	fixed     map[string]string // values that are the same in all records
	parts     []part            // of a JSON record
}

// part is a piece of a JSON record: text as it is, and then a field.
type part struct {
	text  []byte
	field string // empty at the end
}

// newEncoder makes the encoder of one log of a delivery.
func newEncoder(l Link, logName string) *encoder {
	e := &encoder{logType: l.LogType, format: l.Format, delimiter: l.Delimiter, fields: l.Fields}
	if len(e.fields) == 0 {
		e.fields = recordFields[l.LogType]
	}
	e.fixed = map[string]string{"resource_id": l.Cluster, "resource_type": "PCS_CLUSTER", "scheduler_type": "slurm", "log_name": logName, "node_type": nodeTypes[logName]}
	if l.LogType == logs.ScalingLogs {
		return e
	}
	e.fields = slices.DeleteFunc(slices.Clone(e.fields), func(f string) bool {
		return f == "log_type" || !slices.Contains(recordFields[l.LogType], f)
	})
	text := []byte("{")
	for n, f := range e.fields {
		if n > 0 {
			text = append(text, ',')
		}
		text = append(appendString(text, []byte(f)), ':')
		if v, ok := e.fixed[f]; ok {
			text = appendString(text, []byte(v))
			continue
		}
		e.parts = append(e.parts, part{text, f})
		text = nil
	}
	e.parts = append(e.parts, part{text: append(text, '}')})
	return e
}

// header is what a file of records begins with.
func (e *encoder) header() []byte {
	if e.format != W3C {
		return nil
	}
	return []byte("#Version: 1.0\n#Fields: " + strings.Join(e.fields, e.separator(" ")) + "\n")
}

// append adds a record to dst, with a newline behind it.
func (e *encoder) append(dst []byte, r journal.Entry) ([]byte, error) {
	switch {
	case e.format == JSON && e.logType == logs.ScalingLogs:
		values, err := scalingValues(r)
		if err != nil {
			return dst, err
		}
		dst = append(dst, '{')
		first := true
		for _, f := range e.fields {
			v, ok := values[f]
			if !ok {
				continue
			}
			if !first {
				dst = append(dst, ',')
			}
			first = false
			dst = append(append(appendString(dst, []byte(f)), ':'), v...)
		}
		return append(dst, '}', '\n'), nil
	case e.format == JSON:
		for _, p := range e.parts {
			dst = append(dst, p.text...)
			switch p.field {
			case "event_timestamp":
				dst = strconv.AppendInt(dst, e.timestamp(r), 10)
			case "log_level":
				dst = appendString(dst, []byte(r.Level))
			case "scheduler_major_version":
				major, _ := release(r.Release)
				dst = appendString(dst, []byte(major))
			case "scheduler_patch_version":
				_, patch := release(r.Release)
				dst = appendString(dst, []byte(patch))
			case "message":
				dst = appendString(dst, r.Text)
			case "fields":
				if !isObject(r.Text) {
					return dst, errNotJSON
				}
				dst = append(dst, bytes.TrimSpace(r.Text)...)
			}
		}
		return append(dst, '\n'), nil
	case e.format == W3C:
		return e.columns(dst, r, " ", true)
	// A line of a daemon stands for itself where no delimiter was asked for.
	case e.delimiter == "" && slices.Contains(e.fields, "message"):
		return append(append(dst, bytes.TrimSuffix(r.Text, []byte("\n"))...), '\n'), nil
	}
	return e.columns(dst, r, " ", false)
}

// columns adds a record as its values side by side.
func (e *encoder) columns(dst []byte, r journal.Entry, byDefault string, quoted bool) ([]byte, error) {
	values, err := e.values(r)
	if err != nil {
		return dst, err
	}
	separator := e.separator(byDefault)
	for n, f := range e.fields {
		if n > 0 {
			dst = append(dst, separator...)
		}
		v := strings.TrimSuffix(values[f], "\n")
		switch {
		case quoted && v == "":
			v = "-"
		case quoted && (strings.ContainsAny(v, " \t\r\n\"") || strings.Contains(v, separator)):
			// A record is one line, and a quote within a string is doubled.
			v = `"` + strings.NewReplacer(`"`, `""`, "\r", " ", "\n", " ").Replace(v) + `"`
		}
		dst = append(dst, v...)
	}
	return append(dst, '\n'), nil
}

func (e *encoder) separator(byDefault string) string {
	if e.delimiter != "" {
		return e.delimiter
	}
	return byDefault
}

// values are those of a record as text.
func (e *encoder) values(r journal.Entry) (map[string]string, error) {
	out := map[string]string{}
	if e.logType == logs.ScalingLogs {
		raw, err := scalingValues(r)
		if err != nil {
			return nil, err
		}
		for name, v := range raw {
			var text string
			if json.Unmarshal(v, &text) != nil {
				text = string(v)
			}
			out[name] = text
		}
		return out, nil
	}
	if e.logType == logs.JobCompletionLogs && !isObject(r.Text) {
		return nil, errNotJSON
	}
	for _, f := range e.fields {
		switch f {
		case "event_timestamp":
			out[f] = strconv.FormatInt(e.timestamp(r), 10)
		case "log_level":
			out[f] = r.Level
		case "scheduler_major_version":
			out[f], _ = release(r.Release)
		case "scheduler_patch_version":
			_, out[f] = release(r.Release)
		case "message", "fields":
			out[f] = string(r.Text)
		default:
			out[f] = e.fixed[f]
		}
	}
	return out, nil
}

// timestamp is in milliseconds, but for job completions, where PCS has seconds.
func (e *encoder) timestamp(r journal.Entry) int64 {
	if e.logType == logs.JobCompletionLogs {
		return r.Time / 1000
	}
	return r.Time
}

// release splits 26.05.5 into 26.05 and 5.
func release(r string) (major, patch string) {
	if at := strings.LastIndexByte(r, '.'); at > strings.IndexByte(r, '.') {
		return r[:at], r[at+1:]
	}
	return r, ""
}

func isObject(text []byte) bool {
	text = bytes.TrimSpace(text)
	return len(text) > 0 && text[0] == '{' && !bytes.ContainsAny(text, "\r\n") && json.Valid(text)
}

func scalingValues(r journal.Entry) (map[string]json.RawMessage, error) {
	var values map[string]json.RawMessage
	if err := json.Unmarshal(r.Text, &values); err != nil {
		return nil, fmt.Errorf("%w: %w", errNotJSON, err)
	}
	return values, nil
}

// plainByte says which bytes stand for themselves in a JSON string.
var plainByte = func() (ok [256]bool) {
	for b := range ok {
		ok[b] = b >= ' ' && b < utf8.RuneSelf && b != '"' && b != '\\'
	}
	return ok
}()

const hexDigits = "0123456789abcdef"

// appendString adds a JSON string. Bytes that are no UTF-8 become U+FFFD, as
// JSON cannot have them.
func appendString(dst, s []byte) []byte {
	dst = append(dst, '"')
	start := 0
	for i := 0; i < len(s); {
		b := s[i]
		if plainByte[b] {
			i++
			continue
		}
		if b < utf8.RuneSelf {
			dst = append(dst, s[start:i]...)
			switch b {
			case '"', '\\':
				dst = append(dst, '\\', b)
			case '\n':
				dst = append(dst, '\\', 'n')
			case '\r':
				dst = append(dst, '\\', 'r')
			case '\t':
				dst = append(dst, '\\', 't')
			default:
				dst = append(dst, '\\', 'u', '0', '0', hexDigits[b>>4], hexDigits[b&15])
			}
			i++
			start = i
			continue
		}
		if r, size := utf8.DecodeRune(s[i:]); r != utf8.RuneError || size > 1 {
			i += size
			continue
		}
		dst = append(append(dst, s[start:i]...), `\ufffd`...)
		i++
		start = i
	}
	return append(append(dst, s[start:]...), '"')
}

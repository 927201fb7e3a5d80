package record

import (
	"bytes"
	"strconv"
)

// Audit is what an audit record says: who asked for what, from where.
type Audit struct {
	Type     string // such as REQUEST_SUBMIT_BATCH_JOB
	UID      uint32
	Client   string // address and port
	Protocol int    // of Slurm's messages; 0 if it is not told
}

// ParseAudit reads an audit record, with its time; ok is false for any other.
func ParseAudit(text []byte) (a Audit, ok bool) {
	_, rest, _ := stamp(text)
	_, fields, ok := auditParts(rest)
	if !ok {
		return a, false
	}
	fields = bytes.TrimRight(fields, "\n")
	kind, fields, ok1 := bytes.Cut(fields[len(msgType):], []byte(" uid="))
	uid, fields, ok2 := bytes.Cut(fields, []byte(" client=["))
	client, protocol, ok3 := bytes.Cut(fields, []byte("] protocol="))
	n, err := strconv.ParseUint(string(uid), 10, 32)
	if !ok1 || !ok2 || !ok3 || err != nil || len(kind) == 0 {
		return a, false
	}
	a = Audit{Type: string(kind), UID: uint32(n), Client: string(client)}
	a.Protocol, _ = strconv.Atoi(string(protocol))
	return a, true
}

// Mention is a message of slurmctld that names the job that a request is about.
type Mention struct {
	Call string // the function that wrote it, such as _slurm_rpc_submit_batch_job
	Job  string // as it is written: 4, 3_1 or 3_[1-2]
	// UID is who asked, -1 if the message does not say it.
	UID int64
}

// ParseMention reads such a message, with its time; ok is false for any other.
func ParseMention(text []byte) (m Mention, ok bool) {
	_, rest, stamped := stamp(text)
	rest = bytes.TrimPrefix(rest, []byte("sched: "))
	if !stamped || !bytes.HasPrefix(rest, []byte("_slurm_rpc_")) {
		return m, false
	}
	if i := bytes.IndexByte(rest, '\n'); i >= 0 {
		rest = rest[:i]
	}
	end := bytes.IndexAny(rest, ": ")
	at := bytes.Index(rest, []byte("JobId="))
	if end < 0 || at < 0 {
		return m, false
	}
	m.Call, m.UID = string(rest[:end]), -1
	job := rest[at+len("JobId="):]
	if i := bytes.IndexAny(job, " :"); i >= 0 {
		job = job[:i]
	}
	// 3_1(5): the element of an array, and its own number.
	job, _, _ = bytes.Cut(job, []byte("("))
	m.Job = string(job)
	for _, mark := range []string{" uid=", " uid "} {
		if _, uid, found := bytes.Cut(rest[at:], []byte(mark)); found {
			digits, _, _ := bytes.Cut(bytes.TrimRight(uid, ":"), []byte(" "))
			if n, err := strconv.ParseUint(string(bytes.TrimRight(digits, ":")), 10, 32); err == nil {
				m.UID = int64(n)
			}
			break
		}
	}
	return m, m.Job != ""
}

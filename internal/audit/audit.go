// Package audit answers who asked a cluster's daemons for what, from where and
// when, out of the audit records in the journals of its logs. The job that a
// request was about, which an audit record does not tell, is found in what
// slurmctld logged of it. It knows journals and records, and nothing of users,
// nodes and clusters but what it is told.
package audit

import (
	"cmp"
	"context"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/openpcs/openpcs/internal/journal"
	"github.com/openpcs/openpcs/internal/record"
)

// Query is what is asked for. Zero members ask for all.
type Query struct {
	Since, Until time.Time
	UIDs         []uint32
	Types        []string // such as REQUEST_SUBMIT_BATCH_JOB
	Client       string   // address of the client, with or without its port
	Limit        int      // newest rows
}

// Row is one request.
type Row struct {
	Time   time.Time `json:"time"`
	User   string    `json:"user"` // the uid as digits, as far as Search knows
	UID    uint32    `json:"uid"`
	Type   string    `json:"type"`
	Job    string    `json:"job,omitempty"`
	Client string    `json:"client"` // address and port
	Node   string    `json:"node,omitempty"`
	Daemon string    `json:"daemon"`
	Seq    int64     `json:"seq"` // in its journal
	Log    string    `json:"log"` // the journal's log type
}

// Volume is how much something takes in the logs.
type Volume struct {
	Records int64 `json:"records"`
	Bytes   int64 `json:"bytes"`
}

func (v *Volume) add(text []byte) {
	v.Records++
	v.Bytes += int64(len(text))
}

// Result is the answer, oldest first.
type Result struct {
	Rows []Row `json:"rows"`
	// Found counts all that match, those beyond the limit too.
	Found int64 `json:"found"`
	// Audit is the audit records of the time asked for, All the daemons' records.
	Audit Volume `json:"audit"`
	All   Volume `json:"all"`
	// Unreadable counts the records of the logs that are changed or gone, which
	// may have been part of the answer.
	Unreadable int64 `json:"unreadable"`
}

// calls are the functions of slurmctld that name the job of a request.
var calls = map[string]string{
	"REQUEST_SUBMIT_BATCH_JOB":     "_slurm_rpc_submit_batch_job",
	"REQUEST_SUBMIT_BATCH_HET_JOB": "_slurm_rpc_submit_batch_het_job",
	"REQUEST_RESOURCE_ALLOCATION":  "_slurm_rpc_allocate_resources",
	"REQUEST_HET_JOB_ALLOCATION":   "_slurm_rpc_allocate_het_job",
	"REQUEST_KILL_JOB":             "_slurm_rpc_kill_job",
	"REQUEST_UPDATE_JOB":           "_slurm_rpc_update_job",
	"REQUEST_JOB_REQUEUE":          "_slurm_rpc_requeue",
	"REQUEST_SUSPEND":              "_slurm_rpc_suspend",
}

// An audit record is written before its request is dealt with, and that can take
// as long as slurmctld is busy with others.
const (
	longestCall = 10 * time.Second
	// clockGrain is how much later than the beginning of its call it can seem.
	clockGrain = 5 * time.Millisecond
)

// ask is an audit record that may have a job.
type ask struct {
	at   int64 // ms
	uid  uint32
	job  string
	used bool
}

// mention is a record that names a job.
type mention struct {
	record.Mention
	began int64 // ms
}

// pageEntries and pageBytes are how much is read at a time.
const (
	pageEntries = 10_000
	pageBytes   = 1 << 20
)

// Search goes through the scheduler and audit logs of a cluster.
func Search(ctx context.Context, logs []*journal.Journal, q Query) (res Result, err error) {
	asks := map[string][]*ask{} // by call
	var mentions []mention
	type found struct {
		Row
		ask *ask
	}
	var rows []found
	for _, j := range logs {
		key := j.Key()
		after := int64(0)
		if !q.Since.IsZero() {
			after = j.Since(q.Since)
		}
		last := j.Last()
		for {
			if ctx.Err() != nil {
				return res, ctx.Err()
			}
			entries, err := j.Read(after, pageEntries, pageBytes)
			if err != nil {
				return res, err
			}
			if len(entries) == 0 {
				res.Unreadable += max(0, last-max(after, j.First()-1))
				break
			}
			after = max(after, j.First()-1) // what was removed for its age is not missed
			for _, e := range entries {
				res.Unreadable += max(0, e.Seq-after-1)
				after = e.Seq
				at := time.UnixMilli(e.Time).UTC()
				if at.Before(q.Since) {
					continue
				}
				if m, ok := record.ParseMention(e.Text); ok && key.LogName == "slurmctld" {
					mentions = append(mentions, mention{m, e.Time - took(e.Text)})
				}
				if !q.Until.IsZero() && !at.Before(q.Until) {
					continue
				}
				res.All.add(e.Text)
				a, ok := record.ParseAudit(e.Text)
				if !ok {
					continue
				}
				res.Audit.add(e.Text)
				var x *ask
				if call := calls[a.Type]; call != "" && key.LogName == "slurmctld" {
					x = &ask{at: e.Time, uid: a.UID}
					asks[call] = append(asks[call], x)
				}
				if !q.match(a) {
					continue
				}
				res.Found++
				rows = append(rows, found{Row{
					Time: at, User: strconv.FormatUint(uint64(a.UID), 10), UID: a.UID, Type: a.Type, Client: a.Client, Daemon: key.LogName, Seq: e.Seq, Log: key.LogType,
				}, x})
				if q.Limit > 0 && len(rows) > 4*q.Limit+1000 {
					// Of one log the last are the newest.
					slices.SortStableFunc(rows, func(a, b found) int { return a.Time.Compare(b.Time) })
					rows = slices.Delete(rows, 0, len(rows)-q.Limit)
				}
			}
		}
	}
	join(asks, mentions)
	slices.SortStableFunc(rows, func(a, b found) int { return a.Time.Compare(b.Time) })
	if q.Limit > 0 && len(rows) > q.Limit {
		rows = rows[len(rows)-q.Limit:]
	}
	res.Rows = make([]Row, len(rows))
	for k, r := range rows {
		if r.ask != nil {
			r.Job = r.ask.job
		}
		res.Rows[k] = r.Row
	}
	return res, nil
}

func (q Query) match(a record.Audit) bool {
	host := a.Client
	if i := strings.LastIndexByte(host, ':'); i >= 0 {
		host = strings.Trim(host[:i], "[]")
	}
	return (q.UIDs == nil || slices.Contains(q.UIDs, a.UID)) &&
		(q.Types == nil || slices.ContainsFunc(q.Types, func(t string) bool { return strings.EqualFold(t, a.Type) })) &&
		(q.Client == "" || q.Client == host || q.Client == a.Client)
}

// took is how many milliseconds the call of a record took, if it says so.
func took(text []byte) int64 {
	_, rest, ok := strings.Cut(string(text), " usec=")
	digits, _, _ := strings.Cut(strings.TrimRight(rest, "\n"), " ")
	usec, err := strconv.ParseInt(digits, 10, 64)
	if !ok || err != nil {
		return 0
	}
	return usec / 1000
}

// join gives each request its job: of the requests for what a record tells of,
// by that user where it tells the user, the one nearest before the call began.
func join(asks map[string][]*ask, mentions []mention) {
	for _, list := range asks {
		slices.SortStableFunc(list, func(a, b *ask) int { return cmp.Compare(a.at, b.at) })
	}
	slices.SortStableFunc(mentions, func(a, b mention) int { return cmp.Compare(a.began, b.began) })
	for _, m := range mentions {
		list := asks[m.Call]
		oldest := m.began - longestCall.Milliseconds()
		at, _ := slices.BinarySearchFunc(list, oldest, func(a *ask, t int64) int { return cmp.Compare(a.at, t) })
		var best *ask
		nearest := int64(math.MaxInt64)
		for _, a := range list[at:] {
			if a.at > m.began+clockGrain.Milliseconds() {
				break
			}
			distance := m.began - a.at
			if distance < 0 {
				distance = -distance
			}
			if a.used || (m.UID >= 0 && uint32(m.UID) != a.uid) || distance >= nearest {
				continue
			}
			best, nearest = a, distance
		}
		if best != nil {
			best.used, best.job = true, m.Job
		}
	}
}

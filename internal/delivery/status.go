package delivery

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/openpcs/openpcs/internal/condition"
)

// The states of a delivery.
const (
	Working = "delivering"
	Idle    = "up-to-date"
	Failing = "failing"
	Waiting = "no-log-yet" // none of its logs has a record
)

// Status is how a delivery of one log does.
type Status struct {
	ID        string    `json:"id"`   // of the delivery
	Name      string    `json:"name"` // of the log; empty while there is none
	Status    string    `json:"status"`
	Cluster   string    `json:"cluster"`
	LogType   string    `json:"logType"`
	Kind      string    `json:"kind"`
	Target    string    `json:"target"`     // name of the bucket, log group or stream
	Behind    int64     `json:"behind"`     // records that are not delivered yet
	Lag       float64   `json:"lagSeconds"` // age of the oldest of them
	Delivered int64     `json:"delivered"`  // records, since the delivery exists
	Dropped   int64     `json:"dropped"`    // records that were lost
	Refused   int64     `json:"refused"`    // records that the destination takes never
	Retries   int64     `json:"retries"`    // since the start of openpcs
	Trouble   *Trouble  `json:"trouble,omitempty"`
	NextTry   time.Time `json:"nextTry,omitzero"`
}

// Status returns how all deliveries do, one for each log of each.
func (r *Runner) Status() []Status {
	r.mu.Lock()
	workers := make([]*worker, 0, len(r.workers))
	has := map[string]bool{}
	for _, w := range r.workers {
		workers = append(workers, w)
		has[w.link.ID] = true
	}
	out := []Status{}
	for _, l := range r.links {
		if !has[l.ID] {
			out = append(out, Status{ID: l.ID, Status: Waiting, Cluster: l.Cluster, LogType: l.LogType, Kind: l.Kind, Target: l.Target})
		}
	}
	r.mu.Unlock()
	for _, w := range workers {
		out = append(out, w.status(time.Now()))
	}
	slices.SortFunc(out, func(a, b Status) int {
		return cmp.Or(cmp.Compare(a.Cluster, b.Cluster), cmp.Compare(a.LogType, b.LogType), cmp.Compare(a.ID, b.ID), cmp.Compare(a.Name, b.Name))
	})
	return out
}

func (w *worker) status(now time.Time) Status {
	last := w.feed.Last()
	w.mu.Lock()
	defer w.mu.Unlock()
	s := Status{
		ID: w.link.ID, Name: w.feed.Name(), Status: Idle, Cluster: w.link.Cluster, LogType: w.link.LogType, Kind: w.link.Kind, Target: w.link.Target,
		Behind: max(0, last-w.cursor.After), Delivered: w.cursor.Delivered, Dropped: w.cursor.Dropped, Refused: w.cursor.Refused, Retries: w.retries,
	}
	if s.Behind > 0 {
		s.Status = Working
	}
	if w.oldest > 0 {
		s.Lag = max(0, now.Sub(time.UnixMilli(w.oldest)).Seconds())
	}
	if w.trouble != nil {
		t := *w.trouble
		s.Status, s.Trouble, s.NextTry = Failing, &t, w.nextTry
	}
	return s
}

// tellFor is how long a loss is worth a sentence.
const tellFor = 24 * time.Hour

// Troubles returns what is wrong with the deliveries of a cluster.
func (r *Runner) Troubles(cluster string) (out []Trouble) {
	r.mu.Lock()
	workers := make([]*worker, 0, len(r.workers))
	for _, w := range r.workers {
		if w.link.Cluster == cluster {
			workers = append(workers, w)
		}
	}
	r.mu.Unlock()
	slices.SortFunc(workers, func(a, b *worker) int { return cmp.Compare(a.id, b.id) })
	for _, w := range workers {
		out = append(out, w.troubles(time.Now())...)
	}
	return out
}

func (w *worker) troubles(now time.Time) (out []Trouble) {
	w.mu.Lock()
	defer w.mu.Unlock()
	what := fmt.Sprintf("delivery %s of the log %s to %s: ", w.link.ID, w.feed.Name(), w.link.Target)
	if t := w.trouble; t != nil {
		out = append(out, Trouble{t.Code, what + t.Message, t.Since})
	}
	c := w.cursor
	if c.Dropped > 0 && now.Sub(c.DroppedAt) < tellFor {
		out = append(out, Trouble{condition.LogRecordsDropped, fmt.Sprintf("%s%d records were dropped, the last at %s.", what, c.Dropped, c.DroppedAt.Format(time.RFC3339)), c.DroppedAt})
	}
	if c.Refused > 0 && now.Sub(c.RefusedAt) < tellFor {
		out = append(out, Trouble{condition.LogRecordsRefused, fmt.Sprintf("%s%d records were put into %s, the last at %s: %s.", what, c.Refused, refusedFile(w.runner.o.Dir, w.link.ID), c.RefusedAt.Format(time.RFC3339), c.Refusal), c.RefusedAt})
	}
	return out
}

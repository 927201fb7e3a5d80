package delivery

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"sort"
	"sync"
	"time"

	"github.com/openpcs/openpcs/internal/condition"
	"github.com/openpcs/openpcs/internal/journal"
	"github.com/openpcs/openpcs/internal/logs"
	"github.com/openpcs/openpcs/internal/store"
)

const (
	// A read is small enough to be no matter for memory, and so large that reads
	// of a storm are few.
	readEntries = 20_000
	readBytes   = 4 << 20
	// sendWithin is how long a destination may take over one batch.
	sendWithin = 2 * time.Minute
	// The first pause after a failure, which then doubles.
	firstPause = time.Second
	// longestPause is so short that a delivery goes on soon after what was in its
	// way is put right, and so long that a dead destination costs nothing.
	longestPause = time.Minute
)

// outlet takes records into a batch and sends it.
type outlet interface {
	// add takes a record. It returns errFull if the batch must go first, and an
	// *unfit if the destination never takes such a record.
	add(r journal.Entry) error
	count() int // records in the batch
	// key names the batch, where it has a name that must not change.
	key() string
	// send sends the batch. again says that it may be there already. An error is a
	// *failure; the batch stays, or what is left of it.
	send(ctx context.Context, again bool) error
	// reset begins a batch, one that was begun before if b is not nil.
	reset(b *Batch)
	// due is when a batch that begins now with a record is sent, full or not.
	due(first journal.Entry, now time.Time) time.Time
	// durable says that how far a batch reaches is kept before it is sent.
	durable() bool
}

var errFull = errors.New("the batch is full")

// unfit is a record that a destination never takes.
type unfit struct{ why string }

func (u *unfit) Error() string { return u.why }

// failure is why a destination did not take a batch.
type failure struct {
	code    condition.Code
	text    string
	unclear bool // it may have taken it
}

func (f *failure) Error() string { return f.text }

// rejected says that the destination took a batch but for some records, which it
// never will.
type rejected struct {
	count int64
	why   string
}

func (r *rejected) Error() string { return r.why }

// worker delivers one log of one delivery.
type worker struct {
	runner *Runner
	link   Link
	feed   Feed
	id     string // of its cursor
	out    outlet

	ctx    context.Context
	cancel context.CancelFunc
	done   chan struct{}

	// What follows is the worker's own.
	pos   int64         // of the last record that is in the batch, or was passed over
	began journal.Entry // the first record of the batch, without its text
	due   time.Time     // when the batch is sent, full or not, as it was when it began
	again bool          // the batch may be at its destination
	pause time.Duration // the next one after a failure

	mu      sync.Mutex // guards what Status reads
	cursor  Cursor
	trouble *Trouble
	retries int64
	nextTry time.Time
	oldest  int64 // ms, of the records that are not delivered; 0: none
}

func newWorker(r *Runner, l Link, f Feed) *worker {
	w := &worker{runner: r, link: l, feed: f, id: l.ID + "/" + f.Name(), done: make(chan struct{})}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	return w
}

func (w *worker) stop() {
	w.cancel()
	<-w.done
}

func (w *worker) run() {
	defer close(w.done)
	defer w.cancel()
	for w.load() != nil {
		if !w.rest() {
			return
		}
	}
	w.out = w.newOutlet()
	w.out.reset(w.cursor.Pending)
	w.again = w.cursor.Pending != nil
	w.pos = w.cursor.After
	for w.ctx.Err() == nil {
		changed := w.feed.Changed() // before the reading, so that nothing is missed
		full, err := w.fill()
		if err != nil {
			w.fail(&failure{code: condition.LogDeliveryFailing, text: "read the log: " + err.Error()})
			if !w.rest() {
				return
			}
			continue
		}
		if w.out.count() == 0 {
			w.mu.Lock()
			w.oldest = 0
			w.mu.Unlock()
			if w.pos > w.cursor.After && !w.settle(0) {
				return
			}
			select {
			case <-changed:
			case <-w.ctx.Done():
			}
			continue
		}
		if rest := time.Until(w.due); !full && rest > 0 {
			timer := time.NewTimer(rest)
			select {
			case <-changed:
				timer.Stop()
				if !w.linger() {
					return
				}
				continue
			case <-timer.C:
			case <-w.ctx.Done():
				timer.Stop()
				return
			}
		}
		if !w.deliver() {
			return
		}
	}
}

// lingerFor keeps a log that changes with each line from being read as often.
const lingerFor = 50 * time.Millisecond

func (w *worker) linger() bool {
	return w.wait(min(lingerFor, max(0, time.Until(w.due))))
}

// wait returns whether the time passed before the worker was ended.
func (w *worker) wait(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-w.ctx.Done():
		return false
	}
}

// load reads the cursor, or makes the one that the delivery begins with.
func (w *worker) load() error {
	from := int64(-1)
	c, err := w.stored()
	if errors.Is(err, store.ErrNotFound) {
		since := w.link.Created
		if w.link.LogType == logs.JobCompletionLogs {
			since = since.Truncate(time.Second) // as the times of completed jobs are
		}
		if from, err = search(w.feed, since.UnixMilli()); err == nil {
			c = Cursor{ID: w.id, Delivery: w.link.ID, Cluster: w.link.Cluster, After: from}
			err = w.runner.o.Store.Update(w.ctx, func(tx *store.Tx) error { return Cursors.Put(tx, c) })
		}
	}
	if err != nil {
		w.fail(&failure{code: condition.LogDeliveryFailing, text: "read how far the delivery came: " + err.Error()})
		return err
	}
	w.mu.Lock()
	w.cursor = c
	w.mu.Unlock()
	return nil
}

func (w *worker) stored() (c Cursor, err error) {
	err = w.runner.o.Store.View(w.ctx, func(tx *store.Tx) (err error) {
		c, err = Cursors.Get(tx, w.id)
		return err
	})
	return c, err
}

// search finds the place before the first entry that is not from before a time
// (ms). Entries are in order of time, but for some that come late.
func search(f Feed, since int64) (int64, error) {
	last := f.Last()
	var failed error
	n := sort.Search(int(last), func(n int) bool {
		entries, err := f.Read(int64(n), 1, readBytes)
		if err != nil {
			failed = err
		}
		return err != nil || len(entries) == 0 || entries[0].Time >= since
	})
	return int64(n), failed
}

// fill takes what there is into the batch until that is full, or as long as it
// was when it was begun.
func (w *worker) fill() (full bool, err error) {
	end := int64(0)
	if p := w.cursor.Pending; p != nil {
		end = p.Last
	}
	for w.ctx.Err() == nil {
		if end > 0 && w.pos >= end {
			return true, nil
		}
		entries, err := w.feed.Read(w.pos, readEntries, readBytes)
		if err != nil {
			return false, err
		}
		if len(entries) == 0 {
			return end > 0, nil
		}
		for _, e := range entries {
			if end > 0 && e.Seq > end {
				w.lost(end - w.pos)
				w.pos = end
				return true, nil
			}
			if w.feed.Gapless() && e.Seq > w.pos+1 {
				w.lost(e.Seq - w.pos - 1)
				w.pos = e.Seq - 1
			}
			err := w.out.add(e)
			var u *unfit
			switch {
			case errors.Is(err, errFull):
				return true, nil
			case errors.As(err, &u):
				w.refuse(e, u.why)
			case err != nil:
				return false, err
			case w.out.count() == 1:
				w.began = journal.Entry{Seq: e.Seq, Time: e.Time}
				w.due = w.out.due(w.began, time.Now())
				w.mu.Lock()
				w.oldest = e.Time
				w.mu.Unlock()
			}
			w.pos = e.Seq
		}
	}
	return false, nil
}

// deliver sends the batch until the destination has it, and notes that. It
// returns false when the worker is ended before.
func (w *worker) deliver() bool {
	for w.out.durable() && w.cursor.Pending == nil {
		b := &Batch{First: w.began.Seq, Last: w.pos, Key: w.out.key()}
		if err := w.keep(func(c *Cursor) { c.Pending = b }); err == nil {
			break
		}
		if !w.rest() {
			return false
		}
	}
	for {
		ctx, cancel := context.WithTimeout(w.ctx, sendWithin)
		err := w.out.send(ctx, w.again)
		cancel()
		if err == nil {
			return w.settle(int64(w.out.count()))
		}
		if w.ctx.Err() != nil {
			return false
		}
		var part *rejected
		if errors.As(err, &part) {
			w.refused(part.count, part.why)
			return w.settle(int64(w.out.count()) - part.count)
		}
		var f *failure
		if !errors.As(err, &f) {
			f = &failure{code: condition.LogDeliveryFailing, text: err.Error(), unclear: true}
		}
		w.again = w.again || f.unclear
		w.fail(f)
		if dropped, ok := w.drop(); dropped || !ok {
			return ok
		}
		if !w.rest() {
			return false
		}
	}
}

// settle notes that the batch is delivered and begins the next one.
func (w *worker) settle(delivered int64) bool {
	last := w.pos
	for w.keep(func(c *Cursor) {
		c.After, c.Delivered = last, c.Delivered+delivered
		if c.Pending != nil && c.Pending.Last <= last {
			c.Pending = nil
		}
	}) != nil {
		if !w.rest() {
			return false
		}
	}
	w.mu.Lock()
	was := w.trouble
	w.trouble, w.nextTry, w.oldest = nil, time.Time{}, 0
	w.mu.Unlock()
	if was != nil {
		w.runner.o.Logger.Info("A delivery goes on", "delivery", w.link.ID, "log", w.feed.Name(), "cluster", w.link.Cluster)
		w.event("delivery/"+w.link.ID, "delivery-resumed", map[string]any{"since": was.Since.UTC().Format(time.RFC3339)})
	}
	w.pause = 0
	w.again = w.cursor.Pending != nil
	w.out.reset(w.cursor.Pending)
	return true
}

// keep changes the cursor durably.
func (w *worker) keep(change func(c *Cursor)) error {
	w.mu.Lock()
	c := w.cursor
	w.mu.Unlock()
	change(&c)
	err := w.runner.o.Store.Update(w.ctx, func(tx *store.Tx) error { return Cursors.Put(tx, c) })
	if err != nil {
		if w.ctx.Err() == nil {
			w.fail(&failure{code: condition.LogDeliveryFailing, text: "note how far the delivery came: " + err.Error()})
		}
		return err
	}
	w.mu.Lock()
	w.cursor = c
	w.mu.Unlock()
	return nil
}

// fail notes why the delivery does not come on.
func (w *worker) fail(f *failure) {
	w.mu.Lock()
	was := w.trouble
	now := Trouble{Code: f.code, Message: f.text, Since: time.Now().UTC()}
	if was != nil {
		now.Since = was.Since
	}
	w.trouble = &now
	w.retries++
	w.mu.Unlock()
	if was == nil || was.Code != f.code {
		w.runner.o.Logger.Warn("A delivery does not come on", "delivery", w.link.ID, "log", w.feed.Name(), "cluster", w.link.Cluster, "condition", f.code, "err", f.text)
		w.event("delivery/"+w.link.ID, "delivery-failing", map[string]any{"condition": f.code, "error": f.text})
	}
}

// event adds to the history of the cluster. That it cannot be is no reason not to
// deliver.
func (w *worker) event(subject, kind string, detail map[string]any) {
	detail["delivery"], detail["log"], detail["to"] = w.link.ID, w.feed.Name(), w.link.Target
	doc, err := json.Marshal(detail)
	if err == nil {
		err = w.runner.o.Store.Update(w.ctx, func(tx *store.Tx) error {
			return tx.Append(store.Event{At: time.Now(), Cluster: w.link.Cluster, Subject: subject, Kind: kind, Detail: doc})
		})
	}
	if err != nil && w.ctx.Err() == nil {
		w.runner.o.Logger.Warn("An event of a delivery is not in the history", "delivery", w.link.ID, "kind", kind, "err", err)
	}
}

// rest waits after a failure, ever longer, and unlike others that failed at the
// same time.
func (w *worker) rest() bool {
	longest := min(longestPause, max(firstPause, w.runner.o.Interval))
	w.pause = min(max(firstPause, 2*w.pause), longest)
	d := w.pause/2 + rand.N(w.pause/2+1)
	w.mu.Lock()
	w.nextTry = time.Now().Add(d)
	w.mu.Unlock()
	return w.wait(d)
}

// lost counts records that are gone. The count is durable with the next batch.
func (w *worker) lost(n int64) {
	if n <= 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cursor.Dropped += n
	w.cursor.DroppedAt = time.Now().UTC()
	w.runner.o.Logger.Warn("A delivery lost records", "delivery", w.link.ID, "log", w.feed.Name(), "records", n)
}

// drop passes over what is older than records are tried, once that was tried for
// so long: what is old because nothing ran meanwhile was not. It returns whether
// the batch was given up for that, and false when the worker was ended.
func (w *worker) drop() (dropped, ok bool) {
	limit := time.Now().Add(-w.runner.o.Keep).UnixMilli()
	if w.began.Time >= limit || time.Since(w.trouble.Since) < w.runner.o.Keep {
		return false, true
	}
	place, err := search(w.feed, limit)
	if err != nil || place < w.pos {
		return false, true // a part of a batch is never given up
	}
	passed := int64(w.out.count()) + place - w.pos
	if !w.feed.Gapless() {
		passed = int64(w.out.count())
	}
	w.lost(passed)
	for w.keep(func(c *Cursor) { c.After, c.Pending = place, nil }) != nil {
		if !w.rest() {
			return true, false
		}
	}
	w.pos, w.again = place, false
	w.out.reset(nil)
	return true, w.rest()
}

// refuse puts a record aside that the destination never takes.
func (w *worker) refuse(e journal.Entry, why string) {
	w.refused(1, why)
	if err := keepRefused(w.runner.o.Dir, w.link.ID, w.feed.Name(), e, why); err != nil {
		w.runner.o.Logger.Warn("A record that cannot be delivered is not kept", "delivery", w.link.ID, "err", fmt.Errorf("write the file of refused records: %w", err))
	}
}

// refused counts records that the destination never takes. The count is durable
// with the batch.
func (w *worker) refused(n int64, why string) {
	w.mu.Lock()
	w.cursor.Refused += n
	w.cursor.RefusedAt, w.cursor.Refusal = time.Now().UTC(), why
	w.mu.Unlock()
	w.runner.o.Logger.Warn("Records cannot be delivered", "delivery", w.link.ID, "log", w.feed.Name(), "records", n, "why", why)
}

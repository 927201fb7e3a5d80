package collect

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/openpcs/openpcs/internal/condition"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/journal"
	"github.com/openpcs/openpcs/internal/record"
	"github.com/openpcs/openpcs/internal/slurm"
	"github.com/openpcs/openpcs/internal/store"
	"github.com/openpcs/openpcs/internal/tail"
)

// kind is a file of a controller that is read.
type kind struct {
	file  string
	name  string // of the log
	audit bool   // it has audit records
	jobs  bool   // it has completed jobs
}

var kinds = []kind{
	{file: "slurmctld.log", name: "slurmctld", audit: true},
	{file: "slurmdbd.log", name: "slurmdbd", audit: true},
	{file: "slurmrestd.log", name: "slurmrestd"},
	{file: "jobcomp.log", name: "jobcomp", jobs: true},
}

// place is where a source is, as it is written with each block of its journals.
type place struct {
	tail.Place
	// Pos counts the bytes of the log up to here: of two journals of one source,
	// it says which is behind.
	Pos     int64         `json:"pos"`
	Inside  *record.State `json:"inside,omitempty"`
	Release string        `json:"release,omitempty"` // of the daemon that writes
}

// A journal that gets no records is told the place now and then, so that what is
// between it and the other one of its source is not much, and still there.
const markEvery = 4 << 20

// batch is how much of a log becomes a block at most.
const batch = journal.MaxBlock / 2

// source is one file of one controller, and the journals that it goes to.
type source struct {
	kind
	c          *Collector
	cluster    fleet.Cluster
	controller Controller
	log        *slog.Logger

	// The reading goroutine's alone.
	tail    *tail.Tail
	cutter  record.Cutter
	pos     int64
	release string
	last    int64  // time of the newest record
	ahead   *place // of the journal that is ahead, until reading is there
	plain   sink   // the scheduler log, or completed jobs
	audits  sink
	full    bool // that a journal cannot be written to is recorded

	mu      sync.Mutex
	stop    context.CancelFunc // of the wait under way
	waiting []chan struct{}
}

// sink is a journal and what goes to it next.
type sink struct {
	key     journal.Key
	journal *journal.Journal
	pos     int64 // up to which it has all that is its own
	entries []journal.Entry
}

func newSource(c *Collector, cl fleet.Cluster, controller Controller, k kind) *source {
	s := &source{kind: k, c: c, cluster: cl, controller: controller, log: c.Log.With("cluster", cl.ID, "log", k.name)}
	s.plain.key = journal.Key{Cluster: cl.ID, LogType: SchedulerLogs, LogName: k.name}
	if k.jobs {
		s.plain.key.LogType = JobLogs
	}
	s.audits.key = journal.Key{Cluster: cl.ID, LogType: AuditLogs, LogName: k.name}
	return s
}

// drained returns a channel that is closed when the file was read to its end, as
// it is after this call.
func (s *source) drained() <-chan struct{} {
	ch := make(chan struct{})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = append(s.waiting, ch)
	if s.stop != nil {
		s.stop()
	}
	return ch
}

// run reads until ctx ends.
func (s *source) run(ctx context.Context) {
	for fails := 1; ; fails++ {
		began := time.Now()
		err := s.read(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > time.Minute {
			fails = 1
		}
		if fails == quietFails {
			s.log.Warn("A log is not read at present", "err", err)
		}
		s.tail = nil // begin anew from what is in the journals
		pause(ctx, min(100*time.Millisecond<<min(fails, 7), 10*time.Second))
	}
}

// quietFails is how many times in a row a log could not be read before it is told
// of: a controller that restarts is no news.
const quietFails = 5

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// read follows the file until something goes wrong, which it returns, or ctx ends.
func (s *source) read(ctx context.Context) error {
	if s.tail == nil {
		if err := s.begin(ctx); err != nil {
			return err
		}
	}
	for {
		s.mu.Lock()
		waiting := s.waiting
		s.waiting = nil
		s.mu.Unlock()
		if err := s.toEnd(ctx); err != nil {
			s.mu.Lock()
			s.waiting = append(waiting, s.waiting...)
			s.mu.Unlock()
			return err
		}
		for _, ch := range waiting {
			close(ch)
		}
		if err := s.wait(ctx); err != nil {
			return err
		}
	}
}

// toEnd reads what there is at present.
func (s *source) toEnd(ctx context.Context) error {
	for {
		more, err := s.tail.Fill(ctx)
		if err != nil {
			return err
		}
		if s.tail.Lost() {
			s.cutter.Inside = nil
			s.tell(ctx, "logs-lost", map[string]any{"log": s.name, "code": condition.LogsLost})
		}
		progress := record.Growing
		switch {
		case s.tail.Final():
			progress = record.Ended
		case !more:
			progress = record.Quiet
		}
		if err := s.take(ctx, progress); err != nil {
			return err
		}
		if !more && (!s.tail.Final() || len(s.tail.Bytes()) == 0) {
			return nil
		}
	}
}

// wait returns when the log has changed, or somebody asks for what is there.
func (s *source) wait(ctx context.Context) error {
	own, cancel := context.WithCancel(ctx)
	defer cancel()
	s.mu.Lock()
	s.stop = cancel
	asked := len(s.waiting) > 0
	s.mu.Unlock()
	var err error
	if !asked {
		err = s.tail.Wait(own)
	}
	s.mu.Lock()
	s.stop = nil
	s.mu.Unlock()
	if own.Err() != nil && ctx.Err() == nil {
		return nil
	}
	return err
}

// begin finds where reading goes on: where the journal is that is behind. What
// the other one has already is left out when it comes again.
func (s *source) begin(ctx context.Context) error {
	places := map[*sink]*place{}
	var from *place
	for _, k := range []*sink{&s.plain, &s.audits} {
		k.entries, k.pos = nil, 0
		var err error
		if k.journal, err = s.c.find(k.key); err != nil {
			// What it has is not known, and would be in it twice or not at all.
			s.notKept(ctx, err)
			return err
		}
		if k.journal == nil {
			continue
		}
		doc := k.journal.Place()
		if doc == nil {
			continue
		}
		var p place
		if err := json.Unmarshal(doc, &p); err != nil {
			return fmt.Errorf("read the place of the journal %s: %w", k.key, err)
		}
		places[k], k.pos = &p, p.Pos
		if from == nil || p.Pos < from.Pos {
			from = &p
		}
	}
	s.start(from)
	if from == nil {
		return nil
	}
	ahead := *from
	for _, p := range places {
		if p.Pos > ahead.Pos {
			ahead = *p
		}
	}
	if ahead.Pos == from.Pos {
		return nil
	}
	// If what is between them is gone, what is left of the log follows the one
	// that is ahead.
	found, err := s.tail.Find(ctx)
	switch {
	case err != nil:
		return err
	case found:
		s.ahead = &ahead
	default:
		s.tell(ctx, "logs-lost", map[string]any{"log": s.name, "code": condition.LogsLost})
		s.start(&ahead)
	}
	return nil
}

func (s *source) start(from *place) {
	s.cutter, s.pos, s.ahead = record.Cutter{}, 0, nil
	if from == nil {
		s.tail = tail.New(s.controller, s.file, nil)
		return
	}
	s.tail = tail.New(s.controller, s.file, &from.Place)
	s.cutter.Inside, s.pos, s.release = from.Inside, from.Pos, from.Release
	s.c.setRelease(s.cluster.ID, s.name, s.release)
}

// take makes records of what was read.
func (s *source) take(ctx context.Context, p record.Progress) error {
	for {
		if s.release == "" && len(s.tail.Bytes()) > 0 {
			s.release = s.firstRelease(ctx, s.tail.Bytes())
			s.c.setRelease(s.cluster.ID, s.name, s.release)
		}
		before := s.place(0)
		n := s.cut(ctx, p)
		if n == 0 {
			return nil
		}
		if err := s.commit(ctx, before, n); err != nil {
			return err
		}
	}
}

// cut turns a part of what was read into entries, and returns how much. A part
// ends where the release changes: what is behind may go elsewhere.
func (s *source) cut(ctx context.Context, p record.Progress) (n int) {
	buf := s.tail.Bytes()
	if s.ahead != nil {
		// A record ended where the journal that is ahead does, even if lines that
		// came later look as if they went on with it.
		if left := s.ahead.Pos - s.pos; left <= 0 {
			s.cutter.Inside, s.ahead = s.ahead.Inside, nil
		} else if left <= int64(len(buf)) {
			buf, p = buf[:left], record.Ended
		}
	}
	s.plain.entries, s.audits.entries = s.plain.entries[:0], s.audits.entries[:0]
	now := time.Now().UnixMilli()
	size := 0
	for n < len(buf) && size < batch {
		if s.jobs {
			text, length := record.NextJob(buf[n:], p)
			if length == 0 {
				break
			}
			n += length
			if s.pos+int64(n) > s.plain.pos {
				if e, ok := s.job(ctx, text); ok {
					s.plain.entries = append(s.plain.entries, e)
					size += len(e.Text) + journal.Overhead
				}
			}
			continue
		}
		r, length := s.cutter.Next(buf[n:], p)
		if length == 0 {
			break
		}
		n += length
		size += length + journal.Overhead
		switch {
		case r.Time != 0:
			s.last = r.Time
		case s.cutter.Inside == nil || s.last == 0:
			r.Time = now
			s.last = now
		default:
			r.Time = s.last
		}
		release := s.started(ctx, r.Text)
		to := &s.plain
		if r.Audit && s.splits() {
			to = &s.audits
		}
		text := record.Readable(r.Text)
		if len(text) > 0 && text[len(text)-1] != '\n' && s.cutter.Inside == nil {
			text = append(bytes.Clone(text), '\n')
		}
		if s.pos+int64(n) > to.pos {
			to.entries = append(to.entries, journal.Entry{Time: r.Time, Level: r.Level, Release: s.releaseName(release), Text: text})
		}
		if release != "" && release != s.release {
			s.release = release
			s.c.setRelease(s.cluster.ID, s.name, release)
			break
		}
	}
	return n
}

// place is behind n of what was read.
func (s *source) place(n int) place {
	return place{Place: s.tail.PlaceAt(n), Pos: s.pos + int64(n), Inside: s.cutter.Inside, Release: s.release}
}

// commit appends what was cut to the journals. It does not give up before ctx
// ends: a disk that is full keeps the log where it is.
func (s *source) commit(ctx context.Context, before place, n int) error {
	at := s.place(n)
	sinks := s.sinks()
	for _, k := range sinks {
		// A journal begins with where it begins: else, after a crash between the
		// two, the first records of the second one would be taken for kept.
		if k.journal == nil {
			entries := k.entries
			k.entries = nil
			if err := s.append(ctx, k, before); err != nil {
				return err
			}
			k.entries = entries
		}
	}
	for _, k := range sinks {
		if at.Pos <= k.pos || (len(k.entries) == 0 && at.Pos-k.pos < markEvery && !s.tail.Final()) {
			continue
		}
		if err := s.append(ctx, k, at); err != nil {
			return err
		}
	}
	s.tail.Consume(n)
	s.pos += int64(n)
	return nil
}

// sinks are the journals that there are to be by now.
func (s *source) sinks() []*sink {
	if s.splits() || s.audits.journal != nil {
		return []*sink{&s.plain, &s.audits}
	}
	return []*sink{&s.plain}
}

func (s *source) append(ctx context.Context, k *sink, at place) error {
	doc, err := json.Marshal(at)
	if err != nil {
		return err
	}
	for fails := 0; ; fails++ {
		err = nil
		if k.journal == nil {
			k.journal, err = s.c.open(k.key)
		}
		if err == nil {
			err = k.journal.Append(doc, k.entries)
		}
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		s.notKept(ctx, err)
		pause(ctx, min(250*time.Millisecond<<min(fails, 6), 10*time.Second))
	}
	if s.full {
		s.full = false
		s.tell(ctx, "logs-kept", map[string]any{"log": s.name})
	}
	k.pos = at.Pos
	return nil
}

// notKept tells, once, that a journal cannot be written to.
func (s *source) notKept(ctx context.Context, err error) {
	if s.full {
		return
	}
	s.full = true
	s.log.Error("Log records cannot be kept, and are left on the controller meanwhile", "err", err)
	s.tell(ctx, "logs-not-kept", map[string]any{"log": s.name, "error": err.Error(), "code": condition.LogsNotKept})
}

// tell writes an event of the cluster; what cannot be told now, as the disk is
// full, is in the log of openpcs.
func (s *source) tell(ctx context.Context, kind string, detail map[string]any) {
	doc, err := json.Marshal(detail)
	if err == nil {
		err = s.c.Store.Update(ctx, func(tx *store.Tx) error {
			return tx.Append(store.Event{At: time.Now().UTC(), Cluster: s.cluster.ID, Subject: "cluster", Kind: kind, Detail: doc})
		})
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		s.log.Warn("An event was not kept", "kind", kind, "err", err)
	}
}

// started returns the release that a record says was started, or "": right behind
// the time it has "slurmctld version 26.05.5 started on cluster demo". Users have
// words of theirs in other records, so that the place counts, and that it is the
// version that the cluster has.
func (s *source) started(ctx context.Context, text []byte) string {
	if len(text) > 300 || len(text) == 0 || text[0] != '[' {
		return ""
	}
	_, rest, _ := bytes.Cut(text, []byte("] "))
	rest, ok := bytes.CutPrefix(rest, []byte(s.name+" version "))
	release, rest, _ := bytes.Cut(rest, []byte(" "))
	if !ok || !bytes.HasPrefix(rest, []byte("started")) || !releaseForm.Match(release) {
		return ""
	}
	if version := s.version(ctx); !bytes.HasPrefix(release, []byte(version+".")) {
		s.log.Warn("A daemon says that it is of another version than its cluster", "says", string(release), "cluster", version)
		return ""
	}
	return string(release)
}

// releaseForm is that of a release; objects and streams are named by it.
var releaseForm = regexp.MustCompile(`^\d{2}\.\d{2}\.\d{1,3}$`)

// version is that of the cluster at present.
func (s *source) version(ctx context.Context) string {
	cl := s.cluster
	err := s.c.Store.View(ctx, func(tx *store.Tx) error {
		now, err := fleet.Clusters.Get(tx, cl.ID)
		if err == nil {
			cl = now
		}
		return err
	})
	if err != nil && !errors.Is(err, store.ErrNotFound) && ctx.Err() == nil {
		s.log.Warn("The version of a cluster is not known", "err", err)
	}
	return cl.Version
}

// firstRelease is the release of a log whose beginning is at hand: a daemon says
// it some lines after its start.
func (s *source) firstRelease(ctx context.Context, buf []byte) string {
	for line := range bytes.Lines(buf) {
		if release := s.started(ctx, line); release != "" {
			return release
		}
	}
	return ""
}

// releaseName is the release for an entry: that which the daemon just said, or
// the one that is known, of slurmctld if need be.
func (s *source) releaseName(said string) string {
	for _, name := range []string{said, s.release, s.c.releaseOf(s.cluster.ID)} {
		if name != "" {
			return name
		}
	}
	return s.cluster.Version
}

// splits says whether audit records have a log of their own.
func (s *source) splits() bool {
	if !s.audit {
		return false
	}
	release := s.release
	if release == "" {
		release = s.cluster.Version
	}
	parts := strings.SplitN(release, ".", 3)
	v, _ := slurm.FindVersion(strings.Join(parts[:min(2, len(parts))], "."))
	return v.AuditLog
}

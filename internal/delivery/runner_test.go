package delivery

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/klauspost/compress/gzip"

	"github.com/openpcs/openpcs/internal/condition"
	"github.com/openpcs/openpcs/internal/journal"
	"github.com/openpcs/openpcs/internal/logs"
	stored "github.com/openpcs/openpcs/internal/logs/events"
	"github.com/openpcs/openpcs/internal/s3"
	"github.com/openpcs/openpcs/internal/store"
)

const (
	testRegion  = "ap-northeast-1"
	testCluster = "pcs_vhuijft7zz"
	testGroup   = "/aws/pcs/scheduler-logs"
)

// site is deliveries with the real journals, log groups and state file. In a
// bubble of testing/synctest its clock runs when all of it waits.
type site struct {
	t       *testing.T
	dir     string
	store   *store.Store
	logs    *logs.Logs
	events  *stored.DB
	buckets Buckets
	runner  *Runner

	mu       sync.Mutex
	journals []*journal.Journal
	links    []Link
}

func newSite(t *testing.T, buckets Buckets) *site {
	t.Helper()
	s := &site{t: t, dir: t.TempDir(), buckets: buckets}
	var err error
	if s.store, err = store.Open(filepath.Join(s.dir, "state.db")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.store.Close() })
	if s.logs, err = logs.New(logs.Options{Store: s.store, Account: article.Account, Dir: s.dir}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.logs.Close() })
	if s.events, err = stored.Open(filepath.Join(s.dir, "logs.db")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.events.Close() })
	s.group(testGroup)
	return s
}

func (s *site) group(name string) {
	s.t.Helper()
	if err := s.events.CreateGroup(s.t.Context(), stored.Group{Region: testRegion, Name: name, Class: "STANDARD"}); err != nil {
		s.t.Fatal(err)
	}
}

// start runs the deliveries until the test ends or stop is called.
func (s *site) start(change ...func(*Options)) {
	feeds := &Feeds{Store: s.store, Journals: func(cluster, logType string) (out []*journal.Journal) {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, j := range s.journals {
			if j.Key().Cluster == cluster && j.Key().LogType == logType {
				out = append(out, j)
			}
		}
		return out
	}}
	o := Options{
		Store: s.store, Feeds: feeds.Of, Interval: 5 * time.Minute, Keep: 24 * time.Hour, Dir: filepath.Join(s.dir, "deliveries"),
		Links: func(*store.Tx) ([]Link, error) {
			s.mu.Lock()
			defer s.mu.Unlock()
			return slices.Clone(s.links), nil
		},
		Destinations: &Destinations{Account: article.Account, Buckets: s.buckets, Groups: s.logs},
		Logger:       slog.New(slog.NewTextHandler(io.Discard, nil)),
	}
	for _, f := range change {
		f(&o)
	}
	r := Start(o)
	s.runner = r
	s.t.Cleanup(r.Stop)
}

func (s *site) journal(logType, name string) *journal.Journal {
	s.t.Helper()
	j, err := journal.Open(filepath.Join(s.dir, "journals"), journal.Key{Cluster: testCluster, LogType: logType, LogName: name}, journal.Options{}, journal.Anchor{})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = j.Close() })
	s.mu.Lock()
	defer s.mu.Unlock()
	s.journals = append(s.journals, j)
	return j
}

// deliver adds a delivery.
func (s *site) deliver(id, logType, kind, target string, change ...func(*Link)) Link {
	l := Link{
		ID: id, Region: testRegion, Account: article.Account, SourceARN: "arn:aws:logs:ap-northeast-1:123456789012:delivery-source:" + id,
		Cluster: testCluster, LogType: logType, Kind: kind, Target: target, Format: JSON, Created: time.Now(),
	}
	if kind == logs.ToLogs {
		l.Format = Plain
	}
	for _, f := range change {
		f(&l)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.links = append(s.links, l)
	return l
}

// say appends lines to a journal: the number of each, with a text.
func (s *site) say(j *journal.Journal, from, to int) {
	s.t.Helper()
	var entries []journal.Entry
	for n := from; n <= to; n++ {
		now := time.Now()
		entries = append(entries, journal.Entry{Time: now.UnixMilli(), Level: "info", Release: "26.05.5", Text: fmt.Appendf(nil, "[%s] line %d\n", now.UTC().Format("2006-01-02T15:04:05.000+00:00"), n)})
	}
	if err := j.Append(nil, entries); err != nil {
		s.t.Fatal(err)
	}
}

// inGroup returns the messages of the streams of a log group.
func (s *site) inGroup(name string) (messages []string) {
	s.t.Helper()
	g, err := s.events.Group(s.t.Context(), testRegion, name)
	if err == nil {
		err = s.events.Scan(s.t.Context(), stored.Window{Group: g.ID, To: 1 << 60}, func(e stored.Event) bool {
			messages = append(messages, string(e.Message))
			return true
		})
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return messages
}

func (s *site) status(id string) Status {
	s.t.Helper()
	all := s.runner.Status()
	n := slices.IndexFunc(all, func(st Status) bool { return st.ID == id })
	if n < 0 {
		s.t.Fatalf("no delivery %s in %+v", id, all)
	}
	return all[n]
}

// shelf is a bucket without a policy whose clock is that of the bubble. What it
// has is what came; what it answers may be something else.
type shelf struct {
	mu      sync.Mutex
	objects map[string][]byte
	puts    int
	// answer, where it is set, is asked first: for the status, or 0 for what is
	// right; keep says whether the object is kept all the same.
	answer func(key string) (status int, code string, keep bool)
}

func (b *shelf) Send(req *http.Request, _ string, _ s3.Sender) (*http.Response, error) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.puts++
	if b.objects == nil {
		b.objects = map[string][]byte{}
	}
	status, code, keep := 0, "", true
	if b.answer != nil {
		status, code, keep = b.answer(req.URL.Path)
	}
	if status == 0 || keep {
		b.objects[req.URL.Path] = body
	}
	text, err := xml.Marshal(struct {
		XMLName xml.Name `xml:"Error"`
		Code    string
	}{Code: code})
	header := http.Header{"Etag": {`"e"`}}
	if code == "Empty" {
		header, text = nil, nil
	}
	return &http.Response{StatusCode: max(status, 200), Header: header, Body: io.NopCloser(bytes.NewReader(text))}, err
}

func (b *shelf) behave(f func(key string) (int, string, bool)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.answer = f
}

// keys are those of the objects, in order.
func (b *shelf) keys() (out []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for k := range b.objects {
		out = append(out, k)
	}
	slices.Sort(out)
	return out
}

// numbers are those of the lines in the objects whose keys contain a text.
func (b *shelf) numbers(t *testing.T, in string) (out []int) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for k, body := range b.objects {
		if strings.Contains(k, in) {
			out = append(out, numbers(t, strings.Split(unzip(t, body), "\n"))...)
		}
	}
	slices.Sort(out)
	return out
}

func unzip(t *testing.T, body []byte) string {
	t.Helper()
	gz, err := gzip.NewReader(bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(gz)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// numbers finds those of lines.
func numbers(t *testing.T, lines []string) (out []int) {
	t.Helper()
	for _, l := range lines {
		_, rest, ok := strings.Cut(l, "line ")
		if !ok {
			continue
		}
		var n int
		if _, err := fmt.Sscan(strings.TrimRight(strings.SplitN(rest, `\n`, 2)[0], `"}`), &n); err != nil {
			t.Fatalf("%q: %v", l, err)
		}
		out = append(out, n)
	}
	return out
}

// exactly says whether these are all numbers from one to another, each once.
func exactly(got []int, from, to int) error {
	slices.Sort(got)
	for n, g := range got {
		if g != from+n {
			return fmt.Errorf("%d in place of %d among %d lines", g, from+n, len(got))
		}
	}
	if len(got) != to-from+1 {
		return fmt.Errorf("%d lines, want %d", len(got), to-from+1)
	}
	return nil
}

func check(t *testing.T, what string, got []int, from, to int) {
	t.Helper()
	if err := exactly(got, from, to); err != nil {
		t.Errorf("%s: %v", what, err)
	}
}

// settle lets everything that is under way come to rest.
func settle(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// A delivery to S3 makes an object every five minutes, of one hour each, and
// goes on where it was when openpcs is started again.
func TestObjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &shelf{}
		s := newSite(t, b)
		j := s.journal(logs.SchedulerAuditLogs, "slurmctld")
		s.say(j, 1, 10) // before there is a delivery
		settle(time.Second)
		s.deliver("D1", logs.SchedulerAuditLogs, logs.ToS3, "audit")
		s.start()
		settle(2 * time.Second)
		s.say(j, 11, 20)
		settle(4 * time.Minute)
		if keys := b.keys(); len(keys) != 0 {
			t.Fatalf("after four minutes there are %v", keys)
		}
		s.say(j, 21, 30)
		s.runner.Stop()
		s.start()
		settle(70 * time.Second)
		check(t, "after five minutes", b.numbers(t, "scheduler_audit"), 11, 30)
		if keys := b.keys(); len(keys) != 1 || !strings.HasPrefix(keys[0], "/audit/AWSLogs/123456789012/PCS/ap-northeast-1/pcs_vhuijft7zz/scheduler_audit/slurmctld/2000/01/01/00/PCS_pcs_vhuijft7zz_scheduler_audit_slurmctld_26.05_2000-01-01-00_") {
			t.Fatalf("the objects are %v", keys)
		}
		settle(53 * time.Minute) // some 58 minutes after the hour
		s.say(j, 31, 40)
		settle(3 * time.Minute)
		s.say(j, 41, 50)
		settle(10 * time.Minute)
		check(t, "of the first hour", b.numbers(t, "/00/PCS"), 11, 40)
		check(t, "of the second hour", b.numbers(t, "/01/PCS"), 41, 50)
		if keys := b.keys(); len(keys) != 3 {
			t.Errorf("there are %d objects: %v", len(keys), keys)
		}
		if st := s.status("D1"); st.Status != Idle || st.Delivered != 40 || st.Behind != 0 || st.Lag != 0 {
			t.Errorf("the status is %+v", st)
		}
	})
}

// Whatever a destination answers, each record is there once in the end, and
// another delivery of the same log does not notice.
func TestL8_DestinationInTrouble(t *testing.T) {
	for _, tt := range []struct {
		name   string
		answer func(key string) (int, string, bool)
		code   condition.Code
	}{
		{"throttled", func(string) (int, string, bool) { return 503, "SlowDown", false }, condition.LogDeliveryFailing},
		{"error", func(string) (int, string, bool) { return 500, "InternalError", false }, condition.LogDeliveryFailing},
		{"kept_all_the_same", func(string) (int, string, bool) { return 500, "InternalError", true }, condition.LogDeliveryFailing},
		{"empty", func(string) (int, string, bool) { return 200, "Empty", false }, condition.LogDeliveryFailing},
		{"denied", func(string) (int, string, bool) { return 403, "AccessDenied", false }, condition.LogDeliveryDenied},
		{"gone", func(string) (int, string, bool) { return 404, "NoSuchBucket", false }, condition.LogDestinationMissing},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := &shelf{}
				b.behave(tt.answer)
				s := newSite(t, b)
				j := s.journal(logs.SchedulerLogs, "slurmctld")
				s.deliver("TOS3", logs.SchedulerLogs, logs.ToS3, "box")
				s.deliver("TOGROUP", logs.SchedulerLogs, logs.ToLogs, testGroup)
				s.start(func(o *Options) { o.Interval = 10 * time.Second })
				for n := range 90 {
					s.say(j, n+1, n+1)
					settle(time.Second)
				}
				check(t, "in the log group", numbers(t, s.inGroup(testGroup)), 1, 89+1)
				st := s.status("TOS3")
				if st.Status != Failing || st.Trouble == nil || st.Trouble.Code != tt.code || st.Behind != 90 || st.Lag < 60 || st.Retries < 5 || st.Retries > 30 {
					t.Errorf("the status is %+v (%+v)", st, st.Trouble)
				}
				if troubles := s.runner.Troubles(testCluster); len(troubles) != 1 || troubles[0].Code != tt.code {
					t.Errorf("the troubles are %+v", troubles)
				}
				s.runner.Stop() // at a random moment
				s.start(func(o *Options) { o.Interval = 10 * time.Second })
				settle(time.Minute)
				b.behave(nil)
				settle(time.Minute)
				check(t, "in S3", b.numbers(t, ""), 1, 90)
				if st := s.status("TOS3"); st.Status != Idle || st.Trouble != nil || st.Delivered != 90 {
					t.Errorf("the status is %+v", st)
				}
				if troubles := s.runner.Troubles(testCluster); len(troubles) != 0 {
					t.Errorf("the troubles are %+v", troubles)
				}
				s.history("delivery-failing", 2) // it was started anew
				s.history("delivery-resumed", 1)
			})
		})
	}
}

// history counts the events of a kind.
func (s *site) history(kind string, want int) {
	s.t.Helper()
	n := 0
	err := s.store.View(s.t.Context(), func(tx *store.Tx) error {
		events, err := tx.Events(testCluster, "", 100)
		for _, e := range events {
			if e.Kind == kind {
				n++
			}
		}
		return err
	})
	if err != nil || n != want {
		s.t.Errorf("%d events %s, want %d (%v)", n, kind, want, err)
	}
}

// A log group that is deleted and made again gets what it missed.
func TestLogGroupComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, &shelf{})
		j := s.journal(logs.SchedulerLogs, "slurmctld")
		s.deliver("D1", logs.SchedulerLogs, logs.ToLogs, testGroup)
		s.start()
		s.say(j, 1, 5)
		settle(2 * time.Second)
		check(t, "before", numbers(t, s.inGroup(testGroup)), 1, 5)
		if err := s.events.DeleteGroup(t.Context(), testRegion, testGroup, func(stored.Group) error { return nil }); err != nil {
			t.Fatal(err)
		}
		s.say(j, 6, 12_000) // more than one batch
		settle(time.Minute)
		if st := s.status("D1"); st.Trouble == nil || st.Trouble.Code != condition.LogDestinationMissing || !strings.Contains(st.Trouble.Message, testGroup) {
			t.Errorf("the status is %+v", st)
		}
		s.group(testGroup)
		settle(2 * time.Minute)
		check(t, "after", numbers(t, s.inGroup(testGroup)), 6, 12_000)
	})
}

// What is older than records are tried is dropped, counted and told of; the rest
// is delivered.
func TestTooFarBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &shelf{}
		b.behave(func(string) (int, string, bool) { return 503, "SlowDown", false })
		s := newSite(t, b)
		j := s.journal(logs.SchedulerLogs, "slurmctld")
		s.deliver("D1", logs.SchedulerLogs, logs.ToS3, "box")
		short := func(o *Options) { o.Interval, o.Keep = time.Minute, 2*time.Hour }
		s.start(short)
		for n := range 6 * 12 { // six hours
			s.say(j, n+1, n+1)
			settle(5 * time.Minute)
		}
		st := s.status("D1")
		if st.Dropped < 40 || st.Dropped > 60 {
			t.Errorf("%d of 72 records in six hours were dropped, where two hours are kept", st.Dropped)
		}
		if troubles := s.runner.Troubles(testCluster); len(troubles) != 2 || troubles[1].Code != condition.LogRecordsDropped {
			t.Errorf("the troubles are %+v", troubles)
		}
		s.runner.Stop()
		b.behave(nil)
		s.start(short)
		settle(5 * time.Minute)
		st = s.status("D1")
		check(t, "in S3", b.numbers(t, ""), int(st.Dropped)+1, 72)
		if st.Delivered+st.Dropped != 72 {
			t.Errorf("of 72 records %d were delivered and %d dropped", st.Delivered, st.Dropped)
		}
	})
}

// The times of completed jobs are whole seconds: one that ends in the second in
// which its delivery is made, and after that, belongs to it.
func TestJobOfTheSameSecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, &shelf{})
		j := s.journal(logs.JobCompletionLogs, "jobcomp")
		settle(300 * time.Millisecond)
		s.deliver("D1", logs.JobCompletionLogs, logs.ToLogs, testGroup)
		at := time.Now().Truncate(time.Second)
		for _, e := range []journal.Entry{{Time: at.Add(-time.Second).UnixMilli(), Text: []byte(`{"line 1":1}`)}, {Time: at.UnixMilli(), Text: []byte(`{"line 2":1}`)}} {
			e.Level, e.Release = "info", "26.05.5"
			if err := j.Append(nil, []journal.Entry{e}); err != nil {
				t.Fatal(err)
			}
		}
		s.start()
		settle(5 * time.Second)
		if got := s.inGroup(testGroup); len(got) != 1 || !strings.Contains(got[0], "line 2") {
			t.Errorf("got %q", got)
		}
	})
}

// A log that never rests is delivered as soon as one that does.
func TestLogThatNeverRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, &shelf{})
		j := s.journal(logs.SchedulerLogs, "slurmctld")
		s.deliver("D1", logs.SchedulerLogs, logs.ToLogs, testGroup)
		s.start()
		for n := range 50 { // five seconds
			s.say(j, n+1, n+1)
			settle(100 * time.Millisecond)
		}
		if got := len(s.inGroup(testGroup)); got < 35 {
			t.Errorf("%d of 50 lines in five seconds were delivered", got)
		}
	})
}

// A record from a clock that is ahead, or with a time that somebody made up, holds
// up none of those behind it.
func TestRecordOfTheFuture(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &shelf{}
		s := newSite(t, b)
		j := s.journal(logs.SchedulerLogs, "slurmctld")
		s.deliver("D1", logs.SchedulerLogs, logs.ToS3, "box")
		s.start()
		ahead := time.Now().AddDate(1, 0, 0)
		if err := j.Append(nil, []journal.Entry{{Time: ahead.UnixMilli(), Level: "info", Release: "26.05.5", Text: []byte("line 1\n")}}); err != nil {
			t.Fatal(err)
		}
		for n := 2; n < 302; n++ { // ten minutes
			s.say(j, n, n)
			settle(2 * time.Second)
		}
		if got := b.numbers(t, ""); len(got) < 140 {
			t.Errorf("%d of 300 lines in ten minutes were delivered", len(got))
		}
	})
}

// A machine that was off for longer than records are tried has not tried them: one
// failure after it comes back, as the network is not up yet, loses nothing.
func TestOffForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &shelf{}
		s := newSite(t, b)
		j := s.journal(logs.SchedulerLogs, "slurmctld")
		s.deliver("D1", logs.SchedulerLogs, logs.ToS3, "box")
		s.start()
		settle(5 * time.Second)
		s.say(j, 1, 10)
		settle(5 * time.Second)
		s.runner.Stop()
		settle(72 * time.Hour)
		failures := 2
		b.behave(func(string) (int, string, bool) {
			if failures--; failures >= 0 {
				return 503, "SlowDown", false
			}
			return 0, "", true
		})
		s.start()
		settle(10 * time.Minute)
		check(t, "in S3", b.numbers(t, ""), 1, 10)
		if st := s.status("D1"); st.Dropped != 0 {
			t.Errorf("%d records were dropped", st.Dropped)
		}
	})
}

// What the journal no longer keeps is counted as lost.
func TestTrimmedJournal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &shelf{}
		s := newSite(t, b)
		j, err := journal.Open(filepath.Join(s.dir, "journals"), journal.Key{Cluster: testCluster, LogType: logs.SchedulerLogs, LogName: "slurmctld"}, journal.Options{SegmentBytes: 1, MaxBytes: 1500}, journal.Anchor{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = j.Close() })
		s.journals = append(s.journals, j)
		s.deliver("D1", logs.SchedulerLogs, logs.ToS3, "box")
		s.start()
		settle(2 * time.Second)
		s.runner.Stop()
		for n := range 20 { // a segment each
			s.say(j, n+1, n+1)
		}
		if err := j.Trim(time.Now(), func(journal.Anchor) error { return nil }); err != nil {
			t.Fatal(err)
		}
		s.start()
		settle(10 * time.Minute)
		st := s.status("D1")
		if st.Dropped != j.First()-1 || st.Dropped == 0 {
			t.Errorf("%d records are dropped, and the journal begins with %d", st.Dropped, j.First())
		}
		check(t, "in S3", b.numbers(t, ""), int(j.First()), 20)
	})
}

// A record that the destination never takes is put aside, and does not hold up
// the others.
func TestRefusedRecords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &shelf{}
		s := newSite(t, b)
		j := s.journal(logs.SchedulerLogs, "slurmctld")
		s.deliver("D1", logs.SchedulerLogs, logs.ToLogs, testGroup)
		s.start()
		s.say(j, 1, 3)
		if err := j.Append(nil, []journal.Entry{{Time: time.Now().UnixMilli(), Level: "info", Release: "26.05.5", Text: bytes.Repeat([]byte("x"), 1<<20)}}); err != nil {
			t.Fatal(err)
		}
		s.say(j, 4, 6)
		settle(5 * time.Second)
		check(t, "in the log group", numbers(t, s.inGroup(testGroup)), 1, 6)
		st := s.status("D1")
		if st.Refused != 1 || st.Delivered != 6 || st.Behind != 0 {
			t.Errorf("the status is %+v", st)
		}
		troubles := s.runner.Troubles(testCluster)
		if len(troubles) != 1 || troubles[0].Code != condition.LogRecordsRefused || !strings.Contains(troubles[0].Message, "D1.refused.jsonl") {
			t.Errorf("the troubles are %+v", troubles)
		}
		s.mu.Lock()
		s.links = nil
		s.mu.Unlock()
		settle(5 * time.Second)
		if left, err := filepath.Glob(filepath.Join(s.dir, "deliveries", "*")); err != nil || len(left) != 0 {
			t.Errorf("a delivery that was deleted leaves %v (%v)", left, err)
		}
		err := s.store.View(t.Context(), func(tx *store.Tx) error {
			all, err := Cursors.All(tx)
			if len(all) != 0 {
				err = fmt.Errorf("there are cursors: %+v", all)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	})
}

// A daemon that comes later flows into the delivery by itself, from its first
// line on, and a delivery that is changed goes on where it was.
func TestNewDaemonAndChangedDelivery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, &shelf{})
		j := s.journal(logs.SchedulerLogs, "slurmctld")
		s.deliver("D1", logs.SchedulerLogs, logs.ToLogs, testGroup)
		s.start()
		s.say(j, 1, 5)
		settle(2 * time.Second)
		other := s.journal(logs.SchedulerLogs, "slurmdbd")
		s.say(other, 6, 9)
		settle(3 * time.Second)
		check(t, "of both", numbers(t, s.inGroup(testGroup)), 1, 9)
		s.mu.Lock()
		s.links[0].Format = JSON
		s.mu.Unlock()
		settle(2 * time.Second)
		s.say(j, 10, 12)
		settle(2 * time.Second)
		messages := s.inGroup(testGroup)
		check(t, "after the change", numbers(t, messages), 1, 12)
		if last := messages[len(messages)-1]; !strings.HasPrefix(last, `{"resource_id":"pcs_vhuijft7zz"`) {
			t.Errorf("the last event is %s", last)
		}
	})
}

// An audit storm whose destination is slow delays no operational record.
func TestL14_AuditStorm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &slow{}
		s := newSite(t, b)
		audit, ops := s.journal(logs.SchedulerAuditLogs, "slurmctld"), s.journal(logs.SchedulerLogs, "slurmctld")
		s.deliver("AUDIT", logs.SchedulerAuditLogs, logs.ToS3, "audit")
		s.deliver("OPS", logs.SchedulerLogs, logs.ToLogs, testGroup)
		s.start(func(o *Options) { o.Interval = time.Second })
		for n := range 20 {
			s.say(audit, 1000*n+1, 1000*n+1000)
			s.say(ops, n+1, n+1)
			settle(time.Second)
			check(t, "operational records", numbers(t, s.inGroup(testGroup)), 1, n+1)
			if t.Failed() {
				break
			}
		}
		if st := s.status("AUDIT"); st.Behind != 20_000 || st.Status != Working {
			t.Errorf("the slow delivery is %+v", st)
		}
		s.runner.Stop() // at once, though the destination is at it
	})
}

// slow takes for ever.
type slow struct{}

func (*slow) Send(req *http.Request, _ string, _ s3.Sender) (*http.Response, error) {
	<-req.Context().Done()
	return nil, errors.Join(errors.New("slow"), context.Cause(req.Context()))
}

// A path that is changed while nobody knows whether an object came does not
// bring its records a second time.
func TestChangedPath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &shelf{}
		b.behave(func(string) (int, string, bool) { return 500, "InternalError", true })
		s := newSite(t, b)
		j := s.journal(logs.SchedulerLogs, "slurmctld")
		s.deliver("D1", logs.SchedulerLogs, logs.ToS3, "box")
		s.start()
		s.say(j, 1, 10)
		settle(6 * time.Minute)
		if len(b.keys()) != 1 {
			t.Fatalf("the objects are %v", b.keys())
		}
		s.mu.Lock()
		s.links[0].Suffix = "other/"
		s.mu.Unlock()
		settle(5 * time.Second)
		b.behave(nil)
		s.say(j, 11, 20)
		settle(15 * time.Minute)
		check(t, "in S3", b.numbers(t, ""), 1, 20)
		check(t, "at the new path", b.numbers(t, "/other/"), 11, 20)
	})
}

package events

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

func open(t testing.TB, path string) *DB {
	t.Helper()
	d, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

func withGroup(t testing.TB) *DB {
	t.Helper()
	d := open(t, filepath.Join(t.TempDir(), "logs.db"))
	if err := d.CreateGroup(t.Context(), Group{Region: "r", Name: "g", Created: 1, Class: "STANDARD"}); err != nil {
		t.Fatal(err)
	}
	return d
}

func (d *DB) all(t testing.TB, w Window) string {
	t.Helper()
	if w.To == 0 {
		w.To = 1 << 60
	}
	g, err := d.Group(t.Context(), "r", "g")
	if err != nil {
		t.Fatal(err)
	}
	w.Group = g.ID
	var got []string
	if err := d.Scan(t.Context(), w, func(e Event) bool { got = append(got, e.Stream+":"+string(e.Message)); return true }); err != nil {
		t.Fatal(err)
	}
	return strings.Join(got, " ")
}

// TestReopened: what Append returned from is there when the file is opened
// again, and the places with it.
func TestReopened(t *testing.T) {
	path := filepath.Join(t.TempDir(), "logs.db")
	for n := range 3 {
		d, err := Open(path)
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			err = d.CreateGroup(t.Context(), Group{Region: "r", Name: "g", Created: 1, Class: "STANDARD", Tags: map[string]string{"a": "b"}})
		}
		// Each time the last of before is handed over again.
		in := []Input{{Place: int64(n), Time: int64(n), Message: fmt.Sprint(n)}, {Place: int64(n + 1), Time: int64(n + 1), Message: fmt.Sprint(n + 1)}}
		err = errors.Join(err, d.Append(t.Context(), Batch{Region: "r", Group: "g", Stream: "s", Make: true, From: "x", Events: in, Now: time.UnixMilli(5)}))
		if err := errors.Join(err, d.Close()); err != nil {
			t.Fatal(err)
		}
	}
	d := open(t, path)
	if got := d.all(t, Window{}); got != "s:0 s:1 s:2 s:3" {
		t.Errorf("got %s", got)
	}
	if g, err := d.Group(t.Context(), "r", "g"); err != nil || g.Tags["a"] != "b" || g.Bytes != 4*(Overhead+1) {
		t.Errorf("got %+v, %v", g, err)
	}
	var sync, vacuum int
	var journal string
	err := errors.Join(d.write.QueryRow(`PRAGMA synchronous`).Scan(&sync), d.write.QueryRow(`PRAGMA journal_mode`).Scan(&journal), d.write.QueryRow(`PRAGMA auto_vacuum`).Scan(&vacuum))
	if err != nil || sync != 2 || journal != "wal" || vacuum != 2 {
		t.Errorf("synchronous %d, journal %s, vacuum %d, %v", sync, journal, vacuum, err)
	}
}

// TestNewerFile: one of a newer openpcs is refused.
func TestNewerFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "logs.db")
	d := open(t, path)
	if _, err := d.write.Exec(`PRAGMA user_version = 2`); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(path); err == nil || !strings.Contains(err.Error(), "install a newer openpcs") {
		t.Errorf("got %v", err)
	}
}

// TestAllOrNothing: a batch that fails half way leaves nothing.
func TestAllOrNothing(t *testing.T) {
	d := withGroup(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	list := make([]Input, 500)
	for n := range list {
		list[n] = Input{Place: int64(n + 1), Time: 1, Message: "x"}
	}
	if err := d.Append(ctx, Batch{Region: "r", Group: "g", Stream: "s", Make: true, From: "x", Events: list}); !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
	if got := d.all(t, Window{}); got != "" {
		t.Errorf("something is there")
	}
	if err := d.Append(t.Context(), Batch{Region: "r", Group: "g", Stream: "s", Make: true, From: "x", Events: list}); err != nil {
		t.Fatal(err)
	}
	if got := d.all(t, Window{}); strings.Count(got, "x") != 500 {
		t.Errorf("got %d", strings.Count(got, "x"))
	}
	if err := d.Append(t.Context(), Batch{Region: "r", Group: "g", Stream: "none", Events: list}); !errors.Is(err, ErrNoStream) {
		t.Errorf("got %v", err)
	}
	if err := d.Append(t.Context(), Batch{Region: "r2", Group: "g", Stream: "s", Events: list}); !errors.Is(err, ErrNoGroup) {
		t.Errorf("in another region: %v", err)
	}
}

// TestAtOnce writes, reads, sweeps and deletes at the same time: nothing that is
// written is lost, and a reader sees whole batches.
func TestAtOnce(t *testing.T) {
	d := withGroup(t)
	const writers, batches, size = 4, 10, 60
	var wg sync.WaitGroup
	done := make(chan struct{})
	for w := range writers {
		wg.Go(func() {
			for b := range batches {
				list := make([]Input, size)
				for n := range list {
					list[n] = Input{Time: int64(b*size + n), Message: fmt.Sprint(w)}
				}
				if err := d.Append(t.Context(), Batch{Region: "r", Group: "g", Stream: fmt.Sprint("s", w), Make: true, Events: list, Now: time.UnixMilli(1)}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	var readers sync.WaitGroup
	for range 2 {
		readers.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				count := 0
				if err := d.Scan(t.Context(), Window{Group: 1, To: 1 << 60}, func(Event) bool { count++; return true }); err != nil {
					t.Error(err)
				}
				if count%size != 0 {
					t.Errorf("a reader sees %d events, which are no whole batches", count)
				}
				if err := d.Sweep(t.Context(), time.UnixMilli(1)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	close(done)
	readers.Wait()
	got := strings.Fields(d.all(t, Window{}))
	if len(got) != writers*batches*size {
		t.Errorf("got %d events", len(got))
	}
}

// TestSweepGivesSpaceBack: when a large group is gone, the file is small again.
func TestSweepGivesSpaceBack(t *testing.T) {
	d := withGroup(t)
	list := make([]Input, sweepRows+500)
	for n := range list {
		list[n] = Input{Time: int64(n), Message: strings.Repeat("x", 3000)}
	}
	if err := d.Append(t.Context(), Batch{Region: "r", Group: "g", Stream: "s", Make: true, Events: list}); err != nil {
		t.Fatal(err)
	}
	pages := func() (n int) {
		if err := d.write.QueryRow(`PRAGMA page_count`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := pages()
	if err := d.DeleteGroup(t.Context(), "r", "g", func(Group) error { return nil }); err != nil {
		t.Fatal(err)
	}
	if err := d.Sweep(t.Context(), time.UnixMilli(1)); err != nil {
		t.Fatal(err)
	}
	var left int
	for _, table := range []string{"events", "streams", "groups", "places"} {
		var n int
		if err := d.write.QueryRow(`SELECT count(*) FROM ` + table).Scan(&n); err != nil {
			t.Fatal(err)
		}
		left += n
	}
	if after := pages(); left != 0 || after > before/2 {
		t.Errorf("%d rows are left, %d pages of %d", left, after, before)
	}
}

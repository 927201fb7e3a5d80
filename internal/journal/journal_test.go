package journal_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/openpcs/openpcs/internal/journal"
)

var key = journal.Key{Cluster: "pcs_0123456789", LogType: "PCS_SCHEDULER_LOGS", LogName: "slurmctld"}

func open(t testing.TB, root string, o journal.Options, a journal.Anchor) *journal.Journal {
	t.Helper()
	j, err := journal.Open(root, key, o, a)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = j.Close() })
	return j
}

// batch makes n entries, numbered on from a place.
func batch(after, n int) []journal.Entry {
	out := make([]journal.Entry, n)
	for k := range out {
		i := after + k + 1
		out[k] = journal.Entry{Time: int64(1000 + i), Level: []string{"info", "error"}[i%2], Release: "26.05.5", Text: fmt.Appendf(nil, "line %d\n", i)}
	}
	return out
}

func add(t testing.TB, j *journal.Journal, n int) {
	t.Helper()
	last := int(j.Last())
	if err := j.Append([]byte(strconv.Itoa(last+n)), batch(last, n)); err != nil {
		t.Fatal(err)
	}
}

// all reads from a place to the end in pieces.
func all(t testing.TB, j *journal.Journal, after int64, entries, size int) (out []journal.Entry) {
	t.Helper()
	for {
		got, err := j.Read(after, entries, size)
		if err != nil {
			t.Fatal(err)
		}
		if len(got) == 0 {
			return out
		}
		out = append(out, got...)
		after = got[len(got)-1].Seq
	}
}

// check fails unless entries are those of batch from first on.
func check(t testing.TB, got []journal.Entry, first, last int) {
	t.Helper()
	want := batch(first-1, last-first+1)
	if len(got) != len(want) {
		t.Fatalf("got %d entries, want %d", len(got), len(want))
	}
	for k, e := range got {
		w := want[k]
		if e.Seq != int64(first+k) || e.Time != w.Time || e.Level != w.Level || e.Release != w.Release || !bytes.Equal(e.Text, w.Text) {
			t.Fatalf("entry %d is %+v %q, want %+v %q", first+k, e, e.Text, w, w.Text)
		}
	}
}

func TestWhatIsAppendedIsRead(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		root, err := os.MkdirTemp(t.TempDir(), "")
		if err != nil {
			rt.Fatal(err)
		}
		o := journal.Options{SegmentBytes: int64(rapid.IntRange(100, 4000).Draw(rt, "segment"))}
		j := open(t, root, o, journal.Anchor{})
		total := 0
		for range rapid.IntRange(1, 20).Draw(rt, "blocks") {
			n := rapid.IntRange(0, 30).Draw(rt, "entries")
			add(t, j, n)
			total += n
			if rapid.IntRange(0, 4).Draw(rt, "reopen") == 0 {
				a := j.Anchor()
				if err := j.Close(); err != nil {
					rt.Fatal(err)
				}
				j = open(t, root, o, a)
				if got := string(j.Place()); got != strconv.Itoa(total) {
					rt.Fatalf("the place is %q, want %d", got, total)
				}
			}
		}
		if j.Last() != int64(total) || j.First() != 1 {
			rt.Fatalf("it goes from %d to %d, want 1 to %d", j.First(), j.Last(), total)
		}
		from := rapid.IntRange(0, total).Draw(rt, "after")
		check(t, all(t, j, int64(from), rapid.IntRange(1, 50).Draw(rt, "maxEntries"), rapid.IntRange(1, 400).Draw(rt, "maxBytes")), from+1, total)
		r, err := j.Verify(j.Anchor())
		if err != nil || len(r.Damage) > 0 || r.Records != int64(total) {
			rt.Fatalf("%+v, %v", r, err)
		}
	})
}

func TestChangedIsClosedAtAnAppend(t *testing.T) {
	j := open(t, t.TempDir(), journal.Options{}, journal.Anchor{})
	changed := j.Changed()
	add(t, j, 0) // a place alone is nothing new for readers
	select {
	case <-changed:
		t.Fatal("closed without an entry")
	default:
	}
	add(t, j, 1)
	<-changed
}

// segments returns the files of the journal, oldest first.
func segments(t testing.TB, root string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(key.Dir(root), "*.seg"))
	if err != nil || len(files) == 0 {
		t.Fatalf("%v, %v", files, err)
	}
	slices.Sort(files)
	return files
}

// A crash at any byte of a write leaves all that was there before.
func TestATornTailIsCutOff(t *testing.T) {
	root := t.TempDir()
	j := open(t, root, journal.Options{}, journal.Anchor{})
	add(t, j, 3)
	before := j.Bytes()
	add(t, j, 4)
	whole, err := os.ReadFile(segments(t, root)[0])
	if err != nil {
		t.Fatal(err)
	}
	_ = j.Close()
	for size := before; size < int64(len(whole)); size++ {
		for _, zeros := range []int64{0, int64(len(whole)) - size} { // size known, content not
			if err := os.WriteFile(segments(t, root)[0], append(slices.Clone(whole[:size]), make([]byte, zeros)...), 0o600); err != nil {
				t.Fatal(err)
			}
			j := open(t, root, journal.Options{}, journal.Anchor{})
			if j.Last() != 3 || string(j.Place()) != "3" {
				t.Fatalf("cut at %d: the last is %d, the place %q", size, j.Last(), j.Place())
			}
			add(t, j, 4)
			check(t, all(t, j, 0, 100, 1000), 1, 7)
			_ = j.Close()
		}
	}
}

func TestTrimKeepsSizeAndAge(t *testing.T) {
	root := t.TempDir()
	o := journal.Options{SegmentBytes: 300, MaxBytes: 1500}
	j := open(t, root, o, journal.Anchor{})
	for range 20 {
		add(t, j, 5)
	}
	var kept journal.Anchor
	keep := func(a journal.Anchor) error { kept = a; return nil }
	if err := j.Trim(time.Now(), keep); err != nil {
		t.Fatal(err)
	}
	if j.Bytes() > 1500 || j.First() < 2 || kept.Base.Seq != j.First()-1 {
		t.Fatalf("%d bytes from %d, kept %+v", j.Bytes(), j.First(), kept)
	}
	check(t, all(t, j, 0, 1000, 1<<20), int(j.First()), 100)
	if r, err := j.Verify(kept); err != nil || len(r.Damage) > 0 {
		t.Fatalf("%+v, %v", r, err)
	}
	// Whatever was to be removed and was not is removed at the next start.
	_ = j.Close()
	j = open(t, root, o, kept)
	add(t, j, 1)
	if r, err := j.Verify(j.Anchor()); err != nil || len(r.Damage) > 0 || j.Last() != 101 {
		t.Fatalf("%+v, %v", r, err)
	}
	o.MaxAge = time.Hour
	_ = j.Close()
	j = open(t, root, o, j.Anchor())
	if err := j.Trim(time.Now().Add(2*time.Hour), keep); err != nil {
		t.Fatal(err)
	}
	if n := len(segments(t, root)); n != 1 {
		t.Fatalf("%d segments, want the newest alone", n)
	}
	add(t, j, 1)
	check(t, all(t, j, 101, 10, 1000), 102, 102)
}

func TestVerifyFindsWhatWasDone(t *testing.T) {
	edit := func(f func([]byte) []byte) func(t *testing.T, files []string) {
		return func(t *testing.T, files []string) {
			text, err := os.ReadFile(files[1])
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(files[1], f(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, c := range map[string]struct {
		do   func(t *testing.T, files []string)
		what string
		from int64
	}{
		"changed": {edit(func(b []byte) []byte { return bytes.Replace(b, []byte("line 7\n"), []byte("line 0\n"), 1) }), "the record was changed", 7},
		"removed": {edit(func(b []byte) []byte { return b[blockLength(b):] }), "removed", 6},
		"reordered": {edit(func(b []byte) []byte {
			n := blockLength(b)
			return append(slices.Clone(b[n:]), b[:n]...)
		}), "another order", 6},
		"garbage":   {edit(func(b []byte) []byte { copy(b[:20], "xxxxxxxxxxxxxxxxxxxx"); return b }), "are no records", 6},
		"segment":   {func(t *testing.T, files []string) { remove(t, files[1]) }, "the segment was removed", 6},
		"beginning": {func(t *testing.T, files []string) { remove(t, files[0]) }, "the segment was removed", 1},
		"end":       {func(t *testing.T, files []string) { cut(t, files[len(files)-1], 10) }, "cut off", 16},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			j := open(t, root, journal.Options{SegmentBytes: 250}, journal.Anchor{})
			for range 10 {
				add(t, j, 2)
			}
			files := segments(t, root)
			if len(files) < 3 {
				t.Fatalf("%d segments", len(files))
			}
			anchor := j.Anchor()
			first := firstOf(t, files[1])
			if r, err := j.Verify(anchor); err != nil || len(r.Damage) > 0 {
				t.Fatalf("before: %+v, %v", r, err)
			}
			c.do(t, files)
			found := func(r journal.Report) bool {
				return slices.ContainsFunc(r.Damage, func(d journal.Damage) bool { return strings.Contains(d.What, c.what) })
			}
			r, err := j.Verify(anchor)
			if err != nil || !found(r) {
				t.Fatalf("it was not found: %+v, %v (segment from %d)", r, err, first)
			}
			t.Logf("%+v", r.Damage)
			// Nor is it forgotten by a restart, and what is written after it.
			_ = j.Close()
			j = open(t, root, journal.Options{SegmentBytes: 250}, anchor)
			add(t, j, 1) // not what was cut off: that would be the same chain again
			if r, err := j.Verify(j.Anchor()); err != nil || len(r.Damage) == 0 {
				t.Fatalf("after a restart nothing is found: %+v, %v", r, err)
			}
		})
	}
}

// Whoever writes a segment anew, with all hashes right, is found by the next one.
func TestVerifyFindsASegmentWrittenAnew(t *testing.T) {
	roots := []string{t.TempDir(), t.TempDir()}
	var journals []*journal.Journal
	for n, root := range roots {
		j := open(t, root, journal.Options{SegmentBytes: 250}, journal.Anchor{})
		journals = append(journals, j)
		for range 5 {
			entries := batch(int(j.Last()), 2)
			if n == 1 && j.Last() == 4 {
				entries[1].Text = []byte("forged\n")
			}
			if err := j.Append(nil, entries); err != nil {
				t.Fatal(err)
			}
		}
	}
	files := segments(t, roots[0])
	forged, err := os.ReadFile(segments(t, roots[1])[1])
	if err != nil || !bytes.Contains(forged, []byte("forged")) {
		t.Fatalf("%v: %q", err, forged)
	}
	if err := os.WriteFile(files[1], forged, 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := journals[0].Verify(journals[0].Anchor())
	if err != nil || len(r.Damage) != 1 || r.Damage[0].To < 6 || !strings.Contains(r.Damage[0].What, "not those that were written") {
		t.Fatalf("%+v, %v", r.Damage, err)
	}
}

func blockLength(b []byte) int { return int(b[4]) | int(b[5])<<8 }

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}

func cut(t *testing.T, path string, n int64) {
	t.Helper()
	info, err := os.Stat(path)
	if err == nil {
		err = os.Truncate(path, info.Size()-n)
	}
	if err != nil {
		t.Fatal(err)
	}
}

func firstOf(t *testing.T, path string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(strings.TrimSuffix(filepath.Base(path), ".seg"), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// An append that finds no space leaves nothing, and goes when there is space.
func TestL6_NoSpace(t *testing.T) {
	root := smallDisk(t)
	j := open(t, root, journal.Options{}, journal.Anchor{})
	total, full := 0, false
	for range 10_000 {
		if err := j.Append([]byte(strconv.Itoa(total+50)), batch(total, 50)); err != nil {
			full = true
			break
		}
		total += 50
	}
	if !full {
		t.Fatal("the disk never was full")
	}
	check(t, all(t, j, 0, 1000, 1<<16), 1, total)
	freeDisk(t, root)
	if err := j.Append([]byte(strconv.Itoa(total+50)), batch(total, 50)); err != nil {
		t.Fatal(err)
	}
	check(t, all(t, j, 0, 1000, 1<<16), 1, total+50)
	if r, err := j.Verify(j.Anchor()); err != nil || len(r.Damage) > 0 {
		t.Fatalf("%+v, %v", r, err)
	}
}

func BenchmarkAppend(b *testing.B) {
	j := open(b, b.TempDir(), journal.Options{}, journal.Anchor{})
	line := []byte("[2026-06-01T04:17:05.415+00:00] AUDIT_RPCS: [slurmctld-primary:6817(fd:18)] msg_type=REQUEST_SUBMIT_BATCH_JOB uid=1000 client=[10.0.1.63:46356] protocol=11264\n")
	entries := make([]journal.Entry, 6000)
	for k := range entries {
		entries[k] = journal.Entry{Time: 1, Level: "info", Release: "26.05.5", Text: line}
	}
	b.SetBytes(int64(len(line)))
	b.ReportAllocs()
	for n := 0; n < b.N; n += len(entries) {
		if err := j.Append(nil, entries[:min(len(entries), b.N-n)]); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkRead(b *testing.B) {
	j := open(b, b.TempDir(), journal.Options{}, journal.Anchor{})
	line := []byte("[2026-06-01T04:17:05.415+00:00] AUDIT_RPCS: [slurmctld-primary:6817(fd:18)] msg_type=REQUEST_SUBMIT_BATCH_JOB uid=1000 client=[10.0.1.63:46356] protocol=11264\n")
	entries := make([]journal.Entry, 6000)
	for k := range entries {
		entries[k] = journal.Entry{Time: 1, Level: "info", Release: "26.05.5", Text: line}
	}
	for range 20 {
		if err := j.Append(nil, entries); err != nil {
			b.Fatal(err)
		}
	}
	b.SetBytes(int64(len(line)))
	b.ReportAllocs()
	b.ResetTimer()
	var after int64
	for n := 0; n < b.N; {
		got, err := j.Read(after, 10_000, 4<<20)
		if err != nil {
			b.Fatal(err)
		}
		n += len(got)
		if after = 0; len(got) > 0 {
			after = got[len(got)-1].Seq
		}
	}
}

// A bound that is smaller than segments usually are is kept too.
func TestSmallBound(t *testing.T) {
	const most = 64 << 10
	j, err := journal.Open(t.TempDir(), journal.Key{Cluster: "c", LogType: "t", LogName: "n"}, journal.Options{MaxBytes: most}, journal.Anchor{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = j.Close() })
	text := bytes.Repeat([]byte("x"), 1000)
	for range 200 {
		if err := j.Append(nil, []journal.Entry{{Text: text}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := j.Trim(time.Now(), func(journal.Anchor) error { return nil }); err != nil {
		t.Fatal(err)
	}
	if got := j.Bytes(); got > most || got < most/2 {
		t.Errorf("it takes %d bytes, at most %d are allowed", got, most)
	}
}

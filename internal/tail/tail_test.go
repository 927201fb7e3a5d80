package tail_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"github.com/openpcs/openpcs/internal/tail"
)

const name = "slurmctld.log"

// world is a daemon that writes a log, what rotates it, and a reader.
type world struct {
	t     testing.TB
	dir   string
	log   *os.File
	lines int
	got   []string
	tail  *tail.Tail
	place *tail.Place // as the reader noted it
	lost  bool
}

func newWorld(t testing.TB) *world {
	t.Helper()
	dir, err := os.MkdirTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, dir: dir}
	t.Cleanup(func() {
		if w.log != nil {
			_ = w.log.Close()
		}
	})
	w.reopen()
	w.restart()
	return w
}

func (w *world) path(file string) string { return filepath.Join(w.dir, file) }

func (w *world) check(errs ...error) {
	w.t.Helper()
	if err := errors.Join(errs...); err != nil {
		w.t.Fatal(err)
	}
}

// reopen is what a daemon does on SIGUSR2.
func (w *world) reopen() {
	w.t.Helper()
	if w.log != nil {
		w.check(w.log.Close())
	}
	f, err := os.OpenFile(w.path(name), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	w.check(err)
	w.log = f
}

func (w *world) write(n int) {
	w.t.Helper()
	var b bytes.Buffer
	for range n {
		w.lines++
		fmt.Fprintf(&b, "[2026-11-30T19:36:17.%03d+00:00] line %d\n", w.lines%1000, w.lines)
	}
	_, err := w.log.Write(b.Bytes())
	w.check(err)
}

// shift makes place for name.1.
func (w *world) shift() {
	w.t.Helper()
	for n := 9; n > 0; n-- {
		from := w.path(fmt.Sprintf("%s.%d", name, n))
		if _, err := os.Stat(from); err == nil {
			w.check(os.Rename(from, w.path(fmt.Sprintf("%s.%d", name, n+1))))
		}
	}
}

func (w *world) rename() {
	w.t.Helper()
	w.shift()
	w.check(os.Rename(w.path(name), w.path(name+".1")))
}

func (w *world) copy() {
	w.t.Helper()
	w.shift()
	text, err := os.ReadFile(w.path(name))
	w.check(err, os.WriteFile(w.path(name+".1"), text, 0o600))
}

func (w *world) truncate() { w.t.Helper(); w.check(os.Truncate(w.path(name), 0)) }

// restart is a new reader that goes on where the former noted its place.
func (w *world) restart() { w.tail = tail.New(tail.Dir(w.dir), name, w.place) }

// step reads once and takes some of the whole lines.
func (w *world) step(limit int) bool {
	w.t.Helper()
	more, err := w.tail.Fill(w.t.Context())
	w.check(err)
	for range limit {
		line, _, ok := bytes.Cut(w.tail.Bytes(), []byte("\n"))
		if !ok {
			break
		}
		w.got = append(w.got, string(line))
		w.tail.Consume(len(line) + 1)
		more = true
	}
	if rest := w.tail.Bytes(); w.tail.Final() && len(rest) > 0 && !bytes.Contains(rest, []byte("\n")) {
		w.got = append(w.got, string(rest))
		w.tail.Consume(len(rest))
		more = true
	}
	place := w.tail.Place()
	w.place = &place
	w.lost = w.tail.Lost() || w.lost
	return more
}

// drain reads all there is.
func (w *world) drain() {
	w.t.Helper()
	for w.step(1 << 20) {
	}
}

// finish drains, and checks that each line was there once, in order.
func (w *world) finish() {
	w.t.Helper()
	w.drain()
	for k, line := range w.got {
		if want := fmt.Sprintf(" line %d", k+1); !strings.HasSuffix(line, want) {
			w.t.Fatalf("line %d is %q of %d", k+1, line, w.lines)
		}
	}
	if len(w.got) != w.lines || w.lost {
		w.t.Fatalf("got %d lines of %d, something lost: %v", len(w.got), w.lines, w.lost)
	}
}

// L2: three rotations while nobody read.
func TestL2_RotationsWhileStopped(t *testing.T) {
	w := newWorld(t)
	w.write(10)
	w.step(4)
	for range 3 {
		w.write(5)
		w.rename()
		w.write(2) // the daemon has not been told yet
		w.reopen()
		w.write(5)
	}
	w.restart()
	w.finish()
}

// L3: the log is copied and truncated, while it is read and while it is not.
func TestL3_CopyAndTruncate(t *testing.T) {
	w := newWorld(t)
	for n := range 6 {
		w.write(20)
		if n%2 == 0 {
			w.drain()
		}
		w.write(20) // what nobody has read yet
		w.copy()
		if n == 3 {
			w.restart() // between the two
			w.step(3)
		}
		w.truncate()
		w.write(200 * (n + 1)) // more than before: the size does not tell
		if n%3 == 0 {
			w.restart()
		}
		w.step(30)
	}
	w.finish()
	// Behind in a rotated file while the log is copied: the copy is not read before
	// the log, and the log again.
	w.write(20)
	w.step(3)
	w.rename()
	w.reopen()
	w.write(20)
	w.copy()
	w.drain()
	w.write(20)
	w.truncate()
	w.write(5)
	w.lines -= 20 // written between the copy and the truncation: gone
	w.drain()
	if n := len(w.got); n != w.lines {
		t.Errorf("got %d lines, want %d", n, w.lines)
	}
}

// L5: what a rotated file is compressed to is not read again.
func TestL5_CompressedFiles(t *testing.T) {
	w := newWorld(t)
	w.write(10)
	w.drain()
	w.rename()
	w.reopen()
	w.write(10)
	w.drain()
	w.check(os.Rename(w.path(name+".1"), w.path(name+".2.gz")))
	w.write(10)
	w.restart()
	w.finish()
	// One that is newer than the file that is read.
	w.write(10)
	w.step(4)
	w.rename()
	w.check(os.WriteFile(w.path(name+".9.gz"), []byte("no line\n"), 0o600))
	w.reopen()
	w.write(10)
	w.finish()
}

// L15: a pipe in the folder holds nobody up, and a file is never locked.
func TestL15_OnlyPlainFilesAreOpened(t *testing.T) {
	w := newWorld(t)
	w.check(unix.Mkfifo(w.path(name+".1"), 0o600), os.Symlink("/etc/passwd", w.path(name+".2")))
	w.write(10)
	w.finish()
	var st unix.Stat_t
	w.check(unix.Lstat(w.path(name+".1"), &st))
	buf := make([]byte, 10)
	if n, err := tail.Dir(w.dir).ReadAt(t.Context(), tail.File{Name: name + ".1", Inode: st.Ino}, buf, 0); err == nil || n > 0 {
		t.Fatalf("%d bytes were read of a pipe: %v", n, err)
	}
}

func TestWhateverHappensEachLineIsReadOnce(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(t)
		told := true // the daemon writes to the file of that name
		for range rapid.IntRange(1, 40).Draw(rt, "steps") {
			switch op := rapid.SampledFrom([]string{"write", "write", "step", "step", "drain", "rename", "reopen", "copy", "restart"}).Draw(rt, "op"); op {
			case "write":
				w.write(rapid.IntRange(1, 30).Draw(rt, "n"))
			case "step":
				w.step(rapid.IntRange(0, 10).Draw(rt, "n"))
			case "drain":
				w.drain()
			case "rename":
				if told {
					w.rename()
					told = false
				}
			case "reopen":
				w.reopen()
				told = true
			case "copy":
				// Not of what nobody has seen the beginning of: see the bound.
				if told && w.seen() {
					w.copy()
					if rapid.Bool().Draw(rt, "read between") {
						w.step(3)
					}
					w.truncate()
				}
			case "restart":
				w.restart()
			}
		}
		w.reopen()
		w.write(1)
		w.finish()
	})
}

// seen says that the reader is not at the beginning of the log: what is written
// there, copied and truncated before it looks again is not known to be new. That
// is the bound of copying and truncating.
// A file that was removed while it was read leaves its inode to another log.
func TestInodeOfAnotherLog(t *testing.T) {
	w := newWorld(t)
	w.write(5)
	w.drain()
	w.check(os.Rename(w.path(name), w.path("slurmdbd.log")), os.WriteFile(w.path("slurmdbd.log"), bytes.Repeat([]byte("another log\n"), 100), 0o600))
	w.reopen()
	w.write(5)
	w.finish()
}

// The clock went back, and the file that was read is gone.
func TestClockGoesBack(t *testing.T) {
	w := newWorld(t)
	w.write(5)
	w.drain()
	w.check(os.Rename(w.path(name), w.path("away"))) // so that the inode is not free
	w.reopen()
	w.write(5)
	yesterday := time.Now().Add(-24 * time.Hour)
	w.check(os.Chtimes(w.path(name), yesterday, yesterday), os.Rename(w.path("away"), filepath.Join(t.TempDir(), "away")))
	w.drain()
	if len(w.got) != 10 {
		t.Errorf("got %d lines of 10", len(w.got))
	}
}

func (w *world) seen() bool {
	var st unix.Stat_t
	w.check(unix.Stat(w.path(name), &st))
	return st.Size > 0 && (w.place == nil || w.place.Inode != st.Ino || w.place.Offset > 0)
}

func TestWhatWasGoneIsSaid(t *testing.T) {
	w := newWorld(t)
	w.write(10)
	w.step(4)
	w.check(os.Remove(w.path(name)))
	w.reopen()
	w.write(3)
	w.restart()
	w.drain()
	if !w.lost || len(w.got) != 7 {
		t.Fatalf("lost: %v, got %d lines", w.lost, len(w.got))
	}
}

// Wait returns for what was written before it was called, and for what comes.
func TestWaitMissesNothing(t *testing.T) {
	w := newWorld(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var writer sync.WaitGroup
	writer.Add(1)
	w.drain()
	go func() {
		defer writer.Done()
		for range 20 {
			w.write(1)
		}
	}()
	for len(w.got) < 20 {
		w.check(w.tail.Wait(ctx))
		w.drain()
	}
	writer.Wait()
	w.finish()
}

// late is a folder in which something is written right before a look.
type late struct {
	tail.Dir
	before func()
}

func (l *late) Files(ctx context.Context, log string) ([]tail.File, error) {
	if l.before != nil {
		l.before()
		l.before = nil
	}
	return l.Dir.Files(ctx, log)
}

// Between a read that finds the end and the look at the folder the log grows:
// Wait would take that for known.
func TestWhatComesBeforeTheLookIsRead(t *testing.T) {
	w := newWorld(t)
	w.write(5)
	folder := &late{Dir: tail.Dir(w.dir)}
	w.tail = tail.New(folder, name, nil)
	w.step(10)
	folder.before = func() { w.write(5) }
	w.drain()
	if len(w.got) != 10 {
		t.Fatalf("got %d lines before waiting, want 10", len(w.got))
	}
}

func BenchmarkTail(b *testing.B) {
	w := newWorld(b)
	line := []byte("[2026-06-01T04:17:05.415+00:00] AUDIT_RPCS: [slurmctld-primary:6817(fd:18)] msg_type=REQUEST_SUBMIT_BATCH_JOB uid=1000 client=[10.0.1.63:46356] protocol=11264\n")
	_, err := io.Copy(w.log, bytes.NewReader(bytes.Repeat(line, 200_000)))
	w.check(err)
	b.SetBytes(int64(len(line)))
	b.ReportAllocs()
	b.ResetTimer()
	for n := 0; n < b.N; {
		more, err := w.tail.Fill(b.Context())
		w.check(err)
		if !more {
			w.place = nil
			w.restart()
			continue
		}
		whole := bytes.LastIndexByte(w.tail.Bytes(), '\n') + 1
		n += whole / len(line)
		w.tail.Consume(whole)
	}
}

func TestSame(t *testing.T) {
	a := []tail.File{{Name: "a", Inode: 1, Size: 3}}
	b := slices.Clone(a)
	b[0].ModTime = time.Now()
	if !tail.Same(a, b) {
		t.Error("a time alone is no change")
	}
	b[0].Size++
	if tail.Same(a, b) {
		t.Error("a size is a change")
	}
}

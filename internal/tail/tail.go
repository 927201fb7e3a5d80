// Package tail reads a log as it grows, through all that happens to log files:
// rotation by renaming, by copying and truncating, truncation alone, and
// restarts of whoever writes or reads. It gives bytes and says where in the
// files they are, so that a reader that notes the place of what it has done goes
// on exactly there. What the bytes mean is not its matter.
package tail

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"
)

// Place is where in a log a reader is. A file is known again by its first bytes
// and by those before the place: the inode alone is given to the next file when
// one is removed, and stays when a file is truncated.
type Place struct {
	Inode   uint64    `json:"inode"`
	ModTime time.Time `json:"modTime"` // as it was seen last; files of before are done with
	Head    int       `json:"head"`    // length of the first bytes
	HeadSum uint64    `json:"headSum"`
	Offset  int64     `json:"offset"`
	TailSum uint64    `json:"tailSum"` // of up to 64 bytes before the offset
}

const (
	headBytes = 256
	tailBytes = 64
	// chunk is how much is read at a time.
	chunk = 1 << 20
)

// Tail follows one log. It is for one goroutine.
type Tail struct {
	folder Folder
	name   string
	from   *Place // to begin at, until it was found

	file  File // that is read; inode 0: none yet
	head  []byte
	buf   []byte // up to tailBytes that were consumed, then what was not
	over  int    // how many of them were consumed
	off   int64  // of buf[over] in the file
	final bool   // the file gets nothing more, and all of it is in buf
	anew  bool   // after final, the same file begins anew: it was truncated
	lost  bool
	seen  []File // the folder, as it was looked at last
}

// New follows the log of that name from a place, or from its oldest file.
func New(folder Folder, name string, from *Place) *Tail {
	return &Tail{folder: folder, name: name, from: from}
}

// Bytes is what was read and not consumed.
func (t *Tail) Bytes() []byte { return t.buf[t.over:] }

// Final says that nothing follows Bytes in their file: an unfinished line
// stays so.
func (t *Tail) Final() bool { return t.final }

// Lost says, once, that something was gone before it was read.
func (t *Tail) Lost() bool {
	lost := t.lost
	t.lost = false
	return lost
}

// Inode tells the files apart while they are read.
func (t *Tail) Inode() uint64 { return t.file.Inode }

// Consume takes n of Bytes as done.
func (t *Tail) Consume(n int) {
	if want := headBytes - len(t.head); want > 0 && int64(len(t.head)) == t.off {
		t.head = append(t.head, t.buf[t.over:t.over+min(n, want)]...)
	}
	t.over += n
	t.off += int64(n)
	if drop := t.over - tailBytes; drop > 0 && (t.over == len(t.buf) || t.over > chunk) {
		t.buf = append(t.buf[:0], t.buf[drop:]...)
		t.over = tailBytes
	}
}

// Place is behind what was consumed.
func (t *Tail) Place() Place { return t.PlaceAt(0) }

// PlaceAt is behind n of Bytes.
func (t *Tail) PlaceAt(n int) Place {
	if t.file.Inode == 0 && t.from != nil {
		return *t.from
	}
	head, before := t.head, t.buf[:t.over+n]
	if want := headBytes - len(head); want > 0 && int64(len(head)) == t.off {
		head = append(head[:len(head):len(head)], t.buf[t.over:t.over+min(n, want)]...)
	}
	return Place{
		Inode: t.file.Inode, ModTime: t.file.ModTime, Head: len(head), HeadSum: sum(head),
		Offset: t.off + int64(n), TailSum: sum(before[max(0, len(before)-tailBytes):]),
	}
}

// sum is FNV-1a, of 64 bits.
func sum(p []byte) uint64 {
	h := uint64(14695981039346656037)
	for _, b := range p {
		h = (h ^ uint64(b)) * 1099511628211
	}
	return h
}

// Fill reads on: more of the file, or the next one when this one is final and
// was consumed. It returns false when there is nothing at present: then Wait.
func (t *Tail) Fill(ctx context.Context) (more bool, err error) {
	if t.file.Inode == 0 {
		if more, err := t.begin(ctx); err != nil || !more {
			return false, err
		}
	}
	for {
		if t.final {
			if len(t.Bytes()) > 0 {
				return false, nil
			}
			if more, err := t.next(ctx); err != nil || !more {
				return false, err
			}
		}
		n, err := t.read(ctx)
		if err != nil || n > 0 {
			return n > 0, err
		}
		if t.final {
			if len(t.Bytes()) > 0 {
				return true, nil // what is there is known to be all
			}
			continue
		}
		// At the end. Look at the folder, then at the end again: what was written
		// to a file before the next one was begun must not be missed.
		newer, err := t.newer(ctx)
		if err != nil {
			return false, err
		}
		if !newer {
			if t.file.Size > t.end() { // it grew before the look, and Wait would not know
				if n, err = t.read(ctx); err != nil || n > 0 || t.final {
					return n > 0 || t.final, err
				}
			}
			return false, nil
		}
		if n, err = t.read(ctx); err != nil || n > 0 {
			return n > 0, err
		}
		t.final = true
		if len(t.Bytes()) > 0 {
			return true, nil
		}
	}
}

// end is the place in the file up to which it was read.
func (t *Tail) end() int64 { return t.off + int64(len(t.buf)-t.over) }

// Find looks for the place to begin at, and says whether it is still there.
// Without one it is true.
func (t *Tail) Find(ctx context.Context) (bool, error) {
	if t.file.Inode == 0 {
		if _, err := t.begin(ctx); err != nil {
			return false, err
		}
	}
	return !t.Lost(), nil
}

// Wait returns when the folder has changed since the last look.
func (t *Tail) Wait(ctx context.Context) error {
	files, err := t.folder.Wait(ctx, t.name, t.seen)
	if err == nil {
		t.look(files)
	}
	return err
}

// look takes a list of the files over.
func (t *Tail) look(files []File) {
	t.seen = files
	for _, f := range files {
		if f.Inode == t.file.Inode {
			t.file = f
		}
	}
}

func (t *Tail) list(ctx context.Context) ([]File, error) {
	files, err := t.folder.Files(ctx, t.name)
	if err != nil {
		return nil, err
	}
	t.look(files)
	return generations(files, t.name), nil
}

// newer says whether the log goes on in another file: one that is written to
// already, as some programs make it before the daemon is told.
func (t *Tail) newer(ctx context.Context) (bool, error) {
	all, err := t.list(ctx)
	if err != nil || len(all) == 0 {
		return false, err
	}
	live := all[len(all)-1]
	at := slices.IndexFunc(all, func(f File) bool { return f.Inode == t.file.Inode })
	switch {
	case at < 0:
		return live.Size > 0 && t.follows(live), nil
	case at == len(all)-1:
		return false, nil
	default:
		return live.Name != t.name || live.Size > 0 || at < len(all)-2, nil
	}
}

// read appends what the file has after buf, having checked that what is before
// is still the same.
func (t *Tail) read(ctx context.Context) (int, error) {
	back := min(len(t.buf), tailBytes)
	at := t.end() - int64(back)
	t.buf = slices.Grow(t.buf, back+chunk)
	p := t.buf[len(t.buf) : len(t.buf)+back+chunk]
	n, err := t.folder.ReadAt(ctx, t.file, p, at)
	if errors.Is(err, fs.ErrNotExist) {
		// Removed, with what was not read of it.
		t.lost, t.final = true, true
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	known := t.buf[len(t.buf)-back:]
	if n < back || string(p[:back]) != string(known) {
		return 0, t.truncated(ctx)
	}
	copy(t.buf[len(t.buf):cap(t.buf)], p[back:n])
	t.buf = t.buf[:len(t.buf)+n-back]
	return n - back, nil
}

// truncated goes on in the copy that was made of the file before, if there is
// one, or at its new beginning.
func (t *Tail) truncated(ctx context.Context) error {
	place, size := t.Place(), t.file.Size
	all, err := t.list(ctx)
	if err != nil {
		return err
	}
	there := false
	for _, f := range all {
		if f.Inode == place.Inode {
			there = true
			continue
		}
		found, err := t.isAt(ctx, f, place)
		if err != nil {
			return err
		}
		if found {
			// What was read and not consumed comes again.
			t.file, t.final, t.buf = f, false, t.buf[:t.over]
			return nil
		}
	}
	// A log that is emptied by hand leaves no copy; what was not read is gone.
	t.lost = t.lost || size > t.end()
	// Where no file of the log has the inode, the file was removed, and another log
	// has its inode by now.
	t.final, t.anew = true, there
	return nil
}

// open begins a file.
func (t *Tail) open(f File) {
	t.file, t.head, t.buf, t.over, t.off, t.final, t.anew = f, t.head[:0], t.buf[:0], 0, 0, false, false
}

// next begins the file after the one that is final.
func (t *Tail) next(ctx context.Context) (bool, error) {
	all, err := t.list(ctx)
	if err != nil {
		return false, err
	}
	if t.anew {
		t.open(t.file)
		return true, nil
	}
	at := slices.IndexFunc(all, func(f File) bool { return f.Inode == t.file.Inode })
	for k, f := range all {
		if at >= 0 && k <= at || at < 0 && !t.follows(f) {
			continue
		}
		return t.first(ctx, all[k:])
	}
	return false, nil
}

// follows says whether a file is a later one than that which is read, and is gone:
// the one that is written to is, whatever the clock says.
func (t *Tail) follows(f File) bool {
	return f.Name == t.name || !f.ModTime.Before(t.file.ModTime)
}

// first begins the first of the files that is not a copy of the newest one: that
// one is not truncated yet, and will be read from.
func (t *Tail) first(ctx context.Context, files []File) (bool, error) {
	live := files[len(files)-1]
	head, err := t.beginning(ctx, live)
	if err != nil {
		return false, err
	}
	for _, f := range files[:len(files)-1] {
		other, err := t.beginning(ctx, f)
		if err != nil {
			return false, err
		}
		if len(head) == 0 || string(head) != string(other) {
			t.open(f)
			return true, nil
		}
	}
	t.open(live)
	return true, nil
}

func (t *Tail) beginning(ctx context.Context, f File) ([]byte, error) {
	buf := make([]byte, headBytes)
	n, err := t.folder.ReadAt(ctx, f, buf, 0)
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return buf[:n], err
}

// begin finds the file to begin with.
func (t *Tail) begin(ctx context.Context) (bool, error) {
	all, err := t.list(ctx)
	if err != nil || len(all) == 0 {
		return false, err
	}
	if t.from == nil {
		return t.first(ctx, all)
	}
	// The file itself first, as copies of it have the same beginning.
	slices.SortStableFunc(all, func(a, b File) int {
		switch {
		case a.Inode == b.Inode:
			return 0
		case a.Inode == t.from.Inode:
			return -1
		case b.Inode == t.from.Inode:
			return 1
		}
		return 0
	})
	for _, f := range all {
		found, err := t.isAt(ctx, f, *t.from)
		if err != nil {
			return false, err
		}
		if found {
			return true, t.resume(ctx, f, *t.from)
		}
	}
	t.lost = t.from.Offset > 0
	all = generations(all, t.name)
	for k, f := range all {
		if !f.ModTime.Before(t.from.ModTime) || k == len(all)-1 {
			return t.first(ctx, all[k:])
		}
	}
	return false, nil
}

// isAt says whether a file is the one of a place, or a copy of it.
func (t *Tail) isAt(ctx context.Context, f File, p Place) (bool, error) {
	if p.Offset == 0 {
		return f.Inode == p.Inode, nil
	}
	if f.Size < p.Offset {
		return false, nil
	}
	for _, part := range []struct {
		at  int64
		n   int
		sum uint64
	}{{0, p.Head, p.HeadSum}, {max(0, p.Offset-tailBytes), int(min(p.Offset, tailBytes)), p.TailSum}} {
		buf := make([]byte, part.n)
		n, err := t.folder.ReadAt(ctx, f, buf, part.at)
		if errors.Is(err, fs.ErrNotExist) {
			return false, nil
		}
		if err != nil || n < part.n || sum(buf) != part.sum {
			return false, err
		}
	}
	return true, nil
}

// resume goes on in a file at a place.
func (t *Tail) resume(ctx context.Context, f File, p Place) error {
	head := make([]byte, min(p.Offset, headBytes))
	before := make([]byte, min(p.Offset, tailBytes))
	for _, part := range []struct {
		buf []byte
		at  int64
	}{{head, 0}, {before, p.Offset - int64(len(before))}} {
		n, err := t.folder.ReadAt(ctx, f, part.buf, part.at)
		if err == nil && n < len(part.buf) {
			err = fs.ErrNotExist
		}
		if err != nil {
			return fmt.Errorf("go on in the log %s: %w", t.name, err)
		}
	}
	t.open(f)
	t.head, t.buf, t.over, t.off = head, before, len(before), p.Offset
	return nil
}

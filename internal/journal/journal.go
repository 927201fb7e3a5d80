// Package journal keeps the records of one log on the control plane's disk:
// an append-only sequence of entries, numbered from 1, in segments of bounded
// size. Entries are written in blocks. Each block says up to which place of its
// source it goes, so that whoever fills the journal goes on exactly there after
// a crash, and it has the hash of the block before, so that a record that was
// changed or removed is found. It knows neither what a record means nor where
// it comes from or goes to.
package journal

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Entry is one record of a log.
type Entry struct {
	Seq     int64  // place in the journal, from 1, without gaps
	Time    int64  // of the record, ms since the epoch, UTC
	Level   string // info, error, debug, ... lower case
	Release string // of Slurm that wrote it, such as 26.05.5
	// Text is, for scheduler logs, the message as the daemon wrote it, with its
	// "[time] " prefix, continuation lines and final newline; for job
	// completions the JSON object of the record's "fields".
	Text []byte
}

// Key says which log of which cluster a journal is.
type Key struct{ Cluster, LogType, LogName string }

func (k Key) String() string { return k.Cluster + "/" + k.LogType + "/" + k.LogName }

// Dir is where the journal of a key is below a folder of journals.
func (k Key) Dir(root string) string { return filepath.Join(root, k.Cluster, k.LogType, k.LogName) }

// Hash is the hash of a block, which covers the hash of the block before it.
type Hash [32]byte

func (h Hash) String() string { return hex.EncodeToString(h[:]) }

// MarshalText makes a hash readable where it is kept.
func (h Hash) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

// UnmarshalText reads what MarshalText wrote.
func (h *Hash) UnmarshalText(text []byte) error {
	if n, err := hex.Decode(h[:], text); err != nil || n != len(h) || len(text) != 2*len(h) {
		return fmt.Errorf("read a hash: %q is not %d hexadecimal digits", text, 2*len(h))
	}
	return nil
}

// Mark is a place in the chain: after entry Seq the chain has this hash.
type Mark struct {
	Seq  int64 `json:"seq"`
	Hash Hash  `json:"hash"`
}

// Anchor is what is kept of a journal outside of it: from where to where it
// goes. With it Verify also finds an end, or a beginning, that was cut off.
type Anchor struct {
	Base Mark `json:"base"` // of what is no longer kept
	Head Mark `json:"head"`
}

// Options bound a journal.
type Options struct {
	SegmentBytes int64         // a segment that is larger gets no further block; 0: 16 MiB, or a quarter of MaxBytes
	MaxBytes     int64         // of all segments; the oldest go; 0: no bound
	MaxAge       time.Duration // of a segment's newest entry, as it was written; 0: no bound
}

const defaultSegment = 16 << 20

// maxPlace bounds the place of a block in bytes.
const maxPlace = 1 << 10

// segment is one file, named by its first entry.
type segment struct {
	first int64 // of its entries, also of the next one if it has none
	path  string
	size  int64 // of its whole blocks
	at    time.Time
}

// Journal is one log. One goroutine appends; any number reads.
type Journal struct {
	key  Key
	dir  string
	opts Options

	mu       sync.Mutex
	segments []segment
	last     int64
	head     Hash
	base     Mark
	place    []byte
	// noted is the anchor as it was given or kept last; unmet says that its head
	// is not in the chain: what was there was cut off or is another one.
	noted   Anchor
	unmet   bool
	cut     int64 // bytes, at opening
	changed chan struct{}
	spots   []spot // where readers are, newest last

	// The appending goroutine's alone.
	file *os.File // of the last segment
	buf  []byte
}

// Open opens the journal of a key below root, or begins one. What a crash left
// of a block that was being written is cut off. Segments before the anchor's
// base, which a crash kept from being removed, are removed.
func Open(root string, key Key, opts Options, anchor Anchor) (*Journal, error) {
	if opts.SegmentBytes == 0 {
		opts.SegmentBytes = defaultSegment
		if opts.MaxBytes > 0 {
			// The one that is written to is never trimmed, and must not be more than all.
			opts.SegmentBytes = min(defaultSegment, opts.MaxBytes/4)
		}
	}
	j := &Journal{key: key, dir: key.Dir(root), opts: opts, changed: make(chan struct{})}
	if err := j.open(anchor); err != nil {
		return nil, fmt.Errorf("open the journal %s: %w", key, err)
	}
	return j, nil
}

func (j *Journal) open(anchor Anchor) error {
	if err := os.MkdirAll(j.dir, 0o700); err != nil {
		return err
	}
	segments, err := list(j.dir)
	if err != nil {
		return err
	}
	for len(segments) > 1 && segments[1].first <= anchor.Base.Seq+1 {
		if err := os.Remove(segments[0].path); err != nil {
			return err
		}
		segments = segments[1:]
	}
	j.segments, j.noted = segments, anchor
	// The newest segment can be without a block, if the crash came right then.
	for n := len(segments) - 1; n >= 0; n-- {
		s := &j.segments[n]
		tail, err := lastBlock(s.path, anchor.Head)
		if err != nil {
			return err
		}
		j.cut += s.size - tail.end
		if tail.end == 0 {
			if err := os.Remove(s.path); err != nil {
				return err
			}
			j.segments = j.segments[:n]
			continue
		}
		if tail.end < s.size {
			if err := os.Truncate(s.path, tail.end); err != nil {
				return err
			}
			s.size = tail.end
		}
		j.last, j.head, j.place, j.unmet = tail.last, tail.hash, tail.place, !tail.met
		break
	}
	if len(j.segments) == 0 {
		// If something was there it is gone: the numbers go on.
		j.last, j.head, j.base = anchor.Head.Seq, anchor.Head.Hash, anchor.Head
		return nil
	}
	head, err := firstBlock(j.segments[0].path)
	if err != nil {
		return err
	}
	j.base = Mark{j.segments[0].first - 1, head}
	if anchor == (Anchor{}) {
		j.noted.Base, j.unmet = j.base, false
	}
	for n := len(j.segments) - 2; n >= 0 && j.unmet; n-- {
		tail, err := lastBlock(j.segments[n].path, anchor.Head)
		if err != nil {
			return err
		}
		j.unmet = !tail.met
	}
	if j.unmet && j.base == anchor.Head {
		j.unmet = false
	}
	return nil
}

// list returns the segments of a folder, oldest first.
func list(dir string) ([]segment, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var out []segment
	for _, e := range entries {
		number, ok := strings.CutSuffix(e.Name(), suffix)
		first, err := strconv.ParseInt(number, 10, 64)
		if !ok || err != nil {
			continue
		}
		info, err := e.Info()
		if err != nil {
			return nil, err
		}
		out = append(out, segment{first, filepath.Join(dir, e.Name()), info.Size(), info.ModTime()})
	}
	slices.SortFunc(out, func(a, b segment) int { return int(min(max(a.first-b.first, -1), 1)) })
	return out, nil
}

const suffix = ".seg"

func (j *Journal) path(first int64) string {
	return filepath.Join(j.dir, fmt.Sprintf("%020d%s", first, suffix))
}

// Key says which log it is.
func (j *Journal) Key() Key { return j.key }

// First is the oldest entry that is kept, Last()+1 if none is.
func (j *Journal) First() int64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.base.Seq + 1
}

// Last is the newest entry; 0: there was none yet.
func (j *Journal) Last() int64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.last
}

// Since is a place behind which all is that was written at a time or later.
func (j *Journal) Since(at time.Time) int64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, s := range j.segments {
		if !s.at.Before(at) {
			return s.first - 1
		}
	}
	return j.last
}

// Place is up to where the source was read for what is in the journal, as it
// was given to Append; nil if nothing was.
func (j *Journal) Place() []byte {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.place)
}

// Anchor is what to keep of the journal elsewhere. The head of an anchor that the
// journal was opened with and did not have stays for good, so that Verify goes
// on to say so.
func (j *Journal) Anchor() Anchor {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.anchor()
}

func (j *Journal) anchor() Anchor {
	if j.unmet {
		return j.noted
	}
	return Anchor{Base: j.noted.Base, Head: Mark{j.last, j.head}}
}

// Cut is how many bytes of a block that was not whole were cut off at opening.
func (j *Journal) Cut() int64 { return j.cut }

// Bytes is how much it takes on the disk.
func (j *Journal) Bytes() int64 {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.bytes()
}

func (j *Journal) bytes() (sum int64) {
	for _, s := range j.segments {
		sum += s.size
	}
	return sum
}

// Changed returns a channel that is closed at the next append.
func (j *Journal) Changed() <-chan struct{} {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.changed
}

// Trim removes the oldest segments, as far as size or age are over their
// bounds, but never the one that is written to. keep gets the anchor as it will
// be, and must make it durable first: else a verification would take what was
// removed here for cut off by somebody.
func (j *Journal) Trim(now time.Time, keep func(Anchor) error) error {
	j.mu.Lock()
	n, size := 0, j.bytes()
	for n < len(j.segments)-1 {
		s := j.segments[n]
		old := j.opts.MaxAge > 0 && now.Sub(s.at) > j.opts.MaxAge
		large := j.opts.MaxBytes > 0 && size > j.opts.MaxBytes
		if !old && !large {
			break
		}
		size -= s.size
		n++
	}
	if n == 0 {
		j.mu.Unlock()
		return nil
	}
	next, anchor := j.segments[n], j.anchor()
	j.mu.Unlock()
	hash, err := firstBlock(next.path)
	if err != nil {
		return fmt.Errorf("trim the journal %s: %w", j.key, err)
	}
	anchor.Base = Mark{next.first - 1, hash}
	if err := keep(anchor); err != nil {
		return fmt.Errorf("trim the journal %s: keep its new beginning: %w", j.key, err)
	}
	j.mu.Lock()
	gone := slices.Clone(j.segments[:n])
	j.segments = slices.Delete(j.segments, 0, n)
	j.base, j.noted = anchor.Base, anchor
	j.mu.Unlock()
	var errs []error
	for _, s := range gone {
		if err := os.Remove(s.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, fmt.Errorf("trim the journal %s: %w", j.key, err))
		}
	}
	return errors.Join(errs...)
}

// Newest is when the newest segment was written to last.
func (j *Journal) Newest() time.Time {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.segments) == 0 {
		return time.Time{}
	}
	return j.segments[len(j.segments)-1].at
}

// Close closes its files. It must not be appended to any more.
func (j *Journal) Close() error {
	if j.file == nil {
		return nil
	}
	err := j.file.Close()
	j.file = nil
	return err
}

// Remove closes the journal and removes it from the disk. Reading finds nothing
// any more.
func (j *Journal) Remove() error {
	err := j.Close()
	j.mu.Lock()
	j.segments = nil
	j.base.Seq = j.last
	j.mu.Unlock()
	return errors.Join(err, os.RemoveAll(j.dir))
}

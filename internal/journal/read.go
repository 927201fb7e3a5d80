package journal

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"sort"
)

// spot is where a reader is: the block at this place has the entry after seq.
type spot struct {
	seq  int64
	path string
	at   int64
}

// maxSpots is how many readers find their way without a search: the deliveries
// of a log are three.
const maxSpots = 8

// Read returns entries after a place, up to maxEntries and up to about maxBytes
// of text, but at least one if there is one. None means that there is nothing
// new. A place that is no longer kept begins with the oldest. All of them are on
// the disk for good. A record that was changed on the disk is left out, and so
// is the rest of its block: Verify says so.
func (j *Journal) Read(after int64, maxEntries, maxBytes int) ([]Entry, error) {
	out, err := j.read(after, maxEntries, maxBytes)
	if err != nil {
		return nil, fmt.Errorf("read the journal %s: %w", j.key, err)
	}
	return out, nil
}

func (j *Journal) read(after int64, maxEntries, maxBytes int) (out []Entry, err error) {
	for len(out) == 0 {
		j.mu.Lock()
		after = max(after, j.base.Seq)
		if after >= j.last || len(j.segments) == 0 {
			j.mu.Unlock()
			return nil, nil
		}
		n := sort.Search(len(j.segments), func(k int) bool { return j.segments[k].first > after+1 }) - 1
		s := j.segments[max(n, 0)]
		final := n == len(j.segments)-1
		next := s.first
		if !final {
			next = j.segments[max(n, 0)+1].first
		}
		var at int64
		if k := slices.IndexFunc(j.spots, func(p spot) bool { return p.seq == after && p.path == s.path }); k >= 0 {
			at = j.spots[k].at
			j.spots = slices.Delete(j.spots, k, k+1)
		}
		j.mu.Unlock()
		var where int64
		out, where, err = readSegment(s, at, after, maxEntries, maxBytes)
		switch {
		case errors.Is(err, fs.ErrNotExist): // trimmed just now
			j.mu.Lock()
			kept := j.base.Seq >= s.first
			j.mu.Unlock()
			if !kept {
				return nil, err
			}
		case err != nil:
			return nil, err
		case len(out) > 0:
			j.mu.Lock()
			if len(j.spots) == maxSpots {
				j.spots = slices.Delete(j.spots, 0, 1)
			}
			j.spots = append(j.spots, spot{out[len(out)-1].Seq, s.path, where})
			j.mu.Unlock()
		case final: // what there would be cannot be read
			return nil, nil
		default:
			after = next - 1
		}
	}
	return out, nil
}

// readSegment reads entries of one segment from a block on; where is the block
// to go on with.
func readSegment(s segment, at, after int64, maxEntries, maxBytes int) (out []Entry, where int64, err error) {
	f, err := os.Open(s.path)
	if err != nil {
		return nil, 0, err
	}
	defer func() { _ = f.Close() }()
	if at == 0 {
		if at, err = seek(f, s, after); err != nil {
			return nil, 0, err
		}
	}
	// One buffer has all that is returned, as texts are parts of it.
	want := min(s.size-at, int64(max(maxBytes, 1))+MaxBlock)
	where = at
	sc := scanner{r: f, at: at, size: s.size, buf: make([]byte, 0, want)}
	if _, err := sc.fill(at, int(want)); err != nil {
		return nil, 0, err
	}
	size := 0
	for len(out) < maxEntries && (size < maxBytes || len(out) == 0) {
		if len(out) > 0 && !sc.buffered() {
			return out, sc.at, nil
		}
		h, block, blockAt, err := sc.next()
		if errors.Is(err, io.EOF) {
			return out, sc.at, nil
		}
		if err != nil {
			return nil, 0, err
		}
		where = blockAt
		if h.last() <= after {
			continue
		}
		if out == nil {
			out = make([]Entry, 0, min(maxEntries, h.count))
		}
		whole := true
		err = h.each(block, func(e Entry) bool {
			if e.Seq <= after {
				return true
			}
			if len(out) >= maxEntries || (size >= maxBytes && len(out) > 0) {
				whole = false
				return false
			}
			size += len(e.Text)
			out = append(out, e)
			return true
		})
		if err == nil && whole {
			where = sc.at
		}
		var changed *entryError
		if err != nil && !errors.As(err, &changed) && !errors.Is(err, errBlock) {
			return nil, 0, err
		}
	}
	return out, where, nil
}

// seek finds the block that has the entry after a place, or the first after it.
func seek(f *os.File, s segment, after int64) (int64, error) {
	sc := scanner{r: f, size: s.size}
	for {
		h, _, at, err := sc.next()
		if errors.Is(err, io.EOF) {
			return s.size, nil
		}
		if err != nil {
			return 0, err
		}
		if h.last() > after {
			return at, nil
		}
	}
}

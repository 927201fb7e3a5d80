package journal

import (
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Append adds entries, which get their numbers here, and says up to which place
// the source was read for them. It may add none: then only the place moves.
// When it returns nil, they are on the disk; when it returns an error, nothing
// of them is in the journal, and the same call can be made again. The texts may
// be used anew by the caller.
func (j *Journal) Append(place []byte, entries []Entry) error {
	if len(place) > maxPlace {
		return fmt.Errorf("append to the journal %s: a place of %d bytes, at most %d are allowed", j.key, len(place), maxPlace)
	}
	size := 0
	for k := range entries {
		size += Overhead + len(entries[k].Text)
	}
	if size > MaxBlock {
		return fmt.Errorf("append to the journal %s: %d bytes at once, at most %d are allowed", j.key, size, MaxBlock)
	}
	if err := j.append(place, entries); err != nil {
		return fmt.Errorf("append to the journal %s: %w", j.key, err)
	}
	return nil
}

// MaxBlock is how many bytes one call of Append takes: of texts, with Overhead
// for each.
const (
	MaxBlock = 2 << 20
	Overhead = entryFixed
)

func (j *Journal) append(place []byte, entries []Entry) error {
	j.mu.Lock()
	first, prev := j.last+1, j.head
	var current segment
	if n := len(j.segments); n > 0 {
		current = j.segments[n-1]
	}
	j.mu.Unlock()
	var err error
	if j.buf, err = appendBlock(j.buf[:0], first, prev, place, entries); err != nil {
		return err
	}
	// Segments are named by their first entry: one that has marks alone goes on.
	fresh := current.path == "" || (current.size >= j.opts.SegmentBytes && current.first < first)
	if fresh {
		current = segment{first: first, path: j.path(first)}
	}
	if fresh || j.file == nil {
		if err := j.Close(); err != nil {
			return err
		}
		if j.file, err = os.OpenFile(current.path, os.O_WRONLY|os.O_CREATE, 0o600); err != nil {
			return err
		}
		if fresh {
			if err := syncDir(j.dir); err != nil {
				return err
			}
		}
	}
	if err := j.write(current.size); err != nil {
		// What is there of the block is in the way of the next one. If it cannot
		// be cut off now, the next write is over it.
		_ = j.file.Truncate(current.size)
		_ = j.Close()
		return err
	}
	current.size += int64(len(j.buf))
	current.at = time.Now()

	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.segments) == 0 {
		j.base = Mark{first - 1, prev}
	}
	if fresh {
		j.segments = append(j.segments, current)
	} else {
		j.segments[len(j.segments)-1] = current
	}
	j.last = first + int64(len(entries)) - 1
	copy(j.head[:], j.buf[len(j.buf)-len(j.head):])
	j.place = append(j.place[:0], place...)
	if len(entries) > 0 {
		close(j.changed)
		j.changed = make(chan struct{})
	}
	return nil
}

func (j *Journal) write(at int64) error {
	if _, err := j.file.WriteAt(j.buf, at); err != nil {
		return err
	}
	for {
		err := unix.Fdatasync(int(j.file.Fd()))
		if err != unix.EINTR {
			return err
		}
	}
}

// syncDir makes the name of a new file durable.
func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = f.Sync()
	_ = f.Close()
	return err
}

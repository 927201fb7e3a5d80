package tail

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// File is one plain file of a folder.
type File struct {
	Name    string    `json:"name"`
	Inode   uint64    `json:"inode"`
	Size    int64     `json:"size"`
	ModTime time.Time `json:"modTime"`
}

// Folder is where log files are, which may be another machine.
type Folder interface {
	// Files lists the plain files whose names begin with that of a log, by name.
	Files(ctx context.Context, log string) ([]File, error)
	// ReadAt reads from a file, found by its inode, as far as there is anything:
	// 0 at its end. A file that is not there any more is fs.ErrNotExist.
	ReadAt(ctx context.Context, f File, p []byte, offset int64) (int, error)
	// Wait returns those files once they are others than were seen, in number,
	// name or size. It may return before.
	Wait(ctx context.Context, log string, seen []File) ([]File, error)
}

// Dir is a folder on this machine. Whatever is in it, writers are never held
// up: only plain files are opened, and only for reading.
type Dir string

// dirPause is between two looks at a folder that somebody waits for, settle how
// long what changed may gather: each look that finds something costs the reader
// a write to its disk.
const (
	dirPause = 100 * time.Millisecond
	settle   = 100 * time.Millisecond
)

// Files lists the plain files whose names begin with that of a log, by name.
func (d Dir) Files(_ context.Context, log string) ([]File, error) {
	entries, err := os.ReadDir(string(d))
	if err != nil {
		return nil, fmt.Errorf("list the logs: %w", err)
	}
	var out []File
	for _, e := range entries {
		if !e.Type().IsRegular() || !strings.HasPrefix(e.Name(), log) {
			continue
		}
		var st unix.Stat_t
		if unix.Lstat(filepath.Join(string(d), e.Name()), &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
			continue // renamed or removed just now
		}
		out = append(out, File{e.Name(), st.Ino, st.Size, time.Unix(st.Mtim.Unix()).UTC()})
	}
	return out, nil
}

// ReadAt reads from the file with that inode.
func (d Dir) ReadAt(ctx context.Context, f File, p []byte, offset int64) (int, error) {
	file, err := d.open(ctx, f)
	if err != nil {
		return 0, fmt.Errorf("read the log %s: %w", f.Name, err)
	}
	defer func() { _ = file.Close() }()
	n, err := file.ReadAt(p, offset)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return n, err
}

func (d Dir) open(ctx context.Context, f File) (*os.File, error) {
	names := []string{f.Name}
	for try := 0; ; try++ {
		for _, name := range names {
			// A pipe would hold its reader up, or whoever writes to it.
			file, err := os.OpenFile(filepath.Join(string(d), filepath.Base(name)), os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOFOLLOW, 0)
			if err != nil {
				continue
			}
			var st unix.Stat_t
			if unix.Fstat(int(file.Fd()), &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG && st.Ino == f.Inode {
				return file, nil
			}
			_ = file.Close()
		}
		if try == 2 {
			return nil, fs.ErrNotExist
		}
		// It may have been renamed.
		files, err := d.Files(ctx, "")
		if err != nil {
			return nil, err
		}
		names = nil
		for _, other := range files {
			if other.Inode == f.Inode {
				names = append(names, other.Name)
			}
		}
	}
}

// Wait looks until the files are others.
func (d Dir) Wait(ctx context.Context, log string, seen []File) ([]File, error) {
	changed := false
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-timer.C:
		}
		files, err := d.Files(ctx, log)
		if err != nil || changed {
			return files, err
		}
		if changed = !Same(files, seen); changed {
			timer.Reset(settle)
		} else {
			timer.Reset(dirPause)
		}
	}
}

// Same says whether two lists have the same files with the same sizes.
func Same(a, b []File) bool {
	return slices.EqualFunc(a, b, func(x, y File) bool { return x.Name == y.Name && x.Inode == y.Inode && x.Size == y.Size })
}

// compressed are the endings of what rotating programs make of old files.
var compressed = []string{".gz", ".xz", ".bz2", ".zst", ".lz4", ".Z"}

// generations returns the files that a log is made of, oldest first: the rotated
// ones, of which compressed ones are left out, as each was a plain file before,
// and the one that is written to.
func generations(files []File, name string) []File {
	var out []File
	for _, f := range files {
		rest, ok := strings.CutPrefix(f.Name, name)
		rotated := ok && (strings.HasPrefix(rest, ".") || strings.HasPrefix(rest, "-"))
		if (f.Name == name || rotated) && !slices.Contains(compressed, filepath.Ext(f.Name)) {
			out = append(out, f)
		}
	}
	slices.SortStableFunc(out, func(a, b File) int {
		if a.Name == name || b.Name == name {
			if a.Name == name {
				return 1
			}
			return -1
		}
		// log.2 is older than log.1, whatever the clock said.
		if x, y := number(a.Name, name), number(b.Name, name); x >= 0 && y >= 0 && x != y {
			return y - x
		}
		if c := a.ModTime.Compare(b.ModTime); c != 0 {
			return c
		}
		return strings.Compare(a.Name, b.Name)
	})
	return out
}

// number is the N of log.N, -1 if it is another name.
func number(file, log string) int {
	digits, ok := strings.CutPrefix(file, log+".")
	if !ok || digits == "" || len(digits) > 6 {
		return -1
	}
	n := 0
	for _, c := range []byte(digits) {
		if c < '0' || c > '9' {
			return -1
		}
		n = n*10 + int(c-'0')
	}
	return n
}

package image

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// infoFile, in an image's folder, holds its Built.
const infoFile = "image.json"

// List returns the images of a cache, the newest first. An empty dir means
// CacheDir().
func List(dir string) ([]Built, error) {
	if dir == "" {
		dir = CacheDir()
	}
	images := filepath.Join(dir, "images")
	names, err := os.ReadDir(images)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list images: %w", err)
	}
	var all []Built
	for _, n := range names {
		b, err := readBuilt(filepath.Join(images, n.Name()))
		if errors.Is(err, fs.ErrNotExist) {
			continue // not a whole image
		}
		if err != nil {
			return nil, err
		}
		all = append(all, b)
	}
	slices.SortFunc(all, func(a, b Built) int {
		return cmp.Or(b.CreatedAt.Compare(a.CreatedAt), cmp.Compare(a.Name, b.Name))
	})
	return all, nil
}

// Remove deletes an image from a cache; one that is not there is no error.
// The base root file system stays, for the next build.
func Remove(dir, name string) error {
	if dir == "" {
		dir = CacheDir()
	}
	if name == "" || name != filepath.Base(name) || strings.HasPrefix(name, ".") {
		return fmt.Errorf("remove image %q: not an image name", name)
	}
	if err := removeTree(filepath.Join(dir, "images", name)); err != nil {
		return fmt.Errorf("remove image %s: %w", name, err)
	}
	return nil
}

// cached finds an image of the recipe that has the key.
func (b *builder) cached(key string) (Built, bool) {
	all, err := List(b.CacheDir)
	if err != nil {
		return Built{}, false
	}
	i := slices.IndexFunc(all, func(have Built) bool { return have.Key == key && have.Version == b.version })
	if i < 0 {
		return Built{}, false
	}
	return all[i], true
}

// readBuilt reads the description of an image and checks that its files are
// there. The paths are those of the folder it is in now.
func readBuilt(dir string) (Built, error) {
	doc, err := os.ReadFile(filepath.Join(dir, infoFile))
	if err != nil {
		return Built{}, fmt.Errorf("read image: %w", err)
	}
	var b Built
	if err := json.Unmarshal(doc, &b); err != nil {
		return Built{}, fmt.Errorf("read image %s: %w", filepath.Base(dir), err)
	}
	b.MetadataPath = filepath.Join(dir, filepath.Base(b.MetadataPath))
	b.RootfsPath = filepath.Join(dir, filepath.Base(b.RootfsPath))
	for _, f := range []string{b.MetadataPath, b.RootfsPath} {
		if _, err := os.Stat(f); err != nil {
			return Built{}, fmt.Errorf("read image: %w", err)
		}
	}
	return b, nil
}

// lock makes the cache and takes it for one build, until the file is closed
// here and in all processes that have it.
func lock(ctx context.Context, opts Options) (*os.File, error) {
	if err := os.MkdirAll(opts.CacheDir, 0o755); err != nil {
		return nil, fmt.Errorf("make image cache: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(opts.CacheDir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock image cache: %w", err)
	}
	told := false
	for {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			f.Close()
			return nil, fmt.Errorf("lock image cache: %w", err)
		}
		if !told {
			opts.Progress("waiting for another build in " + opts.CacheDir)
			told = true
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, fmt.Errorf("lock image cache: %w", ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// replaceTree moves a folder to its place. What is there already goes to where
// the folder came from, to be removed with the rest.
func replaceTree(from, to string) error {
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	if err := os.Rename(to, from+".old"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.Rename(from, to)
}

// removeOthers deletes the folders in dir whose names begin with prefix, but
// keep.
func removeOthers(dir, prefix, keep string) error {
	all, err := filepath.Glob(filepath.Join(dir, prefix+"*"))
	if err != nil {
		return fmt.Errorf("remove old root file systems: %w", err)
	}
	for _, old := range all {
		if old == keep {
			continue
		}
		if err := removeTree(old); err != nil {
			return fmt.Errorf("remove old root file systems: %w", err)
		}
	}
	return nil
}

// removeTree deletes a folder. A killed build can have left mounts in it (of
// /dev, for one), which must not be emptied: they are taken off first.
func removeTree(dir string) error {
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return err
	}
	below := mountsBelow(string(mounts), dir)
	for _, m := range slices.Backward(below) {
		if err := syscall.Unmount(m, syscall.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount %s: %w", m, err)
		}
	}
	return os.RemoveAll(dir)
}

// mountsBelow finds the mount points at and below a folder in the text of a
// mountinfo file, in their order.
func mountsBelow(mountinfo, dir string) []string {
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	var below []string
	for line := range strings.Lines(mountinfo) {
		fields := strings.Fields(line)
		if len(fields) < 5 {
			continue
		}
		point := unescape.Replace(fields[4])
		if point == dir || strings.HasPrefix(point, dir+"/") {
			below = append(below, point)
		}
	}
	return below
}

package store_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/openpcs/openpcs/internal/store"
)

// small returns a file system of 4 MiB of its own.
func small(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("openpcs-test", dir, "tmpfs", 0, "size=4m"); err != nil {
		t.Skip("only root may mount a file system to fill:", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// fill takes all the room that is left, and returns how to give it back.
func fill(t *testing.T, dir string) (free func()) {
	t.Helper()
	path := filepath.Join(dir, "filler")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	for size := 1 << 20; size > 0; {
		if _, err := f.Write(make([]byte, size)); errors.Is(err, syscall.ENOSPC) {
			size /= 2
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
}

// A full disk fails what is to be written, as a whole, and nothing else; with
// room again it goes on.
func TestDiskFull(t *testing.T) {
	dir := small(t)
	path := filepath.Join(dir, "state.db")
	st, err := store.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	put := func(ids ...string) error {
		return st.Update(t.Context(), func(tx *store.Tx) error {
			for _, id := range ids {
				if err := things.Put(tx, thing{ID: id, Name: id, Region: strings.Repeat("r", 20_000)}); err != nil {
					return err
				}
			}
			return nil
		})
	}
	has := func(id string) bool {
		t.Helper()
		var err error
		if viewErr := st.View(t.Context(), func(tx *store.Tx) error {
			_, err = things.Get(tx, id)
			return nil
		}); viewErr != nil {
			t.Fatal(viewErr)
		}
		if err != nil && !errors.Is(err, store.ErrNotFound) {
			t.Fatal(err)
		}
		return err == nil
	}
	if err := put("before"); err != nil {
		t.Fatal(err)
	}
	free := fill(t, dir)
	failed := 0
	for range 3 {
		if err := put("a", "b", "c", "d", "e", "f", "g", "h"); err != nil {
			failed++
			t.Log(err)
		}
	}
	if failed == 0 {
		t.Fatal("the disk is not full")
	}
	if !has("before") || (has("a") != has("h")) || (failed == 3 && has("a")) {
		t.Errorf("on the full disk: before %v, a %v, h %v", has("before"), has("a"), has("h"))
	}
	free()
	if err := put("after", "a"); err != nil {
		t.Errorf("with room again: %v", err)
	}
	if err := st.Close(); err != nil {
		t.Fatal(err)
	}
	if st, err = store.Open(path); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = st.Close() }()
	if !has("before") || !has("after") || !has("a") {
		t.Errorf("after all: before %v, after %v, a %v", has("before"), has("after"), has("a"))
	}
}

package events

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestDiskFull: where there is no room a batch fails as a whole, what was there
// can be read, and with room again it goes on.
func TestDiskFull(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("openpcs-test", dir, "tmpfs", 0, "size=4m"); err != nil {
		t.Skip("only root may mount a file system to fill:", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	d := open(t, filepath.Join(dir, "logs.db"))
	if err := d.CreateGroup(t.Context(), Group{Region: "r", Name: "g", Created: 1, Class: "STANDARD"}); err != nil {
		t.Fatal(err)
	}
	place := int64(0)
	put := func(text string, n int) error {
		list := make([]Input, n)
		for i := range list {
			list[i] = Input{Place: place + int64(i) + 1, Time: 1, Message: text}
		}
		err := d.Append(t.Context(), Batch{Region: "r", Group: "g", Stream: "s", Make: true, From: "x", Events: list, Now: time.UnixMilli(1)})
		if err == nil {
			place += int64(n)
		}
		return err
	}
	if err := put("before", 1); err != nil {
		t.Fatal(err)
	}
	filler, err := os.Create(filepath.Join(dir, "filler"))
	if err != nil {
		t.Fatal(err)
	}
	for size := 1 << 20; size > 0; {
		if _, err := filler.Write(make([]byte, size)); errors.Is(err, syscall.ENOSPC) {
			size /= 2
		} else if err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		if err := put(strings.Repeat("x", 1000), 500); !errors.Is(err, ErrFull) {
			t.Fatalf("without room: %v", err)
		}
		if got := d.all(t, Window{}); got != "s:before" {
			t.Errorf("there is %.100s", got)
		}
	}
	if err := errors.Join(filler.Close(), os.Remove(filler.Name())); err != nil {
		t.Fatal(err)
	}
	if err := put("after", 1); err != nil {
		t.Fatal(err)
	}
	if got := d.all(t, Window{}); got != "s:before s:after" {
		t.Errorf("there is %s", got)
	}
}

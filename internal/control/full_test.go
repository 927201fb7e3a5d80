package control_test

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// A full disk stops what would have to be recorded, ends no job, and loses
// nothing: with room again all goes on.
func TestDiskFull(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("openpcs-test", dir, "tmpfs", 0, "size=8m"); err != nil {
		t.Skip("only root may mount a file system to fill:", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	o := dynamic(3)
	o.dir = dir
	run(t, o, func(s *site) {
		s.ctld.submit(false, "g-1")
		s.within(5*time.Second, "the node is up", func() bool { return s.ctld.state("g-1") == up && !s.live("g-1").ReadyAt.IsZero() })
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
		s.ctld.submit(false, "g-2")
		s.wait(2 * time.Minute)
		if st := s.ctld.state("g-1"); st != up || s.ctld.lost("g-1") != 0 {
			t.Errorf("on the full disk the job's node is %s, and lost its job %d times", st, s.ctld.lost("g-1"))
		}
		if s.live("g-2").ID != "" {
			t.Fatal("the disk was not full")
		}
		if err := errors.Join(filler.Close(), os.Remove(filler.Name())); err != nil {
			t.Fatal(err)
		}
		s.within(time.Minute, "the second node comes up", func() bool { return s.ctld.state("g-2") == up })
		s.settle()
		s.restart()
		s.settle()
		if len(s.present()) != 2 || s.ctld.state("g-1") != up || s.ctld.state("g-2") != up {
			t.Errorf("after all: %v, %s", s.present(), s.ctld)
		}
	})
}

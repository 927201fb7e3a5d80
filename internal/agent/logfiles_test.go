package agent

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// A log that grew too large goes, and so does the oldest: the disk is bounded.
func TestLogsAreRotatedBySize(t *testing.T) {
	dir := t.TempDir()
	var told []string
	r := rotation{dir: dir, size: 10, keep: 2, daemons: map[string]string{"slurmctld.log": "slurmctld", "jobcomp.log": "slurmctld"}, tell: func(_ context.Context, daemon string) error {
		told = append(told, daemon)
		return nil
	}}
	write := func(name, text string) {
		t.Helper()
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err == nil {
			_, err = f.WriteString(text)
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return "none"
		}
		return string(text)
	}
	write("slurmrestd.log", "first, and long\n")
	for _, text := range []string{"one, and long\n", "two, and long\n", "three, and long\n", "short\n"} {
		write("slurmctld.log", text)
		if err := r.once(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]string{
		"slurmctld.log": "short\n", "slurmctld.log.1": "three, and long\n", "slurmctld.log.2": "two, and long\n", "slurmctld.log.3": "none",
		// Nobody can be told: it is the same file, and empty.
		"slurmrestd.log": "", "slurmrestd.log.1": "first, and long\n",
	} {
		if got := read(name); got != want {
			t.Errorf("%s has %q, want %q", name, got, want)
		}
	}
	if want := []string{"slurmctld", "slurmctld", "slurmctld"}; !slices.Equal(told, want) {
		t.Errorf("told %v, want %v", told, want)
	}
}

// A daemon that could not be told goes on with the former file, and has no other to
// be rotated: it is told again.
func TestDaemonThatCouldNotBeTold(t *testing.T) {
	dir := t.TempDir()
	tries := 0
	r := rotation{dir: dir, size: 10, keep: 2, daemons: map[string]string{"slurmctld.log": "slurmctld"}, tell: func(context.Context, string) error {
		if tries++; tries == 1 {
			return errors.New("not now")
		}
		return nil
	}}
	if err := os.WriteFile(filepath.Join(dir, "slurmctld.log"), []byte("one, and long\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := r.once(t.Context()); err == nil {
		t.Error("that nobody was told is not said")
	}
	for range 2 {
		if err := r.once(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if tries != 2 {
		t.Errorf("told %d times, want 2", tries)
	}
}

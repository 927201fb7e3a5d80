package control_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/openpcs/openpcs/internal/control"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/imds"
)

// kept writes what was kept of an instance, as old as it says.
func kept(t *testing.T, dir, id string, size int, age time.Duration) {
	t.Helper()
	at := time.Now().Add(-age)
	path := filepath.Join(dir, "logs", id)
	if err := os.MkdirAll(path, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(path, "console.log"), bytes.Repeat([]byte("x"), size), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{filepath.Join(path, "console.log"), path} {
		if err := os.Chtimes(p, at, at); err != nil {
			t.Fatal(err)
		}
	}
}

// The oldest go first, by age and until the rest fits.
func TestKeptLogsAreBounded(t *testing.T) {
	run(t, dynamic(1), func(s *site) {
		for n, age := range []time.Duration{40 * 24 * time.Hour, 20 * time.Hour, 10 * time.Hour, 5 * time.Hour, time.Hour} {
			kept(t, s.dir, fmt.Sprintf("i-%d", n), 1000, age)
		}
		c := control.New(control.Options{Store: s.store, StateDir: s.dir, LogLimit: 2500})
		left := func() (out []string) {
			dirs, err := os.ReadDir(filepath.Join(s.dir, "logs"))
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range dirs {
				out = append(out, d.Name())
			}
			return out
		}
		if err := c.ForgetHistory(context.Background(), time.Now().Add(-14*24*time.Hour)); err != nil {
			t.Fatal(err)
		}
		if got := left(); !slices.Equal(got, []string{"i-3", "i-4"}) {
			t.Errorf("kept are %v, want the newest that fit", got)
		}
		c = control.New(control.Options{Store: s.store, StateDir: s.dir})
		if err := c.ForgetHistory(context.Background(), time.Now().Add(-2*time.Hour)); err != nil {
			t.Fatal(err)
		}
		if got := left(); !slices.Equal(got, []string{"i-4"}) {
			t.Errorf("kept are %v, want those of the last two hours", got)
		}
	})
}

// Of a log that is too long the end is kept, from the start of a line; and what
// was kept is there after a restart, also of an instance that shut itself down.
func TestLogsOfALostInstance(t *testing.T) {
	run(t, dynamic(1), func(s *site) {
		s.ctld.submit(false, "g-1")
		s.within(10*time.Second, "up", func() bool { return s.ctld.state("g-1") == up })
		id := s.live("g-1").ID
		line := strings.Repeat("y", 99) + "\n"
		_ = s.provider.SetFile(id, "/var/log/slurm/slurmd.log", []byte("first line\n"+strings.Repeat(line, 20_000)+"last line\n"))
		_ = s.provider.SetConsole(id, []byte("going down"))
		if err := s.provider.Crash(id); err != nil {
			t.Fatal(err)
		}
		s.within(time.Minute, "it is gone", func() bool { return s.live("g-1").ID == "" })
		s.restart()
		logs, old, err := s.plane().Logs(context.Background(), id)
		if err != nil || !old || len(logs) != 2 || logs[0].Name != "console.log" || string(logs[0].Text) != "going down" {
			t.Fatalf("%d logs, kept %v, %v", len(logs), old, err)
		}
		text := string(logs[1].Text)
		head, rest, _ := strings.Cut(text, "\n")
		if logs[1].Name != "slurmd.log" || len(text) > 1<<20+100 || !strings.HasPrefix(head, "[the first ") || !strings.HasPrefix(rest, line) || !strings.HasSuffix(text, "\nlast line\n") {
			t.Errorf("%s: %d bytes, %q ... %q", logs[1].Name, len(text), text[:120], text[len(text)-20:])
		}
	})
}

// The time for keeping logs is bounded: what a script that failed said comes
// before what the others did.
func TestLogsOfScriptsThatFailedComeFirst(t *testing.T) {
	run(t, dynamic(1), func(s *site) {
		s.ctld.submit(false, "g-1")
		s.within(10*time.Second, "up", func() bool { return !s.live("g-1").ReadyAt.IsZero() })
		id := s.live("g-1").ID
		fine, failed := outcome(fleet.NodeBootstrapped, "fine", fleet.OnErrorStop, 0, 1), outcome(fleet.NodeBootstrapped, "failed", fleet.OnErrorStop, 1, 1)
		s.report(id, imds.Report{Stage: "script", Scripts: []fleet.ScriptOutcome{fine, failed}})
		for _, path := range []string{fine.Log, failed.Log, scriptLogs + "executor.log", "/var/log/amazon/pcs/bootstrap.log"} {
			_ = s.provider.SetFile(id, path, []byte("x"))
		}
		logs, _, err := s.plane().Logs(context.Background(), id)
		var names []string
		for _, l := range logs {
			names = append(names, l.Name)
		}
		want := []string{"bootstrap.log", "nodeBootstrapped-failed.log", "executor.log", "nodeBootstrapped-fine.log"}
		names = slices.DeleteFunc(names, func(n string) bool { return n == "console.log" })
		if err != nil || !slices.Equal(names, want) {
			t.Errorf("%v, %v", names, err)
		}
	})
}

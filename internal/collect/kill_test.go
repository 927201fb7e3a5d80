package collect_test

import (
	"context"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/openpcs/openpcs/internal/collect"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/store"
	"github.com/openpcs/openpcs/internal/tail"
)

// victimEnv has the folders of a collector that is a process of its own.
const victimEnv = "OPENPCS_TEST_COLLECTOR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(victimEnv); dir != "" {
		victim(dir)
	}
	os.Exit(m.Run())
}

// victim collects until it is killed.
func victim(dir string) {
	state, err := store.Open(filepath.Join(dir, "state.db"))
	if err != nil {
		panic(err)
	}
	c := collect.New(collect.Options{
		Store: state, Dir: filepath.Join(dir, "journals"), Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Controller: func(fleet.Cluster) collect.Controller { return &folder{Dir: tail.Dir(filepath.Join(dir, "logs"))} },
	})
	if err := c.Start(context.Background()); err != nil {
		panic(err)
	}
	select {}
}

// The collector is killed at random moments, while a log is written, rotated, and
// rotated again while nobody reads it: each line is kept once, in order.
func TestKilled(t *testing.T) {
	dir := t.TempDir()
	s := newSiteAt(t, "26.05", filepath.Join(dir, "journals"))
	s.check(s.store.Close())
	state, err := store.Open(filepath.Join(dir, "state.db"))
	s.check(err)
	s.check(state.Update(t.Context(), func(tx *store.Tx) error {
		return fleet.Clusters.Put(tx, fleet.Cluster{ID: clusterID, Name: "demo", Version: "26.05", ControllerAddress: "10.0.0.1"})
	}))
	s.check(state.Close())
	s.logs = filepath.Join(dir, "logs")
	s.check(os.Mkdir(s.logs, 0o700))
	random := rand.New(rand.NewPCG(3, 4))
	for n := range 10 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), victimEnv+"="+dir)
		s.check(cmd.Start())
		deadline := time.NewTimer(time.Duration(50+random.IntN(300)) * time.Millisecond)
		for writing := true; writing; {
			select {
			case <-deadline.C:
				writing = false
			default:
				if s.lines < 40_000*(n+1) {
					s.storm(500)
				}
			}
		}
		s.check(cmd.Process.Kill())
		_ = cmd.Wait()
		if n%2 == 0 {
			s.rotate()
			s.storm(10)
			s.reopen()
		}
		s.storm(10)
	}
	s.store, err = store.Open(filepath.Join(dir, "state.db"))
	s.check(err)
	s.start()
	s.exact()
	for _, j := range s.c.Journals(clusterID, "") {
		a, err := s.c.Anchor(t.Context(), j.Key())
		s.check(err)
		r, err := j.Verify(a)
		if err != nil || len(r.Damage) > 0 {
			t.Errorf("%s: %+v, %v", j.Key(), r.Damage, err)
		}
	}
	t.Logf("%d lines", s.lines)
}

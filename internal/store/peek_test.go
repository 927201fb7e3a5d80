package store_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/openpcs/openpcs/internal/store"
)

func TestLatestEvent(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	if at, err := store.LatestEvent(t.Context(), path); err != nil || !at.IsZero() {
		t.Fatalf("without a file: %v %v", at, err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Fatal("looking made a state file")
	}
	s, err := store.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	if at, err := store.LatestEvent(t.Context(), path); err != nil || !at.IsZero() {
		t.Fatalf("without an event: %v %v", at, err)
	}
	now := time.Now().UTC()
	for _, at := range []time.Time{now.Add(-time.Hour), now, now.Add(-time.Minute)} {
		err := s.Update(t.Context(), func(tx *store.Tx) error {
			return tx.Append(store.Event{At: at, Cluster: "c", Subject: "s", Kind: "k", Detail: []byte("{}")})
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if at, err := store.LatestEvent(t.Context(), path); err != nil || !at.Equal(now) {
		t.Errorf("got %v %v, want %v", at, err, now)
	}
	if err := os.WriteFile(path+".bad", []byte("no database at all, but long enough to look at"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := store.LatestEvent(t.Context(), path+".bad"); err == nil {
		t.Error("a broken file is fine")
	}
}

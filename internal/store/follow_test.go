package store_test

import (
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/openpcs/openpcs/internal/store"
)

// Whoever follows the events by their Seq meets each once, whatever the cluster.
func TestEventsAreFollowed(t *testing.T) {
	s, err := store.Open(filepath.Join(t.TempDir(), "state.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	add := func(kinds ...string) {
		t.Helper()
		err := s.Update(t.Context(), func(tx *store.Tx) error {
			for _, k := range kinds {
				if err := tx.Append(store.Event{At: time.Unix(1, 0), Cluster: "c-" + k, Subject: "s", Kind: k, Detail: []byte(`{"k":"` + k + `"}`)}); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	last := func() (seq int64) {
		t.Helper()
		if err := s.View(t.Context(), func(tx *store.Tx) (err error) { seq, err = tx.LastEvent(); return err }); err != nil {
			t.Fatal(err)
		}
		return seq
	}
	if n := last(); n != 0 {
		t.Errorf("without an event the last is %d", n)
	}
	add("old")
	from := last()
	add("a", "b", "c")
	var got []string
	for {
		var some []store.Event
		err := s.View(t.Context(), func(tx *store.Tx) (err error) { some, err = tx.EventsAfter(from, 2); return err })
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range some {
			got, from = append(got, e.Kind+" "+e.Cluster+" "+string(e.Detail)), e.Seq
		}
		if len(some) < 2 {
			break
		}
	}
	if want := []string{`a c-a {"k":"a"}`, `b c-b {"k":"b"}`, `c c-c {"k":"c"}`}; !slices.Equal(got, want) || from != last() {
		t.Errorf("got %q up to %d, want %q up to %d", got, from, want, last())
	}
}

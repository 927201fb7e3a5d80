package store_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/openpcs/openpcs/internal/store"
)

type thing struct {
	ID     string `json:"id"`
	Region string `json:"region,omitempty"`
	Parent string `json:"parent,omitempty"`
	Name   string `json:"name,omitempty"`
	N      int    `json:"n"`
}

var (
	things = store.NewCollection("thing", func(v thing) store.Index {
		return store.Index{ID: v.ID, Region: v.Region, Parent: v.Parent, Name: v.Name}
	})
	others = store.NewCollection("other", func(v thing) store.Index { return store.Index{ID: v.ID, Name: v.Name} })
)

func open(t testing.TB, path string) *store.Store {
	t.Helper()
	s, err := store.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func fresh(t testing.TB) *store.Store { return open(t, filepath.Join(t.TempDir(), "state.db")) }

func update(t testing.TB, s *store.Store, f func(tx *store.Tx) error) {
	t.Helper()
	if err := s.Update(context.Background(), f); err != nil {
		t.Fatal(err)
	}
}

func view(t testing.TB, s *store.Store, f func(tx *store.Tx) error) {
	t.Helper()
	if err := s.View(context.Background(), f); err != nil {
		t.Fatal(err)
	}
}

func TestCollections(t *testing.T) {
	s := fresh(t)
	update(t, s, func(tx *store.Tx) error {
		for n, v := range []thing{
			{ID: "3", Region: "a", Parent: "p", Name: "x"},
			{ID: "1", Region: "a", Parent: "p", Name: "y"},
			{ID: "2", Region: "b", Parent: "q", Name: "x"},
			{ID: "0", Region: "a"},
			{ID: "00", Region: "a"},
		} {
			v.N = n
			if err := things.Put(tx, v); err != nil {
				return err
			}
		}
		return others.Put(tx, thing{ID: "3", Name: "x"})
	})
	ids := func(list []thing, err error) string {
		if err != nil {
			t.Fatal(err)
		}
		out := []string{}
		for _, v := range list {
			out = append(out, v.ID)
		}
		return strings.Join(out, " ")
	}
	view(t, s, func(tx *store.Tx) error {
		for _, tt := range []struct{ what, got, want string }{
			{"all in order of creation", ids(things.All(tx)), "3 1 2 0 00"},
			{"of a region", ids(things.InRegion(tx, "a")), "3 1 0 00"},
			{"of a parent", ids(things.Of(tx, "p")), "3 1"},
			{"of no parent", ids(things.Of(tx, "r")), ""},
			{"of another kind", ids(others.All(tx)), "3"},
		} {
			if tt.got != tt.want {
				t.Errorf("%s: %q, want %q", tt.what, tt.got, tt.want)
			}
		}
		if v, err := things.Get(tx, "1"); err != nil || v.N != 1 {
			t.Errorf("Get = %+v, %v", v, err)
		}
		if v, err := things.Find(tx, "b", "q", "x"); err != nil || v.ID != "2" {
			t.Errorf("Find = %+v, %v", v, err)
		}
		for _, args := range [][3]string{{"a", "q", "x"}, {"b", "p", "x"}, {"a", "", ""}, {"", "", "x"}, {"a", "p", "X"}} {
			if v, err := things.Find(tx, args[0], args[1], args[2]); !errors.Is(err, store.ErrNotFound) {
				t.Errorf("Find%v = %+v, %v", args, v, err)
			}
		}
		if _, err := things.Get(tx, "9"); !errors.Is(err, store.ErrNotFound) || !strings.Contains(err.Error(), "thing 9") {
			t.Errorf("Get of nothing: %v", err)
		}
		return nil
	})
	// A change keeps the place in the order.
	update(t, s, func(tx *store.Tx) error {
		return things.Put(tx, thing{ID: "3", Region: "c", Parent: "z", Name: "new", N: 9})
	})
	view(t, s, func(tx *store.Tx) error {
		if got := ids(things.All(tx)); got != "3 1 2 0 00" {
			t.Errorf("after a change: %q", got)
		}
		if v, err := things.Find(tx, "c", "z", "new"); err != nil || v.N != 9 {
			t.Errorf("Find = %+v, %v", v, err)
		}
		if _, err := things.Find(tx, "a", "p", "x"); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("the old name still finds it: %v", err)
		}
		return nil
	})
	update(t, s, func(tx *store.Tx) error { return errors.Join(things.Delete(tx, "3"), things.Delete(tx, "nothing")) })
	view(t, s, func(tx *store.Tx) error {
		if got := ids(things.All(tx)); got != "1 2 0 00" {
			t.Errorf("after a deletion: %q", got)
		}
		if got := ids(others.All(tx)); got != "3" {
			t.Errorf("the deletion touched another kind: %q", got)
		}
		return nil
	})
}

func TestNamesAreUniqueWithinTheirParent(t *testing.T) {
	s := fresh(t)
	update(t, s, func(tx *store.Tx) error { return things.Put(tx, thing{ID: "1", Region: "a", Parent: "p", Name: "x"}) })
	for _, tt := range []struct {
		v     thing
		taken bool
	}{
		{thing{ID: "2", Region: "a", Parent: "p", Name: "x"}, true},
		{thing{ID: "1", Region: "a", Parent: "p", Name: "x"}, false}, // itself
		{thing{ID: "2", Region: "b", Parent: "p", Name: "x"}, false},
		{thing{ID: "3", Region: "a", Parent: "q", Name: "x"}, false},
		{thing{ID: "4", Region: "a", Parent: "p"}, false},
		{thing{ID: "5", Region: "a", Parent: "p"}, false}, // no name is no name
	} {
		err := s.Update(context.Background(), func(tx *store.Tx) error { return things.Put(tx, tt.v) })
		if errors.Is(err, store.ErrExists) != tt.taken || (err != nil) != tt.taken {
			t.Errorf("%+v: %v", tt.v, err)
		}
	}
	// A rename onto a taken name changes nothing.
	err := s.Update(context.Background(), func(tx *store.Tx) error { return things.Put(tx, thing{ID: "4", Region: "a", Parent: "p", Name: "x"}) })
	if !errors.Is(err, store.ErrExists) {
		t.Errorf("rename: %v", err)
	}
	view(t, s, func(tx *store.Tx) error {
		v, err := things.Get(tx, "4")
		if v.Name != "" {
			t.Errorf("%+v", v)
		}
		return err
	})
}

func TestATransactionIsAllOrNothing(t *testing.T) {
	s := fresh(t)
	boom := errors.New("boom")
	err := s.Update(context.Background(), func(tx *store.Tx) error {
		if err := things.Put(tx, thing{ID: "1"}); err != nil {
			return err
		}
		if err := tx.Append(store.Event{Cluster: "c", Subject: "s", Kind: "k"}); err != nil {
			return err
		}
		return boom
	})
	if !errors.Is(err, boom) {
		t.Errorf("the function's error is lost: %v", err)
	}
	func() {
		defer func() { _ = recover() }()
		_ = s.Update(context.Background(), func(tx *store.Tx) error {
			_ = things.Put(tx, thing{ID: "2"})
			panic("boom")
		})
	}()
	view(t, s, func(tx *store.Tx) error {
		all, err := things.All(tx)
		events, err2 := tx.Events("c", "", 10)
		if len(all) != 0 || len(events) != 0 {
			t.Errorf("%v, %v are there", all, events)
		}
		return errors.Join(err, err2)
	})
	// The writer is free again.
	update(t, s, func(tx *store.Tx) error { return things.Put(tx, thing{ID: "3"}) })
	if err := s.View(context.Background(), func(tx *store.Tx) error { return things.Put(tx, thing{ID: "4"}) }); err == nil {
		// SQLite lets a deferred transaction write; what matters is that
		// nobody does. This documents it.
		t.Log("a View can write")
	}
	done, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.Update(done, func(*store.Tx) error { return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that ended: %v", err)
	}
}

func TestConcurrentWritersLoseNothing(t *testing.T) {
	s := fresh(t)
	update(t, s, func(tx *store.Tx) error { return things.Put(tx, thing{ID: "sum"}) })
	const writers, rounds = 8, 10
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			for range rounds {
				err := s.Update(context.Background(), func(tx *store.Tx) error {
					v, err := things.Get(tx, "sum")
					if err != nil {
						return err
					}
					v.N++
					return things.Put(tx, v)
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
		wg.Go(func() {
			for range rounds {
				_ = s.View(context.Background(), func(tx *store.Tx) error { _, err := things.All(tx); return err })
			}
		})
	}
	wg.Wait()
	view(t, s, func(tx *store.Tx) error {
		v, err := things.Get(tx, "sum")
		if v.N != writers*rounds {
			t.Errorf("sum = %d, want %d", v.N, writers*rounds)
		}
		return err
	})
}

func TestAViewSeesOneState(t *testing.T) {
	s := fresh(t)
	update(t, s, func(tx *store.Tx) error { return things.Put(tx, thing{ID: "a", N: 1}) })
	view(t, s, func(tx *store.Tx) error {
		if _, err := things.Get(tx, "a"); err != nil {
			return err
		}
		update(t, s, func(tx *store.Tx) error {
			return errors.Join(things.Put(tx, thing{ID: "a", N: 2}), things.Put(tx, thing{ID: "b"}))
		})
		v, err := things.Get(tx, "a")
		all, err2 := things.All(tx)
		if v.N != 1 || len(all) != 1 {
			t.Errorf("the view changed under its reader: %+v, %d things", v, len(all))
		}
		return errors.Join(err, err2)
	})
}

func TestEvents(t *testing.T) {
	s := fresh(t)
	base := time.Date(2026, 11, 30, 12, 0, 0, 123456789, time.UTC)
	update(t, s, func(tx *store.Tx) error {
		for n := range 10 {
			e := store.Event{At: base.Add(time.Duration(n) * time.Second), Cluster: "c", Subject: "node/a", Kind: "k" + strconv.Itoa(n)}
			switch n {
			case 3:
				e.Subject = "node/b"
			case 4:
				e.Cluster = "d"
			case 5:
				e.Detail = json.RawMessage(`{"x":1}`)
			}
			if err := tx.Append(e); err != nil {
				return err
			}
		}
		return nil
	})
	kinds := func(cluster, subject string, limit int) (out string) {
		view(t, s, func(tx *store.Tx) error {
			events, err := tx.Events(cluster, subject, limit)
			for _, e := range events {
				out += e.Kind + " "
			}
			return err
		})
		return strings.TrimSpace(out)
	}
	for _, tt := range []struct {
		cluster, subject string
		limit            int
		want             string
	}{
		{"c", "", 100, "k0 k1 k2 k3 k5 k6 k7 k8 k9"},
		{"c", "", 3, "k7 k8 k9"},
		{"c", "node/a", 2, "k8 k9"},
		{"c", "node/b", 9, "k3"},
		{"d", "", 9, "k4"},
		{"e", "", 9, ""},
	} {
		if got := kinds(tt.cluster, tt.subject, tt.limit); got != tt.want {
			t.Errorf("%+v: %s", tt, got)
		}
	}
	view(t, s, func(tx *store.Tx) error {
		events, err := tx.Events("c", "", 100)
		if len(events) != 9 {
			t.Fatalf("%d events", len(events))
		}
		if e := events[0]; !e.At.Equal(base) || string(e.Detail) != "{}" || e.Seq == 0 || e.Subject != "node/a" {
			t.Errorf("event = %+v", e)
		}
		if string(events[4].Detail) != `{"x":1}` {
			t.Errorf("detail = %s", events[4].Detail)
		}
		doc, err2 := json.Marshal(events[4])
		if !strings.Contains(string(doc), `"detail":{"x":1}`) {
			t.Errorf("as JSON: %s", doc)
		}
		return errors.Join(err, err2)
	})
	update(t, s, func(tx *store.Tx) error { return tx.ForgetEvents(base.Add(8 * time.Second)) })
	if got := kinds("c", "", 100); got != "k8 k9" {
		t.Errorf("after forgetting: %s", got)
	}
}

func TestReopen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a b#?%", "state.db") // a path is a path
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	for n := range 3 {
		s := open(t, path)
		update(t, s, func(tx *store.Tx) error { return things.Put(tx, thing{ID: strconv.Itoa(n)}) })
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	view(t, open(t, path), func(tx *store.Tx) error {
		all, err := things.All(tx)
		if len(all) != 3 {
			t.Errorf("%d of 3 things are left", len(all))
		}
		return err
	})
	if _, err := os.Stat(path); err != nil {
		t.Errorf("the state file is elsewhere: %v", err)
	}
}

func schema(t *testing.T, path string, version int) {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	if version < 0 {
		var is int
		if err := db.QueryRow(`PRAGMA user_version`).Scan(&is); err != nil || is != -version {
			t.Errorf("user_version = %d, %v, want %d", is, err, -version)
		}
		var mode string
		if err := db.QueryRow(`PRAGMA journal_mode`).Scan(&mode); err != nil || mode != "wal" {
			t.Errorf("journal_mode = %s, %v", mode, err)
		}
		return
	}
	if _, err := db.Exec(fmt.Sprintf(`PRAGMA user_version = %d`, version)); err != nil {
		t.Fatal(err)
	}
}

func TestNewerSchemaIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	s := open(t, path)
	update(t, s, func(tx *store.Tx) error { return things.Put(tx, thing{ID: "1"}) })
	_ = s.Close()
	schema(t, path, -store.SchemaVersion())
	schema(t, path, store.SchemaVersion()+1)
	if _, err := store.Open(path); err == nil || !strings.Contains(err.Error(), "newer") || !strings.Contains(err.Error(), path) {
		t.Errorf("a newer schema: %v", err)
	}
	// And it is left as it was.
	schema(t, path, store.SchemaVersion())
	view(t, open(t, path), func(tx *store.Tx) error { _, err := things.Get(tx, "1"); return err })
}

func TestFilesThatAreNoStateFile(t *testing.T) {
	dir := t.TempDir()
	garbage := filepath.Join(dir, "garbage.db")
	if err := os.WriteFile(garbage, []byte(strings.Repeat("this is no database. ", 100)), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{garbage, filepath.Join(dir, "none", "state.db"), dir} {
		if s, err := store.Open(path); err == nil {
			_ = s.Close()
			t.Errorf("%s was opened", path)
		} else if !strings.Contains(err.Error(), path) {
			t.Errorf("%s: the error %q does not name it", path, err)
		}
	}
}

// killed is the process of the next test: it commits without end, and says
// what it has.
const killed = "OPENPCS_TEST_KILLED"

func TestMain(m *testing.M) {
	path := os.Getenv(killed)
	if path == "" {
		os.Exit(m.Run())
	}
	s, err := store.Open(path)
	if err != nil {
		panic(err)
	}
	for n := 0; ; n++ {
		err := s.Update(context.Background(), func(tx *store.Tx) error {
			return errors.Join(things.Put(tx, thing{ID: "a", N: n}), things.Put(tx, thing{ID: "b", N: n}), tx.Append(store.Event{Cluster: "c", Kind: strconv.Itoa(n)}))
		})
		if err != nil {
			panic(err)
		}
		fmt.Println(n)
	}
}

func TestWhatWasAcceptedSurvivesKill9(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "state.db")
	for _, limit := range []int{1, 7, 40} {
		cmd := exec.Command(self)
		cmd.Env = append(os.Environ(), killed+"="+path)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		last := -1
		for last < limit {
			if _, err := fmt.Fscan(out, &last); err != nil {
				t.Fatal(err)
			}
		}
		_ = cmd.Process.Kill()
		for { // what it had said before it died
			var n int
			if _, err := fmt.Fscan(out, &n); err != nil {
				break
			}
			last = n
		}
		_, _ = io.Copy(io.Discard, out)
		_ = cmd.Wait()
		s := open(t, path)
		view(t, s, func(tx *store.Tx) error {
			a, err := things.Get(tx, "a")
			b, err2 := things.Get(tx, "b")
			events, err3 := tx.Events("c", "", 1)
			if a.N < last || a.N > last+1 || a.N != b.N || len(events) != 1 || events[0].Kind != strconv.Itoa(a.N) {
				t.Errorf("said %d, found a = %d, b = %d, event %+v", last, a.N, b.N, events)
			}
			return errors.Join(err, err2, err3)
		})
		_ = s.Close()
	}
}

func literally(t *testing.T, st *store.Store) {
	t.Helper()
	if err := func() error { return st.Update(t.Context(), func(*store.Tx) error { return nil }) }(); err != nil {
		t.Fatal(err)
	}
}

func generically[T any](t *testing.T, st *store.Store, _ T) {
	t.Helper()
	if err := st.Update(t.Context(), func(*store.Tx) error { return nil }); err != nil {
		t.Fatal(err)
	}
}

func TestSeamNamesWhoCommits(t *testing.T) {
	st, err := store.Open(filepath.Join(t.TempDir(), "state.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = st.Close() }()
	var points []string
	st.SetSeam(func(p string) { points = append(points, p) })
	literally(t, st)
	generically(t, st, "")
	if err := st.Update(t.Context(), func(*store.Tx) error { return errors.New("no") }); err == nil {
		t.Error("the error is gone")
	}
	want := []string{
		"commit/store_test.literally/before", "commit/store_test.literally/after",
		"commit/store_test.generically/before", "commit/store_test.generically/after",
	}
	if !slices.Equal(points, want) {
		t.Errorf("points = %q, want %q", points, want)
	}
}

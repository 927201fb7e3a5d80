package store_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/openpcs/openpcs/internal/store"
)

// deep holds a reference of each kind that a document may have.
type deep struct {
	ID     string            `json:"id"`
	Tags   map[string]string `json:"tags"`
	List   []string          `json:"list"`
	Bytes  []byte            `json:"bytes"`
	Next   *deep             `json:"next,omitempty"`
	Parts  []deep            `json:"parts,omitempty"`
	ByName map[string]*deep  `json:"byName,omitempty"`
	Any    any               `json:"any"`
	At     time.Time         `json:"at"`
	Pair   [2][]int          `json:"pair"`
	inner
}

type inner struct {
	Inside []string `json:"inside"`
}

var deeps = store.NewCollection("deep", func(v deep) store.Index { return store.Index{ID: v.ID} })

func sample() deep {
	leaf := func(s string) deep { return deep{ID: s, List: []string{s}, Tags: map[string]string{s: s}} }
	next, named := leaf("next"), leaf("named")
	return deep{
		ID: "1", Tags: map[string]string{"a": "b"}, List: []string{"x"}, Bytes: []byte("bytes"), Next: &next, Parts: []deep{leaf("part")},
		ByName: map[string]*deep{"n": &named}, Any: map[string]any{"k": []any{"v"}}, At: time.Unix(1, 2).UTC(), Pair: [2][]int{{1}, {2}},
		inner: inner{Inside: []string{"in"}},
	}
}

// spoil changes everything that a value refers to.
func spoil(v deep) {
	v.Tags["a"], v.List[0], v.Bytes[0] = "spoilt", "spoilt", '!'
	v.Next.List[0], v.Next.Tags["next"] = "spoilt", "spoilt"
	v.Parts[0].List[0] = "spoilt"
	v.ByName["n"].List[0] = "spoilt"
	v.ByName["more"] = nil
	v.Any.(map[string]any)["k"].([]any)[0] = "spoilt"
	v.Pair[1][0], v.Inside[0] = -1, "spoilt"
}

func TestWhatIsReadBelongsToTheReader(t *testing.T) {
	s := fresh(t)
	mine := sample()
	update(t, s, func(tx *store.Tx) error { return deeps.Put(tx, mine) })
	spoil(mine) // nor has the writer any hold on it
	want := sample()
	for _, read := range []func(tx *store.Tx) (deep, error){
		func(tx *store.Tx) (deep, error) { return deeps.Get(tx, "1") },
		func(tx *store.Tx) (deep, error) {
			all, err := deeps.All(tx)
			return all[0], err
		},
		func(tx *store.Tx) (deep, error) {
			all, err := deeps.Where(tx, func(*deep) bool { return true })
			return all[0], err
		},
	} {
		for range 2 {
			view(t, s, func(tx *store.Tx) error {
				got, err := read(tx)
				if err != nil {
					return err
				}
				if !reflect.DeepEqual(got, want) {
					t.Errorf("read %+v\nwant %+v", got, want)
				}
				spoil(got)
				return nil
			})
		}
	}
}

func TestWhere(t *testing.T) {
	s := fresh(t)
	update(t, s, func(tx *store.Tx) error {
		for n := range 9 {
			if err := things.Put(tx, thing{ID: fmt.Sprint(9 - n), N: n}); err != nil {
				return err
			}
		}
		return nil
	})
	view(t, s, func(tx *store.Tx) error {
		even, err := things.Where(tx, func(v *thing) bool { return v.N%2 == 0 })
		if err != nil {
			return err
		}
		var got []int
		for _, v := range even {
			got = append(got, v.N)
		}
		if want := []int{0, 2, 4, 6, 8}; !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
		return nil
	})
}

func TestAViewCannotChangeAnything(t *testing.T) {
	s := fresh(t)
	view(t, s, func(tx *store.Tx) error {
		for what, err := range map[string]error{
			"put": things.Put(tx, thing{ID: "1"}), "delete": things.Delete(tx, "1"),
			"append": tx.Append(store.Event{Kind: "x"}), "forget": tx.ForgetEvents(time.Now()),
		} {
			if err == nil {
				t.Errorf("%s inside View went through", what)
			}
		}
		return nil
	})
}

func TestACommitThatFailsLeavesMemoryAsTheFileIs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state.db")
	s := open(t, path)
	update(t, s, func(tx *store.Tx) error { return things.Put(tx, thing{ID: "1", Name: "x", N: 1}) })
	ctx, cancel := context.WithCancel(context.Background())
	err := s.Update(ctx, func(tx *store.Tx) error {
		err := errors.Join(things.Put(tx, thing{ID: "1", Name: "y", N: 2}), things.Put(tx, thing{ID: "2", Name: "x", N: 2}))
		cancel()
		return err
	})
	if err == nil {
		t.Fatal("a transaction whose caller is gone was committed")
	}
	check := func(s *store.Store) {
		view(t, s, func(tx *store.Tx) error {
			all, err := things.All(tx)
			if err == nil && (len(all) != 1 || all[0] != (thing{ID: "1", Name: "x", N: 1})) {
				t.Errorf("there is %+v", all)
			}
			return err
		})
	}
	check(s)
	// The name and the order are free again, too.
	update(t, s, func(tx *store.Tx) error { return things.Put(tx, thing{ID: "3", Name: "y"}) })
	update(t, s, func(tx *store.Tx) error { return things.Delete(tx, "3") })
	check(s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	check(open(t, path))
}

// TestMemoryAndFileAgree does random things in transactions, some of which
// are given up, and compares what the store answers with a plain model and
// with what another one reads from the file.
func TestMemoryAndFileAgree(t *testing.T) {
	giveUp := errors.New("given up")
	rapid.Check(t, func(t *rapid.T) {
		dir := tempDir(t)
		path := filepath.Join(dir, "state.db")
		s, err := store.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = s.Close() }()
		var model []thing // in order of creation
		id := rapid.SampledFrom([]string{"1", "2", "3", "4"})
		name := rapid.SampledFrom([]string{"", "x", "y", "z"})
		parent := rapid.SampledFrom([]string{"", "p"})
		for range rapid.IntRange(1, 12).Draw(t, "transactions") {
			draft := slices.Clone(model)
			fails := rapid.IntRange(0, 3).Draw(t, "fails") == 0
			before := slices.Clone(model)
			err := s.Update(context.Background(), func(tx *store.Tx) error {
				for range rapid.IntRange(1, 4).Draw(t, "steps") {
					v := thing{ID: id.Draw(t, "id"), Name: name.Draw(t, "name"), Parent: parent.Draw(t, "parent"), N: rapid.Int().Draw(t, "n")}
					at := slices.IndexFunc(draft, func(o thing) bool { return o.ID == v.ID })
					if rapid.IntRange(0, 2).Draw(t, "delete") == 0 {
						if err := things.Delete(tx, v.ID); err != nil {
							return err
						}
						if at >= 0 {
							draft = slices.Delete(draft, at, at+1)
						}
						continue
					}
					taken := v.Name != "" && slices.ContainsFunc(draft, func(o thing) bool {
						return o.ID != v.ID && o.Name == v.Name && o.Parent == v.Parent
					})
					switch err := things.Put(tx, v); {
					case taken && errors.Is(err, store.ErrExists):
					case taken || err != nil:
						return fmt.Errorf("put %+v (taken: %t): %w", v, taken, err)
					case at >= 0:
						draft[at] = v
					default:
						draft = append(draft, v)
					}
					same(t, tx, draft)
				}
				// Others still see what was.
				if err := s.View(context.Background(), func(tx *store.Tx) error {
					same(t, tx, before)
					return nil
				}); err != nil {
					return err
				}
				if fails {
					return giveUp
				}
				return nil
			})
			switch {
			case fails && errors.Is(err, giveUp):
			case err != nil:
				t.Fatal(err)
			default:
				model = draft
			}
			if err := s.View(context.Background(), func(tx *store.Tx) error {
				same(t, tx, model)
				return nil
			}); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if s, err = store.Open(path); err != nil {
			t.Fatal(err)
		}
		if err := s.View(context.Background(), func(tx *store.Tx) error {
			same(t, tx, model)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	})
}

// same fails unless the transaction sees exactly what is in the model.
func same(t *rapid.T, tx *store.Tx, model []thing) {
	all, err := things.All(tx)
	if err != nil || !slices.Equal(all, model) {
		t.Fatalf("there is %+v (%v), want %+v", all, err, model)
	}
	for _, id := range []string{"1", "2", "3", "4"} {
		at := slices.IndexFunc(model, func(o thing) bool { return o.ID == id })
		got, err := things.Get(tx, id)
		if at < 0 && !errors.Is(err, store.ErrNotFound) || at >= 0 && got != model[at] {
			t.Fatalf("get %s: %+v, %v; there is %+v", id, got, err, model)
		}
	}
	for _, name := range []string{"x", "y", "z"} {
		for _, parent := range []string{"", "p"} {
			at := slices.IndexFunc(model, func(o thing) bool { return o.Name == name && o.Parent == parent })
			got, err := things.Find(tx, "", parent, name)
			if at < 0 && !errors.Is(err, store.ErrNotFound) || at >= 0 && got != model[at] {
				t.Fatalf("find %s in %q: %+v, %v; there is %+v", name, parent, got, err, model)
			}
		}
	}
}

// tempDir is a folder for one draw of a property.
func tempDir(t *rapid.T) string {
	dir, err := os.MkdirTemp("", "store")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

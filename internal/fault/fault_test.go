package fault_test

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/openpcs/openpcs/internal/fault"
	"github.com/openpcs/openpcs/internal/store"
)

var noon = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

func TestNew(t *testing.T) {
	for _, tt := range []struct {
		name, kind   string
		count        int
		lasts, delay time.Duration
		typ, wrong   string
	}{
		{name: "once", kind: "lost-node"},
		{name: "some_times", kind: "agent-hang", count: 3},
		{name: "for_a_time", kind: "insufficient-capacity", lasts: time.Minute, typ: "t3.micro"},
		{name: "with_a_delay", kind: "slow-boot", delay: time.Second},
		{name: "unknown", kind: "meteor", wrong: `kind: "meteor" is not one of insufficient-capacity, slow-boot,`},
		{name: "negative", kind: "lost-node", count: -1, wrong: "count: -1 is not"},
		{name: "both", kind: "lost-node", count: 1, lasts: time.Second, wrong: "count and for: give one of them"},
		{name: "too_long", kind: "lost-node", lasts: 8 * 24 * time.Hour, wrong: "for: 192h0m0s is not"},
		{name: "no_delay", kind: "lost-node", delay: time.Second, wrong: "delay: lost-node has none"},
		{name: "by_type", kind: "lost-node", typ: "t3.micro", wrong: "type: lost-node is not by instance type"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f, err := fault.New(tt.kind, tt.count, tt.lasts, tt.delay, tt.typ, noon)
			switch {
			case tt.wrong != "" && (err == nil || !strings.Contains(err.Error(), tt.wrong)):
				t.Errorf("got %v, want %q", err, tt.wrong)
			case tt.wrong == "" && (err != nil || f.ID == "" || f.Over(noon)):
				t.Errorf("got %+v, %v", f, err)
			}
		})
	}
}

// A fault strikes as often as was asked, in its group alone, and then it is
// gone.
func TestStrike(t *testing.T) {
	st, err := store.Open(filepath.Join(t.TempDir(), "state.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = st.Close() }()
	add := func(kind string, count int, lasts time.Duration, typ string) {
		t.Helper()
		f, err := fault.New(kind, count, lasts, 0, typ, noon)
		if err != nil {
			t.Fatal(err)
		}
		f.ClusterID, f.GroupID, f.Group = "pcs_c", "pcs_g", "g"
		if err := st.Update(t.Context(), func(tx *store.Tx) error { return fault.Faults.Put(tx, f) }); err != nil {
			t.Fatal(err)
		}
	}
	strikes := func(group string, kind fault.Kind, typ string, now time.Time) (ok bool) {
		t.Helper()
		err := st.Update(t.Context(), func(tx *store.Tx) (err error) {
			_, ok, err = fault.Strike(tx, "pcs_c", group, kind, typ, now)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		return ok
	}
	add("lost-node", 2, 0, "")
	if strikes("pcs_other", fault.LostNode, "", noon) || strikes("pcs_g", fault.SlowBoot, "", noon) {
		t.Error("it strikes another group, or as another kind")
	}
	for n, want := range []bool{true, true, false} {
		if got := strikes("pcs_g", fault.LostNode, "", noon); got != want {
			t.Errorf("strike %d: %v", n+1, got)
		}
	}
	add("insufficient-capacity", 0, time.Minute, "big")
	if strikes("pcs_g", fault.InsufficientCapacity, "small", noon) {
		t.Error("it strikes another type")
	}
	for range 5 {
		if !strikes("pcs_g", fault.InsufficientCapacity, "big", noon.Add(59*time.Second)) {
			t.Error("it does not strike within its time")
		}
	}
	if strikes("pcs_g", fault.InsufficientCapacity, "big", noon.Add(time.Minute)) {
		t.Error("it strikes when its time is over")
	}
	err = st.Update(t.Context(), func(tx *store.Tx) error {
		return fault.Forget(tx, "pcs_c", noon.Add(time.Minute), func(string) bool { return false })
	})
	if err != nil {
		t.Fatal(err)
	}
	_ = st.View(t.Context(), func(tx *store.Tx) error {
		all, err := fault.Faults.All(tx)
		if err != nil || len(all) != 0 {
			t.Errorf("left are %+v, %v", all, err)
		}
		return nil
	})
}

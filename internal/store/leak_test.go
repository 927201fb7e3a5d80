package store

import (
	"context"
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

type fat struct {
	ID   string
	Text string
}

// Former snapshots go: a transaction that is over is not kept alive by what it
// made.
func TestFormerSnapshotsAreFreed(t *testing.T) {
	fats := NewCollection("fat", func(f fat) Index { return Index{ID: f.ID} })
	s, err := Open(filepath.Join(t.TempDir(), "s.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close() }()
	ctx := context.Background()
	heap := func() uint64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	text := strings.Repeat("x", 64<<10)
	round := func(n int) {
		for k := range n {
			if err := s.Update(ctx, func(tx *Tx) error {
				return fats.Put(tx, fat{ID: fmt.Sprint("f", k%8), Text: text})
			}); err != nil {
				t.Fatal(err)
			}
		}
	}
	round(16)
	before := heap()
	round(400)
	grown := int64(heap()) - int64(before)
	t.Logf("grown by %d KiB in 400 updates of 8 objects of 64 KiB", grown>>10)
	if grown > 4<<20 {
		t.Fatalf("the heap has grown by %d KiB", grown>>10)
	}
	runtime.KeepAlive(s)
}

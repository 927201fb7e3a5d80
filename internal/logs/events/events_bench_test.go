package events

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func BenchmarkAppend(b *testing.B) {
	d, err := Open(filepath.Join(b.TempDir(), "logs.db"))
	if err != nil {
		b.Fatal(err)
	}
	defer d.Close()
	now := time.Now()
	if err := d.CreateGroup(b.Context(), Group{Region: "r", Name: "g", Created: 1, Class: "STANDARD"}); err != nil {
		b.Fatal(err)
	}
	msg := strings.Repeat("x", 150)
	ev := make([]Input, 1000)
	for i := range ev {
		ev[i] = Input{Time: now.UnixMilli(), Message: fmt.Sprintf("%06d %s", i, msg)}
	}
	b.ResetTimer()
	for n := 0; b.Loop(); n++ {
		for i := range ev {
			ev[i].Time++
		}
		if err := d.Append(b.Context(), Batch{Region: "r", Group: "g", Stream: "s", Make: true, Events: ev, Now: now}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N*1000)/b.Elapsed().Seconds(), "events/s")
	var n int
	t0 := time.Now()
	_ = d.Scan(b.Context(), Window{Group: 1, To: 1 << 60}, func(Event) bool { n++; return true })
	b.Logf("scan %d in %v", n, time.Since(t0))
}

package events

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// BenchmarkAppend writes batches of 1,000 events of 150 bytes.
func BenchmarkAppend(b *testing.B) {
	d := withGroup(b)
	list := batchOf(1000)
	for b.Loop() {
		for n := range list {
			list[n].Time++
		}
		if err := d.Append(b.Context(), Batch{Region: "r", Group: "g", Stream: "s", Make: true, Events: list, Now: time.Now()}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N*len(list))/b.Elapsed().Seconds(), "events/s")
}

func batchOf(n int) []Input {
	list := make([]Input, n)
	for i := range list {
		list[i] = Input{Time: 1, Message: fmt.Sprintf("%06d %s", i, strings.Repeat("x", 143))}
	}
	return list
}

// BenchmarkScanHour reads an hour out of the events of a month: so many in all
// that the index has to find it.
func BenchmarkScanHour(b *testing.B) {
	d := withGroup(b)
	const days, perHour = 30, 400
	list := batchOf(days * 24 * perHour)
	for n := range list {
		list[n].Time = int64(n) * 3600_000 / perHour
	}
	if err := d.Append(b.Context(), Batch{Region: "r", Group: "g", Stream: "s", Make: true, Events: list, Now: time.Now()}); err != nil {
		b.Fatal(err)
	}
	if err := d.Append(b.Context(), Batch{Region: "r", Group: "g", Stream: "t", Make: true, Events: list[:1], Now: time.Now()}); err != nil {
		b.Fatal(err)
	}
	b.ResetTimer()
	for b.Loop() {
		n := 0
		from := int64(days/2) * 24 * 3600_000
		if err := d.Scan(b.Context(), Window{Group: 1, From: from, To: from + 3600_000 - 1}, func(Event) bool { n++; return true }); err != nil || n != perHour {
			b.Fatal(n, err)
		}
	}
}

package logs_test

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// BenchmarkPutLogEvents sends signed batches of 1,000 events of 150 bytes.
func BenchmarkPutLogEvents(b *testing.B) {
	f := newFixture(b)
	f.group("g")
	f.must("CreateLogStream", object{"logGroupName": "g", "logStreamName": "s"})
	var list []object
	for n := range 1000 {
		list = append(list, object{"timestamp": f.Clock.Now().UnixMilli(), "message": fmt.Sprintf("%04d %s", n, strings.Repeat("x", 145))})
	}
	in := object{"logGroupName": "g", "logStreamName": "s", "logEvents": list}
	for b.Loop() {
		f.must("PutLogEvents", in)
	}
	b.ReportMetric(1000*float64(b.N)/b.Elapsed().Seconds(), "events/s")
}

// BenchmarkFilterLogEvents searches an hour with 3,600 events, of a day of them,
// for four.
func BenchmarkFilterLogEvents(b *testing.B) {
	f := newFixture(b)
	f.group("g")
	begin := f.Clock.Now().Add(-24 * time.Hour)
	for hour := range 24 {
		for part := range 4 {
			f.events("g", fmt.Sprint("s", part), begin.Add(time.Duration(hour)*time.Hour+time.Duration(part)*15*time.Minute), numbered(900)...)
		}
	}
	in := object{"logGroupName": "g", "startTime": begin.Add(12 * time.Hour).UnixMilli(), "endTime": begin.Add(13 * time.Hour).UnixMilli(), "filterPattern": "899"}
	for b.Loop() {
		if got := messages(f.must("FilterLogEvents", in)); got != "899 899 899 899" {
			b.Fatal(got)
		}
	}
}

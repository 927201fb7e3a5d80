package logs_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/cloudwatchlogs"
	"github.com/aws/aws-sdk-go-v2/service/cloudwatchlogs/types"

	"github.com/openpcs/openpcs/internal/awsapi/awsapitest"
	"github.com/openpcs/openpcs/internal/logs"
)

func hours(n int) time.Duration { return time.Duration(n) * time.Hour }

func TestPutLogEvents(t *testing.T) {
	f := newFixture(t)
	f.group("g")
	f.must("CreateLogStream", object{"logGroupName": "g", "logStreamName": "s"})
	now := f.Clock.Now()
	event := func(ago time.Duration, message string) object {
		return object{"timestamp": now.Add(-ago).UnixMilli(), "message": message}
	}
	put := func(list ...object) object {
		return object{"logGroupName": "g", "logStreamName": "s", "logEvents": list}
	}
	all := func() string {
		return messages(f.must("GetLogEvents", object{"logGroupName": "g", "logStreamName": "s", "startFromHead": true}))
	}
	const wrong = "InvalidParameterException"
	for _, tt := range []struct {
		in   object
		says string
	}{
		{put(), "logEvents: has 0 entries, 1 to 10000 are allowed"},
		{put(object{"timestamp": 1}), "logEvents[0]: needs timestamp and message"},
		{put(event(0, "")), "logEvents[0].message: is empty"},
		{put(object{"timestamp": -1, "message": "x"}), "logEvents[0].timestamp"},
		{put(event(0, "a"), event(time.Second, "b")), "Log events in a single PutLogEvents request must be in chronological order."},
		{put(event(25*time.Hour, "a"), event(0, "b")), "cannot span more than 24 hours"},
		{put(event(0, strings.Repeat("x", 1<<20-25))), "Upload too large: 1048577 bytes exceeds limit of 1048576"},
		{put(slices.Repeat([]object{event(0, "x")}, 10_001)...), "has 10001 entries"},
	} {
		f.refuses("PutLogEvents", tt.in, wrong, tt.says)
	}
	f.refuses("PutLogEvents", with(put(event(0, "a")), object{"logGroupName": "none"}), "ResourceNotFoundException", "The specified log group does not exist.")
	f.refuses("PutLogEvents", with(put(event(0, "a")), object{"logStreamName": "none"}), "ResourceNotFoundException", "The specified log stream does not exist.")
	if got := all(); got != "" {
		t.Errorf("something was kept: %s", got)
	}

	// The largest batch, all of whose characters are escaped on the way.
	f.must("CreateLogStream", object{"logGroupName": "g", "logStreamName": "large"})
	f.must("PutLogEvents", with(put(event(0, strings.Repeat("\x01", 1<<20-26))), object{"logStreamName": "large"}))

	// Whatever a message has comes back as it was.
	odd := "tab\t \x00 \u2028 é 日本 \"quoted\" <&>\n"
	f.must("CreateLogStream", object{"logGroupName": "g", "logStreamName": "odd"})
	f.must("PutLogEvents", with(put(event(0, odd)), object{"logStreamName": "odd"}))
	if got := messages(f.must("GetLogEvents", object{"logGroupName": "g", "logStreamName": "odd"})); got != odd {
		t.Errorf("%q came back as %q", odd, got)
	}

	out := f.must("PutLogEvents", put(event(14*24*time.Hour+time.Minute, "too old"), event(14*24*time.Hour-time.Minute, "old")))
	if got := fmt.Sprint(out["rejectedLogEventsInfo"]); got != "map[tooOldLogEventEndIndex:1]" || len(out["nextSequenceToken"].(string)) != 56 {
		t.Errorf("got %v", out)
	}
	out = f.must("PutLogEvents", put(event(0, "now"), event(-2*time.Hour+time.Minute, "soon"), event(-3*time.Hour, "too new")))
	if got := fmt.Sprint(out["rejectedLogEventsInfo"]); got != "map[tooNewLogEventStartIndex:2]" {
		t.Errorf("got %s", got)
	}
	f.must("PutRetentionPolicy", object{"logGroupName": "g", "retentionInDays": 1})
	out = f.must("PutLogEvents", put(event(24*time.Hour+time.Minute, "expired"), event(23*time.Hour, "kept")))
	if got := fmt.Sprint(out["rejectedLogEventsInfo"]); got != "map[expiredLogEventEndIndex:1]" {
		t.Errorf("got %s", got)
	}
	if out = f.must("PutLogEvents", put(event(30*24*time.Hour, "all of it"))); out["rejectedLogEventsInfo"] == nil {
		t.Errorf("got %v", out)
	}
	if got := all(); got != "old kept now soon" {
		t.Errorf("got %s", got)
	}
}

// TestL9_SequenceTokensDoNotCount: who sends one, a wrong one or none is served
// alike.
func TestL9_SequenceTokensDoNotCount(t *testing.T) {
	f := newFixture(t)
	c := f.client()
	f.group("g")
	f.must("CreateLogStream", object{"logGroupName": "g", "logStreamName": "s"})
	var last *string
	for n, token := range []func() *string{
		func() *string { return nil }, func() *string { return last }, func() *string { return aws.String("wrong") },
		func() *string { return nil }, func() *string { return last },
	} {
		var in sdk.PutLogEventsInput
		in.LogGroupName, in.LogStreamName, in.SequenceToken = aws.String("g"), aws.String("s"), token()
		in.LogEvents = []types.InputLogEvent{{Timestamp: aws.Int64(f.Clock.Now().UnixMilli()), Message: aws.String(fmt.Sprint(n))}}
		out, err := c.PutLogEvents(t.Context(), &in)
		if err != nil {
			t.Fatalf("call %d: %v", n, err)
		}
		last = out.NextSequenceToken
	}
	if got := messages(f.must("FilterLogEvents", object{"logGroupName": "g"})); got != "0 1 2 3 4" {
		t.Errorf("got %s", got)
	}
}

// TestGetLogEvents goes through a stream in both directions.
func TestGetLogEvents(t *testing.T) {
	f := newFixture(t)
	f.group("g")
	begin := f.Clock.Now().Add(-time.Hour).Truncate(time.Second)
	f.events("g", "other", begin, "x", "y")
	f.events("g", "s", begin, numbered(10)...)
	at := func(n int) int64 { return begin.Add(time.Duration(n) * time.Second).UnixMilli() }
	get := func(more object) object {
		t.Helper()
		return f.must("GetLogEvents", with(object{"logGroupName": "g", "logStreamName": "s"}, more))
	}
	walk := func(in object, next string) (pages []string) {
		t.Helper()
		token := ""
		for range 20 {
			out := get(in)
			if out["nextForwardToken"] == nil || out["nextBackwardToken"] == nil {
				t.Fatalf("a token is missing: %v", out)
			}
			if out[next] == token {
				if len(out["events"].([]any)) != 0 {
					t.Errorf("the token came back with events: %v", out)
				}
				return pages
			}
			pages = append(pages, messages(out))
			token = out[next].(string)
			in = with(in, object{"nextToken": token, "startFromHead": next == "nextForwardToken"})
		}
		t.Fatal("there is no end")
		return nil
	}
	const forward, backward = "nextForwardToken", "nextBackwardToken"
	for _, tt := range []struct {
		in   object
		next string
		want string
	}{
		{object{"limit": 4, "startFromHead": true}, forward, "0 1 2 3|4 5 6 7|8 9"},
		{object{"limit": 4}, backward, "6 7 8 9|2 3 4 5|0 1"}, // the newest first, and a page in order
		{object{"limit": 4}, forward, "6 7 8 9"},
		{object{"limit": 5, "startFromHead": true}, forward, "0 1 2 3 4|5 6 7 8 9"},
		{object{"startTime": at(3), "endTime": at(6), "startFromHead": true}, forward, "3 4 5"}, // the end is not in it
		{object{"startTime": at(3), "endTime": at(6), "limit": 2}, backward, "4 5|3"},
		{object{"startTime": at(20)}, forward, ""},
		{object{"endTime": 0}, backward, ""},
	} {
		if got := strings.Trim(strings.Join(walk(tt.in, tt.next), "|"), "|"); got != tt.want {
			t.Errorf("%v by %s: got %s, want %s", tt.in, tt.next, got, tt.want)
		}
	}
	// At the end, the other token leads back; and what comes later is found.
	end := get(object{"startFromHead": true})
	empty := get(object{"nextToken": end[forward], "startFromHead": true})
	if got := messages(get(object{"nextToken": empty[backward], "limit": 3})); got != "7 8 9" {
		t.Errorf("back from the end: %s", got)
	}
	start := get(object{"nextToken": end[backward]})
	if got := messages(get(object{"nextToken": start[forward], "limit": 2, "startFromHead": true})); messages(start) != "" || got != "0 1" {
		t.Errorf("on from the start: %s", got)
	}
	f.events("g", "s", begin.Add(9*time.Second), "late", "later") // the first at the time of the last one
	if got := messages(get(object{"nextToken": empty[forward], "startFromHead": true})); got != "late later" {
		t.Errorf("after the end: %s", got)
	}
	byARN := f.must("GetLogEvents", object{"logGroupIdentifier": arn("log-group:g"), "logStreamName": "other"})
	if got := messages(byARN); got != "x y" {
		t.Errorf("by ARN: %s", got)
	}

	const wrong = "InvalidParameterException"
	f.refuses("GetLogEvents", object{"logGroupName": "g", "logStreamName": "s", "nextToken": "f/1"}, wrong, "The specified nextToken is invalid.")
	f.refuses("GetLogEvents", object{"logGroupName": "g", "logStreamName": "s", "limit": 0}, wrong, "limit: is 0, 1 to 10000")
	f.refuses("GetLogEvents", object{"logGroupName": "g", "logStreamName": "s", "startTime": -1}, wrong, "milliseconds since 1970")
	f.refuses("GetLogEvents", object{"logGroupName": "g"}, wrong, "logStreamName: is required")
	f.refuses("GetLogEvents", object{"logGroupName": "g", "logStreamName": "none"}, "ResourceNotFoundException", "The specified log stream does not exist.")
	f.refuses("GetLogEvents", object{"logGroupName": "none", "logStreamName": "s"}, "ResourceNotFoundException", "The specified log group does not exist.")
}

func TestFilterLogEvents(t *testing.T) {
	f := newFixture(t)
	f.group("g")
	begin := f.Clock.Now().Add(-time.Hour).Truncate(time.Second)
	at := func(n int) int64 { return begin.Add(time.Duration(n) * time.Second).UnixMilli() }
	f.events("g", "b", begin, "b0", "b1", "b2 ERROR")
	f.events("g", "a-1", begin, "a0", "a1 ERROR", "a2")
	f.events("g", "a-2", begin.Add(time.Second), "c1")
	for _, tt := range []struct {
		in   object
		want string
	}{
		{object{}, "b0 a0 b1 a1 ERROR c1 b2 ERROR a2"}, // by time, and then as they came
		{object{"filterPattern": "ERROR"}, "a1 ERROR b2 ERROR"},
		{object{"filterPattern": "ERROR", "logStreamNames": []any{"b"}}, "b2 ERROR"},
		{object{"logStreamNames": []any{"b", "a-2"}}, "b0 b1 c1 b2 ERROR"},
		{object{"logStreamNamePrefix": "a-"}, "a0 a1 ERROR c1 a2"},
		{object{"logStreamNamePrefix": "none"}, ""},
		{object{"startTime": at(1), "endTime": at(1)}, "b1 a1 ERROR c1"}, // the end is in it
		{object{"endTime": at(0)}, "b0 a0"},
		{object{"startTime": at(1), "startFromHead": false}, "a2 b2 ERROR c1 a1 ERROR b1"},
		{object{"limit": 2}, "b0 a0"},
		{object{"interleaved": true, "unmask": true, "startTime": at(2)}, "b2 ERROR a2"},
	} {
		out := f.must("FilterLogEvents", with(object{"logGroupName": "g"}, tt.in))
		if got := messages(out); got != tt.want {
			t.Errorf("%v: got %s, want %s", tt.in, got, tt.want)
		}
		if (out["nextToken"] != nil) != (tt.in["limit"] != nil) || len(out["searchedLogStreams"].([]any)) != 0 {
			t.Errorf("%v: got %v", tt.in, out)
		}
	}

	// Page by page, with the official client; ids stay, and are unlike each other.
	for _, down := range []bool{false, true} {
		in := sdk.FilterLogEventsInput{LogGroupName: aws.String("g"), Limit: aws.Int32(2), FilterPattern: aws.String(`?a ?b`), StartFromHead: aws.Bool(!down), StartTime: aws.Int64(at(0))}
		var got, ids []string
		pages := sdk.NewFilterLogEventsPaginator(f.client(), &in)
		n := 0
		for ; pages.HasMorePages(); n++ {
			page, err := pages.NextPage(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range page.Events {
				got, ids = append(got, *e.Message), append(ids, *e.EventId)
				if *e.IngestionTime != f.Clock.Now().UnixMilli() || *e.LogStreamName == "" {
					t.Errorf("got %+v", e)
				}
			}
		}
		want := "b0,a0,b1,a1 ERROR,b2 ERROR,a2"
		if down {
			slices.Reverse(got)
			slices.Reverse(ids)
		}
		if s := strings.Join(got, ","); s != want || n != 3 {
			t.Errorf("down %v: got %s in %d pages", down, s, n)
		}
		var whole []string
		for _, e := range f.must("FilterLogEvents", object{"logGroupName": "g", "filterPattern": "?a ?b"})["events"].([]any) {
			whole = append(whole, e.(object)["eventId"].(string))
		}
		if !slices.Equal(ids, whole) || len(slices.Compact(slices.Sorted(slices.Values(ids)))) != 6 {
			t.Errorf("ids: %v and %v", ids, whole)
		}
	}

	const wrong = "InvalidParameterException"
	f.refuses("FilterLogEvents", object{"logGroupName": "g", "filterPattern": "exit-code"}, wrong, `Invalid character(s) in term 'exit-code': a term with other characters than letters, digits and _ needs double quotes, as in "exit-code" (at character 5)`)
	f.refuses("FilterLogEvents", object{"logGroupName": "g", "filterPattern": "{ $.a = 1"}, wrong, "Invalid filter pattern")
	f.refuses("FilterLogEvents", object{"logGroupName": "g", "logStreamNames": []any{"b"}, "logStreamNamePrefix": "a"}, wrong, "give one of them")
	f.refuses("FilterLogEvents", object{"logGroupName": "g", "startFromHead": false}, wrong, "2024-01-01")
	f.refuses("FilterLogEvents", object{"logGroupName": "g", "limit": 10001}, wrong, "1 to 10000")
	f.refuses("FilterLogEvents", object{"logGroupName": "g", "nextToken": "x"}, wrong, "token")
	f.refuses("FilterLogEvents", object{"logGroupName": "none"}, "ResourceNotFoundException", "The specified log group does not exist.")
	f.refuses("FilterLogEvents", object{"logGroupName": "g", "logStreamNames": []any{"none"}}, "ResourceNotFoundException", "The specified log stream does not exist.")
}

// TestLongSearch: a search of many events is one of several pages, empty ones
// among them, and finds all.
func TestLongSearch(t *testing.T) {
	f := newFixture(t)
	f.group("g")
	f.events("g", "s", f.Clock.Now().Add(-time.Hour), numbered(20)...)
	t.Cleanup(logs.SetMaxSearched(3))
	in := object{"logGroupName": "g", "filterPattern": "?4 ?15"}
	var pages []string
	for {
		out := f.must("FilterLogEvents", in)
		pages = append(pages, messages(out))
		if out["nextToken"] == nil {
			break
		}
		in = with(in, object{"nextToken": out["nextToken"]})
	}
	if got := strings.Join(pages, "|"); got != "|4|||14|15|" {
		t.Errorf("got %s", got)
	}
}

// TestPagesHaveOneMegabyte: a page ends there, and the next goes on.
func TestPagesHaveOneMegabyte(t *testing.T) {
	f := newFixture(t)
	f.group("g")
	big := strings.Repeat("x", 400<<10)
	begin := f.Clock.Now().Add(-time.Hour)
	for n := range 5 {
		f.events("g", "s", begin.Add(time.Duration(n)*time.Minute), fmt.Sprint(n, big))
	}
	sizes := func(op, next string) (got []int) {
		in := object{"logGroupName": "g"}
		if op == "GetLogEvents" {
			in["logStreamName"], in["startFromHead"] = "s", true
		}
		for {
			out := f.must(op, in)
			if len(out["events"].([]any)) == 0 {
				return got
			}
			got = append(got, len(out["events"].([]any)))
			if out[next] == nil {
				return got
			}
			in = with(in, object{"nextToken": out[next]})
		}
	}
	for op, next := range map[string]string{"GetLogEvents": "nextForwardToken", "FilterLogEvents": "nextToken"} {
		if got := fmt.Sprint(sizes(op, next)); got != "[2 2 1]" {
			t.Errorf("%s: got %s", op, got)
		}
	}
}

// TestDeliver: what is handed over again is kept once, and a log group or stream
// that was made anew begins empty.
func TestDeliver(t *testing.T) {
	f := newFixture(t)
	ctx := t.Context()
	deliver := func(from string, places ...int64) error {
		var list []logs.Event
		for _, p := range places {
			list = append(list, logs.Event{Place: p, Time: f.Clock.Now().UnixMilli() + p, Message: fmt.Sprint(from, p)})
		}
		return f.logs.Deliver(ctx, awsapitest.Region, "g", "AWSLogs/PCS/x/slurmctld_26.05.log", from, list)
	}
	if err := deliver("a", 1); !errors.Is(err, logs.ErrNoGroup) {
		t.Errorf("without the group: %v", err)
	}
	f.group("g")
	for _, places := range [][]int64{{1, 2}, {1, 2}, {2, 3, 4}, {}, {3}} {
		if err := deliver("a", places...); err != nil {
			t.Fatal(err)
		}
	}
	if err := deliver("b", 1); err != nil { // another origin has places of its own
		t.Fatal(err)
	}
	if err := deliver("", 1); err == nil {
		t.Error("an origin without a name is taken")
	}
	all := func() string { return messages(f.must("FilterLogEvents", object{"logGroupName": "g"})) }
	if got := all(); got != "a1 b1 a2 a3 a4" {
		t.Errorf("got %s", got)
	}
	f.must("DeleteLogStream", object{"logGroupName": "g", "logStreamName": "AWSLogs/PCS/x/slurmctld_26.05.log"})
	if got := all(); got != "" {
		t.Errorf("of the deleted stream: %s", got)
	}
	if err := deliver("a", 4, 5); err != nil {
		t.Fatal(err)
	}
	if got := all(); got != "a4 a5" {
		t.Errorf("in the new stream: %s", got)
	}
	f.must("DeleteLogGroup", object{"logGroupName": "g"})
	f.group("g")
	if got := all(); got != "" {
		t.Errorf("in the new group: %s", got)
	}
}

// TestRetention: what is too old goes, and with it its bytes; so does what is
// left of deleted groups.
func TestRetention(t *testing.T) {
	f := newFixture(t)
	f.group("g")
	f.group("gone")
	now := f.Clock.Now()
	f.events("g", "s", now.Add(-4*24*time.Hour), "old1", "old2")
	f.events("g", "s", now.Add(-3*24*time.Hour), "just")
	f.events("g", "s", now.Add(-2*24*time.Hour), "new")
	f.events("gone", "s", now, "x")
	bytes := func() any {
		return f.must("DescribeLogGroups", object{"logGroupNamePrefix": "g"})["logGroups"].([]any)[0].(object)["storedBytes"]
	}
	sweep := func() {
		t.Helper()
		if err := f.logs.Sweep(t.Context(), now); err != nil {
			t.Fatal(err)
		}
	}
	all := func() string { return messages(f.must("FilterLogEvents", object{"logGroupName": "g"})) }
	sweep()
	if got := all(); got != "old1 old2 just new" || bytes() != 4*26.0+15 {
		t.Errorf("without a retention: %s, %v bytes", got, bytes())
	}
	f.must("PutRetentionPolicy", object{"logGroupName": "g", "retentionInDays": 3})
	f.must("DeleteLogGroup", object{"logGroupName": "gone"})
	sweep()
	if got := all(); got != "just new" || bytes() != 2*26.0+7 {
		t.Errorf("with three days: %s, %v bytes", got, bytes())
	}
}

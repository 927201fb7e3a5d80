package metrics

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/history"
	"github.com/openpcs/openpcs/internal/slurm"
	"github.com/openpcs/openpcs/internal/store"
)

var write = flag.Bool("write", false, "write the table in docs/metrics.md")

// read returns what is served, by name and labels as they are written.
func read(t *testing.T, r *Registry) (samples map[string]float64, types map[string]string) {
	t.Helper()
	w := httptest.NewRecorder()
	r.Handler(slog.New(slog.NewTextHandler(io.Discard, nil))).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	if w.Code != 200 || w.Header().Get("Content-Type") != contentType {
		t.Fatalf("answered %d %s", w.Code, w.Header())
	}
	samples, types = map[string]float64{}, map[string]string{}
	line := regexp.MustCompile(`^([a-z_]+(?:\{(?:[a-z_]+="(?:[^"\\]|\\.)*",?)*\})?) (\S+)$`)
	for s := bufio.NewScanner(w.Body); s.Scan(); {
		if rest, ok := strings.CutPrefix(s.Text(), "# TYPE "); ok {
			name, kind, _ := strings.Cut(rest, " ")
			if types[name] != "" {
				t.Errorf("%s is there twice", name)
			}
			types[name] = kind
			continue
		}
		if strings.HasPrefix(s.Text(), "# HELP ") {
			continue
		}
		m := line.FindStringSubmatch(s.Text())
		if m == nil {
			t.Fatalf("this is no sample: %s", s.Text())
		}
		v, err := strconv.ParseFloat(m[2], 64)
		if _, twice := samples[m[1]]; twice || err != nil {
			t.Errorf("%s is there twice, or %v", m[1], err)
		}
		samples[m[1]] = v
	}
	return samples, types
}

func expect(t *testing.T, got map[string]float64, want map[string]float64) {
	t.Helper()
	for name, v := range want {
		if have, ok := got[name]; !ok || have != v {
			t.Errorf("%s is %v (there: %v), want %v", name, have, ok, v)
		}
	}
}

// demo is a cluster with a node in each of the states given, as slurmctld
// tells them.
func demo(states ...string) Cluster {
	g := fleet.Group{ID: "pcs_g", Name: "g", Status: fleet.Active, Max: len(states), InstanceTypes: []string{"t3.micro"}, SubnetIDs: []string{"subnet-1"}}
	c := Cluster{
		Cluster:  fleet.Cluster{ID: "pcs_c", Name: "demo", Version: "26.05", Region: "r", Status: fleet.Active, ConfigHash: "x"},
		Observed: fleet.Observed{Now: time.Unix(0, 0), Groups: []fleet.Group{g}, Nodes: map[string]fleet.Node{}, Slurm: map[string]slurm.Node{}},
	}
	for k, s := range states {
		name := g.NodeName(k + 1)
		c.Observed.Slurm[name] = slurm.Node{Name: name, State: strings.Split(s, "+")}
	}
	return c
}

// of is a registry that gathers clusters.
func of(clusters ...Cluster) *Registry {
	r := New()
	r.Gather(PartFleet, func(s *Scrape) error { s.Fleet(clusters); return nil })
	return r
}

// M1: sinfo shows flags as a sign behind the state; each is a flag here, and a
// node that does not answer, or is about to go, is no capacity.
func TestM1_FlagsAreNoStates(t *testing.T) {
	for _, tt := range []struct {
		sinfo, state string
		flag         string
		ready        float64
	}{
		{"idle", "IDLE+CLOUD", "cloud", 1},
		{"idle*", "IDLE+CLOUD+NOT_RESPONDING", "not_responding", 0},
		{"idle~", "IDLE+CLOUD+POWERED_DOWN", "powered_down", 0},
		{"idle#", "IDLE+CLOUD+POWERING_UP", "powering_up", 0},
		{"idle!", "IDLE+CLOUD+POWER_DOWN", "power_down", 0},
		{"idle%", "IDLE+CLOUD+POWERING_DOWN", "powering_down", 0},
		{"mixed$", "MIXED+CLOUD+MAINTENANCE+RESERVED", "maintenance", 1},
		{"mixed@", "MIXED+CLOUD+REBOOT_REQUESTED", "reboot_requested", 1},
		{"mixed^", "MIXED+CLOUD+REBOOT_ISSUED", "reboot_issued", 0},
		{"mixed-", "MIXED+CLOUD+PLANNED", "planned", 1},
		{"drng", "ALLOCATED+CLOUD+DRAIN", "drain", 0},
	} {
		got, _ := read(t, of(demo(tt.state)))
		base, _, _ := strings.Cut(tt.state, "+")
		want := map[string]float64{
			`openpcs_slurm_nodes_ready{cluster="pcs_c"}`:                                          tt.ready,
			fmt.Sprintf(`openpcs_slurm_nodes{cluster="pcs_c",state="%s"}`, strings.ToLower(base)): 1,
			fmt.Sprintf(`openpcs_slurm_node_flags{cluster="pcs_c",flag="%s"}`, tt.flag):           1,
			`openpcs_slurm_nodes{cluster="pcs_c",state="other"}`:                                  0,
			`openpcs_slurm_node_flags{cluster="pcs_c",flag="other"}`:                              0,
			`openpcs_slurm_nodes{cluster="pcs_c",state="down"}`:                                   0,
		}
		t.Run(tt.sinfo, func(t *testing.T) { expect(t, got, want) })
	}
}

// M3: a state that nobody knows yet is counted as such, and takes nothing else
// with it.
func TestM3_UnknownStates(t *testing.T) {
	c := demo("SHINY+CLOUD", "IDLE+CLOUD+GLOWING", "", "DOWN+CLOUD")
	c.Status = "RESTING"
	c.Observed.Instances = []fleet.Instance{{ID: "i-1", GroupID: "pcs_g", NodeName: "g-1", State: "melting"}}
	got, _ := read(t, of(c))
	expect(t, got, map[string]float64{
		`openpcs_slurm_nodes{cluster="pcs_c",state="other"}`:     2,
		`openpcs_slurm_nodes{cluster="pcs_c",state="idle"}`:      1,
		`openpcs_slurm_nodes{cluster="pcs_c",state="down"}`:      1,
		`openpcs_slurm_node_flags{cluster="pcs_c",flag="cloud"}`: 3,
		`openpcs_slurm_node_flags{cluster="pcs_c",flag="other"}`: 1,
		`openpcs_instances{cluster="pcs_c",state="other"}`:       1,
		`openpcs_clusters{status="other"}`:                       1,
		`openpcs_unknown_states_total`:                           3,
		`openpcs_group_instances_max{cluster="pcs_c",group="g"}`: 4,
	})
}

// M4: a series of a state in which nothing is has a zero, so that a graph of it
// shows one.
func TestM4_ZerosAreThere(t *testing.T) {
	got, _ := read(t, of(demo()))
	for _, m := range []*Metric{Instances, Nodes, SlurmNodes, SlurmFlags} {
		last := m.Labels[len(m.Labels)-1]
		for _, v := range last.Values {
			expect(t, got, map[string]float64{fmt.Sprintf(`%s{cluster="pcs_c",%s="%s"}`, m.Name, last.Name, v): 0})
		}
	}
	got, _ = read(t, New()) // without any cluster
	for _, stage := range launchStages {
		expect(t, got, map[string]float64{fmt.Sprintf(`openpcs_launches_total{stage="%s"}`, stage): 0})
	}
	expect(t, got, map[string]float64{
		`openpcs_clusters{status="ACTIVE"}`: 0, `openpcs_planner_passes_total{result="failed"}`: 0,
		`openpcs_launch_seconds_bucket{stage="ready",le="+Inf"}`: 0, `openpcs_launch_seconds_count{stage="ready"}`: 0,
	})
}

// M6: without accounting, and without deliveries, all else is there; and what
// cannot be gathered leaves the rest alone.
func TestM6_PartsThatAreNotThere(t *testing.T) {
	r := of(demo("IDLE+CLOUD"))
	r.Gather(PartDelivery, func(s *Scrape) error {
		s.Delivery(Delivery{Cluster: "pcs_c", ID: "d"})
		return errors.New("it has none")
	})
	for n := range 2 {
		got, types := read(t, r)
		expect(t, got, map[string]float64{
			`openpcs_slurm_nodes{cluster="pcs_c",state="idle"}`:      1,
			`openpcs_gather_errors_total{part="delivery"}`:           float64(n + 1),
			`openpcs_gather_errors_total{part="fleet"}`:              0,
			`openpcs_group_nodes_up{cluster="pcs_c",group="g"}`:      0,
			`openpcs_nodes{cluster="pcs_c",state="off"}`:             1,
			`openpcs_controller_reachable{cluster="pcs_c"}`:          1,
			`openpcs_breaker_open{cluster="pcs_c",group="g"}`:        0,
			`openpcs_group_pools{cluster="pcs_c",group="g"}`:         1,
			`openpcs_group_instances_min{cluster="pcs_c",group="g"}`: 0,
		})
		if types["openpcs_delivery_lag_seconds"] != "" {
			t.Error("half of what could not be gathered is there")
		}
	}
}

// everything is a registry in which each metric has a value.
func everything() *Registry {
	r := of(demo("IDLE+CLOUD"))
	r.Gather(PartDelivery, func(s *Scrape) error {
		s.Delivery(Delivery{Cluster: "pcs_c", ID: "d", LogType: "PCS_SCHEDULER_LOGS", LogName: "slurmctld", Destination: "S3", LagSeconds: 1.5, Lag: 7, Delivered: 8, Dropped: 9, Refused: 3, Retries: 10, Failing: true})
		s.Journal("pcs_c", "PCS_SCHEDULER_LOGS", "slurmctld", 11, 20)
		return nil
	})
	r.Gather(PartProcess, func(s *Scrape) error {
		s.Set(Build, 1, "v1")
		for _, m := range []*Metric{Start, Memory, Goroutines} {
			s.Set(m, 1)
		}
		return nil
	})
	r.Call("pcs", "GetCluster", 200, 2*time.Millisecond)
	r.Observe(PassSeconds, .002)
	r.Event(store.Event{Kind: "assigned"}, func(string) bool { return true })
	return r
}

// What is served is the table, and the other way round.
func TestTableIsServed(t *testing.T) {
	got, types := read(t, everything())
	names := map[string]bool{}
	for _, m := range All() {
		names[m.Name] = true
		if types[m.Name] != string(m.Kind) {
			t.Errorf("%s is served as %q, and is a %s", m.Name, types[m.Name], m.Kind)
		}
		// Names as Prometheus has them (its naming guide).
		if (m.Kind == Counter) != strings.HasSuffix(m.Name, "_total") || (m.Kind == Histogram && !strings.HasSuffix(m.Name, "_seconds")) {
			t.Errorf("%s is no name of a %s", m.Name, m.Kind)
		}
		if !strings.HasSuffix(m.Text, ".") || !slices.IsSorted(m.Buckets) {
			t.Errorf("%s: its text is no sentence, or its buckets do not rise", m.Name)
		}
		for _, l := range m.Labels {
			if (l.Text == "") == (l.Values == nil) {
				t.Errorf("the label %s of %s has values or a text", l.Name, m.Name)
			}
		}
	}
	for name := range types {
		if !names[name] {
			t.Errorf("%s is served, and not in the table", name)
		}
	}
	expect(t, got, map[string]float64{
		`openpcs_delivery_dropped_records_total{cluster="pcs_c",delivery="d",log_type="PCS_SCHEDULER_LOGS",log_name="slurmctld",destination="S3"}`: 9,
		`openpcs_delivery_lag_seconds{cluster="pcs_c",delivery="d",log_type="PCS_SCHEDULER_LOGS",log_name="slurmctld",destination="S3"}`:           1.5,
		`openpcs_journal_records{cluster="pcs_c",log_type="PCS_SCHEDULER_LOGS",log_name="slurmctld"}`:                                              10,
		`openpcs_journal_records_total{cluster="pcs_c",log_type="PCS_SCHEDULER_LOGS",log_name="slurmctld"}`:                                        20,
	})
}

// TestPage holds the table in docs/metrics.md to the one in the code.
func TestPage(t *testing.T) {
	path := filepath.Join("..", "..", "docs", "metrics.md")
	doc, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const begin, end = "<!-- table -->\n", "<!-- end of table -->\n"
	before, rest, ok := strings.Cut(string(doc), begin)
	_, after, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the table", path)
	}
	want := before + begin + Page() + end + after
	if *write {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if string(doc) != want {
		t.Error("docs/metrics.md is out of date: run make docs")
	}
}

func TestHistogram(t *testing.T) {
	r := New()
	for _, v := range []float64{.05, .1, .1001, 700} { // a bound is in its bucket
		r.Observe(LaunchSeconds, v, StageReady)
	}
	got, _ := read(t, r)
	expect(t, got, map[string]float64{
		`openpcs_launch_seconds_bucket{stage="ready",le="0.1"}`:  2,
		`openpcs_launch_seconds_bucket{stage="ready",le="0.25"}`: 3,
		`openpcs_launch_seconds_bucket{stage="ready",le="600"}`:  3,
		`openpcs_launch_seconds_bucket{stage="ready",le="+Inf"}`: 4,
		`openpcs_launch_seconds_count{stage="ready"}`:            4,
		`openpcs_launch_seconds_sum{stage="ready"}`:              .05 + .1 + .1001 + 700,
	})
}

func TestEventsCountLaunches(t *testing.T) {
	r := New()
	known := func(kind string) bool { return slices.Contains(history.Kinds(), kind) }
	for kind, detail := range map[string]string{
		"assigned": `{}`, "launched": `{"afterMs":386}`, "registered": `{"afterMs":793}`, "ready": `{"afterMs":999}`,
		"launch-failed": `{"code":"X"}`, "bootstrap-failed": `not JSON`, "lost": `{}`, "suspend": `{}`, "of a newer openpcs": `{"afterMs":1}`,
	} {
		r.Event(store.Event{Kind: kind, Detail: []byte(detail)}, known)
	}
	got, _ := read(t, r)
	expect(t, got, map[string]float64{
		`openpcs_launches_total{stage="assigned"}`: 1, `openpcs_launches_total{stage="ready"}`: 1,
		`openpcs_launches_total{stage="failed"}`: 2, `openpcs_launches_total{stage="lost"}`: 1,
		`openpcs_launch_seconds_sum{stage="registered"}`: .793, `openpcs_launch_seconds_count{stage="launched"}`: 1,
		`openpcs_events_total{kind="suspend"}`: 1, `openpcs_events_total{kind="other"}`: 1,
	})
	for kind := range stages {
		if !known(kind) {
			t.Errorf("no event is a %q", kind)
		}
	}
}

// Whatever comes from outside, the number of series is bounded, and a value
// cannot break the format.
func TestSeriesAreBounded(t *testing.T) {
	r := New()
	r.Add(APIRequests, 1, "pcs", "a\"b\\c\nd\xff{}", "200")
	for n := range 3 * maxSeries {
		r.Add(APIRequests, 1, "pcs", fmt.Sprint(n), "200")
	}
	got, _ := read(t, r)
	if n := len(r.counted[APIRequests]); n > maxSeries+1 {
		t.Errorf("there are %d series", n)
	}
	sum := 0.0
	for name, v := range got {
		if strings.HasPrefix(name, "openpcs_api_requests_total") {
			sum += v
		}
	}
	if sum != 3*maxSeries+1 {
		t.Errorf("of %d calls %v were counted", 3*maxSeries+1, sum)
	}
	if _, ok := got[`openpcs_api_requests_total{service="pcs",operation="a\"b\\c\nd`+"\uFFFD"+`{}",status="200"}`]; !ok {
		t.Error("the value with signs of the format is not there as it is")
	}
}

func TestCalls(t *testing.T) {
	r := New()
	for _, method := range []string{"GET", "get", "GETS", "PUT"} {
		r.Call("s3", method, 200, time.Second)
	}
	r.Call("", "", 403, time.Millisecond)
	got, _ := read(t, r)
	expect(t, got, map[string]float64{
		`openpcs_api_requests_total{service="s3",operation="GET",status="200"}`:   1,
		`openpcs_api_requests_total{service="s3",operation="other",status="200"}`: 2,
		`openpcs_api_requests_total{service="",operation="",status="403"}`:        1,
		`openpcs_api_request_seconds_sum{service="s3",operation="PUT"}`:           1,
	})
}

// BenchmarkScrape is of a cluster with 2,048 nodes, all of them up.
func BenchmarkScrape(b *testing.B) {
	c := demo(slices.Repeat([]string{"IDLE+CLOUD"}, 2048)...)
	for name := range c.Observed.Slurm {
		c.Observed.Instances = append(c.Observed.Instances, fleet.Instance{ID: name, GroupID: "pcs_g", NodeName: name, State: fleet.Running})
	}
	r := of(c)
	for b.Loop() {
		if _, err := r.scrape(); err != nil {
			b.Fatal(err)
		}
	}
}

func TestScrapesSideBySide(t *testing.T) {
	r := everything()
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for range 50 {
				r.Add(APIRequests, 1, "ec2", "X", "200")
				r.Observe(APISeconds, 1, "ec2", "X")
				if v, err := r.scrape(); err != nil || len(v.text()) == 0 {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	got, _ := read(t, r)
	expect(t, got, map[string]float64{`openpcs_api_requests_total{service="ec2",operation="X",status="200"}`: 200, `openpcs_api_request_seconds_count{service="ec2",operation="X"}`: 200})
}

func TestOnlyGet(t *testing.T) {
	w := httptest.NewRecorder()
	New().Handler(slog.Default()).ServeHTTP(w, httptest.NewRequest("POST", "/metrics", nil))
	if w.Code != 405 {
		t.Errorf("POST is answered with %d", w.Code)
	}
}

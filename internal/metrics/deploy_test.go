package metrics

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestDashboard: every metric that the dashboard and the sample for Prometheus
// name is in the table, or among Slurm's (deploy/grafana/slurm-26.05.txt, which
// the end-to-end tests hold to a real slurmctld); every label is one of its
// metric; and no metric is shown with a label value that it cannot have.
func TestDashboard(t *testing.T) {
	deploy := filepath.Join("..", "..", "deploy")
	read := func(name string) string {
		t.Helper()
		text, err := os.ReadFile(filepath.Join(deploy, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	slurms := strings.Fields(read("grafana/slurm-26.05.txt"))
	var dashboard struct {
		UID    string
		Panels []struct {
			ID      int
			Type    string
			Title   string
			Targets []struct {
				RefID, Expr string
			}
		}
		Templating struct {
			List []struct{ Name, Query string }
		}
	}
	if err := json.Unmarshal([]byte(read("grafana/openpcs.json")), &dashboard); err != nil {
		t.Fatal(err)
	}
	byName := map[string]*Metric{}
	for _, m := range All() {
		byName[m.Name] = m
	}
	selector := regexp.MustCompile(`\b((?:openpcs|slurm)_[a-z_]+)(?:\{([^}]*)\})?`)
	matcher := regexp.MustCompile(`([a-z_]+)(=~|!~|!=|=)"([^"]*)"`)
	shown := map[string]bool{}
	check := func(where, expression string) {
		t.Helper()
		for _, s := range selector.FindAllStringSubmatch(expression, -1) {
			name := s[1]
			if name == "slurm_cluster" { // a label of the sample's
				continue
			}
			if strings.HasPrefix(name, "slurm_") {
				if !slices.Contains(slurms, name) {
					t.Errorf("%s: Slurm has no %s", where, name)
				}
				continue
			}
			m := byName[strings.TrimSuffix(name, "_bucket")]
			if m == nil || (m.Kind == Histogram) != strings.HasSuffix(name, "_bucket") {
				t.Errorf("%s: the table has no %s", where, name)
				continue
			}
			shown[m.Name] = true
			for _, l := range matcher.FindAllStringSubmatch(s[2], -1) {
				i := slices.IndexFunc(m.Labels, func(known Label) bool { return known.Name == l[1] })
				if i < 0 {
					t.Errorf("%s: %s has no label %s", where, name, l[1])
					continue
				}
				for value := range strings.SplitSeq(l[3], "|") {
					if all := m.Labels[i].Values; all != nil && !slices.Contains(all, value) {
						t.Errorf("%s: %s of %s is never %s", where, l[1], name, value)
					}
				}
			}
		}
	}
	ids := map[int]bool{}
	for _, p := range dashboard.Panels {
		if ids[p.ID] || (p.Type != "row" && len(p.Targets) == 0) {
			t.Errorf("the panel %q shows nothing, or has the id of another", p.Title)
		}
		ids[p.ID] = true
		for _, target := range p.Targets {
			check(p.Title, target.Expr)
		}
	}
	for _, v := range dashboard.Templating.List {
		check("the variable "+v.Name, v.Query)
	}
	for _, must := range []*Metric{Nodes, Instances, Launches, LaunchSeconds, APIRequests, DeliveryLagSeconds, BreakerOpen, Dropped} {
		if !shown[must.Name] {
			t.Errorf("the dashboard does not show %s", must.Name)
		}
	}
	sample := read("prometheus/prometheus.yml")
	for _, page := range []string{"jobs", "nodes", "partitions", "jobs-users-accts", "scheduler"} {
		if !strings.Contains(sample, "metrics_path: /metrics/"+page+"\n") {
			t.Errorf("the sample for Prometheus does not read /metrics/%s", page)
		}
	}
}

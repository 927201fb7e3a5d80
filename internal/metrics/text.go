package metrics

import (
	"bytes"
	"cmp"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// contentType is that of the text format of Prometheus, version 0.0.4.
const contentType = "text/plain; version=0.0.4; charset=utf-8"

// Handler answers scrapes.
func (r *Registry) Handler(log *slog.Logger) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Method != http.MethodGet && req.Method != http.MethodHead {
			w.Header().Set("Allow", "GET, HEAD")
			http.Error(w, "metrics are read with GET", http.StatusMethodNotAllowed)
			return
		}
		v, err := r.scrape()
		if err != nil {
			log.Warn("Some metrics could not be gathered", "err", err)
		}
		w.Header().Set("Content-Type", contentType)
		_, _ = w.Write(v.text()) // who is gone needs no answer
	})
}

// text writes the values in the text format, in the order of the table.
func (v values) text() []byte {
	var b bytes.Buffer
	for _, m := range table {
		all := v[m]
		if len(all) == 0 {
			continue
		}
		fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s %s\n", m.Name, helpEscapes.Replace(m.Text), m.Name, m.Kind)
		sorted := slices.SortedFunc(mapValues(all), func(a, b *series) int { return slices.Compare(a.labels, b.labels) })
		for _, s := range sorted {
			if m.Kind != Histogram {
				line(&b, m.Name, m.Labels, s.labels, "", s.value)
				continue
			}
			var sum uint64
			for i, n := range s.counts {
				sum += n
				bound := inf
				if i < len(m.Buckets) {
					bound = m.Buckets[i]
				}
				line(&b, m.Name+"_bucket", m.Labels, s.labels, number(bound), float64(sum))
			}
			line(&b, m.Name+"_sum", m.Labels, s.labels, "", s.value)
			line(&b, m.Name+"_count", m.Labels, s.labels, "", float64(s.n))
		}
	}
	return b.Bytes()
}

func mapValues(all map[string]*series) func(yield func(*series) bool) {
	return func(yield func(*series) bool) {
		for _, s := range all {
			if !yield(s) {
				return
			}
		}
	}
}

// line writes one sample; le is the bound of a bucket, empty for none.
func line(b *bytes.Buffer, name string, labels []Label, values []string, le string, v float64) {
	b.WriteString(name)
	var pairs []string
	for i, l := range labels {
		pairs = append(pairs, l.Name+`="`+valueEscapes.Replace(strings.ToValidUTF8(values[i], "\uFFFD"))+`"`)
	}
	if le != "" {
		pairs = append(pairs, `le="`+le+`"`)
	}
	if len(pairs) > 0 {
		b.WriteString("{" + strings.Join(pairs, ",") + "}")
	}
	b.WriteString(" " + number(v) + "\n")
}

var (
	helpEscapes  = strings.NewReplacer(`\`, `\\`, "\n", `\n`)
	valueEscapes = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)
)

func number(v float64) string {
	switch {
	case math.IsInf(v, 1):
		return "+Inf"
	case math.IsInf(v, -1):
		return "-Inf"
	case math.IsNaN(v):
		return "NaN"
	}
	return strconv.FormatFloat(v, 'g', -1, 64)
}

// Page writes the tables of docs/metrics.md: every metric with its labels, and
// what the labels can be.
func Page() string {
	var b strings.Builder
	b.WriteString("| metric | type | labels | meaning |\n|---|---|---|---|\n")
	type meaning struct{ label, text string }
	var meanings []meaning
	of := map[meaning][]string{}
	for _, m := range table {
		var labels []string
		for _, l := range m.Labels {
			labels = append(labels, "`"+l.Name+"`")
			k := meaning{l.Name, cmp.Or(l.Text, strings.Join(l.Values, ", "))}
			if of[k] == nil {
				meanings = append(meanings, k)
			}
			of[k] = append(of[k], "`"+strings.TrimPrefix(m.Name, prefix)+"`")
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", m.Name, m.Kind, strings.Join(labels, ", "), m.Text)
	}
	b.WriteString("\n| label | values | of |\n|---|---|---|\n")
	slices.SortStableFunc(meanings, func(a, b meaning) int { return strings.Compare(a.label, b.label) })
	for _, k := range meanings {
		names := of[k]
		if some := len(names); some > 4 {
			names = []string{fmt.Sprintf("%d metrics", some)}
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", k.label, k.text, strings.Join(names, ", "))
	}
	return b.String()
}

// Package metrics is what openpcs tells Prometheus of itself: one table of all
// metrics, a registry that counts, and what is read off the fleet when somebody
// asks. It reads no state file, calls nobody and listens nowhere: package app
// does. What Slurm tells of itself is Slurm's own.
package metrics

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
)

// Kind is a type of metric, as Prometheus calls it.
type Kind string

// The kinds that are used.
const (
	Counter   Kind = "counter"
	Gauge     Kind = "gauge"
	Histogram Kind = "histogram"
)

// Metric is a row of the table.
type Metric struct {
	Name   string
	Kind   Kind
	Text   string // a sentence
	Labels []Label
	// Buckets are the upper bounds of a histogram, rising.
	Buckets []float64
}

// Label is a dimension of a metric. Each has few values: what a user can make
// any number of is none.
type Label struct {
	Name string
	// Values are all values, if they are known beforehand: each has a series
	// always, as a graph of a series that is not there shows no zero. A value
	// that is none of them counts as Other.
	Values []string
	Text   string // what it is, where Values is nil
}

// Other stands for values that this openpcs does not know.
const Other = "other"

// maxSeries bounds the series of one metric, whatever happens: more are
// counted as Other in each label.
const maxSeries = 4000

// Registry has the values of all metrics of the table. Its methods may be
// called side by side. One of a metric that is not in the table panics, as do
// labels too few or too many: the table is part of the program.
type Registry struct {
	mu        sync.Mutex
	counted   values
	gatherers []gatherer
}

type gatherer struct {
	part string
	f    func(*Scrape) error
}

// values are those of some metrics.
type values map[*Metric]map[string]*series

// series is one series of a metric.
type series struct {
	labels []string
	value  float64
	counts []uint64 // of a histogram's buckets, not added up; the last has what is above all
	n      uint64
}

// New returns a registry in which everything is zero.
func New() *Registry { return &Registry{counted: values{}} }

// Add counts.
func (r *Registry) Add(m *Metric, n float64, labels ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counted.of(m, Counter, labels).value += n
}

// Observe adds a value to a histogram.
func (r *Registry) Observe(m *Metric, v float64, labels ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.counted.of(m, Histogram, labels)
	if s.counts == nil {
		s.counts = make([]uint64, len(m.Buckets)+1)
	}
	i, _ := slices.BinarySearch(m.Buckets, v)
	s.counts[i]++
	s.n++
	s.value += v
}

// Gather has f asked at each scrape, for what is read and not counted. Parts are
// asked one after the other, in the order in which they came; the metrics of one
// that fails are missing then, and the others are not.
func (r *Registry) Gather(part string, f func(*Scrape) error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.gatherers = append(r.gatherers, gatherer{part, f})
}

// Scrape is one answer while it is put together.
type Scrape struct {
	read     values
	registry *Registry
}

// Set gives a gauge its value. A counter that somebody else keeps is set so
// too.
func (s *Scrape) Set(m *Metric, v float64, labels ...string) {
	if m.Kind == Histogram {
		panic("metrics: set " + m.Name + ", which is a histogram")
	}
	s.read.of(m, m.Kind, labels).value = v
}

// Inc adds to a gauge within the scrape.
func (s *Scrape) Inc(m *Metric, n float64, labels ...string) {
	s.read.of(m, m.Kind, labels).value += n
}

// of returns the series of a metric with labels, and makes it if need be.
func (v values) of(m *Metric, kind Kind, labels []string) *series {
	if m.Kind != kind || len(labels) != len(m.Labels) || !slices.Contains(table, m) {
		panic(fmt.Sprintf("metrics: %s is a %s with %d labels of the table: not a %s with %d", m.Name, m.Kind, len(m.Labels), kind, len(labels)))
	}
	labels = slices.Clone(labels)
	for i, l := range m.Labels {
		if l.Values != nil && !slices.Contains(l.Values, labels[i]) {
			labels[i] = Other
		}
	}
	all := v[m]
	if all == nil {
		all = map[string]*series{}
		v[m] = all
	}
	key := strings.Join(labels, "\x00")
	if s := all[key]; s != nil {
		return s
	}
	if len(all) >= maxSeries {
		for i := range labels {
			labels[i] = Other
		}
		if s := all[strings.Join(labels, "\x00")]; s != nil {
			return s
		}
		key = strings.Join(labels, "\x00")
	}
	s := &series{labels: labels}
	all[key] = s
	return s
}

// scrape asks all gatherers and returns everything there is.
func (r *Registry) scrape() (values, error) {
	r.mu.Lock()
	parts := slices.Clone(r.gatherers)
	r.mu.Unlock()
	out := values{}
	var errs []error
	for _, g := range parts {
		s := &Scrape{read: values{}, registry: r}
		if err := g.f(s); err != nil {
			errs = append(errs, fmt.Errorf("gather metrics of %s: %w", g.part, err))
			r.Add(GatherErrors, 1, g.part)
			continue
		}
		for m, all := range s.read {
			if out[m] == nil {
				out[m] = map[string]*series{}
			}
			for key, one := range all {
				out[m][key] = one
			}
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for m, all := range r.counted {
		out[m] = map[string]*series{}
		for key, s := range all {
			one := *s
			one.counts = slices.Clone(s.counts)
			out[m][key] = &one
		}
	}
	out.zeros()
	return out, errors.Join(errs...)
}

// zeros adds the series that are there always: those of metrics all of whose
// labels have known values.
func (v values) zeros() {
	for _, m := range table {
		sets := [][]string{nil}
		for _, l := range m.Labels {
			var more [][]string
			for _, s := range sets {
				for _, value := range l.Values {
					more = append(more, append(slices.Clone(s), value))
				}
			}
			sets = more
		}
		for _, labels := range sets {
			s := v.of(m, m.Kind, labels)
			if m.Kind == Histogram && s.counts == nil {
				s.counts = make([]uint64, len(m.Buckets)+1)
			}
		}
	}
}

// inf is the bound of the last bucket.
var inf = math.Inf(1)

package app

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"sync"
	"time"

	"github.com/openpcs/openpcs/internal/awsapi"
	"github.com/openpcs/openpcs/internal/history"
	"github.com/openpcs/openpcs/internal/metrics"
	"github.com/openpcs/openpcs/internal/store"
)

// measure serves the metrics, on a port of their own: whoever reaches it needs
// no key, as Prometheus has none.
func (a *App) measure(ctx context.Context) error {
	started := time.Now()
	a.metrics.Gather(metrics.PartProcess, func(s *metrics.Scrape) error {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		s.Set(metrics.Build, 1, a.opts.Version)
		s.Set(metrics.Start, float64(started.UnixMilli())/1000)
		s.Set(metrics.Memory, float64(m.Sys))
		s.Set(metrics.Goroutines, float64(runtime.NumGoroutine()))
		return nil
	})
	if err := a.countEvents(ctx); err != nil {
		return err
	}
	a.metrics.Gather(metrics.PartFleet, a.gatherFleet)
	a.metrics.Gather(metrics.PartDelivery, a.gatherLogs)
	if a.opts.Metrics == "" {
		return nil
	}
	if err := a.listen("tcp", a.opts.Metrics, MetricsHandler(a.opts.Metrics, a.metrics.Handler(a.opts.Log)), nil); err != nil {
		return fmt.Errorf("serve metrics (OPENPCS_METRICS says where, or off): %w", err)
	}
	if host, _, _ := net.SplitHostPort(a.opts.Metrics); !loopback(host) {
		a.opts.Log.Warn("Metrics are served without a key to whoever reaches the address", "address", a.opts.Metrics)
	}
	return nil
}

// MetricsHandler serves metrics at /metrics of an address. What is for programs
// of this machine answers by this machine's names alone: a page from elsewhere,
// in a browser here, could have its own name lead to it.
func MetricsHandler(address string, metrics http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/metrics", metrics)
	if host, _, _ := net.SplitHostPort(address); !loopback(host) {
		return mux
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host, _, err := net.SplitHostPort(r.Host)
		if err != nil {
			host = r.Host
		}
		if !loopback(host) {
			http.Error(w, "the metrics are for this machine: ask for http://"+address+"/metrics", http.StatusForbidden)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// gatherTime bounds what a scrape may take; Prometheus waits for ten seconds.
const gatherTime = 5 * time.Second

// countEvents counts what happens from now on, each time somebody asks: what
// nobody reads costs nothing.
func (a *App) countEvents(ctx context.Context) error {
	var last int64
	err := a.store.View(ctx, func(tx *store.Tx) (err error) {
		last, err = tx.LastEvent()
		return err
	})
	if err != nil {
		return err
	}
	kinds := map[string]bool{}
	for _, k := range history.Kinds() {
		kinds[k] = true
	}
	const batch = 1000
	var one sync.Mutex // scrapes come side by side, and each event counts once
	a.metrics.Gather(metrics.PartEvents, func(*metrics.Scrape) error {
		one.Lock()
		defer one.Unlock()
		ctx, cancel := context.WithTimeout(context.Background(), gatherTime)
		defer cancel()
		for {
			var some []store.Event
			err := a.store.View(ctx, func(tx *store.Tx) (err error) {
				some, err = tx.EventsAfter(last, batch)
				return err
			})
			if err != nil {
				return err
			}
			for _, e := range some {
				a.metrics.Event(e, func(kind string) bool { return kinds[kind] })
				last = e.Seq
			}
			if len(some) < batch {
				return nil
			}
		}
	})
	return nil
}

func (a *App) gatherFleet(s *metrics.Scrape) error {
	ctx, cancel := context.WithTimeout(context.Background(), gatherTime)
	defer cancel()
	return a.store.View(ctx, func(tx *store.Tx) error {
		views, err := a.views(tx, "")
		if err != nil {
			return err
		}
		all := make([]metrics.Cluster, len(views))
		for k, v := range views {
			all[k] = metrics.Cluster{Cluster: v.cluster, Observed: v.o}
		}
		s.Fleet(all)
		return nil
	})
}

// gatherLogs tells of the clusters' logs, and of how they are delivered.
func (a *App) gatherLogs(s *metrics.Scrape) error {
	for _, cluster := range a.collector.Clusters() {
		for _, j := range a.collector.Journals(cluster, "") {
			k := j.Key()
			s.Journal(k.Cluster, k.LogType, k.LogName, j.First(), j.Last())
		}
	}
	for _, d := range a.deliveries.Status() {
		s.Delivery(metrics.Delivery{
			Cluster: d.Cluster, ID: d.ID, LogType: d.LogType, LogName: d.Name, Destination: d.Kind,
			LagSeconds: d.Lag, Lag: d.Behind, Delivered: d.Delivered, Dropped: d.Dropped, Refused: d.Refused,
			Retries: d.Retries, Failing: d.Trouble != nil,
		})
	}
	return nil
}

// passed counts a pass of a cluster's loop.
func (a *App) passed(took time.Duration, err error) {
	result := "done"
	if err != nil {
		result = "failed"
	}
	a.metrics.Add(metrics.Passes, 1, result)
	a.metrics.Observe(metrics.PassSeconds, took.Seconds())
}

// called counts a call of the API. Its labels are words of the tables of
// operations, or none: what a client sends is no label before it was verified.
func (a *App) called(c awsapi.Call) {
	var service, operation string
	if c.Request != nil {
		service, operation = c.Request.Service, c.Request.Operation
	}
	a.metrics.Call(service, operation, c.Status, c.Took)
}

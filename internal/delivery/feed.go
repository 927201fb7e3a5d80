package delivery

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	"github.com/openpcs/openpcs/internal/journal"
	"github.com/openpcs/openpcs/internal/logs"
	"github.com/openpcs/openpcs/internal/scaling"
	"github.com/openpcs/openpcs/internal/store"
)

// Feeds finds the logs of clusters: journals, and the scaling logs, which are in
// the state file.
type Feeds struct {
	Store *store.Store
	// Journals returns those that a cluster has of a log type.
	Journals func(cluster, logType string) []*journal.Journal

	mu      sync.Mutex
	scaling map[string]*scalingFeed // by cluster
}

// Of returns the logs of a type that a cluster has.
func (f *Feeds) Of(cluster, logType string) []Feed {
	if logType == logs.ScalingLogs {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.scaling == nil {
			f.scaling = map[string]*scalingFeed{}
		}
		if f.scaling[cluster] == nil {
			f.scaling[cluster] = &scalingFeed{store: f.Store, cluster: cluster}
		}
		return []Feed{f.scaling[cluster]}
	}
	var out []Feed
	for _, j := range f.Journals(cluster, logType) {
		out = append(out, journalFeed{j})
	}
	return out
}

// journalFeed is a log that has a journal.
type journalFeed struct{ *journal.Journal }

func (f journalFeed) Name() string { return f.Key().LogName }

func (f journalFeed) Gapless() bool { return true }

// scalingFeed is the scaling log of a cluster.
type scalingFeed struct {
	store   *store.Store
	cluster string

	mu   sync.Mutex
	last int64 // as far as it was looked
}

// scalingLook is how often a scaling log is looked at, which tells nobody when
// it changes.
const scalingLook = time.Second

func (*scalingFeed) Name() string { return "node_lifecycle" }

// Gapless: the places are those of the scaling logs of all clusters.
func (*scalingFeed) Gapless() bool { return false }

func (f *scalingFeed) Read(after int64, maxEntries, _ int) ([]journal.Entry, error) {
	var found []scaling.Entry
	err := f.store.View(context.Background(), func(tx *store.Tx) (err error) {
		found, err = scaling.Records(tx, f.cluster, after, min(maxEntries, 1000))
		return err
	})
	if err != nil {
		return nil, err
	}
	out := make([]journal.Entry, len(found))
	for n, e := range found {
		text, err := json.Marshal(e.Record)
		if err != nil {
			return nil, fmt.Errorf("encode the scaling record %d: %w", e.Seq, err)
		}
		out[n] = journal.Entry{Seq: e.Seq, Time: e.EventTimestamp, Text: text}
		f.mu.Lock()
		f.last = max(f.last, e.Seq)
		f.mu.Unlock()
	}
	return out, nil
}

func (f *scalingFeed) Last() int64 {
	for {
		f.mu.Lock()
		last := f.last
		f.mu.Unlock()
		if more, err := f.Read(last, 1000, 0); err != nil || len(more) == 0 {
			return last
		}
	}
}

func (f *scalingFeed) Changed() <-chan struct{} {
	changed := make(chan struct{})
	time.AfterFunc(scalingLook, func() { close(changed) })
	return changed
}

package scaling

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/openpcs/openpcs/internal/store"
)

// stream is the log's name in the state file.
const stream = "scaling"

// Entry is a record with its place in the log of its cluster.
type Entry struct {
	Seq int64 `json:"seq"` // the cursor after it
	Record
}

// Append adds a record in the transaction that makes its step.
func Append(tx *store.Tx, r Record) error {
	doc, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode a scaling record: %w", err)
	}
	return tx.Record(store.Record{At: time.UnixMilli(r.EventTimestamp), Stream: stream, Cluster: r.ResourceID, Doc: doc})
}

// Records returns up to limit records of a cluster after a cursor, in the order
// in which they were written. 0 begins with the oldest that is kept. A cluster
// that was deleted has records for as long as they are kept.
func Records(tx *store.Tx, cluster string, after int64, limit int) ([]Entry, error) {
	rows, err := tx.Records(stream, cluster, after, limit)
	if err != nil {
		return nil, err
	}
	out := make([]Entry, len(rows))
	for k, row := range rows {
		out[k].Seq = row.Seq
		if err := json.Unmarshal(row.Doc, &out[k].Record); err != nil {
			return nil, fmt.Errorf("decode the scaling record %d: %w", row.Seq, err)
		}
	}
	return out, nil
}

// Clusters lists the ids of the clusters that have records.
func Clusters(tx *store.Tx) ([]string, error) { return tx.RecordClusters(stream) }

package store

import (
	"encoding/json"
	"fmt"
	"time"
)

// A Record is one line of a log that openpcs itself writes for users, such as
// the scaling log. A stream of a cluster is read by cursor: Seq grows with each
// record and is never given again.
type Record struct {
	Seq     int64
	At      time.Time
	Stream  string
	Cluster string
	Doc     json.RawMessage
}

// Record adds a record to a stream; Seq is assigned.
func (tx *Tx) Record(r Record) error {
	if tx.db == nil {
		return fmt.Errorf("append to the %s log: %w", r.Stream, errReadOnly)
	}
	if err := tx.exec(tx.store.record, r.At.UnixNano(), r.Stream, r.Cluster, []byte(r.Doc)); err != nil {
		return fmt.Errorf("append to the %s log: %w", r.Stream, err)
	}
	return nil
}

// Records returns up to limit records of a cluster's stream after a cursor, in
// the order in which they were written.
func (tx *Tx) Records(stream, cluster string, after int64, limit int) ([]Record, error) {
	db, err := tx.events()
	if err != nil {
		return nil, fmt.Errorf("read the %s log: %w", stream, err)
	}
	rows, err := db.QueryContext(tx.ctx, `SELECT seq, at, doc FROM records WHERE stream = ? AND cluster = ? AND seq > ? ORDER BY seq LIMIT ?`, stream, cluster, after, limit)
	if err != nil {
		return nil, fmt.Errorf("read the %s log: %w", stream, err)
	}
	defer func() { _ = rows.Close() }()
	var out []Record
	for rows.Next() {
		r := Record{Stream: stream, Cluster: cluster}
		var at int64
		if err := rows.Scan(&r.Seq, &at, (*[]byte)(&r.Doc)); err != nil {
			return nil, fmt.Errorf("read the %s log: %w", stream, err)
		}
		r.At = time.Unix(0, at).UTC()
		out = append(out, r)
	}
	return out, rows.Err()
}

// RecordClusters lists the clusters that have records in a stream, those that
// are gone too.
func (tx *Tx) RecordClusters(stream string) ([]string, error) {
	db, err := tx.events()
	if err != nil {
		return nil, fmt.Errorf("read the %s log: %w", stream, err)
	}
	rows, err := db.QueryContext(tx.ctx, `SELECT DISTINCT cluster FROM records WHERE stream = ?`, stream)
	if err != nil {
		return nil, fmt.Errorf("read the %s log: %w", stream, err)
	}
	defer func() { _ = rows.Close() }()
	var out []string
	for rows.Next() {
		var id string
		if err := rows.Scan(&id); err != nil {
			return nil, fmt.Errorf("read the %s log: %w", stream, err)
		}
		out = append(out, id)
	}
	return out, rows.Err()
}

// ForgetRecords removes the records from before a time, and of each cluster's
// stream all but the newest keep.
func (tx *Tx) ForgetRecords(before time.Time, keep int) error {
	if tx.db == nil {
		return fmt.Errorf("forget records: %w", errReadOnly)
	}
	if _, err := tx.db.ExecContext(tx.ctx, `DELETE FROM records WHERE at < ?`, before.UnixNano()); err != nil {
		return fmt.Errorf("forget records: %w", err)
	}
	_, err := tx.db.ExecContext(tx.ctx, `DELETE FROM records WHERE seq IN (
		SELECT seq FROM (SELECT seq, row_number() OVER (PARTITION BY stream, cluster ORDER BY seq DESC) AS n FROM records) WHERE n > ?)`, keep)
	if err != nil {
		return fmt.Errorf("forget records: %w", err)
	}
	return nil
}

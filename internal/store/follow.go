package store

import (
	"fmt"
	"time"
)

// LastEvent returns the Seq of the newest event of all clusters, 0 if there is
// none.
func (tx *Tx) LastEvent() (seq int64, err error) {
	db, err := tx.events()
	if err == nil {
		err = db.QueryRowContext(tx.ctx, `SELECT COALESCE(MAX(seq), 0) FROM events`).Scan(&seq)
	}
	if err != nil {
		return 0, fmt.Errorf("read events: %w", err)
	}
	return seq, nil
}

// EventsAfter returns up to limit events of all clusters after a Seq, in the
// order in which they were written.
func (tx *Tx) EventsAfter(seq int64, limit int) (out []Event, err error) {
	db, err := tx.events()
	if err != nil {
		return nil, fmt.Errorf("read events: %w", err)
	}
	rows, err := db.QueryContext(tx.ctx, `SELECT seq, at, cluster, subject, kind, doc FROM events WHERE seq > ? ORDER BY seq LIMIT ?`, seq, limit)
	if err != nil {
		return nil, fmt.Errorf("read events: %w", err)
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var e Event
		var at int64
		if err := rows.Scan(&e.Seq, &at, &e.Cluster, &e.Subject, &e.Kind, (*[]byte)(&e.Detail)); err != nil {
			return nil, fmt.Errorf("read events: %w", err)
		}
		e.At = time.Unix(0, at).UTC()
		out = append(out, e)
	}
	return out, rows.Err()
}

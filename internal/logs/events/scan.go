package events

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
)

// Pos is the place of an event: events are in the order of their times, and of
// those with one time in the order in which they came.
type Pos struct{ Time, ID int64 }

// Event is an event as it is kept. The message is only good until the function
// that got it returns.
type Event struct {
	Pos
	Stream   string
	Ingested int64 // when it came, ms since the epoch
	Message  []byte
}

// Window says which events of a group are wanted, and in which order.
type Window struct {
	Group int64
	// Names are the streams that are wanted, or Prefix is how their names begin;
	// neither: all.
	Names  []string
	Prefix string
	// From and To bound the time, both are in it, in ms since the epoch.
	From, To int64
	// After, if it is set, is the place beyond which the scan begins, in the
	// direction of the scan.
	After *Pos
	Down  bool // newest first
}

// Scan calls fn with the events of a window until fn returns false. It sees the
// events as they were when it began.
func (d *DB) Scan(ctx context.Context, w Window, fn func(Event) bool) error {
	tx, err := d.read.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("read log events: %w", err)
	}
	defer func() { _ = tx.Rollback() }() // it only reads
	streams, err := streamsOf(ctx, tx, w)
	if err == nil && len(streams) > 0 {
		err = scan(ctx, tx, w, streams, fn)
	}
	if err != nil {
		return fmt.Errorf("read log events: %w", err)
	}
	return nil
}

// streamsOf returns the names of the streams that may have events in a window.
func streamsOf(ctx context.Context, tx *sql.Tx, w Window) (map[int64]string, error) {
	text := `SELECT ` + streamColumns + ` FROM streams WHERE grp = ? AND gone = 0 AND last >= ? AND first <= ?`
	args := []any{w.Group, w.From, w.To}
	switch {
	case len(w.Names) > 0:
		list, err := json.Marshal(w.Names)
		if err != nil {
			return nil, err
		}
		text, args = text+` AND name IN (SELECT value FROM json_each(?))`, append(args, string(list))
	case w.Prefix != "":
		text, args = text+` AND substr(name, 1, ?) = ?`, append(args, len([]rune(w.Prefix)), w.Prefix)
	}
	list, err := collect(ctx, tx, scanStream, text, args...)
	names := map[int64]string{}
	for _, s := range list {
		names[s.ID] = s.Name
	}
	return names, err
}

func scan(ctx context.Context, tx *sql.Tx, w Window, streams map[int64]string, fn func(Event) bool) error {
	text, args := `SELECT id, stream, time, ingested, message FROM events WHERE grp = ?`, []any{w.Group}
	if len(streams) == 1 {
		for id := range streams {
			text, args = `SELECT id, stream, time, ingested, message FROM events WHERE stream = ?`, []any{id}
		}
	}
	from, to, than, direction := w.From, w.To, ">", "ASC"
	if w.Down {
		than, direction = "<", "DESC"
	}
	if w.After != nil {
		if w.Down {
			to = min(to, w.After.Time)
		} else {
			from = max(from, w.After.Time)
		}
	}
	text += ` AND time BETWEEN ? AND ?`
	args = append(args, from, to)
	if w.After != nil {
		text += ` AND (time, id) ` + than + ` (?, ?)`
		args = append(args, w.After.Time, w.After.ID)
	}
	rows, err := tx.QueryContext(ctx, text+` ORDER BY time `+direction+`, id `+direction, args...)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	var e Event
	var stream int64
	var message sql.RawBytes
	for rows.Next() {
		if err := rows.Scan(&e.ID, &stream, &e.Time, &e.Ingested, &message); err != nil {
			return err
		}
		name, wanted := streams[stream]
		if !wanted {
			continue
		}
		e.Stream, e.Message = name, message
		if !fn(e) {
			return nil
		}
	}
	return rows.Err()
}

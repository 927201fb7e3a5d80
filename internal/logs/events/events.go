// Package events keeps log groups, their streams and the events in them, in a
// database file of its own beside the state file. What a call wrote is on disk
// (WAL, synchronous=FULL) when it returns.
//
// Why SQLite with a row for each event, and not segment files: a batch of 1,000
// events is one transaction with one fsync, an index on (group, time) and one
// on (stream, time) make any window of time a range scan, deletion and retention
// are plain deletes, and the place up to which a delivery came is committed
// with its events. On two cores it takes 200,000 events of 150 bytes a second in
// batches, and reads an hour out of ten million in 50 ms.
//
// Why a file of its own: the events of a busy cluster are thousands a second, and
// calls that change the state of the control plane must not wait for them.
//
// The package knows nothing of the API: names are checked by its callers.
package events

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"
)

// What callers tell apart.
var (
	ErrNoGroup  = errors.New("there is no such log group")
	ErrNoStream = errors.New("there is no such log stream")
	ErrExists   = errors.New("it exists already")
	ErrFull     = errors.New("there is no room on the disk")
)

// schema is version 1 of the file. The ids of groups and streams are never
// given again, so what is left of a deleted one never shows in its successor.
// Those of events come from counter, in the order in which they were taken.
const schema = `
CREATE TABLE groups (
	id        INTEGER PRIMARY KEY AUTOINCREMENT,
	region    TEXT NOT NULL,
	name      TEXT NOT NULL,
	created   INTEGER NOT NULL,
	class     TEXT NOT NULL,
	retention INTEGER NOT NULL,
	protected INTEGER NOT NULL,
	bytes     INTEGER NOT NULL,
	tags      TEXT NOT NULL,
	gone      INTEGER NOT NULL DEFAULT 0
);
CREATE UNIQUE INDEX groups_name ON groups (region, name) WHERE gone = 0;
CREATE TABLE streams (
	id       INTEGER PRIMARY KEY AUTOINCREMENT,
	grp      INTEGER NOT NULL,
	name     TEXT NOT NULL,
	created  INTEGER NOT NULL,
	first    INTEGER NOT NULL DEFAULT 0,
	last     INTEGER NOT NULL DEFAULT 0,
	ingested INTEGER NOT NULL DEFAULT 0,
	gone     INTEGER NOT NULL DEFAULT 0
);
CREATE UNIQUE INDEX streams_name ON streams (grp, name) WHERE gone = 0;
CREATE INDEX streams_last ON streams (grp, last, name) WHERE gone = 0;
CREATE TABLE events (
	id       INTEGER PRIMARY KEY,
	grp      INTEGER NOT NULL,
	stream   INTEGER NOT NULL,
	time     INTEGER NOT NULL,
	ingested INTEGER NOT NULL,
	message  TEXT NOT NULL
);
CREATE INDEX events_group ON events (grp, time);
CREATE INDEX events_stream ON events (stream, time);
CREATE TABLE places (
	stream INTEGER NOT NULL,
	source TEXT NOT NULL,
	place  INTEGER NOT NULL,
	PRIMARY KEY (stream, source)
) WITHOUT ROWID;
CREATE TABLE counter (last INTEGER NOT NULL);
INSERT INTO counter VALUES (0);
PRAGMA user_version = 1;`

// Overhead is what an event counts beside its message, in bytes, as in
// CloudWatch Logs.
const Overhead = 26

// DB is the open file. It is safe for concurrent use; one process at a time may
// have it open.
type DB struct {
	write *sql.DB // one connection: SQLite has one writer
	read  *sql.DB

	insertMany, insertOne *sql.Stmt
}

// Open opens or creates the file.
func Open(path string) (*DB, error) {
	// SQLite gives its journal the file's mode, so that must be right before.
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the log events: %w", err)
	}
	if err := errors.Join(f.Chmod(0o600), f.Close()); err != nil {
		return nil, fmt.Errorf("open the log events %s: %w", path, err)
	}
	open := func(conns int, txlock string, pragmas ...string) (*sql.DB, error) {
		// A cache of 4 MiB for each connection holds the upper pages of the indexes.
		q := url.Values{"_pragma": append(pragmas, "busy_timeout(10000)", "cache_size(-4096)"), "_txlock": {txlock}}
		db, err := sql.Open("sqlite", "file:"+(&url.URL{Path: path}).EscapedPath()+"?"+q.Encode())
		if err != nil {
			return nil, err
		}
		db.SetMaxOpenConns(conns)
		db.SetMaxIdleConns(conns)
		db.SetConnMaxIdleTime(0)
		return db, nil
	}
	d := &DB{}
	// Freed pages go back to the file system in steps, see Sweep.
	if d.write, err = open(1, "immediate", "auto_vacuum(incremental)", "journal_mode(WAL)", "synchronous(FULL)"); err != nil {
		return nil, fmt.Errorf("open the log events %s: %w", path, err)
	}
	if err := d.prepare(); err != nil {
		_ = d.write.Close()
		return nil, fmt.Errorf("open the log events %s: %w", path, err)
	}
	if d.read, err = open(4, "deferred"); err != nil {
		_ = d.write.Close()
		return nil, fmt.Errorf("open the log events %s: %w", path, err)
	}
	return d, nil
}

// rowsAtOnce is how many events one statement inserts: the fewer statements,
// the less the driver takes, and beyond this nothing is gained.
const rowsAtOnce = 50

func (d *DB) prepare() error {
	var version int
	if err := d.write.QueryRow(`PRAGMA user_version`).Scan(&version); err != nil {
		return err
	}
	switch {
	case version > 1:
		return fmt.Errorf("schema version %d is newer than this openpcs knows (1): install a newer openpcs", version)
	case version == 0:
		tx, err := d.write.Begin()
		if err != nil {
			return err
		}
		defer func() { _ = tx.Rollback() }() // no effect after Commit
		if _, err := tx.Exec(schema); err != nil {
			return err
		}
		if err := tx.Commit(); err != nil {
			return err
		}
	}
	const insert = `INSERT INTO events (id, grp, stream, time, ingested, message) VALUES `
	const row = `(?,?,?,?,?,?)`
	var err, err2 error
	d.insertOne, err = d.write.Prepare(insert + row)
	d.insertMany, err2 = d.write.Prepare(insert + strings.Repeat(row+",", rowsAtOnce-1) + row)
	return errors.Join(err, err2)
}

// Close closes the file.
func (d *DB) Close() error { return errors.Join(d.read.Close(), d.write.Close()) }

// change runs fn in a transaction that can write. Its error is ErrFull where there
// is no room.
func (d *DB) change(ctx context.Context, fn func(tx *sql.Tx) error) error {
	tx, err := d.write.BeginTx(ctx, nil)
	if err != nil {
		return full(err)
	}
	defer func() { _ = tx.Rollback() }() // no effect after Commit
	if err := fn(tx); err != nil {
		return full(err)
	}
	return full(tx.Commit())
}

func full(err error) error {
	var e *sqlite.Error
	if errors.As(err, &e) && e.Code()&0xff == sqlite3.SQLITE_FULL { // above are details
		return ErrFull
	}
	return err
}

// Input is an event that comes in.
type Input struct {
	Place   int64 // see Batch.From
	Time    int64 // ms since the epoch
	Message string
}

// Batch is what comes in for one stream at once.
type Batch struct {
	Region, Group, Stream string
	// Make makes the stream if there is none.
	Make bool
	// From, where it is set, names whose events these are. Up to which place they
	// came is kept with them, and what is not beyond it is left out.
	From   string
	Events []Input
	Now    time.Time // when they came
}

// Append adds a batch, all of it or nothing. It wraps ErrNoGroup or ErrNoStream.
func (d *DB) Append(ctx context.Context, b Batch) error {
	err := d.change(ctx, func(tx *sql.Tx) error {
		g, err := findGroup(ctx, tx, b.Region, b.Group)
		if err != nil {
			return err
		}
		s, err := findStream(ctx, tx, g.ID, b.Stream)
		if errors.Is(err, ErrNoStream) && b.Make {
			s, err = addStream(ctx, tx, g.ID, b.Stream, b.Now)
		}
		if err != nil {
			return err
		}
		in, err := afterPlace(ctx, tx, s.ID, b)
		if err != nil || len(in) == 0 {
			return err
		}
		return d.add(ctx, tx, g.ID, s, in, b.Now)
	})
	if err != nil {
		return fmt.Errorf("write events to %s of log group %s: %w", b.Stream, b.Group, err)
	}
	return nil
}

// afterPlace leaves out what came before, and remembers what comes now.
func afterPlace(ctx context.Context, tx *sql.Tx, stream int64, b Batch) ([]Input, error) {
	if b.From == "" || len(b.Events) == 0 {
		return b.Events, nil
	}
	var place int64
	err := tx.QueryRowContext(ctx, `SELECT place FROM places WHERE stream = ? AND source = ?`, stream, b.From).Scan(&place)
	if err != nil && !errors.Is(err, sql.ErrNoRows) {
		return nil, err
	}
	known := err == nil
	in := make([]Input, 0, len(b.Events))
	newest := place
	for _, e := range b.Events {
		if !known || e.Place > place {
			in = append(in, e)
		}
		newest = max(newest, e.Place)
	}
	_, err = tx.ExecContext(ctx, `INSERT INTO places (stream, source, place) VALUES (?,?,?)
		ON CONFLICT (stream, source) DO UPDATE SET place = excluded.place`, stream, b.From, newest)
	return in, err
}

// add writes the events and what is known of them in sum.
func (d *DB) add(ctx context.Context, tx *sql.Tx, group int64, s Stream, in []Input, at time.Time) error {
	var last int64
	err := tx.QueryRowContext(ctx, `UPDATE counter SET last = last + ? RETURNING last`, len(in)).Scan(&last)
	if err != nil {
		return err
	}
	id, now := last-int64(len(in)), at.UnixMilli()
	first, newest, bytes := s.First, s.Last, int64(0)
	args := make([]any, 0, rowsAtOnce*6)
	one, many := tx.StmtContext(ctx, d.insertOne), tx.StmtContext(ctx, d.insertMany)
	for n, e := range in {
		id++
		args = append(args, id, group, s.ID, e.Time, now, e.Message)
		switch {
		case n%rowsAtOnce == rowsAtOnce-1:
			_, err = many.ExecContext(ctx, args...)
			args = args[:0]
		case len(in)-n <= len(in)%rowsAtOnce:
			_, err = one.ExecContext(ctx, args...)
			args = args[:0]
		}
		if err != nil {
			return err
		}
		if s.Ingested == 0 && n == 0 {
			first, newest = e.Time, e.Time
		}
		first, newest = min(first, e.Time), max(newest, e.Time)
		bytes += int64(len(e.Message)) + Overhead
	}
	if _, err := tx.ExecContext(ctx, `UPDATE streams SET first = ?, last = ?, ingested = ? WHERE id = ?`, first, newest, now, s.ID); err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, `UPDATE groups SET bytes = bytes + ? WHERE id = ?`, bytes, group)
	return err
}

// Package store keeps the state of the control plane in one SQLite file. It
// owns the schema and transactions; what is stored belongs to the packages
// that declare a Collection. Whatever a committed transaction wrote survives
// kill -9 and power loss (WAL, synchronous=FULL).
package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"time"

	_ "modernc.org/sqlite" // the driver
)

// ErrNotFound is returned when there is no such object.
var ErrNotFound = errors.New("not found")

// ErrExists is returned when another object of the kind has the same region,
// parent and name.
var ErrExists = errors.New("name is taken")

// migrations is append-only: entry n brings a file from version n to n+1.
var migrations = []string{
	`CREATE TABLE objects (
		kind   TEXT NOT NULL,
		id     TEXT NOT NULL,
		region TEXT NOT NULL,
		parent TEXT NOT NULL,
		name   TEXT NOT NULL,
		seq    INTEGER NOT NULL,
		doc    BLOB NOT NULL,
		PRIMARY KEY (kind, id)
	) WITHOUT ROWID;
	CREATE UNIQUE INDEX objects_name ON objects (kind, region, parent, name) WHERE name <> '';
	CREATE INDEX objects_parent ON objects (kind, parent, seq);
	CREATE TABLE counter (last INTEGER NOT NULL);
	INSERT INTO counter VALUES (0);
	CREATE TABLE events (
		seq     INTEGER PRIMARY KEY AUTOINCREMENT,
		at      INTEGER NOT NULL,
		cluster TEXT NOT NULL,
		subject TEXT NOT NULL,
		kind    TEXT NOT NULL,
		doc     BLOB NOT NULL
	);
	CREATE INDEX events_subject ON events (cluster, subject, seq);`,
	`CREATE TABLE records (
		seq     INTEGER PRIMARY KEY AUTOINCREMENT,
		at      INTEGER NOT NULL,
		stream  TEXT NOT NULL,
		cluster TEXT NOT NULL,
		doc     BLOB NOT NULL
	);
	CREATE INDEX records_cluster ON records (stream, cluster, seq);`,
}

// errReadOnly is returned for a change inside View.
var errReadOnly = errors.New("the transaction only reads")

// Store is one open state file. It is safe for concurrent use. The objects
// are in memory too, so that reading them costs next to nothing; one process
// at a time may have the file open.
type Store struct {
	write *sql.DB // one connection: SQLite has one writer
	read  *sql.DB
	seam  func(point string) // see SetSeam

	objects atomic.Pointer[snapshot] // what was committed last
	writer  chan struct{}            // holds one token, which a writer takes
	stale   bool                     // a commit failed: the file says what holds; needs the token

	put, remove, count, add, record *sql.Stmt
}

// Open opens or creates the state file at path and brings its schema up to
// date. It refuses a file written by a newer openpcs.
func Open(path string) (*Store, error) {
	// The file holds keys. SQLite gives its journal the file's mode, so that
	// must be right before SQLite sees it.
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open state file: %w", err)
	}
	if err := errors.Join(f.Chmod(0o600), f.Close()); err != nil {
		return nil, fmt.Errorf("open state file %s: %w", path, err)
	}
	pragmas := url.Values{"_pragma": {
		"busy_timeout(10000)", "journal_mode(WAL)", "synchronous(FULL)", "foreign_keys(ON)",
	}}
	open := func(conns int, txlock string) (*sql.DB, error) {
		q := url.Values{"_pragma": pragmas["_pragma"], "_txlock": {txlock}}
		db, err := sql.Open("sqlite", "file:"+(&url.URL{Path: path}).EscapedPath()+"?"+q.Encode())
		if err != nil {
			return nil, err
		}
		db.SetMaxOpenConns(conns)
		db.SetMaxIdleConns(conns)
		db.SetConnMaxIdleTime(0)
		return db, nil
	}
	write, err := open(1, "immediate")
	if err != nil {
		return nil, fmt.Errorf("open state file %s: %w", path, err)
	}
	if err := migrate(write); err != nil {
		_ = write.Close()
		return nil, fmt.Errorf("open state file %s: %w", path, err)
	}
	read, err := open(8, "deferred")
	if err != nil {
		_ = write.Close()
		return nil, fmt.Errorf("open state file %s: %w", path, err)
	}
	s := &Store{write: write, read: read, writer: make(chan struct{}, 1)}
	if err := errors.Join(s.prepare(), s.load(context.Background())); err != nil {
		_ = s.Close()
		return nil, fmt.Errorf("read state file %s: %w", path, err)
	}
	return s, nil
}

func (s *Store) prepare() error {
	var errs []error
	statement := func(text string) *sql.Stmt {
		st, err := s.write.Prepare(text)
		errs = append(errs, err)
		return st
	}
	s.put = statement(`INSERT INTO objects (kind, id, region, parent, name, seq, doc) VALUES (?,?,?,?,?,?,?)
		ON CONFLICT (kind, id) DO UPDATE SET region=excluded.region, parent=excluded.parent, name=excluded.name, doc=excluded.doc`)
	s.remove = statement(`DELETE FROM objects WHERE kind = ? AND id = ?`)
	s.count = statement(`UPDATE counter SET last = ?`)
	s.add = statement(`INSERT INTO events (at, cluster, subject, kind, doc) VALUES (?,?,?,?,?)`)
	s.record = statement(`INSERT INTO records (at, stream, cluster, doc) VALUES (?,?,?,?)`)
	return errors.Join(errs...)
}

// load takes the objects from the file.
func (s *Store) load(ctx context.Context) error {
	tx := &Tx{owner: new(owner), objects: &snapshot{shelves: map[string]*shelf{}}}
	if err := s.write.QueryRowContext(ctx, `SELECT last FROM counter`).Scan(&tx.objects.last); err != nil {
		return err
	}
	rows, err := s.write.QueryContext(ctx, `SELECT kind, id, region, parent, name, seq, doc FROM objects`)
	if err != nil {
		return err
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var kind string
		r := &row{}
		if err := rows.Scan(&kind, &r.ID, &r.Region, &r.Parent, &r.Name, &r.seq, &r.doc); err != nil {
			return err
		}
		tx.keep(kind, r)
	}
	if err := rows.Err(); err != nil {
		return err
	}
	s.objects.Store(tx.objects)
	return nil
}

func migrate(db *sql.DB) error {
	var version int
	if err := db.QueryRow(`PRAGMA user_version`).Scan(&version); err != nil {
		return err
	}
	if version > len(migrations) {
		return fmt.Errorf("schema version %d is newer than this openpcs knows (%d): install a newer openpcs", version, len(migrations))
	}
	for ; version < len(migrations); version++ {
		tx, err := db.Begin()
		if err != nil {
			return err
		}
		if _, err := tx.Exec(migrations[version]); err != nil {
			_ = tx.Rollback()
			return fmt.Errorf("migrate schema to version %d: %w", version+1, err)
		}
		if _, err := tx.Exec(fmt.Sprintf(`PRAGMA user_version = %d`, version+1)); err != nil {
			_ = tx.Rollback()
			return err
		}
		if err := tx.Commit(); err != nil {
			return err
		}
	}
	return nil
}

// Close closes the file.
func (s *Store) Close() error {
	return errors.Join(s.read.Close(), s.write.Close()) // their statements with them
}

// Tx is a transaction. It is valid only inside the function it was given to.
type Tx struct {
	ctx     context.Context
	store   *Store
	objects *snapshot
	owner   *owner
	db      *sql.Tx // nil in View
	history *sql.Tx // of View, begun at the first look at events
}

// Update runs fn in a transaction that can write. All of it is durable when
// Update returns nil, and nothing of it happened otherwise.
func (s *Store) Update(ctx context.Context, fn func(tx *Tx) error) error {
	if s.seam == nil {
		return s.update(ctx, fn)
	}
	point := "commit/" + caller()
	err := s.update(ctx, func(tx *Tx) error {
		err := fn(tx)
		if err == nil {
			s.seam(point + "/before")
		}
		return err
	})
	if err == nil {
		s.seam(point + "/after")
	}
	return err
}

// SetSeam has f told of the moments right before and after each commit, as
// commit/control.launched/before; tests of crashes kill the process there.
func (s *Store) SetSeam(f func(point string)) { s.seam = f }

// caller names the function that called Update.
func caller() string {
	var pcs [1]uintptr
	runtime.Callers(3, pcs[:])
	frame, _ := runtime.CallersFrames(pcs[:]).Next()
	name := frame.Function[strings.LastIndexByte(frame.Function, '/')+1:]
	name, _, _ = strings.Cut(name, ".func") // of a function literal, where it stands
	name, _, _ = strings.Cut(name, "[")     // type arguments
	pkg, function, _ := strings.Cut(name, ".")
	if at := strings.LastIndexByte(function, '.'); at >= 0 { // a method
		function = function[at+1:]
	}
	return pkg + "." + function
}

func (s *Store) update(ctx context.Context, fn func(tx *Tx) error) error {
	select {
	case s.writer <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("begin transaction: %w", ctx.Err())
	}
	defer func() { <-s.writer }()
	if s.stale {
		if err := s.load(ctx); err != nil {
			return fmt.Errorf("read the state file after a commit that failed: %w", err)
		}
		s.stale = false
	}
	db, err := s.write.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("begin transaction: %w", err)
	}
	defer func() { _ = db.Rollback() }() // no effect after Commit
	before := s.objects.Load()
	tx := &Tx{ctx: ctx, store: s, db: db, owner: new(owner), objects: &snapshot{shelves: maps.Clone(before.shelves), last: before.last}}
	if err := fn(tx); err != nil {
		return err
	}
	if tx.objects.last != before.last {
		if err := tx.exec(s.count, tx.objects.last); err != nil {
			return fmt.Errorf("commit transaction: %w", err)
		}
	}
	if err := db.Commit(); err != nil {
		s.stale = true // it may have come to pass all the same
		return fmt.Errorf("commit transaction: %w", err)
	}
	s.objects.Store(tx.objects)
	return nil
}

// View runs fn in a transaction that sees one consistent state of the
// objects.
func (s *Store) View(ctx context.Context, fn func(tx *Tx) error) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("begin transaction: %w", err)
	}
	tx := &Tx{ctx: ctx, store: s, objects: s.objects.Load()}
	defer func() {
		if tx.history != nil {
			_ = tx.history.Rollback()
		}
	}()
	return fn(tx)
}

func (tx *Tx) exec(s *sql.Stmt, args ...any) error {
	_, err := tx.db.StmtContext(tx.ctx, s).ExecContext(tx.ctx, args...)
	return err
}

// events returns the transaction that sees the events.
func (tx *Tx) events() (*sql.Tx, error) {
	if tx.db != nil {
		return tx.db, nil
	}
	if tx.history == nil {
		var err error
		if tx.history, err = tx.store.read.BeginTx(tx.ctx, nil); err != nil {
			return nil, err
		}
	}
	return tx.history, nil
}

// An Event is one durable line of a cluster's history. Subject names what it
// is about, for example node/compute-1 or instance/i-0123456789abcdef0.
type Event struct {
	Seq     int64           `json:"seq"`
	At      time.Time       `json:"at"`
	Cluster string          `json:"cluster"`
	Subject string          `json:"subject"`
	Kind    string          `json:"kind"`
	Detail  json.RawMessage `json:"detail"`
}

// Append adds an event; Seq is assigned.
func (tx *Tx) Append(e Event) error {
	if e.Detail == nil {
		e.Detail = json.RawMessage("{}")
	}
	if tx.db == nil {
		return fmt.Errorf("append event %s: %w", e.Kind, errReadOnly)
	}
	if err := tx.exec(tx.store.add, e.At.UnixNano(), e.Cluster, e.Subject, e.Kind, []byte(e.Detail)); err != nil {
		return fmt.Errorf("append event %s: %w", e.Kind, err)
	}
	return nil
}

// ForgetEvents removes events from before a time.
func (tx *Tx) ForgetEvents(before time.Time) error {
	if tx.db == nil {
		return fmt.Errorf("forget events: %w", errReadOnly)
	}
	if _, err := tx.db.ExecContext(tx.ctx, `DELETE FROM events WHERE at < ?`, before.UnixNano()); err != nil {
		return fmt.Errorf("forget events: %w", err)
	}
	return nil
}

// Events returns up to limit newest events of a cluster, oldest first. An
// empty subject means all subjects.
func (tx *Tx) Events(cluster, subject string, limit int) ([]Event, error) {
	db, err := tx.events()
	if err != nil {
		return nil, fmt.Errorf("read events: %w", err)
	}
	rows, err := db.QueryContext(tx.ctx, `SELECT seq, at, cluster, subject, kind, doc FROM (
		SELECT * FROM events WHERE cluster = ? AND (? = '' OR subject = ?) ORDER BY seq DESC LIMIT ?
	) ORDER BY seq`, cluster, subject, subject, limit)
	if err != nil {
		return nil, fmt.Errorf("read events: %w", err)
	}
	defer func() { _ = rows.Close() }()
	var out []Event
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

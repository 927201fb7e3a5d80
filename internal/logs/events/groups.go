package events

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// Group is a log group.
type Group struct {
	ID        int64
	Region    string
	Name      string
	Created   int64 // ms since the epoch
	Class     string
	Retention int // days; 0: for ever
	Protected bool
	Bytes     int64 // of its events, with Overhead
	Tags      map[string]string
}

// query is what reads: the database or a transaction.
type query interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

const groupColumns = `id, region, name, created, class, retention, protected, bytes, tags`

func scanGroup(row interface{ Scan(...any) error }) (Group, error) {
	var g Group
	var tags string
	err := row.Scan(&g.ID, &g.Region, &g.Name, &g.Created, &g.Class, &g.Retention, &g.Protected, &g.Bytes, &tags)
	if err == nil {
		err = json.Unmarshal([]byte(tags), &g.Tags)
	}
	return g, err
}

func findGroup(ctx context.Context, q query, region, name string) (Group, error) {
	g, err := scanGroup(q.QueryRowContext(ctx, `SELECT `+groupColumns+` FROM groups WHERE region = ? AND name = ? AND gone = 0`, region, name))
	if errors.Is(err, sql.ErrNoRows) {
		err = ErrNoGroup
	}
	return g, err
}

// Group returns a log group; it wraps ErrNoGroup.
func (d *DB) Group(ctx context.Context, region, name string) (Group, error) {
	g, err := findGroup(ctx, d.read, region, name)
	if err != nil {
		return g, fmt.Errorf("read log group %s: %w", name, err)
	}
	return g, nil
}

// Groups returns all log groups of a region by name.
func (d *DB) Groups(ctx context.Context, region string) ([]Group, error) {
	out, err := collect(ctx, d.read, scanGroup, `SELECT `+groupColumns+` FROM groups WHERE region = ? AND gone = 0 ORDER BY name`, region)
	if err != nil {
		return nil, fmt.Errorf("list log groups: %w", err)
	}
	return out, nil
}

func collect[T any](ctx context.Context, q query, scan func(interface{ Scan(...any) error }) (T, error), text string, args ...any) ([]T, error) {
	rows, err := q.QueryContext(ctx, text, args...)
	if err != nil {
		return nil, err
	}
	defer func() { _ = rows.Close() }()
	var out []T
	for rows.Next() {
		v, err := scan(rows)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, rows.Err()
}

// CreateGroup makes a log group; its name, region, class, protection, tags and
// time of creation are taken. It wraps ErrExists.
func (d *DB) CreateGroup(ctx context.Context, g Group) error {
	tags, err := encodeTags(g.Tags)
	if err != nil {
		return err
	}
	err = d.change(ctx, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO groups (region, name, created, class, retention, protected, bytes, tags) VALUES (?,?,?,?,0,?,0,?)`,
			g.Region, g.Name, g.Created, g.Class, g.Protected, tags)
		return err
	})
	if err != nil {
		return fmt.Errorf("create log group %s: %w", g.Name, taken(err))
	}
	return nil
}

// taken is ErrExists for an error of a unique index.
func taken(err error) error {
	if strings.Contains(err.Error(), "UNIQUE constraint failed") {
		return ErrExists
	}
	return err
}

func encodeTags(tags map[string]string) (string, error) {
	if tags == nil {
		tags = map[string]string{}
	}
	doc, err := json.Marshal(tags)
	return string(doc), err
}

// ChangeGroup changes retention, protection and tags of a log group as fn says,
// whose error it returns. It wraps ErrNoGroup.
func (d *DB) ChangeGroup(ctx context.Context, region, name string, fn func(*Group) error) error {
	return d.change(ctx, func(tx *sql.Tx) error {
		g, err := findGroup(ctx, tx, region, name)
		if err != nil {
			return fmt.Errorf("change log group %s: %w", name, err)
		}
		if err := fn(&g); err != nil {
			return err
		}
		tags, err := encodeTags(g.Tags)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `UPDATE groups SET retention = ?, protected = ?, tags = ? WHERE id = ?`, g.Retention, g.Protected, tags, g.ID)
		return err
	})
}

// DeleteGroup removes a log group with all that is in it, if fn agrees. What it
// held is out of sight at once and leaves the disk with Sweep. It wraps
// ErrNoGroup.
func (d *DB) DeleteGroup(ctx context.Context, region, name string, fn func(Group) error) error {
	return d.change(ctx, func(tx *sql.Tx) error {
		g, err := findGroup(ctx, tx, region, name)
		if err != nil {
			return fmt.Errorf("delete log group %s: %w", name, err)
		}
		if err := fn(g); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `UPDATE groups SET gone = 1 WHERE id = ?`, g.ID); err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `UPDATE streams SET gone = 1 WHERE grp = ? AND gone = 0`, g.ID)
		return err
	})
}

// Stream is a log stream. Its times are ms since the epoch, and 0 before its
// first event.
type Stream struct {
	ID       int64
	Group    int64
	Name     string
	Created  int64
	First    int64 // time of the oldest event
	Last     int64 // time of the newest event
	Ingested int64 // when an event came last
}

const streamColumns = `id, grp, name, created, first, last, ingested`

func scanStream(row interface{ Scan(...any) error }) (s Stream, err error) {
	err = row.Scan(&s.ID, &s.Group, &s.Name, &s.Created, &s.First, &s.Last, &s.Ingested)
	return s, err
}

func findStream(ctx context.Context, q query, group int64, name string) (Stream, error) {
	s, err := scanStream(q.QueryRowContext(ctx, `SELECT `+streamColumns+` FROM streams WHERE grp = ? AND name = ? AND gone = 0`, group, name))
	if errors.Is(err, sql.ErrNoRows) {
		err = ErrNoStream
	}
	return s, err
}

func addStream(ctx context.Context, tx *sql.Tx, group int64, name string, now time.Time) (Stream, error) {
	s := Stream{Group: group, Name: name, Created: now.UnixMilli()}
	err := tx.QueryRowContext(ctx, `INSERT INTO streams (grp, name, created) VALUES (?,?,?) RETURNING id`, group, name, s.Created).Scan(&s.ID)
	if err != nil {
		return s, taken(err)
	}
	return s, nil
}

// CreateStream makes a log stream. It wraps ErrNoGroup or ErrExists.
func (d *DB) CreateStream(ctx context.Context, region, group, name string, now time.Time) error {
	err := d.change(ctx, func(tx *sql.Tx) error {
		g, err := findGroup(ctx, tx, region, group)
		if err == nil {
			_, err = addStream(ctx, tx, g.ID, name, now)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("create log stream %s of log group %s: %w", name, group, err)
	}
	return nil
}

// DeleteStream removes a log stream with its events, as DeleteGroup does if fn
// agrees to what group it is in. It wraps ErrNoGroup or ErrNoStream.
func (d *DB) DeleteStream(ctx context.Context, region, group, name string, fn func(Group) error) error {
	return d.change(ctx, func(tx *sql.Tx) error {
		g, err := findGroup(ctx, tx, region, group)
		var s Stream
		if err == nil {
			s, err = findStream(ctx, tx, g.ID, name)
		}
		if err != nil {
			return fmt.Errorf("delete log stream %s of log group %s: %w", name, group, err)
		}
		if err := fn(g); err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, `UPDATE streams SET gone = 1 WHERE id = ?`, s.ID)
		return err
	})
}

// Stream returns a log stream; it wraps ErrNoStream.
func (d *DB) Stream(ctx context.Context, group int64, name string) (Stream, error) {
	s, err := findStream(ctx, d.read, group, name)
	if err != nil {
		return s, fmt.Errorf("read log stream %s: %w", name, err)
	}
	return s, nil
}

// Order is how streams are listed.
type Order struct {
	Prefix string // of their names; with ByTime it does not count
	ByTime bool   // by the time of the newest event, and then by name
	Down   bool
	// After, if it is set, is the stream after which the list goes on.
	After *Stream
	Limit int
}

// Streams lists streams of a group.
func (d *DB) Streams(ctx context.Context, group int64, o Order) ([]Stream, error) {
	key, than, direction := "name", ">", "ASC"
	if o.ByTime {
		key = "last, name"
	}
	if o.Down {
		than, direction = "<", "DESC"
	}
	text := `SELECT ` + streamColumns + ` FROM streams WHERE grp = ? AND gone = 0`
	args := []any{group}
	if o.Prefix != "" && !o.ByTime {
		// As GLOB and LIKE, but every character stands for itself.
		text += ` AND name >= ? AND substr(name, 1, ?) = ?`
		args = append(args, o.Prefix, len([]rune(o.Prefix)), o.Prefix)
	}
	if o.After != nil {
		if o.ByTime {
			text += ` AND (last, name) ` + than + ` (?, ?)`
			args = append(args, o.After.Last, o.After.Name)
		} else {
			text += ` AND name ` + than + ` ?`
			args = append(args, o.After.Name)
		}
	}
	text += ` ORDER BY ` + strings.ReplaceAll(key, ",", " "+direction+",") + ` ` + direction + ` LIMIT ?`
	args = append(args, o.Limit)
	out, err := collect(ctx, d.read, scanStream, text, args...)
	if err != nil {
		return nil, fmt.Errorf("list log streams: %w", err)
	}
	return out, nil
}

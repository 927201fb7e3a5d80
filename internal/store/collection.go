package store

import (
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// Index is by what an object can be found, besides its id. A name, where
// there is one, is unique within kind, region and parent.
type Index struct {
	ID     string
	Region string
	Parent string
	Name   string
}

// Collection stores values of one type as JSON under a kind of its own.
type Collection[T any] struct {
	kind  string
	index func(T) Index
}

// NewCollection declares a kind. Declare each kind once, at package level.
func NewCollection[T any](kind string, index func(T) Index) Collection[T] {
	return Collection[T]{kind: kind, index: index}
}

// Put inserts or replaces v. It returns ErrExists when another object has
// its name.
func (c Collection[T]) Put(tx *Tx, v T) error {
	ix := c.index(v)
	doc, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("encode %s %s: %w", c.kind, ix.ID, err)
	}
	if _, err := tx.tx.ExecContext(tx.ctx, `UPDATE counter SET last = last + 1`); err != nil {
		return fmt.Errorf("put %s %s: %w", c.kind, ix.ID, err)
	}
	_, err = tx.tx.ExecContext(tx.ctx, `INSERT INTO objects (kind, id, region, parent, name, seq, doc)
		VALUES (?,?,?,?,?,(SELECT last FROM counter),?)
		ON CONFLICT (kind, id) DO UPDATE SET region=excluded.region, parent=excluded.parent, name=excluded.name, doc=excluded.doc`,
		c.kind, ix.ID, ix.Region, ix.Parent, ix.Name, doc)
	switch {
	case err == nil:
		return nil
	case strings.Contains(err.Error(), "UNIQUE constraint failed"):
		return fmt.Errorf("put %s %s: %w", c.kind, ix.Name, ErrExists)
	default:
		return fmt.Errorf("put %s %s: %w", c.kind, ix.ID, err)
	}
}

// Get returns the object with the id, or ErrNotFound.
func (c Collection[T]) Get(tx *Tx, id string) (T, error) {
	return c.one(tx.tx.QueryRowContext(tx.ctx, `SELECT doc FROM objects WHERE kind = ? AND id = ?`, c.kind, id), id)
}

// Find returns the object with that name, or ErrNotFound.
func (c Collection[T]) Find(tx *Tx, region, parent, name string) (T, error) {
	return c.one(tx.tx.QueryRowContext(tx.ctx,
		`SELECT doc FROM objects WHERE kind = ? AND region = ? AND parent = ? AND name = ? AND name <> ''`,
		c.kind, region, parent, name), name)
}

func (c Collection[T]) one(row *sql.Row, what string) (T, error) {
	var v T
	var doc []byte
	err := row.Scan(&doc)
	if errors.Is(err, sql.ErrNoRows) {
		return v, fmt.Errorf("%s %s: %w", c.kind, what, ErrNotFound)
	}
	if err != nil {
		return v, fmt.Errorf("get %s %s: %w", c.kind, what, err)
	}
	if err := json.Unmarshal(doc, &v); err != nil {
		return v, fmt.Errorf("decode %s %s: %w", c.kind, what, err)
	}
	return v, nil
}

// All returns every object of the kind in order of creation.
func (c Collection[T]) All(tx *Tx) ([]T, error) {
	return c.list(tx, `SELECT doc FROM objects WHERE kind = ? ORDER BY seq`, c.kind)
}

// InRegion returns the objects of one region in order of creation.
func (c Collection[T]) InRegion(tx *Tx, region string) ([]T, error) {
	return c.list(tx, `SELECT doc FROM objects WHERE kind = ? AND region = ? ORDER BY seq`, c.kind, region)
}

// Of returns the objects with that parent in order of creation.
func (c Collection[T]) Of(tx *Tx, parent string) ([]T, error) {
	return c.list(tx, `SELECT doc FROM objects WHERE kind = ? AND parent = ? ORDER BY seq`, c.kind, parent)
}

func (c Collection[T]) list(tx *Tx, query string, args ...any) ([]T, error) {
	rows, err := tx.tx.QueryContext(tx.ctx, query, args...)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", c.kind, err)
	}
	defer func() { _ = rows.Close() }()
	out := []T{}
	for rows.Next() {
		var v T
		var doc sql.RawBytes
		if err := rows.Scan(&doc); err != nil {
			return nil, fmt.Errorf("list %s: %w", c.kind, err)
		}
		if err := json.Unmarshal(doc, &v); err != nil {
			return nil, fmt.Errorf("decode %s: %w", c.kind, err)
		}
		out = append(out, v)
	}
	return out, rows.Err()
}

// Delete removes the object; it is no error if there is none.
func (c Collection[T]) Delete(tx *Tx, id string) error {
	if _, err := tx.tx.ExecContext(tx.ctx, `DELETE FROM objects WHERE kind = ? AND id = ?`, c.kind, id); err != nil {
		return fmt.Errorf("delete %s %s: %w", c.kind, id, err)
	}
	return nil
}

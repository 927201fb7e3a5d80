package store

import (
	"encoding/json"
	"fmt"
)

// Index is by what an object can be found, besides its id. A name, where
// there is one, is unique within kind, region and parent.
type Index struct {
	ID     string
	Region string
	Parent string
	Name   string
}

// Collection stores values of one type as JSON under a kind of its own. What
// it returns belongs to the caller, who may change it.
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
	if tx.db == nil {
		return fmt.Errorf("put %s %s: %w", c.kind, ix.ID, errReadOnly)
	}
	s := tx.objects.shelves[c.kind]
	if other := s.find(ix); other != nil && other.ID != ix.ID {
		return fmt.Errorf("put %s %s: %w", c.kind, ix.Name, ErrExists)
	}
	r := &row{Index: ix, doc: doc}
	if old := s.get(ix.ID); old != nil {
		r.seq = old.seq
	} else {
		r.seq = tx.objects.last + 1
	}
	if err := tx.exec(tx.store.put, c.kind, ix.ID, ix.Region, ix.Parent, ix.Name, r.seq, doc); err != nil {
		return fmt.Errorf("put %s %s: %w", c.kind, ix.ID, err)
	}
	tx.objects.last = max(tx.objects.last, r.seq)
	tx.keep(c.kind, r)
	return nil
}

// Get returns the object with the id, or ErrNotFound.
func (c Collection[T]) Get(tx *Tx, id string) (T, error) {
	return c.one(tx.objects.shelves[c.kind].get(id), id)
}

// Find returns the object with that name, or ErrNotFound.
func (c Collection[T]) Find(tx *Tx, region, parent, name string) (T, error) {
	return c.one(tx.objects.shelves[c.kind].find(Index{Region: region, Parent: parent, Name: name}), name)
}

func (c Collection[T]) one(r *row, what string) (v T, err error) {
	if r == nil {
		return v, fmt.Errorf("%s %s: %w", c.kind, what, ErrNotFound)
	}
	shared, err := decoded[T](r)
	if err != nil {
		return v, fmt.Errorf("decode %s %s: %w", c.kind, what, err)
	}
	return copyOf(shared), nil
}

// All returns every object of the kind in order of creation.
func (c Collection[T]) All(tx *Tx) ([]T, error) {
	return c.list(tx, func(*row) bool { return true }, nil)
}

// InRegion returns the objects of one region in order of creation.
func (c Collection[T]) InRegion(tx *Tx, region string) ([]T, error) {
	return c.list(tx, func(r *row) bool { return r.Region == region }, nil)
}

// Of returns the objects with that parent in order of creation.
func (c Collection[T]) Of(tx *Tx, parent string) ([]T, error) {
	return c.list(tx, func(r *row) bool { return r.Parent == parent }, nil)
}

// Where returns the objects that are to be kept, in order of creation. It is
// for finding few among many: keep gets what is shared with others, and must
// neither change it nor hold on to it.
func (c Collection[T]) Where(tx *Tx, keep func(*T) bool) ([]T, error) {
	return c.list(tx, func(*row) bool { return true }, keep)
}

func (c Collection[T]) list(tx *Tx, match func(*row) bool, keep func(*T) bool) ([]T, error) {
	var rows []*row
	for r := range tx.objects.shelves[c.kind].all() {
		if !match(r) {
			continue
		}
		if keep != nil {
			shared, err := decoded[T](r)
			if err != nil {
				return nil, fmt.Errorf("decode %s %s: %w", c.kind, r.ID, err)
			}
			if !keep(shared) {
				continue
			}
		}
		rows = append(rows, r)
	}
	bySeq(rows)
	out := make([]T, len(rows))
	for n, r := range rows {
		shared, err := decoded[T](r)
		if err != nil {
			return nil, fmt.Errorf("decode %s %s: %w", c.kind, r.ID, err)
		}
		out[n] = copyOf(shared)
	}
	return out, nil
}

// Delete removes the object; it is no error if there is none.
func (c Collection[T]) Delete(tx *Tx, id string) error {
	if tx.db == nil {
		return fmt.Errorf("delete %s %s: %w", c.kind, id, errReadOnly)
	}
	r := tx.objects.shelves[c.kind].get(id)
	if r == nil {
		return nil
	}
	if err := tx.exec(tx.store.remove, c.kind, id); err != nil {
		return fmt.Errorf("delete %s %s: %w", c.kind, id, err)
	}
	tx.shelf(c.kind).drop(tx, r)
	return nil
}

package store

import (
	"cmp"
	"encoding/json"
	"hash/maphash"
	"iter"
	"slices"
	"sync"
)

// The objects of the file are held in memory as well, decoded: reading a
// large cluster out of SQLite and JSON took a tenth of a second. One process
// has the file, so memory and file agree as long as every transaction that
// commits changes both.
//
// A snapshot never changes once it is committed. A transaction that writes
// works on a copy of which it clones only the buckets that it touches.

// row is one object. Only its decoded value is filled in later.
type row struct {
	Index
	seq    int64
	doc    []byte // as it is in the file
	decode sync.Once
	value  any // *T of the collection; nobody outside may see it but as a copy
	err    error
}

// buckets is how many parts a kind has: a write clones one of them, and even
// ten thousand objects leave forty in each.
const buckets = 256

// owner marks what a transaction has made, and may change in place. It is not
// the transaction itself, which would keep the snapshot before it alive, and so
// on back to the first.
type owner struct{ _ byte } // of a size, so that no two have one address

// bucket is a part of a shelf.
type bucket struct {
	owner *owner
	rows  []*row
}

// shelf is all objects of one kind, by id and by name.
type shelf struct {
	owner  *owner
	count  int
	byID   [buckets]*bucket
	byName [buckets]*bucket // of those that have a name
}

// snapshot is all objects at one time.
type snapshot struct {
	shelves map[string]*shelf
	last    int64 // the newest seq that was given
}

var seed = maphash.MakeSeed()

func idBucket(id string) int { return int(maphash.String(seed, id) % buckets) }

func nameBucket(ix Index) int {
	return int(maphash.Comparable(seed, [3]string{ix.Region, ix.Parent, ix.Name}) % buckets)
}

// get returns the row with the id, or nil.
func (s *shelf) get(id string) *row {
	if s == nil {
		return nil
	}
	if b := s.byID[idBucket(id)]; b != nil {
		for _, r := range b.rows {
			if r.ID == id {
				return r
			}
		}
	}
	return nil
}

// find returns the row with the name, or nil.
func (s *shelf) find(ix Index) *row {
	if s == nil || ix.Name == "" {
		return nil
	}
	if b := s.byName[nameBucket(ix)]; b != nil {
		for _, r := range b.rows {
			if r.Name == ix.Name && r.Parent == ix.Parent && r.Region == ix.Region {
				return r
			}
		}
	}
	return nil
}

// all returns the rows in no order.
func (s *shelf) all() iter.Seq[*row] {
	return func(yield func(*row) bool) {
		if s == nil {
			return
		}
		for _, b := range s.byID {
			if b == nil {
				continue
			}
			for _, r := range b.rows {
				if !yield(r) {
					return
				}
			}
		}
	}
}

// bySeq sorts rows in order of creation.
func bySeq(rows []*row) {
	slices.SortFunc(rows, func(a, b *row) int { return cmp.Compare(a.seq, b.seq) })
}

// own returns the bucket for the transaction to change.
func own(place **bucket, tx *Tx) *bucket {
	switch b := *place; {
	case b == nil:
		*place = &bucket{owner: tx.owner}
	case b.owner != tx.owner:
		*place = &bucket{owner: tx.owner, rows: slices.Clone(b.rows)}
	}
	return *place
}

func (b *bucket) remove(r *row) {
	if n := slices.Index(b.rows, r); n >= 0 {
		b.rows = slices.Delete(b.rows, n, n+1)
	}
}

// shelf returns the kind's shelf for the transaction to change.
func (tx *Tx) shelf(kind string) *shelf {
	s := tx.objects.shelves[kind]
	switch {
	case s == nil:
		s = &shelf{owner: tx.owner}
	case s.owner != tx.owner:
		mine := *s
		mine.owner = tx.owner
		s = &mine
	}
	tx.objects.shelves[kind] = s
	return s
}

// keep puts a row in the place of the one with its id.
func (tx *Tx) keep(kind string, r *row) {
	s := tx.shelf(kind)
	if old := s.get(r.ID); old != nil {
		s.drop(tx, old)
	}
	b := own(&s.byID[idBucket(r.ID)], tx)
	b.rows = append(b.rows, r)
	s.count++
	if r.Name != "" {
		b := own(&s.byName[nameBucket(r.Index)], tx)
		b.rows = append(b.rows, r)
	}
}

func (s *shelf) drop(tx *Tx, r *row) {
	own(&s.byID[idBucket(r.ID)], tx).remove(r)
	s.count--
	if r.Name != "" {
		own(&s.byName[nameBucket(r.Index)], tx).remove(r)
	}
}

// decoded returns the value of a row, which is shared by all who read it.
func decoded[T any](r *row) (*T, error) {
	r.decode.Do(func() {
		v := new(T)
		if r.err = json.Unmarshal(r.doc, v); r.err == nil {
			r.value, r.doc = v, nil
		}
	})
	if r.err != nil {
		return nil, r.err
	}
	return r.value.(*T), nil
}

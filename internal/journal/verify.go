package journal

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
)

// Damage is what Verify found.
type Damage struct {
	Segment string `json:"segment"` // the file's name; empty if it is about the whole journal
	// From and To are the numbers of the records that it is about.
	From int64  `json:"from"`
	To   int64  `json:"to"`
	What string `json:"what"`
}

// Report is the result of a verification.
type Report struct {
	Base    Mark     `json:"base"`
	Head    Mark     `json:"head"`
	Records int64    `json:"records"`
	Blocks  int64    `json:"blocks"`
	Bytes   int64    `json:"bytes"`
	Damage  []Damage `json:"damage"`
}

// Verify reads the journal from its beginning to its end and computes the chain
// of hashes anew. With an anchor that was kept elsewhere, the chain must begin at
// its base and must have its head; what is behind the head is new. The journal
// may be written to meanwhile. An error says that it could not be read.
func (j *Journal) Verify(anchor Anchor) (r Report, err error) {
	j.mu.Lock()
	segments := slices.Clone(j.segments)
	j.mu.Unlock()
	v := verifier{anchor: anchor}
	for _, s := range segments {
		if s.first <= anchor.Base.Seq {
			continue // it was being removed while the anchor was read
		}
		err := v.segment(s)
		if errors.Is(err, fs.ErrNotExist) {
			if j.First() <= s.first { // not trimmed just now
				v.damage(s.path, v.Head.Seq+1, v.Head.Seq+1, "the segment was removed")
			}
			continue
		}
		if err != nil {
			return r, fmt.Errorf("verify the journal %s: %w", j.key, err)
		}
	}
	if !v.met && anchor.Head.Seq > 0 {
		what := fmt.Sprintf("the end was cut off: the journal is known to go to record %d", anchor.Head.Seq)
		from := v.Head.Seq + 1
		if v.Head.Seq >= anchor.Head.Seq {
			from, what = anchor.Head.Seq, fmt.Sprintf("the chain is another one: at record %d it does not have the hash that was noted", anchor.Head.Seq)
		}
		v.damage("", from, anchor.Head.Seq, what)
	}
	return v.Report, nil
}

type verifier struct {
	Report
	anchor Anchor
	begun  bool
	before header // the block before
	met    bool   // the anchor's head is in the chain
}

func (v *verifier) damage(segment string, from, to int64, what string) {
	if segment != "" {
		segment = filepath.Base(segment)
	}
	v.Damage = append(v.Damage, Damage{segment, from, to, what})
}

func (v *verifier) segment(s segment) error {
	f, err := os.Open(s.path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	v.Bytes += s.size
	info, err := f.Stat()
	if err != nil {
		return err
	}
	// What is behind its size is being written.
	sc := scanner{r: f, size: min(s.size, info.Size())}
	defer func() {
		if short := s.size - info.Size(); short > 0 {
			v.damage(s.path, v.Head.Seq+1, v.Head.Seq+1, fmt.Sprintf("the last %d bytes were cut off", short))
		}
	}()
	broken := false // a block before this one was damaged, and said so
	for {
		h, block, _, err := sc.next()
		if errors.Is(err, io.EOF) {
			if sc.skipped > 0 {
				v.damage(s.path, v.Head.Seq+1, v.Head.Seq+1, fmt.Sprintf("the last %d bytes are no records", sc.skipped))
			}
			return nil
		}
		if err != nil {
			return err
		}
		if sc.skipped > 0 {
			v.damage(s.path, v.Head.Seq+1, max(h.first-1, v.Head.Seq+1), fmt.Sprintf("%d bytes are no records", sc.skipped))
			broken = true
		}
		hash, right := hashOf(block)
		v.block(s, h, block, right, broken)
		v.before, v.Head = h, Mark{h.last(), hash}
		v.Blocks++
		v.Records += int64(h.count)
		if right && v.Head == v.anchor.Head {
			v.met = true
		}
		broken = false
	}
}

// block checks one block against itself and against the one before.
func (v *verifier) block(s segment, h header, block []byte, right, broken bool) {
	first := !v.begun
	v.begun = true
	switch {
	case first:
		v.Base = Mark{h.first - 1, h.prev}
		if v.Base == v.anchor.Head {
			v.met = true // nothing is kept of what was before
		}
		if want := v.anchor.Base; v.Base != want {
			what := "the beginning was cut off"
			if v.Base.Seq == want.Seq {
				what = "the chain is another one: its beginning does not have the hash that was noted"
			}
			v.damage(s.path, want.Seq+1, max(h.first-1, want.Seq+1), what)
		}
	case h.first > v.Head.Seq+1 && !broken:
		v.damage(s.path, v.Head.Seq+1, h.first-1, "records were removed")
	case h.first <= v.Head.Seq:
		v.damage(s.path, h.first, h.last(), "records stand in another order, or twice")
	case h.prev != v.Head.Hash && !broken:
		v.damage(s.path, v.before.first, v.before.last(), "the records, or what is noted with them, are not those that were written")
	}
	if right {
		return
	}
	var changed *entryError
	if err := h.each(block, func(Entry) bool { return true }); errors.As(err, &changed) {
		v.damage(s.path, changed.seq, changed.seq, "the record was changed")
		return
	}
	v.damage(s.path, h.first, h.last(), "the records, or what is noted with them, were changed")
}

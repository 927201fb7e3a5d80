package journal

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"slices"
)

// A block is, in little endian:
//
//	magic     4  "PCSJ"
//	length    4  of the block, all of it
//	check     4  CRC-32C of the header after it, with place and words
//	count     4  of entries
//	first     8  the number of its first entry
//	oldest    8  time of its entries
//	newest    8
//	prev     32  hash of the block before
//	place   2+n  of the source, after this block
//	words   2+n  the levels and releases of its entries, each 1+n
//	entries
//	hash     32  SHA-256 of all that is before it
//
// and an entry:
//
//	check     4  CRC-32C of the entry after it
//	length    4  of the text
//	time      8
//	level     1  number of a word
//	release   1
//	text
//
// The hash is what the chain is made of; the checks, which cost less, are for
// readers, and say which entry of a block it is that is not what was written.
const (
	magic      = 0x4a534350
	fixed      = 4 + 4 + 4 + 4 + 8 + 8 + 8 + 32
	entryFixed = 4 + 4 + 8 + 1 + 1
	// largestHeader is up to the entries.
	largestHeader = fixed + 2 + maxPlace + 2 + 256*256
)

var (
	castagnoli = crc32.MakeTable(crc32.Castagnoli)
	le         = binary.LittleEndian
)

// appendBlock encodes a block.
func appendBlock(buf []byte, first int64, prev Hash, place []byte, entries []Entry) ([]byte, error) {
	start := len(buf)
	buf = slices.Grow(buf, fixed)[:start+fixed]
	head := buf[start:]
	le.PutUint32(head[0:], magic)
	le.PutUint32(head[12:], uint32(len(entries)))
	le.PutUint64(head[16:], uint64(first))
	var oldest, newest int64
	for k := range entries {
		t := entries[k].Time
		if k == 0 || t < oldest {
			oldest = t
		}
		if k == 0 || t > newest {
			newest = t
		}
	}
	le.PutUint64(head[24:], uint64(oldest))
	le.PutUint64(head[32:], uint64(newest))
	copy(head[40:], prev[:])
	buf = le.AppendUint16(buf, uint16(len(place)))
	buf = append(buf, place...)

	var words [256]string
	n := 0
	number := func(w string) (byte, error) {
		for k := range n {
			if words[k] == w {
				return byte(k), nil
			}
		}
		if n == len(words) || len(w) > 255 {
			return 0, fmt.Errorf("more than %d levels and releases in one block, or one of more than 255 bytes", len(words))
		}
		words[n] = w
		n++
		return byte(n - 1), nil
	}
	for k := range entries {
		if _, err := number(entries[k].Level); err != nil {
			return buf[:start], err
		}
		if _, err := number(entries[k].Release); err != nil {
			return buf[:start], err
		}
	}
	at := len(buf)
	buf = append(buf, 0, 0)
	for _, w := range words[:n] {
		buf = append(append(buf, byte(len(w))), w...)
	}
	le.PutUint16(buf[at:], uint16(len(buf)-at-2))
	body := len(buf)
	for k := range entries {
		e := &entries[k]
		at := len(buf)
		buf = slices.Grow(buf, entryFixed+len(e.Text))[:at+entryFixed]
		le.PutUint32(buf[at+4:], uint32(len(e.Text)))
		le.PutUint64(buf[at+8:], uint64(e.Time))
		buf[at+16], _ = number(e.Level)
		buf[at+17], _ = number(e.Release)
		buf = append(buf, e.Text...)
		le.PutUint32(buf[at:], crc32.Checksum(buf[at+4:], castagnoli))
	}
	le.PutUint32(buf[start+4:], uint32(len(buf)-start+len(Hash{})))
	le.PutUint32(buf[start+8:], crc32.Checksum(buf[start+12:body], castagnoli))
	hash := sha256.Sum256(buf[start:])
	return append(buf, hash[:]...), nil
}

// header is what is known of a block before its entries are looked at.
type header struct {
	length        int
	count         int
	first         int64
	oldest        int64
	newest        int64
	prev          Hash
	place         []byte
	words, bodyAt int // where in the block they begin
}

func (h header) last() int64 { return h.first + int64(h.count) - 1 }

// errShort says that more bytes are needed, errBlock that no block begins here.
var (
	errShort = errors.New("the block is not complete")
	errBlock = errors.New("this is no block, or one that was changed")
)

// parseHeader reads the header at the beginning of buf, which must have the
// block up to its entries.
func parseHeader(buf []byte) (h header, err error) {
	if len(buf) < fixed+2 {
		return h, errShort
	}
	h.length, h.count = int(le.Uint32(buf[4:])), int(le.Uint32(buf[12:]))
	h.first, h.oldest, h.newest = int64(le.Uint64(buf[16:])), int64(le.Uint64(buf[24:])), int64(le.Uint64(buf[32:]))
	h.prev = Hash(buf[40:72])
	if le.Uint32(buf) != magic || h.length < fixed+4+len(Hash{}) || h.length > 2*MaxBlock || h.first < 1 {
		return h, errBlock
	}
	place := int(le.Uint16(buf[fixed:]))
	at := fixed + 2 + place
	if place > maxPlace || at+2 > h.length {
		return h, errBlock
	}
	if len(buf) < at+2 {
		return h, errShort
	}
	h.place, h.words = buf[fixed+2:at], at+2
	h.bodyAt = h.words + int(le.Uint16(buf[at:]))
	if h.bodyAt+len(Hash{}) > h.length || h.count*entryFixed > h.length {
		return h, errBlock
	}
	if len(buf) < h.bodyAt {
		return h, errShort
	}
	if le.Uint32(buf[8:]) != crc32.Checksum(buf[12:h.bodyAt], castagnoli) {
		return h, errBlock
	}
	return h, nil
}

// entryError says which entry is not what was written.
type entryError struct{ seq int64 }

func (e *entryError) Error() string { return fmt.Sprintf("record %d was changed", e.seq) }

// each calls f with the entries of a block, whose header is h, until f returns
// false. Texts are parts of block.
func (h header) each(block []byte, f func(Entry) bool) error {
	var words []string
	for w := block[h.words:h.bodyAt]; len(w) > 0; {
		n := int(w[0])
		if n+1 > len(w) {
			return errBlock
		}
		words = append(words, string(w[1:n+1]))
		w = w[n+1:]
	}
	body := block[h.bodyAt : h.length-len(Hash{})]
	for k := range h.count {
		seq := h.first + int64(k)
		if len(body) < entryFixed {
			return &entryError{seq}
		}
		end := entryFixed + int(le.Uint32(body[4:]))
		if end > len(body) || le.Uint32(body) != crc32.Checksum(body[4:end], castagnoli) || int(max(body[16], body[17])) >= len(words) {
			return &entryError{seq}
		}
		e := Entry{Seq: seq, Time: int64(le.Uint64(body[8:])), Level: words[body[16]], Release: words[body[17]], Text: body[entryFixed:end:end]}
		if !f(e) {
			return nil
		}
		body = body[end:]
	}
	if len(body) > 0 {
		return errBlock
	}
	return nil
}

// hashOf is the hash that stands at the end of a block, and whether it is that
// of the block.
func hashOf(block []byte) (h Hash, right bool) {
	n := len(block) - len(h)
	copy(h[:], block[n:])
	return h, sha256.Sum256(block[:n]) == h
}

// scanner goes through the blocks of a segment.
type scanner struct {
	r    io.ReaderAt
	at   int64 // of the next block
	size int64 // of the segment
	buf  []byte
	off  int64 // of buf in the file
	// skipped is what next went over before the block that it returned, as no
	// block begins there.
	skipped int64
}

// next returns the next whole block and its place in the file; io.EOF if there
// is none. The block is good until the next call.
func (s *scanner) next() (h header, block []byte, at int64, err error) {
	s.skipped = 0
	from := s.at
	for {
		var buf []byte
		if s.buffered() {
			buf = s.buf[s.at-s.off:]
		} else if buf, err = s.fill(s.at, largestHeader); err != nil {
			return h, nil, 0, err
		}
		h, err = parseHeader(buf)
		if err == nil && s.at+int64(h.length) <= s.size {
			if buf, err = s.fill(s.at, h.length); err != nil {
				return h, nil, 0, err
			}
			if h, err = parseHeader(buf); err != nil {
				return h, nil, 0, err
			}
			at, s.skipped = s.at, s.at-from
			s.at += int64(h.length)
			return h, buf[:h.length], at, nil
		}
		// Look for where the next one may begin.
		if len(buf) == 0 || s.at+4 > s.size {
			s.skipped = s.size - from
			return h, nil, 0, io.EOF
		}
		if n := bytes.Index(buf[1:], []byte("PCSJ")); n >= 0 {
			s.at += int64(n) + 1
		} else {
			s.at += int64(max(len(buf)-3, 1))
		}
	}
}

// fill returns the file from at on: at least n bytes, or all there are.
func (s *scanner) fill(at int64, n int) ([]byte, error) {
	n = int(min(int64(n), s.size-at))
	if n <= 0 {
		return nil, nil
	}
	if at >= s.off && at+int64(n) <= s.off+int64(len(s.buf)) {
		return s.buf[at-s.off:], nil
	}
	want := int(min(int64(max(n, 1<<18)), s.size-at))
	if cap(s.buf) < want {
		s.buf = make([]byte, want)
	}
	s.buf, s.off = s.buf[:want], at
	if _, err := s.r.ReadAt(s.buf, at); err != nil {
		return nil, err
	}
	return s.buf, nil
}

// buffered says whether next returns a block without reading from the file.
func (s *scanner) buffered() bool {
	if s.at < s.off || s.at >= s.off+int64(len(s.buf)) {
		return false
	}
	rest := s.buf[s.at-s.off:]
	h, err := parseHeader(rest)
	return err == nil && h.length <= len(rest)
}

// tail is what is known of the last block of a segment.
type tail struct {
	end   int64 // of the last whole block
	last  int64 // entry
	hash  Hash
	place []byte
	met   bool // a mark is in this segment
}

// lastBlock finds the last block of a segment that is whole: the one after it
// was being written when the process or the machine ended. It also looks for a mark.
func lastBlock(path string, mark Mark) (t tail, err error) {
	f, err := os.Open(path)
	if err != nil {
		return t, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return t, err
	}
	s := scanner{r: f, size: info.Size()}
	for {
		h, block, _, err := s.next()
		if errors.Is(err, io.EOF) {
			return t, nil
		}
		if err != nil {
			return t, err
		}
		// Those before it were on the disk before it was written. To compute the
		// hashes of all would make the start of openpcs wait for it; Verify does.
		hash := Hash(block[len(block)-len(Hash{}):])
		if s.at == s.size {
			if _, right := hashOf(block); !right {
				return t, nil // its length is there, its content not all
			}
		}
		t = tail{s.at, h.last(), hash, slices.Clone(h.place), t.met || Mark{h.last(), hash} == mark}
	}
}

// firstBlock returns the hash that the first block of a segment follows.
func firstBlock(path string) (Hash, error) {
	f, err := os.Open(path)
	if err != nil {
		return Hash{}, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return Hash{}, err
	}
	s := scanner{r: f, size: info.Size()}
	h, _, _, err := s.next()
	if err != nil {
		return Hash{}, fmt.Errorf("read the first block of %s: %w", path, err)
	}
	return h.prev, nil
}

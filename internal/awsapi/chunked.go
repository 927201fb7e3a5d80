package awsapi

import (
	"bufio"
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"strconv"
	"strings"
)

// How a body is protected that is sent in chunks, in place of its hash.
const (
	unsignedTrailer = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
	signedChunks    = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
	signedTrailer   = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"
)

// decodeStream takes the signatures of chunks, which only the front door can
// verify, off a body: it becomes a plain one, or one with an unsigned trailer.
// Other bodies stay as they are. It returns what a signature of the new body
// has as its hash.
func decodeStream(r *http.Request, sig *signature, key Key, hash string) (string, *Error) {
	if hash != signedChunks && hash != signedTrailer {
		return hash, nil
	}
	decoded, err := strconv.ParseInt(r.Header.Get("X-Amz-Decoded-Content-Length"), 10, 64)
	if err != nil || decoded < 0 {
		return "", newError(http.StatusLengthRequired, "MissingContentLength", "You must provide the x-amz-decoded-content-length HTTP header.")
	}
	if sig.presigned {
		return "", newError(http.StatusBadRequest, "InvalidRequest", "A presigned URL cannot have a body in signed chunks.")
	}
	in := &chunkReader{
		in: bufio.NewReaderSize(r.Body, 32<<10), close: r.Body, left: decoded,
		key:   signingKey(key.Secret, sig.date, sig.region, sig.service),
		scope: sig.at.UTC().Format(timeFormat) + "\n" + sig.scope(), previous: hex.EncodeToString(sig.signature),
		data: sha256.New(), trailer: strings.ToLower(r.Header.Get("X-Amz-Trailer")), signedTrailer: hash == signedTrailer,
	}
	if hash == signedChunks {
		r.Body, r.ContentLength = in, decoded
		r.Header.Del("X-Amz-Decoded-Content-Length")
		dropChunked(r.Header)
		return unsignedPayload, nil
	}
	size, ok := checksumSize[in.trailer]
	if !ok {
		return "", newError(http.StatusBadRequest, "InvalidRequest", fmt.Sprintf("The value %q of the header x-amz-trailer is none of a checksum.", in.trailer))
	}
	// One chunk holds it all, and what is after it has a known size, so that the
	// length is known before a byte is read.
	head := ""
	if decoded > 0 {
		head = strconv.FormatInt(decoded, 16) + "\r\n"
	}
	end := "0\r\n" + in.trailer + ":"
	r.ContentLength = int64(len(head)) + decoded + int64(len(end)+size+len("\r\n\r\n"))
	if decoded > 0 {
		r.ContentLength += int64(len("\r\n"))
		end = "\r\n" + end
	}
	r.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(strings.NewReader(head), in, strings.NewReader(end), &lateReader{size: size, text: func() string { return in.checksum }}, strings.NewReader("\r\n\r\n")), in}
	return unsignedTrailer, nil
}

// checksumSize has the length in base64 of each checksum that a trailer may
// have.
var checksumSize = map[string]int{
	"x-amz-checksum-crc32": 8, "x-amz-checksum-crc32c": 8, "x-amz-checksum-crc64nvme": 12,
	"x-amz-checksum-sha1": 28, "x-amz-checksum-sha256": 44, "x-amz-checksum-sha512": 88,
	"x-amz-checksum-md5": 24, "x-amz-checksum-xxhash64": 12, "x-amz-checksum-xxhash3": 12, "x-amz-checksum-xxhash128": 24,
}

// dropChunked takes aws-chunked out of the encodings of a body.
func dropChunked(h http.Header) {
	var kept []string
	for name := range strings.SplitSeq(h.Get("Content-Encoding"), ",") {
		if name = strings.TrimSpace(name); name != "" && name != "aws-chunked" {
			kept = append(kept, name)
		}
	}
	h.Del("Content-Encoding")
	if len(kept) > 0 {
		h.Set("Content-Encoding", strings.Join(kept, ","))
	}
}

// lateReader reads a text that is not known before the first read.
type lateReader struct {
	size int
	text func() string
	r    io.Reader
}

func (l *lateReader) Read(p []byte) (int, error) {
	if l.r == nil {
		text := l.text()
		if len(text) != l.size {
			return 0, errors.New("read the trailer: its checksum has a wrong length")
		}
		l.r = strings.NewReader(text)
	}
	return l.r.Read(p)
}

// errChunk is what is wrong with a body in chunks. It reaches the caller as a
// body that ends too early.
var errChunk = errors.New("read signed chunks")

// maxChunkLine bounds the head of a chunk and a line of the trailer.
const maxChunkLine = 4 << 10

// chunkReader reads the data of a body in signed chunks. A chunk whose
// signature is wrong fails the read at its end, and the last byte goes on when
// all is verified: so what went on before is part of a body that never becomes
// whole.
type chunkReader struct {
	in            *bufio.Reader
	close         io.Closer
	key           []byte
	scope         string // time and scope of the request's signature
	previous      string // signature before
	data          hash.Hash
	left          int64 // bytes of the body that are still to come
	chunk         int64 // bytes of this chunk that are still to come
	signature     string
	open          bool
	trailer       string // name of the checksum in it
	signedTrailer bool
	checksum      string
	err           error
}

func (c *chunkReader) Close() error { return c.close.Close() }

func (c *chunkReader) Read(p []byte) (int, error) {
	for c.err == nil && c.chunk == 0 {
		c.err = c.next()
	}
	if c.err != nil {
		return 0, c.err
	}
	most := min(int64(len(p)), c.chunk)
	if most == c.left && most > 1 {
		most--
	}
	n, err := c.in.Read(p[:most])
	c.data.Write(p[:n])
	c.chunk -= int64(n)
	c.left -= int64(n)
	if err != nil {
		c.err = c.short(err)
	}
	if n > 0 && c.left == 0 {
		for c.err == nil {
			c.err = c.next()
		}
		if !errors.Is(c.err, io.EOF) || errors.Is(c.err, errChunk) {
			return 0, c.err
		}
		return n, nil
	}
	return n, c.err
}

func (c *chunkReader) short(err error) error {
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("%w: %w", errChunk, err)
}

// next ends the chunk that was read and begins the next one; io.EOF is the end
// of a body that was whole.
func (c *chunkReader) next() error {
	if c.open {
		if err := c.end(); err != nil {
			return err
		}
	}
	line, err := c.line()
	if err != nil {
		return err
	}
	size, signature, ok := strings.Cut(line, ";chunk-signature=")
	n, err := strconv.ParseInt(size, 16, 64)
	switch {
	case !ok || err != nil || n < 0:
		return fmt.Errorf("%w: a chunk begins with %q", errChunk, line)
	case n > c.left:
		return fmt.Errorf("%w: there is more than x-amz-decoded-content-length says", errChunk)
	}
	c.chunk, c.signature, c.open = n, signature, true
	if n > 0 {
		return nil
	}
	return c.finish()
}

// end verifies the chunk that was read.
func (c *chunkReader) end() error {
	if line, err := c.line(); err != nil || line != "" {
		return fmt.Errorf("%w: a chunk does not end where it should", errChunk)
	}
	return c.verify()
}

func (c *chunkReader) verify() error {
	text := "AWS4-HMAC-SHA256-PAYLOAD\n" + c.scope + "\n" + c.previous + "\n" + hashHex(nil) + "\n" + hex.EncodeToString(c.data.Sum(nil))
	c.data.Reset()
	return c.compare(text, c.signature)
}

func (c *chunkReader) compare(text, signature string) error {
	want := hex.EncodeToString(hmacSHA256(c.key, text))
	if !hmac.Equal([]byte(want), []byte(signature)) {
		return fmt.Errorf("%w: a signature does not match", errChunk)
	}
	c.previous = want
	return nil
}

// finish reads what is after the data.
func (c *chunkReader) finish() error {
	if c.left > 0 {
		return fmt.Errorf("%w: there is less than x-amz-decoded-content-length says", errChunk)
	}
	if err := c.verify(); err != nil {
		return err
	}
	if !c.signedTrailer {
		return io.EOF
	}
	var signed bytes.Buffer
	for {
		line, err := c.line()
		if err != nil {
			return err
		}
		name, value, ok := strings.Cut(line, ":")
		name, value = strings.ToLower(strings.TrimSpace(name)), strings.TrimSpace(value)
		switch {
		case !ok || (name != c.trailer && name != "x-amz-trailer-signature"):
			return fmt.Errorf("%w: the trailer has the line %q", errChunk, line)
		case name == c.trailer:
			if c.checksum != "" {
				return fmt.Errorf("%w: the trailer has two checksums", errChunk)
			}
			c.checksum = value
			signed.WriteString(name + ":" + value + "\n")
			continue
		}
		text := "AWS4-HMAC-SHA256-TRAILER\n" + c.scope + "\n" + c.previous + "\n" + hashHex(signed.Bytes())
		if err := c.compare(text, value); err != nil {
			return err
		}
		return io.EOF
	}
}

// line reads up to the end of a line and returns it without that.
func (c *chunkReader) line() (string, error) {
	var line []byte
	for len(line) < maxChunkLine {
		b, err := c.in.ReadByte()
		if err != nil {
			return "", c.short(err)
		}
		if b == '\n' && bytes.HasSuffix(line, []byte("\r")) {
			return string(line[:len(line)-1]), nil
		}
		line = append(line, b)
	}
	return "", fmt.Errorf("%w: a line is longer than %d bytes", errChunk, maxChunkLine)
}

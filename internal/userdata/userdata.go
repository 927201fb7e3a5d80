// Package userdata reads and writes EC2 user data in the MIME multipart form
// that PCS asks for: the user's parts, flattened, and after them the part
// with which openpcs starts the bootstrap.
package userdata

import (
	"bufio"
	"bytes"
	"cmp"
	"compress/gzip"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"mime/quotedprintable"
	"net/textproto"
	"slices"
	"strings"
)

// The content types PCS runs, and when (PCS user guide, EC2 user data).
const (
	Boothook    = "text/cloud-boothook"   // first of all, at every boot
	CloudConfig = "text/cloud-config"     // before registration
	ShellScript = "text/x-shellscript"    // once, between registration and slurmd
	multiMixed  = "multipart/mixed"       // containers are flattened
	plainText   = "text/plain"            // of parts that do not say
	maxDepth    = 4                       // of containers in containers
	maxParts    = 64                      // of a document
	boundary    = "==OPENPCS-USER-DATA==" // must not stand in a part
)

// MaxSize is EC2's limit for user data before base64.
const MaxSize = 16 << 10

// maxUnpacked bounds what compressed user data may unfold to. Text in 16 KiB
// does not come near it.
const maxUnpacked = 1 << 20

// BootstrapName is the file name of openpcs's own part.
const BootstrapName = "pcs-bootstrap"

// Part is one section of user data.
type Part struct {
	Type string // without parameters, lower case
	Name string // file name of Content-Disposition, may be empty
	Body []byte // decoded
}

// ErrNotMIME says that a document is no MIME multipart.
var ErrNotMIME = errors.New("user data is not in the MIME multipart format (Content-Type: multipart/mixed; boundary=...)")

// Parse returns the parts of a document in order, containers flattened. It
// takes what cloud-init takes: blank lines before the header, gzip, a missing
// end, parts that say only by their first line what they are. Empty user data
// has no parts.
func Parse(doc []byte) ([]Part, error) {
	doc, err := unpack(doc)
	if err != nil {
		return nil, fmt.Errorf("read user data: %w", err)
	}
	if len(bytes.TrimSpace(doc)) == 0 {
		return nil, nil
	}
	doc = bytes.TrimLeft(doc, "\r\n\t ")
	r := textproto.NewReader(bufio.NewReader(bytes.NewReader(doc)))
	header, err := r.ReadMIMEHeader()
	if err != nil && (err != io.EOF || len(header) == 0) {
		return nil, notMIME(doc, "its first lines are no headers")
	}
	given := header.Get("Content-Type")
	kind, params, err := mime.ParseMediaType(given)
	switch {
	case given == "":
		return nil, notMIME(doc, "it has no header Content-Type (in the first column)")
	case err != nil:
		return nil, notMIME(doc, fmt.Sprintf("the Content-Type %q cannot be read", given))
	case !strings.HasPrefix(kind, "multipart/"):
		return nil, notMIME(doc, "its Content-Type is "+kind)
	}
	var parts []Part
	if err := walk(r.R, params["boundary"], 1, &parts); err != nil {
		return nil, fmt.Errorf("read user data: %w", err)
	}
	return parts, nil
}

// notMIME says what is wrong with a document, and what a well-known mistake
// is.
func notMIME(doc []byte, why string) error {
	if plain, err := base64.StdEncoding.DecodeString(string(bytes.Join(bytes.Fields(doc), nil))); err == nil {
		if _, err := Parse(plain); err == nil {
			why = "it is in base64 twice: encode it once"
		}
	}
	return fmt.Errorf("%w: %s", ErrNotMIME, why)
}

// unpack undoes gzip.
func unpack(doc []byte) ([]byte, error) {
	if !bytes.HasPrefix(doc, []byte{0x1f, 0x8b}) {
		return doc, nil
	}
	z, err := gzip.NewReader(bytes.NewReader(doc))
	if err != nil {
		return nil, fmt.Errorf("unpack gzip: %w", err)
	}
	out, err := io.ReadAll(io.LimitReader(z, maxUnpacked+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("unpack gzip: %w", err)
	case len(out) > maxUnpacked:
		return nil, fmt.Errorf("unpack gzip: it has more than %d bytes", maxUnpacked)
	case bytes.HasPrefix(out, []byte{0x1f, 0x8b}):
		return nil, errors.New("unpack gzip: it is packed twice")
	}
	return out, nil
}

// guess tells the type of a part by its first line.
func guess(body []byte) string {
	for _, known := range []struct{ start, kind string }{
		{"#!", ShellScript}, {"#cloud-config", CloudConfig}, {"#cloud-boothook", Boothook},
	} {
		if bytes.HasPrefix(body, []byte(known.start)) {
			return known.kind
		}
	}
	return plainText
}

// closed adds the closing boundary where it is missing: the last part then
// goes to the end of the document.
func closed(doc []byte, boundary string) ([]byte, error) {
	newline := ""
	for line := range bytes.Lines(doc) {
		text := strings.TrimRight(string(line), "\r\n\t ")
		switch {
		case text == "--"+boundary && bytes.HasSuffix(line, []byte("\r\n")):
			newline = "\r\n"
		case text == "--"+boundary:
			newline = "\n"
		case text == "--"+boundary+"--" && newline != "":
			return doc, nil
		}
	}
	if newline == "" {
		return nil, fmt.Errorf("no part begins with the boundary %q", boundary)
	}
	return slices.Concat(doc, []byte(newline+"--"+boundary+"--"+newline)), nil
}

// unix undoes the line ends of Windows, with which no interpreter is found.
// As for cloud-init, the first line tells.
func unix(body []byte) []byte {
	if first, _, found := bytes.Cut(body, []byte("\n")); !found || !bytes.HasSuffix(first, []byte("\r")) {
		return body
	}
	return bytes.ReplaceAll(body, []byte("\r\n"), []byte("\n"))
}

func walk(r io.Reader, boundary string, depth int, parts *[]Part) error {
	if depth > maxDepth {
		return fmt.Errorf("more than %d multipart containers in one another", maxDepth)
	}
	if boundary == "" {
		return errors.New("the Content-Type of a multipart container has no boundary")
	}
	doc, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	if doc, err = closed(doc, boundary); err != nil {
		return err
	}
	mr := multipart.NewReader(bytes.NewReader(doc), boundary)
	for {
		p, err := mr.NextRawPart()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("part %d: %w", len(*parts)+1, err)
		}
		given := cmp.Or(p.Header.Get("Content-Type"), plainText)
		kind, params, err := mime.ParseMediaType(given)
		if err != nil {
			return fmt.Errorf("part %d: its Content-Type %q is not valid", len(*parts)+1, given)
		}
		if strings.HasPrefix(kind, "multipart/") {
			if err := walk(p, params["boundary"], depth+1, parts); err != nil {
				return err
			}
			continue
		}
		if len(*parts) == maxParts {
			return fmt.Errorf("more than %d parts", maxParts)
		}
		body, err := decode(p, p.Header.Get("Content-Transfer-Encoding"))
		if err != nil {
			return fmt.Errorf("part %d: %w", len(*parts)+1, err)
		}
		if kind == plainText {
			kind = guess(body)
		}
		*parts = append(*parts, Part{Type: kind, Name: p.FileName(), Body: unix(body)})
	}
}

func decode(r io.Reader, encoding string) ([]byte, error) {
	switch strings.ToLower(strings.TrimSpace(encoding)) {
	case "", "7bit", "8bit", "binary":
		return io.ReadAll(r)
	case "base64":
		return io.ReadAll(base64.NewDecoder(base64.StdEncoding, r))
	case "quoted-printable":
		return io.ReadAll(quotedprintable.NewReader(r))
	default:
		return nil, fmt.Errorf("its Content-Transfer-Encoding %q is unknown", encoding)
	}
}

// Join writes parts as one document. Parse gives the same parts back.
func Join(parts []Part) []byte {
	var out bytes.Buffer
	out.WriteString("MIME-Version: 1.0\r\nContent-Type: " + multiMixed + "; boundary=\"" + boundary + "\"\r\n\r\n")
	w := multipart.NewWriter(&out)
	_ = w.SetBoundary(boundary) // the constant is valid
	for _, p := range parts {
		h := textproto.MIMEHeader{}
		h.Set("Content-Type", p.Type+"; charset=\"utf-8\"")
		if p.Name != "" {
			h.Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": p.Name}))
		}
		body := p.Body
		// Base64 keeps any bytes, the boundary among them.
		if bytes.Contains(body, []byte(boundary)) || !plain(body) {
			h.Set("Content-Transfer-Encoding", "base64")
			body = []byte(base64.StdEncoding.EncodeToString(body))
		}
		pw, _ := w.CreatePart(h) // a buffer does not fail
		_, _ = pw.Write(body)
	}
	_ = w.Close()
	return out.Bytes()
}

func plain(b []byte) bool {
	for _, c := range b {
		if c >= 0x80 || c == '\r' || (c < 0x20 && c != '\n' && c != '\t') {
			return false
		}
	}
	return true
}

// Check says what of a user's document openpcs cannot run.
func Check(doc []byte, cloudInit bool) error {
	if len(doc) > MaxSize {
		return fmt.Errorf("user data has %d bytes, at most %d are allowed", len(doc), MaxSize)
	}
	parts, err := Parse(doc)
	if err != nil {
		return err
	}
	for n, p := range parts {
		switch p.Type {
		case Boothook, ShellScript:
		case CloudConfig:
			if !cloudInit {
				return fmt.Errorf("part %d is %s, which needs cloud-init, and the image has none: use %s or %s", n+1, CloudConfig, Boothook, ShellScript)
			}
		default:
			return fmt.Errorf("part %d has the content type %s; allowed are %s, %s and %s", n+1, p.Type, Boothook, CloudConfig, ShellScript)
		}
	}
	return nil
}

// Package userdata reads and writes EC2 user data in the MIME multipart form
// that PCS asks for: the user's parts, flattened, and after them the part
// with which openpcs starts the bootstrap.
package userdata

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"mime/quotedprintable"
	"net/textproto"
	"strings"
)

// The content types PCS runs, and when (PCS user guide, EC2 user data).
const (
	Boothook    = "text/cloud-boothook"   // first of all, at every boot
	CloudConfig = "text/cloud-config"     // before registration
	ShellScript = "text/x-shellscript"    // once, between registration and slurmd
	multiMixed  = "multipart/mixed"       // containers are flattened
	maxDepth    = 4                       // of containers in containers
	maxParts    = 64                      // of a document
	boundary    = "==OPENPCS-USER-DATA==" // must not stand in a part
)

// MaxSize is EC2's limit for user data before base64.
const MaxSize = 16 << 10

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

// Parse returns the parts of a document in order, containers flattened.
// Empty user data has no parts.
func Parse(doc []byte) ([]Part, error) {
	if len(bytes.TrimSpace(doc)) == 0 {
		return nil, nil
	}
	// cloud-init tolerates blank lines before the header, so people have them.
	doc = bytes.TrimLeft(doc, "\r\n\t ")
	r := textproto.NewReader(bufio.NewReader(bytes.NewReader(doc)))
	header, err := r.ReadMIMEHeader()
	if err != nil {
		return nil, ErrNotMIME
	}
	kind, params, err := mime.ParseMediaType(header.Get("Content-Type"))
	if err != nil || !strings.HasPrefix(kind, "multipart/") {
		return nil, ErrNotMIME
	}
	if params["boundary"] == "" {
		return nil, fmt.Errorf("read user data: the Content-Type has no boundary")
	}
	var parts []Part
	if err := walk(r.R, params["boundary"], 1, &parts); err != nil {
		return nil, fmt.Errorf("read user data: %w", err)
	}
	return parts, nil
}

func walk(r io.Reader, boundary string, depth int, parts *[]Part) error {
	if depth > maxDepth {
		return fmt.Errorf("more than %d multipart containers in one another", maxDepth)
	}
	mr := multipart.NewReader(r, boundary)
	for seen := false; ; seen = true {
		p, err := mr.NextRawPart()
		if err == io.EOF {
			if !seen {
				return fmt.Errorf("no part begins with the boundary %q", boundary)
			}
			return nil
		}
		if err != nil {
			return fmt.Errorf("part %d: %w", len(*parts)+1, err)
		}
		kind, params, err := mime.ParseMediaType(p.Header.Get("Content-Type"))
		if err != nil {
			return fmt.Errorf("part %d: its Content-Type %q is not valid", len(*parts)+1, p.Header.Get("Content-Type"))
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
		*parts = append(*parts, Part{Type: kind, Name: p.FileName(), Body: body})
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

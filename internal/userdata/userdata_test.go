package userdata

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func doc(lines ...string) string { return strings.Join(lines, "\n") }

func TestParse(t *testing.T) {
	for _, tc := range []struct {
		name, in string
		want     string // types, or an error's text after "!"
	}{
		{"empty", "", ""},
		{"white space", " \n\n", ""},
		{"plain script", "#!/bin/sh\necho", "!MIME multipart"},
		{"one part", doc("MIME-Version: 1.0", `Content-Type: multipart/mixed; boundary="B"`, "", "--B", `Content-Type: text/x-shellscript; charset="us-ascii"`, "", "#!/bin/sh", "--B--"), "text/x-shellscript"},
		{"leading blank lines", doc("", "", "MIME-Version: 1.0", `Content-Type: multipart/mixed; boundary="B"`, "", "--B", "Content-Type: text/cloud-boothook", "", "x", "--B--"), "text/cloud-boothook"},
		{"crlf", "Content-Type: multipart/mixed; boundary=B\r\n\r\n--B\r\nContent-Type: text/cloud-config\r\n\r\nx: y\r\n--B--\r\n", "text/cloud-config"},
		{"slashes in the boundary", doc("Content-Type: multipart/mixed; boundary=\"//\"", "", "--//", "Content-Type: text/cloud-boothook", "", "x", "--//--"), "text/cloud-boothook"},
		{"nested is flattened", doc("Content-Type: multipart/mixed; boundary=A", "", "--A", "Content-Type: multipart/mixed; boundary=B", "", "--B", "Content-Type: text/cloud-boothook", "", "x", "--B--", "--A", "Content-Type: text/x-shellscript", "", "y", "--A--"), "text/cloud-boothook text/x-shellscript"},
		{"no boundary", doc("Content-Type: multipart/mixed", "", "x"), "!boundary"},
		{"boundary never seen", doc("Content-Type: multipart/mixed; boundary=B", "", "x"), "!"},
		{"unknown encoding", doc("Content-Type: multipart/mixed; boundary=B", "", "--B", "Content-Type: text/cloud-boothook", "Content-Transfer-Encoding: uu", "", "x", "--B--"), "!uu"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			parts, err := Parse([]byte(tc.in))
			if text, bad := strings.CutPrefix(tc.want, "!"); bad {
				if err == nil || !strings.Contains(err.Error(), text) {
					t.Fatalf("got %v, want an error with %q", err, text)
				}
				return
			}
			var types []string
			for _, p := range parts {
				types = append(types, p.Type)
			}
			if got := strings.Join(types, " "); err != nil || got != tc.want {
				t.Fatalf("got %q, %v, want %q", got, err, tc.want)
			}
		})
	}
}

func TestCheck(t *testing.T) {
	part := func(kind string) []byte { return Join([]Part{{Type: kind, Body: []byte("x")}}) }
	if err := Check(part(CloudConfig), true); err != nil {
		t.Errorf("cloud-config with cloud-init: %v", err)
	}
	if err := Check(part(CloudConfig), false); err == nil || !strings.Contains(err.Error(), "cloud-init") {
		t.Errorf("cloud-config without cloud-init: %v", err)
	}
	if err := Check(part("text/x-include-url"), true); err == nil || !strings.Contains(err.Error(), "text/x-include-url") {
		t.Errorf("unknown type: %v", err)
	}
	if err := Check(bytes.Repeat([]byte("x"), MaxSize+1), true); err == nil || errors.Is(err, ErrNotMIME) {
		t.Errorf("too big: %v", err)
	}
}

func TestJoinParseRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var want []Part
		for range rapid.IntRange(1, 5).Draw(t, "n") {
			body := rapid.SliceOf(rapid.Byte()).Draw(t, "body")
			if rapid.Bool().Draw(t, "hostile") {
				body = append(body, "\n--"+boundary+"--\n"...)
			}
			want = append(want, Part{
				Type: rapid.SampledFrom([]string{Boothook, CloudConfig, ShellScript}).Draw(t, "type"),
				Name: rapid.StringMatching(`[a-z.-]{0,10}`).Draw(t, "name"),
				Body: body,
			})
		}
		got, err := Parse(Join(want))
		if err != nil || len(got) != len(want) {
			t.Fatalf("got %d parts, %v, want %d", len(got), err, len(want))
		}
		for i := range want {
			if got[i].Type != want[i].Type || !bytes.Equal(got[i].Body, unix(want[i].Body)) {
				t.Fatalf("part %d: got %q, want %q", i, got[i], want[i])
			}
		}
	})
}

// FuzzParse: what is read can be written, and comes out the same.
func FuzzParse(f *testing.F) {
	for _, tt := range corpus {
		if len(tt.in) < 1000 {
			f.Add([]byte(tt.in))
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		parts, err := Parse(b)
		if err != nil {
			return
		}
		if len(parts) > maxParts {
			t.Fatalf("%d parts", len(parts))
		}
		if len(parts) == 0 {
			return
		}
		again, err := Parse(Join(parts))
		if err != nil {
			t.Fatal(err)
		}
		for i := range parts {
			// The body has unix line ends by now, but may have others further on.
			if len(again) != len(parts) || again[i].Type != parts[i].Type || !bytes.Equal(again[i].Body, unix(parts[i].Body)) {
				t.Fatalf("got %q, want %q", again, parts)
			}
		}
	})
}

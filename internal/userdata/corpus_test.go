package userdata

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"
)

const script = "#!/bin/sh\necho hello"

func pack(doc string) string {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = z.Write([]byte(doc)) // a buffer does not fail
	_ = z.Close()
	return b.String()
}

// container writes a multipart document of parts, given as headers and body.
func container(boundary string, parts ...string) string {
	var b strings.Builder
	b.WriteString("MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=\"" + boundary + "\"\n\n")
	for _, p := range parts {
		b.WriteString("--" + boundary + "\n" + p + "\n")
	}
	b.WriteString("--" + boundary + "--\n")
	return b.String()
}

func ofType(kind, body string) string { return "Content-Type: " + kind + "\n\n" + body }

// corpus are bodies that people have, with the parts that come of them, or
// after a ! what the error says.
var corpus = []struct {
	name, in string
	want     []Part
	refused  string
}{
	{name: "one_script", in: container("B", ofType(`text/x-shellscript; charset="us-ascii"`, script)), want: []Part{{Type: ShellScript, Body: []byte(script)}}},
	{name: "crlf", in: strings.ReplaceAll(container("B", ofType("text/x-shellscript", script+"\n")), "\n", "\r\n"), want: []Part{{Type: ShellScript, Body: []byte(script + "\n")}}},
	{name: "blank_lines_first", in: "\n\r\n\n" + container("B", ofType("text/x-shellscript", script)), want: []Part{{Type: ShellScript, Body: []byte(script)}}},
	{name: "no_mime_version", in: strings.TrimPrefix(container("B", ofType("text/x-shellscript", script)), "MIME-Version: 1.0\n"), want: []Part{{Type: ShellScript, Body: []byte(script)}}},
	{name: "slashes_as_boundary", in: container("//", ofType("text/cloud-boothook", "x\n# //\n//--")), want: []Part{{Type: Boothook, Body: []byte("x\n# //\n//--")}}},
	{name: "boundary_in_the_content", in: container("B", ofType("text/x-shellscript", script+"\necho --B\n --B--\necho B")), want: []Part{{Type: ShellScript, Body: []byte(script + "\necho --B\n --B--\necho B")}}},
	{name: "boundary_of_ours", in: container(boundary, ofType("text/x-shellscript", script+"\n# "+boundary)), want: []Part{{Type: ShellScript, Body: []byte(script + "\n# " + boundary)}}},
	{name: "a_boundary_begins_with_another", in: container("B", "Content-Type: multipart/mixed; boundary=BB\n\n--BB\n"+ofType("text/x-shellscript", script)+"\n--BB--", ofType("text/cloud-boothook", "y")), want: []Part{{Type: ShellScript, Body: []byte(script)}, {Type: Boothook, Body: []byte("y")}}},
	{name: "gzip", in: pack(container("B", ofType("text/x-shellscript", script))), want: []Part{{Type: ShellScript, Body: []byte(script)}}},
	{name: "base64_part", in: container("B", "Content-Type: text/x-shellscript\nContent-Transfer-Encoding: base64\n\n"+base64.StdEncoding.EncodeToString([]byte(script))[:20]+"\n"+base64.StdEncoding.EncodeToString([]byte(script))[20:]), want: []Part{{Type: ShellScript, Body: []byte(script)}}},
	{name: "quoted_printable_part", in: container("B", "Content-Type: text/x-shellscript\nContent-Transfer-Encoding: Quoted-Printable\n\n#!/bin/sh\necho =\nhel=6Co"), want: []Part{{Type: ShellScript, Body: []byte(script)}}},
	{name: "boothook_config_and_script", in: container("B", ofType("text/cloud-boothook", "#cloud-boothook\na"), ofType("text/cloud-config", "#cloud-config\nb: c"), ofType("text/x-shellscript", script)), want: []Part{{Type: Boothook, Body: []byte("#cloud-boothook\na")}, {Type: CloudConfig, Body: []byte("#cloud-config\nb: c")}, {Type: ShellScript, Body: []byte(script)}}},
	{name: "parts_that_do_not_say", in: container("B", "\n"+script, ofType("text/plain", "#cloud-boothook\na"), "MIME-Version: 1.0\n\n#cloud-config\nb: c"), want: []Part{{Type: ShellScript, Body: []byte(script)}, {Type: Boothook, Body: []byte("#cloud-boothook\na")}, {Type: CloudConfig, Body: []byte("#cloud-config\nb: c")}}},
	{name: "file_name_and_case", in: "mime-version: 1.0\ncontent-type: Multipart/Mixed; Boundary=B\n\n--B\ncontent-TYPE: TEXT/X-ShellScript\ncontent-disposition: attachment; filename=\"a.sh\"\n\n" + script + "\n--B--", want: []Part{{Type: ShellScript, Name: "a.sh", Body: []byte(script)}}},
	{name: "text_before_and_after", in: strings.Replace(container("B", ofType("text/x-shellscript", script)), "\n\n", "\n\nThis is a message in several parts.\n", 1) + "the end\n", want: []Part{{Type: ShellScript, Body: []byte(script)}}},
	{name: "no_end", in: strings.TrimSuffix(container("B", ofType("text/x-shellscript", script)), "\n--B--\n"), want: []Part{{Type: ShellScript, Body: []byte(script)}}},
	{name: "no_end_crlf", in: strings.ReplaceAll(strings.TrimSuffix(container("B", ofType("text/x-shellscript", script), ofType("text/cloud-boothook", "y")), "\n--B--\n"), "\n", "\r\n"), want: []Part{{Type: ShellScript, Body: []byte(script)}, {Type: Boothook, Body: []byte("y")}}},
	{name: "empty_part", in: container("B", ofType("text/cloud-boothook", "")), want: []Part{{Type: Boothook, Body: []byte{}}}},

	{name: "base64_twice", in: base64.StdEncoding.EncodeToString([]byte(container("B", ofType("text/x-shellscript", script)))), refused: "base64 twice: encode it once"},
	{name: "gzip_twice", in: pack(pack(container("B", ofType("text/x-shellscript", script)))), refused: "packed twice"},
	{name: "gzip_bomb", in: pack(container("B", ofType("text/x-shellscript", strings.Repeat("#\n", 1<<20)))), refused: "more than 1048576 bytes"},
	{name: "gzip_cut", in: pack(container("B", ofType("text/x-shellscript", script)))[:40], refused: "unpack gzip"},
	{name: "indented", in: strings.ReplaceAll(container("B", ofType("text/x-shellscript", script)), "\n", "\n    "), refused: "first column"},
	{name: "no_semicolon", in: "Content-Type: multipart/mixed boundary=B\n\n--B--\n", refused: `"multipart/mixed boundary=B" cannot be read`},
	{name: "no_colon", in: "Content-Type multipart/mixed; boundary=B\n\n--B--\n", refused: "no headers"},
	{name: "no_boundary", in: "Content-Type: multipart/mixed\n\nx", refused: "has no boundary"},
	{name: "no_boundary_inside", in: container("B", ofType("multipart/mixed", "--\n\nx\n----")), refused: "has no boundary"},
	{name: "bare_script", in: script, refused: "MIME multipart"},
	{name: "bare_cloud_config", in: "#cloud-config\npackages: [tree]\n", refused: "MIME multipart"},
	{name: "other_single_part", in: ofType("text/x-shellscript", script), refused: "its Content-Type is text/x-shellscript"},
	{name: "nothing_but_a_header", in: "Content-Type: multipart/mixed; boundary=B\n", refused: "no part begins with the boundary \"B\""},
	{name: "too_large", in: container("B", ofType("text/x-shellscript", script+strings.Repeat("#", MaxSize))), refused: "at most 16384 are allowed"},
	{name: "part_of_another_type", in: container("B", ofType("text/jinja2", "## template: jinja")), refused: "allowed are text/cloud-boothook, text/cloud-config and text/x-shellscript"},
	{name: "plain_text", in: container("B", ofType("text/plain", "hello")), refused: "the content type text/plain"},
	{name: "broken_part_type", in: container("B", ofType("text x-shellscript", script)), refused: "part 1: its Content-Type"},
	{name: "broken_base64", in: container("B", "Content-Type: text/x-shellscript\nContent-Transfer-Encoding: base64\n\n%%%"), refused: "part 1"},
}

// TestP2_UserDataAsPeopleHaveIt checks each document of the corpus: its parts
// come out as they are meant, or the error says what is wrong.
func TestP2_UserDataAsPeopleHaveIt(t *testing.T) {
	for _, tt := range corpus {
		t.Run(tt.name, func(t *testing.T) {
			err := Check([]byte(tt.in), true)
			if tt.refused != "" {
				if err == nil || !strings.Contains(err.Error(), tt.refused) {
					t.Fatalf("got %v, want an error that says %q", err, tt.refused)
				}
				return
			}
			parts, parseErr := Parse([]byte(tt.in))
			if err != nil || parseErr != nil {
				t.Fatalf("refused: %v, %v", err, parseErr)
			}
			same(t, parts, tt.want)
		})
	}
}

func same(t *testing.T, got, want []Part) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("got %d parts, want %d: %q", len(got), len(want), got)
	}
	for i := range want {
		if got[i].Type != want[i].Type || got[i].Name != want[i].Name || !bytes.Equal(got[i].Body, want[i].Body) {
			t.Errorf("part %d: got %q, want %q", i+1, got[i], want[i])
		}
	}
}

// merged is a document as instances get it: the user's parts, then ours.
func merged(t *testing.T, doc string) (out []byte, want []Part) {
	t.Helper()
	parts, err := Parse([]byte(doc))
	if err != nil {
		t.Fatal(err)
	}
	want = append(parts, Part{Type: Boothook, Name: BootstrapName, Body: []byte("#cloud-boothook\n#!/bin/bash\necho ours\n")})
	return Join(want), want
}

// TestP3_ContainersAreFlattened: a container in a container would be one part
// of an unknown type for whoever reads the document.
func TestP3_ContainersAreFlattened(t *testing.T) {
	inner := container("A", ofType("text/cloud-boothook", "1"), container("C", ofType("text/x-shellscript", "2"), ofType("text/x-shellscript", "3")))
	out, _ := merged(t, container("B", strings.TrimSuffix(inner, "\n"), ofType("text/x-shellscript", "4")))
	if n := bytes.Count(out, []byte("multipart/")); n != 1 {
		t.Errorf("the document has %d containers:\n%s", n, out)
	}
	parts, err := Parse(out)
	if err != nil {
		t.Fatal(err)
	}
	var bodies []string
	for _, p := range parts {
		bodies = append(bodies, string(p.Body[:1]))
	}
	if got := strings.Join(bodies, ""); got != "1234#" {
		t.Errorf("the order is %s, want the user's parts as they stood, then ours", got)
	}
	deep := ofType("text/x-shellscript", "x")
	for range maxDepth + 1 {
		deep = strings.TrimSuffix(container("B", deep), "\n")
		deep = strings.ReplaceAll(deep, "B", "BB")
	}
	if err := Check([]byte(deep), true); err == nil || !strings.Contains(err.Error(), "containers in one another") {
		t.Errorf("containers without end: %v", err)
	}
}

// TestP2_MergedDocumentsAreMIME has the documents that instances get read by
// the parser that cloud-init uses.
func TestP2_MergedDocumentsAreMIME(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil && os.Getuid() == 0 { // as who runs all tests, for whom host.sh installs it
		t.Fatal("python3 is not installed: run scripts/host.sh packages")
	}
	if err != nil {
		t.Skip("python3 is not installed")
	}
	const reader = `
import sys, json, base64, email
out = []
for doc in json.load(sys.stdin):
    message = email.message_from_bytes(base64.b64decode(doc))
    assert message.is_multipart(), "no multipart"
    out.append([[p.get_content_type(), p.get_filename() or "", base64.b64encode(p.get_payload(decode=True)).decode(), len(p.defects)] for p in message.get_payload()])
json.dump(out, sys.stdout)
`
	var docs [][]byte
	var want [][]Part
	var names []string
	for _, tt := range corpus {
		if tt.refused == "" {
			doc, parts := merged(t, tt.in)
			docs, want, names = append(docs, doc), append(want, parts), append(names, tt.name)
		}
	}
	in, err := json.Marshal(docs)
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), python, "-c", reader)
	cmd.Stdin = bytes.NewReader(in)
	var failure bytes.Buffer
	cmd.Stderr = &failure
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, failure.Bytes())
	}
	var read [][][]any
	if err := json.Unmarshal(out, &read); err != nil {
		t.Fatal(err)
	}
	for i, parts := range read {
		var got []Part
		for _, p := range parts {
			body, err := base64.StdEncoding.DecodeString(p[2].(string))
			if err != nil || p[3].(float64) != 0 {
				t.Errorf("%s: %v, %v defects", names[i], err, p[3])
			}
			got = append(got, Part{Type: p[0].(string), Name: p[1].(string), Body: body})
		}
		t.Run(names[i], func(t *testing.T) { same(t, got, want[i]) })
	}
}

package cli

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/openpcs/openpcs/internal/awsapi"
)

// run is the program with arguments, as a person meets it.
func run(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	t.Setenv("OPENPCS_STATE", t.TempDir())
	dir := t.TempDir()
	oldArgs, oldOut, oldErr := os.Args, os.Stdout, os.Stderr
	open := func(name string) *os.File {
		f, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	out, errOut := open("out"), open("err")
	os.Args, os.Stdout, os.Stderr = append([]string{"openpcs"}, args...), out, errOut
	defer func() { os.Args, os.Stdout, os.Stderr = oldArgs, oldOut, oldErr }()
	code = Main("v1.2.3")
	_, _ = out.Close(), errOut.Close()
	o, _ := os.ReadFile(out.Name())
	e, _ := os.ReadFile(errOut.Name())
	return code, string(o), string(e)
}

func TestWrongUseExitsWith2(t *testing.T) {
	for _, tt := range []struct {
		args string
		says string
	}{
		{"nonsense", `no command "nonsense"`},
		{"clusterz", "clusters"}, // the nearest one
		{"clusters nonsense", "nonsense"},
		{"image nonsense", `"image nonsense"`},
		{"image lst", "list"},
		{"--nonsense", "nonsense"},
		{"status --nonsense", "nonsense"},
		{"status more", ""},
		{"env more", ""},
		{"version more", ""},
		{"nodes more", ""},
		{"instances more", ""},
		{"groups a b", ""},
		{"queues a b", ""},
		{"clusters list more", ""},
		{"clusters delete", ""},
		{"clusters delete a b", ""},
		{"explain", ""},
		{"explain a b", ""},
		{"logs", ""},
		{"connect", "node"},
		{"connect a b", "--"},
		{"connect -- ls", ""},
		{"connect a b -- ls", ""},
		{"image remove", ""},
		{"image list more", ""},
		{"up more", ""},
		{"down more", ""},
		{"serve more", ""},
		{"agent nonsense", ""},
	} {
		code, stdout, stderr := run(t, strings.Fields(tt.args)...)
		if code != 2 {
			t.Errorf("openpcs %s: exit code %d, want 2\n%s", tt.args, code, stderr)
		}
		if !strings.HasPrefix(stderr, "openpcs: ") || !strings.Contains(stderr, tt.says) || !strings.Contains(stderr, "--help' for usage") || stdout != "" {
			t.Errorf("openpcs %s says %q (and %q), want it to say %q and where usage is", tt.args, stderr, stdout, tt.says)
		}
	}
}

func TestNotRunningExitsWith1AndSaysWhatToDo(t *testing.T) {
	for _, args := range []string{
		"status", "env", "clusters", "clusters list", "groups", "groups c", "queues", "nodes", "instances", "explain x", "logs x", "connect x", "connect x -- ls",
		"image list", "image build", "image remove ami-1", "clusters delete --yes x", "--json clusters",
	} {
		code, stdout, stderr := run(t, strings.Fields(args)...)
		if code != 1 || !strings.Contains(stderr, "openpcs up") || stdout != "" {
			t.Errorf("openpcs %s: exit code %d, says %q and %q", args, code, stderr, stdout)
		}
		if strings.Count(strings.TrimSpace(stderr), "\n") != 0 {
			t.Errorf("openpcs %s: more than a line: %q", args, stderr)
		}
	}
}

func TestWrongSettings(t *testing.T) {
	t.Setenv("OPENPCS_SUBNET", "nonsense")
	if code, _, stderr := run(t, "status"); code != 1 || !strings.Contains(stderr, "OPENPCS_SUBNET") {
		t.Errorf("exit code %d, says %q", code, stderr)
	}
}

func TestHelpAndVersion(t *testing.T) {
	for _, args := range [][]string{nil, {"--help"}, {"help"}, {"clusters", "--help"}, {"image"}, {"help", "connect"}} {
		code, stdout, stderr := run(t, args...)
		if code != 0 || !strings.Contains(stdout, "Usage:") || stderr != "" {
			t.Errorf("openpcs %v: %d %q %q", args, code, stdout, stderr)
		}
	}
	_, stdout, _ := run(t)
	for _, name := range []string{"serve", "up", "down", "status", "env", "connect", "clusters", "groups", "queues", "nodes", "instances", "logs", "explain", "image", "version", "completion"} {
		if !strings.Contains(stdout, "\n  "+name+" ") {
			t.Errorf("the help does not name %s", name)
		}
	}
	if strings.Contains(stdout, "\n  agent ") {
		t.Error("the help names agent, which is for instances")
	}
	if code, stdout, _ := run(t, "version"); code != 0 || stdout != "openpcs v1.2.3\n" {
		t.Errorf("version: %d %q", code, stdout)
	}
	if code, stdout, _ := run(t, "version", "--json"); code != 0 || !strings.Contains(stdout, `"v1.2.3"`) || !strings.HasPrefix(stdout, "[") {
		t.Errorf("version --json: %d %q", code, stdout)
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		if code, stdout, _ := run(t, "completion", shell); code != 0 || len(stdout) < 100 {
			t.Errorf("completion %s: %d, %d bytes", shell, code, len(stdout))
		}
	}
}

// Every command says what it is for, and takes --json.
func TestCommandsAreDescribed(t *testing.T) {
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		for _, sub := range c.Commands() {
			if c.Name() == "agent" {
				continue
			}
			if sub.Short == "" || strings.HasSuffix(sub.Short, ".") {
				t.Errorf("%s: the short text is %q", sub.CommandPath(), sub.Short)
			}
			walk(sub)
		}
	}
	root := newRoot("v", new(bytes.Buffer))
	walk(root)
	if root.PersistentFlags().Lookup("json") == nil {
		t.Error("there is no --json")
	}
}

func TestFirstAt(t *testing.T) {
	const doc = `<?xml version="1.0"?><R xmlns="x"><requestId>r</requestId><set><item><id>one</id><n>1</n></item><item><id>two</id></item></set><empty/><deep><set><item><id>no</id></item></set></deep></R>`
	for path, want := range map[string]string{
		"requestId": "r", "set>item>id": "one", "set>item>n": "1", "deep>set>item>id": "no",
	} {
		if got, err := firstAt([]byte(doc), path); err != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", path, got, err, want)
		}
	}
	for _, path := range []string{"nothing", "set", "item>id", "id", "R>requestId", "empty", ""} {
		if got, err := firstAt([]byte(doc), path); err == nil && strings.TrimSpace(got) != "" {
			t.Errorf("%s: %q", path, got)
		}
	}
	for _, bad := range []string{"", "<a", "{}"} {
		if got, err := firstAt([]byte(bad), "a"); err == nil {
			t.Errorf("%q: %q", bad, got)
		}
	}
}

func TestDescribe(t *testing.T) {
	err := errors.Join(errors.New("call"), &awsapi.Error{Code: "ConflictException", Message: "the name is taken"})
	if got := describe(err); got != "the name is taken (ConflictException)" {
		t.Errorf("an error of the API: %q", got)
	}
	if got := describe(errors.New("plain")); got != "plain" {
		t.Errorf("another: %q", got)
	}
}

func TestPrint(t *testing.T) {
	type row struct {
		Name string `json:"name"`
	}
	for _, tt := range []struct {
		json bool
		rows []row
		want string
	}{
		{false, []row{{"a-very-long-name"}, {"b"}}, "NAME               X\na-very-long-name   1\nb                  1\n"},
		{false, nil, "NAME   X\n"},
		{true, []row{{"a"}}, "[\n  {\n    \"name\": \"a\"\n  }\n]\n"},
		{true, nil, "[]\n"},
	} {
		var out bytes.Buffer
		s := &shell{out: &out, json: tt.json}
		if err := print(s, tt.rows, "NAME\tX", func(r row) string { return r.Name + "\t1" }); err != nil || out.String() != tt.want {
			t.Errorf("%+v: %q, %v, want %q", tt, out.String(), err, tt.want)
		}
	}
}

func TestAgo(t *testing.T) {
	now := time.Now()
	for _, tt := range []struct {
		at   time.Time
		want string
	}{{time.Time{}, "-"}, {now.Add(-5 * time.Second), "5s ago"}, {now.Add(-5*time.Minute - 10*time.Second), "5m ago"}} {
		if got := ago(tt.at); got != tt.want {
			t.Errorf("ago = %q, want %q", got, tt.want)
		}
	}
	if got := ago(now.Add(-50 * time.Hour)); !strings.Contains(got, "-") || strings.Contains(got, "ago") {
		t.Errorf("two days ago: %q", got)
	}
}

func TestWaitEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := wait(ctx, time.Hour); !errors.Is(err, context.Canceled) {
		t.Errorf("wait: %v", err)
	}
	if err := wait(t.Context(), time.Nanosecond); err != nil {
		t.Errorf("wait: %v", err)
	}
}

func TestPrintable(t *testing.T) {
	for text, want := range map[string]string{
		"ノード job-1 ·": "ノード job-1 ·", "a\x1b[31mb\r\n\tc": "a·[31mb···c", "uid=\u202e0001": "uid=·0001", "a\u200bb": "a·b",
	} {
		if got := printable(text); got != want {
			t.Errorf("%q is printed as %q, want %q", text, got, want)
		}
	}
}

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/openpcs/openpcs/internal/imds"
	"github.com/openpcs/openpcs/internal/slurm"
)

func nodes(states map[string]string) map[string]slurm.Node {
	out := map[string]slurm.Node{}
	for name, s := range states {
		out[name] = slurm.Node{Name: name, State: strings.Split(s, "+")}
	}
	return out
}

// The states are those met on the way of a cold start (DESIGN section 4).
func TestVerdict(t *testing.T) {
	for _, tt := range []struct {
		name           string
		of             string
		states         map[string]string
		ready, decided bool
	}{
		{"up", "a", map[string]string{"a": "ALLOCATED+CLOUD"}, true, true},
		{"not_resumed_yet", "a", map[string]string{"a": "ALLOCATED+CLOUD+POWERED_DOWN"}, false, false},
		{"about_to_be_resumed", "a", map[string]string{"a": "ALLOCATED+CLOUD+POWERED_DOWN+POWER_UP"}, false, false},
		{"powering_up", "a", map[string]string{"a": "ALLOCATED+CLOUD+POWERING_UP+NOT_RESPONDING"}, false, false},
		{"not_responding", "a", map[string]string{"a": "ALLOCATED+CLOUD+NOT_RESPONDING"}, false, false},
		{"all_up", "a b", map[string]string{"a": "ALLOCATED+CLOUD", "b": "MIXED+CLOUD"}, true, true},
		{"one_of_two", "a b", map[string]string{"a": "ALLOCATED+CLOUD", "b": "ALLOCATED+CLOUD+POWERING_UP"}, false, false},
		{"failed", "a", map[string]string{"a": "DOWN+CLOUD"}, false, true},
		{"resume_timed_out", "a", map[string]string{"a": "DOWN+CLOUD+POWERED_DOWN"}, false, true},
		{"removed", "a", map[string]string{}, false, true},
		{"first_up_second_failed", "a b", map[string]string{"a": "ALLOCATED+CLOUD", "b": "DOWN+CLOUD"}, false, true},
		{"first_coming_second_failed", "a b", map[string]string{"a": "ALLOCATED+CLOUD+POWERING_UP", "b": "DOWN+CLOUD"}, false, true},
		{"none_asked_for", "", map[string]string{"a": "DOWN+CLOUD"}, true, true},
		{"another_failed", "a", map[string]string{"a": "ALLOCATED+CLOUD", "b": "DOWN+CLOUD"}, true, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ready, decided := verdict(strings.Fields(tt.of), nodes(tt.states))
			if ready != tt.ready || decided != tt.decided {
				t.Errorf("ready %v, decided %v; want %v, %v", ready, decided, tt.ready, tt.decided)
			}
		})
	}
}

func TestGatesOpenWhenTheirNodesAreReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatcher(slog.New(slog.NewTextHandler(io.Discard, nil)), nil)
		result := map[string]chan bool{"a": make(chan bool, 1), "a b": make(chan bool, 1), "c": make(chan bool, 1)}
		for names, ch := range result {
			go func() { ch <- w.wait(context.Background(), strings.Fields(names)) }()
		}
		open := func(want string) {
			t.Helper()
			synctest.Wait()
			got := ""
			for _, names := range []string{"a", "a b", "c"} {
				select {
				case r := <-result[names]:
					got += names + "=" + map[bool]string{true: "ready", false: "failed"}[r] + " "
				default:
				}
			}
			if strings.TrimSpace(got) != want {
				t.Errorf("opened %q, want %q", got, want)
			}
		}
		open("")
		w.open(nodes(map[string]string{"a": "ALLOCATED+CLOUD+POWERING_UP", "b": "ALLOCATED+CLOUD+POWERED_DOWN", "c": "ALLOCATED+CLOUD+POWERED_DOWN"}))
		open("")
		w.open(nodes(map[string]string{"a": "ALLOCATED+CLOUD", "b": "ALLOCATED+CLOUD+POWERING_UP", "c": "ALLOCATED+CLOUD+POWERING_UP"}))
		open("a=ready")
		if !w.ready([]string{"a"}) || w.ready([]string{"a", "b"}) {
			t.Error("ready does not say what was seen last")
		}
		w.open(nodes(map[string]string{"a": "ALLOCATED+CLOUD", "b": "ALLOCATED+CLOUD", "c": "DOWN+CLOUD"}))
		open("a b=ready c=failed")
		if len(w.gates) != 0 {
			t.Errorf("%d gates are left", len(w.gates))
		}
		// Twice the same states are no second answer, and nothing blocks.
		w.open(nodes(map[string]string{"a": "ALLOCATED+CLOUD"}))
	})
}

func TestGateEndsWithItsJob(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatcher(slog.New(slog.NewTextHandler(io.Discard, nil)), nil)
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if w.wait(ctx, []string{"a"}) {
			t.Error("the gate of a job that is gone says ready")
		}
		if len(w.gates) != 0 {
			t.Error("its gate is left")
		}
	})
}

func TestRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tries, began := 0, time.Now()
		err := retry(context.Background(), func() error {
			if tries++; tries < 10 {
				return errors.New("not yet")
			}
			return nil
		})
		if err != nil || tries != 10 {
			t.Errorf("%d tries, %v", tries, err)
		}
		// 20 40 80 160 320 640 1280 2000 2000 ms
		if d := time.Since(began); d != 6540*time.Millisecond {
			t.Errorf("ten tries took %v", d)
		}
		tries = 0
		final := permanent{errors.New("never")}
		if err := retry(context.Background(), func() error { tries++; return final }); !errors.Is(err, final.error) || tries != 1 {
			t.Errorf("a permanent error: %d tries, %v", tries, err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		last := errors.New("still not")
		if err := retry(ctx, func() error { return last }); !errors.Is(err, last) {
			t.Errorf("at the end of its time: %v, want the last cause", err)
		}
	})
}

func TestControllerAPINeedsItsToken(t *testing.T) {
	c := &Controller{log: slog.New(slog.NewTextHandler(io.Discard, nil)), who: imds.Controller{ClusterID: "pcs_1", Token: "secret"}}
	c.watch = newWatcher(c.log, nil)
	call := func(auth, method, path, body string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(method, path, strings.NewReader(body))
		if auth != "" {
			r.Header.Set("Authorization", auth)
		}
		w := httptest.NewRecorder()
		c.apiMux().ServeHTTP(w, r)
		return w
	}
	for _, auth := range []string{"", "Bearer", "Bearer ", "Bearer wrong", "secret2"} {
		for _, path := range []string{"/v1/health", "/v1/config", "/v1/run", "/v1/nodes", "/"} {
			if w := call(auth, http.MethodPost, path, "{}"); w.Code != http.StatusForbidden {
				t.Errorf("%s with %q: %d", path, auth, w.Code)
			}
		}
	}
	if w := call("Bearer secret", http.MethodGet, "/v1/health", ""); w.Code != http.StatusOK {
		t.Errorf("health: %d %s", w.Code, w.Body)
	}
	// Only Slurm's own commands, by name.
	for _, argv := range []string{`[]`, `["sh","-c","id"]`, `["/usr/bin/scontrol"]`, `["scontrol;id"]`, `["../scontrol"]`, `[""]`} {
		if w := call("Bearer secret", http.MethodPost, "/v1/run", `{"argv":`+argv+`}`); w.Code != http.StatusBadRequest {
			t.Errorf("%s: %d %s", argv, w.Code, w.Body)
		}
	}
	for _, body := range []string{"", "{", "[]"} {
		if w := call("Bearer secret", http.MethodPost, "/v1/run", body); w.Code != http.StatusBadRequest {
			t.Errorf("%q: %d", body, w.Code)
		}
	}
}

func TestHookWrongUse(t *testing.T) {
	old := os.Stderr
	devNull, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	os.Stderr = devNull
	defer func() { os.Stderr = old; _ = devNull.Close() }()
	if code := Hook(nil); code != 2 {
		t.Errorf("no hook: %d", code)
	}
	if code := Hook([]string{"reboot"}); code != 1 {
		t.Errorf("an unknown hook: %d", code)
	}
}

func TestCommand(t *testing.T) {
	if r := command(context.Background(), "sh", "-c", "echo out; echo err >&2; exit 3"); r.Code != 3 || r.Stdout != "out\n" || r.Stderr != "err\n" {
		t.Errorf("%+v", r)
	}
	if r := command(context.Background(), "/nonexistent/program"); r.Code != 127 || r.Stderr == "" {
		t.Errorf("a program that is not there: %+v", r)
	}
}

func TestWriteFileIsOneStep(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	for n, mode := range []os.FileMode{0o600, 0o644} {
		text := strings.Repeat("x", n+1)
		if err := writeFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		got, err2 := os.ReadFile(path)
		if err != nil || err2 != nil || info.Mode().Perm() != mode || string(got) != text {
			t.Errorf("%v %q %v %v", info.Mode(), got, err, err2)
		}
	}
	left, _ := os.ReadDir(filepath.Dir(path))
	if len(left) != 1 {
		t.Errorf("left over: %v", left)
	}
	if err := writeFile(filepath.Join(path, "below"), nil, 0o600); err == nil {
		t.Error("a file below a file")
	}
}

func TestLastLines(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(path, []byte("1\n2\n3\n4\n\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := lastLines(path, 2); got != "3 | 4" {
		t.Errorf("%q", got)
	}
	if got := lastLines(path, 9); got != "1 | 2 | 3 | 4" {
		t.Errorf("%q", got)
	}
	if got := lastLines(path+"none", 2); !strings.Contains(got, "no such file") {
		t.Errorf("%q", got)
	}
}

func TestBootLogHasThePCSForm(t *testing.T) {
	path := filepath.Join(t.TempDir(), "bootstrap.log")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	l := &bootLog{file: f}
	l.line("pcs_bootstrap_init.sh", "INFO", "Registering node to %s", "cluster")
	c := &console{log: l}
	for _, part := range []string{"hel", "lo\nwor", "ld\n", "unfinished"} {
		if n, err := c.Write([]byte(part)); n != len(part) || err != nil {
			t.Errorf("Write = %d, %v", n, err)
		}
	}
	l.close()
	text, _ := os.ReadFile(path)
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	if len(lines) != 3 || !strings.HasSuffix(lines[0], " - /opt/aws/pcs/bin/pcs_bootstrap_init.sh: INFO: Registering node to cluster") || !strings.HasPrefix(lines[0], "[20") ||
		!strings.HasSuffix(lines[1], "user-data: hello") || !strings.HasSuffix(lines[2], "user-data: world") || !strings.HasPrefix(lines[1], "<13>") {
		t.Errorf("log = %q", text)
	}
}

func TestConfigKeepsItsBytes(t *testing.T) {
	in := Config{Hash: "h", Files: map[string][]byte{"slurm.conf": []byte("a=b\n\x00é")}, Key: []byte{0, 1, 2, 255}}
	doc, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	var out Config
	if err := json.Unmarshal(doc, &out); err != nil || string(out.Files["slurm.conf"]) != "a=b\n\x00é" || string(out.Key) != string(in.Key) || out.Hash != "h" {
		t.Errorf("%+v, %v", out, err)
	}
}

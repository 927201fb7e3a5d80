package lifecycle_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/lifecycle"
)

// instance is what stays of one over its boots: its disk, and what its scripts
// are downloaded from.
type instance struct {
	mu      sync.Mutex
	t       *testing.T
	dir     string
	boot    int
	scripts map[string]string // content by location
	fetched []string
	told    []fleet.ScriptOutcome
	x       *lifecycle.Executor
}

func newInstance(t *testing.T) *instance {
	t.Helper()
	return &instance{t: t, dir: t.TempDir(), scripts: map[string]string{}}
}

func (i *instance) config(name string) string { return filepath.Join(i.dir, "config", name) }

func (i *instance) logs(name string) string { return filepath.Join(i.dir, "logs", name) }

func (i *instance) read(path string) string {
	i.t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		i.t.Fatal(err)
	}
	return string(text)
}

// open starts the agent; the boot is the same if nobody counted it up.
func (i *instance) open(id string, actions *fleet.LifecycleActions) error {
	i.fetched = nil
	i.x = &lifecycle.Executor{
		ConfigDir: i.config(""), LogDir: i.logs(""), Instance: id, Boot: fmt.Sprint(i.boot),
		Node: lifecycle.Node{ClusterID: "pcs_c", ClusterName: "hpc", GroupID: "pcs_g", GroupName: "grp", NodeID: "grp-1"},
		Fetch: func(_ context.Context, src fleet.ScriptSource) ([]byte, error) {
			i.mu.Lock() // several are fetched at a time
			defer i.mu.Unlock()
			i.fetched = append(i.fetched, src.Location)
			body, ok := i.scripts[src.Location]
			if !ok {
				return nil, errors.New("download " + src.Location + ": 404 NoSuchKey: gone")
			}
			return []byte(body), nil
		},
		Ended: func(_ context.Context, o fleet.ScriptOutcome) { i.told = append(i.told, o) },
	}
	return i.x.Open(actions)
}

// start is a boot up to its downloads.
func (i *instance) start(actions *fleet.LifecycleActions) {
	i.t.Helper()
	i.boot++
	i.told = nil
	if err := i.open("i-1", actions); err != nil {
		i.t.Fatal(err)
	}
	if err := i.x.Download(i.t.Context()); err != nil {
		i.t.Fatal(err)
	}
}

func (i *instance) run(stage string) lifecycle.Result {
	i.t.Helper()
	r, err := i.x.Run(i.t.Context(), stage, time.Minute)
	if err != nil {
		i.t.Fatal(err)
	}
	return r
}

// script names a script after its location, in the way of the test's cases.
func script(name string, with ...string) fleet.LifecycleScript {
	s := fleet.LifecycleScript{Name: name, Source: fleet.ScriptSource{Location: "s3://b/" + name}}
	for _, w := range with {
		switch w {
		case fleet.OnErrorTerminate, fleet.OnErrorStop, fleet.OnErrorContinue:
			s.OnError = w
		case fleet.FirstBootOnly, fleet.EveryBoot:
			s.ExecutionPolicy = w
		default:
			s.Arguments = append(s.Arguments, w)
		}
	}
	return s
}

func bootstrapped(scripts ...fleet.LifecycleScript) *fleet.LifecycleActions {
	return &fleet.LifecycleActions{Stages: fleet.LifecycleStages{NodeBootstrapped: scripts}}
}

// names are the scripts that ended at this boot, in order.
func (i *instance) names() string {
	var out []string
	for _, o := range i.told {
		out = append(out, o.Name)
	}
	return strings.Join(out, " ")
}

// executorLog has the messages of executor.log with their level and script.
func (i *instance) executorLog() (out []lifecycle.Entry) {
	i.t.Helper()
	for line := range strings.Lines(i.read(i.logs("executor.log"))) {
		var e lifecycle.Entry
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			i.t.Fatalf("%v in %s", err, line)
		}
		if _, err := time.Parse("2006-01-02T15:04:05.000000Z", e.Timestamp); err != nil {
			i.t.Error(err)
		}
		out = append(out, e)
	}
	return out
}

func (i *instance) logged(level, script, message string) (lifecycle.Entry, bool) {
	i.t.Helper()
	for _, e := range i.executorLog() {
		if e.Level == level && e.Script == script && strings.Contains(e.Message, message) {
			return e, true
		}
	}
	return lifecycle.Entry{}, false
}

// TestBootsAsOnPCS is the article's boot and reboot, with its record.
func TestBootsAsOnPCS(t *testing.T) {
	i := newInstance(t)
	record := i.logs("../record")
	i.scripts["s3://b/record"] = "#!/bin/bash\nset -euo pipefail\n" +
		`echo "label=${1:-unknown} first_boot=${PCS_IS_FIRST_BOOT:-unset} node=${PCS_NODE_ID:-unset} cng=${PCS_COMPUTE_NODE_GROUP_NAME:-unset}" >>` + record + "\n" +
		"echo \"recorded $1\"\n"
	first, every := script("record-first-boot", "bootstrapped-first-boot-only", fleet.FirstBootOnly), script("record-every-boot", "bootstrapped-every-boot", fleet.EveryBoot)
	first.Source.Location, every.Source.Location = "s3://b/record", "s3://b/record"
	actions := bootstrapped(first, every)
	actions.Stages.NodeReady = []fleet.LifecycleScript{script("ready-check", fleet.OnErrorContinue)}
	i.scripts["s3://b/ready-check"] = "#!/bin/bash\necho ready\n"

	i.start(actions)
	if len(i.fetched) != 3 {
		t.Errorf("before the first stage %v were downloaded, want all three", i.fetched)
	}
	if r := i.run(fleet.NodeBootstrapped); r.End != lifecycle.Completed {
		t.Fatalf("%+v", r)
	}
	if i.run(fleet.NodeReady); i.names() != "record-first-boot record-every-boot ready-check" {
		t.Errorf("ran %s", i.names())
	}
	if err := i.x.Complete(); err != nil {
		t.Fatal(err)
	}
	const one = "label=bootstrapped-first-boot-only first_boot=1 node=grp-1 cng=grp\nlabel=bootstrapped-every-boot first_boot=1 node=grp-1 cng=grp\n"
	if got := i.read(record); got != one {
		t.Errorf("the record is\n%swant\n%s", got, one)
	}
	// The reboot: a configuration that the group got meanwhile is none of this
	// instance's, and the store may be gone.
	clear(i.scripts)
	i.start(bootstrapped(script("other")))
	if len(i.fetched) != 0 || i.x.Runs(fleet.NodeReady) {
		t.Errorf("downloaded %v; nodeReady runs: %v", i.fetched, i.x.Runs(fleet.NodeReady))
	}
	i.run(fleet.NodeBootstrapped)
	i.run(fleet.NodeReady)
	if i.names() != "record-every-boot" || i.told[0].Attempt != 2 {
		t.Errorf("at the second boot %+v", i.told)
	}
	if got, want := i.read(record), one+"label=bootstrapped-every-boot first_boot=0 node=grp-1 cng=grp\n"; got != want {
		t.Errorf("the record is\n%swant\n%s", got, want)
	}
	if _, ok := i.logged("INFO", "record-every-boot", "Reusing cached script (CACHE_ONCE)"); !ok {
		t.Errorf("executor.log does not say that the cache was used: %+v", i.executorLog())
	}
	if _, ok := i.logged("INFO", "record-every-boot", "script completed"); !ok {
		t.Errorf("executor.log has no end: %+v", i.executorLog())
	}
	want := regexp.MustCompile(`^(\[start record-every-boot args=\["bootstrapped-every-boot"\] @ \d{10}\]\nrecorded bootstrapped-every-boot\n\[end record-every-boot exit=0 @ \d{10}\]\n){2}$`)
	if got := i.read(i.logs("nodeBootstrapped/record-every-boot.log")); !want.MatchString(got) {
		t.Errorf("its log is\n%s", got)
	}
}

func TestFilesAndModes(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o022))
	i := newInstance(t)
	i.scripts["s3://b/a script"] = "#!/bin/sh\n"
	i.start(bootstrapped(script("a script", "x y", `"<&>"`)))
	i.run(fleet.NodeBootstrapped)
	for path, want := range map[string]fs.FileMode{
		i.logs("executor.log"): 0o644, i.logs("nodeBootstrapped"): 0o750 | fs.ModeDir, i.logs("nodeBootstrapped/a script.log"): 0o640,
		i.config(""): 0o700 | fs.ModeDir, i.config("actions.json"): 0o600, i.config("scripts"): 0o700 | fs.ModeDir, i.config("scripts/nodeBootstrapped/a script"): 0o700,
	} {
		info, err := os.Stat(path)
		if err != nil || info.Mode() != want {
			t.Errorf("%s: %v %v, want %v", path, info, err, want)
		}
	}
	if log := i.read(i.logs("nodeBootstrapped/a script.log")); !strings.HasPrefix(log, `[start a script args=["x y","\"<&>\""] @ `) {
		t.Errorf("the log is %s", log)
	}
	if _, err := os.Stat(i.logs("nodeReady")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a stage without scripts has a folder: %v", err)
	}
}

// TestB5_StopSequence and what the others of onError do.
func TestB5_WhatAFailureLeadsTo(t *testing.T) {
	for onError, want := range map[string]struct {
		ran  string
		end  lifecycle.End
		exit int
		says string
	}{
		fleet.OnErrorStop:      {"fail ready", lifecycle.Stopped, 3, "StopSequence"},
		fleet.OnErrorContinue:  {"fail after ready", lifecycle.Completed, 0, "Continue"},
		fleet.OnErrorTerminate: {"fail", lifecycle.Terminated, 1, "Terminate"},
		"":                     {"fail", lifecycle.Terminated, 1, "Terminate"},
	} {
		t.Run("onError="+onError, func(t *testing.T) {
			i := newInstance(t)
			i.scripts["s3://b/fail"] = "#!/bin/bash\necho \"intentional failure for verification\" >&2\nexit 1\n"
			i.scripts["s3://b/after"], i.scripts["s3://b/ready"] = "#!/bin/sh\n", "#!/bin/sh\n"
			actions := bootstrapped(script("fail", onError), script("after"))
			actions.Stages.NodeReady = []fleet.LifecycleScript{script("ready")}
			if onError == "" {
				actions.Stages.NodeBootstrapped[0].Arguments = nil
			}
			i.start(actions)
			r := i.run(fleet.NodeBootstrapped)
			if r.End != lifecycle.Terminated {
				i.run(fleet.NodeReady)
			}
			if i.names() != want.ran || r.End != want.end || r.End.ExitCode() != want.exit {
				t.Errorf("ran %q, ended with %v", i.names(), r)
			}
			e, ok := i.logged("ERROR", "fail", "lifecycle script failed; ")
			if !ok || e.OnError != want.says || e.Stage != "nodeBootstrapped" || e.Error != "script 'fail' failed with exit status ExitStatus(unix_wait_status(256))" {
				t.Errorf("executor.log: %+v", i.executorLog())
			}
			o := i.told[0]
			// What was left out at the first boot does not come at the next.
			if err := i.x.Complete(); err != nil {
				t.Fatal(err)
			}
			if i.start(nil); i.x.Runs(fleet.NodeBootstrapped) || i.x.Runs(fleet.NodeReady) || len(i.fetched) != 0 {
				t.Errorf("at the second boot something runs, %v is downloaded", i.fetched)
			}
			if o.ExitCode != 1 || o.Output != "intentional failure for verification" || o.Attempt != 1 || o.Log != i.logs("nodeBootstrapped/fail.log") {
				t.Errorf("the outcome is %+v", o)
			}
			if i.read(o.Log) != fmt.Sprintf("[start fail args=[] @ %[1]d]\nintentional failure for verification\n[end fail exit=1 @ %[1]d]\n", o.At.Unix()) {
				t.Logf("the log is %s", i.read(o.Log)) // a second may have begun between
			}
		})
	}
}

// TestB8 says where a failure can be looked up.
func TestB8_TheMessageNamesScriptStageExitCodeAndLog(t *testing.T) {
	i := newInstance(t)
	i.scripts["s3://b/set up"] = "#!/bin/sh\necho one\necho no disk\nexit 7\n"
	i.start(bootstrapped(script("set up")))
	says := i.run(fleet.NodeBootstrapped).Failed.Sentence()
	for _, part := range []string{`"set up"`, "nodeBootstrapped", "exit code 7", "no disk", i.logs("nodeBootstrapped/set up.log"), "TERMINATE"} {
		if !strings.Contains(says, part) {
			t.Errorf("%q is missing in: %s", part, says)
		}
	}
}

// TestB7_OddScripts has each odd script's defined end.
func TestB7_OddScripts(t *testing.T) {
	for name, tt := range map[string]struct {
		body    string
		exit    int
		output  string // begins the script's own
		warns   string
		failure string
	}{
		"crlf":                {body: "#!/bin/sh\r\necho hello\r\nexit 4\r\n", exit: 4, output: "hello", warns: "CRLF line ends", failure: "1024"},
		"crlf-and-mark":       {body: "\xef\xbb\xbf#!/bin/sh\r\necho $0\r\n", warns: "a byte order mark and CRLF line ends"},
		"mark":                {body: "\xef\xbb\xbf#!/bin/bash\n[ -n \"$BASH\" ]\n", warns: "a byte order mark"},
		"crlf-only-inside":    {body: "#!/bin/sh\nprintf 'a\r\n' | od -An -c\n", output: `a  \r  \n`},
		"no-shebang":          {body: "echo by $(readlink -f /proc/$$/exe)\nexit 0\n", output: "by /"},
		"comment-first":       {body: "# a comment\necho x\n", output: "x"},
		"no-newline":          {body: "#!/bin/sh\nprintf unfinished", output: "unfinished"},
		"empty":               {body: "", warns: "empty"},
		"no-interpreter":      {body: "#!/no/such/thing\n", exit: 127, output: "script 'no-interpreter' cannot be run", failure: "does not exist"},
		"interpreter-no-x":    {body: "#!/etc/passwd\n", exit: 126, failure: "permission denied"},
		"data":                {body: "\x00\x01\x02\x03", exit: 126, failure: "neither a script nor a program"},
		"foreign-program":     {body: "\x7fELF\x01\x01\x01aaaaaaaaaaaaaaa", exit: 126, failure: "exec format error"},
		"killed":              {body: "#!/bin/sh\necho before\nkill -9 $$\n", exit: 137, output: "before", failure: "ExitStatus(unix_wait_status(9)): it was ended by signal 9"},
		"segfault":            {body: "#!/bin/sh\nulimit -c 0\nkill -SEGV $$\n", exit: 139, failure: "signal 11"},
		"exit-255":            {body: "#!/bin/sh\nexit 255\n", exit: 255, failure: "unix_wait_status(65280)"},
		"environment":         {body: "#!/bin/bash\nset -u\necho $PCS_CLUSTER_ID $PCS_CLUSTER_NAME $PCS_COMPUTE_NODE_GROUP_ID $PCS_COMPUTE_NODE_GROUP_NAME $PCS_NODE_ID $PCS_IS_FIRST_BOOT $HOME $PWD\n", output: "pcs_c hpc pcs_g grp grp-1 1 /root /"},
		"six-variables":       {body: "#!/bin/sh\nenv | grep -c ^PCS_\n", output: "6"},
		"no-standard-input":   {body: "#!/bin/sh\ncat\n"},
		"standard-error-too":  {body: "#!/bin/sh\necho e >&2\n", output: "e"},
		"commands-are-found":  {body: "#!/bin/sh\ncommand -v mount >/dev/null && ls / >/dev/null\n"},
		"process-group-alone": {body: "#!/bin/sh\n[ $(ps -o pgid= $$ 2>/dev/null || cut -d' ' -f5 /proc/$$/stat) -eq $$ ]\n"},
	} {
		t.Run(name, func(t *testing.T) {
			i := newInstance(t)
			i.scripts["s3://b/"+name] = tt.body
			i.start(bootstrapped(script(name, fleet.OnErrorContinue)))
			i.run(fleet.NodeBootstrapped)
			o := i.told[0]
			if o.ExitCode != tt.exit || !strings.HasPrefix(o.Output, tt.output) || !strings.Contains(o.Failure, tt.failure) || (tt.exit != 0) != (o.Failure != "") {
				t.Errorf("%+v", o)
			}
			log := i.read(i.logs("nodeBootstrapped/" + name + ".log"))
			if !regexp.MustCompile(`\n\[end ` + name + fmt.Sprintf(` exit=%d @ \d+\]\n$`, tt.exit)).MatchString(log) {
				t.Errorf("its log is\n%s", log)
			}
			_, warned := i.logged("WARN", name, tt.warns)
			if warned != (tt.warns != "") {
				t.Errorf("executor.log: %+v", i.executorLog())
			}
			if i.read(i.config("scripts/nodeBootstrapped/"+name)) != tt.body {
				t.Error("the cache has something else than what was downloaded")
			}
		})
	}
}

// TestDaemonsStay: what a script leaves behind neither holds up the boot nor is
// ended with it, though it has the log open.
func TestDaemonsStay(t *testing.T) {
	i := newInstance(t)
	fifo := filepath.Join(i.dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	i.scripts["s3://b/daemon"] = "#!/bin/sh\n(read line <" + fifo + "; echo the daemon heard $line; echo done >" + fifo + ".out) &\necho started\n"
	i.start(bootstrapped(script("daemon")))
	if r := i.run(fleet.NodeBootstrapped); r.End != lifecycle.Completed {
		t.Fatalf("%+v", r)
	}
	if err := syscall.Mkfifo(fifo+".out", 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(fifo, []byte("us\n"), 0); err != nil { // it reads: it lives
		t.Fatal(err)
	}
	if got := i.read(fifo + ".out"); got != "done\n" {
		t.Fatalf("%q", got)
	}
	if log := i.read(i.logs("nodeBootstrapped/daemon.log")); !regexp.MustCompile(`started\n\[end daemon exit=0 @ \d+\]\nthe daemon heard us\n$`).MatchString(log) {
		t.Errorf("the log is\n%s", log)
	}
}

// TestHangingScript: one that hangs is killed when its time is over, with what
// it started, even if it ignores SIGTERM.
func TestHangingScript(t *testing.T) {
	i := newInstance(t)
	fifo := filepath.Join(i.dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	i.scripts["s3://b/hang"] = "#!/bin/bash\ntrap '' TERM\nsleep 1000 &\necho $$ $! >" + fifo + "\nread <" + fifo + ".never\n"
	if err := syscall.Mkfifo(fifo+".never", 0o600); err != nil {
		t.Fatal(err)
	}
	i.scripts["s3://b/after"] = "#!/bin/sh\n"
	i.start(bootstrapped(script("hang", fleet.OnErrorContinue), script("after")))
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	pids := make(chan string, 1)
	go func() {
		text, _ := os.ReadFile(fifo)
		pids <- string(text)
		cancel(context.DeadlineExceeded) // the boot's time is over
	}()
	r, err := i.x.Run(ctx, fleet.NodeBootstrapped, time.Minute)
	if err != nil || r.End != lifecycle.Terminated || !r.Hung || r.Failed.ExitCode != 137 || r.Failed.OnError != fleet.OnErrorTerminate || !strings.Contains(r.Failed.Failure, "script 'hang' had not ended after") {
		t.Errorf("%+v %v", r, err)
	}
	if i.names() != "hang" {
		t.Errorf("ran %s, though the time was over", i.names())
	}
	var self, child int
	if _, err := fmt.Sscan(<-pids, &self, &child); err != nil {
		t.Fatal(err)
	}
	for _, pid := range []int{self, child} {
		awaitEnd(t, pid)
	}
}

// awaitEnd waits for a process's end.
func awaitEnd(t *testing.T, pid int) {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	if n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 10_000); n != 1 {
		t.Errorf("process %d lives (%v)", pid, err)
	}
}

// TestLimitOfOneScript: where the boot's time is not over, a script that hangs
// fails by itself, and its onError says what comes.
func TestLimitOfOneScript(t *testing.T) {
	i := newInstance(t)
	i.scripts["s3://b/hang"], i.scripts["s3://b/after"] = "#!/bin/sh\nexec sleep 1000\n", "#!/bin/sh\n"
	actions := &fleet.LifecycleActions{Stages: fleet.LifecycleStages{NodeReady: []fleet.LifecycleScript{script("hang", fleet.OnErrorContinue), script("after")}}}
	i.start(actions)
	r, err := i.x.Run(t.Context(), fleet.NodeReady, 50*time.Millisecond)
	if err != nil || r.End == lifecycle.Stopped || i.names() != "hang after" || i.told[0].ExitCode != 143 || !strings.Contains(i.told[0].Failure, "was killed") {
		t.Errorf("%+v %v %+v", r, err, i.told)
	}
}

// TestMegabytes: of much output the beginning and the end are kept, with a line
// between, in each run and over many.
func TestMegabytes(t *testing.T) {
	i := newInstance(t)
	i.scripts["s3://b/much"] = "#!/bin/sh\necho first line of boot $1\nhead -c 12000000 /dev/zero | tr '\\0' x\necho\necho last line\n"
	i.start(bootstrapped(script("much", fleet.EveryBoot)))
	i.run(fleet.NodeBootstrapped)
	path := i.logs("nodeBootstrapped/much.log")
	log := i.read(path)
	if len(log) > 2<<20+1000 || len(log) < 2<<20 || !strings.Contains(log, "]\nfirst line of boot") || !strings.Contains(log, "last line\n[end much exit=0") || strings.Count(log, "[output is left out here: ") != 1 {
		t.Errorf("%d bytes: %.200s ... %s", len(log), log, log[len(log)-200:])
	}
	if o := i.told[0]; !strings.HasSuffix(o.Output, "x\nlast line") || len(o.Output) > fleet.MaxOutput {
		t.Errorf("the outcome has %d bytes", len(o.Output))
	}
	for range 6 {
		i.start(nil)
		i.run(fleet.NodeBootstrapped)
	}
	log = i.read(path)
	if len(log) > 11<<20 || !strings.HasPrefix(log, "[start much") || !strings.Contains(log[len(log)-200:], "last line\n[end much exit=0") {
		t.Errorf("after seven boots %d bytes", len(log))
	}
}

// TestALogIsNotMovedUnderItsScript: while a script prints megabytes the disk that
// they take is given back, and nothing is moved, so that no line can be lost.
func TestALogIsNotMovedUnderItsScript(t *testing.T) {
	i := newInstance(t)
	path := i.logs("nodeBootstrapped/much.log")
	i.scripts["s3://b/much"] = "#!/bin/sh\nhead -c 12000000 /dev/zero | tr '\\0' x\necho\n" +
		"n=0; until [ $(($(stat -c %b '" + path + "') * 512)) -lt 6000000 ] || [ $n = 200 ]; do n=$((n+1)); sleep 0.1; done\n" +
		"echo size $(stat -c %s '" + path + "') blocks $(stat -c %b '" + path + "')\n"
	i.start(bootstrapped(script("much", fleet.EveryBoot)))
	i.run(fleet.NodeBootstrapped)
	var size, blocks int
	lines := strings.Split(strings.TrimSpace(i.read(path)), "\n")
	if _, err := fmt.Sscanf(lines[len(lines)-2], "size %d blocks %d", &size, &blocks); err != nil || size < 12_000_000 || blocks*512 >= 6_000_000 {
		t.Errorf("%q, %v", lines[len(lines)-2], err)
	}
	// An agent that is killed leaves such a log, and the next one closes its gap.
	f, err := os.OpenFile(path, os.O_RDWR|os.O_TRUNC, 0)
	if err != nil {
		t.Fatal(err)
	}
	first, last := strings.Repeat("f", 2<<20), "last words\n"
	_, err1 := f.WriteAt([]byte(first), 0)
	_, err2 := f.WriteAt([]byte(last), 30<<20)
	if err := errors.Join(err1, err2, f.Close()); err != nil {
		t.Fatal(err)
	}
	i.scripts["s3://b/much"] = "#!/bin/sh\n"
	if err := os.Remove(i.config("scripts/nodeBootstrapped/much")); err != nil {
		t.Fatal(err)
	}
	i.start(nil)
	i.run(fleet.NodeBootstrapped)
	if log := i.read(path); !strings.HasPrefix(log, first) || !strings.Contains(log, last) || len(log) > 5<<20 {
		t.Errorf("after an agent that was killed the log has %d bytes", len(log))
	}
}

// TestDownloadsFailWhenTheirTurnComes: what is not there is known before the
// first script, and felt at its own.
func TestB7_ADownloadFailsInItsTurn(t *testing.T) {
	i := newInstance(t)
	i.scripts["s3://b/one"], i.scripts["s3://b/three"] = "#!/bin/sh\n", "#!/bin/sh\n"
	i.start(bootstrapped(script("one"), script("two", fleet.OnErrorStop), script("three")))
	r := i.run(fleet.NodeBootstrapped)
	o := r.Failed
	if i.names() != "one two" || r.End != lifecycle.Stopped || o.ExitCode != fleet.NotRun || !strings.Contains(o.Failure, "download s3://b/two: 404 NoSuchKey") {
		t.Errorf("ran %s, %+v", i.names(), r)
	}
	if o.Log != i.logs("executor.log") || !strings.Contains(i.read(o.Log), "404 NoSuchKey") {
		t.Errorf("its log is %s", o.Log)
	}
}

func TestRefreshOnReboot(t *testing.T) {
	i := newInstance(t)
	i.scripts["s3://b/a"], i.scripts["s3://b/once"] = "#!/bin/sh\necho old\n", "#!/bin/sh\n"
	actions := bootstrapped(script("a", fleet.EveryBoot, fleet.OnErrorContinue), script("once"))
	actions.CachingPolicy = fleet.RefreshOnReboot
	boot := func() fleet.ScriptOutcome {
		i.start(actions)
		i.run(fleet.NodeBootstrapped)
		if err := i.x.Complete(); err != nil {
			t.Fatal(err)
		}
		return i.told[0]
	}
	boot()
	i.scripts["s3://b/a"] = "#!/bin/sh\necho new\n"
	if o := boot(); o.Output != "new" || !slices.Equal(i.fetched, []string{"s3://b/a"}) {
		t.Errorf("at the second boot %+v; downloaded %v", o, i.fetched)
	}
	// There is no way back to the copy of before.
	delete(i.scripts, "s3://b/a")
	if o := boot(); o.ExitCode != fleet.NotRun || !strings.Contains(o.Failure, "404") {
		t.Errorf("without its object: %+v", o)
	}
	if _, ok := i.logged("INFO", "a", "Reusing"); ok {
		t.Error("the cache was used")
	}
}

// TestAgentStartedAgain: in the same boot nothing runs twice, and a decision
// that fell stands.
func TestAgentStartedAgain(t *testing.T) {
	i := newInstance(t)
	for _, name := range []string{"one", "three"} {
		i.scripts["s3://b/"+name] = "#!/bin/sh\n"
	}
	i.scripts["s3://b/two"] = "#!/bin/sh\nexit 1\n"
	actions := bootstrapped(script("one", fleet.EveryBoot), script("two", fleet.OnErrorStop), script("three"))
	i.start(actions)
	i.run(fleet.NodeBootstrapped)
	if i.names() != "one two" {
		t.Fatalf("ran %s", i.names())
	}
	if err := i.open("i-1", actions); err != nil {
		t.Fatal(err)
	}
	i.told = nil
	if r := i.run(fleet.NodeBootstrapped); r.End != lifecycle.Stopped || i.names() != "" {
		t.Errorf("after the agent's start ran %q, %+v", i.names(), r)
	}
	// A boot that came before all stages were through is still the first; what
	// ended before does not run again for it.
	i.start(actions)
	if r := i.run(fleet.NodeBootstrapped); i.names() != "one three" || r.End != lifecycle.Completed {
		t.Errorf("at the second try of the first boot ran %q, %+v", i.names(), r)
	}
}

// TestAgentKilled: a script that an agent left running when it was killed does
// not run beside its second run.
func TestAgentKilled(t *testing.T) {
	i := newInstance(t)
	fifo := filepath.Join(i.dir, "fifo")
	for _, path := range []string{fifo, fifo + ".end"} {
		if err := syscall.Mkfifo(path, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	i.scripts["s3://b/a"] = "#!/bin/sh\necho $$ >" + fifo + "\nread x <" + fifo + ".end\n"
	actions := bootstrapped(script("a"))
	i.start(actions)
	first := i.x
	done := make(chan error, 1)
	go func() {
		_, err := first.Run(t.Context(), fleet.NodeBootstrapped, time.Minute)
		done <- err
	}()
	pid := func() (pid int) {
		if _, err := fmt.Sscan(i.read(fifo), &pid); err != nil {
			t.Fatal(err)
		}
		return pid
	}
	left := pid()
	// The next agent knows nothing but what is on disk, where the process is a
	// moment after it began.
	for limit, tick := time.After(10*time.Second), time.Tick(time.Millisecond); !strings.Contains(i.read(i.config("record.json")), fmt.Sprintf(`"process":%d,`, left)); {
		select {
		case <-tick:
		case <-limit:
			t.Fatalf("process %d is not on record: %s", left, i.read(i.config("record.json")))
		}
	}
	if err := i.open("i-1", actions); err != nil {
		t.Fatal(err)
	}
	awaitEnd(t, left)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// TestAgentStopped: a reboot while a script runs is no failure of the script.
// It has no outcome, whatever its onError, and runs at the next boot; so do those
// behind it.
func TestAgentStopped(t *testing.T) {
	i := newInstance(t)
	fifo := filepath.Join(i.dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	i.scripts["s3://b/long"] = "#!/bin/sh\n[ -e " + fifo + ".second ] && exit 0\necho up >" + fifo + "\nexec sleep 1000\n"
	i.scripts["s3://b/after"] = "#!/bin/sh\n"
	actions := bootstrapped(script("long", fleet.OnErrorContinue), script("after"))
	i.start(actions)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		_, _ = os.ReadFile(fifo)
		cancel()
	}()
	if _, err := i.x.Run(ctx, fleet.NodeBootstrapped, time.Minute); !errors.Is(err, context.Canceled) || i.names() != "" || len(i.x.Outcomes()) != 0 {
		t.Errorf("%v, outcomes %+v", err, i.x.Outcomes())
	}
	if err := os.WriteFile(fifo+".second", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	i.start(actions)
	if r := i.run(fleet.NodeBootstrapped); r.End != lifecycle.Completed || i.names() != "long after" {
		t.Errorf("at the next boot ran %q, %+v", i.names(), r)
	}
}

// TestNothingOfAnotherInstance: an image that was made of a node may bring the
// node's scripts along.
func TestNothingOfAnotherInstance(t *testing.T) {
	i := newInstance(t)
	i.scripts["s3://b/a"] = "#!/bin/sh\n"
	i.start(bootstrapped(script("a")))
	i.run(fleet.NodeBootstrapped)
	if err := i.open("i-2", nil); err != nil {
		t.Fatal(err)
	}
	if i.x.Has() || len(i.x.Outcomes()) != 0 {
		t.Error("the other instance has scripts")
	}
	if _, err := os.Stat(i.config("scripts")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the cache is left: %v", err)
	}
	// That it had none is kept too.
	i.boot++
	if err := i.open("i-2", bootstrapped(script("a"))); err != nil || i.x.Has() {
		t.Errorf("after a reboot it has scripts that it did not begin with (%v)", err)
	}
}

func TestUnknownValuesAreRefused(t *testing.T) {
	for name, change := range map[string]func(*fleet.LifecycleActions){
		"onError":   func(a *fleet.LifecycleActions) { a.Stages.NodeBootstrapped[0].OnError = "RETRY" },
		"policy":    func(a *fleet.LifecycleActions) { a.Stages.NodeBootstrapped[0].ExecutionPolicy = "NEVER" },
		"caching":   func(a *fleet.LifecycleActions) { a.CachingPolicy = "NEVER" },
		"name":      func(a *fleet.LifecycleActions) { a.Stages.NodeBootstrapped[0].Name = "../a" },
		"same-name": func(a *fleet.LifecycleActions) { a.Stages.NodeBootstrapped[1].Name = "a" },
	} {
		t.Run(name, func(t *testing.T) {
			a := bootstrapped(script("a"), script("b"))
			change(a)
			if err := newInstance(t).open("i-1", a); err == nil || !strings.HasPrefix(err.Error(), "read the lifecycle configuration: ") {
				t.Errorf("err = %v", err)
			}
		})
	}
}

func TestSummary(t *testing.T) {
	var all []fleet.ScriptOutcome
	for n := range 7 {
		all = append(all, fleet.ScriptOutcome{Stage: fleet.NodeReady, Name: fmt.Sprint("s", n), ExitCode: n - 1, Failure: "x"})
	}
	all[1].Failure = ""
	if got, want := lifecycle.Summary(all), "LIFECYCLE_ACTION_FAILED nodeReady/s0:not-run nodeReady/s2:exit=1 nodeReady/s3:exit=2 nodeReady/s4:exit=3 nodeReady/s5:exit=4 and 1 more"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if got := lifecycle.Summary(all[1:2]); got != "" {
		t.Errorf("without a failure: %s", got)
	}
}

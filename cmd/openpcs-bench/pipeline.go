package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/openpcs/openpcs/internal/collect"
	"github.com/openpcs/openpcs/internal/delivery"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/logs"
	stored "github.com/openpcs/openpcs/internal/logs/events"
	"github.com/openpcs/openpcs/internal/s3"
	"github.com/openpcs/openpcs/internal/store"
	"github.com/openpcs/openpcs/internal/tail"
)

const (
	// pipeCommand is the argument by which the program runs itself as the log
	// pipeline, so that its processor time can be measured.
	pipeCommand = "pipe-logs"

	logsCluster = "pcs_logs000001"
	logsGroup   = "/bench"
	logsLines   = 1_000_000
	// The storm, as issue-cases L14 has it.
	stormRate, stormOps = 200_000, 10
	stormFor            = 10 * time.Second
)

// logsReport is bench/logs.json.
type logsReport struct {
	Lines    int     `json:"lines"` // nine of ten of them audit records
	Pipeline pipeRun `json:"pipeline"`
	Rsyslog  pipeRun `json:"rsyslog"` // into two JSON files, and gzip -1 after it
	Version  string  `json:"rsyslogVersion"`
	Ratio    float64 `json:"ratio"` // lines per second of processor time, ours to rsyslog's
	Storm    struct {
		AuditPerSecond   int   `json:"auditPerSecond"`
		OpsPerSecond     int   `json:"opsPerSecond"`
		Written          int   `json:"writtenPerSecond"` // audit records, as it came
		OperationalLagMs stats `json:"operationalLagMs"`
	} `json:"storm"`
}

// pipeRun is a file of lines on its way to compressed JSON on one processor.
type pipeRun struct {
	Seconds        float64 `json:"seconds"`
	CPUSeconds     float64 `json:"cpuSeconds"`
	LinesPerSecond int     `json:"linesPerSecond"` // of one core
	PerCPUSecond   int     `json:"linesPerCpuSecond"`
}

func (r *pipeRun) of(lines int, began time.Time, cpu time.Duration) {
	r.Seconds, r.CPUSeconds = time.Since(began).Seconds(), cpu.Seconds()
	r.LinesPerSecond, r.PerCPUSecond = int(float64(lines)/r.Seconds), int(float64(lines)/r.CPUSeconds)
}

// logsTopic measures the log pipeline: how much one core brings from a daemon's
// log to compressed JSON, what rsyslog does in its place, and how long an
// operational record takes while audit records pour in.
func logsTopic(ctx context.Context, b *bench) error {
	dir, err := os.MkdirTemp("", "openpcs-bench-logs-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	r := logsReport{Lines: logsLines}
	if err := benchPipeline(ctx, filepath.Join(dir, "ours"), &r.Pipeline); err != nil {
		return err
	}
	b.row("log pipeline, lines per second of one core", strconv.Itoa(r.Pipeline.PerCPUSecond), "300000")
	if r.Version, err = benchRsyslog(ctx, filepath.Join(dir, "theirs"), &r.Rsyslog); err != nil {
		return err
	}
	r.Ratio = math.Round(100*float64(r.Pipeline.PerCPUSecond)/float64(r.Rsyslog.PerCPUSecond)) / 100
	b.row("the same by rsyslog and gzip", strconv.Itoa(r.Rsyslog.PerCPUSecond), "")
	b.row("the ratio of the two", fmt.Sprintf("%.2f", r.Ratio), "")
	r.Storm.AuditPerSecond, r.Storm.OpsPerSecond = stormRate, stormOps
	if r.Storm.OperationalLagMs, r.Storm.Written, err = benchStorm(ctx, filepath.Join(dir, "storm")); err != nil {
		return err
	}
	b.row("operational record to its log group in an audit storm, median / p99", fmt.Sprintf("%.0f / %.0f ms", r.Storm.OperationalLagMs.Median, r.Storm.OperationalLagMs.P99), "")
	return b.write("logs", r)
}

// line writes the nth line of a log.
func line(w io.Writer, n int, audit bool) {
	now := time.Now().UTC().Format("2006-01-02T15:04:05.000+00:00")
	if audit {
		fmt.Fprintf(w, "[%s] AUDIT_RPCS: [slurmctld-primary:6817(fd:%d)] msg_type=REQUEST_PING uid=%d client=[10.0.1.142:%d] protocol=11520\n", now, 10+n%30, n%3*500, 32768+n%28000)
		return
	}
	fmt.Fprintf(w, "[%s] sched: Allocate JobId=%d NodeList=compute-%d #CPUs=2 Partition=queue-1\n", now, n, n%16)
}

func writeLines(path string, lines int) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	w := bufio.NewWriterSize(f, 1<<20)
	for n := range lines {
		line(w, n, n%10 != 9)
	}
	return errors.Join(w.Flush(), f.Sync(), f.Close())
}

// folder is S3 as a folder, so that what is measured is the pipeline.
type folder string

func (f folder) Send(req *http.Request, _ string, _ s3.Sender) (*http.Response, error) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return nil, err
	}
	err = os.WriteFile(filepath.Join(string(f), filepath.Base(req.URL.Path)), body, 0o600)
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{"Etag": {`"x"`}}, Body: http.NoBody}, err
}

// onThisMachine is a controller whose logs are in a folder here.
type onThisMachine struct{ tail.Dir }

func (onThisMachine) Users(context.Context) (map[uint32]string, error) { return nil, nil }

// pipe is the part of the control plane from the daemons' logs to destinations.
type pipe struct {
	store      *store.Store
	groups     *logs.Logs
	collector  *collect.Collector
	deliveries *delivery.Runner
}

// openPipe begins to deliver the logs in dir/log: audit records into dir/out,
// others there too or, in a storm, to a log group.
func openPipe(ctx context.Context, dir string, toGroup func(delivery.Groups) delivery.Groups) (*pipe, error) {
	for _, name := range []string{"log", "out"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o700); err != nil {
			return nil, err
		}
	}
	p := &pipe{}
	var err error
	if p.store, err = store.Open(filepath.Join(dir, "state.db")); err != nil {
		return nil, err
	}
	err = p.store.Update(ctx, func(tx *store.Tx) error {
		return fleet.Clusters.Put(tx, fleet.Cluster{ID: logsCluster, Name: "bench", Region: crowdRegion, Version: "26.05", ControllerAddress: "127.0.0.1"})
	})
	if err != nil {
		return nil, err
	}
	db, err := stored.Open(filepath.Join(dir, "logs.db"))
	if err == nil {
		err = errors.Join(db.CreateGroup(ctx, stored.Group{Region: crowdRegion, Name: logsGroup, Class: "STANDARD"}), db.Close())
	}
	if err != nil {
		return nil, err
	}
	if p.groups, err = logs.New(logs.Options{Store: p.store, Account: "000000000000", Dir: dir}); err != nil {
		return nil, err
	}
	quiet := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	p.collector = collect.New(collect.Options{
		Store: p.store, Dir: filepath.Join(dir, "journals"), Log: quiet,
		Controller: func(fleet.Cluster) collect.Controller {
			return onThisMachine{tail.Dir(filepath.Join(dir, "log"))}
		},
	})
	if err := p.collector.Start(ctx); err != nil {
		return nil, err
	}
	audit := delivery.Link{ID: "AUDIT", Region: crowdRegion, Account: "000000000000", Cluster: logsCluster, LogType: logs.SchedulerAuditLogs, Kind: logs.ToS3, Target: "out", Format: delivery.JSON}
	ops := audit
	ops.ID, ops.LogType = "OPS", logs.SchedulerLogs
	var groups delivery.Groups = p.groups
	if toGroup != nil {
		groups = toGroup(groups)
		ops.Kind, ops.Target, ops.Format = logs.ToLogs, logsGroup, delivery.Plain
	}
	feeds := &delivery.Feeds{Store: p.store, Journals: p.collector.Journals}
	p.deliveries = delivery.Start(delivery.Options{
		Store: p.store, Feeds: feeds.Of, Interval: time.Second, Keep: 24 * time.Hour, Dir: filepath.Join(dir, "refused"), Logger: quiet,
		Links:        func(*store.Tx) ([]delivery.Link, error) { return []delivery.Link{audit, ops}, nil },
		Destinations: &delivery.Destinations{Account: "000000000000", Buckets: folder(filepath.Join(dir, "out")), Groups: groups},
	})
	return p, nil
}

func (p *pipe) close() error {
	p.deliveries.Stop()
	p.collector.Stop()
	return errors.Join(p.groups.Close(), p.store.Close())
}

// runPipe is the process that benchPipeline measures: it delivers what is in the
// log, and ends.
func runPipe(ctx context.Context, args []string) error {
	flags := flag.NewFlagSet(pipeCommand, flag.ExitOnError)
	dir := flags.String("dir", "", "folder")
	lines := flags.Int("lines", logsLines, "how many lines the log has")
	if err := flags.Parse(args); err != nil {
		return err
	}
	p, err := openPipe(ctx, *dir, nil)
	if err != nil {
		return err
	}
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for ctx.Err() == nil {
		<-ticker.C
		var done int64
		for _, s := range p.deliveries.Status() {
			done += s.Delivered
		}
		if done >= int64(*lines) {
			break
		}
	}
	return errors.Join(p.close(), ctx.Err())
}

// onOneCore has a command run on one processor, with its processor time.
func onOneCore(ctx context.Context, env []string, argv ...string) (time.Duration, error) {
	cmd := exec.CommandContext(ctx, "taskset", append([]string{"-c", "0"}, argv...)...)
	cmd.Env = append(os.Environ(), env...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return 0, fmt.Errorf("run %s: %w: %s", argv[0], err, out.Bytes())
	}
	return cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(), nil
}

func benchPipeline(ctx context.Context, dir string, r *pipeRun) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(dir, "log"), 0o700); err != nil {
		return err
	}
	if err := writeLines(filepath.Join(dir, "log", "slurmctld.log"), logsLines); err != nil {
		return err
	}
	began := time.Now()
	cpu, err := onOneCore(ctx, []string{"GOMAXPROCS=1"}, self, pipeCommand, "-dir", dir, "-lines", strconv.Itoa(logsLines))
	if err != nil {
		return err
	}
	r.of(logsLines, began, cpu)
	objects, err := filepath.Glob(filepath.Join(dir, "out", "*.log.gz"))
	if err != nil || len(objects) == 0 {
		return fmt.Errorf("find the objects: %d, %w", len(objects), err)
	}
	return countLines(ctx, objects, logsLines)
}

// countLines checks that nothing was measured that lost something.
func countLines(ctx context.Context, files []string, want int) error {
	out, err := exec.CommandContext(ctx, "sh", append([]string{"-c", `gunzip -c "$@" | wc -l`, "sh"}, files...)...).Output()
	if err != nil {
		return fmt.Errorf("count the lines: %w", err)
	}
	if n := strings.TrimSpace(string(out)); n != strconv.Itoa(want) {
		return fmt.Errorf("%s lines came out, want %d", n, want)
	}
	return nil
}

// rsyslogPackages are taken from the machine's own package source, and not
// installed.
var rsyslogPackages = []string{"rsyslog", "libestr0", "libfastjson4", "liblognorm5"}

// rsyslogConf does with rsyslog what the pipeline does: a record of the same
// fields as JSON, audit records apart.
const rsyslogConf = `global(workDirectory="%[1]s" maxMessageSize="64k")
module(load="imfile" mode="inotify")
main_queue(queue.type="FixedArray" queue.size="200000" queue.dequeueBatchSize="4096" queue.workerThreads="1")
template(name="record" type="list") {
  constant(value="{\"resource_id\":\"pcs_logs000001\",\"resource_type\":\"PCS_CLUSTER\",\"event_timestamp\":\"")
  property(name="msg" position.from="2" position.to="30")
  constant(value="\",\"log_level\":\"info\",\"log_name\":\"slurmctld\",\"scheduler_type\":\"slurm\",\"scheduler_major_version\":\"26.05\",\"scheduler_patch_version\":\"5\",\"node_type\":\"controller_primary\",\"message\":\"")
  property(name="msg" format="json")
  constant(value="\\\\n\"}\n")
}
ruleset(name="split") {
  if $msg contains "] AUDIT_RPCS: [" then {
    action(type="omfile" file="%[1]s/audit.json" template="record" ioBufferSize="256k" asyncWriting="off" flushOnTXEnd="off")
  } else {
    action(type="omfile" file="%[1]s/ops.json" template="record" ioBufferSize="256k" asyncWriting="off" flushOnTXEnd="off")
  }
}
input(type="imfile" file="%[1]s/log/slurmctld.log" tag="slurmctld" ruleset="split")
`

func benchRsyslog(ctx context.Context, dir string, r *pipeRun) (version string, err error) {
	if err := os.MkdirAll(filepath.Join(dir, "log"), 0o755); err != nil { // what it watches has nothing else in it
		return "", err
	}
	fetch := exec.CommandContext(ctx, "apt-get", append([]string{"download"}, rsyslogPackages...)...)
	fetch.Dir = dir
	if out, err := fetch.CombinedOutput(); err != nil {
		return "", fmt.Errorf("fetch rsyslog: %w: %s", err, out)
	}
	packages, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil {
		return "", err
	}
	root := filepath.Join(dir, "root")
	for _, p := range packages {
		if out, err := exec.CommandContext(ctx, "dpkg", "-x", p, root).CombinedOutput(); err != nil {
			return "", fmt.Errorf("unpack rsyslog: %w: %s", err, out)
		}
		if name, rest, _ := strings.Cut(filepath.Base(p), "_"); name == "rsyslog" {
			version, _, _ = strings.Cut(rest, "_")
		}
	}
	modules, err := filepath.Glob(filepath.Join(root, "usr/lib/*/rsyslog"))
	if err != nil || len(modules) != 1 {
		return "", fmt.Errorf("find the modules of rsyslog: %v, %w", modules, err)
	}
	if err := writeLines(filepath.Join(dir, "log", "slurmctld.log"), logsLines); err != nil {
		return "", err
	}
	conf := filepath.Join(dir, "rsyslog.conf")
	if err := os.WriteFile(conf, fmt.Appendf(nil, rsyslogConf, dir), 0o600); err != nil {
		return "", err
	}
	daemon := exec.CommandContext(ctx, "taskset", "-c", "0", filepath.Join(root, "usr/sbin/rsyslogd"), "-n", "-f", conf, "-i", filepath.Join(dir, "pid"), "-M", modules[0])
	daemon.Env = append(os.Environ(), "LD_LIBRARY_PATH="+filepath.Dir(modules[0]))
	var said bytes.Buffer
	daemon.Stdout, daemon.Stderr = &said, &said
	began := time.Now()
	if err := daemon.Start(); err != nil {
		return "", err
	}
	ended := make(chan error, 1)
	go func() { ended <- daemon.Wait() }()
	last, err := untilWritten(ctx, dir, ended)
	if err != nil {
		_ = daemon.Process.Kill()
		return "", fmt.Errorf("%w: %s", err, said.Bytes())
	}
	if err := daemon.Process.Signal(syscall.SIGTERM); err != nil {
		return "", err
	}
	if err := <-ended; err != nil {
		return "", fmt.Errorf("end rsyslog: %w: %s", err, said.Bytes())
	}
	cpu := daemon.ProcessState.UserTime() + daemon.ProcessState.SystemTime()
	began = began.Add(time.Since(last)) // what was waited is not its time
	files := []string{filepath.Join(dir, "audit.json"), filepath.Join(dir, "ops.json")}
	zip, err := onOneCore(ctx, nil, append([]string{"gzip", "-1"}, files...)...)
	if err != nil {
		return "", err
	}
	r.of(logsLines, began, cpu+zip)
	return version, countLines(ctx, []string{files[0] + ".gz", files[1] + ".gz"}, logsLines)
}

// rsyslogRest is how long rsyslog must have written nothing to be taken as done.
const rsyslogRest = 3 * time.Second

// untilWritten waits until rsyslog wrote all that it can: its buffers are
// flushed at its end, so that the last of them is not waited for. It returns when
// the last was written.
func untilWritten(ctx context.Context, dir string, ended <-chan error) (last time.Time, err error) {
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	var before int64
	for limit := time.Now().Add(3 * time.Minute); time.Now().Before(limit); {
		select {
		case <-ctx.Done():
			return last, ctx.Err()
		case err := <-ended:
			return last, fmt.Errorf("rsyslog ended: %w", err)
		case <-ticker.C:
		}
		var size int64
		for _, name := range []string{"audit.json", "ops.json"} {
			if info, err := os.Stat(filepath.Join(dir, name)); err == nil {
				size += info.Size()
			}
		}
		if size > 0 && size == before {
			if time.Since(last) > rsyslogRest {
				return last, nil
			}
		} else {
			last = time.Now()
		}
		before = size
	}
	return last, errors.New("rsyslog does not come to an end")
}

// watchedGroups notes when records are in the log group.
type watchedGroups struct {
	delivery.Groups
	mu  sync.Mutex
	lag []float64 // ms
}

func (g *watchedGroups) Deliver(ctx context.Context, region, group, stream, from string, list []logs.Event) error {
	err := g.Groups.Deliver(ctx, region, group, stream, from, list)
	if err == nil {
		now := time.Now()
		g.mu.Lock()
		defer g.mu.Unlock()
		for _, e := range list {
			g.lag = append(g.lag, millis(now.Sub(time.UnixMilli(e.Time))))
		}
	}
	return err
}

// benchStorm writes a storm of audit records with few others between, and tells
// how long those took.
func benchStorm(ctx context.Context, dir string) (lag stats, perSecond int, err error) {
	w := &watchedGroups{}
	p, err := openPipe(ctx, dir, func(g delivery.Groups) delivery.Groups {
		w.Groups = g
		return w
	})
	if err != nil {
		return lag, 0, err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	f, err := os.Create(filepath.Join(dir, "log", "slurmctld.log"))
	if err != nil {
		return lag, 0, err
	}
	defer func() { _ = f.Close() }()
	const slice = 10 * time.Millisecond
	ticker := time.NewTicker(slice)
	defer ticker.Stop()
	began := time.Now()
	audits, ops := 0, 0
	out := bufio.NewWriterSize(f, 1<<20)
	for time.Since(began) < stormFor {
		<-ticker.C
		since := time.Since(began).Seconds()
		for audits < int(since*stormRate) {
			line(out, audits, true)
			audits++
		}
		for ops < int(since*stormOps) {
			line(out, ops, false)
			ops++
		}
		if err := out.Flush(); err != nil {
			return lag, 0, err
		}
	}
	perSecond = int(float64(audits) / time.Since(began).Seconds())
	for deadline := time.Now().Add(time.Minute); ; <-ticker.C {
		w.mu.Lock()
		n := len(w.lag)
		w.mu.Unlock()
		if n >= ops {
			break
		}
		if time.Now().After(deadline) {
			text, _ := json.Marshal(p.deliveries.Status())
			return lag, 0, fmt.Errorf("of %d operational records %d came: %s", ops, n, text)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return summarize(w.lag), perSecond, nil
}

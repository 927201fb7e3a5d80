package collect_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/openpcs/openpcs/internal/collect"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/journal"
	"github.com/openpcs/openpcs/internal/store"
	"github.com/openpcs/openpcs/internal/tail"
)

const clusterID = "pcs_0123456789"

// limit is how long anything may take that does not hang.
const limit = time.Minute

// site is a controller's folder of logs and a collector that reads it.
type site struct {
	t       testing.TB
	logs    string // on the controller
	dir     string // of the journals
	store   *store.Store
	c       *collect.Collector
	version string
	daemon  *os.File
	lines   int
}

// folder is a controller on this machine. It can fail.
type folder struct {
	tail.Dir
	mu     sync.Mutex
	broken func() error
}

func (f *folder) Users(context.Context) (map[uint32]string, error) {
	return map[uint32]string{0: "root", 1000: "ubuntu"}, nil
}

func (f *folder) ReadAt(ctx context.Context, file tail.File, p []byte, offset int64) (int, error) {
	f.mu.Lock()
	broken := f.broken
	f.mu.Unlock()
	if broken != nil {
		if err := broken(); err != nil {
			return 0, err
		}
	}
	return f.Dir.ReadAt(ctx, file, p, offset)
}

func newSite(t testing.TB, version string) *site {
	t.Helper()
	return newSiteAt(t, version, filepath.Join(t.TempDir(), "journals"))
}

func newSiteAt(t testing.TB, version, dir string) *site {
	t.Helper()
	s := &site{t: t, logs: t.TempDir(), dir: dir, version: version}
	var err error
	s.store, err = store.Open(filepath.Join(t.TempDir(), "state.db"))
	s.check(err)
	s.check(s.store.Update(t.Context(), func(tx *store.Tx) error {
		err := fleet.Instances.Put(tx, fleet.Instance{ID: "i-1", ClusterID: clusterID, NodeName: "node-group-1-1", Type: "t3.micro", State: fleet.Running, LaunchedAt: time.Date(2026, 11, 30, 19, 0, 0, 0, time.UTC)})
		return errors.Join(err, fleet.Clusters.Put(tx, fleet.Cluster{ID: clusterID, Name: "demo", Version: version, ControllerAddress: "10.0.0.1"}))
	}))
	t.Cleanup(func() {
		s.stop()
		_ = s.store.Close()
		if s.daemon != nil {
			_ = s.daemon.Close()
		}
	})
	return s
}

func (s *site) check(errs ...error) {
	s.t.Helper()
	if err := errors.Join(errs...); err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) start() {
	s.t.Helper()
	s.startWith(&folder{Dir: tail.Dir(s.logs)})
}

func (s *site) startWith(f collect.Controller) {
	s.t.Helper()
	s.c = collect.New(collect.Options{
		Store: s.store, Dir: s.dir, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Controller: func(fleet.Cluster) collect.Controller { return f },
	})
	s.check(s.c.Start(context.Background()))
}

func (s *site) stop() {
	if s.c != nil {
		s.c.Stop()
		s.c = nil
	}
}

func (s *site) path(name string) string { return filepath.Join(s.logs, name) }

// write appends to the daemon's log.
func (s *site) write(text string) {
	s.t.Helper()
	if s.daemon == nil {
		f, err := os.OpenFile(s.path("slurmctld.log"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		s.check(err)
		s.daemon = f
	}
	_, err := s.daemon.WriteString(text)
	s.check(err)
}

func (s *site) reopen() {
	s.t.Helper()
	s.check(s.daemon.Close())
	s.daemon = nil
}

// storm writes n lines, of which each tenth is no audit record.
func (s *site) storm(n int) {
	s.t.Helper()
	var b strings.Builder
	for range n {
		s.lines++
		stamp := fmt.Sprintf("[2026-11-30T19:36:%02d.%03d+00:00] ", s.lines/1000%60, s.lines%1000)
		if s.lines%10 == 0 {
			fmt.Fprintf(&b, "%sline %d\n", stamp, s.lines)
		} else {
			fmt.Fprintf(&b, "%sAUDIT_RPCS: [slurmctld-primary:6817(fd:18)] msg_type=REQUEST_PING uid=%d client=[10.0.1.142:42390] protocol=11264\n", stamp, s.lines)
		}
	}
	s.write(b.String())
}

// rotate renames the log, and those before it.
func (s *site) rotate() {
	s.t.Helper()
	for n := 6; n > 0; n-- {
		from := fmt.Sprintf("%s.%d", s.path("slurmctld.log"), n)
		if _, err := os.Stat(from); err == nil {
			s.check(os.Rename(from, fmt.Sprintf("%s.%d", s.path("slurmctld.log"), n+1)))
		}
	}
	s.check(os.Rename(s.path("slurmctld.log"), s.path("slurmctld.log.1")))
}

// entries waits until a journal of slurmctld has n records, and returns them.
func (s *site) entries(logType, name string, n int) (out []journal.Entry) {
	s.t.Helper()
	late := time.After(limit)
	for {
		appeared := s.c.Changed()
		var grown <-chan struct{}
		for _, j := range s.c.Journals(clusterID, logType) {
			if j.Key().LogName != name {
				continue
			}
			grown = j.Changed()
			for {
				got, err := j.Read(int64(len(out)), 10_000, 1<<20)
				s.check(err)
				if len(got) == 0 {
					break
				}
				out = append(out, got...)
			}
		}
		if len(out) >= n {
			return out
		}
		select {
		case <-appeared:
		case <-grown:
		case <-late:
			s.t.Fatalf("the journal %s of %s has %d records, want %d", logType, name, len(out), n)
		}
	}
}

func texts(entries []journal.Entry) string {
	var b strings.Builder
	for _, e := range entries {
		b.Write(e.Text)
	}
	return b.String()
}

const stamp = "[2026-11-30T19:36:17.660+00:00] "

const (
	audit = stamp + "AUDIT_RPCS: [slurmctld-primary:6817(fd:18)] msg_type=REQUEST_PING uid=0 client=[10.0.1.142:42390] protocol=11264\n"
	line  = stamp + "error: job AUDIT_RPCS: [x] msg_type=y\n  goes on\n"
)

func begun(release string) string {
	return stamp + "slurmctld version " + release + " started on cluster demo(1255)\n"
}

func TestAuditRecordsHaveALogOfTheirOwn(t *testing.T) {
	s := newSite(t, "26.05")
	s.write(line + begun("26.05.5") + audit + line + audit)
	s.start()
	plain := s.entries(collect.SchedulerLogs, "slurmctld", 3)
	if texts(plain) != line+begun("26.05.5")+line || plain[0].Level != "error" || plain[1].Level != "info" {
		t.Errorf("got %q", texts(plain))
	}
	audits := s.entries(collect.AuditLogs, "slurmctld", 2)
	if texts(audits) != audit+audit {
		t.Errorf("got %q", texts(audits))
	}
	for _, e := range append(plain, audits...) {
		if e.Release != "26.05.5" || e.Time != time.Date(2026, 11, 30, 19, 36, 17, 660e6, time.UTC).UnixMilli() {
			t.Errorf("%q has release %s and time %d", e.Text, e.Release, e.Time)
		}
	}
}

func TestBeforeThatTheyDoNot(t *testing.T) {
	s := newSite(t, "24.11")
	s.write(begun("24.11.5") + audit + line)
	s.start()
	if got := texts(s.entries(collect.SchedulerLogs, "slurmctld", 3)); got != begun("24.11.5")+audit+line {
		t.Errorf("got %q", got)
	}
	if all := s.c.Journals(clusterID, collect.AuditLogs); len(all) > 0 {
		t.Errorf("there is an audit log")
	}
	// An upgrade in the middle of the log.
	s.check(s.store.Update(t.Context(), func(tx *store.Tx) error {
		cl, err := fleet.Clusters.Get(tx, clusterID)
		cl.Version = "26.05"
		return errors.Join(err, fleet.Clusters.Put(tx, cl))
	}))
	s.write(audit + begun("26.05.5") + audit + line)
	s.entries(collect.AuditLogs, "slurmctld", 1)
	if got := texts(s.entries(collect.SchedulerLogs, "slurmctld", 6)); strings.Count(got, "AUDIT_RPCS: [slurmctld") != 2 {
		t.Errorf("got %q", got)
	}
}

// Users have words in the log: the names of partitions that are not there, with
// line ends. They must not get audit records out of the audit log, nor into the
// names of objects.
func TestANameIsNoRelease(t *testing.T) {
	s := newSite(t, "26.05")
	s.write(begun("26.05.5"))
	names := []string{
		stamp + "_get_job_parts: invalid partition specified: x] slurmctld version 24.11.9 started y\n",
		begun("24.11.9"), begun("26.05.x"), begun("26.05.../../.."),
	}
	for _, name := range names {
		s.write(name + audit)
	}
	s.start()
	entries := append(s.entries(collect.AuditLogs, "slurmctld", len(names)), s.entries(collect.SchedulerLogs, "slurmctld", 1+len(names))...)
	for _, e := range entries {
		if e.Release != "26.05.5" {
			t.Errorf("%q has release %s", e.Text, e.Release)
		}
	}
}

func TestCompletedJobs(t *testing.T) {
	s := newSite(t, "26.05")
	s.write(begun("26.05.5"))
	job := "JobId=1 UserId=root(0) GroupId=root(0) Name=a b JobState=COMPLETED Partition=queue-1 TimeLimit=UNLIMITED StartTime=2026-11-30T19:36:19 EndTime=2026-11-30T19:36:20 NodeList=node-group-1-[1-2] NodeCnt=2 ProcCnt=1 WorkDir=/root ReservationName= Tres=cpu=1,mem=972M,node=1,billing=1 Account= QOS= WcKey= Cluster=unknown SubmitTime=2026-11-30T19:36:19 EligibleTime=2026-11-30T19:36:19 DerivedExitCode=0:0 ExitCode=0:0 \n"
	s.check(os.WriteFile(s.path("jobcomp.log"), []byte(job+strings.Replace(job, "JobId=1", "JobId=2", 1)), 0o600))
	s.start()
	got := s.entries(collect.JobLogs, "jobcomp", 2)
	var fields struct {
		JobID string `json:"job_id"`
		Name  string
		Nodes []struct {
			Name string
			ID   string `json:"instance_id"`
			Type string `json:"instance_type"`
		} `json:"node_details"`
	}
	s.check(json.Unmarshal(got[1].Text, &fields))
	if fields.JobID != "2" || fields.Name != "a b" || len(fields.Nodes) != 2 || fields.Nodes[0].ID != "i-1" || fields.Nodes[0].Type != "t3.micro" || fields.Nodes[1].ID != "" {
		t.Errorf("got %s", got[1].Text)
	}
	if want := time.Date(2026, 11, 30, 19, 36, 20, 0, time.UTC).UnixMilli(); got[1].Time != want {
		t.Errorf("its time is %d, want %d", got[1].Time, want)
	}
}

// exact checks that each line of the storm is in one of the two logs, once.
func (s *site) exact() {
	s.t.Helper()
	plain := s.entries(collect.SchedulerLogs, "slurmctld", s.lines/10)
	audits := s.entries(collect.AuditLogs, "slurmctld", s.lines-s.lines/10)
	if len(plain) != s.lines/10 || len(audits) != s.lines-s.lines/10 {
		s.t.Fatalf("%d and %d records of %d lines", len(plain), len(audits), s.lines)
	}
	for k, e := range plain {
		if !bytes.HasSuffix(e.Text, fmt.Appendf(nil, " line %d\n", 10*(k+1))) {
			s.t.Fatalf("record %d is %q", k+1, e.Text)
		}
	}
	for k, e := range audits {
		if want := k + k/9 + 1; !bytes.Contains(e.Text, fmt.Appendf(nil, " uid=%d ", want)) {
			s.t.Fatalf("audit record %d is %q", k+1, e.Text)
		}
	}
}

// The reader is cut off at any call, and begins anew: what a kill -9 does, but for
// the disk. The log is rotated meanwhile.
func TestExactlyOnce(t *testing.T) {
	s := newSite(t, "26.05")
	f := &folder{Dir: tail.Dir(s.logs)}
	random := rand.New(rand.NewPCG(1, 2))
	f.broken = func() error {
		f.mu.Lock()
		defer f.mu.Unlock()
		if random.IntN(4) == 0 {
			return errors.New("cut off")
		}
		return nil
	}
	s.startWith(f)
	for n := range 12 {
		s.storm(7_000)
		if n%3 == 0 {
			s.rotate()
			s.storm(10)
			s.reopen()
		}
		if n%4 == 0 {
			s.stop()
			s.startWith(f)
		}
	}
	s.storm(10)
	f.mu.Lock()
	f.broken = nil
	f.mu.Unlock()
	s.exact()
}

// Of two journals one has a part that the other has not: so it is after a kill
// between the two.
func TestABlockThatOnlyOneJournalGot(t *testing.T) {
	s := newSite(t, "26.05")
	s.storm(1_000)
	s.start()
	s.exact()
	s.storm(2_000)
	s.exact()
	s.stop()
	s.cutAudit()
	s.storm(1_000)
	s.start()
	s.exact()
}

// cutAudit takes the last block of the audit log away, as if it had not come to
// the disk.
func (s *site) cutAudit() {
	s.t.Helper()
	files, err := filepath.Glob(filepath.Join(s.dir, clusterID, collect.AuditLogs, "slurmctld", "*.seg"))
	if err != nil || len(files) != 1 {
		s.t.Fatal(files, err)
	}
	info, err := os.Stat(files[0])
	s.check(err, os.Truncate(files[0], info.Size()-100))
}

// A journal that cannot be opened at first is not begun anew.
func TestAJournalThatCannotBeOpened(t *testing.T) {
	s := newSite(t, "26.05")
	s.storm(1_000)
	s.start()
	s.exact()
	s.storm(1_000)
	s.exact()
	s.stop()
	s.cutAudit() // it is behind the other one
	wrong := filepath.Join(s.dir, clusterID, collect.AuditLogs, "slurmctld", "00000000000000099999.seg")
	s.check(os.Mkdir(wrong, 0o700))
	s.storm(1_000)
	s.start()
	if n := len(s.c.Journals(clusterID, "")); n != 1 {
		t.Fatalf("%d journals are open, want the other one alone", n)
	}
	s.event("logs-not-kept")
	s.check(os.Remove(wrong))
	s.exact()
}

// L2: rotations while nobody read, across a restart.
func TestL2_RotationsWhileStopped(t *testing.T) {
	s := newSite(t, "26.05")
	s.storm(500)
	s.start()
	s.exact()
	s.stop()
	for range 3 {
		s.storm(300)
		s.rotate()
		s.storm(20)
		s.reopen()
		s.storm(200)
	}
	s.start()
	s.exact()
}

// L3: copied and truncated under load.
func TestL3_CopyAndTruncate(t *testing.T) {
	s := newSite(t, "26.05")
	s.start()
	for range 3 {
		s.storm(1_000)
		s.exact() // the reader has begun with the file
		s.storm(1_000)
		if err := os.Rename(s.path("slurmctld.log.1"), s.path("slurmctld.log.2")); !errors.Is(err, fs.ErrNotExist) {
			s.check(err)
		}
		text, err := os.ReadFile(s.path("slurmctld.log"))
		s.check(err, os.WriteFile(s.path("slurmctld.log.1"), text, 0o600), os.Truncate(s.path("slurmctld.log"), 0))
		s.storm(3_000)
	}
	s.exact()
}

// L6: the disk of the journals is full. It is said, nothing is lost, and it goes
// on when there is room.
func TestL6_NoSpace(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("a small file system cannot be mounted here: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	s := newSiteAt(t, "26.05", dir)
	ballast := filepath.Join(dir, "ballast")
	s.check(os.WriteFile(ballast, make([]byte, 800<<10), 0o600))
	s.start()
	s.storm(4_000) // half a megabyte
	s.event("logs-not-kept")
	s.check(os.Remove(ballast))
	s.exact()
	s.event("logs-kept")
}

// event waits for an event of the cluster.
func (s *site) event(kind string) {
	s.t.Helper()
	late, tick := time.After(limit), time.NewTicker(10*time.Millisecond)
	defer tick.Stop()
	for {
		found := false
		s.check(s.store.View(s.t.Context(), func(tx *store.Tx) error {
			events, err := tx.Events(clusterID, "", 100)
			for _, e := range events {
				found = found || e.Kind == kind
			}
			return err
		}))
		if found {
			return
		}
		select {
		case <-tick.C:
		case <-late:
			s.t.Fatalf("there is no event %s", kind)
		}
	}
}

// L14, the reading half: what is read of one log does not wait for another one's
// storm, and a storm of audit records does not hold an operational record up.
func TestL14_AuditStorm(t *testing.T) {
	s := newSite(t, "26.05")
	s.storm(50_000)
	s.check(os.WriteFile(s.path("slurmdbd.log"), []byte(stamp+"slurmdbd version 26.05.5 started\n"), 0o600))
	s.start()
	s.entries(collect.SchedulerLogs, "slurmdbd", 1)
	s.exact()
}

func TestWhatIsGoneIsSaid(t *testing.T) {
	s := newSite(t, "26.05")
	s.storm(100)
	s.start()
	s.exact()
	s.stop()
	s.storm(100)
	s.check(os.Remove(s.path("slurmctld.log")))
	s.reopen()
	s.storm(100)
	s.start()
	s.event("logs-lost")
	s.entries(collect.AuditLogs, "slurmctld", 180)
}

// A line without a time came after the record before it was kept. When that comes
// again, as the audit log is behind, it is still the record that it was.
func TestRecordsEndWhereTheyEnded(t *testing.T) {
	s := newSite(t, "26.05")
	s.write(begun("26.05.5") + audit)
	s.start()
	s.entries(collect.AuditLogs, "slurmctld", 1)
	s.write(stamp + "a message\n")
	s.entries(collect.SchedulerLogs, "slurmctld", 2)
	s.stop()
	s.write("what a library wrote\n" + audit)
	s.start()
	s.entries(collect.AuditLogs, "slurmctld", 2)
	if got := texts(s.entries(collect.SchedulerLogs, "slurmctld", 3)); got != begun("26.05.5")+stamp+"a message\n"+"what a library wrote\n" {
		t.Errorf("got %q", got)
	}
}

// What a daemon wrote until now is in the journal when Drain returns, and the
// journals outlive the cluster.
func TestDrainAndTheEndOfACluster(t *testing.T) {
	s := newSite(t, "26.05")
	s.start()
	s.storm(10)
	s.exact()
	s.storm(5_000)
	s.c.Drain(t.Context(), clusterID)
	if n := s.c.Journals(clusterID, collect.AuditLogs)[0].Last(); n != 4509 {
		t.Errorf("after Drain it has %d records", n)
	}
	s.check(s.store.Update(t.Context(), func(tx *store.Tx) error { return fleet.Clusters.Delete(tx, clusterID) }))
	s.stop()
	s.start()
	s.exact()
}

// From a file to the journals.
func BenchmarkCollect(b *testing.B) {
	s := newSite(b, "26.05")
	s.storm(b.N - b.N%10 + 10)
	b.ReportAllocs()
	b.ResetTimer()
	s.start()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for n := int64(0); n < int64(s.lines); <-tick.C {
		n = 0
		for _, j := range s.c.Journals(clusterID, "") {
			n += j.Last()
		}
	}
}

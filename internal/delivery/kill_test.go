package delivery

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/openpcs/openpcs/internal/collect"
	"github.com/openpcs/openpcs/internal/fault"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/logs"
	stored "github.com/openpcs/openpcs/internal/logs/events"
	"github.com/openpcs/openpcs/internal/s3"
	"github.com/openpcs/openpcs/internal/store"
	"github.com/openpcs/openpcs/internal/tail"
)

// linesEnv says how many lines go through the pipeline that is killed.
const linesEnv = "OPENPCS_PIPELINE_LINES"

// pipeline is what the process that is killed has to know.
type pipeline struct {
	Dir, Logs             string // folders of the state and of the controller's logs
	Endpoint, Credentials string // of S3
	CrashAt               string // the point at which it kills itself, see package fault
}

// onThisMachine is a controller whose logs are in a folder here.
type onThisMachine struct{ tail.Dir }

func (onThisMachine) Users(context.Context) (map[uint32]string, error) { return nil, nil }

// runPipeline is the part of the control plane from the daemons' log files to S3
// and the log groups, until it is killed.
func runPipeline() error {
	var p pipeline
	if err := json.Unmarshal([]byte(os.Getenv(pipelineEnv)), &p); err != nil {
		return err
	}
	st, err := store.Open(filepath.Join(p.Dir, "state.db"))
	if err != nil {
		return err
	}
	st.SetSeam(fault.KillAt(p.CrashAt))
	groups, err := logs.New(logs.Options{Store: st, Account: article.Account, Dir: p.Dir})
	if err != nil {
		return err
	}
	far, err := s3.NewEndpoint(p.Endpoint, testRegion, p.Credentials)
	if err != nil {
		return err
	}
	quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
	c := collect.New(collect.Options{
		Store: st, Dir: filepath.Join(p.Dir, "journals"), Log: quiet,
		Controller: func(fleet.Cluster) collect.Controller { return onThisMachine{tail.Dir(p.Logs)} },
	})
	if err := c.Start(context.Background()); err != nil {
		return err
	}
	feeds := &Feeds{Store: st, Journals: c.Journals}
	r := Start(Options{
		Store: st, Feeds: feeds.Of, Interval: time.Second, Keep: 24 * time.Hour, Dir: filepath.Join(p.Dir, "deliveries"), Logger: quiet,
		Destinations: &Destinations{Account: article.Account, Groups: groups, Buckets: s3.New(s3.Options{Account: article.Account, Region: testRegion, Endpoint: far})},
		Links: func(*store.Tx) ([]Link, error) {
			audit := with(article, func(l *Link) { l.ID, l.Cluster = "AUDIT", testCluster })
			return []Link{audit, with(audit, func(l *Link) {
				l.ID, l.LogType, l.Kind, l.Target, l.Format = "OPS", logs.SchedulerLogs, logs.ToLogs, testGroup, Plain
			})}, nil
		},
	})
	go func() { // tells whoever kills it how far it is
		for range time.Tick(200 * time.Millisecond) {
			for _, s := range r.Status() {
				fmt.Printf("%s %d %d\n", s.ID, s.Delivered, s.Dropped+s.Refused)
			}
		}
	}()
	select {}
}

// slurmctld writes a log, nine lines of ten of them audit records, and has it
// rotated by renaming, and by copying and truncating.
type slurmctld struct {
	dir         string
	audit, ops  int // written so far
	file        *os.File
	first       int // lines before this file
	generations int
	copied      int
}

func (d *slurmctld) path() string { return filepath.Join(d.dir, "slurmctld.log") }

func (d *slurmctld) write(n int) error {
	var err error
	if d.file == nil {
		if d.file, err = os.OpenFile(d.path(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err != nil {
			return err
		}
	}
	w := bufio.NewWriter(d.file)
	for range n {
		now := time.Now().UTC().Format("2006-01-02T15:04:05.000+00:00")
		if (d.audit+d.ops)%10 == 9 {
			d.ops++
			fmt.Fprintf(w, "[%s] sched: Allocate JobId=%d NodeList=node-1 #CPUs=1 Partition=AUDIT_RPCS: line %d\n", now, d.ops, d.ops)
		} else {
			d.audit++
			fmt.Fprintf(w, "[%s] AUDIT_RPCS: [slurmctld-primary:6817(fd:18)] msg_type=REQUEST_PING uid=0 client=[10.0.1.142:42390] protocol=11520 line %d\n", now, d.audit)
		}
	}
	return w.Flush()
}

// rotate is what logrotate does: it renames the log, or copies and truncates it,
// which must not be done to one of which nobody has seen the beginning.
func (d *slurmctld) rotate(seen int) error {
	for n := d.generations; n > 0; n-- {
		if err := os.Rename(fmt.Sprintf("%s.%d", d.path(), n), fmt.Sprintf("%s.%d", d.path(), n+1)); err != nil {
			return err
		}
	}
	d.generations++
	old := d.path() + ".1"
	seenIt := seen > d.first
	d.first = d.audit + d.ops
	if !seenIt {
		err := errors.Join(os.Rename(d.path(), old), d.file.Close())
		d.file = nil
		return err
	}
	d.copied++
	text, err := os.ReadFile(d.path())
	if err == nil {
		err = os.WriteFile(old, text, 0o600)
	}
	return errors.Join(err, d.file.Truncate(0))
}

// killable is the pipeline in a process of its own.
type killable struct {
	cmd *exec.Cmd
	out io.ReadCloser

	told chan struct{} // when it has told how far it is; closed at its end

	mu   sync.Mutex
	done map[string]int // delivered and lost records, by delivery
}

// sum is how many lines it has delivered.
func (k *killable) sum() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.done["AUDIT"] + k.done["OPS"]
}

func startPipeline(p pipeline) (*killable, error) {
	text, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	k := &killable{cmd: exec.Command(os.Args[0]), done: map[string]int{}, told: make(chan struct{}, 1)}
	k.cmd.Env = append(os.Environ(), pipelineEnv+"="+string(text))
	k.cmd.Stderr = os.Stderr
	k.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if k.out, err = k.cmd.StdoutPipe(); err == nil {
		err = k.cmd.Start()
	}
	if err != nil {
		return nil, err
	}
	go func() {
		defer close(k.told)
		for lines := bufio.NewScanner(k.out); lines.Scan(); {
			var id string
			var delivered, lost int
			if _, err := fmt.Sscan(lines.Text(), &id, &delivered, &lost); err == nil {
				k.mu.Lock()
				k.done[id] = delivered + lost
				k.mu.Unlock()
				select {
				case k.told <- struct{}{}:
				default:
				}
			}
		}
	}()
	return k, nil
}

func (k *killable) kill() {
	_ = k.cmd.Process.Kill() // it may have ended
	_ = k.cmd.Wait()
}

// TestKilled has a pipeline killed at random moments while its log is written
// and rotated, and S3 loses requests and answers: in the end each line is there,
// once.
func TestKilled(t *testing.T) {
	const kills = 10
	lines, err := strconv.Atoi(cmp.Or(os.Getenv(linesEnv), "60000"))
	if err != nil {
		t.Fatal(err)
	}
	b := newStorage(t)
	makeBucket(t, b.client, "audit")
	target, err := url.Parse(b.url)
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var running *killable // killed by the way to S3, now and then
	put := func() (lost, mute bool) {
		switch n := rand.IntN(8); {
		case n == 0:
			return true, false
		case n == 1:
			return false, true
		case n == 2: // it is killed when S3 has the object
			mu.Lock()
			defer mu.Unlock()
			if running != nil {
				defer running.cmd.Process.Kill() //nolint:errcheck // it may have ended
			}
			return false, true
		}
		return false, false
	}
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.ErrorLog = slog.NewLogLogger(slog.NewTextHandler(io.Discard, nil), slog.LevelDebug)
	way := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		(&flaky{proxy, put}).ServeHTTP(w, r)
	}))
	way.Config.ErrorLog = proxy.ErrorLog
	t.Cleanup(way.Close)

	p := pipeline{Dir: t.TempDir(), Logs: t.TempDir(), Endpoint: way.URL, Credentials: credentials(t, b.key)}
	prepare(t, p.Dir)
	d := &slurmctld{dir: p.Logs}
	began := time.Now()
	round := func(n int) {
		// Every other time it is when a destination has a batch, and the cursor does
		// not.
		fuse := time.Duration(50+rand.IntN(2500)) * time.Millisecond
		if p.CrashAt = ""; n%2 == 1 && n < kills {
			p.CrashAt, fuse = fmt.Sprintf("commit/delivery.keep/before#%d", 1+rand.IntN(6)), 4*time.Second
		}
		k, err := startPipeline(p)
		if err != nil {
			t.Fatal(err)
		}
		if n < kills && p.CrashAt == "" {
			mu.Lock()
			running = k
			mu.Unlock()
		}
		defer func() {
			mu.Lock()
			running = nil
			mu.Unlock()
			k.kill()
		}()
		part := lines / (kills + 1)
		if n == kills {
			part = lines - d.audit - d.ops
		} else {
			burning := time.AfterFunc(fuse, func() { _ = k.cmd.Process.Kill() })
			defer burning.Stop()
		}
		for part > 0 {
			some := min(part, 1+rand.IntN(lines/50))
			if err := d.write(some); err != nil {
				t.Fatal(err)
			}
			part -= some
			<-k.told // or it is dead
			if rand.IntN(3) == 0 {
				if err := d.rotate(k.sum()); err != nil {
					t.Fatal(err)
				}
			}
		}
		if n < kills {
			for range k.told { // until it is dead
			}
			return
		}
		// A machine may be slow, but it comes on.
		for have := -1; k.sum() < d.audit+d.ops; {
			if have == k.sum() {
				t.Fatalf("of %d audit records and %d others it has delivered %d, and no more", d.audit, d.ops, have)
			}
			have = k.sum()
			stuck := time.NewTimer(patience)
			for k.sum() == have {
				select {
				case _, runs := <-k.told:
					if !runs {
						t.Fatal("the pipeline ended")
					}
					continue
				case <-stuck.C:
				}
				break
			}
			stuck.Stop()
		}
	}
	for n := range kills + 1 {
		round(n)
	}
	took := time.Since(began)
	check(t, "audit records in S3", linesIn(t, b.client, "audit"), 1, d.audit)
	s := &site{t: t, events: openEvents(t, p.Dir)}
	check(t, "others in the log group", numbers(t, s.inGroup(testGroup)), 1, d.ops)
	t.Logf("%d lines, %d rotations, %d of them by copying, %d kills: %.1f s", lines, d.generations, d.copied, kills, took.Seconds())
}

func openEvents(t *testing.T, dir string) *stored.DB {
	t.Helper()
	db, err := stored.Open(filepath.Join(dir, "logs.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// prepare makes the state that the pipeline finds: a cluster and a log group.
func prepare(t *testing.T, dir string) {
	t.Helper()
	st, err := store.Open(filepath.Join(dir, "state.db"))
	if err != nil {
		t.Fatal(err)
	}
	err = st.Update(t.Context(), func(tx *store.Tx) error {
		return fleet.Clusters.Put(tx, fleet.Cluster{ID: testCluster, Name: "killed", Region: testRegion, Version: "26.05", ControllerAddress: "127.0.0.1"})
	})
	if err := errors.Join(err, st.Close()); err != nil {
		t.Fatal(err)
	}
	db, err := stored.Open(filepath.Join(dir, "logs.db"))
	if err == nil {
		err = errors.Join(db.CreateGroup(t.Context(), stored.Group{Region: testRegion, Name: testGroup, Class: "STANDARD"}), db.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
}

package control_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/openpcs/openpcs/internal/awsapi"
	"github.com/openpcs/openpcs/internal/compute"
	"github.com/openpcs/openpcs/internal/compute/fake"
	"github.com/openpcs/openpcs/internal/control"
	"github.com/openpcs/openpcs/internal/ec2"
	"github.com/openpcs/openpcs/internal/fault"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/fleet/fleettest"
	"github.com/openpcs/openpcs/internal/imds"
	"github.com/openpcs/openpcs/internal/pcs"
	"github.com/openpcs/openpcs/internal/secretsmanager"
	"github.com/openpcs/openpcs/internal/store"
)

const (
	region    = "ap-northeast-1"
	clusterID = "pcs_cluster001"
	imageID   = "ami-00000000000000001"
)

// site is a control plane on the fake provider, with one cluster whose
// slurmctld and agents are models. It lives in a bubble of testing/synctest:
// its clock runs when all of it waits.
type site struct {
	t        *testing.T
	dir      string
	store    *store.Store
	provider *killable
	ctld     *slurmctld

	control *control.Control
	stop    context.CancelFunc
	log     *lockedBuffer

	mu      sync.Mutex
	behave  string // of agents: "" for good, "hang" before and "mute" after the registration, "fail"
	agents  sync.WaitGroup
	ctx     context.Context
	cancel  context.CancelFunc
	hooks   int    // delivered calls so far, for their ids
	unheard string // kind of hooks that are taken, but whose answer is lost

	breaker int        // likewise
	seam    fault.Seam // of the control planes to come
	states  *fleettest.Recorder
}

// killable is the fake provider with a hook after each launch, so that a
// control plane can die between an effect and its record.
type killable struct {
	*fake.Provider
	mu          sync.Mutex
	afterLaunch func(id string)
	beforeStop  func(id string)
	lag         time.Duration // how long List lacks what is new
}

// List is the fake's, which may be behind.
func (k *killable) List(ctx context.Context) ([]compute.Instance, error) {
	all, err := k.Provider.List(ctx)
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.DeleteFunc(all, func(i compute.Instance) bool { return time.Since(i.CreatedAt) < k.lag }), err
}

func (k *killable) Launch(ctx context.Context, spec compute.Spec) error {
	err := k.Provider.Launch(ctx, spec)
	k.mu.Lock()
	after := k.afterLaunch
	k.mu.Unlock()
	if err == nil && after != nil {
		after(spec.ID)
	}
	return err
}

func (k *killable) Terminate(ctx context.Context, id string) error {
	err := k.Provider.Terminate(ctx, id)
	k.mu.Lock()
	after := k.beforeStop
	k.mu.Unlock()
	if after != nil {
		after(id)
	}
	return err
}

func (k *killable) onLaunch(f func(id string)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.afterLaunch = f
}

func (k *killable) onTerminate(f func(id string)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.beforeStop = f
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// options of a site.
type options struct {
	groups []fleet.Group // name, Min and Max are enough
	queues map[string][]string
	fake   fake.Options
	notYet bool // do not start the control plane
	// breaker is after how many failed starts a group's opens; 0: as usual, -1: never.
	breaker int
	dir     string
}

// run runs a test in a bubble with a site whose cluster has come up.
func run(t *testing.T, o options, f func(s *site)) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("the control plane gives a cluster's home to the user 1000, which only root may do")
	}
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, o)
		defer s.end() // after a failure too: nothing may be left in the bubble
		if !o.notYet {
			s.start()
			s.settle()
			if st := s.cluster().Status; st != fleet.Active {
				t.Fatalf("the cluster is %s\n%s", st, s.log)
			}
		}
		f(s)
		s.soundLog()
	})
}

func newSite(t *testing.T, o options) *site {
	s := &site{t: t, dir: cmp.Or(o.dir, t.TempDir()), log: &lockedBuffer{}, breaker: max(cmp.Or(o.breaker, fleet.DefaultBreaker), 0)}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	var err error
	if s.store, err = store.Open(filepath.Join(s.dir, "state.db")); err != nil {
		t.Fatal(err)
	}
	s.record()
	s.provider = &killable{Provider: fake.New(o.fake)}
	ref, err := s.provider.ImportImage(s.ctx, compute.Image{Name: "slurm"})
	if err != nil {
		t.Fatal(err)
	}
	pool := netip.MustParsePrefix("10.77.0.0/16")
	if err := ec2.EnsureRegion(s.ctx, s.store, region, pool); err != nil {
		t.Fatal(err)
	}
	now := time.Now().UTC()
	s.update(func(tx *store.Tx) error {
		subnets, err := fleet.Subnets.InRegion(tx, region)
		if err != nil {
			return err
		}
		if err := fleet.Images.Put(tx, fleet.Image{ID: imageID, Name: "slurm", Ref: ref, Owner: "amazon", Architecture: fleet.X86, Slurm: []string{"26.05"}, Agent: true, CreatedAt: now}); err != nil {
			return err
		}
		cl := fleet.Cluster{
			ID: clusterID, Region: region, Name: "demo", Status: fleet.Creating, CreatedAt: now, ModifiedAt: now, Version: "26.05", Size: fleet.Large,
			SubnetID: subnets[0].ID, VPCID: subnets[0].VPCID, IdleTime: 10 * time.Minute, ControllerID: "ctl-1", ControllerToken: "secret",
		}
		if cl.ControllerAddress, err = fleet.PickAddress(tx, cl.SubnetID); err != nil {
			return err
		}
		if cl.KeyARN, cl.KeyVersion, err = secretsmanager.Create(tx, region, "000000000000", "pcs!slurm-secret-"+cl.ID, base64.StdEncoding.EncodeToString([]byte("0123456789abcdef")), "pcs", now); err != nil {
			return err
		}
		if err := fleet.Clusters.Put(tx, cl); err != nil {
			return err
		}
		for _, g := range o.groups {
			if err := fleet.Groups.Put(tx, s.group(g, subnets[0].ID)); err != nil {
				return err
			}
		}
		for name, of := range o.queues {
			q := fleet.Queue{ID: "pcs_q" + name, ClusterID: clusterID, Region: region, Name: name, Status: fleet.Creating, CreatedAt: now, ModifiedAt: now}
			for _, g := range of {
				q.GroupIDs = append(q.GroupIDs, "pcs_"+g)
			}
			if err := fleet.Queues.Put(tx, q); err != nil {
				return err
			}
		}
		return nil
	})
	s.ctld = &slurmctld{site: s, nodes: map[string]*host{}, queued: map[string]bool{}}
	go s.watch()
	return s
}

// group fills what a test does not care about.
func (s *site) group(g fleet.Group, subnet string) fleet.Group {
	now := time.Now().UTC()
	g.ID, g.ClusterID, g.Region, g.Status = "pcs_"+g.Name, clusterID, region, fleet.Creating
	g.CreatedAt, g.ModifiedAt, g.SubnetIDs, g.PurchaseOption = now, now, append([]string{subnet}, g.SubnetIDs...), "ONDEMAND"
	if g.InstanceTypes == nil {
		g.InstanceTypes = []string{"t3.micro"}
	}
	g.Launch = fleet.Launch{ImageID: imageID, SecurityGroups: []string{"sg-1"}, Tags: map[string]string{"team": "x"}}
	return g
}

// start starts a control plane on the site's state file.
func (s *site) start() {
	s.t.Helper()
	ctx, stop := context.WithCancel(s.ctx)
	keys := &awsapi.Keys{Store: s.store, Account: "000000000000"}
	c := control.New(control.Options{
		Seam: s.seam, Faults: true, Breaker: s.breaker,
		Store: s.store, Provider: fault.Provider(s.provider, s.seam), Keys: keys, Account: "000000000000", StateDir: s.dir, PrefixBits: 16,
		Endpoint: "http://10.77.0.1:7300", Log: slog.New(slog.NewTextHandler(s.log, nil)), ResumeTimeout: resumeTimeout,
		Slurmctld: func(fleet.Cluster) control.Slurmctld { return s.ctld },
	})
	s.mu.Lock()
	s.control, s.stop = c, stop
	s.mu.Unlock()
	if err := c.Start(ctx); err != nil {
		s.t.Fatal(err)
	}
}

// plane is the control plane that runs now.
func (s *site) plane() *control.Control {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.control
}

// kill ends the control plane without a word: what is under way is cut.
func (s *site) kill() {
	s.mu.Lock()
	c, stop := s.control, s.stop
	s.control, s.stop = nil, nil
	s.mu.Unlock()
	if c == nil {
		return
	}
	stop()
	c.Stop()
}

// restart is a kill and a start that reads all from the state file.
func (s *site) restart() {
	s.t.Helper()
	s.kill()
	if err := s.store.Close(); err != nil {
		s.t.Fatal(err)
	}
	st, err := store.Open(filepath.Join(s.dir, "state.db"))
	if err != nil {
		s.t.Fatal(err)
	}
	s.mu.Lock()
	s.store = st
	s.mu.Unlock()
	s.record()
	s.start()
}

func (s *site) end() {
	s.kill()
	s.cancel()
	s.agents.Wait()
	synctest.Wait()
	s.states.Flush()
	_ = s.store.Close()
}

// settle lets a minute pass: enough for everything but long time-outs.
func (s *site) settle() {
	time.Sleep(time.Minute)
	synctest.Wait()
}

// wait lets time pass.
func (s *site) wait(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// within waits until something is so, and fails when it is not in time. It
// returns how long it took.
func (s *site) within(limit time.Duration, what string, f func() bool) time.Duration {
	s.t.Helper()
	began := time.Now()
	for !f() {
		if time.Since(began) > limit {
			s.t.Fatalf("not within %v: %s\nnodes: %s\n%s", limit, what, s.ctld, s.log)
		}
		s.wait(50 * time.Millisecond)
	}
	return time.Since(began)
}

func (s *site) update(f func(tx *store.Tx) error) {
	s.t.Helper()
	if err := s.store.Update(context.Background(), f); err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) view(f func(tx *store.Tx) error) {
	s.t.Helper()
	s.mu.Lock()
	st := s.store
	s.mu.Unlock()
	if err := st.View(context.Background(), f); err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) cluster() (c fleet.Cluster) {
	s.t.Helper()
	s.view(func(tx *store.Tx) (err error) {
		c, err = fleet.Clusters.Get(tx, clusterID)
		return err
	})
	return c
}

// instances are those of a node, in order of creation; of all for "".
func (s *site) instances(node string) (out []fleet.Instance) {
	s.t.Helper()
	s.view(func(tx *store.Tx) error {
		all, err := fleet.Instances.All(tx)
		for _, i := range all {
			if node == "" || i.NodeName == node {
				out = append(out, i)
			}
		}
		return err
	})
	return out
}

// live is the one instance of a node that is not terminated.
func (s *site) live(node string) fleet.Instance {
	s.t.Helper()
	var found []fleet.Instance
	for _, i := range s.instances(node) {
		if i.State.Live() {
			found = append(found, i)
		}
	}
	if len(found) > 1 {
		s.t.Fatalf("%s has %d instances", node, len(found))
	}
	if len(found) == 0 {
		return fleet.Instance{}
	}
	return found[0]
}

// brief tells of instances without their user data.
func brief(all []fleet.Instance) []string {
	var out []string
	for _, i := range all {
		out = append(out, fmt.Sprintf("%s %s %s ready %v (%s %s)", i.NodeName, i.ID, i.State, !i.ReadyAt.IsZero(), i.FailureCode, i.StateReason))
	}
	return out
}

func (s *site) node(name string) (n fleet.Node) {
	s.t.Helper()
	s.view(func(tx *store.Tx) (err error) {
		n, err = fleet.Nodes.Get(tx, fleet.NodeID(clusterID, name))
		if errors.Is(err, store.ErrNotFound) {
			return nil
		}
		return err
	})
	return n
}

// kinds are the events of a node.
func (s *site) kinds(node string) (out []string) {
	s.t.Helper()
	s.view(func(tx *store.Tx) error {
		events, err := tx.Events(clusterID, "node/"+node, 1000)
		for _, e := range events {
			out = append(out, e.Kind)
		}
		return err
	})
	return out
}

// present are the provider's node instances.
func (s *site) present() (out []string) {
	s.t.Helper()
	all, err := s.provider.List(context.Background())
	if err != nil {
		s.t.Fatal(err)
	}
	for _, i := range all {
		if i.Labels["kind"] == "node" {
			out = append(out, i.ID)
		}
	}
	return out
}

// hook is what the controller's agent sends on.
func (s *site) hook(h imds.Hook) error {
	c := s.plane()
	if c == nil {
		return errors.New("the control plane is away")
	}
	err := errors.New("the control plane died before it answered")
	alone(func() { err = c.Hook(context.Background(), clusterID, h) })
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil && s.unheard == h.Kind {
		s.unheard = ""
		return errors.New("the control plane died before it answered")
	}
	return err
}

// alone calls f where the control plane may die in it.
func alone(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	<-done
}

// label gives a call its id, which is the same at each delivery.
func (s *site) label(h *imds.Hook) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hooks++
	if f := reflect.ValueOf(h).Elem().FieldByName("ID"); f.IsValid() && f.Kind() == reflect.String {
		f.SetString(fmt.Sprintf("hook-%d", s.hooks))
	}
}

// act says how agents behave from now on.
func (s *site) act(how string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.behave = how
}

// watch is the agents: each instance that starts boots and registers.
func (s *site) watch() {
	for s.ctx.Err() == nil {
		_ = s.provider.Watch(s.ctx, func() {}, func(e compute.Event) {
			if e.Kind != compute.Started || !strings.HasPrefix(e.ID, "i-") {
				return
			}
			s.agents.Go(func() { s.boot(e.ID) })
		})
		pause(s.ctx, time.Millisecond)
	}
}

func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// boot is one instance's agent: it registers, waits for the resume, and
// starts slurmd. It tries again while the control plane is away.
func (s *site) boot(id string) {
	pause(s.ctx, 500*time.Millisecond)
	s.mu.Lock()
	how := s.behave
	s.mu.Unlock()
	retry := func(f func(c *control.Control) error) bool {
		for range 1000 {
			if _, ok := s.provider.Spec(id); !ok || s.ctx.Err() != nil {
				return false
			}
			done := false
			if c := s.plane(); c != nil {
				alone(func() { done = f(c) == nil })
			}
			if done {
				return true
			}
			pause(s.ctx, 100*time.Millisecond)
		}
		return false
	}
	if how == "hang" {
		return
	}
	if how == "fail" {
		retry(func(c *control.Control) error {
			return c.Report(context.Background(), id, imds.Report{Stage: "failed", Code: "BOOTSTRAP_FAILED", Message: "the script ended with 1", Log: "log"})
		})
		return
	}
	var i fleet.Instance
	ok := retry(func(c *control.Control) error {
		s.mu.Lock()
		st := s.store
		s.mu.Unlock()
		return st.Update(context.Background(), func(tx *store.Tx) (err error) {
			if i, err = fleet.Instances.Get(tx, id); err != nil {
				return err
			}
			if i.State != fleet.Pending && i.State != fleet.Running {
				return errors.New("denied")
			}
			g, err := fleet.Groups.Get(tx, i.GroupID)
			if err != nil {
				return err
			}
			return pcs.Registered(tx, i, g, "boot-1", time.Now().UTC())
		})
	})
	if !ok {
		return
	}
	if c := s.plane(); c != nil {
		c.Wake(clusterID)
	}
	ok = retry(func(c *control.Control) error {
		ctx, cancel := context.WithTimeout(s.ctx, 20*time.Second)
		defer cancel()
		return c.Go(ctx, i)
	})
	if ok && how != "mute" {
		s.ctld.registered(i.NodeName, id)
	}
}

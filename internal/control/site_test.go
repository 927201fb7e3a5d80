package control_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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

	"github.com/openpcs/openpcs/internal/agent"
	"github.com/openpcs/openpcs/internal/awsapi"
	"github.com/openpcs/openpcs/internal/compute"
	"github.com/openpcs/openpcs/internal/compute/fake"
	"github.com/openpcs/openpcs/internal/control"
	"github.com/openpcs/openpcs/internal/ec2"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/imds"
	"github.com/openpcs/openpcs/internal/secretsmanager"
	"github.com/openpcs/openpcs/internal/slurm"
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
	behave  string // of agents: "" for good, "hang", "fail"
	agents  sync.WaitGroup
	ctx     context.Context
	cancel  context.CancelFunc
	hooks   int    // delivered calls so far, for their ids
	unheard string // kind of hooks that are taken, but whose answer is lost
}

// killable is the fake provider with a hook after each launch, so that a
// control plane can die between an effect and its record.
type killable struct {
	*fake.Provider
	mu          sync.Mutex
	afterLaunch func(id string)
	beforeStop  func(id string)
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
}

// run runs a test in a bubble with a site whose cluster has come up.
func run(t *testing.T, o options, f func(s *site)) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("the control plane gives a cluster's home to the user 1000, which only root may do")
	}
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
	})
}

func newSite(t *testing.T, o options) *site {
	s := &site{t: t, dir: t.TempDir(), log: &lockedBuffer{}}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	var err error
	if s.store, err = store.Open(filepath.Join(s.dir, "state.db")); err != nil {
		t.Fatal(err)
	}
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
		if cl.KeyARN, cl.KeyVersion, err = secretsmanager.Create(tx, region, "000000000000", "pcs!slurm-secret-"+cl.ID, agent.EncodeKey([]byte("0123456789abcdef")), "pcs", now); err != nil {
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
	g.CreatedAt, g.ModifiedAt, g.SubnetIDs, g.PurchaseOption = now, now, []string{subnet}, "ONDEMAND"
	g.InstanceTypes = []string{"t3.micro"}
	g.Launch = fleet.Launch{ImageID: imageID, SecurityGroups: []string{"sg-1"}, Tags: map[string]string{"team": "x"}}
	return g
}

// start starts a control plane on the site's state file.
func (s *site) start() {
	s.t.Helper()
	ctx, stop := context.WithCancel(s.ctx)
	keys := &awsapi.Keys{Store: s.store, Account: "000000000000"}
	c := control.New(control.Options{
		Store: s.store, Provider: s.provider, Keys: keys, Account: "000000000000", StateDir: s.dir, PrefixBits: 16,
		Endpoint: "http://10.77.0.1:7300", Log: slog.New(slog.NewTextHandler(s.log, nil)), ResumeTimeout: 10 * time.Minute,
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
	s.start()
}

func (s *site) end() {
	s.kill()
	s.cancel()
	s.agents.Wait()
	synctest.Wait()
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
	err := c.Hook(context.Background(), clusterID, h)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil && s.unheard == h.Kind {
		s.unheard = ""
		return errors.New("the control plane died before it answered")
	}
	return err
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
			if c := s.plane(); c != nil && f(c) == nil {
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
			i.State, i.RegisteredAt = fleet.Running, time.Now().UTC()
			return fleet.Instances.Put(tx, i)
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
	if ok {
		s.ctld.registered(i.NodeName, id)
	}
}

// slurmctld is a model of the real one, as far as power saving goes.
type slurmctld struct {
	site *site

	mu         sync.Mutex
	nodes      map[string]*host
	parts      []string
	queued     map[string]bool // partitions with jobs
	conf       string
	configures int
	refuse     func(conf string) string // says no to a configuration
	commands   []string
	fail       func(argv []string) error // commands that do not work
	away       bool
}

// host is a node as slurmctld has it.
type host struct {
	base     string
	flags    []string
	reason   string
	instance string // whose slurmd registered last
	requeued int    // jobs that lost the node
	drained  bool
	since    time.Time
}

func (h *host) is(flag string) bool { return slices.Contains(h.flags, flag) }

func (h *host) set(flags ...string) {
	h.flags = append([]string{"CLOUD"}, flags...)
	if h.drained {
		h.flags = append(h.flags, "DRAIN")
	}
	h.since = time.Now()
}

var _ control.Slurmctld = (*slurmctld)(nil)

func (d *slurmctld) String() string {
	var out []string
	nodes, _ := d.Nodes(context.Background())
	for _, n := range nodes {
		out = append(out, fmt.Sprintf("%s %s %q", n.Name, strings.Join(n.State, "+"), n.Reason))
	}
	slices.Sort(out)
	return strings.Join(out, "; ")
}

// Configure implements control.Slurmctld.
func (d *slurmctld) Configure(_ context.Context, conf agent.Config) (string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.away {
		return "", errors.New("reach the controller's agent: connection refused")
	}
	text := string(conf.Files["slurm.conf"])
	if d.refuse != nil {
		if why := d.refuse(text); why != "" {
			return why, nil
		}
	}
	d.configures++
	d.conf = text
	have := map[string]bool{}
	d.parts = nil
	lines := bufio.NewScanner(strings.NewReader(text))
	for lines.Scan() {
		key, rest, _ := strings.Cut(lines.Text(), "=")
		value, _, _ := strings.Cut(rest, " ")
		switch key {
		case "PartitionName":
			d.parts = append(d.parts, value)
		case "NodeName":
			names, err := slurm.Expand(value)
			if err != nil {
				return err.Error(), nil
			}
			for _, n := range names {
				have[n] = true
				if d.nodes[n] == nil {
					h := &host{base: "IDLE"}
					h.set("POWERED_DOWN")
					d.nodes[n] = h
				}
			}
		}
	}
	for n := range d.nodes {
		if !have[n] {
			delete(d.nodes, n)
		}
	}
	return "", nil
}

// Nodes implements control.Slurmctld.
func (d *slurmctld) Nodes(context.Context) (map[string]slurm.Node, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.away {
		return nil, errors.New("reach the controller's agent: connection refused")
	}
	return d.states(), nil
}

func (d *slurmctld) states() map[string]slurm.Node {
	out := map[string]slurm.Node{}
	for name, h := range d.nodes {
		out[name] = slurm.Node{Name: name, State: append([]string{h.base}, h.flags...), Reason: h.reason}
	}
	return out
}

// push is the watcher of the controller's agent, 40 ms later.
func (d *slurmctld) push() {
	d.site.agents.Go(func() {
		pause(d.site.ctx, 40*time.Millisecond)
		d.mu.Lock()
		states, away := d.states(), d.away
		d.mu.Unlock()
		if c := d.site.plane(); c != nil && !away {
			c.NodeStates(clusterID, imds.Nodes{Full: true, Nodes: states})
		}
	})
}

// deliver is the agent that keeps trying while the control plane is away.
func (d *slurmctld) deliver(h imds.Hook) {
	d.site.label(&h)
	d.site.agents.Go(func() {
		for d.site.ctx.Err() == nil {
			err := d.site.hook(h)
			var refused *imds.RefusedError
			if err == nil || errors.As(err, &refused) {
				return
			}
			pause(d.site.ctx, 2*time.Second)
		}
	})
}

// Run implements control.Slurmctld.
func (d *slurmctld) Run(_ context.Context, argv ...string) (agent.Ran, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	defer d.push()
	d.commands = append(d.commands, strings.Join(argv, " "))
	if d.away {
		return agent.Ran{}, errors.New("reach the controller's agent: connection refused")
	}
	if d.fail != nil {
		if err := d.fail(argv); err != nil {
			return agent.Ran{Code: 1, Stderr: err.Error()}, nil
		}
	}
	switch argv[0] {
	case "squeue":
		part := argv[slices.Index(argv, "--partition")+1]
		if !slices.Contains(d.parts, part) {
			return agent.Ran{Code: 1, Stderr: "invalid partition"}, nil
		}
		if d.queued[part] {
			return agent.Ran{Stdout: "1\n"}, nil
		}
		return agent.Ran{}, nil
	case "scancel":
		delete(d.queued, argv[slices.Index(argv, "--partition")+1])
		return agent.Ran{}, nil
	case "scontrol":
	default:
		return agent.Ran{Code: 127, Stderr: argv[0] + ": not found"}, nil
	}
	set := map[string]string{}
	for _, a := range argv[2:] {
		k, v, _ := strings.Cut(a, "=")
		set[k] = v
	}
	names, err := slurm.Expand(set["NodeName"])
	if err != nil || len(names) == 0 {
		return agent.Ran{Code: 1, Stderr: "invalid node list"}, nil
	}
	var up, down []string
	for _, name := range names {
		h := d.nodes[name]
		if h == nil {
			return agent.Ran{Code: 1, Stderr: "slurm_update error: Invalid node name specified"}, nil
		}
		switch set["State"] {
		case "POWER_UP":
			if h.is("POWERED_DOWN") && h.base == "IDLE" {
				h.set("POWERING_UP", "NOT_RESPONDING")
				up = append(up, name)
			}
		case "DOWN":
			if set["Reason"] == "" {
				return agent.Ran{Code: 1, Stderr: "You must specify a reason when DOWNING a node."}, nil
			}
			if h.base == "ALLOCATED" {
				h.requeued++
			}
			h.base, h.reason = "DOWN", set["Reason"]
		case "POWER_DOWN", "POWER_DOWN_ASAP":
			if h.is("POWERED_DOWN") || h.is("POWERING_DOWN") {
				continue
			}
			if h.is("POWERING_UP") && h.base != "DOWN" {
				continue // ignored, as the real one does (R5)
			}
			if h.base == "ALLOCATED" {
				h.base = "IDLE"
			}
			h.set("POWERING_DOWN")
			down = append(down, name)
		case "RESUME":
			switch {
			case h.is("POWERING_DOWN"):
				h.base, h.reason, h.drained = "IDLE", "", false
				h.set("POWERED_DOWN")
			case h.base == "DOWN":
				h.base, h.reason = "IDLE", ""
			default:
				return agent.Ran{Code: 1, Stderr: "slurm_update error: Invalid node state specified"}, nil
			}
		default:
			return agent.Ran{Code: 1, Stderr: "invalid state " + set["State"]}, nil
		}
	}
	if len(up) > 0 {
		d.resume(up, nil)
	}
	if len(down) > 0 {
		d.suspended(down)
	}
	return agent.Ran{}, nil
}

// resume runs ResumeProgram at the next turn of the power saving loop.
func (d *slurmctld) resume(names []string, jobs map[int]string) {
	type job struct {
		ID    int    `json:"job_id"`
		Nodes string `json:"nodes_resume"`
	}
	file := struct {
		All  string `json:"all_nodes_resume"`
		Jobs []job  `json:"jobs"`
	}{All: slurm.Compress(names)}
	for id, nodes := range jobs {
		file.Jobs = append(file.Jobs, job{id, nodes})
	}
	doc, _ := json.Marshal(file)
	d.site.agents.Go(func() {
		pause(d.site.ctx, time.Second)
		d.deliver(imds.Hook{Kind: "resume", Nodes: slurm.Compress(names), ResumeFile: string(doc)})
		// ResumeTimeout.
		if !pause(d.site.ctx, 10*time.Minute) {
			return
		}
		var late []string
		d.mu.Lock()
		for _, n := range names {
			if h := d.nodes[n]; h != nil && h.is("POWERING_UP") && time.Since(h.since) >= 10*time.Minute {
				if h.base == "ALLOCATED" {
					h.requeued++
				}
				h.base, h.reason = "DOWN", "ResumeTimeout reached"
				h.set("POWERED_DOWN")
				late = append(late, n)
			}
		}
		d.mu.Unlock()
		if len(late) > 0 {
			d.push()
			d.deliver(imds.Hook{Kind: "resume-fail", Nodes: slurm.Compress(late)})
		}
	})
}

// suspended runs SuspendProgram, and SuspendTimeout passes. d.mu is held.
func (d *slurmctld) suspended(names []string) {
	d.site.agents.Go(func() {
		pause(d.site.ctx, 100*time.Millisecond)
		d.deliver(imds.Hook{Kind: "suspend", Nodes: slurm.Compress(names)})
		pause(d.site.ctx, 5*time.Second)
		d.mu.Lock()
		for _, n := range names {
			if h := d.nodes[n]; h != nil && h.is("POWERING_DOWN") && time.Since(h.since) >= 5*time.Second {
				h.set("POWERED_DOWN")
			}
		}
		d.mu.Unlock()
		d.push()
	})
}

// submit gives nodes to a job, one job each, as the scheduler does: the gate
// announces them at once, ResumeProgram comes with the next turn.
func (d *slurmctld) submit(early bool, names ...string) {
	d.site.t.Helper()
	jobs := map[int]string{}
	d.mu.Lock()
	for n, name := range names {
		h := d.nodes[name]
		if h == nil || h.base != "IDLE" || !h.is("POWERED_DOWN") || h.drained {
			d.mu.Unlock()
			d.site.t.Fatalf("the job cannot have %s: %s", name, d)
		}
		h.base = "ALLOCATED"
		h.set("POWERING_UP", "NOT_RESPONDING")
		jobs[n+1] = name
	}
	d.mu.Unlock()
	d.push()
	if early {
		d.deliver(imds.Hook{Kind: "expect", Nodes: slurm.Compress(names)})
	}
	d.resume(names, jobs)
}

// suspend powers idle nodes down.
func (d *slurmctld) suspend(names ...string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, n := range names {
		d.nodes[n].base = "IDLE"
		d.nodes[n].set("POWERING_DOWN")
	}
	d.suspended(names)
	d.push()
}

// registered is a slurmd that says hello.
func (d *slurmctld) registered(name, instance string) {
	d.mu.Lock()
	if h := d.nodes[name]; h != nil && h.is("POWERING_UP") && h.base != "DOWN" {
		h.set()
		h.instance = instance
	}
	d.mu.Unlock()
	d.push()
}

func (d *slurmctld) state(name string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	h := d.nodes[name]
	if h == nil {
		return "gone"
	}
	return strings.Join(append([]string{h.base}, h.flags...), "+")
}

func (d *slurmctld) reason(name string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.nodes[name].reason
}

func (d *slurmctld) lost(name string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.nodes[name].requeued
}

func (d *slurmctld) ran(part string) (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range d.commands {
		if strings.Contains(c, part) {
			n++
		}
	}
	return n
}

func (d *slurmctld) with(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f()
}

var _ io.Writer = (*lockedBuffer)(nil)

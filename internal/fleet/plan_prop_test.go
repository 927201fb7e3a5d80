package fleet_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/openpcs/openpcs/internal/condition"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/slurm"
)

// checkSafe fails for a plan that could do harm, whatever led to the state.
func checkSafe(t interface {
	Helper()
	Fatalf(string, ...any)
}, o fleet.Observed, actions []fleet.Action,
) {
	t.Helper()
	groups := map[string]fleet.Group{}
	for _, g := range o.Groups {
		groups[g.ID] = g
	}
	instances := map[string]fleet.Instance{}
	live := map[string]int{}
	tries := map[string]int{} // launches under way, by group and type
	starting := map[string]int{}
	for _, i := range o.Instances {
		instances[i.ID] = i
		if (i.State == fleet.Pending || i.State == fleet.Running) && i.ReadyAt.IsZero() {
			starting[i.GroupID]++
		}
		if i.State == fleet.Pending && i.StartedAt.IsZero() {
			tries[i.GroupID+i.Type]++
		}
		if i.State.Live() {
			live[i.NodeName]++
		}
	}
	seen := map[string]bool{}
	for _, a := range actions {
		key := string(a.Kind) + " " + a.Node + " " + a.Instance
		if seen[key] {
			t.Fatalf("%s comes twice", key)
		}
		seen[key] = true
		g, node, state := groups[a.GroupID], o.Nodes[a.Node], o.Slurm[a.Node]
		i := instances[a.Instance]
		drained := state.HasAny("DRAIN")
		switch a.Kind {
		case fleet.Assign:
			if live[a.Node] > 0 {
				t.Fatalf("a second instance is assigned to %s", a.Node)
			}
			if b := g.Breaker; b.Open && (starting[g.ID] > 0 || rests(o.Now, b.NotBefore)) {
				t.Fatalf("%d instances of a group start, and another is assigned under an open breaker: %+v", starting[g.ID], b)
			}
			starting[g.ID]++
			for _, p := range g.Refused {
				if p.Type != a.Pool.Type || p.SubnetID != a.Pool.SubnetID {
					continue
				}
				if rests(o.Now, p.NotBefore) {
					t.Fatalf("an instance is assigned to a pool that rests: %+v", p)
				}
				if tries[g.ID+p.Type]++; tries[g.ID+p.Type] > 1 {
					t.Fatalf("a pool that refused is tried with two launches at once: %+v", p)
				}
			}
			live[a.Node]++
			if !node.Want || rests(o.Now, node.NotBefore) {
				t.Fatalf("an instance is assigned to %s, which is not wanted or rests: %+v", a.Node, node)
			}
			if n := g.NodeIndex(a.Node); n < 1 || n > g.Max || (g.Status != fleet.Active && g.Status != fleet.Updating && g.Status != fleet.UpdateFailed) {
				t.Fatalf("an instance is assigned to %s of the group %+v", a.Node, g)
			}
		case fleet.Look:
		case fleet.Retire, fleet.Fail:
			own := groups[i.GroupID]
			index := own.NodeIndex(i.NodeName)
			healthy := !i.RegisteredAt.IsZero() || i.StartedAt.IsZero() || o.Now.Sub(i.StartedAt) < fleet.BootstrapTimeout
			if at := o.Slurm[i.NodeName]; a.Kind == fleet.Fail && at.Has("DOWN", "POWERED_DOWN") && i.ReadyAt.IsZero() && o.Nodes[i.NodeName].Down == "" && confirmed(o, i.NodeName) {
				healthy = false // Slurm gave it up
			}
			if at := o.Slurm[i.NodeName]; at.Has("INVALID_REG") && i.ReadyAt.IsZero() && !at.HasAny("ALLOCATED", "MIXED") {
				healthy = false
			}
			if a.Code == condition.GroupUpdated && i.GroupRevision != own.Revision && (own.Status == fleet.Active || own.Status == fleet.UpdateFailed) && i.ReleasedAt.IsZero() && i.ReadyAt.IsZero() {
				healthy = false // from before the update, and nothing can run there
			}
			if o.Nodes[i.NodeName].Want && healthy && own.ID != "" && own.Status != fleet.Deleting && index >= 1 && index <= own.Max {
				t.Fatalf("%s of %s, whose node is wanted: %+v", a.Kind, a.Instance, i)
			}
			if i.State != fleet.Pending && i.State != fleet.Running {
				t.Fatalf("%s of an instance that is %s", a.Kind, i.State)
			}
			if a.Reason == "" || a.Code == "" {
				t.Fatalf("%s without a reason", a.Kind)
			}
		case fleet.Stop:
			if i.State != fleet.ShuttingDown {
				t.Fatalf("an instance that is %s is stopped", i.State)
			}
		case fleet.Start:
			if i.State != fleet.Pending || !i.StartedAt.IsZero() || !o.Nodes[i.NodeName].Want {
				t.Fatalf("an instance is started: %+v", i)
			}
		case fleet.Forget:
			if i.State != fleet.Terminated || o.Now.Sub(i.TerminatedAt) < fleet.KeepTerminated {
				t.Fatalf("an instance is forgotten: %+v", i)
			}
		case fleet.Recover:
			if drained && !strings.HasPrefix(state.Reason, "Low RealMemory") && !strings.HasPrefix(state.Reason, "Backing Instance") {
				t.Fatalf("a drained node is recovered: %+v", state)
			}
			if live[a.Node] > 0 {
				t.Fatalf("a node with an instance is recovered: %s", a.Node)
			}
			if state.Has("DOWN") && strings.HasPrefix(state.Reason, "person") {
				t.Fatalf("a node that a person set down is recovered: %+v", state)
			}
		case fleet.SetDown:
			// A drained node goes down as well when its instance is lost: its
			// jobs must be requeued. But only then.
			// So does a node that Slurm has up for long with nothing behind it.
			empty := confirmed(o, a.Node) && live[a.Node] == 0 && !node.Want && o.Now.Sub(o.Since[a.Node]) >= fleet.LostHook &&
				!state.HasAny("POWERED_DOWN", "POWERING_UP", "POWERING_DOWN", "POWER_DOWN", "DOWN")
			hung := i.ID != "" && !i.ReadyAt.IsZero() && state.Has("NOT_RESPONDING") && !state.Has("DOWN") &&
				o.Now.Sub(o.Since[a.Node]) >= fleet.SlurmdTimeout && !o.Confirmed.Before(o.Since[a.Node].Add(fleet.SlurmdTimeout))
			if node.Down == "" && !empty && !hung {
				t.Fatalf("a node is set down that has nothing against it: %+v, %+v", node, state)
			}
		case fleet.PowerUp:
			if drained || state.HasAny("DOWN", "POWER_UP", "POWERING_UP") || live[a.Node] > 0 || g.NodeIndex(a.Node) > g.Min {
				t.Fatalf("a node is powered up: %+v, %d instances, minimum %d", state, live[a.Node], g.Min)
			}
		case fleet.Replace:
			if state.Has("INVALID_REG") && drained && strings.HasPrefix(state.Reason, "Low RealMemory") {
				break // Slurm drained it, and lets its jobs end
			}
			if drained || !state.Ready() || (i.GroupRevision == g.Revision && i.Failure == "") {
				t.Fatalf("a node is replaced: %+v, %+v", state, i)
			}
		case fleet.PowerDown:
			// It ends in the loss of the instance, so it is for what Slurm took
			// out of service, and no person.
			if drained || !state.Has("DOWN") || strings.HasPrefix(state.Reason, "person") || state.Reason == "" {
				t.Fatalf("a node is powered down: %+v", state)
			}
		case fleet.Reclaim:
			if i.ReclaimAt.IsZero() || o.Now.Before(i.ReclaimAt) || !i.State.Live() {
				t.Fatalf("an instance is reclaimed: %+v", i)
			}
		case fleet.Lack:
			if _, held := g.Held(o.Now); !held || !node.Want || live[a.Node] > 0 || a.Hold.Reason == "" || a.Hold.EC2Code == "" {
				t.Fatalf("a node lacks capacity: %+v, %+v", node, g)
			}
		case fleet.HoldOut:
			// It takes no job from anyone: nothing runs on a node that is off.
			if _, held := g.Held(o.Now); !held || node.Want || live[a.Node] > 0 || drained || !state.Has("IDLE", "POWERED_DOWN") {
				t.Fatalf("a node is held out: %+v, %+v", state, g)
			}
		case fleet.MarkUp:
			if !state.Ready() || i.RegisteredAt.IsZero() {
				t.Fatalf("a node is marked up: %+v", state)
			}
		case fleet.GiveUp:
			early := node.Early && (o.Now.Sub(node.WantAt) >= fleet.EarlyLimit && !o.Confirmed.Before(node.WantAt.Add(fleet.EarlyLimit)) || node.WantAt.After(o.Now))
			lost := confirmed(o, a.Node) && node.Want && state.Has("POWERED_DOWN") && !state.Has("POWERING_UP") && silent(o.Now, node) && o.Now.Sub(o.Since[a.Node]) >= fleet.LostHook
			beyond := node.Index > g.Max && (node.Want || node.Early || node.Down != "")
			if beyond {
				break
			}
			if (!early || (state.Has("POWERING_UP") && !state.Has("DOWN"))) && !lost {
				t.Fatalf("a node is given up: %+v, %+v", node, state)
			}
		case fleet.Adopt:
			early := node.Early && (o.Now.Sub(node.WantAt) >= fleet.EarlyLimit || node.WantAt.After(o.Now))
			if early && state.Has("POWERING_UP") && !state.Has("DOWN") {
				break
			}
			if node.Want || live[a.Node] > 0 || !state.Has("POWERING_UP") || state.Has("DOWN") || !silent(o.Now, node) || o.Now.Sub(o.Since[a.Node]) < fleet.LostHook || !confirmed(o, a.Node) {
				t.Fatalf("a node is adopted: %+v, %+v, %d instances", node, state, live[a.Node])
			}
		default:
			t.Fatalf("unknown action %q", a.Kind)
		}
	}
}

// silent reports whether no program of slurmctld spoke of a node lately; what
// is later than now is from before the clock was set back.
func silent(now time.Time, n fleet.Node) bool {
	return now.Sub(n.ChangedAt) >= fleet.LostHook || n.ChangedAt.After(now)
}

// confirmed reports whether slurmctld has told of the node since it has been
// in its state for long.
func confirmed(o fleet.Observed, name string) bool {
	return !o.Confirmed.Before(o.Since[name].Add(fleet.LostHook))
}

// rests reports whether a rest is under way; none lasts longer than ten
// minutes, but for the clock.
func rests(now, until time.Time) bool { return now.Before(until) && until.Sub(now) <= 10*time.Minute }

// anything draws a state of the world, reachable or not.
func anything(t *rapid.T) fleet.Observed {
	past := func(label string) time.Time {
		switch rapid.IntRange(0, 3).Draw(t, label) {
		case 0:
			return time.Time{}
		case 1:
			return noon.Add(-time.Duration(rapid.IntRange(0, 20).Draw(t, label+" seconds")) * time.Second)
		default:
			return noon.Add(-time.Duration(rapid.IntRange(0, 80).Draw(t, label+" minutes")) * time.Minute)
		}
	}
	o := fleet.Observed{Now: noon, Nodes: map[string]fleet.Node{}, Slurm: map[string]slurm.Node{}, Since: map[string]time.Time{}, Confirmed: past("confirmed")}
	if rapid.IntRange(0, 9).Draw(t, "slurmctld is away") == 0 {
		o.Slurm = nil
	}
	var names []string
	for _, name := range []string{"a", "a-b", "a-1"} {
		if rapid.IntRange(0, 4).Draw(t, "no group "+name) == 0 {
			continue
		}
		limit := rapid.IntRange(0, 3).Draw(t, "max")
		g := fleet.Group{
			ID: "pcs_" + name, Name: name, Max: limit, Min: rapid.IntRange(0, limit).Draw(t, "min"), Revision: rapid.IntRange(0, 1).Draw(t, "revision"),
			InstanceTypes: []string{"big", "small"}, SubnetIDs: []string{"subnet-1"},
			Status: rapid.SampledFrom([]fleet.Status{fleet.Active, fleet.Active, fleet.Updating, fleet.Deleting, fleet.Creating, fleet.UpdateFailed, fleet.CreateFailed}).Draw(t, "status"),
		}
		if rapid.IntRange(0, 3).Draw(t, "breaker") == 0 {
			g.Breaker = fleet.Breaker{
				Failures: 5, Open: rapid.Bool().Draw(t, "open"), Code: "BOOTSTRAP_FAILED", Text: "it ended with 1", Reason: "Backing Instance Failed To Bootstrap: i-9",
				NotBefore: noon.Add(time.Duration(rapid.IntRange(-1, 1).Draw(t, "breaker rests")) * time.Minute),
			}
		}
		for _, typ := range g.InstanceTypes {
			if rapid.IntRange(0, 2).Draw(t, "refused "+typ) == 0 {
				g.Refused = append(g.Refused, fleet.Pool{
					Type: typ, SubnetID: "subnet-1", Code: "Full", Refusals: 1,
					NotBefore: noon.Add(time.Duration(rapid.IntRange(-1, 1).Draw(t, "rests")) * time.Minute),
				})
			}
		}
		o.Groups = append(o.Groups, g)
		for n := range 4 {
			names = append(names, g.NodeName(n+1))
		}
	}
	names = append(names, "a-1", "gone-1")
	for _, name := range names {
		if rapid.Bool().Draw(t, "node "+name) {
			o.Nodes[name] = fleet.Node{
				Name: name, Want: rapid.Bool().Draw(t, "want"), WantAt: past("wantAt"), ChangedAt: past("changedAt"), Early: rapid.IntRange(0, 3).Draw(t, "early") == 0,
				NotBefore: rapid.SampledFrom([]time.Time{{}, {}, noon.Add(time.Minute), noon.Add(-time.Minute)}).Draw(t, "notBefore"),
				Down:      rapid.SampledFrom([]string{"", "", "", "pcs: x"}).Draw(t, "down"), Attempts: rapid.IntRange(0, 9).Draw(t, "attempts"),
			}
		}
		if o.Slurm != nil && rapid.Bool().Draw(t, "slurm "+name) {
			state := []string{rapid.SampledFrom([]string{"IDLE", "ALLOCATED", "MIXED", "DOWN", "UNKNOWN"}).Draw(t, "base"), "CLOUD"}
			for _, flag := range []string{"DRAIN", "INVALID_REG", "POWERED_DOWN", "POWERING_UP", "POWERING_DOWN", "POWER_DOWN", "NOT_RESPONDING", "NEVER_HEARD_OF"} {
				if rapid.IntRange(0, 4).Draw(t, flag) == 0 {
					state = append(state, flag)
				}
			}
			o.Since[name] = past("since")
			o.Slurm[name] = slurm.Node{Name: name, State: state, Reason: rapid.SampledFrom([]string{"", "person says so", "pcs: x", "Not responding", "Low RealMemory (reported:1 < 100.00% of configured:2)"}).Draw(t, "reason")}
		}
	}
	for n := range rapid.IntRange(0, 8).Draw(t, "instances") {
		name := rapid.SampledFrom(append(names, "")).Draw(t, "backs")
		i := fleet.Instance{
			ID: fmt.Sprintf("i-%d", n), NodeName: name, Type: rapid.SampledFrom([]string{"big", "small"}).Draw(t, "type"), SubnetID: "subnet-1", GroupRevision: rapid.IntRange(0, 1).Draw(t, "of revision"),
			State:        rapid.SampledFrom([]fleet.InstanceState{fleet.Pending, fleet.Running, fleet.Running, fleet.ShuttingDown, fleet.Terminated}).Draw(t, "state"),
			TerminatedAt: past("terminatedAt"), StartedAt: past("startedAt"), ReclaimAt: rapid.SampledFrom([]time.Time{{}, {}, {}, noon.Add(-time.Second), noon.Add(time.Second)}).Draw(t, "reclaimAt"), RegisteredAt: past("registeredAt"), ReleasedAt: past("releasedAt"), ReadyAt: past("readyAt"),
		}
		if i.State == fleet.Running && i.RegisteredAt.IsZero() && i.StartedAt.IsZero() {
			i.StartedAt = noon.Add(-time.Minute) // one of the two made it running
		}
		if i.State == fleet.Running && !i.RegisteredAt.IsZero() && rapid.IntRange(0, 4).Draw(t, "a script failed") == 0 {
			i.FailureCode, i.Failure = "LIFECYCLE_SCRIPT_FAILED", "the script failed"
		}
		if at := strings.LastIndexByte(name, '-'); at > 0 {
			i.GroupID = "pcs_" + name[:at]
		}
		o.Instances = append(o.Instances, i)
	}
	return o
}

func TestPlanIsSafeInAnyState(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		o := anything(t)
		actions, next := fleet.Plan(o)
		checkSafe(t, o, actions)
		if !next.IsZero() && !next.After(o.Now) {
			t.Fatalf("looks again at %v, which is not later than now: the loop would spin", next)
		}
		again, nextAgain := fleet.Plan(o)
		if !slices.Equal(again, actions) || !nextAgain.Equal(next) {
			t.Fatalf("the same state gives another plan:\n%s\n%s", text(actions), text(again))
		}
	})
}

// world is a cluster in small: the state file, an applier that does at once
// what a plan says, and a Slurm that answers as slurmctld does.
type world struct {
	o       fleet.Observed
	slurm   map[string]*host
	serial  int
	starts  int // launches tried
	broken  bool
	full    map[string]bool // types without capacity
	hanging bool            // agents do not register
	away    bool            // slurmctld says nothing, nor calls
	deaf    bool            // calls of its ResumeFailProgram are lost
	breaker int             // failed starts in a row that open a group's
	watcher                 // of the nodes' states
	t       interface {
		Helper()
		Fatalf(string, ...any)
	}
}

// host is slurmctld's idea of a node.
type host struct {
	power  string // down, up, rising, falling
	since  time.Time
	down   bool
	drain  bool
	reason string
	busy   bool // has a job
	// invalid says that it registered with less than it should have.
	invalid bool
}

const (
	suspendTimeout = 5 * time.Second
	resumeTimeout  = 30 * time.Minute
)

func newWorld(t interface {
	Helper()
	Fatalf(string, ...any)
}, groups ...fleet.Group,
) *world {
	for i := range groups {
		groups[i].InstanceTypes, groups[i].SubnetIDs = []string{"big", "small"}, []string{"subnet-1"}
	}
	w := &world{t: t, slurm: map[string]*host{}, full: map[string]bool{}}
	w.o = fleet.Observed{Now: noon, Groups: groups, Nodes: map[string]fleet.Node{}, Since: map[string]time.Time{}}
	w.configure()
	w.look(fleet.ByAPI)
	return w
}

// configure gives slurmctld the nodes of the groups.
func (w *world) configure() {
	have := map[string]bool{}
	for _, g := range w.o.Groups {
		for n := 1; n <= g.Max; n++ {
			name := g.NodeName(n)
			have[name] = true
			if w.slurm[name] == nil {
				w.slurm[name] = &host{power: "down"}
			}
		}
	}
	for name := range w.slurm {
		if !have[name] {
			delete(w.slurm, name)
		}
	}
}

func (w *world) observe() fleet.Observed {
	if w.away {
		return w.o // with what it said last
	}
	before := w.o.Slurm
	w.o.Slurm = map[string]slurm.Node{}
	for name, h := range w.slurm {
		state := []string{"IDLE", "CLOUD"}
		switch {
		case h.down:
			state[0] = "DOWN"
		case h.busy:
			state[0] = "ALLOCATED"
		}
		if h.drain {
			state = append(state, "DRAIN")
		}
		if h.invalid {
			state = append(state, "INVALID_REG")
		}
		switch h.power {
		case "down":
			state = append(state, "POWERED_DOWN")
		case "rising":
			state = append(state, "POWERING_UP", "NOT_RESPONDING")
		case "falling":
			state = append(state, "POWERING_DOWN")
		}
		if !slices.Equal(before[name].State, state) {
			w.o.Since[name] = w.o.Now
		}
		w.o.Slurm[name] = slurm.Node{Name: name, State: state, Reason: h.reason}
	}
	return w.o
}

func (w *world) node(name string) fleet.Node {
	n := w.o.Nodes[name]
	n.Name = name
	for _, g := range w.o.Groups {
		if index := g.NodeIndex(name); index > 0 {
			n.GroupID, n.Index = g.ID, index
		}
	}
	return n
}

func (w *world) find(id string) *fleet.Instance {
	for i := range w.o.Instances {
		if w.o.Instances[i].ID == id {
			return &w.o.Instances[i]
		}
	}
	w.t.Fatalf("no instance %s", id)
	return nil
}

func (w *world) live(node string) *fleet.Instance {
	for i := range w.o.Instances {
		if w.o.Instances[i].NodeName == node && w.o.Instances[i].State.Live() {
			return &w.o.Instances[i]
		}
	}
	return nil
}

// resume is slurmctld's ResumeProgram for a node.
func (w *world) resume(name string) {
	defer w.look(fleet.BySlurm)
	h := w.slurm[name]
	h.power, h.since = "rising", w.o.Now
	n := w.node(name)
	n.Want, n.WantAt, n.ChangedAt, n.Down, n.Early = true, w.o.Now, w.o.Now, "", false
	w.o.Nodes[name] = n
	if i := w.live(name); i != nil && i.State == fleet.Running && !i.ReadyAt.IsZero() {
		i.State = fleet.ShuttingDown
	}
}

// suspend is its SuspendProgram.
func (w *world) suspend(name string) {
	defer w.look(fleet.BySlurm)
	h := w.slurm[name]
	h.power, h.since, h.busy, h.invalid = "falling", w.o.Now, false, false
	n := w.node(name)
	n.Want, n.Early, n.ChangedAt = false, false, w.o.Now
	w.o.Nodes[name] = n
}

// lose is what the watch on the provider does for an instance that is gone.
func (w *world) lose(i *fleet.Instance) {
	defer w.look(fleet.ByControl)
	i.State = fleet.ShuttingDown
	n := w.node(i.NodeName)
	n.Want, n.Early, n.Down = false, false, "pcs: instance "+i.ID+" is gone"
	w.o.Nodes[i.NodeName] = n
}

// apply does one action.
func (w *world) apply(a fleet.Action) {
	defer w.look(fleet.ByControl)
	if w.away && slices.Contains([]fleet.ActionKind{fleet.PowerUp, fleet.PowerDown, fleet.Replace, fleet.SetDown, fleet.Recover, fleet.HoldOut}, a.Kind) {
		return // the order does not arrive
	}
	switch a.Kind {
	case fleet.Look:
		if !w.away {
			w.o.Confirmed = w.o.Now
		}
	case fleet.Assign:
		w.serial++
		var rev int
		for _, g := range w.o.Groups {
			if g.ID == a.GroupID {
				rev = g.Revision
			}
		}
		w.o.Instances = append(w.o.Instances, fleet.Instance{
			ID: fmt.Sprintf("i-%d", w.serial), State: fleet.Pending, GroupID: a.GroupID, Type: a.Pool.Type, SubnetID: a.Pool.SubnetID, NodeName: a.Node, LaunchedAt: w.o.Now, GroupRevision: rev,
		})
	case fleet.Start:
		if w.slow {
			return
		}
		i := w.find(a.Instance)
		for w.full[i.Type] {
			w.starts++
			if !w.refused(i) {
				return
			}
		}
		w.starts++
		if w.broken {
			w.fail(i, "LAUNCH_FAILED", "no room", "Failed to launch backing instance (Error Code: X)")
			return
		}
		i.State, i.StartedAt = fleet.Running, w.o.Now
		w.group(a.GroupID).Grant(i.Type, i.SubnetID)
	case fleet.Reclaim:
		w.lose(w.find(a.Instance))
	case fleet.Lack:
		w.o.Nodes[a.Node] = fleet.HeldNode(w.node(a.Node), a.Hold)
	case fleet.HoldOut:
		h := w.slurm[a.Node]
		h.down, h.reason = true, a.Reason
	case fleet.Retire:
		w.idle(w.find(a.Instance))
		w.find(a.Instance).State = fleet.ShuttingDown
		if n, ok := w.o.Nodes[a.Node]; ok && n.Want && a.Code != condition.GroupUpdated {
			n.Want, n.Early = false, false
			w.o.Nodes[a.Node] = n
		}
	case fleet.Fail:
		i := w.find(a.Instance)
		w.fail(i, a.Code, a.Reason, "Backing Instance Failed To Bootstrap: "+i.ID)
	case fleet.Stop:
		i := w.find(a.Instance)
		i.State, i.TerminatedAt = fleet.Terminated, w.o.Now
	case fleet.MarkUp:
		i := w.find(a.Instance)
		i.ReadyAt = w.o.Now
		n := w.node(i.NodeName)
		n.Attempts, n.NotBefore = 0, time.Time{}
		w.o.Nodes[n.Name] = n
		w.group(i.GroupID).Succeeded()
	case fleet.Forget:
		w.o.Instances = slices.DeleteFunc(w.o.Instances, func(i fleet.Instance) bool { return i.ID == a.Instance })
	case fleet.GiveUp:
		n := w.node(a.Node)
		n.Want, n.Early = false, false
		if n.Index > w.group(a.GroupID).Max {
			n.Down = ""
		}
		w.o.Nodes[a.Node] = n
	case fleet.Adopt:
		n := w.node(a.Node)
		n.Want, n.WantAt, n.ChangedAt, n.Early = true, w.o.Now, w.o.Now, false
		w.o.Nodes[a.Node] = n
	case fleet.PowerUp:
		if h := w.slurm[a.Node]; h.power == "down" {
			w.resume(a.Node)
		}
	case fleet.Replace:
		h := w.slurm[a.Node]
		h.busy = false // its job ends
		w.suspend(a.Node)
	case fleet.PowerDown:
		w.suspend(a.Node)
	case fleet.SetDown:
		h := w.slurm[a.Node]
		h.down, h.busy, h.reason = true, false, a.Reason
		w.look(fleet.ByControl)
		if h.power != "down" {
			w.suspend(a.Node)
		}
		n := w.node(a.Node)
		n.Down = ""
		w.o.Nodes[a.Node] = n
	case fleet.Recover:
		h := w.slurm[a.Node]
		h.down, h.drain, h.reason, h.power = false, false, "", "down"
	}
}

func (w *world) group(id string) *fleet.Group {
	for i := range w.o.Groups {
		if w.o.Groups[i].ID == id {
			return &w.o.Groups[i]
		}
	}
	w.t.Fatalf("no group %s", id)
	return nil
}

// fail is what the control plane does for an instance that did not come up.
func (w *world) fail(i *fleet.Instance, code condition.Code, text, down string) {
	*i, w.o.Nodes[i.NodeName] = fleet.FailInstance(*i, w.node(i.NodeName), code, text, down, w.o.Now)
	w.group(i.GroupID).Failed(w.breaker, code, text, down, w.o.Now)
}

// refused is a launch for which its pool had no room. It reports whether the
// instance is in another pool now.
func (w *world) refused(i *fleet.Instance) bool {
	g := w.group(i.GroupID)
	g.Refuse(i.Type, i.SubnetID, "Full", "no room", false, w.o.Now)
	pool, ok, busy := g.Choose(w.o.Now, func(p fleet.Pool) bool {
		return slices.ContainsFunc(w.o.Instances, func(o fleet.Instance) bool {
			return o.ID != i.ID && o.GroupID == g.ID && o.State == fleet.Pending && o.Type == p.Type
		})
	})
	rest, _ := g.Held(w.o.Now)
	switch {
	case ok:
		i.Type = pool.Type
	case busy:
		w.o.Instances = slices.DeleteFunc(w.o.Instances, func(o fleet.Instance) bool { return o.ID == i.ID })
	default:
		i.State = fleet.ShuttingDown
		w.o.Nodes[i.NodeName] = fleet.HeldNode(w.node(i.NodeName), rest)
	}
	return ok
}

// agents lets every instance that runs register, and its slurmd.
func (w *world) agents() (changed bool) {
	defer w.look(fleet.ByAPI)
	for k := range w.o.Instances {
		i := &w.o.Instances[k]
		if w.hanging || i.State != fleet.Running || i.StartedAt.IsZero() {
			continue
		}
		if i.RegisteredAt.IsZero() {
			i.RegisteredAt, changed = w.o.Now, true
		}
		if n := w.node(i.NodeName); n.Early || !n.Want {
			continue
		}
		if i.ReleasedAt.IsZero() {
			i.ReleasedAt, changed = w.o.Now, true
		}
		if h := w.slurm[i.NodeName]; h != nil && !w.away && h.power == "rising" {
			h.power, changed = "up", true
		}
	}
	return changed
}

// clocks are slurmctld's timers; it returns when the next one is due.
func (w *world) clocks() (next time.Time) {
	defer w.look(fleet.BySlurm)
	due := func(at time.Time) bool {
		if w.o.Now.Before(at) {
			if next.IsZero() || at.Before(next) {
				next = at
			}
			return false
		}
		return true
	}
	for _, name := range slices.Sorted(maps.Keys(w.slurm)) {
		h := w.slurm[name]
		switch {
		case w.away:
		case h.power == "falling" && due(h.since.Add(suspendTimeout)):
			h.power = "down"
		case h.power == "rising" && due(h.since.Add(resumeTimeout)):
			h.power, h.down, h.busy = "down", true, false
			if !h.drain { // Slurm keeps the reason of who drained it
				h.reason = "ResumeTimeout reached"
			}
			if i := w.live(name); i != nil && i.State != fleet.ShuttingDown && !w.deaf {
				w.fail(i, "RESUME_TIMEOUT", "late", "ResumeTimeout reached")
			}
			n := w.node(name)
			if w.deaf { // its ResumeFailProgram is lost
				continue
			}
			n.Want, n.Down = false, ""
			w.o.Nodes[name] = n
		}
	}
	return next
}

// settle lets the world run until nothing is left to do but to forget what
// is terminated. It fails if that does not come.
func (w *world) settle() {
	w.t.Helper()
	w.back()
	const rounds = 400
	var last string
	for range rounds {
		wakeSlurm := w.clocks()
		o := w.observe()
		actions, next := fleet.Plan(o)
		checkSafe(w.t, o, actions)
		for _, a := range actions {
			w.apply(a)
		}
		moved := w.agents()
		if len(actions) > 0 || moved {
			last = text(actions)
			continue
		}
		if !wakeSlurm.IsZero() && (next.IsZero() || wakeSlurm.Before(next)) {
			next = wakeSlurm
		}
		if next.IsZero() {
			return // quiet for good
		}
		w.tick(next)
	}
	w.t.Fatalf("the plan does not come to rest; last it did %q in\n%+v\n%+v", last, w.o.Nodes, w.o.Slurm)
}

func TestPlanConvergesAndIsQuiet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(
			t,
			fleet.Group{ID: "pcs_d", Name: "d", Status: fleet.Active, Max: 3},
			fleet.Group{ID: "pcs_s", Name: "s", Status: fleet.Active, Min: 2, Max: 3},
		)
		w.breaker = rapid.SampledFrom([]int{0, 1, 3}).Draw(t, "breaker")
		names := []string{"d-1", "d-2", "d-3", "s-1", "s-2", "s-3"}
		for range rapid.IntRange(0, 40).Draw(t, "events") {
			w.happen(
				rapid.SampledFrom(append(slices.Clone(happenings), "away", "back")).Draw(t, "event"), rapid.SampledFrom(names).Draw(t, "node"),
				func(least, most int) int { return rapid.IntRange(least, most).Draw(t, "number") },
			)
		}
		w.broken, w.hanging = false, false
		clear(w.full)
		w.settle()
		// What must be true once all is at rest.
		for _, g := range w.o.Groups {
			for n := 1; n <= g.Max; n++ {
				name := g.NodeName(n)
				h, node, i := w.slurm[name], w.node(name), w.live(name)
				up := i != nil && i.State == fleet.Running && !i.ReadyAt.IsZero()
				switch {
				case node.Want != (i != nil):
					t.Fatalf("%s is wanted: %v, and its instance is %+v", name, node.Want, i)
				case n <= g.Min && !h.drain && !h.down && !up:
					t.Fatalf("the static node %s is not up: %+v %+v", name, h, node)
				case node.Down != "":
					t.Fatalf("%s keeps a reason that Slurm never took: %+v", name, node)
				case h.invalid || (h.drain && !strings.HasPrefix(h.reason, "person")):
					t.Fatalf("%s stays drained for %q", name, h.reason)
				case h.down && !h.drain && !strings.HasPrefix(h.reason, "person"):
					t.Fatalf("%s stays down for %q", name, h.reason)
				case h.power == "rising" || h.power == "falling":
					t.Fatalf("%s is still %s", name, h.power)
				case up && i.GroupRevision != g.Revision && !h.drain && !h.down:
					t.Fatalf("%s has an instance of an older template", name)
				}
			}
		}
		for _, i := range w.o.Instances {
			if i.State == fleet.Terminated {
				t.Fatalf("%s is never forgotten", i.ID)
			}
		}
	})
}

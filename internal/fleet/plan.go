package fleet

import (
	"cmp"
	"slices"
	"time"

	"github.com/openpcs/openpcs/internal/condition"
	"github.com/openpcs/openpcs/internal/slurm"
)

// Timers of the node state machine.
const (
	// BootstrapTimeout is how long an instance may take from launch to
	// registration, as the PCS agent's own limit.
	BootstrapTimeout = 10 * time.Minute
	// KeepTerminated is how long describe-instances shows a terminated one.
	KeepTerminated = time.Hour
	// backoffBase and backoffCap bound the wait before the next launch for a
	// node whose instances failed: 5 s, 10 s, 20 s, ... 10 min.
	backoffBase = 5 * time.Second
	backoffCap  = 10 * time.Minute
	// EarlyLimit is how long an instance launched ahead waits for Slurm's
	// ResumeProgram, which comes within two seconds unless the job is gone.
	EarlyLimit = 10 * time.Second
	// LostHook is how long what Slurm shows may contradict the last call of
	// its programs before that call counts as lost.
	LostHook = 10 * time.Second
	// SlurmdTimeout is how long the slurmd of a node that was up may not answer
	// before the node is set down, as slurm.conf says; slurmctld itself waits
	// for ResumeTimeout as well, half an hour in which its job hangs.
	SlurmdTimeout = time.Minute
)

// ActionKind says what to do.
type ActionKind string

// The actions of the node planner. Those named first change the state file
// only; the others have an effect outside and are repeated until it is seen.
const (
	Assign    ActionKind = "assign"     // make a pending instance for Node
	Retire    ActionKind = "retire"     // Instance goes to shutting-down
	Fail      ActionKind = "fail"       // Instance did not come up, or a script there failed: Fail it
	MarkUp    ActionKind = "mark-up"    // Instance is ready in Slurm
	Forget    ActionKind = "forget"     // drop the terminated Instance
	Adopt     ActionKind = "adopt"      // Node is wanted, though no call said so
	GiveUp    ActionKind = "give-up"    // Node is not wanted after all
	PowerDown ActionKind = "power-down" // have Slurm suspend Node, which is down with its instance running
	Replace   ActionKind = "replace"    // have Slurm power Node down as soon as its jobs are done
	Start     ActionKind = "start"      // launch the pending Instance
	Stop      ActionKind = "stop"       // end the shutting-down Instance
	PowerUp   ActionKind = "power-up"   // ask Slurm to resume the static Node
	SetDown   ActionKind = "set-down"   // set Node down in Slurm, then power it down
	Recover   ActionKind = "recover"    // Node has no instance left: make it idle~ at once
	Reclaim   ActionKind = "reclaim"    // the provider takes Instance back now
	Look      ActionKind = "look"       // ask slurmctld for all nodes
	Lack      ActionKind = "lack"       // Node cannot have an instance: free its job
	HoldOut   ActionKind = "hold-out"   // set the idle Node down while its group can have no instance
)

// Action is one thing to do. Code and Reason explain it to people.
type Action struct {
	Kind     ActionKind
	GroupID  string
	Node     string
	Instance string
	Code     condition.Code
	Reason   string
	Down     string // of SetDown: the node's Down that it takes care of
	Rising   bool   // of SetDown: Node is powering up
	Pool     Pool   // of Assign: where to launch
	Hold     Hold   // of Lack: why there is no instance
}

// Observed is all that the planner sees of one cluster.
type Observed struct {
	Now       time.Time
	Groups    []Group
	Instances []Instance
	Nodes     map[string]Node       // by node name
	Slurm     map[string]slurm.Node // nil: slurmctld has not answered
	// Since is when each node came into the state that Slurm has now.
	Since map[string]time.Time
	// Confirmed is when slurmctld was last asked for all nodes, and answered:
	// what Slurm has may be old.
	Confirmed time.Time
	// ClockSet is when the clock was last set, or the machine slept: time-outs
	// that began before begin anew then.
	ClockSet time.Time
}

// Plan returns what to do for a cluster's nodes, in a stable order, and when
// to look again at the latest (zero: when something happens).
//
// It never ends an instance but for one of these reasons: Slurm suspended
// its node (Slurm does so only when the node is idle), it failed, its node
// is no longer configured, its group is being deleted, or was updated before
// its slurmd could start.
func Plan(o Observed) (actions []Action, next time.Time) {
	p := planner{Observed: o, byNode: map[string]Instance{}, tries: map[string]map[[2]string]bool{}, starting: map[string]bool{}, serving: map[string]int{}}
	groups := map[string]Group{}
	for _, g := range o.Groups {
		groups[g.ID] = g
	}
	for _, i := range o.Instances {
		if i.NodeName != "" && i.State.Live() {
			p.byNode[i.NodeName] = i
		}
		if i.State == Pending && i.StartedAt.IsZero() {
			p.try(i.GroupID, i.Type, i.SubnetID)
		}
		if (i.State == Pending || i.State == Running) && i.ReadyAt.IsZero() {
			p.starting[i.GroupID] = true
		}
	}
	for _, g := range o.Groups {
		p.serving[g.ID] = p.served(g)
	}
	for _, i := range o.Instances {
		p.instance(i, groups)
	}
	for _, g := range slices.SortedFunc(slices.Values(o.Groups), func(a, b Group) int { return cmp.Compare(a.Name, b.Name) }) {
		for n := 1; n <= g.Max; n++ {
			p.node(g, n)
		}
	}
	p.beyond(groups)
	if p.look {
		p.do(Action{Kind: Look})
	}
	return p.actions, p.next
}

type planner struct {
	Observed
	byNode map[string]Instance           // live instances
	tries  map[string]map[[2]string]bool // launches under way, by group, type and subnet
	// starting are the groups with an instance that is not up yet.
	starting map[string]bool
	// serving is how many nodes of a group's minimum take jobs.
	serving map[string]int
	actions []Action
	next    time.Time
	look    bool // a decision needs to know what Slurm has now
}

func (p *planner) do(a Action) { p.actions = append(p.actions, a) }

func (p *planner) wake(at time.Time) {
	if p.next.IsZero() || at.Before(p.next) {
		p.next = at
	}
}

// began is when something began to take time, for its time-out.
func (p *planner) began(at time.Time) time.Time {
	if at.Before(p.ClockSet) && !p.ClockSet.After(p.Now) {
		return p.ClockSet
	}
	return at
}

func (p *planner) try(groupID, typ, subnetID string) {
	if p.tries[groupID] == nil {
		p.tries[groupID] = map[[2]string]bool{}
	}
	p.tries[groupID][[2]string{typ, subnetID}] = true
}

func (p *planner) instance(i Instance, groups map[string]Group) {
	if i.State == Terminated {
		if gone := i.TerminatedAt.Add(KeepTerminated); !p.Now.Before(gone) {
			p.do(Action{Kind: Forget, Instance: i.ID})
		} else {
			p.wake(gone)
		}
		return
	}
	if i.State == ShuttingDown {
		p.do(Action{Kind: Stop, Instance: i.ID, Node: i.NodeName})
		return
	}
	if i.NodeName == "" {
		return
	}
	retire := func(code condition.Code, reason string) {
		p.do(Action{Kind: Retire, GroupID: i.GroupID, Node: i.NodeName, Instance: i.ID, Code: code, Reason: reason})
	}
	g, ok := groups[i.GroupID]
	switch index := g.NodeIndex(i.NodeName); {
	case !ok:
		retire(condition.GroupDeleted, "its compute node group is gone")
		return
	case g.Status == Deleting:
		retire(condition.GroupDeleted, "its compute node group is being deleted")
		return
	case index == 0 || index > g.Max:
		retire(condition.ScaleIn, "the group's maximum was lowered below its node")
		return
	case !p.Nodes[i.NodeName].Want && i.State == Running && i.Failure != "":
		// Its script failed while jobs could run; now Slurm has suspended it.
		p.do(Action{Kind: Fail, GroupID: g.ID, Node: i.NodeName, Instance: i.ID, Code: i.FailureCode, Reason: i.Failure})
		return
	case !p.Nodes[i.NodeName].Want && p.Nodes[i.NodeName].GivenUp != "":
		retire(condition.NotWanted, p.Nodes[i.NodeName].GivenUp)
		return
	case !p.Nodes[i.NodeName].Want:
		retire(condition.Idle, "Slurm suspended its node")
		return
	}
	if !i.ReclaimAt.IsZero() {
		if !p.Now.Before(i.ReclaimAt) {
			p.do(Action{
				Kind: Reclaim, GroupID: g.ID, Node: i.NodeName, Instance: i.ID, Code: condition.SpotReclaimed,
				Reason: "the provider reclaimed it",
			})
			return
		}
		p.wake(i.ReclaimAt)
	}
	switch {
	case i.GroupRevision != g.Revision && g.settled() && i.ReleasedAt.IsZero() && i.ReadyAt.IsZero():
		// Nothing can run there yet, so what the update mends need not be waited
		// for: its node stays wanted and gets a new one.
		retire(condition.GroupUpdated, "the compute node group was updated while it came up")
	case i.ReadyAt.IsZero() && p.givenUp(i.NodeName):
		p.do(Action{
			Kind: Fail, GroupID: g.ID, Instance: i.ID, Node: i.NodeName, Code: condition.ResumeTimeout,
			Reason: "its node did not come up within ResumeTimeout",
		})
	case i.State == Pending && i.StartedAt.IsZero():
		p.do(Action{Kind: Start, GroupID: g.ID, Node: i.NodeName, Instance: i.ID})
	case i.RegisteredAt.IsZero():
		if late := p.began(i.StartedAt).Add(BootstrapTimeout); !p.Now.Before(late) {
			p.do(Action{
				Kind: Fail, Instance: i.ID, Node: i.NodeName, Code: condition.BootstrapTimeout,
				Reason: "it did not register within " + BootstrapTimeout.String(),
			})
		} else {
			p.wake(late)
		}
	case p.unusable(i.NodeName):
		// An unexpected reboot, or a slurmd that no longer answers: what ran
		// there is lost, so a fresh instance is the safe way back, as on PCS.
		p.do(Action{Kind: PowerDown, GroupID: g.ID, Node: i.NodeName, Instance: i.ID, Code: condition.NodeUnusable, Reason: p.Slurm[i.NodeName].Reason})
	case i.ReadyAt.IsZero():
		switch n, ok := p.Slurm[i.NodeName]; {
		case ok && n.Has("INVALID_REG") && !n.HasAny("ALLOCATED", "MIXED"):
			// Slurm has ended its job. Its reason has the counts: what was found
			// and what the configuration says.
			p.do(Action{
				Kind: Fail, Instance: i.ID, Node: i.NodeName, Code: condition.InvalidRegistration,
				Reason: "slurmctld did not take its registration: " + cmp.Or(n.Reason, "it has less than the configuration says"),
			})
		case ok && n.Ready():
			p.do(Action{Kind: MarkUp, Instance: i.ID, Node: i.NodeName})
		}
	case p.hung(i):
		p.do(Action{
			Kind: SetDown, GroupID: g.ID, Node: i.NodeName, Instance: i.ID, Code: condition.NodeUnusable,
			Reason: downReason(p.Slurm[i.NodeName], ReasonPrefix+"slurmd on "+i.ID+" has not answered for "+SlurmdTimeout.String()),
		})
	case p.invalid(i.NodeName):
		p.do(Action{Kind: Replace, GroupID: g.ID, Node: i.NodeName, Instance: i.ID, Code: condition.NodeUnusable, Reason: p.Slurm[i.NodeName].Reason})
	case i.Failure != "":
		p.replace(g, i, i.FailureCode, i.Failure)
	case i.GroupRevision != g.Revision && g.settled():
		if p.spare(g, i.NodeName) {
			p.replace(g, i, condition.GroupUpdated, "the compute node group was updated")
		}
	}
}

// takesJobs reports whether a node is up, and not about to be powered down.
func (p *planner) takesJobs(name string) bool {
	i, live := p.byNode[name]
	n, known := p.Slurm[name]
	return live && known && i.State == Running && !i.RegisteredAt.IsZero() && i.Failure == "" &&
		n.Ready() && !n.HasAny("POWER_DOWN", "POWER_DRAIN", "DRAIN")
}

// served counts the nodes of a group's minimum that take jobs.
func (p *planner) served(g Group) (count int) {
	for n := 1; n <= g.Min; n++ {
		if p.takesJobs(g.NodeName(n)) {
			count++
		}
	}
	return count
}

// spare reports whether an update may take a node now: half of the minimum
// stays, until as many are up that were launched after it. So an update to
// what does not come up leaves a group something to run jobs on.
func (p *planner) spare(g Group, name string) bool {
	if g.NodeIndex(name) > g.Min || !p.takesJobs(name) {
		return true
	}
	if p.serving[g.ID] <= g.Min/2 {
		return false
	}
	p.serving[g.ID]--
	return true
}

// replace has Slurm drain a node that is up, let its jobs end and suspend it;
// what comes after is launched as the group is now.
func (p *planner) replace(g Group, i Instance, code condition.Code, reason string) {
	if n, ok := p.Slurm[i.NodeName]; ok && n.Ready() && !n.HasAny("POWER_DOWN", "POWER_DRAIN", "DRAIN") {
		p.do(Action{Kind: Replace, GroupID: g.ID, Node: i.NodeName, Instance: i.ID, Code: code, Reason: reason})
	}
}

// rests reports whether the time for the next try has not come. No rest is
// longer than backoffCap: one that seems so is left from before the clock was
// set back.
func rests(now, notBefore time.Time) bool {
	return now.Before(notBefore) && !notBefore.After(now.Add(backoffCap))
}

// contradiction finds what Slurm shows of a node against the last call of its
// programs, and what to do when that lasts: calls can be lost with the
// controller.
func (p *planner) contradiction(g Group, name string) (Action, bool) {
	node := p.Nodes[name]
	seen, known := p.Slurm[name]
	_, live := p.byNode[name]
	if !known || node.Down != "" || node.Early || g.Status == Deleting {
		return Action{}, false
	}
	switch {
	case seen.Has("POWERING_UP") && !seen.Has("DOWN") && !node.Want && !live && !rests(p.Now, node.NotBefore):
		return Action{Kind: Adopt, GroupID: g.ID, Node: name, Reason: "Slurm is powering the node up"}, true
	case seen.Has("POWERED_DOWN") && !seen.HasAny("POWER_UP", "POWERING_UP") && node.Want:
		return Action{Kind: GiveUp, GroupID: g.ID, Node: name, Reason: "Slurm has the node powered down"}, true
	case !live && !node.Want && !seen.HasAny("POWERED_DOWN", "POWERING_UP", "POWERING_DOWN", "POWER_DOWN", "DOWN"):
		return Action{Kind: SetDown, GroupID: g.ID, Node: name, Reason: downReason(seen, ReasonPrefix+"there is no instance behind the node")}, true
	}
	return Action{}, false
}

// lasting reports whether Slurm has shown a node in one state, and no call of
// its programs has come, for a time: with LostHook, so long that one must have
// been lost.
func (p *planner) lasting(name string, node Node, limit time.Duration) bool {
	since, ok := p.Since[name]
	if !ok {
		return false
	}
	if node.ChangedAt.After(since) && !node.ChangedAt.After(p.Now) {
		since = node.ChangedAt
	}
	at := since.Add(limit)
	switch {
	case p.Now.Before(at):
		p.wake(at)
		return false
	case p.Confirmed.Before(at):
		// Nobody may have said anything since, least of all a slurmctld that is
		// away: nothing is done for what is only old.
		p.look = true
		return false
	}
	return true
}

// unusable reports whether Slurm, not a person, has the node down for good.
func (p *planner) unusable(name string) bool {
	n, ok := p.Slurm[name]
	return ok && n.Has("DOWN") && ours(n.Reason) && p.Nodes[name].Down == "" &&
		!n.HasAny("DRAIN", "POWER_DOWN", "POWERING_DOWN", "POWERED_DOWN", "POWERING_UP", "REBOOT_REQUESTED", "REBOOT_ISSUED")
}

// givenUp reports whether Slurm has set down a node that did not come up in
// time. Its ResumeFailProgram says so, too: this is for when that call is lost.
// By then Slurm has cleared what else it showed of such a node, so that no more
// than these flags can be asked for.
func (p *planner) givenUp(name string) bool {
	n, ok := p.Slurm[name]
	return ok && n.Has("DOWN", "POWERED_DOWN") && !n.HasAny("POWER_UP", "POWERING_UP") && p.Nodes[name].Down == "" && !p.Nodes[name].Early &&
		p.lasting(name, p.Nodes[name], LostHook)
}

// hung reports whether slurmctld has heard nothing of a node that was up for
// so long that what runs there counts as lost.
func (p *planner) hung(i Instance) bool {
	n := p.Slurm[i.NodeName]
	if !n.Has("NOT_RESPONDING") || p.Nodes[i.NodeName].Down != "" ||
		n.HasAny("DOWN", "POWERED_DOWN", "POWERING_UP", "POWER_DOWN", "POWERING_DOWN", "REBOOT_REQUESTED", "REBOOT_ISSUED") {
		return false
	}
	return p.lasting(i.NodeName, Node{}, SlurmdTimeout)
}

// invalid reports whether Slurm drained the node, which was up, because it
// registered anew with less than the configuration says.
func (p *planner) invalid(name string) bool {
	n, ok := p.Slurm[name]
	return ok && n.Has("INVALID_REG", "DRAIN") && begins(n.Reason, invalidReasons) && !n.HasAny("POWER_DOWN", "POWER_DRAIN", "POWERING_DOWN", "POWERED_DOWN")
}

func (p *planner) node(g Group, index int) {
	name := g.NodeName(index)
	node := p.Nodes[name]
	_, live := p.byNode[name]
	seen, known := p.Slurm[name]
	if node.Down != "" && known {
		rising := seen.Has("POWERING_UP") && !seen.HasAny("DRAIN", "DOWN")
		p.do(Action{Kind: SetDown, GroupID: g.ID, Node: name, Down: node.Down, Rising: rising, Reason: downReason(seen, node.Down)})
		return
	}
	if a, ok := p.contradiction(g, name); ok && p.lasting(name, node, LostHook) {
		p.do(a)
		return
	}
	if node.Early {
		late := p.began(node.WantAt).Add(EarlyLimit)
		switch {
		case p.Now.Before(late) && !node.WantAt.After(p.Now):
			p.wake(late)
		case known && seen.Has("POWERING_UP") && !seen.Has("DOWN"):
			// A job waits for it: it is the call that was lost.
			p.do(Action{Kind: Adopt, GroupID: g.ID, Node: name, Reason: "Slurm is powering the node up"})
			return
		case p.Confirmed.Before(late) && !node.WantAt.After(p.Now):
			p.look = true
			return
		default:
			p.do(Action{Kind: GiveUp, GroupID: g.ID, Node: name, Reason: "Slurm did not resume the node after all"})
			return
		}
	}
	if live || g.Status == Creating || g.Status == CreateFailed || g.Status == Deleting {
		return
	}
	if hold, held := g.Held(p.Now); held {
		p.wake(hold.NotBefore)
		switch {
		case node.Want:
			p.do(Action{Kind: Lack, GroupID: g.ID, Node: name, Code: hold.Code, Reason: hold.Reason, Hold: hold})
		case known && seen.Has("IDLE", "POWERED_DOWN") && !seen.HasAny("DRAIN", "POWER_UP", "POWERING_UP"):
			// While nothing can be had Slurm should give its jobs other nodes.
			p.do(Action{Kind: HoldOut, GroupID: g.ID, Node: name, Code: hold.Code, Reason: hold.Reason})
		}
		return
	}
	// With its instance gone a node need not wait for SuspendTimeout, nor stay
	// down or drained for what openpcs or Slurm itself did; a person's drain or
	// reason stays as it is. One that did not come up does wait, as it rests
	// anyway: Slurm keeps its reason until it is resumed, as on PCS.
	if known && !node.Want && !seen.Has("POWER_DOWN") && (!seen.Has("DRAIN") || begins(seen.Reason, invalidReasons)) &&
		((seen.Has("POWERING_DOWN") && !seen.Has("DOWN") && !begins(seen.Reason, startReasons)) || (seen.HasAny("DOWN", "DRAIN") && ours(seen.Reason))) {
		p.do(Action{Kind: Recover, GroupID: g.ID, Node: name, Reason: seen.Reason})
		return
	}
	switch {
	case rests(p.Now, node.NotBefore):
		if node.Want || index <= g.Min {
			p.wake(node.NotBefore)
		}
	case node.Want && g.Breaker.Open && p.starting[g.ID]:
		// One launch tries for all: its end wakes.
	case node.Want:
		// Without a pool a try is under way in the only one: its end wakes.
		pool, ok, _ := g.Choose(p.Now, func(pool Pool) bool { return p.tries[g.ID][[2]string{pool.Type, pool.SubnetID}] })
		if ok {
			p.try(g.ID, pool.Type, pool.SubnetID)
			p.starting[g.ID] = true
			p.do(Action{Kind: Assign, GroupID: g.ID, Node: name, Pool: pool})
		}
	case index <= g.Min && known && !seen.HasAny("DRAIN", "DOWN", "POWERING_DOWN", "POWER_UP", "POWERING_UP"):
		// Slurm answers with its ResumeProgram, which makes the node wanted: a
		// slurmd that registers before Slurm expects it would leave the node
		// powering up for ever.
		p.do(Action{Kind: PowerUp, GroupID: g.ID, Node: name, Reason: "the group's minimum"})
	}
}

// beyond takes back what was wished of nodes above their group's maximum: one
// that comes back later is nobody's wish, and has nothing against it.
func (p *planner) beyond(groups map[string]Group) {
	var names []string
	for name, n := range p.Nodes {
		_, live := p.byNode[name] // is being retired
		if g, ok := groups[n.GroupID]; ok && !live && n.Index > g.Max && (n.Want || n.Early || n.Down != "") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range names {
		p.do(Action{Kind: GiveUp, GroupID: p.Nodes[name].GroupID, Node: name, Reason: "the group's maximum was lowered below it"})
	}
}

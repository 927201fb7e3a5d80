package fleet

import "time"

// The states of a node. They are derived: see NodeState.
const (
	NodeOff       = "off"
	NodeWanted    = "wanted"
	NodeLaunching = "launching"
	NodeBooting   = "booting"
	NodeEarly     = "early"
	NodeStarting  = "starting"
	NodeUp        = "up"
	NodeUnusable  = "unusable"
	NodeReclaimed = "reclaimed"
	NodeDrained   = "drained"
	NodeReplacing = "replacing"
	NodeEnding    = "ending"
	NodeFailed    = "failed"
	NodeLeaving   = "leaving"
	NodeHeld      = "held"
	NodeResting   = "resting"
	NodeDown      = "down"
)

// Live returns the instance that backs a node, if there is one.
func (o Observed) Live(node string) (Instance, bool) {
	for _, i := range o.Instances {
		if i.NodeName == node && i.State.Live() {
			return i, true
		}
	}
	return Instance{}, false
}

// NodeState names what a node of a group is in, from what the control plane
// remembers of it, its instance, and what Slurm shows. A node that is in no
// configuration, as it lies above the group's maximum or slurmctld never took
// the group, is None once it has no instance.
func NodeState(o Observed, g Group, name string) string {
	n, seen := o.Nodes[name], o.Slurm[name]
	down, invalid := seen.Has("DOWN"), seen.Has("DRAIN") && begins(seen.Reason, invalidReasons)
	// By a person, or by a job's end.
	drained := seen.Has("DRAIN") && !invalid && seen.Reason != powerDownReason
	if i, ok := o.Live(name); ok {
		switch {
		case i.State == ShuttingDown || !n.Want:
			return NodeEnding
		case i.State == Pending && i.StartedAt.IsZero():
			return NodeLaunching
		case i.RegisteredAt.IsZero():
			return NodeBooting
		case n.Early:
			return NodeEarly
		case i.ReadyAt.IsZero():
			return NodeStarting
		case !i.ReclaimAt.IsZero():
			return NodeReclaimed
		case drained:
			return NodeDrained
		case invalid || (down && ours(seen.Reason)):
			return NodeUnusable
		case down:
			return NodeDown
		case i.GroupRevision != g.Revision || i.Failure != "":
			return NodeReplacing
		}
		return NodeUp
	}
	index := g.NodeIndex(name)
	configured := index > 0 && index <= g.Max && g.Status != Creating && g.Status != CreateFailed
	_, held := g.Held(o.Now)
	switch {
	case !configured:
		return None
	case n.Down != "":
		return NodeFailed
	case g.Status == Deleting:
		return NodeLeaving
	case !n.Want && drained:
		return NodeDrained
	case !n.Want && down && !invalid && !ours(seen.Reason):
		return NodeDown
	case rests(o.Now, n.NotBefore):
		return NodeResting
	case n.Want:
		return NodeWanted
	case held:
		return NodeHeld
	case down || invalid:
		return NodeFailed
	}
	return NodeOff
}

func nodeMachine() Machine {
	of := func(all ...string) []string { return all }
	backed := of(NodeLaunching, NodeBooting, NodeEarly, NodeStarting, NodeUp, NodeReplacing, NodeReclaimed, NodeDrained, NodeDown, NodeUnusable)
	bare := of(NodeOff, NodeWanted, NodeFailed, NodeHeld, NodeResting, NodeDrained, NodeDown)
	const (
		raised  = "`UpdateComputeNodeGroup` raised the maximum above it"
		person  = "a person gave it back to Slurm (`scontrol update nodename=NODE state=resume`)"
		gone    = "its instance is gone"
		told    = "slurmctld was told of the failure, which frees its job"
		revived = "ResumeProgram named it before its instance, which was to be ended, was touched"
		updated = "`UpdateComputeNodeGroup`: what failed or refused before is tried at once"
		again   = "a pool may be tried again, the breaker of its group has rested, or an instance of its group came up"
		forgot  = "the maximum was lowered, and slurmctld has it no more; its end is next"
		back    = "the clock was set back into a rest"
		timeout = "ResumeTimeout: Slurm set it down"
		giveUp  = "it was expected and Slurm did not resume it, or Slurm shows it powered down and the call that said so was lost"
	)
	return Machine{
		Of: "node", Title: "Node", Aside: of(NodeDrained, NodeDown, NodeLeaving),
		Text: "A node is a Slurm node of a compute node group, from the first to the group's maximum.\nIts state is stored nowhere: it is read off what openpcs remembers of the node (is it\nwanted, what failed), the instance behind it, and what slurmctld shows. So a state can\nend without any record being written, as when a person drains the node. `openpcs explain\nNODE` says what is next in words.\n\nThe first of these that is true is its state.",
		States: []State{
			{NodeEnding, "The instance behind it is being ended, or is about to be as nobody wants the node."},
			{NodeLaunching, "It has an instance, which the provider is starting."},
			{NodeBooting, "Its instance was started and has not registered."},
			{NodeEarly, "Its instance was launched ahead for a job, registered, and waits for Slurm's ResumeProgram before it starts slurmd."},
			{NodeStarting, "Its instance registered, and slurmctld has not seen its slurmd. Meanwhile the scripts of the stage nodeBootstrapped run."},
			{NodeReclaimed, "Its Spot instance has an interruption notice."},
			{NodeDrained, "A person or a job's end drained it. openpcs leaves that alone. It may have an instance."},
			{NodeUnusable, "Its instance runs, and Slurm took it out of service: slurmd does not answer, it rebooted unexpectedly, or it registered anew with less than slurm.conf says. It is powered down, in the last case when its jobs are done."},
			{NodeDown, "A person set it down. openpcs leaves that alone. It may have an instance."},
			{NodeReplacing, "It is up with an instance from before the last update of its group, or with one whose script of the stage nodeReady failed (onError TERMINATE). When the update is in force, or at once, it takes no more jobs, and is powered down when those it has are done."},
			{NodeUp, "slurmd is up, and the node takes jobs. Scripts of the stage nodeReady may still run."},
			{NodeFailed, "It has no instance, and a failure, a loss or a lack that slurmctld is about to be told of, or was told of and is about to be freed from."},
			{NodeLeaving, "It has no instance, and its group is being deleted."},
			{NodeResting, "Launches for it failed lately, and the next has to wait."},
			{NodeWanted, "Slurm wants it up; an instance is about to be assigned."},
			{NodeHeld, "Every pool of its group refused lately, or so many starts in its group failed in a row that its breaker is open. Idle nodes are down in Slurm with the reason, so that jobs get other nodes."},
			{NodeOff, "Slurm has it powered down, `idle~`. It costs nothing."},
		},
		Transitions: []Transition{
			{From: of(None), To: NodeOff, By: ByControl, Trigger: "slurmctld took its group"},
			{From: of(None), To: NodeOff, By: ByAPI, Trigger: raised, Rare: true},
			{From: of(NodeFailed), To: NodeOff, By: ByControl, Trigger: "it has no instance left and only openpcs or Slurm held it down: `State=RESUME`"},
			{From: of(NodeEnding), To: NodeOff, By: ByControl, Trigger: gone},
			{From: of(NodeResting), To: NodeOff, By: ByControl, Trigger: "its rest is over", Timers: []string{"rest of a node"}},
			{From: of(NodeHeld), To: NodeOff, By: ByControl, Trigger: again, Timers: []string{"rest of a pool", "rest of a breaker"}},
			{From: of(NodeHeld, NodeResting), To: NodeOff, By: ByAPI, Trigger: updated, Rare: true},
			{From: of(NodeResting), To: NodeWanted, By: ByAPI, Trigger: updated, Rare: true},
			{From: of(NodeResting), To: NodeFailed, By: ByAPI, Trigger: updated, Rare: true},
			{From: of(NodeDrained, NodeDown, NodeFailed), To: NodeOff, By: BySlurm, Trigger: person, Rare: true},
			{From: of(NodeWanted), To: NodeOff, By: ByControl, Trigger: giveUp, Timers: []string{"early limit", "lost call"}},

			{From: of(NodeOff, NodeHeld, NodeFailed), To: NodeWanted, By: BySlurm, Trigger: "PrologSlurmctld has a job for it, or ResumeProgram names it; for the group's minimum openpcs asks for that (`State=POWER_UP`)", Timers: []string{"power-up"}},
			{From: of(NodeOff, NodeHeld, NodeDrained), To: NodeWanted, By: ByControl, Trigger: "Slurm shows it powering up, and the call that said so was lost", Timers: []string{"lost call"}, Rare: true},
			{From: of(NodeResting), To: NodeWanted, By: ByControl, Trigger: "its rest is over, and it is wanted", Timers: []string{"rest of a node"}},
			{From: of(NodeEnding), To: NodeWanted, By: ByControl, Trigger: "its former instance is gone, and Slurm resumed it anew or its group was updated while that one came up"},
			{From: of(NodeLaunching), To: NodeWanted, By: ByControl, Trigger: "the pool of its instance had no room, and the only other that may have some is being tried by another launch"},
			{From: of(None), To: NodeWanted, By: ByAPI, Trigger: raised + " at once after it was lowered", Rare: true},

			{From: of(NodeWanted), To: NodeLaunching, By: ByControl, Trigger: "the planner assigned an instance"},
			{From: of(NodeEnding), To: NodeLaunching, By: BySlurm, Trigger: revived, Rare: true},
			{From: of(NodeLaunching), To: NodeBooting, By: ByControl, Trigger: "the provider started the instance"},
			{From: of(NodeEnding), To: NodeBooting, By: BySlurm, Trigger: revived, Rare: true},
			{From: of(NodeBooting), To: NodeEarly, By: ByAPI, Trigger: "`RegisterComputeNodeGroupInstance`, before ResumeProgram"},
			{From: of(NodeBooting), To: NodeStarting, By: ByAPI, Trigger: "`RegisterComputeNodeGroupInstance`"},
			{From: of(NodeEarly), To: NodeStarting, By: BySlurm, Trigger: "ResumeProgram named it"},
			{From: of(NodeEarly), To: NodeStarting, By: ByControl, Trigger: "Slurm shows it powering up, and the call that said so was lost", Timers: []string{"early limit"}, Rare: true},
			{From: of(NodeEnding), To: NodeStarting, By: BySlurm, Trigger: revived, Rare: true},

			{From: of(NodeStarting), To: NodeUp, By: ByControl, Trigger: "slurmctld shows its slurmd"},
			{From: of(NodeDrained, NodeDown, NodeUnusable), To: NodeUp, By: BySlurm, Trigger: person, Rare: true},
			{From: of(NodeReplacing), To: NodeUp, By: ByControl, Trigger: "slurmctld refused the update of its group"},
			{From: of(NodeDrained, NodeDown, NodeUnusable), To: NodeUp, By: ByControl, Trigger: forgot, Rare: true},

			{From: of(NodeUp), To: NodeReplacing, By: ByAPI, Trigger: "`UpdateComputeNodeGroup` changed what instances are started with"},
			{From: of(NodeStarting), To: NodeReplacing, By: ByControl, Trigger: "slurmctld shows its slurmd, and meanwhile its group was updated or a script of the stage nodeReady failed"},
			{From: of(NodeUp), To: NodeReplacing, By: ByControl, Trigger: "a script of the stage nodeReady failed whose onError is TERMINATE"},
			{From: of(NodeDrained, NodeDown, NodeUnusable), To: NodeReplacing, By: BySlurm, Trigger: person, Rare: true},
			{From: of(NodeDrained, NodeDown, NodeUnusable), To: NodeReplacing, By: ByControl, Trigger: forgot, Rare: true},

			{From: of(NodeUp, NodeReplacing), To: NodeUnusable, By: BySlurm, Trigger: "slurmd does not answer, the node rebooted unexpectedly, or it registered anew with less than slurm.conf says"},
			{From: of(NodeUp, NodeReplacing, NodeUnusable, NodeDrained, NodeDown), To: NodeReclaimed, By: ByControl, Trigger: "the provider gave notice"},

			{From: of(NodeUp, NodeReplacing, NodeUnusable, NodeOff, NodeHeld, NodeResting, NodeFailed, NodeDown), To: NodeDrained, By: BySlurm, Trigger: "it was drained"},
			{From: of(NodeWanted), To: NodeDrained, By: BySlurm, Trigger: "ResumeTimeout, of a node that was drained meanwhile", Timers: []string{"resume timeout"}},
			{From: of(NodeFailed), To: NodeDrained, By: ByControl, Trigger: told + "; it was drained before"},
			{From: of(NodeStarting), To: NodeDrained, By: ByControl, Trigger: "slurmctld shows its slurmd; it was drained before"},
			{From: of(NodeEnding), To: NodeDrained, By: ByControl, Trigger: gone + "; it was drained before"},
			{From: of(NodeWanted), To: NodeDrained, By: ByControl, Trigger: giveUp + "; it was drained before", Timers: []string{"early limit", "lost call"}, Rare: true},

			{From: of(NodeUp, NodeReplacing, NodeUnusable, NodeOff, NodeHeld, NodeResting, NodeFailed), To: NodeDown, By: BySlurm, Trigger: "a person set it down"},
			{From: of(NodeEnding), To: NodeDown, By: ByControl, Trigger: gone + "; a person had set it down"},
			{From: of(NodeWanted), To: NodeDown, By: ByControl, Trigger: giveUp + "; a person had set it down", Timers: []string{"early limit", "lost call"}, Rare: true},

			{From: backed, To: NodeEnding, By: BySlurm, Trigger: "SuspendProgram names it when it is idle, or powered down on somebody's order; ResumeFailProgram names it when it was not up in time; ResumeProgram names it anew", Timers: []string{"idle time", "resume timeout"}},
			{From: backed, To: NodeEnding, By: ByControl, Trigger: "its instance failed, is lost, reclaimed or terminated by a user; it was given up; its group is being deleted or its maximum lowered, or was updated before slurmd could start", Timers: []string{"bootstrap timeout", "early limit", "lost call", "settle time", "sweep"}},

			{From: of(NodeEnding), To: NodeFailed, By: ByControl, Trigger: gone + ", which slurmctld is to be told of"},
			{From: of(NodeWanted), To: NodeFailed, By: ByControl, Trigger: "every pool of its group, or its breaker, rests: its job is freed"},
			{From: of(NodeHeld), To: NodeFailed, By: ByControl, Trigger: again + ", and Slurm still has it down", Timers: []string{"rest of a pool", "rest of a breaker"}},
			{From: of(NodeHeld), To: NodeFailed, By: ByAPI, Trigger: updated, Rare: true},
			{From: of(NodeResting), To: NodeFailed, By: ByControl, Trigger: "its rest is over, and Slurm still has it down", Timers: []string{"rest of a node"}},
			{From: of(NodeOff), To: NodeFailed, By: ByControl, Trigger: "Slurm has it up, and there is no instance behind it", Timers: []string{"lost call"}, Rare: true},
			{From: of(NodeOff, NodeWanted, NodeDown), To: NodeFailed, By: BySlurm, Trigger: timeout, Timers: []string{"resume timeout"}, Rare: true},

			{From: of(None), To: NodeFailed, By: ByAPI, Trigger: raised + " at once after it was lowered", Rare: true},

			{From: of(NodeFailed), To: NodeResting, By: ByControl, Trigger: told, Timers: []string{"rest of a node"}},
			{From: of(NodeEnding), To: NodeResting, By: ByControl, Trigger: gone + ", after it failed", Timers: []string{"rest of a node"}},
			{From: of(NodeDrained, NodeDown), To: NodeResting, By: BySlurm, Trigger: person + ", after it failed", Timers: []string{"rest of a node"}},
			{From: of(None), To: NodeResting, By: ByAPI, Trigger: raised + ", after it failed", Timers: []string{"rest of a node"}, Rare: true},
			{From: of(NodeOff, NodeWanted, NodeHeld), To: NodeResting, By: ByControl, Trigger: back, Timers: []string{"rest of a node"}, Rare: true},

			{From: of(NodeOff), To: NodeHeld, By: ByControl, Trigger: "the last pool of its group refused, or a failed start opened the breaker of its group", Timers: []string{"rest of a pool", "rest of a breaker"}},
			{From: of(NodeFailed), To: NodeHeld, By: ByControl, Trigger: told, Timers: []string{"rest of a pool", "rest of a breaker"}},
			{From: of(NodeEnding), To: NodeHeld, By: ByControl, Trigger: gone, Timers: []string{"rest of a pool"}},
			{From: of(NodeResting), To: NodeHeld, By: ByControl, Trigger: "its own rest is over", Timers: []string{"rest of a node", "rest of a pool"}, Rare: true},
			{From: of(NodeDrained, NodeDown), To: NodeHeld, By: BySlurm, Trigger: person, Timers: []string{"rest of a pool"}},
			{From: of(NodeWanted), To: NodeHeld, By: ByControl, Trigger: giveUp, Timers: []string{"rest of a pool"}, Rare: true},
			{From: of(NodeWanted), To: NodeHeld, By: BySlurm, Trigger: timeout, Timers: []string{"resume timeout", "rest of a pool"}, Rare: true},
			{From: of(None), To: NodeHeld, By: ByAPI, Trigger: raised, Timers: []string{"rest of a pool"}, Rare: true},

			{From: bare, To: NodeLeaving, By: ByAPI, Trigger: "`DeleteComputeNodeGroup`"},
			{From: of(NodeEnding), To: NodeLeaving, By: ByControl, Trigger: gone},
			{From: of(NodeFailed), To: NodeLeaving, By: ByControl, Trigger: told},

			{From: bare, To: None, By: ByAPI, Trigger: "`UpdateComputeNodeGroup` lowered the maximum below it", Rare: true},
			{From: of(NodeEnding), To: None, By: ByControl, Trigger: gone + ", and the maximum was lowered below it"},
			{From: of(NodeLeaving), To: None, By: ByControl, Trigger: "slurmctld took a configuration without its group"},
		},
		Timers: []Timer{
			constant("early limit", "fleet.EarlyLimit", EarlyLimit, "How long a node that was expected is launched ahead for before it is given up; ResumeProgram comes within two seconds unless the job is gone."),
			constant("lost call", "fleet.LostHook", LostHook, "How long what Slurm shows may contradict the last call of its programs before that call counts as lost."),
			bootstrapTimeout(),
			resumeTimeout(),
			constant("suspend timeout", "control.suspendTimeout", 5*time.Second, "Slurm's SuspendTimeout: how long a node counts as powering down. openpcs does not wait for it: a node whose instance is gone is `idle~` at once, but for one that failed, which rests anyway and keeps its reason so."),
			idleTime(),
			constant("power-up", "control.powerUpAgain", 15*time.Second, "How long after it was asked to power up a node of the minimum Slurm is asked again, if nothing came of it."),
			{
				Name: "rest of a node", Value: "5s, 10s, 20s, ... 10m", Source: "fleet.backoffBase, fleet.backoffCap",
				Text: "How long a node whose instances failed waits for the next; it doubles with each failure in a row. A node that becomes ready ends it, and so does an update of the group. With `OPENPCS_BREAKER=off` it stays at 5 s.",
			},
			poolRest(),
			breakerRest(),
			constant("settle time", "control.settleTime", 1500*time.Millisecond, "How long an instance may be stopped and count as rebooting."),
			constant("sweep", "control.sweepTime", 30*time.Second, "How often everything is compared with the provider, whatever its events said."),
			lookAgain(),
		},
	}
}

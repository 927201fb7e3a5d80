package fleet

import (
	"slices"
	"time"
)

// By is the part that makes a transition.
type By string

// The parts that make transitions.
const (
	ByAPI     By = "api"     // the service that answers a call of the PCS API: package pcs
	ByControl By = "control" // the cluster's loop, its effects and its watches: package control
	BySlurm   By = "slurm"   // a program that slurmctld runs, which calls package control
)

// Machine is a declared state machine. What is declared is what happens:
// tests of the packages that make transitions fail on one that is not
// declared, and want to see each that is. The pages in docs/states are
// written from it.
type Machine struct {
	Of          string // cluster, group, queue, node, instance
	Title       string
	Text        string // paragraphs before the diagram
	States      []State
	Transitions []Transition
	Timers      []Timer
	// Aside are states that the diagram leaves to the table, as nearly
	// everything leads there.
	Aside []string
}

// State is one state of a machine.
type State struct {
	Name string
	Text string // what it means
}

// Transition is a way between states. None stands for what is not there: in
// From before the beginning, in To after the end.
type Transition struct {
	From    []string
	To      string
	By      By
	Trigger string
	// Code is an instance's StateCode afterwards, which says why it ended.
	Code string
	// Timers name the timers that have a part in it.
	Timers []string
	// Rare is left out of the diagram.
	Rare bool
}

// None is no state: the thing does not exist.
const None = ""

// Timer is a time that a machine depends on.
type Timer struct {
	Name  string
	Value string // as people read it
	// Source is where the value comes from: a constant as package.name, an
	// environment variable, or a member of the API.
	Source string
	// Length is the value of a constant, which a test compares.
	Length time.Duration
	Text   string
}

// constant is a timer that nobody can set.
func constant(name, source string, d time.Duration, text string) Timer {
	return Timer{Name: name, Value: inWords(d), Source: source, Length: d, Text: text}
}

// inWords writes a duration without the zeros that String has.
func inWords(d time.Duration) string {
	text := d.String()
	for _, zero := range []string{"m0s", "h0m"} {
		if len(text) > len(zero) && text[len(text)-len(zero):] == zero {
			text = text[:len(text)-len(zero)+1]
		}
	}
	return text
}

// Step is a transition as it is seen.
type Step struct {
	From, To string
	By       By
	Code     string
}

// Steps returns each step that the machine declares.
func (m Machine) Steps() (out []Step) {
	for _, t := range m.Transitions {
		for _, from := range t.From {
			out = append(out, Step{from, t.To, t.By, t.Code})
		}
	}
	return out
}

// Allows reports whether a step is declared.
func (m Machine) Allows(s Step) bool { return slices.Contains(m.Steps(), s) }

// Machines returns all machines.
func Machines() []Machine {
	return []Machine{
		clusterMachine(), memberMachine("group", "compute node group", groupText, groupDeleting, groupGone), memberMachine("queue", "queue", queueText, queueDeleting, queueGone),
		nodeMachine(), instanceMachine(),
	}
}

// MachineOf returns the machine of a kind of thing; it panics if there is
// none.
func MachineOf(kind string) Machine {
	all := Machines()
	return all[slices.IndexFunc(all, func(m Machine) bool { return m.Of == kind })]
}

// lookAgain is the timer that all machines of the loop share.
func lookAgain() Timer {
	return constant("next look", "control.lookAgain", 10*time.Second,
		"The cluster's loop looks at everything at the latest then, whatever event was lost. While it fails it looks again after 200ms, 400ms and so on up to this.")
}

func clusterMachine() Machine {
	c := func(all ...Status) (out []string) {
		for _, s := range all {
			out = append(out, string(s))
		}
		return out
	}
	return Machine{
		Of: "cluster", Title: "Cluster",
		Text: "The status of a cluster is that of the PCS API. It says how far provisioning got and\nnothing about health: that the controller of an `ACTIVE` cluster cannot be reached\nshows in `errorInfo` as `CONTROLLER_UNREACHABLE` and changes no status.",
		States: []State{
			{string(Creating), "The call was accepted. The controller's instance is launched, and slurmctld gets its first configuration. One cluster of a region may be in this state."},
			{string(Active), "slurmctld runs with a configuration that has all that was asked for."},
			{string(Updating), "A change was accepted, and slurmctld does not run with it yet. What runs goes on."},
			{string(CreateFailed), "There never was a working controller. `errorInfo` says why. It can only be deleted."},
			{string(UpdateFailed), "slurmctld refused the change, or a daemon did not start with it; the words are in `errorInfo`. The former settings are in force, and the cluster can be used, updated and deleted."},
			{string(Deleting), "The controller's instance and the cluster's folders are being removed. Nothing turns back from here."},
		},
		Transitions: []Transition{
			{From: c(None), To: string(Creating), By: ByAPI, Trigger: "`CreateCluster`"},
			{From: c(Creating), To: string(Active), By: ByControl, Trigger: "slurmctld took its first configuration"},
			{From: c(Creating), To: string(CreateFailed), By: ByControl, Trigger: "slurmctld refused its first configuration (`SLURM_CONFIGURATION_REFUSED`), or the controller did not come up in time (`CONTROLLER_FAILED`), or a daemon on it (`ACCOUNTING_FAILED`, `REST_API_FAILED`)", Timers: []string{"creation limit"}},
			{From: c(Active, UpdateFailed), To: string(Updating), By: ByAPI, Trigger: "`UpdateCluster`, while every group and queue is `ACTIVE`"},
			{From: c(Updating), To: string(Active), By: ByControl, Trigger: "slurmctld took the change"},
			{From: c(Updating), To: string(UpdateFailed), By: ByControl, Trigger: "slurmctld refused the change (`SLURM_CONFIGURATION_REFUSED`), or a daemon did not start with it in time (`ACCOUNTING_FAILED`, `REST_API_FAILED`); the former settings are back", Timers: []string{"update limit"}},
			{From: c(Creating, Active, Updating, CreateFailed, UpdateFailed), To: string(Deleting), By: ByAPI, Trigger: "`DeleteCluster`, without groups and queues"},
			{From: c(Deleting), To: None, By: ByControl, Trigger: "the controller's instance, the folders and the key are gone"},
		},
		Timers: []Timer{
			constant("creation limit", "control.creationLimit", 5*time.Minute, "How long a controller may take to come up for the first time. It is counted from the creation, or from the start of openpcs if that was later."),
			constant("update limit", "control.updateLimit", 5*time.Minute, "How long slurmdbd, its database and slurmrestd may not start with a change. It is counted from the update, or from the start of openpcs if that was later. A controller that cannot be reached ends no update."),
			lookAgain(),
		},
	}
}

const (
	groupText = "The status of a compute node group is that of the PCS API. It says whether slurmctld\nknows the group as it was asked for, and nothing about its nodes: a group without\ncapacity is `ACTIVE`, and `errorInfo` has what its nodes lack. One whose scripts fail is\n`ACTIVE` too, and one whose instances are still being replaced after an update: each\ngoes when its jobs are done."
	queueText = "The status of a queue is that of the PCS API. It says whether slurmctld has the\npartition as it was asked for."

	groupDeleting = "The group's instances are ended; then the next configuration leaves its nodes out. Nothing turns back from here."
	queueDeleting = "The queue's jobs are cancelled; when the last is gone the next configuration leaves the partition out. Nothing turns back from here."

	groupGone = "the last instance of the group is gone, and slurmctld took a configuration without its nodes"
	queueGone = "no job is left in the partition, and slurmctld took a configuration without it"
)

// memberMachine is the machine of groups and queues, which differ in what
// their end waits for.
func memberMachine(of, noun, text, deleting, gone string) Machine {
	c := func(all ...Status) (out []string) {
		for _, s := range all {
			out = append(out, string(s))
		}
		return out
	}
	call, title, use := "ComputeNodeGroup", "Compute node group", "no queue uses it"
	if of == "queue" {
		call, title, use = "Queue", "Queue", ""
	}
	if use != "" {
		use = ", when " + use
	}
	m := Machine{
		Of: of, Title: title, Text: text,
		States: []State{
			{string(Creating), "The call was accepted, and slurmctld does not have the " + noun + " yet."},
			{string(Active), "slurmctld runs with a configuration that has the " + noun + " as it was asked for."},
			{string(Updating), "A change was accepted, and slurmctld does not run with it yet."},
			{string(CreateFailed), "slurmctld refused the configuration with the " + noun + ", with its words in `errorInfo`. It is in no configuration. It can be updated, which tries again, and deleted."},
			{string(UpdateFailed), "slurmctld refused the change, with its words in `errorInfo`. What it took before is in force. It can be updated and deleted."},
			{string(Deleting), deleting},
		},
		Transitions: []Transition{
			{From: c(None), To: string(Creating), By: ByAPI, Trigger: "`Create" + call + "`, in a cluster that is `ACTIVE` or `UPDATE_FAILED`"},
			{From: c(Creating), To: string(Active), By: ByControl, Trigger: "slurmctld took a configuration with it"},
			{From: c(Creating), To: string(CreateFailed), By: ByControl, Trigger: "slurmctld refused that configuration (`SLURM_CONFIGURATION_REFUSED`)"},
			{From: c(Active, UpdateFailed, CreateFailed), To: string(Updating), By: ByAPI, Trigger: "`Update" + call + "`, in a cluster that is `ACTIVE` or `UPDATE_FAILED`"},
			{From: c(Updating), To: string(Active), By: ByControl, Trigger: "slurmctld took the change"},
			{From: c(Updating), To: string(UpdateFailed), By: ByControl, Trigger: "slurmctld refused the change (`SLURM_CONFIGURATION_REFUSED`); what it took before is back"},
			{From: c(Updating), To: string(CreateFailed), By: ByControl, Trigger: "slurmctld refused it again, and never took it before"},
			{From: c(Creating, Active, Updating, CreateFailed, UpdateFailed), To: string(Deleting), By: ByAPI, Trigger: "`Delete" + call + "`" + use},
			{From: c(Deleting), To: None, By: ByControl, Trigger: gone},
		},
		Timers: []Timer{lookAgain()},
	}
	if of == "group" {
		m.Timers = append(m.Timers, poolRest(), breakerRest())
	}
	return m
}

// poolRest is how long what had no capacity is left alone.
func poolRest() Timer {
	return Timer{
		Name: "rest of a pool", Value: "5s, 10s, 20s, ... 10m", Source: "fleet.backoffBase, fleet.backoffCap",
		Text: "How long an instance type in a subnet that had no instance to give is left alone; it doubles with each refusal in a row. A reason that no waiting cures, such as an image that is gone, takes the longest at once. It changes no status; an update of the group ends it.",
	}
}

// breakerRest is how long a group rests whose instances do not come up.
func breakerRest() Timer {
	return Timer{
		Name: "rest of a breaker", Value: "1m20s, 2m40s, 5m20s, 10m", Source: "`OPENPCS_BREAKER`, fleet.backoffBase, fleet.backoffCap",
		Text: "How long a group rests after 5 starts in a row that failed, whatever the nodes, and after each further one: as long as a node after as many failures of its own. Then one launch at a time tries. An instance that comes up, or an update of the group, ends it. With `OPENPCS_BREAKER=off` there is none, and the rest of a node stays at 5 s.",
	}
}

// StateCodes of instances that openpcs sets, beside Server. and the code of a
// launch that was refused.
const (
	codeOurs     = "User.Initiated"
	codeFailed   = "Server.InternalError"
	codeLost     = "Server.Lost"
	codeItself   = "Client.InstanceInitiatedShutdown"
	codeUser     = "Client.UserInitiatedShutdown"
	codeSpot     = "Server.SpotInstanceTermination"
	codeCapacity = "Server.InsufficientInstanceCapacity"
	codeQuota    = "Server.VcpuLimitExceeded"
	codeImage    = "Server.InvalidAMIID.NotFound"
)

func instanceMachine() Machine {
	const (
		pending, running, ending, gone = string(Pending), string(Running), string(ShuttingDown), string(Terminated)
	)
	of := func(all ...string) []string { return all }
	return Machine{
		Of: "instance", Title: "Instance",
		Text: "The state of an instance is that of EC2, and `describe-instances` shows it. Instances of\ncompute node groups are made by openpcs alone; one backs one Slurm node for the whole\nof its life and no node has two at a time. An instance that ends has a code and a\nsentence in `StateReason`.",
		States: []State{
			{pending, "It has an id, an address and a place in the state file, and is being launched."},
			{running, "The provider launched it, or its agent registered. That its agent registered, and that slurmctld sees its slurmd, are marks on it: see [node](node.md)."},
			{ending, "Its end is decided. Its console and logs are copied, then it is removed; this is tried until the provider says that it is gone."},
			{gone, "It is gone, and still shown for a while."},
		},
		Transitions: []Transition{
			{From: of(None), To: pending, By: ByControl, Trigger: "the planner assigned it to a node that is wanted"},
			{From: of(pending), To: running, By: ByControl, Trigger: "the provider launched it"},
			{From: of(pending), To: running, By: ByAPI, Trigger: "`RegisterComputeNodeGroupInstance`, when its agent was faster than the record of the launch"},
			{From: of(pending), To: None, By: ByControl, Trigger: "its pool had no room, and the only other that may have some is being tried by another launch, for which the node waits"},
			{From: of(pending), To: ending, By: ByControl, Code: codeCapacity, Trigger: "every pool of its group refused it"},
			{From: of(pending), To: ending, By: ByControl, Code: codeQuota, Trigger: "every pool of its group refused it, the last for a quota; the code is the provider's"},
			{From: of(pending), To: ending, By: ByControl, Code: codeImage, Trigger: "its image is gone"},
			{From: of(pending), To: ending, By: ByControl, Code: codeFailed, Trigger: "the provider could not launch it (`LAUNCH_FAILED`)"},
			{From: of(running), To: ending, By: ByControl, Code: codeFailed, Trigger: "it did not register in time (`BOOTSTRAP_TIMEOUT`), its agent reported a failure (`BOOTSTRAP_FAILED` and others), or slurmctld did not take its registration (`INVALID_REGISTRATION`)", Timers: []string{"bootstrap timeout"}},
			{From: of(pending, running), To: ending, By: BySlurm, Code: codeFailed, Trigger: "ResumeFailProgram: its node was not up in time (`RESUME_TIMEOUT`)", Timers: []string{"resume timeout"}},
			{From: of(pending, running), To: ending, By: ByControl, Code: codeOurs, Trigger: "its node is not wanted any more (`IDLE`), its group is being deleted (`GROUP_DELETED`) or was updated before its slurmd could start (`GROUP_UPDATED`), or the group's maximum was lowered below its node (`SCALE_IN`)", Timers: []string{"idle time"}},
			{From: of(running), To: ending, By: BySlurm, Code: codeOurs, Trigger: "ResumeProgram named its node anew: Slurm had powered the node down"},
			{From: of(pending, running), To: ending, By: ByControl, Code: codeUser, Trigger: "`TerminateInstances` of a user (`TERMINATED_BY_USER`)"},
			{From: of(running), To: ending, By: ByControl, Code: codeLost, Trigger: "the provider does not have it any more (`INSTANCE_LOST`)", Timers: []string{"sweep"}},
			{From: of(running), To: ending, By: ByControl, Code: codeItself, Trigger: "it stopped and did not start again (`INSTANCE_LOST`)", Timers: []string{"settle time", "sweep"}},
			{From: of(running), To: ending, By: ByControl, Code: codeCapacity, Trigger: "the provider launched it without an error and never had it"},
			{From: of(running), To: ending, By: ByControl, Code: codeSpot, Trigger: "the time of its Spot interruption notice has come (`SPOT_RECLAIMED`)"},
			{From: of(ending), To: gone, By: ByControl, Trigger: "the provider removed it"},
			{From: of(gone), To: None, By: ByControl, Trigger: "it was shown long enough", Timers: []string{"shown when terminated"}},
		},
		Timers: []Timer{
			bootstrapTimeout(),
			resumeTimeout(),
			idleTime(),
			constant("settle time", "control.settleTime", 1500*time.Millisecond, "How long an instance may be stopped and count as rebooting."),
			constant("sweep", "control.sweepTime", 30*time.Second, "How often everything is compared with the provider, whatever its events said."),
			constant("shown when terminated", "fleet.KeepTerminated", KeepTerminated, "How long `describe-instances` shows a terminated instance."),
			lookAgain(),
		},
	}
}

func bootstrapTimeout() Timer {
	return constant("bootstrap timeout", "fleet.BootstrapTimeout", BootstrapTimeout, "How long an instance may take from its launch to its registration.")
}

func resumeTimeout() Timer {
	return Timer{
		Name: "resume timeout", Value: "30m unless set", Source: "`OPENPCS_RESUME_TIMEOUT`, else control.resumeTimeout", Length: 30 * time.Minute,
		Text: "Slurm's ResumeTimeout: how long a node may take to come up.",
	}
}

func idleTime() Timer {
	return Timer{
		Name: "idle time", Value: "10m unless set", Source: "`scaleDownIdleTimeInSeconds` of the group, else of the cluster",
		Text: "Slurm's SuspendTime: how long a node is idle before SuspendProgram names it. The nodes of a group's minimum never are.",
	}
}

package fleet

import (
	"cmp"
	"fmt"
	"time"

	"github.com/openpcs/openpcs/internal/condition"
)

// Outlook says what happens to a node next, and when: the timers of Plan in
// words. Idle is the cluster's idle time, in place of which the group may have
// one of its own.
func Outlook(o Observed, g Group, index int, idle time.Duration) []string {
	idle = cmp.Or(g.IdleTime, idle)
	name := g.NodeName(index)
	n, seen := o.Nodes[name], o.Slurm[name]
	at := func(t time.Time) string {
		left := max(t.Sub(o.Now), 0).Round(time.Second)
		return fmt.Sprintf("at %s (in %v)", t.UTC().Format(time.TimeOnly), left)
	}
	i, _ := o.Live(name)
	rest, held := g.Held(o.Now)
	// Nodes within the minimum are wanted without a job.
	wanted := ", as soon as a job wants it"
	if index <= g.Min {
		wanted = ""
	}
	lacks := fmt.Sprintf("Its group has no capacity (%s). One launch tries again %s%s.", rest.EC2Code, at(rest.NotBefore), wanted)
	if rest.Code == condition.BreakerOpen {
		lacks = fmt.Sprintf("%d starts in its group failed in a row (%s). One launch tries again %s%s.", g.Breaker.Failures, rest.Code, at(rest.NotBefore), wanted)
	}
	resume := "scontrol update nodename=" + name + " state=resume gives it back."
	switch NodeState(o, g, name) {
	case NodeEnding:
		return []string{"Its instance " + i.ID + " is being ended."}
	case NodeLaunching:
		return []string{"Its instance " + i.ID + " is being launched."}
	case NodeBooting:
		return []string{fmt.Sprintf("Its instance %s boots. If it has not registered by then, it is given up %s.", i.ID, at(i.StartedAt.Add(BootstrapTimeout)))}
	case NodeEarly:
		return []string{fmt.Sprintf("Its instance %s waits for Slurm's ResumeProgram. Without one it is ended %s.", i.ID, at(n.WantAt.Add(EarlyLimit)))}
	case NodeStarting:
		return []string{"Its instance " + i.ID + " has registered, and its slurmd is starting. ResumeTimeout gives it up if that does not come about."}
	case NodeReclaimed:
		return []string{"The provider takes its Spot instance back " + at(i.ReclaimAt) + "."}
	case NodeDrained:
		return []string{"It is drained, and left to whoever drained it: " + resume}
	case NodeUnusable:
		return []string{"Slurm took it out of service, so its instance " + i.ID + " is about to be ended, and a fresh one comes when it is needed."}
	case NodeReplacing:
		if i.Failure != "" {
			return []string{"A lifecycle script failed on its instance: when its jobs are done, the instance is ended as failed, and a fresh one takes its place."}
		}
		if index <= g.Min && g.Min > 1 {
			return []string{"Its group was updated: when its jobs are done, a fresh instance takes its place. Half of the group's minimum stays meanwhile, so it may wait for others to come up."}
		}
		return []string{"Its group was updated: when its jobs are done, a fresh instance takes its place."}
	case NodeUp:
		switch {
		case index <= g.Min:
			return []string{"It stays up: it is within the group's minimum of " + fmt.Sprint(g.Min) + "."}
		case seen.Has("IDLE"):
			return []string{"It is idle. Slurm suspends it once it has been so for " + idle.String() + "."}
		}
		return []string{"It stays up while it has jobs, and " + idle.String() + " longer."}
	case NodeFailed:
		if n.Down == "" {
			return []string{"It is down for " + seen.Reason + ", and about to be given back to Slurm."}
		}
		return []string{"slurmctld is about to be told: " + n.Down}
	case NodeLeaving:
		return []string{"Its group is being deleted."}
	case NodeHeld:
		return []string{lacks}
	case NodeResting:
		if index <= g.Min {
			return []string{"After its failure the next launch is " + at(n.NotBefore) + ": it is within the group's minimum of " + fmt.Sprint(g.Min) + "."}
		}
		return []string{"After its failure the next launch is " + at(n.NotBefore) + " at the earliest, as soon as a job wants it."}
	case NodeWanted:
		if held {
			return []string{lacks}
		}
		if g.Breaker.Open {
			return []string{"One launch of its group tries whether instances come up again; if it does, an instance is launched for this node too."}
		}
		return []string{"An instance is about to be launched for it."}
	case NodeDown:
		return []string{"It is down in Slurm, and left to whoever set it so: " + resume}
	case None:
		return []string{"slurmctld does not have it: its group is not ACTIVE, or it lies above the group's maximum."}
	}
	if index <= g.Min {
		return []string{"It is within the group's minimum of " + fmt.Sprint(g.Min) + ", so Slurm is about to be asked to resume it."}
	}
	return []string{"It is off. It is launched when Slurm gives it to a job."}
}

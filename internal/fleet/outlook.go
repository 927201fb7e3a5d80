package fleet

import (
	"fmt"
	"time"
)

// Outlook says what happens to a node next, and when: the timers of Plan in
// words. Idle is the cluster's idle time.
func Outlook(o Observed, g Group, index int, idle time.Duration) []string {
	name := g.NodeName(index)
	n, seen := o.Nodes[name], o.Slurm[name]
	at := func(t time.Time) string {
		left := max(t.Sub(o.Now), 0).Round(time.Second)
		return fmt.Sprintf("at %s (in %v)", t.UTC().Format(time.TimeOnly), left)
	}
	for _, i := range o.Instances {
		if i.NodeName != name || !i.State.Live() {
			continue
		}
		switch {
		case i.State == ShuttingDown:
			return []string{"Its instance " + i.ID + " is being ended."}
		case i.State == Pending && i.StartedAt.IsZero():
			return []string{"Its instance " + i.ID + " is being launched."}
		case i.RegisteredAt.IsZero():
			return []string{fmt.Sprintf("Its instance %s boots. If it has not registered by then, it is given up %s.", i.ID, at(i.StartedAt.Add(BootstrapTimeout)))}
		case n.Early:
			return []string{fmt.Sprintf("Its instance %s waits for Slurm's ResumeProgram. Without one it is ended %s.", i.ID, at(n.WantAt.Add(EarlyLimit)))}
		case i.ReadyAt.IsZero():
			return []string{"Its instance " + i.ID + " has registered, and its slurmd is starting. ResumeTimeout gives it up if that does not come about."}
		case !i.ReclaimAt.IsZero():
			return []string{"The provider takes its Spot instance back " + at(i.ReclaimAt) + "."}
		case seen.Has("DRAIN"):
			return []string{"It is drained, and left to whoever drained it: scontrol update nodename=" + name + " state=resume gives it back."}
		case i.GroupRevision != g.Revision:
			return []string{"Its group was updated: when its jobs are done, a fresh instance takes its place."}
		case index <= g.Min:
			return []string{"It stays up: it is within the group's minimum of " + fmt.Sprint(g.Min) + "."}
		case seen.Has("IDLE"):
			return []string{"It is idle. Slurm suspends it once it has been so for " + idle.String() + "."}
		default:
			return []string{"It stays up while it has jobs, and " + idle.String() + " longer."}
		}
	}
	rest, held := g.Held(o.Now)
	switch {
	case n.Down != "":
		return []string{"slurmctld is about to be told: " + n.Down}
	case g.Status == Deleting:
		return []string{"Its group is being deleted."}
	case seen.Has("DRAIN"):
		return []string{"It is drained, and left to whoever drained it: scontrol update nodename=" + name + " state=resume gives it back."}
	case held:
		return []string{fmt.Sprintf("Its group has no capacity (%s). One launch tries again %s, as soon as a job wants it.", rest.Code, at(rest.NotBefore))}
	case rests(o.Now, n.NotBefore):
		return []string{"After its failure the next launch is " + at(n.NotBefore) + " at the earliest, as soon as a job wants it."}
	case n.Want:
		return []string{"An instance is about to be launched for it."}
	case index <= g.Min:
		return []string{"It is within the group's minimum of " + fmt.Sprint(g.Min) + ", so Slurm is about to be asked to resume it."}
	case seen.Has("DOWN"):
		return []string{"It is down in Slurm, and left to whoever set it so: scontrol update nodename=" + name + " state=resume gives it back."}
	}
	return []string{"It is off. It is launched when Slurm gives it to a job."}
}

package fleet

import (
	"time"

	"github.com/openpcs/openpcs/internal/condition"
)

// End decides the end of an instance: it goes to shutting-down, for a
// condition that it keeps. A node that Slurm suspends, and that Slurm was asked
// to give up before, ends for what was asked.
func (i *Instance) End(code condition.Code, stateCode, stateReason string) {
	if code == condition.Idle && i.Leaving != "" {
		code = i.Leaving
	}
	i.State, i.StateCode, i.StateReason, i.EndCode = ShuttingDown, stateCode, stateReason, code
}

// FailInstance records that an instance did not come up or was lost: it goes
// to shutting-down (or stays terminated), its node is set down in Slurm with
// the reason and rests for a time that doubles with each failure in a row.
func FailInstance(i Instance, n Node, code condition.Code, text, reason string, now time.Time) (Instance, Node) {
	i.FailureCode, i.Failure = code, text
	if i.State != Terminated {
		i.End(code, "Server.InternalError", text)
	}
	n.Want, n.Early = false, false
	n.Jobs = nil
	n.Down = reason
	n.FailureCode, n.LastFailure = code, text
	return i, n.Rest(now)
}

// Rest holds back the next launch for a node after a failure.
func (n Node) Rest(now time.Time) Node {
	n.Attempts++
	n.NotBefore = now.Add(restAfter(n.Attempts))
	return n
}

// restAfter is how long is waited after failures in a row: 5 s, 10 s, 20 s,
// ... 10 min.
func restAfter(failures int) time.Duration {
	return min(backoffBase<<min(failures-1, 16), backoffCap)
}

package fleet

import (
	"fmt"
	"time"

	"github.com/openpcs/openpcs/internal/condition"
)

// DefaultBreaker is after how many failed starts in a row a group's breaker
// opens, if nothing else is configured.
const DefaultBreaker = 5

// FailureRest is how long a node rests after a failure where there is no
// breaker: PCS tries for ever, and waits for no longer each time.
const FailureRest = backoffBase

// Breaker counts the starts of a group's instances that failed in a row,
// whatever the node. After so many as are configured it is open: the group
// rests as a node would after as many failures of its own, and then tries with
// one launch at a time, until one comes up or the group is updated. A start
// failed when the instance did not become a node that is up, for whatever
// reason; a refusal for lack of capacity is none (see Pool).
type Breaker struct {
	Failures int  `json:"failures,omitempty"`
	Open     bool `json:"open,omitempty"`
	// NotBefore holds the next launch back.
	NotBefore time.Time `json:"notBefore,omitzero"`
	// Code and Text are of the last failure, Reason is what Slurm shows.
	Code   condition.Code `json:"code,omitempty"`
	Text   string         `json:"text,omitempty"`
	Reason string         `json:"reason,omitempty"`
}

// String tells of an open breaker.
func (b Breaker) String() string {
	return fmt.Sprintf("%d starts in a row failed, the last with %s: %s; one launch tries again not before %s", b.Failures, b.Code, b.Text, b.NotBefore.UTC().Format(time.RFC3339))
}

// Failed counts a failed start; limit is how many open the breaker, 0 for
// never. What fails while the group rests was under way when the breaker
// opened, and counts no more.
func (g *Group) Failed(limit int, code condition.Code, text, reason string, now time.Time) {
	b := &g.Breaker
	if b.Open && rests(now, b.NotBefore) {
		return
	}
	b.Failures++
	b.Code, b.Text, b.Reason = code, text, reason
	if limit > 0 && b.Failures >= limit {
		b.Open, b.NotBefore = true, now.Add(restAfter(b.Failures))
	}
}

// Succeeded closes the breaker, and reports whether there was anything to
// forget.
func (g *Group) Succeeded() (changed bool) {
	changed = g.Breaker != Breaker{}
	g.Breaker = Breaker{}
	return changed
}

// Hold is why no node of a group can have an instance for the time being.
type Hold struct {
	Code   condition.Code
	Text   string // what happened
	Reason string // on Slurm nodes
	// EC2Code is the error code of the refusal or failure, as EC2 would say.
	EC2Code string
	// Pool is what was refused, and may be tried first; none for a breaker.
	Pool      Pool
	NotBefore time.Time
}

// Held reports whether no node of the group can have an instance now, and
// why: its breaker rests, or all of its pools do.
func (g Group) Held(now time.Time) (Hold, bool) {
	if b := g.Breaker; b.Open && rests(now, b.NotBefore) {
		return Hold{
			Code: condition.BreakerOpen, Text: b.String(), EC2Code: "InternalError", NotBefore: b.NotBefore,
			Reason: b.Reason + " (" + string(condition.BreakerOpen) + ", next try " + b.NotBefore.UTC().Format(time.TimeOnly) + " UTC)",
		}, true
	}
	p, held := g.starved(now)
	return Hold{Code: p.Condition(), Text: p.Code + ": " + p.Text, Reason: LaunchReason(p.Code), EC2Code: p.Code, Pool: p, NotBefore: p.NotBefore}, held
}

// HeldNode records that a node cannot have an instance: Slurm is told with the
// reason, which frees its job.
func HeldNode(n Node, h Hold) Node {
	n.Want, n.Early, n.Jobs = false, false, nil
	n.Down = h.Reason
	n.FailureCode, n.LastFailure = h.Code, h.Text
	return n
}

// Retry has a group and its nodes try again at once, after an update that may
// have cured what kept them down. It returns the nodes that change.
func (g *Group) Retry(nodes []Node) (changed []Node) {
	g.Refused, g.Breaker = nil, Breaker{}
	for _, n := range nodes {
		if n.GroupID == g.ID && (n.Attempts > 0 || !n.NotBefore.IsZero()) {
			n.Attempts, n.NotBefore = 0, time.Time{}
			changed = append(changed, n)
		}
	}
	return changed
}

package fleet

import (
	"slices"
	"time"

	"github.com/openpcs/openpcs/internal/condition"
)

// Pool is one place where a group's instances can come from: an instance
// type in a subnet. EC2 runs out of capacity, and subnets of addresses, by
// pool.
type Pool struct {
	Type     string `json:"type"`
	SubnetID string `json:"subnetId"`
	// Code is the EC2 error code of the last refusal, Text the provider's
	// words.
	Code string `json:"code,omitempty"`
	Text string `json:"text,omitempty"`
	// Refusals counts those in a row; NotBefore holds the next try back.
	Refusals  int       `json:"refusals,omitempty"`
	Final     bool      `json:"final,omitempty"` // no waiting cures it
	NotBefore time.Time `json:"notBefore,omitzero"`
}

func (p Pool) is(typ, subnetID string) bool { return p.Type == typ && p.SubnetID == subnetID }

// Condition is what the pool's refusal is to people.
func (p Pool) Condition() condition.Code {
	if p.Final {
		return condition.LaunchImpossible
	}
	return condition.InsufficientCapacity
}

// Pools lists where the group's instances can come from, the preferred one
// first: each type in every subnet, then the next type.
func (g Group) Pools() (out []Pool) {
	for _, t := range g.InstanceTypes {
		for _, s := range g.SubnetIDs {
			p := Pool{Type: t, SubnetID: s}
			if i := slices.IndexFunc(g.Refused, func(r Pool) bool { return r.is(t, s) }); i >= 0 {
				p = g.Refused[i]
			}
			out = append(out, p)
		}
	}
	return out
}

// Choose returns the first pool that may be tried now. One that refused
// before is tried with one launch at a time: launching says whether such a
// try is under way. With none to be had, busy says that it is worth waiting
// for a try under way.
func (g Group) Choose(now time.Time, launching func(Pool) bool) (pool Pool, ok, busy bool) {
	for _, p := range g.Pools() {
		switch {
		case rests(now, p.NotBefore):
		case p.Refusals > 0 && launching(p):
			busy = true
		default:
			return p, true, false
		}
	}
	return Pool{}, false, busy
}

// starved reports whether every pool rests, and the one that ends its rest
// first: until then no node of the group can be had.
func (g Group) starved(now time.Time) (first Pool, held bool) {
	for i, p := range g.Pools() {
		if !rests(now, p.NotBefore) {
			return Pool{}, false
		}
		if i == 0 || p.NotBefore.Before(first.NotBefore) {
			first = p
		}
	}
	return first, first.Type != ""
}

// Refuse records that a pool had no instance to give. It rests for a time
// that doubles with each refusal in a row; a final refusal, which no waiting
// cures, has it rest for the longest time at once. Refusals of launches that
// were under way together count as one.
func (g *Group) Refuse(typ, subnetID, code, text string, final bool, now time.Time) {
	i := slices.IndexFunc(g.Refused, func(p Pool) bool { return p.is(typ, subnetID) })
	if i < 0 {
		g.Refused = append(g.Refused, Pool{Type: typ, SubnetID: subnetID})
		i = len(g.Refused) - 1
	}
	p := &g.Refused[i]
	p.Code, p.Text, p.Final = code, text, final
	if rests(now, p.NotBefore) {
		return
	}
	p.Refusals++
	wait := restAfter(p.Refusals)
	if final {
		wait = backoffCap
	}
	p.NotBefore = now.Add(wait)
}

// Grant records that a pool gave an instance.
func (g *Group) Grant(typ, subnetID string) (changed bool) {
	before := len(g.Refused)
	g.Refused = slices.DeleteFunc(g.Refused, func(p Pool) bool { return p.is(typ, subnetID) })
	return len(g.Refused) != before
}

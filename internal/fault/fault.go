// Package fault owns the faults that users ask for to see how their set-up
// bears them: what kinds there are, and which of them is due. Package control
// makes them happen; they are off unless the control plane was started with
// them.
package fault

import (
	"crypto/rand"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/openpcs/openpcs/internal/store"
)

// Kind is what goes wrong.
type Kind string

// The kinds of faults.
const (
	InsufficientCapacity Kind = "insufficient-capacity" // launches are refused
	SlowBoot             Kind = "slow-boot"             // instances take Delay longer to boot
	LostNode             Kind = "lost-node"             // a node that is up vanishes
	SpotReclaim          Kind = "spot-reclaim"          // likewise, told Delay before
	AgentHang            Kind = "agent-hang"            // the agent of a new instance never registers
	DownloadFails        Kind = "download-fails"        // what an agent fetches at boot is answered with an error
)

// sort is a kind with what it means to people.
type sort struct {
	kind  Kind
	text  string
	delay time.Duration // the usual one, of kinds that have one
}

var kinds = []sort{
	{InsufficientCapacity, "launches are refused with InsufficientInstanceCapacity", 0},
	{SlowBoot, "new instances boot later, by the delay (30s)", 30 * time.Second},
	{LostNode, "a node that is up loses its instance without a word", 0},
	{SpotReclaim, "a node that is up gets a Spot interruption notice, and is reclaimed after the delay (2m)", 2 * time.Minute},
	{AgentHang, "the agent of a new instance never registers", 0},
	{DownloadFails, "what an agent fetches at boot is answered with an error, once for each time counted", 0},
}

// Kinds lists the kinds with what they do.
func Kinds() (out [][2]string) {
	for _, k := range kinds {
		out = append(out, [2]string{string(k.kind), k.text})
	}
	return out
}

// Fault is a fault that was asked for. It strikes Left times, or any number
// of times until Until.
type Fault struct {
	ID        string        `json:"id"` // fault- and random letters
	ClusterID string        `json:"clusterId"`
	GroupID   string        `json:"groupId"`
	Group     string        `json:"group"` // its name, for people
	Kind      Kind          `json:"kind"`
	Left      int           `json:"left,omitempty"`
	Until     time.Time     `json:"until,omitzero"`
	Delay     time.Duration `json:"delay,omitempty"`
	// Type limits insufficient capacity to one instance type.
	Type    string    `json:"type,omitempty"`
	AddedAt time.Time `json:"addedAt"`
	Struck  int       `json:"struck"` // times so far
}

// Faults is where faults are stored, under their cluster.
var Faults = store.NewCollection("fault", func(f Fault) store.Index {
	return store.Index{ID: f.ID, Parent: f.ClusterID}
})

// New checks what a user asks for. Count 0 and no duration mean once.
func New(kind string, count int, lasts, delay time.Duration, typ string, now time.Time) (Fault, error) {
	i := slices.IndexFunc(kinds, func(k sort) bool { return string(k.kind) == kind })
	if i < 0 {
		var names []string
		for _, k := range kinds {
			names = append(names, string(k.kind))
		}
		return Fault{}, fmt.Errorf("kind: %q is not one of %s", kind, strings.Join(names, ", "))
	}
	f := Fault{ID: "fault-" + strings.ToLower(rand.Text()[:8]), Kind: kinds[i].kind, Left: count, Delay: delay, Type: typ, AddedAt: now}
	switch {
	case count < 0 || count > 100000:
		return Fault{}, fmt.Errorf("count: %d is not 1 to 100000", count)
	case lasts < 0 || lasts > 7*24*time.Hour:
		return Fault{}, fmt.Errorf("for: %v is not up to seven days", lasts)
	case count > 0 && lasts > 0:
		return Fault{}, fmt.Errorf("count and for: give one of them")
	case delay != 0 && kinds[i].delay == 0:
		return Fault{}, fmt.Errorf("delay: %s has none", kind)
	case delay < 0 || delay > time.Hour:
		return Fault{}, fmt.Errorf("delay: %v is not up to an hour", delay)
	case typ != "" && f.Kind != InsufficientCapacity:
		return Fault{}, fmt.Errorf("type: %s is not by instance type", kind)
	case lasts > 0:
		f.Until = now.Add(lasts)
	case count == 0:
		f.Left = 1
	}
	if f.Delay == 0 {
		f.Delay = kinds[i].delay
	}
	return f, nil
}

// Over reports whether a fault strikes no more.
func (f Fault) Over(now time.Time) bool {
	if f.Until.IsZero() {
		return f.Left <= 0
	}
	return !now.Before(f.Until)
}

// Strike finds the oldest fault of a kind that is due for a group and counts
// it; a fault that is used up is gone. Type is that of the instance.
func Strike(tx *store.Tx, clusterID, groupID string, kind Kind, typ string, now time.Time) (Fault, bool, error) {
	all, err := Of(tx, clusterID, now)
	if err != nil {
		return Fault{}, false, err
	}
	for _, f := range all {
		if f.GroupID != groupID || f.Kind != kind || (f.Type != "" && f.Type != typ) {
			continue
		}
		f.Struck++
		if f.Until.IsZero() {
			f.Left--
		}
		if f.Over(now) {
			return f, true, Faults.Delete(tx, f.ID)
		}
		return f, true, Faults.Put(tx, f)
	}
	return Fault{}, false, nil
}

// Forget drops the faults of a cluster that are over or belong to a group that
// is gone; gone says which is.
func Forget(tx *store.Tx, clusterID string, now time.Time, gone func(groupID string) bool) error {
	all, err := Faults.Of(tx, clusterID)
	if err != nil {
		return err
	}
	for _, f := range all {
		if !f.Over(now) && !gone(f.GroupID) {
			continue
		}
		if err := Faults.Delete(tx, f.ID); err != nil {
			return err
		}
	}
	return nil
}

// Of returns the faults of a cluster that are not over, the oldest first.
func Of(tx *store.Tx, clusterID string, now time.Time) ([]Fault, error) {
	all, err := Faults.Of(tx, clusterID)
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(f Fault) bool { return f.Over(now) })
	slices.SortStableFunc(all, func(a, b Fault) int { return a.AddedAt.Compare(b.AddedAt) })
	return all, nil
}

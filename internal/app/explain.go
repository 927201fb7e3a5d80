package app

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/openpcs/openpcs/internal/condition"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/history"
	"github.com/openpcs/openpcs/internal/store"
)

// Explanation is what something is doing, how it came to that and what comes
// next.
type Explanation struct {
	Name   string   `json:"name"`
	ID     string   `json:"id"`
	Status string   `json:"status"` // one word, where there is one
	Now    []string `json:"now"`    // sentences on the present
	Next   []string `json:"next"`   // and on what comes next
	Events []Moment `json:"events"` // the oldest first

	told []condition.Code // those whose meaning Now has
}

// Moment is one event with its sentence.
type Moment struct {
	store.Event
	Text string `json:"text"`
}

// maxEvents bounds an explanation.
const maxEvents = 200

func (e *Explanation) tell(events []store.Event) {
	for _, ev := range events {
		e.Events = append(e.Events, Moment{ev, history.Sentence(ev)})
	}
}

// problem tells of a condition, the first time with what to do.
func (e *Explanation) problem(code condition.Code, text string) {
	e.Now = append(e.Now, string(code)+": "+text)
	if c, ok := condition.Find(code); ok && c.Severity != condition.Info && !slices.Contains(e.told, code) {
		e.told = append(e.told, code)
		e.Now = append(e.Now, "  "+c.Text, "  What to do: "+c.Fix)
	}
}

// explain says what a node, instance, job, group, cluster or condition is.
// Kind (node, job, group, cluster) narrows it; empty takes the first that
// fits. Where a name is in several clusters, cluster says which is meant.
func (a *App) explain(ctx context.Context, kind, cluster, name string) (Explanation, error) {
	if before, after, ok := strings.Cut(name, "/"); ok && cluster == "" {
		cluster, name = before, after
	}
	if kind == "job" {
		return a.explainJob(ctx, cluster, name)
	}
	e := Explanation{Name: name, ID: name, Now: []string{}, Next: []string{}, Events: []Moment{}}
	if c, ok := condition.Find(condition.Code(name)); ok && kind == "" {
		e.Status = string(c.Severity)
		e.Now = append(e.Now, c.Text, "What to do: "+c.Fix)
		return e, nil
	}
	err := a.store.View(ctx, func(tx *store.Tx) error {
		views, err := a.views(tx, cluster)
		if err != nil {
			return err
		}
		var found []string
		for _, v := range views {
			one := e
			ok, err := a.explainIn(tx, v, kind, name, &one)
			if err != nil {
				return err
			}
			if ok {
				found = append(found, v.cluster.Name+" ("+v.cluster.ID+")")
				e = one
			}
		}
		switch len(found) {
		case 1:
			return nil
		case 0:
			return missing("there is no %s %q", cmp.Or(kind, "node, instance, compute node group or cluster"), name)
		default:
			return fmt.Errorf("%s is in several clusters, %s: say which with --cluster", name, strings.Join(found, ", "))
		}
	})
	return e, err
}

// view is one cluster with what belongs to it.
type view struct {
	cluster fleet.Cluster
	groups  []fleet.Group
	queues  []fleet.Queue
	o       fleet.Observed
}

// views reads all clusters, or the one that is named.
func (a *App) views(tx *store.Tx, cluster string) ([]view, error) {
	clusters, err := fleet.Clusters.All(tx)
	if err != nil {
		return nil, err
	}
	var out []view
	for _, c := range clusters {
		if cluster != "" && cluster != c.ID && cluster != c.Name {
			continue
		}
		v := view{cluster: c, o: fleet.Observed{Now: time.Now().UTC(), Nodes: map[string]fleet.Node{}, Slurm: a.control.States(c.ID)}}
		var nodes []fleet.Node
		if v.groups, err = fleet.Groups.Of(tx, c.ID); err != nil {
			return nil, err
		}
		if v.queues, err = fleet.Queues.Of(tx, c.ID); err != nil {
			return nil, err
		}
		if v.o.Instances, err = fleet.Instances.Of(tx, c.ID); err != nil {
			return nil, err
		}
		if nodes, err = fleet.Nodes.Of(tx, c.ID); err != nil {
			return nil, err
		}
		for _, n := range nodes {
			v.o.Nodes[n.Name] = n
		}
		v.o.Groups = v.groups
		out = append(out, v)
	}
	if cluster != "" && len(out) == 0 {
		return nil, missing("there is no cluster %q", cluster)
	}
	return out, nil
}

// explainIn explains something of one cluster, if it is there.
func (a *App) explainIn(tx *store.Tx, v view, kind, name string, e *Explanation) (ok bool, err error) {
	is := func(k string) bool { return kind == "" || kind == k }
	if c := v.cluster; is("cluster") && (c.ID == name || c.Name == name) {
		return true, a.explainCluster(tx, v, e)
	}
	for _, i := range v.o.Instances {
		if i.ID != name || !is("node") && !is("instance") {
			continue
		}
		e.Status = string(i.State)
		e.Now = append(e.Now, fmt.Sprintf("The instance %s is %s.", i.ID, i.State))
		if why := firstOf(i.Failure, i.StateReason); why != "" {
			if _, ok := condition.Find(i.FailureCode); ok {
				e.problem(i.FailureCode, why)
			} else {
				e.Now = append(e.Now, "Why: "+firstOf(i.StateCode)+": "+why)
			}
		}
		for _, g := range v.groups {
			if g.ID == i.GroupID {
				return true, a.explainNode(tx, v, g, i.NodeName, e)
			}
		}
		events, err := tx.Events(v.cluster.ID, "node/"+i.NodeName, maxEvents)
		e.tell(events)
		return true, err
	}
	for _, g := range v.groups {
		if is("group") && (g.ID == name || g.Name == name) {
			return true, a.explainGroup(tx, v, g, e)
		}
		if n := g.NodeIndex(name); is("node") && n >= 1 && n <= g.Max {
			if e.Status == "" {
				e.ID, e.Status = fleet.NodeID(v.cluster.ID, name), strings.Join(v.o.Slurm[name].State, "+")
			}
			return true, a.explainNode(tx, v, g, name, e)
		}
	}
	return false, nil
}

func (a *App) explainCluster(tx *store.Tx, v view, e *Explanation) error {
	c := v.cluster
	e.ID, e.Status = c.ID, string(c.Status)
	e.Now = append(e.Now, fmt.Sprintf("The cluster %s (%s, Slurm %s, %s) is %s, with %d compute node groups and %d queues.",
		c.Name, c.ID, c.Version, c.Size, c.Status, len(v.groups), len(v.queues)))
	for _, i := range c.Errors {
		e.problem(i.Code, i.Message)
	}
	if c.Trouble != nil {
		e.problem(c.Trouble.Code, c.Trouble.Message)
	}
	for _, t := range a.deliveries.Troubles(c.ID) {
		e.problem(t.Code, t.Message)
	}
	count := map[fleet.InstanceState]int{}
	for _, i := range v.o.Instances {
		count[i.State]++
	}
	e.Now = append(e.Now, fmt.Sprintf("Of its instances %d are pending, %d running, %d shutting down.", count[fleet.Pending], count[fleet.Running], count[fleet.ShuttingDown]))
	for _, g := range v.groups {
		e.groupTrouble(v, g)
	}
	if c.Status == fleet.Creating || c.Status == fleet.Updating {
		e.Next = append(e.Next, "It is ACTIVE as soon as slurmctld runs with its configuration.")
	}
	events, err := tx.Events(c.ID, "", maxEvents)
	for _, daemon := range []string{"slurmctld", "slurmdbd", "slurmrestd"} {
		if n, code, last := crashes(events, daemon, v.o.Now); n > 0 {
			e.problem(code, fmt.Sprintf("%s ended unexpectedly %d times in the last %.0f minutes; the last time: %s.", daemon, n, crashWindow.Minutes(), last))
		}
	}
	if c.Accounting.On && c.DatabaseFull != "" {
		e.problem(condition.DatabaseFull, "The database of accounting has no room for records: "+c.DatabaseFull+".")
	}
	e.tell(events)
	return err
}

// eventDetail is what the event of a notice says.
func eventDetail(ev store.Event) string {
	var d struct {
		Detail string `json:"detail"`
	}
	_ = json.Unmarshal(ev.Detail, &d) // one without says nothing
	return d.Detail
}

// crashWindow is how long a crash of a daemon is worth a sentence.
const crashWindow = 10 * time.Minute

// crashes counts how often a daemon of the controller ended unexpectedly of
// late, and tells of the last time, with the condition that it comes under.
func crashes(events []store.Event, daemon string, now time.Time) (n int, code condition.Code, last string) {
	var at time.Time
	for _, ev := range events {
		if ev.Kind != daemon+"-ended" || now.Sub(ev.At) >= crashWindow {
			continue
		}
		n++
		if !ev.At.Before(at) {
			at, last = ev.At, eventDetail(ev)
		}
	}
	return n, fleet.CrashCondition(daemon, last), last
}

// groupTrouble tells what keeps a group's nodes from coming up.
func (e *Explanation) groupTrouble(v view, g fleet.Group) {
	for _, i := range g.Errors {
		e.problem(i.Code, "group "+g.Name+": "+i.Message)
	}
	if g.Breaker.Open {
		e.problem(condition.BreakerOpen, "group "+g.Name+": "+g.Breaker.String())
	}
	for _, p := range g.Refused {
		e.problem(p.Condition(), fmt.Sprintf("group %s: %s in %s: %s: %s", g.Name, p.Type, p.SubnetID, p.Code, p.Text))
	}
	if p, held := g.Held(v.o.Now); held {
		e.Next = append(e.Next, fmt.Sprintf("One launch of the group %s tries again at %s at the earliest, as soon as a job wants it.", g.Name, p.NotBefore.Format(time.TimeOnly)))
	}
}

// maxTrouble is how many scripts that failed on instances in service a group's
// explanation has: all of its instances run the same ones.
const maxTrouble = 5

func (a *App) explainGroup(tx *store.Tx, v view, g fleet.Group, e *Explanation) error {
	e.ID, e.Status = g.ID, string(g.Status)
	e.Now = append(e.Now, fmt.Sprintf("The compute node group %s (%s) is %s, with %d to %d instances.", g.Name, g.ID, g.Status, g.Min, g.Max))
	e.groupTrouble(v, g)
	states := map[string]int{}
	subjects := []string{"group/" + g.Name}
	var trouble []fleet.ErrorInfo
	for n := 1; n <= g.Max; n++ {
		name := g.NodeName(n)
		states[strings.Join(v.o.Slurm[name].State, "+")]++
		if _, ok := v.o.Nodes[name]; ok {
			subjects = append(subjects, "node/"+name)
		}
		if n := v.o.Nodes[name]; n.Attempts > 0 {
			e.problem(n.FailureCode, fmt.Sprintf("node %s, %d times in a row: %s", name, n.Attempts, n.LastFailure))
			e.Next = append(e.Next, prefixed(name+": ", fleet.Outlook(v.o, g, g.NodeIndex(name), v.cluster.IdleTime))...)
		}
		if i, ok := v.o.Live(name); ok {
			trouble = append(trouble, i.Trouble()...)
		}
	}
	for _, t := range trouble[:min(len(trouble), maxTrouble)] {
		e.problem(t.Code, t.Message)
	}
	if more := len(trouble) - maxTrouble; more > 0 {
		e.Now = append(e.Now, fmt.Sprintf("There are %d more of these: openpcs explain NODE tells them.", more))
	}
	for state, n := range states {
		e.Now = append(e.Now, fmt.Sprintf("Nodes that are %s in Slurm: %d.", firstOf(state, "not known yet"), n))
	}
	var events []store.Event
	for _, subject := range subjects {
		more, err := tx.Events(v.cluster.ID, subject, maxEvents)
		if err != nil {
			return err
		}
		events = append(events, more...)
	}
	slices.SortFunc(events, func(a, b store.Event) int { return cmp.Compare(a.Seq, b.Seq) })
	e.tell(events[max(0, len(events)-maxEvents):])
	return nil
}

func (a *App) explainNode(tx *store.Tx, v view, g fleet.Group, name string, e *Explanation) error {
	e.Now = append(e.Now, nodeSentences(v, name)...)
	if n := v.o.Nodes[name]; n.LastFailure != "" {
		_, known := condition.Find(n.FailureCode)
		switch {
		case !known:
		case n.Attempts == 0 && fleet.NodeState(v.o, g, name) == fleet.NodeUp:
			e.Now = append(e.Now, fmt.Sprintf("It came up since its last failure (%s: %s).", n.FailureCode, n.LastFailure))
		default:
			e.Now = append(e.Now, "Its last failure:")
			e.problem(n.FailureCode, n.LastFailure)
		}
	}
	if i, ok := v.o.Live(name); ok {
		for _, t := range i.Trouble() {
			e.problem(t.Code, t.Message)
		}
	}
	e.Next = append(e.Next, fleet.Outlook(v.o, g, g.NodeIndex(name), v.cluster.IdleTime)...)
	events, err := tx.Events(v.cluster.ID, "node/"+name, maxEvents)
	e.tell(events)
	return err
}

func nodeSentences(v view, name string) []string {
	var out []string
	if s, ok := v.o.Slurm[name]; ok {
		text := fmt.Sprintf("Slurm has the node %s as %s", name, strings.Join(s.State, "+"))
		if s.Reason != "" {
			text += " (" + s.Reason + ")"
		}
		out = append(out, text+".")
	} else {
		out = append(out, "slurmctld has not said anything of the node "+name+".")
	}
	n, ok := v.o.Nodes[name]
	if !ok {
		return append(out, "It was never started.")
	}
	if n.Want {
		out = append(out, "It is wanted up since "+n.WantAt.Format(time.RFC3339)+".")
	}
	return out
}

func prefixed(prefix string, lines []string) []string {
	for i := range lines {
		lines[i] = prefix + lines[i]
	}
	return lines
}

// unixMask makes what is created until the returned call root's alone.
func unixMask() (restore func()) {
	old := syscall.Umask(0o177)
	return func() { syscall.Umask(old) }
}

var errManyClusters = errors.New("there are several clusters: say which with --cluster")

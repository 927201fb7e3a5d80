package app

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/slurm"
	"github.com/openpcs/openpcs/internal/store"
)

// waits says what Slurm's reasons of waiting jobs mean here.
var waits = map[string]string{
	"None":            "Slurm has not looked at it yet.",
	"Resources":       "It waits until nodes of its queue are free, or have come up.",
	"Priority":        "Jobs before it in the queue have a higher priority.",
	"Dependency":      "It waits for another job to end.",
	"BeginTime":       "Its time has not come: Slurm gives a job that was requeued a moment, too.",
	"JobHeldUser":     "Its user holds it: scontrol release gives it free.",
	"JobHeldAdmin":    "An administrator holds it: scontrol release gives it free.",
	"ReqNodeNotAvail": "A node that it asked for cannot be had at present.",
	"PartitionDown":   "Its queue is down.",
	"NodeDown":        "A node that it asked for is down.",
	"Licenses":        "It waits for licences.",
	"Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs_in_higher_priority_partitions": "The nodes that it could have are down, drained or held out.",
}

// explainJob says what a job is doing, and the nodes that it has or waits
// for.
func (a *App) explainJob(ctx context.Context, cluster, name string) (Explanation, error) {
	e := Explanation{Name: name, ID: name, Now: []string{}, Next: []string{}, Events: []Moment{}}
	id, err := strconv.Atoi(name)
	if err != nil || id < 1 {
		return e, fmt.Errorf("job %q is not a job id, such as 17", name)
	}
	var v view
	err = a.store.View(ctx, func(tx *store.Tx) error {
		views, err := a.views(tx, cluster)
		switch {
		case err != nil:
			return err
		case len(views) == 0:
			return missing("there is no cluster, and so no job")
		case len(views) > 1:
			return errManyClusters
		}
		v = views[0]
		return nil
	})
	if err != nil {
		return e, err
	}
	ran, err := a.control.Slurmctld(v.cluster).Run(ctx, "scontrol", "--json", "show", "job", name)
	if err != nil {
		return e, fmt.Errorf("ask slurmctld for job %s: %w", name, err)
	}
	job, ok, err := slurm.ParseJob([]byte(ran.Stdout))
	if err != nil {
		return e, err
	}
	if !ok {
		return e, missing("slurmctld of the cluster %s does not know the job %s: it keeps those that ended for MinJobAge (300 s)", v.cluster.Name, name)
	}
	e.ID, e.Status = v.cluster.ID+"/"+name, strings.Join(job.State, "+")
	e.Now = append(e.Now, fmt.Sprintf("The job %d (%s, of %s) in the queue %s is %s.", job.ID, job.Name, job.User, job.Partition, e.Status))
	if job.Restarts > 0 {
		e.Now = append(e.Now, fmt.Sprintf("It was requeued %d times.", job.Restarts))
	}
	nodes, _ := slurm.Expand(job.Nodes)
	if job.Is("PENDING") && !job.Is("CONFIGURING") {
		e.waiting(v, job)
	}
	groupOf := func(node string) (fleet.Group, bool) {
		i := slices.IndexFunc(v.groups, func(g fleet.Group) bool { return g.NodeIndex(node) > 0 })
		if i < 0 {
			return fleet.Group{}, false
		}
		return v.groups[i], true
	}
	if !job.Ended() {
		for _, n := range nodes {
			e.Now = append(e.Now, nodeSentences(v, n)...)
			if g, ok := groupOf(n); ok && job.Is("CONFIGURING") {
				e.Next = append(e.Next, prefixed(n+": ", fleet.Outlook(v.o, g, g.NodeIndex(n), v.cluster.IdleTime))...)
			}
		}
		if job.Is("CONFIGURING") {
			e.Next = append(e.Next, "The job starts as soon as all of its nodes are up.")
		}
	}
	return e, a.store.View(ctx, func(tx *store.Tx) error {
		events, err := tx.Events(v.cluster.ID, "", 2000)
		if err != nil {
			return err
		}
		e.tell(ofJob(events, job, nodes))
		moment := func(at time.Time, text string) []Moment {
			if at.IsZero() || at.After(v.o.Now) {
				return nil
			}
			return []Moment{{store.Event{At: at, Cluster: v.cluster.ID, Subject: "job/" + name, Kind: "slurm", Detail: json.RawMessage("{}")}, text}}
		}
		// Slurm's times are whole seconds.
		e.Events = append(moment(job.Submitted, "submitted, or requeued"), e.Events...)
		if !job.Is("PENDING") {
			e.Events = append(e.Events, moment(job.Started, "started on "+job.Nodes)...)
		}
		if job.Ended() {
			ended := "ended: " + e.Status
			if how := job.Outcome(); how != "" {
				ended += ", " + how
			}
			e.Events = append(e.Events, moment(job.EndedAt, ended)...)
		}
		slices.SortStableFunc(e.Events, func(a, b Moment) int { return a.At.Truncate(time.Second).Compare(b.At.Truncate(time.Second)) })
		return nil
	})
}

// waiting says what a job waits for.
func (e *Explanation) waiting(v view, job slurm.Job) {
	text, ok := waits[job.Reason]
	if !ok {
		text = "Slurm's reason is " + job.Reason + "."
	}
	e.Now = append(e.Now, job.Reason+": "+text)
	if job.Eligible.After(v.o.Now) {
		e.Next = append(e.Next, fmt.Sprintf("Slurm looks at it again at %s.", job.Eligible.Format(time.TimeOnly)))
	}
	for _, q := range v.queues {
		if q.Name != job.Partition {
			continue
		}
		for _, g := range v.groups {
			if slices.Contains(q.GroupIDs, g.ID) {
				e.groupTrouble(v, g)
			}
		}
	}
}

// ahead is how long a launch may precede the call that names the job.
const ahead = 3 * time.Second

// ofJob picks the events of a job: those of each node from the call of Slurm
// that named the job on, and of the nodes that it has, which may have been up
// before, from its submission on.
func ofJob(events []store.Event, job slurm.Job, nodes []string) []store.Event {
	from := map[string]time.Time{} // by subject
	for _, n := range nodes {
		from["node/"+n] = job.Submitted
	}
	for _, ev := range events {
		var d struct {
			Jobs []int `json:"jobs"`
		}
		_ = json.Unmarshal(ev.Detail, &d)
		at, ok := from[ev.Subject]
		if first := ev.At.Add(-ahead); slices.Contains(d.Jobs, job.ID) && (!ok || first.Before(at)) {
			from[ev.Subject] = first
		}
	}
	var out []store.Event
	for _, ev := range events {
		at, ok := from[ev.Subject]
		late := job.Ended() && !job.EndedAt.IsZero() && ev.At.After(job.EndedAt.Add(time.Second))
		if ok && !late && !ev.At.Before(at) {
			out = append(out, ev)
		}
	}
	return out[max(0, len(out)-maxEvents):]
}

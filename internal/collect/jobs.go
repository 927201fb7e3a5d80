package collect

import (
	"context"
	"maps"
	"time"

	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/journal"
	"github.com/openpcs/openpcs/internal/record"
	"github.com/openpcs/openpcs/internal/slurm"
	"github.com/openpcs/openpcs/internal/store"
)

// job makes an entry of a completed job.
func (s *source) job(ctx context.Context, text []byte) (e journal.Entry, ok bool) {
	j, err := record.ParseJob(text)
	if err != nil {
		s.log.Warn("A completed job is left out", "err", err)
		return e, false
	}
	if names, err := slurm.Expand(j.NodeList); err == nil && j.NodeList != "(null)" {
		if j.NodeDetails, err = s.nodes(ctx, names, j.Ended); err != nil {
			s.log.Warn("The instances of a completed job are not known", "job", j.JobID, "err", err)
		}
	}
	fields, err := j.Fields()
	if err != nil {
		s.log.Warn("A completed job is left out", "err", err)
		return e, false
	}
	at := j.Ended
	if at.IsZero() {
		at = time.Now()
	}
	return journal.Entry{Time: at.UnixMilli(), Level: "info", Release: s.releaseName(""), Text: fields}, true
}

// nodes finds the instances that backed nodes at a time.
func (s *source) nodes(ctx context.Context, names []string, at time.Time) ([]record.NodeDetail, error) {
	best := map[string]fleet.Instance{}
	err := s.c.Store.View(ctx, func(tx *store.Tx) error {
		all, err := fleet.Instances.Of(tx, s.cluster.ID)
		for _, i := range all {
			// The end is told in whole seconds.
			known, ok := best[i.NodeName]
			before := i.LaunchedAt.Before(at.Add(time.Second))
			if !ok || (before && (known.LaunchedAt.Before(i.LaunchedAt) || !known.LaunchedAt.Before(at.Add(time.Second)))) {
				best[i.NodeName] = i
			}
		}
		return err
	})
	out := make([]record.NodeDetail, len(names))
	for k, name := range names {
		out[k] = record.NodeDetail{Name: name, InstanceID: best[name].ID, InstanceType: best[name].Type}
	}
	return out, err
}

// named are the names of a cluster's users, for those who read audit records.
type named struct {
	Cluster string            `json:"cluster"`
	Users   map[uint32]string `json:"users"`
}

var people = store.NewCollection("users", func(n named) store.Index { return store.Index{ID: n.Cluster} })

// usersEvery is how often the users of a controller are asked for.
const usersEvery = 10 * time.Minute

// users keeps the names of a cluster's users.
func (c *Collector) users(ctx context.Context, id string, controller Controller) {
	rest := time.Second
	for ctx.Err() == nil {
		users, err := controller.Users(ctx)
		if err == nil {
			err = c.Store.Update(ctx, func(tx *store.Tx) error {
				n, err := people.Get(tx, id)
				if err == nil && maps.Equal(n.Users, users) {
					return nil
				}
				return people.Put(tx, named{id, users})
			})
		}
		if rest = min(2*rest, time.Minute); err == nil {
			rest = usersEvery
		}
		pause(ctx, rest)
	}
}

// Users are the names of a cluster's users by uid, as far as they are known.
func Users(tx *store.Tx, cluster string) map[uint32]string {
	n, err := people.Get(tx, cluster)
	if err != nil {
		return nil
	}
	return n.Users
}

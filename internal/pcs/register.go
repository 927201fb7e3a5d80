package pcs

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/openpcs/openpcs/internal/awsapi"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/scaling"
	"github.com/openpcs/openpcs/internal/secretsmanager"
	"github.com/openpcs/openpcs/internal/store"
)

// register joins an instance to its cluster. The instance is known by its
// role's credentials; that the cluster or the instance does not exist is
// AccessDenied here, as on PCS.
func (s *Service) register(ctx context.Context, r *awsapi.Request, in *RegisterIn) (*RegisterOut, error) {
	var c check
	ref := c.cluster(in.ClusterRef)
	bootstrapID := c.sized("bootstrapId", in.BootstrapID, 1, 1000, bootstrapPattern)
	if err := c.err(); err != nil {
		return nil, err
	}
	var out *RegisterOut
	var woken string
	err := s.Store.Update(ctx, func(tx *store.Tx) error {
		refuse := func() error {
			return denied("User: %s is not authorized to perform: %s on resource: %s as either the resource does not exist, some policy explicitly denies access, or no policy grants access",
				r.Caller.ARN, registerAction, s.arn(r.Region, "cluster/"+ref))
		}
		if r.Caller.InstanceID == "" {
			return denied("%s can be called by instances of compute node groups only, with the credentials of their role", registerAction)
		}
		i, err := fleet.Instances.Get(tx, r.Caller.InstanceID)
		if errors.Is(err, store.ErrNotFound) {
			return refuse()
		}
		if err != nil {
			return err
		}
		cl, err := cluster(tx, r, ref)
		var missing *awsapi.Error
		if errors.As(err, &missing) {
			return refuse()
		}
		if err != nil {
			return err
		}
		if i.ClusterID != cl.ID || (i.State != fleet.Pending && i.State != fleet.Running) {
			return refuse()
		}
		g, err := fleet.Groups.Get(tx, i.GroupID)
		if errors.Is(err, store.ErrNotFound) {
			return refuse()
		}
		if err != nil {
			return err
		}
		key, err := secretsmanager.Value(tx, cl.KeyARN, cl.KeyVersion)
		if err != nil {
			return err
		}
		woken = cl.ID
		out = &RegisterOut{
			NodeID: i.NodeName, SharedSecret: key, Endpoints: endpoints(cl),
			ClusterName: cl.Name, ComputeNodeGroupID: g.ID, ComputeNodeGroupName: g.Name, SchedulerVersion: cl.Version,
			NodeLifecycleActions: lifecycleOut(g.LifecycleOf(i.GroupRevision)),
		}
		return Registered(tx, i, g, bootstrapID, r.Now)
	})
	if err == nil && s.Wake != nil {
		s.Wake(woken)
	}
	return out, err
}

// Registered records that the agent of an instance registered. After a reboot
// it does so again, which is no step of the instance's life.
func Registered(tx *store.Tx, i fleet.Instance, g fleet.Group, bootstrapID string, now time.Time) error {
	first := i.RegisteredAt.IsZero()
	i.State, i.RegisteredAt, i.BootstrapID = fleet.Running, now, bootstrapID
	if i.StartedAt.IsZero() { // faster than the record of its launch
		i.StartedAt = now
		if err := scaling.Append(tx, scaling.OfLaunch(i, g, now)); err != nil {
			return err
		}
	}
	if err := fleet.Instances.Put(tx, i); err != nil || !first {
		return err
	}
	detail, _ := json.Marshal(map[string]any{"instance": i.ID, "afterMs": now.Sub(i.LaunchedAt).Milliseconds()})
	return errors.Join(scaling.Append(tx, scaling.OfRegistration(i, now)),
		tx.Append(store.Event{At: now, Cluster: i.ClusterID, Subject: "node/" + i.NodeName, Kind: "registered", Detail: detail}))
}

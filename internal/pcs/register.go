package pcs

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/openpcs/openpcs/internal/awsapi"
	"github.com/openpcs/openpcs/internal/fleet"
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
		first := i.RegisteredAt.IsZero()
		i.State = fleet.Running
		i.RegisteredAt, i.BootstrapID = r.Now, bootstrapID
		if first {
			detail, _ := json.Marshal(map[string]any{"instance": i.ID, "afterMs": r.Now.Sub(i.LaunchedAt).Milliseconds()})
			if err := tx.Append(store.Event{At: r.Now, Cluster: cl.ID, Subject: "node/" + i.NodeName, Kind: "registered", Detail: detail}); err != nil {
				return err
			}
		}
		woken = cl.ID
		out = &RegisterOut{
			NodeID: i.NodeName, SharedSecret: key, Endpoints: endpoints(cl),
			ClusterName: cl.Name, ComputeNodeGroupID: g.ID, ComputeNodeGroupName: g.Name, SchedulerVersion: cl.Version,
		}
		return fleet.Instances.Put(tx, i)
	})
	if err == nil && s.Wake != nil {
		s.Wake(woken)
	}
	return out, err
}

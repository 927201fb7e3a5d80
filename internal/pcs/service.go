package pcs

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/openpcs/openpcs/internal/awsapi"
	"github.com/openpcs/openpcs/internal/ec2"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/store"
)

// Target is the prefix of X-Amz-Target.
const Target = "AWSParallelComputingService"

// Service is the PCS service.
type Service struct {
	Store   *store.Store
	Account string
	Pool    netip.Prefix           // addresses for default VPCs
	Wake    func(clusterID string) // something of the cluster changed
	// Buildable lists the Slurm releases that images can be built for.
	Buildable []string
	// FreeAddress picks an address of the subnet inside the transaction.
	FreeAddress func(tx *store.Tx, subnetID string) (string, error)
}

// API returns the table of operations.
func (s *Service) API() awsapi.Service {
	return awsapi.Service{
		Name: "pcs", Protocol: awsapi.JSON10, Target: Target, Fault: fault,
		Operations: []awsapi.Operation{
			op("CreateCluster", false, s.createCluster),
			op("GetCluster", true, s.getCluster),
			op("ListClusters", true, s.listClusters),
			op("UpdateCluster", false, s.updateCluster),
			op("DeleteCluster", false, s.deleteCluster),
			op("CreateComputeNodeGroup", false, s.createGroup),
			op("GetComputeNodeGroup", true, s.getGroup),
			op("ListComputeNodeGroups", true, s.listGroups),
			op("UpdateComputeNodeGroup", false, s.updateGroup),
			op("DeleteComputeNodeGroup", false, s.deleteGroup),
			op("CreateQueue", false, s.createQueue),
			op("GetQueue", true, s.getQueue),
			op("ListQueues", true, s.listQueues),
			op("UpdateQueue", false, s.updateQueue),
			op("DeleteQueue", false, s.deleteQueue),
			op("TagResource", false, s.tag),
			op("UntagResource", false, s.untag),
			op("ListTagsForResource", true, s.listTags),
			op("RegisterComputeNodeGroupInstance", false, s.register),
		},
	}
}

func op[I, O any](name string, readOnly bool, f func(context.Context, *awsapi.Request, *I) (*O, error)) awsapi.Operation {
	return awsapi.StrictJSON(name, "pcs:"+name, readOnly, f)
}

// update runs a mutating operation: the region's network is there, a client
// token that was seen before gets the first answer again, and the cluster is
// woken once all is durable.
func update[O any](ctx context.Context, s *Service, r *awsapi.Request, token *string, f func(tx *store.Tx) (*O, string, error)) (*O, error) {
	err := ec2.EnsureRegion(ctx, s.Store, r.Region, s.Pool)
	var full *ec2.PoolError
	if errors.As(err, &full) {
		return nil, &awsapi.Error{Code: "ValidationException", Message: full.Error(), Fields: map[string]any{"reason": "other"}}
	}
	if err != nil {
		return nil, err
	}
	var out *O
	var cluster string
	err = s.Store.Update(ctx, func(tx *store.Tx) error {
		past, err := recall(tx, r, token)
		if err != nil {
			return err
		}
		if past != nil {
			out = new(O)
			return json.Unmarshal(past, out)
		}
		out, cluster, err = f(tx)
		if err != nil {
			return err
		}
		if cluster != "" {
			detail, err := json.Marshal(map[string]string{"operation": r.Operation, "by": r.Caller.ARN})
			if err != nil {
				return err
			}
			if err := tx.Append(store.Event{At: r.Now, Cluster: cluster, Subject: "cluster", Kind: "api", Detail: detail}); err != nil {
				return err
			}
		}
		return remember(tx, r, token, out)
	})
	if err != nil {
		return nil, err
	}
	if cluster != "" && s.Wake != nil {
		s.Wake(cluster)
	}
	return out, nil
}

// replay is the answer to a client token.
type replay struct {
	ID     string          `json:"id"` // region/operation/token
	Hash   string          `json:"hash"`
	At     time.Time       `json:"at"`
	Answer json.RawMessage `json:"answer"`
}

var replays = store.NewCollection("pcs-token", func(p replay) store.Index { return store.Index{ID: p.ID} })

// replayFor is how long a client token is remembered.
const replayFor = 24 * time.Hour

func recall(tx *store.Tx, r *awsapi.Request, token *string) (json.RawMessage, error) {
	if token == nil {
		return nil, nil
	}
	p, err := replays.Get(tx, replayID(r, *token))
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil, nil
	case err != nil:
		return nil, err
	case r.Now.Sub(p.At) > replayFor:
		return nil, nil
	case p.Hash != bodyHash(r.Body):
		return nil, conflict("clientToken", *token, "the client token %s was used for another request: use a new one", *token)
	}
	return p.Answer, nil
}

func remember[O any](tx *store.Tx, r *awsapi.Request, token *string, out *O) error {
	if token == nil {
		return nil
	}
	doc, err := json.Marshal(out)
	if err != nil {
		return err
	}
	return replays.Put(tx, replay{ID: replayID(r, *token), Hash: bodyHash(r.Body), At: r.Now, Answer: doc})
}

// PurgeTokens forgets client tokens that are too old to be recalled.
func PurgeTokens(ctx context.Context, st *store.Store, now time.Time) error {
	return st.Update(ctx, func(tx *store.Tx) error {
		all, err := replays.All(tx)
		for _, p := range all {
			if now.Sub(p.At) > replayFor {
				err = errors.Join(err, replays.Delete(tx, p.ID))
			}
		}
		return err
	})
}

func replayID(r *awsapi.Request, token string) string {
	return r.Region + "/" + r.Operation + "/" + token
}

func bodyHash(body []byte) string {
	// The same members in another order are the same request.
	var doc any
	if json.Unmarshal(body, &doc) == nil {
		if canonical, err := json.Marshal(doc); err == nil {
			body = canonical
		}
	}
	sum := sha256.Sum256(bytes.TrimSpace(body))
	return hex.EncodeToString(sum[:])
}

// newSlurmKey returns a fresh key for auth/slurm, in base64.
func newSlurmKey() string {
	var key [1024]byte
	_, _ = rand.Read(key[:]) // never fails (crypto/rand)
	return base64.StdEncoding.EncodeToString(key[:])
}

func newToken() string {
	var b [32]byte
	_, _ = rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// cluster finds a cluster of the request's region by id or name.
func cluster(tx *store.Tx, r *awsapi.Request, ref string) (fleet.Cluster, error) {
	c, err := fleet.Clusters.Get(tx, ref)
	if errors.Is(err, store.ErrNotFound) || (err == nil && c.Region != r.Region) {
		c, err = fleet.Clusters.Find(tx, r.Region, "", ref)
	}
	if errors.Is(err, store.ErrNotFound) {
		return c, notFound(clusterType, ref)
	}
	return c, err
}

// member finds a group or queue of a cluster by id or name.
func member[T any](tx *store.Tx, coll store.Collection[T], parent func(T) string, c fleet.Cluster, kind, ref string) (T, error) {
	v, err := coll.Get(tx, ref)
	if errors.Is(err, store.ErrNotFound) || (err == nil && parent(v) != c.ID) {
		v, err = coll.Find(tx, c.Region, c.ID, ref)
	}
	if errors.Is(err, store.ErrNotFound) {
		return v, notFound(kind, ref)
	}
	return v, err
}

func group(tx *store.Tx, c fleet.Cluster, ref string) (fleet.Group, error) {
	return member(tx, fleet.Groups, func(g fleet.Group) string { return g.ClusterID }, c, groupType, ref)
}

func queue(tx *store.Tx, c fleet.Cluster, ref string) (fleet.Queue, error) {
	return member(tx, fleet.Queues, func(q fleet.Queue) string { return q.ClusterID }, c, queueType, ref)
}

// busy refuses a change of what is just being changed.
func busy(kind, id string, status fleet.Status, allowed ...fleet.Status) error {
	for _, s := range allowed {
		if s == status {
			return nil
		}
	}
	next := "try again when it is ACTIVE"
	switch status {
	case fleet.CreateFailed:
		next = "delete it, or update it where an update can help, first"
	case fleet.UpdateFailed:
		next = "update or delete it first"
	case fleet.Deleting:
		next = "it will be gone soon"
	}
	return conflict(kind, id, "the %s %s is %s: %s", noun(kind), id, status, next)
}

func (s *Service) arn(region, path string) string {
	return fmt.Sprintf("arn:aws:pcs:%s:%s:%s", region, s.Account, path)
}

func errorInfo(in []fleet.ErrorInfo) []ErrorInfo {
	var out []ErrorInfo
	for _, e := range in {
		out = append(out, ErrorInfo{Code: string(e.Code), Message: e.Message})
	}
	return out
}

// list checks the members that all lists share.
func (c *check) list(in ListIn) (token string, size int) {
	size = c.number("maxResults", in.MaxResults, 0, 100, 0)
	if size == 0 {
		size = 10
	}
	if in.NextToken != nil {
		token = *in.NextToken
	}
	return token, size
}

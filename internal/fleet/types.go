// Package fleet holds the domain: what clusters, compute node groups,
// queues, nodes and instances are, and the pure planners that decide what
// should happen to them. Nothing here does I/O, reads a clock or logs; the
// effects are in package control.
package fleet

import (
	"time"

	"github.com/openpcs/openpcs/internal/condition"
	"github.com/openpcs/openpcs/internal/store"
)

// InstanceState is the EC2 state of an instance.
type InstanceState string

// The EC2 instance states that openpcs uses.
const (
	Pending      InstanceState = "pending"
	Running      InstanceState = "running"
	ShuttingDown InstanceState = "shutting-down"
	Terminated   InstanceState = "terminated"
	Stopping     InstanceState = "stopping"
	Stopped      InstanceState = "stopped"
)

// Live reports whether the instance exists or is about to.
func (s InstanceState) Live() bool { return s != Terminated }

// Instance is one machine of a region. Terminated ones are kept for an hour
// so that describe-instances shows their end, as EC2 does.
type Instance struct {
	ID       string        `json:"id"` // i- and 17 hex digits
	Region   string        `json:"region"`
	State    InstanceState `json:"state"`
	ImageID  string        `json:"imageId"`
	Type     string        `json:"type"`
	SubnetID string        `json:"subnetId"`
	VPCID    string        `json:"vpcId"`
	AZ       string        `json:"az"`
	// Address is the private IPv4 address, unique over all regions among
	// live instances.
	Address        string            `json:"address"`
	SecurityGroups []string          `json:"securityGroups,omitempty"`
	KeyName        string            `json:"keyName,omitempty"`
	ProfileARN     string            `json:"profileArn,omitempty"`
	Tags           map[string]string `json:"tags,omitempty"`
	// UserData is what IMDS serves, not encoded.
	UserData     []byte    `json:"userData,omitempty"`
	LaunchedAt   time.Time `json:"launchedAt"`
	TerminatedAt time.Time `json:"terminatedAt,omitzero"`
	// StateCode and StateReason say why it ended, in EC2's form
	// (Client.UserInitiatedShutdown: ...).
	StateCode   string `json:"stateCode,omitempty"`
	StateReason string `json:"stateReason,omitempty"`

	// The rest is set for instances of compute node groups only.
	ClusterID string `json:"clusterId,omitempty"`
	GroupID   string `json:"groupId,omitempty"`
	NodeName  string `json:"nodeName,omitempty"` // Slurm node it backs
	// GroupRevision is the revision of the group it was launched from.
	GroupRevision int `json:"groupRevision,omitempty"`
	// StartedAt is when the provider's launch call succeeded.
	StartedAt time.Time `json:"startedAt,omitzero"`
	// RegisteredAt is when the agent registered last; zero before.
	RegisteredAt time.Time `json:"registeredAt,omitzero"`
	BootstrapID  string    `json:"bootstrapId,omitempty"`
	// ReleasedAt is when its agent was first let start slurmd; until then no
	// job can have come to it.
	ReleasedAt time.Time `json:"releasedAt,omitzero"`
	// ReadyAt is when slurmctld first saw its slurmd.
	ReadyAt time.Time `json:"readyAt,omitzero"`
	// HeldUntil keeps the agent from its bootstrap, Hangs for ever: both are
	// faults that a user asked for.
	HeldUntil time.Time `json:"heldUntil,omitzero"`
	Hangs     bool      `json:"hangs,omitempty"`
	// ReclaimAt is when the provider takes a Spot instance back.
	ReclaimAt time.Time `json:"reclaimAt,omitzero"`
	// Leaving is why Slurm was asked to give up its node, if it was, and
	// LeavingWhy says it in words.
	Leaving    condition.Code `json:"leaving,omitempty"`
	LeavingWhy string         `json:"leavingWhy,omitempty"`
	// EndCode is why its end was decided; empty before.
	EndCode condition.Code `json:"endCode,omitempty"`
	// StopFailed says that the provider could not end it, and is asked again.
	StopFailed bool `json:"stopFailed,omitempty"`
	// Failure is why bootstrap failed; empty if it did not.
	Failure     string         `json:"failure,omitempty"`
	FailureCode condition.Code `json:"failureCode,omitempty"`
	// Scripts is what came of its lifecycle scripts, each at its last run.
	Scripts []ScriptOutcome `json:"scripts,omitempty"`
	// Told counts the events that its reports have made.
	Told int `json:"told,omitempty"`
}

// PrivateDNS returns the host name EC2 would give the instance, for example
// ip-10-77-0-5.ap-northeast-1.compute.internal.
func (i Instance) PrivateDNS() string { return PrivateDNS(i.Address, i.Region) }

// Instances is where instances are stored; the parent is the cluster id.
var Instances = store.NewCollection("instance", func(i Instance) store.Index {
	return store.Index{ID: i.ID, Region: i.Region, Parent: i.ClusterID}
})

// Image is a machine image (AMI). Images are the same in every region.
type Image struct {
	ID           string    `json:"id"` // ami- and 17 hex digits
	Name         string    `json:"name"`
	Description  string    `json:"description"`
	Owner        string    `json:"owner"` // "amazon" or an account id
	Architecture string    `json:"architecture"`
	CreatedAt    time.Time `json:"createdAt"`
	Ref          string    `json:"ref"` // the provider's name for it
	// Slurm lists the Slurm versions (26.05) that it carries; empty for an
	// image that has no openpcs agent either.
	Slurm []string `json:"slurm,omitempty"`
	Agent bool     `json:"agent"`
	// CloudInit says that the image runs cloud-init on its user data.
	CloudInit bool              `json:"cloudInit"`
	Tags      map[string]string `json:"tags,omitempty"`
	// Deprecated images were replaced by a newer build but may be in use.
	Deprecated bool `json:"deprecated,omitempty"`
}

// Images is where images are stored.
var Images = store.NewCollection("image", func(i Image) store.Index {
	return store.Index{ID: i.ID}
})

// Subnet is a part of a VPC's address range in one availability zone.
type Subnet struct {
	ID     string            `json:"id"` // subnet- and 17 hex digits
	Region string            `json:"region"`
	VPCID  string            `json:"vpcId"`
	CIDR   string            `json:"cidr"`
	AZ     string            `json:"az"`   // ap-northeast-1a
	AZID   string            `json:"azId"` // apne1-az1 style
	Tags   map[string]string `json:"tags,omitempty"`
}

// Subnets is where subnets are stored; the parent is the VPC id.
var Subnets = store.NewCollection("subnet", func(s Subnet) store.Index {
	return store.Index{ID: s.ID, Region: s.Region, Parent: s.VPCID}
})

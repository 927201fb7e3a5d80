package fleet

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/openpcs/openpcs/internal/condition"
	"github.com/openpcs/openpcs/internal/slurm"
	"github.com/openpcs/openpcs/internal/store"
)

// Status is the provisioning state of a cluster, group or queue, as in the
// PCS API. It says nothing about health.
type Status string

// The statuses of the PCS API.
const (
	Creating     Status = "CREATING"
	Active       Status = "ACTIVE"
	Updating     Status = "UPDATING"
	Deleting     Status = "DELETING"
	CreateFailed Status = "CREATE_FAILED"
	UpdateFailed Status = "UPDATE_FAILED"
)

// ErrorInfo explains a *_FAILED status.
type ErrorInfo struct {
	Code    condition.Code `json:"code"`
	Message string         `json:"message"`
}

// Size is a cluster's size class.
type Size string

// The sizes of the PCS API.
const (
	Small  Size = "SMALL"
	Medium Size = "MEDIUM"
	Large  Size = "LARGE"
)

// Limits returns how many instances a cluster of the size may have and how
// many jobs its controller tracks (PCS user guide, cluster sizes).
func (s Size) Limits() (instances, jobs int) {
	switch s {
	case Medium:
		return 512, 8192
	case Large:
		return 2048, 16384
	default:
		return 32, 256
	}
}

// Cluster is a Slurm controller and what belongs to it.
type Cluster struct {
	ID             string          `json:"id"`
	Region         string          `json:"region"`
	ARN            string          `json:"arn"`
	Name           string          `json:"name"`
	Status         Status          `json:"status"`
	Errors         []ErrorInfo     `json:"errors,omitempty"`
	CreatedAt      time.Time       `json:"createdAt"`
	ModifiedAt     time.Time       `json:"modifiedAt"`
	Version        string          `json:"version"` // Slurm, 26.05
	Size           Size            `json:"size"`
	SubnetID       string          `json:"subnetId"`
	VPCID          string          `json:"vpcId"`
	SecurityGroups []string        `json:"securityGroups,omitempty"`
	IdleTime       time.Duration   `json:"idleTime"`
	Settings       []slurm.Setting `json:"settings,omitempty"`
	Accounting     Accounting      `json:"accounting,omitzero"`
	Slurmdbd       []slurm.Setting `json:"slurmdbd,omitempty"` // custom settings of slurmdbd.conf
	Cgroup         []slurm.Setting `json:"cgroup,omitempty"`   // and of cgroup.conf
	REST           bool            `json:"rest,omitempty"`     // slurmrestd runs
	// Good is what slurmctld took last, to go back to when it refuses a change.
	Good *ClusterGood      `json:"good,omitempty"`
	Tags map[string]string `json:"tags,omitempty"`

	KeyARN     string `json:"keyArn"`     // secret with the Slurm key
	KeyVersion string `json:"keyVersion"` // its version id

	// The controller instance: its provider id, address and the token that
	// its agent and the control plane show each other.
	ControllerID      string `json:"controllerId"`
	ControllerAddress string `json:"controllerAddress"`
	ControllerToken   string `json:"controllerToken"`
	// DatabaseFull is what the controller said of the room that the database of
	// accounting lacks, empty while there is some.
	DatabaseFull string `json:"databaseFull,omitempty"`
	// Trouble is why the controller cannot be driven at present, if so.
	Trouble *ErrorInfo `json:"trouble,omitempty"`
	// ConfigHash is the hash of the configuration slurmctld runs with.
	ConfigHash string `json:"configHash,omitempty"`
}

// Accounting is the job accounting of a cluster. The records stay when it is
// switched off.
type Accounting struct {
	On bool `json:"on,omitempty"`
	// PurgeDays is after how many days records go; less than 1: never.
	PurgeDays int `json:"purgeDays,omitempty"`
}

// ClusterGood is what an update of a cluster changes in its configuration.
type ClusterGood struct {
	IdleTime   time.Duration   `json:"idleTime"`
	Settings   []slurm.Setting `json:"settings,omitempty"`
	Accounting Accounting      `json:"accounting,omitzero"`
	Slurmdbd   []slurm.Setting `json:"slurmdbd,omitempty"`
	Cgroup     []slurm.Setting `json:"cgroup,omitempty"`
	REST       bool            `json:"rest,omitempty"`
}

// Keep remembers what slurmctld has taken.
func (c *Cluster) Keep() {
	c.Good = &ClusterGood{
		IdleTime: c.IdleTime, Settings: c.Settings,
		Accounting: c.Accounting, Slurmdbd: c.Slurmdbd, Cgroup: c.Cgroup, REST: c.REST,
	}
}

// Restore goes back to what slurmctld took last.
func (c *Cluster) Restore() {
	if g := c.Good; g != nil {
		c.IdleTime, c.Settings = g.IdleTime, g.Settings
		c.Accounting, c.Slurmdbd, c.Cgroup, c.REST = g.Accounting, g.Slurmdbd, g.Cgroup, g.REST
	}
}

// Clusters is where clusters are stored.
var Clusters = store.NewCollection("cluster", func(c Cluster) store.Index {
	return store.Index{ID: c.ID, Region: c.Region, Name: c.Name}
})

// Launch is what instances of a group are started with, resolved from the
// launch template version that the group names.
type Launch struct {
	ImageID        string            `json:"imageId"`
	UserData       []byte            `json:"userData,omitempty"` // user's part, decoded
	SecurityGroups []string          `json:"securityGroups,omitempty"`
	KeyName        string            `json:"keyName,omitempty"`
	Tags           map[string]string `json:"tags,omitempty"`
}

// Group is a compute node group.
type Group struct {
	ID              string            `json:"id"`
	ClusterID       string            `json:"clusterId"`
	Region          string            `json:"region"`
	ARN             string            `json:"arn"`
	Name            string            `json:"name"`
	Status          Status            `json:"status"`
	Errors          []ErrorInfo       `json:"errors,omitempty"`
	CreatedAt       time.Time         `json:"createdAt"`
	ModifiedAt      time.Time         `json:"modifiedAt"`
	ImageID         string            `json:"imageId,omitempty"` // as given; the template's if empty
	SubnetIDs       []string          `json:"subnetIds"`
	PurchaseOption  string            `json:"purchaseOption"`
	TemplateID      string            `json:"templateId"`
	TemplateVersion string            `json:"templateVersion"`
	ProfileARN      string            `json:"profileArn"`
	Min             int               `json:"min"`
	Max             int               `json:"max"`
	IdleTime        time.Duration     `json:"idleTime,omitempty"` // 0: the cluster's
	InstanceTypes   []string          `json:"instanceTypes"`
	SpotStrategy    string            `json:"spotStrategy,omitempty"`
	Settings        []slurm.Setting   `json:"settings,omitempty"`
	Lifecycle       *LifecycleActions `json:"lifecycle,omitempty"` // nil: no scripts
	Good            *GroupGood        `json:"good,omitempty"`
	Tags            map[string]string `json:"tags,omitempty"`

	// Launch is the resolved template; Revision counts its changes, so that
	// instances of another one can be told. LastRevision is the newest ever
	// given: that of a refused update has instances too, and is not used again.
	Launch       Launch `json:"launch"`
	Revision     int    `json:"revision"`
	LastRevision int    `json:"lastRevision,omitempty"`
	// Refused are the pools that had no instance to give lately. An update of
	// the group forgets them.
	Refused []Pool  `json:"refused,omitempty"`
	Breaker Breaker `json:"breaker,omitzero"`
}

// GroupGood is what an update of a group changes.
type GroupGood struct {
	Min             int               `json:"min"`
	Max             int               `json:"max"`
	IdleTime        time.Duration     `json:"idleTime,omitempty"`
	Settings        []slurm.Setting   `json:"settings,omitempty"`
	Lifecycle       *LifecycleActions `json:"lifecycle,omitempty"`
	ImageID         string            `json:"imageId,omitempty"`
	SubnetIDs       []string          `json:"subnetIds"`
	PurchaseOption  string            `json:"purchaseOption"`
	SpotStrategy    string            `json:"spotStrategy,omitempty"`
	TemplateID      string            `json:"templateId"`
	TemplateVersion string            `json:"templateVersion"`
	ProfileARN      string            `json:"profileArn"`
	Launch          Launch            `json:"launch"`
	Revision        int               `json:"revision"`
}

// Keep remembers what slurmctld has taken.
func (g *Group) Keep() {
	g.Good = &GroupGood{
		Min: g.Min, Max: g.Max, Settings: g.Settings, ImageID: g.ImageID, SubnetIDs: g.SubnetIDs,
		PurchaseOption: g.PurchaseOption, SpotStrategy: g.SpotStrategy, TemplateID: g.TemplateID,
		TemplateVersion: g.TemplateVersion, ProfileARN: g.ProfileARN, Launch: g.Launch, Revision: g.Revision, Lifecycle: g.Lifecycle,
		IdleTime: g.IdleTime,
	}
}

// Restore goes back to what slurmctld took last.
func (g *Group) Restore() {
	if o := g.Good; o != nil {
		g.Min, g.Max, g.Settings, g.ImageID, g.SubnetIDs = o.Min, o.Max, o.Settings, o.ImageID, o.SubnetIDs
		g.PurchaseOption, g.SpotStrategy, g.TemplateID = o.PurchaseOption, o.SpotStrategy, o.TemplateID
		g.TemplateVersion, g.ProfileARN, g.Launch, g.Revision = o.TemplateVersion, o.ProfileARN, o.Launch, o.Revision
		g.Lifecycle, g.IdleTime = o.Lifecycle, o.IdleTime
	}
}

// Groups is where compute node groups are stored; the parent is the cluster.
var Groups = store.NewCollection("group", func(g Group) store.Index {
	return store.Index{ID: g.ID, Region: g.Region, Parent: g.ClusterID, Name: g.Name}
})

// NodeName returns the name of the group's nth node, n from 1.
func (g Group) NodeName(n int) string { return g.Name + "-" + strconv.Itoa(n) }

// NodeIndex is NodeName's inverse: it returns n, or 0 if the name is not one
// of this group's nodes. The group "a" has no node "a-b-1", though its name
// begins alike.
func (g Group) NodeIndex(name string) int {
	rest, ok := strings.CutPrefix(name, g.Name+"-")
	if !ok {
		return 0
	}
	n, err := strconv.Atoi(rest)
	if err != nil || n < 1 || strconv.Itoa(n) != rest {
		return 0
	}
	return n
}

// Queue is a Slurm partition over groups.
type Queue struct {
	ID         string            `json:"id"`
	ClusterID  string            `json:"clusterId"`
	Region     string            `json:"region"`
	ARN        string            `json:"arn"`
	Name       string            `json:"name"`
	Status     Status            `json:"status"`
	Errors     []ErrorInfo       `json:"errors,omitempty"`
	CreatedAt  time.Time         `json:"createdAt"`
	ModifiedAt time.Time         `json:"modifiedAt"`
	GroupIDs   []string          `json:"groupIds"`
	Settings   []slurm.Setting   `json:"settings,omitempty"`
	Good       *QueueGood        `json:"good,omitempty"`
	Tags       map[string]string `json:"tags,omitempty"`
}

// QueueGood is what an update of a queue changes in slurm.conf.
type QueueGood struct {
	GroupIDs []string        `json:"groupIds"`
	Settings []slurm.Setting `json:"settings,omitempty"`
}

// Keep remembers what slurmctld has taken.
func (q *Queue) Keep() { q.Good = &QueueGood{GroupIDs: q.GroupIDs, Settings: q.Settings} }

// Restore goes back to what slurmctld took last.
func (q *Queue) Restore() {
	if q.Good != nil {
		q.GroupIDs, q.Settings = q.Good.GroupIDs, q.Good.Settings
	}
}

// Queues is where queues are stored; the parent is the cluster.
var Queues = store.NewCollection("queue", func(q Queue) store.Index {
	return store.Index{ID: q.ID, Region: q.Region, Parent: q.ClusterID, Name: q.Name}
})

// Node is what the control plane remembers of a Slurm node between its
// instances.
type Node struct {
	ClusterID string `json:"clusterId"`
	GroupID   string `json:"groupId"`
	Name      string `json:"name"`
	Index     int    `json:"index"` // 1 to the group's maximum
	// Want says that Slurm (or the static minimum) wants the node up. Only
	// Slurm's own SuspendProgram, a failure or a loss turns it off.
	Want   bool      `json:"want"`
	WantAt time.Time `json:"wantAt,omitzero"`
	Jobs   []int     `json:"jobs,omitempty"` // jobs it was resumed for
	// LastHook is the id of the call of Slurm's programs that changed the node
	// last: delivered again it changes nothing.
	LastHook string `json:"lastHook,omitempty"`
	// ChangedAt is when Slurm's programs spoke of the node last.
	ChangedAt time.Time `json:"changedAt,omitzero"`
	// Early says that a job got the node and ResumeProgram is still to come:
	// the instance is launched ahead, but its slurmd must wait.
	Early bool `json:"early,omitempty"`
	// GivenUp is why it is not wanted any more though Slurm did not suspend it.
	GivenUp string `json:"givenUp,omitempty"`
	// Attempts counts launches that failed in a row; NotBefore holds the
	// next one back.
	Attempts  int       `json:"attempts,omitempty"`
	NotBefore time.Time `json:"notBefore,omitzero"`
	// Down is the reason to set the node down in Slurm with, until Slurm
	// took it.
	Down string `json:"down,omitempty"`
	// FailureCode and LastFailure are kept for people.
	FailureCode condition.Code `json:"failureCode,omitempty"`
	LastFailure string         `json:"lastFailure,omitempty"`
}

// Nodes is where nodes are stored, under cluster/name.
var Nodes = store.NewCollection("node", func(n Node) store.Index {
	return store.Index{ID: NodeID(n.ClusterID, n.Name), Parent: n.ClusterID, Name: n.Name}
})

// NodeID is the id under which a node is stored.
func NodeID(clusterID, name string) string { return clusterID + "/" + name }

// Revise gives the group the next revision.
func (g *Group) Revise() {
	g.LastRevision = max(g.LastRevision, g.Revision) + 1
	g.Revision = g.LastRevision
}

// settled reports whether what the group says is in force: an update that was
// refused has left the former settings, and instances that were launched for it
// meanwhile are not of those.
func (g Group) settled() bool { return g.Status == Active || g.Status == UpdateFailed }

// LifecycleOf returns the scripts of instances that were launched with a
// revision. While an update is under way those of the former one keep theirs:
// the update may be refused.
func (g Group) LifecycleOf(revision int) *LifecycleActions {
	if g.Revision != revision && g.Good != nil && g.Good.Revision == revision {
		return g.Good.Lifecycle
	}
	return g.Lifecycle
}

// NeedsReplacement reports whether instances launched for the group before a
// change differ from those launched after it. More subnets, a higher maximum,
// another idle time or allocation strategy touch no instance.
func NeedsReplacement(before, after Group) bool {
	return !same(before.Launch, after.Launch) || !same(before.Lifecycle, after.Lifecycle) ||
		before.ProfileARN != after.ProfileARN ||
		!slices.Equal(before.Settings, after.Settings) ||
		before.PurchaseOption != after.PurchaseOption
}

// same reports whether two values are the same when they are kept: what a
// client gave as empty and what it left out are.
func same(a, b any) bool {
	x, errA := json.Marshal(a)
	y, errB := json.Marshal(b)
	return errA == nil && errB == nil && bytes.Equal(x, y)
}

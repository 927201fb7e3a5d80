package metrics

import (
	"slices"

	"github.com/openpcs/openpcs/internal/fleet"
)

// table has every metric, in the order in which they are told.
var table []*Metric

// All returns the table. docs/metrics.md is written from it.
func All() []*Metric { return slices.Clone(table) }

// prefix is what all names begin with.
const prefix = "openpcs_"

func declare(kind Kind, name, text string, labels ...Label) *Metric {
	m := &Metric{Name: prefix + name, Kind: kind, Text: text, Labels: labels}
	table = append(table, m)
	return m
}

func histogram(name, text string, buckets []float64, labels ...Label) *Metric {
	m := declare(Histogram, name, text, labels...)
	m.Buckets = buckets
	return m
}

// Buckets in seconds. A call is answered in some milliseconds, a launch takes
// from a fraction of a second (a container) to minutes (a machine).
var (
	callBuckets   = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 10}
	launchBuckets = []float64{.1, .25, .5, 1, 1.5, 2, 3, 5, 10, 20, 30, 60, 120, 300, 600}
)

// The labels that several metrics have.
var (
	clusterLabel = Label{Name: "cluster", Text: "id of the cluster"}
	groupLabel   = Label{Name: "group", Text: "name of the compute node group"}
)

// NodeStates are the states of nodes, as docs/states/node.md has them.
func nodeStates() (out []string) {
	for _, s := range fleet.MachineOf("node").States {
		out = append(out, s.Name)
	}
	return append(out, Other)
}

// LaunchStages are the stages of a launch, and what can come of one.
var launchStages = []string{StageAssigned, StageLaunched, StageRegistered, StageReady, StageFailed, StageLost}

// The stages of a launch.
const (
	StageAssigned   = "assigned"
	StageLaunched   = "launched"
	StageRegistered = "registered"
	StageReady      = "ready"
	StageFailed     = "failed"
	StageLost       = "lost"
)

// slurmBase are the base states of Slurm's nodes, slurmFlags what can be added
// to them, in Slurm's words in lower case.
var (
	slurmBase  = []string{"idle", "mixed", "allocated", "down", "error", "future", "unknown", Other}
	slurmFlags = []string{
		"blocked", "cloud", "completing", "drain", "dynamic_future", "dynamic_norm", "external", "fail", "invalid_reg", "maintenance",
		"not_responding", "planned", "power_down", "power_down_asap", "power_down_force", "power_drain", "power_up", "powered_down", "powering_down", "powering_up",
		"reboot_canceled", "reboot_issued", "reboot_requested", "reserved", "resume", "undrain", Other,
	}
)

// The metrics of openpcs itself.
var (
	Build = declare(Gauge, "build_info", "Always 1; the label has the version.", Label{Name: "version", Text: "of openpcs"})
	Start = declare(Gauge, "start_time_seconds", "When this openpcs was started, in seconds since 1970.")

	Memory     = declare(Gauge, "memory_bytes", "Memory that the Go runtime has from the system.")
	Goroutines = declare(Gauge, "goroutines", "Goroutines.")

	GatherErrors = declare(Counter, "gather_errors_total", "Scrapes in which a part of the metrics could not be gathered, and is missing.",
		Label{Name: "part", Values: []string{PartFleet, PartEvents, PartDelivery, PartProcess, Other}})
)

// The parts that are gathered.
const (
	PartFleet    = "fleet"
	PartEvents   = "events"
	PartDelivery = "delivery"
	PartProcess  = "process"
)

// The metrics of the API.
var (
	serviceLabel   = Label{Name: "service", Text: "pcs, ec2, s3, ...; empty: refused before it was verified"}
	operationLabel = Label{Name: "operation", Text: "as the API has it; the method for s3; empty: none that there is"}

	APIRequests = declare(Counter, "api_requests_total", "Calls of the API that were answered.",
		serviceLabel, operationLabel, Label{Name: "status", Text: "of HTTP"})
	APISeconds = histogram("api_request_seconds", "How long calls took, from their head to their answer.", callBuckets, serviceLabel, operationLabel)
)

// The metrics of the clusters' loops.
var (
	Passes      = declare(Counter, "planner_passes_total", "Passes of the clusters' loops.", Label{Name: "result", Values: []string{"done", "failed"}})
	PassSeconds = histogram("planner_pass_seconds", "How long passes took, with what they waited for.", callBuckets)

	Events = declare(Counter, "events_total", "Entries of the histories that `openpcs explain` tells, since the start.",
		Label{Name: "kind", Text: "of the event, a known one or other"})
	Launches = declare(Counter, "launches_total", "Launches of instances by the stage that they reached, since the start. Ready is the success; failed and lost are ends.",
		Label{Name: "stage", Values: launchStages})
	LaunchSeconds = histogram("launch_seconds", "From the decision to launch an instance to a stage; to ready is the cold start.", launchBuckets,
		Label{Name: "stage", Values: []string{StageLaunched, StageRegistered, StageReady}})
)

// The metrics of the fleet.
var (
	ClusterInfo = declare(Gauge, "cluster_info", "Always 1; the labels have what the id stands for.",
		clusterLabel, Label{Name: "name", Text: "of the cluster"}, Label{Name: "version", Text: "of Slurm"}, Label{Name: "region", Text: "it is in"})
	Clusters  = declare(Gauge, "clusters", "Clusters by status.", statusLabel())
	Reachable = declare(Gauge, "controller_reachable", "Whether the controller can be driven: 1, or 0.", clusterLabel)

	Instances = declare(Gauge, "instances", "Instances of compute node groups by state, terminated ones for an hour.", clusterLabel,
		Label{Name: "state", Values: []string{
			string(fleet.Pending), string(fleet.Running), string(fleet.ShuttingDown), string(fleet.Terminated), string(fleet.Stopping), string(fleet.Stopped), Other,
		}})
	Nodes = declare(Gauge, "nodes", "Nodes by the state that openpcs has them in (docs/states/node.md).", clusterLabel, Label{Name: "state", Values: nodeStates()})

	SlurmNodes = declare(Gauge, "slurm_nodes", "Nodes by the base state that slurmctld tells. Other: one that this openpcs does not know.",
		clusterLabel, Label{Name: "state", Values: slurmBase})
	SlurmFlags = declare(Gauge, "slurm_node_flags", "Nodes that have a flag beside their base state; a node can have several. Other: flags that this openpcs does not know.",
		clusterLabel, Label{Name: "flag", Values: slurmFlags})
	UnknownStates = declare(Counter, "unknown_states_total", "Base states and flags that this openpcs does not know, each time they were read.")
	SlurmReady    = declare(Gauge, "slurm_nodes_ready", "Nodes on which a job can start now: up, answering, and not drained.", clusterLabel)

	GroupMin   = declare(Gauge, "group_instances_min", "minInstanceCount of the group.", clusterLabel, groupLabel)
	GroupMax   = declare(Gauge, "group_instances_max", "maxInstanceCount of the group.", clusterLabel, groupLabel)
	GroupUp    = declare(Gauge, "group_nodes_up", "Nodes of the group that are up.", clusterLabel, groupLabel)
	GroupPools = declare(Gauge, "group_pools", "Pools (instance type and subnet) of the group.", clusterLabel, groupLabel)
	PoolsRest  = declare(Gauge, "group_pools_resting", "Pools of the group that had no instance to give lately and rest. As many as there are pools: the group has no capacity.", clusterLabel, groupLabel)

	BreakerOpen     = declare(Gauge, "breaker_open", "Whether the breaker of the group is open: 1, or 0.", clusterLabel, groupLabel)
	BreakerFailures = declare(Gauge, "breaker_failures", "Starts of the group that failed in a row.", clusterLabel, groupLabel)
)

// The metrics of logs and their deliveries.
var (
	logTypeLabel = Label{Name: "log_type", Text: "PCS_SCHEDULER_LOGS, ..."}
	logNameLabel = Label{Name: "log_name", Text: "slurmctld, slurmdbd, slurmrestd, jobcomp or scaling; empty: it has no record yet"}

	JournalRecords = declare(Counter, "journal_records_total", "Records that a log of a cluster has had.", clusterLabel, logTypeLabel, logNameLabel)
	JournalKept    = declare(Gauge, "journal_records", "Records of the log that are kept.", clusterLabel, logTypeLabel, logNameLabel)

	DeliveryLagSeconds = ofDelivery(Gauge, "delivery_lag_seconds", "Age of the oldest record that is not delivered yet; 0: all are.")
	DeliveryLag        = ofDelivery(Gauge, "delivery_lag_records", "Records that are not delivered yet.")
	Delivered          = ofDelivery(Counter, "delivery_records_total", "Records that were delivered, since the delivery exists.")
	Dropped            = ofDelivery(Counter, "delivery_dropped_records_total", "Records that the delivery lost because it was too far behind, since it exists.")
	Refused            = ofDelivery(Counter, "delivery_refused_records_total", "Records that the destination never takes, since the delivery exists.")
	DeliveryRetries    = ofDelivery(Counter, "delivery_retries_total", "Tries that failed, since the start of openpcs.")
	DeliveryFailing    = ofDelivery(Gauge, "delivery_failing", "Whether the last try failed: 1, or 0.")
)

// ofDelivery is a metric of each log of each delivery.
func ofDelivery(kind Kind, name, text string) *Metric {
	return declare(kind, name, text, clusterLabel, Label{Name: "delivery", Text: "id of the delivery"}, logTypeLabel, logNameLabel, Label{Name: "destination", Text: "S3, CWL or FH"})
}

func statusLabel() Label {
	return Label{Name: "status", Values: []string{
		string(fleet.Creating), string(fleet.Active), string(fleet.Updating), string(fleet.Deleting), string(fleet.CreateFailed), string(fleet.UpdateFailed), Other,
	}}
}

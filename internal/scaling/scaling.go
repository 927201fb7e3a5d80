// Package scaling is the scaling log: a record for each step in the life of a
// node's instance, in the form of PCS's PCS_SCALING_LOGS. It knows what a step
// is called, how it is kept and how it is read, and nothing of who makes the
// step nor of where the log is delivered. Records are written in the
// transaction that makes the step, so that none is lost or comes twice.
package scaling

import (
	"strings"
	"time"

	"github.com/openpcs/openpcs/internal/condition"
	"github.com/openpcs/openpcs/internal/fleet"
)

// Status is what happened (status_code).
type Status string

// Reason is why (reason_code).
type Reason string

// The statuses of the PCS user guide, scaling logs.
const (
	Launched           Status = "LAUNCHED"
	Registered         Status = "REGISTERED"
	Active             Status = "ACTIVE"
	PendingReplacement Status = "PENDING_REPLACEMENT"
	LaunchFailed       Status = "LAUNCH_FAILED"
	Terminated         Status = "TERMINATED"
	TerminateFailed    Status = "TERMINATE_FAILED"
)

// The reasons of the PCS user guide, scaling logs.
const (
	SchedulerRequested    Reason = "SCHEDULER_REQUESTED"
	MaintainMinCapacity   Reason = "MAINTAIN_MIN_CAPACITY"
	RegisterSuccess       Reason = "REGISTER_SUCCESS"
	BootstrapSuccess      Reason = "BOOTSTRAP_SUCCESS"
	NodeGroupUpdate       Reason = "NODE_GROUP_UPDATE"
	HealthCheckFailed     Reason = "EC2_HEALTH_CHECK_FAILED"
	ScheduledEvent        Reason = "EC2_SCHEDULED_EVENT"
	InsufficientCapacity  Reason = "INSUFFICIENT_CAPACITY"
	LimitExceeded         Reason = "LIMIT_EXCEEDED"
	LaunchError           Reason = "LAUNCH_ERROR"
	UnhealthyNode         Reason = "UNHEALTHY_NODE"
	BootstrapFailed       Reason = "BOOTSTRAP_FAILED"
	ExternallyTerminated  Reason = "EXTERNALLY_TERMINATED"
	ReplacementRequested  Reason = "REPLACEMENT_REQUESTED"
	NodeGroupDeletion     Reason = "NODE_GROUP_DELETION"
	OperationNotPermitted Reason = "EC2_OPERATION_NOT_PERMITTED"
	EC2Error              Reason = "EC2_ERROR"
)

// Step is a status with its reason.
type Step struct {
	Status Status
	Reason Reason
}

// sentences are the descriptions. The first and the one of a launch without
// capacity are PCS's own, as its user guide prints them.
var sentences = map[Step]string{
	{Launched, SchedulerRequested}:           "Instance launched to satisfy a scheduler scale-up request.",
	{Launched, MaintainMinCapacity}:          "Instance launched to keep the minimum number of instances of its compute node group.",
	{Registered, RegisterSuccess}:            "The agent of the instance registered with the cluster.",
	{Active, BootstrapSuccess}:               "The node is up and takes jobs.",
	{PendingReplacement, NodeGroupUpdate}:    "The node takes no more jobs and is replaced when those it has are done, as its compute node group was updated.",
	{PendingReplacement, HealthCheckFailed}:  "The node takes no more jobs and is replaced when those it has are done, as a check of it failed.",
	{PendingReplacement, ScheduledEvent}:     "The node takes no more jobs and is replaced when those it has are done, as maintenance of its instance is announced.",
	{LaunchFailed, InsufficientCapacity}:     "Node did not get an instance because there was not enough capacity available.",
	{LaunchFailed, LimitExceeded}:            "Node did not get an instance because a quota was reached.",
	{LaunchFailed, LaunchError}:              "Node did not get an instance because the launch failed.",
	{Terminated, SchedulerRequested}:         "Instance terminated as the scheduler does not need its node.",
	{Terminated, UnhealthyNode}:              "Instance terminated as the scheduler took its node out of service.",
	{Terminated, BootstrapFailed}:            "Instance terminated as it did not come up as a node.",
	{Terminated, ExternallyTerminated}:       "Instance was terminated by somebody or something else than the service.",
	{Terminated, ReplacementRequested}:       "Instance terminated to be replaced by a new one.",
	{Terminated, NodeGroupDeletion}:          "Instance terminated as its compute node group is deleted.",
	{TerminateFailed, OperationNotPermitted}: "Instance could not be terminated as it is protected.",
	{TerminateFailed, EC2Error}:              "Instance could not be terminated, which is tried again.",
}

// Steps lists all steps with their descriptions.
func Steps() map[Step]string { return sentences }

// Record is one line of the log. The members are PCS's, but for Details.Openpcs.
type Record struct {
	ResourceID         string  `json:"resource_id"` // of the cluster
	ResourceType       string  `json:"resource_type"`
	EventTimestamp     int64   `json:"event_timestamp"` // milliseconds since 1970
	ComputeNodeGroupID string  `json:"compute_node_group_id"`
	SchedulerNodeID    string  `json:"scheduler_node_id"` // the Slurm node
	StatusCode         Status  `json:"status_code"`
	ReasonCode         Reason  `json:"reason_code"`
	Description        string  `json:"description"`
	Details            Details `json:"details"`
}

// Details are what is known of the instance; each may be absent.
type Details struct {
	InstanceID   string `json:"instance_id,omitempty"`
	EC2ErrorCode string `json:"ec2_error_code,omitempty"`
	InstanceType string `json:"instance_type,omitempty"`
	SubnetID     string `json:"subnet_id,omitempty"`
	// Openpcs has what PCS does not tell.
	Openpcs *Extra `json:"openpcs,omitempty"`
}

// Extra is what lies behind a step: a declared condition, and what it says of
// this instance.
type Extra struct {
	Condition condition.Code `json:"condition"`
	Message   string         `json:"message,omitempty"`
}

// Grave reports whether the step tells of something that went wrong.
func (e *Extra) Grave() bool {
	if e == nil {
		return false
	}
	c, ok := condition.Find(e.Condition)
	return !ok || c.Severity != condition.Info
}

func record(i fleet.Instance, s Step, now time.Time) Record {
	return Record{
		ResourceID: i.ClusterID, ResourceType: "PCS_CLUSTER", EventTimestamp: now.UnixMilli(),
		ComputeNodeGroupID: i.GroupID, SchedulerNodeID: i.NodeName,
		StatusCode: s.Status, ReasonCode: s.Reason, Description: sentences[s],
		Details: Details{InstanceID: i.ID, InstanceType: i.Type, SubnetID: i.SubnetID},
	}
}

// OfLaunch tells that the provider launched an instance, for a job or for the
// minimum of its group.
func OfLaunch(i fleet.Instance, g fleet.Group, now time.Time) Record {
	s := Step{Launched, SchedulerRequested}
	if n := g.NodeIndex(i.NodeName); n > 0 && n <= g.Min {
		s.Reason = MaintainMinCapacity
	}
	return record(i, s, now)
}

// OfRegistration tells that the agent registered for the first time. A reboot
// in place, after which it registers again, is no step.
func OfRegistration(i fleet.Instance, now time.Time) Record {
	return record(i, Step{Registered, RegisterSuccess}, now)
}

// OfActivation tells that slurmctld sees the slurmd.
func OfActivation(i fleet.Instance, now time.Time) Record {
	r := record(i, Step{Active, BootstrapSuccess}, now)
	// Scripts that failed and were to let it come up all the same.
	if trouble := i.Trouble(); len(trouble) > 0 {
		r.Details.Openpcs = &Extra{trouble[0].Code, trouble[0].Message}
	}
	return r
}

// OfReplacement tells that a node which is up was drained, to be replaced; why
// is a sentence.
func OfReplacement(i fleet.Instance, why string, now time.Time) Record {
	s := Step{PendingReplacement, HealthCheckFailed}
	if i.Leaving == condition.GroupUpdated {
		s.Reason = NodeGroupUpdate
	}
	r := record(i, s, now)
	r.Details.Openpcs = &Extra{i.Leaving, why}
	return r
}

// endings say what the end of an instance is called, by the condition that it
// ended for.
var endings = map[condition.Code]Step{
	condition.Idle:                   {Terminated, SchedulerRequested},
	condition.NotWanted:              {Terminated, SchedulerRequested},
	condition.ScaleIn:                {Terminated, SchedulerRequested},
	condition.GroupDeleted:           {Terminated, NodeGroupDeletion},
	condition.GroupUpdated:           {Terminated, ReplacementRequested},
	condition.BootstrapTimeout:       {Terminated, BootstrapFailed},
	condition.BootstrapFailed:        {Terminated, BootstrapFailed},
	condition.ImageWithoutAgent:      {Terminated, BootstrapFailed},
	condition.UserDataInvalid:        {Terminated, BootstrapFailed},
	condition.CloudConfigUnsupported: {Terminated, BootstrapFailed},
	condition.RegistrationFailed:     {Terminated, BootstrapFailed},
	condition.InvalidRegistration:    {Terminated, BootstrapFailed},
	condition.SlurmdFailed:           {Terminated, BootstrapFailed},
	condition.SlurmVersionMismatch:   {Terminated, BootstrapFailed},
	condition.ControllerNotReached:   {Terminated, BootstrapFailed},
	condition.LifecycleScriptFailed:  {Terminated, BootstrapFailed},
	condition.LifecycleScriptHung:    {Terminated, BootstrapFailed},
	condition.LifecycleDownload:      {Terminated, BootstrapFailed},
	condition.ResumeTimeout:          {Terminated, BootstrapFailed},
	condition.InstanceLost:           {Terminated, ExternallyTerminated},
	condition.SpotReclaimed:          {Terminated, ExternallyTerminated},
	condition.TerminatedByUser:       {Terminated, ExternallyTerminated},
	condition.NodeUnusable:           {Terminated, UnhealthyNode},
	condition.InsufficientCapacity:   {LaunchFailed, InsufficientCapacity},
	condition.LaunchImpossible:       {LaunchFailed, LaunchError},
	condition.LaunchFailed:           {LaunchFailed, LaunchError},
}

// Ending returns the step by which an instance ends for a condition. Whatever
// is not in the table, such as a condition of a newer openpcs, is a failure of
// the node.
func Ending(code condition.Code, wasUp bool) Step {
	switch s, ok := endings[code]; {
	case ok:
		return s
	case wasUp:
		return Step{Terminated, UnhealthyNode}
	default:
		return Step{Terminated, BootstrapFailed}
	}
}

// OfEnd tells that an instance is gone, or that it never came to be because its
// launch failed. One that was given up before its launch leaves no record.
func OfEnd(i fleet.Instance, now time.Time) (r Record, ok bool) {
	why := i.Failure
	switch {
	case why != "":
	case i.EndCode == i.Leaving:
		why = i.LeavingWhy
	default:
		why = strings.TrimPrefix(i.StateReason, "openpcs: ")
	}
	if !i.StartedAt.IsZero() {
		s := Ending(i.EndCode, !i.ReadyAt.IsZero())
		r = record(i, s, now)
		if s.Status == LaunchFailed { // the provider said yes, and gave none
			r.Details.EC2ErrorCode = strings.TrimPrefix(i.StateCode, "Server.")
		}
		r.Details.Openpcs = &Extra{i.EndCode, why}
		return r, true
	}
	if i.FailureCode == "" {
		return Record{}, false
	}
	return OfLack(i, strings.TrimPrefix(i.StateCode, "Server."), i.FailureCode, why, now), true
}

// OfLack tells that a node did not get an instance: i has the cluster, group
// and node, and the type and subnet that were tried last.
func OfLack(i fleet.Instance, ec2Code string, code condition.Code, why string, now time.Time) Record {
	r := record(i, Step{LaunchFailed, launchReason(ec2Code)}, now)
	r.Details.InstanceID, r.Details.EC2ErrorCode = "", ec2Code
	r.Details.Openpcs = &Extra{code, why}
	return r
}

// launchReason sorts the error codes of EC2's RunInstances and CreateFleet.
func launchReason(ec2Code string) Reason {
	switch ec2Code {
	case "InsufficientInstanceCapacity", "InsufficientHostCapacity", "InsufficientReservedInstanceCapacity", "InsufficientCapacity",
		"InsufficientFreeAddressesInSubnet", "ReservationCapacityExceeded", "UnfulfillableCapacity":
		return InsufficientCapacity
	case "InstanceLimitExceeded", "VcpuLimitExceeded", "MaxSpotInstanceCountExceeded", "AddressLimitExceeded",
		"MaxSpotFleetRequestCountExceeded", "VolumeLimitExceeded", "RequestLimitExceeded":
		return LimitExceeded
	}
	return LaunchError
}

// OfStopFailure tells that the provider could not end an instance.
func OfStopFailure(i fleet.Instance, cause error, now time.Time) Record {
	r := record(i, Step{TerminateFailed, EC2Error}, now)
	r.Details.Openpcs = &Extra{i.EndCode, cause.Error()}
	return r
}

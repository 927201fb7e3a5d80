// Package imds is the metadata service that instances find at
// 169.254.169.254: EC2's own tree (IMDSv2), and below /openpcs/v1 what the
// openpcs agents ask and report. A caller is known by its source address,
// which the provider assigns and guards.
package imds

import (
	"github.com/openpcs/openpcs/internal/condition"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/slurm"
)

// Address is where instances find the service.
const Address = "169.254.169.254"

// Base is the service's URL as instances see it.
const Base = "http://" + Address

// Bootstrap tells a node's agent what to join (GET /openpcs/v1/bootstrap).
type Bootstrap struct {
	InstanceID string `json:"instanceId"`
	ClusterID  string `json:"clusterId"`
	Region     string `json:"region"`
	Endpoint   string `json:"endpoint"` // of the PCS API
	// Login says that the group is in no queue: its nodes run sackd too.
	Login        bool   `json:"login"`
	InstanceType string `json:"instanceType"`
	// BootSeconds is how long the boot may take until Slurm gives the node up,
	// with some time left to say why.
	BootSeconds int `json:"bootSeconds,omitempty"`
}

// Report is what a node's agent says of its bootstrap
// (POST /openpcs/v1/report).
type Report struct {
	// Stage is where it got: running, slurmd-waits, slurmd-started, bootstrapped (all
	// lifecycle scripts ran as well) or failed; script is not the end of
	// anything but of Scripts.
	Stage string `json:"stage"`
	// Joined says that what failed did so after slurmd had registered: jobs may
	// run there, and the instance goes when they are done.
	Joined bool `json:"joined,omitempty"`
	// Scripts is what came of lifecycle scripts. What was told before may be
	// among it.
	Scripts []fleet.ScriptOutcome `json:"scripts,omitempty"`
	// Code and Message explain a failure.
	Code    condition.Code `json:"code,omitempty"`
	Message string         `json:"message,omitempty"`
	Log     string         `json:"log,omitempty"` // end of bootstrap.log
	// Timings are milliseconds since the agent started, by stage.
	Timings map[string]int64 `json:"timings,omitempty"`
}

// Controller tells a controller's agent who it is
// (GET /openpcs/v1/controller).
type Controller struct {
	ClusterID string `json:"clusterId"`
	Token     string `json:"token"`
}

// Hook is one call of a Slurm program (POST /openpcs/v1/hook).
type Hook struct {
	// ID is the same for every delivery of one call.
	ID string `json:"id,omitempty"`
	// Kind is resume, suspend or resume-fail; expect: a job got the nodes;
	// slurmctld-complained, slurmctld-ended, slurmdbd-ended, slurmrestd-ended,
	// slurmdbd-disk-full or slurmdbd-disk-free: a notice, with Detail.
	Kind  string `json:"kind"`
	Nodes string `json:"nodes"`
	// ResumeFile is SLURM_RESUME_FILE's content as slurmctld wrote it, empty
	// when it was gone already.
	ResumeFile string `json:"resumeFile,omitempty"`
	Detail     string `json:"detail,omitempty"`
}

// Credentials are the keys of an instance's role, in IMDS's form.
type Credentials struct {
	Code            string `json:"Code"`
	LastUpdated     string `json:"LastUpdated"`
	Type            string `json:"Type"`
	AccessKeyID     string `json:"AccessKeyId"`
	SecretAccessKey string `json:"SecretAccessKey"`
	Token           string `json:"Token"`
	Expiration      string `json:"Expiration"`
}

// Nodes is what slurmctld says of its nodes (POST /openpcs/v1/nodes): all of
// them, or those that changed.
type Nodes struct {
	Full  bool                  `json:"full"`
	Nodes map[string]slurm.Node `json:"nodes"`
}

// Package condition declares every problem that a user of openpcs can meet:
// its stable code, how bad it is, what it means and what to do. The codes
// show in errorInfo of the API, in the histories that `openpcs explain`
// prints and in its answer to `openpcs explain CODE`. It imports nothing of
// openpcs, so that everything can name a condition.
package condition

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Code names a condition for good.
type Code string

// Severity says how bad a condition is.
type Severity string

// The severities.
const (
	Error   Severity = "error"   // something that was asked for did not come about
	Warning Severity = "warning" // openpcs repairs it, and it cost time or a job its run
	Info    Severity = "info"    // what is meant to happen, told because it ends something
)

// The conditions of clusters.
const (
	ControllerFailed      Code = "CONTROLLER_FAILED"
	ControllerUnreachable Code = "CONTROLLER_UNREACHABLE"
	SlurmctldCrashed      Code = "SLURMCTLD_CRASHED"
	ConfigurationRefused  Code = "SLURM_CONFIGURATION_REFUSED"
	LogsNotKept           Code = "LOGS_NOT_KEPT"
	LogsLost              Code = "LOGS_LOST"
	AccountingFailed      Code = "ACCOUNTING_FAILED"
	RESTFailed            Code = "REST_API_FAILED"
	SlurmdbdCrashed       Code = "SLURMDBD_CRASHED"
	SlurmrestdCrashed     Code = "SLURMRESTD_CRASHED"
	DatabaseFull          Code = "ACCOUNTING_DATABASE_FULL"
	DatabaseClientFault   Code = "ACCOUNTING_DATABASE_CLIENT_FAULT"
)

// The conditions of compute node groups, their nodes and instances.
const (
	InsufficientCapacity   Code = "INSUFFICIENT_CAPACITY"
	LaunchImpossible       Code = "LAUNCH_IMPOSSIBLE"
	LaunchFailed           Code = "LAUNCH_FAILED"
	BreakerOpen            Code = "BREAKER_OPEN"
	BootstrapTimeout       Code = "BOOTSTRAP_TIMEOUT"
	BootstrapFailed        Code = "BOOTSTRAP_FAILED"
	ImageWithoutAgent      Code = "IMAGE_WITHOUT_AGENT"
	UserDataInvalid        Code = "USER_DATA_INVALID"
	CloudConfigUnsupported Code = "CLOUD_CONFIG_UNSUPPORTED"
	RegistrationFailed     Code = "REGISTRATION_FAILED"
	InvalidRegistration    Code = "INVALID_REGISTRATION"
	SlurmdFailed           Code = "SLURMD_FAILED"
	SlurmVersionMismatch   Code = "SLURM_VERSION_MISMATCH"
	ControllerNotReached   Code = "CONTROLLER_NOT_REACHED"
	LifecycleScriptFailed  Code = "LIFECYCLE_SCRIPT_FAILED"
	LifecycleScriptHung    Code = "LIFECYCLE_SCRIPT_HUNG"
	LifecycleDownload      Code = "LIFECYCLE_DOWNLOAD_FAILED"
	LifecycleActionFailed  Code = "LIFECYCLE_ACTION_FAILED"
	ResumeTimeout          Code = "RESUME_TIMEOUT"
	InstanceLost           Code = "INSTANCE_LOST"
	SpotReclaimed          Code = "SPOT_RECLAIMED"
	NodeUnusable           Code = "NODE_UNUSABLE"
	TerminatedByUser       Code = "TERMINATED_BY_USER"
	Idle                   Code = "IDLE"
	ScaleIn                Code = "SCALE_IN"
	NotWanted              Code = "NOT_WANTED"
	GroupDeleted           Code = "GROUP_DELETED"
	GroupUpdated           Code = "GROUP_UPDATED"
)

// The conditions of deliveries of logs.
const (
	LogDeliveryDenied     Code = "LOG_DELIVERY_DENIED"
	LogDestinationMissing Code = "LOG_DESTINATION_MISSING"
	LogDeliveryFailing    Code = "LOG_DELIVERY_FAILING"
	LogRecordsDropped     Code = "LOG_RECORDS_DROPPED"
	LogRecordsRefused     Code = "LOG_RECORDS_REFUSED"
)

// Condition is one declared problem.
type Condition struct {
	Code     Code
	Of       string // what can have it: cluster, group, node
	Severity Severity
	Text     string // what it means
	Fix      string // what to do about it
}

var all = []Condition{
	{
		ControllerFailed, "cluster", Error,
		"The cluster's controller did not come up within five minutes of its creation.",
		"`openpcs explain CLUSTER` has the last error and `openpcs logs CLUSTER` the controller's logs; `openpcs doctor` checks the host. Delete the cluster and create it again once the cause is gone.",
	},
	{
		ControllerUnreachable, "cluster", Warning,
		"The cluster's controller does not answer. Jobs that run go on; new ones wait, and so do changes of the cluster.",
		"openpcs starts a controller that is gone and slurmctld when it died. If it lasts, `openpcs logs CLUSTER` shows why slurmctld ends.",
	},
	{
		SlurmctldCrashed, "cluster", Warning,
		"slurmctld ended unexpectedly of late, and was started again: at once the first time, after up to ten seconds when it goes on. Jobs that run do not notice; commands fail meanwhile.",
		"Once is no reason to worry. If it goes on, `openpcs logs CLUSTER` shows what slurmctld did last.",
	},
	{
		ConfigurationRefused, "cluster", Error,
		"slurmctld did not take the configuration that the change leads to. The former configuration is in force.",
		"The message has Slurm's own words. Correct the custom Slurm settings and update again.",
	},
	{
		LogsNotKept, "cluster", Error,
		"What a daemon of the cluster logs cannot be written to the disk of the control plane, which is full or broken. It stays on the controller meanwhile, and nothing is lost as long as there is room for it there: some 300 MiB for each log.",
		"Make room below the state folder, or set a smaller OPENPCS_LOG_LIMIT. openpcs goes on by itself where it stopped.",
	},
	{
		LogsLost, "cluster", Warning,
		"A daemon's log does not go on where it was read to, so that what was written in between, if there was anything, is gone: the controller was replaced, or openpcs was away while more was written than the controller keeps, or somebody removed the log.",
		"What was not read cannot be had any more. Leave the files in /var/log/slurm of the controller alone, which rotates them itself.",
	},
	{
		AccountingFailed, "cluster", Error,
		"slurmdbd or its database does not start, so that the cluster does not get the configuration that it waits for. What runs goes on. It is tried again every few seconds, for five minutes: then a cluster that is being created is given up, and an update is taken back (UPDATE_FAILED).",
		"The message has the last words of the daemon, `openpcs logs CLUSTER` more of them. A full disk is the usual cause; `openpcs doctor` checks the host.",
	},
	{
		RESTFailed, "cluster", Error,
		"slurmrestd does not start. Slurm itself runs with the new configuration. It is tried again every few seconds, for five minutes: then a cluster that is being created is given up, and an update is taken back (UPDATE_FAILED).",
		"The message has its last words, `openpcs logs CLUSTER` more of them.",
	},
	{
		SlurmdbdCrashed, "cluster", Warning,
		"slurmdbd, which keeps the accounting records, or its database ended unexpectedly of late, and was started again. Jobs do not notice: slurmctld keeps their records until slurmdbd is back.",
		"Once is no reason to worry. If it goes on, `openpcs logs CLUSTER` shows what slurmdbd said last.",
	},
	{
		SlurmrestdCrashed, "cluster", Warning,
		"slurmrestd, which serves the REST API, ended unexpectedly of late, and was started again. Calls meanwhile were refused.",
		"Once is no reason to worry. If it goes on, `openpcs logs CLUSTER` shows what slurmrestd said last.",
	},
	{
		DatabaseFull, "cluster", Error,
		"The database of the accounting records has no room: less than 64 MiB are free where it is. When it cannot write any more, slurmctld keeps the records of jobs for a while, and then loses some.",
		"Free space where OPENPCS_STATE is. The database goes on by itself. `defaultPurgeTimeInDays` of the cluster's accounting bounds how long records are kept.",
	},
	{
		DatabaseClientFault, "cluster", Warning,
		"slurmdbd met error 5027 (\"number of columns in result\") of its database client library: version 3.4.9 of libmariadb takes no result any more on a connection whose first try was refused. openpcs has the database ready before slurmdbd starts, so that it should not be met.",
		"Nothing needs to be done once: slurmdbd is started again, with a connection of its own. If it goes on, `openpcs logs CLUSTER` shows why the database refuses connections.",
	},
	{
		InsufficientCapacity, "group", Warning,
		"An instance type in a subnet has no instance to give. The next type or subnet of the group is tried at once; when all have refused, the jobs of the nodes are freed and the idle nodes are held out, so that Slurm gives jobs other nodes.",
		"Wait: one launch tries again after 5 s, then 10 s and so on up to 10 minutes. More instance types or subnets in the group make it less likely; an update of the group tries at once.",
	},
	{
		LaunchImpossible, "group", Error,
		"Launches of the group fail for a reason that no waiting cures, such as an image that no longer exists.",
		"Correct the group or its launch template and update the group, which tries at once; else it is tried every 10 minutes.",
	},
	{
		BreakerOpen, "group", Warning,
		"Instances of the group failed to come up so many times in a row (5, or OPENPCS_BREAKER) that it no longer tries at once: the jobs of its nodes are freed, and its idle nodes are held out, so that Slurm gives jobs other nodes. One launch at a time tries again, after a time that doubles up to 10 minutes. The message has the last failure.",
		"`openpcs explain GROUP` has the failures, and `openpcs logs INSTANCE` what the last instances said. Cure the cause and update the group, which tries at once; else the first instance that comes up ends it.",
	},
	{
		LaunchFailed, "node", Warning,
		"The provider could not start the instance.",
		"The error is the provider's. The node is tried again after a time that doubles from 5 s to 10 minutes. `openpcs doctor` checks the host.",
	},
	{
		BootstrapTimeout, "node", Error,
		"The instance was started and did not register within 10 minutes.",
		"`openpcs logs INSTANCE` has its console and bootstrap.log. A boothook or the boot itself hangs.",
	},
	{
		BootstrapFailed, "node", Error,
		"The instance's bootstrap ended with an error.",
		"`openpcs logs INSTANCE --file bootstrap.log` has the last step and its error.",
	},
	{
		ImageWithoutAgent, "node", Error,
		"The image has no PCS agent, so that its instances can never join a cluster.",
		"Use an image that has it: `aws ec2 describe-images --owners amazon --filters 'Name=name,Values=aws-pcs-sample_ami-*'`. Update the group's launch template or its AMI.",
	},
	{
		UserDataInvalid, "node", Error,
		"The launch template's user data is not MIME multi-part that can be read.",
		"Correct it: a header `Content-Type: multipart/mixed; boundary=\"...\"`, an empty line, and parts between the boundaries.",
	},
	{
		CloudConfigUnsupported, "node", Error,
		"The user data has a text/cloud-config part, and the image has no cloud-init.",
		"Write the part as text/cloud-boothook or text/x-shellscript.",
	},
	{
		RegistrationFailed, "node", Error,
		"The agent could not register the instance with its cluster.",
		"The message has the API's answer. The group's instance profile must allow pcs:RegisterComputeNodeGroupInstance, and its name or path must begin with AWSPCS or aws-pcs.",
	},
	{
		InvalidRegistration, "node", Error,
		"slurmctld did not take the node's registration: it has less than the configuration says. The message has both counts.",
		"Correct RealMemory, CPUs or Gres in the group's custom Slurm settings, or use a larger instance type.",
	},
	{
		SlurmdFailed, "node", Error,
		"slurmd did not start on the node.",
		"`openpcs logs INSTANCE --file slurmd.log` has its error.",
	},
	{
		LifecycleScriptFailed, "node", Error,
		"A lifecycle script failed whose onError is TERMINATE, so that the instance was ended as failed. The message names the script, its stage, its exit code and its log.",
		"`openpcs logs INSTANCE` has the script's log, kept of instances that are gone too. Correct the script and update the group, which launches anew at once; while you try, onError STOP_SEQUENCE keeps the instance for a look.",
	},
	{
		LifecycleScriptHung, "node", Error,
		"A lifecycle script of the stage nodeBootstrapped had not ended when the time in which a node must be up was nearly over. It was killed, and the instance was ended as failed.",
		"`openpcs logs INSTANCE` has the script's log. Give commands in it a limit (`timeout 60 COMMAND`), move work that needs no free node to the stage nodeReady, or set a longer OPENPCS_RESUME_TIMEOUT.",
	},
	{
		LifecycleDownload, "node", Error,
		"A lifecycle script whose onError is TERMINATE could not be downloaded, so that the instance was ended as failed. The message has the reason.",
		"403: the role of the group's instance profile needs s3:GetObject, and s3:GetObjectVersion for an s3VersionId. 404: correct scriptLocation. A checksum is that of the file as it is stored; a script may have 2 MiB. Then update the group.",
	},
	{
		LifecycleActionFailed, "node", Warning,
		"A lifecycle script failed, and its onError (STOP_SEQUENCE or CONTINUE) left the node in service. After STOP_SEQUENCE the scripts behind it in its stage did not run.",
		"The message names the script, its stage, its exit code and its log: `openpcs logs INSTANCE` prints that. Correct the script, or where it is to come from, and update the group, which replaces the node when its jobs are done.",
	},
	{
		SlurmVersionMismatch, "node", Error,
		"The node's Slurm and the controller's do not understand each other.",
		"The image needs the cluster's release of Slurm: `openpcs versions` lists them, `aws ec2 describe-images --owners amazon` their images. Update the group's AMI.",
	},
	{
		ControllerNotReached, "node", Error,
		"slurmd on the node does not get its configuration, as it cannot connect to slurmctld's port 6817.",
		"`openpcs explain CLUSTER` tells whether slurmctld runs. If it does, something on the node is in the way: a route, a firewall, a script of the launch template. slurmd goes on trying, so that it may be mended while the instance runs.",
	},
	{
		ResumeTimeout, "node", Error,
		"The node was not up within ResumeTimeout, so Slurm gave it up; its job was requeued.",
		"`openpcs logs INSTANCE` shows how far it came. A slow boot needs a longer OPENPCS_RESUME_TIMEOUT.",
	},
	{
		InstanceLost, "node", Warning,
		"The instance ended without openpcs or Slurm having asked for it. What ran there was requeued.",
		"Nothing needs to be done: the node gets a fresh instance with its next job. `openpcs logs INSTANCE` has what was kept of the lost one.",
	},
	{
		SpotReclaimed, "node", Warning,
		"The provider took its Spot instance back. What ran there was requeued.",
		"Nothing needs to be done. Jobs that cannot bear it belong into a group with ONDEMAND instances.",
	},
	{
		NodeUnusable, "node", Warning,
		"Slurm took the node out of service: its slurmd no longer answers, it rebooted unexpectedly, or it registered anew with less than before.",
		"Nothing needs to be done: the instance is replaced. Its logs are kept (`openpcs logs INSTANCE`).",
	},
	{
		TerminatedByUser, "node", Info,
		"A user terminated the instance. What ran there was requeued.",
		"Nothing needs to be done.",
	},
	{
		Idle, "node", Info,
		"Slurm suspended the node, which was idle for as long as scaleDownIdleTimeInSeconds of its group or cluster.",
		"Nothing needs to be done. A longer idle time keeps nodes for the next job; minInstanceCount keeps some for good.",
	},
	{
		NotWanted, "node", Info,
		"The instance was launched for a job that did not come to its node after all, or Slurm had the node powered down while its call that said so was lost.",
		"Nothing needs to be done.",
	},
	{
		ScaleIn, "node", Info,
		"The group's maxInstanceCount was lowered below the node.",
		"Nothing needs to be done.",
	},
	{
		GroupDeleted, "node", Info,
		"The node's compute node group is deleted or being deleted.",
		"Nothing needs to be done.",
	},
	{
		GroupUpdated, "node", Info,
		"The group was updated: the node's jobs end, and then a fresh instance takes its place.",
		"Nothing needs to be done.",
	},
}

var ofDeliveries = []Condition{
	{
		LogDeliveryDenied, "cluster", Error,
		"The destination of a delivery of logs does not let openpcs write to it. Nothing is lost meanwhile, for up to OPENPCS_DELIVERY_KEEP.",
		"The message names what is lacking: of a bucket, the statement for its policy; elsewhere, the permission of the credentials. The delivery goes on by itself within a minute after it is there.",
	},
	{
		LogDestinationMissing, "cluster", Error,
		"The bucket, log group or stream that a delivery of logs writes to is not there. Nothing is lost meanwhile, for up to OPENPCS_DELIVERY_KEEP.",
		"Create it again, or delete the delivery: `aws logs delete-delivery`. The delivery goes on by itself within a minute.",
	},
	{
		LogDeliveryFailing, "cluster", Warning,
		"A delivery of logs does not come on: its destination does not answer, or refuses for a reason that may pass, such as throttling. Other deliveries are not affected.",
		"Nothing needs to be done if it passes: it is tried again after a second, then two and so on up to a minute. `openpcs deliveries` shows how far behind it is, and the last error.",
	},
	{
		LogRecordsDropped, "cluster", Error,
		"A delivery of logs was behind for so long that records were dropped, the oldest first: records are tried for OPENPCS_DELIVERY_KEEP, and the log of a cluster is kept on disk only up to a size.",
		"They cannot be delivered any more. `openpcs explain CLUSTER` has what kept the delivery from coming on.",
	},
	{
		LogRecordsRefused, "cluster", Warning,
		"A destination never takes some of the records, for example as they are larger than it allows. They were put aside into a file, up to 8 MiB for each delivery, and the delivery went on with the others.",
		"The message names the file, which has them as lines of JSON, with the reason. A destination in S3 takes records of every size.",
	},
}

// All returns the conditions in order of what can have them and code.
func All() []Condition {
	out := slices.Concat(all, ofDeliveries)
	order := []string{"cluster", "group", "node"}
	slices.SortStableFunc(out, func(a, b Condition) int {
		return cmp.Or(cmp.Compare(slices.Index(order, a.Of), slices.Index(order, b.Of)), cmp.Compare(a.Code, b.Code))
	})
	return out
}

// Find returns the condition of a code.
func Find(code Code) (Condition, bool) {
	for _, c := range slices.Concat(all, ofDeliveries) {
		if c.Code == code {
			return c, true
		}
	}
	return Condition{}, false
}

// Document writes docs/conditions.md.
func Document() string {
	var b strings.Builder
	b.WriteString(`# Conditions

Every problem that openpcs tells of has a code. It shows in ` + "`errorInfo`" + ` of
` + "`aws pcs get-cluster`, `get-compute-node-group` and `get-queue`" + `, in the histories
of ` + "`openpcs explain`" + `, and ` + "`openpcs explain CODE`" + ` prints what is below.

*error*: something that was asked for did not come about. *warning*: openpcs
repairs it, and it cost time or a job its run. *info*: it is meant to happen, and
told because it ends something.

(This page is written by ` + "`make docs`" + ` from internal/condition.)
`)
	of := ""
	title := map[string]string{"cluster": "Clusters", "group": "Compute node groups", "node": "Nodes and instances"}
	for _, c := range All() {
		if c.Of != of {
			of = c.Of
			fmt.Fprintf(&b, "\n## %s\n", title[of])
		}
		fmt.Fprintf(&b, "\n### %s\n\n*%s.* %s\n\n%s\n", c.Code, c.Severity, c.Text, c.Fix)
	}
	return b.String()
}

package slurm

// Version says what a Slurm release can do, as far as the configuration
// depends on it. One row a release: nothing else compares version numbers.
type Version struct {
	Name             string // as in the PCS API: 26.05
	HTTP             bool   // slurmctld has an HTTP endpoint that is on by default (25.11)
	ExpeditedRequeue bool   // SlurmctldParameters=enable_expedited_requeue (25.11)
	RequeueOnResume  bool   // SchedulerParameters=requeue_on_resume_failure (25.05)
	RequeueDelay     bool   // SchedulerParameters=requeue_delay (25.11)
	Stepmgr          bool   // SlurmctldParameters=enable_stepmgr (24.05)
	NodeIdleTime     bool   // SuspendTime of NodeName (26.05)
	// AuditLog says that PCS has audit records in a log of their own (25.11), and
	// not in that of the scheduler.
	AuditLog bool
	// GroupIdleTime says that PCS lets groups have an idle time of their own
	// (25.11), whatever Slurm has for it.
	GroupIdleTime bool
	REST          bool // the PCS API switches slurmrestd on (25.05)
	PurgeScripts  bool // slurmdbd purges job scripts and environments (26.05)
	CommitDelay   bool // PCS sets slurmdbd's CommitDelay=1 (26.05)
}

// Versions lists the releases openpcs can drive, oldest first.
var Versions = []Version{
	{Name: "24.11", Stepmgr: true},
	{Name: "25.05", Stepmgr: true, REST: true, RequeueOnResume: true},
	{Name: "25.11", Stepmgr: true, REST: true, RequeueOnResume: true, HTTP: true, ExpeditedRequeue: true, RequeueDelay: true, AuditLog: true, GroupIdleTime: true},
	{Name: "26.05", Stepmgr: true, REST: true, PurgeScripts: true, CommitDelay: true, RequeueOnResume: true, HTTP: true, ExpeditedRequeue: true, RequeueDelay: true, AuditLog: true, GroupIdleTime: true, NodeIdleTime: true},
}

// FindVersion returns the row of a release.
func FindVersion(name string) (Version, bool) {
	for _, v := range Versions {
		if v.Name == name {
			return v, true
		}
	}
	return Version{}, false
}

func (v Version) schedulerParameters() []string {
	// sched_interval: a requeued job becomes eligible without any event.
	params := []string{"batch_sched_delay=0", "sched_min_interval=0", "sched_interval=3"}
	if v.RequeueOnResume {
		params = append(params, "requeue_on_resume_failure")
	}
	if v.RequeueDelay {
		params = append(params, "requeue_delay=5")
	}
	return params
}

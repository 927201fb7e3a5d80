//go:build e2e

package e2e

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/openpcs/openpcs/internal/agent"
	"github.com/openpcs/openpcs/internal/slurm"
)

// tried are values of one custom setting that slurmctld is to take.
type tried struct {
	level   slurm.Level
	name    string
	values  string // one a word; all of an enumeration
	since   string // first release that takes them
	before  string // first release that does not any more
	with    string // NAME=VALUE of the cluster, where the setting needs it
	cgroups bool   // needs nodes with control groups
	alone   bool   // does not go with others
	says    string // what Slurm complains of, though it takes the setting
}

const (
	onCluster = slurm.ClusterLevel
	onGroup   = slurm.GroupLevel
	onQueue   = slurm.QueueLevel
)

var triedSettings = []tried{
	{level: onCluster, name: "AuthAltParameters", values: "disable_token_creation jwt_key=/etc/slurm/jwt.key max_token_lifespan=3600 userclaimfield=name"},
	{level: onCluster, name: "CliFilterParameters", values: "cli_filter_lua_path=/etc/aws/pcs/scheduler/slurm/cli_filter.lua", since: "25.11"},
	{level: onCluster, name: "CliFilterPlugins", values: "lua cli_filter/lua"},
	{level: onCluster, name: "CommunicationParameters", values: "NoCtldInAddrAny NoInAddrAny EnableIPv6 block_null_hash keepaliveinterval=30 keepaliveprobes=3 keepalivetime=30 host_unreach_retry_count=2"},
	{level: onCluster, name: "CommunicationParameters", values: "enable_http enable_http,EnableIPv6", since: "25.11"},
	{level: onCluster, name: "DefMemPerCPU", values: "0 512"},
	{level: onCluster, name: "Epilog", values: "/opt/epilog.sh /opt/epilog.d/*"},
	{level: onCluster, name: "EnforcePartLimits", values: "ALL ANY NO YES"},
	{level: onCluster, name: "FairShareDampeningFactor", values: "1 5"},
	{level: onCluster, name: "FirstJobId", values: "1 1000"},
	{level: onCluster, name: "HealthCheckInterval", values: "0 120"},
	{level: onCluster, name: "HealthCheckNodeState", values: "ALLOC ANY CYCLE IDLE NONDRAINED_IDLE MIXED IDLE,CYCLE"},
	{level: onCluster, name: "HealthCheckNodeState", values: "START_ONLY", since: "25.11"},
	{level: onCluster, name: "HealthCheckNodeState", values: "REBOOT_ONLY", since: "26.05"},
	{level: onCluster, name: "HealthCheckProgram", values: "/opt/check.sh"},
	{level: onCluster, name: "JobRequeue", values: "0 1"},
	{level: onCluster, name: "LaunchParameters", values: "batch_step_set_cpu_freq cray_net_exclusive enable_nss_slurm lustre_no_flush mem_sort mpir_use_nodeaddr disable_send_gids slurmstepd_memlock slurmstepd_memlock_all test_exec use_interactive_step ulimit_pam_adopt"},
	{level: onCluster, name: "Licenses", values: "matlab:10 matlab:10,fluent:5 matlab"},
	{level: onCluster, name: "MetricsType", values: "metrics/openmetrics", since: "25.11"},
	{level: onCluster, name: "MinJobAge", values: "5 300"},
	{level: onCluster, name: "OverTimeLimit", values: "0 10 UNLIMITED"},
	{level: onCluster, name: "PreemptExemptTime", values: "-1 60 00:10:00"},
	{level: onCluster, name: "PreemptMode", values: "OFF"},
	{level: onCluster, name: "PreemptMode", values: "GANG"},
	{level: onCluster, name: "PreemptMode", values: "CANCEL REQUEUE SUSPEND,GANG", with: "PreemptType=preempt/partition_prio"},
	{level: onCluster, name: "PreemptMode", values: "CANCEL REQUEUE SUSPEND,GANG", with: "PreemptType=preempt/qos"},
	{level: onCluster, name: "PreemptMode", values: "CANCEL,WITHIN REQUEUE,WITHIN", with: "PreemptType=preempt/qos"},
	{level: onCluster, name: "PreemptParameters", values: "min_exempt_priority=10 reclaim_licenses reorder_count=2 send_user_signal strict_order suspend_grace_time=10 youngest_first"},
	{level: onCluster, name: "PreemptType", values: "preempt/none"},
	{level: onCluster, name: "PreemptType", values: "preempt/partition_prio preempt/qos", with: "PreemptMode=CANCEL"},
	{level: onCluster, name: "PriorityCalcPeriod", values: "5 00:05:00"},
	{level: onCluster, name: "PriorityDecayHalfLife", values: "7-0 00:30:00"},
	{level: onCluster, name: "PriorityDecayHalfLife", values: "0", with: "PriorityUsageResetPeriod=MONTHLY"},
	{level: onCluster, name: "PriorityFavorSmall", values: "YES NO"},
	{level: onCluster, name: "PriorityFlags", values: "ACCRUE_ALWAYS CALCULATE_RUNNING DEPTH_OBLIVIOUS NO_FAIR_TREE INCR_ONLY MAX_TRES MAX_TRES_GRES NO_NORMAL_ALL NO_NORMAL_ASSOC NO_NORMAL_PART NO_NORMAL_QOS NO_NORMAL_TRES SMALL_RELATIVE_TO_TIME"},
	{level: onCluster, name: "PriorityMaxAge", values: "7-0 60"},
	{level: onCluster, name: "PriorityUsageResetPeriod", values: "NONE NOW DAILY WEEKLY MONTHLY QUARTERLY YEARLY"},
	{level: onCluster, name: "PriorityWeightAge", values: "0"},
	{level: onCluster, name: "PriorityWeightAge", values: "1000", alone: true, says: "can only be used with SlurmDBD"},
	{level: onCluster, name: "PriorityWeightAssoc", values: "0 1000"},
	{level: onCluster, name: "PriorityWeightFairshare", values: "0"},
	{level: onCluster, name: "PriorityWeightFairshare", values: "1000", alone: true, says: "can only be used with SlurmDBD"},
	{level: onCluster, name: "PriorityWeightJobSize", values: "0 1000"},
	{level: onCluster, name: "PriorityWeightPartition", values: "0 1000"},
	{level: onCluster, name: "PriorityWeightQOS", values: "0 1000"},
	{level: onCluster, name: "PriorityWeightTRES", values: "CPU=1000,Mem=2000"},
	{level: onCluster, name: "PrivateData", values: "accounts events jobs nodes partitions reservations usage users accounts,jobs"},
	{level: onCluster, name: "Prolog", values: "/opt/prolog.sh /opt/prolog.d/*"},
	{level: onCluster, name: "PrologFlags", values: "Alloc DeferBatch NoHold,Alloc ForceRequeueOnFail Serial"},
	{level: onCluster, name: "PrologFlags", values: "Contain RunInJob Contain,Alloc", alone: true, says: "If not using pam_slurm_adopt, please ignore"},
	{level: onCluster, name: "PrologFlags", values: "Contain RunInJob X11 X11,Alloc Contain,Serial", alone: true, cgroups: true},
	{level: onCluster, name: "RequeueExit", values: "1 1-5 137,255"},
	{level: onCluster, name: "RequeueExitHold", values: "1 1-5 137,255"},
	{level: onCluster, name: "SchedulerParameters", values: "bf_continue bf_interval=30 bf_max_job_test=500 bf_window=2880 bf_resolution=120 default_queue_depth=200 defer max_rpc_cnt=100 preempt_youngest_first nohold_on_prolog_fail enable_user_top bf_busy_nodes pack_serial_at_end assoc_limit_stop batch_sched_delay=3 requeue_setup_env_fail"},
	{level: onCluster, name: "SchedulerParameters", values: "enable_expedited_requeue requeue_delay=10", since: "25.11"},
	{level: onCluster, name: "SchedulerParameters", values: "enable_job_state_cache", before: "26.05"},
	{level: onCluster, name: "SelectTypeParameters", values: "CR_CPU CR_CPU_Memory CR_Core CR_Core_Memory CR_Core,CR_ONE_TASK_PER_CORE CR_Core_Memory,CR_CORE_DEFAULT_DIST_BLOCK CR_CPU,CR_LLN CR_CPU,CR_Pack_Nodes"},
	{level: onCluster, name: "SelectTypeParameters", values: "CR_Socket CR_Socket_Memory", since: "25.11"},
	{level: onCluster, name: "SlurmctldParameters", values: "enable_stepmgr", alone: true, says: "If not using pam_slurm_adopt, please ignore"},
	{level: onCluster, name: "SlurmctldParameters", values: "enable_stepmgr", alone: true, cgroups: true},
	{level: onCluster, name: "SrunPortRange", values: "60001-63000"},
	{level: onCluster, name: "TaskEpilog", values: "/opt/task-epilog.sh"},
	{level: onCluster, name: "TaskPluginParam", values: "None Sockets Cores Threads Verbose Autobind=none Autobind=threads Autobind=cores Autobind=sockets SlurmdOffSpec"},
	{level: onCluster, name: "TaskPluginParam", values: "OOMKillStep", alone: true, cgroups: true},
	{level: onCluster, name: "TaskProlog", values: "/opt/task-prolog.sh"},
	{level: onCluster, name: "TrackWCKey", values: "YES NO"},
	{level: onCluster, name: "UnkillableStepProgram", values: "/opt/unkillable.sh"},
	{level: onCluster, name: "UnkillableStepTimeout", values: "150 600"},
	{level: onCluster, name: "UnkillableStepTimeout", values: "60", alone: true, says: "at least 5 times greater than MessageTimeout"},

	{level: onGroup, name: "CpuSpecList", values: "0 0-1"},
	{level: onGroup, name: "Features", values: "a a,b"},
	{level: onGroup, name: "MemSpecLimit", values: "0 100"},
	{level: onGroup, name: "Parameters", values: "l3cache_as_socket numa_node_as_socket", since: "25.11"},
	{level: onGroup, name: "RealMemory", values: "1 900 1000000"},
	{level: onGroup, name: "Sockets", values: "1 2 4", since: "25.11"},
	{level: onGroup, name: "Weight", values: "0 1 100"},

	{level: onQueue, name: "Default", values: "YES NO"},
	{level: onQueue, name: "DefaultTime", values: "30 01:00:00 1-00:00:00"},
	{level: onQueue, name: "Exclusive", values: "NO NODE USER TOPO", since: "26.05"},
	{level: onQueue, name: "ExclusiveUser", values: "YES NO"},
	{level: onQueue, name: "GraceTime", values: "0 60"},
	{level: onQueue, name: "MaxTime", values: "60 01:00:00 INFINITE UNLIMITED"},
	{level: onQueue, name: "OverSubscribe", values: "EXCLUSIVE NO YES YES:4 FORCE FORCE:4"},
	{level: onQueue, name: "OverTimeLimit", values: "0 10 UNLIMITED"},
	{level: onQueue, name: "PowerDownOnIdle", values: "YES NO"},
	{level: onQueue, name: "PreemptMode", values: "OFF"},
	{level: onQueue, name: "PreemptMode", values: "OFF CANCEL REQUEUE", with: "PreemptType=preempt/partition_prio PreemptMode=REQUEUE"},
	{level: onQueue, name: "PriorityJobFactor", values: "0 100"},
	{level: onQueue, name: "PriorityTier", values: "1 10"},
	{level: onQueue, name: "TRESBillingWeights", values: "CPU=1.0,Mem=0.25G"},
}

// TestEverySettingIsTaken: whatever the allow-lists let through, with any of
// its values, is taken by the slurmctld of each release; one that only Slurm
// could refuse would leave a user with a cluster that failed.
func TestEverySettingIsTaken(t *testing.T) {
	for _, c := range []*cluster{shared(t), old(t)} {
		t.Run(c.version, func(t *testing.T) { c.trySettings(t) })
	}
}

// trial is one setting with one value.
type trial struct {
	tried
	value string
}

func (x trial) String() string {
	return strings.TrimSpace(fmt.Sprintf("%s %s=%s %s", x.level, x.name, x.value, x.with))
}

// trySettings tries many settings in one configuration, as far as they do not
// need others, and each for itself where Slurm does not like them together.
func (c *cluster) trySettings(t *testing.T) {
	t.Helper()
	var rounds, alone [][]trial
	used := map[string]int{} // rounds that have a value of the setting
	for _, row := range triedSettings {
		if c.version < row.since || row.before != "" && c.version >= row.before {
			continue
		}
		for value := range strings.FieldsSeq(row.values) {
			x := trial{row, value}
			if row.with != "" || row.alone {
				alone = append(alone, []trial{x})
				continue
			}
			key := string(row.level) + " " + row.name
			if used[key] == len(rounds) {
				rounds = append(rounds, nil)
			}
			rounds[used[key]] = append(rounds[used[key]], x)
			used[key]++
		}
	}
	rounds = append(rounds, alone...)
	began, count := time.Now(), 1+len(rounds)
	verdicts := c.try(t, append([][]trial{nil}, rounds...))
	plain := verdicts[0]
	must(t, plain.Refusal == "", "a configuration without settings is refused: %s", plain.Refusal)
	var single [][]trial
	for i, v := range verdicts[1:] {
		if v.Refusal != "" || len(more(v, plain)) > 0 {
			for _, x := range rounds[i] {
				single = append(single, []trial{x})
			}
		}
	}
	for i, v := range c.try(t, single) {
		x := single[i][0]
		complaints := strings.Join(more(v, plain), " | ")
		switch {
		case v.Refusal != "":
			t.Errorf("%s is refused: %s", x, v.Refusal)
		case x.says == "" && complaints != "" || x.says != "" && !strings.Contains(complaints, x.says):
			t.Errorf("%s: Slurm says %q, expected %q", x, complaints, x.says)
		}
	}
	t.Logf("%d configurations in %.1f s", count+len(single), time.Since(began).Seconds())
}

// more are the complaints that the plain configuration does not have.
func more(v, plain agent.Verdict) []string {
	return slices.DeleteFunc(slices.Clone(v.Complaints), func(line string) bool { return slices.Contains(plain.Complaints, line) })
}

// try has the controller's canary try a configuration for each list.
func (c *cluster) try(t *testing.T, lists [][]trial) []agent.Verdict {
	t.Helper()
	var all []slurm.Files
	for _, list := range lists {
		conf := c.plainConfig(t)
		for _, x := range list {
			conf.Cgroups = conf.Cgroups || x.cgroups
			of := map[slurm.Level][]slurm.Setting{x.level: {{Name: x.name, Value: x.value}}}
			for pair := range strings.FieldsSeq(x.with) {
				name, value, _ := strings.Cut(pair, "=")
				of[onCluster] = append(of[onCluster], slurm.Setting{Name: name, Value: value})
			}
			for level, settings := range of {
				checked, wrong := slurm.CheckSettings(level, c.version, false, settings)
				if len(wrong) > 0 {
					t.Errorf("%s is not allowed: %v", x, wrong)
					continue
				}
				switch level {
				case onCluster:
					conf.Settings = append(conf.Settings, checked...)
				case onGroup:
					conf.Nodes[0].Settings = append(conf.Nodes[0].Settings, checked...)
				case onQueue:
					conf.Partitions[0].Settings = append(conf.Partitions[0].Settings, checked...)
				}
			}
		}
		files, err := conf.Render()
		must(t, err == nil, "%v: %v", list, err)
		all = append(all, files)
	}
	return c.verdicts(t, all)
}

// verdicts asks the controller's canary.
func (c *cluster) verdicts(t *testing.T, all []slurm.Files) (verdicts []agent.Verdict) {
	t.Helper()
	var docs strings.Builder
	for _, files := range all {
		err := json.NewEncoder(&docs).Encode(agent.Config{Files: files, Key: []byte(rand.Text()), Names: []string{"a-1", "a-2", "b-1", "b-2"}})
		must(t, err == nil, "%v", err)
	}
	r := succeed(t, feed(2*time.Minute, docs.String(), siteEnv, binary(), "connect", c.id, "--", "/opt/aws/pcs/bin/openpcs", "agent", "try-config"))
	answers := json.NewDecoder(strings.NewReader(r.out))
	for range all {
		var v agent.Verdict
		if err := answers.Decode(&v); err != nil {
			fail(t, "%d verdicts of %d: %v", len(verdicts), len(all), err)
		}
		verdicts = append(verdicts, v)
	}
	return verdicts
}

// TestEverySettingIsTried keeps the table above complete.
func TestEverySettingIsTried(t *testing.T) {
	for _, level := range []slurm.Level{onCluster, onGroup, onQueue} {
		for _, name := range slurm.SettingNames(level) {
			_, wrong := slurm.CheckSettings(level, version, false, []slurm.Setting{{Name: name, Value: "1"}})
			switch {
			case slices.Contains(untried, name):
			case len(wrong) > 0 && strings.Contains(wrong[0].Error(), "needs accounting"):
			case !slices.ContainsFunc(triedSettings, func(x tried) bool { return x.level == level && x.name == name }):
				t.Errorf("no value of %s %s is tried", level, name)
			}
		}
	}
}

// untried need what this release of openpcs refuses.
var untried = []string{"Gres"}

// plainConfig is a cluster of two groups and two queues.
func (c *cluster) plainConfig(t *testing.T) slurm.Config {
	t.Helper()
	v, ok := slurm.FindVersion(c.version)
	must(t, ok, "Slurm %s is not known", c.version)
	return slurm.Config{
		Version: v, ClusterName: c.name, ControllerName: "slurmctld-primary", ControllerAddress: "10.0.0.1",
		IdleTime: 600 * time.Second, ResumeTimeout: 1800 * time.Second, SuspendTimeout: 5 * time.Second,
		MaxJobs: 256, HookDir: agent.HookDir,
		Nodes: []slurm.NodeSet{
			{Name: "a", Count: 2, CPUs: 4, RealMemoryMiB: 4000},
			{Name: "b", Count: 2, CPUs: 4, RealMemoryMiB: 4000, Static: 1},
		},
		Partitions: []slurm.Partition{{Name: "one", Sets: []string{"a", "b"}}, {Name: "two", Sets: []string{"b"}}},
	}
}

// TestC1_NoStaticNodes: without a static node there is no SuspendExcNodes,
// which slurmctld takes; that it dies of an empty one is why (CycleCloud
// #197).
func TestC1_NoStaticNodes(t *testing.T) {
	c := shared(t)
	conf := c.plainConfig(t)
	conf.Nodes[1].Static = 0
	files, err := conf.Render()
	must(t, err == nil, "render: %v", err)
	must(t, !strings.Contains(string(files["slurm.conf"]), "SuspendExc"), "there is a SuspendExcNodes:\n%s", files["slurm.conf"])
	empty := slurm.Files{"cgroup.conf": files["cgroup.conf"], "slurm.conf": append(slices.Clone(files["slurm.conf"]), "SuspendExcNodes=\n"...)}
	verdicts := c.verdicts(t, []slurm.Files{files, empty})
	must(t, verdicts[0].Refusal == "", "without static nodes: %s", verdicts[0].Refusal)
	must(t, verdicts[1].Refusal != "", "slurmctld takes an empty SuspendExcNodes by now")
}

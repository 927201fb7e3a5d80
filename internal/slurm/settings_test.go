package slurm

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestC19_SettingsAreCheckedByLevel(t *testing.T) {
	for _, tt := range []struct {
		level       Level
		release     string
		name, value string
		want        string // name as Slurm spells it; "!text" for a refusal that says so
	}{
		{ClusterLevel, "26.05", "MinJobAge", "5", "MinJobAge"},
		{ClusterLevel, "26.05", "minjobage", "60", "MinJobAge"},
		{ClusterLevel, "26.05", "MINJOBAGE", "60", "MinJobAge"},
		{ClusterLevel, "26.05", "MinJobAge", "4", "!MinJobAge"},
		{ClusterLevel, "26.05", "MinJobAge", "x", "!MinJobAge"},
		{ClusterLevel, "26.05", "suspendTime", "60", "!not allowed"},
		{ClusterLevel, "26.05", "SUSPENDTIME", "60", "!not allowed"},
		{ClusterLevel, "26.05", "ResumeProgram", "/bin/sh", "!not allowed"},
		{ClusterLevel, "26.05", "PrologSlurmctld", "/bin/sh", "!not allowed"},
		{ClusterLevel, "26.05", "SlurmUser", "root", "!not allowed"},
		{ClusterLevel, "26.05", "Include", "/etc/shadow", "!not allowed"},
		{ClusterLevel, "26.05", "NodeName", "x", "!not allowed"},
		{ClusterLevel, "26.05", "MinJobAgee", "60", "!MinJobAge"},
		{ClusterLevel, "26.05", "Prologue", "/x", "!Prolog"},
		{ClusterLevel, "26.05", "", "x", "!not allowed"},
		{ClusterLevel, "26.05", "Weight", "2", "!compute node group"},
		{ClusterLevel, "26.05", "MaxTime", "2", "!queue"},
		{ClusterLevel, "24.11", "MetricsType", "metrics/openmetrics", "!only supported for Slurm version 25.11 or later"},
		{ClusterLevel, "25.11", "MetricsType", "metrics/openmetrics", "MetricsType"},
		{ClusterLevel, "26.05", "SlurmctldParameters", "enable_stepmgr", "SlurmctldParameters"},
		{ClusterLevel, "26.05", "SlurmctldParameters", "enable_stepmgr,power_save_interval=9", "!SlurmctldParameters"},
		{ClusterLevel, "26.05", "SelectTypeParameters", "CR_Core_Memory,CR_LLN", "SelectTypeParameters"},
		{ClusterLevel, "26.05", "SelectTypeParameters", "CR_LLN", "!needs one of CR_CPU"},
		{ClusterLevel, "26.05", "SelectTypeParameters", "CR_Memory", "!CR_CPU_Memory"},
		{ClusterLevel, "24.11", "SelectTypeParameters", "CR_Socket", "!not one of"},
		{ClusterLevel, "26.05", "CommunicationParameters", "enable_http", "CommunicationParameters"},
		{ClusterLevel, "24.11", "CommunicationParameters", "NoInAddrAny,enable_http", "!only supported for Slurm version 25.11 or later"},
		{ClusterLevel, "26.05", "CommunicationParameters", "enable_htp", "!\"enable_htp\", which is not one of block_null_hash"},
		{ClusterLevel, "26.05", "CommunicationParameters", "NoInAddrAny, KeepAliveTime=30", "CommunicationParameters"},
		{ClusterLevel, "26.05", "CommunicationParameters", "keepalivetime", "!keepalivetime="},
		{ClusterLevel, "26.05", "CommunicationParameters", "EnableIPv6,DisableIPv4", "!IPv4 addresses alone"},
		{ClusterLevel, "26.05", "HealthCheckNodeState", "START_ONLY", "HealthCheckNodeState"},
		{ClusterLevel, "26.05", "HealthCheckNodeState", "START_ONLY,IDLE", "!excludes any other state"},
		{ClusterLevel, "26.05", "HealthCheckNodeState", "IDLE,reboot_only", "!excludes any other state"},
		{ClusterLevel, "26.05", "HealthCheckNodeState", "START_ONLY,REBOOT_ONLY", "!excludes any other state"},
		{ClusterLevel, "26.05", "HealthCheckNodeState", "reboot_only", "HealthCheckNodeState"},
		{ClusterLevel, "26.05", "HealthCheckNodeState", "ONLY", "!START_ONLY, REBOOT_ONLY"},
		{ClusterLevel, "25.11", "HealthCheckNodeState", "START_ONLY", "HealthCheckNodeState"},
		{ClusterLevel, "25.11", "HealthCheckNodeState", "REBOOT_ONLY", "!only supported for Slurm version 26.05 or later"},
		{ClusterLevel, "24.11", "HealthCheckNodeState", "START_ONLY", "!only supported for Slurm version 25.11 or later"},
		{ClusterLevel, "24.11", "HealthCheckNodeState", "IDLE,CYCLE", "HealthCheckNodeState"},
		{ClusterLevel, "26.05", "MetricsType", "metrics/other", "!metrics/openmetrics"},
		{ClusterLevel, "24.11", "CliFilterParameters", "x", "!25.11 or later"},
		{ClusterLevel, "26.05", "PriorityFlags", "max_tres,NO_FAIR_TREE", "PriorityFlags"},
		{ClusterLevel, "26.05", "PriorityFlags", "NO_SUCH_FLAG", "!NO_FAIR_TREE"},
		{ClusterLevel, "26.05", "AccountingStorageEnforce", "limits", "!accounting"},
		{ClusterLevel, "26.05", "Prolog", "/opt/x # comment", "!Prolog"},
		{ClusterLevel, "26.05", "Prolog", "/opt/x\nSlurmUser=root", "!Prolog"},
		{ClusterLevel, "26.05", "Prolog", "", "!Prolog"},
		{ClusterLevel, "26.05", "Prolog", strings.Repeat("x", 2048), "Prolog"},
		{ClusterLevel, "26.05", "Prolog", strings.Repeat("x", 2049), "!2048"},
		{GroupLevel, "26.05", "features", "a,b", "Features"},
		{GroupLevel, "26.05", "Feature", "a", "!Features"},
		{GroupLevel, "26.05", "OverSubscribe", "NO", "!queue"},
		{GroupLevel, "26.05", "RealMemory", "900", "RealMemory"},
		{GroupLevel, "26.05", "RealMemory", "0", "!RealMemory"},
		{GroupLevel, "24.11", "Sockets", "1", "!25.11"},
		{GroupLevel, "26.05", "State", "DOWN", "!not allowed"},
		{GroupLevel, "26.05", "NodeAddr", "1.2.3.4", "!not allowed"},
		{QueueLevel, "26.05", "MaxTime", "1-00:00:00", "MaxTime"},
		{QueueLevel, "26.05", "Nodes", "ALL", "!not allowed"},
		{QueueLevel, "26.05", "State", "DOWN", "!not allowed"},
		{QueueLevel, "26.05", "Default", "maybe", "!Default"},
		{QueueLevel, "26.05", "QOS", "high", "!accounting"},
	} {
		t.Run(fmt.Sprintf("%s/%.40s=%.20q", tt.level, tt.name, tt.value), func(t *testing.T) {
			out, wrong := CheckSettings(tt.level, tt.release, false, []Setting{{tt.name, tt.value}})
			if says, refused := strings.CutPrefix(tt.want, "!"); refused {
				if wrong[0] == nil || len(out) != 0 {
					t.Fatalf("accepted as %v", out)
				}
				if !strings.Contains(wrong[0].Error(), says) {
					t.Errorf("the error %q does not say %q", wrong[0], says)
				}
				return
			}
			if len(wrong) != 0 || len(out) != 1 || out[0] != (Setting{tt.want, tt.value}) {
				t.Errorf("got %v, %v, want %s", out, wrong, tt.want)
			}
		})
	}
	if _, wrong := CheckSettings(ClusterLevel, "26.05", false, []Setting{{"Prolog", "/a"}, {"MaxTime", "1"}, {"prolog", "/b"}}); len(wrong) != 2 || wrong[1] == nil || wrong[2] == nil {
		t.Errorf("errors by place: %v", wrong)
	}
}

// What the check lets through goes into its own key of its own line, and
// nowhere else.
func TestAcceptedSettingsAreContained(t *testing.T) {
	piece := rapid.OneOf(
		rapid.SampledFrom(evil), rapid.String(),
		rapid.SampledFrom([]string{" ", "=", ",", "a", "SlurmUser=root", "enable_http", "disable_http", "enable_expedited_requeue", "power_save_interval=99", "1", "YES"}),
	)
	rapid.Check(t, func(t *rapid.T) {
		base := largeConfig2(t)
		level := rapid.SampledFrom([]Level{ClusterLevel, GroupLevel, QueueLevel}).Draw(t, "level")
		name := rapid.SampledFrom(SettingNames(level)).Draw(t, "name")
		value := strings.Join(rapid.SliceOfN(piece, 1, 4).Draw(t, "value"), "")
		out, wrong := CheckSettings(level, "26.05", true, []Setting{{name, value}})
		if len(wrong) != 0 {
			return
		}
		c := base
		c.Nodes, c.Partitions = slices.Clone(base.Nodes), slices.Clone(base.Partitions)
		switch level {
		case ClusterLevel:
			c.Settings = out
		case GroupLevel:
			c.Nodes[0].Settings = out
		case QueueLevel:
			c.Partitions[0].Settings = out
		}
		files, err := c.Render()
		if err != nil {
			return // refused later: told to the user as well
		}
		before, ok := slurmLines(mustRender(t, base)["slurm.conf"])
		after, ok2 := slurmLines(files["slurm.conf"])
		if !ok || !ok2 {
			t.Fatalf("%s=%q: Slurm cannot read the result", name, value)
		}
		if extra := len(after) - len(before); extra < 0 || extra > 1 || (extra == 1 && level != ClusterLevel) {
			t.Fatalf("%s=%q: %d lines more", name, value, extra)
		}
		count := func(rows [][]string) map[string]int {
			m := map[string]int{}
			for _, r := range rows {
				for _, k := range r {
					m[k]++
				}
			}
			return m
		}
		was, is := count(before), count(after)
		for k, n := range is {
			if n != was[k] && k != name && !(k == "Feature" && name == "Features") {
				t.Fatalf("%s=%q: the key %s is there %d times, was %d", name, value, k, n, was[k])
			}
			if n > was[k]+1 {
				t.Fatalf("%s=%q: the key %s is there %d times, was %d", name, value, k, n, was[k])
			}
		}
		conf := string(files["slurm.conf"])
		for _, own := range []string{"power_save_interval=0", "enable_configless", "idle_on_node_suspend"} {
			if !strings.Contains(conf, own) {
				t.Fatalf("%s=%q: the service's own %s is gone", name, value, own)
			}
		}
	})
}

// largeConfig2 is a configuration of 26.05, which has all settings.
func largeConfig2(t *rapid.T) Config {
	v, ok := FindVersion("26.05")
	if !ok {
		t.Fatalf("no 26.05")
	}
	return Config{
		Version: v, ClusterName: "demo", ControllerName: "slurmctld-primary", ControllerAddress: "10.77.16.4", MaxJobs: 256, HookDir: "/opt",
		Nodes:      []NodeSet{{Name: "a", Count: 2, CPUs: 4, RealMemoryMiB: 900}, {Name: "b", Count: 1, CPUs: 4, RealMemoryMiB: 900}},
		Partitions: []Partition{{Name: "p", Sets: []string{"a"}}, {Name: "q", Sets: []string{"a", "b"}}},
	}
}

// Trap 1, 2 and 3 of facts/pcs-behaviour.md section 0.
func TestSettingsThatPCSAndSlurmNameDifferently(t *testing.T) {
	render := func(name, value string) string {
		t.Helper()
		c := smallConfig(t)
		out, wrong := CheckSettings(ClusterLevel, "26.05", false, []Setting{{name, value}})
		if len(wrong) != 0 {
			t.Fatalf("%s=%s: %v", name, value, wrong)
		}
		c.Settings = out
		return string(render(t, c)["slurm.conf"])
	}
	if conf := render("CommunicationParameters", "enable_http"); strings.Contains(conf, "_http") {
		t.Error("enable_http: either it or disable_http is written")
	}
	if conf := render("CommunicationParameters", "block_null_hash"); !strings.Contains(conf, "CommunicationParameters=block_null_hash,disable_http\n") {
		t.Errorf("another parameter: HTTP must stay off:\n%s", conf)
	}
	conf := render("SchedulerParameters", "bf_interval=10, Enable_Expedited_Requeue")
	if !strings.Contains(conf, "requeue_delay=5,bf_interval=10\n") || strings.Contains(conf, "Enable") {
		t.Errorf("a space and another case:\n%s", conf)
	}
	conf = render("SchedulerParameters", "enable_expedited_requeue,bf_interval=10,sched_interval=60")
	for line := range strings.SplitSeq(conf, "\n") {
		if strings.HasPrefix(line, "SchedulerParameters=") && (strings.Contains(line, "expedited") || !strings.Contains(line, "bf_interval=10") || !strings.Contains(line, "sched_interval=60") || strings.Contains(line, "sched_interval=3,")) {
			t.Errorf("%s", line)
		}
	}
	if strings.Count(conf, "enable_expedited_requeue") != 1 || strings.Count(conf, "SchedulerParameters=") != 1 {
		t.Errorf("in\n%s", conf)
	}
	if conf := render("SlurmctldParameters", "enable_stepmgr"); strings.Count(conf, "enable_stepmgr") != 1 || !strings.Contains(conf, "enable_configless") {
		t.Errorf("SlurmctldParameters of a user:\n%s", conf)
	}
}

// TestSettingsThatDoNotGoTogether: what slurmctld would die of only because
// of another setting is refused with what is missing.
func TestSettingsThatDoNotGoTogether(t *testing.T) {
	for _, tt := range []struct {
		settings string // NAME=VALUE, separated by spaces
		wrong    string // the one that is refused, none if empty
		says     string
	}{
		{"PreemptType=preempt/qos", "PreemptType", "needs PreemptMode=CANCEL"},
		{"preempttype=preempt/partition_prio PreemptMode=OFF", "PreemptType", "needs PreemptMode"},
		{"PreemptType=preempt/partition_prio PreemptMode=GANG", "PreemptType", "needs PreemptMode"},
		{"PreemptType=preempt/partition_prio PreemptMode=SUSPEND", "PreemptMode", "SUSPEND,GANG"},
		{"PreemptMode=REQUEUE", "PreemptMode", "needs PreemptType"},
		{"PreemptType=preempt/none preemptMode=cancel", "PreemptMode", "needs PreemptType"},
		{"PreemptType=preempt/partition_prio PreemptMode=SUSPEND,GANG", "", ""},
		{"PreemptType=preempt/qos PreemptMode=CANCEL,WITHIN", "", ""},
		{"PreemptMode=GANG", "", ""},
		{"PriorityDecayHalfLife=0", "PriorityDecayHalfLife", "needs PriorityUsageResetPeriod"},
		{"PriorityDecayHalfLife=00:00:00 PriorityUsageResetPeriod=NONE", "PriorityDecayHalfLife", "needs PriorityUsageResetPeriod"},
		{"PriorityDecayHalfLife=0 PriorityUsageResetPeriod=DAILY", "", ""},
		{"PriorityDecayHalfLife=7-0", "", ""},
		{"SlurmctldParameters=enable_stepmgr PrologFlags=Alloc", "PrologFlags", "lacks Contain"},
		{"SlurmctldParameters=enable_stepmgr PrologFlags=alloc,contain", "", ""},
		{"SlurmctldParameters=enable_stepmgr", "", ""},
		{"PrologFlags=NoHold,Contain", "PrologFlags", "NoHold excludes"},
		{"PrologFlags=Serial,RunInJob", "PrologFlags", "Serial excludes"},
	} {
		t.Run(tt.settings, func(t *testing.T) {
			var settings []Setting
			for pair := range strings.FieldsSeq(tt.settings) {
				name, value, _ := strings.Cut(pair, "=")
				settings = append(settings, Setting{name, value})
			}
			out, wrong := CheckSettings(ClusterLevel, "26.05", false, settings)
			if tt.wrong == "" {
				if len(wrong) != 0 || len(out) != len(settings) {
					t.Errorf("refused: %v", wrong)
				}
				return
			}
			at := slices.IndexFunc(settings, func(s Setting) bool { return strings.EqualFold(s.Name, tt.wrong) })
			if len(wrong) != 1 || wrong[at] == nil || !strings.Contains(wrong[at].Error(), tt.says) {
				t.Errorf("refused: %v, not %s with %q", wrong, tt.wrong, tt.says)
			}
		})
	}
}

package slurm

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Level is where a custom setting stands.
type Level string

// The levels of custom settings that the PCS API has for Slurm itself.
const (
	ClusterLevel Level = "cluster"
	GroupLevel   Level = "compute node group"
	QueueLevel   Level = "queue"
)

// The levels of those for slurmdbd.conf and cgroup.conf of a cluster.
const (
	SlurmdbdLevel Level = "slurmdbd configuration"
	CgroupLevel   Level = "cgroup configuration"
)

var levels = []Level{ClusterLevel, GroupLevel, QueueLevel, SlurmdbdLevel, CgroupLevel}

// Setting is one custom setting as a user gives it.
type Setting struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// maxValue bounds a value; PCS raised it from 1024.
const maxValue = 2048

// allowed is one row of the allow-lists (PCS user guide, custom Slurm
// settings, September 2026). check sees the value and the release.
type allowed struct {
	name  string
	since string // first release, empty: all
	// accounting says that the setting means nothing, or is fatal, without
	// job accounting.
	accounting bool
	check      func(value string, release string) error
}

var allowLists = map[Level][]allowed{
	ClusterLevel: {
		{name: "AccountingStorageEnforce", accounting: true, check: subset("associations", "limits", "nojobs", "nosteps", "qos", "safe")},
		{name: "AccountingStorageTRES", accounting: true},
		{name: "AccountingStoreFlags", accounting: true},
		{name: "AuthAltParameters"},
		{name: "CliFilterParameters", since: "25.11"},
		{name: "CliFilterPlugins", check: oneOf("lua", "cli_filter/lua")},
		{name: "CommunicationParameters", check: communicationParameters},
		{name: "DefMemPerCPU", check: number(0)},
		{name: "Epilog"},
		{name: "EnforcePartLimits", check: oneOf("ALL", "ANY", "NO", "YES")},
		{name: "FairShareDampeningFactor", check: number(1)},
		{name: "FirstJobId", check: number(1)},
		{name: "HealthCheckInterval", check: number(0)},
		{name: "HealthCheckNodeState", check: healthCheckStates},
		{name: "HealthCheckProgram"},
		{name: "JobRequeue", check: oneOf("0", "1")},
		{name: "LaunchParameters"},
		{name: "Licenses"},
		{name: "MetricsType", since: "25.11", check: oneOf("metrics/openmetrics")},
		{name: "MinJobAge", check: number(5)},
		{name: "OverTimeLimit", check: numberOr(0, "UNLIMITED")},
		{name: "PreemptExemptTime"},
		{name: "PreemptMode"},
		{name: "PreemptParameters"},
		{name: "PreemptType", check: oneOf("preempt/none", "preempt/partition_prio", "preempt/qos")},
		{name: "PriorityCalcPeriod"},
		{name: "PriorityDecayHalfLife"},
		{name: "PriorityFavorSmall", check: oneOf("YES", "NO")},
		// Slurm ignores a flag that it does not know without a word.
		{name: "PriorityFlags", check: subset("ACCRUE_ALWAYS", "CALCULATE_RUNNING", "DEPTH_OBLIVIOUS", "NO_FAIR_TREE", "INCR_ONLY", "MAX_TRES", "MAX_TRES_GRES",
			"NO_NORMAL_ALL", "NO_NORMAL_ASSOC", "NO_NORMAL_PART", "NO_NORMAL_QOS", "NO_NORMAL_TRES", "SMALL_RELATIVE_TO_TIME")},
		{name: "PriorityMaxAge"},
		{name: "PriorityUsageResetPeriod", check: oneOf("NONE", "NOW", "DAILY", "WEEKLY", "MONTHLY", "QUARTERLY", "YEARLY")},
		{name: "PriorityWeightAge", check: number(0)},
		{name: "PriorityWeightAssoc", check: number(0)},
		{name: "PriorityWeightFairshare", check: number(0)},
		{name: "PriorityWeightJobSize", check: number(0)},
		{name: "PriorityWeightPartition", check: number(0)},
		{name: "PriorityWeightQOS", check: number(0)},
		{name: "PriorityWeightTRES"},
		{name: "PrivateData"},
		{name: "Prolog"},
		{name: "PrologFlags"},
		{name: "RequeueExit"},
		{name: "RequeueExitHold"},
		{name: "SchedulerParameters", check: schedulerParameters},
		{name: "SelectTypeParameters", check: selectTypeParameters},
		{name: "SlurmctldParameters", check: subset("enable_stepmgr")},
		{name: "SrunPortRange", check: matches(`[0-9]+-[0-9]+`, "two port numbers, such as 60001-63000")},
		{name: "TaskEpilog"},
		{name: "TaskPluginParam"},
		{name: "TaskProlog"},
		{name: "TrackWCKey", check: oneOf("YES", "NO")},
		{name: "UnkillableStepProgram"},
		{name: "UnkillableStepTimeout", check: number(1)},
	},
	GroupLevel: {
		{name: "CpuSpecList"},
		{name: "Features"},
		{name: "Gres"},
		{name: "MemSpecLimit", check: number(0)},
		{name: "Parameters", since: "25.11"},
		{name: "RealMemory", check: number(1)},
		{name: "Sockets", since: "25.11", check: number(1)},
		{name: "Weight", check: number(0)},
	},
	QueueLevel: {
		{name: "AllowAccounts", accounting: true},
		{name: "AllowQos", accounting: true},
		{name: "Default", check: oneOf("YES", "NO")},
		{name: "DefaultTime"},
		{name: "DenyAccounts", accounting: true},
		{name: "DenyQos", accounting: true},
		{name: "Exclusive", since: "26.05"},
		{name: "ExclusiveUser", check: oneOf("YES", "NO")},
		{name: "GraceTime"},
		{name: "MaxTime"},
		{name: "OverSubscribe"},
		{name: "OverTimeLimit", check: numberOr(0, "UNLIMITED")},
		{name: "PowerDownOnIdle", check: oneOf("YES", "NO")},
		{name: "PreemptMode"},
		{name: "PriorityJobFactor", check: number(0)},
		{name: "PriorityTier", check: number(0)},
		{name: "QOS", accounting: true},
		{name: "TRESBillingWeights"},
	},
	SlurmdbdLevel: {
		{name: "AllowNoDefAcct", check: yesNo},
		{name: "AllResourcesAbsolute", check: yesNo},
		{name: "CommitDelay", check: numberIn(1, 600)},
		{name: "DefaultQOS", check: matches(`[A-Za-z0-9_.-]+`, "the name of a QOS")},
		{name: "MaxQueryTimeRange", check: matches(`(?i:INFINITE|UNLIMITED)|[0-9]+|([0-9]+-)?[0-9]+(:[0-9]+){0,2}`, "a time such as 60-0 (days-hours), or INFINITE")},
		{name: "Parameters", since: "26.05", check: subset("PreserveCaseResource")},
		{name: "PrivateData", check: subset("accounts", "events", "jobs", "reservations", "usage", "users")},
		{name: "PurgeEventAfter", check: purgeAfter},
		{name: "PurgeJobAfter", check: purgeAfter},
		{name: "PurgeJobEnvAfter", since: "26.05", check: purgeAfter},
		{name: "PurgeJobScriptAfter", since: "26.05", check: purgeAfter},
		{name: "PurgeResvAfter", check: purgeAfter},
		{name: "PurgeStepAfter", check: purgeAfter},
		{name: "PurgeSuspendAfter", check: purgeAfter},
		{name: "PurgeTXNAfter", check: purgeAfter},
		{name: "PurgeUsageAfter", check: purgeAfter},
		{name: "TrackWCKey", check: yesNo},
	},
	CgroupLevel: {
		{name: "AllowedRAMSpace", check: percent},
		{name: "AllowedSwapSpace", check: percent},
		{name: "ConstrainCores", check: yesNo},
		{name: "ConstrainDevices", check: yesNo},
		{name: "ConstrainRAMSpace", check: yesNo},
		{name: "ConstrainSwapSpace", check: yesNo},
		{name: "IgnoreSystemd", check: yesNo},
		{name: "MaxRAMPercent", check: percent},
		{name: "MaxSwapPercent", check: percent},
		{name: "MinRAMSpace", check: number(0)},
		{name: "SignalChildrenProcesses", check: yesNo},
	},
}

// CheckSettings returns the settings with their names as slurm.conf spells
// them (users may write them in any case), or for each wrong one, by its
// place in the list, what is wrong with it and what would be right.
func CheckSettings(level Level, release string, accounting bool, settings []Setting) ([]Setting, map[int]error) {
	wrong := map[int]error{}
	seen := map[string]bool{}
	var out []Setting
	for i, s := range settings {
		row, err := findSetting(level, s.Name)
		switch {
		case err != nil:
		case seen[row.name]:
			err = fmt.Errorf("%s is given twice", row.name)
		case older(release, row.since):
			//lint:ignore ST1005 these are PCS's own words, which users look for
			err = fmt.Errorf("Slurm custom settings parameter %s is only supported for Slurm version %s or later", row.name, row.since)
		case row.accounting && !accounting:
			err = fmt.Errorf("%s needs accounting, and the cluster has none", row.name)
		default:
			err = checkValue(row, s.Value, release)
		}
		if err != nil {
			wrong[i] = err
			continue
		}
		seen[row.name] = true
		out = append(out, Setting{Name: row.name, Value: s.Value})
	}
	if level == ClusterLevel {
		for name, err := range incompatible(overrides(out)) {
			wrong[slices.IndexFunc(settings, func(s Setting) bool { return strings.EqualFold(s.Name, name) })] = err
			out = slices.DeleteFunc(out, func(s Setting) bool { return s.Name == name })
		}
	}
	return out, wrong
}

func checkValue(row allowed, value, release string) error {
	if n := utf8.RuneCountInString(value); n < 1 || n > maxValue {
		return fmt.Errorf("the value of %s has %d characters, 1 to %d are allowed", row.name, n, maxValue)
	}
	if _, err := quote(value, true); err != nil {
		return fmt.Errorf("%s: %w", row.name, err)
	}
	if row.check == nil {
		return nil
	}
	if err := row.check(value, release); err != nil {
		return fmt.Errorf("the value %q of %s %w", value, row.name, err)
	}
	return nil
}

func findSetting(level Level, name string) (allowed, error) {
	for _, row := range allowLists[level] {
		if strings.EqualFold(row.name, name) {
			return row, nil
		}
	}
	for _, other := range levels {
		for _, row := range allowLists[other] {
			if other != level && strings.EqualFold(row.name, name) {
				return allowed{}, fmt.Errorf("%s is a setting of a %s, not of a %s", row.name, other, level)
			}
		}
	}
	if near := nearest(level, name); near != "" {
		return allowed{}, fmt.Errorf("%q is not allowed for a %s: did you mean %s?", name, level, near)
	}
	return allowed{}, fmt.Errorf("%q is not allowed for a %s: allowed are %s", name, level, strings.Join(SettingNames(level), ", "))
}

// SettingNames lists what is allowed at a level, in order.
func SettingNames(level Level) []string {
	var names []string
	for _, row := range allowLists[level] {
		names = append(names, row.name)
	}
	slices.Sort(names)
	return names
}

// nearest is the allowed name that a misspelt one is closest to, if any is
// close.
func nearest(level Level, name string) string {
	best, distance := "", 1+len(name)/4
	for _, row := range allowLists[level] {
		if d := editDistance(strings.ToLower(name), strings.ToLower(row.name)); d <= distance {
			best, distance = row.name, d-1
		}
	}
	return best
}

func editDistance(a, b string) int {
	if len(a) > 64 {
		return len(a)
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		diagonal := row[0]
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			diagonal, row[j] = row[j], min(row[j]+1, row[j-1]+1, diagonal+cost)
		}
	}
	return row[len(b)]
}

// older reports whether a release is before another; releases are YY.MM.
func older(release, than string) bool { return than != "" && release < than }

// The checks of values.

func oneOf(values ...string) func(string, string) error {
	return func(v, _ string) error {
		for _, a := range values {
			if strings.EqualFold(v, a) {
				return nil
			}
		}
		return fmt.Errorf("is not one of %s", strings.Join(values, ", "))
	}
}

func subset(values ...string) func(string, string) error {
	return func(v, _ string) error {
		for part := range strings.SplitSeq(v, ",") {
			if !slices.ContainsFunc(values, func(a string) bool { return strings.EqualFold(a, strings.TrimSpace(part)) }) {
				return fmt.Errorf("has %q, which is not one of %s", part, strings.Join(values, ", "))
			}
		}
		return nil
	}
}

func number(least int) func(string, string) error {
	return func(v, _ string) error {
		n, err := strconv.Atoi(v)
		if err != nil || n < least {
			return fmt.Errorf("is not a whole number of at least %d", least)
		}
		return nil
	}
}

func numberOr(least int, word string) func(string, string) error {
	return func(v, release string) error {
		if strings.EqualFold(v, word) {
			return nil
		}
		if err := number(least)(v, release); err != nil {
			return fmt.Errorf("%w, nor %s", err, word)
		}
		return nil
	}
}

func matches(pattern, what string) func(string, string) error {
	re := regexp.MustCompile(`^(?:` + pattern + `)$`)
	return func(v, _ string) error {
		if !re.MatchString(v) {
			return fmt.Errorf("is not %s", what)
		}
		return nil
	}
}

// The checks of slurmdbd.conf and cgroup.conf.
var (
	yesNo   = oneOf("YES", "NO")
	percent = matches(`[0-9]+(\.[0-9]+)?`, "a number of percent")
)

// maxPurge is the largest number that slurmdbd has room for: of a larger one it
// takes the lower 16 bits, and the next for a unit, so that 70000 months become
// 186 days.
const maxPurge = 1<<16 - 1

func purgeAfter(v, release string) error {
	form := matches(`[1-9][0-9]*((?i:hours?|days?|months?))?`, "a number of months, or a number with its unit, such as 365days, 12months or 720hours")
	if err := form(v, release); err != nil {
		return err
	}
	digits := strings.TrimRight(strings.ToLower(v), "hoursdaymnt")
	if n, err := strconv.Atoi(digits); err != nil || n > maxPurge {
		return fmt.Errorf("is longer than slurmdbd can count: use at most %d of a unit, or leave it out to keep records", maxPurge)
	}
	return nil
}

func numberIn(least, most int) func(string, string) error {
	return func(v, _ string) error {
		n, err := strconv.Atoi(v)
		if err != nil || n < least || n > most {
			return fmt.Errorf("is not a whole number of %d to %d", least, most)
		}
		return nil
	}
}

func healthCheckStates(v, release string) error {
	// They exclude any other word, and each other.
	alone := []struct{ word, since string }{{"START_ONLY", "25.11"}, {"REBOOT_ONLY", "26.05"}}
	words := []string{"ALLOC", "ANY", "CYCLE", "IDLE", "NONDRAINED_IDLE", "MIXED"}
	for _, a := range alone {
		switch {
		case !hasWord(v, a.word):
		case older(release, a.since):
			return fmt.Errorf("has %s, which is only supported for Slurm version %s or later", a.word, a.since)
		case strings.Contains(v, ","):
			return fmt.Errorf("has %s, which excludes any other state", a.word)
		default:
			return nil
		}
		if !older(release, a.since) {
			words = append(words, a.word)
		}
	}
	return subset(words...)(v, release)
}

func selectTypeParameters(v, release string) error {
	resources := []string{"CR_CPU", "CR_CPU_Memory", "CR_Core", "CR_Core_Memory"}
	if !older(release, "25.11") {
		resources = append(resources, "CR_Socket", "CR_Socket_Memory")
	}
	more := []string{"CR_ONE_TASK_PER_CORE", "CR_CORE_DEFAULT_DIST_BLOCK", "CR_LLN", "CR_Pack_Nodes"}
	if err := subset(append(more, resources...)...)(v, release); err != nil {
		return err
	}
	// slurmctld dies of a value without one.
	if !slices.ContainsFunc(resources, func(r string) bool { return hasWord(v, r) }) {
		return fmt.Errorf("names no resource to allocate: it needs one of %s", strings.Join(resources, ", "))
	}
	return nil
}

// communicationWords are those that the library of 26.05 looks for (24.11 has no
// other), the one of PCS, and CheckGhalQuiesce of a network that is not to be had
// here.
var communicationWords = []string{
	"block_null_hash", "CheckGhalQuiesce", "DisableIPv4", "disable_http", "EnableIPv6", "enable_http", "getnameinfo_cache_timeout=",
	"host_unreach_retry_count=", "keepaliveinterval=", "keepaliveprobes=", "keepalivetime=", "NoAddrCache", "NoCtldInAddrAny", "NoInAddrAny",
}

func communicationParameters(v, release string) error {
	// Slurm ignores a word that it does not know without a word, so that HTTP
	// would stay off.
	for _, w := range words(v) {
		name, _, valued := strings.Cut(w, "=")
		if valued {
			name += "="
		}
		if !slices.ContainsFunc(communicationWords, func(k string) bool { return strings.EqualFold(k, name) }) {
			return fmt.Errorf("has %q, which is not one of %s", w, strings.Join(communicationWords, ", "))
		}
	}
	switch {
	case older(release, "25.11") && hasWord(v, "enable_http"):
		return fmt.Errorf("has enable_http, which is only supported for Slurm version 25.11 or later")
	case hasWord(v, "DisableIPv4"):
		return fmt.Errorf("has DisableIPv4, but instances have IPv4 addresses alone")
	}
	return nil
}

// hasWord reports whether a list has a word, in any case.
func hasWord(list, word string) bool {
	return slices.ContainsFunc(words(list), func(w string) bool { return strings.EqualFold(w, word) })
}

func schedulerParameters(v, release string) error {
	if !older(release, "26.05") && strings.Contains(v, "enable_job_state_cache") {
		return fmt.Errorf("has enable_job_state_cache, which Slurm 26.05 no longer has")
	}
	return nil
}

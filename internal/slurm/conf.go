// Package slurm knows Slurm: it writes its configuration, reads its host
// lists and states, and lists its versions. Nothing that a user sends can
// add a line to a configuration file: every value goes through one checked
// writer. It does not talk to any process; package control does.
package slurm

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// NodeSet is the nodes of one compute node group: Name-1 to Name-Count.
type NodeSet struct {
	Name          string
	Count         int
	CPUs          int // one core a socket, one thread a core
	RealMemoryMiB int
	// Static is how many of them, from the first, are never suspended.
	Static   int
	IdleTime time.Duration // its own, for releases with GroupIdleTime; 0: the cluster's
	Settings []Setting     // checked for GroupLevel
}

// Partition is one queue over node sets.
type Partition struct {
	Name     string
	Sets     []string  // names of node sets
	Settings []Setting // checked for QueueLevel
}

// Config is all that slurm.conf of a cluster is made of.
type Config struct {
	Version           Version
	ClusterName       string
	ControllerName    string
	ControllerAddress string
	IdleTime          time.Duration
	ResumeTimeout     time.Duration
	SuspendTimeout    time.Duration
	MaxJobs           int
	HookDir           string // where the hook programs are, on the controller
	Cgroups           bool   // the nodes have a usable cgroup v2 hierarchy
	CheckHardware     bool   // nodes that report less than here are not used
	Nodes             []NodeSet
	Partitions        []Partition
	Settings          []Setting // checked for ClusterLevel
	CgroupSettings    []Setting // checked for CgroupLevel
	// Accounting is nil where slurmdbd does not run.
	Accounting *Accounting
	REST       bool // slurmrestd runs: tokens are taken
}

// Files are the configuration files of a cluster by name.
type Files map[string][]byte

// Render writes the configuration. The same Config, in any order of nodes
// and partitions, gives the same bytes. An error names the value that cannot
// be written.
func (c Config) Render() (Files, error) {
	w := writer{over: overrides(c.Settings)}
	w.comment("Written by openpcs. Changes here are overwritten.")
	w.set("ClusterName", c.ClusterName)
	w.set("SlurmctldHost", c.ControllerName+"("+c.ControllerAddress+")")
	w.set("SlurmUser", "slurm")
	w.set("AuthType", "auth/slurm")
	w.set("CredType", "cred/slurm")
	w.set("AuthInfo", "use_client_ids")
	// The service's own parameters stay, a user's come in addition. Users give
	// enable_expedited_requeue, which Slurm reads here, with the scheduler's.
	scheduler := slices.DeleteFunc(words(w.take("SchedulerParameters")), func(p string) bool { return strings.EqualFold(p, "enable_expedited_requeue") })
	w.list("SlurmctldParameters", merge(c.controllerParameters(), words(w.take("SlurmctldParameters"))))
	if !c.CheckHardware {
		// Slurm trusts the instance type's figures, not what slurmd counts on
		// a host that many nodes share.
		w.list("SlurmdParameters", []string{"config_overrides"})
	}
	communication, http := c.communicationParameters(w.take("CommunicationParameters"))
	w.list("CommunicationParameters", communication)
	if http {
		// Who asks for the endpoint asks for what is there: without a type
		// /metrics has nothing to show.
		w.set("MetricsType", "metrics/openmetrics")
	}
	w.set("StateSaveLocation", StateDir)
	w.set("SlurmdSpoolDir", "/var/spool/slurmd")
	w.set("SlurmctldLogFile", "/var/log/slurm/slurmctld.log")
	w.set("SlurmdLogFile", "/var/log/slurm/slurmd.log")
	w.set("SlurmctldPidFile", "/run/slurmctld/slurmctld.pid")
	w.set("SlurmdPidFile", "/run/slurmd.pid")
	w.set("LogTimeFormat", logTimeFormat)
	w.set("SlurmctldDebug", "verbose")
	w.set("SlurmdDebug", "info")
	w.list("DebugFlags", []string{"AuditRPCs"})
	// Not an accounting: what the job completion log is made of.
	w.set("JobCompType", "jobcomp/filetxt")
	w.set("JobCompLoc", "/var/log/slurm/jobcomp.log")
	w.set("MailProg", "/bin/true")
	w.set("MpiDefault", "none")
	w.set("SwitchType", "switch/none")
	if c.Cgroups {
		w.set("ProctrackType", "proctrack/cgroup")
		w.list("TaskPlugin", []string{"task/cgroup", "task/affinity"})
		w.list("PrologFlags", []string{"Contain", "Alloc"})
	} else {
		w.set("ProctrackType", "proctrack/linuxproc")
		w.set("TaskPlugin", "task/none")
		// Without control groups neither is there by default; a step manager
		// that a user asks for lives in the container.
		if hasWord(overrides(c.Settings)["SlurmctldParameters"], "enable_stepmgr") {
			w.list("PrologFlags", []string{"Contain", "Alloc"})
		}
	}
	c.account(&w)
	w.set("SelectType", "select/cons_tres")
	w.list("SelectTypeParameters", []string{"CR_CPU"})
	w.set("EnforcePartLimits", "ALL")
	w.list("SchedulerParameters", merge(c.Version.schedulerParameters(), scheduler))
	w.set("MaxJobCount", strconv.Itoa(c.MaxJobs))
	w.set("MaxArraySize", strconv.Itoa(c.MaxJobs+1))
	w.set("ReturnToService", "1")
	w.set("SlurmctldTimeout", "120")
	w.set("SlurmdTimeout", "60")
	w.set("MessageTimeout", "30")
	w.set("TCPTimeout", "5")

	w.set("ResumeProgram", c.HookDir+"/resume")
	w.set("SuspendProgram", c.HookDir+"/suspend")
	w.set("ResumeFailProgram", c.HookDir+"/resume-fail")
	w.set("PrologSlurmctld", c.HookDir+"/gate")
	w.set("RebootProgram", "/sbin/reboot") // run by slurmd on the node
	w.seconds("ResumeTimeout", c.ResumeTimeout)
	w.seconds("SuspendTimeout", c.SuspendTimeout)
	w.seconds("SuspendTime", c.IdleTime)
	w.set("ResumeRate", "0")
	w.set("SuspendRate", "0")
	w.list("ReconfigFlags", []string{"KeepPowerSaveSettings"})

	w.rest()

	sets := slices.SortedFunc(slices.Values(c.Nodes), func(a, b NodeSet) int { return cmp.Compare(a.Name, b.Name) })
	var static []string
	for _, s := range sets {
		if s.Static > 0 {
			static = append(static, rangeOf(s.Name, s.Static))
		}
	}
	w.list("SuspendExcNodes", static) // left out when empty: an empty value is fatal

	known := map[string]NodeSet{}
	for _, s := range sets {
		if !plainName.MatchString(s.Name) {
			return nil, fmt.Errorf("write node set %q: the name is not letters, digits, '.', '_' and '-'", s.Name)
		}
		known[s.Name] = s
		if s.Count == 0 {
			continue
		}
		fields, err := s.fields(c.Version)
		if err != nil {
			return nil, err
		}
		w.record(fields...)
	}
	for _, s := range sets {
		if s.IdleTime > 0 && s.Count > 0 && c.Version.GroupIdleTime && !c.Version.NodeIdleTime {
			w.record(s.idlePartition()...)
		}
	}
	parts := slices.SortedFunc(slices.Values(c.Partitions), func(a, b Partition) int { return cmp.Compare(a.Name, b.Name) })
	for _, p := range parts {
		// Slurm takes a partition DEFAULT, in any case, for the defaults of
		// those after it.
		if !plainName.MatchString(p.Name) || strings.EqualFold(p.Name, "default") {
			return nil, fmt.Errorf("write partition %q: the name is not letters, digits, '.', '_' and '-', or it is DEFAULT", p.Name)
		}
		var nodes []string
		for _, name := range slices.Sorted(slices.Values(p.Sets)) {
			s, ok := known[name]
			if !ok {
				return nil, fmt.Errorf("write partition %s: no node set %s", p.Name, name)
			}
			if s.Count > 0 {
				nodes = append(nodes, rangeOf(s.Name, s.Count))
			}
		}
		fields := []string{"PartitionName", p.Name}
		if len(nodes) > 0 {
			fields = append(fields, "Nodes", strings.Join(nodes, ","))
		}
		over := overrides(p.Settings)
		fields = append(fields, "MaxTime", cmp.Or(over["MaxTime"], "INFINITE"), "State", "UP")
		delete(over, "MaxTime")
		for _, name := range slices.Sorted(maps.Keys(over)) {
			fields = append(fields, name, over[name])
		}
		w.record(fields...)
	}
	if w.err != nil {
		return nil, w.err
	}

	cg := writer{over: overrides(c.CgroupSettings)}
	cg.comment("Written by openpcs. Changes here are overwritten.")
	if c.Cgroups {
		cg.set("CgroupPlugin", "cgroup/v2")
		cg.set("ConstrainCores", "no")
	} else {
		cg.set("CgroupPlugin", "disabled")
	}
	cg.rest()
	files := Files{"slurm.conf": w.buf.Bytes(), "cgroup.conf": cg.buf.Bytes()}
	if c.Accounting == nil || cg.err != nil {
		return files, cg.err
	}
	var err error
	files[SlurmdbdConf], err = c.slurmdbdConf()
	return files, err
}

// plainName is what names of node sets and partitions may be: nothing that
// Slurm reads as a list or a range.
var plainName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]*$`)

// logTimeFormat is how all daemons write the time: ISO 8601 with zone.
const logTimeFormat = "rfc5424_ms"

// StateDir is slurmctld's StateSaveLocation on the controller.
const StateDir = "/var/spool/slurmctld"

func (c Config) controllerParameters() []string {
	params := []string{
		"enable_configless",
		// The power save loop's default of 10 s would be most of a cold start;
		// with 0 it looks every second.
		"power_save_interval=0",
		"power_save_min_interval=0",
		"idle_on_node_suspend",
	}
	if c.Version.ExpeditedRequeue {
		params = append(params, "enable_expedited_requeue")
	}
	if c.Cgroups && c.Version.Stepmgr {
		params = append(params, "enable_stepmgr")
	}
	return params
}

// communicationParameters switches the HTTP endpoint off unless the user
// opts in with enable_http, which is PCS's word and not Slurm's, and tells
// whether it is on.
func (c Config) communicationParameters(users string) (params []string, http bool) {
	for _, p := range words(users) {
		switch {
		case strings.EqualFold(p, "enable_http"):
			http = true
		case !strings.EqualFold(p, "disable_http"): // the default, and written below
			params = append(params, p)
		}
	}
	http = http && c.Version.HTTP
	if c.Version.HTTP && !http {
		params = append(params, "disable_http")
	}
	return params, http
}

// words are the words of a list as users write it, some with a space after
// the comma.
func words(list string) (out []string) {
	for p := range strings.SplitSeq(list, ",") {
		if p = strings.TrimSpace(p); p != "" {
			out = append(out, p)
		}
	}
	return out
}

// merge adds a user's parameters to the service's; of two with one key the
// user's stays.
func merge(own, users []string) []string {
	var out []string
	key := func(p string) string { k, _, _ := strings.Cut(p, "="); return k }
	for _, p := range own {
		if !slices.ContainsFunc(users, func(u string) bool { return key(u) == key(p) }) {
			out = append(out, p)
		}
	}
	for _, p := range users {
		if !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	return out
}

func overrides(settings []Setting) map[string]string {
	over := map[string]string{}
	for _, s := range settings {
		over[s.Name] = s.Value
	}
	return over
}

// fields are the pairs of the set's line.
func (s NodeSet) fields(v Version) ([]string, error) {
	over := overrides(s.Settings)
	sockets := s.CPUs
	if v, ok := over["Sockets"]; ok {
		n, err := strconv.Atoi(v)
		if err != nil || n < 1 || s.CPUs%n != 0 {
			return nil, fmt.Errorf("write node set %s: Sockets=%s does not divide its %d cores", s.Name, v, s.CPUs)
		}
		sockets = n
	}
	feature := s.Name
	if v := over["Features"]; v != "" {
		feature += "," + v
	}
	fields := []string{
		"NodeName", rangeOf(s.Name, s.Count),
		"Sockets", strconv.Itoa(sockets),
		"CoresPerSocket", strconv.Itoa(s.CPUs / sockets),
		"ThreadsPerCore", "1",
		"RealMemory", cmp.Or(over["RealMemory"], strconv.Itoa(s.RealMemoryMiB)),
		"Feature", feature,
		"Weight", cmp.Or(over["Weight"], "1"),
	}
	for _, name := range []string{"CpuSpecList", "MemSpecLimit", "Parameters"} {
		if v := over[name]; v != "" {
			fields = append(fields, name, v)
		}
	}
	if s.IdleTime > 0 && v.NodeIdleTime {
		fields = append(fields, "SuspendTime", seconds(s.IdleTime))
	}
	return append(fields, "State", "CLOUD"), nil
}

// idlePartition is where a release without SuspendTime of nodes has the set's
// idle time: in a partition of its own, which nobody sees or submits to. A node
// takes the longest idle time of its partitions that have one, and queues have
// none. The name is none that a queue can have.
func (s NodeSet) idlePartition() []string {
	return []string{
		"PartitionName", "idle_time." + s.Name, "Nodes", rangeOf(s.Name, s.Count),
		"Hidden", "YES", "State", "INACTIVE", "SuspendTime", seconds(s.IdleTime),
	}
}

func rangeOf(name string, count int) string {
	if count == 1 {
		return name + "-1"
	}
	return fmt.Sprintf("%s-[1-%d]", name, count)
}

// writer writes slurm.conf syntax. The first value that cannot be written
// stops it.
type writer struct {
	buf bytes.Buffer
	err error
	// over has a user's values for keys; those not written yet are written
	// by rest.
	over map[string]string
}

// take returns a user's value and leaves it to the caller.
func (w *writer) take(key string) string {
	v := w.over[key]
	delete(w.over, key)
	return v
}

// rest writes the user's values that took the place of none.
func (w *writer) rest() {
	for _, key := range slices.Sorted(maps.Keys(w.over)) {
		w.record(key, w.over[key])
	}
	w.over = nil
}

func (w *writer) comment(text string) { w.buf.WriteString("# " + text + "\n") }

// set writes a key with the user's value, or with the service's.
func (w *writer) set(key, value string) { w.record(key, cmp.Or(w.take(key), value)) }

func (w *writer) list(key string, values []string) {
	if value := cmp.Or(w.take(key), strings.Join(values, ",")); value != "" {
		w.record(key, value)
	}
}

func (w *writer) seconds(key string, d time.Duration) { w.record(key, seconds(d)) }

func seconds(d time.Duration) string { return strconv.Itoa(int(d / time.Second)) }

// record writes one line of key=value pairs.
func (w *writer) record(pairs ...string) {
	if w.err != nil {
		return
	}
	for i := 0; i < len(pairs); i += 2 {
		value, err := quote(pairs[i+1], len(pairs) > 2)
		if err != nil {
			w.err = fmt.Errorf("write %s: %w", pairs[i], err)
			return
		}
		if i > 0 {
			w.buf.WriteByte(' ')
		}
		w.buf.WriteString(pairs[i] + "=" + value)
	}
	w.buf.WriteByte('\n')
}

// quote returns value as slurm.conf takes it. Slurm reads '#' as the start
// of a comment and knows no escapes, so what it cannot carry is refused.
func quote(value string, inRecord bool) (string, error) {
	if value == "" {
		return "", fmt.Errorf("the value is empty")
	}
	for _, r := range value {
		switch {
		case r < 0x20 || r == 0x7f || r == '\u2028' || r == '\u2029':
			return "", fmt.Errorf("the value %q has a control character", value)
		case r == '#' || r == '"' || r == '\\':
			return "", fmt.Errorf("the value %q has the character %q, which slurm.conf cannot carry", value, r)
		}
	}
	if strings.TrimSpace(value) != value {
		return "", fmt.Errorf("the value %q begins or ends with white space", value)
	}
	// Slurm reads several pairs from any line, so a space must not end one.
	if strings.Contains(value, " ") || (inRecord && strings.Contains(value, "=")) {
		return `"` + value + `"`, nil
	}
	return value, nil
}

package slurm

import (
	"bytes"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write the golden files anew")

func version(t testing.TB, name string) Version {
	t.Helper()
	v, ok := FindVersion(name)
	if !ok {
		t.Fatalf("no version %s", name)
	}
	return v
}

// smallConfig is what the walkthrough's cluster looks like on a host without
// cgroup v2.
func smallConfig(t testing.TB) Config {
	return Config{
		Version: version(t, "26.05"), ClusterName: "demo", ControllerName: "slurmctld-primary", ControllerAddress: "10.77.16.4",
		IdleTime: 10 * time.Minute, ResumeTimeout: 30 * time.Minute, SuspendTimeout: 5 * time.Second,
		MaxJobs: 256, HookDir: "/opt/aws/pcs/libexec",
		Nodes: []NodeSet{
			{Name: "node-group-1", Count: 2, CPUs: 1, RealMemoryMiB: 972},
			{Name: "login", Count: 1, Static: 1, CPUs: 1, RealMemoryMiB: 972},
		},
		Partitions: []Partition{{Name: "queue-1", Sets: []string{"node-group-1"}}},
	}
}

// largeConfig has what the small one has not: cgroups, an older Slurm,
// several static groups, a group in two queues, an empty group and queues
// without any node.
func largeConfig(t testing.TB) Config {
	return Config{
		Version: version(t, "24.11"), ClusterName: "site-a", ControllerName: "slurmctld-primary", ControllerAddress: "10.77.16.5",
		IdleTime: time.Second, ResumeTimeout: 20 * time.Second, SuspendTimeout: 5 * time.Second,
		MaxJobs: 16384, HookDir: "/opt/aws/pcs/libexec", Cgroups: true,
		Nodes: []NodeSet{
			{Name: "a", Count: 1, Static: 1, CPUs: 2, RealMemoryMiB: 7782},
			{Name: "a-b", Count: 40, Static: 3, CPUs: 48, RealMemoryMiB: 373555},
			{Name: "a-dy-b", Count: 500, CPUs: 96, RealMemoryMiB: 747110},
			{Name: "off", Count: 0, CPUs: 1, RealMemoryMiB: 972},
		},
		Partitions: []Partition{
			{Name: "big", Sets: []string{"a-dy-b", "a"}},
			{Name: "all", Sets: []string{"a", "a-b", "a-dy-b", "off"}},
			{Name: "idle", Sets: []string{"off"}},
			{Name: "none"},
		},
	}
}

func render(t testing.TB, c Config) Files {
	t.Helper()
	files, err := c.Render()
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func TestGoldenConfigurations(t *testing.T) {
	for name, conf := range map[string]Config{"small": smallConfig(t), "large": largeConfig(t), "accounted": accountedConfig(t)} {
		t.Run(name, func(t *testing.T) {
			files := render(t, conf)
			want := []string{"cgroup.conf", "slurm.conf"}
			if conf.Accounting != nil {
				want = append(want, "slurmdbd.conf")
			}
			if got := slices.Sorted(maps.Keys(files)); !slices.Equal(got, want) {
				t.Errorf("files = %v", got)
			}
			for file, got := range files {
				path := filepath.Join("testdata", name, file)
				if *update {
					if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
						t.Fatal(err)
					}
					if err := os.WriteFile(path, got, 0o644); err != nil {
						t.Fatal(err)
					}
				}
				want, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(got, want) {
					t.Errorf("%s differs (go test -update writes it anew):\n%s", path, lineDiff(string(want), string(got)))
				}
			}
		})
	}
}

func lineDiff(want, got string) string {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	var out strings.Builder
	for _, l := range w {
		if !slices.Contains(g, l) {
			fmt.Fprintf(&out, "-%s\n", l)
		}
	}
	for _, l := range g {
		if !slices.Contains(w, l) {
			fmt.Fprintf(&out, "+%s\n", l)
		}
	}
	return out.String()
}

func TestC4_SameInputsSameBytes(t *testing.T) {
	want := render(t, largeConfig(t))
	rng := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		c := largeConfig(t)
		rng.Shuffle(len(c.Nodes), func(i, j int) { c.Nodes[i], c.Nodes[j] = c.Nodes[j], c.Nodes[i] })
		rng.Shuffle(len(c.Partitions), func(i, j int) { c.Partitions[i], c.Partitions[j] = c.Partitions[j], c.Partitions[i] })
		for _, p := range c.Partitions {
			rng.Shuffle(len(p.Sets), func(i, j int) { p.Sets[i], p.Sets[j] = p.Sets[j], p.Sets[i] })
		}
		nodes, parts := slices.Clone(c.Nodes), slices.Clone(c.Partitions)
		got := render(t, c)
		for name := range want {
			if !bytes.Equal(got[name], want[name]) {
				t.Fatalf("%s depends on the order of its input:\n%s", name, lineDiff(string(want[name]), string(got[name])))
			}
		}
		if fmt.Sprint(c.Nodes) != fmt.Sprint(nodes) || fmt.Sprint(c.Partitions) != fmt.Sprint(parts) {
			t.Fatal("Render changed its input")
		}
	}
}

func TestN9_TwoThousandNodesSmallConfig(t *testing.T) {
	c := smallConfig(t)
	c.Nodes, c.Partitions = nil, nil
	for g := range 10 {
		name := fmt.Sprintf("group-with-a-long-name-%02d", g)
		c.Nodes = append(c.Nodes, NodeSet{Name: name, Count: 205, Static: 100, CPUs: 2, RealMemoryMiB: 7782})
		c.Partitions = append(c.Partitions, Partition{Name: fmt.Sprintf("queue-with-a-long-name-%02d", g)})
	}
	for i := range c.Partitions {
		for _, s := range c.Nodes {
			c.Partitions[i].Sets = append(c.Partitions[i].Sets, s.Name)
		}
	}
	conf := string(render(t, c)["slurm.conf"])
	if len(conf) >= 64<<10 {
		t.Errorf("slurm.conf of 2050 nodes has %d bytes", len(conf))
	}
	if n := strings.Count(conf, "NodeName="); n != len(c.Nodes) {
		t.Errorf("%d NodeName lines for %d groups", n, len(c.Nodes))
	}
	few := c
	few.Nodes = slices.Clone(c.Nodes)
	for i := range few.Nodes {
		few.Nodes[i].Count, few.Nodes[i].Static = 2, 1
	}
	if a, b := strings.Count(conf, "\n"), strings.Count(string(render(t, few)["slurm.conf"]), "\n"); a != b {
		t.Errorf("%d lines for 2050 nodes, %d for 20: lines must go with groups", a, b)
	}
}

func TestC1_EmptySuspendExcNodesIsLeftOut(t *testing.T) {
	c := smallConfig(t)
	if got := string(render(t, c)["slurm.conf"]); !strings.Contains(got, "\nSuspendExcNodes=login-1\n") {
		t.Error("the static node is not protected from suspension")
	}
	c.Nodes[1].Static = 0
	if got := string(render(t, c)["slurm.conf"]); strings.Contains(got, "SuspendExcNodes") {
		t.Error("SuspendExcNodes stays without any static node: an empty value is fatal to slurmctld")
	}
}

func TestC2_QueueWithoutNodesIsAccepted(t *testing.T) {
	c := smallConfig(t)
	c.Nodes = []NodeSet{{Name: "off", Count: 0, CPUs: 1, RealMemoryMiB: 1}}
	c.Partitions = []Partition{{Name: "empty"}, {Name: "of-none", Sets: []string{"off"}}}
	conf := string(render(t, c)["slurm.conf"])
	for _, p := range []string{"empty", "of-none"} {
		if !strings.Contains(conf, "PartitionName="+p+" MaxTime=INFINITE State=UP\n") {
			t.Errorf("the partition %s of no nodes is not written without Nodes:\n%s", p, conf)
		}
	}
	if strings.Contains(conf, "NodeName=") || strings.Contains(conf, "off-") {
		t.Error("a group of no nodes is named")
	}
	// A set that is not there would make slurmctld refuse all of it.
	c.Partitions = []Partition{{Name: "q", Sets: []string{"gone"}}}
	if _, err := c.Render(); err == nil || !strings.Contains(err.Error(), "gone") {
		t.Errorf("a partition of an unknown set: err = %v, want one that names it", err)
	}
}

func TestC13_StateIsInAFolderOfItsOwn(t *testing.T) {
	conf := string(render(t, smallConfig(t))["slurm.conf"])
	m := regexp.MustCompile(`(?m)^StateSaveLocation=(.*)$`).FindStringSubmatch(conf)
	if m == nil || m[1] != StateDir || strings.HasPrefix(m[1], "/tmp") || !filepath.IsAbs(m[1]) {
		t.Errorf("StateSaveLocation = %v", m)
	}
	if !strings.Contains(conf, "\nSlurmUser=slurm\n") {
		t.Error("slurmctld does not run as slurm")
	}
}

func TestC17_TooLargeJobsAreRefusedAtSubmit(t *testing.T) {
	if conf := string(render(t, smallConfig(t))["slurm.conf"]); !strings.Contains(conf, "\nEnforcePartLimits=ALL\n") {
		t.Error("EnforcePartLimits is not ALL: a job larger than its queue would wait for ever")
	}
}

func TestOptionsFollowTheVersion(t *testing.T) {
	for _, tt := range []struct {
		option string
		since  string
	}{
		{"enable_expedited_requeue", "25.11"},
		{"disable_http", "25.11"},
		{"requeue_delay=5", "25.11"},
		{"requeue_on_resume_failure", "25.05"},
	} {
		for _, v := range Versions {
			c := smallConfig(t)
			c.Version = v
			got := strings.Contains(string(render(t, c)["slurm.conf"]), tt.option)
			if want := v.Name >= tt.since; got != want {
				t.Errorf("Slurm %s: %s is there: %v, want %v", v.Name, tt.option, got, want)
			}
		}
	}
	// SEED0 trap 2: Slurm reads it from SlurmctldParameters only.
	for line := range strings.SplitSeq(string(render(t, smallConfig(t))["slurm.conf"]), "\n") {
		if strings.Contains(line, "enable_expedited_requeue") && !strings.HasPrefix(line, "SlurmctldParameters=") {
			t.Errorf("enable_expedited_requeue in %q", line)
		}
	}
}

// M7: enable_http is a word of PCS alone. It means that disable_http is not
// there, and that there are metrics at the endpoint.
func TestM7_EnableHTTP(t *testing.T) {
	for _, tt := range []struct {
		release, words, metricsType string
		want                        []string // lines that name HTTP or metrics
	}{
		{"24.11", "", "", nil},
		{"24.11", "NoInAddrAny", "", nil},
		{"25.11", "", "", []string{"CommunicationParameters=disable_http"}},
		{"26.05", "", "", []string{"CommunicationParameters=disable_http"}},
		{"26.05", "disable_http", "", []string{"CommunicationParameters=disable_http"}},
		{"25.11", "enable_http", "", []string{"MetricsType=metrics/openmetrics"}},
		{"26.05", "enable_http", "", []string{"MetricsType=metrics/openmetrics"}},
		{"26.05", "Enable_HTTP", "metrics/openmetrics", []string{"MetricsType=metrics/openmetrics"}},
		{"26.05", "disable_http,enable_http", "", []string{"MetricsType=metrics/openmetrics"}},
		{"26.05", "", "metrics/openmetrics", []string{"CommunicationParameters=disable_http", "MetricsType=metrics/openmetrics"}},
		{"26.05", "block_null_hash, enable_http", "", []string{"CommunicationParameters=block_null_hash", "MetricsType=metrics/openmetrics"}},
	} {
		c := smallConfig(t)
		c.Version = version(t, tt.release)
		for name, value := range map[string]string{"CommunicationParameters": tt.words, "MetricsType": tt.metricsType} {
			if value == "" {
				continue
			}
			out, wrong := CheckSettings(ClusterLevel, tt.release, false, []Setting{{name, value}})
			if len(wrong) != 0 {
				t.Fatalf("%s %s=%s: %v", tt.release, name, value, wrong)
			}
			c.Settings = append(c.Settings, out...)
		}
		var got []string
		for line := range strings.SplitSeq(string(render(t, c)["slurm.conf"]), "\n") {
			if strings.Contains(line, "http") || strings.Contains(line, "Metrics") || strings.HasPrefix(line, "CommunicationParameters=block") {
				got = append(got, line)
			}
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("%s with %q, %q: %q, want %q", tt.release, tt.words, tt.metricsType, got, tt.want)
		}
	}
}

// I4: a group's own idle time is where its release has it, for the nodes of
// that group alone, whatever queues they are in.
func TestI4_IdleTimeOfAGroup(t *testing.T) {
	for release, want := range map[string][]string{
		"24.11": nil,
		"25.05": nil,
		"25.11": {`PartitionName=idle_time.node-group-1 Nodes=node-group-1-[1-2] Hidden=YES State=INACTIVE SuspendTime=20`},
		"26.05": {`NodeName=node-group-1-[1-2] Sockets=1 CoresPerSocket=1 ThreadsPerCore=1 RealMemory=972 Feature=node-group-1 Weight=1 SuspendTime=20 State=CLOUD`},
	} {
		c := smallConfig(t)
		c.Version = version(t, release)
		plain := string(render(t, c)["slurm.conf"])
		c.Nodes[0].IdleTime = 20 * time.Second
		c.Nodes = append(c.Nodes, NodeSet{Name: "none", IdleTime: time.Second, CPUs: 1, RealMemoryMiB: 1})
		var got []string
		for line := range strings.SplitSeq(string(render(t, c)["slurm.conf"]), "\n") {
			if !strings.Contains(plain, line+"\n") {
				got = append(got, line)
			}
		}
		if got = slices.DeleteFunc(got, func(l string) bool { return l == "" }); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", release, got, want)
		}
	}
}

func TestCgroupsSwitchTheirPlugins(t *testing.T) {
	c := smallConfig(t)
	for _, on := range []bool{false, true} {
		c.Cgroups = on
		files := render(t, c)
		conf, cg := string(files["slurm.conf"]), string(files["cgroup.conf"])
		if got := strings.Contains(conf, "ProctrackType=proctrack/cgroup"); got != on {
			t.Errorf("cgroups %v: proctrack/cgroup %v", on, got)
		}
		if got := strings.Contains(conf, "PrologFlags=Contain,Alloc"); got != on {
			t.Errorf("cgroups %v: PrologFlags %v (Contain needs proctrack/cgroup)", on, got)
		}
		if got := strings.Contains(conf, "enable_stepmgr"); got != on {
			t.Errorf("cgroups %v: enable_stepmgr %v", on, got)
		}
		if got := strings.Contains(cg, "CgroupPlugin=disabled"); got == on {
			t.Errorf("cgroups %v: cgroup.conf is %q", on, cg)
		}
	}
}

// TestStepManagerWithoutCgroups: slurmctld dies of a step manager without a
// container for it, so that one that a user asks for brings it along.
func TestStepManagerWithoutCgroups(t *testing.T) {
	c := smallConfig(t)
	c.Settings = []Setting{{"SlurmctldParameters", "enable_stepmgr"}}
	conf := string(render(t, c)["slurm.conf"])
	if !strings.Contains(conf, "PrologFlags=Contain,Alloc\n") || !strings.Contains(conf, ",enable_stepmgr\n") {
		t.Errorf("the step manager has no container:\n%s", conf)
	}
	c.Settings = append(c.Settings, Setting{"PrologFlags", "Contain,X11"})
	if conf = string(render(t, c)["slurm.conf"]); strings.Count(conf, "PrologFlags=") != 1 || !strings.Contains(conf, "PrologFlags=Contain,X11\n") {
		t.Errorf("the user's flags are not in force:\n%s", conf)
	}
}

func TestC20_HardwareIsTrustedUnlessChecked(t *testing.T) {
	c := smallConfig(t)
	for _, check := range []bool{false, true} {
		c.CheckHardware = check
		if got := strings.Contains(string(render(t, c)["slurm.conf"]), "SlurmdParameters=config_overrides"); got == check {
			t.Errorf("check %v: config_overrides %v", check, got)
		}
	}
}

func TestFindVersion(t *testing.T) {
	if _, ok := FindVersion("26.05"); !ok {
		t.Error("26.05 is unknown")
	}
	for _, name := range []string{"", "26", "26.05.5", "99.99"} {
		if v, ok := FindVersion(name); ok {
			t.Errorf("FindVersion(%q) = %+v", name, v)
		}
	}
	if !slices.IsSortedFunc(Versions, func(a, b Version) int { return strings.Compare(a.Name, b.Name) }) {
		t.Error("Versions are not oldest first")
	}
}

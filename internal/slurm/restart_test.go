package slurm

import (
	"slices"
	"testing"
	"time"
)

// TestC5_ReconfigureUnlessTheTableSaysRestart: what users change day by day
// never restarts slurmctld (CycleCloud #144: nodes that registered meanwhile
// were flagged).
func TestC5_ReconfigureUnlessTheTableSaysRestart(t *testing.T) {
	base := func() Config {
		v, _ := FindVersion("26.05")
		return Config{
			Version: v, ClusterName: "c", ControllerName: "ctl", ControllerAddress: "10.0.0.4", IdleTime: time.Minute,
			ResumeTimeout: time.Minute, SuspendTimeout: 5 * time.Second, MaxJobs: 10, HookDir: "/hooks",
			Nodes:      []NodeSet{{Name: "a", Count: 2, CPUs: 1, RealMemoryMiB: 900}},
			Partitions: []Partition{{Name: "p", Sets: []string{"a"}}},
		}
	}
	with := func(name, value string) func(*Config) {
		return func(c *Config) { c.Settings = append(c.Settings, Setting{name, value}) }
	}
	for _, tt := range []struct {
		name   string
		change func(*Config)
		want   []string
	}{
		{"nothing", func(*Config) {}, nil},
		{"idle time", func(c *Config) { c.IdleTime = time.Hour }, nil},
		{"a group more", func(c *Config) {
			c.Nodes = append(c.Nodes, NodeSet{Name: "b", Count: 1, CPUs: 1, RealMemoryMiB: 900})
		}, nil},
		{"a larger group", func(c *Config) { c.Nodes[0].Count = 40 }, nil},
		{"a queue more", func(c *Config) { c.Partitions = append(c.Partitions, Partition{Name: "q", Sets: []string{"a"}}) }, nil},
		{"no queue", func(c *Config) { c.Partitions = nil }, nil},
		{"scheduler", with("SchedulerParameters", "bf_continue"), nil},
		{"selection", with("SelectTypeParameters", "CR_Core_Memory"), nil},
		{"prolog flags", with("PrologFlags", "Alloc"), nil},
		{"metrics", with("MetricsType", "metrics/openmetrics"), nil},
		{"http", with("CommunicationParameters", "enable_http"), nil},
		{"keepalive", with("CommunicationParameters", "keepalivetime=30"), nil},
		{"IPv6", with("CommunicationParameters", "EnableIPv6"), []string{"CommunicationParameters"}},
		{"bound address, in any case", with("CommunicationParameters", "keepalivetime=30,noctldinaddrany"), []string{"CommunicationParameters"}},
		{"controller", func(c *Config) { c.ControllerAddress = "10.0.0.5" }, []string{"SlurmctldHost"}},
		{"name", func(c *Config) { c.ClusterName = "d" }, []string{"ClusterName"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			before, after := base(), base()
			tt.change(&after)
			old, err := before.Render()
			if err != nil {
				t.Fatal(err)
			}
			files, err := after.Render()
			if err != nil {
				t.Fatal(err)
			}
			for _, v := range Versions {
				there, back := NeedsRestart(v.Name, old["slurm.conf"], files["slurm.conf"]), NeedsRestart(v.Name, files["slurm.conf"], old["slurm.conf"])
				if !slices.Equal(there, tt.want) || !slices.Equal(back, tt.want) {
					t.Errorf("%s: restart for %v, and back for %v, want %v", v.Name, there, back, tt.want)
				}
			}
		})
	}
	if got := NeedsRestart("26.05", []byte("SlurmctldPort=6817\nNodeName=a SlurmctldPort=1\n"), []byte("# x=y\nslurmctldport=6818\n")); !slices.Equal(got, []string{"SlurmctldPort"}) {
		t.Errorf("another port: %v", got)
	}
}

package doctor

import (
	"errors"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/openpcs/openpcs/internal/cgroup"
	"github.com/openpcs/openpcs/internal/compute/incus"
)

func healthy() Facts {
	now := time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)
	f := Facts{
		Kernel: "6.1.0-13-amd64", Root: true, Mode: cgroup.Auto,
		Control:  cgroup.Host{Controllers: []string{"cpu", "cpuset", "memory"}},
		Enforced: cgroup.Enforcement{CPUs: 8, MemoryMiB: 16000, Plugins: true},
		Incus:    incus.Inspection{Version: "6.0.4", Socket: "/s", Pool: &incus.PoolSpace{Name: "p", Driver: "btrfs", Status: "Created", UsedMiB: 1000, TotalMiB: 30000}},
		Disks:    []Disk{{"/var/lib/openpcs", 50000}}, Listen: "127.0.0.1:7300",
		Subnet: netip.MustParsePrefix("10.77.0.0/16"), Bridge: "openpcs0",
		Networks: map[string][]netip.Prefix{
			"eth0":     {netip.MustParsePrefix("192.0.2.7/24")},
			"openpcs0": {netip.MustParsePrefix("10.77.0.1/16"), netip.MustParsePrefix("169.254.169.254/32")},
			"openpcs1": {netip.MustParsePrefix("169.254.169.254/32")},
		},
		Now: now, LatestEvent: now.Add(-time.Minute), Images: []string{"26.05"},
		Serving: &Serving{Version: "v1", PID: 7, API: "127.0.0.1:7300", Clusters: 2},
		Tools:   map[string]bool{},
		Storage: Storage{Dir: "/var/lib/openpcs", Program: "/usr/bin/openpcs-s3"},
	}
	for _, t := range Tools {
		f.Tools[t.Program] = true
	}
	return f
}

func TestHealthy(t *testing.T) {
	for _, f := range Check(healthy()) {
		if f.Status != OK || f.Text == "" || f.Fix != "" {
			t.Errorf("%+v", f)
		}
	}
	if Failed(Check(healthy())) {
		t.Error("it failed")
	}
}

func TestChecks(t *testing.T) {
	mixed := cgroup.Host{Legacy: []string{"memory"}, Controllers: []string{"hugetlb"}}
	decide := func(f *Facts) {
		f.Enforced = cgroup.Decide(f.Mode, f.Control, cgroup.Machine{CPUs: 8, MemoryMiB: 16000})
	}
	broken := errors.New("broken")
	for _, tt := range []struct {
		name   string
		change func(*Facts)
		check  string
		status Status
		text   string // in what is said, or in what to do
	}{
		{"old kernel", func(f *Facts) { f.Kernel = "5.4.0" }, "kernel", Fail, "5.15"},
		{"first kernel", func(f *Facts) { f.Kernel = "5.15.0-x" }, "kernel", OK, "5.15"},
		{"odd kernel", func(f *Facts) { f.Kernel = "" }, "kernel", Warn, "not understood"},
		{"not root", func(f *Facts) { f.Root = false }, "root", Fail, "sudo"},
		{"limits mixed", func(f *Facts) { f.Control = mixed; decide(f) }, "limits", Warn, "processors and memory of instance types cannot be enforced"},
		{"limits in part", func(f *Facts) { f.Control.Controllers = []string{"cpuset"}; decide(f) }, "limits", Warn, "processors of types up to 8 are enforced; memory of"},
		{"limits on", func(f *Facts) { f.Mode = cgroup.On; decide(f) }, "limits", OK, "slurmctld checks what nodes report"},
		{"limits on, mixed", func(f *Facts) { f.Mode, f.Control = cgroup.On, mixed; decide(f) }, "limits", Warn, "slurmctld checks"},
		{"limits off", func(f *Facts) { f.Mode, f.Control = cgroup.Off, mixed; decide(f) }, "limits", OK, "nothing is enforced"},
		{"no cgroups", func(f *Facts) { f.CgroupErr = broken }, "limits", Fail, "broken"},
		{"no cgroups", func(f *Facts) { f.CgroupErr = broken }, "cgroups", Fail, "broken"},
		{"plugins off", func(f *Facts) { f.Mode = cgroup.Off }, "cgroups", OK, "proctrack/linuxproc"},
		{"plugins mixed", func(f *Facts) { f.Control = mixed }, "cgroups", Warn, "proctrack/linuxproc, as cgroup v1 hierarchies are mounted (memory)"},
		{"plugins undelegated", func(f *Facts) { f.Control.Controllers = []string{"cpu", "memory"} }, "cgroups", Warn, "no controller cpuset"},
		{"buckets elsewhere", func(f *Facts) { f.Storage = Storage{Endpoint: "https://s3.example.com"} }, "s3", OK, "https://s3.example.com"},
		{"no program for buckets", func(f *Facts) { f.Storage.ProgramErr = broken }, "s3", Warn, "make build"},
		{"no attributes", func(f *Facts) { f.Storage.AttributesErr = broken }, "s3", Warn, "OPENPCS_STATE"},
		{"no mmdebstrap", func(f *Facts) { f.Tools["mmdebstrap"] = false }, "tools", Fail, "apt-get install mmdebstrap"},
		{"no dnsmasq", func(f *Facts) { f.Tools["dnsmasq"] = false }, "tools", Fail, "dnsmasq-base"},
		{"no incus", func(f *Facts) { f.IncusErr = broken }, "incus", Fail, "incus-up"},
		{"no incus", func(f *Facts) { f.IncusErr = broken; f.Incus.Pool = nil }, "pool", Warn, "not looked at"},
		{"no pool", func(f *Facts) { f.Incus.Pool = nil }, "pool", OK, "no storage pool yet"},
		{"broken pool", func(f *Facts) { f.Incus.Pool.Status = "Errored" }, "pool", Fail, "is Errored"},
		{"full pool", func(f *Facts) { f.Incus.Pool.UsedMiB = 29500 }, "pool", Fail, "0.5 GiB of 29.3 GiB left"},
		{"slow pool", func(f *Facts) { f.Incus.Pool.Driver = "dir" }, "pool", Warn, "copies its image"},
		{"disk nearly full", func(f *Facts) { f.Disks[0].FreeMiB = 4000 }, "disk", Warn, "/var/lib/openpcs has 3.9 GiB left"},
		{"disk full", func(f *Facts) { f.Disks = append(f.Disks, Disk{"/c", 100}, Disk{"/d", 4000}) }, "disk", Fail, "/c"},
		{"subnet used", func(f *Facts) { f.Subnet = netip.MustParsePrefix("192.0.0.0/16") }, "subnet", Fail, "eth0"},
		{"subnet used by its bridge", func(f *Facts) { delete(f.Networks, "eth0") }, "subnet", OK, "10.77.0.0/16"},
		{"port taken", func(f *Facts) { f.Serving, f.ListenErr = nil, broken }, "api", Fail, "OPENPCS_LISTEN"},
		{"port free", func(f *Facts) { f.Serving = nil }, "api", OK, "is free"},
		{"metadata elsewhere", func(f *Facts) {
			f.Networks["eth0"] = append(f.Networks["eth0"], netip.MustParsePrefix("169.254.169.254/32"))
		}, "metadata", Fail, "eth0 has 169.254.169.254"},
		{"port 80 taken", func(f *Facts) { f.Serving, f.Port80 = nil, true }, "metadata", Fail, "port 80"},
		{"port 80 shared", func(f *Facts) { f.Port80 = true }, "metadata", OK, "openpcs0"},
		{"1970", func(f *Facts) { f.Now = time.Unix(1000, 0) }, "clock", Fail, "1970-01-01T00:16:40Z is in the past"},
		{"clock set back", func(f *Facts) { f.LatestEvent = f.Now.Add(time.Hour) }, "clock", Fail, "1h0m0s before the latest event"},
		{"clock stepped", func(f *Facts) { f.LatestEvent = f.Now.Add(time.Second) }, "clock", OK, "2026"},
		{"state broken", func(f *Facts) { f.StateErr = broken }, "state", Fail, "broken"},
		{"no state", func(f *Facts) { f.LatestEvent = time.Time{} }, "state", OK, "no state yet"},
		{"no images", func(f *Facts) { f.Images = nil }, "images", Warn, "openpcs image build"},
		{"down", func(f *Facts) { f.Serving = nil }, "control-plane", Warn, "openpcs up"},
		{"hangs", func(f *Facts) { f.Serving, f.ServingErr = nil, broken }, "control-plane", Fail, "broken"},
	} {
		t.Run(tt.name+"/"+tt.check, func(t *testing.T) {
			f := healthy()
			tt.change(&f)
			for _, got := range Check(f) {
				if got.Name != tt.check {
					continue
				}
				if got.Status != tt.status || !strings.Contains(got.Text+" "+got.Fix, tt.text) {
					t.Errorf("got %+v, want %s with %q", got, tt.status, tt.text)
				}
				if got.Status == Fail && got.Fix == "" {
					t.Errorf("it does not say what to do: %+v", got)
				}
				return
			}
			t.Errorf("there is no check %s", tt.check)
		})
	}
}

func TestListensOn80(t *testing.T) {
	const head = "  sl  local_address rem_address   st tx_queue\n"
	for table, want := range map[string]bool{
		head: false,
		head + "   0: 00000000:0050 00000000:0000 0A 00000000:00000000\n":                                   true,
		head + "   0: 00000000000000000000000000000000:0050 00000000000000000000000000000000:0000 0A 0:0\n": true,
		head + "   0: 00000000:0050 00000000:0000 06 0\n":                                                   false,
		head + "   0: FEA9FEA9:0050 00000000:0000 0A 0\n":                                                   false,
		head + "   0: 00000000:1F90 00000000:0000 0A 0\n":                                                   false,
	} {
		if got := listensOn80(table); got != want {
			t.Errorf("%q: %v", table, got)
		}
	}
}

// TestObserveStorage looks at file systems that have attributes of users and that
// have none, and leaves nothing behind.
func TestObserveStorage(t *testing.T) {
	dir := t.TempDir()
	s := Storage{Program: dir + "/openpcs-s3", Dir: dir + "/not/there/yet"}.observe()
	if s.ProgramErr == nil || s.AttributesErr != nil {
		t.Errorf("%+v", s)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

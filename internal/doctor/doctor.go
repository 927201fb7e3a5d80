// Package doctor tells whether a machine can run openpcs, and what to do
// where it cannot. Observe looks at the machine, Check judges what was seen;
// neither changes anything, and both work without a control plane.
package doctor

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/openpcs/openpcs/internal/cgroup"
	"github.com/openpcs/openpcs/internal/compute/incus"
)

// Status is how a check came out.
type Status string

// The outcomes: fine, works with a loss, does not work.
const (
	OK   Status = "ok"
	Warn Status = "warn"
	Fail Status = "fail"
)

// Finding is the outcome of one check.
type Finding struct {
	Name   string `json:"name"`
	Status Status `json:"status"`
	Text   string `json:"text"`
	Fix    string `json:"fix,omitempty"` // what to do, where there is something
}

// Facts are what was seen of a machine.
type Facts struct {
	Kernel      string // release
	Root        bool
	Mode        cgroup.Mode
	Control     cgroup.Host
	Enforced    cgroup.Enforcement
	CgroupErr   error
	Incus       incus.Inspection
	IncusErr    error
	Disks       []Disk
	Listen      string
	ListenErr   error // of trying to listen there, where nobody serves
	Port80      bool  // somebody listens on port 80 of all addresses
	Subnet      netip.Prefix
	Bridge      string
	Networks    map[string][]netip.Prefix // addresses of the host by interface
	Storage     Storage
	Now         time.Time
	LatestEvent time.Time // of the state file
	StateErr    error
	Tools       map[string]bool // programs, and whether they are there
	Images      []string        // releases of Slurm that images are built of
	Serving     *Serving        // nil: no control plane runs
	ServingErr  error           // one runs, and does not answer
}

// Disk is a folder with the room left on its file system.
type Disk struct {
	Path    string
	FreeMiB int
}

// Serving is a control plane that runs.
type Serving struct {
	Version  string
	PID      int
	API      string
	Clusters int
}

// checks are all of them, in the order in which they are shown: what is
// needed by others comes first.
var checks = []func(Facts) Finding{
	kernel, root, limits, plugins, tools, engine, pool, disk, subnet, listen, metadata, clock, state, buckets, images, service,
}

// Check judges what was seen.
func Check(f Facts) []Finding {
	out := make([]Finding, 0, len(checks))
	for _, check := range checks {
		out = append(out, check(f))
	}
	return out
}

// Failed reports whether a check failed.
func Failed(findings []Finding) bool {
	for _, f := range findings {
		if f.Status == Fail {
			return true
		}
	}
	return false
}

func fine(name, text string) Finding { return Finding{Name: name, Status: OK, Text: text} }

// minKernelMajor and minKernelMinor are of the first kernel with id-mapped mounts
// of the file systems that shared homes are on.
const minKernelMajor, minKernelMinor = 5, 15

func kernel(f Facts) Finding {
	var major, minor int
	if n, _ := fmt.Sscanf(f.Kernel, "%d.%d", &major, &minor); n != 2 {
		return Finding{"kernel", Warn, fmt.Sprintf("the release %q is not understood", f.Kernel), ""}
	}
	if major < minKernelMajor || major == minKernelMajor && minor < minKernelMinor {
		return Finding{
			"kernel", Fail, "Linux " + f.Kernel + " cannot share folders between unprivileged instances",
			fmt.Sprintf("boot Linux %d.%d or later", minKernelMajor, minKernelMinor),
		}
	}
	return fine("kernel", "Linux "+f.Kernel)
}

func root(f Facts) Finding {
	if !f.Root {
		return Finding{"root", Fail, "not root, and the control plane makes bridges and talks to Incus", "use sudo"}
	}
	return fine("root", "running as root")
}

// limits is about what binds instances.
func limits(f Facts) Finding {
	const name = "limits"
	if f.CgroupErr != nil {
		return Finding{name, Fail, f.CgroupErr.Error(), "mount /sys/fs/cgroup"}
	}
	text := fmt.Sprintf("OPENPCS_LIMITS=%s: ", f.Mode)
	if f.Mode == cgroup.Off {
		return fine(name, text+"nothing is enforced")
	}
	var kept, lost []string
	for _, l := range []struct {
		what string
		most int
		unit string
	}{{"processors", f.Enforced.CPUs, ""}, {"memory", f.Enforced.MemoryMiB, " MiB"}} {
		if l.most > 0 {
			kept = append(kept, fmt.Sprintf("%s of types up to %d%s", l.what, l.most, l.unit))
		} else {
			lost = append(lost, l.what)
		}
	}
	var parts []string
	if len(kept) > 0 {
		parts = append(parts, strings.Join(kept, " and ")+" are enforced")
	}
	if len(lost) > 0 {
		parts = append(parts, strings.Join(lost, " and ")+" of instance types cannot be enforced on this host: jobs share what it has")
	}
	if f.Enforced.Check {
		parts = append(parts, "slurmctld checks what nodes report")
	}
	text += strings.Join(parts, "; ")
	if len(lost) == 0 {
		return fine(name, text)
	}
	return Finding{name, Warn, text, unified + ", or set OPENPCS_LIMITS=off if that is fine"}
}

// unified is what brings all controllers to version 2.
const unified = "boot with cgroup v2 alone (systemd.unified_cgroup_hierarchy=1 on the kernel's command line)"

// plugins is about how Slurm tracks jobs.
func plugins(f Facts) Finding {
	const name = "cgroups"
	if f.CgroupErr != nil {
		return Finding{name, Fail, f.CgroupErr.Error(), "mount /sys/fs/cgroup"}
	}
	if f.Mode == cgroup.Off {
		return fine(name, "Slurm uses proctrack/linuxproc, as OPENPCS_LIMITS=off asks")
	}
	if err := f.Control.Slurm(); err != nil {
		return Finding{
			name, Warn,
			fmt.Sprintf("Slurm uses proctrack/linuxproc, as %v; a process that leaves its job's session may outlive it, jobs are not confined, "+
				"and PrologFlags=X11 and TaskPluginParam=OOMKillStep are refused", err),
			unified,
		}
	}
	return fine(name, "Slurm uses proctrack/cgroup and task/cgroup")
}

// Tools are the programs that openpcs runs on the host, with the Debian
// package that has each and what is missing without it.
var Tools = []struct{ Program, Package, For string }{
	{"mmdebstrap", "mmdebstrap", "building images"},
	{"mksquashfs", "squashfs-tools", "building images"},
	{"ip", "iproute2", "the metadata service"},
	{"dnsmasq", "dnsmasq-base", "the bridge's name service"},
	{"setfattr", "attr", "Incus"},
	{"btrfs", "btrfs-progs", "a storage pool with copy-on-write"},
	{"nft", "nftables", "reaching other networks from instances"},
}

func tools(f Facts) Finding {
	var missing, packages []string
	for _, t := range Tools {
		if !f.Tools[t.Program] {
			missing = append(missing, t.Program+" (for "+t.For+")")
			packages = append(packages, t.Package)
		}
	}
	if len(missing) > 0 {
		return Finding{"tools", Fail, "missing: " + strings.Join(missing, ", "), "scripts/host.sh packages, or apt-get install " + strings.Join(packages, " ")}
	}
	return fine("tools", fmt.Sprintf("all %d programs are there", len(Tools)))
}

func engine(f Facts) Finding {
	if f.IncusErr != nil {
		return Finding{"incus", Fail, f.IncusErr.Error(), "scripts/host.sh incus-up, or name its socket with OPENPCS_INCUS_SOCKET"}
	}
	return fine("incus", fmt.Sprintf("Incus %s at %s", f.Incus.Version, f.Incus.Socket))
}

// Room below which a file system is too full, or soon will be. An image and
// the root file system that it is built from are half a gigabyte.
const (
	littleMiB = 5 << 10
	noneMiB   = 1 << 10
)

func pool(f Facts) Finding {
	p := f.Incus.Pool
	switch {
	case f.IncusErr != nil:
		return Finding{"pool", Warn, "not looked at, as Incus does not answer", ""}
	case p == nil:
		return fine("pool", "no storage pool yet: openpcs serve makes it")
	case p.Status != "Created":
		return Finding{"pool", Fail, fmt.Sprintf("the storage pool %s is %s", p.Name, p.Status), "restart openpcs serve, which mends it; see incus storage info " + p.Name}
	}
	free := p.TotalMiB - p.UsedMiB
	text := fmt.Sprintf("the storage pool %s (%s) has %s of %s left", p.Name, p.Driver, gib(free), gib(p.TotalMiB))
	switch {
	case free < noneMiB:
		return Finding{"pool", Fail, text, "end nodes, delete images (openpcs image list), or enlarge it: incus storage set " + p.Name + " size=60GiB"}
	case p.Driver != "btrfs" && p.Driver != "zfs":
		return Finding{"pool", Warn, text + "; every launch copies its image", "install btrfs-progs, then openpcs down and up"}
	}
	return fine("pool", text)
}

func gib(mib int) string { return fmt.Sprintf("%.1f GiB", float64(mib)/1024) }

func disk(f Facts) Finding {
	worst := fine("disk", "")
	var texts []string
	for _, d := range f.Disks {
		texts = append(texts, fmt.Sprintf("%s has %s left", d.Path, gib(d.FreeMiB)))
		fix := "make room on the file system of " + d.Path
		switch {
		case d.FreeMiB < noneMiB:
			worst.Status, worst.Fix = Fail, fix
		case d.FreeMiB < littleMiB && worst.Status == OK:
			worst.Status, worst.Fix = Warn, fix
		}
	}
	worst.Text = strings.Join(texts, ", ")
	return worst
}

func subnet(f Facts) Finding {
	for name, prefixes := range f.Networks {
		for _, p := range prefixes {
			if name != f.Bridge && p.Overlaps(f.Subnet) {
				return Finding{
					"subnet", Fail,
					fmt.Sprintf("the instances' network %s overlaps %s of the interface %s", f.Subnet, p.Masked(), name),
					"choose another with OPENPCS_SUBNET, such as 10.78.0.0/16",
				}
			}
		}
	}
	return fine("subnet", fmt.Sprintf("%s is free for instances", f.Subnet))
}

func listen(f Facts) Finding {
	switch {
	case f.Serving != nil:
		return fine("api", f.Serving.API+" is served by the control plane")
	case f.ListenErr != nil:
		return Finding{"api", Fail, f.ListenErr.Error(), "end what listens there, or choose another address with OPENPCS_LISTEN"}
	}
	return fine("api", f.Listen+" is free")
}

var metadataAddress = netip.MustParseAddr("169.254.169.254")

// metadata is about what the metadata service of instances needs.
func metadata(f Facts) Finding {
	for name, prefixes := range f.Networks {
		for _, p := range prefixes {
			if p.Addr() == metadataAddress && !strings.HasPrefix(name, "openpcs") {
				return Finding{
					"metadata", Fail, fmt.Sprintf("the interface %s has %s, which the bridge %s needs", name, metadataAddress, f.Bridge),
					"take the address from " + name,
				}
			}
		}
	}
	if f.Port80 && f.Serving == nil {
		return Finding{
			"metadata", Fail, "a program listens on port 80 of all addresses, and so on that of the metadata service",
			"bind it to the addresses that it needs",
		}
	}
	return fine("metadata", fmt.Sprintf("%s:80 is there for the bridge %s", metadataAddress, f.Bridge))
}

// born is when this was written: an earlier clock is wrong. slack is how far
// clocks may step without harm.
var born = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

const slack = 5 * time.Second

func clock(f Facts) Finding {
	const name = "clock"
	now := f.Now.UTC().Format(time.RFC3339)
	const fix = "set the clock (timedatectl set-ntp true)"
	switch {
	case f.Now.Before(born):
		return Finding{name, Fail, now + " is in the past: signatures are refused and certificates are not yet valid", fix}
	case f.Now.Add(slack).Before(f.LatestEvent):
		return Finding{
			name, Fail,
			fmt.Sprintf("%s is %s before the latest event of the state file: the clock was set back, or is wrong", now, f.LatestEvent.Sub(f.Now).Round(time.Second)), fix,
		}
	}
	return fine(name, now)
}

func state(f Facts) Finding {
	switch {
	case f.StateErr != nil:
		return Finding{"state", Fail, f.StateErr.Error(), "restore it from a copy, or move it away to begin anew"}
	case f.LatestEvent.IsZero():
		return fine("state", "no state yet")
	}
	return fine("state", "the state file is readable; its latest event is of "+f.LatestEvent.Format(time.RFC3339))
}

func images(f Facts) Finding {
	if len(f.Images) == 0 {
		return Finding{"images", Warn, "none is built yet", "openpcs up, or openpcs image build"}
	}
	return fine("images", "built: "+strings.Join(f.Images, ", "))
}

func service(f Facts) Finding {
	const name = "control-plane"
	switch {
	case f.ServingErr != nil:
		return Finding{name, Fail, f.ServingErr.Error(), "look at its log and start it anew: instances and jobs run on meanwhile"}
	case f.Serving == nil:
		return Finding{name, Warn, "it does not run", "openpcs up"}
	}
	return fine(name, fmt.Sprintf("openpcs %s runs as process %d with %d clusters", cmp.Or(f.Serving.Version, "dev"), f.Serving.PID, f.Serving.Clusters))
}

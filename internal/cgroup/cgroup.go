// Package cgroup reads how a Linux host has its control groups, as far as it
// decides what can be enforced on instances and what their Slurm can use. It
// changes nothing.
package cgroup

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Host is how a host has its control groups.
type Host struct {
	// Legacy are the version 1 hierarchies that are mounted, by their
	// controllers, such as memory or name=systemd.
	Legacy []string
	// Controllers are those of the version 2 hierarchy: a controller belongs
	// to one hierarchy only.
	Controllers []string
	// Missing says that there is no version 2 hierarchy at all.
	Missing bool
}

// Read looks at this host.
func Read() (Host, error) {
	self, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return Host{}, fmt.Errorf("read the control groups: %w", err)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return Host{}, fmt.Errorf("read the mounts: %w", err)
	}
	var controllers string
	point := mountPoint(string(mounts))
	if point != "" {
		text, err := os.ReadFile(filepath.Join(point, "cgroup.controllers"))
		if err != nil {
			return Host{}, fmt.Errorf("read the controllers of cgroup v2: %w", err)
		}
		controllers = string(text)
	}
	h := parse(string(self), controllers)
	h.Missing = point == ""
	return h, nil
}

// mountPoint finds where cgroup v2 is mounted in a /proc/PID/mountinfo.
func mountPoint(mountinfo string) string {
	for line := range strings.Lines(mountinfo) {
		front, back, ok := strings.Cut(line, " - ")
		fields := strings.Fields(front)
		if ok && len(fields) > 4 && strings.HasPrefix(back, "cgroup2 ") {
			return fields[4]
		}
	}
	return ""
}

// parse reads a /proc/PID/cgroup, with a line ID:CONTROLLERS:PATH for each
// hierarchy, and a cgroup.controllers.
func parse(self, controllers string) Host {
	h := Host{Controllers: strings.Fields(controllers)}
	for line := range strings.Lines(self) {
		id, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		names, _, ok := strings.Cut(rest, ":")
		if ok && id != "0" {
			h.Legacy = append(h.Legacy, names)
		}
	}
	slices.Sort(h.Legacy)
	return h
}

// Can reports whether version 2 has a controller.
func (h Host) Can(controller string) bool { return slices.Contains(h.Controllers, controller) }

// slurmNeeds are what proctrack/cgroup and task/cgroup use.
var slurmNeeds = []string{"cpu", "cpuset", "memory"}

// Slurm returns nil if Slurm's cgroup/v2 plugin works in instances of this
// host, else why it does not. slurmd ends at once where a version 1 hierarchy
// is mounted beside version 2, even an empty one, as instances see them all.
func (h Host) Slurm() error {
	if h.Missing {
		return fmt.Errorf("cgroup v2 is not mounted")
	}
	if len(h.Legacy) > 0 {
		return fmt.Errorf("cgroup v1 hierarchies are mounted (%s), and Slurm does not work with both", strings.Join(h.Legacy, " "))
	}
	for _, c := range slurmNeeds {
		if !h.Can(c) {
			return fmt.Errorf("cgroup v2 has no controller %s", c)
		}
	}
	return nil
}

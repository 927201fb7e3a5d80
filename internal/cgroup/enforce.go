package cgroup

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
)

// Mode is how far an instance type's processors and memory bind.
type Mode string

const (
	// Auto enforces on an instance what the host has and can enforce. Larger
	// types run too: Slurm schedules by the type, whatever is below it.
	Auto Mode = "auto"
	// On does the same, and has slurmctld check what nodes report: one
	// with less than its type says is not used.
	On Mode = "on"
	// Off enforces nothing, and leaves Slurm's control groups alone too.
	Off Mode = "off"
)

// ParseMode reads a mode.
func ParseMode(text string) (Mode, error) {
	switch m := Mode(text); m {
	case Auto, On, Off:
		return m, nil
	default:
		return "", fmt.Errorf("%q is not auto, on or off", text)
	}
}

// Machine is the hardware of a host.
type Machine struct {
	CPUs      int
	MemoryMiB int
}

// ThisMachine looks at this host.
func ThisMachine() (Machine, error) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return Machine{}, fmt.Errorf("read the memory's size: %w", err)
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == "MemTotal:" {
			kib, err := strconv.Atoi(fields[1])
			return Machine{CPUs: runtime.NumCPU(), MemoryMiB: kib / 1024}, err
		}
	}
	return Machine{}, fmt.Errorf("read the memory's size: /proc/meminfo has no MemTotal")
}

// Enforcement is what a control plane does about limits.
type Enforcement struct {
	// CPUs and MemoryMiB are the largest limits that are put on instances;
	// 0: none are.
	CPUs, MemoryMiB int
	// Check says that slurmctld compares what nodes report with their type.
	Check bool
	// Plugins says that Slurm tracks and confines jobs with control groups.
	Plugins bool
	// Lost are sentences on what is not done, and why.
	Lost []string
}

// Decide says what is done in a mode on a host.
func Decide(mode Mode, h Host, m Machine) Enforcement {
	e := Enforcement{Check: mode == On}
	lose := func(format string, args ...any) { e.Lost = append(e.Lost, fmt.Sprintf(format, args...)) }
	switch {
	case mode == Off:
		lose("The processors and memory of instance types are not enforced, and Slurm uses proctrack/linuxproc, as OPENPCS_LIMITS=off asks.")
		return e
	default:
		if h.Can("cpuset") {
			e.CPUs = m.CPUs
		} else {
			lose("The processors of an instance type are not enforced: cgroup v2 has no controller cpuset here.")
		}
		if h.Can("memory") {
			e.MemoryMiB = m.MemoryMiB
		} else {
			lose("The memory of an instance type is not enforced: cgroup v2 has no controller memory here.")
		}
	}
	if err := h.Slurm(); err != nil {
		lose("Slurm uses proctrack/linuxproc in place of proctrack/cgroup, without PrologFlags=Contain and enable_stepmgr by default: %v.", err)
	} else {
		e.Plugins = true
	}
	return e
}

package slurm

import (
	"cmp"
	"fmt"
	"strings"
)

// incompatible finds settings of a cluster that are right each for itself and
// that slurmctld refuses together, by the name of the one to change.
func incompatible(values map[string]string) map[string]error {
	wrong := map[string]error{}
	preempts := !strings.EqualFold(cmp.Or(values["PreemptType"], "preempt/none"), "preempt/none")
	mode := values["PreemptMode"]
	acts := hasWord(mode, "CANCEL") || hasWord(mode, "REQUEUE") || hasWord(mode, "SUSPEND")
	off := mode == "" || hasWord(mode, "OFF") || strings.EqualFold(mode, "GANG")
	switch {
	case preempts && off:
		wrong["PreemptType"] = fmt.Errorf("PreemptType=%s needs PreemptMode=CANCEL, REQUEUE or SUSPEND,GANG", values["PreemptType"])
	case acts && !preempts:
		wrong["PreemptMode"] = fmt.Errorf("PreemptMode=%s needs PreemptType=preempt/partition_prio or preempt/qos", mode)
	case hasWord(mode, "SUSPEND") && !hasWord(mode, "GANG"):
		wrong["PreemptMode"] = fmt.Errorf("PreemptMode=%s needs GANG too: SUSPEND,GANG", mode)
	}
	if isZero(values["PriorityDecayHalfLife"]) && strings.EqualFold(cmp.Or(values["PriorityUsageResetPeriod"], "NONE"), "NONE") {
		wrong["PriorityDecayHalfLife"] = fmt.Errorf("PriorityDecayHalfLife=%s needs PriorityUsageResetPeriod: usage would add up for ever", values["PriorityDecayHalfLife"])
	}
	flags := values["PrologFlags"]
	contained := hasWord(flags, "Contain") || hasWord(flags, "X11") || hasWord(flags, "RunInJob")
	if hasWord(values["SlurmctldParameters"], "enable_stepmgr") && flags != "" && !contained {
		wrong["PrologFlags"] = fmt.Errorf("PrologFlags=%s lacks Contain, which SlurmctldParameters=enable_stepmgr needs", flags)
	}
	if hasWord(flags, "NoHold") && contained {
		wrong["PrologFlags"] = fmt.Errorf("PrologFlags=%s: NoHold excludes Contain, X11 and RunInJob", flags)
	}
	if hasWord(flags, "Serial") && hasWord(flags, "RunInJob") {
		wrong["PrologFlags"] = fmt.Errorf("PrologFlags=%s: Serial excludes RunInJob", flags)
	}
	return wrong
}

// isZero reports whether a time, such as 0, 00:00:00 or 0-0, is nothing.
func isZero(value string) bool { return value != "" && strings.Trim(value, "0:-") == "" }

package fleet

import (
	"slices"
	"strings"

	"github.com/openpcs/openpcs/internal/slurm"
)

// ReasonPrefix begins each reason that openpcs sets on a Slurm node, so that
// it never clears one that a person wrote. The two sentences that PCS users
// know come without it.
const ReasonPrefix = "pcs: "

// The sentences of PCS.
const (
	bootReason   = "Backing Instance Failed To Bootstrap: "
	launchReason = "Failed to launch backing instance (Error Code: "
)

// BootReason is the reason of a Slurm node whose instance did not come up.
func BootReason(instanceID string) string { return bootReason + instanceID }

// LaunchReason is the reason of a Slurm node whose instance could not be had;
// code is an EC2 error code.
func LaunchReason(code string) string { return launchReason + code + ")" }

// openpcsReasons begin the reasons that openpcs sets. Slurm may have added its
// own behind one, as in "... : Not responding".
var openpcsReasons = []string{ReasonPrefix, bootReason, launchReason}

// startReasons begin those of nodes that did not come up.
var startReasons = []string{bootReason, launchReason}

// ownReasons begin the reasons that Slurm or openpcs set, and no person.
var ownReasons = append(append([]string{
	"ResumeTimeout reached", "Not responding", "Node unexpectedly rebooted", powerDownReason,
}, openpcsReasons...), invalidReasons...)

// powerDownReason is slurmctld's own for a node that was told State=POWER_DOWN_ASAP:
// it drains it until its jobs are done.
const powerDownReason = "POWER_DOWN_ASAP"

// invalidReasons begin those of nodes that registered with less than
// slurm.conf says, which slurmctld drains: its own, and what openpcs says of
// such a node.
var invalidReasons = []string{
	"Low RealMemory", "Low socket*core*thread count", "Low CPUs", "Low TmpDisk", "CoreSpec differ", bootReason,
}

func begins(reason string, with []string) bool {
	return slices.ContainsFunc(with, func(own string) bool { return strings.HasPrefix(reason, own) })
}

// rebooted ends the reason of a node that Slurm rebooted and has down then:
// whoever asked for that (scontrol reboot nextstate=DOWN) wants it replaced, as
// on PCS.
const rebooted = "reboot complete"

// ours reports whether Slurm or openpcs set the reason, not a person.
func ours(reason string) bool {
	return begins(reason, ownReasons) || strings.HasSuffix(reason, rebooted)
}

// downReason is the reason that a node is set down with: that of who drained
// it outlives the instance.
func downReason(seen slurm.Node, reason string) string {
	if seen.Has("DRAIN") && seen.Reason != "" && (!ours(seen.Reason) || begins(seen.Reason, invalidReasons)) {
		return seen.Reason
	}
	return reason
}

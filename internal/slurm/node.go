package slurm

import (
	"encoding/json"
	"fmt"
	"slices"
)

// Node is what slurmctld says of one node.
type Node struct {
	Name string `json:"name"`
	// State has the base state first, then flags: IDLE, CLOUD, POWERED_DOWN.
	// Flags that this program does not know are kept and do no harm.
	State   []string `json:"state"`
	Reason  string   `json:"reason"`
	Address string   `json:"address"`
}

// Has reports whether the node has every one of the flags.
func (n Node) Has(flags ...string) bool {
	for _, f := range flags {
		if !slices.Contains(n.State, f) {
			return false
		}
	}
	return true
}

// HasAny reports whether the node has one of the flags.
func (n Node) HasAny(flags ...string) bool {
	return slices.ContainsFunc(flags, func(f string) bool { return slices.Contains(n.State, f) })
}

// Ready reports whether a job can start on the node: it is powered up, it
// answers, and nothing says that it is about to go.
func (n Node) Ready() bool {
	return len(n.State) > 0 && !n.HasAny("DOWN", "ERROR", "FUTURE", "UNKNOWN", "NOT_RESPONDING",
		"POWERED_DOWN", "POWERING_UP", "POWERING_DOWN", "POWER_UP", "INVALID_REG", "REBOOT_ISSUED")
}

// Failed reports whether the node will not become ready by waiting.
func (n Node) Failed() bool { return n.HasAny("DOWN", "ERROR", "INVALID_REG") }

// ParseNodes reads the answer of `scontrol --json show nodes`.
func ParseNodes(doc []byte) (map[string]Node, error) {
	var answer struct {
		Nodes []Node `json:"nodes"`
	}
	if err := json.Unmarshal(doc, &answer); err != nil {
		return nil, fmt.Errorf("parse scontrol show nodes: %w", err)
	}
	out := make(map[string]Node, len(answer.Nodes))
	for _, n := range answer.Nodes {
		out[n.Name] = n
	}
	return out, nil
}

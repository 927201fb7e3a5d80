//go:build e2e

package e2e

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestCLI: what scripts rely on.
func TestCLI(t *testing.T) {
	c := shared(t)
	t.Run("wrong_use_is_2", func(t *testing.T) {
		for _, args := range [][]string{
			{"no-such-command"},
			{"nodes", "too", "many"},
			{"explain"},
			{"connect"},
			{"connect", "front-1", "sinfo"}, // the -- is missing
			{"status", "--no-such-flag"},
			{"clusters", "delete"},
			{"clusters", "no-such-command"},
			{"image", "no-such-command"},
			{"image", "remove"},
		} {
			r := openpcs(args...)
			must(t, r.code == 2 && r.out == "" && strings.HasPrefix(r.errOut, "openpcs: ") && strings.Contains(r.errOut, "--help' for usage"), "%s", r)
		}
	})
	t.Run("failures_are_1_and_say_what_to_do", func(t *testing.T) {
		for _, bad := range []struct {
			args []string
			says string
		}{
			{[]string{"connect", "no-such-node", "--", "true"}, `no instance runs for "no-such-node": openpcs instances lists those that do`},
			{[]string{"connect", c.id + "/node-99", "--", "true"}, "no instance runs"},
			{[]string{"explain", "no-such-node"}, `there is no node, instance, compute node group or cluster "no-such-node"`},
			{[]string{"logs", "no-such-node"}, "no-such-node"},
			{[]string{"logs", c.id + "/front-1", "--file", "no-such.log"}, "bootstrap.log, slurmd.log"},
			{[]string{"groups", "no-such-cluster"}, `there is no cluster "no-such-cluster"`},
			{[]string{"queues", "no-such-cluster"}, `there is no cluster "no-such-cluster"`},
			{[]string{"clusters", "delete", "--yes", "no-such-cluster"}, "no-such-cluster"},
			{[]string{"image", "remove", "ami-00000000000000000"}, "ami-00000000000000000"},
		} {
			r := openpcs(bad.args...)
			must(t, r.code == 1 && strings.HasPrefix(r.errOut, "openpcs: ") && strings.Contains(r.errOut, bad.says), "wanted %q: %s", bad.says, r)
		}
	})
	t.Run("json", func(t *testing.T) {
		for _, args := range [][]string{
			{"status"}, {"clusters"}, {"clusters", "list"}, {"groups"}, {"groups", c.name}, {"queues"}, {"queues", c.id}, {"nodes"}, {"instances"}, {"image", "list"},
		} {
			r := succeed(t, openpcs(append(args, "--json")...))
			var rows []map[string]any
			must(t, json.Unmarshal([]byte(r.out), &rows) == nil && len(rows) > 0, "not an array with objects: %s", r)
			for _, row := range rows {
				for _, key := range []string{"name", "id", "status"} {
					text, ok := row[key].(string)
					must(t, ok && text != "", "no %s in %v of %s", key, row, r)
				}
			}
			table := succeed(t, openpcs(args...))
			must(t, len(lines(table.out)) == len(rows)+1, "the table has not a line for each of %d rows: %s", len(rows), table)
		}
	})
	t.Run("away", func(t *testing.T) {
		for _, args := range [][]string{{"status"}, {"nodes"}, {"env"}} {
			r := run(append(siteEnv, "OPENPCS_STATE="+stateDir+"-nobody"), append([]string{binary()}, args...)...)
			must(t, r.code == 1 && r.out == "" && strings.Contains(r.errOut, "openpcs up"), "%s", r)
		}
	})
	t.Run("others", func(t *testing.T) {
		matches(t, "version", succeed(t, openpcs("version")).out, `^openpcs \S+\n$`)
		matches(t, "completion", succeed(t, openpcs("completion", "bash")).out, `bash completion`)
		r := succeed(t, openpcs("explain", c.id+"/front-1"))
		matches(t, "explain", r.out, `Slurm has the node front-1 as IDLE\+CLOUD`)
		r = succeed(t, openpcs("explain", "node", "--cluster", c.id))
		matches(t, "explain of a group", r.out, `The compute node group node \(pcs_[0-9a-z]{10}\) is ACTIVE, with 0 to 4 instances\.`)
		r = succeed(t, openpcs("logs", c.id+"/front-1"))
		matches(t, "logs", r.out, `(?m)^==> bootstrap\.log <==$`)
	})
}

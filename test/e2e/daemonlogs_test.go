//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/openpcs/openpcs/internal/audit"
)

// TestLogsOfAllDaemons: the logs of slurmdbd and slurmrestd flow into a delivery
// of the scheduler's logs beside slurmctld's, and slurmdbd's audit records into
// the audit log.
func TestLogsOfAllDaemons(t *testing.T) {
	s := &logSeed{cluster: accounted(t), group: "/all-daemons", prefix: "daemons"}
	s.operationalDelivery(t)
	// So that each has something to say, and slurmdbd is asked something.
	succeed(t, s.controller("systemctl restart slurmdbd slurmrestd && scontrol reconfigure"))
	eventually(t, time.Minute, "each daemon has its stream", func() error {
		streams := aws(t, "logs", "describe-log-streams", "--log-group-name", s.group, "--query", "logStreams[].logStreamName", "--output", "text")
		for _, daemon := range []string{"slurmctld", "slurmdbd", "slurmrestd"} {
			if want := "AWSLogs/PCS/" + s.id + "/" + daemon + "_" + version + ".log"; !strings.Contains(streams, want) {
				return fmt.Errorf("no %s in %s", want, streams)
			}
		}
		return nil
	})
	count := aws(t, "logs", "filter-log-events", "--log-group-name", s.group, "--filter-pattern", "AUDIT_RPCS", "--query", "length(events)", "--output", "text")
	must(t, count == "0", "%s events of the operational logs have AUDIT_RPCS", count)
	eventually(t, time.Minute, "slurmdbd's audit records are found", func() error {
		s.user("sacct")
		found, err := rows[audit.Row]("audit", s.id)
		for _, r := range found {
			if strings.HasPrefix(r.Type, "DBD_") && r.Client != "" {
				return nil
			}
		}
		return fmt.Errorf("none of %d records is of slurmdbd: %v", len(found), err)
	})
	for _, id := range strings.Fields(aws(t, "logs", "describe-deliveries", "--query", "deliveries[].id", "--output", "text")) {
		aws(t, "logs", "delete-delivery", "--id", id)
	}
	aws(t, "logs", "delete-delivery-source", "--name", s.prefix+"-logs-source")
	aws(t, "logs", "delete-delivery-destination", "--name", s.prefix+"-logs-dest")
	aws(t, "logs", "delete-log-group", "--log-group-name", s.group)
}

//go:build e2e

package e2e

import (
	"bufio"
	"compress/gzip"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/openpcs/openpcs/internal/audit"
)

const (
	millionLines = 1_000_000
	millionKills = 10
	millionBox   = "million-audit"
	// One line in opsEvery is operational; the others are audit records.
	opsEvery = 10
	// The first line of each part has a user of its own, by whom it is found.
	millionUser = 700_000
)

// million is a controller's log into which a million lines are written.
type million struct {
	*logSeed
	controllerID string
	written      int
	parts        int
}

// sh runs a script on the controller, also while openpcs is dead.
func (m *million) sh(t *testing.T, script string) {
	t.Helper()
	r := incus("exec", "--project", project, "--cwd", "/", m.controllerID, "--", "sh", "-ec", script)
	succeed(t, r)
}

// write appends lines to the log of the real slurmctld, which goes on writing
// there too.
func (m *million) write(t *testing.T, n int) {
	t.Helper()
	m.parts++
	m.sh(t, fmt.Sprintf(`now=$(date -u +%%Y-%%m-%%dT%%H:%%M:%%S)
awk -v now="$now" -v from=%d -v to=%d -v every=%d -v user=%d 'BEGIN {
	for (i = from; i <= to; i++)
		if (i %% every == 0) printf "[%%s.000+00:00] sched: a job named AUDIT_RPCS: million %%d\n", now, i
		else printf "[%%s.000+00:00] AUDIT_RPCS: [slurmctld-primary:6817(fd:18)] msg_type=REQUEST_PING uid=%%d client=[10.0.1.142:42390] protocol=11520 million %%d\n", now, (i == from ? user : 0), i
}' >>/var/log/slurm/slurmctld.log`, m.written+1, m.written+n, opsEvery, millionUser+m.parts))
	m.written += n
}

// shift makes room for a rotated log.
const shift = `cd /var/log/slurm
for n in 7 6 5 4 3 2 1; do test ! -e slurmctld.log.$n || mv slurmctld.log.$n slurmctld.log.$((n+1)); done
`

// rename rotates as logrotate does by default.
func (m *million) rename(t *testing.T) {
	t.Helper()
	m.sh(t, shift+`mv slurmctld.log slurmctld.log.1
systemctl kill --kill-whom=main --signal=SIGUSR2 slurmctld
for n in $(seq 100); do test -e slurmctld.log && break; scontrol ping >/dev/null; done
test -e slurmctld.log`)
}

// copyTruncate rotates as logrotate does with that word. A log of which nobody
// has seen the beginning would be lost by it.
func (m *million) copyTruncate(t *testing.T) {
	t.Helper()
	eventually(t, time.Minute, "the log is seen", func() error {
		found, err := rows[audit.Row]("audit", m.id, "--user", strconv.Itoa(millionUser+m.parts))
		if err == nil && len(found) == 0 {
			err = fmt.Errorf("no record of part %d", m.parts)
		}
		return err
	})
	m.sh(t, shift+`cp slurmctld.log slurmctld.log.1
: >slurmctld.log`)
}

// TestMillionLines: a million lines go through the log of a real slurmctld, which
// is rotated and truncated, while the control plane is killed ten times at random
// moments and the bucket is closed for a while. In the end each is where it
// belongs, once.
func TestMillionLines(t *testing.T) {
	const interval = "OPENPCS_DELIVERY_INTERVAL=2s"
	c := shared(t)
	restart(t, interval)
	t.Cleanup(func() { restart(t) })
	all, err := rows[instanceRow]("instances")
	at := slices.IndexFunc(all, func(i instanceRow) bool { return i.Name == "slurmctld-primary" && i.Cluster == c.name })
	must(t, err == nil && at >= 0, "the controller is not listed: %v %v", all, err)
	m := &million{logSeed: &logSeed{cluster: c, group: "/million", prefix: "million"}, controllerID: all[at].ID}
	aws(t, "s3", "mb", "s3://"+millionBox)
	m.policyOf(t, millionBox)
	m.operationalDelivery(t)
	aws(t, "logs", "put-delivery-destination", "--name", "million-audit-dest", "--output-format", "json",
		"--delivery-destination-configuration", "destinationResourceArn=arn:aws:s3:::"+millionBox)
	m.source(t, "million-audit-source", "PCS_SCHEDULER_AUDIT_LOGS")
	aws(t, "logs", "create-delivery", "--delivery-source-name", "million-audit-source",
		"--delivery-destination-arn", "arn:aws:logs:ap-northeast-1:"+account+":delivery-destination:million-audit-dest")
	// A delivery begins with what is written from now on, and stamps have seconds.
	m.sh(t, "sleep 1.1")

	began := time.Now()
	part := millionLines / (2 * (millionKills + 1))
	for round := range millionKills {
		if round == 3 {
			aws(t, "s3api", "delete-bucket-policy", "--bucket", millionBox)
		}
		if round == 6 {
			m.policyOf(t, millionBox)
		}
		dead := make(chan error, 1)
		doomed := serving
		time.AfterFunc(time.Duration(rand.IntN(1000))*time.Millisecond, func() { dead <- doomed.kill() })
		m.write(t, part)
		if round%2 == 0 {
			m.rename(t)
		}
		if err := <-dead; err != nil {
			t.Fatal(err)
		}
		m.write(t, part)
		if round%3 == 0 {
			m.rename(t)
		}
		if err := serve(interval); err != nil {
			t.Fatal(err)
		}
		if round%4 == 1 {
			m.copyTruncate(t)
		}
	}
	m.write(t, millionLines-m.written)
	eventually(t, 3*time.Minute, "everything is delivered", func() error {
		type row struct {
			Cluster, Status          string
			Behind, Dropped, Refused int
			Delivered                int
			LogType                  string
		}
		found, err := rows[audit.Row]("audit", m.id, "--user", strconv.Itoa(millionUser+m.parts))
		if err != nil || len(found) == 0 {
			return fmt.Errorf("the last part is not there: %v", err)
		}
		all, err := rows[row]("deliveries")
		if err != nil {
			return err
		}
		for _, r := range all {
			if r.Cluster == m.id && (r.Dropped != 0 || r.Refused != 0) {
				return final{fmt.Errorf("a delivery lost records: %+v", r)}
			}
			// slurmctld goes on writing: what there was is delivered.
			if r.Cluster == m.id && (r.Behind > 1000 || r.LogType == "PCS_SCHEDULER_AUDIT_LOGS" && r.Delivered < millionLines-millionLines/opsEvery || r.Delivered < millionLines/opsEvery) {
				return fmt.Errorf("%+v", r)
			}
		}
		return nil
	})
	took := time.Since(began)
	var ops, audits []int
	eventually(t, time.Minute, "the last of them can be read", func() error {
		ops, audits = m.inGroup(t), m.inBucket(t)
		if len(ops)+len(audits) < millionLines {
			return fmt.Errorf("%d + %d lines", len(ops), len(audits))
		}
		return nil
	})
	t.Logf("%d audit records in S3 and %d others in CloudWatch Logs, after %d kills: %.0f s", len(audits), len(ops), millionKills, took.Seconds())
	counts := make([]int, millionLines+1)
	for _, n := range ops {
		must(t, n%opsEvery == 0, "audit record %d is in the operational log", n)
		counts[n]++
	}
	for _, n := range audits {
		must(t, n%opsEvery != 0, "line %d is in the audit log", n)
		counts[n]++
	}
	for n, count := range counts[1:] {
		must(t, count == 1, "line %d is there %d times", n+1, count)
	}
	r := succeed(t, openpcs("audit", "verify", c.id))
	must(t, strings.Contains(r.out, "whole") && !strings.Contains(r.out, "damaged"), "%s", r)

	for _, id := range strings.Fields(aws(t, "logs", "describe-deliveries", "--query", "deliveries[].id", "--output", "text")) {
		aws(t, "logs", "delete-delivery", "--id", id)
	}
	for _, name := range []string{"million-logs", "million-audit"} {
		aws(t, "logs", "delete-delivery-source", "--name", name+"-source")
		aws(t, "logs", "delete-delivery-destination", "--name", name+"-dest")
	}
	aws(t, "s3", "rb", "--force", "s3://"+millionBox)
	aws(t, "logs", "delete-log-group", "--log-group-name", m.group)
}

var millionLine = regexp.MustCompile(` million (\d+)(\\n|\s|$)`)

// numbered adds the number of each line of ours.
func numbered(r io.Reader, to *[]int) error {
	scanner := bufio.NewScanner(r)
	scanner.Buffer(nil, 1<<20)
	for scanner.Scan() {
		if m := millionLine.FindSubmatch(scanner.Bytes()); m != nil {
			n, err := strconv.Atoi(string(m[1]))
			if err != nil {
				return err
			}
			*to = append(*to, n)
		}
	}
	return scanner.Err()
}

func (m *million) inGroup(t *testing.T) (out []int) {
	t.Helper()
	r := runFor(3*time.Minute, clientEnv, os.Getenv(awsEnv), "logs", "filter-log-events", "--log-group-name", m.group, "--filter-pattern", "million",
		"--query", "events[].[message]", "--output", "text")
	must(t, numbered(strings.NewReader(succeed(t, r).out), &out) == nil, "read the log group")
	return out
}

func (m *million) inBucket(t *testing.T) (out []int) {
	t.Helper()
	dir := t.TempDir()
	s3(t, "cp", "--recursive", "--quiet", "s3://"+millionBox+"/", dir)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }()
		gz, err := gzip.NewReader(f)
		if err != nil {
			return err
		}
		return numbered(gz, &out)
	})
	must(t, err == nil, "read the bucket: %v", err)
	return out
}

//go:build e2e

package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/openpcs/openpcs/internal/audit"
)

// TestAudit: who submitted and cancelled a job, and from where, by the audit
// records of a release that has them apart and of one that has not.
func TestAudit(t *testing.T) {
	for name, of := range map[string]func(*testing.T) *cluster{version: shared, oldVersion: old} {
		t.Run(name, func(t *testing.T) {
			c := of(t)
			began := time.Now().UTC().Format(time.RFC3339)
			job := c.submit(t, "queue-1", "hostname", "--hold", "--job-name=\"AUDIT_RPCS: x\"")
			succeed(t, c.user("scancel "+job))
			var found []audit.Row
			eventually(t, 30*time.Second, "the requests are found", func() (err error) {
				found, err = rows[audit.Row]("audit", c.id, "--user", "ubuntu", "--since", began, "--type", "REQUEST_SUBMIT_BATCH_JOB", "--type", "REQUEST_KILL_JOB")
				if err == nil && (len(found) != 2 || found[1].Job == "") {
					err = fmt.Errorf("found %+v", found)
				}
				return err
			})
			for k, kind := range []string{"REQUEST_SUBMIT_BATCH_JOB", "REQUEST_KILL_JOB"} {
				r := found[k]
				must(t, r.Type == kind && r.Job == job && r.User == "ubuntu" && r.UID == 1000 && r.Node == c.entry && r.Daemon == "slurmctld", "%s of job %s: %+v", kind, job, r)
			}
			r := succeed(t, openpcs("audit", c.id, "--since", began, "--user", "1000"))
			matches(t, "the share", r.out, `(?m)^\d+ of \d+ audit records\. In this time they are \d+ % of what the daemons logged`)
			want := map[string]string{version: "PCS_SCHEDULER_AUDIT_LOGS", oldVersion: "PCS_SCHEDULER_LOGS"}[name]
			must(t, found[0].Log == want, "they are in %s, want %s", found[0].Log, want)
			r = openpcs("audit", c.id, "--user", "nobody-of-that-name")
			must(t, r.code == 1 && strings.Contains(r.errOut, "give the uid"), "%s", r)

			// The job itself, as slurmctld reported its end.
			jobs := filepath.Join(stateDir, "journals", c.id, "PCS_JOBCOMP_LOGS", "jobcomp", "*.seg")
			eventually(t, 30*time.Second, "the completed job is kept", func() error {
				files, err := filepath.Glob(jobs)
				for _, f := range files {
					text, err := os.ReadFile(f)
					if err != nil || bytes.Contains(text, []byte(`{"job_id":"`+job+`","user":"ubuntu","user_id":"1000","group":"ubuntu","group_id":"1000","name":"AUDIT_RPCS: x","job_state":"CANCELLED"`)) {
						return err
					}
				}
				if err == nil {
					err = os.ErrNotExist
				}
				return err
			})
		})
	}
}

// TestAuditVerify: a changed record is found, and which one it is.
func TestAuditVerify(t *testing.T) {
	c := shared(t)
	misspelled := openpcs("audit", c.id, "--type", "SUBMIT")
	must(t, misspelled.code == 1 && strings.Contains(misspelled.errOut, "such as REQUEST_SUBMIT_BATCH_JOB"), "a type that no request can have finds nothing, and that is all: %s", misspelled)
	succeed(t, openpcs("audit", "verify"))
	files, err := filepath.Glob(filepath.Join(stateDir, "journals", c.id, "PCS_SCHEDULER_AUDIT_LOGS", "slurmctld", "*.seg"))
	must(t, err == nil && len(files) > 0, "%v %v", files, err)
	f, err := os.OpenFile(files[0], os.O_RDWR, 0)
	must(t, err == nil, "%v", err)
	defer func() { _ = f.Close() }()
	head := make([]byte, 4096)
	_, err = f.ReadAt(head, 0)
	at := bytes.Index(head, []byte(" uid="))
	must(t, err == nil && at > 0, "there is no record: %v", err)
	put := func(c byte) {
		_, err := f.WriteAt([]byte{c}, int64(at+len(" uid=")))
		must(t, err == nil, "%v", err)
	}
	was := head[at+len(" uid=")]
	put('7')
	r, lacking := openpcs("audit", "verify", c.id), openpcs("audit", c.id)
	put(was)
	must(t, lacking.code == 1 && strings.Contains(lacking.errOut, "the answer lacks them"), "an answer that lacks records does not say so: %s", lacking)
	must(t, r.code == 1 && strings.Contains(r.out, filepath.Base(files[0])+", record 1: the record was changed"), "%s", r)
	succeed(t, openpcs("audit", "verify", c.id))
}

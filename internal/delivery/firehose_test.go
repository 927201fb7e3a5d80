package delivery

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/openpcs/openpcs/internal/journal"
	"github.com/openpcs/openpcs/internal/logs"
)

// What Firehose does not say it took is not delivered: of answers that name those
// that failed the rest is, and of others nothing.
func TestFirehoseTakesAPart(t *testing.T) {
	const three = `{"RequestResponses":[{"RecordId":"1"},{"ErrorCode":"ServiceUnavailableException","ErrorMessage":"Slow down."},{"RecordId":"3"}],"FailedPutCount":1}`
	for answer, left := range map[string]int{
		three:                  1,
		`{"FailedPutCount":2}`: 3,
		`{"RequestResponses":[{"RecordId":"1"},{"RecordId":"2"},{"RecordId":"3"}],"FailedPutCount":2}`: 3,
		`{"RequestResponses":[{"RecordId":"1"},{"ErrorCode":"InternalFailure"}],"FailedPutCount":1}`:   3,
		`{"RequestResponses":[{"RecordId":"1"},{"RecordId":"2"},{"RecordId":"3"}],"FailedPutCount":0}`: 0,
		`{"RequestResponses":[{"RecordId":"1"},{"RecordId":"2"},{"RecordId":"3"}],"Encrypted":false}`:  0,
	} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, answer) }))
		file := filepath.Join(t.TempDir(), "keys")
		if err := os.WriteFile(file, []byte("[default]\naws_access_key_id = AKIA\naws_secret_access_key = secret\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		e, err := NewEndpoint(s.URL, file)
		if err != nil {
			t.Fatal(err)
		}
		l := Link{ID: "D1", Region: testRegion, Cluster: testCluster, LogType: logs.SchedulerLogs, Kind: logs.ToFirehose, Target: "hose", Format: JSON}
		c := &records{link: l, enc: newEncoder(l, "slurmctld"), endpoint: e}
		for range 3 {
			if err := c.add(journal.Entry{Text: []byte("line\n")}); err != nil {
				t.Fatal(err)
			}
		}
		err = c.send(t.Context(), false)
		s.Close()
		var f *failure
		if failed := errors.As(err, &f); failed != (left > 0) || (failed && len(c.list) != left) {
			t.Errorf("%s: %v, and %d records are left, want %d", answer, err, len(c.list), left)
		}
	}
}

package collect

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// A controller is a machine of users: what it answers is bounded.
func TestAnswerWithoutEnd(t *testing.T) {
	sent := 0
	name := []byte(`{"name":"` + strings.Repeat("x", 1<<20) + `"},`)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "[")
		for ; sent < 10*maxAnswer; sent += len(name) {
			if _, err := w.Write(name); err != nil {
				return
			}
		}
	}))
	a := &controllerAgent{base: s.URL, http: s.Client()}
	if _, err := a.Files(t.Context(), "slurmctld.log"); err == nil {
		t.Error("an answer without an end is taken")
	}
	s.Close() // waits for the answer, so that sent is read after it
	if sent >= 5*maxAnswer {
		t.Errorf("%d bytes of an answer were taken", sent)
	}
}

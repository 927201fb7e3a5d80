package app_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/openpcs/openpcs/internal/app"
)

// Metrics that are for this machine are not given by another name, as a web page
// in a browser of this machine would ask for them.
func TestMetricsOfThisMachine(t *testing.T) {
	metrics := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("x 1\n")) })
	for _, tt := range []struct {
		address, url string
		want         int
	}{
		{"127.0.0.1:7302", "http://127.0.0.1:7302/metrics", 200},
		{"127.0.0.1:7302", "http://localhost:7302/metrics", 200},
		{"127.0.0.1:7302", "http://127.0.0.1/metrics", 200},
		{"[::1]:7302", "http://[::1]:7302/metrics", 200},
		{"127.0.0.1:7302", "http://evil.example:7302/metrics", 403},
		{"127.0.0.1:7302", "http://evil.example/metrics", 403},
		{"127.0.0.1:7302", "http://127.0.0.1:7302/", 404},
		{"10.0.0.5:7302", "http://monitored.example:7302/metrics", 200},
		{"0.0.0.0:7302", "http://monitored.example:7302/metrics", 200},
	} {
		w := httptest.NewRecorder()
		app.MetricsHandler(tt.address, metrics).ServeHTTP(w, httptest.NewRequest(http.MethodGet, tt.url, nil))
		if w.Code != tt.want {
			t.Errorf("at %s, %s is answered with %d, want %d", tt.address, tt.url, w.Code, tt.want)
		}
	}
}

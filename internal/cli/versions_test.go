package cli

import (
	"reflect"
	"testing"
	"time"

	"github.com/openpcs/openpcs/internal/image"
)

// TestVersionRows: the article's table of 2026-06, and what this machine adds.
func TestVersionRows(t *testing.T) {
	june := time.Date(2026, 6, 2, 0, 0, 0, 0, time.UTC)
	rows := versionRows(image.Catalogue(), []image.Built{{Version: "24.11"}, {Version: "generic"}}, june)
	want := []versionRow{
		{"26.05", "26.05", "supported", "2026-05-26", "2026-09-10", "2027-11-30", "buildable", "forky"},
		{"25.11", "25.11", "supported", "2025-11-06", "2026-04-09", "2027-05-31", "none", ""},
		{"25.05", "25.05", "supported", "2025-05-29", "2025-10-16", "2026-11-30", "none", ""},
		{"24.11", "24.11", "end-of-life", "2024-11-29", "2025-05-14", "2026-05-31", "built", "trixie"},
	}
	if !reflect.DeepEqual(rows, want) {
		t.Errorf("got  %+v\nwant %+v", rows, want)
	}
	for _, r := range versionRows(image.Catalogue(), nil, time.Date(2026, 5, 31, 12, 0, 0, 0, time.UTC)) {
		if r.Status != "supported" {
			t.Errorf("%s is %s on the last day of 24.11", r.Name, r.Status)
		}
	}
}

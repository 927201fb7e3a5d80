package control

import (
	"testing"
	"time"
)

func TestClockSet(t *testing.T) {
	for _, tt := range []struct {
		wall, monotonic time.Duration
		want            bool
	}{
		{10 * time.Second, 10 * time.Second, false},
		{10*time.Second + 300*time.Millisecond, 10 * time.Second, false}, // a clock that is steered
		{time.Hour, 10 * time.Second, true},
		{-time.Hour, 10 * time.Second, true},
	} {
		if got := clockSet(tt.wall, tt.monotonic); got != tt.want {
			t.Errorf("clockSet(%v, %v) = %v", tt.wall, tt.monotonic, got)
		}
	}
}

package agent

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// The kernel's table has ports in hexadecimal: 1AA3 is 6819.
func TestHasListener(t *testing.T) {
	const head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
	for name, tc := range map[string]struct {
		table string
		want  bool
	}{
		"listens":         {head + "   0: 00000000:1AA3 00000000:0000 0A 00000000:00000000 00:00000000 00000000 64030 0 1 1\n", true},
		"listens by IPv6": {head + "   0: 00000000000000000000000000000000:1AA3 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 1\n", true},
		"connected":       {head + "   0: 0410000A:1AA3 0410000A:D2C4 01 00000000:00000000 00:00000000 00000000 64030 0 1 1\n", false},
		"another port":    {head + "   0: 00000000:1AA1 00000000:1AA3 0A 00000000:00000000 00:00000000 00000000 64030 0 1 1\n", false},
		"nothing":         {head, false},
	} {
		if got := hasListener(tc.table, 6819); got != tc.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	if !listening(port) {
		t.Error("a port that is listened at was not found")
	}
	_ = l.Close()
	if listening(port) {
		t.Error("a port that nobody listens at was found")
	}
}

// What a daemon says last is told without its times, and not at length.
func TestLastErrors(t *testing.T) {
	log := filepath.Join(t.TempDir(), "slurmdbd.log")
	text := "[2026-11-30T19:30:59.9+00:00] error: of another time\n[2026-11-30T19:30:59.9] fatal: of another time, without a zone\n" +
		"[2026-11-30T19:31:00.4+00:00] error: first\n[2026-11-30T19:31:00.4+00:00] slurmdbd version 26.05.5 started\n" +
		strings.Repeat("[2026-11-30T19:31:00.5] error: again\n", 2) + "[2026-11-30T19:31:00.6+00:00] fatal: last\n[2026-11-30T19:31:00.7+00:00] debug: bye\n"
	if err := os.WriteFile(log, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	since := time.Date(2026, 11, 30, 20, 31, 0, 999e6, time.FixedZone("", 3600))
	if got, want := lastErrors(log, since), "error: again | error: again | fatal: last"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if got := lastErrors(log, since.Add(time.Second)); got != "" {
		t.Errorf("of a time when nothing was said: %q", got)
	}
	if got := lastErrors(filepath.Join(t.TempDir(), "none"), since); got != "" {
		t.Errorf("without a log: %q", got)
	}
}

// Why a daemon ends is told, though systemd says much else in between.
func TestReasons(t *testing.T) {
	const journal = "Started slurmrestd.service - Slurm REST daemon.\n" +
		"slurmrestd.service: Failed at step EXEC spawning /usr/sbin/slurmrestd: No such file or directory\n" +
		"slurmrestd.service: Main process exited, code=exited, status=203/EXEC\n" +
		"slurmrestd.service: Failed to read pids.max for control group /system.slice/slurmrestd.service, ignoring: No data available\n" +
		"slurmrestd.service: Failed with result 'exit-code'.\n" +
		"slurmrestd.service: Scheduled restart job, restart counter is at 4.\n" +
		"Started slurmrestd.service - Slurm REST daemon.\nStopping slurmrestd.service - Slurm REST daemon...\n"
	if got := reasons(journal); !strings.Contains(got, "No such file or directory | ") || strings.Contains(got, "pids") || strings.Contains(got, "Start") {
		t.Error(got)
	}
	if got := reasons("\n"); got != "" {
		t.Errorf("of nothing: %q", got)
	}
}

//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"
)

// pollPause is between two looks at something outside of this process.
const pollPause = 150 * time.Millisecond

// patience is longer than whatever answers at once takes on a busy machine,
// and shorter than what blocked commands of Slurm wait for (MessageTimeout is
// 30 s). How long things take is measured elsewhere, and only logged here.
const patience = 20 * time.Second

// final marks an error that waiting will not cure.
type final struct{ error }

// poll calls f until it returns nil; its last error says what was missing.
func poll(limit time.Duration, f func() error) error { return pollEvery(pollPause, limit, f) }

func pollEvery(pause, limit time.Duration, f func() error) error {
	deadline := time.Now().Add(limit)
	for {
		err := f()
		var end final
		switch {
		case err == nil:
			return nil
		case errors.As(err, &end):
			return end.error
		case time.Now().After(deadline):
			return fmt.Errorf("not within %s: %w", limit, err)
		}
		time.Sleep(pause)
	}
}

// eventually waits for f to return nil and returns how long that took.
func eventually(t *testing.T, limit time.Duration, what string, f func() error) time.Duration {
	t.Helper()
	began := time.Now()
	if err := poll(limit, f); err != nil {
		fail(t, "%s: %v", what, err)
	}
	return time.Since(began)
}

// fail ends the test and shows what openpcs and Slurm say of the matter.
func fail(t *testing.T, format string, args ...any) {
	t.Helper()
	t.Errorf(format, args...)
	diagnose(t)
	t.FailNow()
}

// must fails the test unless ok.
func must(t *testing.T, ok bool, format string, args ...any) {
	t.Helper()
	if !ok {
		fail(t, format, args...)
	}
}

// succeed fails the test unless the command ended with exit code 0.
func succeed(t *testing.T, r result) result {
	t.Helper()
	must(t, r.code == 0, "%s", r)
	return r
}

// matches fails the test unless text matches a pattern.
func matches(t *testing.T, what, text, pattern string) {
	t.Helper()
	must(t, regexp.MustCompile(pattern).MatchString(text), "%s does not match %s:\n%s", what, pattern, clip(text))
}

// contains is an error unless a command succeeded and printed each text.
func contains(r result, texts ...string) error {
	for _, text := range texts {
		if r.code != 0 || !strings.Contains(r.out, text) {
			return fmt.Errorf("%q is missing: %s", text, r)
		}
	}
	return nil
}

// diagnose shows the state of the site: what a person would look at.
func diagnose(t *testing.T) {
	t.Helper()
	var text strings.Builder
	show := func(title string, r result) {
		fmt.Fprintf(&text, "--- %s\n%s\n", title, clip(r.out+r.errOut))
	}
	show("openpcs nodes", openpcs("nodes"))
	show("openpcs instances", openpcs("instances"))
	nodes, _ := rows[nodeRow]("nodes")
	for _, n := range nodes {
		if n.Instance == "" && n.Reason == "" && n.Status == "IDLE+CLOUD+POWERED_DOWN" {
			continue
		}
		r := openpcs("explain", n.ID)
		all := strings.Split(strings.TrimSpace(r.out), "\n")
		r.out = strings.Join(append(all[:min(4, len(all))], all[max(min(4, len(all)), len(all)-15):]...), "\n")
		show("openpcs explain "+n.ID, r)
		if n.Instance != "" && n.Status != "IDLE+CLOUD" {
			show("bootstrap.log of "+n.ID, openpcs("connect", n.ID, "--", "tail", "-n", "15", "/var/log/amazon/pcs/bootstrap.log"))
		}
	}
	clusters, _ := rows[clusterRow]("clusters")
	for _, c := range clusters {
		show("cluster "+c.Name, openpcs("connect", c.ID, "--", "sh", "-c",
			"date +%FT%T.%3N; squeue --all; sinfo --all; grep -v AUDIT_RPCS /var/log/slurm/slurmctld.log | tail -n 25; journalctl --unit openpcs-controller --lines 10 --output short-precise --no-pager"))
	}
	fmt.Fprintf(&text, "--- serve.log\n%s\n", clip(tail(serveLog(), 25)))
	t.Log(text.String())
}

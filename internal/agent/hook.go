package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/openpcs/openpcs/internal/imds"
)

// Gate is a job that waits for its nodes.
type Gate struct {
	Job   string `json:"job"`
	Nodes string `json:"nodes"`
}

// hookLimit bounds every hook but the gate: slurmctld waits for some of them.
const hookLimit = 5 * time.Second

// The kinds of hooks that say that a daemon ended unexpectedly.
const (
	ended     = "slurmctld-ended"
	dbdEnded  = "slurmdbd-ended"
	restEnded = "slurmrestd-ended"
)

// endedLimits bound them: the daemon is started again when they returned.
// Nobody waits for the others as jobs do for slurmctld.
var endedLimits = map[string]time.Duration{ended: 200 * time.Millisecond, dbdEnded: 2 * time.Second, restEnded: 2 * time.Second}

// The kinds of notices on the room that slurmdbd's database has.
const (
	dbdFull = "slurmdbd-disk-full"
	dbdRoom = "slurmdbd-disk-free"
)

// Hook is what slurmctld's programs run: it hands the call to the
// controller's agent and returns at once (the gate: when the job's nodes
// are ready). The exit code is the program's.
func Hook(args []string) int {
	if len(args) == 0 {
		fmt.Fprintln(os.Stderr, "usage: openpcs hook resume|suspend|resume-fail|gate [NODES]")
		return 2
	}
	var err error
	switch kind := args[0]; kind {
	case "gate":
		err = callAgent(context.Background(), "/gate", Gate{Job: os.Getenv("SLURM_JOB_ID"), Nodes: os.Getenv("SLURM_JOB_NODELIST")})
	case "resume", "suspend", "resume-fail":
		h := imds.Hook{Kind: kind}
		// slurmctld removes the file after some seconds: read it first.
		if path := os.Getenv("SLURM_RESUME_FILE"); path != "" {
			if text, err := os.ReadFile(path); err == nil {
				h.ResumeFile = string(text)
			}
		}
		if len(args) > 1 {
			h.Nodes = args[1]
		}
		ctx, cancel := context.WithTimeout(context.Background(), hookLimit)
		defer cancel()
		err = callAgent(ctx, "/hook", h)
	case ended, dbdEnded, restEnded:
		// The unit runs this whenever the daemon ends, on purpose too.
		if os.Getenv("SERVICE_RESULT") == "success" {
			return 0
		}
		ctx, cancel := context.WithTimeout(context.Background(), endedLimits[kind])
		defer cancel()
		how := strings.TrimSpace(os.Getenv("EXIT_CODE") + " " + os.Getenv("EXIT_STATUS"))
		err = callAgent(ctx, "/hook", imds.Hook{Kind: kind, Detail: how})
	default:
		err = fmt.Errorf("unknown hook %q", kind)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "openpcs hook:", err)
		return 1
	}
	return 0
}

func callAgent(ctx context.Context, path string, in any) error {
	doc, err := json.Marshal(in)
	if err != nil {
		return err
	}
	client := http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			var d net.Dialer
			return d.DialContext(ctx, "unix", hookSocket)
		},
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://agent"+path, bytes.NewReader(doc))
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 4096))
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", resp.Status, strings.TrimSpace(string(text)))
	}
	return nil
}

package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/openpcs/openpcs/internal/awsapi"
	"github.com/openpcs/openpcs/internal/condition"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/imds"
	"github.com/openpcs/openpcs/internal/lifecycle"
)

// Where lifecycle scripts and what they say are, as on PCS.
const (
	lifecycleConfig = "/etc/amazon/pcs/lifecycle/actions/config"
	lifecycleLogs   = "/var/log/amazon/pcs/lifecycle/actions"
)

// readyLimit is how long a script of the stage nodeReady may take. The node is
// up, so that nothing waits for it; but one that hangs must not do so unseen.
const readyLimit = 30 * time.Minute

// openScripts takes up the instance's lifecycle actions, those of the
// registration at its first boot, and fetches all scripts of this boot.
func (n *node) openScripts(ctx context.Context, meta *session) error {
	boot, err := bootID()
	if err != nil {
		return fmt.Errorf("name this boot: %w", err)
	}
	d := lifecycle.Downloader{S3: n.objectRequest(meta)}
	n.scripts = &lifecycle.Executor{
		ConfigDir: lifecycleConfig, LogDir: lifecycleLogs, Instance: n.boot.InstanceID, Boot: boot,
		Node: lifecycle.Node{
			ClusterID: n.boot.ClusterID, ClusterName: n.reply.ClusterName, NodeID: n.reply.NodeID,
			GroupID: n.reply.ComputeNodeGroupID, GroupName: n.reply.ComputeNodeGroupName,
		},
		Fetch: d.Get,
		Ended: n.scriptEnded,
	}
	if err := n.scripts.Open(n.reply.NodeLifecycleActions); err != nil {
		return err
	}
	if !n.scripts.Has() {
		return nil
	}
	defer n.mark("downloads")
	return n.scripts.Download(ctx)
}

// bootID names this boot: /run is empty after one. The kernel's own id is the
// host's.
func bootID() (string, error) {
	path := filepath.Join(filepath.Dir(bootedMark), "boot-id")
	id, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		id = fmt.Append(nil, time.Now().UnixNano())
		err = writeFile(path, id, 0o644)
	}
	return string(id), err
}

// objectRequest signs requests for objects with the role's credentials. The
// S3 is where the API is, by path.
func (n *node) objectRequest(meta *session) func(ctx context.Context, bucket, key, version string) (*http.Request, error) {
	return func(ctx context.Context, bucket, key, version string) (*http.Request, error) {
		creds, err := meta.credentials(ctx)
		if err != nil {
			return nil, fmt.Errorf("read the role's credentials: %w", err)
		}
		at, err := url.Parse(n.boot.Endpoint)
		if err != nil {
			return nil, err
		}
		at.Path = "/" + bucket + "/" + key
		if version != "" {
			at.RawQuery = url.Values{"versionId": {version}}.Encode()
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
		if err != nil {
			return nil, err
		}
		awsapi.Sign(req, nil, creds, n.boot.Region, "s3", time.Now())
		return req, nil
	}
}

// scriptEnded tells the control plane of a script.
func (n *node) scriptEnded(ctx context.Context, o fleet.ScriptOutcome) {
	n.tell(ctx, imds.Report{Stage: "script", Scripts: []fleet.ScriptOutcome{o}})
}

// outcomes is what came of all scripts so far.
func (n *node) outcomes() []fleet.ScriptOutcome {
	if n.scripts == nil {
		return nil
	}
	all := n.scripts.Outcomes()
	for k := range all {
		if all[k].Failure == "" {
			all[k].Output = ""
		}
	}
	return all
}

// runScripts runs the scripts of a stage that are due at this boot.
func (n *node) runScripts(ctx context.Context, stage string) error {
	if !n.scripts.Runs(stage) {
		return nil
	}
	limit := bootLimit
	if stage == fleet.NodeReady {
		limit = readyLimit
	}
	r, err := n.scripts.Run(ctx, stage, limit)
	if err != nil {
		return err
	}
	n.mark(stage)
	level := map[lifecycle.End]string{lifecycle.Completed: "INFO", lifecycle.Stopped: "WARN", lifecycle.Terminated: "ERROR"}[r.End]
	n.log.line("pcs_bootstrap_finalize.sh", level, "Lifecycle execute completed with exit %d for stage %s", r.End.ExitCode(), stage)
	if r.End != lifecycle.Terminated {
		return nil
	}
	code := condition.LifecycleScriptFailed
	switch {
	case r.Hung:
		code = condition.LifecycleScriptHung
	case r.Failed.ExitCode == fleet.NotRun:
		code = condition.LifecycleDownload
	}
	return &bootFailure{code: code, err: errors.New(r.Failed.Sentence()), joined: stage == fleet.NodeReady}
}

// ready runs what comes when slurmd has registered, and shows in Slurm what
// failed before. The boot's limit holds until the registration only.
func (n *node) ready(ctx, life context.Context) error {
	if !n.scripts.Has() {
		return nil
	}
	if n.scripts.Runs(fleet.NodeReady) || n.shows() != lifecycle.Summary(n.scripts.Outcomes()) {
		if err := n.registered(ctx); err != nil {
			return &bootFailure{code: condition.SlurmdFailed, err: fmt.Errorf("wait for slurmd to register: %w", err)}
		}
		n.mark("joined")
		failed := n.runScripts(life, fleet.NodeReady)
		n.showTrouble(life)
		if failed != nil {
			return failed
		}
	}
	if err := n.scripts.Complete(); err != nil {
		return err
	}
	n.tell(life, imds.Report{Stage: "bootstrapped", Timings: maps.Clone(n.times), Scripts: n.outcomes()})
	return nil
}

// registered returns when slurmctld has the node as one that answers.
func (n *node) registered(ctx context.Context) error {
	last := errors.New("slurmctld was not asked yet")
	for {
		nodes, err := showNodes(ctx, n.reply.NodeID)
		if err == nil {
			node := nodes[n.reply.NodeID]
			if len(node.State) > 0 && !node.HasAny("UNKNOWN", "NOT_RESPONDING", "POWERING_UP", "POWERED_DOWN", "REBOOT_ISSUED") {
				return nil
			}
			err = fmt.Errorf("slurmctld has the node as %s", strings.Join(node.State, "+"))
		}
		if ctx.Err() == nil {
			last = err
		}
		if pause(ctx, 100*time.Millisecond) != nil {
			return last
		}
	}
}

// shownMark has what this instance put into Extra.
var shownMark = filepath.Join(stateDir, "extra")

func (n *node) shows() string {
	text, _ := os.ReadFile(shownMark)
	return string(text)
}

// showTrouble puts what failed into the node's Extra in Slurm, where
// `scontrol show node` has it, or takes it out. That it cannot be shown there
// is no failure: the control plane knows. It is the control plane that empties
// Extra when the instance ends.
func (n *node) showTrouble(ctx context.Context) {
	text := lifecycle.Summary(n.scripts.Outcomes())
	if text == n.shows() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	err := retry(ctx, func() error {
		out, err := exec.CommandContext(ctx, "scontrol", "update", "NodeName="+n.reply.NodeID, "Extra="+text).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("%w: %s", err, strings.TrimSpace(string(out)))
		}
		return err
	})
	if err == nil {
		err = writeFile(shownMark, []byte(text), 0o600)
	}
	if err != nil {
		n.log.line("pcs_bootstrap_finalize.sh", "WARN", "Slurm's Extra of the node does not show what failed: %v", err)
	}
}

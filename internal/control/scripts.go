package control

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"time"

	"github.com/openpcs/openpcs/internal/condition"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/imds"
	"github.com/openpcs/openpcs/internal/store"
)

// maxTold is how many events the reports of one instance may make, a few at each
// boot and one for each script: any process there can report.
const maxTold = 10_000

// tell records what an instance reports, as far as there may be more of it.
func tell(tx *store.Tx, i *fleet.Instance, now time.Time, kind string, detail map[string]any) error {
	if i.Told >= maxTold {
		return nil
	}
	i.Told++
	detail["instance"] = i.ID
	return errors.Join(event(tx, now, i.ClusterID, "node/"+i.NodeName, kind, detail), fleet.Instances.Put(tx, *i))
}

// scriptsEnded records what came of an instance's lifecycle scripts, as far as
// it is not known.
func scriptsEnded(tx *store.Tx, i fleet.Instance, outcomes []fleet.ScriptOutcome, now time.Time) (fleet.Instance, error) {
	told := false
	for _, o := range outcomes {
		if !i.Ended(o) {
			continue
		}
		told = true
		detail := map[string]any{
			"stage": o.Stage, "script": o.Name, "exitCode": o.ExitCode, "onError": o.OnError,
			"attempt": o.Attempt, "seconds": o.Seconds, "output": o.Output, "log": o.Log,
		}
		if o.Failure != "" {
			detail["failure"] = o.Why()
			if o.OnError != fleet.OnErrorTerminate {
				detail["code"] = condition.LifecycleActionFailed
			}
		}
		if err := tell(tx, &i, now, "script", detail); err != nil {
			return i, err
		}
	}
	if !told {
		return i, nil
	}
	return i, fleet.Instances.Put(tx, i)
}

// bootstrapped records that an instance went through all stages, which ends the
// failures in a row of its node and its group.
func bootstrapped(tx *store.Tx, i fleet.Instance, r imds.Report, now time.Time) error {
	n, err := fleet.Nodes.Get(tx, fleet.NodeID(i.ClusterID, i.NodeName))
	if err != nil {
		return ignoreMissing(err)
	}
	g, err := fleet.Groups.Get(tx, i.GroupID)
	if err != nil {
		return ignoreMissing(err)
	}
	// One that failed before a reboot is replaced all the same.
	if i.State == fleet.Running && i.Failure == "" {
		n.Attempts, n.NotBefore = 0, time.Time{}
		if err := errors.Join(fleet.Nodes.Put(tx, n), succeeded(tx, &g, i, now)); err != nil {
			return err
		}
	}
	return tell(tx, &i, now, "bootstrapped", map[string]any{"agentMs": r.Timings})
}

// failedReady records that a script of the stage nodeReady failed that must
// not. The planner has Slurm end the node's jobs first. Only this may come of
// an instance that is up: any process there can report.
func failedReady(tx *store.Tx, i fleet.Instance, r imds.Report, now time.Time) error {
	codes := []condition.Code{condition.LifecycleScriptFailed, condition.LifecycleScriptHung, condition.LifecycleDownload}
	if i.State != fleet.Running || i.Failure != "" || !slices.Contains(codes, r.Code) {
		return nil
	}
	g, err := fleet.Groups.Get(tx, i.GroupID)
	if err != nil {
		return ignoreMissing(err)
	}
	// A group that has no such scripts any more is being replaced anyway.
	if len(g.Lifecycle.Scripts(fleet.NodeReady)) == 0 {
		return nil
	}
	i.Failure, i.FailureCode = r.Message, r.Code
	return errors.Join(fleet.Instances.Put(tx, i), event(tx, now, i.ClusterID, "node/"+i.NodeName, "bootstrap-failed",
		map[string]any{"instance": i.ID, "code": r.Code, "message": r.Message, "log": r.Log, "joined": true}))
}

// clearExtra empties the Extra of a node in Slurm whose instance has put there
// that scripts failed: Slurm keeps it over instances. It is done as well as it
// can be; the next update of the node's Extra is right again. An instance whose
// slurmd was never started has put nothing there, and its node is left alone:
// Slurm drops the reason of a node that is neither down nor drained with any
// update of it, and that reason is what its users are to see while it rests.
func (c *Control) clearExtra(ctx context.Context, i fleet.Instance) {
	if i.ReleasedAt.IsZero() || !slices.ContainsFunc(i.Scripts, func(o fleet.ScriptOutcome) bool { return o.Failure != "" }) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	var cl fleet.Cluster
	err := c.Store.View(ctx, func(tx *store.Tx) (err error) {
		cl, err = fleet.Clusters.Get(tx, i.ClusterID)
		return err
	})
	if err == nil {
		err = scontrol(ctx, c.Slurmctld(cl), "update", "NodeName="+i.NodeName, "Extra=")
	}
	if err != nil {
		c.Log.Info("Slurm still shows what failed on an instance that is gone", "cluster", i.ClusterID, "node", i.NodeName, "err", err)
	}
}

// lifecycleLogs are the logs of the scripts that ran on an instance, those first
// that failed.
func lifecycleLogs(i fleet.Instance) (out []logFile) {
	const dir = "/var/log/amazon/pcs/lifecycle/actions"
	var fine []logFile
	for _, o := range i.Scripts {
		f := logFile{o.Stage + "-" + o.Name + ".log", filepath.Join(dir, o.Stage, o.Name+".log")}
		if o.Failure != "" {
			out = append(out, f)
		} else {
			fine = append(fine, f)
		}
	}
	if len(i.Scripts) > 0 {
		out = append(out, logFile{"executor.log", dir + "/executor.log"})
	}
	return append(out, fine...)
}

// Package lifecycle runs the lifecycle scripts of a compute node group on one
// of its instances: it keeps the configuration for the instance's life,
// downloads the scripts, runs those of a stage and writes down what came of
// them, in the files and forms of PCS's agent. It knows nothing of the
// metadata service and of the API: how to fetch a script and whom to tell is
// given to it. docs/lifecycle.md has the rules.
package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/openpcs/openpcs/internal/fleet"
)

// Node is what scripts are told of where they run.
type Node struct {
	ClusterID, ClusterName, GroupID, GroupName, NodeID string
}

// Executor runs the scripts of one boot.
type Executor struct {
	ConfigDir string // of the kept configuration and the scripts, for root alone
	LogDir    string // of executor.log and the stages' folders
	Instance  string // what is kept of another instance is thrown away
	Boot      string // id of this boot
	Node      Node
	// Fetch returns a script's content.
	Fetch func(ctx context.Context, src fleet.ScriptSource) ([]byte, error)
	// Ended is told of each outcome as soon as it is on disk.
	Ended func(ctx context.Context, o fleet.ScriptOutcome)

	record  record
	actions *fleet.LifecycleActions
	fetched map[string]error // by stage/name: whether it is in the cache
}

// End says how a stage ended.
type End int

// The ends of a stage.
const (
	Completed  End = iota // all its scripts ran, or failed and were to be passed over
	Stopped               // a script with STOP_SEQUENCE failed
	Terminated            // a script with TERMINATE failed, or the time was over
)

// ExitCode is the end as PCS's agent puts it into bootstrap.log.
func (e End) ExitCode() int {
	switch e {
	case Stopped:
		return 3
	case Terminated:
		return 1
	}
	return 0
}

// Result is what came of a stage.
type Result struct {
	End    End
	Failed fleet.ScriptOutcome // that ended it, unless it is Completed
	Hung   bool                // it was killed as the boot's time was over
}

// Open takes up what is kept of the instance, or keeps the given actions if
// nothing is: the configuration of an instance never changes. Nil actions are
// kept as well. Then it counts the boot, unless it is counted already.
func (x *Executor) Open(given *fleet.LifecycleActions) error {
	x.fetched = map[string]error{}
	kept, err := readConfig(x.ConfigDir)
	if err == nil && kept.Instance != x.Instance {
		if err = os.RemoveAll(x.ConfigDir); err != nil {
			return fmt.Errorf("remove the scripts of another instance: %w", err)
		}
		err = os.ErrNotExist
	}
	if errors.Is(err, os.ErrNotExist) {
		kept = config{Instance: x.Instance, Actions: given}
		err = kept.write(x.ConfigDir)
	}
	if err != nil {
		return fmt.Errorf("keep the lifecycle configuration: %w", err)
	}
	if x.actions, err = kept.checked(); err != nil {
		return err
	}
	if x.record, err = readRecord(x.ConfigDir); err != nil {
		return fmt.Errorf("read what became of the lifecycle scripts: %w", err)
	}
	if x.record.Boot == x.Boot || x.actions == nil {
		x.endLeftover()
		return nil
	}
	x.record.Process, x.record.Began = 0, ""
	x.record.Boot = x.Boot
	x.record.Attempt++
	return x.keep()
}

func (x *Executor) keep() error {
	if err := x.record.write(x.ConfigDir); err != nil {
		return fmt.Errorf("keep what became of the lifecycle scripts: %w", err)
	}
	return nil
}

// Outcomes returns what came of each script at its last run.
func (x *Executor) Outcomes() []fleet.ScriptOutcome { return slices.Clone(x.record.Outcomes) }

// Has reports whether there are scripts at all.
func (x *Executor) Has() bool { return x.actions != nil }

// Runs reports whether scripts of a stage run at this boot.
func (x *Executor) Runs(stage string) bool {
	return slices.ContainsFunc(x.actions.Scripts(stage), func(s fleet.LifecycleScript) bool { return x.due(stage, s) })
}

// due reports whether a script runs at this boot. The first boot lasts until
// one has gone through all stages; a script that has ended before that is not
// run again for it, unless it is for every boot.
func (x *Executor) due(stage string, s fleet.LifecycleScript) bool {
	if s.ExecutionPolicy == fleet.EveryBoot {
		return true
	}
	old, ran := x.record.find(stage, s.Name)
	return !x.record.Complete && (!ran || old.Attempt == x.record.Attempt)
}

// Complete ends the first boot: all stages were gone through.
func (x *Executor) Complete() error {
	if x.record.Complete || x.actions == nil {
		return nil
	}
	x.record.Complete = true
	return x.keep()
}

// parallel is how many scripts are downloaded at a time.
const parallel = 5

// Download fetches all scripts of both stages that will run. One that cannot be
// fetched fails when its turn comes.
func (x *Executor) Download(ctx context.Context) error {
	type one struct {
		stage  string
		script fleet.LifecycleScript
	}
	var all []one
	for _, stage := range []string{fleet.NodeBootstrapped, fleet.NodeReady} {
		for _, s := range x.actions.Scripts(stage) {
			if x.due(stage, s) {
				all = append(all, one{stage, s})
			}
		}
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	slots := make(chan struct{}, parallel)
	for _, o := range all {
		if x.cached(o.stage, o.script) {
			mu.Lock()
			errs = append(errs, x.log(Entry{Level: "INFO", Message: "Reusing cached script (CACHE_ONCE)", Script: o.script.Name, Stage: o.stage}))
			mu.Unlock()
			continue
		}
		wg.Go(func() {
			slots <- struct{}{}
			body, err := x.Fetch(ctx, o.script.Source)
			<-slots
			mu.Lock()
			defer mu.Unlock()
			e := Entry{Level: "INFO", Message: "script downloaded", Script: o.script.Name, Stage: o.stage, Bytes: len(body)}
			if err != nil {
				x.fetched[o.stage+"/"+o.script.Name] = err
				e = Entry{Level: "ERROR", Message: "script download failed", Script: o.script.Name, Stage: o.stage, Error: err.Error()}
			} else if err := writeFile(x.cache(o.stage, o.script.Name), body, 0o700); err != nil {
				errs = append(errs, fmt.Errorf("keep the script %q: %w", o.script.Name, err))
			}
			errs = append(errs, x.log(e))
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// cache is where a script is kept.
func (x *Executor) cache(stage, name string) string {
	return filepath.Join(x.ConfigDir, "scripts", stage, name)
}

// cached reports whether a script is not to be fetched: it is there, and the
// group does not want it anew at each boot. One that the agent fetched at this
// boot, before it was started again, is not told apart from an older one.
func (x *Executor) cached(stage string, s fleet.LifecycleScript) bool {
	if x.actions.CachingPolicy == fleet.RefreshOnReboot {
		return false
	}
	_, err := os.Stat(x.cache(stage, s.Name))
	return err == nil
}

// Run runs the scripts of a stage, in their order. Each may take limit, and all
// of them what ctx leaves; when ctx is over the script is killed and the stage
// is Terminated, whatever the script's onError. An error is one of the
// executor's own, such as a full disk.
func (x *Executor) Run(ctx context.Context, stage string, limit time.Duration) (Result, error) {
	for _, s := range x.actions.Scripts(stage) {
		if !x.due(stage, s) {
			continue
		}
		o, ran := x.record.find(stage, s.Name)
		if !ran || o.Attempt != x.record.Attempt { // else it ended before the agent was started again
			var err error
			if o, err = x.script(ctx, stage, s, limit); err != nil {
				return Result{}, fmt.Errorf("run the script %q of the stage %s: %w", s.Name, stage, err)
			}
		}
		switch {
		case o.Failure == "":
		case o.OnError == fleet.OnErrorTerminate:
			return Result{End: Terminated, Failed: o, Hung: ctx.Err() != nil && o.ExitCode != fleet.NotRun}, nil
		case o.OnError == fleet.OnErrorStop:
			return Result{End: Stopped, Failed: o}, nil
		}
	}
	return Result{}, nil
}

// words of executor.log for what a failure leads to.
var (
	onErrorWords = map[string]string{
		fleet.OnErrorTerminate: "Terminate", fleet.OnErrorStop: "StopSequence", fleet.OnErrorContinue: "Continue",
	}
	failedWords = map[string]string{
		fleet.OnErrorTerminate: "lifecycle script failed; terminating the node",
		fleet.OnErrorStop:      "lifecycle script failed; stopping remaining scripts",
		fleet.OnErrorContinue:  "lifecycle script failed; continuing with the next script",
	}
)

// script runs one script and writes down what came of it.
func (x *Executor) script(ctx context.Context, stage string, s fleet.LifecycleScript, limit time.Duration) (fleet.ScriptOutcome, error) {
	if stopped(ctx) {
		return fleet.ScriptOutcome{}, context.Cause(ctx)
	}
	began := time.Now()
	o := fleet.ScriptOutcome{Stage: stage, Name: s.Name, OnError: s.OnError, Attempt: x.record.Attempt, ExitCode: fleet.NotRun, Log: filepath.Join(x.LogDir, "executor.log")}
	if o.OnError == "" {
		o.OnError = fleet.OnErrorTerminate
	}
	if err := x.fetched[stage+"/"+s.Name]; err != nil {
		o.Failure = err.Error()
	} else if err := x.start(ctx, &o, s, limit); err != nil {
		return o, err
	}
	if o.Failure != "" && stopped(ctx) {
		err := x.log(Entry{Level: "WARN", Message: "script was ended with the agent, and runs again", Stage: stage, Script: s.Name})
		return o, errors.Join(context.Cause(ctx), err)
	}
	o.At = time.Now().UTC()
	o.Seconds = o.At.Sub(began).Round(time.Millisecond).Seconds()
	if o.Failure != "" && ctx.Err() != nil {
		o.OnError = fleet.OnErrorTerminate // the boot's time is over: nothing can come behind it
	}
	e := Entry{Level: "INFO", Message: "script completed", Stage: stage, Script: s.Name}
	if o.ExitCode != fleet.NotRun {
		e.ExitCode = &o.ExitCode
	}
	if o.Failure != "" {
		e.Level, e.Message, e.OnError, e.Error = "ERROR", failedWords[o.OnError], onErrorWords[o.OnError], o.Failure
	}
	err := x.log(e)
	o = o.Bounded()
	x.record.Process, x.record.Began = 0, ""
	x.record.put(o)
	if err := errors.Join(err, x.keep()); err != nil {
		return o, err
	}
	if x.Ended != nil {
		x.Ended(ctx, o)
	}
	return o, nil
}

// stopped reports whether the agent is to end, as at a reboot, rather than the
// boot's time is over: what was under way then has not failed.
func stopped(ctx context.Context) bool {
	return ctx.Err() != nil && !errors.Is(context.Cause(ctx), context.DeadlineExceeded)
}

// start runs the script's file.
func (x *Executor) start(ctx context.Context, o *fleet.ScriptOutcome, s fleet.LifecycleScript, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	path := x.cache(o.Stage, s.Name)
	body, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	fixed, what := mend(body)
	if what != "" {
		// A name has no dot, so this is no other script's.
		path += ".mended"
		if err := writeFile(path, fixed, 0o700); err != nil {
			return err
		}
		if err := x.log(Entry{Level: "WARN", Message: "script has " + what + "; a copy without is run", Stage: o.Stage, Script: s.Name}); err != nil {
			return err
		}
	}
	if len(fixed) == 0 {
		if err := x.log(Entry{Level: "WARN", Message: "script is empty", Stage: o.Stage, Script: s.Name}); err != nil {
			return err
		}
	}
	log, err := openScriptLog(filepath.Join(x.LogDir, o.Stage), s.Name, s.Arguments, time.Now())
	if err != nil {
		return err
	}
	o.Log = log.path
	argv, err := interpreter(path, fixed)
	e := ended{exit: cannotRun, failure: fmt.Sprintf("script '%s' cannot be run: %v", s.Name, err)}
	if err == nil {
		stop := make(chan struct{})
		var watching sync.WaitGroup
		watching.Go(func() { log.watch(stop) })
		e = run(ctx, s.Name, append(argv, s.Arguments...), x.environment(), log.file, x.noteProcess)
		close(stop)
		watching.Wait()
	}
	o.ExitCode, o.Failure = e.exit, e.failure
	if e.exit == cannotRun || e.exit == notFound {
		// It said nothing itself where the kernel refused it.
		if size, err := log.file.Seek(0, 2); err == nil && size == log.begin && e.failure != "" {
			if _, err := log.file.WriteString(e.failure + "\n"); err != nil {
				return errors.Join(err, log.file.Close())
			}
		}
	}
	o.Output, err = log.end(s.Name, e.exit, time.Now())
	return err
}

// noteProcess keeps which process runs a script.
func (x *Executor) noteProcess(pid int) error {
	x.record.Process, x.record.Began = pid, beginning(pid)
	return x.keep()
}

// endLeftover ends a script that an agent which was killed left running: it is
// about to run again.
func (x *Executor) endLeftover() {
	if pid := x.record.Process; pid > 1 && x.record.Began != "" && beginning(pid) == x.record.Began {
		_ = syscall.Kill(-pid, syscall.SIGKILL) // its group is its own
	}
}

// environment is what scripts find: PCS's six variables, and what every
// program may count on.
func (x *Executor) environment() []string {
	first := "1"
	if x.record.Complete {
		first = "0"
	}
	return []string{
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME=/root", "USER=root", "LOGNAME=root", "SHELL=/bin/sh", "LANG=C.UTF-8",
		"PCS_CLUSTER_ID=" + x.Node.ClusterID,
		"PCS_CLUSTER_NAME=" + x.Node.ClusterName,
		"PCS_COMPUTE_NODE_GROUP_ID=" + x.Node.GroupID,
		"PCS_COMPUTE_NODE_GROUP_NAME=" + x.Node.GroupName,
		"PCS_NODE_ID=" + x.Node.NodeID,
		"PCS_IS_FIRST_BOOT=" + first,
	}
}

// Summary puts what failed on a node that stays in service into one line, for
// Slurm's Extra; it is empty if nothing did.
func Summary(outcomes []fleet.ScriptOutcome) string {
	var out []string
	for _, o := range outcomes {
		if o.Failure != "" {
			what := "exit=" + strconv.Itoa(o.ExitCode)
			if o.ExitCode == fleet.NotRun {
				what = "not-run"
			}
			out = append(out, o.Stage+"/"+o.Name+":"+what)
		}
	}
	if len(out) == 0 {
		return ""
	}
	const most = 5
	more := ""
	if len(out) > most {
		out, more = out[:most], fmt.Sprintf(" and %d more", len(out)-most)
	}
	return "LIFECYCLE_ACTION_FAILED " + strings.Join(out, " ") + more
}

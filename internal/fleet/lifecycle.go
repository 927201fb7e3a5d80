package fleet

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/openpcs/openpcs/internal/condition"
)

// The stages of a node's boot at which its group's scripts run (PCS user
// guide, node lifecycle actions).
const (
	NodeBootstrapped = "nodeBootstrapped" // after the configuration, before slurmd
	NodeReady        = "nodeReady"        // after slurmd registered
)

// What a script that fails does to its node, what makes a script run, and
// when it is downloaded. The first of each is the default.
const (
	OnErrorTerminate = "TERMINATE"
	OnErrorStop      = "STOP_SEQUENCE"
	OnErrorContinue  = "CONTINUE"

	FirstBootOnly = "FIRST_BOOT_ONLY"
	EveryBoot     = "EVERY_BOOT"

	CacheOnce       = "CACHE_ONCE"
	RefreshOnReboot = "REFRESH_ON_REBOOT"
)

// LifecycleActions are the scripts that a group's instances run, in the form
// that the API has them in. What was left out is empty.
type LifecycleActions struct {
	Stages        LifecycleStages `json:"stages"`
	CachingPolicy string          `json:"scriptCachingPolicy,omitempty"`
}

// LifecycleStages are the scripts by stage, in their order.
type LifecycleStages struct {
	NodeBootstrapped []LifecycleScript `json:"nodeBootstrapped,omitempty"`
	NodeReady        []LifecycleScript `json:"nodeReady,omitempty"`
}

// LifecycleScript is one script. Its name is unique in its stage.
type LifecycleScript struct {
	Name            string       `json:"name"`
	Source          ScriptSource `json:"scriptSource"`
	Arguments       []string     `json:"arguments,omitempty"`
	OnError         string       `json:"onError,omitempty"`
	ExecutionPolicy string       `json:"executionPolicy,omitempty"`
}

// ScriptSource is where a script comes from: s3://bucket/key or
// https://host/path.
type ScriptSource struct {
	Location    string `json:"scriptLocation"`
	S3VersionID string `json:"s3VersionId,omitempty"`
	Checksum    string `json:"checksum,omitempty"` // SHA-256, 64 hexadecimal digits
}

// Scripts returns the scripts of a stage.
func (a *LifecycleActions) Scripts(stage string) []LifecycleScript {
	switch {
	case a == nil:
		return nil
	case stage == NodeReady:
		return a.Stages.NodeReady
	default:
		return a.Stages.NodeBootstrapped
	}
}

// NotRun is the exit code of a script that did not run.
const NotRun = -1

// ScriptOutcome is what came of one script at one boot.
type ScriptOutcome struct {
	Stage string `json:"stage"`
	Name  string `json:"name"`
	// ExitCode is 128+N for a script that signal N ended, 126 and 127 as in a
	// shell, and NotRun.
	ExitCode int `json:"exitCode"`
	// Failure says in a sentence without its end why it failed; it is empty if
	// it did not.
	Failure string `json:"failure,omitempty"`
	OnError string `json:"onError"` // what its failure leads to, the default filled in
	// Attempt counts the instance's boots, from 1.
	Attempt int     `json:"attempt"`
	Seconds float64 `json:"seconds"`
	// At is the instance's clock when it ended.
	At time.Time `json:"at"`
	// Output has the last lines of what it printed.
	Output string `json:"output,omitempty"`
	// Log is the file on the instance that has all of it.
	Log string `json:"log,omitempty"`
}

// Bounds of what is kept of outcomes: a group has 20 scripts a stage.
const (
	MaxOutcomes = 40
	MaxFailure  = 500     // bytes
	MaxOutput   = 2 << 10 // bytes, the last ones
)

// ScriptName is what names of scripts match (published model); they become
// names of files.
var ScriptName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9 _-]{0,63}$`)

// Valid reports whether an outcome can be one of a script of the API.
func (o ScriptOutcome) Valid() bool {
	return (o.Stage == NodeBootstrapped || o.Stage == NodeReady) && ScriptName.MatchString(o.Name) &&
		slices.Contains([]string{OnErrorTerminate, OnErrorStop, OnErrorContinue}, o.OnError)
}

// Bounded cuts an outcome's texts to what is kept of them.
func (o ScriptOutcome) Bounded() ScriptOutcome {
	o.Failure, o.Log = first(o.Failure, MaxFailure), first(o.Log, 200)
	if len(o.Output) > MaxOutput {
		o.Output = strings.ToValidUTF8(o.Output[len(o.Output)-MaxOutput:], "")
	}
	return o
}

func first(s string, n int) string {
	if len(s) > n {
		return strings.ToValidUTF8(s[:n], "")
	}
	return s
}

// Sentence tells of a failure: which script, what happened, what that leads
// to and where its log is.
func (o ScriptOutcome) Sentence() string {
	text := fmt.Sprintf("the script %q of the stage %s failed (onError %s): %s", o.Name, o.Stage, o.OnError, o.Why())
	if said := o.LastLine(); said != "" {
		text += "; it said last: " + said
	}
	if o.Log != "" {
		text += "; its log is " + o.Log
	}
	return text
}

// Why says what was wrong with a script that failed. Where the PCS agent's
// words, which executor.log has, are the name and the exit code once more, it is
// the exit code alone.
func (o ScriptOutcome) Why() string {
	exit := "exit code " + strconv.Itoa(o.ExitCode)
	if rest, ok := strings.CutPrefix(o.Failure, "script '"+o.Name+"' failed with exit status "); ok {
		_, signal, _ := strings.Cut(rest, "))")
		return exit + signal
	}
	if o.ExitCode == NotRun {
		return strings.TrimSuffix(o.Failure, ".")
	}
	return strings.TrimSuffix(o.Failure, ".") + " (" + exit + ")"
}

// LastLine is the last line of a script's output, as far as it fits into a
// sentence.
func (o ScriptOutcome) LastLine() string {
	lines := strings.Split(strings.TrimSpace(o.Output), "\n")
	return first(strings.TrimSpace(lines[len(lines)-1]), 200)
}

// Ended puts an outcome into the instance's record, in place of what the
// script did at a boot before. It reports whether the outcome is new.
func (i *Instance) Ended(o ScriptOutcome) bool {
	if o.Failure == "" {
		o.Output = ""
	}
	o.Output = o.LastLine() // the event has all of it
	at := slices.IndexFunc(i.Scripts, func(old ScriptOutcome) bool { return old.Stage == o.Stage && old.Name == o.Name })
	switch {
	case at >= 0 && i.Scripts[at].Attempt >= o.Attempt:
		return false
	case at >= 0:
		i.Scripts = slices.Clone(i.Scripts)
		i.Scripts[at] = o
	case len(i.Scripts) < MaxOutcomes:
		i.Scripts = append(slices.Clone(i.Scripts), o)
	default:
		return false
	}
	return true
}

// Fatal is the script of the stage nodeBootstrapped that failed and must not,
// after which the agent powers the instance off.
func (i Instance) Fatal() (o ScriptOutcome, ok bool) {
	at := slices.IndexFunc(i.Scripts, func(o ScriptOutcome) bool {
		return o.Stage == NodeBootstrapped && o.Failure != "" && o.OnError == OnErrorTerminate
	})
	if at < 0 {
		return o, false
	}
	return i.Scripts[at], true
}

// Trouble is what went wrong on an instance that runs all the same: scripts
// that failed and were to leave it running, and one that ends it when its jobs
// are done.
func (i Instance) Trouble() (out []ErrorInfo) {
	if i.State == Running && i.Failure != "" {
		out = append(out, ErrorInfo{Code: i.FailureCode, Message: "the node " + i.NodeName + " (" + i.ID + ") takes no more jobs and is replaced when those it has are done: " + i.Failure})
	}
	for _, o := range i.Scripts {
		if o.Failure != "" && o.OnError != OnErrorTerminate {
			out = append(out, ErrorInfo{Code: condition.LifecycleActionFailed, Message: "on the node " + i.NodeName + " (" + i.ID + ") " + o.Sentence()})
		}
	}
	return out
}

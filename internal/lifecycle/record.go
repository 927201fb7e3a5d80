package lifecycle

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/openpcs/openpcs/internal/fleet"
)

// config is what an instance keeps of its group for life.
type config struct {
	Instance string                  `json:"instance"`
	Actions  *fleet.LifecycleActions `json:"nodeLifecycleActions"`
}

const (
	configName = "actions.json"
	recordName = "record.json"
)

func readConfig(dir string) (c config, err error) {
	doc, err := os.ReadFile(filepath.Join(dir, configName))
	if err == nil {
		err = json.Unmarshal(doc, &c)
	}
	return c, err
}

func (c config) write(dir string) error {
	doc, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return err
	}
	return writeFile(filepath.Join(dir, configName), doc, 0o600)
}

// checked returns the actions, whose values must be those that the API knows:
// what to do for another cannot be guessed.
func (c config) checked() (*fleet.LifecycleActions, error) {
	if c.Actions == nil {
		return nil, nil
	}
	allowed := func(member, value string, all ...string) error {
		if value != "" && !slices.Contains(all, value) {
			return fmt.Errorf("read the lifecycle configuration: %s is %q, and this agent knows %q", member, value, all)
		}
		return nil
	}
	errs := []error{allowed("scriptCachingPolicy", c.Actions.CachingPolicy, fleet.CacheOnce, fleet.RefreshOnReboot)}
	for _, stage := range []string{fleet.NodeBootstrapped, fleet.NodeReady} {
		names := map[string]bool{}
		for _, s := range c.Actions.Scripts(stage) {
			if !fleet.ScriptName.MatchString(s.Name) || names[s.Name] {
				errs = append(errs, fmt.Errorf("read the lifecycle configuration: the stage %s has a script named %q, which is no name or taken", stage, s.Name))
			}
			names[s.Name] = true
			errs = append(errs,
				allowed("onError", s.OnError, fleet.OnErrorTerminate, fleet.OnErrorStop, fleet.OnErrorContinue),
				allowed("executionPolicy", s.ExecutionPolicy, fleet.FirstBootOnly, fleet.EveryBoot))
		}
	}
	return c.Actions, errors.Join(errs...)
}

// record is what became of the scripts.
type record struct {
	Boot    string `json:"boot"`    // the boot that was counted last
	Attempt int    `json:"attempt"` // how many there were
	// Complete says that a boot went through all stages.
	Complete bool                  `json:"complete"`
	Outcomes []fleet.ScriptOutcome `json:"outcomes"` // each script's last
	// Process runs a script now; Began tells it from a later one with its number.
	Process int    `json:"process,omitempty"`
	Began   string `json:"began,omitempty"`
}

func readRecord(dir string) (r record, err error) {
	doc, err := os.ReadFile(filepath.Join(dir, recordName))
	if errors.Is(err, os.ErrNotExist) {
		return record{}, nil
	}
	if err == nil {
		err = json.Unmarshal(doc, &r)
	}
	return r, err
}

func (r record) write(dir string) error {
	doc, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return writeFile(filepath.Join(dir, recordName), doc, 0o600)
}

func (r record) find(stage, name string) (fleet.ScriptOutcome, bool) {
	at := slices.IndexFunc(r.Outcomes, func(o fleet.ScriptOutcome) bool { return o.Stage == stage && o.Name == name })
	if at < 0 {
		return fleet.ScriptOutcome{}, false
	}
	return r.Outcomes[at], true
}

func (r *record) put(o fleet.ScriptOutcome) {
	r.Outcomes = slices.DeleteFunc(r.Outcomes, func(old fleet.ScriptOutcome) bool { return old.Stage == o.Stage && old.Name == o.Name })
	r.Outcomes = append(r.Outcomes, o)
}

// writeFile replaces a file in one step, in folders for root alone.
func writeFile(path string, text []byte, mode os.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	next := path + ".new"
	if err := os.WriteFile(next, text, mode); err != nil {
		return err
	}
	return os.Rename(next, path)
}

package metrics

import (
	"encoding/json"

	"github.com/openpcs/openpcs/internal/store"
)

// stages has the kinds of events that are stages of a launch.
var stages = map[string]string{
	"assigned": StageAssigned, "launched": StageLaunched, "registered": StageRegistered, "ready": StageReady,
	"launch-failed": StageFailed, "failed": StageFailed, "bootstrap-failed": StageFailed, "resume-fail": StageFailed, "lost": StageLost,
}

// Event counts an entry of a cluster's history, and of a launch how long it
// took. Known are the kinds that there are.
func (r *Registry) Event(e store.Event, known func(kind string) bool) {
	kind := e.Kind
	if !known(kind) {
		kind = Other
	}
	r.Add(Events, 1, kind)
	stage, ok := stages[e.Kind]
	if !ok {
		return
	}
	r.Add(Launches, 1, stage)
	var d struct {
		AfterMs *float64 `json:"afterMs"`
	}
	if json.Unmarshal(e.Detail, &d) == nil && d.AfterMs != nil {
		r.Observe(LaunchSeconds, *d.AfterMs/1000, stage)
	}
}

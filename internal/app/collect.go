package app

import (
	"context"
	"path/filepath"
	"time"

	"github.com/openpcs/openpcs/internal/collect"
)

// journalShare is the part of OPENPCS_LOG_LIMIT that one journal may take.
const journalShare = 4

// drainLimit is how long the end of a cluster waits for the rest of its logs.
const drainLimit = 10 * time.Second

// collectLogs reads what the daemons of the clusters write, until Stop.
func (a *App) collectLogs(ctx context.Context) error {
	a.collector = collect.New(collect.Options{
		Store: a.store, Dir: filepath.Join(a.opts.StateDir, "journals"),
		MaxBytes: a.opts.LogLimit / journalShare, MaxAge: a.opts.LogRetention, Log: a.opts.Log,
	})
	if err := a.collector.Start(ctx); err != nil {
		return err
	}
	a.later(a.collector.Stop)
	a.control.Last = func(ctx context.Context, cluster string) {
		ctx, cancel := context.WithTimeout(ctx, drainLimit)
		defer cancel()
		a.collector.Drain(ctx, cluster)
	}
	return nil
}

package app

import (
	"github.com/openpcs/openpcs/internal/logs"
)

// openLogs opens the service logs.
func (a *App) openLogs() error {
	l, err := logs.New(logs.Options{Store: a.store, Account: a.opts.Account, Dir: a.opts.StateDir, Probe: a.probe})
	if err != nil {
		return err
	}
	a.cloudwatch = l
	a.later(func() { _ = l.Close() })
	return nil
}

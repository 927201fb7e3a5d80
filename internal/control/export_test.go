package control

import "time"

// Timers are the constants that the pages of the state machines name.
var Timers = map[string]time.Duration{
	"control.creationLimit":  creationLimit,
	"control.updateLimit":    updateLimit,
	"control.lookAgain":      lookAgain,
	"control.settleTime":     settleTime,
	"control.sweepTime":      sweepTime,
	"control.suspendTimeout": suspendTimeout,
	"control.powerUpAgain":   powerUpAgain,
	"control.resumeTimeout":  resumeTimeout,
}

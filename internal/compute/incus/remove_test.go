package incus

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
)

// TestWhileMembersGo: a bridge whose members are just going is tried again,
// until they are gone; anything else that is wrong is told at once.
func TestWhileMembersGo(t *testing.T) {
	going := &apiError{Message: "Failed to delete bridge children interfaces: Device \"veth1\" does not exist"}
	other := &apiError{Message: "The network is currently in use"}
	run := func(cancelled bool, answers ...error) (tries int, err error) {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			if cancelled {
				cancel()
			}
			err = whileMembersGo(ctx, func() error {
				tries++
				return answers[min(tries, len(answers))-1]
			})
		})
		return tries, err
	}
	if tries, err := run(false, going, going, nil); tries != 3 || err != nil {
		t.Errorf("members go: %d tries, %v", tries, err)
	}
	if tries, err := run(false, other); tries != 1 || !errors.Is(err, other) {
		t.Errorf("another error: %d tries, %v", tries, err)
	}
	if tries, err := run(false, going); tries != networkTries || !errors.Is(err, going) {
		t.Errorf("members stay: %d tries, %v", tries, err)
	}
	if tries, err := run(true, going); tries != 1 || !errors.Is(err, going) {
		t.Errorf("cancelled: %d tries, %v", tries, err)
	}
}

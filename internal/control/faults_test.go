package control_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/openpcs/openpcs/internal/fault"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/store"
)

// A fault whose time is over, and those of a group that is gone, do not stay
// in the state file.
func TestFaultsThatAreOverGo(t *testing.T) {
	run(t, dynamic(1), func(s *site) {
		f, err := fault.New("insufficient-capacity", 0, time.Second, 0, "", time.Now().UTC())
		if err != nil {
			t.Fatal(err)
		}
		f.ClusterID, f.GroupID, f.Group = clusterID, "pcs_g", "g"
		if err := s.plane().AddFault(context.Background(), f); err != nil {
			t.Fatal(err)
		}
		s.wait(24 * time.Hour)
		s.change(func(tx *store.Tx) error {
			q, err := fleet.Queues.Get(tx, "pcs_qq")
			if err != nil {
				return err
			}
			q.Status = fleet.Deleting
			return fleet.Queues.Put(tx, q)
		})
		s.change(func(tx *store.Tx) error {
			g, err := fleet.Groups.Get(tx, "pcs_g")
			if err != nil {
				return err
			}
			g.Status = fleet.Deleting
			return fleet.Groups.Put(tx, g)
		})
		s.settle()
		s.view(func(tx *store.Tx) error {
			if _, err := fleet.Groups.Get(tx, "pcs_g"); err == nil {
				t.Error("group still there")
			}
			all, err := fault.Faults.All(tx)
			if len(all) > 0 {
				t.Errorf("still kept: %+v", all)
			}
			return err
		})
	})
}

// An instance that is ended between the time when start() read it and the
// time when its fault strikes stays ended.
func TestFaultKeepsATermination(t *testing.T) {
	run(t, dynamic(1), func(s *site) {
		f, err := fault.New("slow-boot", 1, 0, time.Second, "", time.Now().UTC())
		if err != nil {
			t.Fatal(err)
		}
		f.ClusterID, f.GroupID, f.Group = clusterID, "pcs_g", "g"
		if err := s.plane().AddFault(context.Background(), f); err != nil {
			t.Fatal(err)
		}
		s.wait(time.Second)
		ended := make(chan struct{})
		var once sync.Once
		s.store.SetSeam(func(point string) {
			s.states.Seam(point)
			if point != "commit/control.plan/after" || len(s.instances("g-1")) == 0 {
				return
			}
			once.Do(func() { // as TerminateInstance, while start() waits for the writer
				held := make(chan struct{})
				go func() {
					defer close(ended)
					_ = s.store.Update(context.Background(), func(tx *store.Tx) error {
						close(held)
						pause(s.ctx, time.Second)
						all, err := fleet.Instances.All(tx)
						if err != nil {
							return err
						}
						i := all[0]
						i.State = fleet.ShuttingDown
						return fleet.Instances.Put(tx, i)
					})
				}()
				<-held
			})
		})
		s.ctld.submit(false, "g-1")
		<-ended
		s.wait(time.Microsecond)
		if i := s.instances("g-1")[0]; i.State != fleet.ShuttingDown && i.State != fleet.Terminated {
			t.Errorf("the instance that was ended is %s again", i.State)
		}
	})
}

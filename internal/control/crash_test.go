package control_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/openpcs/openpcs/internal/compute"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/store"
)

// crashes counts crossings and ends the control plane at one of them: as
// after a kill -9, nothing that it does later has any effect.
type crashes struct {
	site *site

	mu      sync.Mutex
	crossed []string       // all, in order
	count   map[string]int // by point
	at      string         // where to die, and
	nth     int            // at which crossing of it
	fuse    int            // or after so many crossings, wherever that is
	dead    bool
	died    chan struct{}
}

func (c *crashes) cross(point string) {
	c.mu.Lock()
	c.crossed = append(c.crossed, point)
	c.count[point]++
	burnt := false
	if c.fuse > 0 && !c.dead {
		c.fuse--
		burnt = c.fuse == 0
	}
	if !c.dead && (burnt || (point == c.at && c.count[point] == c.nth)) {
		c.dead = true
		c.site.mu.Lock()
		c.site.control = nil // nobody reaches it any more
		c.site.stop()
		c.site.mu.Unlock()
		close(c.died)
	}
	dead := c.dead
	c.mu.Unlock()
	if dead {
		runtime.Goexit()
	}
}

// again is a control plane that starts after the crash.
func (c *crashes) again() {
	c.mu.Lock()
	c.dead, c.at, c.fuse, c.died = false, "", 0, make(chan struct{})
	c.mu.Unlock()
	c.site.start()
}

// light sets the fuse; 0 takes it away.
func (c *crashes) light(fuse int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fuse = fuse
}

// lookAfter is whoever looks after the service: it starts again whenever it
// died.
func (c *crashes) lookAfter() (stop func()) {
	ctx, cancel := context.WithCancel(c.site.ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			c.mu.Lock()
			died := c.died
			c.mu.Unlock()
			select {
			case <-ctx.Done():
				return
			case <-died:
			}
			if !pause(ctx, 3*time.Second) {
				return
			}
			c.again()
		}
	}()
	return func() {
		cancel()
		<-ended
	}
}

// lifeOfACluster takes a cluster through all that the control plane does. It
// asks for each thing until it is done, as clients do.
func lifeOfACluster(s *site) {
	t := s.t
	t.Helper()
	state := func(name, want string) func() bool { return func() bool { return s.ctld.state(name) == want } }
	const limit = 5 * time.Minute
	s.within(limit, "the cluster is ACTIVE", func() bool { return s.cluster().Status == fleet.Active })
	s.within(limit, "the static node is up", state("s-1", "IDLE+CLOUD"))

	s.ctld.submit(true, "g-1", "g-2")
	s.within(limit, "the job runs", func() bool { return s.ctld.state("g-1") == up && s.ctld.state("g-2") == up })
	s.within(limit, "the instance is ready", func() bool { return !s.live("g-2").ReadyAt.IsZero() })
	s.ctld.suspend("g-1")
	s.within(limit, "the idle node is off", func() bool { return s.ctld.state("g-1") == off && s.live("g-1").ID == "" })

	s.provider.Vanish(s.live("g-2").ID, false)
	s.within(limit, "the lost node is off, its job requeued", func() bool {
		return s.ctld.state("g-2") == off && s.ctld.lost("g-2") == 1 && s.live("g-2").ID == ""
	})

	s.act("fail")
	s.ctld.submit(false, "g-3")
	s.within(limit, "the failed bootstrap frees the job", func() bool { return s.ctld.lost("g-3") == 1 && s.ctld.state("g-3") == off })
	s.act("")

	s.ctld.submit(false, "g-1")
	s.within(limit, "the job runs", func() bool { return s.ctld.state("g-1") == up && !s.live("g-1").ReadyAt.IsZero() })
	s.change(func(tx *store.Tx) error {
		g, err := fleet.Groups.Get(tx, "pcs_g")
		if err != nil {
			return err
		}
		g.Revision, g.Status, g.ModifiedAt = g.Revision+1, fleet.Updating, time.Now().UTC()
		return fleet.Groups.Put(tx, g)
	})
	s.within(limit, "the updated group's node is replaced", func() bool { return s.ctld.state("g-1") == off && s.live("g-1").ID == "" })
	s.within(limit, "the group is ACTIVE", func() bool { return s.groupNow("g").Status == fleet.Active })

	s.within(limit, "a user terminates an instance", func() bool {
		i := s.live("s-1")
		if c := s.plane(); c != nil && i.State == fleet.Running {
			alone(func() { _ = c.TerminateInstance(s.ctx, region, i.ID) })
		}
		return i.State == fleet.ShuttingDown || i.State == ""
	})
	s.within(limit, "the static node comes back", func() bool { return s.ctld.state("s-1") == "IDLE+CLOUD" && !s.live("s-1").ReadyAt.IsZero() })

	s.ctld.with(func() { s.ctld.queued["q"] = true })
	s.change(func(tx *store.Tx) error {
		q, err := fleet.Queues.Get(tx, "pcs_qq")
		if err != nil {
			return err
		}
		q.Status = fleet.Deleting
		return fleet.Queues.Put(tx, q)
	})
	gone := func(f func(tx *store.Tx) error) func() bool {
		return func() (missing bool) {
			s.view(func(tx *store.Tx) error {
				missing = errors.Is(f(tx), store.ErrNotFound)
				return nil
			})
			return missing
		}
	}
	s.within(limit, "the queue is gone", gone(func(tx *store.Tx) error { _, err := fleet.Queues.Get(tx, "pcs_qq"); return err }))
	for _, id := range []string{"pcs_g", "pcs_s"} {
		s.change(func(tx *store.Tx) error {
			g, err := fleet.Groups.Get(tx, id)
			if err != nil {
				return err
			}
			g.Status = fleet.Deleting
			return fleet.Groups.Put(tx, g)
		})
		s.within(limit, "the group is gone", gone(func(tx *store.Tx) error { _, err := fleet.Groups.Get(tx, id); return err }))
	}
	s.change(func(tx *store.Tx) error {
		cl, err := fleet.Clusters.Get(tx, clusterID)
		if err != nil {
			return err
		}
		cl.Status = fleet.Deleting
		return fleet.Clusters.Put(tx, cl)
	})
	s.within(limit, "the cluster is gone", gone(func(tx *store.Tx) error { _, err := fleet.Clusters.Get(tx, clusterID); return err }))
}

// change changes the state file as an API call does, which its client
// repeats until it has an answer.
func (s *site) change(f func(tx *store.Tx) error) {
	s.t.Helper()
	s.within(time.Minute, "the state file takes a change", func() (done bool) {
		alone(func() {
			err := s.store.Update(s.ctx, f)
			done = err == nil || errors.Is(err, store.ErrNotFound) // done by a call without an answer
		})
		return done
	})
	if c := s.plane(); c != nil {
		c.Wake(clusterID)
	}
}

// told reports whether the end of an instance is in its node's history.
func (s *site) told(i fleet.Instance) (told bool) {
	s.view(func(tx *store.Tx) error {
		events, err := tx.Events(clusterID, "node/"+i.NodeName, 1000)
		for _, e := range events {
			told = told || (e.Kind == "terminated" && strings.Contains(string(e.Detail), i.ID) && !strings.Contains(string(e.Detail), `"reason":""`))
		}
		return err
	})
	return told
}

func crashSite() options {
	r := &rooms{full: func(spec compute.Spec) bool { return spec.CPUs == 2 }}
	o := options{
		groups: []fleet.Group{{Name: "s", Min: 1, Max: 1}, {Name: "g", Max: 3, InstanceTypes: []string{"c6i.xlarge", "t3.micro"}}},
		queues: map[string][]string{"q": {"g"}},
		notYet: true,
	}
	o.fake.LaunchError = r.launch
	return o
}

// lives runs the life of a cluster with a crash at a crossing of a point, and
// returns all crossings.
func lives(t *testing.T, at string, nth int) []string {
	var c *crashes
	synctest.Test(t, func(t *testing.T) {
		s := newSite(t, crashSite())
		defer s.end()
		c = &crashes{site: s, count: map[string]int{}, at: at, nth: nth, died: make(chan struct{})}
		s.seam = c.cross
		s.start()
		stop := c.lookAfter()
		lifeOfACluster(s)
		stop()
		if at != "" && c.count[at] < nth {
			t.Fatalf("%s was crossed %d times", at, c.count[at])
		}
		// Nothing is left, and nothing was launched twice: a node never has two
		// instances (live fails then), and each is recorded as terminated.
		all, err := s.provider.List(s.ctx)
		if err != nil || len(all) != 0 {
			t.Errorf("the provider still has %v, %v", all, err)
		}
		if most := len(s.instances("")) + 1; s.provider.Launches() > most { // and the controller
			t.Errorf("%d instances were launched, %d are known", s.provider.Launches(), most)
		}
		s.soundLog()
		for _, i := range s.instances("") {
			if i.State != fleet.Terminated {
				t.Errorf("an instance is left: %v", brief([]fleet.Instance{i}))
			}
			// I10: nothing vanishes for no reason.
			if i.StateReason == "" || i.StateCode == "" || !s.told(i) {
				t.Errorf("the end of an instance is not told: %v", brief([]fleet.Instance{i}))
			}
		}
	})
	return c.crossed
}

// A kill -9 at each point where the control plane touches what outlasts it
// loses nothing and does nothing twice.
func TestKilledAtEachPoint(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("the control plane gives a cluster's home to the user 1000, which only root may do")
	}
	crossed := lives(t, "", 0)
	count := map[string]int{}
	for _, p := range crossed {
		count[p]++
	}
	var points []string
	for p := range count {
		points = append(points, p)
	}
	slices.Sort(points)
	if len(points) < 50 {
		t.Errorf("%d points, want at least 50: %q", len(points), points)
	}
	t.Logf("%d points, crossed %d times", len(points), len(crossed))
	for _, p := range points {
		// What is crossed often is so in several situations.
		for _, nth := range slices.Compact([]int{1, (count[p] + 1) / 2}) {
			t.Run(fmt.Sprintf("%s#%d", p, nth), func(t *testing.T) {
				t.Parallel()
				lives(t, p, nth)
			})
		}
	}
}

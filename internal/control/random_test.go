package control_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/openpcs/openpcs/internal/compute"
	"github.com/openpcs/openpcs/internal/compute/fake"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/store"
)

// moods say how the provider behaves; they change while a test runs.
type moods struct {
	mu     sync.Mutex
	launch string // "" for good, "full", "full one" (of two types), "broken", "nothing", "slow"
	end    string // "" or "broken"
}

func (m *moods) set(launch, end string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.launch, m.end = launch, end
}

func (m *moods) now() (launch, end string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.launch, m.end
}

func (m *moods) options() fake.Options {
	return fake.Options{
		LaunchError: func(spec compute.Spec) error {
			launch, _ := m.now()
			switch {
			case spec.Role != "node":
				return nil
			case launch == "full" || (launch == "full one" && spec.CPUs > 1):
				return &compute.CapacityError{Code: "InsufficientInstanceCapacity", Err: errors.New("no room")}
			case launch == "broken":
				return errors.New("the disk is full")
			}
			return nil
		},
		Nothing: func(spec compute.Spec) bool {
			launch, _ := m.now()
			return launch == "nothing" && spec.Role == "node"
		},
		Latency: func(op fake.Op, id string) time.Duration {
			if launch, _ := m.now(); launch == "slow" && strings.HasPrefix(id, "i-") && (op == fake.OpLaunch || op == fake.OpTerminate) {
				return 20 * time.Second
			}
			return 0
		},
		Fail: func(op fake.Op, id string) error {
			if _, end := m.now(); end == "broken" && op == fake.OpTerminate && strings.HasPrefix(id, "i-") {
				return errors.New("the instance is busy")
			}
			return nil
		},
	}
}

// chaos is a site to which anything happens.
type chaos struct {
	*site
	*rand.Rand
	moods *moods
	crash *crashes
	done  []string // what happened
}

// pick returns one of several.
func (c *chaos) pick(all ...string) string { return all[c.IntN(len(all))] }

// groups are those that exist now, by name.
func (c *chaos) groups() map[string]fleet.Group {
	out := map[string]fleet.Group{}
	c.view(func(tx *store.Tx) error {
		all, err := fleet.Groups.Of(tx, clusterID)
		for _, g := range all {
			out[g.Name] = g
		}
		return err
	})
	return out
}

// node picks a node that slurmctld has, and what it is to be changed by.
func (c *chaos) node(change func(name string, h *host)) {
	c.ctld.with(func() {
		names := slices.Sorted(maps.Keys(c.ctld.nodes))
		if len(names) > 0 {
			name := names[c.IntN(len(names))]
			change(name, c.ctld.nodes[name])
		}
	})
	c.ctld.push()
}

// instance picks one that the provider has.
func (c *chaos) instance() string {
	all := c.present()
	if len(all) == 0 {
		return ""
	}
	return all[c.IntN(len(all))]
}

// happenings are what can happen, each as often as it is named.
var happenings = []string{
	"create", "create", "update", "resize", "delete", "queue", "no queue",
	"job", "job", "job", "job", "done", "done", "idle", "idle", "drain", "undrain", "silent",
	"crash", "vanish", "vanish silently", "terminate", "agents", "agents", "launches", "launches", "ends",
	"kill", "restart", "die", "cut off", "moment", "moment", "moment", "while", "long while",
}

// happen has one thing happen, if it can.
func (c *chaos) happen(what string) {
	c.done = append(c.done, what)
	groups := c.groups()
	name := c.pick("a", "b", "c")
	g, ok := groups[name]
	modified := func(g *fleet.Group, s fleet.Status) { g.Status, g.ModifiedAt = s, time.Now().UTC() }
	settled := g.Status == fleet.Active || g.Status == fleet.UpdateFailed
	switch what {
	case "create":
		if ok {
			return
		}
		most := 1 + c.IntN(3)
		fresh := fleet.Group{Name: name, Max: most, Min: c.IntN(2), InstanceTypes: []string{"c6i.xlarge", "t3.micro"}[c.IntN(2):]}
		c.change(func(tx *store.Tx) error {
			subnets, err := fleet.Subnets.InRegion(tx, region)
			return errors.Join(err, fleet.Groups.Put(tx, c.group(fresh, subnets[0].ID)))
		})
	case "update", "resize":
		if !settled {
			return
		}
		c.change(func(tx *store.Tx) error {
			g, err := fleet.Groups.Get(tx, g.ID)
			if err != nil {
				return err
			}
			if what == "update" {
				g.Revise()
			} else {
				g.Max = 1 + c.IntN(3)
				g.Min = min(g.Min, g.Max)
			}
			modified(&g, fleet.Updating)
			nodes, err := fleet.Nodes.Of(tx, clusterID)
			for _, n := range g.Retry(nodes) {
				err = errors.Join(err, fleet.Nodes.Put(tx, n))
			}
			return errors.Join(err, fleet.Groups.Put(tx, g))
		})
	case "delete":
		if !ok || g.Status == fleet.Deleting {
			return
		}
		c.change(func(tx *store.Tx) error { // its queue no longer names it
			q, err := fleet.Queues.Get(tx, "pcs_q"+name)
			if err == nil {
				q.GroupIDs, q.ModifiedAt = nil, time.Now().UTC()
				if q.Status != fleet.Deleting {
					q.Status = fleet.Updating
				}
				err = fleet.Queues.Put(tx, q)
			}
			if err != nil && !errors.Is(err, store.ErrNotFound) {
				return err
			}
			g, err := fleet.Groups.Get(tx, g.ID)
			modified(&g, fleet.Deleting)
			return errors.Join(err, fleet.Groups.Put(tx, g))
		})
	case "queue":
		if !settled || c.queueStatus("pcs_q"+name) != "" {
			return
		}
		c.change(func(tx *store.Tx) error {
			now := time.Now().UTC()
			return fleet.Queues.Put(tx, fleet.Queue{ID: "pcs_q" + name, ClusterID: clusterID, Region: region, Name: "q" + name, Status: fleet.Creating, CreatedAt: now, ModifiedAt: now, GroupIDs: []string{g.ID}})
		})
	case "no queue":
		if st := c.queueStatus("pcs_q" + name); st == "" || st == fleet.Deleting {
			return
		}
		c.ctld.with(func() { c.ctld.queued["q"+name] = c.IntN(2) == 0 })
		c.change(func(tx *store.Tx) error {
			q, err := fleet.Queues.Get(tx, "pcs_q"+name)
			q.Status, q.ModifiedAt = fleet.Deleting, time.Now().UTC()
			return errors.Join(err, fleet.Queues.Put(tx, q))
		})
	case "job": // with up to three nodes
		var names []string
		c.ctld.with(func() {
			for _, n := range slices.Sorted(maps.Keys(c.ctld.nodes)) {
				if h := c.ctld.nodes[n]; h.base == "IDLE" && h.is("POWERED_DOWN") && !h.drained && c.IntN(2) == 0 {
					names = append(names, n)
				}
			}
		})
		if len(names) > 0 {
			c.ctld.submit(c.IntN(2) == 0, names...)
		}
	case "done":
		c.node(func(_ string, h *host) {
			if h.base == "ALLOCATED" && !h.is("POWERING_UP") {
				h.base = "IDLE"
			}
		})
	case "idle":
		c.node(func(n string, h *host) {
			if h.base == "IDLE" && len(h.flags) == 1 { // up, and with no job
				h.set("POWERING_DOWN")
				c.ctld.suspended([]string{n})
			}
		})
	case "drain":
		c.node(func(_ string, h *host) { h.drained, h.reason = true, person; h.flags = append(h.flags, "DRAIN") })
	case "undrain":
		c.node(func(_ string, h *host) { undrain(h) })
	case "silent": // Slurm takes it out of service
		c.node(func(_ string, h *host) {
			if !h.is("POWERED_DOWN") && !h.is("POWERING_UP") && !h.is("POWERING_DOWN") && h.base != "DOWN" {
				if h.base == "ALLOCATED" {
					h.requeued++
				}
				h.base = "DOWN"
				if !h.drained {
					h.reason = "Not responding"
				}
			}
		})
	case "crash":
		if id := c.instance(); id != "" {
			_ = c.provider.Crash(id)
		}
	case "vanish", "vanish silently":
		if id := c.instance(); id != "" {
			c.provider.Vanish(id, what == "vanish silently")
		}
	case "terminate":
		if id, plane := c.instance(), c.plane(); id != "" && plane != nil {
			alone(func() { _ = plane.TerminateInstance(c.ctx, region, id) })
		}
	case "agents":
		c.act(c.pick("", "", "fail", "fail", "hang", "mute"))
	case "launches":
		_, end := c.moods.now()
		c.moods.set(c.pick("", "", "full", "full one", "broken", "nothing", "slow"), end)
	case "ends":
		launch, _ := c.moods.now()
		c.moods.set(launch, c.pick("", "broken"))
	case "kill", "restart":
		c.crash.light(0)
		if c.plane() == nil { // it is about to be started again
			return
		}
		if what == "restart" {
			c.restart()
			return
		}
		c.kill()
		c.wait(time.Duration(c.IntN(90)) * time.Second)
		c.start()
	case "die": // at one of the next commits or effects, wherever that is
		c.crash.light(1 + c.IntN(12))
	case "cut off":
		c.provider.Disconnect()
	case "moment":
		c.wait(time.Duration(c.IntN(3000)) * time.Millisecond)
	case "while":
		c.wait(time.Duration(c.IntN(60)) * time.Second)
	case "long while":
		if c.IntN(4) == 0 {
			c.wait(time.Duration(c.IntN(25)) * time.Minute)
		}
	}
}

const person = "bad disk [alice]"

// undrain gives a node back that a person drained, or that openpcs set down
// meanwhile with that person's reason.
func undrain(h *host) {
	if h.drained || h.reason == person {
		h.drained, h.reason = false, ""
		h.flags = slices.DeleteFunc(h.flags, func(f string) bool { return f == "DRAIN" })
		if h.base == "DOWN" { // as scontrol's resume does
			h.base = "IDLE"
		}
	}
}

// heal has everything behave, and waits until nothing moves any more.
func (c *chaos) heal() {
	c.moods.set("", "")
	c.act("")
	c.crash.light(0)
	limit := time.Now().Add(2 * time.Hour)
	for pause := 2 * time.Second; ; pause = min(2*pause, time.Minute) {
		c.ctld.with(func() {
			for _, h := range c.ctld.nodes {
				undrain(h)
				if h.base == "ALLOCATED" && !h.is("POWERING_UP") {
					h.base = "IDLE"
				}
			}
		})
		if pause <= 4*time.Second {
			c.ctld.push()
		}
		c.wait(pause)
		moving := c.moving()
		if moving == "" {
			return
		}
		if time.Now().After(limit) {
			c.t.Fatalf("two hours after %q: %s\nnodes: %s\n%s", c.done, moving, c.ctld, brief(c.instances("")))
		}
	}
}

// moving says what is not at rest yet: each node of a group is up or off, in a
// state that is declared, and the static ones are up; the provider has what the
// state file has, and no more.
func (c *chaos) moving() (what string) {
	have := map[string]bool{}
	for _, id := range c.present() {
		have[id] = true
	}
	o := fleet.Observed{Now: time.Now().UTC(), Nodes: map[string]fleet.Node{}, Instances: c.alive()}
	o.Slurm, _ = c.ctld.Nodes(c.ctx)
	for _, i := range o.Instances {
		switch {
		case i.State != fleet.Running || i.ReadyAt.IsZero():
			return fmt.Sprintf("%s of %s is %s", i.ID, i.NodeName, i.State)
		case !have[i.ID]:
			return i.ID + " is not there"
		default:
			delete(have, i.ID)
		}
	}
	if len(have) > 0 {
		return fmt.Sprintf("nobody knows %v", slices.Sorted(maps.Keys(have)))
	}
	for name, g := range c.groups() {
		if g.Status != fleet.Active {
			return fmt.Sprintf("the group %s is %s", name, g.Status)
		}
		for n := 1; n <= g.Max; n++ {
			node := g.NodeName(n)
			o.Nodes[node] = c.site.node(node)
			state := fleet.NodeState(o, g, node)
			if state != fleet.NodeUp && (state != fleet.NodeOff || n <= g.Min) {
				return fmt.Sprintf("%s is %q", node, state)
			}
		}
	}
	for _, q := range []string{"pcs_qa", "pcs_qb", "pcs_qc"} {
		if st := c.queueStatus(q); st != "" && st != fleet.Active {
			return fmt.Sprintf("the queue %s is %s", q, st)
		}
	}
	return ""
}

// alive are the instances that are not terminated.
func (c *chaos) alive() (out []fleet.Instance) {
	c.view(func(tx *store.Tx) (err error) {
		out, err = fleet.Instances.Where(tx, func(i *fleet.Instance) bool { return i.State.Live() })
		return err
	})
	return out
}

// oneEach fails for a node with two instances.
func (c *chaos) oneEach() {
	has := map[string]string{}
	for _, i := range c.alive() {
		if has[i.NodeName] != "" {
			c.t.Fatalf("%s has %s and %s after %q", i.NodeName, has[i.NodeName], i.ID, c.done)
		}
		has[i.NodeName] = i.ID
	}
}

// inMemory is a folder whose files cost no disk, where the machine has one: a
// thousand sequences commit a lot.
func inMemory(t *testing.T) string {
	dir, err := os.MkdirTemp("/dev/shm", "openpcs-test-")
	if err != nil {
		return ""
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// Whatever is asked for and whatever fails, in whatever order: nothing is left
// behind, no node has two instances, every node comes to rest, and the scaling
// log has the end of each launch, once and in order.
func TestRandomSequences(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("the control plane gives a cluster's home to the user 1000, which only root may do")
	}
	const sites, each = 50, 20 // a thousand sequences
	for n := range sites {
		t.Run(fmt.Sprintf("site_%d", n), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				m := &moods{}
				s := newSite(t, options{fake: m.options(), notYet: true, dir: inMemory(t)})
				defer s.end()
				c := &chaos{site: s, Rand: rand.New(rand.NewPCG(uint64(n), 4)), moods: m}
				c.crash = &crashes{site: s, count: map[string]int{}, died: make(chan struct{})}
				s.seam = c.crash.cross
				s.start()
				s.settle()
				stop := c.crash.lookAfter()
				defer stop()
				for range each {
					c.done = nil
					for range 5 + c.IntN(8) {
						c.happen(happenings[c.IntN(len(happenings))])
						c.oneEach()
					}
					c.heal()
					before := t.Failed()
					s.soundLog()
					if t.Failed() && !before {
						t.Fatalf("after %q", c.done)
					}
				}
			})
		})
	}
}

package control_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/openpcs/openpcs/internal/agent"
	"github.com/openpcs/openpcs/internal/control"
	"github.com/openpcs/openpcs/internal/imds"
	"github.com/openpcs/openpcs/internal/slurm"
)

// resumeTimeout is longer than the agents' own limit.
const resumeTimeout = 20 * time.Minute

// slurmctld is a model of the real one, as far as power saving goes.
type slurmctld struct {
	site *site

	mu         sync.Mutex
	nodes      map[string]*host
	parts      []string
	queued     map[string]bool // partitions with jobs
	conf       string
	given      agent.Config   // the last configuration that was taken
	trouble    *agent.Trouble // why none can be taken
	configures int
	refuse     func(conf string) string // says no to a configuration
	takes      time.Duration            // that a configuration needs
	commands   []string
	fail       func(argv []string) error // commands that do not work
	away       bool
	busy       bool // jobs last until suspend, also those that a node is to be powered down after
}

// host is a node as slurmctld has it.
type host struct {
	base     string
	flags    []string
	reason   string
	instance string // whose slurmd registered last
	requeued int    // jobs that lost the node
	extra    string // what scontrol show node has as Extra
	drained  bool
	since    time.Time
}

func (h *host) is(flag string) bool { return slices.Contains(h.flags, flag) }

func (h *host) set(flags ...string) {
	h.flags = append([]string{"CLOUD"}, flags...)
	if h.drained {
		h.flags = append(h.flags, "DRAIN")
	}
	h.since = time.Now()
}

var _ control.Slurmctld = (*slurmctld)(nil)

func (d *slurmctld) String() string {
	var out []string
	nodes, _ := d.Nodes(context.Background())
	for _, n := range nodes {
		out = append(out, fmt.Sprintf("%s %s %q", n.Name, strings.Join(n.State, "+"), n.Reason))
	}
	slices.Sort(out)
	return strings.Join(out, "; ")
}

// Configure implements control.Slurmctld.
func (d *slurmctld) Configure(ctx context.Context, conf agent.Config) (string, error) {
	d.mu.Lock()
	takes := d.takes
	d.mu.Unlock()
	select {
	case <-ctx.Done():
		return "", ctx.Err()
	case <-time.After(takes):
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.away {
		return "", errors.New("reach the controller's agent: connection refused")
	}
	text := string(conf.Files["slurm.conf"])
	if d.refuse != nil {
		if why := d.refuse(text); why != "" {
			return why, nil
		}
	}
	if d.trouble != nil {
		return "", d.trouble
	}
	d.configures++
	d.conf, d.given = text, conf
	have := map[string]bool{}
	d.parts = nil
	lines := bufio.NewScanner(strings.NewReader(text))
	for lines.Scan() {
		key, rest, _ := strings.Cut(lines.Text(), "=")
		value, _, _ := strings.Cut(rest, " ")
		switch key {
		case "PartitionName":
			d.parts = append(d.parts, value)
		case "NodeName":
			names, err := slurm.Expand(value)
			if err != nil {
				return err.Error(), nil
			}
			for _, n := range names {
				have[n] = true
				if d.nodes[n] == nil {
					h := &host{base: "IDLE"}
					h.set("POWERED_DOWN")
					d.nodes[n] = h
				}
			}
		}
	}
	for n := range d.nodes {
		if !have[n] {
			delete(d.nodes, n)
		}
	}
	return "", nil
}

// Nodes implements control.Slurmctld.
func (d *slurmctld) Nodes(context.Context) (map[string]slurm.Node, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.away {
		return nil, errors.New("reach the controller's agent: connection refused")
	}
	return d.states(), nil
}

func (d *slurmctld) states() map[string]slurm.Node {
	out := map[string]slurm.Node{}
	for name, h := range d.nodes {
		out[name] = slurm.Node{Name: name, State: append([]string{h.base}, h.flags...), Reason: h.reason}
	}
	return out
}

// push is the watcher of the controller's agent, 40 ms later.
func (d *slurmctld) push() {
	d.site.agents.Go(func() {
		pause(d.site.ctx, 40*time.Millisecond)
		d.mu.Lock()
		states, away := d.states(), d.away
		d.mu.Unlock()
		if c := d.site.plane(); c != nil && !away {
			c.NodeStates(clusterID, imds.Nodes{Full: true, Nodes: states})
		}
	})
}

// deliver is the agent that keeps trying while the control plane is away.
func (d *slurmctld) deliver(h imds.Hook) {
	d.site.label(&h)
	d.site.agents.Go(func() {
		for d.site.ctx.Err() == nil {
			err := d.site.hook(h)
			var refused *imds.RefusedError
			if err == nil || errors.As(err, &refused) {
				return
			}
			pause(d.site.ctx, 2*time.Second)
		}
	})
}

// Run implements control.Slurmctld.
func (d *slurmctld) Run(_ context.Context, argv ...string) (agent.Ran, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	defer d.push()
	d.commands = append(d.commands, strings.Join(argv, " "))
	if d.away {
		return agent.Ran{}, errors.New("reach the controller's agent: connection refused")
	}
	if d.fail != nil {
		if err := d.fail(argv); err != nil {
			return agent.Ran{Code: 1, Stderr: err.Error()}, nil
		}
	}
	switch argv[0] {
	case "squeue":
		part := argv[slices.Index(argv, "--partition")+1]
		if !slices.Contains(d.parts, part) {
			return agent.Ran{Code: 1, Stderr: "invalid partition"}, nil
		}
		if d.queued[part] {
			return agent.Ran{Stdout: "1\n"}, nil
		}
		return agent.Ran{}, nil
	case "scancel":
		delete(d.queued, argv[slices.Index(argv, "--partition")+1])
		return agent.Ran{}, nil
	case "scontrol":
	default:
		return agent.Ran{Code: 127, Stderr: argv[0] + ": not found"}, nil
	}
	set := map[string]string{}
	for _, a := range argv[2:] {
		k, v, _ := strings.Cut(a, "=")
		set[k] = v
	}
	names, err := slurm.Expand(set["NodeName"])
	if err != nil || len(names) == 0 {
		return agent.Ran{Code: 1, Stderr: "invalid node list"}, nil
	}
	var up, down []string
	for _, name := range names {
		h := d.nodes[name]
		if h == nil {
			return agent.Ran{Code: 1, Stderr: "slurm_update error: Invalid node name specified"}, nil
		}
		if extra, ok := set["Extra"]; ok {
			h.extra = extra
			if h.base != "DOWN" && !h.is("DRAIN") {
				h.reason = "" // as the real one does with any update
			}
			continue
		}
		switch set["State"] {
		case "": // the reason alone
			h.reason = set["Reason"]
		case "POWER_UP":
			if h.is("POWERED_DOWN") && h.base == "IDLE" {
				h.set("POWERING_UP", "NOT_RESPONDING")
				up = append(up, name)
			}
		case "DOWN":
			if set["Reason"] == "" {
				return agent.Ran{Code: 1, Stderr: "You must specify a reason when DOWNING a node."}, nil
			}
			if h.base == "ALLOCATED" {
				h.requeued++
			}
			h.base, h.reason = "DOWN", set["Reason"]
		case "POWER_DOWN_FORCE":
			if h.is("POWERED_DOWN") || h.is("POWERING_DOWN") {
				continue
			}
			if h.base == "ALLOCATED" {
				h.requeued++
			}
			h.base, h.reason = "IDLE", set["Reason"]
			h.set("POWERING_DOWN")
			down = append(down, name)
		case "POWER_DOWN", "POWER_DOWN_ASAP":
			if h.is("POWERED_DOWN") || h.is("POWERING_DOWN") {
				continue
			}
			if h.is("POWERING_UP") && h.base != "DOWN" {
				continue // ignored, as the real one does (R5)
			}
			if h.base == "ALLOCATED" && set["State"] == "POWER_DOWN_ASAP" && d.busy {
				h.set("POWER_DOWN") // its job ends first
				h.reason = "POWER_DOWN_ASAP"
				continue
			}
			if h.base == "ALLOCATED" {
				h.base = "IDLE"
			}
			h.set("POWERING_DOWN")
			down = append(down, name)
		case "RESUME":
			switch {
			case h.is("POWERING_DOWN"):
				h.base, h.reason, h.drained = "IDLE", "", false
				h.set("POWERED_DOWN")
			case h.base == "DOWN":
				h.base, h.reason = "IDLE", ""
			default:
				return agent.Ran{Code: 1, Stderr: "slurm_update error: Invalid node state specified"}, nil
			}
		default:
			return agent.Ran{Code: 1, Stderr: "invalid state " + set["State"]}, nil
		}
	}
	if len(up) > 0 {
		d.resume(up, nil)
	}
	if len(down) > 0 {
		d.suspended(down)
	}
	return agent.Ran{}, nil
}

// resume runs ResumeProgram at the next turn of the power saving loop.
func (d *slurmctld) resume(names []string, jobs map[int]string) {
	type job struct {
		ID    int    `json:"job_id"`
		Nodes string `json:"nodes_resume"`
	}
	file := struct {
		All  string `json:"all_nodes_resume"`
		Jobs []job  `json:"jobs"`
	}{All: slurm.Compress(names)}
	for id, nodes := range jobs {
		file.Jobs = append(file.Jobs, job{id, nodes})
	}
	doc, _ := json.Marshal(file)
	d.site.agents.Go(func() {
		pause(d.site.ctx, time.Second)
		d.deliver(imds.Hook{Kind: "resume", Nodes: slurm.Compress(names), ResumeFile: string(doc)})
		// ResumeTimeout.
		if !pause(d.site.ctx, resumeTimeout) {
			return
		}
		var late []string
		d.mu.Lock()
		for _, n := range names {
			if h := d.nodes[n]; h != nil && h.is("POWERING_UP") && time.Since(h.since) >= resumeTimeout {
				if h.base == "ALLOCATED" {
					h.requeued++
				}
				h.base, h.reason = "DOWN", "ResumeTimeout reached"
				h.set("POWERED_DOWN")
				late = append(late, n)
			}
		}
		d.mu.Unlock()
		if len(late) > 0 {
			d.push()
			d.deliver(imds.Hook{Kind: "resume-fail", Nodes: slurm.Compress(late)})
		}
	})
}

// suspended runs SuspendProgram, and SuspendTimeout passes. d.mu is held.
func (d *slurmctld) suspended(names []string) {
	d.site.agents.Go(func() {
		pause(d.site.ctx, 100*time.Millisecond)
		d.deliver(imds.Hook{Kind: "suspend", Nodes: slurm.Compress(names)})
		pause(d.site.ctx, 5*time.Second)
		d.mu.Lock()
		for _, n := range names {
			if h := d.nodes[n]; h != nil && h.is("POWERING_DOWN") && time.Since(h.since) >= 5*time.Second {
				h.set("POWERED_DOWN")
			}
		}
		d.mu.Unlock()
		d.push()
	})
}

// submit gives nodes to a job, one job each, as the scheduler does: the gate
// announces them at once, ResumeProgram comes with the next turn.
func (d *slurmctld) submit(early bool, names ...string) {
	d.site.t.Helper()
	jobs := map[int]string{}
	d.mu.Lock()
	for n, name := range names {
		h := d.nodes[name]
		if h == nil || h.base != "IDLE" || !h.is("POWERED_DOWN") || h.drained {
			d.mu.Unlock()
			d.site.t.Fatalf("the job cannot have %s: %s", name, d)
		}
		h.base = "ALLOCATED"
		h.set("POWERING_UP", "NOT_RESPONDING")
		jobs[n+1] = name
	}
	d.mu.Unlock()
	d.push()
	if early {
		d.deliver(imds.Hook{Kind: "expect", Nodes: slurm.Compress(names)})
	}
	d.resume(names, jobs)
}

// suspend powers idle nodes down.
func (d *slurmctld) suspend(names ...string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, n := range names {
		d.nodes[n].base = "IDLE"
		d.nodes[n].set("POWERING_DOWN")
	}
	d.suspended(names)
	d.push()
}

// registered is a slurmd that says hello.
func (d *slurmctld) registered(name, instance string) {
	d.mu.Lock()
	if h := d.nodes[name]; h != nil && h.is("POWERING_UP") && h.base != "DOWN" {
		h.set()
		h.instance = instance
	}
	d.mu.Unlock()
	d.push()
}

func (d *slurmctld) state(name string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	h := d.nodes[name]
	if h == nil {
		return "gone"
	}
	return strings.Join(append([]string{h.base}, h.flags...), "+")
}

func (d *slurmctld) reason(name string) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.nodes[name].reason
}

func (d *slurmctld) lost(name string) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.nodes[name].requeued
}

func (d *slurmctld) ran(part string) (n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range d.commands {
		if strings.Contains(c, part) {
			n++
		}
	}
	return n
}

func (d *slurmctld) with(f func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	f()
}

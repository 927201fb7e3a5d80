package incus

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/openpcs/openpcs/internal/compute"
)

const (
	userPrefix  = "user.openpcs."
	labelPrefix = userPrefix + "label."
	nicName     = "eth0"
	// launchKey holds a value that each attempt to launch makes up, to tell
	// what that attempt made from what was there.
	launchKey = userPrefix + "launch"

	// powerKey is set by Incus when it starts an instance.
	powerKey = "volatile.last_state.power"

	// busyAttempts and busyPause say how long to put up with an instance
	// that is busy with something else, 30 s in all.
	busyAttempts = 300
	busyPause    = 100 * time.Millisecond

	// rebootGrace is how long an instance may take to shut down by itself
	// before a reboot is forced; nodes are to be back within seconds.
	rebootGrace = 10 * time.Second
)

// createSlots is how many instances are created at once. Creating and booting
// are bound by the processor, so more at once finish no earlier in all, but
// the first ones do later. Measured with 20 instances of the Slurm image on 2
// cores: all booted after 6.8, 6.2, 6.6 and 6.4 s with 2, 4, 8 and 20 at once;
// the first was started after 0.45, 0.5, 0.64 and 1.0 s.
func createSlots() int { return 2 * runtime.NumCPU() }

// instancePost is the body of POST /1.0/instances.
type instancePost struct {
	Name     string                       `json:"name"`
	Type     string                       `json:"type"`
	Start    bool                         `json:"start"`
	Profiles []string                     `json:"profiles"`
	Source   instanceSource               `json:"source"`
	Config   map[string]string            `json:"config"`
	Devices  map[string]map[string]string `json:"devices"`
}

type instanceSource struct {
	Type        string `json:"type"`
	Fingerprint string `json:"fingerprint,omitempty"`
}

// instance is what GET /1.0/instances tells of one.
type instance struct {
	Name       string            `json:"name"`
	Status     string            `json:"status"`
	StatusCode int               `json:"status_code"`
	CreatedAt  time.Time         `json:"created_at"`
	Config     map[string]string `json:"config"`
}

func instancePath(id string) string { return "/1.0/instances/" + url.PathEscape(id) }

// body renders the request that makes spec real. The instance has no
// profiles, so nothing that users change in Incus can alter it.
func (p *Provider) body(spec compute.Spec, filter bool) instancePost {
	config := map[string]string{
		userPrefix + "address":  spec.Address.String(),
		userPrefix + "gateway":  p.gateway().Addr().String(),
		userPrefix + "hostname": spec.Hostname,
		userPrefix + "domain":   spec.Domain,
		userPrefix + "role":     spec.Role,
		// Nodes know nothing but their metadata service.
		"security.guestapi": "false",
	}
	for k, v := range spec.Labels {
		config[labelPrefix+k] = v
	}
	if 0 < spec.CPUs && spec.CPUs <= p.opts.MaxCPUs {
		config["limits.cpu"] = strconv.Itoa(spec.CPUs)
	}
	if 0 < spec.MemoryMiB && spec.MemoryMiB <= p.opts.MaxMemoryMiB {
		config["limits.memory"] = strconv.Itoa(spec.MemoryMiB) + "MiB"
	}

	nic := map[string]string{
		"type":         "nic",
		"network":      p.opts.Network,
		"name":         nicName,
		"ipv4.address": spec.Address.Addr().String(),
		// The same address always has the same hardware address, so that
		// nobody's ARP cache is wrong when an address is used again.
		"hwaddr": hardwareAddr(spec.Address.Addr()),
	}
	if filter {
		nic["security.mac_filtering"] = "true"
		nic["security.ipv4_filtering"] = "true"
	}
	devices := map[string]map[string]string{
		"root":  {"type": "disk", "path": "/", "pool": p.opts.Pool},
		nicName: nic,
	}
	for _, m := range spec.Mounts {
		d := map[string]string{"type": "disk", "source": m.Source, "path": m.Target, "shift": "true"}
		if m.ReadOnly {
			d["readonly"] = "true"
		}
		devices["mount-"+m.Name] = d
	}
	return instancePost{
		Name:     spec.ID,
		Type:     "container",
		Start:    true,
		Profiles: []string{},
		Source:   instanceSource{Type: "image", Fingerprint: spec.Image},
		Config:   config,
		Devices:  devices,
	}
}

// hardwareAddr derives a locally administered unicast MAC address.
func hardwareAddr(a netip.Addr) string {
	b := a.As4()
	return fmt.Sprintf("0a:77:%02x:%02x:%02x:%02x", b[0], b[1], b[2], b[3])
}

// Launch implements compute.Provider. If ctx ends while Incus is at it, Incus
// goes on: the caller has to Launch again or Terminate. Until it is started
// for the first time, List shows the instance as stopped.
func (p *Provider) Launch(ctx context.Context, spec compute.Spec) error {
	if !spec.Address.Addr().Is4() {
		return fmt.Errorf("launch instance %s: address %s is not IPv4", spec.ID, spec.Address)
	}
	select {
	case p.create <- struct{}{}:
		defer func() { <-p.create }()
	case <-ctx.Done():
		return fmt.Errorf("launch instance %s: %w", spec.ID, ctx.Err())
	}
	err := p.launch(ctx, spec)
	if err != nil {
		return fmt.Errorf("launch instance %s: %w", spec.ID, asCapacity(err))
	}
	return nil
}

// launchAttempts is how often launch tries to create an instance with filters
// before it does without, and how many half-made ones it replaces.
const launchAttempts = 2

// errHalfMade says that an instance exists but never ran: Incus was killed
// while it made it, and nobody knows how far it came.
var errHalfMade = errors.New("instance is half-made")

// launch creates and starts in one request. Whatever goes wrong, it leaves
// either the instance that was there before, or none.
func (p *Provider) launch(ctx context.Context, spec compute.Spec) error {
	for attempt := 1; ; attempt++ {
		filter := !p.noFilter.Load()
		body := p.body(spec, filter)
		nonce := rand.Text()
		body.Config[launchKey] = nonce
		err := p.api.call(ctx, http.MethodPost, "/1.0/instances", nil, body, nil)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			// The server goes on; whoever gave up must terminate.
			return err
		}

		var have instance
		switch gerr := p.api.get(ctx, instancePath(spec.ID), nil, &have); {
		case gerr == nil && have.Config[launchKey] != nonce:
			serr := p.ensureStarted(ctx, spec.ID)
			if !errors.Is(serr, errHalfMade) || attempt >= launchAttempts {
				return serr
			}
			p.log.Warn("Making an instance again whose creation was cut short", "node", spec.ID)
			if derr := p.terminate(ctx, spec.ID); derr != nil {
				return errors.Join(serr, derr)
			}
			continue
		case gerr == nil:
			if derr := p.terminate(context.WithoutCancel(ctx), spec.ID); derr != nil {
				return errors.Join(err, derr)
			}
		case !errors.Is(gerr, compute.ErrNotFound):
			return errors.Join(err, gerr)
		}

		if !filter || !filterFailed(err) {
			return p.explainLaunch(err, spec)
		}
		if attempt >= launchAttempts && p.noFilter.CompareAndSwap(false, true) {
			p.log.Warn("Instances start without protection against forged addresses because this host cannot filter bridged traffic",
				"err", err)
		}
	}
}

// explainLaunch turns Incus's odd answer for a missing image into ours.
func (p *Provider) explainLaunch(err error, spec compute.Spec) error {
	if says(err, "image not provided for instance creation") {
		return fmt.Errorf("find image %s: %w", spec.Image, compute.ErrNotFound)
	}
	return err
}

// filterFailed recognises a host without a working packet filter for bridges.
func filterFailed(err error) bool {
	return says(err, "bridge filter", "nft", "ebtables", "iptables", "br_netfilter", "bridge-nf-call",
		"ipv4_filtering", "ipv6_filtering", "mac_filtering", "network filters")
}

// asCapacity marks the errors that say that this machine is full.
func asCapacity(err error) error {
	if says(err, "no space left on device", "not enough space", "disk quota exceeded", "cannot allocate memory",
		"out of memory", "resource temporarily unavailable", "too many open files") {
		return &compute.CapacityError{Code: "InsufficientInstanceCapacity", Err: err}
	}
	return err
}

// ensureStarted brings an instance that exists to running.
func (p *Provider) ensureStarted(ctx context.Context, id string) error {
	var last error
	for range busyAttempts {
		// Whoever creates it may be about to start it.
		if err := p.api.waitOthers(ctx, id); err != nil {
			return fmt.Errorf("wait for the instance's creation: %w", err)
		}
		var i instance
		if err := p.api.get(ctx, instancePath(id), nil, &i); err != nil {
			return fmt.Errorf("look at existing instance: %w", err)
		}
		if i.state() == compute.Running {
			return nil
		}
		if i.Config[powerKey] == "" {
			return errHalfMade
		}
		last = p.setState(ctx, id, "start", false, 0)
		if last == nil || says(last, "already running") {
			return nil
		}
		if !says(last, "is busy") {
			break
		}
		if err := p.settle(ctx, id); err != nil {
			return errors.Join(last, err)
		}
	}
	return fmt.Errorf("start existing instance: %w", last)
}

// setState makes an instance start, stop or restart and waits for it.
func (p *Provider) setState(ctx context.Context, id, action string, force bool, timeout time.Duration) error {
	body := map[string]any{"action": action, "force": force, "timeout": int(timeout.Seconds())}
	return p.api.call(ctx, http.MethodPut, instancePath(id)+"/state", nil, body, nil)
}

// Terminate implements compute.Provider.
func (p *Provider) Terminate(ctx context.Context, id string) error {
	if err := p.terminate(ctx, id); err != nil {
		return fmt.Errorf("terminate instance %s: %w", id, err)
	}
	return nil
}

// terminate stops and deletes. Either can meet an instance that is being
// made, stopped or deleted by someone else; then it waits for that and tries
// again.
func (p *Provider) terminate(ctx context.Context, id string) error {
	var last error
	for range busyAttempts {
		err := p.setState(ctx, id, "stop", true, 0)
		if err == nil || says(err, "already stopped", "not running") {
			err = p.api.call(ctx, http.MethodDelete, instancePath(id), nil, nil, nil)
		}
		if err == nil || errors.Is(err, compute.ErrNotFound) || says(err, "instance not found") {
			return nil
		}
		last = err
		if err := p.settle(ctx, id); err != nil {
			return errors.Join(last, err)
		}
	}
	return last
}

// settle waits until nothing is going on with the instance any more. What an
// instance does by itself, such as shutting down, is no operation of the
// server, so settle always waits a little.
func (p *Provider) settle(ctx context.Context, id string) error {
	if err := p.api.waitOthers(ctx, id); err != nil {
		return err
	}
	t := time.NewTimer(busyPause)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Reboot implements compute.Provider.
func (p *Provider) Reboot(ctx context.Context, id string) error {
	err := p.setState(ctx, id, "restart", false, p.rebootGrace)
	if err != nil && ctx.Err() == nil && !errors.Is(err, compute.ErrNotFound) {
		p.log.Info("Forcing a reboot", "node", id, "err", err)
		err = p.setState(ctx, id, "restart", true, 0)
	}
	if err != nil && says(err, "not running", "already stopped") {
		err = p.ensureStarted(ctx, id)
	}
	if err != nil {
		return fmt.Errorf("reboot instance %s: %w", id, err)
	}
	return nil
}

// List implements compute.Provider.
func (p *Provider) List(ctx context.Context) ([]compute.Instance, error) {
	all, err := p.list(ctx)
	if err != nil {
		return nil, fmt.Errorf("list instances: %w", err)
	}
	out := make([]compute.Instance, 0, len(all))
	for _, i := range all {
		if isWarmer(i.Name) {
			continue
		}
		out = append(out, i.instance())
	}
	return out, nil
}

func (p *Provider) list(ctx context.Context) ([]instance, error) {
	var all []instance
	err := p.api.get(ctx, "/1.0/instances", url.Values{"recursion": {"1"}}, &all)
	return all, err
}

func (i instance) state() compute.State {
	switch i.Status {
	case "Stopped", "Error":
		return compute.Stopped
	}
	return compute.Running
}

func (i instance) instance() compute.Instance {
	labels := map[string]string{}
	for k, v := range i.Config {
		if name, ok := strings.CutPrefix(k, labelPrefix); ok {
			labels[name] = v
		}
	}
	return compute.Instance{ID: i.Name, State: i.state(), Labels: labels, CreatedAt: i.CreatedAt}
}

// Console implements compute.Provider.
func (p *Provider) Console(ctx context.Context, id string) ([]byte, error) {
	b, _, err := p.api.bytes(ctx, instancePath(id)+"/console", nil)
	if err != nil {
		return nil, fmt.Errorf("read console of instance %s: %w", id, err)
	}
	return b, nil
}

// ReadFile implements compute.Provider. Symbolic links are followed.
func (p *Provider) ReadFile(ctx context.Context, id, path string) ([]byte, error) {
	const maxLinks = 8
	at := path
	for range maxLinks {
		b, kind, err := p.api.bytes(ctx, instancePath(id)+"/files", url.Values{"path": {at}})
		if err != nil {
			return nil, fmt.Errorf("read %s of instance %s: %w", path, id, err)
		}
		switch kind {
		case "symlink":
			at = strings.TrimSpace(string(b))
		case "directory":
			return nil, fmt.Errorf("read %s of instance %s: is a directory", path, id)
		default:
			return b, nil
		}
	}
	return nil, fmt.Errorf("read %s of instance %s: too many symbolic links", path, id)
}

// bytes fetches something that is not JSON, and what type of file it is.
func (c *client) bytes(ctx context.Context, path string, query url.Values) (b []byte, kind string, err error) {
	res, err := c.raw(ctx, http.MethodGet, path, query, nil, nil)
	if err != nil {
		return nil, "", err
	}
	defer res.Body.Close()
	b, err = io.ReadAll(io.LimitReader(res.Body, maxBody))
	if err != nil {
		return nil, "", fmt.Errorf("read answer: %w", err)
	}
	if res.StatusCode >= 400 {
		return nil, "", decodeError(b, res.StatusCode)
	}
	return b, res.Header.Get("X-Incus-Type"), nil
}

// ShellCommand implements compute.Provider.
func (p *Provider) ShellCommand(id string, argv []string) (command, env []string) {
	if len(argv) == 0 {
		argv = []string{"bash", "-l"}
	}
	// "local:" because a person may have made another remote the default.
	command = append([]string{"incus", "exec", "--project", p.opts.Project, "local:" + id, "--"}, argv...)
	return command, []string{"INCUS_SOCKET=" + p.opts.Socket}
}

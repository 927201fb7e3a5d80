package incus

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"github.com/openpcs/openpcs/internal/compute"
)

// hostProject is the one whose networks all projects share.
const hostProject = "default"

// inDefault addresses requests to things that live outside of our project.
var inDefault = url.Values{"project": {hostProject}}

// thing is a storage pool, network or project.
type thing struct {
	Name        string            `json:"name,omitempty"`
	Description string            `json:"description"`
	Driver      string            `json:"driver,omitempty"`
	Type        string            `json:"type,omitempty"`
	Status      string            `json:"status,omitempty"`
	Managed     bool              `json:"managed,omitempty"`
	Config      map[string]string `json:"config"`
}

const description = "Made and used by openpcs"

// Setup implements compute.Provider. Whatever exists is taken over and
// brought to what it should be; whatever a crash left half made is replaced.
func (p *Provider) Setup(ctx context.Context) (compute.Host, error) {
	s, err := p.api.server(ctx)
	if err != nil {
		return compute.Host{}, err
	}
	for _, x := range []string{"instance_create_start", "event_lifecycle_name_and_project", "container_disk_shift"} {
		if !slices.Contains(s.Extensions, x) {
			return compute.Host{}, fmt.Errorf("use incus %s: it lacks the API extension %s; 6.0 or later is needed",
				s.Environment.ServerVersion, x)
		}
	}
	steps := []struct {
		what string
		do   func(context.Context, server) error
	}{
		{"project " + p.opts.Project, p.setupProject},
		{"storage pool " + p.opts.Pool, p.setupPool},
		{"network " + p.opts.Network, p.setupNetwork},
	}
	for _, step := range steps {
		if err := step.do(ctx, s); err != nil {
			return compute.Host{}, fmt.Errorf("set up %s: %w", step.what, err)
		}
	}
	p.noFilter.Store(false)
	if err := p.removeWarmers(ctx); err != nil {
		return compute.Host{}, fmt.Errorf("remove leftovers: %w", err)
	}
	return compute.Host{Bridge: p.opts.Network, Gateway: p.gateway()}, nil
}

func projectPath(name string) string { return "/1.0/projects/" + url.PathEscape(name) }
func poolPath(name string) string    { return "/1.0/storage-pools/" + url.PathEscape(name) }
func networkPath(name string) string { return "/1.0/networks/" + url.PathEscape(name) }

func (p *Provider) setupProject(ctx context.Context, _ server) error {
	want := thing{
		Name:        p.opts.Project,
		Description: description,
		Config: map[string]string{
			"features.images":          "true",
			"features.profiles":        "true",
			"features.storage.volumes": "true",
			"features.storage.buckets": "true",
			"features.networks":        "false",
			"features.networks.zones":  "false",
		},
	}
	var have thing
	err := p.api.get(ctx, projectPath(want.Name), inDefault, &have)
	if errors.Is(err, compute.ErrNotFound) {
		return p.api.call(ctx, http.MethodPost, "/1.0/projects", inDefault, want, nil)
	}
	if err != nil {
		return err
	}
	return p.mend(ctx, projectPath(want.Name), have, want.Config)
}

// mend sets the keys of a thing's configuration that are not as wanted; an
// empty value removes one. It replaces the whole configuration because Incus's
// partial updates lose what they should keep, for projects (seen with 6.0.4).
func (p *Provider) mend(ctx context.Context, path string, have thing, want map[string]string) error {
	config := maps.Clone(have.Config)
	var changed []string
	for k, v := range want {
		if config[k] == v {
			continue
		}
		changed = append(changed, k)
		config[k] = v
		if v == "" {
			delete(config, k)
		}
	}
	if len(changed) == 0 {
		return nil
	}
	slices.Sort(changed)
	p.log.Info("Mending the configuration of an Incus object", "path", path, "keys", changed)
	return p.api.call(ctx, http.MethodPut, path, inDefault, thing{Description: description, Config: config}, nil)
}

func (p *Provider) setupPool(ctx context.Context, s server) error {
	var have thing
	err := p.api.get(ctx, poolPath(p.opts.Pool), inDefault, &have)
	switch {
	case err == nil && have.Status == "Created":
		return nil
	case err == nil && (have.Status == "Errored" || have.Status == "Pending"):
		p.log.Warn("Making a storage pool again whose creation had failed", "pool", p.opts.Pool)
		if err := p.api.call(ctx, http.MethodDelete, poolPath(p.opts.Pool), inDefault, nil, nil); err != nil {
			return fmt.Errorf("delete half-made pool: %w", err)
		}
	case err == nil:
		return fmt.Errorf("use existing pool: its status is %s; see \"incus storage info %s\"", have.Status, p.opts.Pool)
	case !errors.Is(err, compute.ErrNotFound):
		return err
	}

	want := thing{Name: p.opts.Pool, Description: description, Driver: "btrfs", Config: map[string]string{
		"size": strconv.Itoa(p.opts.PoolSizeGiB) + "GiB",
		// noatime: without it, reading a file of the shared image
		// writes to each node's copy.
		"btrfs.mount_options": "user_subvol_rm_allowed,noatime",
	}}
	if !s.hasDriver(want.Driver) {
		p.log.Warn("Using plain directories for storage because Incus cannot use btrfs here; every launch copies its image",
			"pool", p.opts.Pool)
		want.Driver, want.Config = "dir", map[string]string{}
	}
	return p.api.call(ctx, http.MethodPost, "/1.0/storage-pools", inDefault, want, nil)
}

// networkConfig is what the bridge should be. Instances have static addresses
// and do not ask for them; DHCP is on all the same, for images that do, and
// because only then Incus opens its firewall for the bridge's resolver.
func (p *Provider) networkConfig() map[string]string {
	c := map[string]string{
		"ipv4.address": p.gateway().String(),
		"ipv4.dhcp":    "true",
		"ipv4.nat":     "true",
		"ipv6.address": "none",
		"dns.mode":     "none",
	}
	if p.opts.Domain != "" {
		c["raw.dnsmasq"] = fmt.Sprintf("synth-domain=%s,%s,ip-", p.opts.Domain, p.opts.Subnet)
	}
	return c
}

// withoutFirewall changes c for hosts whose kernel has no usable one.
func withoutFirewall(c map[string]string) map[string]string {
	c = maps.Clone(c)
	c["ipv4.nat"] = "false"
	c["ipv4.firewall"] = "false"
	return c
}

func (p *Provider) setupNetwork(ctx context.Context, _ server) error {
	err := whileMembersGo(ctx, func() error { return p.applyNetwork(ctx, p.networkConfig()) })
	if says(err, "firewall", "nft", "iptables", "xtables", "snat", "masquerade") {
		p.log.Warn("Running without NAT because the host's firewall refuses it; instances reach this host and each other only",
			"network", p.opts.Network, "err", err)
		err = p.applyNetwork(ctx, withoutFirewall(p.networkConfig()))
	}
	return err
}

func (p *Provider) applyNetwork(ctx context.Context, config map[string]string) error {
	name := p.opts.Network
	var have thing
	err := p.api.get(ctx, networkPath(name), inDefault, &have)
	if err != nil && !errors.Is(err, compute.ErrNotFound) {
		return err
	}
	switch {
	case err == nil && have.Managed && have.Status == "Created":
		return p.mendNetwork(ctx, have, config)
	case err == nil && have.Managed:
		p.log.Warn("Making a network again whose creation had failed", "network", name)
		if err := p.deleteNetwork(ctx, name); err != nil {
			return fmt.Errorf("delete half-made network: %w", err)
		}
	}
	// Incus refuses to make a bridge that exists without its knowledge,
	// which is how a crash leaves it.
	if err := removeStray(ctx, name); err != nil {
		return err
	}
	want := thing{Name: name, Description: description, Type: "bridge", Config: config}
	err = p.api.call(ctx, http.MethodPost, "/1.0/networks", inDefault, want, nil)
	if err != nil {
		// A network whose set-up failed may stay behind as Errored.
		_ = p.deleteNetwork(context.WithoutCancel(ctx), name)
	}
	return err
}

// mendNetwork brings the network to config, and its interface back if it is
// gone although Incus believes in it.
func (p *Provider) mendNetwork(ctx context.Context, have thing, config map[string]string) error {
	config = maps.Clone(config)
	if !interfaceExists(p.opts.Network) {
		p.log.Warn("Bringing back a network whose interface is gone", "network", p.opts.Network)
		// Any real change makes Incus set the interface up again. 1500
		// is what an unset MTU means.
		if have.Config["bridge.mtu"] == "" {
			config["bridge.mtu"] = "1500"
		} else {
			config["bridge.mtu"] = ""
		}
	}
	return p.mend(ctx, networkPath(p.opts.Network), have, config)
}

// Package incus runs openpcs instances as Incus system containers. It owns a
// small client of the Incus REST API (of which only what is needed here is
// spoken) and Provider, the default compute engine. Nothing above
// internal/compute may know that Incus exists, so this package must not be
// imported by anything but the wiring. See DESIGN.md, sections 3 and 4.
package incus

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"sync/atomic"
	"time"

	"github.com/openpcs/openpcs/internal/compute"
)

// The names and sizes used where Options leaves them open.
const (
	defaultProject     = "openpcs"
	defaultPool        = "openpcs"
	defaultNetwork     = "openpcs0"
	defaultPoolSizeGiB = 30
)

var defaultSubnet = netip.MustParsePrefix("10.77.0.0/16")

// Options says which Incus to use and what belongs to openpcs there. The zero
// value is usable: every field has a default.
type Options struct {
	// Socket is the path of Incus's unix socket; DefaultSocket if empty.
	Socket string
	// Project, Pool and Network name the three things that Setup makes and
	// Remove deletes. Two Providers that share a machine must not share
	// any of these.
	Project, Pool, Network string
	// Subnet is what the bridge serves; its first address is the gateway.
	Subnet netip.Prefix
	// Domain, when set, is the DNS domain whose names of the form
	// ip-10-77-0-5.<Domain> the bridge's resolver answers by itself, for
	// all addresses of Subnet and without any registration.
	Domain string
	// PoolSizeGiB limits the loop file behind the storage pool, which is
	// sparse: it takes only what is written.
	PoolSizeGiB int
	// MaxCPUs and MaxMemoryMiB are the largest Spec.CPUs and Spec.MemoryMiB
	// that are put on an instance; larger ones, and all where this is 0, are
	// not. Incus takes a limit that the host cannot enforce without a word,
	// so whoever sets these must know.
	MaxCPUs, MaxMemoryMiB int
	// Logger receives the few things that an operator should know; nil
	// discards them.
	Logger *slog.Logger
}

// Provider implements compute.Provider with Incus system containers.
type Provider struct {
	opts   Options
	api    *client
	log    *slog.Logger
	create chan struct{} // bounds concurrent creations, see createSlots

	rebootGrace time.Duration

	// noFilter is set once the host turned out to be unable to filter
	// forged addresses; until the next Setup instances start without.
	noFilter atomic.Bool
}

var _ compute.Provider = (*Provider)(nil)

// New returns a Provider. It touches nothing: a missing or broken Incus shows
// in the first call, usually Setup.
func New(opts Options) *Provider {
	if opts.Socket == "" {
		opts.Socket = DefaultSocket()
	}
	if opts.Project == "" {
		opts.Project = defaultProject
	}
	if opts.Pool == "" {
		opts.Pool = defaultPool
	}
	if opts.Network == "" {
		opts.Network = defaultNetwork
	}
	if !opts.Subnet.IsValid() {
		opts.Subnet = defaultSubnet
	}
	opts.Subnet = opts.Subnet.Masked()
	if opts.PoolSizeGiB == 0 {
		opts.PoolSizeGiB = defaultPoolSizeGiB
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	return &Provider{
		opts:   opts,
		api:    newClient(opts.Socket, opts.Project),
		log:    opts.Logger,
		create: make(chan struct{}, createSlots()),

		rebootGrace: rebootGrace,
	}
}

// DefaultSocket returns the socket that the environment names
// (OPENPCS_INCUS_SOCKET, then INCUS_SOCKET), or else the first that exists of
// the one openpcs starts for itself and the system's.
func DefaultSocket() string {
	for _, key := range []string{"OPENPCS_INCUS_SOCKET", "INCUS_SOCKET"} {
		if s := os.Getenv(key); s != "" {
			return s
		}
	}
	const own, system = "/var/lib/openpcs/incus/unix.socket", "/var/lib/incus/unix.socket"
	if _, err := os.Stat(own); errors.Is(err, fs.ErrNotExist) {
		return system
	}
	return own
}

// Ping reports whether Incus answers on the socket and trusts us.
func (p *Provider) Ping(ctx context.Context) error {
	_, err := p.api.server(ctx)
	return err
}

// gateway is the bridge's own address with the length of the subnet.
func (p *Provider) gateway() netip.Prefix {
	return netip.PrefixFrom(p.opts.Subnet.Addr().Next(), p.opts.Subnet.Bits())
}

// server is what GET /1.0 tells, as far as it is of interest.
type server struct {
	Auth        string   `json:"auth"`
	Extensions  []string `json:"api_extensions"`
	Environment struct {
		ServerVersion  string `json:"server_version"`
		StorageDrivers []struct {
			Name string `json:"Name"`
		} `json:"storage_supported_drivers"`
	} `json:"environment"`
}

func (s server) hasDriver(name string) bool {
	for _, d := range s.Environment.StorageDrivers {
		if d.Name == name {
			return true
		}
	}
	return false
}

func (c *client) server(ctx context.Context) (server, error) {
	var s server
	if err := c.get(ctx, "/1.0", nil, &s); err != nil {
		return s, fmt.Errorf("ask incus for its version: %w", err)
	}
	if s.Auth != "trusted" {
		return s, fmt.Errorf("use incus at %s: the socket does not trust this user", c.socket)
	}
	return s, nil
}

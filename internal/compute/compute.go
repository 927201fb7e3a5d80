// Package compute is the seam between openpcs and whatever runs its
// instances. It owns the vocabulary (Spec, Instance, Event) and the Provider
// interface; it must not know any engine. The engines live below it: incus
// (default), and fake for tests of scale and faults.
package compute

import (
	"context"
	"errors"
	"net/netip"
	"time"
)

// ErrNotFound is returned by a Provider for an instance or image that does
// not exist (any more).
var ErrNotFound = errors.New("not found")

// A CapacityError says that the provider could not start an instance for a
// reason that may pass. Code is the EC2 error code that users know, for
// example InsufficientInstanceCapacity.
type CapacityError struct {
	Code string
	Err  error
}

func (e *CapacityError) Error() string { return e.Code + ": " + e.Err.Error() }

func (e *CapacityError) Unwrap() error { return e.Err }

// State is what the provider sees of an instance. It is coarser than the
// EC2 state that users see: pending and shutting-down are decisions of the
// control plane, not observations.
type State string

// The states a provider reports.
const (
	Running State = "running"
	Stopped State = "stopped"
)

// Mount is a folder of the host (or a volume of the provider) that an
// instance sees.
type Mount struct {
	Name     string // unique within the instance, [a-z0-9-]+
	Source   string // absolute path on the host
	Target   string // absolute path in the instance
	ReadOnly bool
}

// Spec is all that a provider needs to start one instance.
type Spec struct {
	// ID names the instance for good, e.g. i-0123456789abcdef0; launching
	// the same ID twice is the same as launching it once.
	ID       string
	Image    string // image reference as returned by ImportImage
	Role     string // "node" or "controller": which agent the image starts
	Hostname string // e.g. ip-10-77-0-5.ap-northeast-1.compute.internal
	Domain   string // DNS search domain
	// Address is the instance's own address with the length of the bridge's
	// prefix; the provider knows the gateway.
	Address   netip.Prefix
	CPUs      int // 0: no limit
	MemoryMiB int // 0: no limit
	Mounts    []Mount
	Labels    map[string]string // kept by the provider, returned by List
}

// Instance is what a provider reports of one.
type Instance struct {
	ID        string
	State     State
	Labels    map[string]string
	CreatedAt time.Time
}

// EventKind tells what happened to an instance.
type EventKind string

// The kinds of events. They are reported whoever caused them.
const (
	Started EventKind = "started"
	Halted  EventKind = "stopped"
	Deleted EventKind = "deleted"
)

// Event is a change of one instance, seen by the provider.
type Event struct {
	ID   string
	Kind EventKind
}

// Command is run in an instance as root, without a terminal.
type Command struct {
	Argv  []string
	Env   map[string]string
	Dir   string
	Stdin []byte
}

// Result is what a Command left behind. Output is cut at 1 MiB each.
type Result struct {
	Stdout, Stderr []byte
	ExitCode       int
}

// Image describes a root file system to import. The files are those that
// internal/image builds.
type Image struct {
	Ref          string // out: what Spec.Image takes
	Name         string
	MetadataPath string
	RootfsPath   string
}

// Host says where instances live: the bridge's own address (which is the
// instances' gateway) with its prefix, and the bridge's interface name.
type Host struct {
	Bridge  string
	Gateway netip.Prefix
}

// Provider starts, stops and watches instances. All methods are safe for
// concurrent use and idempotent: repeating a call that succeeded changes
// nothing and succeeds.
type Provider interface {
	// Setup makes whatever the provider needs once (project, storage,
	// network) or takes over what is there, and says where instances live.
	Setup(ctx context.Context) (Host, error)
	// Remove deletes everything that the provider ever made, instances
	// and images included.
	Remove(ctx context.Context) error

	// ImportImage makes an image known and returns its reference.
	ImportImage(ctx context.Context, img Image) (ref string, err error)
	// DeleteImage forgets an image; running instances stay.
	DeleteImage(ctx context.Context, ref string) error

	// Launch returns when the instance is started (not: booted).
	Launch(ctx context.Context, spec Spec) error
	// Terminate stops and deletes an instance at once.
	Terminate(ctx context.Context, id string) error
	// Reboot restarts the instance in place; its disk stays.
	Reboot(ctx context.Context, id string) error
	List(ctx context.Context) ([]Instance, error)
	// Watch calls fn for each event until ctx ends or the connection
	// breaks; after a break the caller must List and Watch again.
	// ready is called once, as soon as no event can be missed any more.
	Watch(ctx context.Context, ready func(), fn func(Event)) error

	// Exec runs a command to its end.
	Exec(ctx context.Context, id string, cmd Command) (Result, error)
	// Console returns what the instance wrote to its console so far.
	Console(ctx context.Context, id string) ([]byte, error)
	// ReadFile returns a file of a running or stopped instance.
	ReadFile(ctx context.Context, id, path string) ([]byte, error)
	// ShellCommand returns the command line and extra environment that
	// gives a person a terminal (or, with argv, runs that) in the instance.
	ShellCommand(id string, argv []string) (command, env []string)
}

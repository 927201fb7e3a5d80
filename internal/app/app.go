package app

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/openpcs/openpcs/internal/awsapi"
	"github.com/openpcs/openpcs/internal/collect"
	"github.com/openpcs/openpcs/internal/compute"
	"github.com/openpcs/openpcs/internal/compute/incus"
	"github.com/openpcs/openpcs/internal/control"
	"github.com/openpcs/openpcs/internal/delivery"
	"github.com/openpcs/openpcs/internal/ec2"
	"github.com/openpcs/openpcs/internal/fault"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/iam"
	"github.com/openpcs/openpcs/internal/image"
	"github.com/openpcs/openpcs/internal/imds"
	"github.com/openpcs/openpcs/internal/logs"
	"github.com/openpcs/openpcs/internal/metrics"
	"github.com/openpcs/openpcs/internal/pcs"
	"github.com/openpcs/openpcs/internal/s3"
	"github.com/openpcs/openpcs/internal/secretsmanager"
	"github.com/openpcs/openpcs/internal/ssm"
	"github.com/openpcs/openpcs/internal/store"
	"github.com/openpcs/openpcs/internal/sts"
)

// App is one control plane.
type App struct {
	opts       Options
	provider   compute.Provider
	store      *store.Store
	keys       *awsapi.Keys
	root       awsapi.Key
	control    *control.Control
	commands   *ssm.SSM
	cloudwatch *logs.Logs
	collector  *collect.Collector
	objects    *s3.S3
	deliveries *delivery.Runner
	sinks      *delivery.Destinations
	host       compute.Host
	secured    secured
	started    time.Time
	metrics    *metrics.Registry
	undo       []func() // in reverse at Stop
	failed     chan error
}

// Provider returns the default engine for the options.
func Provider(o Options) *incus.Provider {
	name := "openpcs"
	if o.Site != "" {
		name += "-" + o.Site
	}
	// An error shows when the control plane starts.
	limits, _ := o.Enforcement()
	return incus.New(incus.Options{
		MaxCPUs: limits.CPUs, MaxMemoryMiB: limits.MemoryMiB,
		Project: name, Pool: name, Network: Bridge(o), Subnet: o.Subnet, Logger: o.Log,
		Domain: fleet.PrivateDomain(o.Region),
	})
}

// Bridge is the network interface of a site's instances.
func Bridge(o Options) string {
	if o.Site != "" {
		return "openpcs-" + o.Site
	}
	return "openpcs0"
}

// New returns a control plane on a provider; nothing is touched yet.
func New(o Options, p compute.Provider) *App {
	return &App{opts: o, provider: p, failed: make(chan error, 4), metrics: metrics.New()}
}

// GCPercent is for the garbage collector of a process that serves. Half as many
// collections take a tenth of a processor less when calls and passes over
// thousands of nodes come at once, for some 20 MiB.
const GCPercent = 200

// Start brings everything up; when a step fails, those before it are undone.
func (a *App) Start(ctx context.Context) (err error) {
	defer func() {
		if err != nil {
			a.Stop()
		}
	}()
	o := a.opts
	if err := os.MkdirAll(o.StateDir, 0o711); err != nil {
		return fmt.Errorf("make the state folder: %w", err)
	}
	if err := a.lock(); err != nil {
		return err
	}
	if a.store, err = store.Open(filepath.Join(o.StateDir, "state.db")); err != nil {
		return err
	}
	a.later(func() { _ = a.store.Close() })
	if err := a.openLogs(); err != nil {
		return err
	}
	seam := fault.KillAt(o.CrashAt)
	a.store.SetSeam(seam)
	a.provider = fault.Provider(a.provider, seam)
	a.keys = &awsapi.Keys{Store: a.store, Account: o.Account}
	if a.root, err = a.keys.EnsureRoot(ctx); err != nil {
		return err
	}
	if err := a.checkSubnet(); err != nil {
		return err
	}
	if a.host, err = a.provider.Setup(ctx); err != nil {
		return fmt.Errorf("set up the provider: %w", err)
	}
	_, port, err := net.SplitHostPort(o.Listen)
	if err != nil {
		return fmt.Errorf("listen on %q: it is not host:port", o.Listen)
	}
	limits, err := o.Enforcement()
	if err != nil {
		return err
	}
	for _, text := range limits.Lost {
		o.Log.Info("Something is not enforced on this host", "what", text)
	}
	inner := net.JoinHostPort(a.host.Gateway.Addr().String(), port)
	metadata := &imds.Server{Store: a.store, Keys: a.keys, Account: o.Account, Secret: []byte(a.root.Secret), Log: o.Log}
	a.control = control.New(control.Options{
		Forget: metadata.Forget, Passed: a.passed,
		Store: a.store, Provider: a.provider, Keys: a.keys, Account: o.Account, StateDir: o.StateDir,
		Endpoint: "http://" + inner, PrefixBits: a.host.Gateway.Bits(), ResumeTimeout: o.ResumeTimeout, Faults: o.Faults, Breaker: o.Breaker, LogLimit: o.LogLimit, Seam: seam,
		Cgroups: limits.Plugins, CheckHardware: limits.Check, Log: o.Log,
	})
	front, err := a.services(ctx)
	if err != nil {
		return err
	}
	if err := a.collectLogs(ctx); err != nil {
		return err
	}
	if err := a.deliver(); err != nil {
		return err
	}
	if a.secured, err = o.secure(time.Now()); err != nil {
		return err
	}
	if warning := o.insecure(a.secured); warning != "" {
		o.Log.Warn(warning, "address", o.Listen)
	}
	if err := a.listen("tcp", o.Listen, front, a.secured.config); err != nil {
		return err
	}
	// Instances have it plain: what they say stays on this machine's bridge.
	if err := a.listen("tcp", inner, front, nil); err != nil {
		return err
	}
	metadata.Control = a.control
	if err := a.metadata(metadata.Handler()); err != nil {
		return err
	}
	if err := a.measure(ctx); err != nil {
		return err
	}
	if err := a.admin(); err != nil {
		return err
	}
	if err := a.control.Start(ctx); err != nil {
		return err
	}
	a.later(a.control.Stop)
	a.started = time.Now()
	a.later(a.housekeeping())
	o.Log.Info("Serving", "api", o.Listen, "state", o.StateDir, "region", o.Region)
	return nil
}

// checkSubnet refuses a range of addresses that the host uses already, which
// would cut it off from what is there.
func (a *App) checkSubnet() error {
	interfaces, err := net.Interfaces()
	if err != nil {
		return err
	}
	for _, i := range interfaces {
		addrs, err := i.Addrs()
		if err != nil || i.Name == Bridge(a.opts) {
			continue
		}
		for _, addr := range addrs {
			if p, err := netip.ParsePrefix(addr.String()); err == nil && p.Overlaps(a.opts.Subnet) {
				return fmt.Errorf("the network %s of the interface %s overlaps %s: choose another for the instances with OPENPCS_SUBNET", p.Masked(), i.Name, a.opts.Subnet)
			}
		}
	}
	return nil
}

func (a *App) later(f func()) { a.undo = append(a.undo, f) }

// Stop ends everything that Start began. Instances and jobs run on.
func (a *App) Stop() {
	for i := len(a.undo) - 1; i >= 0; i-- {
		a.undo[i]()
	}
	a.undo = nil
}

// Failed tells of a listener that broke.
func (a *App) Failed() <-chan error { return a.failed }

// lock keeps two control planes from one state folder.
func (a *App) lock() error {
	f, err := os.OpenFile(filepath.Join(a.opts.StateDir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		return fmt.Errorf("another openpcs serve uses %s: stop it first, or choose another folder with OPENPCS_STATE", a.opts.StateDir)
	}
	a.later(func() { _ = f.Close() })
	return nil
}

func (a *App) services(ctx context.Context) (http.Handler, error) {
	o := a.opts
	pool := o.Subnet
	network := ec2.New(ec2.Options{Store: a.store, Account: o.Account, Instances: a.control, Pool: pool})
	people := iam.New(iam.Options{Store: a.store, Account: o.Account})
	if err := people.EnsureDefaults(ctx); err != nil {
		return nil, err
	}
	a.commands = ssm.New(ssm.Options{Store: a.store, Account: o.Account, Runner: a, Logger: o.Log})
	if err := a.commands.Start(ctx); err != nil {
		return nil, err
	}
	a.later(a.commands.Stop)
	cluster := &pcs.Service{
		Store: a.store, Account: o.Account, Pool: pool, Wake: a.control.Wake, FreeAddress: fleet.PickAddress,
		Buildable: buildable(),
	}
	if err := ec2.EnsureRegion(ctx, a.store, o.Region, pool); err != nil {
		return nil, err
	}
	var err error
	if a.objects, err = a.buckets(); err != nil {
		return nil, err
	}
	return awsapi.NewServer(awsapi.Options{
		Keys: a.keys, Account: o.Account, Logger: o.Log, PageSecret: []byte(a.root.Secret), Observe: a.called,
		Services: []awsapi.Service{
			cluster.API(), network.Service(), people.Service(), sts.Service(), a.commands.Service(),
			secretsmanager.New(secretsmanager.Options{Store: a.store, Account: o.Account}).Service(),
			a.objects.Service(), a.cloudwatch.Service(),
		},
	}), nil
}

// StorageProgram serves the buckets; it lies beside the program itself.
const StorageProgram = "openpcs-s3"

// StoragePath is where that program is, beside the one at a path.
func StoragePath(self string) string { return filepath.Join(filepath.Dir(self), StorageProgram) }

// buckets is the service s3.
func (a *App) buckets() (*s3.S3, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find %s: %w", StorageProgram, err)
	}
	elsewhere, err := a.opts.s3Endpoint()
	if err != nil {
		return nil, err
	}
	b := s3.New(s3.Options{
		Endpoint: elsewhere,
		Dir:      filepath.Join(a.opts.StateDir, "s3"), Account: a.opts.Account, Region: a.opts.Region, Secret: []byte(a.root.Secret),
		Command: []string{StoragePath(self)}, Logger: a.opts.Log,
	})
	a.later(b.Stop)
	return b, nil
}

func buildable() (names []string) {
	for _, v := range image.Catalogue() {
		if v.Buildable() {
			names = append(names, v.Slurm)
		}
	}
	return names
}

// Run runs a script in an instance, for ssm. Without a folder it runs in the home
// of ubuntu, where the image has that user: root's own is closed to everybody else,
// so that a job which "sudo -u ubuntu sbatch" submits there has no place for its
// output and fails.
func (a *App) Run(ctx context.Context, instanceID, script, dir string, timeout time.Duration) (stdout, stderr []byte, code int, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	shell := []string{"/bin/sh", "-s"}
	if dir == "" {
		shell = []string{"/bin/sh", "-c", "cd ~ubuntu 2>/dev/null || cd /; exec /bin/sh -s"}
	}
	r, err := a.provider.Exec(ctx, instanceID, compute.Command{
		Argv: shell, Stdin: []byte(script), Dir: dir,
		Env: map[string]string{"HOME": "/root", "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
	})
	return r.Stdout, r.Stderr, r.ExitCode, err
}

// listen serves a handler until Stop, with TLS if there is a configuration.
func (a *App) listen(network, address string, h http.Handler, secure *tls.Config) error {
	stop, err := a.serve(network, address, "", h, secure)
	if err == nil {
		a.later(stop)
	}
	return err
}

// hopLimit is what describe-instances says of the metadata service: answers
// reach a container on the instance, and nothing beyond.
const hopLimit = 2

// onDevice makes a socket take only what comes in at the device, and its
// answers die on the way to anywhere else.
func onDevice(device string) func(_, _ string, c syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) error {
		var sockErr error
		err := c.Control(func(fd uintptr) {
			sockErr = errors.Join(
				unix.SetsockoptString(int(fd), unix.SOL_SOCKET, unix.SO_BINDTODEVICE, device),
				unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_TTL, hopLimit),
			)
		})
		return errors.Join(err, sockErr)
	}
}

// serve serves a handler; with a device, only what comes in there.
func (a *App) serve(network, address, device string, h http.Handler, secure *tls.Config) (stop func(), err error) {
	lc := net.ListenConfig{}
	if device != "" {
		lc.Control = onDevice(device)
	}
	l, err := lc.Listen(context.Background(), network, address)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", address, err)
	}
	if secure != nil {
		l = tls.NewListener(l, secure)
	}
	server := awsapi.NewHTTPServer(h)
	if device != "" || strings.HasPrefix(address, a.host.Gateway.Addr().String()+":") {
		// On the bridge every agent has one while its cluster starts.
		awsapi.LimitConnections(server, 4096, 128)
	}
	go func() {
		if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			a.failed <- fmt.Errorf("serve %s: %w", address, err)
		}
	}()
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		defer cancel()
		if server.Shutdown(ctx) != nil {
			_ = server.Close()
		}
	}, nil
}

// metadataLook is how often the bridge is looked at.
const metadataLook = 2 * time.Second

// metadata serves the metadata service on the bridge alone. An engine that
// restarts makes its bridge anew, so the service follows it.
func (a *App) metadata(handler http.Handler) error {
	bridge, err := net.InterfaceByName(a.host.Bridge)
	if err != nil {
		return fmt.Errorf("find the bridge %s: %w", a.host.Bridge, err)
	}
	start := func() (stop func(), err error) {
		if err := addAddress(a.host.Bridge, netip.MustParseAddr(imds.Address)); err != nil {
			return nil, err
		}
		return a.serve("tcp", imds.Address+":80", a.host.Bridge, handler, nil)
	}
	stop, err := start()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		ticker := time.NewTicker(metadataLook)
		defer ticker.Stop()
		index := bridge.Index
		for {
			select {
			case <-ctx.Done():
				stop()
				return
			case <-ticker.C:
			}
			now, err := net.InterfaceByName(a.host.Bridge)
			if err != nil || (now.Index == index && hasAddress(now, imds.Address)) {
				continue
			}
			a.opts.Log.Info("Bridge was made anew, the metadata service follows", "bridge", a.host.Bridge)
			stop()
			fresh, err := start()
			if err != nil {
				a.opts.Log.Warn("Metadata service did not start", "err", err)
				stop = func() {}
				continue
			}
			stop, index = fresh, now.Index
		}
	}()
	a.later(func() {
		cancel()
		<-done
	})
	return nil
}

func hasAddress(i *net.Interface, address string) bool {
	addrs, err := i.Addrs()
	if err != nil {
		return false
	}
	for _, a := range addrs {
		if strings.HasPrefix(a.String(), address+"/") {
			return true
		}
	}
	return false
}

// addAddress gives the bridge the address of the metadata service, with the
// scope that the engine leaves alone, and a label by which the bridge's dnsmasq
// leaves it alone: when the engine restarts, a dnsmasq takes all addresses of
// its bridge, and of two that want this one the second does not start.
func addAddress(bridge string, address netip.Addr) error {
	args := []string{"address", "add", address.String() + "/32", "dev", bridge, "scope", "link"}
	if label := bridge + ":m"; len(label) < unix.IFNAMSIZ {
		args = append(args, "label", label)
	}
	out, err := exec.Command("ip", args...).CombinedOutput()
	if err != nil && !strings.Contains(string(out), "exists") && !strings.Contains(string(out), "already assigned") {
		return fmt.Errorf("give %s the address %s: %w: %s", bridge, address, err, strings.TrimSpace(string(out)))
	}
	return nil
}

// housekeeping forgets what is out of date, hourly, and soon after the start: an
// openpcs that never runs for an hour must forget too.
func (a *App) housekeeping() func() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		ticker := time.NewTicker(time.Minute)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
				ticker.Reset(time.Hour)
			}
			err := errors.Join(a.keys.Purge(ctx), pcs.PurgeTokens(ctx, a.store, time.Now()),
				a.control.ForgetHistory(ctx, time.Now().Add(-a.opts.LogRetention)), a.cloudwatch.Sweep(ctx, time.Now()))
			if err != nil && ctx.Err() == nil {
				a.opts.Log.Warn("Housekeeping did not finish", "err", err)
			}
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

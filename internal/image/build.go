package image

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Options says what to build and where.
type Options struct {
	// Version is a Slurm version of the catalogue, or Generic.
	Version string
	// Agent is the openpcs binary that the image carries. It must run
	// without shared libraries. Empty means the running one.
	Agent string
	// AgentVersion is what /opt/aws/pcs/version says.
	AgentVersion string
	// CacheDir keeps root file systems and images; empty means CacheDir().
	CacheDir string
	// Refresh builds the base root file system anew, with the packages that
	// its Debian suite has today.
	Refresh bool
	// Progress is told what is being done, one line each; it may be nil.
	Progress func(line string)
	// Now is the clock; nil means time.Now.
	Now func() time.Time
}

// Built describes an image in the cache.
type Built struct {
	// Name is what users know it by, with the day it was built.
	Name string `json:"name"`
	// Version is the Slurm version of the catalogue, or Generic.
	Version string `json:"version"`
	// SlurmVersion is the exact release inside, empty in a generic image.
	SlurmVersion string `json:"slurmVersion,omitempty"`
	// Suite is the Debian suite it is made of.
	Suite string `json:"suite"`
	// Architecture is written as EC2 does: x86_64 or arm64.
	Architecture string `json:"architecture"`
	// CreatedAt is when it was built.
	CreatedAt time.Time `json:"createdAt"`
	// Key changes whenever the content does.
	Key string `json:"key"`
	// MetadataPath and RootfsPath are the two files of an Incus image.
	MetadataPath string `json:"metadataPath"`
	RootfsPath   string `json:"rootfsPath"`
	// Size is the length of both files in bytes.
	Size int64 `json:"size"`
}

// CacheDir is where images are kept unless told otherwise.
func CacheDir() string {
	if dir := os.Getenv("OPENPCS_CACHE"); dir != "" {
		return dir
	}
	return "/var/cache/openpcs"
}

// Build returns the image of a version, and makes it first if the cache does
// not have it just so. It needs root. Builds of several processes in one
// cache wait for each other; what a killed one left behind is removed.
func Build(ctx context.Context, opts Options) (Built, error) {
	if opts.CacheDir == "" {
		opts.CacheDir = CacheDir()
	}
	if opts.Progress == nil {
		opts.Progress = func(string) {}
	}
	if opts.Now == nil {
		opts.Now = time.Now
	}
	if opts.AgentVersion == "" {
		opts.AgentVersion = "0.0.0"
	}
	r, err := recipeFor(opts.Version)
	if err != nil {
		return Built{}, err
	}
	if opts.Agent == "" {
		opts.Agent, err = os.Executable()
		if err != nil {
			return Built{}, fmt.Errorf("find the running binary: %w", err)
		}
	}
	held, err := lock(ctx, opts)
	if err != nil {
		return Built{}, err
	}
	defer held.Close()
	b := builder{Options: opts, recipe: r, arch: architecture(), lock: held}
	return b.build(ctx)
}

// builder makes one image.
type builder struct {
	Options
	recipe
	arch string
	lock *os.File
}

func (b *builder) build(ctx context.Context) (Built, error) {
	work := filepath.Join(b.CacheDir, "tmp")
	if err := removeTree(work); err != nil {
		return Built{}, fmt.Errorf("remove what an unfinished build left: %w", err)
	}
	if err := os.MkdirAll(work, 0o755); err != nil {
		return Built{}, fmt.Errorf("make work folder: %w", err)
	}
	defer removeTree(work)

	base, err := b.base(ctx, work)
	if err != nil {
		return Built{}, err
	}
	entries, err := overlay(b.recipe, b.Options, time.Time{})
	if err != nil {
		return Built{}, err
	}
	stamp, err := os.ReadFile(filepath.Join(base, stampFile))
	if err != nil {
		return Built{}, fmt.Errorf("read base root file system: %w", err)
	}
	key, err := imageKey(string(stamp), entries)
	if err != nil {
		return Built{}, err
	}
	if have, ok := b.cached(key); ok {
		b.Progress("image " + have.Name + " is up to date")
		return have, nil
	}
	return b.assemble(ctx, work, base, key)
}

// stampFile, in a base root file system, identifies one run of mmdebstrap.
const stampFile = "etc/openpcs-base"

// base returns the root file system with the packages in it.
func (b *builder) base(ctx context.Context, work string) (string, error) {
	bases := filepath.Join(b.CacheDir, "base")
	final := filepath.Join(bases, b.version+"-"+baseKey(b.recipe))
	if _, err := os.Stat(filepath.Join(final, stampFile)); err == nil && !b.Refresh {
		return final, nil
	}
	mirror, err := hostMirror(ctx, b.suite)
	if err != nil {
		return "", err
	}
	start := b.Now()
	b.Progress(fmt.Sprintf("building the base root file system from Debian %s (%d packages and what they need)", b.suite, len(b.packages)))
	target := filepath.Join(work, "base")
	output, err := b.bootstrap(ctx, target, mirror)
	if since, expired := expiredSince(output); err != nil && expired {
		b.Progress(fmt.Sprintf("WARNING: the mirror's Release file of Debian %s is past its Valid-Until (since %s): the mirror is stale. "+
			"Trying once more without that check; signatures are still verified.", b.suite, since))
		if err := removeTree(target); err != nil {
			return "", fmt.Errorf("remove half-built root file system: %w", err)
		}
		output, err = b.bootstrap(ctx, target, mirror, `--aptopt=Acquire::Check-Valid-Until "false"`)
	}
	if err != nil {
		return "", fmt.Errorf("run mmdebstrap for Debian %s: %w\n%s", b.suite, err, lastLines(output, 12))
	}
	stamp := b.suite + " " + b.Now().UTC().Format(time.RFC3339Nano) + "\n"
	if err := os.WriteFile(filepath.Join(target, stampFile), []byte(stamp), 0o644); err != nil {
		return "", fmt.Errorf("finish base root file system: %w", err)
	}
	if err := replaceTree(target, final); err != nil {
		return "", fmt.Errorf("finish base root file system: %w", err)
	}
	if err := removeOthers(bases, b.version+"-", final); err != nil {
		return "", err
	}
	b.Progress(fmt.Sprintf("base root file system done in %.0f s", b.Now().Sub(start).Seconds()))
	return final, nil
}

// baseOptions are the mmdebstrap options of every base. No documentation
// (but the copyright files) and no translations: nodes are small.
var baseOptions = []string{
	"--mode=root", "--variant=minbase", "--format=directory",
	"--dpkgopt=force-unsafe-io",
	"--dpkgopt=path-exclude=/usr/share/doc/*",
	"--dpkgopt=path-include=/usr/share/doc/*/copyright",
	"--dpkgopt=path-exclude=/usr/share/info/*",
	"--dpkgopt=path-exclude=/usr/share/locale/*",
	"--dpkgopt=path-exclude=/usr/share/man/*",
	`--customize-hook=chroot "$1" useradd --uid 1000 --user-group --create-home --shell /bin/bash ubuntu`,
	`--customize-hook=rm -rf "$1"/var/log/apt "$1"/var/log/dpkg.log "$1"/var/log/bootstrap.log "$1"/var/log/alternatives.log "$1"/var/cache/debconf/*-old`,
}

// slurmOptions are those of a base with Slurm in addition: slurmrestd refuses
// to run as root or as slurm, and no package makes a user for it.
var slurmOptions = []string{
	`--customize-hook=chroot "$1" useradd --system --user-group --no-create-home --home-dir /nonexistent --shell /usr/sbin/nologin slurmrestd`,
}

func (r recipe) options() []string {
	if r.slurm {
		return slices.Concat(baseOptions, slurmOptions)
	}
	return slices.Clone(baseOptions)
}

func baseKey(r recipe) string {
	h := sha256.New()
	field(h, r.suite)
	field(h, r.packages...)
	field(h, r.options()...)
	return hex.EncodeToString(h.Sum(nil))[:12]
}

// bootstrap runs mmdebstrap, passes its steps on as progress, and returns all
// it said.
func (b *builder) bootstrap(ctx context.Context, target, mirror string, extra ...string) (string, error) {
	args := append(b.options(), extra...)
	args = append(args, "--include="+strings.Join(b.packages, ","), b.suite, target)
	if mirror != "" {
		args = append(args, mirror)
	}
	return b.run(ctx, func(line string) {
		if step, ok := strings.CutPrefix(line, "I: "); ok && strings.HasSuffix(step, "...") && !strings.Contains(step, "signal") {
			b.Progress("  " + step)
		}
	}, "mmdebstrap", args...)
}

// assemble puts the overlay on a copy of the base and packs it.
func (b *builder) assemble(ctx context.Context, work, base, key string) (Built, error) {
	now := b.Now()
	built := Built{
		Name:         b.product(b.arch) + "-" + now.UTC().Format("20060102"),
		Version:      b.version,
		Suite:        b.suite,
		Architecture: b.arch,
		CreatedAt:    now.UTC().Truncate(time.Second),
		Key:          key,
	}
	b.Progress("assembling image " + built.Name)
	root := filepath.Join(work, "root")
	if out, err := b.run(ctx, nil, "cp", "-a", "--reflink=auto", base, root); err != nil {
		return Built{}, fmt.Errorf("copy base root file system: %w\n%s", err, lastLines(out, 3))
	}
	entries, err := overlay(b.recipe, b.Options, now)
	if err != nil {
		return Built{}, err
	}
	entries = append(entries, entry{path: stampFile, remove: true})
	if b.slurm {
		status, err := os.ReadFile(filepath.Join(root, "var/lib/dpkg/status"))
		if err != nil {
			return Built{}, fmt.Errorf("read the image's packages: %w", err)
		}
		built.SlurmVersion = packageVersion(status, "slurmctld")
		if !strings.HasPrefix(built.SlurmVersion, b.version+".") {
			return Built{}, fmt.Errorf("check the image's Slurm: Debian %s carries %q, not %s", b.suite, built.SlurmVersion, b.version)
		}
		links, err := slurmEntries(root, b.recipe, built.SlurmVersion)
		if err != nil {
			return Built{}, err
		}
		entries = append(entries, links...)
	}
	if err := apply(root, entries); err != nil {
		return Built{}, err
	}

	out := filepath.Join(work, "image")
	if err := os.Mkdir(out, 0o755); err != nil {
		return Built{}, fmt.Errorf("make image folder: %w", err)
	}
	if msg, err := b.run(ctx, nil, "mksquashfs", root, filepath.Join(out, "rootfs.squashfs"),
		"-comp", "zstd", "-Xcompression-level", "3", "-noappend", "-no-progress", "-quiet"); err != nil {
		return Built{}, fmt.Errorf("pack root file system: %w\n%s", err, lastLines(msg, 3))
	}
	meta, err := metadataTar(b.recipe, built)
	if err != nil {
		return Built{}, err
	}
	if err := os.WriteFile(filepath.Join(out, "metadata.tar"), meta, 0o644); err != nil {
		return Built{}, fmt.Errorf("write image metadata: %w", err)
	}
	final := filepath.Join(b.CacheDir, "images", built.Name)
	built.MetadataPath = filepath.Join(final, "metadata.tar")
	built.RootfsPath = filepath.Join(final, "rootfs.squashfs")
	info, err := os.Stat(filepath.Join(out, "rootfs.squashfs"))
	if err != nil {
		return Built{}, fmt.Errorf("pack root file system: %w", err)
	}
	built.Size = info.Size() + int64(len(meta))
	doc, err := json.MarshalIndent(built, "", "  ")
	if err != nil {
		return Built{}, fmt.Errorf("describe image: %w", err)
	}
	if err := os.WriteFile(filepath.Join(out, infoFile), append(doc, '\n'), 0o644); err != nil {
		return Built{}, fmt.Errorf("describe image: %w", err)
	}
	if err := replaceTree(out, final); err != nil {
		return Built{}, fmt.Errorf("finish image: %w", err)
	}
	b.Progress(fmt.Sprintf("image %s done in %.1f s (%d MB)", built.Name, b.Now().Sub(now).Seconds(), built.Size/1e6))
	return built, nil
}

// run runs a command in process and mount namespaces of its own, which end
// with ctx and with this process, however that ends: nothing it started or
// mounted stays. It returns all that the command said, and passes each line on
// meanwhile.
func (b *builder) run(ctx context.Context, line func(string), name string, args ...string) (string, error) {
	// The death signal belongs to the thread that starts the command.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.CommandContext(ctx, "unshare", append([]string{"--pid", "--fork", "--kill-child", "--mount-proc", "--", name}, args...)...)
	cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = 10 * time.Second
	// Until the last of its processes is gone, the cache is not free.
	cmd.ExtraFiles = []*os.File{b.lock}
	out := &lineWriter{line: line}
	cmd.Stdout, cmd.Stderr = out, out
	err := cmd.Run()
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return out.all.String(), err
}

// lineWriter keeps what is written and hands out whole lines.
type lineWriter struct {
	mu   sync.Mutex
	all  bytes.Buffer
	rest []byte
	line func(string)
}

// Write implements io.Writer.
func (w *lineWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all.Write(p)
	if w.line == nil {
		return len(p), nil
	}
	w.rest = append(w.rest, p...)
	for {
		i := bytes.IndexByte(w.rest, '\n')
		if i < 0 {
			return len(p), nil
		}
		w.line(strings.TrimRight(string(w.rest[:i]), "\r"))
		w.rest = w.rest[i+1:]
	}
}

// lastLines returns the end of a long text.
func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimRight(s, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// architecture is this machine's, as EC2 writes it.
func architecture() string {
	if runtime.GOARCH == "amd64" {
		return "x86_64"
	}
	return runtime.GOARCH
}

package image

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
)

//go:embed files
var fileFS embed.FS

// entry is one thing that the overlay does to a root file system.
type entry struct {
	path    string // relative to the root
	mode    fs.FileMode
	content []byte
	source  string // a file of the host to copy, in place of content
	link    string // target of a symbolic link
	dir     bool
	remove  bool
	owner   string // a user of the root file system, root if empty
}

// entryPoints are the commands of the PCS agent that AMI builders and
// user data know by name, with the stage of our agent that does their work.
var entryPoints = map[string]string{
	"pcs_ami_cleanup.sh":                   "ami-cleanup",
	"pcs_bootstrap_config_always.sh":       "config-always",
	"pcs_bootstrap_config_per_instance.sh": "config-per-instance",
	"pcs_bootstrap_finalize.sh":            "finalize",
	"pcs_bootstrap_init.sh":                "init",
}

// masked are the units that do nothing useful in a container, or that would
// only make its boot longer.
var masked = []string{
	"apt-daily-upgrade.service", "apt-daily-upgrade.timer", "apt-daily.service", "apt-daily.timer",
	"console-getty.service", "container-getty@.service", "dev-hugepages.mount", "dev-mqueue.mount",
	"dpkg-db-backup.timer", "e2scrub_all.timer", "e2scrub_reap.service", "fstrim.timer",
	"getty.target", "getty-static.service", "getty@.service", "imports.target", "kmod-static-nodes.service", "ldconfig.service",
	"modprobe@.service", "munge.service", "proc-sys-fs-binfmt_misc.automount", "sys-fs-fuse-connections.mount",
	"sys-kernel-config.mount", "sys-kernel-debug.mount", "sys-kernel-tracing.mount",
	"systemd-ask-password-console.path", "systemd-ask-password-wall.path", "systemd-ask-password.socket", "systemd-binfmt.service",
	"systemd-creds.socket", "systemd-factory-reset.socket", "systemd-firstboot.service", "systemd-hibernate-clear.service",
	"systemd-hostnamed.socket", "systemd-hwdb-update.service", "systemd-journal-catalog-update.service",
	"systemd-journal-flush.service", "systemd-journalctl.socket", "systemd-logind-varlink.socket",
	"systemd-logind.service", "systemd-machine-id-commit.service", "systemd-modules-load.service",
	"systemd-mute-console.socket", "systemd-network-generator.service", "systemd-networkd-wait-online.service",
	"systemd-pstore.service", "systemd-random-seed.service", "systemd-remount-fs.service", "systemd-sysctl.service", "systemd-sysext.socket", "systemd-sysinstall.socket",
	"systemd-sysusers.service", "systemd-timesyncd.service", "systemd-tmpfiles-clean.timer",
	"systemd-tmpfiles-setup-dev-early.service", "systemd-tmpfiles-setup-dev.service", "systemd-udev-load-credentials.service",
	"systemd-update-done.service", "systemd-user-sessions.service", "tmp.mount",
}

// unwanted are units that an image does not start at boot but must be able to: openpcs-network.service starts them where no address is
// given. They are the most expensive part of a boot.
var unwanted = []string{
	"sockets.target.wants/systemd-udevd-kernel.socket",
	"sockets.target.wants/systemd-udevd-varlink.socket",
	"sysinit.target.wants/systemd-udev-trigger.service",
	"sysinit.target.wants/systemd-udevd.service",
}

// generators look at boot for things that a container does not have.
var generators = []string{
	"systemd-debug-generator", "systemd-factory-reset-generator", "systemd-getty-generator",
	"systemd-gpt-auto-generator", "systemd-hibernate-resume-generator", "systemd-run-generator",
	"systemd-ssh-generator", "systemd-system-update-generator",
}

const (
	etcUnits = "etc/systemd/system/"
	libUnits = "/usr/lib/systemd/system/"
)

// enabled are the units that an image starts, apart from what systemd itself
// starts: the links that enable them, with what they point at.
func enabled(r recipe) map[string]string {
	units := map[string]string{
		"sysinit.target.wants/openpcs-network.service": "/" + etcUnits + "openpcs-network.service",
	}
	if r.slurm {
		for _, unit := range []string{"openpcs-agent.service", "openpcs-controller.service"} {
			units["multi-user.target.wants/"+unit] = "/" + etcUnits + unit
		}
		return units
	}
	for _, unit := range []string{
		"cloud-config.service", "cloud-final.service", "cloud-init-local.service", "cloud-init-main.service", "cloud-init-network.service",
	} {
		units["cloud-init.target.wants/"+unit] = libUnits + unit
	}
	return units
}

// overlay lists what is done to the base root file system, in order.
func overlay(r recipe, opts Options, installed time.Time) ([]entry, error) {
	entries := []entry{
		// What the building machine left in it.
		{path: "etc/hostname", remove: true},
		{path: "etc/hosts", remove: true},
		{path: "etc/resolv.conf", remove: true},
		{path: "etc/machine-id", mode: 0o444},
		{path: "var/log/journal", remove: true},
		// Debian enables whatever is installed; we say what is started.
		{path: etcUnits + "getty.target.wants", remove: true},
		{path: etcUnits + "multi-user.target.wants", remove: true},
		{path: etcUnits + "network-online.target.wants", remove: true},
		{path: etcUnits + "sockets.target.wants", remove: true},
		{path: etcUnits + "sysinit.target.wants", remove: true},
		{path: etcUnits + "timers.target.wants", remove: true},
		{path: etcUnits + "default.target", link: libUnits + "multi-user.target"},
		// D-Bus is there for who asks (its socket), not at boot.
		{path: etcUnits + "multi-user.target.wants/dbus.service", link: "/dev/null"},
		{path: "etc/tmpfiles.d/systemd-nologin.conf", link: "/dev/null"},
		{path: "etc/openpcs", dir: true, mode: 0o755},
	}
	for _, unit := range masked {
		entries = append(entries, entry{path: etcUnits + unit, link: "/dev/null"})
	}
	for _, unit := range unwanted {
		entries = append(entries, entry{path: etcUnits + unit, link: "/dev/null"})
	}
	for _, g := range generators {
		entries = append(entries, entry{path: "etc/systemd/system-generators/" + g, link: "/dev/null"})
	}
	on := enabled(r)
	for _, unit := range sortedKeys(on) {
		entries = append(entries, entry{path: etcUnits + unit, link: on[unit]})
	}
	for _, layer := range r.layers {
		files, err := layerFiles("files/" + layer)
		if err != nil {
			return nil, err
		}
		entries = append(entries, files...)
	}
	if r.slurm {
		return append(entries, agentEntries(opts, installed)...), nil
	}
	// As on Amazon Linux, so that scripts fail with the messages known there.
	return append(entries, entry{path: "usr/bin/sh", link: "bash"}), nil
}

// agentEntries are the agent and Slurm's places as AWS PCS has them.
func agentEntries(opts Options, installed time.Time) []entry {
	version := fmt.Sprintf("AGENT_VERSION=%s\nAGENT_RELEASE=%s\nAGENT_INSTALL_DATE=%s\n",
		opts.AgentVersion, "1", installed.UTC().Format(time.DateOnly))
	entries := []entry{
		{path: "opt/aws/pcs/version", mode: 0o644, content: []byte(version)},
		{path: "opt/aws/pcs/bin/openpcs", mode: 0o755, source: opts.Agent},
		{path: "etc/slurm/plugstack.conf", remove: true},
		{path: "etc/slurm/plugstack.conf.d", remove: true},
		{path: "var/log/amazon", remove: true},
		{path: "var/log/amazon/pcs", dir: true, mode: 0o755},
		{path: "var/log/slurm", dir: true, mode: 0o755, owner: "slurm"},
		{path: "var/spool/slurmctld", dir: true, mode: 0o755, owner: "slurm"},
		{path: "var/spool/slurmd", dir: true, mode: 0o755},
	}
	for _, name := range sortedKeys(entryPoints) {
		script := "#!/bin/sh\nexec /opt/aws/pcs/bin/openpcs agent " + entryPoints[name] + " \"$@\"\n"
		entries = append(entries, entry{path: "opt/aws/pcs/bin/" + name, mode: 0o755, content: []byte(script)})
	}
	return entries
}

// slurmEntries are the links below /opt/aws/pcs/scheduler to the commands
// that the packages in a root file system brought.
func slurmEntries(root string, r recipe, fullVersion string) ([]entry, error) {
	prefix := "opt/aws/pcs/scheduler/slurm-" + r.version
	entries := []entry{{path: prefix + "/version", mode: 0o644, content: []byte(fullVersion + "\n")}}
	for _, pkg := range slurmPackages {
		if pkg == "openssh-client" {
			continue
		}
		list, err := os.ReadFile(path.Join(root, "var/lib/dpkg/info", pkg+".list"))
		if err != nil {
			return nil, fmt.Errorf("list files of package %s: %w", pkg, err)
		}
		for line := range strings.Lines(string(list)) {
			file := strings.TrimSpace(line)
			dir, name := path.Split(file)
			if dir != "/usr/bin/" && dir != "/usr/sbin/" {
				continue
			}
			// Debian's alternatives: slurmd is a link to slurmd-wlm.
			name = strings.TrimSuffix(name, "-wlm")
			entries = append(entries, entry{
				path: prefix + "/" + path.Base(dir) + "/" + name,
				link: dir + name,
			})
		}
	}
	return entries, nil
}

// layerFiles reads a folder of the embedded overlay.
func layerFiles(layer string) ([]entry, error) {
	var entries []entry
	err := fs.WalkDir(fileFS, layer, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := fileFS.ReadFile(name)
		if err != nil {
			return err
		}
		e := entry{path: strings.TrimPrefix(name, layer+"/"), mode: 0o644, content: content}
		if strings.HasPrefix(e.path, "etc/sudoers.d/") {
			e.mode = 0o440
		}
		entries = append(entries, e)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read overlay %s: %w", layer, err)
	}
	return entries, nil
}

// apply does the entries to a root file system. It cannot be led outside of
// it by a link in there.
func apply(dir string, entries []entry) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return fmt.Errorf("open root file system: %w", err)
	}
	defer root.Close()
	users, err := userIDs(root)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := applyOne(root, e, users); err != nil {
			return fmt.Errorf("write /%s into the image: %w", e.path, err)
		}
	}
	return nil
}

func applyOne(root *os.Root, e entry, users map[string]int) error {
	if !e.dir {
		if err := root.RemoveAll(e.path); err != nil {
			return err
		}
	}
	if e.remove {
		return nil
	}
	if err := root.MkdirAll(path.Dir(e.path), 0o755); err != nil {
		return err
	}
	switch {
	case e.link != "":
		return root.Symlink(e.link, e.path)
	case e.dir:
		if err := root.MkdirAll(e.path, e.mode); err != nil {
			return err
		}
	default:
		if err := writeFile(root, e); err != nil {
			return err
		}
	}
	if err := root.Chmod(e.path, e.mode); err != nil { // whatever the umask is
		return err
	}
	if e.owner == "" {
		return nil
	}
	uid, ok := users[e.owner]
	if !ok {
		return fmt.Errorf("find user %s: not in the image", e.owner)
	}
	return root.Chown(e.path, uid, uid)
}

func writeFile(root *os.Root, e entry) error {
	var from io.Reader = bytes.NewReader(e.content)
	if e.source != "" {
		f, err := os.Open(e.source)
		if err != nil {
			return err
		}
		defer f.Close()
		from = f
	}
	to, err := root.OpenFile(e.path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, e.mode)
	if err != nil {
		return err
	}
	if _, err := io.Copy(to, from); err != nil {
		to.Close()
		return err
	}
	return to.Close()
}

// userIDs reads the users of a root file system.
func userIDs(root *os.Root) (map[string]int, error) {
	passwd, err := root.ReadFile("etc/passwd")
	if err != nil {
		return nil, fmt.Errorf("read users of the image: %w", err)
	}
	users := make(map[string]int)
	for line := range strings.Lines(string(passwd)) {
		fields := strings.Split(line, ":")
		if len(fields) < 4 {
			continue
		}
		if uid, err := strconv.Atoi(fields[2]); err == nil {
			users[fields[0]] = uid
		}
	}
	return users, nil
}

// imageKey identifies the content of an image: equal keys, equal images.
func imageKey(base string, entries []entry) (string, error) {
	h := sha256.New()
	field(h, base)
	for _, e := range entries {
		field(h, e.path, e.mode.String(), e.link, e.owner, strconv.FormatBool(e.dir), strconv.FormatBool(e.remove), string(e.content))
		if e.source == "" {
			continue
		}
		f, err := os.Open(e.source)
		if err != nil {
			return "", fmt.Errorf("read the agent: %w", err)
		}
		_, err = io.Copy(h, f)
		f.Close()
		if err != nil {
			return "", fmt.Errorf("read the agent: %w", err)
		}
	}
	for _, t := range templates {
		text, err := templateFS.ReadFile("templates/" + t.file)
		if err != nil {
			return "", fmt.Errorf("read template: %w", err)
		}
		field(h, t.path, string(text))
	}
	return hex.EncodeToString(h.Sum(nil))[:16], nil
}

// field adds strings to a hash so that no two lists of them look the same.
func field(h hash.Hash, parts ...string) {
	for _, p := range parts {
		fmt.Fprintf(h, "%d:%s", len(p), p)
	}
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

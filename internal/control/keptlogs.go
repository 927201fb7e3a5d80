package control

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/openpcs/openpcs/internal/compute"
	"github.com/openpcs/openpcs/internal/fault"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/store"
)

const (
	// consoleLog is what the console's text is called.
	consoleLog = "console.log"
	// unfinished ends the name of a log that is being written.
	unfinished = ".part"
	// maxKept is how much of one log is kept, its end. Nobody reads more of a
	// node that is gone, and a slurmd with debug flags writes a lot.
	maxKept = 1 << 20
	// keepLimit bounds how long an end waits for its logs.
	keepLimit = 5 * time.Second
	// maxScaling bounds the scaling log of a cluster, in records.
	maxScaling = 100_000
)

// InstanceLog is one log of an instance.
type InstanceLog struct {
	Name string
	Text []byte
}

// logFile is a log on an instance, and the name under which it is shown and
// kept.
type logFile struct{ name, path string }

// logFiles are the logs of an instance, beside its console: of a node, of an
// image with cloud-init, of a controller, of lifecycle scripts. They are shown
// while it runs, and kept when it ends: those first that people look for, as the
// time for that is bounded.
func (c *Control) logFiles(ctx context.Context, id string) []logFile {
	out := []logFile{{"bootstrap.log", "/var/log/amazon/pcs/bootstrap.log"}, {"slurmd.log", "/var/log/slurm/slurmd.log"}}
	i, err := c.instance(ctx, id)
	if err == nil { // none is there of a controller
		out = append(out, lifecycleLogs(i)...)
	}
	out = append(out, logFile{"cloud-init-output.log", "/var/log/cloud-init-output.log"}, logFile{"slurmctld.log", "/var/log/slurm/slurmctld.log"})
	if err != nil {
		out = append(out, logFile{"slurmdbd.log", "/var/log/slurm/slurmdbd.log"}, logFile{"slurmrestd.log", "/var/log/slurm/slurmrestd.log"})
	}
	return out
}

// liveLogs reads the logs that an instance has, as far as there are any, one
// after the other: 40 scripts may have written 10 MiB each. The error is that of
// the console: compute.ErrNotFound if there is no instance.
func (c *Control) liveLogs(ctx context.Context, id string, each func(InstanceLog)) error {
	add := func(name string, text []byte, err error) {
		if err == nil && len(text) > 0 {
			each(InstanceLog{name, text})
		}
	}
	text, err := c.Provider.Console(ctx, id)
	add(consoleLog, text, err)
	if errors.Is(err, compute.ErrNotFound) {
		return err
	}
	for _, f := range c.logFiles(ctx, id) {
		text, err := c.Provider.ReadFile(ctx, id, f.path)
		add(f.name, text, err)
	}
	return err
}

// Logs returns the logs of an instance, and whether they are those that were
// kept of one that is gone.
func (c *Control) Logs(ctx context.Context, id string) (logs []InstanceLog, kept bool, err error) {
	if c.Kept(id) {
		names, err := os.ReadDir(c.LogDir(id))
		for _, f := range names {
			if text, err := c.KeptLog(id, f.Name()); err == nil && !strings.HasSuffix(f.Name(), unfinished) {
				logs = append(logs, InstanceLog{f.Name(), text})
			}
		}
		return logs, true, err
	}
	err = c.liveLogs(ctx, id, func(l InstanceLog) { logs = append(logs, l) })
	if len(logs) > 0 {
		err = nil // a console that cannot be read costs no more than itself
	}
	return logs, false, err
}

// Kept reports whether logs of an instance that is gone are kept.
func (c *Control) Kept(id string) bool {
	info, err := os.Stat(c.LogDir(id))
	return plain(id) && err == nil && info.IsDir()
}

// LogDir is where the logs of an instance that is gone are.
func (c *Control) LogDir(id string) string { return filepath.Join(c.logRoot(), id) }

func (c *Control) logRoot() string { return filepath.Join(c.StateDir, "logs") }

// keepLogs copies the logs out of an instance, as far as there are any: that
// one is missing must not keep the instance. It reports whether there is one.
func (c *Control) keepLogs(ctx context.Context, id string) (there bool) {
	ctx, cancel := context.WithTimeout(ctx, keepLimit)
	defer cancel()
	size := int64(0)
	err := c.liveLogs(ctx, id, func(l InstanceLog) { size += c.keep(id, l) })
	if size > 0 && c.kept.Add(size) > c.LogLimit && c.LogLimit > 0 {
		if err := c.trimLogs(time.Time{}); err != nil {
			c.Log.Warn("Kept logs were not trimmed", "err", err)
		}
	}
	return err == nil
}

// keep writes one log, and returns how much of it. It is whole or not there:
// a control plane that dies meanwhile reads it anew.
func (c *Control) keep(id string, l InstanceLog) int64 {
	path := filepath.Join(c.LogDir(id), l.Name)
	text := ending(l.Text, maxKept)
	err := os.MkdirAll(c.LogDir(id), 0o700)
	if err == nil {
		err = os.WriteFile(path+unfinished, text, 0o600)
	}
	if err == nil {
		err = os.Rename(path+unfinished, path)
	}
	if err != nil {
		c.Log.Warn("Log was not kept", "instance", id, "log", l.Name, "err", err)
		return 0
	}
	return int64(len(text))
}

// ending returns the last lines of a text, with a line that says so if that is
// not all.
func ending(text []byte, most int) []byte {
	if len(text) <= most {
		return text
	}
	cut := text[len(text)-most:]
	if at := bytes.IndexByte(cut, '\n'); at >= 0 {
		cut = cut[at+1:]
	}
	return append(fmt.Appendf(nil, "[the first %d bytes were not kept]\n", len(text)-len(cut)), cut...)
}

// keptDir is what was kept of one instance.
type keptDir struct {
	id   string
	size int64
	at   time.Time
}

// keptDirs lists what is kept, the oldest first.
func (c *Control) keptDirs() (out []keptDir, err error) {
	dirs, err := os.ReadDir(c.logRoot())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, d := range dirs {
		k := keptDir{id: d.Name()}
		walkErr := filepath.WalkDir(c.LogDir(d.Name()), func(_ string, f fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := f.Info()
			if err != nil {
				return err
			}
			if !f.IsDir() {
				k.size += info.Size()
			}
			if info.ModTime().After(k.at) {
				k.at = info.ModTime()
			}
			return nil
		})
		if walkErr == nil { // else it is being removed
			out = append(out, k)
		}
	}
	slices.SortFunc(out, func(a, b keptDir) int { return cmp.Or(a.at.Compare(b.at), cmp.Compare(a.id, b.id)) })
	return out, err
}

// trimLogs removes the kept logs from before a time, and the oldest of the
// rest until they take no more than they may.
func (c *Control) trimLogs(before time.Time) error {
	c.trimming.Lock()
	defer c.trimming.Unlock()
	dirs, err := c.keptDirs()
	if err != nil {
		return fmt.Errorf("list the kept logs: %w", err)
	}
	var total int64
	for _, d := range dirs {
		total += d.size
	}
	var errs []error
	for _, d := range dirs {
		if !d.at.Before(before) && (c.LogLimit <= 0 || total <= c.LogLimit) {
			break
		}
		errs = append(errs, os.RemoveAll(c.LogDir(d.id)))
		total -= d.size
	}
	c.kept.Store(total)
	return errors.Join(errs...)
}

// ForgetHistory removes events, scaling records and kept logs from before a
// time.
func (c *Control) ForgetHistory(ctx context.Context, before time.Time) error {
	err := c.Store.Update(ctx, func(tx *store.Tx) error {
		clusters, err := fleet.Clusters.All(tx)
		for _, cl := range clusters {
			err = errors.Join(err, fault.Forget(tx, cl.ID, time.Now(), func(string) bool { return false }))
		}
		return errors.Join(err, tx.ForgetEvents(before), tx.ForgetRecords(before, maxScaling))
	})
	return errors.Join(err, c.trimLogs(before))
}

// plain reports whether a name is one, and no path.
func plain(name string) bool {
	return filepath.Base(name) == name && filepath.IsLocal(name) && name != "."
}

// KeptLog returns a log that was kept of an instance.
func (c *Control) KeptLog(id, name string) ([]byte, error) {
	if !plain(id) || !plain(name) {
		return nil, fmt.Errorf("read log %s of %s: not a plain name", name, id)
	}
	return os.ReadFile(filepath.Join(c.LogDir(id), name))
}

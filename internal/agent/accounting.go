package agent

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/openpcs/openpcs/internal/condition"
	"github.com/openpcs/openpcs/internal/imds"
	"github.com/openpcs/openpcs/internal/slurm"
)

// The logs of the daemons.
const (
	slurmctldLog  = "/var/log/slurm/slurmctld.log"
	slurmdbdLog   = "/var/log/slurm/slurmdbd.log"
	slurmrestdLog = "/var/log/slurm/slurmrestd.log"
)

// slurmdbdConf is slurmdbd's configuration; where it is, slurmdbd runs.
const slurmdbdConf = "/etc/slurm/" + slurm.SlurmdbdConf

// accountingLimit is how long database and slurmdbd may take together. A
// database is made within three seconds, on a host that is busy within twenty.
// With restLimit, and what slurmctld takes, it is within the two minutes that the
// control plane waits for an answer.
const accountingLimit = 75 * time.Second

// endedWithin is how long before its end a daemon has said why it ends.
const endedWithin = 10 * time.Second

// hopeless is after how many restarts in a row, which systemd spaces ever
// more, a daemon is taken not to come up with its configuration. One that met
// its database too early comes up with the first.
const hopeless = 4

// account makes the database and slurmdbd run with a configuration. It comes
// before slurmctld, which at its first start with accounting dies without
// slurmdbd. A slurmctld that runs with them does without for a while: what is
// not about them does not wait for them. A refusal is slurmdbd's own word.
func (c *Controller) account(ctx context.Context, conf []byte, running bool) (refusal string, err error) {
	verb, err := putSlurmdbdConf(conf)
	if err != nil {
		return "", err
	}
	good, _ := os.ReadFile(filepath.Join(goodDir, slurm.SlurmdbdConf))
	if running && verb == "start" && bytes.Equal(good, conf) {
		return "", accountLater(ctx, verb)
	}
	ctx, cancel := context.WithTimeout(ctx, accountingLimit)
	defer cancel()
	if r := command(ctx, "systemctl", "start", "mariadb"); r.Code != 0 {
		return "", &Trouble{condition.AccountingFailed, "start the database of accounting: " + journal(ctx, "mariadb")}
	}
	refusal, err = serve(ctx, "slurmdbd", verb, slurmdbdLog, slurm.SlurmdbdPort)
	if err != nil {
		err = &Trouble{condition.AccountingFailed, err.Error()}
	}
	return refusal, err
}

// putSlurmdbdConf writes slurmdbd.conf, and says how slurmdbd gets it.
func putSlurmdbdConf(conf []byte) (verb string, err error) {
	uid, gid, err := slurmUser()
	if err != nil {
		return "", err
	}
	dir := slurm.AccountingDir
	if err := errors.Join(os.MkdirAll(dir, 0o700), os.Chmod(dir, 0o700), os.Chown(dir, uid, gid)); err != nil {
		return "", fmt.Errorf("make the folder of the database: %w", err)
	}
	former, _ := os.ReadFile(slurmdbdConf)
	if bytes.Equal(former, conf) {
		return "start", nil
	}
	// slurmdbd dies of a file that others can read.
	if err := errors.Join(writeFile(slurmdbdConf, conf, 0o600), os.Chown(slurmdbdConf, uid, gid)); err != nil {
		return "", fmt.Errorf("write slurmdbd.conf: %w", err)
	}
	return "restart", nil
}

// accountLater has systemd start the database and slurmdbd, and waits for
// neither.
func accountLater(ctx context.Context, verb string) error {
	for _, args := range [][]string{{"start", "--no-block", "mariadb"}, {verb, "--no-block", "slurmdbd"}} {
		if r := command(ctx, append([]string{"systemctl"}, args...)...); r.Code != 0 {
			return fmt.Errorf("start slurmdbd: %s", strings.TrimSpace(r.Stderr))
		}
	}
	return nil
}

// forgetID makes slurmctld take its cluster's id from slurmdbd when it ran
// without it. The one that it made up for itself is another, and slurmctld dies
// of the difference: it guards against clusters that share a state.
func (c *Controller) forgetID() error {
	if _, err := os.Stat(filepath.Join(goodDir, slurm.SlurmdbdConf)); err == nil {
		return nil
	}
	return os.RemoveAll(filepath.Join(slurm.StateDir, "clustername"))
}

// noAccount ends slurmdbd and its database; the records stay.
func (c *Controller) noAccount(ctx context.Context) error {
	if _, err := os.Stat(slurmdbdConf); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if r := command(ctx, "systemctl", "stop", "mariadb", "slurmdbd"); r.Code != 0 {
		return fmt.Errorf("stop slurmdbd: %s", strings.TrimSpace(r.Stderr))
	}
	return os.Remove(slurmdbdConf)
}

// serve starts or restarts a daemon and waits until it listens. What it dies
// of again and again is its refusal; one that dies without a word is an error.
func serve(ctx context.Context, unit, verb, log string, port int) (refusal string, err error) {
	began := time.Now()
	if r := command(ctx, "systemctl", verb, unit); r.Code != 0 {
		return "", fmt.Errorf("start %s: %s", unit, strings.TrimSpace(r.Stderr))
	}
	for {
		if listening(port) {
			return "", nil
		}
		restarts, _ := strconv.Atoi(strings.TrimSpace(command(ctx, "systemctl", "show", "--property=NRestarts", "--value", unit).Stdout))
		if restarts >= hopeless {
			said, why := lastErrors(log, began), journal(ctx, unit)
			_ = command(ctx, "systemctl", "stop", unit)
			if said == "" {
				return "", fmt.Errorf("start %s: it ends at once: %s", unit, why)
			}
			return unit + ": " + said, nil
		}
		if err := pause(ctx, 50*time.Millisecond); err != nil {
			return "", fmt.Errorf("wait for %s: %s", unit, lastLines(log, 3))
		}
	}
}

// lastErrors are the error and fatal lines at the end of a daemon's log that
// were written since a time, whole seconds of it; what it said before has
// nothing to do with what happened now.
func lastErrors(log string, since time.Time) string {
	text, err := os.ReadFile(log)
	if err != nil {
		return ""
	}
	// slurmrestd writes no zone; all of them write UTC, which the controller has.
	stamp := "[" + since.UTC().Format("2006-01-02T15:04:05")
	var said []string
	for line := range strings.Lines(string(text[max(0, len(text)-4096):])) {
		if !strings.HasPrefix(line, "[") || line < stamp {
			continue
		}
		line = canaryPrefix.ReplaceAllString(strings.TrimSpace(line), "")
		if strings.HasPrefix(line, "error: ") || strings.HasPrefix(line, "fatal: ") {
			said = append(said, line)
		}
	}
	return strings.Join(said[max(0, len(said)-maxRefusal):], " | ")
}

// journal is why a unit ended last, in systemd's words and its own.
func journal(ctx context.Context, unit string) string {
	r := command(ctx, "journalctl", "--unit", unit, "--lines", "30", "--output", "cat", "--no-pager")
	return reasons(r.Stdout)
}

// comings are the lines of a journal that say that a unit comes and goes, and
// not why; and what systemd says of every unit on a host without the controller
// pids.
var comings = regexp.MustCompile(`^(Start|Stopp)(ed|ing) |: (Scheduled restart job|Deactivated successfully|Failed to read pids\.max)|^Failed to start `)

// reasons are the last lines of a unit's journal that say why it ended.
func reasons(journal string) string {
	var said []string
	for line := range strings.Lines(journal) {
		if line = strings.TrimSpace(line); line != "" && !comings.MatchString(line) {
			said = append(said, line)
		}
	}
	return strings.Join(said[max(0, len(said)-maxRefusal):], " | ")
}

// listening reports whether a process of this host listens at a TCP port. It
// asks the kernel: to connect would leave an error in the daemon's log.
func listening(port int) bool {
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		text, err := os.ReadFile(table)
		if err == nil && hasListener(string(text), port) {
			return true
		}
	}
	return false
}

// hasListener looks a port up in a table of sockets as Linux writes it: the
// second column is the local address, the fourth the state.
func hasListener(table string, port int) bool {
	const listen = "0A"
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) > 3 && f[3] == listen && strings.HasSuffix(f[1], fmt.Sprintf(":%04X", port)) {
			return true
		}
	}
	return false
}

// roomEvery is how often the room for records is looked at, and roomLeast how
// much there must be: InnoDB makes its files larger by some MiB at a time, and
// keeps that much for what it has begun.
const (
	roomEvery = 10 * time.Second
	roomLeast = 64 << 20
)

// watchRoom tells the control plane when the database has no room for records
// any more, and when it has again. It is told before the first is lost.
func (c *Controller) watchRoom(ctx context.Context) {
	ticker := time.NewTicker(roomEvery)
	defer ticker.Stop()
	told := "" // after a start it is not known what was told before
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if _, err := os.Stat(slurmdbdConf); err != nil {
			told = ""
			continue
		}
		var fs unix.Statfs_t
		if err := unix.Statfs(slurm.AccountingDir, &fs); err != nil {
			continue
		}
		free := fs.Bavail * uint64(fs.Bsize)
		if kind := map[bool]string{true: dbdFull, false: dbdRoom}[free < roomLeast]; kind != told {
			told = kind
			c.notices.send(ctx, imds.Hook{ID: rand.Text(), Kind: kind, Detail: fmt.Sprintf("%d MiB free", free>>20)})
		}
	}
}

// ofRecords matches words on what is kept by slurmdbd. The canary has only what
// slurmctld saved of that, minutes ago: a QOS made since is none to it.
var ofRecords = regexp.MustCompile(`(?i)\bqos\b|(allow|deny)qos|account|association`)

// firstWithAccounting reports whether slurmctld is to run with accounting and
// never did: then it needs slurmdbd to start, which a canary cannot reach.
func firstWithAccounting(conf Config) bool {
	_, err := os.Stat(filepath.Join(slurm.StateDir, "last_tres"))
	return conf.Accounting != nil && err != nil
}

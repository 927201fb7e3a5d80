package agent

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/openpcs/openpcs/internal/userdata"
)

// Stages are the parts of the bootstrap that PCS's own entry points below
// /opt/aws/pcs/bin stand for.
var Stages = []string{"init", "config-always", "config-per-instance", "finalize", "ami-cleanup"}

// bootedMark says that the bootstrap of this boot is done; /run is empty
// after a boot.
const bootedMark = "/run/openpcs/bootstrapped"

// RunStage is what an entry point runs. An image whose cloud-init calls
// pcs_bootstrap_init.sh gets the whole bootstrap by it, once a boot, whether
// or not the agent's unit runs too. The others repeat one part, for people
// who build or mend images.
func RunStage(ctx context.Context, stage string) error {
	switch stage {
	case "init":
		return RunNode(ctx)
	case "ami-cleanup":
		return cleanUp()
	}
	n := &node{began: time.Now(), times: map[string]int64{}}
	var err error
	if n.log, err = openLog(); err != nil {
		return err
	}
	defer n.log.close()
	if err := metadata(ctx, http.MethodGet, "/openpcs/v1/bootstrap", "", nil, &n.boot); err != nil {
		return fmt.Errorf("read the instance's metadata: %w", err)
	}
	meta, err := openMetadata(ctx)
	if err != nil {
		return err
	}
	switch stage {
	case "config-always":
		return errors.Join(n.register(ctx, meta), n.configure())
	case "config-per-instance":
		doc, err := meta.get(ctx, "/latest/user-data")
		if err != nil && !errors.Is(err, errNoMetadata) {
			return err
		}
		parts, err := userdata.Parse(doc)
		if err != nil {
			return err
		}
		return n.runParts(ctx, parts, userdata.ShellScript, "script")
	case "finalize":
		return n.finalize(ctx)
	default:
		return fmt.Errorf("there is no stage %q: there are %s", stage, strings.Join(Stages, ", "))
	}
}

// oneAtATime runs the bootstrap unless it was run in this boot, by whoever
// came first.
func oneAtATime(f func() error) error {
	if err := os.MkdirAll(filepath.Dir(bootedMark), 0o755); err != nil {
		return err
	}
	lock, err := os.OpenFile(bootedMark+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return err
	}
	if _, err := os.Stat(bootedMark); err == nil {
		return nil
	}
	if err := f(); err != nil {
		return err
	}
	return os.WriteFile(bootedMark, nil, 0o644)
}

// cleanUp removes what an instance has of its own, so that an image can be
// made of it.
func cleanUp() error {
	var errs []error
	for _, path := range []string{
		stateDir, "/etc/slurm/slurm.key", savedReply, "/etc/default/slurmd", "/etc/default/sackd",
		lifecycleConfig, filepath.Dir(bootstrapLog), "/var/log/slurm", "/var/spool/slurmd", filepath.Dir(bootedMark),
	} {
		found, err := filepath.Glob(path)
		errs = append(errs, err)
		// Folders that the image has stay, empty.
		if slices.Contains([]string{"/var/log/slurm", "/var/spool/slurmd"}, path) {
			found, err = filepath.Glob(path + "/*")
			errs = append(errs, err)
		}
		for _, f := range found {
			errs = append(errs, os.RemoveAll(f))
		}
	}
	return errors.Join(errs...)
}

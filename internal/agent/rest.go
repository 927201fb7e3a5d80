package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/openpcs/openpcs/internal/condition"
	"github.com/openpcs/openpcs/internal/slurm"
)

// restMark says that slurmrestd runs with the configuration.
const restMark = "/etc/slurm/.rest"

// restLimit is how long slurmrestd may take, which listens within half a second.
const restLimit = 20 * time.Second

// rest makes slurmrestd run, or not. It reads slurm.conf only when it starts,
// so that a new configuration is a new start.
func (c *Controller) rest(ctx context.Context, on bool) error {
	if !on {
		if _, err := os.Stat(restMark); errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if r := command(ctx, "systemctl", "stop", "slurmrestd"); r.Code != 0 {
			return fmt.Errorf("stop slurmrestd: %s", strings.TrimSpace(r.Stderr))
		}
		return os.Remove(restMark)
	}
	if err := writeFile(restMark, nil, 0o644); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, restLimit)
	defer cancel()
	refusal, err := serve(ctx, "slurmrestd", "restart", slurmrestdLog, slurm.SlurmrestdPort)
	if refusal != "" { // there is nothing of users in its configuration
		err = errors.New("start " + refusal)
	}
	if err != nil {
		return &Trouble{condition.RESTFailed, err.Error()}
	}
	return nil
}

// resume starts the daemons again that ran before the instance was rebooted.
// Only slurmctld is waited for: it does without the others for a while.
func (c *Controller) resume(ctx context.Context) {
	start := func(args ...string) {
		if r := command(ctx, append([]string{"systemctl", "start"}, args...)...); r.Code != 0 {
			c.log.Warn("A daemon did not start", "start", args, "err", strings.TrimSpace(r.Stderr))
		}
	}
	if _, err := os.Stat(slurmdbdConf); err == nil {
		start("--no-block", "mariadb", "slurmdbd")
	}
	if _, err := os.Stat(restMark); err == nil {
		start("--no-block", "slurmrestd")
	}
	start("slurmctld")
}

package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/openpcs/openpcs/internal/app"
)

// unitPath is the systemd unit of hosts that have systemd.
const unitPath = "/etc/systemd/system/openpcs.service"

// startLimit is how long the control plane may take to answer.
const startLimit = 60 * time.Second

func (s *shell) upCommand() *cobra.Command {
	var noDemo bool
	c := &cobra.Command{
		Use: "up", Short: "Start the control plane, build the images and run a job on a demo cluster", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if os.Geteuid() != 0 {
				return fmt.Errorf("up needs root: use sudo")
			}
			o, err := options()
			if err != nil {
				return err
			}
			step("Control plane")
			if err := s.startServer(cmd.Context(), o); err != nil {
				return err
			}
			d, st, err := dial(cmd.Context())
			if err != nil {
				return err
			}
			step("Images (the first time some minutes, then nothing to do)")
			for _, version := range usualImages {
				if _, err := s.buildImage(cmd, d, version, false); err != nil {
					return err
				}
			}
			if noDemo {
				return nil
			}
			return s.demo(cmd.Context(), d, st)
		},
	}
	c.Flags().BoolVar(&noDemo, "no-demo", false, "stop before the demo cluster")
	return c
}

func step(text string) { fmt.Fprintln(os.Stderr, "==>", text) }

func hasSystemd() bool {
	_, err := os.Stat("/run/systemd/system")
	return err == nil
}

// startServer starts the control plane unless it answers, by systemd where
// that runs.
func (s *shell) startServer(ctx context.Context, o app.Options) error {
	d := newDaemon(o)
	if st, err := get[app.Status](ctx, d, "/v1/status", nil); err == nil {
		if st.Version == s.version {
			return nil
		}
		fmt.Fprintf(os.Stderr, "  version %s runs: %s takes over; instances and jobs run on\n", st.Version, s.version)
		if err := stopServer(ctx, o); err != nil {
			return err
		}
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(o.StateDir, 0o711); err != nil {
		return err
	}
	var died <-chan error
	if hasSystemd() && o.Site == "" {
		if err := startUnit(ctx, self); err != nil {
			return err
		}
	} else if died, err = startBackground(o, self); err != nil {
		return err
	}
	limit, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	for {
		if _, err := get[app.Status](limit, d, "/v1/status", nil); err == nil {
			return nil
		}
		select {
		case err := <-died:
			return fmt.Errorf("openpcs serve ended (%v); its log %s says: %s", err, o.LogFile(), lastLine(o.LogFile()))
		case <-limit.Done():
			if died == nil {
				return errors.New("openpcs serve does not answer: journalctl -u openpcs says why")
			}
			return fmt.Errorf("openpcs serve does not answer; its log %s says: %s", o.LogFile(), lastLine(o.LogFile()))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func lastLine(path string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return lines[len(lines)-1]
}

func startUnit(ctx context.Context, self string) error {
	var env []string
	for _, v := range os.Environ() {
		if strings.HasPrefix(v, "OPENPCS_") {
			env = append(env, "Environment="+strconv.Quote(v))
		}
	}
	unit := "[Unit]\nDescription=openpcs control plane\nAfter=network.target incus.service\n\n[Service]\n" +
		"ExecStart=" + self + " serve\n" + strings.Join(append(env, ""), "\n") +
		"Restart=on-failure\nRestartSec=1\nKillMode=process\n\n[Install]\nWantedBy=multi-user.target\n"
	if err := os.WriteFile(unitPath, []byte(unit), 0o644); err != nil {
		return err
	}
	for _, args := range [][]string{{"daemon-reload"}, {"enable", "openpcs"}, {"restart", "openpcs"}} {
		if out, err := exec.CommandContext(ctx, "systemctl", args...).CombinedOutput(); err != nil {
			return fmt.Errorf("run systemctl %s: %w: %s", strings.Join(args, " "), err, out)
		}
	}
	return nil
}

// startBackground starts the control plane in a session of its own.
func startBackground(o app.Options, self string) (<-chan error, error) {
	log, err := os.OpenFile(o.LogFile(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	cmd := exec.Command(self, "serve")
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	died := make(chan error, 1)
	go func() { died <- cmd.Wait() }()
	return died, os.WriteFile(o.PIDFile(), []byte(strconv.Itoa(cmd.Process.Pid)), 0o600)
}

func (s *shell) downCommand() *cobra.Command {
	return &cobra.Command{
		Use: "down", Short: "Stop the control plane and remove all that it made: clusters, instances, images, state", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if os.Geteuid() != 0 {
				return fmt.Errorf("down needs root: use sudo")
			}
			o, err := options()
			if err != nil {
				return err
			}
			step("Stopping the control plane")
			if err := stopServer(cmd.Context(), o); err != nil {
				return err
			}
			step("Removing instances, images and networks")
			p := app.Provider(o)
			if err := p.Ping(cmd.Context()); err != nil {
				fmt.Fprintln(os.Stderr, "  Incus does not answer, so there is nothing of it to remove:", err)
			} else if err := p.Remove(cmd.Context()); err != nil {
				return err
			}
			step("Removing the state folder")
			return removeState(o)
		},
	}
}

func stopServer(ctx context.Context, o app.Options) error {
	if hasSystemd() && o.Site == "" {
		if _, err := os.Stat(unitPath); err == nil {
			_ = exec.CommandContext(ctx, "systemctl", "disable", "--now", "openpcs").Run()
			_ = os.Remove(unitPath)
		}
	}
	d := newDaemon(o)
	st, err := get[app.Status](ctx, d, "/v1/status", nil)
	if errors.Is(err, errNotRunning) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := syscall.Kill(st.PID, syscall.SIGTERM); err != nil && !errors.Is(err, syscall.ESRCH) {
		return err
	}
	limit, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	for syscall.Kill(st.PID, 0) == nil && !zombie(st.PID) {
		if err := wait(limit, 50*time.Millisecond); err != nil {
			return fmt.Errorf("stop openpcs serve (process %d): it does not end", st.PID)
		}
	}
	return nil
}

// zombie reports whether a process has ended and waits to be collected.
func zombie(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	return strings.HasPrefix(rest, "Z")
}

// removeState removes what the control plane keeps. The engine's own folder,
// where it lies below, is the host script's.
func removeState(o app.Options) error {
	entries, err := os.ReadDir(o.StateDir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "incus") {
			continue
		}
		if err := os.RemoveAll(filepath.Join(o.StateDir, e.Name())); err != nil {
			return err
		}
	}
	_ = os.Remove(o.StateDir) // only when it is empty
	return nil
}

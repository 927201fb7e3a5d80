package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/openpcs/openpcs/internal/app"
	"github.com/openpcs/openpcs/internal/compute"
	"github.com/openpcs/openpcs/internal/compute/incus"
)

// The demo's names, which `openpcs up` makes.
const (
	cluster  = "demo"
	loginOn  = "login-1"
	queue    = "queue-1"
	coldNode = "node-group-1-1"
	bareNode = "node-group-1-2"
)

// site is a control plane of its own beside any other on the machine.
type site struct {
	ctx      context.Context
	options  app.Options
	binary   string
	provider *incus.Provider
	host     compute.Host
	image    string
	server   string // slurmctld
	bare     int    // bare instances launched
}

func newSite(ctx context.Context, binary string) (*site, error) {
	binary, err := filepath.Abs(binary)
	if err != nil {
		return nil, err
	}
	for k, v := range map[string]string{
		"OPENPCS_SITE": "bench", "OPENPCS_STATE": "/var/lib/openpcs-bench",
		"OPENPCS_LISTEN": "127.0.0.1:7330", "OPENPCS_SUBNET": "10.80.0.0/16",
	} {
		if err := os.Setenv(k, v); err != nil {
			return nil, err
		}
	}
	o, err := app.FromEnvironment()
	if err != nil {
		return nil, err
	}
	return &site{ctx: ctx, options: o, binary: binary, provider: app.Provider(o)}, nil
}

func (s *site) openpcs(args ...string) ([]byte, error) {
	cmd := exec.CommandContext(s.ctx, s.binary, args...)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("run openpcs %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(errOut.String()))
	}
	return out.Bytes(), nil
}

// up starts it, with the demo cluster unless the flags say otherwise.
func (s *site) up(flags ...string) error {
	if err := s.down(); err != nil { // what a killed run left
		return err
	}
	fmt.Fprintln(os.Stderr, "Starting a control plane of its own")
	if _, err := s.openpcs(append([]string{"up"}, flags...)...); err != nil {
		return err
	}
	var err error
	if s.host, err = s.provider.Setup(s.ctx); err != nil {
		return err
	}
	found, err := s.provider.List(s.ctx)
	if err != nil {
		return err
	}
	for _, i := range found {
		if i.Labels["kind"] == "controller" {
			conf, err := s.provider.ReadFile(s.ctx, i.ID, "/etc/slurm/slurm.conf")
			if err != nil {
				return err
			}
			_, rest, _ := strings.Cut(string(conf), "SlurmctldHost=slurmctld-primary(")
			s.server, _, _ = strings.Cut(rest, ")")
		}
	}
	var images []struct {
		ID    string   `json:"id"`
		Ref   string   `json:"ref"`
		Slurm []string `json:"slurm"`
	}
	doc, err := s.openpcs("image", "list", "--json")
	if err != nil {
		return err
	}
	if err := json.Unmarshal(doc, &images); err != nil {
		return err
	}
	for _, i := range images {
		if len(i.Slurm) > 0 {
			s.image = i.Ref
		}
	}
	if (s.server == "" && len(flags) == 0) || s.image == "" {
		return errors.New("find the demo's controller and image: not there")
	}
	return nil
}

func (s *site) down() error {
	cmd := exec.Command(s.binary, "down") // also after an interrupt
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("remove the control plane: %w: %s", err, out)
	}
	return nil
}

// empty brings a node to powered down, without an instance.
func (s *site) empty(node string) error {
	if _, err := s.openpcs("connect", cluster, "--", "scontrol", "update", "NodeName="+node, "State=POWER_DOWN"); err != nil {
		return err
	}
	return s.emptied(func(r app.NodeRow) bool { return r.Name == node }, 1)
}

// emptied waits until so many nodes are powered down, without an instance.
func (s *site) emptied(which func(app.NodeRow) bool, want int) error {
	for {
		doc, err := s.openpcs("nodes", "--json")
		if err != nil {
			return err
		}
		var rows []app.NodeRow
		if err := json.Unmarshal(doc, &rows); err != nil {
			return err
		}
		empty := 0
		for _, r := range rows {
			if which(r) && r.Instance == "" && r.Status == "IDLE+CLOUD+POWERED_DOWN" {
				empty++
			}
		}
		if empty == want {
			return nil
		}
		if err := s.pause(50 * time.Millisecond); err != nil {
			return err
		}
	}
}

func (s *site) pause(d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-s.ctx.Done():
		return s.ctx.Err()
	case <-t.C:
		return nil
	}
}

func millis(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// cold measures srun on an empty cluster, with its stages.
func (s *site) cold(raw map[string][]float64) error {
	if err := s.empty(coldNode); err != nil {
		return err
	}
	// Not in step with Slurm's loop, which looks once a second.
	if err := s.pause(time.Duration(time.Now().UnixNano()%1000) * time.Millisecond); err != nil {
		return err
	}
	began := time.Now()
	if _, err := s.openpcs("connect", loginOn, "--", "srun", "-p", queue, "-w", coldNode, "hostname"); err != nil {
		return err
	}
	ended := time.Now()
	raw["srun"] = append(raw["srun"], millis(ended.Sub(began)))
	said, err := s.explain(coldNode)
	if err != nil {
		return err
	}
	for _, e := range said.Events {
		if e.At.Before(began) {
			continue
		}
		raw["stage/"+e.Kind] = append(raw["stage/"+e.Kind], millis(e.At.Sub(began)))
		if e.Kind == "resume" {
			raw["resumed"] = append(raw["resumed"], millis(ended.Sub(e.At)))
		}
	}
	return nil
}

// warm measures srun on the node that is up now.
func (s *site) warm(raw map[string][]float64) error {
	began := time.Now()
	_, err := s.openpcs("connect", loginOn, "--", "srun", "-p", queue, "-w", coldNode, "hostname")
	raw["warm"] = append(raw["warm"], millis(time.Since(began)))
	return err
}

// batch measures from sbatch to the job's first command.
func (s *site) batch(raw map[string][]float64) error {
	if err := s.empty(coldNode); err != nil {
		return err
	}
	const mark = "/home/ubuntu/began"
	began := time.Now()
	_, err := s.openpcs("connect", loginOn, "--", "sh", "-c",
		"rm -f "+mark+"; cd /home/ubuntu; sbatch --wait -p "+queue+" -w "+coldNode+" -o /dev/null --wrap 'date +%s.%N >"+mark+"' >/dev/null")
	if err != nil {
		return err
	}
	text, err := s.openpcs("connect", loginOn, "--", "cat", mark)
	if err != nil {
		return err
	}
	at, err := strconv.ParseFloat(strings.TrimSpace(string(text)), 64)
	if err != nil {
		return err
	}
	raw["sbatch"] = append(raw["sbatch"], at*1000-float64(began.UnixMicro())/1000)
	return nil
}

// floor launches an instance without openpcs and starts slurmd by hand.
func (s *site) floor(raw map[string][]float64) (err error) {
	key, err := s.openpcs("connect", loginOn, "--", "base64", "-w0", "/etc/slurm/slurm.key")
	if err != nil {
		return err
	}
	s.bare++
	id := fmt.Sprintf("bare-%d", s.bare)
	address := netip.AddrFrom4([4]byte{10, 80, 0, byte(10 + s.bare%200)})
	began := time.Now()
	err = s.provider.Launch(s.ctx, compute.Spec{
		ID: id, Image: s.image, Role: "bare", Hostname: id, Address: netip.PrefixFrom(address, s.host.Gateway.Bits()),
	})
	defer func() { err = errors.Join(err, s.provider.Terminate(s.ctx, id)) }()
	if err != nil {
		return err
	}
	launched := time.Since(began)
	script := "umask 077; printf %s " + string(key) + " | base64 -d >/etc/slurm/slurm.key; chown slurm: /etc/slurm/slurm.key; " +
		"echo \"SLURMD_OPTIONS='--conf-server " + s.server + ":6817 -N " + bareNode + "'\" >/etc/default/slurmd; " +
		"until systemctl start slurmd; do sleep 0.02; done; " +
		"until scontrol -o show node " + bareNode + " | grep -q ' State=IDLE+CLOUD '; do sleep 0.02; done"
	for {
		r, err := s.provider.Exec(s.ctx, id, compute.Command{Argv: []string{"sh", "-c", script}})
		if err != nil {
			return err
		}
		if r.ExitCode == 0 {
			break
		}
		if time.Since(began) > time.Minute {
			return fmt.Errorf("start slurmd by hand: %s", r.Stderr)
		}
	}
	raw["floor"] = append(raw["floor"], millis(time.Since(began)))
	raw["floorLaunch"] = append(raw["floorLaunch"], millis(launched))
	return s.empty(bareNode)
}

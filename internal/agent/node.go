package agent

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/openpcs/openpcs/internal/awsapi"
	"github.com/openpcs/openpcs/internal/condition"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/imds"
	"github.com/openpcs/openpcs/internal/lifecycle"
	"github.com/openpcs/openpcs/internal/userdata"
)

// Version is the version of the PCS agent that this one stands for.
const Version = "1.5.1-1"

const (
	bootstrapLog = "/var/log/amazon/pcs/bootstrap.log"
	savedReply   = "/etc/amazon/pcs/register_node_group_instance.json"
	stateDir     = "/var/lib/openpcs-agent"
	// bootLimit is how long a boot may take whatever the control plane says.
	bootLimit = 30 * time.Minute
	// registerLimit is PCS's own limit for the registration.
	registerLimit = 600 * time.Second
	// slurmdPatience is how often it is looked at a slurmd that does not come
	// up: it takes a quarter of a second, else it goes on trying.
	slurmdPatience = 10 * time.Second
	// slurmdTries are how often a slurmd that does not start is started again.
	slurmdTries = 3
)

// registration is the answer of RegisterComputeNodeGroupInstance.
type registration struct {
	NodeID       string `json:"nodeID"`
	SharedSecret string `json:"sharedSecret"`
	Endpoints    []struct {
		Type             string `json:"type"`
		PrivateIPAddress string `json:"privateIpAddress"`
		Port             string `json:"port"`
	} `json:"endpoints"`
	ClusterName          string `json:"clusterName,omitempty"`
	ComputeNodeGroupID   string `json:"computeNodeGroupId,omitempty"`
	ComputeNodeGroupName string `json:"computeNodeGroupName,omitempty"`
	SchedulerVersion     string `json:"schedulerVersion,omitempty"`

	NodeLifecycleActions *fleet.LifecycleActions `json:"nodeLifecycleActions,omitempty"`
}

// bootFailure is a failed bootstrap with its condition's code.
type bootFailure struct {
	code condition.Code
	err  error
	// joined says that slurmd had registered: jobs may run, so that the control
	// plane ends the instance when they are done, and not the agent at once.
	joined bool
}

func (f *bootFailure) Error() string { return f.err.Error() }

func (f *bootFailure) Unwrap() error { return f.err }

// node is one run of the bootstrap.
type node struct {
	log   *bootLog
	boot  imds.Bootstrap
	reply registration
	began time.Time
	times map[string]int64

	scripts *lifecycle.Executor
	untold  []imds.Report // of what succeeded
}

// RunNode bootstraps the instance once for this boot: boothooks,
// registration, the user's scripts, slurmd. A failure is reported to the
// control plane, with the log, before the instance shuts itself down.
func RunNode(ctx context.Context) error {
	return oneAtATime(func() error { return bootstrap(ctx) })
}

func bootstrap(ctx context.Context) error {
	n := &node{began: time.Now(), times: map[string]int64{}}
	var err error
	if n.log, err = openLog(); err != nil {
		return err
	}
	defer n.log.close()
	if err = n.stages(ctx); err == nil {
		// The node is good, whether or not this gets through: if it does not, the
		// agent is started again, finds all of it done and tells once more.
		for _, r := range n.untold {
			if err := n.report(ctx, r); err != nil {
				return err
			}
		}
		return nil
	}
	if ctx.Err() != nil {
		// A reboot, for example: nothing has failed, and the instance must not be
		// powered off instead. The agent goes on when it is started again.
		n.log.line("pcs_bootstrap_finalize.sh", "WARN", "The agent was told to stop: %v", err)
		return err
	}
	failure := &bootFailure{code: condition.BootstrapFailed, err: err}
	errors.As(err, &failure)
	what := "Shutting down instance."
	if failure.joined {
		what = "The instance is ended when its jobs are done."
	}
	n.log.line("pcs_bootstrap_finalize.sh", "ERROR", "%v. %s", err, what)
	text, _ := os.ReadFile(bootstrapLog)
	reported := n.report(ctx, imds.Report{
		Stage: "failed", Code: failure.code, Message: err.Error(), Joined: failure.joined,
		Log: string(text[max(0, len(text)-64<<10):]), Timings: n.times, Scripts: n.outcomes(),
	})
	if failure.joined {
		return reported // the boot is over: again it would come to the same
	}
	_ = exec.Command("systemctl", "poweroff", "--no-block").Run()
	return errors.Join(err, reported)
}

func (n *node) report(ctx context.Context, r imds.Report) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	return retry(ctx, func() error { return metadata(ctx, http.MethodPost, "/openpcs/v1/report", "", r, nil) })
}

// tell reports what succeeded. What does not get through at once is told when
// the boot is over: nothing waits for it.
func (n *node) tell(ctx context.Context, r imds.Report) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	if err := metadata(ctx, http.MethodPost, "/openpcs/v1/report", "", r, nil); err != nil {
		n.log.line("pcs_bootstrap_finalize.sh", "WARN", "%s is not reported yet: %v", r.Stage, err)
		n.untold = append(n.untold, r)
	}
}

func (n *node) mark(stage string) { n.times[stage] = time.Since(n.began).Milliseconds() }

func (n *node) stages(ctx context.Context) error {
	life := ctx
	ctx, cancel := context.WithTimeout(ctx, bootLimit)
	defer cancel()
	if err := retry(ctx, func() error { return metadata(ctx, http.MethodGet, "/openpcs/v1/bootstrap", "", nil, &n.boot) }); err != nil {
		return fmt.Errorf("read the instance's metadata: %w", err)
	}
	n.mark("metadata")
	if n.boot.ClusterID == "" {
		return nil // an instance of no group has nothing to join
	}
	if s := n.boot.BootSeconds; s > 0 {
		ctx, cancel = context.WithTimeout(ctx, time.Duration(s)*time.Second)
		defer cancel()
	}
	n.log.line("pcs_bootstrap_init.sh", "INFO", "Bootstrap starting with PCS Agent version: %s", Version)
	meta, err := openMetadata(ctx)
	if err != nil {
		return fmt.Errorf("open a metadata session: %w", err)
	}
	doc, err := meta.get(ctx, "/latest/user-data")
	if err != nil && !errors.Is(err, errNoMetadata) {
		return fmt.Errorf("read user data: %w", err)
	}
	parts, err := userdata.Parse(doc)
	if err != nil {
		return &bootFailure{code: condition.UserDataInvalid, err: err}
	}
	first := n.firstBoot()
	if err := n.runParts(ctx, parts, userdata.Boothook, "boothook"); err != nil {
		return err
	}
	for _, p := range parts {
		if p.Type == userdata.CloudConfig && first {
			if err := n.cloudConfig(ctx, p); err != nil {
				return err
			}
		}
	}
	if err := n.register(ctx, meta); err != nil {
		return err
	}
	n.mark("registered")
	if err := n.openScripts(ctx, meta); err != nil {
		return err
	}
	if err := n.configure(); err != nil {
		return err
	}
	if first {
		if err := n.runParts(ctx, parts, userdata.ShellScript, "script"); err != nil {
			return err
		}
	}
	if err := n.runScripts(ctx, fleet.NodeBootstrapped); err != nil {
		return err
	}
	if err := retry(ctx, func() error { return metadata(ctx, http.MethodGet, "/openpcs/v1/go", "", nil, nil) }); err != nil {
		return fmt.Errorf("wait for Slurm to resume the node: %w", err)
	}
	n.mark("resumed")
	if err := n.finalize(ctx); err != nil {
		return err
	}
	n.mark("slurmd")
	n.tell(ctx, imds.Report{Stage: "slurmd-started", Timings: maps.Clone(n.times), Scripts: n.outcomes()})
	if err := n.ready(ctx, life); err != nil {
		return err
	}
	return writeFile(filepath.Join(stateDir, "instance"), []byte(n.boot.InstanceID), 0o644)
}

func (n *node) firstBoot() bool {
	id, _ := os.ReadFile(filepath.Join(stateDir, "instance"))
	return string(id) != n.boot.InstanceID
}

// runParts runs the user's parts of one type. openpcs's own part is for
// images whose cloud-init runs it; here the agent is that part.
func (n *node) runParts(ctx context.Context, parts []userdata.Part, kind, what string) error {
	for i, p := range parts {
		if p.Type != kind || p.Name == userdata.BootstrapName {
			continue
		}
		name := p.Name
		if name == "" {
			name = fmt.Sprintf("part-%03d", i+1)
		}
		dir := filepath.Join(stateDir, what+"s")
		path := filepath.Join(dir, fmt.Sprintf("%03d-%s", i+1, filepath.Base(name)))
		if err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(path, p.Body, 0o700)); err != nil {
			return err
		}
		cmd := exec.CommandContext(ctx, path)
		if !strings.HasPrefix(string(p.Body), "#!") {
			cmd = exec.CommandContext(ctx, "/bin/sh", path)
		}
		out := &console{log: n.log}
		cmd.Stdout, cmd.Stderr = out, out
		cmd.Env = append(os.Environ(), "INSTANCE_ID="+n.boot.InstanceID, "HOME=/root")
		n.log.line("pcs_bootstrap_config_per_instance.sh", "INFO", "Running user data %s %s", what, name)
		// cloud-init goes on after a user script that fails, and says so.
		if err := cmd.Run(); err != nil {
			n.log.line("pcs_bootstrap_config_per_instance.sh", "WARN", "User data %s %s: %v", what, name, err)
		}
		n.mark(what + "s")
	}
	return nil
}

// cloudConfig hands a part to cloud-init, where the image has it.
func (n *node) cloudConfig(ctx context.Context, p userdata.Part) error {
	if _, err := exec.LookPath("cloud-init"); err != nil {
		return &bootFailure{code: condition.CloudConfigUnsupported, err: errors.New("user data has a text/cloud-config part, and the image has no cloud-init: use text/cloud-boothook or text/x-shellscript")}
	}
	path := filepath.Join(stateDir, "cloud-config.yaml")
	if err := errors.Join(os.MkdirAll(stateDir, 0o700), os.WriteFile(path, p.Body, 0o600)); err != nil {
		return err
	}
	out := &console{log: n.log}
	for _, stage := range [][]string{{"init"}, {"modules", "--mode", "config"}, {"modules", "--mode", "final"}} {
		cmd := exec.CommandContext(ctx, "cloud-init", append([]string{"--file", path}, stage...)...)
		cmd.Stdout, cmd.Stderr = out, out
		if err := cmd.Run(); err != nil {
			n.log.line("pcs_bootstrap_config_per_instance.sh", "WARN", "cloud-init %s: %v", stage[0], err)
		}
	}
	return nil
}

// register joins the cluster with the public API, signed by the instance's
// role, and keeps trying for as long as the PCS agent does.
func (n *node) register(ctx context.Context, meta *session) error {
	const script = "pcs_bootstrap_init.sh"
	n.log.line(script, "INFO", "Registering node to cluster")
	ctx, cancel := context.WithTimeout(ctx, registerLimit)
	defer cancel()
	wait := 100 * time.Millisecond
	for {
		err := n.registerOnce(ctx, meta)
		if err == nil {
			n.log.line(script, "INFO", "Registered as %s in cluster %s", n.reply.NodeID, n.boot.ClusterID)
			return nil
		}
		n.log.line(script, "WARN", "Response is %v", err)
		n.log.line(script, "INFO", "Retriable exception detected.")
		n.log.line(script, "INFO", "Retrying in %.1f seconds...", wait.Seconds())
		if pause(ctx, wait) != nil {
			n.log.line(script, "ERROR", "Registration timeout (%.0f seconds) reached. Exiting.", registerLimit.Seconds())
			return &bootFailure{code: condition.RegistrationFailed, err: fmt.Errorf("register with the cluster: %w", err)}
		}
		wait = min(wait*2, 31*time.Second)
	}
}

func (n *node) registerOnce(ctx context.Context, meta *session) error {
	key, err := meta.credentials(ctx)
	if err != nil {
		return fmt.Errorf("read the role's credentials: %w", err)
	}
	client := awsapi.Client{Endpoint: n.boot.Endpoint, Key: key, Region: n.boot.Region}
	in := map[string]string{"clusterIdentifier": n.boot.ClusterID, "bootstrapId": n.boot.InstanceID}
	return client.JSON(ctx, "pcs", "AWSParallelComputingService", "RegisterComputeNodeGroupInstance", "1.0", in, &n.reply)
}

// configure writes what the registration said: Slurm's key and where
// slurmctld is. The files of a person who prepared the image stay.
func (n *node) configure() error {
	key, err := base64.StdEncoding.DecodeString(n.reply.SharedSecret)
	if err != nil {
		return fmt.Errorf("decode the cluster's key: %w", err)
	}
	uid, gid, err := slurmUser()
	if err != nil {
		return fmt.Errorf("find the user slurm: %w", err)
	}
	const keyPath = "/etc/slurm/slurm.key"
	server := ""
	for _, e := range n.reply.Endpoints {
		if e.Type == "SLURMCTLD" {
			server = e.PrivateIPAddress + ":" + e.Port
		}
	}
	if server == "" {
		return errors.New("the registration names no SLURMCTLD endpoint")
	}
	saved := n.reply
	saved.SharedSecret = "" // the key has a file of its own
	doc, _ := json.MarshalIndent(saved, "", "  ")
	return errors.Join(
		os.MkdirAll("/etc/slurm", 0o755), writeFile(keyPath, key, 0o600), os.Chown(keyPath, uid, gid),
		os.MkdirAll(filepath.Dir(savedReply), 0o755), writeFile(savedReply, doc, 0o644),
		os.MkdirAll(stateDir, 0o700),
		writeFile("/etc/default/slurmd", fmt.Appendf(nil, "SLURMD_OPTIONS='--conf-server %s -N %s --instance-id %s --instance-type %s'\n",
			server, n.reply.NodeID, n.boot.InstanceID, n.boot.InstanceType), 0o644),
		writeFile("/etc/default/sackd", fmt.Appendf(nil, "SACKD_OPTIONS='--conf-server %s'\n", server), 0o644),
	)
}

// slurmdTrouble says what keeps slurmd from coming up: in the end of its log,
// or, before it has the configuration that names one, of the journal.
func slurmdTrouble() (condition.Code, string) {
	const path = "/var/log/slurm/slurmd.log"
	said := ""
	if text, err := os.ReadFile(path); err == nil && len(text) > 0 {
		said = lastLines(path, 5)
	} else {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		out, err := exec.CommandContext(ctx, "journalctl", "--unit=slurmd", "--boot", "--output=cat", "--lines=5", "--quiet").Output()
		said = strings.Join(strings.Split(strings.TrimSpace(string(out)), "\n"), " | ")
		if said == "" {
			said = fmt.Sprintf("it wrote nothing to %s or the journal (%v)", path, err)
		}
	}
	return slurmdCode(said), said
}

// slurmdCode is the condition of a slurmd that says so (Slurm 24.11 to 26.05).
func slurmdCode(said string) condition.Code {
	for _, known := range []struct {
		text string
		code condition.Code
	}{
		{"Incompatible versions of client and server", condition.SlurmVersionMismatch},
		{"protocol_version", condition.SlurmVersionMismatch},
		{"Unable to contact slurm controller", condition.ControllerNotReached},
	} {
		if strings.Contains(said, known.text) {
			return known.code
		}
	}
	return condition.SlurmdFailed
}

// finalize starts Slurm's daemons.
func (n *node) finalize(ctx context.Context) error {
	const script = "pcs_bootstrap_finalize.sh"
	waiting, up := context.WithCancel(ctx)
	told := make(chan struct{})
	go func() {
		defer close(told)
		var known condition.Code
		for look := 1; pause(waiting, slurmdPatience) == nil; look++ {
			code, said := slurmdTrouble()
			if code == known || (code == condition.SlurmdFailed && look < 3) { // it may say more yet
				continue
			}
			known = code
			n.log.line(script, "WARN", "slurmd does not come up yet: %s", said)
			_ = n.report(waiting, imds.Report{Stage: "slurmd-waits", Code: code, Message: said})
		}
	}()
	defer func() { // before anything else is told
		up()
		<-told
	}()
	for try := 1; ; try++ {
		out, err := exec.CommandContext(ctx, "systemctl", "start", "slurmd").CombinedOutput()
		if err == nil {
			break
		}
		n.log.line(script, "INFO", "systemctl could not start slurmd! %s", strings.TrimSpace(string(out)))
		if try == slurmdTries || pause(ctx, time.Duration(try)*time.Second) != nil {
			code, said := slurmdTrouble()
			return &bootFailure{code: code, err: fmt.Errorf("start slurmd: %w: %s", err, said)}
		}
	}
	n.log.line(script, "INFO", "slurmd is started")
	if n.boot.Login {
		n.startSackd(ctx)
	}
	return nil
}

// sackdDropIn gives sackd a folder of its own beside slurmd's, which serves
// the same purpose at the usual place and would lose its files to it.
const sackdDropIn = "[Service]\nRuntimeDirectory=\nRuntimeDirectory=slurm-login\n"

// startSackd starts sackd on login nodes, so that client commands can go on
// (SLURM_CONF=/run/slurm-login/conf/slurm.conf) while slurmd is down. A node
// without it is still a good node.
func (n *node) startSackd(ctx context.Context) {
	const dir = "/run/systemd/system/sackd.service.d"
	err := errors.Join(os.MkdirAll(dir, 0o755), writeFile(filepath.Join(dir, "login.conf"), []byte(sackdDropIn), 0o644))
	for _, args := range [][]string{{"daemon-reload"}, {"start", "sackd"}} {
		if err == nil {
			var out []byte
			if out, err = exec.CommandContext(ctx, "systemctl", args...).CombinedOutput(); err != nil {
				err = fmt.Errorf("%w: %s", err, strings.TrimSpace(string(out)))
			}
		}
	}
	if err != nil {
		n.log.line("pcs_bootstrap_finalize.sh", "WARN", "sackd is not started: %v", err)
		return
	}
	n.log.line("pcs_bootstrap_finalize.sh", "INFO", "sackd is started")
}

// errNoMetadata says that the service has no such entry.
var errNoMetadata = errors.New("no such metadata")

// session is an IMDSv2 session.
type session struct{ token string }

func openMetadata(ctx context.Context) (*session, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, imds.Base+"/latest/api/token", nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("X-aws-ec2-metadata-token-ttl-seconds", "21600")
	text, err := fetch(req)
	return &session{token: string(text)}, err
}

func (s *session) get(ctx context.Context, path string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, imds.Base+path, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("X-aws-ec2-metadata-token", s.token)
	return fetch(req)
}

func fetch(req *http.Request) ([]byte, error) {
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	switch {
	case err != nil:
		return nil, err
	case resp.StatusCode == http.StatusNotFound:
		return nil, errNoMetadata
	case resp.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("%s: %s", resp.Status, strings.TrimSpace(string(text)))
	}
	return text, nil
}

// credentials returns the keys of the instance's role.
func (s *session) credentials(ctx context.Context) (awsapi.Key, error) {
	const path = "/latest/meta-data/iam/security-credentials/"
	role, err := s.get(ctx, path)
	if err != nil {
		return awsapi.Key{}, err
	}
	doc, err := s.get(ctx, path+strings.TrimSpace(string(role)))
	if err != nil {
		return awsapi.Key{}, err
	}
	var c imds.Credentials
	if err := json.Unmarshal(doc, &c); err != nil {
		return awsapi.Key{}, err
	}
	return awsapi.Key{ID: c.AccessKeyID, Secret: c.SecretAccessKey, Token: c.Token}, nil
}

// Package agent is what openpcs runs inside instances: on the controller it
// takes configurations, runs Slurm's commands for the control plane, watches
// node states and answers slurmctld's hooks; on a node it does the bootstrap.
// It knows the control plane only through the metadata service and the
// public API.
package agent

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/openpcs/openpcs/internal/condition"
	"github.com/openpcs/openpcs/internal/imds"
	"github.com/openpcs/openpcs/internal/slurm"
)

// ControllerPort is where a controller's agent listens.
const ControllerPort = 7301

// hookSocket is where slurmctld's programs reach the agent.
const hookSocket = "/run/openpcs/hook.sock"

// HookDir is where slurm.conf finds the hook programs.
const HookDir = "/opt/aws/pcs/libexec"

// hookNames are the programs in HookDir.
var hookNames = []string{"resume", "suspend", "resume-fail", "gate"}

// Config is one configuration of slurmctld, as pushed by the control plane.
type Config struct {
	Hash    string            `json:"hash"`
	Release string            `json:"release"` // of Slurm, such as 26.05
	Files   map[string][]byte `json:"files"`   // below /etc/slurm
	Key     []byte            `json:"key"`     // slurm.key
	// Names are all node names. A slurmctld that has just started knows no
	// addresses yet and would look each name up for ten seconds, with its
	// nodes locked: so they all resolve, to where nothing answers.
	Names []string `json:"names"`
	// Accounting is slurmdbd.conf, nil where there is no accounting.
	Accounting []byte `json:"accounting,omitempty"`
	REST       bool   `json:"rest,omitempty"` // slurmrestd runs
}

// Answer is what the agent says of a configuration.
type Answer struct {
	Applied bool   `json:"applied"`
	Error   string `json:"error,omitempty"` // Slurm's own words
	// Trouble is why it could not be put into place, which says nothing about
	// the configuration and may pass.
	Trouble *Trouble `json:"trouble,omitempty"`
}

// Trouble is an error that has a condition of its own.
type Trouble struct {
	Code    condition.Code `json:"code"`
	Message string         `json:"message"`
}

// Error implements error.
func (t *Trouble) Error() string { return t.Message }

// Run is a Slurm command the control plane wants run.
type Run struct {
	Argv []string `json:"argv"`
}

// Ran is its result.
type Ran struct {
	Stdout string `json:"stdout"`
	Stderr string `json:"stderr"`
	Code   int    `json:"code"`
}

// commands are those the control plane may have run.
var commands = []string{"scontrol", "sinfo", "squeue", "scancel", "sacctmgr", "sdiag"}

// Controller is the agent of a controller instance.
type Controller struct {
	log    *slog.Logger
	who    imds.Controller
	watch  *watcher
	outbox *outbox
	// notices are what is only told; they must not hold hooks up.
	notices *outbox
	conf    sync.Mutex // one configuration at a time
	told    []string   // complaints of the last configuration
	calm    *time.Timer
	took    string // hash of what slurmctld took since the last change began
}

// calmAfter is how long the daemons must run for their former crashes not to
// count any more: systemd waits longer after each, and would never forget.
const calmAfter = 2 * time.Minute

// RunController serves until ctx ends.
func RunController(ctx context.Context, log *slog.Logger) error {
	c := &Controller{log: log}
	if err := writeHooks(); err != nil {
		return err
	}
	if err := retry(ctx, func() error { return metadata(ctx, http.MethodGet, "/openpcs/v1/controller", "", nil, &c.who) }); err != nil {
		return err
	}
	c.watch = newWatcher(log, c.push)
	deliver := func(ctx context.Context, h imds.Hook) error {
		return metadata(ctx, http.MethodPost, "/openpcs/v1/hook", c.who.Token, h, nil)
	}
	c.calm = time.AfterFunc(calmAfter, func() { command(ctx, "systemctl", "reset-failed", "slurmctld", "mariadb", "slurmdbd", "slurmrestd") })
	c.outbox, c.notices = newOutbox(log, deliver), newOutbox(log, deliver)
	// After a reboot nobody else starts slurmctld again; before its first
	// configuration it cannot run.
	if _, err := os.Stat(appliedMark); err == nil {
		if err := putHosts(); err != nil {
			log.Warn("Node names were not written", "err", err)
		}
		c.resume(ctx)
	}
	hooks, err := listenHooks()
	if err != nil {
		return err
	}
	api, err := net.Listen("tcp", ":"+strconv.Itoa(ControllerPort))
	if err != nil {
		return err
	}
	hookServer := &http.Server{Handler: c.hookMux(ctx), ReadHeaderTimeout: 10 * time.Second}
	apiServer := &http.Server{Handler: c.apiMux(), ReadHeaderTimeout: 10 * time.Second}
	failed := make(chan error, 2)
	go func() { failed <- hookServer.Serve(hooks) }()
	go func() { failed <- apiServer.Serve(api) }()
	go c.watch.run(ctx)
	go c.outbox.run(ctx)
	go c.notices.run(ctx)
	go c.watchRoom(ctx)
	go newRotation().run(ctx, log)
	log.Info("Controller agent is up", "cluster", c.who.ClusterID)
	select {
	case <-ctx.Done():
		return errors.Join(hookServer.Close(), apiServer.Close())
	case err := <-failed:
		return err
	}
}

// writeHooks makes the programs that slurm.conf names. They are shell so
// that slurmctld starts a name without arguments.
func writeHooks() error {
	if err := os.MkdirAll(HookDir, 0o755); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	for _, name := range hookNames {
		text := "#!/bin/sh\nexec " + self + " hook " + name + " \"$@\"\n"
		if err := writeFile(filepath.Join(HookDir, name), []byte(text), 0o755); err != nil {
			return err
		}
	}
	return nil
}

func listenHooks() (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(hookSocket), 0o755); err != nil {
		return nil, err
	}
	_ = os.Remove(hookSocket) // left by a killed agent
	l, err := net.Listen("unix", hookSocket)
	if err != nil {
		return nil, err
	}
	// slurmctld runs its programs as slurm; nobody else may pretend to be it.
	uid, gid, err := slurmUser()
	if err != nil {
		return nil, err
	}
	if err := os.Chown(hookSocket, uid, gid); err != nil {
		return nil, err
	}
	return l, os.Chmod(hookSocket, 0o600)
}

func slurmUser() (uid, gid int, err error) {
	u, err := user.Lookup("slurm")
	if err != nil {
		return 0, 0, err
	}
	uid, _ = strconv.Atoi(u.Uid)
	gid, _ = strconv.Atoi(u.Gid)
	return uid, gid, nil
}

func (c *Controller) apiMux() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/health", func(w http.ResponseWriter, r *http.Request) { reply(w, map[string]bool{"ok": true}) })
	mux.HandleFunc("PUT /v1/config", func(w http.ResponseWriter, r *http.Request) {
		var conf Config
		if decode(w, r, &conf) {
			refusal, err := c.configure(r.Context(), conf)
			var trouble *Trouble
			if errors.As(err, &trouble) {
				reply(w, Answer{Trouble: trouble})
				return
			}
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			reply(w, Answer{Applied: refusal == "", Error: refusal})
		}
	})
	mux.HandleFunc("POST /v1/run", func(w http.ResponseWriter, r *http.Request) {
		var run Run
		if !decode(w, r, &run) {
			return
		}
		if len(run.Argv) == 0 || !slices.Contains(commands, run.Argv[0]) {
			http.Error(w, "command is not one of "+strings.Join(commands, " "), http.StatusBadRequest)
			return
		}
		reply(w, command(r.Context(), run.Argv...))
		c.watch.poke()
	})
	mux.HandleFunc("GET /v1/nodes", func(w http.ResponseWriter, r *http.Request) {
		nodes, err := showNodes(r.Context(), "")
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		reply(w, imds.Nodes{Full: true, Nodes: nodes})
	})
	logFiles{logDir}.serve(mux)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if subtle.ConstantTimeCompare([]byte(token), []byte(c.who.Token)) != 1 {
			http.Error(w, "wrong token", http.StatusForbidden)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

func (c *Controller) hookMux(ctx context.Context) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /hook", func(w http.ResponseWriter, r *http.Request) {
		var h imds.Hook
		if !decode(w, r, &h) {
			return
		}
		c.watch.poke()
		h.ID = rand.Text()
		if log, ok := map[string]string{ended: "", dbdEnded: slurmdbdLog, restEnded: slurmrestdLog}[h.Kind]; ok {
			c.calm.Reset(calmAfter)
			if said := lastErrors(log, time.Now().Add(-endedWithin)); said != "" {
				h.Detail += ": " + said
			}
			// systemd starts the daemon again when this is answered.
			go c.notices.send(ctx, h)
		} else {
			c.outbox.send(r.Context(), h)
		}
		reply(w, map[string]bool{"ok": true})
	})
	mux.HandleFunc("POST /gate", func(w http.ResponseWriter, r *http.Request) {
		var g Gate
		if !decode(w, r, &g) {
			return
		}
		names, err := slurm.Expand(g.Nodes)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		// Launching ahead of ResumeProgram, which may be a second away, saves
		// most of that second. It does no harm when it comes to nothing.
		if !c.watch.ready(names) {
			go func() {
				once, cancel := context.WithTimeout(ctx, time.Second)
				defer cancel()
				h := imds.Hook{ID: rand.Text(), Kind: "expect", Nodes: g.Nodes}
				if err := metadata(once, http.MethodPost, "/openpcs/v1/hook", c.who.Token, h, nil); err != nil {
					c.log.Info("Nodes were not announced ahead", "nodes", g.Nodes, "err", err)
				}
			}()
		}
		reply(w, map[string]bool{"ready": c.watch.wait(r.Context(), names)})
	})
	return mux
}

// appliedMark has the hash of the configuration that slurmctld took last.
const appliedMark = "/etc/slurm/.applied"

// goodDir keeps the files that slurmctld took last: to go back to, also when
// the agent was killed in the middle of a change.
const goodDir = "/etc/slurm/.good"

// configure puts a configuration in place: new files, then a start or a
// reconfigure. What slurmctld refuses is taken back and returned in its own
// words; an error is anything else that went wrong, and may pass.
func (c *Controller) configure(ctx context.Context, conf Config) (refusal string, err error) {
	c.conf.Lock()
	defer c.conf.Unlock()
	const dir = "/etc/slurm"
	running := command(ctx, "scontrol", "ping").Code == 0
	if applied, _ := os.ReadFile(appliedMark); running && string(applied) == conf.Hash {
		return "", nil
	}
	if running && c.took == conf.Hash { // the rest did not come with it the last time
		if err := c.settle(ctx, conf); err != nil {
			return "", err
		}
		c.watch.poke()
		return "", nil
	}
	// The files that slurmctld runs with are not touched before a canary took
	// the new ones. What it does not find is caught below: slurmctld refuses to
	// reconfigure, or does not come up again, and the former files come back.
	var verdict Verdict
	if !firstWithAccounting(conf) {
		verdict, err = TryConfig(ctx, conf)
	}
	switch {
	case ctx.Err() != nil:
		return "", ctx.Err()
	case err != nil:
		c.log.Warn("A configuration goes to slurmctld untried", "err", err)
	case conf.Accounting != nil && ofRecords.MatchString(verdict.Refusal):
		c.log.Info("The canary does not know what slurmdbd may: slurmctld is asked", "canary", verdict.Refusal)
		verdict = Verdict{}
	case verdict.Refusal != "":
		return verdict.Refusal, nil
	}
	uid, gid, err := slurmUser()
	if err != nil {
		return "", err
	}
	for _, d := range []string{slurm.StateDir, "/var/log/slurm"} {
		if err := errors.Join(os.MkdirAll(d, 0o700), os.Chown(d, uid, gid), os.Chmod(d, 0o700)); err != nil {
			return "", err
		}
	}
	key := filepath.Join(dir, "slurm.key")
	err = errors.Join(os.Chmod("/var/log/slurm", 0o755), os.MkdirAll(goodDir, 0o755),
		writeHosts(conf.Names), writeFile(key, conf.Key, 0o600), os.Chown(key, uid, gid), writeAll(dir, conf.Files))
	if err != nil {
		return "", err
	}
	applied, err := c.begin()
	if err != nil {
		return "", err
	}
	how := start
	if running {
		how = c.change(conf)
	}
	back := how
	if running && len(applied) > 0 {
		back = keep
	}
	if conf.Accounting != nil {
		refusal, err = c.account(ctx, conf.Accounting, running)
		if err == nil && refusal == "" {
			err = c.forgetID()
		}
	}
	if err == nil && refusal == "" {
		back = how
		refusal, err = c.switchTo(ctx, how)
	}
	if err == nil && refusal == "" && running && how == start {
		// A slurmctld that was restarted does not send its nodes what is new.
		refusal, err = c.switchTo(ctx, reconfigure)
	}
	if err == nil && refusal == "" {
		c.took = conf.Hash
		c.schedule(ctx, conf.Names)
		if err := c.settle(ctx, conf); err != nil {
			return "", err
		}
		c.watch.poke()
		c.tell(verdict.Complaints)
		return "", nil
	}
	if goodErr := c.goBack(ctx, dir, back, applied); goodErr != nil {
		// With an error all of this is done again. A refusal would be the last word.
		return "", errors.Join(err, fmt.Errorf("go back to the former configuration, as the new one was refused (%s): %w", refusal, goodErr))
	}
	return refusal, err
}

// begin notes that what runs is about to change: whoever is cut off from now on
// begins anew. It returns which configuration was applied last, empty for none.
func (c *Controller) begin() ([]byte, error) {
	c.took = ""
	applied, err := os.ReadFile(appliedMark)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	return applied, errors.Join(err, writeFile(appliedMark, nil, 0o644))
}

// settle brings the rest in line with a configuration that slurmctld took,
// and keeps it as the one to go back to.
func (c *Controller) settle(ctx context.Context, conf Config) error {
	if err := c.rest(ctx, conf.REST); err != nil {
		return err
	}
	good := filepath.Join(goodDir, slurm.SlurmdbdConf)
	if conf.Accounting != nil {
		if err := writeFile(good, conf.Accounting, 0o600); err != nil {
			return err
		}
	} else if err := errors.Join(c.noAccount(ctx), os.RemoveAll(good)); err != nil {
		return err
	}
	return errors.Join(writeAll(goodDir, conf.Files), writeFile(appliedMark, []byte(conf.Hash), 0o644))
}

func writeAll(dir string, files map[string][]byte) error {
	var errs []error
	for name, text := range files {
		errs = append(errs, writeFile(filepath.Join(dir, filepath.Base(name)), text, 0o644))
	}
	return errors.Join(errs...)
}

// change says how slurmctld is brought from the configuration that it runs
// with to another one.
func (c *Controller) change(conf Config) transition {
	good, err := os.ReadFile(filepath.Join(goodDir, "slurm.conf"))
	if err != nil { // it runs with what this agent never gave it
		return reconfigure
	}
	if why := slurm.NeedsRestart(conf.Release, good, conf.Files["slurm.conf"]); len(why) > 0 {
		c.log.Info("slurmctld is restarted, as it does not take a parameter over while it runs", "parameters", why)
		return start
	}
	return reconfigure
}

// tell lets the control plane know what Slurm does not like of the
// configuration that it took, once.
func (c *Controller) tell(complaints []string) {
	var fresh []string
	for _, text := range complaints {
		if !slices.Contains(c.told, text) && !slices.Contains(fresh, text) {
			fresh = append(fresh, text)
		}
	}
	c.told = complaints
	// The control plane waits for the configuration, not for this.
	go func() {
		for _, text := range fresh {
			c.notices.send(context.Background(), imds.Hook{ID: rand.Text(), Kind: "slurmctld-complained", Detail: text})
		}
	}()
}

// goBack puts the files back that slurmctld took last, if it ever took any.
func (c *Controller) goBack(ctx context.Context, dir string, how transition, applied []byte) error {
	entries, err := os.ReadDir(goodDir)
	if err != nil || len(entries) == 0 {
		return err
	}
	files := map[string][]byte{}
	for _, e := range entries {
		if files[e.Name()], err = os.ReadFile(filepath.Join(goodDir, e.Name())); err != nil {
			return err
		}
	}
	accounting, accounted := files[slurm.SlurmdbdConf]
	delete(files, slurm.SlurmdbdConf)
	if err := writeAll(dir, files); err != nil {
		return err
	}
	if accounted {
		// Nobody waits: what kept the new configuration from its place, such as a
		// full disk, may keep the former one too.
		verb, err := putSlurmdbdConf(accounting)
		if err == nil {
			err = accountLater(ctx, verb)
		}
		if err != nil {
			return err
		}
	} else if err := c.noAccount(ctx); err != nil {
		return err
	}
	if command(ctx, "scontrol", "ping").Code != 0 {
		how = start
	}
	refusal, err := c.switchTo(ctx, how)
	if refusal != "" {
		err = errors.Join(err, errors.New(refusal))
	}
	if err == nil && len(applied) > 0 {
		err = writeFile(appliedMark, applied, 0o644)
	}
	return err
}

// hostsMark begins the agent's part of /etc/hosts; the part before is the
// image's, which every boot writes anew.
const hostsMark = "# openpcs: node names of Slurm"

// savedHosts keeps the agent's part over a reboot.
const savedHosts = "/etc/slurm/.hosts"

// writeHosts makes names resolve to the local host.
func writeHosts(names []string) error {
	return errors.Join(writeFile(savedHosts, []byte(hostsPart(names)), 0o644), putHosts())
}

func hostsPart(names []string) string {
	var b strings.Builder
	b.WriteString(hostsMark + "\n")
	for group := range slices.Chunk(names, 16) {
		b.WriteString("127.0.0.1 " + strings.Join(group, " ") + "\n")
	}
	return b.String()
}

func putHosts() error {
	part, err := os.ReadFile(savedHosts)
	if err != nil {
		return err
	}
	hosts, err := os.ReadFile("/etc/hosts")
	if err != nil {
		return err
	}
	head, _, _ := strings.Cut(string(hosts), hostsMark)
	return writeFile("/etc/hosts", append([]byte(head), part...), 0o644)
}

// gateGrace is how long a reconfigure waits for jobs whose nodes come up;
// launches take a second.
const gateGrace = 3 * time.Second

// transition is how slurmctld is made to take its files.
type transition int

const (
	reconfigure transition = iota
	start                  // anew, if it runs
	keep                   // it runs with them
)

// switchTo makes slurmctld take the files and waits until it answers.
func (c *Controller) switchTo(ctx context.Context, how transition) (refusal string, err error) {
	if how == keep {
		return "", nil
	}
	if how == reconfigure {
		// slurmctld ends gates that run while it reconfigures, and their jobs
		// then wait for its half-minute tick.
		c.watch.settle(ctx, gateGrace)
		began := time.Now()
		r := command(ctx, "scontrol", "reconfigure")
		said := strings.TrimSpace(r.Stderr + r.Stdout)
		if r.Code != 0 && said != "" && ctx.Err() == nil && !passing(said) {
			// scontrol often has no words for it, and the log has.
			return strings.TrimSuffix(said+" | "+lastErrors(slurmctldLog, began), " | "), nil
		}
		if r.Code != 0 {
			return "", fmt.Errorf("reconfigure slurmctld: %s", said)
		}
	} else if r := command(ctx, "systemctl", "restart", "slurmctld"); r.Code != 0 {
		if log := lastLines(slurmctldLog, 5); strings.Contains(log, "fatal:") {
			return log, nil
		}
		return "", fmt.Errorf("start slurmctld: %s", strings.TrimSpace(r.Stderr))
	}
	deadline := time.Now().Add(20 * time.Second)
	for {
		if command(ctx, "scontrol", "ping").Code == 0 {
			return "", nil
		}
		if time.Now().After(deadline) {
			return "", fmt.Errorf("wait for slurmctld: no answer: %s", lastLines(slurmctldLog, 5))
		}
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return "", err
		}
	}
}

// schedule has slurmctld look at the jobs that wait. One that just began looks
// when something happens, and else after half a minute; an update of a node, be
// it to what it is, is something.
func (c *Controller) schedule(ctx context.Context, names []string) {
	if len(names) == 0 || command(ctx, "squeue", "--noheader", "--states", "PENDING", "--format", "%i").Stdout == "" {
		return
	}
	var answer struct {
		Nodes []struct {
			Comment string `json:"comment"`
		} `json:"nodes"`
	}
	r := command(ctx, "scontrol", "--json", "show", "node", names[0])
	err := json.Unmarshal([]byte(r.Stdout), &answer)
	if err == nil && len(answer.Nodes) == 1 {
		r = command(ctx, "scontrol", "update", "NodeName="+names[0], "Comment="+answer.Nodes[0].Comment)
	}
	if err != nil || r.Code != 0 {
		c.log.Warn("Jobs that wait may wait for half a minute more", "err", err, "scontrol", strings.TrimSpace(r.Stderr))
	}
}

// passing reports whether scontrol could not ask slurmctld, which says
// nothing about the configuration.
func passing(said string) bool {
	for _, text := range []string{"Unable to contact", "Connection refused", "timed out", "Connection reset"} {
		if strings.Contains(said, text) {
			return true
		}
	}
	return false
}

// pushLimit bounds one push of node states.
const pushLimit = 5 * time.Second

// push tells the control plane of changed nodes.
func (c *Controller) push(ctx context.Context, n imds.Nodes) error {
	// A push that hangs would keep every gate closed.
	ctx, cancel := context.WithTimeout(ctx, pushLimit)
	defer cancel()
	return metadata(ctx, http.MethodPost, "/openpcs/v1/nodes", c.who.Token, n, nil)
}

func showNodes(ctx context.Context, list string) (map[string]slurm.Node, error) {
	argv := []string{"scontrol", "--json", "show", "nodes"}
	if list != "" {
		argv = append(argv, list)
	}
	r := command(ctx, argv...)
	if r.Code != 0 {
		return nil, fmt.Errorf("show nodes: %s", strings.TrimSpace(r.Stderr))
	}
	return slurm.ParseNodes([]byte(r.Stdout))
}

func command(ctx context.Context, argv ...string) Ran {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	var out, errOut bytes.Buffer
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err := cmd.Run()
	r := Ran{Stdout: out.String(), Stderr: errOut.String()}
	var exit *exec.ExitError
	switch {
	case err == nil:
	case errors.As(err, &exit):
		r.Code = exit.ExitCode()
	default:
		r.Code, r.Stderr = 127, err.Error()
	}
	return r
}

func lastLines(path string, n int) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], " | ")
}

// writeFile replaces a file in one step.
func writeFile(path string, text []byte, mode os.FileMode) error {
	tmp := path + ".new"
	if err := os.WriteFile(tmp, text, mode); err != nil {
		return err
	}
	if err := os.Chmod(tmp, mode); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

func decode(w http.ResponseWriter, r *http.Request, v any) bool {
	err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 16<<20)).Decode(v)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
	}
	return err == nil
}

func reply(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v)
}

func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// retry repeats f with growing pauses until it succeeds or ctx ends.
func retry(ctx context.Context, f func() error) error {
	wait := 20 * time.Millisecond
	for {
		err := f()
		var final permanent
		if err == nil || errors.As(err, &final) {
			return err
		}
		if pause(ctx, wait) != nil {
			return err
		}
		wait = min(wait*2, 2*time.Second)
	}
}

// permanent marks an error that repeating will not cure.
type permanent struct{ error }

func (p permanent) Unwrap() error { return p.error }

// metadata talks to the metadata service.
func metadata(ctx context.Context, method, path, token string, in, out any) error {
	var body io.Reader
	if in != nil {
		doc, err := json.Marshal(in)
		if err != nil {
			return permanent{err}
		}
		body = bytes.NewReader(doc)
	}
	req, err := http.NewRequestWithContext(ctx, method, imds.Base+path, body)
	if err != nil {
		return permanent{err}
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 16<<20))
	if err != nil {
		return err
	}
	if resp.StatusCode/100 != 2 {
		err := fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, strings.TrimSpace(string(text)))
		if resp.StatusCode == http.StatusBadRequest {
			return permanent{err}
		}
		return err
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(text, out)
}

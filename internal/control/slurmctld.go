package control

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/openpcs/openpcs/internal/agent"
	"github.com/openpcs/openpcs/internal/fault"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/imds"
	"github.com/openpcs/openpcs/internal/slurm"
)

// Slurmctld is a cluster's controller, as far as Control drives it.
type Slurmctld interface {
	// Configure brings slurmctld to the configuration; a non-empty refusal is
	// Slurm's own word against it, with the former one back in place.
	Configure(ctx context.Context, conf agent.Config) (refusal string, err error)
	// Run runs a Slurm command.
	Run(ctx context.Context, argv ...string) (agent.Ran, error)
	// Nodes returns the states of all nodes.
	Nodes(ctx context.Context) (map[string]slurm.Node, error)
}

// seamed tells a seam of all that changes something at slurmctld.
type seamed struct {
	Slurmctld
	seam fault.Seam
}

func (s *seamed) Configure(ctx context.Context, conf agent.Config) (refusal string, err error) {
	s.seam.Cross("slurmctld/configure", func() { refusal, err = s.Slurmctld.Configure(ctx, conf) })
	return refusal, err
}

func (s *seamed) Run(ctx context.Context, argv ...string) (ran agent.Ran, err error) {
	name := argv[0]
	for _, a := range argv[1:] { // an update by the state that it sets
		if state, ok := strings.CutPrefix(a, "State="); ok {
			name = state
		} else if strings.HasPrefix(a, "Reason=") && name == argv[0] {
			name = "Reason"
		}
	}
	s.seam.Cross("slurmctld/"+name, func() { ran, err = s.Slurmctld.Run(ctx, argv...) })
	return ran, err
}

// agentClient talks to the agent on the controller.
type agentClient struct {
	base, token string
	http        *http.Client
}

var agentTransport = &http.Transport{MaxIdleConnsPerHost: 4, IdleConnTimeout: time.Minute}

func newAgentClient(cl fleet.Cluster) *agentClient {
	return &agentClient{
		base: fmt.Sprintf("http://%s:%d", cl.ControllerAddress, agent.ControllerPort), token: cl.ControllerToken,
		http: &http.Client{Transport: agentTransport},
	}
}

func (a *agentClient) call(ctx context.Context, limit time.Duration, method, path string, in, out any) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var body io.Reader
	if in != nil {
		doc, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body = bytes.NewReader(doc)
	}
	req, err := http.NewRequestWithContext(ctx, method, a.base+path, body)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+a.token)
	resp, err := a.http.Do(req)
	if err != nil {
		return fmt.Errorf("reach the controller's agent: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return fmt.Errorf("reach the controller's agent: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("ask the controller's agent for %s: %s: %s", path, resp.Status, strings.TrimSpace(string(text)))
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(text, out)
}

func (a *agentClient) Configure(ctx context.Context, conf agent.Config) (string, error) {
	var answer agent.Answer
	if err := a.call(ctx, 2*time.Minute, http.MethodPut, "/v1/config", conf, &answer); err != nil {
		return "", err
	}
	if answer.Trouble != nil {
		return "", answer.Trouble
	}
	return answer.Error, nil
}

func (a *agentClient) Run(ctx context.Context, argv ...string) (ran agent.Ran, err error) {
	err = a.call(ctx, time.Minute, http.MethodPost, "/v1/run", agent.Run{Argv: argv}, &ran)
	return ran, err
}

func (a *agentClient) Nodes(ctx context.Context) (map[string]slurm.Node, error) {
	var n imds.Nodes
	err := a.call(ctx, 30*time.Second, http.MethodGet, "/v1/nodes", nil, &n)
	return n.Nodes, err
}

// scontrol runs scontrol and makes its failure an error.
func scontrol(ctx context.Context, s Slurmctld, args ...string) error {
	ran, err := s.Run(ctx, append([]string{"scontrol"}, args...)...)
	if err != nil {
		return err
	}
	if ran.Code != 0 {
		return fmt.Errorf("run scontrol %s: %s", strings.Join(args, " "), strings.TrimSpace(ran.Stderr+ran.Stdout))
	}
	return nil
}

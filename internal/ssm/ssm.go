// Package ssm is the part of Systems Manager that runs commands on
// instances. A command is durable from the moment it is accepted: what a
// restart of openpcs interrupts is marked as failed, what was not begun runs
// after it.
package ssm

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/openpcs/openpcs/internal/awsapi"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/store"
)

// Runner runs a shell script on an instance as root. It returns what the
// script wrote and its exit code, or an error when it could not run or (then
// wrapping context.DeadlineExceeded) did not end within the timeout. Outputs
// may be returned beside an error.
type Runner interface {
	Run(ctx context.Context, instanceID, script, dir string, timeout time.Duration) (stdout, stderr []byte, code int, err error)
}

// Options configure the service.
type Options struct {
	Store   *store.Store
	Account string
	Runner  Runner
	Logger  *slog.Logger     // nil: slog.Default
	Now     func() time.Time // nil: time.Now
	// Concurrency bounds the scripts that run at once; 0: 16.
	Concurrency int
}

// SSM is the service.
type SSM struct {
	store   *store.Store
	account string
	runner  Runner
	log     *slog.Logger
	now     func() time.Time

	slots chan struct{} // one entry per running script

	mu      sync.Mutex
	running map[string]context.CancelFunc // by invocation
	queue   chan string                   // ids of commands that wait
	missed  atomic.Bool                   // the queue was full once
	stop    func()                        // nil before Start
}

// New makes the service. Commands are executed from Start to Stop.
func New(opts Options) *SSM {
	s := &SSM{
		store: opts.Store, account: opts.Account, runner: opts.Runner, log: opts.Logger, now: opts.Now,
		running: map[string]context.CancelFunc{}, queue: make(chan string, 1024),
	}
	if s.log == nil {
		s.log = slog.Default()
	}
	if s.now == nil {
		s.now = time.Now
	}
	n := opts.Concurrency
	if n == 0 {
		n = 16
	}
	s.slots = make(chan struct{}, n)
	return s
}

// Service returns the table of operations.
func (s *SSM) Service() awsapi.Service {
	return awsapi.Service{
		Name: "ssm", Protocol: awsapi.JSON11, Target: "AmazonSSM",
		Operations: []awsapi.Operation{
			awsapi.JSON("SendCommand", "ssm:SendCommand", false, s.sendCommand),
			awsapi.JSON("CancelCommand", "ssm:CancelCommand", false, s.cancelCommand),
			awsapi.JSON("GetCommandInvocation", "ssm:GetCommandInvocation", true, s.getInvocation),
			awsapi.JSON("ListCommandInvocations", "ssm:ListCommandInvocations", true, s.listInvocations),
			awsapi.JSON("ListCommands", "ssm:ListCommands", true, s.listCommands),
			awsapi.JSON("DescribeInstanceInformation", "ssm:DescribeInstanceInformation", true, s.describeInstances),
			awsapi.JSON("StartSession", "ssm:StartSession", false, s.startSession),
			awsapi.JSON("ResumeSession", "ssm:ResumeSession", false, s.noSession),
			awsapi.JSON("TerminateSession", "ssm:TerminateSession", false, s.noSession),
		},
		Fault: func(f *awsapi.Fault) *awsapi.Error {
			if f.Kind == awsapi.FaultBadToken {
				return &awsapi.Error{Code: "InvalidNextToken", Message: f.Message}
			}
			return nil
		},
	}
}

func fail(code, format string, args ...any) error {
	return &awsapi.Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

func notValid(format string, args ...any) error { return fail("ValidationException", format, args...) }

// pageSize checks MaxResults of the actions that allow 1 to 50.
func pageSize(given *int32) (int, error) {
	if given == nil {
		return 50, nil
	}
	if *given < 1 || *given > 50 {
		return 0, notValid("MaxResults must be between 1 and 50, not %d.", *given)
	}
	return int(*given), nil
}

// target selects instances by a property.
type target struct {
	Key    string   `json:"Key"`
	Values []string `json:"Values"`
}

// matches reports whether the instance is selected by the target.
func (t target) matches(i fleet.Instance) (bool, error) {
	switch key, isTag := cutTag(t.Key); {
	case isTag:
		v, ok := i.Tags[key]
		return ok && slices.Contains(t.Values, v), nil
	case t.Key == "tag-key":
		return slices.ContainsFunc(t.Values, func(k string) bool { _, ok := i.Tags[k]; return ok }), nil
	case t.Key == "InstanceIds" || t.Key == "instanceids":
		return slices.Contains(t.Values, i.ID) || slices.Contains(t.Values, "*"), nil
	default:
		return false, fail("InvalidTarget", "openpcs selects instances by InstanceIds, tag:<name> and tag-key, not by %q.", t.Key)
	}
}

func cutTag(key string) (string, bool) {
	if len(key) > 4 && key[:4] == "tag:" {
		return key[4:], true
	}
	return "", false
}

type stringFilter struct {
	Key    string   `json:"Key"`
	Values []string `json:"Values"`
}

// listFilter is the older form of a filter, with other names.
type listFilter struct {
	Key      string   `json:"key"`
	ValueSet []string `json:"valueSet"`
}

type describeInstancesIn struct {
	Filters    []stringFilter `json:"Filters"`
	Old        []listFilter   `json:"InstanceInformationFilterList"`
	MaxResults *int32         `json:"MaxResults"`
	NextToken  string         `json:"NextToken"`
}

type describeInstancesOut struct {
	Instances []instanceOut `json:"InstanceInformationList"`
	NextToken string        `json:"NextToken,omitempty"`
}

type instanceOut struct {
	ID           string       `json:"InstanceId"`
	Ping         string       `json:"PingStatus"`
	LastPing     awsapi.Epoch `json:"LastPingDateTime"`
	AgentVersion string       `json:"AgentVersion"`
	IsLatest     bool         `json:"IsLatestVersion"`
	Platform     string       `json:"PlatformType"`
	PlatformName string       `json:"PlatformName"`
	ResourceType string       `json:"ResourceType"`
	Address      string       `json:"IPAddress"`
	ComputerName string       `json:"ComputerName"`
}

// describeInstances lists the instances that commands can be sent to.
func (s *SSM) describeInstances(ctx context.Context, r *awsapi.Request, in *describeInstancesIn) (*describeInstancesOut, error) {
	size, err := pageSize(in.MaxResults)
	if err != nil {
		return nil, err
	}
	filters := slices.Clone(in.Filters)
	for _, f := range in.Old {
		filters = append(filters, stringFilter{f.Key, f.ValueSet})
	}
	for _, f := range filters { // also when there is no instance
		if _, err := passes(f, fleet.Instance{}); err != nil {
			return nil, err
		}
	}
	all, err := s.online(ctx, r.Region)
	if err != nil {
		return nil, err
	}
	for _, f := range filters {
		var kept []fleet.Instance
		for _, i := range all {
			ok, err := passes(f, i)
			if err != nil {
				return nil, err
			}
			if ok {
				kept = append(kept, i)
			}
		}
		all = kept
	}
	all, next, err := awsapi.Page(r, filters, in.NextToken, size, all, func(i fleet.Instance) string { return i.ID })
	if err != nil {
		return nil, err
	}
	out := &describeInstancesOut{Instances: []instanceOut{}, NextToken: next}
	for _, i := range all {
		out.Instances = append(out.Instances, instanceOut{
			ID: i.ID, Ping: "Online", LastPing: awsapi.EpochAt(r.Now), AgentVersion: "3.3.0.0", IsLatest: true,
			Platform: "Linux", PlatformName: "Debian GNU/Linux", ResourceType: "EC2Instance", Address: i.Address, ComputerName: i.PrivateDNS(),
		})
	}
	return out, nil
}

func passes(f stringFilter, i fleet.Instance) (bool, error) {
	switch f.Key {
	case "PingStatus":
		return slices.Contains(f.Values, "Online"), nil
	case "PlatformTypes", "PlatformType":
		return slices.Contains(f.Values, "Linux"), nil
	case "ResourceType":
		return slices.Contains(f.Values, "EC2Instance"), nil
	}
	ok, err := target(f).matches(i)
	if err != nil {
		return false, fail("InvalidInstanceInformationFilterValue", "openpcs does not filter instances by %q.", f.Key)
	}
	return ok, nil
}

// online returns the running instances of a region.
func (s *SSM) online(ctx context.Context, region string) ([]fleet.Instance, error) {
	var out []fleet.Instance
	err := s.store.View(ctx, func(tx *store.Tx) error {
		all, err := fleet.Instances.InRegion(tx, region)
		for _, i := range all {
			if i.State == fleet.Running {
				out = append(out, i)
			}
		}
		return err
	})
	return out, err
}

type startSessionIn struct {
	Target string `json:"Target"`
}

func (s *SSM) startSession(_ context.Context, _ *awsapi.Request, in *startSessionIn) (*struct{}, error) {
	return nil, fail("TargetNotConnected", "openpcs does not serve Session Manager yet. For a shell on the instance run: openpcs connect %s", in.Target)
}

type sessionIn struct {
	ID string `json:"SessionId"`
}

func (s *SSM) noSession(_ context.Context, _ *awsapi.Request, in *sessionIn) (*struct{}, error) {
	return nil, &awsapi.Error{
		Code: "DoesNotExistException", Status: http.StatusBadRequest,
		Message: fmt.Sprintf("Session %s does not exist: openpcs does not serve Session Manager yet.", in.ID),
	}
}

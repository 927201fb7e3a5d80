package ssm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/openpcs/openpcs/internal/awsapi"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/store"
)

// runShellScript is the only document that openpcs has.
const (
	runShellScript = "AWS-RunShellScript"
	plugin         = "aws:runShellScript"
)

// The statuses of commands and invocations.
const (
	pending    = "Pending"
	inProgress = "InProgress"
	success    = "Success"
	failed     = "Failed"
	timedOut   = "TimedOut"
	cancelled  = "Cancelled"
)

const (
	defaultTimeout = 3600 * time.Second
	// maxOutput is how much of an output is kept, maxListed how much of it
	// ListCommandInvocations shows.
	maxOutput = 24000
	maxListed = 2500
	// keepFor is how long commands are kept after they were sent.
	keepFor = 30 * 24 * time.Hour
)

// Command is a script that was sent to instances.
type Command struct {
	ID          string              `json:"id"`
	Region      string              `json:"region"`
	Comment     string              `json:"comment,omitempty"`
	Parameters  map[string][]string `json:"parameters"`
	InstanceIDs []string            `json:"instanceIds,omitempty"`
	Targets     []target            `json:"targets,omitempty"`
	// Expanded are the instances that it was sent to.
	Expanded       []string      `json:"expanded"`
	RequestedAt    time.Time     `json:"requestedAt"`
	Delivery       time.Duration `json:"delivery"`  // how long it may wait to begin
	Execution      time.Duration `json:"execution"` // how long it may run
	MaxConcurrency string        `json:"maxConcurrency"`
	MaxErrors      string        `json:"maxErrors"`
}

var commands = store.NewCollection("ssmcommand", func(c Command) store.Index {
	return store.Index{ID: c.ID, Region: c.Region}
})

// Invocation is a command on one instance.
type Invocation struct {
	CommandID  string    `json:"commandId"`
	InstanceID string    `json:"instanceId"`
	Status     string    `json:"status"`
	Details    string    `json:"details"`
	Stdout     string    `json:"stdout,omitempty"`
	Stderr     string    `json:"stderr,omitempty"`
	Code       int       `json:"code"` // -1 until it ended
	StartedAt  time.Time `json:"startedAt,omitzero"`
	EndedAt    time.Time `json:"endedAt,omitzero"`
}

func (i Invocation) id() string { return i.CommandID + "/" + i.InstanceID }

func (i Invocation) over() bool { return i.Status != pending && i.Status != inProgress }

var invocations = store.NewCollection("ssminvocation", func(i Invocation) store.Index {
	return store.Index{ID: i.id(), Parent: i.CommandID}
})

type sendCommandIn struct {
	InstanceIDs     []string            `json:"InstanceIds"`
	Targets         []target            `json:"Targets"`
	Document        string              `json:"DocumentName"`
	DocumentVersion string              `json:"DocumentVersion"`
	Parameters      map[string][]string `json:"Parameters"`
	Comment         string              `json:"Comment"`
	TimeoutSeconds  *int32              `json:"TimeoutSeconds"`
	MaxConcurrency  string              `json:"MaxConcurrency"`
	MaxErrors       string              `json:"MaxErrors"`
	OutputBucket    string              `json:"OutputS3BucketName"`
	OutputPrefix    string              `json:"OutputS3KeyPrefix"`
	ServiceRole     string              `json:"ServiceRoleArn"`
	Notification    *struct {
		ARN string `json:"NotificationArn"`
	} `json:"NotificationConfig"`
	CloudWatch *struct {
		Enabled bool `json:"CloudWatchOutputEnabled"`
	} `json:"CloudWatchOutputConfig"`
	Alarms *struct{} `json:"AlarmConfiguration"`
}

type commandOut struct {
	ID              string              `json:"CommandId"`
	Document        string              `json:"DocumentName"`
	DocumentVersion string              `json:"DocumentVersion"`
	Comment         string              `json:"Comment"`
	ExpiresAfter    awsapi.Epoch        `json:"ExpiresAfter"`
	Parameters      map[string][]string `json:"Parameters"`
	InstanceIDs     []string            `json:"InstanceIds"`
	Targets         []target            `json:"Targets"`
	RequestedAt     awsapi.Epoch        `json:"RequestedDateTime"`
	Status          string              `json:"Status"`
	Details         string              `json:"StatusDetails"`
	MaxConcurrency  string              `json:"MaxConcurrency"`
	MaxErrors       string              `json:"MaxErrors"`
	Targeted        int                 `json:"TargetCount"`
	Completed       int                 `json:"CompletedCount"`
	Errors          int                 `json:"ErrorCount"`
	TimedOut        int                 `json:"DeliveryTimedOutCount"`
	TimeoutSeconds  int                 `json:"TimeoutSeconds"`
}

type sendCommandOut struct {
	Command commandOut `json:"Command"`
}

func (s *SSM) sendCommand(ctx context.Context, r *awsapi.Request, in *sendCommandIn) (*sendCommandOut, error) {
	c, err := in.command(r)
	if err != nil {
		return nil, err
	}
	if c.Expanded, err = s.expand(ctx, r.Region, in); err != nil {
		return nil, err
	}
	var is []Invocation
	for _, id := range c.Expanded {
		is = append(is, Invocation{CommandID: c.ID, InstanceID: id, Status: pending, Details: pending, Code: -1})
	}
	err = s.store.Update(ctx, func(tx *store.Tx) error {
		for _, i := range is {
			if err := invocations.Put(tx, i); err != nil {
				return err
			}
		}
		return commands.Put(tx, c)
	})
	if err != nil {
		return nil, err
	}
	s.enqueue(c.ID)
	return &sendCommandOut{c.out(is)}, nil
}

// command checks the input and makes a command of it, without its instances.
func (in *sendCommandIn) command(r *awsapi.Request) (Command, error) {
	c := Command{
		ID: uuid.NewString(), Region: r.Region, Comment: in.Comment, Parameters: in.Parameters,
		InstanceIDs: in.InstanceIDs, Targets: in.Targets, RequestedAt: r.Now.Truncate(time.Millisecond),
		Delivery: defaultTimeout, Execution: defaultTimeout, MaxConcurrency: "50", MaxErrors: "0",
	}
	switch {
	case in.Document == "":
		return c, notValid("1 validation error detected: Value null at 'documentName' failed to satisfy constraint: Member must not be null")
	case in.Document != runShellScript:
		return c, fail("InvalidDocument", "Document with name %s does not exist. openpcs has %s.", in.Document, runShellScript)
	case !slices.Contains([]string{"", "1", "$DEFAULT", "$LATEST"}, in.DocumentVersion):
		return c, fail("InvalidDocumentVersion", "Document %s has no version %s.", in.Document, in.DocumentVersion)
	case in.OutputBucket != "" || in.OutputPrefix != "":
		return c, fail("InvalidOutputFolder", "openpcs does not write the output of commands to S3: read it with get-command-invocation.")
	case in.CloudWatch != nil && in.CloudWatch.Enabled:
		return c, notValid("openpcs does not write the output of commands to CloudWatch Logs: read it with get-command-invocation.")
	case in.Notification != nil && in.Notification.ARN != "", in.ServiceRole != "":
		return c, fail("InvalidNotificationConfig", "openpcs does not send notifications of commands.")
	case in.Alarms != nil:
		return c, notValid("openpcs has no alarms that a command could depend on.")
	case len(in.Comment) > 100:
		return c, notValid("Comment must have at most 100 characters.")
	}
	if t := in.TimeoutSeconds; t != nil {
		if *t < 30 || *t > 2592000 {
			return c, notValid("TimeoutSeconds must be between 30 and 2592000, not %d.", *t)
		}
		c.Delivery = time.Duration(*t) * time.Second
	}
	for _, bound := range []struct {
		name  string
		given string
		keep  *string
		least int
	}{{"MaxConcurrency", in.MaxConcurrency, &c.MaxConcurrency, 1}, {"MaxErrors", in.MaxErrors, &c.MaxErrors, 0}} {
		if bound.given == "" {
			continue
		}
		if n, err := share(bound.given, 100); err != nil || n < bound.least {
			return c, notValid("%s must be a number or a percentage, not %q.", bound.name, bound.given)
		}
		*bound.keep = bound.given
	}
	return c, c.readParameters()
}

func (c *Command) readParameters() error {
	one := func(name string) (string, error) {
		v := c.Parameters[name]
		if len(v) > 1 {
			return "", fail("InvalidParameters", "Parameter %s takes one value.", name)
		}
		return strings.Join(v, ""), nil
	}
	for name := range c.Parameters {
		if !slices.Contains([]string{"commands", "workingDirectory", "executionTimeout"}, name) {
			return fail("InvalidParameters", "Document %s has no parameter %q.", runShellScript, name)
		}
	}
	if len(c.Parameters["commands"]) == 0 {
		return fail("InvalidParameters", "Parameter commands is required.")
	}
	if _, err := one("workingDirectory"); err != nil {
		return err
	}
	timeout, err := one("executionTimeout")
	if err != nil || timeout == "" {
		return err
	}
	n, err := strconv.Atoi(timeout)
	if err != nil || n < 1 || n > 172800 {
		return fail("InvalidParameters", "Parameter executionTimeout must be a number of seconds between 1 and 172800, not %q.", timeout)
	}
	c.Execution = time.Duration(n) * time.Second
	return nil
}

// share reads a number, or a percentage of total.
func share(s string, total int) (int, error) {
	percent, ok := strings.CutSuffix(s, "%")
	n, err := strconv.Atoi(percent)
	if err != nil || n < 0 || (ok && n > 100) {
		return 0, fmt.Errorf("%q is neither a number nor a percentage", s)
	}
	if ok {
		n = (n*total + 99) / 100
	}
	return n, nil
}

// expand returns the instances that the command goes to.
func (s *SSM) expand(ctx context.Context, region string, in *sendCommandIn) ([]string, error) {
	switch {
	case len(in.InstanceIDs) > 0 && len(in.Targets) > 0:
		return nil, notValid("InstanceIds and Targets cannot be used together.")
	case len(in.InstanceIDs) == 0 && len(in.Targets) == 0:
		return nil, notValid("One of InstanceIds and Targets is required.")
	case len(in.InstanceIDs) > 50:
		return nil, notValid("At most 50 InstanceIds are allowed; use Targets for more.")
	}
	for _, t := range in.Targets { // also when there is no instance
		if _, err := t.matches(fleet.Instance{}); err != nil {
			return nil, err
		}
	}
	online, err := s.online(ctx, region)
	if err != nil {
		return nil, err
	}
	var out []string
	for _, id := range in.InstanceIDs {
		known := false
		for _, i := range online {
			known = known || i.ID == id
		}
		if !known {
			return nil, fail("InvalidInstanceId", "Instances [[%s]] not in a valid state for account %s", id, s.account)
		}
		if !slices.Contains(out, id) {
			out = append(out, id)
		}
	}
	if len(in.Targets) == 0 {
		return out, nil
	}
	for _, i := range online {
		all := true
		for _, t := range in.Targets {
			ok, err := t.matches(i)
			if err != nil {
				return nil, err
			}
			all = all && ok
		}
		if all {
			out = append(out, i.ID)
		}
	}
	return out, nil
}

// out describes the command with the state that its invocations give it.
func (c Command) out(is []Invocation) commandOut {
	o := commandOut{
		ID: c.ID, Document: runShellScript, Comment: c.Comment, ExpiresAfter: awsapi.EpochAt(c.RequestedAt.Add(c.Delivery + c.Execution)),
		Parameters: c.Parameters, InstanceIDs: c.InstanceIDs, Targets: c.Targets,
		RequestedAt: awsapi.EpochAt(c.RequestedAt), MaxConcurrency: c.MaxConcurrency, MaxErrors: c.MaxErrors,
		Targeted: len(is), TimeoutSeconds: int(c.Delivery / time.Second),
	}
	if o.InstanceIDs == nil {
		o.InstanceIDs = []string{}
	}
	if o.Targets == nil {
		o.Targets = []target{}
	}
	counts := map[string]int{}
	for _, i := range is {
		counts[i.Status]++
		if i.over() {
			o.Completed++
		}
		if i.Details == "DeliveryTimedOut" {
			o.TimedOut++
		}
	}
	o.Errors = counts[failed] + counts[timedOut]
	switch {
	case counts[pending] == len(is) && len(is) > 0:
		o.Status = pending
	case counts[pending]+counts[inProgress] > 0:
		o.Status = inProgress
	case counts[failed] > 0:
		o.Status = failed
	case counts[timedOut] > 0:
		o.Status = timedOut
	case counts[cancelled] > 0:
		o.Status = cancelled
	default:
		o.Status = success
	}
	o.Details = o.Status
	if len(is) == 0 {
		o.Details = "NoInstancesInTag"
	}
	return o
}

// find returns a command of the region with its invocations.
func find(tx *store.Tx, region, id string) (Command, []Invocation, error) {
	c, err := commands.Get(tx, id)
	if err == nil && c.Region != region {
		err = store.ErrNotFound
	}
	if errors.Is(err, store.ErrNotFound) {
		return c, nil, fail("InvalidCommandId", "There is no command %s.", id)
	}
	if err != nil {
		return c, nil, err
	}
	is, err := invocations.Of(tx, id)
	return c, is, err
}

type cancelIn struct {
	ID          string   `json:"CommandId"`
	InstanceIDs []string `json:"InstanceIds"`
}

// cancelCommand stops what was not begun, and asks what runs to stop.
func (s *SSM) cancelCommand(ctx context.Context, r *awsapi.Request, in *cancelIn) (*struct{}, error) {
	var stop []string
	err := s.store.Update(ctx, func(tx *store.Tx) error {
		_, is, err := find(tx, r.Region, in.ID)
		if err != nil {
			return err
		}
		for _, id := range in.InstanceIDs {
			if !slices.ContainsFunc(is, func(i Invocation) bool { return i.InstanceID == id }) {
				return fail("InvalidInstanceId", "Command %s was not sent to instance %s.", in.ID, id)
			}
		}
		for _, i := range is {
			if len(in.InstanceIDs) > 0 && !slices.Contains(in.InstanceIDs, i.InstanceID) {
				continue
			}
			switch i.Status {
			case pending:
				i.Status, i.Details, i.EndedAt = cancelled, cancelled, r.Now
				if err := invocations.Put(tx, i); err != nil {
					return err
				}
			case inProgress:
				stop = append(stop, i.id())
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range stop {
		if cancel := s.running[id]; cancel != nil {
			cancel()
		}
	}
	return nil, nil // an empty answer is one
}

package ssm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/openpcs/openpcs/internal/awsapi"
	"github.com/openpcs/openpcs/internal/store"
)

type getInvocationIn struct {
	CommandID  string `json:"CommandId"`
	InstanceID string `json:"InstanceId"`
	Plugin     string `json:"PluginName"`
}

type getInvocationOut struct {
	CommandID  string `json:"CommandId"`
	InstanceID string `json:"InstanceId"`
	Comment    string `json:"Comment"`
	Document   string `json:"DocumentName"`
	Version    string `json:"DocumentVersion"`
	Plugin     string `json:"PluginName"`
	Code       int    `json:"ResponseCode"`
	Start      string `json:"ExecutionStartDateTime"`
	Elapsed    string `json:"ExecutionElapsedTime"`
	End        string `json:"ExecutionEndDateTime"`
	Status     string `json:"Status"`
	Details    string `json:"StatusDetails"`
	Stdout     string `json:"StandardOutputContent"`
	StdoutURL  string `json:"StandardOutputUrl"`
	Stderr     string `json:"StandardErrorContent"`
	StderrURL  string `json:"StandardErrorUrl"`
	CloudWatch struct {
		Group   string `json:"CloudWatchLogGroupName"`
		Enabled bool   `json:"CloudWatchOutputEnabled"`
	} `json:"CloudWatchOutputConfig"`
}

func iso(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format("2006-01-02T15:04:05.000Z")
}

func (i Invocation) elapsed() string {
	if i.EndedAt.IsZero() || i.StartedAt.IsZero() {
		return ""
	}
	return fmt.Sprintf("PT%.3fS", i.EndedAt.Sub(i.StartedAt).Seconds())
}

func (s *SSM) getInvocation(ctx context.Context, r *awsapi.Request, in *getInvocationIn) (*getInvocationOut, error) {
	if in.CommandID == "" || in.InstanceID == "" {
		return nil, notValid("CommandId and InstanceId are required.")
	}
	if in.Plugin != "" && in.Plugin != plugin {
		return nil, fail("InvalidPluginName", "The plugin of document %s is %s.", runShellScript, plugin)
	}
	var c Command
	var i Invocation
	err := s.store.View(ctx, func(tx *store.Tx) error {
		var err error
		if c, err = commands.Get(tx, in.CommandID); err == nil && c.Region != r.Region {
			err = store.ErrNotFound
		}
		if err == nil {
			i, err = invocations.Get(tx, Invocation{CommandID: in.CommandID, InstanceID: in.InstanceID}.id())
		}
		if errors.Is(err, store.ErrNotFound) {
			return fail("InvocationDoesNotExist", "Command %s was not sent to instance %s.", in.CommandID, in.InstanceID)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return &getInvocationOut{
		CommandID: c.ID, InstanceID: i.InstanceID, Comment: c.Comment, Document: runShellScript, Version: "$DEFAULT", Plugin: plugin,
		Code: i.Code, Start: iso(i.StartedAt), Elapsed: i.elapsed(), End: iso(i.EndedAt),
		Status: i.Status, Details: i.Details, Stdout: i.Stdout, Stderr: i.Stderr,
	}, nil
}

// commandFilter is a filter of the two List actions.
type commandFilter struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// pass applies the filters to a command and, when there is one, an
// invocation's status.
func pass(filters []commandFilter, c Command, status string) (bool, error) {
	for _, f := range filters {
		ok := false
		switch f.Key {
		case "InvokedAfter", "InvokedBefore":
			t, err := time.Parse(time.RFC3339, f.Value)
			if err != nil {
				return false, fail("InvalidFilterKey", "The value of %s must be a time as 2006-01-02T15:04:05Z, not %q.", f.Key, f.Value)
			}
			ok = c.RequestedAt.After(t) == (f.Key == "InvokedAfter")
		case "Status":
			ok = status == f.Value
		case "DocumentName":
			ok = f.Value == runShellScript
		case "ExecutionStage":
			executing := status == pending || status == inProgress
			ok = executing == (f.Value == "Executing")
		default:
			return false, fail("InvalidFilterKey", "openpcs does not filter commands by %q.", f.Key)
		}
		if !ok {
			return false, nil
		}
	}
	return true, nil
}

// checkFilters refuses what pass does not know, also when there is nothing
// that it could be applied to.
func checkFilters(filters []commandFilter) error {
	for _, f := range filters {
		if _, err := pass([]commandFilter{f}, Command{}, ""); err != nil {
			return err
		}
	}
	return nil
}

type listIn struct {
	CommandID  string          `json:"CommandId"`
	InstanceID string          `json:"InstanceId"`
	Filters    []commandFilter `json:"Filters"`
	Details    bool            `json:"Details"`
	MaxResults *int32          `json:"MaxResults"`
	NextToken  string          `json:"NextToken"`
}

// row is a command with one or all of its invocations.
type row struct {
	c  Command
	is []Invocation
}

// rows returns the commands of the region that the input selects, newest
// first.
func (s *SSM) rows(ctx context.Context, r *awsapi.Request, in *listIn) ([]row, error) {
	var out []row
	err := s.store.View(ctx, func(tx *store.Tx) error {
		if in.CommandID != "" {
			c, is, err := find(tx, r.Region, in.CommandID)
			out = []row{{c, is}}
			return err
		}
		cs, err := commands.InRegion(tx, r.Region)
		if err != nil {
			return err
		}
		for _, c := range slices.Backward(cs) {
			is, err := invocations.Of(tx, c.ID)
			if err != nil {
				return err
			}
			out = append(out, row{c, is})
		}
		return nil
	})
	return out, err
}

type listCommandsOut struct {
	Commands  []commandOut `json:"Commands"`
	NextToken string       `json:"NextToken,omitempty"`
}

func (s *SSM) listCommands(ctx context.Context, r *awsapi.Request, in *listIn) (*listCommandsOut, error) {
	size, err := pageSize(in.MaxResults)
	if err != nil {
		return nil, err
	}
	if err := checkFilters(in.Filters); err != nil {
		return nil, err
	}
	all, err := s.rows(ctx, r, in)
	if err != nil {
		return nil, err
	}
	var kept []commandOut
	for _, w := range all {
		if in.InstanceID != "" && !slices.Contains(w.c.Expanded, in.InstanceID) {
			continue
		}
		o := w.c.out(w.is)
		ok, err := pass(in.Filters, w.c, o.Status)
		if err != nil {
			return nil, err
		}
		if ok {
			kept = append(kept, o)
		}
	}
	out := &listCommandsOut{Commands: []commandOut{}}
	args := []any{in.CommandID, in.InstanceID, in.Filters}
	kept, out.NextToken, err = awsapi.Page(r, args, in.NextToken, size, kept, func(o commandOut) string { return newestFirst(o.RequestedAt.Time, o.ID) })
	if err != nil {
		return nil, err
	}
	out.Commands = append(out.Commands, kept...)
	return out, nil
}

// newestFirst is a key that orders the other way round than the time.
func newestFirst(t time.Time, id string) string {
	return fmt.Sprintf("%020d %s", uint64(1)<<63-uint64(max(0, t.UnixNano())), id) // not negative
}

type listInvocationsOut struct {
	Invocations []invocationOut `json:"CommandInvocations"`
	NextToken   string          `json:"NextToken,omitempty"`
}

type invocationOut struct {
	CommandID   string       `json:"CommandId"`
	InstanceID  string       `json:"InstanceId"`
	Name        string       `json:"InstanceName"`
	Comment     string       `json:"Comment"`
	Document    string       `json:"DocumentName"`
	Version     string       `json:"DocumentVersion"`
	RequestedAt awsapi.Epoch `json:"RequestedDateTime"`
	Status      string       `json:"Status"`
	Details     string       `json:"StatusDetails"`
	Plugins     []pluginOut  `json:"CommandPlugins"`
}

type pluginOut struct {
	Name    string       `json:"Name"`
	Status  string       `json:"Status"`
	Details string       `json:"StatusDetails"`
	Code    int          `json:"ResponseCode"`
	Start   awsapi.Epoch `json:"ResponseStartDateTime,omitzero"`
	Finish  awsapi.Epoch `json:"ResponseFinishDateTime,omitzero"`
	Output  string       `json:"Output"`
}

func (s *SSM) listInvocations(ctx context.Context, r *awsapi.Request, in *listIn) (*listInvocationsOut, error) {
	size, err := pageSize(in.MaxResults)
	if err != nil {
		return nil, err
	}
	if err := checkFilters(in.Filters); err != nil {
		return nil, err
	}
	all, err := s.rows(ctx, r, in)
	if err != nil {
		return nil, err
	}
	var kept []row
	for _, w := range all {
		for _, i := range w.is {
			ok, err := pass(in.Filters, w.c, i.Status)
			if err != nil {
				return nil, err
			}
			if ok && (in.InstanceID == "" || in.InstanceID == i.InstanceID) {
				kept = append(kept, row{w.c, []Invocation{i}})
			}
		}
	}
	args := []any{in.CommandID, in.InstanceID, in.Filters, in.Details}
	kept, next, err := awsapi.Page(r, args, in.NextToken, size, kept, func(w row) string { return newestFirst(w.c.RequestedAt, w.is[0].id()) })
	if err != nil {
		return nil, err
	}
	out := &listInvocationsOut{Invocations: []invocationOut{}, NextToken: next}
	for _, w := range kept {
		i := w.is[0]
		x := invocationOut{
			CommandID: i.CommandID, InstanceID: i.InstanceID, Comment: w.c.Comment, Document: runShellScript, Version: "$DEFAULT",
			RequestedAt: awsapi.EpochAt(w.c.RequestedAt), Status: i.Status, Details: i.Details, Plugins: []pluginOut{},
		}
		if in.Details {
			x.Plugins = append(x.Plugins, pluginOut{
				Name: plugin, Status: i.Status, Details: i.Details, Code: i.Code,
				Start: awsapi.EpochAt(i.StartedAt), Finish: awsapi.EpochAt(i.EndedAt), Output: i.output(),
			})
		}
		out.Invocations = append(out.Invocations, x)
	}
	return out, nil
}

// output joins both outputs as Systems Manager does.
func (i Invocation) output() string {
	out := i.Stdout
	if i.Stderr != "" {
		out += "\n----------ERROR-------\n" + i.Stderr
	}
	return cut(out, maxListed)
}

package ssm_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/openpcs/openpcs/internal/awsapi"
	"github.com/openpcs/openpcs/internal/awsapi/awsapitest"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/ssm"
	"github.com/openpcs/openpcs/internal/store"
)

const (
	one   = "i-00000000000000001"
	two   = "i-00000000000000002"
	three = "i-00000000000000003"
	off   = "i-00000000000000004"
)

// runner answers scripts by their first word, and tells the test when one
// begins and ends.
type runner struct {
	mu      sync.Mutex
	began   []string
	now     int
	most    int
	release chan struct{} // "wait" scripts end when it is closed
	events  chan string
}

func newRunner() *runner {
	return &runner{release: make(chan struct{}), events: make(chan string, 100)}
}

func (r *runner) Run(ctx context.Context, id, script, dir string, _ time.Duration) (stdout, stderr []byte, code int, err error) {
	r.mu.Lock()
	r.began = append(r.began, id)
	r.now++
	r.most = max(r.most, r.now)
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		r.now--
		r.mu.Unlock()
	}()
	r.events <- "began " + id
	switch word, rest, _ := strings.Cut(strings.TrimSpace(script), " "); word {
	case "echo":
		return []byte(rest + " in " + dir + "\n"), nil, 0, nil
	case "fail":
		return nil, []byte("no\n"), 3, nil
	case "broken":
		return nil, nil, 0, errors.New("no such container")
	case "slow":
		return []byte("half"), nil, 0, fmt.Errorf("run: %w", context.DeadlineExceeded)
	case "panic":
		panic("boom")
	case "long":
		return []byte(strings.Repeat("ü", 30000)), []byte{0xff, 'x'}, 0, nil
	case "wait":
		select {
		case <-r.release:
			return []byte("released\n"), nil, 0, nil
		case <-ctx.Done():
			return nil, nil, 0, ctx.Err()
		}
	}
	return nil, nil, 127, nil
}

type fixture struct {
	*awsapitest.World
	runner *runner
	ssm    *ssm.SSM
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{World: awsapitest.New(t), runner: newRunner()}
	f.Update(t, func(tx *store.Tx) error {
		for id, state := range map[string]fleet.InstanceState{one: fleet.Running, two: fleet.Running, three: fleet.Running, off: fleet.Terminated} {
			i := fleet.Instance{ID: id, Region: awsapitest.Region, State: state, Address: "10.77.16.9", Tags: map[string]string{"role": "login"}}
			if err := fleet.Instances.Put(tx, i); err != nil {
				return err
			}
		}
		return nil
	})
	f.start(t)
	return f
}

func (f *fixture) start(t *testing.T) {
	t.Helper()
	f.ssm = ssm.New(ssm.Options{Store: f.Store, Account: awsapitest.Account, Runner: f.runner, Now: f.Clock.Now, Concurrency: 8})
	if err := f.ssm.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.ssm.Stop)
	f.Serve(t, f.ssm.Service())
}

func (f *fixture) call(t *testing.T, op string, in, out any) error {
	t.Helper()
	return f.Client().JSON(t.Context(), "ssm", "AmazonSSM", op, "1.1", in, out)
}

type m = map[string]any

type command struct {
	Command struct {
		CommandID   string `json:"CommandId"`
		Status      string
		TargetCount int
		ErrorCount  int
	}
}

func (f *fixture) send(t *testing.T, script string, more m) string {
	t.Helper()
	in := m{"DocumentName": "AWS-RunShellScript", "InstanceIds": []string{one}, "Parameters": m{"commands": []string{script}}}
	for k, v := range more {
		if v == nil {
			delete(in, k)
		} else {
			in[k] = v
		}
	}
	var out command
	if err := f.call(t, "SendCommand", in, &out); err != nil {
		t.Fatal(err)
	}
	return out.Command.CommandID
}

type invocation struct {
	Status, StatusDetails, StandardOutputContent, StandardErrorContent, ExecutionEndDateTime string
	ResponseCode                                                                             int
}

// wait polls until the command is over on the instance, as clients do.
func (f *fixture) wait(t *testing.T, id, instance string) invocation {
	t.Helper()
	for {
		var out invocation
		if err := f.call(t, "GetCommandInvocation", m{"CommandId": id, "InstanceId": instance}, &out); err != nil {
			t.Fatal(err)
		}
		if out.Status != "Pending" && out.Status != "InProgress" {
			return out
		}
		if t.Context().Err() != nil {
			t.Fatal("the command did not end")
		}
	}
}

func code(err error) string {
	var e *awsapi.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return fmt.Sprint(err)
}

func TestOutcomes(t *testing.T) {
	f := newFixture(t)
	tests := []struct {
		script string
		want   invocation
	}{
		{"echo hello", invocation{Status: "Success", StatusDetails: "Success", StandardOutputContent: "hello in /tmp\n", ResponseCode: 0}},
		{"fail", invocation{Status: "Failed", StatusDetails: "Failed", StandardErrorContent: "no\n", ResponseCode: 3}},
		{"broken", invocation{Status: "Failed", StatusDetails: "Undeliverable", StandardErrorContent: "\nThe command could not run: no such container\n", ResponseCode: -1}},
		{"slow", invocation{Status: "TimedOut", StatusDetails: "ExecutionTimedOut", StandardOutputContent: "half", StandardErrorContent: "\nThe command did not end within 1m0s.\n", ResponseCode: -1}},
		{"panic", invocation{Status: "Failed", StatusDetails: "Undeliverable", StandardErrorContent: "\nThe command could not run: run command: panic: boom\n", ResponseCode: -1}},
		{"long", invocation{Status: "Success", StatusDetails: "Success", StandardOutputContent: strings.Repeat("ü", 24000), StandardErrorContent: "\uFFFDx"}},
	}
	for _, tt := range tests {
		id := f.send(t, tt.script, m{"Parameters": m{"commands": []string{tt.script}, "workingDirectory": []string{"/tmp/"}, "executionTimeout": []string{"60"}}})
		got := f.wait(t, id, one)
		got.ExecutionEndDateTime = ""
		if got != tt.want {
			t.Errorf("%s: got %+v, want %+v", tt.script, got, tt.want)
		}
	}
}

func TestTargets(t *testing.T) {
	f := newFixture(t)
	id := f.send(t, "echo x", m{"InstanceIds": nil, "Targets": []m{{"Key": "tag:role", "Values": []string{"login"}}}})
	for _, i := range []string{one, two, three} {
		if got := f.wait(t, id, i); got.Status != "Success" {
			t.Errorf("%s: got %+v", i, got)
		}
	}
	var list struct {
		Commands []struct {
			Status         string
			CompletedCount int
		}
	}
	if err := f.call(t, "ListCommands", m{"CommandId": id}, &list); err != nil || list.Commands[0].Status != "Success" || list.Commands[0].CompletedCount != 3 {
		t.Errorf("got %+v, %v", list, err)
	}
	var is struct {
		CommandInvocations []struct {
			InstanceID     string `json:"InstanceId"`
			CommandPlugins []struct{ Output string }
		}
	}
	if err := f.call(t, "ListCommandInvocations", m{"CommandId": id, "Details": true}, &is); err != nil || len(is.CommandInvocations) != 3 || is.CommandInvocations[0].CommandPlugins[0].Output == "" {
		t.Errorf("got %+v, %v", is, err)
	}
}

func TestMaxErrorsStopsTheRest(t *testing.T) {
	f := newFixture(t)
	id := f.send(t, "fail", m{"InstanceIds": []string{one, two, three}, "MaxConcurrency": "1", "MaxErrors": "0"})
	if got := f.wait(t, id, one); got.Status != "Failed" {
		t.Errorf("first: got %+v", got)
	}
	for _, i := range []string{two, three} {
		if got := f.wait(t, id, i); got.Status != "Cancelled" || got.StatusDetails != "Terminated" {
			t.Errorf("%s: got %+v", i, got)
		}
	}
	if f.runner.most != 1 {
		t.Errorf("%d ran at once", f.runner.most)
	}
}

func TestCancel(t *testing.T) {
	f := newFixture(t)
	id := f.send(t, "wait", nil)
	<-f.runner.events
	if err := f.call(t, "CancelCommand", m{"CommandId": id}, nil); err != nil {
		t.Fatal(err)
	}
	if got := f.wait(t, id, one); got.Status != "Cancelled" {
		t.Errorf("got %+v", got)
	}
}

// TestRestart stops the server while a command runs and another waits.
func TestRestart(t *testing.T) {
	f := newFixture(t)
	id := f.send(t, "wait", m{"InstanceIds": []string{one, two}, "MaxConcurrency": "1"})
	<-f.runner.events
	f.ssm.Stop()
	close(f.runner.release)
	f.start(t)
	if got := f.wait(t, id, one); got.Status != "Failed" || got.StatusDetails != "Undeliverable" || !strings.Contains(got.StandardErrorContent, "restarted") {
		t.Errorf("interrupted: got %+v", got)
	}
	if got := f.wait(t, id, two); got.Status != "Success" || got.StandardOutputContent != "released\n" {
		t.Errorf("not begun: got %+v", got)
	}
}

func TestDeliveryTimesOut(t *testing.T) {
	f := newFixture(t)
	f.ssm.Stop()
	id := f.send(t, "echo x", m{"TimeoutSeconds": 30})
	f.Clock.Advance(time.Minute)
	f.start(t)
	if got := f.wait(t, id, one); got.Status != "TimedOut" || got.StatusDetails != "DeliveryTimedOut" {
		t.Errorf("got %+v", got)
	}
}

func TestOldCommandsAreRemoved(t *testing.T) {
	f := newFixture(t)
	id := f.send(t, "echo x", nil)
	f.wait(t, id, one)
	f.ssm.Stop()
	f.Clock.Advance(31 * 24 * time.Hour)
	f.start(t)
	err := f.call(t, "GetCommandInvocation", m{"CommandId": id, "InstanceId": one}, nil)
	if code(err) != "InvocationDoesNotExist" {
		t.Errorf("got %v", err)
	}
}

func TestRefusals(t *testing.T) {
	f := newFixture(t)
	send := func(change m) m {
		in := m{"DocumentName": "AWS-RunShellScript", "InstanceIds": []string{one}, "Parameters": m{"commands": []string{"echo"}}}
		for k, v := range change {
			in[k] = v
		}
		return in
	}
	tests := []struct {
		op   string
		in   m
		code string
	}{
		{"SendCommand", send(m{"DocumentName": "AWS-RunPowerShellScript"}), "InvalidDocument"},
		{"SendCommand", send(m{"DocumentName": ""}), "ValidationException"},
		{"SendCommand", send(m{"InstanceIds": []string{off}}), "InvalidInstanceId"},
		{"SendCommand", send(m{"InstanceIds": []string{}}), "ValidationException"},
		{"SendCommand", send(m{"Targets": []m{{"Key": "x", "Values": []string{"y"}}}}), "ValidationException"},
		{"SendCommand", send(m{"InstanceIds": nil, "Targets": []m{{"Key": "resource-groups:Name", "Values": []string{"y"}}}}), "InvalidTarget"},
		{"SendCommand", send(m{"Parameters": m{}}), "InvalidParameters"},
		{"SendCommand", send(m{"Parameters": m{"commands": []string{"x"}, "color": []string{"red"}}}), "InvalidParameters"},
		{"SendCommand", send(m{"Parameters": m{"commands": []string{"x"}, "executionTimeout": []string{"soon"}}}), "InvalidParameters"},
		{"SendCommand", send(m{"Parameters": m{"commands": "x"}}), "SerializationException"},
		{"SendCommand", send(m{"MaxConcurrency": "0"}), "ValidationException"},
		{"SendCommand", send(m{"MaxErrors": "many"}), "ValidationException"},
		{"SendCommand", send(m{"TimeoutSeconds": 1}), "ValidationException"},
		{"SendCommand", send(m{"OutputS3BucketName": "b"}), "InvalidOutputFolder"},
		{"SendCommand", send(m{"CloudWatchOutputConfig": m{"CloudWatchOutputEnabled": true}}), "ValidationException"},
		{"StartSession", m{"Target": one}, "TargetNotConnected"},
		{"TerminateSession", m{"SessionId": "s"}, "DoesNotExistException"},
		{"CancelCommand", m{"CommandId": "c"}, "InvalidCommandId"},
		{"GetCommandInvocation", m{"CommandId": "c", "InstanceId": one}, "InvocationDoesNotExist"},
		{"ListCommands", m{"Filters": []m{{"key": "Color", "value": "red"}}}, "InvalidFilterKey"}, // though there is nothing to filter
		{"ListCommandInvocations", m{"Filters": []m{{"key": "Color", "value": "red"}}}, "InvalidFilterKey"},
		{"ListCommands", m{"Filters": []m{{"key": "Status", "value": "none"}, {"key": "InvokedAfter", "value": "now"}}}, "InvalidFilterKey"},
		{"ListCommands", m{"MaxResults": 51}, "ValidationException"},
		{"ListCommands", m{"NextToken": "x"}, "InvalidNextToken"},
	}
	for _, tt := range tests {
		if err := f.call(t, tt.op, tt.in, nil); code(err) != tt.code {
			t.Errorf("%s %v: got %v, want %s", tt.op, tt.in, err, tt.code)
		}
	}
	err := f.call(t, "StartSession", m{"Target": one}, nil)
	if !strings.Contains(err.Error(), "openpcs connect "+one) {
		t.Errorf("got %v", err)
	}
}

func TestInstanceInformation(t *testing.T) {
	f := newFixture(t)
	var out struct {
		InstanceInformationList []struct {
			InstanceID string `json:"InstanceId"`
			PingStatus string
		}
		NextToken string
	}
	if err := f.call(t, "DescribeInstanceInformation", m{"MaxResults": 2}, &out); err != nil || len(out.InstanceInformationList) != 2 || out.NextToken == "" {
		t.Fatalf("got %+v, %v", out, err)
	}
	in := m{"Filters": []m{{"Key": "InstanceIds", "Values": []string{two}}, {"Key": "PingStatus", "Values": []string{"Online"}}}}
	if err := f.call(t, "DescribeInstanceInformation", in, &out); err != nil || len(out.InstanceInformationList) != 1 || out.InstanceInformationList[0].InstanceID != two {
		t.Errorf("got %+v, %v", out, err)
	}
}

func TestOtherRegionSeesNothing(t *testing.T) {
	f := newFixture(t)
	id := f.send(t, "echo x", nil)
	f.wait(t, id, one)
	c := f.Client()
	c.Region = "us-east-1"
	err := c.JSON(t.Context(), "ssm", "AmazonSSM", "GetCommandInvocation", "1.1", m{"CommandId": id, "InstanceId": one}, nil)
	if code(err) != "InvocationDoesNotExist" {
		t.Errorf("got %v", err)
	}
}

func TestManyAtOnce(t *testing.T) {
	f := newFixture(t)
	var wg sync.WaitGroup
	for range 30 {
		wg.Go(func() {
			id := f.send(t, "echo x", m{"InstanceIds": []string{one, two}})
			for _, i := range []string{one, two} {
				if got := f.wait(t, id, i); got.Status != "Success" {
					t.Errorf("got %+v", got)
				}
			}
		})
	}
	wg.Wait()
	if f.runner.most > 8 {
		t.Errorf("%d ran at once", f.runner.most)
	}
}

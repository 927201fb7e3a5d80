package logs_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/cloudwatchlogs"

	"github.com/openpcs/openpcs/internal/awsapi"
	"github.com/openpcs/openpcs/internal/awsapi/awsapitest"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/logs"
	"github.com/openpcs/openpcs/internal/store"
)

type object = map[string]any

// fixture is a front door with the service and two clusters.
type fixture struct {
	*awsapitest.World
	t    testing.TB
	logs *logs.Logs

	mu    sync.Mutex
	probe func(logs.Link) error // what the destination says
}

const (
	newCluster = "pcs_newcluster" // Slurm 26.05
	oldCluster = "pcs_oldcluster" // Slurm 24.11
)

func newFixture(t testing.TB) *fixture { return start(t, &fixture{}) }

// newProbed is a fixture with a Probe, which says what setProbe has it say.
func newProbed(t testing.TB) *fixture {
	return start(t, &fixture{probe: func(logs.Link) error { return nil }})
}

func start(t testing.TB, f *fixture) *fixture {
	t.Helper()
	f.World, f.t = awsapitest.New(t), t
	o := logs.Options{Store: f.Store, Account: awsapitest.Account, Dir: t.TempDir()}
	if f.probe != nil {
		o.Probe = func(_ context.Context, l logs.Link) error {
			f.mu.Lock()
			defer f.mu.Unlock()
			return f.probe(l)
		}
	}
	var err error
	if f.logs, err = logs.New(o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.logs.Close() })
	f.Serve(t, f.logs.Service())
	f.Update(t, func(tx *store.Tx) error {
		for id, version := range map[string]string{newCluster: "26.05", oldCluster: "24.11"} {
			c := fleet.Cluster{ID: id, Region: awsapitest.Region, Name: strings.ReplaceAll(id, "_", "-"), ARN: clusterARN(id), Version: version, Status: fleet.Creating}
			if err := fleet.Clusters.Put(tx, c); err != nil {
				return err
			}
		}
		return nil
	})
	return f
}

func clusterARN(id string) string {
	return "arn:aws:pcs:" + awsapitest.Region + ":" + awsapitest.Account + ":cluster/" + id
}

func arn(resource string) string {
	return "arn:aws:logs:" + awsapitest.Region + ":" + awsapitest.Account + ":" + resource
}

func (f *fixture) setProbe(p func(logs.Link) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.probe = p
}

func (f *fixture) tryWith(c *awsapi.Client, op string, in any) (object, *awsapi.Error) {
	f.t.Helper()
	var out object
	err := c.JSON(f.t.Context(), "logs", "Logs_20140328", op, "1.1", in, &out)
	var e *awsapi.Error
	if err != nil && !errors.As(err, &e) {
		f.t.Fatalf("%s: %v", op, err)
	}
	return out, e
}

func (f *fixture) try(op string, in any) (object, *awsapi.Error) {
	f.t.Helper()
	return f.tryWith(f.Client(), op, in)
}

func (f *fixture) must(op string, in any) object {
	f.t.Helper()
	out, e := f.try(op, in)
	if e != nil {
		f.t.Fatalf("%s %v: %v", op, in, e)
	}
	return out
}

// refuses checks that a call is refused with the code, and says so.
func (f *fixture) refuses(op string, in any, code, says string) {
	f.t.Helper()
	before := f.Stored(f.t)
	out, e := f.try(op, in)
	switch {
	case e == nil:
		f.t.Errorf("%s %.200v: it is taken: %v", op, in, out)
	case e.Code != code || !strings.Contains(e.Message, says):
		f.t.Errorf("%s %.200v: got %s: %s\nwant %s that says %q", op, in, e.Code, e.Message, code, says)
	}
	if f.Stored(f.t) != before {
		f.t.Errorf("%s %.200v: something was stored", op, in)
	}
}

// client is the official one.
func (f *fixture) client() *sdk.Client {
	return sdk.New(sdk.Options{
		BaseEndpoint: &f.URL, Region: awsapitest.Region, RetryMaxAttempts: 1, HTTPClient: awsapitest.SDK,
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: f.Root.ID, SecretAccessKey: f.Root.Secret}, nil
		}),
	})
}

// with is a document with changes; nil takes a member away.
func with(doc object, changes object) object {
	out := maps.Clone(doc)
	maps.Copy(out, changes)
	maps.DeleteFunc(out, func(_ string, v any) bool { return v == nil })
	return out
}

// source, destination and delivery make what the three calls of the article
// make, and return the ARN or id.
func (f *fixture) source(name, cluster, logType string) {
	f.t.Helper()
	f.must("PutDeliverySource", object{"name": name, "resourceArn": clusterARN(cluster), "logType": logType})
}

func (f *fixture) destination(name, resource string) string {
	f.t.Helper()
	out := f.must("PutDeliveryDestination", object{"name": name, "deliveryDestinationConfiguration": object{"destinationResourceArn": resource}})
	return out["deliveryDestination"].(object)["arn"].(string)
}

func (f *fixture) delivery(source, destination string) object {
	f.t.Helper()
	return f.must("CreateDelivery", object{"deliverySourceName": source, "deliveryDestinationArn": destination})["delivery"].(object)
}

func (f *fixture) group(name string) {
	f.t.Helper()
	f.must("CreateLogGroup", object{"logGroupName": name})
}

// events puts messages into a stream, a second apart, beginning at a time.
func (f *fixture) events(group, stream string, at time.Time, messages ...string) {
	f.t.Helper()
	_, _ = f.try("CreateLogStream", object{"logGroupName": group, "logStreamName": stream}) // or it is there
	var list []object
	for n, m := range messages {
		list = append(list, object{"timestamp": at.Add(time.Duration(n) * time.Second).UnixMilli(), "message": m})
	}
	f.must("PutLogEvents", object{"logGroupName": group, "logStreamName": stream, "logEvents": list})
}

// messages are those of an answer, in order.
func messages(out object) string {
	var list []string
	for _, e := range out["events"].([]any) {
		list = append(list, e.(object)["message"].(string))
	}
	return strings.Join(list, " ")
}

func numbered(n int) (list []string) {
	for i := range n {
		list = append(list, fmt.Sprint(i))
	}
	return list
}

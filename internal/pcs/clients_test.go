package pcs_test

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/pcs"
	"github.com/aws/smithy-go"

	"github.com/openpcs/openpcs/internal/awsapi"
	"github.com/openpcs/openpcs/internal/awsapi/awsapitest"
)

// caller calls an operation with an official client. The answer is that of
// the client as JSON, with the names of the model; what the client makes of an
// error is code and text.
type caller func(t *testing.T, key awsapi.Key, op string, in object) (out object, code, text string)

// everyOperation calls each operation, all of which succeed, then some that
// do not.
func everyOperation(t *testing.T, f *fixture, call caller) {
	// What the control loop does is done before an answer goes out, so that no
	// client has to wait.
	f.service.Wake = func(string) { f.settle() }
	called := map[string]bool{}
	must := func(op string, in object) object {
		t.Helper()
		called[op] = true
		out, code, text := call(t, f.Root, op, in)
		if code != "" {
			t.Fatalf("%s: %s %s", op, code, text)
		}
		return out
	}
	is := func(doc object, path string, want any) {
		t.Helper()
		if got := at(doc, path); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%s is %v, want %v", path, got, want)
		}
	}
	in := f.clusterIn("cluster")
	in["tags"] = object{"project": "x", "empty": ""}
	in["slurmConfiguration"] = object{"scaleDownIdleTimeInSeconds": 60, "slurmCustomSettings": []any{object{"parameterName": "MinJobAge", "parameterValue": "60"}}}
	made := must("CreateCluster", in)
	is(made, "cluster.status", "CREATING")
	cluster, arn := at(made, "cluster.id").(string), at(made, "cluster.arn").(string)
	ofCluster := object{"clusterIdentifier": "cluster"}
	got := must("GetCluster", ofCluster)
	is(got, "cluster.status", "ACTIVE")
	is(got, "cluster.slurmConfiguration.scaleDownIdleTimeInSeconds", 60)
	is(got, "cluster.slurmConfiguration.accounting.mode", "NONE")
	list, _ := must("ListClusters", object{})["clusters"].([]any)
	if len(list) != 1 || at(list[0], "id") != cluster {
		t.Errorf("clusters are %v", list)
	}
	is(must("UpdateCluster", object{"clusterIdentifier": cluster, "slurmConfiguration": object{"scaleDownIdleTimeInSeconds": 90}}), "cluster.slurmConfiguration.scaleDownIdleTimeInSeconds", 90)

	in = f.groupIn("cluster", "group")
	in["amiId"], in["purchaseOption"], in["spotOptions"] = image, "SPOT", object{"allocationStrategy": "lowest-price"}
	group := at(must("CreateComputeNodeGroup", in), "computeNodeGroup.id").(string)
	ofGroup := object{"clusterIdentifier": "cluster", "computeNodeGroupIdentifier": "group"}
	got = must("GetComputeNodeGroup", ofGroup)
	is(got, "computeNodeGroup.status", "ACTIVE")
	is(got, "computeNodeGroup.spotOptions.allocationStrategy", "lowest-price")
	list, _ = must("ListComputeNodeGroups", ofCluster)["computeNodeGroups"].([]any)
	if len(list) != 1 || at(list[0], "clusterId") != cluster {
		t.Errorf("groups are %v", list)
	}
	is(must("UpdateComputeNodeGroup", object{"clusterIdentifier": "cluster", "computeNodeGroupIdentifier": group, "scalingConfiguration": object{"minInstanceCount": 1, "maxInstanceCount": 3}}), "computeNodeGroup.scalingConfiguration.maxInstanceCount", 3)

	must("CreateQueue", queueIn("cluster", "queue", group))
	ofQueue := object{"clusterIdentifier": "cluster", "queueIdentifier": "queue"}
	is(must("GetQueue", ofQueue), "queue.status", "ACTIVE")
	list, _ = must("ListQueues", ofCluster)["queues"].([]any)
	if len(list) != 1 {
		t.Errorf("queues are %v", list)
	}
	is(must("UpdateQueue", object{"clusterIdentifier": "cluster", "queueIdentifier": "queue", "slurmConfiguration": object{"slurmCustomSettings": setting}}), "queue.status", "UPDATING")

	must("TagResource", object{"resourceArn": arn, "tags": object{"a b": "ü"}})
	must("UntagResource", object{"resourceArn": arn, "tagKeys": []any{"project"}})
	tags, _ := must("ListTagsForResource", object{"resourceArn": arn})["tags"].(object)
	if !reflect.DeepEqual(tags, object{"a b": "ü", "empty": ""}) {
		t.Errorf("tags are %v", tags)
	}

	called["RegisterComputeNodeGroupInstance"] = true
	registered, code, text := call(t, f.node(cluster, group).Key, "RegisterComputeNodeGroupInstance", object{"clusterIdentifier": "cluster", "bootstrapId": "b"})
	if code != "" {
		t.Fatalf("register: %s %s", code, text)
	}
	is(registered, "nodeID", "group-1")

	for _, tt := range []struct {
		op         string
		in         object
		code, says string
	}{
		{"GetCluster", object{"clusterIdentifier": "nobody"}, notFound, "there is no cluster nobody"},
		{"CreateCluster", f.clusterIn("a_b"), validation, `"a_b" is not allowed: use a letter, then letters, digits and hyphens`},
		{"CreateQueue", queueIn("cluster", "queue"), conflict, "the queue name queue is taken"},
		{"DeleteCluster", ofCluster, conflict, "delete them first"},
		{"RegisterComputeNodeGroupInstance", object{"clusterIdentifier": "cluster", "bootstrapId": "b"}, "AccessDeniedException", "instances of compute node groups only"},
	} {
		if _, code, text := call(t, f.Root, tt.op, tt.in); code != tt.code || !strings.Contains(text, tt.says) {
			t.Errorf("%s: got %s %q, want %s that says %q", tt.op, code, text, tt.code, tt.says)
		}
	}

	must("DeleteQueue", ofQueue)
	must("DeleteComputeNodeGroup", ofGroup)
	must("DeleteCluster", ofCluster)
	if list, _ := must("ListClusters", object{})["clusters"].([]any); len(list) != 0 {
		t.Errorf("after the deletion there are %v", list)
	}
	for _, op := range f.service.API().Operations {
		if !called[op.Name] {
			t.Errorf("%s was not called", op.Name)
		}
	}
}

// TestGoSDK uses the SDK's own types: a member that it does not have is lost,
// and none of those here is.
func TestGoSDK(t *testing.T) {
	f := newFixture(t)
	everyOperation(t, f, func(t *testing.T, key awsapi.Key, op string, in object) (object, string, string) {
		client := sdk.New(sdk.Options{
			BaseEndpoint: &f.URL, Region: awsapitest.Region, RetryMaxAttempts: 1, HTTPClient: awsapitest.SDK,
			Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
				return aws.Credentials{AccessKeyID: key.ID, SecretAccessKey: key.Secret, SessionToken: key.Token}, nil
			}),
		})
		method := reflect.ValueOf(client).MethodByName(op)
		input := reflect.New(method.Type().In(1).Elem())
		doc, err := json.Marshal(in)
		if err != nil {
			t.Fatal(err)
		}
		strict := json.NewDecoder(bytes.NewReader(doc)) // the SDK's fields have the names of the model but for the case
		strict.DisallowUnknownFields()
		if err := strict.Decode(input.Interface()); err != nil {
			t.Fatalf("%s: %v", op, err)
		}
		results := method.Call([]reflect.Value{reflect.ValueOf(t.Context()), input})
		if err, _ := results[1].Interface().(error); err != nil {
			var e smithy.APIError
			if !errors.As(err, &e) {
				t.Fatalf("%s: %v", op, err)
			}
			return nil, e.ErrorCode(), e.ErrorMessage()
		}
		doc, err = json.Marshal(results[0].Interface())
		if err != nil {
			t.Fatal(err)
		}
		var out any
		if err := json.Unmarshal(doc, &out); err != nil {
			t.Fatal(err)
		}
		out = lower(out)
		delete(out.(object), "resultMetadata")
		return out.(object), "", ""
	})
}

// lower gives the members of Go's structs the names of the model. Keys of tags
// are lower case in these tests.
func lower(v any) any {
	switch v := v.(type) {
	case []any:
		for i := range v {
			v[i] = lower(v[i])
		}
	case object:
		out := object{}
		for k, m := range v {
			out[strings.ToLower(k[:1])+k[1:]] = lower(m)
		}
		return out
	}
	return v
}

// awsRoot is the root file system of scripts/awscli.sh, if it was built.
func awsRoot(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(cmp.Or(os.Getenv("OPENPCS_CACHE"), "/var/cache/openpcs"), "awscli")
	_, err := os.Stat(filepath.Join(dir, "root/usr/bin/aws"))
	switch {
	case os.Getuid() != 0:
		t.Skip("only root may enter the root file system of the AWS CLI")
	case err != nil && testing.Short():
		t.Skip("there is no AWS CLI; -short is set")
	case err != nil:
		t.Fatal("there is no AWS CLI: run scripts/awscli.sh path")
	}
	return dir
}

func environment(f *fixture, key awsapi.Key) []string {
	return []string{
		"AWS_ENDPOINT_URL=" + f.URL, "AWS_ACCESS_KEY_ID=" + key.ID, "AWS_SECRET_ACCESS_KEY=" + key.Secret, "AWS_SESSION_TOKEN=" + key.Token,
		"AWS_REGION=" + awsapitest.Region, "AWS_MAX_ATTEMPTS=1", "AWS_PAGER=", "AWS_EC2_METADATA_DISABLED=true", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/nonexistent", "LANG=C.UTF-8",
	}
}

var (
	words    = regexp.MustCompile(`[A-Z][a-z]+`)
	cliError = regexp.MustCompile(`An error occurred \((\w+)\) when calling the \w+ operation(?: \(reached max retries: \d\))?: (.*)`)
)

// driver is a Python program below the root of scripts/awscli.sh that
// answers lines on its standard input.
type driver struct {
	t   *testing.T
	in  io.Writer
	out *bufio.Reader
}

func startDriver(t *testing.T, f *fixture, program string) *driver {
	t.Helper()
	cmd := exec.Command("chroot", filepath.Join(awsRoot(t), "root"), "/usr/bin/python3", "-c", program)
	cmd.Env = environment(f, f.Root)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("chroot: %v", err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("the driver ended with %v", err)
		}
	})
	return &driver{t, in, bufio.NewReader(out)}
}

func (d *driver) ask(question, answer any) {
	d.t.Helper()
	if err := json.NewEncoder(d.in).Encode(question); err != nil {
		d.t.Fatal(err)
	}
	line, err := d.out.ReadBytes('\n')
	if err != nil && err != io.EOF {
		d.t.Fatal(err)
	}
	if err := json.Unmarshal(line, answer); err != nil {
		d.t.Fatalf("%v: %s", err, line)
	}
}

// aws is the command, but for the start of the interpreter, which would be
// most of the time.
const awsProgram = `
import contextlib, io, json, os, sys
from awscli.clidriver import create_clidriver
for line in sys.stdin:
    call = json.loads(line)
    os.environ.update(call["env"])
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = create_clidriver().main(call["args"])
    print(json.dumps({"out": out.getvalue(), "err": err.getvalue(), "code": code}), flush=True)
`

// TestAWSCLI runs the unmodified CLI.
func TestAWSCLI(t *testing.T) {
	f := newFixture(t)
	cli := startDriver(t, f, awsProgram)
	args := func(op string, in object, more ...string) []string {
		doc, err := json.Marshal(in)
		if err != nil {
			t.Fatal(err)
		}
		kebab := strings.ToLower(strings.Join(words.FindAllString(op, -1), "-"))
		return append([]string{"pcs", kebab, "--cli-input-json", string(doc)}, more...)
	}
	everyOperation(t, f, func(t *testing.T, key awsapi.Key, op string, in object) (object, string, string) {
		env := map[string]string{"AWS_ACCESS_KEY_ID": key.ID, "AWS_SECRET_ACCESS_KEY": key.Secret, "AWS_SESSION_TOKEN": key.Token}
		var ran struct {
			Out, Err string
			Code     int
		}
		cli.ask(object{"args": args(op, in), "env": env}, &ran)
		if ran.Code != 0 {
			found := cliError.FindStringSubmatch(ran.Err)
			if found == nil || ran.Code != 254 { // which the CLI has for errors of the service
				t.Fatalf("%s: exit code %d: %s", op, ran.Code, ran.Err)
			}
			return nil, found[1], ran.Err
		}
		doc := object{}
		if strings.TrimSpace(ran.Out) != "" { // nothing is printed of an empty answer
			if err := json.Unmarshal([]byte(ran.Out), &doc); err != nil {
				t.Fatalf("%s: %v: %s", op, err, ran.Out)
			}
		}
		return doc, "", ""
	})
	// The details of an error, as the command shows them.
	refused := func(args []string) []byte {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), filepath.Join(awsRoot(t), "aws"), args...)
		cmd.Env = environment(f, f.Root)
		var errOut bytes.Buffer
		cmd.Stderr = &errOut
		var exit *exec.ExitError
		if err := cmd.Run(); !errors.As(err, &exit) || exit.ExitCode() != 254 {
			t.Fatalf("%v: %s", err, errOut.Bytes())
		}
		return errOut.Bytes()
	}
	errOut := refused(args("CreateCluster", object{
		"clusterName": "a_b", "scheduler": object{"type": "SGE", "version": "26.05"}, "size": "SMALL", "networking": object{"subnetIds": []any{"subnet-1"}},
	}, "--cli-error-format", "json"))
	var told struct {
		Code, Reason string
		FieldList    []struct{ Name, Message string }
	}
	if err := json.Unmarshal(errOut, &told); err != nil {
		t.Fatalf("%v: %s", err, errOut)
	}
	var names []string
	for _, field := range told.FieldList {
		names = append(names, field.Name)
	}
	if want := []string{"clusterName", "scheduler.type", "networking.subnetIds[0]"}; told.Code != validation || told.Reason != "fieldValidationFailed" || !slices.Equal(names, want) {
		t.Errorf("got %+v, want the fields %v", told, want)
	}
	errOut = refused(args("GetQueue", object{"clusterIdentifier": "nobody", "queueIdentifier": "queue"}))
	if !strings.Contains(string(errOut), "resourceId: nobody") || !strings.Contains(string(errOut), "resourceType: cluster") {
		t.Errorf("the resource of an error: %s", errOut)
	}
}

const botocoreProgram = `
import json, sys
import awscli.botocore.session
for line in sys.stdin:
    call = json.loads(line)
    client = awscli.botocore.session.get_session().create_client(
        "pcs", region_name=call["region"], endpoint_url=call["endpoint"], aws_access_key_id=call["id"],
        aws_secret_access_key=call["secret"], aws_session_token=call["token"] or None)
    try:
        out = client._make_api_call(call["op"], call["in"])
        out.pop("ResponseMetadata")
        answer = {"out": out}
    except client.exceptions.ClientError as e:
        answer = {"code": e.response["Error"]["Code"], "text": e.response["Error"]["Message"]}
    print(json.dumps(answer, default=str), flush=True)
`

// TestBotocore uses the library on which the CLI and Python programs stand.
func TestBotocore(t *testing.T) {
	f := newFixture(t)
	python := startDriver(t, f, botocoreProgram)
	everyOperation(t, f, func(t *testing.T, key awsapi.Key, op string, params object) (object, string, string) {
		var answer struct {
			Out        object
			Code, Text string
		}
		python.ask(object{"op": op, "in": params, "endpoint": f.URL, "region": awsapitest.Region, "id": key.ID, "secret": key.Secret, "token": key.Token}, &answer)
		return answer.Out, answer.Code, answer.Text
	})
}

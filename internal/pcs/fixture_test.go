package pcs_test

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/pcs"

	"github.com/openpcs/openpcs/internal/awsapi"
	"github.com/openpcs/openpcs/internal/awsapi/awsapitest"
	"github.com/openpcs/openpcs/internal/ec2"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/fleet/fleettest"
	"github.com/openpcs/openpcs/internal/iam"
	"github.com/openpcs/openpcs/internal/pcs"
	"github.com/openpcs/openpcs/internal/store"
)

const (
	image      = "ami-00000000000000001" // Slurm 26.05, with the agent
	oldImage   = "ami-00000000000000002" // Slurm 24.11
	plainImage = "ami-00000000000000003" // no Slurm, but cloud-init
	armImage   = "ami-00000000000000004" // Slurm 26.05 for arm64
)

// fixture is a front door with pcs and the neighbours that it reads.
type fixture struct {
	*awsapitest.World
	t       testing.TB
	service *pcs.Service
	subnet  string
	subnets []fleet.Subnet
	sg      string
	abroad  fleet.Subnet // in another region
	farSG   string
	tmpl    string
	profile string

	mu    sync.Mutex
	woken []string
	seen  map[string]bool // members of the model that answers had

	states *fleettest.Recorder
}

type object = map[string]any

func newFixture(t testing.TB) *fixture {
	t.Helper()
	f := &fixture{World: awsapitest.New(t), t: t, seen: map[string]bool{}}
	f.record()
	pool := netip.MustParsePrefix("10.77.0.0/16")
	people := iam.New(iam.Options{Store: f.Store, Account: awsapitest.Account, Now: f.Clock.Now})
	if err := people.EnsureDefaults(context.Background()); err != nil {
		t.Fatal(err)
	}
	f.service = &pcs.Service{
		Store: f.Store, Account: awsapitest.Account, Pool: pool, FreeAddress: fleet.PickAddress,
		Wake: func(id string) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.woken = append(f.woken, id)
		},
	}
	network := ec2.New(ec2.Options{Store: f.Store, Account: awsapitest.Account, Pool: pool})
	f.Serve(t, f.service.API(), network.Service(), people.Service())
	for _, region := range []string{awsapitest.Region, "us-east-1"} {
		if err := ec2.EnsureRegion(context.Background(), f.Store, region, pool); err != nil {
			t.Fatal(err)
		}
	}
	f.Update(t, func(tx *store.Tx) error {
		var err error
		if f.subnets, err = fleet.Subnets.InRegion(tx, awsapitest.Region); err != nil {
			return err
		}
		far, err := fleet.Subnets.InRegion(tx, "us-east-1")
		if err != nil {
			return err
		}
		f.subnet, f.abroad = f.subnets[0].ID, far[0]
		groups, err := ec2.SecurityGroups.All(tx)
		if err != nil {
			return err
		}
		for _, g := range groups {
			if g.Region == awsapitest.Region {
				f.sg = g.ID
			} else {
				f.farSG = g.ID
			}
		}
		for _, i := range []fleet.Image{
			{ID: image, Name: "new", Architecture: fleet.X86, Slurm: []string{"26.05"}, Agent: true},
			{ID: oldImage, Name: "old", Architecture: fleet.X86, Slurm: []string{"24.11"}, Agent: true},
			{ID: plainImage, Name: "plain", Architecture: fleet.X86, CloudInit: true},
			{ID: armImage, Name: "arm", Architecture: fleet.ARM, Slurm: []string{"26.05"}, Agent: true},
		} {
			i.Owner, i.Ref = "amazon", "ref-"+i.Name
			if err := fleet.Images.Put(tx, i); err != nil {
				return err
			}
		}
		return nil
	})
	f.tmpl = f.template("default", url.Values{"LaunchTemplateData.ImageId": {image}, "LaunchTemplateData.SecurityGroupId.1": {f.sg}})
	f.profile = "arn:aws:iam::" + awsapitest.Account + ":instance-profile/AWSPCS-default"
	return f
}

var templateID = regexp.MustCompile(`lt-[0-9a-f]{17}`)

// template makes a launch template.
func (f *fixture) template(name string, data url.Values) string {
	f.t.Helper()
	form := url.Values{"LaunchTemplateName": {name}}
	maps.Copy(form, data)
	doc, err := f.Client().Query(context.Background(), "ec2", "2016-11-15", "CreateLaunchTemplate", form)
	if err != nil {
		f.t.Fatal(err)
	}
	return templateID.FindString(string(doc))
}

// profileOf makes an instance profile with a role of that policy.
func (f *fixture) profileOf(role, path, policy string) string {
	f.t.Helper()
	call := func(action string, pairs ...string) {
		form := url.Values{}
		for i := 0; i < len(pairs); i += 2 {
			form.Set(pairs[i], pairs[i+1])
		}
		if _, err := f.Client().Query(context.Background(), "iam", "2010-05-08", action, form); err != nil {
			f.t.Fatal(err)
		}
	}
	call("CreateRole", "RoleName", role, "Path", path, "AssumeRolePolicyDocument",
		`{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Principal":{"Service":"ec2.amazonaws.com"},"Action":"sts:AssumeRole"}]}`)
	if policy != "" {
		call("PutRolePolicy", "RoleName", role, "PolicyName", "p", "PolicyDocument", policy)
	}
	call("CreateInstanceProfile", "InstanceProfileName", role)
	call("AddRoleToInstanceProfile", "InstanceProfileName", role, "RoleName", role)
	return "arn:aws:iam::" + awsapitest.Account + ":instance-profile/" + role
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

// try calls an operation with a document.
func (f *fixture) try(op string, in any) (object, *awsapi.Error) {
	f.t.Helper()
	return f.tryWith(f.Client(), op, in)
}

func (f *fixture) tryWith(c *awsapi.Client, op string, in any) (object, *awsapi.Error) {
	f.t.Helper()
	var out object
	err := c.JSON(context.Background(), "pcs", pcs.Target, op, "1.0", in, &out)
	if err == nil {
		f.conforms(op, published.outputs[op], out)
		return out, nil
	}
	var e *awsapi.Error
	if !errors.As(err, &e) {
		f.t.Fatalf("%s: %v", op, err)
	}
	if s := published.shapes[e.Code]; s != nil {
		body := maps.Clone(e.Fields)
		if body == nil {
			body = object{}
		}
		body["message"] = e.Message
		f.conforms(op, s, body)
	}
	if published.errors[op] != nil && !slices.Contains(published.errors[op], e.Code) && !slices.Contains(unmodeled[e.Code], op) {
		f.t.Errorf("%s answers %v, which the model does not have of it", op, e)
	}
	return nil, e
}

// conforms holds an answer against the model.
func (f *fixture) conforms(op string, s *shape, doc object) {
	f.t.Helper()
	if s == nil { // an operation that there is not
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, wrong := range s.mismatches(op, doc, func(member string) { f.seen[member] = true }) {
		f.t.Errorf("the answer is none of the model: %s", wrong)
	}
}

// unmodeled are the errors that an operation answers though the model does
// not list them: what every service of the protocol does with requests that
// are wrong by themselves, and what the documentation has beside the model.
var unmodeled = map[string][]string{
	"ValidationException":   {"TagResource", "UntagResource", "ListTagsForResource", "RegisterComputeNodeGroupInstance"},
	"AccessDeniedException": {"TagResource", "UntagResource", "ListTagsForResource"},
	"InvalidToken":          {"ListClusters", "ListComputeNodeGroups", "ListQueues"},
}

// must is try for calls that succeed.
func (f *fixture) must(op string, in any) object {
	f.t.Helper()
	out, err := f.try(op, in)
	if err != nil {
		f.t.Fatalf("%s: %v", op, err)
	}
	return out
}

// settle does what package control would: what is in transition becomes
// ACTIVE, what is being deleted goes.
func (f *fixture) settle() {
	f.t.Helper()
	f.Update(f.t, func(tx *store.Tx) error {
		clusters, err := fleet.Clusters.All(tx)
		if err != nil {
			return err
		}
		groups, err := fleet.Groups.All(tx)
		if err != nil {
			return err
		}
		queues, err := fleet.Queues.All(tx)
		if err != nil {
			return err
		}
		for _, c := range clusters {
			switch c.Status {
			case fleet.Deleting:
				err = fleet.Clusters.Delete(tx, c.ID)
			case fleet.Creating, fleet.Updating:
				c.Status, c.ConfigHash = fleet.Active, "applied"
				c.Keep()
				err = fleet.Clusters.Put(tx, c)
			}
			if err != nil {
				return err
			}
		}
		for _, g := range groups {
			switch g.Status {
			case fleet.Deleting:
				err = fleet.Groups.Delete(tx, g.ID)
			case fleet.Creating, fleet.Updating:
				g.Status = fleet.Active
				err = fleet.Groups.Put(tx, g)
			}
			if err != nil {
				return err
			}
		}
		for _, q := range queues {
			switch q.Status {
			case fleet.Deleting:
				err = fleet.Queues.Delete(tx, q.ID)
			case fleet.Creating, fleet.Updating:
				q.Status = fleet.Active
				err = fleet.Queues.Put(tx, q)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// setStatus puts a cluster's, group's or queue's status.
func (f *fixture) setStatus(id string, s fleet.Status) {
	f.t.Helper()
	f.Update(f.t, func(tx *store.Tx) error {
		if c, err := fleet.Clusters.Get(tx, id); err == nil {
			c.Status = s
			return fleet.Clusters.Put(tx, c)
		}
		if g, err := fleet.Groups.Get(tx, id); err == nil {
			g.Status = s
			return fleet.Groups.Put(tx, g)
		}
		q, err := fleet.Queues.Get(tx, id)
		if err != nil {
			return err
		}
		q.Status = s
		return fleet.Queues.Put(tx, q)
	})
}

// The smallest requests that are right.
func (f *fixture) clusterIn(name string) object {
	return object{
		"clusterName": name, "scheduler": object{"type": "SLURM", "version": "26.05"}, "size": "SMALL",
		"networking": object{"subnetIds": []any{f.subnet}, "securityGroupIds": []any{f.sg}},
	}
}

func (f *fixture) groupIn(cluster, name string) object {
	return object{
		"clusterIdentifier": cluster, "computeNodeGroupName": name, "subnetIds": []any{f.subnet},
		"customLaunchTemplate": object{"id": f.tmpl, "version": "1"}, "iamInstanceProfileArn": f.profile,
		"scalingConfiguration": object{"minInstanceCount": 0, "maxInstanceCount": 2},
		"instanceConfigs":      []any{object{"instanceType": "t3.micro"}},
	}
}

func queueIn(cluster, name string, groups ...string) object {
	list := []any{}
	for _, g := range groups {
		list = append(list, object{"computeNodeGroupId": g})
	}
	return object{"clusterIdentifier": cluster, "queueName": name, "computeNodeGroupConfigurations": list}
}

// demo makes an ACTIVE cluster c with a group g and a queue q over it, and
// returns their ids.
func (f *fixture) demo() (cluster, group, queue string) {
	f.t.Helper()
	cluster = at(f.must("CreateCluster", f.clusterIn("cluster")), "cluster.id").(string)
	f.settle()
	group = at(f.must("CreateComputeNodeGroup", f.groupIn(cluster, "group")), "computeNodeGroup.id").(string)
	f.settle()
	queue = at(f.must("CreateQueue", queueIn(cluster, "queue", group)), "queue.id").(string)
	f.settle()
	return cluster, group, queue
}

// clone copies a document deeply.
func clone(in object) object {
	doc, err := json.Marshal(in)
	if err != nil {
		panic(err)
	}
	var out object
	if err := json.Unmarshal(doc, &out); err != nil {
		panic(err)
	}
	return out
}

// at returns the value at a path of member names, nil if there is none.
func at(doc any, path string) any {
	for name := range strings.SplitSeq(path, ".") {
		m, ok := doc.(map[string]any)
		if !ok {
			return nil
		}
		doc = m[name]
	}
	return doc
}

// absent removes a member in put.
type absent struct{}

// put sets the member at a path; containers are made.
func put(doc object, path string, v any) {
	head, rest, nested := strings.Cut(path, ".")
	if !nested {
		if v == (absent{}) {
			delete(doc, head)
			return
		}
		doc[head] = v
		return
	}
	inner, ok := doc[head].(map[string]any)
	if !ok {
		inner = object{}
		doc[head] = inner
	}
	put(inner, rest, v)
}

// fields are the names in an error's fieldList.
func fields(e *awsapi.Error) []string {
	var out []string
	list, _ := e.Fields["fieldList"].([]any)
	for _, f := range list {
		name, _ := f.(map[string]any)["name"].(string)
		out = append(out, name)
	}
	return out
}

// names counts what is stored.
func (f *fixture) count() (clusters, groups, queues int) {
	f.View(f.t, func(tx *store.Tx) error {
		c, err := fleet.Clusters.All(tx)
		if err != nil {
			return err
		}
		g, err := fleet.Groups.All(tx)
		if err != nil {
			return err
		}
		q, err := fleet.Queues.All(tx)
		clusters, groups, queues = len(c), len(g), len(q)
		return err
	})
	return clusters, groups, queues
}

func (f *fixture) wakes(id string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for _, w := range f.woken {
		if w == id {
			n++
		}
	}
	return n
}

func sorted(in []string) []string {
	out := slices.Clone(in)
	slices.Sort(out)
	return out
}

// tick moves the clock so that what comes next is later.
func (f *fixture) tick() { f.Clock.Advance(time.Second) }

// keyLife is long enough for any test.
const keyLife = time.Hour

func jsonMarshal(v any) (string, error) {
	doc, err := json.Marshal(v)
	return string(doc), err
}

package pcs_test

import (
	"errors"
	"fmt"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/pcs"
	"github.com/aws/aws-sdk-go-v2/service/pcs/types"

	"github.com/openpcs/openpcs/internal/awsapi"
	"github.com/openpcs/openpcs/internal/awsapi/awsapitest"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/pcs"
	"github.com/openpcs/openpcs/internal/store"
)

// The whole life of a cluster with the official client.
func TestLifeOfACluster(t *testing.T) {
	f := newFixture(t)
	ctx, c := t.Context(), f.client()
	created, err := c.CreateCluster(ctx, &sdk.CreateClusterInput{
		ClusterName: aws.String("demo"), Size: types.SizeSmall,
		Scheduler:          &types.SchedulerRequest{Type: types.SchedulerTypeSlurm, Version: aws.String("26.05")},
		Networking:         &types.NetworkingRequest{SubnetIds: []string{f.subnet}, SecurityGroupIds: []string{f.sg}},
		SlurmConfiguration: &types.ClusterSlurmConfigurationRequest{ScaleDownIdleTimeInSeconds: aws.Int32(120)},
		Tags:               map[string]string{"team": "x"},
	})
	if err != nil {
		t.Fatal(err)
	}
	cl := created.Cluster
	id := *cl.Id
	if cl.Status != types.ClusterStatusCreating || *cl.Name != "demo" || *cl.Arn != f.arn("cluster/"+id) || len(cl.Endpoints) != 0 ||
		cl.Size != types.SizeSmall || *cl.SlurmConfiguration.ScaleDownIdleTimeInSeconds != 120 ||
		cl.Networking.NetworkType != types.NetworkTypeIpv4 || !slices.Equal(cl.Networking.SubnetIds, []string{f.subnet}) ||
		!cl.CreatedAt.Equal(*cl.ModifiedAt) || time.Since(*cl.CreatedAt) > time.Hour {
		t.Errorf("created = %+v", cl)
	}
	key := cl.SlurmConfiguration.AuthKey
	if key == nil || !strings.Contains(*key.SecretArn, "secret:pcs!slurm-secret-"+id+"-") || *key.SecretVersion == "" {
		t.Errorf("the cluster's key is %+v", key)
	}
	if f.wakes(id) != 1 {
		t.Errorf("the cluster was woken %d times", f.wakes(id))
	}
	f.settle()
	for _, ref := range []string{id, "demo"} {
		got, err := c.GetCluster(ctx, &sdk.GetClusterInput{ClusterIdentifier: &ref})
		if err != nil {
			t.Fatal(err)
		}
		e := got.Cluster.Endpoints
		if got.Cluster.Status != types.ClusterStatusActive || len(e) != 1 || e[0].Type != types.EndpointTypeSlurmctld || *e[0].Port != "6817" || *e[0].PrivateIpAddress == "" {
			t.Errorf("get %s = %+v", ref, got.Cluster)
		}
	}

	group, err := c.CreateComputeNodeGroup(ctx, &sdk.CreateComputeNodeGroupInput{
		ClusterIdentifier: &id, ComputeNodeGroupName: aws.String("spot"), SubnetIds: []string{f.subnet, f.subnets[1].ID},
		PurchaseOption: types.PurchaseOptionSpot, CustomLaunchTemplate: &types.CustomLaunchTemplate{Id: &f.tmpl, Version: aws.String("1")},
		IamInstanceProfileArn: &f.profile, AmiId: aws.String(image),
		ScalingConfiguration: &types.ScalingConfigurationRequest{MinInstanceCount: 1, MaxInstanceCount: 4},
		InstanceConfigs:      []types.InstanceConfig{{InstanceType: aws.String("c5.large")}, {InstanceType: aws.String("m5.large")}},
	})
	if err != nil {
		t.Fatal(err)
	}
	g := group.ComputeNodeGroup
	if g.Status != types.ComputeNodeGroupStatusCreating || *g.ClusterId != id || *g.Arn != f.arn("cluster/"+id+"/computenodegroup/"+*g.Id) || *g.AmiId != image ||
		g.PurchaseOption != types.PurchaseOptionSpot || g.SpotOptions.AllocationStrategy != types.SpotAllocationStrategyPriceCapacityOptimized ||
		g.ScalingConfiguration.MinInstanceCount != 1 || g.ScalingConfiguration.MaxInstanceCount != 4 || len(g.InstanceConfigs) != 2 ||
		*g.InstanceConfigs[1].InstanceType != "m5.large" || *g.CustomLaunchTemplate.Version != "1" || len(g.SubnetIds) != 2 {
		t.Errorf("group = %+v", g)
	}
	f.settle()
	queue, err := c.CreateQueue(ctx, &sdk.CreateQueueInput{
		ClusterIdentifier: aws.String("demo"), QueueName: aws.String("work"),
		ComputeNodeGroupConfigurations: []types.ComputeNodeGroupConfiguration{{ComputeNodeGroupId: g.Id}},
	})
	if err != nil {
		t.Fatal(err)
	}
	q := queue.Queue
	if q.Status != types.QueueStatusCreating || *q.Arn != f.arn("cluster/"+id+"/queue/"+*q.Id) || len(q.ComputeNodeGroupConfigurations) != 1 || *q.ComputeNodeGroupConfigurations[0].ComputeNodeGroupId != *g.Id {
		t.Errorf("queue = %+v", q)
	}
	f.settle()

	// Deletion only in order, as documented.
	var busy *types.ConflictException
	if _, err := c.DeleteCluster(ctx, &sdk.DeleteClusterInput{ClusterIdentifier: &id}); !errors.As(err, &busy) || *busy.ResourceId != id || *busy.ResourceType != "cluster" {
		t.Errorf("delete a cluster with a queue: %v", err)
	}
	if _, err := c.DeleteComputeNodeGroup(ctx, &sdk.DeleteComputeNodeGroupInput{ClusterIdentifier: &id, ComputeNodeGroupIdentifier: g.Id}); !errors.As(err, &busy) || *busy.ResourceId != *g.Id {
		t.Errorf("delete a group that a queue uses: %v", err)
	}
	if _, err := c.DeleteQueue(ctx, &sdk.DeleteQueueInput{ClusterIdentifier: &id, QueueIdentifier: aws.String("work")}); err != nil {
		t.Fatal(err)
	}
	gone, err := c.GetQueue(ctx, &sdk.GetQueueInput{ClusterIdentifier: &id, QueueIdentifier: q.Id})
	if err != nil || gone.Queue.Status != types.QueueStatusDeleting {
		t.Errorf("a queue that was just deleted is %+v, %v", gone, err)
	}
	if _, err := c.DeleteComputeNodeGroup(ctx, &sdk.DeleteComputeNodeGroupInput{ClusterIdentifier: &id, ComputeNodeGroupIdentifier: g.Id}); !errors.As(err, &busy) {
		t.Errorf("delete a group while its queue is DELETING: %v", err)
	}
	f.settle()
	if _, err := c.DeleteComputeNodeGroup(ctx, &sdk.DeleteComputeNodeGroupInput{ClusterIdentifier: &id, ComputeNodeGroupIdentifier: aws.String("spot")}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.DeleteCluster(ctx, &sdk.DeleteClusterInput{ClusterIdentifier: &id}); !errors.As(err, &busy) {
		t.Errorf("delete a cluster while its group is DELETING: %v", err)
	}
	f.settle()
	for range 2 { // once more is no error
		if _, err := c.DeleteCluster(ctx, &sdk.DeleteClusterInput{ClusterIdentifier: aws.String("demo")}); err != nil {
			t.Fatal(err)
		}
	}
	f.settle()
	var missing *types.ResourceNotFoundException
	if _, err := c.GetCluster(ctx, &sdk.GetClusterInput{ClusterIdentifier: &id}); !errors.As(err, &missing) || *missing.ResourceId != id {
		t.Errorf("get a cluster that is gone: %v", err)
	}
}

func TestUpdates(t *testing.T) {
	f := newFixture(t)
	cluster, group, queue := f.demo()
	ofGroup := func(more object) object {
		in := object{"clusterIdentifier": cluster, "computeNodeGroupIdentifier": group}
		for k, v := range more {
			in[k] = v
		}
		return in
	}
	revision := func() (n int) {
		f.View(t, func(tx *store.Tx) error {
			g, err := fleet.Groups.Get(tx, group)
			n = g.Revision
			return err
		})
		return n
	}
	f.tick()
	before := f.must("GetCluster", object{"clusterIdentifier": cluster})
	out := f.must("UpdateCluster", object{"clusterIdentifier": cluster, "slurmConfiguration": object{"scaleDownIdleTimeInSeconds": 42}})
	if at(out, "cluster.status") != "UPDATING" || at(out, "cluster.slurmConfiguration.scaleDownIdleTimeInSeconds") != 42.0 ||
		at(out, "cluster.modifiedAt") == at(before, "cluster.modifiedAt") || at(out, "cluster.createdAt") != at(before, "cluster.createdAt") {
		t.Errorf("updated cluster = %v", out)
	}
	f.settle()
	// What an update leaves out stays.
	out = f.must("UpdateCluster", object{"clusterIdentifier": cluster})
	if at(out, "cluster.slurmConfiguration.scaleDownIdleTimeInSeconds") != 42.0 {
		t.Errorf("an empty update changed the idle time: %v", out)
	}
	f.settle()

	out = f.must("UpdateComputeNodeGroup", ofGroup(object{"scalingConfiguration": object{"minInstanceCount": 1, "maxInstanceCount": 5}}))
	if at(out, "computeNodeGroup.status") != "UPDATING" || at(out, "computeNodeGroup.scalingConfiguration.maxInstanceCount") != 5.0 || at(out, "computeNodeGroup.customLaunchTemplate.id") != f.tmpl {
		t.Errorf("updated group = %v", out)
	}
	f.settle()
	if n := revision(); n != 0 {
		t.Errorf("a higher maximum replaces instances: revision %d", n)
	}
	f.must("UpdateComputeNodeGroup", ofGroup(object{"subnetIds": []any{f.subnet, f.subnets[2].ID}}))
	f.settle()
	if n := revision(); n != 0 {
		t.Errorf("one more subnet replaces instances: revision %d", n)
	}
	second := f.template("second", map[string][]string{
		"LaunchTemplateData.ImageId": {image}, "LaunchTemplateData.SecurityGroupId.1": {f.sg}, "LaunchTemplateData.KeyName": {"people"},
	})
	f.must("UpdateComputeNodeGroup", ofGroup(object{"customLaunchTemplate": object{"id": second, "version": "1"}}))
	f.settle()
	if n := revision(); n != 1 {
		t.Errorf("another template gives revision %d, want 1", n)
	}
	f.View(t, func(tx *store.Tx) error {
		g, err := fleet.Groups.Get(tx, group)
		if g.Launch.KeyName != "people" || g.Max != 5 || len(g.SubnetIDs) != 2 || len(g.InstanceTypes) != 1 {
			t.Errorf("group = %+v", g)
		}
		return err
	})
	// Scripts are new instances' own. They are shown as they were given, what
	// was left out is left out, and an update without them keeps them.
	scripts := object{"stages": object{"nodeBootstrapped": []any{object{"name": "set up", "scriptSource": object{"scriptLocation": "s3://bucket/a"}}}}}
	rev := revision()
	f.must("UpdateComputeNodeGroup", ofGroup(object{"nodeLifecycleActions": scripts}))
	f.settle()
	f.must("UpdateComputeNodeGroup", ofGroup(nil))
	f.settle()
	if got := at(f.must("GetComputeNodeGroup", ofGroup(nil)), "computeNodeGroup.nodeLifecycleActions"); !reflect.DeepEqual(clone(scripts), got) || revision() != rev+1 {
		t.Errorf("lifecycle actions are %v in revision %d after %d, want %v", got, revision(), rev, scripts)
	}
	// {"stages": {}} clears lifecycle actions, -1 the idle time: both are
	// what a group without them has.
	f.must("UpdateComputeNodeGroup", ofGroup(object{"nodeLifecycleActions": object{"stages": object{}}, "slurmConfiguration": object{"scaleDownIdleTimeInSeconds": -1}}))
	f.settle()
	if got := at(f.must("GetComputeNodeGroup", ofGroup(nil)), "computeNodeGroup.nodeLifecycleActions"); got != nil || revision() != rev+2 {
		t.Errorf("after they were cleared, lifecycle actions are %v in revision %d after %d", got, revision(), rev)
	}

	more := at(f.must("CreateComputeNodeGroup", f.groupIn(cluster, "more")), "computeNodeGroup.id").(string)
	f.settle()
	out = f.must("UpdateQueue", object{"clusterIdentifier": cluster, "queueIdentifier": queue, "computeNodeGroupConfigurations": []any{object{"computeNodeGroupId": more}}})
	list, _ := at(out, "queue.computeNodeGroupConfigurations").([]any)
	if at(out, "queue.status") != "UPDATING" || len(list) != 1 || at(list[0], "computeNodeGroupId") != more {
		t.Errorf("a given list replaces the old one: %v", out)
	}
	f.settle()
	out = f.must("UpdateQueue", object{"clusterIdentifier": cluster, "queueIdentifier": queue})
	if list, _ := at(out, "queue.computeNodeGroupConfigurations").([]any); len(list) != 1 {
		t.Errorf("an update without a list changed it: %v", out)
	}
	f.settle()
	// A group taken out of its queue can be deleted.
	f.must("DeleteComputeNodeGroup", ofGroup(nil))
	// An empty list empties the queue.
	out = f.must("UpdateQueue", object{"clusterIdentifier": cluster, "queueIdentifier": queue, "computeNodeGroupConfigurations": []any{}})
	if list, ok := at(out, "queue.computeNodeGroupConfigurations").([]any); !ok || len(list) != 0 {
		t.Errorf("an empty list: %v", out)
	}
}

// C2: a queue without groups is one, in whatever order things are made.
func TestC2_QueueWithoutGroups(t *testing.T) {
	f := newFixture(t)
	cluster, _, _ := f.demo()
	out := f.must("CreateQueue", object{"clusterIdentifier": cluster, "queueName": "empty"})
	if list, ok := at(out, "queue.computeNodeGroupConfigurations").([]any); !ok || len(list) != 0 {
		t.Errorf("computeNodeGroupConfigurations is required in answers, also when empty: %v", out)
	}
}

func TestFailuresAreTold(t *testing.T) {
	f := newFixture(t)
	_, group, _ := f.demo()
	f.Update(t, func(tx *store.Tx) error {
		g, err := fleet.Groups.Get(tx, group)
		if err != nil {
			return err
		}
		g.Status, g.Errors = fleet.CreateFailed, []fleet.ErrorInfo{{Code: "X", Message: "it did not work"}}
		return fleet.Groups.Put(tx, g)
	})
	out := f.must("GetComputeNodeGroup", object{"clusterIdentifier": "cluster", "computeNodeGroupIdentifier": "group"})
	list, _ := at(out, "computeNodeGroup.errorInfo").([]any)
	if len(list) != 1 || at(list[0], "code") != "X" || at(list[0], "message") != "it did not work" {
		t.Errorf("errorInfo = %v", list)
	}
	// An update that may cure it takes the error away.
	out = f.must("UpdateComputeNodeGroup", object{"clusterIdentifier": "cluster", "computeNodeGroupIdentifier": "group"})
	if at(out, "computeNodeGroup.errorInfo") != nil || at(out, "computeNodeGroup.status") != "UPDATING" {
		t.Errorf("after an update: %v", out)
	}
}

func TestRegionsAreNameSpaces(t *testing.T) {
	f := newFixture(t)
	cluster, _, _ := f.demo()
	abroad := f.Client()
	abroad.Region = "us-east-1"
	for _, ref := range []string{cluster, "cluster"} {
		if _, err := f.tryWith(abroad, "GetCluster", object{"clusterIdentifier": ref}); err == nil || err.Code != notFound {
			t.Errorf("%s seen from another region: %v", ref, err)
		}
	}
	out, err := f.tryWith(abroad, "ListClusters", object{})
	if list, ok := out["clusters"].([]any); err != nil || !ok || len(list) != 0 {
		t.Errorf("clusters of another region: %v, %v", out, err)
	}
	// A region that nobody used yet is made at first use.
	abroad.Region = "eu-west-1"
	in := f.clusterIn("x-y")
	if _, err := f.tryWith(abroad, "CreateCluster", in); err == nil || err.Code != validation || !strings.Contains(err.Message, "eu-west-1") {
		t.Errorf("a subnet of another region: %v", err)
	}
}

func TestI13_SameNameAgain(t *testing.T) {
	f := newFixture(t)
	cluster, _, _ := f.demo()
	seen := map[string]bool{}
	for range 50 {
		id := at(f.must("CreateComputeNodeGroup", f.groupIn(cluster, "again")), "computeNodeGroup.id").(string)
		if seen[id] {
			t.Fatalf("the id %s comes again", id)
		}
		seen[id] = true
		f.must("DeleteComputeNodeGroup", object{"clusterIdentifier": cluster, "computeNodeGroupIdentifier": "again"})
		f.settle()
	}
}

func TestPagination(t *testing.T) {
	f := newFixture(t)
	cluster, _, _ := f.demo()
	put := func(name string) (id string) {
		f.tick()
		f.Update(t, func(tx *store.Tx) error {
			q := fleet.Queue{ID: fleet.NewPCSID(), ClusterID: cluster, Region: awsapitest.Region, Name: name, Status: fleet.Active, CreatedAt: f.Clock.Now(), ModifiedAt: f.Clock.Now()}
			q.ARN, id = f.arn("cluster/"+cluster+"/queue/"+q.ID), q.ID
			return fleet.Queues.Put(tx, q)
		})
		return id
	}
	ids := map[string]string{}
	for n := range 24 {
		name := fmt.Sprintf("q-%02d", n)
		ids[name] = put(name)
	}
	list := func(in object) (names []string, next string) {
		in["clusterIdentifier"] = cluster
		out := f.must("ListQueues", in)
		for _, q := range out["queues"].([]any) {
			names = append(names, at(q, "name").(string))
		}
		next, _ = out["nextToken"].(string)
		return names, next
	}
	for _, in := range []object{{}, {"maxResults": 0}} {
		if names, next := list(in); len(names) != 10 || next == "" || names[0] != "queue" || names[1] != "q-00" {
			t.Errorf("the default page is %v, %q", names, next)
		}
	}
	if names, next := list(object{"maxResults": 100}); len(names) != 25 || next != "" {
		t.Errorf("all on a page: %d, %q", len(names), next)
	}
	if names, next := list(object{"maxResults": 25}); len(names) != 25 || next != "" {
		t.Errorf("a page that just fits: %d, %q", len(names), next)
	}
	// What is made or deleted in between neither hides nor repeats another.
	var all []string
	in, tokens := object{"maxResults": 7}, map[string]bool{}
	for page := 0; ; page++ {
		names, next := list(in)
		all = append(all, names...)
		if next == "" {
			break
		}
		if tokens[next] {
			t.Fatal("the same token comes twice, which the aws CLI takes for an error")
		}
		tokens[next] = true
		if page == 0 {
			f.Update(t, func(tx *store.Tx) error {
				return errors.Join(fleet.Queues.Delete(tx, ids["q-01"]), fleet.Queues.Delete(tx, ids["q-09"]))
			})
			put("q-new")
		}
		in = object{"maxResults": 7, "nextToken": next}
	}
	var want []string
	for n := range 24 {
		if n != 9 {
			want = append(want, fmt.Sprintf("q-%02d", n))
		}
	}
	want = append(append([]string{"queue"}, want...), "q-new")
	if !slices.Equal(all, want) {
		t.Errorf("pages give %v\nwant %v", all, want)
	}
	// A token is for the same call only, and for a day.
	_, token := list(object{"maxResults": 7})
	for name, in := range map[string]object{
		"another_size":    {"clusterIdentifier": cluster, "maxResults": 8, "nextToken": token},
		"another_cluster": {"clusterIdentifier": "cluster", "maxResults": 7, "nextToken": token},
		"cut":             {"clusterIdentifier": cluster, "maxResults": 7, "nextToken": token[:len(token)-1]},
	} {
		if _, err := f.try("ListQueues", in); err == nil || err.Code != "InvalidToken" {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := f.try("ListComputeNodeGroups", object{"clusterIdentifier": cluster, "maxResults": 7, "nextToken": token}); err == nil || err.Code != "InvalidToken" {
		t.Errorf("another operation: %v", err)
	}
	if names, _ := list(object{"maxResults": 7, "nextToken": ""}); len(names) != 7 {
		t.Errorf("an empty token: %v", names)
	}
	f.Clock.Advance(25 * time.Hour)
	if _, err := f.try("ListQueues", object{"clusterIdentifier": cluster, "maxResults": 7, "nextToken": token}); err == nil || err.Code != "InvalidToken" {
		t.Errorf("a token of yesterday: %v", err)
	}
}

func TestPaginatorsOfTheClient(t *testing.T) {
	f := newFixture(t)
	cluster, _, _ := f.demo()
	f.Update(t, func(tx *store.Tx) error {
		for n := range 23 {
			g := fleet.Group{ID: fleet.NewPCSID(), ClusterID: cluster, Region: awsapitest.Region, Name: fmt.Sprintf("g-%d", n), Status: fleet.Active, CreatedAt: f.Clock.Now(), ModifiedAt: f.Clock.Now()}
			if err := fleet.Groups.Put(tx, g); err != nil {
				return err
			}
		}
		return nil
	})
	pages := sdk.NewListComputeNodeGroupsPaginator(f.client(), &sdk.ListComputeNodeGroupsInput{ClusterIdentifier: &cluster, MaxResults: aws.Int32(10)})
	var names []string
	for pages.HasMorePages() {
		page, err := pages.NextPage(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, g := range page.ComputeNodeGroups {
			names = append(names, *g.Name)
			if *g.ClusterId != cluster || g.CreatedAt == nil || g.Status != types.ComputeNodeGroupStatusActive {
				t.Errorf("summary = %+v", g)
			}
		}
	}
	if got := slices.Compact(sorted(names)); len(names) != 24 || len(got) != 24 {
		t.Errorf("%d names, %d different", len(names), len(got))
	}
}

func TestTags(t *testing.T) {
	f := newFixture(t)
	cluster, group, queue := f.demo()
	for _, path := range []string{"cluster/" + cluster, "cluster/" + cluster + "/computenodegroup/" + group, "cluster/" + cluster + "/queue/" + queue} {
		arn := f.arn(path)
		if got := f.must("ListTagsForResource", object{"resourceArn": arn}); at(got, "tags") == nil {
			t.Errorf("%s: no tags give %v, want an empty map", path, got)
		}
		f.must("TagResource", object{"resourceArn": arn, "tags": object{"a": "1", "A": "2", "empty": ""}})
		f.must("TagResource", object{"resourceArn": arn, "tags": object{"a": "3"}})
		f.must("UntagResource", object{"resourceArn": arn, "tagKeys": []any{"A", "never-there"}})
		got := f.must("ListTagsForResource", object{"resourceArn": arn})
		if fmt.Sprint(at(got, "tags")) != "map[a:3 empty:]" {
			t.Errorf("%s: tags = %v", path, got)
		}
	}
	in := f.groupIn(cluster, "tagged")
	in["tags"] = object{"k": "v"}
	arn := at(f.must("CreateComputeNodeGroup", in), "computeNodeGroup.arn").(string)
	if got := f.must("ListTagsForResource", object{"resourceArn": arn}); at(got, "tags.k") != "v" {
		t.Errorf("tags of creation: %v", got)
	}
}

func TestP15_SameTokenSameAnswer(t *testing.T) {
	f := newFixture(t)
	cluster, group, _ := f.demo()
	const n = 20
	run := func(in func(k int) object) (answers []object, errs []*awsapi.Error) {
		answers, errs = make([]object, n), make([]*awsapi.Error, n)
		var wg sync.WaitGroup
		for k := range n {
			wg.Go(func() { answers[k], errs[k] = f.try("CreateQueue", in(k)) })
		}
		wg.Wait()
		return answers, errs
	}
	answers, errs := run(func(int) object {
		in := queueIn(cluster, "same", group)
		in["clientToken"] = "token-000001"
		return in
	})
	for k := range n {
		if errs[k] != nil || at(answers[k], "queue.id") != at(answers[0], "queue.id") || at(answers[k], "queue.status") != "CREATING" {
			t.Errorf("call %d: %v, %v", k, answers[k], errs[k])
		}
	}
	f.settle()
	// Later as well, and although it is ACTIVE by now the answer is the first one.
	in := queueIn(cluster, "same", group)
	in["clientToken"] = "token-000001"
	f.Clock.Advance(23 * time.Hour)
	if again := f.must("CreateQueue", in); fmt.Sprint(again) != fmt.Sprint(answers[0]) {
		t.Errorf("a day later: %v\nfirst: %v", again, answers[0])
	}

	answers, errs = run(func(k int) object {
		in := queueIn(cluster, fmt.Sprintf("other-%d", k), group)
		in["clientToken"] = "token-000002"
		return in
	})
	made := 0
	for k := range n {
		switch {
		case errs[k] == nil:
			made++
		case errs[k].Code != conflict:
			t.Errorf("another body with the token: %v", errs[k])
		}
	}
	if _, _, queues := f.count(); made != 1 || queues != 3 {
		t.Errorf("%d calls of %d succeeded; there are %d queues, want 3", made, n, queues)
	}
	_ = answers
	f.settle()
	// The same token means nothing to another operation or in another region.
	g := f.groupIn(cluster, "fresh")
	g["clientToken"] = "token-000001"
	f.must("CreateComputeNodeGroup", g)
	// A call that failed did not use up its token.
	in = queueIn(cluster, "same", group)
	in["clientToken"] = "token-000003"
	if _, err := f.try("CreateQueue", in); err == nil || err.Code != conflict {
		t.Errorf("a taken name: %v", err)
	}
	in["queueName"] = "free"
	f.must("CreateQueue", in)
	// A deletion repeated with its token is one deletion.
	del := object{"clusterIdentifier": cluster, "queueIdentifier": "free", "clientToken": "token-000004"}
	f.must("DeleteQueue", del)
	f.settle()
	f.must("DeleteQueue", del)

	f.Clock.Advance(25 * time.Hour)
	if err := pcs.PurgeTokens(t.Context(), f.Store, f.Clock.Now()); err != nil {
		t.Fatal(err)
	}
	in = queueIn(cluster, "same", group)
	in["clientToken"] = "token-000001"
	if _, err := f.try("CreateQueue", in); err == nil || err.Code != conflict {
		t.Errorf("after two days the token is forgotten, so the name is taken: %v", err)
	}
}

func TestP15_ClustersToo(t *testing.T) {
	f := newFixture(t)
	in := f.clusterIn("cluster")
	in["clientToken"] = "token-000001"
	var wg sync.WaitGroup
	ids := make([]any, 20)
	for k := range ids {
		wg.Go(func() {
			out, err := f.try("CreateCluster", in)
			if err != nil {
				t.Errorf("call %d: %v", k, err)
			}
			ids[k] = at(out, "cluster.id")
		})
	}
	wg.Wait()
	if clusters, _, _ := f.count(); clusters != 1 {
		t.Errorf("%d clusters", clusters)
	}
	for _, id := range ids {
		if id == nil || id != ids[0] {
			t.Errorf("ids = %v", ids)
			break
		}
	}
	// The same members in another order are the same request (a retry of a
	// client whose maps have no order).
	if n := f.wakes(ids[0].(string)); n != 1 {
		t.Errorf("one creation woke the cluster %d times", n)
	}
}

// Names are taken once, whoever is first: 20 at a time without a token.
func TestConcurrentCreatesOfOneName(t *testing.T) {
	f := newFixture(t)
	cluster, _, _ := f.demo()
	var wg sync.WaitGroup
	var mu sync.Mutex
	made := 0
	for range 20 {
		wg.Go(func() {
			_, err := f.try("CreateComputeNodeGroup", f.groupIn(cluster, "one"))
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				made++
			} else if err.Code != conflict {
				t.Errorf("%v", err)
			}
		})
	}
	wg.Wait()
	if made != 1 {
		t.Errorf("%d groups of one name", made)
	}
}

// However many ask at once, one cluster is CREATING at a time.
func TestConcurrentCreatesOfClusters(t *testing.T) {
	f := newFixture(t)
	var wg sync.WaitGroup
	var mu sync.Mutex
	made := 0
	for k := range 20 {
		wg.Go(func() {
			_, err := f.try("CreateCluster", f.clusterIn(fmt.Sprintf("cluster-%d", k)))
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				made++
			} else if err.Code != tooMany {
				t.Errorf("%v", err)
			}
		})
	}
	wg.Wait()
	if clusters, _, _ := f.count(); made != 1 || clusters != 1 {
		t.Errorf("%d calls succeeded, and there are %d clusters", made, clusters)
	}
}

func TestLaunchTemplatesAreResolved(t *testing.T) {
	f := newFixture(t)
	cluster, _, _ := f.demo()
	tmpl := f.template("rich", url.Values{
		"LaunchTemplateData.ImageId": {oldImage}, "LaunchTemplateData.KeyName": {"people"}, "LaunchTemplateData.InstanceType": {"m5.large"},
		"LaunchTemplateData.NetworkInterface.1.DeviceIndex": {"0"}, "LaunchTemplateData.NetworkInterface.1.SecurityGroupId.1": {f.sg},
		"LaunchTemplateData.TagSpecification.1.ResourceType": {"instance"},
		"LaunchTemplateData.TagSpecification.1.Tag.1.Key":    {"Name"}, "LaunchTemplateData.TagSpecification.1.Tag.1.Value": {"node"},
		"LaunchTemplateData.TagSpecification.2.ResourceType": {"volume"},
		"LaunchTemplateData.TagSpecification.2.Tag.1.Key":    {"Name"}, "LaunchTemplateData.TagSpecification.2.Tag.1.Value": {"disk"},
	})
	in := f.groupIn(cluster, "rich")
	in["customLaunchTemplate"] = object{"id": tmpl, "version": "1"}
	in["amiId"] = image // wins over the template's
	id := at(f.must("CreateComputeNodeGroup", in), "computeNodeGroup.id").(string)
	f.View(t, func(tx *store.Tx) error {
		g, err := fleet.Groups.Get(tx, id)
		if err != nil {
			return err
		}
		l := g.Launch
		if l.ImageID != image || l.KeyName != "people" || !slices.Equal(l.SecurityGroups, []string{f.sg}) || fmt.Sprint(l.Tags) != "map[Name:node]" || !slices.Equal(g.InstanceTypes, []string{"t3.micro"}) {
			t.Errorf("launch = %+v of %v", l, g.InstanceTypes)
		}
		return nil
	})
	// The generic image is taken: that its nodes cannot join is told later.
	in = f.groupIn(cluster, "plain")
	in["amiId"] = plainImage
	if _, err := f.try("CreateComputeNodeGroup", in); err != nil {
		t.Errorf("an image without the agent: %v", err)
	}
}

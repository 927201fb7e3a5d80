package pcs_test

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/openpcs/openpcs/internal/awsapi"
	"github.com/openpcs/openpcs/internal/awsapi/awsapitest"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/store"
)

// member is a member of a request with a value that the published model has,
// and whether this release takes it.
type member struct {
	path    string
	value   any
	refused bool   // by this release, and clearly
	with    object // what else the request must have
}

var (
	setting    = []any{object{"parameterName": "MaxTime", "parameterValue": "60"}}
	lifecycle1 = []any{object{
		"name": "a", "arguments": []any{"x"}, "onError": "CONTINUE", "executionPolicy": "EVERY_BOOT",
		"scriptSource": object{"scriptLocation": "s3://bucket/key", "s3VersionId": "1", "checksum": strings.Repeat("a", 64)},
	}}
)

func groupMembers(f *fixture) []member {
	return []member{
		{path: "clientToken", value: "token-of-the-shape"},
		{path: "amiId", value: image},
		{path: "subnetIds", value: []any{f.subnets[1].ID}},
		{path: "purchaseOption", value: "ONDEMAND"},
		{path: "purchaseOption", value: "SPOT"},
		{path: "spotOptions", value: object{}, with: object{"purchaseOption": "SPOT"}},
		{path: "spotOptions.allocationStrategy", value: "lowest-price", with: object{"purchaseOption": "SPOT"}},
		{path: "purchaseOption", value: "CAPACITY_BLOCK", refused: true},
		{path: "purchaseOption", value: "INTERRUPTIBLE_CAPACITY_RESERVATION", refused: true},
		{path: "customLaunchTemplate", value: object{"id": f.tmpl, "version": "1"}},
		{path: "iamInstanceProfileArn", value: f.profile},
		{path: "scalingConfiguration", value: object{"minInstanceCount": 1, "maxInstanceCount": 3}},
		{path: "slurmConfiguration", value: object{}},
		{path: "slurmConfiguration.scaleDownIdleTimeInSeconds", value: -1},
		{path: "slurmConfiguration.scaleDownIdleTimeInSeconds", value: 60},
		{path: "slurmConfiguration.slurmCustomSettings", value: []any{}},
		{path: "slurmConfiguration.slurmCustomSettings", value: []any{object{"parameterName": "Weight", "parameterValue": "2"}}},
		{path: "slurmConfiguration.gresCustomSettings", value: []any{}},
		{path: "slurmConfiguration.gresCustomSettings", value: []any{object{"Name": "gpu", "AutoDetect": "nvml"}}, refused: true},
		{path: "nodeLifecycleActions.stages", value: object{}},
		{path: "nodeLifecycleActions.stages.nodeBootstrapped", value: lifecycle1},
		{path: "nodeLifecycleActions.stages.nodeReady", value: lifecycle1},
		{path: "nodeLifecycleActions", value: object{"stages": object{}, "scriptCachingPolicy": "CACHE_ONCE"}},
	}
}

func clusterMembers() []member {
	const at = "slurmConfiguration."
	return []member{
		{path: "clientToken", value: "token-of-the-shape"},
		{path: "slurmConfiguration", value: object{}},
		{path: at + "scaleDownIdleTimeInSeconds", value: 10_000_000},
		{path: at + "slurmCustomSettings", value: []any{}},
		{path: at + "slurmCustomSettings", value: []any{object{"parameterName": "minjobage", "parameterValue": "60"}}},
		{path: at + "slurmdbdCustomSettings", value: []any{}},
		{path: "slurmConfiguration", value: object{
			"accounting":             object{"mode": "STANDARD"},
			"slurmdbdCustomSettings": []any{object{"parameterName": "PurgeJobAfter", "parameterValue": "12months"}},
		}},
		{path: at + "cgroupCustomSettings", value: []any{}},
		{path: at + "cgroupCustomSettings", value: []any{object{"parameterName": "ConstrainCores", "parameterValue": "yes"}}},
		{path: at + "accounting", value: object{"mode": "NONE"}},
		{path: at + "accounting", value: object{"mode": "NONE", "defaultPurgeTimeInDays": -1}},
		{path: at + "accounting", value: object{"mode": "STANDARD", "defaultPurgeTimeInDays": 30}},
		{path: at + "slurmRest", value: object{"mode": "NONE"}},
		{path: at + "slurmRest", value: object{"mode": "STANDARD"}},
	}
}

// requests are right requests of all operations, with the members that are
// required. What is to be deleted is to be made first, as to-delete.
func (f *fixture) requests(cluster, group, queue string) map[string]object {
	ofCluster := object{"clusterIdentifier": cluster}
	ofGroup := object{"clusterIdentifier": cluster, "computeNodeGroupIdentifier": group}
	ofQueue := object{"clusterIdentifier": cluster, "queueIdentifier": queue}
	arn := f.arn("cluster/" + cluster)
	return map[string]object{
		"CreateCluster":                    f.clusterIn("shape"),
		"GetCluster":                       ofCluster,
		"ListClusters":                     {},
		"UpdateCluster":                    ofCluster,
		"DeleteCluster":                    {"clusterIdentifier": "to-delete"},
		"CreateComputeNodeGroup":           f.groupIn(cluster, "shape"),
		"GetComputeNodeGroup":              ofGroup,
		"ListComputeNodeGroups":            ofCluster,
		"UpdateComputeNodeGroup":           ofGroup,
		"DeleteComputeNodeGroup":           {"clusterIdentifier": cluster, "computeNodeGroupIdentifier": "to-delete"},
		"CreateQueue":                      queueIn(cluster, "shape", group),
		"GetQueue":                         ofQueue,
		"ListQueues":                       ofCluster,
		"UpdateQueue":                      ofQueue,
		"DeleteQueue":                      {"clusterIdentifier": cluster, "queueIdentifier": "to-delete"},
		"TagResource":                      {"resourceArn": arn, "tags": object{"a": "b"}},
		"UntagResource":                    {"resourceArn": arn, "tagKeys": []any{"a"}},
		"ListTagsForResource":              {"resourceArn": arn},
		"RegisterComputeNodeGroupInstance": {"clusterIdentifier": cluster, "bootstrapId": "b"},
	}
}

// node returns a client with the role of a running instance of the group.
func (f *fixture) node(cluster, group string) *awsapi.Client {
	f.t.Helper()
	return f.instance(fleet.Instance{ID: "i-1", Region: awsapitest.Region, State: fleet.Running, ClusterID: cluster, GroupID: group, NodeName: "group-1"})
}

func TestShapeOfTheRequests(t *testing.T) {
	f := newFixture(t)
	cluster, group, queue := f.demo()
	requests := f.requests(cluster, group, queue)
	tags := member{path: "tags", value: object{"k": "", "K": strings.Repeat("v", 256), strings.Repeat("k", 128): "v"}}
	name := func(path, value string) []member { return []member{{path: path, value: value}} }
	list := []member{{path: "maxResults", value: 1}, {path: "maxResults", value: 100}, {path: "maxResults", value: 0}, {path: "nextToken", value: ""}}
	ref := []member{{path: "clusterIdentifier", value: "cluster"}}
	refs := func(what, value string) []member { return append([]member{{path: what, value: value}}, ref...) }
	token := member{path: "clientToken", value: "token-of-the-shape"}
	queueMembers := []member{
		token,
		{path: "computeNodeGroupConfigurations", value: []any{object{"computeNodeGroupId": group}}},
		{path: "computeNodeGroupConfigurations", value: []any{}},
		{path: "slurmConfiguration", value: object{}},
		{path: "slurmConfiguration.slurmCustomSettings", value: []any{}},
		{path: "slurmConfiguration.slurmCustomSettings", value: setting},
	}
	table := map[string][]member{
		"CreateCluster": slices.Concat(clusterMembers(), name("clusterName", strings.Repeat("a", 40)), []member{
			tags,
			{path: "scheduler", value: object{"type": "SLURM", "version": "24.11"}},
			{path: "size", value: "MEDIUM"},
			{path: "size", value: "LARGE"},
			{path: "networking.networkType", value: "IPV4"},
			{path: "networking.networkType", value: "IPV6", refused: true},
			{path: "networking.securityGroupIds", value: []any{}},
			{path: "networking.subnetIds", value: []any{f.subnets[2].ID}},
		}),
		"GetCluster":    ref,
		"ListClusters":  list,
		"UpdateCluster": slices.Concat(clusterMembers(), ref, []member{{path: "slurmConfiguration.accounting", value: object{}}, {path: "slurmConfiguration.slurmRest", value: object{}}}),
		"DeleteCluster": {token},

		"CreateComputeNodeGroup": slices.Concat(groupMembers(f), name("computeNodeGroupName", strings.Repeat("a", 25)), ref, []member{
			tags,
			{path: "instanceConfigs", value: []any{object{"instanceType": "c5.large"}, object{"instanceType": "m5.large"}}},
		}),
		"GetComputeNodeGroup":    refs("computeNodeGroupIdentifier", "group"),
		"ListComputeNodeGroups":  append(ref, list...),
		"UpdateComputeNodeGroup": append(groupMembers(f), refs("computeNodeGroupIdentifier", "group")...),
		"DeleteComputeNodeGroup": append(ref, token),

		"CreateQueue": slices.Concat(queueMembers, name("queueName", strings.Repeat("a", 25)), ref, []member{tags}),
		"GetQueue":    refs("queueIdentifier", "queue"),
		"ListQueues":  append(ref, list...),
		"UpdateQueue": append(queueMembers, refs("queueIdentifier", "queue")...),
		"DeleteQueue": append(ref, token),

		"TagResource":                      {tags},
		"UntagResource":                    {{path: "tagKeys", value: []any{"a", "b"}}},
		"ListTagsForResource":              nil,
		"RegisterComputeNodeGroupInstance": append(ref, member{path: "bootstrapId", value: strings.Repeat("b", 1000)}),
	}
	// What an operation needs to be there before, and what its success made.
	prepare := func(op string) {
		switch op {
		case "DeleteCluster":
			f.must("CreateCluster", f.clusterIn("to-delete"))
		case "DeleteComputeNodeGroup":
			f.must("CreateComputeNodeGroup", f.groupIn(cluster, "to-delete"))
		case "DeleteQueue":
			f.must("CreateQueue", queueIn(cluster, "to-delete"))
		}
		f.settle()
	}
	clean := func() {
		f.settle()
		f.Update(t, func(tx *store.Tx) error {
			clusters, err := fleet.Clusters.All(tx)
			if err != nil {
				return err
			}
			for _, c := range clusters {
				if c.ID != cluster {
					if err := fleet.Clusters.Delete(tx, c.ID); err != nil {
						return err
					}
				}
			}
			groups, err := fleet.Groups.All(tx)
			if err != nil {
				return err
			}
			for _, g := range groups {
				if g.ID != group {
					if err := fleet.Groups.Delete(tx, g.ID); err != nil {
						return err
					}
				}
			}
			queues, err := fleet.Queues.All(tx)
			if err != nil {
				return err
			}
			for _, q := range queues {
				if q.ID != queue {
					if err := fleet.Queues.Delete(tx, q.ID); err != nil {
						return err
					}
				}
			}
			return nil
		})
		// Tokens are good for a day; each call of the table is one of its own.
		f.Clock.Advance(25 * time.Hour)
	}
	var operations []string
	for _, op := range f.service.API().Operations {
		operations = append(operations, op.Name)
	}
	if got, want := sorted(operations), slices.Sorted(maps.Keys(table)); !slices.Equal(got, want) {
		t.Fatalf("operations are %v, the model has %v", got, want)
	}
	// TestUpdateOfTheVersion has these.
	sent := map[string]bool{"UpdateClusterIn.scheduler": true, "UpdateSchedulerRequest.version": true}
	for _, op := range operations {
		client := f.Client()
		for _, m := range append([]member{{}}, table[op]...) {
			what := op
			in := clone(requests[op])
			if m.path != "" {
				what = op + " with " + m.path + " = " + short(m.value)
				put(in, m.path, m.value)
				maps.Copy(in, m.with)
			}
			if op == "RegisterComputeNodeGroupInstance" {
				// The role's key is good for an hour of the moved clock.
				client = f.node(cluster, group)
			}
			for _, wrong := range published.inputs[op].mismatches(what, clone(in), func(member string) { sent[member] = true }) {
				t.Errorf("the request is none of the model: %s", wrong)
			}
			prepare(op)
			out, err := f.tryWith(client, op, in) // which holds the answer against the model
			switch {
			case m.refused && err == nil:
				t.Errorf("%s is taken: %v", what, out)
			case m.refused:
				named := slices.ContainsFunc(fields(err), func(field string) bool {
					return strings.HasPrefix(field, m.path) || strings.HasPrefix(m.path, field)
				})
				if err.Code != validation || !named || !strings.Contains(err.Message, "not supported by this release") {
					t.Errorf("%s is not refused clearly: %v, fields %v", what, err, fields(err))
				}
			case err != nil:
				t.Errorf("%s is refused: %v", what, err)
			}
			clean()
		}
	}
	all := map[string]bool{}
	for _, s := range published.inputs {
		s.reach(all)
	}
	for _, member := range slices.Sorted(maps.Keys(all)) {
		if !sent[member] {
			t.Errorf("no right request has %s", member)
		}
	}
}

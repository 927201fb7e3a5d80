package pcs_test

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/openpcs/openpcs/internal/awsapi"
	"github.com/openpcs/openpcs/internal/awsapi/awsapitest"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/store"
)

const (
	validation = "ValidationException"
	conflict   = "ConflictException"
	notFound   = "ResourceNotFoundException"
	tooMany    = "ServiceQuotaExceededException"
)

// wrong is a request with one mistake. The member at path gets the value in
// an otherwise right request; where is the field or resource that the error
// must name, which is the path if empty.
type wrong struct {
	path  string
	value any
	code  string // ValidationException if empty
	where string
	says  string // part of the message
}

func many(n int) object {
	m := object{}
	for i := range n {
		m["k"+strings.Repeat("x", i%100)+string(rune('a'+i/100))] = "v"
	}
	return m
}

func TestWrongRequests(t *testing.T) {
	f := newFixture(t)
	cluster, group, queue := f.demo()
	other := at(f.must("CreateComputeNodeGroup", f.groupIn(cluster, "other")), "computeNodeGroup.id").(string)
	f.settle()

	// Another VPC of the region, which openpcs does not make by itself.
	f.Update(t, func(tx *store.Tx) error {
		far := f.subnets[0]
		far.ID, far.VPCID = "subnet-0000000000000000f", "vpc-0000000000000000f"
		return fleet.Subnets.Put(tx, far)
	})
	setting := []any{object{"parameterName": "Prolog", "parameterValue": "/x"}}
	script := []any{object{"name": "a", "scriptSource": object{"scriptLocation": "s3://bucket/key"}}}
	noSG := f.template("no-sg", url.Values{"LaunchTemplateData.ImageId": {image}})
	noImage := f.template("no-image", url.Values{"LaunchTemplateData.SecurityGroupId.1": {f.sg}})
	userData := func(name, text string) string {
		return f.template(name, url.Values{
			"LaunchTemplateData.ImageId": {image}, "LaunchTemplateData.SecurityGroupId.1": {f.sg},
			"LaunchTemplateData.UserData": {base64.StdEncoding.EncodeToString([]byte(text))},
		})
	}
	bare := userData("not-mime", "#!/bin/sh\necho hello\n")
	mime := func(kind string) string {
		return "MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=\"B\"\n\n--B\nContent-Type: " + kind + "\n\nhello\n--B--\n"
	}
	cloudConfig := userData("cloud-config", mime("text/cloud-config"))
	python := userData("python", mime("text/x-python"))
	const allowAll = `{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":"*","Resource":"*"}]}`
	badRole := f.profileOf("MyRole", "/", allowAll)
	poorRole := f.profileOf("AWSPCS-poor", "/", `{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":"s3:*","Resource":"*"}]}`)
	const slurmIn = "slurmConfiguration."

	for _, tt := range []struct {
		op   string
		base object
		all  []wrong
	}{
		{"CreateCluster", f.clusterIn("fresh"), []wrong{
			{path: "clusterName", value: absent{}, says: "required"},
			{path: "clusterName", value: "ab"},
			{path: "clusterName", value: strings.Repeat("a", 41)},
			{path: "clusterName", value: ""},
			{path: "clusterName", value: "pcs_abc", says: "pcs_"},
			{path: "clusterName", value: "1abc"},
			{path: "clusterName", value: "-abc"},
			{path: "clusterName", value: "a_b", says: "letters, digits and hyphens"}, // N8
			{path: "clusterName", value: "a b"},
			{path: "clusterName", value: "abc\n"},
			{path: "clusterName", value: "abc\nSlurmUser=root"},
			{path: "clusterName", value: "日本語日本語"},
			{path: "clusterName", value: 7, says: "string"},
			{path: "ClusterName", value: "abc"},
			{path: "clusterName", value: "cluster", code: conflict, where: "cluster", says: "taken"},
			{path: "scheduler", value: absent{}},
			{path: "scheduler", value: []any{}},
			{path: "scheduler.type", value: absent{}},
			{path: "scheduler.type", value: "SGE"},
			{path: "scheduler.version", value: absent{}},
			{path: "scheduler.version", value: "22.05"},
			{path: "scheduler.version", value: "26.05.5"},
			{path: "scheduler.version", value: "25.11"},
			{path: "scheduler.patch", value: "1"},
			{path: "size", value: absent{}},
			{path: "size", value: "HUGE", says: "SMALL, MEDIUM, LARGE"},
			{path: "size", value: "small"},
			{path: "networking", value: absent{}},
			{path: "networking.subnetIds", value: absent{}},
			{path: "networking.subnetIds", value: []any{}},
			{path: "networking.subnetIds", value: []any{f.subnet, f.subnets[1].ID}},
			{path: "networking.subnetIds", value: []any{"subnet-12345678"}, where: "networking.subnetIds[0]", says: "subnet-12345678"},
			{path: "networking.subnetIds", value: []any{f.abroad.ID}, where: "networking.subnetIds[0]"},
			{path: "networking.subnetIds", value: f.subnet, says: "list"},
			{path: "networking.securityGroupIds", value: []any{f.sg, "sg-12345678"}, where: "networking.securityGroupIds[1]", says: "sg-12345678"},
			{path: "networking.securityGroupIds", value: []any{f.farSG}, where: "networking.securityGroupIds[0]"},
			{path: "networking.securityGroupIds", value: []any{f.sg, f.sg}, where: "networking.securityGroupIds[1]", says: "twice"},
			{path: "networking.networkType", value: "IPV5"},
			{path: "networking.networkType", value: "IPV6", says: "not supported"},
			{path: "networking.vpcId", value: "vpc-1"},
			{path: slurmIn + "scaleDownIdleTimeInSeconds", value: 0},
			{path: slurmIn + "scaleDownIdleTimeInSeconds", value: -1},
			{path: slurmIn + "scaleDownIdleTimeInSeconds", value: 10_000_001},
			{path: slurmIn + "scaleDownIdleTimeInSeconds", value: "60"},
			{path: slurmIn + "scaleDownIdleTimeInSeconds", value: 1.5},
			{path: slurmIn + "slurmCustomSettings", value: unknownSetting, where: slurmIn + "slurmCustomSettings[0]"},
			{path: slurmIn + "slurmdbdCustomSettings", value: []any{object{"parameterName": "PurgeJobAfter", "parameterValue": "12months"}}, says: "use accounting.mode STANDARD"},
			{path: slurmIn + "cgroupCustomSettings", value: setting, where: slurmIn + "cgroupCustomSettings[0]"},
			{path: slurmIn + "accounting.mode", value: "FULL"},
			{path: slurmIn + "accounting", value: object{}, where: slurmIn + "accounting.mode"},
			{path: slurmIn + "accounting", value: object{"mode": "NONE", "defaultPurgeTimeInDays": 0}, where: slurmIn + "accounting.defaultPurgeTimeInDays"},
			{path: slurmIn + "accounting", value: object{"mode": "NONE", "defaultPurgeTimeInDays": -2}, where: slurmIn + "accounting.defaultPurgeTimeInDays"},
			{path: slurmIn + "accounting", value: object{"mode": "NONE", "defaultPurgeTimeInDays": 10001}, where: slurmIn + "accounting.defaultPurgeTimeInDays"},
			{path: slurmIn + "accounting", value: object{"mode": "NONE", "defaultPurgeTimeInDays": 30}, where: slurmIn + "accounting.defaultPurgeTimeInDays"},
			{path: slurmIn + "slurmRest", value: object{}, where: slurmIn + "slurmRest.mode"},
			{path: slurmIn + "authKey", value: object{"secretArn": "x"}},
			{path: "tags", value: object{}},
			{path: "tags", value: many(201)},
			{path: "tags", value: object{strings.Repeat("k", 129): "v"}},
			{path: "tags", value: object{"": "v"}},
			{path: "tags", value: object{"k": strings.Repeat("v", 257)}, where: "tags.k"},
			{path: "tags", value: object{"aws:x": "v"}, says: "reserved"},
			{path: "tags", value: object{"AWS:x": "v"}, says: "reserved"},
			{path: "tags", value: object{"k": nil}, where: "tags.k"},
			{path: "clientToken", value: "1234567"},
			{path: "clientToken", value: strings.Repeat("x", 101)},
			{path: "colour", value: "red"},
		}},
		{"GetCluster", object{"clusterIdentifier": cluster}, []wrong{
			{path: "clusterIdentifier", value: absent{}},
			{path: "clusterIdentifier", value: ""},
			{path: "clusterIdentifier", value: "pcs_"},
			{path: "clusterIdentifier", value: "a b"},
			{path: "clusterIdentifier", value: cluster + "\n"},
			{path: "clusterIdentifier", value: "pcs_0000000000", code: notFound, where: "cluster"},
			{path: "clusterIdentifier", value: "nobody", code: notFound, where: "cluster"},
			{path: "clusterIdentifier", value: group, code: notFound, where: "cluster"},
		}},
		{"UpdateCluster", object{"clusterIdentifier": cluster}, []wrong{
			{path: "scheduler.version", value: "26.05", says: "already"},
			{path: "scheduler.version", value: "25.11", says: "older"},
			{path: "scheduler.version", value: "23.11"},
			{path: "scheduler", value: object{}, where: "scheduler.version"},
			{path: "size", value: "LARGE"},
			{path: slurmIn + "scaleDownIdleTimeInSeconds", value: 0},
			{path: slurmIn + "accounting.mode", value: "FULL"},
			{path: slurmIn + "slurmRest.mode", value: "FULL"},
			{path: slurmIn + "slurmCustomSettings", value: unknownSetting, where: slurmIn + "slurmCustomSettings[0]"},
			{path: "clientToken", value: "short"},
			{path: "clusterIdentifier", value: "nobody", code: notFound, where: "cluster"},
		}},
		{"DeleteCluster", object{"clusterIdentifier": cluster}, []wrong{
			{path: "clusterIdentifier", value: cluster, code: conflict, where: "cluster", says: "delete them first"},
			{path: "force", value: true},
			{path: "clusterIdentifier", value: "nobody", code: notFound, where: "cluster"},
		}},
		{"CreateComputeNodeGroup", f.groupIn(cluster, "fresh"), []wrong{
			{path: "clusterIdentifier", value: absent{}},
			{path: "clusterIdentifier", value: "nobody", code: notFound, where: "cluster"},
			{path: "computeNodeGroupName", value: absent{}},
			{path: "computeNodeGroupName", value: "ab"},
			{path: "computeNodeGroupName", value: strings.Repeat("a", 26)},
			{path: "computeNodeGroupName", value: "a_b"},
			{path: "computeNodeGroupName", value: "group", code: conflict, where: "computenodegroup"},
			{path: "subnetIds", value: absent{}},
			{path: "subnetIds", value: []any{}},
			{path: "subnetIds", value: []any{f.subnet, f.subnet}, where: "subnetIds[1]", says: "twice"},
			{path: "subnetIds", value: []any{f.subnet, "subnet-12345678"}, where: "subnetIds[1]"},
			{path: "subnetIds", value: []any{f.abroad.ID}, where: "subnetIds[0]"},
			{path: "subnetIds", value: []any{"subnet-0000000000000000f"}, where: "subnetIds[0]", says: "VPC"},
			{path: "customLaunchTemplate", value: absent{}},
			{path: "customLaunchTemplate.id", value: absent{}},
			{path: "customLaunchTemplate.version", value: absent{}},
			{path: "customLaunchTemplate.version", value: 1},
			{path: "customLaunchTemplate.version", value: "99", where: "customLaunchTemplate", says: "99"},
			{path: "customLaunchTemplate.id", value: "lt-00000000000000000", where: "customLaunchTemplate"},
			{path: "customLaunchTemplate.id", value: noSG, where: "customLaunchTemplate", says: "security groups"},
			{path: "customLaunchTemplate.id", value: noImage, where: "amiId"},
			{path: "customLaunchTemplate.id", value: bare, where: "customLaunchTemplate", says: "MIME"},
			{path: "customLaunchTemplate.id", value: cloudConfig, where: "customLaunchTemplate", says: "cloud-init"},
			{path: "customLaunchTemplate.id", value: python, where: "customLaunchTemplate", says: "text/x-python"},
			{path: "iamInstanceProfileArn", value: absent{}},
			{path: "iamInstanceProfileArn", value: "AWSPCS-default"},
			{path: "iamInstanceProfileArn", value: "arn:aws:iam::123456789012:role/AWSPCS-default"},
			{path: "iamInstanceProfileArn", value: "arn:aws:iam::123456789012:instance-profile/AWSPCS-none", says: "does not exist"},
			{path: "iamInstanceProfileArn", value: badRole, says: "AWSPCS"},
			{path: "iamInstanceProfileArn", value: poorRole, says: "pcs:RegisterComputeNodeGroupInstance"},
			{path: "scalingConfiguration", value: absent{}},
			{path: "scalingConfiguration.minInstanceCount", value: absent{}},
			{path: "scalingConfiguration.maxInstanceCount", value: absent{}},
			{path: "scalingConfiguration.minInstanceCount", value: -1},
			{path: "scalingConfiguration.minInstanceCount", value: 3, says: "greater"},
			{path: "scalingConfiguration.maxInstanceCount", value: "9"},
			{path: "scalingConfiguration.maxInstanceCount", value: 99999999999},
			{path: "scalingConfiguration.maxInstanceCount", value: 29, code: tooMany, where: "cluster", says: "32"},
			{path: "instanceConfigs", value: absent{}},
			{path: "instanceConfigs", value: []any{}},
			{path: "instanceConfigs", value: []any{object{}}, where: "instanceConfigs[0].instanceType"},
			{path: "instanceConfigs", value: []any{object{"instanceType": "t3.huge"}}, where: "instanceConfigs[0].instanceType", says: "t3.huge"},
			{path: "instanceConfigs", value: []any{object{"instanceType": "t3.micro"}, object{"instanceType": "t3.micro"}}, where: "instanceConfigs[1].instanceType"},
			{path: "instanceConfigs", value: []any{object{"instanceType": "t3.micro"}, object{"instanceType": "t3.xlarge"}}, where: "instanceConfigs[1].instanceType", says: "vCPUs"},
			{path: "instanceConfigs", value: []any{object{"instanceType": "t4g.micro"}}, where: "customLaunchTemplate", says: "arm64"},
			{path: "purchaseOption", value: "FREE"},
			{path: "purchaseOption", value: "CAPACITY_BLOCK", says: "not supported"},
			{path: "purchaseOption", value: "INTERRUPTIBLE_CAPACITY_RESERVATION", says: "not supported"},
			{path: "spotOptions.allocationStrategy", value: "lowest-price", where: "spotOptions"},
			{path: "spotOptions.allocationStrategy", value: "cheapest"},
			{path: "amiId", value: "AMI-1"},
			{path: "amiId", value: "ami-0123456789abcdef0", says: "does not exist"},
			{path: "amiId", value: oldImage, says: "24.11"},
			{path: "amiId", value: armImage, says: "arm64"},
			{path: slurmIn + "slurmCustomSettings", value: unknownSetting, where: slurmIn + "slurmCustomSettings[0]"},
			{path: slurmIn + "gresCustomSettings", value: []any{object{"Name": "gpu"}}},
			{path: slurmIn + "scaleDownIdleTimeInSeconds", value: 0, says: "1 to 10000000"}, // I1
			{path: slurmIn + "scaleDownIdleTimeInSeconds", value: -2},
			{path: slurmIn + "scaleDownIdleTimeInSeconds", value: 1 << 31},
			{path: "nodeLifecycleActions", value: object{"stages": object{"nodeReady": script}, "scriptCachingPolicy": "NEVER"}, where: "nodeLifecycleActions.scriptCachingPolicy", says: "CACHE_ONCE"},
			{path: "nodeLifecycleActions", value: object{"stages": object{"nodeReady": append(script, script...)}}, where: "nodeLifecycleActions.stages.nodeReady[1].name", says: "two scripts"},
			{path: "nodeLifecycleActions", value: object{"stages": object{"nodeReady": []any{object{"name": "a", "scriptSource": object{"scriptLocation": "https://host.example/x", "s3VersionId": "1"}}}}}, where: "nodeLifecycleActions.stages.nodeReady[0].scriptSource.s3VersionId"},
			{path: "nodeLifecycleActions", value: object{"stages": object{"nodeReady": []any{object{"name": "a", "scriptSource": object{"scriptLocation": "http://host.example/x"}}}}}, where: "nodeLifecycleActions.stages.nodeReady[0].scriptSource.scriptLocation"},
			{path: "tags", value: object{"aws:x": "v"}},
			{path: "clientToken", value: "short"},
			{path: "keyName", value: "k"},
		}},
		{"UpdateComputeNodeGroup", object{"clusterIdentifier": cluster, "computeNodeGroupIdentifier": group}, []wrong{
			{path: "computeNodeGroupIdentifier", value: absent{}},
			{path: "computeNodeGroupIdentifier", value: "x"},
			{path: "computeNodeGroupIdentifier", value: "nobody", code: notFound, where: "computenodegroup"},
			{path: "computeNodeGroupIdentifier", value: queue, code: notFound, where: "computenodegroup"},
			{path: "instanceConfigs", value: []any{object{"instanceType": "t3.large"}}},
			{path: "tags", value: object{"a": "b"}},
			{path: "subnetIds", value: []any{}},
			{path: "amiId", value: oldImage},
			{path: "scalingConfiguration", value: object{"minInstanceCount": 2, "maxInstanceCount": 1}, where: "scalingConfiguration.minInstanceCount"},
			{path: "scalingConfiguration", value: object{"maxInstanceCount": 1}, where: "scalingConfiguration.minInstanceCount"},
			{path: "scalingConfiguration", value: object{"minInstanceCount": 0, "maxInstanceCount": 31}, code: tooMany, where: "cluster"},
			{path: "spotOptions.allocationStrategy", value: "lowest-price", where: "spotOptions"},
			{path: "nodeLifecycleActions", value: object{"stages": object{"nodeBootstrapped": slices.Repeat(script, 21)}}, where: "nodeLifecycleActions.stages.nodeBootstrapped", says: "1 to 20"},
			{path: slurmIn + "scaleDownIdleTimeInSeconds", value: 0},
			{path: slurmIn + "gresCustomSettings", value: []any{object{"Name": "gpu"}}},
			{path: slurmIn + "slurmCustomSettings", value: unknownSetting, where: slurmIn + "slurmCustomSettings[0]"},
			{path: "purchaseOption", value: "CAPACITY_BLOCK"},
		}},
		{"DeleteComputeNodeGroup", object{"clusterIdentifier": cluster, "computeNodeGroupIdentifier": group}, []wrong{
			{path: "computeNodeGroupIdentifier", value: group, code: conflict, where: "computenodegroup", says: "queue"},
			{path: "computeNodeGroupIdentifier", value: "nobody", code: notFound, where: "computenodegroup"},
		}},
		{"CreateQueue", queueIn(cluster, "fresh", group), []wrong{
			{path: "queueName", value: absent{}},
			{path: "queueName", value: "ab"},
			{path: "queueName", value: strings.Repeat("a", 26)},
			{path: "queueName", value: "a.b"},
			{path: "queueName", value: "default"},
			{path: "queueName", value: "DEFAULT"},
			{path: "queueName", value: "queue", code: conflict, where: "queue"},
			{path: "clusterIdentifier", value: "nobody", code: notFound, where: "cluster"},
			{path: "computeNodeGroupConfigurations", value: []any{object{}}, where: "computeNodeGroupConfigurations[0].computeNodeGroupId"},
			{path: "computeNodeGroupConfigurations", value: []any{object{"computeNodeGroupId": "pcs_0000000000"}}, code: notFound, where: "computenodegroup"},
			{path: "computeNodeGroupConfigurations", value: []any{object{"computeNodeGroupId": "group"}}, says: group},
			{path: "computeNodeGroupConfigurations", value: []any{object{"computeNodeGroupId": group}, object{"computeNodeGroupId": group}}, where: "computeNodeGroupConfigurations[1].computeNodeGroupId"},
			{path: slurmIn + "slurmCustomSettings", value: unknownSetting, where: slurmIn + "slurmCustomSettings[0]"},
			{path: "tags", value: object{}},
			{path: "clientToken", value: "short"},
		}},
		{"UpdateQueue", object{"clusterIdentifier": cluster, "queueIdentifier": queue}, []wrong{
			{path: "queueIdentifier", value: "nobody", code: notFound, where: "queue"},
			{path: "queueName", value: "other"},
			{path: "computeNodeGroupConfigurations", value: []any{object{"computeNodeGroupId": "pcs_0000000000"}}, code: notFound, where: "computenodegroup"},
			{path: slurmIn + "slurmCustomSettings", value: unknownSetting, where: slurmIn + "slurmCustomSettings[0]"},
		}},
		{"DeleteQueue", object{"clusterIdentifier": cluster, "queueIdentifier": queue}, []wrong{
			{path: "queueIdentifier", value: absent{}},
			{path: "queueIdentifier", value: "nobody", code: notFound, where: "queue"},
		}},
		{"GetQueue", object{"clusterIdentifier": cluster, "queueIdentifier": queue}, []wrong{
			{path: "queueIdentifier", value: group, code: notFound, where: "queue"},
			{path: "clusterIdentifier", value: "nobody", code: notFound, where: "cluster"},
		}},
		{"ListClusters", object{}, []wrong{
			{path: "maxResults", value: 101},
			{path: "maxResults", value: -1},
			{path: "maxResults", value: "10"},
			{path: "nextToken", value: "garbage", code: "InvalidToken", where: "-"},
		}},
		{"ListQueues", object{"clusterIdentifier": cluster}, []wrong{
			{path: "clusterIdentifier", value: absent{}},
			{path: "clusterIdentifier", value: "nobody", code: notFound, where: "cluster"},
			{path: "maxResults", value: 101},
		}},
		{"ListComputeNodeGroups", object{"clusterIdentifier": cluster}, []wrong{
			{path: "maxResults", value: 101},
			{path: "nextToken", value: "garbage", code: "InvalidToken", where: "-"},
		}},
		{"TagResource", object{"resourceArn": f.arn("cluster/" + cluster), "tags": object{"a": "b"}}, []wrong{
			{path: "resourceArn", value: absent{}},
			{path: "resourceArn", value: cluster},
			{path: "resourceArn", value: "arn:aws:s3:::bucket"},
			{path: "resourceArn", value: f.arn("cluster/pcs_0000000000"), code: notFound, where: "resource"},
			{path: "resourceArn", value: strings.Replace(f.arn("cluster/"+cluster), awsapitest.Account, "999999999999", 1), code: notFound, where: "resource"},
			{path: "resourceArn", value: strings.Replace(f.arn("cluster/"+cluster), awsapitest.Region, "us-east-1", 1), code: notFound, where: "resource"},
			{path: "resourceArn", value: f.arn("cluster/" + cluster + "/queue/" + group), code: notFound, where: "resource"},
			{path: "tags", value: absent{}},
			{path: "tags", value: object{}},
			{path: "tags", value: many(201)},
			{path: "tags", value: object{"aws:x": "v"}},
		}},
		{"UntagResource", object{"resourceArn": f.arn("cluster/" + cluster), "tagKeys": []any{"a"}}, []wrong{
			{path: "resourceArn", value: "x"},
			{path: "tagKeys", value: absent{}},
			{path: "tagKeys", value: []any{}},
			{path: "tagKeys", value: []any{"a", strings.Repeat("k", 129)}, where: "tagKeys[1]"},
			{path: "resourceArn", value: f.arn("cluster/pcs_0000000000"), code: notFound, where: "resource"},
		}},
		{"ListTagsForResource", object{"resourceArn": f.arn("cluster/" + cluster)}, []wrong{
			{path: "resourceArn", value: absent{}},
			{path: "resourceArn", value: f.arn("cluster/" + cluster + "/computenodegroup/pcs_0000000000"), code: notFound, where: "resource"},
		}},
		{"RegisterComputeNodeGroupInstance", object{"clusterIdentifier": cluster, "bootstrapId": "b"}, []wrong{
			{path: "bootstrapId", value: absent{}},
			{path: "bootstrapId", value: ""},
			{path: "bootstrapId", value: "a b"},
			{path: "bootstrapId", value: strings.Repeat("x", 1001)},
			{path: "bootstrapId", value: "b", code: "AccessDeniedException", where: "-"}, // of a person
		}},
	} {
		for _, w := range tt.all {
			in := clone(tt.base)
			put(in, w.path, w.value)
			_, err := f.try(tt.op, in)
			name := tt.op + " with " + w.path + " = " + short(w.value)
			if w.code == "" {
				w.code = validation
			}
			if w.where == "" {
				w.where = w.path
			}
			switch {
			case err == nil:
				t.Errorf("%s is accepted, want %s", name, w.code)
				f.settle()
			case err.Code != w.code || err.Status != http.StatusBadRequest:
				t.Errorf("%s: %d %v, want %s with status 400", name, err.Status, err, w.code)
			case err.Message == "" || !strings.Contains(err.Message, w.says):
				t.Errorf("%s: the message %q does not say %q", name, err.Message, w.says)
			case w.code == validation && (err.Fields["reason"] != "fieldValidationFailed" || !slices.Contains(fields(err), w.where)):
				t.Errorf("%s: fields %v, reason %v, want the field %s", name, fields(err), err.Fields["reason"], w.where)
			case w.code == conflict || w.code == notFound:
				if err.Fields["resourceType"] != w.where || err.Fields["resourceId"] == "" || err.Fields["resourceId"] == nil {
					t.Errorf("%s: resource %v %v, want a %s", name, err.Fields["resourceType"], err.Fields["resourceId"], w.where)
				}
			case w.code == tooMany:
				if err.Fields["serviceCode"] != "pcs" || err.Fields["quotaCode"] == nil || err.Fields["resourceType"] != w.where {
					t.Errorf("%s: fields %v", name, err.Fields)
				}
			}
		}
	}
	if c, g, q := f.count(); c != 1 || g != 2 || q != 1 {
		t.Errorf("after all the refusals there are %d clusters, %d groups, %d queues", c, g, q)
	}
	got := f.must("GetComputeNodeGroup", object{"clusterIdentifier": cluster, "computeNodeGroupIdentifier": other})
	if at(got, "computeNodeGroup.status") != "ACTIVE" {
		t.Errorf("a refused call changed the group: %v", got)
	}
}

func (f *fixture) arn(path string) string {
	return "arn:aws:pcs:" + awsapitest.Region + ":" + awsapitest.Account + ":" + path
}

func short(v any) string {
	if v == (absent{}) {
		return "(absent)"
	}
	doc, _ := jsonMarshal(v)
	if len(doc) > 60 {
		doc = doc[:60] + "..."
	}
	return doc
}

func TestAllMistakesAreToldAtOnce(t *testing.T) {
	f := newFixture(t)
	_, err := f.try("CreateCluster", object{"clusterName": "a_b", "size": "HUGE", "scheduler": object{"type": "SGE", "version": "1"}, "clientToken": "x"})
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{"clusterName", "size", "scheduler.type", "scheduler.version", "networking", "clientToken"} {
		if !slices.Contains(fields(err), want) || !strings.Contains(err.Message, want) {
			t.Errorf("the field %s is not named: %v %q", want, fields(err), err.Message)
		}
	}
}

// A request of a megabyte has room for a hundred thousand mistakes: the answer
// has not.
func TestManyMistakesAreToldShortly(t *testing.T) {
	f := newFixture(t)
	cluster, group, _ := f.demo()
	list := func(v any, n int) []any { return slices.Repeat([]any{v}, n) }
	for _, tt := range []struct {
		op, path string
		in       object
		value    any
	}{
		{"UntagResource", "tagKeys", object{"resourceArn": f.arn("cluster/" + cluster)}, list("", 200_000)},
		{"TagResource", "tags", object{"resourceArn": f.arn("cluster/" + cluster)}, func() object {
			m := object{}
			for i := range 40_000 {
				m[fmt.Sprintf("aws:%d", i)] = ""
			}
			return m
		}()},
		{"CreateCluster", "networking.subnetIds", f.clusterIn("xyz"), list("", 200_000)},
		{"CreateCluster", "networking.securityGroupIds", f.clusterIn("xyz"), list("", 200_000)},
		{"CreateCluster", "clusterName", f.clusterIn("xyz"), strings.Repeat("ü", 400_000)},
		{"CreateCluster", "size", f.clusterIn("xyz"), strings.Repeat("\x01", 150_000)},
		{"CreateCluster", "slurmConfiguration.slurmCustomSettings", f.clusterIn("xyz"), list(object{"parameterName": "x", "parameterValue": ""}, 20_000)},
		{"CreateComputeNodeGroup", "subnetIds", f.groupIn(cluster, "xyz"), list(f.subnet, 30_000)},
		{"CreateComputeNodeGroup", "instanceConfigs", f.groupIn(cluster, "xyz"), list(object{"instanceType": "t3.micro"}, 30_000)},
		{"CreateComputeNodeGroup", "instanceConfigs", f.groupIn(cluster, "xyz"), list(object{}, 200_000)},
		{"CreateComputeNodeGroup", "nodeLifecycleActions.stages.nodeReady", f.groupIn(cluster, "xyz"), list(object{}, 200_000)},
		{"CreateQueue", "computeNodeGroupConfigurations", queueIn(cluster, "xyz"), list(object{"computeNodeGroupId": group}, 20_000)},
		{"UpdateQueue", "slurmConfiguration.slurmCustomSettings", object{"clusterIdentifier": cluster, "queueIdentifier": "queue"}, list(object{}, 200_000)},
	} {
		put(tt.in, tt.path, tt.value)
		_, err := f.try(tt.op, tt.in)
		if err == nil || err.Code != validation {
			t.Errorf("%s with %s: %.300v", tt.op, tt.path, err)
			continue
		}
		doc, _ := jsonMarshal(err)
		if !strings.HasPrefix(fields(err)[0], tt.path) || len(fields(err)) > 101 || len(doc) > 200_000 {
			t.Errorf("%s with %s: %d fields, the first is %s, %d bytes", tt.op, tt.path, len(fields(err)), fields(err)[0], len(doc))
		}
	}
}

func TestUnknownOperationsAndDocuments(t *testing.T) {
	f := newFixture(t)
	_, err := f.try("CreateClusters", object{})
	if err == nil || err.Code != validation || err.Fields["reason"] != "unknownOperation" || err.Status != http.StatusBadRequest {
		t.Errorf("an unknown operation: %+v", err)
	}
	for _, in := range []any{[]any{}, "text", 7} {
		_, err := f.try("ListClusters", in)
		if err == nil || err.Code != validation || err.Fields["reason"] != "cannotParse" {
			t.Errorf("the document %v: %+v", in, err)
		}
	}
}

// Every operation asks for its own permission.
func TestPermissionsOfAllOperations(t *testing.T) {
	f := newFixture(t)
	nobody, err := f.Keys.IssueSession(t.Context(), awsapi.Caller{Account: awsapitest.Account, ARN: "arn:aws:iam::1:user/n", UserID: "n", Allow: []string{"s3:*"}}, keyLife)
	if err != nil {
		t.Fatal(err)
	}
	for _, op := range f.service.API().Operations {
		if _, err := f.tryWith(f.ClientOf(nobody), op.Name, object{}); err == nil || err.Code != "AccessDeniedException" || !strings.Contains(err.Message, "pcs:"+op.Name) {
			t.Errorf("%s without permission: %v", op.Name, err)
		}
		only, err := f.Keys.IssueSession(t.Context(), awsapi.Caller{Account: awsapitest.Account, ARN: "arn:aws:iam::1:user/n", UserID: "n", Allow: []string{op.Permission}}, keyLife)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.tryWith(f.ClientOf(only), op.Name, object{}); err != nil && err.Code == "AccessDeniedException" && op.Name != "RegisterComputeNodeGroupInstance" {
			t.Errorf("%s with its permission: %v", op.Name, err)
		}
	}
}

func TestRefusedWhileBusy(t *testing.T) {
	f := newFixture(t)
	cluster, group, queue := f.demo()
	ofCluster := object{"clusterIdentifier": cluster}
	ofGroup := object{"clusterIdentifier": cluster, "computeNodeGroupIdentifier": group}
	ofQueue := object{"clusterIdentifier": cluster, "queueIdentifier": queue}
	for _, tt := range []struct {
		busy   string
		status fleet.Status
		op     string
		in     object
		kind   string // "" for no error
	}{
		{cluster, fleet.Updating, "UpdateCluster", ofCluster, "cluster"},
		{cluster, fleet.CreateFailed, "UpdateCluster", ofCluster, "cluster"},
		{cluster, fleet.UpdateFailed, "UpdateCluster", ofCluster, ""},
		{cluster, fleet.Updating, "CreateComputeNodeGroup", f.groupIn(cluster, "fresh"), "cluster"},
		{cluster, fleet.Creating, "CreateComputeNodeGroup", f.groupIn(cluster, "fresh"), "cluster"},
		{cluster, fleet.Deleting, "CreateQueue", queueIn(cluster, "fresh", group), "cluster"},
		{cluster, fleet.Updating, "UpdateComputeNodeGroup", ofGroup, "cluster"},
		{cluster, fleet.Updating, "UpdateQueue", ofQueue, "cluster"},
		{group, fleet.Creating, "UpdateCluster", ofCluster, "computenodegroup"},
		{group, fleet.Updating, "UpdateCluster", ofCluster, "computenodegroup"},
		{group, fleet.Creating, "CreateQueue", queueIn(cluster, "fresh", group), "computenodegroup"},
		{group, fleet.Updating, "UpdateComputeNodeGroup", ofGroup, "computenodegroup"},
		{group, fleet.Deleting, "UpdateComputeNodeGroup", ofGroup, "computenodegroup"},
		{group, fleet.UpdateFailed, "UpdateComputeNodeGroup", ofGroup, ""},
		{queue, fleet.Creating, "UpdateCluster", ofCluster, "queue"},
		{queue, fleet.Updating, "UpdateQueue", ofQueue, "queue"},
		{queue, fleet.Deleting, "UpdateQueue", ofQueue, "queue"},
		{queue, fleet.UpdateFailed, "UpdateQueue", ofQueue, ""},
		{queue, fleet.Deleting, "DeleteQueue", ofQueue, ""}, // once more is no error
	} {
		f.setStatus(tt.busy, tt.status)
		_, err := f.try(tt.op, tt.in)
		switch {
		case tt.kind == "" && err != nil:
			t.Errorf("%s while %s: %v", tt.op, tt.status, err)
		case tt.kind != "" && (err == nil || err.Code != conflict || err.Fields["resourceType"] != tt.kind || err.Fields["resourceId"] != tt.busy):
			t.Errorf("%s while the %s is %s: %v, want a conflict about it", tt.op, tt.kind, tt.status, err)
		case tt.kind != "" && !strings.Contains(err.Message, string(tt.status)):
			t.Errorf("%s while %s: the message %q does not say so", tt.op, tt.status, err.Message)
		}
		for _, id := range []string{cluster, group, queue} {
			f.setStatus(id, fleet.Active)
		}
	}
}

func TestQuotas(t *testing.T) {
	f := newFixture(t)
	first := at(f.must("CreateCluster", f.clusterIn("cluster-0")), "cluster.id").(string)
	_, err := f.try("CreateCluster", f.clusterIn("cluster-1"))
	if err == nil || err.Code != tooMany || err.Fields["resourceId"] != first || !strings.Contains(err.Message, "CREATING") {
		t.Errorf("a second cluster while one is CREATING: %v", err)
	}
	f.settle()
	for n := 1; n < 5; n++ {
		f.must("CreateCluster", f.clusterIn("cluster-"+string(rune('0'+n))))
		f.settle()
	}
	if _, err := f.try("CreateCluster", f.clusterIn("cluster-5")); err == nil || err.Code != tooMany {
		t.Errorf("a sixth cluster: %v", err)
	}
	// Another region has quotas of its own.
	abroad := f.Client()
	abroad.Region = "us-east-1"
	in := f.clusterIn("cluster-0")
	in["networking"] = object{"subnetIds": []any{f.abroad.ID}}
	if _, err := f.tryWith(abroad, "CreateCluster", in); err != nil {
		t.Errorf("a cluster in another region: %v", err)
	}
	var groups []string
	for n := range 10 {
		g := f.groupIn(first, "group-"+string(rune('0'+n)))
		put(g, "scalingConfiguration.maxInstanceCount", 3)
		groups = append(groups, at(f.must("CreateComputeNodeGroup", g), "computeNodeGroup.id").(string))
		f.settle()
	}
	g := f.groupIn(first, "group-x")
	put(g, "scalingConfiguration.maxInstanceCount", 0)
	if _, err := f.try("CreateComputeNodeGroup", g); err == nil || err.Code != tooMany || err.Fields["resourceType"] != "computenodegroup" {
		t.Errorf("an eleventh group: %v", err)
	}
	// 30 of 32 instances: one group may grow by 2, not by 3.
	grow := func(most int) *awsapi.Error {
		_, err := f.try("UpdateComputeNodeGroup", object{
			"clusterIdentifier": first, "computeNodeGroupIdentifier": groups[0],
			"scalingConfiguration": object{"minInstanceCount": 0, "maxInstanceCount": most},
		})
		f.settle()
		return err
	}
	if err := grow(6); err == nil || err.Code != tooMany {
		t.Errorf("33 instances in a SMALL cluster: %v", err)
	}
	if err := grow(5); err != nil {
		t.Errorf("32 instances in a SMALL cluster: %v", err)
	}
	for n := range 10 {
		f.must("CreateQueue", queueIn(first, "queue-"+string(rune('0'+n)), groups[0]))
		f.settle()
	}
	if _, err := f.try("CreateQueue", queueIn(first, "queue-x", groups[0])); err == nil || err.Code != tooMany || err.Fields["resourceType"] != "queue" {
		t.Errorf("an eleventh queue: %v", err)
	}
	f.must("TagResource", object{"resourceArn": f.arn("cluster/" + first), "tags": many(199)})
	if _, err := f.try("TagResource", object{"resourceArn": f.arn("cluster/" + first), "tags": object{"p": "", "q": ""}}); err == nil || err.Code != tooMany {
		t.Errorf("201 tags on one resource: %v", err)
	}
	f.View(t, func(tx *store.Tx) error {
		c, err := fleet.Clusters.Get(tx, first)
		if len(c.Tags) != 199 {
			t.Errorf("%d tags", len(c.Tags))
		}
		return err
	})
}

// The sum of all groups' maxima is what counts, by size of the cluster.
func TestQuotaOfInstancesBySize(t *testing.T) {
	for size, most := range map[string]int{"SMALL": 32, "MEDIUM": 512, "LARGE": 2048} {
		f := newFixture(t)
		in := f.clusterIn("cluster")
		in["size"] = size
		cluster := at(f.must("CreateCluster", in), "cluster.id").(string)
		f.settle()
		try := func(name string, n int) *awsapi.Error {
			g := f.groupIn(cluster, name)
			put(g, "scalingConfiguration.maxInstanceCount", n)
			_, err := f.try("CreateComputeNodeGroup", g)
			f.settle()
			return err
		}
		if err := try("too-large", most+1); err == nil || err.Code != tooMany || err.Fields["resourceId"] != cluster {
			t.Errorf("%d instances in a %s cluster: %v", most+1, size, err)
		}
		if err := try("most", most-1); err != nil {
			t.Errorf("%d instances in a %s cluster: %v", most-1, size, err)
		}
		if err := try("one-too-many", 2); err == nil || err.Code != tooMany {
			t.Errorf("%d instances in two groups of a %s cluster: %v", most+1, size, err)
		}
		if err := try("last", 1); err != nil {
			t.Errorf("%d instances in two groups of a %s cluster: %v", most, size, err)
		}
	}
}

// What runs out is told as what it is, not as a failure of the server.
func TestNothingLeft(t *testing.T) {
	f := newFixture(t)
	f.Update(t, func(tx *store.Tx) error {
		small := f.subnets[0]
		small.ID, small.CIDR = "subnet-0000000000000000e", "10.77.16.0/30"
		return fleet.Subnets.Put(tx, small)
	})
	in := f.clusterIn("cluster")
	put(in, "networking.subnetIds", []any{"subnet-0000000000000000e"})
	if _, err := f.try("CreateCluster", in); err == nil || err.Code != validation || !slices.Contains(fields(err), "networking.subnetIds[0]") || !strings.Contains(err.Message, "no free address") {
		t.Errorf("a cluster in a full subnet: %v", err)
	}
	far := f.Client()
	var last *awsapi.Error
	for n := 1; n < 20 && last == nil; n++ {
		far.Region = fmt.Sprintf("sa-somewhere-%d", n)
		if _, err := f.tryWith(far, "DeleteCluster", object{"clusterIdentifier": "nobody"}); err.Code != notFound {
			last = err
		}
	}
	if last == nil || last.Code != validation || last.Status != http.StatusBadRequest || !strings.Contains(last.Message, "address pool") {
		t.Errorf("more regions than there is room for: %v", last)
	}
}

// Who gives nodes a role must be allowed to.
func TestPassRole(t *testing.T) {
	f := newFixture(t)
	cluster, group, _ := f.demo()
	key, err := f.Keys.IssueSession(t.Context(), awsapi.Caller{Account: awsapitest.Account, ARN: "arn:aws:iam::1:user/n", UserID: "n", Allow: []string{"pcs:*"}}, keyLife)
	if err != nil {
		t.Fatal(err)
	}
	ofGroup := object{"clusterIdentifier": cluster, "computeNodeGroupIdentifier": group}
	with := clone(ofGroup)
	with["iamInstanceProfileArn"] = f.profile
	for op, in := range map[string]object{"CreateComputeNodeGroup": f.groupIn(cluster, "fresh"), "UpdateComputeNodeGroup": with} {
		if _, err := f.tryWith(f.ClientOf(key), op, in); err == nil || err.Code != "AccessDeniedException" || !strings.Contains(err.Message, "iam:PassRole on resource: arn:aws:iam::") {
			t.Errorf("%s: %v", op, err)
		}
	}
	if _, err := f.tryWith(f.ClientOf(key), "UpdateComputeNodeGroup", ofGroup); err != nil {
		t.Errorf("without a profile: %v", err)
	}
}

// Only a newer release may follow, and that is for later.
func TestUpdateOfTheVersion(t *testing.T) {
	f := newFixture(t)
	in := f.clusterIn("old")
	put(in, "scheduler.version", "24.11")
	id := at(f.must("CreateCluster", in), "cluster.id").(string)
	f.settle()
	for version, says := range map[string]string{"24.05": "older", "24.11": "already", "26.05": "not supported by this release", "24.11.7": "is not one of"} {
		_, err := f.try("UpdateCluster", object{"clusterIdentifier": id, "scheduler": object{"version": version}})
		if err == nil || err.Code != validation || !slices.Contains(fields(err), "scheduler.version") || !strings.Contains(err.Message, says) {
			t.Errorf("to %s: %v, want %q", version, err, says)
		}
	}
}

// No image, no cluster: the answer says how to build one.
func TestVersionWithoutAnImage(t *testing.T) {
	f := newFixture(t)
	in := f.clusterIn("cluster")
	put(in, "scheduler.version", "25.05")
	_, err := f.try("CreateCluster", in)
	if err == nil || err.Code != validation || !slices.Contains(fields(err), "scheduler.version") {
		t.Fatalf("%v", err)
	}
	f.service.Buildable = []string{"25.05"}
	if _, err := f.try("CreateCluster", in); err == nil || !strings.Contains(err.Message, "openpcs image build 25.05") {
		t.Errorf("a buildable version: %v", err)
	}
	put(in, "scheduler.version", "24.11")
	if _, err := f.try("CreateCluster", in); err != nil {
		t.Errorf("a version with an image: %v", err)
	}
}

// unknownSetting is allowed at no level.
var unknownSetting = []any{object{"parameterName": "SlurmUser", "parameterValue": "root"}}

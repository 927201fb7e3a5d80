package logs_test

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/cloudwatchlogs"
	"github.com/aws/aws-sdk-go-v2/service/cloudwatchlogs/types"

	"github.com/openpcs/openpcs/internal/awsapi"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/logs"
	"github.com/openpcs/openpcs/internal/store"
)

// TestFlowOfTheArticle makes its calls with the official client, and gets its
// answers.
func TestFlowOfTheArticle(t *testing.T) {
	f := newFixture(t)
	c, ctx := f.client(), t.Context()
	fail := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	_, err := c.CreateLogGroup(ctx, &sdk.CreateLogGroupInput{LogGroupName: aws.String("/aws/pcs/scheduler-logs")})
	fail(err)
	dest, err := c.PutDeliveryDestination(ctx, &sdk.PutDeliveryDestinationInput{
		Name: aws.String("pcs-scheduler-logs-dest"), DeliveryDestinationType: types.DeliveryDestinationTypeCwl,
		DeliveryDestinationConfiguration: &types.DeliveryDestinationConfiguration{DestinationResourceArn: aws.String(arn("log-group:/aws/pcs/scheduler-logs"))},
	})
	fail(err)
	if d := dest.DeliveryDestination; *d.Arn != arn("delivery-destination:pcs-scheduler-logs-dest") || d.DeliveryDestinationType != "CWL" || d.OutputFormat != "" {
		t.Errorf("destination: %+v", d)
	}
	src, err := c.PutDeliverySource(ctx, &sdk.PutDeliverySourceInput{
		Name: aws.String("pcs-scheduler-logs-source"), ResourceArn: aws.String(clusterARN(newCluster)), LogType: aws.String("PCS_SCHEDULER_LOGS"),
	})
	fail(err)
	if s := src.DeliverySource; *s.Arn != arn("delivery-source:pcs-scheduler-logs-source") || *s.Service != "pcs" || *s.LogType != "PCS_SCHEDULER_LOGS" ||
		len(s.ResourceArns) != 1 || s.ResourceArns[0] != clusterARN(newCluster) || s.Status != "" {
		t.Errorf("source: %+v", s)
	}
	_, err = c.CreateDelivery(ctx, &sdk.CreateDeliveryInput{DeliverySourceName: aws.String("pcs-scheduler-logs-source"), DeliveryDestinationArn: dest.DeliveryDestination.Arn})
	fail(err)

	bucket, err := c.PutDeliveryDestination(ctx, &sdk.PutDeliveryDestinationInput{
		Name: aws.String("pcs-scheduler-audit-logs-dest"), DeliveryDestinationType: types.DeliveryDestinationTypeS3, OutputFormat: types.OutputFormatJson,
		DeliveryDestinationConfiguration: &types.DeliveryDestinationConfiguration{DestinationResourceArn: aws.String("arn:aws:s3:::audit")},
	})
	fail(err)
	_, err = c.PutDeliverySource(ctx, &sdk.PutDeliverySourceInput{
		Name: aws.String("pcs-scheduler-audit-logs-source"), ResourceArn: aws.String(clusterARN(newCluster)), LogType: aws.String("PCS_SCHEDULER_AUDIT_LOGS"),
	})
	fail(err)
	made, err := c.CreateDelivery(ctx, &sdk.CreateDeliveryInput{
		DeliverySourceName: aws.String("pcs-scheduler-audit-logs-source"), DeliveryDestinationArn: bucket.DeliveryDestination.Arn,
	})
	fail(err)
	d := made.Delivery
	fields := "resource_id,resource_type,event_timestamp,log_level,log_name,scheduler_type,scheduler_major_version,scheduler_patch_version,node_type,log_type,message"
	if !regexp.MustCompile(`^[A-Za-z0-9]{16}$`).MatchString(*d.Id) || d.DeliveryDestinationType != "S3" || strings.Join(d.RecordFields, ",") != fields ||
		*d.S3DeliveryConfiguration.SuffixPath != "{region}/scheduler_audit/{log_name}/{yyyy}/{MM}/{dd}/{HH}/" || *d.S3DeliveryConfiguration.EnableHiveCompatiblePath {
		t.Errorf("delivery: %+v", d)
	}
	got, err := c.GetDelivery(ctx, &sdk.GetDeliveryInput{Id: d.Id})
	fail(err)
	if *got.Delivery.Arn != arn("delivery:"+*d.Id) {
		t.Errorf("got %s", *got.Delivery.Arn)
	}

	f.View(t, func(tx *store.Tx) error {
		links, err := logs.Links(tx)
		if err != nil || len(links) != 2 {
			t.Fatalf("links: %+v, %v", links, err)
		}
		one, two := links[0], links[1]
		if one.Source.Cluster() != newCluster || one.Destination.Resource() != "/aws/pcs/scheduler-logs" || one.Destination.Format() != "plain" || one.Delivery.S3 != nil {
			t.Errorf("first link: %+v", one)
		}
		if two.Source.LogType != logs.SchedulerAuditLogs || two.Destination.Resource() != "audit" || two.Destination.Format() != "json" || two.Delivery.S3 == nil {
			t.Errorf("second link: %+v", two)
		}
		return nil
	})
	f.must("DeleteDelivery", object{"id": *d.Id})
	f.refuses("GetDelivery", object{"id": *d.Id}, "ResourceNotFoundException", "Requested Delivery does not exist in this account.")
}

// TestL12_AuditLogNeedsSlurm2511: before, audit records are in the scheduler's
// log, and asking for their own is an error that says so.
func TestL12_AuditLogNeedsSlurm2511(t *testing.T) {
	f := newFixture(t)
	in := object{"name": "s", "resourceArn": clusterARN(oldCluster), "logType": "PCS_SCHEDULER_AUDIT_LOGS"}
	f.refuses("PutDeliverySource", in, "ValidationException", "needs a cluster with Slurm 25.11 or later, and pcs_oldcluster has 24.11")
	for _, version := range []string{"25.05", "25.11", "26.05"} {
		f.Update(t, func(tx *store.Tx) error {
			c, err := fleet.Clusters.Get(tx, oldCluster)
			c.Version = version
			return errors.Join(err, fleet.Clusters.Put(tx, c))
		})
		if version < "25.11" {
			f.refuses("PutDeliverySource", in, "ValidationException", "and pcs_oldcluster has "+version)
			continue
		}
		f.must("PutDeliverySource", in)
		f.must("DeleteDeliverySource", object{"name": "s"})
	}
	for _, logType := range []string{"PCS_SCHEDULER_LOGS", "PCS_JOBCOMP_LOGS", "PCS_SCALING_LOGS"} {
		f.source(logType, oldCluster, logType)
	}
}

func TestRefusalsOfDeliveries(t *testing.T) {
	f := newFixture(t)
	const v, conflict, missing = "ValidationException", "ConflictException", "ResourceNotFoundException"
	f.group("g")
	f.source("src", newCluster, "PCS_SCHEDULER_LOGS")
	f.source("other", newCluster, "PCS_SCHEDULER_AUDIT_LOGS")
	cwl, s3, s3b := f.destination("cwl", arn("log-group:g:*")), f.destination("s3", "arn:aws:s3:::bucket"), f.destination("s3b", "arn:aws:s3:::bucket2")
	nowhere := f.destination("nowhere", arn("log-group:none"))
	id := f.delivery("src", s3)["id"].(string)

	src := object{"name": "new", "resourceArn": clusterARN(newCluster), "logType": "PCS_JOBCOMP_LOGS"}
	dest := object{"name": "new", "deliveryDestinationConfiguration": object{"destinationResourceArn": "arn:aws:s3:::bucket"}}
	to := func(resource string) object {
		return with(dest, object{"deliveryDestinationConfiguration": object{"destinationResourceArn": resource}})
	}
	link := object{"deliverySourceName": "src", "deliveryDestinationArn": cwl}
	other := object{"deliverySourceName": "other", "deliveryDestinationArn": s3}
	tests := []struct {
		op         string
		in         object
		code, says string
	}{
		{"PutDeliverySource", object{}, v, "3 validation errors detected: name: is required; logType: is required; resourceArn"},
		{"PutDeliverySource", with(src, object{"name": "no spaces"}), v, "name:"},
		{"PutDeliverySource", with(src, object{"name": strings.Repeat("a", 61)}), v, "has 61 characters, 1 to 60"},
		{"PutDeliverySource", with(src, object{"resourceArn": newCluster}), v, "is not the ARN of a cluster"},
		{"PutDeliverySource", with(src, object{"resourceArn": "arn:aws:cloudfront::123456789012:distribution/x"}), missing, "Cannot access provided service."},
		{"PutDeliverySource", with(src, object{"resourceArn": clusterARN("pcs_none")}), missing, "there is no cluster pcs_none"},
		{"PutDeliverySource", with(src, object{"resourceArn": strings.Replace(clusterARN(newCluster), "ap-northeast-1", "us-east-1", 1)}), v, "must be in the account and region"},
		{"PutDeliverySource", with(src, object{"resourceArn": clusterARN(newCluster + "/queue/q")}), v, "logs are those of clusters"},
		{"PutDeliverySource", with(src, object{"logType": "ACCESS_LOGS"}), v, "This service is not allowed for this LogSource. The log types of pcs are PCS_SCHEDULER_LOGS,"},
		{"PutDeliverySource", with(src, object{"logType": "PCS_SCHEDULER_LOGS"}), conflict, "This ResourceId has already been used in another Delivery Source in this account. It is src"},
		{"PutDeliverySource", with(src, object{"deliverySourceConfiguration": object{"a": "b"}}), v, "have no settings"},
		{"PutDeliverySource", with(src, object{"tags": object{"aws:x": "y"}}), v, "reserved"},
		{"PutDeliverySource", with(src, object{"name": "src", "tags": object{"a": "b"}}), conflict, "Tags can only be provided when a resource is being created, not updated."},
		{"PutDeliverySource", with(src, object{"name": "src", "resourceArn": clusterARN(oldCluster)}), conflict, "with new ResourceId is not allowed"},
		{"PutDeliverySource", with(src, object{"name": "src"}), conflict, "cannot change while the delivery " + id},
		{"PutDeliverySource", with(src, object{"kmsKey": "x"}), v, "kmsKey is not known"},
		{"GetDeliverySource", object{"name": "none"}, missing, "Requested Delivery Source does not exist in this account."},
		{"DeleteDeliverySource", object{"name": "none"}, missing, "Requested Delivery Source"},
		{"DeleteDeliverySource", object{"name": "src"}, conflict, "the delivery " + id + " uses it"},
		{"DescribeDeliverySources", object{"limit": 51}, v, "limit: is 51, 1 to 50"},
		{"DescribeDeliverySources", object{"nextToken": "x"}, v, "pagination token"},

		{"PutDeliveryDestination", with(dest, object{"deliveryDestinationConfiguration": nil}), v, "destinationResourceArn: is required"},
		{"PutDeliveryDestination", to("bucket"), v, "is none of a log group (arn:aws:logs:ap-northeast-1:123456789012:log-group:NAME)"},
		{"PutDeliveryDestination", to("arn:aws:s3:::bucket/path"), v, "name the bucket alone"},
		{"PutDeliveryDestination", to("arn:aws:s3:::.."), v, "is none of a log group"},
		{"PutDeliveryDestination", to("arn:aws:s3:::a..b"), v, "is none of a log group"},
		{"PutDeliveryDestination", to("arn:aws:s3:::My Bucket?acl"), v, "is none of a log group"},
		{"PutDeliveryDestination", to("arn:aws:s3:::bucket\x1b[31m"), v, "is none of a log group"},
		{"PutDeliveryDestination", to("arn:aws:firehose:ap-northeast-1:123456789012:deliverystream/a/b"), v, "is none of a log group"},
		{"PutDeliveryDestination", to("arn:aws:logs:us-east-1:123456789012:log-group:g"), v, "must be in the account and region"},
		{"PutDeliveryDestination", to("arn:aws:firehose:ap-northeast-1:210987654321:deliverystream/x"), v, "stream of Firehose must be in the account and region"},
		{"PutDeliveryDestination", with(dest, object{"deliveryDestinationType": "CWL"}), v, `is CWL, but "arn:aws:s3:::bucket" is a destination of the type S3`},
		{"PutDeliveryDestination", with(dest, object{"deliveryDestinationType": "s3"}), v, `1 validation error detected: deliveryDestinationType: "s3" is none of S3, CWL, FH`},
		{"PutDeliveryDestination", with(dest, object{"deliveryDestinationType": "XRAY"}), v, "does not deliver to X-Ray"},
		{"PutDeliveryDestination", with(dest, object{"outputFormat": "xml"}), v, `"xml" is none of json, plain, w3c, raw, parquet`},
		{"PutDeliveryDestination", with(dest, object{"outputFormat": "parquet"}), v, "writes json, plain, w3c to destinations of the type S3, not parquet"},
		{"PutDeliveryDestination", with(dest, object{"roleArn": "x"}), v, "needs no role"},
		{"PutDeliveryDestination", with(dest, object{"name": "s3", "tags": object{"a": "b"}}), conflict, "Tags can only"},
		{"PutDeliveryDestination", with(dest, object{"name": "s3", "outputFormat": "plain"}), v, "with new Output Format is not allowed"},
		{"PutDeliveryDestination", with(to(arn("log-group:g")), object{"name": "s3b"}), v, "of the type S3 with one of the type CWL is not allowed"},
		{"GetDeliveryDestination", object{"name": "none"}, missing, "Requested Delivery Destination does not exist in this account."},
		{"DeleteDeliveryDestination", object{"name": "s3"}, conflict, "the delivery " + id + " uses it"},
		{"PutDeliveryDestinationPolicy", object{"deliveryDestinationName": "s3", "deliveryDestinationPolicy": "x"}, v, "is not a policy document"},
		{"PutDeliveryDestinationPolicy", object{"deliveryDestinationName": "none", "deliveryDestinationPolicy": "{}"}, missing, "Requested Delivery Destination"},
		{"GetDeliveryDestinationPolicy", object{"deliveryDestinationName": "none"}, missing, "Requested Delivery Destination"},

		{"CreateDelivery", with(link, object{"deliverySourceName": "none"}), missing, "Requested Delivery Source does not exist in this account."},
		{"CreateDelivery", with(link, object{"deliveryDestinationArn": arn("delivery-destination:none")}), missing, "Requested Delivery Destination does not exist"},
		{"CreateDelivery", with(link, object{"deliveryDestinationArn": "cwl"}), missing, "Requested Delivery Destination does not exist"},
		{"CreateDelivery", with(link, object{"deliveryDestinationArn": s3}), conflict, "The specified Delivery already exists"},
		{"CreateDelivery", with(link, object{"deliveryDestinationArn": s3b}), conflict, "Delivery already exists for this Delivery Source with the same Delivery Destination Type."},
		{"CreateDelivery", with(link, object{"deliveryDestinationArn": nowhere}), missing, "aws logs create-log-group --log-group-name none"},
		{"CreateDelivery", with(link, object{"s3DeliveryConfiguration": object{}}), v, "is for destinations of the type S3"},
		{"CreateDelivery", with(other, object{"recordFields": []any{"message", "message"}}), v, `recordFields[1]: "message" is named twice`},
		{"CreateDelivery", with(other, object{"recordFields": []any{"fields"}}), v, `recordFields[0]: "fields" is none of the fields of PCS_SCHEDULER_AUDIT_LOGS: resource_id,`},
		{"CreateDelivery", with(other, object{"fieldDelimiter": ","}), v, "this destination has json"},
		{"CreateDelivery", with(link, object{"fieldDelimiter": "123456"}), v, "0 to 5 are allowed"},
		{"CreateDelivery", with(other, object{"s3DeliveryConfiguration": object{"suffixPath": "{cluster}/"}}), v, "{cluster} is none of the variables {account-id},"},
		{"CreateDelivery", with(other, object{"s3DeliveryConfiguration": object{"suffixPath": "{region}/a b/"}}), v, "is no path"},
		{"CreateDelivery", with(other, object{"s3DeliveryConfiguration": object{"suffixPath": "{region}//x/"}}), v, "is no path"},
		{"CreateDelivery", with(other, object{"s3DeliveryConfiguration": object{"suffixPath": "{region}/../"}}), v, "is no path"},
		{"CreateDelivery", with(other, object{"s3DeliveryConfiguration": object{"suffixPath": "{region/"}}), v, "without its counterpart"},
		{"GetDelivery", object{"id": "a-b"}, v, "id:"},
		{"DeleteDelivery", object{"id": "none"}, missing, "Requested Delivery does not exist in this account."},
		{"UpdateDeliveryConfiguration", object{"id": id, "recordFields": []any{"x"}}, v, "recordFields[0]"},
		{"UpdateDeliveryConfiguration", object{"id": "none"}, missing, "Requested Delivery"},
		{"DescribeConfigurationTemplates", object{"deliveryDestinationTypes": []any{"X"}}, v, "deliveryDestinationTypes"},
	}
	for _, tt := range tests {
		f.refuses(tt.op, tt.in, tt.code, tt.says)
	}
}

func TestUpdateOfADelivery(t *testing.T) {
	f := newProbed(t)
	f.source("src", newCluster, "PCS_SCHEDULER_LOGS")
	id := f.delivery("src", f.destination("s3", "arn:aws:s3:::bucket"))["id"]
	get := func() object { return f.must("GetDelivery", object{"id": id})["delivery"].(object) }
	f.must("UpdateDeliveryConfiguration", object{"id": id, "recordFields": []any{"message", "log_name"}})
	f.must("UpdateDeliveryConfiguration", object{"id": id, "s3DeliveryConfiguration": object{"suffixPath": "x/{yyyy}"}})
	f.must("UpdateDeliveryConfiguration", object{"id": id, "s3DeliveryConfiguration": object{"enableHiveCompatiblePath": true}})
	d := get()
	if got := fmt.Sprint(d["recordFields"], d["s3DeliveryConfiguration"]); got != "[message log_name] map[enableHiveCompatiblePath:true suffixPath:x/{yyyy}]" {
		t.Errorf("got %s", got)
	}
	// A destination moves, and its delivery with it, if where it goes can be written to.
	f.setProbe(func(l logs.Link) error {
		if l.Destination.Resource() == "closed" {
			return errors.New("its policy does not allow it")
		}
		return nil
	})
	move := func(bucket string) object {
		return object{"name": "s3", "deliveryDestinationConfiguration": object{"destinationResourceArn": "arn:aws:s3:::" + bucket}}
	}
	f.refuses("PutDeliveryDestination", move("closed"), "ValidationException", "The delivery destination s3 cannot be written to: its policy does not allow it")
	f.must("PutDeliveryDestination", move("open"))
	f.View(t, func(tx *store.Tx) error {
		links, err := logs.Links(tx)
		if err == nil && links[0].Destination.Resource() != "open" {
			t.Errorf("it goes to %s", links[0].Destination.Resource())
		}
		return err
	})
}

// TestProbe: create-delivery answers what the destination says.
func TestProbe(t *testing.T) {
	f := newProbed(t)
	f.source("src", newCluster, "PCS_SCHEDULER_LOGS")
	in := object{"deliverySourceName": "src", "deliveryDestinationArn": f.destination("s3", "arn:aws:s3:::bucket")}
	f.setProbe(func(l logs.Link) error {
		if l.Source.Name != "src" || l.Destination.Name != "s3" || len(l.Delivery.RecordFields) == 0 {
			t.Errorf("asked about %+v", l)
		}
		return &awsapi.Error{Code: "AccessDeniedException", Message: "the bucket policy does not let delivery.logs.amazonaws.com write"}
	})
	f.refuses("CreateDelivery", in, "AccessDeniedException", "the bucket policy does not let")
	f.setProbe(func(logs.Link) error { return errors.New("no such bucket") })
	f.refuses("CreateDelivery", in, "ValidationException", "The delivery destination s3 cannot be written to: no such bucket")
	f.setProbe(func(logs.Link) error { return nil })
	f.must("CreateDelivery", in)
}

// TestPermissionOfTheCluster: who has logs delivered needs a permission on the
// cluster besides that of the call.
func TestPermissionOfTheCluster(t *testing.T) {
	f := newFixture(t)
	caller := func(allow ...string) *awsapi.Client {
		key, err := f.Keys.IssueSession(t.Context(), awsapi.Caller{Account: f.Root.Caller.Account, ARN: "arn:aws:sts::1:assumed-role/r/i", UserID: "AROA:i", Allow: allow}, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		return f.ClientOf(key)
	}
	in := object{"name": "src", "resourceArn": clusterARN(newCluster), "logType": "PCS_SCHEDULER_LOGS"}
	denied := func(c *awsapi.Client, op string, in any) {
		t.Helper()
		_, e := f.tryWith(c, op, in)
		if e == nil || e.Code != "AccessDeniedException" || !strings.Contains(e.Message, "pcs:AllowVendedLogDeliveryForResource on resource: "+clusterARN(newCluster)) {
			t.Errorf("%s: got %v", op, e)
		}
	}
	denied(caller("logs:*"), "PutDeliverySource", in)
	if _, e := f.tryWith(caller("logs:*", "pcs:AllowVendedLogDeliveryForResource"), "PutDeliverySource", in); e != nil {
		t.Error(e)
	}
	denied(caller("logs:*"), "CreateDelivery", object{"deliverySourceName": "src", "deliveryDestinationArn": f.destination("s3", "arn:aws:s3:::bucket")})
}

// TestClusterIsGone: its source says so, and gets no new delivery.
func TestClusterIsGone(t *testing.T) {
	f := newFixture(t)
	f.source("src", newCluster, "PCS_SCHEDULER_LOGS")
	f.Update(t, func(tx *store.Tx) error { return fleet.Clusters.Delete(tx, newCluster) })
	out := f.must("GetDeliverySource", object{"name": "src"})["deliverySource"].(object)
	if out["status"] != "INACTIVE" || out["statusReason"] != "RESOURCE_DELETED" {
		t.Errorf("got %v", out)
	}
	all := f.must("DescribeDeliverySources", object{})["deliverySources"].([]any)
	if len(all) != 1 || all[0].(object)["status"] != "INACTIVE" {
		t.Errorf("got %v", all)
	}
	f.refuses("CreateDelivery", object{"deliverySourceName": "src", "deliveryDestinationArn": f.destination("s3", "arn:aws:s3:::bucket")}, "ValidationException", "was deleted: delete the source")
	f.must("DeleteDeliverySource", object{"name": "src"})
}

func TestTemplates(t *testing.T) {
	f := newFixture(t)
	pages := sdk.NewDescribeConfigurationTemplatesPaginator(f.client(), &sdk.DescribeConfigurationTemplatesInput{Service: aws.String("pcs"), Limit: aws.Int32(5)})
	var seen []string
	for pages.HasMorePages() {
		page, err := pages.NextPage(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, tmpl := range page.ConfigurationTemplates {
			seen = append(seen, *tmpl.LogType+" "+string(tmpl.DeliveryDestinationType))
			if len(tmpl.AllowedFields) != len(tmpl.DefaultDeliveryConfigValues.RecordFields) || *tmpl.AllowedActionForAllowVendedLogsDeliveryForResource != "pcs:AllowVendedLogDeliveryForResource" ||
				(tmpl.DeliveryDestinationType == "S3") != (tmpl.DefaultDeliveryConfigValues.S3DeliveryConfiguration != nil) {
				t.Errorf("got %+v", tmpl)
			}
		}
	}
	if len(seen) != 12 {
		t.Errorf("got %v", seen)
	}
	if out := f.must("DescribeConfigurationTemplates", object{"service": "ec2"}); len(out["configurationTemplates"].([]any)) != 0 {
		t.Errorf("of another service: %v", out)
	}
}

func TestTags(t *testing.T) {
	f := newFixture(t)
	tags := object{"team": "hpc"}
	f.must("CreateLogGroup", object{"logGroupName": "g", "tags": tags})
	f.must("PutDeliverySource", object{"name": "src", "resourceArn": clusterARN(newCluster), "logType": "PCS_SCHEDULER_LOGS", "tags": tags})
	f.must("PutDeliveryDestination", object{"name": "cwl", "deliveryDestinationConfiguration": object{"destinationResourceArn": arn("log-group:g")}, "tags": tags})
	d := f.must("CreateDelivery", object{"deliverySourceName": "src", "deliveryDestinationArn": arn("delivery-destination:cwl"), "tags": tags})["delivery"].(object)
	for _, resource := range []string{arn("log-group:g"), arn("log-group:g:*"), arn("delivery-source:src"), arn("delivery-destination:cwl"), d["arn"].(string)} {
		list := func() string {
			return fmt.Sprint(f.must("ListTagsForResource", object{"resourceArn": resource})["tags"])
		}
		if got := list(); got != "map[team:hpc]" {
			t.Errorf("%s: at first %s", resource, got)
		}
		f.must("TagResource", object{"resourceArn": resource, "tags": object{"a": "b", "team": "x"}})
		f.must("UntagResource", object{"resourceArn": resource, "tagKeys": []any{"a", "none"}})
		if got := list(); got != "map[team:x]" {
			t.Errorf("%s: then %s", resource, got)
		}
		many := object{}
		for n := range 50 {
			many[fmt.Sprint(n)] = ""
		}
		f.refuses("TagResource", object{"resourceArn": resource, "tags": many}, "TooManyTagsException", "at most 50")
		f.must("TagResource", object{"resourceArn": resource, "tags": object{"team": "hpc"}})
	}
	// The calls of old.
	f.must("TagLogGroup", object{"logGroupName": "g", "tags": object{"old": "way"}})
	f.must("UntagLogGroup", object{"logGroupName": "g", "tags": []any{"team"}})
	if got := fmt.Sprint(f.must("ListTagsLogGroup", object{"logGroupName": "g"})["tags"]); got != "map[old:way]" {
		t.Errorf("got %s", got)
	}
	const missing = "ResourceNotFoundException"
	f.refuses("ListTagsForResource", object{"resourceArn": arn("log-group:none")}, missing, "does not exist")
	f.refuses("TagResource", object{"resourceArn": arn("log-group:none"), "tags": tags}, missing, "does not exist")
	f.refuses("TagResource", object{"resourceArn": arn("delivery:none"), "tags": tags}, missing, "does not exist")
	f.refuses("ListTagsForResource", object{"resourceArn": "x"}, "InvalidParameterException", "is not the ARN")
}

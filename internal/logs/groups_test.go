package logs_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/cloudwatchlogs"
	"github.com/aws/aws-sdk-go-v2/service/cloudwatchlogs/types"
)

func TestLogGroups(t *testing.T) {
	f := newFixture(t)
	for _, name := range []string{"/aws/pcs/a", "/aws/pcs/b", "plain"} {
		f.group(name)
	}
	f.must("CreateLogGroup", object{"logGroupName": "rare", "logGroupClass": "INFREQUENT_ACCESS", "deletionProtectionEnabled": true})
	names := func(op string, in object) string {
		t.Helper()
		var list []string
		for _, g := range f.must(op, in)["logGroups"].([]any) {
			list = append(list, g.(object)["logGroupName"].(string))
		}
		return strings.Join(list, " ")
	}
	for _, tt := range []struct {
		op   string
		in   object
		want string
	}{
		{"DescribeLogGroups", object{}, "/aws/pcs/a /aws/pcs/b plain rare"},
		{"DescribeLogGroups", object{"logGroupNamePrefix": "/aws/"}, "/aws/pcs/a /aws/pcs/b"},
		{"DescribeLogGroups", object{"logGroupNamePattern": "a"}, "/aws/pcs/a /aws/pcs/b plain rare"},
		{"DescribeLogGroups", object{"logGroupNamePattern": "la"}, "plain"},
		{"DescribeLogGroups", object{"logGroupClass": "INFREQUENT_ACCESS"}, "rare"},
		{"DescribeLogGroups", object{"logGroupIdentifiers": []any{"plain", arn("log-group:rare")}}, "plain rare"},
		{"DescribeLogGroups", object{"accountIdentifiers": []any{"210987654321"}, "includeLinkedAccounts": true}, ""},
		{"DescribeLogGroups", object{"limit": 2}, "/aws/pcs/a /aws/pcs/b"},
		{"ListLogGroups", object{}, "/aws/pcs/a /aws/pcs/b plain rare"},
		{"ListLogGroups", object{"logGroupNamePattern": "^/aws|rare"}, "/aws/pcs/a /aws/pcs/b rare"},
		{"ListLogGroups", object{"logGroupNamePattern": "^pcs"}, ""},
	} {
		if got := names(tt.op, tt.in); got != tt.want {
			t.Errorf("%s %v: got %q, want %q", tt.op, tt.in, got, tt.want)
		}
	}
	g := f.must("DescribeLogGroups", object{"logGroupNamePrefix": "plain"})["logGroups"].([]any)[0].(object)
	if g["arn"] != arn("log-group:plain:*") || g["logGroupArn"] != arn("log-group:plain") || g["logGroupClass"] != "STANDARD" || g["storedBytes"] != 0.0 ||
		g["creationTime"] != float64(f.Clock.Now().UnixMilli()) || g["retentionInDays"] != nil {
		t.Errorf("got %v", g)
	}
	f.must("PutRetentionPolicy", object{"logGroupName": "plain", "retentionInDays": 7})
	retention := func() any {
		return f.must("DescribeLogGroups", object{"logGroupNamePrefix": "plain"})["logGroups"].([]any)[0].(object)["retentionInDays"]
	}
	if retention() != 7.0 {
		t.Errorf("retention is %v", retention())
	}
	f.must("DeleteRetentionPolicy", object{"logGroupName": "plain"})
	if retention() != nil {
		t.Errorf("retention is %v", retention())
	}

	// Protection is about the group and its streams.
	f.must("CreateLogStream", object{"logGroupName": "rare", "logStreamName": "s"})
	f.refuses("DeleteLogGroup", object{"logGroupName": "rare"}, "ValidationException", "--no-deletion-protection-enabled")
	f.refuses("DeleteLogStream", object{"logGroupName": "rare", "logStreamName": "s"}, "ValidationException", "has deletion protection")
	f.must("PutLogGroupDeletionProtection", object{"logGroupIdentifier": arn("log-group:rare"), "deletionProtectionEnabled": false})
	f.must("DeleteLogStream", object{"logGroupName": "rare", "logStreamName": "s"})
	f.must("DeleteLogGroup", object{"logGroupName": "rare"})
	if got := names("DescribeLogGroups", object{}); got != "/aws/pcs/a /aws/pcs/b plain" {
		t.Errorf("got %s", got)
	}

	const wrong = "InvalidParameterException"
	f.refuses("CreateLogGroup", object{"logGroupName": "plain"}, "ResourceAlreadyExistsException", "The specified log group already exists")
	f.refuses("CreateLogGroup", object{"logGroupName": "a b"}, wrong, "logGroupName:")
	f.refuses("CreateLogGroup", object{"logGroupName": "aws/x"}, wrong, "must not begin with aws/")
	f.refuses("CreateLogGroup", object{"logGroupName": "x", "kmsKeyId": "k"}, wrong, "KMS")
	f.refuses("CreateLogGroup", object{"logGroupName": "x", "logGroupClass": "DELIVERY"}, wrong, "openpcs has the classes")
	f.refuses("CreateLogGroup", object{"logGroupName": 3}, "SerializationException", "must be a string")
	f.refuses("PutRetentionPolicy", object{"logGroupName": "plain", "retentionInDays": 2}, wrong, "is 2, and must be one of 1, 3, 5, 7,")
	f.refuses("PutRetentionPolicy", object{"logGroupName": "none", "retentionInDays": 1}, "ResourceNotFoundException", "The specified log group does not exist.")
	f.refuses("DeleteLogGroup", object{"logGroupName": "none"}, "ResourceNotFoundException", "The specified log group does not exist.")
	f.refuses("DescribeLogGroups", object{"logGroupNamePrefix": "a", "logGroupNamePattern": "b"}, wrong, "give one of them")
	f.refuses("DescribeLogGroups", object{"logGroupIdentifiers": []any{"a"}, "logGroupNamePrefix": "b"}, wrong, "no other filter")
	f.refuses("DescribeLogGroups", object{"limit": 51}, wrong, "1 to 50")
	f.refuses("ListLogGroups", object{"logGroupTags": []any{object{"key": "a"}}}, wrong, "by name and class alone")
	f.refuses("StartLiveTail", object{"logGroupIdentifiers": []any{"plain"}}, "InvalidOperationException", "aws logs tail")
}

// TestPagesOfGroupsAndStreams goes through many of them with the official
// client's paginators, in every order.
func TestPagesOfGroupsAndStreams(t *testing.T) {
	f := newFixture(t)
	for n := range 7 {
		f.group(fmt.Sprintf("group-%d", n))
		f.must("CreateLogStream", object{"logGroupName": "group-0", "logStreamName": fmt.Sprintf("s-%d", n)})
	}
	// The times of their events are not in the order of their names, and two are alike.
	for n, at := range map[int]int{0: 3, 1: 1, 2: 2, 3: 2} {
		f.events("group-0", fmt.Sprintf("s-%d", n), f.Clock.Now().Add(-hours(at)), "x")
	}
	c := f.client()
	var groups []string
	pages := sdk.NewDescribeLogGroupsPaginator(c, &sdk.DescribeLogGroupsInput{Limit: aws.Int32(3)})
	for pages.HasMorePages() {
		page, err := pages.NextPage(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, g := range page.LogGroups {
			groups = append(groups, *g.LogGroupName)
		}
	}
	if got := strings.Join(groups, " "); got != "group-0 group-1 group-2 group-3 group-4 group-5 group-6" {
		t.Errorf("groups: %s", got)
	}
	for _, tt := range []struct {
		in   sdk.DescribeLogStreamsInput
		want string
	}{
		{sdk.DescribeLogStreamsInput{}, "0 1 2 3 4 5 6"},
		{sdk.DescribeLogStreamsInput{Descending: aws.Bool(true)}, "6 5 4 3 2 1 0"},
		{sdk.DescribeLogStreamsInput{OrderBy: types.OrderByLastEventTime}, "4 5 6 0 2 3 1"},
		{sdk.DescribeLogStreamsInput{OrderBy: types.OrderByLastEventTime, Descending: aws.Bool(true)}, "1 3 2 0 6 5 4"},
		{sdk.DescribeLogStreamsInput{LogStreamNamePrefix: aws.String("s-")}, "0 1 2 3 4 5 6"},
		{sdk.DescribeLogStreamsInput{LogStreamNamePrefix: aws.String("s-3")}, "3"},
	} {
		tt.in.LogGroupName, tt.in.Limit = aws.String("group-0"), aws.Int32(2)
		var got []string
		pages := sdk.NewDescribeLogStreamsPaginator(c, &tt.in)
		for pages.HasMorePages() {
			page, err := pages.NextPage(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range page.LogStreams {
				got = append(got, strings.TrimPrefix(*s.LogStreamName, "s-"))
			}
		}
		if s := strings.Join(got, " "); s != tt.want {
			t.Errorf("order %s, descending %v: got %s, want %s", tt.in.OrderBy, tt.in.Descending, s, tt.want)
		}
	}
	streams := f.must("DescribeLogStreams", object{"logGroupIdentifier": arn("log-group:group-0"), "logStreamNamePrefix": "s-1"})["logStreams"].([]any)
	s := streams[0].(object)
	if want := float64(f.Clock.Now().Add(-hours(1)).UnixMilli()); s["arn"] != arn("log-group:group-0:log-stream:s-1") || s["firstEventTimestamp"] != want || s["lastEventTimestamp"] != want ||
		s["lastIngestionTime"] != float64(f.Clock.Now().UnixMilli()) || s["storedBytes"] != 0.0 {
		t.Errorf("got %v", s)
	}
	const wrong = "InvalidParameterException"
	f.refuses("DescribeLogStreams", object{}, wrong, "logGroupName: is required, or logGroupIdentifier")
	f.refuses("DescribeLogStreams", object{"logGroupName": "a", "logGroupIdentifier": "a"}, wrong, "give one of them")
	f.refuses("DescribeLogStreams", object{"logGroupName": "group-0", "orderBy": "LastEventTime", "logStreamNamePrefix": "s"}, wrong, "logStreamNamePrefix")
	f.refuses("DescribeLogStreams", object{"logGroupIdentifier": "arn:aws:logs:us-east-1:123456789012:log-group:group-0"}, wrong, "of this account and region")
	f.refuses("DescribeLogStreams", object{"logGroupName": "none"}, "ResourceNotFoundException", "The specified log group does not exist.")
	f.refuses("CreateLogStream", object{"logGroupName": "group-0", "logStreamName": "a:b"}, wrong, "logStreamName")
	f.refuses("CreateLogStream", object{"logGroupName": "group-0", "logStreamName": "s-1"}, "ResourceAlreadyExistsException", "The specified log stream already exists")
	f.refuses("DeleteLogStream", object{"logGroupName": "group-0", "logStreamName": "none"}, "ResourceNotFoundException", "The specified log stream does not exist.")
}

package ec2_test

import (
	"context"
	"encoding/base64"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/smithy-go"

	"github.com/openpcs/openpcs/internal/awsapi/awsapitest"
	"github.com/openpcs/openpcs/internal/ec2"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/iam"
	"github.com/openpcs/openpcs/internal/store"
)

// actions terminates instances at once.
type actions struct {
	w        *awsapitest.World
	rebooted []string
}

func (a *actions) TerminateInstance(ctx context.Context, _, id string) error {
	return a.w.Store.Update(ctx, func(tx *store.Tx) error {
		i, err := fleet.Instances.Get(tx, id)
		if err != nil {
			return err
		}
		i.State, i.TerminatedAt = fleet.Terminated, a.w.Clock.Now()
		i.StateCode, i.StateReason = "Client.UserInitiatedShutdown", "Client.UserInitiatedShutdown: User initiated shutdown"
		return fleet.Instances.Put(tx, i)
	})
}

func (a *actions) RebootInstance(_ context.Context, id string) error {
	a.rebooted = append(a.rebooted, id)
	return nil
}

func (a *actions) ConsoleOutput(context.Context, string) ([]byte, error) {
	return []byte("Welcome to Debian\n"), nil
}

type fixture struct {
	*awsapitest.World
	client  *sdk.Client
	actions *actions
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	w := awsapitest.New(t)
	f := &fixture{World: w, actions: &actions{w: w}}
	svc := ec2.New(ec2.Options{
		Store: w.Store, Account: awsapitest.Account, Instances: f.actions, Pool: netip.MustParsePrefix("10.77.0.0/16"),
	})
	w.Serve(t, svc.Service())
	f.client = f.in(awsapitest.Region)
	return f
}

// in returns the official client for a region.
func (f *fixture) in(region string) *sdk.Client {
	return sdk.New(sdk.Options{
		BaseEndpoint: aws.String(f.URL), Region: region, RetryMaxAttempts: 1, HTTPClient: awsapitest.SDK,
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: f.Root.ID, SecretAccessKey: f.Root.Secret}, nil
		}),
	})
}

func code(err error) string {
	var e smithy.APIError
	if errors.As(err, &e) {
		return e.ErrorCode()
	}
	if err != nil {
		return err.Error()
	}
	return ""
}

func wantCode(t *testing.T, err error, want string) {
	t.Helper()
	if got := code(err); got != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func filter(name string, values ...string) types.Filter {
	return types.Filter{Name: aws.String(name), Values: values}
}

func TestDefaultVPC(t *testing.T) {
	f := newFixture(t)
	ctx := t.Context()
	vpcs, err := f.client.DescribeVpcs(ctx, &sdk.DescribeVpcsInput{Filters: []types.Filter{filter("is-default", "true")}})
	if err != nil {
		t.Fatal(err)
	}
	if len(vpcs.Vpcs) != 1 || *vpcs.Vpcs[0].CidrBlock != "10.77.16.0/20" || !*vpcs.Vpcs[0].IsDefault {
		t.Fatalf("got %+v", vpcs.Vpcs)
	}
	subnets, err := f.client.DescribeSubnets(ctx, &sdk.DescribeSubnetsInput{Filters: []types.Filter{filter("vpc-id", *vpcs.Vpcs[0].VpcId)}})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range subnets.Subnets {
		got = append(got, *s.AvailabilityZone+" "+*s.AvailabilityZoneId+" "+*s.CidrBlock)
		if *s.AvailableIpAddressCount != 1019 {
			t.Errorf("available addresses: got %d", *s.AvailableIpAddressCount)
		}
	}
	want := []string{
		"ap-northeast-1a apne1-az4 10.77.16.0/22", "ap-northeast-1c apne1-az1 10.77.20.0/22", "ap-northeast-1d apne1-az2 10.77.24.0/22",
	}
	if !slices.Equal(got, want) {
		t.Errorf("subnets: got %v, want %v", got, want)
	}
	groups, err := f.client.DescribeSecurityGroups(ctx, &sdk.DescribeSecurityGroupsInput{Filters: []types.Filter{filter("group-name", "default")}})
	if err != nil {
		t.Fatal(err)
	}
	g := groups.SecurityGroups[0]
	if len(groups.SecurityGroups) != 1 || *g.IpPermissions[0].UserIdGroupPairs[0].GroupId != *g.GroupId || *g.IpPermissionsEgress[0].IpRanges[0].CidrIp != "0.0.0.0/0" {
		t.Errorf("default group: got %+v", g)
	}

	// Another region is another name space with another part of the pool.
	other, err := f.in("us-east-1").DescribeVpcs(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	if *other.Vpcs[0].CidrBlock != "10.77.32.0/20" {
		t.Errorf("second region: got %s", *other.Vpcs[0].CidrBlock)
	}
	_, err = f.in("us-east-1").DescribeSubnets(ctx, &sdk.DescribeSubnetsInput{SubnetIds: []string{*subnets.Subnets[0].SubnetId}})
	wantCode(t, err, "InvalidSubnetID.NotFound")
	regions, err := f.client.DescribeRegions(ctx, nil)
	if err != nil || len(regions.Regions) != 2 {
		t.Errorf("regions: got %+v, %v", regions, err)
	}
	zones, err := f.client.DescribeAvailabilityZones(ctx, nil)
	if err != nil || len(zones.AvailabilityZones) != 3 {
		t.Errorf("zones: got %+v, %v", zones, err)
	}
	attr, err := f.client.DescribeVpcAttribute(ctx, &sdk.DescribeVpcAttributeInput{VpcId: vpcs.Vpcs[0].VpcId, Attribute: types.VpcAttributeNameEnableDnsHostnames})
	if err != nil || !*attr.EnableDnsHostnames.Value {
		t.Errorf("attribute: got %+v, %v", attr, err)
	}
}

func TestPoolRunsOut(t *testing.T) {
	f := newFixture(t)
	for i := range 15 {
		if _, err := f.in("xx-test-"+string(rune('a'+i))+"x-1").DescribeVpcs(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
	}
	_, err := f.client.DescribeVpcs(t.Context(), nil)
	wantCode(t, err, "VpcLimitExceeded")
}

// TestSeed002DescribeImages is the command of the article.
func TestSeed002DescribeImages(t *testing.T) {
	f := newFixture(t)
	old := f.Clock.Now().Add(-48 * time.Hour)
	f.Update(t, func(tx *store.Tx) error {
		for _, i := range []fleet.Image{
			{ID: "ami-00000000000000001", Name: "aws-pcs-sample_ami-debian-x86_64-slurm-26.05-2026-11-28", Owner: "amazon", Architecture: fleet.X86, CreatedAt: old, Slurm: []string{"26.05"}, Agent: true, Tags: map[string]string{"k": "v"}},
			{ID: "ami-00000000000000002", Name: "aws-pcs-sample_ami-debian-x86_64-slurm-26.05-2026-11-01", Owner: "amazon", Architecture: fleet.X86, CreatedAt: old.Add(-time.Hour), Deprecated: true},
			{ID: "ami-00000000000000003", Name: "debian-generic", Owner: "amazon", Architecture: fleet.X86, CreatedAt: old},
			{ID: "ami-00000000000000004", Name: "aws-pcs-sample_ami-mine", Owner: awsapitest.Account, Architecture: fleet.X86, CreatedAt: old},
		} {
			if err := fleet.Images.Put(tx, i); err != nil {
				return err
			}
		}
		return nil
	})
	tests := []struct {
		name string
		in   sdk.DescribeImagesInput
		want string
		err  string
	}{
		{name: "seed", want: "1", in: sdk.DescribeImagesInput{Owners: []string{"amazon"}, Filters: []types.Filter{filter("name", "aws-pcs-sample_ami-*"), filter("state", "available")}}},
		{name: "all", want: "134", in: sdk.DescribeImagesInput{}},
		{name: "self", want: "4", in: sdk.DescribeImagesInput{Owners: []string{"self"}}},
		{name: "account", want: "4", in: sdk.DescribeImagesInput{Owners: []string{awsapitest.Account}}},
		{name: "deprecated", want: "123", in: sdk.DescribeImagesInput{Owners: []string{"amazon"}, IncludeDeprecated: aws.Bool(true)}},
		{name: "deprecated_by_id", want: "2", in: sdk.DescribeImagesInput{ImageIds: []string{"ami-00000000000000002"}}},
		{name: "question_mark", want: "3", in: sdk.DescribeImagesInput{Filters: []types.Filter{filter("name", "debian-?eneric")}}},
		{name: "tag", want: "1", in: sdk.DescribeImagesInput{Filters: []types.Filter{filter("tag:k", "v"), filter("tag-key", "k")}}},
		{name: "none", want: "", in: sdk.DescribeImagesInput{Filters: []types.Filter{filter("is-public", "true"), filter("architecture", "arm64")}}},
		{name: "unknown_filter", err: "InvalidParameterValue", in: sdk.DescribeImagesInput{Filters: []types.Filter{filter("nmae", "x")}}},
		{name: "unknown_id", err: "InvalidAMIID.NotFound", in: sdk.DescribeImagesInput{ImageIds: []string{"ami-00000000000000009"}}},
		{name: "malformed_id", err: "InvalidAMIID.Malformed", in: sdk.DescribeImagesInput{ImageIds: []string{"ami-x"}}},
		{name: "dry_run", err: "DryRunOperation", in: sdk.DescribeImagesInput{DryRun: aws.Bool(true)}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			out, err := f.client.DescribeImages(t.Context(), &tt.in)
			wantCode(t, err, tt.err)
			if err != nil {
				return
			}
			got := ""
			for _, i := range out.Images {
				got += (*i.ImageId)[len(*i.ImageId)-1:]
			}
			if got = sorted(got); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
			if out.Images == nil {
				t.Error("an empty list became none")
			}
		})
	}
}

func sorted(s string) string {
	b := []byte(s)
	slices.Sort(b)
	return string(b)
}

func TestLaunchTemplates(t *testing.T) {
	f := newFixture(t)
	ctx := t.Context()
	data := &types.RequestLaunchTemplateData{
		ImageId: aws.String("ami-0123456789abcdef0"), InstanceType: "t3.micro",
		UserData:          aws.String(base64.StdEncoding.EncodeToString([]byte("#!/bin/sh\ntrue\n"))),
		NetworkInterfaces: []types.LaunchTemplateInstanceNetworkInterfaceSpecificationRequest{{DeviceIndex: aws.Int32(0), Groups: []string{"sg-0123456789abcdef0"}, InterfaceType: aws.String("efa")}},
		BlockDeviceMappings: []types.LaunchTemplateBlockDeviceMappingRequest{{
			DeviceName: aws.String("/dev/xvda"), Ebs: &types.LaunchTemplateEbsBlockDeviceRequest{VolumeSize: aws.Int32(50), VolumeType: "gp3"},
		}},
		MetadataOptions:   &types.LaunchTemplateInstanceMetadataOptionsRequest{HttpTokens: "required", HttpPutResponseHopLimit: aws.Int32(4)},
		TagSpecifications: []types.LaunchTemplateTagSpecificationRequest{{ResourceType: "instance", Tags: []types.Tag{{Key: aws.String("team"), Value: aws.String("hpc")}}}},
		InstanceMarketOptions: &types.LaunchTemplateInstanceMarketOptionsRequest{MarketType: "spot", SpotOptions: &types.LaunchTemplateSpotMarketOptionsRequest{
			MaxPrice: aws.String("0.1"), ValidUntil: aws.Time(f.Clock.Now().Truncate(time.Second)),
		}},
		CapacityReservationSpecification: &types.LaunchTemplateCapacityReservationSpecificationRequest{
			CapacityReservationTarget: &types.CapacityReservationTarget{CapacityReservationId: aws.String("cr-1")},
		},
		CpuOptions: &types.LaunchTemplateCpuOptionsRequest{CoreCount: aws.Int32(1), ThreadsPerCore: aws.Int32(1)},
		Monitoring: &types.LaunchTemplatesMonitoringRequest{Enabled: aws.Bool(true)},
		Placement:  &types.LaunchTemplatePlacementRequest{GroupName: aws.String("pg")},
	}
	in := &sdk.CreateLaunchTemplateInput{
		LaunchTemplateName: aws.String("my-template"), LaunchTemplateData: data, VersionDescription: aws.String("first"),
		ClientToken:       aws.String("token-1"),
		TagSpecifications: []types.TagSpecification{{ResourceType: "launch-template", Tags: []types.Tag{{Key: aws.String("a"), Value: aws.String("b")}}}},
	}
	created, err := f.client.CreateLaunchTemplate(ctx, in)
	if err != nil {
		t.Fatal(err)
	}
	id := created.LaunchTemplate.LaunchTemplateId
	if created.Warning == nil || len(created.Warning.Errors) != 2 { // no such image, no such group
		t.Errorf("warning: got %+v", created.Warning)
	}
	again, err := f.client.CreateLaunchTemplate(ctx, in)
	if err != nil || *again.LaunchTemplate.LaunchTemplateId != *id {
		t.Errorf("same token: got %+v, %v", again, err)
	}
	in.ClientToken = aws.String("token-2")
	_, err = f.client.CreateLaunchTemplate(ctx, in)
	wantCode(t, err, "InvalidLaunchTemplateName.AlreadyExistsException")
	in.ClientToken, in.LaunchTemplateName = aws.String("token-1"), aws.String("other")
	_, err = f.client.CreateLaunchTemplate(ctx, in)
	wantCode(t, err, "IdempotentParameterMismatch")

	// Version 2 is version 1 with another type and image.
	v2, err := f.client.CreateLaunchTemplateVersion(ctx, &sdk.CreateLaunchTemplateVersionInput{
		LaunchTemplateId: id, SourceVersion: aws.String("$Latest"),
		LaunchTemplateData: &types.RequestLaunchTemplateData{InstanceType: "c7i.large", ImageId: aws.String("ami-0123456789abcdef1")},
	})
	if err != nil {
		t.Fatal(err)
	}
	d := v2.LaunchTemplateVersion.LaunchTemplateData
	if *v2.LaunchTemplateVersion.VersionNumber != 2 || d.InstanceType != "c7i.large" || *d.UserData != *data.UserData ||
		d.NetworkInterfaces[0].Groups[0] != "sg-0123456789abcdef0" || *d.BlockDeviceMappings[0].Ebs.VolumeSize != 50 ||
		*d.MetadataOptions.HttpPutResponseHopLimit != 4 || *d.TagSpecifications[0].Tags[0].Value != "hpc" ||
		d.InstanceMarketOptions.SpotOptions.ValidUntil == nil || *d.CapacityReservationSpecification.CapacityReservationTarget.CapacityReservationId != "cr-1" ||
		*d.CpuOptions.ThreadsPerCore != 1 || !*d.Monitoring.Enabled || *d.Placement.GroupName != "pg" {
		t.Errorf("version 2: got %+v", d)
	}
	versions := func(in sdk.DescribeLaunchTemplateVersionsInput) string {
		t.Helper()
		out, err := f.client.DescribeLaunchTemplateVersions(ctx, &in)
		if err != nil {
			return code(err)
		}
		var got []string
		for _, v := range out.LaunchTemplateVersions {
			got = append(got, string(rune('0'+*v.VersionNumber)))
		}
		return strings.Join(got, "")
	}
	for _, tt := range []struct {
		name, want string
		in         sdk.DescribeLaunchTemplateVersionsInput
	}{
		{"all_newest_first", "21", sdk.DescribeLaunchTemplateVersionsInput{LaunchTemplateId: id}},
		{"by_name", "2", sdk.DescribeLaunchTemplateVersionsInput{LaunchTemplateName: aws.String("my-template"), Versions: []string{"$Latest"}}},
		{"default", "1", sdk.DescribeLaunchTemplateVersionsInput{LaunchTemplateId: id, Versions: []string{"$Default", "1"}}},
		{"min", "2", sdk.DescribeLaunchTemplateVersionsInput{LaunchTemplateId: id, MinVersion: aws.String("2")}},
		{"max", "1", sdk.DescribeLaunchTemplateVersionsInput{LaunchTemplateId: id, MaxVersion: aws.String("1")}},
		{"everywhere", "2", sdk.DescribeLaunchTemplateVersionsInput{Versions: []string{"$Latest"}}},
		{"filter", "1", sdk.DescribeLaunchTemplateVersionsInput{LaunchTemplateId: id, Filters: []types.Filter{filter("is-default-version", "true")}}},
		{"missing_version", "InvalidLaunchTemplateId.VersionNotFound", sdk.DescribeLaunchTemplateVersionsInput{LaunchTemplateId: id, Versions: []string{"7"}}},
		{"missing_template", "InvalidLaunchTemplateId.NotFound", sdk.DescribeLaunchTemplateVersionsInput{LaunchTemplateId: aws.String("lt-00000000000000000")}},
		{"missing_name", "InvalidLaunchTemplateName.NotFoundException", sdk.DescribeLaunchTemplateVersionsInput{LaunchTemplateName: aws.String("nope")}},
		{"nothing_named", "MissingParameter", sdk.DescribeLaunchTemplateVersionsInput{}},
	} {
		if got := versions(tt.in); got != tt.want {
			t.Errorf("%s: got %s, want %s", tt.name, got, tt.want)
		}
	}

	// What package pcs sees.
	f.View(t, func(tx *store.Tx) error {
		for _, tt := range []struct {
			version string
			number  int
			typ     string
		}{{"$Default", 1, "t3.micro"}, {"$Latest", 2, "c7i.large"}, {"2", 2, "c7i.large"}} {
			d, n, err := ec2.Template(tx, awsapitest.Region, *id, tt.version)
			if err != nil || n != tt.number || d.InstanceType != tt.typ {
				t.Errorf("Template(%s): got %s, %d, %v", tt.version, d.InstanceType, n, err)
			}
		}
		for _, bad := range [][3]string{{"us-east-1", *id, "1"}, {awsapitest.Region, *id, "3"}, {awsapitest.Region, *id, "$Newest"}, {awsapitest.Region, "lt-1", "1"}} {
			if _, _, err := ec2.Template(tx, bad[0], bad[1], bad[2]); !errors.Is(err, store.ErrNotFound) {
				t.Errorf("Template(%v): got %v", bad, err)
			}
		}
		return nil
	})

	deleted, err := f.client.DeleteLaunchTemplateVersions(ctx, &sdk.DeleteLaunchTemplateVersionsInput{LaunchTemplateId: id, Versions: []string{"1", "2", "9"}})
	if err != nil || len(deleted.SuccessfullyDeletedLaunchTemplateVersions) != 1 || len(deleted.UnsuccessfullyDeletedLaunchTemplateVersions) != 2 {
		t.Fatalf("delete versions: got %+v, %v", deleted, err)
	}
	v3, err := f.client.CreateLaunchTemplateVersion(ctx, &sdk.CreateLaunchTemplateVersionInput{LaunchTemplateId: id, LaunchTemplateData: &types.RequestLaunchTemplateData{InstanceType: "c7i.large"}})
	if err != nil || *v3.LaunchTemplateVersion.VersionNumber != 3 {
		t.Errorf("numbers are used again: got %+v, %v", v3, err)
	}
	if _, err := f.client.ModifyLaunchTemplate(ctx, &sdk.ModifyLaunchTemplateInput{LaunchTemplateId: id, DefaultVersion: aws.String("3")}); err != nil {
		t.Error(err)
	}
	list, err := f.client.DescribeLaunchTemplates(ctx, &sdk.DescribeLaunchTemplatesInput{Filters: []types.Filter{filter("tag:a", "b")}})
	if err != nil || len(list.LaunchTemplates) != 1 || *list.LaunchTemplates[0].DefaultVersionNumber != 3 {
		t.Errorf("describe: got %+v, %v", list, err)
	}
	if _, err := f.client.DeleteLaunchTemplate(ctx, &sdk.DeleteLaunchTemplateInput{LaunchTemplateId: id}); err != nil {
		t.Error(err)
	}
	_, err = f.client.DeleteLaunchTemplate(ctx, &sdk.DeleteLaunchTemplateInput{LaunchTemplateId: id})
	wantCode(t, err, "InvalidLaunchTemplateId.NotFound")
}

func TestLaunchTemplateMistakes(t *testing.T) {
	f := newFixture(t)
	for _, tt := range []struct {
		name, code string
		data       types.RequestLaunchTemplateData
	}{
		{"user_data", "InvalidUserData.Malformed", types.RequestLaunchTemplateData{UserData: aws.String("%%%")}},
		{"image", "InvalidAMIID.Malformed", types.RequestLaunchTemplateData{ImageId: aws.String("debian")}},
		{"tokens", "InvalidParameterValue", types.RequestLaunchTemplateData{MetadataOptions: &types.LaunchTemplateInstanceMetadataOptionsRequest{HttpTokens: "maybe"}}},
		{"market", "InvalidParameterValue", types.RequestLaunchTemplateData{InstanceMarketOptions: &types.LaunchTemplateInstanceMarketOptionsRequest{MarketType: "barter"}}},
		{"unsupported_member", "UnknownParameter", types.RequestLaunchTemplateData{InstanceRequirements: &types.InstanceRequirementsRequest{VCpuCount: &types.VCpuCountRangeRequest{Min: aws.Int32(1)}, MemoryMiB: &types.MemoryMiBRequest{Min: aws.Int32(1)}}}},
		{"empty", "MissingParameter", types.RequestLaunchTemplateData{}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := f.client.CreateLaunchTemplate(t.Context(), &sdk.CreateLaunchTemplateInput{LaunchTemplateName: aws.String("abc"), LaunchTemplateData: &tt.data})
			wantCode(t, err, tt.code)
		})
	}
	_, err := f.client.CreateLaunchTemplate(t.Context(), &sdk.CreateLaunchTemplateInput{LaunchTemplateName: aws.String("a b"), LaunchTemplateData: &types.RequestLaunchTemplateData{KeyName: aws.String("k")}})
	wantCode(t, err, "InvalidLaunchTemplateName.MalformedException")
}

func (f *fixture) putInstance(t *testing.T, id string, state fleet.InstanceState, group string) fleet.Instance {
	t.Helper()
	var i fleet.Instance
	ctx := context.Background()
	if err := ec2.EnsureRegion(ctx, f.Store, awsapitest.Region, netip.MustParsePrefix("10.77.0.0/16")); err != nil {
		t.Fatal(err)
	}
	if err := iam.New(iam.Options{Store: f.Store, Account: awsapitest.Account}).EnsureDefaults(ctx); err != nil {
		t.Fatal(err)
	}
	f.Update(t, func(tx *store.Tx) error {
		vpc, err := ec2.VPCOf(tx, awsapitest.Region)
		if err != nil {
			return err
		}
		subnets, err := fleet.Subnets.Of(tx, vpc.ID)
		if err != nil {
			return err
		}
		groups, err := ec2.SecurityGroups.Of(tx, vpc.ID)
		if err != nil {
			return err
		}
		i = fleet.Instance{
			ID: id, Region: awsapitest.Region, State: state, ImageID: "ami-00000000000000001", Type: "t3.micro",
			SubnetID: subnets[0].ID, VPCID: vpc.ID, AZ: subnets[0].AZ, Address: "10.77.16.5", SecurityGroups: []string{groups[0].ID},
			ProfileARN: "arn:aws:iam::" + awsapitest.Account + ":instance-profile/AWSPCS-default",
			Tags:       map[string]string{"aws:pcs:compute-node-group-id": group, "aws:pcs:cluster-id": "pcs_cluster001"},
			LaunchedAt: f.Clock.Now(), ClusterID: "pcs_cluster001", GroupID: group,
		}
		return fleet.Instances.Put(tx, i)
	})
	return i
}

func TestInstances(t *testing.T) {
	f := newFixture(t)
	ctx := t.Context()
	const one, two = "i-00000000000000001", "i-00000000000000002"
	f.putInstance(t, one, fleet.Running, "pcs_group00001")
	f.putInstance(t, two, fleet.Pending, "pcs_group00002")

	out, err := f.client.DescribeInstances(ctx, &sdk.DescribeInstancesInput{Filters: []types.Filter{
		filter("tag:aws:pcs:compute-node-group-id", "pcs_group00001"), filter("instance-state-name", "running"),
	}})
	if err != nil {
		t.Fatal(err)
	}
	if len(out.Reservations) != 1 || len(out.Reservations[0].Instances) != 1 {
		t.Fatalf("got %+v", out.Reservations)
	}
	i := out.Reservations[0].Instances[0]
	if *i.InstanceId != one || *i.State.Code != 16 || *i.PrivateDnsName != "ip-10-77-16-5.ap-northeast-1.compute.internal" ||
		*i.SecurityGroups[0].GroupName != "default" || *i.IamInstanceProfile.Id == "" || *i.NetworkInterfaces[0].PrivateIpAddress != "10.77.16.5" ||
		*i.CpuOptions.ThreadsPerCore != 1 || *i.Placement.AvailabilityZone != "ap-northeast-1a" {
		t.Errorf("got %+v", i)
	}
	status, err := f.client.DescribeInstanceStatus(ctx, &sdk.DescribeInstanceStatusInput{})
	if err != nil || len(status.InstanceStatuses) != 1 || status.InstanceStatuses[0].InstanceStatus.Status != "ok" {
		t.Errorf("status: got %+v, %v", status, err)
	}
	console, err := f.client.GetConsoleOutput(ctx, &sdk.GetConsoleOutputInput{InstanceId: aws.String(one)})
	if err != nil {
		t.Fatal(err)
	}
	if b, _ := base64.StdEncoding.DecodeString(*console.Output); string(b) != "Welcome to Debian\n" {
		t.Errorf("console: got %q", b)
	}
	if _, err := f.client.RebootInstances(ctx, &sdk.RebootInstancesInput{InstanceIds: []string{one}}); err != nil || !slices.Equal(f.actions.rebooted, []string{one}) {
		t.Errorf("reboot: %v %v", f.actions.rebooted, err)
	}
	_, err = f.client.RebootInstances(ctx, &sdk.RebootInstancesInput{InstanceIds: []string{two}})
	wantCode(t, err, "IncorrectState")

	_, err = f.client.TerminateInstances(ctx, &sdk.TerminateInstancesInput{InstanceIds: []string{one, "i-00000000000000009"}})
	wantCode(t, err, "InvalidInstanceID.NotFound")
	terminated, err := f.client.TerminateInstances(ctx, &sdk.TerminateInstancesInput{InstanceIds: []string{one}})
	if err != nil || *terminated.TerminatingInstances[0].PreviousState.Code != 16 || *terminated.TerminatingInstances[0].CurrentState.Code != 48 {
		t.Errorf("terminate: got %+v, %v", terminated, err)
	}
	err = sdk.NewInstanceTerminatedWaiter(f.client).Wait(ctx, &sdk.DescribeInstancesInput{InstanceIds: []string{one}}, time.Second)
	if err != nil {
		t.Errorf("wait: %v", err)
	}
	out, err = f.client.DescribeInstances(ctx, &sdk.DescribeInstancesInput{InstanceIds: []string{one}})
	if err != nil {
		t.Fatal(err)
	}
	if i := out.Reservations[0].Instances[0]; *i.StateReason.Code != "Client.UserInitiatedShutdown" || !strings.HasPrefix(*i.StateTransitionReason, "User initiated (") {
		t.Errorf("terminated: got %+v", i)
	}

	for _, tt := range []struct{ id, code string }{{"i-x", "InvalidInstanceID.Malformed"}, {"i-0000000000000000a", "InvalidInstanceID.NotFound"}} {
		_, err := f.client.DescribeInstances(ctx, &sdk.DescribeInstancesInput{InstanceIds: []string{tt.id}})
		wantCode(t, err, tt.code)
	}
	_, err = f.client.RunInstances(ctx, &sdk.RunInstancesInput{MinCount: aws.Int32(1), MaxCount: aws.Int32(1)})
	wantCode(t, err, "UnsupportedOperation")
	_, err = f.in("us-east-1").DescribeInstances(ctx, &sdk.DescribeInstancesInput{InstanceIds: []string{two}})
	wantCode(t, err, "InvalidInstanceID.NotFound")
}

func TestInstancePages(t *testing.T) {
	f := newFixture(t)
	for n := range 12 {
		f.putInstance(t, "i-0000000000000000"+string("0123456789ab"[n]), fleet.Running, "g")
		f.Clock.Advance(time.Millisecond)
	}
	var got []string
	pages := sdk.NewDescribeInstancesPaginator(f.client, &sdk.DescribeInstancesInput{MaxResults: aws.Int32(5)})
	for pages.HasMorePages() {
		p, err := pages.NextPage(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range p.Reservations {
			got = append(got, (*r.Instances[0].InstanceId)[18:])
		}
	}
	if strings.Join(got, "") != "0123456789ab" {
		t.Errorf("got %v", got)
	}
	_, err := f.client.DescribeInstances(t.Context(), &sdk.DescribeInstancesInput{NextToken: aws.String("x")})
	wantCode(t, err, "InvalidNextToken")
	_, err = f.client.DescribeInstances(t.Context(), &sdk.DescribeInstancesInput{MaxResults: aws.Int32(2)})
	wantCode(t, err, "InvalidParameterValue")
}

func TestTags(t *testing.T) {
	f := newFixture(t)
	ctx := t.Context()
	i := f.putInstance(t, "i-00000000000000001", fleet.Running, "g")
	tag := []types.Tag{{Key: aws.String("Name"), Value: aws.String("login")}}
	if _, err := f.client.CreateTags(ctx, &sdk.CreateTagsInput{Resources: []string{i.ID, i.SubnetID}, Tags: tag}); err != nil {
		t.Fatal(err)
	}
	out, err := f.client.DescribeTags(ctx, &sdk.DescribeTagsInput{Filters: []types.Filter{filter("key", "Name")}})
	if err != nil || len(out.Tags) != 2 {
		t.Errorf("got %+v, %v", out, err)
	}
	if _, err := f.client.DeleteTags(ctx, &sdk.DeleteTagsInput{Resources: []string{i.ID}, Tags: []types.Tag{{Key: aws.String("Name")}}}); err != nil {
		t.Error(err)
	}
	out, err = f.client.DescribeTags(ctx, &sdk.DescribeTagsInput{Filters: []types.Filter{filter("resource-type", "instance")}})
	if err != nil || len(out.Tags) != 2 { // the two of PCS
		t.Errorf("got %+v, %v", out, err)
	}
	_, err = f.client.CreateTags(ctx, &sdk.CreateTagsInput{Resources: []string{i.ID}, Tags: []types.Tag{{Key: aws.String("aws:x"), Value: aws.String("")}}})
	wantCode(t, err, "InvalidParameterValue")
	_, err = f.client.CreateTags(ctx, &sdk.CreateTagsInput{Resources: []string{"vol-1"}, Tags: tag})
	wantCode(t, err, "InvalidID")
}

func TestSecurityGroups(t *testing.T) {
	f := newFixture(t)
	ctx := t.Context()
	g, err := f.client.CreateSecurityGroup(ctx, &sdk.CreateSecurityGroupInput{GroupName: aws.String("cluster"), Description: aws.String("nodes")})
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.client.CreateSecurityGroup(ctx, &sdk.CreateSecurityGroupInput{GroupName: aws.String("cluster"), Description: aws.String("nodes")})
	wantCode(t, err, "InvalidGroup.Duplicate")
	rule := []types.IpPermission{{IpProtocol: aws.String("tcp"), FromPort: aws.Int32(6817), ToPort: aws.Int32(6820), UserIdGroupPairs: []types.UserIdGroupPair{{GroupId: g.GroupId}}}}
	auth, err := f.client.AuthorizeSecurityGroupIngress(ctx, &sdk.AuthorizeSecurityGroupIngressInput{GroupId: g.GroupId, IpPermissions: rule})
	if err != nil || len(auth.SecurityGroupRules) != 1 {
		t.Fatalf("got %+v, %v", auth, err)
	}
	_, err = f.client.AuthorizeSecurityGroupIngress(ctx, &sdk.AuthorizeSecurityGroupIngressInput{GroupId: g.GroupId, IpPermissions: rule})
	wantCode(t, err, "InvalidPermission.Duplicate")
	_, err = f.client.AuthorizeSecurityGroupIngress(ctx, &sdk.AuthorizeSecurityGroupIngressInput{GroupId: g.GroupId, IpProtocol: aws.String("tcp"), FromPort: aws.Int32(22), ToPort: aws.Int32(22), CidrIp: aws.String("10.0.0.1/8")})
	if err != nil {
		t.Error(err)
	}
	out, err := f.client.DescribeSecurityGroups(ctx, &sdk.DescribeSecurityGroupsInput{GroupIds: []string{*g.GroupId}})
	if err != nil || len(out.SecurityGroups[0].IpPermissions) != 2 || *out.SecurityGroups[0].IpPermissions[1].IpRanges[0].CidrIp != "10.0.0.0/8" {
		t.Errorf("got %+v, %v", out, err)
	}
	if _, err := f.client.RevokeSecurityGroupIngress(ctx, &sdk.RevokeSecurityGroupIngressInput{GroupId: g.GroupId, IpPermissions: rule}); err != nil {
		t.Error(err)
	}
	_, err = f.client.RevokeSecurityGroupIngress(ctx, &sdk.RevokeSecurityGroupIngressInput{GroupId: g.GroupId, IpPermissions: rule})
	wantCode(t, err, "InvalidPermission.NotFound")
	if _, err := f.client.DeleteSecurityGroup(ctx, &sdk.DeleteSecurityGroupInput{GroupId: g.GroupId}); err != nil {
		t.Error(err)
	}
	_, err = f.client.DescribeSecurityGroups(ctx, &sdk.DescribeSecurityGroupsInput{GroupIds: []string{*g.GroupId}})
	wantCode(t, err, "InvalidGroup.NotFound")
}

func TestInstanceTypes(t *testing.T) {
	f := newFixture(t)
	out, err := f.client.DescribeInstanceTypes(t.Context(), &sdk.DescribeInstanceTypesInput{InstanceTypes: []types.InstanceType{"t3.micro", "g5.12xlarge"}})
	if err != nil || len(out.InstanceTypes) != 2 {
		t.Fatalf("got %+v, %v", out, err)
	}
	g5, t3 := out.InstanceTypes[0], out.InstanceTypes[1]
	if *t3.VCpuInfo.DefaultVCpus != 2 || *t3.VCpuInfo.DefaultCores != 1 || *t3.MemoryInfo.SizeInMiB != 1024 || !*t3.BurstablePerformanceSupported {
		t.Errorf("t3.micro: got %+v", t3)
	}
	if *g5.GpuInfo.Gpus[0].Count != 4 || *g5.GpuInfo.Gpus[0].Name != "A10G" || !*g5.NetworkInfo.EfaSupported {
		t.Errorf("g5.12xlarge: got %+v", g5)
	}
	_, err = f.client.DescribeInstanceTypes(t.Context(), &sdk.DescribeInstanceTypesInput{InstanceTypes: []types.InstanceType{"t3.huge"}})
	wantCode(t, err, "InvalidInstanceType")
	off, err := f.client.DescribeInstanceTypeOfferings(t.Context(), &sdk.DescribeInstanceTypeOfferingsInput{LocationType: "availability-zone", Filters: []types.Filter{filter("instance-type", "t3.micro")}})
	if err != nil || len(off.InstanceTypeOfferings) != 3 {
		t.Errorf("offerings: got %+v, %v", off, err)
	}
}

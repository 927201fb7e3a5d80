package awsapi_test

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/openpcs/openpcs/internal/awsapi"
	"github.com/openpcs/openpcs/internal/awsapi/awsapitest"
	"github.com/openpcs/openpcs/internal/ec2"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/secretsmanager"
	"github.com/openpcs/openpcs/internal/store"
)

// neighbours calls the services that PCS users need besides PCS.
type neighbours struct {
	*awsapitest.World
	t        *testing.T
	services []awsapi.Service
}

func newNeighbours(t *testing.T) *neighbours {
	w, all := allServices(t)
	w.Serve(t, all...)
	return &neighbours{w, t, slices.DeleteFunc(all, func(s awsapi.Service) bool { return s.Name == "pcs" })}
}

// try calls an operation: query services with a form, JSON services with a
// document.
func (n *neighbours) try(svc awsapi.Service, op string, in any) (string, *awsapi.Error) {
	n.t.Helper()
	var err error
	var answer []byte
	switch in := in.(type) {
	case url.Values:
		answer, err = n.Client().Query(n.t.Context(), svc.Name, svc.Version, op, in)
	default:
		err = n.Client().JSON(n.t.Context(), svc.Name, svc.Target, op, "1.1", in, nil)
	}
	var e *awsapi.Error
	if err != nil && !errors.As(err, &e) {
		n.t.Fatalf("%s %s: %v", svc.Name, op, err)
	}
	return string(answer), e
}

// refuses checks that a call is refused with the code, says so, and changes
// nothing.
func (n *neighbours) refuses(svc awsapi.Service, op string, in any, code, says string) {
	n.t.Helper()
	before := n.Stored(n.t)
	answer, e := n.try(svc, op, in)
	what := fmt.Sprintf("%s %s %v", svc.Name, op, in)
	switch {
	case e == nil:
		n.t.Errorf("%.300s: it is taken: %.300s", what, answer)
	case e.Code != code || e.Status < 400 || e.Status > 499:
		n.t.Errorf("%.300s: %d %v, want %s", what, e.Status, e, code)
	case e.Message == "" || !strings.Contains(e.Message, says):
		n.t.Errorf("%.300s: the message %q does not say %q", what, e.Message, says)
	}
	if n.Stored(n.t) != before {
		n.t.Errorf("%.300s: something was stored", what)
	}
}

// right is a value that a parameter of the type may have.
func right(t reflect.Type, name string) url.Values {
	switch t.Kind() {
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return url.Values{name: {"eA=="}}
		}
		return right(t.Elem(), name+".1")
	case reflect.Struct:
		out := url.Values{}
		for _, f := range reflect.VisibleFields(t) {
			tag, _, _ := strings.Cut(f.Tag.Get("query"), ",")
			if tag != "" {
				for k, v := range right(f.Type, name+"."+tag) {
					return url.Values{k: v} // one member is enough to be there
				}
			}
		}
		return out
	case reflect.Int32, reflect.Int:
		return url.Values{name: {"5"}}
	case reflect.Bool:
		return url.Values{name: {"false"}}
	case reflect.Pointer:
		return right(t.Elem(), name)
	default:
		return url.Values{name: {"x"}}
	}
}

// TestEveryParameterOfTheNeighboursIsRead sends, for each parameter of each
// operation, what is none of its type, and leaves out each that is required.
func TestEveryParameterOfTheNeighboursIsRead(t *testing.T) {
	n := newNeighbours(t)
	count := 0
	refuses := func(svc awsapi.Service, op string, in any, code, says string) {
		t.Helper()
		count++
		n.refuses(svc, op, in, code, says)
	}
	for _, svc := range n.services {
		unknown, missing, bad := "UnknownParameter", "MissingParameter", "InvalidParameterValue"
		if svc.Protocol == awsapi.Query {
			unknown, missing, bad = "ValidationError", "ValidationError", "MalformedInput"
		}
		for _, op := range svc.Operations {
			if op.In == nil {
				continue // refused whatever it says
			}
			fields := reflect.VisibleFields(op.In)
			if svc.Protocol == awsapi.JSON11 {
				for _, f := range fields {
					name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
					if name == "" || f.Type.Kind() == reflect.Interface {
						continue
					}
					wrong := any("x")
					kind := f.Type
					if kind.Kind() == reflect.Pointer {
						kind = kind.Elem()
					}
					if kind.Kind() == reflect.String {
						wrong = 7
					}
					refuses(svc, op.Name, map[string]any{name: wrong}, "SerializationException", name)
					if kind.Kind() == reflect.Slice {
						refuses(svc, op.Name, map[string]any{name: []any{nil}}, "SerializationException", name+"[0]")
					}
				}
				refuses(svc, op.Name, []any{}, "SerializationException", "must be a JSON object")
				continue
			}
			full := url.Values{}
			for _, f := range fields {
				if name, options, _ := strings.Cut(f.Tag.Get("query"), ","); options == "required" {
					for k, v := range right(f.Type, name) {
						full[k] = v
					}
				}
			}
			for _, f := range fields {
				name, options, _ := strings.Cut(f.Tag.Get("query"), ",")
				if name == "" {
					continue
				}
				without := url.Values{}
				for k, v := range full {
					if k != name && !strings.HasPrefix(k, name+".") {
						without[k] = v
					}
				}
				if options == "required" {
					refuses(svc, op.Name, without, missing, name)
				}
				with := func(k, v string) url.Values {
					out := url.Values{k: {v}}
					for k, v := range without {
						out[k] = v
					}
					return out
				}
				kind := f.Type
				if kind.Kind() == reflect.Pointer {
					kind = kind.Elem()
				}
				switch {
				case kind.Kind() == reflect.Int32 || kind.Kind() == reflect.Bool:
					refuses(svc, op.Name, with(name, "many"), bad, name)
					refuses(svc, op.Name, with(name, "99999999999"), bad, name)
					refuses(svc, op.Name, with(name+".1", "1"), unknown, name+".1")
				case kind.Kind() == reflect.Slice && kind.Elem().Kind() != reflect.Uint8:
					refuses(svc, op.Name, with(name, "x"), bad, name)
					refuses(svc, op.Name, with(name+".first", "x"), unknown, name+".first")
					refuses(svc, op.Name, with(name+".-1", "x"), unknown, name+".-1")
				case kind.Kind() == reflect.Slice:
					refuses(svc, op.Name, with(name, "%%%"), bad, name)
				case kind.Kind() == reflect.Struct:
					refuses(svc, op.Name, with(name, "x"), bad, name)
					refuses(svc, op.Name, with(name+".Colour", "red"), unknown, name+".Colour")
				default:
					refuses(svc, op.Name, with(name+".1", "x"), unknown, name+".1")
				}
			}
			colour := url.Values{"Colour": {"red"}}
			for k, v := range full {
				colour[k] = v
			}
			refuses(svc, op.Name, colour, unknown, "Colour")
		}
	}
	t.Logf("%d wrong requests", count)
	if count < 300 {
		t.Errorf("there are %d wrong requests only", count)
	}
}

// TestWrongRequestsToTheNeighbours are requests that are wrong in what they
// say, each with the service's own code.
func TestWrongRequestsToTheNeighbours(t *testing.T) {
	n := newNeighbours(t)
	service := map[string]awsapi.Service{}
	for _, s := range n.services {
		service[s.Name] = s
	}
	const template = "LaunchTemplateData."
	made, e := n.try(service["ec2"], "CreateLaunchTemplate", url.Values{"LaunchTemplateName": {"here"}, template + "KeyName": {"k"}})
	if e != nil {
		t.Fatal(e)
	}
	lt := regexp.MustCompile(`lt-[0-9a-f]{17}`).FindString(made)
	const trust = `{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Principal":{"Service":"ec2.amazonaws.com"},"Action":"sts:AssumeRole"}]}`
	const allow = `{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":"*","Resource":"*"}]}`
	var vpc fleet.Subnet
	var sg, secret, version string
	n.Update(t, func(tx *store.Tx) error {
		subnets, err := fleet.Subnets.InRegion(tx, awsapitest.Region)
		if err != nil {
			return err
		}
		groups, err := ec2.SecurityGroups.All(tx)
		if err != nil {
			return err
		}
		vpc, sg = subnets[0], groups[0].ID
		if secret, version, err = secretsmanager.Create(tx, awsapitest.Region, awsapitest.Account, "pcs!slurm-secret-x", "a2V5", "pcs", n.Clock.Now()); err != nil {
			return err
		}
		return fleet.Instances.Put(tx, fleet.Instance{ID: "i-0123456789abcdef0", Region: awsapitest.Region, State: fleet.Terminated, SubnetID: vpc.ID, VPCID: vpc.VPCID})
	})
	const none = "0123456789abcdef1" // a well-formed id of nothing
	form := func(pairs ...string) url.Values {
		out := url.Values{}
		for i := 0; i < len(pairs); i += 2 {
			out.Set(pairs[i], pairs[i+1])
		}
		return out
	}
	type doc = map[string]any
	long := strings.Repeat("a", 300)
	rule := func(pairs ...string) url.Values { return form(append([]string{"GroupId", sg}, pairs...)...) }
	data := func(pairs ...string) url.Values {
		return form(append([]string{"LaunchTemplateName", "fresh"}, pairs...)...)
	}
	for _, tt := range []struct {
		service, op string
		in          any
		code, says  string
	}{
		{"ec2", "DescribeImages", form("ImageId.1", "debian"), "InvalidAMIID.Malformed", "debian"},
		{"ec2", "DescribeImages", form("ImageId.1", "ami-"+none), "InvalidAMIID.NotFound", none},
		{"ec2", "DescribeImages", form("Filter.1.Name", "colour", "Filter.1.Value.1", "red"), "InvalidParameterValue", "colour"},
		{"ec2", "DescribeImages", form("Filter.1.Value.1", "red"), "MissingParameter", "Filter"},
		{"ec2", "DescribeImages", form("MaxResults", "0"), "InvalidParameterValue", "maxResults"},
		{"ec2", "DescribeImages", form("NextToken", "x", "MaxResults", "5"), "InvalidNextToken", "token"},
		{"ec2", "DescribeInstances", form("InstanceId.1", "i-x"), "InvalidInstanceID.Malformed", "i-x"},
		{"ec2", "DescribeInstances", form("InstanceId.1", "i-"+none), "InvalidInstanceID.NotFound", none},
		{"ec2", "DescribeInstances", form("InstanceId.1", "i-0123456789abcdef0", "InstanceId.2", "i-"+none), "InvalidInstanceID.NotFound", none},
		{"ec2", "DescribeInstances", form("InstanceId.1", ""), "InvalidInstanceID.Malformed", ""},
		{"ec2", "DescribeInstances", form("InstanceId.1", "I-0123456789ABCDEF0"), "InvalidInstanceID.Malformed", ""},
		{"ec2", "DescribeInstances", form("InstanceId.1", "i-0123456789abcdef0", "MaxResults", "5"), "InvalidParameterCombination", "maxResults"},
		{"ec2", "DescribeInstances", form("MaxResults", "4"), "InvalidParameterValue", "greater than or equal to 5"},
		{"ec2", "DescribeInstances", form("MaxResults", "1001"), "InvalidParameterValue", "less than or equal to 1000"},
		{"ec2", "DescribeInstances", form("NextToken", "garbage"), "InvalidNextToken", "token"},
		{"ec2", "DescribeInstances", form("Filter.1.Name", "instance-colour", "Filter.1.Value.1", "x"), "InvalidParameterValue", "instance-colour"},
		{"ec2", "DescribeInstances", form("Filters.1.Name", "instance-id"), "UnknownParameter", "Filters.1.Name"},
		{"ec2", "DescribeInstances", form("DryRun", "true"), "DryRunOperation", "DryRun"},
		{"ec2", "DescribeInstanceStatus", form("InstanceId.1", "i-"+none), "InvalidInstanceID.NotFound", none},
		{"ec2", "TerminateInstances", form("InstanceId.1", "i-"+none), "InvalidInstanceID.NotFound", none},
		{"ec2", "TerminateInstances", form("InstanceId.1", "node-1"), "InvalidInstanceID.Malformed", "node-1"},
		{"ec2", "TerminateInstances", form("InstanceId.1", "i-0123456789abcdef0", "DryRun", "true"), "DryRunOperation", ""},
		{"ec2", "RebootInstances", form("InstanceId.1", "i-0123456789abcdef0"), "IncorrectState", "terminated"},
		{"ec2", "RebootInstances", form("InstanceId.1", "i-"+none), "InvalidInstanceID.NotFound", none},
		{"ec2", "GetConsoleOutput", form("InstanceId", "i-"+none), "InvalidInstanceID.NotFound", none},
		{"ec2", "RunInstances", form("ImageId", "ami-"+none, "MinCount", "1", "MaxCount", "1"), "UnsupportedOperation", "compute node group"},
		{"ec2", "StopInstances", form("InstanceId.1", "i-0123456789abcdef0"), "UnsupportedOperation", ""},
		{"ec2", "StartInstances", form("InstanceId.1", "i-0123456789abcdef0"), "UnsupportedOperation", ""},
		{"ec2", "CreateLaunchTemplate", data(), "MissingParameter", "LaunchTemplateData"},
		{"ec2", "CreateLaunchTemplate", form("LaunchTemplateName", "ab", template+"KeyName", "k"), "InvalidLaunchTemplateName.MalformedException", "3 and 128"},
		{"ec2", "CreateLaunchTemplate", form("LaunchTemplateName", "a b c", template+"KeyName", "k"), "InvalidLaunchTemplateName.MalformedException", ""},
		{"ec2", "CreateLaunchTemplate", form("LaunchTemplateName", long, template+"KeyName", "k"), "InvalidLaunchTemplateName.MalformedException", ""},
		{"ec2", "CreateLaunchTemplate", form("LaunchTemplateName", "here", template+"KeyName", "k"), "InvalidLaunchTemplateName.AlreadyExistsException", ""},
		{"ec2", "CreateLaunchTemplate", data(template+"KeyName", "k", "VersionDescription", long), "InvalidParameterValue", "versionDescription"},
		{"ec2", "CreateLaunchTemplate", data(template+"KeyName", "k", "ClientToken", long), "InvalidParameterValue", "clientToken"},
		{"ec2", "CreateLaunchTemplate", data(template+"UserData", "%%%"), "InvalidUserData.Malformed", "BASE64"},
		{"ec2", "CreateLaunchTemplate", data(template+"UserData", strings.Repeat("QUFB", 6000)), "InvalidParameterValue", "16384"},
		{"ec2", "CreateLaunchTemplate", data(template+"ImageId", "debian"), "InvalidAMIID.Malformed", "debian"},
		{"ec2", "CreateLaunchTemplate", data(template+"MetadataOptions.HttpTokens", "maybe"), "InvalidParameterValue", "maybe"},
		{"ec2", "CreateLaunchTemplate", data(template+"MetadataOptions.HttpPutResponseHopLimit", "65"), "InvalidParameterValue", "HttpPutResponseHopLimit"},
		{"ec2", "CreateLaunchTemplate", data(template+"InstanceMarketOptions.MarketType", "barter"), "InvalidParameterValue", "barter"},
		{"ec2", "CreateLaunchTemplate", data(template+"Colour", "red"), "UnknownParameter", template + "Colour"},
		{"ec2", "CreateLaunchTemplate", data(template+"KeyName", "k", "TagSpecification.1.ResourceType", "instance", "TagSpecification.1.Tag.1.Key", "k"), "InvalidParameterValue", "instance"},
		{"ec2", "CreateLaunchTemplate", data(template+"KeyName", "k", "TagSpecification.1.ResourceType", "launch-template", "TagSpecification.1.Tag.1.Key", "aws:k"), "InvalidParameterValue", "aws:"},
		{"ec2", "CreateLaunchTemplateVersion", form("LaunchTemplateId", "lt-"+none, template+"KeyName", "k"), "InvalidLaunchTemplateId.NotFound", none},
		{"ec2", "CreateLaunchTemplateVersion", form("LaunchTemplateId", "lt-x", template+"KeyName", "k"), "InvalidLaunchTemplateId.Malformed", "lt-x"},
		{"ec2", "CreateLaunchTemplateVersion", form("LaunchTemplateName", "nobody", template+"KeyName", "k"), "InvalidLaunchTemplateName.NotFoundException", ""},
		{"ec2", "CreateLaunchTemplateVersion", form("LaunchTemplateId", lt, "LaunchTemplateName", "here", template+"KeyName", "k"), "InvalidParameterCombination", "not both"},
		{"ec2", "CreateLaunchTemplateVersion", form(template+"KeyName", "k"), "MissingParameter", "LaunchTemplateId"},
		{"ec2", "CreateLaunchTemplateVersion", form("LaunchTemplateId", lt, "SourceVersion", "9", template+"KeyName", "k"), "InvalidLaunchTemplateId.VersionNotFound", "9"},
		{"ec2", "CreateLaunchTemplateVersion", form("LaunchTemplateId", lt, "SourceVersion", "one", template+"KeyName", "k"), "InvalidLaunchTemplateId.VersionNotFound", "one"},
		{"ec2", "DescribeLaunchTemplates", form("LaunchTemplateId.1", "lt-"+none), "InvalidLaunchTemplateId.NotFound", none},
		{"ec2", "DescribeLaunchTemplates", form("LaunchTemplateId.1", "x"), "InvalidLaunchTemplateId.Malformed", "x"},
		{"ec2", "DescribeLaunchTemplates", form("LaunchTemplateName.1", "nobody"), "InvalidLaunchTemplateName.NotFoundException", ""},
		{"ec2", "DescribeLaunchTemplates", form("Filter.1.Name", "colour"), "InvalidParameterValue", "colour"},
		{"ec2", "DescribeLaunchTemplates", form("MaxResults", "201"), "InvalidParameterValue", "200"},
		{"ec2", "DescribeLaunchTemplateVersions", form("LaunchTemplateId", lt, "LaunchTemplateVersion.1", "9"), "InvalidLaunchTemplateId.VersionNotFound", "9"},
		{"ec2", "DescribeLaunchTemplateVersions", form("LaunchTemplateId", lt, "LaunchTemplateVersion.1", "1", "MinVersion", "1"), "InvalidParameterCombination", "MinVersion"},
		{"ec2", "DescribeLaunchTemplateVersions", form("LaunchTemplateVersion.1", "1"), "InvalidParameterCombination", "$Latest"},
		{"ec2", "DescribeLaunchTemplateVersions", form(), "MissingParameter", "LaunchTemplateId"},
		{"ec2", "ModifyLaunchTemplate", form("LaunchTemplateId", lt, "SetDefaultVersion", "9"), "InvalidLaunchTemplateId.VersionNotFound", "9"},
		{"ec2", "DeleteLaunchTemplate", form("LaunchTemplateName", "nobody"), "InvalidLaunchTemplateName.NotFoundException", ""},
		{"ec2", "DescribeSubnets", form("SubnetId.1", "subnet-"+none), "InvalidSubnetID.NotFound", none},
		{"ec2", "DescribeVpcs", form("VpcId.1", "vpc-"+none), "InvalidVpcID.NotFound", none},
		{"ec2", "DescribeVpcAttribute", form("VpcId", vpc.VPCID, "Attribute", "colour"), "InvalidParameterValue", "colour"},
		{"ec2", "DescribeVpcAttribute", form("VpcId", "vpc-"+none, "Attribute", "enableDnsSupport"), "InvalidVpcID.NotFound", none},
		{"ec2", "DescribeAvailabilityZones", form("ZoneName.1", "moon-1a"), "InvalidParameterValue", "moon-1a"},
		{"ec2", "DescribeRegions", form("RegionName.1", "moon-1"), "InvalidParameterValue", "moon-1"},
		{"ec2", "DescribeSecurityGroups", form("GroupId.1", "sg-"+none), "InvalidGroup.NotFound", none},
		{"ec2", "DescribeSecurityGroups", form("GroupId.1", "x"), "InvalidGroupId.Malformed", "x"},
		{"ec2", "DescribeSecurityGroups", form("GroupName.1", "nobody"), "InvalidGroup.NotFound", "nobody"},
		{"ec2", "CreateSecurityGroup", form("GroupName", "default", "GroupDescription", "d"), "InvalidParameterValue", "default"},
		{"ec2", "CreateSecurityGroup", form("GroupName", "sg-x", "GroupDescription", "d"), "InvalidParameterValue", "sg-"},
		{"ec2", "CreateSecurityGroup", form("GroupName", "x", "GroupDescription", long), "InvalidParameterValue", "groupDescription"},
		{"ec2", "CreateSecurityGroup", form("GroupName", "x", "GroupDescription", "d", "VpcId", "vpc-"+none), "InvalidVpcID.NotFound", none},
		{"ec2", "DeleteSecurityGroup", form("GroupId", sg), "CannotDelete", "default"},
		{"ec2", "DeleteSecurityGroup", form(), "MissingParameter", "groupId"},
		{"ec2", "AuthorizeSecurityGroupIngress", rule(), "MissingParameter", "ipPermissions"},
		{"ec2", "AuthorizeSecurityGroupIngress", rule("IpProtocol", "carrier-pigeon", "CidrIp", "10.0.0.0/8"), "InvalidParameterValue", "carrier-pigeon"},
		{"ec2", "AuthorizeSecurityGroupIngress", rule("IpProtocol", "tcp", "FromPort", "22", "ToPort", "21", "CidrIp", "10.0.0.0/8"), "InvalidParameterValue", "portRange"},
		{"ec2", "AuthorizeSecurityGroupIngress", rule("IpProtocol", "tcp", "FromPort", "22", "ToPort", "22", "CidrIp", "10.0.0.0/33"), "InvalidParameterValue", "10.0.0.0/33"},
		{"ec2", "AuthorizeSecurityGroupIngress", rule("IpProtocol", "tcp", "FromPort", "22", "ToPort", "22"), "MissingParameter", "source"},
		{"ec2", "RevokeSecurityGroupEgress", rule("IpPermissions.1.IpProtocol", "tcp", "IpPermissions.1.FromPort", "1", "IpPermissions.1.ToPort", "1", "IpPermissions.1.IpRanges.1.CidrIp", "10.0.0.0/8"), "InvalidPermission.NotFound", ""},
		{"ec2", "DescribeInstanceTypes", form("InstanceType.1", "t3.huge"), "InvalidInstanceType", "t3.huge"},
		{"ec2", "DescribeInstanceTypeOfferings", form("LocationType", "moon"), "InvalidParameterValue", "moon"},
		{"ec2", "DescribeKeyPairs", form("KeyName.1", "nobody"), "InvalidKeyPair.NotFound", "nobody"},
		{"ec2", "CreateKeyPair", form("KeyName", " "), "InvalidParameterValue", "keyName"},
		{"ec2", "CreateKeyPair", form("KeyName", "k", "KeyType", "dsa"), "InvalidParameterValue", "dsa"},
		{"ec2", "CreateKeyPair", form("KeyName", "k", "KeyFormat", "ppk"), "InvalidParameterValue", "ppk"},
		{"ec2", "ImportKeyPair", form("KeyName", "k", "PublicKeyMaterial", "eHh4"), "InvalidKey.Format", ""},
		{"ec2", "DeleteKeyPair", form(), "MissingParameter", "KeyName"},
		{"ec2", "CreateTags", form("ResourceId.1", "x", "Tag.1.Key", "k"), "InvalidID", "x"},
		{"ec2", "CreateTags", form("ResourceId.1", lt, "Tag.1.Key", "aws:k"), "InvalidParameterValue", "aws:"},
		{"ec2", "CreateTags", form("ResourceId.1", lt, "Tag.1.Key", ""), "InvalidParameterValue", "1 to 128"},
		{"ec2", "CreateTags", form("ResourceId.1", lt, "Tag.1.Key", "k", "Tag.1.Value", long), "InvalidParameterValue", "256"},
		{"ec2", "CreateTags", form("ResourceId.1", "i-"+none, "Tag.1.Key", "k"), "InvalidInstanceID.NotFound", none},
		{"ec2", "DescribeTags", form("Filter.1.Name", "colour"), "InvalidParameterValue", "colour"},
		{"ec2", "DescribeVpcEndpoints", form(), "InvalidAction", "DescribeVpcEndpoints"},

		{"iam", "CreateRole", form("RoleName", "a b", "AssumeRolePolicyDocument", trust), "ValidationError", "roleName"},
		{"iam", "CreateRole", form("RoleName", strings.Repeat("a", 65), "AssumeRolePolicyDocument", trust), "ValidationError", "64"},
		{"iam", "CreateRole", form("RoleName", "x", "Path", "x", "AssumeRolePolicyDocument", trust), "ValidationError", "path"},
		{"iam", "CreateRole", form("RoleName", "x", "AssumeRolePolicyDocument", "allow"), "MalformedPolicyDocument", ""},
		{"iam", "CreateRole", form("RoleName", "x", "AssumeRolePolicyDocument", allow), "MalformedPolicyDocument", "principal"},
		{"iam", "CreateRole", form("RoleName", "awspcs-DEFAULT", "AssumeRolePolicyDocument", trust), "EntityAlreadyExists", ""},
		{"iam", "CreateRole", form("RoleName", "x", "AssumeRolePolicyDocument", trust, "MaxSessionDuration", "60"), "ValidationError", "3600"},
		{"iam", "CreateRole", form("RoleName", "x", "AssumeRolePolicyDocument", trust, "Tags.member.1.Key", "aws:x", "Tags.member.1.Value", "y"), "InvalidInput", "aws:"},
		{"iam", "GetRole", form("RoleName", "nobody"), "NoSuchEntity", "nobody"},
		{"iam", "DeleteRole", form("RoleName", "nobody"), "NoSuchEntity", "nobody"},
		{"iam", "DeleteRole", form("RoleName", "AWSPCS-default"), "DeleteConflict", "instance profile"},
		{"iam", "UpdateAssumeRolePolicy", form("RoleName", "nobody", "PolicyDocument", trust), "NoSuchEntity", "nobody"},
		{"iam", "PutRolePolicy", form("RoleName", "AWSPCS-default", "PolicyName", "p", "PolicyDocument", "{}"), "MalformedPolicyDocument", ""},
		{"iam", "PutRolePolicy", form("RoleName", "AWSPCS-default", "PolicyName", "a b", "PolicyDocument", allow), "ValidationError", "policyName"},
		{"iam", "PutRolePolicy", form("RoleName", "nobody", "PolicyName", "p", "PolicyDocument", allow), "NoSuchEntity", "nobody"},
		{"iam", "GetRolePolicy", form("RoleName", "AWSPCS-default", "PolicyName", "nothing"), "NoSuchEntity", "nothing"},
		{"iam", "DeleteRolePolicy", form("RoleName", "AWSPCS-default", "PolicyName", "nothing"), "NoSuchEntity", "nothing"},
		{"iam", "AttachRolePolicy", form("RoleName", "AWSPCS-default", "PolicyArn", "arn:aws:iam::aws:policy/Nothing"), "NoSuchEntity", "Nothing"},
		{"iam", "DetachRolePolicy", form("RoleName", "AWSPCS-default", "PolicyArn", "arn:aws:iam::aws:policy/Nothing"), "NoSuchEntity", "Nothing"},
		{"iam", "GetPolicy", form("PolicyArn", "arn:aws:iam::aws:policy/Nothing"), "NoSuchEntity", "Nothing"},
		{"iam", "ListRolePolicies", form("RoleName", "nobody"), "NoSuchEntity", "nobody"},
		{"iam", "ListAttachedRolePolicies", form("RoleName", "nobody"), "NoSuchEntity", "nobody"},
		{"iam", "ListRoles", form("MaxItems", "0"), "ValidationError", "maxItems"},
		{"iam", "ListRoles", form("MaxItems", "1001"), "ValidationError", "maxItems"},
		{"iam", "ListRoles", form("Marker", "garbage"), "ValidationError", "token"},
		{"iam", "CreateInstanceProfile", form("InstanceProfileName", "a/b"), "ValidationError", "instanceProfileName"},
		{"iam", "CreateInstanceProfile", form("InstanceProfileName", "AWSPCS-default"), "EntityAlreadyExists", ""},
		{"iam", "GetInstanceProfile", form("InstanceProfileName", "nobody"), "NoSuchEntity", "nobody"},
		{"iam", "DeleteInstanceProfile", form("InstanceProfileName", "AWSPCS-default"), "DeleteConflict", "roles"},
		{"iam", "AddRoleToInstanceProfile", form("InstanceProfileName", "AWSPCS-default", "RoleName", "AWSPCS-default"), "LimitExceeded", "1"},
		{"iam", "AddRoleToInstanceProfile", form("InstanceProfileName", "nobody", "RoleName", "AWSPCS-default"), "NoSuchEntity", "nobody"},
		{"iam", "RemoveRoleFromInstanceProfile", form("InstanceProfileName", "AWSPCS-default", "RoleName", "nobody"), "NoSuchEntity", "nobody"},
		{"iam", "ListInstanceProfilesForRole", form("RoleName", "nobody"), "NoSuchEntity", "nobody"},
		{"iam", "CreateUser", form("UserName", "x"), "InvalidAction", "CreateUser"},

		{"sts", "GetCallerIdentity", form("Account", "1"), "ValidationError", "Account"},
		{"sts", "AssumeRole", form("RoleArn", "x", "RoleSessionName", "y"), "InvalidAction", "AssumeRole"},

		{"ssm", "SendCommand", doc{}, "ValidationException", "documentName"},
		{"ssm", "SendCommand", doc{"DocumentName": "AWS-RunPatchBaseline", "InstanceIds": []any{"i-" + none}}, "InvalidDocument", "AWS-RunShellScript"},
		{"ssm", "SendCommand", doc{"DocumentName": "AWS-RunShellScript", "InstanceIds": []any{"i-" + none}, "Parameters": doc{"commands": []any{"x"}}}, "InvalidInstanceId", none},
		{"ssm", "SendCommand", doc{"DocumentName": "AWS-RunShellScript", "Parameters": doc{"commands": []any{"x"}}}, "ValidationException", "InstanceIds"},
		{"ssm", "SendCommand", doc{"DocumentName": "AWS-RunShellScript", "InstanceIds": []any{"i-" + none}}, "InvalidParameters", "commands"},
		{"ssm", "SendCommand", doc{"DocumentName": "AWS-RunShellScript", "InstanceIds": []any{"i-" + none}, "Parameters": doc{"commands": []any{"x"}, "colour": []any{"red"}}}, "InvalidParameters", "colour"},
		{"ssm", "SendCommand", doc{"DocumentName": "AWS-RunShellScript", "DocumentVersion": "99", "InstanceIds": []any{"i-" + none}, "Parameters": doc{"commands": []any{"x"}}}, "InvalidDocumentVersion", "99"},
		{"ssm", "SendCommand", doc{"DocumentName": "AWS-RunShellScript", "InstanceIds": []any{"i-" + none}, "Comment": long, "Parameters": doc{"commands": []any{"x"}}}, "ValidationException", "Comment"},
		{"ssm", "GetCommandInvocation", doc{"CommandId": "x"}, "ValidationException", "InstanceId"},
		{"ssm", "GetCommandInvocation", doc{"CommandId": "x", "InstanceId": "i-" + none}, "InvocationDoesNotExist", "x"},
		{"ssm", "GetCommandInvocation", doc{"CommandId": "x", "InstanceId": "i-" + none, "PluginName": "colour"}, "InvalidPluginName", ""},
		{"ssm", "CancelCommand", doc{"CommandId": "x"}, "InvalidCommandId", "x"},
		{"ssm", "ListCommands", doc{"MaxResults": 0}, "ValidationException", "MaxResults"},
		{"ssm", "ListCommands", doc{"NextToken": "garbage"}, "InvalidNextToken", "token"},
		{"ssm", "ListCommandInvocations", doc{"MaxResults": 51}, "ValidationException", "50"},
		{"ssm", "SendCommand", doc{"DocumentName": "AWS-RunShellScript", "Targets": []any{doc{"Key": "colour", "Values": []any{"red"}}}, "Parameters": doc{"commands": []any{"x"}}}, "InvalidTarget", "colour"},
		{"ssm", "ListCommands", doc{"Filters": []any{doc{"key": "Colour", "value": "red"}}}, "InvalidFilterKey", "Colour"},
		{"ssm", "DescribeInstanceInformation", doc{"Filters": []any{doc{"Key": "Colour", "Values": []any{"red"}}}}, "InvalidInstanceInformationFilterValue", "Colour"},
		{"ssm", "StartSession", doc{"Target": "i-" + none}, "TargetNotConnected", "openpcs connect"},
		{"ssm", "GetParameter", doc{"Name": "x"}, "UnknownOperationException", "GetParameter"},

		{"secretsmanager", "GetSecretValue", doc{}, "InvalidParameterException", "SecretId"},
		{"secretsmanager", "GetSecretValue", doc{"SecretId": "nothing"}, "ResourceNotFoundException", ""},
		{"secretsmanager", "GetSecretValue", doc{"SecretId": secret + "x"}, "ResourceNotFoundException", ""},
		{"secretsmanager", "GetSecretValue", doc{"SecretId": secret, "VersionId": "x"}, "ResourceNotFoundException", "x"},
		{"secretsmanager", "GetSecretValue", doc{"SecretId": secret, "VersionId": version, "VersionStage": "AWSPENDING"}, "InvalidRequestException", "VersionStage"},
		{"secretsmanager", "GetSecretValue", doc{"SecretId": secret, "VersionStage": "AWSPENDING"}, "ResourceNotFoundException", "AWSPENDING"},
		{"secretsmanager", "DescribeSecret", doc{"SecretId": "nothing"}, "ResourceNotFoundException", ""},
		{"secretsmanager", "ListSecretVersionIds", doc{"SecretId": "nothing"}, "ResourceNotFoundException", ""},
		{"secretsmanager", "ListSecrets", doc{"MaxResults": 0}, "InvalidParameterException", "MaxResults"},
		{"secretsmanager", "ListSecrets", doc{"MaxResults": 101}, "InvalidParameterException", "100"},
		{"secretsmanager", "ListSecrets", doc{"NextToken": "garbage"}, "InvalidNextTokenException", "token"},
		{"secretsmanager", "ListSecrets", doc{"Filters": []any{doc{"Key": "colour", "Values": []any{"red"}}}}, "InvalidParameterException", "colour"},
		{"secretsmanager", "ListSecrets", doc{"SortOrder": "sideways"}, "InvalidParameterException", "SortOrder"},
		{"secretsmanager", "RotateSecret", doc{"SecretId": secret}, "InvalidRequestException", "managed by pcs"},
		{"secretsmanager", "DeleteSecret", doc{"SecretId": secret}, "InvalidRequestException", "managed by pcs"},
		{"secretsmanager", "PutSecretValue", doc{"SecretId": "nothing", "SecretString": "x"}, "ResourceNotFoundException", ""},
		{"secretsmanager", "CreateSecret", doc{"Name": "x", "SecretString": "y"}, "UnknownOperationException", "CreateSecret"},
	} {
		n.refuses(service[tt.service], tt.op, tt.in, tt.code, tt.says)
	}
}

// TestStatusOfErrors: the codes have the status that the services give them.
func TestStatusOfErrors(t *testing.T) {
	n := newNeighbours(t)
	for _, tt := range []struct {
		service, op string
		in          any
		status      int
	}{
		{"iam", "GetRole", url.Values{"RoleName": {"nobody"}}, http.StatusNotFound},
		{"iam", "CreateInstanceProfile", url.Values{"InstanceProfileName": {"AWSPCS-default"}}, http.StatusConflict},
		{"iam", "GetRole", url.Values{}, http.StatusBadRequest},
		{"ec2", "DescribeInstances", url.Values{"InstanceId.1": {"x"}}, http.StatusBadRequest},
		{"ec2", "DescribeInstances", url.Values{"DryRun": {"true"}}, http.StatusPreconditionFailed},
		{"ssm", "CancelCommand", map[string]any{"CommandId": "x"}, http.StatusBadRequest},
		{"secretsmanager", "GetSecretValue", map[string]any{"SecretId": "x"}, http.StatusBadRequest},
	} {
		svc := n.services[slices.IndexFunc(n.services, func(s awsapi.Service) bool { return s.Name == tt.service })]
		if _, e := n.try(svc, tt.op, tt.in); e == nil || e.Status != tt.status {
			t.Errorf("%s %s: %v, want status %d", tt.service, tt.op, e, tt.status)
		}
	}
}

package iam_test

import (
	"encoding/xml"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/openpcs/openpcs/internal/awsapi"
	"github.com/openpcs/openpcs/internal/awsapi/awsapitest"
	"github.com/openpcs/openpcs/internal/iam"
	"github.com/openpcs/openpcs/internal/store"
	"github.com/openpcs/openpcs/internal/sts"
)

const (
	trust   = `{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Principal":{"Service":"ec2.amazonaws.com"},"Action":"sts:AssumeRole"}]}`
	version = "2010-05-08"
)

type fixture struct {
	*awsapitest.World
	t *testing.T
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	w := awsapitest.New(t)
	i := iam.New(iam.Options{Store: w.Store, Account: awsapitest.Account, Now: w.Clock.Now})
	for range 2 { // the second start changes nothing
		if err := i.EnsureDefaults(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	w.Serve(t, i.Service(), sts.Service())
	return &fixture{w, t}
}

// call calls an action with parameters given as name, value, name, value.
func (f *fixture) call(action string, parameters ...string) (string, error) {
	form := url.Values{}
	for i := 0; i < len(parameters); i += 2 {
		form.Set(parameters[i], parameters[i+1])
	}
	b, err := f.Client().Query(f.t.Context(), "iam", version, action, form)
	return string(b), err
}

func (f *fixture) must(action string, parameters ...string) string {
	f.t.Helper()
	out, err := f.call(action, parameters...)
	if err != nil {
		f.t.Fatal(err)
	}
	return out
}

func (f *fixture) want(wantCode, action string, parameters ...string) {
	f.t.Helper()
	_, err := f.call(action, parameters...)
	if code(err) != wantCode {
		f.t.Errorf("%s: got %v, want %s", action, err, wantCode)
	}
}

func code(err error) string {
	var e *awsapi.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return fmt.Sprint(err)
}

func TestDefaultProfile(t *testing.T) {
	f := newFixture(t)
	var out struct {
		Profiles []struct {
			Name  string `xml:"InstanceProfileName"`
			ARN   string `xml:"Arn"`
			Roles []struct {
				Name  string `xml:"RoleName"`
				Trust string `xml:"AssumeRolePolicyDocument"`
			} `xml:"Roles>member"`
		} `xml:"ListInstanceProfilesResult>InstanceProfiles>member"`
	}
	if err := xml.Unmarshal([]byte(f.must("ListInstanceProfiles")), &out); err != nil {
		t.Fatal(err)
	}
	p := out.Profiles[0]
	if len(out.Profiles) != 1 || p.ARN != "arn:aws:iam::123456789012:instance-profile/AWSPCS-default" || p.Roles[0].Name != iam.DefaultName || !strings.HasPrefix(p.Roles[0].Trust, "%7B%22Version%22") {
		t.Errorf("got %+v", out)
	}
	f.View(t, func(tx *store.Tx) error {
		got, err := iam.FindProfile(tx, p.ARN)
		if err != nil {
			return err
		}
		caller := got.Caller(awsapitest.Account, "i-1")
		if !caller.Allowed("pcs:RegisterComputeNodeGroupInstance") || caller.Allowed("pcs:CreateCluster") || caller.ARN != "arn:aws:sts::123456789012:assumed-role/AWSPCS-default/i-1" {
			t.Errorf("got %+v", caller)
		}
		if err := got.UsableByPCS(); err != nil {
			t.Error(err)
		}
		for _, arn := range []string{"", "x", p.ARN + "x", strings.Replace(p.ARN, "123456789012", "000000000000", 1), strings.Replace(p.ARN, "/", "/path/", 1)} {
			if _, err := iam.FindProfile(tx, arn); !errors.Is(err, store.ErrNotFound) {
				t.Errorf("%s: got %v", arn, err)
			}
		}
		return nil
	})
}

func TestLifeOfARole(t *testing.T) {
	f := newFixture(t)
	f.must("CreateRole", "RoleName", "Node", "Path", "/aws-pcs/", "AssumeRolePolicyDocument", trust, "Tags.member.1.Key", "a", "Tags.member.1.Value", "b")
	f.want("EntityAlreadyExists", "CreateRole", "RoleName", "node", "AssumeRolePolicyDocument", trust)
	f.must("PutRolePolicy", "RoleName", "Node", "PolicyName", "p", "PolicyDocument", `{"Statement":{"Effect":"Allow","Action":["pcs:*","s3:GetObject"],"Resource":"*"}}`)
	f.must("PutRolePolicy", "RoleName", "Node", "PolicyName", "q", "PolicyDocument", `{"Statement":[{"Effect":"Deny","Action":"pcs:Delete*","Resource":"*"}]}`)
	f.must("AttachRolePolicy", "RoleName", "Node", "PolicyArn", "arn:aws:iam::aws:policy/AmazonSSMManagedInstanceCore")
	f.want("NoSuchEntity", "AttachRolePolicy", "RoleName", "Node", "PolicyArn", "arn:aws:iam::aws:policy/AdministratorAccess")
	if out := f.must("GetRolePolicy", "RoleName", "Node", "PolicyName", "q"); !strings.Contains(out, "pcs%3ADelete%2A") {
		t.Errorf("got %s", out)
	}
	if out := f.must("ListRolePolicies", "RoleName", "Node"); !strings.Contains(out, "<PolicyNames><member>p</member><member>q</member></PolicyNames><IsTruncated>false</IsTruncated>") {
		t.Errorf("got %s", out)
	}
	if out := f.must("ListAttachedRolePolicies", "RoleName", "Node"); !strings.Contains(out, "<PolicyName>AmazonSSMManagedInstanceCore</PolicyName>") {
		t.Errorf("got %s", out)
	}

	f.must("CreateInstanceProfile", "InstanceProfileName", "Node")
	f.want("NoSuchEntity", "AddRoleToInstanceProfile", "InstanceProfileName", "Node", "RoleName", "Nope")
	f.View(t, func(tx *store.Tx) error {
		p, err := iam.FindProfileByName(tx, "node")
		if err != nil || p.UsableByPCS() == nil {
			t.Errorf("profile without a role: got %+v, %v", p, err)
		}
		return nil
	})
	f.must("AddRoleToInstanceProfile", "InstanceProfileName", "Node", "RoleName", "node")
	f.want("LimitExceeded", "AddRoleToInstanceProfile", "InstanceProfileName", "Node", "RoleName", "Node")
	if out := f.must("ListInstanceProfilesForRole", "RoleName", "Node"); !strings.Contains(out, "<InstanceProfileName>Node</InstanceProfileName>") {
		t.Errorf("got %s", out)
	}
	f.View(t, func(tx *store.Tx) error {
		p, err := iam.FindProfile(tx, "arn:aws:iam::123456789012:instance-profile/Node")
		if err != nil {
			return err
		}
		c := p.Caller(awsapitest.Account, "i-1")
		if p.UsableByPCS() != nil || !c.Allowed("pcs:GetCluster") || c.Allowed("pcs:DeleteCluster") || !slices.Contains(p.Role.Allow, "s3:GetObject") {
			t.Errorf("got %+v", p)
		}
		return nil
	})

	f.want("DeleteConflict", "DeleteRole", "RoleName", "Node")
	f.want("DeleteConflict", "DeleteInstanceProfile", "InstanceProfileName", "Node")
	f.must("RemoveRoleFromInstanceProfile", "InstanceProfileName", "Node", "RoleName", "Node")
	f.want("DeleteConflict", "DeleteRole", "RoleName", "Node")
	f.must("DetachRolePolicy", "RoleName", "Node", "PolicyArn", "arn:aws:iam::aws:policy/AmazonSSMManagedInstanceCore")
	f.must("DeleteRolePolicy", "RoleName", "Node", "PolicyName", "p")
	f.must("DeleteRolePolicy", "RoleName", "Node", "PolicyName", "q")
	f.must("DeleteRole", "RoleName", "Node")
	f.must("DeleteInstanceProfile", "InstanceProfileName", "Node")
	f.want("NoSuchEntity", "GetRole", "RoleName", "Node")
	f.want("NoSuchEntity", "GetInstanceProfile", "InstanceProfileName", "Node")
}

func TestListRolesInPages(t *testing.T) {
	f := newFixture(t)
	for i := range 5 {
		f.must("CreateRole", "RoleName", fmt.Sprintf("r%d", i), "Path", "/x/", "AssumeRolePolicyDocument", trust)
	}
	var names []string
	marker := ""
	for {
		args := []string{"PathPrefix", "/x/", "MaxItems", "2"}
		if marker != "" {
			args = append(args, "Marker", marker)
		}
		var out struct {
			Result struct {
				Roles     []string `xml:"Roles>member>RoleName"`
				Truncated bool     `xml:"IsTruncated"`
				Marker    string   `xml:"Marker"`
			} `xml:"ListRolesResult"`
		}
		if err := xml.Unmarshal([]byte(f.must("ListRoles", args...)), &out); err != nil {
			t.Fatal(err)
		}
		names = append(names, out.Result.Roles...)
		if marker = out.Result.Marker; !out.Result.Truncated {
			break
		}
	}
	if strings.Join(names, " ") != "r0 r1 r2 r3 r4" {
		t.Errorf("got %v", names)
	}
}

func TestPolicies(t *testing.T) {
	f := newFixture(t)
	for _, tt := range []struct{ name, document, code string }{
		{"good", `{"Version":"2012-10-17","Statement":[{"Sid":"a","Effect":"Allow","Action":"s3:*","Resource":["arn:aws:s3:::b/*"]}]}`, "<nil>"},
		{"not_json", `Allow *`, "MalformedPolicyDocument"},
		{"no_statement", `{"Version":"2012-10-17"}`, "MalformedPolicyDocument"},
		{"bad_effect", `{"Statement":[{"Effect":"Maybe","Action":"*","Resource":"*"}]}`, "MalformedPolicyDocument"},
		{"no_resource", `{"Statement":[{"Effect":"Allow","Action":"*"}]}`, "MalformedPolicyDocument"},
		{"no_vendor", `{"Statement":[{"Effect":"Allow","Action":"GetObject","Resource":"*"}]}`, "MalformedPolicyDocument"},
		{"not_action", `{"Statement":[{"Effect":"Allow","NotAction":"iam:*","Resource":"*"}]}`, "MalformedPolicyDocument"},
		{"condition", `{"Statement":[{"Effect":"Allow","Action":"*","Resource":"*","Condition":{"Bool":{"aws:SecureTransport":"true"}}}]}`, "MalformedPolicyDocument"},
		{"principal", `{"Statement":[{"Effect":"Allow","Action":"*","Resource":"*","Principal":"*"}]}`, "MalformedPolicyDocument"},
		{"unknown_member", `{"Statement":[{"Effect":"Allow","Action":"*","Resource":"*","Colour":"red"}]}`, "MalformedPolicyDocument"},
		{"too_long", `{"Statement":[{"Effect":"Allow","Action":"*","Resource":"` + strings.Repeat("x", 11000) + `"}]}`, "MalformedPolicyDocument"},
	} {
		_, err := f.call("PutRolePolicy", "RoleName", iam.DefaultName, "PolicyName", "p", "PolicyDocument", tt.document)
		if code(err) != tt.code {
			t.Errorf("%s: got %v, want %s", tt.name, err, tt.code)
		}
	}
	f.want("MalformedPolicyDocument", "CreateRole", "RoleName", "x", "AssumeRolePolicyDocument", `{"Statement":[{"Effect":"Allow","Action":"sts:AssumeRole"}]}`)
	f.want("ValidationError", "CreateRole", "RoleName", "a b", "AssumeRolePolicyDocument", trust)
	f.want("ValidationError", "CreateRole", "RoleName", "x", "Path", "x", "AssumeRolePolicyDocument", trust)
	f.want("ValidationError", "CreateRole", "RoleName", "x")
	f.want("ValidationError", "CreateRole", "RoleName", "x", "AssumeRolePolicyDocument", trust, "PermissionsBoundary", "arn")
}

// TestEveryCallerKnowsWhoItIs calls sts with a role that allows nothing.
func TestEveryCallerKnowsWhoItIs(t *testing.T) {
	f := newFixture(t)
	key, err := f.Keys.IssueSession(t.Context(), awsapi.Caller{Account: awsapitest.Account, ARN: "arn:aws:sts::123456789012:assumed-role/x/i-1", UserID: "AROA:i-1"}, 3600e9)
	if err != nil {
		t.Fatal(err)
	}
	b, err := f.ClientOf(key).Query(t.Context(), "sts", "2011-06-15", "GetCallerIdentity", nil)
	if err != nil || !strings.Contains(string(b), "<GetCallerIdentityResult><Arn>arn:aws:sts::123456789012:assumed-role/x/i-1</Arn><UserId>AROA:i-1</UserId><Account>123456789012</Account></GetCallerIdentityResult>") {
		t.Errorf("got %s, %v", b, err)
	}
	_, err = f.ClientOf(key).Query(t.Context(), "iam", version, "ListRoles", nil)
	if code(err) != "AccessDenied" {
		t.Errorf("got %v", err)
	}
}

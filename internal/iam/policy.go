package iam

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/openpcs/openpcs/internal/awsapi"
	"github.com/openpcs/openpcs/internal/store"
)

const awsPolicy = "arn:aws:iam::aws:policy/"

// managedPolicy is a policy of AWS that openpcs knows.
type managedPolicy struct {
	name     string
	document string
}

// managed are the managed policies that can be attached, by ARN. Their
// documents list what of the originals concerns services of openpcs.
var managed = map[string]managedPolicy{
	awsPolicy + "AWSPCSComputeNodePolicy": {
		"AWSPCSComputeNodePolicy",
		`{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":["pcs:RegisterComputeNodeGroupInstance"],"Resource":["*"]}]}`,
	},
	awsPolicy + "AmazonSSMManagedInstanceCore": {
		"AmazonSSMManagedInstanceCore",
		`{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":["ssm:DescribeAssociation","ssm:GetDeployablePatchSnapshotForInstance","ssm:GetDocument","ssm:DescribeDocument","ssm:GetManifest","ssm:GetParameter","ssm:GetParameters","ssm:ListAssociations","ssm:ListInstanceAssociations","ssm:PutInventory","ssm:PutComplianceItems","ssm:PutConfigurePackageResult","ssm:UpdateAssociationStatus","ssm:UpdateInstanceAssociationStatus","ssm:UpdateInstanceInformation"],"Resource":"*"},{"Effect":"Allow","Action":["ssmmessages:CreateControlChannel","ssmmessages:CreateDataChannel","ssmmessages:OpenControlChannel","ssmmessages:OpenDataChannel"],"Resource":"*"},{"Effect":"Allow","Action":["ec2messages:AcknowledgeMessage","ec2messages:DeleteMessage","ec2messages:FailMessage","ec2messages:GetEndpoint","ec2messages:GetMessages","ec2messages:SendReply"],"Resource":"*"}]}`,
	},
	awsPolicy + "AmazonS3ReadOnlyAccess": {
		"AmazonS3ReadOnlyAccess",
		`{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":["s3:Get*","s3:List*","s3:Describe*","s3-object-lambda:Get*","s3-object-lambda:List*"],"Resource":"*"}]}`,
	},
	awsPolicy + "CloudWatchAgentServerPolicy": {
		"CloudWatchAgentServerPolicy",
		`{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":["cloudwatch:PutMetricData","ec2:DescribeVolumes","ec2:DescribeTags","logs:PutLogEvents","logs:PutRetentionPolicy","logs:DescribeLogStreams","logs:DescribeLogGroups","logs:CreateLogStream","logs:CreateLogGroup","xray:PutTraceSegments","xray:PutTelemetryRecords","xray:GetSamplingRules","xray:GetSamplingTargets","xray:GetSamplingStatisticSummaries"],"Resource":"*"},{"Effect":"Allow","Action":["ssm:GetParameter"],"Resource":"arn:aws:ssm:*:*:parameter/AmazonCloudWatch-*"}]}`,
	},
}

// texts is a member of a policy that may be one string or a list of them.
type texts []string

func (t *texts) UnmarshalJSON(b []byte) error {
	var s string
	if json.Unmarshal(b, &s) == nil {
		*t = texts{s}
		return nil
	}
	return json.Unmarshal(b, (*[]string)(t))
}

type statement struct {
	SID          string          `json:"Sid"`
	Effect       string          `json:"Effect"`
	Action       texts           `json:"Action"`
	NotAction    texts           `json:"NotAction"`
	Resource     texts           `json:"Resource"`
	NotResource  texts           `json:"NotResource"`
	Condition    json.RawMessage `json:"Condition"`
	Principal    json.RawMessage `json:"Principal"`
	NotPrincipal json.RawMessage `json:"NotPrincipal"`
}

// statements is one statement or a list of them.
type statements []statement

func (s *statements) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '{' {
		*s = make(statements, 1)
		return strictUnmarshal(b, &(*s)[0])
	}
	return strictUnmarshal(b, (*[]statement)(s))
}

func strictUnmarshal(b []byte, v any) error {
	d := json.NewDecoder(strings.NewReader(string(b)))
	d.DisallowUnknownFields()
	return d.Decode(v)
}

type policy struct {
	Version   string     `json:"Version"`
	ID        string     `json:"Id"`
	Statement statements `json:"Statement"`
}

// maxPolicy is IAM's limit on the inline policies of a role.
const maxPolicy = 10240

func decodePolicy(document string) (policy, error) {
	if len(document) > maxPolicy {
		return policy{}, fmt.Errorf("it is longer than %d characters", maxPolicy)
	}
	var p policy
	if err := strictUnmarshal([]byte(document), &p); err != nil {
		return policy{}, fmt.Errorf("syntax errors in policy: %w", err)
	}
	if p.Version != "" && p.Version != "2012-10-17" && p.Version != "2008-10-17" {
		return policy{}, fmt.Errorf("the policy version %q is not valid", p.Version)
	}
	if len(p.Statement) == 0 {
		return policy{}, errors.New("the policy has no statement")
	}
	for n, s := range p.Statement {
		if s.Effect != "Allow" && s.Effect != "Deny" {
			return policy{}, fmt.Errorf("statement %d has effect %q, not Allow or Deny", n+1, s.Effect)
		}
	}
	return p, nil
}

// parsePolicy returns the action patterns that an identity policy allows and
// denies. openpcs checks actions, not resources: an allowing statement
// counts whatever resources it names, and a denying one counts for all. What
// cannot be kept without making a role stronger than its policy says is
// refused: conditions, NotAction and NotResource.
func parsePolicy(document string) (allow, deny []string, err error) {
	p, err := decodePolicy(document)
	if err != nil {
		return nil, nil, err
	}
	for n, s := range p.Statement {
		where := fmt.Sprintf("statement %d", n+1)
		switch {
		case len(s.Principal) > 0 || len(s.NotPrincipal) > 0:
			return nil, nil, fmt.Errorf("%s has a principal: policies of a role must not", where)
		case len(s.NotAction) > 0 || len(s.NotResource) > 0:
			return nil, nil, fmt.Errorf("%s has NotAction or NotResource, which openpcs does not support: list the actions", where)
		case len(s.Condition) > 0 && string(s.Condition) != "{}" && string(s.Condition) != "null":
			return nil, nil, fmt.Errorf("%s has conditions, which openpcs does not evaluate: leave them out", where)
		case len(s.Action) == 0:
			return nil, nil, fmt.Errorf("%s must contain actions", where)
		case len(s.Resource) == 0:
			return nil, nil, fmt.Errorf("%s must contain resources", where)
		}
		for _, a := range s.Action {
			if a != "*" && !strings.Contains(a, ":") {
				return nil, nil, fmt.Errorf("%s: actions must be prefaced by a vendor, e.g. pcs:GetCluster, not %q", where, a)
			}
		}
		if s.Effect == "Allow" {
			allow = append(allow, s.Action...)
		} else {
			deny = append(deny, s.Action...)
		}
	}
	return allow, deny, nil
}

func malformed(err error) error {
	return fail(http.StatusBadRequest, "MalformedPolicyDocument", "The policy document is not accepted: %v.", err)
}

func (i *IAM) policyOperations() []awsapi.Operation {
	return []awsapi.Operation{
		op("PutRolePolicy", false, i.putRolePolicy),
		op("GetRolePolicy", true, i.getRolePolicy),
		op("ListRolePolicies", true, i.listRolePolicies),
		op("DeleteRolePolicy", false, i.deleteRolePolicy),
		op("AttachRolePolicy", false, i.attachRolePolicy),
		op("DetachRolePolicy", false, i.detachRolePolicy),
		op("ListAttachedRolePolicies", true, i.listAttached),
		op("GetPolicy", true, i.getPolicy),
	}
}

// changeRole reads a role, changes it and writes it back.
func (i *IAM) changeRole(ctx context.Context, name string, change func(r *Role) error) error {
	return i.store.Update(ctx, func(tx *store.Tx) error {
		r, err := findRole(tx, name)
		if err != nil {
			return err
		}
		if err := change(&r); err != nil {
			return err
		}
		return roles.Put(tx, r)
	})
}

func (i *IAM) readRole(ctx context.Context, name string) (Role, error) {
	var r Role
	err := i.store.View(ctx, func(tx *store.Tx) error {
		var err error
		r, err = findRole(tx, name)
		return err
	})
	return r, err
}

func findRole(tx *store.Tx, name string) (Role, error) {
	r, err := roles.Get(tx, strings.ToLower(name))
	return r, notFound(err, "The role with name %s cannot be found.", name)
}

// nothing is the answer of actions without one.
type nothing struct{}

type putRolePolicyIn struct {
	Role     string `query:"RoleName,required"`
	Policy   string `query:"PolicyName,required"`
	Document string `query:"PolicyDocument,required"`
}

func (i *IAM) putRolePolicy(ctx context.Context, _ *awsapi.Request, in *putRolePolicyIn) (*nothing, error) {
	if err := checkName("policyName", in.Policy, 128); err != nil {
		return nil, err
	}
	if _, _, err := parsePolicy(in.Document); err != nil {
		return nil, malformed(err)
	}
	return nil, i.changeRole(ctx, in.Role, func(r *Role) error {
		if r.Inline == nil {
			r.Inline = map[string]string{}
		}
		r.Inline[in.Policy] = in.Document
		total := 0
		for _, d := range r.Inline {
			total += len(d)
		}
		if total > maxPolicy {
			return fail(http.StatusConflict, "LimitExceeded", "Maximum policy size of %d bytes exceeded for role %s", maxPolicy, r.Name)
		}
		return nil
	})
}

type rolePolicyIn struct {
	Role   string `query:"RoleName,required"`
	Policy string `query:"PolicyName,required"`
}

type getRolePolicyOut struct {
	Role     string `xml:"RoleName"`
	Policy   string `xml:"PolicyName"`
	Document string `xml:"PolicyDocument"`
}

func (i *IAM) getRolePolicy(ctx context.Context, _ *awsapi.Request, in *rolePolicyIn) (*getRolePolicyOut, error) {
	r, err := i.readRole(ctx, in.Role)
	if err != nil {
		return nil, err
	}
	d, ok := r.Inline[in.Policy]
	if !ok {
		return nil, noSuchEntity("The role policy with name %s cannot be found.", in.Policy)
	}
	return &getRolePolicyOut{r.Name, in.Policy, encoded(d)}, nil
}

type listRolePoliciesIn struct {
	listing
	Role string `query:"RoleName,required"`
}

type listRolePoliciesOut struct {
	Names []string `xml:"PolicyNames"`
	listed
}

func (i *IAM) listRolePolicies(ctx context.Context, r *awsapi.Request, in *listRolePoliciesIn) (*listRolePoliciesOut, error) {
	role, err := i.readRole(ctx, in.Role)
	if err != nil {
		return nil, err
	}
	names, more, err := page(r, in.listing, in.Role, slices.Sorted(maps.Keys(role.Inline)), func(s string) string { return s })
	return &listRolePoliciesOut{names, more}, err
}

func (i *IAM) deleteRolePolicy(ctx context.Context, _ *awsapi.Request, in *rolePolicyIn) (*nothing, error) {
	return nil, i.changeRole(ctx, in.Role, func(r *Role) error {
		if _, ok := r.Inline[in.Policy]; !ok {
			return noSuchEntity("The role policy with name %s cannot be found.", in.Policy)
		}
		delete(r.Inline, in.Policy)
		return nil
	})
}

type attachIn struct {
	Role string `query:"RoleName,required"`
	ARN  string `query:"PolicyArn,required"`
}

func (i *IAM) attachRolePolicy(ctx context.Context, _ *awsapi.Request, in *attachIn) (*nothing, error) {
	if _, ok := managed[in.ARN]; !ok {
		return nil, noSuchEntity("Policy %s does not exist or is not attachable. openpcs knows %s; others can be put as inline policies.", in.ARN, knownPolicies())
	}
	return nil, i.changeRole(ctx, in.Role, func(r *Role) error {
		if !slices.Contains(r.Attached, in.ARN) {
			r.Attached = append(r.Attached, in.ARN)
		}
		return nil
	})
}

func knownPolicies() string {
	var names []string
	for _, p := range managed {
		names = append(names, p.name)
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}

func (i *IAM) detachRolePolicy(ctx context.Context, _ *awsapi.Request, in *attachIn) (*nothing, error) {
	return nil, i.changeRole(ctx, in.Role, func(r *Role) error {
		n := slices.Index(r.Attached, in.ARN)
		if n < 0 {
			return noSuchEntity("Policy %s was not found.", in.ARN)
		}
		r.Attached = slices.Delete(r.Attached, n, n+1)
		return nil
	})
}

type listAttachedIn struct {
	listing
	Role string `query:"RoleName,required"`
	Path string `query:"PathPrefix"`
}

type listAttachedOut struct {
	Policies []attachedXML `xml:"AttachedPolicies"`
	listed
}

type attachedXML struct {
	Name string `xml:"PolicyName"`
	ARN  string `xml:"PolicyArn"`
}

func (i *IAM) listAttached(ctx context.Context, r *awsapi.Request, in *listAttachedIn) (*listAttachedOut, error) {
	role, err := i.readRole(ctx, in.Role)
	if err != nil {
		return nil, err
	}
	var all []attachedXML
	for _, arn := range role.Attached {
		if strings.HasPrefix("/", in.Path) { // all of them have the path /
			all = append(all, attachedXML{managed[arn].name, arn})
		}
	}
	all, more, err := page(r, in.listing, []string{in.Role, in.Path}, all, func(a attachedXML) string { return a.ARN })
	return &listAttachedOut{all, more}, err
}

type getPolicyIn struct {
	ARN string `query:"PolicyArn,required"`
}

type getPolicyOut struct {
	Policy policyXML `xml:"Policy"`
}

type policyXML struct {
	Name       string    `xml:"PolicyName"`
	ARN        string    `xml:"Arn"`
	Path       string    `xml:"Path"`
	Version    string    `xml:"DefaultVersionId"`
	Attachable bool      `xml:"IsAttachable"`
	Attached   int       `xml:"AttachmentCount"`
	CreatedAt  time.Time `xml:"CreateDate"`
}

func (i *IAM) getPolicy(ctx context.Context, _ *awsapi.Request, in *getPolicyIn) (*getPolicyOut, error) {
	p, ok := managed[in.ARN]
	if !ok {
		return nil, noSuchEntity("Policy %s was not found. openpcs knows %s.", in.ARN, knownPolicies())
	}
	x := policyXML{Name: p.name, ARN: in.ARN, Path: "/", Version: "v1", Attachable: true}
	err := i.store.View(ctx, func(tx *store.Tx) error {
		all, err := roles.All(tx)
		for _, r := range all {
			if slices.Contains(r.Attached, in.ARN) {
				x.Attached++
			}
		}
		return err
	})
	return &getPolicyOut{x}, err
}

package ec2

import (
	"context"
	"errors"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"github.com/openpcs/openpcs/internal/awsapi"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/store"
)

// SecurityGroup is a set of rules. openpcs keeps and checks them; whether
// they are enforced is the provider's affair.
type SecurityGroup struct {
	ID          string            `json:"id"`
	Region      string            `json:"region"`
	VPCID       string            `json:"vpcId"`
	Name        string            `json:"name"`
	Description string            `json:"description"`
	Ingress     []Permission      `json:"ingress,omitempty"`
	Egress      []Permission      `json:"egress,omitempty"`
	Tags        map[string]string `json:"tags,omitempty"`
}

// SecurityGroups is where security groups are stored; the parent is the VPC.
var SecurityGroups = store.NewCollection("securitygroup", func(g SecurityGroup) store.Index {
	return store.Index{ID: g.ID, Region: g.Region, Parent: g.VPCID, Name: g.Name}
})

// Permission is one rule of a security group.
type Permission struct {
	Protocol string      `query:"IpProtocol" xml:"ipProtocol" json:"protocol"`
	From     *int32      `query:"FromPort" xml:"fromPort" json:"from,omitempty"`
	To       *int32      `query:"ToPort" xml:"toPort" json:"to,omitempty"`
	Groups   []GroupPair `query:"Groups" xml:"groups" json:"groups,omitempty"`
	IPv4     []IPRange   `query:"IpRanges" xml:"ipRanges" json:"ipv4,omitempty"`
	IPv6     []IPv6Range `query:"Ipv6Ranges" xml:"ipv6Ranges" json:"ipv6,omitempty"`
	Prefixes []PrefixID  `query:"PrefixListIds" xml:"prefixListIds" json:"prefixes,omitempty"`
}

// GroupPair names a security group as the other end of a rule.
type GroupPair struct {
	UserID      string `query:"UserId" xml:"userId,omitempty" json:"userId,omitempty"`
	GroupID     string `query:"GroupId" xml:"groupId" json:"groupId"`
	GroupName   string `query:"GroupName" xml:"groupName,omitempty" json:"groupName,omitempty"`
	VPCID       string `query:"VpcId" xml:"vpcId,omitempty" json:"vpcId,omitempty"`
	Description string `query:"Description" xml:"description,omitempty" json:"description,omitempty"`
}

// IPRange is a range of IPv4 addresses as the other end of a rule.
type IPRange struct {
	CIDR        string `query:"CidrIp" xml:"cidrIp" json:"cidr"`
	Description string `query:"Description" xml:"description,omitempty" json:"description,omitempty"`
}

// IPv6Range is a range of IPv6 addresses as the other end of a rule.
type IPv6Range struct {
	CIDR        string `query:"CidrIpv6" xml:"cidrIpv6" json:"cidr"`
	Description string `query:"Description" xml:"description,omitempty" json:"description,omitempty"`
}

// PrefixID names a managed prefix list as the other end of a rule.
type PrefixID struct {
	ID          string `query:"PrefixListId" xml:"prefixListId" json:"id"`
	Description string `query:"Description" xml:"description,omitempty" json:"description,omitempty"`
}

func allowAll() []Permission {
	return []Permission{{Protocol: "-1", IPv4: []IPRange{{CIDR: "0.0.0.0/0"}}}}
}

func (e *EC2) groupOperations() []awsapi.Operation {
	return []awsapi.Operation{
		op("DescribeSecurityGroups", true, e.describeGroups),
		op("CreateSecurityGroup", false, e.createGroup),
		op("DeleteSecurityGroup", false, e.deleteGroup),
		op("AuthorizeSecurityGroupIngress", false, e.authorizeIngress),
		op("AuthorizeSecurityGroupEgress", false, e.authorizeEgress),
		op("RevokeSecurityGroupIngress", false, e.revokeIngress),
		op("RevokeSecurityGroupEgress", false, e.revokeEgress),
	}
}

type describeGroupsIn struct {
	common
	paging
	Filters []filter `query:"Filter"`
	IDs     []string `query:"GroupId"`
	Names   []string `query:"GroupName"`
}

type describeGroupsOut struct {
	Groups    []groupXML `xml:"securityGroupInfo"`
	NextToken string     `xml:"nextToken,omitempty"`
}

type groupXML struct {
	OwnerID     string       `xml:"ownerId"`
	ID          string       `xml:"groupId"`
	ARN         string       `xml:"securityGroupArn"`
	Name        string       `xml:"groupName"`
	Description string       `xml:"groupDescription"`
	VPCID       string       `xml:"vpcId"`
	Ingress     []Permission `xml:"ipPermissions"`
	Egress      []Permission `xml:"ipPermissionsEgress"`
	Tags        []tagXML     `xml:"tagSet,omitempty"`
}

var groupFilters = filters[SecurityGroup]{
	fields: map[string]func(SecurityGroup) []string{
		"group-id":    one(func(g SecurityGroup) string { return g.ID }),
		"group-name":  one(func(g SecurityGroup) string { return g.Name }),
		"vpc-id":      one(func(g SecurityGroup) string { return g.VPCID }),
		"description": one(func(g SecurityGroup) string { return g.Description }),
		"ip-permission.group-id": func(g SecurityGroup) []string {
			var out []string
			for _, p := range g.Ingress {
				for _, pair := range p.Groups {
					out = append(out, pair.GroupID)
				}
			}
			return out
		},
		"ip-permission.cidr": func(g SecurityGroup) []string {
			var out []string
			for _, p := range g.Ingress {
				for _, ip := range p.IPv4 {
					out = append(out, ip.CIDR)
				}
			}
			return out
		},
		"ip-permission.protocol": func(g SecurityGroup) []string {
			var out []string
			for _, p := range g.Ingress {
				out = append(out, p.Protocol)
			}
			return out
		},
	},
	tags: func(g SecurityGroup) map[string]string { return g.Tags },
}

func (e *EC2) describeGroups(ctx context.Context, r *awsapi.Request, in *describeGroupsIn) (*describeGroupsOut, error) {
	var all []SecurityGroup
	err := e.view(ctx, r, func(tx *store.Tx) error {
		var err error
		all, err = SecurityGroups.InRegion(tx, r.Region)
		return err
	})
	if err != nil {
		return nil, err
	}
	all, missing := selected(all, in.IDs, func(g SecurityGroup) string { return g.ID })
	if len(missing) > 0 {
		return nil, groupNotFound(missing[0])
	}
	if all, missing = selected(all, in.Names, func(g SecurityGroup) string { return g.Name }); len(missing) > 0 {
		return nil, fail("InvalidGroup.NotFound", "The security group '%s' does not exist in default VPC", missing[0])
	}
	if all, err = groupFilters.apply(in.Filters, all); err != nil {
		return nil, err
	}
	all, next, err := page(r, in.paging, []any{in.IDs, in.Names, in.Filters}, 5, 1000, all, func(g SecurityGroup) string { return g.ID })
	if err != nil {
		return nil, err
	}
	out := &describeGroupsOut{NextToken: next}
	for _, g := range all {
		out.Groups = append(out.Groups, groupXML{
			OwnerID: e.account, ID: g.ID, ARN: e.groupARN(g), Name: g.Name, Description: g.Description, VPCID: g.VPCID,
			Ingress: e.owned(g.Ingress), Egress: e.owned(g.Egress), Tags: tagsXML(g.Tags),
		})
	}
	return out, nil
}

// owned fills in the account, which rules that openpcs made do not carry.
func (e *EC2) owned(ps []Permission) []Permission {
	out := slices.Clone(ps)
	for i := range out {
		out[i].Groups = slices.Clone(out[i].Groups)
		for j := range out[i].Groups {
			out[i].Groups[j].UserID = e.account
		}
	}
	return out
}

func (e *EC2) groupARN(g SecurityGroup) string {
	return "arn:aws:ec2:" + g.Region + ":" + e.account + ":security-group/" + g.ID
}

func groupNotFound(id string) error {
	if !wellFormed(id, "sg") {
		return fail("InvalidGroupId.Malformed", "Invalid id: \"%s\" (expecting \"sg-...\")", id)
	}
	return fail("InvalidGroup.NotFound", "The security group '%s' does not exist", id)
}

type createGroupIn struct {
	common
	Name        string    `query:"GroupName,required"`
	Description string    `query:"GroupDescription,required"`
	VPCID       string    `query:"VpcId"`
	Tags        []tagSpec `query:"TagSpecification"`
}

type createGroupOut struct {
	ID   string   `xml:"groupId"`
	ARN  string   `xml:"securityGroupArn"`
	Tags []tagXML `xml:"tagSet,omitempty"`
}

func (e *EC2) createGroup(ctx context.Context, r *awsapi.Request, in *createGroupIn) (*createGroupOut, error) {
	switch {
	case in.Name == "" || len(in.Name) > 255 || in.Name == "default" || strings.HasPrefix(in.Name, "sg-"):
		return nil, fail("InvalidParameterValue", "Value (%s) for parameter groupName is invalid. It must have 1 to 255 characters, not start with sg- and not be 'default'.", in.Name)
	case in.Description == "" || len(in.Description) > 255:
		return nil, fail("InvalidParameterValue", "Value (%s) for parameter groupDescription is invalid. It must have 1 to 255 characters.", in.Description)
	}
	tags, err := tagsFor("security-group", in.Tags)
	if err != nil {
		return nil, err
	}
	g := SecurityGroup{
		ID: fleet.NewEC2ID("sg"), Region: r.Region, VPCID: in.VPCID,
		Name: in.Name, Description: in.Description, Egress: allowAll(), Tags: tags,
	}
	err = e.update(ctx, r, func(tx *store.Tx) error {
		if g.VPCID == "" {
			vpc, err := VPCOf(tx, r.Region)
			if err != nil {
				return err
			}
			g.VPCID = vpc.ID
		} else if vpc, err := VPCs.Get(tx, g.VPCID); err != nil || vpc.Region != r.Region {
			if err != nil && !errors.Is(err, store.ErrNotFound) {
				return err
			}
			return fail("InvalidVpcID.NotFound", "The vpc ID '%s' does not exist", g.VPCID)
		}
		err := SecurityGroups.Put(tx, g)
		if errors.Is(err, store.ErrExists) {
			return fail("InvalidGroup.Duplicate", "The security group '%s' already exists for VPC '%s'", g.Name, g.VPCID)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return &createGroupOut{ID: g.ID, ARN: e.groupARN(g), Tags: tagsXML(tags)}, nil
}

type deleteGroupIn struct {
	common
	ID   string `query:"GroupId"`
	Name string `query:"GroupName"`
}

type deleteGroupOut struct {
	Return bool   `xml:"return"`
	ID     string `xml:"groupId"`
}

func (e *EC2) deleteGroup(ctx context.Context, r *awsapi.Request, in *deleteGroupIn) (*deleteGroupOut, error) {
	var id string
	err := e.update(ctx, r, func(tx *store.Tx) error {
		g, err := findGroup(tx, r.Region, in.ID, in.Name)
		if err != nil {
			return err
		}
		id = g.ID
		if g.Name == "default" {
			return fail("CannotDelete", "the specified group: \"%s\" name: \"default\" cannot be deleted by a user", g.ID)
		}
		instances, err := fleet.Instances.InRegion(tx, r.Region)
		if err != nil {
			return err
		}
		for _, i := range instances {
			if i.State.Live() && slices.Contains(i.SecurityGroups, g.ID) {
				return fail("DependencyViolation", "resource %s has a dependent object: instance %s", g.ID, i.ID)
			}
		}
		return SecurityGroups.Delete(tx, g.ID)
	})
	if err != nil {
		return nil, err
	}
	return &deleteGroupOut{Return: true, ID: id}, nil
}

// findGroup returns the group with the id, or else that name in the default
// VPC.
func findGroup(tx *store.Tx, region, id, name string) (SecurityGroup, error) {
	switch {
	case id != "":
		g, err := SecurityGroupOf(tx, region, id)
		if errors.Is(err, store.ErrNotFound) {
			return g, groupNotFound(id)
		}
		return g, err
	case name != "":
		vpc, err := VPCOf(tx, region)
		if err != nil {
			return SecurityGroup{}, err
		}
		g, err := SecurityGroups.Find(tx, region, vpc.ID, name)
		return g, notFound(err, "InvalidGroup.NotFound", "The security group '%s' does not exist in default VPC '%s'", name, vpc.ID)
	default:
		return SecurityGroup{}, fail("MissingParameter", "The request must contain the parameter groupName or groupId")
	}
}

// ruleIn is the input of the four actions on rules. The members beside
// Permissions are the old way to write a single rule.
type ruleIn struct {
	common
	ID            string       `query:"GroupId"`
	Name          string       `query:"GroupName"`
	Permissions   []Permission `query:"IpPermissions"`
	Protocol      string       `query:"IpProtocol"`
	From          *int32       `query:"FromPort"`
	To            *int32       `query:"ToPort"`
	CIDR          string       `query:"CidrIp"`
	SourceName    string       `query:"SourceSecurityGroupName"`
	SourceOwnerID string       `query:"SourceSecurityGroupOwnerId"`
}

type authorizeOut struct {
	Return bool      `xml:"return"`
	Rules  []ruleXML `xml:"securityGroupRuleSet"`
}

type ruleXML struct {
	ID           string         `xml:"securityGroupRuleId"`
	GroupID      string         `xml:"groupId"`
	GroupOwnerID string         `xml:"groupOwnerId"`
	IsEgress     bool           `xml:"isEgress"`
	Protocol     string         `xml:"ipProtocol"`
	From         int32          `xml:"fromPort"`
	To           int32          `xml:"toPort"`
	IPv4         string         `xml:"cidrIpv4,omitempty"`
	IPv6         string         `xml:"cidrIpv6,omitempty"`
	Prefix       string         `xml:"prefixListId,omitempty"`
	Referenced   *referencedXML `xml:"referencedGroupInfo"`
	Description  string         `xml:"description,omitempty"`
}

type referencedXML struct {
	GroupID string `xml:"groupId"`
	UserID  string `xml:"userId"`
}

func (e *EC2) authorizeIngress(ctx context.Context, r *awsapi.Request, in *ruleIn) (*authorizeOut, error) {
	return e.authorize(ctx, r, in, false)
}

func (e *EC2) authorizeEgress(ctx context.Context, r *awsapi.Request, in *ruleIn) (*authorizeOut, error) {
	return e.authorize(ctx, r, in, true)
}

func (e *EC2) authorize(ctx context.Context, r *awsapi.Request, in *ruleIn, egress bool) (*authorizeOut, error) {
	out := &authorizeOut{Return: true}
	err := e.changeRules(ctx, r, in, egress, func(g SecurityGroup, have, given []Permission) ([]Permission, error) {
		for _, p := range given {
			if slices.ContainsFunc(have, func(h Permission) bool { return reflect.DeepEqual(h, p) }) {
				return nil, fail("InvalidPermission.Duplicate", "the specified rule \"peer: %s, %s\" already exists", peer(p), p.Protocol)
			}
			have = append(have, p)
			out.Rules = append(out.Rules, e.rulesXML(g, p, egress)...)
		}
		return have, nil
	})
	return out, err
}

func (e *EC2) revokeIngress(ctx context.Context, r *awsapi.Request, in *ruleIn) (*boolReturn, error) {
	return e.revoke(ctx, r, in, false)
}

func (e *EC2) revokeEgress(ctx context.Context, r *awsapi.Request, in *ruleIn) (*boolReturn, error) {
	return e.revoke(ctx, r, in, true)
}

func (e *EC2) revoke(ctx context.Context, r *awsapi.Request, in *ruleIn, egress bool) (*boolReturn, error) {
	err := e.changeRules(ctx, r, in, egress, func(_ SecurityGroup, have, given []Permission) ([]Permission, error) {
		for _, p := range given {
			n := len(have)
			have = slices.DeleteFunc(have, func(h Permission) bool { return reflect.DeepEqual(h, p) })
			if len(have) == n {
				return nil, fail("InvalidPermission.NotFound", "The specified rule does not exist in this security group.")
			}
		}
		return have, nil
	})
	return &boolReturn{true}, err
}

func (e *EC2) changeRules(ctx context.Context, r *awsapi.Request, in *ruleIn, egress bool, change func(g SecurityGroup, have, given []Permission) ([]Permission, error)) error {
	return e.update(ctx, r, func(tx *store.Tx) error {
		g, err := findGroup(tx, r.Region, in.ID, in.Name)
		if err != nil {
			return err
		}
		given, err := rules(tx, g, in)
		if err != nil {
			return err
		}
		if egress {
			g.Egress, err = change(g, g.Egress, given)
		} else {
			g.Ingress, err = change(g, g.Ingress, given)
		}
		if err != nil {
			return err
		}
		return SecurityGroups.Put(tx, g)
	})
}

// rules gathers and checks the rules of a call, brought to one form: groups
// by id, ranges masked, and nothing but ports for protocols that have them.
func rules(tx *store.Tx, g SecurityGroup, in *ruleIn) ([]Permission, error) {
	given := slices.Clone(in.Permissions)
	if in.Protocol != "" || in.CIDR != "" || in.SourceName != "" {
		p := Permission{Protocol: in.Protocol, From: in.From, To: in.To}
		if in.CIDR != "" {
			p.IPv4 = []IPRange{{CIDR: in.CIDR}}
		}
		if in.SourceName != "" {
			p.Groups = []GroupPair{{GroupName: in.SourceName}}
			p.Protocol = "-1"
		}
		given = append(given, p)
	}
	if len(given) == 0 {
		return nil, fail("MissingParameter", "The request must contain the parameter ipPermissions")
	}
	for i := range given {
		if err := given[i].check(tx, g); err != nil {
			return nil, err
		}
	}
	return given, nil
}

func (p *Permission) check(tx *store.Tx, g SecurityGroup) error {
	switch p.Protocol {
	case "6", "17", "1":
		p.Protocol = map[string]string{"6": "tcp", "17": "udp", "1": "icmp"}[p.Protocol]
	case "all":
		p.Protocol = "-1"
	}
	switch p.Protocol {
	case "-1":
		p.From, p.To = nil, nil
	case "tcp", "udp":
		if p.From == nil || p.To == nil || *p.From < 0 || *p.From > *p.To || *p.To > 65535 {
			return fail("InvalidParameterValue", "Invalid value for portRange. Must specify both from and to ports with %s, the first not above the second.", p.Protocol)
		}
	case "icmp", "icmpv6":
	default:
		return fail("InvalidParameterValue", "Invalid value '%s' for IP protocol. Unknown protocol.", p.Protocol)
	}
	if len(p.Groups)+len(p.IPv4)+len(p.IPv6)+len(p.Prefixes) == 0 {
		return fail("MissingParameter", "Missing source specification: include source security group or CIDR information")
	}
	for i, pair := range p.Groups {
		other, err := findGroup(tx, g.Region, pair.GroupID, pair.GroupName)
		if err != nil {
			return err
		}
		p.Groups[i] = GroupPair{GroupID: other.ID, Description: pair.Description}
	}
	for i, ip := range p.IPv4 {
		prefix, err := netip.ParsePrefix(ip.CIDR)
		if err != nil || !prefix.Addr().Is4() {
			return fail("InvalidParameterValue", "CIDR block %s is malformed", ip.CIDR)
		}
		p.IPv4[i].CIDR = prefix.Masked().String()
	}
	for i, ip := range p.IPv6 {
		prefix, err := netip.ParsePrefix(ip.CIDR)
		if err != nil || !prefix.Addr().Is6() {
			return fail("InvalidParameterValue", "CIDR block %s is malformed", ip.CIDR)
		}
		p.IPv6[i].CIDR = prefix.Masked().String()
	}
	return nil
}

func peer(p Permission) string {
	switch {
	case len(p.Groups) > 0:
		return p.Groups[0].GroupID
	case len(p.IPv4) > 0:
		return p.IPv4[0].CIDR
	case len(p.IPv6) > 0:
		return p.IPv6[0].CIDR
	case len(p.Prefixes) > 0:
		return p.Prefixes[0].ID
	}
	return ""
}

func (e *EC2) rulesXML(g SecurityGroup, p Permission, egress bool) []ruleXML {
	base := ruleXML{GroupID: g.ID, GroupOwnerID: e.account, IsEgress: egress, Protocol: p.Protocol, From: -1, To: -1}
	if p.From != nil {
		base.From = *p.From
	}
	if p.To != nil {
		base.To = *p.To
	}
	var out []ruleXML
	add := func(set func(x *ruleXML)) {
		x := base
		x.ID = fleet.NewEC2ID("sgr")
		set(&x)
		out = append(out, x)
	}
	for _, pair := range p.Groups {
		add(func(x *ruleXML) {
			x.Referenced, x.Description = &referencedXML{pair.GroupID, e.account}, pair.Description
		})
	}
	for _, ip := range p.IPv4 {
		add(func(x *ruleXML) { x.IPv4, x.Description = ip.CIDR, ip.Description })
	}
	for _, ip := range p.IPv6 {
		add(func(x *ruleXML) { x.IPv6, x.Description = ip.CIDR, ip.Description })
	}
	for _, pl := range p.Prefixes {
		add(func(x *ruleXML) { x.Prefix, x.Description = pl.ID, pl.Description })
	}
	return out
}

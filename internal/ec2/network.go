package ec2

import (
	"context"
	"net/netip"
	"slices"
	"strconv"

	"github.com/openpcs/openpcs/internal/awsapi"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/store"
)

func (e *EC2) networkOperations() []awsapi.Operation {
	return []awsapi.Operation{
		op("DescribeVpcs", true, e.describeVPCs),
		op("DescribeVpcAttribute", true, e.describeVPCAttribute),
		op("DescribeSubnets", true, e.describeSubnets),
		op("DescribeAvailabilityZones", true, e.describeZones),
		op("DescribeRegions", true, e.describeRegions),
	}
}

type describeVPCsIn struct {
	common
	paging
	Filters []filter `query:"Filter"`
	IDs     []string `query:"VpcId"`
}

type describeVPCsOut struct {
	VPCs      []vpcXML `xml:"vpcSet"`
	NextToken string   `xml:"nextToken,omitempty"`
}

type vpcXML struct {
	ID            string           `xml:"vpcId"`
	State         string           `xml:"state"`
	CIDR          string           `xml:"cidrBlock"`
	Associations  []associationXML `xml:"cidrBlockAssociationSet"`
	DHCPOptionsID string           `xml:"dhcpOptionsId"`
	Tenancy       string           `xml:"instanceTenancy"`
	IsDefault     bool             `xml:"isDefault"`
	OwnerID       string           `xml:"ownerId"`
	Tags          []tagXML         `xml:"tagSet,omitempty"`
}

type associationXML struct {
	ID    string `xml:"associationId"`
	CIDR  string `xml:"cidrBlock"`
	State struct {
		State string `xml:"state"`
	} `xml:"cidrBlockState"`
}

var vpcFilters = filters[VPC]{
	fields: map[string]func(VPC) []string{
		"vpc-id":                             one(func(v VPC) string { return v.ID }),
		"cidr":                               one(func(v VPC) string { return v.CIDR }),
		"cidr-block":                         one(func(v VPC) string { return v.CIDR }),
		"cidr-block-association.cidr-block":  one(func(v VPC) string { return v.CIDR }),
		"cidr-block-association.state":       one(func(VPC) string { return "associated" }),
		"is-default":                         one(func(v VPC) string { return strconv.FormatBool(v.IsDefault) }),
		"isDefault":                          one(func(v VPC) string { return strconv.FormatBool(v.IsDefault) }),
		"state":                              one(func(VPC) string { return "available" }),
		"dhcp-options-id":                    one(func(v VPC) string { return derivedID("dopt", v.ID) }),
		"ipv6-cidr-block-association.state":  func(VPC) []string { return nil },
		"ipv6-cidr-block-association.status": func(VPC) []string { return nil },
	},
	tags: func(v VPC) map[string]string { return v.Tags },
}

func (e *EC2) describeVPCs(ctx context.Context, r *awsapi.Request, in *describeVPCsIn) (*describeVPCsOut, error) {
	var all []VPC
	err := e.view(ctx, r, func(tx *store.Tx) error {
		var err error
		all, err = VPCs.InRegion(tx, r.Region)
		return err
	})
	if err != nil {
		return nil, err
	}
	all, missing := selected(all, in.IDs, func(v VPC) string { return v.ID })
	if len(missing) > 0 {
		return nil, fail("InvalidVpcID.NotFound", "%s", plural(missing, "The vpc ID '%s' does not exist", "The vpc IDs '%s' do not exist"))
	}
	if all, err = vpcFilters.apply(in.Filters, all); err != nil {
		return nil, err
	}
	all, next, err := page(r, in.paging, []any{in.IDs, in.Filters}, 5, 1000, all, func(v VPC) string { return v.ID })
	if err != nil {
		return nil, err
	}
	out := &describeVPCsOut{NextToken: next}
	for _, v := range all {
		x := vpcXML{
			ID: v.ID, State: "available", CIDR: v.CIDR, DHCPOptionsID: derivedID("dopt", v.ID),
			Tenancy: "default", IsDefault: v.IsDefault, OwnerID: e.account, Tags: tagsXML(v.Tags),
		}
		a := associationXML{ID: derivedID("vpc-cidr-assoc", v.ID), CIDR: v.CIDR}
		a.State.State = "associated"
		x.Associations = []associationXML{a}
		out.VPCs = append(out.VPCs, x)
	}
	return out, nil
}

// derivedID names a thing that exists once for each other thing.
func derivedID(prefix, id string) string {
	for i := len(id) - 1; i >= 0; i-- {
		if id[i] == '-' {
			return prefix + id[i:]
		}
	}
	return prefix + "-" + id
}

type describeVPCAttributeIn struct {
	common
	Attribute string `query:"Attribute,required"`
	ID        string `query:"VpcId,required"`
}

type boolValue struct {
	Value bool `xml:"value"`
}

type describeVPCAttributeOut struct {
	ID           string     `xml:"vpcId"`
	DNSHostnames *boolValue `xml:"enableDnsHostnames"`
	DNSSupport   *boolValue `xml:"enableDnsSupport"`
	AddressUsage *boolValue `xml:"enableNetworkAddressUsageMetrics"`
}

func (e *EC2) describeVPCAttribute(ctx context.Context, r *awsapi.Request, in *describeVPCAttributeIn) (*describeVPCAttributeOut, error) {
	err := e.view(ctx, r, func(tx *store.Tx) error {
		v, err := VPCs.Get(tx, in.ID)
		if err == nil && v.Region != r.Region {
			err = store.ErrNotFound
		}
		return notFound(err, "InvalidVpcID.NotFound", "The vpc ID '%s' does not exist", in.ID)
	})
	if err != nil {
		return nil, err
	}
	out := &describeVPCAttributeOut{ID: in.ID}
	switch in.Attribute {
	case "enableDnsHostnames":
		out.DNSHostnames = &boolValue{true}
	case "enableDnsSupport":
		out.DNSSupport = &boolValue{true}
	case "enableNetworkAddressUsageMetrics":
		out.AddressUsage = &boolValue{false}
	default:
		return nil, fail("InvalidParameterValue", "Value (%s) for parameter attribute is invalid. Unknown attribute.", in.Attribute)
	}
	return out, nil
}

type describeSubnetsIn struct {
	common
	paging
	Filters []filter `query:"Filter"`
	IDs     []string `query:"SubnetId"`
}

type describeSubnetsOut struct {
	Subnets   []subnetXML `xml:"subnetSet"`
	NextToken string      `xml:"nextToken,omitempty"`
}

type subnetXML struct {
	ID                 string   `xml:"subnetId"`
	ARN                string   `xml:"subnetArn"`
	State              string   `xml:"state"`
	VPCID              string   `xml:"vpcId"`
	CIDR               string   `xml:"cidrBlock"`
	IPv6Associations   []string `xml:"ipv6CidrBlockAssociationSet"`
	AvailableAddresses int      `xml:"availableIpAddressCount"`
	AZ                 string   `xml:"availabilityZone"`
	AZID               string   `xml:"availabilityZoneId"`
	DefaultForAZ       bool     `xml:"defaultForAz"`
	MapPublicIP        bool     `xml:"mapPublicIpOnLaunch"`
	MapCustomerOwnedIP bool     `xml:"mapCustomerOwnedIpOnLaunch"`
	AssignIPv6         bool     `xml:"assignIpv6AddressOnCreation"`
	IPv6Native         bool     `xml:"ipv6Native"`
	EnableDNS64        bool     `xml:"enableDns64"`
	PrivateDNSOnLaunch dnsXML   `xml:"privateDnsNameOptionsOnLaunch"`
	OwnerID            string   `xml:"ownerId"`
	Tags               []tagXML `xml:"tagSet,omitempty"`
}

type dnsXML struct {
	HostnameType string `xml:"hostnameType"`
	A            bool   `xml:"enableResourceNameDnsARecord"`
	AAAA         bool   `xml:"enableResourceNameDnsAAAARecord"`
}

// subnet is a stored one with the count of its free addresses.
type subnet struct {
	fleet.Subnet
	free int
}

var subnetFilters = filters[subnet]{
	fields: map[string]func(subnet) []string{
		"subnet-id":                  one(func(s subnet) string { return s.ID }),
		"vpc-id":                     one(func(s subnet) string { return s.VPCID }),
		"availability-zone":          one(func(s subnet) string { return s.AZ }),
		"availabilityZone":           one(func(s subnet) string { return s.AZ }),
		"availability-zone-id":       one(func(s subnet) string { return s.AZID }),
		"availabilityZoneId":         one(func(s subnet) string { return s.AZID }),
		"cidr":                       one(func(s subnet) string { return s.CIDR }),
		"cidr-block":                 one(func(s subnet) string { return s.CIDR }),
		"cidrBlock":                  one(func(s subnet) string { return s.CIDR }),
		"default-for-az":             one(func(subnet) string { return "true" }),
		"defaultForAz":               one(func(subnet) string { return "true" }),
		"map-public-ip-on-launch":    one(func(subnet) string { return "false" }),
		"state":                      one(func(subnet) string { return "available" }),
		"available-ip-address-count": one(func(s subnet) string { return strconv.Itoa(s.free) }),
	},
	tags: func(s subnet) map[string]string { return s.Tags },
}

func (e *EC2) describeSubnets(ctx context.Context, r *awsapi.Request, in *describeSubnetsIn) (*describeSubnetsOut, error) {
	var all []subnet
	err := e.view(ctx, r, func(tx *store.Tx) error {
		stored, err := fleet.Subnets.InRegion(tx, r.Region)
		if err != nil {
			return err
		}
		instances, err := fleet.Instances.InRegion(tx, r.Region)
		if err != nil {
			return err
		}
		used := map[string]int{}
		for _, i := range instances {
			if i.State.Live() {
				used[i.SubnetID]++
			}
		}
		for _, s := range stored {
			all = append(all, subnet{Subnet: s, free: addresses(s.CIDR) - used[s.ID]})
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	all, missing := selected(all, in.IDs, func(s subnet) string { return s.ID })
	if len(missing) > 0 {
		return nil, fail("InvalidSubnetID.NotFound", "%s", plural(missing, "The subnet ID '%s' does not exist", "The subnet IDs '%s' do not exist"))
	}
	if all, err = subnetFilters.apply(in.Filters, all); err != nil {
		return nil, err
	}
	all, next, err := page(r, in.paging, []any{in.IDs, in.Filters}, 5, 1000, all, func(s subnet) string { return s.AZ + s.ID })
	if err != nil {
		return nil, err
	}
	out := &describeSubnetsOut{NextToken: next}
	for _, s := range all {
		out.Subnets = append(out.Subnets, subnetXML{
			ID: s.ID, ARN: "arn:aws:ec2:" + r.Region + ":" + e.account + ":subnet/" + s.ID,
			State: "available", VPCID: s.VPCID, CIDR: s.CIDR, AvailableAddresses: s.free,
			AZ: s.AZ, AZID: s.AZID, DefaultForAZ: true, OwnerID: e.account,
			PrivateDNSOnLaunch: dnsXML{HostnameType: "ip-name"}, Tags: tagsXML(s.Tags),
		})
	}
	return out, nil
}

// addresses returns how many addresses a subnet has for instances.
func addresses(cidr string) int {
	p, err := netip.ParsePrefix(cidr)
	if err != nil {
		return 0
	}
	return 1<<(32-p.Bits()) - reservedPerSubnet
}

type describeZonesIn struct {
	common
	All     bool     `query:"AllAvailabilityZones"`
	Filters []filter `query:"Filter"`
	IDs     []string `query:"ZoneId"`
	Names   []string `query:"ZoneName"`
}

type describeZonesOut struct {
	Zones []zoneXML `xml:"availabilityZoneInfo"`
}

type zoneXML struct {
	OptIn       string   `xml:"optInStatus"`
	Messages    []string `xml:"messageSet"`
	Region      string   `xml:"regionName"`
	Name        string   `xml:"zoneName"`
	ID          string   `xml:"zoneId"`
	Group       string   `xml:"groupName"`
	BorderGroup string   `xml:"networkBorderGroup"`
	Type        string   `xml:"zoneType"`
	State       string   `xml:"zoneState"`
}

func (e *EC2) describeZones(_ context.Context, r *awsapi.Request, in *describeZonesIn) (*describeZonesOut, error) {
	fs := filters[Zone]{fields: map[string]func(Zone) []string{
		"zone-name":            one(func(z Zone) string { return z.Name }),
		"zone-id":              one(func(z Zone) string { return z.ID }),
		"region-name":          one(func(Zone) string { return r.Region }),
		"group-name":           one(func(Zone) string { return r.Region + "-zg-1" }),
		"state":                one(func(Zone) string { return "available" }),
		"zone-state":           one(func(Zone) string { return "available" }),
		"zone-type":            one(func(Zone) string { return "availability-zone" }),
		"opt-in-status":        one(func(Zone) string { return "opt-in-not-required" }),
		"network-border-group": one(func(Zone) string { return r.Region }),
		"message":              func(Zone) []string { return nil },
	}}
	zones, missing := selected(Zones(r.Region), in.Names, func(z Zone) string { return z.Name })
	if len(missing) > 0 {
		return nil, fail("InvalidParameterValue", "Invalid availability zone: [%s]", missing[0])
	}
	if zones, missing = selected(zones, in.IDs, func(z Zone) string { return z.ID }); len(missing) > 0 {
		return nil, fail("InvalidParameterValue", "Invalid availability zone-id: [%s]", missing[0])
	}
	zones, err := fs.apply(in.Filters, zones)
	if err != nil {
		return nil, err
	}
	out := &describeZonesOut{}
	for _, z := range zones {
		out.Zones = append(out.Zones, zoneXML{
			OptIn: "opt-in-not-required", Region: r.Region, Name: z.Name, ID: z.ID,
			Group: r.Region + "-zg-1", BorderGroup: r.Region, Type: "availability-zone", State: "available",
		})
	}
	return out, nil
}

type describeRegionsIn struct {
	common
	All     bool     `query:"AllRegions"`
	Filters []filter `query:"Filter"`
	Names   []string `query:"RegionName"`
}

type describeRegionsOut struct {
	Regions []regionXML `xml:"regionInfo"`
}

type regionXML struct {
	OptIn    string `xml:"optInStatus"`
	Name     string `xml:"regionName"`
	Endpoint string `xml:"regionEndpoint"`
}

var regionFilters = filters[string]{fields: map[string]func(string) []string{
	"region-name":   one(func(s string) string { return s }),
	"endpoint":      one(regionEndpoint),
	"opt-in-status": one(func(string) string { return "opt-in-not-required" }),
}}

func regionEndpoint(region string) string { return "ec2." + region + ".amazonaws.com" }

// describeRegions lists the regions that were ever used here: any region
// name is good, but each takes a part of the address pool at its first use,
// and a script that visits all listed ones should not use it up.
func (e *EC2) describeRegions(ctx context.Context, r *awsapi.Request, in *describeRegionsIn) (*describeRegionsOut, error) {
	var names []string
	err := e.view(ctx, r, func(tx *store.Tx) error {
		used, err := slots.All(tx)
		for _, s := range used {
			names = append(names, s.Region)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	slices.Sort(names)
	names, missing := selected(names, in.Names, func(s string) string { return s })
	if len(missing) > 0 {
		return nil, fail("InvalidParameterValue", "Invalid region parameter: [%s]", missing[0])
	}
	if names, err = regionFilters.apply(in.Filters, names); err != nil {
		return nil, err
	}
	out := &describeRegionsOut{}
	for _, n := range names {
		out.Regions = append(out.Regions, regionXML{OptIn: "opt-in-not-required", Name: n, Endpoint: regionEndpoint(n)})
	}
	return out, nil
}

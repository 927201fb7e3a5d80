package ec2

import (
	"context"
	"encoding/base64"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/openpcs/openpcs/internal/awsapi"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/iam"
	"github.com/openpcs/openpcs/internal/store"
)

func (e *EC2) instanceOperations() []awsapi.Operation {
	const useGroups = "openpcs starts instances for the compute node groups of PCS clusters only: create a group with aws pcs create-compute-node-group."
	const noStop = "openpcs does not stop and start instances: terminate the instance, and its group replaces it when it is needed."
	return []awsapi.Operation{
		op("DescribeInstances", true, e.describeInstances),
		op("DescribeInstanceStatus", true, e.describeInstanceStatus),
		op("TerminateInstances", false, e.terminateInstances),
		op("RebootInstances", false, e.rebootInstances),
		op("GetConsoleOutput", true, e.getConsoleOutput),
		unsupported("RunInstances", useGroups),
		unsupported("StopInstances", noStop),
		unsupported("StartInstances", noStop),
	}
}

// stateXML is an instance state with EC2's code for it.
type stateXML struct {
	Code int    `xml:"code"`
	Name string `xml:"name"`
}

func stateOf(s fleet.InstanceState) stateXML {
	codes := map[fleet.InstanceState]int{
		fleet.Pending: 0, fleet.Running: 16, fleet.ShuttingDown: 32,
		fleet.Terminated: 48, fleet.Stopping: 64, fleet.Stopped: 80,
	}
	return stateXML{codes[s], string(s)}
}

type describeInstancesIn struct {
	common
	paging
	IDs            []string `query:"InstanceId"`
	Filters        []filter `query:"Filter"`
	IncludeManaged bool     `query:"IncludeManagedResources"`
}

type describeInstancesOut struct {
	Reservations []reservationXML `xml:"reservationSet"`
	NextToken    string           `xml:"nextToken,omitempty"`
}

type reservationXML struct {
	ID        string         `xml:"reservationId"`
	OwnerID   string         `xml:"ownerId"`
	Groups    []groupRefXML  `xml:"groupSet"`
	Instances []*instanceXML `xml:"instancesSet"`
}

type groupRefXML struct {
	ID   string `xml:"groupId"`
	Name string `xml:"groupName"`
}

type instanceXML struct {
	ID               string        `xml:"instanceId"`
	ImageID          string        `xml:"imageId"`
	State            stateXML      `xml:"instanceState"`
	PrivateDNS       string        `xml:"privateDnsName"`
	PublicDNS        string        `xml:"dnsName"`
	Reason           string        `xml:"reason"`
	StateReason      *reasonXML    `xml:"stateReason"`
	KeyName          string        `xml:"keyName,omitempty"`
	LaunchIndex      int           `xml:"amiLaunchIndex"`
	ProductCodes     []string      `xml:"productCodes"`
	Type             string        `xml:"instanceType"`
	LaunchedAt       time.Time     `xml:"launchTime"`
	Placement        placementXML  `xml:"placement"`
	Monitoring       monitoringXML `xml:"monitoring"`
	SubnetID         string        `xml:"subnetId,omitempty"`
	VPCID            string        `xml:"vpcId,omitempty"`
	Address          string        `xml:"privateIpAddress,omitempty"`
	SourceDestCheck  *bool         `xml:"sourceDestCheck"`
	Groups           []groupRefXML `xml:"groupSet"`
	Architecture     string        `xml:"architecture"`
	RootDeviceType   string        `xml:"rootDeviceType"`
	RootDeviceName   string        `xml:"rootDeviceName"`
	BlockDevices     []string      `xml:"blockDeviceMapping"`
	Virtualization   string        `xml:"virtualizationType"`
	Hypervisor       string        `xml:"hypervisor"`
	ClientToken      string        `xml:"clientToken"`
	Tags             []tagXML      `xml:"tagSet"`
	Interfaces       []nicXML      `xml:"networkInterfaceSet"`
	Profile          *profileXML   `xml:"iamInstanceProfile"`
	EBSOptimized     bool          `xml:"ebsOptimized"`
	ENASupport       bool          `xml:"enaSupport"`
	CPUOptions       *cpuXML       `xml:"cpuOptions"`
	Metadata         *metadataXML  `xml:"metadataOptions"`
	PlatformDetails  string        `xml:"platformDetails"`
	UsageOperation   string        `xml:"usageOperation"`
	PrivateDNSOption *dnsXML       `xml:"privateDnsNameOptions"`
}

type reasonXML struct {
	Code    string `xml:"code"`
	Message string `xml:"message"`
}

type placementXML struct {
	AZ        string `xml:"availabilityZone"`
	AZID      string `xml:"availabilityZoneId,omitempty"`
	GroupName string `xml:"groupName"`
	Tenancy   string `xml:"tenancy"`
}

type monitoringXML struct {
	State string `xml:"state"`
}

type profileXML struct {
	ARN string `xml:"arn"`
	ID  string `xml:"id,omitempty"`
}

type cpuXML struct {
	Cores   int `xml:"coreCount"`
	Threads int `xml:"threadsPerCore"`
}

type metadataXML struct {
	State        string `xml:"state"`
	Tokens       string `xml:"httpTokens"`
	HopLimit     int    `xml:"httpPutResponseHopLimit"`
	Endpoint     string `xml:"httpEndpoint"`
	IPv6         string `xml:"httpProtocolIpv6"`
	InstanceTags string `xml:"instanceMetadataTags"`
}

type nicXML struct {
	ID            string        `xml:"networkInterfaceId"`
	SubnetID      string        `xml:"subnetId"`
	VPCID         string        `xml:"vpcId"`
	OwnerID       string        `xml:"ownerId"`
	Status        string        `xml:"status"`
	Address       string        `xml:"privateIpAddress"`
	PrivateDNS    string        `xml:"privateDnsName"`
	Groups        []groupRefXML `xml:"groupSet"`
	Attachment    attachmentXML `xml:"attachment"`
	Addresses     []addressXML  `xml:"privateIpAddressesSet"`
	InterfaceType string        `xml:"interfaceType"`
}

type attachmentXML struct {
	ID                  string    `xml:"attachmentId"`
	DeviceIndex         int       `xml:"deviceIndex"`
	Status              string    `xml:"status"`
	AttachedAt          time.Time `xml:"attachTime"`
	DeleteOnTermination bool      `xml:"deleteOnTermination"`
	NetworkCardIndex    int       `xml:"networkCardIndex"`
}

type addressXML struct {
	Address    string `xml:"privateIpAddress"`
	PrivateDNS string `xml:"privateDnsName"`
	Primary    bool   `xml:"primary"`
}

// instanceView is what the answers on instances are made of.
type instanceView struct {
	fleet.Instance
	arch    string
	azID    string
	profile *profileXML
	groups  []groupRefXML
}

var instanceFilters = filters[instanceView]{
	fields: map[string]func(instanceView) []string{
		"instance-id":                          one(func(i instanceView) string { return i.ID }),
		"instance-state-name":                  one(func(i instanceView) string { return string(i.State) }),
		"instance-state-code":                  one(func(i instanceView) string { return strconv.Itoa(stateOf(i.State).Code) }),
		"instance-type":                        one(func(i instanceView) string { return i.Type }),
		"image-id":                             one(func(i instanceView) string { return i.ImageID }),
		"key-name":                             one(func(i instanceView) string { return i.KeyName }),
		"subnet-id":                            one(func(i instanceView) string { return i.SubnetID }),
		"vpc-id":                               one(func(i instanceView) string { return i.VPCID }),
		"network-interface.subnet-id":          one(func(i instanceView) string { return i.SubnetID }),
		"network-interface.vpc-id":             one(func(i instanceView) string { return i.VPCID }),
		"availability-zone":                    one(func(i instanceView) string { return i.AZ }),
		"availability-zone-id":                 one(func(i instanceView) string { return i.azID }),
		"private-ip-address":                   one(func(i instanceView) string { return i.Address }),
		"network-interface.private-ip-address": one(func(i instanceView) string { return i.Address }),
		"network-interface.addresses.private-ip-address": one(func(i instanceView) string { return i.Address }),
		"private-dns-name":                   one(func(i instanceView) string { return i.PrivateDNS() }),
		"network-interface.private-dns-name": one(func(i instanceView) string { return i.PrivateDNS() }),
		"architecture":                       one(func(i instanceView) string { return i.arch }),
		"iam-instance-profile.arn":           one(func(i instanceView) string { return i.ProfileARN }),
		"instance.group-id":                  func(i instanceView) []string { return i.SecurityGroups },
		"group-id":                           func(i instanceView) []string { return i.SecurityGroups },
		"network-interface.group-id":         func(i instanceView) []string { return i.SecurityGroups },
		"instance.group-name":                groupNames,
		"group-name":                         groupNames,
		"reason":                             one(func(i instanceView) string { return i.StateReason }),
		"state-reason-code":                  one(func(i instanceView) string { return i.StateCode }),
		"state-reason-message":               one(func(i instanceView) string { return i.StateReason }),
		"launch-time":                        one(func(i instanceView) string { return i.LaunchedAt.UTC().Format("2006-01-02T15:04:05.000Z") }),
		"reservation-id":                     one(func(i instanceView) string { return derivedID("r", i.ID) }),
		"root-device-type":                   one(func(instanceView) string { return "ebs" }),
		"virtualization-type":                one(func(instanceView) string { return "hvm" }),
		"tenancy":                            one(func(instanceView) string { return "default" }),
		"instance-lifecycle":                 func(instanceView) []string { return nil },
		"ip-address":                         func(instanceView) []string { return nil },
		"platform":                           func(instanceView) []string { return nil },
	},
	tags: func(i instanceView) map[string]string { return i.Tags },
}

func groupNames(i instanceView) []string {
	out := make([]string, len(i.groups))
	for n, g := range i.groups {
		out[n] = g.Name
	}
	return out
}

// viewer makes the views of a region's instances in one transaction.
type viewer struct {
	tx       *store.Tx
	groups   map[string]string // names of security groups
	zones    map[string]string // their ids
	profiles map[string]*profileXML
	err      error // the first one
}

func newViewer(tx *store.Tx, region string) (*viewer, error) {
	v := &viewer{tx: tx, groups: map[string]string{}, zones: map[string]string{}, profiles: map[string]*profileXML{}}
	groups, err := SecurityGroups.InRegion(tx, region)
	for _, g := range groups {
		v.groups[g.ID] = g.Name
	}
	for _, z := range Zones(region) {
		v.zones[z.Name] = z.ID
	}
	return v, err
}

func (v *viewer) view(i fleet.Instance) instanceView {
	out := instanceView{Instance: i, arch: fleet.X86, azID: v.zones[i.AZ], profile: v.profile(i.ProfileARN)}
	if t, ok := fleet.Lookup(i.Type); ok {
		out.arch = t.Arch
	}
	for _, id := range i.SecurityGroups {
		out.groups = append(out.groups, groupRefXML{id, v.groups[id]})
	}
	return out
}

func (v *viewer) profile(arn string) *profileXML {
	if arn == "" {
		return nil
	}
	p, seen := v.profiles[arn]
	if !seen {
		p = &profileXML{ARN: arn}
		switch found, err := iam.FindProfile(v.tx, arn); {
		case err == nil:
			p.ID = found.ID
		case !errors.Is(err, store.ErrNotFound) && v.err == nil:
			v.err = err
		}
		v.profiles[arn] = p
	}
	return p
}

// storedInstances returns the instances with the ids (all of a region without
// ids) that are to be kept. All ids must exist. It reads those only, because
// a region may have thousands.
func storedInstances(tx *store.Tx, region string, ids []string, keep func(fleet.Instance) bool) ([]fleet.Instance, error) {
	if len(ids) == 0 {
		return fleet.Instances.Where(tx, func(i *fleet.Instance) bool { return i.Region == region && keep(*i) })
	}
	var out []fleet.Instance
	var missing []string
	for n, id := range ids {
		if slices.Contains(ids[:n], id) {
			continue
		}
		i, err := fleet.Instances.Get(tx, id)
		switch {
		case errors.Is(err, store.ErrNotFound), err == nil && i.Region != region:
			missing = append(missing, id)
		case err != nil:
			return nil, err
		case keep(i):
			out = append(out, i)
		}
	}
	if len(missing) > 0 {
		return nil, fail("InvalidInstanceID.NotFound", "%s", plural(missing, "The instance ID '%s' does not exist", "The instance IDs '%s' do not exist"))
	}
	return out, nil
}

func (e *EC2) describeInstances(ctx context.Context, r *awsapi.Request, in *describeInstancesIn) (*describeInstancesOut, error) {
	if len(in.IDs) > 0 && in.MaxResults != nil {
		return nil, fail("InvalidParameterCombination", "The parameter instancesSet cannot be used with the parameter maxResults")
	}
	all, err := e.filtered(ctx, r, in.IDs, in.Filters)
	if err != nil {
		return nil, err
	}
	all, next, err := page(r, in.paging, in.Filters, 5, 1000, all, launchKey)
	if err != nil {
		return nil, err
	}
	out := &describeInstancesOut{NextToken: next}
	for _, i := range all {
		out.Reservations = append(out.Reservations, reservationXML{
			ID: derivedID("r", i.ID), OwnerID: e.account, Instances: []*instanceXML{e.instanceXML(i)},
		})
	}
	return out, nil
}

func launchKey(i instanceView) string { return awsapi.CreationKey(i.LaunchedAt, i.ID) }

// filtered returns the instances that the ids and filters select.
func (e *EC2) filtered(ctx context.Context, r *awsapi.Request, ids []string, given []filter) (out []instanceView, err error) {
	for _, id := range ids {
		if !wellFormed(id, "i") {
			return nil, fail("InvalidInstanceID.Malformed", "Invalid id: \"%s\"", id)
		}
	}
	if err := instanceFilters.check(given); err != nil {
		return nil, err
	}
	err = e.view(ctx, r, func(tx *store.Tx) error {
		v, err := newViewer(tx, r.Region)
		if err != nil {
			return err
		}
		found, err := storedInstances(tx, r.Region, ids, func(i fleet.Instance) bool {
			return len(given) == 0 || instanceFilters.pass(given, v.view(i))
		})
		if err != nil {
			return err
		}
		out = make([]instanceView, len(found))
		for n, i := range found {
			out[n] = v.view(i)
		}
		return v.err
	})
	return out, err
}

func (e *EC2) instanceXML(i instanceView) *instanceXML {
	x := &instanceXML{
		ID: i.ID, ImageID: i.ImageID, State: stateOf(i.State), KeyName: i.KeyName, Type: i.Type, LaunchedAt: i.LaunchedAt,
		Placement:  placementXML{AZ: i.AZ, AZID: i.azID, Tenancy: "default"},
		Monitoring: monitoringXML{"disabled"}, Architecture: i.arch,
		RootDeviceType: "ebs", RootDeviceName: rootDevice, Virtualization: "hvm", Hypervisor: "xen",
		Tags: tagsXML(i.Tags), Profile: i.profile, ENASupport: true,
		PlatformDetails: "Linux/UNIX", UsageOperation: "RunInstances",
	}
	if t, ok := fleet.Lookup(i.Type); ok {
		x.CPUOptions = &cpuXML{Cores: t.Cores(), Threads: t.ThreadsPerCore}
		if i.GroupID != "" {
			x.CPUOptions.Threads = 1 // PCS switches multithreading off
		}
	}
	if i.StateReason != "" {
		x.StateReason = &reasonXML{i.StateCode, i.StateReason}
		x.Reason = reason(i.Instance)
	}
	if i.State == fleet.Terminated {
		return x // the rest belongs to nobody any more
	}
	x.PrivateDNS, x.SubnetID, x.VPCID, x.Address, x.Groups = i.PrivateDNS(), i.SubnetID, i.VPCID, i.Address, i.groups
	check := true
	x.SourceDestCheck = &check
	x.PrivateDNSOption = &dnsXML{HostnameType: "ip-name"}
	x.Metadata = &metadataXML{State: "applied", Tokens: "required", HopLimit: 2, Endpoint: "enabled", IPv6: "disabled", InstanceTags: "enabled"}
	if i.Address != "" {
		status := "attached"
		if i.State == fleet.Pending {
			status = "attaching"
		}
		x.Interfaces = []nicXML{{
			ID: derivedID("eni", i.ID), SubnetID: i.SubnetID, VPCID: i.VPCID, OwnerID: e.account, Status: "in-use",
			Address: i.Address, PrivateDNS: i.PrivateDNS(), Groups: i.groups, InterfaceType: "interface",
			Attachment: attachmentXML{ID: derivedID("eni-attach", i.ID), Status: status, AttachedAt: i.LaunchedAt, DeleteOnTermination: true},
			Addresses:  []addressXML{{i.Address, i.PrivateDNS(), true}},
		}}
	}
	return x
}

// reason is EC2's short form of why an instance ended.
func reason(i fleet.Instance) string {
	if i.StateCode == "Client.UserInitiatedShutdown" && !i.TerminatedAt.IsZero() {
		return "User initiated (" + i.TerminatedAt.UTC().Format("2006-01-02 15:04:05") + " GMT)"
	}
	return i.StateReason
}

type describeInstanceStatusIn struct {
	common
	paging
	IDs            []string `query:"InstanceId"`
	Filters        []filter `query:"Filter"`
	IncludeAll     bool     `query:"IncludeAllInstances"`
	IncludeManaged bool     `query:"IncludeManagedResources"`
}

type describeInstanceStatusOut struct {
	Statuses  []statusXML `xml:"instanceStatusSet"`
	NextToken string      `xml:"nextToken,omitempty"`
}

type statusXML struct {
	ID       string     `xml:"instanceId"`
	AZ       string     `xml:"availabilityZone"`
	AZID     string     `xml:"availabilityZoneId,omitempty"`
	State    stateXML   `xml:"instanceState"`
	System   summaryXML `xml:"systemStatus"`
	Instance summaryXML `xml:"instanceStatus"`
}

type summaryXML struct {
	Status  string      `xml:"status"`
	Details []detailXML `xml:"details"`
}

type detailXML struct {
	Name   string `xml:"name"`
	Status string `xml:"status"`
}

func (e *EC2) describeInstanceStatus(ctx context.Context, r *awsapi.Request, in *describeInstanceStatusIn) (*describeInstanceStatusOut, error) {
	all, err := e.filtered(ctx, r, in.IDs, in.Filters)
	if err != nil {
		return nil, err
	}
	if !in.IncludeAll {
		all = slices.DeleteFunc(all, func(i instanceView) bool { return i.State != fleet.Running })
	}
	all, next, err := page(r, in.paging, []any{in.IDs, in.Filters, in.IncludeAll}, 5, 1000, all, launchKey)
	if err != nil {
		return nil, err
	}
	out := &describeInstanceStatusOut{NextToken: next}
	for _, i := range all {
		s := summaryXML{Status: "not-applicable"}
		if i.State == fleet.Running {
			s = summaryXML{"ok", []detailXML{{"reachability", "passed"}}}
		}
		out.Statuses = append(out.Statuses, statusXML{i.ID, i.AZ, i.azID, stateOf(i.State), s, s})
	}
	return out, nil
}

type terminateIn struct {
	common
	IDs            []string `query:"InstanceId,required"`
	Force          bool     `query:"Force"`
	SkipOSShutdown bool     `query:"SkipOsShutdown"`
}

type terminateOut struct {
	Instances []changeXML `xml:"instancesSet"`
}

type changeXML struct {
	ID       string   `xml:"instanceId"`
	Current  stateXML `xml:"currentState"`
	Previous stateXML `xml:"previousState"`
}

// before returns the instances of the ids before something is done to them;
// nothing is done when one of them does not exist.
func (e *EC2) before(ctx context.Context, r *awsapi.Request, ids []string) ([]instanceView, error) {
	if len(ids) == 0 {
		return nil, fail("MissingParameter", "The request must contain the parameter InstanceId")
	}
	return e.filtered(ctx, r, ids, nil)
}

func (e *EC2) terminateInstances(ctx context.Context, r *awsapi.Request, in *terminateIn) (*terminateOut, error) {
	was, err := e.before(ctx, r, in.IDs)
	if err != nil {
		return nil, err
	}
	for _, i := range was {
		if i.State == fleet.Terminated {
			continue
		}
		if err := e.actions.TerminateInstance(ctx, r.Region, i.ID); err != nil {
			return nil, err
		}
	}
	out := &terminateOut{}
	err = e.view(ctx, r, func(tx *store.Tx) error {
		for _, i := range was {
			now, err := fleet.Instances.Get(tx, i.ID)
			switch {
			case errors.Is(err, store.ErrNotFound):
				now.State = fleet.Terminated
			case err != nil:
				return err
			case now.State != fleet.Terminated:
				now.State = fleet.ShuttingDown
			}
			out.Instances = append(out.Instances, changeXML{i.ID, stateOf(now.State), stateOf(i.State)})
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

type rebootIn struct {
	common
	IDs []string `query:"InstanceId,required"`
}

func (e *EC2) rebootInstances(ctx context.Context, r *awsapi.Request, in *rebootIn) (*boolReturn, error) {
	is, err := e.before(ctx, r, in.IDs)
	if err != nil {
		return nil, err
	}
	for _, i := range is {
		if i.State != fleet.Running {
			return nil, fail("IncorrectState", "The instance '%s' is not in a state from which it can be rebooted: it is %s.", i.ID, i.State)
		}
	}
	for _, i := range is {
		if err := e.actions.RebootInstance(ctx, i.ID); err != nil {
			return nil, err
		}
	}
	return &boolReturn{true}, nil
}

// maxConsole is how much of the console EC2 returns.
const maxConsole = 64 << 10

type consoleIn struct {
	common
	ID     string `query:"InstanceId,required"`
	Latest bool   `query:"Latest"` // it always is
}

type consoleOut struct {
	ID     string    `xml:"instanceId"`
	At     time.Time `xml:"timestamp"`
	Output string    `xml:"output"` // base64
}

func (e *EC2) getConsoleOutput(ctx context.Context, r *awsapi.Request, in *consoleIn) (*consoleOut, error) {
	if _, err := e.before(ctx, r, []string{in.ID}); err != nil {
		return nil, err
	}
	b, err := e.actions.ConsoleOutput(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	if len(b) > maxConsole {
		b = b[len(b)-maxConsole:]
	}
	return &consoleOut{in.ID, r.Now, base64.StdEncoding.EncodeToString(b)}, nil
}

package ec2

import (
	"context"
	"strconv"

	"github.com/openpcs/openpcs/internal/awsapi"
	"github.com/openpcs/openpcs/internal/fleet"
)

func (e *EC2) typeOperations() []awsapi.Operation {
	return []awsapi.Operation{
		op("DescribeInstanceTypes", true, e.describeTypes),
		op("DescribeInstanceTypeOfferings", true, e.describeOfferings),
	}
}

type describeTypesIn struct {
	common
	paging
	Names              []string `query:"InstanceType"`
	Filters            []filter `query:"Filter"`
	IncludeUnsupported bool     `query:"IncludeUnsupportedInRegion"`
}

type describeTypesOut struct {
	Types     []typeXML `xml:"instanceTypeSet"`
	NextToken string    `xml:"nextToken,omitempty"`
}

type typeXML struct {
	Name                  string         `xml:"instanceType"`
	CurrentGeneration     bool           `xml:"currentGeneration"`
	FreeTier              bool           `xml:"freeTierEligible"`
	UsageClasses          []string       `xml:"supportedUsageClasses"`
	RootDevices           []string       `xml:"supportedRootDeviceTypes"`
	Virtualization        []string       `xml:"supportedVirtualizationTypes"`
	BareMetal             bool           `xml:"bareMetal"`
	Hypervisor            string         `xml:"hypervisor"`
	Processor             processorXML   `xml:"processorInfo"`
	VCPU                  vcpuXML        `xml:"vCpuInfo"`
	Memory                memoryXML      `xml:"memoryInfo"`
	Storage               bool           `xml:"instanceStorageSupported"`
	EBS                   ebsXML         `xml:"ebsInfo"`
	Network               networkInfoXML `xml:"networkInfo"`
	GPU                   *gpuInfoXML    `xml:"gpuInfo"`
	PlacementGroup        strategiesXML  `xml:"placementGroupInfo"`
	Hibernation           bool           `xml:"hibernationSupported"`
	Burstable             bool           `xml:"burstablePerformanceSupported"`
	DedicatedHosts        bool           `xml:"dedicatedHostsSupported"`
	AutoRecoverySupported bool           `xml:"autoRecoverySupported"`
	BootModes             []string       `xml:"supportedBootModes"`
}

type processorXML struct {
	Architectures []string `xml:"supportedArchitectures"`
	Manufacturer  string   `xml:"manufacturer"`
}

type vcpuXML struct {
	VCPUs        int   `xml:"defaultVCpus"`
	Cores        int   `xml:"defaultCores"`
	Threads      int   `xml:"defaultThreadsPerCore"`
	ValidThreads []int `xml:"validThreadsPerCore"`
}

type memoryXML struct {
	MiB int `xml:"sizeInMiB"`
}

type ebsXML struct {
	Optimized  string `xml:"ebsOptimizedSupport"`
	Encryption string `xml:"encryptionSupport"`
	NVMe       string `xml:"nvmeSupport"`
}

type networkInfoXML struct {
	Performance string `xml:"networkPerformance"`
	MaxNICs     int    `xml:"maximumNetworkInterfaces"`
	MaxCards    int    `xml:"maximumNetworkCards"`
	DefaultCard int    `xml:"defaultNetworkCardIndex"`
	IPv6        bool   `xml:"ipv6Supported"`
	ENA         string `xml:"enaSupport"`
	EFA         bool   `xml:"efaSupported"`
}

type gpuInfoXML struct {
	GPUs     []gpuXML `xml:"gpus"`
	TotalMiB int      `xml:"totalGpuMemoryInMiB"`
}

type gpuXML struct {
	Name         string    `xml:"name"`
	Manufacturer string    `xml:"manufacturer"`
	Count        int       `xml:"count"`
	Memory       memoryXML `xml:"memoryInfo"`
}

type strategiesXML struct {
	Strategies []string `xml:"supportedStrategies"`
}

func flag(f func(fleet.InstanceType) bool) func(fleet.InstanceType) []string {
	return one(func(t fleet.InstanceType) string { return strconv.FormatBool(f(t)) })
}

func number(f func(fleet.InstanceType) int) func(fleet.InstanceType) []string {
	return one(func(t fleet.InstanceType) string { return strconv.Itoa(f(t)) })
}

func freeTier(t fleet.InstanceType) bool {
	switch t.Name {
	case "t2.micro", "t3.micro", "t3.small", "t4g.micro", "t4g.small":
		return true
	}
	return false
}

var typeFilters = filters[fleet.InstanceType]{fields: map[string]func(fleet.InstanceType) []string{
	"instance-type":                         one(func(t fleet.InstanceType) string { return t.Name }),
	"processor-info.supported-architecture": one(func(t fleet.InstanceType) string { return t.Arch }),
	"processor-info.manufacturer":           one(func(t fleet.InstanceType) string { return t.Manufacturer }),
	"current-generation":                    flag(func(t fleet.InstanceType) bool { return t.CurrentGeneration }),
	"burstable-performance-supported":       flag(func(t fleet.InstanceType) bool { return t.Burstable }),
	"free-tier-eligible":                    flag(freeTier),
	"bare-metal":                            flag(func(fleet.InstanceType) bool { return false }),
	"instance-storage-supported":            flag(func(fleet.InstanceType) bool { return false }),
	"hypervisor":                            one(hypervisor),
	"network-info.efa-supported":            flag(func(t fleet.InstanceType) bool { return t.EFA }),
	"network-info.network-performance":      one(func(t fleet.InstanceType) string { return t.Network }),
	"vcpu-info.default-vcpus":               number(func(t fleet.InstanceType) int { return t.VCPUs }),
	"vcpu-info.default-cores":               number(fleet.InstanceType.Cores),
	"vcpu-info.default-threads-per-core":    number(func(t fleet.InstanceType) int { return t.ThreadsPerCore }),
	"memory-info.size-in-mib":               number(func(t fleet.InstanceType) int { return t.MemoryMiB }),
	"supported-usage-class":                 func(fleet.InstanceType) []string { return []string{"on-demand", "spot"} },
	"supported-virtualization-type":         one(func(fleet.InstanceType) string { return "hvm" }),
	"supported-root-device-type":            one(func(fleet.InstanceType) string { return "ebs" }),
}}

func hypervisor(t fleet.InstanceType) string {
	if t.Family() == "t2" {
		return "xen"
	}
	return "nitro"
}

// maxTypes is how many types one call can name, and the largest page.
const maxTypes = 100

func (e *EC2) describeTypes(_ context.Context, r *awsapi.Request, in *describeTypesIn) (*describeTypesOut, error) {
	if len(in.Names) > maxTypes {
		return nil, fail("InvalidParameterValue", "At most %d instance types can be named in one call.", maxTypes)
	}
	all, missing := selected(fleet.All(), in.Names, func(t fleet.InstanceType) string { return t.Name })
	if len(missing) > 0 {
		return nil, fail("InvalidInstanceType", "%s", plural(missing, "The following supplied instance types do not exist: [%s]", "The following supplied instance types do not exist: [%s]"))
	}
	all, err := typeFilters.apply(in.Filters, all)
	if err != nil {
		return nil, err
	}
	all, next, err := page(r, in.paging, []any{in.Names, in.Filters}, 5, maxTypes, all, func(t fleet.InstanceType) string { return t.Name })
	if err != nil {
		return nil, err
	}
	out := &describeTypesOut{NextToken: next}
	for _, t := range all {
		out.Types = append(out.Types, typeOf(t))
	}
	return out, nil
}

func typeOf(t fleet.InstanceType) typeXML {
	x := typeXML{
		Name: t.Name, CurrentGeneration: t.CurrentGeneration, FreeTier: freeTier(t),
		UsageClasses: []string{"on-demand", "spot"}, RootDevices: []string{"ebs"}, Virtualization: []string{"hvm"},
		Hypervisor: hypervisor(t), Processor: processorXML{[]string{t.Arch}, t.Manufacturer},
		VCPU:    vcpuXML{t.VCPUs, t.Cores(), t.ThreadsPerCore, []int{1}},
		Memory:  memoryXML{t.MemoryMiB},
		EBS:     ebsXML{"default", "supported", "required"},
		Network: networkInfoXML{Performance: t.Network, MaxNICs: 1, MaxCards: 1, IPv6: true, ENA: "required", EFA: t.EFA},
		GPU:     nil, PlacementGroup: strategiesXML{[]string{"cluster", "partition", "spread"}},
		Burstable: t.Burstable, BootModes: []string{"legacy-bios", "uefi"},
	}
	if t.ThreadsPerCore == 2 {
		x.VCPU.ValidThreads = []int{1, 2}
	}
	if t.Burstable {
		x.PlacementGroup.Strategies = []string{"partition", "spread"}
	}
	if g := t.GPU; g.Count > 0 {
		x.GPU = &gpuInfoXML{[]gpuXML{{g.Name, g.Manufacturer, g.Count, memoryXML{g.MemoryMiB}}}, g.Count * g.MemoryMiB}
	}
	return x
}

type describeOfferingsIn struct {
	common
	paging
	LocationType string   `query:"LocationType"`
	Filters      []filter `query:"Filter"`
}

type describeOfferingsOut struct {
	Offerings []offeringXML `xml:"instanceTypeOfferingSet"`
	NextToken string        `xml:"nextToken,omitempty"`
}

type offeringXML struct {
	Type         string `xml:"instanceType"`
	LocationType string `xml:"locationType"`
	Location     string `xml:"location"`
}

var offeringFilters = filters[offeringXML]{fields: map[string]func(offeringXML) []string{
	"instance-type": one(func(o offeringXML) string { return o.Type }),
	"location":      one(func(o offeringXML) string { return o.Location }),
}}

// describeOfferings offers each type everywhere: the machine underneath is
// the same.
func (e *EC2) describeOfferings(_ context.Context, r *awsapi.Request, in *describeOfferingsIn) (*describeOfferingsOut, error) {
	kind := in.LocationType
	if kind == "" {
		kind = "region"
	}
	var locations []string
	switch kind {
	case "region":
		locations = []string{r.Region}
	case "availability-zone":
		for _, z := range Zones(r.Region) {
			locations = append(locations, z.Name)
		}
	case "availability-zone-id":
		for _, z := range Zones(r.Region) {
			locations = append(locations, z.ID)
		}
	default:
		return nil, fail("InvalidParameterValue", "Value (%s) for parameter locationType is invalid. It must be region, availability-zone or availability-zone-id.", kind)
	}
	var all []offeringXML
	for _, t := range fleet.All() {
		for _, l := range locations {
			all = append(all, offeringXML{t.Name, kind, l})
		}
	}
	all, err := offeringFilters.apply(in.Filters, all)
	if err != nil {
		return nil, err
	}
	all, next, err := page(r, in.paging, []any{kind, in.Filters}, 5, 1000, all, func(o offeringXML) string { return o.Type + " " + o.Location })
	if err != nil {
		return nil, err
	}
	return &describeOfferingsOut{all, next}, nil
}

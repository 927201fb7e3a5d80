package ec2

import (
	"encoding/base64"
	"reflect"
	"slices"
	"time"
)

// LaunchTemplateData is what a version of a launch template says about
// instances, completely as it was given. Members that the caller left out are
// nil or empty. Parameters that are not here are refused.
type LaunchTemplateData struct {
	ImageID               string              `query:"ImageId" xml:"imageId,omitempty" json:",omitempty"`
	InstanceType          string              `query:"InstanceType" xml:"instanceType,omitempty" json:",omitempty"`
	KeyName               string              `query:"KeyName" xml:"keyName,omitempty" json:",omitempty"`
	KernelID              string              `query:"KernelId" xml:"kernelId,omitempty" json:",omitempty"`
	RAMDiskID             string              `query:"RamDiskId" xml:"ramDiskId,omitempty" json:",omitempty"`
	UserData              string              `query:"UserData" xml:"userData,omitempty" json:",omitempty"` // base64
	EBSOptimized          *bool               `query:"EbsOptimized" xml:"ebsOptimized" json:",omitempty"`
	DisableAPITermination *bool               `query:"DisableApiTermination" xml:"disableApiTermination" json:",omitempty"`
	DisableAPIStop        *bool               `query:"DisableApiStop" xml:"disableApiStop" json:",omitempty"`
	ShutdownBehavior      string              `query:"InstanceInitiatedShutdownBehavior" xml:"instanceInitiatedShutdownBehavior,omitempty" json:",omitempty"`
	IAMInstanceProfile    *ProfileRef         `query:"IamInstanceProfile" xml:"iamInstanceProfile" json:",omitempty"`
	SecurityGroupIDs      []string            `query:"SecurityGroupId" xml:"securityGroupIdSet,omitempty" json:",omitempty"`
	SecurityGroups        []string            `query:"SecurityGroup" xml:"securityGroupSet,omitempty" json:",omitempty"`
	NetworkInterfaces     []NetworkInterface  `query:"NetworkInterface" xml:"networkInterfaceSet,omitempty" json:",omitempty"`
	BlockDeviceMappings   []BlockDevice       `query:"BlockDeviceMapping" xml:"blockDeviceMappingSet,omitempty" json:",omitempty"`
	Placement             *Placement          `query:"Placement" xml:"placement" json:",omitempty"`
	MetadataOptions       *MetadataOptions    `query:"MetadataOptions" xml:"metadataOptions" json:",omitempty"`
	Monitoring            *Enabled            `query:"Monitoring" xml:"monitoring" json:",omitempty"`
	TagSpecifications     []TagSpecification  `query:"TagSpecification" xml:"tagSpecificationSet,omitempty" json:",omitempty"`
	CapacityReservation   *CapacitySpec       `query:"CapacityReservationSpecification" xml:"capacityReservationSpecification" json:",omitempty"`
	MarketOptions         *MarketOptions      `query:"InstanceMarketOptions" xml:"instanceMarketOptions" json:",omitempty"`
	CPUOptions            *CPUOptions         `query:"CpuOptions" xml:"cpuOptions" json:",omitempty"`
	CreditSpecification   *CreditSpec         `query:"CreditSpecification" xml:"creditSpecification" json:",omitempty"`
	EnclaveOptions        *Enabled            `query:"EnclaveOptions" xml:"enclaveOptions" json:",omitempty"`
	HibernationOptions    *Hibernation        `query:"HibernationOptions" xml:"hibernationOptions" json:",omitempty"`
	Licenses              []License           `query:"LicenseSpecification" xml:"licenseSet,omitempty" json:",omitempty"`
	MaintenanceOptions    *Maintenance        `query:"MaintenanceOptions" xml:"maintenanceOptions" json:",omitempty"`
	NetworkPerformance    *NetworkPerformance `query:"NetworkPerformanceOptions" xml:"networkPerformanceOptions" json:",omitempty"`
	PrivateDNSNameOptions *PrivateDNSOptions  `query:"PrivateDnsNameOptions" xml:"privateDnsNameOptions" json:",omitempty"`
	ElasticGPUs           []Elastic           `query:"ElasticGpuSpecification" xml:"elasticGpuSpecificationSet,omitempty" json:",omitempty"`
	ElasticInference      []Elastic           `query:"ElasticInferenceAccelerator" xml:"elasticInferenceAcceleratorSet,omitempty" json:",omitempty"`
}

// ProfileRef names an instance profile.
type ProfileRef struct {
	ARN  string `query:"Arn" xml:"arn,omitempty" json:",omitempty"`
	Name string `query:"Name" xml:"name,omitempty" json:",omitempty"`
}

// NetworkInterface is one interface of a launch template.
type NetworkInterface struct {
	DeviceIndex                    *int32    `query:"DeviceIndex" xml:"deviceIndex" json:",omitempty"`
	NetworkCardIndex               *int32    `query:"NetworkCardIndex" xml:"networkCardIndex" json:",omitempty"`
	SubnetID                       string    `query:"SubnetId" xml:"subnetId,omitempty" json:",omitempty"`
	SecurityGroupIDs               []string  `query:"SecurityGroupId" xml:"groupSet>groupId,omitempty" json:",omitempty"`
	AssociatePublicIPAddress       *bool     `query:"AssociatePublicIpAddress" xml:"associatePublicIpAddress" json:",omitempty"`
	AssociateCarrierIPAddress      *bool     `query:"AssociateCarrierIpAddress" xml:"associateCarrierIpAddress" json:",omitempty"`
	InterfaceType                  string    `query:"InterfaceType" xml:"interfaceType,omitempty" json:",omitempty"`
	Description                    string    `query:"Description" xml:"description,omitempty" json:",omitempty"`
	DeleteOnTermination            *bool     `query:"DeleteOnTermination" xml:"deleteOnTermination" json:",omitempty"`
	NetworkInterfaceID             string    `query:"NetworkInterfaceId" xml:"networkInterfaceId,omitempty" json:",omitempty"`
	PrivateIPAddress               string    `query:"PrivateIpAddress" xml:"privateIpAddress,omitempty" json:",omitempty"`
	PrivateIPAddresses             []Address `query:"PrivateIpAddresses" xml:"privateIpAddressesSet,omitempty" json:",omitempty"`
	SecondaryPrivateIPAddressCount *int32    `query:"SecondaryPrivateIpAddressCount" xml:"secondaryPrivateIpAddressCount" json:",omitempty"`
	IPv6AddressCount               *int32    `query:"Ipv6AddressCount" xml:"ipv6AddressCount" json:",omitempty"`
	IPv6Addresses                  []IPv6    `query:"Ipv6Addresses" xml:"ipv6AddressesSet,omitempty" json:",omitempty"`
	PrimaryIPv6                    *bool     `query:"PrimaryIpv6" xml:"primaryIpv6" json:",omitempty"`
}

// Address is a private address of an interface.
type Address struct {
	Primary          *bool  `query:"Primary" xml:"primary" json:",omitempty"`
	PrivateIPAddress string `query:"PrivateIpAddress" xml:"privateIpAddress,omitempty" json:",omitempty"`
}

// IPv6 is an IPv6 address of an interface.
type IPv6 struct {
	Address string `query:"Ipv6Address" xml:"ipv6Address,omitempty" json:",omitempty"`
}

// BlockDevice is one block device of a launch template.
type BlockDevice struct {
	DeviceName  string  `query:"DeviceName" xml:"deviceName,omitempty" json:",omitempty"`
	VirtualName string  `query:"VirtualName" xml:"virtualName,omitempty" json:",omitempty"`
	EBS         *Volume `query:"Ebs" xml:"ebs" json:",omitempty"`
	NoDevice    *string `query:"NoDevice" xml:"noDevice" json:",omitempty"`
}

// Volume is an EBS volume of a block device.
type Volume struct {
	DeleteOnTermination *bool  `query:"DeleteOnTermination" xml:"deleteOnTermination" json:",omitempty"`
	Encrypted           *bool  `query:"Encrypted" xml:"encrypted" json:",omitempty"`
	IOPS                *int32 `query:"Iops" xml:"iops" json:",omitempty"`
	KMSKeyID            string `query:"KmsKeyId" xml:"kmsKeyId,omitempty" json:",omitempty"`
	SnapshotID          string `query:"SnapshotId" xml:"snapshotId,omitempty" json:",omitempty"`
	Throughput          *int32 `query:"Throughput" xml:"throughput" json:",omitempty"`
	InitializationRate  *int32 `query:"VolumeInitializationRate" xml:"volumeInitializationRate" json:",omitempty"`
	Size                *int32 `query:"VolumeSize" xml:"volumeSize" json:",omitempty"`
	Type                string `query:"VolumeType" xml:"volumeType,omitempty" json:",omitempty"`
}

// Placement says where instances are to run.
type Placement struct {
	Affinity             string `query:"Affinity" xml:"affinity,omitempty" json:",omitempty"`
	AvailabilityZone     string `query:"AvailabilityZone" xml:"availabilityZone,omitempty" json:",omitempty"`
	AvailabilityZoneID   string `query:"AvailabilityZoneId" xml:"availabilityZoneId,omitempty" json:",omitempty"`
	GroupName            string `query:"GroupName" xml:"groupName,omitempty" json:",omitempty"`
	GroupID              string `query:"GroupId" xml:"groupId,omitempty" json:",omitempty"`
	HostID               string `query:"HostId" xml:"hostId,omitempty" json:",omitempty"`
	HostResourceGroupARN string `query:"HostResourceGroupArn" xml:"hostResourceGroupArn,omitempty" json:",omitempty"`
	PartitionNumber      *int32 `query:"PartitionNumber" xml:"partitionNumber" json:",omitempty"`
	SpreadDomain         string `query:"SpreadDomain" xml:"spreadDomain,omitempty" json:",omitempty"`
	Tenancy              string `query:"Tenancy" xml:"tenancy,omitempty" json:",omitempty"`
}

// MetadataOptions are those of the instance metadata service.
type MetadataOptions struct {
	State                   string `xml:"state,omitempty" json:"-"`
	HTTPTokens              string `query:"HttpTokens" xml:"httpTokens,omitempty" json:",omitempty"`
	HTTPPutResponseHopLimit *int32 `query:"HttpPutResponseHopLimit" xml:"httpPutResponseHopLimit" json:",omitempty"`
	HTTPEndpoint            string `query:"HttpEndpoint" xml:"httpEndpoint,omitempty" json:",omitempty"`
	HTTPProtocolIPv6        string `query:"HttpProtocolIpv6" xml:"httpProtocolIpv6,omitempty" json:",omitempty"`
	InstanceMetadataTags    string `query:"InstanceMetadataTags" xml:"instanceMetadataTags,omitempty" json:",omitempty"`
}

// Enabled is a switch.
type Enabled struct {
	Enabled *bool `query:"Enabled" xml:"enabled" json:",omitempty"`
}

// TagSpecification are tags for one type of resource that a launch makes.
type TagSpecification struct {
	ResourceType string `query:"ResourceType" xml:"resourceType,omitempty" json:",omitempty"`
	Tags         []Tag  `query:"Tag" xml:"tagSet,omitempty" json:",omitempty"`
}

// CapacitySpec names the capacity reservation to use.
type CapacitySpec struct {
	Preference string          `query:"CapacityReservationPreference" xml:"capacityReservationPreference,omitempty" json:",omitempty"`
	Target     *CapacityTarget `query:"CapacityReservationTarget" xml:"capacityReservationTarget" json:",omitempty"`
}

// CapacityTarget is one capacity reservation or a group of them.
type CapacityTarget struct {
	ID               string `query:"CapacityReservationId" xml:"capacityReservationId,omitempty" json:",omitempty"`
	ResourceGroupARN string `query:"CapacityReservationResourceGroupArn" xml:"capacityReservationResourceGroupArn,omitempty" json:",omitempty"`
}

// MarketOptions say how instances are bought.
type MarketOptions struct {
	MarketType  string       `query:"MarketType" xml:"marketType,omitempty" json:",omitempty"`
	SpotOptions *SpotOptions `query:"SpotOptions" xml:"spotOptions" json:",omitempty"`
}

// SpotOptions are those of spot instances.
type SpotOptions struct {
	MaxPrice             string     `query:"MaxPrice" xml:"maxPrice,omitempty" json:",omitempty"`
	Type                 string     `query:"SpotInstanceType" xml:"spotInstanceType,omitempty" json:",omitempty"`
	BlockDurationMinutes *int32     `query:"BlockDurationMinutes" xml:"blockDurationMinutes" json:",omitempty"`
	ValidUntil           *time.Time `query:"ValidUntil" xml:"validUntil" json:",omitempty"`
	InterruptionBehavior string     `query:"InstanceInterruptionBehavior" xml:"instanceInterruptionBehavior,omitempty" json:",omitempty"`
}

// CPUOptions are those of the processor.
type CPUOptions struct {
	CoreCount            *int32 `query:"CoreCount" xml:"coreCount" json:",omitempty"`
	ThreadsPerCore       *int32 `query:"ThreadsPerCore" xml:"threadsPerCore" json:",omitempty"`
	AMDSevSNP            string `query:"AmdSevSnp" xml:"amdSevSnp,omitempty" json:",omitempty"`
	NestedVirtualization string `query:"NestedVirtualization" xml:"nestedVirtualization,omitempty" json:",omitempty"`
}

// CreditSpec is how burstable types spend credits.
type CreditSpec struct {
	CPUCredits string `query:"CpuCredits" xml:"cpuCredits,omitempty" json:",omitempty"`
}

// Hibernation is whether instances can hibernate.
type Hibernation struct {
	Configured *bool `query:"Configured" xml:"configured" json:",omitempty"`
}

// License names a license configuration.
type License struct {
	ARN string `query:"LicenseConfigurationArn" xml:"licenseConfigurationArn,omitempty" json:",omitempty"`
}

// Maintenance is how EC2 recovers instances.
type Maintenance struct {
	AutoRecovery string `query:"AutoRecovery" xml:"autoRecovery,omitempty" json:",omitempty"`
}

// NetworkPerformance weighs the bandwidth of network and storage.
type NetworkPerformance struct {
	BandwidthWeighting string `query:"BandwidthWeighting" xml:"bandwidthWeighting,omitempty" json:",omitempty"`
}

// PrivateDNSOptions say what host names instances get.
type PrivateDNSOptions struct {
	HostnameType string `query:"HostnameType" xml:"hostnameType,omitempty" json:",omitempty"`
	A            *bool  `query:"EnableResourceNameDnsARecord" xml:"enableResourceNameDnsARecord" json:",omitempty"`
	AAAA         *bool  `query:"EnableResourceNameDnsAAAARecord" xml:"enableResourceNameDnsAAAARecord" json:",omitempty"`
}

// Elastic is an attached accelerator of a kind that AWS retired.
type Elastic struct {
	Type  string `query:"Type" xml:"type,omitempty" json:",omitempty"`
	Count *int32 `query:"Count" xml:"count" json:",omitempty"`
}

// maxUserData is EC2's limit on user data before encoding.
const maxUserData = 16 << 10

// DecodedUserData returns the user data as an instance sees it.
func (d LaunchTemplateData) DecodedUserData() ([]byte, error) {
	return base64.StdEncoding.DecodeString(d.UserData)
}

// merge returns d with every member replaced that over has.
func (d LaunchTemplateData) merge(over LaunchTemplateData) LaunchTemplateData {
	dst, src := reflect.ValueOf(&d).Elem(), reflect.ValueOf(over)
	for i := range src.NumField() {
		if f := src.Field(i); dst.Field(i).CanSet() && !f.IsZero() {
			dst.Field(i).Set(f)
		}
	}
	return d
}

func (d LaunchTemplateData) check() error {
	raw, err := d.DecodedUserData()
	if err != nil {
		return fail("InvalidUserData.Malformed", "Invalid BASE64 encoding of user data.")
	}
	if len(raw) > maxUserData {
		return fail("InvalidParameterValue", "User data is limited to %d bytes", maxUserData)
	}
	if d.ImageID != "" && !wellFormed(d.ImageID, "ami") {
		return fail("InvalidAMIID.Malformed", "Invalid id: \"%s\" (expecting \"ami-...\")", d.ImageID)
	}
	type enum struct {
		name, value string
		allowed     []string
	}
	enums := []enum{{"InstanceInitiatedShutdownBehavior", d.ShutdownBehavior, []string{"stop", "terminate"}}}
	if m := d.MetadataOptions; m != nil {
		enums = append(enums,
			enum{"HttpTokens", m.HTTPTokens, []string{"optional", "required"}},
			enum{"HttpEndpoint", m.HTTPEndpoint, []string{"enabled", "disabled"}},
			enum{"HttpProtocolIpv6", m.HTTPProtocolIPv6, []string{"enabled", "disabled"}},
			enum{"InstanceMetadataTags", m.InstanceMetadataTags, []string{"enabled", "disabled"}})
		if n := m.HTTPPutResponseHopLimit; n != nil && (*n < 1 || *n > 64) {
			return fail("InvalidParameterValue", "Value (%d) for parameter HttpPutResponseHopLimit is invalid. It must be between 1 and 64.", *n)
		}
	}
	if m := d.MarketOptions; m != nil {
		enums = append(enums, enum{"MarketType", m.MarketType, []string{"spot", "capacity-block", "interruptible-capacity-reservation", "on-demand"}})
	}
	if p := d.Placement; p != nil {
		enums = append(enums, enum{"Tenancy", p.Tenancy, []string{"default", "dedicated", "host"}})
	}
	if c := d.CreditSpecification; c != nil {
		enums = append(enums, enum{"CpuCredits", c.CPUCredits, []string{"standard", "unlimited"}})
	}
	if c := d.CapacityReservation; c != nil {
		enums = append(enums, enum{"CapacityReservationPreference", c.Preference, []string{"open", "none", "capacity-reservations-only"}})
	}
	for _, n := range d.NetworkInterfaces {
		enums = append(enums, enum{"InterfaceType", n.InterfaceType, []string{"interface", "efa", "efa-only"}})
	}
	for _, e := range enums {
		if e.value != "" && !slices.Contains(e.allowed, e.value) {
			return fail("InvalidParameterValue", "Value (%s) for parameter %s is invalid. It must be one of %v.", e.value, e.name, e.allowed)
		}
	}
	for _, s := range d.TagSpecifications {
		if _, err := addTags(nil, s.Tags); err != nil {
			return err
		}
	}
	return nil
}

package ec2

import (
	"context"
	"slices"
	"strconv"

	"github.com/openpcs/openpcs/internal/awsapi"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/store"
)

// amazon is the alias that owns the images which openpcs builds.
const (
	amazon        = "amazon"
	amazonAccount = "137112412989"
)

func (e *EC2) imageOperations() []awsapi.Operation {
	return []awsapi.Operation{op("DescribeImages", true, e.describeImages)}
}

type describeImagesIn struct {
	common
	paging
	IDs               []string `query:"ImageId"`
	Owners            []string `query:"Owner"`
	ExecutableBy      []string `query:"ExecutableBy"`
	IncludeDeprecated bool     `query:"IncludeDeprecated"`
	IncludeDisabled   bool     `query:"IncludeDisabled"`
	Filters           []filter `query:"Filter"`
}

type describeImagesOut struct {
	Images    []imageXML `xml:"imagesSet"`
	NextToken string     `xml:"nextToken,omitempty"`
}

type imageXML struct {
	ID                 string      `xml:"imageId"`
	Location           string      `xml:"imageLocation"`
	State              string      `xml:"imageState"`
	OwnerID            string      `xml:"imageOwnerId"`
	CreationDate       string      `xml:"creationDate"`
	IsPublic           bool        `xml:"isPublic"`
	Architecture       string      `xml:"architecture"`
	Type               string      `xml:"imageType"`
	OwnerAlias         string      `xml:"imageOwnerAlias,omitempty"`
	Name               string      `xml:"name"`
	Description        string      `xml:"description,omitempty"`
	PlatformDetails    string      `xml:"platformDetails"`
	UsageOperation     string      `xml:"usageOperation"`
	RootDeviceType     string      `xml:"rootDeviceType"`
	RootDeviceName     string      `xml:"rootDeviceName"`
	BlockDevices       []deviceXML `xml:"blockDeviceMapping"`
	VirtualizationType string      `xml:"virtualizationType"`
	Hypervisor         string      `xml:"hypervisor"`
	ENASupport         bool        `xml:"enaSupport"`
	IMDSSupport        string      `xml:"imdsSupport"`
	DeprecationTime    string      `xml:"deprecationTime,omitempty"`
	Tags               []tagXML    `xml:"tagSet,omitempty"`
}

type deviceXML struct {
	Name string `xml:"deviceName"`
	EBS  struct {
		DeleteOnTermination bool   `xml:"deleteOnTermination"`
		VolumeType          string `xml:"volumeType"`
	} `xml:"ebs"`
}

const rootDevice = "/dev/xvda"

// ownerID returns the account number of an image's owner.
func ownerID(i fleet.Image) string {
	if i.Owner == amazon {
		return amazonAccount
	}
	return i.Owner
}

func ownerAlias(i fleet.Image) string {
	if i.Owner == amazon {
		return amazon
	}
	return ""
}

var imageFilters = filters[fleet.Image]{
	fields: map[string]func(fleet.Image) []string{
		"image-id":                         one(func(i fleet.Image) string { return i.ID }),
		"name":                             one(func(i fleet.Image) string { return i.Name }),
		"description":                      one(func(i fleet.Image) string { return i.Description }),
		"state":                            one(func(fleet.Image) string { return "available" }),
		"architecture":                     one(func(i fleet.Image) string { return i.Architecture }),
		"owner-id":                         one(ownerID),
		"owner-alias":                      one(ownerAlias),
		"is-public":                        one(func(i fleet.Image) string { return strconv.FormatBool(i.Owner == amazon) }),
		"image-type":                       one(func(fleet.Image) string { return "machine" }),
		"root-device-type":                 one(func(fleet.Image) string { return "ebs" }),
		"root-device-name":                 one(func(fleet.Image) string { return rootDevice }),
		"virtualization-type":              one(func(fleet.Image) string { return "hvm" }),
		"hypervisor":                       one(func(fleet.Image) string { return "xen" }),
		"ena-support":                      one(func(fleet.Image) string { return "true" }),
		"manifest-location":                one(location),
		"creation-date":                    one(creationDate),
		"platform":                         func(fleet.Image) []string { return nil },
		"platform-details":                 one(func(fleet.Image) string { return "Linux/UNIX" }),
		"product-code":                     func(fleet.Image) []string { return nil },
		"imds-support":                     one(func(fleet.Image) string { return "v2.0" }),
		"kernel-id":                        func(fleet.Image) []string { return nil },
		"ramdisk-id":                       func(fleet.Image) []string { return nil },
		"state-reason-code":                func(fleet.Image) []string { return nil },
		"state-reason-message":             func(fleet.Image) []string { return nil },
		"block-device-mapping.volume-type": one(func(fleet.Image) string { return "gp3" }),
		"block-device-mapping.device-name": one(func(fleet.Image) string { return rootDevice }),
		"block-device-mapping.delete-on-termination": one(func(fleet.Image) string { return "true" }),
	},
	tags: func(i fleet.Image) map[string]string { return i.Tags },
}

func location(i fleet.Image) string {
	if alias := ownerAlias(i); alias != "" {
		return alias + "/" + i.Name
	}
	return i.Owner + "/" + i.Name
}

func creationDate(i fleet.Image) string {
	return i.CreatedAt.UTC().Format("2006-01-02T15:04:05.000Z")
}

func (e *EC2) describeImages(ctx context.Context, r *awsapi.Request, in *describeImagesIn) (*describeImagesOut, error) {
	var all []fleet.Image
	err := e.store.View(ctx, func(tx *store.Tx) error {
		var err error
		all, err = fleet.Images.All(tx)
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, id := range in.IDs {
		if !wellFormed(id, "ami") {
			return nil, fail("InvalidAMIID.Malformed", "Invalid id: \"%s\" (expecting \"ami-...\")", id)
		}
	}
	all, missing := selected(all, in.IDs, func(i fleet.Image) string { return i.ID })
	if len(missing) > 0 {
		return nil, fail("InvalidAMIID.NotFound", "%s", plural(missing, "The image id '[%s]' does not exist", "The image ids '[%s]' do not exist"))
	}
	all = slices.DeleteFunc(all, func(i fleet.Image) bool {
		return !e.isOwner(i, in.Owners) || !e.canLaunch(i, in.ExecutableBy) ||
			(i.Deprecated && !in.IncludeDeprecated && len(in.IDs) == 0 && i.Owner != e.account)
	})
	if all, err = imageFilters.apply(in.Filters, all); err != nil {
		return nil, err
	}
	args := []any{in.IDs, in.Owners, in.ExecutableBy, in.IncludeDeprecated, in.Filters}
	all, next, err := page(r, in.paging, args, 1, 1000, all, func(i fleet.Image) string { return awsapi.CreationKey(i.CreatedAt, i.ID) })
	if err != nil {
		return nil, err
	}
	out := &describeImagesOut{NextToken: next}
	for _, i := range all {
		x := imageXML{
			ID: i.ID, Location: location(i), State: "available", OwnerID: ownerID(i), CreationDate: creationDate(i),
			IsPublic: i.Owner == amazon, Architecture: i.Architecture, Type: "machine", OwnerAlias: ownerAlias(i),
			Name: i.Name, Description: i.Description, PlatformDetails: "Linux/UNIX", UsageOperation: "RunInstances",
			RootDeviceType: "ebs", RootDeviceName: rootDevice, VirtualizationType: "hvm", Hypervisor: "xen",
			ENASupport: true, IMDSSupport: "v2.0", Tags: tagsXML(i.Tags),
		}
		d := deviceXML{Name: rootDevice}
		d.EBS.DeleteOnTermination, d.EBS.VolumeType = true, "gp3"
		x.BlockDevices = []deviceXML{d}
		if i.Deprecated {
			x.DeprecationTime = x.CreationDate
		}
		out.Images = append(out.Images, x)
	}
	return out, nil
}

func (e *EC2) isOwner(i fleet.Image, owners []string) bool {
	if len(owners) == 0 {
		return true
	}
	for _, o := range owners {
		switch o {
		case i.Owner, ownerID(i):
			return true
		case "self":
			if i.Owner == e.account {
				return true
			}
		}
	}
	return false
}

// canLaunch applies ExecutableBy: "all" are public images, "self" and the
// account those with an explicit permission, which do not exist here.
func (e *EC2) canLaunch(i fleet.Image, by []string) bool {
	return len(by) == 0 || (slices.Contains(by, "all") && i.Owner == amazon)
}

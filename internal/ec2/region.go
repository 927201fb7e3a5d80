package ec2

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"github.com/openpcs/openpcs/internal/awsapi"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/store"
)

const (
	vpcBits    = 20
	subnetBits = 22
	// reservedPerSubnet are the addresses that EC2 keeps of each subnet: the
	// first four and the last.
	reservedPerSubnet = 5
)

// VPC is a virtual network. openpcs makes the default one of each region.
type VPC struct {
	ID        string            `json:"id"`
	Region    string            `json:"region"`
	CIDR      string            `json:"cidr"`
	IsDefault bool              `json:"isDefault"`
	Tags      map[string]string `json:"tags,omitempty"`
}

// VPCs is where VPCs are stored. The default one is named so.
var VPCs = store.NewCollection("vpc", func(v VPC) store.Index {
	ix := store.Index{ID: v.ID, Region: v.Region}
	if v.IsDefault {
		ix.Name = "default"
	}
	return ix
})

// slot records which part of the pool a region has, for good: addresses of
// running instances depend on it.
type slot struct {
	Region string `json:"region"`
	Number int    `json:"number"`
}

var slots = store.NewCollection("ec2region", func(s slot) store.Index {
	return store.Index{ID: s.Region, Name: strconv.Itoa(s.Number)}
})

// A PoolError says that the address pool has no room for another region.
type PoolError struct {
	Region string
	Pool   netip.Prefix
	Used   int
}

func (e *PoolError) Error() string {
	return fmt.Sprintf("the address pool %s has no room for region %s: it holds the VPCs of %d regions already; start openpcs with a larger pool or use one of those", e.Pool, e.Region, e.Used)
}

// EnsureRegion makes the region's default VPC, with three subnets in three
// zones and the default security group, unless it exists. VPCs are /20 parts
// of the pool in the order in which regions are first used; the first part is
// left out, because the gateway and the controllers live in its first /24. It
// must not be called within a transaction.
func EnsureRegion(ctx context.Context, st *store.Store, region string, pool netip.Prefix) error {
	known := false
	err := st.View(ctx, func(tx *store.Tx) error {
		_, err := slots.Get(tx, region)
		known = err == nil
		if errors.Is(err, store.ErrNotFound) {
			return nil
		}
		return err
	})
	if err != nil || known {
		return err
	}
	if !awsapi.ValidRegion(region) {
		return fmt.Errorf("make default VPC: %q is no region name", region)
	}
	err = st.Update(ctx, func(tx *store.Tx) error { return makeRegion(tx, region, pool) })
	if err != nil {
		return fmt.Errorf("make default VPC of %s: %w", region, err)
	}
	return nil
}

func makeRegion(tx *store.Tx, region string, pool netip.Prefix) error {
	switch _, err := slots.Get(tx, region); {
	case err == nil:
		return nil // another call was faster
	case !errors.Is(err, store.ErrNotFound):
		return err
	}
	used, err := slots.All(tx)
	if err != nil {
		return err
	}
	number := 1
	for _, s := range used {
		number = max(number, s.Number+1)
	}
	cidr, ok := slice(pool, vpcBits, number)
	if !ok {
		return &PoolError{Region: region, Pool: pool, Used: len(used)}
	}
	vpc := VPC{ID: fleet.NewEC2ID("vpc"), Region: region, CIDR: cidr.String(), IsDefault: true}
	if err := slots.Put(tx, slot{Region: region, Number: number}); err != nil {
		return err
	}
	if err := VPCs.Put(tx, vpc); err != nil {
		return err
	}
	for i, zone := range Zones(region) {
		part, _ := slice(cidr, subnetBits, i)
		err := fleet.Subnets.Put(tx, fleet.Subnet{
			ID: fleet.NewEC2ID("subnet"), Region: region, VPCID: vpc.ID,
			CIDR: part.String(), AZ: zone.Name, AZID: zone.ID,
		})
		if err != nil {
			return err
		}
	}
	group := SecurityGroup{
		ID: fleet.NewEC2ID("sg"), Region: region, VPCID: vpc.ID,
		Name: "default", Description: "default VPC security group",
	}
	group.Ingress = []Permission{{Protocol: "-1", Groups: []GroupPair{{GroupID: group.ID}}}}
	group.Egress = allowAll()
	return SecurityGroups.Put(tx, group)
}

// slice returns the n-th part of that many bits of an IPv4 prefix.
func slice(p netip.Prefix, bits, n int) (netip.Prefix, bool) {
	p = p.Masked()
	if !p.IsValid() || !p.Addr().Is4() || bits < p.Bits() || n >= 1<<(bits-p.Bits()) {
		return netip.Prefix{}, false
	}
	base := p.Addr().As4()
	sum := binary.BigEndian.Uint32(base[:]) + uint32(n)<<(32-bits) // n is bounded above
	var out [4]byte
	binary.BigEndian.PutUint32(out[:], sum)
	return netip.PrefixFrom(netip.AddrFrom4(out), bits), true
}

// Zone is an availability zone.
type Zone struct {
	Name string // ap-northeast-1a
	ID   string // apne1-az4
}

// Zones returns the three availability zones that a region has here.
func Zones(region string) []Zone {
	letters, numbers := "abc", "123"
	if region == "ap-northeast-1" {
		// What an account in Tokyo sees: there is no zone b for it.
		letters, numbers = "acd", "412"
	}
	out := make([]Zone, len(letters))
	for i := range letters {
		out[i] = Zone{Name: region + letters[i:i+1], ID: shortRegion(region) + "-az" + numbers[i:i+1]}
	}
	return out
}

// shortRegion abbreviates a region as zone ids do: ap-northeast-1 is apne1.
func shortRegion(region string) string {
	parts := strings.Split(region, "-")
	var b strings.Builder
	for i, p := range parts {
		if i == 0 || i == len(parts)-1 {
			b.WriteString(p)
			continue
		}
		switch p {
		case "northeast", "northwest", "southeast", "southwest":
			b.WriteString(p[:1] + p[5:6])
		default:
			b.WriteString(p[:1])
		}
	}
	return b.String()
}

// VPCOf returns the default VPC of a region. It wraps store.ErrNotFound
// before EnsureRegion was called for it.
func VPCOf(tx *store.Tx, region string) (VPC, error) {
	return VPCs.Find(tx, region, "", "default")
}

// SubnetOf returns a subnet of the region; it wraps store.ErrNotFound for
// one that is in no or another region.
func SubnetOf(tx *store.Tx, region, id string) (fleet.Subnet, error) {
	s, err := fleet.Subnets.Get(tx, id)
	if err == nil && s.Region != region {
		return fleet.Subnet{}, fmt.Errorf("subnet %s in %s: %w", id, region, store.ErrNotFound)
	}
	return s, err
}

// SecurityGroupOf returns a security group of the region; it wraps
// store.ErrNotFound for one that is in no or another region.
func SecurityGroupOf(tx *store.Tx, region, id string) (SecurityGroup, error) {
	g, err := SecurityGroups.Get(tx, id)
	if err == nil && g.Region != region {
		return SecurityGroup{}, fmt.Errorf("security group %s in %s: %w", id, region, store.ErrNotFound)
	}
	return g, err
}

package fleet

import (
	"fmt"
	"net/netip"

	"github.com/openpcs/openpcs/internal/store"
)

// Addresses tells which addresses a region has in use.
type Addresses struct {
	used map[string]bool
	// recent ones belonged to instances that ended within the hour. Daemons
	// may still send to those, so they are given out only when no other is
	// left: a job once died of its predecessor's cancellation that way.
	recent map[string]bool
}

// ReadAddresses reads what the transaction sees: instances and controllers
// of the region. VPCs of regions do not overlap.
func ReadAddresses(tx *store.Tx, region string) (*Addresses, error) {
	a := &Addresses{used: map[string]bool{}, recent: map[string]bool{}}
	instances, err := Instances.InRegion(tx, region)
	if err != nil {
		return nil, err
	}
	for _, i := range instances {
		if i.State.Live() {
			a.used[i.Address] = true
		} else {
			a.recent[i.Address] = true
		}
	}
	clusters, err := Clusters.InRegion(tx, region)
	if err != nil {
		return nil, err
	}
	for _, c := range clusters {
		a.used[c.ControllerAddress] = true
	}
	return a, nil
}

// Take returns a free address of the subnet (10.77.16.0/22) and marks it. As
// in EC2 the first four and the last are not given out.
func (a *Addresses) Take(cidr string) (string, error) {
	prefix, err := netip.ParsePrefix(cidr)
	if err != nil {
		return "", fmt.Errorf("find a free address: %w", err)
	}
	first := prefix.Masked().Addr()
	for range 4 {
		first = first.Next()
	}
	spare := ""
	for at := first; prefix.Contains(at.Next()); at = at.Next() { // the last one is left out
		s := at.String()
		switch {
		case a.used[s]:
		case a.recent[s]:
			if spare == "" {
				spare = s
			}
		default:
			a.used[s] = true
			return s, nil
		}
	}
	if spare == "" {
		return "", &NoAddressError{cidr}
	}
	a.used[spare] = true
	return spare, nil
}

// NoAddressError says that a subnet is full.
type NoAddressError struct{ CIDR string }

func (e *NoAddressError) Error() string {
	return "find a free address: the subnet " + e.CIDR + " has none left"
}

// PickAddress takes one address of a subnet.
func PickAddress(tx *store.Tx, subnetID string) (string, error) {
	subnet, err := Subnets.Get(tx, subnetID)
	if err != nil {
		return "", err
	}
	a, err := ReadAddresses(tx, subnet.Region)
	if err != nil {
		return "", err
	}
	return a.Take(subnet.CIDR)
}

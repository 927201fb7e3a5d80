package fleet

import (
	"fmt"
	"net/netip"

	"github.com/openpcs/openpcs/internal/store"
)

// FreeAddress returns the lowest address of the subnet that is not in use.
// As in EC2 the first four and the last are not given out.
func FreeAddress(cidr string, used map[string]bool) (string, error) {
	prefix, err := netip.ParsePrefix(cidr)
	if err != nil {
		return "", fmt.Errorf("find a free address: %w", err)
	}
	a := prefix.Masked().Addr()
	for range 4 {
		a = a.Next()
	}
	for ; prefix.Contains(a.Next()); a = a.Next() { // the last one is left out
		if s := a.String(); !used[s] {
			return s, nil
		}
	}
	return "", fmt.Errorf("find a free address: the subnet %s has none left", cidr)
}

// PickAddress returns a free address of a subnet, by what the transaction
// sees in use: live instances and controllers of all regions.
func PickAddress(tx *store.Tx, subnetID string) (string, error) {
	subnet, err := Subnets.Get(tx, subnetID)
	if err != nil {
		return "", err
	}
	used := map[string]bool{}
	instances, err := Instances.InRegion(tx, subnet.Region)
	if err != nil {
		return "", err
	}
	for _, i := range instances {
		if i.State.Live() {
			used[i.Address] = true
		}
	}
	clusters, err := Clusters.InRegion(tx, subnet.Region)
	if err != nil {
		return "", err
	}
	for _, c := range clusters {
		used[c.ControllerAddress] = true
	}
	return FreeAddress(subnet.CIDR, used)
}

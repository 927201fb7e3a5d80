package ec2_test

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"testing"

	"github.com/openpcs/openpcs/internal/awsapi/awsapitest"
	"github.com/openpcs/openpcs/internal/ec2"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/store"
)

// TestRegionsDoNotOverlap makes regions from many sides at once.
func TestRegionsDoNotOverlap(t *testing.T) {
	w := awsapitest.New(t)
	pool := netip.MustParsePrefix("10.77.0.0/16")
	var wg sync.WaitGroup
	for n := range 30 {
		wg.Go(func() {
			if err := ec2.EnsureRegion(t.Context(), w.Store, fmt.Sprintf("xx-test-%d", n%10), pool); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	reserved := netip.MustParsePrefix("10.77.0.0/24")
	w.View(t, func(tx *store.Tx) error {
		subnets, err := fleet.Subnets.All(tx)
		if err != nil {
			return err
		}
		if len(subnets) != 30 {
			t.Errorf("got %d subnets, want 3 for each of 10 regions", len(subnets))
		}
		for i, a := range subnets {
			p := netip.MustParsePrefix(a.CIDR)
			if !pool.Overlaps(p) || reserved.Overlaps(p) {
				t.Errorf("%s is not where it should be", p)
			}
			vpc, err := ec2.VPCOf(tx, a.Region)
			if err != nil || vpc.ID != a.VPCID || !netip.MustParsePrefix(vpc.CIDR).Overlaps(p) {
				t.Errorf("%s is not in VPC %+v, %v", p, vpc, err)
			}
			for _, b := range subnets[:i] {
				if netip.MustParsePrefix(b.CIDR).Overlaps(p) {
					t.Errorf("%s overlaps %s", p, b.CIDR)
				}
			}
		}
		return nil
	})
}

func TestSmallPool(t *testing.T) {
	w := awsapitest.New(t)
	var full *ec2.PoolError
	if err := ec2.EnsureRegion(t.Context(), w.Store, "us-east-1", netip.MustParsePrefix("10.0.0.0/20")); !errors.As(err, &full) {
		t.Errorf("got %v", err)
	}
	if err := ec2.EnsureRegion(t.Context(), w.Store, "us-east-1", netip.MustParsePrefix("10.0.0.0/19")); err != nil {
		t.Error(err)
	}
}

func TestZones(t *testing.T) {
	for region, want := range map[string]string{
		"ap-northeast-1": "ap-northeast-1d apne1-az2", "us-east-1": "us-east-1c use1-az3",
		"ap-southeast-2": "ap-southeast-2c apse2-az3", "us-gov-west-1": "us-gov-west-1c usgw1-az3", "eu-central-1": "eu-central-1c euc1-az3",
	} {
		if z := ec2.Zones(region)[2]; z.Name+" "+z.ID != want {
			t.Errorf("got %v, want %s", z, want)
		}
	}
}

package fleet_test

import (
	"context"
	"errors"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/store"
)

// errUndo ends a transaction without a trace.
var errUndo = errors.New("undo")

func openStore(t testing.TB) *store.Store {
	t.Helper()
	st, err := store.Open(filepath.Join(t.TempDir(), "state.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	return st
}

func TestAddresses(t *testing.T) {
	st := openStore(t)
	const region, cidr = "ap-northeast-1", "10.77.16.0/26" // 64, of which 59 are given out
	rapid.Check(t, func(rt *rapid.T) {
		err := st.Update(context.Background(), func(tx *store.Tx) error {
			used, recent := map[string]bool{}, map[string]bool{}
			for n := range rapid.IntRange(0, 80).Draw(rt, "instances") {
				i := fleet.Instance{
					ID: "i-" + strconv.Itoa(n), Region: rapid.SampledFrom([]string{region, region, region, "us-east-1"}).Draw(rt, "region"),
					State:   rapid.SampledFrom([]fleet.InstanceState{fleet.Pending, fleet.Running, fleet.ShuttingDown, fleet.Terminated, fleet.Terminated}).Draw(rt, "state"),
					Address: "10.77.16." + strconv.Itoa(rapid.IntRange(0, 63).Draw(rt, "address")),
				}
				if err := fleet.Instances.Put(tx, i); err != nil {
					return err
				}
				if i.Region != region {
					continue
				}
				if i.State.Live() {
					used[i.Address] = true
				} else {
					recent[i.Address] = true
				}
			}
			c := fleet.Cluster{ID: "pcs_1", Region: region, Name: "c", ControllerAddress: "10.77.16." + strconv.Itoa(rapid.IntRange(4, 20).Draw(rt, "controller"))}
			if err := fleet.Clusters.Put(tx, c); err != nil {
				return err
			}
			used[c.ControllerAddress] = true
			a, err := fleet.ReadAddresses(tx, region)
			if err != nil {
				return err
			}
			prefix := netip.MustParsePrefix(cidr)
			last, reusing := 0, false
			for {
				got, err := a.Take(cidr)
				if err != nil {
					if !strings.Contains(err.Error(), cidr) {
						rt.Fatalf("the error %q does not name the subnet", err)
					}
					break
				}
				at := netip.MustParseAddr(got)
				host := int(at.As4()[3])
				switch {
				case !prefix.Contains(at) || host < 4 || host == 63:
					rt.Fatalf("%s is not to be given out", got)
				case used[got]:
					rt.Fatalf("%s is in use", got)
				case !recent[got] && reusing:
					rt.Fatalf("%s was free, but a recent one was given out before", got)
				}
				reusing = reusing || recent[got]
				used[got] = true
				last++
			}
			free := 0
			for host := 4; host < 63; host++ {
				if !used["10.77.16."+strconv.Itoa(host)] {
					free++
				}
			}
			if free != 0 {
				rt.Fatalf("%d addresses are free, and none is given out after %d", free, last)
			}
			return errUndo
		})
		if !errors.Is(err, errUndo) {
			rt.Fatalf("%v", err)
		}
	})
}

func TestAddressesOfAWrongSubnet(t *testing.T) {
	st := openStore(t)
	err := st.Update(context.Background(), func(tx *store.Tx) error {
		a, err := fleet.ReadAddresses(tx, "ap-northeast-1")
		if err != nil {
			return err
		}
		for _, cidr := range []string{"", "10.77.0.0", "x/22", "10.77.16.0/30", "10.77.16.0/32"} {
			if got, err := a.Take(cidr); err == nil {
				t.Errorf("Take(%q) = %s", cidr, got)
			}
		}
		if _, err := fleet.PickAddress(tx, "subnet-none"); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("an address of no subnet: %v", err)
		}
		if err := fleet.Subnets.Put(tx, fleet.Subnet{ID: "subnet-1", Region: "ap-northeast-1", CIDR: "10.77.20.0/22"}); err != nil {
			return err
		}
		got, err := fleet.PickAddress(tx, "subnet-1")
		if err != nil || got != "10.77.20.4" {
			t.Errorf("PickAddress = %s, %v", got, err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

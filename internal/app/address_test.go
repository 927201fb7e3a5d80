package app

import (
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// The address of the metadata service has a label of its own, by which the
// bridge's dnsmasq does not take it.
func TestMetadataAddressHasALabel(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root makes network interfaces")
	}
	const bridge = "openpcs-tlab"
	if out, err := exec.Command("ip", "link", "add", bridge, "type", "bridge").CombinedOutput(); err != nil {
		t.Fatalf("make a bridge: %v: %s", err, out)
	}
	t.Cleanup(func() { _ = exec.Command("ip", "link", "delete", bridge).Run() })
	for range 2 { // the second time it is there
		if err := addAddress(bridge, netip.MustParseAddr("169.254.169.254")); err != nil {
			t.Fatal(err)
		}
	}
	out, err := exec.Command("ip", "-o", "address", "show", "dev", bridge).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "169.254.169.254/32 scope link "+bridge+":m") {
		t.Errorf("%v: %s", err, out)
	}
}

package fleet_test

import (
	"testing"

	"github.com/openpcs/openpcs/internal/fleet"
)

func TestInstanceTypes(t *testing.T) {
	tests := []struct {
		name              string
		vcpus, cores, mem int
		gpus              int
		efa               bool
	}{
		{"t3.micro", 2, 1, 1024, 0, false},
		{"t2.micro", 1, 1, 1024, 0, false},
		{"c5n.large", 2, 1, 5376, 0, false},
		{"c5n.18xlarge", 72, 36, 196608, 0, true},
		{"c7a.medium", 1, 1, 2048, 0, false},
		{"m7i.48xlarge", 192, 96, 786432, 0, true},
		{"hpc6a.48xlarge", 96, 96, 393216, 0, true},
		{"hpc7a.12xlarge", 24, 24, 786432, 0, true},
		{"g5.12xlarge", 48, 24, 196608, 4, true},
		{"p5.48xlarge", 192, 96, 2097152, 8, true},
	}
	for _, tt := range tests {
		got, ok := fleet.Lookup(tt.name)
		if !ok || got.VCPUs != tt.vcpus || got.Cores() != tt.cores || got.MemoryMiB != tt.mem || got.GPU.Count != tt.gpus || got.EFA != tt.efa {
			t.Errorf("Lookup(%s) = %+v, %v", tt.name, got, ok)
		}
	}
	if _, ok := fleet.Lookup("t3.huge"); ok {
		t.Error("Lookup found t3.huge")
	}
	seen := map[string]bool{}
	for _, it := range fleet.All() {
		if seen[it.Name] || it.VCPUs%it.ThreadsPerCore != 0 || it.MemoryMiB == 0 || it.Network == "" {
			t.Errorf("bad row %+v", it)
		}
		seen[it.Name] = true
	}
}

package fleet

import (
	"cmp"
	"slices"
	"strings"
)

// Architectures of instance types and images.
const (
	X86 = "x86_64"
	ARM = "arm64"
)

// GPU describes the accelerators of an instance type; all are of one model.
type GPU struct {
	Count        int
	Name         string // T4, A10G, A100, H100
	Manufacturer string
	MemoryMiB    int // of each
}

// InstanceType is what is publicly known of an EC2 instance type, as far as
// scheduling on it needs it.
type InstanceType struct {
	Name           string
	VCPUs          int
	ThreadsPerCore int // 2 where simultaneous multithreading is on by default
	MemoryMiB      int
	Arch           string
	GPU            GPU // Count is 0 on types without
	Network        string
	EFA            bool
	// CurrentGeneration is false for types that AWS lists as previous ones.
	CurrentGeneration bool
	Burstable         bool
	Manufacturer      string // of the processor
}

// Cores returns the number of physical cores, which is what PCS gives Slurm.
func (t InstanceType) Cores() int { return t.VCPUs / t.ThreadsPerCore }

// Family returns the part of the name before the dot.
func (t InstanceType) Family() string {
	family, _, _ := strings.Cut(t.Name, ".")
	return family
}

// Lookup returns the instance type of that name.
func Lookup(name string) (InstanceType, bool) {
	i, ok := slices.BinarySearchFunc(instanceTypes, name, func(t InstanceType, name string) int {
		return strings.Compare(t.Name, name)
	})
	if !ok {
		return InstanceType{}, false
	}
	return instanceTypes[i], true
}

// All returns all instance types, ordered by name. The caller owns the slice.
func All() []InstanceType { return slices.Clone(instanceTypes) }

// size is one size of a family: what differs within it.
type size struct {
	name    string
	vcpus   int
	memory  float64 // GiB; 0: the family's memory per vCPU
	network string
	gpus    int
	efa     bool
}

// family is a series of types that differ by size.
type family struct {
	name    string
	threads int
	perVCPU float64 // GiB of memory per vCPU
	maker   string
	arch    string
	gpu     GPU
	burst   bool
	old     bool
	sizes   []size
}

const (
	intel    = "Intel"
	amd      = "AMD"
	graviton = "AWS"
)

func burstSizes(first int) []size {
	const network = "Up to 5 Gigabit"
	small := func(n int) int { return cmp.Or(first, n) }
	return []size{
		{name: "nano", vcpus: small(2), memory: 0.5, network: network},
		{name: "micro", vcpus: small(2), memory: 1, network: network},
		{name: "small", vcpus: small(2), memory: 2, network: network},
		{name: "medium", vcpus: 2, memory: 4, network: network},
		{name: "large", vcpus: 2, memory: 8, network: network},
		{name: "xlarge", vcpus: 4, memory: 16, network: network},
		{name: "2xlarge", vcpus: 8, memory: 32, network: network},
	}
}

// fifth are the sizes of m5 and r5.
var fifth = []size{
	{name: "large", vcpus: 2, network: "Up to 10 Gigabit"},
	{name: "xlarge", vcpus: 4, network: "Up to 10 Gigabit"},
	{name: "2xlarge", vcpus: 8, network: "Up to 10 Gigabit"},
	{name: "4xlarge", vcpus: 16, network: "Up to 10 Gigabit"},
	{name: "8xlarge", vcpus: 32, network: "10 Gigabit"},
	{name: "12xlarge", vcpus: 48, network: "12 Gigabit"},
	{name: "16xlarge", vcpus: 64, network: "20 Gigabit"},
	{name: "24xlarge", vcpus: 96, network: "25 Gigabit"},
}

// upTo24 are the sizes that the sixth and seventh generation share; the
// largest ones follow in each family.
var upTo24 = []size{
	{name: "large", vcpus: 2, network: "Up to 12.5 Gigabit"},
	{name: "xlarge", vcpus: 4, network: "Up to 12.5 Gigabit"},
	{name: "2xlarge", vcpus: 8, network: "Up to 12.5 Gigabit"},
	{name: "4xlarge", vcpus: 16, network: "Up to 12.5 Gigabit"},
	{name: "8xlarge", vcpus: 32, network: "12.5 Gigabit"},
	{name: "12xlarge", vcpus: 48, network: "18.75 Gigabit"},
	{name: "16xlarge", vcpus: 64, network: "25 Gigabit"},
	{name: "24xlarge", vcpus: 96, network: "37.5 Gigabit"},
}

func with(base []size, more ...size) []size { return slices.Concat(base, more) }

var (
	top32   = size{name: "32xlarge", vcpus: 128, network: "50 Gigabit", efa: true}
	mid32   = size{name: "32xlarge", vcpus: 128, network: "50 Gigabit"}
	top48   = size{name: "48xlarge", vcpus: 192, network: "50 Gigabit", efa: true}
	oneCore = size{name: "medium", vcpus: 1, network: "Up to 12.5 Gigabit"}
	arm12   = []size{
		oneCore,
		{name: "large", vcpus: 2, network: "Up to 12.5 Gigabit"},
		{name: "xlarge", vcpus: 4, network: "Up to 12.5 Gigabit"},
		{name: "2xlarge", vcpus: 8, network: "Up to 15 Gigabit"},
		{name: "4xlarge", vcpus: 16, network: "Up to 15 Gigabit"},
		{name: "8xlarge", vcpus: 32, network: "15 Gigabit"},
		{name: "12xlarge", vcpus: 48, network: "22.5 Gigabit"},
	}
)

var families = []family{
	{name: "t2", threads: 1, maker: intel, arch: X86, burst: true, old: true, sizes: burstSizes(1)},
	{name: "t3", threads: 2, maker: intel, arch: X86, burst: true, sizes: burstSizes(0)},
	{name: "t3a", threads: 2, maker: amd, arch: X86, burst: true, sizes: burstSizes(0)},
	{name: "t4g", threads: 1, maker: graviton, arch: ARM, burst: true, sizes: burstSizes(0)},

	{name: "m5", threads: 2, perVCPU: 4, maker: intel, arch: X86, sizes: fifth},
	{name: "m6i", threads: 2, perVCPU: 4, maker: intel, arch: X86, sizes: with(upTo24, top32)},
	{name: "m7i", threads: 2, perVCPU: 4, maker: intel, arch: X86, sizes: with(upTo24, top48)},
	{name: "r5", threads: 2, perVCPU: 8, maker: intel, arch: X86, sizes: fifth},
	{name: "r6i", threads: 2, perVCPU: 8, maker: intel, arch: X86, sizes: with(upTo24, top32)},
	{name: "r7i", threads: 2, perVCPU: 8, maker: intel, arch: X86, sizes: with(upTo24, top48)},

	{name: "c5", threads: 2, perVCPU: 2, maker: intel, arch: X86, sizes: with(fifth[:4],
		size{name: "9xlarge", vcpus: 36, network: "12 Gigabit"},
		size{name: "12xlarge", vcpus: 48, network: "12 Gigabit"},
		size{name: "18xlarge", vcpus: 72, network: "25 Gigabit"},
		size{name: "24xlarge", vcpus: 96, network: "25 Gigabit"})},
	{name: "c5n", threads: 2, perVCPU: 2.625, maker: intel, arch: X86, sizes: []size{
		{name: "large", vcpus: 2, network: "Up to 25 Gigabit"},
		{name: "xlarge", vcpus: 4, network: "Up to 25 Gigabit"},
		{name: "2xlarge", vcpus: 8, network: "Up to 25 Gigabit"},
		{name: "4xlarge", vcpus: 16, network: "Up to 25 Gigabit"},
		{name: "9xlarge", vcpus: 36, memory: 96, network: "50 Gigabit", efa: true},
		{name: "18xlarge", vcpus: 72, memory: 192, network: "100 Gigabit", efa: true},
	}},
	{name: "c6i", threads: 2, perVCPU: 2, maker: intel, arch: X86, sizes: with(upTo24, top32)},
	{name: "c7i", threads: 2, perVCPU: 2, maker: intel, arch: X86, sizes: with(upTo24, top48)},
	{name: "c6a", threads: 2, perVCPU: 2, maker: amd, arch: X86, sizes: with(upTo24, mid32, top48)},
	{name: "c7a", threads: 1, perVCPU: 2, maker: amd, arch: X86, sizes: with([]size{oneCore}, with(upTo24, mid32, top48)...)},
	{name: "c7g", threads: 1, perVCPU: 2, maker: graviton, arch: ARM, sizes: with(arm12,
		size{name: "16xlarge", vcpus: 64, network: "30 Gigabit", efa: true})},
	{name: "c8g", threads: 1, perVCPU: 2, maker: graviton, arch: ARM, sizes: with(arm12,
		size{name: "16xlarge", vcpus: 64, network: "30 Gigabit"},
		size{name: "24xlarge", vcpus: 96, network: "40 Gigabit", efa: true},
		size{name: "48xlarge", vcpus: 192, network: "50 Gigabit", efa: true})},

	{name: "hpc6a", threads: 1, perVCPU: 4, maker: amd, arch: X86, sizes: []size{
		{name: "48xlarge", vcpus: 96, network: "100 Gigabit", efa: true},
	}},
	{name: "hpc6id", threads: 1, perVCPU: 16, maker: intel, arch: X86, sizes: []size{
		{name: "32xlarge", vcpus: 64, network: "200 Gigabit", efa: true},
	}},
	{name: "hpc7a", threads: 1, maker: amd, arch: X86, sizes: []size{
		{name: "12xlarge", vcpus: 24, memory: 768, network: "300 Gigabit", efa: true},
		{name: "24xlarge", vcpus: 48, memory: 768, network: "300 Gigabit", efa: true},
		{name: "48xlarge", vcpus: 96, memory: 768, network: "300 Gigabit", efa: true},
		{name: "96xlarge", vcpus: 192, memory: 768, network: "300 Gigabit", efa: true},
	}},
	{name: "hpc7g", threads: 1, maker: graviton, arch: ARM, sizes: []size{
		{name: "4xlarge", vcpus: 16, memory: 128, network: "200 Gigabit", efa: true},
		{name: "8xlarge", vcpus: 32, memory: 128, network: "200 Gigabit", efa: true},
		{name: "16xlarge", vcpus: 64, memory: 128, network: "200 Gigabit", efa: true},
	}},

	{name: "g4dn", threads: 2, perVCPU: 4, maker: intel, arch: X86, gpu: GPU{Name: "T4", MemoryMiB: 16384}, sizes: []size{
		{name: "xlarge", vcpus: 4, network: "Up to 25 Gigabit", gpus: 1},
		{name: "2xlarge", vcpus: 8, network: "Up to 25 Gigabit", gpus: 1},
		{name: "4xlarge", vcpus: 16, network: "Up to 25 Gigabit", gpus: 1},
		{name: "8xlarge", vcpus: 32, network: "50 Gigabit", gpus: 1, efa: true},
		{name: "12xlarge", vcpus: 48, network: "50 Gigabit", gpus: 4, efa: true},
		{name: "16xlarge", vcpus: 64, network: "50 Gigabit", gpus: 1, efa: true},
	}},
	{name: "g5", threads: 2, perVCPU: 4, maker: amd, arch: X86, gpu: GPU{Name: "A10G", MemoryMiB: 24576}, sizes: []size{
		{name: "xlarge", vcpus: 4, network: "Up to 10 Gigabit", gpus: 1},
		{name: "2xlarge", vcpus: 8, network: "Up to 10 Gigabit", gpus: 1},
		{name: "4xlarge", vcpus: 16, network: "Up to 25 Gigabit", gpus: 1},
		{name: "8xlarge", vcpus: 32, network: "25 Gigabit", gpus: 1, efa: true},
		{name: "12xlarge", vcpus: 48, network: "40 Gigabit", gpus: 4, efa: true},
		{name: "16xlarge", vcpus: 64, network: "25 Gigabit", gpus: 1, efa: true},
		{name: "24xlarge", vcpus: 96, network: "50 Gigabit", gpus: 4, efa: true},
		{name: "48xlarge", vcpus: 192, network: "100 Gigabit", gpus: 8, efa: true},
	}},
	{name: "p4d", threads: 2, maker: intel, arch: X86, gpu: GPU{Name: "A100", MemoryMiB: 40960}, sizes: []size{
		{name: "24xlarge", vcpus: 96, memory: 1152, network: "4x 100 Gigabit", gpus: 8, efa: true},
	}},
	{name: "p5", threads: 2, maker: amd, arch: X86, gpu: GPU{Name: "H100", MemoryMiB: 81920}, sizes: []size{
		{name: "48xlarge", vcpus: 192, memory: 2048, network: "3200 Gigabit", gpus: 8, efa: true},
	}},
}

var instanceTypes = func() []InstanceType {
	var out []InstanceType
	for _, f := range families {
		for _, s := range f.sizes {
			t := InstanceType{
				Name: f.name + "." + s.name, VCPUs: s.vcpus, ThreadsPerCore: f.threads, Arch: f.arch,
				MemoryMiB: int(cmp.Or(s.memory, f.perVCPU*float64(s.vcpus)) * 1024),
				Network:   s.network, EFA: s.efa,
				CurrentGeneration: !f.old, Burstable: f.burst, Manufacturer: f.maker,
			}
			if s.gpus > 0 {
				t.GPU = f.gpu
				t.GPU.Count, t.GPU.Manufacturer = s.gpus, "NVIDIA"
			}
			out = append(out, t)
		}
	}
	slices.SortFunc(out, func(a, b InstanceType) int { return strings.Compare(a.Name, b.Name) })
	return out
}()

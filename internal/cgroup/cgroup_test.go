package cgroup

import (
	"strings"
	"testing"
)

const (
	mixedSelf = "9:name=systemd:/\n8:pids:/\n4:memory:/x\n0::/\n"
	pureSelf  = "0::/user.slice/user-0.slice\n"
	pureAll   = "cpuset cpu io memory hugetlb pids rdma misc\n"
)

func TestHost(t *testing.T) {
	for _, tt := range []struct {
		name, self, controllers string
		memory                  bool
		says                    string // why Slurm cannot, empty if it can
	}{
		{"pure", pureSelf, pureAll, true, ""},
		{"mixed", mixedSelf, "hugetlb\n", false, "v1 hierarchies are mounted (memory name=systemd pids)"},
		{"only systemd's v1", "1:name=systemd:/\n0::/\n", pureAll, true, "name=systemd"},
		{"not delegated", pureSelf, "cpu pids\n", false, "no controller cpuset"},
		{"nothing", "", "", false, "no controller cpu"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := parse(tt.self, tt.controllers)
			if h.Can("memory") != tt.memory {
				t.Errorf("memory: %v", h.Can("memory"))
			}
			err := h.Slurm()
			if (err == nil) != (tt.says == "") || err != nil && !strings.Contains(err.Error(), tt.says) {
				t.Errorf("Slurm: %v, want %q", err, tt.says)
			}
		})
	}
	if err := (Host{Missing: true}).Slurm(); err == nil {
		t.Error("Slurm works without cgroup v2")
	}
}

func TestMountPoint(t *testing.T) {
	const v1 = "30 24 0:26 / /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n"
	for text, want := range map[string]string{
		v1: "",
		v1 + "40 24 0:35 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n":             "/sys/fs/cgroup/unified",
		"31 23 0:27 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n" + v1:   "/sys/fs/cgroup",
		"31 23 0:27 / /sys/fs/cgroup\n\n - cgroup2 \n31 23 0:27 / /x rw - cgroup2fs cgroup2 rw\n": "",
	} {
		if got := mountPoint(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func TestReadThisHost(t *testing.T) {
	h, err := Read()
	if err != nil {
		t.Fatal(err)
	}
	if len(h.Legacy) == 0 && h.Missing {
		t.Errorf("this host has no control groups: %+v", h)
	}
}

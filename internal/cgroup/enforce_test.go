package cgroup

import (
	"strings"
	"testing"
)

func TestDecide(t *testing.T) {
	machine := Machine{CPUs: 8, MemoryMiB: 16000}
	pure, mixed, some := parse(pureSelf, pureAll), parse(mixedSelf, "hugetlb"), parse(pureSelf, "cpuset cpu pids")
	for _, tt := range []struct {
		name string
		mode Mode
		host Host
		want Enforcement
		lost []string // a word of each sentence
	}{
		{"pure auto", Auto, pure, Enforcement{CPUs: 8, MemoryMiB: 16000, Plugins: true}, nil},
		{"pure on", On, pure, Enforcement{CPUs: 8, MemoryMiB: 16000, Plugins: true, Check: true}, nil},
		{"pure off", Off, pure, Enforcement{}, []string{"OPENPCS_LIMITS=off"}},
		{"mixed auto", Auto, mixed, Enforcement{}, []string{"processors", "memory", "proctrack/linuxproc"}},
		{"mixed on", On, mixed, Enforcement{Check: true}, []string{"processors", "memory", "v1 hierarchies"}},
		{"without memory", Auto, some, Enforcement{CPUs: 8}, []string{"memory", "proctrack/linuxproc"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := Decide(tt.mode, tt.host, machine)
			if len(got.Lost) != len(tt.lost) {
				t.Fatalf("lost: %q", got.Lost)
			}
			for i, word := range tt.lost {
				if !strings.Contains(got.Lost[i], word) {
					t.Errorf("%q does not say %q", got.Lost[i], word)
				}
			}
			if got.CPUs != tt.want.CPUs || got.MemoryMiB != tt.want.MemoryMiB || got.Check != tt.want.Check || got.Plugins != tt.want.Plugins {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

func TestThisMachine(t *testing.T) {
	m, err := ThisMachine()
	if err != nil || m.CPUs < 1 || m.MemoryMiB < 64 {
		t.Errorf("%+v %v", m, err)
	}
}

func TestParseMode(t *testing.T) {
	for _, m := range []Mode{Auto, On, Off} {
		if got, err := ParseMode(string(m)); got != m || err != nil {
			t.Errorf("%s: %s %v", m, got, err)
		}
	}
	if _, err := ParseMode("yes"); err == nil || !strings.Contains(err.Error(), "auto, on or off") {
		t.Errorf("yes: %v", err)
	}
}

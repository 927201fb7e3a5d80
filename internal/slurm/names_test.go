package slurm

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// hostLists are host lists with what `scontrol show hostnames` of Slurm
// 26.05.5 prints for them ("!": Invalid hostlist), and where openpcs is
// stricter: nobody but Slurm sends it lists, so a malformed one is refused.
var hostLists = []struct {
	list, scontrol string
	strict         bool
}{
	{list: "a[1,3-4]b,c", scontrol: "a1b a3b a4b c"},
	{list: "f[1-2]-[08-11]", scontrol: "f1-08 f1-09 f1-10 f1-11 f2-08 f2-09 f2-10 f2-11"},
	{list: "cl2n[001-003]", scontrol: "cl2n001 cl2n002 cl2n003"},
	{list: "cpn-m11-16", scontrol: "cpn-m11-16"},
	{list: "node-group-1-[1-2]", scontrol: "node-group-1-1 node-group-1-2"},
	{list: "a-dy-b-[1-2],x-1-3", scontrol: "a-dy-b-1 a-dy-b-2 x-1-3"},
	{list: "0abc", scontrol: "0abc"},
	{list: "a[1-1]", scontrol: "a1"},
	{list: "a[08-11]", scontrol: "a08 a09 a10 a11"},
	{list: "a[9-011]", scontrol: "a9 a10 a11"},
	{list: "a[01,1]", scontrol: "a01 a1"},
	{list: "a[00-02]", scontrol: "a00 a01 a02"},
	{list: "a[0099-0101]", scontrol: "a0099 a0100 a0101"},
	{list: "a[1-3,2]", scontrol: "a1 a2 a3 a2"},
	{list: "[1-3]", scontrol: "1 2 3"},
	{list: "a[1-2],a[1-2]", scontrol: "a1 a2 a1 a2"},
	{list: "a[1-2]b[3-4]c", scontrol: "a1b3c a1b4c a2b3c a2b4c"},
	{list: "a[5-1]", scontrol: "!"},
	{list: "[]", scontrol: "!"},
	{list: "a[", scontrol: "!"},
	{list: "a[1-1000000]", scontrol: "!"},
	{list: "a[-1]", scontrol: "!"},
	{list: "a[1-2-3]", scontrol: "!"},
	{list: "a[x]", scontrol: "!"},
	{list: "a[1,b]", scontrol: "!"},
	{list: "a]", scontrol: "a]", strict: true},
	{list: "a,,b", scontrol: "a b", strict: true},
	{list: ",a", scontrol: "a", strict: true},
	{list: "a,", scontrol: "a", strict: true},
	{list: "a b", scontrol: "a b", strict: true},
	{list: "a[[1]]", scontrol: "a[1]", strict: true},
	{list: "a[1 - 2]", scontrol: "a01 a02", strict: true},
}

func TestN3_HostLists(t *testing.T) {
	for _, tt := range hostLists {
		got, err := Expand(tt.list)
		if tt.strict || tt.scontrol == "!" {
			if err == nil {
				t.Errorf("Expand(%q) = %v, want an error", tt.list, got)
			}
			continue
		}
		if err != nil || strings.Join(got, " ") != tt.scontrol {
			t.Errorf("Expand(%q) = %v, %v; scontrol says %s", tt.list, got, err, tt.scontrol)
		}
		// And back: the same names, whatever the form.
		again, err := Expand(Compress(got))
		if err != nil || !sameNames(again, got) {
			t.Errorf("%q: Compress gives %q, which is %v, %v", tt.list, Compress(got), again, err)
		}
	}
}

func sameNames(a, b []string) bool {
	set := func(names []string) map[string]bool {
		m := map[string]bool{}
		for _, n := range names {
			m[n] = true
		}
		return m
	}
	x, y := set(a), set(b)
	for n := range x {
		if !y[n] {
			return false
		}
	}
	return len(x) == len(y)
}

// Where Slurm is installed its word is asked anew.
func TestN3_HostListsAsScontrolSays(t *testing.T) {
	scontrol, err := exec.LookPath("scontrol")
	if err != nil {
		t.Skip("no scontrol here; TestN3_HostLists has its answers")
	}
	conf := filepath.Join(t.TempDir(), "slurm.conf")
	if err := os.WriteFile(conf, []byte("ClusterName=x\nSlurmctldHost=localhost\nNodeName=n CPUs=1\nPartitionName=p Nodes=n\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tt := range hostLists {
		cmd := exec.Command(scontrol, "show", "hostnames", tt.list)
		cmd.Env = append(os.Environ(), "SLURM_CONF="+conf)
		out, err := cmd.Output()
		got := strings.Join(strings.Fields(string(out)), " ")
		if err != nil || strings.Contains(string(out), "Invalid") {
			got = "!"
		}
		if got != tt.scontrol {
			t.Errorf("scontrol show hostnames %q = %q, recorded is %q", tt.list, got, tt.scontrol)
		}
	}
}

func TestN3_ListsAreBounded(t *testing.T) {
	for _, list := range []string{"a[1-100001]", "a[1-400][1-400]", strings.Repeat("a[1-60000],", 1) + "b[1-60000]", "a[0-99999],b"} {
		if names, err := Expand(list); err == nil {
			t.Errorf("Expand(%q) gives %d names", list, len(names))
		}
	}
	if names, err := Expand("a[1-100000]"); err != nil || len(names) != MaxHosts {
		t.Errorf("Expand of %d names: %d, %v", MaxHosts, len(names), err)
	}
}

const showNodes = `{"nodes":[
 {"name":"g-1","state":["IDLE","CLOUD","POWERED_DOWN"],"reason":"","address":"g-1","cpus":1},
 {"name":"g-2","state":["DOWN","CLOUD","REBOOT_ISSUED","SOME_FLAG_OF_2031"],"reason":"a=b, Comment={\"x\": 1}\nsecond line [root@2026]","address":"10.77.16.9"},
 {"name":"g-3","state":["ALLOCATED","DYNAMIC_NORM","CLOUD","MAINTENANCE","PLANNED"],"reason":"pcs: x=y"},
 {"name":"g-4","state":[]},
 {"name":"g-5"}
],"errors":[],"warnings":[],"meta":{"plugin":{"type":""}}}`

func TestN6_ReasonsMayHaveAnything(t *testing.T) {
	nodes, err := ParseNodes([]byte(showNodes))
	if err != nil {
		t.Fatal(err)
	}
	if want := "a=b, Comment={\"x\": 1}\nsecond line [root@2026]"; nodes["g-2"].Reason != want {
		t.Errorf("reason = %q, want %q", nodes["g-2"].Reason, want)
	}
	if nodes["g-3"].Reason != "pcs: x=y" || nodes["g-2"].Address != "10.77.16.9" {
		t.Errorf("nodes = %+v", nodes)
	}
}

func TestD9_UnknownStatesDoNoHarm(t *testing.T) {
	nodes, err := ParseNodes([]byte(showNodes))
	if err != nil {
		t.Fatal(err)
	}
	if len(nodes) != 5 {
		t.Fatalf("%d nodes, want 5: one odd node must not hide the others", len(nodes))
	}
	if !nodes["g-2"].Has("DOWN", "SOME_FLAG_OF_2031") || !nodes["g-2"].Failed() || nodes["g-2"].Ready() {
		t.Errorf("g-2 = %+v", nodes["g-2"])
	}
	if !nodes["g-3"].Ready() {
		t.Errorf("g-3 is allocated and answers, with flags that say nothing against it: %+v", nodes["g-3"])
	}
	for _, name := range []string{"g-4", "g-5"} {
		if nodes[name].Ready() || nodes[name].Failed() {
			t.Errorf("%s has no state: ready %v, failed %v", name, nodes[name].Ready(), nodes[name].Failed())
		}
	}
	for _, doc := range []string{"", "{", "[]", "slurm_load_nodes error: Unable to contact slurm controller", `{"nodes":{}}`} {
		if got, err := ParseNodes([]byte(doc)); err == nil {
			t.Errorf("ParseNodes(%q) = %v", doc, got)
		}
	}
	if got, err := ParseNodes([]byte(`{"nodes":[]}`)); err != nil || got == nil || len(got) != 0 {
		t.Errorf("ParseNodes of no nodes = %v, %v", got, err)
	}
}

func TestReadyAndFailed(t *testing.T) {
	for _, tt := range []struct {
		state         string
		ready, failed bool
	}{
		{"IDLE CLOUD", true, false},
		{"IDLE", true, false},
		{"ALLOCATED CLOUD", true, false},
		{"MIXED CLOUD", true, false},
		{"IDLE CLOUD DRAIN", true, false},
		{"IDLE CLOUD COMPLETING", true, false},
		{"IDLE CLOUD RESERVED PLANNED MAINTENANCE", true, false},
		{"IDLE CLOUD POWERED_DOWN", false, false},
		{"IDLE CLOUD POWERING_UP", false, false},
		{"ALLOCATED CLOUD POWERING_UP NOT_RESPONDING", false, false},
		{"ALLOCATED CLOUD POWERED_DOWN POWER_UP", false, false},
		{"IDLE CLOUD POWERING_DOWN", false, false},
		{"IDLE CLOUD NOT_RESPONDING", false, false},
		{"IDLE CLOUD REBOOT_ISSUED", false, false},
		{"DOWN CLOUD", false, true},
		{"DOWN CLOUD POWERED_DOWN", false, true},
		{"DOWN CLOUD NOT_RESPONDING", false, true},
		{"DOWN CLOUD DRAIN INVALID_REG", false, true},
		{"IDLE CLOUD DRAIN INVALID_REG", false, true},
		{"ERROR CLOUD", false, true},
		{"UNKNOWN", false, false},
		{"FUTURE", false, false},
		{"", false, false},
	} {
		n := Node{Name: "a", State: strings.Fields(tt.state)}
		if n.Ready() != tt.ready || n.Failed() != tt.failed {
			t.Errorf("%q: ready %v, failed %v; want %v, %v", tt.state, n.Ready(), n.Failed(), tt.ready, tt.failed)
		}
	}
	n := Node{State: []string{"IDLE", "CLOUD"}}
	if !n.Has("IDLE", "CLOUD") || n.Has("IDLE", "DRAIN") || !n.Has() || !n.HasAny("DRAIN", "CLOUD") || n.HasAny("DRAIN") || n.HasAny() {
		t.Error("Has or HasAny is wrong")
	}
	// No substring counts: POWERED_DOWN is not DOWN.
	if n := (Node{State: []string{"IDLE", "POWERED_DOWN"}}); n.Has("DOWN") || n.HasAny("DOWN") {
		t.Error("POWERED_DOWN counts as DOWN")
	}
}

// I8: the states of a very large cluster are read whole, in one answer.
func TestI8_FifteenThousandNodes(t *testing.T) {
	const count = 15_000
	var doc strings.Builder
	doc.WriteString(`{"nodes":[`)
	for n := range count {
		if n > 0 {
			doc.WriteString(",")
		}
		fmt.Fprintf(&doc, `{"name":"big-%d","state":["IDLE","CLOUD","POWERED_DOWN"],"reason":"","address":"big-%d","cpus":96,"partitions":["all"]}`, n+1, n+1)
	}
	doc.WriteString(`],"last_update":{"set":true,"number":1764508548},"errors":[]}`)
	nodes, err := ParseNodes([]byte(doc.String()))
	if err != nil || len(nodes) != count || !nodes["big-15000"].Has("POWERED_DOWN") {
		t.Fatalf("%d nodes, %v, the last is %+v", len(nodes), err, nodes["big-15000"])
	}
}

package control

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/slurm"
)

// field is a key and its value.
type field struct{ key, value string }

// readConf reads slurm.conf more strictly than Slurm does: a line is a
// comment or pairs of a plain key and a value, in quotes when it has a space,
// with one space between pairs. It returns the lines.
func readConf(doc string) (records [][]field, err error) {
	if !strings.HasSuffix(doc, "\n") {
		return nil, fmt.Errorf("the last line does not end")
	}
	for line := range strings.SplitSeq(strings.TrimSuffix(doc, "\n"), "\n") {
		if strings.HasPrefix(line, "# ") {
			continue
		}
		var record []field
		for rest := line; ; {
			key, after, ok := strings.Cut(rest, "=")
			if !ok || key == "" || strings.Trim(key, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz") != "" {
				return nil, fmt.Errorf("%q: %q does not begin with a key", line, rest)
			}
			var value string
			if quoted, found := strings.CutPrefix(after, `"`); found {
				if value, after, ok = strings.Cut(quoted, `"`); !ok {
					return nil, fmt.Errorf("%q: a quote is not closed", line)
				}
			} else if at := strings.IndexByte(after, ' '); at >= 0 {
				value, after = after[:at], after[at:]
			} else {
				value, after = after, ""
			}
			if value == "" || strings.ContainsAny(value, "#\"\\\t\r\x00") || strings.TrimSpace(value) != value {
				return nil, fmt.Errorf("%q: the value %q of %s", line, value, key)
			}
			if slices.ContainsFunc(record, func(f field) bool { return strings.EqualFold(f.key, key) }) {
				return nil, fmt.Errorf("%q: %s is there twice", line, key)
			}
			record = append(record, field{key, value})
			if after == "" {
				break
			}
			if rest, ok = strings.CutPrefix(after, " "); !ok {
				return nil, fmt.Errorf("%q: no space before %q", line, after)
			}
		}
		records = append(records, record)
	}
	return records, nil
}

// checkConf fails for a configuration that Slurm would refuse or read in
// another way than it is meant.
func checkConf(conf string) error {
	records, err := readConf(conf)
	if err != nil {
		return err
	}
	nodes, seen := map[string]bool{}, map[string]bool{}
	expand := func(list string) ([]string, error) {
		names, err := slurm.Expand(list)
		if err == nil && len(names) == 0 {
			err = fmt.Errorf("%q names no node", list)
		}
		return names, err
	}
	for _, r := range records {
		id := strings.ToLower(r[0].key)
		switch r[0].key {
		case "NodeName":
			names, err := expand(r[0].value)
			if err != nil {
				return err
			}
			for _, n := range names {
				if nodes[n] {
					return fmt.Errorf("the node %s is defined twice", n)
				}
				nodes[n] = true
			}
			continue
		case "PartitionName":
			id += " " + r[0].value
		default:
			if len(r) != 1 {
				return fmt.Errorf("the line of %s has %v more", r[0].key, r[1:])
			}
		}
		if seen[id] {
			return fmt.Errorf("%s is there twice", id)
		}
		seen[id] = true
	}
	for _, r := range records {
		for _, f := range r {
			if f.key != "SuspendExcNodes" && (f.key != "Nodes" || r[0].key != "PartitionName") {
				continue
			}
			names, err := expand(f.value)
			if err != nil {
				return err
			}
			for _, n := range names {
				if !nodes[n] {
					return fmt.Errorf("%s of %s has the node %s, which is not defined", f.key, r[0].value, n)
				}
			}
		}
	}
	return nil
}

// Whatever clusters, groups and queues passed the API's checks, in whatever
// states they are, slurm.conf can be read, and says what is meant.
func TestConfigurationIsAlwaysReadable(t *testing.T) {
	statuses := []fleet.Status{fleet.Creating, fleet.Active, fleet.Active, fleet.Updating, fleet.CreateFailed, fleet.UpdateFailed, fleet.Deleting}
	values := rapid.OneOf(
		rapid.SampledFrom([]string{"1", "2", "100", "YES", "NO", "ALL", "UNLIMITED", "gpu,fast", "a=b", "a b", "/opt/x.sh", "enable_stepmgr", "60001-63000", "CPU=1.0,Mem=0.25G", "1-00:00:00", "é", "[1-3]", "lic:4"}),
		rapid.String(),
	)
	drawn, rendered := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		drawn++
		version := rapid.SampledFrom(slurm.Versions).Draw(t, "version")
		settings := func(level slurm.Level) (out []slurm.Setting) {
			for range rapid.IntRange(0, 4).Draw(t, "settings") {
				s := slurm.Setting{Name: rapid.SampledFrom(slurm.SettingNames(level)).Draw(t, "setting"), Value: values.Draw(t, "value")}
				if good, wrong := slurm.CheckSettings(level, version.Name, false, append(slices.Clone(out), s)); len(wrong) == 0 {
					out = good
				}
			}
			return out
		}
		// Names as the API takes them; that they are alike is the point.
		name := rapid.OneOf(rapid.SampledFrom([]string{"abc", "abc-1", "abc-", "abc-1-1", "ABC", "abc1", "DEFAULT", "all"}), rapid.StringMatching(`[A-Za-z][A-Za-z0-9-]{2,24}`))
		unique := func(used map[string]bool, queue bool) string {
			for {
				n := name.Draw(t, "name")
				if !used[n] && (!queue || !strings.EqualFold(n, "default")) {
					used[n] = true
					return n
				}
			}
		}
		cl := fleet.Cluster{
			Name: name.Draw(t, "cluster"), Version: version.Name, Size: fleet.Large, ControllerAddress: "10.77.16.4",
			IdleTime: time.Duration(rapid.IntRange(1, 10_000_000).Draw(t, "idle")) * time.Second, Settings: settings(slurm.ClusterLevel),
		}
		var groups []fleet.Group
		used := map[string]bool{}
		for n := range rapid.IntRange(0, 5).Draw(t, "groups") {
			most := rapid.SampledFrom([]int{0, 1, 2, 7, 500}).Draw(t, "max")
			groups = append(groups, fleet.Group{
				ID: fmt.Sprintf("pcs_g%d", n), Name: unique(used, false), Status: rapid.SampledFrom(statuses).Draw(t, "status"),
				Max: most, Min: rapid.IntRange(0, most).Draw(t, "min"), InstanceTypes: []string{rapid.SampledFrom([]string{"t3.micro", "c6i.xlarge"}).Draw(t, "type")},
				IdleTime: time.Duration(rapid.SampledFrom([]int{0, 1, 20, 10_000_000}).Draw(t, "idle")) * time.Second,
				Settings: settings(slurm.GroupLevel),
			})
		}
		var queues []fleet.Queue
		used = map[string]bool{}
		for n := range rapid.IntRange(0, 5).Draw(t, "queues") {
			q := fleet.Queue{ID: fmt.Sprintf("pcs_q%d", n), Name: unique(used, true), Status: rapid.SampledFrom(statuses).Draw(t, "status"), Settings: settings(slurm.QueueLevel)}
			for _, g := range groups {
				if rapid.Bool().Draw(t, "uses") {
					q.GroupIDs = append(q.GroupIDs, g.ID)
				}
			}
			queues = append(queues, q)
		}
		files, err := (&Control{Options: Options{Cgroups: rapid.Bool().Draw(t, "cgroups")}}).render(cl, groups, queues)
		if err != nil {
			return // refused, and told
		}
		rendered++
		conf := string(files["slurm.conf"])
		if err := checkConf(conf); err != nil {
			t.Fatalf("%v\n%s", err, conf)
		}
	})
	if rendered < drawn/2 {
		t.Errorf("only %d of %d configurations were written", rendered, drawn)
	}
}

// The reader is strict.
func TestReadConf(t *testing.T) {
	for _, bad := range []string{
		"A=1", "A\n", "A=1 B\n", "A=1  B=2\n", "A=\"x\n", "A=\n", "A=1#2\n", "A=1 A=2\n", "A=\"x\"B=1\n", "A=1\nA=2\n", "A=1 B=2\n",
		"NodeName=a-[1-2] X=1\nNodeName=a-2 X=1\n", "PartitionName=p Nodes=a-1\n", "NodeName=a-1\nSuspendExcNodes=a-[1-2]\n", "PartitionName=p X=1\nPartitionName=p X=2\n",
	} {
		if checkConf(bad) == nil {
			t.Errorf("%q is taken", bad)
		}
	}
	if err := checkConf("# c\nA=\"x y\"\nNodeName=a-[1-2] X=1\nPartitionName=p Nodes=a-1,a-2 Y=\"a=b\"\nSuspendExcNodes=a-1\n"); err != nil {
		t.Error(err)
	}
}

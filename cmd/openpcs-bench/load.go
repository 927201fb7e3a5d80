package main

import (
	"cmp"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/openpcs/openpcs/internal/app"
	"github.com/openpcs/openpcs/internal/awsapi"
	"github.com/openpcs/openpcs/internal/pcs"
)

const (
	ec2Version = "2016-11-15"
	// rate is what the budget names, in calls a second, for so many windows of
	// so long. What else runs on the machine spoils some of them.
	rate    = 200
	window  = 5 * time.Second
	windows = 5
	// starts is how often the crowd's control plane is started.
	starts = 5
	// calm is how long it rests before its memory counts.
	calm = 10 * time.Second
)

// apiReport is bench/api.json. All times are milliseconds.
type apiReport struct {
	Nodes int `json:"nodes"`
	Rate  int `json:"callsPerSecond"`
	// Windows are all windows, and Reads and Mutations the one whose p99 of
	// reads is the median of them; Calls are of all, by name. The time of a call
	// counts from when it was due, not from when it could be sent.
	Windows   []windowStats    `json:"windows"`
	Reads     stats            `json:"reads"`
	Mutations stats            `json:"mutations"`
	Calls     map[string]stats `json:"calls"`
	Count     map[string]int   `json:"count"`
	Refused   map[string]int   `json:"refused"` // by code: conflicts of calls that overtake each other
	// Busy is how much of one processor the control plane took meanwhile.
	Busy float64 `json:"processors"`
	// Start is from the start of the process to the first answer.
	Start stats `json:"start"`
	// Memory is the resident memory of the process in MiB.
	Memory struct {
		Started   int `json:"started"`
		AfterLoad int `json:"afterLoad"`
		Peak      int `json:"peak"`
	} `json:"memoryMiB"`
	// Beside are calls one after the other, to openpcs and to moto's server
	// with as many instances.
	Beside map[string]beside `json:"beside"`
	Moto   string            `json:"motoVersion"`
}

// windowStats are the calls of one window.
type windowStats struct {
	Reads     stats `json:"reads"`
	Mutations stats `json:"mutations"`
}

// beside is the same call to both servers.
type beside struct {
	OpenPCS stats   `json:"openpcs"`
	Moto    stats   `json:"moto"`
	Ratio   float64 `json:"ratio"` // of the medians
}

// call is one operation of a mix.
type call struct {
	name  string
	read  bool
	share int // of each hundred calls
	f     func(ctx context.Context, n int) error
}

// crowdTopic measures the API of a control plane with 2,048 nodes.
func crowdTopic(ctx context.Context, b *bench) error {
	const nodes = 2048
	dir, err := os.MkdirTemp("", "openpcs-crowd")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if out, err := exec.CommandContext(ctx, self, crowdCommand, "-state", dir, "-nodes", strconv.Itoa(nodes), "-fill").CombinedOutput(); err != nil {
		return fmt.Errorf("write the crowd's state file: %w: %s", err, out)
	}
	r := apiReport{Nodes: nodes, Rate: rate, Calls: map[string]stats{}, Count: map[string]int{}, Refused: map[string]int{}, Beside: map[string]beside{}}
	var started []float64
	var c *crowd
	for range starts {
		if c != nil {
			if err := c.end(); err != nil {
				return err
			}
		}
		if c, err = startCrowd(ctx, self, dir); err != nil {
			return err
		}
		started = append(started, millis(c.took))
	}
	defer func() { _ = c.end() }()
	r.Start = summarize(started)
	timer := time.NewTimer(calm)
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
	}
	r.Memory.Started, _ = c.memory()
	mix, err := crowdMix(ctx, c)
	if err != nil {
		return err
	}
	worked, began := c.worked(), time.Now()
	if err := openLoop(ctx, mix, &r); err != nil {
		return err
	}
	r.Busy = math.Round(100*(c.worked()-worked).Seconds()/time.Since(began).Seconds()) / 100
	r.Memory.AfterLoad, r.Memory.Peak = c.memory()
	if err := besideMoto(ctx, c.client, &r, nodes); err != nil {
		return err
	}
	b.row("API, 200 calls/s, reads, p99", fmt.Sprintf("%.1f ms", r.Reads.P99), "10 ms")
	b.row("API, 200 calls/s, mutations, p99", fmt.Sprintf("%.1f ms", r.Mutations.P99), "50 ms")
	b.row("processors busy meanwhile", fmt.Sprintf("%.2f", r.Busy), "")
	b.row("memory, 2,048 nodes", fmt.Sprintf("%d MiB (peak %d)", max(r.Memory.Started, r.Memory.AfterLoad), r.Memory.Peak), "150 MB")
	b.row("start to serving, 2,048 nodes, median", fmt.Sprintf("%.0f ms", r.Start.Median), "1000 ms")
	for _, name := range besideNames {
		at := r.Beside[name]
		b.row(name+", openpcs : moto", fmt.Sprintf("%.2f ms : %.2f ms", at.OpenPCS.Median, at.Moto.Median), "")
	}
	return b.write("api", r)
}

// crowd is the running process.
type crowd struct {
	cmd    *exec.Cmd
	took   time.Duration
	client *awsapi.Client
}

func startCrowd(ctx context.Context, self, dir string) (*crowd, error) {
	o := crowdOptions(dir)
	c := &crowd{cmd: exec.Command(self, crowdCommand, "-state", dir)}
	c.cmd.Stderr = os.Stderr
	socket := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", o.Socket())
	}}}
	_ = os.Remove(o.Socket()) // of the former one
	began := time.Now()
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	for {
		var st app.Status
		if resp, err := socket.Get("http://openpcs/v1/status"); err == nil {
			err = json.NewDecoder(resp.Body).Decode(&st)
			_ = resp.Body.Close()
			if err != nil {
				return nil, err
			}
			c.client = &awsapi.Client{
				Endpoint: st.API, Region: st.Region, Key: awsapi.Key{ID: st.KeyID, Secret: st.Secret},
				HTTP: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}},
			}
			if err := c.client.JSON(ctx, "pcs", pcs.Target, "ListClusters", "1.0", nil, nil); err == nil {
				c.took = time.Since(began)
				return c, nil
			}
		}
		if ctx.Err() != nil || time.Since(began) > time.Minute {
			return nil, errors.Join(errors.New("wait for the crowd's control plane: no answer"), ctx.Err(), c.end())
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func (c *crowd) end() error {
	if err := c.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	_ = c.cmd.Wait()
	return nil
}

// memory returns the process's resident memory and its peak, in MiB.
func (c *crowd) memory() (now, peak int) {
	text, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(c.cmd.Process.Pid), "status"))
	for line := range strings.Lines(string(text)) {
		var kib int
		if _, err := fmt.Sscanf(line, "VmRSS: %d kB", &kib); err == nil {
			now = kib >> 10
		}
		if _, err := fmt.Sscanf(line, "VmHWM: %d kB", &kib); err == nil {
			peak = kib >> 10
		}
	}
	return now, peak
}

// worked is the processor time that the process has had.
func (c *crowd) worked() time.Duration {
	text, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(c.cmd.Process.Pid), "stat"))
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	const user, system, tick = 11, 12, 10 * time.Millisecond // of proc(5), behind the name
	if len(fields) <= system {
		return 0
	}
	u, _ := strconv.Atoi(fields[user])
	s, _ := strconv.Atoi(fields[system])
	return time.Duration(u+s) * tick
}

// seen is what the mix needs to know of one instance.
type seen struct {
	ID      string `xml:"instanceId"`
	Address string `xml:"privateIpAddress"`
}

// instances lists some instances of a server.
func instances(ctx context.Context, client *awsapi.Client) ([]seen, error) {
	doc, err := client.Query(ctx, "ec2", ec2Version, "DescribeInstances", url.Values{"MaxResults": {"500"}})
	if err != nil {
		return nil, err
	}
	var out struct {
		Instances []seen `xml:"reservationSet>item>instancesSet>item"`
	}
	if err := xml.Unmarshal(doc, &out); err != nil {
		return nil, err
	}
	if len(out.Instances) == 0 {
		return nil, errors.New("find instances: there are none")
	}
	return out.Instances, nil
}

// crowdMix is what calls the budget is about: four reads to one change.
func crowdMix(ctx context.Context, c *crowd) ([]call, error) {
	known, err := instances(ctx, c.client)
	if err != nil {
		return nil, err
	}
	pcsCall := func(op string, in func(n int) any) func(context.Context, int) error {
		return func(ctx context.Context, n int) error {
			return c.client.JSON(ctx, "pcs", pcs.Target, op, "1.0", in(n), nil)
		}
	}
	ec2Call := func(in func(n int) url.Values) func(context.Context, int) error {
		return func(ctx context.Context, n int) error {
			_, err := c.client.Query(ctx, "ec2", ec2Version, "DescribeInstances", in(n))
			return err
		}
	}
	group := func(n int) string { return fmt.Sprintf("pcs_crowdgrp%d", n%crowdGroups) }
	return []call{
		{"ListClusters", true, 20, pcsCall("ListClusters", func(int) any { return map[string]any{} })},
		{"GetComputeNodeGroup", true, 20, pcsCall("GetComputeNodeGroup", func(n int) any {
			return map[string]any{"clusterIdentifier": crowdCluster, "computeNodeGroupIdentifier": group(n)}
		})},
		{"DescribeInstances by id", true, 20, ec2Call(func(n int) url.Values { return url.Values{"InstanceId.1": {known[n%len(known)].ID}} })},
		{"DescribeInstances by filter", true, 20, ec2Call(func(n int) url.Values {
			return url.Values{"Filter.1.Name": {"private-ip-address"}, "Filter.1.Value.1": {known[n%len(known)].Address}}
		})},
		{"TagResource", false, 17, pcsCall("TagResource", func(n int) any {
			return map[string]any{
				"resourceArn": "arn:aws:pcs:" + crowdRegion + ":000000000000:cluster/" + crowdCluster + "/computenodegroup/" + group(n),
				"tags":        map[string]string{"run": strconv.Itoa(n)},
			}
		})},
		{"UpdateQueue", false, 1, pcsCall("UpdateQueue", func(n int) any {
			return map[string]any{
				"clusterIdentifier": crowdCluster, "queueIdentifier": fmt.Sprintf("pcs_crowdque%d", n%crowdGroups),
				"computeNodeGroupConfigurations": []map[string]any{{"computeNodeGroupId": group(n)}, {"computeNodeGroupId": group(n + 1 + n%2)}},
			}
		})},
		{"CreateQueue", false, 1, pcsCall("CreateQueue", func(int) any {
			return map[string]any{"clusterIdentifier": crowdCluster, "queueName": "more", "computeNodeGroupConfigurations": []map[string]any{{"computeNodeGroupId": group(0)}}}
		})},
		{"DeleteQueue", false, 1, pcsCall("DeleteQueue", func(int) any {
			return map[string]any{"clusterIdentifier": crowdCluster, "queueIdentifier": "more"}
		})},
	}, nil
}

// openLoop calls at the rate, whether or not former calls have been answered.
func openLoop(ctx context.Context, mix []call, r *apiReport) error {
	// A fixed order in which every call has its share of each hundred, spread.
	order := make([]*call, 100)
	for at, c := 0, 0; c < len(mix); c++ {
		for range mix[c].share {
			order[at*37%100] = &mix[c]
			at++
		}
	}
	type answer struct {
		n    int
		call *call
		ms   float64
		err  error
	}
	const each = rate * int(window/time.Second)
	answers := make(chan answer, windows*each)
	var calls sync.WaitGroup
	ticker := time.NewTicker(time.Second / rate)
	defer ticker.Stop()
	for n := range cap(answers) {
		var due time.Time
		select {
		case <-ctx.Done():
			return ctx.Err()
		case due = <-ticker.C:
		}
		calls.Go(func() {
			c := order[n%100]
			err := c.f(ctx, n)
			answers <- answer{n, c, millis(time.Since(due)), err}
		})
	}
	calls.Wait()
	close(answers)
	byName := map[string][]float64{}
	var reads, mutations [windows][]float64
	for a := range answers {
		var refused *awsapi.Error
		switch {
		case errors.As(a.err, &refused) && !a.call.read:
			r.Refused[refused.Code]++
			continue
		case a.err != nil:
			return fmt.Errorf("call %s: %w", a.call.name, a.err)
		case a.call.read:
			reads[a.n/each] = append(reads[a.n/each], a.ms)
		default:
			mutations[a.n/each] = append(mutations[a.n/each], a.ms)
		}
		byName[a.call.name] = append(byName[a.call.name], a.ms)
	}
	for w := range windows {
		r.Windows = append(r.Windows, windowStats{summarize(reads[w]), summarize(mutations[w])})
	}
	usual := slices.SortedFunc(slices.Values(r.Windows), func(a, b windowStats) int { return cmp.Compare(a.Reads.P99, b.Reads.P99) })[windows/2]
	r.Reads, r.Mutations = usual.Reads, usual.Mutations
	for name, ms := range byName {
		r.Calls[name], r.Count[name] = summarize(ms), len(ms)
	}
	return nil
}

package main

import (
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/openpcs/openpcs/internal/app"
	"github.com/openpcs/openpcs/internal/awsapi"
	"github.com/openpcs/openpcs/internal/compute"
	"github.com/openpcs/openpcs/internal/pcs"
)

// fiftyReport is bench/fifty.json. All times are milliseconds.
type fiftyReport struct {
	Nodes int `json:"nodes"`
	// Bare is until as many instances of the same image are launched without
	// openpcs.
	Bare []float64 `json:"bare"`
	// Launched is from sbatch until the nodes' instances are launched, Ready
	// until Slurm has them all, Began until the first command of the job, and
	// Ended until a step on all nodes has ended.
	Launched []float64 `json:"launched"`
	Ready    []float64 `json:"ready"`
	Began    []float64 `json:"began"`
	Ended    []float64 `json:"ended"`
	// Warm is srun on all nodes when they are up.
	Warm []float64 `json:"warm"`
	// Ratios of the best of each.
	ReadyToBare float64 `json:"readyToBare"`
	BeganToBare float64 `json:"beganToBare"`
	// Start is from the start of `openpcs serve` on Incus to its first answer.
	Start stats `json:"start"`
}

const (
	manyCluster = "many"
	manyGroup   = "group"
	manyQueue   = "queue"
	manyNodes   = 50
	manyRounds  = 2
	restarts    = 5
)

// fifty measures fifty nodes from zero, and as many bare launches.
func fifty(ctx context.Context, b *bench) (err error) {
	s, err := newSite(ctx, b.binary)
	if err != nil {
		return err
	}
	defer func() {
		if downErr := s.down(); err == nil {
			err = downErr
		}
	}()
	if err := s.up("--no-demo"); err != nil {
		return err
	}
	r := fiftyReport{Nodes: manyNodes}
	client, err := s.client()
	if err != nil {
		return err
	}
	if err := s.makeMany(client); err != nil {
		return err
	}
	for range manyRounds {
		took, err := s.bareMany(manyNodes)
		if err != nil {
			return err
		}
		r.Bare = append(r.Bare, millis(took))
		if err := s.jobMany(&r); err != nil {
			return err
		}
	}
	var starts []float64
	for range restarts {
		took, err := s.restart()
		if err != nil {
			return err
		}
		starts = append(starts, millis(took))
	}
	r.Start = summarize(starts)
	best := func(ms []float64) float64 { return summarize(ms).Min }
	r.ReadyToBare = math.Round(100*best(r.Ready)/best(r.Bare)) / 100
	r.BeganToBare = math.Round(100*best(r.Began)/best(r.Bare)) / 100
	b.row("50 nodes from zero until Slurm has them all", fmt.Sprintf("%.1f s", best(r.Ready)/1000), fmt.Sprintf("1.2 x bare = %.1f s", 1.2*best(r.Bare)/1000))
	b.row("50 nodes from zero until their job runs", fmt.Sprintf("%.1f s", best(r.Began)/1000), "")
	b.row("srun -N 50 on nodes that are up", fmt.Sprintf("%.1f s", best(r.Warm)/1000), "")
	b.row("50 bare launches", fmt.Sprintf("%.1f s", best(r.Bare)/1000), "")
	b.row("start to serving, on Incus, median", fmt.Sprintf("%.0f ms", r.Start.Median), "1000 ms")
	return b.write("fifty", r)
}

// client is one of the site's API.
func (s *site) client() (*awsapi.Client, error) {
	st, err := s.status()
	if err != nil {
		return nil, err
	}
	return &awsapi.Client{Endpoint: st.API, Region: st.Region, Key: awsapi.Key{ID: st.KeyID, Secret: st.Secret}}, nil
}

// makeMany makes a cluster with one group and one queue.
func (s *site) makeMany(client *awsapi.Client) error {
	call := func(op string, in map[string]any) error {
		return client.JSON(s.ctx, "pcs", pcs.Target, op, "1.0", in, nil)
	}
	var found struct {
		Subnets   []string `xml:"subnetSet>item>subnetId"`
		Groups    []string `xml:"securityGroupInfo>item>groupId"`
		Images    []string `xml:"imagesSet>item>imageId"`
		Templates []string `xml:"launchTemplate>launchTemplateId"`
	}
	ask := func(action string, in url.Values) error {
		doc, err := client.Query(s.ctx, "ec2", ec2Version, action, in)
		if err != nil {
			return err
		}
		return xml.Unmarshal(doc, &found)
	}
	if err := errors.Join(
		ask("DescribeSubnets", nil), ask("DescribeSecurityGroups", nil),
		ask("DescribeImages", url.Values{"Filter.1.Name": {"name"}, "Filter.1.Value.1": {"aws-pcs-sample_ami-*-slurm-26.05-*"}}),
	); err != nil {
		return err
	}
	if err := ask("CreateLaunchTemplate", url.Values{"LaunchTemplateName": {manyCluster}, "LaunchTemplateData.SecurityGroupId.1": found.Groups[:1]}); err != nil {
		return err
	}
	if err := call("CreateCluster", map[string]any{
		"clusterName": manyCluster, "scheduler": map[string]any{"type": "SLURM", "version": "26.05"}, "size": "MEDIUM",
		"networking": map[string]any{"subnetIds": found.Subnets[:1]},
	}); err != nil {
		return err
	}
	if err := s.active(client, "GetCluster", "cluster", map[string]any{"clusterIdentifier": manyCluster}); err != nil {
		return err
	}
	if err := call("CreateComputeNodeGroup", map[string]any{
		"clusterIdentifier": manyCluster, "computeNodeGroupName": manyGroup, "subnetIds": found.Subnets[:1], "amiId": found.Images[0],
		"customLaunchTemplate":  map[string]any{"id": found.Templates[0], "version": "1"},
		"iamInstanceProfileArn": "arn:aws:iam::000000000000:instance-profile/AWSPCS-default",
		"scalingConfiguration":  map[string]any{"minInstanceCount": 0, "maxInstanceCount": manyNodes},
		"instanceConfigs":       []map[string]any{{"instanceType": "t3.micro"}},
	}); err != nil {
		return err
	}
	ref := map[string]any{"clusterIdentifier": manyCluster, "computeNodeGroupIdentifier": manyGroup}
	if err := s.active(client, "GetComputeNodeGroup", "computeNodeGroup", ref); err != nil {
		return err
	}
	var group pcs.GroupOut
	if err := client.JSON(s.ctx, "pcs", pcs.Target, "GetComputeNodeGroup", "1.0", ref, &group); err != nil {
		return err
	}
	if err := call("CreateQueue", map[string]any{
		"clusterIdentifier": manyCluster, "queueName": manyQueue,
		"computeNodeGroupConfigurations": []map[string]any{{"computeNodeGroupId": group.ComputeNodeGroup.ID}},
	}); err != nil {
		return err
	}
	return s.active(client, "GetQueue", "queue", map[string]any{"clusterIdentifier": manyCluster, "queueIdentifier": manyQueue})
}

// active waits until a resource is ACTIVE.
func (s *site) active(client *awsapi.Client, op, member string, ref map[string]any) error {
	for {
		var out map[string]struct {
			Status    string          `json:"status"`
			ErrorInfo []pcs.ErrorInfo `json:"errorInfo"`
		}
		if err := client.JSON(s.ctx, "pcs", pcs.Target, op, "1.0", ref, &out); err != nil {
			return err
		}
		switch r := out[member]; {
		case r.Status == "ACTIVE":
			return nil
		case strings.HasSuffix(r.Status, "_FAILED"):
			return fmt.Errorf("wait for the %s: %s: %v", member, r.Status, r.ErrorInfo)
		}
		if err := s.pause(50 * time.Millisecond); err != nil {
			return err
		}
	}
}

// bareMany launches instances without openpcs, all at once, and removes them.
func (s *site) bareMany(n int) (took time.Duration, err error) {
	each := func(f func(id string, n int) error) error {
		errs := make([]error, n)
		var tasks sync.WaitGroup
		for i := range n {
			tasks.Go(func() { errs[i] = f(fmt.Sprintf("bare-%d", i), i) })
		}
		tasks.Wait()
		return errors.Join(errs...)
	}
	defer func() {
		// Few at a time: Incus calls itself when an instance stops, with a
		// limit of 30 s, and one that misses it can never be stopped again.
		few := make(chan struct{}, 8)
		err = errors.Join(err, each(func(id string, _ int) error {
			few <- struct{}{}
			defer func() { <-few }()
			return s.provider.Terminate(s.ctx, id)
		}))
	}()
	began := time.Now()
	err = each(func(id string, i int) error {
		address := netip.AddrFrom4([4]byte{10, 80, 0, byte(10 + i)})
		return s.provider.Launch(s.ctx, compute.Spec{
			ID: id, Image: s.image, Role: "bare", Hostname: id, Address: netip.PrefixFrom(address, s.host.Gateway.Bits()),
		})
	})
	return time.Since(began), err
}

// jobMany runs a job on all nodes of the empty cluster, and empties it again.
// It is a batch job: srun itself looks less and less often whether its nodes
// are ready, after some seconds every third.
func (s *site) jobMany(r *fiftyReport) error {
	// Not beside what the removal of the bare ones leaves to do.
	if err := s.pause(2 * time.Second); err != nil {
		return err
	}
	script := "date +%s.%N >/home/ubuntu/began; srun hostname >/home/ubuntu/hosts; date +%s.%N >/home/ubuntu/ended"
	began := time.Now()
	_, err := s.openpcs("connect", manyCluster, "--", "sh", "-c", fmt.Sprintf("cd /home/ubuntu && sbatch --wait -p %s -N %d -o /dev/null --wrap '%s'", manyQueue, manyNodes, script))
	if err != nil {
		return err
	}
	hosts, err := s.openpcs("connect", manyCluster, "--", "cat", "/home/ubuntu/hosts")
	if err != nil {
		return err
	}
	if n := len(strings.Fields(string(hosts))); n != manyNodes {
		return fmt.Errorf("run a job on %d nodes: %d answered: %s", manyNodes, n, hosts)
	}
	for name, figures := range map[string]*[]float64{"began": &r.Began, "ended": &r.Ended} {
		text, err := s.openpcs("connect", manyCluster, "--", "cat", "/home/ubuntu/"+name)
		if err != nil {
			return err
		}
		at, err := strconv.ParseFloat(strings.TrimSpace(string(text)), 64)
		if err != nil {
			return err
		}
		*figures = append(*figures, at*1000-float64(began.UnixMicro())/1000)
	}
	said, err := s.explain(manyCluster)
	if err != nil {
		return err
	}
	latest := map[string]time.Time{}
	for _, e := range said.Events {
		if e.At.After(latest[e.Kind]) {
			latest[e.Kind] = e.At
		}
	}
	r.Launched = append(r.Launched, millis(latest["launched"].Sub(began)))
	r.Ready = append(r.Ready, millis(latest["ready"].Sub(began)))
	began = time.Now()
	if _, err := s.openpcs("connect", manyCluster, "--", "srun", "-p", manyQueue, "-N", fmt.Sprint(manyNodes), "hostname"); err != nil {
		return err
	}
	r.Warm = append(r.Warm, millis(time.Since(began)))
	if _, err := s.openpcs("connect", manyCluster, "--", "scontrol", "update", fmt.Sprintf("NodeName=%s-[1-%d]", manyGroup, manyNodes), "State=POWER_DOWN"); err != nil {
		return err
	}
	return s.emptied(func(r app.NodeRow) bool { return r.Cluster == manyCluster }, manyNodes)
}

func (s *site) explain(name string) (app.Explanation, error) {
	doc, err := s.openpcs("explain", "--json", name)
	if err != nil {
		return app.Explanation{}, err
	}
	var said []app.Explanation
	if err := json.Unmarshal(doc, &said); err != nil {
		return app.Explanation{}, err
	}
	return said[0], nil
}

func (s *site) status() (app.Status, error) {
	doc, err := s.openpcs("env")
	if err != nil {
		return app.Status{}, err
	}
	st := app.Status{Region: "ap-northeast-1"}
	for line := range strings.Lines(string(doc)) {
		name, value, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "export "), "=")
		value = strings.Trim(value, "'")
		switch name {
		case "AWS_ENDPOINT_URL":
			st.API = value
		case "AWS_ACCESS_KEY_ID":
			st.KeyID = value
		case "AWS_SECRET_ACCESS_KEY":
			st.Secret = value
		}
	}
	return st, nil
}

// restart ends the control plane and starts it again.
func (s *site) restart() (time.Duration, error) {
	doc, err := os.ReadFile(s.options.PIDFile())
	if err != nil {
		return 0, err
	}
	var pid int
	if _, err := fmt.Sscan(string(doc), &pid); err != nil {
		return 0, err
	}
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		return 0, err
	}
	for {
		if _, err := s.openpcs("status"); err != nil {
			break
		}
		if err := s.pause(20 * time.Millisecond); err != nil {
			return 0, err
		}
	}
	log, err := os.OpenFile(s.options.LogFile(), os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return 0, err
	}
	defer func() { _ = log.Close() }()
	cmd := exec.Command(s.binary, "serve")
	cmd.Stdout, cmd.Stderr = log, log
	began := time.Now()
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	go func() { _ = cmd.Wait() }()
	for {
		if _, err := s.openpcs("status"); err == nil {
			break
		}
		if time.Since(began) > time.Minute {
			return 0, errors.New("start openpcs serve again: no answer")
		}
		if err := s.pause(5 * time.Millisecond); err != nil {
			return 0, err
		}
	}
	return time.Since(began), os.WriteFile(s.options.PIDFile(), fmt.Append(nil, cmd.Process.Pid), 0o600)
}

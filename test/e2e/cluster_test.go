//go:build e2e

package e2e

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// The rows of openpcs's listings.
type (
	clusterRow struct{ Name, ID, Status string }

	nodeRow struct{ Name, ID, Status, Cluster, Group, Instance, Reason string }

	instanceRow struct {
		Name, ID, Status, Cluster, Node, Address, Type, Image, Reason string
		Since                                                         time.Time
	}
)

// createLimit bounds the creation of a cluster, group or queue.
const createLimit = 60 * time.Second

// cluster is a cluster under test with its names and ids.
type cluster struct {
	name, id string
	version  string            // of Slurm
	entry    string            // the login node
	groups   map[string]string // ids by name
}

// group is what a test wants of a compute node group.
type group struct {
	name     string
	min, max int
	userData string // MIME
	generic  bool   // with the image that has no agent
	image    string // another than the usual one
	kind     string // instance type, t3.micro if empty
	settings string // custom settings as JSON
	idle     int    // its own idle time in seconds, if not 0
	queue    string // made for it, if not empty
	actions  string // lifecycle actions as file://, if not empty
	profile  string // ARN of another instance profile than the usual one
}

// network is what every cluster and group needs to know of the region.
type network struct{ subnet, securityGroup, image, generic, profile string }

var region1 *network

// findNetwork asks the API, as a user would.
func findNetwork(t *testing.T) network {
	t.Helper()
	if region1 != nil {
		return *region1
	}
	n := network{
		subnet:        aws(t, "ec2", "describe-subnets", "--query", "Subnets[0].SubnetId", "--output", "text"),
		securityGroup: aws(t, "ec2", "describe-security-groups", "--filters", "Name=group-name,Values=default", "--query", "SecurityGroups[0].GroupId", "--output", "text"),
		image:         findImage(t, "aws-pcs-sample_ami-*-slurm-"+version+"-*"),
		generic:       findImage(t, "debian-generic-*"),
		profile: aws(t, "iam", "list-instance-profiles", "--query",
			"InstanceProfiles[?InstanceProfileName=='AWSPCS-default'].Arn | [0]", "--output", "text"),
	}
	region1 = &n
	return n
}

func findImage(t *testing.T, pattern string) string {
	t.Helper()
	return aws(t, "ec2", "describe-images", "--owners", "amazon", "--filters", "Name=name,Values="+pattern, "--query", "Images[0].ImageId", "--output", "text")
}

// createTemplate makes a launch template; the data of one without user data
// is made once.
func createTemplate(t *testing.T, name, image, userData string) (id string) {
	t.Helper()
	data := map[string]any{"ImageId": image, "SecurityGroupIds": []string{findNetwork(t).securityGroup}}
	if userData != "" {
		data["UserData"] = base64.StdEncoding.EncodeToString([]byte(userData))
	}
	doc, err := json.Marshal(data)
	if err != nil {
		t.Fatal(err)
	}
	return aws(t, "ec2", "create-launch-template", "--launch-template-name", name, "--launch-template-data", string(doc),
		"--query", "LaunchTemplate.LaunchTemplateId", "--output", "text")
}

// createCluster makes a cluster and waits until it is ACTIVE.
func createCluster(t *testing.T, name string, idleSeconds int) *cluster {
	t.Helper()
	return createClusterOf(t, name, version, idleSeconds)
}

// createClusterOf makes a cluster with a release of Slurm.
func createClusterOf(t *testing.T, name, version string, idleSeconds int, settings ...string) *cluster {
	t.Helper()
	n := findNetwork(t)
	c := &cluster{name: name, version: version, entry: "front-1", groups: map[string]string{}}
	c.id = aws(t, "pcs", "create-cluster", "--cluster-name", name, "--scheduler", "type=SLURM,version="+version, "--size", "SMALL",
		"--networking", "subnetIds="+n.subnet+",securityGroupIds="+n.securityGroup,
		"--slurm-configuration", fmt.Sprintf(`{"scaleDownIdleTimeInSeconds":%d,"slurmCustomSettings":%s}`, idleSeconds, cmp.Or(strings.Join(settings, ""), "[]")),
		"--query", "cluster.id", "--output", "text")
	c.active(t, name, "clusters")
	return c
}

// active waits until something that openpcs lists is ACTIVE.
func (c *cluster) active(t *testing.T, name string, listing ...string) {
	t.Helper()
	eventually(t, createLimit, name+" of "+listing[0]+" becomes ACTIVE", func() error {
		all, err := rows[clusterRow](listing...)
		if err != nil {
			return err
		}
		for _, r := range all {
			switch {
			case r.Name != name:
			case strings.HasSuffix(r.Status, "_FAILED"):
				return final{fmt.Errorf("it is %s", r.Status)}
			case r.Status != "ACTIVE":
				return fmt.Errorf("it is %s", r.Status)
			default:
				return nil
			}
		}
		return fmt.Errorf("it is not among %v", all)
	})
}

// add makes a group, with its queue.
func (c *cluster) add(t *testing.T, g group) {
	t.Helper()
	n := findNetwork(t)
	image := cmp.Or(g.image, n.image)
	if g.generic {
		image = n.generic
	}
	template := createTemplate(t, c.name+"-"+g.name, image, g.userData)
	var scripts []string
	if g.actions != "" {
		scripts = []string{"--node-lifecycle-actions", g.actions}
	}
	c.groups[g.name] = aws(t, append([]string{
		"pcs", "create-compute-node-group", "--cluster-identifier", c.id, "--compute-node-group-name", g.name,
		"--subnet-ids", n.subnet, "--custom-launch-template", "id=" + template + ",version=1", "--iam-instance-profile-arn", cmp.Or(g.profile, n.profile),
		"--scaling-configuration", fmt.Sprintf("minInstanceCount=%d,maxInstanceCount=%d", g.min, g.max),
		"--instance-configs", "instanceType=" + cmp.Or(g.kind, "t3.micro"),
		"--slurm-configuration", fmt.Sprintf(`{"slurmCustomSettings":%s,"scaleDownIdleTimeInSeconds":%d}`, cmp.Or(g.settings, "[]"), cmp.Or(g.idle, -1)), "--query", "computeNodeGroup.id", "--output", "text",
	}, scripts...)...)
	c.active(t, g.name, "groups", c.id)
	if g.queue != "" {
		c.addQueue(t, g.queue, g.name)
		c.active(t, g.queue, "queues", c.id)
	}
}

// addQueue makes a queue over groups and does not wait for it.
func (c *cluster) addQueue(t *testing.T, name string, groups ...string) {
	t.Helper()
	argv := []string{
		"pcs", "create-queue", "--cluster-identifier", c.id, "--queue-name", name,
		"--compute-node-group-configurations",
	}
	for _, group := range groups {
		argv = append(argv, "computeNodeGroupId="+c.groups[group])
	}
	aws(t, argv...)
}

// lend makes a group, with its queue, for one test: at its end, however it
// ends, both are deleted. What is left would count against the quota of the
// cluster, which is the other tests' as well.
func (c *cluster) lend(t *testing.T, g group) {
	t.Helper()
	t.Cleanup(func() { c.deleteGroup(t, g.name) })
	if g.queue != "" {
		t.Cleanup(func() { c.deleteQueue(t, g.queue) })
	}
	c.add(t, g)
}

// lendQueue makes a queue over groups for one test, and does not wait for it.
func (c *cluster) lendQueue(t *testing.T, name string, groups ...string) {
	t.Helper()
	t.Cleanup(func() { c.deleteQueue(t, name) })
	c.addQueue(t, name, groups...)
}

// has tells the status of a queue or group, empty if there is none.
func (c *cluster) has(kind, name string) (status string, err error) {
	all, err := rows[clusterRow](kind, c.id)
	for _, r := range all {
		if r.Name == name {
			return r.Status, err
		}
	}
	return "", err
}

// deleteQueue deletes a queue, if there is one, with its jobs, and waits
// until it is gone.
func (c *cluster) deleteQueue(t *testing.T, name string) {
	t.Helper()
	status, err := c.has("queues", name)
	must(t, err == nil, "list queues: %v", err)
	if status == "" {
		return
	}
	if status != "DELETING" {
		aws(t, "pcs", "delete-queue", "--cluster-identifier", c.id, "--queue-identifier", name)
	}
	eventually(t, 30*time.Second, "the queue "+name+" is gone", func() error {
		if status, err = c.has("queues", name); status != "" {
			return errors.New("it is " + status)
		}
		return err
	})
	r := succeed(t, c.login("sinfo", "--noheader", "--partition="+name))
	must(t, r.line() == "", "sinfo still shows the queue: %s", r)
}

// deleteGroup deletes a group, if there is one, and waits until it is gone.
func (c *cluster) deleteGroup(t *testing.T, name string) {
	t.Helper()
	status, err := c.has("groups", name)
	must(t, err == nil, "list groups: %v", err)
	if status == "" {
		return
	}
	if status != "DELETING" {
		aws(t, "pcs", "delete-compute-node-group", "--cluster-identifier", c.id, "--compute-node-group-identifier", name)
	}
	eventually(t, 30*time.Second, "the group "+name+" is gone", func() error {
		if status, err = c.has("groups", name); status != "" {
			return errors.New("it is " + status)
		}
		return err
	})
}

// sharedCluster is the cluster that most tests use.
var sharedCluster struct {
	*cluster
	broken bool // making it failed once: do not try again for each test
}

// sharedIdle is so long that nodes stay up from one test to the next; a test
// that needs a node off powers it down.
const sharedIdle = 600

// shared returns the cluster that most tests use: a login node, four nodes in
// queue-1, and three whose boot takes longer than any test in slow.
func shared(t *testing.T) *cluster {
	t.Helper()
	if sharedCluster.broken {
		t.Fatal("making the shared cluster failed in a test before")
	}
	if sharedCluster.cluster != nil {
		return sharedCluster.cluster
	}
	sharedCluster.broken = true
	c := createCluster(t, "shared", sharedIdle)
	c.add(t, group{name: "front", min: 1, max: 1})
	c.add(t, group{name: "node", max: 4, queue: "queue-1"})
	c.add(t, group{name: "slow", max: 3, queue: "slow", userData: mime(boothook, "#!/bin/sh\nsleep 600\n")})
	c.waitLogin(t)
	sharedCluster.cluster, sharedCluster.broken = c, false
	return c
}

// waitLogin waits until Slurm's commands work on the login node.
func (c *cluster) waitLogin(t *testing.T) {
	t.Helper()
	eventually(t, time.Minute, "the login node answers", func() error {
		if r := c.login("sinfo"); r.code != 0 {
			return errors.New(r.String())
		}
		if n, err := c.node(c.entry); err != nil || !n.up() {
			return fmt.Errorf("%s is %+v %v", c.entry, n, err)
		}
		return nil
	})
}

// connect runs a command on a node or instance of the cluster.
func (c *cluster) connect(node string, argv ...string) result {
	if !strings.HasPrefix(node, "i-") {
		node = c.id + "/" + node
	}
	return openpcs(append([]string{"connect", node, "--"}, argv...)...)
}

// login runs a command as root on the login node.
func (c *cluster) login(argv ...string) result { return c.connect(c.entry, argv...) }

// user runs a shell script as the user ubuntu, in its home, on the login
// node.
func (c *cluster) user(script string) result {
	return c.login("runuser", "-u", "ubuntu", "--", "sh", "-c", "cd && "+script)
}

// controller runs a shell script as root on the controller.
func (c *cluster) controller(script string) result {
	return openpcs("connect", c.id, "--", "sh", "-c", script)
}

// node is a node as Slurm shows it.
type node struct {
	name, reason string
	state        []string // base state, then flags
}

func (n node) is(flag string) bool {
	for _, s := range n.state {
		if strings.TrimSuffix(s, "*") == flag {
			return true
		}
	}
	return false
}

// up reports whether jobs can run there now.
func (n node) up() bool {
	for _, flag := range []string{"DOWN", "POWERED_DOWN", "POWERING_UP", "POWERING_DOWN", "NOT_RESPONDING", "DRAIN"} {
		if n.is(flag) {
			return false
		}
	}
	return len(n.state) > 0
}

// off reports whether the node is idle~: off, and a job may have it.
func (n node) off() bool { return n.is("IDLE") && n.is("POWERED_DOWN") && !n.is("POWERING_DOWN") }

var (
	nodeState  = regexp.MustCompile(` State=(\S+)`)
	nodeReason = regexp.MustCompile(` Reason=(.*?)(?: \[\S+@\S+\]|$)`)
)

// node asks Slurm for a node, on the controller.
func (c *cluster) node(name string) (node, error) {
	r := c.controller("scontrol --oneliner show node " + name)
	m := nodeState.FindStringSubmatch(r.out)
	if r.code != 0 || m == nil {
		return node{}, errors.New(r.String())
	}
	n := node{name: name, state: splitState(m[1])}
	if m := nodeReason.FindStringSubmatch(strings.TrimSpace(r.out)); m != nil {
		n.reason = m[1]
	}
	return n, nil
}

// splitState reads a state such as IDLE+CLOUD.
func splitState(text string) []string { return strings.Split(text, "+") }

// waitNode waits until Slurm shows the node as wanted.
func (c *cluster) waitNode(t *testing.T, name string, limit time.Duration, what string, ok func(node) bool) (time.Duration, node) {
	t.Helper()
	var n node
	took := eventually(t, limit, name+" is "+what, func() (err error) {
		if n, err = c.node(name); err != nil {
			return err
		}
		if !ok(n) {
			return fmt.Errorf("it is %s %q", strings.Join(n.state, "+"), n.reason)
		}
		return nil
	})
	return took, n
}

// instances returns the node's instances, live ones and those that ended
// within the hour.
func (c *cluster) instances(t *testing.T, node string) (live, ended []instanceRow) {
	t.Helper()
	all, err := rows[instanceRow]("instances")
	if err != nil {
		fail(t, "list instances: %v", err)
	}
	for _, i := range all {
		switch {
		case i.Cluster != c.name || i.Node != node:
		case i.Status == "terminated":
			ended = append(ended, i)
		default:
			live = append(live, i)
		}
	}
	return live, ended
}

// instance returns the node's only live instance.
func (c *cluster) instance(t *testing.T, node string) instanceRow {
	t.Helper()
	live, _ := c.instances(t, node)
	must(t, len(live) == 1, "%s has %d live instances, not one: %v", node, len(live), live)
	return live[0]
}

// powerUp makes nodes of a queue ready and returns when they are.
func (c *cluster) powerUp(t *testing.T, queue string, nodes ...string) {
	t.Helper()
	succeed(t, c.login("srun", "--chdir=/", "-p", queue, "-N", strconv.Itoa(len(nodes)), "-w", strings.Join(nodes, ","), "true"))
	for _, n := range nodes {
		c.waitNode(t, n, 30*time.Second, "up", node.up)
	}
}

// powerDown makes nodes idle~ and returns when their instances are gone.
func (c *cluster) powerDown(t *testing.T, nodes ...string) {
	t.Helper()
	for _, name := range nodes {
		var n node
		eventually(t, 10*time.Second, "Slurm shows "+name, func() (err error) {
			n, err = c.node(name)
			return err
		})
		if n.off() {
			continue
		}
		if n.is("POWERING_UP") {
			// Slurm ignores a power down of such a node unless it is down.
			succeed(t, c.controller("scontrol update nodename="+name+" state=down reason='pcs: end of the test'"))
		}
		succeed(t, c.controller("scontrol update nodename="+name+" state=power_down"))
	}
	for _, name := range nodes {
		c.waitNode(t, name, 40*time.Second, "idle~", node.off)
		eventually(t, 20*time.Second, "the instance of "+name+" is gone", func() error {
			if live, _ := c.instances(t, name); len(live) > 0 {
				return fmt.Errorf("there is %v", live)
			}
			return nil
		})
	}
}

// job is a job as Slurm shows it.
type job struct {
	state, reason, node string
	restarts            int
}

var jobField = regexp.MustCompile(`(?:^| )(JobState|Reason|NodeList|Restarts)=(\S*)`)

// submit submits a batch script as ubuntu and returns the job's id. Output
// goes to ID.out in the shared home.
func (c *cluster) submit(t *testing.T, queue, script string, flags ...string) string {
	t.Helper()
	r := c.user("sbatch --parsable --output=%j.out --partition=" + queue + " " + strings.Join(flags, " ") + " --wrap '" + script + "'")
	return succeed(t, r).line()
}

func (c *cluster) job(id string) (job, error) {
	r := c.controller("scontrol --oneliner show job " + id)
	if r.code != 0 {
		return job{}, errors.New(r.String())
	}
	var j job
	for _, m := range jobField.FindAllStringSubmatch(r.out, -1) {
		switch m[1] {
		case "JobState":
			j.state = m[2]
		case "Reason":
			j.reason = m[2]
		case "NodeList":
			j.node = m[2]
		case "Restarts":
			j.restarts, _ = strconv.Atoi(m[2])
		}
	}
	return j, nil
}

// waitJob waits until Slurm shows the job as wanted.
func (c *cluster) waitJob(t *testing.T, id string, limit time.Duration, what string, ok func(job) bool) job {
	t.Helper()
	var j job
	eventually(t, limit, "job "+id+" is "+what, func() (err error) {
		if j, err = c.job(id); err != nil {
			return err
		}
		if !ok(j) {
			return fmt.Errorf("it is %+v", j)
		}
		return nil
	})
	return j
}

// ended waits until a job completed and returns its output.
func (c *cluster) output(t *testing.T, id string, limit time.Duration) string {
	t.Helper()
	c.waitJob(t, id, limit, "COMPLETED", func(j job) bool { return j.state == "COMPLETED" })
	return succeed(t, c.user("cat "+id+".out")).line()
}

// running tells whether a job runs.
func running(j job) bool { return j.state == "RUNNING" }

// event is one entry of a node's history.
type event struct {
	At      time.Time      `json:"at"`
	Subject string         `json:"subject"`
	Kind    string         `json:"kind"`
	Detail  map[string]any `json:"detail"`
}

// history returns what openpcs explain says of a node, oldest first.
func (c *cluster) history(t *testing.T, node string) (now []string, events []event) {
	t.Helper()
	type explanation struct {
		Now    []string
		Events []event
	}
	all, err := rows[explanation]("explain", c.id+"/"+node)
	if err != nil || len(all) != 1 {
		fail(t, "explain %s: %v", node, err)
	}
	return all[0].Now, all[0].Events
}

// since returns the events of a kind from a time on.
func since(events []event, from time.Time, kind string) (out []event) {
	for _, e := range events {
		if e.Kind == kind && !e.At.Before(from) {
			out = append(out, e)
		}
	}
	return out
}

//go:build e2e

package e2e

import (
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"
)

// schedulerBin is where the article found Slurm's commands.
const schedulerBin = "/opt/aws/pcs/scheduler/slurm-" + version + "/bin/"

// hostName is what a node calls itself.
var hostName = `ip-10-` + ofSlot("79", "10") + `-\d+-\d+\.` + region + `\.compute\.internal`

// bootLine is a line of bootstrap.log.
var bootLine = regexp.MustCompile(`^\[....-..-..T..:..:..\....\+00:00\] - /opt/aws/pcs/bin/.*: (INFO|WARN|ERROR): `)

// seed is the walkthrough under way.
type seed struct {
	*cluster
	image, template, loginInstance, nodeInstance, secret string
}

// TestSeed002 does the article "login and compute nodes up to automatic
// scaling" from start to end, with its commands.
func TestSeed002(t *testing.T) {
	s := &seed{cluster: &cluster{name: "seed002", entry: "login-1", groups: map[string]string{}}}
	steps := []struct {
		name string
		do   func(*testing.T)
	}{
		{"who_am_i", s.whoAmI},
		{"find_the_image", s.findImage},
		{"create_cluster", s.createCluster},
		{"create_launch_template", s.createTemplate},
		{"create_compute_node_group", s.createComputeGroup},
		{"create_queue", s.createQueue},
		{"create_login_group", s.createLoginGroup},
		{"cluster_key", s.clusterKey},
		{"connect_passes_through", s.connectPassesThrough},
		{"ssm_run_command", s.runCommand},
		{"find_sinfo", s.findSinfo},
		{"sinfo_shows_idle_nodes_off", s.sinfo},
		{"I11_srun_starts_an_instance", s.srun},
		{"bootstrap_log", s.bootstrapLog},
		{"idle_instance_terminates", s.idle},
		{"generic_image_fails_with_its_reason", s.genericImage},
		{"delete", s.delete},
	}
	defer func() {
		if s.id != "" && t.Failed() {
			_ = openpcs("clusters", "delete", "--force", "--yes", s.id)
		}
	}()
	for _, step := range steps {
		if !t.Run(step.name, step.do) {
			t.Fatalf("the steps after %s need it", step.name)
		}
	}
}

func (s *seed) whoAmI(t *testing.T) {
	who := awsGet[struct{ Account, Arn string }](t, "sts", "get-caller-identity")
	must(t, who.Account == "000000000000" && strings.Contains(who.Arn, ":user/"), "get-caller-identity: %+v", who)
	names := aws(t, "iam", "list-instance-profiles", "--query", "InstanceProfiles[].InstanceProfileName", "--output", "text")
	matches(t, "list-instance-profiles", names, `\bAWSPCS-default\b`)
}

func (s *seed) findImage(t *testing.T) {
	table := aws(t, "ec2", "describe-images", "--region", region, "--owners", "amazon",
		"--filters", "Name=name,Values=aws-pcs-sample_ami-*", "Name=state,Values=available",
		"--query", "sort_by(Images, &CreationDate)[].[Name,ImageId,CreationDate]", "--output", "table")
	row := regexp.MustCompile(`\|\s+aws-pcs-sample_ami-debian-x86_64-slurm-26\.05-\d{8}\s+\|\s+(ami-[0-9a-f]{17})\s+\|\s+20\d\d-\d\d-\d\dT[0-9:.]+Z\s+\|`).FindStringSubmatch(table)
	must(t, row != nil, "no image of Slurm %s in:\n%s", version, table)
	must(t, strings.Contains(table, "DescribeImages"), "not the CLI's table:\n%s", table)
	s.image = row[1]
}

func (s *seed) createCluster(t *testing.T) {
	n := findNetwork(t)
	s.id = aws(t, "pcs", "create-cluster", "--cluster-name", s.name, "--scheduler", "type=SLURM,version="+version, "--size", "SMALL",
		"--networking", "subnetIds="+n.subnet+",securityGroupIds="+n.securityGroup,
		"--slurm-configuration", "scaleDownIdleTimeInSeconds=10", "--query", "cluster.id", "--output", "text")
	matches(t, "the cluster's id", s.id, `^pcs_[0-9a-z]{10}$`)
	eventually(t, createLimit, "get-cluster says ACTIVE", func() error {
		if status := aws(t, "pcs", "get-cluster", "--cluster-identifier", s.id, "--query", "cluster.status", "--output", "text"); status != "ACTIVE" {
			return fmt.Errorf("it says %s", status)
		}
		return nil
	})
}

func (s *seed) createTemplate(t *testing.T) {
	s.template = createTemplate(t, "seed002", s.image, mime(shellscript, "#!/bin/bash\necho ready >/var/tmp/user-data\n"))
	matches(t, "the template's id", s.template, `^lt-[0-9a-f]{17}$`)
}

// createGroup creates a group with the article's settings and waits for the
// status that it waits for.
func (s *seed) createGroup(t *testing.T, name string, low, high int, more ...string) {
	t.Helper()
	n := findNetwork(t)
	s.groups[name] = aws(t, append([]string{
		"pcs", "create-compute-node-group", "--cluster-identifier", s.id,
		"--compute-node-group-name", name, "--subnet-ids", n.subnet, "--custom-launch-template", "id=" + s.template + ",version=1",
		"--iam-instance-profile-arn", n.profile, "--instance-configs", "instanceType=t3.micro",
		"--scaling-configuration", fmt.Sprintf("minInstanceCount=%d,maxInstanceCount=%d", low, high),
		"--query", "computeNodeGroup.id", "--output", "text",
	}, more...)...)
	eventually(t, createLimit, "the group "+name+" becomes ACTIVE", func() error {
		status := aws(t, "pcs", "get-compute-node-group", "--cluster-identifier", s.id, "--compute-node-group-identifier", s.groups[name],
			"--query", "computeNodeGroup.status", "--output", "text")
		if status != "ACTIVE" {
			return fmt.Errorf("it is %s", status)
		}
		return nil
	})
}

func (s *seed) createComputeGroup(t *testing.T) { s.createGroup(t, "node-group-1", 0, 2) }

func (s *seed) createQueue(t *testing.T) {
	s.addQueue(t, "queue-1", "node-group-1")
	eventually(t, createLimit, "the queue becomes ACTIVE", func() error {
		status := aws(t, "pcs", "get-queue", "--cluster-identifier", s.id, "--queue-identifier", "queue-1", "--query", "queue.status", "--output", "text")
		if status != "ACTIVE" {
			return fmt.Errorf("it is %s", status)
		}
		return nil
	})
}

func (s *seed) createLoginGroup(t *testing.T) {
	s.createGroup(t, "login", 1, 1)
	eventually(t, time.Minute, "describe-instances shows the login node running", func() error {
		ids := s.describe(t, "login", "running")
		if len(ids) != 1 {
			return fmt.Errorf("it shows %v", ids)
		}
		s.loginInstance = ids[0]
		return nil
	})
	s.waitLogin(t)
}

// describe finds a group's instances as the PCS guide says.
func (s *seed) describe(t *testing.T, group, states string) []string {
	t.Helper()
	return strings.Fields(aws(t, "ec2", "describe-instances", "--filters", "Name=tag:aws:pcs:compute-node-group-id,Values="+s.groups[group],
		"Name=instance-state-name,Values="+states, "--query", "Reservations[].Instances[].InstanceId", "--output", "text"))
}

func (s *seed) clusterKey(t *testing.T) {
	s.secret = aws(t, "pcs", "get-cluster", "--cluster-identifier", s.id, "--query", "cluster.slurmConfiguration.authKey.secretArn", "--output", "text")
	key := aws(t, "secretsmanager", "get-secret-value", "--secret-id", s.secret, "--query", "SecretString", "--output", "text")
	file := succeed(t, s.login("base64", "--wrap=0", "/etc/slurm/slurm.key")).line()
	must(t, key == file, "the secret is %q, and base64 of slurm.key on the login node is %q", key, file)
	raw, err := base64.StdEncoding.DecodeString(key)
	must(t, err == nil && len(raw) >= 32, "the key has %d bytes: %v", len(raw), err)
}

func (s *seed) connectPassesThrough(t *testing.T) {
	r := openpcs("connect", "login-1", "--", "sh", "-c", "echo out; echo err >&2; exit 7")
	must(t, r.code == 7 && r.out == "out\n" && r.errOut == "err\n", "not passed through: %s", r)
	r = succeed(t, openpcs("connect", s.loginInstance, "--", "id", "-un"))
	must(t, r.out == "root\n", "connect is not root's: %s", r)
	r = succeed(t, openpcs("connect", "login-1", "--", "printf", "%s.", "a b", "", "$HOME", `"q"`))
	must(t, r.out == `a b..$HOME."q".`, "arguments do not arrive as given: %s", r)
	r = succeed(t, run(siteEnv, "sh", "-c", `printf 'one\ntwo' | "$0" connect login-1 -- cat`, binary()))
	must(t, r.out == "one\ntwo", "input does not arrive: %s", r)
}

func (s *seed) runCommand(t *testing.T) {
	ids := s.describe(t, "login", "running")
	must(t, len(ids) == 1, "describe-instances of the login group: %v", ids)
	command := aws(t, "ssm", "send-command", "--instance-ids", ids[0], "--document-name", "AWS-RunShellScript",
		"--parameters", `{"commands":["echo hello from $(hostname)","echo warning >&2"]}`, "--query", "Command.CommandId", "--output", "text")
	type invocation struct {
		Status, StandardOutputContent, StandardErrorContent string
		ResponseCode                                        int
	}
	var i invocation
	eventually(t, 30*time.Second, "get-command-invocation says Success", func() error {
		i = awsGet[invocation](t, "ssm", "get-command-invocation", "--command-id", command, "--instance-id", ids[0])
		if i.Status != "Success" {
			return fmt.Errorf("it says %+v", i)
		}
		return nil
	})
	matches(t, "the output", i.StandardOutputContent, `^hello from `+hostName+`\n$`)
	must(t, i.StandardErrorContent == "warning\n" && i.ResponseCode == 0, "the invocation: %+v", i)
}

func (s *seed) findSinfo(t *testing.T) {
	r := s.login("sh", "-c", `find / -name "sinfo" 2>/dev/null`)
	matches(t, "find", r.out, `(?m)^`+schedulerBin+`sinfo$`)
}

func (s *seed) sinfo(t *testing.T) {
	r := succeed(t, s.login(schedulerBin+"sinfo"))
	matches(t, "sinfo", r.out, `(?m)^PARTITION\s+AVAIL\s+TIMELIMIT\s+NODES\s+STATE\s+NODELIST$`)
	matches(t, "sinfo", r.out, `(?m)^queue-1\s+up\s+infinite\s+2\s+idle~\s+node-group-1-\[1-2\]$`)
	must(t, !strings.Contains(r.out, "login"), "login nodes are in no queue: %s", r)
}

func (s *seed) srun(t *testing.T) {
	r := succeed(t, s.login(schedulerBin+"srun", "-p", "queue-1", "--nodes=1", "hostname"))
	matches(t, "srun", r.line(), `^`+hostName+`$`)
	t.Logf("srun on the empty queue took %.1f s", r.took.Seconds())
	ids := s.describe(t, "node-group-1", "running")
	must(t, len(ids) == 1, "describe-instances shows %v, not one new instance", ids)
	s.nodeInstance = ids[0]
	name := aws(t, "ec2", "describe-instances", "--instance-ids", ids[0], "--query", "Reservations[0].Instances[0].PrivateDnsName", "--output", "text")
	must(t, name == r.line(), "srun ran on %s, and the instance is %s", r.line(), name)
}

func (s *seed) bootstrapLog(t *testing.T) {
	r := succeed(t, openpcs("connect", s.nodeInstance, "--", "cat", "/var/log/amazon/pcs/bootstrap.log"))
	lines := strings.Split(r.line(), "\n")
	must(t, len(lines) > 3, "bootstrap.log is short: %s", r)
	for _, line := range lines {
		if !strings.Contains(line, " user-data: ") { // what the user's script printed
			must(t, bootLine.MatchString(line), "a line of bootstrap.log has another format: %q", line)
		}
	}
	r = succeed(t, openpcs("connect", s.nodeInstance, "--", "cat", "/var/tmp/user-data"))
	must(t, r.out == "ready\n", "user data did not run: %s", r)
}

func (s *seed) idle(t *testing.T) {
	took := eventually(t, 60*time.Second, "describe-instances shows the idle instance terminated", func() error {
		state := aws(t, "ec2", "describe-instances", "--instance-ids", s.nodeInstance, "--query", "Reservations[].Instances[].State.Name", "--output", "text")
		if state != "terminated" {
			return fmt.Errorf("it shows %q", state)
		}
		return nil
	})
	t.Logf("terminated %.1f s after the job, with an idle time of 10 s", took.Seconds())
	eventually(t, 20*time.Second, "sinfo shows idle~ again", func() error {
		r := s.login(schedulerBin + "sinfo")
		if !regexp.MustCompile(`(?m)^queue-1\s.*\s2\s+idle~\s+node-group-1-\[1-2\]$`).MatchString(r.out) {
			return errors.New(r.String())
		}
		return nil
	})
	live, _ := s.instances(t, "login-1")
	must(t, len(live) == 1 && live[0].ID == s.loginInstance, "the login node is not left alone: %v", live)
}

// genericImage makes the article's mistake: an image without the agent.
func (s *seed) genericImage(t *testing.T) {
	began := time.Now()
	s.createGroup(t, "generic", 1, 1, "--ami-id", findNetwork(t).generic)
	var id string
	eventually(t, time.Minute, "openpcs explain says why the node does not come up", func() error {
		_, ended := s.instances(t, "generic-1")
		for _, i := range ended {
			r := openpcs("explain", i.ID)
			if strings.Contains(r.out, "has no PCS agent") && strings.Contains(r.out, "/opt/aws/pcs/bin/pcs_bootstrap_init.sh does not exist") {
				id = i.ID
				return nil
			}
		}
		return errors.New(openpcs("explain", "generic-1").String())
	})
	t.Logf("explained %.1f s after the group was asked for", time.Since(began).Seconds())
	s.waitNode(t, "generic-1", time.Minute, "with the reason", func(n node) bool {
		return regexp.MustCompile(`^Backing Instance Failed To Bootstrap: i-[0-9a-f]{17}$`).MatchString(n.reason)
	})
	info := aws(t, "pcs", "get-compute-node-group", "--cluster-identifier", s.id, "--compute-node-group-identifier", "generic",
		"--query", "computeNodeGroup.errorInfo[].[code,message]", "--output", "text")
	matches(t, "the group's errorInfo", info, `^IMAGE_WITHOUT_AGENT\s.*has no PCS agent`)
	r := succeed(t, openpcs("logs", id, "--file", "bootstrap.log"))
	matches(t, "the kept bootstrap.log", r.out, `(?m)^/usr/bin/cloud-init-per: line \d+: /opt/aws/pcs/bin/pcs_bootstrap_init\.sh: No such file or directory$`)
	state := aws(t, "ec2", "describe-instances", "--instance-ids", id, "--query", "Reservations[].Instances[].[State.Name,StateReason.Message]", "--output", "text")
	matches(t, "describe-instances of the failed instance", state, `^terminated\s.*has no PCS agent`)
}

func (s *seed) delete(t *testing.T) {
	r := openpcs("clusters", "delete", s.id, "--yes")
	must(t, r.code == 1 && strings.Contains(r.errOut, "ConflictException"), "deleting a cluster that has groups must be refused: %s", r)
	succeed(t, openpcs("clusters", "delete", "--force", "--yes", s.id))
	left := aws(t, "pcs", "list-clusters", "--query", "clusters[?id=='"+s.id+"']", "--output", "json")
	must(t, left == "[]", "list-clusters still shows %s", left)
	code, _ := awsRefused(t, "secretsmanager", "get-secret-value", "--secret-id", s.secret)
	must(t, code == "ResourceNotFoundException", "the secret of the deleted cluster: %s", code)
	for group := range s.groups {
		ids := s.describe(t, group, "pending,running,shutting-down,stopping,stopped")
		must(t, len(ids) == 0, "the group %s still has the instances %v", group, ids)
	}
	short := strings.TrimPrefix(s.id, "pcs_")
	have := succeed(t, incus("list", "--project", project, "--format", "csv", "--columns", "n"))
	must(t, !strings.Contains(have.out, short) && !strings.Contains(have.out, s.loginInstance), "instances are left in Incus:\n%s", have.out)
	_, err := os.Stat(stateDir + "/clusters/" + s.id)
	must(t, errors.Is(err, os.ErrNotExist), "the cluster's folder is left: %v", err)
	s.id = ""
}

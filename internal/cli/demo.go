package cli

import (
	"bytes"
	"context"
	"encoding/xml"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/openpcs/openpcs/internal/app"
	"github.com/openpcs/openpcs/internal/awsapi"
	"github.com/openpcs/openpcs/internal/pcs"
)

// The demo's names are those of the walkthrough.
const (
	demoCluster = "demo"
	demoGroup   = "node-group-1"
	demoLogin   = "login"
	demoQueue   = "queue-1"
	demoVersion = "26.05"
	demoType    = "t3.micro"
	demoLimit   = 3 * time.Minute
	demoIdle    = "10 minutes" // PCS's default
)

// demo makes the demo cluster, as far as it is not there, and runs a job on
// it while it is empty.
func (s *shell) demo(ctx context.Context, d *daemon, st app.Status) error {
	ctx, cancel := context.WithTimeout(ctx, demoLimit)
	defer cancel()
	a := newAPI(st)
	step("Demo cluster")
	subnet, err := a.ec2Field(ctx, "DescribeSubnets", nil, "subnetSet>item>subnetId")
	if err != nil {
		return err
	}
	template, err := a.demoTemplate(ctx)
	if err != nil {
		return err
	}
	err = a.ensure(ctx, "GetCluster", "CreateCluster", "cluster", map[string]any{"clusterIdentifier": demoCluster}, map[string]any{
		"clusterName": demoCluster, "scheduler": map[string]any{"type": "SLURM", "version": demoVersion}, "size": "SMALL",
		"networking": map[string]any{"subnetIds": []string{subnet}},
	})
	if err != nil {
		return err
	}
	image, err := a.demoImage(ctx)
	if err != nil {
		return err
	}
	groups := map[string]string{}
	for _, g := range []struct {
		name     string
		min, max int
	}{{demoGroup, 0, 2}, {demoLogin, 1, 1}} {
		ref := map[string]any{"clusterIdentifier": demoCluster, "computeNodeGroupIdentifier": g.name}
		err := a.ensure(ctx, "GetComputeNodeGroup", "CreateComputeNodeGroup", "computeNodeGroup", ref, map[string]any{
			"clusterIdentifier": demoCluster, "computeNodeGroupName": g.name, "subnetIds": []string{subnet},
			"amiId":                 image, // the template may be older
			"customLaunchTemplate":  map[string]any{"id": template, "version": "1"},
			"iamInstanceProfileArn": "arn:aws:iam::" + st.Account + ":instance-profile/AWSPCS-default",
			"scalingConfiguration":  map[string]any{"minInstanceCount": g.min, "maxInstanceCount": g.max},
			"instanceConfigs":       []map[string]any{{"instanceType": demoType}},
		})
		if err != nil {
			return err
		}
		var out pcs.GroupOut
		if err := a.pcs(ctx, "GetComputeNodeGroup", ref, &out); err != nil {
			return err
		}
		groups[g.name] = out.ComputeNodeGroup.ID
	}
	err = a.ensure(ctx, "GetQueue", "CreateQueue", "queue", map[string]any{"clusterIdentifier": demoCluster, "queueIdentifier": demoQueue}, map[string]any{
		"clusterIdentifier": demoCluster, "queueName": demoQueue,
		"computeNodeGroupConfigurations": []map[string]any{{"computeNodeGroupId": groups[demoGroup]}},
	})
	if err != nil {
		return err
	}
	step("Waiting for the login node")
	if err := s.waitForNode(ctx, d, demoLogin+"-1"); err != nil {
		return err
	}
	idle, err := s.emptyGroup(ctx, d, demoGroup)
	if err != nil {
		return err
	}
	step("A job on the " + map[bool]string{true: "empty cluster", false: "cluster, whose node is up"}[idle] + ": srun -p " + demoQueue + " hostname")
	sh, err := get[app.Shell](ctx, d, "/v1/shell", url.Values{"target": {demoLogin + "-1"}, "argv": {"srun", "-p", demoQueue, "--nodes=1", "hostname"}})
	if err != nil {
		return err
	}
	began := time.Now()
	job := exec.CommandContext(ctx, sh.Command[0], sh.Command[1:]...)
	job.Env = append(os.Environ(), sh.Env...)
	job.Stderr = os.Stderr
	answer, err := job.Output()
	if err != nil {
		return fmt.Errorf("run the job: %w: openpcs explain %s says more", err, demoGroup+"-1")
	}
	took := time.Since(began).Seconds()
	if idle {
		fmt.Fprintf(s.out, "%s\nThe job started an instance, ran on it and ended within %.1f s.\n", trim(answer), took)
	} else {
		fmt.Fprintf(s.out, "%s\nThe job ran on the node that was up and ended within %.1f s; after %s idle it goes.\n", trim(answer), took, demoIdle)
	}
	fmt.Fprint(s.out, `
Next:
  eval "$(openpcs env)"                        # your aws CLI now talks to openpcs
  aws pcs list-clusters
  openpcs connect login-1                      # a shell on the login node
  openpcs connect login-1 -- sinfo
  openpcs nodes; openpcs instances
  openpcs explain node-group-1-1               # what happened, with times
  make down                                    # remove all of it
`)
	return nil
}

// emptyGroup reports whether no node of the demo's group has an instance.
func (s *shell) emptyGroup(ctx context.Context, d *daemon, group string) (bool, error) {
	rows, err := get[[]app.NodeRow](ctx, d, "/v1/nodes", nil)
	for _, r := range rows {
		if r.Cluster == demoCluster && r.Group == group && r.Instance != "" {
			return false, err
		}
	}
	return true, err
}

func trim(b []byte) string {
	for len(b) > 0 && b[len(b)-1] == '\n' {
		b = b[:len(b)-1]
	}
	return string(b)
}

// ensure creates a resource unless it is there, and waits until it is ACTIVE.
func (a *api) ensure(ctx context.Context, getOp, createOp, member string, ref, in map[string]any) error {
	created := false
	for {
		var out map[string]struct {
			Status    string          `json:"status"`
			ErrorInfo []pcs.ErrorInfo `json:"errorInfo"`
		}
		err := a.pcs(ctx, getOp, ref, &out)
		var e *awsapi.Error
		switch {
		case errors.As(err, &e) && e.Code == "ResourceNotFoundException" && !created:
			if err := a.pcs(ctx, createOp, in, nil); err != nil {
				return err
			}
			created = true
			continue
		case err != nil:
			return err
		}
		switch r := out[member]; r.Status {
		case "ACTIVE":
			return nil
		case "CREATE_FAILED", "UPDATE_FAILED", "DELETE_FAILED":
			return fmt.Errorf("%s is %s: %v", member, r.Status, r.ErrorInfo)
		}
		if err := wait(ctx, 20*time.Millisecond); err != nil {
			return fmt.Errorf("wait for the %s: %w", member, err)
		}
	}
}

const ec2Version = "2016-11-15"

// demoTemplate returns the launch template of the demo and makes it first if
// needed.
func (a *api) demoTemplate(ctx context.Context) (string, error) {
	const name = "openpcs-demo"
	id, err := a.ec2Field(ctx, "DescribeLaunchTemplates", url.Values{"LaunchTemplateName.1": {name}}, "launchTemplates>item>launchTemplateId")
	var e *awsapi.Error
	if err == nil || !errors.As(err, &e) || e.Code != "InvalidLaunchTemplateName.NotFoundException" {
		return id, err
	}
	group, err := a.ec2Field(ctx, "DescribeSecurityGroups", url.Values{"Filter.1.Name": {"group-name"}, "Filter.1.Value.1": {"default"}}, "securityGroupInfo>item>groupId")
	if err != nil {
		return "", err
	}
	return a.ec2Field(ctx, "CreateLaunchTemplate", url.Values{
		"LaunchTemplateName": {name}, "LaunchTemplateData.SecurityGroupId.1": {group},
	}, "launchTemplate>launchTemplateId")
}

// demoImage returns the image of the demo's Slurm.
func (a *api) demoImage(ctx context.Context) (string, error) {
	return a.ec2Field(ctx, "DescribeImages", url.Values{
		"Owner.1": {"amazon"}, "Filter.1.Name": {"name"}, "Filter.1.Value.1": {"aws-pcs-sample_ami-*-slurm-" + demoVersion + "-*"},
	}, "imagesSet>item>imageId")
}

// ec2Field calls EC2 and returns the first value at a path of its answer.
func (a *api) ec2Field(ctx context.Context, action string, in url.Values, path string) (string, error) {
	doc, err := a.client.Query(ctx, "ec2", ec2Version, action, in)
	if err != nil {
		return "", err
	}
	value, err := firstAt(doc, path)
	if err != nil {
		return "", fmt.Errorf("read the answer of %s: %w", action, err)
	}
	return value, nil
}

// firstAt returns the first text at a path of element names below the root.
func firstAt(doc []byte, path string) (string, error) {
	dec := xml.NewDecoder(bytes.NewReader(doc))
	var at []string
	for {
		token, err := dec.Token()
		if err != nil {
			return "", fmt.Errorf("nothing at %s", path)
		}
		switch t := token.(type) {
		case xml.StartElement:
			at = append(at, t.Name.Local)
		case xml.EndElement:
			at = at[:len(at)-1]
		case xml.CharData:
			if len(at) > 1 && strings.Join(at[1:], ">") == path {
				return string(t), nil
			}
		}
	}
}

// waitForNode waits until a node has a running instance that Slurm sees.
func (s *shell) waitForNode(ctx context.Context, d *daemon, name string) error {
	for {
		rows, err := get[[]app.NodeRow](ctx, d, "/v1/nodes", nil)
		if err != nil {
			return err
		}
		for _, r := range rows {
			if r.Name == name && r.Cluster == demoCluster && r.Instance != "" && r.Status == "IDLE+CLOUD" {
				return nil
			}
		}
		if err := wait(ctx, 50*time.Millisecond); err != nil {
			return fmt.Errorf("wait for the node %s: %w: openpcs explain %s says more", name, err, name)
		}
	}
}

package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/openpcs/openpcs/internal/awsapi"
)

// Calls to the other server are one after the other, as it serves them: so
// many, but no longer than this for each kind.
const (
	besideCalls = 200
	besideLimit = 4 * time.Second
	motoAddress = "127.0.0.1:7332"
)

// besideNames are the calls that both servers have.
var besideNames = []string{
	"ec2 describe-instances by id", "ec2 describe-instances by address", "ec2 describe-instances, 100 a page",
	"ec2 describe-vpcs", "ec2 create-tags", "sts get-caller-identity", "iam list-roles", "secretsmanager list-secrets", "ssm list-commands",
	putLogEvents, filterLogEvents,
}

// besideMoto measures the same calls to openpcs and to moto's server, which
// gets as many instances.
func besideMoto(ctx context.Context, ours *awsapi.Client, r *apiReport, nodes int) error {
	wrapper, err := exec.CommandContext(ctx, "scripts/sid.sh", "path", "moto_server").Output()
	if err != nil {
		return fmt.Errorf("build moto's server: %w", err)
	}
	path := strings.TrimSpace(string(wrapper))
	version, err := exec.CommandContext(ctx, "chroot", filepath.Join(filepath.Dir(path), "root"), "dpkg-query", "-W", "-f", "${Version}", "python3-moto").Output()
	if err != nil {
		return fmt.Errorf("ask for moto's version: %w", err)
	}
	r.Moto = string(version)
	host, port, _ := strings.Cut(motoAddress, ":")
	cmd := exec.Command(path, "-H", host, "-p", port)
	cmd.Env = append(os.Environ(), "MOTO_EC2_LOAD_DEFAULT_AMIS=false")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return err
	}
	defer func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		_ = cmd.Wait()
	}()
	theirs := &awsapi.Client{
		Endpoint: "http://" + motoAddress, Region: ours.Region, Key: awsapi.Key{ID: "AKIAIOSFODNN7EXAMPLE", Secret: "any"},
		HTTP: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 4}},
	}
	began := time.Now()
	for {
		_, err := theirs.Query(ctx, "sts", "2011-06-15", "GetCallerIdentity", nil)
		if err == nil {
			break
		}
		if ctx.Err() != nil || time.Since(began) > time.Minute {
			return fmt.Errorf("wait for moto's server: %w", err)
		}
		time.Sleep(50 * time.Millisecond)
	}
	_, err = theirs.Query(ctx, "ec2", ec2Version, "RunInstances", url.Values{
		"ImageId": {"ami-12345678"}, "MinCount": {strconv.Itoa(nodes)}, "MaxCount": {strconv.Itoa(nodes)}, "InstanceType": {"t3.micro"},
	})
	if err != nil {
		return fmt.Errorf("start moto's instances: %w", err)
	}
	times := map[string][2]stats{}
	for side, client := range []*awsapi.Client{ours, theirs} {
		known, err := instances(ctx, client)
		if err != nil {
			return err
		}
		if err := fillLogs(ctx, client); err != nil {
			return err
		}
		for name, f := range besideCallsOf(client, known) {
			var ms []float64
			limit := time.Now().Add(besideLimit)
			for n := 0; n < besideCalls && (n < 5 || time.Now().Before(limit)); n++ {
				began := time.Now()
				if err := f(ctx, n); err != nil {
					return fmt.Errorf("call %s: %w", name, errors.Join(err, ctx.Err()))
				}
				ms = append(ms, millis(time.Since(began)))
			}
			pair := times[name]
			pair[side] = summarize(ms)
			times[name] = pair
		}
	}
	for name, pair := range times {
		r.Beside[name] = beside{OpenPCS: pair[0], Moto: pair[1], Ratio: math.Round(10*pair[1].Median/pair[0].Median) / 10}
	}
	return nil
}

func besideCallsOf(client *awsapi.Client, known []seen) map[string]func(context.Context, int) error {
	query := func(service, version, action string, in func(n int) url.Values) func(context.Context, int) error {
		return func(ctx context.Context, n int) error {
			_, err := client.Query(ctx, service, version, action, in(n))
			return err
		}
	}
	ec2 := func(action string, in func(n int) url.Values) func(context.Context, int) error {
		return query("ec2", ec2Version, action, in)
	}
	none := func(int) url.Values { return nil }
	at := func(n int) seen { return known[n%len(known)] }
	return map[string]func(context.Context, int) error{
		"ec2 describe-instances by id": ec2("DescribeInstances", func(n int) url.Values { return url.Values{"InstanceId.1": {at(n).ID}} }),
		"ec2 describe-instances by address": ec2("DescribeInstances", func(n int) url.Values {
			return url.Values{"Filter.1.Name": {"private-ip-address"}, "Filter.1.Value.1": {at(n).Address}}
		}),
		"ec2 describe-instances, 100 a page": ec2("DescribeInstances", func(int) url.Values { return url.Values{"MaxResults": {"100"}} }),
		"ec2 describe-vpcs":                  ec2("DescribeVpcs", none),
		"ec2 create-tags": ec2("CreateTags", func(n int) url.Values {
			return url.Values{"ResourceId.1": {at(n).ID}, "Tag.1.Key": {"run"}, "Tag.1.Value": {strconv.Itoa(n)}}
		}),
		"sts get-caller-identity": query("sts", "2011-06-15", "GetCallerIdentity", none),
		"iam list-roles":          query("iam", "2010-05-08", "ListRoles", none),
		"secretsmanager list-secrets": func(ctx context.Context, _ int) error {
			return client.JSON(ctx, "secretsmanager", "secretsmanager", "ListSecrets", "1.1", nil, nil)
		},
		"ssm list-commands": func(ctx context.Context, _ int) error {
			return client.JSON(ctx, "ssm", "AmazonSSM", "ListCommands", "1.1", nil, nil)
		},
		putLogEvents: func(ctx context.Context, _ int) error {
			return logsCall(ctx, client, "PutLogEvents", logBatch("put", time.Now()))
		},
		filterLogEvents: func(ctx context.Context, _ int) error {
			return logsCall(ctx, client, "FilterLogEvents", map[string]any{"logGroupName": "filter", "filterPattern": "rare"})
		},
	}
}

//go:build e2e

package e2e

import (
	"errors"
	"strings"
	"testing"
	"time"
)

// TestLogShipping: a launch names the script by the location that PCS documents,
// and the logs of its node are in the bucket.
func TestLogShipping(t *testing.T) {
	c := shared(t)
	s3(t, "mb", "s3://e2e-logs")
	t.Cleanup(func() { s3(t, "rb", "--force", "s3://e2e-logs") })
	aws(t, "iam", "put-role-policy", "--role-name", "AWSPCS-default", "--policy-name", "e2e-logs", "--policy-document",
		`{"Version":"2012-10-17","Statement":[{"Effect":"Allow","Action":["s3:GetObject","s3:PutObject"],"Resource":"*"}]}`)
	t.Cleanup(func() {
		aws(t, "iam", "delete-role-policy", "--role-name", "AWSPCS-default", "--policy-name", "e2e-logs")
	})
	const name, to = "ships-1", "s3://e2e-logs/nodes/a+b"
	began := time.Now()
	c.lend(t, group{name: "ships", min: 1, max: 1, queue: "ships", actions: actions(t, `{"stages":{"nodeReady":[{"name":"ship logs","arguments":["--s3-uri","`+to+`","--interval","10"],
		"scriptSource":{"scriptLocation":"s3://aws-pcs-repo-`+region+`/aws-pcs-node-lifecycle-scripts/configure-cloudwatch-logs-v1.0.0.sh"}}]}}`)})
	c.waitNode(t, name, launchLimit, "up", node.up)
	c.scriptsDone(t, name, began)
	i := c.instance(t, name)
	place := to + "/" + c.id + "/" + name + "/" + i.ID
	executor := place + lifecycleDir + "/executor.log"
	shipped := func(object, text string) func() error {
		return func() error { return contains(awsRun("s3", "cp", object, "-"), text) }
	}
	// The script's own end is written when it has run.
	eventually(t, time.Minute, "the logs are shipped by the timer", shipped(executor, `"message":"script completed"`))
	// From here on nothing is shipped by the timer, in this boot and the next.
	const program = "/usr/local/sbin/openpcs-ship-logs"
	on := func(script string) result { return c.connect(name, "bash", "-c", script) }
	const quiet = "systemctl disable --now --quiet openpcs-ship-logs.timer && systemctl stop openpcs-ship-logs.service"
	succeed(t, on(quiet+" && "+program+" --once --s3-uri "+to))
	listing := s3(t, "ls", "--recursive", to)
	for _, path := range []string{"/var/log/amazon/pcs/bootstrap.log", lifecycleDir + "/executor.log", lifecycleDir + "/nodeReady/ship logs.log", "/var/log/slurm/slurmd.log"} {
		must(t, strings.Contains(listing+"\n", " "+strings.TrimPrefix(place, "s3://e2e-logs/")+path+"\n"), "%s is missing in %s", path, listing)
	}
	matches(t, "the script's log", s3(t, "cp", place+lifecycleDir+"/nodeReady/ship logs.log", "-"), `\nconfigure-cloudwatch-logs: shipped [34] logs to s3://e2e-logs/nodes/a\+b, and looks for new ones every 10 s\n\[end ship logs exit=0 @ \d+\]$`)

	s3(t, "rm", executor)
	succeed(t, on(program+" --once --s3-uri "+to))
	r := awsRun("s3", "ls", executor)
	must(t, r.code != 0, "what did not change is sent again: %s", r)
	succeed(t, on("touch "+lifecycleDir+"/executor.log && "+program+" --once --s3-uri "+to))
	must(t, shipped(executor, "script completed")() == nil, "what changed is not sent")

	aws(t, "s3api", "put-bucket-policy", "--bucket", "e2e-logs", "--policy",
		`{"Version":"2012-10-17","Statement":[{"Effect":"Deny","Principal":"*","Action":"s3:PutObject","Resource":"arn:aws:s3:::e2e-logs/denied/*"}]}`)
	for _, tt := range []struct {
		args string
		code int
		says string
	}{
		{"--log-group-name /aws/pcs/x", 2, "with --s3-uri s3://BUCKET/PREFIX"},
		{"--s3-uri s3://e2e-nothing", 1, "the logs cannot go to s3://e2e-nothing: S3 says: NoSuchBucket: "},
		{"--s3-uri s3://e2e-logs/denied", 1, "explicit deny in a resource-based policy"},
	} {
		r := on(program + " " + tt.args)
		must(t, r.code == tt.code && strings.Contains(r.errOut, tt.says), "%s: %s", tt.args, r)
	}
	must(t, on("grep -l denied /etc/systemd/system/openpcs-ship-logs*").code != 0, "what was refused is installed")

	t.Run("away", func(t *testing.T) {
		must(t, serving.stop() == nil, "stop the control plane")
		r := incus("exec", "--project", project, i.ID, "--", "bash", "-c", program+" --interval 20 --s3-uri "+to+" && "+quiet)
		must(t, serve() == nil, "start the control plane")
		must(t, r.code == 0 && strings.Contains(r.out, "nothing is shipped yet: ") && strings.Contains(r.out, "tried again every 20 s"), "while nothing answers: %s", r)
	})
	t.Run("last", func(t *testing.T) {
		succeed(t, on("echo last words >>"+lifecycleDir+"/executor.log"))
		must(t, shipped(executor, "last words")() != nil, "it is shipped already")
		c.reboot(t, name)
		must(t, on("systemctl is-active openpcs-ship-logs.timer").code != 0, "the timer runs")
		if err := shipped(executor, "last words")(); err != nil {
			t.Error(errors.Join(errors.New("the last lines of a boot are not shipped"), err), on("journalctl -u 'openpcs-ship-logs*' --no-pager").out)
		}
	})
}

//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/openpcs/openpcs/internal/metrics"
)

// slurmPages are where slurmctld tells its metrics.
var slurmPages = []string{"jobs", "nodes", "partitions", "jobs-users-accts", "scheduler"}

// endpoint is where the controller of the cluster is, as the API tells.
func (c *cluster) endpoint(t *testing.T) (address string) {
	t.Helper()
	return aws(t, "pcs", "get-cluster", "--cluster-identifier", c.id,
		"--query", "cluster.endpoints[?type=='SLURMCTLD'].[join(':',[privateIpAddress,port])] | [0][0]", "--output", "text")
}

// get reads a page without a key.
func get(url string) (code int, body string, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, "", err
	}
	req.Close = true // slurmctld is another process after a reconfigure
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	return answer.StatusCode, string(text), err
}

// withHTTP switches slurmctld's endpoint on for one test.
func (c *cluster) withHTTP(t *testing.T) {
	t.Helper()
	t.Cleanup(func() { c.settings(t, "update-cluster", "", "", "[]") })
	c.settings(t, "update-cluster", "", "", `[{"parameterName":"CommunicationParameters","parameterValue":"enable_http"}]`)
	eventually(t, patience, "slurmctld answers HTTP", func() error {
		code, body, err := get("http://" + c.endpoint(t) + "/metrics/jobs")
		if err == nil && code != http.StatusOK {
			err = fmt.Errorf("%d: %s", code, body)
		}
		return err
	})
}

// TestM7_OpenMetrics: slurmctld's metrics are off until enable_http asks for
// them, through the API and PCS's way, and off again without it.
func TestM7_OpenMetrics(t *testing.T) {
	c := shared(t)
	at := c.endpoint(t)
	closed := func() {
		t.Helper()
		eventually(t, patience, "slurmctld does not speak HTTP", func() error {
			if code, body, err := get("http://" + at + "/metrics"); err == nil {
				return fmt.Errorf("it answers %d: %s", code, clip(body))
			}
			return nil
		})
	}
	closed()
	code, message := awsRefused(t, "pcs", "update-cluster", "--cluster-identifier", c.id,
		"--slurm-configuration", `{"slurmCustomSettings":[{"parameterName":"MetricsType","parameterValue":"metrics/x"}]}`)
	must(t, code == "ValidationException" && strings.Contains(message, "metrics/openmetrics"), "another type: %s: %s", code, message)
	t.Run("on", func(t *testing.T) {
		c.withHTTP(t)
		c.powerUp(t, "queue-1", "node-1") // users and accounts show with their first job
		var names []string
		for _, page := range slurmPages {
			code, body, err := get("http://" + at + "/metrics/" + page)
			must(t, err == nil && code == http.StatusOK && (strings.Contains(body, "\nslurm_") || page == "jobs-users-accts"), "%s: %d %v:\n%s", page, code, err, clip(body))
			for line := range strings.Lines(body) {
				if rest, ok := strings.CutPrefix(line, "# TYPE "); ok {
					name, _, _ := strings.Cut(rest, " ")
					names = append(names, name)
				}
			}
		}
		// What the dashboard uses of Slurm is in this list.
		for _, name := range slurmMetrics(t) {
			must(t, slices.Contains(names, name), "slurmctld %s has no %s: it has\n%s", version, name, strings.Join(names, "\n"))
		}
		if out := os.Getenv("OPENPCS_E2E_SLURM_METRICS"); out != "" { // to write the list anew
			slices.Sort(names)
			if err := os.WriteFile(out, []byte(strings.Join(slices.Compact(names), "\n")+"\n"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		// With PrivateData slurmctld answers root and its own user alone, who
		// would have to show a token.
		c.settings(t, "update-cluster", "", "", `[{"parameterName":"CommunicationParameters","parameterValue":"enable_http"},{"parameterName":"PrivateData","parameterValue":"jobs"}]`)
		eventually(t, patience, "slurmctld keeps its metrics to itself", func() error {
			code, body, err := get("http://" + at + "/metrics/jobs")
			if err == nil && (code < 400 || strings.Contains(body, "slurm_jobs")) {
				err = fmt.Errorf("it answers %d: %s", code, clip(body))
			}
			t.Logf("with PrivateData: %d %s %v", code, clip(body), err)
			return err
		})
	})
	closed()
}

// slurmMetrics are names of Slurm's metrics that are known to be there.
func slurmMetrics(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile("../../deploy/grafana/slurm-26.05.txt")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(text))
}

// prometheus is a real one, with a configuration like deploy/prometheus's.
type prometheus struct{ url string }

// tool returns a program of Debian's package prometheus.
func tool(t *testing.T, name string) string {
	t.Helper()
	r := succeed(t, runFor(5*time.Minute, nil, "../../scripts/sid.sh", "path", name))
	return strings.TrimSpace(r.out)
}

func startPrometheus(t *testing.T, config string) prometheus {
	t.Helper()
	dir := t.TempDir()
	file := filepath.Join(dir, "prometheus.yml")
	if err := os.WriteFile(file, []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	succeed(t, runFor(time.Minute, nil, tool(t, "promtool"), "check", "config", file))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	_ = l.Close()
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(tool(t, "prometheus"), "--config.file="+file, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+address)
	cmd.Stdout, cmd.Stderr, cmd.Dir = log, log, dir
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case <-ended:
		case <-time.After(patience):
			_ = cmd.Process.Kill()
			<-ended
		}
		_ = log.Close()
		if t.Failed() {
			t.Log(tail(log.Name(), 30))
		}
	})
	p := prometheus{"http://" + address}
	eventually(t, time.Minute, "Prometheus is ready", func() error {
		select {
		case <-ended:
			return final{errors.New("it ended: " + tail(log.Name(), 10))}
		default:
		}
		code, body, err := get(p.url + "/-/ready")
		if err == nil && code != http.StatusOK {
			err = fmt.Errorf("%d %s", code, body)
		}
		return err
	})
	return p
}

// query waits until Prometheus has an answer to an expression, and returns how
// many series that has.
func (p prometheus) query(t *testing.T, expression string) (series int) {
	t.Helper()
	eventually(t, time.Minute, "Prometheus has "+expression, func() error {
		code, body, err := get(p.url + "/api/v1/query?query=" + url.QueryEscape(expression))
		var answer struct {
			Data struct{ Result []json.RawMessage }
		}
		if err == nil {
			err = json.Unmarshal([]byte(body), &answer)
		}
		if series = len(answer.Data.Result); err == nil && series == 0 {
			err = fmt.Errorf("it has none: %d %s", code, clip(body))
		}
		return err
	})
	return series
}

// deliverScheduler has the cluster's scheduler log go to a log group of a name,
// for one test.
func (c *cluster) deliverScheduler(t *testing.T, name string) {
	t.Helper()
	arn := aws(t, "pcs", "get-cluster", "--cluster-identifier", c.id, "--query", "cluster.arn", "--output", "text")
	aws(t, "logs", "create-log-group", "--log-group-name", name)
	t.Cleanup(func() { aws(t, "logs", "delete-log-group", "--log-group-name", name) })
	group := aws(t, "logs", "describe-log-groups", "--log-group-name-prefix", name, "--query", "logGroups[0].logGroupArn", "--output", "text")
	destination := aws(t, "logs", "put-delivery-destination", "--name", name, "--delivery-destination-type", "CWL",
		"--delivery-destination-configuration", "destinationResourceArn="+group, "--query", "deliveryDestination.arn", "--output", "text")
	t.Cleanup(func() { aws(t, "logs", "delete-delivery-destination", "--name", name) })
	aws(t, "logs", "put-delivery-source", "--name", name, "--resource-arn", arn, "--log-type", "PCS_SCHEDULER_LOGS")
	t.Cleanup(func() { aws(t, "logs", "delete-delivery-source", "--name", name) })
	id := aws(t, "logs", "create-delivery", "--delivery-source-name", name, "--delivery-destination-arn", destination, "--query", "delivery.id", "--output", "text")
	t.Cleanup(func() { aws(t, "logs", "delete-delivery", "--id", id) })
}

// TestPrometheusScrapes: a real Prometheus reads openpcs and slurmctld, by the
// configuration that is in deploy/, and takes every line of both.
func TestPrometheusScrapes(t *testing.T) {
	c := shared(t)
	c.deliverScheduler(t, "measured")
	c.powerUp(t, "queue-1", "node-1")
	c.withHTTP(t)
	_, own, err := get("http://" + measured + "/metrics")
	must(t, err == nil, "read the metrics of openpcs: %v", err)
	r := succeed(t, feed(time.Minute, own, nil, tool(t, "promtool"), "check", "metrics"))
	must(t, strings.TrimSpace(r.out+r.errOut) == "", "promtool complains: %s", r)
	onSocket := succeed(t, run(nil, "curl", "--silent", "--unix-socket", filepath.Join(stateDir, "openpcs.sock"), "http://openpcs/metrics"))
	must(t, strings.Contains(onSocket.out, "openpcs_build_info"), "the control socket has %s", onSocket)

	sample, err := os.ReadFile("../../deploy/prometheus/prometheus.yml")
	if err != nil {
		t.Fatal(err)
	}
	config := strings.NewReplacer("scrape_interval: 15s", "scrape_interval: 1s", metricsDefault, measured, "10.77.16.4:6817", c.endpoint(t)).Replace(string(sample))
	must(t, strings.Contains(config, measured) && strings.Contains(config, c.endpoint(t)) && strings.Contains(config, "interval: 1s"), "the sample has other addresses:\n%s", config)
	p := startPrometheus(t, config)
	for _, expression := range []string{
		`openpcs_build_info`,
		`openpcs_nodes{cluster="` + c.id + `",state="up"} >= 1`,
		`openpcs_slurm_nodes{cluster="` + c.id + `",state="idle"} >= 1`,
		`openpcs_launches_total{stage="ready"} >= 1`,
		`histogram_quantile(0.5, openpcs_launch_seconds_bucket{stage="ready"}) > 0`,
		`openpcs_api_requests_total{service="pcs",operation="UpdateCluster",status="200"} >= 1`,
		`openpcs_planner_passes_total{result="done"} >= 1`,
		`openpcs_cluster_info{cluster="` + c.id + `",name="shared",version="` + version + `"}`,
		`slurm_jobs`, `slurm_nodes >= 8`, `slurm_partitions`, `slurm_schedule_cycle_cnt`, `slurm_node_cpus{node="node-1"}`,
	} {
		p.query(t, expression)
	}
	p.query(t, fmt.Sprintf("count(up == 1) == %d", 1+len(slurmPages)))
	p.query(t, `openpcs_delivery_records_total{cluster="`+c.id+`",log_name="slurmctld",destination="CWL"} >= 1`)
	p.query(t, `openpcs_journal_records_total{cluster="`+c.id+`",log_type="PCS_SCHEDULER_AUDIT_LOGS",log_name="slurmctld"} >= 1`)
	// Every metric of the table is there.
	for _, m := range metrics.All() {
		name := m.Name
		if m.Kind == metrics.Histogram {
			name += "_count"
		}
		p.query(t, name)
	}
}

// metricsDefault is where the sample says that openpcs is.
const metricsDefault = "127.0.0.1:7302"

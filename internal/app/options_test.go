package app_test

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/openpcs/openpcs/internal/app"
	"github.com/openpcs/openpcs/internal/cgroup"
)

// clear takes the surroundings' settings away.
func clearEnv(t *testing.T) {
	t.Helper()
	for _, name := range []string{"SITE", "STATE", "LISTEN", "REGION", "ACCOUNT", "SUBNET", "RESUME_TIMEOUT", "TLS", "TLS_CERT", "TLS_KEY", "LIMITS", "FAULTS", "CRASH_AT", "S3_ENDPOINT", "S3_REGION", "S3_CREDENTIALS", "BREAKER", "LOG_RETENTION", "LOG_LIMIT", "DELIVERY_INTERVAL", "DELIVERY_KEEP", "LOGS_ENDPOINT", "LOGS_CREDENTIALS", "FIREHOSE_ENDPOINT", "FIREHOSE_CREDENTIALS"} {
		t.Setenv("OPENPCS_"+name, "")
	}
}

func TestDefaults(t *testing.T) {
	clearEnv(t)
	o, err := app.FromEnvironment()
	if err != nil {
		t.Fatal(err)
	}
	want := app.Options{
		StateDir: "/var/lib/openpcs", Listen: "127.0.0.1:7300",
		Metrics: "127.0.0.1:7302", Subnet: netip.MustParsePrefix("10.77.0.0/16"),
		Region: "ap-northeast-1", Account: "000000000000", ResumeTimeout: 30 * time.Minute, Limits: cgroup.Auto,
		Breaker: 5, LogRetention: 14 * 24 * time.Hour, LogLimit: 1 << 30,
		Delivery: app.DeliveryOptions{Interval: 5 * time.Minute, Keep: 24 * time.Hour},
	}
	if o != want {
		t.Errorf("options = %+v\nwant      %+v", o, want)
	}
	if o.Socket() != "/var/lib/openpcs/openpcs.sock" || o.LogFile() != "/var/lib/openpcs/serve.log" || o.PIDFile() != "/var/lib/openpcs/serve.pid" {
		t.Errorf("paths are %s %s %s", o.Socket(), o.LogFile(), o.PIDFile())
	}
}

func TestFromEnvironment(t *testing.T) {
	for _, tt := range []struct {
		name, value string
		ok          bool
	}{
		{"SITE", "e2e", true},
		{"SITE", "abc4567", true},
		{"SITE", "abc45678901", false},
		{"SITE", "E2E", false},
		{"SITE", "a-b", false},
		{"SITE", "a/b", false},
		{"SITE", "a\n", false},
		{"ACCOUNT", "123456789012", true},
		{"ACCOUNT", "12345678901", false},
		{"ACCOUNT", "12345678901x", false},
		{"ACCOUNT", "123456789012\n", false},
		{"REGION", "us-east-1", true},
		{"REGION", "us-gov-west-1", true},
		{"REGION", "tokyo", false},
		{"REGION", "us-east-1; rm -rf /", false},
		{"REGION", "us-east-1'", false},
		{"TLS", "auto", true},
		{"TLS", "yes", false},
		{"TLS_CERT", "/tmp/cert.pem", false}, // without a key
		{"TLS_KEY", "/tmp/key.pem", false},
		{"STATE", "/tmp/x", true},
		{"STATE", "relative", false},
		{"STATE", "./x", false},
		{"SUBNET", "10.88.0.0/16", true},
		{"SUBNET", "172.16.0.0/18", true},
		{"SUBNET", "10.0.0.0/8", true},
		{"SUBNET", "10.77.0.0/19", false},
		{"SUBNET", "10.77.1.0/16", false},
		{"SUBNET", "10.77.0.0", false},
		{"SUBNET", "fd00::/16", false},
		{"SUBNET", "x", false},
		{"LIMITS", "on", true},
		{"LIMITS", "off", true},
		{"LIMITS", "yes", false},
		{"S3_ENDPOINT", "https://s3.example.com", false}, // without credentials
		{"S3_CREDENTIALS", "/etc/key", false},            // for nothing
		{"S3_REGION", "us-east-1", false},
		{"BREAKER", "off", true},
		{"BREAKER", "0", true},
		{"BREAKER", "1", true},
		{"BREAKER", "-1", false},
		{"BREAKER", "on", false},
		{"BREAKER", "1001", false},
		{"LOG_RETENTION", "1h", true},
		{"LOG_RETENTION", "30d", true},
		{"LOG_RETENTION", "59m", false},
		{"LOG_RETENTION", "14", false},
		{"LOG_RETENTION", "-1d", false},
		{"LOG_RETENTION", "100000d", false},
		{"LOG_LIMIT", "16M", true},
		{"LOG_LIMIT", "2G", true},
		{"LOG_LIMIT", "1024", false},
		{"LOG_LIMIT", "15M", false},
		{"LOG_LIMIT", "-1G", false},
		{"LOG_LIMIT", "9999999999999G", false},
		{"DELIVERY_INTERVAL", "1s", true},
		{"DELIVERY_INTERVAL", "1h", true},
		{"DELIVERY_INTERVAL", "900ms", false},
		{"DELIVERY_INTERVAL", "61m", false},
		{"DELIVERY_INTERVAL", "5", false},
		{"DELIVERY_KEEP", "7d", true},
		{"DELIVERY_KEEP", "1m", false},
		{"LOGS_ENDPOINT", "https://logs.example.com", false}, // without credentials
		{"LOGS_CREDENTIALS", "/etc/key", false},              // for nothing
		{"FIREHOSE_ENDPOINT", "https://firehose.example.com", false},
		{"FIREHOSE_CREDENTIALS", "/etc/key", false},
		{"RESUME_TIMEOUT", "5", true},
		{"RESUME_TIMEOUT", "65533", true},
		{"RESUME_TIMEOUT", "4", false},
		{"RESUME_TIMEOUT", "65534", false},
		{"RESUME_TIMEOUT", "-1", false},
		{"RESUME_TIMEOUT", "30m", false},
		{"RESUME_TIMEOUT", "1e3", false},
		{"METRICS", "off", true},
		{"METRICS", "127.0.0.1:9000", true},
		{"METRICS", "[::1]:9000", true},
		{"METRICS", "on", false},
		{"METRICS", "127.0.0.1", false},
		{"METRICS", "127.0.0.1:", false},
	} {
		t.Run(tt.name+"="+tt.value, func(t *testing.T) {
			clearEnv(t)
			t.Setenv("OPENPCS_"+tt.name, tt.value)
			_, err := app.FromEnvironment()
			switch {
			case tt.ok && err != nil:
				t.Error(err)
			case !tt.ok && err == nil:
				t.Error("accepted")
			case !tt.ok && !strings.Contains(err.Error(), "OPENPCS_"+tt.name):
				t.Errorf("the error %q does not name the variable", err)
			}
		})
	}
}

func TestSitesLieSideBySide(t *testing.T) {
	clearEnv(t)
	t.Setenv("OPENPCS_SITE", "one")
	t.Setenv("OPENPCS_STATE", "/srv/one")
	o, err := app.FromEnvironment()
	if err != nil || o.Site != "one" || !strings.HasPrefix(o.Socket(), "/srv/one/") {
		t.Errorf("options = %+v, %v", o, err)
	}
	// Of the things with one address each, the usual site has the default.
	if o.Metrics != "" {
		t.Errorf("the metrics are at %s: another site's may be there", o.Metrics)
	}
	t.Setenv("OPENPCS_SITE", "")
	if o, err = app.FromEnvironment(); err != nil || o.Metrics != app.DefaultMetrics {
		t.Errorf("the usual site's metrics are at %q, %v", o.Metrics, err)
	}
}

// Package app wires the control plane: Options, New, Start, Stop. Tests embed
// it; the command line is a thin shell around it.
package app

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/openpcs/openpcs/internal/cgroup"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/s3"
)

// Options say where a control plane keeps its things. Several with different
// sites live side by side on one machine.
type Options struct {
	// Site tells control planes on one machine apart; the usual one is empty.
	Site     string
	StateDir string
	Listen   string       // address of the API on the host
	Metrics  string       // address of /metrics, without a key; empty: the control socket alone
	Subnet   netip.Prefix // addresses of the instances
	Region   string       // what openpcs env exports
	Account  string
	Version  string // of the program
	// ResumeTimeout is how long a node may take to come up.
	ResumeTimeout time.Duration
	// Limits says how far processors and memory of instance types bind.
	Limits cgroup.Mode
	// Breaker is after how many failed starts in a row a group tries with one
	// launch at a time, ever more slowly; 0: never.
	Breaker int
	// LogRetention is how long histories, the scaling log and the logs of
	// instances that are gone are kept; LogLimit is how many bytes the last may
	// take.
	LogRetention time.Duration
	LogLimit     int64
	// Faults lets users have things go wrong, to see what happens then.
	Faults bool
	// CrashAt is the point (see fault.Seam) at which the process kills itself,
	// to see that nothing is lost; only with Faults.
	CrashAt string
	// TLSCert and TLSKey are files by which the API on the host is served with
	// TLS; TLSAuto has openpcs make a certificate of its own.
	TLSCert, TLSKey string
	TLSAuto         bool
	// S3Endpoint is the address of an S3 that has the buckets, S3Region its region,
	// and S3Credentials the file with its keys; empty: the buckets are below the
	// state folder.
	S3Endpoint, S3Region, S3Credentials string
	Delivery                            DeliveryOptions
	Log                                 *slog.Logger
}

// DefaultMetrics is where the metrics of the usual site are: for programs of
// this machine.
const DefaultMetrics = "127.0.0.1:7302"

var (
	sitePattern    = regexp.MustCompile(`^[a-z0-9]{0,7}$`)
	accountPattern = regexp.MustCompile(`^[0-9]{12}$`)
	regionPattern  = regexp.MustCompile(`^[a-z]{2}(-[a-z]+)+-[0-9]+$`)
)

// FromEnvironment returns the options that OPENPCS_* variables give, with
// the documented defaults for those that are not set.
func FromEnvironment() (Options, error) {
	get := func(name, byDefault string) string {
		if v := os.Getenv("OPENPCS_" + name); v != "" {
			return v
		}
		return byDefault
	}
	o := Options{
		Site:     get("SITE", ""),
		StateDir: get("STATE", "/var/lib/openpcs"),
		Listen:   get("LISTEN", "127.0.0.1:7300"),
		Region:   get("REGION", "ap-northeast-1"),
		Account:  get("ACCOUNT", "000000000000"),
	}
	byDefault := "off" // other sites of the machine cannot all have one port
	if o.Site == "" {
		byDefault = DefaultMetrics
	}
	if o.Metrics = get("METRICS", byDefault); o.Metrics == "off" {
		o.Metrics = ""
	} else if _, port, err := net.SplitHostPort(o.Metrics); err != nil || port == "" {
		return o, fmt.Errorf("OPENPCS_METRICS: %q is not off or an address and port, such as %s", o.Metrics, DefaultMetrics)
	}
	switch get("TLS", "") {
	case "":
	case "auto":
		o.TLSAuto = true
	default:
		return o, fmt.Errorf("OPENPCS_TLS: %q is not auto; for a certificate of yours set OPENPCS_TLS_CERT and OPENPCS_TLS_KEY", os.Getenv("OPENPCS_TLS"))
	}
	o.TLSCert, o.TLSKey = get("TLS_CERT", ""), get("TLS_KEY", "")
	switch {
	case (o.TLSCert == "") != (o.TLSKey == ""):
		return o, fmt.Errorf("OPENPCS_TLS_CERT and OPENPCS_TLS_KEY: set both or none")
	case o.TLSCert != "" && o.TLSAuto:
		return o, fmt.Errorf("OPENPCS_TLS=auto makes a certificate: do not set OPENPCS_TLS_CERT as well")
	case o.TLSCert != "" && (!filepath.IsAbs(o.TLSCert) || !filepath.IsAbs(o.TLSKey)):
		return o, fmt.Errorf("OPENPCS_TLS_CERT and OPENPCS_TLS_KEY: %q and %q must be absolute paths", o.TLSCert, o.TLSKey)
	}
	o.S3Endpoint, o.S3Region, o.S3Credentials = get("S3_ENDPOINT", ""), get("S3_REGION", ""), get("S3_CREDENTIALS", "")
	switch {
	case o.S3Endpoint == "" && (o.S3Region != "" || o.S3Credentials != ""):
		return o, errors.New("OPENPCS_S3_REGION and OPENPCS_S3_CREDENTIALS: they are about OPENPCS_S3_ENDPOINT, which is not set")
	case o.S3Endpoint != "" && !filepath.IsAbs(o.S3Credentials):
		return o, fmt.Errorf("OPENPCS_S3_CREDENTIALS: %q is not the absolute path of a file with the keys of OPENPCS_S3_ENDPOINT", o.S3Credentials)
	case o.S3Endpoint != "" && o.S3Region == "":
		o.S3Region = o.Region
	}
	subnet := get("SUBNET", "10.77.0.0/16")
	prefix, err := netip.ParsePrefix(subnet)
	if err != nil || !prefix.Addr().Is4() || prefix.Bits() > 18 || prefix != prefix.Masked() {
		return o, fmt.Errorf("OPENPCS_SUBNET: %q is not an IPv4 network of at most /18, such as 10.77.0.0/16", subnet)
	}
	o.Subnet = prefix
	seconds, err := strconv.Atoi(get("RESUME_TIMEOUT", "1800"))
	if err != nil || seconds < 5 || seconds > 65533 {
		return o, fmt.Errorf("OPENPCS_RESUME_TIMEOUT: %q is not 5 to 65533 seconds", get("RESUME_TIMEOUT", ""))
	}
	o.ResumeTimeout = time.Duration(seconds) * time.Second
	if breaker := get("BREAKER", strconv.Itoa(fleet.DefaultBreaker)); breaker != "off" {
		if o.Breaker, err = strconv.Atoi(breaker); err != nil || o.Breaker < 0 || o.Breaker > 1000 {
			return o, fmt.Errorf("OPENPCS_BREAKER: %q is not off or 0 to 1000 failed starts in a row", breaker)
		}
	}
	if o.LogRetention, err = parseAge(get("LOG_RETENTION", "14d")); err != nil {
		return o, fmt.Errorf("OPENPCS_LOG_RETENTION: %w", err)
	}
	if o.LogLimit, err = parseSize(get("LOG_LIMIT", "1G")); err != nil {
		return o, fmt.Errorf("OPENPCS_LOG_LIMIT: %w", err)
	}
	if o.Delivery, err = deliveryFromEnvironment(get); err != nil {
		return o, err
	}
	faults := get("FAULTS", "off")
	o.Faults, o.CrashAt = faults == "on", get("CRASH_AT", "")
	if o.Limits, err = cgroup.ParseMode(get("LIMITS", string(cgroup.Auto))); err != nil {
		return o, fmt.Errorf("OPENPCS_LIMITS: %w", err)
	}
	switch {
	case faults != "on" && faults != "off":
		return o, fmt.Errorf("OPENPCS_FAULTS: %q is not on or off", faults)
	case o.CrashAt != "" && !o.Faults:
		return o, errors.New("OPENPCS_CRASH_AT: works with OPENPCS_FAULTS=on alone")
	case !sitePattern.MatchString(o.Site):
		return o, fmt.Errorf("OPENPCS_SITE: %q is not up to 7 lower-case letters and digits", o.Site)
	case !accountPattern.MatchString(o.Account):
		return o, fmt.Errorf("OPENPCS_ACCOUNT: %q is not 12 digits", o.Account)
	case !regionPattern.MatchString(o.Region):
		return o, fmt.Errorf("OPENPCS_REGION: %q is not a region such as ap-northeast-1", o.Region)
	case !filepath.IsAbs(o.StateDir):
		return o, fmt.Errorf("OPENPCS_STATE: %q is not an absolute path", o.StateDir)
	}
	return o, nil
}

// parseAge reads a time such as 14d or 36h.
func parseAge(text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if days, ok := strings.CutSuffix(text, "d"); ok {
		var n int
		n, err = strconv.Atoi(days)
		d = time.Duration(min(n, 10_000)) * 24 * time.Hour
	}
	if err != nil || d < time.Hour || d > 3650*24*time.Hour {
		return 0, fmt.Errorf("%q is not 1h to 3650d, such as 14d or 36h", text)
	}
	return d, nil
}

// parseSize reads a number of bytes such as 512M or 2G.
func parseSize(text string) (int64, error) {
	for suffix, unit := range map[string]int64{"M": 1 << 20, "G": 1 << 30} {
		number, ok := strings.CutSuffix(text, suffix)
		if !ok {
			continue
		}
		if n, err := strconv.ParseInt(number, 10, 32); err == nil && n > 0 && n*unit >= 16<<20 {
			return n * unit, nil
		}
	}
	return 0, fmt.Errorf("%q is not 16M or more, such as 512M or 2G", text)
}

// s3Endpoint is the S3 elsewhere that has the buckets, if there is one.
func (o Options) s3Endpoint() (*s3.Endpoint, error) {
	if o.S3Endpoint == "" {
		return nil, nil
	}
	e, err := s3.NewEndpoint(o.S3Endpoint, o.S3Region, o.S3Credentials)
	if err != nil {
		return nil, fmt.Errorf("use OPENPCS_S3_ENDPOINT: %w", err)
	}
	return e, nil
}

// Enforcement is what is done about limits with these options on this host.
func (o Options) Enforcement() (cgroup.Enforcement, error) {
	host, err := cgroup.Read()
	if err != nil {
		return cgroup.Enforcement{}, err
	}
	machine, err := cgroup.ThisMachine()
	return cgroup.Decide(o.Limits, host, machine), err
}

// Socket is where people's commands reach the control plane.
func (o Options) Socket() string { return filepath.Join(o.StateDir, "openpcs.sock") }

// LogFile is where a control plane in the background writes its log.
func (o Options) LogFile() string { return filepath.Join(o.StateDir, "serve.log") }

// PIDFile has the process id of a control plane in the background.
func (o Options) PIDFile() string { return filepath.Join(o.StateDir, "serve.pid") }

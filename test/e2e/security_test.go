//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	_ "modernc.org/sqlite" // to read the state file

	"github.com/openpcs/openpcs/internal/awsapi"
)

// metadataURL is the metadata service as instances reach it.
const metadataURL = "http://169.254.169.254"

// inside is an instance as an attacker in it has it: its network, and root.
type inside struct {
	id, address string
	pid         int // of its init, on the host
}

func enter(t *testing.T, id, address string) inside {
	t.Helper()
	r := succeed(t, incus("query", "/1.0/instances/"+id+"/state?project="+project))
	var state struct{ PID int }
	if err := json.Unmarshal([]byte(r.out), &state); err != nil || state.PID == 0 {
		fail(t, "find the instance's process: %v in %s", err, r)
	}
	return inside{id, address, state.PID}
}

// client speaks HTTP out of the instance's network, from the address if it is
// not empty.
func (i inside) client(from string) *http.Client {
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		runtime.LockOSThread() // for good: the thread ends with this goroutine
		ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", i.pid))
		if err != nil {
			return nil, err
		}
		defer func() { _ = ns.Close() }()
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			return nil, err
		}
		d := net.Dialer{Timeout: 2 * time.Second}
		if from != "" {
			d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(from)}
		}
		return d.DialContext(ctx, network, address)
	}
	return &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: dial}}
}

// do sends a request; headers come in pairs, and Host is one.
func do(c *http.Client, method, url string, headers ...string) (code int, body string, err error) {
	req, err := http.NewRequest(method, url, nil)
	if err != nil {
		return 0, "", err
	}
	for n := 0; n < len(headers); n += 2 {
		req.Header.Set(headers[n], headers[n+1])
		if headers[n] == "Host" {
			req.Host = headers[n+1]
		}
	}
	resp, err := c.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text), err
}

const (
	tokenHeader = "X-aws-ec2-metadata-token"
	ttlHeader   = "X-aws-ec2-metadata-token-ttl-seconds"
)

// session opens one with the metadata service.
func (i inside) session(t *testing.T) string {
	t.Helper()
	code, token, err := do(i.client(""), http.MethodPut, metadataURL+"/latest/api/token", ttlHeader, "60")
	must(t, err == nil && code == http.StatusOK, "open a session from %s: %d %q %v", i.address, code, token, err)
	return token
}

// roleKey is the key of the instance's role, as anybody on it gets it.
func (i inside) roleKey(t *testing.T) (key awsapi.Key) {
	t.Helper()
	code, body, err := do(i.client(""), http.MethodGet, metadataURL+"/latest/meta-data/iam/security-credentials/AWSPCS-default", tokenHeader, i.session(t))
	var c struct {
		AccessKeyId, SecretAccessKey, Token string //nolint:revive // as in the answer
		Expiration                          time.Time
	}
	if err == nil {
		err = json.Unmarshal([]byte(body), &c)
	}
	must(t, err == nil && code == http.StatusOK && c.AccessKeyId != "", "credentials of %s: %d %q %v", i.id, code, body, err)
	return awsapi.Key{ID: c.AccessKeyId, Secret: c.SecretAccessKey, Token: c.Token, Expires: c.Expiration}
}

// api is the API on the bridge, out of the instance.
func (i inside) api(key awsapi.Key) *awsapi.Client {
	_, port, _ := net.SplitHostPort(listen)
	gateway := strings.TrimSuffix(subnet, ".0.0/16") + ".0.1"
	return &awsapi.Client{Endpoint: "http://" + net.JoinHostPort(gateway, port), Region: region, Key: key, HTTP: i.client("")}
}

func register(c *awsapi.Client, cluster string) (secret string, err error) {
	var out struct {
		SharedSecret string `json:"sharedSecret"`
	}
	err = c.JSON(context.Background(), "pcs", "AWSParallelComputingService", "RegisterComputeNodeGroupInstance", "1.0",
		map[string]any{"clusterIdentifier": cluster, "bootstrapId": "security-test"}, &out)
	return out.SharedSecret, err
}

// code is the code of an error of the service.
func code(err error) string {
	var e *awsapi.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return fmt.Sprint(err)
}

// TestSecurity attacks the site as whoever is not trusted: a user of the host,
// root in an instance, an instance of another cluster.
func TestSecurity(t *testing.T) {
	c := shared(t)
	sampler := sampleCommandLines()
	defer sampler.stop()
	c.powerDown(t, "node-1") // its bootstrap is to be seen
	c.powerUp(t, "queue-1", "node-1")
	other := createCluster(t, "other", sharedIdle)
	other.add(t, group{name: "front", min: 1, max: 1})
	other.waitLogin(t)
	defer func() { _ = openpcs("clusters", "delete", "--force", "--yes", other.id) }()
	s := security{
		cluster: c, other: other, sampler: sampler,
		nodeRow: c.instance(t, "node-1"), frontRow: c.instance(t, "front-1"), otherRow: other.instance(t, "front-1"),
	}
	s.node, s.front = enter(t, s.nodeRow.ID, s.nodeRow.Address), enter(t, s.frontRow.ID, s.frontRow.Address)
	s.foreign = enter(t, s.otherRow.ID, s.otherRow.Address)
	all, err := rows[instanceRow]("instances")
	must(t, err == nil, "list instances: %v", err)
	for _, i := range all {
		if i.Name == "slurmctld-primary" && i.Cluster == c.name {
			s.controller = enter(t, i.ID, i.Address)
		}
	}
	must(t, s.controller.id != "", "the controller is not among %v", all)
	for _, step := range []struct {
		name string
		do   func(*testing.T)
	}{
		{"instances_are_unprivileged", s.unprivileged},
		{"instances_have_no_host_path_but_the_clusters", s.mounts},
		{"the_host_is_closed_to_its_other_users", s.hostUsers},
		{"role_keys_are_bound_to_their_instance", s.roleKeys},
		{"clusters_are_kept_apart", s.apart},
		{"the_metadata_service_cannot_be_deceived", s.metadata},
		{"keys_show_nowhere", s.secrets},
		{"keys_end_with_their_instance", s.revoked},
		{"tls", s.tls},
	} {
		t.Run(step.name, step.do)
	}
}

type security struct {
	cluster, other                   *cluster
	sampler                          *commandLines
	nodeRow, frontRow, otherRow      instanceRow
	node, front, foreign, controller inside
	seenKeys                         []awsapi.Key
}

func (s *security) unprivileged(t *testing.T) {
	for _, i := range []inside{s.node, s.front, s.controller} {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", i.pid))
		m := regexp.MustCompile(`(?m)^Uid:\s+(\d+)`).FindSubmatch(status)
		must(t, err == nil && m != nil, "look at the init of %s: %v", i.id, err)
		uid, _ := strconv.Atoi(string(m[1]))
		must(t, uid >= 65536, "root in %s is the user %d of the host", i.id, uid)
		r := succeed(t, openpcs("connect", i.id, "--", "cat", "/proc/self/uid_map"))
		for _, line := range lines(r.out) {
			f := strings.Fields(line)
			must(t, len(f) == 3 && f[1] != "0", "ids of %s are mapped to the host's: %s", i.id, r.out)
		}
		for what, script := range map[string]string{
			"sets a setting of the host's kernel": "echo 1 >/proc/sys/kernel/panic",
			"reads the host's memory":             "head -c 1 /proc/kcore",
			"makes a device node":                 "mknod /root/disk b 7 0 && head -c 1 /root/disk",
			"loads a kernel module":               "echo >/tmp/x.ko; insmod /tmp/x.ko",
			"talks to Incus":                      "test -e /dev/incus -o -e /dev/lxd",
		} {
			if r := openpcs("connect", i.id, "--", "sh", "-c", script); r.code == 0 {
				t.Errorf("root in %s %s: %s", i.id, what, r)
			}
		}
	}
}

func (s *security) mounts(t *testing.T) {
	for i, want := range map[inside]map[string]string{
		s.node:    {"/home": filepath.Join(stateDir, "clusters", s.cluster.id, "home")},
		s.foreign: {"/home": filepath.Join(stateDir, "clusters", s.other.id, "home")},
		s.controller: {
			"/home": filepath.Join(stateDir, "clusters", s.cluster.id, "home"), "/var/spool/slurmctld": filepath.Join(stateDir, "clusters", s.cluster.id, "state"),
			"/var/lib/slurm-accounting": filepath.Join(stateDir, "clusters", s.cluster.id, "accounting"),
		},
	} {
		r := succeed(t, incus("query", "/1.0/instances/"+i.id+"?project="+project))
		var have struct {
			Config  map[string]string            `json:"expanded_config"`
			Devices map[string]map[string]string `json:"expanded_devices"`
		}
		if err := json.Unmarshal([]byte(r.out), &have); err != nil {
			fail(t, "%v in %s", err, r)
		}
		for key, value := range have.Config {
			for _, bad := range []string{"security.privileged", "security.nesting", "security.syscalls.", "raw."} {
				must(t, !strings.HasPrefix(key, bad) || value == "false", "%s has %s=%s", i.id, key, value)
			}
		}
		for name, d := range have.Devices {
			switch {
			case d["type"] == "nic" && d["security.mac_filtering"] == "true" && d["security.ipv4_filtering"] == "true":
			case d["type"] == "disk" && d["path"] == "/" && d["source"] == "":
			case d["type"] == "disk" && want[d["path"]] == d["source"] && d["source"] != "":
				delete(want, d["path"])
			default:
				t.Errorf("%s has the device %s: %v", i.id, name, d)
			}
		}
		must(t, len(want) == 0, "%s lacks %v", i.id, want)
	}
}

// asNobody runs a command as a user of the host who has no part in openpcs.
func asNobody(argv ...string) result {
	return run(siteEnv, append([]string{"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs"}, argv...)...)
}

func (s *security) hostUsers(t *testing.T) {
	// The binary may lie where others cannot go.
	dir, err := os.MkdirTemp("/var/tmp", "openpcs-e2e")
	must(t, err == nil, "%v", err)
	defer func() { _ = os.RemoveAll(dir) }()
	program := filepath.Join(dir, "openpcs")
	text, err := os.ReadFile(binary())
	must(t, errors.Join(err, os.Chmod(dir, 0o755), os.WriteFile(program, text, 0o755)) == nil, "copy the binary: %v", err)
	succeed(t, asNobody(program, "version"))
	for _, args := range [][]string{{"status"}, {"env"}, {"nodes"}, {"logs", s.nodeRow.ID}, {"connect", s.nodeRow.ID, "--", "true"}} {
		r := asNobody(append([]string{program}, args...)...)
		must(t, r.code != 0 && strings.Contains(r.errOut, "only root"), "nobody may: %s", r)
	}
	// Everything but what is meant for others, and the way to it.
	open := map[string]bool{stateDir: true, filepath.Join(stateDir, "tls"): true, filepath.Join(stateDir, "tls", "ca.pem"): true, filepath.Join(stateDir, "tls", "cert.pem"): true}
	count := 0
	err = filepath.WalkDir(stateDir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || open[path] {
			return err
		}
		count++
		if d.IsDir() {
			if r := asNobody("ls", path); r.code == 0 {
				t.Errorf("nobody lists %s: %s", path, r)
			}
			return fs.SkipDir // what is below is closed with it
		}
		if r := asNobody("cat", path); r.code == 0 {
			t.Errorf("nobody reads %s", path)
		}
		if r := asNobody("sh", "-c", ": >>"+path); r.code == 0 {
			t.Errorf("nobody writes %s", path)
		}
		return nil
	})
	must(t, err == nil && count > 5, "looked at %d things in %s: %v", count, stateDir, err)
	if r := asNobody("ls", stateDir); r.code == 0 {
		t.Errorf("nobody lists the state folder: %s", r)
	}
	// A set-uid program that root in an instance makes is out of reach too.
	succeed(t, s.cluster.login("sh", "-c", "cp /bin/id /home/ubuntu/suid && chmod 4755 /home/ubuntu/suid && chmod 755 /home/ubuntu"))
	defer s.cluster.login("sh", "-c", "rm /home/ubuntu/suid; chmod 750 /home/ubuntu")
	suid := filepath.Join(stateDir, "clusters", s.cluster.id, "home/ubuntu/suid")
	_, err = os.Stat(suid)
	must(t, err == nil, "the program is not where it was looked for: %v", err)
	if r := asNobody(suid); r.code == 0 {
		t.Errorf("nobody runs root's program: %s", r)
	}
	// Without a key the API tells nothing.
	for _, service := range []string{"pcs", "ec2", "secretsmanager"} {
		c := awsapi.Client{Endpoint: "http://" + listen, Region: region, Key: awsapi.Key{ID: "AKIAAAAAAAAAAAAAAAAA", Secret: "guessed"}}
		err := c.JSON(context.Background(), service, "x", "ListClusters", "1.0", nil, nil)
		var e *awsapi.Error
		must(t, errors.As(err, &e) && e.Status/100 == 4, "%s with a key that is made up: %v", service, err)
	}
}

func (s *security) roleKeys(t *testing.T) {
	key := s.node.roleKey(t)
	s.seenKeys = append(s.seenKeys, key)
	must(t, time.Until(key.Expires) > 0 && time.Until(key.Expires) <= 6*time.Hour, "the key is good until %s", key.Expires)
	// What every process on the node can do, and why users of one cluster are
	// not kept apart by it.
	secret, err := register(s.node.api(key), s.cluster.id)
	must(t, err == nil && secret != "", "the node registers: %v", err)
	for what, client := range map[string]*awsapi.Client{
		"another instance of the cluster":   s.front.api(key),
		"an instance of another cluster":    s.foreign.api(key),
		"the host":                          {Endpoint: "http://" + listen, Region: region, Key: key},
		"the host, at the API of instances": {Endpoint: s.node.api(key).Endpoint, Region: region, Key: key},
	} {
		_, err := register(client, s.cluster.id)
		must(t, code(err) == "AccessDeniedException", "%s uses the node's key: %v", what, err)
	}
	// And what the role does not allow.
	for op, in := range map[string]map[string]any{
		"ListClusters": {}, "GetCluster": {"clusterIdentifier": s.cluster.id}, "DeleteCluster": {"clusterIdentifier": s.cluster.id},
	} {
		err := s.node.api(key).JSON(context.Background(), "pcs", "AWSParallelComputingService", op, "1.0", in, nil)
		must(t, code(err) == "AccessDeniedException", "a node calls %s: %v", op, err)
	}
}

func (s *security) apart(t *testing.T) {
	key := s.foreign.roleKey(t)
	s.seenKeys = append(s.seenKeys, key)
	_, err := register(s.foreign.api(key), s.other.id)
	must(t, err == nil, "the node of the other cluster registers there: %v", err)
	_, err = register(s.foreign.api(key), s.cluster.id)
	must(t, code(err) == "AccessDeniedException", "a node registers into another cluster: %v", err)
	arn := aws(t, "pcs", "get-cluster", "--cluster-identifier", s.cluster.id, "--query", "cluster.slurmConfiguration.authKey.secretArn", "--output", "text")
	must(t, strings.HasPrefix(arn, "arn:aws:secretsmanager:"), "the key's ARN is %q", arn)
	err = s.foreign.api(key).JSON(context.Background(), "secretsmanager", "secretsmanager", "GetSecretValue", "1.1", map[string]any{"SecretId": arn}, nil)
	must(t, code(err) == "AccessDeniedException", "a node reads another cluster's key: %v", err)

	// The agent on the controller takes no orders without the token.
	agent := "http://" + net.JoinHostPort(s.controller.address, "7301")
	for _, path := range []string{"GET /v1/nodes", "PUT /v1/config", "POST /v1/run"} {
		method, path, _ := strings.Cut(path, " ")
		for _, auth := range []string{"", "Bearer ", "Bearer guessed"} {
			for _, from := range []inside{s.foreign, s.node} {
				code, body, err := do(from.client(""), method, agent+path, "Authorization", auth)
				must(t, err == nil && (code == http.StatusForbidden || code == http.StatusUnauthorized), "%s %s from %s: %d %q %v", method, path, from.address, code, body, err)
			}
		}
	}
	// slurmctld can be reached, and refuses who has another cluster's key.
	script := `for f in /run/slurm/conf/slurm.conf /var/spool/slurmd/conf-cache/slurm.conf /etc/slurm/slurm.conf; do test -e $f && break; done
		sed 's/^SlurmctldHost=.*/SlurmctldHost=slurmctld-primary(` + s.controller.address + `)/; s/^ClusterName=.*/ClusterName=shared/' $f >/tmp/foreign.conf
		grep SlurmctldHost /tmp/foreign.conf
		SLURM_CONF=/tmp/foreign.conf timeout 20 sinfo`
	r := s.other.login("sh", "-c", script)
	must(t, strings.Contains(r.out, s.controller.address), "the configuration was not made: %s", r)
	must(t, r.code != 0 && !strings.Contains(r.out, "queue-1"), "an instance of another cluster asks slurmctld: %s", r)
	matches(t, "what sinfo says", r.errOut, `(?i)auth|credential|protocol`)
	// The key itself is nobody's but Slurm's.
	r = s.cluster.user("cat /etc/slurm/slurm.key")
	must(t, r.code != 0, "a user reads the key: %s", r)
}

func (s *security) metadata(t *testing.T) {
	token := s.node.session(t)
	const credentials = metadataURL + "/latest/meta-data/iam/security-credentials/AWSPCS-default"
	for _, tt := range []struct {
		what    string
		from    inside
		method  string
		url     string
		headers []string
		want    int
	}{
		{"with a session of its own", s.node, "GET", metadataURL + "/latest/meta-data/instance-id", []string{tokenHeader, token}, 200},
		{"without a session", s.node, "GET", credentials, nil, 401},
		{"with another instance's session", s.front, "GET", credentials, []string{tokenHeader, token}, 401},
		{"claiming another address", s.front, "GET", credentials, []string{tokenHeader, token, "X-Forwarded-For", s.node.address}, 403},
		{"through a proxy", s.node, "PUT", metadataURL + "/latest/api/token", []string{ttlHeader, "60", "X-Forwarded-For", "192.0.2.1"}, 403},
		{"by another name", s.node, "GET", metadataURL + "/openpcs/v1/bootstrap", []string{"Host", "rebound.example"}, 403},
		{"a node as the controller", s.node, "GET", metadataURL + "/openpcs/v1/controller", nil, 404},
		{"a node with the controller's address", s.node, "GET", metadataURL + "/openpcs/v1/controller", []string{"X-Real-Ip", s.controller.address}, 404},
		{"the controller as a node", s.controller, "GET", metadataURL + "/openpcs/v1/bootstrap", nil, 404},
		{"a session for the controller", s.controller, "PUT", metadataURL + "/latest/api/token", []string{ttlHeader, "60"}, 404},
	} {
		code, body, err := do(tt.from.client(""), tt.method, tt.url, tt.headers...)
		must(t, err == nil && code == tt.want, "%s: %d %q %v, want %d", tt.what, code, clip(body), err, tt.want)
	}
	// The host is no instance.
	host := &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	if code, body, err := do(host, "GET", metadataURL+"/latest/meta-data/"); err == nil && code == http.StatusOK {
		t.Errorf("the host is answered: %q", body)
	}
	t.Run("forged_addresses", s.forged)
	s.node.session(t) // it still is who it is
}

// forged: root in an instance takes the address of another, or the
// controller's.
func (s *security) forged(t *testing.T) {
	if strings.Contains(tail(serveLog(), 1<<20), "without protection against forged addresses") {
		t.Skip("NOT TESTED: this host's kernel cannot filter bridged traffic, so clusters are not protected from each other's forged addresses (docs/security.md)")
	}
	for what, victim := range map[string]inside{"another cluster's instance": s.foreign, "the controller": s.controller} {
		succeed(t, openpcs("connect", s.node.id, "--", "ip", "address", "add", victim.address+"/32", "dev", "eth0"))
		code, body, err := do(s.node.client(victim.address), "GET", metadataURL+"/openpcs/v1/controller")
		succeed(t, openpcs("connect", s.node.id, "--", "ip", "address", "del", victim.address+"/32", "dev", "eth0"))
		must(t, err != nil, "a node that takes the address of %s is answered: %d %q", what, code, clip(body))
	}
}

// secretsOf reads every secret out of the state file.
func secretsOf(t *testing.T) (found map[string]string) {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+filepath.Join(stateDir, "state.db")+"?mode=ro")
	must(t, err == nil, "%v", err)
	defer func() { _ = db.Close() }()
	rows, err := db.Query(`SELECT kind, id, doc FROM objects WHERE kind IN ('accesskey', 'secret', 'cluster')`)
	must(t, err == nil, "read the state file: %v", err)
	defer func() { _ = rows.Close() }()
	found = map[string]string{}
	kinds := map[string]int{}
	for rows.Next() {
		var kind, id string
		var doc []byte
		must(t, rows.Scan(&kind, &id, &doc) == nil, "read the state file: %v", err)
		var v any
		must(t, json.Unmarshal(doc, &v) == nil, "%s %s is no JSON", kind, id)
		walk(v, func(key, value string) {
			switch strings.ToLower(key) {
			case "secret", "token", "value", "controllertoken":
			default:
				return
			}
			if len(value) < 16 {
				return
			}
			kinds[kind]++
			found[value] = kind + " " + id + " " + key
			if raw, err := base64.StdEncoding.DecodeString(value); err == nil && len(raw) >= 16 {
				found[string(raw)] = kind + " " + id + " " + key + ", decoded"
			}
		})
	}
	must(t, kinds["accesskey"] >= 3 && kinds["secret"] >= 2 && kinds["cluster"] >= 2, "found these secrets only: %v", kinds)
	return found
}

// walk calls f with each text of a JSON value and the key it is under.
func walk(v any, f func(key, value string)) {
	switch v := v.(type) {
	case map[string]any:
		for k, e := range v {
			if s, ok := e.(string); ok {
				f(k, s)
			}
			walk(e, f)
		}
	case []any:
		for _, e := range v {
			walk(e, f)
		}
	}
}

func (s *security) secrets(t *testing.T) {
	texts := map[string]string{}
	add := func(what string, r result) { texts[what] = r.out + r.errOut }
	for _, args := range [][]string{
		{"status"},
		{"status", "--json"},
		{"clusters"},
		{"clusters", "--json"},
		{"groups", s.cluster.id, "--json"},
		{"queues", s.cluster.id, "--json"},
		{"nodes", "--json"},
		{"instances", "--json"},
		{"image", "list", "--json"},
		{"explain", s.cluster.id, "--json"},
		{"explain", s.nodeRow.ID, "--json"},
		{"explain", s.cluster.id + "/node-1"},
		{"logs", s.nodeRow.ID},
		{"logs", s.cluster.id},
		{"logs", s.otherRow.ID},
	} {
		add("openpcs "+strings.Join(args, " "), openpcs(args...))
	}
	for _, i := range []inside{s.node, s.front, s.foreign, s.controller} {
		add("logs in "+i.id, openpcs("connect", i.id, "--", "sh", "-c", "journalctl --no-pager; find /var/log /tmp /var/tmp -type f ! -path '*/journal/*' -exec cat {} +"))
		add("processes in "+i.id, openpcs("connect", i.id, "--", "sh", "-c", "cat /proc/[0-9]*/cmdline"))
		add("what users may read in "+i.id, openpcs("connect", i.id, "--", "setpriv", "--reuid=1000", "--regid=1000", "--clear-groups", "sh", "-c", "find /etc /run /opt/aws /var/spool /root -type f -readable -size -1024k -exec cat {} + 2>/dev/null"))
	}
	add("scontrol show config", s.cluster.login("scontrol", "show", "config"))
	// Errors of the API, for requests that have to do with keys.
	key := s.node.roleKey(t)
	for _, wrong := range []func() error{
		func() error { _, err := register(s.front.api(key), s.cluster.id); return err },
		func() error { _, err := register(s.node.api(key), "pcs_0000000000"); return err },
		func() error { _, err := register(s.node.api(key), strings.Repeat("x", 100)); return err },
		func() error {
			bad := key
			bad.Secret += "x"
			_, err := register(s.node.api(bad), s.cluster.id)
			return err
		},
		func() error {
			bad := key
			bad.Token = "x" + bad.Token
			_, err := register(s.node.api(bad), s.cluster.id)
			return err
		},
	} {
		err := wrong()
		must(t, err != nil, "a wrong call went through")
		texts["API error "+code(err)] += err.Error()
	}
	add("aws: secret of another name", awsRun("secretsmanager", "get-secret-value", "--secret-id", "nothing"))
	add("aws: describe-secret", awsRun("secretsmanager", "list-secrets"))
	add("aws: get-cluster", awsRun("pcs", "get-cluster", "--cluster-identifier", s.cluster.id))
	// What is kept on the host, but for the state file itself and what is
	// Slurm's and the instances' own.
	err := filepath.WalkDir(stateDir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || strings.Contains(path, "state.db") || !d.Type().IsRegular() {
			return nil
		}
		text, err := os.ReadFile(path)
		texts[path] = string(text)
		return err
	})
	must(t, err == nil && texts[serveLog()] != "", "read what the host keeps: %v", err)
	db, err := sql.Open("sqlite", "file:"+filepath.Join(stateDir, "state.db")+"?mode=ro")
	must(t, err == nil, "%v", err)
	defer func() { _ = db.Close() }()
	var events sql.NullString
	err = db.QueryRow(`SELECT group_concat(cast(doc AS TEXT), char(10)) FROM events`).Scan(&events)
	must(t, err == nil && len(events.String) > 100, "read the events: %v", err)
	texts["the events"] = events.String
	texts["command lines seen on the host"] = s.sampler.text()
	must(t, strings.Contains(texts["command lines seen on the host"], "slurmd"), "no command line of an instance was seen")

	secrets := secretsOf(t)
	total := 0
	for where, text := range texts {
		total += len(text)
		for secret, whose := range secrets {
			if strings.Contains(text, secret) {
				t.Errorf("%s shows in %s", whose, where)
			}
		}
	}
	t.Logf("looked for %d secrets in %d texts of %d bytes", len(secrets), len(texts), total)
}

func (s *security) revoked(t *testing.T) {
	key := s.node.roleKey(t)
	host := &awsapi.Client{Endpoint: "http://" + listen, Region: region, Key: key}
	_, err := register(host, s.cluster.id)
	must(t, code(err) == "AccessDeniedException", "before the end of the instance: %v", err)
	s.cluster.powerDown(t, "node-1")
	_, err = register(host, s.cluster.id)
	must(t, code(err) == "UnrecognizedClientException", "after the end of the instance its key is %v", err)
}

func (s *security) tls(t *testing.T) {
	plain := clientEnv
	defer func() {
		clientEnv = plain
		restart(t)
	}()
	restart(t, "OPENPCS_TLS=auto")
	r := succeed(t, openpcs("env"))
	env := map[string]string{}
	for _, m := range exportLine.FindAllStringSubmatch(r.out, -1) {
		env[m[1]] = m[2]
	}
	bundle := filepath.Join(stateDir, "tls", "ca.pem")
	must(t, env["AWS_ENDPOINT_URL"] == "https://"+listen && env["AWS_CA_BUNDLE"] == bundle, "openpcs env: %s", r)
	clientEnv = append([]string{}, plain...)
	for name, value := range env {
		clientEnv = append(clientEnv, name+"="+value)
	}
	name := aws(t, "pcs", "get-cluster", "--cluster-identifier", s.cluster.id, "--query", "cluster.name", "--output", "text")
	must(t, name == s.cluster.name, "get-cluster over TLS: %q", name)
	must(t, aws(t, "ec2", "describe-vpcs", "--query", "length(Vpcs)") == "1", "describe-vpcs over TLS")
	succeed(t, openpcs("clusters")) // openpcs itself trusts it as well
	// Who does not trust it gets no answer, nor who speaks without TLS.
	once := append([]string{"AWS_MAX_ATTEMPTS=1"}, clientEnv...)
	r = run(append(once, "AWS_CA_BUNDLE=/etc/ssl/certs/ca-certificates.crt"), os.Getenv(awsEnv), "pcs", "list-clusters")
	must(t, r.code != 0 && strings.Contains(r.errOut, "SSL"), "without the bundle: %s", r)
	r = run(append(once, "AWS_ENDPOINT_URL=http://"+listen), os.Getenv(awsEnv), "pcs", "list-clusters")
	must(t, r.code != 0, "without TLS: %s", r)
	r = asNobody("cat", filepath.Join(stateDir, "tls", "key.pem"))
	must(t, r.code != 0, "nobody reads the certificate's key: %s", r)
	succeed(t, asNobody("cat", bundle))
	// Nodes come up all the same.
	began := time.Now()
	s.cluster.powerUp(t, "queue-1", "node-1")
	t.Logf("a node came up %.1f s after its job was submitted", time.Since(began).Seconds())
}

// commandLines gathers the command lines of all processes on the host, those
// in instances too, while it runs.
type commandLines struct {
	mu   sync.Mutex
	seen map[string]bool
	end  chan struct{}
}

func sampleCommandLines() *commandLines {
	c := &commandLines{seen: map[string]bool{}, end: make(chan struct{})}
	go func() {
		ticker := time.NewTicker(50 * time.Millisecond)
		defer ticker.Stop()
		for {
			all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
			for _, path := range all {
				if text, err := os.ReadFile(path); err == nil && len(text) > 0 {
					c.mu.Lock()
					c.seen[string(bytes.ReplaceAll(text, []byte{0}, []byte{' '}))] = true
					c.mu.Unlock()
				}
			}
			select {
			case <-c.end:
				return
			case <-ticker.C:
			}
		}
	}()
	return c
}

func (c *commandLines) stop() { close(c.end) }

func (c *commandLines) text() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var b strings.Builder
	for line := range c.seen {
		b.WriteString(line + "\n")
	}
	return b.String()
}

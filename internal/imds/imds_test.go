package imds_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/openpcs/openpcs/internal/awsapi/awsapitest"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/iam"
	"github.com/openpcs/openpcs/internal/imds"
	"github.com/openpcs/openpcs/internal/slurm"
	"github.com/openpcs/openpcs/internal/store"
)

const (
	node       = "10.77.16.10"
	other      = "10.77.16.11" // another instance, without profile and user data
	gone       = "10.77.16.12" // of a terminated instance
	controller = "10.77.16.4"
	secret     = "the-controllers-token"
)

// plane records what reaches the control plane.
type plane struct {
	told  imds.Report
	calls []string
	err   error
}

func (p *plane) note(words ...string) error {
	p.calls = append(p.calls, strings.Join(words, " "))
	return p.err
}

func (p *plane) Bootstrap(_ context.Context, i fleet.Instance) (imds.Bootstrap, error) {
	return imds.Bootstrap{InstanceID: i.ID, ClusterID: i.ClusterID}, p.note("bootstrap", i.ID)
}

func (p *plane) Report(_ context.Context, id string, r imds.Report) error {
	p.told = r
	return p.note("report", id, r.Stage, string(r.Code))
}

func (p *plane) Failed(_ context.Context, id, log string) error { return p.note("failed", id, log) }

func (p *plane) Go(_ context.Context, i fleet.Instance) error { return p.note("go", i.ID) }

func (p *plane) Hook(_ context.Context, cluster string, h imds.Hook) error {
	return p.note("hook", cluster, h.Kind, h.Nodes)
}

func (p *plane) NodeStates(cluster string, n imds.Nodes) {
	_ = p.note("nodes", cluster, strings.Join(n.Nodes["a-1"].State, "+"))
}

type service struct {
	*awsapitest.World
	t       *testing.T
	plane   *plane
	server  *imds.Server
	handler http.Handler
}

func newService(t *testing.T) *service {
	t.Helper()
	w := awsapitest.New(t)
	if err := iam.New(iam.Options{Store: w.Store, Account: awsapitest.Account}).EnsureDefaults(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.Keys.Now = time.Now
	s := &service{World: w, t: t, plane: &plane{}}
	s.server = &imds.Server{Store: w.Store, Keys: w.Keys, Account: awsapitest.Account, Control: s.plane, Secret: []byte(testSecret), Log: slog.New(slog.NewTextHandler(io.Discard, nil))}
	s.handler = s.server.Handler()
	profile := "arn:aws:iam::" + awsapitest.Account + ":instance-profile/AWSPCS-default"
	w.Update(t, func(tx *store.Tx) error {
		return errors.Join(
			fleet.Instances.Put(tx, fleet.Instance{
				ID: "i-0aaaaaaaaaaaaaaaa", Region: awsapitest.Region, State: fleet.Running, Address: node, Type: "t4g.micro", ImageID: "ami-1", AZ: "ap-northeast-1a",
				ProfileARN: profile, UserData: []byte("user data\n"), SecurityGroups: []string{"sg-1", "sg-2"}, ClusterID: "pcs_1",
				Tags: map[string]string{"Name": "n", "aws:pcs:cluster-id": "pcs_1", "a/b": "slash"}, LaunchedAt: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
			}),
			fleet.Instances.Put(tx, fleet.Instance{ID: "i-0bbbbbbbbbbbbbbbb", Region: awsapitest.Region, State: fleet.Pending, Address: other}),
			fleet.Instances.Put(tx, fleet.Instance{ID: "i-0cccccccccccccccc", Region: awsapitest.Region, State: fleet.Terminated, Address: gone}),
			fleet.Clusters.Put(tx, fleet.Cluster{ID: "pcs_1", Region: awsapitest.Region, Name: "c", ControllerAddress: controller, ControllerToken: secret}),
		)
	})
	return s
}

// call is a request from an address; headers come in pairs.
func (s *service) call(from, method, path, body string, headers ...string) *httptest.ResponseRecorder {
	s.t.Helper()
	r := httptest.NewRequest(method, "http://169.254.169.254"+path, strings.NewReader(body))
	r.RemoteAddr = from + ":40000"
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	s.handler.ServeHTTP(w, r)
	return w
}

const (
	ttlHeader   = "X-aws-ec2-metadata-token-ttl-seconds"
	tokenHeader = "X-aws-ec2-metadata-token"
)

func (s *service) token(from string) string {
	s.t.Helper()
	w := s.call(from, http.MethodPut, "/latest/api/token", "", ttlHeader, "21600")
	if w.Code != http.StatusOK || w.Body.Len() < 32 || w.Header().Get(ttlHeader) != "21600" {
		s.t.Fatalf("open a session: %d %q", w.Code, w.Body)
	}
	return w.Body.String()
}

func (s *service) get(from, path string) (int, string) {
	s.t.Helper()
	if from == gone || from == "10.77.99.99" {
		w := s.call(from, http.MethodGet, path, "", tokenHeader, s.token(node))
		return w.Code, w.Body.String()
	}
	w := s.call(from, http.MethodGet, path, "", tokenHeader, s.token(from))
	return w.Code, w.Body.String()
}

func TestSessionsAsIMDSv2(t *testing.T) {
	s := newService(t)
	for _, path := range []string{"/latest/meta-data/", "/latest/meta-data/instance-id", "/latest/user-data", "/latest/dynamic/instance-identity/document", "/2021-07-15/meta-data/instance-id", "/2021-07-15/user-data", "/latest/meta-data/iam/security-credentials/AWSPCS-default"} {
		if w := s.call(node, http.MethodGet, path, ""); w.Code != http.StatusUnauthorized || strings.Contains(w.Body.String(), "i-0") {
			t.Errorf("%s without a token: %d %q", path, w.Code, w.Body)
		}
		if w := s.call(node, http.MethodGet, path, "", tokenHeader, "wrong"); w.Code != http.StatusUnauthorized {
			t.Errorf("%s with a wrong token: %d", path, w.Code)
		}
		if w := s.call(other, http.MethodGet, path, "", tokenHeader, s.token(node)); w.Code != http.StatusUnauthorized {
			t.Errorf("%s with another instance's token: %d", path, w.Code)
		}
		if w := s.call(node, http.MethodGet, path, "", tokenHeader, ""); w.Code != http.StatusUnauthorized {
			t.Errorf("%s with an empty token: %d", path, w.Code)
		}
	}
	for ttl, want := range map[string]int{"1": 200, "21600": 200, "0": 400, "-1": 400, "21601": 400, "": 400, "1.5": 400, "x": 400, "99999999999999999999": 400} {
		if w := s.call(node, http.MethodPut, "/latest/api/token", "", ttlHeader, ttl); w.Code != want {
			t.Errorf("a ttl of %q: %d, want %d", ttl, w.Code, want)
		}
	}
	for _, from := range []string{gone, controller, "10.77.99.99"} {
		if w := s.call(from, http.MethodPut, "/latest/api/token", "", ttlHeader, "60"); w.Code != http.StatusNotFound {
			t.Errorf("%s, which is no instance, opens a session: %d", from, w.Code)
		}
	}
	for _, method := range []string{http.MethodGet, http.MethodPost, http.MethodDelete} {
		if w := s.call(node, method, "/latest/api/token", "", ttlHeader, "60"); w.Code == http.StatusOK {
			t.Errorf("%s opens a session", method)
		}
	}
}

func TestAProxyGetsNothing(t *testing.T) {
	s := newService(t)
	token := s.token(node)
	for _, tt := range []struct{ from, method, path string }{
		{node, http.MethodPut, "/latest/api/token"},
		{node, http.MethodGet, "/latest/meta-data/iam/security-credentials/AWSPCS-default"},
		{node, http.MethodGet, "/openpcs/v1/bootstrap"},
		{node, http.MethodPost, "/openpcs/v1/failed"},
		{controller, http.MethodGet, "/openpcs/v1/controller"},
	} {
		headers := []string{ttlHeader, "60", tokenHeader, token}
		if w := s.call(tt.from, tt.method, tt.path, "", headers...); w.Code != http.StatusOK {
			t.Fatalf("%s %s: %d", tt.method, tt.path, w.Code)
		}
		for _, name := range []string{"X-Forwarded-For", "X-Forwarded-Host", "Forwarded", "Via"} {
			// What a proxy claims never changes who asks, nor is it answered.
			if w := s.call(other, tt.method, tt.path, "", append(headers, name, tt.from)...); w.Code != http.StatusForbidden {
				t.Errorf("%s %s with %s: %d %q", tt.method, tt.path, name, w.Code, w.Body)
			}
		}
		for host, want := range map[string]int{"169.254.169.254:80": 200, "evil.example": 403, "169.254.169.254.evil.example": 403, "": 403, "127.0.0.1": 403} {
			r := httptest.NewRequest(tt.method, "http://169.254.169.254"+tt.path, nil)
			r.RemoteAddr, r.Host = tt.from+":40000", host
			r.Header.Set(ttlHeader, "60")
			r.Header.Set(tokenHeader, token)
			w := httptest.NewRecorder()
			s.handler.ServeHTTP(w, r)
			if w.Code != want {
				t.Errorf("%s %s with the host %q: %d, want %d", tt.method, tt.path, host, w.Code, want)
			}
		}
	}
}

// The next instance with an address cannot use what the former one held.
func TestASessionEndsWithItsInstance(t *testing.T) {
	s := newService(t)
	token := s.token(node)
	s.Update(t, func(tx *store.Tx) error {
		i, err := fleet.Instances.Get(tx, "i-0aaaaaaaaaaaaaaaa")
		if err != nil {
			return err
		}
		heir := i
		heir.ID, i.State = "i-0dddddddddddddddd", fleet.Terminated
		return errors.Join(fleet.Instances.Put(tx, i), fleet.Instances.Put(tx, heir))
	})
	if w := s.call(node, http.MethodGet, "/latest/meta-data/instance-id", "", tokenHeader, token); w.Code != http.StatusUnauthorized {
		t.Errorf("with the token of the former instance: %d %q", w.Code, w.Body)
	}
	if code, body := s.get(node, "/latest/meta-data/instance-id"); code != http.StatusOK || body != "i-0dddddddddddddddd" {
		t.Errorf("the next instance: %d %q", code, body)
	}
}

func TestSessionsExpire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		w := s.call(node, http.MethodPut, "/latest/api/token", "", ttlHeader, "60")
		token := w.Body.String()
		time.Sleep(59 * time.Second)
		if w := s.call(node, http.MethodGet, "/latest/meta-data/instance-id", "", tokenHeader, token); w.Code != http.StatusOK {
			t.Errorf("after 59 s: %d", w.Code)
		}
		time.Sleep(2 * time.Second)
		if w := s.call(node, http.MethodGet, "/latest/meta-data/instance-id", "", tokenHeader, token); w.Code != http.StatusUnauthorized {
			t.Errorf("after 61 s: %d", w.Code)
		}
	})
}

// A control plane that was killed in the middle of a bootstrap must know the
// sessions that agents hold; one with another secret must not.
func TestSessionsSurviveARestart(t *testing.T) {
	s := newService(t)
	token := s.token(node)
	for secret, want := range map[string]int{testSecret: http.StatusOK, "another": http.StatusUnauthorized} {
		fresh := *newService(t)
		fresh.server.Secret = []byte(secret)
		if w := fresh.call(node, http.MethodGet, "/latest/meta-data/instance-id", "", tokenHeader, token); w.Code != want {
			t.Errorf("with the secret %q: %d, want %d", secret, w.Code, want)
		}
	}
	for _, forged := range []string{"", "x", token[:len(token)-4] + "AAAA", strings.Repeat("A", len(token))} {
		if w := s.call(node, http.MethodGet, "/latest/meta-data/instance-id", "", tokenHeader, forged); w.Code != http.StatusUnauthorized {
			t.Errorf("with the token %q: %d", forged, w.Code)
		}
	}
}

const testSecret = "a secret"

func TestMetadataTree(t *testing.T) {
	s := newService(t)
	for path, want := range map[string]string{
		"instance-id": "i-0aaaaaaaaaaaaaaaa", "ami-id": "ami-1", "instance-type": "t4g.micro", "local-ipv4": node,
		"hostname": "ip-10-77-16-10.ap-northeast-1.compute.internal", "local-hostname": "ip-10-77-16-10.ap-northeast-1.compute.internal",
		"placement/availability-zone": "ap-northeast-1a", "placement/region": "ap-northeast-1", "security-groups": "sg-1\nsg-2",
		"placement": "availability-zone\nregion", "placement/": "availability-zone\nregion",
		"iam": "info\nsecurity-credentials/", "iam/": "info\nsecurity-credentials/", "iam/security-credentials/": "AWSPCS-default",
		"tags/": "instance/", "tags/instance/Name": "n", "tags/instance/aws:pcs:cluster-id": "pcs_1", "tags/instance/a/b": "slash",
		"tags/instance/": "Name\na/b\naws:pcs:cluster-id", "services/domain": "amazonaws.com",
	} {
		if code, body := s.get(node, "/latest/meta-data/"+path); code != http.StatusOK || body != want {
			t.Errorf("%s: %d %q, want %q", path, code, body, want)
		}
	}
	_, root := s.get(node, "/latest/meta-data/")
	for _, want := range []string{"ami-id", "iam/", "instance-id", "placement/", "tags/"} {
		if !strings.Contains("\n"+root+"\n", "\n"+want+"\n") {
			t.Errorf("the tree %q lacks %s", root, want)
		}
	}
	if code, body := s.get(node, "/latest/meta-data"); code != http.StatusOK || body != root {
		t.Errorf("without the last slash: %d %q", code, body)
	}
	for _, path := range []string{"nothing", "instance", "placement/nothing", "tags/instance/none", "iam/security-credentials/other", "public-ipv4"} {
		if code, body := s.get(node, "/latest/meta-data/"+path); code != http.StatusNotFound {
			t.Errorf("%s: %d %q", path, code, body)
		}
	}
	if code, body := s.get(node, "/latest/user-data"); code != http.StatusOK || body != "user data\n" {
		t.Errorf("user data: %d %q", code, body)
	}
	if code, _ := s.get(other, "/latest/user-data"); code != http.StatusNotFound {
		t.Errorf("no user data: %d", code)
	}
	if code, body := s.get(other, "/latest/meta-data/iam/"); code != http.StatusNotFound {
		t.Errorf("no profile: %d %q", code, body)
	}
	for _, from := range []string{gone, "10.77.99.99"} {
		if code, body := s.get(from, "/latest/meta-data/instance-id"); code != http.StatusNotFound {
			t.Errorf("from %s: %d %q", from, code, body)
		}
	}
}

func TestIdentityDocument(t *testing.T) {
	s := newService(t)
	code, body := s.get(node, "/latest/dynamic/instance-identity/document")
	var doc map[string]any
	if err := json.Unmarshal([]byte(body), &doc); code != http.StatusOK || err != nil {
		t.Fatalf("%d %q %v", code, body, err)
	}
	for k, want := range map[string]string{
		"accountId": awsapitest.Account, "architecture": "arm64", "availabilityZone": "ap-northeast-1a", "imageId": "ami-1", "instanceId": "i-0aaaaaaaaaaaaaaaa",
		"instanceType": "t4g.micro", "pendingTime": "2026-01-02T03:04:05Z", "privateIp": node, "region": "ap-northeast-1", "version": "2017-09-30",
	} {
		if doc[k] != want {
			t.Errorf("%s = %v, want %s", k, doc[k], want)
		}
	}
}

func TestCredentials(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		get := func() (c imds.Credentials) {
			t.Helper()
			code, body := s.get(node, "/latest/meta-data/iam/security-credentials/AWSPCS-default")
			if err := json.Unmarshal([]byte(body), &c); code != http.StatusOK || err != nil {
				t.Fatalf("%d %q %v", code, body, err)
			}
			return c
		}
		c := get()
		until, err := time.Parse(time.RFC3339, c.Expiration)
		if c.Code != "Success" || c.Type != "AWS-HMAC" || !strings.HasPrefix(c.AccessKeyID, "ASIA") || c.SecretAccessKey == "" || c.Token == "" || err != nil || time.Until(until) < time.Hour {
			t.Errorf("credentials = %+v, %v", c, err)
		}
		key, err := s.Keys.FindKey(t.Context(), c.AccessKeyID)
		if err != nil || key.Caller.InstanceID != "i-0aaaaaaaaaaaaaaaa" || key.Caller.From != node || !key.Caller.Allowed("pcs:RegisterComputeNodeGroupInstance") || key.Caller.Allowed("pcs:DeleteCluster") ||
			!strings.HasSuffix(key.Caller.ARN, ":assumed-role/AWSPCS-default/i-0aaaaaaaaaaaaaaaa") {
			t.Errorf("key = %+v, %v", key.Caller, err)
		}
		if get().AccessKeyID != c.AccessKeyID {
			t.Error("each call makes a new key")
		}
		// Renewed well before the end.
		time.Sleep(time.Until(until) - 30*time.Minute)
		if renewed := get(); renewed.AccessKeyID == c.AccessKeyID {
			t.Error("half an hour before its end the key is not renewed")
		}
		s.server.Forget("i-0aaaaaaaaaaaaaaaa")
		if err := s.Keys.Revoke(t.Context(), "i-0aaaaaaaaaaaaaaaa"); err != nil {
			t.Fatal(err)
		}
		fresh := get()
		if _, err := s.Keys.FindKey(t.Context(), fresh.AccessKeyID); err != nil {
			t.Errorf("after Forget a revoked key is handed out: %v", err)
		}
		code, body := s.get(node, "/latest/meta-data/iam/info")
		if code != http.StatusOK || !strings.Contains(body, "instance-profile/AWSPCS-default") || !strings.Contains(body, `"Success"`) {
			t.Errorf("info: %d %q", code, body)
		}
	})
}

// An instance that ends while its agent asks gets no key that outlives it.
func TestNoKeyAfterTheEndOfTheInstance(t *testing.T) {
	const id, path = "i-0aaaaaaaaaaaaaaaa", "/latest/meta-data/iam/security-credentials/AWSPCS-default"
	for _, state := range []fleet.InstanceState{fleet.ShuttingDown, fleet.Terminated} {
		s := newService(t)
		token := s.token(node)
		ended := false
		// The clock is asked between the look for the instance and the issue.
		s.Keys.Now = func() time.Time {
			if !ended {
				ended = true
				s.Update(t, func(tx *store.Tx) error {
					i, err := fleet.Instances.Get(tx, id)
					i.State = state
					return errors.Join(err, fleet.Instances.Put(tx, i))
				})
				if err := s.Keys.Revoke(t.Context(), id); err != nil {
					t.Error(err)
				}
			}
			return time.Now()
		}
		before := s.Stored(t)
		w := s.call(node, http.MethodGet, path, "", tokenHeader, token)
		if w.Code != http.StatusNotFound || strings.Contains(w.Body.String(), "ASIA") || !ended {
			t.Errorf("%s: got %d %s", state, w.Code, w.Body)
		}
		s.Update(t, func(tx *store.Tx) error { // back, so that what is stored can be held against before
			i, err := fleet.Instances.Get(tx, id)
			i.State = fleet.Running
			return errors.Join(err, fleet.Instances.Put(tx, i))
		})
		if s.Stored(t) != before {
			t.Errorf("%s: a key is left in the state file", state)
		}
	}
}

// A body is read of instances alone.
func TestBodiesOfStrangersAreNotRead(t *testing.T) {
	s := newService(t)
	for _, from := range []string{gone, "10.77.99.99"} {
		body := strings.NewReader("log")
		r := httptest.NewRequest(http.MethodPost, "http://169.254.169.254/openpcs/v1/failed", body)
		r.RemoteAddr = from + ":40000"
		w := httptest.NewRecorder()
		s.handler.ServeHTTP(w, r)
		if w.Code != http.StatusNotFound || body.Len() != 3 {
			t.Errorf("%s: %d, and %d of 3 bytes were left", from, w.Code, body.Len())
		}
	}
}

// What an instance says of scripts is bounded, and names files that are below
// one folder.
func TestReportsOfScripts(t *testing.T) {
	s := newService(t)
	good := fleet.ScriptOutcome{Stage: fleet.NodeReady, Name: "a b", OnError: fleet.OnErrorStop, ExitCode: 1, Failure: strings.Repeat("f", 10_000), Output: strings.Repeat("o", 10_000)}
	post := func(scripts ...fleet.ScriptOutcome) int {
		t.Helper()
		s.plane.told = imds.Report{}
		doc, err := json.Marshal(imds.Report{Stage: "script", Scripts: scripts})
		if err != nil {
			t.Fatal(err)
		}
		return s.call(node, http.MethodPost, "/openpcs/v1/report", string(doc)).Code
	}
	if code := post(slices.Repeat([]fleet.ScriptOutcome{good}, 50)...); code != http.StatusOK || len(s.plane.told.Scripts) != fleet.MaxOutcomes {
		t.Errorf("50 outcomes: %d, %d are told", code, len(s.plane.told.Scripts))
	}
	if o := s.plane.told.Scripts[0]; len(o.Failure) != fleet.MaxFailure || len(o.Output) != fleet.MaxOutput {
		t.Errorf("of one outcome %d and %d bytes are told", len(o.Failure), len(o.Output))
	}
	for name, change := range map[string]func(*fleet.ScriptOutcome){
		"stage":   func(o *fleet.ScriptOutcome) { o.Stage = "../.." },
		"name":    func(o *fleet.ScriptOutcome) { o.Name = "../../../etc/shadow" },
		"noname":  func(o *fleet.ScriptOutcome) { o.Name = "" },
		"onError": func(o *fleet.ScriptOutcome) { o.OnError = "RETRY" },
	} {
		bad := good
		change(&bad)
		if code := post(bad); code != http.StatusBadRequest || s.plane.told.Stage != "" {
			t.Errorf("%s: %d, told %+v", name, code, s.plane.told)
		}
	}
}

func TestAgentsInterface(t *testing.T) {
	s := newService(t)
	report, _ := json.Marshal(imds.Report{Stage: "failed", Code: "SLURMD_FAILED"})
	for _, tt := range []struct {
		method, path, body, call string
	}{
		{http.MethodGet, "/openpcs/v1/bootstrap", "", "bootstrap i-0aaaaaaaaaaaaaaaa"},
		{http.MethodGet, "/openpcs/v1/go", "", "go i-0aaaaaaaaaaaaaaaa"},
		{http.MethodPost, "/openpcs/v1/report", string(report), "report i-0aaaaaaaaaaaaaaaa failed SLURMD_FAILED"},
		{http.MethodPost, "/openpcs/v1/failed", "the log", "failed i-0aaaaaaaaaaaaaaaa the log"},
	} {
		s.plane.calls = nil
		w := s.call(node, tt.method, tt.path, tt.body)
		if w.Code != http.StatusOK || len(s.plane.calls) != 1 || s.plane.calls[0] != tt.call {
			t.Errorf("%s: %d, calls %v, want %q", tt.path, w.Code, s.plane.calls, tt.call)
		}
		for _, from := range []string{gone, controller, "10.77.99.99"} {
			s.plane.calls = nil
			if w := s.call(from, tt.method, tt.path, tt.body); w.Code != http.StatusNotFound || len(s.plane.calls) != 0 {
				t.Errorf("%s from %s: %d, calls %v", tt.path, from, w.Code, s.plane.calls)
			}
		}
	}
	if w := s.call(node, http.MethodPost, "/openpcs/v1/report", "{"); w.Code != http.StatusBadRequest {
		t.Errorf("a report that is no JSON: %d", w.Code)
	}
	if w := s.call(node, http.MethodPost, "/openpcs/v1/failed", strings.Repeat("x", 9<<20)); w.Code != http.StatusBadRequest {
		t.Errorf("a report of 9 MB: %d", w.Code)
	}
	for err, want := range map[error]int{
		errors.New("disk full at /secret/place"):     http.StatusInternalServerError,
		&imds.RefusedError{Err: errors.New("never")}: http.StatusBadRequest,
		store.ErrNotFound:                            http.StatusNotFound,
	} {
		s.plane.err = err
		if w := s.call(node, http.MethodGet, "/openpcs/v1/bootstrap", ""); w.Code != want || strings.Contains(w.Body.String(), "/secret/place") {
			t.Errorf("%v: %d %q, want %d", err, w.Code, w.Body, want)
		}
	}
}

func TestControllersInterfaceNeedsItsToken(t *testing.T) {
	s := newService(t)
	w := s.call(controller, http.MethodGet, "/openpcs/v1/controller", "")
	var who imds.Controller
	if err := json.Unmarshal(w.Body.Bytes(), &who); err != nil || who != (imds.Controller{ClusterID: "pcs_1", Token: secret}) {
		t.Errorf("who am I: %d %q", w.Code, w.Body)
	}
	for _, from := range []string{node, "10.77.99.99"} {
		if w := s.call(from, http.MethodGet, "/openpcs/v1/controller", ""); w.Code != http.StatusNotFound || strings.Contains(w.Body.String(), secret) {
			t.Errorf("the token is given to %s: %d %q", from, w.Code, w.Body)
		}
	}
	hook, _ := json.Marshal(imds.Hook{Kind: "resume", Nodes: "a-1"})
	states, _ := json.Marshal(imds.Nodes{Full: true, Nodes: map[string]slurm.Node{"a-1": {Name: "a-1", State: []string{"IDLE", "CLOUD"}}}})
	for path, tt := range map[string]struct{ body, call string }{
		"/openpcs/v1/hook":  {string(hook), "hook pcs_1 resume a-1"},
		"/openpcs/v1/nodes": {string(states), "nodes pcs_1 IDLE+CLOUD"},
	} {
		for _, auth := range []string{"", "Bearer", "Bearer ", "Bearer wrong", "Bearer " + secret + "x", "Basic " + secret, "bearer  " + secret} {
			if w := s.call(controller, http.MethodPost, path, tt.body, "Authorization", auth); w.Code != http.StatusForbidden {
				t.Errorf("%s with %q: %d", path, auth, w.Code)
			}
		}
		if w := s.call(node, http.MethodPost, path, tt.body, "Authorization", "Bearer "+secret); w.Code != http.StatusNotFound {
			t.Errorf("%s of a node with the token: %d", path, w.Code)
		}
		if len(s.plane.calls) != 0 {
			t.Errorf("%s: a refused call went through: %v", path, s.plane.calls)
		}
		if w := s.call(controller, http.MethodPost, path, tt.body, "Authorization", "Bearer "+secret); w.Code != http.StatusNoContent || len(s.plane.calls) != 1 || s.plane.calls[0] != tt.call {
			t.Errorf("%s: %d, calls %v", path, w.Code, s.plane.calls)
		}
		s.plane.calls = nil
		if w := s.call(controller, http.MethodPost, path, "{", "Authorization", "Bearer "+secret); w.Code != http.StatusBadRequest {
			t.Errorf("%s with no JSON: %d", path, w.Code)
		}
	}
}

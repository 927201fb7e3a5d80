package imds

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/openpcs/openpcs/internal/awsapi"
	"github.com/openpcs/openpcs/internal/condition"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/iam"
	"github.com/openpcs/openpcs/internal/store"
)

// Control is what agents' questions and reports go to.
type Control interface {
	Bootstrap(ctx context.Context, i fleet.Instance) (Bootstrap, error)
	Report(ctx context.Context, instanceID string, r Report) error
	Failed(ctx context.Context, instanceID, log string) error
	Go(ctx context.Context, i fleet.Instance) error
	Hook(ctx context.Context, clusterID string, h Hook) error
	NodeStates(clusterID string, n Nodes)
}

// Server is the metadata service.
type Server struct {
	Store   *store.Store
	Keys    *awsapi.Keys
	Account string
	Control Control
	Secret  []byte // seals session tokens; keep it over restarts
	Log     *slog.Logger

	mu       sync.Mutex
	roleKeys map[string]awsapi.Key // by instance
}

const (
	maxTTL = 6 * time.Hour
	// keyLife and keyRenew: agents always get a key that is good for a while.
	keyLife  = 6 * time.Hour
	keyRenew = time.Hour
	// maxReport bounds what an instance may post.
	maxReport = 1 << 20
)

// Handler serves the metadata tree and the agents' interface.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("PUT /latest/api/token", s.openSession)
	mux.HandleFunc("GET /latest/user-data", s.tree(func(_ context.Context, i fleet.Instance, _ string) ([]byte, error) {
		if len(i.UserData) == 0 {
			return nil, store.ErrNotFound
		}
		return i.UserData, nil
	}))
	mux.HandleFunc("GET /latest/dynamic/instance-identity/document", s.tree(s.identity))
	mux.HandleFunc("GET /latest/dynamic/{$}", text("instance-identity/"))
	mux.HandleFunc("GET /latest/dynamic/instance-identity/{$}", text("document"))
	mux.HandleFunc("GET /latest/meta-data", s.tree(s.metadata))
	mux.HandleFunc("GET /latest/meta-data/{path...}", s.tree(s.metadata))
	// cloud-init asks for dated versions of the tree as well.
	mux.HandleFunc("GET /{version}/meta-data/{path...}", s.tree(s.metadata))
	mux.HandleFunc("GET /{version}/user-data", s.tree(func(_ context.Context, i fleet.Instance, _ string) ([]byte, error) { return i.UserData, nil }))
	mux.HandleFunc("GET /{version}/dynamic/instance-identity", text("document"))
	mux.HandleFunc("GET /{version}/dynamic/instance-identity/document", s.tree(s.identity))
	mux.HandleFunc("GET /{$}", text("latest"))
	mux.HandleFunc("GET /latest/{$}", text("dynamic\nmeta-data\nuser-data"))

	mux.HandleFunc("GET /openpcs/v1/bootstrap", s.ofInstance(func(ctx context.Context, i fleet.Instance, _ []byte) (any, error) {
		return s.Control.Bootstrap(ctx, i)
	}))
	mux.HandleFunc("GET /openpcs/v1/go", s.ofInstance(func(ctx context.Context, i fleet.Instance, _ []byte) (any, error) {
		// Shorter than the server's own limits: the agent asks again.
		ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		return struct{}{}, s.Control.Go(ctx, i)
	}))
	mux.HandleFunc("POST /openpcs/v1/report", s.ofInstance(func(ctx context.Context, i fleet.Instance, body []byte) (any, error) {
		var r Report
		if err := json.Unmarshal(body, &r); err != nil {
			return nil, &RefusedError{err}
		}
		if !slices.Contains([]string{"running", "slurmd-waits", "slurmd-started", "bootstrapped", "failed", "script"}, r.Stage) {
			return nil, &RefusedError{fmt.Errorf("unknown stage %q", r.Stage)}
		}
		if _, ok := condition.Find(r.Code); !ok && (r.Stage == "failed" || r.Stage == "slurmd-waits") {
			r.Code = condition.BootstrapFailed // of an agent that knows more
		}
		r.Message, r.Log = cut(r.Message, 4<<10), cut(r.Log, 64<<10)
		if len(r.Timings) > 32 || slices.ContainsFunc(slices.Collect(maps.Keys(r.Timings)), func(stage string) bool { return len(stage) > 32 }) {
			r.Timings = nil
		}
		r.Scripts = r.Scripts[:min(len(r.Scripts), fleet.MaxOutcomes)]
		for k, o := range r.Scripts {
			if !o.Valid() {
				return nil, &RefusedError{fmt.Errorf("no outcome of a script: %q of the stage %q", o.Name, o.Stage)}
			}
			r.Scripts[k] = o.Bounded()
		}
		return struct{}{}, s.Control.Report(ctx, i.ID, r)
	}))
	mux.HandleFunc("POST /openpcs/v1/failed", s.ofInstance(func(ctx context.Context, i fleet.Instance, body []byte) (any, error) {
		return struct{}{}, s.Control.Failed(ctx, i.ID, cut(string(body), 64<<10))
	}))
	mux.HandleFunc("GET /openpcs/v1/controller", s.whoAmI)
	mux.HandleFunc("POST /openpcs/v1/hook", s.ofController(func(ctx context.Context, cl fleet.Cluster, body []byte) error {
		var h Hook
		if err := json.Unmarshal(body, &h); err != nil {
			return &RefusedError{err}
		}
		return s.Control.Hook(ctx, cl.ID, h)
	}))
	mux.HandleFunc("POST /openpcs/v1/nodes", s.ofController(func(_ context.Context, cl fleet.Cluster, body []byte) error {
		var n Nodes
		if err := json.Unmarshal(body, &n); err != nil {
			return &RefusedError{err}
		}
		s.Control.NodeStates(cl.ID, n)
		return nil
	}))
	return direct(mux)
}

// direct refuses what an instance did not ask by itself: a proxy that runs on
// it, or a browser to which a foreign name was given this address, must not be
// tricked into fetching keys.
func direct(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for name := range r.Header {
			if name == "Forwarded" || name == "Via" || strings.HasPrefix(name, "X-Forwarded-") {
				http.Error(w, "not for proxies: the header "+name+" is set", http.StatusForbidden)
				return
			}
		}
		if r.Host != Address && r.Host != Address+":80" {
			http.Error(w, "the host must be "+Address, http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// cut keeps the end of a text, where logs say what went wrong.
func cut(s string, n int) string { return s[max(0, len(s)-n):] }

// RefusedError is a call that repeating will not make right.
type RefusedError struct{ Err error }

func (e *RefusedError) Error() string { return e.Err.Error() }

func (e *RefusedError) Unwrap() error { return e.Err }

func text(body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, body) }
}

func source(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return ""
	}
	return host
}

// instance is who asks, by its address.
func (s *Server) instance(r *http.Request) (found fleet.Instance, err error) {
	address := source(r)
	err = s.Store.View(r.Context(), func(tx *store.Tx) error {
		here, err := fleet.Instances.Where(tx, func(i *fleet.Instance) bool { return i.Address == address && i.State.Live() })
		if err == nil && len(here) == 0 {
			err = fmt.Errorf("instance with address %s: %w", address, store.ErrNotFound)
		}
		if err == nil {
			found = here[0]
		}
		return err
	})
	return found, err
}

func (s *Server) openSession(w http.ResponseWriter, r *http.Request) {
	seconds, err := strconv.Atoi(r.Header.Get("X-aws-ec2-metadata-token-ttl-seconds"))
	ttl := time.Duration(seconds) * time.Second
	if err != nil || ttl < time.Second || ttl > maxTTL {
		http.Error(w, "X-aws-ec2-metadata-token-ttl-seconds must be 1 to 21600", http.StatusBadRequest)
		return
	}
	i, err := s.instance(r)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	token := s.token(i.ID, time.Now().Add(ttl))
	w.Header().Set("X-aws-ec2-metadata-token-ttl-seconds", strconv.Itoa(seconds))
	_, _ = io.WriteString(w, token)
}

// token seals an instance's id and an expiry. It needs no memory, so that what an
// instance holds stays good when the control plane is restarted.
func (s *Server) token(instanceID string, expires time.Time) string {
	plain := binary.BigEndian.AppendUint64(nil, uint64(expires.Unix()))
	return base64.URLEncoding.EncodeToString(append(plain, s.seal(instanceID, plain)...))
}

func (s *Server) seal(instanceID string, plain []byte) []byte {
	mac := hmac.New(sha256.New, s.Secret)
	mac.Write([]byte("openpcs metadata token\n" + instanceID + "\n"))
	mac.Write(plain)
	return mac.Sum(nil)
}

// valid reports whether the token was made for the instance and has not
// expired.
func (s *Server) valid(token, instanceID string, now time.Time) bool {
	sealed, err := base64.URLEncoding.DecodeString(token)
	if err != nil || len(sealed) != 8+sha256.Size {
		return false
	}
	plain, seal := sealed[:8], sealed[8:]
	return hmac.Equal(seal, s.seal(instanceID, plain)) && now.Unix() < int64(binary.BigEndian.Uint64(plain))
}

// tree wraps a part of the EC2 tree: a valid token of the instance that asks.
func (s *Server) tree(f func(context.Context, fleet.Instance, string) ([]byte, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		i, err := s.instance(r)
		if err == nil && !s.valid(r.Header.Get("X-aws-ec2-metadata-token"), i.ID, time.Now()) {
			http.Error(w, "a session token is required: PUT /latest/api/token (IMDSv2)", http.StatusUnauthorized)
			return
		}
		if err == nil {
			var body []byte
			if body, err = f(r.Context(), i, strings.TrimSuffix(r.PathValue("path"), "/")); err == nil {
				w.Header().Set("Content-Type", "text/plain")
				_, _ = w.Write(body)
				return
			}
		}
		s.fail(w, r, err)
	}
}

func (s *Server) fail(w http.ResponseWriter, r *http.Request, err error) {
	var bad *RefusedError
	switch {
	case errors.Is(err, store.ErrNotFound):
		http.Error(w, "404 - Not Found", http.StatusNotFound)
	case errors.As(err, &bad):
		http.Error(w, err.Error(), http.StatusBadRequest)
	default:
		s.Log.Error("Metadata request failed", "path", r.URL.Path, "from", r.RemoteAddr, "err", err)
		http.Error(w, "internal error", http.StatusInternalServerError)
	}
}

func (s *Server) ofInstance(f func(context.Context, fleet.Instance, []byte) (any, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		i, err := s.instance(r)
		if err != nil {
			s.fail(w, r, err)
			return
		}
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxReport))
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		answer, err := f(r.Context(), i, body)
		if err != nil {
			s.fail(w, r, err)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(answer)
	}
}

// controller is the cluster whose controller asks, by its address.
func (s *Server) controller(r *http.Request) (found fleet.Cluster, err error) {
	address := source(r)
	err = s.Store.View(r.Context(), func(tx *store.Tx) error {
		all, err := fleet.Clusters.All(tx)
		for _, c := range all {
			if c.ControllerAddress == address {
				found = c
				return nil
			}
		}
		return errors.Join(err, fmt.Errorf("controller with address %s: %w", address, store.ErrNotFound))
	})
	return found, err
}

func (s *Server) whoAmI(w http.ResponseWriter, r *http.Request) {
	cl, err := s.controller(r)
	if err != nil {
		s.fail(w, r, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(Controller{ClusterID: cl.ID, Token: cl.ControllerToken})
}

func (s *Server) ofController(f func(context.Context, fleet.Cluster, []byte) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		cl, err := s.controller(r)
		if err != nil {
			s.fail(w, r, err)
			return
		}
		token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if subtle.ConstantTimeCompare([]byte(token), []byte(cl.ControllerToken)) != 1 {
			http.Error(w, "wrong token", http.StatusForbidden)
			return
		}
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 64<<20))
		if err == nil {
			err = f(r.Context(), cl, body)
		}
		if err != nil {
			s.fail(w, r, err)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	}
}

func (s *Server) identity(_ context.Context, i fleet.Instance, _ string) ([]byte, error) {
	arch := "x86_64"
	if t, ok := fleet.Lookup(i.Type); ok {
		arch = t.Arch
	}
	return json.MarshalIndent(map[string]any{
		"accountId": s.Account, "architecture": arch, "availabilityZone": i.AZ, "imageId": i.ImageID,
		"instanceId": i.ID, "instanceType": i.Type, "pendingTime": i.LaunchedAt.UTC().Format(time.RFC3339),
		"privateIp": i.Address, "region": i.Region, "version": "2017-09-30",
	}, "", "  ")
}

// metadata is the tree below /latest/meta-data.
func (s *Server) metadata(ctx context.Context, i fleet.Instance, path string) ([]byte, error) {
	leaves := map[string]string{
		"ami-id": i.ImageID, "ami-launch-index": "0", "instance-id": i.ID, "instance-type": i.Type,
		"instance-life-cycle": "on-demand", "hostname": i.PrivateDNS(), "local-hostname": i.PrivateDNS(),
		"local-ipv4": i.Address, "security-groups": strings.Join(i.SecurityGroups, "\n"),
		"placement/availability-zone": i.AZ, "placement/region": i.Region,
		"services/domain": "amazonaws.com", "services/partition": "aws", "profile": "default-hvm",
		"reservation-id": "r-" + strings.TrimPrefix(i.ID, "i-"),
	}
	if !i.ReclaimAt.IsZero() {
		at := i.ReclaimAt.UTC().Format("2006-01-02T15:04:05Z")
		leaves["spot/instance-action"] = `{"action": "terminate", "time": "` + at + `"}`
		leaves["spot/termination-time"] = at
	}
	for k, v := range i.Tags {
		leaves["tags/instance/"+k] = v
	}
	if i.ProfileARN != "" {
		profile, err := s.profile(ctx, i)
		if err != nil {
			return nil, err
		}
		role := profile.Role
		switch path {
		case "iam/security-credentials/" + role.Name:
			return s.credentials(ctx, i, profile)
		case "iam/info":
			return json.MarshalIndent(map[string]string{
				"Code": "Success", "LastUpdated": i.LaunchedAt.UTC().Format(time.RFC3339),
				"InstanceProfileArn": i.ProfileARN, "InstanceProfileId": profile.ID,
			}, "", "  ")
		}
		leaves["iam/security-credentials/"+role.Name] = ""
		leaves["iam/info"] = ""
	}
	if v, ok := leaves[path]; ok {
		return []byte(v), nil
	}
	// A folder lists its entries, folders with a slash behind.
	prefix := ""
	if path != "" {
		prefix = path + "/"
	}
	var entries []string
	for leaf := range leaves {
		rest, ok := strings.CutPrefix(leaf, prefix)
		if !ok {
			continue
		}
		// Keys of tags may have slashes of their own.
		if name, _, folder := strings.Cut(rest, "/"); folder && prefix != "tags/instance/" {
			rest = name + "/"
		}
		if !slices.Contains(entries, rest) {
			entries = append(entries, rest)
		}
	}
	if len(entries) == 0 {
		return nil, store.ErrNotFound
	}
	slices.Sort(entries)
	return []byte(strings.Join(entries, "\n")), nil
}

func (s *Server) profile(ctx context.Context, i fleet.Instance) (p iam.Profile, err error) {
	err = s.Store.View(ctx, func(tx *store.Tx) error {
		p, err = iam.FindProfile(tx, i.ProfileARN)
		return err
	})
	return p, err
}

// credentials are the instance's own keys: they die with it.
func (s *Server) credentials(ctx context.Context, i fleet.Instance, profile iam.Profile) ([]byte, error) {
	key, err := s.roleKey(ctx, i, profile)
	if err != nil {
		return nil, err
	}
	return json.MarshalIndent(Credentials{
		Code: "Success", Type: "AWS-HMAC", LastUpdated: time.Now().UTC().Format(time.RFC3339),
		AccessKeyID: key.ID, SecretAccessKey: key.Secret, Token: key.Token,
		Expiration: key.Expires.UTC().Format(time.RFC3339),
	}, "", "  ")
}

// roleKey returns the key of an instance's role and renews it in time. It holds
// the lock all the while: what Forget dropped must not come back.
func (s *Server) roleKey(ctx context.Context, i fleet.Instance, profile iam.Profile) (awsapi.Key, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if key, ok := s.roleKeys[i.ID]; ok && time.Until(key.Expires) >= keyRenew {
		return key, nil
	}
	caller := profile.Caller(s.Account, i.ID)
	caller.From = i.Address
	key, err := s.Keys.IssueSessionIf(ctx, caller, keyLife, func(tx *store.Tx) error {
		// It may have ended since it asked. Keys are revoked after that is on
		// record, so none comes into being later.
		now, err := fleet.Instances.Get(tx, i.ID)
		if err == nil && now.State != fleet.Pending && now.State != fleet.Running {
			err = fmt.Errorf("instance %s is %s: %w", i.ID, now.State, store.ErrNotFound)
		}
		return err
	})
	if err != nil {
		return awsapi.Key{}, err
	}
	if s.roleKeys == nil {
		s.roleKeys = map[string]awsapi.Key{}
	}
	s.roleKeys[i.ID] = key
	return key, nil
}

// Forget drops what is kept of an instance that is gone.
func (s *Server) Forget(instanceID string) {
	s.mu.Lock()
	delete(s.roleKeys, instanceID)
	s.mu.Unlock()
}

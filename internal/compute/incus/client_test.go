package incus

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime/multipart"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/openpcs/openpcs/internal/compute"
)

// serve answers on a unix socket like an Incus that knows the given routes,
// which are "METHOD /path", and returns a Provider that uses it.
func serve(t *testing.T, routes map[string]http.HandlerFunc) *Provider {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	ln, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h, ok := routes[r.Method+" "+r.URL.Path]
		if !ok {
			fail(w, http.StatusNotFound, "Not Found")
			return
		}
		h(w, r)
	}))
	srv.Listener = ln
	srv.Start()
	t.Cleanup(srv.Close)
	p := New(Options{Socket: socket, Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	t.Cleanup(p.api.http.CloseIdleConnections)
	return p
}

func reply(w http.ResponseWriter, metadata any) {
	json.NewEncoder(w).Encode(map[string]any{"type": "sync", "status_code": 200, "metadata": metadata})
}

func fail(w http.ResponseWriter, code int, msg string) {
	w.WriteHeader(code)
	json.NewEncoder(w).Encode(map[string]any{"type": "error", "error": msg, "error_code": code})
}

func async(w http.ResponseWriter, id string) {
	w.WriteHeader(http.StatusAccepted)
	json.NewEncoder(w).Encode(map[string]any{
		"type": "async", "operation": "/1.0/operations/" + id,
		"metadata": map[string]any{"id": id, "status": "Running", "status_code": 103},
	})
}

// answer returns a handler that always says the same.
func answer(metadata any) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) { reply(w, metadata) }
}

func operationEnd(code int, err string, metadata any) http.HandlerFunc {
	return answer(map[string]any{"id": "op", "status": "x", "status_code": code, "err": err, "metadata": metadata})
}

func startOp(w http.ResponseWriter, _ *http.Request) { async(w, "op") }

func TestCallErrors(t *testing.T) {
	for name, c := range map[string]struct {
		handler  http.HandlerFunc
		wait     http.HandlerFunc
		want     string
		notFound bool
	}{
		"success":       {handler: answer(nil)},
		"error":         {handler: func(w http.ResponseWriter, _ *http.Request) { fail(w, 409, "Conflict!") }, want: "Conflict!"},
		"not_found":     {handler: func(w http.ResponseWriter, _ *http.Request) { fail(w, 404, "gone") }, want: "gone", notFound: true},
		"error_as_200":  {handler: func(w http.ResponseWriter, _ *http.Request) { fail(w, 200, "late") }, want: "late"},
		"no_json":       {handler: func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "oops") }, want: "decode answer"},
		"async_success": {handler: startOp, wait: operationEnd(200, "", nil)},
		"async_failure": {handler: startOp, wait: operationEnd(400, "it broke", nil), want: "it broke"},
		"async_cancel":  {handler: startOp, wait: operationEnd(401, "", nil), want: "operation ended as x"},
		"wait_error_200": {
			handler: startOp, want: "lost",
			wait: func(w http.ResponseWriter, _ *http.Request) {
				json.NewEncoder(w).Encode(map[string]any{"type": "error", "error": "lost", "error_code": 500})
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := serve(t, map[string]http.HandlerFunc{"PUT /1.0/x": c.handler, "GET /1.0/operations/op/wait": c.wait})
			err := p.api.call(t.Context(), http.MethodPut, "/1.0/x", nil, map[string]any{}, nil)
			switch {
			case c.want == "" && err != nil:
				t.Fatalf("got %v", err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Fatalf("got %v, want %q", err, c.want)
			}
			if errors.Is(err, compute.ErrNotFound) != c.notFound {
				t.Errorf("%v is not found: %v", err, !c.notFound)
			}
		})
	}
}

func TestUnreachable(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "none")
	err := New(Options{Socket: socket}).Ping(t.Context())
	if err == nil || !strings.Contains(err.Error(), socket) || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v, want an error that names %s", err, socket)
	}
}

func TestRequestsAreInOurProject(t *testing.T) {
	var got string
	p := serve(t, map[string]http.HandlerFunc{"GET /1.0/instances": func(w http.ResponseWriter, r *http.Request) {
		got = r.URL.Query().Get("project")
		reply(w, []any{})
	}})
	if _, err := p.List(t.Context()); err != nil || got != "openpcs" {
		t.Errorf("asked for project %q, %v", got, err)
	}
}

var testSpec = compute.Spec{
	ID: "i-1", Image: "fp", Role: "node", Hostname: "ip-10-77-0-5.x.internal", Domain: "x.internal",
	Address: netip.MustParsePrefix("10.77.0.5/16"), CPUs: 4, MemoryMiB: 2048,
	Mounts: []compute.Mount{{Name: "home", Source: "/srv/home", Target: "/home", ReadOnly: true}},
	Labels: map[string]string{"cluster": "c1"},
}

func TestBody(t *testing.T) {
	config := map[string]string{
		"security.guestapi":          "false",
		"user.openpcs.address":       "10.77.0.5/16",
		"user.openpcs.gateway":       "10.77.0.1",
		"user.openpcs.hostname":      "ip-10-77-0-5.x.internal",
		"user.openpcs.domain":        "x.internal",
		"user.openpcs.role":          "node",
		"user.openpcs.label.cluster": "c1",
	}
	plain := New(Options{Pool: "p", Network: "n"}).body(testSpec, false)
	if !reflect.DeepEqual(plain.Config, config) {
		t.Errorf("config:\n got %v\nwant %v", plain.Config, config)
	}
	devices := map[string]map[string]string{
		"root":       {"type": "disk", "path": "/", "pool": "p"},
		"eth0":       {"type": "nic", "network": "n", "name": "eth0", "ipv4.address": "10.77.0.5", "hwaddr": "0a:77:0a:4d:00:05"},
		"mount-home": {"type": "disk", "source": "/srv/home", "path": "/home", "shift": "true", "readonly": "true"},
	}
	if !reflect.DeepEqual(plain.Devices, devices) {
		t.Errorf("devices:\n got %v\nwant %v", plain.Devices, devices)
	}
	if !plain.Start || plain.Profiles == nil || plain.Source.Fingerprint != "fp" || plain.Name != "i-1" {
		t.Errorf("got %+v", plain)
	}

	strict := New(Options{MaxCPUs: 4, MaxMemoryMiB: 2048}).body(testSpec, true)
	if strict.Config["limits.cpu"] != "4" || strict.Config["limits.memory"] != "2048MiB" {
		t.Errorf("limits are not set: %v", strict.Config)
	}
	for _, small := range []Options{{MaxCPUs: 3, MaxMemoryMiB: 2047}, {}} {
		if c := New(small).body(testSpec, true).Config; c["limits.cpu"] != "" || c["limits.memory"] != "" {
			t.Errorf("limits that the host does not have are set: %v", c)
		}
	}
	if nic := strict.Devices["eth0"]; nic["security.ipv4_filtering"] != "true" || nic["security.mac_filtering"] != "true" {
		t.Errorf("filters are not set: %v", nic)
	}
}

// launchServer fails creations by the texts in errs, one after the other, and
// then succeeds. It keeps what was asked for. An attempt leaves what it made
// unless survives is false.
func launchServer(t *testing.T, errs []string, survives bool) (p *Provider, bodies *[]instancePost, deleted *int) {
	bodies, deleted = new([]instancePost), new(int)
	var have *instancePost
	p = serve(t, map[string]http.HandlerFunc{
		"POST /1.0/instances": func(w http.ResponseWriter, r *http.Request) {
			var b instancePost
			if err := json.NewDecoder(r.Body).Decode(&b); err != nil {
				t.Error(err)
			}
			*bodies = append(*bodies, b)
			if survives {
				have = &b
			}
			async(w, "op")
		},
		"GET /1.0/operations/op/wait": func(w http.ResponseWriter, r *http.Request) {
			if n := len(*bodies); n <= len(errs) {
				operationEnd(400, errs[n-1], nil)(w, r)
				return
			}
			operationEnd(200, "", nil)(w, r)
		},
		"GET /1.0/operations/del/wait": operationEnd(200, "", nil),
		"GET /1.0/operations":          answer(map[string]any{}),
		"GET /1.0/instances/i-1": func(w http.ResponseWriter, r *http.Request) {
			if have == nil {
				fail(w, 404, "Instance not found")
				return
			}
			reply(w, instance{Name: "i-1", Status: "Stopped", Config: have.Config})
		},
		"PUT /1.0/instances/i-1/state": func(w http.ResponseWriter, _ *http.Request) { fail(w, 400, "The instance is already stopped") },
		"DELETE /1.0/instances/i-1": func(w http.ResponseWriter, r *http.Request) {
			*deleted++
			have = nil
			async(w, "del")
		},
	})
	return p, bodies, deleted
}

func TestLaunchErrors(t *testing.T) {
	for name, c := range map[string]struct {
		text     string
		survives bool
		check    func(error) bool
	}{
		"disk_full": {"Failed creating instance from image: write: no space left on device", true, isCapacity},
		"no_memory": {"Failed to run: forkstart: fork: Cannot allocate memory", true, isCapacity},
		"no_image":  {"Image not provided for instance creation", false, func(err error) bool { return errors.Is(err, compute.ErrNotFound) }},
		"other":     {"Failed to start device \"mount-x\": Missing source path", true, func(err error) bool { return !isCapacity(err) }},
	} {
		t.Run(name, func(t *testing.T) {
			p, bodies, deleted := launchServer(t, slices.Repeat([]string{c.text}, 9), c.survives)
			err := p.Launch(t.Context(), testSpec)
			if err == nil || !c.check(err) {
				t.Errorf("got %v", err)
			}
			if len(*bodies) != 1 || (*deleted == 1) != c.survives {
				t.Errorf("%d attempts, %d deleted", len(*bodies), *deleted)
			}
		})
	}
}

func isCapacity(err error) bool {
	var ce *compute.CapacityError
	return errors.As(err, &ce) && ce.Code == "InsufficientInstanceCapacity"
}

func TestLaunchWithoutFilters(t *testing.T) {
	filtered := func(b instancePost) bool { return b.Devices["eth0"]["security.ipv4_filtering"] == "true" }
	const text = "Failed to start device \"eth0\": Failed adding bridge filter rules for instance device"
	t.Run("one_failure_may_pass", func(t *testing.T) {
		p, bodies, _ := launchServer(t, []string{text}, true)
		if err := p.Launch(t.Context(), testSpec); err != nil {
			t.Fatal(err)
		}
		if len(*bodies) != 2 || !filtered((*bodies)[1]) || p.noFilter.Load() {
			t.Errorf("%d attempts, filters given up: %v", len(*bodies), p.noFilter.Load())
		}
	})
	t.Run("two_do_not", func(t *testing.T) {
		p, bodies, deleted := launchServer(t, []string{text, text}, true)
		if err := p.Launch(t.Context(), testSpec); err != nil {
			t.Fatal(err)
		}
		if len(*bodies) != 3 || filtered((*bodies)[2]) || *deleted != 2 {
			t.Errorf("%d attempts, %d deleted, last %v", len(*bodies), *deleted, (*bodies)[len(*bodies)-1].Devices)
		}
	})
}

func TestFingerprint(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a"), filepath.Join(dir, "b")
	for path, text := range map[string]string{a: "ab", b: "c"} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	const want = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad" // of "abc"
	if got, err := fingerprint(a, b); err != nil || got != want {
		t.Errorf("got %s, %v", got, err)
	}
	if _, err := fingerprint(a, filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

func TestImportImage(t *testing.T) {
	dir := t.TempDir()
	img := compute.Image{Name: "ami", MetadataPath: filepath.Join(dir, "m"), RootfsPath: filepath.Join(dir, "r")}
	for path, text := range map[string]string{img.MetadataPath: "ab", img.RootfsPath: "c"} {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	parts := map[string]string{}
	p := serve(t, map[string]http.HandlerFunc{
		"POST /1.0/images": func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("X-Incus-Properties") != "" {
				t.Error("properties are sent, of which Incus 6.0.4 can die")
			}
			form, err := r.MultipartReader()
			if err != nil {
				t.Error(err)
				return
			}
			for {
				part, err := form.NextPart()
				if err == io.EOF {
					break
				}
				b, _ := io.ReadAll(part)
				parts[part.FormName()] = string(b)
			}
			async(w, "op")
		},
		"GET /1.0/operations/op/wait": operationEnd(400, "Image with same fingerprint already exists", nil),
	})
	ref, err := p.ImportImage(t.Context(), img)
	if err != nil || !strings.HasPrefix(ref, "ba7816bf") || !reflect.DeepEqual(parts, map[string]string{"metadata": "ab", "rootfs": "c"}) {
		t.Errorf("got %s, %v, parts %v", ref, err, parts)
	}
}

func TestUploadReportsUnreadableFile(t *testing.T) {
	dir := t.TempDir()
	img := compute.Image{MetadataPath: dir, RootfsPath: dir}
	p := serve(t, map[string]http.HandlerFunc{"POST /1.0/images": func(w http.ResponseWriter, r *http.Request) {
		_, err := multipart.NewReader(r.Body, "x").NextPart()
		fail(w, 400, fmt.Sprint(err))
	}})
	if err := p.upload(t.Context(), img, "fp"); err == nil {
		t.Error("uploaded a folder")
	}
}

func TestWatch(t *testing.T) {
	lost := true // the first probe's event comes before the stream is filled
	probe := make(chan struct{}, 10)
	p := serve(t, map[string]http.HandlerFunc{
		"PATCH /1.0/projects/openpcs": func(w http.ResponseWriter, r *http.Request) {
			if b, _ := io.ReadAll(r.Body); string(b) != "{}" {
				t.Errorf("the project is changed: %s", b)
			}
			if !lost {
				probe <- struct{}{}
			}
			lost = false
			reply(w, nil)
		},
		"GET /1.0/events": func(w http.ResponseWriter, r *http.Request) {
			c, err := websocket.Accept(w, r, nil)
			if err != nil {
				t.Error(err)
				return
			}
			defer c.CloseNow()
			send := func(format string, args ...any) {
				msg := fmt.Sprintf(`{"type":"lifecycle","project":"openpcs","metadata":{`+format+`}}`, args...)
				if err := c.Write(r.Context(), websocket.MessageText, []byte(msg)); err != nil {
					t.Error(err)
				}
			}
			<-probe
			send(`"action":"project-updated","source":"/1.0/projects/openpcs"`)
			for _, action := range []string{
				"instance-created", "instance-started", "instance-restarted", "instance-updated", "instance-exec",
				"instance-shutdown", "instance-stopped", "instance-deleted", "image-created",
			} {
				send(`"action":%q,"name":"i-1"`, action)
			}
			send(`"action":"instance-started","source":"/1.0/instances/i-2?project=openpcs"`)
			send(`"action":"instance-deleted","name":"openpcs-warm-0123456789ab"`)
			c.Close(websocket.StatusGoingAway, "")
		},
	})
	var got []compute.Event
	ready := 0
	err := p.Watch(t.Context(), func() { ready++ }, func(ev compute.Event) { got = append(got, ev) })
	if err == nil {
		t.Error("a broken connection gave no error")
	}
	want := []compute.Event{
		{ID: "i-1", Kind: compute.Started},
		{ID: "i-1", Kind: compute.Started},
		{ID: "i-1", Kind: compute.Halted},
		{ID: "i-1", Kind: compute.Halted},
		{ID: "i-1", Kind: compute.Deleted},
		{ID: "i-2", Kind: compute.Started},
	}
	if !slices.Equal(got, want) || ready != 1 {
		t.Errorf("ready %d times; got %v\nwant %v", ready, got, want)
	}
}

func TestWatchNeedsTheProject(t *testing.T) {
	p := serve(t, map[string]http.HandlerFunc{"GET /1.0/events": func(w http.ResponseWriter, _ *http.Request) {
		fail(w, 404, "Project not found")
	}})
	err := p.Watch(t.Context(), func() { t.Error("ready") }, func(compute.Event) {})
	if !errors.Is(err, compute.ErrNotFound) {
		t.Errorf("got %v", err)
	}
}

func TestTerminateWaitsForOthers(t *testing.T) {
	waited := false
	p := serve(t, map[string]http.HandlerFunc{
		"PUT /1.0/instances/i-1/state": func(w http.ResponseWriter, _ *http.Request) {
			if !waited {
				fail(w, 400, "Instance is busy running a \"create\" operation")
				return
			}
			fail(w, 404, "Instance not found")
		},
		"GET /1.0/operations": answer(map[string]any{
			"running": []operation{
				{ID: "exec", Metadata: json.RawMessage(`{"command":["x"]}`), Resources: map[string][]string{"instances": {"/1.0/instances/i-1"}}},
				{ID: "other", Resources: map[string][]string{"instances": {"/1.0/instances/i-10"}}},
				{ID: "create", Resources: map[string][]string{"instances": {"/1.0/instances/i-1?project=openpcs"}}},
			},
			"failure": []operation{{ID: "old", Resources: map[string][]string{"instances": {"/1.0/instances/i-1"}}}},
		}),
		"GET /1.0/operations/create/wait": func(w http.ResponseWriter, r *http.Request) {
			waited = true
			operationEnd(400, "broken", nil)(w, r)
		},
	})
	if err := p.Terminate(t.Context(), "i-1"); err != nil || !waited {
		t.Errorf("got %v, waited %v", err, waited)
	}
}

func TestSetupNetworkWithoutFirewall(t *testing.T) {
	var made []thing
	p := serve(t, map[string]http.HandlerFunc{
		"POST /1.0/networks": func(w http.ResponseWriter, r *http.Request) {
			var n thing
			if err := json.NewDecoder(r.Body).Decode(&n); err != nil {
				t.Error(err)
			}
			made = append(made, n)
			if n.Config["ipv4.nat"] == "true" {
				fail(w, 400, "Failed adding outbound NAT rules for network: nft: Operation not supported")
				return
			}
			reply(w, nil)
		},
	})
	p.opts.Network = "opcs-unit-test"
	if err := p.setupNetwork(t.Context(), server{}); err != nil {
		t.Fatal(err)
	}
	if len(made) != 2 || made[1].Config["ipv4.firewall"] != "false" || made[1].Config["ipv4.address"] != "10.77.0.1/16" {
		t.Errorf("made %+v", made)
	}
}

func TestMend(t *testing.T) {
	var put *thing
	p := serve(t, map[string]http.HandlerFunc{"PUT /1.0/x": func(w http.ResponseWriter, r *http.Request) {
		put = &thing{}
		if err := json.NewDecoder(r.Body).Decode(put); err != nil {
			t.Error(err)
		}
		reply(w, nil)
	}})
	have := thing{Config: map[string]string{"a": "1", "b": "2", "c": "3"}}
	if err := p.mend(t.Context(), "/1.0/x", have, map[string]string{"a": "1", "d": ""}); err != nil || put != nil {
		t.Errorf("mended what is right: %v, %v", put, err)
	}
	if err := p.mend(t.Context(), "/1.0/x", have, map[string]string{"a": "9", "b": ""}); err != nil {
		t.Fatal(err)
	}
	if want := map[string]string{"a": "9", "c": "3"}; put == nil || !reflect.DeepEqual(put.Config, want) {
		t.Errorf("got %+v, want %v", put, want)
	}
}

func TestDefaultSocket(t *testing.T) {
	t.Setenv("OPENPCS_INCUS_SOCKET", "")
	t.Setenv("INCUS_SOCKET", "/b")
	if got := DefaultSocket(); got != "/b" {
		t.Errorf("got %s", got)
	}
	t.Setenv("OPENPCS_INCUS_SOCKET", "/a")
	if got := DefaultSocket(); got != "/a" {
		t.Errorf("got %s", got)
	}
}

func TestShellCommand(t *testing.T) {
	p := New(Options{Socket: "/s", Project: "p"})
	argv, env := p.ShellCommand("i-1", nil)
	if want := "incus exec --project p local:i-1 -- bash -l"; strings.Join(argv, " ") != want {
		t.Errorf("got %v, want %s", argv, want)
	}
	if !slices.Equal(env, []string{"INCUS_SOCKET=/s"}) {
		t.Errorf("env %v", env)
	}
}

func TestLaunchRefusesIPv6(t *testing.T) {
	p := New(Options{Socket: "/none"})
	if err := p.Launch(context.Background(), compute.Spec{ID: "i", Address: netip.MustParsePrefix("fd00::1/64")}); err == nil {
		t.Error("no error")
	}
}

// peeking is a listener like Incus's: it accepts the next connection when the
// last one has sent something.
type peeking struct{ net.Listener }

type peeked struct {
	net.Conn
	first io.Reader
}

func (c *peeked) Read(p []byte) (int, error) { return c.first.Read(p) }

func (l peeking) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	r := bufio.NewReader(conn)
	_, _ = r.Peek(1)
	return &peeked{conn, r}, nil
}

// A connection that is made and not used would keep Incus from accepting any
// other, of anyone, for as long as it stays open.
func TestNoConnectionIsLeftUnused(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	ln, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	// The first answer comes when a second connection is being made, and that
	// one is there after the answer: too late to be of use to the second
	// request, if that could take the first connection.
	dialing, answered, there := make(chan struct{}), make(chan struct{}), make(chan struct{})
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		<-dialing
		reply(w, map[string]any{})
	}))
	srv.Listener = peeking{ln}
	srv.Start()
	t.Cleanup(srv.Close)
	c := newClient(socket, "p")
	t.Cleanup(c.http.CloseIdleConnections)
	transport := c.http.Transport.(*http.Transport)
	dial := transport.DialContext
	var dials atomic.Int32
	transport.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		if dials.Add(1) == 2 {
			close(dialing)
			<-answered
			defer close(there)
		}
		return dial(ctx, network, address)
	}
	var calls sync.WaitGroup
	var once sync.Once
	for range 2 {
		calls.Go(func() {
			if err := c.get(t.Context(), "/1.0", nil, nil); err != nil {
				t.Error(err)
			}
			once.Do(func() { close(answered) })
		})
	}
	calls.Wait()
	<-there
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if err := newClient(socket, "p").get(ctx, "/1.0", nil, nil); err != nil {
		t.Errorf("another client: %v", err)
	}
}

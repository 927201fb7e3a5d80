package app

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/openpcs/openpcs/internal/compute"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/image"
	"github.com/openpcs/openpcs/internal/store"
)

// Status is what `openpcs status` shows.
type Status struct {
	Version  string    `json:"version"`
	API      string    `json:"api"`
	CABundle string    `json:"caBundle,omitempty"` // what clients must trust
	Region   string    `json:"region"`
	Account  string    `json:"account"`
	StateDir string    `json:"stateDir"`
	Started  time.Time `json:"started"`
	PID      int       `json:"pid"`
	KeyID    string    `json:"accessKeyId"`
	Secret   string    `json:"secretAccessKey,omitempty"` // the socket is root's alone
}

// InstanceRow is one instance for people.
type InstanceRow struct {
	Name    string    `json:"name"`
	ID      string    `json:"id"`
	Status  string    `json:"status"`
	Cluster string    `json:"cluster"`
	Node    string    `json:"node"`
	Address string    `json:"address"`
	Type    string    `json:"type"`
	Image   string    `json:"image"`
	Since   time.Time `json:"since"`
	Reason  string    `json:"reason,omitempty"`
}

// NodeRow is one Slurm node for people.
type NodeRow struct {
	Name     string `json:"name"`
	ID       string `json:"id"` // cluster/name
	Status   string `json:"status"`
	Cluster  string `json:"cluster"`
	Group    string `json:"group"`
	Instance string `json:"instance"`
	Reason   string `json:"reason,omitempty"`
}

// Shell is a command line that reaches into an instance.
type Shell struct {
	Command []string `json:"command"`
	Env     []string `json:"env"`
}

// admin serves people's commands on a socket that only root can open.
func (a *App) admin() error {
	mux := http.NewServeMux()
	mux.Handle("/metrics", a.metrics.Handler(a.opts.Log))
	handle := func(pattern string, f func(r *http.Request) (any, error)) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			v, err := f(r)
			w.Header().Set("Content-Type", "application/json")
			if err != nil {
				status := http.StatusInternalServerError
				if errors.Is(err, store.ErrNotFound) || errors.Is(err, compute.ErrNotFound) {
					status = http.StatusNotFound
				}
				w.WriteHeader(status)
				v = map[string]string{"error": err.Error()}
			}
			_ = json.NewEncoder(w).Encode(v)
		})
	}
	handle("GET /v1/status", func(*http.Request) (any, error) {
		return Status{
			Version: a.opts.Version, API: a.secured.url(a.opts.Listen), CABundle: a.secured.bundle, Region: a.opts.Region, Account: a.opts.Account, StateDir: a.opts.StateDir,
			Started: a.started, PID: os.Getpid(), KeyID: a.root.ID, Secret: a.root.Secret,
		}, nil
	})
	handle("GET /v1/instances", func(r *http.Request) (any, error) { return a.instances(r.Context()) })
	handle("GET /v1/nodes", func(r *http.Request) (any, error) { return a.nodes(r.Context()) })
	handle("GET /v1/shell", func(r *http.Request) (any, error) {
		id, err := a.target(r.Context(), r.URL.Query().Get("target"))
		if err != nil {
			return nil, err
		}
		var s Shell
		s.Command, s.Env = a.provider.ShellCommand(id, r.URL.Query()["argv"])
		return s, nil
	})
	handle("GET /v1/logs", func(r *http.Request) (any, error) { return a.logs(r.Context(), r.URL.Query().Get("target")) })
	handle("GET /v1/scaling", func(r *http.Request) (any, error) { return a.scalingLog(r.Context(), r.URL.Query()) })
	handle("GET /v1/deliveries", func(*http.Request) (any, error) { return a.deliveries.Status(), nil })
	handle("GET /v1/audit", func(r *http.Request) (any, error) { return a.audit(r.Context(), r.URL.Query()) })
	handle("GET /v1/audit/verify", func(r *http.Request) (any, error) { return a.verify(r.Context(), r.URL.Query().Get("cluster")) })
	handle("GET /v1/explain", func(r *http.Request) (any, error) {
		q := r.URL.Query()
		return a.explain(r.Context(), q.Get("kind"), q.Get("cluster"), q.Get("target"))
	})
	handle("GET /v1/images", func(r *http.Request) (any, error) { return a.images(r.Context()) })
	handle("POST /v1/images", func(r *http.Request) (any, error) {
		var b image.Built
		if err := json.NewDecoder(r.Body).Decode(&b); err != nil {
			return nil, err
		}
		return a.importImage(r.Context(), b)
	})
	handle("DELETE /v1/images/{id}", func(r *http.Request) (any, error) {
		return struct{}{}, a.removeImage(r.Context(), r.PathValue("id"))
	})
	handle("GET /v1/faults", func(r *http.Request) (any, error) { return a.faults(r.Context()) })
	handle("POST /v1/faults", func(r *http.Request) (any, error) {
		var in FaultIn
		if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
			return nil, err
		}
		return a.addFault(r.Context(), in)
	})
	handle("DELETE /v1/faults/{id}", func(r *http.Request) (any, error) {
		return struct{}{}, a.removeFault(r.Context(), r.PathValue("id"))
	})
	_ = os.Remove(a.opts.Socket()) // left by a killed one; the lock is ours
	old := unixMask()
	err := a.listen("unix", a.opts.Socket(), mux, nil)
	old()
	return err
}

func (a *App) instances(ctx context.Context) ([]InstanceRow, error) {
	rows := []InstanceRow{}
	err := a.store.View(ctx, func(tx *store.Tx) error {
		all, err := fleet.Instances.All(tx)
		if err != nil {
			return err
		}
		clusters, err := fleet.Clusters.All(tx)
		if err != nil {
			return err
		}
		names := map[string]string{}
		for _, c := range clusters {
			names[c.ID] = c.Name
			rows = append(rows, InstanceRow{
				Name: "slurmctld-primary", ID: c.ControllerID, Status: string(fleet.Running), Cluster: c.Name,
				Address: c.ControllerAddress, Since: c.CreatedAt,
			})
		}
		for _, i := range all {
			rows = append(rows, InstanceRow{
				Name: i.NodeName, ID: i.ID, Status: string(i.State), Cluster: firstOf(names[i.ClusterID], i.ClusterID), Node: i.NodeName,
				Address: i.Address, Type: i.Type, Image: i.ImageID, Since: i.LaunchedAt, Reason: firstOf(i.Failure, i.StateReason),
			})
		}
		return nil
	})
	return rows, err
}

func firstOf(texts ...string) string {
	for _, t := range texts {
		if t != "" {
			return t
		}
	}
	return ""
}

func (a *App) nodes(ctx context.Context) ([]NodeRow, error) {
	rows := []NodeRow{}
	err := a.store.View(ctx, func(tx *store.Tx) error {
		clusters, err := fleet.Clusters.All(tx)
		if err != nil {
			return err
		}
		for _, c := range clusters {
			groups, err := fleet.Groups.Of(tx, c.ID)
			if err != nil {
				return err
			}
			instances, err := fleet.Instances.Of(tx, c.ID)
			if err != nil {
				return err
			}
			live := map[string]fleet.Instance{} // by node
			for _, i := range instances {
				if i.State.Live() {
					live[i.NodeName] = i
				}
			}
			states := a.control.States(c.ID)
			for _, g := range groups {
				for n := 1; n <= g.Max; n++ {
					row := NodeRow{Name: g.NodeName(n), ID: fleet.NodeID(c.ID, g.NodeName(n)), Cluster: c.Name, Group: g.Name, Status: "UNKNOWN"}
					if s, ok := states[row.Name]; ok {
						row.Status, row.Reason = strings.Join(s.State, "+"), s.Reason
					}
					i := live[row.Name]
					row.Instance = i.ID
					if trouble := i.Trouble(); row.Reason == "" && len(trouble) > 0 {
						row.Reason = string(trouble[0].Code) + ": see openpcs explain " + row.Name
					}
					rows = append(rows, row)
				}
			}
		}
		return nil
	})
	return rows, err
}

// target finds the instance that a person means: by instance id, node name
// or private host name; the cluster's name means its controller.
func (a *App) target(ctx context.Context, name string) (id string, err error) {
	if name == "" {
		return "", errors.New("name a node or an instance")
	}
	err = a.store.View(ctx, func(tx *store.Tx) error {
		all, err := fleet.Instances.All(tx)
		if err != nil {
			return err
		}
		clusters, err := fleet.Clusters.All(tx)
		if err != nil {
			return err
		}
		var found []string
		var gone *fleet.Instance
		for _, i := range all {
			_, node, _ := strings.Cut(name, "/")
			matches := i.ID == name || i.NodeName == name || i.PrivateDNS() == name || i.Address == name ||
				(node != "" && fleet.NodeID(i.ClusterID, i.NodeName) == name)
			switch {
			case matches && i.State.Live():
				found = append(found, i.ID)
			case matches:
				gone = &i
			}
		}
		for _, c := range clusters {
			if c.Name == name || c.ID == name || c.ControllerID == name {
				found = append(found, c.ControllerID)
			}
		}
		switch {
		case len(found) == 1:
			id = found[0]
			return nil
		case len(found) > 1:
			return fmt.Errorf("%s is ambiguous: say one of %s", name, strings.Join(found, ", "))
		case gone != nil:
			return missing("the instance %s is terminated (%s): openpcs logs %s shows what was kept", gone.ID, firstOf(gone.Failure, gone.StateReason), gone.ID)
		default:
			return missing("no instance runs for %q: openpcs instances lists those that do", name)
		}
	})
	return id, err
}

// missingError says in its own words what is not there.
type missingError struct{ text string }

func (e *missingError) Error() string { return e.text }

func (e *missingError) Is(target error) bool { return target == store.ErrNotFound }

func missing(format string, args ...any) error { return &missingError{fmt.Sprintf(format, args...)} }

// LogRow is one log of an instance.
type LogRow struct {
	Name   string `json:"name"`
	ID     string `json:"id"`     // instance/name
	Status string `json:"status"` // live, or kept of an instance that is gone
	Text   string `json:"text"`
}

// logs returns an instance's logs: kept ones, or read from it.
func (a *App) logs(ctx context.Context, name string) ([]LogRow, error) {
	out := []LogRow{}
	add := func(id, log, status string, text []byte) {
		out = append(out, LogRow{log, id + "/" + log, status, string(text)})
	}
	id := name
	if !a.control.Kept(id) {
		var err error
		if id, err = a.target(ctx, name); err != nil {
			return nil, err
		}
	}
	logs, kept, err := a.control.Logs(ctx, id)
	status := "live"
	if kept {
		status = "kept"
	}
	for _, l := range logs {
		add(id, l.Name, status, l.Text)
	}
	return out, err
}

// ImageRow is one image for people.
type ImageRow struct {
	Name      string    `json:"name"`
	ID        string    `json:"id"`
	Status    string    `json:"status"`
	Ref       string    `json:"ref"` // the engine's name for it
	Slurm     []string  `json:"slurm"`
	CreatedAt time.Time `json:"createdAt"`
}

func imageRow(i fleet.Image, status string) ImageRow {
	return ImageRow{Name: i.Name, ID: i.ID, Status: status, Ref: i.Ref, Slurm: append([]string{}, i.Slurm...), CreatedAt: i.CreatedAt}
}

func (a *App) images(ctx context.Context) ([]ImageRow, error) {
	rows := []ImageRow{}
	err := a.store.View(ctx, func(tx *store.Tx) error {
		all, err := fleet.Images.All(tx)
		for _, i := range all {
			status := "available"
			if i.Deprecated {
				status = "deprecated"
			}
			rows = append(rows, imageRow(i, status))
		}
		return err
	})
	return rows, err
}

// importImage makes a built image known. The same content has the same id;
// older images of its kind are deprecated, and removed once nothing uses
// them.
func (a *App) importImage(ctx context.Context, b image.Built) (ImageRow, error) {
	ref, err := a.provider.ImportImage(ctx, compute.Image{Name: b.Name, MetadataPath: b.MetadataPath, RootfsPath: b.RootfsPath})
	if err != nil {
		return ImageRow{}, err
	}
	sum := sha256.Sum256([]byte(b.Key))
	img := fleet.Image{
		ID: "ami-0" + hex.EncodeToString(sum[:8]), Name: b.Name, Owner: "amazon", Architecture: b.Architecture,
		CreatedAt: b.CreatedAt, Ref: ref, Agent: b.SlurmVersion != "", CloudInit: b.SlurmVersion == "",
		Description: "openpcs sample image of Debian " + b.Suite,
	}
	if b.SlurmVersion != "" {
		img.Slurm = []string{b.Version}
		img.Description += " with Slurm " + b.SlurmVersion + " and the PCS agent"
	} else {
		img.Description += " without Slurm and without the PCS agent"
	}
	var old []fleet.Image
	err = a.store.Update(ctx, func(tx *store.Tx) error {
		all, err := fleet.Images.All(tx)
		if err != nil {
			return err
		}
		for _, other := range all {
			if other.ID != img.ID && other.Owner == img.Owner && slices.Equal(other.Slurm, img.Slurm) && other.CreatedAt.Before(img.CreatedAt) {
				other.Deprecated = true
				old = append(old, other)
				if err := fleet.Images.Put(tx, other); err != nil {
					return err
				}
			}
		}
		return fleet.Images.Put(tx, img)
	})
	if err != nil {
		return ImageRow{}, err
	}
	for _, o := range old {
		if err := a.removeImage(ctx, o.ID); err != nil {
			a.opts.Log.Info("Older image stays", "image", o.ID, "why", err)
		}
	}
	return imageRow(img, "available"), nil
}

// removeImage forgets an image that nothing uses.
func (a *App) removeImage(ctx context.Context, id string) error {
	var img fleet.Image
	err := a.store.Update(ctx, func(tx *store.Tx) (err error) {
		img, err = fleet.Images.Get(tx, id)
		if errors.Is(err, store.ErrNotFound) {
			return missing("there is no image %s: openpcs image list shows those there are", id)
		}
		if err != nil {
			return err
		}
		groups, err := fleet.Groups.All(tx)
		if err != nil {
			return err
		}
		for _, g := range groups {
			if g.Launch.ImageID == id {
				return fmt.Errorf("remove the image %s: the compute node group %s uses it", id, g.ID)
			}
		}
		instances, err := fleet.Instances.All(tx)
		if err != nil {
			return err
		}
		for _, i := range instances {
			if i.ImageID == id && i.State.Live() {
				return fmt.Errorf("remove the image %s: the instance %s uses it", id, i.ID)
			}
		}
		return fleet.Images.Delete(tx, id)
	})
	if err != nil {
		return err
	}
	if err := a.provider.DeleteImage(ctx, img.Ref); err != nil && !errors.Is(err, compute.ErrNotFound) {
		return err
	}
	return nil
}

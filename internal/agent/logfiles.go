package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/openpcs/openpcs/internal/tail"
)

// logDir is where the daemons of a controller write.
const logDir = "/var/log/slurm"

// A log that is larger than rotateAt is rotated, and the rotateKeep newest of its
// former files are kept: what the control plane can catch up with when it was
// away, and what a controller's disk has to bear.
const (
	rotateAt    = 64 << 20
	rotateKeep  = 4
	rotateEvery = 10 * time.Second
)

// logWait is how long a look at the logs may wait for something new.
const logWait = 30 * time.Second

// maxLogRead bounds one answer.
const maxLogRead = 4 << 20

// logFiles gives the control plane the logs of the daemons. It reads plain files
// alone, and the daemons know nothing of it: none can ever wait for a reader.
type logFiles struct{ dir tail.Dir }

// LogsSeen asks for the files once they are others than those seen.
type LogsSeen struct {
	Log  string      `json:"log"` // names begin with it
	Seen []tail.File `json:"seen"`
}

func (l logFiles) serve(mux *http.ServeMux) {
	mux.HandleFunc("GET /v1/logs", func(w http.ResponseWriter, r *http.Request) {
		files, err := l.dir.Files(r.Context(), r.URL.Query().Get("log"))
		l.answer(w, files, err)
	})
	mux.HandleFunc("GET /v1/users", func(w http.ResponseWriter, r *http.Request) {
		text, err := os.ReadFile("/etc/passwd")
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		reply(w, users(text))
	})
	mux.HandleFunc("POST /v1/logs/wait", func(w http.ResponseWriter, r *http.Request) {
		var in LogsSeen
		if !decode(w, r, &in) {
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), logWait)
		defer cancel()
		files, err := l.dir.Wait(ctx, in.Log, in.Seen)
		if errors.Is(err, context.DeadlineExceeded) {
			files, err = in.Seen, nil
		}
		l.answer(w, files, err)
	})
	mux.HandleFunc("GET /v1/logs/{inode}", func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		inode, e1 := strconv.ParseUint(r.PathValue("inode"), 10, 64)
		offset, e2 := strconv.ParseInt(q.Get("offset"), 10, 64)
		size, e3 := strconv.Atoi(q.Get("size"))
		if err := errors.Join(e1, e2, e3); err != nil || offset < 0 || size < 0 || size > maxLogRead {
			http.Error(w, fmt.Sprintf("inode and offset are numbers, and a size is at most %d", maxLogRead), http.StatusBadRequest)
			return
		}
		buf := make([]byte, size)
		n, err := l.dir.ReadAt(r.Context(), tail.File{Name: q.Get("name"), Inode: inode}, buf, offset)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			http.Error(w, err.Error(), http.StatusNotFound)
		case err != nil:
			http.Error(w, err.Error(), http.StatusInternalServerError)
		default:
			w.Header().Set("Content-Type", "application/octet-stream")
			_, _ = w.Write(buf[:n])
		}
	})
}

func (l logFiles) answer(w http.ResponseWriter, files []tail.File, err error) {
	// Before its first configuration a controller has no logs.
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	if files == nil {
		files = []tail.File{}
	}
	reply(w, files)
}

// users reads the names of a passwd file, by uid. Of several the first counts, as
// for getpwuid.
func users(passwd []byte) map[uint32]string {
	out := map[uint32]string{}
	for line := range strings.Lines(string(passwd)) {
		fields := strings.Split(line, ":")
		if len(fields) < 4 {
			continue
		}
		uid, err := strconv.ParseUint(fields[2], 10, 32)
		if _, known := out[uint32(uid)]; err == nil && !known {
			out[uint32(uid)] = fields[0]
		}
	}
	return out
}

// rotation keeps the logs of a folder from filling the disk.
type rotation struct {
	dir  string
	size int64
	keep int
	// daemons are who writes which log, and is to be told; others are copied and
	// truncated.
	daemons map[string]string
	tell    func(ctx context.Context, daemon string) error
	// untold are those who could not be told, and still write to a former file.
	untold map[string]bool
}

func newRotation() *rotation {
	return &rotation{
		dir: logDir, size: rotateAt, keep: rotateKeep,
		// slurmctld writes the completed jobs too.
		daemons: map[string]string{"slurmctld.log": "slurmctld", "jobcomp.log": "slurmctld", "slurmdbd.log": "slurmdbd"},
		tell: func(ctx context.Context, daemon string) error {
			r := command(ctx, "systemctl", "kill", "--kill-whom=main", "--signal=SIGUSR2", daemon)
			if r.Code != 0 {
				return fmt.Errorf("tell %s that its log was rotated: %s", daemon, r.Stderr)
			}
			return nil
		},
	}
}

func (r *rotation) run(ctx context.Context, log *slog.Logger) {
	ticker := time.NewTicker(rotateEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			if err := r.once(ctx); err != nil && ctx.Err() == nil {
				log.Warn("A log was not rotated", "err", err)
			}
		}
	}
}

// once rotates what is too large.
func (r *rotation) once(ctx context.Context) error {
	names, err := filepath.Glob(filepath.Join(r.dir, "*.log"))
	if err != nil {
		return err
	}
	var errs []error
	tell := map[string]bool{}
	maps.Copy(tell, r.untold)
	for _, path := range names {
		info, err := os.Lstat(path)
		if err != nil || !info.Mode().IsRegular() || info.Size() <= r.size {
			continue
		}
		if err := r.shift(path); err != nil {
			errs = append(errs, fmt.Errorf("rotate %s: %w", path, err))
			continue
		}
		daemon := r.daemons[filepath.Base(path)]
		if daemon != "" {
			err = os.Rename(path, path+".1")
			tell[daemon] = true
		} else {
			err = copyAway(path)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("rotate %s: %w", path, err))
		}
	}
	r.untold = map[string]bool{}
	for daemon := range tell {
		if err := r.tell(ctx, daemon); err != nil {
			r.untold[daemon] = true
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// shift makes place for the newest of a log's former files.
func (r *rotation) shift(path string) error {
	for n := r.keep; n > 0; n-- {
		from := path + "." + strconv.Itoa(n)
		var err error
		if n == r.keep {
			err = os.Remove(from)
		} else {
			err = os.Rename(from, path+"."+strconv.Itoa(n+1))
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// copyAway is for writers that cannot be told. What they write between the copy
// and the truncation is lost.
func copyAway(path string) error {
	from, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { _ = from.Close() }()
	to, err := os.OpenFile(path+".1", os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	if _, err := io.Copy(to, from); err != nil {
		_ = to.Close()
		return err
	}
	if err := to.Close(); err != nil {
		return err
	}
	return from.Truncate(0)
}

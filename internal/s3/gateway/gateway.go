// Package gateway is the storage behind the service s3: VersityGW's posix
// backend and S3 server, in a process of its own. It is one because the library
// changes the working directory and has one server per process, and so that
// nothing that goes wrong there stops the control plane. It knows nothing of
// the control plane but the identities that requests bring along.
package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"github.com/versity/versitygw/backend/posix"
	"github.com/versity/versitygw/s3api"
	"github.com/versity/versitygw/s3api/middlewares"

	"github.com/openpcs/openpcs/internal/s3"
)

// How much at a time. The front door has bounds of its own, per address.
const (
	maxConnections = 4096
	maxRequests    = 1024
	// S3's limits.
	maxParts = 10000   // of an upload
	maxCopy  = 5 << 30 // bytes of what is copied at once
)

// Run serves until the input ends. It prints s3.Ready when it listens.
func Run(ctx context.Context, in io.Reader, out io.Writer) error {
	var setup s3.Setup
	input := json.NewDecoder(in)
	if err := input.Decode(&setup); err != nil {
		return fmt.Errorf("read the settings of the storage: %w", err)
	}
	syscall.Umask(0o077) // what the library makes is nobody else's
	server, err := open(setup, func() { fmt.Fprintln(out, s3.Ready) })
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- server.ServeMultiPort([]string{setup.Socket}) }()
	gone := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, in)
		close(gone)
	}()
	select {
	case err := <-ended:
		return fmt.Errorf("serve the storage: %w", err)
	case <-gone: // whoever asked it is gone as well
		return nil
	case <-ctx.Done():
		return nil
	}
}

func open(setup s3.Setup, ready func()) (*s3api.S3ApiServer, error) {
	dirs := map[string]string{}
	for _, name := range []string{"buckets", "versions", "meta"} {
		dirs[name] = filepath.Join(setup.Dir, name)
		if err := os.MkdirAll(dirs[name], 0o700); err != nil {
			return nil, fmt.Errorf("make a folder of the storage: %w", err)
		}
	}
	attributes, err := newAttributes(dirs["buckets"], dirs["meta"])
	if err != nil {
		return nil, err
	}
	o := posix.PosixOpts{VersioningDir: dirs["versions"], CopyObjectThreshold: maxCopy}
	o.SetNewDirPerm(0o700)
	o.SetNewFilePerm(0o600)
	files, err := posix.New(dirs["buckets"], attributes, o)
	if err != nil {
		return nil, fmt.Errorf("open the storage: %w", err)
	}
	if err := os.Remove(setup.Socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove the socket of a former storage: %w", err)
	}
	server, err := s3api.New(files, middlewares.RootUserConfig{Access: setup.Account, Secret: setup.Secret}, setup.Region,
		identities{setup}, nil, nil, nil, nil,
		s3api.WithQuiet(), s3api.WithKeepAlive(), s3api.WithConcurrencyLimiter(maxConnections, maxRequests),
		s3api.WithMpMaxParts(maxParts), s3api.WithSocketPerm(0o600), s3api.WithOnListen(ready), s3api.WithMiddleware("/", setAddress), s3api.WithMiddleware("/", takeWhole))
	if err != nil {
		return nil, fmt.Errorf("open the storage: %w", err)
	}
	return server, nil
}

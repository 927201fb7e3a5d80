package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Storage is what S3 needs of the machine.
type Storage struct {
	Endpoint string // S3 elsewhere has the buckets; empty: they are in Dir
	Program  string // path of what serves them
	Dir      string // the state folder
	// ProgramErr is why the program is not there, and AttributesErr why files in
	// Dir cannot have attributes of users.
	ProgramErr, AttributesErr error
}

func (s Storage) observe() Storage {
	if s.Endpoint != "" {
		return s
	}
	_, s.ProgramErr = os.Stat(s.Program)
	s.AttributesErr = tryAttributes(s.Dir)
	return s
}

// tryAttributes gives an attribute to a file without a name, which leaves
// nothing behind.
func tryAttributes(dir string) error {
	for {
		fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
		if errors.Is(err, fs.ErrNotExist) && dir != "/" {
			dir = filepath.Dir(dir) // the file system that it will be on
			continue
		}
		if err != nil {
			return nil //nolint:nilerr // only root can write there; the check of root says so
		}
		defer func() { _ = unix.Close(fd) }()
		if err := unix.Fsetxattr(fd, "user.openpcs", []byte("x"), 0); err != nil {
			return fmt.Errorf("set an attribute in %s: %w", dir, err)
		}
		return nil
	}
}

// buckets is about the service s3.
func buckets(f Facts) Finding {
	const name = "s3"
	s := f.Storage
	switch {
	case s.Endpoint != "":
		return fine(name, "the buckets are at "+s.Endpoint)
	case s.ProgramErr != nil:
		return Finding{name, Warn, fmt.Sprintf("S3 cannot answer: the program that serves the buckets is missing: %v", s.ProgramErr), "build it with make build; it lies beside openpcs"}
	case s.AttributesErr != nil:
		return Finding{
			name, Warn, fmt.Sprintf("S3 cannot answer: files there cannot have extended attributes of users: %v", s.AttributesErr),
			"choose a folder on ext4, xfs, btrfs or zfs with OPENPCS_STATE, or buckets elsewhere with OPENPCS_S3_ENDPOINT",
		}
	}
	return fine(name, "the buckets are in "+filepath.Join(s.Dir, "s3"))
}

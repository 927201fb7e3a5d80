package s3

import (
	"io"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
)

// A program that ends at once, and says nothing, has not started the storage.
func TestStorageThatEndsAtOnce(t *testing.T) {
	dir := t.TempDir()
	s := newStorage([]string{"true"}, Setup{Dir: dir, Socket: filepath.Join(dir, "socket")}, slog.New(slog.NewTextHandler(io.Discard, nil)))
	defer s.close()
	for range 2 { // the second time it rests
		if err := s.open(); err == nil || !strings.HasPrefix(err.Error(), "start the storage: ") {
			t.Errorf("err = %v", err)
		}
	}
}

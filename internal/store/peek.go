package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"time"
)

// LatestEvent returns when the last event of a state file happened, the zero
// time if there is none or no such file. It changes nothing, and works beside
// a control plane that runs.
func LatestEvent(ctx context.Context, path string) (time.Time, error) {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return time.Time{}, nil
	}
	q := url.Values{"_pragma": {"busy_timeout(2000)", "query_only(ON)"}}
	db, err := sql.Open("sqlite", "file:"+(&url.URL{Path: path}).EscapedPath()+"?"+q.Encode())
	if err != nil {
		return time.Time{}, fmt.Errorf("open state file %s: %w", path, err)
	}
	defer func() { _ = db.Close() }()
	var at sql.NullInt64
	if err := db.QueryRowContext(ctx, `SELECT max(at) FROM events`).Scan(&at); err != nil {
		return time.Time{}, fmt.Errorf("read state file %s: %w", path, err)
	}
	if !at.Valid {
		return time.Time{}, nil
	}
	return time.Unix(0, at.Int64).UTC(), nil
}

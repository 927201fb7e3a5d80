package events

import (
	"context"
	"database/sql"
	"fmt"
	"time"
)

// sweepRows is how many events one transaction of Sweep removes: a writer waits
// for it some milliseconds.
const sweepRows = 2000

// Sweep removes what is past the retention of its group, and what is left of
// groups and streams that were deleted. It gives way to writers in between.
func (d *DB) Sweep(ctx context.Context, now time.Time) error {
	type job struct {
		group, stream, before int64 // of the group, or of the stream, before a time
		done                  string
		id                    int64
	}
	var jobs []job
	rows, err := d.read.QueryContext(ctx, `
		SELECT 's', id, grp, 0 FROM streams WHERE gone = 1 UNION ALL
		SELECT 'g', id, id, retention FROM groups WHERE gone = 1 UNION ALL
		SELECT 'r', id, id, retention FROM groups WHERE gone = 0 AND retention > 0`)
	if err != nil {
		return fmt.Errorf("look for old log events: %w", err)
	}
	const always = 1 << 62
	for rows.Next() {
		var kind string
		var id, group, days int64
		if err := rows.Scan(&kind, &id, &group, &days); err != nil {
			_ = rows.Close()
			return fmt.Errorf("look for old log events: %w", err)
		}
		switch kind {
		case "s":
			jobs = append(jobs, job{stream: id, group: group, before: always, done: `DELETE FROM streams WHERE id = ?`, id: id})
		case "g":
			jobs = append(jobs, job{group: group, before: always, done: `DELETE FROM groups WHERE id = ?`, id: id})
		default:
			jobs = append(jobs, job{group: group, before: now.AddDate(0, 0, -int(days)).UnixMilli()})
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("look for old log events: %w", err)
	}
	_ = rows.Close()
	for _, j := range jobs {
		for more := true; more; {
			err := d.change(ctx, func(tx *sql.Tx) (err error) {
				more, err = sweep(ctx, tx, j.group, j.stream, j.before)
				if err != nil || more || j.done == "" {
					return err
				}
				if j.stream != 0 {
					if _, err := tx.ExecContext(ctx, `DELETE FROM places WHERE stream = ?`, j.stream); err != nil {
						return err
					}
				}
				_, err = tx.ExecContext(ctx, j.done, j.id)
				return err
			})
			if err != nil {
				return fmt.Errorf("remove old log events: %w", err)
			}
		}
	}
	return d.shrink(ctx)
}

// sweep removes up to sweepRows events and says whether there may be more.
func sweep(ctx context.Context, tx *sql.Tx, group, stream, before int64) (more bool, err error) {
	which, id := `grp = ?`, group
	if stream != 0 {
		which, id = `stream = ?`, stream
	}
	rows, err := tx.QueryContext(ctx, `DELETE FROM events WHERE id IN (SELECT id FROM events WHERE `+which+` AND time < ? ORDER BY time LIMIT ?) RETURNING length(CAST(message AS BLOB))`, id, before, sweepRows)
	if err != nil {
		return false, err
	}
	defer func() { _ = rows.Close() }()
	var n, bytes int64
	for rows.Next() {
		var size int64
		if err := rows.Scan(&size); err != nil {
			return false, err
		}
		n++
		bytes += size + Overhead
	}
	if err := rows.Err(); err != nil {
		return false, err
	}
	_ = rows.Close()
	if n == 0 {
		return false, nil
	}
	_, err = tx.ExecContext(ctx, `UPDATE groups SET bytes = max(0, bytes - ?) WHERE id = ?`, bytes, group)
	return n == sweepRows, err
}

// shrinkPages is how many free pages go back to the file system at once.
const shrinkPages = 1000

// shrink gives free pages back, as long as there are many.
func (d *DB) shrink(ctx context.Context) error {
	for {
		var free int64
		if err := d.write.QueryRowContext(ctx, `PRAGMA freelist_count`).Scan(&free); err != nil {
			return fmt.Errorf("give back the space of log events: %w", err)
		}
		if free < shrinkPages {
			return nil
		}
		if _, err := d.write.ExecContext(ctx, fmt.Sprintf(`PRAGMA incremental_vacuum(%d)`, shrinkPages)); err != nil {
			return fmt.Errorf("give back the space of log events: %w", err)
		}
		var left int64
		if err := d.write.QueryRowContext(ctx, `PRAGMA freelist_count`).Scan(&left); err != nil || left >= free {
			return err
		}
	}
}

package app

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/scaling"
	"github.com/openpcs/openpcs/internal/store"
)

// maxRecords bounds one answer; whoever asks goes on after its last record.
const maxRecords = 1000

// scalingLog returns the records of a cluster, by name or id, after a cursor. A
// cluster that was deleted is found by its id.
func (a *App) scalingLog(ctx context.Context, q url.Values) ([]scaling.Entry, error) {
	after, err := strconv.ParseInt(firstOf(q.Get("after"), "0"), 10, 64)
	if err != nil {
		return nil, fmt.Errorf("after: %q is not a number", q.Get("after"))
	}
	out := []scaling.Entry{}
	err = a.store.View(ctx, func(tx *store.Tx) error {
		id, err := clusterOf(tx, q.Get("cluster"))
		if err != nil {
			return err
		}
		entries, err := scaling.Records(tx, id, after, maxRecords)
		out = append(out, entries...)
		return err
	})
	return out, err
}

// clusterOf finds the id of a cluster that has, or may get, a scaling log.
func clusterOf(tx *store.Tx, name string) (string, error) {
	clusters, err := fleet.Clusters.All(tx)
	if err != nil {
		return "", err
	}
	var found []string
	for _, c := range clusters {
		if c.ID == name || c.Name == name {
			found = append(found, c.ID)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		gone, err := scaling.Clusters(tx)
		if err == nil && !slices.Contains(gone, name) {
			err = missing("there is no cluster %q: openpcs clusters lists those that exist, and one that was deleted is named by its id", name)
		}
		return name, err
	default:
		return "", fmt.Errorf("%s is ambiguous: say one of %s", name, strings.Join(found, ", "))
	}
}

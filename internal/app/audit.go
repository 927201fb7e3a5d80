package app

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/openpcs/openpcs/internal/audit"
	"github.com/openpcs/openpcs/internal/collect"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/journal"
	"github.com/openpcs/openpcs/internal/store"
)

// maxAuditRows bounds one answer.
const maxAuditRows = 100_000

// requestType is the form of Slurm's names: REQUEST_PING, DBD_GET_JOBS_COND.
var requestType = regexp.MustCompile(`^[A-Z]+(_[A-Z0-9]+)+$`)

// Audited is what `openpcs audit` shows.
type Audited struct {
	Cluster string `json:"cluster"`
	audit.Result
}

// Verified is one journal as `openpcs audit verify` shows it.
type Verified struct {
	Name   string `json:"name"` // log type/log name
	ID     string `json:"id"`   // cluster/log type/log name
	Status string `json:"status"`
	journal.Report
}

// What a verification can come to.
const (
	JournalWhole   = "whole"
	JournalDamaged = "damaged"
)

// audit searches the audit records of a cluster.
func (a *App) audit(ctx context.Context, q url.Values) (out Audited, err error) {
	query := audit.Query{Client: q.Get("client")}
	for name, at := range map[string]*time.Time{"since": &query.Since, "until": &query.Until} {
		if text := q.Get(name); text != "" {
			if *at, err = time.Parse(time.RFC3339Nano, text); err != nil {
				return out, fmt.Errorf("%s: %q is not a time, such as 2026-11-30T16:00:00Z", name, text)
			}
		}
	}
	if query.Limit, err = strconv.Atoi(firstOf(q.Get("limit"), "1000")); err != nil || query.Limit < 1 || query.Limit > maxAuditRows {
		return out, fmt.Errorf("limit: %q is not 1 to %d", q.Get("limit"), maxAuditRows)
	}
	for _, kind := range q["type"] {
		if !requestType.MatchString(kind) {
			return out, fmt.Errorf("type: %q is not the type of a request, such as REQUEST_SUBMIT_BATCH_JOB", kind)
		}
	}
	query.Types = q["type"]
	var users map[uint32]string
	var homes []home
	err = a.store.View(ctx, func(tx *store.Tx) error {
		if out.Cluster, err = a.auditedCluster(tx, q.Get("cluster")); err != nil {
			return err
		}
		users = collect.Users(tx, out.Cluster)
		homes, err = readHomes(tx)
		return err
	})
	if err != nil {
		return out, err
	}
	for _, user := range q["user"] {
		uid, err := uidOf(user, users)
		if err != nil {
			return out, err
		}
		query.UIDs = append(query.UIDs, uid)
	}
	// What the daemons wrote before this question is part of the answer.
	wait, cancel := context.WithTimeout(ctx, auditWait)
	a.collector.Drain(wait, out.Cluster)
	cancel()
	logs := append(a.collector.Journals(out.Cluster, collect.SchedulerLogs), a.collector.Journals(out.Cluster, collect.AuditLogs)...)
	if out.Result, err = audit.Search(ctx, logs, query); err != nil {
		return out, err
	}
	for k := range out.Rows {
		r := &out.Rows[k]
		r.User = firstOf(users[r.UID], r.User)
		r.Node = nodeAt(homes, r.Client, r.Time)
	}
	return out, nil
}

// auditWait bounds how long a search waits for the newest records of a controller.
const auditWait = 2 * time.Second

// auditedCluster finds a cluster by name or id; one that was deleted by its id.
// Without a name it is the only one.
func (a *App) auditedCluster(tx *store.Tx, name string) (string, error) {
	clusters, err := fleet.Clusters.All(tx)
	if err != nil {
		return "", err
	}
	var found []string
	for _, c := range clusters {
		if c.ID == name || c.Name == name || name == "" {
			found = append(found, c.ID)
		}
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1 && name == "":
		return "", errors.New("there are several clusters: name one")
	case len(found) > 1:
		return "", fmt.Errorf("%s is ambiguous: say one of %s", name, strings.Join(found, ", "))
	case name == "":
		return "", missing("there is no cluster; one that was deleted is named by its id, while its logs are kept: %s", firstOf(strings.Join(a.collector.Clusters(), ", "), "none is"))
	case slices.Contains(a.collector.Clusters(), name):
		return name, nil
	default:
		return "", missing("there is no cluster %q: openpcs clusters lists those that exist, and one that was deleted is named by its id, while its logs are kept", name)
	}
}

// uidOf finds a user by name or number.
func uidOf(user string, users map[uint32]string) (uint32, error) {
	if uid, err := strconv.ParseUint(user, 10, 32); err == nil {
		return uint32(uid), nil
	}
	for _, uid := range slices.Sorted(maps.Keys(users)) {
		if users[uid] == user {
			return uid, nil
		}
	}
	return 0, missing("the controller knows no user %q: give the uid, which is a number", user)
}

// home is an address that something had from a time on.
type home struct {
	address, name string
	since         time.Time
}

func readHomes(tx *store.Tx) (out []home, err error) {
	clusters, err := fleet.Clusters.All(tx)
	if err != nil {
		return nil, err
	}
	for _, c := range clusters {
		out = append(out, home{c.ControllerAddress, "slurmctld-primary", c.CreatedAt})
	}
	instances, err := fleet.Instances.All(tx)
	for _, i := range instances {
		out = append(out, home{i.Address, firstOf(i.NodeName, i.ID), i.LaunchedAt})
	}
	return out, err
}

// nodeAt is who had the address of a client at a time, as far as it is known.
func nodeAt(homes []home, client string, at time.Time) (name string) {
	host := client
	if i := strings.LastIndexByte(client, ':'); i >= 0 {
		host = strings.Trim(client[:i], "[]")
	}
	var since time.Time
	for _, h := range homes {
		if h.address == host && !h.since.After(at) && !h.since.Before(since) {
			name, since = h.name, h.since
		}
	}
	return name
}

// verify computes the chains of a cluster's journals anew; without a name those of
// all clusters.
func (a *App) verify(ctx context.Context, cluster string) ([]Verified, error) {
	clusters := a.collector.Clusters()
	if cluster != "" {
		err := a.store.View(ctx, func(tx *store.Tx) error {
			id, err := a.auditedCluster(tx, cluster)
			clusters = []string{id}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	out := []Verified{}
	for _, id := range clusters {
		for _, j := range a.collector.Journals(id, "") {
			anchor, err := a.collector.Anchor(ctx, j.Key())
			if err != nil {
				return nil, err
			}
			report, err := j.Verify(anchor)
			if err != nil {
				return nil, err
			}
			v := Verified{Name: j.Key().LogType + "/" + j.Key().LogName, ID: j.Key().String(), Status: JournalWhole, Report: report}
			if len(report.Damage) > 0 {
				v.Status = JournalDamaged
			}
			out = append(out, v)
		}
	}
	return out, nil
}

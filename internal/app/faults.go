package app

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/openpcs/openpcs/internal/fault"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/store"
)

// FaultIn is a fault that a person asks for.
type FaultIn struct {
	Group   string        `json:"group"` // id or name
	Cluster string        `json:"cluster,omitempty"`
	Kind    string        `json:"kind"`
	Count   int           `json:"count,omitempty"`
	For     time.Duration `json:"for,omitempty"`
	Delay   time.Duration `json:"delay,omitempty"`
	Type    string        `json:"type,omitempty"`
}

// FaultRow is a fault for people.
type FaultRow struct {
	Name    string    `json:"name"` // the kind
	ID      string    `json:"id"`
	Status  string    `json:"status"` // what is left of it
	Cluster string    `json:"cluster"`
	Group   string    `json:"group"`
	Struck  int       `json:"struck"`
	Until   time.Time `json:"until,omitzero"`
}

func faultRow(f fault.Fault, cluster string) FaultRow {
	status := fmt.Sprintf("%d left", f.Left)
	if !f.Until.IsZero() {
		status = "until " + f.Until.Format(time.RFC3339)
	}
	return FaultRow{Name: string(f.Kind), ID: f.ID, Status: status, Cluster: cluster, Group: f.Group, Struck: f.Struck, Until: f.Until}
}

var errNoFaults = errors.New("faults are off: start the control plane with OPENPCS_FAULTS=on")

func (a *App) addFault(ctx context.Context, in FaultIn) (FaultRow, error) {
	if !a.opts.Faults {
		return FaultRow{}, errNoFaults
	}
	f, err := fault.New(in.Kind, in.Count, in.For, in.Delay, in.Type, time.Now().UTC())
	if err != nil {
		return FaultRow{}, err
	}
	var cluster string
	err = a.store.View(ctx, func(tx *store.Tx) error {
		clusters, err := fleet.Clusters.All(tx)
		if err != nil {
			return err
		}
		var found []string
		for _, c := range clusters {
			if in.Cluster != "" && in.Cluster != c.ID && in.Cluster != c.Name {
				continue
			}
			groups, err := fleet.Groups.Of(tx, c.ID)
			if err != nil {
				return err
			}
			for _, g := range groups {
				if g.ID == in.Group || g.Name == in.Group {
					found = append(found, c.Name+" ("+c.ID+")")
					f.ClusterID, f.GroupID, f.Group, cluster = c.ID, g.ID, g.Name, c.Name
				}
			}
		}
		switch {
		case len(found) == 0:
			return missing("there is no compute node group %q: openpcs groups lists them", in.Group)
		case len(found) > 1:
			return fmt.Errorf("%s is in several clusters, %s: say which with --cluster", in.Group, strings.Join(found, ", "))
		}
		return nil
	})
	if err != nil {
		return FaultRow{}, err
	}
	return faultRow(f, cluster), a.control.AddFault(ctx, f)
}

func (a *App) faults(ctx context.Context) ([]FaultRow, error) {
	rows := []FaultRow{}
	if !a.opts.Faults {
		return nil, errNoFaults
	}
	err := a.store.View(ctx, func(tx *store.Tx) error {
		clusters, err := fleet.Clusters.All(tx)
		if err != nil {
			return err
		}
		for _, c := range clusters {
			all, err := fault.Of(tx, c.ID, time.Now())
			if err != nil {
				return err
			}
			for _, f := range all {
				rows = append(rows, faultRow(f, c.Name))
			}
		}
		return nil
	})
	return rows, err
}

func (a *App) removeFault(ctx context.Context, id string) error {
	err := a.control.RemoveFault(ctx, id)
	if errors.Is(err, store.ErrNotFound) {
		return missing("there is no fault %q: openpcs fault list shows those that are left", id)
	}
	return err
}

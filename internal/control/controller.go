package control

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/openpcs/openpcs/internal/compute"
	"github.com/openpcs/openpcs/internal/fault"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/secretsmanager"
	"github.com/openpcs/openpcs/internal/slurm"
	"github.com/openpcs/openpcs/internal/store"
)

// ensureController starts the cluster's controller unless it runs.
func (c *Control) ensureController(ctx context.Context, l *loop, cl fleet.Cluster) error {
	if c.isRunning(cl.ControllerID) {
		return nil
	}
	image, err := c.controllerImage(ctx, cl)
	if err != nil {
		return err
	}
	if err := c.makeDirs(cl); err != nil {
		return fmt.Errorf("make the cluster's folders: %w", err)
	}
	address, err := c.prefix(cl.ControllerAddress)
	if err != nil {
		return err
	}
	err = c.Provider.Launch(ctx, compute.Spec{
		ID: cl.ControllerID, Image: image.Ref, Role: "controller", Hostname: "slurmctld-primary",
		Domain: fleet.PrivateDomain(cl.Region), Address: address,
		Mounts: []compute.Mount{
			{Name: "home", Source: c.homeDir(cl), Target: "/home"},
			{Name: "state", Source: filepath.Join(c.clusterDir(cl), "state"), Target: slurm.StateDir},
			{Name: "accounting", Source: filepath.Join(c.clusterDir(cl), "accounting"), Target: slurm.AccountingDir},
		},
		Labels: map[string]string{labelCluster: cl.ID, labelKind: "controller"},
	})
	if err != nil {
		return fmt.Errorf("launch the controller: %w", err)
	}
	// It may be a new one, without configuration: what was said before of its
	// nodes does not count any more.
	l.setStates(nil, true)
	c.setPresent(cl.ControllerID, compute.Running)
	return nil
}

// controllerImage is the newest image with the cluster's Slurm.
func (c *Control) controllerImage(ctx context.Context, cl fleet.Cluster) (image fleet.Image, err error) {
	err = c.Store.View(ctx, func(tx *store.Tx) error {
		all, err := fleet.Images.All(tx)
		for _, i := range all {
			if slices.Contains(i.Slurm, cl.Version) && (image.ID == "" || i.CreatedAt.After(image.CreatedAt)) {
				image = i
			}
		}
		return err
	})
	if err == nil && image.ID == "" {
		err = fmt.Errorf("no image with Slurm %s is built: run openpcs image build %s", cl.Version, cl.Version)
	}
	return image, err
}

// defaultUser is the uid and gid of the image's user ubuntu.
const defaultUser = 1000

// makeDirs makes the folders that a cluster's instances share: the homes,
// slurmctld's state and the records of accounting. Ids are those inside, as the mounts are shifted.
func (c *Control) makeDirs(cl fleet.Cluster) error {
	home := filepath.Join(c.homeDir(cl), "ubuntu")
	state := filepath.Join(c.clusterDir(cl), "state")
	accounting := filepath.Join(c.clusterDir(cl), "accounting")
	for _, d := range []struct {
		path string
		mode os.FileMode
	}{
		// Root in an instance can make a set-uid program in a shared folder: no
		// user of the host may reach it there.
		{filepath.Dir(c.clusterDir(cl)), 0o700},
		{c.clusterDir(cl), 0o700},
		{c.homeDir(cl), 0o755},
		{home, 0o750},
		{state, 0o700},
		{accounting, 0o700},
	} {
		if err := os.MkdirAll(d.path, d.mode); err != nil {
			return err
		}
		if err := os.Chmod(d.path, d.mode); err != nil {
			return err
		}
	}
	return os.Chown(home, defaultUser, defaultUser)
}

// deleteCluster removes a cluster that has no group and no queue.
func (c *Control) deleteCluster(ctx context.Context, cl fleet.Cluster) error {
	if c.Last != nil {
		c.Last(ctx, cl.ID)
	}
	if err := c.Provider.Terminate(ctx, cl.ControllerID); err != nil {
		return fmt.Errorf("terminate the controller: %w", err)
	}
	if err := os.RemoveAll(c.clusterDir(cl)); err != nil {
		return fmt.Errorf("remove the cluster's folders: %w", err)
	}
	err := c.Store.Update(ctx, func(tx *store.Tx) error {
		if err := secretsmanager.Delete(tx, cl.KeyARN); err != nil && !errors.Is(err, store.ErrNotFound) {
			return err
		}
		instances, err := fleet.Instances.Of(tx, cl.ID)
		if err != nil {
			return err
		}
		for _, i := range instances {
			if i.State.Live() {
				return fmt.Errorf("delete the cluster: the instance %s is %s", i.ID, i.State)
			}
		}
		nodes, err := fleet.Nodes.Of(tx, cl.ID)
		if err != nil {
			return err
		}
		for _, n := range nodes {
			if err := fleet.Nodes.Delete(tx, fleet.NodeID(cl.ID, n.Name)); err != nil {
				return err
			}
		}
		if err := fault.Forget(tx, cl.ID, time.Now(), func(string) bool { return true }); err != nil {
			return err
		}
		return fleet.Clusters.Delete(tx, cl.ID)
	})
	if err != nil {
		return err
	}
	c.Log.Info("Cluster is deleted", "cluster", cl.ID)
	return errGone
}

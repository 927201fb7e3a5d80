package slurm

import (
	"fmt"
	"strconv"
)

// Ports of the daemons on the controller, Slurm's own defaults.
const (
	SlurmctldPort  = 6817
	SlurmdbdPort   = 6819
	SlurmrestdPort = 6820
)

// KeyFile is the cluster's key on the controller: of auth/slurm, and of the
// tokens that slurmrestd is called with.
const KeyFile = "/etc/slurm/slurm.key"

// tokenParameters are those of tokens: they are signed with the cluster's key,
// and may say who somebody is (uid, gid, id) in place of the name (sun).
var tokenParameters = []string{"jwt_key=" + KeyFile, "use_jwt_client_ids"}

// AccountingDir is where the database of slurmdbd is on the controller.
const AccountingDir = "/var/lib/slurm-accounting"

// SlurmdbdConf is slurmdbd's file among those of a cluster.
const SlurmdbdConf = "slurmdbd.conf"

// Accounting is what slurmdbd.conf of a cluster is made of.
type Accounting struct {
	// PurgeDays is after how many days records go; less than 1: never.
	PurgeDays int
	Settings  []Setting // checked for SlurmdbdLevel
}

// purged are the kinds of records that defaultPurgeTimeInDays is for.
func (v Version) purged() []string {
	kinds := []string{"Event", "Job", "Resv", "Step", "Suspend", "TXN", "Usage"}
	if v.PurgeScripts {
		kinds = append(kinds, "JobEnv", "JobScript")
	}
	return kinds
}

// slurmdbdConf writes slurmdbd.conf. The database is on the same host, knows
// slurm by its user id, and listens on a socket alone: there is no password.
func (c Config) slurmdbdConf() ([]byte, error) {
	w := writer{over: overrides(c.Accounting.Settings)}
	w.comment("Written by openpcs. Changes here are overwritten.")
	w.set("DbdHost", c.ControllerName)
	w.set("DbdAddr", c.ControllerAddress)
	w.set("DbdPort", strconv.Itoa(SlurmdbdPort))
	w.set("SlurmUser", "slurm")
	w.set("AuthType", "auth/slurm")
	w.set("AuthInfo", "use_client_ids")
	if c.REST {
		w.set("AuthAltTypes", "auth/jwt")
		w.list("AuthAltParameters", merge(tokenParameters, words(overrides(c.Settings)["AuthAltParameters"])))
	}
	w.set("StorageType", "accounting_storage/mysql")
	w.set("StorageHost", "localhost")
	w.set("StorageUser", "slurm")
	w.set("StorageLoc", "slurm_acct_db")
	w.set("PidFile", "/run/slurmdbd/slurmdbd.pid")
	w.set("LogFile", "/var/log/slurm/slurmdbd.log")
	w.set("LogTimeFormat", logTimeFormat)
	w.set("DebugLevel", "verbose") // as slurmctld's: audit lines are of this level
	w.set("DebugFlags", "AuditRPCs")
	if c.Version.CommitDelay {
		w.set("CommitDelay", "1")
	}
	for _, kind := range c.Version.purged() {
		if key := "Purge" + kind + "After"; c.Accounting.PurgeDays > 0 {
			w.set(key, fmt.Sprintf("%ddays", c.Accounting.PurgeDays))
		}
	}
	w.rest()
	return w.buf.Bytes(), w.err
}

// account writes what slurm.conf has of accounting and of the REST API.
func (c Config) account(w *writer) {
	w.set("JobAcctGatherType", "jobacct_gather/linux")
	if c.Accounting != nil {
		w.set("AccountingStorageType", "accounting_storage/slurmdbd")
		w.set("AccountingStorageHost", c.ControllerAddress)
		w.set("AccountingStoragePort", strconv.Itoa(SlurmdbdPort))
	}
	if c.REST {
		w.set("AuthAltTypes", "auth/jwt")
		w.list("AuthAltParameters", merge(tokenParameters, words(w.take("AuthAltParameters"))))
	}
}

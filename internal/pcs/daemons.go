package pcs

import (
	"cmp"
	"strconv"

	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/slurm"
)

// The modes of accounting and of the REST API.
const (
	modeNone     = "NONE"
	modeStandard = "STANDARD"
)

const (
	accountingField = "slurmConfiguration.accounting"
	restField       = "slurmConfiguration.slurmRest.mode"
	slurmdbdField   = "slurmConfiguration.slurmdbdCustomSettings"
	cgroupField     = "slurmConfiguration.cgroupCustomSettings"
)

// clusterModes checks what can be checked of the Slurm part of a request
// without its cluster.
func (c *check) clusterModes(in *ClusterSlurm) {
	c.pairs(slurmdbdField, in.SlurmdbdCustomSettings)
	c.pairs(cgroupField, in.CgroupCustomSettings)
	if a := in.Accounting; a != nil {
		c.optionalEnum(accountingField+".mode", a.Mode, modeNone, modeNone, modeStandard)
		if days := c.number(accountingField+".defaultPurgeTimeInDays", a.DefaultPurgeTimeInDays, -1, 10000, -1); days == 0 {
			c.bad(accountingField+".defaultPurgeTimeInDays", "0 is not allowed: use -1 to keep records, or 1 to 10000 days")
		}
	}
	if rest := in.SlurmRest; rest != nil {
		c.optionalEnum(restField, rest.Mode, modeNone, modeNone, modeStandard)
	}
}

// configureCluster puts what a request asks for into the cluster's Slurm
// configuration, and checks that it goes together. A list that is given
// replaces the one before as a whole; what is left out stays.
func (c *check) configureCluster(cl *fleet.Cluster, in *ClusterSlurm) {
	if in == nil {
		return
	}
	if a := in.Accounting; a != nil {
		if a.Mode != nil {
			cl.Accounting.On = *a.Mode == modeStandard
		}
		if a.DefaultPurgeTimeInDays != nil {
			cl.Accounting.PurgeDays = *a.DefaultPurgeTimeInDays
			if cl.Accounting.PurgeDays > 0 && !cl.Accounting.On {
				c.bad(accountingField+".defaultPurgeTimeInDays", "there are no records to purge without accounting: use mode STANDARD, or leave it out")
			}
		}
	}
	if in.SlurmRest != nil && in.SlurmRest.Mode != nil {
		cl.REST = *in.SlurmRest.Mode == modeStandard
		if v, _ := slurm.FindVersion(cl.Version); cl.REST && !v.REST {
			c.bad(restField, "STANDARD is only supported for Slurm version 25.05 or later, and the cluster runs %s: use NONE", cl.Version)
		}
	}
	set := func(field string, level slurm.Level, given []Setting, now *[]slurm.Setting) {
		if given != nil {
			*now = c.settings(field, level, cl.Version, cl.Accounting.On, given)
		}
	}
	set(settingsField, slurm.ClusterLevel, in.SlurmCustomSettings, &cl.Settings)
	set(slurmdbdField, slurm.SlurmdbdLevel, in.SlurmdbdCustomSettings, &cl.Slurmdbd)
	set(cgroupField, slurm.CgroupLevel, in.CgroupCustomSettings, &cl.Cgroup)
	if len(in.SlurmdbdCustomSettings) > 0 && !cl.Accounting.On {
		c.bad(slurmdbdField, "there is no slurmdbd without accounting: use accounting.mode STANDARD, or leave them out")
	}
}

// withoutAccounting checks that nothing that stays needs the accounting that
// a request switches off.
func withoutAccounting(before, after fleet.Cluster, queues []fleet.Queue) error {
	if after.Accounting.On || !before.Accounting.On {
		return nil
	}
	var c check
	for _, s := range needAccounting(slurm.ClusterLevel, after.Version, after.Settings) {
		c.bad(accountingField+".mode", "the cluster has the custom setting %s, which needs accounting: give slurmCustomSettings without it in the same request, or use STANDARD", s)
	}
	for _, q := range queues {
		for _, s := range needAccounting(slurm.QueueLevel, after.Version, q.Settings) {
			c.bad(accountingField+".mode", "the queue %s has the custom setting %s, which needs accounting: update the queue first, or use STANDARD", q.Name, s)
		}
	}
	return c.err()
}

// needAccounting names the settings that are refused without accounting.
func needAccounting(level slurm.Level, release string, settings []slurm.Setting) (names []string) {
	_, with := slurm.CheckSettings(level, release, true, settings)
	_, without := slurm.CheckSettings(level, release, false, settings)
	for i, s := range settings {
		if with[i] == nil && without[i] != nil {
			names = append(names, s.Name)
		}
	}
	return names
}

// daemonsOut is what answers say of accounting and of the REST API.
func daemonsOut(c fleet.Cluster, out *ClusterSlurmOut) {
	mode := map[bool]string{false: modeNone, true: modeStandard}
	accounting, rest := mode[c.Accounting.On], mode[c.REST]
	out.Accounting, out.SlurmRest = &Accounting{Mode: &accounting}, &SlurmRest{&rest}
	if c.Accounting.On {
		days := cmp.Or(c.Accounting.PurgeDays, -1)
		out.Accounting.DefaultPurgeTimeInDays = &days
	}
	out.SlurmdbdCustomSettings, out.CgroupCustomSettings = settingsOut(c.Slurmdbd), settingsOut(c.Cgroup)
	if c.REST { // tokens are signed with the cluster's key
		out.JWTAuth = &JWTAuth{JWTKey: &SecretRef{c.KeyARN, c.KeyVersion}}
	}
}

// endpoints are where the daemons of the configuration in force listen.
func endpoints(c fleet.Cluster) []Endpoint {
	at := func(kind string, port int) Endpoint {
		return Endpoint{Type: kind, PrivateIPAddress: c.ControllerAddress, Port: strconv.Itoa(port)}
	}
	all := []Endpoint{at("SLURMCTLD", slurm.SlurmctldPort)}
	if c.Good != nil && c.Good.Accounting.On {
		all = append(all, at("SLURMDBD", slurm.SlurmdbdPort))
	}
	if c.Good != nil && c.Good.REST {
		all = append(all, at("SLURMRESTD", slurm.SlurmrestdPort))
	}
	return all
}

package slurm

import (
	"strings"
	"testing"
)

// accountedConfig is a small cluster with accounting and the REST API.
func accountedConfig(t testing.TB) Config {
	c := smallConfig(t)
	c.REST = true
	c.Settings = []Setting{{"AuthAltParameters", "disable_token_creation"}, {"AccountingStorageEnforce", "associations"}}
	c.CgroupSettings = []Setting{{"ConstrainCores", "yes"}, {"AllowedRAMSpace", "101.5"}}
	c.Accounting = &Accounting{PurgeDays: 30, Settings: []Setting{{"PurgeJobAfter", "12months"}, {"PrivateData", "jobs,users"}, {"CommitDelay", "5"}}}
	return c
}

// Each release has the defaults that PCS gives it, and a purge only where one
// is asked for.
func TestSlurmdbdConf(t *testing.T) {
	for _, tc := range []struct {
		name, version string
		days          int
		rest          bool
		has, lacks    []string
	}{
		{"kept for good", "26.05", -1, false, []string{"CommitDelay=1"}, []string{"Purge", "jwt"}},
		{"purged", "26.05", 7, false, []string{"PurgeJobAfter=7days", "PurgeTXNAfter=7days", "PurgeJobScriptAfter=7days"}, []string{"jwt"}},
		{"purged before 26.05", "24.11", 7, false, []string{"PurgeJobAfter=7days"}, []string{"PurgeJobScriptAfter", "PurgeJobEnvAfter", "CommitDelay"}},
		{"with the REST API", "26.05", 0, true, []string{"AuthAltTypes=auth/jwt", "AuthAltParameters=jwt_key=/etc/slurm/slurm.key,"}, []string{"Purge"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := smallConfig(t)
			c.Version, c.REST, c.Accounting = version(t, tc.version), tc.rest, &Accounting{PurgeDays: tc.days}
			text := string(render(t, c)[SlurmdbdConf])
			for _, want := range tc.has {
				if !strings.Contains(text, "\n"+want) {
					t.Errorf("%s is missing in\n%s", want, text)
				}
			}
			for _, not := range tc.lacks {
				if strings.Contains(text, not) {
					t.Errorf("%s is in\n%s", not, text)
				}
			}
		})
	}
}

// A token that slurmctld takes is taken by slurmdbd too, whatever the cluster's
// settings say of tokens.
func TestTokensOfSlurmdbd(t *testing.T) {
	c := smallConfig(t)
	c.Version, c.REST, c.Accounting = version(t, "26.05"), true, &Accounting{}
	c.Settings = []Setting{{"AuthAltParameters", "userclaimfield=email, disable_token_creation"}}
	line := "\nAuthAltParameters=jwt_key=" + KeyFile + ",use_jwt_client_ids,userclaimfield=email,disable_token_creation\n"
	for name, text := range render(t, c) {
		if has := strings.Contains(string(text), line); has != (name != "cgroup.conf") {
			t.Errorf("%s: the line is there: %v\n%s", name, has, text)
		}
	}
}

func TestSettingsOfSlurmdbdAndCgroups(t *testing.T) {
	for _, tc := range []struct {
		level          Level
		release        string
		name, value    string
		wrong          string // part of the error, empty if it is right
		spelt          string
		withAccounting bool
	}{
		{SlurmdbdLevel, "26.05", "purgejobafter", "12months", "", "PurgeJobAfter", true},
		{SlurmdbdLevel, "26.05", "PurgeJobAfter", "30days", "", "PurgeJobAfter", true},
		{SlurmdbdLevel, "26.05", "PurgeJobAfter", "12", "", "PurgeJobAfter", true},
		{SlurmdbdLevel, "26.05", "PurgeJobAfter", "65535Days", "", "PurgeJobAfter", true},
		{SlurmdbdLevel, "26.05", "PurgeJobAfter", "65536days", "at most 65535", "", true},
		{SlurmdbdLevel, "26.05", "PurgeStepAfter", "70000", "at most 65535", "", true},
		{SlurmdbdLevel, "26.05", "PurgeStepAfter", "99999999999999999999hours", "at most 65535", "", true},
		{SlurmdbdLevel, "26.05", "PurgeJobAfter", "0days", "with its unit", "", true},
		{SlurmdbdLevel, "26.05", "PurgeJobAfter", "3years", "with its unit", "", true},
		{SlurmdbdLevel, "26.05", "PurgeJobAfter", "3days\nStoragePass=x", "control character", "", true},
		{SlurmdbdLevel, "25.11", "PurgeJobEnvAfter", "3days", "only supported for Slurm version 26.05 or later", "", true},
		{SlurmdbdLevel, "26.05", "Parameters", "PreserveCaseResource", "", "Parameters", true},
		{SlurmdbdLevel, "24.11", "Parameters", "PreserveCaseResource", "only supported", "", true},
		{SlurmdbdLevel, "26.05", "StorageHost", "elsewhere", "is not allowed for a slurmdbd configuration", "", true},
		{SlurmdbdLevel, "26.05", "ConstrainCores", "yes", "is a setting of a cgroup configuration", "", true},
		{SlurmdbdLevel, "26.05", "MaxQueryTimeRange", "60-0", "", "MaxQueryTimeRange", true},
		{SlurmdbdLevel, "26.05", "MaxQueryTimeRange", "soon", "a time such as", "", true},
		{SlurmdbdLevel, "26.05", "CommitDelay", "0", "1 to 600", "", true},
		{CgroupLevel, "26.05", "constrainramspace", "Yes", "", "ConstrainRAMSpace", false},
		{CgroupLevel, "26.05", "ConstrainRAMSpace", "maybe", "not one of YES, NO", "", false},
		{CgroupLevel, "26.05", "AllowedRAMSpace", "98.5", "", "AllowedRAMSpace", false},
		{CgroupLevel, "26.05", "AllowedRAMSpace", "-1", "percent", "", false},
		{CgroupLevel, "26.05", "CgroupPlugin", "disabled", "is not allowed", "", false},
	} {
		out, wrong := CheckSettings(tc.level, tc.release, tc.withAccounting, []Setting{{tc.name, tc.value}})
		switch {
		case tc.wrong == "" && (len(wrong) > 0 || len(out) != 1 || out[0] != (Setting{tc.spelt, tc.value})):
			t.Errorf("%s %s=%s: %v %v", tc.level, tc.name, tc.value, out, wrong)
		case tc.wrong != "" && (wrong[0] == nil || !strings.Contains(wrong[0].Error(), tc.wrong) || len(out) != 0):
			t.Errorf("%s %s=%s: %v %v, want %q", tc.level, tc.name, tc.value, out, wrong, tc.wrong)
		}
	}
}

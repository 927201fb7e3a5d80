package delivery

import (
	"fmt"
	"hash/fnv"
	"strings"
	"time"

	"github.com/openpcs/openpcs/internal/logs"
)

// suffixes are the patterns of S3 paths that PCS uses, by log type.
var suffixes = map[string]string{
	logs.SchedulerLogs:      "{region}/{log_name}/{scheduler_major_version}/{yyyy}/{MM}/{dd}/{HH}/",
	logs.SchedulerAuditLogs: "{region}/scheduler_audit/{log_name}/{yyyy}/{MM}/{dd}/{HH}/",
	logs.JobCompletionLogs:  "{region}/jobcomp/{yyyy}/{MM}/{dd}/{HH}/",
	logs.ScalingLogs:        "{region}/node_lifecycle/{yyyy}/{MM}/{dd}/{HH}/",
}

// hiveAccount is before the account in paths that name their parts.
const hiveAccount = "aws-account-id="

// key is the name of the object that begins with a record. Its last part is
// unlike that of any other object of this delivery in the same hour, and the same
// each time it is asked for, so that what is sent again replaces itself.
func key(l Link, logName, major string, first int64, at time.Time) string {
	at = at.UTC()
	account, region, cluster := l.Account, l.Region, l.Cluster
	values := map[string]string{
		"yyyy": at.Format("2006"), "MM": at.Format("01"), "dd": at.Format("02"), "HH": at.Format("15"),
		"log_name": logName, "scheduler_major_version": major,
		"account-id": account, "resource_id": cluster, "log_type": l.LogType,
		"region": region,
	}
	if l.Hive {
		for name, label := range map[string]string{"yyyy": "year", "MM": "month", "dd": "day", "HH": "hour"} {
			values[name] = label + "=" + values[name]
		}
		values["log_name"], values["scheduler_major_version"] = "log_name="+logName, "scheduler_major_version="+major
		values["account-id"], values["log_type"] = "account-id="+account, "log_type="+l.LogType
		values["region"], values["resource_id"] = "aws-region="+region, "resource_id="+cluster
		account = hiveAccount + account
	}
	pattern := l.Suffix
	if pattern == "" {
		pattern = suffixes[l.LogType]
	}
	if !strings.Contains(pattern, "{resource_id}") {
		// As PCS does it: the cluster follows the region, though its pattern does not
		// say so.
		values["region"] += "/" + values["resource_id"]
	}
	pairs := make([]string, 0, 2*len(values))
	for name, v := range values {
		pairs = append(pairs, "{"+name+"}", v)
	}
	path := strings.Trim(strings.NewReplacer(pairs...).Replace(pattern), "/")
	if path != "" {
		path += "/"
	}
	hour := at.Format("2006-01-02-15")
	var name string
	switch l.LogType {
	case logs.SchedulerLogs:
		name = fmt.Sprintf("PCS_%s_%s_%s_%s", logName, major, hour, cluster)
	case logs.SchedulerAuditLogs:
		name = fmt.Sprintf("PCS_%s_scheduler_audit_%s_%s_%s", cluster, logName, major, hour)
	case logs.JobCompletionLogs:
		name = fmt.Sprintf("PCS_%s_jobcomp_%s", cluster, hour)
	default:
		name = fmt.Sprintf("PCS_%s_node_lifecycle_%s", cluster, hour)
	}
	return fmt.Sprintf("AWSLogs/%s/PCS/%s%s_%08x.log.gz", account, path, name, mark(l.ID, logName, first))
}

// mark makes eight digits of a place. Multiplication by an odd number maps no two
// of four billion places in a row to the same ones; what is added keeps
// deliveries of one log to one bucket apart.
func mark(delivery, logName string, first int64) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(delivery + "/" + logName)) // never fails (hash.Hash)
	return uint32(first)*2654435761 + h.Sum32()
}

// stream is the log stream of a log, as PCS names it.
func stream(l Link, logName, major string) string {
	name := ""
	switch l.LogType {
	case logs.SchedulerLogs:
		name = logName + "_" + major
	case logs.SchedulerAuditLogs:
		name = logName + "_" + major + "_audit"
	case logs.JobCompletionLogs:
		name = "jobcomp"
	default:
		name = "node_lifecycle"
	}
	return "AWSLogs/PCS/" + l.Cluster + "/" + name + ".log"
}

package logs

import (
	"context"
	"slices"

	"github.com/openpcs/openpcs/internal/awsapi"
)

// permission is what the caller needs besides that of the call, on the cluster
// whose logs it has delivered.
const permission = "pcs:AllowVendedLogDeliveryForResource"

// kind is what can be said of a log type: the fields of its records, in order,
// and how the keys of its objects go on behind AWSLogs/<account>/PCS/ (PCS user
// guide, pages on monitoring).
type kind struct {
	logType string
	fields  []string
	suffix  string
}

var schedulerFields = []string{
	"resource_id", "resource_type", "event_timestamp", "log_level", "log_name", "scheduler_type",
	"scheduler_major_version", "scheduler_patch_version", "node_type",
}

// hour is the end of each path.
const hour = "{yyyy}/{MM}/{dd}/{HH}/"

var kinds = []kind{
	{SchedulerLogs, slices.Concat(schedulerFields, []string{"message"}), "{region}/{log_name}/{scheduler_major_version}/" + hour},
	{SchedulerAuditLogs, slices.Concat(schedulerFields, []string{"log_type", "message"}), "{region}/scheduler_audit/{log_name}/" + hour},
	{JobCompletionLogs, []string{"resource_id", "resource_type", "event_timestamp", "scheduler_type", "scheduler_major_version", "fields"}, "{region}/jobcomp/" + hour},
	{ScalingLogs, []string{
		"resource_id", "resource_type", "event_timestamp", "compute_node_group_id", "scheduler_node_id",
		"status_code", "reason_code", "description", "details",
	}, "{region}/node_lifecycle/" + hour},
}

// suffixFields are the variables of a path.
var suffixFields = []string{"account-id", "region", "resource_id", "log_name", "log_type", "scheduler_major_version", "yyyy", "MM", "dd", "HH"}

// delimiters are those of plain records; the first is the default.
var delimiters = []string{"", " ", "\t", ",", ";", "|"}

// formats are those that openpcs writes, by type of destination.
var formats = map[string][]string{
	ToS3: {"json", "plain", "w3c"}, ToLogs: {"json", "plain"}, ToFirehose: {"json", "plain", "raw"},
}

func kindOf(logType string) (kind, bool) {
	n := slices.IndexFunc(kinds, func(k kind) bool { return k.logType == logType })
	if n < 0 {
		return kind{}, false
	}
	return kinds[n], true
}

func logTypes() (names []string) {
	for _, k := range kinds {
		names = append(names, k.logType)
	}
	return names
}

type recordField struct {
	Name      string `json:"name"`
	Mandatory bool   `json:"mandatory"`
}

type defaultsOut struct {
	RecordFields   []string   `json:"recordFields"`
	FieldDelimiter *string    `json:"fieldDelimiter,omitempty"`
	S3             *s3PathOut `json:"s3DeliveryConfiguration,omitempty"`
}

type templateOut struct {
	Service       string        `json:"service"`
	LogType       string        `json:"logType"`
	ResourceType  string        `json:"resourceType"`
	Type          string        `json:"deliveryDestinationType"`
	Defaults      defaultsOut   `json:"defaultDeliveryConfigValues"`
	Fields        []recordField `json:"allowedFields"`
	Formats       []string      `json:"allowedOutputFormats"`
	Action        string        `json:"allowedActionForAllowVendedLogsDeliveryForResource"`
	Delimiters    []string      `json:"allowedFieldDelimiters"`
	SuffixFields  []string      `json:"allowedSuffixPathFields,omitempty"`
	Configuration []struct{}    `json:"deliverySourceConfiguration"`
}

func (k kind) template(to string) templateOut {
	t := templateOut{
		Service: "pcs", LogType: k.logType, ResourceType: "cluster", Type: to,
		Defaults: defaultsOut{RecordFields: k.fields}, Formats: formats[to], Action: permission,
		Delimiters: delimiters, Configuration: []struct{}{},
	}
	if to == ToS3 {
		t.Defaults.S3, t.SuffixFields = &s3PathOut{Suffix: k.suffix}, suffixFields
	}
	for _, f := range k.fields {
		t.Fields = append(t.Fields, recordField{Name: f})
	}
	return t
}

type describeTemplatesIn struct {
	Service       *string  `json:"service"`
	LogTypes      []string `json:"logTypes"`
	ResourceTypes []string `json:"resourceTypes"`
	Types         []string `json:"deliveryDestinationTypes"`
	NextToken     *string  `json:"nextToken"`
	Limit         *int32   `json:"limit"`
}

type describeTemplatesOut struct {
	Templates []templateOut `json:"configurationTemplates"`
	NextToken string        `json:"nextToken,omitempty"`
}

func (s *Logs) describeTemplates(_ context.Context, r *awsapi.Request, in *describeTemplatesIn) (*describeTemplatesOut, error) {
	c := check{code: validation}
	size := c.limit(in.Limit, 50, 50)
	for name, list := range map[string][]string{"logTypes": in.LogTypes, "resourceTypes": in.ResourceTypes, "deliveryDestinationTypes": in.Types} {
		if len(list) > 10 {
			c.bad(name, "has %d entries, 1 to 10 are allowed", len(list))
		}
	}
	for _, t := range in.Types {
		c.oneOf("deliveryDestinationTypes", t, ToS3, ToLogs, ToFirehose, "XRAY")
	}
	if err := c.err(); err != nil {
		return nil, err
	}
	wanted := func(list []string, v string) bool { return len(list) == 0 || slices.Contains(list, v) }
	var all []templateOut
	for _, k := range kinds {
		for _, to := range []string{ToLogs, ToFirehose, ToS3} {
			if (in.Service == nil || *in.Service == "pcs") && wanted(in.LogTypes, k.logType) && wanted(in.ResourceTypes, "cluster") && wanted(in.Types, to) {
				all = append(all, k.template(to))
			}
		}
	}
	page, next, err := awsapi.Page(r, []any{in.Service, in.LogTypes, in.ResourceTypes, in.Types}, text(in.NextToken), size, all,
		func(t templateOut) string { return t.LogType + " " + t.Type })
	if err != nil {
		return nil, err
	}
	return &describeTemplatesOut{Templates: page, NextToken: next}, nil
}

// text is a string that may be absent.
func text(v *string) string {
	if v == nil {
		return ""
	}
	return *v
}

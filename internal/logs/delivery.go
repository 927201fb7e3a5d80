package logs

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/openpcs/openpcs/internal/store"
)

// The log types of a cluster (PCS user guide, monitoring).
const (
	SchedulerLogs      = "PCS_SCHEDULER_LOGS"
	SchedulerAuditLogs = "PCS_SCHEDULER_AUDIT_LOGS"
	JobCompletionLogs  = "PCS_JOBCOMP_LOGS"
	ScalingLogs        = "PCS_SCALING_LOGS"
)

// The types of destinations.
const (
	ToS3       = "S3"
	ToLogs     = "CWL" // CloudWatch Logs
	ToFirehose = "FH"
)

// Source is a delivery source: one log type of one resource.
type Source struct {
	Name        string            `json:"name"`
	Region      string            `json:"region"`
	ARN         string            `json:"arn"`
	ResourceARN string            `json:"resourceArn"` // of the cluster
	LogType     string            `json:"logType"`
	Tags        map[string]string `json:"tags,omitempty"`
	CreatedAt   time.Time         `json:"createdAt"`
}

// Cluster is the id of the cluster whose logs these are.
func (s Source) Cluster() string { return s.ResourceARN[strings.LastIndexByte(s.ResourceARN, '/')+1:] }

// Destination is a delivery destination: a log group, a bucket or a stream of
// Firehose.
type Destination struct {
	Name         string            `json:"name"`
	Region       string            `json:"region"`
	ARN          string            `json:"arn"`
	Type         string            `json:"type"`                   // S3, CWL or FH
	OutputFormat string            `json:"outputFormat,omitempty"` // as given; see Format
	ResourceARN  string            `json:"resourceArn"`            // as given: that of a log group may end in :*
	Policy       string            `json:"policy,omitempty"`
	Tags         map[string]string `json:"tags,omitempty"`
	CreatedAt    time.Time         `json:"createdAt"`
}

// Format is how records are written: json, plain or raw. Where none is given, a
// log group gets plain messages and all else JSON.
func (d Destination) Format() string {
	switch {
	case d.OutputFormat != "":
		return d.OutputFormat
	case d.Type == ToLogs:
		return "plain"
	default:
		return "json"
	}
}

// Resource is the name of the log group, bucket or stream.
func (d Destination) Resource() string {
	switch d.Type {
	case ToS3:
		return d.ResourceARN[strings.LastIndexByte(d.ResourceARN, ':')+1:]
	case ToFirehose:
		return d.ResourceARN[strings.LastIndexByte(d.ResourceARN, '/')+1:]
	default:
		_, name, _ := strings.Cut(d.ResourceARN, ":log-group:")
		return strings.TrimSuffix(name, ":*")
	}
}

// S3Path is how the keys of objects begin, behind AWSLogs/<account>/PCS/.
type S3Path struct {
	Suffix string `json:"suffixPath"`               // with its variables, such as {yyyy}
	Hive   bool   `json:"enableHiveCompatiblePath"` // key=value folders
}

// Delivery connects a source with a destination.
type Delivery struct {
	ID             string            `json:"id"` // 16 letters and digits
	Region         string            `json:"region"`
	ARN            string            `json:"arn"`
	SourceName     string            `json:"sourceName"`
	DestinationARN string            `json:"destinationArn"`
	Type           string            `json:"type"`         // of the destination
	RecordFields   []string          `json:"recordFields"` // in the order of the record, never empty
	FieldDelimiter string            `json:"fieldDelimiter,omitempty"`
	S3             *S3Path           `json:"s3,omitempty"` // of a delivery to S3, always
	Tags           map[string]string `json:"tags,omitempty"`
	CreatedAt      time.Time         `json:"createdAt"`
}

// Link is a delivery with its two ends.
type Link struct {
	Delivery    Delivery
	Source      Source
	Destination Destination
}

var (
	sources = store.NewCollection("logs-source", func(s Source) store.Index {
		return store.Index{ID: s.ARN, Region: s.Region, Name: s.Name}
	})
	destinations = store.NewCollection("logs-destination", func(d Destination) store.Index {
		return store.Index{ID: d.ARN, Region: d.Region, Name: d.Name}
	})
	deliveries = store.NewCollection("logs-delivery", func(d Delivery) store.Index {
		return store.Index{ID: d.ARN, Region: d.Region, Parent: "id", Name: d.ID}
	})
)

// Links returns the deliveries of all regions in the order of their creation.
func Links(tx *store.Tx) ([]Link, error) {
	all, err := deliveries.All(tx)
	if err != nil {
		return nil, fmt.Errorf("list deliveries of logs: %w", err)
	}
	links := make([]Link, 0, len(all))
	for _, d := range all {
		l, err := link(tx, d)
		if err != nil {
			return nil, fmt.Errorf("list deliveries of logs: %w", err)
		}
		links = append(links, l)
	}
	return links, nil
}

// link finds the two ends of a delivery, which are there as long as it is.
func link(tx *store.Tx, d Delivery) (Link, error) {
	source, err := sources.Find(tx, d.Region, "", d.SourceName)
	destination, err2 := destinations.Get(tx, d.DestinationARN)
	return Link{Delivery: d, Source: source, Destination: destination}, errors.Join(err, err2)
}

// linked returns a delivery of the region for which ok holds, if there is one.
func linked(tx *store.Tx, region string, ok func(Delivery) bool) (Delivery, bool, error) {
	all, err := deliveries.InRegion(tx, region)
	if n := slices.IndexFunc(all, ok); n >= 0 {
		return all[n], true, err
	}
	return Delivery{}, false, err
}

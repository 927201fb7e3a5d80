package delivery

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/openpcs/openpcs/internal/awsapi"
	"github.com/openpcs/openpcs/internal/condition"
	"github.com/openpcs/openpcs/internal/logs"
)

// probeNames is a log name of each type, for a path as records will have it.
var probeNames = map[string]string{logs.SchedulerLogs: "slurmctld", logs.SchedulerAuditLogs: "slurmctld", logs.JobCompletionLogs: "jobcomp", logs.ScalingLogs: "node_lifecycle"}

// probeWithin is how long a destination may take, so that the caller gets an answer
// before a client gives up waiting, which the aws CLI does after a minute, and asks
// again.
const probeWithin = 20 * time.Second

// Probe finds out whether a new delivery can write to its destination, and
// writes nothing. Its error is what create-delivery answers.
func (d *Destinations) Probe(ctx context.Context, link logs.Link) error {
	ctx, cancel := context.WithTimeout(ctx, probeWithin)
	defer cancel()
	l := NewLink(link, d.Account)
	var err error
	switch {
	case l.Kind == logs.ToS3:
		err = d.probeBucket(ctx, l)
	case l.Kind == logs.ToFirehose:
		if d.Firehose == nil {
			return &awsapi.Error{Code: "ValidationException", Status: http.StatusBadRequest, Message: "There is no Firehose here: openpcs serve delivers to the one that OPENPCS_FIREHOSE_ENDPOINT names. Destinations of the types S3 and CWL need no setting."}
		}
		err = d.Firehose.call(ctx, l.Region, "firehose", "Firehose_20150804", "DescribeDeliveryStream", map[string]any{"DeliveryStreamName": l.Target}, nil)
	case d.Logs != nil:
		err = d.Logs.call(ctx, l.Region, logsService, logsTarget, "DescribeLogStreams", map[string]any{"logGroupName": l.Target, "limit": 1}, nil)
	default:
		there, groupErr := d.Groups.HasGroup(ctx, l.Region, l.Target)
		if err = groupErr; err == nil && !there {
			err = noGroup(l)
		}
	}
	var f *failure
	if !errors.As(err, &f) {
		return err
	}
	answer := &awsapi.Error{Code: "ServiceUnavailableException", Status: http.StatusServiceUnavailable, Message: f.text}
	switch f.code {
	case condition.LogDeliveryDenied:
		answer.Code, answer.Status = "AccessDeniedException", http.StatusBadRequest
	case condition.LogDestinationMissing:
		answer.Code, answer.Status = "ResourceNotFoundException", http.StatusBadRequest
	}
	return answer
}

// probeBucket asks for a write that cannot come about: it is to replace an object
// that is not there. S3 looks at permissions first.
func (d *Destinations) probeBucket(ctx context.Context, l Link) error {
	name := key(l, probeNames[l.LogType], "probe", 0, time.Now())
	a, err := ask(ctx, d.Buckets, l, http.MethodPut, name, nil, http.Header{"If-Match": {`"d41d8cd98f00b204e9800998ecf8427e"`}})
	switch {
	case err != nil:
		return &failure{code: condition.LogDeliveryFailing, text: "S3 does not answer: " + err.Error()}
	case a.status == http.StatusPreconditionFailed, a.code == "NoSuchKey":
		return nil
	case a.status/100 == 2:
		// This S3 knows no conditions, so there is an object now.
		if a, err = ask(ctx, d.Buckets, l, http.MethodDelete, name, nil, nil); err != nil || a.status/100 != 2 {
			return &failure{code: condition.LogDeliveryFailing, text: fmt.Sprintf("remove %s, by which was tried whether the bucket %s can be written to: S3 answers %d %s", name, l.Target, a.status, a.code)}
		}
		return nil
	}
	return a.failure(l)
}

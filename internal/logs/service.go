package logs

import (
	"context"
	"errors"
	"net/http"

	"github.com/openpcs/openpcs/internal/awsapi"
)

// maxBody is for a batch of 1 MiB whose characters are all escaped in JSON.
const maxBody = 8 << 20

// Service returns the table of operations.
func (s *Logs) Service() awsapi.Service {
	return awsapi.Service{
		Name: "logs", Protocol: awsapi.JSON11, Target: "Logs_20140328", MaxBody: maxBody, Fault: fault,
		Operations: []awsapi.Operation{
			vended("PutDeliverySource", false, s.putSource),
			vended("GetDeliverySource", true, s.getSource),
			vended("DescribeDeliverySources", true, s.describeSources),
			vended("DeleteDeliverySource", false, s.deleteSource),
			vended("PutDeliveryDestination", false, s.putDestination),
			vended("GetDeliveryDestination", true, s.getDestination),
			vended("DescribeDeliveryDestinations", true, s.describeDestinations),
			vended("DeleteDeliveryDestination", false, s.deleteDestination),
			vended("PutDeliveryDestinationPolicy", false, s.putPolicy),
			vended("GetDeliveryDestinationPolicy", true, s.getPolicy),
			vended("DeleteDeliveryDestinationPolicy", false, s.deletePolicy),
			vended("CreateDelivery", false, s.createDelivery),
			vended("GetDelivery", true, s.getDelivery),
			vended("DescribeDeliveries", true, s.describeDeliveries),
			vended("UpdateDeliveryConfiguration", false, s.updateDelivery),
			vended("DeleteDelivery", false, s.deleteDelivery),
			vended("DescribeConfigurationTemplates", true, s.describeTemplates),

			op("CreateLogGroup", false, s.createGroup),
			op("DeleteLogGroup", false, s.deleteGroup),
			op("DescribeLogGroups", true, s.describeGroups),
			op("ListLogGroups", true, s.listGroups),
			op("PutRetentionPolicy", false, s.putRetention),
			op("DeleteRetentionPolicy", false, s.deleteRetention),
			op("PutLogGroupDeletionProtection", false, s.protectGroup),
			op("CreateLogStream", false, s.createStream),
			op("DeleteLogStream", false, s.deleteStream),
			op("DescribeLogStreams", true, s.describeStreams),
			op("PutLogEvents", false, s.putEvents),
			op("GetLogEvents", true, s.getEvents),
			op("FilterLogEvents", true, s.filterEvents),
			op("StartLiveTail", false, s.liveTail),

			op("TagResource", false, s.tag),
			op("UntagResource", false, s.untag),
			op("ListTagsForResource", true, s.listTags),
			op("TagLogGroup", false, s.tagGroup),
			op("UntagLogGroup", false, s.untagGroup),
			op("ListTagsLogGroup", true, s.listGroupTags),
		},
	}
}

func op[I, O any](name string, readOnly bool, f func(context.Context, *awsapi.Request, *I) (*O, error)) awsapi.Operation {
	return awsapi.StrictJSON(name, "logs:"+name, readOnly, f)
}

// vended is an operation on deliveries, whose model has ValidationException where
// that of log groups has InvalidParameterException.
func vended[I, O any](name string, readOnly bool, f func(context.Context, *awsapi.Request, *I) (*O, error)) awsapi.Operation {
	o := op(name, readOnly, f)
	handle := o.Handle
	o.Handle = func(ctx context.Context, r *awsapi.Request) (any, error) {
		out, err := handle(ctx, r)
		var found *awsapi.Fault
		if errors.As(err, &found) {
			if e := fault(found); e != nil && e.Code == parameter {
				e.Code = validation
				return nil, e
			}
		}
		return out, err
	}
	return o
}

// fault gives the front door's findings the form of CloudWatch Logs.
func fault(f *awsapi.Fault) *awsapi.Error {
	switch f.Kind {
	case awsapi.FaultUnknownMember, awsapi.FaultMissingMember, awsapi.FaultBadToken:
		return &awsapi.Error{Code: parameter, Message: f.Message}
	case awsapi.FaultInternal:
		return &awsapi.Error{Code: "ServiceUnavailableException", Message: f.Message, Status: http.StatusInternalServerError}
	default:
		return nil
	}
}

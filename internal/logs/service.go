package logs

import (
	"context"
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
			op("PutDeliverySource", false, s.putSource),
			op("GetDeliverySource", true, s.getSource),
			op("DescribeDeliverySources", true, s.describeSources),
			op("DeleteDeliverySource", false, s.deleteSource),
			op("PutDeliveryDestination", false, s.putDestination),
			op("GetDeliveryDestination", true, s.getDestination),
			op("DescribeDeliveryDestinations", true, s.describeDestinations),
			op("DeleteDeliveryDestination", false, s.deleteDestination),
			op("PutDeliveryDestinationPolicy", false, s.putPolicy),
			op("GetDeliveryDestinationPolicy", true, s.getPolicy),
			op("DeleteDeliveryDestinationPolicy", false, s.deletePolicy),
			op("CreateDelivery", false, s.createDelivery),
			op("GetDelivery", true, s.getDelivery),
			op("DescribeDeliveries", true, s.describeDeliveries),
			op("UpdateDeliveryConfiguration", false, s.updateDelivery),
			op("DeleteDelivery", false, s.deleteDelivery),
			op("DescribeConfigurationTemplates", true, s.describeTemplates),

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

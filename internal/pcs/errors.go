package pcs

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/openpcs/openpcs/internal/awsapi"
)

// The resource types of errors.
const (
	clusterType = "cluster"
	groupType   = "computenodegroup"
	queueType   = "queue"
)

// noun is what people call a resource type.
func noun(kind string) string {
	if kind == groupType {
		return "compute node group"
	}
	return kind
}

// Field is one wrong member of a request.
type Field struct {
	Name    string `json:"name"`
	Message string `json:"message"`
}

func invalid(fields ...Field) error {
	var texts []string
	for _, f := range fields {
		texts = append(texts, f.Name+": "+f.Message)
	}
	noun := "1 validation error"
	if len(fields) != 1 {
		noun = fmt.Sprintf("%d validation errors", len(fields))
	}
	return &awsapi.Error{
		Code: "ValidationException", Message: noun + " detected: " + strings.Join(texts, "; "),
		Fields: map[string]any{"reason": "fieldValidationFailed", "fieldList": fields},
	}
}

func conflict(kind, id, format string, args ...any) error {
	return &awsapi.Error{
		Code: "ConflictException", Message: fmt.Sprintf(format, args...),
		Fields: map[string]any{"resourceId": id, "resourceType": kind},
	}
}

func notFound(kind, id string) error {
	return &awsapi.Error{
		Code: "ResourceNotFoundException", Message: "there is no " + noun(kind) + " " + id,
		Fields: map[string]any{"resourceId": id, "resourceType": kind},
	}
}

func quota(kind, id, code, format string, args ...any) error {
	fields := map[string]any{"serviceCode": "pcs", "quotaCode": code, "resourceType": kind}
	if id != "" {
		fields["resourceId"] = id
	}
	return &awsapi.Error{Code: "ServiceQuotaExceededException", Message: fmt.Sprintf(format, args...), Fields: fields}
}

func denied(format string, args ...any) error {
	return &awsapi.Error{Code: "AccessDeniedException", Message: fmt.Sprintf(format, args...)}
}

// fault gives the front door's findings PCS's own form.
func fault(f *awsapi.Fault) *awsapi.Error {
	e := &awsapi.Error{Code: "ValidationException", Message: f.Message}
	switch f.Kind {
	case awsapi.FaultUnknownOperation:
		e.Fields = map[string]any{"reason": "unknownOperation"}
	case awsapi.FaultCannotParse:
		e.Fields = map[string]any{"reason": "cannotParse"}
	case awsapi.FaultBadMember, awsapi.FaultUnknownMember, awsapi.FaultMissingMember:
		e.Fields = map[string]any{"reason": "fieldValidationFailed", "fieldList": []Field{{Name: f.Name, Message: f.Message}}}
	case awsapi.FaultBadToken:
		return nil // InvalidToken, the usual one
	case awsapi.FaultInternal:
		return &awsapi.Error{Code: "InternalServerException", Message: f.Message, Status: http.StatusInternalServerError}
	}
	return e
}

package awsapi

import (
	"errors"
	"net/http"
	"strings"
)

// FaultKind is what the front door found wrong with a call.
type FaultKind int

// The faults that the front door finds before or around a handler.
const (
	FaultInternal         FaultKind = iota // the handler failed or panicked
	FaultUnknownOperation                  // Name is the operation
	FaultCannotParse                       // the body is no JSON object, or no form
	FaultBadMember                         // the member Name has a value of a wrong type
	FaultUnknownMember                     // there is no member Name
	FaultMissingMember                     // the member Name is required
	FaultBadToken                          // the pagination token is not ours, for another call, or expired
)

// Fault is a fault of a call that each service words in its own way.
// Handlers may return one as an error.
type Fault struct {
	Kind    FaultKind
	Name    string // operation, or path of a member (networking.subnetIds[0])
	Message string // a sentence for people
}

func (f *Fault) Error() string { return f.Message }

// newError is the usual error of the front door.
func newError(status int, code, message string) *Error {
	return &Error{Code: code, Message: message, Status: status}
}

// byProtocol picks the code that a protocol uses for one condition.
func byProtocol(p Protocol, json, query, ec2 string) string {
	switch p {
	case Query, RestXML:
		return query
	case EC2Query:
		return ec2
	default:
		return json
	}
}

// faultError words a fault for a service.
func faultError(svc *Service, f *Fault) *Error {
	if svc.Fault != nil {
		if e := svc.Fault(f); e != nil {
			return e
		}
	}
	p := svc.Protocol
	if p == RestXML {
		if f.Kind == FaultInternal {
			return newError(http.StatusInternalServerError, "InternalError", f.Message)
		}
		return newError(http.StatusBadRequest, "InvalidRequest", f.Message)
	}
	switch f.Kind {
	case FaultUnknownOperation:
		return newError(http.StatusBadRequest,
			byProtocol(p, "UnknownOperationException", "InvalidAction", "InvalidAction"), f.Message)
	case FaultCannotParse:
		return newError(http.StatusBadRequest,
			byProtocol(p, "SerializationException", "MalformedQueryString", "InvalidRequest"), f.Message)
	case FaultBadMember:
		return newError(http.StatusBadRequest,
			byProtocol(p, "SerializationException", "MalformedInput", "InvalidParameterValue"), f.Message)
	case FaultUnknownMember:
		return newError(http.StatusBadRequest,
			byProtocol(p, "ValidationException", "ValidationError", "UnknownParameter"), f.Message)
	case FaultMissingMember:
		return newError(http.StatusBadRequest,
			byProtocol(p, "ValidationException", "ValidationError", "MissingParameter"), f.Message)
	case FaultBadToken:
		code := byProtocol(p, "InvalidToken", "ValidationError", "InvalidNextToken")
		if p == JSON11 {
			code = "InvalidNextToken"
		}
		return newError(http.StatusBadRequest, code, f.Message)
	default:
		return newError(http.StatusInternalServerError,
			byProtocol(p, "InternalServerError", "InternalFailure", "InternalError"), f.Message)
	}
}

// asError turns whatever a handler returned into what the caller sees. The
// second result is false when the error is the server's own fault.
func asError(svc *Service, err error) (*Error, bool) {
	var e *Error
	if errors.As(err, &e) {
		return e, true
	}
	var f *Fault
	if errors.As(err, &f) {
		return faultError(svc, f), f.Kind != FaultInternal
	}
	return faultError(svc, &Fault{Kind: FaultInternal, Message: "The request failed because of an internal error. The log of openpcs serve has the cause under the id of this request."}), false
}

// The conditions of authentication, each with one code per protocol.
func errMissingAuth(p Protocol) *Error {
	if p == RestXML {
		return newError(http.StatusForbidden, "AccessDenied", "Access Denied: the request is not signed, and openpcs takes signed requests only.")
	}
	if p == JSON10 || p == JSON11 {
		return newError(http.StatusBadRequest, "MissingAuthenticationTokenException", "Missing Authentication Token")
	}
	return newError(http.StatusForbidden, "MissingAuthenticationToken", "Request is missing Authentication Token")
}

func errIncomplete(p Protocol, message string) *Error {
	if p == RestXML {
		return newError(http.StatusBadRequest, "AuthorizationHeaderMalformed", "The authorization of the request is malformed: "+message)
	}
	return newError(http.StatusBadRequest, byProtocol(p, "IncompleteSignatureException", "IncompleteSignature", "IncompleteSignature"), message)
}

const ec2AuthFailure = "AWS was not able to validate the provided access credentials"

func errUnknownKey(p Protocol) *Error {
	const message = "The security token included in the request is invalid."
	switch p {
	case Query:
		return newError(http.StatusForbidden, "InvalidClientTokenId", message)
	case EC2Query:
		return newError(http.StatusUnauthorized, "AuthFailure", ec2AuthFailure)
	case RestXML:
		return newError(http.StatusForbidden, "InvalidAccessKeyId", "The AWS Access Key Id you provided does not exist in our records.")
	default:
		return newError(http.StatusBadRequest, "UnrecognizedClientException", message)
	}
}

func errWrongSignature(p Protocol) *Error {
	const message = "The request signature we calculated does not match the signature you provided. Check your AWS Secret Access Key and signing method. Consult the service documentation for details."
	switch p {
	case Query, RestXML:
		return newError(http.StatusForbidden, "SignatureDoesNotMatch", message)
	case EC2Query:
		return newError(http.StatusUnauthorized, "AuthFailure", ec2AuthFailure)
	default:
		return newError(http.StatusBadRequest, "InvalidSignatureException", message)
	}
}

// errSignature is a signature that cannot be right whatever the secret is.
func errSignature(p Protocol, message string) *Error {
	return newError(byStatus(p), byProtocol(p, "InvalidSignatureException", "SignatureDoesNotMatch", "AuthFailure"), message)
}

// errScope is a signature for another service than the request speaks to.
func errScope(svc *service) *Error {
	return errSignature(svc.Protocol, "Credential should be scoped to correct service: '"+svc.Name+"'.")
}

// errBusy is passing: official clients try again by themselves.
func errBusy(p Protocol) *Error {
	return newError(http.StatusServiceUnavailable, byProtocol(p, "ServiceUnavailableException", "ServiceUnavailable", "Unavailable"),
		"Too many large requests are under way. Try again in a moment.")
}

func errSkew(p Protocol, message string) *Error {
	if p == EC2Query {
		return newError(http.StatusBadRequest, "RequestExpired", "Request has expired. "+message)
	}
	if p == RestXML {
		return newError(http.StatusForbidden, "RequestTimeTooSkewed", "The difference between the request time and the current time is too large. "+message)
	}
	return errSignature(p, message)
}

func errExpiredToken(p Protocol) *Error {
	if p == EC2Query {
		return newError(http.StatusBadRequest, "RequestExpired", "Request has expired.")
	}
	if p == RestXML {
		return newError(http.StatusBadRequest, "ExpiredToken", "The provided token has expired.")
	}
	return newError(byStatus(p), byProtocol(p, "ExpiredTokenException", "ExpiredToken", ""),
		"The security token included in the request is expired")
}

func errDenied(p Protocol, c Caller, permission string) *Error {
	message := "User: " + c.ARN + " is not authorized to perform: " + permission +
		" because no identity-based policy allows the " + permission + " action"
	if allowed(c.Deny, permission) {
		message = "User: " + c.ARN + " is not authorized to perform: " + permission +
			" with an explicit deny in an identity-based policy"
	}
	if p == EC2Query {
		return newError(http.StatusForbidden, "UnauthorizedOperation", "You are not authorized to perform this operation. "+message)
	}
	return newError(byStatus(p), byProtocol(p, "AccessDeniedException", "AccessDenied", ""), message)
}

// errElsewhere refuses the key of an instance's role that is used from another
// machine: whoever took it along gets nowhere with it.
func errElsewhere(p Protocol, c Caller, from string) *Error {
	message := "The credentials of " + c.ARN + " may be used from the instance's own address " + c.From + " only, and this request came from " + from + "."
	if p == EC2Query {
		return newError(http.StatusForbidden, "UnauthorizedOperation", message)
	}
	return newError(byStatus(p), byProtocol(p, "AccessDeniedException", "AccessDenied", ""), message)
}

// byStatus is the status of failures of authentication and authorization.
func byStatus(p Protocol) int {
	if p == JSON10 || p == JSON11 {
		return http.StatusBadRequest
	}
	return http.StatusForbidden
}

// Allowed reports whether the caller may perform the action. As in IAM the
// case of an action does not count, and a denial wins.
func (c Caller) Allowed(action string) bool {
	return !allowed(c.Deny, action) && allowed(c.Allow, action)
}

func allowed(patterns []string, action string) bool {
	action = strings.ToLower(action)
	for _, p := range patterns {
		if Match(strings.ToLower(p), action) {
			return true
		}
	}
	return false
}

// Match reports whether s matches the pattern, in which * stands for any
// string and ? for any one character, as in IAM policies and EC2 filters. It
// runs in time proportional to the product of the lengths at worst.
func Match(pattern, s string) bool {
	p, t := []rune(pattern), []rune(s)
	var i, j int
	star, mark := -1, 0
	for j < len(t) {
		switch {
		case i < len(p) && p[i] == '*':
			star, mark = i, j
			i++
		case i < len(p) && (p[i] == '?' || p[i] == t[j]):
			i++
			j++
		case star >= 0:
			mark++
			i, j = star+1, mark
		default:
			return false
		}
	}
	for i < len(p) && p[i] == '*' {
		i++
	}
	return i == len(p)
}

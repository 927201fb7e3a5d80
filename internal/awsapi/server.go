package awsapi

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"mime"
	"net"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/openpcs/openpcs/internal/store"
)

// defaultMaxBody bounds a request; AWS allows 1 MiB for awsJson.
const defaultMaxBody = 1 << 20

// defaultMaxBodies bounds the bodies of all requests under way. Those of people
// and nodes have some KiB each; this is room for 64 of the largest.
const defaultMaxBodies = 64 << 20

// Options configure a Server.
type Options struct {
	Keys     KeyFinder
	Account  string // 12 digits
	Services []Service
	Logger   *slog.Logger     // nil: slog.Default
	Now      func() time.Time // nil: time.Now
	MaxBody  int64            // bytes; 0: 1 MiB
	// MaxBodies bounds the bodies of all requests under way, in bytes; 0: 64 MiB.
	MaxBodies int64
	// PageSecret seals pagination tokens. Keep it over restarts so that
	// tokens survive them.
	PageSecret []byte
	// Observe, when set, is told of each call that was answered, for an audit
	// trail and metrics. It must not block.
	Observe func(Call)
}

// Call is one answered call.
type Call struct {
	Request  *Request // nil when the call was refused before it was verified
	ReadOnly bool
	Status   int
	Err      *Error // nil on success
	Answer   any    // what the handler returned
	Started  time.Time
	Took     time.Duration
	Remote   string
	Agent    string
}

// Server is the front door. It implements http.Handler.
type Server struct {
	keys    KeyFinder
	account string
	log     *slog.Logger
	now     func() time.Time
	maxBody int64
	pager   *pager
	observe func(Call)

	maxBodies int64
	bodies    atomic.Int64 // bytes that the requests under way may hold

	services map[string]*service
}

type service struct {
	Service
	ops map[string]*Operation
}

// NewServer makes the front door of the services. It panics when two
// services or operations share a name or one lacks its permission, because
// the tables are part of the program.
func NewServer(opts Options) *Server {
	s := &Server{
		keys: opts.Keys, account: opts.Account, log: opts.Logger, now: opts.Now,
		maxBody: opts.MaxBody, maxBodies: opts.MaxBodies, observe: opts.Observe,
		pager: lonePager, services: map[string]*service{},
	}
	if s.log == nil {
		s.log = slog.Default()
	}
	if s.now == nil {
		s.now = time.Now
	}
	if s.maxBody == 0 {
		s.maxBody = defaultMaxBody
	}
	if s.maxBodies == 0 {
		s.maxBodies = defaultMaxBodies
	}
	if len(opts.PageSecret) > 0 {
		s.pager = newPager(opts.PageSecret)
	}
	for _, svc := range opts.Services {
		if err := svc.check(); err != nil {
			panic(err)
		}
		if _, twice := s.services[svc.Name]; twice {
			panic("awsapi: two services are named " + svc.Name)
		}
		row := &service{Service: svc, ops: map[string]*Operation{}}
		for i := range row.Operations {
			row.ops[row.Operations[i].Name] = &row.Operations[i]
		}
		s.services[svc.Name] = row
	}
	return s
}

// check finds mistakes in the table of a service.
func (svc *Service) check() error {
	isJSON := svc.Protocol == JSON10 || svc.Protocol == JSON11
	switch {
	case svc.Name == "":
		return errors.New("awsapi: a service has no name")
	case (svc.Protocol == RestXML) != (svc.Stream != nil) || (svc.Stream != nil && len(svc.Operations) > 0):
		return fmt.Errorf("awsapi: %s must have operations, or answer streams and be of that protocol", svc.Name)
	case svc.Stream != nil:
		return nil
	case isJSON && svc.Target == "":
		return fmt.Errorf("awsapi: %s has no target", svc.Name)
	case !isJSON && (svc.Version == "" || svc.Namespace == ""):
		return fmt.Errorf("awsapi: %s has no version or namespace", svc.Name)
	}
	seen := map[string]bool{}
	for _, op := range svc.Operations {
		if op.Name == "" || op.Handle == nil || !strings.Contains(op.Permission, ":") || seen[op.Name] {
			return fmt.Errorf("awsapi: operation %q of %s lacks a handler or permission, or is there twice", op.Name, svc.Name)
		}
		seen[op.Name] = true
	}
	return nil
}

// exchange is one request on its way through the front door.
type exchange struct {
	http     *http.Request
	query    url.Values
	body     []byte
	reserved int64      // bytes of Server.bodies
	form     url.Values // body and query of a form request
	protocol Protocol   // best guess until the service is known
	svc      *service
	op       *Operation
	req      *Request
	id       string
	started  time.Time
	answer   any
	stream   *Stream // a request that its service answers as a whole
}

func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	x := &exchange{http: r, id: uuid.NewString(), started: s.now()}
	defer func() { s.bodies.Add(-x.reserved) }()
	// Writers of tests have no deadlines, which is all that can go wrong here.
	conn := http.NewResponseController(w)
	_ = conn.SetReadDeadline(time.Now().Add(bodyWithin))
	_ = conn.SetWriteDeadline(time.Now().Add(bodyWithin + answerWithin)) // of "100 Continue"
	payload, status, e, cause := s.answer(w, x)
	if x.stream != nil {
		s.answerStream(w, x)
		return
	}
	_ = conn.SetWriteDeadline(time.Now().Add(answerWithin))
	s.write(w, x, status, e, payload)
	s.report(r.Context(), x, status, e, cause)
}

// answer takes the exchange from the wire to the bytes of its answer. A panic
// on the way is an internal error like any other.
func (s *Server) answer(w http.ResponseWriter, x *exchange) (payload []byte, status int, e *Error, cause error) {
	defer func() {
		if p := recover(); p != nil {
			e, cause = faultError(x.service(), internalFault()), fmt.Errorf("panic: %v\n%s", p, debug.Stack())
			payload, status = x.encodeError(e), e.Status
		}
	}()
	status, e, cause = s.handle(w, x)
	if x.stream != nil {
		return nil, status, nil, nil
	}
	if e == nil {
		var err error
		if payload, err = x.encode(); err == nil {
			return payload, status, nil, nil
		}
		e, cause = faultError(x.service(), internalFault()), err
	}
	if status = e.Status; status == 0 {
		status = http.StatusBadRequest
	}
	return x.encodeError(e), status, e, cause
}

func internalFault() *Fault {
	return &Fault{Kind: FaultInternal, Message: "The request failed because of an internal error. The log of openpcs serve has the cause under the id of this request."}
}

// service returns the service, or a stand-in that has only a protocol.
func (x *exchange) service() *Service {
	if x.svc != nil {
		return &x.svc.Service
	}
	return &Service{Protocol: x.protocol}
}

// handle takes the exchange as far as it gets. The error is what the caller
// sees; the cause is for the log.
func (s *Server) handle(w http.ResponseWriter, x *exchange) (status int, e *Error, cause error) {
	if e := s.guess(x); e != nil {
		return 0, e, nil
	}
	sig, key, e := s.identify(x)
	if e != nil {
		return 0, e, nil
	}
	if x.svc.Stream != nil {
		x.stream, e = s.openStream(x, sig, key)
		return http.StatusOK, e, nil
	}
	// Only now, so that who has no key makes the server keep nothing.
	if e := s.readBody(w, x); e != nil {
		w.Header().Set("Connection", "close") // what is left of the body is nobody's next request
		return 0, e, nil
	}
	if e := s.authenticate(x, sig, key); e != nil {
		return 0, e, nil
	}
	if e := x.readForm(s.services); e != nil {
		return 0, e, nil
	}
	x.req = &Request{
		ID: x.id, Service: x.svc.Name, Region: sig.region, Account: s.account,
		Caller: key.Caller, Now: x.started.UTC(), Body: x.body, Form: x.form, pager: s.pager,
	}
	if e := s.resolve(x); e != nil {
		return 0, e, nil
	}
	if !x.op.AnyCaller && !x.req.Caller.Allowed(x.op.Permission) {
		return 0, errDenied(x.protocol, x.req.Caller, x.op.Permission), nil
	}
	out, err := x.op.Handle(x.http.Context(), x.req)
	if err != nil {
		e, expected := asError(x.service(), err)
		if !expected {
			cause = err
		}
		return 0, e, cause
	}
	x.answer = out
	return http.StatusOK, nil, nil
}

// guess looks at the head of the request and guesses its protocol.
func (s *Server) guess(x *exchange) *Error {
	r := x.http
	target := r.Header.Get("X-Amz-Target")
	x.protocol = JSON11
	switch {
	case target != "":
		if prefix, _, ok := cutLast(target, "."); ok {
			for _, svc := range s.services {
				if svc.Target == prefix {
					x.svc = svc
				}
			}
		}
	case s.streams() && r.URL.Path != "/" && r.URL.Path != "":
		x.protocol = RestXML // only such services have paths
	case isForm(r), r.Method == http.MethodGet:
		x.protocol = Query
	}
	if x.svc != nil {
		x.protocol = x.svc.Protocol
	}
	for _, name := range onceOnly {
		if len(r.Header.Values(name)) > 1 {
			return errIncomplete(x.protocol, "The header "+name+" is present more than once.")
		}
	}
	var err error
	if x.query, err = url.ParseQuery(r.URL.RawQuery); err != nil {
		return newError(http.StatusBadRequest, byProtocol(x.protocol, "SerializationException", "MalformedQueryString", "MalformedQueryString"),
			"The query string of the URL is malformed.")
	}
	if x.protocol == Query {
		x.byVersion(s.services, x.query.Get("Version"))
	}
	return nil
}

// byVersion makes the service that has the version the one that is asked.
func (x *exchange) byVersion(services map[string]*service, version string) {
	for _, svc := range services {
		if svc.Version != "" && svc.Version == version {
			x.svc, x.protocol = svc, svc.Protocol
		}
	}
}

// maxPeek is how much of a form is looked at to refuse it in the words of its
// service. Clients write Action and Version first.
const maxPeek = 4 << 10

// peek finds the service of a form whose signature does not tell it.
func (s *Server) peek(x *exchange) {
	if x.svc != nil || x.protocol != Query || !isForm(x.http) {
		return
	}
	// As far as it comes and is a form: it is refused in any case.
	head, _ := io.ReadAll(io.LimitReader(x.http.Body, maxPeek))
	form, _ := url.ParseQuery(string(head))
	x.byVersion(s.services, form.Get("Version"))
}

func isForm(r *http.Request) bool { return mediaType(r) == "application/x-www-form-urlencoded" }

// onceOnly are the headers that mean something to the front door, which must
// not see another one of them than a proxy before it.
var onceOnly = []string{"Authorization", "X-Amz-Target", "X-Amz-Date", "X-Amz-Security-Token", "X-Amz-Content-Sha256", "Content-Type", "Date"}

// readBody takes the body off the wire, if there is room for it.
func (s *Server) readBody(w http.ResponseWriter, x *exchange) *Error {
	most := s.maxBody
	if x.svc.MaxBody != 0 {
		most = x.svc.MaxBody
	}
	errTooLarge := newError(http.StatusRequestEntityTooLarge,
		byProtocol(x.protocol, "RequestEntityTooLargeException", "RequestEntityTooLarge", "RequestEntityTooLarge"),
		fmt.Sprintf("The request body is larger than %d bytes.", most))
	size := x.http.ContentLength
	switch {
	case size > most:
		return errTooLarge
	case size < 0: // it does not say
		size = most
	}
	if s.bodies.Add(size) > s.maxBodies {
		s.bodies.Add(-size)
		return errBusy(x.protocol)
	}
	x.reserved = size
	body, err := io.ReadAll(http.MaxBytesReader(w, x.http.Body, most))
	var tooLarge *http.MaxBytesError
	switch {
	case err == nil:
		x.body = body
		x.reserved = int64(len(body))
		s.bodies.Add(x.reserved - size)
		return nil
	case errors.As(err, &tooLarge):
		return errTooLarge
	case errors.Is(err, os.ErrDeadlineExceeded):
		return newError(http.StatusRequestTimeout, byProtocol(x.protocol, "RequestTimeoutException", "RequestTimeout", "RequestTimeout"),
			fmt.Sprintf("The request body was not there within %s.", bodyWithin))
	default:
		return newError(http.StatusBadRequest, byProtocol(x.protocol, "SerializationException", "MalformedQueryString", "InvalidRequest"),
			"The request body could not be read to its end.")
	}
}

// readForm gathers the parameters of a form request. The ones of the
// signature are not among them.
func (x *exchange) readForm(services map[string]*service) *Error {
	if x.protocol != Query && x.protocol != EC2Query {
		return nil
	}
	form := isForm(x.http)
	if !form && x.http.Method != http.MethodGet {
		return nil // which its operation tells
	}
	x.form = url.Values{}
	for k, v := range x.query {
		if !strings.HasPrefix(k, "X-Amz-") {
			x.form[k] = v
		}
	}
	if form {
		values, err := url.ParseQuery(string(x.body))
		if err != nil {
			return newError(http.StatusBadRequest, "MalformedQueryString", "The request body is no valid form: "+err.Error())
		}
		for k, v := range values {
			x.form[k] = append(x.form[k], v...)
		}
	}
	for _, k := range slices.Sorted(maps.Keys(x.form)) {
		if len(x.form[k]) > 1 {
			return newError(http.StatusBadRequest, "InvalidParameterCombination", "The parameter "+k+" is present more than once.")
		}
	}
	signedFor := x.svc
	if x.byVersion(services, x.form.Get("Version")); x.svc != signedFor {
		return errScope(x.svc)
	}
	return nil
}

var regionPattern = regexp.MustCompile(`^[a-z]{2,10}(-[a-z]{2,12}){1,3}-[0-9]{1,2}$`)

// ValidRegion reports whether the name is shaped like one of a region.
func ValidRegion(name string) bool { return regionPattern.MatchString(name) }

// identify finds the service by the scope of the signature, and the key. It
// needs the head of the request alone.
func (s *Server) identify(x *exchange) (*signature, Key, *Error) {
	sig, err := parseSignature(x.http, x.query)
	if err != nil {
		s.peek(x)
	}
	if errors.Is(err, errNoSignature) {
		return nil, Key{}, errMissingAuth(x.protocol)
	}
	if err != nil {
		return nil, Key{}, errIncomplete(x.protocol, err.Error())
	}
	svc, ok := s.services[sig.service]
	if !ok {
		if s.peek(x); x.svc != nil {
			return nil, Key{}, errScope(x.svc)
		}
		return nil, Key{}, faultError(x.service(), &Fault{
			Kind: FaultUnknownOperation, Name: sig.service,
			Message: "openpcs has no service '" + sig.service + "'. It has: " + strings.Join(slices.Sorted(maps.Keys(s.services)), ", ") + ".",
		})
	}
	if x.svc != nil && x.svc != svc {
		return nil, Key{}, errScope(x.svc)
	}
	x.svc, x.protocol = svc, svc.Protocol
	p := svc.Protocol
	if !ValidRegion(sig.region) {
		return nil, Key{}, errSignature(p, "Credential should be scoped to a valid region, not '"+sig.region+"'.")
	}
	if h := sig.unsigned(x.http.Header); h != "" {
		return nil, Key{}, errSignature(p, "The header '"+h+"' must be signed.")
	}
	if given := x.http.Header.Get("X-Amz-Content-Sha256"); p != RestXML && (given == unsignedPayload || strings.HasPrefix(given, "STREAMING-")) {
		return nil, Key{}, errSignature(p, "The payload must be signed: "+given+" is not accepted by this service.")
	}
	key, err := s.keys.FindKey(x.http.Context(), sig.keyID)
	if errors.Is(err, store.ErrNotFound) || (err == nil && !sameSecret(key.Token, sig.token)) {
		return nil, Key{}, errUnknownKey(p)
	}
	if err != nil {
		s.log.ErrorContext(x.http.Context(), "look up access key", "request", x.id, "key", sig.keyID, "error", err)
		return nil, Key{}, faultError(&svc.Service, internalFault())
	}
	if err := sig.checkTime(x.started); err != nil {
		if p == RestXML && sig.presigned {
			return nil, Key{}, newError(http.StatusForbidden, "AccessDenied", "Request has expired. "+err.Error())
		}
		return nil, Key{}, errSkew(p, err.Error())
	}
	return sig, key, nil
}

// authenticate verifies the signature over the whole request, and that the key
// may be used now and from there.
func (s *Server) authenticate(x *exchange, sig *signature, key Key) *Error {
	hash, e := x.payloadHash()
	if e != nil {
		return e
	}
	return s.authorize(x, sig, key, hash)
}

// authorize is authenticate with the hash of the payload that is signed.
func (s *Server) authorize(x *exchange, sig *signature, key Key, hash string) *Error {
	p := x.protocol
	if !sig.verify(x.http, key.Secret, hash) {
		return errWrongSignature(p)
	}
	if !key.Expires.IsZero() && !x.started.Before(key.Expires) {
		return errExpiredToken(p)
	}
	if from := key.Caller.From; from != "" && from != remoteHost(x.http) {
		return errElsewhere(p, key.Caller, remoteHost(x.http))
	}
	return nil
}

// remoteHost is the address of whoever sent the request. What proxies say of
// it does not count.
func remoteHost(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}

// payloadHash returns the hash that is signed: that of the body, always,
// for services whose requests are not streamed.
func (x *exchange) payloadHash() (string, *Error) {
	hash := hashHex(x.body)
	given := x.http.Header.Get("X-Amz-Content-Sha256")
	if given != "" && !sameSecret(given, hash) {
		return "", errSignature(x.protocol, "The provided 'x-amz-content-sha256' header does not match what was computed.")
	}
	return hash, nil
}

// resolve finds the operation in the table of the service.
func (s *Server) resolve(x *exchange) *Error {
	svc, r := x.svc, x.http
	if p := r.URL.Path; p != "" && p != "/" {
		return faultError(&svc.Service, &Fault{
			Kind: FaultUnknownOperation, Name: p,
			Message: "There is nothing at " + p + ": the operations of " + svc.Name + " are called at /.",
		})
	}
	name, e := x.operationName()
	if e != nil {
		return e
	}
	x.op = svc.ops[name]
	if x.op == nil {
		return faultError(&svc.Service, &Fault{Kind: FaultUnknownOperation, Name: name, Message: unknownOperation(svc, name)})
	}
	x.req.Operation = name
	return nil
}

func unknownOperation(svc *service, name string) string {
	if svc.Protocol == Query || svc.Protocol == EC2Query {
		return "The action " + name + " is not valid for this web service (openpcs does not have it)."
	}
	return "The operation " + name + " is not part of " + svc.Name + " in this version of openpcs."
}

func (x *exchange) operationName() (string, *Error) {
	svc, r := x.svc, x.http
	if svc.Protocol == JSON10 || svc.Protocol == JSON11 {
		if r.Method != http.MethodPost {
			return "", newError(http.StatusMethodNotAllowed, "UnknownOperationException", svc.Name+" is called with POST.")
		}
		if !jsonTypes[mediaType(r)] {
			return "", faultError(&svc.Service, &Fault{
				Kind: FaultCannotParse, Message: "The header Content-Type must be " + contentType(svc.Protocol) + ".",
			})
		}
		prefix, name, ok := cutLast(r.Header.Get("X-Amz-Target"), ".")
		if !ok || prefix != svc.Target {
			return "", faultError(&svc.Service, &Fault{
				Kind: FaultUnknownOperation, Name: r.Header.Get("X-Amz-Target"),
				Message: "The header X-Amz-Target must be " + svc.Target + ".<operation>.",
			})
		}
		return name, nil
	}
	if r.Method != http.MethodPost && r.Method != http.MethodGet {
		return "", newError(http.StatusMethodNotAllowed, "InvalidAction", svc.Name+" is called with POST or GET.")
	}
	if x.form == nil {
		return "", newError(http.StatusBadRequest, "MissingAction", "The request must be a form (application/x-www-form-urlencoded) with an Action.")
	}
	action, version := x.form.Get("Action"), x.form.Get("Version")
	switch {
	case action == "":
		return "", newError(http.StatusBadRequest, "MissingAction", "The request must contain the parameter Action.")
	case version != "" && version != svc.Version:
		return "", newError(http.StatusBadRequest, byProtocol(svc.Protocol, "", "InvalidAction", "NoSuchVersion"),
			"Could not find operation "+action+" for version "+version+": openpcs has "+svc.Name+" in version "+svc.Version+".")
	}
	delete(x.form, "Action")
	delete(x.form, "Version")
	return action, nil
}

func (x *exchange) encode() ([]byte, error) {
	switch x.protocol {
	case Query, EC2Query:
		return encodeXML(&x.svc.Service, x.op.Name, x.id, x.answer)
	default:
		return encodeJSON(x.answer)
	}
}

func (x *exchange) encodeError(e *Error) []byte {
	switch x.protocol {
	case RestXML:
		return restErrorXML(e, x.http.URL.Path, x.id)
	case EC2Query:
		return ec2ErrorXML(e, x.id)
	case Query:
		ns := ""
		if x.svc != nil {
			ns = x.svc.Namespace
		}
		return queryErrorXML(e, ns, x.id)
	}
	doc := make(map[string]any, len(e.Fields)+2)
	maps.Copy(doc, e.Fields)
	doc["__type"] = e.Code
	doc["message"] = e.Message
	b, err := encodeJSON(doc)
	if err != nil { // a field that JSON cannot express
		b, _ = encodeJSON(map[string]any{"__type": e.Code, "message": e.Message})
	}
	return b
}

func (s *Server) write(w http.ResponseWriter, x *exchange, status int, e *Error, payload []byte) {
	h := w.Header()
	if x.protocol == RestXML {
		h.Set("X-Amz-Request-Id", x.id)
	} else {
		h.Set("X-Amzn-Requestid", x.id)
	}
	h.Set("Date", s.now().UTC().Format(http.TimeFormat))
	h.Set("Content-Type", contentType(x.protocol))
	if e != nil && (x.protocol == JSON10 || x.protocol == JSON11) {
		h.Set("X-Amzn-Errortype", e.Code)
	}
	w.WriteHeader(status)
	if _, err := io.Copy(w, bytes.NewReader(payload)); err != nil {
		s.log.DebugContext(x.http.Context(), "client went away before its answer", "request", x.id, "error", err)
	}
}

// jsonTypes are the content types of JSON requests. Either version is taken
// by both protocols, as they write the same.
var jsonTypes = map[string]bool{"application/x-amz-json-1.0": true, "application/x-amz-json-1.1": true, "application/json": true}

func mediaType(r *http.Request) string {
	name, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	return name
}

func contentType(p Protocol) string {
	switch p {
	case JSON10:
		return "application/x-amz-json-1.0"
	case JSON11:
		return "application/x-amz-json-1.1"
	case RestXML:
		return "application/xml"
	default:
		return "text/xml;charset=UTF-8"
	}
}

// maxLogged bounds what a log line repeats of a request, in bytes.
const maxLogged = 1000

func (s *Server) report(ctx context.Context, x *exchange, status int, e *Error, cause error) {
	took := s.now().Sub(x.started)
	attrs := []any{"request", x.id, "status", status, "took", took}
	if x.svc != nil {
		attrs = append(attrs, "service", x.svc.Name)
	}
	if x.op != nil {
		attrs = append(attrs, "operation", x.op.Name)
	}
	if x.req != nil {
		attrs = append(attrs, "region", x.req.Region, "caller", x.req.Caller.ARN)
	}
	if e != nil {
		attrs = append(attrs, "code", e.Code, "message", strings.ToValidUTF8(e.Message[:min(len(e.Message), maxLogged)], ""))
	}
	switch {
	case cause != nil:
		s.log.ErrorContext(ctx, "API call failed", append(attrs, "error", cause)...)
	case e != nil:
		s.log.InfoContext(ctx, "API call refused", attrs...)
	default:
		s.log.DebugContext(ctx, "API call answered", attrs...)
	}
	if s.observe != nil {
		call := Call{
			Request: x.req, Status: status, Err: e, Answer: x.answer,
			Started: x.started, Took: took, Remote: x.http.RemoteAddr, Agent: x.http.UserAgent(),
		}
		if x.op != nil {
			call.ReadOnly = x.op.ReadOnly
		}
		s.observe(call)
	}
}

func cutLast(s, sep string) (before, after string, ok bool) {
	i := strings.LastIndex(s, sep)
	if i < 0 {
		return s, "", false
	}
	return s[:i], s[i+len(sep):], true
}

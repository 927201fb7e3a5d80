package metrics

import (
	"net/http"
	"slices"
	"strconv"
	"time"
)

// methods are those that S3 has; a client can send any word.
var methods = []string{http.MethodGet, http.MethodHead, http.MethodPut, http.MethodPost, http.MethodDelete}

// Call counts a call of the API that was answered. Service and operation are
// empty where the call was refused before they were known.
func (r *Registry) Call(service, operation string, status int, took time.Duration) {
	if service == "s3" && !slices.Contains(methods, operation) {
		operation = Other
	}
	r.Add(APIRequests, 1, service, operation, strconv.Itoa(status))
	r.Observe(APISeconds, took.Seconds(), service, operation)
}

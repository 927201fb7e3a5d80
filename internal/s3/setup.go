package s3

// Setup is what the process of the storage is told on its standard input, as
// one JSON document. When that input ends, so does the process.
type Setup struct {
	Dir     string `json:"dir"`    // the folder of the buckets and what belongs to them
	Socket  string `json:"socket"` // where to listen
	Account string `json:"account"`
	Secret  string `json:"secret"` // of all keys
	Region  string `json:"region"`
}

// Identity is who asks the storage, and what its own policies say. It travels
// as the session token of the request.
type Identity struct {
	ARN     string   `json:"arn"`
	RoleARN string   `json:"role,omitempty"`
	Allow   []string `json:"allow,omitempty"` // action patterns
	Deny    []string `json:"deny,omitempty"`
	// Address is where the request came from, for policies that ask.
	Address string `json:"address,omitempty"`
}

// Ready is the line by which the process of the storage says that it listens.
const Ready = "ready"

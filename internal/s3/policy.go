package s3

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/openpcs/openpcs/internal/awsapi"
)

// The library knows principals by accounts and ARNs. A service, such as the one
// that delivers logs, is a principal there whose name ends in this.
const serviceSuffix = ".amazonaws.com"

// names is one string or a list of them.
type names []string

func (n *names) UnmarshalJSON(b []byte) error {
	var one string
	if json.Unmarshal(b, &one) == nil {
		*n = names{one}
		return nil
	}
	return json.Unmarshal(b, (*[]string)(n))
}

// MarshalJSON writes a single one as a string, as AWS does.
func (n names) MarshalJSON() ([]byte, error) {
	if len(n) == 1 {
		return json.Marshal(n[0])
	}
	return json.Marshal([]string(n))
}

// ignored are members of a statement that the library does not look at, which
// would make a policy say something else than it says.
var ignored = []string{"NotPrincipal", "NotAction", "NotResource"}

// eachStatement calls change with each statement of a policy, and returns the
// policy as it is after that. What is no policy stays, as the library says what
// is wrong with it.
func eachStatement(policy []byte, change func(map[string]json.RawMessage) error) ([]byte, error) {
	var doc map[string]json.RawMessage
	if json.Unmarshal(policy, &doc) != nil {
		return policy, nil
	}
	var list []map[string]json.RawMessage
	if json.Unmarshal(doc["Statement"], &list) != nil {
		// One may stand without a list, which the library does not take.
		list = make([]map[string]json.RawMessage, 1)
		if json.Unmarshal(doc["Statement"], &list[0]) != nil {
			return policy, nil
		}
	}
	for _, s := range list {
		if err := change(s); err != nil {
			return nil, err
		}
	}
	var err error
	if doc["Statement"], err = json.Marshal(list); err != nil {
		return nil, err
	}
	return json.Marshal(doc)
}

// toStorage makes a bucket policy one that the library understands.
func toStorage(policy []byte) ([]byte, error) {
	return eachStatement(policy, func(s map[string]json.RawMessage) error {
		for _, name := range ignored {
			if _, there := s[name]; there {
				return malformed("openpcs does not support %s in bucket policies: say what you mean with %s.", name, strings.TrimPrefix(name, "Not"))
			}
		}
		var who map[string]names
		if json.Unmarshal(s["Principal"], &who) != nil || len(who) == 0 {
			return nil // "*", or a mistake
		}
		var all names
		for _, kind := range slices.Sorted(maps.Keys(who)) {
			if kind != "AWS" && kind != "Service" {
				return malformed("openpcs does not support principals of the kind %s in bucket policies: it knows AWS and Service.", kind)
			}
			for _, name := range who[kind] {
				if strings.HasSuffix(name, serviceSuffix) != (kind == "Service") {
					return malformed("Invalid principal in policy: %q is none of the kind %s.", name, kind)
				}
				all = append(all, name)
			}
		}
		var err error
		s["Principal"], err = json.Marshal(map[string]names{"AWS": all})
		return err
	})
}

// fromStorage gives a policy the principals back that its author wrote.
func fromStorage(policy []byte) ([]byte, error) {
	return eachStatement(policy, func(s map[string]json.RawMessage) error {
		var who map[string]names
		if json.Unmarshal(s["Principal"], &who) != nil || len(who) == 0 {
			return nil
		}
		kinds := map[string]names{}
		for _, name := range who["AWS"] {
			kind := "AWS"
			if strings.HasSuffix(name, serviceSuffix) {
				kind = "Service"
			}
			kinds[kind] = append(kinds[kind], name)
		}
		var err error
		s["Principal"], err = json.Marshal(kinds)
		return err
	})
}

func malformed(format string, args ...any) error {
	return &awsapi.Error{Code: "MalformedPolicy", Message: fmt.Sprintf(format, args...), Status: http.StatusBadRequest}
}

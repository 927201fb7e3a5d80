package s3

import (
	"bytes"
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

// author is the member of a stored policy that has it as its author wrote it.
const author = "openpcs:author"

// maxPolicy is S3's bound of a bucket policy, in bytes.
const maxPolicy = 20 << 10

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

type members = map[string]json.RawMessage

// toStorage makes a bucket policy one that the library understands. What is no
// policy stays, as the library says what is wrong with it.
func toStorage(policy []byte) ([]byte, error) {
	if len(policy) > maxPolicy {
		return nil, malformed("Bucket policies may have %d bytes, not %d.", maxPolicy, len(policy))
	}
	var doc members
	if json.Unmarshal(policy, &doc) != nil {
		return policy, nil
	}
	var list []members
	if json.Unmarshal(doc["Statement"], &list) != nil {
		// One may stand without a list, which the library does not take.
		list = make([]members, 1)
		if json.Unmarshal(doc["Statement"], &list[0]) != nil {
			return policy, nil
		}
	}
	for _, s := range list {
		if err := translate(s); err != nil {
			return nil, err
		}
	}
	var err error
	if doc["Statement"], err = json.Marshal(list); err != nil {
		return nil, err
	}
	doc[author] = policy
	return json.Marshal(doc)
}

// fromStorage gives a policy back as its author wrote it.
func fromStorage(policy []byte) ([]byte, error) {
	var doc members
	if err := json.Unmarshal(policy, &doc); err != nil {
		return nil, fmt.Errorf("read a stored policy: %w", err)
	}
	var out bytes.Buffer
	if err := json.Compact(&out, doc[author]); err != nil {
		return nil, fmt.Errorf("read a stored policy: %w", err)
	}
	return out.Bytes(), nil
}

// ignored are members of a statement that the library does not look at, which
// would make a policy say something else than it says.
var ignored = []string{"NotPrincipal", "NotAction", "NotResource"}

func translate(s members) error {
	for _, name := range ignored {
		if _, there := s[name]; there {
			return malformed("openpcs does not support %s in bucket policies: say what you mean with %s.", name, strings.TrimPrefix(name, "Not"))
		}
	}
	services, err := translatePrincipal(s)
	if err != nil {
		return err
	}
	return translateCondition(s, services)
}

// translatePrincipal writes services and accounts into one list. It reports
// whether there are services alone.
func translatePrincipal(s members) (services bool, err error) {
	var who map[string]names
	if json.Unmarshal(s["Principal"], &who) != nil || len(who) == 0 {
		return false, nil // "*", or a mistake
	}
	var all names
	for _, kind := range slices.Sorted(maps.Keys(who)) {
		if kind != "AWS" && kind != "Service" {
			return false, malformed("openpcs does not support principals of the kind %s in bucket policies: it knows AWS and Service.", kind)
		}
		for _, name := range who[kind] {
			if strings.HasSuffix(name, serviceSuffix) != (kind == "Service") {
				return false, malformed("Invalid principal in policy: %q is none of the kind %s.", name, kind)
			}
			all = append(all, name)
		}
	}
	s["Principal"], err = json.Marshal(map[string][]string{"AWS": all})
	return len(who["AWS"]) == 0, err
}

// Conditions of which the library takes the keys, and never has a value.
var noValue = map[string]bool{"aws:principalarn": true, "aws:username": true, "aws:userid": true, "aws:multifactorauthage": true}

// Conditions that are about services which act for somebody. The library does
// not know them, but others for which a request brings the value along; requests
// of services are made by openpcs alone, which puts the right one there.
var forService = map[string]string{"aws:sourcearn": "aws:Referer", "aws:sourceaccount": "aws:UserAgent"}

func translateCondition(s members, services bool) error {
	var blocks map[string]members
	if json.Unmarshal(s["Condition"], &blocks) != nil || len(blocks) == 0 {
		return nil // none, or a mistake
	}
	for _, block := range blocks {
		for _, key := range slices.Sorted(maps.Keys(block)) {
			lower := strings.ToLower(key)
			other := forService[lower]
			switch {
			case noValue[lower]:
				return malformed("openpcs does not evaluate the condition key %s in bucket policies.", key)
			case services && (lower == "aws:referer" || lower == "aws:useragent"):
				return malformed("The condition key %s does not apply to a service.", key)
			case other != "" && !services:
				return malformed("openpcs evaluates the condition key %s in statements whose principals are services alone.", key)
			case other != "":
				block[other] = block[key]
				delete(block, key)
			}
		}
	}
	var err error
	s["Condition"], err = json.Marshal(blocks)
	return err
}

func malformed(format string, args ...any) error {
	return &awsapi.Error{Code: "MalformedPolicy", Message: fmt.Sprintf(format, args...), Status: http.StatusBadRequest}
}

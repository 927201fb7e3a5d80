package iam

import "testing"

// TestManagedPoliciesParse keeps permissions from leaving them out silently.
func TestManagedPoliciesParse(t *testing.T) {
	for arn, p := range managed {
		allow, deny, err := parsePolicy(p.document)
		if err != nil || len(allow) == 0 || len(deny) != 0 || arn != awsPolicy+p.name {
			t.Errorf("%s: got %v, %v, %v", arn, allow, deny, err)
		}
	}
}

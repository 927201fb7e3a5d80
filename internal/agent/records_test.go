package agent

import "testing"

// The canary's word counts but for what slurmdbd keeps, of which it has an old
// copy.
func TestOfRecords(t *testing.T) {
	for said, want := range map[string]bool{
		"error: Invalid Allow/DenyQOS value: low | fatal: Partition queue-1 has an invalid DenyQOS (low), please check your configuration": true,
		"fatal: Partition queue-1 has an invalid qos (low)": true,
		"error: Invalid AllowAccounts":                      true,
		"fatal: Invalid PreemptType":                        false,
		"fatal: You must set PriorityUsageResetPeriod":      false,
		"": false,
	} {
		if got := ofRecords.MatchString(said); got != want {
			t.Errorf("%q: %v", said, got)
		}
	}
}

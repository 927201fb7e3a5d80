package slurm

import (
	"slices"
	"strings"
)

// restart is a parameter, or words of one that is a list, that a running
// slurmctld does not take over when it is told to reconfigure.
type restart struct {
	parameter string
	words     []string // empty: any change of the parameter
	since     string   // first release for which that is so, empty: all
}

// restarts are all of them. They are few: a reconfigure of the releases that
// openpcs drives (Slurm 23.11 and later) is a new process, which reads
// everything anew, but keeps its predecessor's sockets and state. Some are
// fixed in what openpcs writes; they are here for the day that changes.
var restarts = []restart{
	{parameter: "AuthType"},
	{parameter: "AuthInfo"},
	{parameter: "CredType"},
	{parameter: "ClusterName"},
	{parameter: "SlurmctldHost"},
	{parameter: "SlurmctldPort"},
	{parameter: "SlurmUser"},
	{parameter: "StateSaveLocation"},
	// Seen with 24.11 and 26.05: slurmctld says that it reconfigured, and
	// listens as before. Its HTTP endpoint is not among them: that is a matter
	// of the same socket.
	{parameter: "CommunicationParameters", words: []string{"NoCtldInAddrAny", "NoInAddrAny", "EnableIPv6", "DisableIPv4"}},
}

// NeedsRestart lists the parameters for which slurmctld has to be restarted
// to get from one slurm.conf to another; usually there is none.
func NeedsRestart(release string, from, to []byte) (parameters []string) {
	before, after := globals(from), globals(to)
	for _, r := range restarts {
		key := strings.ToLower(r.parameter)
		changed := before[key] != after[key]
		if len(r.words) > 0 {
			changed = slices.ContainsFunc(r.words, func(w string) bool { return hasWord(before[key], w) != hasWord(after[key], w) })
		}
		if changed && !older(release, r.since) {
			parameters = append(parameters, r.parameter)
		}
	}
	return parameters
}

// globals are the parameters of a slurm.conf, in lower case, without those of
// nodes and partitions, which reconfiguring always takes.
func globals(conf []byte) map[string]string {
	values := map[string]string{}
	for line := range strings.Lines(string(conf)) {
		key, value, ok := strings.Cut(strings.TrimSpace(line), "=")
		switch key = strings.ToLower(key); {
		case !ok, strings.HasPrefix(key, "#"), key == "nodename", key == "partitionname":
		default:
			values[key] = strings.Trim(value, `"`)
		}
	}
	return values
}

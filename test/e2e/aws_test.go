//go:build e2e

package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
)

// clientEnv is what `openpcs env` exports, and what keeps the settings of
// the person who runs the tests out of the AWS CLI.
var clientEnv []string

var exportLine = regexp.MustCompile(`(?m)^export ([A-Z_]+)='([^']*)'$`)

// readEnv takes the output of `openpcs env`, as a shell's eval would.
func readEnv(text string) error {
	clientEnv = []string{"AWS_PAGER=", "AWS_CONFIG_FILE=/nonexistent", "AWS_SHARED_CREDENTIALS_FILE=/nonexistent"}
	for _, m := range exportLine.FindAllStringSubmatch(text, -1) {
		clientEnv = append(clientEnv, m[1]+"="+m[2])
	}
	if !strings.Contains(text, "export AWS_ENDPOINT_URL='http://"+listen+"'") {
		return fmt.Errorf("openpcs env does not point to the site: %s", text)
	}
	for line := range strings.Lines(text) {
		if names, ok := strings.CutPrefix(strings.TrimSpace(line), "unset "); ok {
			for _, name := range strings.Fields(names) {
				if err := os.Unsetenv(name); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// awsRun runs the AWS CLI.
func awsRun(args ...string) result {
	return run(clientEnv, append([]string{os.Getenv(awsEnv)}, args...)...)
}

// aws runs the AWS CLI and returns its output.
func aws(t *testing.T, args ...string) string {
	t.Helper()
	return succeed(t, awsRun(args...)).line()
}

// awsGet runs the AWS CLI and decodes its answer.
func awsGet[T any](t *testing.T, args ...string) (out T) {
	t.Helper()
	r := succeed(t, awsRun(append(args, "--output", "json")...))
	if err := json.Unmarshal([]byte(r.out), &out); err != nil {
		fail(t, "%v in the answer of %s", err, r)
	}
	return out
}

var awsErrorLine = regexp.MustCompile(`An error occurred \(([A-Za-z0-9.]+)\) when calling the [A-Za-z]+ operation.*?: (.*)`)

// awsRefused runs the AWS CLI, which must end with an error of the service,
// and returns that error's code and message.
func awsRefused(t *testing.T, args ...string) (code, message string) {
	t.Helper()
	r := awsRun(args...)
	m := awsErrorLine.FindStringSubmatch(r.errOut)
	must(t, r.code == 254 && m != nil, "not an error of the service: %s", r)
	return m[1], m[2]
}

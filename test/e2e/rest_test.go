//go:build e2e

package e2e

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// token signs claims with the key of the cluster's jwtAuth, as docs/rest.md
// says.
func (c *cluster) token(t *testing.T, claims string) string {
	t.Helper()
	arn := aws(t, "pcs", "get-cluster", "--cluster-identifier", c.id, "--query", "cluster.slurmConfiguration.jwtAuth.jwtKey.secretArn", "--output", "text")
	key, err := base64.StdEncoding.DecodeString(aws(t, "secretsmanager", "get-secret-value", "--secret-id", arn, "--query", "SecretString", "--output", "text"))
	must(t, err == nil, "the key: %v", err)
	text := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"HS256","typ":"JWT"}`)) + "." + base64.RawURLEncoding.EncodeToString([]byte(claims))
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(text))
	return text + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// TestREST: with slurmRest STANDARD the REST API answers who has a token that
// is signed with the cluster's key, and nobody else.
func TestREST(t *testing.T) {
	c := accounted(t)
	must(t, slices.Contains(c.endpoints(t), "SLURMRESTD"), "endpoints: %v", c.endpoints(t))
	at := aws(t, "pcs", "get-cluster", "--cluster-identifier", c.id, "--query",
		"cluster.endpoints[?type=='SLURMRESTD'] | [0].join(':', [privateIpAddress, port])", "--output", "text")
	now := time.Now().Unix()
	life := fmt.Sprintf(`"iat":%d,"exp":%d`, now, now+600)
	byName := c.token(t, `{`+life+`,"sun":"ubuntu"}`)
	client := &http.Client{Timeout: patience}
	call := func(path string, headers ...string) (int, string) {
		t.Helper()
		code, body, err := do(client, http.MethodGet, "http://"+at+path, headers...)
		must(t, err == nil, "%s: %v", path, err)
		return code, body
	}
	job := c.submit(t, "queue-1", "hostname")
	c.output(t, job, time.Minute)
	c.recorded(t, job, "COMPLETED")

	code, body := call("/slurm/v0.0.45/ping/", "X-SLURM-USER-TOKEN", byName)
	must(t, code == http.StatusOK && strings.Contains(body, `"responding": true`), "ping: %d %s", code, clip(body))
	code, body = call("/slurm/v0.0.44/job/"+job, "Authorization", "Bearer "+byName)
	must(t, code == http.StatusOK && strings.Contains(body, `"user_name": "ubuntu"`), "the job: %d %s", code, clip(body))
	code, body = call("/slurmdb/v0.0.45/job/"+job, "X-SLURM-USER-TOKEN", byName)
	must(t, code == http.StatusOK && strings.Contains(body, `"COMPLETED"`), "the record: %d %s", code, clip(body))
	byID := c.token(t, `{`+life+`,"uid":1000,"gid":1000,"id":{"name":"ubuntu","gecos":"Ubuntu","dir":"/home/ubuntu","shell":"/bin/bash","gids":[1000]}}`)
	code, body = call("/slurm/v0.0.45/job/"+job, "X-SLURM-USER-TOKEN", byID)
	must(t, code == http.StatusOK && strings.Contains(body, `"user_name": "ubuntu"`), "the job, by id: %d %s", code, clip(body))

	code, body = call("/slurm/v0.0.45/ping/")
	must(t, code == http.StatusUnauthorized, "without a token: %d %s", code, clip(body))
	for what, token := range map[string]string{
		"another key": byName + "x",
		"expired":     c.token(t, fmt.Sprintf(`{"iat":%d,"exp":%d,"sun":"ubuntu"}`, now-600, now-300)),
	} {
		code, body = call("/slurm/v0.0.45/jobs/", "X-SLURM-USER-TOKEN", token)
		must(t, code != http.StatusOK && strings.Contains(body, "1007"), "%s: %d %s", what, code, clip(body))
	}

	r := succeed(t, c.controller("ps -o user= -C slurmrestd"))
	must(t, strings.HasPrefix(r.line(), "slurmre"), "slurmrestd runs as %s", r)

	c.configure(t, `{"slurmRest":{"mode":"NONE"}}`)
	must(t, !slices.Contains(c.endpoints(t), "SLURMRESTD"), "endpoints: %v", c.endpoints(t))
	_, _, err := do(client, http.MethodGet, "http://"+at+"/slurm/v0.0.45/ping/")
	must(t, err != nil, "slurmrestd still answers")

	// One that does not start is told with its own words, and not with what it said
	// of the calls before; slurmctld is configured once.
	const there, away = "/usr/sbin/slurmrestd", "/usr/sbin/slurmrestd.away"
	back := "test ! -e " + away + " || mv " + away + " " + there
	t.Cleanup(func() { c.controller(back) })
	succeed(t, c.controller("mv "+there+" "+away))
	aws(t, "pcs", "update-cluster", "--cluster-identifier", c.id, "--slurm-configuration", `{"slurmRest":{"mode":"STANDARD"}}`)
	message := c.tells(t, "REST_API_FAILED")
	must(t, strings.Contains(message, "slurmrestd") && strings.Contains(message, "No such file") && !strings.Contains(message, "uthentication"), "errorInfo: %s", message)
	before := c.configured(t)
	eventually(t, time.Minute, "it is tried again", func() error {
		r := succeed(t, c.controller("journalctl --unit slurmrestd | grep -c 'Started slurmrestd'"))
		if n, err := strconv.Atoi(r.line()); err != nil || n < 15 {
			return fmt.Errorf("%s %v", r, err)
		}
		return nil
	})
	must(t, c.configured(t) == before, "slurmctld was configured again, for slurmrestd")
	succeed(t, c.controller(back))
	c.active(t, c.name, "clusters")
	eventually(t, patience, "the REST API answers again", func() error {
		if code, body, err := do(client, http.MethodGet, "http://"+at+"/slurm/v0.0.45/ping/", "X-SLURM-USER-TOKEN", byName); err != nil || code != http.StatusOK {
			return errors.Join(err, fmt.Errorf("%d %s", code, clip(body)))
		}
		return nil
	})
}

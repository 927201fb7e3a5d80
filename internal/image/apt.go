package image

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"strings"
)

// hostMirror returns the URI of the Debian archive that this machine's apt
// uses, or "" where it uses none (on Ubuntu, say).
func hostMirror(ctx context.Context, suite string) (string, error) {
	cmd := exec.CommandContext(ctx, "apt-get", "indextargets", "Created-By: Packages")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("ask apt for its mirrors: %w: %s", err, strings.TrimSpace(stderr.String()))
	}
	return chooseMirror(out, suite), nil
}

// chooseMirror finds the Debian archive in the output of `apt-get
// indextargets`: the one that the suite comes from, else the first. Archives
// of security updates and backports do not count: they hold no whole suite.
func chooseMirror(targets []byte, suite string) string {
	var first string
	for _, t := range parseStanzas(targets) {
		if t["Created-By"] != "Packages" || t["Origin"] != "Debian" || t["Label"] != "Debian" || t["Component"] != "main" {
			continue
		}
		uri := t["Repo-URI"]
		if uri == "" {
			continue
		}
		if t["Codename"] == suite {
			return uri
		}
		if first == "" {
			first = uri
		}
	}
	return first
}

// parseStanzas reads the "Key: value" paragraphs of apt and dpkg. Lines that
// continue a value are left out.
func parseStanzas(data []byte) []map[string]string {
	var stanzas []map[string]string
	var current map[string]string
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		if strings.TrimSpace(line) == "" {
			current = nil
			continue
		}
		key, value, ok := strings.Cut(line, ":")
		if !ok || strings.HasPrefix(line, " ") {
			continue
		}
		if current == nil {
			current = make(map[string]string)
			stanzas = append(stanzas, current)
		}
		current[key] = strings.TrimSpace(value)
	}
	return stanzas
}

var expiredRelease = regexp.MustCompile(`(?m)Release file for \S+ is expired \(invalid since ([^)]*)\)`)

// expiredSince finds apt's complaint that a mirror's Release file is past its
// Valid-Until, and returns for how long.
func expiredSince(output string) (since string, ok bool) {
	m := expiredRelease.FindStringSubmatch(output)
	if m == nil {
		return "", false
	}
	return m[1], true
}

// packageVersion returns the upstream version of an installed package, read
// from a dpkg status file, or "" where it is not installed.
func packageVersion(status []byte, name string) string {
	for _, p := range parseStanzas(status) {
		if p["Package"] != name || !strings.HasSuffix(p["Status"], " installed") {
			continue
		}
		v := p["Version"]
		if _, after, ok := strings.Cut(v, ":"); ok {
			v = after
		}
		if i := strings.LastIndexByte(v, '-'); i >= 0 {
			v = v[:i]
		}
		return v
	}
	return ""
}

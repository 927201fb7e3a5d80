package library_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/openpcs/openpcs/internal/library"
)

// scripts writes the library into a folder and returns the path of each script.
func scripts(t *testing.T) map[string]string {
	t.Helper()
	paths := map[string]string{}
	for _, s := range library.Scripts() {
		f, ok := library.Find(s.Key)
		if !ok {
			t.Fatalf("%s is not there", s.Key)
		}
		paths[s.Name] = filepath.Join(t.TempDir(), s.Name+".sh")
		if err := os.WriteFile(paths[s.Name], f.Body, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return paths
}

func TestScriptsAreClean(t *testing.T) {
	if _, err := exec.LookPath("shellcheck"); err != nil {
		t.Skip("needs shellcheck")
	}
	for name, path := range scripts(t) {
		if out, err := exec.CommandContext(t.Context(), "shellcheck", "--norc", path).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
		text, err := os.ReadFile(path)
		if err != nil || bytes.Contains(text, []byte("# include")) || !bytes.HasPrefix(text, []byte("#!/bin/bash\n")) || len(text) > 2<<20 {
			t.Errorf("%s is not whole, %v", name, err)
		}
	}
}

func TestFind(t *testing.T) {
	for _, key := range []string{"", "mount-efs-v1.0.0.sh", library.Folder, library.Folder + "mount-efs-v2.0.0.sh"} {
		if f, ok := library.Find(key); ok {
			t.Errorf("%q is %+v", key, f.Key)
		}
	}
	if n, want := len(library.Files()), 4*len(library.Scripts()); n != want {
		t.Errorf("%d files, want %d", n, want)
	}
}

// TestWrongUse: nothing is touched, the exit code is 2, and what is wrong is
// said.
func TestWrongUse(t *testing.T) {
	paths := scripts(t)
	for _, tt := range []struct {
		script string
		args   []string
		says   string
	}{
		{"mount-efs", nil, "--file-system-id is missing"},
		{"mount-efs", []string{"--file-system-id"}, "--file-system-id needs a value"},
		{"mount-efs", []string{"--file-system-id", ""}, "--file-system-id needs a value"},
		{"mount-efs", []string{"--file-system-id", "nfs:/x"}, "--mount-point must be an absolute path"},
		{"mount-efs", []string{"--file-system-id", "nfs:/x", "--mount-point", "x"}, "not 'x'"},
		{"mount-efs", []string{"--file-system-id", "nfs:/x", "--mount-point", "/"}, "not '/'"},
		{"mount-efs", []string{"--file-system-id", "nfs:/x y", "--mount-point", "/m"}, "without blanks"},
		{"mount-efs", []string{"--file-system-id", "nfs:/x\nevil", "--mount-point", "/m"}, "without blanks"},
		{"mount-efs", []string{"--file-system-id", "nfs:/x", "--mount-point", "/m", "--options", "ro 0 0\n/dev/sda"}, "without blanks"},
		{"mount-efs", []string{"--colour"}, "no option '--colour'"},
		{"mount-fsx-lustre", []string{"--fsx-dns-name", "l"}, "--mount-name is missing"},
		{"mount-fsx-lustre", []string{"--mount-name", "l"}, "--fsx-dns-name is missing"},
		{"mount-fsx-lustre", []string{"--fsx-dns-name", "l", "--mount-name", "a;b c", "--mount-point", "/m"}, "without blanks"},
		{"configure-efs-homes", nil, "--efs-id is missing"},
		{"configure-efs-homes", []string{"--efs-id", "x:/", "--home-base", "home"}, "not 'home'"},
		{"configure-ldaps", nil, "--ldap-uri is missing"},
		{"configure-ldaps", []string{"--ldap-uri", "ldap://x", "--search-base", "dc=x"}, "in the clear"},
		{"configure-ldaps", []string{"--ldap-uri", "ldaps://a,ldap://b", "--search-base", "dc=x"}, "'ldap://b'"},
		{"configure-ldaps", []string{"--ldap-uri", "ldaps://x", "--search-base", "x"}, "dc=example,dc=com"},
		{"configure-ldaps", []string{"--ldap-uri", "ldaps://x", "--search-base", "dc=x\nldap_tls_reqcert = never"}, "one line"},
		{"configure-ldaps", []string{"--ldap-uri", "ldaps://x", "--search-base", "dc=x", "--secret-arn", "password"}, "neither the ARN"},
		{"configure-ldaps", []string{"--ldap-uri", "ldaps://x", "--search-base", "dc=x", "--tls-cacert", "ca.pem"}, "neither an absolute path"},
		{"configure-cloudwatch-logs", nil, "--s3-uri is missing"},
		{"configure-cloudwatch-logs", []string{"--log-group-name", "/aws/pcs/x"}, "with --s3-uri s3://BUCKET/PREFIX"},
		{"configure-cloudwatch-logs", []string{"--s3-uri", "s3://"}, "must be s3://BUCKET/PREFIX"},
		{"configure-cloudwatch-logs", []string{"--s3-uri", "https://logs/x"}, "must be s3://BUCKET/PREFIX"},
		{"configure-cloudwatch-logs", []string{"--s3-uri", "s3://Logs/x"}, "must be s3://BUCKET/PREFIX"},
		{"configure-cloudwatch-logs", []string{"--s3-uri", "s3://logs/a//b"}, "must be s3://BUCKET/PREFIX"},
		{"configure-cloudwatch-logs", []string{"--s3-uri", "s3://logs/a/../b"}, "none is . or .."},
		{"configure-cloudwatch-logs", []string{"--s3-uri", "s3://logs/.."}, "none is . or .."},
		{"configure-cloudwatch-logs", []string{"--s3-uri", "s3://logs/%n"}, "must be s3://BUCKET/PREFIX"},
		{"configure-cloudwatch-logs", []string{"--s3-uri", "s3://logs/x\nExecStartPre=evil"}, "must be s3://BUCKET/PREFIX"},
		{"configure-cloudwatch-logs", []string{"--s3-uri", "s3://logs", "--interval", "9"}, "10 to 86400"},
		{"configure-cloudwatch-logs", []string{"--s3-uri", "s3://logs", "--interval", "86401"}, "10 to 86400"},
		{"configure-cloudwatch-logs", []string{"--s3-uri", "s3://logs", "--interval", "a[$(id)]"}, "10 to 86400"},
	} {
		var out bytes.Buffer
		cmd := exec.CommandContext(t.Context(), "bash", append([]string{paths[tt.script]}, tt.args...)...)
		cmd.Stdout, cmd.Stderr = &out, &out
		_ = cmd.Run() // the exit code tells
		if code := cmd.ProcessState.ExitCode(); code != 2 || !strings.Contains(out.String(), tt.says) {
			t.Errorf("%s %q: exit code %d: %s", tt.script, tt.args, code, out.String())
		}
	}
	for name, path := range paths {
		out, err := exec.CommandContext(t.Context(), "bash", path, "--help").CombinedOutput()
		if err != nil || !strings.HasPrefix(string(out), name+" --") {
			t.Errorf("%s --help: %v: %s", name, err, out)
		}
	}
}

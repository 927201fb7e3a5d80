package awsapi

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strings"
)

// ReadKey reads the key of the section default of a file in the form of
// ~/.aws/credentials that nobody but its owner may read. No error repeats what is
// in the file.
func ReadKey(path string) (Key, error) {
	fail := func(err error) (Key, error) {
		return Key{}, fmt.Errorf("read the credentials in %s: %w", path, err)
	}
	f, err := os.Open(path)
	if err != nil {
		return fail(errors.Unwrap(err))
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return fail(err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return fail(errors.New("others than its owner may read it: chmod 600"))
	}
	var key Key
	section := ""
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if name, ok := strings.CutPrefix(line, "["); ok {
			section = strings.TrimSpace(strings.TrimSuffix(name, "]"))
			continue
		}
		name, value, ok := strings.Cut(line, "=")
		if !ok || section != "default" || strings.HasPrefix(line, "#") {
			continue
		}
		switch value = strings.TrimSpace(value); strings.TrimSpace(name) {
		case "aws_access_key_id":
			key.ID = value
		case "aws_secret_access_key":
			key.Secret = value
		case "aws_session_token":
			key.Token = value
		}
	}
	if err := lines.Err(); err != nil {
		return fail(err)
	}
	if key.ID == "" || key.Secret == "" {
		return fail(errors.New("its section [default] has no aws_access_key_id and aws_secret_access_key"))
	}
	return key, nil
}

// Package library is openpcs's own edition of the scripts that PCS offers for
// node lifecycle actions. They are part of the program, and S3 shows them at the
// location that PCS documents. It knows nothing of S3 but names.
package library

import (
	"bytes"
	"crypto/md5"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

//go:embed scripts
var source embed.FS

// Folder is where in the bucket the scripts are.
const Folder = "aws-pcs-node-lifecycle-scripts/"

// Modified is when the library was last changed, for those who ask for dates.
var Modified = time.Date(2026, time.November, 30, 0, 0, 0, 0, time.UTC)

// Script is one of the library.
type Script struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	For     string `json:"for"`    // what for, a sentence
	Key     string `json:"key"`    // in the bucket
	SHA256  string `json:"sha256"` // of the script, in hexadecimal digits
}

// scripts are those there are.
var scripts = []Script{
	{Name: "mount-efs", Version: "1.0.0", For: "Mount a file system of an NFS server"},
	{Name: "mount-fsx-lustre", Version: "1.0.0", For: "Mount a Lustre file system"},
	{Name: "configure-efs-homes", Version: "1.0.0", For: "Keep home directories on an NFS server"},
	{Name: "configure-ldaps", Version: "1.0.0", For: "Take users and groups from an LDAP directory"},
	{Name: "configure-cloudwatch-logs", Version: "1.0.0", For: "Ship the logs of a node to a bucket of S3"},
}

// File is one that can be read.
type File struct {
	Key  string
	Body []byte
}

// ETag is that of S3.
func (f File) ETag() string {
	sum := md5.Sum(f.Body) // what S3 takes; it protects nothing
	return `"` + hex.EncodeToString(sum[:]) + `"`
}

// Scripts returns all scripts, each by its exact version.
func Scripts() []Script { return load().scripts }

// Files returns all files, ordered by key: each script by its version, as the
// latest of its major version, and their checksums.
func Files() []File { return load().files }

// Find returns the file with a key.
func Find(key string) (File, bool) {
	files := Files()
	n, ok := slices.BinarySearchFunc(files, key, func(f File, key string) int { return strings.Compare(f.Key, key) })
	if !ok {
		return File{}, false
	}
	return files[n], true
}

// part is a file of the folder; both it and who names it are parts of the
// program.
func part(name string) []byte {
	body, err := source.ReadFile("scripts/" + name + ".sh")
	if err != nil {
		panic("library: " + err.Error())
	}
	return body
}

type shelf struct {
	scripts []Script
	files   []File
}

var load = sync.OnceValue(func() (s shelf) {
	for _, script := range scripts {
		// Each is fetched alone, so it brings along what it shares with the others.
		body := part(script.Name)
		for _, name := range []string{"common", "role"} {
			body = bytes.Replace(body, []byte("# include "+name+".sh\n"), part(name), 1)
		}
		sum := sha256.Sum256(body)
		script.SHA256 = hex.EncodeToString(sum[:])
		major, _, _ := strings.Cut(script.Version, ".")
		for _, version := range []string{script.Version, major + "-latest"} {
			name := fmt.Sprintf("%s-v%s.sh", script.Name, version)
			s.files = append(s.files,
				File{Folder + name, body},
				File{Folder + name + ".sha256", fmt.Appendf(nil, "%s  %s\n", script.SHA256, name)})
		}
		script.Key = fmt.Sprintf("%s%s-v%s.sh", Folder, script.Name, script.Version)
		s.scripts = append(s.scripts, script)
	}
	slices.SortFunc(s.files, func(a, b File) int { return strings.Compare(a.Key, b.Key) })
	return s
})

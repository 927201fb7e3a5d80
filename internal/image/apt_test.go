package image

import (
	"os"
	"testing"
)

func TestChooseMirror(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ file, suite, want string }{
		{"bookworm.txt", "forky", "http://debian.example.org/debian/"},
		{"mixed.txt", "forky", "http://unstable.example.org/debian/"},
		{"mixed.txt", "trixie", "http://debian.example.org/debian/"},
		{"ubuntu.txt", "forky", ""},
	} {
		targets, err := os.ReadFile("testdata/" + tc.file)
		if err != nil {
			t.Fatal(err)
		}
		got := chooseMirror(targets, tc.suite)
		if got != tc.want {
			t.Errorf("chooseMirror(%s, %s) = %q, want %q", tc.file, tc.suite, got, tc.want)
		}
	}
	if got := chooseMirror(nil, "forky"); got != "" {
		t.Errorf("chooseMirror(nothing) = %q", got)
	}
}

func TestExpiredSince(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, output, since string
		expired             bool
	}{
		{
			"expired",
			"Get:1 http://debian.example.org/debian forky InRelease [145 kB]\n" +
				"E: Release file for http://debian.example.org/debian/dists/forky/InRelease is expired (invalid since 24d 1h 49min 42s). Updates for this repository will not be applied.\n" +
				"E: apt-get update --error-on=any failed\n",
			"24d 1h 49min 42s", true,
		},
		{
			"not valid yet is the clock's fault, not the mirror's",
			"E: Release file for http://debian.example.org/debian/dists/forky/InRelease is not valid yet (invalid for another 5h 4min 8s).\n",
			"", false,
		},
		{"bad signature", "W: GPG error: ... The following signatures were invalid: EXPKEYSIG\n", "", false},
		{"success", "I: success in 21.2259 seconds\n", "", false},
	} {
		since, expired := expiredSince(tc.output)
		if since != tc.since || expired != tc.expired {
			t.Errorf("%s: expiredSince = %q, %v, want %q, %v", tc.name, since, expired, tc.since, tc.expired)
		}
	}
}

func TestPackageVersion(t *testing.T) {
	t.Parallel()
	const status = `Package: slurmctld
Status: install ok installed
Depends: libc6 (>= 2.38), slurm-client
Version: 26.05.5-1
Description: Slurm central management daemon
 Version: 1.0 is not this

Package: slurmd
Status: deinstall ok config-files
Version: 24.11.5-4

Package: passwd
Status: install ok installed
Version: 1:4.17.4-2
`
	for name, want := range map[string]string{"slurmctld": "26.05.5", "slurmd": "", "passwd": "4.17.4", "munge": ""} {
		if got := packageVersion([]byte(status), name); got != want {
			t.Errorf("packageVersion(%s) = %q, want %q", name, got, want)
		}
	}
}

func FuzzParseStanzas(f *testing.F) {
	for _, file := range []string{"bookworm.txt", "mixed.txt", "ubuntu.txt"} {
		targets, err := os.ReadFile("testdata/" + file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(targets)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, stanza := range parseStanzas(data) {
			if len(stanza) == 0 {
				t.Error("an empty paragraph")
			}
		}
	})
}

package image

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

var update = flag.Bool("update", false, "write the golden files anew")

func TestCatalogue(t *testing.T) {
	t.Parallel()
	all := Catalogue()
	for i, v := range all {
		if !v.Released.Before(v.Available) || !v.Available.Before(v.EndOfLife) {
			t.Errorf("%s: released %v, available %v, end of life %v are out of order", v.Slurm, v.Released, v.Available, v.EndOfLife)
		}
		if v.Default && !v.Buildable() {
			t.Errorf("%s is built by default but cannot be built", v.Slurm)
		}
		if i > 0 && !v.Released.Before(all[i-1].Released) {
			t.Errorf("%s is not older than the row before it", v.Slurm)
		}
	}
	all[0].Slurm = "changed"
	if _, ok := Lookup("26.05"); !ok {
		t.Error("Catalogue hands out its own memory")
	}
}

func TestSupported(t *testing.T) {
	t.Parallel()
	v, _ := Lookup("24.11")
	for at, want := range map[string]bool{
		"2024-11-28T23:59:59Z": false,
		"2024-11-29T00:00:00Z": true,
		"2026-05-31T23:59:59Z": true,
		"2026-06-01T00:00:00Z": false,
	} {
		now, err := time.Parse(time.RFC3339, at)
		if err != nil {
			t.Fatal(err)
		}
		if got := v.Supported(now); got != want {
			t.Errorf("24.11 supported at %s: %v, want %v", at, got, want)
		}
	}
}

func TestRecipeFor(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ version, suite, product, fault string }{
		{version: "26.05", suite: "forky", product: "aws-pcs-sample_ami-debian-x86_64-slurm-26.05"},
		{version: "24.11", suite: "trixie", product: "aws-pcs-sample_ami-debian-x86_64-slurm-24.11"},
		{version: Generic, suite: genericSuite, product: "debian-generic-x86_64"},
		{version: "25.11", fault: `no Debian suite carries Slurm 25.11`},
		{version: "27.05", fault: `not one of 26.05, 25.11, 25.05, 24.11, generic`},
		{version: "", fault: `not one of`},
	} {
		r, err := recipeFor(tc.version)
		if tc.fault != "" {
			if err == nil || !strings.Contains(err.Error(), tc.fault) {
				t.Errorf("recipeFor(%q): %v, want an error with %q", tc.version, err, tc.fault)
			}
			continue
		}
		if err != nil {
			t.Errorf("recipeFor(%q): %v", tc.version, err)
			continue
		}
		if r.suite != tc.suite || r.product("x86_64") != tc.product {
			t.Errorf("recipeFor(%q) = %s, %s", tc.version, r.suite, r.product("x86_64"))
		}
		if !slices.IsSorted(r.packages) {
			t.Errorf("%q: packages are not sorted: the cache key would depend on their order", tc.version)
		}
	}
}

// TestGolden compares what an image gets on top of its packages with
// testdata/overlay-*.txt.
func TestGolden(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"26.05", Generic} {
		r, err := recipeFor(version)
		if err != nil {
			t.Fatal(err)
		}
		entries, err := overlay(r, Options{Agent: "/agent", AgentVersion: "1.2.3"}, day(2026, 11, 30))
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		for _, e := range entries {
			out.WriteString(describe(e) + "\n")
		}
		golden(t, "overlay-"+version+".txt", out.Bytes())
	}
}

func describe(e entry) string {
	switch {
	case e.remove:
		return "rm   /" + e.path
	case e.link != "":
		return "link /" + e.path + " -> " + e.link
	case e.dir:
		return "dir  /" + e.path + " " + e.mode.String() + " " + e.owner
	case e.source != "":
		return "copy /" + e.path + " " + e.mode.String() + " from " + e.source
	}
	return "file /" + e.path + " " + e.mode.String()
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs (go test ./internal/image -update writes it anew); got:\n%s", file, got)
	}
}

func TestMetadata(t *testing.T) {
	t.Parallel()
	r, err := recipeFor("26.05")
	if err != nil {
		t.Fatal(err)
	}
	data, err := metadataTar(r, Built{
		Name: "aws-pcs-sample_ami-debian-x86_64-slurm-26.05-20261130", Architecture: "x86_64",
		SlurmVersion: "26.05.5", CreatedAt: day(2026, 11, 30), Key: "0123456789abcdef",
	})
	if err != nil {
		t.Fatal(err)
	}
	files := make(map[string][]byte)
	tr := tar.NewReader(bytes.NewReader(data))
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		files[h.Name], err = io.ReadAll(tr)
		if err != nil {
			t.Fatal(err)
		}
	}
	golden(t, "metadata.yaml", files["metadata.yaml"])
	var m metadata
	if err := json.Unmarshal(files["metadata.yaml"], &m); err != nil {
		t.Fatal(err)
	}
	for path, tpl := range m.Templates {
		if len(files["templates/"+tpl.Template]) == 0 {
			t.Errorf("%s: template %s is not in the archive", path, tpl.Template)
		}
	}
	if len(files) != len(m.Templates)+1 {
		t.Errorf("%d files, want metadata.yaml and %d templates", len(files), len(m.Templates))
	}
}

// TestTemplates holds the templates to the configuration keys that the
// package documents, and their tags to be in pairs.
func TestTemplates(t *testing.T) {
	t.Parallel()
	known := []string{"user.openpcs.address", "user.openpcs.domain", "user.openpcs.gateway", "user.openpcs.hostname", "user.openpcs.role"}
	keys := regexp.MustCompile(`config_get\("([^"]*)"`)
	var used []string
	for _, tpl := range templates {
		text, err := templateFS.ReadFile("templates/" + tpl.file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range keys.FindAllStringSubmatch(string(text), -1) {
			used = append(used, m[1])
		}
		if a, b := strings.Count(string(text), "{% if "), strings.Count(string(text), "{% endif %}"); a != b {
			t.Errorf("%s: %d if, %d endif", tpl.file, a, b)
		}
	}
	slices.Sort(used)
	if used = slices.Compact(used); !slices.Equal(used, known) {
		t.Errorf("templates use %v, want %v", used, known)
	}
	files, err := fs.ReadDir(templateFS, "templates")
	if err != nil {
		t.Fatal(err)
	}
	if len(files) != len(templates) {
		t.Errorf("%d template files, %d used", len(files), len(templates))
	}
}

func TestBaseKey(t *testing.T) {
	t.Parallel()
	one := recipe{suite: "forky", packages: []string{"a", "b"}}
	seen := map[string]string{}
	for name, r := range map[string]recipe{
		"one":           one,
		"other suite":   {suite: "trixie", packages: []string{"a", "b"}},
		"other package": {suite: "forky", packages: []string{"a", "c"}},
		"joined":        {suite: "forky", packages: []string{"ab"}},
	} {
		if other, ok := seen[baseKey(r)]; ok {
			t.Errorf("%s and %s have the same key", name, other)
		}
		seen[baseKey(r)] = name
	}
	if baseKey(one) != baseKey(recipe{suite: "forky", packages: []string{"a", "b"}, layers: []string{"x"}}) {
		t.Error("the overlay changes the key of the base")
	}
}

func TestImageKey(t *testing.T) {
	t.Parallel()
	agent := filepath.Join(t.TempDir(), "agent")
	write := func(text string) {
		if err := os.WriteFile(agent, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	key := func(base string, entries ...entry) string {
		k, err := imageKey(base, entries)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	e := entry{path: "bin/agent", mode: 0o755, source: agent}
	write("one")
	first := key("base", e)
	if key("base", e) != first {
		t.Error("the same content has two keys")
	}
	write("two")
	second := key("base", e)
	for what, other := range map[string]string{
		"agent": second, "base": key("other", e), "mode": key("base", entry{path: "bin/agent", mode: 0o700, source: agent}),
	} {
		if other == first {
			t.Errorf("another %s gives the same key", what)
		}
	}
	if _, err := imageKey("base", []entry{{path: "a", source: agent + ".missing"}}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing agent: %v", err)
	}
}

func TestApply(t *testing.T) {
	t.Parallel()
	root, outside := t.TempDir(), t.TempDir()
	for _, dir := range []string{"etc", "var/log/journal/x"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "etc/passwd"), []byte("root:x:0:0::/root:/bin/sh\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, filepath.Join(root, "escape")); err != nil {
		t.Fatal(err)
	}
	entries := []entry{
		{path: "var/log/journal", remove: true},
		{path: "etc/new/file", mode: 0o440, content: []byte("text")},
		{path: "etc/unit", link: "/dev/null"},
		{path: "var/spool/x", dir: true, mode: 0o700},
	}
	for range 2 { // a second time changes nothing
		if err := apply(root, entries); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(filepath.Join(root, "var/log/journal")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("removed folder: %v", err)
	}
	info, err := os.Stat(filepath.Join(root, "etc/new/file"))
	if err != nil || info.Mode() != 0o440 {
		t.Errorf("file: %v, %v", info, err)
	}
	if to, err := os.Readlink(filepath.Join(root, "etc/unit")); to != "/dev/null" {
		t.Errorf("link: %q, %v", to, err)
	}

	if err := apply(root, []entry{{path: "escape/file", mode: 0o644}}); err == nil {
		t.Error("a link led the overlay out of the image")
	}
	if err := apply(root, []entry{{path: "a", dir: true, mode: 0o755, owner: "slurm"}}); err == nil {
		t.Error("an owner that the image does not have was accepted")
	}
}

func TestSlurmEntries(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	info := filepath.Join(root, "var/lib/dpkg/info")
	if err := os.MkdirAll(info, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, pkg := range slurmPackages {
		list := map[string]string{
			"slurm-client": "/.\n/usr\n/usr/bin\n/usr/bin/sinfo\n/usr/share/doc/slurm-client/copyright\n",
			"slurmd":       "/usr/sbin\n/usr/sbin/slurmd-wlm\n/usr/sbin/slurmstepd-wlm\n",
		}[pkg]
		if err := os.WriteFile(filepath.Join(info, pkg+".list"), []byte(list), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	r, err := recipeFor("26.05")
	if err != nil {
		t.Fatal(err)
	}
	entries, err := slurmEntries(root, r, "26.05.5")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		got = append(got, describe(e))
	}
	want := []string{
		"file /opt/aws/pcs/scheduler/slurm-26.05/version -rw-r--r--",
		"link /opt/aws/pcs/scheduler/slurm-26.05/bin/sinfo -> /usr/bin/sinfo",
		"link /opt/aws/pcs/scheduler/slurm-26.05/sbin/slurmd -> /usr/sbin/slurmd",
		"link /opt/aws/pcs/scheduler/slurm-26.05/sbin/slurmstepd -> /usr/sbin/slurmstepd",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestListAndRemove(t *testing.T) {
	t.Parallel()
	cache := t.TempDir()
	if all, err := List(cache); err != nil || len(all) != 0 {
		t.Fatalf("empty cache: %v, %v", all, err)
	}
	put := func(name string, created time.Time, whole bool) {
		dir := filepath.Join(cache, "images", name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		doc, err := json.Marshal(Built{
			Name: name, Version: "26.05", Key: name + "-key", CreatedAt: created,
			MetadataPath: "/elsewhere/metadata.tar", RootfsPath: "/elsewhere/rootfs.squashfs",
		})
		if err != nil {
			t.Fatal(err)
		}
		files := map[string][]byte{infoFile: doc, "metadata.tar": nil, "rootfs.squashfs": nil}
		if !whole {
			delete(files, "rootfs.squashfs")
		}
		for file, content := range files {
			if err := os.WriteFile(filepath.Join(dir, file), content, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	put("old", day(2026, 11, 1), true)
	put("new", day(2026, 11, 2), true)
	put("half", day(2026, 11, 3), false)
	names := func() (names []string) {
		all, err := List(cache)
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range all {
			names = append(names, b.Name)
			if filepath.Dir(b.RootfsPath) != filepath.Join(cache, "images", b.Name) {
				t.Errorf("%s: root file system at %s", b.Name, b.RootfsPath)
			}
		}
		return names
	}
	if got := names(); !slices.Equal(got, []string{"new", "old"}) {
		t.Errorf("List = %v, want the whole ones, newest first", got)
	}
	b := builder{Options: Options{CacheDir: cache}, recipe: recipe{version: "26.05"}}
	if have, ok := b.cached("old-key"); !ok || have.Name != "old" {
		t.Errorf("cached = %v, %v", have.Name, ok)
	}
	b.version = Generic
	if have, ok := b.cached("old-key"); ok {
		t.Errorf("cached found %s for another version", have.Name)
	}
	for range 2 {
		if err := Remove(cache, "new"); err != nil {
			t.Fatal(err)
		}
	}
	if got := names(); !slices.Equal(got, []string{"old"}) {
		t.Errorf("after Remove: %v", got)
	}
	for _, name := range []string{"", ".", "..", "../base", "a/b"} {
		if err := Remove(cache, name); err == nil {
			t.Errorf("Remove(%q) was accepted", name)
		}
	}
}

func TestMountsBelow(t *testing.T) {
	t.Parallel()
	const mountinfo = `21 1 254:0 / / rw - ext4 /dev/vda rw
90 21 0:5 / /c/tmp/base/dev rw - devtmpfs dev rw
91 90 0:6 / /c/tmp/base/dev/my\040pts rw - devpts pts rw
92 21 0:7 / /c/tmp2 rw - tmpfs tmpfs rw
`
	got := mountsBelow(mountinfo, "/c/tmp")
	want := []string{"/c/tmp/base/dev", "/c/tmp/base/dev/my pts"}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestReplaceTree(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	final := filepath.Join(dir, "deep", "final")
	for _, text := range []string{"one", "two"} {
		from := filepath.Join(dir, text)
		if err := os.Mkdir(from, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(from, "file"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := replaceTree(from, final); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join(final, "file"))
		if err != nil || string(got) != text {
			t.Errorf("final has %q, %v, want %q", got, err, text)
		}
	}
}

func TestBuildLockEndsWithContext(t *testing.T) {
	t.Parallel()
	opts := Options{CacheDir: t.TempDir(), Progress: func(string) {}}
	held, err := lock(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	told := 0
	opts.Progress = func(string) { told++; cancel() }
	if _, err := lock(ctx, opts); err == nil {
		t.Error("a taken lock was taken again")
	}
	if told != 1 {
		t.Errorf("told %d times that it waits", told)
	}
	held.Close()
	again, err := lock(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
}

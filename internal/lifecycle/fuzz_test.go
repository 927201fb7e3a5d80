package lifecycle_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/lifecycle"
)

// FuzzConfiguration: whatever a kept configuration has, nothing is written
// outside of its folder, and nothing breaks.
func FuzzConfiguration(f *testing.F) {
	for _, doc := range []string{
		"", "null", "{", "[]", `{"instance":"i-1"}`, `{"instance":"i-1","nodeLifecycleActions":{}}`,
		`{"instance":"i-1","nodeLifecycleActions":{"stages":{"nodeReady":[{"name":"a b","arguments":["x"],"scriptSource":{"scriptLocation":"s3://b/k"}}]}}}`,
		`{"instance":"i-1","nodeLifecycleActions":{"stages":{"nodeBootstrapped":[{"name":"../../x"},{"name":"x/../y"},{"name":""}]}}}`,
		`{"instance":"i-1","nodeLifecycleActions":{"scriptCachingPolicy":"X","stages":{"nodeBootstrapped":[{"name":"a","onError":"X","executionPolicy":"Y"}]}}}`,
		`{"instance":"i-2","nodeLifecycleActions":null}`,
	} {
		f.Add([]byte(doc))
	}
	f.Fuzz(func(t *testing.T, doc []byte) {
		i := newInstance(t)
		if err := os.MkdirAll(i.config(""), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(i.config("actions.json"), doc, 0o600); err != nil {
			t.Fatal(err)
		}
		if i.open("i-1", nil) != nil || i.x.Download(t.Context()) != nil {
			return
		}
		err := filepath.WalkDir(i.dir, func(path string, _ os.DirEntry, err error) error {
			if rest := strings.TrimPrefix(path, i.dir); err == nil && rest != "" && !strings.HasPrefix(rest, "/config") && !strings.HasPrefix(rest, "/logs") {
				t.Errorf("%q came into being", rest)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
		_ = i.x.Runs(fleet.NodeBootstrapped)
	})
}

// FuzzRecord: a record that is damaged is an error and no surprise.
func FuzzRecord(f *testing.F) {
	good, err := json.Marshal(map[string]any{"boot": "1", "attempt": 3, "complete": true, "outcomes": []fleet.ScriptOutcome{{Stage: "nodeReady", Name: "a", ExitCode: 1, Failure: "x"}}})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte(`{"outcomes":[{}]}`))
	f.Add([]byte(`{`))
	f.Fuzz(func(t *testing.T, doc []byte) {
		i := newInstance(t)
		if err := i.open("i-1", bootstrapped(script("a", fleet.EveryBoot))); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(i.config("record.json"), doc, 0o600); err != nil {
			t.Fatal(err)
		}
		i.boot++
		if i.open("i-1", nil) == nil && !i.x.Runs(fleet.NodeBootstrapped) {
			t.Error("a script of every boot does not run")
		}
		_ = lifecycle.Summary(i.x.Outcomes())
	})
}

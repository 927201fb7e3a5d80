package pcs_test

import (
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"testing"
)

// FuzzRequests sends documents to all operations of a region that has a
// cluster, a group and a queue: each is answered as the model says (which
// every call of the fixture checks), and none makes the server fail.
func FuzzRequests(f *testing.F) {
	world := newFixture(f)
	world.demo()
	requests := world.requests("cluster", "group", "queue")
	operations := slices.Sorted(maps.Keys(requests))
	for i, op := range operations {
		doc, err := json.Marshal(requests[op])
		if err != nil {
			f.Fatal(err)
		}
		f.Add(byte(i), string(doc))
	}
	for i, m := range slices.Concat(clusterMembers(), groupMembers(world)) {
		op := []string{"UpdateCluster", "UpdateComputeNodeGroup"}[min(1, i/len(clusterMembers()))]
		in := clone(requests[op])
		put(in, m.path, m.value)
		doc, err := json.Marshal(in)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(byte(slices.Index(operations, op)), string(doc))
	}
	f.Fuzz(func(t *testing.T, i byte, doc string) {
		if !json.Valid([]byte(doc)) {
			t.Skip()
		}
		op := operations[int(i)%len(operations)]
		world.t = t
		if _, err := world.try(op, json.RawMessage(doc)); err != nil && (err.Status != http.StatusBadRequest || err.Message == "") {
			t.Errorf("%s %s: %d %v", op, doc, err.Status, err)
		}
		world.settle()
	})
}

package pcs_test

import (
	"fmt"
	"maps"
	"math"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/openpcs/openpcs/internal/awsapi"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/slurm"
	"github.com/openpcs/openpcs/internal/store"
)

// withheld are the members of answers that openpcs does not have, by
// structure of the model, each with the reason.
var withheld = map[string]string{
	"Endpoint.publicIpAddress":                              "controllers have none",
	"Endpoint.ipv6Address":                                  "for networkType IPV6, which this release refuses",
	"ComputeNodeGroupSlurmConfiguration.gresCustomSettings": "refused by this release",
}

// TestWireTypesAreThoseOfTheModel holds the types of package pcs against the
// table: neither has a member that the other lacks.
func TestWireTypesAreThoseOfTheModel(t *testing.T) {
	var operations []string
	for _, op := range newFixture(t).service.API().Operations {
		operations = append(operations, op.Name)
		in, out := published.inputs[op.Name], published.outputs[op.Name]
		if in == nil {
			t.Errorf("the model has no operation %s", op.Name)
			continue
		}
		for _, wrong := range slices.Concat(in.unlike(op.Name+" in", op.In, nil), out.unlike(op.Name+" out", op.Out, withheld)) {
			t.Error(wrong)
		}
	}
	if got, want := sorted(operations), slices.Sorted(maps.Keys(published.inputs)); !slices.Equal(got, want) {
		t.Errorf("operations are %v, the model has %v", got, want)
	}
}

// unlike says where a type differs from the shape; members in missing may be
// left out.
func (s *shape) unlike(at string, t reflect.Type, missing map[string]string) (out []string) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	kinds := map[string]reflect.Kind{"string": reflect.String, "enum": reflect.String, "integer": reflect.Int, "list": reflect.Slice, "map": reflect.Map, "structure": reflect.Struct}
	if s.kind == "timestamp" {
		if t != reflect.TypeFor[awsapi.Time]() {
			out = append(out, at+" is no timestamp")
		}
		return out
	}
	if t.Kind() != kinds[s.kind] {
		return append(out, fmt.Sprintf("%s is a %s, not a %s", at, t, s.kind))
	}
	switch s.kind {
	case "list", "map":
		return s.elem.unlike(at+"[]", t.Elem(), missing)
	case "structure":
		have := map[string]bool{}
		for _, f := range reflect.VisibleFields(t) {
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if name == "" {
				continue // an embedded struct, whose members come by themselves
			}
			have[name] = true
			m, ok := s.members[name]
			if !ok {
				out = append(out, fmt.Sprintf("%s.%s is not in the model", at, name))
				continue
			}
			out = append(out, m.unlike(at+"."+name, f.Type, missing)...)
		}
		for name := range s.members {
			if !have[name] && missing[s.name+"."+name] == "" {
				out = append(out, fmt.Sprintf("%s lacks the model's %s", at, name))
			}
		}
	}
	return out
}

// TestAnswersHaveAllMembersOfTheModel makes answers with all that openpcs
// has: each member of the model is in one of them, or withheld for a reason.
// That they are as the model says is checked at every call of all tests.
func TestAnswersHaveAllMembersOfTheModel(t *testing.T) {
	f := newFixture(t)
	in := f.clusterIn("cluster")
	put(in, "slurmConfiguration", object{"slurmCustomSettings": []any{object{"parameterName": "MinJobAge", "parameterValue": "60"}}})
	cluster := at(f.must("CreateCluster", in), "cluster.id").(string)
	f.settle()
	in = f.groupIn(cluster, "group")
	put(in, "amiId", image)
	put(in, "purchaseOption", "SPOT")
	put(in, "slurmConfiguration", object{"scaleDownIdleTimeInSeconds": 20, "slurmCustomSettings": []any{object{"parameterName": "Weight", "parameterValue": "2"}}})
	put(in, "nodeLifecycleActions", object{"scriptCachingPolicy": "REFRESH_ON_REBOOT", "stages": object{"nodeBootstrapped": lifecycle1, "nodeReady": lifecycle1}})
	group := at(f.must("CreateComputeNodeGroup", in), "computeNodeGroup.id").(string)
	f.settle()
	in = queueIn(cluster, "queue", group)
	put(in, "slurmConfiguration", object{"slurmCustomSettings": setting})
	queue := at(f.must("CreateQueue", in), "queue.id").(string)
	f.settle()
	f.must("CreateQueue", queueIn(cluster, "queue-2"))
	f.must("CreateComputeNodeGroup", f.groupIn(cluster, "group-2"))
	f.must("CreateCluster", f.clusterIn("cluster-2"))
	f.Update(t, func(tx *store.Tx) error {
		why := []fleet.ErrorInfo{{Code: "C", Message: "m"}}
		c, err := fleet.Clusters.Get(tx, cluster)
		if err != nil {
			return err
		}
		g, err := fleet.Groups.Get(tx, group)
		if err != nil {
			return err
		}
		q, err := fleet.Queues.Get(tx, queue)
		if err != nil {
			return err
		}
		c.Errors, g.Errors, q.Errors = why, why, why
		c.Accounting, c.REST = fleet.Accounting{On: true, PurgeDays: 30}, true
		c.Slurmdbd, c.Cgroup = []slurm.Setting{{Name: "PurgeJobAfter", Value: "12months"}}, []slurm.Setting{{Name: "ConstrainCores", Value: "yes"}}
		if err := fleet.Clusters.Put(tx, c); err != nil {
			return err
		}
		if err := fleet.Groups.Put(tx, g); err != nil {
			return err
		}
		return fleet.Queues.Put(tx, q)
	})
	for op, in := range f.requests(cluster, group, queue) {
		in = clone(in)
		switch {
		case strings.HasPrefix(op, "List") && op != "ListTagsForResource":
			put(in, "maxResults", 1)
			f.must(op, in)
		case strings.HasPrefix(op, "Get"), op == "TagResource":
			f.must(op, in)
		}
	}
	f.must("ListTagsForResource", object{"resourceArn": f.arn("cluster/" + cluster)})
	if _, err := f.tryWith(f.node(cluster, group), "RegisterComputeNodeGroupInstance", object{"clusterIdentifier": cluster, "bootstrapId": "b"}); err != nil {
		t.Fatal(err)
	}
	all := map[string]bool{}
	for _, s := range published.outputs {
		s.reach(all)
	}
	for _, member := range slices.Sorted(maps.Keys(all)) {
		// The three resources come with Create, Update and Get, which answer the same.
		verb, _, _ := strings.Cut(member, "Out.")
		if (strings.HasPrefix(verb, "Create") || strings.HasPrefix(verb, "Update")) && member != verb {
			continue
		}
		switch {
		case !f.seen[member] && withheld[member] == "":
			t.Errorf("no answer has %s", member)
		case f.seen[member] && withheld[member] != "":
			t.Errorf("%s is there, and not withheld because it is %s", member, withheld[member])
		}
	}
	for member := range withheld {
		if !all[member] {
			t.Errorf("%s is withheld, and the model has no such member", member)
		}
	}
}

// violation is a value that a member must not have, and the member at fault.
type violation struct {
	what  string
	at    string
	value any
}

// ofKind are values of each JSON type but those in which the shape is
// written.
func (s *shape) ofOtherKinds() []any {
	values := map[string]any{"string": "x", "number": 7, "boolean": true, "list": []any{}, "object": object{}}
	switch s.kind {
	case "string", "enum":
		delete(values, "string")
	case "integer":
		delete(values, "number")
	case "list":
		delete(values, "list")
	default:
		delete(values, "object")
	}
	return slices.Collect(maps.Values(values))
}

// violations are values that are none of the shape, for a member at the
// path; good is a value that is right.
func (s *shape) violations(at string, good any) (out []violation) {
	add := func(what string, value any) { out = append(out, violation{what, at, value}) }
	for _, v := range s.ofOtherKinds() {
		add("of another type", v)
	}
	text, _ := good.(string)
	switch s.kind {
	case "string":
		if s.bounded && s.low > 0 {
			add("too short", strings.Repeat("a", s.low-1))
		}
		if s.bounded {
			long := text
			if long == "" {
				long = "a"
			}
			// As the pattern asks for it, but longer.
			add("too long", long+strings.Repeat(long[len(long)-1:], s.high+1-len(long)))
		}
		if s.pattern != nil {
			for _, v := range []string{"", " ", "-", "a b!", "日本語日本語", text + "\n", "\n" + text, text + "\nSlurmUser=root", "\x00" + text} {
				if !s.pattern.MatchString(v) {
					add("of another pattern", v)
				}
			}
		}
	case "enum":
		for _, v := range []string{"", "NONSENSE", strings.ToLower(s.values[0]) + " ", s.values[0] + "\n"} {
			add("not in the enum", v)
		}
	case "integer":
		add("a fraction", 1.5)
		add("beyond 64 bits", 1e30)
		if s.bounded {
			add("too small", s.low-1)
			add("far too small", math.MinInt32)
			add("too large", min(s.high, math.MaxInt32)+1)
		}
	case "list":
		out = append(out, violation{"a null entry", at + "[0]", []any{nil}})
		if s.bounded && s.low > 0 {
			add("too few entries", []any{})
		}
		if s.bounded && s.high < math.MaxInt {
			entry := any("a")
			if l, ok := good.([]any); ok && len(l) > 0 {
				entry = l[0]
			}
			add("too many entries", slices.Repeat([]any{entry}, s.high+1))
		}
	case "map":
		out = append(out, violation{"a null value", at + ".k", object{"k": nil}}, violation{"a number as value", at + ".k", object{"k": 7}})
		if s.bounded && s.low > 0 {
			add("too few entries", object{})
		}
		if s.bounded && s.high < math.MaxInt {
			add("too many entries", many(s.high+1))
		}
		if s.key.bounded {
			add("a key too short", object{"": "v"})
			add("a key too long", object{strings.Repeat("k", s.key.high+1): "v"})
		}
		if s.elem.bounded {
			out = append(out, violation{"a value too long", at + ".k", object{"k": strings.Repeat("v", s.elem.high+1)}})
		}
	case "structure":
		out = append(out, violation{"an unknown member", at + ".colour", object{"colour": "red"}})
	}
	return out
}

// sample is a value of the shape, with what is required.
func (s *shape) sample() any {
	samples := map[string]string{
		"subnet": "subnet-0123456789abcdef0", "securityGroup": "sg-0123456789abcdef0", "scriptName": "a",
		"scriptLocation": "s3://bucket/key", "checksum": strings.Repeat("a", 64), "name": "abc", "image": image,
	}
	switch s.kind {
	case "string":
		return samples[s.ofPattern]
	case "enum":
		return s.values[0]
	case "integer":
		return max(s.low, 1)
	case "list":
		return []any{s.elem.sample()}
	case "map":
		return object{"k": "v"}
	default:
		out := object{}
		for name, m := range s.members {
			if m.required {
				out[name] = m.sample()
			}
		}
		return out
	}
}

// TestEveryMemberIsChecked sends, for each member of each input of the
// model, everything that the model excludes. The answer names the member, and
// nothing is stored.
func TestEveryMemberIsChecked(t *testing.T) {
	f := newFixture(t)
	cluster, group, queue := f.demo()
	client := f.Client()
	requests := f.requests(cluster, group, queue)
	count := 0
	for _, op := range slices.Sorted(maps.Keys(published.inputs)) {
		if op == "RegisterComputeNodeGroupInstance" {
			client = f.node(cluster, group)
		} else {
			client = f.Client()
		}
		refuses := func(what, at string, in object) {
			t.Helper()
			count++
			before := f.Stored(t)
			out, err := f.tryWith(client, op, in)
			what = fmt.Sprintf("%s with %s: %s", op, at, what)
			switch {
			case err == nil:
				t.Errorf("%s: it is taken: %v", what, out)
			case err.Code != validation || err.Status != http.StatusBadRequest || err.Fields["reason"] != "fieldValidationFailed":
				t.Errorf("%s: %d %v", what, err.Status, err)
			case !told(err, at):
				t.Errorf("%s: fields %v of %q", what, fields(err), err.Message)
			}
			if f.Stored(t) != before {
				t.Errorf("%s: something was stored", what)
			}
		}
		var walk func(s *shape, at string, required bool, doc any, in func(any) object)
		// In returns the request with another value in the place of the member.
		walk = func(s *shape, at string, required bool, doc any, in func(any) object) {
			if doc == nil {
				doc = s.sample()
			}
			for _, v := range s.violations(at, doc) {
				refuses(v.what+" "+short(v.value), v.at, in(v.value))
			}
			switch {
			case required:
				refuses("it is left out", at, in(absent{}))
				refuses("null", at, in(nil))
			case published.inputs[op].members["clientToken"].shape != nil && at != "clientToken":
				// Null is as good as left out. The token is wrong so that both are
				// refused.
				told := func(v any) []string {
					doc := in(v)
					doc["clientToken"] = "short"
					_, err := f.tryWith(client, op, doc)
					if err == nil || !slices.Contains(fields(err), "clientToken") {
						t.Fatalf("%s with a short token: %v", op, err)
					}
					return fields(err)
				}
				if null, left := told(nil), told(absent{}); !slices.Equal(null, left) {
					t.Errorf("%s with %s: null: the fields %v are wrong, and %v when it is left out", op, at, null, left)
				}
			}
			switch s.kind {
			case "list":
				walk(s.elem, at+"[0]", false, nil, func(v any) object {
					if v == nil || v == (absent{}) { // a null entry was there before
						return in([]any{s.elem.sample()})
					}
					return in([]any{v})
				})
			case "structure":
				inner, ok := doc.(object)
				if !ok {
					inner = s.sample().(object)
				}
				for _, name := range slices.Sorted(maps.Keys(s.members)) {
					m := s.members[name]
					walk(m.shape, at+"."+name, m.required, inner[name], func(v any) object {
						changed := maps.Clone(inner)
						if v == (absent{}) {
							delete(changed, name)
						} else {
							changed[name] = v
						}
						return in(changed)
					})
				}
			}
		}
		base := requests[op]
		for _, name := range slices.Sorted(maps.Keys(published.inputs[op].members)) {
			m := published.inputs[op].members[name]
			walk(m.shape, name, m.required, base[name], func(v any) object {
				in := clone(base)
				put(in, name, v)
				return in
			})
		}
		in := clone(base)
		in["colour"] = "red"
		refuses("an unknown member", "colour", in)
	}
	t.Logf("%d wrong requests", count)
	if count < 1000 {
		t.Errorf("the table has %d wrong requests only", count)
	}
}

// told reports whether the error says what is wrong with the member, not
// merely that this release does not have it.
func told(err *awsapi.Error, name string) bool {
	list, _ := err.Fields["fieldList"].([]any)
	return slices.ContainsFunc(list, func(f any) bool {
		message, _ := at(f, "message").(string)
		return at(f, "name") == name && !strings.Contains(message, "not supported by this release")
	})
}

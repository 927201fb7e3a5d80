package pcs_test

import (
	"bufio"
	_ "embed"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

//go:embed testdata/model.txt
var modelText string

// shape is one shape of the published model.
type shape struct {
	kind      string // string, enum, integer, timestamp, list, map, structure
	name      string // of a structure
	low, high int    // characters, entries or values
	bounded   bool   // whether there are bounds at all
	pattern   *regexp.Regexp
	ofPattern string // the pattern's name
	values    []string
	elem, key *shape
	members   map[string]modelMember
}

type modelMember struct {
	*shape
	required bool
}

// model is the published model by names of operations and structures.
type model struct {
	inputs, outputs map[string]*shape
	errors          map[string][]string
	shapes          map[string]*shape
}

// published is the table in testdata/model.txt.
var published = parseModel(modelText)

func parseModel(text string) *model {
	m := &model{inputs: map[string]*shape{}, outputs: map[string]*shape{}, errors: map[string][]string{}, shapes: map[string]*shape{}}
	patterns := map[string]*regexp.Regexp{}
	structure := func(name string) *shape {
		if m.shapes[name] == nil {
			m.shapes[name] = &shape{kind: "structure", name: name, members: map[string]modelMember{}}
		}
		return m.shapes[name]
	}
	var in, out, now *shape
	var op string
	lines := bufio.NewScanner(strings.NewReader(text))
	for lines.Scan() {
		line := lines.Text()
		head, rest, _ := strings.Cut(line, " ")
		into := now
		switch head {
		case "", "#":
			continue
		case "pattern":
			name, expr, _ := strings.Cut(rest, " ")
			patterns[name] = regexp.MustCompile(`^(?:` + expr + `)$`)
			continue
		case "operation":
			op = rest
			in, out = &shape{kind: "structure", name: op + "In", members: map[string]modelMember{}}, &shape{kind: "structure", name: op + "Out", members: map[string]modelMember{}}
			m.inputs[op], m.outputs[op] = in, out
			continue
		case "errors":
			for e := range strings.FieldsSeq(rest) {
				m.errors[op] = append(m.errors[op], e+"Exception")
			}
			continue
		case "shape":
			now = structure(rest)
			continue
		case ">":
			into = in
		case "<":
			into = out
		case ".":
		default:
			panic("line of the model: " + line)
		}
		name, kind, _ := strings.Cut(rest, " ")
		name, required := strings.CutSuffix(name, "!")
		into.members[name] = modelMember{parseShape(kind, patterns, structure), required}
	}
	for name, s := range m.shapes {
		if len(s.members) == 0 {
			panic("the model has no shape " + name)
		}
	}
	return m
}

var boundsPattern = regexp.MustCompile(`^(-?\d+)\.\.(-?\d*)$`)

func parseShape(text string, patterns map[string]*regexp.Regexp, structure func(string) *shape) *shape {
	text, of, isOf := strings.Cut(text, " of ")
	words := strings.Fields(text)
	s := &shape{kind: words[0]}
	for _, w := range words[1:] {
		switch bounds := boundsPattern.FindStringSubmatch(w); {
		case bounds != nil:
			s.bounded, s.high = true, math.MaxInt
			s.low, _ = strconv.Atoi(bounds[1])
			if bounds[2] != "" {
				s.high, _ = strconv.Atoi(bounds[2])
			}
		case w[0] == '~':
			s.ofPattern = w[1:]
			if s.pattern = patterns[s.ofPattern]; s.pattern == nil {
				panic("the model has no pattern " + w)
			}
		case s.kind == "enum":
			s.values = strings.Split(w, ",")
		default:
			panic("shape of the model: " + text)
		}
	}
	switch {
	case s.kind == "list" && isOf:
		s.elem = parseShape(of, patterns, structure)
	case s.kind == "map" && isOf:
		key, elem, _ := strings.Cut(of, " to ")
		s.key, s.elem = parseShape(key, patterns, structure), parseShape(elem, patterns, structure)
	case slices.Contains([]string{"string", "enum", "integer", "timestamp"}, s.kind):
	default:
		return structure(s.kind)
	}
	return s
}

// reach gathers the members of the shape and of those in it, as
// structure.member.
func (s *shape) reach(all map[string]bool) {
	switch s.kind {
	case "list", "map":
		s.elem.reach(all)
	case "structure":
		for name, m := range s.members {
			if at := s.name + "." + name; !all[at] {
				all[at] = true
				m.reach(all)
			}
		}
	}
}

// looks are values that the model leaves open and the documentation shows.
var looks = func() map[string]*regexp.Regexp {
	id, arn := regexp.MustCompile(`^pcs_[a-z0-9]{10}$`), `^arn:aws:pcs:[a-z0-9-]+:123456789012:cluster/pcs_[a-z0-9]{10}`
	out := map[string]*regexp.Regexp{
		"Cluster.arn": regexp.MustCompile(arn + `$`), "ClusterSummary.arn": regexp.MustCompile(arn + `$`),
		"SlurmAuthKey.secretArn":                                 regexp.MustCompile(`^arn:aws:secretsmanager:.*:secret:pcs!slurm-secret-pcs_`),
		"SlurmAuthKey.secretVersion":                             regexp.MustCompile(`^[0-9a-f-]{36}$`),
		"Scheduler.version":                                      regexp.MustCompile(`^\d\d\.\d\d$`),
		"Endpoint.port":                                          regexp.MustCompile(`^\d{4}$`),
		"RegisterComputeNodeGroupInstanceOut.nodeID":             regexp.MustCompile(`-\d+$`),
		"RegisterComputeNodeGroupInstanceOut.sharedSecret":       regexp.MustCompile(`^.{16,}$`),
		"RegisterComputeNodeGroupInstanceOut.computeNodeGroupId": id,
	}
	for name, path := range map[string]string{"ComputeNodeGroup": "/computenodegroup/", "Queue": "/queue/"} {
		for _, shape := range []string{name, name + "Summary"} {
			out[shape+".arn"] = regexp.MustCompile(arn + path + `pcs_[a-z0-9]{10}$`)
			out[shape+".clusterId"] = id
		}
	}
	for _, name := range []string{"Cluster", "ComputeNodeGroup", "Queue"} {
		out[name+".id"], out[name+"Summary.id"] = id, id
	}
	return out
}()

// mismatches says where a document is none of the shape. See is told of each
// member that is there, as structure.member.
func (s *shape) mismatches(at string, doc any, see func(string)) (out []string) {
	wrong := func(format string, args ...any) { out = append(out, at+": "+fmt.Sprintf(format, args...)) }
	outside := func(n int) bool { return s.bounded && (n < s.low || n > s.high) }
	switch v := doc.(type) {
	case string:
		if s.kind != "string" && s.kind != "enum" && s.kind != "timestamp" {
			wrong("is a string, not a %s", s.kind)
		}
		if outside(utf8.RuneCountInString(v)) {
			wrong("has %d characters", utf8.RuneCountInString(v))
		}
		if s.pattern != nil && !s.pattern.MatchString(v) {
			wrong("%q does not match %s", v, s.pattern)
		}
		if s.kind == "enum" && !slices.Contains(s.values, v) {
			wrong("%q is none of %v", v, s.values)
		}
		if _, err := time.Parse(time.RFC3339Nano, v); s.kind == "timestamp" && err != nil {
			wrong("%v", err)
		}
	case float64:
		if s.kind != "integer" || v != math.Trunc(v) || outside(int(v)) {
			wrong("%v is none of %s %d..%d", v, s.kind, s.low, s.high)
		}
	case []any:
		if s.kind != "list" || outside(len(v)) {
			wrong("is a list of %d, not a %s", len(v), s.kind)
			return out
		}
		for i, e := range v {
			out = append(out, s.elem.mismatches(fmt.Sprintf("%s[%d]", at, i), e, see)...)
		}
	case object:
		if s.kind != "map" && s.kind != "structure" {
			wrong("is an object, not a %s", s.kind)
			return out
		}
		for _, k := range slices.Sorted(maps.Keys(v)) {
			if s.kind == "map" {
				out = append(out, s.key.mismatches(at+"("+k+")", k, see)...)
				out = append(out, s.elem.mismatches(at+"."+k, v[k], see)...)
				continue
			}
			m, known := s.members[k]
			if !known {
				wrong("the model has no member %s", k)
				continue
			}
			see(s.name + "." + k)
			if text, ok := v[k].(string); ok && looks[s.name+"."+k] != nil && !looks[s.name+"."+k].MatchString(text) {
				wrong("%s is %q", k, text)
			}
			out = append(out, m.mismatches(at+"."+k, v[k], see)...)
		}
		for k, m := range s.members {
			if m.required && v[k] == nil {
				wrong("lacks the member %s", k)
			}
		}
	default:
		wrong("is %v", doc)
	}
	return out
}

package logs_test

import (
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/openpcs/openpcs/internal/logs"
)

// withheld are the members of the published model that openpcs does not have,
// each with the reason; all below one goes with it.
var withheld = map[string]string{
	"StartLiveTail out responseStream":                                                "it is refused",
	"PutLogEvents out rejectedEntityInfo":                                             "entities are not looked at",
	"DescribeLogGroups out logGroups[].kmsKeyId":                                      "there is no KMS",
	"DescribeLogGroups out logGroups[].dataProtectionStatus":                          "nothing is masked",
	"DescribeLogGroups out logGroups[].inheritedProperties":                           "nothing is masked",
	"DescribeLogGroups out logGroups[].bearerTokenAuthenticationEnabled":              "callers sign",
	"DescribeLogStreams out logStreams[].uploadSequenceToken":                         "sequence tokens do not count",
	"DescribeConfigurationTemplates out configurationTemplates[].s3TablesIntegration": "there are no S3 tables",
}

// Members of structures that are in several answers.
var withheldOf = map[string]string{
	"deliverySourceConfiguration": "the log types of pcs have no settings",
	"roleArn":                     "openpcs delivers within the account",
}

// Lists that are always empty.
var alwaysEmpty = []string{"deliverySourceConfiguration[].", "searchedLogStreams[]."}

// TestMembersAreThoseOfTheModel holds the types of the operations against
// testdata/members.txt, which lists the members of the published model: neither
// has one that the other lacks, and their types agree.
func TestMembersAreThoseOfTheModel(t *testing.T) {
	text, err := os.ReadFile("testdata/members.txt")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{}
	for line := range strings.Lines(string(text)) {
		at := strings.LastIndexByte(strings.TrimSpace(line), ' ')
		want[line[:at]] = strings.TrimSpace(line[at:])
	}
	got := map[string]string{}
	for _, op := range (&logs.Logs{}).Service().Operations {
		flatten(got, op.Name+" in ", op.In)
		flatten(got, op.Name+" out ", op.Out)
	}
	for _, member := range slices.Sorted(maps.Keys(want)) {
		if got[member] != want[member] && !isWithheld(member) {
			t.Errorf("%s: the model has %s, openpcs %q", member, want[member], got[member])
		}
	}
	for _, member := range slices.Sorted(maps.Keys(got)) {
		if want[member] == "" {
			t.Errorf("%s: the model does not have it", member)
		}
	}
	for member := range withheld {
		if want[member] == "" || got[member] != "" {
			t.Errorf("%s: it is not withheld", member)
		}
	}
}

func isWithheld(member string) bool {
	if slices.ContainsFunc(alwaysEmpty, func(list string) bool { return strings.Contains(member, list) }) {
		return true
	}
	for w := range withheld {
		if member == w || strings.HasPrefix(member, w+".") || strings.HasPrefix(member, w+"[]") {
			return true
		}
	}
	name := strings.TrimSuffix(member[strings.LastIndexAny(member, ". ")+1:], "[]")
	return strings.Contains(member, " out ") && withheldOf[name] != ""
}

// flatten lists the members of a type as the table does.
func flatten(out map[string]string, at string, t reflect.Type) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	name := strings.TrimSpace(at)
	switch t.Kind() {
	case reflect.Struct:
		if !strings.HasSuffix(at, " ") {
			out[name] = "structure"
			at += "."
		}
		for _, f := range reflect.VisibleFields(t) {
			tag, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			flatten(out, at+tag, f.Type)
		}
	case reflect.Slice:
		out[name] = "list"
		flatten(out, at+"[]", t.Elem())
	case reflect.Map:
		out[name] = "map"
	case reflect.String:
		out[name] = "string"
	case reflect.Bool:
		out[name] = "boolean"
	case reflect.Int, reflect.Int32, reflect.Int64:
		out[name] = "integer"
	default:
		out[name] = fmt.Sprint(t)
	}
}

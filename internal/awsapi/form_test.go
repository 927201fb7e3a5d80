package awsapi_test

import (
	"errors"
	"net/url"
	"reflect"
	"testing"
	"time"

	"github.com/openpcs/openpcs/internal/awsapi"
)

type formIn struct {
	Name    string   `query:"Name,required"`
	N       *int32   `query:"N"`
	On      bool     `query:"On"`
	IDs     []string `query:"Id"`
	Filters []struct {
		Name   string   `query:"Name"`
		Values []string `query:"Value"`
	} `query:"Filter"`
	Data *struct {
		Blob []byte     `query:"Blob"`
		At   *time.Time `query:"At"`
		Nic  []struct {
			Index  *int32   `query:"DeviceIndex"`
			Groups []string `query:"SecurityGroupId"`
		} `query:"NetworkInterface"`
	} `query:"Data"`
}

func TestDecodeForm(t *testing.T) {
	tests := []struct {
		name, form string
		kind       awsapi.FaultKind
		at         string // parameter of the fault
	}{
		{"ec2_lists", "Name=a&Filter.1.Name=x&Filter.1.Value.1=1&Filter.1.Value.2=2&Id.2=b&Id.1=a", 0, ""},
		{"query_lists", "Name=a&Id.member.1=a&Id.member.2=b&Filter.member.1.Name=x&Filter.member.1.Value.member.1=1", 0, ""},
		{"empty_list", "Name=a&Id=", 0, ""},
		{"nested", "Name=a&Data.NetworkInterface.1.DeviceIndex=0&Data.NetworkInterface.1.SecurityGroupId.1=sg&Data.Blob=YQ==&Data.At=2026-01-02T03:04:05Z", 0, ""},
		{"missing", "N=1", awsapi.FaultMissingMember, "Name"},
		{"unknown", "Name=a&Color=red", awsapi.FaultUnknownMember, "Color"},
		{"unknown_nested", "Name=a&Data.NetworkInterface.1.Nope.1.X=1", awsapi.FaultUnknownMember, "Data.NetworkInterface.1.Nope.1.X"},
		{"unknown_below_scalar", "Name=a&N.1=1", awsapi.FaultUnknownMember, "N.1"},
		{"index_no_number", "Name=a&Id.x=1", awsapi.FaultUnknownMember, "Id.x"},
		{"index_leading_zero", "Name=a&Id.01=1", awsapi.FaultUnknownMember, "Id.01"},
		{"bad_number", "Name=a&N=1x", awsapi.FaultBadMember, "N"},
		{"big_number", "Name=a&N=99999999999", awsapi.FaultBadMember, "N"},
		{"bad_bool", "Name=a&On=yes", awsapi.FaultBadMember, "On"},
		{"bad_time", "Name=a&Data.At=tomorrow", awsapi.FaultBadMember, "Data.At"},
		{"bad_blob", "Name=a&Data.Blob=%25", awsapi.FaultBadMember, "Data.Blob"},
		{"list_as_scalar", "Name=a&Id=x", awsapi.FaultBadMember, "Id"},
		{"struct_as_scalar", "Name=a&Data=x", awsapi.FaultBadMember, "Data"},
		{"huge_index", "Name=a&Id.999999999=x", 0, ""},
		{"deep", "Name=a&a.b.c.d.e.f.g.h.i.j.k.l.m.n.o.p.q=1", awsapi.FaultUnknownMember, "a.b.c.d.e.f.g.h.i.j.k.l.m.n.o.p.q"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			form, err := url.ParseQuery(tt.form)
			if err != nil {
				t.Fatal(err)
			}
			var in formIn
			err = awsapi.DecodeForm(form, &in)
			var f *awsapi.Fault
			if errors.As(err, &f) {
				if f.Kind != tt.kind || f.Name != tt.at {
					t.Errorf("got fault %d at %s (%v), want %d at %s", f.Kind, f.Name, f, tt.kind, tt.at)
				}
				return
			}
			if err != nil || tt.at != "" {
				t.Fatalf("got %v, want a fault at %q", err, tt.at)
			}
		})
	}
	var in formIn
	form, _ := url.ParseQuery(tests[0].form)
	if err := awsapi.DecodeForm(form, &in); err != nil || !reflect.DeepEqual(in.IDs, []string{"a", "b"}) || in.Filters[0].Values[1] != "2" {
		t.Errorf("got %+v, %v", in, err)
	}
}

func FuzzDecodeForm(f *testing.F) {
	f.Add("Name=a&Filter.1.Name=x&Filter.1.Value.1=1")
	f.Add("Name=a&Data.NetworkInterface.1.SecurityGroupId.1=sg&Id.member.1=")
	f.Add("Name=&Id.1.2.3=&.=.&Id..=")
	f.Fuzz(func(t *testing.T, raw string) {
		form, err := url.ParseQuery(raw)
		if err != nil {
			t.Skip()
		}
		var in formIn
		err = awsapi.DecodeForm(form, &in)
		var fault *awsapi.Fault
		if err != nil && !errors.As(err, &fault) {
			t.Errorf("got %v, which is no fault", err)
		}
	})
}

func FuzzDecodeJSON(f *testing.F) {
	f.Add([]byte(`{"name":"x","count":3e0,"tags":{"a":"b"},"inner":{"list":["a"]}}`))
	f.Add([]byte(`{"name":null,"count":-1.5}`))
	f.Fuzz(func(t *testing.T, doc []byte) {
		for _, strict := range []bool{true, false} {
			var in echoIn
			err := awsapi.DecodeJSON(doc, &in, strict)
			var fault *awsapi.Fault
			if err != nil && !errors.As(err, &fault) {
				t.Errorf("got %v, which is no fault", err)
			}
		}
	})
}

func TestDecodeJSON(t *testing.T) {
	type in struct {
		A  string
		B  *int32             `json:"b"`
		M  map[string]string  `json:"m"`
		L  []struct{ X bool } `json:"l"`
		At awsapi.Time        `json:"at"`
		E  awsapi.Epoch       `json:"e"`
		F  float64            `json:"f"`
	}
	tests := []struct {
		name, doc, at string
		kind          awsapi.FaultKind
	}{
		{"empty_body", "", "", 0},
		{"all", `{"A":"x","b":3.0,"m":{"k":"v"},"l":[{"X":true}],"at":"2026-01-02T03:04:05.5+09:00","e":1.5,"f":2}`, "", 0},
		{"null_is_absent", `{"A":null,"b":null,"m":null,"l":null,"at":null}`, "", 0},
		{"case_counts", `{"a":"x"}`, "a", awsapi.FaultUnknownMember},
		{"null_entry", `{"l":[null]}`, "l[0]", awsapi.FaultBadMember},
		{"nested", `{"l":[{"X":true},{"X":"no"}]}`, "l[1].X", awsapi.FaultBadMember},
		{"map_value", `{"m":{"k":1}}`, "m.k", awsapi.FaultBadMember},
		{"fraction", `{"b":1.5}`, "b", awsapi.FaultBadMember},
		{"overflow", `{"b":2147483648}`, "b", awsapi.FaultBadMember},
		{"string_for_number", `{"b":"1"}`, "b", awsapi.FaultBadMember},
		{"bad_time", `{"at":"yesterday"}`, "at", awsapi.FaultBadMember},
		{"far_time", `{"e":1e300}`, "e", awsapi.FaultBadMember},
		{"truncated", `{"A":`, "", awsapi.FaultCannotParse},
		{"two_objects", `{} {}`, "", awsapi.FaultCannotParse},
		{"list", `[]`, "", awsapi.FaultCannotParse},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var v in
			err := awsapi.DecodeJSON([]byte(tt.doc), &v, true)
			var f *awsapi.Fault
			if !errors.As(err, &f) {
				if err != nil || tt.kind != 0 {
					t.Fatalf("got %v, want fault %d", err, tt.kind)
				}
				return
			}
			if f.Kind != tt.kind || f.Name != tt.at {
				t.Errorf("got fault %d at %q (%v), want %d at %q", f.Kind, f.Name, f, tt.kind, tt.at)
			}
		})
	}
}

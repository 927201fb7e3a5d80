package fleet_test

import (
	"reflect"
	"testing"

	"github.com/openpcs/openpcs/internal/fleet"
)

// A group goes back to all that it was when slurmctld refuses an update:
// whatever GroupGood has is kept, and restored.
func TestRefusedUpdateIsUndone(t *testing.T) {
	good := reflect.TypeFor[fleet.GroupGood]()
	for i := range good.NumField() {
		name := good.Field(i).Name
		var g fleet.Group
		v := reflect.ValueOf(&g).Elem().FieldByName(name)
		switch v.Kind() {
		case reflect.Int, reflect.Int64:
			v.SetInt(7)
		case reflect.String:
			v.SetString("x")
		case reflect.Slice:
			v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		case reflect.Pointer:
			v.Set(reflect.New(v.Type().Elem()))
		case reflect.Struct:
			v.Set(reflect.ValueOf(fleet.Launch{ImageID: "ami-1"}))
		default:
			t.Fatalf("%s is a %s", name, v.Kind())
		}
		want := reflect.New(v.Type()).Elem()
		want.Set(v)
		g.Keep()
		v.SetZero()
		g.Restore()
		if !reflect.DeepEqual(v.Interface(), want.Interface()) {
			t.Errorf("%s is %v after a refused update, want %v", name, v, want)
		}
	}
}

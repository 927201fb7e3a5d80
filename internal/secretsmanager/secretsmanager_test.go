package secretsmanager_test

import (
	"errors"
	"fmt"
	"regexp"
	"testing"
	"time"

	"github.com/openpcs/openpcs/internal/awsapi"
	"github.com/openpcs/openpcs/internal/awsapi/awsapitest"
	"github.com/openpcs/openpcs/internal/secretsmanager"
	"github.com/openpcs/openpcs/internal/store"
)

const name = "pcs!slurm-secret-pcs_abc1234567"

type m = map[string]any

func code(err error) string {
	var e *awsapi.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return fmt.Sprint(err)
}

func TestSecrets(t *testing.T) {
	w := awsapitest.New(t)
	w.Serve(t, secretsmanager.New(secretsmanager.Options{Store: w.Store, Account: awsapitest.Account}).Service())
	call := func(op string, in, out any) error {
		return w.Client().JSON(t.Context(), "secretsmanager", "secretsmanager", op, "1.1", in, out)
	}
	var arn, version string
	w.Update(t, func(tx *store.Tx) error {
		var err error
		arn, version, err = secretsmanager.Create(tx, awsapitest.Region, awsapitest.Account, name, "a2V5", "pcs", w.Clock.Now())
		return err
	})
	if want := regexp.MustCompile(`^arn:aws:secretsmanager:ap-northeast-1:123456789012:secret:` + regexp.QuoteMeta(name) + `-[a-zA-Z0-9]{6}$`); !want.MatchString(arn) {
		t.Errorf("got ARN %s", arn)
	}
	err := w.Store.Update(t.Context(), func(tx *store.Tx) error {
		_, _, err := secretsmanager.Create(tx, awsapitest.Region, awsapitest.Account, name, "x", "pcs", w.Clock.Now())
		return err
	})
	if !errors.Is(err, store.ErrExists) {
		t.Errorf("same name again: got %v", err)
	}

	type value struct {
		ARN, Name, SecretString string
		VersionID               string `json:"VersionId"`
		VersionStages           []string
		CreatedDate             float64
	}
	for _, id := range []string{arn, name, arn[:len(arn)-7]} {
		var out value
		if err := call("GetSecretValue", m{"SecretId": id}, &out); err != nil || out.SecretString != "a2V5" || out.ARN != arn || out.VersionID != version || out.CreatedDate == 0 {
			t.Errorf("%s: got %+v, %v", id, out, err)
		}
	}

	var second string
	w.Update(t, func(tx *store.Tx) error {
		var err error
		second, err = secretsmanager.Rotate(tx, arn, "bmV3", w.Clock.Now().Add(time.Second))
		return err
	})
	for _, tt := range []struct {
		in         m
		want, code string
	}{
		{m{"SecretId": name}, "bmV3", ""},
		{m{"SecretId": name, "VersionId": second}, "bmV3", ""},
		{m{"SecretId": name, "VersionId": version}, "a2V5", ""},
		{m{"SecretId": name, "VersionStage": "AWSPREVIOUS"}, "a2V5", ""},
		{m{"SecretId": name, "VersionId": version, "VersionStage": "AWSCURRENT"}, "", "InvalidRequestException"},
		{m{"SecretId": name, "VersionId": "x"}, "", "ResourceNotFoundException"},
		{m{"SecretId": name, "VersionStage": "AWSPENDING"}, "", "ResourceNotFoundException"},
		{m{"SecretId": "other"}, "", "ResourceNotFoundException"},
		{m{}, "", "InvalidParameterException"},
	} {
		var out value
		err := call("GetSecretValue", tt.in, &out)
		if out.SecretString != tt.want || (tt.code != "" && code(err) != tt.code) {
			t.Errorf("%v: got %+v, %v", tt.in, out, err)
		}
	}
	w.View(t, func(tx *store.Tx) error {
		for _, v := range [][2]string{{"", "bmV3"}, {version, "a2V5"}} {
			if got, err := secretsmanager.Value(tx, arn, v[0]); err != nil || got != v[1] {
				t.Errorf("Value(%s): got %s, %v", v[0], got, err)
			}
		}
		if _, err := secretsmanager.Value(tx, arn, "x"); !errors.Is(err, store.ErrNotFound) {
			t.Errorf("got %v", err)
		}
		return nil
	})

	for _, op := range []string{"PutSecretValue", "UpdateSecret", "DeleteSecret", "RotateSecret"} {
		if err := call(op, m{"SecretId": name, "SecretString": "x"}, nil); code(err) != "InvalidRequestException" {
			t.Errorf("%s: got %v", op, err)
		}
	}
	var list struct {
		SecretList []struct {
			Name, OwningService    string
			SecretVersionsToStages map[string][]string
		}
	}
	for filter, n := range map[string]int{"pcs!": 1, "other": 0, "!other": 1} {
		if err := call("ListSecrets", m{"Filters": []m{{"Key": "name", "Values": []string{filter}}}}, &list); err != nil || len(list.SecretList) != n {
			t.Errorf("list %s: got %+v, %v", filter, list, err)
		}
	}
	if err := call("ListSecrets", m{"Filters": []m{{"Key": "primary-region", "Values": []string{"x"}}}}, nil); code(err) != "InvalidParameterException" {
		t.Errorf("got %v", err)
	}
	var described struct {
		OwningService      string
		VersionIDsToStages map[string][]string `json:"VersionIdsToStages"`
	}
	if err := call("DescribeSecret", m{"SecretId": name}, &described); err != nil || described.OwningService != "pcs" || len(described.VersionIDsToStages) != 2 {
		t.Errorf("got %+v, %v", described, err)
	}
	w.Update(t, func(tx *store.Tx) error { return secretsmanager.Delete(tx, arn) })
	if err := call("GetSecretValue", m{"SecretId": name}, nil); code(err) != "ResourceNotFoundException" {
		t.Errorf("deleted: got %v", err)
	}
}

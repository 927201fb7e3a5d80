package awsapi_test

import (
	"strings"
	"testing"

	"github.com/openpcs/openpcs/internal/awsapi"
	"github.com/openpcs/openpcs/internal/ec2"
	"github.com/openpcs/openpcs/internal/iam"
	"github.com/openpcs/openpcs/internal/logs"
	"github.com/openpcs/openpcs/internal/secretsmanager"
	"github.com/openpcs/openpcs/internal/ssm"
	"github.com/openpcs/openpcs/internal/sts"
)

// TestOperationTables walks what the neighbour services offer.
func TestOperationTables(t *testing.T) {
	services := []awsapi.Service{
		ec2.New(ec2.Options{}).Service(), iam.New(iam.Options{}).Service(), sts.Service(),
		ssm.New(ssm.Options{}).Service(), (&logs.Logs{}).Service(), secretsmanager.New(secretsmanager.Options{}).Service(),
	}
	awsapi.NewServer(awsapi.Options{Services: services}) // panics on a bad table
	for _, svc := range services {
		for _, op := range svc.Operations {
			if op.Permission != svc.Name+":"+op.Name {
				t.Errorf("%s %s has permission %s", svc.Name, op.Name, op.Permission)
			}
			reads := false
			for _, verb := range []string{"Describe", "Get", "List", "Filter"} {
				reads = reads || strings.HasPrefix(op.Name, verb)
			}
			if op.ReadOnly != reads {
				t.Errorf("%s %s: ReadOnly is %v", svc.Name, op.Name, op.ReadOnly)
			}
			if op.AnyCaller != (op.Name == "GetCallerIdentity") {
				t.Errorf("%s %s: AnyCaller is %v", svc.Name, op.Name, op.AnyCaller)
			}
		}
	}
}

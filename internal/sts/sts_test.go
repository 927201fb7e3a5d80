package sts_test

import (
	"context"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/sts"

	"github.com/openpcs/openpcs/internal/awsapi/awsapitest"
	"github.com/openpcs/openpcs/internal/sts"
)

func TestGetCallerIdentity(t *testing.T) {
	w := awsapitest.New(t)
	w.Serve(t, sts.Service())
	client := sdk.New(sdk.Options{
		BaseEndpoint: aws.String(w.URL), Region: awsapitest.Region,
		Credentials: aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: w.Root.ID, SecretAccessKey: w.Root.Secret}, nil
		}),
	})
	out, err := client.GetCallerIdentity(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if *out.Account != awsapitest.Account || *out.Arn != "arn:aws:iam::123456789012:user/openpcs-admin" || *out.UserId != w.Root.Caller.UserID {
		t.Errorf("got %s %s %s", *out.Account, *out.Arn, *out.UserId)
	}
}

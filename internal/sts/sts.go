// Package sts is the part of the Security Token Service that clients call
// to learn who they are.
package sts

import (
	"context"

	"github.com/openpcs/openpcs/internal/awsapi"
)

type identityOut struct {
	ARN     string `xml:"Arn"`
	UserID  string `xml:"UserId"`
	Account string `xml:"Account"`
}

// Service returns the table of operations.
func Service() awsapi.Service {
	identity := awsapi.Form("GetCallerIdentity", "sts:GetCallerIdentity", true,
		func(_ context.Context, r *awsapi.Request, _ *struct{}) (*identityOut, error) {
			return &identityOut{r.Caller.ARN, r.Caller.UserID, r.Caller.Account}, nil
		})
	identity.AnyCaller = true
	return awsapi.Service{
		Name: "sts", Protocol: awsapi.Query, Version: "2011-06-15",
		Namespace:  "https://sts.amazonaws.com/doc/2011-06-15/",
		Operations: []awsapi.Operation{identity},
	}
}

package iam

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/openpcs/openpcs/internal/awsapi"
	"github.com/openpcs/openpcs/internal/store"
)

// defaultSession is how long the credentials of a role are good for.
const defaultSession = 3600

// newID returns a fresh unique id such as AROAEXAMPLE234567ABCD.
func newID(prefix string) string {
	const alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
	var b [17]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	for i := range b {
		b[i] = alphabet[b[i]%32]
	}
	return prefix + string(b[:])
}

func (i *IAM) roleOperations() []awsapi.Operation {
	return []awsapi.Operation{
		op("CreateRole", false, i.createRole),
		op("GetRole", true, i.getRole),
		op("ListRoles", true, i.listRoles),
		op("DeleteRole", false, i.deleteRole),
		op("UpdateAssumeRolePolicy", false, i.updateTrust),
	}
}

type roleXML struct {
	Path        string    `xml:"Path"`
	Name        string    `xml:"RoleName"`
	ID          string    `xml:"RoleId"`
	ARN         string    `xml:"Arn"`
	CreatedAt   time.Time `xml:"CreateDate"`
	Trust       string    `xml:"AssumeRolePolicyDocument"`
	Description string    `xml:"Description,omitempty"`
	MaxSession  int32     `xml:"MaxSessionDuration,omitempty"`
	Tags        []tag     `xml:"Tags,omitempty"`
}

func (r Role) xml() roleXML {
	return roleXML{r.Path, r.Name, r.ID, r.ARN, r.CreatedAt, encoded(r.Trust), r.Description, r.MaxSession, r.Tags}
}

type createRoleIn struct {
	Name        string `query:"RoleName,required"`
	Path        string `query:"Path"`
	Trust       string `query:"AssumeRolePolicyDocument,required"`
	Description string `query:"Description"`
	MaxSession  *int32 `query:"MaxSessionDuration"`
	Tags        []tag  `query:"Tags"`
}

type roleOut struct {
	Role roleXML `xml:"Role"`
}

func (i *IAM) createRole(ctx context.Context, r *awsapi.Request, in *createRoleIn) (*roleOut, error) {
	if err := checkName("roleName", in.Name, 64); err != nil {
		return nil, err
	}
	path, err := checkPath(in.Path)
	if err != nil {
		return nil, err
	}
	if err := checkTrust(in.Trust); err != nil {
		return nil, err
	}
	if err := checkTags(in.Tags); err != nil {
		return nil, err
	}
	session := int32(defaultSession)
	if in.MaxSession != nil {
		session = *in.MaxSession
	}
	if session < 3600 || session > 43200 || len(in.Description) > 1000 {
		return nil, invalid("MaxSessionDuration must be between 3600 and 43200, and a description has at most 1000 characters.")
	}
	role := Role{
		Name: in.Name, Path: path, ID: newID("AROA"), ARN: i.arn("role", path, in.Name),
		CreatedAt: r.Now.Truncate(time.Second), Description: in.Description, MaxSession: session, Trust: in.Trust, Tags: in.Tags,
	}
	err = i.store.Update(ctx, func(tx *store.Tx) error {
		switch _, err := roles.Get(tx, strings.ToLower(in.Name)); {
		case err == nil:
			return fail(http.StatusConflict, "EntityAlreadyExists", "Role with name %s already exists.", in.Name)
		case !errors.Is(err, store.ErrNotFound):
			return err
		}
		return roles.Put(tx, role)
	})
	if err != nil {
		return nil, err
	}
	return &roleOut{role.xml()}, nil
}

// checkTrust checks the policy that says who may assume the role. openpcs
// gives roles to instances only, so that is all it looks at.
func checkTrust(document string) error {
	p, err := decodePolicy(document)
	if err != nil {
		return malformed(err)
	}
	for _, s := range p.Statement {
		if len(s.Principal) == 0 {
			return malformed(errors.New("a trust policy must name a principal in each statement"))
		}
		if len(s.Resource) > 0 || len(s.NotResource) > 0 {
			return malformed(errors.New("has prohibited field Resource"))
		}
	}
	return nil
}

type roleNameIn struct {
	Name string `query:"RoleName,required"`
}

func (i *IAM) getRole(ctx context.Context, _ *awsapi.Request, in *roleNameIn) (*roleOut, error) {
	r, err := i.readRole(ctx, in.Name)
	if err != nil {
		return nil, err
	}
	return &roleOut{r.xml()}, nil
}

type listRolesIn struct {
	listing
	Path string `query:"PathPrefix"`
}

type listRolesOut struct {
	Roles []roleXML `xml:"Roles"`
	listed
}

func (i *IAM) listRoles(ctx context.Context, r *awsapi.Request, in *listRolesIn) (*listRolesOut, error) {
	var all []Role
	err := i.store.View(ctx, func(tx *store.Tx) error {
		stored, err := roles.All(tx)
		for _, r := range stored {
			if strings.HasPrefix(r.Path, cmp.Or(in.Path, "/")) {
				all = append(all, r)
			}
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	all, more, err := page(r, in.listing, in.Path, all, func(r Role) string { return r.Name })
	if err != nil {
		return nil, err
	}
	out := &listRolesOut{listed: more}
	for _, r := range all {
		out.Roles = append(out.Roles, r.xml())
	}
	return out, nil
}

func (i *IAM) deleteRole(ctx context.Context, _ *awsapi.Request, in *roleNameIn) (*nothing, error) {
	return nil, i.store.Update(ctx, func(tx *store.Tx) error {
		r, err := findRole(tx, in.Name)
		if err != nil {
			return err
		}
		used, err := profiles.Of(tx, strings.ToLower(r.Name))
		if err != nil {
			return err
		}
		switch {
		case len(used) > 0:
			return fail(http.StatusConflict, "DeleteConflict", "Cannot delete entity, must remove roles from instance profile first.")
		case len(r.Attached) > 0:
			return fail(http.StatusConflict, "DeleteConflict", "Cannot delete entity, must detach all policies first.")
		case len(r.Inline) > 0:
			return fail(http.StatusConflict, "DeleteConflict", "Cannot delete entity, must delete policies first.")
		}
		return roles.Delete(tx, strings.ToLower(r.Name))
	})
}

type updateTrustIn struct {
	Name  string `query:"RoleName,required"`
	Trust string `query:"PolicyDocument,required"`
}

func (i *IAM) updateTrust(ctx context.Context, _ *awsapi.Request, in *updateTrustIn) (*nothing, error) {
	if err := checkTrust(in.Trust); err != nil {
		return nil, err
	}
	return nil, i.changeRole(ctx, in.Name, func(r *Role) error {
		r.Trust = in.Trust
		return nil
	})
}

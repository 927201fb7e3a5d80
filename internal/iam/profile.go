package iam

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/openpcs/openpcs/internal/awsapi"
	"github.com/openpcs/openpcs/internal/store"
)

func (i *IAM) profileOperations() []awsapi.Operation {
	return []awsapi.Operation{
		op("CreateInstanceProfile", false, i.createProfile),
		op("GetInstanceProfile", true, i.getProfile),
		op("ListInstanceProfiles", true, i.listProfiles),
		op("ListInstanceProfilesForRole", true, i.listProfilesForRole),
		op("DeleteInstanceProfile", false, i.deleteProfile),
		op("AddRoleToInstanceProfile", false, i.addRole),
		op("RemoveRoleFromInstanceProfile", false, i.removeRole),
	}
}

type profileXML struct {
	Path      string    `xml:"Path"`
	Name      string    `xml:"InstanceProfileName"`
	ID        string    `xml:"InstanceProfileId"`
	ARN       string    `xml:"Arn"`
	CreatedAt time.Time `xml:"CreateDate"`
	Roles     []roleXML `xml:"Roles"`
	Tags      []tag     `xml:"Tags,omitempty"`
}

type profileOut struct {
	Profile profileXML `xml:"InstanceProfile"`
}

func (p instanceProfile) xml(tx *store.Tx) (profileXML, error) {
	x := profileXML{Path: p.Path, Name: p.Name, ID: p.ID, ARN: p.ARN, CreatedAt: p.CreatedAt, Tags: p.Tags}
	if p.Role != "" {
		r, err := roles.Get(tx, strings.ToLower(p.Role))
		if err != nil {
			return x, err
		}
		x.Roles = []roleXML{r.xml()}
	}
	return x, nil
}

func findStored(tx *store.Tx, name string) (instanceProfile, error) {
	p, err := profiles.Get(tx, strings.ToLower(name))
	return p, notFound(err, "Instance Profile %s cannot be found.", name)
}

type createProfileIn struct {
	Name string `query:"InstanceProfileName,required"`
	Path string `query:"Path"`
	Tags []tag  `query:"Tags"`
}

func (i *IAM) createProfile(ctx context.Context, r *awsapi.Request, in *createProfileIn) (*profileOut, error) {
	if err := checkName("instanceProfileName", in.Name, 128); err != nil {
		return nil, err
	}
	path, err := checkPath(in.Path)
	if err != nil {
		return nil, err
	}
	if err := checkTags(in.Tags); err != nil {
		return nil, err
	}
	p := instanceProfile{
		Name: in.Name, Path: path, ID: newID("AIPA"), ARN: i.arn("instance-profile", path, in.Name),
		CreatedAt: r.Now.Truncate(time.Second), Tags: in.Tags,
	}
	var out profileOut
	err = i.store.Update(ctx, func(tx *store.Tx) error {
		switch _, err := profiles.Get(tx, strings.ToLower(in.Name)); {
		case err == nil:
			return fail(http.StatusConflict, "EntityAlreadyExists", "Instance Profile %s already exists.", in.Name)
		case !errors.Is(err, store.ErrNotFound):
			return err
		}
		if err := profiles.Put(tx, p); err != nil {
			return err
		}
		var err error
		out.Profile, err = p.xml(tx)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &out, nil
}

type profileNameIn struct {
	Name string `query:"InstanceProfileName,required"`
}

func (i *IAM) getProfile(ctx context.Context, _ *awsapi.Request, in *profileNameIn) (*profileOut, error) {
	var out profileOut
	err := i.store.View(ctx, func(tx *store.Tx) error {
		p, err := findStored(tx, in.Name)
		if err != nil {
			return err
		}
		out.Profile, err = p.xml(tx)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &out, nil
}

type listProfilesIn struct {
	listing
	Path string `query:"PathPrefix"`
}

type listProfilesForRoleIn struct {
	listing
	Role string `query:"RoleName,required"`
}

type listProfilesOut struct {
	Profiles []profileXML `xml:"InstanceProfiles"`
	listed
}

func (i *IAM) listProfiles(ctx context.Context, r *awsapi.Request, in *listProfilesIn) (*listProfilesOut, error) {
	return i.list(ctx, r, in.listing, in.Path, profiles.All, func(p instanceProfile) bool {
		return strings.HasPrefix(p.Path, cmp.Or(in.Path, "/"))
	})
}

func (i *IAM) listProfilesForRole(ctx context.Context, r *awsapi.Request, in *listProfilesForRoleIn) (*listProfilesOut, error) {
	if _, err := i.readRole(ctx, in.Role); err != nil {
		return nil, err
	}
	all := func(tx *store.Tx) ([]instanceProfile, error) { return profiles.Of(tx, strings.ToLower(in.Role)) }
	return i.list(ctx, r, in.listing, in.Role, all, func(instanceProfile) bool { return true })
}

func (i *IAM) list(ctx context.Context, r *awsapi.Request, l listing, args string, read func(tx *store.Tx) ([]instanceProfile, error), keep func(instanceProfile) bool) (*listProfilesOut, error) {
	out := &listProfilesOut{}
	err := i.store.View(ctx, func(tx *store.Tx) error {
		stored, err := read(tx)
		if err != nil {
			return err
		}
		var all []profileXML
		for _, p := range stored {
			if !keep(p) {
				continue
			}
			x, err := p.xml(tx)
			if err != nil {
				return err
			}
			all = append(all, x)
		}
		out.Profiles, out.listed, err = page(r, l, args, all, func(p profileXML) string { return p.Name })
		return err
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

func (i *IAM) deleteProfile(ctx context.Context, _ *awsapi.Request, in *profileNameIn) (*nothing, error) {
	return nil, i.store.Update(ctx, func(tx *store.Tx) error {
		p, err := findStored(tx, in.Name)
		if err != nil {
			return err
		}
		if p.Role != "" {
			return fail(http.StatusConflict, "DeleteConflict", "Cannot delete entity, must remove roles from instance profile first.")
		}
		return profiles.Delete(tx, strings.ToLower(p.Name))
	})
}

type profileRoleIn struct {
	Profile string `query:"InstanceProfileName,required"`
	Role    string `query:"RoleName,required"`
}

func (i *IAM) addRole(ctx context.Context, _ *awsapi.Request, in *profileRoleIn) (*nothing, error) {
	return nil, i.store.Update(ctx, func(tx *store.Tx) error {
		p, err := findStored(tx, in.Profile)
		if err != nil {
			return err
		}
		r, err := findRole(tx, in.Role)
		if err != nil {
			return err
		}
		if p.Role != "" {
			return fail(http.StatusConflict, "LimitExceeded", "Cannot exceed quota for InstanceSessionsPerInstanceProfile: 1")
		}
		p.Role = r.Name
		return profiles.Put(tx, p)
	})
}

func (i *IAM) removeRole(ctx context.Context, _ *awsapi.Request, in *profileRoleIn) (*nothing, error) {
	return nil, i.store.Update(ctx, func(tx *store.Tx) error {
		p, err := findStored(tx, in.Profile)
		if err != nil {
			return err
		}
		if !strings.EqualFold(p.Role, in.Role) {
			return noSuchEntity("The role with name %s cannot be found in instance profile %s.", in.Role, p.Name)
		}
		p.Role = ""
		return profiles.Put(tx, p)
	})
}

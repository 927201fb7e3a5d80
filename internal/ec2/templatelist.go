package ec2

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/openpcs/openpcs/internal/awsapi"
	"github.com/openpcs/openpcs/internal/store"
)

type describeTemplatesIn struct {
	common
	paging
	IDs            []string `query:"LaunchTemplateId"`
	Names          []string `query:"LaunchTemplateName"`
	Filters        []filter `query:"Filter"`
	IncludeManaged bool     `query:"IncludeManagedResources"`
}

type describeTemplatesOut struct {
	Templates []templateXML `xml:"launchTemplates"`
	NextToken string        `xml:"nextToken,omitempty"`
}

var templateFilters = filters[template]{
	fields: map[string]func(template) []string{
		"launch-template-name": one(func(t template) string { return t.Name }),
		"create-time":          one(func(t template) string { return t.CreatedAt.UTC().Format(time.RFC3339) }),
	},
	tags: func(t template) map[string]string { return t.Tags },
}

func (e *EC2) describeTemplates(ctx context.Context, r *awsapi.Request, in *describeTemplatesIn) (*describeTemplatesOut, error) {
	var all []template
	err := e.view(ctx, r, func(tx *store.Tx) error {
		for _, id := range in.IDs {
			if _, err := (templateRef{ID: id}).find(tx, r.Region); err != nil {
				return err
			}
		}
		for _, name := range in.Names {
			if _, err := (templateRef{Name: name}).find(tx, r.Region); err != nil {
				return err
			}
		}
		var err error
		all, err = templates.InRegion(tx, r.Region)
		return err
	})
	if err != nil {
		return nil, err
	}
	if len(in.IDs)+len(in.Names) > 0 {
		all = slices.DeleteFunc(all, func(t template) bool {
			return !slices.Contains(in.IDs, t.ID) && !slices.Contains(in.Names, t.Name)
		})
	}
	if all, err = templateFilters.apply(in.Filters, all); err != nil {
		return nil, err
	}
	all, next, err := page(r, in.paging, []any{in.IDs, in.Names, in.Filters}, 1, 200, all, func(t template) string { return awsapi.CreationKey(t.CreatedAt, t.ID) })
	if err != nil {
		return nil, err
	}
	out := &describeTemplatesOut{NextToken: next}
	for _, t := range all {
		out.Templates = append(out.Templates, t.xml())
	}
	return out, nil
}

type describeTemplateVersionsIn struct {
	common
	paging
	templateRef
	Versions       []string `query:"LaunchTemplateVersion"`
	Min            string   `query:"MinVersion"`
	Max            string   `query:"MaxVersion"`
	Filters        []filter `query:"Filter"`
	ResolveAlias   bool     `query:"ResolveAlias"` // ImageId is never an alias here
	IncludeManaged bool     `query:"IncludeManagedResources"`
}

type describeTemplateVersionsOut struct {
	Versions  []templateVersionXML `xml:"launchTemplateVersionSet"`
	NextToken string               `xml:"nextToken,omitempty"`
}

var templateVersionFilters = filters[templateVersionXML]{fields: map[string]func(templateVersionXML) []string{
	"create-time":        one(func(v templateVersionXML) string { return v.CreatedAt.UTC().Format(time.RFC3339) }),
	"image-id":           one(func(v templateVersionXML) string { return v.Data.ImageID }),
	"instance-type":      one(func(v templateVersionXML) string { return v.Data.InstanceType }),
	"is-default-version": one(func(v templateVersionXML) string { return strconv.FormatBool(v.IsDefault) }),
	"kernel-id":          one(func(v templateVersionXML) string { return v.Data.KernelID }),
	"ram-disk-id":        one(func(v templateVersionXML) string { return v.Data.RAMDiskID }),
	"ebs-optimized": one(func(v templateVersionXML) string {
		return strconv.FormatBool(v.Data.EBSOptimized != nil && *v.Data.EBSOptimized)
	}),
	"iam-instance-profile": func(v templateVersionXML) []string {
		if p := v.Data.IAMInstanceProfile; p != nil {
			return []string{p.ARN + p.Name}
		}
		return nil
	},
	"network-card-index": func(v templateVersionXML) []string {
		var out []string
		for _, n := range v.Data.NetworkInterfaces {
			if n.NetworkCardIndex != nil {
				out = append(out, strconv.Itoa(int(*n.NetworkCardIndex)))
			}
		}
		return out
	},
}}

func (e *EC2) describeTemplateVersions(ctx context.Context, r *awsapi.Request, in *describeTemplateVersionsIn) (*describeTemplateVersionsOut, error) {
	var rows []templateVersionXML
	err := e.view(ctx, r, func(tx *store.Tx) error {
		var err error
		if in.ID == "" && in.Name == "" {
			rows, err = allTemplateVersions(tx, r.Region, in.Versions)
		} else {
			rows, err = in.rows(tx, r.Region)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	if rows, err = templateVersionFilters.apply(in.Filters, rows); err != nil {
		return nil, err
	}
	args := []any{in.templateRef, in.Versions, in.Min, in.Max, in.Filters}
	// The newest version comes first, as on EC2.
	rows, next, err := page(r, in.paging, args, 1, 200, rows, func(v templateVersionXML) string {
		return fmt.Sprintf("%s %010d", v.ID, 9999999999-v.Number)
	})
	if err != nil {
		return nil, err
	}
	return &describeTemplateVersionsOut{Versions: rows, NextToken: next}, nil
}

// allTemplateVersions returns the $Latest or $Default versions of all
// templates, which is what EC2 allows without naming a template.
func allTemplateVersions(tx *store.Tx, region string, names []string) ([]templateVersionXML, error) {
	if len(names) == 0 {
		return nil, fail("MissingParameter", "The request must contain either LaunchTemplateId or LaunchTemplateName, or the versions $Latest or $Default")
	}
	all, err := templates.InRegion(tx, region)
	if err != nil {
		return nil, err
	}
	var out []templateVersionXML
	for _, t := range all {
		seen := map[int]bool{}
		for _, name := range names {
			if name != latestVersion && name != defaultVersion {
				return nil, fail("InvalidParameterCombination", "Without a launch template only the versions $Latest and $Default can be described.")
			}
			v, err := t.version(tx, name)
			if err != nil {
				return nil, err
			}
			if !seen[v.Number] {
				seen[v.Number] = true
				out = append(out, v.xml(t))
			}
		}
	}
	return out, nil
}

func (in *describeTemplateVersionsIn) rows(tx *store.Tx, region string) ([]templateVersionXML, error) {
	t, err := in.find(tx, region)
	if err != nil {
		return nil, err
	}
	bound := func(name, value string) (int, error) {
		n, err := strconv.Atoi(value)
		if err != nil || n < 1 {
			return 0, fail("InvalidParameterValue", "Value (%s) for parameter %s is invalid. It must be a version number.", value, name)
		}
		return n, nil
	}
	if len(in.Versions) > 0 {
		if in.Min != "" || in.Max != "" {
			return nil, fail("InvalidParameterCombination", "Versions cannot be combined with MinVersion or MaxVersion.")
		}
		var out []templateVersionXML
		seen := map[int]bool{}
		for _, name := range in.Versions {
			v, err := t.version(tx, name)
			if err != nil {
				return nil, err
			}
			if !seen[v.Number] {
				seen[v.Number] = true
				out = append(out, v.xml(t))
			}
		}
		return out, nil
	}
	low, high := 1, t.Latest
	if in.Min != "" {
		if low, err = bound("MinVersion", in.Min); err != nil {
			return nil, err
		}
	}
	if in.Max != "" {
		if high, err = bound("MaxVersion", in.Max); err != nil {
			return nil, err
		}
	}
	versions, err := templateVersions.Of(tx, t.ID)
	if err != nil {
		return nil, err
	}
	var out []templateVersionXML
	for _, v := range versions {
		if v.Number >= low && v.Number <= high {
			out = append(out, v.xml(t))
		}
	}
	return out, nil
}

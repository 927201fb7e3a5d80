package ec2

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"time"

	"github.com/openpcs/openpcs/internal/awsapi"
	"github.com/openpcs/openpcs/internal/fleet"
	"github.com/openpcs/openpcs/internal/store"
)

// template is a launch template; its versions are kept apart.
type template struct {
	ID        string            `json:"id"`
	Region    string            `json:"region"`
	Name      string            `json:"name"`
	CreatedAt time.Time         `json:"createdAt"`
	CreatedBy string            `json:"createdBy"`
	Default   int               `json:"default"`
	Latest    int               `json:"latest"`
	Next      int               `json:"next"` // numbers are never used again
	Tags      map[string]string `json:"tags,omitempty"`
}

var templates = store.NewCollection("launchtemplate", func(t template) store.Index {
	return store.Index{ID: t.ID, Region: t.Region, Name: t.Name}
})

type templateVersion struct {
	TemplateID  string             `json:"templateId"`
	Number      int                `json:"number"`
	Description string             `json:"description,omitempty"`
	CreatedAt   time.Time          `json:"createdAt"`
	CreatedBy   string             `json:"createdBy"`
	Data        LaunchTemplateData `json:"data"`
}

var templateVersions = store.NewCollection("launchtemplateversion", func(v templateVersion) store.Index {
	return store.Index{ID: versionID(v.TemplateID, v.Number), Parent: v.TemplateID}
})

func versionID(template string, number int) string { return template + ":" + strconv.Itoa(number) }

// The names of versions that move.
const (
	latestVersion  = "$Latest"
	defaultVersion = "$Default"
)

// number resolves the name of a version.
func (t template) number(version string) (int, error) {
	switch version {
	case latestVersion:
		return t.Latest, nil
	case defaultVersion:
		return t.Default, nil
	}
	n, err := strconv.Atoi(version)
	if err != nil || n < 1 {
		return 0, fmt.Errorf("version %q of launch template %s is neither a number nor %s nor %s: %w", version, t.ID, latestVersion, defaultVersion, store.ErrNotFound)
	}
	return n, nil
}

// Template returns the data of a version of a launch template (a number,
// $Latest or $Default) and the version's number. It wraps store.ErrNotFound
// when there is no such template in the region, or no such version.
func Template(tx *store.Tx, region, id, version string) (LaunchTemplateData, int, error) {
	t, err := templates.Get(tx, id)
	if err == nil && t.Region != region {
		err = store.ErrNotFound
	}
	if err != nil {
		return LaunchTemplateData{}, 0, fmt.Errorf("launch template %s in %s: %w", id, region, err)
	}
	n, err := t.number(version)
	if err != nil {
		return LaunchTemplateData{}, 0, err
	}
	v, err := templateVersions.Get(tx, versionID(id, n))
	if err != nil {
		return LaunchTemplateData{}, 0, fmt.Errorf("version %d of launch template %s: %w", n, id, err)
	}
	return v.Data, n, nil
}

func (e *EC2) templateOperations() []awsapi.Operation {
	return []awsapi.Operation{
		op("CreateLaunchTemplate", false, e.createTemplate),
		op("CreateLaunchTemplateVersion", false, e.createTemplateVersion),
		op("DescribeLaunchTemplates", true, e.describeTemplates),
		op("DescribeLaunchTemplateVersions", true, e.describeTemplateVersions),
		op("ModifyLaunchTemplate", false, e.modifyTemplate),
		op("DeleteLaunchTemplate", false, e.deleteTemplate),
		op("DeleteLaunchTemplateVersions", false, e.deleteTemplateVersions),
	}
}

// token makes a call idempotent: the same token returns the same result.
type token struct {
	ID     string    `json:"id"`
	Hash   string    `json:"hash"` // of the arguments
	Result string    `json:"result"`
	At     time.Time `json:"at"`
}

var tokens = store.NewCollection("ec2token", func(t token) store.Index { return store.Index{ID: t.ID} })

// tokenLife is how long a token is remembered.
const tokenLife = 24 * time.Hour

// once returns the result of an earlier call with the token, or calls make
// and remembers what it returns.
func once(tx *store.Tx, r *awsapi.Request, clientToken string, args any, create func() (string, error)) (string, error) {
	if clientToken == "" {
		return create()
	}
	if len(clientToken) > 128 {
		return "", fail("InvalidParameterValue", "Value for parameter clientToken is invalid. It must have at most 128 characters.")
	}
	doc, err := json.Marshal(args)
	if err != nil {
		return "", fmt.Errorf("hash arguments: %w", err)
	}
	sum := sha256.Sum256(doc)
	t := token{ID: r.Region + "/" + r.Operation + "/" + clientToken, Hash: hex.EncodeToString(sum[:]), At: r.Now}
	switch earlier, err := tokens.Get(tx, t.ID); {
	case err == nil && earlier.Hash != t.Hash:
		return "", fail("IdempotentParameterMismatch", "The client token you have provided is associated with a resource that was created with different parameters.")
	case err == nil:
		return earlier.Result, nil
	case !errors.Is(err, store.ErrNotFound):
		return "", err
	}
	all, err := tokens.All(tx)
	if err != nil {
		return "", err
	}
	for _, old := range all {
		if r.Now.Sub(old.At) > tokenLife {
			if err := tokens.Delete(tx, old.ID); err != nil {
				return "", err
			}
		}
	}
	if t.Result, err = create(); err != nil {
		return "", err
	}
	return t.Result, tokens.Put(tx, t)
}

type createTemplateIn struct {
	common
	Name        string             `query:"LaunchTemplateName,required"`
	Description string             `query:"VersionDescription"`
	Data        LaunchTemplateData `query:"LaunchTemplateData,required"`
	Tags        []tagSpec          `query:"TagSpecification"`
	ClientToken string             `query:"ClientToken" json:"-"`
}

type templateOut struct {
	Template templateXML `xml:"launchTemplate"`
	Warning  *warningXML `xml:"warning"`
}

type templateXML struct {
	ID        string    `xml:"launchTemplateId"`
	Name      string    `xml:"launchTemplateName"`
	CreatedAt time.Time `xml:"createTime"`
	CreatedBy string    `xml:"createdBy"`
	Default   int       `xml:"defaultVersionNumber"`
	Latest    int       `xml:"latestVersionNumber"`
	Tags      []tagXML  `xml:"tagSet,omitempty"`
}

// warningXML says what would not work when the template is used.
type warningXML struct {
	Errors []warningError `xml:"errorSet"`
}

type warningError struct {
	Code    string `xml:"code"`
	Message string `xml:"message"`
}

func (t template) xml() templateXML {
	return templateXML{t.ID, t.Name, t.CreatedAt, t.CreatedBy, t.Default, t.Latest, tagsXML(t.Tags)}
}

var templateName = regexp.MustCompile(`^[a-zA-Z0-9().\-/_]{3,128}$`)

const maxDescription = 255

func checkDescription(s string) error {
	if len([]rune(s)) > maxDescription {
		return fail("InvalidParameterValue", "Value for parameter versionDescription is invalid. It must have at most %d characters.", maxDescription)
	}
	return nil
}

func (e *EC2) createTemplate(ctx context.Context, r *awsapi.Request, in *createTemplateIn) (*templateOut, error) {
	if !templateName.MatchString(in.Name) {
		return nil, fail("InvalidLaunchTemplateName.MalformedException", "A launch template name must be between 3 and 128 characters, and may contain letters, numbers, and the following characters: - ( ) . / _")
	}
	if err := checkDescription(in.Description); err != nil {
		return nil, err
	}
	if err := in.Data.check(); err != nil {
		return nil, err
	}
	tags, err := tagsFor("launch-template", in.Tags)
	if err != nil {
		return nil, err
	}
	var out templateOut
	err = e.update(ctx, r, func(tx *store.Tx) error {
		id, err := once(tx, r, in.ClientToken, in, func() (string, error) {
			t := template{
				ID: fleet.NewEC2ID("lt"), Region: r.Region, Name: in.Name, CreatedAt: r.Now.Truncate(time.Second), CreatedBy: r.Caller.ARN,
				Default: 1, Latest: 1, Next: 2, Tags: tags,
			}
			if err := templates.Put(tx, t); err != nil {
				if errors.Is(err, store.ErrExists) {
					return "", fail("InvalidLaunchTemplateName.AlreadyExistsException", "Launch template name already in use.")
				}
				return "", err
			}
			return t.ID, templateVersions.Put(tx, templateVersion{
				TemplateID: t.ID, Number: 1, Description: in.Description, CreatedAt: t.CreatedAt, CreatedBy: t.CreatedBy, Data: in.Data,
			})
		})
		if err != nil {
			return err
		}
		t, err := templates.Get(tx, id)
		if err != nil {
			return notFound(err, "InvalidLaunchTemplateId.NotFound", "The launch template that this client token made, %s, was deleted.", id)
		}
		out.Template = t.xml()
		out.Warning, err = warnings(tx, r.Region, in.Data)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &out, nil
}

// warnings says which resources that the data names do not exist.
func warnings(tx *store.Tx, region string, d LaunchTemplateData) (*warningXML, error) {
	var w warningXML
	warn := func(code, format string, args ...any) {
		w.Errors = append(w.Errors, warningError{code, fmt.Sprintf(format, args...)})
	}
	if d.ImageID != "" {
		if _, err := fleet.Images.Get(tx, d.ImageID); errors.Is(err, store.ErrNotFound) {
			warn("InvalidAMIID.NotFound", "The image id '[%s]' does not exist", d.ImageID)
		} else if err != nil {
			return nil, err
		}
	}
	if d.InstanceType != "" {
		if _, ok := fleet.Lookup(d.InstanceType); !ok {
			warn("InvalidParameterValue", "Invalid value '%s' for InstanceType.", d.InstanceType)
		}
	}
	if d.KeyName != "" {
		if _, err := KeyPairs.Find(tx, region, "", d.KeyName); errors.Is(err, store.ErrNotFound) {
			warn("InvalidKeyPair.NotFound", "The key pair '%s' does not exist", d.KeyName)
		} else if err != nil {
			return nil, err
		}
	}
	groups := d.SecurityGroupIDs
	for _, n := range d.NetworkInterfaces {
		groups = append(groups[:len(groups):len(groups)], n.SecurityGroupIDs...)
		if n.SubnetID == "" {
			continue
		}
		if _, err := SubnetOf(tx, region, n.SubnetID); errors.Is(err, store.ErrNotFound) {
			warn("InvalidSubnetID.NotFound", "The subnet ID '%s' does not exist", n.SubnetID)
		} else if err != nil {
			return nil, err
		}
	}
	for _, id := range groups {
		if _, err := SecurityGroupOf(tx, region, id); errors.Is(err, store.ErrNotFound) {
			warn("InvalidGroup.NotFound", "The security group '%s' does not exist", id)
		} else if err != nil {
			return nil, err
		}
	}
	if len(w.Errors) == 0 {
		return nil, nil // no warning is the usual case
	}
	return &w, nil
}

// templateRef names a launch template by id or name, not both.
type templateRef struct {
	ID   string `query:"LaunchTemplateId"`
	Name string `query:"LaunchTemplateName"`
}

func (ref templateRef) find(tx *store.Tx, region string) (template, error) {
	switch {
	case ref.ID != "" && ref.Name != "":
		return template{}, fail("InvalidParameterCombination", "Specify either LaunchTemplateId or LaunchTemplateName, not both.")
	case ref.ID != "":
		if !wellFormed(ref.ID, "lt") {
			return template{}, fail("InvalidLaunchTemplateId.Malformed", "Invalid id: \"%s\" (expecting \"lt-...\")", ref.ID)
		}
		t, err := templates.Get(tx, ref.ID)
		if err == nil && t.Region != region {
			err = store.ErrNotFound
		}
		return t, notFound(err, "InvalidLaunchTemplateId.NotFound", "The specified launch template, with template ID %s, does not exist.", ref.ID)
	case ref.Name != "":
		t, err := templates.Find(tx, region, "", ref.Name)
		return t, notFound(err, "InvalidLaunchTemplateName.NotFoundException", "The specified launch template, with template name %s, does not exist.", ref.Name)
	default:
		return template{}, fail("MissingParameter", "The request must contain either LaunchTemplateId or LaunchTemplateName")
	}
}

// version returns a version of the template by number, $Latest or $Default.
func (t template) version(tx *store.Tx, name string) (templateVersion, error) {
	n, err := t.number(name)
	if err != nil {
		return templateVersion{}, fail("InvalidLaunchTemplateId.VersionNotFound", "Could not find the specified version %s for the launch template with ID %s.", name, t.ID)
	}
	v, err := templateVersions.Get(tx, versionID(t.ID, n))
	return v, notFound(err, "InvalidLaunchTemplateId.VersionNotFound", "Could not find the specified version %s for the launch template with ID %s.", name, t.ID)
}

type createTemplateVersionIn struct {
	common
	templateRef
	Source       string             `query:"SourceVersion"`
	Description  string             `query:"VersionDescription"`
	Data         LaunchTemplateData `query:"LaunchTemplateData,required"`
	ClientToken  string             `query:"ClientToken" json:"-"`
	ResolveAlias bool               `query:"ResolveAlias"`
}

type templateVersionOut struct {
	Version templateVersionXML `xml:"launchTemplateVersion"`
	Warning *warningXML        `xml:"warning"`
}

type templateVersionXML struct {
	ID          string             `xml:"launchTemplateId"`
	Name        string             `xml:"launchTemplateName"`
	Number      int                `xml:"versionNumber"`
	Description string             `xml:"versionDescription,omitempty"`
	CreatedAt   time.Time          `xml:"createTime"`
	CreatedBy   string             `xml:"createdBy"`
	IsDefault   bool               `xml:"defaultVersion"`
	Data        LaunchTemplateData `xml:"launchTemplateData"`
}

func (v templateVersion) xml(t template) templateVersionXML {
	return templateVersionXML{t.ID, t.Name, v.Number, v.Description, v.CreatedAt, v.CreatedBy, v.Number == t.Default, v.Data}
}

func (e *EC2) createTemplateVersion(ctx context.Context, r *awsapi.Request, in *createTemplateVersionIn) (*templateVersionOut, error) {
	if err := checkDescription(in.Description); err != nil {
		return nil, err
	}
	if err := in.Data.check(); err != nil {
		return nil, err
	}
	var out templateVersionOut
	err := e.update(ctx, r, func(tx *store.Tx) error {
		t, err := in.find(tx, r.Region)
		if err != nil {
			return err
		}
		number, err := once(tx, r, in.ClientToken, in, func() (string, error) {
			v := templateVersion{
				TemplateID: t.ID, Number: t.Next, Description: in.Description,
				CreatedAt: r.Now.Truncate(time.Second), CreatedBy: r.Caller.ARN, Data: in.Data,
			}
			if in.Source != "" {
				source, err := t.version(tx, in.Source)
				if err != nil {
					return "", err
				}
				v.Data = source.Data.merge(in.Data)
			}
			t.Latest, t.Next = t.Next, t.Next+1
			if err := templates.Put(tx, t); err != nil {
				return "", err
			}
			return strconv.Itoa(v.Number), templateVersions.Put(tx, v)
		})
		if err != nil {
			return err
		}
		v, err := t.version(tx, number)
		if err != nil {
			return err
		}
		out.Version = v.xml(t)
		out.Warning, err = warnings(tx, r.Region, v.Data)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &out, nil
}

type modifyTemplateIn struct {
	common
	templateRef
	Default     string `query:"SetDefaultVersion"`
	ClientToken string `query:"ClientToken"` // setting a default twice does no harm
}

func (e *EC2) modifyTemplate(ctx context.Context, r *awsapi.Request, in *modifyTemplateIn) (*templateOut, error) {
	var out templateOut
	err := e.update(ctx, r, func(tx *store.Tx) error {
		t, err := in.find(tx, r.Region)
		if err != nil {
			return err
		}
		if in.Default != "" {
			v, err := t.version(tx, in.Default)
			if err != nil {
				return err
			}
			t.Default = v.Number
			if err := templates.Put(tx, t); err != nil {
				return err
			}
		}
		out.Template = t.xml()
		return nil
	})
	if err != nil {
		return nil, err
	}
	return &out, nil
}

type deleteTemplateIn struct {
	common
	templateRef
}

func (e *EC2) deleteTemplate(ctx context.Context, r *awsapi.Request, in *deleteTemplateIn) (*templateOut, error) {
	var out templateOut
	err := e.update(ctx, r, func(tx *store.Tx) error {
		t, err := in.find(tx, r.Region)
		if err != nil {
			return err
		}
		out.Template = t.xml()
		versions, err := templateVersions.Of(tx, t.ID)
		if err != nil {
			return err
		}
		for _, v := range versions {
			if err := templateVersions.Delete(tx, versionID(t.ID, v.Number)); err != nil {
				return err
			}
		}
		return templates.Delete(tx, t.ID)
	})
	if err != nil {
		return nil, err
	}
	return &out, nil
}

type deleteTemplateVersionsIn struct {
	common
	templateRef
	Versions []string `query:"LaunchTemplateVersion,required"`
}

type deleteTemplateVersionsOut struct {
	Deleted []deletedXML `xml:"successfullyDeletedLaunchTemplateVersionSet"`
	Failed  []deletedXML `xml:"unsuccessfullyDeletedLaunchTemplateVersionSet"`
}

type deletedXML struct {
	ID     string        `xml:"launchTemplateId"`
	Name   string        `xml:"launchTemplateName"`
	Number int           `xml:"versionNumber"`
	Error  *warningError `xml:"responseError"`
}

func (e *EC2) deleteTemplateVersions(ctx context.Context, r *awsapi.Request, in *deleteTemplateVersionsIn) (*deleteTemplateVersionsOut, error) {
	var out deleteTemplateVersionsOut
	err := e.update(ctx, r, func(tx *store.Tx) error {
		t, err := in.find(tx, r.Region)
		if err != nil {
			return err
		}
		for _, name := range in.Versions {
			n, err := strconv.Atoi(name)
			if err != nil {
				return fail("InvalidParameterValue", "Value (%s) for parameter LaunchTemplateVersion is invalid. It must be a number.", name)
			}
			row := deletedXML{ID: t.ID, Name: t.Name, Number: n}
			_, err = templateVersions.Get(tx, versionID(t.ID, n))
			switch {
			case errors.Is(err, store.ErrNotFound):
				row.Error = &warningError{"launchTemplateVersionDoesNotExist", "The specified launch template version does not exist."}
			case err != nil:
				return err
			case n == t.Default:
				row.Error = &warningError{"unexpectedError", "The default version of a launch template cannot be deleted: make another version the default first."}
			}
			if row.Error != nil {
				out.Failed = append(out.Failed, row)
				continue
			}
			if err := templateVersions.Delete(tx, versionID(t.ID, n)); err != nil {
				return err
			}
			out.Deleted = append(out.Deleted, row)
		}
		left, err := templateVersions.Of(tx, t.ID)
		if err != nil {
			return err
		}
		t.Latest = t.Default
		for _, v := range left {
			t.Latest = max(t.Latest, v.Number)
		}
		return templates.Put(tx, t)
	})
	if err != nil {
		return nil, err
	}
	return &out, nil
}

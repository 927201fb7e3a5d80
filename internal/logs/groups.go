package logs

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/openpcs/openpcs/internal/awsapi"
	"github.com/openpcs/openpcs/internal/logs/events"
)

// group checks the two ways to name a log group, of which a call has one, and
// returns its name.
func (c *check) group(r *awsapi.Request, name, id *string) string {
	switch {
	case name == nil && id == nil:
		c.bad("logGroupName", "is required, or logGroupIdentifier")
	case name != nil && id != nil:
		c.bad("logGroupIdentifier", "is there beside logGroupName: give one of them")
	case name != nil:
		return c.need("logGroupName", name, groupName)
	default:
		return c.identifier(r, "logGroupIdentifier", *id)
	}
	return ""
}

// identifier is the name of a log group, or its ARN.
func (c *check) identifier(r *awsapi.Request, at, id string) string {
	c.matches(at, id, identifier)
	if !strings.HasPrefix(id, "arn:") {
		return id
	}
	a, ok := parseARN(id)
	name, isGroup := strings.CutPrefix(a.resource, "log-group:")
	if !ok || a.service != "logs" || !isGroup || !a.here(r) {
		c.bad(at, "%s is not the ARN of a log group of this account and region", quote(id))
	}
	return strings.TrimSuffix(name, ":*")
}

// noGroup and noStream are the words of CloudWatch Logs.
const (
	noGroup  = "The specified log group does not exist."
	noStream = "The specified log stream does not exist."
)

// worded gives errors of the events the form of the service.
func worded(err error) error {
	switch {
	case errors.Is(err, events.ErrNoGroup):
		return missing(noGroup)
	case errors.Is(err, events.ErrNoStream):
		return missing(noStream)
	case errors.Is(err, events.ErrFull):
		return &awsapi.Error{
			Code: "ServiceUnavailableException", Status: http.StatusServiceUnavailable,
			Message: "There is no room for log events: make some where openpcs has its state folder, or delete log groups.",
		}
	default:
		return err
	}
}

// The classes of log groups that there are.
const standard, infrequent = "STANDARD", "INFREQUENT_ACCESS"

type createGroupIn struct {
	Name      *string           `json:"logGroupName"`
	KMSKey    *string           `json:"kmsKeyId"`
	Tags      map[string]string `json:"tags"`
	Class     *string           `json:"logGroupClass"`
	Protected *bool             `json:"deletionProtectionEnabled"`
}

func (s *Logs) createGroup(ctx context.Context, r *awsapi.Request, in *createGroupIn) (*empty, error) {
	c := check{code: parameter}
	name := c.need("logGroupName", in.Name, groupName)
	if strings.HasPrefix(name, "aws/") {
		c.bad("logGroupName", "%s: names must not begin with aws/", quote(name))
	}
	if in.KMSKey != nil {
		c.bad("kmsKeyId", "openpcs does not encrypt log groups with keys of KMS: leave it out")
	}
	c.tags("tags", in.Tags, false)
	g := events.Group{Region: r.Region, Name: name, Created: r.Now.UnixMilli(), Class: standard, Tags: in.Tags, Protected: in.Protected != nil && *in.Protected}
	if class := text(in.Class); class != "" {
		c.oneOf("logGroupClass", class, standard, infrequent, "DELIVERY")
		if class == "DELIVERY" {
			c.bad("logGroupClass", "openpcs has the classes %s and %s, and delivers to both", standard, infrequent)
		}
		g.Class = class
	}
	if err := c.err(); err != nil {
		return nil, err
	}
	err := s.db.CreateGroup(ctx, g)
	if errors.Is(err, events.ErrExists) {
		return nil, fail("ResourceAlreadyExistsException", "The specified log group already exists")
	}
	return &empty{}, worded(err)
}

// protected refuses to delete from a group that is protected.
func protected(g events.Group) error {
	if !g.Protected {
		return nil
	}
	return fail(validation, "The log group %s has deletion protection. Take it off first: aws logs put-log-group-deletion-protection --log-group-identifier %s --no-deletion-protection-enabled", g.Name, g.Name)
}

func (s *Logs) deleteGroup(ctx context.Context, r *awsapi.Request, in *groupNameIn) (*empty, error) {
	name, err := in.get()
	if err != nil {
		return nil, err
	}
	return &empty{}, worded(s.db.DeleteGroup(ctx, r.Region, name, protected))
}

type protectionIn struct {
	ID      *string `json:"logGroupIdentifier"`
	Enabled *bool   `json:"deletionProtectionEnabled"`
}

func (s *Logs) protectGroup(ctx context.Context, r *awsapi.Request, in *protectionIn) (*empty, error) {
	c := check{code: parameter}
	name := ""
	if in.ID == nil {
		c.bad("logGroupIdentifier", "is required")
	} else {
		name = c.identifier(r, "logGroupIdentifier", *in.ID)
	}
	if in.Enabled == nil {
		c.bad("deletionProtectionEnabled", "is required")
	}
	if err := c.err(); err != nil {
		return nil, err
	}
	return s.changeGroup(ctx, r, name, func(g *events.Group) { g.Protected = *in.Enabled })
}

func (s *Logs) changeGroup(ctx context.Context, r *awsapi.Request, name string, fn func(*events.Group)) (*empty, error) {
	return &empty{}, worded(s.db.ChangeGroup(ctx, r.Region, name, func(g *events.Group) error {
		fn(g)
		return nil
	}))
}

// retentions are the days that a log group may keep its events.
var retentions = []int32{1, 3, 5, 7, 14, 30, 60, 90, 120, 150, 180, 365, 400, 545, 731, 1096, 1827, 2192, 2557, 2922, 3288, 3653}

func days() string {
	var out []string
	for _, d := range retentions {
		out = append(out, strconv.Itoa(int(d)))
	}
	return strings.Join(out, ", ")
}

type putRetentionIn struct {
	Name *string `json:"logGroupName"`
	Days *int32  `json:"retentionInDays"`
}

func (s *Logs) putRetention(ctx context.Context, r *awsapi.Request, in *putRetentionIn) (*empty, error) {
	c := check{code: parameter}
	name := c.need("logGroupName", in.Name, groupName)
	switch {
	case in.Days == nil:
		c.bad("retentionInDays", "is required")
	case !slices.Contains(retentions, *in.Days):
		c.bad("retentionInDays", "is %d, and must be one of %s; to keep events for ever, delete the retention policy", *in.Days, days())
	}
	if err := c.err(); err != nil {
		return nil, err
	}
	return s.changeGroup(ctx, r, name, func(g *events.Group) { g.Retention = int(*in.Days) })
}

func (in *groupNameIn) get() (string, error) {
	c := check{code: parameter}
	name := c.need("logGroupName", in.Group, groupName)
	return name, c.err()
}

func (s *Logs) deleteRetention(ctx context.Context, r *awsapi.Request, in *groupNameIn) (*empty, error) {
	name, err := in.get()
	if err != nil {
		return nil, err
	}
	return s.changeGroup(ctx, r, name, func(g *events.Group) { g.Retention = 0 })
}

type groupOut struct {
	Name      string `json:"logGroupName"`
	Created   int64  `json:"creationTime"`
	Retention int    `json:"retentionInDays,omitempty"`
	Filters   *int   `json:"metricFilterCount,omitempty"`
	ARN       string `json:"arn"`
	Bytes     *int64 `json:"storedBytes,omitempty"`
	Class     string `json:"logGroupClass,omitempty"`
	GroupARN  string `json:"logGroupArn,omitempty"`
	Protected *bool  `json:"deletionProtectionEnabled,omitempty"`
}

type describeGroupsIn struct {
	Accounts  []string `json:"accountIdentifiers"`
	Prefix    *string  `json:"logGroupNamePrefix"`
	Pattern   *string  `json:"logGroupNamePattern"`
	NextToken *string  `json:"nextToken"`
	Limit     *int32   `json:"limit"`
	// Linked makes no difference: there is one account.
	Linked *bool    `json:"includeLinkedAccounts"`
	Class  *string  `json:"logGroupClass"`
	IDs    []string `json:"logGroupIdentifiers"`
}

type describeGroupsOut struct {
	Groups    []groupOut `json:"logGroups"`
	NextToken string     `json:"nextToken,omitempty"`
}

func (s *Logs) describeGroups(ctx context.Context, r *awsapi.Request, in *describeGroupsIn) (*describeGroupsOut, error) {
	c := check{code: parameter}
	size := c.limit(in.Limit, 50, 50)
	prefix, part := c.may("logGroupNamePrefix", in.Prefix, groupName), c.may("logGroupNamePattern", in.Pattern, groupPart)
	class := text(in.Class)
	c.oneOf("logGroupClass", class, standard, infrequent, "DELIVERY")
	if in.Prefix != nil && in.Pattern != nil {
		c.bad("logGroupNamePattern", "is there beside logGroupNamePrefix: give one of them")
	}
	if len(in.IDs) > 50 || len(in.IDs) > 0 && (in.Prefix != nil || in.Pattern != nil || in.Class != nil || in.Accounts != nil) {
		c.bad("logGroupIdentifiers", "may have 50 entries, and no other filter beside it")
	}
	var names []string
	for _, id := range in.IDs {
		names = append(names, c.identifier(r, "logGroupIdentifiers", id))
	}
	if err := c.err(); err != nil {
		return nil, err
	}
	groups, err := s.groups(ctx, r, in.Accounts, func(g events.Group) bool {
		return strings.HasPrefix(g.Name, prefix) && strings.Contains(g.Name, part) &&
			(class == "" || g.Class == class) && (names == nil || slices.Contains(names, g.Name))
	})
	if err != nil {
		return nil, err
	}
	page, next, err := awsapi.Page(r, []any{prefix, part, class, names}, text(in.NextToken), size, groups, func(g events.Group) string { return g.Name })
	if err != nil {
		return nil, err
	}
	out := &describeGroupsOut{Groups: []groupOut{}, NextToken: next}
	for _, g := range page {
		base := arnOf(r, "log-group:"+g.Name)
		row := groupOut{Name: g.Name, Created: g.Created, ARN: base + ":*"}
		if in.Pattern == nil {
			row.Retention, row.Filters, row.Bytes, row.Class, row.GroupARN, row.Protected = g.Retention, new(int), &g.Bytes, g.Class, base, &g.Protected
		}
		out.Groups = append(out.Groups, row)
	}
	return out, nil
}

// groups returns the log groups of the region that ok wants.
func (s *Logs) groups(ctx context.Context, r *awsapi.Request, accounts []string, ok func(events.Group) bool) ([]events.Group, error) {
	if len(accounts) > 0 && !slices.Contains(accounts, r.Account) {
		return nil, nil
	}
	all, err := s.db.Groups(ctx, r.Region)
	return slices.DeleteFunc(all, func(g events.Group) bool { return !ok(g) }), err
}

type tagFilter struct {
	Key    *string  `json:"key"`
	Values []string `json:"values"`
}

type dataSource struct {
	Name *string `json:"name"`
	Type *string `json:"type"`
}

type listGroupsIn struct {
	Pattern   *string  `json:"logGroupNamePattern"`
	Class     *string  `json:"logGroupClass"`
	Linked    *bool    `json:"includeLinkedAccounts"`
	Accounts  []string `json:"accountIdentifiers"`
	NextToken *string  `json:"nextToken"`
	Limit     *int32   `json:"limit"`
	// What openpcs does not look at.
	DataSources []dataSource `json:"dataSources"`
	FieldNames  []string     `json:"fieldIndexNames"`
	Tags        []tagFilter  `json:"logGroupTags"`
}

type groupSummary struct {
	Name  string `json:"logGroupName"`
	ARN   string `json:"logGroupArn"`
	Class string `json:"logGroupClass"`
}

type listGroupsOut struct {
	Groups    []groupSummary `json:"logGroups"`
	NextToken string         `json:"nextToken,omitempty"`
}

func (s *Logs) listGroups(ctx context.Context, r *awsapi.Request, in *listGroupsIn) (*listGroupsOut, error) {
	c := check{code: parameter}
	size := c.limit(in.Limit, 50, 1000)
	alternatives := c.may("logGroupNamePattern", in.Pattern, listPattern)
	class := text(in.Class)
	c.oneOf("logGroupClass", class, standard, infrequent, "DELIVERY")
	if len(in.DataSources) > 0 || len(in.FieldNames) > 0 || len(in.Tags) > 0 {
		c.bad("dataSources, fieldIndexNames, logGroupTags", "openpcs lists log groups by name and class alone: leave them out")
	}
	if err := c.err(); err != nil {
		return nil, err
	}
	groups, err := s.groups(ctx, r, in.Accounts, func(g events.Group) bool {
		return (class == "" || g.Class == class) && slices.ContainsFunc(strings.Split(alternatives, "|"), func(p string) bool {
			if begin, ok := strings.CutPrefix(p, "^"); ok {
				return strings.HasPrefix(g.Name, begin)
			}
			return strings.Contains(g.Name, p)
		})
	})
	if err != nil {
		return nil, err
	}
	page, next, err := awsapi.Page(r, []any{alternatives, class}, text(in.NextToken), size, groups, func(g events.Group) string { return g.Name })
	if err != nil {
		return nil, err
	}
	out := &listGroupsOut{Groups: []groupSummary{}, NextToken: next}
	for _, g := range page {
		out.Groups = append(out.Groups, groupSummary{g.Name, arnOf(r, "log-group:"+g.Name), g.Class})
	}
	return out, nil
}

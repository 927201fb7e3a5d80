package logs

import (
	"context"
	"encoding/json"
	"errors"

	"github.com/openpcs/openpcs/internal/awsapi"
	"github.com/openpcs/openpcs/internal/logs/events"
)

type streamIn struct {
	Group  *string `json:"logGroupName"`
	Stream *string `json:"logStreamName"`
}

func (in *streamIn) get() (group, stream string, err error) {
	c := check{code: parameter}
	group, stream = c.need("logGroupName", in.Group, groupName), c.need("logStreamName", in.Stream, streamName)
	return group, stream, c.err()
}

func (s *Logs) createStream(ctx context.Context, r *awsapi.Request, in *streamIn) (*empty, error) {
	group, stream, err := in.get()
	if err != nil {
		return nil, err
	}
	err = s.db.CreateStream(ctx, r.Region, group, stream, r.Now)
	if errors.Is(err, events.ErrExists) {
		return nil, fail("ResourceAlreadyExistsException", "The specified log stream already exists")
	}
	return &empty{}, worded(err)
}

func (s *Logs) deleteStream(ctx context.Context, r *awsapi.Request, in *streamIn) (*empty, error) {
	group, stream, err := in.get()
	if err != nil {
		return nil, err
	}
	return &empty{}, worded(s.db.DeleteStream(ctx, r.Region, group, stream, protected))
}

// byTime is the order of streams by their newest events.
const byTime = "LastEventTime"

type describeStreamsIn struct {
	Group      *string `json:"logGroupName"`
	GroupID    *string `json:"logGroupIdentifier"`
	Prefix     *string `json:"logStreamNamePrefix"`
	OrderBy    *string `json:"orderBy"`
	Descending *bool   `json:"descending"`
	NextToken  *string `json:"nextToken"`
	Limit      *int32  `json:"limit"`
}

type streamOut struct {
	Name     string `json:"logStreamName"`
	Created  int64  `json:"creationTime"`
	First    *int64 `json:"firstEventTimestamp,omitempty"`
	Last     *int64 `json:"lastEventTimestamp,omitempty"`
	Ingested *int64 `json:"lastIngestionTime,omitempty"`
	ARN      string `json:"arn"`
	Bytes    int64  `json:"storedBytes"` // 0, as in CloudWatch Logs since 2019
}

type describeStreamsOut struct {
	Streams   []streamOut `json:"logStreams"`
	NextToken string      `json:"nextToken,omitempty"`
}

// streamCursor is where a list of streams goes on.
type streamCursor struct {
	Name string `json:"name"`
	Last int64  `json:"last"`
}

func (s *Logs) describeStreams(ctx context.Context, r *awsapi.Request, in *describeStreamsIn) (*describeStreamsOut, error) {
	c := check{code: parameter}
	group := c.group(r, in.Group, in.GroupID)
	size := c.limit(in.Limit, 50, 50)
	c.oneOf("orderBy", text(in.OrderBy), "LogStreamName", byTime)
	o := events.Order{
		Prefix: c.may("logStreamNamePrefix", in.Prefix, streamName), ByTime: text(in.OrderBy) == byTime,
		Down: in.Descending != nil && *in.Descending, Limit: size + 1,
	}
	if o.ByTime && in.Prefix != nil {
		c.bad("logStreamNamePrefix", "cannot be there when orderBy is %s", byTime)
	}
	if err := c.err(); err != nil {
		return nil, err
	}
	args := []any{group, o.Prefix, o.ByTime, o.Down}
	if in.NextToken != nil {
		cursor, err := r.PageCursor(args, *in.NextToken)
		if err != nil {
			return nil, err
		}
		var at streamCursor
		if err := json.Unmarshal([]byte(cursor), &at); err != nil {
			return nil, err
		}
		o.After = &events.Stream{Name: at.Name, Last: at.Last}
	}
	g, err := s.db.Group(ctx, r.Region, group)
	if err != nil {
		return nil, worded(err)
	}
	list, err := s.db.Streams(ctx, g.ID, o)
	if err != nil {
		return nil, err
	}
	out := &describeStreamsOut{Streams: []streamOut{}}
	if len(list) > size {
		list = list[:size]
		last := list[size-1]
		cursor, err := json.Marshal(streamCursor{last.Name, last.Last})
		if err != nil {
			return nil, err
		}
		out.NextToken = r.PageToken(args, string(cursor))
	}
	for _, v := range list {
		row := streamOut{Name: v.Name, Created: v.Created, ARN: arnOf(r, "log-group:"+group+":log-stream:"+v.Name)}
		if v.Ingested != 0 {
			row.First, row.Last, row.Ingested = &v.First, &v.Last, &v.Ingested
		}
		out.Streams = append(out.Streams, row)
	}
	return out, nil
}

package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/openpcs/openpcs/internal/awsapi"
)

// The calls to the service logs: a batch of logBatchSize events, and a search of
// logBatches of them that finds one in each. What is written and what is
// searched are in log groups of their own.
const (
	logBatchSize    = 1000
	logBatches      = 10
	putLogEvents    = "logs put-log-events, 1,000 of 150 bytes"
	filterLogEvents = "logs filter-log-events, 10 of 10,000"
)

func logsCall(ctx context.Context, c *awsapi.Client, op string, in any) error {
	return c.JSON(ctx, "logs", "Logs_20140328", op, "1.1", in, nil)
}

// fillLogs makes the log groups and fills the one that is searched.
func fillLogs(ctx context.Context, c *awsapi.Client) error {
	for _, group := range []string{"put", "filter"} {
		if err := logsCall(ctx, c, "CreateLogGroup", map[string]any{"logGroupName": group}); err != nil {
			return err
		}
		if err := logsCall(ctx, c, "CreateLogStream", map[string]any{"logGroupName": group, "logStreamName": "s"}); err != nil {
			return err
		}
	}
	for n := range logBatches {
		if err := logsCall(ctx, c, "PutLogEvents", logBatch("filter", time.Now().Add(time.Duration(n-logBatches)*time.Minute))); err != nil {
			return err
		}
	}
	return nil
}

// logBatch is a batch of events from a time on, a millisecond apart; one of them
// is unlike the others.
func logBatch(group string, at time.Time) map[string]any {
	list := make([]map[string]any, logBatchSize)
	for n := range list {
		word := "usual"
		if n == logBatchSize/2 {
			word = "rare"
		}
		list[n] = map[string]any{"timestamp": at.UnixMilli() + int64(n), "message": fmt.Sprintf("%04d %-6s%s", n, word, strings.Repeat("x", 139))}
	}
	return map[string]any{"logGroupName": group, "logStreamName": "s", "logEvents": list}
}

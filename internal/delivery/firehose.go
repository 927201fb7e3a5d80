package delivery

import (
	"context"
	"fmt"
	"time"

	"github.com/openpcs/openpcs/internal/condition"
	"github.com/openpcs/openpcs/internal/journal"
)

// The limits of PutRecordBatch, before base64: how many records, bytes of all and
// bytes of one.
const (
	maxRecords     = 500
	maxBatchBytes  = 4 << 20
	maxRecordBytes = 1000 << 10
)

// records collects records for a stream of Firehose. It has no way to find out
// what came, so a record whose answer was lost comes twice.
type records struct {
	link     Link
	enc      *encoder
	endpoint *Endpoint

	line []byte
	list [][]byte // of the batch, which may have come in part
	size int
	n    int
}

func (c *records) add(r journal.Entry) error {
	var err error
	if c.line, err = c.enc.append(c.line[:0], r); err != nil {
		return &unfit{err.Error()}
	}
	if len(c.line) > maxRecordBytes {
		return &unfit{fmt.Sprintf("it has %d bytes, and a record of Firehose at most %d", len(c.line), maxRecordBytes)}
	}
	if len(c.list) == maxRecords || c.size+len(c.line) > maxBatchBytes {
		return errFull
	}
	c.list = append(c.list, append([]byte(nil), c.line...))
	c.size += len(c.line)
	c.n++
	return nil
}

func (c *records) count() int { return c.n }

func (c *records) key() string { return "" }

func (c *records) reset(*Batch) {
	clear(c.list)
	c.list, c.size, c.n = c.list[:0], 0, 0
}

func (c *records) due(_ journal.Entry, now time.Time) time.Time { return now.Add(collectFor) }

func (c *records) durable() bool { return false }

// send sends what is left of the batch. Those that are taken are not sent again.
func (c *records) send(ctx context.Context, _ bool) error {
	if c.endpoint == nil {
		return &failure{code: condition.LogDestinationMissing, text: "There is no Firehose: set OPENPCS_FIREHOSE_ENDPOINT to the address of one."}
	}
	type record struct {
		Data []byte // base64 in JSON
	}
	in := struct {
		DeliveryStreamName string
		Records            []record
	}{DeliveryStreamName: c.link.Target}
	for _, r := range c.list {
		in.Records = append(in.Records, record{r})
	}
	var out struct {
		FailedPutCount   int
		RequestResponses []struct{ ErrorCode, ErrorMessage string }
	}
	if err := c.endpoint.call(ctx, c.link.Region, "firehose", "Firehose_20150804", "PutRecordBatch", in, &out); err != nil {
		return err
	}
	if out.FailedPutCount == 0 {
		return nil
	}
	var left [][]byte
	why := ""
	for n, r := range out.RequestResponses {
		if r.ErrorCode != "" && n < len(c.list) {
			left = append(left, c.list[n])
			why = r.ErrorCode + ": " + r.ErrorMessage
		}
	}
	if len(left) != out.FailedPutCount || len(out.RequestResponses) != len(c.list) {
		return &failure{code: condition.LogDeliveryFailing, text: fmt.Sprintf("Firehose did not take %d records, and does not say which", out.FailedPutCount), unclear: true}
	}
	c.list = left
	return &failure{code: condition.LogDeliveryFailing, text: fmt.Sprintf("Firehose did not take %d records: %s", len(left), why)}
}

// Package logs is the service logs, as CloudWatch Logs is: the objects that say
// where the logs of clusters are delivered (sources, destinations, deliveries),
// and log groups with their streams and events, which it keeps and finds.
//
// It delivers nothing itself and reads no log of a cluster: who does asks for
// the Links and hands over events with Deliver. The objects of deliveries are in
// the state file, as they belong to clusters; events have a file of their own,
// see package events.
package logs

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	"github.com/openpcs/openpcs/internal/logs/events"
	"github.com/openpcs/openpcs/internal/store"
)

// ErrNoGroup says that a log group is not there.
var ErrNoGroup = events.ErrNoGroup

// Options configure the service.
type Options struct {
	Store   *store.Store
	Account string
	// Dir is the folder of the events.
	Dir string
	// Probe, where it is set, is asked by create-delivery whether the destination
	// can be written to; where it is not, log groups must be there, and nothing else
	// is looked at. Its error is the answer to the caller: an *awsapi.Error
	// as it is, any other as a ValidationException. It is asked outside of any
	// transaction.
	Probe func(ctx context.Context, l Link) error
}

// Logs is the service. It is safe for concurrent use.
type Logs struct {
	o  Options
	db *events.DB
}

// New opens the service; Close closes it.
func New(o Options) (*Logs, error) {
	db, err := events.Open(filepath.Join(o.Dir, "logs.db"))
	if err != nil {
		return nil, err
	}
	return &Logs{o: o, db: db}, nil
}

// Close closes the file of the events.
func (s *Logs) Close() error { return s.db.Close() }

// Event is an event that a delivery hands over.
type Event struct {
	Place   int64 // grows with each event of its origin
	Time    int64 // ms since the epoch
	Message string
}

// Deliver appends events to a stream of a log group. The stream is made if there
// is none; the group must be there, else the error wraps ErrNoGroup. From names
// the origin: up to which of its places events came is kept with them, and what
// is handed over again is left out. On return they are on disk.
func (s *Logs) Deliver(ctx context.Context, region, group, stream, from string, list []Event) error {
	if from == "" {
		return errors.New("deliver log events: their origin has no name")
	}
	in := make([]events.Input, len(list))
	for n, e := range list {
		in[n] = events.Input(e)
	}
	return s.db.Append(ctx, events.Batch{Region: region, Group: group, Stream: stream, Make: true, From: from, Events: in, Now: time.Now()})
}

// HasGroup reports whether a log group is there.
func (s *Logs) HasGroup(ctx context.Context, region, name string) (bool, error) {
	_, err := s.db.Group(ctx, region, name)
	if errors.Is(err, events.ErrNoGroup) {
		return false, nil
	}
	return err == nil, err
}

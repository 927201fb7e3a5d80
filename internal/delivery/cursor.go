package delivery

import (
	"time"

	"github.com/openpcs/openpcs/internal/condition"
	"github.com/openpcs/openpcs/internal/store"
)

// Cursor says how far a delivery of one log has come.
type Cursor struct {
	ID       string `json:"id"` // delivery/log name
	Delivery string `json:"delivery"`
	Cluster  string `json:"cluster"`
	After    int64  `json:"after"` // everything up to this place is dealt with
	// Pending is a batch that was begun, and of which the end is not known.
	Pending *Batch `json:"pending,omitempty"`

	Delivered int64 `json:"delivered"` // records, since the delivery exists
	Dropped   int64 `json:"dropped"`   // those that were lost as it fell too far behind
	Refused   int64 `json:"refused"`   // those that the destination takes never

	DroppedAt time.Time `json:"droppedAt,omitzero"` // the last time
	RefusedAt time.Time `json:"refusedAt,omitzero"`
	Refusal   string    `json:"refusal,omitempty"` // why, the last time
}

// Batch is a run of records that go to the destination in one piece.
type Batch struct {
	First int64  `json:"first"`
	Last  int64  `json:"last"`
	Key   string `json:"key,omitempty"` // of the object, in S3
}

// Cursors is where they are stored, under their delivery.
var Cursors = store.NewCollection("delivery-cursor", func(c Cursor) store.Index {
	return store.Index{ID: c.ID, Parent: c.Delivery}
})

// Trouble is why a delivery does not come on.
type Trouble struct {
	Code    condition.Code `json:"code"`
	Message string         `json:"message"`
	Since   time.Time      `json:"since"`
}

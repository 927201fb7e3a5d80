package incus

import (
	"context"
	"errors"
	"net/url"

	"github.com/openpcs/openpcs/internal/compute"
)

// Inspection is what a person wants to know of an Incus.
type Inspection struct {
	Version string
	Socket  string
	Pool    *PoolSpace // nil as long as Setup has not made it
}

// PoolSpace is the storage pool's kind and room.
type PoolSpace struct {
	Name, Driver, Status string
	UsedMiB, TotalMiB    int
}

// Inspect looks at Incus without changing anything.
func (p *Provider) Inspect(ctx context.Context) (Inspection, error) {
	i := Inspection{Socket: p.opts.Socket}
	s, err := p.api.server(ctx)
	if err != nil {
		return i, err
	}
	i.Version = s.Environment.ServerVersion
	var pool thing
	switch err := p.api.get(ctx, poolPath(p.opts.Pool), inDefault, &pool); {
	case errors.Is(err, compute.ErrNotFound):
		return i, nil
	case err != nil:
		return i, err
	}
	var resources struct {
		Space struct {
			Used  int `json:"used"`
			Total int `json:"total"`
		} `json:"space"`
	}
	if err := p.api.get(ctx, poolPath(p.opts.Pool)+"/resources", url.Values{}, &resources); err != nil {
		return i, err
	}
	const mib = 1 << 20
	i.Pool = &PoolSpace{
		Name: p.opts.Pool, Driver: pool.Driver, Status: pool.Status,
		UsedMiB: resources.Space.Used / mib, TotalMiB: resources.Space.Total / mib,
	}
	return i, nil
}

package app

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/openpcs/openpcs/internal/delivery"
	"github.com/openpcs/openpcs/internal/logs"
	"github.com/openpcs/openpcs/internal/store"
)

// DeliveryOptions say how the logs of clusters are delivered.
type DeliveryOptions struct {
	// Interval is between two objects in S3.
	Interval time.Duration
	// Keep is how long a record is tried that cannot be delivered.
	Keep time.Duration
	// The addresses of CloudWatch Logs and Firehose elsewhere, and the files with
	// their keys; empty: log groups are those of openpcs, and there is no Firehose.
	LogsEndpoint, LogsCredentials         string
	FirehoseEndpoint, FirehoseCredentials string
}

// deliveryFromEnvironment reads the options by the rest of their variables' names.
func deliveryFromEnvironment(get func(name, byDefault string) string) (o DeliveryOptions, err error) {
	o = DeliveryOptions{
		LogsEndpoint: get("LOGS_ENDPOINT", ""), LogsCredentials: get("LOGS_CREDENTIALS", ""),
		FirehoseEndpoint: get("FIREHOSE_ENDPOINT", ""), FirehoseCredentials: get("FIREHOSE_CREDENTIALS", ""),
	}
	interval := get("DELIVERY_INTERVAL", "5m")
	if o.Interval, err = time.ParseDuration(interval); err != nil || o.Interval < time.Second || o.Interval > time.Hour {
		return o, fmt.Errorf("OPENPCS_DELIVERY_INTERVAL: %q is not 1s to 1h", interval)
	}
	if o.Keep, err = parseAge(get("DELIVERY_KEEP", "24h")); err != nil {
		return o, fmt.Errorf("OPENPCS_DELIVERY_KEEP: %w", err)
	}
	for name, v := range map[string][2]string{"LOGS": {o.LogsEndpoint, o.LogsCredentials}, "FIREHOSE": {o.FirehoseEndpoint, o.FirehoseCredentials}} {
		switch {
		case v[0] == "" && v[1] != "":
			return o, fmt.Errorf("OPENPCS_%s_CREDENTIALS: it is about OPENPCS_%s_ENDPOINT, which is not set", name, name)
		case v[0] != "" && !filepath.IsAbs(v[1]):
			return o, fmt.Errorf("OPENPCS_%s_ENDPOINT: OPENPCS_%s_CREDENTIALS, %q, is not the absolute path of a file with its keys", name, name, v[1])
		}
	}
	return o, nil
}

// reach is how what is delivered gets where it is to go.
func (a *App) reach() (*delivery.Destinations, error) {
	o := a.opts.Delivery
	endpoint := func(address, credentials, variable string) (*delivery.Endpoint, error) {
		if address == "" {
			return nil, nil
		}
		e, err := delivery.NewEndpoint(address, credentials)
		if err != nil {
			return nil, fmt.Errorf("use %s: %w", variable, err)
		}
		return e, nil
	}
	groups, err := endpoint(o.LogsEndpoint, o.LogsCredentials, "OPENPCS_LOGS_ENDPOINT")
	hoses, err2 := endpoint(o.FirehoseEndpoint, o.FirehoseCredentials, "OPENPCS_FIREHOSE_ENDPOINT")
	return &delivery.Destinations{Account: a.opts.Account, Buckets: a.objects, Groups: a.cloudwatch, Logs: groups, Firehose: hoses}, errors.Join(err, err2)
}

// deliver runs the deliveries of logs until Stop.
func (a *App) deliver() (err error) {
	if a.sinks, err = a.reach(); err != nil {
		return err
	}
	feeds := &delivery.Feeds{Store: a.store, Journals: a.collector.Journals}
	a.deliveries = delivery.Start(delivery.Options{
		Store: a.store, Feeds: feeds.Of, Destinations: a.sinks,
		Links:    func(tx *store.Tx) ([]delivery.Link, error) { return delivery.Links(tx, a.opts.Account) },
		Interval: a.opts.Delivery.Interval, Keep: a.opts.Delivery.Keep,
		Dir: filepath.Join(a.opts.StateDir, "deliveries"), Logger: a.opts.Log,
	})
	a.later(a.deliveries.Stop)
	return nil
}

// probe finds out for create-delivery whether a destination can be written to.
func (a *App) probe(ctx context.Context, l logs.Link) error { return a.sinks.Probe(ctx, l) }

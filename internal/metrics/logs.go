package metrics

// Delivery is what is told of a delivery of one log of a cluster.
type Delivery struct {
	Cluster, ID, LogType, LogName string
	Destination                   string // S3, CWL or FH

	LagSeconds float64 // age of the oldest record that is not delivered
	Lag        int64   // records
	// Records since the delivery exists: delivered, lost because it was too far
	// behind, and never taken by the destination.
	Delivered, Dropped, Refused int64
	Retries                     int64 // tries that failed, since the start
	Failing                     bool  // the last try failed
}

// Delivery tells of one.
func (s *Scrape) Delivery(d Delivery) {
	for m, v := range map[*Metric]float64{
		DeliveryLagSeconds: d.LagSeconds, DeliveryLag: float64(d.Lag), Delivered: float64(d.Delivered), Dropped: float64(d.Dropped),
		Refused: float64(d.Refused), DeliveryRetries: float64(d.Retries), DeliveryFailing: truth(d.Failing),
	} {
		s.Set(m, v, d.Cluster, d.ID, d.LogType, d.LogName, d.Destination)
	}
}

// Journal tells of a log of a cluster: its first record that is kept, and its
// last, both counted from 1.
func (s *Scrape) Journal(cluster, logType, logName string, first, last int64) {
	s.Set(JournalRecords, float64(last), cluster, logType, logName)
	s.Set(JournalKept, float64(max(0, last-first+1)), cluster, logType, logName)
}

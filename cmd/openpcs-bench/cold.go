package main

import (
	"context"
	"fmt"
	"math"
	"os"
	"strings"
)

// coldReport is bench/cold-start.json. All times are milliseconds.
type coldReport struct {
	Runs int `json:"runs"`
	// Srun is from the call of srun on an empty cluster to its end.
	Srun stats `json:"srun"`
	// Sbatch is from the call of sbatch on an empty cluster to the first
	// command of the job.
	Sbatch stats `json:"sbatch"`
	// Warm is srun on a node that is up.
	Warm stats `json:"warm"`
	// Stages are from submission to each stage of the cold sruns.
	Stages map[string]stats `json:"stages"`
	// Floor is a bare launch until slurmctld has the node's registration;
	// FloorLaunch is the launch call alone.
	Floor       stats   `json:"floor"`
	FloorLaunch stats   `json:"floorLaunch"`
	SrunToFloor float64 `json:"srunToFloor"` // ratio of the medians
	// Resumed is what the cold start costs after Slurm's own power-save loop,
	// which looks once a second, has asked for the node.
	Resumed stats                `json:"resumed"`
	Raw     map[string][]float64 `json:"raw"`
}

// coldStart measures jobs on an empty cluster, and what no control plane could
// be faster than.
func coldStart(ctx context.Context, b *bench) (err error) {
	runs := b.runs
	s, err := newSite(ctx, b.binary)
	if err != nil {
		return err
	}
	defer func() {
		if downErr := s.down(); err == nil {
			err = downErr
		}
	}()
	if err := s.up(); err != nil {
		return err
	}
	r := coldReport{Runs: runs, Stages: map[string]stats{}, Raw: map[string][]float64{}}
	for i := range runs {
		if err := s.cold(r.Raw); err != nil {
			return fmt.Errorf("cold srun %d: %w", i+1, err)
		}
		if err := s.warm(r.Raw); err != nil {
			return fmt.Errorf("warm srun %d: %w", i+1, err)
		}
		if err := s.batch(r.Raw); err != nil {
			return fmt.Errorf("cold sbatch %d: %w", i+1, err)
		}
		if err := s.floor(r.Raw); err != nil {
			return fmt.Errorf("bare launch %d: %w", i+1, err)
		}
		fmt.Fprintf(os.Stderr, "%2d/%d  srun %4.0f ms  sbatch %4.0f ms  warm %4.0f ms  bare launch %4.0f ms\n", i+1, runs,
			last(r.Raw["srun"]), last(r.Raw["sbatch"]), last(r.Raw["warm"]), last(r.Raw["floor"]))
	}
	r.Srun, r.Sbatch, r.Warm = summarize(r.Raw["srun"]), summarize(r.Raw["sbatch"]), summarize(r.Raw["warm"])
	r.Floor, r.FloorLaunch = summarize(r.Raw["floor"]), summarize(r.Raw["floorLaunch"])
	r.Resumed = summarize(r.Raw["resumed"])
	r.SrunToFloor = math.Round(100*r.Srun.Median/r.Floor.Median) / 100
	for name, ms := range r.Raw {
		if stage, ok := strings.CutPrefix(name, "stage/"); ok {
			r.Stages[stage] = summarize(ms)
		}
	}
	b.row("srun on an empty cluster, median", fmt.Sprintf("%.0f ms", r.Srun.Median), fmt.Sprintf("1.3 x bare = %.0f ms", 1.3*r.Floor.Median))
	b.row("sbatch on an empty cluster to running, median", fmt.Sprintf("%.0f ms", r.Sbatch.Median), "2000 ms")
	b.row("sbatch on an empty cluster to running, p99", fmt.Sprintf("%.0f ms", r.Sbatch.P99), "5000 ms")
	b.row("srun on a node that is up, median", fmt.Sprintf("%.0f ms", r.Warm.Median), "")
	b.row("bare launch and registration, median", fmt.Sprintf("%.0f ms", r.Floor.Median), "")
	return b.write("cold-start", r)
}

func last(ms []float64) float64 { return ms[len(ms)-1] }

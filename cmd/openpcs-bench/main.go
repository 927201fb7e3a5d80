// Command openpcs-bench measures a control plane of its own with real Slurm
// on real instances, and the raw floor in the same run: a bare launch and
// slurmd's registration with nothing of openpcs between. It writes JSON.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// stats sums up durations in milliseconds.
type stats struct {
	Median float64 `json:"median"`
	P99    float64 `json:"p99"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

func summarize(ms []float64) stats {
	s := slices.Sorted(slices.Values(ms))
	if len(s) == 0 {
		return stats{}
	}
	at := func(q float64) float64 { return s[min(len(s)-1, int(math.Ceil(q*float64(len(s))))-1)] }
	return stats{Median: at(0.5), P99: at(0.99), Min: s[0], Max: s[len(s)-1]}
}

// report is bench/cold-start.json. All times are milliseconds.
type report struct {
	Date    string `json:"date"`
	Machine struct {
		CPUs   int    `json:"cpus"`
		Kernel string `json:"kernel"`
	} `json:"machine"`
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

func main() {
	runs := flag.Int("runs", 20, "how often to measure each")
	binary := flag.String("openpcs", "bin/openpcs", "the binary to measure")
	out := flag.String("out", "bench/cold-start.json", "where to write the figures")
	flag.Parse()
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	if err := run(ctx, *binary, *out, *runs); err != nil {
		fmt.Fprintln(os.Stderr, "openpcs-bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, binary, out string, runs int) (err error) {
	s, err := newSite(ctx, binary)
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
	r := report{Date: time.Now().UTC().Format(time.RFC3339), Runs: runs, Stages: map[string]stats{}, Raw: map[string][]float64{}}
	r.Machine.CPUs = runtime.NumCPU()
	kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	r.Machine.Kernel = strings.TrimSpace(string(kernel))
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
	doc, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return err
	}
	fmt.Printf("srun on an empty cluster: median %.0f ms, p99 %.0f ms; sbatch to running: median %.0f ms; warm: %.0f ms; bare launch and registration: %.0f ms\n",
		r.Srun.Median, r.Srun.P99, r.Sbatch.Median, r.Warm.Median, r.Floor.Median)
	return os.WriteFile(out, append(doc, '\n'), 0o644)
}

func last(ms []float64) float64 { return ms[len(ms)-1] }

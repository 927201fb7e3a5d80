// Command openpcs-bench measures openpcs: control planes of its own with real
// Slurm on real instances, the raw floor in the same run (bare launches and
// slurmd's registration with nothing of openpcs between), and a crowd of
// thousands of nodes on the fake provider. It writes JSON, a file for each
// topic, and prints a table.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
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

// bench is one run over some topics.
type bench struct {
	machine machine // as it was before the topic
	binary  string
	out     string
	runs    int
	rows    [][3]string
}

// topic is a part that can be measured alone.
type topic struct {
	name string
	f    func(context.Context, *bench) error
}

// topics in the order in which they are measured.
var topics = []topic{
	{"planning", planning},
	{"api", crowdTopic},
	{"logs", logsTopic},
	{"fifty", fifty},
	{"cold-start", coldStart},
}

// row adds a line to the table.
func (b *bench) row(what, figure, budget string) {
	b.rows = append(b.rows, [3]string{what, figure, budget})
	fmt.Fprintf(os.Stderr, "    %s: %s\n", what, figure)
}

// machine is what figures depend on.
type machine struct {
	CPUs   int    `json:"cpus"`
	Model  string `json:"model"`
	Memory int    `json:"memoryMiB"`
	Kernel string `json:"kernel"`
	// Load is the load average over a minute, so that what else ran shows.
	Load float64 `json:"load"`
}

func thisMachine() machine {
	m := machine{CPUs: runtime.NumCPU()}
	kernel, _ := os.ReadFile("/proc/sys/kernel/osrelease")
	m.Kernel, _, _ = strings.Cut(strings.TrimSpace(string(kernel)), "-") // what follows can name a site
	cpu, _ := os.ReadFile("/proc/cpuinfo")
	if _, rest, ok := strings.Cut(string(cpu), "model name"); ok {
		line, _, _ := strings.Cut(rest, "\n")
		m.Model = strings.TrimSpace(strings.TrimLeft(line, "\t: "))
	}
	load, _ := os.ReadFile("/proc/loadavg")
	_, _ = fmt.Sscan(string(load), &m.Load)
	var info syscall.Sysinfo_t
	if syscall.Sysinfo(&info) == nil {
		m.Memory = int(uint64(info.Totalram) * uint64(info.Unit) >> 20)
	}
	return m
}

// write keeps the figures of a topic, with when and where they were taken.
func (b *bench) write(topic string, figures any) error {
	doc, err := json.Marshal(figures)
	if err != nil {
		return err
	}
	all := map[string]any{}
	if err := json.Unmarshal(doc, &all); err != nil {
		return err
	}
	maps.Copy(all, map[string]any{"date": time.Now().UTC().Format(time.RFC3339), "machine": b.machine})
	if doc, err = json.MarshalIndent(all, "", "  "); err != nil {
		return err
	}
	if err := os.MkdirAll(b.out, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(b.out, topic+".json"), append(doc, '\n'), 0o644)
}

func main() {
	var b bench
	flag.IntVar(&b.runs, "runs", 20, "how often to measure each cold start")
	flag.StringVar(&b.binary, "openpcs", "bin/openpcs", "the binary to measure")
	flag.StringVar(&b.out, "out", "bench", "folder for the figures")
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "usage: openpcs-bench [flags] [planning] [api] [logs] [fifty] [cold-start]")
		flag.PrintDefaults()
	}
	flag.Parse()
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	if flag.Arg(0) == crowdCommand { // a process of its own, so that its memory can be measured
		exitOn(serveCrowd(ctx, flag.Args()[1:]))
		return
	}
	if flag.Arg(0) == pipeCommand {
		exitOn(runPipe(ctx, flag.Args()[1:]))
		return
	}
	for _, name := range flag.Args() {
		if !slices.ContainsFunc(topics, func(t topic) bool { return t.name == name }) {
			flag.Usage()
			os.Exit(2)
		}
	}
	for _, t := range topics {
		if flag.NArg() > 0 && !slices.Contains(flag.Args(), t.name) {
			continue
		}
		fmt.Fprintln(os.Stderr, "==>", t.name)
		b.machine = thisMachine()
		if err := t.f(ctx, &b); err != nil {
			exitOn(fmt.Errorf("measure %s: %w", t.name, err))
		}
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "WHAT\tMEASURED\tBUDGET")
	for _, r := range b.rows {
		fmt.Fprintln(w, strings.Join(r[:], "\t"))
	}
	exitOn(w.Flush())
}

func exitOn(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "openpcs-bench:", err)
		os.Exit(1)
	}
}

package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
)

// pass is one line of the Go benchmarks of a cluster's loop.
type pass struct {
	WallMS float64 `json:"wallMs"`
	CPUMS  float64 `json:"cpuMs,omitempty"`
	Bytes  float64 `json:"bytes"`
	Allocs float64 `json:"allocs"`
}

var benchLine = regexp.MustCompile(`^Benchmark(Pass|Plan)/nodes=(\d+)(?:-\d+)?\s+\d+\s+(.*)$`)

// planning measures a look of a cluster's loop when nothing is to be done:
// all of it, with what it reads from the state file, and the decision alone.
func planning(ctx context.Context, b *bench) error {
	out, err := exec.CommandContext(ctx, "go", "test", "-run", "^$", "-bench", "^Benchmark(Pass|Plan)$", "-benchmem", "-benchtime", "2s", "./internal/control").CombinedOutput()
	if err != nil {
		return fmt.Errorf("run the benchmarks of internal/control: %w: %s", err, out)
	}
	figures := map[string]map[string]pass{"pass": {}, "plan": {}}
	lines := bufio.NewScanner(bytes.NewReader(out))
	for lines.Scan() {
		m := benchLine.FindStringSubmatch(lines.Text())
		if m == nil {
			continue
		}
		var p pass
		fields := strings.Fields(m[3])
		for n := 0; n+1 < len(fields); n += 2 {
			v, err := strconv.ParseFloat(fields[n], 64)
			if err != nil {
				return fmt.Errorf("read %q: %w", lines.Text(), err)
			}
			switch fields[n+1] {
			case "ns/op":
				p.WallMS = v / 1e6
			case "cpu-ms/op":
				p.CPUMS = v
			case "B/op":
				p.Bytes = v
			case "allocs/op":
				p.Allocs = v
			}
		}
		figures[strings.ToLower(m[1])][m[2]] = p
	}
	for _, nodes := range []string{"2048", "10000"} {
		p, ok := figures["pass"][nodes]
		if !ok {
			return fmt.Errorf("find the pass over %s nodes in: %s", nodes, out)
		}
		budget := map[string]string{"2048": "50 ms"}[nodes]
		b.row("planning pass, "+nodes+" nodes, CPU", fmt.Sprintf("%.1f ms", p.CPUMS), budget)
		b.row("of which the decision, "+nodes+" nodes", fmt.Sprintf("%.1f ms", figures["plan"][nodes].WallMS), "")
	}
	return b.write("planning", figures)
}

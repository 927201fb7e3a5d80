// Command openpcs is the control plane, its command line, and the agent that
// runs inside instances: one binary for all three.
package main

import (
	"os"

	"github.com/openpcs/openpcs/internal/agent"
	"github.com/openpcs/openpcs/internal/cli"
)

// version is set by the build.
var version = "dev"

func main() {
	// slurmctld waits for hooks, so they skip the command line's set-up.
	if len(os.Args) > 1 && os.Args[1] == "hook" {
		os.Exit(agent.Hook(os.Args[2:]))
	}
	os.Exit(cli.Main(version))
}

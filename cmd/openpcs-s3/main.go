// Command openpcs-s3 is the storage of the service s3, which openpcs serve
// starts when S3 is first used. It is a program of its own because the library
// that it is made of would triple the time in which openpcs starts, and Slurm
// starts openpcs for every hook. People never call it.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/openpcs/openpcs/internal/s3/gateway"
)

func main() {
	if err := gateway.Run(context.Background(), os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

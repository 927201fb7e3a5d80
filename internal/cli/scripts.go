package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/openpcs/openpcs/internal/library"
)

// scriptRow is one script of the library for people.
type scriptRow struct {
	Name     string `json:"name"`
	ID       string `json:"id"`
	Status   string `json:"status"`
	Version  string `json:"version"`
	For      string `json:"for"`
	Location string `json:"location"`
	SHA256   string `json:"sha256"`
}

func (s *shell) scriptsCommand() *cobra.Command {
	c := &cobra.Command{Use: "scripts", Short: "The scripts that come with openpcs for node lifecycle actions"}
	parent(c)
	c.AddCommand(
		&cobra.Command{
			Use: "list", Short: "List the scripts: what for, where from, and their checksums", Args: cobra.NoArgs,
			Long: "List the scripts of the library. A node lifecycle action names one by its location (scriptLocation), and may\n" +
				"name its checksum too. In each region they are in the bucket aws-pcs-repo-<region>.",
			RunE: func(*cobra.Command, []string) error {
				o, err := options()
				if err != nil {
					return err
				}
				var rows []scriptRow
				for _, script := range library.Scripts() {
					rows = append(rows, scriptRow{
						Name: script.Name, ID: script.Name + "-v" + script.Version, Status: "available", Version: script.Version, For: script.For,
						Location: "s3://aws-pcs-repo-" + o.Region + "/" + script.Key, SHA256: script.SHA256,
					})
				}
				return print(s, rows, "NAME\tVERSION\tFOR\tLOCATION\tSHA-256", func(r scriptRow) string {
					return fmt.Sprintf("%s\t%s\t%s\t%s\t%s", r.Name, r.Version, r.For, r.Location, r.SHA256)
				})
			},
		},
		&cobra.Command{
			Use: "show NAME", Short: "Print a script", Args: cobra.ExactArgs(1),
			RunE: func(_ *cobra.Command, args []string) error {
				for _, script := range library.Scripts() {
					if f, ok := library.Find(script.Key); ok && script.Name == args[0] {
						_, err := s.out.Write(f.Body)
						return err
					}
				}
				return usageError{fmt.Errorf("there is no script %q: openpcs scripts list shows all", args[0])}
			},
		},
	)
	return c
}

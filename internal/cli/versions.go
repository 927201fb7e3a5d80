package cli

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/openpcs/openpcs/internal/image"
)

// versionRow is one release of Slurm for people.
type versionRow struct {
	Name      string `json:"name"`
	ID        string `json:"id"`
	Status    string `json:"status"` // supported, or end-of-life
	Released  string `json:"schedMDReleaseDate"`
	Available string `json:"pcsReleaseDate"`
	EndOfLife string `json:"pcsEndOfLifeDate"`
	Image     string `json:"image"` // built, buildable, or none
	Suite     string `json:"suite,omitempty"`
}

func (s *shell) versionsCommand() *cobra.Command {
	return &cobra.Command{
		Use: "versions", Short: "List the releases of Slurm, their dates and what can be built here", Args: cobra.NoArgs,
		Long: "List the releases of Slurm that the AWS PCS API knows: when SchedMD released them, when AWS PCS began to offer\n" +
			"them and when its support ends. IMAGE says whether this machine has an image of it, or could build one.\n" +
			"Releases beyond their end of life can be used here like the others.",
		RunE: func(*cobra.Command, []string) error {
			built, err := image.List("")
			if err != nil {
				return err
			}
			return print(s, versionRows(image.Catalogue(), built, time.Now()),
				"SLURM VERSION\tSCHEDMD RELEASE\tAWS PCS RELEASE\tAWS PCS EOL\tSTATUS\tIMAGE", func(r versionRow) string {
					return fmt.Sprintf("%s\t%s\t%s\t%s\t%s\t%s", r.Name, r.Released, r.Available, r.EndOfLife, r.Status, imageText(r))
				})
		},
	}
}

func imageText(r versionRow) string {
	switch r.Image {
	case "none":
		return "no package source"
	case "built":
		return "built from Debian " + r.Suite
	default:
		return "openpcs image build " + r.Name
	}
}

// versionRows are the releases of the catalogue, the newest first.
func versionRows(catalogue []image.Version, built []image.Built, now time.Time) []versionRow {
	var rows []versionRow
	for _, v := range catalogue {
		r := versionRow{
			Name: v.Slurm, ID: v.Slurm, Status: "supported", Image: "none", Suite: v.Suite,
			Released: date(v.Released), Available: date(v.Available), EndOfLife: date(v.EndOfLife),
		}
		if !v.Supported(now) {
			r.Status = "end-of-life"
		}
		if v.Buildable() {
			r.Image = "buildable"
		}
		if slices.ContainsFunc(built, func(b image.Built) bool { return b.Version == v.Slurm }) {
			r.Image = "built"
		}
		rows = append(rows, r)
	}
	slices.SortFunc(rows, func(a, b versionRow) int { return cmp.Compare(b.Name, a.Name) })
	return rows
}

func date(t time.Time) string { return t.Format(time.DateOnly) }

// Package image is the catalogue of the images that openpcs offers and the
// builder that makes them: a Debian root file system with Slurm and the
// openpcs agent in it, in the two files that an Incus image consists of.
// It must not talk to Incus; importing is the compute provider's work.
package image

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Generic is the version name of the image that carries neither Slurm nor the
// agent: an ordinary cloud image, with cloud-init.
const Generic = "generic"

// Version is a row of the catalogue: one release of Slurm and where its
// packages come from.
type Version struct {
	// Slurm is the release as the PCS API writes it, for example "26.05".
	Slurm string
	// Suite is the Debian suite that carries this release, empty where no
	// package source is known: such a version is listed but not built.
	Suite string
	// Released is the day SchedMD released it.
	Released time.Time
	// Available is the day AWS PCS began to offer it.
	Available time.Time
	// EndOfLife is the day its support in AWS PCS ends.
	EndOfLife time.Time
	// Default says that a plain set-up builds it.
	Default bool
}

// Buildable tells whether an image of this version can be built here.
func (v Version) Buildable() bool { return v.Suite != "" }

// Supported tells whether the version is within its life at the given time.
func (v Version) Supported(now time.Time) bool {
	return !now.Before(v.Released) && now.Before(v.EndOfLife.AddDate(0, 0, 1))
}

var catalogue = []Version{
	{Slurm: "26.05", Suite: "forky", Released: day(2026, 5, 26), Available: day(2026, 9, 10), EndOfLife: day(2027, 11, 30), Default: true},
	{Slurm: "25.11", Released: day(2025, 11, 6), Available: day(2026, 4, 9), EndOfLife: day(2027, 5, 31)},
	{Slurm: "25.05", Released: day(2025, 5, 29), Available: day(2025, 10, 16), EndOfLife: day(2026, 11, 30)},
	{Slurm: "24.11", Suite: "trixie", Released: day(2024, 11, 29), Available: day(2025, 5, 14), EndOfLife: day(2026, 5, 31)},
}

func day(year int, month time.Month, d int) time.Time {
	return time.Date(year, month, d, 0, 0, 0, 0, time.UTC)
}

// Catalogue returns all known versions, the newest first.
func Catalogue() []Version { return slices.Clone(catalogue) }

// Lookup finds the row of a Slurm version.
func Lookup(slurm string) (Version, bool) {
	i := slices.IndexFunc(catalogue, func(v Version) bool { return v.Slurm == slurm })
	if i < 0 {
		return Version{}, false
	}
	return catalogue[i], true
}

// recipe is what an image is made of.
type recipe struct {
	version  string // "26.05" or Generic
	suite    string
	packages []string
	layers   []string // folders of the overlay
	slurm    bool
}

// genericSuite is the Debian suite of the generic image.
const genericSuite = "trixie"

// commonPackages are in every image.
var commonPackages = []string{
	"ca-certificates", "curl", "dbus", "hostname", "iproute2", "iputils-ping", "jq", "less", "passwd",
	"procps", "sudo", "systemd", "systemd-sysv", "udev",
}

// slurmPackages make an image of a cluster; sackd and the JWT plugin are
// packages of their own, the JSON and YAML serializers are not.
var slurmPackages = []string{
	"openssh-client", "sackd", "slurm-client", "slurm-wlm-jwt-plugin",
	"slurmctld", "slurmd", "slurmdbd", "slurmrestd",
}

// databasePackages are what slurmdbd keeps its records with: the server and
// the client without Debian's set-up around them, a third of its size. Our own
// unit runs it where accounting is on.
var databasePackages = []string{"mariadb-client-core", "mariadb-server-core"}

// genericPackages make an ordinary cloud image.
var genericPackages = []string{"cloud-init", "dhcpcd-base"}

func recipeFor(version string) (recipe, error) {
	if version == Generic {
		return recipe{
			version: Generic, suite: genericSuite,
			packages: sorted(commonPackages, genericPackages),
			layers:   []string{"common", "generic"},
		}, nil
	}
	v, ok := Lookup(version)
	if !ok {
		var known []string
		for _, v := range catalogue {
			known = append(known, v.Slurm)
		}
		return recipe{}, fmt.Errorf("find image version %q: not one of %s, %s", version, strings.Join(known, ", "), Generic)
	}
	if !v.Buildable() {
		return recipe{}, fmt.Errorf("find image version %q: no Debian suite carries Slurm %s, so no image of it can be built", version, version)
	}
	return recipe{
		version: version, suite: v.Suite, slurm: true,
		packages: sorted(commonPackages, slurmPackages, databasePackages),
		layers:   []string{"common", "slurm"},
	}, nil
}

func sorted(lists ...[]string) []string {
	all := slices.Concat(lists...)
	slices.Sort(all)
	return slices.Compact(all)
}

// product is the image's name without its date.
func (r recipe) product(arch string) string {
	if !r.slurm {
		return "debian-generic-" + arch
	}
	return "aws-pcs-sample_ami-debian-" + arch + "-slurm-" + r.version
}

package image

import (
	"archive/tar"
	"bytes"
	"embed"
	"encoding/json"
	"fmt"
	"time"
)

//go:embed templates
var templateFS embed.FS

// templates says which files Incus writes into an instance at each start, so
// that a launch pushes none. The templates read the instance's configuration:
//
//	user.openpcs.hostname   host name, fully qualified or not
//	user.openpcs.address    IPv4 address with prefix length; DHCP if empty
//	user.openpcs.gateway    default route and name server
//	user.openpcs.domain     search domain
//	user.openpcs.role       node (default) or controller
var templates = []struct{ path, file string }{
	{"/etc/openpcs/address", "address.tpl"},
	{"/etc/hostname", "hostname.tpl"},
	{"/etc/hosts", "hosts.tpl"},
	{"/etc/openpcs/role", "role.tpl"},
	{"/etc/resolv.conf", "resolv.tpl"},
	{"/etc/systemd/network/10-eth0.network", "network.tpl"},
}

// metadata is an Incus metadata.yaml. JSON is YAML too, and needs no library.
type metadata struct {
	Architecture string              `json:"architecture"`
	CreationDate int64               `json:"creation_date"`
	Properties   map[string]string   `json:"properties"`
	Templates    map[string]template `json:"templates"`
}

type template struct {
	When     []string `json:"when"`
	Template string   `json:"template"`
}

// metadataTar makes the metadata half of an Incus image.
func metadataTar(r recipe, b Built) ([]byte, error) {
	m := metadata{
		Architecture: incusArchitecture(b.Architecture),
		CreationDate: b.CreatedAt.Unix(),
		Properties: map[string]string{
			"os":           "Debian",
			"release":      r.suite,
			"architecture": b.Architecture,
			"serial":       b.CreatedAt.UTC().Format("20060102_15:04"),
			"description":  b.Name,
			"openpcs.key":  b.Key,
		},
		Templates: make(map[string]template),
	}
	if b.SlurmVersion != "" {
		m.Properties["openpcs.slurm"] = b.SlurmVersion
	}
	for _, t := range templates {
		m.Templates[t.path] = template{When: []string{"start"}, Template: t.file}
	}
	doc, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("write image metadata: %w", err)
	}

	var out bytes.Buffer
	tw := tar.NewWriter(&out)
	add := func(name string, data []byte) error {
		err := tw.WriteHeader(&tar.Header{
			Name: name, Mode: 0o644, Size: int64(len(data)), ModTime: b.CreatedAt.Truncate(time.Second), Format: tar.FormatUSTAR,
		})
		if err != nil {
			return err
		}
		_, err = tw.Write(data)
		return err
	}
	if err := add("metadata.yaml", append(doc, '\n')); err != nil {
		return nil, fmt.Errorf("write image metadata: %w", err)
	}
	for _, t := range templates {
		text, err := templateFS.ReadFile("templates/" + t.file)
		if err != nil {
			return nil, fmt.Errorf("read template: %w", err)
		}
		if err := add("templates/"+t.file, text); err != nil {
			return nil, fmt.Errorf("write image metadata: %w", err)
		}
	}
	if err := tw.Close(); err != nil {
		return nil, fmt.Errorf("write image metadata: %w", err)
	}
	return out.Bytes(), nil
}

// incusArchitecture translates EC2's name of an architecture.
func incusArchitecture(arch string) string {
	if arch == "arm64" {
		return "aarch64"
	}
	return arch
}

//go:build e2e

package e2e

import "strings"

// The content types of user data that PCS runs.
const (
	boothook    = "text/cloud-boothook"
	shellscript = "text/x-shellscript"
	cloudconfig = "text/cloud-config"
)

// mime writes user data as the PCS guide shows it, of content types and
// bodies in turn.
func mime(parts ...string) string {
	var b strings.Builder
	b.WriteString("MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=\"==MYBOUNDARY==\"\n\n")
	for i := 0; i < len(parts); i += 2 {
		b.WriteString("--==MYBOUNDARY==\nContent-Type: " + parts[i] + "; charset=\"us-ascii\"\n\n" + parts[i+1] + "\n")
	}
	return b.String() + "--==MYBOUNDARY==--\n"
}

package app

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// A certificate of our own is good for two years, and made anew at a start in
// its last three months. One that is in use stays longer, as clients elsewhere
// must be given the new one.
const (
	certLife     = 2 * 365 * 24 * time.Hour
	certRenew    = 90 * 24 * time.Hour
	certRenewNow = 30 * 24 * time.Hour
	// certRetry is when it is tried again after it went wrong.
	certRetry = time.Hour
)

// secured is how the API on the host is served.
type secured struct {
	config *tls.Config // nil: plain HTTP
	// bundle is the file of certificates that clients must trust; empty: those
	// that the system trusts are enough.
	bundle string
}

// url is where clients reach the API.
func (s secured) url(listen string) string {
	if s.config == nil {
		return "http://" + listen
	}
	return "https://" + listen
}

// secure finds or makes the certificate that the options ask for.
func (o Options) secure(now time.Time) (secured, error) {
	switch {
	case o.TLSAuto:
		cert, bundle, err := o.ownCertificate(now)
		if err != nil {
			return secured{}, fmt.Errorf("make a certificate: %w", err)
		}
		return secured{serverConfig((&ownRenewal{opts: o, cert: cert}).current), bundle}, nil
	case o.TLSCert != "":
		f := &certFiles{opts: o}
		cert, err := f.load()
		if err != nil {
			return secured{}, fmt.Errorf("read the certificate of OPENPCS_TLS_CERT and OPENPCS_TLS_KEY: %w", err)
		}
		s := secured{config: serverConfig(f.current)}
		if !trusted(cert) {
			s.bundle = o.TLSCert
		}
		return s, nil
	default:
		return secured{}, nil
	}
}

// serverConfig has the certificate asked for at each handshake.
func serverConfig(current func() *tls.Certificate) *tls.Config {
	return &tls.Config{
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return current(), nil },
		MinVersion:     tls.VersionTLS12,
	}
}

// trusted reports whether the system's own certificates vouch for it.
func trusted(cert tls.Certificate) bool {
	between := x509.NewCertPool()
	for _, der := range cert.Certificate[1:] {
		if c, err := x509.ParseCertificate(der); err == nil {
			between.AddCert(c)
		}
	}
	_, err := cert.Leaf.Verify(x509.VerifyOptions{Intermediates: between})
	return err == nil
}

// ownCertificate returns the certificate kept in the state folder, and makes
// one where there is none that will do.
func (o Options) ownCertificate(now time.Time) (cert tls.Certificate, bundle string, err error) {
	dir := filepath.Join(o.StateDir, "tls")
	certFile, keyFile, bundle := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"), filepath.Join(dir, "ca.pem")
	names := o.certNames()
	cert, err = tls.LoadX509KeyPair(certFile, keyFile)
	if err == nil && suits(cert, bundle, names, now) {
		return cert, bundle, nil
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) && o.Log != nil {
		o.Log.Warn("The certificate in the state folder is made anew", "why", err)
	}
	files, err := newCertificate(names, now)
	if err != nil {
		return cert, "", err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return cert, "", err
	}
	// The key last: a crash in between leaves a pair that does not fit, which
	// the next start replaces.
	for _, f := range []struct {
		path string
		text []byte
		mode os.FileMode
	}{{bundle, files.ca, 0o644}, {certFile, files.cert, 0o644}, {keyFile, files.key, 0o600}} {
		if err := writeAtomic(f.path, f.text, f.mode); err != nil {
			return cert, "", err
		}
	}
	cert, err = tls.X509KeyPair(files.cert, files.key)
	return cert, bundle, err
}

func writeAtomic(path string, text []byte, mode os.FileMode) error {
	fresh := path + ".new"
	_ = os.Remove(fresh)
	if err := os.WriteFile(fresh, text, mode); err != nil {
		return err
	}
	return os.Rename(fresh, path)
}

// certNames are the host names and addresses by which clients may reach the
// API.
func (o Options) certNames() []string {
	names := []string{"localhost", "127.0.0.1", "::1"}
	host, _, err := net.SplitHostPort(o.Listen)
	if err != nil {
		return names
	}
	if ip := net.ParseIP(host); host != "" && (ip == nil || !ip.IsUnspecified()) {
		if !slices.Contains(names, host) {
			names = append(names, host)
		}
		return names
	}
	// It listens everywhere.
	if name, err := os.Hostname(); err == nil {
		names = append(names, name)
	}
	addrs, _ := net.InterfaceAddrs()
	for _, a := range addrs {
		p, err := netip.ParsePrefix(a.String())
		if err == nil && p.Addr().IsGlobalUnicast() && !o.Subnet.Contains(p.Addr()) {
			names = append(names, p.Addr().String())
		}
	}
	return names
}

// suits reports whether a certificate will do: clients can check it, it is
// good for a while, and has all names.
func suits(cert tls.Certificate, bundle string, names []string, now time.Time) bool {
	text, err := os.ReadFile(bundle)
	roots := x509.NewCertPool()
	if err != nil || !roots.AppendCertsFromPEM(text) {
		return false
	}
	for _, name := range names {
		if _, err := cert.Leaf.Verify(x509.VerifyOptions{Roots: roots, DNSName: name, CurrentTime: now.Add(certRenew)}); err != nil {
			return false
		}
	}
	return true
}

type certificateFiles struct{ ca, cert, key []byte }

// newCertificate makes an authority, has it sign one certificate, and forgets
// the authority's key: whoever trusts it trusts that certificate and nothing
// else.
func newCertificate(names []string, now time.Time) (f certificateFiles, err error) {
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return f, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return f, err
	}
	serial := func() *big.Int {
		n, _ := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120)) // never fails (crypto/rand)
		return n.Add(n, big.NewInt(1))
	}
	ca := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: "openpcs on this machine"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(certLife), IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
		KeyUsage: x509.KeyUsageCertSign,
	}
	caDER, err := x509.CreateCertificate(rand.Reader, ca, ca, caKey.Public(), caKey)
	if err != nil {
		return f, err
	}
	if ca, err = x509.ParseCertificate(caDER); err != nil {
		return f, err
	}
	leaf := &x509.Certificate{
		SerialNumber: serial(), Subject: pkix.Name{CommonName: "openpcs"},
		NotBefore: ca.NotBefore, NotAfter: ca.NotAfter, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			leaf.IPAddresses = append(leaf.IPAddresses, ip)
		} else {
			leaf.DNSNames = append(leaf.DNSNames, name)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, leaf, ca, key.Public(), caKey)
	if err != nil {
		return f, err
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return f, err
	}
	block := func(kind string, der []byte) []byte {
		return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
	}
	return certificateFiles{block("CERTIFICATE", caDER), block("CERTIFICATE", der), block("PRIVATE KEY", keyDER)}, nil
}

// insecure says what is wrong with an address that others reach without TLS.
func (o Options) insecure(s secured) string {
	host, _, err := net.SplitHostPort(o.Listen)
	if err != nil || s.config != nil {
		return ""
	}
	if loopback(host) {
		return ""
	}
	return "The API is served without TLS on an address that other machines may reach: set OPENPCS_TLS=auto"
}

// loopback reports whether an address is of this machine alone.
func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || (ip != nil && ip.IsLoopback())
}

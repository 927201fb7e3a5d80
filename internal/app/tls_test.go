package app

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"
)

// ask calls a server of the certificate as a client that trusts the bundle
// alone.
func ask(t *testing.T, s secured, name string, now time.Time) error {
	t.Helper()
	l, err := tls.Listen("tcp", "127.0.0.1:0", s.config)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: http.NotFoundHandler(), ErrorLog: log.New(io.Discard, "", 0), ReadHeaderTimeout: time.Second}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
	roots := x509.NewCertPool()
	text, err := os.ReadFile(s.bundle)
	if err != nil || !roots.AppendCertsFromPEM(text) {
		t.Fatalf("the bundle %s: %v", s.bundle, err)
	}
	c, err := tls.Dial("tcp", l.Addr().String(), &tls.Config{RootCAs: roots, ServerName: name, Time: func() time.Time { return now }})
	if err == nil {
		_ = c.Close()
	}
	return err
}

// shown is the serial number of the certificate that a client gets now.
func shown(t *testing.T, s secured) string {
	t.Helper()
	cert, err := s.config.GetCertificate(nil)
	if err != nil {
		t.Fatal(err)
	}
	return cert.Leaf.SerialNumber.String()
}

func TestACertificateOfOurOwnIsRenewedInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := Options{StateDir: t.TempDir(), Listen: "127.0.0.1:7300", TLSAuto: true}
		s, err := o.secure(time.Now())
		if err != nil {
			t.Fatal(err)
		}
		first := shown(t, s)
		time.Sleep(certLife - certRenewNow - time.Minute) // of the bubble's clock
		if shown(t, s) != first {
			t.Error("with more than 30 days left another one is shown")
		}
		bundle := func() string {
			text, err := os.ReadFile(s.bundle)
			if err != nil {
				t.Error(err)
			}
			return string(text)
		}
		before := bundle()
		// At first it does not work out.
		dir := filepath.Join(o.StateDir, "tls")
		if err := errors.Join(os.Rename(dir, dir+".away"), os.WriteFile(dir, nil, 0o600)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute)
		if shown(t, s) != first {
			t.Error("one is shown that could not be kept")
		}
		if err := errors.Join(os.Remove(dir), os.Rename(dir+".away", dir)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(certRetry)
		second := shown(t, s)
		if second == first || bundle() == before {
			t.Error("with less than 30 days left the certificate stays")
		}
		if shown(t, s) != second {
			t.Error("it is made anew at each handshake")
		}
		again, err := o.secure(time.Now())
		if err != nil || shown(t, again) != second {
			t.Errorf("after a restart another one is shown (%v)", err)
		}
	})
}

func TestACertificateOfTheUserIsReadAnew(t *testing.T) {
	dir := t.TempDir()
	o := Options{StateDir: t.TempDir(), Listen: "127.0.0.1:0", TLSCert: filepath.Join(dir, "c"), TLSKey: filepath.Join(dir, "k")}
	age := time.Hour
	write := func(path string, text []byte) {
		t.Helper()
		age -= time.Minute // each file is newer than the ones before
		at := time.Now().Add(-age)
		if err := errors.Join(os.WriteFile(path, text, 0o600), os.Chtimes(path, at, at)); err != nil {
			t.Fatal(err)
		}
	}
	made := func() certificateFiles {
		t.Helper()
		files, err := newCertificate([]string{"localhost"}, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		return files
	}
	old, fresh := made(), made()
	write(o.TLSCert, append(old.cert, old.ca...))
	write(o.TLSKey, old.key)
	s, err := o.secure(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	first := shown(t, s)
	// The files come one by one, and there are clients in between.
	write(o.TLSCert, append(fresh.cert, fresh.ca...))
	if shown(t, s) != first {
		t.Error("with a new certificate and the old key the former pair is given up")
	}
	if err := os.Remove(o.TLSKey); err != nil {
		t.Fatal(err)
	}
	if shown(t, s) != first {
		t.Error("without a key the former pair is given up")
	}
	write(o.TLSKey, fresh.key)
	if shown(t, s) == first {
		t.Error("the new pair is not shown")
	}
	if err := ask(t, s, "localhost", time.Now()); err != nil { // the bundle is the new file
		t.Error(err)
	}
}

func TestACertificateOfOurOwn(t *testing.T) {
	o := Options{StateDir: t.TempDir(), Listen: "192.0.2.7:7300", TLSAuto: true}
	now := time.Now()
	s, err := o.secure(now)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"127.0.0.1", "localhost", "192.0.2.7"} {
		if err := ask(t, s, name, now); err != nil {
			t.Errorf("as %s: %v", name, err)
		}
	}
	if err := ask(t, s, "example.com", now); err == nil {
		t.Error("it passes for example.com")
	}
	if info, err := os.Stat(filepath.Join(o.StateDir, "tls", "key.pem")); err != nil || info.Mode() != 0o600 {
		t.Errorf("the key has the mode %v (%v)", info.Mode(), err)
	}
	serial := func(s secured) string { return shown(t, s) }
	again := func(o Options, now time.Time) string {
		t.Helper()
		s, err := o.secure(now)
		if err != nil {
			t.Fatal(err)
		}
		if err := ask(t, s, "localhost", now); err != nil {
			t.Error(err)
		}
		return serial(s)
	}
	first := serial(s)
	if again(o, now.Add(certLife-certRenew-2*time.Hour)) != first {
		t.Error("a certificate that is good for a while is made anew")
	}
	if again(o, now.Add(certLife-certRenew+time.Hour)) == first {
		t.Error("a certificate near its end stays")
	}
	second := again(o, now)
	o.Listen = "192.0.2.8:7300"
	third := again(o, now)
	if second == third {
		t.Error("a certificate without the new address stays")
	}
	for _, name := range []string{"key.pem", "cert.pem", "ca.pem"} {
		if err := os.WriteFile(filepath.Join(o.StateDir, "tls", name), []byte("damaged"), 0o600); err != nil {
			t.Fatal(err)
		}
		if fourth := again(o, now); fourth == third {
			t.Errorf("with %s damaged the certificate stays", name)
		}
	}
}

func TestACertificateOfTheUser(t *testing.T) {
	dir := t.TempDir()
	files, err := newCertificate([]string{"localhost"}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	o := Options{StateDir: t.TempDir(), Listen: "127.0.0.1:0", TLSCert: filepath.Join(dir, "c"), TLSKey: filepath.Join(dir, "k")}
	if _, err := o.secure(time.Now()); err == nil || !strings.Contains(err.Error(), "OPENPCS_TLS_CERT") {
		t.Errorf("without the files: %v", err)
	}
	for path, text := range map[string][]byte{o.TLSCert: append(files.cert, files.ca...), o.TLSKey: files.key} {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s, err := o.secure(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	// The system does not vouch for it, so clients must be told.
	if s.bundle != o.TLSCert {
		t.Errorf("the bundle is %q", s.bundle)
	}
	if err := ask(t, s, "localhost", time.Now()); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(o.StateDir, "tls")); err == nil {
		t.Error("a certificate was made all the same")
	}
}

func TestPlainHTTPBeyondThisMachineIsWarnedOf(t *testing.T) {
	for listen, warned := range map[string]bool{
		"127.0.0.1:7300": false, "127.0.0.9:7300": false, "[::1]:7300": false, "localhost:7300": false,
		"0.0.0.0:7300": true, ":7300": true, "192.0.2.1:7300": true, "[::]:7300": true, "host.example:7300": true,
	} {
		o := Options{Listen: listen}
		if got := o.insecure(secured{}) != ""; got != warned {
			t.Errorf("%s: warned %t", listen, got)
		}
		if o.insecure(secured{config: &tls.Config{}}) != "" {
			t.Errorf("%s with TLS is warned of", listen)
		}
	}
}

// What the metadata service answers gets no further than to a container on
// the instance.
func TestAnswersOfTheMetadataServiceDieOnTheWay(t *testing.T) {
	lc := net.ListenConfig{Control: onDevice("lo")}
	l, err := lc.Listen(context.Background(), "tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	go func() {
		if c, err := net.Dial("tcp4", l.Addr().String()); err == nil {
			defer func() { _ = c.Close() }()
			_, _ = c.Read(make([]byte, 1))
		}
	}()
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var ttl int
	if err := raw.Control(func(fd uintptr) { ttl, err = unix.GetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_TTL) }); err != nil || ttl != hopLimit {
		t.Errorf("the hop limit of an answer is %d (%v)", ttl, err)
	}
}

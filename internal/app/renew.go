package app

import (
	"crypto/tls"
	"os"
	"sync"
	"time"
)

// ownRenewal is a certificate of our own that is made anew in time.
type ownRenewal struct {
	opts Options

	mu    sync.Mutex
	cert  tls.Certificate
	tried time.Time
}

// current returns the certificate for a handshake.
func (r *ownRenewal) current() *tls.Certificate {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if r.cert.Leaf.NotAfter.Sub(now) < certRenewNow && now.Sub(r.tried) >= certRetry {
		r.tried = now
		fresh, bundle, err := r.opts.ownCertificate(now)
		if err != nil {
			r.opts.warn("The certificate could not be made anew", "until", r.cert.Leaf.NotAfter, "err", err)
		} else {
			r.opts.warn("The certificate is made anew: clients on other machines need the new bundle", "bundle", bundle)
			r.cert = fresh
		}
	}
	cert := r.cert
	return &cert
}

// certFiles is a certificate of the user, who renews it.
type certFiles struct {
	opts Options

	mu   sync.Mutex
	cert tls.Certificate
	seen [2]stamp // of the files of cert, or of those that were refused since
}

// stamp tells a file from the one that replaces it.
type stamp struct {
	modified time.Time
	size     int64
}

func (f *certFiles) stamps() (s [2]stamp) {
	for i, path := range []string{f.opts.TLSCert, f.opts.TLSKey} {
		// One that is missing is in the middle of being replaced.
		if info, err := os.Stat(path); err == nil {
			s[i] = stamp{info.ModTime(), info.Size()}
		}
	}
	return s
}

// load reads the files. Their times are taken first: what is written meanwhile
// is read at the next look.
func (f *certFiles) load() (tls.Certificate, error) {
	f.seen = f.stamps()
	cert, err := tls.LoadX509KeyPair(f.opts.TLSCert, f.opts.TLSKey)
	if err == nil {
		f.cert = cert
	}
	return cert, err
}

// current returns the certificate for a handshake: that of the files, or the
// last good one, as a certificate and its key are never replaced at once.
func (f *certFiles) current() *tls.Certificate {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stamps() != f.seen {
		if _, err := f.load(); err != nil {
			f.opts.warn("The new certificate cannot be used yet, the former one stays", "err", err)
		} else if f.opts.Log != nil {
			f.opts.Log.Info("The certificate was read anew", "until", f.cert.Leaf.NotAfter)
		}
	}
	cert := f.cert
	return &cert
}

func (o Options) warn(message string, attrs ...any) {
	if o.Log != nil {
		o.Log.Warn(message, attrs...)
	}
}

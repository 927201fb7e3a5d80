package incus

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/openpcs/openpcs/internal/compute"
)

// warmerPrefix begins the names of the short-lived instances that make Incus
// unpack an image; List and Watch do not show them.
const warmerPrefix = "openpcs-warm-"

func isWarmer(name string) bool { return strings.HasPrefix(name, warmerPrefix) }

func imagePath(ref string) string { return "/1.0/images/" + url.PathEscape(ref) }

// ImportImage implements compute.Provider. The reference is the fingerprint
// that Incus gives an image, which is a hash of its files: the same files are
// never imported twice. The image is also unpacked, so that the first launch
// is as fast as all others.
func (p *Provider) ImportImage(ctx context.Context, img compute.Image) (string, error) {
	ref, err := fingerprint(img.MetadataPath, img.RootfsPath)
	if err != nil {
		return "", fmt.Errorf("import image %s: %w", img.Name, err)
	}
	err = p.api.get(ctx, imagePath(ref), nil, nil)
	if err == nil {
		return ref, nil
	}
	if !errors.Is(err, compute.ErrNotFound) {
		return "", fmt.Errorf("import image %s: look for it: %w", img.Name, err)
	}
	err = p.upload(ctx, img, ref)
	// Someone else may have imported the same at the same time.
	if err != nil && !says(err, "same fingerprint already exists") {
		return "", fmt.Errorf("import image %s: %w", img.Name, asCapacity(err))
	}
	if err := p.warm(ctx, ref); err != nil {
		p.log.Warn("Leaving it to the first launch to unpack an image", "image", img.Name, "err", err)
	}
	return ref, nil
}

// fingerprint is the SHA-256 of the files' contents one after the other.
func fingerprint(paths ...string) (string, error) {
	h := sha256.New()
	for _, path := range paths {
		f, err := os.Open(path)
		if err != nil {
			return "", fmt.Errorf("read image: %w", err)
		}
		_, err = io.Copy(h, f)
		f.Close()
		if err != nil {
			return "", fmt.Errorf("read image: %w", err)
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// upload streams both files to Incus as they are read.
func (p *Provider) upload(ctx context.Context, img compute.Image, ref string) error {
	pr, pw := io.Pipe()
	form := multipart.NewWriter(pw)
	go func() {
		err := writePart(form, "metadata", img.MetadataPath)
		if err == nil {
			err = writePart(form, "rootfs", img.RootfsPath)
		}
		if err == nil {
			err = form.Close()
		}
		pw.CloseWithError(err)
	}()
	defer pr.Close() // ends the writer if the request ended early

	// No properties are sent along: Incus 6.0.4 dies of those when the
	// image's own metadata has none.
	env, err := p.api.roundTrip(ctx, http.MethodPost, "/1.0/images", nil, http.Header{
		"Content-Type":        {form.FormDataContentType()},
		"X-Incus-Fingerprint": {ref},
	}, pr)
	if err != nil {
		return err
	}
	if _, err = p.api.wait(ctx, env); err != nil {
		return err
	}
	// For people who look with "incus image list".
	return p.api.call(ctx, http.MethodPatch, imagePath(ref), nil,
		map[string]any{"properties": map[string]string{"description": img.Name}}, nil)
}

func writePart(form *multipart.Writer, field, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("read image: %w", err)
	}
	defer f.Close()
	part, err := form.CreateFormFile(field, filepath.Base(path))
	if err != nil {
		return err
	}
	_, err = io.Copy(part, f)
	return err
}

// warm makes Incus unpack the image into the storage pool.
func (p *Provider) warm(ctx context.Context, ref string) error {
	name := warmerPrefix + ref[:12]
	err := p.api.call(ctx, http.MethodPost, "/1.0/instances", nil, instancePost{
		Name:     name,
		Type:     "container",
		Profiles: []string{},
		Source:   instanceSource{Type: "image", Fingerprint: ref},
		Devices:  map[string]map[string]string{"root": {"type": "disk", "path": "/", "pool": p.opts.Pool}},
	}, nil)
	return errors.Join(err, p.terminate(context.WithoutCancel(ctx), name))
}

// DeleteImage implements compute.Provider.
func (p *Provider) DeleteImage(ctx context.Context, ref string) error {
	err := p.api.call(ctx, http.MethodDelete, imagePath(ref), nil, nil, nil)
	if err != nil && !errors.Is(err, compute.ErrNotFound) {
		return fmt.Errorf("delete image %s: %w", ref, err)
	}
	return nil
}

// removeWarmers deletes what a crash while importing may have left.
func (p *Provider) removeWarmers(ctx context.Context) error {
	all, err := p.list(ctx)
	if err != nil {
		return err
	}
	for _, i := range all {
		if !isWarmer(i.Name) {
			continue
		}
		if err := p.terminate(ctx, i.Name); err != nil {
			return err
		}
	}
	return nil
}

package gateway

import (
	"fmt"
	"os"

	"github.com/versity/versitygw/backend/meta"
)

// attributes keeps those of objects with their files, so that a file and what is
// known of it appear at once, and those of buckets in files of their own: a
// policy may have 20 KiB, and file systems such as ext4 take 4 KiB for all
// attributes of a file.
type attributes struct {
	meta.MetadataStorer // of objects
	buckets             meta.SideCar
}

func newAttributes(buckets, dir string) (attributes, error) {
	objects := meta.XattrMeta{}
	if err := objects.Test(buckets); err != nil {
		return attributes{}, fmt.Errorf("keep attributes of objects: the file system of %s has no extended attributes for users: choose another folder with OPENPCS_STATE: %w", buckets, err)
	}
	beside, err := meta.NewSideCar(dir)
	if err != nil {
		return attributes{}, fmt.Errorf("keep attributes of buckets: %w", err)
	}
	return attributes{objects, beside}, nil
}

func (a attributes) of(object string) meta.MetadataStorer {
	if object == "" {
		return a.buckets
	}
	return a.MetadataStorer
}

func (a attributes) RetrieveAttribute(f *os.File, bucket, object, attribute string) ([]byte, error) {
	return a.of(object).RetrieveAttribute(f, bucket, object, attribute)
}

func (a attributes) StoreAttribute(f *os.File, bucket, object, attribute string, value []byte) error {
	return a.of(object).StoreAttribute(f, bucket, object, attribute, value)
}

func (a attributes) DeleteAttribute(bucket, object, attribute string) error {
	return a.of(object).DeleteAttribute(bucket, object, attribute)
}

func (a attributes) ListAttributes(bucket, object string) ([]string, error) {
	return a.of(object).ListAttributes(bucket, object)
}

func (a attributes) DeleteAttributes(bucket, object string) error {
	return a.of(object).DeleteAttributes(bucket, object)
}

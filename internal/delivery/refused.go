package delivery

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/openpcs/openpcs/internal/journal"
)

// maxRefused bounds the file of a delivery's refused records. What comes after it
// is full is counted alone.
const maxRefused = 8 << 20

// refusedFile has the records of a delivery that its destination takes never, one
// JSON object a line.
func refusedFile(dir, delivery string) string {
	return filepath.Join(dir, delivery+".refused.jsonl")
}

func keepRefused(dir, delivery, logName string, e journal.Entry, why string) error {
	doc, err := json.Marshal(struct {
		Log   string `json:"log"`
		Place int64  `json:"place"`
		Time  int64  `json:"time"`
		Why   string `json:"why"`
		Text  string `json:"text"`
	}{logName, e.Seq, e.Time, why, string(e.Text)})
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(refusedFile(dir, delivery), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err == nil && info.Size()+int64(len(doc)) < maxRefused {
		_, err = f.Write(append(doc, '\n'))
	}
	return errors.Join(err, f.Close())
}

func removeRefused(dir, delivery string) error {
	err := os.Remove(refusedFile(dir, delivery))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

package lifecycle

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// maxRun is what is kept of the output of one run of a script, its first
	// and last half; maxLog is what a script's log has of the runs before.
	maxRun = 2 << 20
	maxLog = 8 << 20
	// maxExecutorLog is when executor.log begins anew; the one before is kept
	// beside it.
	maxExecutorLog = 4 << 20
)

// Entry is a line of executor.log.
type Entry struct {
	Timestamp string `json:"timestamp"` // UTC with microseconds
	Level     string `json:"level"`     // INFO, WARN or ERROR
	Message   string `json:"message"`
	Stage     string `json:"stage,omitempty"`
	Script    string `json:"script,omitempty"`
	OnError   string `json:"on_error,omitempty"`
	Error     string `json:"error,omitempty"`
	ExitCode  *int   `json:"exit_code,omitempty"`
	Bytes     int    `json:"bytes,omitempty"` // of a download
}

func (x *Executor) log(e Entry) error {
	e.Timestamp = time.Now().UTC().Format("2006-01-02T15:04:05.000000Z")
	line, err := encode(e)
	if err != nil {
		return err
	}
	path := filepath.Join(x.LogDir, "executor.log")
	if err := os.MkdirAll(x.LogDir, 0o755); err != nil {
		return err
	}
	if info, err := os.Stat(path); err == nil && info.Size() > maxExecutorLog {
		if err := os.Rename(path, path+".1"); err != nil {
			return err
		}
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(append(line, '\n'))
	return errors.Join(err, f.Close())
}

// encode writes JSON as people read it: <, > and & stay what they are.
func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	err := enc.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

// scriptLog is the log of one script, open for one run. The script and what it
// starts write to the file themselves, so that a daemon which stays neither
// holds up the boot nor dies of a pipe that is gone.
type scriptLog struct {
	file  *os.File
	path  string
	begin int64 // where this run's output begins
}

// openScriptLog opens a script's log and writes the line of its start.
func openScriptLog(dir, name string, args []string, now time.Time) (*scriptLog, error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, err
	}
	l := &scriptLog{path: filepath.Join(dir, name+".log")}
	var err error
	if l.file, err = os.OpenFile(l.path, os.O_APPEND|os.O_CREATE|os.O_RDWR, 0o640); err != nil {
		return nil, err
	}
	if args == nil {
		args = []string{}
	}
	list, err := encode(args)
	if err == nil {
		err = mendHole(l.file)
	}
	if err == nil {
		err = shorten(l.file, 0, maxLog)
	}
	if err == nil {
		_, err = fmt.Fprintf(l.file, "[start %s args=%s @ %d]\n", name, list, now.Unix())
	}
	if err == nil {
		l.begin, err = l.file.Seek(0, io.SeekEnd)
	}
	if err != nil {
		_ = l.file.Close()
		return nil, err
	}
	return l, nil
}

// watch bounds what the log takes while the script writes it, until stop is
// closed.
func (l *scriptLog) watch(stop <-chan struct{}) {
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
			_ = spare(l.file, l.begin, maxRun) // tried again at the next tick
		}
	}
}

// end shortens the log, writes the line of the run's end and returns the last
// bytes of the output.
func (l *scriptLog) end(name string, exit int, now time.Time) (tail string, err error) {
	defer func() { err = errors.Join(err, l.file.Close()) }()
	if err := shorten(l.file, l.begin, maxRun); err != nil {
		return "", err
	}
	size, err := l.file.Seek(0, io.SeekEnd)
	if err != nil {
		return "", err
	}
	from := max(l.begin, size-tailBytes)
	text := make([]byte, max(0, size-from))
	if _, err := l.file.ReadAt(text, from); err != nil && err != io.EOF {
		return "", err
	}
	line := fmt.Sprintf("[end %s exit=%d @ %d]\n", name, exit, now.Unix())
	if len(text) > 0 && text[len(text)-1] != '\n' {
		line = "\n" + line
	}
	_, err = l.file.WriteString(line)
	return string(bytes.ToValidUTF8(bytes.TrimSpace(text), []byte("?"))), err
}

// block is what holes in files are made of, or a multiple of that.
const block = 4 << 10

// spare gives back the disk that the middle of a file takes behind an offset,
// but for the first and the last half of a limit. The file's length stays: to
// move anything while a script writes would lose what comes in between, such as
// its last words.
func spare(f *os.File, from, limit int64) error {
	info, err := f.Stat()
	if err != nil {
		return err
	}
	begin := (from + limit/2 + block - 1) / block * block
	end := (info.Size() - limit/2) / block * block
	if end <= begin {
		return nil
	}
	err = unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, begin, end-begin)
	if errors.Is(err, unix.EOPNOTSUPP) { // a full disk is worse than a line that is lost
		return shorten(f, from, limit)
	}
	return err
}

// mendHole shortens a log of which the middle was given back, by an agent that
// was killed before it could.
func mendHole(f *os.File) error {
	info, err := f.Stat()
	if err != nil || info.Size() == 0 {
		return err
	}
	hole, err := f.Seek(0, unix.SEEK_HOLE)
	if err != nil || hole >= info.Size() {
		return nil //nolint:nilerr // the file system knows no holes
	}
	return shorten(f, max(0, hole-maxRun/2), maxRun)
}

// shorten leaves of what a file has behind an offset the first and the last
// half of a limit, with a line between that says what is gone. It works in
// place, as others may have the file open for appending; what they write
// meanwhile may be lost.
func shorten(f *os.File, from, limit int64) error {
	info, err := f.Stat()
	if err != nil || info.Size()-from <= limit {
		return err
	}
	size, half := info.Size(), limit/2
	tail := make([]byte, half)
	if _, err := f.ReadAt(tail, size-half); err != nil && err != io.EOF {
		return err
	}
	if err := f.Truncate(from + half); err != nil {
		return err
	}
	line := fmt.Sprintf("\n[output is left out here: the first and the last %d bytes are kept]\n", half)
	_, err = f.Write(append([]byte(line), tail...))
	return err
}

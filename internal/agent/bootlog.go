package agent

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// bootLog is bootstrap.log in the PCS agent's format. Its lines go to the
// console too, where they outlive the instance.
type bootLog struct {
	mu      sync.Mutex
	file    *os.File
	console *os.File
}

func openLog() (*bootLog, error) {
	if err := os.MkdirAll(filepath.Dir(bootstrapLog), 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(bootstrapLog, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	l := &bootLog{file: f}
	// No console is no reason to fail.
	l.console, _ = os.OpenFile("/dev/console", os.O_WRONLY, 0)
	return l, nil
}

func (l *bootLog) close() {
	_ = l.file.Close()
	if l.console != nil {
		_ = l.console.Close()
	}
}

func (l *bootLog) line(script, level, format string, args ...any) {
	l.write(fmt.Sprintf("[%s] - /opt/aws/pcs/bin/%s: %s: %s\n",
		time.Now().UTC().Format("2006-01-02T15:04:05.000-07:00"), script, level, fmt.Sprintf(format, args...)))
}

func (l *bootLog) write(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, _ = l.file.WriteString(text)
	if l.console != nil {
		_, _ = l.console.WriteString(text)
	}
}

// console writes what a user's script prints into the log, with the prefix
// that EC2 consoles have.
type console struct {
	log  *bootLog
	rest []byte
}

func (c *console) Write(b []byte) (int, error) {
	c.rest = append(c.rest, b...)
	for {
		line, rest, ok := bytes.Cut(c.rest, []byte("\n"))
		if !ok {
			return len(b), nil
		}
		c.log.write("<13>" + time.Now().UTC().Format("Jan _2 15:04:05") + " user-data: " + string(line) + "\n")
		c.rest = rest
	}
}

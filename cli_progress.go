package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// What a command that lasts tells on a terminal: one line of standard error, which is rewritten and removed at the end.

const (
	progressAfter = 2 * time.Second // what is over sooner tells nothing
	progressEvery = 250 * time.Millisecond
	clearLine     = "\r\x1b[K"
)

// A progress tells how far something is. A nil one does nothing: where standard error is no terminal there is none.
type progress struct {
	env            *env
	began          time.Time
	stop, finished chan struct{}

	mu      sync.Mutex // guards what follows, and standard error
	what    string     // the step: "copying the database"
	since   time.Time  // when the step began
	measure func() (done, total int64)
	shown   bool // the line is there
}

// progress begins to tell what a command does. Whoever calls it calls end, too, before anything else is printed but
// what note writes. It returns nil while something is told already.
func (e *env) progress(what string) *progress {
	if !e.rewrites || e.line != nil {
		return nil
	}
	p := &progress{env: e, began: e.now(), stop: make(chan struct{}), finished: make(chan struct{})}
	p.step(what, "", 0)
	e.line = p
	go p.run()
	return p
}

// isFile reports whether a stream is a file on a disk.
func isFile(stream any) bool {
	file, opened := stream.(*os.File)
	if !opened {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode().IsRegular()
}

// run writes the line until end.
func (p *progress) run() {
	defer close(p.finished)
	ticker := time.NewTicker(progressEvery)
	defer ticker.Stop()
	for {
		select {
		case <-p.stop:
			return
		case <-ticker.C:
			p.mu.Lock()
			p.write()
			p.mu.Unlock()
		}
	}
}

// end removes the line. It may be called again.
func (p *progress) end() {
	if p == nil || p.env.line != p {
		return
	}
	close(p.stop)
	<-p.finished
	p.pause()
	p.resume()
	p.env.line = nil
}

// step tells that the next step begins. file is the path of what grows by it, to about size bytes; "": nothing does. It
// is a stepFunc.
func (p *progress) step(what, file string, size int64) {
	if p == nil {
		return
	}
	p.mu.Lock()
	p.what, p.since = what, p.env.now()
	p.measure = func() (done, total int64) { return fileSize(file), size }
	p.write()
	p.mu.Unlock()
}

// at tells how much of the step is done: of rows, bytes or anything else; total 0: it is not known, and rows are done.
func (p *progress) at(done, total int64) {
	if p == nil {
		return
	}
	p.mu.Lock()
	p.measure = func() (int64, int64) { return done, total }
	p.mu.Unlock()
}

// pause removes the line and keeps it away until resume, so that something else can be written.
func (p *progress) pause() {
	if p == nil {
		return
	}
	p.mu.Lock()
	if p.shown {
		io.WriteString(p.env.stderr, clearLine)
		p.shown = false
	}
}

func (p *progress) resume() {
	if p != nil {
		p.mu.Unlock()
	}
}

// write writes the line anew, without its last column, in which some terminals begin the next one. The caller has
// locked it.
func (p *progress) write() {
	now := p.env.now()
	if now.Sub(p.began) < progressAfter {
		return
	}
	done, total := p.measure()
	line := progressText(p.what, done, total, now.Sub(p.since), widthOf(p.env.stderr, p.env.getenv)-1)
	io.WriteString(p.env.stderr, clearLine+line)
	p.shown = true
}

// progressText returns what a line of at most width columns tells; below 1: it has no limit. What does not fit is left
// out.
func progressText(what string, done, total int64, gone time.Duration, width int) string {
	what = printable(what) // names of files are in it
	var parts []string
	switch {
	case total > 0:
		parts = append(parts, fmt.Sprintf("%d %%", 100*min(done, total)/total))
	case done > 0:
		parts = append(parts, countOf(done, "row"))
	}
	parts = append(parts, gone.Truncate(time.Second).String())
	if total > 0 && done >= total/50 && done > 0 && done < total { // less says too little of the rest
		left := time.Duration(float64(gone) * float64(total-done) / float64(done))
		parts = append(parts, "about "+left.Round(time.Second).String()+" left")
	}
	for {
		line := strings.TrimSuffix(what+": "+strings.Join(parts, ", "), ": ")
		if width < 1 || utf8.RuneCountInString(line) <= width || len(parts) == 0 {
			return cut(line, width)
		}
		parts = parts[:len(parts)-1]
	}
}

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"syscall"
	"testing"
)

// A tracer counts what a service syncs. A process that is killed loses nothing even
// when it never syncs: only counting shows that a power cut would lose nothing.
type tracer struct {
	t    *testing.T
	file string
}

// serveTraced serves an operator's directory under strace.
func serveTraced(t *testing.T, o *operator) (*process, *tracer) {
	t.Helper()
	programsOrSkip(t, "strace")
	file := filepath.Join(t.TempDir(), "syncs")
	return start(t, exec.Command("strace", "-D", "-f", "-y", "-e", "trace=fsync,fdatasync", "-o", file, // -D: the program is our child, not strace's
		builtProgram(t), "serve", "-addr", "127.0.0.1:0", "-log", "json", "-anonymous-rate", "1000000", "-db", o.env["WIDGETD_DB"], "-key", o.env["WIDGETD_KEY"])), &tracer{t, file}
}

var syncOfTheLog = regexp.MustCompile(`(?m)^\d+ +f(data)?sync\(\d+<[^>]*/widgetd\.db-wal>`)

// syncs returns how often the write-ahead log has been synced so far.
func (tr *tracer) syncs() int {
	tr.t.Helper()
	text, err := os.ReadFile(tr.file)
	if err != nil {
		tr.t.Fatal(err)
	}
	if failed := regexp.MustCompile(`(?m)^.*= -1.*$`).Find(text); failed != nil {
		tr.t.Fatalf("a sync failed: %s", failed)
	}
	return len(syncOfTheLog.FindAll(text, -1))
}

func TestEveryAcknowledgedWriteOfALoneClientWasSynced(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	widget := o.object("widget", "add", "-account", o.account, "Lunch")["id"].(string)
	key := o.object("license", "add", "-account", o.account, "-product", "kds")["key"].(string)
	p, trace := serveTraced(t, o)
	l := link{newClient(t), p.base}
	device := func(n int) string { return fmt.Sprintf(`{"license_key":%q,"fingerprint":"device-%d"}`, key, n) }
	const writes = 20 // of each kind
	for _, kind := range []struct {
		path   string
		body   func(n int) string
		status int
	}{
		{"/widget/leads", func(n int) string { return fmt.Sprintf(`{"type":"newsletter","email":"u%d@example.com"}`, n) }, 200},
		{"/widget/license/activate", device, 200},
		{"/widget/events", func(int) string {
			return `{"widget":"` + widget + `","events":[{"type":"view"},{"type":"order","item":"soup"}]}`
		}, 204},
		{"/widget/license/deactivate", device, 200},
	} {
		for n := range writes {
			before := trace.syncs()
			a, err := l.post(kind.path, kind.body(n), "Origin", siteOrigin)
			if err != nil || a.status != kind.status {
				t.Fatalf("%s: %+v %v", kind.path, a, err)
			}
			if trace.syncs() == before {
				t.Errorf("%s: write %d was acknowledged and not synced", kind.path, n)
			}
		}
	}
	if err := p.stop(syscall.SIGTERM); err != nil {
		t.Errorf("ended with %v", err)
	}
	t.Logf("%d writes of each kind, %d syncs", writes, trace.syncs())
}

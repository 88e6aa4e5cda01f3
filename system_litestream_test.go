package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// A replicated service has Litestream beside it, with the configuration of docs/operating.md.
type replicated struct {
	t         testing.TB
	o         *operator
	service   *process
	stream    *exec.Cmd
	log       strings.Builder
	load      *load
	confirmed map[string]string // what was acknowledged before replication was last confirmed
}

// startReplicated starts service, Litestream and load.
func startReplicated(t testing.TB) *replicated {
	t.Helper()
	dir, err := os.MkdirTemp("", "ls") // short: the path of a socket has at most 107 bytes
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	data := filepath.Join(dir, "data")
	must(t, os.Mkdir(data, 0o700))
	config := strings.NewReplacer("/var/lib/widgetd", data, "/mnt/backup", filepath.Join(dir, "backup")).
		Replace(documentBlock(t, "type: file"))
	writeFile(t, filepath.Join(dir, "litestream.yml"), config)
	r := &replicated{t: t, o: operatorIn(t, data)}
	r.startService()
	r.startStream()
	r.load = startLoad(t, r.service.base, "first", 4, 3*time.Millisecond)
	t.Cleanup(func() { r.endStream(syscall.SIGTERM) })
	return r
}

func (r *replicated) config() string {
	return filepath.Join(filepath.Dir(r.o.dir), "litestream.yml")
}

func (r *replicated) startService() {
	r.t.Helper()
	r.service = serveProcess(r.t, r.o, "-litestream")
	if r.load != nil {
		r.load.base.Store(&r.service.base)
	}
}

func (r *replicated) startStream() {
	r.t.Helper()
	r.stream = exec.Command("litestream", "replicate", "-config", r.config())
	r.stream.Stdout, r.stream.Stderr = &r.log, &r.log
	must(r.t, r.stream.Start())
}

func (r *replicated) endStream(signal syscall.Signal) {
	if r.stream == nil {
		return
	}
	r.stream.Process.Signal(signal)
	r.stream.Wait()
	r.stream = nil
}

// confirm lets Litestream replicate everything and notes what that holds.
func (r *replicated) confirm() {
	r.t.Helper()
	before := r.load.sofar()
	var out []byte
	var err error
	if !soon(func() bool { // it may just be starting
		cmd := exec.Command("litestream", "sync", "-wait", "-socket", filepath.Join(r.o.dir, "litestream.sock"),
			r.o.env["WIDGETD_DB"])
		out, err = cmd.CombinedOutput()
		return err == nil
	}) {
		r.t.Fatalf("replication is not confirmed: %v %s\n%s", err, out, r.log.String())
	}
	r.confirmed = before
}

// loseDisk ends everything at once and removes what the service and Litestream had
// on the disk, but for the key file, of which the operator has a copy.
func (r *replicated) loseDisk() {
	r.t.Helper()
	r.endStream(syscall.SIGKILL)
	r.service.stop(syscall.SIGKILL)
	r.load.stop()
	for _, name := range dirNames(r.t, r.o.dir) {
		if name != "widgetd.key" {
			must(r.t, os.RemoveAll(filepath.Join(r.o.dir, name)))
		}
	}
}

// restore does what docs/operating.md says.
func (r *replicated) restore() {
	r.t.Helper()
	program, err := exec.LookPath("litestream")
	must(r.t, err)
	asked := asOnAServer(r.t, r.o, documentBlock(r.t, "restore -replica"),
		map[string]string{"litestream": fmt.Sprintf("LITESTREAM_CONFIG=%s exec %s \"$@\"", r.config(), program)})
	if asked != "stop widgetd.socket widgetd.service litestream\nstart litestream widgetd.socket widgetd.service\n" {
		r.t.Errorf("systemd was asked %q", asked)
	}
}

// compare holds the restored rows against those that were confirmed.
func (r *replicated) compare(when string) {
	r.t.Helper()
	lacks, leads := missing(r.t, r.o.env["WIDGETD_DB"], r.confirmed)
	if len(lacks) > 0 {
		r.t.Errorf("%s: of %d leads whose replication was confirmed %d are lost: %q\n%s",
			when, len(r.confirmed), len(lacks), lacks[:min(5, len(lacks))], r.log.String())
	}
	later, _ := missing(r.t, r.o.env["WIDGETD_DB"], r.load.ids)
	r.t.Logf("%s: of %d confirmed leads %d are lost, of %d acknowledged after that %d; %d are restored", when,
		len(r.confirmed), len(lacks), len(r.load.ids)-len(r.confirmed), len(later)-len(lacks), leads)
}

func TestLitestream_givesBackWhatItConfirmedAfterTheDiskIsLost(t *testing.T) {
	t.Parallel()
	takesLong(t, "drives Litestream for seconds")
	programsOrSkip(t, "litestream")
	r := startReplicated(t)
	r.load.grows(size(30, 200))
	r.confirm()
	for _, again := range []struct {
		stream, service syscall.Signal // 0: goes on
	}{
		{stream: syscall.SIGTERM}, {stream: syscall.SIGKILL}, {service: syscall.SIGTERM}, {service: syscall.SIGKILL},
		{syscall.SIGTERM, syscall.SIGTERM}, {syscall.SIGKILL, syscall.SIGKILL},
		{stream: syscall.SIGTERM}, {stream: syscall.SIGKILL},
	} {
		if again.stream != 0 {
			r.endStream(again.stream)
			r.load.grows(size(20, 150)) // while nobody replicates
		}
		if again.service != 0 {
			if err := r.service.stop(again.service); err != nil && again.service == syscall.SIGTERM {
				t.Errorf("the service ended with %v\n%s", err, r.service.log.String())
			}
			r.startService()
			r.load.grows(size(20, 150))
		}
		if again.stream != 0 {
			r.startStream()
		}
		r.load.grows(size(20, 150))
		r.confirm()
	}
	r.load.grows(size(10, 50))
	r.loseDisk()
	r.restore()
	r.compare("after losing the disk")

	// And the restored one is replicated again.
	r.startService()
	r.startStream()
	r.load = startLoad(t, r.service.base, "again", 4, 3*time.Millisecond)
	r.load.take(r.confirmed)
	r.load.grows(size(30, 200))
	r.confirm()
	r.endStream(syscall.SIGKILL)
	r.service.stop(syscall.SIGKILL)
	r.load.stop()
	r.restore()
	r.compare("after restoring again")
}

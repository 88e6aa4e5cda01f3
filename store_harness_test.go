package main

import (
	"context"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
)

// fileBytes returns what a file holds.
func fileBytes(t testing.TB, path string) []byte {
	t.Helper()
	content, err := os.ReadFile(path)
	must(t, err)
	return content
}

// isUnchanged complains unless a file still holds what it held before.
func isUnchanged(t testing.TB, path string, before []byte) {
	t.Helper()
	if after, err := os.ReadFile(path); string(after) != string(before) { // a directory holds nothing, before and after
		t.Errorf("%s was changed: %v", path, err)
	}
}

// writeFile writes a file that is its owner's only.
func writeFile[T string | []byte](t testing.TB, path string, content T) {
	t.Helper()
	must(t, os.WriteFile(path, []byte(content), 0o600))
}

// hasMode checks that a file is there and who may use it.
func hasMode(t testing.TB, path string, want os.FileMode) {
	t.Helper()
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
		t.Errorf("%s: %v, %v; want the mode %04o", path, info, err, want)
	}
}

// allKept waits for writes, each of which must succeed.
func allKept(t testing.TB, results []chan error) {
	t.Helper()
	for i, result := range results {
		if err := <-result; err != nil {
			t.Errorf("write %d: %v", i, err)
		}
	}
}

// stopCleanly stops a process as systemd does; it must end without an error.
func (p *process) stopCleanly() {
	p.t.Helper()
	if err := p.stop(syscall.SIGTERM); err != nil {
		p.t.Errorf("ended with %v\n%s", err, p.log.String())
	}
}

// serveOn serves a service on a listener with every limit of serve, until stop is called or the test ends. ended
// waits until it has stopped, which must be without an error; its store is then closed.
func (s *service) serveOn(l net.Listener) (stop, ended func()) {
	ctx, stop := context.WithCancel(context.Background())
	result := make(chan error, 1)
	go func() { result <- s.server.serveUntil(ctx, l, "") }()
	ended = sync.OnceFunc(func() {
		if err := <-result; err != nil {
			s.t.Errorf("ended with %v", err)
		}
	})
	s.t.Cleanup(func() {
		stop()
		ended()
		var err error
		s.store, err = openStore(s.store.path, storeOptions{}) // for the harness, which closes it
		s.check(err)
	})
	return stop, ended
}

// A pipeListener hands over the ends of pipes, so that serving runs in a bubble too.
type pipeListener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newPipeListener() *pipeListener {
	return &pipeListener{conns: make(chan net.Conn), closed: make(chan struct{})}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error   { l.once.Do(func() { close(l.closed) }); return nil }
func (l *pipeListener) Addr() net.Addr { return &net.TCPAddr{} }

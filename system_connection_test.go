package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// listening serves a service on a real listener, with every limit of serve, until the test ends.
func (s *service) listening() (addr string) {
	s.t.Helper()
	return s.listeningOn("tcp", "127.0.0.1:0")
}

// listeningOn is listening on another kind of listener.
func (s *service) listeningOn(network, address string) (addr string) {
	s.t.Helper()
	listener, err := net.Listen(network, address)
	s.check(err)
	s.serveOn(listener)
	return listener.Addr().String()
}

const (
	plainLead = `{"type":"newsletter","email":"one@example.com"}`
	leadHead  = "POST /v1/widget/leads HTTP/1.1\nHost: x\nContent-Type: application/json\n"
	aliveHead = "GET /livez HTTP/1.1\nHost: x\n"
)

var (
	leadSize    = fmt.Sprint("Content-Length: ", len(plainLead), "\n")
	leadChunks  = fmt.Sprintf("%x\n%s\n0\n\n", len(plainLead), plainLead)
	chunkedHead = leadHead + "Transfer-Encoding: chunked\n\n"
)

// rawRequests are what a client can send by hand and where our code, or the options that we give to net/http,
// decide the answer. Each is followed by one more request, which asks to be the last. The answers are given as
// their statuses, so that a connection which was closed shows one less; the code is of the first one, where that
// is ours. They are made when they are asked for, since each program that tests start is this one.
func rawRequests() []struct{ name, request, answers, code string } {
	return []struct{ name, request, answers, code string }{
		// Two lengths, or one that is hard to tell: the connection ends, so that nobody's
		// idea of where the next request begins counts.
		{"a length and chunks", leadHead + "Content-Length: 4\nTransfer-Encoding: chunked\n\n" + leadChunks, "200", ""},
		{"chunks alone", chunkedHead + leadChunks, "200", ""},
		{"a chunk that is too short", chunkedHead + "4\n" + plainLead + "\n0\n\n", "400", "malformed_json"},
		{"chunked in HTTP/1.0, which has none", strings.Replace(leadHead, "1.1", "1.0", 1) +
			"Connection: keep-alive\nTransfer-Encoding: chunked\n\n", "400", "malformed_json"},
		{"HTTP/1.0 that wants to go on", "GET /livez HTTP/1.0\nConnection: keep-alive\n\n", "200", ""},
		{"a length that is too short", leadHead + "Content-Length: 4\n\n" + plainLead, "400 400", "malformed_json"},

		// Targets and methods that the mux would answer in words of its own.
		{"an absolute target", "GET http://other.example/v1/widget/lead HTTP/1.1\nHost: x\n\n", "404 200", "not_found"},
		{"CONNECT", "CONNECT x:80 HTTP/1.1\nHost: x:80\n\n", "404 200", "not_found"},
		{"OPTIONS of an asterisk", "OPTIONS * HTTP/1.1\nHost: x\n\n", "404 200", "not_found"},
		{"//", "GET //livez HTTP/1.1\nHost: x\n\n", "404 200", "not_found"},
		{"..", "GET /v1/../livez HTTP/1.1\nHost: x\n\n", "404 200", "not_found"},
		{"%2f", "GET /v1%2fwidget/health HTTP/1.1\nHost: x\n\n", "404 200", "not_found"},
		{"TRACE", "TRACE /livez HTTP/1.1\nHost: x\nCookie: secret\n\n", "405 200", "method_not_allowed"},
		{"an unknown method", "FROB /livez HTTP/1.1\nHost: x\n\n", "405 200", "method_not_allowed"},

		// Sizes.
		{"Expect with a small body", leadHead + leadSize + "Expect: 100-continue\n\n" + plainLead, "100 200 200", ""},
		{"Expect with a large body", leadHead + "Content-Length: 400000\nExpect: 100-continue\n\n",
			"413", "body_too_large"},
		{"a body of 16 KiB and a byte", leadHead + "Content-Length: 16385\n\n" + strings.Repeat(" ", 16385),
			"413", "body_too_large"},
		{"a large body in chunks", chunkedHead + "8000\n" + strings.Repeat(" ", 0x8000) + "\n0\n\n",
			"413", "body_too_large"},
		{"a large body of another type", leadHead[:len(leadHead)-5] + "xml\nContent-Length: 400000\n\n" +
			strings.Repeat(" ", 400000), "415", "unsupported_media_type"},
		{"a header of 16 KiB", aliveHead + "X-Y: " + strings.Repeat("a", 16<<10) + "\n\n", "200 200", ""},
		{"a header of 24 KiB", aliveHead + "X-Y: " + strings.Repeat("a", 24<<10) + "\n\n", "431", ""},
		{"a path of 15 KiB", "GET /" + strings.Repeat("a", 15<<10) + " HTTP/1.1\nHost: x\n\n", "404 200", "not_found"},
	}
}

var (
	answerLine    = regexp.MustCompile(`HTTP/1\.[01] (\d{3})`)
	codeInProblem = regexp.MustCompile(`"code":"(\w+)"`)
)

func TestConnection_ofEveryShapeOfARequestHasOneAnswerOrEnds(t *testing.T) {
	t.Parallel()
	s := newService(t, withoutAddressLimits)
	addr := s.listening()
	const last = "GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
	for _, c := range rawRequests() {
		t.Run(c.name, func(t *testing.T) {
			back := exchange(t, addr, strings.ReplaceAll(c.request, "\n", "\r\n")+last)
			var statuses []string
			for _, line := range answerLine.FindAllStringSubmatch(back, -1) {
				statuses = append(statuses, line[1])
			}
			code := ""
			if found := codeInProblem.FindStringSubmatch(back); found != nil {
				code = found[1]
			}
			if got := strings.Join(statuses, " "); got != c.answers || code != c.code {
				t.Errorf("answers %s %s, want %s %s\n%.2000s", got, code, c.answers, c.code, back)
			}
			if strings.Contains(back, "secret") {
				t.Errorf("the request comes back: %s", back)
			}
		})
	}
	if n := s.count(`SELECT count(*) FROM leads WHERE email <> 'one@example.com'`); n > 0 {
		t.Errorf("%d leads that nobody sent", n)
	}
}

// The traps that are set for a proxy in front: the body of the one who sends is a
// request to a server that reads the other length.
func TestConnection_neverAnswersARequestInsideABody(t *testing.T) {
	t.Parallel()
	s := newService(t, withoutAddressLimits)
	addr := s.listening()
	smuggled := leadOf("smuggled@example.com", "")
	head := strings.ReplaceAll(leadHead, "\n", "\r\n")
	const chunked = "Transfer-Encoding: chunked\r\n"
	more := fmt.Sprintf("Content-Length: %d\r\n", len(smuggled)+5)
	for name, request := range map[string]string{
		"behind chunks, the length says less": head + "Content-Length: 4\r\n" + chunked + "\r\n0\r\n\r\n" + smuggled,
		"behind chunks, the length says more": head + chunked + more + "\r\n0\r\n\r\n" + smuggled,

		"in a chunk": fmt.Sprintf("%s%s\r\n%x\r\n%s\r\n0\r\n\r\n", head, chunked, len(smuggled), smuggled),
		"in a body of a GET": fmt.Sprintf("GET /livez HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n"+
			"Connection: close\r\n\r\n%s", len(smuggled), smuggled),
		"behind chunks of HTTP/1.0": strings.Replace(head, "1.1", "1.0", 1) + "Connection: keep-alive\r\n" +
			chunked + "\r\n" + smuggled,
		"behind a coding that is not known": head + "Transfer-Encoding: xchunked\r\n\r\n" + smuggled,
		"behind a refused body": head + "Content-Length: 20000\r\n\r\n" + smuggled +
			strings.Repeat(" ", 20000-len(smuggled)),
	} {
		if n := strings.Count(exchange(t, addr, request), `"id":"lead_`); n > 0 {
			t.Errorf("%s: %d leads acknowledged", name, n)
		}
	}
	if n := s.count(`SELECT count(*) FROM leads`); n > 0 {
		t.Errorf("%d leads", n)
	}
}

// tooSlow are clients that take longer than they may, and when the service closes their
// connections, counted from when these were opened.
var tooSlow = []struct {
	name  string
	speak func(net.Conn) error // returns once the connection is closed
	after time.Duration
}{
	{"not a byte", untilClosed, headerTimeout},
	{"a header without an end", func(conn net.Conn) error {
		io.WriteString(conn, "POST /v1/widget/leads HTTP/1.1\r\nHost: x\r\nX-Slow: ")
		return untilClosed(conn)
	}, headerTimeout},
	{"a header of a byte a second", func(conn net.Conn) error {
		io.WriteString(conn, "POST /v1/widget/leads HTTP/1.1\r\nHost: x\r\nX-Slow: ")
		return drip(conn)
	}, headerTimeout},
	{"a body of a byte a second", func(conn net.Conn) error {
		io.WriteString(conn, strings.ReplaceAll(leadHead+"Content-Length: 1000\n\n", "\n", "\r\n")+"{")
		return drip(conn)
	}, readTimeout},
	{"an answer that is not read", neverRead, writeTimeout},
	{"nothing after an answer", func(conn net.Conn) error {
		io.WriteString(conn, strings.ReplaceAll(aliveHead+"\n", "\n", "\r\n"))
		return untilClosed(conn)
	}, idleTimeout},
}

func TestConnection_ofASlowClientIsClosedAfterTheTimeThatEachPartMayTake(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		l := newPipeListener()
		stop, ended := s.serveOn(l)
		var clients sync.WaitGroup
		for _, c := range tooSlow {
			client, served := net.Pipe()
			l.conns <- served
			began := time.Now()
			client.SetDeadline(began.Add(c.after + time.Minute))
			clients.Go(func() {
				defer client.Close()
				err := c.speak(client)
				open := time.Since(began)
				if err != nil || open < c.after || open > c.after+time.Second { // net/http lingers for half a second
					t.Errorf("%s: closed after %v (%v), want %v", c.name, open, err, c.after)
				}
			})
		}
		clients.Wait()
		stop()
		ended()
	})
}

// untilClosed reads to the end.
func untilClosed(conn net.Conn) error {
	_, err := io.Copy(io.Discard, conn)
	if errors.Is(err, syscall.ECONNRESET) {
		return nil
	}
	return err
}

// drip sends a byte a second until the other side has closed.
func drip(conn net.Conn) error {
	var answered, silent error
	closed := make(chan struct{})
	go func() {
		answered = untilClosed(conn)
		close(closed)
	}()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for silent == nil {
		select {
		case <-closed:
			return answered
		case <-tick.C:
			_, silent = io.WriteString(conn, " ")
		}
	}
	<-closed
	return answered
}

// neverRead asks for more answers than the buffers between hold, and takes none.
func neverRead(conn net.Conn) error {
	asked := strings.Repeat("GET /.well-known/jwks.json HTTP/1.1\r\nHost: x\r\n\r\n", 1000)
	for {
		_, err := io.WriteString(conn, asked)
		switch {
		case errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE), errors.Is(err, io.ErrClosedPipe):
			return nil
		case err != nil:
			return err
		}
	}
}

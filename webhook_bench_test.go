package main

import (
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"sync/atomic"
	"testing"
	"time"
)

var backlog = flag.Int("backlog", 1000, "how many events BenchmarkWebhooks sends, and how many are due")

// fillEvents writes events of an account with one statement.
func (s *service) fillEvents(account string, kind eventType, n int) {
	s.t.Helper()
	s.sql(`WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?)
		INSERT INTO events (id, at, type, account_id, subject_id, actor)
		SELECT 'evt_' || printf('%026d', i), '2026-01-01T00:00:00Z', ?, ?, 'lead_' || printf('%026d', i), 'site'
		FROM n`, n, kind, account)
}

// receiveReal starts a receiver on this machine that counts what it gets.
func receiveReal(b testing.TB) (url string, got *atomic.Int64) {
	got = &atomic.Int64{}
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		got.Add(1)
		w.WriteHeader(http.StatusNoContent)
	}))
	b.Cleanup(web.Close)
	return web.URL, got
}

// waitFor waits until a counter has reached a number.
func waitFor(b testing.TB, got *atomic.Int64, n int64) {
	b.Helper()
	for end := time.Now().Add(10 * time.Minute); got.Load() < n; {
		if time.Now().After(end) {
			b.Fatalf("%d of %d came", got.Load(), n)
		}
		runtime.Gosched()
		<-time.After(time.Millisecond)
	}
}

// heapInUse is how much the process has in use after a collection.
func heapInUse() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// BenchmarkWebhooks_deliveries sends -backlog events to 64 webhooks with one local receiver.
func BenchmarkWebhooks_deliveries(b *testing.B) {
	for range b.N {
		b.StopTimer()
		s := newService(b, admitLoopback)
		url, got := receiveReal(b)
		const hooks = 64
		for i := range hooks {
			s.subscribe(s.account, fmt.Sprint(url, "/", i), eventLeadCreated)
		}
		s.fillEvents(s.account, eventLeadCreated, max(*backlog/hooks, 1))
		b.StartTimer()
		began := time.Now()
		stop := s.startSending()
		n := int64(max(*backlog/hooks, 1) * hooks)
		waitFor(b, got, n)
		b.ReportMetric(float64(n)/time.Since(began).Seconds(), "deliveries/s")
		b.StopTimer()
		stop()
	}
}

// BenchmarkWebhooks_backlog starts with -backlog events that are due: half were never sent, half are to
// be tried again. It measures how long the first takes to arrive, and memory while they are sent.
func BenchmarkWebhooks_backlog(b *testing.B) {
	for range b.N {
		b.StopTimer()
		s := newService(b, admitLoopback)
		url, got := receiveReal(b)
		s.subscribe(s.account, url, eventLeadCreated)
		n := *backlog
		s.fillEvents(s.account, eventLeadCreated, n)
		s.sql(`UPDATE webhook_queues SET sent_seq = ?`, n/2)
		s.sql(`INSERT INTO webhook_retries SELECT q.id, e.seq, 1, '2026-01-01T00:00:00Z'
			FROM events e, webhook_queues q WHERE e.seq <= ?`, n/2)
		before := heapInUse()
		b.StartTimer()
		began := time.Now()
		stop := s.startSending()
		waitFor(b, got, 1)
		b.ReportMetric(float64(time.Since(began).Microseconds())/1000, "ms-to-first")
		waitFor(b, got, int64(min(n, 5000)))
		b.StopTimer()
		b.ReportMetric(float64(int64(heapInUse())-int64(before))/(1<<20), "MiB")
		stop()
	}
}

// BenchmarkWebhooks_writing posts leads without webhooks, with ten that answer, with ten that hang, and
// with ten that want other events.
func BenchmarkWebhooks_writing(b *testing.B) {
	for _, c := range []struct {
		name  string
		hooks int
		kind  eventType
		hangs bool
	}{
		{"none", 0, eventLeadCreated, false},
		{"ten for other events", 10, eventLicenseCreated, false},
		{"ten that hang", 10, eventLeadCreated, true},
		{"ten that answer", 10, eventLeadCreated, false},
	} {
		b.Run(c.name, func(b *testing.B) {
			s := newService(b, admitLoopback, withoutAddressLimits)
			release := make(chan struct{})
			web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if c.hangs {
					select {
					case <-release:
					case <-r.Context().Done():
					}
				}
			}))
			b.Cleanup(web.Close)
			for i := range c.hooks {
				s.subscribe(s.account, fmt.Sprint(web.URL, "/", i), c.kind)
			}
			stop := s.startSending()
			b.ResetTimer()
			for i := range b.N {
				s.change(func(t *tx) error {
					_, err := t.addLead(lead{AccountID: s.account, Type: "demo",
						Email: fmt.Sprintf("a%d@example.com", i)})
					return err
				})
			}
			b.StopTimer()
			close(release)
			stop()
		})
	}
}

// BenchmarkWebhooks_idle measures the memory of a thousand webhooks that get nothing.
func BenchmarkWebhooks_idle(b *testing.B) {
	for range b.N {
		b.StopTimer()
		s := newService(b, admitLoopback)
		accounts := s.addAccounts(100)
		var urls []string
		for i := range 1000 {
			urls = append(urls, fmt.Sprintf("https://receiver%d.example.com/hooks/widgetd", i))
		}
		s.subscribeAll(urls, func(i int) string { return accounts[i%len(accounts)] }, eventLeadCreated,
			eventLicenseCreated)
		before := heapInUse()
		w := webhookWorkerOf(s.server)
		b.StartTimer()
		w.reload()
		b.StopTimer()
		b.ReportMetric(float64(int64(heapInUse())-int64(before))/(1<<20), "MiB")
		if len(w.senders) != 1000 {
			b.Fatalf("%d webhooks", len(w.senders))
		}
	}
}

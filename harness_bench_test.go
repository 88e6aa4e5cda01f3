package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// All benchmarks are here; docs/performance.md says what they measured, and with which of these sizes.
var (
	statisticsWidgets = flag.Int("widgets", 20, "how many widgets BenchmarkStatistics fills its database with")
	erasedRows        = flag.Int("leads", 5_000, "leads that BenchmarkErase erases; with long texts a tenth")
	upgradeRows       = flag.Int("rows", 10_000, "leads, licences, devices and events, each, for BenchmarkUpgrade")
	backlog           = flag.Int("backlog", 1000, "how many events BenchmarkWebhooks sends, and how many are due")
)

// newBusyService starts a service that answers its accounts, and every address, as often as they ask.
func newBusyService(b *testing.B, change ...func(*storeOptions, *serverOptions)) *service {
	s := newService(b, append(change, withoutAddressLimits)...)
	s.sql(`UPDATE accounts SET rate = 1000000000`)
	return s
}

// addBusyAccount adds an account that is answered as often as it asks.
func (s *service) addBusyAccount(name string) (id string) {
	id = s.addAccount(name)
	s.sql(`UPDATE accounts SET rate = 1000000000 WHERE id = ?`, id)
	return id
}

// reportMillis reports a time.
func reportMillis(b *testing.B, d time.Duration, unit string) {
	b.ReportMetric(float64(d.Microseconds())/1000, unit)
}

// median sorts times and returns the one in the middle.
func median(all []time.Duration) time.Duration {
	slices.Sort(all)
	return all[len(all)/2]
}

// measureHeap returns what reports how much more memory the process has in use than at the call.
func measureHeap(b *testing.B) (report func()) {
	inUse := func() float64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc)
	}
	before := inUse()
	return func() { b.ReportMetric((inUse()-before)/(1<<20), "MiB") }
}

// BenchmarkAlone is what the service itself adds to a request: the handler without net/http's part and without the
// harness.
func BenchmarkAlone(b *testing.B) {
	s := newBusyService(b)
	_, key := s.addLicense(license{terms: terms{MaxDevices: ptr(3)}})
	token := s.activate(key, "kitchen-1").is(200).text("token")
	stats := "/widget/stats?widget=" + s.addWidget(s.account)
	tag := s.get(stats).is(200).header.Get("ETag")
	for name, c := range map[string]struct{ method, path, body, header string }{
		"verify/token":       {"POST", "/widget/license/verify", `{}`, "Authorization: Bearer " + token},
		"verify/key":         {"POST", "/widget/license/verify", activateBody(key, "kitchen-1"), "Accept: */*"},
		"stats":              {"GET", stats, "", "Accept: */*"},
		"stats/zone":         {"GET", stats + "&timezone=Europe/Zurich", "", "Accept: */*"},
		"stats/not modified": {"GET", stats, "", "If-None-Match: " + tag},
	} {
		b.Run(name, func(b *testing.B) {
			s.server.accountBuckets = newLimiter(maxAccountBuckets) // a million requests a run
			body := strings.NewReader(c.body)
			r := httptest.NewRequest(c.method, "/v1"+c.path, body)
			s.check(setHeaders(r.Header, []string{"Content-Type: application/json", c.header}))
			w := &discard{http.Header{}}
			b.ReportAllocs()
			for b.Loop() {
				body.Seek(0, io.SeekStart)
				clear(w.header)
				s.server.ServeHTTP(w, r)
			}
		})
	}
}

// discard is a ResponseWriter that keeps nothing.
type discard struct{ header http.Header }

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) Write(b []byte) (int, error) { return len(b), nil }
func (d *discard) WriteHeader(int)             {}

// BenchmarkErase erases an address that has many leads, short ones and ones with 8 KiB of fields, while somebody else
// goes on writing, and reports how long a write waited at most.
func BenchmarkErase(b *testing.B) {
	for name, c := range map[string]struct {
		leads  int
		fields string
	}{
		"short leads":     {*erasedRows, `NULL`},
		"with long texts": {*erasedRows / 10, `json_object('message', printf('%.*c', 8000, 'x'))`},
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				s := newService(b)
				digest := (&lead{AccountID: s.account, Type: "demo", Email: "many@example.com"}).digest()
				s.sql(manyRows(c.leads)+`INSERT INTO leads (id, account_id, type, email, fields, digest, created_at)
					SELECT printf('lead_%026d', i), ?, 'demo', 'many@example.com', `+c.fields+`, ?,
					'2020-01-01T00:00:00Z' FROM n`, s.account, digest)
				var longest time.Duration
				stop := s.beside(func(ctx context.Context) { longest = longestWrite(ctx, s) })
				erased, err := s.store.eraseLeads(b.Context(), anyAccount, "Many@example.com")
				if stop(); err != nil || erased != int64(c.leads) {
					b.Errorf("%d erased, %v", erased, err)
				}
				reportMillis(b, longest, "ms/longest-write")
			}
		})
	}
}

// longestWrite writes every few milliseconds until ctx ends, and returns how long a write took at most.
func longestWrite(ctx context.Context, s *service) (longest time.Duration) {
	for ticks := time.Tick(3 * time.Millisecond); ; {
		select {
		case <-ctx.Done():
			return longest
		case <-ticks:
		}
		began := time.Now()
		if err := s.store.update(context.Background(), func(t *tx) error { t.writeProbe(); return nil }); err != nil {
			s.t.Error(err)
		}
		longest = max(longest, time.Since(began))
	}
}

// BenchmarkUpgrade takes a database of version 1 to the present one, without the copy, and tells its size before and
// after, and after a VACUUM too.
func BenchmarkUpgrade(b *testing.B) {
	for b.Loop() {
		b.StopTimer()
		path := oldDatabase(b, 1)
		megabytes := func(unit string) { b.ReportMetric(float64(fileSize(path))/1e6, unit) }
		raw(b, path, manyOfVersion1(*upgradeRows))
		megabytes("MB-before")
		b.StartTimer()
		upgraded(b, path, upgradeOptions{noCopy: true})
		b.StopTimer()
		megabytes("MB-after")
		raw(b, path, `VACUUM`)
		megabytes("MB-vacuumed")
		b.StartTimer()
	}
}

// fillStatistics adds widgets to an account that counted over the 366 days from 2025 on: at lunch, with 10 items and 2
// pages a day, or when busy in every quarter-hour, with 100 items and 100 pages a day.
func (s *service) fillStatistics(account, prefix string, widgets int, busy bool) {
	s.t.Helper()
	first, quarters, names, pages := 40, 16, 10, 2
	if busy {
		first, quarters, names, pages = 0, 96, 100, 100
	}
	for i := range widgets {
		s.sql(`INSERT INTO widgets (id, account_id, name, created_at) VALUES (?, ?, 'Lunch', '2025-01-01T00:00:00Z')`,
			fmt.Sprintf("%s%04d", prefix, i), account)
	}
	s.sql(manyRows(366)+`INSERT INTO widget_counts (widget_id, quarter, views, visitors, clicks, orders)
		SELECT w.id, strftime('%Y-%m-%dT%H:%M:%SZ', '2025-01-01',
				'+' || (1440 * (d.i - 1) + 15 * (?1 + q.i - 1)) || ' minutes'),
			1 + (d.i + q.i) % 2, 1, q.i % 3 = 0, q.i % 9 = 0
		FROM widgets w, n d, n q WHERE w.id GLOB ?3 || '*' AND q.i <= ?2`, first, quarters, prefix)
	const named = ` SELECT w.id, date('2025-01-01', '+' || (d.i - 1) || ' days'), ?3 || k.i, k.i % 7, 1
		FROM widgets w, n d, n k WHERE w.id GLOB ?2 || '*' AND k.i <= ?1`
	s.sql(manyRows(366)+`INSERT INTO item_counts (widget_id, day, item, clicks, orders)`+named, names, prefix, "dish ")
	s.sql(manyRows(366)+`INSERT INTO page_counts (widget_id, day, page, views, clicks)`+named, pages, prefix, "/menu/")
}

const (
	lunchWidgets = "wgt_0000000000000000000000"
	busyWidgets  = "wgt_0000000000000000000001"
)

// BenchmarkStatistics reads a year of statistics from a file with a year of 10,000,000 events of -widgets widgets,
// among them ten of one account with traffic in every quarter-hour and 100 items and pages a day.
func BenchmarkStatistics(b *testing.B) {
	s := newBusyService(b)
	busy := s.addBusyAccount("Busy")
	s.fillStatistics(s.account, lunchWidgets, *statisticsWidgets, false)
	s.fillStatistics(busy, busyWidgets, 10, true)
	b.Logf("%d events", s.count(`SELECT sum(views + clicks + orders) FROM widget_counts`))
	own := []string{s.auth(busy, scopeStats)}
	for _, c := range []struct {
		name, query string
		headers     []string
	}{
		{"one widget", "&widget=" + lunchWidgets + "0007", nil},
		{"one busy widget", "&widget=" + busyWidgets + "0007", nil},
		{"one busy widget, by months", "&interval=month&widget=" + busyWidgets + "0007", nil},
		{"one busy widget with pages", "&widget=" + busyWidgets + "0007", own},
		{"ten busy widgets", "", own},
	} {
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				s.store.drops.drop("") // nothing comes from memory
				s.get("/widget/stats?from=2025-01-01&to=2026-01-01&timezone=Europe/Zurich"+c.query,
					c.headers...).is(200)
			}
		})
	}
}

// serveHere starts a server on a real socket of this machine until the benchmark's end.
func serveHere(b *testing.B, h http.Handler) (url string) {
	web := httptest.NewServer(h)
	b.Cleanup(web.Close)
	return web.URL
}

// BenchmarkVerify_lease compares, in turn and over a real connection, how long a device waits for a lease that is kept
// and for one that is signed for it, as with a nonce: what the cache of leases is for.
func BenchmarkVerify_lease(b *testing.B) {
	s := newBusyService(b)
	_, key := s.addLicense(license{})
	url := serveHere(b, s.server) + "/v1/widget/license/verify"
	s.activate(key, "kitchen-1").is(200)
	bodies := [2]string{activateBody(key, "kitchen-1"), activateBody(key, "kitchen-1", "nonce", "n")}
	var took [2][]time.Duration
	for b.Loop() {
		for i, body := range bodies {
			start := time.Now()
			res, err := http.Post(url, "application/json", strings.NewReader(body))
			must(b, err)
			_, err = io.Copy(io.Discard, res.Body)
			must(b, errors.Join(err, res.Body.Close()))
			took[i] = append(took[i], time.Since(start))
		}
	}
	kept, signed := median(took[0]), median(took[1])
	b.ReportMetric(float64(kept)/1e3, "kept-µs")
	b.ReportMetric(float64(signed)/1e3, "signed-µs")
	b.ReportMetric(float64(signed)/float64(kept), "signed/kept")
}

// A hookCounter receives webhooks, counts what it gets, and answers it.
type hookCounter struct{ got atomic.Int64 }

func (c *hookCounter) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	c.got.Add(1)
	w.WriteHeader(http.StatusNoContent)
}

// await waits until it got n webhooks.
func (c *hookCounter) await(n int64) {
	for c.got.Load() < n {
		<-time.After(time.Millisecond)
	}
}

// BenchmarkWebhooks_deliveries sends -backlog events to 64 webhooks with one local receiver.
func BenchmarkWebhooks_deliveries(b *testing.B) {
	const hooks = 64
	each := max(*backlog/hooks, 1)
	for b.Loop() {
		s, there := newService(b, admitLoopback), &hookCounter{}
		url := serveHere(b, there)
		for i := range hooks {
			s.subscribe(s.account, fmt.Sprint(url, "/", i), eventLeadCreated)
		}
		s.fillEvents(s.account, eventLeadCreated, each)
		began := time.Now()
		stop := s.startSending()
		there.await(int64(each * hooks))
		b.ReportMetric(float64(each*hooks)/time.Since(began).Seconds(), "deliveries/s")
		stop()
	}
}

// BenchmarkWebhooks_backlog starts with -backlog events that are due: half were never sent, half are to be tried
// again. It measures how long the first takes to arrive, and memory while they are sent.
func BenchmarkWebhooks_backlog(b *testing.B) {
	for b.Loop() {
		s, there, n := newService(b, admitLoopback), &hookCounter{}, *backlog
		s.subscribe(s.account, serveHere(b, there), eventLeadCreated)
		s.fillEvents(s.account, eventLeadCreated, n)
		s.sql(`UPDATE webhook_queues SET sent_seq = ?`, n/2)
		s.sql(`INSERT INTO webhook_retries SELECT q.id, e.seq, 1, '2026-01-01T00:00:00Z'
			FROM events e, webhook_queues q WHERE e.seq <= ?`, n/2)
		reportHeap := measureHeap(b)
		began := time.Now()
		stop := s.startSending()
		there.await(1)
		reportMillis(b, time.Since(began), "ms-to-first")
		there.await(int64(min(n, 5000)))
		reportHeap()
		stop()
	}
}

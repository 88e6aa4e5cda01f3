package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// All benchmarks are here; docs/performance.md says what they measured, and with which of these sizes.
var (
	statisticsWidgets = flag.Int("widgets", 20, "how many widgets BenchmarkStatistics fills its database with")
	scaleLicenses     = flag.Int("licenses", 2000, "licences in the large database of benchmarks")
	erasedRows        = flag.Int("leads", 5_000, "leads that BenchmarkErase erases; with long texts a tenth")
	upgradeRows       = flag.Int("rows", 10_000, "leads, licences, devices and events, each, for BenchmarkUpgrade")
	backlog           = flag.Int("backlog", 1000, "how many events BenchmarkWebhooks sends, and how many are due")
	attemptsPending   = flag.Int("attempts", 100, "how many attempts are pending in benchmarks of payments")
	bookedDays        = flag.Int("days", 100, "how many days each connection has in benchmarks of look-ups of books")
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

// reportWaits reports how long callers waited.
func reportWaits(b *testing.B, waits []time.Duration) {
	slices.Sort(waits)
	reportMillis(b, median(waits), "median-ms")
	reportMillis(b, waits[len(waits)*99/100], "p99-ms")
	reportMillis(b, waits[len(waits)-1], "worst-ms")
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

// addNewsletter adds the n-th lead of an account.
func addNewsletter(t *tx, account string, n int) error {
	return second(t.addLead(lead{AccountID: account, Type: "newsletter", Email: fmt.Sprintf("u%d@example.com", n)}))
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

// BenchmarkLookupDuringQuestions tells how long the look-ups of a tenant take while another one searches all its
// licences in 40 requests at a time, and while 12 addresses ask for a year of a widget with 100 items.
func BenchmarkLookupDuringQuestions(b *testing.B) {
	s := newBusyService(b)
	tenant := s.addBusyAccount("Trattoria")
	s.sql(manyRows(*scaleLicenses)+`INSERT INTO licenses (id, account_id, product, customer, created_at, updated_at)
		SELECT printf('lic_%026d', i), ?, 'kitchen-display', 'Trattoria ' || i,
		'2026-01-01T00:00:00Z', '2026-01-01T00:00:00Z' FROM n`, tenant)
	s.sql(`INSERT INTO license_keys (hash, license_id, hint, created_at)
		SELECT randomblob(32), id, 'XXXXX', created_at FROM licenses WHERE account_id = ?`, tenant)
	s.fillStatistics(tenant, busyWidgets, 1, true)
	id, _ := s.addLicense(license{})
	own, search := s.auth(s.account, scopeLicenses), s.auth(tenant, scopeLicenses)
	for _, attack := range []struct {
		name  string
		times int
		ask   func(caller, n int)
	}{
		{"nothing", 0, nil},
		{"searches", 40, func(int, int) { s.get("/licenses?q=zzzz", search) }},
		{"statistics", 12, func(caller, n int) { // of ranges that differ, so that no answer is kept
			to := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
			zones := []string{"UTC", "Europe/Zurich", "Asia/Tokyo", "America/Santiago"}
			s.get(fmt.Sprintf("/widget/stats?widget=%s0000&from=%s&to=2026-01-01&timezone=%s", busyWidgets,
				to.AddDate(0, 0, -365+n%60).Format(time.DateOnly), zones[(caller+n)%len(zones)]),
				fmt.Sprintf("Peer: 192.0.2.%d:1", caller))
		}},
	} {
		b.Run(attack.name, func(b *testing.B) {
			var stop []func()
			for caller := range attack.times {
				stop = append(stop, s.beside(func(ctx context.Context) {
					for n := caller; ctx.Err() == nil; n++ {
						attack.ask(caller, n)
					}
				}))
			}
			var took []time.Duration
			for b.Loop() {
				start := time.Now()
				s.get("/licenses/"+id, own).is(200)
				took = append(took, time.Since(start))
				time.Sleep(time.Millisecond)
			}
			for _, end := range stop {
				end()
			}
			reportWaits(b, took)
		})
	}
}

// A scaled is a service with many licences in its file, and one device of one of them.
type scaled struct {
	*service
	accounts   []string // of about 100 licences each
	keys       []string // of all licences
	key, token string   // of the device
}

func newScaled(b *testing.B, licenses int) *scaled {
	s := &scaled{service: newBusyService(b)}
	s.accounts = s.addAccounts(licenses/100 + 1)
	for len(s.keys) < licenses {
		s.change(func(t *tx) error {
			for until := min(licenses, len(s.keys)+20_000); len(s.keys) < until; {
				if err := s.fillLicense(t); err != nil {
					return err
				}
			}
			return nil
		})
	}
	s.sql(`UPDATE accounts SET rate = 1000000000`)
	_, s.key = s.addLicense(license{})
	s.token = s.activate(s.key, "a").is(200).text("token")
	return s
}

// fillLicense writes another licence with two devices.
func (s *scaled) fillLicense(t *tx) error {
	n, key := len(s.keys), newLicenseKey()
	s.keys = append(s.keys, key)
	parsed, err := parseLicenseKey(key)
	if err != nil {
		return err
	}
	id, hash := t.newID("lic"), parsed.hash()
	t.exec(`INSERT INTO licenses (id, account_id, product, max_devices, expires_at, created_at, updated_at)
		VALUES (?, ?, 'kds', 1000, ?, ?, ?)`, id, s.accounts[n%len(s.accounts)],
		t.now.after(time.Duration(n%1000+1)*time.Hour), t.now, t.now)
	t.exec(`INSERT INTO license_keys (hash, license_id, hint, created_at) VALUES (?, ?, 'XXXXX', ?)`, hash[:], id,
		t.now)
	for d := range 2 {
		fingerprint := fingerprintHash(fmt.Sprint(key, d))
		deviceTable.insert(t, &device{ID: t.newID("dev"), LicenseID: id, Fingerprint: fingerprint[:],
			State: deviceActive, ActivatedAt: t.now, LastSeenAt: t.now, Activations: 1})
	}
	return nil
}

// BenchmarkScale compares what a request costs in a small and in a large database, in turn, so that whatever else the
// machine does weighs on both.
func BenchmarkScale(b *testing.B) {
	small, large := newScaled(b, 1000), newScaled(b, *scaleLicenses)
	anyKey := func(s *scaled) string { return s.keys[rand.IntN(len(s.keys))] }
	forget := func(s *scaled) { s.store.drops.drop("") } // nothing comes from memory
	verify := func(s *scaled) {
		s.post("/widget/license/verify", `{}`, "Authorization: Bearer "+s.token).is(200)
	}
	devices := 0
	activate := func(s *scaled, key string) {
		devices++
		s.activate(key, fmt.Sprint(devices)).is(200)
	}
	for _, c := range []struct {
		name string
		call func(*scaled)
	}{
		{"verify", verify},
		{"verifyFromTheFile", func(s *scaled) { forget(s); verify(s) }},
		{"verifyAnyFromTheFile", func(s *scaled) {
			forget(s)
			s.post("/widget/license/verify", fmt.Sprintf(`{"license_key":%q}`, anyKey(s))).is(200)
		}},
		{"activate", func(s *scaled) { activate(s, s.key) }},
		{"activateAny", func(s *scaled) { activate(s, anyKey(s)) }},
		{"transitionsDue", func(s *scaled) { s.check(second(s.store.transitionsDue(newStamp(time.Now())))) }},
		{"v_licenses", func(s *scaled) {
			s.count(`SELECT sum(length(status) + seats_used) FROM v_licenses WHERE account_id = ?`, s.accounts[0])
		}},
		{"open", func(s *scaled) {
			st, err := openStore(filepath.Join(s.dir, "widgetd.db"), storeOptions{noCheckpoints: true})
			s.check(err)
			s.check(st.close())
		}},
	} {
		b.Run(c.name, func(b *testing.B) {
			var took [2][]time.Duration
			for b.Loop() {
				for i, s := range []*scaled{small, large} {
					start := time.Now()
					c.call(s)
					took[i] = append(took[i], time.Since(start))
				}
			}
			a, z := median(took[0]), median(took[1])
			b.ReportMetric(float64(a)/1e3, "small-µs")
			b.ReportMetric(float64(z)/1e3, "large-µs")
			b.ReportMetric(float64(z)/float64(a), "large/small")
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
type hookCounter struct {
	got  atomic.Int64
	wait chan struct{} // until which no answer goes out; nil: it answers at once
}

func (c *hookCounter) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	c.got.Add(1)
	if c.wait != nil {
		<-c.wait
	}
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

// BenchmarkWebhooks_writing posts leads without webhooks, with ten that answer, with ten that hang, and with ten that
// want other events.
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
			s := newService(b, admitLoopback)
			there := &hookCounter{}
			if c.hangs {
				there.wait = make(chan struct{})
				defer close(there.wait)
			}
			url := serveHere(b, there)
			for i := range c.hooks {
				s.subscribe(s.account, fmt.Sprint(url, "/", i), c.kind)
			}
			stop := s.startSending()
			for n := 0; b.Loop(); n++ {
				s.change(func(t *tx) error { return addNewsletter(t, s.account, n) })
			}
			stop()
		})
	}
}

// newBusyShop makes a shop on real sockets.
func newBusyShop(b *testing.B) *shop {
	s := &shop{faults: map[string][]providerFault{}, method: methodCard, currency: "CHF"}
	s.provider = newTestProvider(newOutbound(demoOutbound), "", time.Now)
	s.provider.base = serveHere(b, s.provider.handler())
	s.provider.deliver = func(string, func() int) {}
	s.provider.watch = s.meddle
	b.Cleanup(s.provider.close)
	s.service = newService(b, withoutAddressLimits, func(_ *storeOptions, o *serverOptions) {
		o.outboundAllow, o.urls = demoOutbound, map[string]string{"stripe-url": s.provider.base}
	})
	s.engine = paymentsOf(s.server)
	s.connect(providerStripe)
	return s
}

// BenchmarkPayment_notices posts webhooks of a provider, 200 a second, while -attempts attempts are pending and polled,
// and measures how long they take to be answered, and the memory in use.
func BenchmarkPayment_notices(b *testing.B) {
	s := newBusyShop(b)
	pending := make([]*payment, *attemptsPending)
	for i := range pending {
		pending[i] = s.start(s.place().ID)
	}
	url := serveHere(b, s.server) + "/v1/payments/stripe/" + s.connection
	conn, err := s.store.paymentConnection(anyAccount, s.connection)
	s.check(err)
	open, err := conn.open(s.keys)
	s.check(err)
	reportHeap := measureHeap(b)
	s.takeCalls()
	stop := s.work()
	answered := make([]time.Duration, max(b.N, 200))
	var posts sync.WaitGroup
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	b.ResetTimer()
	pace := time.NewTicker(time.Second / 200)
	defer pace.Stop()
	for i := range answered {
		<-pace.C
		posts.Go(func() {
			body := fmt.Appendf(nil, `{"id":"evt_%d","object":"event","type":"checkout.session.completed",`+
				`"data":{"object":{"id":"cs","object":"checkout.session","client_reference_id":%q}}}`,
				i, pending[i%len(pending)].ID)
			at := time.Now().Unix()
			r, _ := http.NewRequest("POST", url, bytes.NewReader(body))
			r.Header.Set("Stripe-Signature", fmt.Sprintf("t=%d,v1=%s", at,
				signStripe(open.secrets.WebhookSecret, at, body)))
			began := time.Now()
			res, err := client.Do(r)
			if err != nil || res.StatusCode != http.StatusNoContent {
				b.Errorf("a webhook: %v %v", res, err)
				return
			}
			res.Body.Close()
			answered[i] = time.Since(began)
		})
	}
	posts.Wait()
	b.StopTimer()
	reportWaits(b, answered)
	reportHeap()
	b.ReportMetric(float64(len(s.takeCalls()))/b.Elapsed().Seconds(), "provider-calls/s")
	stop()
}

// yearOfDays is how many days benchmarks of money have, which end yesterday.
const yearOfDays = 365

// firstOfYear is the first of those.
func firstOfYear() time.Time {
	return time.Now().UTC().AddDate(0, 0, -yearOfDays).Truncate(24 * time.Hour)
}

// BenchmarkRevenue reads a day among a year of 30 sums and 1,000 orders a day, and lists the year.
func BenchmarkRevenue(b *testing.B) {
	s, first := newBusyService(b), firstOfYear()
	o, date := s.addOrder(nil), func(day int) string { return first.AddDate(0, 0, day).Format(time.DateOnly) }
	for day := range yearOfDays {
		s.sql(`INSERT INTO revenue_days (account_id, date, currency) VALUES (?, ?, 'CHF')`, s.account, date(day))
		s.sql(manyRows(30)+`INSERT INTO revenue_sums SELECT ?, ?, 'CHF', iif(n.i % 2, 'card', 'cash'), 0,
			CASE n.i % 5 WHEN 0 THEN 'refund' WHEN 1 THEN 'delivery' ELSE 'sale' END, n.i * 10, 'food', n.i * 1000,
			n.i * 50 FROM n`, s.account, date(day))
		s.sql(manyRows(1000)+`INSERT INTO revenue_facts (account_id, order_id, source, currency, date, own_date, at,
			method, test, figures) SELECT ?1, ?2, 'sale', 'CHF', ?3, ?3, ?4, 'card', 0,
			'[{"what":"sale","rate":260,"group":"food","gross":3515,"vat":89},{"what":"tip","gross":200}]'
			FROM n`, s.account, o.ID, date(day), date(day)+"T12:00:00Z")
	}
	auth := s.accountant()
	b.Run("day", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			s.get("/revenue/days/"+date(i%yearOfDays), auth).is(200)
		}
	})
	b.Run("year", func(b *testing.B) {
		for b.Loop() {
			s.get(fmt.Sprintf("/revenue/days?from=%s&to=%s", date(0), date(yearOfDays)), auth).is(200)
		}
	})
}

// BenchmarkDays reads 14 of 100 days, with -long of two years, in which each day has 200 orders, leads and activations,
// and 20 widgets.
func BenchmarkDays(b *testing.B) {
	s, past := newService(b), size(100, 730)
	for range 19 {
		s.addWidget(s.account)
	}
	s.seedDays(past, func(int) int { return 200 }, s.account)
	s.sql(`WITH RECURSIVE q (i) AS (VALUES (0) UNION ALL SELECT i + 1 FROM q WHERE i < ?1 * 96) INSERT OR IGNORE
		INTO widget_counts (widget_id, quarter, views) SELECT w.id, strftime('%Y-%m-%dT%H:%M:00Z', 'now',
		'start of day', (-15 * i) || ' minutes'), 3 FROM q, widgets w`, past)
	for name := range daySeriesOf(nil) {
		s.sql(manyRows(400)+`INSERT INTO daily_counts SELECT date('now', -i || ' days'), ?, i FROM n`,
			fmt.Sprint("name", name))
	}
	for b.Loop() {
		s.check(second(readDays(s.store.queries, "", defaultDays, time.Now())))
	}
}

// rowsOfPayouts is how many rows the payouts of a year have together.
const rowsOfPayouts = 100_000

// newPayoutYear makes a till with a year of payouts, all that is in which is of payments of its account.
func newPayoutYear(b *testing.B) *till {
	k := newTill(b, providerStripe, false, false)
	_, paid := k.orderOf(k.sell(methodCard, 2000, 50))
	k.sql(manyRows(rowsOfPayouts)+`INSERT INTO payments (id, order_id, account_id, connection_id, provider, method,
			state, amount, currency, captured, revision, created_at, intent_id)
		SELECT printf('pay_%026d', n.i), p.order_id, p.account_id, p.connection_id, p.provider, p.method, p.state,
			p.amount, p.currency, p.captured, p.revision, p.created_at, printf('pi_b%d', n.i)
		FROM payments p, n WHERE p.id = ?`, paid)
	each := rowsOfPayouts/yearOfDays + 1
	for day := range yearOfDays {
		at := firstOfYear().AddDate(0, 0, day)
		id := fmt.Sprintf("pot_%026d", day)
		k.sql(`INSERT INTO payouts (id, account_id, connection_id, provider, provider_id, state, amount, currency,
				arrival_date, automatic, created_at, read_at, items)
			VALUES (?1, ?2, ?3, 'stripe', ?1, 'paid', 500000, 'SEK', ?4, 1, ?5, ?5, ?6)`, id, k.account, k.connection,
			at.Format(time.DateOnly), newStamp(at), each)
		k.sql(manyRows(each)+`INSERT INTO payout_items (payout_id, id, category, kind, amount, fee, tax, method, source,
				payment_id, at)
			SELECT ?1, printf('txn_%d', n.i), iif(n.i % 20, 'payment', 'refund'), 'charge', 2000, 50, 0, 'card', 'ch_1',
				printf('pay_%026d', 1 + (?2 + n.i) % ?4), ?3 FROM n`, id, day*each, newStamp(at), rowsOfPayouts)
	}
	return k
}

// BenchmarkPayout measures a year of payouts: listing it by pages of 100, a page of 100 rows of one with their orders,
// showing one with the sums of what is in it, and keeping one of 1,000 rows, as it is told by page.
func BenchmarkPayout(b *testing.B) {
	k := newPayoutYear(b)
	auth := k.auth(k.account, scopeRevenue, scopeOrders)
	b.Run("list", func(b *testing.B) {
		for b.Loop() {
			list, _ := k.everyPage("/payouts?limit=100&from="+firstOfYear().Format(time.DateOnly), auth)
			equal(b, "payouts", len(list), yearOfDays)
		}
	})
	for name, path := range map[string]string{"items": "/items?limit=100&cursor=txn_1", "show": ""} {
		b.Run(name, func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				k.get(fmt.Sprintf("/payouts/pot_%026d%s", i%yearOfDays, path), auth).is(200)
			}
		})
	}
	b.Run("read", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			k.readsThousandRows(i)
		}
		b.ReportMetric(float64(len(k.there.takeCalls()))/float64(b.N), "calls/op")
	})
}

// readsThousandRows keeps a payout of 1,000 rows, the i-th that is told, without waiting for turns at the provider.
func (k *till) readsThousandRows(i int) {
	rows := make([]ledgerRow, 1000)
	for n := range rows {
		rows[n] = k.row(rowPayment, 2000, 50, func(r *ledgerRow) {
			r.intentID = fmt.Sprintf("pi_b%d", 1+(i*1000+n)%rowsOfPayouts)
		})
	}
	p := k.arriving(1, rows...)
	p.arrival = time.Now().UTC().Format(time.DateOnly)
	k.there.told = []payoutReport{p}
	for more := true; more; {
		source, err := k.store.paymentConnection(anyAccount, k.connection)
		k.check(err)
		k.check(k.store.update(k.t.Context(), func(t *tx) error {
			reading, err := t.payoutToRead(k.connection)
			if err != nil {
				return err
			}
			if reading != nil {
				rows, next, err := k.there.payoutRows(k.t.Context(), nil, *reading.ProviderID, reading.Cursor)
				if err != nil {
					return err
				}
				return k.payouts.addPage(t, reading, rows, next)
			}
			news, err := k.there.payouts(k.t.Context(), nil, source.PayoutsCursor, p.arrival, time.Now())
			if err != nil {
				return err
			}
			more, err = k.payouts.saveNews(t, source, news)
			return err
		}))
	}
	if row := k.payout(p); row.Items != 1000 || row.Reason != nil {
		k.t.Fatalf("it has %d rows, held for %q", row.Items, valueOr(row.Reason, ""))
	}
}

// manyDays gives 50 accounts a connection with books each, and -days days, all of them posted.
func (s *service) manyDays() (connections []*bookConnection) {
	s.t.Helper()
	for _, account := range s.addAccounts(50) {
		s.change(func(t *tx) error {
			c, err := addBooks(t, s.keys, account, productXero,
				func(c *bookConnection) { c.SendFrom = ptr("2021-01-01") })
			connections = append(connections, c)
			return err
		})
		c := connections[len(connections)-1]
		s.sql(manyRows(*bookedDays)+`INSERT INTO revenue_days (account_id, date, currency)
			SELECT ?, date('2021-01-01', (i - 1) || ' days'), 'CHF' FROM n`, account)
		s.sql(`INSERT INTO revenue_sums (account_id, date, currency, method, test, what, rate, group_name, gross, vat)
			SELECT account_id, date, currency, 'card', 0, 'sale', 810, '', 1000, 75
			FROM revenue_days WHERE account_id = ?`, account)
		s.sql(`INSERT INTO books_exports (id, connection_id, account_id, date, currency, revision, entry_date, state,
			sync_key, created_at) SELECT 'exp_' || ?1 || date, ?2, account_id, date, currency, 1, date, 'posted', date,
			'2026-01-01T00:00:00Z' FROM revenue_days WHERE account_id = ?1`, account, c.ID)
	}
	return connections
}

// BenchmarkBooks_lookUps measures what the worker asks the database each second or minute, and what status and
// the metrics ask, with 50 connections and -days days each, all of which are in the books; then with all of them
// held. Five years of days are measured by
//
//	go test -run '^$' -bench Books_lookUps -days 1826 .
func BenchmarkBooks_lookUps(b *testing.B) {
	s := newService(b, withoutAddressLimits)
	connections := s.manyDays()
	now := newStamp(time.Now())
	w := newBooksWorker(booksOf(s.server))
	lookUps := []struct {
		name string
		ask  func() error
	}{
		{"dueConnections", func() error { return second(s.store.dueConnections(now, 2*maxExporting)) }},
		{"dueExports", func() error { return second(s.store.dueExports(connections[0].ID, now, exportsAtOnce)) }},
		{"unsentDays", func() error {
			return second(s.store.unsentDays(connections[0], "2021-01-01", "2026-01-01", daysAtOnce))
		}},
		{"enqueue", func() error { w.enqueue(b.Context()); return nil }},
		{"totals", func() error { _, err := s.store.booksTotals(now); return err }},
		{"troubled", func() error { _, _, _, err := s.store.countSince(booksTroubles[1].query, now, now); return err }},
	}
	for _, state := range []string{exportPosted, exportHeld} {
		if state == exportHeld {
			s.sql(`UPDATE books_exports SET state = 'held', held_at = '2026-01-01T00:00:00Z',
				due_at = '2026-01-01T00:00:00Z'`)
		}
		for _, l := range lookUps {
			b.Run(state+"/"+l.name, func(b *testing.B) {
				for b.Loop() {
					s.check(l.ask())
				}
			})
		}
	}
}

// BenchmarkBooks_morning has a service in a process of its own send a day of some accounts, half of them with each
// product, whose charts have 1,000 accounts each; with -long they are 50. It reports the most memory that the process
// ever had.
func BenchmarkBooks_morning(b *testing.B) {
	for b.Loop() {
		k, each := startKilledBookkeeper(b), size(4, 25)
		manyCompanies(k.xero, k.fortnox, each)
		days := map[string]businessDate{} // by connection
		for i := range 2 * each {
			k.product = bookProducts[i%2].name
			k.xero.consent, k.fortnox.owner = k.xero.companies[i/2:i/2+1], k.fortnox.companies[i/2]
			account := k.object("account", "add", fmt.Sprint("Trattoria ", i))["id"].(string)
			k.do("origin", "add", fmt.Sprintf("https://trattoria%d.example", i), "-account", account)
			k.connect(account, fmt.Sprintf("https://trattoria%d.example", i))
			days[k.connection] = k.sell(1)[0]
		}
		for connection, day := range days {
			k.do("books", "export", "send", connection, day)
		}
		k.serve()
		idle := k.peak()
		began := time.Now()
		k.awaitPosted()
		b.ReportMetric(time.Since(began).Seconds(), "s")
		b.ReportMetric(idle, "idle-MiB")
		b.ReportMetric(k.peak(), "peak-MiB")
		k.down(os.Kill)
	}
}

// peak returns the most memory that the process has had so far, in MiB.
func (k *killedBookkeeper) peak() float64 {
	k.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", k.process.cmd.Process.Pid))
	if err != nil {
		k.t.Skip("there is no /proc:", err)
	}
	found := regexp.MustCompile(`(?m)^VmHWM:\s+(\d+) kB$`).FindSubmatch(text)
	if found == nil {
		k.t.Skip("/proc does not tell the peak of memory")
	}
	kilobytes, _ := strconv.ParseFloat(string(found[1]), 64)
	return kilobytes / 1024
}

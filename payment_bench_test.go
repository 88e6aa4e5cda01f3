package main

import (
	"bytes"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

var attemptsPending = flag.Int("attempts", 100, "how many attempts are pending in benchmarks of payments")

// newBusyShop makes a shop on real sockets, whose provider's own time is added to took.
func newBusyShop(b *testing.B) (s *shop, took *atomic.Int64) {
	took = &atomic.Int64{}
	s = &shop{faults: map[string][]providerFault{}, method: methodCard, currency: "CHF"}
	s.provider = newTestProvider(newOutbound(demoOutbound), "", time.Now)
	answers := s.provider.handler()
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began := time.Now()
		answers.ServeHTTP(w, r)
		took.Add(int64(time.Since(began)))
	}))
	b.Cleanup(web.Close)
	s.provider.base = web.URL
	s.provider.deliver = func(string, func() int) {}
	s.provider.watch = s.meddle
	b.Cleanup(s.provider.close)
	s.service = newService(b, withoutAddressLimits, func(_ *storeOptions, o *serverOptions) {
		o.outboundAllow, o.urls = demoOutbound, map[string]string{"stripe-url": web.URL}
	})
	s.engine = paymentsOf(s.server)
	s.connect(providerStripe)
	return s, took
}

// BenchmarkPayment_notices posts webhooks of a provider, 200 a second, while -attempts attempts are
// pending and polled, and measures how long they take to be answered, and the memory in use.
func BenchmarkPayment_notices(b *testing.B) {
	s, _ := newBusyShop(b)
	pending := make([]*payment, *attemptsPending)
	for i := range pending {
		pending[i] = s.start(s.place().ID)
	}
	web := httptest.NewServer(s.server)
	defer web.Close()
	conn, err := s.store.paymentConnection(anyAccount, s.connection)
	s.check(err)
	open, err := conn.open(s.keys)
	s.check(err)
	idle := heapInUse()
	s.takeCalls()
	stop := s.work()
	n := max(b.N, 200)
	answered := make([]time.Duration, n)
	var posts sync.WaitGroup
	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}
	b.ResetTimer()
	pace := time.NewTicker(time.Second / 200)
	defer pace.Stop()
	for i := range n {
		<-pace.C
		posts.Go(func() {
			body := fmt.Appendf(nil, `{"id":"evt_%d","object":"event","type":"checkout.session.completed",`+
				`"data":{"object":{"id":"cs","object":"checkout.session","client_reference_id":%q}}}`,
				i, pending[i%len(pending)].ID)
			at := time.Now().Unix()
			r, _ := http.NewRequest("POST", web.URL+"/v1/payments/stripe/"+s.connection, bytes.NewReader(body))
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
	slices.Sort(answered)
	b.ReportMetric(float64(answered[n*99/100].Microseconds())/1000, "p99-ms")
	b.ReportMetric(float64(answered[n/2].Microseconds())/1000, "median-ms")
	b.ReportMetric(float64(int64(heapInUse())-int64(idle))/(1<<20), "added-MiB")
	b.ReportMetric(float64(len(s.takeCalls()))/b.Elapsed().Seconds(), "provider-calls/s")
	stop()
}

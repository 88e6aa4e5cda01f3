package main

import (
	"bytes"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// randomAnswer makes an answer of verify with odd texts in it.
func randomAnswer(r *rand.Rand) *verifyResponse {
	texts := []string{"", "kds", "Gold \"100%\"", "a\\b", "<&>", "é😀", "\u2028\u2029", "tab\there", "\x7f"}
	text := func() string { return texts[r.IntN(len(texts))] }
	optional := func() *string {
		if r.IntN(2) == 0 {
			return nil
		}
		return ptr(text())
	}
	count := func() *int {
		if r.IntN(2) == 0 {
			return nil
		}
		return ptr(r.IntN(100))
	}
	moment := func() stamp {
		if r.IntN(2) == 0 {
			return stamp{}
		}
		return newStamp(time.Unix(r.Int64N(4_000_000_000), 0))
	}
	v := &verifyResponse{Valid: r.IntN(2) == 0, Code: "valid", Detail: "The licence is valid.", CheckedAt: newStamp(time.Unix(r.Int64N(4_000_000_000), 0)), Nonce: text()}
	if r.IntN(4) > 0 {
		v.License = &licenseView{"lic_1", text(), optional(), "floating", "active", r.IntN(2) == 0, moment(), moment(), codeList{}, seats{r.IntN(9), count(), count()}}
		for range r.IntN(3) {
			v.License.Entitlements = append(v.License.Entitlements, text())
		}
	}
	if r.IntN(2) == 0 {
		v.Device = &deviceState{"dev_1", optional(), "active"}
	}
	if r.IntN(2) == 0 {
		v.Token, v.ExpiresIn, v.RefreshAfter = "e30.e30.AA", r.Int64N(1000), r.Int64N(3)
	}
	return v
}

func TestVerifysOwnEncoderWritesWhatEncodingJSONDoes(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2026))
	for range 2000 {
		v := randomAnswer(r)
		var want bytes.Buffer
		enc := json.NewEncoder(&want)
		enc.SetEscapeHTML(false)
		if err := enc.Encode((*plainAnswer)(v)); err != nil {
			t.Fatal(err)
		}
		if got := encodeJSON(v); !bytes.Equal(got, want.Bytes()) {
			t.Fatalf("got  %s\nwant %s", got, want.Bytes())
		}
	}
}

// plainAnswer is a verifyResponse that encoding/json encodes.
type plainAnswer verifyResponse

func BenchmarkVerifyAnswer(b *testing.B) {
	id := newID("lic", time.Now())
	v := &verifyResponse{Valid: true, Code: "valid", Detail: verdictDetails["valid"], CheckedAt: newStamp(time.Now()), RefreshAfter: 86400,
		License: &licenseView{ID: id, Product: "kds", Kind: "node_locked", Status: "active", Entitlements: codeList{"kds"}, Seats: seats{1, ptr(3), ptr(2)}},
		Device:  &deviceState{ID: id, Name: ptr("Kitchen 1"), State: "active"}}
	b.Run("own", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			encodeJSON(v)
		}
	})
	b.Run("encoding/json", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			encodeJSON((*plainAnswer)(v))
		}
	})
}

// discard is a ResponseWriter that keeps nothing.
type discard struct{ header http.Header }

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) Write(b []byte) (int, error) { return len(b), nil }
func (d *discard) WriteHeader(int)             {}

// BenchmarkAlone is what the service itself adds to a request: the handler without
// net/http's part and without the harness.
func BenchmarkAlone(b *testing.B) {
	s := newService(b, withoutAddressLimits)
	s.change(func(t *tx) error { return t.setRate(s.account, 1_000_000) })
	_, key := s.addLicense(license{MaxDevices: ptr(3)})
	token := s.activate(key, "kitchen-1").is(200).text("token")
	stats := "/widget/stats?widget=" + s.addWidget(s.account)
	tag := s.get(stats).is(200).header.Get("ETag")
	for name, c := range map[string]struct{ method, path, body, header, value string }{
		"verify/token":       {"POST", "/widget/license/verify", `{}`, "Authorization", "Bearer " + token},
		"verify/key":         {"POST", "/widget/license/verify", activateBody(key, "kitchen-1"), "", ""},
		"stats":              {"GET", stats, "", "", ""},
		"stats/zone":         {"GET", stats + "&timezone=Europe/Zurich", "", "", ""},
		"stats/not modified": {"GET", stats, "", "If-None-Match", tag},
	} {
		b.Run(name, func(b *testing.B) {
			s.server.accounts = newLimiter(maxAccountBuckets) // a million requests a run
			body := strings.NewReader(c.body)
			r := httptest.NewRequest(c.method, "/v1"+c.path, body)
			r.Header.Set("Content-Type", "application/json")
			if c.header != "" {
				r.Header.Set(c.header, c.value)
			}
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

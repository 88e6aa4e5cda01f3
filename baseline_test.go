package main

import (
	"encoding/json"
	"flag"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"
)

// The baseline is what load.sh holds the service against: net/http itself, which
// reads and decodes the same JSON and answers a constant.
var (
	baselineAddr = flag.String("baseline", "", "address to serve the baseline of load.sh on")
	baselineFor  = flag.Duration("baseline-for", time.Minute, "how long to serve it")
)

func TestBaselineForLoadMeasurements(t *testing.T) {
	if *baselineAddr == "" {
		*baselineAddr, *baselineFor = "127.0.0.1:0", time.Millisecond
	}
	// The constants have the length of what the service answers.
	posted := []byte(`{"valid":true,"code":"valid","detail":"The licence is valid.","checked_at":"2026-11-21T10:43:26Z","license":{` +
		`"id":"lic_01m7yxmxbrv5yxng1bhejj7dys","product":"kds","plan":null,"kind":"node_locked","status":"active","trial":false,"expires_at":null,` +
		`"grace_until":null,"entitlements":[],"seats":{"used":1,"max":2,"free":1}},"device":{"id":"dev_01m7yxmxbr5w1kyz1ng53f97vz","name":null,` +
		`"state":"active"},"refresh_after":86400}` + "\n")
	got := []byte(`{"series":[` + strings.Repeat(`{"date":"2026-11-21","views":0,"visitors":0,"clicks":0},`, 30) + `{}]}` + "\n")
	listener, err := net.Listen("tcp", *baselineAddr)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/v1/", func(w http.ResponseWriter, r *http.Request) {
		constant := got
		if r.Method == http.MethodPost {
			constant = posted
			body, err := io.ReadAll(r.Body)
			var members map[string]any
			if err != nil || json.Unmarshal(body, &members) != nil {
				http.Error(w, "not JSON", http.StatusBadRequest)
				return
			}
		}
		w.Header().Set("Content-Type", "application/json")
		w.Write(constant)
	})
	web := &http.Server{Handler: mux, ReadHeaderTimeout: headerTimeout, ReadTimeout: readTimeout, WriteTimeout: writeTimeout, IdleTimeout: idleTimeout}
	time.AfterFunc(*baselineFor, func() { web.Close() })
	if err := web.Serve(listener); err != http.ErrServerClosed {
		t.Fatal(err)
	}
}

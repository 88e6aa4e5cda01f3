package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// axeRules are what .ci/clients/axe.mjs has axe-core look for.
var axeRules = []string{"wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"}

// TestClients_axeFindsNothingOnAPageOfAnyStateOfAnOrder has axe-core judge, as .ci/clients/axe.mjs does for the
// other pages, each that a guest may come to see: of every state, with every kind of button and message.
func TestClients_axeFindsNothingOnAPageOfAnyStateOfAnOrder(t *testing.T) {
	t.Parallel()
	axe, err := os.ReadFile(filepath.Join(clientsDirectory(t), "node_modules", "axe-core", "axe.min.js"))
	must(t, err)
	programsOrSkip(t, "chromium", "chromedriver")
	g := newGuestService(t, withoutAddressLimits)
	open := g.lunch()
	pages := []answer{g.page(open), g.get(open.path("") + "x"), g.presses(open, "cash"),
		g.get(open.path("") + "&left=1"), g.post(open.path(""), "way=card", formType)}
	for _, c := range guestStates {
		pages = append(pages, g.returns(g.inState(c)))
	}
	g.sql(`UPDATE payment_connections SET methods = '["twint","card"]'`)
	pages = append(pages, g.page(open))
	for _, color := range []string{"#1a6b3c", "#b3261e", "#6a3fb5", "#000000", "#767600"} {
		nearest, _ := parseColor(color)
		g.set("-color", nearest.readableOn(lightPaper, black).String())
		pages = append(pages, g.page(open), g.returns(g.inState(guestState{orderPaid, paymentCaptured, nil, nil})))
	}
	g.sql(`UPDATE payment_connections SET provider = 'vipps', methods = '[]'`)
	pages = append(pages, g.page(g.lunch(func(o *order) { o.Currency = "NOK" })))
	g.sql(`UPDATE payment_connections SET removed_at = created_at`)
	pages = append(pages, g.page(open))
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var page int
		if _, err := fmt.Sscanf(r.URL.Path, "/%d", &page); err == nil && page < len(pages) {
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			fmt.Fprint(w, pages[page].body)
		}
	}))
	t.Cleanup(web.Close)
	b := startBrowser(t)
	for i, page := range pages {
		for scheme, width := range map[string]int{"light": 360, "dark": 1280} {
			b.emulate("Emulation.setEmulatedMedia",
				node{"features": []any{node{"name": "prefers-color-scheme", "value": scheme}}})
			b.emulate("Emulation.setDeviceMetricsOverride",
				node{"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": false})
			b.open(fmt.Sprint(web.URL, "/", i))
			found := b.await(string(axe)+`; const done = arguments[1];
				axe.run({ runOnly: arguments[0] }).then(({ passes, violations }) => done({ passes: passes.length,
					faults: violations.map((v) => v.id + ": " + v.nodes.map((n) => n.target)) }))`, axeRules).(node)
			if found["passes"].(float64) < 10 || len(found["faults"].([]any)) > 0 {
				title, _, _ := strings.Cut(page.body[strings.Index(page.body, "<title>"):], "</title>")
				t.Errorf("%s, %s: %v", title, scheme, found)
			}
		}
	}
}

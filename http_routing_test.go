package main

import (
	"strings"
	"testing"
)

func TestNearest_namesThePathBelowTheBaseAddressAsItIsNow(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.change(func(t *tx) error { return t.setBaseURL("https://api.example.com/api/v1") })
	s.check(s.server.refresh())
	for _, path := range []string{"//widget/lead", "//v1/widget/lead", "//api/v1/widget/lead", "//api/widget/leads"} {
		a := s.do("POST", path, "")
		if a.status != 404 || !strings.HasSuffix(a.text("detail"), " The nearest one is /api/v1/widget/leads.") {
			t.Errorf("%s: %s", path, a.body)
		}
	}
}

// FuzzNearest sends any path. What is answered is one of the service's own paths or nothing.
func FuzzNearest(f *testing.F) {
	s := newService(f)
	rt := s.server.routing.Load()
	for _, seed := range []string{"", "/", "/v1/widget/lead", "/widget//leads", "{id}", strings.Repeat("/v1", 42),
		strings.Repeat("a/", 64), "/\x00\xff"} {
		f.Add("GET", seed)
	}
	paths := map[string]bool{"": true}
	for _, k := range rt.known {
		paths[k.full] = true
	}
	f.Fuzz(func(t *testing.T, method, path string) {
		if got := rt.nearest(method, path); !paths[got] {
			t.Errorf("%s %q: %q", method, path, got)
		}
	})
}

package main

import (
	"strings"
	"testing"
)

func TestNearest_isNamedByThe404OfAPathThatIsAlike(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for asked, want := range map[string]string{
		"POST //v1/widget/lead":                          "/v1/widget/leads",
		"POST //v1/widget/laeds":                         "/v1/widget/leads",
		"POST //v1/widgets/leads":                        "/v1/widget/leads",
		"POST //v1/widget/leads/":                        "/v1/widget/leads",
		"POST //v1//widget/leads":                        "/v1/widget/leads",
		"POST //V1/Widget/Leads":                         "/v1/widget/leads",
		"POST //v2/widget/leads":                         "/v1/widget/leads",
		"POST //v1/v1/widget/leads":                      "/v1/widget/leads",
		"POST //widget/leads":                            "/v1/widget/leads",
		"POST //api/widget/leads":                        "/v1/widget/leads",
		"GET //leads":                                    "/v1/leads",
		"GET //v1/stats":                                 "/v1/widget/stats",
		"POST //v1/verify":                               "/v1/widget/license/verify",
		"POST //v1/lead":                                 "/v1/widget/leads", // /v1/leads takes no POST
		"GET //v1/lead":                                  "/v1/leads",
		"GET //v1/licences":                              "/v1/licenses",
		"GET //v1/licence":                               "/v1/licenses",
		"GET //v1/licenses/lic_x/device":                 "/v1/licenses/{id}/devices",
		"POST //licenses/lic_x/renew":                    "/v1/licenses/{id}/renew",
		"GET //v1/livez":                                 "/livez",
		"GET //.well-known/jwks":                         "/.well-known/jwks.json",
		"GET //v1/.well-known/jwks.json":                 "/.well-known/jwks.json",
		"GET //.well-known/oauth-authorization-server":   "/.well-known/oauth-authorization-server/v1",
		"GET //nothing/of/the/kind":                      "",
		"GET //v1/x":                                     "",
		"GET //v1/lic_01m7yy3y7mt03d6gh2898ysjcg":        "",
		"GET //v1":                                       "",
		"GET //widget/leads/" + strings.Repeat("x/", 7):  "",
		"GET //widget/leads/" + strings.Repeat("x", 128): "",
	} {
		method, path, _ := strings.Cut(asked, " ")
		detail := "There is nothing at this path."
		if want != "" {
			detail += " The nearest one is " + want + "."
		}
		if got := s.do(method, path, "").is(404, "not_found").text("detail"); got != detail {
			t.Errorf("%s: %q, want %q", asked, got, detail)
		}
	}
}

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

// BenchmarkNearest is what a 404 pays for a path that is like many and is none.
func BenchmarkNearest(b *testing.B) {
	rt := newService(b).server.routing.Load()
	for name, path := range map[string]string{
		"a letter off": "/v1/widget/license/verifi",
		"far":          "/v1/licensex/wxdgetxx/licenqqx",
		"long":         "/" + strings.Repeat("licenses/", 1000),
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				rt.nearest("POST", path)
			}
		})
	}
}

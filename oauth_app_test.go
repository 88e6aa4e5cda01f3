package main

import (
	"maps"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
)

// appBody is a body of POST /apps; change holds further members, or other values of those that it has.
func appBody(change ...any) string {
	members := map[string]any{"name": "Table Planner", "home_page": "https://app.example", "kind": "web",
		"redirect_uris": []string{testRedirect}, "scope": "orders:read orders:write"}
	for i := 0; i < len(change); i += 2 {
		members[change[i].(string)] = change[i+1]
	}
	return string(encodeJSON(members))
}

func TestApp_nameShowsWhatItIs(t *testing.T) {
	t.Parallel()
	for name, good := range map[string]bool{
		"Table Planner": true, "Café Größe №5": true, "テーブル管理": true, "מתכנן": true, "7": true,
		"Planner 😀": true, "a\u0301": true, // a mark on its letter
		"":   true, // left to who reads the member
		" x": false, "x ": false, "\u3000x": false, "x\u00a0": false, " ": false, "...": false, "⠀": false,
		"x\x00": false, "x\ny": false, "x\u0085y": false, "x\x7f": false, "x\u2028y": false, "x\u2029y": false,
		"x\u061cy": false, "x\u200ey": false, "x\u200fy": false, "x\u202ay": false, "x\u202by": false,
		"x\u202cy": false,
		"x\u202dy": false, "x\u202ey": false, "x\u2066y": false, "x\u2067y": false, "x\u2068y": false,
		"x\u2069y": false,
		"x\u200by": false, "x\u200cy": false, "x\u200dy": false, "x\u2060y": false, "x\ufeffy": false,
		"x\u00ady": false,
		"x\u180ey": false, "x\U000e0041y": false, "x\ufe0fy": false, "x\u3164y": false, "\u115f": false,
		"x\u034fy": false, "x\ue000y": false, "x\ufff9y": false,
	} {
		p := &app{Name: name}
		refused := ""
		p.normalise(func(member, code, _ string) { refused = member + " " + code })
		failIf(t, (refused == "") != good || !good && refused != "name invalid_character", "%q: %q", name, refused)
	}
}

// redirects are addresses with the kinds of applications that may have them: w(eb), b(rowser), i(nstalled).
var redirects = map[string]string{
	"https://app.example/back": "wbi", "https://app.example": "wbi", "https://app.example:8443/a/b?x=1&y=%20": "wbi",
	"https://App.Example/Back": "wbi", "https://xn--bcher-kva.example/": "wbi", "https://app.example/a%2Fb": "wbi",
	"https://app.example/?": "wbi", "https://localhost/back": "wbi", "https://[2001:db8::1]/back": "wbi",
	"http://127.0.0.1/back": "i", "http://127.0.0.1:8123/back": "i", "http://[::1]/back": "i", "http://[::1]:9/": "i",
	"http://127.0.0.1": "i", "com.example.app:/back": "i", "com.example.app://back": "i", "com.example-2.app:/": "i",
}

// wrongRedirects are addresses that no kind may have.
var wrongRedirects = append(strings.Fields(`
	http://app.example/back http://localhost/back http://localhost.:1/ http://127.0.0.2/ http://127.1/
	http://0x7f000001/ http://2130706433/ http://0177.0.0.1/ http://[0:0:0:0:0:0:0:1]/ http://[::ffff:127.0.0.1]/
	http://[::1%25lo]/ http://::1/ http://127.0.0.1.evil.example/ http://127.0.0.1@evil.example/
	http://evil.example#127.0.0.1 http://127.0.0.1:0/ http://127.0.0.1:99999/ http://127.0.0.1:x/ http://127.0.0.1:/
	http://127.0.0.1\@evil.example/ HTTP://127.0.0.1/ http:/127.0.0.1/ http:127.0.0.1 https://app.example/back#
	https://app.example/back#x https://u@app.example/ https://u:p@app.example/ https://@app.example/
	https://*.app.example/ https://app.example/* https:///back https:app.example https:/app.example https://
	HTTPS://app.example/ //app.example/back /back app.example/back https://bücher.example/ https://app.example/%zz
	https://app..example/ https://app.example./ https://.example/ https://app.example:443x/
	https://app.example/../admin https://app.example/%2e%2e/admin https://app.example/.
	https://app.example\evil.example/ https://app.example/<script> https://app.example/{x} https://[::1/
	https://app.example%2eevil.example/ https://%61pp.example/ javascript:alert(1)
	javascript://app.example/%0aalert(1) JavaScript:/x data:text/html,x data:/text file:///etc/passwd vbscript:x
	blob:https://app.example/x about:blank urn:ietf:wg:oauth:2.0:oob ftp://app.example/ ws://app.example/
	intent://x#Intent;end myapp:/back com.example.app:back Com.Example.App:/back com..app:/back .app:/back
	com.:/back com.-app:/back com.a+b:/back com.example.app://u@back/ com.example.app:/back#x 1com.example:/back`),
	"", "https://app.example/\u00e9", "https://app.example/a b", "https://app.example/\n", "https://app.example/\x00",
	"com.example.app:/b ack")

func TestRedirectURI_isOneOfTheKindsOwn(t *testing.T) {
	t.Parallel()
	kinds := map[string]appKind{"w": appWeb, "b": appBrowser, "i": appInstalled}
	all := maps.Clone(redirects)
	for _, uri := range wrongRedirects {
		all[uri] = ""
	}
	for uri, may := range all {
		for letter, kind := range kinds {
			code, detail := checkRedirectURI(kind, uri)
			failIf(t, (code == "") != strings.Contains(may, letter) || (code == "") != (detail == ""),
				"%s, %q: %q %q", kind, uri, code, detail)
		}
	}
	long := "https://app.example/" + strings.Repeat("x", maxAppURL)
	if code, _ := checkRedirectURI(appWeb, long[:maxAppURL]); code != "" {
		t.Errorf("of %d characters: %s", maxAppURL, code)
	}
	if code, _ := checkRedirectURI(appWeb, long[:maxAppURL+1]); code != "too_long" {
		t.Errorf("of %d characters: %s", maxAppURL+1, code)
	}
	for page, good := range map[string]bool{"https://app.example/about": true, "http://127.0.0.1:3000/": true,
		"http://app.example/": false, "com.example.app:/": false, "javascript:alert(1)": false,
		"https://u@a.example/": false} {
		if code, _ := checkHomePage.of(page); (code == "") != good {
			t.Errorf("home page %s: %q", page, code)
		}
	}
}

func FuzzRedirectURI(f *testing.F) {
	for _, uri := range slices.AppendSeq(wrongRedirects, maps.Keys(redirects)) {
		f.Add(uri)
	}
	f.Fuzz(func(t *testing.T, uri string) {
		for _, kind := range registeredKinds {
			code, _ := checkRedirectURI(kind, uri)
			if code != "" {
				continue
			}
			u, err := url.Parse(uri)
			if err != nil || u.User != nil || u.Fragment != "" || strings.ContainsAny(uri, "#\\* \"<>") ||
				len(uri) > maxAppURL {
				t.Fatalf("%s takes %q: %v", kind, uri, err)
			}
			for _, b := range []byte(uri) {
				if b <= ' ' || b > '~' {
					t.Fatalf("%s takes %q", kind, uri)
				}
			}
			local := u.Scheme == "http" && (u.Hostname() == "127.0.0.1" || u.Hostname() == "::1")
			private := strings.Contains(u.Scheme, ".")
			if u.Scheme != "https" && (kind != appInstalled || !local && !private) || u.Scheme == "https" &&
				u.Host == "" {
				t.Fatalf("%s takes %q", kind, uri)
			}
		}
	})
}

func TestApp_ofAnAccountAreAtMostTwenty(t *testing.T) {
	t.Parallel()
	s := newService(t)
	auth := s.appAuth(s.account)
	for range maxApps - 3 {
		s.registerApp()
	}
	var calls sync.WaitGroup
	var mu sync.Mutex
	answers := map[int]int{}
	for range 6 {
		calls.Go(func() {
			a := s.post("/apps", appBody(), auth)
			mu.Lock()
			defer mu.Unlock()
			answers[a.status]++
		})
	}
	calls.Wait()
	failIf(t, answers[200] != 3 || answers[409] != 3, "answers %v", answers)
	s.post("/apps", appBody(), auth).is(409, "app_limit_reached")
	_, err := s.command("app", "add", "x", "-home-page", "https://a.example", "-redirect-uri", testRedirect, "-scope",
		scopeOrders)
	oneLine(t, err, "account has 20 applications already")
	ids, _ := s.everyPage("/apps?limit=7", auth)
	failIf(t, len(ids) != maxApps, "pages have %d", len(ids))
	s.do("DELETE", "/apps/"+ids[3].(string), "", auth).is(204)
	s.post("/apps", appBody(), auth).is(200)
}

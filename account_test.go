package main

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Against a server in the middle that would have a client believe it is another issuer: the metadata names its issuer
// and is at the path of that issuer only. Tokens and scripts of the earlier address hold until it is removed.
func TestBaseURL_thatWasReplacedHoldsUntilItIsRemoved(t *testing.T) {
	t.Parallel()
	s := newService(t)
	earlier := s.auth(s.account, scopeLeads)
	const next = "https://api.example.com/api/v1"
	before, err := presentScript(testBase)
	s.check(err)
	after, err := presentScript(next)
	s.check(err)
	s.get("/" + after.path).is(404)
	s.get("/" + serverMetadataPath + "/v1").is(200)
	s.must("base-url", "set", next)
	s.check(s.server.refresh()) // which the service does once a second
	current := s.auth(s.account, scopeLeads)
	c, err := s.keys.verify(strings.TrimPrefix(current, "Authorization: Bearer "))
	s.check(err)
	equal(t, "whom a new token names", []string{c.Issuer, c.Audience}, []string{next, next})
	s.get("/leads", earlier).is(200)
	s.get("/leads", current).is(200)
	c.Audience = testBase // accepted, but not the issuer's
	mixed, err := s.keys.sign(c)
	s.check(err)
	challenge := strings.ReplaceAll(invalidChallenge, "http://127.0.0.1:8080/.well-known/oauth-protected-resource/v1",
		"https://api.example.com/.well-known/oauth-protected-resource/api/v1")
	s.get("/leads", bearer(mixed)).is(401).has("WWW-Authenticate: " + challenge)
	for path, want := range map[string]widgetScript{"//widget.js": after, "/" + after.path: after,
		"/" + before.path: before} {
		equal(t, path, s.get(path).is(200).body, string(want.text))
	}
	for path, member := range map[string]string{serverMetadataPath: "issuer", resourceMetadataPath: "resource"} {
		equal(t, member, s.get("/"+path+"/api/v1").is(200).text(member), next)
	}
	s.damaged = true // the document does not have these paths any more
	for _, path := range []string{serverMetadataPath, resourceMetadataPath} {
		equal(t, path, s.get("/"+path+"/v1").status, 404) // although routes below the earlier one answer
	}
	s.must("base-url", "remove", testBase)
	s.check(s.server.refresh())
	s.get("/" + before.path).is(404)
	s.get("//api/v1/leads", earlier).is(401).has("WWW-Authenticate: " + challenge)
	s.get("//api/v1/leads", current).is(200)
}

// A base address that is taken is its own normal form, and net/url sees its path.
func FuzzBaseURL(f *testing.F) {
	for _, seed := range []string{testBase, "HTTPS://API.Example.com:443/api/v1", "https://[::1]:8080/v1",
		"https://a/v1/", "https://a/../v1", "https://a/%2e/v1", "https://a/api/legacy/v1", "https://u@a/v1",
		"https://a/v1?x", "//a/v1", "https:///v1"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, s string) {
		normal, path, err := parseBaseURL(s)
		if err != nil {
			return
		}
		again, same, err := parseBaseURL(normal)
		if err != nil || again != normal || same != path {
			t.Fatalf("%q is %q, and that is %q, %v", s, normal, again, err)
		}
		u, err := url.Parse(normal)
		if err != nil || u.Path != path || u.RawQuery != "" || u.Fragment != "" || u.User != nil ||
			cleanPath(path) != path || !strings.HasSuffix(path, "/v1") {
			t.Fatalf("%q is %q with the path %q, which net/url reads as %+v, %v", s, normal, path, u, err)
		}
	})
}

func TestAccount_closingSaysWhatStopsAndReopeningStartsItAgain(t *testing.T) {
	t.Parallel()
	s := newService(t)
	tenant := s.addAccount("Trattoria")
	auth := s.auth(tenant, scopeLeads)
	s.addWidget(tenant)
	s.addLicense(license{AccountID: tenant})
	s.must("license", "revoke", func() string { id, _ := s.addLicense(license{AccountID: tenant}); return id }())
	s.token(tenant, scopeStats)
	s.sql(`UPDATE tokens SET revoked_at = created_at WHERE scope = ?`, scopeStats)
	s.must("origin", "add", "https://a.example", "-account", tenant)
	s.must("origin", "add", "https://b.example", "-account", tenant)
	s.addWebhook(tenant, "lead.created")
	s.must("webhook", "disable", s.addWebhook(tenant, "lead.created"))
	own, _ := s.registerApp(func(p *app) { p.AccountID = tenant })
	s.appToken(own, tenant, scopeOrders)
	s.appToken(own, s.account, scopeOrders) // is another account's
	_, ended := s.appToken(own, tenant, scopeOrders)
	s.must("grant", "revoke", ended)
	s.change(func(t *tx) error {
		o := anOrder(tenant)
		o.ReturnURL = "https://a.example/thanks"
		_, err := createOrder(t, o, guest{}, minOrderLife, anActor)
		return errors.Join(err, bringTo(t, o, orderAuthorized))
	})
	want := `{"ok":true,"stopped":{"apps":1,"grants":1,"licenses":1,"origins":2,"payments":1,"tokens":1,` +
		`"webhooks":1,"widgets":1}}`
	equal(t, "what closing printed", s.must("account", "close", tenant, "-force", "-json"), want+"\n")
	s.hasRows(1, `payments WHERE due_at IS NOT NULL AND polls = 0`)
	s.get("/leads", auth).is(401)
	s.must("account", "reopen", tenant)
	s.get("/leads", auth).is(200)
	s.hasRows(2, `origins o JOIN accounts a ON a.id = o.account_id
		WHERE a.closed_at IS NULL AND origin LIKE 'https://_.example'`)
}

// audit returns what events say that were written after the given one, oldest first: type, actor,
// account, subject and data.
func (s *service) audit(after int) (all []string) {
	s.t.Helper()
	s.check(s.store.each(`SELECT type || ' ' || actor || ' ' || account_id || ' ' || subject_id || ' ' || data
		FROM events WHERE seq > ? ORDER BY seq`, []any{after}, func(scan func(...any) error) error {
		var line string
		err := scan(&line)
		all = append(all, line)
		return err
	}))
	return all
}

// pngOf is a PNG of a size, with more in it.
func pngOf(width, height int, more string) string {
	chunk := func(kind, data string) string {
		return string(binary.BigEndian.AppendUint32(nil, uint32(len(data)))) + kind + data + "\x00\x00\x00\x00"
	}
	size := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, uint32(width)), uint32(height))
	return "\x89PNG\r\n\x1a\n" + chunk("IHDR", string(size)+"\x08\x06\x00\x00\x00") + chunk("IDAT", more) +
		chunk("IEND", "")
}

// jpegOf is a JPEG of a size, whose frame has a marker.
func jpegOf(marker byte, width, height uint16) string {
	frame := []byte{0xff, marker, 0, 11, 8, byte(height >> 8), byte(height), byte(width >> 8), byte(width), 1, 0x11, 0}
	return "\xff\xd8\xff\xe0\x00\x04ab\xff\xc4\x00\x04cd" + string(frame) + "\xff\xd9"
}

// webpOf is a WebP with a chunk.
func webpOf(chunk string) string { return "RIFF\x00\x01\x00\x00WEBP" + chunk + "\x00\x00" }

// logoOf returns a change of an account that gives it a logo.
func logoOf(kind, text string) string {
	return `{"logo":"data:image/` + kind + `;base64,` + base64.StdEncoding.EncodeToString([]byte(text)) + `"}`
}

// Against whoever gives an account a logo that runs, loads or fills the browser of a guest, is something else than it
// says, or has something behind it. Nothing has changed then.
func TestAccount_refusesALogoThatDoesMoreThanDraw(t *testing.T) {
	t.Parallel()
	g := newGuestService(t)
	const none = "\x00\x00\x00\x00\x00"
	const svg = `<svg xmlns="http://www.w3.org/2000/svg"></svg>`
	refused := map[string]string{
		"SVG":                          logoOf("svg+xml", svg),
		"SVG in another encoding":      logoOf("svg+xml", "\xff\xfe<\x00s\x00v\x00g\x00"),
		"an SVG that says PNG":         logoOf("png", svg),
		"a PNG that says SVG":          logoOf("svg+xml", pngOf(1, 1, "")),
		"a JPEG that says PNG":         logoOf("png", jpegOf(0xc0, 1, 1)),
		"a PNG that is HTML":           logoOf("png", `<html><script>alert(1)</script></html>`),
		"HTML that says so":            `{"logo":"data:text/html;base64,PHA+eA=="}`,
		"a PNG that is too wide":       logoOf("png", pngOf(1025, 1, "")),
		"a PNG that is too high":       logoOf("png", pngOf(1, 1<<24, "")),
		"a PNG that is nothing":        logoOf("png", pngOf(0, 1, "")),
		"a PNG with HTML behind it":    logoOf("png", pngOf(1, 1, "")+"<script>alert(1)</script>"),
		"a PNG with another behind it": logoOf("png", pngOf(1, 1, "")+pngOf(1, 1, "")),
		"a PNG that is cut off":        logoOf("png", pngOf(1, 1, "")[:40]),
		"a PNG of its first bytes":     logoOf("png", pngOf(1, 1, "")[:8]),
		"a PNG with a chunk too long":  logoOf("png", strings.Replace(pngOf(1, 1, ""), "\x00IDAT", "\xffIDAT", 1)),
		"a JPEG that is too wide":      logoOf("jpeg", jpegOf(0xc0, 1025, 1)),
		"a JPEG that is too high":      logoOf("jpeg", jpegOf(0xc2, 1, 65535)),
		"a JPEG that tells later":      logoOf("jpeg", jpegOf(0xc0, 1, 0)),
		"a JPEG without a frame":       logoOf("jpeg", "\xff\xd8\xff\xd9"),
		"a JPEG that is cut off":       logoOf("jpeg", jpegOf(0xc0, 1, 1)[:20]),
		"a JPEG of its first bytes":    logoOf("jpeg", "\xff\xd8\xff"),
		"a WebP that is too wide":      logoOf("webp", webpOf("VP8X\x0a\x00\x00"+none+"\x00\x04"+none)),
		"a WebP that is too high":      logoOf("webp", webpOf("VP8 \x0a"+none+"\x00\x9d\x01\x2a\x01\x00\x01\x04")),
		"a lossless WebP, too wide":    logoOf("webp", webpOf("VP8L\x05\x00\x00\x00\x2f\x00\x04"+none)),
		"a lossless WebP, too high":    logoOf("webp", webpOf("VP8L\x05\x00\x00\x00\x2f\x00\x00\x00\x01"+none)),
		"a WebP of another kind":       logoOf("webp", webpOf("ALPH\x0a"+none+none+none)),
		"a WebP that is cut off":       logoOf("webp", webpOf("VP8L")),
		"a RIFF of another kind":       logoOf("webp", "RIFF"+none+none+none+none+none),
		"too much":                     logoOf("png", pngOf(1, 1, strings.Repeat("x", 32<<10-56))),
		"an address":                   `{"logo":"https://evil.example/x.png"}`,
		"an address after a data: URI": `{"logo":"data:image/png;base64,!https://evil.example"}`,
	}
	admin := g.auth(g.account, scopeAdmin)
	before := g.dump()
	for what, body := range refused {
		if a := g.do("PATCH", "/account", body, admin); a.status != 422 || !strings.Contains(a.body, `"invalid_logo"`) {
			t.Errorf("%s: %d %s", what, a.status, a.body)
		}
	}
	g.unchanged(before)
	contains(t, g.do("PATCH", "/account", refused["SVG"], admin).body, "send a PNG")
	file := filepath.Join(t.TempDir(), "logo.svg")
	must(t, os.WriteFile(file, []byte(svg), 0o600))
	_, err := g.command("account", "set", g.account, "-logo", file)
	contains(t, fmt.Sprint(err), "send a PNG")
}

// TestAccount_hasALogoAsLongAsItSays: each account its own, two the same, none when it is removed.
func TestAccount_hasALogoAsLongAsItSays(t *testing.T) {
	t.Parallel()
	g := newGuestService(t)
	admin := g.auth(g.account, scopeAdmin)
	drawn := pngOf(1024, 1024, strings.Repeat("x", 32<<10-57))
	hash := fmt.Sprintf("%x", hashOf(drawn))
	address := "/logo/" + hash
	g.get(address).is(404)
	g.do("PATCH", "/account", logoOf("png", drawn), admin).is(200).holds(`logo="` + testBase + address + `"`)
	logo := g.get(address, "Origin: https://evil.example").is(200).has("Content-Type: image/png",
		"X-Content-Type-Options: nosniff", "Cache-Control: public, max-age=31536000, immutable",
		"Content-Security-Policy: default-src 'none'; sandbox")
	equal(t, "the logo", logo.body, drawn)
	other := g.addAccount("other")
	file := filepath.Join(t.TempDir(), "logo.png")
	must(t, os.WriteFile(file, []byte(drawn), 0o600))
	shown, err := g.command("account", "set", other, "-logo", file)
	g.check(err)
	contains(t, shown, address)
	g.set("-logo", "")
	g.get(address).is(200) // the other account has it
	for kind, text := range map[string]string{"png": picturePNG(t, 2, 1), "jpeg": jpegOf(0xc2, 1024, 1024),
		"webp": webpOf("VP8X\x0a\x00\x00\x00\x00\x00\x00\x00\xff\x03\x00\xff\x03\x00")} {
		g.do("PATCH", "/account?account_id="+other, logoOf(kind, text), admin).is(200)
		g.get("/logo/" + fmt.Sprintf("%x", hashOf(text))).is(200).has("Content-Type: image/" + kind)
		must(t, os.WriteFile(file, []byte(text), 0o600))
		_, err := g.command("account", "set", other, "-logo", file)
		g.check(err)
	}
	for _, chunk := range []string{"VP8 \x0a\x00\x00\x00\x10\x00\x00\x9d\x01\x2a\x00\x44\x00\x44",
		"VP8L\x05\x00\x00\x00\x2f\xff\xc3\xff\x00\x00\x00\x00\x00\x00"} {
		g.do("PATCH", "/account?account_id="+other, logoOf("webp", webpOf(chunk)), admin).is(200)
	}
	g.get(address).is(404)
	g.do("PATCH", "/account?account_id="+other, `{"logo":null}`, admin).is(200).holds("logo=null")
	equal(t, "logos", g.count(`SELECT count(*) FROM logos`), 0)
	must(t, os.WriteFile(file, []byte(strings.Repeat("x", maxLogo+1)), 0o600))
	_, err = g.command("account", "set", other, "-logo", file)
	contains(t, fmt.Sprint(err), "more than 32 KiB")
}

// TestAccount_hasAColorThatCanBeReadInTheLightAndInTheDark: of every colour that is refused, the nearest that is not.
func TestAccount_hasAColorThatCanBeReadInTheLightAndInTheDark(t *testing.T) {
	t.Parallel()
	contains(t, pageStyle(), "--paper: "+lightPaper.String())
	contains(t, pageStyle(), "--card: "+darkCard.String())
	contains(t, pageStyle(), "--on-accent: #ffffff")
	contains(t, pageStyle(), "--on-accent: #0c1a2b")
	for c, step := 0, size(7, 1); c < 1<<12; c += step {
		given := rgb{byte(c >> 8 * 17), byte(c >> 4 & 15 * 17), byte(c & 15 * 17)}
		kept := given.readableOn(lightPaper, black)
		if code, detail := checkColor.of(kept.String()); code != "" {
			t.Errorf("%v is refused for %v: %s", kept, given, detail)
		}
		if code, detail := checkColor.of(given.String()); (code == "") != (kept == given) || kept != given &&
			!strings.Contains(detail, kept.String()) {
			t.Errorf("%v: %s %s, want %v", given, code, detail, kept)
		}
		dark := kept.readableOn(darkCard, white)
		on, _ := parseColor("#0c1a2b")
		for what, ratio := range map[string]float64{"white on it": contrast(kept, white),
			"on paper": contrast(kept, lightPaper), "on a dark card": contrast(dark, darkCard),
			"dark text on it": contrast(dark, on)} {
			if ratio < leastContrast {
				t.Errorf("%v, %v in the dark: %s %.2f", kept, dark, what, ratio)
			}
		}
	}
	g := newGuestService(t)
	admin := g.auth(g.account, scopeAdmin)
	before := g.dump()
	for given, code := range map[string]string{"#ffcc00": "low_contrast", "ffcc00": "invalid_color",
		"#fc0": "invalid_color", "red": "invalid_color", "#00000g": "invalid_color", "}*{x:": "invalid_color"} {
		g.do("PATCH", "/account", `{"color":"`+given+`"}`, admin).is(422, "validation_failed").names("#/color " + code)
	}
	for member, code := range map[string]string{"color": "invalid_color", "phone": "invalid_phone", "logo": "empty",
		"contact": "invalid_contact"} { // null is none
		g.do("PATCH", "/account", `{"`+member+`":""}`, admin).is(422).names("#/" + member + " " + code)
	}
	g.unchanged(before)
	g.do("PATCH", "/account", `{"color":"#1A6b3c"}`, admin).is(200).holds(`color="#1A6b3c"`)
	g.set("-phone", "+41 32 622 00 00", "-contact", "mailto:info@example.com")
	g.do("PATCH", "/account", logoOf("png", pngOf(1, 1, "")), admin).is(200)
	g.set("-phone", "", "-contact", "", "-color", "", "-logo", "")
	g.get("/account", admin).is(200).holds(`color=null`, `phone=null`, `contact=null`, `logo=null`)
}

// TestGuestPages_lookAsTheAccountOfTheOrderSays: its colour and logo, which the policy admits, and those of no other
// account.
func TestGuestPages_lookAsTheAccountOfTheOrderSays(t *testing.T) {
	t.Parallel()
	g := newGuestService(t)
	open, paid := g.lunch(), g.inState(guestState{orderPaid, paymentCaptured, nil, nil})
	g.page(open).is(200).shows("not <img", "not #1a6b3c")
	g.do("PATCH", "/account", logoOf("png", pngOf(1, 1, "")), g.auth(g.account, scopeAdmin)).is(200)
	other := g.addAccount("other")
	g.do("PATCH", "/account?account_id="+other, `{"color":"#7a1fa2"}`, g.auth(g.account, scopeAdmin)).is(200)
	g.set("-color", "#1a6b3c")
	for page, up := range map[string]string{open.path(""): "../", paid.path("/return"): "../../"} {
		a := g.get(page).is(200)
		a.shows(`<img src="`+up+`logo/`, `:root { --accent: #1a6b3c }`, "dark) { :root { --accent: #", "not #7a1fa2")
		_, rest, _ := strings.Cut(a.body, "<style>")
		style, _, _ := strings.Cut(rest, "</style>")
		a.has("Content-Security-Policy: default-src 'none'; style-src '" + hashSource(style) +
			"'; img-src data: 'self'; base-uri 'none'; frame-ancestors 'none'; script-src '" +
			hashSource(embedded("web/pay.js")) + "'; connect-src 'self'")
	}
}

// TestOAuthPages_lookAsTheirAccountSays: who signs in sees whose service it is, who consents the own account.
func TestOAuthPages_lookAsTheirAccountSays(t *testing.T) {
	t.Parallel()
	s, p := serviceWithApp(t)
	other := s.addAccount("Bistro")
	s.must("account", "set", s.account, "-color", "#1a6b3c")
	s.must("account", "set", other, "-color", "#7a1fa2")
	file := filepath.Join(t.TempDir(), "logo.png")
	must(t, os.WriteFile(file, []byte(pngOf(1, 1, "")), 0o600))
	s.must("account", "set", s.account, "-logo", file)
	logo := `<img src="../logo/`
	(&visitor{service: s}).authorize(p.askFor(), nil).is(200).shows("<h1>Sign in to main</h1>", logo, "#1a6b3c",
		"Enter the code only here, and give it to nobody.", "not #7a1fa2")
	v := s.signedIn(other)
	v.authorize(p.askFor(), nil).is(200).shows("#7a1fa2", "not "+logo, "not #1a6b3c")
	v.visit("/oauth/connected", nil).is(200).shows("#7a1fa2", "not "+logo, "not #1a6b3c")
	(s.signedIn(s.account)).authorize(p.askFor(), nil).is(200).shows(logo, "#1a6b3c")
	s.sql(`UPDATE accounts SET is_main = 0`)
	(&visitor{service: s}).authorize(p.askFor(), nil).is(200).shows("<h1>Sign in</h1>", "not <img")
}

// TestPages_ofAnAccountInABrowser: what each page looks like with the colour and the logo of an account. The policy
// lets the browser draw the logo, and use the colour; the buttons that need a script do what they say.
func TestPages_ofAnAccountInABrowser(t *testing.T) {
	t.Parallel()
	takesLong(t, "looks at many pages in a browser")
	programsOrSkip(t, "chromium", "chromedriver")
	g := newGuestService(t, withoutAddressLimits)
	base := g.atItsBase()
	p, _ := g.registerApp(func(p *app) { p.Scope = strings.Join(appScopes, " ") })
	_, key := g.addOfflineLicense(0)
	g.sql(`UPDATE payment_connections SET methods = '["card","twint"]'`)
	b := startBrowser(t)
	b.open(base + "/oauth/signin")
	b.focused("code")
	b.press(g.signinCode(g.account) + keyEnter)
	b.find(`//form[@action="./signout"]`)
	b.emulate("Emulation.setEmulatedMedia",
		node{"features": []any{node{"name": "prefers-color-scheme", "value": "dark"}}})
	file := filepath.Join(t.TempDir(), "logo")
	must(t, os.WriteFile(file, []byte(picturePNG(t, 160, 80)), 0o600))
	g.sql(`UPDATE accounts SET name = 'Bistro zur Alten Post, Solothurn' WHERE id = ?`, g.account)
	g.set("-color", "#b3261e", "-logo", file, "-phone", "+41 32 622 00 00")
	accented, _ := parseColor("#b3261e")
	receipt := g.inState(guestState{orderPaid, paymentCaptured, nil, nil}).path("/return")
	for name, path := range map[string]string{"pay": g.lunch().path(""), "receipt": receipt,
		"return":  g.inState(guestState{orderAuthorized, paymentAuthorized, nil, nil}).path("/return"),
		"consent": authorizePath(p.askFor()), "signin": "/oauth/signin"} {
		b.fits(name, base+path, "en")
		drawn := b.await(`arguments[0](document.querySelector(".from img").naturalWidth)`)
		accent := b.await(`arguments[0](getComputedStyle(document.documentElement).getPropertyValue("--accent"))`)
		equal(t, name+": the logo's width and the colour", []any{drawn, accent},
			[]any{160.0, accented.readableOn(darkCard, white).String()})
	}
	b.open(base + receipt)
	printed := b.await(`window.print = () => arguments[0](true); document.getElementById("print").click()`)
	equal(t, "the button prints", printed, true)
	b.fits("activate", base+"/activate", "en")
	b.typeInto(`//textarea`, `{"license_key":"`+key+`","fingerprint":"till","nonce":"n"}`)
	b.click(`//button[text()="Show the lease"]`)
	b.find(`//h1[text()="The device is activated"]`)
	b.fits("activate-lease", "", "en")
	b.click(`//button[text()="Copy"]`)
	b.find(`//button[text()="Copied"]`)
}

// picturePNG is a picture of one colour.
func picturePNG(t *testing.T, width, height int) string {
	t.Helper()
	var out bytes.Buffer
	palette := color.Palette{color.RGBA{0xb3, 0x26, 0x1e, 0xff}}
	must(t, png.Encode(&out, image.NewPaletted(image.Rect(0, 0, width, height), palette)))
	return out.String()
}

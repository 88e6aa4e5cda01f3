package main

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// svgOf is an SVG with something in it.
func svgOf(inside string) string {
	return `<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="0 0 40 40">` +
		inside + `</svg>`
}

// pngOf is the beginning of a PNG of a size.
func pngOf(width, height byte) string {
	return pngStart + string([]byte{0, 0, width, 0, 0, 0, height, 0, 8, 6, 0, 0, 0}) + "IDAT"
}

// asSVG and asPNG return a change of an account that gives it a logo.
func asSVG(text string) string { return asPicture(svgType, text) }
func asPNG(text string) string { return asPicture(pngType, text) }
func asPicture(kind, text string) string {
	return `{"logo":"data:` + kind + `;base64,` + base64.StdEncoding.EncodeToString([]byte(text)) + `"}`
}

// Against whoever gives an account a logo that runs, loads or fills the browser of a guest, is something else than it
// says, or is hidden from the checks. Nothing has changed then.
func TestAccount_refusesALogoThatDoesMoreThanDraw(t *testing.T) {
	t.Parallel()
	g := newGuestService(t)
	laughs := `<!DOCTYPE svg [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>`
	refused := map[string]string{
		"script":                       asSVG(svgOf(`<script>alert(1)</script>`)),
		"script of a prefix":           asSVG(svgOf(`<x:script xmlns:x="http://www.w3.org/2000/svg"/>`)),
		"event":                        asSVG(svgOf(`<path d="M0 0" onload="alert(1)"/>`)),
		"event of the root":            asSVG(`<svg xmlns="http://www.w3.org/2000/svg" onLoad="alert(1)"></svg>`),
		"HTML":                         asSVG(svgOf(`<foreignObject><p xmlns="urn:x">x</p></foreignObject>`)),
		"HTML without its element":     asSVG(svgOf(`<g xmlns="http://www.w3.org/1999/xhtml">x</g>`)),
		"javascript: link":             asSVG(svgOf(`<linearGradient xlink:href="javascript:alert(1)"/>`)),
		"link":                         asSVG(svgOf(`<a href="#x"><path d="M0 0"/></a>`)),
		"picture of another site":      asSVG(svgOf(`<image href="https://evil.example/x.png"/>`)),
		"gradient of another site":     asSVG(svgOf(`<linearGradient href="https://evil.example/x.svg#a"/>`)),
		"fill of another site":         asSVG(svgOf(`<path d="M0 0" fill="url(https://evil.example/x.svg#a)"/>`)),
		"fill that CSS escapes":        asSVG(svgOf(`<path d="M0 0" fill="\75rl(https:evil.example)"/>`)),
		"fill that XML escapes":        asSVG(svgOf(`<path d="M0 0" fill="&#117;rl(x.svg)"/>`)),
		"import":                       asSVG(svgOf(`<style>@import "x.css";</style>`)),
		"style of another site":        asSVG(svgOf(`<style>path { fill: url( "x.svg" ) }</style>`)),
		"style in parts":               asSVG(svgOf(`<style>path { fill: u<!-- -->rl(x.svg) }</style>`)),
		"style around an element":      asSVG(svgOf(`<style>path { fill: u<g/>rl(x.svg) }</style>`)),
		"base":                         asSVG(svgOf(`<g xml:base="https://evil.example/"/>`)),
		"billion laughs":               asSVG(laughs + svgOf(`<text>&b;</text>`)),
		"billion laughs of use":        asSVG(svgOf(`<g id="a"><path d="M0 0"/></g><use href="#a"/><use href="#a"/>`)),
		"billion laughs of patterns":   asSVG(svgOf(`<pattern id="a"><path d="M0 0" fill="url(#b)"/></pattern>`)),
		"animation":                    asSVG(svgOf(`<animate attributeName="href" to="javascript:alert(1)"/>`)),
		"instruction":                  asSVG(`<?xml-stylesheet href="https://evil.example/x.css"?>` + svgOf("")),
		"two roots":                    asSVG(svgOf("") + svgOf("")),
		"no root":                      asSVG(""),
		"another encoding":             asSVG("\xff\xfe<\x00s\x00v\x00g\x00"),
		"an SVG of no namespace":       asSVG(`<svg><path d="M0 0"/></svg>`),
		"an SVG that is HTML":          asSVG(`<html xmlns="http://www.w3.org/1999/xhtml"></html>`),
		"a PNG that is HTML":           asPNG(`<html><script>alert(1)</script></html>`),
		"a PNG of many pixels":         asPNG(pngOf(1, 255)),
		"an SVG that says PNG":         asPNG(svgOf("")),
		"a PNG that says SVG":          asSVG(pngOf(1, 1)),
		"a PNG without a size":         asPNG(pngStart),
		"too much":                     asPNG(pngOf(1, 1) + strings.Repeat("x", maxLogo-30)),
		"HTML that says so":            asPicture("text/html", "<p>x"),
		"an address":                   `{"logo":"https://evil.example/x.svg"}`,
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
}

// TestAccount_hasALogoAsLongAsItSays: each account its own, two the same, none when it is removed.
func TestAccount_hasALogoAsLongAsItSays(t *testing.T) {
	t.Parallel()
	g := newGuestService(t)
	admin := g.auth(g.account, scopeAdmin)
	drawn := `<?xml version="1.0" encoding="UTF-8"?>` + svgOf(`<defs><linearGradient id="a"><stop offset="1"/>`+
		`</linearGradient></defs><style>.a { fill: url(#a) }</style><path class="a" stroke="url('#a')" d="M0 0"/>`)
	hash := fmt.Sprintf("%x", hashOf(drawn))
	address := "/logo/" + hash
	g.get(address).is(404)
	g.do("PATCH", "/account", asSVG(drawn), admin).is(200).holds(`logo="` + testBase + address + `"`)
	logo := g.get(address, "Origin: https://evil.example").is(200).has("Content-Type: image/svg+xml",
		"X-Content-Type-Options: nosniff", "Cache-Control: public, max-age=31536000, immutable",
		"Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'; sandbox")
	equal(t, "the logo", logo.body, drawn)
	other := g.addAccount("other")
	file := filepath.Join(t.TempDir(), "logo.svg")
	must(t, os.WriteFile(file, []byte(drawn), 0o600))
	shown, err := g.command("account", "set", other, "-logo", file)
	g.check(err)
	contains(t, shown, address)
	g.set("-logo", "")
	g.get(address).is(200) // the other account has it
	g.do("PATCH", "/account?account_id="+other, asPNG(pngOf(2, 1)), admin).is(200)
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
	for c := range 1 << 12 {
		given := rgb{byte(c >> 8 * 17), byte(c >> 4 & 15 * 17), byte(c & 15 * 17)}
		kept := given.readableOn(lightPaper, black)
		if code, detail := checkColor(kept.String()); code != "" {
			t.Errorf("%v is refused for %v: %s", kept, given, detail)
		}
		if code, detail := checkColor(given.String()); (code == "") != (kept == given) || kept != given &&
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
	g.do("PATCH", "/account", asPNG(pngOf(1, 1)), admin).is(200)
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
	g.do("PATCH", "/account", asSVG(svgOf("")), g.auth(g.account, scopeAdmin)).is(200)
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
	file := filepath.Join(t.TempDir(), "logo.svg")
	must(t, os.WriteFile(file, []byte(svgOf("")), 0o600))
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

// TestPages_ofThreeAccountsInABrowser: what each page looks like with the colour and the logo of an account. The policy
// lets the browser draw the logo, and use the colour; the buttons that need a script do what they say.
func TestPages_ofThreeAccountsInABrowser(t *testing.T) {
	t.Parallel()
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
	for i, look := range []struct{ name, color, logo string }{
		{"Trattoria Roma", "#1a6b3c", svgOf(`<circle cx="20" cy="20" r="19" fill="#1a6b3c"/>` +
			`<path d="M12 28 20 9l8 19z" fill="#fff"/>`)},
		{"Bistro zur Alten Post, Solothurn", "#b3261e", picturePNG(t, 160, 80)},
		{"Kafé Nord", "#6a3fb5", `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 120 40"><rect width="120" ` +
			`height="40" rx="6" fill="#222"/><text x="14" y="27" font-size="20" fill="#fff">NORD</text></svg>`},
	} {
		file := filepath.Join(t.TempDir(), "logo")
		must(t, os.WriteFile(file, []byte(look.logo), 0o600))
		g.sql(`UPDATE accounts SET name = ? WHERE id = ?`, look.name, g.account)
		g.set("-color", look.color, "-logo", file, "-phone", "+41 32 622 00 00")
		paid := g.inState(guestState{orderPaid, paymentCaptured, nil, nil})
		for n, page := range [][2]string{{"pay", g.lunch().path("")}, {"receipt", paid.path("/return")},
			{"return", g.inState(guestState{orderAuthorized, paymentAuthorized, nil, nil}).path("/return")},
			{"consent", authorizePath(p.askFor())}, {"signin", "/oauth/signin"}} {
			name, url := page[0], page[1]
			if n%size(3, 1) != i%size(3, 1) { // by default each account has other pages than those before
				continue
			}
			b.fits(fmt.Sprintf("%s-%d", name, i), base+url, "en")
			drawn := b.await(`arguments[0](document.querySelector(".from img").naturalWidth)`).(float64)
			accent := b.await(`arguments[0](getComputedStyle(document.documentElement).getPropertyValue("--accent"))`)
			if c, _ := parseColor(look.color); drawn == 0 || accent != c.readableOn(darkCard, white).String() {
				t.Errorf("%s: the logo is %v wide, the colour %s", name, drawn, accent)
			}
		}
	}
	b.open(base + g.inState(guestState{orderPaid, paymentCaptured, nil, nil}).path("/return"))
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

// picturePNG is a PNG of one colour.
func picturePNG(t *testing.T, width, height int) string {
	t.Helper()
	picture := image.NewPaletted(image.Rect(0, 0, width, height), color.Palette{color.RGBA{0xb3, 0x26, 0x1e, 0xff}})
	var out bytes.Buffer
	must(t, png.Encode(&out, picture))
	return out.String()
}

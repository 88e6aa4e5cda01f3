package main

import (
	"crypto/ed25519"
	"crypto/sha512"
	"database/sql"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// recorded is what testdata/http/document.txt has left, which is carried out once in a run: what its lines 'shows:'
// mark, and the service as it was at 'kept:', with what the examples name.
var recorded struct {
	sync.Once
	failed   bool
	examples *jsonValue
	exampleFixture
	database []byte
	xero     *xeroFake
	ready    time.Time // on the clock of the service
}

// recordedExamples returns the examples that the document shows, as makeOpenAPI takes them: of each operation those of
// its "parameters" by their names, of its "request" and of its answers, as "200", each with "value" and "summary".
func recordedExamples(t testing.TB) *jsonValue {
	t.Helper()
	recorded.Do(func() { record(t) })
	if recorded.failed {
		t.Fatal("testdata/http/document.txt fails: see the test that carried it out first")
	}
	return recorded.examples
}

// A recorder carries out an exchange and keeps what the document shows of it.
type recorder struct {
	*exchangeRun
	clock  time.Time
	xero   *xeroFake
	shown  map[string]string // what an id, a key or a secret is shown as: the same in each run
	counts map[string]int    // how many of a kind are shown
}

// The signing key of the examples is that of RFC 8037, appendix A.1.
const exampleSeed = "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60"

// shownFirst are what the first ones of a kind are shown as, and so the examples of ids in paths. With this secret of a
// webhook the example of what is posted is signed.
var shownFirst = map[string]string{
	"license key": "TKWGD-QP26G-DVSCS-ZCPCX-BP2HZ",
	"whsec":       "whsec_CfPIDTsy/guKHR7jjSTNLHDC3aHwbJ2hYe7SRTUT9zs=",
	"wgt":         "wgt_01m8a4yb6c3n7s0k9f2x5q8jdr",
	"lead":        "lead_01m8a5c3h1f0q2n8r7wj6vk4td",
	"tok":         "tok_01m8a4x7c5k2f9v3b6n1h4q8wd",
	"evt":         "evt_01m8a5ge1k8p4z7d3v0t6m9xwc",
	"pay":         "pay_01m8a7d9r4v2x7n1c6j3z8mkq0",
	"ref":         "ref_01m8a7qm6n0t4x9zc2k8p5d7vh",
	"acct":        "acct_01m8a4wq2se4s9xkd0t1y6bv3f",
	"app":         "app_01m8a9c4h7p2r5t8v1x3z6b0de",
	"bkc":         "bkc_01m8a6b2q7w3d8h5n0t4x9zcke",
	"con":         "con_01m8a7c3x5k2f9v3b6n1h4q8wd",
	"dev":         "dev_01m8a5e9r4v2x7n1c6j3z8mkq0",
	"exp":         "exp_01m8a6c9v1j4r7p2s5y8b3m6fg",
	"grt":         "grt_01m8a9f2n5r8t1v4x7z0b3d6gh",
	"lic":         "lic_01m8a4zt5x9hc3r6k2m8d0qwe7",
	"ord":         "ord_01m8a7c3x5k2f9v3b6n1h4q8wd",
	"pln":         "pln_01m8a4y02q7d5v3k8m1n6t9bxz",
	"pot":         "pot_01m8a9k2q7w3d8h5n0t4x9zcke",
	"whd":         "whd_01m8a6c9v1j4r7p2s5y8b3m6fg",
	"whe":         "whe_01m8a6b2q7w3d8h5n0t4x9zcke",
}

// shownToken stands for every token that is signed.
const shownToken = "eyJhbGciOiJFZERTQSIsImtpZCI6IjVCZjEiLCJ0eXAiOiJhdCtqd3QifQ.eyJzdWIiOiJhY2N0X…In0.Zk9t…Q3BA"

func record(t testing.TB) {
	recorded.failed = true
	cases, err := readExchanges("testdata/http/document.txt", "shows:", "kept:")
	must(t, err)
	seed, err := hex.DecodeString(exampleSeed)
	must(t, err)
	r := &recorder{clock: time.Date(2026, 11, 21, 10, 40, 0, 0, time.UTC), counts: map[string]int{}}
	r.shown = map[string]string{testChallenge: testChallenge, testVerifier: testVerifier}
	key := signingKeyOf(ed25519.NewKeyFromSeed(seed), newStamp(r.clock))
	for _, same := range []string{key.kid, key.jwk().X} {
		r.shown[same] = same
	}
	for _, id := range shownFirst {
		r.shown[id] = id
	}
	made, err := newDatabase()
	must(t, err)
	now := func() time.Time { return r.clock }
	r.xero = newXeroFake(t, now)
	s := serviceWith(t, made.content, made.account, &keyring{keys: []signingKey{key}, secret: hashOf(exampleSeed)},
		withoutAddressLimits, atLoopback(r.xero), func(o *storeOptions, _ *serverOptions) { o.now = now })
	findsHosts(s)
	s.damaged = true // the document is not yet what it will be: TestOpenAPI_examplesFitTheirSchemas judges them
	s.change(func(t *tx) error {
		setBooksApp(t, s.keys, productXero, r.xero.app)
		setBooksApp(t, s.keys, productFortnox, appSecrets{"id", "secret"})
		return t.setRate(s.account, 1_000_000)
	})
	r.exchangeRun = newExchange(s, s.commitCounter())
	r.pass = r.moveClock
	r.recorder, r.made["owner"], r.made["origin"] = r, s.account, siteOrigin
	recorded.examples = jsonObjectOf()
	var all exchangeCase
	for _, c := range cases {
		all.steps = append(all.steps, c.steps...)
	}
	must(t, r.run(all))
	recorded.failed = recorded.database == nil
	failIf(t, recorded.failed, "testdata/http/document.txt has no line kept:")
	for real, shown := range r.shown {
		if real != shown {
			recorded.real[shown] = real
		}
	}
	showOAuthErrors(recorded.examples)
}

// findsHosts gives every host an address.
func findsHosts(s *service) {
	s.server.outbound.resolver, _ = resolverOf(s.t, func(string, int) []netip.Addr {
		return []netip.Addr{netip.MustParseAddr("93.184.216.34")}
	})
}

// keep copies the service as it is for the tests that need one with what the examples name.
func (r *recorder) keep() error {
	db, err := sql.Open("sqlite", dsn(r.store.path, "rw", storeOptions{}))
	if err != nil {
		return err
	}
	copied := filepath.Join(r.t.TempDir(), "kept.db")
	_, err = db.Exec(`VACUUM INTO ?`, copied)
	recorded.database = fileBytes(r.t, copied)
	recorded.exampleFixture = exampleFixture{service: r.service, lease: r.name("lease"), real: map[string]string{}}
	recorded.xero, recorded.ready = r.xero, r.clock
	return errors.Join(err, db.Close())
}

// moveClock moves the clock, which stands still otherwise.
func (r *recorder) moveClock(d time.Duration) { r.clock = r.clock.Add(d) }

// show keeps what a line 'shows:' marks of the last request, "NAME SUMMARY | NAME SUMMARY": of the request, and of the
// answer; without a body of the request the answer's alone.
func (r *recorder) show(mark string, headers []string) error {
	id, rt := shownOperation(r.request[0], r.request[1])
	if id == "" {
		return errors.New("there is no such operation")
	}
	of := recorded.examples.at(id)
	if of.kind == jsonNull {
		recorded.examples.set(id, jsonObjectOf())
		of = recorded.examples.at(id)
	}
	path, query, _ := strings.Cut(r.request[1], "?")
	parameters := pairsOf(query)
	segments := strings.Split(path, "/")
	for i, segment := range strings.Split(rt, "/") {
		if strings.HasPrefix(segment, "{") {
			parameters = append(parameters, [2]string{strings.Trim(segment, "{}"), segments[i]})
		}
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		if name == "Origin" || name == "Authorization" {
			continue
		}
		parameters = append(parameters, [2]string{name, value})
	}
	for _, p := range parameters {
		addShown(of, "parameters", p[0], r.valueOf(p[1]))
	}
	asked, answered, both := strings.Cut(mark, "|")
	switch {
	case r.request[2] == "":
		answered, both = mark, true
	case strings.TrimSpace(asked) == "":
	case strings.HasPrefix(r.request[2], "{"):
		addShown(of, "request", asked, r.exampleOf(asked, r.request[2], true))
	default:
		form := jsonObjectOf()
		for _, p := range pairsOf(r.request[2]) {
			form.set(p[0], jsonTextOf(r.fixed(p[1])))
		}
		addShown(of, "request", asked, r.exampleOf(asked, layOutJSON(form, "", 120), true))
	}
	if both {
		isJSON := strings.HasSuffix(r.last.header.Get("Content-Type"), "json")
		status := strconv.Itoa(r.last.status)
		addShown(of, status, answered, r.exampleOf(answered, r.last.body, isJSON))
	}
	return nil
}

// exampleOf makes an example of a text. Of a long one only the beginning is shown.
func (r *recorder) exampleOf(mark, text string, isJSON bool) *jsonValue {
	_, summary, _ := strings.Cut(strings.TrimSpace(mark), " ")
	example := jsonObjectOf()
	if summary != "" {
		example.set("summary", jsonTextOf(summary))
	}
	if !isJSON {
		if text = r.fixed(text); len(text) > 2000 {
			text, _, _ = strings.Cut(text, "\n")
		}
		example.set("value", jsonTextOf(text))
		return example
	}
	doc, err := newAPIDocument(r.fixed(text))
	r.check(err)
	if len(text) > 100_000 { // the document itself
		doc.all = *jsonObjectOf("openapi", doc.all.at("openapi"), "info",
			jsonObjectOf("title", doc.all.at("info", "title"), "version", "1.0.0"))
	}
	example.set("value", &doc.all)
	return example
}

// addShown adds an example under the first word of a mark, unless there is one.
func addShown(of *jsonValue, kind, mark string, value *jsonValue) {
	name, _, _ := strings.Cut(strings.TrimSpace(mark), " ")
	all := of.at(kind)
	if all.kind == jsonNull {
		of.set(kind, jsonObjectOf())
		all = of.at(kind)
	}
	if all.at(name).kind == jsonNull {
		all.set(name, value)
	}
}

// pairsOf returns the names and values of a query or a form, in their order.
func pairsOf(text string) (all [][2]string) {
	for pair := range strings.SplitSeq(text, "&") {
		if name, value, is := strings.Cut(pair, "="); is {
			plain, _ := url.QueryUnescape(value)
			all = append(all, [2]string{name, plain})
		}
	}
	return all
}

// valueOf is the example of a parameter: a number or a boolean where it is one.
func (r *recorder) valueOf(text string) *jsonValue {
	text = r.fixed(text)
	if _, err := strconv.ParseInt(text, 10, 64); err == nil {
		return &jsonValue{kind: jsonNumber, text: text}
	}
	return jsonTextOf(text)
}

// shownOperation returns the operation that a request is for, and the path that it has in the document.
func shownOperation(method, target string) (id, path string) {
	target, _, _ = strings.Cut(target, "?")
	plain, atRoot := strings.CutPrefix(target, "//")
	if atRoot {
		plain = "/" + plain
	}
	segments, best := strings.Split(plain, "/"), 0
	for _, rt := range allRoutes() {
		literal := matchPath(strings.Split(rt.path(), "/"), segments)
		if !atRoot && rt.method() == method && literal > best && rt.endpoint != nil {
			id, path, best = rt.endpoint.operation(), rt.path(), literal
		}
	}
	if o, _ := findOperation(method, plain, atRoot); o != nil && matchPath(o.steps, segments) > best {
		id, path = o.id(), strings.Join(o.steps, "/")
	}
	return id, path
}

// randomTexts are what is another one in each run: ids, licence keys and their hints, codes to sign in, secrets,
// tokens, and other texts of random bits.
var randomTexts = regexp.MustCompile(`[a-z]+_[0-7][0-9a-hjkmnp-tv-z]{25}|eyJ[\w-]*\.[\w-]+\.[\w-]+` +
	`|[0-9A-HJKMNP-TV-Z]{5}(?:-[0-9A-HJKMNP-TV-Z]{5}){4}|"key_hint":"[0-9A-Z]{5}"` +
	`|"code":"[0-9A-HJKMNP-TV-Z]{4}(?:-[0-9A-HJKMNP-TV-Z]{4}){2}"|whsec_[0-9A-Za-z+/]{43}=|\b[A-Z2-7]{52}\b` +
	`|[\w-]{43,}|\b[0-9a-f]{64}\b|k=[\w-]{22}|"(?:observedValue|duration_ms)":\d+`)

// linkBack is the part of a link to sign in elsewhere that has the base address, which the served document replaces
// only where it is not escaped.
var linkBack = regexp.MustCompile(`&redirect_uri=https%3A%2F%2F[^&"]*`)

// fixed replaces what is another one in each run by what the document shows.
func (r *recorder) fixed(text string) string {
	text = strings.NewReplacer("http://127.0.0.1:8080", documentRoot, url.QueryEscape("http://127.0.0.1:8080"),
		url.QueryEscape(documentRoot), r.xero.base, "https://login.xero.com").Replace(text)
	text = linkBack.ReplaceAllString(text, "")
	return randomTexts.ReplaceAllStringFunc(text, func(real string) string {
		if r.shown[real] == "" {
			shown := r.showAs(real)
			r.shown[real], r.shown[shown] = shown, shown // which may be fixed again
		}
		return r.shown[real]
	})
}

// showAs makes what a random text is shown as: a text of its form, from its kind and how many came before it.
func (r *recorder) showAs(real string) string {
	const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
	kind, keep, alphabet := "text", 0, letters
	name, _, _ := strings.Cut(real, ":")
	prefix, _, _ := strings.Cut(real, "_")
	switch {
	case strings.HasPrefix(real, "eyJ"):
		return shownToken // which is no such text
	case name == `"observedValue"` || name == `"duration_ms"`:
		return name + ":1"
	case name == `"key_hint"`:
		kind, keep, alphabet = "hint", len(name)+2, upperCrockford
	case strings.Contains(real, "_0000000000"): // the cursor of a list that is not ordered by ids
		return real
	case idInPath.MatchString(real):
		kind, keep, alphabet = prefix, len(prefix)+9, crockford // the time stays, to about a second
	case keyShape.MatchString(real):
		kind, alphabet = "license key", upperCrockford
	case name == `"code"`:
		kind, keep, alphabet = "code", len(name)+2, upperCrockford
	case prefix == "whsec":
		kind, keep = prefix, len(prefix)+1
	case strings.HasPrefix(real, "k="):
		kind, keep = "page key", 2
	case len(real) == 52:
		kind, alphabet = "client secret", "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567"
	case len(real) != 43 && len(real) != 86:
		return real
	}
	r.counts[kind]++
	shown := []byte(real)
	for try := 0; try == 0 || kind == "license key" && licenseKey(withoutDashes(string(shown))).mistyped(); try++ {
		sum := sha512.Sum512(fmt.Append(nil, kind, r.counts[kind], try))
		for i := keep; i < len(shown); i++ {
			if shown[i] != '-' && shown[i] != '"' || alphabet == letters {
				shown[i] = alphabet[int(sum[i%len(sum)])%len(alphabet)]
			}
		}
		if kind == "whsec" {
			shown = append(shown[:keep], base64.StdEncoding.EncodeToString(sum[:32])...)
		}
	}
	if first := shownFirst[kind]; first != "" && r.counts[kind] == 1 {
		shown = []byte(first)
	}
	if kind == "license key" {
		r.shown[hintOf(real)] = hintOf(string(shown))
	}
	return string(shown)
}

// showOAuthErrors adds the errors of OAuth that an exchange does not bring about.
func showOAuthErrors(examples *jsonValue) {
	asks, revokes := examples.at("issueTokens"), examples.at("revokeToken")
	for _, e := range [][3]string{
		{"405", "invalid_request", "This path allows only the methods POST."},
		{"413", "invalid_request", "The body has more than 16 KiB."},
		{"429", "temporarily_unavailable", "Too many requests of this application."},
		{"500", "server_error", "An error occurred in the service. Give the X-Request-Id when you report it."},
		{"503", "temporarily_unavailable", "The database can't be used at the moment; nothing was written."},
	} {
		addShown(asks, e[0], e[1], jsonObjectOf("value", jsonObjectOf("error", e[1], "error_description", e[2])))
	}
	for i := range asks.members {
		if m := &asks.members[i]; m.name[0] == '4' || m.name[0] == '5' {
			revokes.set(m.name, &m.value)
		}
	}
}

func withoutDashes(key string) string { return strings.ReplaceAll(key, "-", "") }

// hintOf is the member of a licence that shows the end of its key.
func hintOf(key string) string { return `"key_hint":"` + key[len(key)-keyGroup:] + `"` }

// makeShown makes what only the exchange of the document has.
func (r *recorder) makeShown(kind, name, members string) error {
	var of map[string]string
	if err := json.Unmarshal([]byte(members), &of); err != nil {
		return err
	}
	defer r.newEvents()
	switch kind {
	case "brought": // an order, to a state
		o := r.row(of["order"])
		r.change(func(t *tx) error { return bringTo(t, o, of["to"]) })
	case "consent": // to what a link to an accounting product asks for
		back, err := url.Parse(r.xero.approve(of["link"]))
		if err != nil {
			return err
		}
		if a := r.get(strings.TrimPrefix(back.Path, "/v1") + "?" + back.RawQuery); a.status != 200 {
			return fmt.Errorf("it is not connected: %d %s", a.status, a.body)
		}
	case "posted": // an export, which is in the books
		r.postExport(of["export"])
	case "draining":
		r.server.draining.Store(true)
	case "delivery": // one that failed, of a webhook that is enabled
		r.change(func(t *tx) error {
			t.setWebhookState(of["webhook"], webhookEnabled, nil)
			seq, event, err := t.latestEvent()
			d := &delivery{ID: t.newID("whd"), WebhookID: of["webhook"], EventID: event, Type: eventWebhookTest,
				Attempt: 1, At: t.now, eventSeq: seq, Status: ptr(503), Answer: ptr("The CRM is being updated."),
				NextAt: t.now.after(retryDelays[0])}
			r.made[name] = d.ID
			t.addDelivery(d)
			return err
		})
	}
	return nil
}

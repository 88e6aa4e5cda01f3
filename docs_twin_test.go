package main

import (
	"html"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// linesOfTwins returns the blocks of lines in a page, and those in its twin in Markdown.
func linesOfTwins(s *service, page string) (inPage, inTwin []string) {
	for _, block := range captures(`(?s)<pre[^>]*><code>(.*?)</code></pre>`, page) {
		inPage = append(inPage, strings.TrimRight(html.UnescapeString(block), "\n"))
	}
	for twin := captures(`<link rel="alternate" type="text/markdown" href="(/docs[^"]*)"`, page); len(twin) > 0; {
		text := s.get("/" + twin[0]).is(200).has("Content-Type: text/markdown; charset=utf-8").body
		if n := len([]rune(text)); n >= 50_000 {
			s.t.Errorf("%s has %d characters, which readers cut off", twin[0], n)
		}
		prose := regexp.MustCompile("(?s)```\n.*?\n```").ReplaceAllString(text, "")
		if !strings.HasPrefix(text, "# ") || strings.Contains(text, "«") || strings.Contains(prose, "\n<") {
			s.t.Errorf("%s is no Markdown, or has marks:\n%.300s", twin[0], text)
		}
		inTwin = append(inTwin, captures("(?s)(?:^|\n)```\n(.*?)\n```\n", text)...)
		twin = captures(`\nIt goes on at http://127\.0\.0\.1:8080(/docs/[a-z0-9-]+\.md)\n`, text)
	}
	return inPage, inTwin
}

func TestDocs_everyPageHasATwinInMarkdownWithTheSameLines(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	s := newService(t)
	for _, path := range docsPaths(s) {
		page := s.get("/" + path).is(200).body
		inPage, inTwin := linesOfTwins(s, page)
		if path == "/docs/all" {
			if inTwin != nil {
				t.Error("the page with everything has a twin")
			}
			continue
		}
		slices.Sort(inPage)
		slices.Sort(inTwin)
		if !slices.Equal(inPage, inTwin) {
			t.Errorf("%s has %d blocks and its twin %d, or others", path, len(inPage), len(inTwin))
		}
		contains(t, page, `<a href="`+path+`.md">this page as Markdown</a>`)
	}
}

func TestDocs_sendTheTwinToWhoNamesIt(t *testing.T) {
	t.Parallel()
	s := newService(t)
	tags := map[string]string{}
	for accept, want := range map[string]string{
		"":                                       "text/html",
		"*/*":                                    "text/html",
		"text/*":                                 "text/html",
		"text/html":                              "text/html",
		"text/html, text/markdown;q=0.9":         "text/html",
		"text/markdown;q=0":                      "text/html",
		"text/markdown;q=high, text/html;q=0.1":  "text/html",
		"text/markdown":                          "text/markdown",
		"text/markdown, text/html":               "text/markdown",
		"text/markdown;q=0.5, text/html;q=0.5":   "text/markdown",
		"Text/Markdown, */*;q=0.1":               "text/markdown",
		"text/markdown;charset=utf-8;q=0.4":      "text/markdown",
		"text/html;q=0.2, text/markdown; q=0.3 ": "text/markdown",
	} {
		for _, path := range []string{"//docs", "//docs/limits"} {
			a := s.get(path, "Accept: "+accept).is(200).has("Content-Type: " + want + "; charset=utf-8")
			if !slices.Contains(a.header["Vary"], "Accept") {
				t.Errorf("%s varies by %v", path, a.header["Vary"])
			}
			if known := tags[path+want]; known != "" && known != a.header.Get("ETag") {
				t.Errorf("%s as %s has two tags", path, want)
			}
			tags[path+want] = a.header.Get("ETag")
			s.get(path, "Accept: "+accept, "If-None-Match: "+a.header.Get("ETag")).is(304)
		}
	}
	if tags["//docstext/html"] == tags["//docstext/markdown"] {
		t.Error("a page and its twin have one tag")
	}
	s.get("//docs/limits.md", "Accept: text/html").is(200).has("Content-Type: text/markdown; charset=utf-8",
		`Link: <http://127.0.0.1:8080/docs/limits>; rel="canonical"`)
	s.get("//docs/objects-2.md").is(200).has(`Link: <http://127.0.0.1:8080/docs/objects>; rel="canonical"`)
	s.get("//docs/limits.md", "Host: elsewhere.example").is(200)
	for _, path := range []string{"//docs/nothing.md", "//docs/all.md", "//docs/limits-2.md", "//docs/find.md"} {
		s.get(path).is(404, "not_found")
	}
}

func TestDocs_guideForProgramsNamesEveryTwin(t *testing.T) {
	sequentialUnderRace(t)
	t.Parallel()
	s := newService(t)
	guide := s.get("//llms.txt").is(200).has("Content-Type: text/plain; charset=utf-8").body
	equal(t, "the guide below the base address", s.get("/llms.txt").is(200).body, guide)
	if n := len(captures(`(?m)^(# )`, guide)); n != 1 || len(captures(`(?m)^(> )`, guide)) != 1 || len(guide) > 12_000 {
		t.Errorf("it has %d titles, or no one sentence, or %d bytes", n, len(guide))
	}
	named := captures(`(?m)^- \[[^\]]+\]\(http://127\.0\.0\.1:8080(/docs[^)]*\.md)\): \S`, guide)
	for _, path := range named {
		s.get("/" + path).is(200)
	}
	for _, path := range docsPaths(s) {
		if path != "/docs/all" && !slices.Contains(named, path+".md") {
			t.Errorf("it does not name %s", path)
		}
	}
	links := map[string]bool{}
	for _, path := range named {
		for _, link := range captures(`\]\(http://127\.0\.0\.1:8080(/[^)#]*)`, s.get("/"+path).body) {
			links[link] = true
		}
	}
	for link := range links {
		s.get("/" + link).is(200)
	}
}

// TestDocs_findWhatIsAsked types questions into the box of a page, as a reader does, and presses Enter.
func TestDocs_findWhatIsAsked(t *testing.T) {
	t.Parallel()
	takesLong(t, "looks at many pages in a browser")
	programsOrSkip(t, "chromium", "chromedriver")
	root := strings.TrimSuffix(printed(t, sharedDemo(t), "The service behind it"), "/v1")
	b := startBrowser(t)
	b.open(root + "/docs/limits")
	for question, want := range map[string]string{
		"what do I do about seat_limit_reached": "/docs/problems#seat_limit_reached",
		"how do I verify a webhook in Python":   "/docs/webhooks#webhooks-verify",
		"which scope reads orders":              "/docs/tokens#tokens",
		"pagination":                            "/docs/bodies#bodies",
		"api key":                               "/docs/tokens#tokens",
		"test card":                             "/docs/orders#payments-walk",
		"sandbox":                               "/docs#start",
		"TWINT":                                 "/docs/orders#payments-amounts",
		"refund part of an order":               "/docs/calls-orders#call-refundOrder",
		"rate limit":                            "/docs/limits#limits",
		"cors":                                  "/docs/browsers#browsers",
		"next_cursor":                           "/docs/bodies#bodies",
		"pay_url":                               "/docs/orders#payments",
		"invalid_email":                         "/docs/problems#entry-invalid_email",
		"xero":                                  "/docs/bookkeeping#bookkeeping-xero",
		"typescript client":                     "/docs/clients#clients",

		// With / and Enter these are six keys, so they must be the first place.
		"seat": "/docs/licences#licences", // guides come before codes
		"veri": "/docs/webhooks#webhooks-verify",
		"scop": "/docs/tokens#tokens",
	} {
		found := b.await(`const [question, done] = arguments, input = document.querySelector("#find");
			document.querySelector("#found").replaceChildren(); // of the question before
			input.blur();
			dispatchEvent(new KeyboardEvent("keydown", { key: "/" }));
			if (document.activeElement != input) return done("/ does not lead to the box");
			input.value = question;
			input.dispatchEvent(new Event("input"));
			const look = () => {
				const all = [...document.querySelectorAll("#found a")];
				all.length ? done(all.slice(0, 4).map(a => a.pathname + a.hash).join(" ")) : setTimeout(look, 20);
			};
			look();`, question)
		places := strings.Fields(found.(string))
		if question == "seat" || question == "veri" || question == "scop" {
			places = places[:1]
		}
		if !slices.Contains(places, want) {
			t.Errorf("%q leads to %s, want %s among them", question, found, want)
		}
	}
	at := b.await(`const [done] = arguments, input = document.querySelector("#find");
		const press = key => input.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
		press("ArrowDown");
		press("ArrowUp");
		press("Enter");
		setTimeout(() => done(location.pathname != "/docs/limits" || document.querySelector("#found").hidden), 500);`)
	equal(t, "Enter goes there", at, any(true))
}

// TestDocs_startWorksForATenantOfAServiceThatIsNoDemo pastes the lines of the start page, with what its box says is to
// be put in place.
func TestDocs_startWorksForATenantOfAServiceThatIsNoDemo(t *testing.T) {
	t.Parallel()
	programsOrSkip(t, "curl", "sh", "jq")
	s := newService(t, func(_ *storeOptions, o *serverOptions) { o.outboundAllow = demoOutbound })
	s.atItsBase()
	tenant := s.addAccount("Trattoria")
	s.change(func(t *tx) error { return addOrigin(t, tenant, "https://lunch.example", anActor) })
	receiver := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(receiver.Close)
	page := s.get("//docs").is(200).body
	box := captures(`put your own in place of((?: <code>[A-Z_]+</code>)+)`, page)
	if len(box) != 1 {
		t.Fatal("the start page has no box that names what is to be put in place")
	}
	own := strings.NewReplacer("https://YOUR_SITE", "https://lunch.example", "https://YOUR_RECEIVER/", receiver.URL+"/")
	token := s.token(tenant, demoScopes)
	for path, want := range map[string]string{"call": `"status":"pass"`, "webhook": `whsec_`,
		"order": `"pay_url":"http`, "oauth": `"access_token":"eyJ`} {
		dir := t.TempDir()
		steps := captures(`(?s)<pre class="(?:curl )?step" data-path="`+path+`"[^>]*><code>(.*?)</code>`, page)
		for i, line := range steps {
			if i > 0 && path != "oauth" { // what follows waits for a guest, or for a receiver at the address
				break
			}
			line = "cd " + dir + "; TOKEN=" + token + "; " + own.Replace(html.UnescapeString(line))
			if path == "webhook" {
				line += "\nprintf %s \"$HOOK\""
			}
			out := runProgram(t, "sh", "-c", line)
			if last := i > 0 || path != "oauth"; last && !strings.Contains(out, want) {
				t.Errorf("%s prints %s, want %s", path, out, want)
			}
		}
	}
	for _, word := range []string{"YOUR_SITE", "YOUR_RECEIVER"} {
		contains(t, box[0], word)
	}
	contains(t, page, "without money, start <code>widgetd demo</code>")
}

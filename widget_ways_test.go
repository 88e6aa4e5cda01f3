package main

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
)

// A wayToBuild is how a partner builds a page, and what the script does on it.
type wayToBuild struct {
	head, body string // LINE is the script's line, MENU a part with a number and a dish, FORM a form
	do         string // what the page does, and who visits it; with MENU, FORM and PAGE as texts
	shown      string // what do returns; "": nothing
	posts      string // what the service gets: events and leads, sorted
}

// waysProbe lets a page's time go a hundred times as fast. For what pages do: got waits until so much of a type was
// sent, settle for longer than any wait of the script; fresh is an element with what a framework inserts, and runs has
// its scripts run, as Turbo does.
const waysProbe = `
const later = setTimeout; window.setTimeout = (run, time) => later(run, time / 100);
window.told = []; console.warn = text => told.push(text);
const ask = fetch, sent = []; window.fetch = async (url, init) => {
	const answer = await ask(url, init);
	if (init.body) sent.push(init.body);
	return answer;
};
const until = done => new Promise((found, lost) => {
	const look = () => done() ? found() : later(look, 5);
	later(() => lost("waited for " + done), 4000);
	look();
});
const settle = () => new Promise(done => later(done, 60));
const got = (count, type) => until(() => sent.join().split('"type":"' + type + '"').length > count);
const $ = (selector, of = document) =>
	(of instanceof Element ? HTMLFormElement.prototype : of).querySelector.call(of, selector);
const number = of => until(() => /\d/.test($("[data-widget-stat]", of).textContent));
const trap = () => until(() => $("[name=website]"));
const fresh = html => { const box = document.createElement("div"); box.innerHTML = html; return box.firstChild; };
const runs = root => { for (const line of root.querySelectorAll("script")) {
	const copy = document.createElement("script");
	for (const { name, value } of line.attributes) copy.setAttribute(name, value);
	line.replaceWith(copy);
} };
const state = form => ($("[data-widget-state]", form) || { dataset: {} }).dataset.widgetState;
const send = async (form, count = 1) => {
	$("button", form).click();
	await got(count, "contact");
	await until(() => /sent|invalid/.test(state(form)));
};
const fill = (form, values) => { for (const name in values) $('[name="' + name + '"]', form).value = values[name]; };
`

const (
	waysLine = `<script async src="SERVICE/widget.js" data-widget="WIDGET"></script>`
	waysMenu = `<a data-widget-item="Pizza">Pizza</a> <b data-widget-stat="views.month">–</b>`
	waysForm = `<form data-widget-lead="contact"><input name="email" value="a@example.com"><button>Send</button></form>`
)

// waysToBuild are pages, by the name of their path.
var waysToBuild = map[string]wayToBuild{
	"plain": {
		body: `<div>MENU FORM LINE</div>`,
		do: `await number(); $("a").click(); await got(1, "click"); await send($("form"));
			return state($("form"))`,
		shown: "sent", posts: "click Pizza; lead; view",
	},
	// Against the page that shows the trap for bots, so that people fill it in and are thanked for nothing.
	"rule": {
		head: `<style>form span { display: block !important } * { visibility: visible !important; top: auto !important;
			opacity: 1 !important; position: static !important; clip-path: none !important }</style>`,
		body: `<div>FORM LINE</div>`,
		do: `await trap(); const field = $("[name=website]");
			await send($("form")); await got(1, "view");
			return [field.checkVisibility({ checkOpacity: true }), field.getBoundingClientRect().bottom < 0,
				field.tabIndex, field.parentNode.getAttribute("aria-hidden")] + ""`,
		shown: "false,true,-1,true", posts: "lead; view",
	},
	"replaced-body": {
		body: `<div>MENU LINE</div>`,
		do: `await number(); $("a").click(); await got(1, "click"); await got(1, "view"); let seen = 1;
			for (const path of ["/replaced-body-2", "/replaced-body"]) {
				history.pushState(null, "", path);
				const body = document.createElement("body");
				body.innerHTML = PAGE; runs(body); document.body.replaceWith(body);
				await number(); $("a").click(); await got(++seen, "click"); await got(seen, "view");
			}
			await send(document.body.appendChild(fresh(FORM)))`,
		posts: "click Pizza; click Pizza; lead; view; view | click Pizza; view",
	},
	"replaced-part": {
		body: `<div data-widget-root><p id=part>Loading</p>LINE</div><div id=other></div>`,
		do: `await got(1, "view"); $("#part").innerHTML = MENU; $("#other").innerHTML = FORM; await number();
			$("a").click(); await got(1, "click"); await trap();
			$("form").replaceWith(fresh(FORM)); await send($("form")); return state($("form"))`,
		shown: "sent", posts: "click Pizza; lead; view",
	},
	"router": {
		body: `<div id=app><section data-widget-root>MENU LINE</section></div>`,
		do: `await number(); await got(1, "view");
			for (const _ of [1, 2, 3]) {
				$("#app").innerHTML = PAGE; await number(); await settle();
			}
			$("a").click(); await got(1, "click");
			history.pushState(null, "", "/router-2"); $("#app").innerHTML = PAGE; await got(2, "view")`,
		posts: "click Pizza; view | view",
	},
	// A form there sent the address of the visitor into the page's URL.
	"open-root": {
		body: `<div id=host></div>LINE`,
		do: `await got(1, "view"); const root = $("#host").attachShadow({ mode: "open" });
			root.innerHTML = MENU + FORM; $("a", root).click(); await got(1, "click");
			await send($("form", root)); return $("[data-widget-state]", root).textContent + location.search`,
		shown: "Vielen Dank. Es wurde gesendet.", posts: "click Pizza; lead; view",
	},
	// The documents say that it is not served.
	"closed-root": {
		body: `<div id=host></div>LINE`,
		do: `await got(1, "view"); const root = $("#host").attachShadow({ mode: "closed" });
			root.innerHTML = MENU + FORM; root.addEventListener("submit", event => event.preventDefault());
			$("a", root).click(); $("button", root).click(); await settle(); return "it says " + state(root)`,
		shown: "it says undefined", posts: "view",
	},
	"named-as-methods": {
		body: `<div><form data-widget-lead="contact" data-widget-root action="/elsewhere">
			<input name="` + strings.Join(strings.Fields(
			"reset matches append elements querySelector querySelectorAll contains dataset closest getAttribute "+
				"setAttribute requestSubmit lang parentNode getRootNode nodeType"), `"><input name="`) +
			`"><input name="email"><button>Send</button>MENU LINE</form></div>`,
		do: `await trap(); await number(); await got(1, "view"); const form = $("form");
			fill(form, { email: "a@example", append: "x" });
			await send(form); const wrong = state(form) + $("[name=email]").getAttribute("aria-invalid");
			fill(form, { email: "a@example.com" }); await send(form, 2);
			return wrong + state(form) + $("[name=append]").value`,
		shown: "invalidtruesent", posts: `lead {"append":"x"}; view`,
	},
	"names": {
		body: `<div><form data-widget-lead="contact"><input name="First Name" value="Ada">
			<input name="Telefon" value="1"><input type=checkbox name="days[]" value="mon" checked>
			<input type=checkbox name="days[]" value="tue" checked><input name="days" value="3">
			<input name="__2. Größe?" value="L"><input name="名前" value="x"><input name="constructor" value="c">
			<input name="Type" value="Big Party"><input name="Website" value="w">
			<input name="` + strings.Repeat("A ", 20) + `" value="long">
			<input name="Email" value=" a@example.com&#8203;"><input name="cv" type=file>
			<button>Send</button></form>LINE</div>`,
		do: `await trap(); await got(1, "view"); const form = $("form"); await send(form);
			fill(form, { "First Name": "x".repeat(2001) }); await send(form, 2);
			const wrong = $("[name='First Name']").getAttribute("aria-invalid") + state(form);
			const files = new DataTransfer(); files.items.add(new File(["x"], "cv.pdf"));
			$("[name=cv]").files = files.files; fill(form, { "First Name": "Ada" }); await send(form, 3);
			return wrong + state(form) + told.length + told[0].includes("First Name,first_name")`,
		shown: "trueinvalidinvalid1true",
		posts: `lead {"` + strings.Repeat("a_", 15) + `a":"long","constructor":"c","days":"3","days_2":"mon, tue",` +
			`"f":"x","f_2_gr_e":"L","first_name":"Ada","telefon":"1","type":"Big Party","website":"w"}; view`,
	},
	"own-website": {
		body: `<div><form data-widget-lead="contact"><input name="email" value="a@example.com">
			<input name="website" value="https://a.example"><button>Send</button></form>
			<form data-widget-lead="contact"><input name="email" value="b@example.com">
			<p style="position:absolute;left:-5000px"><input name="website" value="spam"></p>
			<button>Send</button></form>LINE</div>`,
		do:    `await got(1, "view"); await send($("form")); await send(document.forms[1], 2)`,
		posts: `lead {"website":"https://a.example"}; trapped; view`,
	},
	// Own: a page in steps asks for the website in one that is hidden when the form is sent. The browser fills it in.
	"steps": {
		body: `<div><form data-widget-lead="contact"><p><input name="email" value="a@example.com"></p><p hidden>
			<input name="website"></p><button>Send</button></form>LINE</div>`,
		do: `await got(1, "view"); const [first, second] = document.querySelectorAll("p"); first.hidden = true;
			second.hidden = false; fill($("form"), { website: "https://a.example" });
			$("[name=website]").dispatchEvent(new Event("input", { bubbles: true })); second.hidden = true;
			await send($("form"))`,
		posts: `lead {"website":"https://a.example"}; view`,
	},
	// A browser that lacks what came to others in 2024: the trap was sent as a field of the page's own.
	"old-browser": {
		head:  `<script>delete Element.prototype.checkVisibility; delete Request.prototype.keepalive</script>`,
		body:  `<div>FORM LINE</div>`,
		do:    `await trap(); fill($("form"), { website: "spam" }); await send($("form")); await settle()`,
		posts: "trapped; view",
	},
	// A page that keeps a copy of itself, as Turbo does, while a form is sent: there it was busy for ever.
	"copied": {
		body: `<div>FORM LINE</div>`,
		do: `await trap(); await got(1, "view"); $("button").click();
			document.body.replaceWith(document.body.cloneNode(true)); await got(1, "contact");
			await send($("form"), 2)`,
		posts: "lead; lead; view",
	},
	// Own: one widget for wide windows and one for narrow ones, of which a rule hides one.
	"twice": {
		head: `<style>.wide { display: none }</style>`,
		body: `<div class=wide>MENU LINE</div><div class=narrow>MENU LINE</div>`,
		do: `await number($(".wide")); await number($(".narrow")); await got(1, "view"); await settle();
			$(".narrow a").click(); await got(1, "click"); $("style").textContent = ""; await settle()`,
		posts: "click Pizza; view",
	},
	// Own: a page that somebody has given the present line, too, beside that of 1.1.0, which names its hash.
	"both": {
		head: "RELEASED", body: `<div>MENU FORM LINE</div>`,
		do: `await number(); await got(1, "view"); $("a").click(); await got(1, "click"); await trap();
			await send($("form")); return document.querySelectorAll("[name=website]").length + state($("form"))`,
		shown: "1sent", posts: "click Pizza; lead; view",
	},
	// Own: a page that writes the number in its own way, for which the script must not fight.
	"formats": {
		body: `<div>MENU LINE</div>`,
		do: `await number(); await got(1, "view"); let changes = 0;
			new MutationObserver(() => changes++ || later(() => $("b").textContent = "many"))
				.observe($("b"), { childList: true });
			$("b").textContent = "1 view"; await settle(); return $("b").textContent + changes`,
		shown: "many2", posts: "view",
	},
	// Own: a library that makes a page like the new one, keeping elements, takes out what the script has added.
	"morph": {
		body: `<div>MENU FORM LINE</div>`,
		do: `await number(); await got(1, "view"); await trap();
			for (const added of document.querySelectorAll("span")) added.remove();
			$("b").textContent = "–"; await number(); await trap(); await send($("form"));
			$("[data-widget-state]").remove(); await until(() => $("[role=status]")); await send($("form"), 2);
			return state($("form"))`,
		shown: "sent", posts: "lead; lead; view",
	},
	// The line in the head, and a page that shows several by itself.
	"head": {
		head: "LINE", body: `<main>MENU</main>`,
		do: `await number(); await got(1, "view"); history.pushState(null, "", "/head-2"); $("main").innerHTML = MENU;
			await number(); await got(2, "view"); $("a").click(); await got(1, "click")`,
		posts: "view | click Pizza; view",
	},
}

// serveWay is a partner's site with the pages of waysToBuild.
func (g *scriptStage) serveWay(w http.ResponseWriter, r *http.Request) {
	way := waysToBuild[strings.TrimPrefix(r.URL.Path, "/")]
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	fmt.Fprintf(w, `<!doctype html><html lang="de"><head><script>%s</script>%s</head><body>%s</body></html>`,
		waysProbe, g.way(way.head), g.way(way.body))
}

// way puts the script's line, a menu and a form where a page names them.
func (g *scriptStage) way(text string) string {
	text = strings.NewReplacer("LINE", waysLine, "MENU", waysMenu, "FORM", waysForm).Replace(text)
	source, err := scriptFiles.ReadFile("web/widget_1.js")
	must(g.service.t, err)
	released := strings.Replace(waysLine, "/widget.js", newWidgetScript(source, g.web.URL+"/v1").path, 1)
	text = strings.ReplaceAll(text, "RELEASED", released)
	return strings.NewReplacer("SERVICE", g.web.URL, "WIDGET", g.widget).Replace(text)
}

// Each page is opened in one browser, does what it does, and is left. What the service got then tells by its path
// of which page it is.
func TestScript_servesPagesHoweverTheyAreBuilt(t *testing.T) {
	t.Parallel()
	g := newScriptStage(t)
	g.server.visitorRate = 10_000
	g.listed.Config.Handler = http.HandlerFunc(g.serveWay)
	got := map[string][]string{}
	for _, name := range slices.Sorted(maps.Keys(waysToBuild)) {
		way := waysToBuild[name]
		do := way.do
		for _, part := range [][2]string{{"MENU", waysMenu}, {"FORM", waysForm}, {"PAGE", g.pageOf(way)}} {
			do = strings.ReplaceAll(do, part[0], string(encodeJSON(g.way(part[1]))))
		}
		g.open(g.listed.URL + "/" + name)
		shown := g.await(`const done = arguments[0];
			(async () => { ` + do + ` })().then(done, error => done("failed: " + error + error.stack + told))`)
		if shown == nil {
			shown = ""
		}
		equal(t, name+" shows", shown, any(way.shown))
	}
	g.open("about:blank")
	g.web.Close()
	close(g.posts)
	for p := range g.posts {
		for path, posts := range g.postsOf(p) {
			got[path] = append(got[path], posts...)
		}
	}
	for name, way := range waysToBuild {
		parts := []string{}
		for _, path := range []string{"/" + name, "/" + name + "-2"} {
			if slices.Sort(got[path]); len(got[path]) > 0 {
				parts = append(parts, strings.Join(got[path], "; "))
			}
		}
		equal(t, name+" sends", strings.Join(parts, " | "), way.posts)
	}
}

// pageOf is what a page has in its part that is replaced, else in its body.
func (g *scriptStage) pageOf(way wayToBuild) string {
	_, inner, found := strings.Cut(way.body, `<div id=app>`)
	if !found {
		return way.body
	}
	return strings.TrimSuffix(inner, "</div>")
}

// postsOf tells what was posted to the service and taken, by the path of the page.
func (g *scriptStage) postsOf(p sitePost) map[string][]string {
	t, posts := g.service.t, map[string][]string{}
	parsed, err := parseJSON([]byte(p.body))
	must(t, err)
	body := &parsed
	page := func(v *jsonValue) string { return textMember(v, "page", 100) }
	switch {
	case p.status == 204:
		events, _ := body.member("events")
		for i := range events.list {
			e := &events.list[i]
			told := strings.TrimSpace(textMember(e, "type", 9) + " " + textMember(e, "item", 99))
			posts[page(e)] = append(posts[page(e)], told)
		}
	case p.status == 200 && textMember(body, "website", 99) != "":
		posts[page(body)] = []string{"trapped"}
	case p.status == 200:
		lead := "lead"
		if fields, ok := body.member("fields"); ok {
			values := map[string]string{}
			for _, m := range fields.members {
				values[m.name] = m.value.text
			}
			lead += " " + strings.TrimSpace(string(encodeJSON(values)))
		}
		posts[page(body)] = []string{lead}
	}
	return posts
}

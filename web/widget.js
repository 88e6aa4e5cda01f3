// The script that a page includes with one line:
//
//   <script async src="https://api.example.com/widget.js" data-widget="wgt_…"></script>
//
// It counts the widget's views, clicks and orders, sends forms as leads, and fills in numbers; /docs
// describes the attributes. The service replaces {{base}} with its base address, and leaves out lines
// that are comments and what lines are indented by: so a comment has a line of its own, and no text
// goes over lines.
(() => {
  "use strict";
  const base = "{{base}}";
  // Whose lines are served.
  const origin = new URL((document.currentScript || {}).src || base).origin;
  // Shared by every copy of the script on the page, so that a widget starts once. It is no global name.
  const shared = Symbol.for("widgetd");
  const started = window[shared] = window[shared] || {};
  // A page that replaces its content runs the script again: the copy that is there looks for what has come.
  if (started[base]) return started[base]();
  const quiet = navigator.globalPrivacyControl || navigator.doNotTrack == "1";

  const ignore = () => {};
  started[base] = ignore;
  // Nothing that fails in here may reach the page's own handlers of errors.
  const safe = run => event => {
    try {
      run(event);
    } catch (_) {}
  };
  const wait = seconds => new Promise(done => setTimeout(done, seconds * 1000));
  const set = (element, attributes) => {
    for (const key in attributes) call(element, "setAttribute", key, attributes[key]);
    return element;
  };
  const make = (name, attributes) => set(document.createElement(name), attributes);

  // A field that is called as a property of its form hides it, so these are taken from the prototype.
  const get = (form, name) => Reflect.get(HTMLFormElement.prototype, name, form);
  const call = (element, name, ...args) => get(element, name).apply(element, args);
  const attribute = (element, name) => call(element, "getAttribute", name);
  // inherited returns an attribute of an element, or of the nearest one around it, also outside its shadow root.
  const inherited = (element, name) => {
    if (!element) return "";
    const around = call(element, "closest", "[" + name + "]");
    return around ? attribute(around, name) : inherited(call(element, "getRootNode").host, name);
  };

  const told = {};
  // warn tells whoever builds the page something, once.
  const warn = text => {
    if (!told[text]) console.warn("widgetd: " + text);
    told[text] = 1;
  };

  // ask calls the service, and once more if it says that it is busy. It rejects when the network fails.
  const ask = async (path, init, last) => {
    const answer = await fetch(base + path, { credentials: "omit", ...init }).catch(error => {
      // So an origin that is not listed looks to a script, too.
      warn("no answer from " + base + ". Is this site listed? If not, ask the operator to add " + location.origin);
      throw error;
    });
    const seconds = +answer.headers.get("Retry-After") || 1;
    if (last || !/429|503/.test(answer.status) || seconds > 60) return answer;
    await wait(seconds);
    return ask(path, init, 1);
  };

  // spell returns a number as the language of an element has it. The first toLocaleString of a page takes
  // longer than all of this script.
  const spell = (number, language) => {
    const separator = /^(de|fr|it|rm)-(CH|LI)/i.test(language) ? "’" : /^(da|de|el|es|id|it|nl|pt|tr)\b/i.test(language) ? "."
      : /^(en|he|ja|ko|th|zh)\b/i.test(language) ? "," : "\u202f";
    return String(number).replace(/\B(?=(\d{3})+$)/g, separator);
  };

  // A number or a name in the page is "views.week" or "item.today.1". One answer, of the last 30 days,
  // has all numbers; the items of fewer days need one of their own.
  const fill = async (element, load) => {
    const [what, span, rank] = element.dataset.widgetStat.split(".");
    const days = { today: 1, week: 7, month: 30 }[span];
    if (!days) return;
    const query = "&timezone=" + encodeURIComponent(inherited(element, "data-timezone") || "UTC");
    let report = await load(query);
    const series = report.series.slice(-days);
    if (what == "item" && days < 30) report = await load(query + "&from=" + series[0].date + "&to=" + report.to);
    const top = report.top_items.filter(row => row.item != "other")[rank - 1];
    const sum = series.reduce((sum, day) => sum + day[what], 0);
    // The sum is NaN for items, for orders that are not public, and for a name that is none.
    const text = sum >= 0 ? spell(sum, inherited(element, "lang")) : top && top.item;
    if (text && text != element.textContent) element.textContent = text;
  };

  // pageOf returns the path of the page, at most so long. A document within another may have none.
  const pageOf = length => location.pathname[0] == "/" ? location.pathname.slice(0, length) : undefined;
  // newWidget returns what a widget does: there is one of an id, however often it appears on the page.
  const newWidget = id => {
    const answers = {};
    const queue = [];
    let timer, viewed;
    const send = () => {
      timer = 0;
      while (queue.length) {
        // 25 with the longest names fit into the 16 KiB that the service takes.
        const body = JSON.stringify({ widget: id, events: queue.splice(0, 25) });
        // A text, so that it is text/plain, which needs no preflight.
        if ("keepalive" in Request.prototype) ask("/widget/events", { method: "POST", body, keepalive: true }).catch(ignore);
        else navigator.sendBeacon(base + "/widget/events", body);
      }
    };
    const count = (type, item) => {
      if (quiet) return;
      queue.push({ type, item, page: pageOf(200) });
      timer = timer || setTimeout(safe(send), 2000);
    };
    // watch counts a view once any of a root is on the screen: one on each page, of which a script may show several.
    const watch = root => {
      const observer = new IntersectionObserver(safe(entries => {
        if (!entries.some(entry => entry.isIntersecting)) return;
        observer.disconnect();
        if (viewed != location.pathname) count("view");
        viewed = location.pathname;
      }));
      observer.observe(root);
    };
    const load = query => {
      const key = location.pathname + query;
      return answers[key] = answers[key] || ask("/widget/stats?widget=" + id + query).then(answer => answer.json());
    };
    document.addEventListener("visibilitychange", safe(send));
    addEventListener("pagehide", safe(send));
    return { count, watch, load };
  };

  const widgets = {};
  // Where they are: each root that is in the document, with its widget, and the page on which it was last looked at.
  let places = [];
  // click counts a click on what lies on a path of nodes, the innermost first.
  const click = path => {
    const find = selector => path.find(node => node instanceof Element && call(node, "matches", selector));
    const item = find("[data-widget-item]"), order = find("[data-widget-order]");
    const dish = item && attribute(item, "data-widget-item");
    const count = (type, element, text) => {
      const name = [...(text || (item || order).textContent).replace(/[\s\0-\x1f]+/g, " ").trim()].slice(0, 100).join("");
      const around = places.filter(place => path.indexOf(place.root) >= path.indexOf(element));
      for (const widget of new Set(around.map(place => place.widget))) widget.count(type, name);
    };
    if (item) count("click", item, dish);
    if (order) count("order", order, attribute(order, "data-widget-order") || dish);
  };

  // prepare adds what a form needs: the field that only bots fill in, and a place for the result, which
  // must be there before its text so that screen readers announce it. It returns that place.
  const prepare = form => {
    if (!get(form, "elements").namedItem("website")) {
      const trap = make("span", { "aria-hidden": "true", inert: "" });
      // Whatever the rules of the page are.
      trap.style.cssText = "position:fixed!important;top:-99px!important;opacity:0!important";
      trap.append(make("input", { name: "website", tabindex: "-1", autocomplete: "off" }));
      call(form, "append", trap);
    }
    let result = call(form, "querySelector", "[data-widget-result]");
    if (!result) call(form, "append", result = make("span", { "data-widget-result": "" }));
    if (!attribute(result, "aria-live")) set(result, { role: "status", "aria-live": "polite" });
    return result;
  };

  const shown = new WeakSet();
  // isShown reports whether somebody can see a field, or could when it was used: then it is no trap. Browsers of
  // before 2024 have no checkVisibility: there, what is off the screen or not displayed is not seen.
  const isShown = field => {
    const box = field.getBoundingClientRect();
    if (box.right + scrollX > 0 && !field.closest("[inert]") && (!field.checkVisibility || field.checkVisibility({ checkOpacity: true, checkVisibilityCSS: true }))) shown.add(field);
    return shown.has(field);
  };

  // read returns the lead that a form was filled in with, and the name under which each field is sent: the nearest
  // that the service takes.
  const read = form => {
    const names = new Map(), fields = Object.create(null);
    for (const field of get(form, "elements")) {
      if (/^[a-z][a-z0-9_-]{0,31}$/.test(field.name) && (field.name != "website" || isShown(field))) names.set(field.name, field.name);
    }
    const kept = names.size;
    const nameOf = key => {
      if (names.has(key)) return names.get(key);
      const nearest = key.toLowerCase().replace(/[^a-z0-9_-]+/g, "_").replace(/^_+/, "").replace(/^(?![a-z])/, "f_").slice(0, 32).replace(/_+$/, "");
      let name = nearest;
      for (let n = 2; [...names].some(pair => pair[1] == name); n++) name = nearest.slice(0, 29) + "_" + n;
      names.set(key, name);
      return name;
    };
    const lead = { type: attribute(form, "data-widget-lead") || "newsletter" };
    let file;
    new FormData(form).forEach((value, key) => {
      const isTrap = key == "website" && !names.has(key), name = isTrap ? key : nameOf(key);
      if (value.name) file = name;
      else if (!value || value.size == 0) return;
      else if (isTrap || name == "email" || /^(type|source)$/.test(key)) lead[name] = value;
      else fields[name] = name in fields ? fields[name] + ", " + value : value;
    });
    if (names.size > kept) warn("fields are sent as others: " + [...names].slice(kept).join("; "));
    // The service refuses it.
    if (file) fields[file] = {};
    for (const _ in fields) lead.fields = fields;
    lead.page = pageOf(2048);
    return { body: JSON.stringify(lead), names };
  };

  const words = {
    en: ["Sending…", "Thank you. It has been sent.", "Please check what you entered.", "That could not be sent. Please contact us directly."],
    de: ["Wird gesendet …", "Vielen Dank. Es wurde gesendet.", "Bitte prüfen Sie Ihre Angaben.", "Das Senden hat nicht geklappt. Bitte direkt melden."],
    fr: ["Envoi…", "Merci. C’est envoyé.", "Veuillez vérifier votre saisie.", "L’envoi n’a pas abouti. Contactez-nous directement."],
    it: ["Invio…", "Grazie. È stato inviato.", "Controlla i dati inseriti.", "Invio non riuscito. Contattaci direttamente."],
    nb: ["Sender …", "Takk. Det er sendt.", "Kontroller det du har skrevet.", "Det kunne ikke sendes. Ta kontakt direkte."],
    sv: ["Skickar …", "Tack. Det har skickats.", "Kontrollera det du har skrivit.", "Det gick inte att skicka. Kontakta oss direkt."],
    da: ["Sender …", "Tak. Det er sendt.", "Kontrollér det, du har skrevet.", "Det kunne ikke sendes. Kontakt os direkte."],
    fi: ["Lähetetään…", "Kiitos. Viesti on lähetetty.", "Tarkista antamasi tiedot.", "Lähetys ei onnistunut. Ota yhteyttä suoraan."]
  };
  // wordsOf returns the texts in the language of a form, in English if there are none.
  const wordsOf = form => words[inherited(form, "lang").split("-")[0].toLowerCase().replace(/^n[on]$/, "nb")] || words.en;
  // english returns a text of the service's, which are in English, if the form is, else "".
  const english = (form, text) => wordsOf(form) == words.en ? text : "";
  const states = ["sending", "sent", "invalid", "failed"];
  const say = (form, state, more) => {
    const result = prepare(form);
    result.textContent = (attribute(form, "data-widget-" + state) || wordsOf(form)[states.indexOf(state)]) + (more || "");
    result.dataset.widgetState = state;
  };

  const marks = new WeakMap();
  let notes = 0;
  // mark puts what is wrong with a field behind it. It returns false if the form shows no such field.
  const mark = (form, names, { pointer, code, detail }) => {
    const name = pointer.split("/").pop();
    const field = [...get(form, "elements")].find(field => names.get(field.name) == name && !field.closest("[hidden], [type=hidden]"));
    if (!field) return false;
    const note = make("span", { id: "widgetd-note-" + ++notes, "data-widget-note": "" });
    const before = field.getAttribute("aria-describedby") || "";
    note.textContent = field.dataset.widgetError || english(form, detail) || wordsOf(form)[2].replace(".", code == "invalid_email" ? ": name@example.com" : ".");
    field.after(note);
    set(field, { "aria-invalid": "true", "aria-describedby": before + " " + note.id });
    const undo = () => {
      note.remove();
      field.removeAttribute("aria-invalid");
      set(field, { "aria-describedby": before });
    };
    field.addEventListener("input", undo, { once: true });
    marks.set(field, undo);
    return true;
  };

  // Which forms are being sent: a page may keep a copy of one, in which aria-busy stays.
  const sending = new WeakMap();
  const busy = (form, on) => {
    set(form, { "aria-busy": on });
    sending.set(form, on);
    // A button that is disabled would lose the focus.
    for (const button of get(form, "elements")) if (button.type == "submit") button.setAttribute("aria-disabled", on);
  };

  // The form that the page itself submits at the moment.
  let plain;
  const submit = async (form, lead, submitter) => {
    for (const field of get(form, "elements")) (marks.get(field) || ignore)();
    busy(form, true);
    say(form, "sending");
    const post = () => ask("/widget/leads", { method: "POST", body: lead.body, headers: { "Content-Type": "application/json" } });
    let answer = {}, errors;
    try {
      // Sent twice within ten minutes, it is one lead.
      answer = await post().catch(() => wait(1).then(post));
      if (answer.status == 422) errors = (await answer.json()).errors;
    } catch (_) {}
    busy(form, false);
    if (answer.ok) {
      say(form, "sent");
      call(form, "reset");
    } else if (errors) {
      const others = errors.filter(error => !mark(form, lead.names, error));
      say(form, "invalid", english(form, others.map(error => " " + error.detail).join("")));
      const first = call(form, "querySelector", "[aria-invalid=true]");
      if (first) first.focus();
    } else {
      say(form, "failed");
      if (!attribute(form, "action")) return;
      plain = form;
      call(form, "requestSubmit", submitter);
      plain = undefined;
    }
  };
  const onSubmit = safe(event => {
    const form = event.target;
    if (!call(form, "matches", "form[data-widget-lead]") || event.defaultPrevented || plain == form) return;
    const lead = read(form);
    event.preventDefault();
    if (!sending.get(form)) submit(form, lead, event.submitter).catch(ignore);
  });
  // Until the page is told not to, it submits a form itself: also when something here fails. Another copy of the
  // script serves them all already.
  const serveForms = started[shared] ? ignore : root => {
    root.addEventListener("submit", onSubmit);
    root.querySelectorAll("form[data-widget-lead]").forEach(prepare);
  };
  started[shared] = true;
  const use = event => {
    const path = event.composedPath();
    if (path[0].name == "website") isShown(path[0]);
    // A submission stays within a shadow root, but what leads to it comes out of one that is open.
    for (const node of path) if (node instanceof ShadowRoot) serveForms(node);
    if (event.type == "click") click(path);
  };

  // The texts that elements have from the page.
  const given = new WeakMap();
  let timer;
  // look finds what is on the page, and gives up what has left it.
  const look = () => {
    timer = 0;
    serveForms(document);
    places = places.filter(place => document.contains(place.root));
    for (const script of document.querySelectorAll("script[data-widget]")) {
      const id = script.dataset.widget, parent = script.parentNode;
      const root = script.closest("[data-widget-root]") || (parent == document.head ? document.body : parent);
      // It is true for a widget that a copy of an earlier release has started.
      if (started[id] === true || script.src && script.src.indexOf(origin)) continue;
      started[id] = 1;
      const widget = widgets[id] = widgets[id] || newWidget(id);
      if (!places.some(place => place.root == root && place.widget == widget)) places.push({ root, widget });
    }
    for (const place of places) {
      const { root, widget } = place;
      if (place.page != location.pathname) widget.watch(root);
      place.page = location.pathname;
      for (const element of call(root, "querySelectorAll", "[data-widget-stat]")) {
        const text = element.textContent;
        if (!given.has(element)) given.set(element, text);
        // A page that takes over a newer one puts its text back.
        if (given.get(element) == text) fill(element, widget.load).catch(ignore);
      }
    }
  };
  const start = () => {
    started[base] = safe(look);
    for (const type of ["focusin", "click", "keydown", "input"]) document.addEventListener(type, safe(use), true);
    look();
    new MutationObserver(() => {
      timer = timer || setTimeout(started[base], 200);
    }).observe(document, { childList: true, subtree: true });
  };
  // A page that the browser fetched in advance is not shown yet, and may never be.
  const begin = safe(() => document.prerendering ? document.addEventListener("prerenderingchange", safe(start)) : start());
  if (document.readyState == "loading") document.addEventListener("DOMContentLoaded", begin);
  else begin();
})();

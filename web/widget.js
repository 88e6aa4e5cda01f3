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
  const current = document.currentScript;
  // Shared by every copy of the script on the page, so that a widget starts once. It is no global name.
  const shared = Symbol.for("widgetd");
  const started = window[shared] = window[shared] || {};
  const quiet = navigator.globalPrivacyControl || (navigator.doNotTrack || window.doNotTrack) == "1";

  const ignore = () => {};
  // Nothing that fails in here may reach the page's own handlers of errors.
  const safe = run => event => {
    try {
      run(event);
    } catch (_) {}
  };
  const wait = seconds => new Promise(done => setTimeout(done, seconds * 1000));
  const make = (name, attributes) => {
    const element = document.createElement(name);
    for (const key in attributes) element.setAttribute(key, attributes[key]);
    return element;
  };

  let warned;
  // An origin that is not listed looks to a script like a network that fails.
  const warn = error => {
    if (!warned) console.warn("widgetd: no answer from " + base + ". Is this site listed? widgetd origin add " + location.origin + " -account ID");
    warned = 1;
    throw error;
  };

  // ask calls the service, and once more if it says that it is busy. It rejects when the network fails.
  const ask = async (path, init, last) => {
    const answer = await fetch(base + path, { credentials: "omit", ...init }).catch(warn);
    const seconds = +answer.headers.get("Retry-After") || 1;
    if (last || !/429|503/.test(answer.status) || seconds > 60) return answer;
    await wait(seconds);
    return ask(path, init, 1);
  };

  // write returns a number as the language of an element has it. The first toLocaleString of a page takes
  // longer than all of this script.
  const write = (number, element) => {
    const language = element ? element.lang : "";
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
    const zone = element.closest("[data-timezone]");
    const query = "&timezone=" + encodeURIComponent(zone && zone.dataset.timezone || "UTC");
    let report = await load(query);
    const series = report.series.slice(-days);
    if (what == "item") {
      if (days < 30) report = await load(query + "&from=" + series[0].date + "&to=" + report.to);
      const top = report.top_items.filter(row => row.item != "other")[rank - 1];
      if (top) element.textContent = top.item;
      return;
    }
    const sum = series.reduce((sum, day) => sum + day[what], 0);
    // It is NaN for orders that are not public, and for a name that is none.
    if (sum >= 0) element.textContent = write(sum, element.closest("[lang]"));
  };

  const run = (id, root) => {
    let queue = [], timer;
    const send = () => {
      clearTimeout(timer);
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
      const path = location.pathname;
      queue.push({ type, item, page: path[0] == "/" ? path.slice(0, 200) : undefined });
      if (queue.length > 24) send();
      else timer = timer || setTimeout(safe(send), 2000);
    };
    const name = (element, text) => [...(text || element.textContent).replace(/[\s\0-\x1f]+/g, " ").trim()].slice(0, 100).join("");

    root.addEventListener("click", safe(event => {
      const item = event.target.closest("[data-widget-item]");
      const order = event.target.closest("[data-widget-order]");
      if (item && root.contains(item)) count("click", name(item, item.dataset.widgetItem));
      if (order && root.contains(order)) count("order", name(item || order, order.dataset.widgetOrder || item && item.dataset.widgetItem));
    }), true);
    document.addEventListener("visibilitychange", safe(() => document.visibilityState == "hidden" && send()));
    addEventListener("pagehide", safe(send));

    if (window.IntersectionObserver) {
      const observer = new IntersectionObserver(safe(entries => {
        if (!entries.some(entry => entry.isIntersecting)) return;
        observer.disconnect();
        count("view");
      }));
      observer.observe(root);
    } else {
      count("view");
    }

    const loaded = {};
    const load = query => loaded[query] = loaded[query] || ask("/widget/stats?widget=" + id + query).then(answer => answer.json());
    for (const element of root.querySelectorAll("[data-widget-stat]")) fill(element, load).catch(ignore);
  };

  const isForm = form => form.matches("form[data-widget-lead]");
  const results = new WeakMap();
  // prepare adds what a form needs: the field that only bots fill in, and a place for the result, which
  // must be there before its text so that screen readers announce it. It returns that place.
  const prepare = form => {
    if (results.has(form)) return results.get(form);
    if (!form.elements.namedItem("website")) {
      const trap = make("span", { hidden: "", "aria-hidden": "true" });
      trap.append(make("input", { name: "website", tabindex: "-1", autocomplete: "off" }));
      form.append(trap);
    }
    let result = form.querySelector("[data-widget-result]");
    if (!result) form.append(result = make("span", { "data-widget-result": "" }));
    result.setAttribute("role", "status");
    result.setAttribute("aria-live", "polite");
    results.set(form, result);
    return result;
  };

  // read returns the lead that a form was filled in with.
  const read = form => {
    const lead = { type: form.dataset.widgetLead || "newsletter" }, fields = {};
    new FormData(form).forEach((value, key) => {
      if (typeof value != "string" || !value) return;
      if (/^(email|type|source|website)$/.test(key)) lead[key] = value;
      else if (/^[a-z][a-z0-9_-]{0,31}$/.test(key)) fields[key] = key in fields ? fields[key] + ", " + value : value;
    });
    for (const _ in fields) lead.fields = fields;
    if (location.pathname[0] == "/") lead.page = location.pathname.slice(0, 2048);
    return JSON.stringify(lead);
  };

  const words = {
    en: ["Sending…", "Thank you. It has been sent.", "Please check what you entered.", "That could not be sent. Please contact us directly."],
    de: ["Wird gesendet …", "Vielen Dank. Es wurde gesendet.", "Bitte prüfen Sie Ihre Angaben.", "Das Senden hat nicht geklappt. Bitte direkt melden."],
    fr: ["Envoi en cours…", "Merci. C’est envoyé.", "Veuillez vérifier votre saisie.", "L’envoi n’a pas abouti. Contactez-nous directement."],
    it: ["Invio in corso…", "Grazie. È stato inviato.", "Controlla i dati inseriti.", "Invio non riuscito. Contattaci direttamente."],
    nb: ["Sender …", "Takk. Det er sendt.", "Kontroller det du har skrevet.", "Det kunne ikke sendes. Ta kontakt direkte."],
    sv: ["Skickar …", "Tack. Det har skickats.", "Kontrollera det du har skrivit.", "Det gick inte att skicka. Kontakta oss direkt."],
    da: ["Sender …", "Tak. Det er sendt.", "Kontrollér det, du har skrevet.", "Det kunne ikke sendes. Kontakt os direkte."],
    fi: ["Lähetetään…", "Kiitos. Viesti on lähetetty.", "Tarkista antamasi tiedot.", "Lähetys ei onnistunut. Ota yhteyttä suoraan."]
  };
  // wordsOf returns the texts in the language of a form, in English if there are none.
  const wordsOf = form => {
    const around = form.closest("[lang]");
    return words[around && around.lang.split("-")[0].toLowerCase().replace(/^n[on]$/, "nb")] || words.en;
  };
  const say = (form, state, more) => {
    const result = prepare(form);
    result.textContent = (form.dataset["widget" + state] || wordsOf(form)[{ Sending: 0, Sent: 1, Invalid: 2, Failed: 3 }[state]]) + (more ? " " + more : "");
    result.dataset.widgetState = state.toLowerCase();
  };

  const marks = new WeakMap();
  let notes = 0;
  // mark puts what is wrong with a field behind it. It returns false if the form shows no such field.
  const mark = (form, pointer, detail) => {
    let field = form.elements.namedItem(decodeURIComponent(pointer).split("/").pop());
    if (field && !field.nodeName) field = field[0];
    if (!field || field.type == "hidden" || field.closest("[hidden]")) return false;
    const note = make("span", { id: "widgetd-note-" + ++notes, "data-widget-note": "" });
    const before = field.getAttribute("aria-describedby");
    // The service's own text is in English.
    note.textContent = field.dataset.widgetError || (wordsOf(form) == words.en ? detail : wordsOf(form)[2]);
    field.after(note);
    field.setAttribute("aria-invalid", "true");
    field.setAttribute("aria-describedby", (before ? before + " " : "") + note.id);
    const undo = () => {
      note.remove();
      field.removeAttribute("aria-invalid");
      if (before) field.setAttribute("aria-describedby", before);
      else field.removeAttribute("aria-describedby");
      field.removeEventListener("input", undo);
    };
    field.addEventListener("input", undo);
    marks.get(form).push(undo);
    return true;
  };

  const busy = (form, on) => {
    form.setAttribute("aria-busy", on);
    // A button that is disabled would lose the focus.
    for (const button of form.elements) if (button.type == "submit") button.setAttribute("aria-disabled", on);
  };

  const plain = new WeakSet();
  const submit = async (form, body, submitter) => {
    (marks.get(form) || []).forEach(undo => undo());
    marks.set(form, []);
    busy(form, true);
    say(form, "Sending");
    const post = () => ask("/widget/leads", { method: "POST", body, headers: { "Content-Type": "application/json" } });
    let answer, problem;
    try {
      // Sent twice within ten minutes, it is one lead.
      answer = await post().catch(() => wait(1).then(post));
      if (answer.status == 422) problem = await answer.json();
    } catch (_) {}
    busy(form, false);
    if (answer && answer.ok) {
      say(form, "Sent");
      form.reset();
    } else if (problem && problem.errors) {
      const others = problem.errors.filter(error => !mark(form, error.pointer, error.detail));
      say(form, "Invalid", wordsOf(form) == words.en ? others.map(error => error.detail).join(" ") : "");
      const first = form.querySelector("[aria-invalid=true]");
      if (first) first.focus();
    } else {
      say(form, "Failed");
      if (!form.getAttribute("action")) return;
      plain.add(form);
      if (form.requestSubmit) form.requestSubmit(submitter);
      else HTMLFormElement.prototype.submit.call(form);
      plain.delete(form);
    }
  };

  const start = () => {
    const origin = new URL(base).origin;
    for (const script of document.querySelectorAll("script[data-widget]")) {
      const id = script.dataset.widget, parent = script.parentNode;
      if (started[id] || script != current && script.src && script.src.indexOf(origin + "/widget")) continue;
      started[id] = true;
      run(id, script.closest("[data-widget-root]") || (parent == document.head ? document.body : parent));
    }
    if (started[shared]) return;
    started[shared] = true;
    for (const form of document.forms) if (isForm(form)) prepare(form);
    // Until the page is told not to, it submits the form itself: also when something here fails.
    document.addEventListener("submit", safe(event => {
      const form = event.target;
      if (!isForm(form) || event.defaultPrevented || plain.has(form)) return;
      prepare(form);
      const body = read(form);
      event.preventDefault();
      if (form.getAttribute("aria-busy") != "true") submit(form, body, event.submitter).catch(ignore);
    }));
  };
  // A page that the browser fetched in advance is not shown yet, and may never be.
  const begin = safe(() => document.prerendering ? document.addEventListener("prerenderingchange", safe(start)) : start());
  if (document.readyState == "loading") document.addEventListener("DOMContentLoaded", begin);
  else begin();
})();

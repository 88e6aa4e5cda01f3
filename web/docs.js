// The script of the pages below /docs: it copies, finds, shows samples in one language, and marks where the reader is.
// Every page reads without it. Its hash is in the pages' policy. A comment has a line of its own: comments are left out.
(() => {
  const all = (css, within) => [...(within || document).querySelectorAll(css)];
  const make = (name, text, more) => Object.assign(document.createElement(name), { textContent: text || "" }, more);
  const main = document.querySelector("main"), nav = document.querySelector("nav");

  // What an address of the one long page named leads to its chapter.
  const moved = document.getElementById(location.hash.slice(1));
  const link = moved && moved.closest(".index a");
  if (link) return location.replace(link.href);

  // A button above each block copies it. Strings and keys get a colour.
  const word = /"(?:[^"\\]|\\.)*"(\s*:)?|'[^']*'|(^|\n)\s*(#|\/\/) [^\n]*/g;
  for (const pre of all("pre", main)) {
    const button = make("button", "Copy", { className: "copy", type: "button" });
    const box = make("div", "", { className: "code" });
    button.onclick = async () => {
      try {
        await navigator.clipboard.writeText(pre.textContent);
      } catch (_) {
        getSelection().selectAllChildren(pre);
        if (!document.execCommand("copy")) return;
      }
      button.textContent = "Copied";
      setTimeout(() => button.textContent = "Copy", 2000);
    };
    const code = pre.firstElementChild, text = code.textContent, parts = [];
    let done = 0;
    for (const found of text.matchAll(word)) {
      const kind = found[1] ? "key" : found[3] ? "note" : "string";
      parts.push(text.slice(done, found.index), make("span", found[0], { className: kind }));
      done = found.index + found[0].length;
    }
    code.replaceChildren(...parts, text.slice(done));
    pre.replaceWith(box);
    box.append(button, pre);
  }

  // Samples of one thing in several languages are sections; one of them is shown.
  const groups = all(".tabs").map(group => {
    const list = make("div", "", { className: "tablist" }), panels = all(":scope > section", group);
    list.setAttribute("role", "tablist");
    list.setAttribute("aria-label", "Language");
    const tabs = panels.map((panel, i) => {
      const tab = make("button", panel.querySelector("h3, h4").textContent, { type: "button", id: panel.id + "-tab" });
      tab.setAttribute("role", "tab");
      tab.setAttribute("aria-controls", panel.id);
      panel.setAttribute("role", "tabpanel");
      panel.setAttribute("aria-labelledby", tab.id);
      tab.onclick = () => choose(tab.textContent);
      tab.onkeydown = event => {
        const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        const next = step && tabs[(i + step + tabs.length) % tabs.length];
        if (next) choose(next.textContent), next.focus();
      };
      list.append(tab);
      return tab;
    });
    group.classList.add("live");
    group.prepend(list);
    return { tabs, panels };
  });
  const choose = language => {
    for (const { tabs, panels } of groups) {
      const at = tabs.findIndex(tab => tab.textContent == language);
      if (at >= 0) tabs.forEach((tab, i) => {
        tab.setAttribute("aria-selected", i == at);
        tab.tabIndex = i == at ? 0 : -1;
        panels[i].hidden = i != at;
      });
    }
  };
  for (const { tabs } of groups) choose(tabs[0].textContent);
  const show = () => {
    const panel = document.getElementById(location.hash.slice(1));
    if (panel && panel.hidden) choose(panel.querySelector("h3, h4").textContent), panel.scrollIntoView();
  };
  addEventListener("hashchange", show);
  show();

  // The box in the header finds words in all pages. Its index is fetched when it is first used.
  const input = make("input", "", { type: "search", id: "find", autocomplete: "off" });
  const found = make("div", "", { id: "found", hidden: true }), label = make("label", "Find in the documentation", { htmlFor: "find" });
  const count = make("p", "", { className: "count" }), box = make("div", "", { className: "find" });
  input.setAttribute("role", "combobox");
  input.setAttribute("aria-expanded", "false");
  input.setAttribute("aria-controls", "found");
  found.setAttribute("role", "listbox");
  found.setAttribute("aria-label", "Places");
  count.setAttribute("role", "status");
  box.append(label, input, count, found);
  document.querySelector("header").append(box);
  let index, chosen = -1;
  const load = () => index = index || fetch("/docs/find.json").then(answer => answer.json()).then(made => {
    made.list = Object.keys(made.words);
    return made;
  });
  input.onfocus = load;
  const placesOf = (made, term) => {
    const places = new Map();
    for (const known of made.list) {
      if (!known.startsWith(term)) continue;
      let at = 0;
      for (const step of made.words[known]) {
        at += step;
        places.set(at, Math.max(places.get(at) || 0, known == term ? 2 : 1));
      }
    }
    return places;
  };
  // seek shows the first places, or all of them, each in one line.
  const seek = async all => {
    const made = await load(), scores = new Map();
    const terms = (input.value.toLowerCase().match(/[a-z0-9à-ÿ_]+/g) || []).filter(term => !made.stops.includes(term));
    for (const term of terms) {
      const forms = [term, term.replace(/s$/, ""), made.same[term]].filter((form, i, all) => form && all.indexOf(form) == i);
      const places = new Map();
      for (const form of forms) for (const [at, score] of placesOf(made, form)) places.set(at, Math.max(score, places.get(at) || 0));
      if (term.length < 3 && !made.words[term]) continue;
      for (const [at, score] of places) {
        const [page, id, title] = made.places[at], path = made.pages[page][0];
        const name = [title, id, path, made.pages[page][1]].join(" ").toLowerCase();
        const behind = /objects|problems|changes|commands/.test(path), exact = !behind && terms.length == 1 || /_/.test(term);
        const titled = title.toLowerCase() == term ? (exact ? 20 : 4) : forms.some(form => name.includes(form)) ? 3 : 0;
        scores.set(at, (scores.get(at) || (behind ? -8 : 0)) + 10 + score + titled);
      }
    }
    const hits = [...scores].sort((a, b) => b[1] - a[1] || a[0] - b[0]), few = all === true ? hits : hits.slice(0, 12);
    count.textContent = input.value.trim() ? (hits.length ? scores.size + " found" : "Nothing is found. Try fewer words.") : "";
    found.className = all === true ? "all" : "";
    found.replaceChildren(...few.map(([at], i) => {
      const [page, id, title] = made.places[at];
      const to = make("a", title, { id: "hit-" + i, href: made.pages[page][0] + "#" + id, tabIndex: -1, onclick: () => close() });
      to.setAttribute("role", "option");
      to.append(make("small", " " + made.pages[page][1]));
      return to;
    }));
    if (few.length < hits.length) {
      const more = make("a", "Show all " + hits.length, { id: "hit-" + few.length, href: "#find", tabIndex: -1 });
      more.onclick = event => (event.preventDefault(), event.stopPropagation(), seek(true), input.focus());
      more.setAttribute("role", "option");
      found.append(more);
    }
    choosePlace(hits.length ? 0 : -1);
    setOpen(hits.length > 0);
  };
  const setOpen = open => {
    found.hidden = !open;
    input.setAttribute("aria-expanded", open);
  };
  const choosePlace = at => {
    chosen = at;
    [...found.children].forEach((item, i) => item.setAttribute("aria-selected", i == at));
    if (at >= 0) {
      input.setAttribute("aria-activedescendant", "hit-" + at);
      found.children[at].scrollIntoView({ block: "nearest" });
    } else input.removeAttribute("aria-activedescendant");
  };
  const close = () => (setOpen(false), setTimeout(show));
  input.oninput = seek;
  input.onkeydown = event => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key], n = found.children.length;
    if (step && n) choosePlace((chosen + step + n) % n), event.preventDefault();
    if (event.key == "Enter" && chosen >= 0) found.children[chosen].click();
    if (event.key == "Escape") setOpen(false);
  };
  addEventListener("keydown", event => {
    const typing = /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement.tagName);
    if (event.key == "/" && !typing || event.key == "k" && (event.ctrlKey || event.metaKey)) input.focus(), event.preventDefault();
  });
  addEventListener("click", event => box.contains(event.target) || setOpen(false));

  // The last heading above the upper third of the window is where the reader is.
  const marks = all("li li a", nav).map(a => [a, document.getElementById(a.hash.slice(1))]).filter(mark => mark[1]);
  let waiting;
  const mark = () => {
    waiting = 0;
    const here = marks.filter(([, at]) => at.getBoundingClientRect().top < innerHeight / 3).pop();
    for (const [a] of marks) a.removeAttribute("aria-current");
    if (here) here[0].setAttribute("aria-current", "true");
  };
  addEventListener("scroll", () => waiting = waiting || requestAnimationFrame(mark), { passive: true });
  mark();
})();

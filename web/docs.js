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
    pre.replaceWith(box);
    box.append(pre, button);
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

  // Headings, members and, on the first page, the index.
  const input = make("input", "", { type: "search", id: "find" }), found = make("ul", "", { className: "found" });
  const label = make("label", "Find on this page", { htmlFor: "find" }), count = make("p");
  count.setAttribute("role", "status");
  nav.prepend(label, input, count, found);
  const things = all("h2, h3[id], h3 a, .lang, h4[id], dt > code:first-child, tr[id] td:first-child, .index a", main);
  input.oninput = () => {
    const word = input.value.trim().toLowerCase();
    const hits = word ? things.filter(thing => (thing.textContent + " " + thing.id).toLowerCase().includes(word)) : [];
    count.textContent = word ? hits.length + " found" + (hits.length > 40 ? ":" : "") : "";
    found.replaceChildren(...hits.slice(0, 40).map(thing => {
      const at = thing.closest("[id]"), item = make("li"), to = make("a", thing.textContent, { href: thing.href || "#" + at.id });
      const title = !thing.href && thing.localName == "code" && at.querySelector("h2, h3");
      if (title && title != thing) to.append(make("small", " " + title.textContent));
      if (!thing.href) to.onclick = () => setTimeout(() => (show(), thing.scrollIntoView()));
      item.append(to);
      return item;
    }));
  };

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

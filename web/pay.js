// Puts what is new of an order into its page: what the page's own address answers, asked for ever more rarely, for at
// most two hours, and only while somebody sees the page; while the restaurant is to answer, every few seconds. What has
// the focus stays. A link does the same without this. A receipt waits for nothing, but has a button to print it.
"use strict";
{
  const main = document.querySelector("main"), end = Date.now() + 7_200_000, shown = {};
  const parts = ["state", "links", "order"].map((id) => document.getElementById(id));
  for (const part of parts) shown[part.id] = part.innerHTML;
  let { wait, most } = main.dataset, asked = wait, timer;
  const show = (page) => {
    const next = page.querySelector("main");
    if (!page.getElementById("order")) return; // it is about something else
    document.title = page.title;
    let kept = false;
    for (const part of parts) {
      const news = page.getElementById(part.id), html = news.innerHTML;
      if (html === shown[part.id]) continue;
      if (part.contains(document.activeElement)) {
        kept = true;
        continue;
      }
      shown[part.id] = html;
      part.replaceChildren(...news.childNodes);
    }
    if (next.dataset.wait !== asked && !kept) ({ wait = 0, most } = next.dataset), asked = next.dataset.wait;
  };
  const look = async () => {
    try {
      const answer = await fetch(location.href, { cache: "no-store" });
      if (answer.ok) show(new DOMParser().parseFromString(await answer.text(), "text/html"));
    } catch {} // it is asked again
    wait = Math.min(wait * 1.3, most);
    later(wait);
  };
  const later = (seconds) => {
    clearTimeout(timer);
    if (wait && !document.hidden && Date.now() < end) timer = setTimeout(look, seconds * 1000);
  };
  document.addEventListener("visibilitychange", () => later(1));
  document.addEventListener("click", ({ target }) => target.id === "print" && window.print());
  later(wait);
}

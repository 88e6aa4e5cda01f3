// A menu that takes orders. What a dish costs is decided here, on the restaurant's server, and never in a browser.
import { createServer } from "node:http";

const { BASE, TOKEN, WIDGET, RETURN_URL, PORT = "8099" } = process.env;
const dishes = [
  { name: "Pizza Margherita", unit_amount: 1650, vat_rate: 260 }, // 16.50, of which 2.6 % are VAT
  { name: "Tiramisù", unit_amount: 900, vat_rate: 260 },
];

const page = `<!doctype html>
<html lang="en">
<meta charset="utf-8">
<title>Menu</title>
<h1>Menu</h1>
<form method="post">
${dishes.map((dish, i) => `<p><label><input name="${i}" type="number" min="0" max="9"> ${dish.name}, CHF ${(dish.unit_amount / 100).toFixed(2)}</label>`).join("\n")}
<p><button data-widget-order="Menu">Order and pay</button>
<script async src="${new URL("/widget.js", BASE)}" data-widget="${WIDGET}"></script>
</form>
</html>`;

createServer(async (request, answer) => {
  if (request.method !== "POST") return answer.setHeader("Content-Type", "text/html; charset=utf-8").end(page);
  let body = "";
  for await (const chunk of request) if ((body += chunk).length > 9999) return answer.writeHead(413).end();
  const form = new URLSearchParams(body);
  const lines = dishes.map((dish, i) => ({ ...dish, quantity: Math.trunc(form.get(String(i))) || 0 })).filter((line) => line.quantity > 0);
  if (lines.length === 0) {
    answer.writeHead(422, { "Content-Type": "text/html; charset=utf-8" });
    return answer.end(page.replace("<form", "<p role=alert>Choose something first.</p>\n<form"));
  }
  const made = await fetch(`${BASE}/orders`, {
    method: "POST",
    headers: { Authorization: `Bearer ${TOKEN}`, "Content-Type": "application/json" },
    body: JSON.stringify({ currency: "CHF", lines, return_url: RETURN_URL }),
  });
  const order = await made.json();
  if (!made.ok) return answer.writeHead(502).end(order.detail);
  answer.writeHead(303, { Location: order.pay_url }).end(); // the guest pays there, and comes back to RETURN_URL
}).listen(Number(PORT), "127.0.0.1", function () {
  console.log(`http://127.0.0.1:${this.address().port}/`);
});

// The part of a person who agrees that an application acts for an account: signs in with a code, and presses
// the button. It reads the pages' forms as a browser does.
import { execFileSync } from "node:child_process";

const { WIDGETD, ACCOUNT } = process.env;
if (!WIDGETD || !ACCOUNT) throw new Error("a variable is missing");

export const widgetd = (...args) => JSON.parse(execFileSync(WIDGETD, [...args, "-json"], { encoding: "utf8" }));

const attribute = (tag, name) => {
  const found = tag.match(new RegExp(`\\s${name}="([^"]*)"`));
  return found && found[1].replaceAll("&#43;", "+").replaceAll("&#34;", '"').replaceAll("&#39;", "'").replaceAll("&amp;", "&");
};

// fieldsOf returns the hidden fields and the ticked boxes of the form that has a field or button with a name.
const fieldsOf = (page, name) => {
  const form = [...page.matchAll(/<form[^>]*>.*?<\/form>/gs)].map((m) => m[0]).find((f) => f.includes(`name="${name}"`));
  if (!form) throw new Error(`no form with ${name} in ${page}`);
  const fields = new URLSearchParams();
  for (const [tag] of form.matchAll(/<input[^>]*>/g)) {
    const box = attribute(tag, "type") === "checkbox";
    if (attribute(tag, "type") === "hidden" || box && / checked/.test(tag)) fields.append(attribute(tag, "name"), attribute(tag, "value"));
  }
  return { action: attribute(form.match(/<form[^>]*>/)[0], "action"), fields };
};

// agree goes to an address of the authorization endpoint, signs in with a code and agrees. It returns the URL to
// which the person is sent.
export const agree = async (address, code = widgetd("account", "signin", ACCOUNT).code) => {
  let cookie = "";
  const ask = async (url, fields) => {
    const answer = await fetch(url, {
      method: fields ? "POST" : "GET", body: fields, redirect: "manual",
      headers: { Cookie: cookie, ...(fields && { Origin: new URL(url).origin, "Sec-Fetch-Site": "same-origin" }) },
    });
    for (const each of answer.headers.getSetCookie()) cookie = each.split(";")[0];
    return answer;
  };
  const first = await ask(address);
  const signIn = fieldsOf(await first.text(), "code");
  signIn.fields.set("code", code);
  const signedIn = await ask(new URL(signIn.action ?? address, address), signIn.fields);
  if (signedIn.status !== 303) throw new Error(`signing in: ${signedIn.status} ${await signedIn.text()}`);
  const here = new URL(signedIn.headers.get("Location"), address);
  const consent = fieldsOf(await (await ask(here)).text(), "decision");
  consent.fields.set("decision", "allow");
  const sent = await ask(new URL(consent.action ?? here, here), consent.fields);
  if (sent.status !== 303) throw new Error(`agreeing: ${sent.status} ${await sent.text()}`);
  return new URL(sent.headers.get("Location"));
};

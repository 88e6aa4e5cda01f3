// Reads the manual journals of a company at the fake of Xero at $XERO, with Xero's own client for Node. It
// prints each as it understands it, as a line of JSON: the narration, the date, the status, and of each line
// the account, the amount and the TaxType.
import xero from "xero-node";

const { XERO, ACCESS_TOKEN, TENANT } = process.env;
if (!XERO || !ACCESS_TOKEN || !TENANT) throw new Error("XERO, ACCESS_TOKEN and TENANT must be set");
const { AccountingApi } = xero;
const api = new AccountingApi(`${XERO}/api.xro/2.0`);
api.accessToken = ACCESS_TOKEN;

const where = "Date >= DateTime(2026, 11, 21) AND Date < DateTime(2026, 11, 24)";
const { body: list } = await api.getManualJournals(TENANT, undefined, where, "Date ASC", 1, 100);
for (const { manualJournalID } of list.manualJournals) {
  const { body } = await api.getManualJournal(TENANT, manualJournalID);
  const [{ narration, date, status, lineAmountTypes, journalLines }] = body.manualJournals;
  const lines = journalLines.map((l) => [l.accountCode, l.lineAmount, l.taxType, ...l.tracking.map((t) => `${t.name}:${t.option}`)]);
  console.log(JSON.stringify({ narration, date: new Date(date).toISOString().slice(0, 10), status, lineAmountTypes: `${lineAmountTypes}`, lines }));
}
const { body: chart } = await api.getAccounts(TENANT);
const { body: rates } = await api.getTaxRates(TENANT);
const { body: company } = await api.getOrganisations(TENANT);
console.log(`${company.organisations[0].name}: ${chart.accounts.length} accounts, ${rates.taxRates.length} rates`);

package main

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
)

// The options of these commands.
var (
	optTypes = optType.says("types of the events that it gets, separated by commas, " +
		"as lead.created,license.created")
	optDescription = option{name: "description", value: "TEXT",
		help: "what it is, for people, at most 200 characters"}
	optURL = option{name: "url", value: "URL",
		help: "another address, which has to answer a test before it gets events"}
	optFailed = option{name: "failed", help: "show only attempts that failed"}
)

// The operator's commands on webhooks.
var webhookCommands = []command{
	{"webhook add", "URL", "send events to an address; the secret that signs them is shown once", []option{
		optAccount.says("the account whose events are sent"), optTypes, optDescription,
		optOutboundAllow.says("what the service may reach besides public addresses, as for serve"),
	}, 1, webhookAdd},
	{"webhook list", "", "list webhooks, newest first",
		[]option{optAccount.says("show only webhooks of this account")}, 0, webhookList},
	{"webhook show", "ID", "show a webhook", nil, 1, webhookShow},
	{"webhook patch", "ID", "change the address, types or description of a webhook", []option{
		optURL, optTypes, optDescription.says("another description; an empty one removes it"),
		optOutboundAllow.says("what the service may reach besides public addresses, as for serve"),
	}, 1, webhookPatch},
	{"webhook test", "ID", "send a test to a webhook; a pending one is enabled if it answers with 2xx",
		nil, 1, webhookTest},
	{"webhook enable", "ID", "send a test to a disabled webhook, which enables it if it answers with 2xx",
		nil, 1, webhookEnable},
	{"webhook disable", "ID", "send a webhook no more events; those until it is enabled can be replayed",
		nil, 1, webhookDisable},
	{"webhook rotate-secret", "ID",
		"give a webhook another secret, shown once; the one before signs too for a day", nil, 1, webhookRotate},
	{"webhook replay", "ID", "send events again, those that the webhook has accepted too", []option{
		optSince.says("since a date or an RFC 3339 time, or of the last days, as 7d; at most 30 days"),
	}, 1, webhookReplay},
	{"webhook deliveries", "ID", "show the attempts to send events to a webhook, newest first",
		[]option{optLimit, optFailed}, 1, webhookDeliveries},
	{"webhook retry", "ID DELIVERY", "send the event of a delivery again, at once", nil, 2, webhookRetryDelivery},
	{"webhook remove", "ID", "remove a webhook; what was still to be sent to it is not sent",
		nil, 1, webhookRemove},
}

// webhookAuthor returns the operator as the author of a change, who may read every event.
func (e *env) webhookAuthor() webhookAuthor {
	return webhookAuthor{actor: e.actor(), has: func(string) bool { return true }}
}

// webhookStep turns the refusals of the rules of webhooks, which are worded for callers of the API, into
// errors for the operator that name the next step. id is that of the webhook.
func webhookStep(id string, err error) error {
	switch {
	case errors.Is(err, errWebhook):
		return errors.New("not found: 'widgetd webhook list' prints what there is")
	case errors.Is(err, errDelivery):
		return fmt.Errorf("not found, or its event is not kept any more: 'widgetd webhook deliveries %s' "+
			"prints what there is", printable(id))
	case errors.Is(err, errWebhookDisabled):
		return fmt.Errorf("the webhook is not enabled: 'widgetd webhook enable %s' sends it a test", printable(id))
	case errors.Is(err, errWebhookLimit):
		return fmt.Errorf("the account has %d webhooks already: remove one first", maxWebhooks)
	}
	return err
}

// changeNamedWebhook runs f in a transaction, on the webhook that the command's first argument names, and
// returns its result.
func changeNamedWebhook[T any](e *env, f func(t *tx, id string) (T, error)) (T, error) {
	return changed(e, func(t *tx) (T, error) {
		result, err := f(t, e.args[0])
		return result, webhookStep(e.args[0], err)
	})
}

// webhookURL checks an address that an operator typed, as far as that can be done without looking up its
// host, and returns it in its normal form. Errors: usageError.
func (e *env) webhookURL(name, typed string) (string, error) {
	allow, err := parsePrefixes("outbound-allow", e.commaList("outbound-allow"))
	if err != nil {
		return "", err
	}
	normal, code, detail := newOutbound(allow).checkURL(typed)
	if code != "" {
		return "", usageError(name + ": " + detail)
	}
	return normal, nil
}

// webhookTypes returns the types that -type names. Errors: usageError.
func (e *env) webhookTypes() (codeList, error) {
	types, known := e.commaList("type"), subscribable(e.nouns)
	var err error
	checkWebhookTypes(types, known, func(at int, code, detail string) {
		if err == nil {
			err = usageError(fmt.Sprintf("-type: %q: %s The types are %s",
				printable(types[at]), detail, joinTypes(known)))
		}
	})
	return types, err
}

func webhookAdd(e *env) error {
	account, err := e.needAccount()
	if err != nil {
		return err
	}
	w := &webhook{AccountID: account}
	if w.URL, err = e.webhookURL("URL", e.args[0]); err != nil {
		return err
	}
	if w.Types, err = e.webhookTypes(); err != nil {
		return err
	}
	if len(w.Types) == 0 {
		return usageError("-type NAME is needed: the types are " + joinTypes(subscribable(e.nouns)))
	}
	text, err := e.text("description", maxWebhookText)
	if err != nil {
		return err
	}
	w.Description = nilIfEmpty(text)
	_, keys, err := e.loadKeys()
	if err != nil {
		return err
	}
	err = e.change(func(t *tx) error { return webhookStep("", createWebhook(t, w, e.webhookAuthor())) })
	if err != nil {
		return err
	}
	secret := formatWebhookSecret(webhookSecret(keys, w.ID, w.SecretNumber))
	return e.print(map[string]string{"id": w.ID, "secret": secret},
		fmt.Sprintf("id:     %s\nsecret: %s  (shown once)\nnext:   the service sends a test, and events once it is "+
			"answered with 2xx: 'widgetd webhook show %s'", w.ID, secret, w.ID))
}

// A webhookRow is a webhook as webhook list prints it, without the path of its address, which may be a
// secret.
type webhookRow struct {
	ID           string   `json:"id"`
	State        string   `json:"state"`
	Reason       *string  `json:"reason"`
	FailingSince stamp    `json:"failing_since"`
	Host         string   `json:"host"`
	Types        codeList `json:"types"`
	Description  *string  `json:"description"`
	AccountID    string   `json:"account_id"`
}

func webhookList(e *env) error {
	return printOwned(e, func(q *queries, o owner) (rows []webhookRow, err error) {
		all, err := collectPages(q, (*queries).webhooks, o, math.MaxInt)
		for _, w := range all {
			rows = append(rows, webhookRow{w.ID, w.State, w.Reason, w.FailingSince, w.host(), w.Types, w.Description,
				w.AccountID})
		}
		return rows, err
	}, "ID STATE REASON FAILING-SINCE HOST TYPES ACCOUNT", func(w webhookRow) []any {
		return []any{w.ID, w.State, w.Reason, w.FailingSince, w.Host, strings.Join(w.Types, " "), w.AccountID}
	})
}

func webhookShow(e *env) error {
	return e.withStore(func(st *store) error {
		w, err := st.webhook(anyAccount, e.args[0])
		if err != nil {
			return webhookStep(e.args[0], err)
		}
		return e.printMembers(w)
	})
}

func webhookPatch(e *env) (err error) {
	change := webhookChange{newDescription: e.given("description")}
	if e.given("url") {
		if change.url, err = e.webhookURL("-url", e.str("url")); err != nil {
			return err
		}
	}
	if change.types, err = e.webhookTypes(); err != nil {
		return err
	}
	if e.given("type") && len(change.types) == 0 {
		return usageError("-type: name at least one type")
	}
	text, err := e.text("description", maxWebhookText)
	if err != nil {
		return err
	}
	change.description = nilIfEmpty(text)
	return e.patchWebhook(change)
}

func webhookDisable(e *env) error { return e.patchWebhook(webhookChange{disable: true}) }

// patchWebhook makes a change to the webhook that the command names, and prints it.
func (e *env) patchWebhook(change webhookChange) error {
	return e.changeWebhook(func(t *tx, id string) (*webhook, error) {
		return patchWebhook(t, anyAccount, id, change, e.webhookAuthor())
	})
}

// changeWebhook runs f in a transaction and prints the webhook that f returns.
func (e *env) changeWebhook(f func(t *tx, id string) (*webhook, error)) error {
	w, err := changeNamedWebhook(e, f)
	if err != nil {
		return err
	}
	return e.print(w, w.ID+" is "+w.State)
}

func webhookEnable(e *env) error {
	return e.changeWebhook(func(t *tx, id string) (*webhook, error) {
		return enableWebhook(t, anyAccount, id, e.webhookAuthor())
	})
}

// printSent runs f in a transaction and prints the id of the event that f returns.
func (e *env) printSent(f func(t *tx, id string) (string, error)) error {
	eventID, err := changeNamedWebhook(e, f)
	if err != nil {
		return err
	}
	return e.print(sentEvent{eventID},
		fmt.Sprintf("%s is to be sent: 'widgetd webhook deliveries %s' shows what came of it", eventID, e.args[0]))
}

func webhookTest(e *env) error {
	return e.printSent(func(t *tx, id string) (string, error) {
		return requestTest(t, anyAccount, id, e.webhookAuthor())
	})
}

func webhookRetryDelivery(e *env) error {
	return e.printSent(func(t *tx, id string) (string, error) {
		return retryDelivery(t, anyAccount, id, e.args[1], e.webhookAuthor())
	})
}

func webhookRotate(e *env) error {
	_, keys, err := e.loadKeys()
	if err != nil {
		return err
	}
	w, err := changeNamedWebhook(e, func(t *tx, id string) (*webhook, error) {
		return rotateWebhookSecret(t, anyAccount, id, e.webhookAuthor())
	})
	if err != nil {
		return err
	}
	secret := formatWebhookSecret(webhookSecret(keys, w.ID, w.SecretNumber))
	until := w.RotatedAt.after(secretOverlap)
	return e.print(map[string]string{"id": w.ID, "secret": secret, "previous_secret_until": until.String()},
		fmt.Sprintf("secret: %s  (shown once)\nthe one before signs too until %s", secret, until))
}

func webhookReplay(e *env) error {
	since, err := e.pastTime("since")
	if err != nil {
		return err
	}
	if since.IsZero() {
		return usageError("-since TIME is needed, as 7d")
	}
	var fields *refusal
	err = e.changeWebhook(func(t *tx, id string) (*webhook, error) {
		return replayEvents(t, anyAccount, id, since, e.webhookAuthor())
	})
	if errors.As(err, &fields) && fields.code == codeValidation {
		return usageError("-since: " + fields.fields[0].Detail)
	}
	return err
}

func webhookDeliveries(e *env) error {
	filter := deliveryFilter{webhookID: e.args[0]}
	if e.on("failed") {
		filter.outcome = outcomeFailed
	}
	return printAll(e, func(q *queries) ([]delivery, error) {
		rows, err := listRows(e, q, (*queries).deliveries, filter, "")
		if err != nil {
			return nil, err
		}
		_, err = q.webhook(anyAccount, e.args[0])
		return rows, webhookStep(e.args[0], err)
	}, "AT TYPE ATTEMPT STATUS ERROR MS NEXT DELIVERY EVENT ANSWER", func(d delivery) []any {
		answer := printable(valueOr(d.Answer, "")) // from the receiver, so not trusted
		return []any{d.At, d.Type, d.Attempt, numberCell(d.Status), d.Error, d.Milliseconds, d.NextAt, d.ID,
			d.EventID, answer}
	})
}

func webhookRemove(e *env) error {
	return e.changeQuietly(func(t *tx) error {
		return webhookStep(e.args[0], removeWebhook(t, anyAccount, e.args[0], e.actor()))
	})
}

// webhookStatus is what the status command says of webhooks.
type webhookStatus struct {
	States   map[string]int64 `json:"webhooks"` // how many there are, by state
	troubled []*webhook       // that do not accept what they are sent
}

// failingShown is how long a webhook must have been failing before status shows it.
const failingShown = 24 * time.Hour

func (r *webhookStatus) read(v *statusView) (err error) {
	if r.States, err = v.countWebhooksByState(); err == nil {
		r.troubled, err = v.webhooksInTrouble(newStamp(v.now.Add(-failingShown)))
	}
	return err
}

func (r *webhookStatus) show(_ *statusView, to *statusLines) {
	to.say("%s", countsText([]string{webhookEnabled, webhookPending, webhookDisabled}, r.States))
	for i, w := range r.troubled {
		if i == statusRows {
			to.ask("%d more webhooks fail or were disabled for it: 'widgetd webhook list' shows them",
				len(r.troubled)-i)
			return
		}
		what := "has failed since " + w.FailingSince.String() + ": 'widgetd webhook deliveries " + w.ID +
			"' shows why"
		switch {
		case w.State != webhookDisabled:
		case *w.Reason == disabledGone:
			what = "answered 410 Gone and was disabled: run 'widgetd webhook remove " + w.ID + "', " +
				"or 'widgetd webhook enable " + w.ID + "'"
		default:
			what = "failed for five days and was disabled: once it works again, " +
				"run 'widgetd webhook enable " + w.ID + "'"
		}
		to.ask("the webhook %s to %s %s", w.ID, printable(w.host()), what)
	}
}

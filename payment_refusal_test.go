package main

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"
)

// refusalText is sentText, with what a vendor says of a new attempt that it has refused.
func refusalText(sent sentOperation, err error) string {
	text := sentText(sent, err)
	if failed, ok := err.(*outboundError); ok && failed.detail != "" {
		text += ": " + failed.detail
	}
	if failed, ok := err.(*outboundError); ok && failed.ofOrder {
		text += ", of this order"
	}
	return text
}

// restricted is what Stripe says of an account that it has restricted.
const restricted = "Your account cannot currently make live charges."

// refuses has the provider of cards refuse new sessions by methods from now on.
func (s *shop) refuses(code, message, param string, methods ...string) {
	said := testObject{"type": "invalid_request_error", "message": message}
	for name, value := range map[string]string{"code": code, "param": param} {
		if value != "" {
			said[name] = value
		}
	}
	s.provider.mu.Lock()
	defer s.provider.mu.Unlock()
	s.provider.watch = func(r *http.Request, acted *testAnswer) *testAnswer {
		if acted == nil && r.Method == "POST" && r.URL.Path == stripeSessions && r.ParseForm() == nil {
			for _, method := range methods {
				if r.PostForm.Get("payment_method_types[0]") == method {
					return &testAnswer{status: 400, body: encodeJSON(testObject{"error": said})}
				}
			}
		}
		return s.meddle(r, acted)
	}
}

// takesAll has the provider of cards refuse no session any more.
func (s *shop) takesAll() { s.refuses("", "", "") }

// guestOrder places an order whose pages a guest can open.
func (s *shop) guestOrder(change ...func(*order)) *order {
	s.t.Helper()
	o := s.place(change...)
	sum := sha256.Sum256([]byte(pageKey))
	s.sql(`UPDATE orders SET page_key = ? WHERE id = ?`, sum[:], o.ID)
	return o
}

// presses has a guest press the button of a method, a second after what was before.
func (s *shop) presses(o *order, method string) answer {
	s.t.Helper()
	time.Sleep(time.Second)
	return s.post(o.path(""), "method="+method, formType)
}

// evening has so many orders be refused by a method.
func (s *shop) evening(orders int, method string) {
	s.t.Helper()
	for range orders {
		s.presses(s.guestOrder(), method).is(409)
	}
}

// hears checks what the operator and the restaurant hear: of how many methods, and how often it was told.
func (s *shop) hears(methods, events int) (asked string) {
	s.t.Helper()
	asks := statusAsks(s.t, s.store, paymentTroubles[len(paymentTroubles)-1])
	equal(s.t, "what status asks", len(asks), min(methods, 1))
	equal(s.t, "the metric", s.metricOf("payment_methods_refused"), fmt.Sprint(methods))
	equal(s.t, "the events", s.eventsOf(eventAttemptsRefused), events)
	return strings.Join(asks, "")
}

// buttons are what the buttons of a pay page begin with, by method.
func buttons(methods ...string) (all []string) {
	for _, method := range []string{methodCard, methodTwint, methodMobile} {
		text, not := `name="method" value="`+method+`"`, "not "
		for _, shown := range methods {
			if shown == method {
				not = ""
			}
		}
		all = append(all, not+text)
	}
	return all
}

// TestRefusals_ofAnEveningAreToldOnceAndEndWithASession has Stripe restrict an account, whose guests have TWINT.
// Against somebody who would have a method hidden by one order, or two, that are tried again and again; and against
// the words of a provider, which may change a terminal, hold a key of ours or the number of an account.
func TestRefusals_ofAnEveningAreToldOnceAndEndWithASession(t *testing.T) {
	t.Parallel()
	inShop(t, func(s *shop) {
		s.refuses("account_invalid", "\x1b[31m\u202e\n key "+shopSecretKey+". "+strings.Repeat(restricted+" ", 300), "",
			methodCard)
		one, two := s.guestOrder(), s.guestOrder()
		since := newStamp(time.Now().Add(time.Second))
		for range 4 {
			s.presses(one, methodCard).is(409).shows(buttons(methodCard, methodTwint)...).shows("No money was taken")
			s.presses(two, methodCard).is(409)
			s.hears(0, 0)
		}
		three := s.guestOrder()
		s.presses(three, methodCard).is(409).shows(buttons(methodTwint)...).shows("Please choose another one.",
			"not live charges")
		asked := s.hears(1, 1)
		words := "\uFFFD[31m\uFFFD key …. " + strings.Repeat(restricted+" ", 300)
		words = string([]rune(words)[:maxVendorWords])
		equal(t, "what status asks", asked, "1 payment method is refused by its provider, each new payment since "+
			since.String()+": 'widgetd payment check' with "+s.connection+" (card, 3 in a row, account_invalid: "+
			words+")")
		events := s.get("/events?type=payment.refused", bearer(s.token(s.account, scopeEvents+" "+scopeOrders))).is(200)
		contains(t, events.body, `"subject_id":"`+s.connection+`"`,
			`"data":{"code":"account_invalid","connection_id":"`+s.connection+`","count":"3","method":"card"}}`)
		lacks(t, events.body, "live charges")
		s.evening(4, methodCard)
		contains(t, s.hears(1, 1), "card, 7 in a row") // told once
		s.presses(one, methodTwint).is(303)
		s.hears(1, 1)
		other := s.another()
		defer other.store.close()
		other.get(three.path("")).is(200).shows(buttons(methodTwint)...) // a restart forgets nothing
		s.takesAll()
		s.presses(three, methodCard).is(303)
		s.hears(0, 1)
		s.counts(0, `SELECT count(*) FROM payment_refusals`)
		s.get(three.path("")).is(200).shows(buttons(methodCard, methodTwint)...)
		s.refuses("account_invalid", restricted, "", methodCard)
		s.evening(2, methodCard)
		s.hears(0, 1)
		s.evening(1, methodCard)
		s.hears(1, 2)
	})
}

// TestRefusals_leaveAMethodOutForFiveMinutesFromTheLast has guests whose page is older press a button that others
// lack.
func TestRefusals_leaveAMethodOutForFiveMinutesFromTheLast(t *testing.T) {
	t.Parallel()
	inShop(t, func(s *shop) {
		s.refuses("", restricted, "", methodCard)
		o := s.guestOrder()
		s.evening(3, methodCard)
		shows := func(after time.Duration, methods ...string) {
			t.Helper()
			time.Sleep(after)
			s.get(o.path("")).is(200).shows(buttons(methods...)...)
		}
		shows(4*time.Minute, methodTwint)
		s.presses(o, methodCard).is(409).shows(buttons(methodTwint)...)
		shows(4*time.Minute, methodTwint)
		shows(59*time.Second, methodTwint)
		shows(2*time.Second, methodCard, methodTwint)
		s.hears(1, 1) // until it works
		s.presses(o, methodCard).is(409).shows(buttons(methodTwint)...)
		s.refuses("", restricted, "", methodCard, methodTwint)
		s.evening(3, methodTwint)
		s.get(o.path("")).shows(buttons(methodCard, methodTwint)...).shows("Paying online doesn’t work at the moment")
		contains(t, s.hears(2, 2), "2 payment methods are refused by their providers")
		shows(refusedPause-10*time.Second, methodTwint, methodCard)
	})
}

// TestRefusals_ofTheOnlyMethodLeaveItsButtonAndSayWhomToAsk reads the pages in all languages.
func TestRefusals_ofTheOnlyMethodLeaveItsButtonAndSayWhomToAsk(t *testing.T) {
	t.Parallel()
	ofEachProvider(t, func(s *shop) {
		s.sql(`UPDATE payment_connections SET methods = '[]'`)
		s.sql(`INSERT INTO account_settings (account_id, phone) VALUES (?, '+41 32 622 00 00')`, s.account)
		o := s.guestOrder()
		s.get(o.path("")).is(200).shows(buttons(s.method)...).shows(`not class="button" href="tel:`,
			"not Paying online doesn")
		for range 3 {
			s.fail(opCreate, fault400)
			s.evening(1, s.method)
		}
		for _, l := range pageLanguages {
			texts := textsByLanguage[l]().Pay
			page := s.get(o.path("") + "&lang=" + string(l)).is(200).shows(buttons(s.method)...)
			page.shows(`class="button" href="tel:&#43;41326220000"`)
			said, button := strings.Index(page.body, texts["online_fails"]), strings.Index(page.body, `name="method"`)
			failIf(s.t, said < 0 || said > button, "in %s the page does not say it above the button", l)
			failIf(s.t, texts["refused_other"] == "" || texts["refused_other"] == texts["refused"], "no text in %s", l)
		}
		s.hears(1, 1)
		s.presses(o, s.method).is(303)
		s.hears(0, 1)
		s.get(o.path("")).is(200).shows("not Paying online doesn")
	})
}

// Against somebody who orders what the provider must refuse, so that others can't pay: what is wrong with the order
// alone does not count.
func TestRefusals_countOnlyWhatIsNotWrongWithTheOrder(t *testing.T) {
	t.Parallel()
	inShops(t, map[string]struct {
		code, param string
		counts      int
	}{
		"too small":             {"amount_too_small", "", 0},
		"too large":             {"amount_too_large", "", 0},
		"an amount":             {"parameter_invalid_integer", "line_items[0][price_data][unit_amount]", 0},
		"a currency":            {"", "line_items[0][price_data][currency]", 0},
		"the order's reference": {"parameter_invalid_empty", "line_items[0][price_data][product_data][name]", 0},
		"its description":       {"", "payment_intent_data[description]", 0},
		"a method that is off":  {"payment_method_unactivated", "payment_method_types", 3},
		"the account":           {"account_invalid", "", 3},
		"where guests return":   {"url_invalid", "success_url", 3},
		"no reason":             {"", "", 3},
	}, func(s *shop, c struct {
		code, param string
		counts      int
	}) {
		s.refuses(c.code, "No.", c.param, methodCard)
		s.evening(3, methodCard)
		s.counts(c.counts/3, `SELECT count(*) FROM payment_refusals WHERE count = 3`)
		s.counts(c.counts/3, `SELECT count(*) FROM payment_refusals`)
		s.hears(c.counts/3, c.counts/3)
	})
}

// TestRefusals_areOfEachMethodAndConnection has methods, providers and accounts take turns.
func TestRefusals_areOfEachMethodAndConnection(t *testing.T) {
	t.Parallel()
	inShop(t, func(s *shop) {
		francs := func(o *order) { o.Currency = "CHF" }
		one, two, three := s.guestOrder(francs), s.guestOrder(francs), s.guestOrder(francs)
		s.refuses("", restricted, "", methodCard, methodTwint)
		for _, o := range []*order{one, two} {
			s.presses(o, methodCard).is(409)
			s.presses(o, methodTwint).is(409)
		}
		s.hears(0, 0)
		s.refuses("", restricted, "", methodTwint)
		s.presses(one, methodCard).is(303) // begins cards anew, and not TWINT
		s.presses(three, methodTwint).is(409)
		contains(t, s.hears(1, 1), "(twint, 3 in a row")
		s.refuses("", restricted, "", methodCard, methodTwint)
		s.presses(two, methodCard).is(409)
		s.presses(three, methodCard).is(409)
		s.hears(1, 1)
		for range 3 { // at the other provider
			s.fail(opCreate, fault400)
			s.presses(s.guestOrder(func(o *order) { o.Currency = "EUR" }), methodMobile).is(409)
		}
		s.hears(2, 2)
		s.counts(1, `SELECT count(*) FROM payment_refusals WHERE connection_id = ? AND method = 'mobile'`, s.connection)
		s.get(two.path("")).is(200).shows(buttons(methodCard)...)
		s.account = s.addAccount("another")
		s.connect(providerStripe) // a second connection, at which nothing was refused
		s.sql(`UPDATE orders SET account_id = ? WHERE id = ?`, s.account, two.ID)
		s.get(two.path("")).is(200).shows(buttons(methodCard, methodTwint)...)
	}, providerStripe, providerVipps)
}

// TestRefusals_areToldAsLongAsSomebodyCanDoSomething ends what was refused without a session.
func TestRefusals_areToldAsLongAsSomebodyCanDoSomething(t *testing.T) {
	t.Parallel()
	inShops(t, map[string]func(*shop){
		"the connection is removed": func(s *shop) { s.sql(`UPDATE payment_connections SET removed_at = created_at`) },
		"the account is closed":     func(s *shop) { s.sql(`UPDATE accounts SET is_main = 0, closed_at = created_at`) },
		"its keys are refused, which is told": func(s *shop) {
			s.fail(opCreate, fault401)
			s.presses(s.guestOrder(), methodCard)
			equal(s.t, "what status asks", len(statusAsks(s.t, s.store, paymentTroubles...)), 1)
		},
	}, func(s *shop, ends func(*shop)) {
		for range 3 {
			s.fail(opCreate, fault400)
			s.evening(1, methodCard)
		}
		s.hears(1, 1)
		ends(s)
		s.hears(0, 1)
	})
}

// TestRefusals_ofKeysLeaveTheMethodOut has a key that may not make sessions any more, though it may do the rest.
func TestRefusals_ofKeysLeaveTheMethodOut(t *testing.T) {
	t.Parallel()
	inShop(t, func(s *shop) {
		_, earlier := s.authorized()
		o := s.guestOrder()
		for range 3 {
			s.fail(opCreate, fault403Keys)
			s.presses(s.guestOrder(), methodCard).is(503)
		}
		s.hears(0, 1)
		equal(t, "what status asks", len(statusAsks(t, s.store, paymentTroubles...)), 1)
		s.get(o.path("")).is(200).shows(buttons(methodTwint)...)
		s.settle(earlier) // after which its keys are not refused
		s.hears(1, 1)
	})
}

// TestRefusals_thatCanNotBeReadAreNotedAnew has a row that holds what the program never writes.
func TestRefusals_thatCanNotBeReadAreNotedAnew(t *testing.T) {
	t.Parallel()
	inShop(t, func(s *shop) {
		s.damaged = true
		s.fail(opCreate, fault400)
		o := s.guestOrder()
		s.presses(o, methodCard).is(409)
		raw(t, s.store.path, withoutRules+`UPDATE payment_refusals SET since = `+noDay)
		s.fail(opCreate, fault400)
		s.presses(o, methodCard).is(409)
		s.counts(1, `SELECT count(*) FROM payment_refusals WHERE since <> `+noDay+` AND count = 1`)
		s.presses(o, methodCard).is(303)
	})
}

// showsRefusals has 'payment check' tell of refusals, and 'payment set' end those of methods that it tries or takes
// away.
func (c *connecting) showsRefusals(id string) {
	c.t.Helper()
	note := func(method string, count int) {
		raw(c.t, c.env["WIDGETD_DB"], fmt.Sprintf(`INSERT OR REPLACE INTO payment_refusals VALUES ('%s', '%s',
			'account_invalid', '%s', '2026-11-28T19:00:00Z', '2026-11-28T21:30:00Z', %d, '[]')`, id, method, restricted,
			count))
	}
	noted := func() string {
		c.t.Helper()
		members := c.object(c.called("payment", "check", id)...)
		text := fmt.Sprint(members["ok"])
		for _, r := range members["refused"].([]any) {
			text += fmt.Sprint(" ", r.(map[string]any)["method"], r.(map[string]any)["count"])
		}
		return text
	}
	check := c.called("payment", "check", id)
	note(methodTwint, 2)
	equal(c.t, "check after two", c.do(check...), "ok: the provider accepts the keys, and has our webhook\n"+
		"it has refused each new payment by twint since 2026-11-28T19:00:00Z, of 2 orders in a row, the last one at "+
		"2026-11-28T21:30:00Z: account_invalid: "+restricted+"\n")
	equal(c.t, "as JSON", noted(), "true twint2")
	note(methodCard, 3)
	out, err := c.try(check...)
	equal(c.t, "the exit status", err, error(exitStatus(exitNeedsDoing)))
	contains(c.t, out, "the provider accepts", "by card", "of 3 orders in a row", "by twint", restricted)
	lacks(c.t, out, "ok: the")
	set := func(methods string) { c.do(c.called("payment", "set", id, "-methods", methods)...) }
	set("card,twint") // TWINT is tried, cards are not
	out, _ = c.try(check...)
	lacks(c.t, out, "by twint")
	contains(c.t, out, "by card")
	note(methodTwint, 3)
	set("card")
	out, _ = c.try(check...)
	lacks(c.t, out, "by twint")
	set("twint")
	equal(c.t, "without cards", noted(), "true")
	set("twint,card")
}

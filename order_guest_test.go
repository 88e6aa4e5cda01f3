package main

import (
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// aDelivery is the fulfilment of a delivery, as it is sent, with further members.
func aDelivery(more string) string {
	return `{"type":"delivery","address":{"line1":"Seestrasse 12","postal_code":"8002","city":"Zürich",` +
		`"country":"CH"}` + more + `}`
}

func TestOrder_refusesWhatIsNoFulfilment(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		auth, before := s.seller(), s.dump()
		address := func(country string) string { return strings.Replace(aDelivery(""), `"CH"`, country, 1) }
		in := func(d time.Duration) string {
			return aDelivery(`,"wanted_at":"` + newStamp(time.Now().Add(d)).String() + `"`)
		}
		for _, c := range [][2]string{
			{`{"type":"delivery"}`, "#/fulfilment/address required"},
			{`{"type":"table"}`, "#/fulfilment/table required"},
			{aDelivery(`,"table":"7"`), "#/fulfilment/table not_of_this_type"},
			{strings.Replace(aDelivery(""), "delivery", "pickup", 1), "#/fulfilment/address not_of_this_type"},
			{address(`"ch"`), "#/fulfilment/address/country unknown_country"},
			{address(`"XX"`), "#/fulfilment/address/country unknown_country"},
			{in(-clockSkew - time.Second), "#/fulfilment/wanted_at out_of_range"},
			{in(maxAhead + time.Second), "#/fulfilment/wanted_at out_of_range"},
		} {
			a := s.post("/orders", orderBody("fulfilment", c[0]), auth).is(422, "validation_failed")
			equal(t, c[0], strings.Join(a.wrong(), " "), c[1])
		}
		for _, language := range []string{"es", "de-", "de-XX", "de-CH-1996", "-", "d"} {
			a := s.post("/orders", orderBody("language", `"`+language+`"`), auth).is(422, "validation_failed")
			equal(t, language, strings.Join(a.wrong(), " "), "#/language unknown_language")
		}
		s.unchanged(before)
	})
}

func TestOrder_isRefusedWithAReason(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		auth := s.seller()
		waiting := s.orderIn(orderAuthorized).ID
		s.post("/orders/"+waiting+"/reject", `{"reason":"sold_out","text":"Until Tuesday"}`, auth).is(200).
			holds(`state="cancelled"`, `reject_reason="sold_out"`, `reject_text="Until Tuesday"`)
		s.post("/orders/"+waiting+"/reject", `{"reason":"closed"}`, auth).is(409, "order_state")
		told := s.count(`SELECT count(*) FROM events WHERE type = 'order.cancelled' AND subject_id = ? AND data =
			'{"currency":"CHF","reason":"rejected","reject_reason":"sold_out","total":"5900"}'`, waiting)
		equal(t, "events with the reason, and nothing of the text", told, 1)
		unknown := s.orderIn(orderAuthorized).ID
		s.sql(`DELETE FROM order_customers WHERE order_id = ?`, unknown)
		s.must("order", "reject", unknown, "-text", "Until Tuesday")
		s.get("/orders/"+unknown, auth).is(200).holds(`reject_reason=null`, `reject_text="Until Tuesday"`,
			`customer=null`)
		time.Sleep(keptCustomersFor)
		for _, c := range s.server.chores {
			s.check(c.run(t.Context()))
		}
		if left := traces(t, s.dir, "until tuesday"); len(left) > 0 {
			t.Errorf("the text is left in %v", left)
		}
		s.get("/orders/"+waiting, s.seller()).is(200).holds(`reject_reason="sold_out"`, `reject_text=null`,
			`customer=null`)
	})
}

// guestNamed makes an order for a guest, and returns its id.
func (s *service) guestNamed(name, phone string, changes ...string) string {
	s.t.Helper()
	changes = append(changes, "customer", fmt.Sprintf(`{"name":%q,"phone":%q}`, name, phone))
	return s.post("/orders", orderBody(changes...), s.seller()).is(200).text("id")
}

// known are the orders whose guests are known.
func (s *service) known() []string {
	s.t.Helper()
	ids, err := s.store.texts(`SELECT order_id FROM order_customers ORDER BY seq`)
	s.check(err)
	return ids
}

func TestOrder_guestIsErasedOnRequest(t *testing.T) {
	t.Parallel()
	s := newService(t)
	auth := s.seller()
	wish := aDelivery(`,"wanted_at":"` + newStamp(time.Now().Add(time.Hour)).String() + `"`)
	body := orderBody("customer", `{"name":"Zoë  von Salis","phone":"+41 (0)79 111 22 33"}`, "fulfilment", wish)
	zoe := s.post("/orders", body, auth, "Idempotency-Key: zoe").is(200).text("id")
	twin, other := s.guestNamed("zoë von salis", "079 111 22 33"), s.guestNamed("Salis, Zoe von", "0041791112233")
	if len(traces(t, s.dir, "von salis")) == 0 || len(traces(t, s.dir, "seestrasse")) == 0 {
		t.Fatal("the guests are not on the disk: the test sees nothing")
	}
	s.must("order", "erase", "-name", " ZOË von Salis")
	equal(t, "who is left", strings.Join(s.known(), " "), other)
	for _, id := range []string{zoe, twin} {
		s.get("/orders/"+id, auth).is(200).holds(`customer=null`, `fulfilment=null`, `language=null`, `total=5900`)
	}
	s.post("/orders", body, auth, "Idempotency-Key: zoe").is(200).has("Idempotency-Replayed: true").
		holds(`id="`+zoe+`"`, `customer=null`, `fulfilment=null`, `language=null`)
	if row := s.row(zoe); !row.wantedErased() {
		t.Errorf("it is still wanted at %v", row.WantedAt)
	}
	for _, text := range []string{"von salis", "(0)79 111", "079 111 22 33"} {
		if left := traces(t, s.dir, text); len(left) > 0 {
			t.Errorf("%s is left in %v", text, left)
		}
	}
	got := s.must("order", "erase", "-phone", "0041 79 111 22 33", "-json")
	if !strings.Contains(got, `"erased":1`) || len(s.known()) > 0 {
		t.Errorf("answered %s, left %v", got, s.known())
	}
	last := s.guestNamed("Ada Keller", "")
	contains(t, s.must("order", "erase", "-order", last[len(last)-8:]), "1 guest erased")
	s.fails("not found", "order", "erase", "-order", newID("ord", time.Now()))
	s.post("/orders/"+zoe+"/paid", `{"method":"cash"}`, auth).is(200).holds(`state="paid"`, `customer=null`)
}

// TestOrder_erasingTakesNobodyElse is of an operator who is handed names and numbers that are none.
func TestOrder_erasingTakesNobodyElse(t *testing.T) {
	t.Parallel()
	s := newService(t)
	stranger := s.addAccount("stranger")
	s.change(func(t *tx) error { return addOrigin(t, stranger, "https://other.example", anActor) })
	ada, without := s.guestNamed("Ada Keller", "+41 44 555 01 23"), s.guestNamed("100%", "none")
	theirs := s.post("/orders", orderBody("return_url", `"https://other.example/"`), "Authorization: Bearer "+
		s.token(stranger, scopeOrders+" "+scopeSelling)).is(200).text("id")
	everybody := s.known()
	for _, name := range []string{"%", "_da Keller", "*", "Ada%", "' OR 1=1 --", "Ada", "Keller Ada", "0%", "100"} {
		s.must("order", "erase", "-name", name)
	}
	for _, phone := range []string{"044 555 01 23", "5550123", "+41 44 555 01 2", "%555%0123"} {
		s.must("order", "erase", "-phone", phone)
	}
	contains(t, s.must("order", "erase", "-name", "keller, ADA"), "0 guests erased")
	for _, args := range [][]string{{}, {"-name", "  "}, {"-name", "Ada", "-phone", "0445550123"}} {
		s.fails("give one of -name, -phone and -order", append([]string{"order", "erase"}, args...)...)
	}
	s.fails("a telephone number has at least 5 digits", "order", "erase", "-phone", "none")
	s.fails("not found", "order", "erase", "-order", theirs, "-account", s.account)
	if now := s.known(); !slices.Equal(now, everybody) {
		t.Errorf("left %v of %v", now, everybody)
	}
	s.must("order", "erase", "-name", "Ada Keller", "-account", s.account)
	equal(t, "who is left", strings.Join(s.known(), " "), without+" "+theirs)
	s.get("/orders/"+ada, s.seller()).is(200).holds(`customer=null`)
}

// A guest gives a number as it is dialled at home, and wrote it as it is dialled from abroad, or the other way round.
func TestOrder_erasingByANumberNamesItsOtherForms(t *testing.T) {
	t.Parallel()
	s := newService(t)
	s.guestNamed("Ada", "+41 79 111 22 33")
	s.guestNamed("Ada", "0791112233")
	other := s.guestNamed("Eve", "+41 78 111 22 33")
	args := []string{"order", "erase", "-phone", "079 111 22 33"}
	out, _ := s.noting(append(args, "-json")...)
	contains(t, out, `"erased":1`, `"similar":["+41 79 111 22 33"]`)
	for _, run := range []func() string{
		func() string { out, _ := s.noting(args...); return out },
		func() string { out, _, err := s.typing("", append(args, "-force")...); s.check(err); return out },
	} {
		equal(t, "what was found", run(), "0 guests erased; nothing was found\nnot erased, but alike; if one is the "+
			"same person's, erase it as it is written: +41 79 111 22 33\n")
	}
	_, noted, err := s.typing("no\n", args...)
	failIf(t, !errors.Is(err, errDeclined), "%v", err)
	contains(t, noted, "This erases the guests of 1 order, 1 of them under way", ", with the numbers +41 79 111 22 33.")
	out, _, err = s.typing("yes\n", args...)
	s.check(err)
	contains(t, out, "1 guest erased; what was known of them is neither in the database file nor")
	equal(t, "who is left", s.known(), []string{other})
	equal(t, "where nothing is", s.must(args...), "0 guests erased; nothing was found\n")
}

// TestOrder_guestIsKnownUntilAPaidPreorderIsMade has a guest pay long before the restaurant is to make the order.
func TestOrder_guestIsKnownUntilAPaidPreorderIsMade(t *testing.T) {
	t.Parallel()
	inShop(t, func(s *shop) {
		wish := aDelivery(`,"wanted_at":"` + newStamp(time.Now().Add(days(55))).String() + `"`)
		free := strings.NewReplacer(`"unit_amount":1850`, `"unit_amount":0`, `"unit_amount":1600`, `"unit_amount":0`).
			Replace(orderBody("fulfilment", wish, "discount", "0", "delivery", "", "tip", "0"))
		gift := s.post("/orders", free, s.seller()).is(200).holds(`state="paid"`).text("id")
		id := s.post("/orders", orderBody("fulfilment", wish), s.seller()).is(200).text("id")
		p := s.start(id)
		s.authorize(p)
		s.settle(p)
		s.accept(id)
		s.settle(p)
		s.states(id, orderPaid, paymentCaptured)
		known := func(want int) {
			s.t.Helper()
			s.change(func(t *tx) error { return second(t.eraseCustomers(10)) })
			equal(s.t, "guests of "+gift+" and "+id, len(s.known()), want)
		}
		time.Sleep(days(55) + keptCustomersFor - time.Second)
		known(2)
		time.Sleep(time.Second)
		known(0)
	})
}

func TestOrder_listsAreNarrowedToBusinessDays(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		admin := "Authorization: Bearer " + s.token(s.account, scopeAdmin)
		s.do("PATCH", "/account", `{"zone":"Europe/Zurich"}`, admin).is(200)
		zurich, err := loadZone("Europe/Zurich")
		must(t, err)
		ids, refunds, payments := map[string]string{}, map[string]string{}, map[string]string{}
		for _, at := range []time.Time{ // summer time begins on the 26th
			time.Date(2000, 3, 25, 3, 59, 59, 0, zurich), time.Date(2000, 3, 25, 4, 0, 0, 0, zurich),
			time.Date(2000, 3, 26, 3, 59, 59, 0, zurich), time.Date(2000, 3, 26, 4, 0, 0, 0, zurich)} {
			time.Sleep(time.Until(at))
			o := s.orderIn(orderPartRefunded)
			ids[o.ID], payments[*o.PaymentID] = at.Format("02 15:04"), at.Format("02 15:04")
			for _, f := range s.get("/orders/"+o.ID, s.seller()).is(200).json()["refunds"].([]any) {
				refunds[f.(map[string]any)["id"].(string)] = at.Format("02 15:04")
			}
		}
		auth := s.seller()
		lists := map[string]map[string]string{"/orders": ids, "/payments": payments, "/refunds": refunds}
		for path, made := range lists {
			for query, want := range map[string]string{
				"": "26 04:00, 26 03:59, 25 04:00, 25 03:59", "from=2000-03-25&to=2000-03-25": "26 03:59, 25 04:00",
				"from=2000-03-26": "26 04:00", "to=2000-03-24": "25 03:59", "from=2000-03-27": "",
				"from=1970-01-01&to=1970-01-01": "", "from=9000-01-01": "",
				"from=2000-03-25&to=2000-03-25&limit=1": "26 03:59",
			} {
				a := s.get(path+"?"+query, auth).is(200)
				got := []string{}
				for _, row := range a.json()["data"].([]any) {
					got = append(got, made[row.(map[string]any)["id"].(string)])
				}
				equal(t, path+" "+query, strings.Join(got, ", "), want)
				if strings.Contains(query, "limit") {
					next := s.get(path+"?"+query+"&cursor="+a.text("next_cursor"), auth).is(200).json()["data"].([]any)
					equal(t, path+": the next page", made[next[0].(map[string]any)["id"].(string)], "25 04:00")
				}
			}
			s.get(path+"?from=2000-03-26&to=2000-03-25", auth).is(422, "validation_failed").names("?to out_of_range")
			s.get(path, "Authorization: Bearer "+s.token(s.account, scopeSelling)).is(http.StatusForbidden)
			stranger := s.token(s.addAccount("of"+path[1:]), scopeOrders)
			equal(t, "a stranger's "+path, s.get(path, "Authorization: Bearer "+stranger).is(200).body,
				`{"data":[],"next_cursor":null}`+"\n")
		}
		equal(t, "by another method", len(s.get("/orders?method=cash", auth).is(200).json()["data"].([]any)), 0)
		equal(t, "by card", len(s.get("/orders?method=card&from=2000-03-26", auth).is(200).json()["data"].([]any)), 1)
		equal(t, "refunds that failed", len(s.get("/refunds?state=failed", auth).is(200).json()["data"].([]any)), 0)
		for row := range strings.Lines(s.must("order", "refunds", "-csv", "-until", "2000-03-25")) {
			if fields := strings.Split(row, ","); len(fields) != 18 || fields[0] != "id" && fields[8] != "1.00" {
				t.Errorf("exported %s", row)
			}
		}
	})
}

// TestOrder_whoCanNotReadOrdersDoesNotLearnWhenItIsWanted is of an application with orders:write alone: it makes a
// pre-order's twin that is wanted at once, does the same to both, replays what others have made, and compares.
func TestOrder_whoCanNotReadOrdersDoesNotLearnWhenItIsWanted(t *testing.T) {
	t.Parallel()
	for name, pay := range map[string]string{"later": payLater, "online": payOnline} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inShop(t, func(s *shop) { s.learnsNothing(pay) })
		})
	}
}

func (s *shop) learnsNothing(pay string) {
	reader, writer := s.seller(), "Authorization: Bearer "+s.token(s.account, scopeSelling)
	wanted := newStamp(time.Now().Add(days(3)))
	deadline := wanted.after(-preorderNotice)
	body := func(wish string) string { return orderBody("pay", `"`+pay+`"`, "fulfilment", aDelivery(wish)) }
	preorder, plain := body(`,"wanted_at":"`+wanted.String()+`"`), body("")
	seen := func(a answer, id string) string {
		s.t.Helper()
		lacks(s.t, a.body, wanted.String(), deadline.String())
		return regexp.MustCompile(`"pay_url":"[^"]*"|req_\w+|`+id).ReplaceAllString(a.body, "")
	}
	for action, do := range map[string]func(id string) answer{
		"nothing": func(id string) answer { return s.post("/orders/"+id+"/capture", "", writer).is(409) },
		"accept":  func(id string) answer { return s.post("/orders/"+id+"/accept", "{}", writer).is(200) },
		"reject":  func(id string) answer { return s.post("/orders/"+id+"/reject", "{}", writer).is(200) },
		"cancel":  func(id string) answer { return s.post("/orders/"+id+"/cancel", "", writer).is(200) },
		"expire": func(id string) answer {
			s.changeOrder(id, func(t *tx, o *order) error {
				return endOrder(t, o, orderExpired, "not_paid", actorTime)
			})
			if pay == payOnline {
				return answer{}
			}
			s.post("/orders/"+id+"/paid", `{"method":"cash"}`, writer).is(200)
			return s.do("DELETE", "/orders/"+id+"/paid", "", writer).is(200)
		},
	} {
		var learnt []string
		for _, b := range []string{preorder, plain} {
			key := fmt.Sprint("Idempotency-Key: ", action, len(b))
			made := s.post("/orders", b, reader, key).is(200)
			id := made.text("id")
			if pay == payOnline {
				p := s.start(id)
				s.authorize(p)
				s.settle(p)
			}
			if b == preorder {
				equal(s.t, "until when it waits", s.row(id).AcceptBy, deadline)
				s.get("/orders/"+id, reader).is(200).holds(`accept_by="` + deadline.String() + `"`)
			}
			replayed := s.post("/orders", b, writer, key).is(200)
			own := s.post("/orders", b, writer).is(200).holds("accept_by=null")
			shown := seen(replayed.holds("accept_by=null"), id) + seen(own, own.text("id"))
			learnt = append(learnt, shown+seen(do(id), id))
		}
		equal(s.t, "what is learnt by "+action, learnt[0], learnt[1])
	}
}

// TestOrder_erasedGuestLeavesNoDeadlineBehind: it says when the order was wanted.
func TestOrder_erasedGuestLeavesNoDeadlineBehind(t *testing.T) {
	t.Parallel()
	inShop(t, func(s *shop) {
		auth, wanted := s.seller(), newStamp(time.Now().Add(days(3)))
		deadline, made := wanted.after(-preorderNotice), newStamp(time.Now())
		wish := aDelivery(`,"wanted_at":"` + wanted.String() + `"`)
		later := s.post("/orders", orderBody("pay", `"later"`, "fulfilment", wish), auth).is(200).text("id")
		ended := s.post("/orders", orderBody("pay", `"later"`, "fulfilment", wish), auth).is(200).text("id")
		s.post("/orders/"+ended+"/reject", "{}", auth).is(200).holds(`accept_by="` + deadline.String() + `"`)
		o, _ := s.authorized(func(o *order) { o.WantedAt = wanted })
		for _, id := range []string{later, ended, o.ID} {
			s.must("order", "erase", "-order", id, "-force")
			s.get("/orders/"+id, auth).is(200).holds("accept_by=null")
			lacks(s.t, s.must("order", "show", id), deadline.String(), wanted.String())
		}
		lacks(s.t, s.must("order", "list", "-json"), deadline.String(), wanted.String())
		s.get("/orders/"+later, auth).is(200).holds(`expires_at="` + made.after(30*time.Minute).String() + `"`)
		equal(s.t, "the deadlines of orders under way", []stamp{s.row(later).ExpiresAt, s.row(o.ID).AcceptBy},
			[]stamp{deadline, deadline})
		expire := s.chore("orders can't expire")
		s.server.startedAt = time.Now().Add(-time.Hour)
		time.Sleep(time.Until(deadline.Time) - time.Second)
		s.check(expire(s.t.Context()))
		equal(s.t, "states", []orderState{s.row(later).State, s.row(o.ID).State},
			[]orderState{orderOpen, orderAuthorized})
		time.Sleep(time.Second)
		s.check(expire(s.t.Context()))
		for _, id := range []string{later, ended, o.ID} {
			equal(s.t, "it ended", s.row(id).EndedAt.IsZero(), false)
			row := s.row(id)
			equal(s.t, "what is stored", []bool{row.AcceptBy.Equal(deadline.Time), row.ExpiresAt.Equal(deadline.Time),
				row.wantedErased()}, []bool{false, false, true})
		}
	})
}

// laterOrder is the body of an order that is paid later.
const laterOrder = `{"currency":"CHF","lines":[{"name":"Pizza","quantity":2,"unit_amount":1850,"vat_rate":260}],
	"pay":"later","return_url":"` + siteOrigin + `/thanks"}`

// later makes an order that is paid later, over HTTP, and returns its id.
func (s *service) later(auth string) string {
	s.t.Helper()
	made := s.post("/orders", laterOrder, auth).is(200)
	made.holds(`state="open"`, `pay="later"`, `pay_url=null`)
	return made.json()["id"].(string)
}

func TestOrder_paidAtTheDoorIsAcceptedPaidAndUndone(t *testing.T) {
	t.Parallel()
	inShop(t, func(s *shop) {
		auth := s.seller()
		id, refused, ignored := s.later(auth), s.later(auth), s.later(auth)
		path := "/orders/" + id
		o := s.row(id)
		equal(t, "until when it waits", o.AcceptBy.Sub(o.CreatedAt.Time), minOrderLife)
		equal(t, "its expiry", o.ExpiresAt, o.AcceptBy)
		s.post("/orders", strings.Replace(laterOrder, `"pay"`, `"expires_in":3600,"pay"`, 1), auth).
			is(422, "validation_failed").names("#/expires_in conflict")
		s.post(path+"/capture", "", auth).is(409, "order_state")
		s.post(path+"/accept", `{"lines":[{"line":0,"quantity":1}]}`, auth).is(200).
			holds(`state="accepted"`, `total=1850`)
		s.post(path+"/accept", "", auth).is(409, "order_state")
		s.post(path+"/reject", "", auth).is(409, "order_state")
		s.do("DELETE", path+"/paid", "", auth).is(409, "order_state")
		s.post("/orders/"+refused+"/reject", "", auth).is(200).holds(`state="cancelled"`)
		s.post("/orders/"+refused+"/paid", `{"method":"cash"}`, auth).is(409, "order_state")
		_, err := s.engine.startAttempt(s.t.Context(), ignored, methodCard, siteOrigin)
		equal(t, "paying it online", err, error(errNotPayable))
		time.Sleep(days(2)) // once accepted, it has no expiry any more
		auth = s.seller()
		s.check(s.chore("orders can't expire")(s.t.Context()))
		s.get("/orders/"+ignored, auth).is(200).holds(`state="expired"`, `pay="later"`)
		s.counts(1, `SELECT count(*) FROM events WHERE subject_id = ? AND data ->> 'reason' = 'not_accepted'`, ignored)
		s.post(path+"/paid", `{"method":"cash"}`, auth).is(200).holds(`state="paid"`, `method="cash"`)
		equal(t, "its sale", s.sums(), 1850)
		s.do("DELETE", path+"/paid", "", auth).is(200).holds(`state="accepted"`, `method=null`, `ended_at=null`)
		equal(t, "its sale once it is undone", s.sums(), 0)
		s.post(path+"/paid", `{"method":"terminal"}`, auth).is(200)
		time.Sleep(outsideFor)
		s.do("DELETE", path+"/paid", "", s.seller()).is(409, "order_state")
		equal(t, "its sale at last", s.sums(), 1850)
	})
}

// sums returns what all days have received.
func (s *service) sums() int {
	s.t.Helper()
	return s.count(`SELECT coalesce(sum(iif(what IN ('sale', 'delivery', 'tip'), gross, -gross)), 0)
		FROM revenue_sums WHERE what <> 'discount'`)
}

// TestOrder_thatExpiredUnpaidIsMarkedPaidForADay has somebody mark, undo and mark again, which makes the day no
// longer.
func TestOrder_thatExpiredUnpaidIsMarkedPaidForADay(t *testing.T) {
	t.Parallel()
	inShop(t, func(s *shop) {
		o, expire := s.place(), s.chore("orders can't expire")
		time.Sleep(minOrderLife)
		s.check(expire(s.t.Context()))
		path := "/orders/" + o.ID + "/paid"
		for range 3 {
			time.Sleep(7 * time.Hour)
			auth := s.seller()
			s.post(path, `{"method":"cash"}`, auth).is(200).holds(`state="paid"`)
			s.do("DELETE", path, "", auth).is(200).holds(`state="expired"`)
		}
		time.Sleep(3 * time.Hour)
		s.post(path, `{"method":"cash"}`, s.seller()).is(409, "order_state")
	})
}

func TestOrder_paidLaterOfAClosedAccountIsCancelledAndItsGuestErased(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newService(t)
		tenant := s.addAccount("Trattoria")
		s.change(func(t *tx) error { return addOrigin(t, tenant, "https://trattoria.example", anActor) })
		make := func() *order {
			o := anOrder(tenant)
			o.Pay, o.ReturnURL = payLater, "https://trattoria.example/"
			return s.addOrder(o)
		}
		open, accepted, kept := make(), make(), make()
		for _, o := range []*order{accepted, kept} {
			s.change(func(t *tx) error { return second(acceptOrder(t, anyAccount, o.ID, nil, stamp{}, anActor)) })
		}
		time.Sleep(keptCustomersFor) // nobody has marked it as paid, and its guest is forgotten all the same
		s.change(func(t *tx) error { return second(t.eraseCustomers(10)) })
		equal(t, "guests", s.count(`SELECT count(*) FROM order_customers`), 1)
		s.change(func(t *tx) error { return closeAccount(t, nouns(), tenant, actorCommand) })
		for _, o := range []*order{open, accepted, kept} {
			equal(t, "the order's state", s.row(o.ID).State, orderCancelled)
		}
	})
}

func TestOrder_wantedLaterCanBeAcceptedUntilShortlyBefore(t *testing.T) {
	t.Parallel()
	inShop(t, func(s *shop) {
		for _, c := range []struct {
			ahead, want time.Duration // after it begins to wait
			method      string
		}{
			{0, 30 * time.Minute, methodCard},
			{time.Hour, 30 * time.Minute, methodCard},
			{8 * time.Hour, 6 * time.Hour, methodCard},
			{days(20), days(6), methodCard}, // after the reservation
			{days(20), days(20) - 2*time.Hour, methodTwint},
			{0, 30 * time.Minute, methodTwint},
		} {
			s.method = c.method
			o := s.place(func(o *order) {
				if c.ahead > 0 {
					o.WantedAt = newStamp(time.Now().Add(c.ahead))
				}
			})
			p := s.start(o.ID)
			s.authorize(p)
			s.settle(p)
			o = s.row(o.ID)
			equal(t, fmt.Sprint("how long it waits: ", c), o.AcceptBy.Sub(o.CreatedAt.Time), c.want)
		}
	})
}

// TestOrder_thatWaitedWhileTheServiceWasStoppedHasTenMinutes starts the service again after a day.
func TestOrder_thatWaitedWhileTheServiceWasStoppedHasTenMinutes(t *testing.T) {
	t.Parallel()
	inShop(t, func(s *shop) {
		o, p := s.authorized()
		later := s.later(s.seller())
		time.Sleep(days(1))
		s.server.startedAt = time.Now()
		expire := s.chore("orders can't expire")
		s.check(expire(s.t.Context()))
		time.Sleep(startNotice - time.Second)
		s.check(expire(s.t.Context()))
		s.states(o.ID, orderAuthorized, paymentAuthorized)
		equal(s.t, "one that is paid later", s.row(later).State, orderOpen)
		time.Sleep(time.Second)
		s.check(expire(s.t.Context()))
		s.settle(p)
		s.states(o.ID, orderExpired, paymentCancelled)
		equal(s.t, "one that is paid later", s.row(later).State, orderExpired)
	})
}

package main

import (
	"html"
	"net/url"
	"regexp"
	"strings"
	"testing"
)

// TestOrder_tellsItsSiteWhichOrderItIsAndHowItStands is of order.siteURL.
func TestOrder_tellsItsSiteWhichOrderItIsAndHowItStands(t *testing.T) {
	t.Parallel()
	const at = "https://www.example.com/"
	long := at + "?x=" + strings.Repeat("y", maxOrderReturnURL-len(at)-3)
	for given, want := range map[string]string{
		at:                                    at + "?*",
		at + "cart":                           at + "cart?*",
		at + "?":                              at + "?*",
		at + "?a=1":                           at + "?a=1&*",
		at + "?a=1&":                          at + "?a=1&*",
		at + "#/thanks?a=1":                   at + "?*#/thanks?a=1",
		at + "?a=1#":                          at + "?a=1&*#",
		at + "#order=x&state=paid":            at + "?*#order=x&state=paid",
		at + "?order=ord_x&state=paid":        at + "?*",
		at + "?a=1&order=x&order=y&b=2&state": at + "?a=1&b=2&*",
		at + "?%6Frder=x&stat%65=paid&%73%74%61%74%65=no":  at + "?*",
		at + "?reorder=1&states=2&Order=3&a=order=4":       at + "?reorder=1&states=2&Order=3&a=order=4&*",
		at + "?note=%3Forder%3Dx%26state%3Dpaid&plus=a+b":  at + "?note=%3Forder%3Dx%26state%3Dpaid&plus=a+b&*",
		at + "?broken=%zz&%zz=1&q=a%20b":                   at + "?broken=%zz&%zz=1&q=a%20b&*",
		at + "?a=1?order=x":                                at + "?a=1?order=x&*",
		at + "a%3Forder=x%23y":                             at + "a%3Forder=x%23y?*",
		long:                                               long + "&*",
		"https://www.example.com:8443/?a=1#a#b?c&state=no": "https://www.example.com:8443/?a=1&*#a#b?c&state=no",
	} {
		want = strings.Replace(want, "*", "order=ord_1&state=open", 1)
		o := &order{ID: "ord_1", State: orderOpen, ReturnURL: given, CancelURL: new(at + "gone")}
		equal(t, "paid", o.siteURL(true), want)
		o.ReturnURL, o.CancelURL = at+"gone", &given
		equal(t, "not paid", o.siteURL(false), want)
		to, err := url.Parse(want)
		must(t, err)
		if of := to.Query(); len(of["order"]) != 1 || len(of["state"]) != 1 || len(want) > len(given)+60 {
			t.Errorf("%s says what differs", want)
		}
		o.ReturnURL, o.CancelURL = given, nil
		equal(t, "without cancel_url", o.siteURL(true)+" "+o.siteURL(false), given+" "+given)
	}
}

// site returns where the link to the restaurant's site leads on a page.
func (a answer) site() string {
	a.t.Helper()
	link := regexp.MustCompile(`<a href="([^"]*)">[^<]*restaurant’s site</a>`).FindStringSubmatch(a.body)
	if link == nil {
		a.t.Fatalf("no link to the site: %s", a.body)
	}
	return html.UnescapeString(link[1])
}

// Against a guest who has not paid, presses the link back to the restaurant, and reads "Thank you for your order"; and
// one who has, and is asked to pay again.
func TestReturnPage_leadsWhoHasNotPaidToAnotherPage(t *testing.T) {
	t.Parallel()
	g := newGuestService(t, withoutAddressLimits)
	const left = siteOrigin + "/cart?table=4&state=paid#menu"
	for _, c := range guestStates {
		o := g.inState(c, func(o *order) { o.CancelURL = new(left) })
		page, fragment := siteOrigin+"/cart?table=4", "#menu"
		if o.wasPaid() || o.accepting() || c.payment == paymentReview {
			page, fragment = siteOrigin+"/thanks?table=4&x=1", ""
		}
		equal(t, c.order+" "+c.payment, g.returns(o).site(), page+"&order="+o.ID+"&state="+string(o.State)+fragment)
		equal(t, "without cancel_url", g.returns(g.inState(c)).site(), siteOrigin+"/thanks?table=4&x=1")
	}
}

// The guest opens the page, has a card declined, tries again and pays; each page says how the order stands then. The
// provider is told our own addresses.
func TestPayPage_leadsToTheSiteByHowTheOrderStands(t *testing.T) {
	t.Parallel()
	g := newGuestService(t)
	o := g.lunch(func(o *order) { o.CancelURL = new(siteOrigin + "/cart") })
	cart := siteOrigin + "/cart?order=" + o.ID + "&state=open"
	equal(t, "at first", g.page(o).is(200).site(), cart)
	equal(t, "refused", g.presses(o, "cash").is(409).site(), cart)
	session := strings.TrimPrefix(g.presses(o, "card").is(303).header.Get("Location"), g.provider.base+"/pay/")
	for _, s := range g.provider.sessions {
		ours := "/pay/" + o.ID + "/return?"
		if strings.Contains(s.returnURL+s.cancelURL, siteOrigin) || !strings.Contains(s.returnURL, ours) ||
			!strings.Contains(s.cancelURL, ours) {
			t.Errorf("the provider leads to %s and %s", s.returnURL, s.cancelURL)
		}
	}
	equal(t, "under way", g.returns(o).site(), cart)
	if !g.provider.tryCard(session, true) {
		t.Fatal("the session is not open")
	}
	equal(t, "reserved", g.returns(o).site(), siteOrigin+"/thanks?table=4&x=1&order="+o.ID+"&state=authorized")
}

func TestOrder_hasACancelURLWhereOneWasGiven(t *testing.T) {
	t.Parallel()
	s := newService(t)
	long := siteOrigin + "/" + strings.Repeat("x", maxOrderReturnURL-len(siteOrigin)-1)
	for given, want := range map[string]any{
		"": nil, `"` + long + `"`: long, `"` + siteOrigin + `/cart"`: siteOrigin + "/cart",
	} {
		made := s.post("/orders", orderBody("cancel_url", given), s.seller()).is(200)
		equal(t, "made", made.json()["cancel_url"], want)
		shown := s.get("/orders/"+made.text("id"), s.seller()).is(200).json()
		equal(t, "shown", shown["cancel_url"], want)
		equal(t, "return_url", shown["return_url"], any(siteOrigin+"/thanks"))
	}
	s.post("/orders", orderBody("cancel_url", `"`+long+`x"`), s.seller()).is(422).names("#/cancel_url too_long")
}

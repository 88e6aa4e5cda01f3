package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"
)

// The page to which somebody with a network carries the activation request of a device that has none, and from which
// they carry its lease back (contract, section 4). A request names the licence key, so it is posted and never stands
// in a URL. The only script, web/activate.js, copies the lease, where there is one.

// activateTemplate makes the page from an activatePage, leaseTemplate that with a lease.
var (
	activateTemplate = pageTemplateOf("activate.html", "")
	leaseTemplate    = pageTemplateOf("activate.html", "activate.js")
)

// pageRoutes are the routes of the page.
func (a *deviceAPI) pageRoutes() []route {
	return []route{
		{pattern: "GET /activate", page: "activate", free: true, origin: originNone, address: "activate page",
			run: a.askRequest},
		{pattern: "POST /activate", page: "activate", bucket: bucketLicenses, origin: originNone,
			address: "activate page", run: a.activateByPage},
	}
}

// readCarried reads an activation request that was pasted into the page's form. Errors: malformed_json, or the
// refusal of its members.
func readCarried(text string) (*deviceRequest, error) {
	body, err := parseBody([]byte(text), maxBodyValues)
	if err != nil {
		return nil, &refusal{code: codeMalformedJSON}
	}
	in := newInput(&body, nil)
	return readSeatRequest(in, true), in.err()
}

// askRequest answers with the empty form.
func (a *deviceAPI) askRequest(ctx context.Context, c *call) (any, error) {
	if err := a.finishReading(ctx, c); err != nil {
		return nil, err
	}
	return activateTemplate.render(http.StatusOK, pageBrand{}, newActivatePage(c.request, "title_activate"))
}

// activateByPage answers with the lease of the device that made the request, or with what is wrong.
func (a *deviceAPI) activateByPage(ctx context.Context, c *call) (any, error) {
	p := newActivatePage(c.request, "title_activate")
	p.Request = c.in.field("request")
	asFile := c.in.field("answer") == "file"
	token, err := a.leaseFor(ctx, c, p.Request)
	var refused *refusal
	switch {
	case err == nil && asFile:
		return download("application/jwt", "lease.jwt", []byte(token+"\n")), nil
	case err == nil:
		return a.showLease(p, token)
	case !errors.As(err, &refused) || refused.code.status >= 500 || refused.code.status == 429:
		return nil, err
	}
	a.metrics.countRefusal(refused.code.name, a.monotonic())
	p.showRefusal(refused)
	return activateTemplate.render(refused.code.status, p.pageBrand, p)
}

// leaseFor activates the device that made a request, and returns its lease. The same text gets the same lease for a
// day, as with an Idempotency-Key, so that it can be shown first and saved then. A text that is no activation
// request is charged to nobody; the page's own limit by address has counted it. Errors: those of readCarried
// and giveSeat.
func (a *deviceAPI) leaseFor(ctx context.Context, c *call, text string) (token string, err error) {
	r, err := readCarried(text)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256([]byte(text))
	c.repeatAs(hex.EncodeToString(sum[:]), text)
	res, err := a.giveSeat(ctx, c, r)
	if err != nil {
		return "", err
	}
	if c.replay != nil {
		err = json.Unmarshal(c.replay.body, &res)
		c.replay = nil // it is no page
	}
	return res.Token, err
}

// An activatePage is what the template shows; an empty field is left out.
type activatePage struct {
	pageFrame
	Request string   // that was pasted
	Wrong   []string // members of the request that are missing or wrong
	Product string   // of the licence
	Until   string   // when the lease ends
	Lease   string
}

// newActivatePage makes an empty page in the language that a request prefers.
func newActivatePage(r *http.Request, title string) *activatePage {
	lang := languageOf(r, pageLanguages[:ownerLanguages])
	texts := textsByLanguage[lang]().Activate
	return &activatePage{pageFrame: pageFrame{pageLanguage: lang, texts: texts, Title: title}}
}

// showLease makes the page with a lease, whose end it writes in the zone of the licence's account.
func (a *deviceAPI) showLease(p *activatePage, token string) (*reply, error) {
	c, err := a.keys.Load().verify(token)
	if err != nil {
		return nil, err
	}
	of, err := a.store.settings(c.Subject)
	if err != nil {
		return nil, err
	}
	p.Title, p.Lease, p.Product = "title_lease", token, c.Product
	zone := shownZone(of.Zone)
	p.Until = p.moment(newStamp(time.Unix(c.Expires, 0)), zone) + " (" + zone.String() + ")"
	return leaseTemplate.render(http.StatusOK, p.pageBrand, p)
}

// carriedRefusals are the texts for refusals that people can do something about.
var carriedRefusals = map[*problemCode]string{
	codeMalformedJSON: "refused_request", codeValidation: "refused_request",
	codeKeyMalformed: "refused_key", codeLicenseNotFound: "refused_key", codeKeyRetired: "refused_key",
	codeLicenseRevoked: "refused_ended", codeLicenseSuspended: "refused_ended", codeLicenseExpired: "refused_ended",
	codeLicenseInGrace: "refused_ended", codeLicenseNotStarted: "refused_ended",
	codeProductMismatch: "refused_product", codeDeviceBlocked: "refused_blocked",
	codeOfflineNotAllowed: "refused_offline", codeHeldOffline: "refused_held",
	codeSeatLimit: "refused_seats", codeTransferLimit: "refused_transfers",
}

// showRefusal says on the page why a request was refused.
func (p *activatePage) showRefusal(ref *refusal) {
	p.Title, p.Text, p.Tone = "title_refused", cmp.Or(carriedRefusals[ref.code], "refused"), toneBad
	for _, f := range ref.fields {
		p.Wrong = append(p.Wrong, strings.TrimPrefix(f.Pointer, "#/"))
	}
	p.Wrong = slices.Compact(p.Wrong)
}

// activateRefused shows a refusal of the page as a whole. It is a refusalForm.
func activateRefused(r *http.Request, ref *refusal, requestID string) *reply {
	p := newActivatePage(r, "")
	p.refuse(ref, requestID)
	return activateTemplate.renderRefusal(ref.code.status, p)
}

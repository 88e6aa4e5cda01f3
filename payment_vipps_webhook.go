package main

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"time"
)

// Webhooks of Vipps MobilePay: their signatures, and their registration by its Webhooks API, with which an
// account is connected.

// notice implements provider. The signature is over the registered address of the webhook, whatever a proxy
// in front of this service has made of it. Vipps delivers again for seven days, with the date of the first
// attempt, so its age is not judged.
func (v *vippsProvider) notice(
	c *openConnection, r *http.Request, body []byte, _ time.Time,
) (paymentNotice, error) {
	if c.WebhookURL == nil || c.secrets.WebhookSecret == "" {
		return paymentNotice{}, errNotice
	}
	one := func(name string) string { // a header that appears only once
		if values := r.Header.Values(name); len(values) == 1 && len(values[0]) <= 2*maxVippsText {
			return values[0]
		}
		return ""
	}
	want := signVipps(c.secrets.WebhookSecret, *c.WebhookURL, one("X-Ms-Date"), body)
	hash, authorization := one("X-Ms-Content-Sha256"), one("Authorization")
	sameHash := hmac.Equal([]byte(hash), []byte(want.hash))
	if !hmac.Equal([]byte(authorization), []byte(want.authorization)) || !sameHash {
		return paymentNotice{}, errNotice
	}
	told, err := parseJSON(body)
	if err != nil {
		return paymentNotice{}, nil // it is Vipps' all the same, and would be sent again for a week
	}
	kind := vippsText(&told, "name", maxVippsText)
	if !isVippsCode(kind) {
		kind = ""
	}
	return paymentNotice{kind: kind, paymentID: vippsPaymentID(vippsText(&told, "reference", maxVippsText))}, nil
}

// A vippsSignature are the headers that prove that a webhook is Vipps'.
type vippsSignature struct{ hash, authorization string }

// signVipps returns the signature of a webhook, as Vipps' Webhooks API describes it. secret is used as text,
// though it looks like base64. target is the registered address.
func signVipps(secret, target, date string, body []byte) vippsSignature {
	path, host := "/", ""
	if u, err := url.Parse(target); err == nil {
		path, host = u.RequestURI(), u.Host
	}
	sum := sha256.Sum256(body)
	hash := base64.StdEncoding.EncodeToString(sum[:])
	mac := hmac.New(sha256.New, []byte(secret))
	fmt.Fprintf(mac, "POST\n%s\n%s;%s;%s", path, date, host, hash)
	return vippsSignature{hash, "HMAC-SHA256 SignedHeaders=x-ms-date;host;x-ms-content-sha256&Signature=" +
		base64.StdEncoding.EncodeToString(mac.Sum(nil))}
}

// vippsEvents are the types that our webhook is registered for.
var vippsEvents = []string{
	"epayments.payment.created.v1", "epayments.payment.aborted.v1", "epayments.payment.expired.v1",
	"epayments.payment.cancelled.v1", "epayments.payment.captured.v1", "epayments.payment.refunded.v1",
	"epayments.payment.authorized.v1", "epayments.payment.terminated.v1",
}

// vippsWebhooks is the path of the webhooks of a merchant.
const vippsWebhooks = "/webhooks/v1/webhooks"

// vippsWebhookID is the form of a webhook's id, which becomes part of a path.
var vippsWebhookID = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// connect implements provider. If the answer of the registration is lost, it removes what may have been
// registered.
func (v *vippsProvider) connect(ctx context.Context, c *openConnection, webhookURL string) error {
	v.drop(c.ID, nil)
	body := vippsBody(map[string]any{"url": webhookURL, "events": vippsEvents})
	answer, err := v.ask(ctx, c, outboundRequest{http.MethodPost, v.base + vippsWebhooks,
		http.Header{"Content-Type": {"application/json"}}, []byte(body), 0}, false)
	if err == nil {
		if failed := v.failure(answer); failed != nil {
			err = failed
		}
	}
	if err == nil {
		told, _ := parseJSON(answer.body)
		id, secret := vippsText(&told, "id", maxVippsText), vippsText(&told, "secret", maxVippsText)
		if vippsWebhookID.MatchString(id) && secret != "" {
			c.Live, c.Name, c.WebhookID = v.base == vippsLive, c.secrets.MerchantSerial, &id
			c.secrets.WebhookSecret = secret
			return nil
		}
		err = malformedVipps(answer)
	}
	var failed *providerError
	if !errors.As(err, &failed) || failed.reason == outboundMalformed || failed.status >= 500 {
		if removed := v.removeWebhooks(ctx, c, webhookURL); removed != nil {
			return fmt.Errorf("%w; and a webhook at %s may be left at Vipps, to be removed there: %w",
				err, webhookURL, removed)
		}
	}
	return err
}

// A vippsWebhook is a webhook of a merchant.
type vippsWebhook struct{ id, url string }

// webhooks returns the webhooks of a merchant, ours and others'.
func (v *vippsProvider) webhooks(ctx context.Context, c *openConnection) (all []vippsWebhook, err error) {
	answer, err := v.read(ctx, c, vippsWebhooks)
	if err != nil {
		return nil, err
	}
	body, err := parseJSON(answer.body)
	list, ok := body.member("webhooks")
	if err != nil || !ok || list.kind != jsonArray {
		return nil, malformedVipps(answer)
	}
	for _, w := range list.list {
		all = append(all, vippsWebhook{vippsText(&w, "id", maxVippsText), vippsText(&w, "url", maxOutboundURL)})
	}
	return all, nil
}

// removeWebhooks removes the webhooks of a merchant that post to an address.
func (v *vippsProvider) removeWebhooks(ctx context.Context, c *openConnection, webhookURL string) error {
	all, err := v.webhooks(ctx, c)
	for _, w := range all {
		if w.url == webhookURL {
			if err := v.removeWebhook(ctx, c, w.id); err != nil {
				return err
			}
		}
	}
	return err
}

// removeWebhook removes a webhook of a merchant, if it is there.
func (v *vippsProvider) removeWebhook(ctx context.Context, c *openConnection, id string) error {
	if !vippsWebhookID.MatchString(id) {
		return &providerError{reason: outboundMalformed}
	}
	q := outboundRequest{method: http.MethodDelete, url: v.base + vippsWebhooks + "/" + id}
	answer, err := v.ask(ctx, c, q, false)
	if err != nil {
		return err
	}
	if failed := v.failure(answer); failed != nil && !isVippsNotFound(failed) {
		return failed
	}
	return nil
}

// disconnect implements provider.
func (v *vippsProvider) disconnect(ctx context.Context, c *openConnection) error {
	if c.WebhookID == nil {
		return nil
	}
	err := v.removeWebhook(ctx, c, *c.WebhookID)
	if err == nil {
		v.drop(c.ID, nil)
	}
	return err
}

// check implements provider. It asks for another access token, so that secrets that were changed at Vipps
// are noticed while an earlier token is still accepted.
func (v *vippsProvider) check(ctx context.Context, c *openConnection) error {
	v.drop(c.ID, nil)
	all, err := v.webhooks(ctx, c)
	if err != nil {
		return err
	}
	if c.WebhookID == nil || c.WebhookURL == nil ||
		!slices.Contains(all, vippsWebhook{*c.WebhookID, *c.WebhookURL}) {
		return &providerError{reason: "webhook_gone"}
	}
	return nil
}

package main

import (
	"encoding/base64"
	"net/http"
	"strings"
	"testing"
	"time"
)

// The vector of the Standard Webhooks specification's libraries.
const (
	vectorSecret    = "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	vectorID        = "msg_p5jXN8AQM9LWM0D4loKWxJek"
	vectorBody      = `{"test": 2432232314}`
	vectorSignature = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
)

var vectorTime = time.Unix(1614265330, 0)

func TestWebhookSignature_isThatOfTheSpecification(t *testing.T) {
	t.Parallel()
	secret, err := parseWebhookSecret(vectorSecret)
	if err != nil {
		t.Fatal(err)
	}
	if got := signWebhook(secret, vectorID, vectorTime, []byte(vectorBody)); got != vectorSignature {
		t.Errorf("signature %s, want %s", got, vectorSignature)
	}
	h := webhookHeaders([][]byte{secret, []byte("the one before")}, vectorID, vectorTime, []byte(vectorBody))
	signature := h.Get("webhook-signature")
	if h.Get("webhook-id") != vectorID || h.Get("webhook-timestamp") != "1614265330" || len(h) != 3 ||
		!strings.HasPrefix(signature, vectorSignature+" v1,") || strings.Count(signature, " ") != 1 {
		t.Errorf("headers %q", h)
	}
}

func TestWebhookSecret_isDerivedFromKeyFileWebhookAndRotation(t *testing.T) {
	t.Parallel()
	ring, other := &keyring{secret: make([]byte, 32)}, &keyring{secret: []byte(strings.Repeat("x", 32))}
	secret := webhookSecret(ring, "whk_1", 1)
	if got := formatWebhookSecret(secret); len(secret) != 32 || got != "whsec_CfPIDTsy/guKHR7jjSTNLHDC3aHwbJ2hYe7SRTUT9zs=" {
		t.Errorf("the secret is %s: every partner would have to be told", got)
	}
	for name, different := range map[string][]byte{
		"key file": webhookSecret(other, "whk_1", 1),
		"webhook":  webhookSecret(ring, "whk_2", 1),
		"rotation": webhookSecret(ring, "whk_1", 2),
		"both":     webhookSecret(ring, "whk_", 11),
	} {
		if string(different) == string(secret) {
			t.Errorf("another %s has the same secret", name)
		}
	}
	if back, err := parseWebhookSecret(formatWebhookSecret(secret)); err != nil || string(back) != string(secret) {
		t.Errorf("parsed: %x, %v", back, err)
	}
}

func TestWebhookSecret_thatIsNoneIsRefusedWithoutRepeatingIt(t *testing.T) {
	t.Parallel()
	of := func(n int) string { return base64.StdEncoding.EncodeToString(make([]byte, n)) }
	for _, text := range []string{of(24), of(64), "whsec_" + of(32), "whsec_" + vectorSecret} {
		if _, err := parseWebhookSecret(text); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
	for _, text := range []string{"", "whsec_", of(23), of(65), "whsec_whsec_" + of(32), "whpk_" + of(32), " " + of(32), of(32) + "\n",
		of(30)[:20] + "\n" + of(30)[20:], strings.TrimRight(of(32), "="), strings.Repeat("-_", 22), strings.Repeat("!", 44)} {
		secret, err := parseWebhookSecret(text)
		if err == nil || secret != nil || len(text) > 6 && strings.Contains(err.Error(), text) {
			t.Errorf("%q: %x, %v", text, secret, err)
		}
	}
}

func TestWebhookVerification_takesWhatPublicLibrariesTake(t *testing.T) {
	t.Parallel()
	secret, _ := parseWebhookSecret(vectorSecret)
	other := webhookSecret(&keyring{secret: make([]byte, 32)}, "whk_1", 1)
	minute := func(n int) time.Time { return vectorTime.Add(time.Duration(n) * time.Minute) }
	headers := func(id, at, signature string) http.Header {
		h := http.Header{}
		h.Set("webhook-id", id)
		h.Set("webhook-timestamp", at)
		h.Set("webhook-signature", signature)
		return h
	}
	const at = "1614265330"
	for _, c := range []struct {
		name   string
		header http.Header
		body   string
		now    time.Time
		want   error
	}{
		{"as it was sent", headers(vectorID, at, vectorSignature), vectorBody, vectorTime, nil},
		{"five minutes later", headers(vectorID, at, vectorSignature), vectorBody, minute(5), nil},
		{"five minutes before", headers(vectorID, at, vectorSignature), vectorBody, minute(-5), nil},
		{"five minutes and a second later", headers(vectorID, at, vectorSignature), vectorBody, minute(5).Add(time.Second), errWebhookTooOld},
		{"five minutes and a second before", headers(vectorID, at, vectorSignature), vectorBody, minute(-5).Add(-time.Second), errWebhookTooNew},
		{"signed with two secrets, the second known", webhookHeaders([][]byte{other, secret}, vectorID, vectorTime, []byte(vectorBody)), vectorBody, vectorTime, nil},
		{"signed with another secret", webhookHeaders([][]byte{other}, vectorID, vectorTime, []byte(vectorBody)), vectorBody, vectorTime, errWebhookSignature},
		{"beside a signature of another version", headers(vectorID, at, "v1a,hnO3f9T8Ytu9HwrXslvumlUpqtNVqkhqw/enGzPCXe5BdqzCInXqYXFymVJaA7AZdpXwVLPo3mNl8EM+m7TBAg== "+vectorSignature), vectorBody, vectorTime, nil},
		{"of another version only", headers(vectorID, at, strings.Replace(vectorSignature, "v1,", "v2,", 1)), vectorBody, vectorTime, errWebhookSignature},
		{"without a version", headers(vectorID, at, strings.TrimPrefix(vectorSignature, "v1,")), vectorBody, vectorTime, errWebhookSignature},
		{"cut", headers(vectorID, at, vectorSignature[:20]), vectorBody, vectorTime, errWebhookSignature},
		{"another body", headers(vectorID, at, vectorSignature), vectorBody + " ", vectorTime, errWebhookSignature},
		{"another id", headers("msg_2", at, vectorSignature), vectorBody, vectorTime, errWebhookSignature},
		{"another time", headers(vectorID, "1614265331", vectorSignature), vectorBody, vectorTime, errWebhookSignature},
		{"a time with a sign", headers(vectorID, "+"+at, vectorSignature), vectorBody, vectorTime, errWebhookTimestamp},
		{"a time that is text", headers(vectorID, "now", vectorSignature), vectorBody, vectorTime, errWebhookTimestamp},
		{"a time beyond numbers", headers(vectorID, "99999999999999999999", vectorSignature), vectorBody, vectorTime, errWebhookTimestamp},
		{"the last time", headers(vectorID, "9223372036854775807", vectorSignature), vectorBody, vectorTime, errWebhookTooNew},
		{"the first time", headers(vectorID, "-9223372036854775808", vectorSignature), vectorBody, vectorTime, errWebhookTooOld},
		{"without an id", headers("", at, vectorSignature), vectorBody, vectorTime, errWebhookHeaders},
		{"without a time", headers(vectorID, "", vectorSignature), vectorBody, vectorTime, errWebhookHeaders},
		{"without a signature", headers(vectorID, at, ""), vectorBody, vectorTime, errWebhookHeaders},
		{"without headers", http.Header{}, vectorBody, vectorTime, errWebhookHeaders},
	} {
		if err := verifyWebhook(secret, c.header, []byte(c.body), c.now); err != c.want {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
}

func FuzzWebhookVerification(f *testing.F) {
	f.Add(vectorID, "1614265330", vectorSignature, vectorBody)
	f.Add(vectorID, "1614265330", "v1,AAAA "+vectorSignature, vectorBody)
	f.Add("", "-1", "v1,", "")
	f.Add("a.1", "01614265330", "v1,\x00", "{}")
	secret, err := parseWebhookSecret(vectorSecret)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, id, at, signature, body string) {
		h := http.Header{webhookIDHeader: {id}, webhookTimestampHeader: {at}, webhookSignatureHeader: {signature}}
		if verifyWebhook(secret, h, []byte(body), vectorTime) == nil && (id != vectorID || body != vectorBody || at != "1614265330") {
			t.Errorf("a forged message verifies: %q %q %q %q", id, at, signature, body)
		}
		own := webhookHeaders([][]byte{secret}, id, vectorTime, []byte(body))
		if err := verifyWebhook(secret, own, []byte(body), vectorTime); (err == nil) != (id != "") {
			t.Errorf("our own message with the id %q: %v", id, err)
		}
	})
}

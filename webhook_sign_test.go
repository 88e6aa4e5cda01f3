package main

import (
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

// Against whoever copies the database who would sign webhooks: secrets are derived from the key file, and stored
// nowhere.
func TestWebhookSecret_isDerivedFromKeyFileWebhookAndRotation(t *testing.T) {
	t.Parallel()
	ring, other := &keyring{secret: make([]byte, 32)}, &keyring{secret: []byte(strings.Repeat("x", 32))}
	secret := webhookSecret(ring, "whk_1", 1)
	if got := formatWebhookSecret(secret); len(secret) != 32 ||
		got != "whsec_CfPIDTsy/guKHR7jjSTNLHDC3aHwbJ2hYe7SRTUT9zs=" {
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

// Against anybody with the address of a receiver who would forge or repeat a webhook: signatures over id, time and
// body; five minutes.
func TestWebhookVerification_takesWhatPublicLibrariesTake(t *testing.T) {
	t.Parallel()
	secret, _ := parseWebhookSecret(vectorSecret)
	other := webhookSecret(&keyring{secret: make([]byte, 32)}, "whk_1", 1)
	signedWith := func(secrets ...[]byte) string {
		return webhookHeaders(secrets, vectorID, vectorTime, []byte(vectorBody)).Get("webhook-signature")
	}
	const at, sent = "1614265330", vectorSignature
	const v1a = "v1a,hnO3f9T8Ytu9HwrXslvumlUpqtNVqkhqw/enGzPCXe5BdqzCInXqYXFymVJaA7AZdpXwVLPo3mNl8EM+m7TBAg=="
	for _, c := range []struct {
		name                    string
		id, at, signature, body string
		after                   time.Duration // when it is verified
		want                    error
	}{
		{"as it was sent", vectorID, at, sent, vectorBody, 0, nil},
		{"five minutes later", vectorID, at, sent, vectorBody, 5 * time.Minute, nil},
		{"five minutes before", vectorID, at, sent, vectorBody, -5 * time.Minute, nil},
		{"more than five minutes later", vectorID, at, sent, vectorBody, 301 * time.Second, errWebhookTooOld},
		{"more than five minutes before", vectorID, at, sent, vectorBody, -301 * time.Second, errWebhookTooNew},
		{"signed with two secrets, the second known", vectorID, at, signedWith(other, secret), vectorBody, 0, nil},
		{"signed with another secret", vectorID, at, signedWith(other), vectorBody, 0, errWebhookSignature},
		{"beside a signature of another version", vectorID, at, v1a + " " + sent, vectorBody, 0, nil},
		{"of another version only", vectorID, at, "v2," + sent[3:], vectorBody, 0, errWebhookSignature},
		{"without a version", vectorID, at, sent[3:], vectorBody, 0, errWebhookSignature},
		{"cut", vectorID, at, sent[:20], vectorBody, 0, errWebhookSignature},
		{"another body", vectorID, at, sent, vectorBody + " ", 0, errWebhookSignature},
		{"another id", "msg_2", at, sent, vectorBody, 0, errWebhookSignature},
		{"another time", vectorID, "1614265331", sent, vectorBody, 0, errWebhookSignature},
		{"a time with a sign", vectorID, "+" + at, sent, vectorBody, 0, errWebhookTimestamp},
		{"a time that is text", vectorID, "now", sent, vectorBody, 0, errWebhookTimestamp},
		{"a time beyond numbers", vectorID, "99999999999999999999", sent, vectorBody, 0, errWebhookTimestamp},
		{"the last time", vectorID, "9223372036854775807", sent, vectorBody, 0, errWebhookTooNew},
		{"the first time", vectorID, "-9223372036854775808", sent, vectorBody, 0, errWebhookTooOld},
		{"without an id", "", at, sent, vectorBody, 0, errWebhookHeaders},
		{"without a time", vectorID, "", sent, vectorBody, 0, errWebhookHeaders},
		{"without a signature", vectorID, at, "", vectorBody, 0, errWebhookHeaders},
	} {
		h := http.Header{webhookIDHeader: {c.id}, webhookTimestampHeader: {c.at}, webhookSignatureHeader: {c.signature}}
		if err := verifyWebhook(secret, h, []byte(c.body), vectorTime.Add(c.after)); err != c.want {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
	}
	if err := verifyWebhook(secret, http.Header{}, []byte(vectorBody), vectorTime); err != errWebhookHeaders {
		t.Errorf("without headers: %v", err)
	}
}

func FuzzWebhookVerification(f *testing.F) {
	f.Add(vectorID, "1614265330", vectorSignature, vectorBody)
	f.Add(vectorID, "1614265330", "v1,AAAA "+vectorSignature, vectorBody)
	f.Add("", "-1", "v1,", "")
	f.Add("a.1", "01614265330", "v1,\x00", "{}")
	secret, err := parseWebhookSecret(vectorSecret)
	must(f, err)
	f.Fuzz(func(t *testing.T, id, at, signature, body string) {
		h := http.Header{webhookIDHeader: {id}, webhookTimestampHeader: {at}, webhookSignatureHeader: {signature}}
		if verifyWebhook(secret, h, []byte(body), vectorTime) == nil &&
			(id != vectorID || body != vectorBody || at != "1614265330") {
			t.Errorf("a forged message verifies: %q %q %q %q", id, at, signature, body)
		}
		own := webhookHeaders([][]byte{secret}, id, vectorTime, []byte(body))
		if err := verifyWebhook(secret, own, []byte(body), vectorTime); (err == nil) != (id != "") {
			t.Errorf("our own message with the id %q: %v", id, err)
		}
	})
}

package main

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Webhooks are signed as Standard Webhooks 1.0.0 says, so that its public libraries verify them: an
// HMAC-SHA-256 of the message's id, its time and its body.

// webhookSecretPrefix begins the text form of a secret.
const webhookSecretPrefix = "whsec_"

// The headers of a webhook.
const (
	webhookIDHeader        = "Webhook-Id"
	webhookTimestampHeader = "Webhook-Timestamp" // Unix seconds
	webhookSignatureHeader = "Webhook-Signature"
)

const (
	webhookVersion   = "v1," // of a signature: with a shared secret
	webhookTolerance = 5 * time.Minute
	minWebhookSecret = 24 // bytes
	maxWebhookSecret = 64
)

// webhookSecret derives the secret of a webhook: 32 bytes, from the secret of the key file, the
// webhook's id and the number of the rotation. Nothing of it is stored.
func webhookSecret(keys *keyring, webhookID string, number int) []byte {
	return keys.derive("webhook", fmt.Appendf(nil, "%s %d", webhookID, number))
}

// formatWebhookSecret returns the text form of a secret: whsec_ and standard base64.
func formatWebhookSecret(secret []byte) string {
	return webhookSecretPrefix + base64.StdEncoding.EncodeToString(secret)
}

// parseWebhookSecret parses the text form of a secret, with or without its prefix. A secret has 24 to
// 64 bytes. The error does not contain the text.
func parseWebhookSecret(text string) ([]byte, error) {
	encoded := strings.TrimPrefix(text, webhookSecretPrefix)
	secret, err := base64.StdEncoding.Strict().DecodeString(encoded)
	if err != nil || strings.ContainsAny(encoded, "\r\n") || // which the decoder skips
		len(secret) < minWebhookSecret || len(secret) > maxWebhookSecret {
		return nil, fmt.Errorf("a webhook's secret is %s and %d to %d bytes in base64",
			webhookSecretPrefix, minWebhookSecret, maxWebhookSecret)
	}
	return secret, nil
}

// signWebhook returns the signature of a message that is sent at a time, with its version: "v1,…".
func signWebhook(secret []byte, id string, at time.Time, body []byte) string {
	mac := hmac.New(sha256.New, secret)
	fmt.Fprintf(mac, "%s.%d.", id, at.Unix())
	mac.Write(body)
	return webhookVersion + base64.StdEncoding.EncodeToString(mac.Sum(nil))
}

// webhookHeaders returns the three headers of a message that is sent at a time. It is signed with
// each of the secrets, of which the current one comes first, so that a receiver may know either.
func webhookHeaders(secrets [][]byte, id string, at time.Time, body []byte) http.Header {
	signatures := make([]string, 0, len(secrets))
	for _, secret := range secrets {
		signatures = append(signatures, signWebhook(secret, id, at, body))
	}
	return http.Header{
		webhookIDHeader:        {id},
		webhookTimestampHeader: {strconv.FormatInt(at.Unix(), 10)},
		webhookSignatureHeader: {strings.Join(signatures, " ")},
	}
}

// The errors of verifyWebhook.
var (
	errWebhookHeaders   = errors.New("webhook-id, webhook-timestamp or webhook-signature is missing")
	errWebhookTimestamp = errors.New("webhook-timestamp is not a time in Unix seconds")
	errWebhookTooOld    = errors.New("webhook-timestamp is more than five minutes ago")
	errWebhookTooNew    = errors.New("webhook-timestamp is more than five minutes in the future")
	errWebhookSignature = errors.New("no signature is of this id, time, body and secret")
)

// verifyWebhook checks what a receiver got, as the public libraries do: the time must be within five
// minutes of now, and one of the v1 signatures must match.
func verifyWebhook(secret []byte, h http.Header, body []byte, now time.Time) error {
	id, sent, signatures := h.Get(webhookIDHeader), h.Get(webhookTimestampHeader), h.Get(webhookSignatureHeader)
	if id == "" || sent == "" || signatures == "" {
		return errWebhookHeaders
	}
	seconds, err := strconv.ParseInt(sent, 10, 64)
	if err != nil || sent != strconv.FormatInt(seconds, 10) { // signed as its digits
		return errWebhookTimestamp
	}
	const tolerance = int64(webhookTolerance / time.Second)
	switch at := now.Unix(); {
	case seconds < at-tolerance:
		return errWebhookTooOld
	case seconds > at+tolerance:
		return errWebhookTooNew
	}
	want := []byte(signWebhook(secret, id, time.Unix(seconds, 0), body))
	for signature := range strings.SplitSeq(signatures, " ") {
		if hmac.Equal([]byte(signature), want) {
			return nil
		}
	}
	return errWebhookSignature
}

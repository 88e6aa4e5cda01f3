package main

import (
	"errors"
	"time"
)

// What owners of accounts agree to (contract, section 13).

const (
	maxGrants         = 100                  // of an account for one application; the oldest end
	grantCodeLife     = time.Minute          // of an authorization code
	keptGrantCode     = 24 * time.Hour       // for which a code that was used twice is noticed
	refreshLife       = 30 * 24 * time.Hour  // of a refresh token, unless it is used
	maxGrantLife      = 365 * 24 * time.Hour // however often its refresh tokens are used
	refreshOverlap    = 30 * time.Second     // in which a replaced token yields its successor again
	keptRefreshTokens = 1_000                // of a grant, so that the reuse of one is noticed
)

// The event types of grants.
var (
	grantEvents eventTable

	eventGrantCreated = grantEvents.add("grant.created")
	eventGrantEnded   = grantEvents.add("grant.ended")
	eventGrantReused  = grantEvents.add("grant.reuse_detected")
)

// grantEvent returns an event about a grant.
func grantEvent(g *grant, kind eventType, actor string, data ...string) event {
	return event{
		Type:      kind,
		AccountID: g.AccountID,
		SubjectID: g.ID,
		Actor:     actor,
		Data:      eventData(append([]string{"app_id", g.AppID}, data...)...),
	}
}

// endGrant ends a grant for one of the reasons endedBy…, so that none of its tokens works from the commit on,
// and with it the webhooks that were made under it. Ending it again changes nothing. Errors: errGrant.
func endGrant(t *tx, o owner, id, why, actor string) error {
	g, err := t.grant(o, id)
	if err != nil {
		return err
	}
	t.invalidate(id)
	if ended, err := t.markGrantEnded(id, why); err != nil || !ended {
		return err
	}
	webhooks, err := t.webhooksOfGrant(id)
	if err != nil {
		return err
	}
	for _, w := range webhooks {
		if err := removeWebhook(t, anyAccount, w, actor); err != nil && !errors.Is(err, errWebhook) {
			return err
		}
	}
	return t.addEvent(grantEvent(g, eventGrantEnded, actor, "reason", why, "scope", g.Scope))
}

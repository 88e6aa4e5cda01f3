package main

import (
	"context"
	"errors"
	"time"
)

// grantNoun declares what owners of accounts allow applications to do.
func grantNoun() noun {
	return noun{
		name:     "grant",
		wings:    func(s *server) []wing { return []wing{grantWing(s)} },
		commands: grantCommands,
		events:   grantEvents,
		holdings: []holding{heldGrants},
	}
}

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
	if err := removeWebhooks(t, webhooks, actor); err != nil {
		return err
	}
	return t.addEvent(grantEvent(g, eventGrantEnded, actor, "reason", why, "scope", g.Scope))
}

// removeWebhooks removes the webhooks with these ids, which were made by applications.
func removeWebhooks(t *tx, ids []string, actor string) error {
	for _, id := range ids {
		if err := removeWebhook(t, anyAccount, id, actor); err != nil && !errors.Is(err, errWebhook) {
			return err
		}
	}
	return nil
}

const (
	appSweep      = time.Minute      // between two sweeps
	appSweepPart  = time.Second      // after which a sweep lets other chores have their turn
	endedAtOnce   = 50               // grants, of which each may have many refresh tokens and some webhooks
	keptAppTokens = 10 * time.Minute // after their end, for clocks that differ

	faultAppSweep = "what has ended of applications can't be removed"
)

// An appSweeper ends grants whose time is over or whose application was removed, and removes what is kept no
// longer of applications, grants, sessions and codes: all in short transactions that let other writers in between.
type appSweeper struct {
	store  *store
	now    func() time.Time
	steady func() time.Time              // a clock that is never set
	kept   func(now time.Time) time.Time // since when ended grants and removed applications are kept

	sweptAt time.Time
	more    bool     // the last sweep did not come to its end
	app     string   // that was removed, of which the grants up to another one have ended
	upTo    appGrant // that one
}

// sweep does that each appSweep. It is a chore.
func (w *appSweeper) sweep(ctx context.Context) error {
	now := w.steady()
	if !w.more && within(appSweep, w.sweptAt, now) {
		return nil
	}
	w.sweptAt, w.more = now, false
	wall, ended := newStamp(w.now()), newStamp(w.kept(w.now()))
	removed := ended // by then no code of the application is left, of which the last is kept for keptGrantCode
	if latest := wall.after(-2 * keptGrantCode); latest.Before(removed.Time) {
		removed = latest
	}
	for _, step := range []struct {
		atOnce int64
		run    func(t *tx, limit int64) (int64, error)
	}{
		{sweptAtOnce, (*tx).removeExpiredSignins},
		{sweptAtOnce, (*tx).removeRefreshTokens},
		{endedAtOnce, endOverdueGrants},
		{endedAtOnce, w.endRemoved},
		{sweptAtOnce, func(t *tx, n int64) (int64, error) { return t.removeGrantCodes(wall.after(-keptGrantCode), n) }},
		{sweptAtOnce, func(t *tx, n int64) (int64, error) { return t.removeAppTokens(wall.after(-keptAppTokens), n) }},
		{sweptAtOnce, func(t *tx, n int64) (int64, error) { return t.removeGrants(ended, n) }},
		{endedAtOnce, func(t *tx, n int64) (int64, error) { return t.removeApps(removed, n) }},
	} {
		_, err := w.store.updateInParts(ctx, step.atOnce, func(t *tx) (int64, error) {
			if w.more = !w.steady().Before(now.Add(appSweepPart)); w.more {
				t.invalidate()
				return 0, nil
			}
			return step.run(t, step.atOnce)
		})
		if err != nil {
			w.app, w.upTo = "", appGrant{} // what this transaction did is undone
			return err
		}
		if w.more {
			return nil
		}
	}
	return nil
}

// endOverdueGrants ends up to limit grants whose time is over, and returns how many.
func endOverdueGrants(t *tx, limit int64) (int64, error) {
	t.invalidate()
	ids, err := t.overdueGrants(t.now, limit)
	for _, id := range ids {
		if err := endGrant(t, anyAccount, id, endedByTime, actorTime); err != nil {
			return 0, err
		}
	}
	return int64(len(ids)), err
}

// endRemoved ends up to limit grants or webhooks of an application that was removed. It returns limit as long
// as there may be more. That nothing of such an application works does not wait for it.
func (w *appSweeper) endRemoved(t *tx, limit int64) (int64, error) {
	t.invalidate()
	id, err := t.removedApp()
	if err != nil {
		return 0, notUnless(err, errNotFound)
	}
	if id != w.app {
		w.app, w.upTo = id, appGrant{}
	}
	grants, err := t.grantsOfApp(id, w.upTo, limit)
	if err != nil {
		return 0, err
	}
	for _, g := range grants {
		if g.ended {
			continue
		}
		if err := endGrant(t, anyAccount, g.ID, endedByRemoval, actorTime); err != nil {
			return 0, err
		}
	}
	if len(grants) > 0 {
		w.upTo = grants[len(grants)-1]
		return limit, nil
	}
	webhooks, err := t.webhooksOfApp(id, limit)
	if err != nil {
		return 0, err
	}
	if len(webhooks) > 0 {
		return limit, removeWebhooks(t, webhooks, actorTime)
	}
	return limit, t.setAppEnded(id)
}
